"""Where the checks of tests/gpu run: on the first GPU, or, for a dry run, on the CPU
with simulated vendors, where streams mean nothing."""

import contextlib
import os
import random

import torch


class Place:
    def __init__(self, name):
        self.on_gpu = name == "gpu"
        self.device = torch.device("cuda", 0) if self.on_gpu else torch.device("cpu")
        self.large = 64 << 20 if self.on_gpu else 1 << 18  # elements of big messages

    def stream(self):
        return torch.cuda.Stream(self.device) if self.on_gpu else None

    def on(self, stream):
        return torch.cuda.stream(stream) if self.on_gpu else contextlib.nullcontext()

    def follow(self, stream):
        """`stream` waits for what is on the current one."""
        if self.on_gpu:
            stream.wait_stream(torch.cuda.current_stream(self.device))

    def await_stream(self, stream):
        if self.on_gpu:
            torch.cuda.current_stream(self.device).wait_stream(stream)

    def keep_busy(self, milliseconds):
        """Work on the current stream before what comes next."""
        if self.on_gpu:
            torch.cuda._sleep(int(milliseconds * 1_500_000))  # cycles, near enough

    def synchronize(self):
        if self.on_gpu:
            torch.cuda.synchronize(self.device)


def environment(place, rank, world, port):
    """What a rank's process gets: two islands, of which each has half of the ranks."""
    env = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "GB_GPU_PLACE": place,
    }
    for name in ("GPUBRIDGE_VENDOR", "GPUBRIDGE_CPU_ONLY", "GPUBRIDGE_SPLIT_TEST"):
        env.pop(name, None)
    if place == "cpu":
        env["GPUBRIDGE_VENDOR"] = "nvidia" if rank < world // 2 else "amd"
    else:
        env["GPUBRIDGE_SPLIT_TEST"] = "half"
    return env


def free_port():
    return random.SystemRandom().randrange(20000, 30000)
