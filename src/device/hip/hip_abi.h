/* device/hip: what we use of the HIP runtime's ABI (libamdhip64, ROCm 6 and 7),
 * declared by us: no header of AMD's is needed to build.
 *
 * Types are the vendor's by their tags, or integers that are compatible with
 * its enums; names are ours, so that hip_runtime_api.h may be included after
 * this header. The fakes implement this list. */
#ifndef GBI_DEVICE_HIP_HIP_ABI_H
#define GBI_DEVICE_HIP_HIP_ABI_H

#include <stddef.h>
#include <stdint.h>

struct ihipStream_t;
struct ihipEvent_t;
struct ihipModule_t;
struct ihipModuleSymbol_t;
struct hipUUID_t;
struct hipPointerAttribute_t;
struct hipDeviceProp_tR0600;
struct ihipGraph;
struct hipGraphNode;
struct hipUserObject;

typedef unsigned int gbi_hip_result; /* hipError_t */
typedef int gbi_hip_device;          /* hipDevice_t */
typedef struct ihipStream_t *gbi_hip_stream;
typedef struct ihipEvent_t *gbi_hip_event;
typedef struct ihipModule_t *gbi_hip_module;
typedef struct ihipModuleSymbol_t *gbi_hip_function;

enum {
  GBI_HIP_SUCCESS = 0,
  GBI_HIP_ERROR_INVALID_VALUE = 1,
  GBI_HIP_ERROR_OUT_OF_MEMORY = 2,
  GBI_HIP_ERROR_NOT_INITIALIZED = 3,
  GBI_HIP_ERROR_INSUFFICIENT_DRIVER = 35,
  GBI_HIP_ERROR_NO_DEVICE = 100,
  GBI_HIP_ERROR_INVALID_DEVICE = 101,
  GBI_HIP_ERROR_INVALID_IMAGE = 200,
  GBI_HIP_ERROR_NO_BINARY_FOR_GPU = 209,
  GBI_HIP_ERROR_NOT_READY = 600,
  GBI_HIP_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
  GBI_HIP_ERROR_NOT_SUPPORTED = 801,
  GBI_HIP_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  GBI_HIP_ERROR_CAPTURED_EVENT = 907,
  GBI_HIP_ERROR_UNKNOWN = 999
};

/* hipDeviceAttribute_t */
enum { GBI_HIP_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE = 10013 };

enum {
  GBI_HIP_STREAM_NON_BLOCKING = 1,
  GBI_HIP_EVENT_DISABLE_TIMING = 2,
  GBI_HIP_HOST_PORTABLE = 1, /* of HostMalloc and of HostRegister */
  GBI_HIP_HOST_MAPPED = 2,
  GBI_HIP_HOST_COHERENT = 0x40000000,
  GBI_HIP_WAIT_VALUE_GTE = 0,
  GBI_HIP_CAPTURE_MODE_RELAXED = 2, /* hipStreamCaptureMode */
  GBI_HIP_CAPTURE_STATUS_NONE = 0,  /* hipStreamCaptureStatus */
  GBI_HIP_USER_OBJECT_NO_DESTRUCTOR_SYNC = 1,
  GBI_HIP_GRAPH_USER_OBJECT_MOVE = 1,
  GBI_HIP_COPY_HOST_TO_DEVICE = 1, /* hipMemcpyKind */
  GBI_HIP_COPY_DEVICE_TO_HOST = 2,
  GBI_HIP_COPY_DEVICE_TO_DEVICE = 3
};

/* hipMemoryType since ROCm 6. Before, other numbers meant the same. */
enum {
  GBI_HIP_MEMORY_UNREGISTERED = 0,
  GBI_HIP_MEMORY_HOST = 1,
  GBI_HIP_MEMORY_DEVICE = 2,
  GBI_HIP_MEMORY_MANAGED = 3
};

/* struct hipPointerAttribute_t */
typedef struct gbi_hip_pointer {
  unsigned int type;
  int device;
  void *device_pointer;
  void *host_pointer;
  int is_managed;
  unsigned int allocation_flags;
} gbi_hip_pointer;

/* struct hipDeviceProp_tR0600: only the name of its instruction set is read;
 * all else comes by functions of its own. */
enum {
  GBI_HIP_PROPERTIES_BYTES = 1472,
  GBI_HIP_PROPERTIES_ARCH_AT = 1160,
  GBI_HIP_PROPERTIES_ARCH_BYTES = 256
};

/* X(name, needed, arguments); all return hipError_t. */
#define GBI_HIP_FUNCTIONS(X)                                                   \
  X(hipDriverGetVersion, 1, (int *))                                           \
  X(hipGetLastError, 1, (void))                                                \
  X(hipGetDeviceCount, 1, (int *))                                             \
  X(hipGetDevice, 1, (int *))                                                  \
  X(hipSetDevice, 1, (int))                                                    \
  X(hipDeviceGetName, 1, (char *, int, gbi_hip_device))                        \
  X(hipDeviceGetUuid, 0, (struct hipUUID_t *, gbi_hip_device))                 \
  X(hipDeviceGetPCIBusId, 1, (char *, int, int))                               \
  X(hipDeviceGetAttribute, 1, (int *, unsigned int, int))                      \
  X(hipDeviceTotalMem, 1, (size_t *, gbi_hip_device))                          \
  X(hipGetDevicePropertiesR0600, 0, (struct hipDeviceProp_tR0600 *, int))      \
  X(hipThreadExchangeStreamCaptureMode, 1, (unsigned int *))                   \
  X(hipDeviceGetStreamPriorityRange, 0, (int *, int *))                        \
  X(hipStreamCreateWithPriority, 0, (gbi_hip_stream *, unsigned int, int))     \
  X(hipStreamCreateWithFlags, 1, (gbi_hip_stream *, unsigned int))             \
  X(hipStreamDestroy, 1, (gbi_hip_stream))                                     \
  X(hipStreamQuery, 1, (gbi_hip_stream))                                       \
  X(hipStreamSynchronize, 1, (gbi_hip_stream))                                 \
  X(hipStreamIsCapturing, 1, (gbi_hip_stream, unsigned int *))                 \
  X(hipStreamWaitEvent, 1, (gbi_hip_stream, gbi_hip_event, unsigned int))      \
  X(hipStreamWaitValue64, 0,                                                   \
    (gbi_hip_stream, void *, uint64_t, unsigned int, uint64_t))                \
  X(hipStreamWriteValue64, 0,                                                  \
    (gbi_hip_stream, void *, uint64_t, unsigned int))                          \
  X(hipEventCreateWithFlags, 1, (gbi_hip_event *, unsigned int))               \
  X(hipEventDestroy, 1, (gbi_hip_event))                                       \
  X(hipEventRecord, 1, (gbi_hip_event, gbi_hip_stream))                        \
  X(hipEventQuery, 1, (gbi_hip_event))                                         \
  X(hipMalloc, 1, (void **, size_t))                                           \
  X(hipFree, 1, (void *))                                                      \
  X(hipHostMalloc, 1, (void **, size_t, unsigned int))                         \
  X(hipHostFree, 1, (void *))                                                  \
  X(hipHostRegister, 1, (void *, size_t, unsigned int))                        \
  X(hipHostUnregister, 1, (void *))                                            \
  X(hipHostGetDevicePointer, 1, (void **, void *, unsigned int))               \
  X(hipMemcpyAsync, 1,                                                         \
    (void *, const void *, size_t, unsigned int, gbi_hip_stream))              \
  X(hipPointerGetAttributes, 1,                                                \
    (struct hipPointerAttribute_t *, const void *))                            \
  X(hipModuleLoadData, 1, (gbi_hip_module *, const void *))                    \
  X(hipModuleUnload, 1, (gbi_hip_module))                                      \
  X(hipModuleGetFunction, 1,                                                   \
    (gbi_hip_function *, gbi_hip_module, const char *))                        \
  X(hipModuleLaunchKernel, 1,                                                  \
    (gbi_hip_function, unsigned int, unsigned int, unsigned int, unsigned int, \
     unsigned int, unsigned int, unsigned int, gbi_hip_stream, void **,        \
     void **))                                                                 \
  X(hipStreamGetCaptureInfo_v2, 0,                                             \
    (gbi_hip_stream, unsigned int *, unsigned long long *,                     \
     struct ihipGraph **, struct hipGraphNode *const **, size_t *))            \
  X(hipUserObjectCreate, 0,                                                    \
    (struct hipUserObject **, void *, void (*)(void *), unsigned int,          \
     unsigned int))                                                            \
  X(hipGraphRetainUserObject, 0,                                               \
    (struct ihipGraph *, struct hipUserObject *, unsigned int, unsigned int))

typedef struct gbi_hip_api {
#define GBI_HIP_SLOT(name, needed, arguments) gbi_hip_result(*name) arguments;
  GBI_HIP_FUNCTIONS(GBI_HIP_SLOT)
#undef GBI_HIP_SLOT
  const char *(*hipGetErrorName)(gbi_hip_result);
  const char *(*hipGetErrorString)(gbi_hip_result);
} gbi_hip_api;

#endif
