"""The collectives as functions over torch tensors, on all ranks of the job."""

import torch
from torch.distributed import ReduceOp

from .session import current
from .work import Work

SUPPORTED_DTYPES = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
)

# Codes of gb_dtype and gb_redop in gpubridge/coll.h.
DTYPE_CODES = {
    torch.int8: 0,
    torch.uint8: 1,
    torch.int32: 2,
    torch.int64: 3,
    torch.float16: 4,
    torch.bfloat16: 5,
    torch.float32: 6,
    torch.float64: 7,
}
_OP_CODES = {
    ReduceOp.SUM: 0,
    ReduceOp.AVG: 1,
    ReduceOp.MAX: 2,
    ReduceOp.MIN: 3,
}
_AVG = 1
_CPU = torch.device("cpu")


def op_code(op):
    """gb_redop of an op: an enum member or a ReduceOp instance."""
    kind = getattr(op, "op", op)
    code = _OP_CODES.get(kind)
    if code is None:
        raise ValueError(
            f"the reduction {op} is not supported. Supported: SUM, AVG, MAX, MIN"
        )
    return code


def check_tensor(tensor, what="tensor"):
    """TypeError or ValueError for a tensor that no rank could send."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"the {what} must be a torch.Tensor, not {type(tensor).__name__}"
        )
    if tensor.layout != torch.strided:
        raise ValueError(
            f"the {what} is {tensor.layout}: sparse tensors are not supported"
        )
    if tensor.dtype not in DTYPE_CODES:
        names = ", ".join(str(d).removeprefix("torch.") for d in SUPPORTED_DTYPES)
        raise ValueError(
            f"the {what}'s dtype {tensor.dtype} is not supported. Supported: {names}"
        )
    if tensor.device != _CPU:
        raise ValueError(
            f"the {what} is on {tensor.device}, but this job runs on cpu. "
            "Tensors stay on the CPU in simulation and CPU-only mode"
        )
    if not tensor.is_contiguous():
        raise ValueError(
            f"the {what} is not contiguous: pass tensor.contiguous()"
        )


def check_average(op, tensor):
    if op == _AVG and not tensor.is_floating_point():
        raise ValueError(
            f"AVG of integers ({tensor.dtype}) is refused: dividing them needs "
            "a rounding rule. Use SUM and divide as you need"
        )


def check_pair(large_name, large, small_name, small, world):
    check_tensor(large, large_name)
    check_tensor(small, small_name)
    if large.dtype != small.dtype:
        raise ValueError(
            f"the {large_name} is {large.dtype}, but the {small_name} is "
            f"{small.dtype}: they must be of one type"
        )
    if large.numel() != small.numel() * world:
        raise ValueError(
            f"the {large_name} has {large.numel()} elements, but must have "
            f"{world} times the {small.numel()} of the {small_name}, that is "
            f"{small.numel() * world}"
        )


# Value of a caller that drops the Work of a sync call: none is made.
NO_WORK = object()


def submit(call, tensors, value, is_async, then=None):
    """Runs one call of the job. `call(job, is_async)` gives the library's
    handle, or None when it was sync; `tensors` are kept until it is done."""
    session = current()
    if is_async:
        session.need_worker()
    core = call(session.job, is_async)
    if core is not None:
        session.keep(core, tensors)
    elif then is not None:
        then()
        then = None
    if value is NO_WORK:
        return None
    return Work(core, value, then)


def run_all_reduce(tensor, op, is_async, value=None):
    args = (tensor.data_ptr(), tensor.numel(), DTYPE_CODES[tensor.dtype], op)
    return submit(
        lambda job, flag: job.all_reduce(*args, flag),
        (tensor,),
        tensor if value is None else value,
        is_async,
    )


def run_broadcast(tensor, src, is_async, value=None):
    args = (tensor.data_ptr(), tensor.numel(), DTYPE_CODES[tensor.dtype], src)
    return submit(
        lambda job, flag: job.broadcast(*args, flag),
        (tensor,),
        tensor if value is None else value,
        is_async,
    )


def run_all_gather(output, input, is_async, value=None, then=None):
    args = (
        output.data_ptr(),
        output.numel(),
        input.data_ptr(),
        input.numel(),
        DTYPE_CODES[input.dtype],
    )
    return submit(
        lambda job, flag: job.all_gather(*args, flag),
        (output, input),
        output if value is None else value,
        is_async,
        then,
    )


def run_reduce_scatter(output, input, op, is_async, value=None):
    args = (
        output.data_ptr(),
        output.numel(),
        input.data_ptr(),
        input.numel(),
        DTYPE_CODES[input.dtype],
        op,
    )
    return submit(
        lambda job, flag: job.reduce_scatter(*args, flag),
        (output, input),
        output if value is None else value,
        is_async,
    )


def run_barrier(is_async, value=None):
    return submit(lambda job, flag: job.barrier(flag), (), value, is_async)


# ---- the public functions ----


def all_reduce(tensor, op=ReduceOp.SUM, *, async_op=False):
    """Reduces `tensor` in place over all ranks; all end with the same bits.

    Returns None, or with ``async_op`` a :class:`Work`; the tensor must then not
    be touched before ``wait()``. ValueError for what every rank would refuse;
    RuntimeError, one text on all ranks, when the collective failed.
    """
    current()
    code = op_code(op)
    check_tensor(tensor)
    check_average(code, tensor)
    return run_all_reduce(tensor, code, async_op, None if async_op else NO_WORK)


def broadcast(tensor, src, *, async_op=False):
    """Copies global rank `src`'s `tensor` to all ranks, in place."""
    world = current().topology.world_size
    if not 0 <= src < world:
        raise ValueError(f"src is {src}, but must be from 0 to {world - 1}")
    check_tensor(tensor)
    return run_broadcast(tensor, src, async_op, None if async_op else NO_WORK)


def all_gather_into_tensor(output, input, *, async_op=False):
    """Rank r's `input` becomes row r of `output`, in global rank order."""
    world = current().topology.world_size
    check_pair("output", output, "input", input, world)
    return run_all_gather(output, input, async_op, None if async_op else NO_WORK)


def reduce_scatter_tensor(output, input, op=ReduceOp.SUM, *, async_op=False):
    """Slice r of the reduced `input` goes to rank r's `output`. SUM or AVG."""
    world = current().topology.world_size
    code = op_code(op)
    if code not in (0, _AVG):
        raise ValueError(f"reduce_scatter_tensor takes SUM or AVG, not {op}")
    check_pair("input", input, "output", output, world)
    check_average(code, input)
    return run_reduce_scatter(output, input, code, async_op, None if async_op else NO_WORK)


def barrier(*, async_op=False):
    """Returns on no rank before every rank has called it."""
    return run_barrier(async_op, None if async_op else NO_WORK)
