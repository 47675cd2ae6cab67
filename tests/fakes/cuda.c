/* libcuda.so.1: start, devices, contexts, memory. */
#include "fakes/cuda_fake.h"

#include <stdio.h>
#include <string.h>

enum { DEPTH = 32, DRIVER_VERSION = 12080, SM_MAJOR = 9, SM_MINOR = 0 };

struct CUctx_st {
  int device;
  int retained; /* atomic */
};
struct CUuuid_st {
  char bytes[16];
};

static struct CUctx_st primary[FAKE_DEVICES_MOST] = {
    {0, 0}, {1, 0}, {2, 0}, {3, 0}, {4, 0}, {5, 0}, {6, 0}, {7, 0}};
static int started; /* atomic */
static __thread gbi_cu_context stack[DEPTH];
static __thread int depth;

static gbi_cu_context current(void) {
  return depth ? stack[depth - 1] : NULL;
}

static int current_device(void) {
  gbi_cu_context context = current();
  return context ? context->device : -1;
}

const fake_vendor fake_here = {.name = "cuda",
                               .cyclic = true,
                               .memory_bytes = (size_t)16 << 30,
                               .device = current_device};

static const struct {
  gbi_cu_result code;
  const char *name, *text;
} codes[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
     "capture was not ended in the same stream as it began"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
     "capturing stream has unjoined work"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing one"},
    {907, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capture"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a capture from another thread"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"}};

/* Before cuInit nothing but a few functions works, nor in a forked child. */
static gbi_cu_result enter_early(const char *function, const void *caller) {
  return (gbi_cu_result)fake_call(function, caller);
}

static gbi_cu_result enter_started(const char *function, const void *caller) {
  gbi_cu_result code = enter_early(function, caller);
  if (code) return code;
  bool ready = __atomic_load_n(&started, __ATOMIC_ACQUIRE) && !gpu.forked;
  return ready ? GBI_CU_SUCCESS : GBI_CU_ERROR_NOT_INITIALIZED;
}

gbi_cu_result fake_cu_enter(const char *function, const void *caller,
                            int *device_p) {
  gbi_cu_result code = enter_started(function, caller);
  if (code) return code;
  gbi_cu_context context = current();
  if (!context) return FAKE_CU_ERROR_INVALID_CONTEXT;
  if (!__atomic_load_n(&context->retained, __ATOMIC_ACQUIRE))
    return FAKE_CU_ERROR_CONTEXT_IS_DESTROYED;
  if (device_p) *device_p = context->device;
  return GBI_CU_SUCCESS;
}

#define EARLY()                                                               \
  do {                                                                        \
    gbi_cu_result code_ = enter_early(__func__, __builtin_return_address(0)); \
    if (code_) return code_;                                                  \
  } while (0)
#define STARTED()                                             \
  do {                                                        \
    gbi_cu_result code_ =                                     \
        enter_started(__func__, __builtin_return_address(0)); \
    if (code_) return code_;                                  \
  } while (0)
#define DEVICE(device)                                               \
  do {                                                               \
    STARTED();                                                       \
    if (!fake_device_at(device)) return GBI_CU_ERROR_INVALID_DEVICE; \
  } while (0)

gbi_cu_result cuInit(unsigned int flags) {
  EARLY();
  if (flags) return GBI_CU_ERROR_INVALID_VALUE;
  if (gpu.forked) return GBI_CU_ERROR_NOT_INITIALIZED;
  if (!gpu.set.devices) return GBI_CU_ERROR_NO_DEVICE;
  __atomic_store_n(&started, 1, __ATOMIC_RELEASE);
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuDriverGetVersion(int *version) {
  EARLY();
  *version = DRIVER_VERSION;
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuGetErrorName(gbi_cu_result error, const char **text) {
  for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
    if (codes[i].code != error) continue;
    *text = codes[i].name;
    return GBI_CU_SUCCESS;
  }
  *text = NULL;
  return GBI_CU_ERROR_INVALID_VALUE;
}

gbi_cu_result cuGetErrorString(gbi_cu_result error, const char **text) {
  for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
    if (codes[i].code != error) continue;
    *text = codes[i].text;
    return GBI_CU_SUCCESS;
  }
  *text = NULL;
  return GBI_CU_ERROR_INVALID_VALUE;
}

static const struct {
  const char *name;
  void *function;
} names[] = {
#define NAME(name, needed, arguments) {#name, (void *)name},
    GBI_CUDA_FUNCTIONS(NAME) FAKE_CUDA_FUNCTIONS(NAME)
#undef NAME
};

static void *named(const char *name, const char *suffix) {
  char whole[96];
  snprintf(whole, sizeof whole, "%s%s", name, suffix);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(names[i].name, whole) == 0) return names[i].function;
  return NULL;
}

/* Unlike dlsym, this one is asked for the plain name and answers with the
 * function that the version has under it. */
static void *for_version(const char *name, int version) {
  static const char *const newest[] = {"WithFlags", "_v3", "_v2", ""};
  bool memop = !strncmp(name, "cuStreamWa", 10) ||
               !strncmp(name, "cuStreamWri", 11) ||
               !strncmp(name, "cuStreamBatch", 13);
  if (memop && strstr(name, "Value") && version < 11070) return named(name, "");
  bool old_info = strstr(name, "CaptureInfo") && version < 12030;
  for (int i = strcmp(name, "cuGraphInstantiate") != 0; i < 4; i++) {
    if (old_info && i == 1) continue;
    void *function = named(name, newest[i]);
    if (function) return function;
  }
  return NULL;
}

static gbi_cu_result find_address(const char *name, void **function,
                                  int version, unsigned int *status) {
  if (!name || !function) return GBI_CU_ERROR_INVALID_VALUE;
  *function = for_version(name, version);
  if (status) *status = *function ? 0 : 1;
  if (*function || status) return GBI_CU_SUCCESS;
  return FAKE_CU_ERROR_NOT_FOUND;
}

gbi_cu_result cuGetProcAddress_v2(const char *name, void **function,
                                  int version, uint64_t flags,
                                  unsigned int *status) {
  EARLY();
  return find_address(name, function, version, status);
}

gbi_cu_result cuGetProcAddress(const char *name, void **function, int version,
                               uint64_t flags) {
  EARLY();
  return find_address(name, function, version, NULL);
}

gbi_cu_result cuDeviceGetCount(int *count) {
  STARTED();
  *count = gpu.set.devices;
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuDeviceGet(gbi_cu_device *device, int ordinal) {
  DEVICE(ordinal);
  *device = ordinal;
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuDeviceGetName(char *name, int bytes, gbi_cu_device device) {
  DEVICE(device);
  snprintf(name, (size_t)bytes, "NVIDIA Fake H100 16GB");
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuDeviceGetUuid(struct CUuuid_st *uuid, gbi_cu_device device) {
  DEVICE(device);
  memcpy(uuid->bytes, gpu.devices[device].uuid, sizeof uuid->bytes);
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuDeviceGetUuid_v2(struct CUuuid_st *uuid, gbi_cu_device device) {
  DEVICE(device);
  memcpy(uuid->bytes, gpu.devices[device].slice, sizeof uuid->bytes);
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuDeviceGetPCIBusId(char *text, int bytes, gbi_cu_device device) {
  DEVICE(device);
  int used = snprintf(text, (size_t)bytes, "%s", gpu.devices[device].pci);
  return used < bytes ? GBI_CU_SUCCESS : GBI_CU_ERROR_INVALID_VALUE;
}

gbi_cu_result cuDeviceGetAttribute(int *value, unsigned int attribute,
                                   gbi_cu_device device) {
  DEVICE(device);
  switch (attribute) {
    case 1: *value = 1024; break; /* threads of a block */
    case 10: *value = 32; break;  /* warp */
    case 16: *value = 132; break; /* multiprocessors */
    case 33: *value = gpu.devices[device].pci_bus; break;
    case 34: *value = 0; break;
    case 50: *value = gpu.devices[device].pci_domain; break;
    case 75: *value = SM_MAJOR; break;
    case 76: *value = SM_MINOR; break;
    case 19:  /* maps host memory */
    case 40:  /* copy engines */
    case 41:  /* unified addresses */
    case 78:  /* priorities */
    case 91:  /* one address for registered memory on both sides */
    case 98:  /* remote-write flush */
    case 99:  /* registers host memory */
    case 122: /* 64-bit memory operations */
    case 123: /* NOR */ *value = 1; break;
    default: *value = 0;
  }
  return attribute ? GBI_CU_SUCCESS : GBI_CU_ERROR_INVALID_VALUE;
}

gbi_cu_result cuDeviceTotalMem_v2(size_t *bytes, gbi_cu_device device) {
  DEVICE(device);
  *bytes = fake_here.memory_bytes;
  return GBI_CU_SUCCESS;
}

gbi_cu_result fake_cu_primary(int device, gbi_cu_context *context_p) {
  *context_p = &primary[device];
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuDevicePrimaryCtxRetain(gbi_cu_context *context,
                                       gbi_cu_device device) {
  DEVICE(device);
  __atomic_fetch_add(&primary[device].retained, 1, __ATOMIC_ACQ_REL);
  *context = &primary[device];
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuDevicePrimaryCtxRelease_v2(gbi_cu_device device) {
  DEVICE(device);
  int *retained = &primary[device].retained;
  int before = __atomic_load_n(retained, __ATOMIC_ACQUIRE);
  do {
    if (!before) return FAKE_CU_ERROR_INVALID_CONTEXT;
  } while (!__atomic_compare_exchange_n(retained, &before, before - 1, false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuDevicePrimaryCtxGetState(gbi_cu_device device,
                                         unsigned int *flags, int *active) {
  DEVICE(device);
  *flags = 0;
  *active = __atomic_load_n(&primary[device].retained, __ATOMIC_ACQUIRE) > 0;
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuCtxPushCurrent_v2(gbi_cu_context context) {
  STARTED();
  if (!context) return FAKE_CU_ERROR_INVALID_CONTEXT;
  if (depth == DEPTH)
    fake_check_failed(fake_call_name(), fake_call_site(), NULL, NULL,
                      "%d contexts pushed and not popped", DEPTH);
  stack[depth++] = context;
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuCtxPopCurrent_v2(gbi_cu_context *context) {
  STARTED();
  if (!depth) return FAKE_CU_ERROR_INVALID_CONTEXT;
  gbi_cu_context top = stack[--depth];
  if (context) *context = top;
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuCtxGetCurrent(gbi_cu_context *context) {
  STARTED();
  *context = current();
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuCtxSetCurrent(gbi_cu_context context) {
  STARTED();
  if (depth) depth--;
  if (context) stack[depth++] = context;
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuCtxGetDevice(gbi_cu_device *device) {
  FAKE_CU_ENTER(device);
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuCtxSynchronize(void) {
  int device;
  FAKE_CU_ENTER(&device);
  return fake_code(fake_device_sync(device));
}

gbi_cu_result cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  FAKE_CU_ENTER(NULL);
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuMemAlloc_v2(gbi_cu_address *address, size_t bytes) {
  int device;
  FAKE_CU_ENTER(&device);
  void *memory = NULL;
  fake_result result = fake_allocate(device, bytes, &memory);
  if (!result) *address = (uintptr_t)memory;
  return fake_code(result);
}

gbi_cu_result cuMemFree_v2(gbi_cu_address address) {
  FAKE_CU_ENTER(NULL);
  return fake_code(fake_free((void *)(uintptr_t)address, false));
}

gbi_cu_result cuMemHostAlloc(void **host, size_t bytes, unsigned int flags) {
  FAKE_CU_ENTER(NULL);
  if (flags > 7) return GBI_CU_ERROR_INVALID_VALUE;
  return fake_code(fake_pin(bytes, true, host));
}

gbi_cu_result cuMemFreeHost(void *host) {
  FAKE_CU_ENTER(NULL);
  return fake_code(fake_free(host, true));
}

gbi_cu_result cuMemHostRegister_v2(void *host, size_t bytes,
                                   unsigned int flags) {
  FAKE_CU_ENTER(NULL);
  return fake_code(fake_adopt(host, bytes));
}

gbi_cu_result cuMemHostUnregister(void *host) {
  FAKE_CU_ENTER(NULL);
  return fake_code(fake_unadopt(host));
}

gbi_cu_result cuMemHostGetDevicePointer_v2(gbi_cu_address *address, void *host,
                                           unsigned int flags) {
  FAKE_CU_ENTER(NULL);
  fake_memory memory;
  if (flags || !fake_memory_look(host, &memory) || memory.kind == FAKE_DEVICE)
    return GBI_CU_ERROR_INVALID_VALUE;
  *address = (uintptr_t)host;
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuMemHostGetFlags(unsigned int *flags, void *host) {
  FAKE_CU_ENTER(NULL);
  fake_memory memory;
  if (!fake_memory_look(host, &memory) || memory.kind == FAKE_DEVICE)
    return GBI_CU_ERROR_INVALID_VALUE;
  *flags = GBI_CU_HOST_PORTABLE | GBI_CU_HOST_DEVICEMAP;
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuMemGetInfo_v2(size_t *left, size_t *total) {
  int device;
  FAKE_CU_ENTER(&device);
  fake_lock();
  *total = fake_here.memory_bytes;
  *left = *total - gpu.devices[device].used;
  fake_unlock();
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuMemGetAddressRange_v2(gbi_cu_address *begin, size_t *bytes,
                                      gbi_cu_address address) {
  FAKE_CU_ENTER(NULL);
  fake_memory memory;
  if (!fake_memory_look((void *)(uintptr_t)address, &memory))
    return FAKE_CU_ERROR_NOT_FOUND;
  if (begin) *begin = memory.begin;
  if (bytes) *bytes = memory.bytes;
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuMemGetHandleForAddressRange(void *handle,
                                            gbi_cu_address address,
                                            size_t bytes, unsigned int type,
                                            unsigned long long flags) {
  FAKE_CU_ENTER(NULL);
  return GBI_CU_ERROR_NOT_SUPPORTED;
}

static void put(void *data, const void *value, size_t bytes) {
  if (data) memcpy(data, value, bytes);
}

/* False: no such attribute. memory NULL: the driver does not know the address,
 * and says so by zeros. */
static bool attribute_of(unsigned int attribute, const fake_memory *memory,
                         gbi_cu_address address, void *data) {
  bool on_host = memory && memory->kind != FAKE_DEVICE;
  uint64_t word = 0;
  uint32_t half = 0;
  switch (attribute) {
    case 1: /* context */
      word = memory ? (uintptr_t)&primary[memory->device] : 0;
      break;
    case 3: word = memory ? address : 0; break;    /* the device's address */
    case 4: word = on_host ? address : 0; break;   /* the host's */
    case 7: word = memory ? memory->id : 0; break; /* buffer id */
    case 11: word = memory ? memory->begin : 0; break;
    case 12: word = memory ? memory->bytes : 0; break;
    case GBI_CU_POINTER_MEMORY_TYPE:
      half = !memory   ? 0
             : on_host ? GBI_CU_MEMORYTYPE_HOST
                       : GBI_CU_MEMORYTYPE_DEVICE;
      put(data, &half, 4);
      return true;
    case GBI_CU_POINTER_DEVICE_ORDINAL:
      half = memory ? (uint32_t)memory->device : (uint32_t)-2;
      put(data, &half, 4);
      return true;
    case GBI_CU_POINTER_IS_MANAGED: put(data, &half, 4); return true;
    case 6:  /* synchronises memory operations */
    case 10: /* legacy IPC */
    case 15: /* GPUDirect RDMA */ put(data, &half, 1); return true;
    default: return false;
  }
  put(data, &word, 8);
  return true;
}

gbi_cu_result cuPointerGetAttribute(void *data, unsigned int attribute,
                                    gbi_cu_address address) {
  FAKE_CU_ENTER(NULL);
  fake_memory memory;
  if (!fake_memory_look((void *)(uintptr_t)address, &memory) ||
      !attribute_of(attribute, &memory, address, data))
    return GBI_CU_ERROR_INVALID_VALUE;
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuPointerGetAttributes(unsigned int count, unsigned int *which,
                                     void **data, gbi_cu_address address) {
  FAKE_CU_ENTER(NULL);
  fake_memory memory;
  bool known = fake_memory_look((void *)(uintptr_t)address, &memory);
  for (unsigned int i = 0; i < count; i++)
    if (!attribute_of(which[i], known ? &memory : NULL, address, data[i]))
      return GBI_CU_ERROR_INVALID_VALUE;
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuPointerSetAttribute(const void *value, unsigned int attribute,
                                    gbi_cu_address address) {
  FAKE_CU_ENTER(NULL);
  fake_memory memory;
  bool known = fake_memory_look((void *)(uintptr_t)address, &memory);
  return known && attribute == 6 ? GBI_CU_SUCCESS : GBI_CU_ERROR_INVALID_VALUE;
}
