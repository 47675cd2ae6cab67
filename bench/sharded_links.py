#!/usr/bin/env python3
"""all_reduce under sharded-bridge over one link and over several, where every link
has a cable of its own: how many times as fast.

    bench/sharded_links.py [--hosts] [--by-hand] [--links 4] [--rate 50] [--mib 64]
                           [--lab PATH]

Two sites, one island each (on hosts of the project's lab, which needs root), joined
by as many cables as there are links, so many Mbit/s each. A site is one host with a
network card for each of its ranks; with --hosts, a host for each rank, and a fast
network among them, whose TCP wants more of the processor than the cables do. Links
find their cards by themselves; with --by-hand each rank's is set. The
runs with one link and with all take turns. Also prints what the line itself needs
for the bytes. Writes bench/results/sharded_links.json and .svg.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile

import report
from two_hosts import LAB, PAYLOAD

BIN = report.ROOT / "build-release/bin/job_bench"
NET = "10.77.31"


class Lab:
    """The hosts and their cables. `ends`: the host and card of each rank."""

    def __init__(self, lab, folder, links, rate, by_hosts, by_hand):
        self.lab, self.links, self.rate, self.by_hosts = lab, links, rate, by_hosts
        self.env = {**os.environ, "LAB_DIR": folder, "LAB_NET": NET}
        self.sites = [
            [f"{site}{i}" for i in range(links if by_hosts else 1)] for site in ("nv", "amd")
        ]
        self.hosts = self.sites[0] + self.sites[1]
        self.ends = [(host, "eth0") for host in self.hosts]
        if not by_hosts:
            self.ends = [(host, f"card{i}") for host in self.hosts for i in range(links)]
        self.switches = []
        self.by_hand = by_hand

    def master(self):
        """Where the ranks meet: what leads there is the first link's card."""
        own_cards = not self.by_hosts and not self.by_hand
        return f"{NET}.129" if own_cards else self.address[self.hosts[0]]

    def run(self, *args):
        done = subprocess.run([self.lab, *args], env=self.env, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"lab {' '.join(args)}: {done.stderr.strip() or done.stdout}")
        return done.stdout.strip()

    def ip(self, *args):
        subprocess.run(["ip", *args], check=True)

    def up(self):
        self.run("up", *self.hosts)
        self.address = {host: self.run("addr", host) for host in self.hosts}
        if self.by_hosts:
            for number, site in enumerate(self.sites):
                self.join_site(f"shl31s{number}", site)
        else:
            self.add_cards()
        # In the kernel: `lab shape` needs a busy process for each cable.
        shape = f"root tbf rate {self.rate:g}mbit burst 32kb latency 200ms".split()
        for host, card in self.ends:
            self.run("exec", host, "--", "tc", "qdisc", "add", "dev", card, *shape)

    def space(self, host):
        return self.run("exec", host, "--", "ip", "netns", "identify")

    def add_cards(self):
        """Cables with a network each, within the lab's."""
        a, b = (self.space(host) for host in self.hosts)
        for i in range(self.links):
            card = f"card{i}"
            ends = ["name", card, "netns", a, "type", "veth", "peer", "name", card, "netns", b]
            self.ip("link", "add", *ends)
            for k, space in enumerate((a, b)):
                self.ip("-n", space, "addr", "add", f"{NET}.{129 + 4 * i + k}/30", "dev", card)
                self.ip("-n", space, "link", "set", card, "up")

    def join_site(self, switch, site):
        self.ip("link", "add", switch, "type", "bridge")
        self.switches.append(switch)
        self.ip("link", "set", switch, "up")
        for i, host in enumerate(site):
            space = self.space(host)
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
        for rank, (host, card) in enumerate(lab.ends):
            values = {
                **lab.env,
                "RANK": str(rank),
                "WORLD_SIZE": str(len(lab.ends)),
                "MASTER_ADDR": lab.master(),
                "MASTER_PORT": str(port),
                "GPUBRIDGE_VENDOR": "nvidia" if host in lab.sites[0] else "amd",
                "GPUBRIDGE_SIM_HOSTNAME": host,
                "GPUBRIDGE_MULTITCP_IFNAME": card if lab.by_hand else "",
                "GPUBRIDGE_POLICY": "sharded-bridge",
                "GPUBRIDGE_SHARD_LINKS": str(links),
            }
            command = [lab.lab, "exec", host, "--", BIN, str(size)]
            ranks.append(subprocess.Popen(command, env=values, stdout=subprocess.PIPE, text=True))
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
    parser.add_argument("--hosts", action="store_true", help="a host for each rank")
    parser.add_argument("--by-hand", action="store_true", help="set each rank's card")
    parser.add_argument("--links", type=int, default=4)
    parser.add_argument("--rate", type=float, default=50, help="Mbit/s of each cable")
    parser.add_argument("--mib", type=int, default=64, help="size of the call")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lab", default=LAB)
    given = parser.parse_args()
    about, size = report.machine(), given.mib << 20
    line = size * 8 / (given.rate * 1e6 * PAYLOAD)
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(given.lab, folder, given.links, given.rate, given.hosts, given.by_hand)
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
    bars = [
        (f"{given.links} links", times, 3.6 if given.links == 4 else None, "times as fast"),
        ("1 link", line / one, None, "of its line"),
        (f"{given.links} links", line / (many * given.links), None, "of their lines"),
    ]
    title = f"all_reduce of {given.mib} MiB, cables of {given.rate:g} Mbit/s"
    report.save("sharded_links", about, {"rounds": rows}, report.bars(title, bars))


if __name__ == "__main__":
    main()
