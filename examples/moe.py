#!/usr/bin/env python3
"""A mixture of experts over NVIDIA and AMD ranks: each rank holds one expert.

    gpubridge run --islands nvidia:2,amd:2 -- python examples/moe.py
    torchrun --nproc-per-node 4 examples/moe.py --simulate

A router sends every token to one expert, wherever it is: tokens travel by
all_to_all, as many as were chosen, and come back the same way; so do gradients.
"""

import argparse
import os

import gpubridge
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd

WIDTH = 8
TOKENS = 128  # a rank


def simulate():
    """Without GPUs: calls the first half of a torchrun's ranks NVIDIA."""
    first = int(os.environ["LOCAL_RANK"]) * 2 < int(os.environ["LOCAL_WORLD_SIZE"])
    os.environ["GPUBRIDGE_VENDOR"] = "nvidia" if first else "amd"


def exchange(rows, to, back):
    """Sends to[r] rows to each rank r and gets back[r] from it; differentiable."""
    group = dist.group.WORLD
    return all_to_all_single_autograd(rows, back, to, group)


class Mixture(nn.Module):
    """The router is the same on every rank, the expert each rank's own."""

    def __init__(self, rank, world):
        super().__init__()
        torch.manual_seed(0)
        self.router = nn.Linear(WIDTH, world)
        torch.manual_seed(1 + rank)
        self.expert = nn.Sequential(
            nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH)
        )

    def forward(self, x):
        chances = self.router(x).softmax(1)
        weight, expert = chances.max(1)
        order = expert.argsort(stable=True)  # tokens, sorted by expert
        to = torch.bincount(expert, minlength=chances.shape[1])
        back = torch.empty_like(to)
        dist.all_to_all_single(back, to)  # how many will come from each rank
        to, back = to.tolist(), back.tolist()
        here = exchange(x[order], to, back)
        there = exchange(self.expert(here), back, to)
        y = torch.zeros_like(there).index_copy(0, order, there)
        # The usual extra loss: tokens should spread over the experts.
        share = torch.tensor(to) / len(x)
        balance = (share * chances.mean(0)).sum() * len(to)
        return y * weight[:, None], balance, to


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulate", action="store_true", help=simulate.__doc__)
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    if args.simulate:
        simulate()
    dist.init_process_group(backend="gpubridge")
    topology = gpubridge.get_topology()
    rank, world = dist.get_rank(), dist.get_world_size()
    far = [r for r in range(world) if r not in topology.island.ranks]

    model = Mixture(rank, world)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    pick = torch.Generator().manual_seed(rank)
    losses = []
    sent = torch.zeros(2)  # tokens in all, tokens over the bridge
    for _ in range(args.steps):
        x = torch.randn(TOKENS, WIDTH, generator=pick)
        optimizer.zero_grad()
        y, balance, to = model(x)
        loss = nn.functional.mse_loss(y, x.abs())
        (loss + 0.01 * balance).backward()
        for parameter in model.router.parameters():
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
        for parameter in model.expert.parameters():
            parameter.grad /= world  # tokens of all ranks added up in it
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())
        sent += torch.tensor([TOKENS, sum(to[r] for r in far)])
    dist.all_reduce(sent)

    router = torch.cat([p.detach().flatten() for p in model.router.parameters()])
    first = router.clone()
    dist.broadcast(first, 0)
    same = torch.tensor(int(torch.equal(router, first)))
    dist.all_reduce(same, dist.ReduceOp.MIN)
    if rank == 0:
        print(
            f"{world} experts in {len(topology.layout.islands)} islands: loss "
            f"{losses[0]:.2f} -> {losses[-1]:.2f}; {sent[1] / sent[0]:.0%} of the "
            f"tokens crossed the bridge; the router is "
            f"{'identical' if same else 'DIFFERENT'} on all ranks"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
