"""gpubridge simulate: predictions for hosts that are not here."""

import json
import re
import subprocess
from xml.etree import ElementTree

import pytest
from conftest import ROOT, TOOL

EXAMPLES = ROOT / "docs/links"
FIVE = ["all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter"]


def simulate(*args, timeout=120):
    words = [TOOL, "simulate", *map(str, args)]
    # No job, no network settings, nothing of the environment.
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout, env={})


def cells_of(tmp_path, *args):
    out = tmp_path / "out.json"
    done = simulate(*args, "--json", out)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["gpubridge_simulation"] == 1
    return {(c["collective"], c["policy"], c["bytes"]): c for c in found["cells"]}


def test_every_example_file(tmp_path):
    files = sorted(EXAMPLES.glob("*.json"))
    assert len(files) >= 4
    for file in files:
        svg = tmp_path / "curves.svg"
        done = simulate("--islands", "nvidia:16,amd:16", "--links", file, "--svg", svg)
        assert done.returncode == 0, done.stderr
        assert "32 ranks in 2 islands" in done.stdout and "% busy" in done.stdout
        for name in FIVE:
            assert len(re.findall(rf"^{name} +\d+ ", done.stdout, re.M)) >= 7
        drawn = ElementTree.parse(svg).getroot()
        lines = [e for e in drawn.iter() if e.tag.endswith("polyline")]
        assert len(lines) == len(FIVE) * 2
        assert all(len(line.get("points").split()) >= 7 for line in lines)


def test_the_table_is_what_the_file_says(tmp_path):
    links = tmp_path / "links.json"
    links.write_text(json.dumps({"gpubridge_links": 1, "hosts": {"ranks": 1, "nic_gbit_s": 1}}))
    common = ("--islands", "nvidia:1,amd:1", "--links", links, "--sizes", "1M,64M")
    cells = cells_of(tmp_path, *common)
    assert {key[0] for key in cells} == set(FIVE)
    big = cells["broadcast", "reduce-bridge-broadcast", 64 << 20]
    wire = (64 << 20) * 8 / 1e9 * 1514 / 1448
    assert big["us"] / 1e6 == pytest.approx(wire, rel=0.01)
    assert big["bus_gbytes_s"] == pytest.approx((64 << 20) / big["us"] / 1e3, rel=1e-4)
    assert big["busiest"] == "nic 0 of host 0, sending" and big["busy"] > 0.99
    # Ten times the rate: a tenth of the time, and the best is marked.
    links.write_text(links.read_text().replace("1}", "10}"))
    faster = cells_of(tmp_path, *common)["broadcast", "reduce-bridge-broadcast", 64 << 20]
    assert faster["us"] == pytest.approx(big["us"] / 10, rel=0.05)
    assert "*" in simulate(*common).stdout


def test_the_same_twice():
    words = ("--islands", "nvidia:12,amd:8,third:3", "--links", EXAMPLES / "two-racks.json")
    first, second = (simulate(*words).stdout.splitlines()[:-1] for _ in range(2))
    assert first == second and len(first) > 40


def test_hosts_by_name_and_by_count():
    file = EXAMPLES / "two-racks.json"  # eight ranks a host
    for islands, hosts in (
        ("nvidia:4,amd:4", 1),
        ("nvidia:5,amd:5", 2),
        ("nvidia:9,amd:8", 3),
        ("nvidia@a:3,amd@a:3", 1),
        ("nvidia@a:2,nvidia:2,amd@b:4", 3),
    ):
        done = simulate("--islands", islands, "--links", file, "--sizes", "4")
        assert f"on {hosts} hosts" in done.stdout, done.stdout + done.stderr


def test_exchanges_and_one_island(tmp_path):
    words = ("--islands", "nvidia:6", "--links", EXAMPLES / "one-pc.json", "--sizes", "1M")
    done = simulate(*words, "--collectives", "gather,scatter,all_to_all")
    assert done.returncode == 0 and "native-only" in done.stdout
    assert len(re.findall(r"^(?:gather|scatter|all_to_all) ", done.stdout, re.M)) == 3


def test_flat_where_it_cannot_be_planned():
    words = ("--islands", "nvidia:512,amd:512", "--links", EXAMPLES / "two-racks.json")
    done = simulate(*words, "--policy", "flat", "--sizes", "64M", "--collectives", "all_reduce")
    assert done.returncode == 0 and "left out (-)" in done.stdout


GOOD = ["--islands", "nvidia:2,amd:2", "--links", EXAMPLES / "lab.json"]


@pytest.mark.parametrize(
    "words, text",
    [
        ([], "usage"),
        (GOOD[:2], "usage"),
        (GOOD[2:], "usage"),
        ([*GOOD, "more"], "usage"),
        ([*GOOD, "--no-such-option"], "usage"),
        ([*GOOD, "--chunk", "7"], "usage"),
        ([*GOOD, "--shard-links", "-1"], "usage"),
        ([*GOOD, "--islands", "nvidia:0"], "is not an island"),
        ([*GOOD, "--islands", "nvidia:99999"], "is not an island"),
        ([*GOOD, "--policy", "quick"], 'no policy "quick" to simulate'),
        ([*GOOD, "--policy", "auto-tuned"], "no policy"),
        ([*GOOD, "--policy", "native-only"], "does not fit these islands"),
        ([*GOOD, "--policy", ""], "an empty list"),
        ([*GOOD, "--collectives", "sum"], 'no collective "sum"'),
        ([*GOOD, "--collectives", "reduce,reduce"], "listed twice"),
        ([*GOOD, "--sizes", "0"], "is not a size"),
        ([*GOOD, "--sizes", "-4"], "is not a size"),
        ([*GOOD, "--sizes", "6"], "is not a size"),
        ([*GOOD, "--sizes", "1Q"], "is not a size"),
        ([*GOOD, "--sizes", "nan"], "is not a size"),
        ([*GOOD, "--sizes", "8,4"], "must ascend"),
        ([*GOOD, "--links", "/no/such/file"], "cannot be read"),
        ([*GOOD, "--links", "/dev/zero"], "it is not a file"),
        ([*GOOD, "--links", ROOT], "it is not a file"),
        ([*GOOD, "--links", ROOT / "README.md"], "it is not JSON"),
    ],
)
def test_refusals(words, text):
    done = simulate(*words)
    assert done.returncode == 2 and text in done.stderr, done.stdout + done.stderr


def test_a_bad_key_is_named(tmp_path):
    links = tmp_path / "links.json"
    links.write_text('{"gpubridge_links": 1, "hosts": {"nic_gbits": 3}}')
    done = simulate(*GOOD[:2], "--links", links)
    assert done.returncode == 2
    assert str(links) in done.stderr and '"nic_gbits". Known are ranks' in done.stderr


def test_files_that_cannot_be_written():
    done = simulate(*GOOD, "--sizes", "4", "--json", "/no/such/folder/x")
    assert done.returncode == 1 and "cannot write" in done.stderr


def test_two_thousand_ranks(tmp_path):
    """All five collectives at 1,024 + 1,024 ranks."""
    words = ("--islands", "nvidia:1024,amd:1024", "--links", EXAMPLES / "two-racks.json")
    done = simulate(*words, "--sizes", "1M,16M", timeout=240)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    print(last)
    assert last.startswith("2048 ranks on 256 hosts, ")
    assert float(re.search(r"and (\d+) MiB", last)[1]) < 256
