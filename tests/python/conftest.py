"""Runs N-rank Python jobs for tests: each rank a process of its own, with its
vendor, in a process group that is killed at the end; output is kept per rank."""

import atexit
import json
import os
import select
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


class Zygote:
    """The process of zygote.py, one for the whole run: it forks ranks that have
    torch imported already."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("zygote.py"))],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.pending = b""
        self.codes = {}
        self.pids = []

    def read(self, block):
        """Takes in what it says: all that is there, or at least one line."""
        out = self.process.stdout
        while select.select([out], [], [], 60 if block else 0)[0]:
            data = os.read(out.fileno(), 1 << 16)
            if not data:
                raise RuntimeError("the zygote has ended")
            *lines, self.pending = (self.pending + data).split(b"\n")
            for answer in map(json.loads, lines):
                if "pid" in answer:
                    self.pids.append(answer["pid"])
                else:
                    pid, code = answer["ended"]
                    self.codes[pid] = code
            block = block and not lines

    def fork(self, script, environment, folder, log):
        order = {
            "script": str(script),
            "environment": environment,
            "folder": str(folder),
            "log": str(log),
        }
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()
        while not self.pids:
            self.read(True)
        return ForkedRank(self, self.pids.pop(0))

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class ForkedRank:
    """What tests use of subprocess.Popen, for a rank that the zygote forked."""

    def __init__(self, zygote, pid):
        self.zygote = zygote
        self.pid = pid

    @property
    def returncode(self):
        return self.zygote.codes.get(self.pid)

    def poll(self):
        if self.returncode is None:
            self.zygote.read(False)
        return self.returncode

    def wait(self):
        while self.poll() is None:
            self.zygote.read(True)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)


_zygote = None


def zygote():
    global _zygote
    if _zygote is None:
        _zygote = Zygote()
        atexit.register(_zygote.close)
    return _zygote


# torch or the interpreter read these when they start.
AT_START = ("TORCH_", "PYTHON", "OMP_", "LD_", "MALLOC_")


@dataclass
class Ended:
    """How one rank ended."""

    rank: int
    code: int
    out: str
    seconds: float


class Job:
    """Ranks that run `script`; use as a context manager."""

    def __init__(
        self, script, vendors, folder, env=None, per_rank=None, port=None, fresh=False
    ):
        """fresh: an interpreter of its own for each rank, instead of a fork of
        one that has imported torch."""
        self.port = port or free_port()
        changed = [*(env or {}), *(k for v in (per_rank or {}).values() for k in v)]
        fresh = fresh or any(name.startswith(AT_START) for name in changed)
        path = folder / f"script-{self.port}.py"
        path.write_text(textwrap.dedent(script))
        self.start = time.monotonic()
        self.ranks = []
        self.files = []
        letters = {"n": "nvidia", "a": "amd"}
        # init_process_group's jobs meet over the bridge, as between two machines;
        # auto passes it by on the tests' one host.
        told = {"GPUBRIDGE_POLICY", "GPUBRIDGE_THRESHOLDS", "GPUBRIDGE_TUNE"} & {*os.environ, *changed}
        bridging = len(set(vendors)) > 1 and not told
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
                **({"GPUBRIDGE_POLICY": "reduce-bridge-broadcast"} if bridging else {}),
                **(env or {}),
                **((per_rank or {}).get(rank, {})),
            }
            values = {k: v for k, v in values.items() if v is not None}
            log = open(folder / f"rank{rank}-{self.port}.log", "a+")  # noqa: SIM115
            self.files.append(log)
            if not fresh:
                self.ranks.append(zygote().fork(path, values, folder, log.name))
                continue
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
