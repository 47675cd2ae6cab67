"""The torch.distributed backend: a Python subclass of ProcessGroup.

torch calls its methods directly (Python callers) or through its trampolines
(C++ callers such as DDP's reducer). Both the old and the new names of the
collectives are bound, so that one class serves torch 2.8 and later. Ranks in
arguments are ranks of the group.
"""

import time
from datetime import timedelta

import torch
import torch.distributed as dist

from . import calls, session
from .eager import eager
from .work import Batch, Work

_CPU = torch.device("cpu")
_SUM = dist.ReduceOp.SUM


def _is_async(opts):
    """Whether the caller goes on before the result is there. Options of C++
    callers, and of older torch, say nothing: they wait on the Work."""
    return bool(getattr(opts, "asyncOp", True))


def _op(opts):
    return _SUM if opts is None else opts.reduceOp


def _root(opts):
    return 0 if opts is None else opts.rootRank


def _one(tensors, what="tensor"):
    if len(tensors) != 1:
        raise ValueError(f"one {what} is wanted, not {len(tensors)}")
    return tensors[0]


# What a sync call of one tensor gives: torch waits for it and drops it. Making a
# Work costs more than the rest of a small call.
_DONE = Work(None, [])


@eager
class GpubridgeProcessGroup(dist.ProcessGroup):
    """A group of torch.distributed over gpubridge."""

    supports_splitting = False
    supports_coalescing = True
    supports_time_estimate = False
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False
    bound_device_id = None

    def __init__(self, group, store, timeout):
        super().__init__(group.rank, group.size)
        self._group = group
        self._store = store
        self._timeout = timeout
        self._name = ""
        self._desc = ""
        self._coalesced = None  # works and messages of an open bracket
        self._monitored = 0  # monitored barriers so far

    # ---- who and what ----

    def __repr__(self):  # torch's own errors show it
        return f"<gpubridge group of ranks {list(self._group.ranks)}>"

    def rank(self):
        return self._group.rank

    def size(self):
        return self._group.size

    getRank = rank
    getSize = size

    def getBackendName(self):
        return "gpubridge"

    name = getBackendName
    _get_backend_name = getBackendName

    def _get_backend(self, device):
        return self

    get_backend = _get_backend

    @property
    def _device_types(self):
        gpu = self._group.gpu
        return [_CPU] if gpu is None else [_CPU, torch.device("cuda")]

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

    def supports_tensor_alloc(self, device):
        return False

    def _set_default_backend(self, kind):
        pass

    def _set_sequence_number_for_group(self):
        pass

    def _get_sequence_number_for_group(self):
        return self._group.core.calls()

    def _has_hooks(self):
        return False

    def _wait_for_pending_works(self):
        pass

    def set_timeout(self, timeout):
        """Bounds every later call, a timedelta."""
        self._timeout = timeout
        self._group.core.set_timeout(max(int(timeout.total_seconds() * 1000), 1))

    _set_timeout = set_timeout

    # ---- life ----

    def shutdown(self):
        """Leaves the group, or with the job's own group the job, in order.
        Idempotent, bounded in time."""
        # A model may keep this object. On rank 0 the store is the server: its
        # port must be free for the process's next job.
        self._store = None
        if session.is_initialized():
            if self._group is session.current().world:
                session.close_session()
            else:
                session.current().close_group(self._group)

    def abort(self):
        """Ends every pending call on every rank."""
        if session.is_initialized():
            session.current().job.abort("torch.distributed aborted the group")

    # ---- one tensor ----

    def allreduce(self, tensors, opts=None):
        if len(tensors) != 1:
            return self.allreduce_coalesced(tensors, opts)
        tensor = tensors[0]
        if tensor.is_sparse:  # sparse gradients of embeddings under DDP
            calls.all_reduce_sparse(self._group, tensor, _op(opts))
            return Work(None, tensors)
        if self._coalesced is None and not _is_async(opts):
            calls.all_reduce(self._group, tensor, _op(opts), False, calls.NO_WORK)
            return _DONE
        return self._note(
            calls.all_reduce(
                self._group, tensor, _op(opts), self._async(opts), tensors
            )
        )

    def broadcast(self, tensors, opts=None):
        return self._note(
            calls.broadcast(
                self._group, _one(tensors), _root(opts), self._async(opts), tensors
            )
        )

    def reduce(self, tensors, opts=None):
        return self._note(
            calls.reduce(
                self._group,
                _one(tensors),
                _op(opts),
                _root(opts),
                self._async(opts),
                tensors,
            )
        )

    # ---- rows of a tensor ----

    def all_gather_single(self, output, input, opts=None):
        return self._note(
            calls.all_gather(self._group, output, input, self._async(opts), [output])
        )

    def reduce_scatter_single(self, output, input, opts=None):
        return self._note(
            calls.reduce_scatter(
                self._group, output, input, _op(opts), self._async(opts), [output]
            )
        )

    def gather_single(self, output, input, opts=None):
        root = _root(opts)
        mine = output if self.rank() == root else None
        return self._note(
            calls.gather(self._group, mine, input, root, self._async(opts), [output])
        )

    def all_to_all_single(
        self, output, input, output_splits=None, input_splits=None, opts=None
    ):
        return self._note(
            calls.all_to_all(
                self._group,
                output,
                input,
                output_splits,
                input_splits,
                self._async(opts),
                [output],
            )
        )

    # ---- lists ----

    def allgather(self, outputs, inputs, opts=None):
        return self._note(
            calls.all_gather_list(
                self._group,
                _one(outputs, "list of outputs"),
                _one(inputs, "input"),
                self._async(opts),
                outputs[0],
            )
        )

    def gather(self, outputs, inputs, opts=None):
        root = _root(opts)
        mine = self.rank() == root
        if not mine and outputs and outputs[0]:
            raise ValueError("only the destination rank gives a list of outputs")
        lists = _one(outputs, "list of outputs") if mine else None
        return self._note(
            calls.gather_list(
                self._group, lists, _one(inputs, "input"), root, self._async(opts), lists
            )
        )

    def scatter(self, outputs, inputs, opts=None):
        root = _root(opts)
        mine = self.rank() == root
        if not mine and inputs and inputs[0]:
            raise ValueError("only the source rank gives a list of inputs")
        lists = _one(inputs, "list of inputs") if mine else None
        return self._note(
            calls.scatter_list(
                self._group, _one(outputs, "output"), lists, root, self._async(opts), outputs
            )
        )

    def reduce_scatter(self, outputs, inputs, opts=None):
        return self._note(
            calls.reduce_scatter_list(
                self._group,
                _one(outputs, "output"),
                _one(inputs, "list of inputs"),
                _op(opts),
                self._async(opts),
                outputs,
            )
        )

    def alltoall(self, outputs, inputs, opts=None):
        return self._note(
            calls.all_to_all_list(
                self._group, outputs, inputs, self._async(opts), outputs
            )
        )

    # ---- several at once ----

    def allreduce_coalesced(self, tensors, opts=None):
        return self._note(
            calls.all_reduce_many(
                self._group, tensors, _op(opts), self._async(opts), tensors
            )
        )

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        works = [
            calls.all_gather(self._group, output, input, self._async(opts), [output])
            for output, input in zip(outputs, inputs, strict=True)
        ]
        return self._note(Batch(works, outputs))

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        works = [
            calls.reduce_scatter(
                self._group, output, input, _op(opts), self._async(opts), [output]
            )
            for output, input in zip(outputs, inputs, strict=True)
        ]
        return self._note(Batch(works, outputs))

    def allgather_coalesced(self, output_lists, inputs, opts=None):
        """output_lists[r][k]: rank r's k-th input."""
        works = [
            calls.all_gather_list(
                self._group,
                [outputs[k] for outputs in output_lists],
                input,
                self._async(opts),
                None,
            )
            for k, input in enumerate(inputs)
        ]
        return self._note(Batch(works, output_lists))

    # Names of older torch, and of its C++ callers.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- point-to-point ----

    def send(self, tensors, dst, tag=0):
        return self._message(True, tensors, dst, tag)

    def recv(self, tensors, src, tag=0):
        return self._message(False, tensors, src, tag)

    def recv_anysource(self, tensors, tag=0):
        return self._message(False, tensors, -1, tag)

    recvAnysource = recv_anysource

    def _message(self, is_send, tensors, peer, tag):
        tensor = _one(tensors)
        if self._coalesced is not None:
            self._coalesced[1].append((is_send, tensor, peer, tag))
            return Work(None, tensors)
        call = calls.send if is_send else calls.recv
        return call(self._group, tensor, peer, tag, True, tensors)

    # ---- brackets ----

    def _async(self, opts):
        return self._coalesced is not None or _is_async(opts)

    def _note(self, work):
        if self._coalesced is not None:
            self._coalesced[0].append(work)
        return work

    def _start_coalescing(self, device=None):
        """Until the end of the bracket, messages are collected, and collectives
        do not block."""
        self._coalesced = ([], [])

    def _end_coalescing(self, device=None):
        """Starts the messages as one batch. One Work for everything."""
        works, messages = self._coalesced or ([], [])
        self._coalesced = None
        if messages:
            tensors = [message[1] for message in messages]
            works.append(calls.batch(self._group, messages, True, tensors))
        return Batch(works, [])

    start_coalescing = _start_coalescing
    end_coalescing = _end_coalescing

    # ---- barriers ----

    def barrier(self, opts=None):
        return self._note(calls.barrier(self._group, self._async(opts), []))

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """A barrier whose failure names who did not come, and ends nothing: it
        goes over torch's store, because it is meant for groups whose calls hang.
        Rank 0 waits for everybody, the others for rank 0."""
        if self._store is None:
            raise RuntimeError("the monitored barrier's group has been destroyed")
        limit = (self._timeout if timeout is None else timeout).total_seconds()
        prefix = f"gpubridge/monitored/{self._monitored}"
        self._monitored += 1
        if self.rank():
            self._store.set(f"{prefix}/{self.rank()}", "here")
            self._pass_monitored(prefix, limit)
        else:
            self._monitor(prefix, limit, wait_all_ranks)

    def _wait_key(self, key, end):
        while not self._store.check([key]):
            if time.monotonic() >= end:
                return False
            time.sleep(0.005)
        return True

    def _monitor(self, prefix, limit, wait_all_ranks):
        if limit <= 0:
            raise RuntimeError("[Rank 0]: Rank 0 timed out in monitoredBarrier after 0 ms")
        end = time.monotonic() + limit
        missing = []
        for rank in range(1, self.size()):
            if self._wait_key(f"{prefix}/{rank}", end):
                continue
            missing.append(rank)
            if not wait_all_ranks:
                break
        if not missing:
            self._store.set(f"{prefix}/go", "")
            return
        ranks = ", ".join(map(str, missing))
        text = (
            f"[Rank 0]: {'Ranks' if len(missing) > 1 or wait_all_ranks else 'Rank'} "
            f"{ranks} failed to pass monitoredBarrier in {round(limit * 1000)} ms"
        )
        self._store.set(f"{prefix}/go", text)
        raise RuntimeError(text)

    def _pass_monitored(self, prefix, limit):
        # Rank 0 waits as long as we do, but may have come later.
        end = time.monotonic() + 2 * limit + 1
        if not self._wait_key(f"{prefix}/go", end):
            raise RuntimeError(
                f"[Rank {self.rank()}]: Rank 0 failed to pass monitoredBarrier in "
                f"{round(limit * 1000)} ms"
            )
        problem = self._store.get(f"{prefix}/go").decode()
        if problem:
            raise RuntimeError(
                f"Rank {self.rank()} successfully reached monitoredBarrier, but received "
                f"errors while waiting for send/recv from rank 0: {problem}"
            )


def group_of(torch_group):
    """(our group, its members' ranks in torch's default group)."""
    if torch_group is None:
        torch_group = dist.distributed_c10d._get_default_group()
    if not isinstance(torch_group, GpubridgeProcessGroup):
        raise ValueError(f"the group {torch_group} is not one of the gpubridge backend")
    return torch_group._group, dist.get_process_group_ranks(torch_group)


def create_process_group(opts, pg_options=None):
    """Called by torch once per group, on its members."""
    timeout = opts.timeout if isinstance(opts.timeout, timedelta) else None
    ranks = list(opts.global_ranks_in_group)
    group = session.group_for_torch(
        opts.store, ranks, opts.group_rank, opts.group_size, timeout
    )
    return GpubridgeProcessGroup(group, opts.store, timeout)
