"""Traps of torch.distributed and misuse: what crashes, hangs or silently succeeds
with other backends must be a value or a Python exception here. No rank may die by
a signal; where a job is good, it ends with code 0 and says nothing."""

import json

import pytest

COMMON = """
import gc, json, os, sys, threading, time, warnings
from datetime import timedelta
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
import gpubridge
torch.set_num_threads(1)
dist.init_process_group(backend="gpubridge", timeout=timedelta(seconds=60))
R, N = dist.get_rank(), dist.get_world_size()
G = dist.group.WORLD
CPU = torch.device("cpu")

def refused(kinds, call, *words):
    '''What call() raises, one of `kinds`, with all the words in its text.'''
    try: result = call()
    except kinds as error:
        assert all(word in str(error) for word in words), error
        return error
    raise SystemExit(f"not refused: {words}, got {result}")

def ones(*shape): return torch.full(shape or (1,), R + 1.0)
TOTAL = N * (N + 1) / 2
"""


def test_every_method_returns_a_work(run):
    """G.4, A.3, A.4: sync or async, old name or new, no method returns None (C++
    callers would crash); waits of every form; futures that chain."""
    run(
        COMMON
        + """
import torch.distributed.distributed_c10d as c10d
def sync(kind):
    options = kind()
    options.asyncOp = False
    return options
def methods():
    x, wide = ones(2), ones(2 * N)
    rows = [ones(2) for _ in range(N)]
    mine = rows if R == 0 else []
    AR, RS, B, A2A = dist.AllreduceOptions, dist.ReduceScatterOptions, dist.BarrierOptions, dist.AllToAllOptions
    AG, CO = c10d.AllgatherOptions, c10d.AllreduceCoalescedOptions
    yield "allreduce", ([x],), AR
    yield "allreduce_coalesced", ([x, ones(3)],), CO
    yield "broadcast", ([x],), dist.BroadcastOptions
    yield "reduce", ([x],), dist.ReduceOptions
    yield "allgather", ([rows], [x]), AG
    yield "allgather_coalesced", ([[x.clone()] for _ in range(N)], [x]), AG
    yield "gather", ([mine] if mine else [], [x]), dist.GatherOptions
    yield "scatter", ([x], [mine] if mine else []), dist.ScatterOptions
    yield "reduce_scatter", ([x], [rows]), RS
    yield "alltoall", ([ones(2) for _ in range(N)], rows), A2A
    yield "barrier", (), B
    for name in ("all_gather_single", "_allgather_base"): yield name, (wide, x), AG
    for name in ("reduce_scatter_single", "_reduce_scatter_base"): yield name, (x, wide), RS
    for name in ("all_to_all_single", "alltoall_base"): yield name, (wide.clone(), wide, [], []), A2A
    for name in ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"):
        yield name, ([wide], [x]), AG
    for name in ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"):
        yield name, ([x], [wide]), RS
seen = 0
for form in ("sync", "async"):
    for name, args, kind in methods():
        options = sync(kind) if form == "sync" else kind()
        work = getattr(G, name)(*args, options)
        assert isinstance(work, dist.Work), (name, form, work)
        # C++ passes one positional timedelta; zero means no limit.
        assert work.wait(timedelta(0)) is True and work.wait() is True, name
        assert work.wait(timeout=timedelta(seconds=9)) is True and work.wait(9.0)
        assert work.is_completed() and work.is_success() and work.exception() is None, name
        assert isinstance(work.result(), list)
        work.synchronize()
        assert isinstance(work.get_future(), torch._C.Future), name
        work.get_future().wait()
        assert work.get_future() is work.get_future()
        refused(RuntimeError, work.source_rank, "source")
        seen += 1
assert seen == 42
# Options left out, as old C++ callers do.
for name, args, kind in methods(): getattr(G, name)(*args).wait(timedelta(0))

# ---- values of the old names ----
out = torch.empty(N)
G._allgather_base(out, ones()).wait()
assert out.tolist() == [r + 1 for r in range(N)]
one = torch.empty(1)
G._reduce_scatter_base(one, torch.arange(float(N)) * (R + 1)).wait()
assert one.item() == R * TOTAL
got = torch.empty(N)
G.alltoall_base(got, torch.arange(float(N)) + 10 * R, [], []).wait()
assert got.tolist() == [10 * r + R for r in range(N)]
outs = [torch.empty(N), torch.empty(2 * N)]
G.allgather_into_tensor_coalesced(outs, [ones(), ones(2)]).wait()
assert outs[1].tolist() == [r + 1 for r in range(N) for _ in range(2)]
outs = [torch.empty(1), torch.empty(2)]
G.reduce_scatter_tensor_coalesced(outs, [ones(N), ones(2 * N)]).wait()
assert [t.tolist() for t in outs] == [[TOTAL], [TOTAL] * 2]

# ---- futures ----
x = ones()
future = dist.all_reduce(x, async_op=True).get_future()
chain = future.then(lambda f: f.value()[0] * 2).then(lambda f: f.value() + 1)
assert chain.wait().item() == 2 * TOTAL + 1
bad = future.then(lambda f: 1 / 0)
refused(Exception, bad.wait, "division")
refused(Exception, bad.then(lambda f: f.value()).wait, "division")
works = [dist.all_reduce(ones(k + 1), async_op=True) for k in range(20)]
every = torch.futures.wait_all([work.get_future() for work in works])
assert all(value[0].eq(TOTAL).all() for value in every)
wrap = torch._C._distributed_c10d._create_work_from_future
work = wrap(dist.all_reduce(ones(), async_op=True).get_future())
assert work.wait() and work.is_completed()

# ---- point to point: dropped works, source_rank ----
for step in range(20):
    if R == 0:
        work = dist.isend(torch.full((200_000,), float(step)), 1)
        del work
        junk = torch.full((200_000,), -1.0)
    elif R == 1:
        x = torch.empty(200_000)
        work = dist.irecv(x, 0 if step % 2 else None)
        work.wait()
        assert (x == step).all() and work.source_rank() == work._source_rank() == 0
gc.collect()
dist.barrier()
dist.destroy_process_group()
""",
        "nna",
    )


def test_modes_of_the_caller(run):
    """G.11, G.13, A.5: inference mode on one side of a call only; functional
    collectives; brackets with and without device; the debug level DETAIL, which
    makes Gloo groups for other backends; DDP under it."""
    outs = run(
        """
import torch.distributed.distributed_c10d as c10d
made = []
class NoGloo(c10d.ProcessGroupGloo):
    def __init__(self, *args, **kwargs): made.append(args); raise SystemExit("a Gloo group")
c10d.ProcessGroupGloo = NoGloo
"""
        + COMMON
        + """
import torch.distributed._functional_collectives as funcol
from torch.distributed.distributed_c10d import _coalescing_manager
assert dist.get_debug_level() == dist.DebugLevel.DETAIL and type(G) is gpubridge.GpubridgeProcessGroup

# ---- inference mode ----
def everything():
    '''Starts calls whose results are copied from one buffer to several tensors.'''
    x = ones()
    rows = [torch.empty(1) for _ in range(N)]
    back = [torch.empty(1) for _ in range(N)]
    many = [ones(1), ones(2), ones(3)]
    works = [dist.all_reduce(x, async_op=True), dist.all_gather(rows, ones(), async_op=True),
             dist.all_to_all(back, [ones() for _ in range(N)], async_op=True),
             G.allreduce_coalesced(many)]
    def check():
        assert x.item() == TOTAL and all((t == TOTAL).all() for t in many)
        assert [t.item() for t in rows] == [t.item() for t in back] == [r + 1 for r in range(N)]
    return works, check
def finish(works, check, how):
    for work in works: how(work)
    check()
hows = (lambda w: w.wait(), lambda w: w.get_future().wait(),
        lambda w: w.get_future().then(lambda f: f.value()).wait())
for how in hows:
    with torch.inference_mode(): finish(*everything(), how)
    with torch.inference_mode(): started = everything()
    finish(*started, how)
    started = everything()
    with torch.inference_mode(): finish(*started, how)
    with torch.no_grad(): finish(*everything(), how)
with torch.inference_mode():
    dist.barrier()
    objects = [None] * N
    dist.all_gather_object(objects, R)
    assert objects == list(range(N))
leaf = torch.ones(3, requires_grad=True)
rows = [torch.ones(1, requires_grad=True) for _ in range(N)]
dist.all_gather(rows, ones())
assert [t.item() for t in rows] == [r + 1 for r in range(N)]
assert all(t.is_leaf and t.requires_grad for t in rows)

# ---- functional collectives ----
x = ones(4)
assert funcol.all_reduce(x, "sum", G).tolist() == [TOTAL] * 4 and x.tolist() == [R + 1] * 4
assert funcol.all_reduce(x, "avg", G).tolist() == [TOTAL / N] * 4
assert funcol.broadcast(x, 1, G).tolist() == [2.0] * 4
assert funcol.all_gather_tensor(ones(), 0, G).tolist() == [r + 1 for r in range(N)]
assert funcol.reduce_scatter_tensor(ones(N), "sum", 0, G).tolist() == [TOTAL]
assert funcol.all_to_all_single(ones(N), None, None, G).tolist() == [r + 1 for r in range(N)]
many = funcol.all_reduce_coalesced([ones(1), ones(2)], "max", G)
assert [t.tolist() for t in many] == [[N], [N] * 2]
many = funcol.all_gather_into_tensor_coalesced([ones(1), ones(2)], G)
assert many[1].tolist() == [r + 1 for r in range(N) for _ in range(2)]

# ---- brackets ----
for device in (None, CPU):
    for asynchronous in (False, True):
        x, y = ones(3), ones(1000)
        with _coalescing_manager(G, device, async_ops=asynchronous) as manager:
            dist.all_reduce(x); dist.all_reduce(y)
        if asynchronous: manager.wait()
        assert (x == TOTAL).all() and (y == TOTAL).all()
        GATHER = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        outs = [torch.empty(N), torch.empty(2 * N)]
        with _coalescing_manager(G, device, async_ops=asynchronous) as manager:
            GATHER(outs[0], ones(1)); GATHER(outs[1], ones(2))
        if asynchronous: manager.wait()
        assert outs[0].tolist() == [r + 1 for r in range(N)] and outs[1][-1] == N
        SCATTER = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
        outs = [torch.empty(1), torch.empty(2)]
        with _coalescing_manager(G, device, async_ops=asynchronous) as manager:
            SCATTER(outs[0], ones(N)); SCATTER(outs[1], ones(2 * N))
        if asynchronous: manager.wait()
        assert [t.tolist() for t in outs] == [[TOTAL], [TOTAL] * 2]
    with _coalescing_manager(G, device): pass
x, y, got = ones(), torch.full((2,), float(R)), torch.empty(5)
with _coalescing_manager(G, CPU, async_ops=True) as manager:
    dist.broadcast(y, 1)
    dist.isend(torch.full((5,), float(R)), (R + 1) % N)
    dist.irecv(got, (R - 1) % N)
manager.wait()
assert y.tolist() == [1, 1] and got.tolist() == [(R - 1) % N] * 5

# ---- DDP, and a group, under DETAIL ----
pair = dist.new_group([0, 1])
torch.manual_seed(0)
model = DDP(torch.nn.Linear(3, 2))
before = model.module.weight.detach().clone()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(2):
    optimizer.zero_grad()
    model(torch.full((4, 3), R + 1.0)).sum().backward()
    assert (model.module.weight.grad == 4 * TOTAL / N).all()
    optimizer.step()
assert torch.allclose(model.module.weight, before - 4 * TOTAL / N)
if R < 2:
    x = ones(); dist.all_reduce(x, group=pair); assert x.item() == 3
dist.barrier()
dist.destroy_process_group()
assert not made
print("through")
""",
        "nna",
        env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "TORCH_CPP_LOG_LEVEL": "ERROR"},
    )
    assert all("through" in out for out in outs), outs


FAILS = (
    COMMON
    + """
import torch.distributed._functional_collectives as funcol
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
wrap = torch._C._distributed_c10d._create_work_from_future
def gone(call):
    error = refused(RuntimeError, call)
    assert "rank 1" in str(error), error
    return error
def leave(key):
    '''Rank 1 dies once the others have their calls under way.'''
    G._store.wait([f"{key}/{r}" for r in range(N) if r != 1])
    os._exit(3)
def under_way(key): G._store.set(f"{key}/{R}", "")
"""
)


def survivors(start, script):
    ended = start(FAILS + script, "nna").wait(90)
    for e in ended:
        assert e.code == (3 if e.rank == 1 else 5), (e.code, e.out)
        assert "terminate called" not in e.out and "Fatal Python" not in e.out, e.out
        assert e.rank == 1 or "all caught" in e.out, e.out


def test_a_failing_group(start):
    """G.4: every way to learn of a failed call raises the reason: wait, result,
    futures and their children, torch's own wrapper, functional collectives; a
    later call refuses at once. The process ends by itself, with its own code."""
    survivors(
        start,
        """
if R == 1: leave("calls")
# Under way when rank 1 dies.
w = [dist.all_reduce(ones(), async_op=True) for _ in range(6)]
early = w[0].get_future()
child = early.then(lambda f: f.value())
kept = []
caught = early.then(lambda f: kept.append(f) or "ran")
outer = wrap(w[1].get_future())
rows = [torch.empty(1) for _ in range(N)]
gather = dist.all_gather(rows, ones(), async_op=True)
lazy = funcol.all_reduce(ones(), "sum", G)
many = funcol.all_gather_into_tensor_coalesced([ones(), ones(2)], G)
receive = dist.irecv(torch.empty(1), 1)
batch = gpubridge.batch_isend_irecv([dist.P2POp(dist.irecv, torch.empty(1), 1)])[0]
del w[4:]  # dropped, never waited for
under_way("calls")
error = gone(w[0].wait)
assert error.__cause__ is not None
for work in (w[0], w[1], gather, receive, batch):
    for wait in (work.wait, work.wait, lambda: work.wait(timedelta(0)), work.result, work.synchronize):
        gone(wait)
    assert work.is_completed() and not work.is_success() and work.exception() is not None
    gone(work.get_future().wait)
gone(child.wait)
assert caught.wait() == "ran"
gone(kept[0].value)
gone(lambda: torch.futures.wait_all([w[2].get_future(), w[3].get_future()]))
try: outer.wait()
except RuntimeError as error: assert "rank 1" in str(error)
else: assert not outer.is_success() or outer.exception() is not None, "success"
gone(lambda: lazy + 1)
gone(lambda: many[0] + 1)
# Refused at once.
start = time.monotonic()
for call in (
    lambda: dist.all_reduce(ones()),
    lambda: dist.all_reduce(ones(), async_op=True).wait(),
    lambda: dist.broadcast(ones(), 0),
    lambda: dist.all_gather_object([None] * N, R),
    lambda: funcol.all_reduce(ones(), "sum", G) + 1,
    lambda: funcol.wait_tensor(funcol.reduce_scatter_tensor(ones(N), "sum", 0, G)),
    lambda: dist.send(ones(), 1),
    lambda: dist.isend(ones(), 1).wait(),
    lambda: dist.barrier(),
    lambda: gpubridge.all_reduce(ones()),
    lambda: DDP(torch.nn.Linear(2, 2)),
): gone(call)
assert time.monotonic() - start < 10
print("all caught", flush=True)
dist.destroy_process_group()
sys.exit(5)
""",
    )


@pytest.mark.parametrize("first", [2, 3])
def test_a_failing_bucket(start, first):
    """G.4: a bucket that fails under way, then buckets that are refused, with and
    without hooks of torch and ours: backward raises; no signal 11."""
    survivors(
        start,
        """
class Slow(torch.autograd.Function):
    '''Rank 1 dies in the middle of backward, behind the first bucket.'''
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, grad):
        if dying: under_way("bucket") if R != 1 else leave("bucket")
        return grad
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(40, 40), torch.nn.Linear(40, 40)
    def forward(self, x): return self.b(Slow.apply(self.a(x)))
state = gpubridge.UnevenState(gpubridge.even_shares(N))
hooks = [None, (None, gpubridge.ddp_comm_hook), (state, gpubridge.uneven_comm_hook),
         (None, default_hooks.allreduce_hook), (None, default_hooks.fp16_compress_hook)]
models = []
for hook in hooks:
    model = DDP(Net(), bucket_cap_mb=0.001)
    if hook: model.register_comm_hook(*hook)
    models.append(model)
dying = False
def step(model):
    state.begin()
    model(torch.ones(2, 40)).sum().backward()
for model in models:
    for _ in range(2): step(model)
dying = True
for model in models[FIRST:] + models[:FIRST]:
    error = refused(Exception, lambda: step(model))
    assert "rank 1" in str(error), error
print("all caught", flush=True)
sys.exit(5)
""".replace("FIRST", str(first)),
    )


EXITS = {
    "works": """
kept = [dist.all_reduce(ones(1000), async_op=True) for _ in range(50)]
chained = kept[-1].get_future().then(lambda f: f.value())
kept[0].get_future().wait()
""",
    # Nobody answers: the receives are pending, and one has a future on a thread.
    "receives": """
work = dist.irecv(torch.empty(5), (R + 1) % N)
other = dist.irecv(torch.empty(5), None, tag=1)
future = other.get_future()
dist.all_reduce(ones())
""",
    # Handlers before and after ours, which wait for pending works.
    "handlers": """
import atexit
work = dist.irecv(torch.empty(5), (R + 1) % N)
done = dist.all_reduce(ones(), async_op=True)
def late():
    assert done.wait() and work.is_completed() and not work.is_success()
    refused(RuntimeError, work.wait)
    refused(RuntimeError, work.get_future().wait)
    gpubridge.destroy()
    refused(Exception, lambda: gpubridge.all_reduce(ones()))
    os.write(1, b"late ")
FIRST.append(late)
@atexit.register
def early():
    assert not work.is_completed()
    os.write(1, b"early ")
""",
    "threads": """
def wait(work):
    try: work.wait()
    except RuntimeError: pass
work = dist.irecv(torch.empty(5), (R + 1) % N)
thread = threading.Thread(target=wait, args=(work,), daemon=True)
thread.start()
dist.all_reduce(ones())
""",
    "destroyed": """
works = [dist.all_reduce(ones(100_000), async_op=True) for _ in range(8)]
receive = dist.irecv(torch.empty(5), (R + 1) % N)
dist.destroy_process_group()
assert all(work.wait() and work.is_success() for work in works)
refused(RuntimeError, receive.wait)
refused(Exception, lambda: dist.all_reduce(ones()))
refused(RuntimeError, lambda: gpubridge.all_reduce(ones()), "not initialized")
refused(Exception, lambda: G.allreduce([ones()]).wait())
""",
}


@pytest.mark.parametrize("case", EXITS)
def test_exits(run, case):
    """G.1, G.7, S052: a process that ends with calls pending, futures of them on a
    thread, handlers before and after ours, ends with code 0, in seconds, quietly."""
    first = """
import atexit
FIRST = []
atexit.register(lambda: [handler() for handler in FIRST])
"""
    # Handlers run in the order of imports, which a fork has behind it.
    fresh = case == "handlers"
    outs = run(first + COMMON + EXITS[case], "na", timeout=40, fresh=fresh)
    want = "early late" if case == "handlers" else ""
    assert all(out.strip() == want for out in outs), outs


def test_destroy_in_any_order(run):
    """G.7: groups destroyed in different orders, in part, twice, with one rank
    late; then the next job in the same processes; device_id on a machine without
    one is torch's refusal and leaves the process able to start."""
    run(
        COMMON
        + """
groups = [dist.new_group(ranks) for ranks in ([0, 1, 2], [0, 2], [0, 1, 2], [1, 2])]
mine = [g for g in groups if g is not dist.GroupMember.NON_GROUP_MEMBER]
for g in mine:
    x = ones(); dist.all_reduce(x, group=g)
    assert x.item() == sum(r + 1 for r in dist.get_process_group_ranks(g))
for g in mine if R % 2 else mine[::-1]: dist.destroy_process_group(g)
refused(Exception, lambda: dist.all_reduce(ones(), group=mine[0]))
refused(Exception, lambda: dist.destroy_process_group(mine[0]))
again = dist.new_group([0, 1, 2])
x = ones(); dist.all_reduce(x); assert x.item() == TOTAL
x = ones(); dist.all_reduce(x, group=again); assert x.item() == TOTAL
if R == 1: time.sleep(0.5)
G.shutdown() if R == 2 else None  # by hand, then by torch
dist.destroy_process_group()
refused(Exception, dist.destroy_process_group)
assert not gpubridge.is_initialized()
gpubridge.destroy(); gpubridge.destroy()
for _ in range(2):
    G.shutdown(); G.abort()  # of a group that is gone
again = mine = groups = None
for device in (CPU, torch.device("cuda:0"), 0):
    refused((ValueError, RuntimeError), lambda: dist.init_process_group(
        "gpubridge", device_id=device, store=dist.HashStore(), rank=0, world_size=1))
    assert not dist.is_initialized() and not gpubridge.is_initialized()
gpubridge.init()
x = ones(); dist.all_reduce(x); assert x.item() == TOTAL
gpubridge.destroy()
""",
        "nan",
    )


def test_the_import_is_missing(start):
    """S103: torch before 2.14 says that it does not know the name; later ones find
    the backend by themselves."""
    script = """
    import torch, torch.distributed as dist
    knows = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14)
    print("knows" if knows else "does not know", flush=True)
    dist.init_process_group("gpubridge")
    x = torch.ones(1); dist.all_reduce(x); assert x.item() == 1
    """
    (ended,) = start(script, "n", fresh=True).wait(60)
    if ended.out.startswith("knows"):
        assert ended.code == 0, ended.out
    else:
        assert ended.code == 1 and "gpubridge" in ended.out.splitlines()[-1], ended.out


def test_both_styles_the_other_way(run):
    """S103: init_process_group first; the job goes on after init() was refused; a
    second init_process_group too; torch's own destroy ends what init() opened."""
    run(
        COMMON
        + """
refused(RuntimeError, gpubridge.init, "already initialized")
refused((ValueError, RuntimeError), lambda: dist.init_process_group("gpubridge"), "twice")
x = ones(); gpubridge.all_reduce(x); dist.all_reduce(x); assert x.item() == N * TOTAL
model = DDP(torch.nn.Linear(2, 2))  # keeps the group
gpubridge.destroy()
assert not dist.is_initialized()
refused(RuntimeError, lambda: G.monitored_barrier(timedelta(seconds=1)), "destroyed")
gpubridge.init()
x = ones(); dist.all_reduce(x); assert x.item() == TOTAL
dist.destroy_process_group()
assert not gpubridge.is_initialized()
refused((ValueError, RuntimeError), lambda: dist.all_reduce(ones()), "not been initialized")
""",
        "na",
    )


def test_messages(run):
    """S093: neighbours exchange 64 MiB at the same time, as batches of torch's and
    ours, isend before irecv, and send before recv on both. S094: tags in the other
    order."""
    run(
        COMMON
        + """
peer = 1 - R
big = torch.full((1 << 24,), R + 1.0)
got = torch.empty(1 << 24)
def check():
    assert got[0] == got[-1] == got.mean() == peer + 1
    got.zero_()
    dist.barrier()
for step in range(10):
    for batch in (dist.batch_isend_irecv, gpubridge.batch_isend_irecv):
        operations = [dist.P2POp(dist.isend, big, peer), dist.P2POp(dist.irecv, got, peer)]
        for work in batch(operations[::-1] if R and step % 2 else operations): work.wait()
        check()
    works = [dist.isend(big, peer), dist.irecv(got, peer)]
    for work in works: work.wait()
    check()
# Blocking on both sides: done, or an error with the peer and the tag.
error = None
work = None
G.set_timeout(timedelta(seconds=5))
try:
    dist.send(big, peer, tag=4)
    dist.recv(got, peer, tag=4)
    assert got[-1] == peer + 1
    print("blocking sends pass")
except RuntimeError as raised:
    assert f"rank {peer}" in str(raised) and "tag 4" in str(raised), raised
    print("blocking sends are refused")
dist.destroy_process_group()
""",
        "na",
        timeout=150,
    )
    run(
        COMMON
        + """
if R == 0:
    dist.send(torch.tensor([1.0]), 1, tag=1); dist.send(torch.tensor([2.0]), 1, tag=2)
else:
    first, second = torch.empty(1), torch.empty(1)
    dist.recv(second, 0, tag=2); dist.recv(first, 0, tag=1)
    assert (first.item(), second.item()) == (1.0, 2.0)
# The wrong size: both sizes on the receiver, and the sender ends too.
start = time.monotonic()
if R == 0:
    work = dist.isend(torch.ones(5), 1)
    try: work.wait()
    except RuntimeError as error: print(error)
else:
    kept = torch.full((4,), -1.0)
    error = refused(RuntimeError, lambda: dist.recv(kept, 0))
    assert any(a in str(error) and b in str(error) for a, b in (("20", "16"), ("5", "4"))), error
    print(error)
assert time.monotonic() - start < 25
""",
        "na",
    )


def test_a_pipeline_over_alternating_vendors(run):
    """S095: four stages, eight micro-batches, forward and back, an all_reduce after
    each step, twenty steps."""
    run(
        COMMON
        + """
for step in range(20):
    sent = []
    for micro in range(8):
        x = torch.full((256,), 100.0 * step + micro)
        if R > 0: dist.recv(x, R - 1, tag=micro)
        if R < 3: sent.append(dist.isend(x + 1, R + 1, tag=micro))
        else: assert (x == 100.0 * step + micro + 3).all()
    for micro in range(8):
        gradient = torch.full((256,), float(micro))
        if R < 3: dist.recv(gradient, R + 1, tag=micro)
        if R > 0: sent.append(dist.isend(gradient + 1, R - 1, tag=micro))
        else: assert (gradient == micro + 3).all()
    for work in sent: work.wait()
    x = ones(); dist.all_reduce(x); assert x.item() == 10
dist.destroy_process_group()
""",
        "nana",
    )


def test_objects(run):
    """S096: objects of very different sizes, gathered, broadcast, scattered and
    sent; memory stays in proportion to them."""
    outs = run(
        COMMON
        + """
import pickle, resource
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
objects = [{}, "x" * 10, list(range(1_000_000)), None]
dist.all_gather_object([None] * N, None)
payload = len(pickle.dumps(objects[2]))
before = peak()
got = [None] * N
dist.all_gather_object(got, objects[R])
assert got == objects
grown = peak() - before
got = [objects[2], 7] if R == 2 else [None, None]
dist.broadcast_object_list(got, src=2)
assert got == [objects[2], 7]
got = [None] * N if R == 1 else None
dist.gather_object(objects[R], got, dst=1)
assert got == (objects if R == 1 else None)
got = [None]
dist.scatter_object_list(got, objects if R == 0 else None, src=0)
assert got == [objects[R]]
if R == 0: dist.send_object_list([objects[1], 3], dst=3)
if R == 3:
    got = [None, None]
    assert dist.recv_object_list(got, src=0) == 0 and got == [objects[1], 3]
refused(Exception, lambda: dist.all_gather_object([None] * N, lambda: 0), "pickle")
x = ones(); dist.all_reduce(x); assert x.item() == 10
dist.destroy_process_group()
print(json.dumps([grown, payload]))
""",
        "nnaa",
    )
    for out in outs:
        grown, payload = json.loads(out.splitlines()[-1])
        assert grown < 20 * payload, (grown, payload)


def test_tensors_that_cannot_be_sent(run):
    """S082, S083, S084 through torch: strided, sparse and lazy tensors are refused
    on all ranks, before anything is sent; the group goes on. But all_reduce sums
    sparse tensors, so that sparse gradients work, as on Gloo."""
    run(
        COMMON
        + """
GATHER = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
SCATTER = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
base = torch.arange(16.0).reshape(4, 4)
calls = G._get_sequence_number_for_group()
for view in (base.t(), base[:, 1], base[::2], torch.ones(1).expand(4, 4)):
    kept = view.clone()
    n = view.numel()
    for call in (
        lambda: dist.all_reduce(view), lambda: dist.broadcast(view, 0),
        lambda: dist.reduce(view, 0), lambda: dist.send(view, 1 - R),
        lambda: dist.isend(view, 1 - R), lambda: dist.recv(view, 1 - R),
        lambda: GATHER(torch.empty(n * N), view), lambda: GATHER(view, torch.empty(n // N)),
        lambda: SCATTER(view, torch.empty(n * N)), lambda: SCATTER(torch.empty(n // N), view),
        lambda: dist.all_gather([torch.empty_like(kept) for _ in range(N)], view),
        lambda: dist.all_gather([view, view], torch.empty_like(kept)),
        lambda: dist.all_to_all_single(view, torch.empty_like(kept)),
        lambda: dist.all_to_all([view, view], [kept, kept]),
        lambda: dist.all_reduce_coalesced([kept.clone(), view]),
        lambda: gpubridge.batch_isend_irecv([dist.P2POp(dist.isend, view, 1 - R)]),
    ):
        refused((ValueError, RuntimeError), call, "contiguous")
    assert torch.equal(view, kept)
lazy = torch.ones(3, dtype=torch.complex64).conj()
sparse = torch.eye(3).to_sparse()
for bad, word in ((lazy, "conj"), (sparse, "sparse"), (torch.eye(3).to_sparse_csr(), "sparse")):
    refused((ValueError, RuntimeError), lambda: dist.broadcast(bad, 0), word)
    refused((ValueError, RuntimeError), lambda: dist.send(bad, 1 - R), word)
refused((ValueError, RuntimeError), lambda: gpubridge.all_reduce(sparse), "sparse")
refused((TypeError, ValueError), lambda: dist.all_reduce([1.0]))
refused((ValueError, RuntimeError), lambda: dist.all_reduce(torch.ones(1, device="meta")), "meta")
assert G._get_sequence_number_for_group() == calls
dist.all_reduce(sparse); assert torch.equal(sparse.to_dense(), N * torch.eye(3))
model = DDP(torch.nn.Embedding(5, 2, sparse=True))
model(torch.tensor([R, 3])).sum().backward()
grad = model.module.weight.grad
assert grad.is_sparse and grad.to_dense()[:, 0].tolist() == [0.5, 0.5, 0, 1, 0], grad
x = torch.tensor([1 + 2j]) * (R + 1)
dist.broadcast(x, 1); assert x.item() == 2 + 4j
x = torch.full((2,), R + 1.0, dtype=torch.float64); dist.all_reduce(x); assert x.tolist() == [3, 3]
dist.destroy_process_group()
""",
        "na",
    )


def test_monitored_barrier_and_timeouts(run):
    """The group's monitored barrier names who is missing, on all that came, and
    leaves the group usable; torch's function for timeouts, and the group's own."""
    run(
        COMMON
        + """
second = timedelta(seconds=1)
G.monitored_barrier(timedelta(seconds=30), wait_all_ranks=False)
if R in (0, 2):
    missing = "Ranks 1, 3 failed to pass" if R == 0 else "Ranks 1, 3"
    refused(RuntimeError, lambda: G.monitored_barrier(second, wait_all_ranks=True), missing)
x = ones(); dist.all_reduce(x); assert x.item() == 10
if R in (1, 3):  # too late: told what happened
    refused(RuntimeError, lambda: G.monitored_barrier(second), "Ranks 1, 3")
G.monitored_barrier(timedelta(seconds=30))
if R != 3: refused(RuntimeError, lambda: G.monitored_barrier(second), "Rank 3 failed")
dist.barrier()
pair = dist.new_group([1, 3])
if R in (1, 3): pair.monitored_barrier(timedelta(seconds=30))
# Without rank 0.
if R == 1: refused(RuntimeError, lambda: pair.monitored_barrier(second), "1")
dist.barrier()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    getattr(dist, "set_timeout", dist.distributed_c10d._set_pg_timeout)(timedelta(seconds=50))
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=40), G)
G.set_timeout(timedelta(seconds=2))
start = time.monotonic()
if R != 3:
    work = dist.all_reduce(ones(), async_op=True)
    future = work.get_future()
    refused(RuntimeError, future.wait, "rank 3")
    refused(RuntimeError, work.wait, "rank 3")
    assert 1.5 < time.monotonic() - start < 20
    refused(RuntimeError, lambda: dist.all_reduce(ones()), "rank 3")
else:
    while not G._store.check(["bounded/0", "bounded/1", "bounded/2"]): time.sleep(0.05)
G._store.set(f"bounded/{R}", "")
""",
        "nnaa",
    )


def test_fork_after_init(run):
    """S061 through torch: workers of a DataLoader compute and end; a collective in
    a child is refused; the parent goes on."""
    run(
        COMMON
        + """
class Data(torch.utils.data.Dataset):
    def __len__(self): return 40
    def __getitem__(self, i): return torch.tensor([float(i)])
dist.all_reduce(ones(), async_op=True).get_future().wait()
for epoch in range(2):
    loader = torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=1)
    total = sum(batch.sum() for batch in loader)
    dist.all_reduce(total)
    assert total.item() == N * 780
child = os.fork()
if child == 0:
    try:
        refused(RuntimeError, lambda: dist.all_reduce(ones()), "fork")
        refused(RuntimeError, lambda: dist.all_reduce(ones(), async_op=True), "fork")
        refused(RuntimeError, lambda: dist.isend(ones(), 0), "fork")
        sys.exit(0)
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code == 0: raise
        print("child:", error, flush=True)
        os._exit(9)
assert os.waitpid(child, 0)[1] == 0
for _ in range(20):
    x = ones(); dist.all_reduce(x); assert x.item() == TOTAL
dist.destroy_process_group()
""",
        "na",
    )
