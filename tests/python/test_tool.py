"""The gpubridge command: run, check, config, probe, version; and what the demo
and torchrun make of it."""

import json
import os
import signal
import subprocess
import sys
import time
from xml.etree import ElementTree

import pytest
from conftest import ROOT, TOOL, free_port


def tool(*args, timeout=120, env=None, **kwargs):
    return subprocess.run(
        [TOOL, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **(env or {})},
        **kwargs,
    )


def run_python(code, *options, **kwargs):
    return tool("run", *options, "--", sys.executable, "-c", code, **kwargs)


def test_version_and_usage():
    assert tool("version").stdout == "gpubridge 0.1.0\n"
    assert tool().returncode == 2
    assert tool("fly").returncode == 2
    for command in ("run", "check", "tune", "simulate", "probe", "doctor", "config"):
        done = tool(command, "--help")
        assert done.returncode == 0 and "usage" in done.stdout
        assert tool(command, "--no-such-option").returncode == 2


def test_run_sets_the_environment_and_prefixes():
    code = (
        "import os; e = os.environ; print(e['RANK'], e['WORLD_SIZE'], "
        "e['GPUBRIDGE_VENDOR'], e.get('GPUBRIDGE_ISLAND'), e['MASTER_ADDR'], "
        "e.get('GPUBRIDGE_SIM_HOSTNAME'))"
    )
    done = run_python(code, "--islands", "nvidia:1,amd@far:1,third:1")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[0] 0 3 nvidia None 127.0.0.1 None",
        "[1] 1 3 amd None 127.0.0.1 far",
        "[2] 2 3 nvidia third 127.0.0.1 None",
    ]


@pytest.mark.parametrize("islands", ["", ":2", "nvidia:0", "nvidia:x", "nvidia:-1"])
def test_run_refuses_bad_islands(islands):
    assert run_python("", "--islands", islands).returncode == 2


def test_run_tells_the_first_failure():
    """S039, S054: the code of the first rank that failed, and its text."""
    code = (
        "import os, sys, time\n"
        "if os.environ['RANK'] == '2': sys.exit('bad batch 17')\n"
        "time.sleep(60)"
    )
    start = time.monotonic()
    done = run_python(code, "--grace", "1")
    assert time.monotonic() - start < 20
    assert done.returncode == 1
    assert "[2] bad batch 17" in done.stdout
    assert "rank 2 exited with code 1 (the first to fail)" in done.stderr


def test_run_of_a_missing_program():
    done = tool("run", "--islands", "nvidia:1", "--", "/no/such/program")
    assert done.returncode == 127 and "no/such/program" in done.stdout


def start_sleepers(extra=""):
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *a: print('usr1', flush=True))\n"
        f"{extra}\n"
        "print('pid', os.getpid(), flush=True)\n"
        "time.sleep(1); time.sleep(60)"
    )
    process = subprocess.Popen(
        [TOOL, "run", "--islands", "nvidia:2", "--", sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
    )
    pids = []
    while len(pids) < 2:
        words = process.stdout.readline().split()
        if "pid" in words:
            pids.append(int(words[-1]))
    return process, pids


def gone(pids, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(os.path.exists(f"/proc/{pid}") for pid in pids):
            return True
        time.sleep(0.05)
    return False


def test_run_passes_signals_on():
    process, pids = start_sleepers()
    process.send_signal(signal.SIGUSR1)
    lines = [process.stdout.readline() for _ in range(2)]
    assert sorted(lines) == ["[0] usr1\n", "[1] usr1\n"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 128 + signal.SIGTERM
    assert gone(pids, 5)


def test_run_killed_hard_leaves_nobody():
    """S057."""
    process, pids = start_sleepers()
    process.kill()
    process.wait()
    assert gone(pids, 5)


@pytest.mark.parametrize(
    "args",
    [
        ["--islands", "nvidia:2,amd:2"],
        ["--islands", "nvidia:1,amd:1,nvidia:1,amd:1", "--bridge", "tcp"],
        ["--islands", "nvidia:3,amd:1", "--policy", "flat"],
        ["--islands", "a:2,b:3,c:2", "--count", "513"],
        ["--islands", "nvidia:4"],
        ["--islands", "nvidia@x:2,amd@y:2"],
    ],
)
def test_check_is_all_exact(args):
    done = tool("check", *args)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all exact" in done.stdout and "bad" not in done.stdout
    assert done.stdout.count(" ok") >= 8 * 3 * 2 + 17


def test_tune_writes_a_file_that_jobs_take(tmp_path):
    """Measures, writes rules and curves; a job with the file stays exact."""
    out, svg = tmp_path / "t.json", tmp_path / "t.svg"
    command = ("tune", "--max", 65536, "--seconds", 2, "--out", out, "--svg", svg)
    done = tool(*command, "--islands", "nvidia:2,amd:1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'left out: the policy "native-only" does not fit' in done.stdout
    file = json.loads(out.read_text())
    lists = [file["rules"], *file["collectives"].values()]
    assert file["gpubridge_thresholds"] == 1 and len(lists) == 5
    for rules in lists:
        sizes = [rule["max_bytes"] for rule in rules]
        assert sizes[-1] is None and sizes[:-1] == sorted(set(sizes[:-1]))
    measured = file["measured"]
    assert measured["islands"] == {"nvidia": 2, "amd": 1}
    assert measured["median_us"]["all_reduce flat@4"] > 0
    assert measured["median_us"]["reduce_scatter reduce-bridge-broadcast@65536"] > 0
    root = ElementTree.fromstring(svg.read_text())
    assert sum(e.tag.endswith("polyline") for e in root) >= 5 * 2
    env = {"GPUBRIDGE_THRESHOLDS": str(out)}
    done = tool("check", "--islands", "nvidia:2,amd:1", "--count", 700, env=env)
    assert done.returncode == 0 and "policy auto-tuned" in done.stdout, done.stdout
    assert "all exact" in done.stdout
    done = tool("check", "--islands", "nvidia:3", env=env)  # rules for two islands
    assert done.returncode == 1 and "which does not fit a job of 1 island" in done.stdout


def test_tune_refuses(tmp_path):
    assert tool("tune", "--max", 2).returncode == 2
    assert tool("tune", "--seconds", 0).returncode == 2
    short = ("--max", 16, "--seconds", 0.1)
    done = tool("tune", *short, "--policies", "best,native-only")
    assert done.returncode == 1 and "none of the policies" in done.stdout
    nowhere = tmp_path / "none" / "t.json"
    done = tool("tune", *short, "--out", nowhere, "--svg", "")
    assert done.returncode == 1 and f"cannot write {nowhere}: No such" in done.stdout


def test_config_lists_and_judges():
    done = tool("config", env={"GPUBRIDGE_CHUNK_BYTES": "2M"})
    assert done.returncode == 0
    line = next(s for s in done.stdout.splitlines() if s.startswith("GPUBRIDGE_CHUNK"))
    assert "2097152" in line and "environment" in line
    done = tool("config", env={"GPUBRIDGE_CHUNK_BYTES": "much"})
    assert done.returncode == 1 and "PROBLEM" in done.stdout and "much" in done.stdout


def test_probe_names_what_is_missing():
    done = tool("probe")
    assert done.returncode == 0
    assert "CUDA driver" in done.stdout and "interfaces" in done.stdout


def test_the_demo(tmp_path):
    """make demo: trains, agrees with one process, draws the curves."""
    figures = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, ROOT / "examples/demo.py", "--json", figures],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    values = json.loads(figures.read_text())
    assert values["same"] and values["accuracy"] > 0.95
    assert values["difference"] < 1e-9
    assert "bridge shm" in done.stdout and "amd" in done.stdout
    assert (tmp_path / "demo-loss.svg").read_text().count("polyline") == 2


def test_c_and_python_in_one_job_under_torchrun(tmp_path):
    """The C example and a PyTorch script share one job: even ranks are C."""
    program = tmp_path / "all_reduce"
    include = [f"-I{ROOT}/include", f"-I{ROOT}/build/include"]
    subprocess.run(
        ["cc", ROOT / "examples/all_reduce.c", *include, f"-L{ROOT}/build/lib",
         "-lgpubridge", f"-Wl,-rpath,{ROOT}/build/lib", "-o", program],
        check=True,
    )  # fmt: skip
    script = tmp_path / "mixed.py"
    script.write_text(
        f"""
import os, sys
rank = int(os.environ["RANK"])
os.environ["GPUBRIDGE_VENDOR"] = "nvidia" if rank < 2 else "amd"
if rank % 2 == 0:
    os.execv({str(program)!r}, [{str(program)!r}])
import torch, gpubridge
from datetime import timedelta
t = gpubridge.init(timeout=timedelta(seconds=60))
x = torch.tensor([rank + 1.0])
gpubridge.all_reduce(x)
os.write(1, f"rank {{rank}} of 4, {{t.vendor}}: the sum is {{x.item():g}} in python\\n".encode())
gpubridge.destroy()
"""
    )
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4",
         f"--master-port={free_port()}", script],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("the sum is 10") == 4, done.stdout
    assert done.stdout.count("in python") == 2


def test_torchrun_restarts(tmp_path):
    """S016: attempt 0 fails after a collective, attempt 1 runs to the end."""
    script = tmp_path / "restarts.py"
    script.write_text(
        """
import os, torch, gpubridge
rank = int(os.environ["RANK"])
os.environ["GPUBRIDGE_VENDOR"] = "nvidia" if rank < 2 else "amd"
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
t = gpubridge.init()
for _ in range(3 if attempt else 1):
    x = torch.tensor([rank + 1.0])
    gpubridge.all_reduce(x)
    assert x.item() == 10
if attempt == 0 and rank == 2: raise RuntimeError("first attempt")
if attempt == 0: gpubridge.barrier()
gpubridge.destroy()
os.write(1, f"attempt {attempt} done\\n".encode())  # whole, beside other ranks
"""
    )
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4",
         "--max-restarts=1", f"--master-port={free_port()}", script],
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("attempt 1 done") == 4


def test_no_build_at_run_time(run, tmp_path):
    """S062: there is no library to build, so no half-written one: the old build
    command is a no-op that four processes may run at once, also when killed."""
    command = [sys.executable, "-m", "gpubridge.multitcp", "build"]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    killed.kill()
    killed.wait()
    builds = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    for build in builds:
        out, _ = build.communicate(timeout=60)
        assert build.returncode == 0 and "nothing to build" in out
    info = subprocess.run(
        [*command[:-1], "info"], capture_output=True, text=True, check=True, timeout=60
    )
    assert "GPUBRIDGE_MULTITCP_STREAMS" in info.stdout
    for name, code, text in (
        ("verbs", 0, "GPUBRIDGE_VERBS_DEVICE"),
        ("ucx", 1, "not part of"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", f"gpubridge.{name}", "info"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code and text in done.stdout
    assert tool("check", "--count", "10", timeout=60).returncode == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_user_without_a_name_or_home(tmp_path):
    """S064: a numeric user without a passwd entry or HOME, a long TMPDIR that it
    cannot write, and a host name in Japanese (test_jobs.py reads it back)."""
    long = tmp_path / ("x" * 150)
    long.mkdir(mode=0o555)
    environment = {
        "PATH": os.environ["PATH"],
        "TMPDIR": str(long),
        "GPUBRIDGE_SIM_HOSTNAME": "計算機",
    }
    done = subprocess.run(
        [TOOL, "check", "--islands", "nvidia:1,amd:1", "--count", "10"],
        env=environment,
        user=54321,
        group=54321,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
