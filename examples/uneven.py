#!/usr/bin/env python3
"""One job over a fast and a slow island: even split against measured shares.

Four processes train one model with DistributedDataParallel, two as NVIDIA ranks
and two as AMD ranks. The AMD ranks are made slower by a pause for each sample, as
if their GPUs were. The job trains once with equal shares of every batch and once
with the shares that gpubridge.measure_shares finds, and prints samples per second
of both, and whether the trained parameters are the same.

Run without arguments; it launches its own ranks. docs/uneven.md explains it.
"""

import argparse
import os
import socket
import subprocess
import sys
import time

RANKS = ("nvidia", "nvidia", "amd", "amd")
FEATURES, CLASSES = 64, 10


def make_data(count):
    """Whole numbers, so that sums of gradients are exact and can be compared."""
    import torch

    generator = torch.Generator().manual_seed(1)
    inputs = torch.randint(-3, 4, (count, FEATURES), generator=generator)
    targets = torch.randint(-3, 4, (count, CLASSES), generator=generator)
    return torch.utils.data.TensorDataset(inputs.double(), targets.double())


def make_model():
    import torch

    model = torch.nn.Linear(FEATURES, CLASSES).double()
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    return model


def compute(model, inputs, targets, pause):
    """Forward and backward of the local samples; a loss that is their sum."""
    time.sleep(pause * len(inputs))
    loss = (model(inputs) * targets).sum()
    loss.backward()


def train(shares, data, pause):
    """One pass over the data; samples per second and the parameters."""
    import gpubridge
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader

    model = DistributedDataParallel(make_model())
    state = gpubridge.UnevenState(shares)
    model.register_comm_hook(state, gpubridge.uneven_comm_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sampler = gpubridge.UnevenSampler(len(data), shares)
    loader = DataLoader(data, batch_sampler=sampler)
    gpubridge.barrier()
    start = time.monotonic()
    for (inputs, targets), counts in zip(loader, sampler.counts(), strict=True):
        optimizer.zero_grad()
        state.begin(counts)
        compute(model, inputs, targets, pause)
        optimizer.step()
    gpubridge.barrier()
    rate = len(data) / (time.monotonic() - start)
    return rate, torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def run_rank(args):
    import gpubridge
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(backend="gpubridge")
    topology = gpubridge.get_topology()
    slow = topology.layout.island_of(topology.rank).vendor == "amd"
    pause = args.pause / 1000 * (args.slower if slow else 1)
    data = make_data(args.batch * args.steps + args.batch // 2)  # a short last batch

    spare = make_model()
    inputs, targets = make_data(args.batch).tensors

    def step(samples):
        compute(spare, inputs[:samples], targets[:samples], pause)

    shares = gpubridge.measure_shares(step, args.batch)
    even_rate, even = train(gpubridge.even_shares(args.batch), data, pause)
    rate, parameters = train(shares, data, pause)
    if topology.rank == 0:
        same = "the same, bit for bit" if torch.equal(even, parameters) else "DIFFERENT"
        print(f"  measured    {', '.join(f'{r:.0f}' for r in shares.rates)} samples/s")
        print(f"  shares      {shares.samples} of {args.batch}")
        print(f"  even split  {even_rate:7.0f} samples/s")
        print(f"  by shares   {rate:7.0f} samples/s")
        print(f"  gain {rate / even_rate:.2f} (expected {shares.gain:.2f})")
        print(f"  parameters  {same}", flush=True)
    equal = torch.equal(even, parameters)
    dist.destroy_process_group()
    if not equal:
        sys.exit("uneven: the shares changed the result")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch():
    port = free_port()
    ranks = []
    for rank, vendor in enumerate(RANKS):
        env = dict(
            os.environ,
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(len(RANKS)),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            GPUBRIDGE_VENDOR=vendor,
        )
        command = [sys.executable, __file__, "--rank", *sys.argv[1:]]
        ranks.append(subprocess.Popen(command, env=env))
    # A rank that fails ends the others too: they name it and exit.
    codes = [process.wait() for process in ranks]
    if any(codes):
        sys.exit(f"uneven: the ranks ended with codes {codes}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64, help="samples of a global batch")
    parser.add_argument("--steps", type=int, default=40, help="whole batches of a pass")
    parser.add_argument("--pause", type=float, default=2.0, help="ms a sample, fast ranks")
    parser.add_argument("--slower", type=float, default=3.0, help="AMD ranks' factor")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        run_rank(args)
        return
    print(
        f"2 + 2 ranks, the AMD ones {args.slower:g} times slower, "
        f"{args.steps} batches of {args.batch} samples and one of {args.batch // 2}:"
    )
    launch()


if __name__ == "__main__":
    main()
