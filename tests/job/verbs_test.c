/* Whole jobs over RDMA, on an adapter that is not there: the bits of the TCP
 * bridge, for every type and reduction, and messages; what auto takes and why
 * (S067, S070); a bridge that was named and cannot be ends the job on every
 * rank with one text (S066, S068, S070); links that fail in mid-job (S069). */
#include "fakes/find.h"
#include "job/bits.h"

enum { ROW = 9001 };

/* A host for each island, as the bridge sees it. */
static void on_two_hosts(void) {
  setenv("GPUBRIDGE_SIM_HOSTNAME", gb_vendors()[gb_rank()] == 'a' ? "y" : "x",
         1);
}

static void with_adapter(const char *bridge) {
  name_fake_adapter();
  on_two_hosts();
  if (bridge) setenv("GPUBRIDGE_BRIDGE", bridge, 1);
}

/* ---- the same bits ---- */

static results run_all(const char *bridge, const char *policy) {
  static const size_t counts[] = {0, 5, ROW};
  results all = {0};
  with_adapter(bridge);
  gb_job *job = must_open(60000, policy);
  gb_job_info info = {.size = sizeof info};
  GB_CHECK_INT(gb_job_get_info(job, &info), GB_OK);
  GB_CHECK_TEXT(info.bridge, bridge);
  run r = {.group = gb_job_world(job),
           .given = ROUNDS,
           .small = calloc(2 * ROW, 16),
           .large = calloc((size_t)ROW * 16, (size_t)gb_world()),
           .all = &all};
  for (int dtype = 0; dtype <= GB_FLOAT64; dtype++)
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
      r.dtype = (gb_dtype)dtype;
      r.n = counts[c];
      keep_sums(&r, GB_SUM);
      keep_sums(&r, GB_MAX);
      if (dtype != GB_FLOAT32) continue;
      keep_copies(&r);
      keep_rows(&r);
    }
  MUST(gb_barrier(r.group, NULL, error));
  free(r.small);
  free(r.large);
  must_close(job);
  return all;
}

static void same_bits(const char *policy) {
  setenv("GPUBRIDGE_VERBS_REGISTER_BYTES", "64K", 1);
  results want = run_all("tcp", policy);
  results got = run_all("verbs", policy);
  must_equal(&got, &want, "those of tcp");
  free(got.bytes);
  free(want.bytes);
}

#define SAME(name, n, letters, policy)                     \
  GB_TEST(verbs_job, name, .ranks = n, .vendors = letters, \
          .timeout_ms = 120000) {                          \
    same_bits(policy);                                     \
  }
SAME(same_bits_of_two, 2, "na", "reduce-bridge-broadcast")
SAME(same_bits_of_three, 3, "naa", "reduce-bridge-broadcast")
SAME(same_bits_over_two_links, 4, "nnaa", "sharded-bridge")

/* A message and its answer, short and long, beside sums. */
GB_TEST(verbs_job, messages_beside_sums, .ranks = 2, .vendors = "na",
        .timeout_ms = 60000) {
  static const size_t counts[] = {1, 3000, 200000};
  with_adapter("verbs");
  gb_job *job = must_open(30000, NULL);
  gb_group *world = gb_job_world(job);
  float *out = malloc(800000), *in = malloc(800000);
  for (int round = 0; round < 12; round++) {
    size_t n = counts[round % 3];
    gb_buffer from = {out, n, GB_FLOAT32}, to = {in, n, GB_FLOAT32};
    gb_work *r = NULL, *s = NULL;
    for (size_t i = 0; i < n; i++)
      out[i] = (float)(gb_rank() * 1000 + round) + (float)(i % 97);
    MUST(gb_recv(world, &to, !gb_rank(), 4, NULL, &r, error));
    MUST(gb_send(world, &from, !gb_rank(), 4, &s, error));
    must_sum(job, 2);
    MUST(gb_work_wait(r, 0, error));
    MUST(gb_work_wait(s, 0, error));
    for (size_t i = 0; i < n; i++)
      if (in[i] != (float)(!gb_rank() * 1000 + round) + (float)(i % 97))
        gb_test_fail(__FILE__, __LINE__, "element %zu is %g", i, (double)in[i]);
    gb_work_release(r);
    gb_work_release(s);
  }
  free(out);
  free(in);
  must_close(job);
}

/* ---- what auto takes ---- */

static void auto_takes(const char *bridge, const char *reason) {
  gb_job *job = must_open(30000, NULL);
  gb_job_info info = {.size = sizeof info};
  GB_CHECK_INT(gb_job_get_info(job, &info), GB_OK);
  GB_CHECK(!strcmp(info.bridge, bridge));
  GB_CHECK_TEXT(info.bridge_reason, reason);
  must_sum(job, 3);
  must_close(job);
}

GB_TEST(verbs_job, auto_takes_it, .ranks = 2, .vendors = "na") {
  with_adapter(NULL);
  auto_takes("verbs", "have an RDMA device on RoCE");
}
GB_TEST(verbs_job, auto_without_a_device_on_one_side, .ranks = 2,
        .vendors = "na") {
  with_adapter(NULL);
  if (gb_rank() == 1) setenv("FAKE_VERBS_DEVICES", "", 1);
  auto_takes("tcp",
             "rank 1 (host \"y\") has no RDMA device to use: no RDMA "
             "device is on this machine");
}
GB_TEST(verbs_job, auto_with_a_misspelt_device, .ranks = 2, .vendors = "na") {
  with_adapter(NULL);
  setenv("GPUBRIDGE_VERBS_DEVICE", "mlx9_9", 1);
  auto_takes("tcp",
             "GPUBRIDGE_VERBS_DEVICE is \"mlx9_9\", but this machine's "
             "RDMA devices are fake0");
}
GB_TEST(verbs_job, auto_on_two_link_layers, .ranks = 2, .vendors = "na") {
  with_adapter(NULL);
  if (gb_rank() == 1) setenv("FAKE_VERBS_DEVICES", "ib0,link=ib", 1);
  auto_takes("tcp", "on RoCE and rank 1's ib0 on InfiniBand");
}

/* ---- a bridge that was named ---- */

static void is_refused(const char *words, const char *more) {
  gb_job *job;
  gb_error error;
  double start = test_now();
  setenv("GPUBRIDGE_BRIDGE", "verbs", 1);
  on_two_hosts();
  must_fail(try_open(20000, NULL, &job, &error), &error, start, 15, words,
            more);
}

GB_TEST(verbs_refused, without_the_library, .ranks = 2, .vendors = "na") {
  setenv("GPUBRIDGE_VERBS_LIB", "/nowhere/libibverbs.so.1", 1);
  is_refused("cannot be loaded", "Install rdma-core");
}
GB_TEST(verbs_refused, without_a_device_on_one_side, .ranks = 3,
        .vendors = "nna") {
  name_fake_adapter();
  if (gb_rank() == 2) setenv("FAKE_VERBS_DEVICES", "", 1);
  is_refused("no RDMA device is on this machine", "rank 2");
}
GB_TEST(verbs_refused, a_misspelt_device, .ranks = 2, .vendors = "na") {
  name_fake_adapter();
  setenv("GPUBRIDGE_VERBS_DEVICE", "mlx9_9", 1);
  is_refused("mlx9_9", "fake0");
}
GB_TEST(verbs_refused, a_port_that_is_down, .ranks = 2, .vendors = "na") {
  name_fake_adapter();
  if (gb_rank()) setenv("FAKE_VERBS_DEVICES", "fake0,state=down", 1);
  is_refused("fake0 port 1 (down)", "ibv_devinfo");
}
GB_TEST(verbs_refused, a_gid_that_is_not_there, .ranks = 2, .vendors = "na") {
  name_fake_adapter();
  setenv("GPUBRIDGE_VERBS_GID_INDEX", "99", 1);
  is_refused(
      "GPUBRIDGE_VERBS_GID_INDEX is 99, but port 1 of the RDMA device "
      "fake0",
      "GIDs");
}
GB_TEST(verbs_refused, two_link_layers, .ranks = 2, .vendors = "na") {
  name_fake_adapter();
  if (gb_rank()) setenv("FAKE_VERBS_DEVICES", "ib0,link=ib", 1);
  is_refused("InfiniBand", "RoCE");
}
GB_TEST(verbs_refused, too_little_memory_to_lock, .ranks = 2, .vendors = "na") {
  name_fake_adapter();
  if (gb_rank()) setenv("FAKE_VERBS_MEMLOCK", "65536", 1);
  is_refused("could not register", "ulimit -l unlimited");
}

/* ---- links that fail ---- */

/* Rank 1's third send or so ends so; every rank learns it, and why. */
static void breaks(const char *fault, const char *words) {
  name_fake_adapter();
  on_two_hosts();
  setenv("GPUBRIDGE_BRIDGE", "verbs", 1);
  setenv("FAKE_VERBS_FAULT", fault, 1);
  setenv("FAKE_VERBS_LEAKS", "0", 1);
  gb_job *job = must_open(20000, NULL);
  gb_error error = {.text = ""};
  double start = test_now();
  gb_status status = GB_OK;
  while (status == GB_OK && test_now() - start < 15) {
    float value = 1;
    status = sum_once(job, &value, &error);
    if (status == GB_OK && value != (float)gb_world())
      gb_test_fail(__FILE__, __LINE__, "a wrong sum: %g", (double)value);
  }
  must_fail(status, &error, start, 15, "\"verbs\" between rank", words);
  float value = 1;
  GB_CHECK(sum_once(job, &value, &error) != GB_OK);
  start = test_now();
  (void)gb_job_close(job, &error);
  GB_CHECK(test_now() - start < 15);
}

GB_TEST(verbs_breaks, by_a_completion, .ranks = 3, .vendors = "nna",
        .timeout_ms = 60000) {
  breaks("status:send:8:12:2", "transport retry counter exceeded");
}
GB_TEST(verbs_breaks, by_a_port_that_goes_down, .ranks = 2, .vendors = "na",
        .timeout_ms = 60000) {
  breaks("down:send:8:0:1", "broke");
}
GB_TEST(verbs_breaks, by_the_device, .ranks = 2, .vendors = "na",
        .timeout_ms = 60000) {
  breaks("device:send:8:0:1", "broke");
}
