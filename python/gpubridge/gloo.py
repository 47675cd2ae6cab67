"""The bridge ``gloo`` and the policy ``flat-gloo``: torch's Gloo, kept as an
independent reference. A job makes a Gloo group only when it names one of them.
"""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

from . import rendezvous
from .custom import BridgeTransport, CollectivePolicy

_OPS = frozenset({"sum", "max", "min", "product", "band", "bor", "bxor"})
_DTYPES = frozenset(
    {"float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64"}
)
_SLICE = timedelta(milliseconds=50)


class _Group:
    """A Gloo group whose waits end with the job."""

    def __init__(self, store, ranks, timeout):
        self.ranks = list(ranks)
        self.timeout = timeout
        me = self.ranks.index(rendezvous.rank())
        self.group = dist.ProcessGroupGloo(store, me, len(self.ranks), timeout)

    def _finish(self, work):
        # Gloo's own wait hears of nothing but its peers.
        end = time.monotonic() + self.timeout.total_seconds()
        while not work.is_completed():
            try:
                work.wait(_SLICE)
            except RuntimeError:  # not yet, or failed: its own wait tells
                rendezvous.check()
            if time.monotonic() >= end:
                raise TimeoutError(
                    f"Gloo did not end within {self.timeout.total_seconds():g} s"
                )
        work.wait()

    # All work on copies: when a wait ends early, Gloo's threads may still write.

    def all_reduce(self, tensor, op):
        copy = tensor.clone()
        options = dist.AllreduceOptions()
        options.reduceOp = op
        self._finish(self.group.allreduce([copy], options))
        tensor.copy_(copy)

    def broadcast(self, tensor, src):
        copy = tensor.clone()
        options = dist.BroadcastOptions()
        options.rootRank = self.ranks.index(src)
        options.rootTensor = 0
        self._finish(self.group.broadcast([copy], options))
        if src != rendezvous.rank():
            tensor.copy_(copy)

    def all_gather(self, output, input):
        rows = [torch.empty_like(input) for _ in self.ranks]
        self._finish(self.group.allgather([rows], [input.clone()]))
        torch.cat(rows, out=output)

    def close(self):
        """Idempotent. Ends what is still on its way, where torch can."""
        group, self.group = self.group, None
        if group is not None and hasattr(group, "abort"):
            group.abort()


class GlooTransport(BridgeTransport):
    """A Gloo group of the islands' leaders."""

    name = "gloo"
    reduce_ops = _OPS
    reduce_dtypes = _DTYPES

    def __init__(self, group):
        self.group = group

    @classmethod
    def create(cls, ranks, *, timeout=None):
        if rendezvous.rank() not in ranks:
            return None
        return cls(_Group(rendezvous.store(), ranks, timeout))

    @property
    def process_group(self):
        return self.group.group

    def all_reduce(self, tensor, op=dist.ReduceOp.SUM):
        self.group.all_reduce(tensor, op)

    def broadcast(self, tensor, src):
        self.group.broadcast(tensor, src)

    def close(self):
        self.group.close()

    def telemetry(self):
        return {"members": list(self.group.ranks)}


class FlatGlooPolicy(CollectivePolicy):
    """Every collective on one Gloo group of all ranks."""

    name = "flat-gloo"
    reduce_ops = _OPS
    reduce_dtypes = _DTYPES

    def __init__(self):
        self.group = None

    @classmethod
    def applies_to(cls, layout):
        return True

    def setup(self, topology):
        store = dist.PrefixStore("flat-gloo", rendezvous.store())
        ranks = range(topology.world_size)
        self.group = _Group(store, ranks, topology.timeout)

    def all_reduce(self, tensor, topology, op=dist.ReduceOp.SUM):
        self.group.all_reduce(tensor, op)

    def broadcast(self, tensor, src, topology):
        self.group.broadcast(tensor, src)

    def all_gather_into_tensor(self, output, input, topology):
        self.group.all_gather(output, input)

    def reduce_scatter_tensor(self, output, input, topology, op=dist.ReduceOp.SUM):
        total = input.clone()
        self.group.all_reduce(total, op)
        mine = output.numel() * topology.rank
        output.copy_(total[mine : mine + output.numel()])

    def close(self):
        if self.group is not None:
            self.group.close()
