#!/usr/bin/env python3
"""A pipeline over NVIDIA and AMD ranks: each rank is one stage of the model.

    gpubridge run --islands nvidia:2,amd:2 -- python examples/pipeline.py
    torchrun --nproc-per-node 4 examples/pipeline.py --simulate

Activations go forward from stage to stage and gradients back, a few micro-batches
at a time. At the end rank 0 repeats the training alone and compares.
"""

import argparse
import os

import gpubridge
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

WIDTH = 16
MICRO_BATCHES = 8


def simulate():
    """Without GPUs: calls the first half of a torchrun's ranks NVIDIA."""
    first = int(os.environ["LOCAL_RANK"]) * 2 < int(os.environ["LOCAL_WORLD_SIZE"])
    os.environ["GPUBRIDGE_VENDOR"] = "nvidia" if first else "amd"


def make_stage(number):
    torch.manual_seed(number)
    layers = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH))
    return layers.double()


def batch(step):
    """What goes in and what should come out: a fixed mixing of the input."""
    x = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(step)).double()
    return x, torch.sin(x.roll(1, 1)) + 0.5 * x


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulate", action="store_true", help=simulate.__doc__)
    parser.add_argument("--steps", type=int, default=80)
    args = parser.parse_args()
    if args.simulate:
        simulate()
    dist.init_process_group(backend="gpubridge")
    rank, world = dist.get_rank(), dist.get_world_size()

    layers = make_stage(rank)
    stage = PipelineStage(layers, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.Adam(layers.parameters(), lr=0.005)
    losses = []
    for step in range(args.steps):
        x, want = batch(step)
        parts = []
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            schedule.step(target=want, losses=parts)
        else:
            schedule.step()
        optimizer.step()
        # Only the last stage knows the loss: all learn it.
        loss = torch.stack(parts).mean() if parts else torch.zeros(()).double()
        loss = loss.detach()
        dist.broadcast(loss, world - 1)
        losses.append(loss.item())

    mine = torch.cat([p.detach().flatten() for p in layers.parameters()])
    stages = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(stages, mine)
    if rank == 0:
        worst = difference_from_one_process(stages, args.steps)
        assert worst < 1e-9, f"differs from one process by {worst}"
        islands = len(gpubridge.get_topology().layout.islands)
        print(
            f"{world} stages in {islands} islands, {MICRO_BATCHES} micro-batches: "
            f"loss {losses[0]:.2f} -> {losses[-1]:.2f}; one process ends with the "
            f"same model, within {worst:.0e}"
        )
    dist.barrier()
    dist.destroy_process_group()


def difference_from_one_process(stages, steps):
    """Trains all stages here; how far their parameters are from `stages`."""
    model = nn.Sequential(*(make_stage(number) for number in range(len(stages))))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for step in range(steps):
        x, want = batch(step)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), want).backward()
        optimizer.step()
    alone = torch.cat([p.detach().flatten() for p in model.parameters()])
    return (alone - torch.cat(stages)).abs().max().item()


if __name__ == "__main__":
    main()
