/* What is AMD's about the HIP fake: its names over the same engine, 64
 * operations a stream, unsigned masked compares, coherence, memory operations
 * that ignore a capture, queues of high priority. */
#include "fakes/dying.h"
#include "fakes/hip_fake.h"
#include "harness/gb_test.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define HIP(call) GB_CHECK_INT((call), GBI_HIP_SUCCESS)

static gbi_hip_stream new_stream(void) {
  gbi_hip_stream stream;
  HIP(hipStreamCreateWithFlags(&stream, GBI_HIP_STREAM_NON_BLOCKING));
  return stream;
}

static void *new_pinned(size_t bytes) {
  void *host;
  HIP(hipHostMalloc(&host, bytes, GBI_HIP_HOST_MAPPED | GBI_HIP_HOST_COHERENT));
  return host;
}

static void gate(gbi_hip_stream stream, uint64_t *flag, uint64_t value) {
  HIP(hipStreamWaitValue64(stream, flag, value, GBI_HIP_WAIT_VALUE_GTE,
                           UINT64_MAX));
}

static void raise_flag(uint64_t *flag, uint64_t value) {
  __atomic_store_n(flag, value, __ATOMIC_RELEASE);
}

static uint64_t blocking(void) {
  fake_gpu_counts counts;
  fake_gpu_count(&counts);
  return counts.blocking;
}

static void linger(void) {
  struct timespec nap = {0, 30000000};
  nanosleep(&nap, NULL);
}

GB_TEST(fakes_hip, copies_events_and_flags) {
  char *memory, *host = new_pinned(4096);
  uint64_t *flags = new_pinned(4096);
  gbi_hip_stream a = new_stream(), b = new_stream();
  gbi_hip_event event;
  HIP(hipMalloc((void **)&memory, 4096));
  HIP(hipEventCreateWithFlags(&event, GBI_HIP_EVENT_DISABLE_TIMING));
  gate(a, &flags[0], 1);
  HIP(hipMemsetAsync(memory, 6, 4096, a));
  HIP(hipEventRecord(event, a));
  HIP(hipStreamWaitEvent(b, event, 0));
  HIP(hipMemcpyAsync(host, memory, 4096, GBI_HIP_COPY_DEVICE_TO_HOST, b));
  HIP(hipStreamWriteValue64(b, &flags[16], 3, 0));
  GB_CHECK_INT(hipStreamQuery(b), GBI_HIP_ERROR_NOT_READY);
  raise_flag(&flags[0], 1);
  while (__atomic_load_n(&flags[16], __ATOMIC_ACQUIRE) < 3) linger();
  GB_CHECK_INT(host[4095], 6);
  HIP(hipStreamSynchronize(b));
  GB_CHECK_INT(hipMemcpyAsync(host, memory, 8, GBI_HIP_COPY_HOST_TO_DEVICE, a),
               GBI_HIP_ERROR_INVALID_VALUE);
  GB_CHECK_INT(hipPeekAtLastError(), GBI_HIP_ERROR_INVALID_VALUE);
  GB_CHECK_INT(hipGetLastError(), GBI_HIP_ERROR_INVALID_VALUE);
  HIP(hipGetLastError());
  HIP(hipFree(memory));
  HIP(hipHostFree(host));
}

typedef struct opener {
  uint64_t *flag;
  int opened; /* atomic */
} opener;

static void *open_later(void *arg) {
  opener *o = arg;
  linger();
  __atomic_store_n(&o->opened, 1, __ATOMIC_SEQ_CST);
  raise_flag(o->flag, 1);
  return NULL;
}

GB_TEST(fakes_hip, the_65th_operation_blocks) {
  gbi_hip_stream stream = new_stream();
  opener o = {.flag = new_pinned(8)};
  pthread_t thread;
  for (int i = 0; i < 64; i++) gate(stream, o.flag, 1);
  GB_CHECK_INT(blocking(), 0);
  GB_CHECK(!pthread_create(&thread, NULL, open_later, &o));
  gate(stream, o.flag, 1);
  GB_CHECK_INT(__atomic_load_n(&o.opened, __ATOMIC_SEQ_CST), 1);
  GB_CHECK_INT(blocking(), 1);
  GB_CHECK_INT(fake_gpu_deepest(), 64);
  pthread_join(thread, NULL);
}

GB_TEST(fakes_hip, wait_value_is_unsigned_and_masked) {
  gbi_hip_stream stream = new_stream();
  uint64_t *flag = new_pinned(8);
  *flag = UINT64_MAX;
  gate(stream, flag, 1); /* CUDA: behind by two */
  HIP(hipStreamSynchronize(stream));
  *flag = 0xff03;
  HIP(hipStreamWaitValue64(stream, flag, 4, GBI_HIP_WAIT_VALUE_GTE, 0xff));
  linger();
  GB_CHECK_INT(hipStreamQuery(stream), GBI_HIP_ERROR_NOT_READY);
  raise_flag(flag, 4);
  HIP(hipStreamSynchronize(stream));
}

static void flag_in_incoherent_memory(void) {
  uint64_t *flag;
  HIP(hipHostMalloc((void **)&flag, 8, GBI_HIP_HOST_MAPPED));
  gate(new_stream(), flag, 0);
}

GB_TEST(fakes_hip, flags_need_coherent_memory) {
  dies(flag_in_incoherent_memory, (const char *[]){"not coherent", NULL});
}

/* Up to ROCm 7.2: silently wrong, so that ours must look before. */
GB_TEST(fakes_hip, memory_operations_ignore_a_capture) {
  gbi_hip_stream stream = new_stream();
  uint64_t *flag = new_pinned(8);
  char *memory;
  struct ihipGraph *graph;
  struct hipGraphExec *exec;
  HIP(hipMalloc((void **)&memory, 64));
  HIP(hipStreamBeginCapture(stream, GBI_HIP_CAPTURE_MODE_RELAXED));
  HIP(hipMemsetAsync(memory, 6, 64, stream));
  HIP(hipStreamWriteValue64(stream, flag, 1, 0));
  while (!__atomic_load_n(flag, __ATOMIC_ACQUIRE)) linger();
  HIP(hipStreamEndCapture(stream, &graph));
  HIP(hipGraphInstantiate(&exec, graph, NULL, NULL, 0));
  HIP(hipGraphLaunch(exec, stream));
  HIP(hipStreamSynchronize(stream));
  char got;
  HIP(hipMemcpy(&got, memory, 1, GBI_HIP_COPY_DEVICE_TO_HOST));
  GB_CHECK_INT(got, 6);
  HIP(hipGraphExecDestroy(exec));
  HIP(hipGraphDestroy(graph));
}

/* With one queue of each, only the high-priority stream gets past the gate. */
GB_TEST(fakes_hip, high_priority_has_queues_of_its_own) {
  setenv("FAKE_GPU_QUEUES", "1", 1);
  gbi_hip_stream common = new_stream(), other = new_stream(), high, own;
  int least, greatest;
  uint64_t *flags = new_pinned(4096), mask[1] = {UINT64_MAX};
  HIP(hipDeviceGetStreamPriorityRange(&least, &greatest));
  HIP(hipStreamCreateWithPriority(&high, GBI_HIP_STREAM_NON_BLOCKING,
                                  greatest));
  HIP(hipExtStreamCreateWithCUMask(&own, 2, (uint32_t *)mask));
  gate(common, &flags[0], 1);
  HIP(hipStreamWriteValue64(high, &flags[16], 1, 0));
  HIP(hipStreamWriteValue64(own, &flags[32], 1, 0));
  HIP(hipStreamWriteValue64(other, &flags[48], 1, 0));
  HIP(hipStreamSynchronize(high));
  HIP(hipStreamSynchronize(own));
  linger();
  GB_CHECK_INT(hipStreamQuery(other), GBI_HIP_ERROR_NOT_READY);
  raise_flag(&flags[0], 1);
  HIP(hipStreamSynchronize(other));
}

static void missing_event(void) {
  gbi_hip_stream a = new_stream(), b = new_stream();
  char *memory, *host = new_pinned(64);
  HIP(hipMalloc((void **)&memory, 64));
  HIP(hipMemsetAsync(memory, 6, 64, a));
  HIP(hipMemcpyAsync(host, memory, 64, GBI_HIP_COPY_DEVICE_TO_HOST, b));
  HIP(hipDeviceSynchronize());
}

GB_TEST(fakes_hip, a_missing_event_is_caught) {
  dies(missing_event,
       (const char *[]){"nothing orders the two", "hipMemsetAsync called at",
                        "hipMemcpyAsync called at", NULL});
}

GB_TEST(fakes_hip, facts) {
  setenv("FAKE_GPU_DEVICES", "2", 1);
  setenv("FAKE_GPU_UUID", "00112233445566778899aabbccddeeff", 1);
  int count, device = 9, value;
  HIP(hipGetDeviceCount(&count));
  GB_CHECK_INT(count, 2);
  HIP(hipGetDevice(&device));
  GB_CHECK_INT(device, 0);
  GB_CHECK_INT(hipSetDevice(2), GBI_HIP_ERROR_INVALID_DEVICE);
  HIP(hipSetDevice(1));
  void *memory, *address;
  HIP(hipMalloc(&memory, 64));
  gbi_hip_pointer facts;
  struct hipPointerAttribute_t *facts_p = (void *)&facts;
  HIP(hipPointerGetAttributes(facts_p, memory));
  GB_CHECK_INT(facts.type, GBI_HIP_MEMORY_DEVICE);
  GB_CHECK_INT(facts.device, 1);
  void *host = new_pinned(64);
  HIP(hipPointerGetAttributes(facts_p, host));
  GB_CHECK_INT(facts.type, GBI_HIP_MEMORY_HOST);
  HIP(hipPointerGetAttributes(facts_p, &count));
  GB_CHECK_INT(facts.type, GBI_HIP_MEMORY_UNREGISTERED);
  HIP(hipHostGetDevicePointer(&address, host, 0));
  static char properties[GBI_HIP_PROPERTIES_BYTES];
  HIP(hipGetDevicePropertiesR0600((void *)properties, 0));
  GB_CHECK_TEXT(properties + GBI_HIP_PROPERTIES_ARCH_AT, "gfx942");
  GB_CHECK_TEXT(properties, "AMD");
  GB_CHECK_INT((unsigned char)properties[256 + 15], 0xff);
  HIP(hipDeviceGetAttribute(&value, 10013, 1));
  GB_CHECK_INT(value, 1);
  GB_CHECK_TEXT(hipGetErrorName(600), "hipErrorNotReady");
}

GB_TEST(fakes_hip, the_nth_call_fails) {
  setenv("FAKE_GPU_FAIL", "hipMalloc:2:2", 1);
  void *memory;
  HIP(hipMalloc(&memory, 64));
  GB_CHECK_INT(hipMalloc(&memory, 64), GBI_HIP_ERROR_OUT_OF_MEMORY);
  GB_CHECK_INT(hipGetLastError(), GBI_HIP_ERROR_OUT_OF_MEMORY);
}
