"""torch.distributed over backend="gpubridge": DistributedDataParallel with and
without the hook, against Gloo and against one process; failures inside DDP."""

import re

import pytest

COMMON = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
import gpubridge
torch.set_num_threads(1)
"""


def test_plain_calls(run):
    run(
        COMMON
        + """
dist.init_process_group(backend="gpubridge")
r, n = dist.get_rank(), dist.get_world_size()
assert dist.get_backend() == "gpubridge" and gpubridge.is_initialized()
assert gpubridge.get_topology().rank == r
x = torch.tensor([r + 1.0])
dist.all_reduce(x)
assert x.item() == 10
work = dist.all_reduce(x, async_op=True)
work.wait()
assert x.item() == 40 and work.is_completed()
x = torch.tensor([r + 1.0]); dist.all_reduce(x, dist.ReduceOp.AVG); assert x.item() == 2.5
x = torch.tensor([float(r)]); dist.broadcast(x, 2); assert x.item() == 2
rows = [torch.empty(2) for _ in range(n)]
dist.all_gather(rows, torch.full((2,), float(r)))
assert [t.tolist() for t in rows] == [[i, i] for i in range(4)]
out = torch.empty(n)
gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
gather(out, torch.tensor([float(r)]))
assert out.tolist() == [0, 1, 2, 3]
scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
one = torch.empty(1)
scatter(one, torch.arange(4.0) * (r + 1))
assert one.item() == r * 10
dist.barrier()
objects = [None] * n
dist.all_gather_object(objects, {"rank": r})
assert objects == [{"rank": i} for i in range(n)]
x = torch.tensor([1.0]); gpubridge.all_reduce(x); assert x.item() == 4
try:
    gpubridge.init(); raise SystemExit("two jobs")
except RuntimeError as error:
    assert "already initialized" in str(error)
dist.destroy_process_group()
assert not gpubridge.is_initialized()
""",
        "nnaa",
    )


def test_measured_at_init(run):
    """GPUBRIDGE_TUNE: through torch's own init and through ours; the same rules on
    every rank, in groups too; policies named besides are refused."""
    run(
        COMMON
        + """
dist.init_process_group(backend="gpubridge")
r, n = dist.get_rank(), dist.get_world_size()
facts = gpubridge.telemetry()
assert facts["policy"] == "auto-tuned"
rules = [None] * n
dist.all_gather_object(rules, facts["policy.rules"])
assert len(set(rules)) == 1, rules
for count in (1, 1000, 300000):
    x = torch.full((count,), r + 1.0)
    dist.all_reduce(x)
    assert x.tolist() == [10.0] * count
part = dist.new_group([0, 1])
whole = dist.new_group([3, 1, 0, 2])
if r < 2:
    x = torch.ones(5000); dist.all_reduce(x, group=part); assert x.sum() == 10000
x = torch.ones(5000); dist.all_reduce(x, group=whole); assert x.sum() == 20000
dist.destroy_process_group()

gpubridge.init(policy="auto")
assert gpubridge.telemetry()["policy.rules"]
x = torch.ones(3); gpubridge.all_reduce(x); assert x.tolist() == [4.0] * 3
gpubridge.destroy()
try:
    gpubridge.init(policy="flat"); raise SystemExit("accepted")
except ValueError as error:
    assert "GPUBRIDGE_TUNE=1" in str(error) and "flat" in str(error), error
try:
    gpubridge.init(bridge="gloo"); raise SystemExit("accepted")
except ValueError as error:
    assert 'the bridge "gloo", which is' in str(error), error
""",
        "nnaa",
        env={"GPUBRIDGE_TUNE": "1", "GPUBRIDGE_TUNE_SECONDS": "1"},
    )


# Trains with integer-valued data, so that every right gradient is exact, on
# gpubridge and on Gloo, and compares parameters bit for bit.
DDP_EXACT = (
    COMMON
    + """
dist.init_process_group(backend="gpubridge")
rank, world = dist.get_rank(), dist.get_world_size()
class Exact(torch.nn.Module):
    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(3)
        self.a = torch.nn.Parameter(torch.randint(-2, 3, (16, 8), generator=g).float())
        self.b = torch.nn.Parameter(torch.randint(-2, 3, (8, 4), generator=g).float())
        self.c = torch.nn.Parameter(torch.randint(-2, 3, (4,), generator=g).float())
        self.register_buffer("seen", torch.zeros(3, dtype=torch.int64))
    def forward(self, x):
        self.seen += 1
        return (x @ self.a @ self.b + self.c).sum()
def steps(model, optimizer):
    for step in range(4):
        g = torch.Generator().manual_seed(100 * step + rank)
        x = torch.randint(-3, 4, (8, 16), generator=g).float() * world
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()
def train(wrap):
    model = DDP(Exact(), bucket_cap_mb=0.0001)
    wrap(model)
    steps(model, torch.optim.SGD(model.parameters(), lr=0.0625))
    return [p.detach().clone() for p in model.module.parameters()]
records = []
class Keep(gpubridge.CollectiveObserver):
    def on_collective(self, record): records.append(record)
def watched(hook):
    def wrap(model):
        if hook: model.register_comm_hook(None, gpubridge.ddp_comm_hook)
        gpubridge.add_observer(keep)
    keep = Keep()
    records.clear()
    parameters = train(wrap)
    gpubridge.remove_observer(keep)
    reductions = [r for r in records if r.op == "all_reduce"]
    wanted = "avg" if hook else "sum"
    assert reductions and all(r.reduce_op == wanted for r in reductions), records
    return parameters
mine = [watched(False), watched(True)]
# The reference: the same over Gloo, in the same processes.
dist.destroy_process_group()
dist.init_process_group("gloo", init_method="file://" + FILE, rank=rank, world_size=world)
want = train(lambda model: None)
for parameters in mine:
    for a, b in zip(parameters, want):
        assert torch.equal(a, b), (a - b).abs().max()
dist.destroy_process_group()
print("equal")
"""
)


@pytest.mark.parametrize("vendors", ["nnaa", "naaa", "nana", "na"])
def test_ddp_equals_gloo_bit_for_bit(run, vendors, tmp_path):
    script = DDP_EXACT.replace("FILE", repr(str(tmp_path / "meet")))
    outs = run(script, vendors, timeout=120)
    assert all(out.split()[-1] == "equal" for out in outs)


def test_weighted_loss(run):
    """S049: batches of 3 and 1; the loss scaled by n_local * 2 / 4, with and
    without the hook. uneven_comm_hook does it by itself, for both kinds of loss."""
    run(
        COMMON
        + """
dist.init_process_group(backend="gpubridge")
batch = torch.tensor([[1.0], [2.0], [3.0]] if dist.get_rank() == 0 else [[7.0]])
def gradient(hook, loss_of):
    layer = torch.nn.Linear(1, 1, bias=False)
    model = DDP(layer)
    if hook: model.register_comm_hook(*hook)
    loss_of(model(batch)).backward()
    return layer.weight.grad.item()
plain = (None, gpubridge.ddp_comm_hook)
for hook in (None, plain):
    assert gradient(hook, lambda y: y.mean() * len(batch) * 2 / 4) == 3.25
    assert gradient(hook, lambda y: y.mean()) == 4.5
shares = gpubridge.Shares.from_rates([3, 1], 4)
for loss in ("sum", "mean"):
    state = gpubridge.UnevenState(shares, loss=loss)
    state.begin()
    hook = (state, gpubridge.uneven_comm_hook)
    assert gradient(hook, lambda y: getattr(y, loss)()) == 3.25
dist.destroy_process_group()
""",
        "na",
    )


@pytest.mark.parametrize("hook", [False, True])
def test_no_sync(run, hook):
    """S098: four micro-steps, one reduction."""
    line = "model.register_comm_hook(None, gpubridge.ddp_comm_hook)" if hook else ""
    run(
        COMMON
        + f"""
dist.init_process_group(backend="gpubridge")
layer = torch.nn.Linear(1, 1, bias=False)
model = DDP(layer)
{line}
records = []
class Keep(gpubridge.CollectiveObserver):
    def on_collective(self, record): records.append(record)
gpubridge.add_observer(Keep())
x = torch.tensor([[dist.get_rank() + 1.0]])
for step in range(4):
    if step < 3:
        with model.no_sync(): model(x).sum().backward()
    else:
        model(x).sum().backward()
assert layer.weight.grad.item() == 10.0
assert len([r for r in records if r.op == "all_reduce"]) == 1
dist.destroy_process_group()
""",
        "nnaa",
    )


def test_ranks_built_different_models(start):
    """S104: an error on both, no hang, no training."""
    script = (
        COMMON
        + """
from datetime import timedelta
dist.init_process_group(backend="gpubridge", timeout=timedelta(seconds=15))
layers = [torch.nn.Linear(4, 4) for _ in range(1 + dist.get_rank())]
DDP(torch.nn.Sequential(*layers))
"""
    )
    for e in start(script, "na").wait(40):
        assert e.code not in (0, -6, -11), e.out
        assert "Error" in e.out


@pytest.mark.parametrize("hook", [False, True])
def test_a_death_comes_out_of_backward(start, hook):
    """A failing bucket raises in backward, never crashes (trap: a future that
    holds an exception)."""
    line = "model.register_comm_hook(None, gpubridge.ddp_comm_hook)" if hook else ""
    script = (
        COMMON
        + f"""
import os, signal
dist.init_process_group(backend="gpubridge")
model = DDP(torch.nn.Linear(64, 64))
{line}
for step in range(10):
    if step == 5 and dist.get_rank() == 1: os.kill(os.getpid(), signal.SIGKILL)
    model(torch.ones(4, 64)).sum().backward()
"""
    )
    for e in start(script, "nna").wait(60):
        if e.rank == 1:
            continue
        assert e.code not in (0, -6, -11), e.out
        assert re.search(r"rank 1 .*gone", e.out), e.out
        assert "backward" in e.out


def test_unknown_backend(start):
    """S103: torch's own error."""
    script = COMMON + 'dist.init_process_group("gpu_bridge")'
    (ended,) = start(script, "n").wait(60)
    assert ended.code and "gpu_bridge" in ended.out


def test_both_styles(start):
    """S103: one job; the first one still works after the second was refused."""
    script = (
        COMMON
        + """
gpubridge.init()
try: dist.init_process_group("gpubridge"); raise SystemExit("twice")
except (ValueError, RuntimeError) as error: print(error)
x = torch.ones(1); gpubridge.all_reduce(x); assert x.item() == 2
gpubridge.destroy()
dist.init_process_group("gloo", init_method="file://" + __file__ + ".meet",
                        rank=int(__import__("os").environ["RANK"]), world_size=2)
try: gpubridge.init(); raise SystemExit("both")
except RuntimeError as error: assert "torch.distributed" in str(error)
dist.destroy_process_group()
"""
    )
    for e in start(script, "na").wait(60):
        assert e.code == 0, e.out


def test_old_and_new_method_names():
    """torch 2.8 calls the old names, 2.13 the new ones: both are one method."""
    from gpubridge import GpubridgeProcessGroup as Group

    assert Group._allgather_base is Group.all_gather_single
    assert Group._reduce_scatter_base is Group.reduce_scatter_single
