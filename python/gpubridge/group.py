"""A group of the job: the library's handle and what Python keeps for it."""

import os
import threading
import time
from collections import deque

_SETTLE_SECONDS = 10


class Group:
    """Some ranks that call collectives together, the world among them.

    ``ranks`` are the job's ranks by group rank. Methods of ``core`` take
    addresses; :mod:`gpubridge.collectives` calls them for tensors.
    """

    def __init__(self, core, gpu=None):
        """gpu: the :class:`gpubridge.gpu.Gpu` of a job that runs on one."""
        info = core.info()
        self.core = core
        self.gpu = gpu
        self.rank = info["rank"]
        self.size = info["count"]
        self.ranks = info["ranks"]
        self.id = info["id"]
        self.pid = os.getpid()
        # Tensors of async calls, kept until their calls are done: the library
        # holds addresses only. Appended and popped under the GIL.
        self.kept = deque()
        self.posted = []  # the same of messages, which end in any order
        self.worker = None
        self.lock = threading.Lock()
        if gpu is not None:  # the host has a part in sync calls too
            self.need_worker()

    def keep(self, work, tensors):
        """Holds `tensors` until `work` is done, also if its owner drops it."""
        kept = self.kept
        while kept and kept[0][0].test():
            kept.popleft()
        kept.append((work, tensors))

    def post(self, work, tensors):
        """keep() for a message: one that nobody answers must not hold others'
        tensors, nor the end of the group."""
        with self.lock:
            self.posted = [p for p in self.posted if not p[0].test()]
            self.posted.append((work, tensors))

    def need_worker(self):
        """Attaches the thread that runs async calls: a Python thread, so that
        observers run on one that Python knows."""
        with self.lock:
            if self.worker is None:
                self.worker = threading.Thread(
                    target=self.core.serve, name="gpubridge-async", daemon=True
                )
                self.worker.start()

    def settle(self):
        """On a GPU, waits for async calls that nobody has waited for: closing
        takes their handles back. Bounded; what is late then counts as failed."""
        if self.gpu is None or self.pid != os.getpid():
            return
        end = time.monotonic() + _SETTLE_SECONDS
        while self.kept and time.monotonic() < end:
            if self.kept[0][0].test():
                self.kept.popleft()
            else:
                time.sleep(0.001)

    def ended(self):
        """The library is through with it: joins the worker, frees tensors."""
        if self.worker is not None and self.pid == os.getpid():
            self.worker.join()
        self.kept.clear()
        self.posted.clear()

    def close(self):
        """Runs what is queued and gives the group back. Idempotent."""
        self.settle()
        try:
            self.core.close()
        finally:
            self.ended()
