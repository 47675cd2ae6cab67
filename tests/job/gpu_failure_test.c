/* What goes wrong on GPUs ends on every rank, in time, with the cause: bad
 * memory, calls that do not match, a library that fails, a rank that is killed
 * while gates are closed, too little pinned memory, a GPU that two ranks of an
 * island would drive (S109). And what a steady call must not do: allocate, wait
 * on the host, call the vendor's runtime from the worker. In builds with fault
 * points, each thing that orders a call on the streams is left out once, and
 * the fakes' clocks must notice. */
#include "job/gpu.h"

#include <dlfcn.h>

#include "fakes/fakes.h"

enum { COUNT = 5000 };

static gb_status sum(gb_job *job, pair p, size_t n, gb_work **work_p,
                     gb_error *error) {
  gb_buffer buffer = {p.device, n, GB_FLOAT32};
  return gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, work_p, error);
}

static void fill(pair p, float value) {
  for (size_t i = 0; i < p.bytes / 4; i++) ((float *)p.host)[i] = value;
  upload(p);
}

static void must_hold(pair p, size_t n, float value) {
  download(p);
  for (size_t i = 0; i < n; i++)
    if (((float *)p.host)[i] != value)
      gb_test_fail(__FILE__, __LINE__, "element %zu is %g, not %g", i,
                   (double)((float *)p.host)[i], (double)value);
}

/* ---- what a call gives ---- */

GB_TEST(gpu_call, async, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = open_on_gpu(20000, NULL);
  pair a = new_pair(COUNT * 4), b = new_pair(COUNT * 4);
  gb_work *first = NULL, *second = NULL;
  for (int round = 0; round < 20; round++) {
    fill(a, (float)(gb_rank() + 1));
    fill(b, 2);
    MUST(sum(job, a, COUNT, &first, error));
    MUST(sum(job, b, COUNT, &second, error));
    MUST(gb_work_wait(first, 0, error)); /* the stream waits, not the host */
    MUST(gb_work_wait(second, 0, error));
    must_hold(a, COUNT, 10);
    must_hold(b, COUNT, 8);
    int done = 0;
    MUST(gb_work_test(second, &done, error));
    GB_CHECK_INT(done, 1);
    gb_work_release(first);
    gb_work_release(second);
  }
  close_on_gpu(job);
}

GB_TEST(gpu_call, subgroup, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = open_on_gpu(20000, NULL);
  pair p = new_pair(COUNT * 4);
  const int ends[] = {0, 3};
  gb_group *group = NULL;
  if (gb_rank() % 3 == 0) {
    MUST(gb_group_open(job, ends, 2, NULL, &group, error));
    gb_buffer buffer = {p.device, COUNT, GB_FLOAT32};
    fill(p, (float)gb_rank());
    MUST(gb_all_reduce(group, &buffer, GB_SUM, NULL, error));
    must_hold(p, COUNT, 3);
  }
  fill(p, 1);
  MUST(sum(job, p, COUNT, NULL, error));
  must_hold(p, COUNT, 4);
  close_on_gpu(job);
}

/* ---- what it must not do ---- */

static void count(const char *function, fake_gpu_counts *counts) {
  char path[700];
  snprintf(path, sizeof path, "%s", getenv("GPUBRIDGE_CUDA_LIB"));
  if (is_amd())
    memcpy(strstr(path, "cuda/libcuda.so.1"), "hip/libamdhip64.so.6", 21);
  void *fake = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  GB_CHECK(fake);
  void (*ask)(fake_gpu_counts *);
  *(void **)&ask = dlsym(fake, function);
  GB_CHECK(ask);
  ask(counts);
}

/* ROCm lets no more than 64 operations wait on a stream without waiting too. */
static void await_stream(void) {
  gb_error error;
  double start = test_now();
  while (gpu->ops->stream_query(gpu, user, &error) == GB_ERR_BUSY) {
    GB_CHECK(test_now() - start < 10);
    nap_ms(1);
  }
}

GB_TEST(gpu_call, steady_calls_cost_nothing_extra, .ranks = 4,
        .vendors = "nnaa") {
  gb_job *job = open_on_gpu(20000, NULL);
  pair p = new_pair(COUNT * 4);
  fill(p, 1);
  for (int i = 0; i < 5; i++) MUST(sum(job, p, COUNT, NULL, error));
  download(p);
  fake_gpu_counts all, here, all_after, here_after;
  count("fake_gpu_count", &all);
  count("fake_gpu_count_here", &here);
  for (int i = 0; i < 20; i++) {
    MUST(sum(job, p, COUNT, NULL, error));
    await_stream();
  }
  count("fake_gpu_count", &all_after);
  count("fake_gpu_count_here", &here_after);
  GB_CHECK_INT(all_after.allocations - all.allocations, 0);
  GB_CHECK_INT(all_after.blocking - all.blocking, 0);
  /* Every call of the runtime was made here, none by the worker. (A kernel of
   * the fake library is no call.) */
  GB_CHECK_INT(all_after.calls - all.calls, here_after.calls - here.calls);
  download(p);
  close_on_gpu(job);
}

/* ---- what is refused ---- */

GB_TEST(gpu_refuses, memory_of_the_host, .ranks = 2, .vendors = "na") {
  gb_job *job = open_on_gpu(20000, NULL);
  float value = 1;
  gb_buffer buffer = {&value, 1, GB_FLOAT32};
  gb_error error;
  gb_status status =
      gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, &error);
  must_be_refused(status, GB_ERR_ARGUMENT, &error, "on the host");
  pair p = new_pair(64);
  fill(p, 1);
  MUST(sum(job, p, 16, NULL, error)); /* nothing is lost */
  must_hold(p, 16, 2);
  close_on_gpu(job);
}

/* Without kernels on one rank no rank has them, and all say why. */
GB_TEST(gpu_refuses, what_the_library_cannot_reduce, .ranks = 4,
        .vendors = "nnaa") {
  if (gb_rank() == 2) setenv("GPUBRIDGE_KERNELS", "off", 1);
  gb_job *job = open_on_gpu(20000, NULL);
  pair p = new_pair(64);
  gb_buffer buffer = {p.device, 16, GB_INT32};
  gb_error error;
  gb_status status =
      gb_all_reduce(gb_job_world(job), &buffer, GB_BXOR, NULL, &error);
  must_be_refused(status, GB_ERR_UNSUPPORTED, &error, "cannot be reduced");
  must_be_refused(status, GB_ERR_UNSUPPORTED, &error,
                  "GPUBRIDGE_KERNELS is off");
  must_be_refused(status, GB_ERR_UNSUPPORTED, &error, "rank 2 (");
  close_on_gpu(job);
}

/* The rank that is alone in its island would need no kernel. */
GB_TEST(gpu_refuses, what_another_island_cannot_reduce, .ranks = 3,
        .vendors = "naa") {
  if (gb_rank() == 2) setenv("GPUBRIDGE_KERNELS", "off", 1);
  gb_job *job = open_on_gpu(20000, NULL);
  pair p = new_pair(64);
  gb_buffer buffer = {p.device, 16, GB_INT16};
  gb_error error;
  gb_status status =
      gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, &error);
  must_be_refused(status, GB_ERR_UNSUPPORTED, &error, "cannot be reduced");
  must_be_refused(status, GB_ERR_UNSUPPORTED, &error, "rank 2 (");
  close_on_gpu(job);
}

GB_TEST(gpu_refuses, kernels_that_are_required, .ranks = 4, .vendors = "nnaa") {
  gb_job *job;
  gb_error error;
  use_fakes();
  setenv("GPUBRIDGE_KERNELS", "require", 1);
  if (gb_rank() == 1) {
    setenv("GPUBRIDGE_CACHE_DIR", "/proc/none", 1);
    setenv("FAKE_RTC_FAIL", "error: no such word", 1);
  }
  gb_status status = try_open_on_gpu(20000, NULL, &job, &error);
  must_be_refused(status, GB_ERR_INTERNAL, &error,
                  "GPUBRIDGE_KERNELS requires");
  must_be_refused(status, GB_ERR_INTERNAL, &error, "no such word");
  must_be_refused(status, GB_ERR_INTERNAL, &error, "rank 1");
}

GB_TEST(gpu_refuses, memory_between_elements, .ranks = 2, .vendors = "na") {
  gb_job *job = open_on_gpu(20000, NULL);
  pair p = new_pair(64);
  gb_buffer buffer = {(uint8_t *)p.device + 1, 8, GB_INT32};
  gb_error error;
  gb_status status =
      gb_all_reduce(gb_job_world(job), &buffer, GB_BXOR, NULL, &error);
  must_be_refused(status, GB_ERR_ARGUMENT, &error, "aligned");
  close_on_gpu(job);
}

/* Both ranks of the island name one GPU: every rank hears it. */
GB_TEST(gpu_refuses, one_gpu_for_two_ranks, .ranks = 3, .vendors = "nna") {
  gb_job *job;
  gb_error error;
  if (!is_amd())
    setenv("FAKE_GPU_UUID", "GPU-00000000-0000-0000-0000-000000000001", 1);
  use_fakes();
  gb_status status = try_open_on_gpu(20000, NULL, &job, &error);
  must_be_refused(status, GB_ERR_REFUSED, &error, "same GPU");
}

/* One GPU, two ranks, two islands of one vendor: a split test on one card works
 * (S109), says so in its topology, and is the labels' only. */
static void one_card(void) {
  setenv("FAKE_GPU_UUID", "GPU-00000000-0000-0000-0000-000000000001", 1);
  setenv("GPUBRIDGE_SPLIT_TEST", "half", 1);
}

GB_TEST(gpu_split, two_islands_on_one_gpu, .ranks = 2, .vendors = "nn") {
  one_card();
  gb_job *job = open_on_gpu(20000, NULL);
  gb_job_info info = {.size = sizeof info};
  pair p = new_pair(COUNT * 4), q = new_pair(COUNT * 4);
  GB_CHECK(gb_job_get_info(job, &info) == GB_OK);
  GB_CHECK(!strcmp(info.run_kind, "split-test"));
  GB_CHECK(!strcmp(info.split_test, "half") && info.islands_count == 2);
  GB_CHECK(!strcmp(info.detected_vendor, "nvidia") && !info.simulated);
  GB_CHECK(!strcmp(info.vendor, gb_rank() ? "amd" : "nvidia"));
  fill(p, (float)(gb_rank() + 1));
  MUST(sum(job, p, COUNT, NULL, error));
  must_hold(p, COUNT, 3);
  gb_buffer out = {p.device, COUNT, GB_FLOAT32};
  gb_buffer in = {q.device, COUNT, GB_FLOAT32};
  gb_p2p_op ops[2] = {{1, out, !gb_rank(), 0}, {0, in, !gb_rank(), 0}};
  MUST(gb_batch(gb_job_world(job), ops, 2, NULL, error));
  must_hold(q, COUNT, 3);
  close_on_gpu(job);
}

/* A third rank makes two of one island share it: NCCL would refuse that too,
 * later and in other words. */
GB_TEST(gpu_split, two_ranks_of_an_island_on_one_gpu, .ranks = 3,
        .vendors = "nnn") {
  gb_job *job;
  gb_error error;
  one_card();
  use_fakes();
  gb_status status = try_open_on_gpu(20000, NULL, &job, &error);
  must_be_refused(status, GB_ERR_REFUSED, &error, "ranks 0 and 1");
  GB_CHECK_TEXT(error.text,
                "same GPU GPU-00000000-0000-0000-0000-000000000001");
  GB_CHECK_TEXT(error.text, "LOCAL_RANK");
}

/* Two slices of one card, in one island: each has a UUID of its own, and they
 * are two GPUs. */
GB_TEST(gpu_split, two_slices_of_one_card, .ranks = 3, .vendors = "nna") {
  char slice[64];
  if (!is_amd()) {
    setenv("FAKE_GPU_UUID", "GPU-00000000-0000-0000-0000-000000000001", 1);
    snprintf(slice, sizeof slice, "MIG-00000000-0000-0000-0000-%012d",
             gb_rank() + 2);
    setenv("FAKE_GPU_MIG", slice, 1);
  }
  gb_job *job = open_on_gpu(20000, NULL);
  pair p = new_pair(COUNT * 4);
  if (!is_amd()) GB_CHECK(!strcmp(gpu->facts.uuid, slice));
  fill(p, (float)(gb_rank() + 1));
  MUST(sum(job, p, COUNT, NULL, error));
  must_hold(p, COUNT, 6);
  close_on_gpu(job);
}

GB_TEST(gpu_split, one_slice_twice, .ranks = 2, .vendors = "nn") {
  gb_job *job;
  gb_error error;
  setenv("FAKE_GPU_UUID", "GPU-00000000-0000-0000-0000-000000000001", 1);
  setenv("FAKE_GPU_MIG", "MIG-00000000-0000-0000-0000-000000000002", 1);
  use_fakes();
  gb_status status = try_open_on_gpu(20000, NULL, &job, &error);
  must_be_refused(status, GB_ERR_REFUSED, &error,
                  "same GPU MIG-00000000-0000-0000-0000-000000000002");
}

GB_TEST(gpu_refuses, no_such_device, .ranks = 2, .vendors = "na") {
  gb_job_params params = GB_JOB_PARAMS_INIT;
  gb_job *job;
  gb_error error;
  use_fakes();
  params.timeout_ms = 20000;
  params.vendor = is_amd() ? "amd" : "nvidia";
  params.device = gb_rank() ? 0 : 5;
  gb_status status = gb_job_open(&params, &job, &error);
  GB_CHECK(status != GB_OK);
  GB_CHECK_TEXT(error.text, "5");
}

/* ---- pinned memory ---- */

GB_TEST(gpu_pinned, a_smaller_ring_does, .ranks = 2, .vendors = "na") {
  setenv("FAKE_GPU_PINNED_MOST", "12000000", 1);
  gb_job *job = open_on_gpu(20000, NULL);
  pair p = new_pair(2000000);
  fill(p, 1);
  MUST(sum(job, p, 500000, NULL, error));
  must_hold(p, 500000, 2);
  close_on_gpu(job);
}

GB_TEST(gpu_pinned, none_at_all, .ranks = 2, .vendors = "na") {
  setenv("FAKE_GPU_PINNED_MOST", "1500000", 1);
  gb_job *job = open_on_gpu(20000, NULL);
  pair p = new_pair(1000000);
  gb_error error = {.text = ""};
  gb_status status = sum(job, p, 250000, NULL, &error);
  must_be_refused(status, GB_ERR_MEMORY, &error, "Pinned memory");
  close_on_gpu(job);
}

/* ---- failures ---- */

GB_TEST(gpu_fails, calls_that_do_not_match, .ranks = 2, .vendors = "na") {
  gb_job *job = open_on_gpu(20000, NULL);
  pair p = new_pair(COUNT * 4);
  gb_error error;
  fill(p, 1);
  (void)sum(job, p, gb_rank() ? 100 : 200, NULL, &error);
  await_failure(job, &error);
  GB_CHECK_TEXT(error.text, "100");
  GB_CHECK_TEXT(error.text, "200");
  MUST(gpu->ops->stream_sync(gpu, user, error)); /* nothing waits any more */
  close_on_gpu(job);
}

/* The others' gates are closed when it dies. */
static void die(int victim) {
  gb_job *job = open_on_gpu(20000, NULL);
  pair p = new_pair(COUNT * 4);
  gb_error error;
  fill(p, 1);
  MUST(sum(job, p, COUNT, NULL, error));
  must_hold(p, COUNT, (float)gb_world());
  meet(0);
  if (gb_rank() == victim) {
    nap_ms(100);
    kill(getpid(), SIGKILL);
  }
  (void)sum(job, p, COUNT, NULL, &error);
  double start = test_now();
  await_failure(job, &error);
  if (test_now() - start > 3)
    gb_test_fail(__FILE__, __LINE__, "it took %.1f s", test_now() - start);
  char name[16];
  snprintf(name, sizeof name, "rank %d", victim);
  GB_CHECK_TEXT(error.text, name);
  MUST(gpu->ops->stream_sync(gpu, user, error));
  close_on_gpu(job);
}

/* A member of an island is gone and the library lets the others' streams go on:
 * no rank takes what came of that for a sum. */
GB_TEST(gpu_fails, no_wrong_sum_gets_out, .ranks = 4, .vendors = "nnaa",
        .expect = "000k", .timeout_ms = 60000) {
  gb_job *job = open_on_gpu(20000, NULL);
  pair p = new_pair(COUNT * 4);
  gb_work *work = NULL;
  gb_error error;
  fill(p, 1);
  MUST(sum(job, p, COUNT, NULL, error));
  must_hold(p, COUNT, 4);
  meet(0);
  if (gb_rank() == 3) kill(getpid(), SIGKILL);
  fill(p, 1);
  if (sum(job, p, COUNT, &work, &error) == GB_OK) {
    int done = 0;
    double start = test_now();
    gb_status status = GB_OK;
    while (!done && status == GB_OK) {
      status = gb_work_test(work, &done, &error);
      GB_CHECK(test_now() - start < 20);
      nap_ms(1);
    }
    GB_CHECK(status != GB_OK); /* three of four never are the sum */
    gb_work_release(work);
  }
  close_on_gpu(job);
}

GB_TEST(gpu_fails, a_leader_is_killed, .ranks = 4, .vendors = "nnaa",
        .expect = "00k0") {
  die(2);
}
GB_TEST(gpu_fails, a_member_is_killed, .ranks = 4, .vendors = "nnaa",
        .expect = "0k00") {
  die(1);
}

GB_TEST(gpu_fails, the_library_reports_an_error, .ranks = 4,
        .vendors = "nnaa") {
  if (gb_rank() == 3) setenv("FAKE_NCCL_FAIL", "async:3:6", 1);
  gb_job *job = open_on_gpu(20000, NULL);
  pair p = new_pair(COUNT * 4);
  gb_error error;
  fill(p, 1);
  for (int i = 0; i < 3; i++) (void)sum(job, p, COUNT, NULL, &error);
  await_failure(job, &error);
  GB_CHECK_TEXT(error.text, "rank 3");
  MUST(gpu->ops->stream_sync(gpu, user, error));
  close_on_gpu(job);
}

/* The island's library waits for a rank that does not call it: there is no host
 * in that call, and the watch ends it. */
static void never_called(int who) {
  gb_job *job = open_on_gpu(4000, NULL);
  const int island[] = {0, 1};
  gb_group *group = gb_job_world(job);
  pair p = new_pair(COUNT * 4);
  gb_error error;
  if (gb_world() > 2 && gb_rank() < 2)
    MUST(gb_group_open(job, island, 2, NULL, &group, error));
  gb_buffer buffer = {p.device, COUNT, GB_FLOAT32};
  fill(p, 1);
  if (gb_rank() < 2) {
    MUST(gb_all_reduce(group, &buffer, GB_SUM, NULL, error));
    must_hold(p, COUNT, 2);
  }
  if (gb_rank() == who)
    MUST(gb_all_reduce(group, &buffer, GB_SUM, NULL, error));
  await_failure(job, &error);
  GB_CHECK_TEXT(error.text, "did not end on the GPU");
  GB_CHECK_TEXT(error.text, "all_reduce number 1");
  GB_CHECK_TEXT(error.text, who ? "rank 1" : "rank 0");
  MUST(gpu->ops->stream_sync(gpu, user, error));
  close_on_gpu(job);
}
GB_TEST(gpu_fails, a_call_that_one_rank_never_makes, .ranks = 2,
        .vendors = "nn") {
  never_called(0);
}
GB_TEST(gpu_fails, likewise_in_a_group_of_an_island, .ranks = 3,
        .vendors = "nna") {
  never_called(1);
}

/* ---- what keeps order, left out ---- */

/* A failed check of the fakes aborts: the rank ends with 3. Calls of many
 * chunks on several buffers, all under way at once, so that every kind of wait
 * is there to be left out. */
static void run_disordered(const char *ring) {
  enum { BUFFERS = 4, N = 40000 };
  pair p[BUFFERS];
  gb_work *works[BUFFERS + 1];
  gb_error error;
  signal(SIGABRT, ends);
  setenv("GPUBRIDGE_CHUNK_BYTES", "4096", 1);
  setenv("GPUBRIDGE_STAGING_BYTES", ring, 1);
  setenv("FAKE_GPU_SEED", "3", 1);
  gb_job *job = open_on_gpu(5000, NULL);
  for (int i = 0; i < BUFFERS; i++) p[i] = new_pair(N * 4);
  for (int i = 0; i < BUFFERS; i++) fill(p[i], (float)(i + 1));
  /* Again on the first buffer, at once: program order says which is first. */
  for (int i = 0; i <= BUFFERS; i++)
    if (sum(job, p[i ? i - 1 : 0], N, &works[i], &error) != GB_OK) _exit(4);
  for (int i = 0; i <= BUFFERS; i++) MUST(gb_work_wait(works[i], 0, error));
  if (sum(job, p[1], N, NULL, &error) != GB_OK) _exit(4);
  for (int i = 0; i < BUFFERS; i++) download(p[i]);
  for (int i = 0; i < BUFFERS; i++)
    for (size_t k = 0; k < N; k++) {
      float want = (float)((i + 1) * (i < 2 ? 4 : 2));
      if (((float *)p[i].host)[k] != want) leave_together(5);
    }
  leave_together(0);
}

/* One that comes round within a call, and one that a call does not fill. */
#define SMALL "65536"
#define LARGE "1M"
#define LEFT_OUT(name_, ring_, fault_)                                   \
  GB_TEST(gpu_order, name_, .ranks = 2, .vendors = "na", .expect = "x?", \
          .fault = fault_) {                                             \
    run_disordered(ring_);                                               \
  }
LEFT_OUT(behind_the_callers_stream, SMALL, "gpu.begin@0:fail")
LEFT_OUT(behind_a_call_on_the_same_buffer, LARGE, "gpu.follow@0:nth=2:fail")
LEFT_OUT(before_the_callers_stream, SMALL, "gpu.end@0:fail")
#define WAITS(a, b, c)                                                       \
  "gpu.wait@0:nth=" #a ":fail,gpu.wait@0:nth=" #b ":fail,gpu.wait@0:nth=" #c \
  ":fail,"
LEFT_OUT(between_lanes, SMALL,
         WAITS(1, 2, 3) WAITS(4, 5, 6) WAITS(7, 8, 9) WAITS(10, 11, 12)
             WAITS(13, 14, 15) WAITS(16, 17, 18) WAITS(19, 20, 21) "")
LEFT_OUT(for_what_arrived, SMALL, "gpu.release@0:fail")
LEFT_OUT(for_what_is_ready, SMALL, "gpu.gate@0:fail")
/* Nothing is left out: such calls are right. */
GB_TEST(gpu_order, all_there, .ranks = 2, .vendors = "na") {
  run_disordered(SMALL);
}
LEFT_OUT(for_the_ring, LARGE, "gpu.ring@0:nth=4:fail")

/* One island's calls on streams of the caller in turns: what they share (the
 * rows that a kernel folds) is for one at a time. */
static void run_two_streams(void) {
  enum { N = 3000, ROUNDS = 10 };
  pair p[2];
  gbi_stream streams[2];
  gb_error error;
  signal(SIGABRT, ends);
  setenv("FAKE_GPU_SEED", "3", 1);
  setenv("FAKE_GPU_DELAY_US", "3000", 1); /* the first is still under way */
  gb_job *job = open_on_gpu(20000, NULL);
  streams[0] = user;
  MUST(gpu->ops->stream_new(gpu, &streams[1], error));
  for (int i = 0; i < 2; i++) p[i] = new_pair(N * 4);
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < 2; i++) {
      int32_t *at = p[i].host;
      for (int k = 0; k < N; k++) at[k] = (k + round + i) << (8 * gb_rank());
      gb_buffer buffer = {p[i].device, N, GB_INT32};
      user = streams[i];
      gb_use_stream(user);
      upload(p[i]);
      if (gb_all_reduce(gb_job_world(job), &buffer, GB_BXOR, NULL, &error))
        _exit(4);
    }
    for (int i = 0; i < 2; i++) {
      user = streams[i];
      download(p[i]);
      for (int k = 0; k < N; k++)
        if (((int32_t *)p[i].host)[k] !=
            ((k + round + i) ^ ((k + round + i) << 8)))
          _exit(5);
    }
  }
  for (int i = 0; i < 2; i++) free_pair(p[i]);
  gpu->ops->stream_free(gpu, streams[1]);
  user = streams[0];
  close_on_gpu(job);
}
GB_TEST(gpu_order, two_streams_in_turns, .ranks = 2, .vendors = "nn") {
  run_two_streams();
}
GB_TEST(gpu_order, between_streams, .ranks = 2, .vendors = "nn", .expect = "x?",
        .fault = "gpu.switch@0:fail") {
  run_two_streams();
}
