/* What the whole-job tests share: opening with the harness's environment, and
 * calls that must succeed. */
#ifndef GB_TESTS_JOB_H
#define GB_TESTS_JOB_H

#include <errno.h>
#include <fcntl.h>
#include <gpubridge/gpubridge.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness/gb_test.h"

static inline double test_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* What a test means that names no policy: to meet over the bridge, as between
 * two machines, which auto passes by on the tests' one host. Where there is one
 * vendor, or the environment says how calls travel, nothing is named. */
static inline const char *bridging_policy(void) {
  const char *letters = gb_vendors();
  bool mixed = letters && strchr(letters, 'n') && strchr(letters, 'a');
  bool told = getenv("GPUBRIDGE_POLICY") || getenv("GPUBRIDGE_THRESHOLDS") ||
              getenv("GPUBRIDGE_TUNE");
  return mixed && !told ? "reduce-bridge-broadcast" : NULL;
}

/* policy: NULL for bridging_policy. */
static inline gb_status try_open(unsigned timeout_ms, const char *policy,
                                 gb_job **job, gb_error *error) {
  gb_job_params params = GB_JOB_PARAMS_INIT;
  params.timeout_ms = timeout_ms;
  params.policy = policy ? policy : bridging_policy();
  return gb_job_open(&params, job, error);
}

static inline gb_job *must_open(unsigned timeout_ms, const char *policy) {
  gb_job *job;
  gb_error error;
  if (try_open(timeout_ms, policy, &job, &error) != GB_OK)
    gb_test_fail(__FILE__, __LINE__, "could not open: %s", error.text);
  return job;
}

static inline void must_close(gb_job *job) {
  gb_error error;
  if (gb_job_close(job, &error) != GB_OK)
    gb_test_fail(__FILE__, __LINE__, "could not close: %s", error.text);
}

#define MUST(call)                                                             \
  do {                                                                         \
    gb_error must_error = {.text = ""};                                        \
    gb_error *error = &must_error;                                             \
    if ((call) != GB_OK)                                                       \
      gb_test_fail(__FILE__, __LINE__, "%s: %s", #call, must_error.text);      \
  } while (0)

/* All_reduces r+1 on every rank `times` times; must give world*(world+1)/2. */
static inline void must_sum(gb_job *job, int times) {
  int world = gb_world();
  for (int i = 0; i < times; i++) {
    float value = (float)(gb_rank() + 1);
    gb_buffer buffer = {&value, 1, GB_FLOAT32};
    MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, error));
    if (value != (float)(world * (world + 1) / 2))
      gb_test_fail(__FILE__, __LINE__, "sum is %g", (double)value);
  }
}

static inline gb_status sum_once(gb_job *job, float *value, gb_error *error) {
  gb_buffer buffer = {value, 1, GB_FLOAT32};
  return gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, error);
}

/* The call must fail within `seconds`, with both words in the text. */
static inline void must_fail(gb_status status, const gb_error *error,
                             double start, double seconds, const char *a,
                             const char *b) {
  double took = test_now() - start;
  if (status == GB_OK)
    gb_test_fail(__FILE__, __LINE__, "success, though ranks disagree");
  if (took > seconds)
    gb_test_fail(__FILE__, __LINE__, "took %.1f s: %s", took, error->text);
  GB_CHECK_TEXT(error->text, a);
  GB_CHECK_TEXT(error->text, b);
}

/* Puts this rank into an island by its number. */
static inline void name_island(int island) {
  static const char *const names[] = {"one", "two", "three", "four"};
  setenv("GPUBRIDGE_ISLAND", names[island], 1);
}

/* Lays out three islands of 2, 3 and 2 of seven ranks by name. */
static inline void name_three_islands(void) {
  static const int islands[] = {0, 0, 1, 1, 1, 2, 2};
  name_island(islands[gb_rank()]);
}

/* Ends a call that may have been made with `work_p`: it points to NULL when the
 * call was sync. */
static inline void must_end(gb_status status, gb_work **work_p,
                            gb_error *error) {
  if (status == GB_OK && *work_p) status = gb_work_wait(*work_p, 0, error);
  if (status != GB_OK)
    gb_test_fail(__FILE__, __LINE__, "the call failed: %s", error->text);
  gb_work_release(*work_p);
  *work_p = NULL;
}

static inline void must_be_refused(gb_status status, gb_status want,
                               const gb_error *error, const char *words) {
  GB_CHECK_INT(status, want);
  GB_CHECK_TEXT(error->text, words);
}

/* All ranks are past what they did before: nobody is inside an earlier call.
 * Words of the shared page are used one after another. */
static inline void meet(int place) {
  volatile int *ready = (volatile int *)gb_test_shared() + place;
  __atomic_add_fetch(ready, 1, __ATOMIC_ACQ_REL);
  gb_test_await(ready, gb_world(), 20000);
}

/* Every survivor's error says that the victim is gone, in one sentence
 * everywhere; a later call adds a hint. texts, by rank, and the count of those
 * who came here are in the shared page. */
static inline void must_tell_of(int victim, const gb_error *error,
                                char (*texts)[GB_ERROR_TEXT_MAX],
                                volatile int *ended) {
  char name[16];
  snprintf(name, sizeof name, "rank %d", victim);
  GB_CHECK_TEXT(error->text, name);
  GB_CHECK_TEXT(error->text, "gone");
  snprintf(texts[gb_rank()], GB_ERROR_TEXT_MAX, "%s", error->text);
  __atomic_add_fetch(ended, 1, __ATOMIC_ACQ_REL);
  gb_test_await(ended, gb_world() - 1, 5000);
  for (int r = 0; r < gb_world(); r++)
    if (r != victim && !strstr(texts[r], error->text) &&
        !strstr(error->text, texts[r]))
      gb_test_fail(__FILE__, __LINE__, "\"%s\" is not \"%s\"", texts[r],
                   error->text);
}

static inline void nap_ms(int ms) {
  struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000};
  while (nanosleep(&time, &time) && errno == EINTR) {
  }
}

#endif
