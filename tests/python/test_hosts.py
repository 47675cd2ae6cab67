"""Jobs over several hosts, made of network namespaces on this machine: addresses,
interfaces, firewalls, late names, dead links (S001, S003 to S007, S010 to S012,
S014, S019). Each host has a name, its own hosts file and a cable to a switch.
Every rank runs the C command, `gpubridge check`, so a job costs no torch import.
"""

import json
import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from conftest import TOOL


def sh(*args, check=True):
    return subprocess.run(list(map(str, args)), check=check, capture_output=True, text=True)


def usable():
    name = f"gbprobe{os.getpid()}"
    try:
        if sh("ip", "netns", "add", name, check=False).returncode:
            return False
        sh("ip", "netns", "del", name)
    except FileNotFoundError:
        return False
    return True


pytestmark = pytest.mark.skipif(
    not usable(), reason="network namespaces need root and the ip command"
)


class Lab:
    """Hosts on one switch, 10.98.7.0/24 and fd98::/64. Names are unique, so that
    two labs can be up; everything goes with `close`."""

    def __init__(self):
        self.tag = uuid.uuid4().hex[:6]
        self.switch = f"gb{self.tag}"
        self.hosts = {}
        self.processes = []
        sh("ip", "netns", "add", self.switch)
        self.inside(self.switch, "ip", "link", "add", "br0", "type", "bridge")
        self.inside(self.switch, "ip", "link", "set", "br0", "up")

    def inside(self, space, *args, check=True):
        return sh("ip", "netns", "exec", space, *args, check=check)

    def space(self, host):
        return f"gb{self.tag}-{host}"

    def add(self, host):
        number = len(self.hosts) + 2
        space = self.space(host)
        self.hosts[host] = f"10.98.7.{number}"
        port = f"p{number}"
        sh("ip", "netns", "add", space)
        self.hosts_file(host, f"127.0.0.1 localhost\n{self.hosts[host]} {host}\n")
        sh("ip", "-n", space, "link", "add", "eth0", "type", "veth", "peer", "name",
           port, "netns", self.switch)  # fmt: skip
        sh("ip", "-n", space, "addr", "add", f"{self.hosts[host]}/24", "dev", "eth0")
        sh("ip", "-n", space, "addr", "add", f"fd98::{number}/64", "dev", "eth0", "nodad")
        for device in ("lo", "eth0"):
            sh("ip", "-n", space, "link", "set", device, "up")
        sh("ip", "-n", self.switch, "link", "set", port, "master", "br0", "up")
        return self.hosts[host]

    def hosts_file(self, host, text):
        """`ip netns exec` mounts it over /etc/hosts."""
        folder = Path("/etc/netns") / self.space(host)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hosts").write_text(text)

    def start(self, host, rank, world, *args, env=None, vendor=None):
        """A rank of `gpubridge check` on a host."""
        values = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "MASTER_PORT": "29611",
            "GPUBRIDGE_VENDOR": vendor or ("nvidia" if rank * 2 < world else "amd"),
            "GPUBRIDGE_SIM_HOSTNAME": host,
            **(env or {}),
        }
        values = {k: v for k, v in values.items() if v is not None}
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.space(host), TOOL, "check", "--count", "100", *args],
            env=values, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        process.begun = time.monotonic()
        self.processes.append(process)
        return process

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()
        for space in [*map(self.space, self.hosts), self.switch]:
            sh("ip", "netns", "del", space, check=False)
            folder = Path("/etc/netns") / space
            if folder.exists():
                (folder / "hosts").unlink(missing_ok=True)
                folder.rmdir()


@pytest.fixture
def lab():
    lab = Lab()
    yield lab
    lab.close()


def ends(processes, timeout=60):
    """(code, output, seconds) of each."""
    result = []
    for process in processes:
        out, _ = process.communicate(timeout=timeout)
        result.append((process.returncode, out, time.monotonic() - process.begun))
    return result


def all_good(processes, timeout=60):
    outs = ends(processes, timeout)
    assert all(code == 0 for code, _, _ in outs), "\n".join(out for _, out, _ in outs)
    return [out for _, out, _ in outs]


def all_fail(processes, words, seconds):
    outs = ends(processes)
    for code, out, took in outs:
        assert code == 1 and took < seconds, (code, took, out)
        for word in words:
            assert word in out, (word, out)
    return [out for _, out, _ in outs]


def test_own_name_is_loopback(lab):
    """S001: the hosts file says that the own name is 127.0.1.1."""
    address = lab.add("nv0")
    lab.add("amd0")
    for host in ("nv0", "amd0"):
        lab.hosts_file(host, f"127.0.0.1 localhost\n127.0.1.1 {host}\n")
    env = {"MASTER_ADDR": address}
    outs = all_good(
        [lab.start(h, r, 4, "--verbose", env=env)
         for r, h in enumerate(["nv0", "nv0", "amd0", "amd0"])]  # fmt: skip
    )
    for rank, out in enumerate(outs):
        if rank % 2 == 0:
            assert re.search(rf"rank {rank}: address 10\.98\.7\.", out), out
            assert "bridge.name tcp" in out


def test_interfaces_have_other_names(lab):
    """S004 and S003: each machine sets its own interface; a wrong one is told."""
    address = lab.add("nv0")
    lab.add("amd0")
    space = lab.space("amd0")
    sh("ip", "-n", space, "link", "set", "eth0", "down")
    sh("ip", "-n", space, "link", "set", "eth0", "name", "ens5")
    sh("ip", "-n", space, "link", "set", "ens5", "up")
    names = {"nv0": "eth0", "amd0": "ens5"}

    def go(names, *args):
        return [
            lab.start(h, r, 2, *args, env={"MASTER_ADDR": address,
                      "GPUBRIDGE_MULTITCP_IFNAME": names[h]})  # fmt: skip
            for r, h in enumerate(["nv0", "amd0"])
        ]

    all_good(go(names))
    for bad in ("eth0", "10.98.7.3", "^lo", "lo,ens5"):
        outs = all_fail(go({"nv0": "eth0", "amd0": bad}), [bad], 15)
        assert "ens5" in outs[1] and "GPUBRIDGE_MULTITCP_IFNAME" in outs[1], outs[1]


def test_ipv6_only(lab):
    """S005 over a cable."""
    lab.add("nv0")
    lab.add("amd0")
    for host in ("nv0", "amd0"):
        sh("ip", "-n", lab.space(host), "-4", "addr", "flush", "dev", "eth0")
    outs = all_good(
        [lab.start(h, r, 2, "--verbose", env={"MASTER_ADDR": "fd98::2"})
         for r, h in enumerate(["nv0", "amd0"])]  # fmt: skip
    )
    assert "[fd98::2]:" in outs[0]


def test_a_name_with_a_dead_address_first(lab):
    """S006: IPv6 leads nowhere, IPv4 works: up in under 20 s."""
    address = lab.add("nv0")
    lab.add("amd0")
    for host in ("nv0", "amd0"):
        lab.hosts_file(host, f"fd98::99 master\n{address} master\n")
    processes = [
        lab.start(h, r, 2, env={"MASTER_ADDR": "master"}) for r, h in enumerate(["nv0", "amd0"])
    ]
    outs = ends(processes)
    assert all(code == 0 and took < 20 for code, _, took in outs), outs


def test_a_file_and_no_network(lab, tmp_path):
    """S007: from a shared file, with nothing but loopback."""
    lab.add("nv0")
    sh("ip", "-n", lab.space("nv0"), "link", "set", "eth0", "down")
    all_good(
        [lab.start("nv0", r, 4, "--bridge", "tcp", "--init", f"file://{tmp_path}/meet")
         for r in range(4)]  # fmt: skip
    )


def test_a_firewall_that_drops_the_bridge(lab, tmp_path):
    """S010: the hosts meet over a file; packets between them vanish."""
    lab.add("nv0")
    lab.add("amd0")
    for host in lab.hosts:  # IPv6 would be a way around it
        sh("ip", "-n", lab.space(host), "-6", "addr", "flush", "dev", "eth0")
    sh("ip", "-n", lab.space("nv0"), "neigh", "replace", lab.hosts["amd0"],
       "lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", "eth0")  # fmt: skip
    env = {"GPUBRIDGE_MULTITCP_IFNAME": "eth0"}
    outs = all_fail(
        [lab.start(h, r, 2, "--timeout", "8", "--init", f"file://{tmp_path}/meet", env=env)
         for r, h in enumerate(["nv0", "amd0"])],
        [],
        23,
    )  # fmt: skip
    assert any(lab.hosts["nv0"] in out for out in outs), outs


def test_an_address_nobody_can_reach(lab):
    """S012: a rank advertises an address behind NAT. The pair connects the other
    way, or the error names the address and who advertised it."""
    address = lab.add("nv0")
    lab.add("amd0")
    sh("ip", "-n", lab.space("amd0"), "addr", "add", "192.0.2.10/32", "dev", "lo")
    processes = [
        lab.start(h, r, 2, "--timeout", "15", env={
            "MASTER_ADDR": address,
            "GPUBRIDGE_MULTITCP_IFNAME": None if h == "nv0" else "lo",
        })  # fmt: skip
        for r, h in enumerate(["nv0", "amd0"])
    ]
    outs = ends(processes)
    if any(code for code, _, _ in outs):
        for code, out, took in outs:
            assert code == 1 and took < 30
            assert "192.0.2.10" in out or "127.0.0.1" in out, out


def test_a_name_that_comes_late(lab):
    """S014: the master's name appears after 3 s; another one never does."""
    address = lab.add("nv0")
    processes = [lab.start("nv0", r, 2, env={"MASTER_ADDR": "head.test"}) for r in range(2)]
    time.sleep(3)
    lab.hosts_file("nv0", f"127.0.0.1 localhost\n{address} head.test\n")
    outs = ends(processes)
    assert all(code == 0 and took < 18 for code, _, took in outs), outs
    all_fail(
        [lab.start("nv0", r, 2, "--timeout", "4", env={"MASTER_ADDR": "nowhere.test"})
         for r in range(2)],
        ["nowhere.test"],
        19,
    )  # fmt: skip


def test_rank_0_is_elsewhere(lab):
    """S019: MASTER_ADDR is the other machine's address."""
    lab.add("nv0")
    address = lab.add("amd0")
    first, second = ends(
        [lab.start(h, r, 2, "--timeout", "6", env={"MASTER_ADDR": address})
         for r, h in enumerate(["nv0", "amd0"])]  # fmt: skip
    )
    assert first[0] == 1 and first[2] < 8 and address in first[1], first
    assert "not one of this machine" in first[1] or "is not" in first[1], first
    assert second[0] == 1 and second[2] < 21 and address in second[1], second


def test_a_cable_is_pulled(lab):
    """S011, S037: a link dies in silence in the middle of a job: both sides
    raise within the heartbeat's limit and name the other side."""
    address = lab.add("nv0")
    lab.add("amd0")
    env = {"MASTER_ADDR": address, "GPUBRIDGE_HEARTBEAT_TIMEOUT": "3"}
    processes = [
        lab.start(h, r, 2, "--count", "3000000", "--timeout", "60", env=env)
        for r, h in enumerate(["nv0", "amd0"])
    ]
    time.sleep(2)
    assert all(p.poll() is None for p in processes), "over before the cable was pulled"
    sh("ip", "-n", lab.switch, "link", "set", "p3", "down")
    pulled = time.monotonic()
    outs = ends(processes)
    assert time.monotonic() - pulled < 20
    assert all(code == 1 for code, _, _ in outs), outs
    assert "rank 1" in outs[0][1] and "rank 0" in outs[1][1], outs


class Cards:
    """Two hosts with a second card each, `eth1`, and a sharded job on them."""

    def __init__(self, lab):
        self.lab = lab
        self.address = lab.add("nv0")
        lab.add("amd0")

    def ip(self, host, *args):
        return sh("ip", "-n", self.lab.space(host), *args).stdout

    def join(self):
        """A cable of its own, with a network of its own."""
        sh("ip", "-n", self.lab.space("nv0"), "link", "add", "eth1", "type", "veth",
           "peer", "name", "eth1", "netns", self.lab.space("amd0"))  # fmt: skip
        self.up("10.98.8.")

    def apart(self, net):
        """A cable each that leads nowhere."""
        for host in self.lab.hosts:
            self.ip(host, "link", "add", "eth1", "type", "veth", "peer", "name", "end")
            self.ip(host, "link", "set", "end", "up")
        self.up(net)

    def same_switch(self):
        """All four in one network."""
        for number, host in enumerate(self.lab.hosts):
            self.ip(host, "link", "add", "eth1", "type", "veth", "peer", "name",
                    f"q{number}", "netns", self.lab.switch)  # fmt: skip
            sh("ip", "-n", self.lab.switch, "link", "set", f"q{number}", "master", "br0", "up")
        self.up("10.98.7.1")

    def up(self, net):
        for number, host in enumerate(self.lab.hosts):
            self.ip(host, "addr", "add", f"{net}{number + 2}/24", "dev", "eth1")
            self.ip(host, "link", "set", "eth1", "up")
        for host in self.lab.hosts:  # the kernel tells a cable after up to a second
            until = time.monotonic() + 5
            while "state UP" not in self.ip(host, "link", "show", "eth1"):
                assert time.monotonic() < until, f"eth1 of {host} is not up"
                time.sleep(0.05)

    def answer_by_own_card(self):
        for host in self.lab.hosts:
            for setting in ("arp_ignore=1", "arp_announce=2"):
                name = f"net.ipv4.conf.all.{setting}"
                self.lab.inside(self.lab.space(host), "sysctl", "-qw", name)
        for host in self.lab.hosts:  # what they learned before
            self.ip(host, "neigh", "flush", "all")

    def bytes(self):
        """Sent and received by each card of each host."""
        all = {}
        for host in self.lab.hosts:
            for link in json.loads(self.ip(host, "-s", "-json", "link")):
                for way in ("tx", "rx"):
                    all[host, link["ifname"], way] = link["stats64"][way]["bytes"]
        return all

    def job(self, env=None, count=20000):
        """Output of each rank and what the cards carried meanwhile."""
        before = self.bytes()
        env = {"MASTER_ADDR": self.address, "GPUBRIDGE_POLICY": "sharded-bridge", **(env or {})}
        outs = all_good(
            [self.lab.start(h, r, 4, "--count", str(count), "--verbose", env=env)
             for r, h in enumerate(["nv0", "nv0", "amd0", "amd0"])]  # fmt: skip
        )
        return outs, {key: count - before[key] for key, count in self.bytes().items()}


@pytest.fixture
def cards(lab):
    return Cards(lab)


def check_shares(carried, low, high):
    """eth1's part of what both cards carried, of every host and direction."""
    for host in ("nv0", "amd0"):
        for way in ("tx", "rx"):
            one, two = (carried[host, card, way] for card in ("eth0", "eth1"))
            assert one + two > 4 << 20, carried
            assert low <= two / (one + two) <= high, (host, way, carried)


def test_links_take_a_card_each(cards):
    """Nothing set: of two links each has a card; one set for all wins."""
    cards.join()
    outs, carried = cards.job()
    check_shares(carried, 0.45, 0.55)
    assert "rank 1: address_chosen_by card eth1 for link 1 of this host, of eth0 eth1" in outs[1]
    assert re.search(r"rank 1: address 10\.98\.8\.2:\d+, 10\.98\.7\.2:", outs[1]), outs[1]
    assert "from 10.98.8.3:" in outs[3], outs[3]
    assert "eth1" not in outs[0], outs[0]
    _, carried = cards.job({"GPUBRIDGE_MULTITCP_IFNAME": "eth0"})
    check_shares(carried, 0, 0.01)


def test_cards_in_one_network(cards):
    """The routes lead by the first card only: sockets are bound to theirs, where
    each card answers for its own address alone; else all links share the first."""
    cards.same_switch()
    outs, carried = cards.job(count=5000)
    assert "eth1" not in outs[1], outs[1]
    for host in ("nv0", "amd0"):
        assert carried[host, "eth1", "tx"] < 100000 < carried[host, "eth0", "tx"], carried
    cards.answer_by_own_card()
    outs, carried = cards.job()
    check_shares(carried, 0.45, 0.55)


def test_rules_lead_by_the_card(cards):
    """One network, and a rule for the second card's address: no binding needed."""
    cards.same_switch()
    for number, host in enumerate(cards.lab.hosts):
        cards.ip(host, "route", "add", "10.98.7.0/24", "dev", "eth1", "table", "77")
        cards.ip(host, "rule", "add", "from", f"10.98.7.1{number + 2}", "lookup", "77")
    outs, carried = cards.job()
    assert "card eth1" in outs[1], outs[1]
    for host in ("nv0", "amd0"):
        one, two = (carried[host, card, "tx"] for card in ("eth0", "eth1"))
        assert 0.45 <= two / (one + two) <= 0.55, carried


@pytest.mark.parametrize("net", ["10.98.8.", "10.98.7.1"])
def test_a_card_that_leads_nowhere(cards, net):
    """In a network of its own, and in that of the first card: the first one carries
    all, about a second later at most."""
    cards.apart(net)
    cards.answer_by_own_card()
    outs, carried = cards.job()
    check_shares(carried, 0, 0.01)
    assert "card eth1" in outs[1] and "from 10.98.7.3:" in outs[3], outs

    def seconds(env):
        """The better of two, as other work disturbs them."""
        took = []
        for _ in range(2):
            begun = time.monotonic()
            cards.job(env, count=100)
            took.append(time.monotonic() - begun)
        return min(took)

    usual = seconds({"GPUBRIDGE_MULTITCP_IFNAME": "eth0"})
    took = seconds({})
    print(f"{usual:.2f} s, with the card {took:.2f} s")
    assert took - usual < 1.3, (took, usual)


LAB = Path(__file__).resolve().parents[3] / "shared/lab/lab"


@pytest.mark.skipif(not LAB.exists(), reason="the tool that makes slow cables is not here")
def test_two_towns(tmp_path):
    """S013: 40 ms one way, 50 Mbit/s, half a percent loss; 8 MiB three times and
    no timeout. The cable is emulated, so only a generous bound on time."""
    env = {**os.environ, "LAB_DIR": str(tmp_path), "LAB_NET": "10.77.13"}

    def run(*args):
        return subprocess.run(
            [LAB, *args], env=env, check=True, capture_output=True, text=True, timeout=120
        ).stdout

    count = 8 * 1024 * 1024 // 4
    script = tmp_path / "towns.py"
    script.write_text(
        "import sys, torch, gpubridge\n"
        "from datetime import timedelta\n"
        "gpubridge.init(timeout=timedelta(seconds=120))\n"
        "r = gpubridge.get_topology().rank\n"
        "for _ in range(3):\n"
        f"    x = torch.full(({count},), r + 1.0)\n"
        "    gpubridge.all_reduce(x)\n"
        "    assert (x == 3).all()\n"
        "x = torch.tensor([r + 1.0]); gpubridge.all_reduce(x); assert x.item() == 3\n"
        "gpubridge.destroy(); print('right')\n"
    )
    ranks = []
    try:
        run("up", "nv0", "amd0")
        run("shape", "amd0", "rate=50mbit", "delay=40ms", "loss=0.5%")
        address = run("addr", "nv0").strip()
        for rank, (host, vendor) in enumerate((("nv0", "nvidia"), ("amd0", "amd"))):
            values = {
                **env,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": address,
                "MASTER_PORT": "29655",
                "GPUBRIDGE_VENDOR": vendor,
                "GPUBRIDGE_SIM_HOSTNAME": host,
                "OMP_NUM_THREADS": "1",
            }
            ranks.append(
                subprocess.Popen(
                    [LAB, "exec", host, "--", sys.executable, script],
                    env=values, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                )  # fmt: skip
            )
        for rank in ranks:
            out, _ = rank.communicate(timeout=180)
            assert rank.returncode == 0 and "right" in out, out
    finally:
        for rank in ranks:
            rank.kill()
        run("down")
