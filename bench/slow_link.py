#!/usr/bin/env python3
"""Two overlapping async all_reduces of 16 MiB over a slow bridge: what they take
together, of the time that the link alone needs for their bytes.

    bench/slow_link.py [--rate 200] [--lab PATH]

Two hosts with two ranks each, one island a host, joined by a cable of so many
Mbit/s (the emulator of the project's lab, which needs root). Also prints what the
two take one after the other, and the island's part of one call.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAB = ROOT.parent / "shared/lab/lab"
COUNT = 4 << 20  # float32 elements: 16 MiB
# Payload of a full Ethernet frame: 1448 of 1514 bytes.
PAYLOAD = 1448 / 1514


def work():
    """What each rank runs."""
    import time

    import gpubridge
    import torch

    topology = gpubridge.init()
    a, b = torch.ones(COUNT), torch.ones(COUNT)
    records = []

    class Keep(gpubridge.CollectiveObserver):
        def on_collective(self, record):
            records.append(record)

    gpubridge.all_reduce(a)
    gpubridge.add_observer(Keep())
    for _ in range(3):
        gpubridge.barrier()
        start = time.perf_counter()
        works = [gpubridge.all_reduce(t, async_op=True) for t in (a, b)]
        for handle in works:
            handle.wait()
        both = time.perf_counter() - start
        gpubridge.barrier()
        start = time.perf_counter()
        gpubridge.all_reduce(a)
        gpubridge.all_reduce(b)
        apart = time.perf_counter() - start
        if topology.rank == 0:
            last = [r for r in records if r.op == "all_reduce"][-1]
            island = last.phase("island-reduce")
            print(
                json.dumps(
                    {"both": both, "apart": apart, "island_ms": island.elapsed_ms()}
                ),
                flush=True,
            )
        a.fill_(1.0)
        b.fill_(1.0)
    gpubridge.destroy()


def measure(lab, rate):
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "LAB_DIR": folder, "LAB_NET": "10.77.17"}

        def run(*args):
            done = subprocess.run([lab, *args], env=env, check=True, capture_output=True, text=True)
            return done.stdout

        ranks = []
        try:
            run("up", "nv0", "amd0")
            run("shape", "amd0", f"rate={rate}mbit")
            address = run("addr", "nv0").strip()
            for rank in range(4):
                host = "nv0" if rank < 2 else "amd0"
                values = {
                    **env,
                    "RANK": str(rank),
                    "WORLD_SIZE": "4",
                    "MASTER_ADDR": address,
                    "MASTER_PORT": "29677",
                    "GPUBRIDGE_VENDOR": "nvidia" if rank < 2 else "amd",
                    "GPUBRIDGE_SIM_HOSTNAME": host,
                    "OMP_NUM_THREADS": "1",
                }
                command = [lab, "exec", host, "--", sys.executable, __file__, "--rank"]
                ranks.append(subprocess.Popen(command, env=values, stdout=subprocess.PIPE, text=True))
            for process in ranks:
                out, _ = process.communicate(timeout=300)
                rows += [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        finally:
            for process in ranks:
                process.kill()
            run("down")
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rate", type=float, default=200, help="Mbit/s")
    parser.add_argument("--lab", default=LAB)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        work()
        return
    rows = measure(given.lab, given.rate)
    # Each direction carries each tensor once.
    link = 2 * COUNT * 4 * 8 / (given.rate * 1e6 * PAYLOAD)
    both = statistics.median(row["both"] for row in rows)
    apart = statistics.median(row["apart"] for row in rows)
    print(f"link alone {link:.3f} s, both at once {both:.3f} s ({both / link:.3f}), ")
    print(f"one after the other {apart:.3f} s ({apart / link:.3f})")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
