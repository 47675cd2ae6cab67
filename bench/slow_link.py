#!/usr/bin/env python3
"""Two overlapping async all_reduces of 16 MiB over a slow bridge: what they take
together, of the time that the link alone needs for their bytes: one plain socket
that carries as many each way at once, measured in between.

    bench/slow_link.py [--rate 200] [--lab PATH]

Two hosts with two ranks each, one island a host, joined by a cable of so many
Mbit/s (the emulator of the project's lab, which needs root). Also prints what the
two take one after the other, and the island's part of one call.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAB = ROOT.parent / "shared/lab/lab"
RAW_PORT = 29678
COUNT = 4 << 20  # float32 elements: 16 MiB
# Payload of a full Ethernet frame: 1448 of 1514 bytes.
PAYLOAD = 1448 / 1514


def raw_exchange(peer):
    """Seconds for the bytes of both calls each way at once over one plain socket."""
    peer.sendall(b"x")
    peer.recv(1)
    start = time.perf_counter()
    sender = threading.Thread(target=peer.sendall, args=(bytes(2 * COUNT * 4),))
    sender.start()
    left = 2 * COUNT * 4
    while left:
        left -= len(peer.recv(min(left, 1 << 20)))
    sender.join()
    return time.perf_counter() - start


def work():
    """What each rank runs."""
    import gpubridge
    import torch

    topology = gpubridge.init()
    here = (os.environ["MASTER_ADDR"], RAW_PORT)
    raw, peer, server = 0.0, None, None
    if topology.rank == 0:
        server = socket.create_server(here)
    gpubridge.barrier()
    if topology.is_leader:
        peer = server.accept()[0] if server else socket.create_connection(here)
        peer.settimeout(60)
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
            raw = raw_exchange(peer)
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
    raw, both, apart = (statistics.median(row[k] for row in rows) for k in ("raw", "both", "apart"))
    print(f"the frames at the line's rate {link:.3f} s, one plain socket {raw:.3f} s")
    for name, took in (("both at once", both), ("one after the other", apart)):
        print(f"{name} {took:.3f} s: {took / raw:.3f} of the socket, {took / link:.3f} of the line")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
