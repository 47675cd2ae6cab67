#!/usr/bin/env python3
"""The demo's training across the bridge, exact and compressed: how accurate it ends.

    bench/compressed_demo.py [--seeds 3]

Runs examples/demo.py's job (2 + 2 ranks, handwritten digits, DistributedDataParallel)
without compression, with bf16 and with fp8, from several starts, and compares the test
accuracy (the mean of the last three epochs) with the exact one's: within 0.5 points in
the mean of the starts. One start differs by more than that from another of its kind
too: the test has 389 images. Writes bench/results/compressed_demo.json and .svg (loss and accuracy over the
steps of the first start).
"""

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

import report

sys.path.insert(0, str(report.ROOT / "examples"))
import demo

KINDS = ("off", "bf16", "fp8")
POINTS = 0.5


def train(kind, seed):
    """Losses a step, [(step, accuracy)] an epoch."""
    import torch

    os.environ["GPUBRIDGE_BRIDGE_COMPRESSION"] = kind
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.pt"
        demo.launch(path, seed)
        result = torch.load(path, weights_only=True)
    if not result["same"]:
        raise SystemExit(f"{kind}: the ranks ended with different parameters")
    return {"losses": result["losses"], "accuracies": result["accuracies"]}


def final(run):
    return 100 * statistics.mean(accuracy for _, accuracy in run["accuracies"][-3:])


def picture(runs):
    parts = report.start_svg(860, 560, "DDP over two islands: test accuracy and loss by step")
    steps = len(runs["off"]["losses"])
    x_ticks = {round(steps * i / 6): str(round(steps * i / 6)) for i in range(7)}
    curves = {kind: run["accuracies"] for kind, run in runs.items()}
    least = min(a for points in curves.values() for _, a in points)
    low = int(least * 10) / 10
    y_ticks = {low + (1 - low) * i / 5: f"{low + (1 - low) * i / 5:.0%}" for i in range(6)}
    plain = (False, False)
    report.plot(parts, (70, 30, 670, 250), curves, x_ticks, y_ticks, plain)
    curves = {kind: list(enumerate(run["losses"], 1)) for kind, run in runs.items()}
    y_ticks = {0.01: "0.01", 0.1: "0.1", 1.0: "1", 3.0: "3"}
    report.plot(parts, (70, 300, 670, 520), curves, x_ticks, y_ticks, (False, True))
    return "\n".join([*parts, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    about = report.machine()
    runs = {kind: [train(kind, seed) for seed in range(1, given.seeds + 1)] for kind in KINDS}
    exact = [final(run) for run in runs["off"]]
    for kind in KINDS:
        ends = [final(run) for run in runs[kind]]
        off = statistics.mean(ends) - statistics.mean(exact)
        most = max(abs(a - b) for a, b in zip(ends, exact, strict=True))
        verdict = "met" if abs(off) <= POINTS else "NOT MET"
        shown = ", ".join(f"{end:.2f} %" for end in ends)
        print(
            f"{kind:5s} accuracy {shown}: {off:+.2f} points in the mean, one start "
            f"{most:.2f}  {verdict}"
        )
    first = {kind: found[0] for kind, found in runs.items()}
    report.save("compressed_demo", about, {"runs": runs}, picture(first))


if __name__ == "__main__":
    main()
