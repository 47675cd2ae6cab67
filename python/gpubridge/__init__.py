"""gpubridge: one PyTorch training job across NVIDIA and AMD GPUs.

As a ``torch.distributed`` backend::

    import gpubridge  # registers the name; on torch >= 2.14 not needed
    torch.distributed.init_process_group(backend="gpubridge")

or with its own functions::

    topology = gpubridge.init()
    gpubridge.all_reduce(tensor)
    gpubridge.destroy()

The package works without torch; names that need it import it at first use.
Importing the package registers the backend's name where torch (before 2.14)
would not find it by itself. Nothing is started.
"""

import importlib

from . import _core

__version__ = _core.version()

# name -> module that defines it; resolved at first use.
_NAMES = {
    "init": "session",
    "destroy": "session",
    "is_initialized": "session",
    "get_topology": "session",
    "in_flight": "session",
    "telemetry": "session",
    "all_reduce": "collectives",
    "broadcast": "collectives",
    "reduce": "collectives",
    "all_gather_into_tensor": "collectives",
    "reduce_scatter_tensor": "collectives",
    "all_to_all_single": "collectives",
    "barrier": "collectives",
    "send": "collectives",
    "recv": "collectives",
    "batch_isend_irecv": "collectives",
    "ReduceOp": "collectives",
    "ddp_comm_hook": "ddp",
    "Shares": "uneven",
    "even_shares": "uneven",
    "measure_shares": "uneven",
    "UnevenSampler": "uneven",
    "UnevenState": "uneven",
    "uneven_comm_hook": "uneven",
    "hsdp_mesh": "mesh",
    "explain_mesh": "mesh",
    "Work": "work",
    "probe": "probing",
    "Probe": "probing",
    "CollectivePolicy": "custom",
    "BridgeTransport": "custom",
    "register_policy": "custom",
    "register_transport": "custom",
    "GlooTransport": "gloo",
    "Topology": "topology",
    "Layout": "topology",
    "Island": "topology",
    "PeerInfo": "topology",
    "SplitTestWarning": "topology",
    "add_observer": "observe",
    "remove_observer": "observe",
    "elapsed_ms": "observe",
    "CollectiveObserver": "observe",
    "CollectiveRecord": "observe",
    "InFlight": "observe",
    "Mark": "observe",
    "Phase": "observe",
    "GpubridgeProcessGroup": "process_group",
    "register": "_register",
}

__all__ = ["__version__", *_NAMES]


def __getattr__(name):
    module = _NAMES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(__all__)


from ._register import register_if_needed  # noqa: E402

register_if_needed()
