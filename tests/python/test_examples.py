"""The examples, with our launcher and with torchrun. What they print is what they
have checked themselves."""

import os
import re
import signal
import subprocess
import sys

import pytest
from conftest import ROOT, TOOL, free_port

# One after the other in the same processes: importing torch takes longer than
# any of them, and a process may open one job after another.
DRIVER = """
import os, runpy, sys
for name, port in zip(("ddp", "fsdp", "pipeline", "moe"), PORTS):
    sys.argv = [name]
    # torch's store of the job before may still be there on the same port.
    if TORCHRUN: sys.argv.append("--simulate")
    else: os.environ["MASTER_PORT"] = str(port)
    if name == "fsdp": sys.argv += ["--verify"] if TORCHRUN else ["--verify", "--hsdp"]
    runpy.run_path(f"{FOLDER}/{name}.py", run_name="__main__")
"""

WORDS = {
    "ddp": r"4 ranks in 2 islands: loss (\S+) -> (\S+); the parameters are identical",
    "fsdp": r"4 ranks in 2 islands: loss (\S+) -> (\S+); rank 0 holds \d+ of \d+ "
    r"parameters\nverified: one process ends with the same model",
    "pipeline": r"4 stages in 2 islands, 8 micro-batches: loss (\S+) -> (\S+); one "
    r"process ends with the same model",
    "moe": r"4 experts in 2 islands: loss (\S+) -> (\S+); \d+% of the tokens crossed "
    r"the bridge; the router is identical",
}


def launch(command):
    """Runs it to its end and returns its output; nothing of it stays."""
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


@pytest.mark.parametrize("launcher", ["gpubridge", "torchrun"])
def test_examples(launcher, tmp_path):
    """They end well, say what they should, and have learned something."""
    torchrun = launcher == "torchrun"
    script = tmp_path / "all.py"
    folder = ROOT / "examples"
    ports = [free_port() for _ in WORDS]
    script.write_text(
        f"TORCHRUN, FOLDER, PORTS = {torchrun}, {str(folder)!r}, {ports}\n{DRIVER}"
    )
    run = [TOOL, "run", "--no-prefix", "--islands", "nvidia:2,amd:2", "--"]
    if torchrun:
        run = ["-m", "torch.distributed.run", "--nproc-per-node", "4"]
        run = [sys.executable, *run, "--master-port", str(free_port())]
    else:
        run.append(sys.executable)
    out = launch([*run, script])
    for name, words in WORDS.items():
        found = re.search(words, out)
        assert found, f"{name}:\n{out}"
        assert float(found[2]) < 0.8 * float(found[1]), out
    told = "shard:     2 groups of 2, each inside one island\n" in out
    assert told == (not torchrun)
