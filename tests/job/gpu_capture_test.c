/* Calls that are captured into graphs, on fake GPUs of both vendors: replayed
 * any number of times with what the buffers hold then, among calls that are
 * not captured; ended with the cause when a rank dies or disagrees during a
 * replay; refused in words, the capture unbroken and the job usable, where the
 * runtime cannot capture their waits. In builds with fault points, each part of
 * the handshake is left out once, and results must then be wrong or calls hang
 * until their timeout. */
#include "job/gpu_graph.h"

#include <signal.h>

enum { COUNT = 5000, REPLAYS = 5 };

static gb_status sum(gb_job *job, pair p, size_t n, gb_work **work_p,
                     gb_error *error) {
  gb_buffer buffer = {p.device, n, GB_FLOAT32};
  return gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, work_p, error);
}

static void fill(pair p, float value) {
  for (size_t i = 0; i < p.bytes / 4; i++)
    ((float *)p.host)[i] = value + (float)(i % 7);
  upload(p);
}

static void must_hold(pair p, size_t n, float value, float step) {
  download(p);
  for (size_t i = 0; i < n; i++) {
    float want = value + step * (float)(i % 7);
    if (((float *)p.host)[i] != want)
      gb_test_fail(__FILE__, __LINE__, "element %zu is %g, not %g", i,
                   (double)((float *)p.host)[i], (double)want);
  }
}

/* Of all ranks' `base` + rank. */
static float sum_of(float base) {
  float w = (float)gb_world();
  return w * base + w * (w - 1) / 2;
}

static gb_job *open_for_graphs(unsigned timeout_ms, const char *policy) {
  setenv("GPUBRIDGE_CHUNK_BYTES", "4096", 1);
  setenv("FAKE_GPU_PROFILE", "graph-memops", 0);
  gb_job *job = open_on_gpu(timeout_ms, policy);
  make_current();
  return job;
}

/* ---- replays ---- */

/* One graph with a call: each replay takes what is there then. */
static void replay_one(gb_job *job, pair p) {
  begin_capture();
  MUST(sum(job, p, COUNT, NULL, error));
  void *graph = end_capture();
  for (int i = 0; i < REPLAYS; i++) {
    fill(p, (float)(i * 10 + gb_rank()));
    replay(graph);
    must_hold(p, COUNT, sum_of((float)(i * 10)), (float)gb_world());
  }
  destroy(graph);
}

/* Two calls in one graph, one after another on the same memory, and a graph of
 * another call between its replays; calls that are not captured among them,
 * none of which the host waits for. */
static void interleave(gb_job *job, pair a, pair b) {
  float w = (float)gb_world();
  gb_buffer row = {b.device, COUNT, GB_FLOAT32};
  gb_group *world = gb_job_world(job);
  begin_capture();
  MUST(sum(job, a, COUNT, NULL, error));
  MUST(sum(job, a, COUNT, NULL, error));
  void *twice = end_capture();
  begin_capture();
  MUST(gb_broadcast(world, &row, gb_world() - 1, NULL, error));
  void *cast = end_capture();
  for (int i = 0; i < REPLAYS; i++) {
    gb_work *work = NULL;
    fill(a, (float)(i + gb_rank()));
    fill(b, (float)(100 * i + gb_rank()));
    MUST(sum(job, a, COUNT, &work, error));
    MUST(gb_work_wait(work, 0, error));
    gb_work_release(work);
    replay(twice);
    MUST(sum(job, b, COUNT, NULL, error));
    replay(cast);
    MUST(sum(job, b, COUNT, NULL, error));
    replay(twice);
    float got = sum_of((float)i);
    must_hold(a, COUNT, got * w * w * w * w, w * w * w * w * w);
    must_hold(b, COUNT, sum_of((float)(100 * i)) * w, w * w);
  }
  destroy(twice);
  destroy(cast);
}

static void many_shapes(gb_job *job) {
  size_t w = (size_t)gb_world();
  gb_group *world = gb_job_world(job);
  pair one = new_pair(COUNT * 4), all = new_pair(COUNT * 4 * w);
  gb_buffer small = {one.device, COUNT, GB_FLOAT32};
  gb_buffer large = {all.device, COUNT * w, GB_FLOAT32};
  begin_capture();
  MUST(gb_all_gather(world, &large, &small, NULL, error));
  MUST(gb_reduce_scatter(world, &small, &large, GB_SUM, NULL, error));
  MUST(gb_barrier(world, NULL, error));
  void *graph = end_capture();
  for (int i = 0; i < REPLAYS; i++) {
    fill(one, (float)(i + gb_rank()));
    replay(graph);
    /* Every rank gathered the same: rank r's row, world times. */
    must_hold(one, COUNT, (float)gb_world() * (float)(i + gb_rank()),
              (float)gb_world());
  }
  destroy(graph);
  free_pair(one);
  free_pair(all);
}

static void run_graphs(const char *policy) {
  gb_job *job = open_for_graphs(20000, policy);
  pair a = new_pair(COUNT * 4), b = new_pair(COUNT * 4);
  replay_one(job, a);
  interleave(job, a, b);
  many_shapes(job);
  fill(a, (float)gb_rank());
  MUST(sum(job, a, COUNT, NULL, error));
  must_hold(a, COUNT, sum_of(0), (float)gb_world());
  close_on_gpu(job);
}

GB_TEST(gpu_capture, one_and_one, .ranks = 2, .vendors = "na") {
  run_graphs(NULL);
}
GB_TEST(gpu_capture, two_and_two, .ranks = 4, .vendors = "nnaa") {
  run_graphs(NULL);
}
GB_TEST(gpu_capture, over_two_links, .ranks = 4, .vendors = "nnaa") {
  run_graphs("sharded-bridge");
}
GB_TEST(gpu_capture, one_hardware_queue, .ranks = 2, .vendors = "na") {
  setenv("FAKE_GPU_QUEUES", "1", 1);
  run_graphs(NULL);
}
GB_TEST(gpu_capture, delays, .ranks = 2, .vendors = "na") {
  setenv("FAKE_GPU_SEED", "11", 1);
  run_graphs(NULL);
}
/* A launch that blocks: the host's part must need nothing of this thread. */
GB_TEST(gpu_capture, blocking_launches, .ranks = 2, .vendors = "na") {
  setenv("FAKE_GPU_PROFILE", "graph-memops,blocking", 1);
  run_graphs(NULL);
}
/* One vendor: the library's own nodes, nothing of ours. */
GB_TEST(gpu_capture, one_vendor, .ranks = 3, .vendors = "nnn") {
  run_graphs(NULL);
}
GB_TEST(gpu_capture, one_vendor_without_flags, .ranks = 2, .vendors = "aa") {
  setenv("FAKE_GPU_PROFILE", "", 1);
  run_graphs(NULL);
}

/* The ring of a captured call comes round within it. */
GB_TEST(gpu_capture, little_pinned_memory, .ranks = 2, .vendors = "na") {
  setenv("GPUBRIDGE_STAGING_BYTES", "65536", 1);
  run_graphs(NULL);
}

/* A work of a captured call: waiting for it is one more edge of the graph. */
GB_TEST(gpu_capture, with_a_handle, .ranks = 2, .vendors = "na") {
  gb_job *job = open_for_graphs(20000, NULL);
  pair p = new_pair(COUNT * 4);
  gb_work *work = NULL, *before = NULL;
  gb_error error;
  int done = 0;
  fill(p, 0);
  MUST(sum(job, p, COUNT, &before, error));
  begin_capture();
  /* Not of this side, and told so without breaking the capture. */
  gb_status status = gb_work_wait(before, 0, &error);
  must_be_refused(status, GB_ERR_STATE, &error, "outside of the capture");
  MUST(sum(job, p, COUNT, &work, error));
  MUST(gb_work_test(work, &done, error));
  GB_CHECK_INT(done, 1);
  MUST(gb_work_wait(work, 0, error));
  void *graph = end_capture();
  status = gb_work_wait(work, 0, &error);
  must_be_refused(status, GB_ERR_STATE, &error, "captured into a graph");
  MUST(gb_work_wait(before, 0, error));
  gb_work_release(work);
  gb_work_release(before);
  fill(p, (float)gb_rank());
  replay(graph);
  must_hold(p, COUNT, sum_of(0), 2);
  destroy(graph);
  close_on_gpu(job);
}

/* What our own kernels reduce, in an island and beside the bridge. */
GB_TEST(gpu_capture, kernels, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = open_for_graphs(20000, NULL);
  pair p = new_pair(COUNT * 4);
  gb_buffer buffer = {p.device, COUNT, GB_INT32};
  begin_capture();
  MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_BXOR, NULL, error));
  void *graph = end_capture();
  for (int i = 0; i < REPLAYS; i++) {
    for (size_t k = 0; k < COUNT; k++)
      ((int32_t *)p.host)[k] = (int32_t)(k << (gb_rank() + i));
    upload(p);
    replay(graph);
    download(p);
    for (size_t k = 0; k < COUNT; k++) {
      int32_t want = 0;
      for (int r = 0; r < 4; r++) want ^= (int32_t)(k << (r + i));
      GB_CHECK_INT(((int32_t *)p.host)[k], want);
    }
  }
  destroy(graph);
  close_on_gpu(job);
}

/* Messages pass through the host, and would need another one at each replay. */
GB_TEST(gpu_capture, messages_are_refused, .ranks = 2, .vendors = "na") {
  gb_job *job = open_for_graphs(20000, NULL);
  pair p = new_pair(COUNT * 4);
  gb_error error;
  gb_work *before;
  int other = 1 - gb_rank();
  gb_group *world = gb_job_world(job);
  gb_buffer buffer = {p.device, COUNT, GB_FLOAT32};
  gb_p2p_op op = {.is_send = !gb_rank(), .buffer = buffer, .peer = other};
  fill(p, gb_rank() ? 0 : 5);
  MUST(gb_batch(world, &op, 1, &before, error));
  begin_capture();
  must_be_refused(gb_batch(world, &op, 1, NULL, &error), GB_ERR_UNSUPPORTED,
                  &error, "outside of the capture");
  must_be_refused(gb_work_wait(before, 0, &error), GB_ERR_UNSUPPORTED, &error,
                  "outside of the capture");
  MUST(sum(job, p, 0, NULL, error));
  void *graph = end_capture();
  MUST(gb_work_wait(before, 0, error));
  gb_work_release(before);
  must_hold(p, COUNT, 5, 1);
  destroy(graph);
  close_on_gpu(job);
}

/* Memory of calls whose graphs are gone is given back: many graphs, one after
 * another, fit where only a few would at a time. */
GB_TEST(gpu_capture, memory_goes_with_the_graph, .ranks = 2, .vendors = "na") {
  setenv("FAKE_GPU_PINNED_MOST", "4000000", 1);
  setenv("GPUBRIDGE_STAGING_BYTES", "262144", 1);
  gb_job *job = open_for_graphs(20000, NULL);
  pair p = new_pair(400000);
  for (int i = 0; i < 30; i++) {
    begin_capture();
    MUST(sum(job, p, 100000, NULL, error));
    void *graph = end_capture();
    fill(p, (float)gb_rank());
    replay(graph);
    must_hold(p, 100000, sum_of(0), 2);
    destroy(graph);
  }
  close_on_gpu(job);
}

/* A graph that outlives its job: no replay of it hangs. */
GB_TEST(gpu_capture, outlives_the_job, .ranks = 2, .vendors = "na") {
  gb_job *job = open_for_graphs(20000, NULL);
  pair p = new_pair(COUNT * 4);
  begin_capture();
  MUST(sum(job, p, COUNT, NULL, error));
  void *graph = end_capture();
  must_close(job);
  replay(graph);
  MUST(gpu->ops->stream_sync(gpu, user, error));
  destroy(graph);
}

/* ---- what cannot be ---- */

/* ROCm before 7.3. The NVIDIA rank could, and its number of captured calls goes
 * on alike. */
GB_TEST(gpu_capture, refused_where_waits_are_not_captured, .ranks = 2,
        .vendors = "na") {
  setenv("FAKE_GPU_PROFILE", "", 1);
  gb_job *job = open_for_graphs(20000, NULL);
  pair p = new_pair(COUNT * 4);
  gb_error error = {.text = ""};
  begin_capture();
  gb_status status = sum(job, p, COUNT, NULL, &error);
  if (is_amd()) {
    must_be_refused(status, GB_ERR_UNSUPPORTED, &error, "captur");
    GB_CHECK_TEXT(error.text, "7.3");
  } else {
    GB_CHECK_INT(status, GB_OK);
  }
  void *graph = end_capture(); /* not broken */
  if (is_amd()) replay(graph); /* and empty: it ends */
  fill(p, (float)gb_rank());
  MUST(sum(job, p, COUNT, NULL, error)); /* nothing is lost */
  must_hold(p, COUNT, sum_of(0), 2);
  destroy(graph);
  close_on_gpu(job);
}

/* ---- failures ---- */

/* The last rank goes while others replay, and replays after that do not hang
 * either. */
static void die(int victim) {
  gb_job *job = open_for_graphs(20000, NULL);
  pair p = new_pair(COUNT * 4);
  gb_error error;
  begin_capture();
  MUST(sum(job, p, COUNT, NULL, error));
  void *graph = end_capture();
  for (int i = 0; i < 2; i++) {
    fill(p, (float)gb_rank());
    replay(graph);
    must_hold(p, COUNT, sum_of(0), (float)gb_world());
  }
  meet(0);
  if (gb_rank() == victim) {
    nap_ms(100);
    kill(getpid(), SIGKILL);
  }
  double start = test_now();
  replay(graph);
  await_failure(job, &error);
  GB_CHECK(test_now() - start < 3);
  char name[16];
  snprintf(name, sizeof name, "rank %d", victim);
  GB_CHECK_TEXT(error.text, name);
  MUST(gpu->ops->stream_sync(gpu, user, error));
  replay(graph);
  MUST(gpu->ops->stream_sync(gpu, user, error));
  destroy(graph);
  close_on_gpu(job);
}
GB_TEST(gpu_capture, a_leader_dies, .ranks = 4, .vendors = "nnaa",
        .expect = "00k0") {
  die(2);
}
GB_TEST(gpu_capture, a_member_dies, .ranks = 4, .vendors = "nnaa",
        .expect = "000k") {
  die(3);
}

/* Captured calls of one number that differ: the first replay says so. */
GB_TEST(gpu_capture, calls_that_do_not_match, .ranks = 2, .vendors = "na") {
  gb_job *job = open_for_graphs(20000, NULL);
  pair p = new_pair(COUNT * 4);
  gb_error error;
  begin_capture();
  MUST(sum(job, p, gb_rank() ? 100 : 200, NULL, error));
  void *graph = end_capture();
  double start = test_now();
  replay(graph);
  await_failure(job, &error);
  GB_CHECK(test_now() - start < 5);
  GB_CHECK_TEXT(error.text, "100");
  GB_CHECK_TEXT(error.text, "200");
  GB_CHECK_TEXT(error.text, "captured");
  MUST(gpu->ops->stream_sync(gpu, user, error));
  destroy(graph);
  close_on_gpu(job);
}

/* One rank replays, the other one calls: a timeout that says which call. */
GB_TEST(gpu_capture, a_replay_meets_a_call, .ranks = 2, .vendors = "na") {
  gb_job *job = open_for_graphs(1500, NULL);
  pair p = new_pair(COUNT * 4);
  gb_error error;
  begin_capture();
  MUST(sum(job, p, COUNT, NULL, error));
  void *graph = end_capture();
  if (gb_rank())
    replay(graph);
  else
    (void)sum(job, p, COUNT, NULL, &error);
  await_failure(job, &error);
  GB_CHECK_TEXT(error.text, "all_reduce number 0");
  GB_CHECK_TEXT(error.text, "timeout");
  MUST(gpu->ops->stream_sync(gpu, user, error));
  destroy(graph);
  close_on_gpu(job);
}

/* ---- what keeps replays right, left out ---- */

/* A GPU that is slow, or a worker that is: it looks less often after a time
 * without calls. */
static void replay_often(bool slow_gpu) {
  signal(SIGABRT, ends);
  if (slow_gpu) {
    setenv("FAKE_GPU_SEED", "5", 1);
    setenv("FAKE_GPU_DELAY_US", "2000", 1);
  }
  gb_job *job = open_for_graphs(3000, NULL);
  pair p = new_pair(COUNT * 4);
  gb_error error = {.text = ""};
  begin_capture();
  if (sum(job, p, COUNT, NULL, &error) != GB_OK) _exit(4);
  void *graph = end_capture();
  for (int i = 0; i < 20; i++) {
    fill(p, (float)(i + gb_rank()));
    if (!slow_gpu) nap_ms(20);
    replay(graph);
    download(p);
    if (gb_group_check(gb_job_world(job), &error) != GB_OK) _exit(4);
    for (size_t k = 0; k < COUNT; k++)
      if (((float *)p.host)[k] != sum_of((float)i) + 2 * (float)(k % 7))
        leave_together(5);
  }
  leave_together(0);
}
#define LEFT_OUT(name_, slow_gpu_, fault_)                                \
  GB_TEST(gpu_replay, name_, .ranks = 2, .vendors = "na", .expect = "x?", \
          .fault = fault_) {                                              \
    replay_often(slow_gpu_);                                              \
  }
#define EACH(place)                                                          \
  place "@0:nth=1:fail," place "@0:nth=2:fail," place "@0:nth=3:fail," place \
        "@0:nth=4:fail," place "@0:nth=5:fail"
/* The step of the replay before is run at once, on data that are not there. */
LEFT_OUT(ready_is_not_taken_back, true, "capture.ready@0:fail")
/* Copies come up that have not arrived. */
LEFT_OUT(nobody_waits_for_go, false, "capture.go@0:fail")
LEFT_OUT(go_is_not_taken_back, false, EACH("capture.back"))
GB_TEST(gpu_replay, all_there, .ranks = 2, .vendors = "na") {
  replay_often(true);
}
GB_TEST(gpu_replay, all_there_at_leisure, .ranks = 2, .vendors = "na") {
  replay_often(false);
}
