"""Tensors to calls of the library: what can be sent, and how lists of tensors
become rows of one buffer. Used by the public functions and the torch backend;
every function takes a :class:`gpubridge.group.Group` first.

Arguments that no rank could send raise here or in the library, before anything
is sent. ``value`` is what the Work's future holds. With ``is_async`` a Work is
returned at once and the tensors are kept until the library is done with them;
otherwise the call blocks and the Work is complete. In a job on a GPU, "done" and
"blocks" are torch's current stream's: the host goes on once a call is enqueued.
"""

import torch
from torch.distributed import ReduceOp

from .work import Batch, HostWork, Work

# Codes of gb_dtype in gpubridge/coll.h, by torch's names: older torch lacks some.
_DTYPE_NAMES = (
    "int8",
    "uint8",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "int16",
    "uint16",
    "uint32",
    "uint64",
    "bool",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "complex64",
    "complex128",
)
DTYPE_CODES = {
    getattr(torch, name): code
    for code, name in enumerate(_DTYPE_NAMES)
    if hasattr(torch, name)
}
SUPPORTED_DTYPES = tuple(DTYPE_CODES)
_BYTE = DTYPE_CODES[torch.uint8]
_STRIDED = torch.strided

# Codes of gb_redop in gpubridge/coll.h.
SUM, AVG, MAX, MIN, PRODUCT, BAND, BOR, BXOR, PREMUL_SUM = range(9)
# By torch's own number: enum members are slow to hash and to compare.
_OP_CODES = {
    getattr(ReduceOp, name).value: code
    for code, name in enumerate(
        ("SUM", "AVG", "MAX", "MIN", "PRODUCT", "BAND", "BOR", "BXOR", "PREMUL_SUM")
    )
}

# Value of a caller that drops the Work of a sync call: none is made.
NO_WORK = object()

# Lists of small tensors travel as one buffer; larger ones by themselves, because
# copying them costs more than a call.
_FLATTEN_BYTES = 256 * 1024


_SUM_OP = ReduceOp.SUM


def op_code(op):
    """gb_redop of an op: an enum member or a ReduceOp instance."""
    if op is _SUM_OP:
        return SUM
    try:
        return _OP_CODES[getattr(op, "op", op).value]
    except (AttributeError, KeyError, TypeError):
        raise ValueError(
            f"the reduction {op} is not supported. Supported: SUM, AVG, MAX, MIN, "
            "PRODUCT, BAND, BOR, BXOR and PREMUL_SUM"
        ) from None


def factor_of(op):
    """The factor of a PREMUL_SUM."""
    factor = getattr(op, "factor", None)
    if factor is None:
        factor = op.__getstate__()[1]
    if isinstance(factor, torch.Tensor) and factor.numel() != 1:
        raise ValueError(
            f"the factor of PREMUL_SUM has {factor.numel()} elements, but must be "
            "one number"
        )
    return float(factor)


def _refuse(tensor, what, gpu):
    """The reason why a tensor cannot be sent, as an exception."""
    if not isinstance(tensor, torch.Tensor):
        return TypeError(f"the {what} must be a torch.Tensor, not {type(tensor).__name__}")
    if tensor.layout != _STRIDED:
        return ValueError(
            f"the {what} is {tensor.layout}: sparse tensors are not supported"
        )
    if gpu is None and not tensor.is_cpu:
        return ValueError(
            f"the {what} is on {tensor.device}, but this job runs on cpu. "
            "Tensors stay on the CPU in simulation and CPU-only mode"
        )
    if gpu is not None and not (tensor.is_cpu or gpu.has(tensor)):
        return ValueError(
            f"the {what} is on {tensor.device}, but this rank's job runs on "
            f"{gpu.device}: move it there. LOCAL_RANK chose the GPU"
        )
    if not tensor.is_contiguous():
        return ValueError(f"the {what} is not contiguous: pass tensor.contiguous()")
    return ValueError(
        f"the {what} is a lazy conjugate or negative: its memory holds other "
        "numbers. Pass tensor.resolve_conj().resolve_neg()"
    )


def check_tensor(group, tensor, what="tensor"):
    """TypeError or ValueError for a tensor that no rank could send."""
    if not _is_plain(tensor, group.gpu):
        raise _refuse(tensor, what, group.gpu)


def _is_plain(tensor, gpu):
    """Whether it can be sent as it lies in memory, or in a job on a GPU as a copy
    of that. On every call's path: what is no tensor or not strided ends in an
    exception, and only complex tensors can be lazily conjugated."""
    try:
        return (
            (tensor.is_cpu or (gpu is not None and gpu.has(tensor)))
            and tensor.is_contiguous()
            and not tensor.is_neg()
            and not (tensor.is_complex() and tensor.is_conj())
            and tensor.layout is _STRIDED
        )
    except (AttributeError, RuntimeError, TypeError):
        return False


def _reduced_code(tensor, what="tensor"):
    """dtype code of a checked tensor to be reduced; raises what no rank could."""
    code = DTYPE_CODES.get(tensor.dtype)
    if code is None:
        names = ", ".join(str(d).removeprefix("torch.") for d in SUPPORTED_DTYPES)
        raise ValueError(
            f"the {what}'s dtype {tensor.dtype} is not supported. Supported: {names}"
        )
    return code


def _reducible(group, tensor, what="tensor"):
    check_tensor(group, tensor, what)
    return _reduced_code(tensor, what)


def _size(tensor):
    """(count, dtype code) of a checked tensor to be copied: any dtype, as bytes
    if the library has no name for it."""
    code = DTYPE_CODES.get(tensor.dtype)
    if code is None:
        return tensor.numel() * tensor.element_size(), _BYTE
    return tensor.numel(), code


def _movable(group, tensor, what="tensor"):
    check_tensor(group, tensor, what)
    return _size(tensor)


def _same_type(a_name, a, b_name, b):
    if a.dtype != b.dtype:
        raise ValueError(
            f"the {a_name} is {a.dtype}, but the {b_name} is {b.dtype}: they must "
            "be of one type"
        )


def _rows(group, large_name, large, small_name, small):
    """Checks that `large` holds a row like `small` for each rank."""
    check_tensor(group, large, large_name)
    check_tensor(group, small, small_name)
    world = group.size
    _same_type(large_name, large, small_name, small)
    if large.numel() != small.numel() * world:
        raise ValueError(
            f"the {large_name} has {large.numel()} elements, but must have "
            f"{world} times the {small.numel()} of the {small_name}, that is "
            f"{small.numel() * world}"
        )


def finish(group, core, tensors, value, then=None):
    """The Work of a call that the library has taken. core: its handle, None if
    it is done. then: runs once after success, before anybody sees the result."""
    if core is not None:
        group.keep(core, tensors)
    elif then is not None:
        then()
        then = None
    if value is NO_WORK:
        return None
    return Work(core, value, then, -1, group.gpu)


def _before(group, is_async):
    if group.gpu is not None:
        group.gpu.use_current_stream()
    elif is_async and group.worker is None:
        group.need_worker()


# ---- tensors of the CPU in a job on a GPU ----


def _is_away(*tensors):
    """Whether some of them (None: not this rank's) must be brought to the GPU."""
    return any(tensor is not None and tensor.is_cpu for tensor in tensors)


def _through_gpu(group, call, output, input, is_async, value, then):
    """Makes the call on copies: ``call(output, input)`` gives its async Work.
    Either is None if the call has none; one that is both is the output. The
    result comes back when somebody waits, which blocks the host.
    """
    gpu = group.gpu
    callers = gpu.current_stream()
    with gpu.beside():
        gpu.current_stream().wait_stream(callers)  # one of them may be on the GPU
        there = None if output is None else output.to(gpu.device)
        work = call(there, None if input is None else input.to(gpu.device))

    def back():
        # Of inference mode see _unpack.
        with torch.inference_mode():
            if there is not output:
                output.copy_(there)
        if then is not None:
            then()

    work = HostWork(work._core, value, back, gpu)
    if is_async:
        return work
    work.wait()
    return None if value is NO_WORK else work


# ---- one tensor ----


def all_reduce(group, tensor, op, is_async, value, then=None):
    code = _reducible(group, tensor)
    redop = op_code(op)
    if group.gpu is not None and _is_away(tensor):
        return _through_gpu(
            group, lambda out, _: all_reduce(group, out, op, True, None),
            tensor, None, is_async, value, then,
        )  # fmt: skip
    _before(group, is_async)
    if redop == PREMUL_SUM:
        core = group.core.all_reduce_scaled(
            tensor.data_ptr(), tensor.numel(), code, factor_of(op), is_async
        )
    else:
        core = group.core.all_reduce(
            tensor.data_ptr(), tensor.numel(), code, redop, is_async
        )
    return finish(group, core, tensor, value, then)


def reduce(group, tensor, op, root, is_async, value):
    code = _reducible(group, tensor)
    redop = op_code(op)
    if group.gpu is not None and _is_away(tensor):
        return _through_gpu(
            group, lambda out, _: reduce(group, out, op, root, True, None),
            tensor, None, is_async, value, None,
        )  # fmt: skip
    _before(group, is_async)
    if redop == PREMUL_SUM:
        core = group.core.reduce_scaled(
            tensor.data_ptr(), tensor.numel(), code, factor_of(op), root, is_async
        )
    else:
        core = group.core.reduce(
            tensor.data_ptr(), tensor.numel(), code, redop, root, is_async
        )
    return finish(group, core, tensor, value)


def broadcast(group, tensor, root, is_async, value):
    count, code = _movable(group, tensor)
    if group.gpu is not None and _is_away(tensor):
        return _through_gpu(
            group, lambda out, _: broadcast(group, out, root, True, None),
            tensor, None, is_async, value, None,
        )  # fmt: skip
    _before(group, is_async)
    core = group.core.broadcast(tensor.data_ptr(), count, code, root, is_async)
    return finish(group, core, tensor, value)


def barrier(group, is_async, value):
    if group.gpu is not None:
        return _gpu_barrier(group, is_async, value)
    _before(group, is_async)
    return finish(group, group.core.barrier(is_async), (), value)


def _gpu_barrier(group, is_async, value):
    """Comes after all that is on the device, or with `is_async` on the current
    stream, and the host waits for it."""
    if not is_async:
        group.gpu.synchronize()
    _before(group, True)
    core = group.core.barrier(True)
    group.keep(core, ())
    work = HostWork(core, value, None, group.gpu)
    if is_async:
        return work
    work.wait()
    return None if value is NO_WORK else work


# ---- a tensor of rows ----


def all_gather(group, output, input, is_async, value, then=None):
    _rows(group, "output", output, "input", input)
    if group.gpu is not None and _is_away(output, input):
        return _through_gpu(
            group, lambda out, in_: all_gather(group, out, in_, True, None),
            output, input, is_async, value, then,
        )  # fmt: skip
    out_count, code = _size(output)
    in_count, _ = _size(input)
    _before(group, is_async)
    core = group.core.all_gather(
        output.data_ptr(), out_count, input.data_ptr(), in_count, code, is_async
    )
    return finish(group, core, (output, input), value, then)


def reduce_scatter(group, output, input, op, is_async, value, then=None):
    _rows(group, "input", input, "output", output)
    code = _reduced_code(input)
    redop = op_code(op)
    if group.gpu is not None and _is_away(output, input):
        return _through_gpu(
            group, lambda out, in_: reduce_scatter(group, out, in_, op, True, None),
            output, input, is_async, value, then,
        )  # fmt: skip
    _before(group, is_async)
    numbers = (
        output.data_ptr(),
        output.numel(),
        input.data_ptr(),
        input.numel(),
        code,
    )
    if redop == PREMUL_SUM:
        core = group.core.reduce_scatter_scaled(*numbers, factor_of(op), is_async)
    else:
        core = group.core.reduce_scatter(*numbers, redop, is_async)
    return finish(group, core, (output, input), value, then)


def gather(group, output, input, root, is_async, value, then=None):
    """`output` is None except on `root`."""
    in_count, code = _movable(group, input, "input")
    out = (0, 0)
    if output is not None:
        _rows(group, "output", output, "input", input)
        out = (output.data_ptr(), _size(output)[0])
    if group.gpu is not None and _is_away(output, input):
        return _through_gpu(
            group, lambda out, in_: gather(group, out, in_, root, True, None),
            output, input, is_async, value, then,
        )  # fmt: skip
    _before(group, is_async)
    core = group.core.gather(*out, input.data_ptr(), in_count, code, root, is_async)
    return finish(group, core, (output, input), value, then)


def scatter(group, output, input, root, is_async, value):
    """`input` is None except on `root`."""
    out_count, code = _movable(group, output, "output")
    given = (0, 0)
    if input is not None:
        _rows(group, "input", input, "output", output)
        given = (input.data_ptr(), _size(input)[0])
    if group.gpu is not None and _is_away(output, input):
        return _through_gpu(
            group, lambda out, in_: scatter(group, out, in_, root, True, None),
            output, input, is_async, value, None,
        )  # fmt: skip
    _before(group, is_async)
    core = group.core.scatter(
        output.data_ptr(), out_count, *given, code, root, is_async
    )
    return finish(group, core, (output, input), value)


def _split_counts(group, name, tensor, splits):
    """Elements of each rank's part; None: equal parts."""
    check_tensor(group, tensor, name)
    world = group.size
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % world:
            raise ValueError(
                f"the {name} has {rows} rows, which {world} ranks cannot share "
                "equally: pass split sizes"
            )
        return None
    if len(splits) != world or min(splits) < 0 or sum(splits) != rows:
        raise ValueError(
            f"the {name}'s split sizes {list(splits)} must be {world} numbers that "
            f"sum up to its {rows} rows"
        )
    return tuple(split * (tensor.numel() // rows if rows else 0) for split in splits)


def all_to_all(group, output, input, out_splits, in_splits, is_async, value, then=None):
    """Splits: rows (of dimension 0) to and from each rank; empty: equal."""
    check_tensor(group, output, "output")
    check_tensor(group, input, "input")
    _same_type("output", output, "input", input)
    out_counts = _split_counts(group, "output", output, out_splits)
    in_counts = _split_counts(group, "input", input, in_splits)
    return _exchange(
        group, output, out_counts, input, in_counts, is_async, value, then
    )


def _exchange(group, output, out_counts, input, in_counts, is_async, value, then):
    """all_to_all of checked, packed parts, counts in elements or None."""
    if group.gpu is not None and _is_away(output, input):
        return _through_gpu(
            group,
            lambda out, in_: _exchange(
                group, out, out_counts, in_, in_counts, True, None, None
            ),
            output, input, is_async, value, then,
        )  # fmt: skip
    out_count, code = _size(output)
    in_count, _ = _size(input)
    size = output.element_size() if code == _BYTE else 1
    if size > 1:
        out_counts = out_counts and tuple(n * size for n in out_counts)
        in_counts = in_counts and tuple(n * size for n in in_counts)
    _before(group, is_async)
    core = group.core.all_to_all(
        output.data_ptr(),
        out_count,
        input.data_ptr(),
        in_count,
        code,
        out_counts,
        in_counts,
        is_async,
    )
    return finish(group, core, (output, input), value, then)


# ---- lists of tensors ----


def _check_list(group, tensors, what, count=None):
    if count is not None and len(tensors) != count:
        raise ValueError(
            f"{count} tensors are wanted in the {what} list, one for each rank, "
            f"not {len(tensors)}"
        )
    for tensor in tensors:
        check_tensor(group, tensor, what)
        _same_type(f"first {what}", tensors[0], f"other {what}", tensor)


def _packed(tensors):
    """The tensors as one without a copy, None unless they lie side by side."""
    first = tensors[0]
    size = first.element_size()
    at = first.data_ptr()
    total = 0
    side_by_side = first.numel() > 0
    for tensor in tensors:
        side_by_side &= tensor.data_ptr() == at + total * size
        total += tensor.numel()
    storage = first.untyped_storage()
    if side_by_side and at + total * size <= storage.data_ptr() + storage.nbytes():
        return first.as_strided((total,), (1,))
    return None


def _pack(tensors):
    flat = _packed(tensors)
    if flat is None:
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    return flat


def _room(tensors):
    """A buffer for all of them, and what copies it out (None: it is theirs)."""
    flat = _packed(tensors)
    if flat is not None:
        return flat, None
    flat = tensors[0].new_empty(sum(tensor.numel() for tensor in tensors))
    return flat, lambda: _unpack(flat, tensors)


def _unpack(flat, tensors):
    at = 0
    # Runs on whoever waits, perhaps outside the inference mode that the tensors
    # come from: only inside one may such tensors be changed.
    with torch.inference_mode():
        if flat.is_cuda:  # made on another stream, perhaps
            flat.record_stream(torch.cuda.current_stream(flat.device))
        for tensor in tensors:
            n = tensor.numel()
            tensor.view(-1).copy_(flat[at : at + n])
            at += n


def _counts(tensors):
    """Elements of each; None when all are equal."""
    counts = [tensor.numel() for tensor in tensors]
    return None if len(set(counts)) == 1 else counts


def all_gather_list(group, outputs, input, is_async, value):
    """outputs[r]: rank r's input; sizes may differ between ranks."""
    check_tensor(group, input, "input")
    _check_list(group, outputs, "output", group.size)
    _same_type("output", outputs[0], "input", input)
    if outputs[group.rank].numel() != input.numel():
        raise ValueError(
            f"output {group.rank}, this rank's own, has "
            f"{outputs[group.rank].numel()} elements, but the input has {input.numel()}"
        )
    flat, then = _room(outputs)
    counts = _counts(outputs)
    if counts is None:
        return all_gather(group, flat, input, is_async, value, then)
    return _all_gather_v(group, flat, counts, input, is_async, value, then)


def _all_gather_v(group, flat, counts, input, is_async, value, then):
    if group.gpu is not None and _is_away(flat, input):
        return _through_gpu(
            group,
            lambda out, in_: _all_gather_v(group, out, counts, in_, True, None, None),
            flat, input, is_async, value, then,
        )  # fmt: skip
    total, code = _size(flat)
    in_count, _ = _size(input)
    if code == _BYTE:
        counts = [n * flat.element_size() for n in counts]
    _before(group, is_async)
    core = group.core.all_gather_v(
        flat.data_ptr(), total, input.data_ptr(), in_count, code, counts, is_async
    )
    return finish(group, core, (flat, input), value, then)


def reduce_scatter_list(group, output, inputs, op, is_async, value):
    """inputs[r] goes, reduced, to rank r; sizes may differ between ranks."""
    _reducible(group, output, "output")
    _check_list(group, inputs, "input", group.size)
    _same_type("output", output, "input", inputs[0])
    if inputs[group.rank].numel() != output.numel():
        raise ValueError(
            f"input {group.rank}, this rank's own, has "
            f"{inputs[group.rank].numel()} elements, but the output has {output.numel()}"
        )
    flat = _pack(inputs)
    counts = _counts(inputs)
    if counts is None:
        return reduce_scatter(group, output, flat, op, is_async, value)
    return _reduce_scatter_v(group, output, flat, counts, op, is_async, value)


def _reduce_scatter_v(group, output, flat, counts, op, is_async, value):
    code = _reduced_code(output, "output")
    redop = op_code(op)
    if group.gpu is not None and _is_away(output, flat):
        return _through_gpu(
            group,
            lambda out, in_: _reduce_scatter_v(
                group, out, in_, counts, op, True, None
            ),
            output, flat, is_async, value, None,
        )  # fmt: skip
    _before(group, is_async)
    core = group.core.reduce_scatter_v(
        output.data_ptr(),
        output.numel(),
        flat.data_ptr(),
        flat.numel(),
        code,
        counts,
        redop,
        is_async,
    )
    return finish(group, core, (output, flat), value)


def gather_list(group, outputs, input, root, is_async, value):
    """`outputs` is None except on `root`."""
    if outputs is None:
        return gather(group, None, input, root, is_async, value)
    _check_list(group, outputs, "output", group.size)
    flat, then = _room(outputs)
    return gather(group, flat, input, root, is_async, value, then)


def scatter_list(group, output, inputs, root, is_async, value):
    """`inputs` is None except on `root`."""
    if inputs is None:
        return scatter(group, output, None, root, is_async, value)
    _check_list(group, inputs, "input", group.size)
    return scatter(group, output, _pack(inputs), root, is_async, value)


def all_to_all_list(group, outputs, inputs, is_async, value):
    _check_list(group, outputs, "output", group.size)
    _check_list(group, inputs, "input", group.size)
    _same_type("output", outputs[0], "input", inputs[0])
    flat, then = _room(outputs)
    packed = _pack(inputs)
    out_counts = tuple(tensor.numel() for tensor in outputs)
    in_counts = tuple(tensor.numel() for tensor in inputs)
    return _exchange(
        group, flat, out_counts, packed, in_counts, is_async, value, then
    )


def all_reduce_many(group, tensors, op, is_async, value):
    """Each tensor reduced; small ones of one type as one call."""
    for tensor in tensors:
        _reducible(group, tensor)
    works = []
    by_type = {}
    for tensor in tensors:
        by_type.setdefault((tensor.dtype, tensor.is_cpu), []).append(tensor)
    for same in by_type.values():
        small = [t for t in same if t.numel() * t.element_size() <= _FLATTEN_BYTES]
        large = [t for t in same if t.numel() * t.element_size() > _FLATTEN_BYTES]
        if len(small) > 1:
            flat = torch.cat([tensor.reshape(-1) for tensor in small])
            works.append(
                all_reduce(
                    group, flat, op, is_async, small,
                    lambda flat=flat, small=small: _unpack(flat, small),
                )
            )  # fmt: skip
        else:
            large = small + large
        works.extend(all_reduce(group, t, op, is_async, [t]) for t in large)
    return Batch(works, value)


# ---- sparse ----


def all_reduce_sparse(group, tensor, op):
    """Sums a sparse COO tensor in place over all ranks, in rank order: every
    rank's indices and values go to every rank. Blocks."""
    if op_code(op) != SUM:
        raise ValueError(f"a sparse tensor is reduced with SUM only, not {op}")
    if tensor.layout != torch.sparse_coo or not tensor.is_cpu:
        raise ValueError(
            f"the tensor is {tensor.layout} on {tensor.device}: of sparse tensors, "
            "only sparse_coo on the CPU is supported"
        )
    mine = tensor.coalesce()
    indices, values = mine.indices().contiguous(), mine.values().contiguous()
    shape = [mine.sparse_dim(), mine.dense_dim(), *mine.shape]
    facts = torch.tensor([len(shape), values.shape[0]])
    all_facts = torch.empty(group.size, 2, dtype=torch.int64)
    all_gather(group, all_facts, facts, False, NO_WORK)
    shapes = [torch.empty(int(row[0]), dtype=torch.int64) for row in all_facts]
    all_gather_list(group, shapes, torch.tensor(shape), False, NO_WORK)
    for rank, other in enumerate(shapes):
        if other.tolist() != shape:
            raise ValueError(
                f"the sparse tensors differ: this rank's is of shape {shape[2:]}, "
                f"rank {rank}'s of {other.tolist()[2:]}"
            )
    counts = all_facts[:, 1].tolist()
    all_indices = [indices.new_empty(indices.shape[0], n) for n in counts]
    all_values = [values.new_empty(n, *values.shape[1:]) for n in counts]
    all_gather_list(group, all_indices, indices, False, NO_WORK)
    all_gather_list(group, all_values, values, False, NO_WORK)
    parts = zip(all_indices, all_values, strict=True)
    total = None
    for part_indices, part_values in parts:
        part = torch.sparse_coo_tensor(part_indices, part_values, mine.shape)
        total = part if total is None else total + part
    with torch.no_grad():
        tensor.copy_(total.coalesce())


# ---- point-to-point ----


def _message_gpu(group, tensor):
    """The GPU whose streams a message is ordered on; None: its tensor is the
    CPU's, and goes as in a job on host memory."""
    if group.gpu is None or tensor.is_cpu:
        return None
    group.gpu.use_current_stream()
    return group.gpu


def _posted(group, core, tensors, value, gpu):
    """The Work of messages that the library has taken, None if nobody wants it."""
    if core is not None:
        group.post(core, tensors)
    return None if value is NO_WORK else Work(core, value, gpu=gpu)


def send(group, tensor, peer, tag, is_async, value):
    count, code = _movable(group, tensor)
    gpu = _message_gpu(group, tensor)
    core = group.core.send(tensor.data_ptr(), count, code, peer, tag, is_async)
    return _posted(group, core, tensor, value, gpu)


def recv(group, tensor, peer, tag, is_async, value):
    """peer -1: from any rank."""
    count, code = _movable(group, tensor)
    gpu = _message_gpu(group, tensor)
    core = group.core.recv(tensor.data_ptr(), count, code, peer, tag, is_async)
    if isinstance(core, int):
        return Work(None, value, source=core)
    return _posted(group, core, tensor, value, gpu)


def batch(group, operations, is_async, value):
    """operations: (is_send, tensor, peer, tag) each; one Work for all."""
    operations = list(operations)
    if group.gpu is not None:
        away = [operation for operation in operations if operation[1].is_cpu]
        here = [operation for operation in operations if not operation[1].is_cpu]
        if away and here:
            # Both start before anybody waits for either.
            works = [_batch(group, part, True, None) for part in (away, here)]
            work = Batch(works, value)
            if is_async:
                return work
            work.wait()
            return None if value is NO_WORK else work
    return _batch(group, operations, is_async, value)


def _batch(group, operations, is_async, value):
    rows = []
    gpu = None
    for is_send, tensor, peer, tag in operations:
        count, code = _movable(group, tensor)
        gpu = _message_gpu(group, tensor)
        rows.append((is_send, tensor.data_ptr(), count, code, peer, tag))
    core = group.core.batch(rows, is_async)
    return _posted(group, core, [operation[1] for operation in operations], value, gpu)
