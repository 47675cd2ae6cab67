/* libcuda.so.1: streams, events, copies, gates, code, capture. */
#include "fakes/cuda_fake.h"

#include <stdlib.h>

struct CUmod_st {
  int device;
  bool compiled; /* else what tests load: any bytes */
};

static void *at(gbi_cu_address address) {
  return (void *)(uintptr_t)address;
}

static gbi_cu_result stream_new(int device, gbi_cu_stream *stream_p,
                                unsigned int flags, int priority) {
  if (flags & ~(unsigned)GBI_CU_STREAM_NON_BLOCKING)
    return GBI_CU_ERROR_INVALID_VALUE;
  fake_stream *stream;
  fake_result result =
      fake_stream_new(device, !flags, priority, flags, FAKE_ANY_QUEUE, &stream);
  if (!result) *stream_p = (gbi_cu_stream)stream;
  return fake_code(result);
}

gbi_cu_result cuStreamCreate(gbi_cu_stream *stream, unsigned int flags) {
  int device;
  FAKE_CU_ENTER(&device);
  return stream_new(device, stream, flags, 0);
}

gbi_cu_result cuStreamCreateWithPriority(gbi_cu_stream *stream,
                                         unsigned int flags, int priority) {
  int device;
  FAKE_CU_ENTER(&device);
  return stream_new(device, stream, flags, priority);
}

gbi_cu_result cuStreamDestroy_v2(gbi_cu_stream stream) {
  FAKE_CU_ENTER(NULL);
  return fake_code(fake_stream_free((fake_stream *)stream));
}

gbi_cu_result cuStreamQuery(gbi_cu_stream stream) {
  int device;
  FAKE_CU_ENTER(&device);
  return fake_code(fake_stream_query(device, stream));
}

gbi_cu_result cuStreamSynchronize(gbi_cu_stream stream) {
  int device;
  FAKE_CU_ENTER(&device);
  return fake_code(fake_stream_sync(device, stream));
}

/* Copies what does not change. */
static gbi_cu_result look(int device, gbi_cu_stream handle, fake_stream *copy) {
  fake_lock();
  fake_stream *stream = fake_stream_at_locked(device, handle);
  if (stream) *copy = *stream;
  fake_unlock();
  return stream ? GBI_CU_SUCCESS : FAKE_CU_ERROR_INVALID_HANDLE;
}

gbi_cu_result cuStreamGetCtx(gbi_cu_stream stream, gbi_cu_context *context) {
  int device;
  FAKE_CU_ENTER(&device);
  fake_stream copy;
  gbi_cu_result code = look(device, stream, &copy);
  return code ? code : fake_cu_primary(copy.device, context);
}

gbi_cu_result cuStreamGetFlags(gbi_cu_stream stream, unsigned int *flags) {
  int device;
  FAKE_CU_ENTER(&device);
  fake_stream copy;
  gbi_cu_result code = look(device, stream, &copy);
  if (!code) *flags = copy.flags;
  return code;
}

gbi_cu_result cuStreamGetPriority(gbi_cu_stream stream, int *priority) {
  int device;
  FAKE_CU_ENTER(&device);
  fake_stream copy;
  gbi_cu_result code = look(device, stream, &copy);
  if (!code) *priority = copy.priority;
  return code;
}

gbi_cu_result cuEventCreate(gbi_cu_event *event_p, unsigned int flags) {
  int device;
  FAKE_CU_ENTER(&device);
  fake_event *event;
  fake_result result = fake_event_new(device, &event);
  if (!result) *event_p = (gbi_cu_event)event;
  return fake_code(result);
}

gbi_cu_result cuEventDestroy_v2(gbi_cu_event event) {
  FAKE_CU_ENTER(NULL);
  return fake_code(fake_event_free(event));
}

gbi_cu_result cuEventRecord(gbi_cu_event event, gbi_cu_stream stream) {
  int device;
  FAKE_CU_ENTER(&device);
  return fake_code(fake_event_record(device, event, stream));
}

gbi_cu_result cuEventQuery(gbi_cu_event event) {
  FAKE_CU_ENTER(NULL);
  return fake_code(fake_event_query(event));
}

gbi_cu_result cuEventSynchronize(gbi_cu_event event) {
  FAKE_CU_ENTER(NULL);
  return fake_code(fake_event_sync(event));
}

gbi_cu_result cuEventElapsedTime(float *ms, gbi_cu_event start,
                                 gbi_cu_event end) {
  FAKE_CU_ENTER(NULL);
  return fake_code(fake_event_elapsed(start, end, ms));
}

gbi_cu_result cuEventElapsedTime_v2(float *ms, gbi_cu_event start,
                                    gbi_cu_event end) {
  FAKE_CU_ENTER(NULL);
  return fake_code(fake_event_elapsed(start, end, ms));
}

gbi_cu_result cuStreamWaitEvent(gbi_cu_stream stream, gbi_cu_event event,
                                unsigned int flags) {
  int device;
  FAKE_CU_ENTER(&device);
  return fake_code(fake_stream_wait(device, stream, event));
}

/* The driver believes the name of the function: what is said to be the device's
 * must be known to it, what is said to be the host's must not be the device's.
 */
static bool is_device(gbi_cu_address address) {
  return fake_memory_kind_of(at(address)) != FAKE_PAGEABLE;
}
static bool is_host(const void *host) {
  return fake_memory_kind_of(host) != FAKE_DEVICE;
}

gbi_cu_result cuMemcpyDtoHAsync_v2(void *to, gbi_cu_address from, size_t bytes,
                                   gbi_cu_stream stream) {
  int device;
  FAKE_CU_ENTER(&device);
  if (bytes && (!is_device(from) || !is_host(to)))
    return GBI_CU_ERROR_INVALID_VALUE;
  return fake_code(fake_copy(device, to, at(from), bytes, stream));
}

gbi_cu_result cuMemcpyHtoDAsync_v2(gbi_cu_address to, const void *from,
                                   size_t bytes, gbi_cu_stream stream) {
  int device;
  FAKE_CU_ENTER(&device);
  if (bytes && (!is_device(to) || !is_host(from)))
    return GBI_CU_ERROR_INVALID_VALUE;
  return fake_code(fake_copy(device, at(to), from, bytes, stream));
}

gbi_cu_result cuMemcpyDtoDAsync_v2(gbi_cu_address to, gbi_cu_address from,
                                   size_t bytes, gbi_cu_stream stream) {
  int device;
  FAKE_CU_ENTER(&device);
  if (bytes && (!is_device(to) || !is_device(from)))
    return GBI_CU_ERROR_INVALID_VALUE;
  return fake_code(fake_copy(device, at(to), at(from), bytes, stream));
}

gbi_cu_result cuMemcpyAsync(gbi_cu_address to, gbi_cu_address from,
                            size_t bytes, gbi_cu_stream stream) {
  int device;
  FAKE_CU_ENTER(&device);
  return fake_code(fake_copy(device, at(to), at(from), bytes, stream));
}

gbi_cu_result cuMemcpy(gbi_cu_address to, gbi_cu_address from, size_t bytes) {
  int device;
  FAKE_CU_ENTER(&device);
  return fake_code(fake_copy_now(device, at(to), at(from), bytes));
}

gbi_cu_result cuMemcpyHtoD_v2(gbi_cu_address to, const void *from,
                              size_t bytes) {
  int device;
  FAKE_CU_ENTER(&device);
  if (bytes && (!is_device(to) || !is_host(from)))
    return GBI_CU_ERROR_INVALID_VALUE;
  return fake_code(fake_copy_now(device, at(to), from, bytes));
}

gbi_cu_result cuMemcpyDtoH_v2(void *to, gbi_cu_address from, size_t bytes) {
  int device;
  FAKE_CU_ENTER(&device);
  if (bytes && (!is_device(from) || !is_host(to)))
    return GBI_CU_ERROR_INVALID_VALUE;
  return fake_code(fake_copy_now(device, to, at(from), bytes));
}

gbi_cu_result cuMemcpyDtoD_v2(gbi_cu_address to, gbi_cu_address from,
                              size_t bytes) {
  int device;
  FAKE_CU_ENTER(&device);
  if (bytes && (!is_device(to) || !is_device(from)))
    return GBI_CU_ERROR_INVALID_VALUE;
  return fake_code(fake_copy_now(device, at(to), at(from), bytes));
}

gbi_cu_result cuMemsetD8Async(gbi_cu_address to, unsigned char value,
                              size_t count, gbi_cu_stream stream) {
  int device;
  FAKE_CU_ENTER(&device);
  return fake_code(fake_fill(device, at(to), value, 1, count, stream));
}

gbi_cu_result cuMemsetD32Async(gbi_cu_address to, unsigned int value,
                               size_t count, gbi_cu_stream stream) {
  int device;
  FAKE_CU_ENTER(&device);
  return fake_code(fake_fill(device, at(to), value, 4, count, stream));
}

enum { FLUSH = 1 << 30 };

static gbi_cu_result wait_value(int device, gbi_cu_stream stream,
                                gbi_cu_address address, uint64_t value,
                                int bytes, unsigned int flags) {
  unsigned int compare = flags & ~(unsigned)FLUSH;
  if (compare > FAKE_NOR) return GBI_CU_ERROR_INVALID_VALUE;
  fake_value wanted = {at(address), value, ~(uint64_t)0, bytes,
                       (fake_compare)compare};
  return fake_code(fake_wait_value(device, stream, &wanted));
}

static gbi_cu_result write_value(int device, gbi_cu_stream stream,
                                 gbi_cu_address address, uint64_t value,
                                 int bytes, unsigned int flags) {
  if (flags) return GBI_CU_ERROR_INVALID_VALUE;
  fake_value written = {at(address), value, ~(uint64_t)0, bytes, FAKE_EQ};
  return fake_code(fake_write_value(device, stream, &written));
}

gbi_cu_result cuStreamWaitValue32_v2(gbi_cu_stream stream,
                                     gbi_cu_address address, uint32_t value,
                                     unsigned int flags) {
  int device;
  FAKE_CU_ENTER(&device);
  return wait_value(device, stream, address, value, 4, flags);
}

gbi_cu_result cuStreamWaitValue64_v2(gbi_cu_stream stream,
                                     gbi_cu_address address, uint64_t value,
                                     unsigned int flags) {
  int device;
  FAKE_CU_ENTER(&device);
  return wait_value(device, stream, address, value, 8, flags);
}

gbi_cu_result cuStreamWriteValue32_v2(gbi_cu_stream stream,
                                      gbi_cu_address address, uint32_t value,
                                      unsigned int flags) {
  int device;
  FAKE_CU_ENTER(&device);
  return write_value(device, stream, address, value, 4, flags);
}

gbi_cu_result cuStreamWriteValue64_v2(gbi_cu_stream stream,
                                      gbi_cu_address address, uint64_t value,
                                      unsigned int flags) {
  int device;
  FAKE_CU_ENTER(&device);
  return write_value(device, stream, address, value, 8, flags);
}

static gbi_cu_result batch_one(int device, gbi_cu_stream stream,
                               const fake_cu_batch_op *op) {
  uint32_t half = (uint32_t)op->word[2], flags = (uint32_t)op->word[3];
  switch ((uint32_t)op->word[0]) {
    case 1: return wait_value(device, stream, op->word[1], half, 4, flags);
    case 2: return write_value(device, stream, op->word[1], half, 4, flags);
    case 4:
      return wait_value(device, stream, op->word[1], op->word[2], 8, flags);
    case 5:
      return write_value(device, stream, op->word[1], op->word[2], 8, flags);
    case 3: /* flush and barrier: what is done here is visible anyway */
    case 6: return GBI_CU_SUCCESS;
    default: return GBI_CU_ERROR_INVALID_VALUE;
  }
}

gbi_cu_result cuStreamBatchMemOp_v2(gbi_cu_stream stream, unsigned int count,
                                    fake_cu_batch_op *ops, unsigned int flags) {
  int device;
  FAKE_CU_ENTER(&device);
  if (count > 255 || flags) return GBI_CU_ERROR_INVALID_VALUE;
  for (unsigned int i = 0; i < count; i++) {
    gbi_cu_result code = batch_one(device, stream, &ops[i]);
    if (code) return code;
  }
  return GBI_CU_SUCCESS;
}

/* The plain names are an ABI that needs an option of the kernel module. */
gbi_cu_result cuStreamWaitValue32(gbi_cu_stream stream, gbi_cu_address address,
                                  uint32_t value, unsigned int flags) {
  FAKE_CU_ENTER(NULL);
  return GBI_CU_ERROR_NOT_SUPPORTED;
}
gbi_cu_result cuStreamWaitValue64(gbi_cu_stream stream, gbi_cu_address address,
                                  uint64_t value, unsigned int flags) {
  FAKE_CU_ENTER(NULL);
  return GBI_CU_ERROR_NOT_SUPPORTED;
}
gbi_cu_result cuStreamWriteValue32(gbi_cu_stream stream, gbi_cu_address address,
                                   uint32_t value, unsigned int flags) {
  FAKE_CU_ENTER(NULL);
  return GBI_CU_ERROR_NOT_SUPPORTED;
}
gbi_cu_result cuStreamWriteValue64(gbi_cu_stream stream, gbi_cu_address address,
                                   uint64_t value, unsigned int flags) {
  FAKE_CU_ENTER(NULL);
  return GBI_CU_ERROR_NOT_SUPPORTED;
}
gbi_cu_result cuStreamBatchMemOp(gbi_cu_stream stream, unsigned int count,
                                 fake_cu_batch_op *ops, unsigned int flags) {
  FAKE_CU_ENTER(NULL);
  return GBI_CU_ERROR_NOT_SUPPORTED;
}

gbi_cu_result cuFlushGPUDirectRDMAWrites(unsigned int target,
                                         unsigned int scope) {
  FAKE_CU_ENTER(NULL);
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuLaunchHostFunc(gbi_cu_stream stream, void (*run)(void *),
                               void *arg) {
  int device;
  FAKE_CU_ENTER(&device);
  return fake_code(fake_host_function(device, stream, run, arg));
}

static gbi_cu_result load_module(int device, struct CUmod_st **module_p,
                                 const void *image) {
  if (!image) return GBI_CU_ERROR_INVALID_VALUE;
  bool compiled = fake_is_code(image);
  if (compiled && !fake_code_fits(image, "sm_90"))
    return GBI_CU_ERROR_NO_BINARY_FOR_GPU;
  struct CUmod_st *module = fake_new(sizeof *module);
  module->device = device;
  module->compiled = compiled;
  *module_p = module;
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuModuleLoadData(struct CUmod_st **module, const void *image) {
  int device;
  FAKE_CU_ENTER(&device);
  return load_module(device, module, image);
}

gbi_cu_result cuModuleLoadDataEx(struct CUmod_st **module, const void *image,
                                 unsigned int count, unsigned int *options,
                                 void **values) {
  int device;
  FAKE_CU_ENTER(&device);
  return load_module(device, module, image);
}

gbi_cu_result cuModuleGetFunction(struct CUfunc_st **function,
                                  struct CUmod_st *module, const char *name) {
  FAKE_CU_ENTER(NULL);
  if (!module || !name) return GBI_CU_ERROR_INVALID_VALUE;
  *function = (struct CUfunc_st *)(module->compiled ? fake_kernel_built_in(name)
                                                    : fake_kernel_named(name));
  return *function ? GBI_CU_SUCCESS : FAKE_CU_ERROR_NOT_FOUND;
}

gbi_cu_result cuModuleUnload(struct CUmod_st *module) {
  FAKE_CU_ENTER(NULL);
  free(module);
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuLaunchKernel(struct CUfunc_st *function, unsigned int grid_x,
                             unsigned int grid_y, unsigned int grid_z,
                             unsigned int block_x, unsigned int block_y,
                             unsigned int block_z, unsigned int shared_bytes,
                             gbi_cu_stream stream, void **params,
                             void **extra) {
  int device;
  FAKE_CU_ENTER(&device);
  if (extra) return GBI_CU_ERROR_NOT_SUPPORTED;
  fake_launch launch = {{grid_x, grid_y, grid_z},
                        {block_x, block_y, block_z},
                        shared_bytes,
                        NULL};
  return fake_code(fake_kernel_launch(
      device, stream, (const fake_kernel *)function, &launch, params));
}

gbi_cu_result cuStreamIsCapturing(gbi_cu_stream stream, unsigned int *state) {
  int device, now = 0;
  FAKE_CU_ENTER(&device);
  fake_result result = fake_capture_state(device, stream, &now, NULL, NULL);
  *state = (unsigned int)now;
  return fake_code(result);
}

static gbi_cu_result capture_info(int device, gbi_cu_stream stream,
                                  unsigned int *state, uint64_t *id,
                                  struct CUgraph_st **graph_p) {
  int now = 0;
  uint64_t number = 0;
  fake_graph *graph = NULL;
  fake_result result =
      fake_capture_state(device, stream, &now, &number, &graph);
  *state = (unsigned int)now;
  if (id && now == FAKE_CAPTURE_ACTIVE) *id = number;
  if (graph_p) *graph_p = (struct CUgraph_st *)graph;
  return fake_code(result);
}

gbi_cu_result cuStreamGetCaptureInfo_v2(gbi_cu_stream stream,
                                        unsigned int *state, uint64_t *id,
                                        struct CUgraph_st **graph,
                                        const void ***needs, size_t *count) {
  int device;
  FAKE_CU_ENTER(&device);
  if (needs) *needs = NULL;
  if (count) *count = 0;
  return capture_info(device, stream, state, id, graph);
}

gbi_cu_result cuStreamGetCaptureInfo_v3(gbi_cu_stream stream,
                                        unsigned int *state, uint64_t *id,
                                        struct CUgraph_st **graph,
                                        struct CUgraphNode_st *const **needs,
                                        const struct CUgraphEdgeData_st **edges,
                                        size_t *count) {
  int device;
  FAKE_CU_ENTER(&device);
  if (needs) *needs = NULL;
  if (edges) *edges = NULL;
  if (count) *count = 0;
  return capture_info(device, stream, state, id, graph);
}

gbi_cu_result cuUserObjectCreate(struct CUuserObject_st **object, void *arg,
                                 void (*destroy)(void *), unsigned int refs,
                                 unsigned int flags) {
  FAKE_CU_ENTER(NULL);
  if (!destroy || !refs || flags != 1) return GBI_CU_ERROR_INVALID_VALUE;
  *object = (struct CUuserObject_st *)fake_object_new(destroy, arg, (int)refs);
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuUserObjectRetain(struct CUuserObject_st *object,
                                 unsigned int count) {
  FAKE_CU_ENTER(NULL);
  fake_object_keep((fake_object *)object, (int)count);
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuUserObjectRelease(struct CUuserObject_st *object,
                                  unsigned int count) {
  FAKE_CU_ENTER(NULL);
  fake_object_drop((fake_object *)object, (int)count);
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuGraphRetainUserObject(struct CUgraph_st *graph,
                                      struct CUuserObject_st *object,
                                      unsigned int count, unsigned int flags) {
  enum { MOVE = 1 };
  FAKE_CU_ENTER(NULL);
  if (!graph || !object || flags > MOVE) return GBI_CU_ERROR_INVALID_VALUE;
  if (flags != MOVE) fake_object_keep((fake_object *)object, (int)count);
  fake_graph_hold((fake_graph *)graph, (fake_object *)object, (int)count);
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuThreadExchangeStreamCaptureMode(unsigned int *mode) {
  int code = fake_call(__func__, __builtin_return_address(0));
  if (code) return (gbi_cu_result)code;
  if (*mode > 2) return GBI_CU_ERROR_INVALID_VALUE;
  *mode = (unsigned int)fake_capture_mode_exchange((int)*mode);
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuStreamBeginCapture_v2(gbi_cu_stream stream, unsigned int mode) {
  int device;
  FAKE_CU_ENTER(&device);
  return fake_code(fake_capture_begin(device, stream, (int)mode));
}

gbi_cu_result cuStreamEndCapture(gbi_cu_stream stream,
                                 struct CUgraph_st **graph) {
  int device;
  FAKE_CU_ENTER(&device);
  fake_graph *captured = NULL;
  fake_result result = fake_capture_end(device, stream, &captured);
  *graph = (struct CUgraph_st *)captured;
  return fake_code(result);
}

gbi_cu_result cuGraphInstantiateWithFlags(struct CUgraphExec_st **exec,
                                          struct CUgraph_st *graph,
                                          unsigned long long flags) {
  FAKE_CU_ENTER(NULL);
  if (!graph) return GBI_CU_ERROR_INVALID_VALUE;
  fake_graph *copy = NULL;
  fake_result result = fake_graph_copy((fake_graph *)graph, &copy);
  *exec = (struct CUgraphExec_st *)copy;
  return fake_code(result);
}

gbi_cu_result cuGraphLaunch(struct CUgraphExec_st *exec, gbi_cu_stream stream) {
  int device;
  FAKE_CU_ENTER(&device);
  if (!exec) return GBI_CU_ERROR_INVALID_VALUE;
  return fake_code(fake_graph_launch(device, (fake_graph *)exec, stream));
}

gbi_cu_result cuGraphDestroy(struct CUgraph_st *graph) {
  FAKE_CU_ENTER(NULL);
  if (!graph) return GBI_CU_ERROR_INVALID_VALUE;
  fake_graph_free((fake_graph *)graph);
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuGraphExecDestroy(struct CUgraphExec_st *exec) {
  FAKE_CU_ENTER(NULL);
  if (!exec) return GBI_CU_ERROR_INVALID_VALUE;
  fake_graph_free((fake_graph *)exec);
  return GBI_CU_SUCCESS;
}
