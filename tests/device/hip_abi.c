/* Compiles where AMD's HIP headers, 6 or later, are installed: our declarations
 * of the runtime's ABI against its own. Never run. */
#include "device/hip/hip_abi.h"

#define __HIP_PLATFORM_AMD__ 1
#include <stdbool.h>
#include <hip/hip_runtime_api.h>

#define SAME_FUNCTION(name, needed, arguments)                                 \
  _Static_assert(__builtin_types_compatible_p(                                 \
                     __typeof__(((gbi_hip_api *)0)->name), __typeof__(&name)), \
                 #name);
GBI_HIP_FUNCTIONS(SAME_FUNCTION)
SAME_FUNCTION(hipGetErrorName, 1, )
SAME_FUNCTION(hipGetErrorString, 1, )

#define SAME_TYPE(ours, theirs) \
  _Static_assert(__builtin_types_compatible_p(ours, theirs), #ours)
SAME_TYPE(gbi_hip_result, hipError_t);
SAME_TYPE(gbi_hip_device, hipDevice_t);
SAME_TYPE(gbi_hip_stream, hipStream_t);
SAME_TYPE(gbi_hip_event, hipEvent_t);

#define SAME(ours, theirs) \
  _Static_assert((long)GBI_HIP_##ours == (long)(theirs), #ours)
SAME(SUCCESS, hipSuccess);
SAME(ERROR_INVALID_VALUE, hipErrorInvalidValue);
SAME(ERROR_OUT_OF_MEMORY, hipErrorOutOfMemory);
SAME(ERROR_NOT_INITIALIZED, hipErrorNotInitialized);
SAME(ERROR_INSUFFICIENT_DRIVER, hipErrorInsufficientDriver);
SAME(ERROR_NO_DEVICE, hipErrorNoDevice);
SAME(ERROR_INVALID_DEVICE, hipErrorInvalidDevice);
SAME(ERROR_NOT_READY, hipErrorNotReady);
SAME(ERROR_HOST_MEMORY_ALREADY_REGISTERED, hipErrorHostMemoryAlreadyRegistered);
SAME(ERROR_NOT_SUPPORTED, hipErrorNotSupported);
SAME(ERROR_STREAM_CAPTURE_UNSUPPORTED, hipErrorStreamCaptureUnsupported);
SAME(ERROR_CAPTURED_EVENT, hipErrorCapturedEvent);
SAME(ERROR_UNKNOWN, hipErrorUnknown);
SAME(ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE,
     hipDeviceAttributeCanUseStreamWaitValue);
SAME(STREAM_NON_BLOCKING, hipStreamNonBlocking);
SAME(EVENT_DISABLE_TIMING, hipEventDisableTiming);
SAME(HOST_PORTABLE, hipHostMallocPortable);
SAME(HOST_PORTABLE, hipHostRegisterPortable);
SAME(HOST_MAPPED, hipHostMallocMapped);
SAME(HOST_MAPPED, hipHostRegisterMapped);
SAME(HOST_COHERENT, hipHostMallocCoherent);
SAME(WAIT_VALUE_GTE, hipStreamWaitValueGte);
SAME(CAPTURE_MODE_RELAXED, hipStreamCaptureModeRelaxed);
SAME(CAPTURE_STATUS_NONE, hipStreamCaptureStatusNone);
SAME(COPY_HOST_TO_DEVICE, hipMemcpyHostToDevice);
SAME(COPY_DEVICE_TO_HOST, hipMemcpyDeviceToHost);
SAME(COPY_DEVICE_TO_DEVICE, hipMemcpyDeviceToDevice);
SAME(MEMORY_UNREGISTERED, hipMemoryTypeUnregistered);
SAME(MEMORY_HOST, hipMemoryTypeHost);
SAME(MEMORY_DEVICE, hipMemoryTypeDevice);
SAME(MEMORY_MANAGED, hipMemoryTypeManaged);

#define SAME_FIELD(ours, theirs)                              \
  _Static_assert(offsetof(gbi_hip_pointer, ours) ==           \
                     offsetof(hipPointerAttribute_t, theirs), \
                 #ours)
_Static_assert(sizeof(gbi_hip_pointer) == sizeof(hipPointerAttribute_t), "");
SAME_FIELD(type, type);
SAME_FIELD(device, device);
SAME_FIELD(device_pointer, devicePointer);
SAME_FIELD(host_pointer, hostPointer);
SAME_FIELD(is_managed, isManaged);
SAME_FIELD(allocation_flags, allocationFlags);

_Static_assert(sizeof(hipUUID) == 16, "uuid");
_Static_assert(sizeof(hipDeviceProp_tR0600) == GBI_HIP_PROPERTIES_BYTES, "");
_Static_assert(offsetof(hipDeviceProp_tR0600, gcnArchName) ==
                   GBI_HIP_PROPERTIES_ARCH_AT,
               "");
_Static_assert(sizeof(((hipDeviceProp_tR0600 *)0)->gcnArchName) ==
                   GBI_HIP_PROPERTIES_ARCH_BYTES,
               "");
