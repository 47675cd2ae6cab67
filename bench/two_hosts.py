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


def set_mtu(run, net, mtu):
    """On the hosts' cards and on the ports of the bridge between them, which is the one
    with the lab's own address."""
    shown = json.loads(
        subprocess.run(["ip", "-json", "addr"], check=True, capture_output=True, text=True).stdout
    )
    bridge = next(
        link["ifname"]
        for link in shown
        if any(a.get("local") == f"{net}.1" for a in link["addr_info"])
    )
    for link in shown:
        if link.get("master") == bridge:
            subprocess.run(["ip", "link", "set", link["ifname"], "mtu", str(mtu)], check=True)
    for host in ("nv0", "amd0"):
        run("exec", host, "--", "ip", "link", "set", "eth0", "mtu", str(mtu))


def run_ranks(lab, net, shape, each, script, *args, env=None, mtu=None):
    """Runs `script --rank ARGS` as `each` ranks on each of two hosts, one island a
    host, joined by a cable of `shape`; returns the JSON lines that they print. `env`:
    more variables for the ranks; `mtu`: of the cable."""
    with tempfile.TemporaryDirectory() as folder:
        lab_env = {**os.environ, "LAB_DIR": folder, "LAB_NET": net}

        def run(*words):
            done = subprocess.run(
                [lab, *words], env=lab_env, check=True, capture_output=True, text=True
            )
            return done.stdout

        ranks, rows = [], []
        try:
            run("up", "nv0", "amd0")
            run("shape", "amd0", *shape)
            if mtu:
                set_mtu(run, net, mtu)
            address = run("addr", "nv0").strip()
            for rank in range(2 * each):
                host = "nv0" if rank < each else "amd0"
                values = {
                    **lab_env,
                    **(env or {}),
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
