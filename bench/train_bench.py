"""Training steps through torch, gpubridge and Gloo in turns in one job; one line
of JSON a measurement on rank 0.

train_bench.py [ROUNDS]

{"what": "DDP step", "ours_us": ..., "gloo_us": ...}: means of a round of steps of a
small transformer. Both train the same model on the same data; the losses are
compared at the end."""

import json
import os
import sys
import time

import gpubridge  # noqa: F401 - registers the backend
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS = 5
WIDTH, HEADS, LAYERS, TOKENS, BATCH, WORDS = 128, 4, 2, 32, 4, 512


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(LAYERS)
        )
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def ddp(group):
    return DistributedDataParallel(Model(), process_group=group)


def fsdp(group):
    mesh = DeviceMesh.from_group(group, "cpu")
    model = Model()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


class Trainer:
    def __init__(self, wrap, group):
        self.model = wrap(group)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        generator = torch.Generator().manual_seed(dist.get_rank())
        self.tokens = torch.randint(WORDS, (BATCH, TOKENS), generator=generator)
        self.loss = None

    def step(self):
        self.optimizer.zero_grad()
        logits = self.model(self.tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), self.tokens.flatten())
        loss.backward()
        self.optimizer.step()
        self.loss = loss.item()


def mean_step(trainer):
    dist.barrier()
    start = time.perf_counter()
    for _ in range(STEPS):
        trainer.step()
    return (time.perf_counter() - start) / STEPS * 1e6


def main(rounds):
    torch.set_num_threads(1)
    dist.init_process_group("gpubridge")
    gloo = dist.new_group(backend="gloo")
    ours = dist.distributed_c10d._get_default_group()
    for what, wrap in (("DDP step", ddp), ("FSDP2 step", fsdp)):
        trainers = {"ours": Trainer(wrap, ours), "gloo": Trainer(wrap, gloo)}
        for trainer in trainers.values():
            mean_step(trainer)
        for k in range(rounds):
            names = ("ours", "gloo") if k % 2 else ("gloo", "ours")
            times = {name: mean_step(trainers[name]) for name in names}
            if dist.get_rank() == 0:
                print(
                    json.dumps({"what": what, **{f"{n}_us": t for n, t in times.items()}}),
                    flush=True,
                )
        mine, theirs = trainers["ours"].loss, trainers["gloo"].loss
        assert abs(mine - theirs) < 1e-3, (what, mine, theirs)
    dist.destroy_process_group(gloo)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
