"""The torch.distributed backend: a Python subclass of ProcessGroup.

torch calls its methods directly (Python callers) or through its trampolines
(C++ callers such as DDP's reducer). Both the old and the new names of the
single-tensor collectives are bound, so that one class serves torch 2.8 and
later.
"""

from datetime import timedelta

import torch
import torch.distributed as dist

from . import session
from .collectives import (
    check_average,
    check_pair,
    check_tensor,
    op_code,
    run_all_gather,
    run_all_reduce,
    run_barrier,
    run_broadcast,
    run_reduce_scatter,
)

_CPU = torch.device("cpu")


def _is_async(opts):
    """Whether the caller goes on before the result is there. Options of C++
    callers, and of older torch, say nothing: they wait on the Work."""
    return bool(getattr(opts, "asyncOp", True))


def _one(tensors, what="tensor"):
    if len(tensors) != 1:
        raise ValueError(f"one {what} is wanted, not {len(tensors)}")
    check_tensor(tensors[0], what)
    return tensors[0]


class GpubridgeProcessGroup(dist.ProcessGroup):
    """The default group of a job over gpubridge."""

    def __init__(self, rank, size, timeout):
        super().__init__(rank, size)
        self._rank = rank
        self._size = size
        self._timeout = timeout
        self._name = ""
        self._desc = ""

    # ---- who and what ----

    def rank(self):
        return self._rank

    def size(self):
        return self._size

    getRank = rank
    getSize = size

    def getBackendName(self):
        return "gpubridge"

    def name(self):
        return "gpubridge"

    def _get_backend_name(self):
        return "gpubridge"

    def _get_backend(self, device):
        return self

    get_backend = _get_backend

    @property
    def _device_types(self):
        return [_CPU]

    def getGroupName(self):
        return self._name

    def setGroupName(self, name):
        self._name = name

    _set_group_name = setGroupName

    @property
    def group_name(self):
        return self._name

    def getGroupDesc(self):
        return self._desc

    def setGroupDesc(self, desc):
        self._desc = desc

    _set_group_desc = setGroupDesc

    @property
    def group_desc(self):
        return self._desc

    bound_device_id = None
    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False

    def supports_tensor_alloc(self, device):
        return False

    def _set_default_backend(self, kind):
        pass

    def _set_sequence_number_for_group(self):
        pass

    def _get_sequence_number_for_group(self):
        return 0

    def _has_hooks(self):
        return False

    def _wait_for_pending_works(self):
        pass

    # ---- life ----

    def shutdown(self):
        """Leaves the job in order. Idempotent, bounded in time."""
        session.close_session()

    def abort(self):
        """Ends every pending call on every rank."""
        if session.is_initialized():
            session.current().job.abort("torch.distributed aborted the group")

    # ---- collectives ----

    def allreduce(self, tensors, opts=None):
        tensor = _one(tensors)
        code = op_code(opts.reduceOp if opts is not None else dist.ReduceOp.SUM)
        check_average(code, tensor)
        return run_all_reduce(tensor, code, _is_async(opts), list(tensors))

    def broadcast(self, tensors, opts=None):
        tensor = _one(tensors)
        root = opts.rootRank if opts is not None else 0
        return run_broadcast(tensor, root, _is_async(opts), list(tensors))

    def all_gather_single(self, output, input, opts=None):
        check_pair("output", output, "input", input, self._size)
        return run_all_gather(output, input, _is_async(opts), [output])

    def reduce_scatter_single(self, output, input, opts=None):
        code = op_code(opts.reduceOp if opts is not None else dist.ReduceOp.SUM)
        check_pair("input", input, "output", output, self._size)
        check_average(code, input)
        return run_reduce_scatter(output, input, code, _is_async(opts), [output])

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single

    def allgather(self, outputs, inputs, opts=None):
        """Lists: gathered into one tensor, then copied out."""
        mine = _one(inputs, "input")
        if len(outputs) != 1 or len(outputs[0]) != self._size:
            raise ValueError(
                f"one list of {self._size} outputs is wanted, one for each rank"
            )
        for place in outputs[0]:
            check_tensor(place, "output")
            if place.dtype != mine.dtype or place.numel() != mine.numel():
                raise ValueError(
                    f"an output has {place.numel()} elements of {place.dtype}, "
                    f"the input {mine.numel()} of {mine.dtype}: they must agree"
                )
        rows = torch.empty(
            (self._size, mine.numel()), dtype=mine.dtype, device=mine.device
        )

        def copy_out():
            for row, place in zip(rows, outputs[0], strict=True):
                place.view(-1).copy_(row)

        return run_all_gather(rows, mine, _is_async(opts), outputs[0], copy_out)

    def barrier(self, opts=None):
        return run_barrier(_is_async(opts))

    def _missing(self, *args, **kwargs):
        raise NotImplementedError(
            "this collective is not offered by the gpubridge backend yet. "
            "Offered: all_reduce, broadcast, all_gather, all_gather_into_tensor, "
            "reduce_scatter_tensor, barrier"
        )

    allreduce_coalesced = _missing
    reduce = _missing
    allgather_coalesced = _missing
    allgather_into_tensor_coalesced = _missing
    all_gather_single_coalesced = _missing
    gather = _missing
    scatter = _missing
    reduce_scatter = _missing
    reduce_scatter_tensor_coalesced = _missing
    reduce_scatter_single_coalesced = _missing
    alltoall = _missing
    alltoall_base = _missing
    all_to_all_single = _missing
    send = _missing
    recv = _missing
    recv_anysource = _missing
    monitored_barrier = _missing


def create_process_group(opts, pg_options=None):
    """Called by torch once per group and member rank."""
    if list(opts.global_ranks_in_group):
        raise NotImplementedError(
            "the gpubridge backend has one group of all ranks so far: new_group "
            "and DeviceMesh need more than one"
        )
    timeout = opts.timeout
    if not isinstance(timeout, timedelta):
        timeout = None
    session.open_for_group(opts.store, opts.group_rank, opts.group_size, timeout)
    return GpubridgeProcessGroup(opts.group_rank, opts.group_size, timeout)
