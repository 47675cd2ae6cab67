#!/usr/bin/env python3
"""All_reduce between two hosts over long, thin and lossy links: payload each way per
call, of what the line carries, beside one plain socket that carries as much.

    bench/long_link.py [--case NAME ...] [--calls 5] [--bytes 67108864]
                       [--idle SECONDS] [--slow-one]

Two hosts with one rank each, one island a host, joined by a cable of the project's
lab. The first call pays for slow start and is not counted; the figures are the
median and the best of the others. A full frame of 1514 bytes carries 1448 of
payload, so 0.956 is the most that a line can give. The emulator carries frame by frame
and is bound by the processor at 1 Gbit/s on a small machine: there frames of 9014 bytes
are used (8948 of payload, 0.993), and the socket shows what is left. Writes
bench/results/long_link.json and .svg. --idle: nothing is sent for so long before each
call (what a model that computes does to the line's memory of its rate). --slow-one: 16
connections, and the second half of the calls with one of them held to a tenth of its
share; the figure is their time over that of the first half.
"""

import argparse
import contextlib
import json
import os
import socket
import statistics
import struct
import threading
import time

import report
from two_hosts import LAB, RAW_PORT, exchange, plain_socket, run_ranks

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


SO_MAX_PACING_RATE, BYTES_ACKED = 47, 120  # the kernel's; an offset in tcp_info
STREAMS = 16


def connections():
    """The bridge's, as sockets of our own, by their two ports: (bytes acknowledged,
    socket)."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            one = socket.socket(fileno=os.dup(int(name)))
            if one.family != socket.AF_INET or one.type != socket.SOCK_STREAM:
                continue
            if RAW_PORT in (one.getsockname()[1], one.getpeername()[1]):
                continue
            info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            continue
        ports = frozenset((one.getsockname()[1], one.getpeername()[1]))
        found[ports] = struct.unpack_from("Q", info, BYTES_ACKED)[0], one
    return found


def agree_on_one(topology, peer):
    """The connection that has carried most, on both ranks the same one."""
    found = connections()
    if topology.rank == 0:
        ports = max(found, key=lambda key: found[key][0])
        peer.sendall(struct.pack("HH", *ports))
    else:
        ports = frozenset(struct.unpack("HH", peer.recv(4, socket.MSG_WAITALL)))
    return found[ports][1]


@contextlib.contextmanager
def held(one, rate):
    """The connection sends at most so many bytes per second; again and again, since the
    library paces it too."""
    done = threading.Event()

    def hold():
        while not done.wait(0.002):
            one.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("Q", rate))

    thread = threading.Thread(target=hold)
    thread.start()
    yield
    done.set()
    thread.join()
    one.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("Q", 2**40))


def work(calls, size, idle, slow_rate):
    """What each rank runs."""
    import gpubridge
    import torch

    topology = gpubridge.init()
    peer = plain_socket(topology, gpubridge.barrier)
    tensor = torch.ones(size // 4)
    one = None
    for call in range(calls + 1):
        gpubridge.barrier()
        if slow_rate and call == calls // 2 + 1:
            one = agree_on_one(topology, peer)
        raw = exchange(peer, size)
        time.sleep(idle)
        gpubridge.barrier()
        start = time.perf_counter()
        with held(one, slow_rate) if one else contextlib.nullcontext():
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
    args = ["--calls", str(given.calls), "--bytes", str(size), "--idle", str(given.idle)]
    env = {}
    if given.slow_one:
        args += ["--slow-rate", str(int(rate * 1e6 / 8 / STREAMS / 10))]
        env["GPUBRIDGE_TCP_STREAMS"] = str(STREAMS)
    mtu = JUMBO if rate >= 1000 else None
    rows = run_ranks(lab, "10.77.19", shape, 1, __file__, *args, env=env, mtu=mtu)
    return {who: [size * 8 / row[who] / (rate * 1e6) for row in rows] for who in ("ours", "raw")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--bytes", type=int, default=64 << 20)
    parser.add_argument("--idle", type=float, default=0)
    parser.add_argument("--slow-one", action="store_true")
    parser.add_argument("--slow-rate", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--lab", default=LAB)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        work(given.calls, given.bytes, given.idle, given.slow_rate)
        return
    about, found = report.machine(), {}
    print("case               first  median    best  socket  must reach")
    for case in given.case or CASES:
        rates = measure(given.lab, case, given)
        first, *rest = rates["ours"]
        if given.slow_one:
            half = len(rest) // 2
            free, slowed = statistics.median(rest[:half]), statistics.median(rest[half:])
            print(f"{case:18s} one slow: {free / slowed:.2f} of the time without, must be 1.30")
            found[case] = {**rates, "slowed": slowed, "free": free}
            continue
        median, raw = statistics.median(rest), statistics.median(rates["raw"][1:])
        must = CASES[case][3]
        found[case] = {**rates, "median": median, "socket": raw, "must": must}
        verdict = "met" if median >= must else "NOT MET"
        print(
            f"{case:18s} {first:5.2f} {median:7.3f} {max(rest):7.3f} {raw:7.3f} "
            f"{must:11.2f}  {verdict}",
            flush=True,
        )
    if given.slow_one:
        title = "all_reduce of 64 MiB, 16 connections, one held to a tenth: payload each way"
        shown = (("one is slow", "slowed"), ("none is", "free"))
        bars = [
            (f"{c}, {t}", row[k], None, "of the line") for c, row in found.items() for t, k in shown
        ]
        report.save("long_link_slow_one", about, {"cases": found}, report.bars(title, bars))
        return
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
