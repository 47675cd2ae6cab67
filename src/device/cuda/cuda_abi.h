/* device/cuda: what we use of the CUDA driver's ABI (libcuda.so.1), declared by
 * us: no header of NVIDIA's is needed to build.
 *
 * Types are the vendor's by their tags, or integers that are compatible with
 * its enums; names are ours, so that cuda.h may be included after this header:
 * tests/device/cuda_abi.c compares the two. The fakes implement this list.
 *
 * The names with _v2 are those that the driver exports today; the plain ones
 * are older ABIs, or, of the stream memory operations, ones that refuse. */
#ifndef GBI_DEVICE_CUDA_CUDA_ABI_H
#define GBI_DEVICE_CUDA_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUuuid_st;
struct CUmod_st;
struct CUfunc_st;
struct CUgraph_st;
struct CUgraphNode_st;
struct CUgraphEdgeData_st;
struct CUuserObject_st;

typedef unsigned int gbi_cu_result;        /* CUresult */
typedef int gbi_cu_device;                 /* CUdevice */
typedef unsigned long long gbi_cu_address; /* CUdeviceptr */
typedef struct CUctx_st *gbi_cu_context;
typedef struct CUstream_st *gbi_cu_stream;
typedef struct CUevent_st *gbi_cu_event;
typedef struct CUmod_st *gbi_cu_module;
typedef struct CUfunc_st *gbi_cu_function;

enum {
  GBI_CU_SUCCESS = 0,
  GBI_CU_ERROR_INVALID_VALUE = 1,
  GBI_CU_ERROR_OUT_OF_MEMORY = 2,
  GBI_CU_ERROR_NOT_INITIALIZED = 3,
  GBI_CU_ERROR_STUB_LIBRARY = 34,
  GBI_CU_ERROR_NO_DEVICE = 100,
  GBI_CU_ERROR_INVALID_DEVICE = 101,
  GBI_CU_ERROR_INVALID_IMAGE = 200,
  GBI_CU_ERROR_NO_BINARY_FOR_GPU = 209,
  GBI_CU_ERROR_NOT_READY = 600,
  GBI_CU_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
  GBI_CU_ERROR_NOT_SUPPORTED = 801,
  GBI_CU_ERROR_SYSTEM_NOT_READY = 802,
  GBI_CU_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
  GBI_CU_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  GBI_CU_ERROR_CAPTURED_EVENT = 907,
  GBI_CU_ERROR_UNKNOWN = 999
};

/* CUdevice_attribute */
enum {
  GBI_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  GBI_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  GBI_CU_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS = 122
};

/* CUpointer_attribute, and CUmemorytype of the first */
enum {
  GBI_CU_POINTER_MEMORY_TYPE = 2,
  GBI_CU_POINTER_IS_MANAGED = 8,
  GBI_CU_POINTER_DEVICE_ORDINAL = 9
};
enum { GBI_CU_MEMORYTYPE_HOST = 1, GBI_CU_MEMORYTYPE_DEVICE = 2 };

enum {
  GBI_CU_STREAM_NON_BLOCKING = 1,
  GBI_CU_EVENT_DISABLE_TIMING = 2,
  GBI_CU_HOST_PORTABLE = 1, /* of HostAlloc and of HostRegister */
  GBI_CU_HOST_DEVICEMAP = 2,
  GBI_CU_WAIT_VALUE_GEQ = 0,
  GBI_CU_WRITE_VALUE_DEFAULT = 0,
  GBI_CU_CAPTURE_MODE_RELAXED = 2, /* CUstreamCaptureMode */
  GBI_CU_CAPTURE_STATUS_NONE = 0,  /* CUstreamCaptureStatus */
  GBI_CU_USER_OBJECT_NO_DESTRUCTOR_SYNC = 1,
  GBI_CU_GRAPH_USER_OBJECT_MOVE = 1
};

/* X(name, needed, arguments); all return CUresult. Those that are not needed
 * came after the oldest driver that we take. */
#define GBI_CUDA_FUNCTIONS(X)                                                  \
  X(cuInit, 1, (unsigned int))                                                 \
  X(cuDriverGetVersion, 1, (int *))                                            \
  X(cuGetErrorName, 1, (gbi_cu_result, const char **))                         \
  X(cuGetErrorString, 1, (gbi_cu_result, const char **))                       \
  X(cuDeviceGetCount, 1, (int *))                                              \
  X(cuDeviceGet, 1, (gbi_cu_device *, int))                                    \
  X(cuDeviceGetName, 1, (char *, int, gbi_cu_device))                          \
  X(cuDeviceGetUuid, 0, (struct CUuuid_st *, gbi_cu_device))                   \
  X(cuDeviceGetUuid_v2, 0, (struct CUuuid_st *, gbi_cu_device))                \
  X(cuDeviceGetPCIBusId, 1, (char *, int, gbi_cu_device))                      \
  X(cuDeviceGetAttribute, 1, (int *, unsigned int, gbi_cu_device))             \
  X(cuDeviceTotalMem_v2, 1, (size_t *, gbi_cu_device))                         \
  X(cuDevicePrimaryCtxRetain, 1, (gbi_cu_context *, gbi_cu_device))            \
  X(cuDevicePrimaryCtxRelease_v2, 1, (gbi_cu_device))                          \
  X(cuCtxPushCurrent_v2, 1, (gbi_cu_context))                                  \
  X(cuCtxPopCurrent_v2, 1, (gbi_cu_context *))                                 \
  X(cuThreadExchangeStreamCaptureMode, 1, (unsigned int *))                    \
  X(cuStreamCreate, 1, (gbi_cu_stream *, unsigned int))                        \
  X(cuStreamDestroy_v2, 1, (gbi_cu_stream))                                    \
  X(cuStreamQuery, 1, (gbi_cu_stream))                                         \
  X(cuStreamSynchronize, 1, (gbi_cu_stream))                                   \
  X(cuStreamIsCapturing, 1, (gbi_cu_stream, unsigned int *))                   \
  X(cuStreamGetCaptureInfo_v3, 0,                                              \
    (gbi_cu_stream, unsigned int *, uint64_t *, struct CUgraph_st **,          \
     struct CUgraphNode_st *const **, const struct CUgraphEdgeData_st **,      \
     size_t *))                                                                \
  X(cuUserObjectCreate, 0,                                                     \
    (struct CUuserObject_st **, void *, void (*)(void *), unsigned int,        \
     unsigned int))                                                            \
  X(cuGraphRetainUserObject, 0,                                                \
    (struct CUgraph_st *, struct CUuserObject_st *, unsigned int,              \
     unsigned int))                                                            \
  X(cuStreamWaitEvent, 1, (gbi_cu_stream, gbi_cu_event, unsigned int))         \
  X(cuStreamWaitValue64_v2, 0,                                                 \
    (gbi_cu_stream, gbi_cu_address, uint64_t, unsigned int))                   \
  X(cuStreamWriteValue64_v2, 0,                                                \
    (gbi_cu_stream, gbi_cu_address, uint64_t, unsigned int))                   \
  X(cuEventCreate, 1, (gbi_cu_event *, unsigned int))                          \
  X(cuEventDestroy_v2, 1, (gbi_cu_event))                                      \
  X(cuEventRecord, 1, (gbi_cu_event, gbi_cu_stream))                           \
  X(cuEventQuery, 1, (gbi_cu_event))                                           \
  X(cuMemAlloc_v2, 1, (gbi_cu_address *, size_t))                              \
  X(cuMemFree_v2, 1, (gbi_cu_address))                                         \
  X(cuMemHostAlloc, 1, (void **, size_t, unsigned int))                        \
  X(cuMemFreeHost, 1, (void *))                                                \
  X(cuMemHostRegister_v2, 1, (void *, size_t, unsigned int))                   \
  X(cuMemHostUnregister, 1, (void *))                                          \
  X(cuMemHostGetDevicePointer_v2, 1, (gbi_cu_address *, void *, unsigned int)) \
  X(cuMemcpyDtoHAsync_v2, 1, (void *, gbi_cu_address, size_t, gbi_cu_stream))  \
  X(cuMemcpyHtoDAsync_v2, 1,                                                   \
    (gbi_cu_address, const void *, size_t, gbi_cu_stream))                     \
  X(cuMemcpyDtoDAsync_v2, 1,                                                   \
    (gbi_cu_address, gbi_cu_address, size_t, gbi_cu_stream))                   \
  X(cuPointerGetAttributes, 1,                                                 \
    (unsigned int, unsigned int *, void **, gbi_cu_address))                   \
  X(cuModuleLoadData, 1, (gbi_cu_module *, const void *))                      \
  X(cuModuleUnload, 1, (gbi_cu_module))                                        \
  X(cuModuleGetFunction, 1, (gbi_cu_function *, gbi_cu_module, const char *))  \
  X(cuLaunchKernel, 1,                                                         \
    (gbi_cu_function, unsigned int, unsigned int, unsigned int, unsigned int,  \
     unsigned int, unsigned int, unsigned int, gbi_cu_stream, void **,         \
     void **))

typedef struct gbi_cuda_api {
#define GBI_CUDA_SLOT(name, needed, arguments) gbi_cu_result(*name) arguments;
  GBI_CUDA_FUNCTIONS(GBI_CUDA_SLOT)
#undef GBI_CUDA_SLOT
} gbi_cuda_api;

#endif
