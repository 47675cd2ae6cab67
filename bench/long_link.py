#!/usr/bin/env python3
"""All_reduce between two hosts over long, thin and lossy links: payload each way per
call, of what the line carries.

    bench/long_link.py [--case NAME ...] [--calls 5] [--bytes 67108864] [--json FILE]

Two hosts with one rank each, one island a host, joined by a cable of the project's
lab (needs root). The first call pays for slow start and is not counted; the figures
are of the others. A full frame of 1514 bytes carries 1448 of payload, so 0.956 is
the most that a line can give.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAB = ROOT.parent / "shared/lab/lab"

# name: (Mbit/s, one-way delay, loss, what the median must reach)
CASES = {
    "200M-20ms": (200, "20ms", None, 0.90),
    "200M-40ms-loss": (200, "40ms", "0.1%", 0.60),
    "1G-0.5ms": (1000, "500us", None, 0.90),
    "1G-10ms": (1000, "10ms", None, 0.85),
    "1G-40ms": (1000, "40ms", None, 0.75),
    "1G-10ms-loss": (1000, "10ms", "0.1%", 0.75),
    "1G-40ms-loss": (1000, "40ms", "0.1%", 0.60),
}


def work(calls, size):
    """What each rank runs."""
    import gpubridge
    import torch

    topology = gpubridge.init()
    tensor = torch.ones(size // 4)
    walls = []
    for _ in range(calls + 1):
        gpubridge.barrier()
        start = time.perf_counter()
        gpubridge.all_reduce(tensor)
        walls.append(time.perf_counter() - start)
        tensor.fill_(1.0)
    if topology.rank == 0:
        print(json.dumps(walls), flush=True)
    gpubridge.destroy()


def measure(lab, case, calls, size):
    rate, delay, loss, _ = CASES[case]
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "LAB_DIR": folder, "LAB_NET": "10.77.19"}

        def run(*args):
            done = subprocess.run([lab, *args], env=env, check=True, capture_output=True, text=True)
            return done.stdout

        ranks = []
        try:
            run("up", "nv0", "amd0")
            run("shape", "amd0", f"rate={rate}mbit", f"delay={delay}", *([f"loss={loss}"] * bool(loss)))
            address = run("addr", "nv0").strip()
            for rank, host in enumerate(("nv0", "amd0")):
                values = {
                    **env,
                    "RANK": str(rank),
                    "WORLD_SIZE": "2",
                    "MASTER_ADDR": address,
                    "MASTER_PORT": "29679",
                    "GPUBRIDGE_VENDOR": "amd" if rank else "nvidia",
                    "GPUBRIDGE_SIM_HOSTNAME": host,
                    "OMP_NUM_THREADS": "1",
                }
                command = [lab, "exec", host, "--", sys.executable, __file__, "--rank"]
                command += ["--calls", str(calls), "--bytes", str(size)]
                ranks.append(subprocess.Popen(command, env=values, stdout=subprocess.PIPE, text=True))
            out, _ = ranks[0].communicate(timeout=600)
            ranks[1].wait(timeout=60)
        finally:
            for process in ranks:
                process.kill()
            run("down")
    walls = json.loads(next(line for line in out.splitlines() if line.startswith("[")))
    return [size * 8 / wall / (rate * 1e6) for wall in walls]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--bytes", type=int, default=64 << 20)
    parser.add_argument("--lab", default=LAB)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        work(given.calls, given.bytes)
        return
    found = {}
    print("case               first   median  best    must reach")
    for case in given.case or CASES:
        first, *rest = measure(given.lab, case, given.calls, given.bytes)
        median, must = statistics.median(rest), CASES[case][3]
        found[case] = {"first": first, "calls": rest, "median": median, "must": must}
        verdict = "met" if median >= must else "NOT MET"
        print(f"{case:18s} {first:6.2f} {median:8.3f} {max(rest):6.3f} {must:8.2f}  {verdict}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
