/* The HIP runtime. There must be one in a process, the one that RCCL is linked
 * to: torch's wheels bring their own, beside which the system's would be a
 * second. Its functions are looked up through RCCL's handle, which finds those
 * that RCCL itself calls.
 *
 * Facts that are not in the headers:
 * - The current device is a thread's; it is set for each call and set back.
 * - The runtime keeps a thread's last error for whoever asks next, and torch
 *   asks after its kernels: what our calls leave there is taken away.
 * - hipExtStreamCreateWithCUMask gives a queue of one's own, but a stream that
 *   waits for the legacy default stream. So streams are made non-blocking, of
 *   the highest priority: these have queues apart from those of others.
 * - While a stream captures, a wait for a flag is not captured before ROCm 7.3,
 *   but run at once: whoever uses wait_flag asks stream_captures first. */
#include "base/config.h"
#include "base/fault.h"
#include "base/memory.h"
#include "base/log.h"
#include "device/hip/hip_abi.h"
#include "device/library.h"
#include "device/vendor.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of hipDriverGetVersion. Older ones number the kinds of memory otherwise. */
enum { OLDEST = 60000000, CAPTURES_FLAGS = 70300000 };

/* Written once, before the first device is counted. */
static struct {
  pthread_mutex_t lock;
  bool ready;
  const char *path;
} runtime = {.lock = PTHREAD_MUTEX_INITIALIZER};
static gbi_hip_api api;

/* ---- errors ---- */

static gb_status status_of(gbi_hip_result result) {
  switch (result) {
    case GBI_HIP_SUCCESS: return GB_OK;
    case GBI_HIP_ERROR_NOT_READY: return GB_ERR_BUSY;
    case GBI_HIP_ERROR_OUT_OF_MEMORY: return GB_ERR_MEMORY;
    case GBI_HIP_ERROR_INVALID_IMAGE:
    case GBI_HIP_ERROR_NO_BINARY_FOR_GPU:
    case GBI_HIP_ERROR_NOT_SUPPORTED: return GB_ERR_UNSUPPORTED;
    case GBI_HIP_ERROR_NOT_INITIALIZED: return GB_ERR_STATE;
    default: break;
  }
  bool capture = result >= GBI_HIP_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
                 result <= GBI_HIP_ERROR_CAPTURED_EVENT;
  return capture ? GB_ERR_STATE : GB_ERR_SYSTEM;
}

static const char *way_out_of(gbi_hip_result result) {
  switch (result) {
    case GBI_HIP_ERROR_NOT_INITIALIZED:
    case GBI_HIP_ERROR_INSUFFICIENT_DRIVER:
      return "Look whether the module amdgpu is loaded and /dev/kfd and "
             "/dev/dri may be opened (groups render and video)";
    case GBI_HIP_ERROR_UNKNOWN: return "Look whether rocm-smi works";
    default: return NULL;
  }
}

/* `way_out` NULL: what is known of the code. */
static gb_status fail_as(gb_status status, const gbi_device *h,
                         gbi_hip_result result, const char *doing,
                         const char *way_out, gb_error *error) {
  gbi_vendor_failure failure = {
      .vendor = GBI_AMD,
      .device = h,
      .doing = doing,
      .code_name = api.hipGetErrorName(result),
      .text = api.hipGetErrorString(result),
      .code = (int)result,
      .way_out = way_out ? way_out : way_out_of(result),
  };
  (void)api.hipGetLastError();
  return gbi_vendor_fail(&failure, status, error);
}

static gb_status failed(const gbi_device *h, gbi_hip_result result,
                        const char *doing, const char *way_out,
                        gb_error *error) {
  if (result == GBI_HIP_SUCCESS) return GB_OK;
  return fail_as(status_of(result), h, result, doing, way_out, error);
}

/* For what may fail: the last error is taken away, and that is all. */
static bool worked(gbi_hip_result result) {
  if (result) (void)api.hipGetLastError();
  return !result;
}

/* ---- the runtime ---- */

static bool has_hip(void *handle) {
  return dlsym(handle, "hipGetDeviceCount") != NULL;
}

static bool is_set(const char *name) {
  char value[8];
  return gbi_env(name, value, sizeof value);
}

/* What a user names; RCCL's, or one that is loaded without an RCCL; then what
 * can be found: RCCL's again before one of its own. */
static gb_status find_runtime(void **handle_p, const char **path_p,
                              gb_error *error) {
  if (is_set(gbi_library_hip.setting))
    return gbi_library_open(&gbi_library_hip, handle_p, path_p, error);
  if (is_set(gbi_library_rccl.setting)) {
    GBI_TRY(gbi_library_open(&gbi_library_rccl, handle_p, path_p, error));
    if (has_hip(*handle_p)) return GB_OK;
  }
  if (gbi_library_loaded(&gbi_library_rccl, handle_p, path_p) &&
      has_hip(*handle_p))
    return GB_OK;
  if (gbi_library_loaded(&gbi_library_hip, handle_p, path_p)) return GB_OK;
  if (gbi_library_open(&gbi_library_rccl, handle_p, path_p, NULL) == GB_OK &&
      has_hip(*handle_p))
    return GB_OK;
  return gbi_library_open(&gbi_library_hip, handle_p, path_p, error);
}

/* The file that the functions are in, not the one they were looked up through.
 * The loader keeps the text. */
static const char *runtime_path(void *handle, const char *opened) {
  Dl_info info;
  void *at = dlsym(handle, "hipGetDeviceCount");
  return at && dladdr(at, &info) && info.dli_fname ? info.dli_fname : opened;
}

static gb_status bind_runtime(void *handle, gb_error *error) {
  const gbi_library_symbol symbols[] = {
#define ROW(name, needed, arguments) {#name, (void **)&api.name, needed},
      GBI_HIP_FUNCTIONS(ROW)
#undef ROW
          {"hipGetErrorName", (void **)&api.hipGetErrorName, true},
      {"hipGetErrorString", (void **)&api.hipGetErrorString, true},
  };
  return gbi_library_bind(handle, runtime.path, symbols, GBI_COUNT(symbols),
                          "ROCm 6.0 or later", error);
}

static gb_status start_locked(gb_error *error) {
  void *handle;
  int version = 0;
  if (runtime.ready) return GB_OK;
  const char *opened;
  GBI_TRY(find_runtime(&handle, &opened, error));
  runtime.path = runtime_path(handle, opened);
  GBI_TRY(bind_runtime(handle, error));
  if (worked(api.hipDriverGetVersion(&version)) && version < OLDEST)
    return gbi_fail(error, GB_ERR_UNSUPPORTED,
                    "the HIP runtime %s is of version %d.%d. Needed is ROCm "
                    "6.0 or later",
                    runtime.path, version / 10000000, version / 100000 % 100);
  runtime.ready = true;
  GBI_INFO("device", "HIP runtime %s", runtime.path);
  return GB_OK;
}

static gb_status start(const char **way_p, gb_error *error) {
  pthread_mutex_lock(&runtime.lock);
  gb_status status = start_locked(error);
  if (status == GB_OK && way_p) *way_p = runtime.path;
  pthread_mutex_unlock(&runtime.lock);
  return status;
}

static gb_status count_devices(int *count_p, const char **way_p,
                               gb_error *error) {
  int count = 0;
  GBI_TRY(start(way_p, error));
  gbi_hip_result result = api.hipGetDeviceCount(&count);
  if (result == GBI_HIP_ERROR_NO_DEVICE) {
    (void)api.hipGetLastError();
    count = 0;
  } else if (result) {
    return fail_as(GB_ERR_UNSUPPORTED, NULL, result, "count the AMD GPUs", NULL,
                   error);
  }
  *count_p = count;
  return GB_OK;
}

/* ---- facts ---- */

static void look_arch(int index, gbi_device_facts *facts) {
  char properties[GBI_HIP_PROPERTIES_BYTES] = {0};
  if (!api.hipGetDevicePropertiesR0600) return;
  if (!worked(api.hipGetDevicePropertiesR0600(
          (struct hipDeviceProp_tR0600 *)properties, index)))
    return;
  gbi_text out;
  gbi_text_init(&out, facts->arch, sizeof facts->arch);
  gbi_text_add(&out, "%.*s", GBI_HIP_PROPERTIES_ARCH_BYTES,
               properties + GBI_HIP_PROPERTIES_ARCH_AT);
}

static gb_status look(int index, gbi_device_facts *facts, gb_error *error) {
  size_t bytes = 0;
  GBI_TRY(failed(NULL, api.hipDeviceTotalMem(&bytes, index), "reach an AMD GPU",
                 NULL, error));
  facts->memory_bytes = bytes;
  if (!worked(api.hipDeviceGetName(facts->name, sizeof facts->name, index)))
    facts->name[0] = 0;
  if (!worked(api.hipDeviceGetPCIBusId(facts->pci, sizeof facts->pci, index)))
    facts->pci[0] = 0;
  gbi_pci_text(facts->pci);
  uint8_t uuid[16] = {0};
  if (api.hipDeviceGetUuid &&
      worked(api.hipDeviceGetUuid((struct hipUUID_t *)uuid, index)))
    gbi_uuid_text(uuid, "GPU-", facts->uuid, sizeof facts->uuid);
  look_arch(index, facts);
  (void)worked(api.hipDriverGetVersion(&facts->driver));
  int can_wait = 0;
  bool told = worked(api.hipDeviceGetAttribute(
      &can_wait, GBI_HIP_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE, index));
  facts->flags =
      told && can_wait && api.hipStreamWaitValue64 && api.hipStreamWriteValue64;
  facts->captures_flags = facts->flags && facts->driver >= CAPTURES_FLAGS;
  return GB_OK;
}

/* ---- calls on a device ---- */

/* *before_p: the thread's current device, for leave. */
/* Whose device is the thread's between enter_thread and leave_thread, and which
 * was before. */
static _Thread_local const gbi_device *inside;
static _Thread_local int outside;

static gb_status enter(gbi_device *h, int *before_p, gb_error *error) {
  *before_p = h->index;
  if (inside == h) return GB_OK;
  GBI_TRY(failed(h, api.hipGetDevice(before_p), "see the current device", NULL,
                 error));
  if (*before_p == h->index) return GB_OK;
  return failed(h, api.hipSetDevice(h->index), "use the device", NULL, error);
}

static void back(gbi_device *h, int before) {
  if (before != h->index) (void)worked(api.hipSetDevice(before));
}

/* The result of a call is turned to text before the current device is set back:
 * the last error is that call's. */
static gb_status leave(gbi_device *h, int before, gbi_hip_result result,
                       const char *doing, gb_error *error) {
  gb_status status = failed(h, result, doing, NULL, error);
  back(h, before);
  return status;
}

/* The same where memory was asked for. */
static gb_status leave_sized(gbi_device *h, int before, gbi_hip_result result,
                             const char *what, size_t bytes,
                             const char *way_out, gb_error *error) {
  char doing[96];
  snprintf(doing, sizeof doing, "%s %zu bytes", what, bytes);
  gb_status status =
      failed(h, result, doing,
             result == GBI_HIP_ERROR_OUT_OF_MEMORY ? way_out : NULL, error);
  back(h, before);
  return status;
}

static const char device_way_out[] = "rocm-smi shows who uses its memory";
static const char pinned_way_out[] =
    "Pinned memory is host memory that cannot be swapped: look at the memory "
    "that is free and at the container's limit";

static gbi_hip_result make_stream(gbi_hip_stream *stream_p) {
  int least = 0, greatest = 0;
  if (GBI_FAULT("gpu.blocking") == GBI_FAULT_FAIL)
    return api.hipStreamCreateWithFlags(stream_p, 0);
  if (api.hipDeviceGetStreamPriorityRange && api.hipStreamCreateWithPriority &&
      worked(api.hipDeviceGetStreamPriorityRange(&least, &greatest)) &&
      worked(api.hipStreamCreateWithPriority(
          stream_p, GBI_HIP_STREAM_NON_BLOCKING, greatest)))
    return GBI_HIP_SUCCESS;
  return api.hipStreamCreateWithFlags(stream_p, GBI_HIP_STREAM_NON_BLOCKING);
}

static gb_status stream_new(gbi_device *device, gbi_stream *stream_p,
                            gb_error *error) {
  int before;
  gbi_hip_stream stream = NULL;
  GBI_TRY(enter(device, &before, error));
  gbi_hip_result result = make_stream(&stream);
  GBI_TRY(leave(device, before, result, "make a stream", error));
  *stream_p = stream;
  return GB_OK;
}

static void stream_free(gbi_device *device, gbi_stream stream) {
  int before;
  if (!stream || enter(device, &before, NULL) != GB_OK) return;
  (void)worked(api.hipStreamDestroy(stream));
  back(device, before);
}

static gb_status stream_query(gbi_device *device, gbi_stream stream,
                              gb_error *error) {
  int before;
  GBI_TRY(enter(device, &before, error));
  gbi_hip_result result = api.hipStreamQuery(stream);
  return leave(device, before, result, "finish what is on a stream", error);
}

static gb_status stream_sync(gbi_device *device, gbi_stream stream,
                             gb_error *error) {
  int before;
  GBI_TRY(enter(device, &before, error));
  gbi_hip_result result = api.hipStreamSynchronize(stream);
  return leave(device, before, result, "wait for a stream", error);
}

static gb_status stream_captures(gbi_device *device, gbi_stream stream,
                                 bool *captures_p, gb_error *error) {
  int before;
  unsigned int capture = GBI_HIP_CAPTURE_STATUS_NONE;
  GBI_TRY(enter(device, &before, error));
  gbi_hip_result result = api.hipStreamIsCapturing(stream, &capture);
  GBI_TRY(
      leave(device, before, result, "see whether a stream captures", error));
  *captures_p = capture != GBI_HIP_CAPTURE_STATUS_NONE;
  return GB_OK;
}

static gb_status event_new(gbi_device *device, gbi_event *event_p,
                           gb_error *error) {
  int before;
  gbi_hip_event event = NULL;
  GBI_TRY(enter(device, &before, error));
  gbi_hip_result result =
      api.hipEventCreateWithFlags(&event, GBI_HIP_EVENT_DISABLE_TIMING);
  GBI_TRY(leave(device, before, result, "make an event", error));
  *event_p = event;
  return GB_OK;
}

static void event_free(gbi_device *device, gbi_event event) {
  int before;
  if (!event || enter(device, &before, NULL) != GB_OK) return;
  (void)worked(api.hipEventDestroy(event));
  back(device, before);
}

static gb_status event_record(gbi_device *device, gbi_event event,
                              gbi_stream stream, gb_error *error) {
  int before;
  GBI_TRY(enter(device, &before, error));
  gbi_hip_result result = api.hipEventRecord(event, stream);
  return leave(device, before, result, "record an event", error);
}

static gb_status event_query(gbi_device *device, gbi_event event,
                             gb_error *error) {
  int before;
  GBI_TRY(enter(device, &before, error));
  gbi_hip_result result = api.hipEventQuery(event);
  return leave(device, before, result, "reach an event", error);
}

static gb_status stream_wait(gbi_device *device, gbi_stream stream,
                             gbi_event event, gb_error *error) {
  int before;
  GBI_TRY(enter(device, &before, error));
  gbi_hip_result result = api.hipStreamWaitEvent(stream, event, 0);
  return leave(device, before, result, "make a stream wait for an event",
               error);
}

/* ---- memory ---- */

static gb_status memory_new(gbi_device *device, size_t bytes, void **memory_p,
                            gb_error *error) {
  int before;
  void *memory = NULL;
  GBI_TRY(enter(device, &before, error));
  gbi_hip_result result = api.hipMalloc(&memory, bytes ? bytes : 1);
  GBI_TRY(leave_sized(device, before, result, "get device memory of", bytes,
                      device_way_out, error));
  *memory_p = memory;
  return GB_OK;
}

static void memory_free(gbi_device *device, void *memory) {
  int before;
  if (!memory || enter(device, &before, NULL) != GB_OK) return;
  (void)worked(api.hipFree(memory));
  back(device, before);
}

/* Coherent is asked for by name: what is meant without it depends on the
 * version and on HIP_HOST_COHERENT. */
static gb_status pinned_new(gbi_device *device, size_t bytes, void **host_p,
                            void **device_p, gb_error *error) {
  int before;
  void *whole = NULL, *at = NULL;
  size_t room;
  gbi_hip_result result = GBI_HIP_ERROR_OUT_OF_MEMORY;
  GBI_TRY(enter(device, &before, error));
  if (gbi_pinned_room(bytes, &room))
    result = api.hipHostMalloc(
        &whole, room,
        GBI_HIP_HOST_PORTABLE | GBI_HIP_HOST_MAPPED | GBI_HIP_HOST_COHERENT);
  if (!result) {
    result = api.hipHostGetDevicePointer(&at, whole, 0);
    if (result) (void)api.hipHostFree(whole);
  }
  GBI_TRY(leave_sized(device, before, result, "get pinned memory of", bytes,
                      pinned_way_out, error));
  *host_p = gbi_pinned_place(whole, bytes);
  *device_p = (char *)at + ((char *)*host_p - (char *)whole);
  return GB_OK;
}

static void pinned_free(gbi_device *device, void *host) {
  int before;
  if (!host || enter(device, &before, NULL) != GB_OK) return;
  (void)worked(api.hipHostFree(gbi_pinned_whole(host)));
  back(device, before);
}

static gb_status adopt(gbi_device *device, void *host, size_t bytes,
                       void **device_p, gb_error *error) {
  int before;
  void *at = NULL;
  GBI_TRY(enter(device, &before, error));
  gbi_hip_result result = api.hipHostRegister(
      host, bytes, GBI_HIP_HOST_PORTABLE | GBI_HIP_HOST_MAPPED);
  if (!result) {
    result = api.hipHostGetDevicePointer(&at, host, 0);
    if (result) (void)api.hipHostUnregister(host);
  }
  GBI_TRY(leave_sized(device, before, result, "pin memory of", bytes,
                      pinned_way_out, error));
  *device_p = at;
  return GB_OK;
}

static void unadopt(gbi_device *device, void *host) {
  int before;
  if (!host || enter(device, &before, NULL) != GB_OK) return;
  (void)worked(api.hipHostUnregister(host));
  back(device, before);
}

static gb_status copy_as(gbi_device *h, void *to, const void *from,
                         size_t bytes, unsigned int kind, gbi_stream stream,
                         const char *what, gb_error *error) {
  int before;
  if (!bytes) return GB_OK;
  GBI_TRY(enter(h, &before, error));
  gbi_hip_result result = api.hipMemcpyAsync(to, from, bytes, kind, stream);
  return leave_sized(h, before, result, what, bytes, NULL, error);
}

static gb_status copy_out(gbi_device *device, void *host, const void *memory,
                          size_t bytes, gbi_stream stream, gb_error *error) {
  return copy_as(device, host, memory, bytes, GBI_HIP_COPY_DEVICE_TO_HOST,
                 stream, "copy to the host", error);
}

static gb_status copy_in(gbi_device *device, void *memory, const void *host,
                         size_t bytes, gbi_stream stream, gb_error *error) {
  return copy_as(device, memory, host, bytes, GBI_HIP_COPY_HOST_TO_DEVICE,
                 stream, "copy from the host", error);
}

static gb_status copy(gbi_device *device, void *to, const void *from,
                      size_t bytes, gbi_stream stream, gb_error *error) {
  return copy_as(device, to, from, bytes, GBI_HIP_COPY_DEVICE_TO_DEVICE, stream,
                 "copy", error);
}

static gb_status no_flags(gbi_device *h, gb_error *error) {
  return gbi_fail(error, GB_ERR_UNSUPPORTED,
                  "amd GPU %d (%s) cannot wait for a word in memory: the HIP "
                  "runtime %s says so",
                  h->index, h->facts.name, runtime.path);
}

static gb_status wait_flag(gbi_device *device, void *flag_device,
                           uint64_t value, gbi_stream stream, gb_error *error) {
  int before;
  if (!device->facts.flags) return no_flags(device, error);
  GBI_TRY(enter(device, &before, error));
  gbi_hip_result result = api.hipStreamWaitValue64(
      stream, flag_device, value, GBI_HIP_WAIT_VALUE_GTE, UINT64_MAX);
  return leave(device, before, result, "make a stream wait for a flag", error);
}

static gb_status set_flag(gbi_device *device, void *flag_device, uint64_t value,
                          gbi_stream stream, gb_error *error) {
  int before;
  if (!device->facts.flags) return no_flags(device, error);
  GBI_TRY(enter(device, &before, error));
  gbi_hip_result result =
      api.hipStreamWriteValue64(stream, flag_device, value, 0);
  return leave(device, before, result, "make a stream raise a flag", error);
}

static gb_status memory_facts(gbi_device *device, const void *memory,
                              gbi_memory_facts *facts, gb_error *error) {
  int before;
  gbi_hip_pointer at = {.device = -1};
  GBI_TRY(enter(device, &before, error));
  gbi_hip_result result =
      api.hipPointerGetAttributes((struct hipPointerAttribute_t *)&at, memory);
  if (result == GBI_HIP_ERROR_INVALID_VALUE) {
    (void)worked(result);
    result = GBI_HIP_SUCCESS;
    at = (gbi_hip_pointer){.device = -1};
  }
  GBI_TRY(
      leave(device, before, result, "tell what memory a pointer is to", error));
  bool managed = at.is_managed || at.type == GBI_HIP_MEMORY_MANAGED;
  facts->kind = managed                            ? GBI_MEMORY_MANAGED
                : at.type == GBI_HIP_MEMORY_DEVICE ? GBI_MEMORY_DEVICE
                : at.type == GBI_HIP_MEMORY_HOST   ? GBI_MEMORY_PINNED
                                                   : GBI_MEMORY_PAGEABLE;
  bool on_device = managed || at.type == GBI_HIP_MEMORY_DEVICE;
  facts->device = on_device && at.device >= 0 ? at.device : -1;
  return GB_OK;
}

/* ---- code ---- */

static gb_status module_load(gbi_device *device, const void *code,
                             gbi_module *module_p, gb_error *error) {
  int before;
  gbi_hip_module module = NULL;
  GBI_TRY(enter(device, &before, error));
  gbi_hip_result result = api.hipModuleLoadData(&module, code);
  GBI_TRY(leave(device, before, result, "load code", error));
  *module_p = module;
  return GB_OK;
}

static void module_free(gbi_device *device, gbi_module module) {
  int before;
  if (!module || enter(device, &before, NULL) != GB_OK) return;
  (void)worked(api.hipModuleUnload(module));
  back(device, before);
}

static gb_status module_function(gbi_device *device, gbi_module module,
                                 const char *name, gbi_function *function_p,
                                 gb_error *error) {
  int before;
  char doing[96];
  gbi_hip_function function = NULL;
  snprintf(doing, sizeof doing, "find the kernel %s", name);
  GBI_TRY(enter(device, &before, error));
  gbi_hip_result result = api.hipModuleGetFunction(&function, module, name);
  GBI_TRY(leave(device, before, result, doing, error));
  *function_p = function;
  return GB_OK;
}

static gb_status launch(gbi_device *device, gbi_function function,
                        unsigned blocks, unsigned threads, void **arguments,
                        gbi_stream stream, gb_error *error) {
  int before;
  GBI_TRY(enter(device, &before, error));
  gbi_hip_result result = api.hipModuleLaunchKernel(
      function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, NULL);
  return leave(device, before, result, "launch a kernel", error);
}

static gb_status enter_thread(gbi_device *device, gb_error *error) {
  GBI_TRY(enter(device, &outside, error));
  inside = device;
  return GB_OK;
}

static void leave_thread(gbi_device *device) {
  inside = NULL;
  back(device, outside);
}

static void own_thread(gbi_device *device) {
  unsigned int mode = GBI_HIP_CAPTURE_MODE_RELAXED;
  (void)device;
  (void)worked(api.hipThreadExchangeStreamCaptureMode(&mode));
}

static void swap_capture_mode(gbi_device *device, unsigned int *mode) {
  (void)device;
  (void)worked(api.hipThreadExchangeStreamCaptureMode(mode));
}

static gbi_hip_result tie_to_graph(gbi_hip_stream stream,
                                   void (*gone)(void *arg), void *arg) {
  unsigned int state = GBI_HIP_CAPTURE_STATUS_NONE;
  unsigned long long id = 0;
  struct ihipGraph *graph = NULL;
  struct hipGraphNode *const *nodes = NULL;
  struct hipUserObject *object = NULL;
  size_t count = 0;
  gbi_hip_result result = api.hipStreamGetCaptureInfo_v2(
      stream, &state, &id, &graph, &nodes, &count);
  if (!result && !graph) result = GBI_HIP_ERROR_INVALID_VALUE;
  if (!result)
    result = api.hipUserObjectCreate(&object, arg, gone, 1,
                                     GBI_HIP_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  if (!result)
    result = api.hipGraphRetainUserObject(graph, object, 1,
                                          GBI_HIP_GRAPH_USER_OBJECT_MOVE);
  return result;
}

static gb_status at_end_of_graph(gbi_device *device, gbi_stream stream,
                                 void (*gone)(void *arg), void *arg,
                                 gb_error *error) {
  int before;
  if (!api.hipStreamGetCaptureInfo_v2 || !api.hipUserObjectCreate ||
      !api.hipGraphRetainUserObject)
    return gbi_fail(error, GB_ERR_UNSUPPORTED,
                    "the HIP runtime %s does not tell when a graph ends",
                    runtime.path);
  GBI_TRY(enter(device, &before, error));
  gbi_hip_result result = tie_to_graph(stream, gone, arg);
  return leave(device, before, result, "keep memory with a graph", error);
}

static void close_device(gbi_device *device) {
  free(device);
}

static const gbi_device_ops ops = {
    .vendor = GBI_AMD,
    .outstanding_most = 64,
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
  gbi_device *h = gbi_calloc(1, sizeof *h);
  if (!h) return gbi_fail(error, GB_ERR_MEMORY, "out of memory");
  h->ops = &ops;
  h->index = index;
  gb_status status = look(index, &h->facts, error);
  if (status != GB_OK) {
    free(h);
    return status;
  }
  *device_p = h;
  return GB_OK;
}

const gbi_vendor_driver gbi_hip_driver = {
    .visible =
        (const char *const[]){"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
                              "CUDA_VISIBLE_DEVICES", NULL},
    .count = count_devices,
    .look = look,
    .open = open_device,
};
