"""The job of this process: ``init``, ``destroy`` and what belongs to them.

At most one job is open in a process. It belongs to torch.distributed's default
group, whichever of the two entry styles opened it: :func:`init`, or
``init_process_group(backend="gpubridge")``.
"""

import atexit
import json
import logging
import os
import sys
import time
import warnings
from datetime import timedelta
from urllib.parse import urlsplit

from . import _core, custom
from .group import Group
from .observe import InFlight, Observers
from .probing import probe
from .topology import SplitTestWarning, Topology

log = logging.getLogger("gpubridge")

_JOINED = "gpubridge/joined"  # ranks that have connected to rank 0's store

_session = None  # the open Session
_adopting = False  # init() has opened the job and now creates torch's group


class Session:
    """An open job and what Python keeps for it."""

    def __init__(self, job, topology, parts, open_store, gpu=None):
        self.job = job
        self.gpu = gpu  # see gpubridge.gpu; None: on host memory
        self.topology = topology
        self.parts = parts  # custom policy and bridge, or None
        self.open_store = open_store  # see rendezvous.store
        self.pid = os.getpid()
        self.observers = Observers(job)
        self.world = Group(job.world(), gpu)
        self.groups = []  # all others that are open
        # Rank of torch's default group -> rank of the job; None: the same.
        self.job_ranks = None
        self.own_store = None  # rank 0's, see _own_store

    def open_group(self, ranks, timeout):
        """A :class:`Group` of the job's `ranks`; every member calls it.

        `timeout` is a timedelta or None. Blocks until all are there. Groups of
        the same ranks are told apart by the order in which they are opened.
        RuntimeError, one text for all members.
        """
        # Not by torch's names: those count the groups that this process knows
        # of, and members that were in other groups before count differently
        # (new_group by members only, or with use_local_synchronization).
        milliseconds = int(timeout.total_seconds() * 1000) if timeout else 0
        core = self.job.open_group(ranks, None, max(milliseconds, 0), None)
        group = Group(core, self.gpu)
        self.groups.append(group)
        return group

    def close_group(self, group):
        """Gives back one that :meth:`open_group` made. Idempotent."""
        if group in self.groups:
            self.groups.remove(group)
            group.close()

    def close(self):
        """Runs what is queued and leaves the job. Idempotent."""
        self._await_store_clients()
        self.open_store = None
        for group in (*self.groups, self.world):
            group.settle()
        try:
            self.job.close()
        finally:
            for group in (*self.groups, self.world):
                group.ended()
            self.groups.clear()
            self.observers.clear()
            if self.parts is not None:
                self.parts.close()

    def _await_store_clients(self):
        """Rank 0's store must not go before the others have connected to it: a
        short job can be over on rank 0 while they still do."""
        store, self.own_store = self.own_store, None
        end = time.monotonic() + 5
        while store is not None and time.monotonic() < end:
            if store.add(_JOINED, 0) >= self.topology.world_size - 1:
                return
            time.sleep(0.01)


def current():
    """The open session; RuntimeError without one."""
    if _session is None:
        raise RuntimeError(
            "gpubridge is not initialized: call gpubridge.init() or "
            'torch.distributed.init_process_group(backend="gpubridge") first'
        )
    return _session


# ---- opening ----


class _Store:
    """A torch store behind the two calls that the C library makes."""

    def __init__(self, store):
        self.store = store

    def set(self, key, value):
        self.store.set(key, value)

    def get(self, key, timeout_ms):
        # Asked again and again: a wait that times out makes torch print lines.
        end = time.monotonic() + timeout_ms / 1000
        while not self.store.check([key]):
            if time.monotonic() >= end:
                return None
            time.sleep(0.01)
        return self.store.get(key)


def _custom_parts(policy, bridge, rank, open_store):
    """(name of the policy, name of the bridge, Parts or None)."""
    policy_name, policy_class = custom.resolve_policy(policy)
    asked = bridge
    if asked is None:
        asked = os.environ.get("GPUBRIDGE_BRIDGE", "").strip() or None
    bridge_name, bridge_class = custom.resolve_transport(asked)
    if bridge_class is None:
        bridge_name = bridge  # the library reads the variable
    if policy_class is None and bridge_class is None:
        return policy_name, bridge_name, None
    from .parts import Parts

    return policy_name, bridge_name, Parts(policy_class, bridge_class, rank, open_store)


def _open(*args):
    try:
        return _core.Job(*args)
    except ValueError as error:  # the library lists the names that it knows
        others = custom.other_names(str(error))
        if not others:
            raise
        raise ValueError(f"{error}, {', '.join(others)}") from None


def _join(
    init_method, rank, world_size, timeout, bridge, policy, store, open_store, facts=()
):
    """Opens the job and makes it the current one. open_store: gives the store
    that torch's group has, from rank 0's facts."""
    global _session
    if _session is not None:
        raise RuntimeError(
            "gpubridge is already initialized in this process: "
            "gpubridge.destroy() or destroy_process_group() ends that job first"
        )
    import torch

    from .gpu import Gpu, choose

    found = probe()
    index, problems = choose(found)
    timeout_ms = int(timeout.total_seconds() * 1000) if timeout else 0
    policy, bridge, parts = _custom_parts(policy, bridge, _peek_rank(rank), open_store)
    job = _open(
        init_method,
        rank,
        world_size,
        max(timeout_ms, 0),
        bridge,
        policy,
        found.build_vendor,
        [
            ("torch_version", found.torch_version),
            ("probe", json.dumps(found.to_dict())),
            *facts,
        ],
        [*problems, *found.errors, *(parts.problems if parts else ())],
        None if store is None else _Store(store),
        None,
        parts,
        index,
    )
    info = job.info()
    gpu = None if index < 0 else Gpu(index)
    if gpu is not None:  # only now: all ranks have agreed
        torch.cuda.set_device(index)
    topology = Topology.from_info(
        info,
        timedelta(milliseconds=info["timeout_ms"]),
        torch.device("cpu") if gpu is None else gpu.device,
        parts,
    )
    if parts is not None:
        parts.topology = topology
    _session = Session(job, topology, parts, open_store, gpu)
    _tell(topology)
    return _session


def group_for_torch(store, ranks, rank, size, timeout):
    """The :class:`Group` of a new group of torch. `ranks`: members by their rank
    in torch's default group, empty for that one.

    The default group opens the job over torch's `store` (unless ``init()`` has
    just done it). When it is another backend's, the first group of ours opens a
    job of its members; later ones must be parts of it.
    """
    if _adopting:
        return current().world
    if _session is None:
        policy = os.environ.get("GPUBRIDGE_POLICY") or None
        session = _join(
            None, rank, size, timeout, None, policy, store, lambda facts: store
        )
        session.job_ranks = {r: i for i, r in enumerate(ranks)} if ranks else None
        return session.world
    session = current()
    if session.job_ranks is not None:
        strangers = [r for r in ranks if r not in session.job_ranks]
        if strangers:
            raise RuntimeError(
                f"ranks {strangers} are not in this process's gpubridge job of ranks "
                f"{list(session.job_ranks)}: make the first group of the gpubridge "
                "backend one of all ranks that will use it"
            )
        ranks = [session.job_ranks[r] for r in ranks]
    return session.open_group(ranks, timeout)


def close_session():
    """Leaves the job, if one is open. Idempotent."""
    global _session
    session, _session = _session, None
    if session is not None:
        session.close()


def _tell(topology):
    if topology.split_test:
        warnings.warn(
            f"split test {topology.split_test!r}: a single-vendor job whose "
            "ranks are relabelled into two islands, for tests only. This rank "
            f"really runs {topology.detected_vendor}; this is not a "
            "mixed-vendor run",
            SplitTestWarning,
            stacklevel=4,
        )
    if topology.rank == 0:
        passed_over = topology.bridge_name == "tcp" and any(
            report["usable"] for report in topology.selection["reports"]
        )
        log.log(
            logging.WARNING if passed_over else logging.INFO,
            "bridge %s: %s",
            topology.bridge_name,
            topology.selection["reason"],
        )


# ---- the public functions ----


def _is_agent_store():
    """Whether torchrun serves the store at MASTER_ADDR:MASTER_PORT."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _own_store(rank, timeout):
    """Rank 0's store for torch's own use, on a port that its record tells the
    others. The job does not need it: it has met without."""
    import torch.distributed as dist

    if rank != 0:
        return None
    return dist.TCPStore(
        "localhost", 0, None, True, timeout, wait_for_workers=False
    )


def _torch_store(init_method, own, world_size, timeout, facts):
    """The store that torch's default group gets. facts: rank 0's."""
    import torch.distributed as dist

    if world_size == 1:
        return dist.HashStore()
    if init_method.startswith("file://"):
        return dist.FileStore(init_method[len("file://") :] + ".torch", world_size)
    if own is not None:
        return own
    host, port = _master(init_method)
    if not (_is_agent_store() and init_method == "env://"):
        port = int(facts["torch_store_port"])
    store = dist.TCPStore(host, port, None, False, timeout, wait_for_workers=False)
    store.add(_JOINED, 1)
    return store


def _master(init_method):
    """Host and port of a rendezvous that has worked."""
    if init_method.startswith("tcp://"):
        parts = urlsplit(init_method)
        return parts.hostname, parts.port
    return os.environ["MASTER_ADDR"].strip(), int(os.environ["MASTER_PORT"])


def _peek_rank(rank):
    """This rank as far as it can be told; the library judges it."""
    if rank is not None and rank >= 0:
        return rank
    text = os.environ.get("RANK", "").strip()
    return int(text) if text.isdigit() else -1


def _peek_size(world_size):
    if world_size is not None:
        return world_size
    text = os.environ.get("WORLD_SIZE", "").strip()
    return int(text) if text.isdigit() else -1


def _set_up_policy(session):
    """What init() does once every group exists. All ranks meet in an empty call,
    which sets the policy up first: a failure ends it on every rank."""
    if session.parts is not None and session.parts.policy is not None:
        session.world.core.broadcast(0, 0, 0, 0, False)


def init(
    init_method=None,
    *,
    rank=None,
    world_size=None,
    timeout=None,
    bridge=None,
    policy="auto",
    allow_debug_gloo=None,
):
    """Joins the job and returns its :class:`Topology`.

    Meets all ranks over ``init_method`` (``env://`` by default, ``tcp://`` or
    ``file://``), checks that they agree, and makes the default process group
    of torch.distributed. ``timeout`` (a timedelta; None: torch's default of 30
    minutes) bounds this and every call. Blocks until every rank is here.

    ``policy`` and ``bridge``: a name, or a :class:`CollectivePolicy` or
    :class:`BridgeTransport` subclass, the same on every rank.

    Raises ValueError for this rank's own bad argument or variable, and
    RuntimeError, with one text on every rank, for everything that the ranks
    find together. Afterwards nothing stays open.
    """
    import torch.distributed as dist

    if _session is not None:
        raise RuntimeError(
            "gpubridge is already initialized in this process: call "
            "gpubridge.destroy() first"
        )
    if dist.is_initialized():
        raise RuntimeError(
            "torch.distributed is already initialized in this process, by "
            'init_process_group. Use either gpubridge.init() or '
            'init_process_group(backend="gpubridge"), not both'
        )
    custom.resolve_transport(bridge)
    custom.resolve_policy(policy)
    init_method = init_method or "env://"
    timeout = timeout or dist.constants.default_pg_timeout
    from ._register import register

    register()
    global _adopting
    rank_here = _peek_rank(rank)
    own = None if _is_agent_store() else _own_store(rank_here, timeout)
    facts = [("torch_store_port", str(own.port))] if own is not None else []
    size_here = _peek_size(world_size)
    opened = []  # torch's store: one for all uses

    def open_store(facts_of_rank_0):
        if not opened:
            opened.append(
                _torch_store(init_method, own, size_here, timeout, facts_of_rank_0)
            )
        return opened[0]

    try:
        session = _join(
            init_method,
            -1 if rank is None else rank,
            -1 if world_size is None else world_size,
            timeout,
            bridge,
            policy,
            None,
            open_store,
            facts,
        )
        _adopting = True
        topology = session.topology
        session.own_store = own
        dist.init_process_group(
            "gpubridge",
            store=open_store(topology.peers[0].facts),
            rank=topology.rank,
            world_size=topology.world_size,
            timeout=timeout,
        )
        _set_up_policy(session)
    except BaseException:
        close_session()
        if dist.is_initialized():
            dist.destroy_process_group()
        raise
    finally:
        _adopting = False
    return current().topology


def destroy():
    """Runs what is queued, leaves the job, ends the default group. Without a
    job it does nothing."""
    import torch.distributed as dist

    if _session is None:
        return
    try:
        if dist.is_initialized():
            dist.destroy_process_group()
    finally:
        close_session()


def is_initialized():
    """True between init and destroy, by whichever entry style."""
    return _session is not None


def get_topology():
    """The job's :class:`Topology`; RuntimeError without a job."""
    return current().topology


def in_flight():
    """Calls of this rank that have started and not ended, oldest first.

    Any thread, never blocks. An empty list without a job.
    """
    session = _session
    if session is None:
        return []
    return [InFlight(**entry) for entry in session.job.in_flight()]


def telemetry():
    """Facts and counters of the bridge and the islands, as a dict. What a custom
    bridge says of itself is under ``bridge.`` and its own names."""
    session = current()
    facts = session.job.telemetry()
    bridge = session.topology.bridge
    if bridge is not None:
        for name, value in bridge.telemetry().items():
            facts[f"bridge.{name}"] = value
    return facts


@atexit.register
def _at_exit():
    # Handlers registered later run earlier, so users' own come first. A forked
    # child leaves its parent's job alone.
    session = _session
    if session is not None and session.pid == os.getpid():
        try:
            close_session()
        except Exception as error:  # noqa: BLE001 - the process is ending
            log.warning("could not leave the job at exit: %s", error)
    work = sys.modules.get(f"{__package__}.work")
    if work is not None:  # without torch nobody has a future
        work.end_futures()
