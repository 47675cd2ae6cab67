"""Every collective of torch.distributed x dtype x size x reduction x sync/async, on
gpubridge and on Gloo in the same processes, compared bit for bit on exact data.
Where Gloo refuses (float8, int16, complex gather, bitwise on floats, AVG), ours is
compared with the result computed from all ranks' inputs, which every rank can make.
"""

import pytest

SCRIPT = """
import itertools, os, sys, torch, torch.distributed as dist
import gpubridge
torch.set_num_threads(1)
dist.init_process_group(backend="gpubridge")
R, N = dist.get_rank(), dist.get_world_size()
gloo = dist.new_group(backend="gloo")
Op = dist.ReduceOp
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
ALL = FLOATS + INTS + FLOAT8 + UNSIGNED + COMPLEX + [torch.bool]
SIZES = [0, 1, 5, 1027]

def data(rank, n, dtype, salt=0):
    i = torch.arange(n, dtype=torch.int64)
    v = (i * 7 + rank * 3 + salt) % 3 + 1
    if dtype == torch.bool: return (v + rank) % 2 == 0
    if dtype in COMPLEX: return torch.complex(v.double(), (v * (rank + 1)).double()).to(dtype)
    return v.double().to(dtype)

def bits(t):
    t = t.detach().contiguous().reshape(-1)
    return t.view(torch.uint8) if t.numel() else t.to(torch.uint8) if t.dtype == torch.bool else torch.empty(0, dtype=torch.uint8)

def same(a, b, what):
    assert a.shape == b.shape and a.dtype == b.dtype and torch.equal(bits(a), bits(b)), (what, a, b)

def fold(op, rows, dtype):
    if dtype == torch.bool:
        name = str(op).rsplit(".")[-1]
        f = {"SUM": torch.logical_or, "MAX": torch.logical_or, "BOR": torch.logical_or,
             "PRODUCT": torch.logical_and, "MIN": torch.logical_and, "BAND": torch.logical_and,
             "BXOR": torch.logical_xor}[name]
    else:
        wide = dtype in FLOAT8 + [torch.float16, torch.bfloat16]
        if wide: rows = [r.double() for r in rows]
        if dtype in UNSIGNED: rows = [r.to(torch.int64) for r in rows]
        f = {Op.SUM: torch.add, Op.AVG: torch.add, Op.MAX: torch.maximum, Op.MIN: torch.minimum,
             Op.PRODUCT: torch.mul, Op.BAND: torch.bitwise_and, Op.BOR: torch.bitwise_or,
             Op.BXOR: torch.bitwise_xor}[op]
    total = rows[0].clone()
    for r in rows[1:]: total = f(total, r)
    if op == Op.AVG: total = total / N
    return total.to(dtype)

def ops_of(dtype):
    if dtype in COMPLEX: return [Op.SUM, Op.AVG]
    ops = [Op.SUM, Op.MAX, Op.MIN, Op.PRODUCT]
    if dtype in FLOATS + FLOAT8: ops.append(Op.AVG)
    else: ops += [Op.BAND, Op.BOR, Op.BXOR]
    return ops

def call(fn, *args, group=None, asy=False, **kw):
    w = fn(*args, group=group, async_op=asy, **kw)
    if asy: w.wait()

def try_gloo(fn, *args, **kw):
    '''True if Gloo carried it. All ranks agree: it refuses from arguments alone.'''
    try:
        call(fn, *args, group=gloo, **kw)
        return True
    except (RuntimeError, ValueError, TypeError):
        return False

counts = {"gloo": 0, "reference": 0}
def compare(ours, theirs, carried, reference, what):
    if carried and not ("AVG" in what and ours[0].is_complex()):
        counts["gloo"] += 1
        for a, b in zip(ours, theirs): same(a, b, what)
    counts["reference"] += 1
    for a, b in zip(ours, reference): same(a, b, what)

def reductions():
    for dtype, n, asy in itertools.product(ALL, SIZES, (False, True)):
        if asy and n == 5: continue
        for op in ops_of(dtype):
            what = f"{dtype} {n} {op} async={asy}"
            rows = [data(r, n, dtype) for r in range(N)]
            want = fold(op, rows, dtype)
            ours, theirs = rows[R].clone(), rows[R].clone()
            call(dist.all_reduce, ours, op=op, asy=asy)
            ok = n > 0 and dtype not in (torch.bool,) and op != Op.AVG and try_gloo(dist.all_reduce, theirs, op=op)
            compare([ours], [theirs], ok, [want], "all_reduce " + what)
            root = (n + 1) % N
            ours = rows[R].clone()
            call(dist.reduce, ours, dst=root, op=op, asy=asy)
            same(ours, want if R == root else rows[R], "reduce " + what)
            slices = [[data(r, n, dtype, s) for s in range(N)] for r in range(N)]
            want = fold(op, [slices[r][R] for r in range(N)], dtype)
            out = torch.empty(n, dtype=dtype)
            call(SCATTER, out, torch.cat(slices[R]), op=op, asy=asy)
            same(out, want, "reduce_scatter " + what)
            out = torch.empty(n, dtype=dtype)
            call(dist.reduce_scatter, out, list(slices[R]), op=op, asy=asy)
            same(out, want, "reduce_scatter list " + what)

def copies():
    for dtype, n, asy in itertools.product(ALL, SIZES, (False, True)):
        if asy and n == 5: continue
        what = f"{dtype} {n} async={asy}"
        rows = [data(r, n, dtype) for r in range(N)]
        root = (n + 2) % N
        ours, theirs = rows[R].clone(), rows[R].clone()
        call(dist.broadcast, ours, src=root, asy=asy)
        ok = n > 0 and try_gloo(dist.broadcast, theirs, src=root)
        compare([ours], [theirs], ok, [rows[root]], "broadcast " + what)
        out = torch.empty(N * n, dtype=dtype)
        call(GATHER, out, rows[R], asy=asy)
        same(out, torch.cat(rows), "all_gather_single " + what)
        ours = [torch.empty(n, dtype=dtype) for _ in range(N)]
        theirs = [torch.empty(n, dtype=dtype) for _ in range(N)]
        call(dist.all_gather, ours, rows[R], asy=asy)
        ok = n > 0 and try_gloo(dist.all_gather, theirs, rows[R])
        compare(ours, theirs, ok, rows, "all_gather " + what)
        lists = [torch.empty(n, dtype=dtype) for _ in range(N)] if R == root else None
        call(dist.gather, rows[R], lists, dst=root, asy=asy)
        if R == root:
            for a, b in zip(lists, rows): same(a, b, "gather " + what)
        out = torch.empty(n, dtype=dtype)
        parts = [data(root, n, dtype, s) for s in range(N)]
        call(dist.scatter, out, parts if R == root else None, src=root, asy=asy)
        same(out, parts[R], "scatter " + what)
        send = torch.cat([data(R, n, dtype, s) for s in range(N)])
        out = torch.empty(N * n, dtype=dtype)
        call(dist.all_to_all_single, out, send, asy=asy)
        same(out, torch.cat([data(r, n, dtype, R) for r in range(N)]), "all_to_all " + what)

def uneven():
    for dtype in (torch.float32, torch.int64, torch.bfloat16, torch.float8_e4m3fn):
        for sizes in ([r + 1 for r in range(N)], [3 * (r % 2) for r in range(N)], [0] * N):
            what = f"{dtype} {sizes}"
            rows = [data(r, sizes[r], dtype) for r in range(N)]
            outs = [torch.empty(k, dtype=dtype) for k in sizes]
            call(dist.all_gather, outs, rows[R])
            for a, b in zip(outs, rows): same(a, b, "all_gather uneven " + what)
            slices = [[data(r, sizes[s], dtype, s) for s in range(N)] for r in range(N)]
            out = torch.empty(sizes[R], dtype=dtype)
            call(dist.reduce_scatter, out, list(slices[R]))
            same(out, fold(Op.SUM, [slices[r][R] for r in range(N)], dtype), "reduce_scatter uneven " + what)
            ins = [data(R, sizes[(R + s) % N], dtype, s) for s in range(N)]
            outs = [torch.empty(sizes[(r + R) % N], dtype=dtype) for r in range(N)]
            call(dist.all_to_all, outs, ins)
            for r in range(N):
                same(outs[r], data(r, sizes[(r + R) % N], dtype, R), "all_to_all uneven " + what)
            out = torch.empty(sum(t.numel() for t in outs), dtype=dtype)
            call(dist.all_to_all_single, out, torch.cat(ins),
                 output_split_sizes=[t.numel() for t in outs], input_split_sizes=[t.numel() for t in ins])
            same(out, torch.cat([data(r, sizes[(r + R) % N], dtype, R) for r in range(N)]), "all_to_all_single uneven " + what)

def shapes():
    x = torch.tensor(float(R + 1)); dist.all_reduce(x)
    assert x.shape == () and x.item() == N * (N + 1) / 2
    x = torch.ones(3, 0, 2); dist.all_reduce(x)
    for fn in (gpubridge.all_reduce, lambda t: dist.broadcast(t, 0),
               lambda t: dist.all_reduce(t.to_sparse_csr()), lambda t: dist.all_reduce(t, op=Op.MAX)):
        x = torch.full((2, 3), float(R + 1)).to_sparse()
        try: fn(x); raise SystemExit("sparse")
        except (ValueError, RuntimeError) as error: assert "sparse" in str(error)
        assert (x.to_dense() == R + 1).all()
    # Of different rows each, and none on the last rank.
    rows = list(range(R + 1)) if R + 1 < N else []
    x = torch.sparse_coo_tensor([rows], torch.ones(len(rows), 2), (N, 2))
    dist.all_reduce(x)
    want = torch.tensor([[max(N - 1 - i, 0)] * 2 for i in range(N)], dtype=torch.float)
    assert torch.equal(x.to_dense(), want), x
    rows = torch.arange(12.0).reshape(3, 4)
    for view in (rows.t(), rows[::2], torch.ones(1).expand(4, 4), rows[:, 1]):
        kept = view.clone()
        try: dist.all_reduce(view); raise SystemExit("strided")
        except ValueError as error: assert "contiguous" in str(error)
        assert torch.equal(view, kept)
        x = view.contiguous().clone(); dist.all_reduce(x); assert torch.equal(x, N * view)
    c = torch.ones(3, dtype=torch.complex64).conj() * (1 + 1j)
    lazy = torch.full((3,), 1 + 1j, dtype=torch.complex64).conj()
    try: dist.broadcast(lazy, 0); raise SystemExit("conj")
    except (ValueError, RuntimeError) as error: assert "conj" in str(error)
    x = torch.full((4,), float(R + 1)); dist.all_reduce(x, op=dist._make_nccl_premul_sum(0.5))
    assert torch.equal(x, torch.full((4,), N * (N + 1) / 4))
    x = torch.full((4,), float(R + 1), dtype=torch.float16); dist.reduce(x, 0, op=dist._make_nccl_premul_sum(2.0))
    assert R or torch.equal(x, torch.full((4,), float(N * (N + 1)), dtype=torch.float16))
    many = [torch.full((k,), float(R + 1)) for k in (1, 3, 5, 100000)] + [torch.full((2,), R, dtype=torch.int64)]
    dist.all_reduce_coalesced(many[:4])
    assert all((t == N * (N + 1) / 2).all() for t in many[:4])

SCATTER = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
GATHER = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
for part in PARTS: part()
dist.barrier()
dist.destroy_process_group(gloo)
dist.destroy_process_group()
print("compared", counts)
"""


@pytest.mark.parametrize("vendors", ["nnaa", "ana"])
@pytest.mark.parametrize("parts", ["reductions", "copies", "uneven, shapes"])
def test_matrix(run, vendors, parts):
    """S079 to S085 and S048's types. Sparse tensors (S084) are summed by
    torch.distributed, as on Gloo, and refused by everything else."""
    outs = run(SCRIPT.replace("PARTS", f"({parts},)"), vendors, timeout=240)
    assert all("compared" in out for out in outs)
