#!/usr/bin/env python3
"""What `gpubridge simulate` predicts for two hosts, and what they measure.

    bench/simulate_lab.py [--rate 200] [--delay 20] [--policy NAME]

Two hosts with two ranks each, one island a host, joined by a cable of so many
Mbit/s and so many ms one way (the emulator of the project's lab, which needs
root). Every rank begins a call at one moment of one clock; what counts is the
median, over the calls, of the time until the last rank is done. The first calls,
in which TCP finds out what the cable carries, are outside the model and are not
counted. Sizes are measured in the order given: after large calls BBR paces small
ones by what they ask for, which is outside the model too (docs/simulate.md).
Exits 1 when a cell is off by more than --within. Writes bench/results/simulate_lab.json
and .svg.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import report
from report import ROOT, size_text
from two_hosts import LAB, run_ranks

BIN = ROOT / "build/bin"
COLLECTIVES = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")


def work(calls, sizes):
    """What each rank becomes."""
    pairs = [str(word) for size in sizes for name in COLLECTIVES for word in (name, size)]
    bench = BIN / "aligned_bench"
    os.execv(bench, [str(bench), "--calls", str(calls), *pairs])


def predict(links, policy, sizes):
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "links.json", Path(folder) / "out.json"
        file.write_text(json.dumps(links))
        words = ["--islands", "nvidia:2,amd:2", "--links", file, "--policy", policy]
        words += ["--sizes", ",".join(map(str, sorted(sizes))), "--json", out]
        done = subprocess.run(
            [BIN / "gpubridge", "simulate", *words], capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(done.stderr)
        cells = json.loads(out.read_text())["cells"]
    return {(cell["collective"], cell["bytes"]): cell for cell in cells}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rate", type=float, default=200, help="Mbit/s")
    parser.add_argument("--delay", type=float, default=20, help="ms one way")
    parser.add_argument("--policy", default="reduce-bridge-broadcast")
    parser.add_argument("--calls", type=int, default=9)
    parser.add_argument("--sizes", default="1048576,4194304,16777216")
    parser.add_argument("--within", type=float, default=0.2)
    parser.add_argument("--links", type=Path, default=ROOT / "docs/links/lab.json")
    parser.add_argument("--lab", default=LAB)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    about = report.machine()
    sizes = [int(size) for size in given.sizes.split(",")]
    if given.rank:
        work(given.calls, sizes)
    links = json.loads(given.links.read_text())
    links["hosts"] |= {"nic_gbit_s": given.rate / 1000, "nic_latency_us": given.delay * 1000}
    cells = predict(links, given.policy, sizes)
    shape = [f"rate={given.rate:g}mbit", f"delay={given.delay:g}ms"]
    os.environ["GPUBRIDGE_POLICY"] = given.policy
    args = ("--calls", str(given.calls), "--sizes", given.sizes)
    rows = run_ranks(given.lab, "10.77.23", shape, 2, __file__, *args)
    worst, table = 0.0, []
    print(f"{given.policy} at {given.rate:g} Mbit/s, {given.delay:g} ms one way; milliseconds")
    print("collective          bytes  predicted  measured (fastest, slowest)  predicted/measured")
    for row in rows:
        cell = cells[row["collective"], row["bytes"]]
        predicted, measured = cell["us"] / 1e3, statistics.median(row["us"]) / 1e3
        ratio = predicted / measured
        worst = max(worst, abs(ratio - 1))
        table.append({**row, "predicted_us": cell["us"], "ratio": ratio})
        print(
            f"{row['collective']:15s} {row['bytes']:9d} {predicted:10.1f} {measured:9.1f} "
            f"({min(row['us']) / 1e3:.1f}, {max(row['us']) / 1e3:.1f}) {ratio:12.3f}",
            flush=True,
        )
    print(f"the worst is off by {worst:.1%}")
    bars = [
        (f"{row['collective']} {size_text(row['bytes'])}", row["ratio"], 1, "of the measured")
        for row in table
    ]
    title = f"{given.policy}: predicted times, {given.rate:g} Mbit/s, {given.delay:g} ms one way"
    report.save("simulate_lab", about, {"cells": table}, report.bars(title, bars))
    sys.exit(worst > given.within)


if __name__ == "__main__":
    main()
