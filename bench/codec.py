#!/usr/bin/env python3
"""Rates of the codec of bridge compression on one core, of memcpy's, by bytes of float32.

    bench/codec.py [--mib 8] [--runs 3]

Runs codec_bench, which measures every variant of this machine beside memcpy; the best
of the runs counts, of the variant that the library takes here. Writes
bench/results/codec.json and codec.svg.
"""

import argparse
import re
import subprocess

import report

BIN = report.ROOT / "build-release/bin/codec_bench"
WORK = ("encode", "feedback", "decode", "add")
LEAST = {"bf16": 0.5, "fp8": 0.25}
ROW = re.compile(r"(\w+) +(bf16|fp8) .*of memcpy: ([\d. ]+)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--mib", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    about, best = report.machine(), {}
    for _ in range(given.runs):
        done = subprocess.run(
            [BIN, str(given.mib)], check=True, stdout=subprocess.PIPE, text=True, timeout=300
        )
        for variant, codec, rates in ROW.findall(done.stdout):
            row = best.setdefault(variant, {}).setdefault(codec, [0.0] * len(WORK))
            best[variant][codec] = [
                max(a, float(b)) for a, b in zip(row, rates.split(), strict=True)
            ]
    bars = []
    for codec, rates in best[list(best)[-1]].items():  # the last is the fastest
        for name, rate in zip(WORK, rates, strict=True):
            verdict = "met" if rate >= LEAST[codec] else "NOT MET"
            print(f"{codec:5s} {name:9s} {rate:.2f} of memcpy, at least {LEAST[codec]}  {verdict}")
            bars.append((f"{codec} {name}", rate, LEAST[codec], "of memcpy"))
    title = f"The codec on one core, {given.mib} MiB of float32: {list(best)[-1]}"
    report.save("codec", about, {"of_memcpy": best}, report.bars(title, bars))


if __name__ == "__main__":
    main()
