"""Islands of unequal speed: shares, the sampler, and gradients that do not depend
on who computed which sample."""

import itertools
import json
import os
import re
import subprocess
import sys
from fractions import Fraction

import pytest
from conftest import ROOT

torch = pytest.importorskip("torch")

from gpubridge import Shares, UnevenSampler  # noqa: E402


def largest_remainder(rates, total, least):
    """The wanted shares by another way: fix who is below `least` until nobody
    is, then hand out one by one what is missing."""
    fixed = set()
    while True:
        free = [r for r in range(len(rates)) if r not in fixed]
        left = total - least * len(fixed)
        speed = sum(Fraction(rates[r]) for r in free)
        quota = {r: left * Fraction(rates[r]) / speed for r in free}
        below = [r for r in free if quota[r] < least]
        if not below:
            break
        fixed.update(below)
    given = [least if r in fixed else quota[r].__floor__() for r in range(len(rates))]
    while sum(given) < total:
        given[max(free, key=lambda r: (quota[r] - given[r], -r))] += 1
    return tuple(given)


def test_shares_for_all_small_rates():
    """Every share of 1 to 4 ranks with rates 1, 2, 5, 40 and 0.1: sums, minimums,
    largest remainders; a faster rank never gets less, equal ranks differ by at
    most one, and the order of the ranks does not matter to the amounts."""
    choices = (0.1, 1, 2, 5, 40)
    for world in (1, 2, 3, 4):
        for rates in itertools.product(choices, repeat=world):
            for total in (*range(world, 13), 16, 64, 100):
                shares = Shares.from_rates(rates, total)
                got = shares.samples
                assert sum(got) == total == shares.batch_size and min(got) >= 1
                assert got == largest_remainder(rates, total, 1), (rates, total)
                for (a, n), (b, m) in itertools.combinations(
                    zip(rates, got, strict=True), 2
                ):
                    assert a != b or 0 <= n - m <= 1
                    assert (n >= m) if a > b else (n <= m) if a < b else True


def test_shares_of_a_short_batch():
    """Fewer samples than ranks: some get 0; otherwise everybody at least 1."""
    shares = Shares.from_rates([5, 5, 3, 3], 16)
    assert shares.samples == (5, 5, 3, 3) == shares.split(16)
    assert [shares.split(n) for n in (1, 2, 3, 4, 6, 8)] == [
        (1, 0, 0, 0),
        (1, 1, 0, 0),
        (1, 1, 1, 0),
        (1, 1, 1, 1),
        (2, 2, 1, 1),
        (3, 3, 1, 1),
    ]
    assert Shares.from_rates([100, 1, 1, 1], 64).split(4) == (1, 1, 1, 1)
    assert Shares.from_rates([100, 1, 1, 1], 64).split(3) == (3, 0, 0, 0)
    for n in range(1, 100):
        assert sum(shares.split(n)) == n
        assert shares.split(n) == largest_remainder(shares.rates, n, int(n >= 4))


def test_shares_stay_exact_and_quick():
    """Rates of any size, a thousand ranks; no rounding loses a sample."""
    rates = [0.1 + 1e-9 * r for r in range(1000)] + [1e300, 1e-300]
    shares = Shares.from_rates(rates, 4096)
    assert sum(shares.samples) == 4096 and min(shares.samples) == 1
    assert Shares.from_rates(rates, 4096) == shares
    assert hash(shares) == hash(Shares.from_rates(rates, 4096))
    with pytest.raises(AttributeError):
        shares.samples = ()


def test_gain():
    """The even split's slowest rank against the shares'."""
    assert Shares.from_rates([3, 3, 1, 1], 64).gain == 2.0
    assert Shares.from_rates([1, 1], 7).gain == 1.0
    assert Shares.from_rates([1, 2], 2).gain == 1.0  # nothing to move


@pytest.mark.parametrize(
    "rates, batch, text",
    [
        ([1, 0], 4, "rate of rank 1 is 0.0"),
        ([1, -2.0], 4, "rate of rank 1"),
        ([float("nan"), 1], 4, "rate of rank 0"),
        ([1, float("inf")], 4, "rate of rank 1"),
        ([1, 1, 1], 2, "2 samples is not enough for 3 ranks"),
        ([1], 1.5, "1.5 samples"),
        ([], 4, "no rates"),
    ],
)
def test_bad_rates(rates, batch, text):
    with pytest.raises(ValueError, match=text):
        Shares.from_rates(rates, batch)


def steps_of(length, shares, **options):
    """[step][rank] -> indices that count, and the stand-ins of the others."""
    world = len(shares.samples)
    samplers = [UnevenSampler(length, shares, rank=r, **options) for r in range(world)]
    for sampler in samplers:
        sampler.set_epoch(3)
    counts = list(samplers[0].counts())
    rows = [list(sampler) for sampler in samplers]
    for sampler, row in zip(samplers, rows, strict=True):
        assert len(sampler) == len(row) == len(counts)
        assert list(sampler.counts()) == counts
    steps = []
    for k, step in enumerate(counts):
        mine = [rows[r][k][: step[r]] for r in range(world)]
        spare = [rows[r][k][step[r] :] for r in range(world)]
        assert [len(indices) for indices in mine] == list(step)
        assert all(len(s) == (n == 0) for s, n in zip(spare, step, strict=True))
        steps.append((mine, spare))
    return steps


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_sampler_takes_what_the_even_split_takes(shuffle, drop_last):
    """Step k computes the same samples whatever the shares, for every length up
    to four batches; nothing twice, nothing lost but what is dropped."""
    options = {"shuffle": shuffle, "drop_last": drop_last, "seed": 7}
    uneven = Shares.from_rates([5, 5, 3, 3], 16)
    skewed = Shares.from_rates([100, 1, 1, 1], 16)
    even = Shares.from_rates([1, 1, 1, 1], 16)
    for length in range(65):
        want = [sorted(sum(mine, [])) for mine, _ in steps_of(length, even, **options)]
        for shares in (uneven, skewed):
            got = []
            for mine, spare in steps_of(length, shares, **options):
                used = sum(mine, [])
                assert all(i in used for i in sum(spare, []))
                got.append(sorted(used))
            assert got == want, length
        seen = sorted(sum(want, []))
        assert len(seen) == (length // 16 * 16 if drop_last else length)
        assert len(set(seen)) == len(seen)
        if not shuffle:
            assert seen == list(range(len(seen)))


def test_sampler_epochs_and_seeds():
    shares = Shares.from_rates([2, 1], 6)
    sampler = UnevenSampler(list(range(24)), shares, rank=0)
    first = list(sampler)
    assert list(sampler) == first and all(len(batch) == 4 for batch in first)
    sampler.set_epoch(1)
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert list(UnevenSampler(24, shares, rank=0, seed=1)) != first
    with pytest.raises(ValueError, match="rank is 2"):
        UnevenSampler(24, shares, rank=2)


COMMON = """
import json, os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
import gpubridge
from gpubridge import Shares, UnevenSampler, UnevenState, uneven_comm_hook
torch.set_num_threads(1)
dist.init_process_group(backend="gpubridge")
rank, world = dist.get_rank(), dist.get_world_size()
"""

TRAIN = (
    COMMON
    + """
class Exact(torch.nn.Module):
    '''Gradients depend on the parameters; `refuse`: on an empty batch it raises.'''
    def __init__(self, dtype, linear=False):
        super().__init__()
        g = torch.Generator().manual_seed(3)
        make = lambda *shape: torch.nn.Parameter(
            torch.randint(-2, 3, shape, generator=g).to(dtype))
        self.a, self.b, self.c = make(16, 8), make(8, 4), make(4)
        self.linear = linear
    def forward(self, x):
        assert len(x)
        if self.linear: return (x @ self.a).sum(1) + x[:, :8] @ self.b.sum(1) + self.c.sum()
        return (x @ self.a @ self.b + self.c).sum(1)

def data(length, dtype):
    g = torch.Generator().manual_seed(11)
    return torch.randint(-3, 4, (length, 16), generator=g).to(dtype)

def train(shares, length, *, hook, loss="sum", dtype=torch.float64, linear=False, poison=False):
    '''Two epochs; every parameter's bits at the end.'''
    x = data(length, dtype)
    model = DDP(Exact(dtype, linear), bucket_cap_mb=0.0001)
    state = UnevenState(shares, loss=loss)
    if hook: model.register_comm_hook(state, uneven_comm_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=2 ** -6)
    sampler = UnevenSampler(x, shares, seed=5)
    shorts = 0
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for indices, counts in zip(sampler, sampler.counts(), strict=True):
            optimizer.zero_grad()
            if hook: state.begin(counts)
            losses = model(x[indices])
            if poison and counts[rank] == 0: losses = losses * float("nan")
            (losses.mean() if loss == "mean" else losses.sum()).backward()
            optimizer.step()
            shorts += counts[rank] == 0
    assert not poison or rank < 2 or shorts == 2
    return [p.detach().clone() for p in model.module.parameters()]

def alone(batch, length, dtype, linear=False):
    '''One process over whole batches: the sum's gradient, divided once.'''
    x = data(length, dtype)
    model = Exact(dtype, linear)
    optimizer = torch.optim.SGD(model.parameters(), lr=2 ** -6)
    sampler = UnevenSampler(x, Shares.from_rates([1], batch), rank=0, seed=5)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for indices in sampler:
            optimizer.zero_grad()
            model(x[indices]).sum().backward()
            for p in model.parameters(): p.grad /= len(indices)
            optimizer.step()
    return [p.detach().clone() for p in model.parameters()]

def same(a, b, what):
    for p, q in zip(a, b, strict=True):
        assert p.isfinite().all() and torch.equal(p, q), (what, (p - q).abs().max())
"""
)


def test_training_equals_the_even_split_bit_for_bit(run):
    """Shares 5:5:3:3 against even shares, against plain DDP with a mean loss and
    against one process, with a last short batch of 8, and of 2, where two ranks
    have no sample and even compute NaN; batches of 12, where no division is
    exact; float16, whose plain sums would overflow; the mean loss."""
    run(
        TRAIN
        + """
uneven = Shares.from_rates([5, 5, 3, 3], 16)
even = gpubridge.even_shares(16)
assert uneven.samples == (5, 5, 3, 3) and even.samples == (4, 4, 4, 4)
# 40 = 2 batches and 8: the divisions of plain DDP are exact too.
want = train(even, 40, hook=False, loss="mean")
same(train(uneven, 40, hook=True), want, "uneven, plain even")
same(train(even, 40, hook=True), want, "even, plain even")
same(alone(16, 40, torch.float64), want, "alone, plain even")
# 34 = 2 batches and 2: ranks 2 and 3 have no sample, and compute NaN.
want = train(even, 34, hook=True, poison=True)
same(train(uneven, 34, hook=True, poison=True), want, "without samples")
same(alone(16, 34, torch.float64), want, "alone, without samples")
# Sums are exact, the mean of 12 or 6 is not: it is rounded once, everywhere.
for dtype in (torch.float64, torch.float32):
    uneven, even = Shares.from_rates([5, 3, 2, 2], 12), gpubridge.even_shares(12)
    assert uneven.samples == (5, 3, 2, 2)
    want = alone(12, 30, dtype, linear=True)
    for shares in (uneven, even):
        same(train(shares, 30, hook=True, dtype=dtype, linear=True), want, (dtype, shares))
# A mean loss is exact for counts that are powers of two.
uneven, even = Shares.from_rates([8, 4, 2, 2], 16), gpubridge.even_shares(16)
want = train(even, 32, hook=False, loss="mean")
same(train(uneven, 32, hook=True, loss="mean"), want, "mean")
# For others it is right to rounding.
uneven = Shares.from_rates([5, 5, 3, 3], 16)
for p, q in zip(train(uneven, 32, hook=True, loss="mean"), want, strict=True):
    assert torch.allclose(p, q, rtol=1e-12)
dist.destroy_process_group()
""",
        "nnaa",
        timeout=150,
    )


def test_large_sums_and_misuse(run):
    """float16 sums beyond 65504; a missing begin() comes out of backward, a wrong
    one is refused; no_sync; a subgroup; a hook's records."""
    run(
        COMMON
        + """
shares = Shares.from_rates([5, 5, 3, 3], 16)
def layer(dtype=torch.float32, group=None, loss="sum"):
    linear = torch.nn.Linear(1, 1, bias=False, dtype=dtype)
    size = dist.get_world_size(group)
    state = UnevenState(shares if size == world else Shares.from_rates([3, 1], 4), loss=loss, group=group)
    model = DDP(linear, process_group=group)
    model.register_comm_hook(state, uneven_comm_hook)
    return linear, state, model
# 16 gradients of 16384: their sum is 262144, their mean 16384.
for loss in ("sum", "mean"):
    linear, state, model = layer(torch.float16, loss=loss)
    n = shares.samples[rank]
    value = 16384 if loss == "mean" else 16384 / n
    state.begin()
    y = model(torch.full((n, 1), value, dtype=torch.float16))
    (y.mean() if loss == "mean" else y.sum()).backward()
    want = 16384 if loss == "mean" else 4096
    assert abs(linear.weight.grad.item() - want) <= 8, linear.weight.grad
linear, state, model = layer()
x = torch.full((shares.samples[rank], 1), 3.0)
records = []
class Keep(gpubridge.CollectiveObserver):
    def on_collective(self, record): records.append(record)
gpubridge.add_observer(Keep())
state.begin()
model(x).sum().backward()
assert linear.weight.grad.item() == 3.0
assert [(r.op, r.reduce_op) for r in records if r.op == "all_reduce"] == [("all_reduce", "sum")]
try: model(x).sum().backward(); raise SystemExit("no begin")
except RuntimeError as error: assert "state.begin(counts)" in str(error), error
for bad in ((1, 1, 1), (0, 0, 0, 0), (1, 1, 1, -1)):
    try: state.begin(bad); raise SystemExit(f"taken: {bad}")
    except ValueError as error: assert "4 numbers" in str(error)
for make, text in ((lambda: UnevenState(shares, loss="none"), "loss"),
                   (lambda: UnevenState(Shares.from_rates([1], 4)), "1 ranks"),
                   (lambda: gpubridge.even_shares(3), "not enough")):
    try: make(); raise SystemExit("taken")
    except ValueError as error: assert text in str(error), error
# Four micro-steps, one reduction: the mean of all their samples.
linear, state, model = layer()
with model.no_sync():
    for step in range(3): model(x * step).sum().backward()
state.begin([4 * n for n in shares.samples])
model(x * 3).sum().backward()
assert linear.weight.grad.item() == 3.0 * (0 + 1 + 2 + 3) / 4
# Ranks 1 and 3 alone: three samples of 2 and one of 10.
pair = dist.new_group([1, 3])
if rank in (1, 3):
    linear, state, model = layer(group=pair)
    mine = [3, 1][pair.rank()]
    state.begin()
    model(torch.full((mine, 1), 2.0 if mine == 3 else 10.0)).sum().backward()
    assert linear.weight.grad.item() == 4.0
dist.barrier()
dist.destroy_process_group()
""",
        "nnaa",
    )


def test_measured_shares(run):
    """The same shares on every rank, in the direction of the speeds; odd batches;
    a step that raises on one rank is told to all; so are different arguments."""
    outs = run(
        COMMON
        + """
import time
slow = 2 if rank >= 2 else 1
calls = []
def step(samples):
    calls.append(samples)
    time.sleep(0.004 * slow * samples)
shares = gpubridge.measure_shares(step, 30, warmup=1, steps=3)
assert calls == [gpubridge.even_shares(30).samples[rank]] * 4
first, second, third, fourth = shares.samples
assert sum(shares.samples) == 30 and min(first, second) > max(third, fourth) >= 1
assert "median of 3 steps" in shares.measured and shares.gain > 1.1
print("shares", shares)
# What happens once does not count.
pauses = iter([0.5, 0.5, 0.0, 0.0, 0.0])
def hiccup(samples):
    time.sleep(next(pauses) if rank == 1 else 0.0)
    time.sleep(0.05)
assert max(gpubridge.measure_shares(hiccup, 4, warmup=1, steps=4).samples) <= 2
def broken(samples):
    if rank == 3 and len(calls) > 5: raise KeyError("no such layer")
    calls.append(samples)
try: gpubridge.measure_shares(broken, 8); raise SystemExit("no error")
except RuntimeError as error:
    assert "raised on ranks [3]" in str(error)
    assert isinstance(error.__cause__, KeyError) == (rank == 3)
try: gpubridge.measure_shares(step, 8 + rank); raise SystemExit("no error")
except RuntimeError as error: assert "differ between ranks" in str(error)
for options in ({"steps": 0}, {"warmup": -1}):
    try: gpubridge.measure_shares(step, 8, **options); raise SystemExit("taken")
    except ValueError as error: assert "at least" in str(error)
x = torch.tensor([rank + 1.0])
dist.all_reduce(x)
assert x.item() == 10
dist.destroy_process_group()
""",
        "nnaa",
    )
    lines = {re.search("shares .*", out)[0] for out in outs}
    assert len(lines) == 1, lines


def test_unequal_speeds_wait_at_the_collective(run):
    """S051: the slow ranks set the pace, and only the fast ranks' records show a
    wait. Steps of 10 and 50 ms; then by shares all wait little."""
    outs = run(
        COMMON
        + """
import statistics, time
records = []
class Keep(gpubridge.CollectiveObserver):
    def on_collective(self, record): records.append(record)
gpubridge.add_observer(Keep())
x = torch.ones(16384)
def steps(n, seconds):
    records.clear()
    took = []
    for _ in range(n):
        start = time.perf_counter()
        time.sleep(seconds)
        gpubridge.all_reduce(x, gpubridge.ReduceOp.MAX)
        took.append(time.perf_counter() - start)
    assert len(records) == n
    return [1e3 * statistics.median(took), statistics.median(r.elapsed_ms() for r in records)]
per_sample = 0.05 / 12 if rank >= 2 else 0.01 / 12
result = {"alike": steps(50, 12 * per_sample)}
shares = gpubridge.measure_shares(lambda n: time.sleep(n * per_sample), 48)
result["shares"] = steps(50, shares.samples[rank] * per_sample)
print(json.dumps(result))
dist.destroy_process_group()
""",
        "nnaa",
    )
    rows = [json.loads(out.splitlines()[-1]) for out in outs]
    for rank, row in enumerate(rows):
        took, wait = row["alike"]
        assert 50 <= took < 90, rows
        assert (30 < wait < 60) if rank < 2 else wait < 20, rows
        took, wait = row["shares"]
        assert took < 0.8 * row["alike"][0] and wait < 20, rows


def test_example_runs(tmp_path):
    """The example ends well and shows a gain on unequal ranks."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/uneven.py"), "--steps", "8"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    gain = re.search(r"gain ([\d.]+)", done.stdout)
    assert gain and float(gain[1]) > 1.2, done.stdout
    assert "bit for bit" in done.stdout
