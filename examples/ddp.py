#!/usr/bin/env python3
"""DistributedDataParallel over NVIDIA and AMD ranks: two lines are new.

A small network learns to guess the next letter of Python's manual.

    gpubridge run --islands nvidia:2,amd:2 -- python examples/ddp.py
    torchrun --nproc-per-node 4 examples/ddp.py --simulate
"""

import argparse
import os
from pydoc_data.topics import topics

import gpubridge  # new: registers the backend
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CONTEXT = 8  # letters that the guess is made from
BATCH = 64  # a rank


def simulate():
    """Without GPUs: calls the first half of a torchrun's ranks NVIDIA."""
    first = int(os.environ["LOCAL_RANK"]) * 2 < int(os.environ["LOCAL_WORLD_SIZE"])
    os.environ["GPUBRIDGE_VENDOR"] = "nvidia" if first else "amd"


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(256, 16),
        nn.Flatten(),
        nn.Linear(16 * CONTEXT, 128),
        nn.ReLU(),
        nn.Linear(128, 256),
    )


def letters():
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulate", action="store_true", help=simulate.__doc__)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    if args.simulate:
        simulate()
    dist.init_process_group(backend="gpubridge")  # new: the name
    rank, world = dist.get_rank(), dist.get_world_size()

    text = letters()
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    pick = torch.Generator().manual_seed(rank)  # every rank reads other places
    losses = []
    for _ in range(args.steps):
        at = torch.randint(len(text) - CONTEXT, (BATCH, 1), generator=pick)
        rows = text[at + torch.arange(CONTEXT + 1)]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(rows[:, :-1]), rows[:, -1])
        loss.backward()  # averages the gradients of all ranks
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())

    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    first = flat.clone()
    dist.broadcast(first, 0)
    same = torch.tensor(int(torch.equal(flat, first)))
    dist.all_reduce(same, dist.ReduceOp.MIN)
    if rank == 0:
        islands = len(gpubridge.get_topology().layout.islands)
        print(
            f"{world} ranks in {islands} islands: loss {losses[0]:.2f} -> "
            f"{losses[-1]:.2f}; the parameters are "
            f"{'identical' if same else 'DIFFERENT'} on all ranks"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
