"""The job of this process: ``init``, ``destroy`` and what belongs to them.

At most one job is open in a process. It belongs to torch.distributed's default
group, whichever of the two entry styles opened it: :func:`init`, or
``init_process_group(backend="gpubridge")``.
"""

import atexit
import json
import logging
import os
import threading
import warnings
from collections import deque
from datetime import timedelta
from urllib.parse import urlsplit

from . import _core
from .observe import InFlight, Observers
from .probing import probe
from .topology import SplitTestWarning, Topology

log = logging.getLogger("gpubridge")

_session = None  # the open Session
_wanted = {}  # what init() asks of the group that it is about to create


class Session:
    """An open job and what Python keeps for it."""

    def __init__(self, job, topology):
        self.job = job
        self.topology = topology
        self.pid = os.getpid()
        self.observers = Observers(job)
        # Tensors of async calls, kept until their calls are done: the library
        # holds addresses only. Appended and popped under the GIL.
        self.kept = deque()
        self.worker = None
        self.lock = threading.Lock()

    def keep(self, work, tensors):
        """Holds `tensors` until `work` is done, also if its owner drops it."""
        while self.kept and self.kept[0][0].test():
            self.kept.popleft()
        self.kept.append((work, tensors))

    def need_worker(self):
        """Attaches the thread that runs async calls: a Python thread, so that
        observers run on one that Python knows."""
        if self.worker is not None:
            return
        with self.lock:
            if self.worker is None:
                self.worker = threading.Thread(
                    target=self.job.serve, name="gpubridge-async", daemon=True
                )
                self.worker.start()

    def close(self):
        """Runs what is queued and leaves the job. Idempotent."""
        try:
            self.job.close()
        finally:
            if self.worker is not None and self.pid == os.getpid():
                self.worker.join()
            self.kept.clear()
            self.observers.clear()


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
        try:
            self.store.wait([key], timedelta(milliseconds=max(timeout_ms, 1)))
        except Exception as error:  # torch raises several types for a timeout
            if "imeout" in str(error) or "imed out" in str(error):
                return None
            raise
        return self.store.get(key)


def _facts(found):
    return [
        ("torch_version", found.torch_version),
        ("probe", json.dumps(found.to_dict())),
    ]


def open_session(store, rank, world_size, timeout):
    """Joins the job over `store` (a torch store) and makes it the current one."""
    global _session
    if _session is not None:
        raise RuntimeError(
            "gpubridge is already initialized in this process: "
            "gpubridge.destroy() or destroy_process_group() ends that job first"
        )
    import torch

    found = probe()
    timeout_ms = int(timeout.total_seconds() * 1000) if timeout else 0
    job = _core.Job(
        None,
        rank,
        world_size,
        max(timeout_ms, 0),
        _wanted.get("bridge"),
        _wanted.get("policy") or os.environ.get("GPUBRIDGE_POLICY") or None,
        found.build_vendor,
        _facts(found),
        list(found.errors),
        _Store(store),
        None,
    )
    info = job.info()
    topology = Topology.from_info(
        info, timedelta(milliseconds=info["timeout_ms"]), torch.device("cpu")
    )
    _session = Session(job, topology)
    _tell(topology)
    return _session


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
        log.info(
            "bridge %s: %s",
            topology.bridge_name,
            topology.selection["reason"],
        )


# ---- the public functions ----


def _number(name, given, low):
    """An int from the argument or the environment."""
    if given is not None:
        return given
    text = os.environ.get(name, "").strip()
    if not text:
        hint = ""
        if os.environ.get("SLURM_PROCID"):
            hint = (
                ". SLURM_PROCID is set, but not used: set RANK and WORLD_SIZE "
                "from SLURM_PROCID and SLURM_NTASKS"
            )
        raise ValueError(
            f"{name} is not set: a launcher such as torchrun or gpubridge run "
            f"sets it, or pass it to init(){hint}"
        )
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if value < low:
        raise ValueError(
            f'{name} is "{text}", but must be a whole number of at least {low}'
        )
    return value


def _master(init_method):
    """(host, port) of a tcp:// or env:// rendezvous."""
    if init_method.startswith("tcp://"):
        rest = init_method[len("tcp://") :]
        if rest.count(":") > 1 and not rest.startswith("["):
            raise ValueError(
                f'"{init_method}" is ambiguous: an IPv6 address with a port is '
                "written in brackets, like tcp://[::1]:29500"
            )
        parts = urlsplit(init_method)
        if not parts.hostname or not parts.port:
            raise ValueError(f'"{init_method}" is not tcp://host:port')
        return parts.hostname, parts.port
    host = os.environ.get("MASTER_ADDR", "").strip()
    if not host:
        raise ValueError(
            "MASTER_ADDR is not set: a launcher such as torchrun or gpubridge "
            "run sets it, or pass init_method to init()"
        )
    port = _number("MASTER_PORT", None, 1)
    if port > 65535:
        raise ValueError(f'MASTER_PORT is "{port}", but must be from 1 to 65535')
    return host, port


def _open_store(init_method, rank, world_size, timeout):
    import torch.distributed as dist

    if init_method.startswith("file://"):
        path = init_method[len("file://") :]
        return dist.FileStore(path, world_size)
    host, port = _master(init_method)
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "") == "True"
    # Rank 0 must not wait for the others here: discovery does, and names them.
    return dist.TCPStore(
        host,
        port,
        None,
        is_master=rank == 0 and not agent,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=True,
    )


def _check_name(kind, value):
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{kind} must be a name, not {type(value).__name__}")


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
    _check_name("bridge", bridge)
    _check_name("policy", policy)
    init_method = init_method or "env://"
    rank = _number("RANK", rank, 0)
    world_size = _number("WORLD_SIZE", world_size, 1)
    if rank >= world_size:
        raise ValueError(
            f"RANK is {rank}, but must be below the world size {world_size}"
        )
    timeout = timeout or dist.constants.default_pg_timeout
    from ._register import register

    register()
    store = _open_store(init_method, rank, world_size, timeout)
    _wanted.update(bridge=bridge, policy=policy)
    try:
        dist.init_process_group(
            "gpubridge",
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=timeout,
        )
    except BaseException:
        close_session()
        raise
    finally:
        _wanted.clear()
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
    """Facts and counters of the bridge and the islands, as a dict."""
    return current().job.telemetry()


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
