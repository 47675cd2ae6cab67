/* sharded-bridge over whole jobs: exact data give what `flat` gives and data
 * that rounds what reduce-bridge-broadcast gives, bit for bit, for every
 * collective, over layouts of even and uneven islands, memory and sockets, with
 * all links and with fewer (S079, S105, S107). What is recorded of a call; the
 * death of a rank with a link ends every rank with the same sentence (S041,
 * S042); ranks that disagree about the links are refused together (S024). */
#include "job/bits.h"

/* ---- the same bits ---- */

enum { ROW = 20011 }; /* elements of a row; uneven over any number of links */

/* Every collective in a few types, in every length for two of them; float16 AVG
 * and float8 go through the wide type. */
static results run_all(const char *policy, given given) {
  static const gb_dtype dtypes[] = {GB_FLOAT32, GB_FLOAT16, GB_BFLOAT16,
                                    GB_FLOAT64, GB_FLOAT8_E5M2, GB_INT32};
  static const size_t counts[] = {0, 3, 1000, ROW};
  results all = {0};
  gb_job *job = must_open(60000, policy);
  size_t most = (size_t)ROW * 8 * (size_t)gb_world();
  run r = {.group = gb_job_world(job),
           .given = given,
           .small = calloc(2 * ROW, 8),
           .large = calloc(most, 2),
           .all = &all};
  for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++)
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
      r.dtype = dtypes[d];
      r.n = counts[c];
      if (d > 1 && r.n < ROW) continue;
      keep_sums(&r, GB_SUM);
      keep_sums(&r, GB_AVG);
      keep_sums(&r, GB_MAX);
      keep_copies(&r);
      keep_rows(&r);
      MUST(gb_barrier(r.group, NULL, error));
    }
  free(r.small);
  free(r.large);
  must_close(job);
  return all;
}

static void same_bits(const char *other, given given, const char *links) {
  setenv("GPUBRIDGE_CHUNK_BYTES", "64K", 1);
  results want = run_all(other, given);
  setenv("GPUBRIDGE_SHARD_LINKS", links, 1);
  setenv("GPUBRIDGE_CHUNK_BYTES", "24K", 1);
  results got = run_all("sharded-bridge", given);
  must_equal(&got, &want, other);
  free(want.bytes);
  free(got.bytes);
}

/* `islands`: one digit a rank. */
static void layout(const char *islands, const char *bridge) {
  name_island(islands[gb_rank()] - '0');
  setenv("GPUBRIDGE_BRIDGE", bridge, 1);
  same_bits("flat", EXACT, "0");
  same_bits("reduce-bridge-broadcast", ROUNDS, "0");
}

#define LAYOUT(name, n, letters, islands)                                      \
  GB_TEST(sharded, name##_shm, .ranks = n, .vendors = letters,                 \
          .timeout_ms = 240000) {                                              \
    layout(islands, "shm");                                                    \
  }                                                                            \
  GB_TEST(sharded, name##_tcp, .ranks = n, .vendors = letters,                 \
          .timeout_ms = 240000) {                                              \
    layout(islands, "tcp");                                                    \
  }
LAYOUT(one_and_one, 2, "na", "01")
LAYOUT(two_and_two, 4, "nnaa", "0011")
LAYOUT(three_and_one, 4, "nnna", "0001")
LAYOUT(three_and_two, 5, "nnnaa", "00011")
LAYOUT(two_and_four_interleaved, 6, "nanaaa", "010111")
LAYOUT(three_and_three, 6, "nnnaaa", "000111")
LAYOUT(two_and_three_and_two, 7, "nnaaann", "0011122")

/* Fewer links than there could be. */
GB_TEST(sharded, two_links_of_three, .ranks = 6, .vendors = "nnnaaa",
        .timeout_ms = 240000) {
  same_bits("reduce-bridge-broadcast", ROUNDS, "2");
}
/* Islands over hosts: the links go round them, and the island adds per host. */
GB_TEST(sharded, islands_over_hosts, .ranks = 6, .vendors = "nnnnaa",
        .timeout_ms = 240000) {
  static const char *const hosts[] = {"x", "x", "y", "y", "y", "z"};
  setenv("GPUBRIDGE_SIM_HOSTNAME", hosts[gb_rank()], 1);
  same_bits("reduce-bridge-broadcast", ROUNDS, "0");
}

/* ---- what is told ---- */

static void note_fact(void *arg, const char *name, const char *value) {
  char *facts = arg;
  size_t used = strlen(facts);
  if (!strncmp(name, "bridge.link", 11))
    snprintf(facts + used, 500 - used, "%s=%s;", name, value);
}

GB_TEST(sharded, links_are_told, .ranks = 5, .vendors = "nnnaa") {
  gb_job *job = must_open(30000, "sharded-bridge");
  char facts[500] = "";
  gb_job_telemetry(job, note_fact, facts);
  GB_CHECK_TEXT(facts, "bridge.links=2;bridge.link_ranks=0-3 1-4;");
  must_close(job);
}
GB_TEST(sharded, one_link_of_another_policy, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(30000, NULL);
  char facts[500] = "";
  gb_job_telemetry(job, note_fact, facts);
  GB_CHECK_TEXT(facts, "bridge.links=1;bridge.link_ranks=0-2;");
  must_close(job);
}

static int note_record(void *arg, const gb_record *record) {
  *(gb_record *)arg = *record;
  return 0;
}

static void check_phases(gb_job *job, const gb_record *last, size_t count,
                         const char *const names[3]) {
  float *data = calloc(count, sizeof *data);
  gb_buffer buffer = {data, count, GB_FLOAT32};
  MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, error));
  free(data);
  int n = 0;
  for (int i = 0; i < 3; i++)
    if (names[i]) GB_CHECK(!strcmp(last->phases[n++].name, names[i]));
  GB_CHECK_INT(last->phases_count, n);
}

/* 3 + 2: two links; an island of exactly two scatters and gathers. A short call
 * takes the leaders' link alone, under the names of that route. */
GB_TEST(sharded, phases, .ranks = 5, .vendors = "nnnaa") {
  gb_job *job = must_open(30000, "sharded-bridge");
  gb_record last = {0};
  MUST(gb_observer_add(job, note_record, &last, error));
  bool exact = gb_rank() >= 3, linked = gb_rank() != 2;
  bool leads = gb_rank() == 0 || gb_rank() == 3;
  const char *large[] = {exact ? "island-reduce-scatter" : "island-reduce",
                         linked ? "bridge" : NULL,
                         exact ? "island-all-gather" : "island-broadcast"};
  const char *small[] = {"island-reduce", leads ? "bridge" : NULL,
                         "island-broadcast"};
  check_phases(job, &last, 1 << 16, large);
  GB_CHECK(!strcmp(last.policy, "sharded-bridge"));
  check_phases(job, &last, 16, small);
  must_close(job);
}

/* Calls that overlap on the links, and a group of a part of the job. */
GB_TEST(sharded, async_calls_and_a_group, .ranks = 6, .vendors = "nnnaaa",
        .timeout_ms = 60000) {
  gb_job *job = must_open(30000, "sharded-bridge");
  enum { CALLS = 12, COUNT = 30011 };
  static float data[CALLS][COUNT];
  gb_work *works[CALLS] = {NULL};
  for (int c = 0; c < CALLS; c++) {
    for (int i = 0; i < COUNT; i++)
      data[c][i] = (float)(gb_rank() + i % 5 + c);
    gb_buffer buffer = {data[c], COUNT, GB_FLOAT32};
    MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, &works[c], error));
  }
  for (int c = 0; c < CALLS; c++) {
    gb_error error;
    must_end(GB_OK, &works[c], &error);
    for (int i = 0; i < COUNT; i++)
      if (data[c][i] != (float)(15 + 6 * (i % 5 + c)))
        gb_test_fail(__FILE__, __LINE__, "call %d element %d is %g", c, i,
                     (double)data[c][i]);
  }
  static const int part[] = {1, 2, 4, 5};
  if (gb_rank() % 3) {
    gb_group *group;
    MUST(gb_group_open(job, part, 4, NULL, &group, error));
    for (int i = 0; i < COUNT; i++) data[0][i] = (float)(gb_rank() + i % 3);
    gb_buffer buffer = {data[0], COUNT, GB_FLOAT32};
    MUST(gb_all_reduce(group, &buffer, GB_SUM, NULL, error));
    for (int i = 0; i < COUNT; i++)
      GB_CHECK(data[0][i] == (float)(12 + 4 * (i % 3)));
    MUST(gb_group_close(group, error));
  }
  meet(0); /* nobody leaves while others open the group */
  must_close(job);
}

/* ---- failing together ---- */

typedef struct board {
  volatile int rounds, ended;
  volatile double died;
  char texts[8][GB_ERROR_TEXT_MAX];
} board;

static gb_status loop(gb_job *job, board *b, gb_error *error) {
  enum { COUNT = 1 << 18 };
  static float data[COUNT];
  for (;;) {
    for (size_t i = 0; i < COUNT; i++) data[i] = (float)(gb_rank() + 1);
    gb_buffer buffer = {data, COUNT, GB_FLOAT32};
    gb_status status =
        gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, error);
    if (status != GB_OK) return status;
    for (size_t i = 0; i < COUNT; i++)
      if (data[i] != (float)(gb_world() * (gb_world() + 1) / 2))
        gb_test_fail(__FILE__, __LINE__, "wrong number %g", (double)data[i]);
    if (gb_rank() == 0) __atomic_add_fetch(&b->rounds, 1, __ATOMIC_ACQ_REL);
  }
}

/* Rank 3 of 3 + 3 leads; ranks 4 and 5 hold the links 1 and 2. */
static void kill_case(const char *bridge, int victim) {
  setenv("GPUBRIDGE_BRIDGE", bridge, 1);
  board *b = gb_test_shared();
  gb_job *job = must_open(600000, "sharded-bridge");
  if (gb_rank() == victim) {
    pid_t me = getpid();
    if (fork() == 0) { /* never touches the job */
      gb_test_await(&b->rounds, 3, 20000);
      b->died = test_now();
      kill(me, SIGKILL);
      _exit(0);
    }
  }
  gb_error error;
  GB_CHECK(loop(job, b, &error) != GB_OK);
  double took = test_now() - b->died;
  if (took > 3.0)
    gb_test_fail(__FILE__, __LINE__, "took %.2f s: %s", took, error.text);
  must_tell_of(victim, &error, b->texts, &b->ended);
  must_close(job);
}
GB_TEST(sharded, death_of_a_holder, .ranks = 6, .vendors = "nnnaaa",
        .expect = "0000k0", .timeout_ms = 60000) {
  kill_case("shm", 4);
}
GB_TEST(sharded, death_of_a_holder_over_tcp, .ranks = 6, .vendors = "nnnaaa",
        .expect = "00000k", .timeout_ms = 60000) {
  kill_case("tcp", 5);
}
/* Rank 2 of 3 + 2 holds no link. */
GB_TEST(sharded, death_without_a_link, .ranks = 5, .vendors = "nnnaa",
        .expect = "00k00", .timeout_ms = 60000) {
  kill_case("tcp", 2);
}

/* The job's text, the same on every rank, with both values and their ranks. */
GB_TEST(sharded, links_differ, .ranks = 4, .vendors = "nnaa") {
  board *b = gb_test_shared();
  if (gb_rank() == 2) setenv("GPUBRIDGE_SHARD_LINKS", "1", 1);
  gb_job *job;
  gb_error error;
  GB_CHECK_INT(try_open(20000, "sharded-bridge", &job, &error),
               GB_ERR_REFUSED);
  GB_CHECK_TEXT(error.text,
                "GPUBRIDGE_SHARD_LINKS: 0 on ranks 0, 1, 3, 1 on rank 2");
  snprintf(b->texts[gb_rank()], sizeof b->texts[0], "%s", error.text);
  __atomic_add_fetch(&b->ended, 1, __ATOMIC_ACQ_REL);
  gb_test_await(&b->ended, 4, 10000);
  for (int r = 0; r < 4; r++) GB_CHECK(!strcmp(b->texts[r], error.text));
}
GB_TEST(sharded, one_island_is_refused, .ranks = 2, .vendors = "nn") {
  gb_job *job;
  gb_error error;
  GB_CHECK_INT(try_open(20000, "sharded-bridge", &job, &error),
               GB_ERR_REFUSED);
  GB_CHECK_TEXT(error.text, "\"sharded-bridge\" does not fit");
}
/* Leaders share a host, the other ends do not: shared memory cannot do. */
GB_TEST(sharded, shm_for_every_link, .ranks = 4, .vendors = "nnaa") {
  setenv("GPUBRIDGE_SIM_HOSTNAME", gb_rank() == 3 ? "y" : "x", 1);
  setenv("GPUBRIDGE_BRIDGE", "shm", 1);
  gb_job *job;
  gb_error error;
  GB_CHECK_INT(try_open(20000, "sharded-bridge", &job, &error),
               GB_ERR_REFUSED);
  GB_CHECK_TEXT(error.text, "rank 1 is on host \"x\" and rank 3 on host \"y\"");
  setenv("GPUBRIDGE_BRIDGE", "auto", 1);
  job = must_open(20000, "sharded-bridge");
  gb_job_info info = {.size = sizeof info};
  GB_CHECK_OK(gb_job_get_info(job, &info));
  GB_CHECK(!strcmp(info.bridge, "tcp"));
  must_sum(job, 2);
  must_close(job);
}
