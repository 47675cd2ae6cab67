"""The handle of a collective: what torch and users wait for."""

import threading
from datetime import timedelta

import torch
import torch.distributed as dist


def _milliseconds(timeout):
    """0 (no limit of its own) for None and for torch's zero timedelta."""
    if timeout is None:
        return 0
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    return max(int(timeout * 1000), 1) if timeout > 0 else 0


_futures_lock = threading.Lock()


class Work(dist._Work if hasattr(dist, "_Work") else dist.Work):
    """One collective. ``core`` is the library's handle, None when it was done
    before this object was made; ``value`` is what the future holds."""

    def __init__(self, core, value, then=None):
        super().__init__()
        self._core = core
        self._value = value
        self._then = then  # runs once, after success, on whoever waits first
        self._error = None
        self._future = None
        # Most works have nothing to run: they need no lock of their own.
        self._then_lock = threading.Lock() if then is not None else None

    def _finish(self):
        """Called when the library is done with it."""
        if self._then_lock is None:
            return
        with self._then_lock:
            then, self._then = self._then, None
            if then is not None:
                then()

    def wait(self, timeout=None):
        """Blocks until it is done; returns True.

        TimeoutError when `timeout` (a timedelta or seconds) passes first: the
        call goes on. RuntimeError, with the original as its cause, when the
        collective failed.
        """
        if self._error is not None:
            raise RuntimeError(str(self._error)) from self._error
        if self._core is not None:
            try:
                self._core.wait(_milliseconds(timeout))
            except TimeoutError:
                raise
            except Exception as error:
                self._error = error
                raise RuntimeError(str(error)) from error
        self._finish()
        return True

    def is_completed(self):
        """True once it is done, in success or failure. Never blocks."""
        return self._core is None or self._core.test()

    def is_success(self):
        return self.is_completed() and self.exception() is None

    def exception(self):
        """The original exception, or None; meaningful once completed."""
        if self._error is None and self._core is not None and self._core.test():
            try:
                self._core.wait(0)
            except Exception as error:  # noqa: BLE001 - handed to the caller
                self._error = error
        return self._error

    def result(self):
        self.wait()
        return self._value if isinstance(self._value, list) else [self._value]

    def synchronize(self):
        self.wait()

    def source_rank(self):
        raise RuntimeError("only a receive has a source rank")

    _source_rank = source_rank

    def _get_sequence_number(self):
        return self._core.seq() if self._core is not None else -1

    def get_future(self):
        """A torch future with the tensors; failed when the call failed.

        It is the child of a future whose callback raises: that is the one way
        to fail a future for C++ too. ``Future.set_exception`` would store the
        exception as a value, which crashes DDP's reducer.
        """
        with _futures_lock:
            if self._future is None:
                done = torch.futures.Future()
                self._future = done.then(self._outcome)
                if self._core is None:
                    done.set_result(None)
                else:
                    _completer.add(self, done)
            return self._future

    def _outcome(self, _):
        if self._error is not None:
            raise RuntimeError(str(self._error)) from self._error
        return self._value


class _Completer:
    """Completes futures: one Python thread, started when the first future of an
    unfinished call is asked for. It waits inside C, without the GIL."""

    def __init__(self):
        self._lock = threading.Condition()
        self._queue = []
        self._thread = None

    def add(self, work, future):
        with self._lock:
            self._queue.append((work, future))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="gpubridge-future", daemon=True
                )
                self._thread.start()
            self._lock.notify()

    def _run(self):
        while True:
            with self._lock:
                while not self._queue:
                    if not self._lock.wait(timeout=10):
                        self._thread = None
                        return
                work, future = self._queue.pop(0)
            try:
                work.wait()
            except Exception:  # noqa: BLE001 - _outcome raises it again
                pass
            future.set_result(None)
            del work, future


_completer = _Completer()
