"""A job's custom policy and bridge, behind the calls that the extension makes.

One :class:`Parts` per job. Its methods run on the thread that makes the call.
What they raise is the job's sentence: a :class:`PartError` that says which part,
caused by what the user's code raised.
"""

import json
import threading
from datetime import timedelta

import torch
from torch.distributed import ReduceOp

from . import custom, rendezvous
from .calls import SUM, SUPPORTED_DTYPES
from .topology import Layout

# By code of gb_redop: what a policy or a bridge may list.
_OPS = {
    "sum": (0, ReduceOp.SUM),
    "max": (2, ReduceOp.MAX),
    "min": (3, ReduceOp.MIN),
    "product": (4, ReduceOp.PRODUCT),
    "band": (5, ReduceOp.BAND),
    "bor": (6, ReduceOp.BOR),
    "bxor": (7, ReduceOp.BXOR),
}
_OP_NAMES = {code: name for name, (code, _) in _OPS.items()}
_TORCH_OPS = {code: op for code, op in _OPS.values()}

# Types that every library of collectives knows. Copies of others go as bytes.
_COMMON = {
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
}


class PartError(RuntimeError):
    """A custom part failed; the cause is what it raised."""


def _class_name(part):
    cls = part if isinstance(part, type) else type(part)
    return f"{cls.__module__}.{cls.__qualname__}"


def _failure(kind, part, method, error):
    words = " ".join(str(error).split())
    return PartError(
        f"the {kind} {part.name!r} ({_class_name(part)}) raised "
        f"{type(error).__name__} in {method}(): {words}"
    )


def _tensor(view, dtype):
    """The memory of `view` as a flat tensor, without a copy."""
    dtype = SUPPORTED_DTYPES[dtype]
    if not view.nbytes:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(view, dtype=dtype)


def _copyable(tensor):
    return tensor if tensor.dtype in _COMMON else tensor.view(torch.uint8)


def _op_names(part, ops):
    """The reductions that `part` lists; what it must not list is its mistake."""
    ops = {ops} if isinstance(ops, str) else set(ops)
    unknown = sorted(str(op) for op in ops if op not in _OPS)
    if unknown:
        raise ValueError(
            f"{_class_name(part)}.reduce_ops lists {', '.join(unknown)}; known are "
            f"{', '.join(_OPS)}"
        )
    return ops


def _dtype_bits(part):
    if part.reduce_dtypes is None:
        return 0
    names = [str(dtype).removeprefix("torch.") for dtype in SUPPORTED_DTYPES]
    return sum(1 << names.index(str(name)) for name in part.reduce_dtypes)


def _listed(names):
    return ", ".join(sorted(names)) or "none"


class _Link:
    """An open transport, for the library."""

    def __init__(self, parts, transport, group):
        self.parts = parts
        self.transport = transport
        self.group = group

    def _call(self, method, *args, **kwargs):
        try:
            getattr(self.transport, method)(*args, **kwargs)
        except Exception as error:
            raise _failure("bridge", self.transport, method, error) from error

    def all_reduce(self, view, dtype, redop):
        tensor = _tensor(view, dtype)
        if redop == SUM:
            self._call("all_reduce", tensor)
        else:
            self._call("all_reduce", tensor, op=_TORCH_OPS[redop])

    def broadcast(self, view, dtype, src):
        self._call("broadcast", _copyable(_tensor(view, dtype)), src)

    def close(self):
        self.parts.links.pop(self.group, None)
        self.transport.close()


class Parts:
    """policy, transport: classes or None. rank: this one's, for create().
    open_store: gives the job's torch store, from what rank 0 published."""

    def __init__(self, policy, transport, rank, open_store):
        self.policy_class = policy
        self.transport_class = transport
        self.rank = rank
        self.open_store = open_store
        self.problems = []  # published, and the end of opening on every rank
        self.policy = None
        self.topology = None
        self.links = {}  # group number -> this rank's transport
        self._opened = set()  # groups whose first link is there
        self._ready = False
        self._lock = threading.RLock()
        self._supported = {}
        self.policy_name = self.policy_settings = self.bridge_name = None
        self.bridge_redops = self.bridge_dtypes = 0
        if policy is not None:
            self._take_policy(policy)
        if transport is not None:
            self._take_transport(transport)

    def _take_policy(self, policy):
        self.policy_name = policy.name
        method = "settings"
        try:
            self.policy_settings = json.dumps(policy.settings(), sort_keys=True)
            method = "__init__"
            self.policy = policy()
        except Exception as error:  # noqa: BLE001 - told to every rank
            self.problems.append(str(_failure("policy", policy, method, error)))

    def _take_transport(self, transport):
        self.bridge_name = transport.name
        try:
            names = _op_names(transport, transport.reduce_ops)
            self.bridge_redops = sum(1 << _OPS[name][0] for name in names)
            self.bridge_dtypes = _dtype_bits(transport)
        except Exception as error:  # noqa: BLE001 - told to every rank
            self.problems.append(
                str(_failure("bridge", transport, "reduce_ops", error))
            )

    @property
    def settings(self):
        return json.loads(self.policy_settings) if self.policy_settings else {}

    # ---- the bridge ----

    def open_link(self, facts, group, ranks, is_member, timeout_ms):
        """A _Link on members, None elsewhere."""
        cls = self.transport_class
        ranks = list(ranks)
        timeout = timedelta(milliseconds=timeout_ms)
        first = group not in self._opened
        self._opened.add(group)
        method = "create" if first else "create_groups"
        try:
            with rendezvous.opening(self, facts, f"{group}/{ranks[0]}"):
                if first:
                    made = cls.create(ranks, timeout=timeout)
                else:
                    (made,) = cls.create_groups([ranks], timeout=timeout)
        except Exception as error:
            raise _failure("bridge", cls, method, error) from error
        if isinstance(made, custom.BridgeTransport) if is_member else made is None:
            if made is None:
                return None
            self.links.setdefault(group, made)
            return _Link(self, made, group)
        wanted = f"a {cls.__qualname__}" if is_member else "None"
        raise PartError(
            f"the bridge {cls.name!r}: {_class_name(cls)}.{method}() for ranks {ranks} "
            f"returned {type(made).__name__} on rank {self.rank}, which is "
            f"{'a member' if is_member else 'no member'}: it must return {wanted}"
        )

    # ---- the policy ----

    def fits(self, labels):
        try:
            return bool(self.policy_class.applies_to(Layout.of(labels)))
        except Exception as error:
            raise _failure("policy", self.policy_class, "applies_to", error) from error

    def setup(self):
        """Once, on whoever comes first."""
        with self._lock:
            if self._ready or self.policy is None:
                return
            self._ready = True
            try:
                self.policy.setup(self.topology)
            except Exception as error:
                raise _failure("policy", self.policy, "setup", error) from error

    def _select(self, nbytes):
        try:
            chosen = self.policy.select_policy(nbytes)
        except Exception as error:
            raise _failure("policy", self.policy, "select_policy", error) from error
        if not isinstance(chosen, custom.CollectivePolicy):
            raise PartError(
                f"the policy {self.policy.name!r}: {_class_name(self.policy)}."
                f"select_policy({nbytes}) returned {type(chosen).__name__}: it must "
                "return a CollectivePolicy object"
            )
        return chosen

    def _ops_of(self, policy):
        if id(policy) not in self._supported:
            try:
                ops = _op_names(policy, policy.supported_reduce_ops(self.topology))
            except Exception as error:
                raise _failure(
                    "policy", policy, "supported_reduce_ops", error
                ) from error
            self._supported[id(policy)] = ops & set(policy.reduce_ops)
        return self._supported[id(policy)]

    def accepts(self, op, dtype, redop, in_count, out_count):
        """None, or why the policy does not offer this call."""
        self.setup()
        element = SUPPORTED_DTYPES[dtype]
        policy = self._select(max(in_count, out_count) * element.itemsize)
        optional = getattr(custom.CollectivePolicy, op)
        if getattr(type(policy), op) is optional:
            others = custom.names(lambda cls: getattr(cls, op) is not optional)
            return (
                f"the policy {policy.name!r} does not offer {op}. Policies that do: "
                f"auto, flat, {', '.join(others)}"
            )
        if redop >= 0 and _OP_NAMES[redop] not in self._ops_of(policy):
            return (
                f"the policy {policy.name!r} cannot reduce with {_OP_NAMES[redop]}. It "
                f"offers {_listed(self._ops_of(policy))}"
            )
        known = policy.reduce_dtypes
        if redop >= 0 and known is not None:
            name = str(element).removeprefix("torch.")
            if name not in known:
                return (
                    f"the policy {policy.name!r} cannot reduce {name}. It offers "
                    f"{_listed(known)}"
                )
        return None

    def run(self, op, dtype, redop, src, input_view, output_view):
        output = _tensor(output_view, dtype)
        policy = self._select(max(input_view.nbytes, output_view.nbytes))
        named = {} if redop in (-1, SUM) else {"op": _TORCH_OPS[redop]}
        try:
            if op == "all_reduce":
                policy.all_reduce(output, self.topology, **named)
            elif op == "broadcast":
                policy.broadcast(_copyable(output), src, self.topology)
            elif op == "all_gather_into_tensor":
                input = _copyable(_tensor(input_view, dtype))
                policy.all_gather_into_tensor(_copyable(output), input, self.topology)
            else:
                input = _tensor(input_view, dtype)
                policy.reduce_scatter_tensor(output, input, self.topology, **named)
        except Exception as error:
            raise _failure("policy", policy, op, error) from error

    def close(self):
        """After the library has left the job."""
        self.open_store = None
        with self._lock:
            policy, self.policy = self.policy, None
            if policy is not None and self._ready:
                policy.close()
