#!/usr/bin/env python3
"""What compression gains where the bridge is slow: all_reduce of 64 MiB of float32
between two hosts joined by 200 Mbit/s, exact, as bf16 and as fp8.

    bench/compressed_link.py [--rate 200] [--delay 20ms] [--mib 64] [--rounds 3]

A round is one job of each kind, one after another; a job's figure is the median of its
calls after the first, a gain is taken inside a round, and the median over the rounds
counts. Needs the project's lab (root). Writes bench/results/compressed_link.json, .svg.
"""

import argparse
import json
import statistics
import time

import report
from two_hosts import LAB, run_ranks

# What the gain must be at least; the bytes alone would give 2 and 3.98.
KINDS = {"off": None, "bf16": 1.9, "fp8": 3.5}


def work(calls, size):
    """What each rank runs."""
    import gpubridge
    import torch

    topology = gpubridge.init()
    tensor = torch.empty(size // 4)
    for _ in range(calls + 1):
        torch.rand(tensor.shape, out=tensor)
        gpubridge.barrier()
        start = time.perf_counter()
        gpubridge.all_reduce(tensor)
        if topology.rank == 0:
            print(json.dumps({"seconds": time.perf_counter() - start}), flush=True)
    gpubridge.destroy()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rate", type=float, default=200, help="Mbit/s")
    parser.add_argument("--delay", default="20ms", help="one way")
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lab", default=LAB)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    size = given.mib << 20
    if given.rank:
        work(given.calls, size)
        return
    about, seconds = report.machine(), {kind: [] for kind in KINDS}
    shape = [f"rate={given.rate:g}mbit", f"delay={given.delay}"]
    args = ("--calls", str(given.calls), "--mib", str(given.mib))
    for _ in range(given.rounds):
        for kind, found in seconds.items():
            env = {"GPUBRIDGE_BRIDGE_COMPRESSION": kind}
            rows = run_ranks(given.lab, "10.77.18", shape, 1, __file__, *args, env=env)
            found.append(statistics.median(row["seconds"] for row in rows[1:]))
    bars = []
    for kind, least in KINDS.items():
        took = statistics.median(seconds[kind])
        gain = statistics.median(a / b for a, b in zip(seconds["off"], seconds[kind], strict=True))
        verdict = "" if least is None else "met" if gain >= least else "NOT MET"
        print(f"{kind:5s} {took:.3f} s, {gain:.2f} times as fast, at least {least}  {verdict}")
        bars.append((kind, gain, least, "times as fast"))
    title = f"all_reduce of {given.mib} MiB over {given.rate:g} Mbit/s, {given.delay} one way"
    report.save("compressed_link", about, {"seconds": seconds}, report.bars(title, bars))


if __name__ == "__main__":
    main()
