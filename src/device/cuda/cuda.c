/* The CUDA driver API. Only the driver: there is one per process, while every
 * library may bring a runtime of its own; streams and events are the same in
 * both. The device's primary context, torch's own, is pushed for each call and
 * popped after it. */
#include "base/fault.h"
#include "base/log.h"
#include "base/memory.h"
#include "device/cuda/cuda_abi.h"
#include "device/library.h"
#include "device/vendor.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct cuda {
  gbi_device base;
  gbi_cu_device device;
  gbi_cu_context context;
} cuda;

/* Written once, before the first device is counted. */
static struct {
  pthread_mutex_t lock;
  bool ready;
  const char *path;
} driver = {.lock = PTHREAD_MUTEX_INITIALIZER};
static gbi_cuda_api api;

/* ---- errors ---- */

static gb_status status_of(gbi_cu_result result) {
  switch (result) {
    case GBI_CU_SUCCESS: return GB_OK;
    case GBI_CU_ERROR_NOT_READY: return GB_ERR_BUSY;
    case GBI_CU_ERROR_OUT_OF_MEMORY: return GB_ERR_MEMORY;
    case GBI_CU_ERROR_INVALID_IMAGE:
    case GBI_CU_ERROR_NO_BINARY_FOR_GPU:
    case GBI_CU_ERROR_NOT_SUPPORTED: return GB_ERR_UNSUPPORTED;
    case GBI_CU_ERROR_NOT_INITIALIZED: return GB_ERR_STATE;
    default: break;
  }
  bool capture = result >= GBI_CU_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
                 result <= GBI_CU_ERROR_CAPTURED_EVENT;
  return capture ? GB_ERR_STATE : GB_ERR_SYSTEM;
}

static const char *way_out_of(gbi_cu_result result) {
  switch (result) {
    case GBI_CU_ERROR_STUB_LIBRARY:
      return "This libcuda is the toolkit's stub: take the folder \"stubs\" "
             "out of LD_LIBRARY_PATH";
    case GBI_CU_ERROR_NOT_INITIALIZED:
      return "A process that was forked after CUDA was used cannot use it: "
             "start processes by spawn";
    case GBI_CU_ERROR_SYSTEM_DRIVER_MISMATCH:
      return "The kernel module and libcuda are of different versions: load "
             "the module again, or reboot";
    case GBI_CU_ERROR_SYSTEM_NOT_READY:
      return "Look whether the fabric manager runs";
    case GBI_CU_ERROR_UNKNOWN:
      return "Look whether nvidia-smi works and /dev/nvidia* may be opened";
    default: return NULL;
  }
}

/* `way_out` NULL: what is known of the code. */
static gb_status fail_as(gb_status status, const cuda *c, gbi_cu_result result,
                         const char *doing, const char *way_out,
                         gb_error *error) {
  gbi_vendor_failure failure = {
      .vendor = GBI_NVIDIA,
      .device = c ? &c->base : NULL,
      .doing = doing,
      .code = (int)result,
      .way_out = way_out ? way_out : way_out_of(result),
  };
  if (error) {
    (void)api.cuGetErrorName(result, &failure.code_name);
    (void)api.cuGetErrorString(result, &failure.text);
  }
  return gbi_vendor_fail(&failure, status, error);
}

static gb_status failed(const cuda *c, gbi_cu_result result, const char *doing,
                        const char *way_out, gb_error *error) {
  if (result == GBI_CU_SUCCESS) return GB_OK;
  return fail_as(status_of(result), c, result, doing, way_out, error);
}

/* ---- the driver ---- */

static gb_status bind_driver(void *handle, gb_error *error) {
  const gbi_library_symbol symbols[] = {
#define ROW(name, needed, arguments) {#name, (void **)&api.name, needed},
      GBI_CUDA_FUNCTIONS(ROW)
#undef ROW
  };
  return gbi_library_bind(handle, driver.path, symbols, GBI_COUNT(symbols),
                          "a driver of CUDA 11, 450 or later", error);
}

/* *none_p: all is well, but there is no device. Not remembered: the next call
 * asks again. */
static gb_status start_locked(bool *none_p, gb_error *error) {
  void *handle;
  *none_p = false;
  if (driver.ready) return GB_OK;
  GBI_TRY(gbi_library_open(&gbi_library_cuda, &handle, &driver.path, error));
  GBI_TRY(bind_driver(handle, error));
  gbi_cu_result result = api.cuInit(0);
  *none_p = result == GBI_CU_ERROR_NO_DEVICE;
  driver.ready = result == GBI_CU_SUCCESS;
  if (driver.ready) GBI_INFO("device", "CUDA driver %s", driver.path);
  if (driver.ready || *none_p) return GB_OK;
  char doing[512];
  snprintf(doing, sizeof doing, "start the CUDA driver, %s", driver.path);
  return fail_as(GB_ERR_UNSUPPORTED, NULL, result, doing, NULL, error);
}

static gb_status start(bool *none_p, const char **way_p, gb_error *error) {
  pthread_mutex_lock(&driver.lock);
  gb_status status = start_locked(none_p, error);
  if (status == GB_OK && way_p) *way_p = driver.path;
  pthread_mutex_unlock(&driver.lock);
  return status;
}

static gb_status count_devices(int *count_p, const char **way_p,
                               gb_error *error) {
  bool none;
  int count = 0;
  GBI_TRY(start(&none, way_p, error));
  if (!none)
    GBI_TRY(failed(NULL, api.cuDeviceGetCount(&count), "count the NVIDIA GPUs",
                   NULL, error));
  *count_p = count;
  return GB_OK;
}

/* ---- facts ---- */

/* A slice's own UUID comes by the newer function, the whole GPU's by the
 * older. */
static void look_uuid(gbi_cu_device device, gbi_device_facts *facts) {
  uint8_t whole[16] = {0}, own[16] = {0};
  bool has_whole = api.cuDeviceGetUuid &&
                   !api.cuDeviceGetUuid((struct CUuuid_st *)whole, device);
  bool has_own = api.cuDeviceGetUuid_v2 &&
                 !api.cuDeviceGetUuid_v2((struct CUuuid_st *)own, device);
  bool slice = has_whole && has_own && memcmp(whole, own, sizeof own);
  gbi_uuid_text(has_own ? own : whole, slice ? "MIG-" : "GPU-", facts->uuid,
                sizeof facts->uuid);
}

static int attribute(gbi_cu_device device, unsigned int which) {
  int value = 0;
  return api.cuDeviceGetAttribute(&value, which, device) ? 0 : value;
}

static gb_status look(int index, gbi_device_facts *facts, gb_error *error) {
  gbi_cu_device device;
  GBI_TRY(failed(NULL, api.cuDeviceGet(&device, index), "reach an NVIDIA GPU",
                 NULL, error));
  size_t bytes = 0;
  if (api.cuDeviceGetName(facts->name, sizeof facts->name, device))
    facts->name[0] = 0;
  if (api.cuDeviceGetPCIBusId(facts->pci, sizeof facts->pci, device))
    facts->pci[0] = 0;
  gbi_pci_text(facts->pci);
  look_uuid(device, facts);
  int major = attribute(device, GBI_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  int minor = attribute(device, GBI_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  if (major) snprintf(facts->arch, sizeof facts->arch, "sm_%d%d", major, minor);
  if (!api.cuDeviceTotalMem_v2(&bytes, device)) facts->memory_bytes = bytes;
  (void)api.cuDriverGetVersion(&facts->driver);
  facts->flags =
      api.cuStreamWaitValue64_v2 && api.cuStreamWriteValue64_v2 &&
      attribute(device, GBI_CU_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
  facts->captures_flags = facts->flags;
  return GB_OK;
}

/* ---- calls on a device ---- */

static cuda *of(gbi_device *device) {
  return (cuda *)device;
}

/* Whose context the thread has between enter_thread and leave_thread. */
static _Thread_local const cuda *inside;

static gb_status enter(cuda *c, gb_error *error) {
  if (inside == c) return GB_OK;
  return failed(c, api.cuCtxPushCurrent_v2(c->context), "use the context", NULL,
                error);
}

static void pop(const cuda *c) {
  gbi_cu_context mine;
  if (inside != c) (void)api.cuCtxPopCurrent_v2(&mine);
}

static gb_status leave(cuda *c, gbi_cu_result result, const char *doing,
                       gb_error *error) {
  pop(c);
  return failed(c, result, doing, NULL, error);
}

/* The same where memory was asked for. */
static gb_status leave_sized(cuda *c, gbi_cu_result result, const char *what,
                             size_t bytes, const char *way_out,
                             gb_error *error) {
  pop(c);
  char doing[96];
  snprintf(doing, sizeof doing, "%s %zu bytes", what, bytes);
  return failed(c, result, doing,
                result == GBI_CU_ERROR_OUT_OF_MEMORY ? way_out : NULL, error);
}

static const char device_way_out[] = "nvidia-smi shows who uses its memory";
static const char pinned_way_out[] =
    "Pinned memory is host memory that cannot be swapped: look at the memory "
    "that is free and at the container's limit";

static gb_status stream_new(gbi_device *device, gbi_stream *stream_p,
                            gb_error *error) {
  gbi_cu_stream stream = NULL;
  GBI_TRY(enter(of(device), error));
  gbi_cu_result result =
      api.cuStreamCreate(&stream, GBI_FAULT("gpu.blocking") == GBI_FAULT_FAIL
                                      ? 0
                                      : GBI_CU_STREAM_NON_BLOCKING);
  GBI_TRY(leave(of(device), result, "make a stream", error));
  *stream_p = stream;
  return GB_OK;
}

static void stream_free(gbi_device *device, gbi_stream stream) {
  if (!stream || enter(of(device), NULL) != GB_OK) return;
  (void)api.cuStreamDestroy_v2(stream);
  pop(of(device));
}

static gb_status stream_query(gbi_device *device, gbi_stream stream,
                              gb_error *error) {
  GBI_TRY(enter(of(device), error));
  gbi_cu_result result = api.cuStreamQuery(stream);
  return leave(of(device), result, "finish what is on a stream", error);
}

static gb_status stream_sync(gbi_device *device, gbi_stream stream,
                             gb_error *error) {
  GBI_TRY(enter(of(device), error));
  gbi_cu_result result = api.cuStreamSynchronize(stream);
  return leave(of(device), result, "wait for a stream", error);
}

static gb_status stream_captures(gbi_device *device, gbi_stream stream,
                                 bool *captures_p, gb_error *error) {
  unsigned int capture = GBI_CU_CAPTURE_STATUS_NONE;
  GBI_TRY(enter(of(device), error));
  gbi_cu_result result = api.cuStreamIsCapturing(stream, &capture);
  GBI_TRY(leave(of(device), result, "see whether a stream captures", error));
  *captures_p = capture != GBI_CU_CAPTURE_STATUS_NONE;
  return GB_OK;
}

static gb_status event_new(gbi_device *device, gbi_event *event_p,
                           gb_error *error) {
  gbi_cu_event event = NULL;
  GBI_TRY(enter(of(device), error));
  gbi_cu_result result = api.cuEventCreate(&event, GBI_CU_EVENT_DISABLE_TIMING);
  GBI_TRY(leave(of(device), result, "make an event", error));
  *event_p = event;
  return GB_OK;
}

static void event_free(gbi_device *device, gbi_event event) {
  if (!event || enter(of(device), NULL) != GB_OK) return;
  (void)api.cuEventDestroy_v2(event);
  pop(of(device));
}

static gb_status event_record(gbi_device *device, gbi_event event,
                              gbi_stream stream, gb_error *error) {
  GBI_TRY(enter(of(device), error));
  gbi_cu_result result = api.cuEventRecord(event, stream);
  return leave(of(device), result, "record an event", error);
}

static gb_status event_query(gbi_device *device, gbi_event event,
                             gb_error *error) {
  GBI_TRY(enter(of(device), error));
  gbi_cu_result result = api.cuEventQuery(event);
  return leave(of(device), result, "reach an event", error);
}

static gb_status stream_wait(gbi_device *device, gbi_stream stream,
                             gbi_event event, gb_error *error) {
  GBI_TRY(enter(of(device), error));
  gbi_cu_result result = api.cuStreamWaitEvent(stream, event, 0);
  return leave(of(device), result, "make a stream wait for an event", error);
}

/* ---- memory ---- */

static void *pointer(gbi_cu_address address) {
  return (void *)(uintptr_t)address;
}

static gbi_cu_address address(const void *memory) {
  return (gbi_cu_address)(uintptr_t)memory;
}

static gb_status memory_new(gbi_device *device, size_t bytes, void **memory_p,
                            gb_error *error) {
  gbi_cu_address at = 0;
  GBI_TRY(enter(of(device), error));
  gbi_cu_result result = api.cuMemAlloc_v2(&at, bytes ? bytes : 1);
  GBI_TRY(leave_sized(of(device), result, "get device memory of", bytes,
                      device_way_out, error));
  *memory_p = pointer(at);
  return GB_OK;
}

static void memory_free(gbi_device *device, void *memory) {
  if (!memory || enter(of(device), NULL) != GB_OK) return;
  (void)api.cuMemFree_v2(address(memory));
  pop(of(device));
}

static gb_status pinned_new(gbi_device *device, size_t bytes, void **host_p,
                            void **device_p, gb_error *error) {
  void *whole = NULL;
  gbi_cu_address at = 0;
  size_t room;
  gbi_cu_result result = GBI_CU_ERROR_OUT_OF_MEMORY;
  GBI_TRY(enter(of(device), error));
  if (gbi_pinned_room(bytes, &room))
    result = api.cuMemHostAlloc(&whole, room,
                                GBI_CU_HOST_PORTABLE | GBI_CU_HOST_DEVICEMAP);
  if (!result) {
    result = api.cuMemHostGetDevicePointer_v2(&at, whole, 0);
    if (result) (void)api.cuMemFreeHost(whole);
  }
  GBI_TRY(leave_sized(of(device), result, "get pinned memory of", bytes,
                      pinned_way_out, error));
  *host_p = gbi_pinned_place(whole, bytes);
  *device_p = pointer(at + (address(*host_p) - address(whole)));
  return GB_OK;
}

static void pinned_free(gbi_device *device, void *host) {
  if (!host || enter(of(device), NULL) != GB_OK) return;
  (void)api.cuMemFreeHost(gbi_pinned_whole(host));
  pop(of(device));
}

static gb_status adopt(gbi_device *device, void *host, size_t bytes,
                       void **device_p, gb_error *error) {
  gbi_cu_address at = 0;
  GBI_TRY(enter(of(device), error));
  gbi_cu_result result = api.cuMemHostRegister_v2(
      host, bytes, GBI_CU_HOST_PORTABLE | GBI_CU_HOST_DEVICEMAP);
  if (!result) {
    result = api.cuMemHostGetDevicePointer_v2(&at, host, 0);
    if (result) (void)api.cuMemHostUnregister(host);
  }
  GBI_TRY(leave_sized(of(device), result, "pin memory of", bytes,
                      pinned_way_out, error));
  *device_p = pointer(at);
  return GB_OK;
}

static void unadopt(gbi_device *device, void *host) {
  if (!host || enter(of(device), NULL) != GB_OK) return;
  (void)api.cuMemHostUnregister(host);
  pop(of(device));
}

static gb_status copy_out(gbi_device *device, void *host, const void *memory,
                          size_t bytes, gbi_stream stream, gb_error *error) {
  if (!bytes) return GB_OK;
  GBI_TRY(enter(of(device), error));
  gbi_cu_result result =
      api.cuMemcpyDtoHAsync_v2(host, address(memory), bytes, stream);
  return leave_sized(of(device), result, "copy to the host", bytes, NULL,
                     error);
}

static gb_status copy_in(gbi_device *device, void *memory, const void *host,
                         size_t bytes, gbi_stream stream, gb_error *error) {
  if (!bytes) return GB_OK;
  GBI_TRY(enter(of(device), error));
  gbi_cu_result result =
      api.cuMemcpyHtoDAsync_v2(address(memory), host, bytes, stream);
  return leave_sized(of(device), result, "copy from the host", bytes, NULL,
                     error);
}

static gb_status copy(gbi_device *device, void *to, const void *from,
                      size_t bytes, gbi_stream stream, gb_error *error) {
  if (!bytes) return GB_OK;
  GBI_TRY(enter(of(device), error));
  gbi_cu_result result =
      api.cuMemcpyDtoDAsync_v2(address(to), address(from), bytes, stream);
  return leave_sized(of(device), result, "copy", bytes, NULL, error);
}

static gb_status no_flags(cuda *c, gb_error *error) {
  return gbi_fail(error, GB_ERR_UNSUPPORTED,
                  "nvidia GPU %d (%s) cannot wait for a word in memory: "
                  "needed are a driver of CUDA 11.7, 515 or later, and a GPU "
                  "and system that have it",
                  c->base.index, c->base.facts.name);
}

static gb_status wait_flag(gbi_device *device, void *flag_device,
                           uint64_t value, gbi_stream stream, gb_error *error) {
  if (!device->facts.flags) return no_flags(of(device), error);
  GBI_TRY(enter(of(device), error));
  gbi_cu_result result = api.cuStreamWaitValue64_v2(
      stream, address(flag_device), value, GBI_CU_WAIT_VALUE_GEQ);
  return leave(of(device), result, "make a stream wait for a flag", error);
}

static gb_status set_flag(gbi_device *device, void *flag_device, uint64_t value,
                          gbi_stream stream, gb_error *error) {
  if (!device->facts.flags) return no_flags(of(device), error);
  GBI_TRY(enter(of(device), error));
  gbi_cu_result result = api.cuStreamWriteValue64_v2(
      stream, address(flag_device), value, GBI_CU_WRITE_VALUE_DEFAULT);
  return leave(of(device), result, "make a stream raise a flag", error);
}

static gb_status memory_facts(gbi_device *device, const void *memory,
                              gbi_memory_facts *facts, gb_error *error) {
  unsigned int names[] = {GBI_CU_POINTER_MEMORY_TYPE, GBI_CU_POINTER_IS_MANAGED,
                          GBI_CU_POINTER_DEVICE_ORDINAL};
  unsigned int type = 0, managed = 0; /* a bool fills one byte of the second */
  int ordinal = -1;
  void *values[] = {&type, &managed, &ordinal};
  GBI_TRY(enter(of(device), error));
  gbi_cu_result result = api.cuPointerGetAttributes(GBI_COUNT(names), names,
                                                    values, address(memory));
  if (result == GBI_CU_ERROR_INVALID_VALUE) result = type = managed = 0;
  GBI_TRY(leave(of(device), result, "tell what memory a pointer is to", error));
  facts->kind = managed                            ? GBI_MEMORY_MANAGED
                : type == GBI_CU_MEMORYTYPE_DEVICE ? GBI_MEMORY_DEVICE
                : type == GBI_CU_MEMORYTYPE_HOST   ? GBI_MEMORY_PINNED
                                                   : GBI_MEMORY_PAGEABLE;
  bool on_device = managed || type == GBI_CU_MEMORYTYPE_DEVICE;
  facts->device = on_device && ordinal >= 0 ? ordinal : -1;
  return GB_OK;
}

/* ---- code ---- */

static gb_status module_load(gbi_device *device, const void *code,
                             gbi_module *module_p, gb_error *error) {
  gbi_cu_module module = NULL;
  GBI_TRY(enter(of(device), error));
  gbi_cu_result result = api.cuModuleLoadData(&module, code);
  GBI_TRY(leave(of(device), result, "load code", error));
  *module_p = module;
  return GB_OK;
}

static void module_free(gbi_device *device, gbi_module module) {
  if (!module || enter(of(device), NULL) != GB_OK) return;
  (void)api.cuModuleUnload(module);
  pop(of(device));
}

static gb_status module_function(gbi_device *device, gbi_module module,
                                 const char *name, gbi_function *function_p,
                                 gb_error *error) {
  char doing[96];
  gbi_cu_function function = NULL;
  snprintf(doing, sizeof doing, "find the kernel %s", name);
  GBI_TRY(enter(of(device), error));
  gbi_cu_result result = api.cuModuleGetFunction(&function, module, name);
  GBI_TRY(leave(of(device), result, doing, error));
  *function_p = function;
  return GB_OK;
}

static gb_status launch(gbi_device *device, gbi_function function,
                        unsigned blocks, unsigned threads, void **arguments,
                        gbi_stream stream, gb_error *error) {
  GBI_TRY(enter(of(device), error));
  gbi_cu_result result = api.cuLaunchKernel(function, blocks, 1, 1, threads, 1,
                                            1, 0, stream, arguments, NULL);
  return leave(of(device), result, "launch a kernel", error);
}

static gb_status enter_thread(gbi_device *device, gb_error *error) {
  GBI_TRY(enter(of(device), error));
  inside = of(device);
  return GB_OK;
}

static void leave_thread(gbi_device *device) {
  inside = NULL;
  pop(of(device));
}

static void own_thread(gbi_device *device) {
  unsigned int mode = GBI_CU_CAPTURE_MODE_RELAXED;
  (void)device;
  (void)api.cuThreadExchangeStreamCaptureMode(&mode);
}

static void swap_capture_mode(gbi_device *device, unsigned int *mode) {
  (void)device;
  (void)api.cuThreadExchangeStreamCaptureMode(mode);
}

static gbi_cu_result tie_to_graph(gbi_cu_stream stream, void (*gone)(void *arg),
                                  void *arg) {
  unsigned int state = GBI_CU_CAPTURE_STATUS_NONE;
  struct CUgraph_st *graph = NULL;
  struct CUuserObject_st *object = NULL;
  gbi_cu_result result = api.cuStreamGetCaptureInfo_v3(
      stream, &state, NULL, &graph, NULL, NULL, NULL);
  if (!result && !graph) result = GBI_CU_ERROR_INVALID_VALUE;
  if (!result)
    result = api.cuUserObjectCreate(&object, arg, gone, 1,
                                    GBI_CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  if (!result)
    result = api.cuGraphRetainUserObject(graph, object, 1,
                                         GBI_CU_GRAPH_USER_OBJECT_MOVE);
  return result;
}

static gb_status at_end_of_graph(gbi_device *device, gbi_stream stream,
                                 void (*gone)(void *arg), void *arg,
                                 gb_error *error) {
  if (!api.cuStreamGetCaptureInfo_v3 || !api.cuUserObjectCreate ||
      !api.cuGraphRetainUserObject)
    return gbi_fail(error, GB_ERR_UNSUPPORTED,
                    "this CUDA driver does not tell when a graph ends: needed "
                    "is one of CUDA 12.3, 545 or later");
  GBI_TRY(enter(of(device), error));
  gbi_cu_result result = tie_to_graph(stream, gone, arg);
  return leave(of(device), result, "keep memory with a graph", error);
}

static void close_device(gbi_device *device) {
  if (!device) return;
  (void)api.cuDevicePrimaryCtxRelease_v2(of(device)->device);
  free(device);
}

static const gbi_device_ops ops = {
    .vendor = GBI_NVIDIA,
    .outstanding_most = 0,
    .close = close_device,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .stream_query = stream_query,
    .stream_sync = stream_sync,
    .stream_captures = stream_captures,
    .event_new = event_new,
    .event_free = event_free,
    .event_record = event_record,
    .event_query = event_query,
    .stream_wait = stream_wait,
    .memory = memory_new,
    .free_memory = memory_free,
    .pinned = pinned_new,
    .free_pinned = pinned_free,
    .adopt = adopt,
    .unadopt = unadopt,
    .copy_out = copy_out,
    .copy_in = copy_in,
    .copy = copy,
    .wait_flag = wait_flag,
    .set_flag = set_flag,
    .memory_facts = memory_facts,
    .module_load = module_load,
    .module_free = module_free,
    .module_function = module_function,
    .launch = launch,
    .own_thread = own_thread,
    .swap_capture_mode = swap_capture_mode,
    .at_end_of_graph = at_end_of_graph,
    .enter = enter_thread,
    .leave = leave_thread,
};

static gb_status open_device(int index, gbi_device **device_p,
                             gb_error *error) {
  cuda *c = gbi_calloc(1, sizeof *c);
  if (!c) return gbi_fail(error, GB_ERR_MEMORY, "out of memory");
  c->base.ops = &ops;
  c->base.index = index;
  gb_status status = look(index, &c->base.facts, error);
  if (status == GB_OK)
    status =
        failed(c, api.cuDeviceGet(&c->device, index), "open it", NULL, error);
  if (status == GB_OK)
    status = failed(c, api.cuDevicePrimaryCtxRetain(&c->context, c->device),
                    "make a context", device_way_out, error);
  if (status != GB_OK) {
    free(c);
    return status;
  }
  *device_p = &c->base;
  return GB_OK;
}

const gbi_vendor_driver gbi_cuda_driver = {
    .visible = (const char *const[]){"CUDA_VISIBLE_DEVICES", NULL},
    .count = count_devices,
    .look = look,
    .open = open_device,
};
