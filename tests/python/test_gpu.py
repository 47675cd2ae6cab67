"""Jobs on GPUs through the Python package, where there is neither a GPU nor a torch
for one.

What runs is ours and real: library, extension, package, torch.distributed's Python
side. The drivers, NCCL and RCCL are the fakes of tests/fakes, which end a rank that
uses data before they are ready or touches device memory from the host.
test_raw_addresses goes through the extension alone, with memory and streams of the
fake driver. The others put a stand-in for torch.cuda and for CUDA tensors on top
(gpu_standin.py). So nothing here shows that torch's own CUDA code works with it:
futures with devices, the caching allocator and autograd have run nowhere.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT

FAKES = Path(os.environ.get("GPUBRIDGE_TEST_FAKES", ROOT / "build/lib/fakes"))

pytestmark = pytest.mark.skipif(
    not (FAKES / "cuda/libcuda.so.1").exists(),
    reason="the fakes are not built: cmake --preset dev && cmake --build build",
)

COMMON = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch, torch.distributed as dist
import gpubridge
from gpubridge import _core
import gpu_standin as standin
from gpu_standin import gpu
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
vendor = os.environ["TEST_VENDOR"]
def refused(kind, call, *words):
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"not refused: {{words}}")
"""


def on_fakes(vendors, **more):
    """Keyword arguments of a job on the fakes, one GPU each."""
    names = {"n": "nvidia", "a": "amd"}
    return {
        "env": {
            "GPUBRIDGE_VENDOR": None,
            "GPUBRIDGE_CUDA_LIB": str(FAKES / "cuda/libcuda.so.1"),
            "GPUBRIDGE_NCCL_LIB": str(FAKES / "cuda/libnccl.so.2"),
            "GPUBRIDGE_RCCL_LIB": str(FAKES / "hip/librccl.so.1"),
            "GPUBRIDGE_NVRTC_LIB": str(FAKES / "cuda/libnvrtc.so.13"),
            "GPUBRIDGE_HIPRTC_LIB": str(FAKES / "hip/libhiprtc.so.6"),
            "GPUBRIDGE_CACHE_DIR": str(FAKES / "cache"),
            "LOCAL_RANK": "0",
            **more,
        },
        "per_rank": {
            rank: {
                "FAKE_GPU_UUID": f"GPU-00000000-0000-0000-0000-{rank * 16:012d}",
                "TEST_VENDOR": names[letter],
            }
            for rank, letter in enumerate(vendors)
        },
    }


def test_raw_addresses(run):
    """The extension alone, on addresses and streams: calls are ordered on the
    stream that was named, a wait orders another one and does not block the host,
    handles outlive their job."""
    run(
        COMMON
        + """
standin.driver = driver = standin.Hip() if vendor == "amd" else standin.Cuda()
job = _core.Job(None, -1, -1, 20000, None, "auto", vendor, [], [], None, None, None, 0)
group = job.world()
info = job.info()
assert info["run_kind"] == "gpu-mixed" and not info["simulated"], info
first, second = driver.stream(), driver.stream()
n = 5000
a, b = driver.memory(n * 4), driver.memory(n * 4)
one = torch.full((n,), rank + 1.0); back = torch.empty(n)
def put(address, stream): driver.copy(address, one.data_ptr(), n * 4, "in", stream)
def look(address, stream):
    driver.copy(back.data_ptr(), address, n * 4, "out", stream)
    driver.synchronize(stream)
    return back.unique().tolist()
put(a, first)
_core.use_stream(first)
assert group.all_reduce(a, n, 6, 0, 0) is None
assert look(a, first) == [10.0]
put(b, second)
_core.use_stream(second)
work = group.all_reduce(b, n, 6, 0, 1)
_core.use_stream(first)
work.wait(0)
assert look(b, first) == [10.0] and work.test() is True
kept = [group.all_reduce(b, n, 6, 0, 1) for _ in range(3)]
_core.use_stream(second)
kept[-1].wait(0)
driver.synchronize(second)
job.close()
# Handles that outlive the job: given back by then, and still right.
for work in kept:
    assert work.test() is True and work.wait(0) is None and work.seq() > 0
try:
    _core.use_stream("x"); raise SystemExit("accepted")
except TypeError:
    pass
""",
        "nnaa",
        **on_fakes("nnaa"),
    )


EVERYTHING = """
standin.pretend(vendor)
"""


def test_calls(run):
    """Every collective of torch.distributed on stand-in tensors, sync and async,
    from several streams; the topology; tensors of another GPU and of the CPU."""
    run(
        COMMON
        + EVERYTHING
        + """
dist.init_process_group(backend="gpubridge")
topology = gpubridge.get_topology()
assert str(topology.device) == "cuda:0" and standin.set_devices == [0]
assert topology.run_kind == "gpu-mixed" and not topology.simulated
group = dist.distributed_c10d._get_default_group()
assert [d.type for d in group._device_types] == ["cpu", "cuda"]

# Sync calls: the result is in the order of the current stream.
x = gpu([rank + 1.0] * 1000)
dist.all_reduce(x)
assert set(x.tolist()) == {10.0}
x = gpu([float(rank)]); dist.broadcast(x, 2); assert x.tolist() == [2]
x = gpu([rank + 1] * 3, torch.int64)
dist.all_reduce(x, dist.ReduceOp.MAX); assert x.tolist() == [4] * 3
x = gpu([rank + 1.0]); dist.all_reduce(x, dist.ReduceOp.AVG); assert x.tolist() == [2.5]
x = gpu([rank + 1.0]); dist.reduce(x, 3); assert x.tolist() == [10.0 if rank == 3 else rank + 1.0]
gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
out = gpu([0.0] * world); gather(out, gpu([float(rank)])); assert out.tolist() == [0, 1, 2, 3]
scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
one = gpu([0.0]); scatter(one, gpu([0.0, 1, 2, 3])); assert one.tolist() == [4.0 * rank]
out = gpu([0.0] * world); dist.all_to_all_single(out, gpu([rank * 10.0 + i for i in range(world)]))
assert out.tolist() == [i * 10 + rank for i in range(world)]
dist.barrier()

# Lists that do not lie side by side are packed on the stream.
rows = [gpu([0.0] * 2) for _ in range(world)]
dist.all_gather(rows, gpu([float(rank)] * 2))
assert [t.tolist() for t in rows] == [[i, i] for i in range(world)]
sizes = [gpu([0.0] * (i + 1)) for i in range(world)]
dist.all_gather(sizes, gpu([float(rank)] * (rank + 1)))
assert [t.tolist() for t in sizes] == [[float(i)] * (i + 1) for i in range(world)]

# Async: from one stream, waited for on another, with what comes after it.
side = standin.Stream()
x = gpu([rank + 1.0] * 3000)
work = dist.all_reduce(x, async_op=True)
with torch.cuda.stream(side):
    assert work.wait() is True
    assert set(x.tolist()) == {10.0}
assert work.is_completed() and work.is_success() and work.exception() is None
rows = [gpu([0.0] * 2) for _ in range(world)]
work = dist.all_gather(rows, gpu([float(rank)] * 2), async_op=True)
recorded = standin.GpuTensor.recorded
with torch.cuda.stream(side):
    work.wait()
assert standin.GpuTensor.recorded == recorded + 1  # what is unpacked there
work.wait()  # another stream: ordered after the unpacking
assert [t.tolist() for t in rows] == [[i, i] for i in range(world)]
many = [gpu([rank + 1.0] * n) for n in (1, 70, 3)]
works = [dist.all_reduce(t, async_op=True) for t in many]
for work in works: work.wait()
assert all(set(t.tolist()) == {10.0} for t in many)
work = group.barrier(); work.wait(); assert work.is_completed()

# What is held until the call is over.
import gc, weakref
x = gpu([1.0] * 50); gone = weakref.ref(x.storage_here)
work = dist.all_reduce(x, async_op=True)
del x
gc.collect()
assert gone() is not None
work.wait(); torch.cuda.synchronize()
work = None
dist.all_reduce(gpu([1.0]), async_op=True).wait()
assert gone() is None

# Tensors of the CPU go through the GPU; the host waits for those.
x = torch.full((500,), rank + 1.0)
dist.all_reduce(x); assert x.unique().tolist() == [10.0]
work = dist.all_reduce(x, async_op=True); work.wait(); assert x.unique().tolist() == [40.0]
work = dist.all_reduce(x, async_op=True)
while not work.is_completed(): pass
assert x.unique().tolist() == [160.0]
future = dist.all_reduce(x, async_op=True).get_future().wait()
assert future[0] is x and x.unique().tolist() == [640.0]
objects = [None] * world
dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
assert objects == [{"rank": i, "text": "x" * i} for i in range(world)]
lists = [torch.empty(i + 1) for i in range(world)]
dist.all_gather(lists, torch.full((rank + 1,), float(rank)))
assert [t.tolist() for t in lists] == [[float(i)] * (i + 1) for i in range(world)]
out = torch.empty(world); gather(out, gpu([float(rank)])); assert out.tolist() == [0, 1, 2, 3]

# Refused before anything is sent: the others do not even call.
if rank == 1:
    far = standin.GpuTensor([3], torch.float32, standin._Storage(12), index=1)
    refused(ValueError, lambda: dist.all_reduce(far), "cuda:1", "cuda:0", "LOCAL_RANK")
part = dist.new_group([0, 2])
if rank in (0, 2):
    x = gpu([rank + 1.0] * 9); dist.all_reduce(x, group=part); assert x.tolist() == [4.0] * 9
x = gpu([1.0] * 5); gpubridge.all_reduce(x); assert x.tolist() == [4.0] * 5
# Nobody waits for this one: leaving does.
last = dist.all_reduce(gpu([1.0] * 5000), async_op=True)
dist.destroy_process_group()
assert last.is_completed() and last.exception() is None
assert standin.set_devices == [0]
""",
        "nnaa",
        **on_fakes("nnaa"),
    )


def test_a_rank_dies(start):
    """A rank that dies ends the others' job with one sentence: a wait of the host
    raises it (a tensor of the CPU), and so does the next call. It is an island of its
    own: how a vendor's library takes a death inside one, the fakes cannot show."""
    job = start(
        COMMON
        + EVERYTHING
        + """
dist.init_process_group(backend="gpubridge")
x = gpu([1.0] * 1000); dist.all_reduce(x); assert set(x.tolist()) == {3.0}
if rank == 2: os._exit(9)
refused(RuntimeError, lambda: dist.all_reduce(torch.ones(1000)), "rank 2")
refused(RuntimeError, lambda: dist.all_reduce(gpu([1.0])), "rank 2")
dist.destroy_process_group()
print("over")
""",
        "nna",
        **on_fakes("nna"),
    )
    ended = job.wait(60)
    assert [e.code for e in ended] == [0, 0, 9], [e.out for e in ended]
    assert all("over" in e.out for e in ended[:2])


def test_which_gpu(run):
    """LOCAL_RANK names it; what is wrong there refuses the job on every rank, and
    then torch's current device was not touched. In a split test it wraps."""
    run(
        COMMON
        + """
standin.pretend(vendor, 2)
def fails(*words):
    refused(RuntimeError, gpubridge.init, *words)
    assert not standin.set_devices and not gpubridge.is_initialized()
def wrong(text, *words):
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    os.environ["GPUBRIDGE_TEST"] = text
    os.environ["LOCAL_RANK"] = text if rank == 1 else "0"
    fails(*words)
os.environ["CUDA_VISIBLE_DEVICES"] = "4,5"
wrong("one", 'LOCAL_RANK is "one"', "rank 1")
wrong("2", "LOCAL_RANK is 2", "GPU 2", "sees only 2", "CUDA_VISIBLE_DEVICES=4,5", "batch")
os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
if rank == 1: torch.cuda.device_count = lambda: 0
fails("rank 1", "no GPU", "GPUBRIDGE_CPU_ONLY", "GPUBRIDGE_VENDOR")
if rank == 1: torch.version.cuda = torch.version.hip = None
os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
fails("rank 1", "neither CUDA nor ROCm", "still needs such a build")
# Both are of one vendor, and the other rank's number wraps.
standin.pretend(vendor, 1)
os.environ["GPUBRIDGE_SPLIT_TEST"] = "half"
os.environ["LOCAL_RANK"] = str(rank)
os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
import warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore", gpubridge.SplitTestWarning)
    topology = gpubridge.init()
assert topology.run_kind == "split-test" and str(topology.device) == "cuda:0", topology
x = gpu([rank + 1.0]); gpubridge.all_reduce(x); assert x.tolist() == [3.0]
gpubridge.destroy()
""",
        "nn",
        **on_fakes("nn", FAKE_GPU_DEVICES="2"),
    )


def test_simulation_leaves_torch_cuda_alone(run):
    """In a simulated job nothing of torch.cuda is called but the count of GPUs."""
    run(
        """
import torch, gpubridge
class Nobody:
    device_count = staticmethod(lambda: 0)
    def __getattr__(self, name): raise SystemExit(f"torch.cuda.{name} was used")
torch.cuda = Nobody()
topology = gpubridge.init()
assert str(topology.device) == "cpu"
x = torch.ones(3); gpubridge.all_reduce(x); assert x.tolist() == [2.0] * 3
gpubridge.all_reduce(x, async_op=True).wait()
gpubridge.barrier()
gpubridge.destroy()
""",
        "na",
    )


def test_messages(run):
    """send, recv, isend, irecv, batch_isend_irecv of torch.distributed on stand-in
    tensors and on tensors of the CPU, between and inside the islands: order of
    streams, tags the other way round, any source, both directions at once, objects
    (S093, S094)."""
    run(
        COMMON
        + EVERYTHING
        + """
dist.init_process_group(backend="gpubridge")
right, left = (rank + 1) % world, (rank - 1) % world

# One after the other round the ring, sync: each is ordered on the current stream.
x = gpu([float(rank)] * 1000); got = gpu([0.0] * 1000)
if rank % 2:
    dist.recv(got, left); dist.send(x, right)
else:
    dist.send(x, right); dist.recv(got, left)
assert set(got.tolist()) == {float(left)}

# Receives first on every rank: nobody waits for anybody.
for size in (1, 5000, 300000):
    x = gpu([rank + 1.0] * size); got = gpu([0.0] * size)
    r, s = dist.irecv(got, left), dist.isend(x, right)
    s.wait()
    x.copy_(torch.zeros(size))  # what was sent may be used again
    r.wait()
    assert set(got.tolist()) == {left + 1.0}
    assert r.is_completed() and r.is_success() and r.exception() is None

# Waited for on another stream; asked for and not waited for.
side = standin.Stream()
got = gpu([0.0] * 3000)
r, s = dist.irecv(got, left), dist.isend(gpu([rank + 5.0] * 3000), right)
with torch.cuda.stream(side):
    r.wait()
    assert set(got.tolist()) == {left + 5.0}
got = gpu([0.0] * 300)
r, s = dist.irecv(got, left), dist.isend(gpu([rank + 6.0] * 300), right)
while not (r.is_completed() and s.is_completed()): pass
assert set(got.tolist()) == {left + 6.0}

# Everybody to everybody as a batch.
def exchange(make, read):
    outs = {p: make([rank * 10.0 + p] * 50) for p in range(world) if p != rank}
    ins = {p: make([0.0] * 50) for p in outs}
    ops = [dist.P2POp(dist.irecv, t, p) for p, t in ins.items()]
    ops += [dist.P2POp(dist.isend, t, p) for p, t in outs.items()]
    for work in dist.batch_isend_irecv(ops): work.wait()
    assert all(set(read(t)) == {p * 10.0 + rank} for p, t in ins.items())
exchange(gpu, lambda t: t.tolist())
exchange(torch.tensor, lambda t: t.tolist())
# Tensors of both kinds in one batch, and one kind to the other.
here, away = gpu([0.0] * 8), torch.zeros(8)
ops = [dist.P2POp(dist.irecv, here, left, tag=1), dist.P2POp(dist.irecv, away, left, tag=2),
       dist.P2POp(dist.isend, torch.full((8,), rank + 0.5), right, tag=1),
       dist.P2POp(dist.isend, gpu([rank + 0.25] * 8), right, tag=2)]
for work in gpubridge.batch_isend_irecv(ops) or (): work.wait()
assert set(here.tolist()) == {left + 0.5} and set(away.tolist()) == {left + 0.25}

# Tags the other way round, and from whoever comes first.
if rank == 0:
    one, two = gpu([1.0] * 9), gpu([2.0] * 9)
    works = [dist.isend(one, 1, tag=1), dist.isend(two, 1, tag=2)]
    for work in works: work.wait()
    seen = set()
    for _ in range(world - 1):
        x = gpu([0.0] * 4)
        source = dist.recv(x, tag=7)
        assert set(x.tolist()) == {float(source)}
        seen.add(source)
    assert seen == set(range(1, world)), seen
else:
    if rank == 1:
        one, two = gpu([0.0] * 9), gpu([0.0] * 9)
        dist.recv(two, 0, tag=2); dist.recv(one, 0, tag=1)
        assert set(one.tolist()) == {1.0} and set(two.tolist()) == {2.0}
    dist.send(gpu([float(rank)] * 4), 0, tag=7)

# The CPU's, in a job on GPUs.
got = torch.zeros(2000)
r, s = dist.irecv(got, left), dist.isend(torch.full((2000,), float(rank)), right)
r.wait(); s.wait()
assert got.unique().tolist() == [float(left)]
objects = [None]
if rank == 0: dist.send_object_list([{"from": 0}], 1)
if rank == 1: dist.recv_object_list(objects, 0); assert objects == [{"from": 0}]
empty = gpu([])
if rank == 0: dist.send(empty, 1)
if rank == 1: dist.recv(empty, 0)

# Held until it is over; in a group of its own; a receive that nobody answers does
# not keep the job from ending.
import gc, weakref
x = gpu([1.0] * 50); gone = weakref.ref(x.storage_here)
s = dist.isend(x, right, tag=3); del x; gc.collect()
assert gone() is not None
got = gpu([0.0] * 50); dist.recv(got, left, tag=3)
part = dist.new_group([0, 2])
if rank in (0, 2):
    other = 2 - rank
    got = gpu([0.0] * 5)
    r = dist.irecv(got, other, group=part); dist.send(gpu([rank + 1.0] * 5), other, group=part)
    r.wait(); assert set(got.tolist()) == {other + 1.0}
refused(ValueError, lambda: dist.send(gpu([1.0]), rank), "rank")
torch.cuda.synchronize()
dist.barrier()
dist.destroy_process_group()
assert s.is_completed() and s.exception() is None
""",
        "nnaa",
        **on_fakes("nnaa"),
    )


def test_waits_that_block(run):
    """Under GPUBRIDGE_BLOCKING_WAIT the host waits until the GPU is through; with a
    timeout it does so without the setting, and gives up in time, and the work goes
    on. What never ends fails the job by the group's own timeout, with the call's
    name, also where only the vendor's library takes part."""
    run(
        COMMON
        + EVERYTHING
        + """
from datetime import timedelta
import time
dist.init_process_group(backend="gpubridge", timeout=timedelta(seconds=20))
store = dist.distributed_c10d._get_default_store()
x = gpu([rank + 1.0] * 5000)
work = dist.all_reduce(x, async_op=True); work.wait()
assert work.is_completed() and set(x.tolist()) == {6.0}
work = dist.all_reduce(x, async_op=True); assert work.wait(timedelta(seconds=20)) is True
assert work.is_completed() and set(x.tolist()) == {18.0}
got = gpu([0.0] * 4)
if rank == 0:
    work = dist.irecv(got, 2)
    begin = time.monotonic()
    refused(TimeoutError, lambda: work.wait(timedelta(seconds=0.3)), "0.3 s", "goes on")
    assert time.monotonic() - begin < 10 and not work.is_completed()
    store.set("late", "")
    work.wait(); assert set(got.tolist()) == {9.0} and work.is_completed()
if rank == 2:
    store.get("late"); dist.send(gpu([9.0] * 4), 0)
dist.barrier()
island = dist.new_group([0, 1], timeout=timedelta(seconds=1.5))
# The first call connects, for which the library itself makes the host wait.
if rank < 2: dist.all_reduce(gpu([1.0]), group=island)
if rank == 0:
    work = dist.all_reduce(gpu([1.0] * 10), group=island, async_op=True)
    refused(RuntimeError, work.wait, "did not end on the GPU", "all_reduce", "rank 0")
else:
    # No call of theirs waits for it; the job has failed all the same.
    end = time.monotonic() + 15
    while time.monotonic() < end:
        try:
            dist.send(gpu([1.0]), 0, tag=99)
        except RuntimeError as error:
            assert "did not end on the GPU" in str(error), error
            break
        time.sleep(0.2)
    else:
        raise AssertionError("the job did not fail")
dist.destroy_process_group()
""",
        "nna",
        **on_fakes("nna", GPUBRIDGE_BLOCKING_WAIT="1"),
    )


def test_training_on_the_cpu_in_a_job_on_gpus(run):
    """DistributedDataParallel and fully_shard of modules on the CPU, whose tensors
    travel through the GPU: parameters as in one process. (With modules on a GPU
    neither can run without a torch for one.)"""
    run(
        COMMON
        + EVERYTHING
        + """
import copy
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group(backend="gpubridge")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
alone = copy.deepcopy(model)
data = torch.randn(world, 6, 8)
def steps(module, batches, scale=1):
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        sgd.zero_grad()
        for batch in batches: (module(batch).square().mean() / scale).backward()
        sgd.step()
steps(alone, list(data), world)
ddp = DistributedDataParallel(copy.deepcopy(model))
steps(ddp, [data[rank]])
for a, b in zip(alone.parameters(), ddp.module.parameters()):
    torch.testing.assert_close(a, b)
sharded = copy.deepcopy(model)
mesh = init_device_mesh("cpu", (world,))
for layer in (sharded[0], sharded[2]): fully_shard(layer, mesh=mesh)
fully_shard(sharded, mesh=mesh)
steps(sharded, [data[rank]])
for a, b in zip(alone.parameters(), sharded.parameters()):
    torch.testing.assert_close(a, b.full_tensor())
dist.destroy_process_group()
""",
        "na",
        **on_fakes("na"),
    )


def test_calls_as_fsdp_makes_them(run):
    """all_gather_into_tensor and reduce_scatter_tensor in the order and on the
    streams on which torch's fully_shard makes them for modules on a GPU: gathers of
    the next layer on a stream of their own while this one's is unpacked on another,
    scatters on a third, events between them. The fakes find what is not ordered."""
    run(
        COMMON
        + EVERYTHING
        + """
dist.init_process_group(backend="gpubridge")
gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
copy_in, gathers, scatters = standin.Stream(), standin.Stream(), standin.Stream()
main = torch.cuda.current_stream()
size, layers = 3000, 4
shards = [gpu([float(rank * 10 + layer)] * size) for layer in range(layers)]
def unshard(layer):
    with torch.cuda.stream(copy_in):
        copy_in.wait_stream(main)
        out = gpu([0.0] * (size * world))
        mine = out[rank * size : (rank + 1) * size].copy_(shards[layer])
    gathers.wait_stream(copy_in)
    with torch.cuda.stream(gathers):
        work = gather(out, mine, async_op=True)
        event = torch.cuda.Event(); event.record(gathers)
    return out, work, event
def use(out, work, event):
    main.wait_event(event)
    work.wait()
    return out.tolist()
for _ in range(3):
    ahead = unshard(0)
    for layer in range(layers):
        now, ahead = ahead, unshard(layer + 1) if layer + 1 < layers else None
        assert use(*now) == [float(r * 10 + layer) for r in range(world) for _ in range(size)]
    results = []
    for layer in reversed(range(layers)):
        whole = gpu([float(rank + layer)] * (size * world))
        scatters.wait_stream(main)
        with torch.cuda.stream(scatters):
            part = gpu([0.0] * size)
            scatter(part, whole, op=dist.ReduceOp.AVG)
            event = torch.cuda.Event(); event.record(scatters)
        results.append((layer, part, event, whole))
    for layer, part, event, _ in results:
        main.wait_event(event)
        assert set(part.tolist()) == {sum(r + layer for r in range(world)) / world}
dist.destroy_process_group()
""",
        "nnaa",
        **on_fakes("nnaa"),
    )


def test_checks_for_real_cards():
    """The torch half of `make test-gpu` skips with its reason where there is no GPU,
    and its checks run, on the CPU."""
    checks = [sys.executable, str(ROOT / "tests/gpu/checks.py")]
    if not torch.cuda.is_available():
        done = subprocess.run(checks, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "SKIP the torch backend on a GPU: torch" in done.stdout, done.stdout
        assert done.stdout.splitlines()[-1].startswith("0 passed, 0 failed, ")
    done = subprocess.run(
        [*checks, "--place", "cpu", "messages", "mismatch"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "2 passed, 0 failed, 0 skipped" in done.stdout, done.stdout + done.stderr
