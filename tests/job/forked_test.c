/* Processes that a rank forked (data loaders) may outlive it. A death must then
 * still show at once, though the child got copies of the sockets, and gone
 * connections must neither be touched (address sanitizer) nor keep a thread
 * busy (S064). */
#include <sys/resource.h>

#include "job/job.h"

static double cpu_seconds(void) {
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  return (double)used.ru_utime.tv_sec + (double)used.ru_utime.tv_usec / 1e6 +
         (double)used.ru_stime.tv_sec + (double)used.ru_stime.tv_usec / 1e6;
}

/* Lives eight seconds, also without its parent; silence would be noticed after
 * ten. */
static void fork_loader(void) {
  if (fork()) return;
  nap_ms(8000);
  _exit(0);
}

static void survivors_stay_calm(const char *bridge, int victim) {
  setenv("GPUBRIDGE_BRIDGE", bridge, 1);
  gb_job *job = must_open(60000, NULL);
  must_sum(job, 3);
  fork_loader();
  must_sum(job, 3);
  meet(0);
  if (gb_rank() == victim) _exit(3);
  double start = test_now();
  gb_error error;
  gb_status status = GB_OK;
  float value = 1;
  for (int i = 0; i < 3 && status == GB_OK; i++)
    status = sum_once(job, &value, &error);
  GB_CHECK(status != GB_OK);
  char name[16];
  snprintf(name, sizeof name, "rank %d", victim);
  GB_CHECK_TEXT(error.text, name);
  GB_CHECK(test_now() - start < 3);
  double before = cpu_seconds();
  nap_ms(1500);
  double burnt = cpu_seconds() - before;
  if (burnt > 0.3)
    gb_test_fail(__FILE__, __LINE__, "%.2f s of CPU while idle", burnt);
  must_close(job);
}

#define CALM(name, bridge, victim, wants)                                      \
  GB_TEST(forked, name, .ranks = 4, .vendors = "nnaa", .expect = wants,        \
          .timeout_ms = 60000) {                                               \
    survivors_stay_calm(bridge, victim);                                       \
  }
CALM(a_member_dies, "shm", 3, "000x")
CALM(a_leader_dies, "tcp", 2, "00x0")
CALM(rank_0_dies, "tcp", 0, "x000")

/* One leaves with a child alive; the others are not held up. */
GB_TEST(forked, closes_in_time, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  setenv("GPUBRIDGE_BRIDGE", "tcp", 1);
  gb_job *job = must_open(60000, NULL);
  must_sum(job, 3);
  fork_loader();
  must_sum(job, 3);
  double start = test_now();
  must_close(job);
  GB_CHECK(test_now() - start < 4);
}
