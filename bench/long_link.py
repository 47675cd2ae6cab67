#!/usr/bin/env python3
"""All_reduce between two hosts over long, thin and lossy links: payload each way per
call, of what the line carries, beside one plain socket that carries as much.

    bench/long_link.py [--case NAME ...] [--calls 5] [--bytes 67108864]
                       [--idle SECONDS]

Two hosts with one rank each, one island a host, joined by a cable of the project's
lab. The first call pays for slow start and is not counted; the figures are the
median and the best of the others. A full frame of 1514 bytes carries 1448 of
payload, so 0.956 is the most that a line can give. The emulator carries frame by frame
and is bound by the processor at 1 Gbit/s on a small machine: there frames of 9014 bytes
are used (8948 of payload, 0.993), and the socket shows what is left. Writes
bench/results/long_link.json and .svg. --idle: nothing is sent for so long before each
call (what a model that computes does to the line's memory of its rate).
"""

import argparse
import json
import statistics
import time

import report
from two_hosts import LAB, exchange, plain_socket, run_ranks

JUMBO = 9000
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


def work(calls, size, idle):
    """What each rank runs."""
    import gpubridge
    import torch

    topology = gpubridge.init()
    peer = plain_socket(topology, gpubridge.barrier)
    tensor = torch.ones(size // 4)
    for _ in range(calls + 1):
        gpubridge.barrier()
        raw = exchange(peer, size)
        time.sleep(idle)
        gpubridge.barrier()
        start = time.perf_counter()
        gpubridge.all_reduce(tensor)
        ours = time.perf_counter() - start
        tensor.fill_(1.0)
        if topology.rank == 0:
            print(json.dumps({"ours": ours, "raw": raw}), flush=True)
    gpubridge.destroy()


def measure(lab, case, given):
    """Payload of each call and of the socket, of the line."""
    rate, delay, loss, _ = CASES[case]
    shape = [f"rate={rate}mbit", f"delay={delay}"] + ([f"loss={loss}"] if loss else [])
    size = given.bytes
    args = ("--calls", str(given.calls), "--bytes", str(size), "--idle", str(given.idle))
    mtu = JUMBO if rate >= 1000 else None
    rows = run_ranks(lab, "10.77.19", shape, 1, __file__, *args, mtu=mtu)
    return {who: [size * 8 / row[who] / (rate * 1e6) for row in rows] for who in ("ours", "raw")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--bytes", type=int, default=64 << 20)
    parser.add_argument("--idle", type=float, default=0)
    parser.add_argument("--lab", default=LAB)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        work(given.calls, given.bytes, given.idle)
        return
    about, found = report.machine(), {}
    print("case               first  median    best  socket  must reach")
    for case in given.case or CASES:
        rates = measure(given.lab, case, given)
        first, *rest = rates["ours"]
        median, raw = statistics.median(rest), statistics.median(rates["raw"][1:])
        must = CASES[case][3]
        found[case] = {**rates, "median": median, "socket": raw, "must": must}
        verdict = "met" if median >= must else "NOT MET"
        print(
            f"{case:18s} {first:5.2f} {median:7.3f} {max(rest):7.3f} {raw:7.3f} "
            f"{must:11.2f}  {verdict}",
            flush=True,
        )
    bars = [
        bar
        for case, row in found.items()
        for bar in (
            (case, row["median"], row["must"], "of the line"),
            ("a plain socket there", row["socket"], None, "of the line"),
        )
    ]
    title = "all_reduce of 64 MiB between two hosts: payload each way"
    report.save("long_link", about, {"cases": found}, report.bars(title, bars))


if __name__ == "__main__":
    main()
