"""Whole jobs through gpubridge's own functions."""

import os
import re
import signal
import time

import pytest
from conftest import ROOT

LAYOUTS = {
    "2+2": ("nnaa", {}),
    "interleaved": ("nana", {}),
    "3+1": ("nnna", {}),
    "1+1": ("na", {}),
    "1+3": ("naaa", {}),
    "one island": ("nnnn", {}),
    "4+4": ("nnnnaaaa", {}),
    "2+3+2": (
        "nnaaann",
        {
            r: {"GPUBRIDGE_ISLAND": name}
            for r, name in enumerate(["x", "x", "y", "y", "y", "z", "z"])
        },
    ),
}

# Runs every collective, type, reduction, sync and async, on gpubridge and on
# torch's Gloo in one job, and compares the bits on exact data.
COMPARE = """
import itertools, os
import torch, torch.distributed as dist
import gpubridge
from gpubridge import ReduceOp
# The rest is in test_matrix.py.
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64,
          torch.int8, torch.uint8, torch.int32, torch.int64)

torch.set_num_threads(1)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
gloo = dist.ProcessGroupGloo(dist.FileStore(MEET, world), rank, world)

def data(n, dtype, shift=0):
    base = (torch.arange(n) * 3 + rank * 5 + shift) % 7 + 1
    return base.to(dtype)

def same(a, b, what):
    assert torch.equal(a, b), (what, a[:8], b[:8])

def gloo_reduce(tensor, op):
    options = dist.AllreduceOptions()
    average = op == ReduceOp.AVG
    options.reduceOp = ReduceOp.SUM if average else op
    # Gloo of this torch may lack half types: sums of small integers are exact
    # in double, so reduce there and come back.
    wide = tensor.to(torch.double, copy=True)
    gloo.allreduce([wide], options).wait()
    if average:
        wide /= world
    return wide.to(tensor.dtype)

def compare(turn):
    checks = 0
    for number, (dtype, n) in enumerate(itertools.product(DTYPES, (1, 5, 1000, 40007))):
        if n == 40007 and dtype not in (torch.float32, torch.bfloat16):
            continue
        is_async = (number + number // 4 + turn) % 2 == 1  # each way in every other turn
        ops = [ReduceOp.SUM, ReduceOp.MAX, ReduceOp.MIN]
        if dtype.is_floating_point and world in (2, 4, 8):
            ops.append(ReduceOp.AVG)
        def done(work):
            assert (work is not None) == is_async
            if work is not None:
                assert work.wait() is True
        for op in ops:
            mine = data(n, dtype)
            want = gloo_reduce(mine, op)
            pointer = mine.data_ptr()
            done(gpubridge.all_reduce(mine, op, async_op=is_async))
            assert mine.data_ptr() == pointer
            same(mine, want, ("all_reduce", dtype, n, op))
            if op in (ReduceOp.SUM, ReduceOp.AVG):
                whole = data(n * world, dtype)
                kept = whole.clone()
                want = gloo_reduce(whole, op)[rank * n:(rank + 1) * n]
                got = torch.empty(n, dtype=dtype)
                done(gpubridge.reduce_scatter_tensor(got, whole, op, async_op=is_async))
                same(got, want, ("reduce_scatter", dtype, n, op))
                same(whole, kept, "reduce_scatter's input")
            checks += 1
        for src in range(world):
            mine = data(n, dtype)
            want = mine.clone().double()
            options = dist.BroadcastOptions()
            options.rootRank = src
            gloo.broadcast([want], options).wait()
            done(gpubridge.broadcast(mine, src, async_op=is_async))
            same(mine, want.to(dtype), ("broadcast", dtype, n, src))
        mine = data(n, dtype)
        want = [torch.empty(n, dtype=torch.double) for _ in range(world)]
        gloo.allgather([want], [mine.double()]).wait()
        got = torch.empty(world * n, dtype=dtype)
        done(gpubridge.all_gather_into_tensor(got, mine, async_op=is_async))
        same(got, torch.cat(want).to(dtype), ("all_gather", dtype, n))
        done(gpubridge.barrier(async_op=is_async))
    return checks

for turn, (policy, bridge) in enumerate((
    ("auto", None),
    ("auto", "tcp"),
    ("direct", None),
    ("reduce-bridge-broadcast", None),
    ("flat", None),
)):
    try:
        gpubridge.init(policy=policy, bridge=bridge)
    except RuntimeError as error:  # one island, or several hosts
        assert f'"{policy}" does not fit' in str(error), error
        print(policy, "checks nothing")
        continue
    print(policy, bridge, "checks", compare(turn))
    gpubridge.destroy()
"""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_equal_to_gloo_bit_for_bit(run, layout, tmp_path):
    """S105, S107: every policy and transport against torch's Gloo."""
    vendors, per_rank = LAYOUTS[layout]
    script = COMPARE.replace("MEET", repr(str(tmp_path / "meet")))
    outs = run(script, vendors, per_rank=per_rank, timeout=240)
    assert all(out.count("checks") == 5 for out in outs)


def test_shapes_and_scalars(run):
    """S079, S080, S082, S083, S084."""
    run(
        """
        import torch, gpubridge
        from gpubridge import ReduceOp
        t = gpubridge.init()
        r = t.rank
        x = torch.tensor(float(r + 1))
        gpubridge.all_reduce(x)
        assert x.item() == 10 and x.shape == ()
        x = torch.tensor(float(r + 1))
        gpubridge.all_reduce(x, ReduceOp.AVG)
        assert x.item() == 2.5
        out = torch.empty(4)
        gpubridge.all_gather_into_tensor(out, torch.tensor(float(r + 1)))
        assert out.tolist() == [1, 2, 3, 4]
        x = torch.tensor(float(r + 1))
        gpubridge.broadcast(x, 3)
        assert x.item() == 4
        for shape in ((0,), (3, 0, 2)):
            e = torch.empty(shape)
            for op in (ReduceOp.SUM, ReduceOp.AVG):
                gpubridge.all_reduce(e, op)
                gpubridge.all_reduce(e, op, async_op=True).wait()
            gpubridge.broadcast(e, 1)
            gpubridge.all_gather_into_tensor(torch.empty(0), e)
            gpubridge.reduce_scatter_tensor(e, torch.empty(0))
        x = torch.full((2, 3, 5), float(r + 1))
        gpubridge.all_reduce(x)
        assert (x == 10).all()
        base = torch.arange(12.0).reshape(3, 4)
        for view in (base.t(), base.flatten()[::2], torch.ones(1).expand(4, 4), base[:, 1]):
            kept = view.clone()
            try:
                gpubridge.all_reduce(view)
                raise SystemExit("not refused")
            except ValueError as error:
                assert "contiguous" in str(error)
            assert torch.equal(view, kept)
            c = view.contiguous()
            gpubridge.all_reduce(c)
            assert torch.equal(c, kept * 4)
        for dtype in (torch.complex64, torch.int16, torch.float8_e4m3fn, torch.bool, torch.uint32):
            x = torch.ones(2).to(dtype)
            gpubridge.all_reduce(x)
            assert torch.equal(x, (torch.ones(2) * (1 if dtype == torch.bool else 4)).to(dtype)), x
        for bad in (torch.ones(2).to(torch.complex32), torch.eye(3).to_sparse()):
            try:
                gpubridge.all_reduce(bad)
                raise SystemExit(f"{bad.dtype} not refused")
            except ValueError as error:
                assert str(bad.dtype) in str(error) or "sparse" in str(error)
        for call, kind in (
            (lambda: gpubridge.all_reduce([1.0]), TypeError),
            (lambda: gpubridge.all_reduce(torch.ones(1), ReduceOp.BAND), ValueError),
            (lambda: gpubridge.all_reduce(torch.ones(1, dtype=torch.complex64), ReduceOp.MAX), ValueError),
            (lambda: gpubridge.all_reduce(torch.ones(1), "sum"), ValueError),
            (lambda: gpubridge.all_reduce(torch.ones(1, dtype=torch.int32), ReduceOp.AVG), ValueError),
            (lambda: gpubridge.broadcast(torch.ones(1), 4), ValueError),
            (lambda: gpubridge.broadcast(torch.ones(1), -1), ValueError),
            (lambda: gpubridge.all_gather_into_tensor(torch.ones(5), torch.ones(1)), ValueError),
            (lambda: gpubridge.reduce_scatter_tensor(torch.ones(1), torch.ones(5)), ValueError),
        ):
            try:
                call()
                raise SystemExit("not refused")
            except kind:
                pass
        x = torch.tensor(float(r + 1))
        gpubridge.all_reduce(x)
        assert x.item() == 10
        gpubridge.destroy()
        """,
        "nnaa",
    )


def test_links(run):
    """Who holds which link under sharded-bridge; sums go over all of them."""
    run(
        """
        import gpubridge, torch
        t = gpubridge.init(policy="sharded-bridge")
        assert t.policy_name == "sharded-bridge"
        assert t.links == ((0, 3), (1, 4))
        assert t.link == (0, 1, None, 0, 1)[t.rank]
        told = gpubridge.telemetry()
        assert told["bridge.links"] == "2" and told["bridge.link_ranks"] == "0-3 1-4"
        a = torch.arange(100000, dtype=torch.float32) % 9 + t.rank
        gpubridge.all_reduce(a)
        assert torch.equal(a, torch.arange(100000, dtype=torch.float32) % 9 * 5 + 10)
        gpubridge.destroy()
        """,
        "nnnaa",
    )


def test_topology(run):
    """S106 and the attributes of spec 1.7."""
    outs = run(
        """
        import gpubridge
        t = gpubridge.init(policy="reduce-bridge-broadcast")
        assert t == gpubridge.get_topology()
        assert t.run_kind == "cpu" and t.simulated and t.split_test is None
        assert [i.vendor for i in t.layout.islands] == ["nvidia", "amd"]
        assert t.layout.bridge_ranks == (0, 2) and t.layout.needs_bridge
        assert t.layout.island_of(3).ranks == (2, 3)
        assert t.is_leader == (t.rank in (0, 2))
        assert t.bridge_name == "shm" and t.policy_name == "reduce-bridge-broadcast"
        assert t.selection["requested"] == "auto" and t.selection["reason"]
        assert t.links == ((0, 2),) and t.link == (0 if t.is_leader else None)
        import torch
        assert t.peers[3].torch_version == torch.__version__
        assert t.peers[3].probe.gloo_available
        assert t.peers[1].hostname == "\\u6771\\u4eac"
        assert any(k.startswith("bridge") for k in gpubridge.telemetry())
        print(t.timeout.total_seconds())
        gpubridge.destroy()
        gpubridge.destroy()
        assert not gpubridge.is_initialized()
        """,
        "nnaa",
        env={"GPUBRIDGE_SIM_HOSTNAME": "東京"},  # S064
    )
    assert all(float(out.split()[-1]) == 1800 for out in outs)


def test_job_from_a_file(run, tmp_path):
    """S007: file:// instead of MASTER_ADDR."""
    run(
        f"""
        import torch, gpubridge
        gpubridge.init("file://{tmp_path}/meet")
        x = torch.tensor([1.0])
        gpubridge.all_reduce(x)
        assert x.item() == 4
        gpubridge.destroy()
        """,
        "nnaa",
        env={"MASTER_ADDR": None, "MASTER_PORT": None},
    )


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:%d", "tcp://[::1]:%d"])
def test_job_from_tcp(run, address):
    """S005."""
    run(
        f"""
        import os, torch, gpubridge
        gpubridge.init({address!r} % int(os.environ["MASTER_PORT"]))
        x = torch.tensor([1.0])
        gpubridge.all_reduce(x)
        assert x.item() == 2
        gpubridge.destroy()
        """,
        "na",
        env={"MASTER_ADDR": None},
    )


def test_bare_ipv6_is_refused(start):
    (ended,) = start("import gpubridge; gpubridge.init('tcp://::1:29500')", "n").wait(30)
    assert "brackets" in ended.out and ended.code


def test_split_test(run):
    """Spec 3.9: relabelled halves, one warning on every rank, marks."""
    outs = run(
        """
        import warnings, torch, gpubridge
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            t = gpubridge.init()
        seen = [w for w in seen if issubclass(w.category, gpubridge.SplitTestWarning)]
        assert len(seen) == 1, seen
        assert t.run_kind == "split-test" and t.split_test == "half"
        assert [p.vendor for p in t.peers] == ["nvidia", "nvidia", "amd", "amd"]
        assert {p.detected_vendor for p in t.peers} == {"nvidia"}
        x = torch.tensor([t.rank + 1.0])
        gpubridge.all_reduce(x)
        assert x.item() == 10
        gpubridge.destroy()
        """,
        "nnnn",
        env={"GPUBRIDGE_SPLIT_TEST": "half"},
    )
    assert len(outs) == 4


def test_observers(run):
    """Spec 1.11, S044, S046: records, equal numbers, a bad and a talking one."""
    run(
        """
        import warnings, torch, gpubridge
        from gpubridge import ReduceOp
        t = gpubridge.init(policy="reduce-bridge-broadcast")
        class Keep(gpubridge.CollectiveObserver):
            def __init__(self): self.records, self.detached = [], None
            def on_collective(self, record): self.records.append(record)
            def on_detach(self, error): self.detached = error
        class Bad(Keep):
            def on_collective(self, record):
                super().on_collective(record)
                if len(self.records) == 3: raise KeyError("third")
        class Talks(Keep):
            def on_collective(self, record):
                super().on_collective(record)
                gpubridge.all_reduce(torch.ones(1))
        keep, bad, talks = Keep(), Bad(), Talks()
        gpubridge.add_observer(keep)
        gpubridge.add_observer(keep)
        gpubridge.add_observer(bad)
        gpubridge.add_observer(talks)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for i in range(10):
                x = torch.tensor([t.rank + 1.0])
                gpubridge.all_reduce(x)
                assert x.item() == 10
        assert len([w for w in seen if w.category is RuntimeWarning]) == 2
        assert isinstance(bad.detached, KeyError) and len(bad.records) == 3
        assert isinstance(talks.detached, RuntimeError) and len(talks.records) == 1
        assert "observer" in str(talks.detached)
        assert [r.seq for r in keep.records] == list(range(10))
        first = keep.records[0]
        assert first.op == "all_reduce" and first.nbytes == 4
        assert first.dtype == torch.float32 and first.reduce_op == "sum"
        assert first.policy == "reduce-bridge-broadcast" and first.src is None
        assert first.ready() and first.elapsed_ms() > 0
        names = [p.name for p in first.phases]
        assert names == (["island-reduce", "bridge", "island-broadcast"]
                         if t.is_leader else ["island-reduce", "island-broadcast"])
        assert first.phase("island-reduce").elapsed_ms() >= 0
        assert first.phase("nothing") is None
        try: gpubridge.all_reduce(torch.ones(1).to(torch.complex32))
        except ValueError: pass
        gpubridge.all_gather_into_tensor(torch.empty(8, dtype=torch.int64), torch.ones(2, dtype=torch.int64), async_op=True).wait()
        gpubridge.barrier()
        a, b = keep.records[-2:]
        assert (a.seq, a.op, a.nbytes, a.reduce_op) == (10, "all_gather_into_tensor", 16, None)
        assert (b.seq, b.op, b.nbytes, b.policy, b.dtype) == (11, "barrier", 0, None, None)
        gpubridge.remove_observer(keep)
        gpubridge.barrier()
        assert len(keep.records) == 12
        try: gpubridge.add_observer(print); raise SystemExit("taken")
        except TypeError: pass
        gpubridge.destroy()
        """,
        "nnaa",
    )


def test_in_flight(run):
    """S043: async calls show on gpubridge-async, with their phase."""
    run(
        """
        import time, torch, gpubridge
        t = gpubridge.init(policy="reduce-bridge-broadcast")
        if t.rank == 3: time.sleep(2)
        work = gpubridge.all_reduce(torch.ones(4), async_op=True)
        if t.rank != 3:
            time.sleep(1)
            (entry,) = gpubridge.in_flight()
            assert entry.op == "all_reduce" and entry.seq == 0
            assert entry.thread == "gpubridge-async" and entry.seconds > 0.3
            assert entry.phase == {0: "bridge", 1: "island-broadcast", 2: "island-reduce"}[t.rank]
            assert not work.is_completed()
            try: work.wait(0.2); raise SystemExit("no timeout")
            except TimeoutError: pass
        assert work.wait() is True and work.wait() is True
        assert work.is_completed() and work.exception() is None
        assert gpubridge.in_flight() == []
        gpubridge.destroy()
        """,
        "nnaa",
    )


def test_dropped_work_and_futures(run):
    """S087, S055: works and tensors dropped, futures chained, queue run at the
    end."""
    run(
        """
        import gc, torch, gpubridge
        t = gpubridge.init()
        kept = []
        for i in range(200):
            x = torch.full((100_000,), float(t.rank + 1))
            work = gpubridge.all_reduce(x, async_op=True)
            if i % 10 == 0: kept.append((work, x))
            del work, x
            junk = torch.full((100_000,), -1.0)
        gc.collect()
        for work, x in kept:
            work.wait()
            assert (x == 10).all()
        x = torch.tensor([t.rank + 1.0])
        got = []
        future = gpubridge.all_reduce(x, async_op=True).get_future()
        child = future.then(lambda f: got.append(f.value()) or 7)
        assert child.wait() == 7 and got[0] is x and x.item() == 10
        last = torch.tensor([t.rank + 1.0])
        gpubridge.all_reduce(last, async_op=True)
        gpubridge.destroy()
        assert last.item() == 10
        """,
        "nnaa",
    )


def test_one_process_many_jobs(run):
    """S017, S060: threads and open files do not grow."""
    run(
        """
        import os, torch, gpubridge
        def counts():
            return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
        for i in range(20):
            gpubridge.init()
            x = torch.ones(10)
            gpubridge.all_reduce(x)
            gpubridge.all_reduce(x, async_op=True).wait()
            assert (x == 16).all()
            gpubridge.destroy()
            if i == 5: early = counts()
        late = counts()
        assert late[0] <= early[0] + 1 and late[1] <= early[1] + 1, (early, late)
        """,
        "nnaa",
        timeout=120,
    )


def test_ends_without_destroy(run):
    """S052: exit code 0 on every rank, quietly."""
    outs = run(
        """
        import torch, gpubridge
        topology = gpubridge.init()
        gpubridge.all_reduce(torch.ones(3))
        gpubridge.all_reduce(torch.ones(3), async_op=True)
        """,
        "nnaa",
    )
    assert all(not out.strip() for out in outs), outs


def test_a_quiet_job(run):
    """S045: no line per call."""
    outs = run(
        """
        import torch, gpubridge
        gpubridge.init()
        for _ in range(1000): gpubridge.all_reduce(torch.ones(3))
        gpubridge.destroy()
        """,
        "nnaa",
    )
    assert all(len(out.splitlines()) <= 3 for out in outs), outs


DIES = """
import os, signal, sys, time, torch, gpubridge
from datetime import timedelta
t = gpubridge.init(timeout=timedelta(seconds=600), policy="POLICY")
step = 0
while True:
    x = torch.full((1000,), t.rank + 1.0)
    gpubridge.all_reduce(x)
    assert (x == 10).all()
    step += 1
    if step == 20 and t.rank == VICTIM:
        HOW
"""


@pytest.mark.parametrize("policy", ["reduce-bridge-broadcast", "direct"])
@pytest.mark.parametrize("victim", [0, 1, 2, 3])
def test_a_killed_rank_is_named(start, victim, policy):
    """S036: all survivors raise in seconds though the timeout is ten minutes."""
    script = DIES.replace("VICTIM", str(victim)).replace("POLICY", policy)
    script = script.replace("HOW", "os.kill(os.getpid(), signal.SIGKILL)")
    ended = start(script, "nnaa").wait(60)
    for e in ended:
        assert e.code != 0
        if e.rank != victim:
            assert f"rank {victim} " in e.out and "gone" in e.out, e.out
    died = ended[victim].seconds
    assert max(e.seconds for e in ended) - died < 10
    texts = {re.findall(r"Error: (.*)", e.out)[-1] for e in ended if e.rank != victim}
    assert len(texts) == 1, texts


def test_a_rank_that_raises(start):
    """S038, S039: its own exception is the last text; the others name it."""
    script = (
        DIES.replace("VICTIM", "3")
        .replace("POLICY", "auto")
        .replace("HOW", 'gpubridge.destroy(); raise ValueError("bad batch 17")')
    )
    ended = start(script, "nnaa").wait(60)
    assert "bad batch 17" in ended[3].out.splitlines()[-1]
    for e in ended[:3]:
        assert e.code != 0 and "rank 3" in e.out and "all_reduce number 20" in e.out, e.out


@pytest.mark.parametrize("policy", ["reduce-bridge-broadcast", "direct"])
def test_ctrl_c_gets_through(start, policy):
    """Ctrl-C in a wait: KeyboardInterrupt there, the others learn who."""
    script = f"""
    import time, torch, gpubridge
    t = gpubridge.init(policy={policy!r})
    gpubridge.barrier()
    print("ready", flush=True)
    if t.rank == 3: time.sleep(30)
    gpubridge.all_reduce(torch.ones(1))
    """
    job = start(script, "nnaa")
    wait_for(lambda: all("ready" in job.out(r) for r in range(4)))
    time.sleep(0.5)
    job.ranks[0].send_signal(signal.SIGINT)
    wait_for(lambda: job.ranks[0].poll() is not None, 10)
    assert "KeyboardInterrupt" in job.out(0)
    for rank in (1, 2):
        wait_for(lambda r=rank: job.ranks[r].poll() is not None, 10)
        assert "rank 0" in job.out(rank) and "interrupted" in job.out(rank)


def test_a_handler_runs_and_the_call_goes_on(start):
    """S053: SIGTERM's handler writes a file within seconds; 10.0 at the end."""
    script = """
    import os, signal, time, torch, gpubridge
    t = gpubridge.init()
    signal.signal(signal.SIGTERM, lambda *a: open("saved", "w").close())
    print("ready", flush=True)
    if t.rank == 3: time.sleep(6)
    x = torch.tensor([t.rank + 1.0])
    gpubridge.all_reduce(x)
    assert x.item() == 10
    gpubridge.destroy()
    """
    job = start(script, "nnaa")
    wait_for(lambda: all("ready" in job.out(r) for r in range(4)))
    time.sleep(0.5)
    job.ranks[0].send_signal(signal.SIGTERM)
    folder = os.path.dirname(job.files[0].name)
    wait_for(lambda: os.path.exists(f"{folder}/saved"), 4)
    assert all(e.code == 0 for e in job.wait(40))


def test_fork_after_init(run):
    """S061: a worker that computes and exits; a collective in it is refused."""
    run(
        """
        import os, sys, torch, gpubridge
        t = gpubridge.init()
        child = os.fork()
        if child == 0:
            try: gpubridge.all_reduce(torch.ones(1))
            except RuntimeError as error: assert "fork" in str(error)
            else: os._exit(9)
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        for _ in range(50):
            x = torch.tensor([t.rank + 1.0])
            gpubridge.all_reduce(x)
            assert x.item() == 10
        gpubridge.destroy()
        """,
        "nnaa",
    )


def test_missing_rank_is_named(start):
    """S015: ranks 0 to 2 of 4 come; they name rank 3, and only it."""
    script = """
    import gpubridge
    from datetime import timedelta
    try: gpubridge.init(timeout=timedelta(seconds=5))
    except RuntimeError as error: print(error)
    import torch.distributed as dist
    assert not gpubridge.is_initialized() and not dist.is_initialized()
    """
    ended = start(script, "nna", env={"WORLD_SIZE": "4"}).wait(40)
    for e in ended:
        assert e.code == 0 and "rank 3" in e.out and "rank 2" not in e.out, e.out
        assert 4 < e.seconds < 25


def test_port_in_use(start):
    """S008: rank 0 fails at once with the port; the others by their timeout."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        script = """
        import gpubridge
        from datetime import timedelta
        gpubridge.init(timeout=timedelta(seconds=5))
        """
        ended = start(script, "na", port=port).wait(60)
    assert ended[0].code and str(port) in ended[0].out and "in use" in ended[0].out
    assert ended[1].code and str(port) in ended[1].out


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


FAKE_ADAPTER = f"""
        import logging, os
        rank = int(os.environ["RANK"])
        os.environ["GPUBRIDGE_VERBS_LIB"] = {str(ROOT / "build/lib/fakes/rdma/libibverbs.so.1")!r}
        os.environ["GPUBRIDGE_SIM_HOSTNAME"] = "xy"[rank]
        logging.basicConfig(level=logging.INFO)
        import gpubridge, torch
"""


def test_auto_takes_rdma(run):
    """The bridge verbs on the adapter that is not there, by DDP too."""
    run(
        FAKE_ADAPTER
        + """
        t = gpubridge.init()
        assert t.bridge_name == "verbs", t.selection
        first, second = t.selection["reports"]
        assert first["usable"] and first["device"] == "fake0" and second["rank"] == 1
        x = torch.arange(200000, dtype=torch.float64) % 5 + t.rank
        gpubridge.all_reduce(x)
        assert torch.equal(x, 2 * (torch.arange(200000, dtype=torch.float64) % 5) + 1)
        gpubridge.destroy()
        import torch.distributed as dist
        dist.init_process_group("gpubridge")
        torch.manual_seed(rank)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(400, 300))
        model(torch.ones(2, 400) * (rank + 1)).sum().backward()
        grad = model.module.weight.grad
        assert torch.equal(grad, torch.full_like(grad, 3.0))
        dist.destroy_process_group()
        """,
        "na",
    )


def test_auto_passes_by_a_lone_device(run):
    """S067: only one island has an RDMA device."""
    outs = run(
        FAKE_ADAPTER
        + """
        if rank == 1:
            os.environ["FAKE_VERBS_DEVICES"] = ""
        t = gpubridge.init()
        assert t.bridge_name == "tcp"
        assert t.selection["requested"] == "auto" and t.selection["outcome"] == "tcp"
        first, second = t.selection["reports"]
        assert first["usable"] and first["link_layer"] == "RoCE"
        assert not second["usable"] and "no RDMA device" in second["reason"]
        x = torch.tensor([t.rank + 1.0])
        gpubridge.all_reduce(x)
        assert x.item() == 3.0
        gpubridge.destroy()
        """,
        "na",
    )
    assert "WARNING:gpubridge:bridge tcp" in outs[0]
