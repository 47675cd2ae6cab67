"""Islands of unequal speed: each rank gets its share of the global batch.

A step takes as long as its slowest rank. With equal shares the fast ranks wait;
with shares in proportion to their speed all are done at the same time::

    shares = gpubridge.measure_shares(step, batch_size=256)
    sampler = gpubridge.UnevenSampler(len(data), shares)
    loader = DataLoader(data, batch_sampler=sampler)
    state = gpubridge.UnevenState(shares)
    model.register_comm_hook(state, gpubridge.uneven_comm_hook)
    for (x, y), counts in zip(loader, sampler.counts()):
        state.begin(counts)
        criterion(model(x), y).backward()      # reduction="sum"

The gradients are those of the mean over the global batch, whoever computed
which sample. docs/uneven.md has the arithmetic.
"""

import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from . import calls
from .session import current


def _group(group):
    """Ours: of a torch group, or the job's world for None."""
    if group is None:
        return current().world
    from .process_group import group_of

    return group_of(group)[0]


# ---- shares ----


def _apportion(total, rates, least):
    """`total` as whole numbers in proportion to `rates`, each at least `least`.

    A rank whose proportion is below `least` gets `least`, the others share the
    rest by largest remainders; of equal ones the lower rank is first. In exact
    fractions, so that every rank finds the same.
    """
    rates = [Fraction(rate) for rate in rates]
    given = [least] * len(rates)
    left, speed = total, sum(rates)
    # From the slowest on: what it gets above its proportion, the faster lack.
    slowest_first = sorted(range(len(rates)), key=lambda rank: (rates[rank], -rank))
    while slowest_first and left * rates[slowest_first[0]] < least * speed:
        rank = slowest_first.pop(0)
        left -= least
        speed -= rates[rank]
    remainders = []
    for rank in slowest_first:
        quota = left * rates[rank] / speed
        given[rank] = math.floor(quota)
        remainders.append((given[rank] - quota, rank))
    remainders.sort()
    for _, rank in remainders[: total - sum(given)]:
        given[rank] += 1
    return tuple(given)


@dataclass(frozen=True)
class Shares:
    """Who computes how many samples of each global batch.

    ``samples`` and ``rates`` (samples per second, or any numbers in that
    proportion) are by group rank; ``samples`` sum up to ``batch_size``, each is
    at least 1. ``measured`` says where the rates come from.
    """

    batch_size: int
    samples: tuple[int, ...]
    rates: tuple[float, ...]
    measured: str

    @classmethod
    def from_rates(cls, rates, batch_size, measured="given rates") -> "Shares":
        """Shares of a batch in proportion to `rates`, one positive number a rank.

        Pure: equal arguments give equal shares, on any machine. ValueError for a
        rate that is not positive and finite, or fewer samples than ranks.
        """
        rates = tuple(float(rate) for rate in rates)
        for rank, rate in enumerate(rates):
            if not (rate > 0 and math.isfinite(rate)):
                raise ValueError(
                    f"the rate of rank {rank} is {rate}, but must be a positive, "
                    "finite number of samples per second"
                )
        if not rates:
            raise ValueError("no rates: one is wanted for each rank")
        if int(batch_size) != batch_size or batch_size < len(rates):
            raise ValueError(
                f"a global batch of {batch_size} samples is not enough for "
                f"{len(rates)} ranks: every rank needs at least 1. Use a larger "
                "batch or fewer ranks"
            )
        batch_size = int(batch_size)
        return cls(batch_size, _apportion(batch_size, rates, 1), rates, measured)

    def split(self, count) -> tuple[int, ...]:
        """Samples per rank of a batch of `count`, such as an epoch's last one.

        In the same proportion; with fewer samples than ranks some get 0.
        """
        if count == self.batch_size:
            return self.samples
        return _apportion(count, self.rates, 1 if count >= len(self.rates) else 0)

    @property
    def gain(self) -> float:
        """Expected speed of the computation, as a multiple of the even split's.

        The time of a step is its slowest rank's: the even split's, divided by
        these shares'. Communication and costs per step are not in it.
        """
        even = _apportion(self.batch_size, [1] * len(self.rates), 1)
        return self._seconds(even) / self._seconds(self.samples)

    def _seconds(self, samples):
        return max(n / rate for n, rate in zip(samples, self.rates, strict=True))


def even_shares(batch_size, *, group=None) -> Shares:
    """Equal shares for all ranks of `group` (None: the job).

    If they do not divide, the first ranks get one sample more. Sends nothing.
    """
    return Shares.from_rates([1.0] * _group(group).size, batch_size, "even")


def _synchronize():
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _time_steps(group, step, samples, warmup, steps):
    """(median seconds, None), or (nan, what `step` raised).

    All ranks start each step together, as they will in training: ranks of one
    host then compete as they will. One whose step raised goes on with the
    barriers, so that nobody waits for it.
    """
    seconds = []
    error = None
    for number in range(warmup + steps):
        calls.barrier(group, False, calls.NO_WORK)
        if error is not None:
            continue
        _synchronize()
        start = time.perf_counter()
        try:
            step(samples)
            _synchronize()
        except Exception as raised:  # noqa: BLE001 - told to all ranks below
            error = raised
        if number >= warmup:
            seconds.append(time.perf_counter() - start)
    return (math.nan if error else statistics.median(seconds)), error


def measure_shares(step, batch_size, *, warmup=2, steps=5, group=None) -> Shares:
    """Shares in proportion to each rank's measured speed; equal on all ranks.

    Every rank of `group` (None: the job) calls it with the same numbers.
    ``step(samples)`` does forward and backward of that many samples, without
    communication (the bare model, not the DDP one); it runs ``warmup + steps``
    times with the rank's equal share of `batch_size`. Blocks until all are
    through; the model's gradients are what `step` left.

    A rank's speed is its samples by the *median* of the timed steps. Not the
    fastest: who waits for whom is decided by the steps as they usually are, and
    a rank taken for faster than it is makes all others wait in every step. The
    median still ignores what happens once (a compiler, a clean-up, a neighbour).

    ValueError for numbers that no rank could use. RuntimeError on every rank if
    the step raised on one (there with the original as its cause), or if the
    ranks called it with different numbers.
    """
    group = _group(group)
    if warmup < 0 or steps < 1:
        raise ValueError(
            f"warmup is {warmup} and steps {steps}, but must be at least 0 and 1"
        )
    even = Shares.from_rates([1.0] * group.size, batch_size)
    samples = even.samples[group.rank]
    seconds, error = _time_steps(group, step, samples, warmup, steps)
    mine = torch.tensor([seconds, batch_size, warmup, steps], dtype=torch.float64)
    rows = torch.empty(group.size, 4, dtype=torch.float64)
    calls.all_gather(group, rows, mine, False, calls.NO_WORK)
    rows = rows.tolist()
    if any(row[1:] != rows[0][1:] for row in rows):
        raise RuntimeError(
            "could not measure the ranks' speed: batch_size, warmup and steps differ "
            f"between ranks: {[tuple(map(int, row[1:])) for row in rows]}"
        )
    failed = [rank for rank, row in enumerate(rows) if math.isnan(row[0])]
    if failed:
        raise RuntimeError(
            "could not measure the ranks' speed: the step raised on ranks "
            f"{failed}, see there"
        ) from error
    # The clock's tick for a step that takes no time at all.
    rates = [n / max(row[0], 1e-9) for n, row in zip(even.samples, rows, strict=True)]
    return Shares.from_rates(
        rates, batch_size, f"median of {steps} steps with equal shares"
    )


# ---- sampler ----


class UnevenSampler(Sampler[list[int]]):
    """Batches of indices for a DataLoader's ``batch_sampler``, by shares.

    All ranks cut one order of the data set, that of `seed` and epoch, into
    global batches of ``shares.batch_size``, and each takes its slice of each:
    step k computes the same samples whatever the shares. Every rank has
    ``len(sampler)`` steps.

    The samples that are left at the end are dropped with `drop_last`. Without,
    they are a short batch, shared out in the same proportion. If there are fewer
    than ranks, some ranks get 0: there the batch is *one stand-in sample* of the
    short batch, because DDP waits for a backward of every rank and many layers
    refuse an empty batch. :meth:`counts` says 0 for such a rank, and
    :func:`uneven_comm_hook` then sends zeros instead of its gradients.

    `rank` is the group rank (None: this process's in the job).
    """

    def __init__(
        self, data, shares, *, rank=None, shuffle=True, seed=0, drop_last=False
    ):
        self.length = data if isinstance(data, int) else len(data)
        self.shares = shares
        self.rank = current().world.rank if rank is None else rank
        if not 0 <= self.rank < len(shares.samples):
            raise ValueError(
                f"rank is {self.rank}, but the shares are of "
                f"{len(shares.samples)} ranks"
            )
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0

    def set_epoch(self, epoch):
        """The order of the next pass; call it on all ranks with the same epoch."""
        self.epoch = epoch

    def __len__(self):
        whole, rest = divmod(self.length, self.shares.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def counts(self) -> Iterator[tuple[int, ...]]:
        """For each step of a pass, the samples of each rank; equal on all ranks."""
        whole, rest = divmod(self.length, self.shares.batch_size)
        for _ in range(whole):
            yield self.shares.samples
        if rest and not self.drop_last:
            yield self.shares.split(rest)

    def _order(self):
        if not self.shuffle:
            return torch.arange(self.length)
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        return torch.randperm(self.length, generator=generator)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        begin = 0
        for counts in self.counts():
            mine = begin + sum(counts[: self.rank])
            count = counts[self.rank]
            if count:
                yield order[mine : mine + count].tolist()
            else:
                yield order[begin : begin + 1].tolist()
            begin += sum(counts)


# ---- gradients ----


class UnevenState:
    """What :func:`uneven_comm_hook` needs to know: who computed how much.

    `loss` is the reduction of the loss over the local samples, "sum" or "mean".
    "sum" is exact where the data is; "mean" divides by the local count and the
    hook multiplies by it again, which rounds twice unless it is a power of two.
    `group` is DDP's ``process_group`` (None: the job).
    """

    def __init__(self, shares, *, loss="sum", group=None):
        if loss not in ("sum", "mean"):
            raise ValueError(f'loss is {loss!r}, but must be "sum" or "mean"')
        self.group = _group(group)
        self.shares = shares
        self.loss = loss
        self.samples = None  # of this rank in the step
        self.total = None  # of all ranks
        if len(shares.samples) != self.group.size:
            raise ValueError(
                f"the shares are of {len(shares.samples)} ranks, but the group has "
                f"{self.group.size}"
            )

    def begin(self, counts=None):
        """Before each backward that reduces: the samples of each rank in it.

        `counts` comes from ``sampler.counts()``, equal on all ranks; None stands
        for the shares of a whole batch. After ``no_sync()`` it is the sum over
        the micro-steps (with loss "sum"). ValueError for another number of
        ranks, a negative count or no sample at all.
        """
        counts = self.shares.samples if counts is None else tuple(counts)
        if len(counts) != self.group.size or min(counts) < 0 or not sum(counts):
            raise ValueError(
                f"the counts {list(counts)} must be {self.group.size} numbers of "
                "samples, one for each rank, not all of them 0"
            )
        self.samples = counts[self.group.rank]
        self.total = sum(counts)


def _reduce(state, buffer, op, divisor):
    """Reduces and then divides, once; a future of `buffer`."""
    work = calls.all_reduce(
        state.group, buffer, op, True, buffer, lambda: buffer.div_(divisor)
    )
    return work.get_future()


def uneven_comm_hook(
    state: UnevenState, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Averages one gradient bucket over the samples of all ranks, in one call.

    ``model.register_comm_hook(state, gpubridge.uneven_comm_hook)``, and
    ``state.begin(counts)`` before each backward; without it RuntimeError out of
    ``backward()``. A rank without samples sends zeros, whatever it computed.

    The order of operations, for a loss that is summed over the local samples:
    the ranks' gradients are added first, and the sum is divided once, by the
    number of samples of the global batch. On data whose sums are exact (such as
    integers below 2**24 in float32) the sum is exact in any grouping, so the
    result is the exact mean, rounded once: the same bits whatever the shares,
    the even ones included. It is also what DDP without a hook makes of a mean
    loss, as far as the local and the number of ranks are powers of two, where
    its two divisions are exact. Scaling by n_local / n_global before the sum
    would round each rank's part.

    float16 is scaled by a power of two, exactly, inside the call and divided by
    the rest afterwards, so that sums over a large batch do not overflow.
    """
    if state.total is None:
        raise RuntimeError(
            "uneven_comm_hook does not know this step's samples: call "
            "state.begin(counts) before each backward that reduces gradients"
        )
    buffer, samples, total = bucket.buffer(), state.samples, state.total
    if bucket.is_last():
        state.samples = state.total = None
    weight = samples if state.loss == "mean" else 1
    if samples == 0:
        buffer.zero_()
    if buffer.dtype == torch.float16:
        power = 2 ** (total.bit_length() - 1)
        op = dist._make_nccl_premul_sum(max(weight, 1) / power)
        return _reduce(state, buffer, op, total / power)
    if weight > 1:
        buffer.mul_(weight)
    return _reduce(state, buffer, dist.ReduceOp.SUM, total)
