"""A hundred jobs in a row on one port, every fifth with a rank killed in the
middle: nothing is left behind and nothing hangs (S009, S036, S060)."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import ROOT, free_port

JOB = ROOT / "build/bin/torture_job"
JOBS = 100
END_S = 20  # a job that is not through by then hangs
KILLED_TEXT = ("is gone", "broke", "left the job")


def start(folder, port, bridge, rounds, mark):
    ranks = []
    for rank in range(4):
        env = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": "4",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GPUBRIDGE_VENDOR": "nvidia" if rank < 2 else "amd",
            "GPUBRIDGE_BRIDGE": bridge,
            "GPUBRIDGE_POLICY": "reduce-bridge-broadcast",  # also on one host
            "GB_SOAK_MARK": mark,
        }
        ranks.append(
            subprocess.Popen(
                [JOB, str(rounds)],
                env=env,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                text=True,
            )
        )
    return ranks


def kill_in_the_middle(ranks, victim, after):
    """SIGKILLs a rank that has just completed call `after`."""
    for line in ranks[victim].stdout:
        if line.startswith(f"ok {after} "):
            os.kill(ranks[victim].pid, signal.SIGKILL)
            return
    raise AssertionError(f"rank {victim} ended before call {after}")


def finish(ranks):
    outs, end = [], time.monotonic() + END_S
    try:
        for process in ranks:
            outs.append(process.communicate(timeout=max(0.1, end - time.monotonic()))[0])
    except subprocess.TimeoutExpired:
        raise AssertionError(f"a rank still runs after {END_S} s") from None
    finally:
        for process in ranks:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
    return outs


def processes_with(mark):
    needle = f"GB_SOAK_MARK={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                found.append(entry.name)
        except OSError:
            continue
    return found


def listens(port):
    """Whether any socket of this machine listens on `port` or is bound to it
    without a connection."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if int(fields[1].rsplit(":", 1)[1], 16) == port and fields[3] in ("0A", "07"):
                return True
    return False


def files():
    """What a job of ours could have left in the shared folders."""
    return {
        str(path)
        for folder in ("/dev/shm", "/tmp")
        for path in Path(folder).iterdir()
        if "gpubridge" in path.name
    }


def open_memfds():
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            if "memfd:gpubridge" in os.readlink(link):
                found.append(link.name)
        except OSError:
            continue
    return found


@pytest.mark.skipif(not JOB.exists(), reason="torture_job is not built")
def test_a_hundred_jobs_leave_nothing(tmp_path):
    choose = random.Random(20)
    port, mark = free_port(), str(tmp_path)
    before = files()
    for number in range(JOBS):
        killed = number % 5 == 4
        ranks = start(tmp_path, port, ("shm", "tcp")[number % 2], 1000 if killed else 2, mark)
        victim = choose.randrange(4)
        if killed:
            kill_in_the_middle(ranks, victim, choose.randrange(3, 30))
        outs = finish(ranks)
        for rank, (process, out) in enumerate(zip(ranks, outs, strict=True)):
            told = f"job {number}, rank {rank}: {process.returncode}\n{out[-2000:]}"
            if not killed:
                assert process.returncode == 0, told
            elif rank == victim:
                assert process.returncode == -signal.SIGKILL, told
            else:
                assert process.returncode == 1, told
                assert f"rank {victim}" in out and any(t in out for t in KILLED_TEXT), told
        assert not processes_with(mark), f"job {number} left processes"
        assert not listens(port), f"job {number} left port {port} open"
    assert not list(tmp_path.iterdir())
    assert files() == before
    assert not open_memfds()
