/* libamdhip64.so.6: streams, events, copies, gates, code, capture. */
#include "fakes/hip_fake.h"

#include <stdlib.h>

struct ihipModule_t {
  int device;
  bool compiled; /* else what tests load: any bytes */
};

/* High priority has hardware queues of its own. */
static gbi_hip_result stream_new(gbi_hip_stream *stream_p, unsigned int flags,
                                 int priority, int how) {
  if (flags > GBI_HIP_STREAM_NON_BLOCKING)
    return fake_hip_result(GBI_HIP_ERROR_INVALID_VALUE);
  fake_stream *stream;
  fake_result result =
      fake_stream_new(fake_hip_device(), !flags, priority, flags, how, &stream);
  if (!result) *stream_p = (gbi_hip_stream)stream;
  return fake_hip_result(fake_code(result));
}

gbi_hip_result hipStreamCreate(gbi_hip_stream *stream) {
  FAKE_HIP_ENTER();
  return stream_new(stream, 0, 0, FAKE_ANY_QUEUE);
}

gbi_hip_result hipStreamCreateWithFlags(gbi_hip_stream *stream,
                                        unsigned int flags) {
  FAKE_HIP_ENTER();
  return stream_new(stream, flags, 0, FAKE_ANY_QUEUE);
}

gbi_hip_result hipStreamCreateWithPriority(gbi_hip_stream *stream,
                                           unsigned int flags, int priority) {
  FAKE_HIP_ENTER();
  return stream_new(stream, flags, priority,
                    priority < 0 ? FAKE_HIGH_QUEUE : FAKE_ANY_QUEUE);
}

/* Blocking, whatever one may wish. */
gbi_hip_result hipExtStreamCreateWithCUMask(gbi_hip_stream *stream,
                                            uint32_t words,
                                            const uint32_t *mask) {
  FAKE_HIP_ENTER();
  return stream_new(stream, 0, 0, mask ? FAKE_OWN_QUEUE : FAKE_ANY_QUEUE);
}

gbi_hip_result hipDeviceGetStreamPriorityRange(int *least, int *greatest) {
  FAKE_HIP_ENTER();
  if (least) *least = 1;
  if (greatest) *greatest = -1;
  return GBI_HIP_SUCCESS;
}

gbi_hip_result hipStreamDestroy(gbi_hip_stream stream) {
  FAKE_HIP_DO(fake_stream_free((fake_stream *)stream));
}

gbi_hip_result hipStreamQuery(gbi_hip_stream stream) {
  FAKE_HIP_DO(fake_stream_query(fake_hip_device(), stream));
}

gbi_hip_result hipStreamSynchronize(gbi_hip_stream stream) {
  FAKE_HIP_DO(fake_stream_sync(fake_hip_device(), stream));
}

static unsigned int look(gbi_hip_stream handle, fake_stream *copy) {
  fake_lock();
  fake_stream *stream = fake_stream_at_locked(fake_hip_device(), handle);
  if (stream) *copy = *stream;
  fake_unlock();
  return fake_code(stream ? FAKE_OK : FAKE_BAD_HANDLE);
}

gbi_hip_result hipStreamGetFlags(gbi_hip_stream stream, unsigned int *flags) {
  FAKE_HIP_ENTER();
  fake_stream copy = {0};
  unsigned int code = look(stream, &copy);
  *flags = copy.flags;
  return fake_hip_result(code);
}

gbi_hip_result hipStreamGetPriority(gbi_hip_stream stream, int *priority) {
  FAKE_HIP_ENTER();
  fake_stream copy = {0};
  unsigned int code = look(stream, &copy);
  *priority = copy.priority;
  return fake_hip_result(code);
}

gbi_hip_result hipStreamGetDevice(gbi_hip_stream stream,
                                  gbi_hip_device *device) {
  FAKE_HIP_ENTER();
  fake_stream copy = {0};
  unsigned int code = look(stream, &copy);
  *device = copy.device;
  return fake_hip_result(code);
}

static gbi_hip_result event_new(gbi_hip_event *event_p) {
  fake_event *event = NULL;
  fake_result result = fake_event_new(fake_hip_device(), &event);
  *event_p = (gbi_hip_event)event;
  return fake_hip_result(fake_code(result));
}

gbi_hip_result hipEventCreate(gbi_hip_event *event) {
  FAKE_HIP_ENTER();
  return event_new(event);
}

gbi_hip_result hipEventCreateWithFlags(gbi_hip_event *event,
                                       unsigned int flags) {
  FAKE_HIP_ENTER();
  return event_new(event);
}

gbi_hip_result hipEventDestroy(gbi_hip_event event) {
  FAKE_HIP_DO(fake_event_free(event));
}

gbi_hip_result hipEventRecord(gbi_hip_event event, gbi_hip_stream stream) {
  FAKE_HIP_DO(fake_event_record(fake_hip_device(), event, stream));
}

gbi_hip_result hipEventQuery(gbi_hip_event event) {
  FAKE_HIP_DO(fake_event_query(event));
}

gbi_hip_result hipEventSynchronize(gbi_hip_event event) {
  FAKE_HIP_DO(fake_event_sync(event));
}

gbi_hip_result hipEventElapsedTime(float *ms, gbi_hip_event start,
                                   gbi_hip_event end) {
  FAKE_HIP_DO(fake_event_elapsed(start, end, ms));
}

gbi_hip_result hipStreamWaitEvent(gbi_hip_stream stream, gbi_hip_event event,
                                  unsigned int flags) {
  FAKE_HIP_DO(fake_stream_wait(fake_hip_device(), stream, event));
}

/* True when both sides are what the kind of copy says; the runtime finds out by
 * itself for kind 4. */
static bool kind_fits(const void *to, const void *from, size_t bytes,
                      unsigned int kind) {
  if (!bytes || kind > GBI_HIP_COPY_DEVICE_TO_DEVICE) return true;
  bool to_known = fake_memory_kind_of(to) != FAKE_PAGEABLE;
  bool from_known = fake_memory_kind_of(from) != FAKE_PAGEABLE;
  bool to_host = fake_memory_kind_of(to) != FAKE_DEVICE;
  bool from_host = fake_memory_kind_of(from) != FAKE_DEVICE;
  switch (kind) {
    case GBI_HIP_COPY_HOST_TO_DEVICE: return to_known && from_host;
    case GBI_HIP_COPY_DEVICE_TO_HOST: return to_host && from_known;
    case GBI_HIP_COPY_DEVICE_TO_DEVICE: return to_known && from_known;
    default: return to_host && from_host;
  }
}

gbi_hip_result hipMemcpyAsync(void *to, const void *from, size_t bytes,
                              unsigned int kind, gbi_hip_stream stream) {
  FAKE_HIP_ENTER();
  if (kind > 4 || !kind_fits(to, from, bytes, kind))
    return fake_hip_result(GBI_HIP_ERROR_INVALID_VALUE);
  return fake_hip_result(
      fake_code(fake_copy(fake_hip_device(), to, from, bytes, stream)));
}

gbi_hip_result hipMemcpy(void *to, const void *from, size_t bytes,
                         unsigned int kind) {
  FAKE_HIP_ENTER();
  if (kind > 4 || !kind_fits(to, from, bytes, kind))
    return fake_hip_result(GBI_HIP_ERROR_INVALID_VALUE);
  return fake_hip_result(
      fake_code(fake_copy_now(fake_hip_device(), to, from, bytes)));
}

gbi_hip_result hipMemset(void *to, int value, size_t bytes) {
  FAKE_HIP_DO(fake_fill(fake_hip_device(), to, (uint8_t)value, 1, bytes, NULL));
}

gbi_hip_result hipMemsetAsync(void *to, int value, size_t bytes,
                              gbi_hip_stream stream) {
  FAKE_HIP_DO(
      fake_fill(fake_hip_device(), to, (uint8_t)value, 1, bytes, stream));
}

static fake_result wait_value(gbi_hip_stream stream, void *address,
                              uint64_t value, int bytes, unsigned int flags,
                              uint64_t mask) {
  if (flags > FAKE_NOR) return FAKE_BAD_VALUE;
  fake_value wanted = {address, value, mask, bytes, (fake_compare)flags};
  return fake_wait_value(fake_hip_device(), stream, &wanted);
}

gbi_hip_result hipStreamWaitValue32(gbi_hip_stream stream, void *address,
                                    uint32_t value, unsigned int flags,
                                    uint32_t mask) {
  FAKE_HIP_DO(wait_value(stream, address, value, 4, flags, mask));
}

gbi_hip_result hipStreamWaitValue64(gbi_hip_stream stream, void *address,
                                    uint64_t value, unsigned int flags,
                                    uint64_t mask) {
  FAKE_HIP_DO(wait_value(stream, address, value, 8, flags, mask));
}

static fake_result write_value(gbi_hip_stream stream, void *address,
                               uint64_t value, int bytes, unsigned int flags) {
  if (flags) return FAKE_BAD_VALUE;
  fake_value written = {address, value, ~(uint64_t)0, bytes, FAKE_EQ};
  return fake_write_value(fake_hip_device(), stream, &written);
}

gbi_hip_result hipStreamWriteValue32(gbi_hip_stream stream, void *address,
                                     uint32_t value, unsigned int flags) {
  FAKE_HIP_DO(write_value(stream, address, value, 4, flags));
}

gbi_hip_result hipStreamWriteValue64(gbi_hip_stream stream, void *address,
                                     uint64_t value, unsigned int flags) {
  FAKE_HIP_DO(write_value(stream, address, value, 8, flags));
}

gbi_hip_result hipLaunchHostFunc(gbi_hip_stream stream, void (*run)(void *),
                                 void *arg) {
  FAKE_HIP_DO(fake_host_function(fake_hip_device(), stream, run, arg));
}

gbi_hip_result hipModuleLoadData(struct ihipModule_t **module_p,
                                 const void *image) {
  FAKE_HIP_ENTER();
  if (!image) return fake_hip_result(GBI_HIP_ERROR_INVALID_VALUE);
  bool compiled = fake_is_code(image);
  if (compiled && !fake_code_fits(image, "gfx942:sramecc+:xnack-"))
    return fake_hip_result(GBI_HIP_ERROR_NO_BINARY_FOR_GPU);
  struct ihipModule_t *module = fake_new(sizeof *module);
  module->device = fake_hip_device();
  module->compiled = compiled;
  *module_p = module;
  return GBI_HIP_SUCCESS;
}

gbi_hip_result hipModuleGetFunction(struct ihipModuleSymbol_t **function,
                                    struct ihipModule_t *module,
                                    const char *name) {
  FAKE_HIP_ENTER();
  if (!module || !name) return fake_hip_result(GBI_HIP_ERROR_INVALID_VALUE);
  *function = (struct ihipModuleSymbol_t *)(module->compiled
                                                ? fake_kernel_built_in(name)
                                                : fake_kernel_named(name));
  return fake_hip_result(fake_code(*function ? FAKE_OK : FAKE_NOT_FOUND));
}

gbi_hip_result hipModuleUnload(struct ihipModule_t *module) {
  FAKE_HIP_ENTER();
  free(module);
  return GBI_HIP_SUCCESS;
}

gbi_hip_result hipModuleLaunchKernel(struct ihipModuleSymbol_t *function,
                                     unsigned int grid_x, unsigned int grid_y,
                                     unsigned int grid_z, unsigned int block_x,
                                     unsigned int block_y, unsigned int block_z,
                                     unsigned int shared_bytes,
                                     gbi_hip_stream stream, void **params,
                                     void **extra) {
  FAKE_HIP_ENTER();
  if (extra) return fake_hip_result(GBI_HIP_ERROR_NOT_SUPPORTED);
  fake_launch launch = {{grid_x, grid_y, grid_z},
                        {block_x, block_y, block_z},
                        shared_bytes,
                        NULL};
  return fake_hip_result(fake_code(
      fake_kernel_launch(fake_hip_device(), stream,
                         (const fake_kernel *)function, &launch, params)));
}

gbi_hip_result hipStreamIsCapturing(gbi_hip_stream stream,
                                    unsigned int *state) {
  FAKE_HIP_ENTER();
  int now = 0;
  fake_result result =
      fake_capture_state(fake_hip_device(), stream, &now, NULL, NULL);
  *state = (unsigned int)now;
  return fake_hip_result(fake_code(result));
}

static unsigned int capture_info(gbi_hip_stream stream, unsigned int *state,
                                 unsigned long long *id, fake_graph **graph) {
  int now = 0;
  uint64_t number = 0;
  fake_result result =
      fake_capture_state(fake_hip_device(), stream, &now, &number, graph);
  *state = (unsigned int)now;
  if (id) *id = number;
  return fake_code(result);
}

gbi_hip_result hipStreamGetCaptureInfo(gbi_hip_stream stream,
                                       unsigned int *state,
                                       unsigned long long *id) {
  FAKE_HIP_ENTER();
  return fake_hip_result(capture_info(stream, state, id, NULL));
}

gbi_hip_result hipStreamGetCaptureInfo_v2(gbi_hip_stream stream,
                                          unsigned int *state,
                                          unsigned long long *id,
                                          struct ihipGraph **graph,
                                          struct hipGraphNode *const **needs,
                                          size_t *count) {
  FAKE_HIP_ENTER();
  fake_graph *captured = NULL;
  unsigned int code = capture_info(stream, state, id, &captured);
  if (graph) *graph = (struct ihipGraph *)captured;
  if (needs) *needs = NULL;
  if (count) *count = 0;
  return fake_hip_result(code);
}

gbi_hip_result hipUserObjectCreate(struct hipUserObject **object, void *arg,
                                   void (*destroy)(void *), unsigned int refs,
                                   unsigned int flags) {
  FAKE_HIP_ENTER();
  if (!destroy || !refs || flags != 1)
    return fake_hip_result(GBI_HIP_ERROR_INVALID_VALUE);
  *object = (struct hipUserObject *)fake_object_new(destroy, arg, (int)refs);
  return GBI_HIP_SUCCESS;
}

gbi_hip_result hipUserObjectRelease(struct hipUserObject *object,
                                    unsigned int count) {
  FAKE_HIP_ENTER();
  fake_object_drop((fake_object *)object, (int)count);
  return GBI_HIP_SUCCESS;
}

gbi_hip_result hipGraphRetainUserObject(struct ihipGraph *graph,
                                        struct hipUserObject *object,
                                        unsigned int count,
                                        unsigned int flags) {
  enum { MOVE = 1 };
  FAKE_HIP_ENTER();
  if (!graph || !object || flags > MOVE)
    return fake_hip_result(GBI_HIP_ERROR_INVALID_VALUE);
  if (flags != MOVE) fake_object_keep((fake_object *)object, (int)count);
  fake_graph_hold((fake_graph *)graph, (fake_object *)object, (int)count);
  return GBI_HIP_SUCCESS;
}

gbi_hip_result hipThreadExchangeStreamCaptureMode(unsigned int *mode) {
  FAKE_HIP_ENTER();
  if (*mode > 2) return fake_hip_result(GBI_HIP_ERROR_INVALID_VALUE);
  *mode = (unsigned int)fake_capture_mode_exchange((int)*mode);
  return GBI_HIP_SUCCESS;
}

gbi_hip_result hipStreamBeginCapture(gbi_hip_stream stream, unsigned int mode) {
  FAKE_HIP_DO(fake_capture_begin(fake_hip_device(), stream, (int)mode));
}

gbi_hip_result hipStreamEndCapture(gbi_hip_stream stream,
                                   struct ihipGraph **graph) {
  FAKE_HIP_ENTER();
  fake_graph *captured = NULL;
  fake_result result = fake_capture_end(fake_hip_device(), stream, &captured);
  *graph = (struct ihipGraph *)captured;
  return fake_hip_result(fake_code(result));
}

gbi_hip_result hipGraphInstantiate(struct hipGraphExec **exec,
                                   struct ihipGraph *graph, void **node,
                                   char *log, size_t log_bytes) {
  FAKE_HIP_ENTER();
  if (!graph) return fake_hip_result(GBI_HIP_ERROR_INVALID_VALUE);
  fake_graph *copy = NULL;
  fake_result result = fake_graph_copy((fake_graph *)graph, &copy);
  *exec = (struct hipGraphExec *)copy;
  return fake_hip_result(fake_code(result));
}

gbi_hip_result hipGraphLaunch(struct hipGraphExec *exec,
                              gbi_hip_stream stream) {
  FAKE_HIP_ENTER();
  if (!exec) return fake_hip_result(GBI_HIP_ERROR_INVALID_VALUE);
  return fake_hip_result(fake_code(
      fake_graph_launch(fake_hip_device(), (fake_graph *)exec, stream)));
}

gbi_hip_result hipGraphDestroy(struct ihipGraph *graph) {
  FAKE_HIP_ENTER();
  if (!graph) return fake_hip_result(GBI_HIP_ERROR_INVALID_VALUE);
  fake_graph_free((fake_graph *)graph);
  return GBI_HIP_SUCCESS;
}

gbi_hip_result hipGraphExecDestroy(struct hipGraphExec *exec) {
  FAKE_HIP_ENTER();
  if (!exec) return fake_hip_result(GBI_HIP_ERROR_INVALID_VALUE);
  fake_graph_free((fake_graph *)exec);
  return GBI_HIP_SUCCESS;
}
