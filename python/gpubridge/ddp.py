"""The communication hook for DistributedDataParallel."""

import torch
import torch.distributed as dist

from .collectives import check_tensor, run_all_reduce

_AVG = 1


def ddp_comm_hook(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages one gradient bucket over all ranks with one async all_reduce.

    ``model.register_comm_hook(None, gpubridge.ddp_comm_hook)``; `state` is not
    used. DDP must span every rank of the job. A failure comes out of
    ``backward()``.
    """
    buffer = bucket.buffer()
    check_tensor(buffer, "bucket")
    return run_all_reduce(buffer, _AVG, True).get_future()
