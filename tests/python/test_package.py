"""The package by itself: import, probe, names, errors before joining."""

import subprocess
import sys

import gpubridge
import pytest


def python(code, **kwargs):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, **kwargs
    )
    return done


def test_every_public_name_resolves():
    for name in gpubridge.__all__:
        assert getattr(gpubridge, name) is not None


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        gpubridge.no_such_name  # noqa: B018


def test_import_without_torch_works():
    """A machine without torch: the package imports, probe says what is missing."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import gpubridge\n"
        "p = gpubridge.probe()\n"
        "print(p.torch_version, p.gpu_count, p.errors[0])"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("unknown 0 import torch: "), done.stdout


def test_probe_matches_this_process():
    import torch

    found = gpubridge.probe()
    assert found.torch_version == torch.__version__
    assert found.gpu_count == 0
    assert found.build_vendor is None  # a CPU build
    assert found.gloo_available
    assert gpubridge.Probe.from_dict(found.to_dict()) == found


def test_probe_never_raises(monkeypatch):
    import torch

    def broken(*args):
        raise OSError("driver is upset")

    monkeypatch.setattr(torch.cuda, "device_count", broken)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", broken)
    found = gpubridge.probe()
    assert found.gpu_count == 0 and not found.nccl_available
    assert found.errors == (
        "torch.cuda.device_count: OSError: driver is upset",
        "dist.is_nccl_available: OSError: driver is upset",
    )


def test_calls_need_a_job():
    import torch

    assert not gpubridge.is_initialized()
    assert gpubridge.in_flight() == []
    gpubridge.destroy()  # no-op (S055)
    for call in (
        lambda: gpubridge.all_reduce(torch.ones(1)),
        lambda: gpubridge.barrier(),
        gpubridge.get_topology,
    ):
        with pytest.raises(RuntimeError, match="not initialized"):
            call()


def test_backend_is_registered_by_the_import():
    import torch.distributed as dist

    assert dist.Backend.GPUBRIDGE == "gpubridge"


@pytest.mark.parametrize(
    ("variables", "word"),
    [
        ({"RANK": None}, "RANK is not set"),
        ({"WORLD_SIZE": None}, "WORLD_SIZE is not set"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR is not set"),
        ({"RANK": " "}, "RANK is not set"),
        ({"RANK": "-1"}, '"-1"'),
        ({"RANK": "two"}, '"two"'),
        ({"RANK": "4"}, "RANK is 4"),
        ({"WORLD_SIZE": "0"}, '"0"'),
        ({"MASTER_PORT": "99999"}, "99999"),
        ({"RANK": None, "SLURM_PROCID": "1"}, "SLURM_PROCID"),
    ],
)
def test_environment_is_named_at_once(start, variables, word):
    """S021, S022, S026."""
    script = "import gpubridge; gpubridge.init()"
    job = start(script, "n", env={"WORLD_SIZE": "4", **variables})
    (ended,) = job.wait(30)
    assert ended.code != 0
    assert "ValueError" in ended.out and word in ended.out


def test_bad_names(start):
    script = """
    import gpubridge
    for bridge, policy, kind in (
        ("carrier-pigeon", "auto", ValueError),
        (None, "fastest", ValueError),
        (7, "auto", TypeError),
    ):
        try:
            gpubridge.init(bridge=bridge, policy=policy)
        except kind as error:
            print("refused", error)
        assert not gpubridge.is_initialized()
        import torch.distributed as dist
        assert not dist.is_initialized()
    """
    (ended,) = start(script, "n").wait(40)
    assert ended.code == 0, ended.out
    assert ended.out.count("refused") == 3, ended.out
    assert "reduce-bridge-broadcast" in ended.out and "tcp" in ended.out
