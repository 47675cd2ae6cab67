#!/usr/bin/env python3
"""make demo: one PyTorch job over a simulated NVIDIA and a simulated AMD island.

Four processes, two of each vendor, train a small convolutional network on
scikit-learn's handwritten digits with DistributedDataParallel on
``backend="gpubridge"``. The same training then runs in one process, to show
that nothing was lost, and demo-loss.svg gets the curves.

Run without arguments; it launches its own ranks.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

EPOCHS = 12
BATCH = 128  # over all ranks together
RANKS = ("nvidia", "nvidia", "amd", "amd")


# ---- the model and the data, the same in every process ----


def make_data():
    import numpy
    import torch
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = numpy.random.default_rng(0).permutation(len(digits.target))
    images = torch.tensor(digits.images[order] / 16.0)
    labels = torch.tensor(digits.target[order], dtype=torch.int64)
    cut = len(labels) * 4 // 5 // BATCH * BATCH  # whole batches
    images = images.unsqueeze(1)
    return (images[:cut], labels[:cut]), (images[cut:], labels[cut:])


def make_model(seed):
    import torch
    from torch import nn

    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 16, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
    # In double precision, so that the comparison with one process shows lost or
    # doubled gradients and not the rounding of two orders of summation.
    return model.double()


def batches(count, epoch):
    """The order of one epoch: the same in every process."""
    import torch

    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
    return order.split(BATCH)


def accuracy(model, images, labels):
    import torch

    with torch.no_grad():
        return (model(images).argmax(1) == labels).double().mean().item()


def train(model, rank, world, average, on_step):
    """SGD over all epochs. Each rank takes its share of every batch."""
    import torch

    (images, labels), (test_images, test_labels) = make_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()
    share = BATCH // world
    losses, accuracies = [], []
    for epoch in range(EPOCHS):
        for batch in batches(len(labels), epoch):
            mine = batch[rank * share : (rank + 1) * share]
            optimizer.zero_grad()
            loss = loss_of(model(images[mine]), labels[mine])
            loss.backward()
            optimizer.step()
            losses.append(average(loss.detach()))
            on_step(len(losses), losses[-1])
        accuracies.append((len(losses), accuracy(model, test_images, test_labels)))
    return losses, accuracies


# ---- one rank of the job ----


def show_bar(step, total, loss, rate):
    width = 32
    filled = width * step // total
    bar = "#" * filled + "-" * (width - filled)
    end = "\n" if step == total else ""
    text = f"\r  [{bar}] step {step}/{total}  loss {loss:.4f}  {rate:6.0f} samples/s"
    if sys.stdout.isatty() or step == total:
        print(text, end=end, flush=True)


def run_rank(result_path, seed):
    import gpubridge
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    # As between two machines, one of each vendor: over the bridge. Left alone, ranks
    # that share a host, as these do, would meet in its memory without one.
    os.environ.setdefault("GPUBRIDGE_POLICY", "reduce-bridge-broadcast")
    dist.init_process_group(backend="gpubridge")
    topology = gpubridge.get_topology()
    rank, world = topology.rank, topology.world_size
    if rank == 0:
        print_layout(topology)
    model = DistributedDataParallel(make_model(seed))
    steps = EPOCHS * (len(make_data()[0][1]) // BATCH)
    start = time.monotonic()

    def average(loss):
        gpubridge.all_reduce(loss, gpubridge.ReduceOp.AVG)
        return loss.item()

    def on_step(step, loss):
        if rank == 0:
            rate = step * BATCH / (time.monotonic() - start)
            show_bar(step, steps, loss, rate)

    losses, accuracies = train(model, rank, world, average, on_step)
    seconds = time.monotonic() - start
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    least, most = flat.clone(), flat.clone()
    gpubridge.all_reduce(least, gpubridge.ReduceOp.MIN)
    gpubridge.all_reduce(most, gpubridge.ReduceOp.MAX)
    if rank == 0:
        torch.save(
            {
                "losses": losses,
                "accuracies": accuracies,
                "parameters": flat,
                "same": torch.equal(least, most),
                "rate": len(losses) * BATCH / seconds,
            },
            result_path,
        )
    dist.destroy_process_group()


def print_layout(topology):
    print(f"One job of {topology.world_size} ranks, {topology.run_kind}:")
    for island in topology.layout.islands:
        ranks = ", ".join(map(str, island.ranks))
        print(
            f"  {island.vendor:6s} island: ranks {ranks}; "
            f"rank {island.leader} leads and holds its end of the bridge"
        )
    print(f"  bridge {topology.bridge_name}: {topology.selection['reason']}")
    print(f"  policy {topology.policy_name}, as between two machines")


# ---- the picture ----


def polyline(points, color, width=1.6):
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline fill="none" stroke="{color}" stroke-width="{width}" points="{path}"/>'


def write_svg(path, losses, accuracies):
    """Loss (left axis) and test accuracy (right axis) over the steps."""
    left, top, width, height = 60, 40, 620, 300
    most = max(losses)
    steps = len(losses)

    def x(step):
        return left + width * step / steps

    def y(value, limit):
        return top + height * (1 - value / limit)

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="760" height="400" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="760" height="400" fill="white"/>',
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#888"/>',
        '<text x="370" y="22" text-anchor="middle" font-size="15">One job over an '
        "NVIDIA and an AMD island (simulated): handwritten digits</text>",
    ]
    for i in range(6):
        value = i / 5
        at = y(value, 1)
        parts += [
            f'<line x1="{left}" x2="{left + width}" y1="{at:.1f}" y2="{at:.1f}" stroke="#eee"/>',
            f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end" '
            f'fill="#c0392b">{value * most:.1f}</text>',
            f'<text x="{left + width + 8}" y="{at + 4:.1f}" fill="#1f6fb2">{value:.0%}</text>',
            f'<text x="{x(steps * value):.1f}" y="{top + height + 18}" '
            f'text-anchor="middle">{steps * value:.0f}</text>',
        ]
    parts += [
        polyline([(x(i + 1), y(v, most)) for i, v in enumerate(losses)], "#c0392b"),
        polyline([(x(s), y(v, 1)) for s, v in accuracies], "#1f6fb2", 2.4),
        f'<text x="{left}" y="385" fill="#c0392b">loss (mean of all ranks)</text>',
        f'<text x="{left + width}" y="385" text-anchor="end" fill="#1f6fb2">test accuracy</text>',
        f'<text x="{left + width / 2}" y="385" text-anchor="middle">step</text>',
        "</svg>",
    ]
    Path(path).write_text("\n".join(parts) + "\n")


# ---- the launch ----


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch(result_path, seed):
    """Starts the four ranks and waits; ends all when one fails."""
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
        command = [sys.executable, __file__, "--rank", str(result_path), "--seed", str(seed)]
        ranks.append(subprocess.Popen(command, env=env))
    codes = [None] * len(ranks)
    while None in codes:
        codes = [process.poll() for process in ranks]
        if any(code for code in codes):
            time.sleep(3)  # the others end by themselves with the reason
            for process in ranks:
                process.kill()
            sys.exit("demo: a rank failed; its error is above")
        time.sleep(0.05)


def compare_with_one_process(result, seed):
    import torch

    torch.set_num_threads(1)
    model = make_model(seed)
    train(model, 0, 1, lambda loss: loss.item(), lambda step, loss: None)
    alone = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return (alone - result["parameters"]).abs().max().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rank", metavar="RESULT", help=argparse.SUPPRESS)
    parser.add_argument("--json", help="write the figures to this file too")
    parser.add_argument("--seed", type=int, default=1, help="of the first parameters")
    args = parser.parse_args()
    if args.rank:
        run_rank(args.rank, args.seed)
        return
    import tempfile

    import torch

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.pt"
        launch(path, args.seed)
        result = torch.load(path, weights_only=True)
    difference = compare_with_one_process(result, args.seed)
    final = result["accuracies"][-1][1]
    write_svg("demo-loss.svg", result["losses"], result["accuracies"])
    same = "identical" if result["same"] else "DIFFERENT"
    print(f"  test accuracy {final:.1%}")
    print(f"  parameters on all ranks: {same}, bit for bit")
    print(f"  largest difference from one process: {difference:.2e}")
    print("  the curves are in demo-loss.svg")
    if args.json:
        figures = {
            "accuracy": final,
            "same": result["same"],
            "difference": difference,
            "rate": result["rate"],
        }
        Path(args.json).write_text(json.dumps(figures))
    if not result["same"] or final < 0.9 or difference > 1e-9:
        sys.exit("demo: the result is not what it must be")
    print("\nNext:")
    print("  build/bin/gpubridge check --islands nvidia:2,amd:2")
    print("  build/bin/gpubridge run --islands nvidia:3,amd:1 -- python3 your_train.py")
    print("  make test")


if __name__ == "__main__":
    main()
