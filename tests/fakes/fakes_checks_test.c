/* The checks: clocks, poison, dead addresses. Every kind of mistake that they
 * are for ends a child with a text that names it; the right way beside it goes
 * through. */
#include "fakes/fakes_test.h"

static const char *const race[] = {"nothing orders the two",
                                   "FAKE_GPU_SEED=", NULL};

typedef struct scene {
  gbi_cu_stream a, b;
  gbi_cu_event event;
  gbi_cu_address memory;
  char *host;
  uint64_t *flags; /* [0], [16], [32] */
} scene;

static scene set(void) {
  start();
  return (scene){.a = new_stream(),
                 .b = new_stream(),
                 .event = new_event(),
                 .memory = new_memory(8192),
                 .host = new_pinned(8192),
                 .flags = new_pinned(4096)};
}

/* A kernel that stands still until it is told to go on. */
typedef struct standing {
  uint64_t begun, go;
} standing;

static void stand(void *arg) {
  standing *at = arg;
  raise_flag(&at->begun, 1);
  await(&at->go, 1);
}

/* On a stream: once it has begun, so has all before it, and no flag of the
 * GPU's has told the host so. */
static void stand_on(gbi_cu_stream stream, standing *kernel) {
  GB_CHECK_INT(fake_gpu_enqueue(stream, "stand", NULL, 0, stand, kernel), 0);
}

/* The write waits for a gate that opens after the read's enqueueing: whichever
 * of the two begins first, the other one finds it. */
static void read_after_write(bool with_event) {
  scene s = set();
  gate(s.a, &s.flags[0], 1);
  CU(cuMemsetD8Async(s.memory, 1, 4096, s.a));
  CU(cuEventRecord(s.event, s.a));
  if (with_event) CU(cuStreamWaitEvent(s.b, s.event, 0));
  CU(cuMemcpyDtoHAsync_v2(s.host, s.memory, 4096, s.b));
  raise_flag(&s.flags[0], 1);
  CU(cuStreamSynchronize(s.a));
  CU(cuStreamSynchronize(s.b));
  GB_CHECK_INT(s.host[4095], 1);
}

static void missing_event(void) {
  read_after_write(false);
}
static void with_event(void) {
  read_after_write(true);
}

GB_TEST(fakes, a_missing_event_is_caught) {
  setenv("FAKE_GPU_SEED", "3", 1);
  dies(missing_event,
       (const char *[]){"nothing orders the two", "cuMemsetD8Async called at",
                        "cuMemcpyDtoHAsync_v2 called at", "FAKE_GPU_SEED=3",
                        NULL});
  lives(with_event);
}

static void nothing(void *arg) {}

static void two_writers(void) {
  scene s = set();
  fake_range range = {(void *)(uintptr_t)s.memory, 64, 1};
  fake_gpu_enqueue(s.a, "one", &range, 1, nothing, NULL);
  fake_gpu_enqueue(s.b, "two", &range, 1, nothing, NULL);
  CU(cuCtxSynchronize());
}

static void two_writers_unchecked(void) {
  setenv("FAKE_GPU_CHECKS", "0", 1);
  two_writers();
  GB_CHECK_INT(counted().checks, 0);
}

GB_TEST(fakes, checks_can_be_left_out) {
  dies(two_writers, race);
  lives(two_writers_unchecked);
}

/* Two streams that only read never race; a writer must wait for both, not only
 * for the one that read last. */
static void write_after_reads(int events) {
  scene s = set();
  char *other = new_pinned(8192);
  gbi_cu_event second = new_event();
  gbi_cu_stream writer = new_stream();
  CU(cuMemcpyDtoHAsync_v2(s.host, s.memory, 4096, s.b));
  CU(cuMemcpyDtoHAsync_v2(other, s.memory, 4096, s.a));
  CU(cuEventRecord(s.event, s.a));
  CU(cuEventRecord(second, s.b));
  CU(cuStreamWaitEvent(writer, s.event, 0));
  if (events == 2) CU(cuStreamWaitEvent(writer, second, 0));
  CU(cuMemsetD8Async(s.memory, 2, 4096, writer));
  CU(cuStreamSynchronize(writer));
}

static void after_one_reader(void) {
  write_after_reads(1);
}
static void after_both_readers(void) {
  write_after_reads(2);
}

GB_TEST(fakes, a_writer_waits_for_every_reader) {
  dies(after_one_reader, race);
  lives(after_both_readers);
}

static void touch(size_t from) {
  scene s = set();
  gate(s.a, &s.flags[0], 1);
  CU(cuMemsetD8Async(s.memory, 1, 1000, s.a));
  CU(cuMemsetD8Async(s.memory + from, 2, 1000, s.b));
  raise_flag(&s.flags[0], 1); /* not after a look at b: that would order */
  CU(cuStreamSynchronize(s.b));
  CU(cuStreamSynchronize(s.a));
}

static void touch_beside(void) {
  touch(1000);
}
static void touch_one_byte(void) {
  touch(999);
}

GB_TEST(fakes, ranges_are_exact_to_the_byte) {
  dies(touch_one_byte, race);
  lives(touch_beside);
}

/* What a later write covers only in part is still there beside it. */
static void touch_the_rest_of(void) {
  scene s = set();
  standing kernel = {0, 1};
  CU(cuMemsetD8Async(s.memory, 1, 3000, s.a));
  CU(cuMemsetD8Async(s.memory + 1000, 1, 1000, s.a));
  stand_on(s.a, &kernel);
  await(&kernel.begun, 1);
  CU(cuMemsetD8Async(s.memory + 2500, 2, 10, s.b));
  CU(cuCtxSynchronize());
}

GB_TEST(fakes, what_is_left_of_a_cut_range_counts) {
  dies(touch_the_rest_of, race);
}

/* Staging: stream a copies into a slot and raises a flag, b copies out of it.*/
static void staging(bool waits) {
  scene s = set();
  gbi_cu_address to = new_memory(4096);
  gate(s.a, &s.flags[0], 1);
  CU(cuMemcpyDtoHAsync_v2(s.host, s.memory, 4096, s.a));
  CU(cuStreamWriteValue64_v2(s.a, on_device(&s.flags[16]), 1, 0));
  if (waits) gate(s.b, &s.flags[16], 1);
  CU(cuMemcpyHtoDAsync_v2(to, s.host, 4096, s.b));
  raise_flag(&s.flags[0], 1);
  CU(cuStreamSynchronize(s.a));
  CU(cuStreamSynchronize(s.b));
}

static void staging_without_wait(void) {
  staging(false);
}
static void staging_with_wait(void) {
  staging(true);
}

GB_TEST(fakes, a_slot_read_before_its_flag_is_caught) {
  dies(staging_without_wait, race);
  lives(staging_with_wait);
}

/* A flag orders what was before it, not what comes behind. */
static void write_behind_the_flag(void) {
  scene s = set();
  gbi_cu_address to = new_memory(4096);
  CU(cuMemcpyDtoHAsync_v2(s.host, s.memory, 4096, s.a));
  CU(cuStreamWriteValue64_v2(s.a, on_device(&s.flags[16]), 1, 0));
  gate(s.a, &s.flags[0], 1);
  CU(cuMemcpyDtoHAsync_v2(s.host, s.memory, 4096, s.a));
  gate(s.b, &s.flags[16], 1);
  CU(cuMemcpyHtoDAsync_v2(to, s.host, 4096, s.b));
  raise_flag(&s.flags[0], 1);
  CU(cuStreamSynchronize(s.b));
  CU(cuStreamSynchronize(s.a));
}

GB_TEST(fakes, a_slot_filled_again_too_early_is_caught) {
  dies(write_behind_the_flag, race);
}

/* The proxy: sees a's flag, opens b's gate by a store. */
static void through_the_host(bool looks) {
  scene s = set();
  gbi_cu_address to = new_memory(4096);
  if (!looks) gate(s.a, &s.flags[0], 1);
  CU(cuMemcpyDtoHAsync_v2(s.host, s.memory, 4096, s.a));
  CU(cuStreamWriteValue64_v2(s.a, on_device(&s.flags[16]), 1, 0));
  gate(s.b, &s.flags[32], 1);
  CU(cuMemcpyHtoDAsync_v2(to, s.host, 4096, s.b));
  if (looks) await(&s.flags[16], 1);
  raise_flag(&s.flags[32], 1);
  raise_flag(&s.flags[0], 1);
  CU(cuStreamSynchronize(s.b));
  CU(cuStreamSynchronize(s.a));
}

static void host_looks(void) {
  through_the_host(true);
}
static void host_does_not_look(void) {
  through_the_host(false);
}

GB_TEST(fakes, the_host_orders_by_flags_on_both_sides) {
  lives(host_looks);
  dies(host_does_not_look, race);
}

/* A flag that goes up and down, as in a replayed graph: the second wait must
 * not take what the host knew when it was up for the first one. */
static void handshake(void) {
  scene s = set();
  gbi_cu_address to = new_memory(4096);
  for (int i = 0; i < 20; i++) {
    CU(cuMemcpyDtoHAsync_v2(s.host, s.memory, 4096, s.a));
    CU(cuStreamWriteValue64_v2(s.a, on_device(&s.flags[0]), 1, 0));
    CU(cuStreamWaitValue64_v2(s.a, on_device(&s.flags[32]), 1, 1));
    CU(cuStreamWriteValue64_v2(s.a, on_device(&s.flags[32]), 0, 0));
    CU(cuStreamWaitValue64_v2(s.b, on_device(&s.flags[16]), 1, 1));
    CU(cuStreamWriteValue64_v2(s.b, on_device(&s.flags[16]), 0, 0));
    CU(cuMemcpyHtoDAsync_v2(to, s.host, 4096, s.b));
    CU(cuStreamWriteValue64_v2(s.b, on_device(&s.flags[48]), 1, 0));
  }
  for (int i = 0; i < 20; i++) {
    await(&s.flags[0], 1);
    raise_flag(&s.flags[0], 0);
    raise_flag(&s.flags[16], 1);
    await(&s.flags[48], 1);
    raise_flag(&s.flags[48], 0);
    raise_flag(&s.flags[32], 1);
  }
  CU(cuCtxSynchronize());
}

GB_TEST(fakes, flags_may_go_down_again) {
  lives(handshake);
}

/* The host opens the gate before it knows of b, and looks at b before the gate
 * is passed: that is no order. */
static void learn_after_opening(void) {
  scene s = set();
  standing kernel = {0, 0};
  stand_on(s.a, &kernel);
  gate(s.a, &s.flags[0], 1);
  CU(cuMemsetD8Async(s.memory, 1, 64, s.a));
  raise_flag(&s.flags[0], 1);
  CU(cuMemsetD8Async(s.memory, 2, 64, s.b));
  CU(cuStreamSynchronize(s.b));
  raise_flag(&kernel.go, 1);
  CU(cuStreamSynchronize(s.a));
}

GB_TEST(fakes, opening_a_gate_gives_what_was_known_then) {
  dies(learn_after_opening, race);
}

/* Where the flag goes down between two waits, the second one gets what the host
 * knew when it raised it again. */
static void learn_while_up(void) {
  scene s = set();
  standing kernel = {0, 0};
  stand_on(s.a, &kernel);
  CU(cuStreamWaitValue64_v2(s.a, on_device(&s.flags[0]), 1, 1));
  CU(cuStreamWriteValue64_v2(s.a, on_device(&s.flags[0]), 0, 0));
  CU(cuStreamWaitValue64_v2(s.a, on_device(&s.flags[0]), 1, 1));
  CU(cuMemsetD8Async(s.memory, 1, 64, s.a));
  raise_flag(&s.flags[0], 1);
  CU(cuMemsetD8Async(s.memory, 2, 64, s.b));
  CU(cuStreamSynchronize(s.b)); /* both waits see it up */
  raise_flag(&kernel.go, 1);
  while (__atomic_load_n(&s.flags[0], __ATOMIC_ACQUIRE)) {
  }
  raise_flag(&s.flags[0], 1);
  CU(cuStreamSynchronize(s.a));
}

GB_TEST(fakes, a_gate_that_shut_again_gives_what_is_known_later) {
  lives(learn_while_up);
}

static void after_synchronising(int how) {
  scene s = set();
  CU(cuMemsetD8Async(s.memory, 1, 4096, s.a));
  CU(cuEventRecord(s.event, s.a));
  if (how == 0) CU(cuStreamSynchronize(s.a));
  if (how == 1) CU(cuEventSynchronize(s.event));
  if (how == 2) CU(cuCtxSynchronize());
  if (how == 3)
    while (cuEventQuery(s.event)) {
    }
  if (how == 4)
    while (cuStreamQuery(s.a)) {
    }
  CU(cuMemcpyDtoHAsync_v2(s.host, s.memory, 4096, s.b));
  CU(cuStreamSynchronize(s.b));
  GB_CHECK_INT(s.host[4095], 1);
}

static void by_stream(void) {
  after_synchronising(0);
}
static void by_event(void) {
  after_synchronising(1);
}
static void by_device(void) {
  after_synchronising(2);
}
static void by_event_query(void) {
  after_synchronising(3);
}
static void by_stream_query(void) {
  after_synchronising(4);
}
static void by_nothing(void) {
  setenv("FAKE_GPU_QUEUES", "1", 1); /* what orders them is only luck */
  after_synchronising(5);
}

GB_TEST(fakes, synchronising_orders) {
  lives(by_stream);
  lives(by_event);
  lives(by_device);
  lives(by_event_query);
  lives(by_stream_query);
  dies(by_nothing, race);
}

static void legacy_orders(void) {
  scene s = set();
  gbi_cu_stream blocking;
  CU(cuStreamCreate(&blocking, 0));
  CU(cuMemsetD8Async(s.memory, 1, 4096, blocking));
  CU(cuMemsetD8Async(s.memory, 2, 4096, NULL));
  CU(cuMemcpyDtoHAsync_v2(s.host, s.memory, 4096, blocking));
  CU(cuStreamSynchronize(blocking));
  GB_CHECK_INT(s.host[0], 2);
}

static void legacy_does_not_order_the_others(void) {
  scene s = set();
  CU(cuMemsetD8Async(s.memory, 1, 4096, NULL));
  CU(cuMemcpyDtoHAsync_v2(s.host, s.memory, 4096, s.a));
  CU(cuCtxSynchronize());
}

GB_TEST(fakes, the_legacy_stream_orders_blocking_streams_only) {
  lives(legacy_orders);
  dies(legacy_does_not_order_the_others, race);
}

static void use_freed(void) {
  scene s = set();
  CU(cuMemFree_v2(s.memory));
  cuMemsetD8Async(s.memory, 1, 64, s.a);
}

static void free_twice(void) {
  scene s = set();
  CU(cuMemFree_v2(s.memory));
  cuMemFree_v2(s.memory);
}

static void reach_beyond(void) {
  scene s = set();
  cuMemcpyDtoHAsync_v2(s.host, s.memory + 4096, 4097, s.a);
}

static void use_destroyed_stream(void) {
  scene s = set();
  CU(cuStreamDestroy_v2(s.a));
  cuMemsetD8Async(s.memory, 1, 64, s.a);
}

static void use_destroyed_event(void) {
  scene s = set();
  CU(cuEventDestroy_v2(s.event));
  cuStreamWaitEvent(s.a, s.event, 0);
}

GB_TEST(fakes, dead_things_are_known) {
  dies(use_freed, (const char *[]){"was freed", "cuMemFree_v2 called at",
                                   "cuMemsetD8Async", NULL});
  dies(free_twice, (const char *[]){"was freed", NULL});
  dies(reach_beyond, (const char *[]){"reach beyond the 8192 bytes", NULL});
  dies(use_destroyed_stream, (const char *[]){"was destroyed", NULL});
  dies(use_destroyed_event, (const char *[]){"was destroyed", NULL});
}

GB_TEST(fakes, destinations_are_poison_until_they_are_written) {
  scene s = set();
  standing kernel = {0, 0};
  fake_range range = {s.host, 64, 1};
  memset(s.host, 1, 128);
  GB_CHECK_INT(fake_gpu_enqueue(s.a, "kernel", &range, 1, stand, &kernel), 0);
  for (int i = 0; i < 64; i++)
    GB_CHECK_INT((unsigned char)s.host[i], FAKE_POISON); /* at once */
  GB_CHECK_INT(s.host[64], 1);
  raise_flag(&kernel.go, 1);
  CU(cuStreamSynchronize(s.a));
}

/* What a gate keeps back is still the host's to read. */
GB_TEST(fakes, nothing_is_poisoned_behind_a_gate) {
  scene s = set();
  standing kernel = {0, 0};
  fake_range range = {s.host, 64, 1};
  memset(s.host, 1, 64);
  gate(s.a, &s.flags[0], 1);
  GB_CHECK_INT(fake_gpu_enqueue(s.a, "kernel", &range, 1, stand, &kernel), 0);
  GB_CHECK_INT(s.host[5], 1);
  raise_flag(&s.flags[0], 1);
  await(&kernel.begun, 1);
  GB_CHECK_INT((unsigned char)s.host[5], FAKE_POISON);
  raise_flag(&kernel.go, 1);
  CU(cuStreamSynchronize(s.a));
}

GB_TEST(fakes, what_is_read_too_is_not_poisoned) {
  scene s = set();
  standing kernel = {0, 0};
  fake_range ranges[2] = {{s.host, 100, 1}, {s.host + 30, 20, 0}};
  memset(s.host, 1, 100);
  GB_CHECK_INT(fake_gpu_enqueue(s.a, "kernel", ranges, 2, stand, &kernel), 0);
  for (int i = 0; i < 100; i++)
    GB_CHECK_INT((unsigned char)s.host[i], i >= 30 && i < 50 ? 1 : FAKE_POISON);
  raise_flag(&kernel.go, 1);
  CU(cuStreamSynchronize(s.a));
}

static void open_host_memory(void *arg) {
  fake_gpu_open(arg);
}

static void kernel_touches_host_memory(void) {
  scene s = set();
  static char pageable[64];
  fake_gpu_enqueue(s.a, "kernel", NULL, 0, open_host_memory, pageable);
  CU(cuStreamSynchronize(s.a));
}

static void double_it(void *arg) {
  unsigned char *memory = fake_gpu_open(arg);
  for (int i = 0; i < 64; i++) memory[i] = (unsigned char)(memory[i] * 2);
}

GB_TEST(fakes, kernels_see_device_memory) {
  dies(kernel_touches_host_memory, (const char *[]){"is host memory", NULL});
  scene s = set();
  void *memory = (void *)(uintptr_t)s.memory;
  fake_range ranges[2] = {{memory, 64, 0}, {memory, 64, 1}};
  CU(cuMemsetD8Async(s.memory, 21, 64, s.a));
  GB_CHECK_INT(fake_gpu_enqueue(s.a, "double", ranges, 2, double_it, memory),
               0);
  CU(cuMemcpyDtoHAsync_v2(s.host, s.memory, 64, s.a));
  CU(cuStreamSynchronize(s.a));
  GB_CHECK_INT(s.host[63], 42);
}

static void kernel_races(void) {
  scene s = set();
  void *memory = (void *)(uintptr_t)s.memory;
  fake_range range = {memory, 64, 1};
  fake_gpu_enqueue(s.a, "kernel", &range, 1, double_it, memory);
  fake_gpu_enqueue(s.b, "another kernel", &range, 1, double_it, memory);
  CU(cuCtxSynchronize());
}

GB_TEST(fakes, kernels_are_checked_as_well) {
  dies(kernel_races, (const char *[]){"another kernel called at", NULL});
}

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WITH_TSAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(WITH_TSAN)

/* Has seen the flag, and reads the data without an acquire. */
static void read_without_acquire(void) {
  scene s = set();
  gate(s.a, &s.flags[0], 1);
  CU(cuMemsetD8Async(s.memory, 1, 64, s.a));
  CU(cuMemcpyDtoHAsync_v2(s.host, s.memory, 64, s.a));
  CU(cuStreamWriteValue64_v2(s.a, on_device(&s.flags[16]), 1, 0));
  raise_flag(&s.flags[0], 1);
  while (!__atomic_load_n(&s.flags[16], __ATOMIC_RELAXED)) {
  }
  volatile char got = s.host[0];
  (void)got;
}

GB_TEST(fakes, tsan_sees_a_load_before_its_flag) {
  ends_with(read_without_acquire, "data race");
}
#else
GB_TEST(fakes, tsan_sees_a_load_before_its_flag) {
  gb_test_skip("only in a build with the thread sanitizer");
}
#endif
