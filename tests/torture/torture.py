#!/usr/bin/env python3
"""Makes every fault point strike, one at a time, in whole jobs of four ranks.

A run is one job (torture_job, 2 NVIDIA + 2 AMD ranks on this machine) in which
one fault strikes once: a place, a rank, an action, the n-th time the rank comes
there. n grows until the job ends before it gets there. A run is good when

  - every rank ends by itself within the deadline, with 0 or with 1 and an error
    text; never with a wrong number (2), never by a signal (but the rank that
    `kill` or `freeze` stops);
  - faults that a network is full of (again, short, delay) do not hurt: all 0;
  - nobody completes a call that a failed rank did not come to;
  - nothing is left: no process, no file where it ran, in /tmp or /dev/shm.

Prints what is not good, then "N passed, N failed, N skipped"; a run is a case.
"""

import argparse
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RANKS = 4
VENDORS = ["nvidia", "nvidia", "amd", "amd"]
TIMEOUT_MS = 4000  # of the job
DEADLINE_S = 25
# Which times a place is made to fail: all first ones, then ever fewer.
SPREAD = (1, 2, 3, 4, 6, 9, 13, 19, 28, 42, 63, 95, 142, 213, 320, 480)
SPARSE = (1, 3, 6, 12, 24, 48, 96, 192, 384)
FEW = (2, 7, 20, 60, 180)
# Completing one of these needs something of every rank.
FULL = {
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "barrier",
    "async",
    "all_to_all",
    "group",
    "group_reduce",
}
HARMLESS = {"again", "short", "delay"}


@dataclass(frozen=True)
class Series:
    """The runs of one place, rank and action, n by n."""

    place: str
    rank: int
    action: str
    bridge: str
    spread: tuple


@dataclass
class Outcome:
    series: Series
    nth: int
    struck: bool = False
    seconds: float = 0.0
    problems: list = field(default_factory=list)
    outputs: list = field(default_factory=list)
    codes: list = field(default_factory=list)

    def title(self):
        s = self.series
        return f"{s.place}@{s.rank}:nth={self.nth}:{s.action} over {s.bridge}"


port_lock = threading.Lock()
ports_used = set()


def free_port():
    """Not given to two runs: they go on in parallel. Below those that the system
    gives to whoever asks for any: one of these was taken between this look and
    the run."""
    with port_lock:
        while True:
            port = random.randrange(15000, 32000)
            with socket.socket() as probe:
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    continue
            if port not in ports_used:
                ports_used.add(port)
                return port


def start_ranks(binary, series, nth, folder, mark):
    port = free_port()
    processes = []
    for rank in range(RANKS):
        env = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GPUBRIDGE_VENDOR": VENDORS[rank],
            "GPUBRIDGE_BRIDGE": series.bridge,
            "GPUBRIDGE_POLICY": "reduce-bridge-broadcast",  # also on one host
            "GPUBRIDGE_FAULT": f"{series.place}@{series.rank}:nth={nth}:{series.action}",
            "GPUBRIDGE_FAULT_LOG": str(folder / "struck"),
            "GB_TORTURE_MARK": mark,
        }
        if series.action in ("freeze", "kill"):
            env["GPUBRIDGE_HEARTBEAT_TIMEOUT"] = "2"
        out = open(folder / f"out{rank}", "wb")
        processes.append(
            subprocess.Popen(
                [binary, "2", str(TIMEOUT_MS)], env=env, cwd=folder / "work", stdin=subprocess.DEVNULL,
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )
        )
        out.close()
    return processes


def is_stopped(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return False


def wait_all(processes, series, outcome):
    """Gathers the exit codes; None for a rank that is frozen, as it should."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        waiting = [r for r, p in enumerate(processes) if p.poll() is None]
        frozen = series.action == "freeze" and waiting == [series.rank]
        if not waiting or (frozen and is_stopped(processes[series.rank].pid)):
            break
        time.sleep(0.01)
    codes = []
    for rank, process in enumerate(processes):
        code = process.poll()
        expected = series.action == "freeze" and rank == series.rank
        if code is None and not (expected and is_stopped(process.pid)):
            outcome.problems.append(f"rank {rank} still runs after {DEADLINE_S} s")
        if code is None:
            if not expected and shutil.which("gdb"):
                outcome.outputs.append(stacks(process.pid))
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        codes.append(code)
    return codes


def stacks(pid):
    done = subprocess.run(
        ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 14"],
        capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
    )
    return f"--- stacks of {pid}\n{done.stdout[-6000:]}"


def trail(output):
    """(calls that ended well, by number; the number that failed or None)"""
    good = {int(n): name for n, name in re.findall(r"^ok (\d+) (\w+)$", output, re.M)}
    failed = re.search(r"^failed (-?\d+) \[-?\d+\] (.+)$", output, re.M)
    return good, failed


def check_codes(outcome, outputs):
    s = outcome.series
    for rank, code in enumerate(outcome.codes):
        struck = rank == s.rank and outcome.struck
        if code == 0 or (code is None and s.action == "freeze" and struck):
            continue
        if code == -signal.SIGKILL and s.action == "kill" and struck:
            continue
        if code is None:
            continue  # told already
        if code != 1:
            outcome.problems.append(f"rank {rank} ended with {code}")
        elif not trail(outputs[rank])[1]:
            outcome.problems.append(f"rank {rank} ended with 1 and no error text")
        elif s.action in HARMLESS or not outcome.struck:
            outcome.problems.append(f"rank {rank} failed, but nothing hurt it")


def check_calls(outcome, outputs):
    """A rank that failed in call k never came to what is after k."""
    trails = [trail(o) for o in outputs]
    last = []
    for (good, failed), code in zip(trails, outcome.codes, strict=True):
        if failed:
            last.append(int(failed[1]) if int(failed[1]) >= 0 else -1)
        elif code != 0:
            last.append(len(good))  # it may have been in that call
        else:
            last.append(None)
    for rank, (good, _) in enumerate(trails):
        for other, limit in enumerate(last):
            if limit is None:
                continue
            # One batch of async calls is handed over at once.
            beyond = [n for n, name in good.items()
                      if name in FULL and n > limit + (2 if name == "async" else 0)]
            if beyond:
                outcome.problems.append(
                    f"rank {rank} completed call {min(beyond)}, but rank {other} "
                    f"came no further than call {limit}"
                )


def processes_with(mark):
    found = []
    needle = f"GB_TORTURE_MARK={mark}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                found.append(entry.name)
        except OSError:
            continue
    return found


def one_run(binary, series, nth):
    outcome = Outcome(series, nth)
    folder = Path(tempfile.mkdtemp(prefix="gb-torture-"))
    (folder / "work").mkdir()
    start = time.monotonic()
    try:
        processes = start_ranks(binary, series, nth, folder, folder.name)
        outcome.codes = wait_all(processes, series, outcome)
        outcome.seconds = time.monotonic() - start
        outcome.struck = (folder / "struck").exists()
        outputs = [(folder / f"out{r}").read_text(errors="replace") for r in range(RANKS)]
        outcome.outputs[:0] = [f"[{r}] code {outcome.codes[r]}\n{outputs[r]}"
                               for r in range(RANKS)]
        check_codes(outcome, outputs)
        check_calls(outcome, outputs)
        left = processes_with(folder.name)
        if left:
            outcome.problems.append(f"processes {left} are left")
        if any((folder / "work").iterdir()):
            outcome.problems.append("files are left where it ran")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


def run_series(binary, series, stop):
    """All n of the spread until none strikes; the outcomes that count."""
    outcomes = []
    for nth in series.spread:
        if time.monotonic() > stop:
            return outcomes, "time"
        outcome = one_run(binary, series, nth)
        if not outcome.struck:
            if outcome.problems:
                outcomes.append(outcome)
            return outcomes, None
        outcomes.append(outcome)
    return outcomes, "spread"


def all_series():
    """Set-up is the same over every bridge; data goes over tcp and shm."""
    dense, sparse, few = SPREAD, SPARSE, FEW
    table = [
        ("sock.recv", "freeze", few, ["tcp"]),
        ("alloc", "freeze", few, ["shm"]),
        ("sock.send", "kill", sparse, ["tcp"]),
        ("wire.decode", "kill", few, ["shm"]),
        ("alloc", "kill", few, ["shm"]),
        ("alloc", "fail", dense, ["tcp"]),
        ("alloc", "fail", sparse, ["shm"]),
        ("thread.start", "fail", dense, ["tcp"]),
        ("sock.listen", "fail", dense, ["tcp"]),
        ("sock.connect", "fail", dense, ["tcp"]),
        ("sock.connect", "again", dense, ["tcp"]),
        ("sock.send", "fail", dense, ["tcp"]),
        ("sock.send", "again", sparse, ["tcp"]),
        ("sock.send", "short", sparse, ["tcp"]),
        ("sock.recv", "fail", dense, ["tcp"]),
        ("sock.recv", "again", sparse, ["tcp"]),
        ("sock.recv", "short", sparse, ["tcp"]),
        ("sock.recv", "corrupt", sparse, ["tcp"]),
        ("sock.recv", "delay", sparse, ["shm"]),
        ("wire.decode", "fail", dense, ["tcp"]),
        ("wire.decode", "corrupt", dense, ["tcp"]),
        ("mem.map", "fail", dense, ["shm"]),
        ("store.get", "fail", dense, ["tcp"]),
        ("store.get", "corrupt", dense, ["tcp"]),
        ("store.set", "fail", dense, ["tcp"]),
    ]
    for place, action, spread, bridges in table:
        for bridge in bridges:
            for rank in (0, 2, 3):
                yield Series(place, rank, action, bridge, spread)


def report(outcome, word="FAIL"):
    print(f"{word} {outcome.title()} ({outcome.seconds:.1f} s)")
    for problem in outcome.problems:
        print(f"  {problem}")
    for text in outcome.outputs:
        print("  " + text.rstrip().replace("\n", "\n  "))
    sys.stdout.flush()


def pass_over(name, binary, series, jobs, seconds, slow=DEADLINE_S):
    """Runs the series in parallel; (passed, failed)."""
    start = time.monotonic()
    stop = start + seconds
    passed = failed = 0
    cut, slowest = [], None
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(run_series, binary, s, stop): s for s in series}
        for future in as_completed(futures):
            s, (outcomes, end) = futures[future], future.result()
            if end:
                last = outcomes[-1].nth if outcomes else 0
                cut.append(f"{s.place}@{s.rank}:{s.action} over {s.bridge}: {end} "
                           f"ended it after n={last}")
            for outcome in outcomes:
                if outcome.problems:
                    failed += 1
                    report(outcome)
                else:
                    passed += 1
                    if outcome.seconds > slow:
                        report(outcome, "slow")
                if not slowest or outcome.seconds > slowest.seconds:
                    slowest = outcome
    for line in cut:
        print(f"{name}: {line}")
    print(f"{name}: {passed + failed} runs of {len(series)} series in "
          f"{time.monotonic() - start:.0f} s; the longest took "
          f"{slowest.seconds if slowest else 0:.1f} s"
          f"{' (' + slowest.title() + ')' if slowest else ''}")
    return passed, failed


def listing():
    return {str(p) for place in ("/dev/shm", "/tmp") for p in Path(place).iterdir()
            if "gpubridge" in p.name or "gb_" in p.name}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a pattern, like sock.send@0:fail")
    parser.add_argument("--nth", type=int, help="only this n")
    parser.add_argument("--binary", help="instead of build-faults/bin/torture_job")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=180)
    parser.add_argument("--slow", type=float, default=DEADLINE_S,
                        help="show runs that took longer, in seconds")
    args = parser.parse_args()
    binary = Path(args.binary or ROOT / "build-faults/bin/torture_job").resolve()
    if not binary.exists():
        print(f"{binary} is not built")
        print("0 passed, 1 failed, 0 skipped")
        return 1
    series = [s for s in all_series()
              if re.search(args.only, f"{s.place}@{s.rank}:{s.action}:{s.bridge}")]
    if args.nth:
        series = [Series(s.place, s.rank, s.action, s.bridge, (args.nth,)) for s in series]
    before = listing()
    passed, failed = pass_over("faults", binary, series, args.jobs, args.seconds,
                               args.slow)
    asan = ROOT / "build-asan/bin/torture_job"
    skipped = 0
    if not args.binary and not args.only:
        if asan.exists():
            few = [Series(s.place, s.rank, s.action, s.bridge, s.spread[1:12:3])
                   for s in series
                   if s.rank == 2 and s.action in ("fail", "corrupt", "short")]
            more = pass_over("asan", asan, few, 3, 50)
            passed, failed = passed + more[0], failed + more[1]
        else:
            print("asan: build-asan/bin/torture_job is not built, left out")
            skipped += 1
    left = listing() - before
    if left:
        print(f"FAIL left behind: {sorted(left)}")
        failed += 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
