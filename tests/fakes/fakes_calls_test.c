/* Calls of the fake: faults at the n-th, counters, profiles of awkward drivers,
 * kernels by name, capture. */
#include "fakes/fakes_test.h"

#include <pthread.h>

GB_TEST(fakes, the_nth_call_fails) {
  setenv("FAKE_GPU_FAIL",
         "cuMemAlloc_v2:2:2,cuEventRecord:1:719,cuStreamQuery:3:700", 1);
  start();
  gbi_cu_address memory;
  gbi_cu_stream stream = new_stream();
  gbi_cu_event event = new_event();
  CU(cuMemAlloc_v2(&memory, 64));
  GB_CHECK_INT(cuMemAlloc_v2(&memory, 64), 2);
  CU(cuMemAlloc_v2(&memory, 64));
  GB_CHECK_INT(cuEventRecord(event, stream), 719);
  CU(cuEventQuery(event)); /* it was not recorded */
  CU(cuStreamQuery(stream));
  CU(cuStreamQuery(stream));
  GB_CHECK_INT(cuStreamQuery(stream), 700);
  CU(cuStreamQuery(stream));
}

static void *ten_calls(void *arg) {
  gbi_cu_context context = arg;
  CU(cuCtxPushCurrent_v2(context));
  for (int i = 0; i < 9; i++) CU(cuStreamQuery(NULL));
  fake_gpu_counts here;
  fake_gpu_count_here(&here);
  GB_CHECK_INT(here.calls, 10);
  return NULL;
}

GB_TEST(fakes, calls_are_counted_by_thread_and_in_all) {
  start();
  gbi_cu_context context;
  CU(cuCtxGetCurrent(&context));
  fake_gpu_counts here;
  GB_CHECK_INT(counted().calls, 4);
  pthread_t thread;
  GB_CHECK(!pthread_create(&thread, NULL, ten_calls, context));
  pthread_join(thread, NULL);
  GB_CHECK_INT(counted().calls, 14);
  fake_gpu_count_here(&here);
  GB_CHECK_INT(here.calls, 4);
}

GB_TEST(fakes, counters_tell_what_was_called) {
  start();
  gbi_cu_stream users = new_stream();
  fake_gpu_mine(1);
  gbi_cu_stream ours = new_stream();
  fake_gpu_mine(0);
  gbi_cu_address memory = new_memory(64);
  char *host = new_pinned(64);
  fake_gpu_counts before = counted();
  GB_CHECK_INT(before.allocations, 2);
  CU(cuMemsetD8Async(memory, 1, 64, ours));
  CU(cuMemcpyDtoHAsync_v2(host, memory, 64, ours));
  GB_CHECK_INT(counted().operations, before.operations + 2);
  GB_CHECK_INT(counted().user_streams, before.user_streams);
  GB_CHECK_INT(counted().blocking, before.blocking);
  CU(cuStreamSynchronize(ours));
  GB_CHECK_INT(counted().blocking, before.blocking + 1);
  GB_CHECK_INT(counted().checks, before.checks + 3);
  CU(cuStreamQuery(users));
  CU(cuStreamQuery(NULL));
  GB_CHECK_INT(counted().user_streams, before.user_streams + 2);
  CU(cuMemFree_v2(memory));
  GB_CHECK_INT(counted().blocking, before.blocking + 2);
}

GB_TEST(fakes, deepest_is_the_most_outstanding) {
  start();
  gbi_cu_stream stream = new_stream();
  uint64_t *flag = new_pinned(8);
  gate(stream, flag, 1);
  for (int i = 0; i < 99; i++) gate(stream, flag, 1);
  GB_CHECK_INT(fake_gpu_deepest(), 100);
  raise_flag(flag, 1);
  CU(cuStreamSynchronize(stream));
  gate(stream, flag, 1);
  GB_CHECK_INT(fake_gpu_deepest(), 100);
}

/* Opens a gate after a while, having noted that it is about to. */
typedef struct opener {
  pthread_t thread;
  uint64_t *flag;
  int opened; /* atomic */
} opener;

static void *open_later(void *arg) {
  opener *o = arg;
  struct timespec nap = {0, 50000000};
  nanosleep(&nap, NULL);
  __atomic_store_n(&o->opened, 1, __ATOMIC_SEQ_CST);
  raise_flag(o->flag, 1);
  return NULL;
}

static void shut(opener *o, gbi_cu_stream stream) {
  o->opened = 0;
  o->flag = new_pinned(8);
  gate(stream, o->flag, 1);
  GB_CHECK(!pthread_create(&o->thread, NULL, open_later, o));
}

/* Whether the last call has waited for the gate. */
static bool waited(opener *o) {
  bool opened = __atomic_load_n(&o->opened, __ATOMIC_SEQ_CST) != 0;
  pthread_join(o->thread, NULL);
  return opened;
}

static void add_up(const fake_launch *launch) {
  const gbi_cu_address *at = launch->params[0];
  const int *by = launch->params[1];
  unsigned char *memory = fake_gpu_open((void *)(uintptr_t)*at);
  for (unsigned i = 0; i < launch->grid[0] * launch->block[0]; i++)
    memory[i] = (unsigned char)(memory[i] + *by);
}

static int add_up_ranges(const fake_launch *launch, fake_range *ranges) {
  const gbi_cu_address *at = launch->params[0];
  size_t bytes = launch->grid[0] * launch->block[0];
  ranges[0] = (fake_range){(void *)(uintptr_t)*at, bytes, 0};
  ranges[1] = (fake_range){(void *)(uintptr_t)*at, bytes, 1};
  return 2;
}

static const size_t add_up_params[] = {sizeof(gbi_cu_address), sizeof(int)};
static const fake_kernel add_up_kernel = {.name = "add_up",
                                          .run = add_up,
                                          .params_count = 2,
                                          .params_bytes = add_up_params,
                                          .ranges = add_up_ranges};

static struct CUfunc_st *add_up_function(void) {
  struct CUmod_st *module;
  struct CUfunc_st *function;
  fake_gpu_kernel(&add_up_kernel);
  CU(cuModuleLoadData(&module, "image"));
  CU(cuModuleGetFunction(&function, module, "add_up"));
  CU(cuModuleUnload(module));
  return function;
}

static void launch(struct CUfunc_st *function, gbi_cu_address memory, int by,
                   gbi_cu_stream stream) {
  void *params[] = {&memory, &by};
  CU(cuLaunchKernel(function, 2, 1, 1, 32, 1, 1, 0, stream, params, NULL));
}

GB_TEST(fakes, kernels_are_found_by_name) {
  start();
  struct CUmod_st *module;
  struct CUfunc_st *function = add_up_function(), *none;
  gbi_cu_stream stream = new_stream();
  gbi_cu_address memory = new_memory(64);
  char *host = new_pinned(64);
  uint64_t *flag = new_pinned(8);
  CU(cuMemsetD8Async(memory, 3, 64, stream));
  gate(stream, flag, 1);
  launch(function, memory, 4, stream); /* its parameters are gone by then */
  CU(cuMemcpyDtoHAsync_v2(host, memory, 64, stream));
  raise_flag(flag, 1);
  CU(cuStreamSynchronize(stream));
  GB_CHECK_INT(host[63], 7);
  CU(cuModuleLoadData(&module, "image"));
  GB_CHECK_INT(cuModuleGetFunction(&none, module, "nothing"),
               FAKE_CU_ERROR_NOT_FOUND);
  CU(cuModuleUnload(module));
}

GB_TEST(fakes, profile_lazy) {
  setenv("FAKE_GPU_PROFILE", "lazy", 1);
  start();
  struct CUfunc_st *function = add_up_function();
  gbi_cu_address memory = new_memory(64);
  gbi_cu_stream a = new_stream(), b = new_stream();
  opener o;
  shut(&o, a);
  launch(function, memory, 1, b);
  GB_CHECK(waited(&o));
  GB_CHECK_INT(counted().blocking, 1);
  shut(&o, a);
  launch(function, memory, 1, b); /* it is loaded now */
  GB_CHECK_INT(counted().blocking, 1);
  waited(&o);
}

GB_TEST(fakes, profile_blocking) {
  setenv("FAKE_GPU_PROFILE", "blocking", 1);
  start();
  gbi_cu_stream stream = new_stream();
  gbi_cu_address memory = new_memory(64);
  opener o = {.flag = new_pinned(8)};
  GB_CHECK(!pthread_create(&o.thread, NULL, open_later, &o));
  gate(stream, o.flag, 1);
  GB_CHECK(waited(&o));
  GB_CHECK_INT(counted().blocking, 1);
  CU(cuMemsetD8Async(memory, 1, 64, stream));
  GB_CHECK_INT(counted().blocking, 2);
}

static void allocate_with(const char *profile, bool waits) {
  if (profile) setenv("FAKE_GPU_PROFILE", profile, 1);
  start();
  opener o;
  uint64_t *first = new_pinned(8);
  gate(new_stream(), first, 1);
  o.opened = 0;
  o.flag = first;
  if (!waits) {
    new_memory(64); /* returns though the gate is shut */
    raise_flag(first, 1);
    return;
  }
  GB_CHECK(!pthread_create(&o.thread, NULL, open_later, &o));
  new_memory(64);
  GB_CHECK(waited(&o));
}

GB_TEST(fakes, profile_alloc_sync) {
  allocate_with("lazy, alloc-sync", true);
}
GB_TEST(fakes, allocating_does_not_wait) {
  allocate_with(NULL, false);
}

GB_TEST(fakes, freeing_waits_for_the_device) {
  start();
  gbi_cu_address memory = new_memory(64);
  opener o;
  shut(&o, new_stream());
  CU(cuMemFree_v2(memory));
  GB_CHECK(waited(&o));
}

GB_TEST(fakes, profile_rocm_ring) {
  setenv("FAKE_GPU_PROFILE", "rocm-ring", 1);
  start();
  gbi_cu_stream stream = new_stream();
  opener o;
  shut(&o, stream);
  for (int i = 1; i < FAKE_RING; i++) gate(stream, o.flag, 1);
  GB_CHECK_INT(counted().blocking, 0);
  gate(stream, o.flag, 1);
  GB_CHECK(waited(&o));
  GB_CHECK_INT(counted().blocking, 1);
  GB_CHECK_INT(fake_gpu_deepest(), FAKE_RING);
}

typedef struct syncer {
  pthread_t thread;
  gbi_cu_context context;
  gbi_cu_stream stream;
} syncer;

static void *synchronise(void *arg) {
  syncer *s = arg;
  CU(cuCtxPushCurrent_v2(s->context));
  CU(cuStreamSynchronize(s->stream));
  return NULL;
}

/* Another thread's synchronise holds up ours that only enqueues. */
static void enqueue_beside_synchronise(bool held) {
  start();
  gbi_cu_stream stream = new_stream();
  syncer s = {.stream = stream};
  opener o = {.flag = new_pinned(8)};
  gate(stream, o.flag, 1);
  CU(cuCtxGetCurrent(&s.context));
  GB_CHECK(!pthread_create(&s.thread, NULL, synchronise, &s));
  while (!counted().blocking) { /* until it is at it */
    struct timespec nap = {0, 1000000};
    nanosleep(&nap, NULL);
  }
  if (held) {
    GB_CHECK(!pthread_create(&o.thread, NULL, open_later, &o));
    gate(stream, o.flag, 1);
    GB_CHECK(waited(&o));
    GB_CHECK_INT(counted().blocking, 2);
  } else {
    gate(stream, o.flag, 1);
    GB_CHECK_INT(counted().blocking, 1);
    raise_flag(o.flag, 1);
  }
  pthread_join(s.thread, NULL);
}

GB_TEST(fakes, profile_rocm_lock) {
  setenv("FAKE_GPU_PROFILE", "rocm-lock", 1);
  enqueue_beside_synchronise(true);
}
GB_TEST(fakes, synchronise_holds_nobody) {
  enqueue_beside_synchronise(false);
}

enum { GLOBAL, THREAD, RELAXED };

static unsigned capturing(gbi_cu_stream stream) {
  unsigned state = 9;
  CU(cuStreamIsCapturing(stream, &state));
  return state;
}

static struct CUgraphExec_st *end(gbi_cu_stream stream) {
  struct CUgraph_st *graph;
  struct CUgraphExec_st *exec;
  CU(cuStreamEndCapture(stream, &graph));
  CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CU(cuGraphDestroy(graph));
  return exec;
}

/* A graph repeats what was captured, on both of the streams, with the constants
 * of then: a gate for "1 or more" is open the second time. */
GB_TEST(fakes, a_graph_replays_what_was_captured) {
  start();
  struct CUfunc_st *function = add_up_function();
  gbi_cu_stream a = new_stream(), b = new_stream();
  gbi_cu_event event = new_event(), back = new_event();
  gbi_cu_address memory = new_memory(64);
  char *host = new_pinned(64);
  uint64_t *flags = new_pinned(4096);
  CU(cuMemsetD8Async(memory, 0, 64, a));
  GB_CHECK_INT(capturing(a), FAKE_CAPTURE_NONE);
  CU(cuStreamBeginCapture_v2(a, GLOBAL));
  GB_CHECK_INT(capturing(a), FAKE_CAPTURE_ACTIVE);
  gate(a, &flags[0], 1);
  CU(cuEventRecord(event, a));
  CU(cuStreamWaitEvent(b, event, 0));
  GB_CHECK_INT(capturing(b), FAKE_CAPTURE_ACTIVE);
  launch(function, memory, 5, b);
  CU(cuEventRecord(back, b));
  CU(cuStreamWaitEvent(a, back, 0));
  CU(cuMemcpyDtoHAsync_v2(host, memory, 64, a));
  struct CUgraphExec_st *exec = end(a);
  GB_CHECK_INT(capturing(b), FAKE_CAPTURE_NONE);
  CU(cuStreamSynchronize(a)); /* nothing of it has run */
  CU(cuGraphLaunch(exec, a));
  GB_CHECK_INT(cuStreamQuery(a), GBI_CU_ERROR_NOT_READY);
  raise_flag(&flags[0], 1);
  CU(cuStreamSynchronize(a));
  GB_CHECK_INT(host[63], 5);
  CU(cuGraphLaunch(exec, a));
  CU(cuStreamSynchronize(a));
  GB_CHECK_INT(host[63], 10);
  CU(cuGraphExecDestroy(exec));
}

static void breaks(gbi_cu_stream stream, gbi_cu_result (*call)(void),
                   gbi_cu_result code) {
  struct CUgraph_st *graph;
  CU(cuStreamBeginCapture_v2(stream, GLOBAL));
  GB_CHECK_INT(call(), code);
  GB_CHECK_INT(capturing(stream), FAKE_CAPTURE_BROKEN);
  GB_CHECK_INT(cuStreamEndCapture(stream, &graph),
               FAKE_CU_ERROR_CAPTURE_INVALIDATED);
  GB_CHECK(!graph);
  GB_CHECK_INT(capturing(stream), FAKE_CAPTURE_NONE);
}

static gbi_cu_stream captured;
static gbi_cu_event an_event;
static gbi_cu_result synchronise_it(void) {
  return cuStreamSynchronize(captured);
}
static gbi_cu_result query_it(void) {
  return cuStreamQuery(captured);
}
static gbi_cu_result query_an_event(void) {
  return cuEventQuery(an_event);
}
static gbi_cu_result allocate_some(void) {
  gbi_cu_address memory;
  return cuMemAlloc_v2(&memory, 64);
}
static gbi_cu_result use_legacy(void) {
  return cuStreamQuery(NULL);
}
static gbi_cu_result wait_for_outside(void) {
  return cuStreamWaitEvent(captured, an_event, 0);
}

GB_TEST(fakes, forbidden_calls_break_a_capture) {
  start();
  captured = new_stream();
  an_event = new_event();
  CU(cuEventRecord(an_event, new_stream()));
  breaks(captured, wait_for_outside, 905);
  breaks(captured, synchronise_it, 900);
  breaks(captured, query_it, 900);
  breaks(captured, query_an_event, 900);
  breaks(captured, allocate_some, 900);
  CU(cuStreamCreate(&captured, 0));
  breaks(captured, use_legacy, FAKE_CU_ERROR_CAPTURE_IMPLICIT);
}

static void *query_from_another(void *arg) {
  CU(cuCtxPushCurrent_v2(arg));
  return (void *)(uintptr_t)cuEventQuery(an_event);
}

static gbi_cu_result on_another_thread(void) {
  gbi_cu_context context;
  void *code;
  pthread_t thread;
  CU(cuCtxGetCurrent(&context));
  GB_CHECK(!pthread_create(&thread, NULL, query_from_another, context));
  pthread_join(thread, &code);
  return (gbi_cu_result)(uintptr_t)code;
}

/* A watchdog that queries events: what global mode is known for. */
GB_TEST(fakes, capture_modes) {
  start();
  captured = new_stream();
  an_event = new_event();
  unsigned mode = RELAXED;
  breaks(captured, on_another_thread, 900);
  CU(cuStreamBeginCapture_v2(captured, THREAD));
  CU(on_another_thread());
  CU(cuThreadExchangeStreamCaptureMode(&mode));
  GB_CHECK_INT(mode, GLOBAL);
  CU(cuEventQuery(an_event));
  CU(cuThreadExchangeStreamCaptureMode(&mode));
  GB_CHECK_INT(mode, RELAXED);
  CU(cuGraphExecDestroy(end(captured)));
}

static int destroyed;
static void note_destroyed(void *arg) {
  destroyed += *(int *)arg;
}

/* What a captured operation needs lives as long as something can replay it. */
GB_TEST(fakes, user_objects_live_as_long_as_the_graph) {
  start();
  gbi_cu_stream stream = new_stream();
  struct CUgraph_st *graph = NULL;
  struct CUuserObject_st *object;
  unsigned state;
  uint64_t id;
  size_t count;
  const void **needs;
  int by = 1;
  CU(cuUserObjectCreate(&object, &by, note_destroyed, 1, 1));
  CU(cuStreamBeginCapture_v2(stream, RELAXED));
  CU(cuStreamGetCaptureInfo_v2(stream, &state, &id, &graph, &needs, &count));
  GB_CHECK(graph && state == FAKE_CAPTURE_ACTIVE);
  CU(cuGraphRetainUserObject(graph, object, 1, 1)); /* moved into it */
  struct CUgraphExec_st *exec = end(stream);
  GB_CHECK_INT(destroyed, 0);
  CU(cuGraphExecDestroy(exec));
  GB_CHECK_INT(destroyed, 1);
}
