"""The examples, each as its first lines say: with our launcher and with torchrun.
What they print is what they have checked themselves."""

import os
import re
import signal
import subprocess
import sys

import pytest
from conftest import ROOT, TOOL, free_port

LAUNCHERS = {
    "gpubridge": [TOOL, "run", "--no-prefix", "--islands", "nvidia:2,amd:2", "--"],
    "torchrun": ["-m", "torch.distributed.run", "--nproc-per-node", "4"],
}

WORDS = {
    "ddp": r"4 ranks in 2 islands: loss (\S+) -> (\S+); the parameters are identical",
    "fsdp": r"4 ranks in 2 islands: loss (\S+) -> (\S+); rank 0 holds \d+ of \d+ "
    r"parameters\nverified: one process ends with the same model",
    "pipeline": r"4 stages in 2 islands, 8 micro-batches: loss (\S+) -> (\S+); one "
    r"process ends with the same model",
    "moe": r"4 experts in 2 islands: loss (\S+) -> (\S+); \d+% of the tokens crossed "
    r"the bridge; the router is identical",
}


def launch(launcher, name, *options):
    """Runs an example to its end; all its processes are gone afterwards."""
    script = [ROOT / "examples" / f"{name}.py", *options]
    if launcher == "torchrun":
        port = ["--master-port", str(free_port())]
        command = [sys.executable, *LAUNCHERS[launcher], *port, *script, "--simulate"]
    else:
        command = [*LAUNCHERS[launcher], sys.executable, *script]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(timeout=150)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    assert process.returncode == 0, out
    return out


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("name", WORDS)
def test_example(name, launcher):
    """It ends well, says what it should, and has learned something."""
    options = []
    if name == "fsdp":
        options = ["--verify", *(["--hsdp"] if launcher == "gpubridge" else [])]
    out = launch(launcher, name, *options)
    found = re.search(WORDS[name], out)
    assert found, out
    assert float(found[2]) < 0.8 * float(found[1]), out
    if "--hsdp" in options:
        assert "shard:     2 groups of 2, each inside one island\n" in out
