"""Collectives through torch, one line of JSON a measurement on rank 0.

torch_bench.py gloo SIZE...    torch's Gloo alone, as it comes
torch_bench.py both SIZE...    backend gpubridge and Gloo in one job, in turns
torch_bench.py all SIZE...     the same, the five main collectives at every size

"wall_us" is the mean over the calls of a batch on rank 0, "cpu_us" user and
system time of rank 0's process per call. `both` and `all` run the two in turns,
ROUNDS times a size, and print each batch. Sums are checked."""

import json
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

ROUNDS = 5


def calls_of(size):
    if size <= 4096:
        return 200
    if size <= 65536:
        return 60
    if size <= 1 << 20:
        return 16
    return 3 if size <= 16 << 20 else 1


def batch(call, barrier, calls):
    """Mean wall and CPU microseconds of a call, on this rank."""
    barrier()
    cpu = time.process_time()
    wall = time.perf_counter()
    for _ in range(calls):
        call()
    wall = time.perf_counter() - wall
    cpu = time.process_time() - cpu
    return wall / calls * 1e6, cpu / calls * 1e6


def show(**values):
    if int(os.environ["RANK"]) == 0:
        print(json.dumps(values), flush=True)


def gloo_group(store):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return dist.ProcessGroupGloo(store, rank, world, timedelta(seconds=60))


def gloo_all_reduce(gloo, tensor):
    def call():
        gloo.allreduce([tensor]).wait()

    return call


def run_gloo(sizes):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(host, port, world, rank == 0)
    gloo = gloo_group(store)
    token = torch.zeros(1)
    for size in sizes:
        tensor = torch.ones(size // 4)
        call = gloo_all_reduce(gloo, tensor)
        call()
        assert tensor[0] == world and tensor[-1] == world
        tensor.zero_()
        call()
        wall, cpu = batch(call, gloo_all_reduce(gloo, token), calls_of(size))
        show(bytes=size, wall_us=wall, cpu_us=cpu)


def calls_to_compare(gloo, world, size):
    """{collective: (ours, Gloo's)} over `size` bytes of the larger buffer."""
    count = max(size // 4, 1)
    tensor, row = torch.zeros(count), torch.zeros(max(count // world, 1))
    whole = torch.zeros(row.numel() * world)
    rows = list(whole.view(world, -1).unbind(0))
    options = dist.BroadcastOptions()
    options.rootRank = 0
    onto = dist.ReduceOptions()
    onto.rootRank = 0
    return {
        "all_reduce": (lambda: dist.all_reduce(tensor), gloo_all_reduce(gloo, tensor)),
        "broadcast": (
            lambda: dist.broadcast(tensor, 0),
            lambda: gloo.broadcast([tensor], options).wait(),
        ),
        "reduce": (
            lambda: dist.reduce(tensor, 0),
            lambda: gloo.reduce([tensor], onto).wait(),
        ),
        "all_gather_into_tensor": (
            lambda: dist.all_gather_into_tensor(whole, row),
            lambda: gloo.allgather([rows], [row]).wait(),
        ),
        "reduce_scatter_tensor": (
            lambda: dist.reduce_scatter_tensor(row, whole),
            lambda: gloo._reduce_scatter_base(row, whole).wait(),
        ),
    }


def compare(name, ours, theirs, barrier, size, calls):
    ours()
    theirs()
    for _ in range(ROUNDS):
        for who, call in (("gpubridge", ours), ("gloo", theirs)):
            call()
            wall, cpu = batch(call, barrier, calls)
            show(collective=name, who=who, bytes=size, wall_us=wall, cpu_us=cpu)


def run_both(sizes, every=False):
    import gpubridge  # noqa: F401 - registers the backend

    dist.init_process_group(backend="gpubridge")
    world = dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    gloo = gloo_group(dist.PrefixStore("bench-gloo", store))
    tensor = torch.full((1000,), float(dist.get_rank()))
    dist.all_reduce(tensor)
    assert tensor[0] == tensor[-1] == world * (world - 1) / 2
    for size in sizes:
        for name, (ours, theirs) in calls_to_compare(gloo, world, size).items():
            if every:
                compare(name, ours, theirs, dist.barrier, size, -(-calls_of(size) // 4))
            elif name == "all_reduce" or size in (4, 65536, 1 << 20, 16 << 20):
                compare(name, ours, theirs, dist.barrier, size, calls_of(size))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    programs = {"gloo": run_gloo, "both": run_both, "all": lambda sizes: run_both(sizes, True)}
    programs[sys.argv[1]]([int(n) for n in sys.argv[2:]])
