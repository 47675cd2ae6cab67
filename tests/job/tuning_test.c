/* Whole jobs that measure at init which policy takes which sizes
 * (GPUBRIDGE_TUNE): all ranks come to the same rules, in about the time given;
 * calls travel by them, to flat's bits; groups have them; settings that
 * contradict are refused everywhere; a rank that dies, hangs up or is
 * interrupted while all measure ends init on every rank with one sentence. */
#include "job/job.h"
#include "job/layouts.h"

#include <string.h>

enum { TEXT = 4096, TIMEOUT_MS = 20000, PLACE_OF_TEXTS = 256 };

static void tune_for(const char *seconds) {
  setenv("GPUBRIDGE_TUNE", "1", 1);
  setenv("GPUBRIDGE_TUNE_SECONDS", seconds, 1);
}

typedef struct facts {
  char rules[TEXT];
} facts;

static void take_fact(void *arg, const char *name, const char *value) {
  facts *f = arg;
  if (!strcmp(name, "policy.rules"))
    snprintf(f->rules, sizeof f->rules, "%s", value);
}

/* The rules in force, the same on every rank: a text of each in the shared
 * page. */
static void get_rules(gb_job *job, facts *f) {
  char(*texts)[TEXT] = (void *)((char *)gb_test_shared() + PLACE_OF_TEXTS);
  memset(f, 0, sizeof *f);
  gb_job_telemetry(job, take_fact, f);
  GB_CHECK(f->rules[0]);
  snprintf(texts[gb_rank()], TEXT, "%s", f->rules);
  meet(60);
  for (int r = 0; r < gb_world(); r++)
    if (strcmp(texts[r], f->rules))
      gb_test_fail(__FILE__, __LINE__, "rank %d has %s, not %s", r, texts[r],
                   f->rules);
  gb_job_info info = {.size = sizeof info};
  GB_CHECK_OK(gb_job_get_info(job, &info));
  GB_CHECK(!strcmp(info.policy, "auto-tuned"));
}

/* The policy that the text's list names for so many bytes; NULL: "auto". */
static const char *policy_for(const char *rules, const char *collective,
                              size_t bytes, char name[64]) {
  char text[TEXT], start[64], *rest = NULL;
  snprintf(start, sizeof start, "%s:", collective);
  snprintf(text, sizeof text, "%s", rules);
  char *list = strtok_r(text, ";", &rest), *own;
  while ((own = strtok_r(NULL, ";", &rest)))
    if (!strncmp(own, start, strlen(start))) {
      list = own + strlen(start);
      break;
    }
  for (char *rule = strtok_r(list, ",", &rest); rule;
       rule = strtok_r(NULL, ",", &rest)) {
    char *equals = strchr(rule, '=');
    if (*rule != '*' && strtoull(rule, NULL, 10) < bytes) continue;
    snprintf(name, 64, "%s", equals + 1);
    return strcmp(name, "auto") ? name : NULL;
  }
  gb_test_fail(__FILE__, __LINE__, "no rule for %zu bytes in %s", bytes, rules);
}

typedef struct seen {
  char policy[64];
} seen;

static int note(void *arg, const gb_record *record) {
  seen *s = arg;
  snprintf(s->policy, sizeof s->policy, "%s",
           record->policy ? record->policy : "");
  return 0;
}

/* Values whose sums are exact: any order gives the bits that flat gives. */
static void fill(float *data, size_t count) {
  for (size_t i = 0; i < count; i++)
    data[i] = (float)((int)(i * 7 + (size_t)gb_rank() * 3) % 64 - 20);
}

static void must_travel(gb_job *job, const facts *f, seen *s, size_t count,
                        float *data, float *want) {
  int world = gb_world();
  char name[64];
  memset(want, 0, count * sizeof *want);
  for (size_t i = 0; i < count; i++)
    for (int r = 0; r < world; r++)
      want[i] += (float)((int)(i * 7 + (size_t)r * 3) % 64 - 20);
  fill(data, count);
  gb_buffer buffer = {data, count, GB_FLOAT32};
  MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, error));
  GB_CHECK(!memcmp(data, want, count * sizeof *data));
  const char *policy = policy_for(f->rules, "all_reduce", count * 4, name);
  if (policy && strcmp(policy, s->policy))
    gb_test_fail(__FILE__, __LINE__, "%zu elements went by %s, not by %s",
                 count, s->policy, f->rules);
  for (size_t i = 0; i < count; i++)
    want[i] = (float)((int)(i * 7) % 64 - 20);
  fill(data, count);
  MUST(gb_broadcast(gb_job_world(job), &buffer, 0, NULL, error));
  GB_CHECK(!memcmp(data, want, count * sizeof *data));
  policy = policy_for(f->rules, "broadcast", count * 4, name);
  if (policy && strcmp(policy, s->policy))
    gb_test_fail(__FILE__, __LINE__, "%zu elements went by %s, not by %s",
                 count, s->policy, f->rules);
}

static void tuned(void) {
  enum { MOST = 1 << 20 };
  float *data = malloc(MOST * sizeof *data);
  float *want = malloc(MOST * sizeof *want);
  tune_for("1");
  double start = test_now();
  gb_job *job = must_open(TIMEOUT_MS, NULL);
  /* Loosely: four ranks or more share two cores with other tests. */
  GB_CHECK(test_now() - start < 30);
  facts f;
  seen s = {""};
  get_rules(job, &f);
  MUST(gb_observer_add(job, note, &s, error));
  static const size_t counts[] = {1, 2, 3, 129, 1025, 70000, MOST};
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
    must_travel(job, &f, &s, counts[i], data, want);
  must_sum(job, 3);
  must_close(job);
  free(data);
  free(want);
}
#define TUNED(name_, n, letters)                                               \
  GB_TEST(tuning, name_, .ranks = n, .vendors = letters,                       \
          .timeout_ms = 60000) {                                               \
    tuned();                                                                   \
  }
EACH_LAYOUT(TUNED)

GB_TEST(tuning, three_islands, .ranks = 7, .vendors = "nnnnnnn",
        .timeout_ms = 60000) {
  name_three_islands();
  tuned();
}
GB_TEST(tuning, two_hosts, .ranks = 4, .vendors = "nnaa", .timeout_ms = 60000) {
  setenv("GPUBRIDGE_SIM_HOSTNAME", gb_rank() < 2 ? "one" : "two", 1);
  tuned();
}
/* The leaders share a host, the other ends of a second link do not. */
GB_TEST(tuning, links_that_need_another_bridge, .ranks = 4, .vendors = "nana",
        .timeout_ms = 60000) {
  static const char *const hosts[] = {"one", "one", "one", "two"};
  setenv("GPUBRIDGE_SIM_HOSTNAME", hosts[gb_rank()], 1);
  setenv("GPUBRIDGE_BRIDGE", "shm", 1);
  tuned();
}
GB_TEST(tuning, compressed, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  setenv("GPUBRIDGE_BRIDGE_COMPRESSION", "bf16", 1);
  tune_for("1");
  gb_job *job = must_open(TIMEOUT_MS, "auto-tuned");
  facts f;
  get_rules(job, &f);
  must_sum(job, 3);
  must_close(job);
}

/* Alone, and without a second policy, nothing is measured. */
GB_TEST(tuning, alone_takes_no_time, .ranks = 1, .vendors = "n") {
  tune_for("60");
  gb_job *job = must_open(TIMEOUT_MS, NULL);
  facts f;
  get_rules(job, &f);
  GB_CHECK(!strcmp(f.rules, "*=auto"));
  must_sum(job, 1);
  must_close(job);
}

/* A part of the job: rules that do not fit its islands are auto's. */
GB_TEST(tuning, groups_have_the_rules, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  tune_for("1");
  gb_job *job = must_open(TIMEOUT_MS, NULL);
  int mine[] = {gb_rank() / 2 * 2, gb_rank() / 2 * 2 + 1}, all[] = {3, 2, 1, 0};
  gb_group *part, *whole;
  facts f;
  get_rules(job, &f);
  MUST(gb_group_open(job, mine, 2, NULL, &part, error));
  MUST(gb_group_open(job, all, 4, NULL, &whole, error));
  for (size_t count = 1; count <= 100000; count *= 10) {
    float *data = malloc(count * sizeof *data);
    for (size_t i = 0; i < count; i++) data[i] = 1;
    gb_buffer buffer = {data, count, GB_FLOAT32};
    MUST(gb_all_reduce(part, &buffer, GB_SUM, NULL, error));
    GB_CHECK(data[0] == 2 && data[count - 1] == 2);
    MUST(gb_all_reduce(whole, &buffer, GB_SUM, NULL, error));
    GB_CHECK(data[0] == 8 && data[count - 1] == 8);
    free(data);
  }
  MUST(gb_group_close(part, error));
  MUST(gb_group_close(whole, error));
  meet(0);
  must_close(job);
}

/* ---- refusals ---- */

static void must_be_refused_everywhere(const char *policy, const char *words,
                                       const char *more) {
  gb_job *job;
  gb_error error;
  double start = test_now();
  gb_status status = try_open(TIMEOUT_MS, policy, &job, &error);
  must_fail(status, &error, start, 10, words, more);
}

GB_TEST(tuning, one_rank_without, .ranks = 4, .vendors = "nnaa") {
  setenv("GPUBRIDGE_TUNE", gb_rank() == 2 ? "0" : "1", 1);
  must_be_refused_everywhere(NULL, "ranks disagree about GPUBRIDGE_TUNE: ",
                             "1 on ranks 0, 1, 3, 0 on rank 2");
}
GB_TEST(tuning, other_seconds, .ranks = 2, .vendors = "na") {
  tune_for(gb_rank() ? "2" : "1");
  must_be_refused_everywhere(NULL, "GPUBRIDGE_TUNE_SECONDS",
                             "1 on rank 0, 2 on rank 1");
}
GB_TEST(tuning, a_bad_value_on_one_rank, .ranks = 2, .vendors = "na") {
  setenv("GPUBRIDGE_TUNE", gb_rank() ? "maybe" : "1", 1);
  must_be_refused_everywhere(NULL, "GPUBRIDGE_TUNE is \"maybe\", but must be",
                             "yes");
}
GB_TEST(tuning, too_many_seconds, .ranks = 2, .vendors = "na") {
  tune_for("61");
  must_be_refused_everywhere(NULL, "GPUBRIDGE_TUNE_SECONDS is \"61\"",
                             "at most 60");
}
GB_TEST(tuning, two_sources_of_rules, .ranks = 2, .vendors = "na") {
  tune_for("1");
  setenv("GPUBRIDGE_THRESHOLDS", "/nowhere/rules.json", 1);
  must_be_refused_everywhere(NULL, "GPUBRIDGE_THRESHOLDS=/nowhere/rules.json",
                             "");
}
GB_TEST(tuning, two_sources_that_can_be_read, .ranks = 2, .vendors = "na") {
  char path[64];
  snprintf(path, sizeof path, "/tmp/gb_tuning_%d_%d", (int)getppid(),
           gb_rank());
  FILE *file = fopen(path, "w");
  GB_CHECK(file &&
           fputs("{\"gpubridge_thresholds\": 1, \"rules\": [{\"max_bytes\": "
                 "null, \"policy\": \"auto\"}]}",
                 file) >= 0);
  fclose(file);
  tune_for("1");
  setenv("GPUBRIDGE_THRESHOLDS", path, 1);
  gb_job *job;
  gb_error error;
  double start = test_now();
  gb_status status = try_open(TIMEOUT_MS, NULL, &job, &error);
  unlink(path);
  must_fail(status, &error, start, 10, "GPUBRIDGE_TUNE=1 measures",
            "says it already. Unset one of them");
}
GB_TEST(tuning, a_named_policy, .ranks = 2, .vendors = "na") {
  tune_for("1");
  must_be_refused_everywhere("flat", "GPUBRIDGE_TUNE=1 measures",
                             "\"flat\", which was named");
}
GB_TEST(tuning, a_named_policy_by_variable, .ranks = 2, .vendors = "na") {
  tune_for("1");
  setenv("GPUBRIDGE_POLICY", "sharded-bridge", 1);
  must_be_refused_everywhere(NULL, "\"sharded-bridge\", which was named",
                             "auto or auto-tuned");
}

/* ---- failures while measuring ---- */

/* Rank 0 learns from its hook, which runs inside init while it waits or between
 * two measurements, that all measure: only then does something go wrong. */
typedef struct board {
  volatile int ended;
  volatile double died;
  char texts[8][GB_ERROR_TEXT_MAX];
} board;

static int calls_of_hook;

static int die(void *arg) {
  board *b = arg;
  if (++calls_of_hook < 30) return 0;
  b->died = test_now();
  kill(getpid(), SIGKILL);
  return 0;
}

static int give_up(void *arg) {
  board *b = arg;
  if (++calls_of_hook < 30) return 0;
  if (b->died <= 0) b->died = test_now();
  return 1;
}

static gb_status open_with(int rank, int (*hook)(void *), gb_error *error) {
  gb_job_params params = GB_JOB_PARAMS_INIT;
  gb_job *job;
  params.timeout_ms = 600000;
  if (gb_rank() == rank) {
    params.wait_hook = hook;
    params.wait_hook_arg = gb_test_shared();
  }
  tune_for("60");
  return gb_job_open(&params, &job, error);
}

static void death(int victim) {
  board *b = gb_test_shared();
  gb_error error;
  GB_CHECK(open_with(victim, die, &error) != GB_OK);
  GB_CHECK(test_now() - b->died < 10);
  must_tell_of(victim, &error, b->texts, &b->ended);
}
GB_TEST(tuning, a_member_dies, .ranks = 4, .vendors = "nnaa",
        .expect = "000k") {
  death(3);
}
GB_TEST(tuning, a_leader_dies, .ranks = 4, .vendors = "nnaa",
        .expect = "00k0") {
  death(2);
}
GB_TEST(tuning, rank_0_dies, .ranks = 4, .vendors = "nnaa", .expect = "k000") {
  death(0);
}

GB_TEST(tuning, interrupted, .ranks = 4, .vendors = "nnaa") {
  board *b = gb_test_shared();
  gb_error error;
  gb_status status = open_with(1, give_up, &error);
  GB_CHECK(status != GB_OK);
  if (gb_rank() == 1) GB_CHECK_INT(status, GB_ERR_INTERRUPTED);
  GB_CHECK(test_now() - b->died < 10);
  GB_CHECK_TEXT(error.text, "rank 1");
  GB_CHECK_TEXT(error.text, "interrupted");
}

/* A fault on one rank, at several places on its way through measuring: every
 * rank's init fails or every rank's works, within seconds. */
static void all_or_none(void) {
  volatile int *failed = gb_test_shared();
  gb_job *job;
  gb_error error;
  tune_for("1");
  double start = test_now();
  gb_status status = try_open(600000, NULL, &job, &error);
  GB_CHECK(test_now() - start < 15);
  if (status != GB_OK) __atomic_add_fetch(failed, 1, __ATOMIC_ACQ_REL);
  meet(1);
  GB_CHECK(*failed == 0 || *failed == gb_world());
  if (status != GB_OK) return;
  must_sum(job, 3);
  must_close(job);
}
#define FAULT(name_, fault_)                                                   \
  GB_TEST(tuning, name_, .ranks = 4, .vendors = "nnaa", .timeout_ms = 60000,   \
          .fault = fault_) {                                                   \
    setenv("GPUBRIDGE_BRIDGE", "tcp", 1);                                      \
    all_or_none();                                                             \
  }
#define NO_MEMORY(nth) FAULT(no_memory_##nth, "alloc@2:nth=" #nth ":fail")
NO_MEMORY(70) NO_MEMORY(80) NO_MEMORY(90) NO_MEMORY(150) NO_MEMORY(200)
NO_MEMORY(100) NO_MEMORY(110) NO_MEMORY(120) NO_MEMORY(130) NO_MEMORY(140)
FAULT(no_scratch, "mem.map@2:nth=2:fail")
FAULT(no_connection, "sock.connect@2:nth=3:fail")
FAULT(a_connection_breaks, "sock.send@2:nth=60:fail")
FAULT(a_stream_breaks, "sock.recv@0:nth=200:fail")
