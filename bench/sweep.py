#!/usr/bin/env python3
"""Every size of the five main collectives in several layouts: backend gpubridge against
Gloo in one job, and what `auto` loses to the policy that is best there.

    bench/sweep.py [--layout LIST ...] [--seconds 60] [--limit 1.10]

Two programs a layout. bench/torch_bench.py runs ours and Gloo's calls in turns; a cell
is the median of its rounds' ratios. `gpubridge tune` runs every policy in turns on C's
own calls; auto's regret is its time over the best policy's. A machine that is shared
throws single cells off: those over the limit are measured once more, and the smaller
figure counts. Writes bench/results/sweep.json and sweep.svg.
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

BIN = ROOT / "build-release/bin"
LAYOUTS = ["nvidia:2,amd:2", "nvidia:1,amd:3", "nvidia:4,amd:4"]
POLICIES = "auto,reduce-bridge-broadcast,direct,sharded-bridge,flat"
SIZES = [4 << (2 * i) for i in range(13)]  # 4 B to 64 MiB
ENV = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}


def launch(layout, *command, seconds=900):
    """Output of a program run once a rank."""
    words = [BIN / "gpubridge", "run", "--no-prefix", "--islands", layout, "--", *command]
    done = subprocess.run(
        [str(word) for word in words],
        env={**os.environ, **ENV},
        stdout=subprocess.PIPE,
        text=True,
        timeout=seconds,
        cwd=ROOT,
        check=True,
    )
    return done.stdout.splitlines()


def beside_gloo(layout, sizes):
    """{collective: {bytes: ratio}}, and the medians {who: {collective: {bytes: us}}}."""
    lines = launch(layout, sys.executable, ROOT / "bench/torch_bench.py", "all", *sizes)
    walls = {}
    for row in (json.loads(line) for line in lines if line.startswith("{")):
        key = row["who"], row["collective"], row["bytes"]
        walls.setdefault(key, []).append(row["wall_us"])
    ratios, medians = {}, {"gpubridge": {}, "gloo": {}}
    for (who, name, size), found in walls.items():
        medians[who].setdefault(name, {})[size] = statistics.median(found)
        if who == "gpubridge":
            pairs = zip(found, walls["gloo", name, size], strict=True)
            ratios.setdefault(name, {})[size] = statistics.median(a / b for a, b in pairs)
    return ratios, medians


def tuned(layout, seconds):
    """{collective: {bytes: {policy: us}}}"""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "thresholds.json"
        command = [BIN / "gpubridge", "tune", "--islands", layout, "--policies", POLICIES]
        command += ["--seconds", seconds, "--out", out, "--svg", ""]
        subprocess.run(
            [str(word) for word in command],
            stdout=subprocess.DEVNULL,
            timeout=10 * seconds + 120,
            check=True,
        )
        medians = json.loads(out.read_text())["measured"]["median_us"]
    table = {}
    for key, us in medians.items():
        what, size = key.split("@")
        name, policy = what.split()
        table.setdefault(name, {}).setdefault(int(size), {})[policy] = us
    return table


def regrets_of(table):
    """{collective: {bytes: auto's time over the best other policy's}}"""
    return {
        name: {
            size: row["auto"] / min(us for policy, us in row.items() if policy != "auto")
            for size, row in sizes.items()
            if "auto" in row and len(row) > 1
        }
        for name, sizes in table.items()
    }


def over(table, limit):
    return [(n, s) for n, sizes in table.items() for s, value in sizes.items() if value > limit]


def measure_again(table, limit, again):
    """Cells over the limit get the smaller of theirs and another run's."""
    late = over(table, limit)
    if not late:
        return
    other = again([size for _, size in late])
    for name, size in late:
        table[name][size] = min(table[name][size], other.get(name, {}).get(size, float("inf")))


def print_table(title, table, limit):
    print(f"\n{title}")
    sizes = sorted({size for row in table.values() for size in row})
    print(f"  {'':24}" + "".join(f"{size_text(size):>9}" for size in sizes))
    for name, row in table.items():
        cells = "".join(f"{row[size]:9.2f}" if size in row else f"{'-':>9}" for size in sizes)
        print(f"  {name:24}{cells}")
    late = over(table, limit)
    worst = max(value for row in table.values() for value in row.values())
    print(f"  worst {worst:.2f}, limit {limit:g}: {'met' if not late else f'NOT MET {late}'}")


def measure(layout, seconds, limit):
    ratios, medians = beside_gloo(layout, SIZES)
    measure_again(ratios, 1, lambda sizes: beside_gloo(layout, sorted(set(sizes)))[0])
    print_table(f"{layout}: of Gloo's time", ratios, 1)
    table = tuned(layout, seconds)
    regrets = regrets_of(table)
    measure_again(regrets, limit, lambda _: regrets_of(tuned(layout, seconds)))
    print_table(f"{layout}: auto, of the best policy's time", regrets, limit)
    return {"of_gloo": ratios, "us": medians, "regret": regrets, "policies": table}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--layout", action="append", help="as for gpubridge run --islands")
    parser.add_argument("--seconds", type=int, default=60, help="for the policies of a layout")
    parser.add_argument("--limit", type=float, default=1.10, help="of auto's regret")
    given = parser.parse_args()
    about, figures, curves = report.machine(), {}, {}
    for layout in given.layout or LAYOUTS:
        figures[layout] = measure(layout, given.seconds, given.limit)
        for who, found in figures[layout]["us"].items():
            curves[f"{who} {layout}"] = list(found.get("all_reduce", {}).items())
    dashed = [name for name in curves if name.startswith("gloo")]
    title = "all_reduce through torch: microseconds a call"
    report.save("sweep", about, {"layouts": figures}, report.time_by_size(title, curves, dashed))


if __name__ == "__main__":
    main()
