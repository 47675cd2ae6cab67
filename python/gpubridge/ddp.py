"""The communication hook for DistributedDataParallel."""

import torch
import torch.distributed as dist

from . import calls
from .session import current


def ddp_comm_hook(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages one gradient bucket over all ranks with one async all_reduce.

    ``model.register_comm_hook(None, gpubridge.ddp_comm_hook)``; `state` is not
    used. DDP must span every rank of the job. A failure comes out of
    ``backward()``.
    """
    buffer = bucket.buffer()
    work = calls.all_reduce(current().world, buffer, dist.ReduceOp.AVG, True, buffer)
    return work.get_future()
