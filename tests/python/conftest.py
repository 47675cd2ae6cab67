"""Runs N-rank Python jobs for tests: each rank a process of its own, with its
vendor, in a process group that is killed at the end; output is kept per rank."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "build/bin/gpubridge"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class Ended:
    """How one rank ended."""

    rank: int
    code: int
    out: str
    seconds: float


class Job:
    """Ranks that run `script`; use as a context manager."""

    def __init__(self, script, vendors, folder, env=None, per_rank=None, port=None):
        self.port = port or free_port()
        path = folder / f"script-{self.port}.py"
        path.write_text(textwrap.dedent(script))
        self.start = time.monotonic()
        self.ranks = []
        self.files = []
        letters = {"n": "nvidia", "a": "amd"}
        for rank, letter in enumerate(vendors):
            values = {
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(len(vendors)),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self.port),
                "GPUBRIDGE_VENDOR": letters[letter],
                "OMP_NUM_THREADS": "1",
                "PYTHONFAULTHANDLER": "1",
                **(env or {}),
                **((per_rank or {}).get(rank, {})),
            }
            values = {k: v for k, v in values.items() if v is not None}
            log = open(folder / f"rank{rank}-{self.port}.log", "w+")  # noqa: SIM115
            self.files.append(log)
            self.ranks.append(
                subprocess.Popen(
                    [sys.executable, str(path)],
                    env=values,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    cwd=folder,
                    start_new_session=True,
                )
            )

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for process in self.ranks:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        for log in self.files:
            log.close()

    def wait(self, timeout=60):
        """Waits for all; a rank that outlives `timeout` fails the test."""
        end = self.start + timeout
        seconds = {}
        while len(seconds) < len(self.ranks):
            for rank, process in enumerate(self.ranks):
                if rank not in seconds and process.poll() is not None:
                    seconds[rank] = time.monotonic() - self.start
            if time.monotonic() > end:
                outs = "\n".join(f"[{r}] {self.out(r)}" for r in range(len(self.ranks)))
                late = [r for r in range(len(self.ranks)) if r not in seconds]
                raise AssertionError(f"ranks {late} still run after {timeout} s:\n{outs}")
            time.sleep(0.01)
        return [
            Ended(r, p.returncode, self.out(r), seconds[r])
            for r, p in enumerate(self.ranks)
        ]

    def out(self, rank):
        self.files[rank].flush()
        return (Path(self.files[rank].name)).read_text(errors="replace")


@pytest.fixture
def start(tmp_path):
    """start(script, "nnaa", env={}, per_rank={3: {...}}) -> Job."""
    jobs = []

    def go(script, vendors, **kwargs):
        job = Job(script, vendors, tmp_path, **kwargs)
        jobs.append(job)
        return job

    yield go
    for job in jobs:
        job.__exit__()


@pytest.fixture
def run(start):
    """run(script, "nnaa", ...): all ranks must end with code 0; returns their
    outputs."""

    def go(script, vendors, timeout=90, **kwargs):
        ended = start(script, vendors, **kwargs).wait(timeout)
        bad = [e for e in ended if e.code]
        assert not bad, "\n".join(f"[{e.rank}] code {e.code}\n{e.out}" for e in ended)
        return [e.out for e in ended]

    return go
