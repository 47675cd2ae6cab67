"""For scripts that run as ranks: the same checks over gpubridge and then over
Gloo, in the same processes, and every value compared.

A check is a function without arguments that returns a dict: tensors that must
agree bit for bit, so they come from integers that no step rounds; or numbers
made by :func:`close`, which must agree within rounding.
"""

import os

import gpubridge
import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])


def ints(*shape, seed=0, low=-2, high=3, dtype=torch.float32):
    """Whole numbers from `low` to `high` - 1, the same for a seed everywhere."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


class Close:
    """A value that rounding may change a little."""

    def __init__(self, value, tolerance):
        self.value = torch.as_tensor(value, dtype=torch.float64)
        self.tolerance = tolerance

    def same(self, other):
        return torch.allclose(
            self.value, other.value, rtol=self.tolerance, atol=self.tolerance
        )

    def __repr__(self):
        return f"close to {self.value}"


def close(value, tolerance=1e-12):
    return Close(value, tolerance)


class Chain(nn.Module):
    """Linear layers with whole-numbered weights. In float64 three steps of SGD
    with a power of two as the rate stay exact. Rows of its layers do not divide
    among 4 ranks: 5, 3 and 1."""

    def __init__(self, sizes=(4, 5, 3, 1), dtype=torch.float64):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(a, b, dtype=dtype) for a, b in zip(sizes, sizes[1:], strict=False)
        )
        with torch.no_grad():
            for i, parameter in enumerate(self.parameters()):
                parameter.copy_(ints(*parameter.shape, seed=i))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def batch(step, rank=RANK, rows=4, columns=4, dtype=torch.float64):
    """Rank's part of a step's input; a multiple of WORLD, so that the mean over
    the ranks is a whole number."""
    return ints(rows, columns, seed=100 * step + rank, dtype=dtype) * WORLD


def copied(values):
    return {name: value.detach().clone() for name, value in values.items()}


def _same(mine, want):
    if isinstance(want, Close):
        return mine.same(want)
    return mine.dtype == want.dtype and torch.equal(mine, want)


def _results(checks):
    results = {}
    for check in checks:
        for name, value in check().items():
            results[f"{check.__name__}: {name}"] = value
    return results


def meet_over_gloo():
    """Makes a default group of all ranks over Gloo; none of them leaves before
    all are there, which Gloo does not survive."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{os.environ['MEET']}",
        rank=RANK,
        world_size=WORLD,
    )
    dist.barrier()


def beside_gloo(*checks):
    """Runs the checks twice; AssertionError with the first difference."""
    dist.init_process_group("gpubridge")
    layout = gpubridge.get_topology().layout
    mine = _results(checks)
    dist.destroy_process_group()
    meet_over_gloo()
    want = _results(checks)
    dist.destroy_process_group()
    assert mine.keys() == want.keys()
    for name, value in want.items():
        assert _same(mine[name], value), (
            f"{name} differs on rank {RANK} of {layout}:\n"
            f"gpubridge {mine[name]}\ngloo {value}"
        )
    print(f"equal in {len(want)} values")
