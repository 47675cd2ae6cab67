"""The job's store, for set-up data of custom bridges, policies and tools.

Usable in :meth:`BridgeTransport.create`, where no torch group may be used yet,
and while a job is open. Values are small: addresses, ports, ids.
"""

import contextlib
import threading
import time

from . import session

_here = threading.local()  # what is being opened on this thread


class _Opening:
    def __init__(self, parts, facts, prefix):
        self.parts = parts
        self.facts = facts
        self.prefix = prefix


@contextlib.contextmanager
def opening(parts, facts, prefix):
    """What the package does around create()."""
    outer = getattr(_here, "opening", None)
    _here.opening = _Opening(parts, facts, prefix)
    try:
        yield
    finally:
        _here.opening = outer


def _opening():
    return getattr(_here, "opening", None)


def rank():
    """This process's global rank. RuntimeError without a job."""
    now = _opening()
    return now.parts.rank if now else session.current().topology.rank


def store():
    """A torch store that all ranks of the job share.

    Inside create() its keys are that link's own; outside, all callers share
    them. RuntimeError without a job. Connecting blocks for the first caller.
    """
    import torch.distributed as dist

    now = _opening()
    if now:
        return dist.PrefixStore(
            f"gpubridge/link/{now.prefix}", now.parts.open_store(now.facts)
        )
    open_session = session.current()
    facts = open_session.topology.peers[0].facts
    return dist.PrefixStore("gpubridge/open", open_session.open_store(facts))


def check():
    """Raises RuntimeError, with the job's one sentence, once the job has failed.

    For loops that wait for something of another rank's. Never blocks.
    """
    if _opening() is None and session.is_initialized():
        session.current().world.core.check()


def get(key, timeout, store):
    """The bytes under `key`, once they are there. `timeout`: a timedelta.

    TimeoutError when it passes; RuntimeError when the job fails before. Ctrl-C
    gets through.
    """
    end = time.monotonic() + timeout.total_seconds()
    pause = 0.0005
    while not store.check([key]):
        check()
        if time.monotonic() >= end:
            raise TimeoutError(
                f"the key {key!r} did not come within {timeout.total_seconds():g} s"
            )
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
    return store.get(key)


def exchange(name, value, ranks, timeout):
    """Gives `value` (bytes) to all of `ranks`, and returns theirs, in that order.

    Every one of them calls it, with a `name` that was not used before. Blocks
    at most for `timeout`, a timedelta; errors as :func:`get`.
    """
    keys = store()
    keys.set(f"{name}/{rank()}", value)
    return [get(f"{name}/{r}", timeout, keys) for r in ranks]
