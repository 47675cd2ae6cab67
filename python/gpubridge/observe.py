"""Records of finished collectives, and calls in flight."""

import threading
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass

_REDOPS = ("sum", "avg", "max", "min", "product", "band", "bor", "bxor", "premul_sum")


@dataclass(frozen=True)
class Mark:
    """A point in time: monotonic nanoseconds of this host; on GPUs an event
    too."""

    host_ns: int
    event: object = None

    def ready(self) -> bool:
        return self.event is None or self.event.query()


def elapsed_ms(start: Mark, end: Mark) -> float:
    """Milliseconds between two marks; by the device's clock if both have an
    event."""
    if start.event is not None and end.event is not None:
        return start.event.elapsed_time(end.event)
    return (end.host_ns - start.host_ns) / 1e6


@dataclass(frozen=True)
class Phase:
    """One step of a policy that this rank took part in."""

    name: str
    start: Mark
    end: Mark

    def elapsed_ms(self) -> float:
        return elapsed_ms(self.start, self.end)


@dataclass(frozen=True)
class CollectiveRecord:
    """One finished collective. ``seq`` is equal on all ranks of its ``group`` (0:
    the world); ``nbytes`` is the input's size."""

    seq: int
    op: str
    nbytes: int
    dtype: str | None
    src: int | None
    policy: str | None
    reduce_op: str | None
    start: Mark
    end: Mark
    phases: tuple
    group: int = 0

    def ready(self) -> bool:
        """True when all marks were reached. Never blocks."""
        marks = [self.start, self.end]
        for phase in self.phases:
            marks += [phase.start, phase.end]
        return all(mark.ready() for mark in marks)

    def elapsed_ms(self) -> float:
        return elapsed_ms(self.start, self.end)

    def phase(self, name: str) -> Phase | None:
        """The first phase of that name, or None."""
        return next((p for p in self.phases if p.name == name), None)

    @classmethod
    def from_dict(cls, values):
        from .calls import SUPPORTED_DTYPES

        dtype = values["dtype"]
        return cls(
            seq=values["seq"],
            op=values["op"],
            nbytes=values["nbytes"],
            dtype=SUPPORTED_DTYPES[dtype] if dtype >= 0 else None,
            src=values["root"] if values["root"] >= 0 else None,
            policy=values["policy"],
            reduce_op=_REDOPS[values["redop"]] if values["redop"] >= 0 else None,
            start=Mark(values["start_ns"]),
            end=Mark(values["end_ns"]),
            phases=tuple(
                Phase(name, Mark(start), Mark(end))
                for name, start, end in values["phases"]
            ),
            group=values["group"],
        )


@dataclass(frozen=True)
class InFlight:
    """A call that has started and not ended, as the host sees it."""

    seq: int
    op: str
    policy: str | None
    phase: str | None
    phases_done: tuple
    thread: str
    seconds: float
    group: int = 0


class CollectiveObserver(ABC):
    """Gets a record after each successful collective, on the thread that ran
    it. One that raises is detached on this rank, with a RuntimeWarning."""

    @abstractmethod
    def on_collective(self, record: CollectiveRecord) -> None: ...

    def on_detach(self, error: BaseException) -> None:  # noqa: B027 - optional
        """Called once after it was detached for raising `error`."""


class Observers:
    """The observers of one job. The library is told to build records only while
    there is at least one."""

    def __init__(self, job):
        self._job = job
        self._list = []
        self._lock = threading.Lock()

    def add(self, observer):
        if not isinstance(observer, CollectiveObserver):
            raise TypeError(
                "an observer must be a gpubridge.CollectiveObserver, not "
                f"{type(observer).__name__}"
            )
        with self._lock:
            if any(known is observer for known in self._list):
                return
            self._list.append(observer)
            if len(self._list) == 1:
                self._job.set_observer(self._deliver)

    def remove(self, observer):
        with self._lock:
            kept = [known for known in self._list if known is not observer]
            if self._list and not kept:
                self._job.set_observer(None)
            self._list = kept

    def clear(self):
        """Forgets all; the job is closed already."""
        with self._lock:
            self._list = []

    def _deliver(self, values):
        record = CollectiveRecord.from_dict(values)
        for observer in list(self._list):
            try:
                observer.on_collective(record)
            except Exception as error:  # noqa: BLE001 - it is the user's code
                self._detach(observer, error)

    def _detach(self, observer, error):
        with self._lock:
            # The library keeps calling us while it is in a callback: it is told
            # by an empty list, not by set_observer(None) from inside.
            self._list = [known for known in self._list if known is not observer]
        warnings.warn(
            f"observer {observer!r} raised {type(error).__name__}: {error}; it "
            "is detached on this rank",
            RuntimeWarning,
            stacklevel=2,
        )
        try:
            observer.on_detach(error)
        except Exception:  # noqa: BLE001 - nothing more can be told
            pass


def add_observer(observer: CollectiveObserver) -> None:
    """Attaches an observer to the open job. Twice: delivered once."""
    from .session import current

    current().observers.add(observer)


def remove_observer(observer: CollectiveObserver) -> None:
    """Detaches it; an unknown one is a no-op."""
    from .session import current

    current().observers.remove(observer)
