"""Custom policies and bridges in Python, and Gloo's (spec 1.9, 1.10, 6.6, 6.7).

The classes of docs/custom.md are what the jobs here use, so the page works.
"""

import json
import re
import signal
from pathlib import Path

import gpubridge
import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs/custom.md"
PARTS = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S))

# Results of the calls that every policy and bridge must agree about. Sums are
# exact: policies may add in other orders.
CALLS = '''
import json, hashlib, os, sys, torch
import torch.distributed as dist
from datetime import timedelta

def calls(rank, world, exact):
    got = []
    keep = lambda t: got.append(t.view(torch.uint8).numpy().tobytes())
    torch.manual_seed(7 * rank)
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
        for n in (1, 37, 100_000):
            x = torch.randint(0, 9, (n,)).to(dtype)
            if not exact and dtype == torch.float32:
                x = torch.randn(n)
            gpubridge.all_reduce(x)
            keep(x)
    x = torch.randn(5) if not exact else torch.full((5,), float(rank))
    gpubridge.all_reduce(x, dist.ReduceOp.MAX)
    keep(x)
    for dtype in (torch.float32, torch.float16):
        x = torch.full((3, 2), 60000.0, dtype=dtype)  # sums overflow float16
        gpubridge.all_reduce(x, dist.ReduceOp.AVG)
        keep(x.reshape(-1))
    work = gpubridge.all_reduce(torch.full((7,), rank + 1.0), async_op=True)
    work.wait()
    keep(work.result()[0])
    for src in range(world):
        x = torch.full((4,), rank, dtype=torch.uint16)
        gpubridge.broadcast(x, src)
        assert x.tolist() == [src] * 4
    out = torch.empty(3 * world)
    gpubridge.all_gather_into_tensor(out, torch.full((3,), float(rank)))
    keep(out)
    gpubridge.all_reduce(torch.empty(0))
    gpubridge.barrier()
    return hashlib.sha256(b"".join(got)).hexdigest()
'''


def ranks(outs):
    """What each rank printed as JSON lines, as dicts."""
    return [
        dict(json.loads(line) for line in out.splitlines() if line.startswith("["))
        for out in outs
    ]


@pytest.mark.timeout(240)
def test_results(run):
    """A FileStore bridge, Gloo's bridge, flat-gloo and a policy over the store give
    the library's own bits over 2+2 and, the bridges, over 1+3; roundings of
    the bridges too. reduce_scatter where it is offered; records name the policy."""
    script = PARTS + CALLS + '''
def say(name, value):
    print(json.dumps([name, value]), flush=True)

def job(exact, **named):
    topology = gpubridge.init(timeout=timedelta(seconds=60), **named)
    seen = []
    class Observer(gpubridge.CollectiveObserver):
        def on_collective(self, record):
            seen.append(record)
    gpubridge.add_observer(Observer())
    digest = calls(topology.rank, topology.world_size, exact)
    say(f"{named} {exact}", digest)
    by_auto = "reduce-bridge-broadcast" if "bridge" in named else "direct"
    taken = by_auto if topology.policy_name == "auto" else topology.policy_name
    assert {r.policy for r in seen if r.op == "all_reduce"} == {taken}
    if topology.policy_name != "mailbox":
        out = torch.empty(2)
        gpubridge.reduce_scatter_tensor(out, torch.arange(2.0 * topology.world_size))
        assert out.tolist() == [topology.world_size * (2.0 * topology.rank + i) for i in (0, 1)]
    leads = topology.is_leader and "bridge" in named
    assert (topology.bridge is not None) == leads, topology.bridge
    assert topology.gloo_free == ("gloo" not in str(named))
    assert (topology.bridge_group is not None) == (leads and named["bridge"] == "gloo")
    facts = gpubridge.telemetry()
    assert ("bridge.members" in facts) == (topology.bridge_group is not None), facts
    gpubridge.destroy()

os.environ["GPUBRIDGE_PINNED_STAGING"] = "yes"  # says nothing on the host path
job(False)
job(False, bridge="files")
job(False, bridge="gloo")
if os.environ["WIDE"] == "1":
    job(True)
    job(True, policy="flat-gloo")
    job(True, policy=Mailbox)
    job(True, policy=Mailbox, bridge=FileBridge)
'''
    for vendors, wide in (("nnaa", "1"), ("naaa", "0")):
        found = ranks(run(script, vendors, env={"WIDE": wide}, timeout=110))
        assert all(one == found[0] for one in found), found
        for exact in (False, True):
            same = {v for k, v in found[0].items() if k.endswith(str(exact))}
            assert len(same) == (1 if wide == "1" or not exact else 0), found[0]


@pytest.mark.timeout(120)
def test_backend(run):
    """Registered names in the environment serve init_process_group: the torch calls
    go to the policy, also from DDP; a new group has a bridge of its own, whose
    members alone are asked; the island's group serves the policy."""
    script = PARTS + '''
from datetime import timedelta
from torch.nn.parallel import DistributedDataParallel

created = []
class Noted(FileBridge):
    name = "noted"
    @classmethod
    def create(cls, ranks, *, timeout=None):
        created.append(list(ranks))
        return super().create(ranks, timeout=timeout)

class Islands(Mailbox):
    name = "islands"
    asked = 0
    def setup(self, topology):
        super().setup(topology)
        self.island = topology.island_group
    def all_reduce(self, tensor, topology, **named):
        self.asked += 1
        dist.all_reduce(tensor, group=self.island)
        share = tensor if topology.is_leader else torch.zeros_like(tensor)
        super().all_reduce(share, topology)
        tensor.copy_(share)

gpubridge.register_transport(Noted)
gpubridge.register_policy(Islands)
dist.init_process_group("gpubridge", timeout=timedelta(seconds=60))
rank = dist.get_rank()
x = torch.full((5,), rank + 1.0)
dist.all_reduce(x)
assert x.tolist() == [10.0] * 5, x
topology = gpubridge.get_topology()
assert topology.policy.asked == 1 and topology.policy_name == "islands"
model = torch.nn.Linear(4, 2)
ddp = DistributedDataParallel(model)
ddp(torch.full((3, 4), rank + 1.0)).sum().backward()
assert torch.allclose(model.weight.grad, torch.full((2, 4), 7.5)), model.weight.grad
assert topology.policy.asked > 1
assert created == [[0, 2]], created
group = dist.new_group([1, 3])
other = dist.new_group([0, 1, 2])
if rank in (1, 3):
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, group=group)
    assert x.item() == 4.0
if rank in (0, 1, 2):
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, group=other)
    assert x.item() == 3.0
want = {0: [[0, 2]] * 2, 1: [[0, 2], [1, 3], [0, 2]], 2: [[0, 2]] * 2, 3: [[0, 2], [1, 3]]}
assert created == want[rank], created
try:
    class Inside(Mailbox):
        pass
    topology.policy._rows = lambda *_: dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(1))
    raise SystemExit("a collective inside itself went through")
except RuntimeError as error:
    assert "cannot call a collective of the group" in str(error), error
dist.destroy_process_group()
'''
    run(script, "nnaa", env={"GPUBRIDGE_POLICY": "islands", "GPUBRIDGE_BRIDGE": "noted"})


BAD = PARTS + '''
import json, os
from datetime import timedelta

RANK = int(os.environ["RANK"])

def say(name, error):
    cause = error.__cause__
    print(json.dumps([name, [type(error).__name__, str(error),
                             type(cause).__name__ if cause else None]]), flush=True)

def attempt(name, use=None, **named):
    try:
        gpubridge.init(timeout=timedelta(seconds=20), **named)
        (use or (lambda: gpubridge.all_reduce(torch.ones(3))))()
    except Exception as error:
        say(name, error)
    else:
        raise SystemExit(f"{name}: nothing was raised")
    finally:
        gpubridge.destroy()
        assert not gpubridge.is_initialized() and not dist.is_initialized()

def on(rank, value, otherwise=None):
    return value if RANK == rank else otherwise

def boom(*args, **named):
    raise ValueError("boom\\nand more")

class Bridge(FileBridge):
    name = "bad"
class Policy(Mailbox):
    name = "bad"
'''


@pytest.mark.timeout(240)
def test_bad_parts(run):
    """Parts that raise or return the wrong kind, at each place: one sentence on all
    ranks, with class, rank and exception; the rank that raised has it as the
    cause; the same processes open the next job. What is not offered is a
    NotImplementedError on every rank and harms nothing."""
    script = BAD + '''
class Raises(Bridge):
    @classmethod
    def create(cls, ranks, *, timeout=None):
        return boom() if RANK == 2 else super().create(ranks, timeout=timedelta(seconds=5))
attempt("create raises", bridge=Raises)

class Wrong(Bridge):
    @classmethod
    def create(cls, ranks, *, timeout=None):
        return on(0, "a str") or (object.__new__(cls) if RANK == 2 else None)
attempt("create wrong kind", bridge=Wrong)

class Stranger(Bridge):
    @classmethod
    def create(cls, ranks, *, timeout=None):
        return None if RANK == 3 else object.__new__(cls)
attempt("create not a member", bridge=Stranger)

class Fails(Bridge):
    def all_reduce(self, tensor, op=None):
        return boom() if RANK == 2 else super().all_reduce(tensor)
attempt("transport raises", bridge=Fails)

class Set(Policy):
    def setup(self, topology):
        return boom() if RANK == 3 else super().setup(topology)
attempt("setup raises", policy=Set)

class Call(Policy):
    def all_reduce(self, tensor, topology, op=None):
        return boom() if RANK == 1 else super().all_reduce(tensor, topology)
attempt("policy raises", policy=Call)
attempt("policy raises async", policy=Call,
        use=lambda: gpubridge.all_reduce(torch.ones(3), async_op=True).wait())

from gpubridge.gloo import FlatGlooPolicy
class Flat(FlatGlooPolicy):
    name = "flat-bad"
    def all_reduce(self, tensor, topology, op=dist.ReduceOp.SUM):
        return boom() if RANK == 1 else super().all_reduce(tensor, topology, op)
attempt("others wait in Gloo", policy=Flat)
attempt("unknown policy", policy="mailbux")
attempt("unknown bridge", bridge="filez")

class Select(Policy):
    def select_policy(self, nbytes):
        return "mailbox" if nbytes > 100 else self
attempt("select wrong kind", policy=Select, use=lambda: gpubridge.all_reduce(torch.ones(99)))

class Settings(Policy):
    @classmethod
    def settings(cls):
        return boom() if RANK == 1 else {}
attempt("settings raise", policy=Settings)

class Abstract(gpubridge.CollectivePolicy):
    name = "abstract"
attempt("abstract", policy=Abstract)

os.environ["MAILBOX_FIRST"] = str(on(3, 7, 5))
attempt("settings differ", policy="mailbox")
os.environ["MAILBOX_FIRST"] = "0"

class Unfit(Policy):
    @classmethod
    def applies_to(cls, layout):
        assert layout.vendors == ("nvidia", "nvidia", "amd", "amd")
        return not layout.needs_bridge
attempt("does not fit", policy=Unfit)

class Other(Policy):
    name = "other"
attempt("names differ", policy=on(1, Other, Policy))

class Sum(Bridge):
    reduce_ops = {"sum"}
    reduce_dtypes = {"float32", "uint8"}
gpubridge.init(bridge=Sum, timeout=timedelta(seconds=20))
for name, call in {
    "max": lambda: gpubridge.all_reduce(torch.ones(3), dist.ReduceOp.MAX),
    "max async": lambda: gpubridge.all_reduce(torch.ones(3), dist.ReduceOp.MAX, async_op=True),
    "int16": lambda: gpubridge.all_reduce(torch.ones(3, dtype=torch.int16)),
}.items():
    try:
        call()
        raise SystemExit(name)
    except NotImplementedError as error:
        say(name, error)
x = torch.ones(3)
gpubridge.all_reduce(x)
assert x.tolist() == [4.0] * 3
gpubridge.destroy()

gpubridge.init(policy="mailbox", timeout=timedelta(seconds=20))
for name, call in {
    "no reduce_scatter": lambda: gpubridge.reduce_scatter_tensor(torch.ones(1), torch.ones(4)),
    "no min": lambda: gpubridge.all_reduce(torch.ones(3), dist.ReduceOp.MIN),
}.items():
    try:
        call()
        raise SystemExit(name)
    except NotImplementedError as error:
        say(name, error)
x = torch.ones(3)
gpubridge.all_reduce(x)
assert x.tolist() == [4.0] * 3
x = torch.ones(3)
gpubridge.reduce(x, 1)  # no method: the library's way
assert RANK != 1 or x.tolist() == [4.0] * 3
gpubridge.destroy()
'''
    found = ranks(run(script, "nnaa", timeout=200))
    words = {  # words of the text, kind of the exception, rank that has a cause
        "create raises": (["Raises", "ValueError", "create()", "rank 2", "boom and more"], 2),
        "create wrong kind": (["Wrong.create()", "[0, 2]", "str on rank 0"], None),
        "create not a member": (["Stranger.create()", "[0, 2]", "rank 1", "None"], None),
        "transport raises": (["all_reduce number", "Fails", "ValueError", "rank 2"], 2),
        "setup raises": (["asking the policy", "Set)", "setup()", "rank 3", "boom and more"], 3),
        "policy raises": (["all_reduce number 1", "Call)", "ValueError", "rank 1"], 1),
        "policy raises async": (["all_reduce number 1", "Call)", "rank 1"], None),
        "others wait in Gloo": (["all_reduce number 1", "Flat)", "rank 1"], 1),
        "unknown policy": (['"mailbux"', "auto", "flat-gloo", "mailbox"], None),
        "unknown bridge": (['"filez"', "auto", "tcp", "gloo", "files"], None),
        "select wrong kind": (["Select.select_policy(396)", "returned str"], None),
        "settings raise": (["1 of 4 ranks", "Settings)", "settings()", "boom and more"], None),
        "abstract": (["4 of 4 ranks", "Abstract", "TypeError"], None),
        "settings differ": (['{"first": 5} on ranks 0-2', '{"first": 7} on rank 3'], None),
        "does not fit": (['"bad" does not fit a job of 2 islands'], None),
        "names differ": (["bad on ranks 0, 2, 3", "other on rank 1"], None),
        "max": (['bridge "bad"', "max", "offers sum"], None),
        "max async": (['bridge "bad"', "max"], None),
        "int16": (['bridge "bad"', "int16"], None),
        "no reduce_scatter": (["'mailbox'", "reduce_scatter_tensor", "flat-gloo"], None),
        "no min": (["'mailbox'", "min", "max, sum"], None),
    }
    assert set(found[0]) == set(words)
    for name, (parts, raised_on) in words.items():
        kinds = {rank[name][0] for rank in found}
        # A rank that comes to the call after the failure is told so besides.
        texts = {rank[name][1].split(". The job has failed")[0] for rank in found}
        if name == "select wrong kind":  # all fail at once: any rank's comes first
            texts = {re.sub(r"rank \d", "rank", text) for text in texts}
        assert len(texts) == 1, (name, texts)
        for part in parts:
            assert part in found[0][name][1], (name, part, found[0][name])
        refused = name.startswith(("max", "int16", "no "))
        wanted = {"Error", "RuntimeError"}
        if name.startswith("unknown"):
            wanted = {"ValueError"}
        assert kinds <= ({"NotImplementedError"} if refused else wanted), (name, kinds)
        if raised_on is not None:
            assert found[raised_on][name][2] == "ValueError", (name, found[raised_on])


@pytest.mark.timeout(120)
@pytest.mark.parametrize("bridge", ["files", "gloo"])
def test_islands_differ(run, bridge):
    """Another type or count on one side of a bridge that looks at neither: an error
    on every rank that shows both, soon, and no sum."""
    script = PARTS + f'''
import time
from datetime import timedelta

def differ(first, second):
    topology = gpubridge.init(bridge="{bridge}", timeout=timedelta(seconds=60))
    x = torch.ones(3)
    gpubridge.all_reduce(x)
    assert x.tolist() == [4.0] * 3
    start = time.monotonic()
    dtype, count = first if topology.rank < 2 else second
    try:
        gpubridge.all_reduce(torch.ones(count, dtype=dtype))
        raise SystemExit("a sum of what does not match")
    except RuntimeError as error:
        for dtype, count in (first, second):
            words = f"of {{count}} {{str(dtype).removeprefix('torch.')}}, sum"
            assert words in str(error), error
    assert time.monotonic() - start < 20
    gpubridge.destroy()

differ((torch.float32, 4), (torch.int32, 4))
differ((torch.float32, 4), (torch.float32, 6))
'''
    run(script, "nnaa", timeout=110)


@pytest.mark.timeout(120)
def test_blocks(start):
    """A transport that blocks forever on one rank: the others end at the timeout, with
    the usual text; Ctrl-C ends the one that blocks."""
    script = BAD + '''
import time
class Blocks(Bridge):
    def all_reduce(self, tensor, op=None):
        if RANK == 2:
            print("blocks", flush=True)
            time.sleep(3600)
        super().all_reduce(tensor)

gpubridge.init(bridge=Blocks, timeout=timedelta(seconds=15))
dist.distributed_c10d._get_default_group().set_timeout(timedelta(seconds=3))
start = time.monotonic()
try:
    gpubridge.all_reduce(torch.ones(3))
except KeyboardInterrupt:
    print("interrupted", flush=True)
except RuntimeError as error:
    assert time.monotonic() - start < 14, error
    say("blocks", error)
else:
    raise SystemExit("nothing was raised")
gpubridge.destroy()
'''
    job = start(script, "nnaa")
    deadline = 60
    while not all(job.ranks[r].poll() is not None for r in (0, 1, 3)):
        deadline -= 0.05
        assert deadline > 0, [job.out(r) for r in range(4)]
        signal.sigtimedwait([], 0.05)
    assert "blocks" in job.out(2) and "interrupted" not in job.out(2)
    job.ranks[2].send_signal(signal.SIGINT)
    ended = job.wait(90)
    assert [e.code for e in ended] == [0] * 4, [e.out for e in ended]
    assert "interrupted" in ended[2].out
    texts = {ranks([ended[r].out])[0]["blocks"][1] for r in (1, 3)}
    assert len(texts) == 1 and "did not end within its timeout of 3 s" in texts.pop()


def test_registration():
    """What cannot be registered or named is refused on the spot."""

    class One(gpubridge.CollectivePolicy):
        name = "one"

    class Two(gpubridge.CollectivePolicy):
        name = "one"

    class Bridge(gpubridge.BridgeTransport):
        name = "own"

    assert gpubridge.register_policy(One) is One
    assert gpubridge.register_policy(One) is One
    assert gpubridge.register_transport(Bridge) is Bridge
    with pytest.raises(ValueError, match="taken by .*One"):
        gpubridge.register_policy(Two)
    for kind, register in (
        (gpubridge.CollectivePolicy, gpubridge.register_policy),
        (gpubridge.BridgeTransport, gpubridge.register_transport),
    ):
        for wrong in (3, "one", object, gpubridge.Topology):
            with pytest.raises(TypeError, match="subclass of"):
                register(wrong)
        for name in ("auto", "", "x" * 80, None, 3):
            with pytest.raises(ValueError):
                register(type("Named", (kind,), {"name": name}))
    with pytest.raises(ValueError, match="library's own"):
        gpubridge.register_transport(type("Tcp", (gpubridge.BridgeTransport,), {"name": "tcp"}))
    with pytest.raises(TypeError, match="policy must be a name or a subclass"):
        gpubridge.init(policy=Bridge)
    with pytest.raises(TypeError, match="bridge must be a name or a subclass"):
        gpubridge.init(bridge=7)
