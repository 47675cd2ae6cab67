#!/usr/bin/env python3
"""all_reduce under sharded-bridge over one link and over several, where every link
has a cable of its own: how many times as fast.

    bench/sharded_links.py [--links 4] [--rate 50] [--mib 32] [--lab PATH]

Two sites with as many hosts each as there are links, one rank a host, one island a
site (the hosts of the project's lab, which needs root). Between the sites every host
has a cable of so many Mbit/s; inside a site, a fast network. The runs with one link
and with all take turns. Also prints what the line itself needs for the bytes.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAB = ROOT.parent / "shared/lab/lab"
BIN = ROOT / "build-release/bin/job_bench"
NET = "10.77.31"
# Payload of a full Ethernet frame: 1448 of 1514 bytes.
PAYLOAD = 1448 / 1514


class Lab:
    """The hosts, and a fast network inside each site besides."""

    def __init__(self, lab, folder, links, rate):
        self.lab, self.links = lab, links
        self.env = {**os.environ, "LAB_DIR": folder, "LAB_NET": NET}
        self.sites = [[f"{site}{i}" for i in range(links)] for site in ("nv", "amd")]
        self.hosts = self.sites[0] + self.sites[1]
        self.switches = []
        self.rate = rate

    def run(self, *args):
        done = subprocess.run([self.lab, *args], env=self.env, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"lab {' '.join(args)}: {done.stderr.strip() or done.stdout}")
        return done.stdout.strip()

    def ip(self, *args):
        subprocess.run(["ip", *args], check=True)

    def up(self):
        self.run("up", *self.hosts)
        for host in self.sites[1]:
            self.run("shape", host, f"rate={self.rate}mbit")
        self.address = {host: self.run("addr", host) for host in self.hosts}
        for number, site in enumerate(self.sites):
            self.join_site(f"shl{number}", site)

    def join_site(self, switch, site):
        self.ip("link", "add", switch, "type", "bridge")
        self.switches.append(switch)
        self.ip("link", "set", switch, "up")
        for i, host in enumerate(site):
            space = self.run("exec", host, "--", "ip", "netns", "identify")
            port = f"{switch}v{i}"
            self.ip("link", "add", port, "type", "veth", "peer", "name", "eth1", "netns", space)
            self.ip("link", "set", port, "master", switch, "up")
            self.ip("-n", space, "link", "set", "eth1", "up")
            mine = self.address[host]
            for other in site:
                if other != host:
                    to = f"{self.address[other]}/32"
                    self.ip("-n", space, "route", "add", to, "dev", "eth1", "src", mine)

    def down(self):
        for switch in self.switches:
            subprocess.run(["ip", "link", "del", switch], check=False)
        self.run("down")


def one_run(lab, links, size, port):
    """Seconds of a call."""
    ranks = []
    try:
        for rank, host in enumerate(lab.hosts):
            values = {
                **lab.env,
                "RANK": str(rank),
                "WORLD_SIZE": str(len(lab.hosts)),
                "MASTER_ADDR": lab.address[lab.hosts[0]],
                "MASTER_PORT": str(port),
                "GPUBRIDGE_VENDOR": "nvidia" if host in lab.sites[0] else "amd",
                "GPUBRIDGE_SIM_HOSTNAME": host,
                "GPUBRIDGE_POLICY": "sharded-bridge",
                "GPUBRIDGE_SHARD_LINKS": str(links),
            }
            command = [lab.lab, "exec", host, "--", BIN, str(size)]
            ranks.append(
                subprocess.Popen(command, env=values, stdout=subprocess.PIPE, text=True)
            )
        lines = []
        for process in ranks:
            out, _ = process.communicate(timeout=300)
            lines += [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        if not lines:
            raise SystemExit("job_bench printed nothing")
        return lines[0]["wall_us"] / 1e6
    finally:
        for process in ranks:
            process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--links", type=int, default=4)
    parser.add_argument("--rate", type=float, default=50, help="Mbit/s of each cable")
    parser.add_argument("--mib", type=int, default=32, help="size of the call")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lab", default=LAB)
    given = parser.parse_args()
    size = given.mib << 20
    line = size * 8 / (given.rate * 1e6 * PAYLOAD)
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(given.lab, folder, given.links, given.rate)
        rows = []
        try:
            lab.up()
            for number in range(given.rounds):
                one = one_run(lab, 1, size, 29700 + 2 * number)
                many = one_run(lab, given.links, size, 29701 + 2 * number)
                rows.append({"one": one, "many": many, "times": one / many})
                print(json.dumps(rows[-1]), flush=True)
        finally:
            lab.down()
    one, many, times = (statistics.median(r[k] for r in rows) for k in ("one", "many", "times"))
    print(f"1 link {one:.3f} s, {one / line:.3f} of its line ({line:.3f} s)")
    print(f"{given.links} links {many:.3f} s, {many * given.links / line:.3f} of theirs")
    print(f"{times:.2f} times as fast")


if __name__ == "__main__":
    main()
