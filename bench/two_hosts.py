"""What benchmarks over a cable share: two hosts of the project's lab (which needs
root), ranks on them, and a plain socket between the leaders to compare with."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

LAB = Path(__file__).resolve().parents[2] / "shared/lab/lab"
# Payload of a full Ethernet frame: 1448 of 1514 bytes.
PAYLOAD = 1448 / 1514
RAW_PORT = 29678


def plain_socket(topology, barrier):
    """On leaders: a socket to the other one. Every rank calls it."""
    here = (os.environ["MASTER_ADDR"], RAW_PORT)
    server = socket.create_server(here) if topology.rank == 0 else None
    barrier()
    if not topology.is_leader:
        return None
    peer = server.accept()[0] if server else socket.create_connection(here)
    peer.settimeout(120)
    return peer


def exchange(peer, size):
    """Seconds for `size` bytes each way at once."""
    peer.sendall(b"x")
    peer.recv(1)
    start = time.perf_counter()
    sender = threading.Thread(target=peer.sendall, args=(bytes(size),))
    sender.start()
    left = size
    while left:
        left -= len(peer.recv(min(left, 1 << 20)))
    sender.join()
    return time.perf_counter() - start


def run_ranks(lab, net, shape, each, script, *args):
    """Runs `script --rank ARGS` as `each` ranks on each of two hosts, one island a
    host, joined by a cable of `shape`; returns the JSON lines that they print."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "LAB_DIR": folder, "LAB_NET": net}

        def run(*words):
            done = subprocess.run(
                [lab, *words], env=env, check=True, capture_output=True, text=True
            )
            return done.stdout

        ranks, rows = [], []
        try:
            run("up", "nv0", "amd0")
            run("shape", "amd0", *shape)
            address = run("addr", "nv0").strip()
            for rank in range(2 * each):
                host = "nv0" if rank < each else "amd0"
                values = {
                    **env,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(2 * each),
                    "MASTER_ADDR": address,
                    "MASTER_PORT": "29677",
                    "GPUBRIDGE_VENDOR": "nvidia" if rank < each else "amd",
                    "GPUBRIDGE_SIM_HOSTNAME": host,
                    "OMP_NUM_THREADS": "1",
                }
                command = [lab, "exec", host, "--", sys.executable, script, "--rank", *args]
                ranks.append(
                    subprocess.Popen(command, env=values, stdout=subprocess.PIPE, text=True)
                )
            for process in ranks:
                out, _ = process.communicate(timeout=600)
                rows += [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        finally:
            for process in ranks:
                process.kill()
            run("down")
    if not rows:
        raise SystemExit("the ranks printed nothing")
    return rows
