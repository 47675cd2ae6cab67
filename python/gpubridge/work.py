"""The handle of a collective: what torch and users wait for."""

import os
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from .eager import eager


def _milliseconds(timeout):
    """0 (no limit of its own) for None and for torch's zero timedelta."""
    if timeout is None:
        return 0
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    return max(int(timeout * 1000), 1) if timeout > 0 else 0


_POLL_SECONDS = 0.0001
_futures_lock = threading.Lock()


@eager
class Work(dist._Work if hasattr(dist, "_Work") else dist.Work):
    """One call. ``core`` is the library's handle, None when it was done before
    this object was made; ``value`` is what the future holds; ``source`` the
    group rank that a finished receive came from; ``gpu`` the one whose streams
    are ordered by it, None in a job on host memory."""

    def __init__(self, core, value, then=None, source=-1, gpu=None):
        super().__init__()
        self._core = core
        self._value = value
        self._source = source
        self._then = then  # runs once, after success, on whoever waits first
        self._error = None
        self._future = None
        self._gpu = gpu
        self._event = None  # the end of what _then did on a GPU
        # Most works have nothing to run: they need no lock of their own.
        self._then_lock = threading.Lock() if then is not None else None

    def _finish(self):
        """Called when the library is done with it."""
        if self._then_lock is None:
            return
        with self._then_lock:
            then, self._then = self._then, None
            if then is not None:
                try:
                    then()
                    if self._gpu is not None:
                        self._event = self._gpu.mark()
                except Exception as error:
                    self._error = error
                    raise RuntimeError(str(error)) from error
            elif self._event is not None:  # it may have run on another stream
                self._gpu.current_stream().wait_event(self._event)

    def _core_wait(self, milliseconds):
        if self._gpu is not None:
            self._gpu.use_current_stream()
        self._core.wait(milliseconds)

    def _order(self, milliseconds=0):
        """The current stream, or in a job on host memory the caller, waits."""
        if self._error is not None:
            raise RuntimeError(str(self._error)) from self._error
        if self._core is not None:
            try:
                self._core_wait(milliseconds)
            except TimeoutError:
                raise
            except Exception as error:
                self._error = error
                raise RuntimeError(str(error)) from error
        self._finish()

    def _await(self, milliseconds):
        """The host waits until the GPU is through with it. The group's timeout
        ends that too, by failing the job."""
        end = time.monotonic() + milliseconds / 1000 if milliseconds else None
        while not self.is_completed():
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(
                    f"the work was not done after {milliseconds / 1000:.4g} s; it "
                    "goes on"
                )
            time.sleep(_POLL_SECONDS)
        error = self.exception()
        if error is not None:
            raise RuntimeError(str(error)) from error

    def wait(self, timeout=None):
        """Blocks until it is done; returns True. On a GPU the current stream
        waits, and the host does not: a failure that comes after that is raised
        by later calls. With a `timeout`, or under GPUBRIDGE_BLOCKING_WAIT, the
        host waits there too.

        TimeoutError when `timeout` (a timedelta or seconds) passes first: the
        call goes on. RuntimeError, with the original as its cause, when the
        collective failed.
        """
        milliseconds = _milliseconds(timeout)
        self._order(milliseconds)
        if self._gpu is not None and (milliseconds or self._gpu.blocking_wait):
            self._await(milliseconds)
        return True

    def is_completed(self):
        """True once it is done, in success or failure. Never blocks."""
        if self._core is not None and not self._core.test():
            return False
        if self.exception() is None:
            try:
                self._finish()  # who polls may read the result without a wait
            except RuntimeError:
                pass  # exception() has it
        return self._event is None or self._event.query()

    def is_success(self):
        return self.is_completed() and self.exception() is None

    def exception(self):
        """The original exception, or None; meaningful once completed."""
        if self._error is None and self._core is not None and self._core.test():
            try:
                self._core_wait(0)
            except Exception as error:  # noqa: BLE001 - handed to the caller
                self._error = error
        return self._error

    def result(self):
        self.wait()
        return self._value if isinstance(self._value, list) else [self._value]

    def synchronize(self):
        self.wait()

    def source_rank(self):
        """Group rank that a receive came from; RuntimeError for other calls."""
        if self._source < 0 and self._core is not None:
            self._source = self._core.source()
        if self._source < 0:
            raise RuntimeError("only a finished receive has a source rank")
        return self._source

    def _source_rank(self):
        return self.source_rank()

    def _get_sequence_number(self):
        return self._core.seq() if self._core is not None else -1

    def _is_done(self):
        """Done before this object was made: its future needs no thread."""
        return self._core is None

    def get_future(self):
        """A torch future with the tensors; failed when the call failed.

        It is the child of a future whose callback raises: that is the one way
        to fail a future for C++ too. ``Future.set_exception`` would store the
        exception as a value, which crashes DDP's reducer.
        """
        with _futures_lock:
            if self._future is not None:
                return self._future
            if self._gpu is not None:
                self._future = self._gpu_future()
                return self._future
            done = torch.futures.Future()
            self._future = done.then(self._outcome)
        if self._is_done():
            done.set_result(None)
        else:
            _completer.add(self, done)
        return self._future

    def _gpu_future(self):
        """Complete from the start, as other GPU backends' are: what waits for it,
        and its callbacks, are ordered after the call on their streams."""
        if self._is_done():
            return self._completed_future()
        with self._gpu.beside():
            return self._completed_future()

    def _completed_future(self):
        try:
            self._order()
        except Exception:  # noqa: BLE001 - _outcome raises it again
            done = torch.futures.Future()
            future = done.then(self._outcome)
            done.set_result(None)
            return future
        future = torch.futures.Future(devices=[self._gpu.device])
        future.set_result(self._value)
        return future

    def _outcome(self, _):
        if self._error is not None:
            raise RuntimeError(str(self._error)) from self._error
        return self._value


@eager
class HostWork(Work):
    """A call of a job on a GPU that the host waits for: a barrier, or one on
    tensors of the CPU. Its ``then`` runs on a stream of our own."""

    def __init__(self, core, value, then, gpu):
        super().__init__(core, value, then)
        self._device = gpu

    def _core_wait(self, milliseconds):
        # Polled: a wait for a stream could neither be interrupted nor time out.
        end = time.monotonic() + milliseconds / 1000 if milliseconds else None
        while not self._core.test():
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(
                    f"the work was not done after {milliseconds / 1000:.4g} s; it "
                    "goes on"
                )
            time.sleep(_POLL_SECONDS)
        with self._device.beside():
            self._device.use_current_stream()
            self._core.wait(0)

    def _finish(self):
        with self._device.beside():
            super()._finish()


@eager
class Batch(Work):
    """Several works as one: done when all are; fails with the first failure in
    their order."""

    def __init__(self, works, value):
        super().__init__(None, value)
        self._works = [work for work in works if work is not None]
        gpus = (work._gpu for work in self._works if work._gpu is not None)
        self._gpu = next(gpus, None)

    def _order(self, milliseconds=0):
        for work in self._works:
            try:
                work._order(milliseconds)
            except TimeoutError:
                raise
            except Exception as error:
                self._error = self._error or getattr(error, "__cause__", None) or error
                raise

    def wait(self, timeout=None):
        end = None
        milliseconds = _milliseconds(timeout)
        if milliseconds:
            end = time.monotonic() + milliseconds / 1000
        for work in self._works:
            left = None if end is None else max(end - time.monotonic(), 0.001)
            try:
                work.wait(left)
            except TimeoutError:
                raise
            except Exception as error:
                self._error = self._error or getattr(error, "__cause__", None) or error
                raise
        return True

    def is_completed(self):
        return all(work.is_completed() for work in self._works)

    def exception(self):
        for work in self._works:
            if work.is_completed() and work.exception() is not None:
                return work.exception()
        return None

    def source_rank(self):
        if len(self._works) != 1:
            raise RuntimeError("a batch has no single source rank")
        return self._works[0].source_rank()

    def _get_sequence_number(self):
        return max((work._get_sequence_number() for work in self._works), default=-1)

    def _is_done(self):
        return all(work._is_done() for work in self._works)


class _Completer:
    """Completes futures: one Python thread, started when the first future of an
    unfinished call is asked for. It waits inside C, without the GIL.

    It must not outlive the interpreter: torch runs callbacks of futures in C++,
    and a thread that asks for the GIL of an interpreter which is going is ended
    in the middle of that, which aborts the process. So :meth:`stop` joins it at
    exit, when every call is over; from then on futures complete on the caller.
    """

    def __init__(self):
        self._lock = threading.Condition()
        self._queue = []
        self._thread = None
        self._stopped = False

    def add(self, work, future):
        with self._lock:
            if not self._stopped:
                self._queue.append((work, future))
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="gpubridge-future", daemon=True
                    )
                    self._thread.start()
                self._lock.notify()
                return
        _complete(work, future)

    def stop(self):
        """At exit, after the job. Bounded: a callback may be stuck in user code."""
        with self._lock:
            self._stopped = True
            thread = self._thread
            self._lock.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=10)

    def _run(self):
        while True:
            with self._lock:
                while not self._queue:
                    if self._stopped or not self._lock.wait(timeout=10):
                        self._thread = None
                        return
                work, future = self._queue.pop(0)
            _complete(work, future)
            del work, future


def _complete(work, future):
    try:
        work.wait()
    except Exception:  # noqa: BLE001 - _outcome raises it again
        pass
    future.set_result(None)


def _new_completer():
    global _completer
    _completer = _Completer()


def end_futures():
    """What the exit handler calls once the job is closed."""
    _completer.stop()


_new_completer()
# A child has neither the thread nor, perhaps, a free lock.
os.register_at_fork(after_in_child=_new_completer)
