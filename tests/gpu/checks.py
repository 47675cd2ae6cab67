"""The torch backend on a real GPU: two ranks as two islands on one card.

    checks.py [--place gpu|cpu] [--seconds N] [NAME...]

Each check below is a job of its own; what it proves is in its docstring. Without
torch.cuda everything is skipped, with the reason. ``--place cpu`` runs the same
checks on simulated vendors: that shows that the checks work, and nothing about GPUs.
Prints "N passed, M failed, K skipped" last; exit code 1 if one failed.
"""

import argparse
import copy
import os
import subprocess
import sys
import time
import warnings

from place import Place, environment, free_port

CHECK_SECONDS = 120
WORLD = 2

# ---- what ranks do ----


def numbers(place, shape, dtype, rank, seed=0):
    """Small whole numbers, exact in every type and in every order of sums."""
    import torch

    generator = torch.Generator().manual_seed(seed * 64 + rank)
    values = torch.randint(1, 4, shape, generator=generator)
    return values.to(dtype).to(place.device)


def must_equal(got, want, what):
    import torch

    got, want = got.cpu(), want.cpu()
    if not torch.equal(got, want):
        wrong = (got != want).nonzero()[:1].flatten().tolist()
        raise AssertionError(f"{what}: wrong from element {wrong} on: {got} is not {want}")


DTYPES = (
    "float32 float64 float16 bfloat16 int8 uint8 int32 int64 int16 bool complex64 "
    "complex128"
).split()
COUNTS = (1, 3, 1000, 70001)


def check_reductions(place, rank, world):
    """all_reduce, reduce and reduce_scatter of every type by every reduction are what
    the CPU makes of the same numbers, exactly; what the library cannot reduce is
    refused on every rank, in words, and the job goes on."""
    import torch
    import torch.distributed as dist

    folds = {
        "SUM": torch.add,
        "PRODUCT": torch.mul,
        "MIN": torch.minimum,
        "MAX": torch.maximum,
        "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or,
        "BXOR": torch.bitwise_xor,
    }
    refused = []
    for name in DTYPES:
        dtype = getattr(torch, name)
        for op, fold in folds.items():
            if dtype.is_complex and op != "SUM":
                continue
            if dtype == torch.bool and op in ("MIN", "MAX"):
                continue
            if (dtype.is_floating_point or dtype.is_complex) and op[0] == "B":
                continue
            for count in COUNTS:
                every = [numbers(Place("cpu"), (count * world,), dtype, r) for r in range(world)]
                want = every[0]
                for other in every[1:]:
                    want = fold(want, other)
                mine = every[rank].to(place.device)
                try:
                    x = mine.clone()
                    dist.all_reduce(x, getattr(dist.ReduceOp, op))
                except NotImplementedError as error:
                    assert "cannot be reduced" in str(error), error
                    refused.append(f"{op} of {name}")
                    break
                must_equal(x, want, f"all_reduce {op} of {count} {name}")
                x = mine.clone()
                dist.reduce(x, 1, getattr(dist.ReduceOp, op))
                must_equal(x, want if rank == 1 else every[rank], f"reduce {op} of {name}")
                part = torch.empty(count, dtype=dtype, device=place.device)
                dist.reduce_scatter_tensor(part, mine, getattr(dist.ReduceOp, op))
                must_equal(
                    part,
                    want[rank * count : (rank + 1) * count],
                    f"reduce_scatter {op} of {count} {name}",
                )
    x = numbers(place, (1000,), torch.float32, rank)
    want = sum(numbers(Place("cpu"), (1000,), torch.float32, r) for r in range(world)) / world
    dist.all_reduce(x, dist.ReduceOp.AVG)
    torch.testing.assert_close(x.cpu(), want)
    if rank == 0 and refused:
        print("   refused by the library:", ", ".join(refused))


def check_moves(place, rank, world):
    """broadcast, all_gather, gather, scatter and all_to_all of tensors and of lists,
    with odd lengths, parts of a storage and rows of different lengths."""
    import torch
    import torch.distributed as dist

    for name in DTYPES:
        dtype = getattr(torch, name)
        for count in COUNTS:
            every = [numbers(place, (count,), dtype, r) for r in range(world)]
            for root in range(world):
                x = torch.cat([every[rank], every[rank]])[count:]  # not at the beginning
                dist.broadcast(x, root)
                must_equal(x, every[root], f"broadcast of {count} {name}")
            out = torch.empty(count * world, dtype=dtype, device=place.device)
            dist.all_gather_into_tensor(out, every[rank])
            must_equal(out, torch.cat(every), f"all_gather of {count} {name}")
            rows = [torch.empty_like(t) for t in every]
            dist.all_gather(rows, every[rank])
            must_equal(torch.cat(rows), torch.cat(every), f"all_gather list of {name}")
            rows = [torch.empty_like(t) for t in every] if rank == 1 else None
            dist.gather(every[rank], rows, dst=1)
            if rank == 1:
                must_equal(torch.cat(rows), torch.cat(every), f"gather of {name}")
            x = torch.empty_like(every[0])
            dist.scatter(x, every if rank == 0 else None, src=0)
            must_equal(x, every[rank], f"scatter of {count} {name}")
            out = torch.empty(count * world, dtype=dtype, device=place.device)
            mine = numbers(place, (count * world,), dtype, rank, 1)
            dist.all_to_all_single(out, mine)
            want = [
                numbers(place, (count * world,), dtype, r, 1)[rank * count : (rank + 1) * count]
                for r in range(world)
            ]
            must_equal(out, torch.cat(want), f"all_to_all of {count} {name}")
    uneven = [torch.empty(r + 1, device=place.device) for r in range(world)]
    dist.all_gather(uneven, torch.full((rank + 1,), float(rank), device=place.device))
    assert [t.tolist() for t in uneven] == [[float(r)] * (r + 1) for r in range(world)]
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(world)]
    dist.barrier()


def check_streams(place, rank, world):
    """A call comes after what is on the current stream, a wait orders another stream,
    and neither blocks the host; many calls under way on buffers that are used again."""
    import torch
    import torch.distributed as dist

    side = place.stream()
    total = float(sum(r + 1 for r in range(world)))
    for _ in range(20):
        x = torch.zeros(200000, device=place.device)
        place.keep_busy(2)
        x += rank + 1
        work = dist.all_reduce(x, async_op=True)
        with place.on(side):
            work.wait()
            y = x * 2
        place.await_stream(side)
        assert y.unique().tolist() == [2 * total]
    x = torch.ones(100000, device=place.device)
    place.synchronize()
    place.keep_busy(300)
    begin = time.monotonic()
    works = [dist.all_reduce(x, async_op=True) for _ in range(5)]
    for work in works:
        work.wait()
    enqueued = time.monotonic() - begin
    assert x.unique().tolist() == [float(world**5)]
    if place.on_gpu:
        assert enqueued < 0.25, f"enqueuing five calls behind a busy GPU took {enqueued:.3f} s"
    buffers = [torch.full((3000,), float(rank), device=place.device) for _ in range(50)]
    for work in [dist.all_reduce(t, async_op=True) for t in buffers]:
        work.wait()
    assert all(t.unique().tolist() == [total - world] for t in buffers)


def check_futures(place, rank, world):
    """A future's callback sees the result on its stream, and tensors that nobody holds
    any more are not used again before the GPU is through with them."""
    import torch
    import torch.distributed as dist

    for _ in range(20):
        place.keep_busy(1)
        x = torch.full((100000,), rank + 1.0, device=place.device)
        future = dist.all_reduce(x, async_op=True).get_future()
        halved = future.then(lambda f: f.value()[0] / 2)
        del x
        spoiled = torch.full((100000,), -1.0, device=place.device)  # the freed memory?
        assert halved.wait().unique().tolist() == [sum(r + 1 for r in range(world)) / 2]
        del spoiled


def check_messages(place, rank, world):
    """Messages in both directions at once, in a batch, large behind a busy GPU, tags the
    other way round, from any source."""
    import torch
    import torch.distributed as dist

    other = 1 - rank
    for count in (1, 1000, place.large // 8):
        out = torch.full((count,), float(rank), device=place.device)
        back = torch.zeros(count, device=place.device)
        place.keep_busy(5)
        receive = dist.irecv(back, other)
        send = dist.isend(out, other)
        send.wait()
        out.fill_(-1)  # may be used again
        receive.wait()
        assert back.unique().tolist() == [float(other)], count
        ops = [dist.P2POp(dist.isend, back, other), dist.P2POp(dist.irecv, out, other)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert out.unique().tolist() == [float(rank)], count
    a, b = (torch.zeros(10, device=place.device) for _ in range(2))
    if rank == 0:
        works = [dist.isend(a + 1, 1, tag=1), dist.isend(b + 2, 1, tag=2)]
        for work in works:
            work.wait()
        assert dist.recv(a, tag=5) == 1 and a.unique().tolist() == [7.0]
    else:
        dist.recv(b, 0, tag=2)
        dist.recv(a, 0, tag=1)
        assert a.unique().tolist() == [1.0] and b.unique().tolist() == [2.0]
        dist.send(a + 6, 0, tag=5)


def check_large(place, rank, world):
    """Calls that pass the ring many times, behind and beside a busy GPU."""
    import torch
    import torch.distributed as dist

    x = torch.empty(place.large, device=place.device)
    index = torch.arange(place.large, device=place.device) % 1021
    for round_ in range(3):
        x.copy_(index)
        x += rank + round_
        place.keep_busy(50)
        work = dist.all_reduce(x, async_op=True)
        busy = torch.randn(512, 512, device=place.device)
        for _ in range(20):
            busy = busy @ busy / 512
        work.wait()
        want = index * world + sum(range(world)) + world * round_
        assert torch.equal(x, want.float()), f"round {round_}"
    gathered = torch.empty(place.large, device=place.device)
    dist.all_gather_into_tensor(gathered, index.chunk(world)[rank].float())
    assert torch.equal(gathered, index.float())


def _model(place):
    import torch

    torch.manual_seed(0)
    layers = (torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    return torch.nn.Sequential(*layers).to(place.device)


def _train(module, batches, scale):
    import torch

    sgd = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
        sgd.zero_grad()
        for batch in batches:
            (module(batch).square().mean() / scale).backward()
        sgd.step()


def _batches(place, world):
    import torch

    generator = torch.Generator().manual_seed(1)
    return [torch.randn(16, 32, generator=generator).to(place.device) for _ in range(world)]


def check_ddp(place, rank, world):
    """DistributedDataParallel ends with the parameters of one process that saw all
    batches; also with our communication hook."""
    import gpubridge
    import torch
    from torch.nn.parallel import DistributedDataParallel

    batches = _batches(place, world)
    alone = _model(place)
    _train(alone, batches, world)
    for hook in (False, True):
        ddp = DistributedDataParallel(_model(place), bucket_cap_mb=0.01)
        if hook:
            ddp.register_comm_hook(None, gpubridge.ddp_comm_hook)
        _train(ddp, [batches[rank]], 1)
        for a, b in zip(alone.parameters(), ddp.module.parameters(), strict=True):
            torch.testing.assert_close(a, b)


def check_fsdp(place, rank, world):
    """fully_shard ends with the parameters of one process that saw all batches."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    batches = _batches(place, world)
    alone = _model(place)
    _train(alone, batches, world)
    sharded = copy.deepcopy(_model(place))
    mesh = init_device_mesh(place.device.type, (world,))
    for layer in (sharded[0], sharded[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    _train(sharded, [batches[rank]], 1)
    for a, b in zip(alone.parameters(), sharded.parameters(), strict=True):
        torch.testing.assert_close(a, b.full_tensor())


def check_mismatch(place, rank, world):
    """Ranks that disagree get one sentence, and nothing hangs on the GPU."""
    import torch
    import torch.distributed as dist

    x = torch.ones(100 + rank, device=place.device)
    try:
        dist.all_reduce(x)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            dist.all_reduce(x)
            time.sleep(0.05)
    except RuntimeError as error:
        assert "100" in str(error) and "101" in str(error), error
    else:
        raise AssertionError("the job did not fail")
    place.synchronize()


def check_bench(place, rank, world):
    """Times of all_reduce against Gloo, and where each rank has a GPU of its own
    against NCCL, as ratios. Fails for wrong numbers only."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    store = dist.PrefixStore("bench", dist.distributed_c10d._get_default_store())
    limit = timedelta(seconds=60)
    others = {"Gloo": dist.ProcessGroupGloo(store, rank, world, limit)}
    why = "one GPU for both ranks, which NCCL refuses"
    if not place.on_gpu:
        why = "no GPU"
    elif torch.cuda.device_count() >= world:
        why = "run it with a GPU for each rank"

    def seconds(call, calls):
        call()
        place.synchronize()
        dist.barrier()
        begin = time.monotonic()
        for _ in range(calls):
            call()
        place.synchronize()
        return (time.monotonic() - begin) / calls

    for count in (1024, 1 << 18, place.large // 4):
        x = torch.ones(count, device=place.device)
        calls = 3 if count > 1 << 20 else 20
        ours = seconds(lambda x=x: dist.all_reduce(x), calls)
        line = f"   all_reduce of {count * 4:>10} bytes: {ours * 1e6:9.0f} us"
        for name, group in others.items():
            y = torch.ones(count, device=place.device)
            theirs = seconds(lambda y=y, group=group: group.allreduce([y]).wait(), calls)
            line += f", {name} takes {theirs / ours:.2f} times as long"
        if rank == 0:
            print(line)
    if rank == 0:
        print(f"   NCCL beside it: skipped, {why}")


CHECKS = {
    name.removeprefix("check_"): function
    for name, function in list(globals().items())
    if name.startswith("check_")
}


def be_rank(name):
    import gpubridge
    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore", gpubridge.SplitTestWarning)
    place = Place(os.environ["GB_GPU_PLACE"])
    if place.on_gpu:
        torch.cuda.set_device(0)
    dist.init_process_group(backend="gpubridge")
    topology = gpubridge.get_topology()
    assert topology.device == place.device, topology
    assert topology.run_kind == ("split-test" if place.on_gpu else "cpu"), topology
    CHECKS[name](place, dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()


# ---- starting them ----


def why_not():
    """Why there is nothing to run here; None: there is."""
    try:
        import torch
    except ImportError as error:
        return f"this Python ({sys.executable}) has no torch: {error}"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} has no GPU here (torch.cuda.is_available())"
    try:
        import gpubridge  # noqa: F401
    except ImportError as error:
        return f"the package gpubridge is not there: {error}"
    return None


def run_one(name, place, seconds):
    """True when every rank ended well."""
    port = free_port()
    command = [sys.executable, os.path.abspath(__file__), "--rank-of", name]
    ranks = [
        subprocess.Popen(
            command,
            env=environment(place, rank, WORLD, port),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(WORLD)
    ]
    end = time.monotonic() + seconds
    good, texts = True, []
    for rank, process in enumerate(ranks):
        try:
            text, _ = process.communicate(timeout=max(end - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            for other in ranks:
                other.kill()
            text, _ = process.communicate()
            text += f"\nended after {seconds:.0f} s\n"
        good = good and process.returncode == 0
        texts.append((rank, process.returncode, text))
    for rank, code, text in texts:
        if not good:
            print(f"   rank {rank} ended with {code}:")
        for line in text.splitlines()[-40:]:
            if not good or line.startswith("   "):
                print(line)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--place", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--seconds", type=float, default=400, help="for all of them")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CHECKS))
    given = parser.parse_args()
    unknown = sorted(set(given.names) - set(CHECKS))
    if unknown:
        parser.error(f"there is no check {', '.join(unknown)}. Known: {', '.join(CHECKS)}")
    if given.rank_of:
        be_rank(given.rank_of)
        return 0
    names = given.names or list(CHECKS)
    reason = why_not() if given.place == "gpu" else None
    if reason:
        print(f"SKIP the torch backend on a GPU: {reason}")
        print(f"0 passed, 0 failed, {len(names)} skipped")
        return 0
    end = time.monotonic() + given.seconds
    passed = failed = skipped = 0
    for name in names:
        left = end - time.monotonic()
        if left < 5:
            print(f"SKIP {name}: the time of {given.seconds:.0f} s is over")
            skipped += 1
            continue
        begin = time.monotonic()
        good = run_one(name, given.place, min(left, CHECK_SECONDS))
        print(f"{'ok  ' if good else 'FAIL'} {name} ({time.monotonic() - begin:.1f} s)", flush=True)
        passed, failed = passed + good, failed + (not good)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
