/* libamdhip64.so.6: start, devices, memory. */
#include "fakes/hip_fake.h"

#include <stdio.h>
#include <string.h>

enum { VERSION = 60200000, WITH_GRAPH_MEMOPS = 70300000 };

struct hipUUID_t {
  char bytes[16];
};

static __thread int device_now;
static __thread gbi_hip_result last_error;

int fake_hip_device(void) {
  return device_now;
}

const fake_vendor fake_here = {.name = "hip",
                               .ring = true,
                               .eager_memops = true,
                               .memory_bytes = (size_t)16 << 30,
                               .device = fake_hip_device};

/* What is still going on is an answer, not an error. */
gbi_hip_result fake_hip_result(unsigned int code) {
  if (code && code != GBI_HIP_ERROR_NOT_READY) last_error = code;
  return code;
}

static const struct {
  gbi_hip_result code;
  const char *name, *text;
} codes[] = {
    {0, "hipSuccess", "no error"},
    {1, "hipErrorInvalidValue", "invalid argument"},
    {2, "hipErrorOutOfMemory", "out of memory"},
    {3, "hipErrorNotInitialized", "initialization error"},
    {100, "hipErrorNoDevice", "no ROCm-capable device is detected"},
    {101, "hipErrorInvalidDevice", "invalid device ordinal"},
    {400, "hipErrorInvalidHandle", "invalid resource handle"},
    {500, "hipErrorNotFound", "named symbol not found"},
    {600, "hipErrorNotReady", "device not ready"},
    {700, "hipErrorIllegalAddress", "an illegal memory access"},
    {712, "hipErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {713, "hipErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {719, "hipErrorLaunchFailure", "unspecified launch failure"},
    {801, "hipErrorNotSupported", "operation not supported"},
    {900, "hipErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {901, "hipErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {905, "hipErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {906, "hipErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing one"},
    {907, "hipErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capture"},
    {999, "hipErrorUnknown", "unknown error"}};

const char *hipGetErrorName(gbi_hip_result error) {
  for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
    if (codes[i].code == error) return codes[i].name;
  return "hipErrorUnknown";
}

const char *hipGetErrorString(gbi_hip_result error) {
  for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
    if (codes[i].code == error) return codes[i].text;
  return "unknown error";
}

unsigned int fake_hip_enter(const char *function, const void *caller) {
  int code = fake_call(function, caller);
  if (code) return (unsigned int)code;
  if (gpu.forked) return GBI_HIP_ERROR_NOT_INITIALIZED;
  return gpu.set.devices ? GBI_HIP_SUCCESS : GBI_HIP_ERROR_NO_DEVICE;
}

#define DEVICE(device)                                      \
  do {                                                      \
    FAKE_HIP_ENTER();                                       \
    if (!fake_device_at(device))                            \
      return fake_hip_result(GBI_HIP_ERROR_INVALID_DEVICE); \
  } while (0)

gbi_hip_result hipInit(unsigned int flags) {
  FAKE_HIP_ENTER();
  return fake_hip_result(flags ? GBI_HIP_ERROR_INVALID_VALUE : 0);
}

gbi_hip_result hipDriverGetVersion(int *version) {
  FAKE_HIP_ENTER();
  *version = gpu.set.graph_memops ? WITH_GRAPH_MEMOPS : VERSION;
  return GBI_HIP_SUCCESS;
}

gbi_hip_result hipRuntimeGetVersion(int *version) {
  FAKE_HIP_ENTER();
  *version = gpu.set.graph_memops ? WITH_GRAPH_MEMOPS : VERSION;
  return GBI_HIP_SUCCESS;
}

gbi_hip_result hipGetLastError(void) {
  fake_call(__func__, __builtin_return_address(0));
  gbi_hip_result error = last_error;
  last_error = GBI_HIP_SUCCESS;
  return error;
}

gbi_hip_result hipPeekAtLastError(void) {
  fake_call(__func__, __builtin_return_address(0));
  return last_error;
}

gbi_hip_result hipGetDeviceCount(int *count) {
  *count = 0;
  FAKE_HIP_ENTER();
  *count = gpu.set.devices;
  return GBI_HIP_SUCCESS;
}

gbi_hip_result hipGetDevice(int *device) {
  FAKE_HIP_ENTER();
  *device = device_now;
  return GBI_HIP_SUCCESS;
}

gbi_hip_result hipSetDevice(int device) {
  DEVICE(device);
  device_now = device;
  return GBI_HIP_SUCCESS;
}

gbi_hip_result hipDeviceGet(gbi_hip_device *device, int ordinal) {
  DEVICE(ordinal);
  *device = ordinal;
  return GBI_HIP_SUCCESS;
}

gbi_hip_result hipDeviceGetName(char *name, int bytes, gbi_hip_device device) {
  DEVICE(device);
  snprintf(name, (size_t)bytes, "AMD Fake MI300 16GB");
  return GBI_HIP_SUCCESS;
}

gbi_hip_result hipDeviceGetUuid(struct hipUUID_t *uuid, gbi_hip_device device) {
  DEVICE(device);
  memcpy(uuid->bytes, gpu.devices[device].uuid, sizeof uuid->bytes);
  return GBI_HIP_SUCCESS;
}

gbi_hip_result hipDeviceGetPCIBusId(char *text, int bytes, int device) {
  DEVICE(device);
  int used = snprintf(text, (size_t)bytes, "%s", gpu.devices[device].pci);
  return fake_hip_result(used < bytes ? 0 : GBI_HIP_ERROR_INVALID_VALUE);
}

gbi_hip_result hipDeviceGetAttribute(int *value, unsigned int attribute,
                                     int device) {
  enum { MULTIPROCESSORS = 63 };
  DEVICE(device);
  *value = 0;
  if (attribute == GBI_HIP_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE) *value = 1;
  if (attribute == MULTIPROCESSORS) *value = 304;
  return GBI_HIP_SUCCESS;
}

gbi_hip_result hipDeviceTotalMem(size_t *bytes, gbi_hip_device device) {
  DEVICE(device);
  *bytes = fake_here.memory_bytes;
  return GBI_HIP_SUCCESS;
}

/* What a program may look at: the name, the UUID behind it, the memory, the
 * instruction set. All else is zero. */
gbi_hip_result hipGetDevicePropertiesR0600(
    struct hipDeviceProp_tR0600 *properties, int device) {
  enum { UUID_AT = 256, MEMORY_AT = 288 };
  DEVICE(device);
  char *bytes = (char *)properties;
  size_t memory = fake_here.memory_bytes;
  memset(bytes, 0, GBI_HIP_PROPERTIES_BYTES);
  snprintf(bytes, UUID_AT, "AMD Fake MI300 16GB");
  memcpy(bytes + UUID_AT, gpu.devices[device].uuid, 16);
  memcpy(bytes + MEMORY_AT, &memory, sizeof memory);
  snprintf(bytes + GBI_HIP_PROPERTIES_ARCH_AT, GBI_HIP_PROPERTIES_ARCH_BYTES,
           "gfx942:sramecc+:xnack-");
  return GBI_HIP_SUCCESS;
}

gbi_hip_result hipDeviceSynchronize(void) {
  FAKE_HIP_DO(fake_device_sync(device_now));
}

gbi_hip_result hipMalloc(void **memory, size_t bytes) {
  FAKE_HIP_ENTER();
  *memory = NULL;
  if (!bytes) return GBI_HIP_SUCCESS;
  return fake_hip_result(fake_code(fake_allocate(device_now, bytes, memory)));
}

gbi_hip_result hipExtMallocWithFlags(void **memory, size_t bytes,
                                     unsigned int flags) {
  FAKE_HIP_ENTER();
  *memory = NULL;
  if (flags == FAKE_HIP_SIGNAL_MEMORY)
    return fake_hip_result(GBI_HIP_ERROR_NOT_SUPPORTED);
  return fake_hip_result(fake_code(fake_allocate(device_now, bytes, memory)));
}

gbi_hip_result hipFree(void *memory) {
  FAKE_HIP_DO(fake_free(memory, false));
}

/* Coherent only where it is asked for: what it is otherwise depends on the
 * version and on a variable. */
gbi_hip_result hipHostMalloc(void **host, size_t bytes, unsigned int flags) {
  FAKE_HIP_DO(fake_pin(bytes, (flags & GBI_HIP_HOST_COHERENT) != 0, host));
}

gbi_hip_result hipHostFree(void *host) {
  FAKE_HIP_DO(fake_free(host, true));
}

gbi_hip_result hipHostRegister(void *host, size_t bytes, unsigned int flags) {
  FAKE_HIP_DO(fake_adopt(host, bytes));
}

gbi_hip_result hipHostUnregister(void *host) {
  FAKE_HIP_DO(fake_unadopt(host));
}

gbi_hip_result hipHostGetDevicePointer(void **address, void *host,
                                       unsigned int flags) {
  FAKE_HIP_ENTER();
  fake_memory memory;
  if (flags || !fake_memory_look(host, &memory) || memory.kind == FAKE_DEVICE)
    return fake_hip_result(GBI_HIP_ERROR_INVALID_VALUE);
  *address = host;
  return GBI_HIP_SUCCESS;
}

gbi_hip_result hipMemGetInfo(size_t *left, size_t *total) {
  FAKE_HIP_ENTER();
  fake_lock();
  *total = fake_here.memory_bytes;
  *left = *total - gpu.devices[device_now].used;
  fake_unlock();
  return GBI_HIP_SUCCESS;
}

gbi_hip_result hipMemGetAddressRange(void **begin, size_t *bytes,
                                     void *address) {
  FAKE_HIP_ENTER();
  fake_memory memory;
  if (!fake_memory_look(address, &memory))
    return fake_hip_result(GBI_HIP_ERROR_INVALID_VALUE);
  if (begin) *begin = (void *)memory.begin;
  if (bytes) *bytes = memory.bytes;
  return GBI_HIP_SUCCESS;
}

gbi_hip_result hipPointerGetAttributes(struct hipPointerAttribute_t *attributes,
                                       const void *address) {
  FAKE_HIP_ENTER();
  gbi_hip_pointer facts = {.type = GBI_HIP_MEMORY_UNREGISTERED, .device = -2};
  fake_memory memory;
  if (fake_memory_look(address, &memory)) {
    bool on_host = memory.kind != FAKE_DEVICE;
    facts.type = on_host ? GBI_HIP_MEMORY_HOST : GBI_HIP_MEMORY_DEVICE;
    facts.device = memory.device;
    facts.device_pointer = (void *)(uintptr_t)address;
    facts.host_pointer = on_host ? facts.device_pointer : NULL;
  }
  memcpy(attributes, &facts, sizeof facts);
  return GBI_HIP_SUCCESS;
}
