"""A stand-in for torch on a GPU, for ranks of test_gpu.py.

Real: the gpubridge library and package, the tensors' class hierarchy (each is a
``torch.Tensor`` that says it is on ``cuda:0``), torch.distributed's Python code.
Fakes: the vendor's driver and NCCL or RCCL (tests/fakes): device memory that the
host cannot touch, streams that run on threads, checks for missing order.
Stand-ins, in this file: torch.cuda (streams, events, which device), and what torch
would do to a CUDA tensor: copies, views, cat. Each is a call of the fake driver on
the current stream, as torch's would be. torch's own CUDA code runs nowhere here.
"""

import contextlib
import ctypes
import os
import threading
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p

import torch


def check(code):
    assert code == 0, f"the fake driver answers {code}"


class Cuda:
    """The functions of the driver that torch would call. Addresses and handles
    are integers."""

    def __init__(self):
        self.lib = ctypes.CDLL(os.environ["GPUBRIDGE_CUDA_LIB"])
        check(self.lib.cuInit(0))
        device = c_int()
        check(self.lib.cuDeviceGet(byref(device), 0))
        self.context = c_void_p()
        check(self.lib.cuDevicePrimaryCtxRetain(byref(self.context), device))
        self.here = threading.local()

    def enter(self):
        if not getattr(self.here, "set", False):
            check(self.lib.cuCtxSetCurrent(self.context))
            self.here.set = True

    def new(self, function, *args):
        self.enter()
        handle = c_void_p()
        check(getattr(self.lib, function)(byref(handle), *args))
        return handle.value

    def memory(self, size):
        return self.new("cuMemAlloc_v2", c_size_t(size))

    def stream(self):
        return self.new("cuStreamCreate", c_uint(1))  # not with the default one

    def event(self):
        return self.new("cuEventCreate", c_uint(2))  # no times

    def copy(self, to, source, size, kind, stream):
        self.enter()
        function = {
            "in": self.lib.cuMemcpyHtoDAsync_v2,
            "out": self.lib.cuMemcpyDtoHAsync_v2,
            "on": self.lib.cuMemcpyDtoDAsync_v2,
        }[kind]
        check(function(c_void_p(to), c_void_p(source), c_size_t(size), c_void_p(stream)))

    def record(self, event, stream):
        self.enter()
        check(self.lib.cuEventRecord(c_void_p(event), c_void_p(stream)))

    def wait(self, stream, event):
        self.enter()
        check(self.lib.cuStreamWaitEvent(c_void_p(stream), c_void_p(event), 0))

    def query(self, event):
        self.enter()
        code = self.lib.cuEventQuery(c_void_p(event))
        assert code in (0, 600), code
        return code == 0

    def synchronize(self, stream=None):
        self.enter()
        if stream is None:
            check(self.lib.cuCtxSynchronize())
        else:
            check(self.lib.cuStreamSynchronize(c_void_p(stream)))


class Hip(Cuda):
    def __init__(self):
        folder = os.path.dirname(os.environ["GPUBRIDGE_RCCL_LIB"])
        self.lib = ctypes.CDLL(f"{folder}/libamdhip64.so.6")
        self.here = threading.local()

    def enter(self):
        if not getattr(self.here, "set", False):
            check(self.lib.hipSetDevice(0))
            self.here.set = True

    def memory(self, size):
        return self.new("hipMalloc", c_size_t(size))

    def stream(self):
        return self.new("hipStreamCreateWithFlags", c_uint(1))

    def event(self):
        return self.new("hipEventCreateWithFlags", c_uint(2))

    def copy(self, to, source, size, kind, stream):
        self.enter()
        code = {"in": 1, "out": 2, "on": 3}[kind]
        check(
            self.lib.hipMemcpyAsync(
                c_void_p(to), c_void_p(source), c_size_t(size), code, c_void_p(stream)
            )
        )

    def record(self, event, stream):
        self.enter()
        check(self.lib.hipEventRecord(c_void_p(event), c_void_p(stream)))

    def wait(self, stream, event):
        self.enter()
        check(self.lib.hipStreamWaitEvent(c_void_p(stream), c_void_p(event), 0))

    def query(self, event):
        self.enter()
        code = self.lib.hipEventQuery(c_void_p(event))
        assert code in (0, 600), code
        return code == 0

    def synchronize(self, stream=None):
        self.enter()
        if stream is None:
            check(self.lib.hipDeviceSynchronize())
        else:
            check(self.lib.hipStreamSynchronize(c_void_p(stream)))


driver = None  # of this rank, see pretend


class Event:
    def __init__(self, *_args, **_named):
        self.handle = driver.event()

    def record(self, stream=None):
        driver.record(self.handle, (stream or current_stream()).cuda_stream)

    def query(self):
        return driver.query(self.handle)


class Stream:
    def __init__(self, _device=None, handle=None):
        self.cuda_stream = driver.stream() if handle is None else handle

    def wait_event(self, event):
        driver.wait(self.cuda_stream, event.handle)

    def wait_stream(self, other):
        event = Event()
        event.record(other)
        self.wait_event(event)

    def synchronize(self):
        driver.synchronize(self.cuda_stream)


_streams = threading.local()
_default = None  # of all threads, as torch's is


def current_stream(_device=None):
    return getattr(_streams, "current", _default)


@contextlib.contextmanager
def use_stream(stream):
    before = current_stream()
    _streams.current = stream
    try:
        yield stream
    finally:
        _streams.current = before


class _Storage:
    """What the tensors of one allocation share."""

    def __init__(self, size):
        self.size = size
        self.address = driver.memory(max(size, 1))

    def data_ptr(self):
        return self.address

    def nbytes(self):
        return self.size


class GpuTensor(torch.Tensor):
    """Contiguous numbers in the fake driver's memory. `index`: the GPU that it
    says it is on; there is memory on 0 only."""

    recorded = 0  # calls of record_stream

    @staticmethod
    def __new__(cls, shape, dtype, storage=None, at=0, index=0):
        self = torch.Tensor._make_wrapper_subclass(
            cls, tuple(shape), dtype=dtype, device=f"cuda:{index}"
        )
        size = self.numel() * self.element_size()
        self.storage_here = storage or _Storage(size)
        self.at = at
        return self

    def __init__(self, *_args, **_named):
        pass

    def data_ptr(self):
        return self.storage_here.address + self.at

    def untyped_storage(self):
        return self.storage_here

    def record_stream(self, stream):
        GpuTensor.recorded += 1

    def _bytes(self):
        return self.numel() * self.element_size()

    def _like(self, shape, elements_on=0):
        at = self.at + elements_on * self.element_size()
        return GpuTensor(shape, self.dtype, self.storage_here, at)

    def view(self, *shape):
        shape = shape[0] if isinstance(shape[0], (tuple, list, torch.Size)) else shape
        return self._like(torch.empty(self.shape, device="meta").view(*shape).shape)

    reshape = view

    def as_strided(self, shape, stride, offset=0):
        return self._like(shape, offset)

    def new_empty(self, *shape):
        return GpuTensor(shape, self.dtype)

    def __getitem__(self, rows):
        shape = torch.empty(self.shape, device="meta")[rows].shape
        return self._like(shape, rows.start * (self.numel() // self.shape[0]))

    def copy_(self, other):
        assert other.dtype == self.dtype and other.numel() == self.numel()
        kind = "on" if isinstance(other, GpuTensor) else "in"
        stream = current_stream().cuda_stream
        driver.copy(self.data_ptr(), other.data_ptr(), self._bytes(), kind, stream)
        return self

    def cpu(self):
        """Blocks, as torch's does."""
        out = torch.empty(self.shape, dtype=self.dtype)
        stream = current_stream()
        driver.copy(
            out.data_ptr(), self.data_ptr(), self._bytes(), "out", stream.cuda_stream
        )
        stream.synchronize()
        return out

    def tolist(self):
        return self.cpu().tolist()

    def __repr__(self):
        return f"GpuTensor({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), named=None):
        aten = torch.ops.aten
        if function is aten.copy_.default:  # into a tensor of the CPU
            return args[0].copy_(args[1].cpu())
        if function is aten.cat.default:
            out = GpuTensor([sum(t.numel() for t in args[0])], args[0][0].dtype)
            at = 0
            for tensor in args[0]:
                out[at : at + tensor.numel()].copy_(tensor)
                at += tensor.numel()
            return out
        raise NotImplementedError(f"{function} of a tensor of the stand-in")


_to = torch.Tensor.to


def _moved(self, *args, **named):
    """``tensor.to("cuda")`` of a tensor of the CPU. A method, not a dispatch mode:
    those are not seen on autograd's threads."""
    if args and isinstance(args[0], torch.device) and args[0].type == "cuda":
        if isinstance(self, GpuTensor):
            return self
        plain = self.detach()
        return GpuTensor(plain.shape, plain.dtype).copy_(plain)
    return _to(self, *args, **named)


def gpu(values, dtype=torch.float32, index=0):
    """A tensor on the GPU with these numbers."""
    values = torch.as_tensor(values, dtype=dtype)
    out = GpuTensor(values.shape, dtype, index=index)
    return out.copy_(values)


set_devices = []  # what torch.cuda.set_device was told


def pretend(vendor, count=1):
    """Makes torch say that it is a build for `vendor` that sees `count` GPUs."""
    global driver, _default
    driver = Hip() if vendor == "amd" else Cuda()
    _default = Stream()
    torch.version.cuda, torch.version.hip = ("12.8", None)
    if vendor == "amd":
        torch.version.cuda, torch.version.hip = (None, "6.4")
    cuda = torch.cuda
    cuda._lazy_init = lambda: None
    cuda.is_available = lambda: True
    cuda.is_initialized = lambda: True
    cuda.device_count = lambda: count
    cuda.get_device_capability = lambda device=None: (9, 0)
    cuda.current_device = lambda: set_devices[-1] if set_devices else 0
    cuda.set_device = set_devices.append
    cuda.current_stream = current_stream
    cuda.stream = use_stream
    cuda.synchronize = lambda device=None: driver.synchronize()
    cuda.Stream, cuda.Event = Stream, Event
    torch.Tensor.to = _moved
