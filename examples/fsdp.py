#!/usr/bin/env python3
"""FSDP2 over NVIDIA and AMD ranks: a transformer, each rank holding a part.

    gpubridge run --islands nvidia:2,amd:2 -- python examples/fsdp.py --hsdp
    torchrun --nproc-per-node 4 examples/fsdp.py --simulate --verify

With --hsdp parameters are sharded inside the islands and replicated across, so
that only gradient shards cross the bridge. With --verify rank 0 repeats the
training alone, unsharded, and compares.
"""

import argparse
import os
from pydoc_data.topics import topics

import gpubridge
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

LENGTH = 32
BATCH = 4  # a rank


def simulate():
    """Without GPUs: calls the first half of a torchrun's ranks NVIDIA."""
    first = int(os.environ["LOCAL_RANK"]) * 2 < int(os.environ["LOCAL_WORLD_SIZE"])
    os.environ["GPUBRIDGE_VENDOR"] = "nvidia" if first else "amd"


class Transformer(nn.Module):
    """Guesses each next letter of a text from those before it: one row of 256
    logits a letter."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.letters = nn.Embedding(256, 32)
        self.places = nn.Parameter(torch.zeros(LENGTH, 32))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0, batch_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(32, 256)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, dtype=torch.double)
        x = self.letters(x) + self.places
        for block in self.blocks:
            x = block(x, mask, is_causal=True)
        return self.head(x.flatten(0, 1))


def train(model, ranks, world, steps):
    """Trains on the batches of `ranks`; returns the losses, averaged over them."""
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    text = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        total = 0.0
        for rank in ranks:
            pick = torch.Generator().manual_seed(step * world + rank)
            at = torch.randint(len(text) - LENGTH, (BATCH, 1), generator=pick)
            rows = text[at + torch.arange(LENGTH + 1)]
            guess = model(rows[:, :-1])
            loss = nn.functional.cross_entropy(guess, rows[:, 1:].flatten())
            (loss / len(ranks)).backward()
            total += loss.item() / len(ranks)
        optimizer.step()
        losses.append(total)
    return torch.tensor(losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulate", action="store_true", help=simulate.__doc__)
    parser.add_argument("--hsdp", action="store_true", help="shard inside islands only")
    parser.add_argument("--verify", action="store_true", help="compare with one process")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    if args.simulate:
        simulate()
    dist.init_process_group(backend="gpubridge")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = gpubridge.hsdp_mesh() if args.hsdp else None
    if mesh is not None and rank == 0:
        print(gpubridge.explain_mesh(mesh))

    # In double precision, so that --verify shows lost gradients, not rounding.
    model = Transformer().double()
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh)
    losses = train(model, [rank], world, args.steps)
    dist.all_reduce(losses, dist.ReduceOp.AVG)
    mine = sum(p.to_local().numel() for p in model.parameters())
    whole = [p.full_tensor().detach() for p in model.parameters()]

    if rank == 0:
        islands = len(gpubridge.get_topology().layout.islands)
        total = sum(p.numel() for p in whole)
        print(
            f"{world} ranks in {islands} islands: loss {losses[0]:.2f} -> "
            f"{losses[-1]:.2f}; rank 0 holds {mine} of {total} parameters"
        )
        if args.verify:
            alone = Transformer().double()
            train(alone, range(world), world, args.steps)
            pairs = zip(alone.parameters(), whole, strict=True)
            worst = max((a - b).abs().max().item() for a, b in pairs)
            assert worst < 1e-9, f"differs from one process by {worst}"
            print(f"verified: one process ends with the same model, within {worst:.0e}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
