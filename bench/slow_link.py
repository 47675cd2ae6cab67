#!/usr/bin/env python3
"""Two overlapping async all_reduces of 16 MiB over a slow bridge: what they take
together, of the time that the link alone needs for their bytes: one plain socket
that carries as many each way at once, measured in between.

    bench/slow_link.py [--rate 200] [--lab PATH]

Two hosts with two ranks each, one island a host, joined by a cable of so many
Mbit/s (the emulator of the project's lab, which needs root). Also prints what the
two take one after the other, and the island's part of one call. Writes
bench/results/slow_link.json and .svg.
"""

import argparse
import json
import statistics
import time

import report
from two_hosts import LAB, PAYLOAD, exchange, plain_socket, run_ranks

COUNT = 4 << 20  # float32 elements: 16 MiB


def work():
    """What each rank runs."""
    import gpubridge
    import torch

    topology = gpubridge.init()
    peer, raw = plain_socket(topology, gpubridge.barrier), 0.0
    a, b = torch.ones(COUNT), torch.ones(COUNT)
    records = []

    class Keep(gpubridge.CollectiveObserver):
        def on_collective(self, record):
            records.append(record)

    gpubridge.all_reduce(a)
    gpubridge.add_observer(Keep())
    for _ in range(3):
        gpubridge.barrier()
        if peer:
            raw = exchange(peer, 2 * COUNT * 4)
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
                    {"raw": raw, "both": both, "apart": apart, "island_ms": island.elapsed_ms()}
                ),
                flush=True,
            )
        a.fill_(1.0)
        b.fill_(1.0)
    gpubridge.destroy()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rate", type=float, default=200, help="Mbit/s")
    parser.add_argument("--lab", default=LAB)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        work()
        return
    about = report.machine()
    rows = run_ranks(given.lab, "10.77.17", [f"rate={given.rate:g}mbit"], 2, __file__)
    # Each direction carries each tensor once.
    link = 2 * COUNT * 4 * 8 / (given.rate * 1e6 * PAYLOAD)
    raw, both, apart = (statistics.median(row[k] for row in rows) for k in ("raw", "both", "apart"))
    print(f"the frames at the line's rate {link:.3f} s, one plain socket {raw:.3f} s")
    for name, took in (("both at once", both), ("one after the other", apart)):
        print(f"{name} {took:.3f} s: {took / raw:.3f} of the socket, {took / link:.3f} of the line")
    bars = [
        ("both at once", both / raw, 1.05, "of the socket"),
        ("one after the other", apart / raw, None, "of the socket"),
        ("both at once", both / link, None, "of the line"),
    ]
    title = f"Two all_reduces of 16 MiB over {given.rate:g} Mbit/s"
    report.save("slow_link", about, {"link": link, "rows": rows}, report.bars(title, bars))


if __name__ == "__main__":
    main()
