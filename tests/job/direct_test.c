/* direct and auto over whole jobs: one step of all ranks gives the bits of the
 * three hops over the bridge, for every type and reduction, also where the
 * order of additions tells and for any bits, over islands in rows, interleaved,
 * uneven and three (S079, S105, S107). What auto takes: direct on one host, the
 * bridge where it was named or has to compress. direct is refused where it does
 * not fit (S024). How calls end when ranks die or disagree is in the tests of
 * those. */
#include "job/bits.h"

/* ---- the same bits ---- */

enum { ROW = 9001 }; /* float64: more than one piece; uneven for all */

static void keep_scaled(const run *r, double factor) {
  gb_buffer small = {r->small, r->n, r->dtype};
  if (!gb_redop_supported(GB_PREMUL_SUM, r->dtype)) return;
  give(r->small, r->n, r->dtype, r->given);
  MUST(gb_all_reduce_scaled(r->group, &small, factor, NULL, error));
  keep(r->all, r->small, r->n * gb_dtype_bytes(r->dtype));
}

static results run_all(const char *policy, given given) {
  static const size_t counts[] = {0, 5, ROW};
  results all = {0};
  gb_job *job = must_open(60000, policy);
  run r = {.group = gb_job_world(job),
           .given = given,
           .small = calloc(2 * ROW, 16),
           .large = calloc((size_t)ROW * 16, (size_t)gb_world()),
           .all = &all};
  for (int dtype = 0; dtype < GB_DTYPE_COUNT; dtype++)
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
      r.dtype = (gb_dtype)dtype;
      r.n = counts[c];
      for (int op = 0; op < GB_REDOP_COUNT; op++)
        if (op != GB_PREMUL_SUM) keep_sums(&r, (gb_redop)op);
      keep_scaled(&r, 0.3 * (gb_rank() + 1));
      if (dtype != GB_FLOAT32 && dtype != GB_INT8) continue;
      keep_copies(&r);
      keep_rows(&r);
    }
  MUST(gb_barrier(r.group, NULL, error));
  free(r.small);
  free(r.large);
  must_close(job);
  return all;
}

static void same_bits(given given) {
  static const char *const policies[] = {"direct", "auto", "sharded-bridge"};
  setenv("GPUBRIDGE_CHUNK_BYTES", "24K", 1);
  results want = run_all("reduce-bridge-broadcast", given);
  for (size_t p = 0; p < sizeof policies / sizeof policies[0]; p++) {
    results got = run_all(policies[p], given);
    must_equal(&got, &want, policies[p]);
    free(got.bytes);
  }
  free(want.bytes);
}

/* `islands`: one digit a rank. */
static void layout(const char *islands) {
  name_island(islands[gb_rank()] - '0');
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  same_bits(ROUNDS); /* sanitizers are slow */
#endif
  same_bits(ANY_BITS);
}

#define LAYOUT(name, n, islands)                                  \
  GB_TEST(direct, name, .ranks = n, .vendors = "nananana",        \
          .timeout_ms = 240000) {                                 \
    layout(islands);                                              \
  }
LAYOUT(one_and_one, 2, "01")
LAYOUT(two_and_two, 4, "0011")
LAYOUT(interleaved, 4, "0101")
LAYOUT(inside_out, 4, "0110")
LAYOUT(three_and_one, 4, "0001")
LAYOUT(one_and_three, 4, "0111")
LAYOUT(one_in_the_middle, 5, "00122")
LAYOUT(two_and_three_and_two, 7, "0011122")
LAYOUT(crossed, 7, "0120121")
LAYOUT(four_and_four, 8, "00001111")

/* ---- what auto takes ---- */

typedef struct seen {
  char policy[64];
  int phases;
} seen;

static int note(void *arg, const gb_record *record) {
  seen *s = arg;
  snprintf(s->policy, sizeof s->policy, "%s",
           record->policy ? record->policy : "");
  s->phases = (int)record->phases_count;
  return 0;
}

static void must_travel(gb_group *group, gb_redop op, gb_dtype dtype,
                        const char *policy, const seen *s) {
  double data[4] = {0};
  gb_buffer buffer = {data, 4, dtype};
  MUST(gb_all_reduce(group, &buffer, op, NULL, error));
  if (strcmp(s->policy, policy))
    gb_test_fail(__FILE__, __LINE__, "type %d, op %d: by %s, not %s", dtype, op,
                 s->policy, policy);
}

/* How a job under auto carries a float32 sum, and its largest. */
static void auto_takes(const char *sum, const char *largest) {
  gb_job *job = must_open(20000, "auto");
  gb_job_info info = {.size = sizeof info};
  seen s = {0};
  GB_CHECK_OK(gb_job_get_info(job, &info));
  GB_CHECK(!strcmp(info.policy, "auto"));
  MUST(gb_observer_add(job, note, &s, error));
  must_travel(gb_job_world(job), GB_SUM, GB_FLOAT32, sum, &s);
  must_travel(gb_job_world(job), GB_MAX, GB_FLOAT32, largest, &s);
  must_close(job);
}

GB_TEST(automatic, direct_on_one_host, .ranks = 4, .vendors = "nnaa") {
  auto_takes("direct", "direct");
}
GB_TEST(automatic, direct_where_shm_is_named, .ranks = 2, .vendors = "na") {
  setenv("GPUBRIDGE_BRIDGE", "shm", 1);
  auto_takes("direct", "direct");
}
GB_TEST(automatic, the_bridge_that_is_named, .ranks = 4, .vendors = "nnaa") {
  setenv("GPUBRIDGE_BRIDGE", "tcp", 1);
  auto_takes("reduce-bridge-broadcast", "reduce-bridge-broadcast");
}
GB_TEST(automatic, the_bridge_that_compresses, .ranks = 4, .vendors = "nnaa") {
  setenv("GPUBRIDGE_BRIDGE_COMPRESSION", "bf16", 1);
  auto_takes("reduce-bridge-broadcast", "direct");
}
GB_TEST(automatic, the_bridge_between_hosts, .ranks = 2, .vendors = "na") {
  setenv("GPUBRIDGE_SIM_HOSTNAME", gb_rank() ? "x" : "y", 1);
  auto_takes("reduce-bridge-broadcast", "reduce-bridge-broadcast");
}
GB_TEST(automatic, the_island_itself, .ranks = 3, .vendors = "nnn") {
  auto_takes("native-only", "native-only");
}

/* Islands of two hosts each have a link a host; longer calls take both. */
GB_TEST(automatic, links_of_islands_over_hosts, .ranks = 4,
        .vendors = "nnaa") {
  static const char *const hosts[] = {"w", "x", "y", "z"};
  enum { LONG = 256 * 1024 };
  setenv("GPUBRIDGE_SIM_HOSTNAME", hosts[gb_rank()], 1);
  gb_job *job = must_open(20000, "auto");
  seen s = {0};
  MUST(gb_observer_add(job, note, &s, error));
  uint8_t *data = calloc(1, LONG);
  gb_buffer buffer = {data, LONG, GB_UINT8};
  MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_MAX, NULL, error));
  GB_CHECK(!strcmp(s.policy, "sharded-bridge"));
  buffer.count--;
  MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_MAX, NULL, error));
  GB_CHECK(!strcmp(s.policy, "reduce-bridge-broadcast"));
  free(data);
  must_close(job);
}

/* A group of part of the ranks chooses for itself, and a policy by name holds
 * also where a bridge was named. */
GB_TEST(automatic, groups_choose_for_themselves, .ranks = 4,
        .vendors = "nnaa") {
  setenv("GPUBRIDGE_BRIDGE", "tcp", 1);
  gb_job *job = must_open(20000, "auto");
  seen s = {0};
  MUST(gb_observer_add(job, note, &s, error));
  static const int all[] = {0, 1, 2, 3};
  gb_group_params params = GB_GROUP_PARAMS_INIT;
  gb_group *group;
  params.policy = "direct";
  MUST(gb_group_open(job, all, 4, &params, &group, error));
  must_travel(group, GB_SUM, GB_FLOAT32, "direct", &s);
  MUST(gb_group_close(group, error));
  int island[] = {gb_rank() / 2 * 2, gb_rank() / 2 * 2 + 1};
  params.policy = NULL;
  MUST(gb_group_open(job, island, 2, &params, &group, error));
  must_travel(group, GB_SUM, GB_FLOAT32, "native-only", &s);
  MUST(gb_group_close(group, error));
  meet(0); /* groups are opened with rank 0's help */
  must_close(job);
}

/* ---- where direct does not fit ---- */

static void must_be_refused_for(const char *words) {
  gb_job *job;
  gb_error error;
  GB_CHECK_INT(try_open(20000, "direct", &job, &error), GB_ERR_REFUSED);
  GB_CHECK_TEXT(error.text, words);
}
GB_TEST(direct, between_hosts, .ranks = 2, .vendors = "na") {
  setenv("GPUBRIDGE_SIM_HOSTNAME", gb_rank() ? "x" : "y", 1);
  must_be_refused_for("\"direct\" does not fit a job of 2 islands on 2 hosts");
}
GB_TEST(direct, one_island, .ranks = 2, .vendors = "nn") {
  must_be_refused_for("\"direct\" does not fit a job of 1 island");
}
