"""The collectives as functions over torch tensors, on all ranks of the job."""

from torch.distributed import ReduceOp, irecv, isend

from . import calls
from .calls import NO_WORK, SUPPORTED_DTYPES
from .session import current

__all__ = [
    "ReduceOp",
    "SUPPORTED_DTYPES",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "recv",
    "reduce",
    "reduce_scatter_tensor",
    "send",
]


def _value(async_op, tensor):
    return tensor if async_op else NO_WORK


def _check_rank(name, rank, world):
    if not 0 <= rank < world:
        raise ValueError(f"{name} is {rank}, but must be from 0 to {world - 1}")


def all_reduce(tensor, op=ReduceOp.SUM, *, async_op=False):
    """Reduces `tensor` in place over all ranks; all end with the same bits.

    Returns None, or with ``async_op`` a :class:`Work`; the tensor must then not
    be touched before ``wait()``. ValueError for what every rank would refuse;
    RuntimeError, one text on all ranks, when the collective failed.
    """
    world = current().world
    return calls.all_reduce(world, tensor, op, async_op, _value(async_op, tensor))


def reduce(tensor, dst, op=ReduceOp.SUM, *, async_op=False):
    """Reduces onto global rank `dst`, in place; other ranks' tensors stay."""
    world = current().world
    _check_rank("dst", dst, world.size)
    return calls.reduce(world, tensor, op, dst, async_op, _value(async_op, tensor))


def broadcast(tensor, src, *, async_op=False):
    """Copies global rank `src`'s `tensor` to all ranks, in place."""
    world = current().world
    _check_rank("src", src, world.size)
    return calls.broadcast(world, tensor, src, async_op, _value(async_op, tensor))


def all_gather_into_tensor(output, input, *, async_op=False):
    """Rank r's `input` becomes row r of `output`, in global rank order."""
    world = current().world
    return calls.all_gather(world, output, input, async_op, _value(async_op, output))


def reduce_scatter_tensor(output, input, op=ReduceOp.SUM, *, async_op=False):
    """Slice r of the reduced `input` goes to rank r's `output`."""
    world = current().world
    return calls.reduce_scatter(
        world, output, input, op, async_op, _value(async_op, output)
    )


def all_to_all_single(
    output, input, output_split_sizes=None, input_split_sizes=None, *, async_op=False
):
    """Part r of `input` goes to rank r, part r of `output` comes from rank r.

    Split sizes are rows of dimension 0, one number a rank; None: equal parts.
    """
    world = current().world
    return calls.all_to_all(
        world,
        output,
        input,
        output_split_sizes,
        input_split_sizes,
        async_op,
        _value(async_op, output),
    )


def barrier(*, async_op=False):
    """Returns on no rank before every rank has called it."""
    return calls.barrier(current().world, async_op, None if async_op else NO_WORK)


def send(tensor, dst, tag=0, *, async_op=False):
    """Sends to global rank `dst`. Blocks until the tensor may be changed."""
    world = current().world
    _check_rank("dst", dst, world.size)
    return calls.send(world, tensor, dst, tag, async_op, _value(async_op, tensor))


def recv(tensor, src=None, tag=0, *, async_op=False):
    """Receives from global rank `src`, or from any (None). Returns the sender,
    or with ``async_op`` a :class:`Work` that knows it once it is done."""
    world = current().world
    if src is not None:
        _check_rank("src", src, world.size)
    work = calls.recv(world, tensor, -1 if src is None else src, tag, async_op, tensor)
    return work if async_op else work.source_rank()


def batch_isend_irecv(p2p_op_list):
    """torch's function of that name, with a batch that starts as one.

    Takes a list of ``torch.distributed.P2POp`` of one group; returns a list
    with one :class:`Work` for all of them.
    """
    from .process_group import group_of

    if not p2p_op_list:
        return []
    group, ranks = group_of(p2p_op_list[0].group)
    operations = []
    for op in p2p_op_list:
        if op.op not in (isend, irecv) or group_of(op.group)[0] is not group:
            raise ValueError(
                "a batch takes isend and irecv operations of one group"
            )
        peer = getattr(op, "group_peer", None)
        if peer is None:
            peer = ranks.index(op.peer)
        operations.append((op.op is isend, op.tensor, peer, op.tag))
    tensors = [operation[1] for operation in operations]
    return [calls.batch(group, operations, True, tensors)]
