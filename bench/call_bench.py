"""Host time of a call with nothing to communicate (a job of one rank), one JSON
line: microseconds of `torch.distributed.all_reduce` of one float32, of the same
call on the process group, of `gpubridge.all_reduce`, and of the C extension.

The best of many short batches counts: what the code needs, not what the machine
was doing besides."""

import json
import os
import socket
import time

import gpubridge
import torch
import torch.distributed as dist

BATCH, BATCHES = 100, 1000


def best_us(call):
    best = float("inf")
    for _ in range(BATCHES):
        start = time.perf_counter()
        for _ in range(BATCH):
            call()
        best = min(best, time.perf_counter() - start)
    return best / BATCH * 1e6


def main():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(
        RANK="0",
        WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        GPUBRIDGE_VENDOR="nvidia",
    )
    dist.init_process_group("gpubridge")
    tensor = torch.zeros(1)
    group = dist.distributed_c10d._get_default_group()
    options = dist.AllreduceOptions()
    options.asyncOp = False
    core, address = group._group.core, tensor.data_ptr()
    print(
        json.dumps(
            {
                "dist": best_us(lambda: dist.all_reduce(tensor)),
                "group": best_us(lambda: group.allreduce([tensor], options)),
                "native": best_us(lambda: gpubridge.all_reduce(tensor)),
                "extension": best_us(lambda: core.all_reduce(address, 1, 6, 0, False)),
            }
        )
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
