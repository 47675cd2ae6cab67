"""Base classes of custom policies and bridges, and the names they go by.

docs/custom.md has a working example of each. Nothing here needs torch.
"""

from abc import ABC, abstractmethod

_POLICIES = {}
_TRANSPORTS = {}

# What the library has under these names cannot be replaced.
_BUILT_IN_POLICIES = (
    "auto",
    "native-only",
    "direct",
    "reduce-bridge-broadcast",
    "pipelined-reduce-bridge-broadcast",
    "sharded-bridge",
    "auto-tuned",
    "flat",
)
_BUILT_IN_TRANSPORTS = ("auto", "none", "shm", "tcp", "multitcp", "verbs", "ucx")

# Python classes of the package, imported when somebody asks for them.
_LAZY_POLICIES = {"flat-gloo": "FlatGlooPolicy"}
_LAZY_TRANSPORTS = {"gloo": "GlooTransport"}


class CollectivePolicy(ABC):
    """How the collectives of all ranks travel, written in Python.

    The library numbers the calls, and calls a method on no rank before all ranks
    have come to that call. Methods run on the calling thread, of async calls on
    the worker; they may block. Tensors are flat (one dimension), contiguous, on
    the CPU, and lie in the memory of the caller's own: they are written in place
    and are not to be kept. What a method raises ends the job on every rank.

    AVG and PREMUL_SUM come as sums; the library does the rest. Barriers, messages,
    collectives that have no method here, and groups besides the world use the
    library's own policies.
    """

    name: str
    reduce_ops = frozenset({"sum"})
    reduce_dtypes = None  # names of torch's dtypes that are reduced; None: all

    @classmethod
    @abstractmethod
    def applies_to(cls, layout):
        """Whether it fits a :class:`gpubridge.Layout`: a pure function of it."""

    @abstractmethod
    def all_reduce(self, tensor, topology):
        """In place over all ranks, to the same bits. SUM is called without
        ``op``; with ``op=`` (a ReduceOp) only what ``reduce_ops`` lists."""

    @abstractmethod
    def broadcast(self, tensor, src, topology):
        """In place from global rank `src`."""

    def all_gather_into_tensor(self, output, input, topology):
        """Row r of `output` is rank r's `input`. Offered only if overridden."""
        raise NotImplementedError

    def reduce_scatter_tensor(self, output, input, topology):
        """Slice r of the summed `input` goes to rank r; `input` stays. Offered
        only if overridden; with ``op=`` as all_reduce."""
        raise NotImplementedError

    def supported_reduce_ops(self, topology):
        """What of ``reduce_ops`` works here. Asked once; must say the same on
        every rank."""
        return self.reduce_ops

    @classmethod
    def settings(cls):
        """Plain JSON values read from the environment, which must agree on all
        ranks. ValueError is this rank's problem, and ends init everywhere."""
        return {}

    def setup(self, topology):  # noqa: B027 - optional
        """Called once, before the first call and at the latest then. May make
        groups of torch with ``topology.timeout``."""

    def close(self):  # noqa: B027 - optional
        """Called once when the job is over."""

    def select_policy(self, nbytes):
        """The policy object that carries a call of `nbytes`: this one, or another
        that it set up. May depend on `nbytes` and what all ranks share only."""
        return self


class BridgeTransport(ABC):
    """What carries data between the islands' leaders, written in Python.

    Tensors are flat, contiguous, on the CPU, and are written in place. Calls come
    one at a time, in the same order on every member. What a method raises ends
    the job on every rank.
    """

    name: str
    reduce_ops = frozenset({"sum"})
    reduce_dtypes = None  # names of torch's dtypes that all_reduce takes; None: all
    device_tensors = False  # whether tensors on GPUs may be handed over as they are

    @classmethod
    @abstractmethod
    def create(cls, ranks, *, timeout=None):
        """A transport among the global `ranks` on its members, None elsewhere.

        Called on every rank of the group, in one order. No torch group may be
        used; :mod:`gpubridge.rendezvous` has a store. `timeout`: a timedelta
        that bounds this and every call.
        """

    @classmethod
    def create_groups(cls, groups, *, timeout=None):
        """Several links at once: one entry for each list of ranks."""
        return [cls.create(ranks, timeout=timeout) for ranks in groups]

    @abstractmethod
    def all_reduce(self, tensor):
        """In place among the members, to the same bits. SUM is called without
        ``op``; with ``op=`` only what ``reduce_ops`` lists."""

    @abstractmethod
    def broadcast(self, tensor, src):
        """In place from global rank `src`, a member. Pure copies of types that
        are not common come as bytes."""

    def close(self):  # noqa: B027 - optional
        """Releases everything. Idempotent."""

    def telemetry(self):
        """Facts for people, a dict."""
        return {}


def _register(cls, base, kind, known, taken):
    if not isinstance(cls, type) or not issubclass(cls, base):
        what = cls.__name__ if isinstance(cls, type) else type(cls).__name__
        raise TypeError(f"a {kind} must be a subclass of {base.__name__}, not {what}")
    check_name(cls, kind)
    name = cls.name
    if name in taken:
        raise ValueError(f"the {kind} name {name!r} is one of the library's own")
    other = known.get(name)
    if other not in (None, cls):
        raise ValueError(
            f"the {kind} name {name!r} is taken by {other.__module__}."
            f"{other.__qualname__}"
        )
    known[name] = cls
    return cls


def check_name(cls, kind):
    """ValueError for a class that has no name that can be published."""
    name = getattr(cls, "name", None)
    most = 63 if kind == "policy" else 31
    if not isinstance(name, str) or not 1 <= len(name.encode()) <= most:
        raise ValueError(
            f"the {kind} {cls.__qualname__} needs a class attribute `name` of 1 to "
            f"{most} bytes, not {name!r}"
        )


def register_policy(cls):
    """Class decorator: makes a :class:`CollectivePolicy` known by its name.

    TypeError for anything else; ValueError for a name that is the library's or
    another class's. The same class again is fine.
    """
    taken = (*_BUILT_IN_POLICIES, *_LAZY_POLICIES)
    return _register(cls, CollectivePolicy, "policy", _POLICIES, taken)


def register_transport(cls):
    """Class decorator: makes a :class:`BridgeTransport` known by its name, as
    :func:`register_policy` does."""
    taken = (*_BUILT_IN_TRANSPORTS, *_LAZY_TRANSPORTS)
    return _register(cls, BridgeTransport, "bridge", _TRANSPORTS, taken)


def _resolve(value, base, kind, known, lazy):
    """(name for the library, class or None) of a name or a class."""
    if value is None:
        return None, None
    if isinstance(value, type) and issubclass(value, base):
        check_name(value, kind)
        return value.name, value
    if not isinstance(value, str):
        what = value.__name__ if isinstance(value, type) else type(value).__name__
        raise TypeError(
            f"{kind} must be a name or a subclass of {base.__name__}, not {what}"
        )
    name = value.strip()
    if name in lazy:
        from . import gloo

        return name, getattr(gloo, lazy[name])
    return name, known.get(name)


def resolve_policy(value):
    """(name, class) of a policy; class None for one of the library's own, or for
    a name that it is to refuse. TypeError for what is neither."""
    return _resolve(value, CollectivePolicy, "policy", _POLICIES, _LAZY_POLICIES)


def resolve_transport(value):
    """The same for a bridge."""
    return _resolve(value, BridgeTransport, "bridge", _TRANSPORTS, _LAZY_TRANSPORTS)


def other_names(text):
    """Names to add to the library's `text` about one that it does not know."""
    if text.startswith("there is no policy"):
        return [*_LAZY_POLICIES, *_POLICIES]
    if text.startswith("there is no bridge"):
        return [*_LAZY_TRANSPORTS, *_TRANSPORTS]
    return []


def names(offers):
    """Registered and lazy policies whose class `offers` accepts."""
    found = [name for name, cls in _POLICIES.items() if offers(cls)]
    return [*found, *_LAZY_POLICIES]
