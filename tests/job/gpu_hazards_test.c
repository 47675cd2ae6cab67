/* What locks up jobs on GPUs, each met on fakes that are as bad as the real
 * ones: launches that block, kernels that are loaded at their first launch,
 * memory that waits for the device, one hardware queue for all streams, the
 * legacy default stream, ROCm's locks and its 64 operations a stream
 * (docs/gpu-engine.md has the list). In builds with fault points, what avoids
 * each is left out, and the test must see it: a call that does not end within
 * its time exits with 3. */
#include "job/gpu_graph.h"

#include "fakes/fakes.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

enum { COUNT = 5000 };

static unsigned patience_s = 20;
static gb_job *job;
static gb_error error;

static gb_status sum(pair p, gb_work **work_p) {
  gb_buffer buffer = {p.device, p.bytes / 4, GB_FLOAT32};
  return gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, work_p, &error);
}

static void fill(pair p, float value) {
  for (size_t i = 0; i < p.bytes / 4; i++) ((float *)p.host)[i] = value;
  upload(p);
}

static void must_hold(pair p, float value) {
  download(p);
  for (size_t i = 0; i < p.bytes / 4; i++)
    if (((float *)p.host)[i] != value) _exit(5);
}

static void is_stuck(int signal) {
  (void)signal;
  _exit(3);
}

static void open_with(const char *profile, unsigned alarm_s) {
  setenv("GPUBRIDGE_CHUNK_BYTES", "4096", 1);
  setenv("FAKE_GPU_PROFILE", profile, 1);
  signal(SIGALRM, is_stuck);
  signal(SIGABRT, is_stuck);
  alarm(alarm_s);
  job = open_on_gpu(20000, NULL);
}

static void done(void) {
  alarm(0);
  close_on_gpu(job);
}

/* ---- calls, and what applications do beside them ---- */

static void device_wide_wait(void) {
  unsigned (*wait)(void) = (unsigned (*)(void))fake_function(
      "cuCtxSynchronize", "hipDeviceSynchronize");
  GB_CHECK_INT(wait(), 0);
}

static void use_everything(const char *profile) {
  open_with(profile, patience_s);
  make_current();
  pair a = new_pair(COUNT * 4), b = new_pair(COUNT * 4);
  for (int i = 0; i < 3; i++) {
    gb_work *work = NULL;
    void *memory;
    fill(a, 1);
    fill(b, 2);
    GB_CHECK_INT(sum(a, &work), GB_OK);
    /* The application goes on while gates are shut. */
    MUST(gpu->ops->memory(gpu, 4096, &memory, error));
    GB_CHECK_INT(sum(b, NULL), GB_OK);
    gpu->ops->free_memory(gpu, memory);
    device_wide_wait();
    MUST(gb_work_wait(work, 0, error));
    gb_work_release(work);
    must_hold(a, (float)gb_world());
    must_hold(b, 2 * (float)gb_world());
  }
  done();
}

GB_TEST(gpu_hazard, waits_for_the_device, .ranks = 4, .vendors = "nnaa") {
  use_everything("");
}
GB_TEST(gpu_hazard, one_queue, .ranks = 4, .vendors = "nnaa") {
  setenv("FAKE_GPU_QUEUES", "1", 1);
  use_everything("");
}
GB_TEST(gpu_hazard, blocking_launches, .ranks = 4, .vendors = "nnaa") {
  use_everything("blocking");
}
GB_TEST(gpu_hazard, lazy_loading, .ranks = 4, .vendors = "nnaa") {
  use_everything("lazy");
}
GB_TEST(gpu_hazard, memory_waits_for_the_device, .ranks = 4,
        .vendors = "nnaa") {
  use_everything("alloc-sync");
}
GB_TEST(gpu_hazard, a_streams_lock, .ranks = 4, .vendors = "nnaa") {
  use_everything("rocm-lock");
}
GB_TEST(gpu_hazard, all_of_them, .ranks = 4, .vendors = "nnaa") {
  setenv("FAKE_GPU_QUEUES", "1", 1);
  use_everything("lazy,blocking,alloc-sync,rocm-lock,rocm-ring");
}

/* Two groups of the same ranks, whose calls are many times as large as their
 * rings, under way at once: none takes the room that the other needs. */
GB_TEST(gpu_hazard, groups_at_once, .ranks = 2, .vendors = "na") {
  enum { BYTES = 400000 };
  setenv("GPUBRIDGE_STAGING_BYTES", "65536", 1);
  open_with("", 20);
  pair p[2] = {new_pair(BYTES), new_pair(BYTES)};
  static const int both[] = {0, 1};
  gb_group *groups[2];
  gb_work *works[2];
  for (int g = 0; g < 2; g++) {
    GB_CHECK_INT(gb_group_open(job, both, 2, NULL, &groups[g], &error), GB_OK);
    fill(p[g], (float)(g + 1));
  }
  for (int g = 0; g < 2; g++) {
    gb_buffer buffer = {p[g].device, BYTES / 4, GB_FLOAT32};
    GB_CHECK_INT(gb_all_reduce(groups[g], &buffer, GB_SUM, &works[g], &error),
                 GB_OK);
  }
  for (int g = 1; g >= 0; g--) {
    GB_CHECK_INT(gb_work_wait(works[g], 0, &error), GB_OK);
    gb_work_release(works[g]);
    must_hold(p[g], (float)(2 * (g + 1)));
  }
  done();
}

/* ---- the legacy default stream ---- */

/* Rank 0's call waits for rank 1, which comes only when rank 0 got through with
 * work of its own on the legacy stream. */
static void use_legacy_stream(void) {
  setenv("FAKE_GPU_QUEUES", "8", 1); /* or they would meet in one of them */
  open_with("", 6);
  pair p = new_pair(COUNT * 4), own = new_pair(4096);
  gb_work *work = NULL;
  fill(p, 1);
  if (gb_rank() == 1) gb_test_await((volatile int *)gb_test_shared(), 1, 3000);
  GB_CHECK_INT(sum(p, &work), GB_OK);
  if (gb_rank() == 0) {
    MUST(gpu->ops->copy_in(gpu, own.device, own.host, 4096, NULL, error));
    MUST(gpu->ops->stream_sync(gpu, NULL, error));
    __atomic_store_n((volatile int *)gb_test_shared(), 1, __ATOMIC_RELEASE);
  }
  GB_CHECK_INT(gb_work_wait(work, 0, &error), GB_OK);
  gb_work_release(work);
  must_hold(p, 2);
  done();
}
GB_TEST(gpu_hazard, the_legacy_stream, .ranks = 2, .vendors = "na") {
  use_legacy_stream();
}
GB_TEST(gpu_hazard, the_legacy_stream_on_amd, .ranks = 2, .vendors = "an") {
  use_legacy_stream();
}
/* The caller's own stream may be it. */
GB_TEST(gpu_hazard, called_on_the_legacy_stream, .ranks = 2, .vendors = "na") {
  open_with("", 10);
  pair p = new_pair(COUNT * 4);
  fill(p, 1);
  MUST(gpu->ops->stream_sync(gpu, user, error));
  gb_use_stream(NULL);
  for (int i = 0; i < 3; i++) GB_CHECK_INT(sum(p, NULL), GB_OK);
  MUST(gpu->ops->stream_sync(gpu, NULL, error));
  must_hold(p, 8);
  done();
}

/* ---- what a call must not do ---- */

static void count(const char *function, fake_gpu_counts *counts) {
  void (*ask)(fake_gpu_counts *) =
      (void (*)(fake_gpu_counts *))fake_function(function, function);
  ask(counts);
}

/* Exits with 3 for what is waited for, allocated, or called elsewhere. */
static void count_calls(size_t bytes) {
  fake_gpu_counts start, start_here, all, all_after, here_after;
  open_with("", 20);
  pair p = new_pair(bytes);
  count("fake_gpu_count", &start);
  count("fake_gpu_count_here", &start_here);
  fill(p, 1);
  for (int i = 0; i < 5; i++) GB_CHECK_INT(sum(p, NULL), GB_OK);
  download(p);
  count("fake_gpu_count", &all);
  meet(0);
  for (int i = 0; i < 5; i++) {
    /* The AMD rank's operations stay where they are until the other comes. */
    if (!is_amd()) nap_ms(100);
    GB_CHECK_INT(sum(p, NULL), GB_OK);
    while (gpu->ops->stream_query(gpu, user, &error) == GB_ERR_BUSY) nap_ms(1);
  }
  count("fake_gpu_count", &all_after);
  count("fake_gpu_count_here", &here_after);
  if (all_after.allocations != all.allocations ||
      all_after.blocking != all.blocking ||
      all_after.calls - start.calls != here_after.calls - start_here.calls)
    _exit(3);
  done();
}
GB_TEST(gpu_hazard, calls_only_enqueue, .ranks = 2, .vendors = "na") {
  count_calls(400000);
}

/* ---- what avoids it, left out ---- */

#define LEFT_OUT(name_, vendors_, expect_, fault_, body_)            \
  GB_TEST(gpu_stuck, name_, .ranks = (int)sizeof vendors_ - 1,       \
          .vendors = vendors_, .expect = expect_, .fault = fault_) { \
    body_;                                                           \
  }
static void queue_of_one(const char *profile) {
  setenv("FAKE_GPU_QUEUES", "1", 1);
  use_everything(profile);
}
#define FOUR(place, rank)                                                    \
  place "@" rank ":nth=1:fail," place "@" rank ":nth=2:fail," place "@" rank \
        ":nth=3:fail," place "@" rank ":nth=4:fail"

/* The worker is told after the first gate is enqueued. */
LEFT_OUT(told_late_with_blocking_launches, "na", "x?", "gpu.post@0:fail",
         use_everything("blocking"))
LEFT_OUT(told_late_with_lazy_loading, "nnaa", "x???", "gpu.post@0:fail",
         use_everything("lazy"))
/* A wait stands in front of what it waits for. */
LEFT_OUT(waits_first_in_one_queue, "na", "x?", "gpu.order@0:fail",
         queue_of_one(""))
LEFT_OUT(waits_first_in_one_queue_on_amd, "an", "x?", "gpu.order@0:fail",
         queue_of_one(""))
/* Streams that wait for the legacy one, and it for them. */
LEFT_OUT(blocking_streams, "na", "x?", FOUR("gpu.blocking", "0"),
         use_legacy_stream())
LEFT_OUT(blocking_streams_on_amd, "an", "x?", FOUR("gpu.blocking", "0"),
         use_legacy_stream())
LEFT_OUT(memory_within_a_call, "na", "x?", "gpu.alloc@0:nth=7:fail",
         count_calls(400000))
LEFT_OUT(more_than_a_stream_takes, "na", "?x", "gpu.chunks:fail",
         count_calls(400000))
/* The worker calls the runtime. */
LEFT_OUT(the_worker_calls, "na", "?x", "gpu.worker:fail", count_calls(400000))
