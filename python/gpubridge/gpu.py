"""The GPU that this rank's job runs on: which one, and torch's streams on it.

Used only in jobs that are not simulated; nothing else here touches torch.cuda.
The same code serves CUDA and ROCm: torch calls both "cuda".
"""

import os
import threading

import torch

from . import _core

_OFF = ("", "off", "no", "false", "0")


def _setting(name):
    return next(s["value"] for s in _core.settings() if s["name"] == name)


def _is_simulated():
    on_cpu = _setting("GPUBRIDGE_CPU_ONLY").strip().lower() not in _OFF
    return on_cpu or bool(_setting("GPUBRIDGE_VENDOR"))


def choose(found):
    """(index of this rank's GPU or -1, problems) by the :class:`Probe` `found`.

    -1 in simulation, and where a problem says why there is none. LOCAL_RANK
    names the GPU; without it, it is torch's current one. Makes no context on a
    GPU, and raises nothing: every rank is to refuse with the same text.
    """
    if _is_simulated():
        return -1, []
    if found.build_vendor is None:
        return -1, [
            "this rank's torch build has neither CUDA nor ROCm, so it has no GPU to "
            "run on. GPUBRIDGE_CPU_ONLY=1 still needs such a build; "
            "GPUBRIDGE_VENDOR=nvidia or amd simulates one with any build"
        ]
    count = found.gpu_count
    if not count:
        return -1, [
            "torch sees no GPU on this rank. GPUBRIDGE_CPU_ONLY=1 runs on CPU with "
            "the vendor of the build, GPUBRIDGE_VENDOR=nvidia or amd simulates one"
        ]
    text = os.environ.get("LOCAL_RANK", "").strip()
    if not text:
        # Asking a torch that has not begun would begin it; it would say 0.
        return torch.cuda.current_device() if torch.cuda.is_initialized() else 0, []
    if not text.isdecimal():
        return -1, [
            f'LOCAL_RANK is "{text}", but must be a number from 0 up: it names the '
            "GPU of this rank among those of its machine"
        ]
    index = int(text)
    if index < count:
        return index, []
    if _setting("GPUBRIDGE_SPLIT_TEST").strip().lower() not in _OFF:
        return index % count, []
    seen = [
        f"{name}={os.environ[name]}"
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
        if name in os.environ
    ]
    return -1, [
        f"LOCAL_RANK is {index}, which asks for GPU {index}, but this rank sees only "
        f"{count} ({', '.join(seen) or 'no *_VISIBLE_DEVICES is set'}). A batch "
        "system that gives each task one GPU numbers it 0 in every task: set "
        "LOCAL_RANK=0 there, or let each task see all GPUs of its machine"
    ]


class Gpu:
    """This rank's GPU."""

    def __init__(self, index):
        self.index = index
        self.device = torch.device("cuda", index)
        # torch's own short way, as compiled kernels use it; the long one makes
        # an object a call.
        self._raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        if self._raw_stream is None:
            self._raw_stream = self._slow_raw_stream
        # Waits block the host, not only the stream.
        self.blocking_wait = _setting("GPUBRIDGE_BLOCKING_WAIT").strip().lower() not in _OFF
        self._side = None
        self._lock = threading.Lock()

    def _slow_raw_stream(self, index):
        return torch.cuda.current_stream(index).cuda_stream

    def use_current_stream(self):
        """The calling thread's next call, or wait, is ordered on torch's current
        stream."""
        _core.use_stream(self._raw_stream(self.index))

    def has(self, tensor):
        return tensor.is_cuda and tensor.get_device() == self.index

    def current_stream(self):
        return torch.cuda.current_stream(self.index)

    def mark(self):
        """An event at the end of the current stream."""
        event = torch.cuda.Event()
        event.record(self.current_stream())
        return event

    def beside(self):
        """A context in which torch's current stream is one of our own: what the
        host waits for must not stand behind the caller's kernels."""
        with self._lock:
            if self._side is None:
                self._side = torch.cuda.Stream(self.device)
        return torch.cuda.stream(self._side)

    def synchronize(self):
        """Waits for everything on the device. Blocks."""
        torch.cuda.synchronize(self.device)
