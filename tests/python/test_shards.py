"""What torch builds on groups and sharding, over backend="gpubridge": FSDP2 and
FSDP1, HSDP, DTensor, functional collectives, tensor parallel, meshes, groups.

Most checks run over gpubridge and then over Gloo in the same processes, on whole
numbers that no step rounds, so that both must agree bit for bit: see beside.py.
"""

from pathlib import Path

import pytest

# Layouts as letters; t is an island of a third kind.
THIRD = {"GPUBRIDGE_VENDOR": "nvidia", "GPUBRIDGE_ISLAND": "third"}


@pytest.fixture
def beside(run, tmp_path):
    """beside(script, "nnat"): runs it with beside.py's names at hand."""

    def go(script, layout, **kwargs):
        env = {
            "PYTHONPATH": str(Path(__file__).parent),
            "MEET": str(tmp_path / "meet"),
        }
        third = {r: THIRD for r, letter in enumerate(layout) if letter == "t"}
        return run(
            "from beside import *\n" + script,
            layout.replace("t", "n"),
            env=env,
            per_rank=third,
            timeout=150,
            **kwargs,
        )

    return go


FSDP = """
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecisionPolicy, ShardingStrategy,
    fully_shard,
)

records = []
class Keep(gpubridge.CollectiveObserver):
    def on_collective(self, record): records.append(record)

def ours(): return dist.get_backend() == "gpubridge"

def wrap(model, factor=None, **options):
    for module in (*model.layers, model):
        fully_shard(module, **options)
        if factor: module.set_gradient_divide_factor(factor)
    return model

def full(model):
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))

def train(model, steps=3, rate=2.0**-4, clip=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    norms = []
    for step in range(steps):
        optimizer.zero_grad()
        model(batch(step)).sum().backward()
        if clip:
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip))
        optimizer.step()
    return norms

def trained(model, **options):
    train(model, **options)
    whole = copied(full(model))
    for name, value in model.state_dict().items():
        whole["part of " + name] = value.to_local().detach().clone()
    return whole

def alone():
    # The same in one process: all ranks' batches, gradients averaged.
    model = Chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-4)
    for step in range(3):
        optimizer.zero_grad()
        for rank in range(WORLD):
            (model(batch(step, rank)).sum() / WORLD).backward()
        optimizer.step()
    return model.state_dict()

def uneven():
    "S099: rows 5, 3 and 1 over 4 ranks; equal to one process."
    model = wrap(Chain())
    rows = [len(layer.weight.to_local()) for layer in model.layers]
    assert rows == [[2, 1, 1], [2, 1, 0], [1, 1, 0], [0, 0, 0]][RANK], rows
    result = trained(model)
    for name, value in alone().items():
        assert (result[name] - value).abs().max() <= 1e-12, name
    return result

def kept():
    return trained(wrap(Chain(), reshard_after_forward=False))

def off_load():
    model = wrap(Chain(), offload_policy=CPUOffloadPolicy(pin_memory=False))
    return trained(model)

def divide_factor():
    # Gloo has no PREMUL_SUM: dividing by 8 instead of 4 is half the rate.
    if ours(): return trained(wrap(Chain(), factor=2.0 * WORLD))
    return trained(wrap(Chain()), rate=2.0**-5)

def clipped():
    model = wrap(Chain())
    norms = train(model, clip=8.0)
    # A norm is a square root: the order of its sum shows.
    result = {f"norm {i}": close(n.full_tensor()) for i, n in enumerate(norms)}
    return result | {n: close(p) for n, p in full(model).items()}

def half_gradients():
    "S100: computed in bfloat16, reduced in float32."
    result = {}
    for reduce in (torch.float32, torch.bfloat16):
        model = nn.Linear(1, 1, bias=False)
        fully_shard(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, reduce))
        keep = Keep()
        if ours():
            records.clear(); gpubridge.add_observer(keep)
        model(torch.tensor([[256.0 if RANK == 0 else 1.0]])).sum().backward()
        if ours():
            gpubridge.remove_observer(keep)
            types = [r.dtype for r in records if r.op == "reduce_scatter_tensor"]
            assert types == [reduce], records
        gradient = model.weight.grad.full_tensor()
        exact = reduce is torch.float32
        assert gradient.item() in ((64.75,) if exact else (64.5, 65.0)), gradient
        if exact: result["gradient"] = gradient.clone()
    return result

rows = None
def hsdp():
    global rows
    if ours():
        mesh = gpubridge.hsdp_mesh()
        rows = mesh.mesh
        layout = gpubridge.get_topology().layout
        for row in rows.tolist():
            assert len({layout.island_of(rank).leader for rank in row}) == 1
        text = gpubridge.explain_mesh(mesh)
        if RANK == 0: print(rows.tolist(), text, sep="\\n")
    else:
        mesh = DeviceMesh("cpu", rows, mesh_dim_names=("replicate", "shard"))
    return trained(wrap(Chain(), mesh=mesh))

def fsdp1():
    result = {}
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP):
        model = FullyShardedDataParallel(
            Chain(), sharding_strategy=strategy, use_orig_params=True,
            device_id=torch.device("cpu"),
        )
        train(model)
        with FullyShardedDataParallel.summon_full_params(model):
            for name, value in copied(model.state_dict()).items():
                result[f"{strategy} {name}"] = value
    return result
"""


@pytest.mark.parametrize(
    "layout, rows, lines",
    [
        (
            "nana",
            "[[0, 2], [1, 3]]",
            "replicate: 2 groups of 2, all cross the bridge: one all_reduce of the "
            "gradient shards a step\n"
            "shard:     2 groups of 2, each inside one island",
        ),
        (
            "naaa",
            "[[0], [1], [2], [3]]",
            "replicate: 1 group of 4, crosses the bridge: one all_reduce of the "
            "gradient shards a step\n"
            "shard:     4 groups of 1, nothing to send",
        ),
    ],
)
def test_fsdp(beside, layout, rows, lines):
    """S099, S100, HSDP and the rest of FSDP2 and FSDP1: parameters after three
    steps equal Gloo's bit for bit, and one process's."""
    outs = beside(
        FSDP
        + """
beside_gloo(
    uneven, kept, off_load, divide_factor, clipped, half_gradients, hsdp, fsdp1
)
""",
        layout,
    )
    assert f"{rows}\n{lines}\n" in outs[0]


DTENSOR = """
import itertools
import warnings
import torch.distributed._functional_collectives as fc
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor, Partial, Replicate, Shard, distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module,
)
warnings.simplefilter("ignore", FutureWarning)  # old names, for old torch

def placements():
    mesh = init_device_mesh("cpu", (WORLD,))
    kinds = (Shard(0), Shard(1), Replicate())
    result = {}
    for shape in ((8, 12), (7, 5), (3, 4), (0, 3)):
        x = ints(*shape, seed=1)
        for kind in kinds:
            there = distribute_tensor(x, mesh, [kind])
            assert torch.equal(there.full_tensor(), x)
            result[f"{shape} {kind}"] = there.to_local()
            for other in kinds:
                moved = there.redistribute(mesh, [other])
                result[f"{shape} {kind} to {other}"] = moved.to_local()
        for op, kind in itertools.product(
            ("sum", "avg", "min", "max", "product"), (Shard(0), Replicate())
        ):
            # Nothing is 0, so that a product says something; avg of multiples.
            local = ints(*shape, seed=RANK, low=1) * WORLD
            partial = DTensor.from_local(local, mesh, [Partial(op)])
            result[f"{shape} {op} {kind}"] = partial.redistribute(mesh, [kind]).to_local()
    for dtype in (torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        there = distribute_tensor(ints(6, 3, dtype=dtype), mesh, [Shard(0)])
        result[f"{dtype}"] = there.full_tensor()
    return copied(result)

def arithmetic():
    mesh = init_device_mesh("cpu", (WORLD,))
    a = distribute_tensor(ints(8, 6, seed=3), mesh, [Shard(0)])
    b = distribute_tensor(ints(6, 4, seed=4), mesh, [Shard(0)])
    return {
        "matmul": (a @ b).full_tensor(),
        "sum": a.sum().full_tensor(),
        "max": a.abs().max().full_tensor(),
        "row sums": (a @ b).sum(1).full_tensor(),
    }

def functional():
    world = dist.group.WORLD
    x = ints(4 * WORLD, 3, seed=RANK)
    result = {}
    for op in ("sum", "avg", "max", "min", "product"):
        result[op] = fc.all_reduce(x, op, world)
    for op in ("sum", "avg", "max", "min"):
        result["reduce_scatter " + op] = fc.reduce_scatter_tensor(x, op, 0, world)
    y = ints(3, 2 * WORLD, seed=RANK)
    result["reduce_scatter 1"] = fc.reduce_scatter_tensor(y, "sum", 1, world)
    result["all_gather 0"] = fc.all_gather_tensor(x, 0, world)
    result["all_gather 1"] = fc.all_gather_tensor(x, 1, world)
    result["all_to_all"] = fc.all_to_all_single(x, None, None, world)
    counts = [(RANK + rank) % 3 for rank in range(WORLD)]  # to = from
    z = ints(sum(counts), 2, seed=RANK)
    result["all_to_all uneven"] = fc.all_to_all_single(z, counts, counts, world)
    result["broadcast"] = fc.broadcast(x, 1, world)
    many = [ints(3, seed=RANK), ints(5, 2, seed=RANK + 9)]
    large = [ints(3 * WORLD, seed=RANK), ints(2 * WORLD, 2, seed=RANK + 9)]
    lists = {
        "all_reduce": fc.all_reduce_coalesced(many, "sum", world),
        "all_gather": fc.all_gather_into_tensor_coalesced(many, world),
        "reduce_scatter": fc.reduce_scatter_tensor_coalesced(large, "sum", [0, 0], world),
    }
    for name, tensors in lists.items():
        for i, tensor in enumerate(tensors): result[f"{name} coalesced {i}"] = tensor
    return copied({name: tensor + 0 for name, tensor in result.items()})

def gradients():
    world = dist.group.WORLD
    result = {}
    for name, call in {
        "all_gather": lambda t: fc.all_gather_tensor_autograd(t, 0, world),
        "reduce_scatter": lambda t: fc.reduce_scatter_tensor_autograd(t, "sum", 0, world),
        "all_to_all": lambda t: fc.all_to_all_single_autograd(
            t, [4] * WORLD, [4] * WORLD, world
        ),
    }.items():
        x = ints(4 * WORLD, 3, seed=RANK).requires_grad_()
        y = call(x)
        (y * ints(*y.shape, seed=RANK + 5)).sum().backward()
        result[name] = x.grad
    return result

def tensor_parallel():
    mesh = init_device_mesh("cpu", (WORLD,))
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)).double()
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.copy_(ints(*parameter.shape, seed=i))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-4)
    result = {}
    for step in range(3):
        optimizer.zero_grad()
        y = model(batch(step, rank=0, columns=6))
        y.sum().backward()
        optimizer.step()
        result[f"output {step}"] = y.detach().clone()
    for name, parameter in model.named_parameters():
        result[name] = parameter.full_tensor().detach().clone()
    return result

def parallel_loss():
    mesh = init_device_mesh("cpu", (WORLD,))
    logits, target = ints(6, 8, seed=2, dtype=torch.float64), torch.arange(6)
    parts = distribute_tensor(logits, mesh, [Shard(1)]).requires_grad_()
    with loss_parallel():
        loss = nn.functional.cross_entropy(parts, target)
        loss.backward()
    logits.requires_grad_()
    want = nn.functional.cross_entropy(logits, target)
    want.backward()
    loss = loss.full_tensor().detach()
    assert torch.allclose(loss, want.detach(), atol=1e-12)
    assert torch.allclose(parts.grad.full_tensor(), logits.grad, atol=1e-12)
    return {"loss": close(loss)}

def meshes():
    result = {}
    x = ints(8, 6, seed=1)
    two = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    there = distribute_tensor(x, two, [Shard(0), Shard(1)])
    result["2-D"] = there.to_local()
    result["2-D turned"] = there.redistribute(two, [Shard(1), Shard(0)]).to_local()
    result["2-D full"] = there.full_tensor()
    for name in ("outer", "inner"):
        one = two[name]
        result[name] = torch.tensor([RANK + 1.0])
        dist.all_reduce(result[name], group=one.get_group())
        result[f"{name} tensor"] = distribute_tensor(x, one, [Shard(0)]).full_tensor()
    result["flat"] = torch.tensor([RANK + 1.0])
    dist.all_reduce(result["flat"], group=two._flatten("flat").get_group())
    three = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("a", "b", "c"))
    there = distribute_tensor(x, three, [Shard(0), Replicate(), Shard(1)])
    result["3-D"] = there.full_tensor()
    there = distribute_tensor(x, three["a", "c"], [Shard(0), Shard(1)])
    result["slice of 3-D"] = there.full_tensor()
    assert all((result[n] == x).all() for n in ("2-D full", "3-D", "slice of 3-D"))
    assert result["flat"] == 10
    return copied(result)

beside_gloo(
    placements, arithmetic, functional, gradients, tensor_parallel, parallel_loss, meshes
)
"""


@pytest.mark.parametrize("layout", ["nnaa", "nnat"])
def test_tensors_and_meshes(beside, layout):
    """DTensor's placements and reductions, functional collectives, tensor
    parallel and meshes of two and three dimensions, in two and three islands."""
    beside(DTENSOR, layout)


def test_groups(beside):
    """S091, S092: groups of members only, of nobody twice, overlapping, nested;
    ranks that sources are named by; calls of ranks outside."""
    outs = beside(
        """
import warnings
from datetime import timedelta
dist.init_process_group("gpubridge")

def total(group):
    x = torch.tensor([RANK + 1.0])
    dist.all_reduce(x, group=group)
    return x.item()

def refused(kind, words, call, *args, **kwargs):
    try: call(*args, **kwargs)
    except kind as error: assert all(w in str(error) for w in words), error
    else: raise SystemExit(f"{call} was not refused")

# A ring of pairs, whose roots run ahead: messages of two groups are under way at
# once while the links come up.
for pair in (ring := {p: dist.new_group(p) for p in ((0, 2), (1, 3), (0, 1), (2, 3))}):
    assert (ring[pair] is dist.GroupMember.NON_GROUP_MEMBER) == (RANK not in pair)
for step in range(10):
    for pair, group in ring.items():
        if RANK not in pair: continue
        x, root = torch.empty(100), pair[0]
        parts = [torch.full((100,), 1.0 * step + r) for r in pair]
        dist.scatter(x, parts if RANK == root else None, src=root, group=group)
        assert (x == step + RANK).all()

# S091: every rank calls new_group.
pair = dist.new_group([0, 1])
if RANK < 2:
    assert total(pair) == 3
else:
    assert pair is dist.GroupMember.NON_GROUP_MEMBER

# Rank 1 is in more groups than rank 2 by now, so torch's own names for this
# group differ between them; rank 0 and 3 know nothing of it.
if RANK in (1, 2):
    local = dist.new_group([2, 1], use_local_synchronization=True)
    assert dist.get_process_group_ranks(local) == [1, 2] and total(local) == 5

# S092: sources are named by their rank in the world.
odd = dist.new_group([1, 3])
x = torch.tensor([RANK + 1.0])
if RANK in (1, 3):
    dist.broadcast(x, 3, group=odd)
    assert x.item() == 4
    refused(ValueError, ["rank 0", "ranks [1, 3]"], dist.broadcast, x, 0, group=odd)
    assert x.item() == 4 and total(odd) == 6
else:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        dist.broadcast(x, 3, group=odd)
    assert x.item() == RANK + 1 and "does not belong" in str(seen[0].message)

# Groups that share ranks, their calls in flight together.
pairs = [dist.new_group([a, b]) for a in range(WORLD) for b in range(a + 1, WORLD)]
calls = []
for group in pairs:
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        x = torch.tensor([RANK + 1.0])
        work = dist.all_reduce(x, group=group, async_op=True)
        calls.append((work, x, dist.get_process_group_ranks(group)))
assert len(calls) == 3
for work, x, ranks in reversed(calls):
    work.wait()
    assert x.item() == sum(ranks) + 2

# The same ranks twice: two groups, not mixed up; one goes, the other stays.
first, second = dist.new_group([0, 2, 3]), dist.new_group([0, 2, 3])
if RANK != 1:
    x, y = torch.tensor([1.0]), torch.tensor([10.0])
    works = [dist.all_reduce(x, group=first, async_op=True),
             dist.all_reduce(y, group=second, async_op=True)]
    for work in works: work.wait()
    assert (x.item(), y.item()) == (3, 30)
    dist.destroy_process_group(first)
    assert total(second) == 8

# Groups inside groups, and objects by a rank's place in the group.
half, _ = dist.new_subgroups(2)
assert total(half) == (3 if RANK < 2 else 7)
cross, _ = dist.new_subgroups_by_enumeration([[3, 0], [2, 1]])
names = [None] * 2
dist.all_gather_object(names, f"rank {RANK}", group=cross)
assert names == (["rank 0", "rank 3"] if RANK in (0, 3) else ["rank 1", "rank 2"])
dist.barrier(group=half)

# What this backend has not: torch's own sentence.
refused(RuntimeError, ["not safe to split"], dist.split_group, None, [[0, 2], [1, 3]])

# S091: only the members call new_group. It works, and later groups too, though
# torch has numbered them differently on the others.
if RANK < 2:
    alone = dist.new_group([0, 1], timeout=timedelta(seconds=60))
    assert total(alone) == 3
after = dist.new_group([0, 2], timeout=timedelta(seconds=60))
if RANK in (0, 2): assert total(after) == 4
assert total(None) == 10
dist.destroy_process_group()
print("done")
""",
        "nana",
    )
    assert all(out.endswith("done\n") for out in outs)


def test_meshes_told(beside):
    """explain_mesh of any mesh: sliced, spanning, unnamed, of other ranks; its
    and hsdp_mesh's errors; islands of unequal size."""
    outs = beside(
        """
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

def refused(kind, words, call, *args):
    try: call(*args)
    except kind as error: assert words in str(error), error
    else: raise SystemExit(f"{call} was not refused")

refused(RuntimeError, "not initialized", gpubridge.hsdp_mesh)
refused(RuntimeError, "not initialized", gpubridge.explain_mesh, None)
dist.init_process_group("gpubridge")
refused(ValueError, "two names", gpubridge.hsdp_mesh, "cpu", ("a",))
refused(ValueError, "two names", gpubridge.hsdp_mesh, "cpu", ("a", "a"))
mesh = gpubridge.hsdp_mesh(dim_names=("dp_replicate", "dp_shard"))
assert mesh.mesh.tolist() == [[0], [1], [2]]
line = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("shard",))
part = DeviceMesh("cpu", [0, 2])  # without names, without rank 1
if RANK == 0:
    for mesh in (mesh, mesh["dp_replicate"], line, part):
        print(gpubridge.explain_mesh(mesh))
class Foreign:
    mesh, ndim, mesh_dim_names = torch.tensor([2, 3]), 1, None
refused(ValueError, "ranks [3]", gpubridge.explain_mesh, Foreign)
dist.destroy_process_group()

# A job of two of the default group's ranks.
meet_over_gloo()
group = dist.new_group([1, 2], backend="gpubridge")
if RANK:
    refused(RuntimeError, "default group", gpubridge.hsdp_mesh)
    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("tp",))
    print(gpubridge.explain_mesh(mesh))
dist.barrier()
dist.destroy_process_group()
""",
        "nna",
    )
    assert outs[0].splitlines() == [
        "dp_replicate: 1 group of 3, crosses the bridge: one all_reduce of the "
        "gradient shards a step",
        "dp_shard:     3 groups of 1, nothing to send",
        "dp_replicate: 1 group of 3, crosses the bridge: one all_reduce of the "
        "gradient shards a step",
        "shard: 1 group of 3, crosses the bridge: every all_gather of parameters "
        "and reduce_scatter of gradients",
        "dimension 0: 1 group of 2, crosses the bridge: every call on it",
    ]
    assert outs[1] == outs[2] == "tp: 1 group of 2, crosses the bridge: every call on it\n"
