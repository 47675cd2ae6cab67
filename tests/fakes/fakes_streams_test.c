/* The fake's streams are streams: FIFOs on hardware queues, with events, flags,
 * the legacy stream and host functions as the vendors document them. Each case
 * fails when that part of the model is off. */
#include "fakes/fakes_test.h"

#include <pthread.h>
#include <unistd.h>

/* Long enough for a stream that could go on to have gone on: negative checks
 * only, a slow machine makes them weaker and never wrong. */
static void linger(void) {
  struct timespec nap = {0, 30000000};
  nanosleep(&nap, NULL);
}

GB_TEST(fakes, stream_is_a_fifo) {
  start();
  enum { N = 500 };
  gbi_cu_stream stream = new_stream();
  gbi_cu_address memory = new_memory(N);
  char *host = new_pinned(2 * N);
  for (int i = 0; i < N; i++) {
    CU(cuMemsetD8Async(memory, (unsigned char)i, N, stream));
    CU(cuMemcpyDtoHAsync_v2(host + i, memory, 1, stream));
  }
  CU(cuStreamSynchronize(stream));
  for (int i = 0; i < N; i++) GB_CHECK_INT((unsigned char)host[i], i & 255);
}

GB_TEST(fakes, streams_run_side_by_side) {
  start();
  gbi_cu_stream a = new_stream(), b = new_stream();
  uint64_t *flags = new_pinned(4096);
  gate(a, &flags[0], 1);
  CU(cuStreamWriteValue64_v2(b, on_device(&flags[16]), 1, 0));
  CU(cuStreamSynchronize(b)); /* would hang behind a's gate */
  GB_CHECK_INT(cuStreamQuery(a), GBI_CU_ERROR_NOT_READY);
  raise_flag(&flags[0], 1);
  CU(cuStreamSynchronize(a));
  CU(cuStreamQuery(a));
}

static void share_a_queue(gbi_cu_stream a, gbi_cu_stream b) {
  uint64_t *flags = new_pinned(4096);
  gate(a, &flags[0], 1);
  CU(cuStreamWriteValue64_v2(b, on_device(&flags[16]), 1, 0));
  linger();
  GB_CHECK_INT(__atomic_load_n(&flags[16], __ATOMIC_ACQUIRE), 0);
  GB_CHECK_INT(cuStreamQuery(b), GBI_CU_ERROR_NOT_READY);
  raise_flag(&flags[0], 1);
  await(&flags[16], 1);
}

/* The false dependency of CUDA_DEVICE_MAX_CONNECTIONS=1. */
GB_TEST(fakes, one_hardware_queue_makes_a_later_stream_wait) {
  setenv("FAKE_GPU_QUEUES", "1", 1);
  start();
  share_a_queue(new_stream(), new_stream());
}

GB_TEST(fakes, fifth_stream_shares_the_first_queue) {
  start();
  gbi_cu_stream streams[5];
  for (int i = 0; i < 5; i++) streams[i] = new_stream();
  share_a_queue(streams[0], streams[4]);
}

GB_TEST(fakes, legacy_stream_waits_for_blocking_ones) {
  start();
  gbi_cu_stream blocking, apart = new_stream();
  CU(cuStreamCreate(&blocking, 0));
  uint64_t *flags = new_pinned(4096);
  gate(blocking, &flags[0], 1);
  CU(cuStreamWriteValue64_v2(NULL, on_device(&flags[16]), 1, 0));
  CU(cuStreamWriteValue64_v2(apart, on_device(&flags[32]), 1, 0));
  await(&flags[32], 1);
  linger();
  GB_CHECK_INT(__atomic_load_n(&flags[16], __ATOMIC_ACQUIRE), 0);
  raise_flag(&flags[0], 1);
  await(&flags[16], 1);
}

GB_TEST(fakes, blocking_streams_wait_for_the_legacy_one) {
  start();
  gbi_cu_stream blocking, apart = new_stream();
  CU(cuStreamCreate(&blocking, 0));
  uint64_t *flags = new_pinned(4096);
  gate((gbi_cu_stream)1, &flags[0], 1); /* its other name */
  CU(cuStreamWriteValue64_v2(blocking, on_device(&flags[16]), 1, 0));
  CU(cuStreamWriteValue64_v2(apart, on_device(&flags[32]), 1, 0));
  await(&flags[32], 1);
  linger();
  GB_CHECK_INT(__atomic_load_n(&flags[16], __ATOMIC_ACQUIRE), 0);
  raise_flag(&flags[0], 1);
  await(&flags[16], 1);
}

GB_TEST(fakes, event_makes_a_stream_wait) {
  start();
  gbi_cu_stream a = new_stream(), b = new_stream();
  uint64_t *flags = new_pinned(4096);
  gbi_cu_event event = new_event();
  gate(a, &flags[0], 1);
  CU(cuEventRecord(event, a));
  CU(cuStreamWaitEvent(b, event, 0));
  CU(cuStreamWriteValue64_v2(b, on_device(&flags[16]), 1, 0));
  GB_CHECK_INT(cuEventQuery(event), GBI_CU_ERROR_NOT_READY);
  linger();
  GB_CHECK_INT(__atomic_load_n(&flags[16], __ATOMIC_ACQUIRE), 0);
  raise_flag(&flags[0], 1);
  await(&flags[16], 1);
  CU(cuEventSynchronize(event));
  CU(cuEventQuery(event));
}

GB_TEST(fakes, wait_for_an_unrecorded_event_is_nothing) {
  start();
  gbi_cu_stream a = new_stream(), b = new_stream();
  uint64_t *flags = new_pinned(4096);
  gbi_cu_event event = new_event();
  CU(cuEventQuery(event));
  CU(cuStreamWaitEvent(b, event, 0)); /* too early: the usual mistake */
  gate(a, &flags[0], 1);
  CU(cuEventRecord(event, a));
  CU(cuStreamSynchronize(b));
  raise_flag(&flags[0], 1);
}

/* A wait is for what was recorded when it was enqueued. */
GB_TEST(fakes, wait_captures_the_record_before_it) {
  start();
  gbi_cu_stream a = new_stream(), b = new_stream();
  uint64_t *flags = new_pinned(4096);
  gbi_cu_event event = new_event();
  CU(cuEventRecord(event, a));
  CU(cuStreamWaitEvent(b, event, 0));
  gate(a, &flags[0], 1);
  CU(cuEventRecord(event, a));
  CU(cuStreamSynchronize(b));
  GB_CHECK_INT(cuEventQuery(event), GBI_CU_ERROR_NOT_READY);
  raise_flag(&flags[0], 1);
  CU(cuEventSynchronize(event));
}

static void passes(uint64_t seen, uint64_t wanted, unsigned flags) {
  uint64_t *flag = new_pinned(8);
  gbi_cu_stream stream = new_stream();
  *flag = seen;
  CU(cuStreamWaitValue64_v2(stream, on_device(flag), wanted, flags));
  CU(cuStreamSynchronize(stream));
}

static void holds(uint64_t seen, uint64_t wanted, unsigned flags,
                  uint64_t then) {
  uint64_t *flag = new_pinned(8);
  gbi_cu_stream stream = new_stream();
  *flag = seen;
  CU(cuStreamWaitValue64_v2(stream, on_device(flag), wanted, flags));
  linger();
  GB_CHECK_INT(cuStreamQuery(stream), GBI_CU_ERROR_NOT_READY);
  raise_flag(flag, then);
  CU(cuStreamSynchronize(stream));
}

GB_TEST(fakes, wait_value_compares_as_the_driver_does) {
  setenv("FAKE_GPU_QUEUES", "8", 1);
  start();
  enum { GEQ, EQ, AND, NOR };
  passes(5, 5, GEQ);
  passes(6, 5, GEQ);
  passes(1, UINT64_MAX, GEQ); /* cyclic: two steps behind */
  holds(4, 5, GEQ, 9);
  holds(UINT64_MAX, 1, GEQ, 1);
  passes(5, 5, EQ);
  holds(6, 5, EQ, 5);
  passes(6, 2, AND);
  holds(4, 2, AND, 2);
  passes(0, 1, NOR);
  holds(UINT64_MAX - 1, 1, NOR, 1);
}

GB_TEST(fakes, narrow_values_leave_their_neighbour_alone) {
  start();
  gbi_cu_stream stream = new_stream();
  uint32_t *words = new_pinned(8);
  words[0] = 0xffffffffu;
  words[1] = 77;
  CU(cuStreamWaitValue32_v2(stream, on_device(words), 0xfffffff0u, 0));
  CU(cuStreamWriteValue32_v2(stream, on_device(words), 3, 0));
  CU(cuStreamWaitValue32_v2(stream, on_device(words), 0xfffffffeu, 0));
  CU(cuStreamSynchronize(stream));
  GB_CHECK_INT(words[0], 3);
  GB_CHECK_INT(words[1], 77);
}

GB_TEST(fakes, batch_of_memory_operations) {
  start();
  gbi_cu_stream stream = new_stream();
  uint64_t *flags = new_pinned(4096);
  fake_cu_batch_op ops[2] = {{{4, on_device(&flags[0]), 2, 0}},
                             {{5, on_device(&flags[16]), 9, 0}}};
  CU(cuStreamBatchMemOp_v2(stream, 2, ops, 0));
  GB_CHECK_INT(cuStreamQuery(stream), GBI_CU_ERROR_NOT_READY);
  raise_flag(&flags[0], 2);
  await(&flags[16], 9);
}

/* A wrong look-up must fail here, not on a user's machine. */
GB_TEST(fakes, old_memory_operations_are_refused) {
  start();
  gbi_cu_stream stream = new_stream();
  uint64_t *flag = new_pinned(8);
  GB_CHECK_INT(cuStreamWaitValue64(stream, on_device(flag), 0, 0),
               GBI_CU_ERROR_NOT_SUPPORTED);
  GB_CHECK_INT(cuStreamWriteValue32(stream, on_device(flag), 0, 0),
               GBI_CU_ERROR_NOT_SUPPORTED);
  void *function;
  unsigned int found;
  CU(cuGetProcAddress_v2("cuStreamWaitValue64", &function, 12000, 0, &found));
  GB_CHECK(function == (void *)cuStreamWaitValue64_v2);
  CU(cuGetProcAddress_v2("cuStreamWaitValue64", &function, 11000, 0, &found));
  GB_CHECK(function == (void *)cuStreamWaitValue64);
  CU(cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, &found));
  GB_CHECK(function == (void *)cuMemAlloc_v2);
  CU(cuGetProcAddress_v2("cuNothing", &function, 12000, 0, &found));
  GB_CHECK(!function && found == 1);
}

GB_TEST(fakes, flags_must_be_known_and_aligned) {
  start();
  gbi_cu_stream stream = new_stream();
  uint64_t pageable = 0, *flags = new_pinned(64);
  GB_CHECK_INT(cuStreamWaitValue64_v2(stream, on_device(&pageable), 0, 0),
               GBI_CU_ERROR_INVALID_VALUE);
  GB_CHECK_INT(
      cuStreamWriteValue64_v2(stream, on_device((char *)flags + 4), 0, 0),
      GBI_CU_ERROR_INVALID_VALUE);
  GB_CHECK_INT(cuStreamWaitValue64_v2(stream, on_device(flags), 0, 9),
               GBI_CU_ERROR_INVALID_VALUE);
}

static pthread_t host_threads[3];
static int host_calls; /* of one thread at a time, checked by tsan */

static void note_thread(void *at) {
  *(pthread_t *)at = pthread_self();
  host_calls++;
}

GB_TEST(fakes, host_functions_run_on_one_thread_in_order) {
  start();
  gbi_cu_stream a = new_stream(), b = new_stream();
  uint64_t *flag = new_pinned(8);
  gate(a, flag, 1);
  CU(cuLaunchHostFunc(a, note_thread, &host_threads[0]));
  CU(cuLaunchHostFunc(b, note_thread, &host_threads[1]));
  CU(cuStreamSynchronize(b));
  GB_CHECK_INT(host_calls, 1);
  raise_flag(flag, 1);
  CU(cuLaunchHostFunc(a, note_thread, &host_threads[2]));
  CU(cuStreamSynchronize(a));
  GB_CHECK_INT(host_calls, 3);
  GB_CHECK(pthread_equal(host_threads[0], host_threads[1]));
  GB_CHECK(pthread_equal(host_threads[0], host_threads[2]));
  GB_CHECK(!pthread_equal(host_threads[0], pthread_self()));
}

static void call_the_api(void *arg) {
  cuStreamQuery(NULL);
}

static void host_function_calls_the_api(void) {
  start();
  gbi_cu_stream stream = new_stream();
  CU(cuLaunchHostFunc(stream, call_the_api, NULL));
  CU(cuStreamSynchronize(stream));
}

GB_TEST(fakes, host_function_must_not_call_the_api) {
  dies(
      host_function_calls_the_api,
      (const char *[]){"called inside a host function", "cuStreamQuery", NULL});
}

static void leave_a_stream_stuck(void) {
  start();
  uint64_t *flag = new_pinned(8);
  gate(new_stream(), flag, 1);
  gbi_cu_stream stream = new_stream();
  gbi_cu_event event = new_event();
  gate(stream, flag, 1);
  CU(cuEventRecord(event, stream));
  CU(cuStreamWaitEvent(new_stream(), event, 0));
}

GB_TEST(fakes, a_stuck_stream_does_not_stop_exit) {
  GB_CHECK(lives(leave_a_stream_stuck) < 5000);
}

GB_TEST(fakes, destroyed_stream_finishes_its_work) {
  start();
  uint64_t *flags = new_pinned(4096);
  gbi_cu_stream stream = new_stream();
  gate(stream, &flags[0], 1);
  CU(cuStreamWriteValue64_v2(stream, on_device(&flags[16]), 1, 0));
  CU(cuStreamDestroy_v2(stream));
  raise_flag(&flags[0], 1);
  await(&flags[16], 1);
}

static double ms_for_a_hundred(void) {
  gbi_cu_stream stream = new_stream();
  gbi_cu_address memory = new_memory(64);
  struct timespec before, after;
  clock_gettime(CLOCK_MONOTONIC, &before);
  for (int i = 0; i < 100; i++) CU(cuMemsetD8Async(memory, 1, 64, stream));
  CU(cuStreamSynchronize(stream));
  clock_gettime(CLOCK_MONOTONIC, &after);
  return (double)(after.tv_sec - before.tv_sec) * 1e3 +
         (double)(after.tv_nsec - before.tv_nsec) / 1e6;
}

/* About half of the operations wait for half of the most, on average. */
GB_TEST(fakes, a_seed_delays_operations) {
  setenv("FAKE_GPU_SEED", "42", 1);
  setenv("FAKE_GPU_DELAY_US", "4000", 1);
  start();
  GB_CHECK(ms_for_a_hundred() > 20);
}

GB_TEST(fakes, many_streams_come_and_go) {
  start();
  gbi_cu_address memory = new_memory(64);
  for (int i = 0; i < 2000; i++) {
    gbi_cu_stream stream = new_stream();
    CU(cuMemsetD8Async(memory, 1, 64, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuStreamDestroy_v2(stream));
  }
}

static void *enqueue_much(void *arg) {
  gbi_cu_context context = arg;
  CU(cuCtxPushCurrent_v2(context));
  gbi_cu_stream a = new_stream(), b = new_stream();
  gbi_cu_event event = new_event();
  gbi_cu_address memory = new_memory(4096);
  char *host = new_pinned(4096);
  for (int i = 0; i < 200; i++) {
    CU(cuMemsetD8Async(memory, (unsigned char)i, 4096, a));
    CU(cuEventRecord(event, a));
    CU(cuStreamWaitEvent(b, event, 0));
    CU(cuMemcpyDtoHAsync_v2(host, memory, 4096, b));
    CU(cuEventRecord(event, b));
    CU(cuStreamWaitEvent(a, event, 0));
  }
  CU(cuStreamSynchronize(b));
  GB_CHECK_INT((unsigned char)host[4095], 199);
  CU(cuMemFree_v2(memory));
  CU(cuMemFreeHost(host));
  return NULL;
}

GB_TEST(fakes, threads_use_it_at_once) {
  start();
  gbi_cu_context context;
  CU(cuCtxGetCurrent(&context));
  pthread_t threads[4];
  for (int i = 0; i < 4; i++)
    GB_CHECK(!pthread_create(&threads[i], NULL, enqueue_much, context));
  for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
}
