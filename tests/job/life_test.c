/* Start, end, and everything around a job's life: environment (S021, S022,
 * S026), settings that differ or are malformed (S024, S025), late and missing
 * ranks (S015, S023), many jobs in one process (S017, S060), leaving in any
 * order (S018, S052, S055), forks (S061), signals (S053, S056), versions
 * (S108), one core (S059), cores of threads (S065), queue limits, work handles
 * (S087, S088, S090). */
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/time.h>

#include "job/job.h"

/* ---- environment ---- */

static void refused(const char *name, const char *value, const char *word) {
  setenv("WORLD_SIZE", "4", 1);
  setenv("GPUBRIDGE_VENDOR", "nvidia", 1);
  if (value)
    setenv(name, value, 1);
  else
    unsetenv(name);
  gb_job *job;
  gb_error error;
  double start = test_now();
  gb_status status = try_open(10000, NULL, &job, &error);
  GB_CHECK(status != GB_OK);
  GB_CHECK(test_now() - start < 2);
  GB_CHECK_TEXT(error.text, word);
}
GB_TEST(life, no_rank) { refused("RANK", NULL, "RANK is not set"); }
GB_TEST(life, no_world_size) { refused("WORLD_SIZE", NULL, "WORLD_SIZE"); }
GB_TEST(life, no_master_addr) { refused("MASTER_ADDR", NULL, "MASTER_ADDR"); }
GB_TEST(life, no_master_port) { refused("MASTER_PORT", NULL, "MASTER_PORT"); }
GB_TEST(life, rank_empty) { refused("RANK", " ", "RANK is not set"); }
GB_TEST(life, rank_negative) { refused("RANK", "-1", "\"-1\""); }
GB_TEST(life, rank_word) { refused("RANK", "two", "\"two\""); }
GB_TEST(life, rank_too_large) { refused("RANK", "4", "RANK is 4"); }
GB_TEST(life, world_zero) { refused("WORLD_SIZE", "0", "WORLD_SIZE"); }
GB_TEST(life, port_too_large) { refused("MASTER_PORT", "99999", "99999"); }
GB_TEST(life, launcher_text) { refused("RANK", NULL, "torchrun"); }
GB_TEST(life, slurm_hint) {
  setenv("SLURM_PROCID", "3", 1);
  refused("RANK", NULL, "SLURM_PROCID");
}

/* ---- settings ---- */

/* One rank has `value`; every rank must raise in seconds. */
static void bad_setting(int odd, const char *name, const char *value,
                        const char *word_own, const char *word_others) {
  if (gb_rank() == odd) setenv(name, value, 1);
  gb_job *job;
  gb_error error;
  double start = test_now();
  gb_status status = try_open(30000, NULL, &job, &error);
  GB_CHECK(status != GB_OK);
  GB_CHECK(test_now() - start < 10);
  if (gb_rank() == odd) {
    GB_CHECK_TEXT(error.text, name);
    GB_CHECK_TEXT(error.text, word_own);
  } else {
    GB_CHECK_INT(status, GB_ERR_REFUSED);
    GB_CHECK_TEXT(error.text, word_others);
  }
}
#define BAD_SETTING(test, name, value)                                         \
  GB_TEST(life, test, .ranks = 4, .vendors = "nnaa") {                         \
    bad_setting(3, name, value, value, "rank 3");                              \
  }
BAD_SETTING(vendor_intel, "GPUBRIDGE_VENDOR", "intel")
BAD_SETTING(pinned_maybe, "GPUBRIDGE_PINNED_STAGING", "maybe")
BAD_SETTING(compression_int4, "GPUBRIDGE_BRIDGE_COMPRESSION", "int4")
BAD_SETTING(queue_zero, "GPUBRIDGE_ASYNC_QUEUE", "0")
BAD_SETTING(chunk_word, "GPUBRIDGE_CHUNK_BYTES", "big")
BAD_SETTING(interface_missing, "GPUBRIDGE_MULTITCP_IFNAME", "eth77")

GB_TEST(life, vendor_in_capitals, .ranks = 2, .vendors = "na") {
  setenv("GPUBRIDGE_VENDOR", gb_rank() ? " AMD" : "NVIDIA ", 1);
  gb_job *job = must_open(20000, NULL);
  must_sum(job, 1);
  must_close(job);
}

/* S024 */
static void disagree(int odd, const char *name, const char *value) {
  if (gb_rank() == odd) setenv(name, value, 1);
  gb_job *job;
  gb_error error;
  GB_CHECK_INT(try_open(20000, NULL, &job, &error), GB_ERR_REFUSED);
  GB_CHECK_TEXT(error.text, name);
  char who[16];
  snprintf(who, sizeof who, "%d", odd);
  GB_CHECK_TEXT(error.text, who);
}
GB_TEST(life, chunk_differs, .ranks = 4, .vendors = "nnaa") {
  disagree(3, "GPUBRIDGE_CHUNK_BYTES", "2M");
}
GB_TEST(life, streams_differ, .ranks = 4, .vendors = "nnaa") {
  disagree(2, "GPUBRIDGE_MULTITCP_STREAMS", "2");
}
GB_TEST(life, chunk_written_in_two_ways, .ranks = 4, .vendors = "nnaa") {
  setenv("GPUBRIDGE_CHUNK_BYTES", gb_rank() ? "4M" : "4194304", 1);
  gb_job *job = must_open(20000, NULL);
  must_sum(job, 1);
  must_close(job);
}
GB_TEST(life, policy_differs, .ranks = 2, .vendors = "na") {
  gb_job *job;
  gb_error error;
  GB_CHECK(try_open(20000, gb_rank() ? "flat" : "auto", &job, &error) != GB_OK);
  GB_CHECK_TEXT(error.text, "flat");
}
GB_TEST(life, policy_unknown, .ranks = 1, .vendors = "n") {
  gb_job *job;
  gb_error error;
  GB_CHECK(try_open(20000, "fastest", &job, &error) != GB_OK);
  GB_CHECK_TEXT(error.text, "reduce-bridge-broadcast");
}
GB_TEST(life, policy_does_not_fit, .ranks = 2, .vendors = "na") {
  gb_job *job;
  gb_error error;
  GB_CHECK(try_open(20000, "native-only", &job, &error) != GB_OK);
  GB_CHECK_TEXT(error.text, "native-only");
  GB_CHECK_TEXT(error.text, "reduce-bridge-broadcast");
}

/* ---- who comes ---- */

GB_TEST(life, late_rank, .ranks = 4, .vendors = "nnaa", .timeout_ms = 40000) {
  if (gb_rank() == 0) nap_ms(3000);
  gb_job *job = must_open(20000, NULL);
  must_sum(job, 1);
  must_close(job);
}
GB_TEST(life, missing_rank, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 40000) {
  if (gb_rank() == 3) return;
  gb_job *job;
  gb_error error;
  double start = test_now();
  GB_CHECK(try_open(4000, NULL, &job, &error) != GB_OK);
  double took = test_now() - start;
  GB_CHECK(took > 3 && took < 12);
  GB_CHECK_TEXT(error.text, "rank 3");
  GB_CHECK(!strstr(error.text, "rank 2") && !strstr(error.text, "rank 1"));
}
GB_TEST(life, rank_claimed_twice, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  setenv("RANK", gb_rank() % 2 ? "1" : "0", 1);
  gb_job *job;
  gb_error error;
  double start = test_now();
  GB_CHECK(try_open(5000, NULL, &job, &error) != GB_OK);
  GB_CHECK(test_now() - start < 20);
}

/* ---- again and again ---- */

static int count_entries(const char *path) {
  DIR *folder = opendir(path);
  int count = 0;
  while (readdir(folder)) count++;
  closedir(folder);
  return count;
}

GB_TEST(life, twenty_jobs_in_one_process, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 90000) {
  int fds = 0, threads = 0;
  for (int round = 0; round < 20; round++) {
    gb_job *job = must_open(20000, NULL);
    must_sum(job, 2);
    must_close(job);
    if (round == 2) {
      fds = count_entries("/proc/self/fd");
      threads = count_entries("/proc/self/task");
    }
  }
  GB_CHECK_INT(count_entries("/proc/self/fd"), fds);
  GB_CHECK_INT(count_entries("/proc/self/task"), threads);
}

GB_TEST(life, leaves_in_any_order, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(20000, NULL);
  must_sum(job, 1);
  nap_ms(gb_rank() * 300);
  must_close(job);
}
GB_TEST(life, leaves_in_the_other_order, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(20000, NULL);
  must_sum(job, 1);
  nap_ms((3 - gb_rank()) * 300);
  must_close(job);
}
/* S052: no close at all: exit code 0, threads joined by the exit handler. */
GB_TEST(life, ends_without_closing, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(20000, NULL);
  must_sum(job, 2);
}
GB_TEST(life, close_of_nothing) { GB_CHECK_OK(gb_job_close(NULL, NULL)); }

/* S055: ten calls are queued, nobody waits; close runs them. */
GB_TEST(life, close_runs_the_queue, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(20000, NULL);
  float values[10];
  gb_work *works[10];
  for (int i = 0; i < 10; i++) {
    values[i] = (float)(gb_rank() + 1);
    gb_buffer buffer = {&values[i], 1, GB_FLOAT32};
    MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, &works[i], error));
  }
  must_close(job);
  for (int i = 0; i < 10; i++) {
    GB_CHECK(values[i] == 10.0f);
    MUST(gb_work_wait(works[i], 0, error)); /* outlives the job */
    gb_work_release(works[i]);
  }
}

/* ---- work handles ---- */

GB_TEST(life, poll_and_short_wait, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(20000, NULL);
  if (gb_rank() == 3) nap_ms(2000);
  float value = (float)(gb_rank() + 1);
  gb_buffer buffer = {&value, 1, GB_FLOAT32};
  gb_work *work;
  gb_error error;
  MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, &work, error));
  if (gb_rank() == 0) {
    int done;
    GB_CHECK_OK(gb_work_test(work, &done, &error));
    GB_CHECK(!done);
    GB_CHECK_INT(gb_work_wait(work, 500, &error), GB_ERR_WAIT_TIMEOUT);
  }
  MUST(gb_work_wait(work, 0, error));
  MUST(gb_work_wait(work, 0, error));
  GB_CHECK(value == 10.0f);
  gb_work_release(work);
  must_close(job);
}
GB_TEST(life, dropped_handles, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(20000, NULL);
  enum { CALLS = 200 };
  static float values[CALLS][1000];
  for (int i = 0; i < CALLS; i++) {
    for (int k = 0; k < 1000; k++) values[i][k] = (float)(gb_rank() + 1);
    gb_buffer buffer = {values[i], 1000, GB_FLOAT32};
    gb_work *work;
    MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, &work, error));
    gb_work_release(work);
  }
  MUST(gb_barrier(gb_job_world(job), NULL, error));
  for (int i = 0; i < CALLS; i++) GB_CHECK(values[i][999] == 10.0f);
  must_close(job);
}
/* S090: two calls on one buffer before waiting; and sync after async. */
GB_TEST(life, two_on_one_buffer, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(20000, NULL);
  for (int sync = 0; sync < 2; sync++) {
    float value = (float)(gb_rank() + 1);
    gb_buffer buffer = {&value, 1, GB_FLOAT32};
    gb_work *first, *second = NULL;
    MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, &first, error));
    MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM,
                       sync ? NULL : &second, error));
    if (second) MUST(gb_work_wait(second, 0, error));
    GB_CHECK(value == 40.0f);
    gb_work_release(first);
    gb_work_release(second);
  }
  must_close(job);
}
/* Room for four calls of one float32 besides those that run. */
static void fill_queue(const char *variable, const char *value) {
  setenv(variable, value, 1);
  gb_job *job = must_open(20000, NULL);
  volatile int *full = gb_test_shared();
  if (gb_rank()) gb_test_await(full, 1, 10000);
  float values[64] = {0};
  gb_work *works[64];
  int accepted = 0, target = 0;
  gb_error error;
  if (!gb_rank()) {
    for (; accepted < 64; accepted++) {
      gb_buffer buffer = {&values[accepted], 1, GB_FLOAT32};
      gb_status status = gb_all_reduce(gb_job_world(job), &buffer, GB_SUM,
                                       &works[accepted], &error);
      if (status == GB_OK) continue;
      GB_CHECK_INT(status, GB_ERR_BUSY);
      GB_CHECK_TEXT(error.text, variable);
      break;
    }
    GB_CHECK(accepted >= 4 && accepted <= 4 + 8);
    full[1] = accepted;
    __atomic_store_n(full, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < accepted; i++) {
      MUST(gb_work_wait(works[i], 0, error));
      gb_work_release(works[i]);
    }
  } else {
    for (target = full[1]; target > 0; target--) {
      float value = 0;
      MUST(sum_once(job, &value, error));
    }
  }
  must_close(job);
}

GB_TEST(life, queue_limit, .ranks = 2, .vendors = "na") {
  fill_queue("GPUBRIDGE_ASYNC_QUEUE", "4");
}
GB_TEST(life, queue_bytes_limit, .ranks = 2, .vendors = "na") {
  fill_queue("GPUBRIDGE_ASYNC_BYTES", "16");
}
/* A call larger than the budget still runs when nobody waits. */
GB_TEST(life, one_large_call_may_wait, .ranks = 2, .vendors = "na") {
  setenv("GPUBRIDGE_ASYNC_BYTES", "16", 1);
  gb_job *job = must_open(20000, NULL);
  for (int i = 0; i < 20; i++) {
    float values[100] = {1};
    gb_buffer buffer = {values, 100, GB_FLOAT32};
    gb_work *work;
    MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, &work, error));
    MUST(gb_work_wait(work, 0, error));
    gb_work_release(work);
    GB_CHECK(values[0] == 2);
  }
  must_close(job);
}

/* ---- fork, signals ---- */

GB_TEST(life, forked_child, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(20000, NULL);
  must_sum(job, 1);
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    float value = 1;
    gb_error error;
    GB_CHECK_INT(sum_once(job, &value, &error), GB_ERR_FORKED);
    GB_CHECK_TEXT(error.text, "fork");
    GB_CHECK_INT(gb_job_close(job, &error), GB_ERR_FORKED);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    _exit(0); /* the sanitizers' own exit handlers cannot stand a fork */
#endif
    exit(0); /* with exit handlers */
  }
  double start = test_now();
  int status;
  waitpid(child, &status, 0);
  GB_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  GB_CHECK(test_now() - start < 2);
  must_sum(job, 50);
  must_close(job);
}

static volatile sig_atomic_t signals;
static void count_signal(int number) { signals++; }

/* S053 and S056: signals interrupt nothing. */
GB_TEST(life, a_signal_every_millisecond, .ranks = 2, .vendors = "na",
        .timeout_ms = 60000) {
  struct sigaction action = {.sa_handler = count_signal}; /* no SA_RESTART */
  sigaction(SIGALRM, &action, NULL);
  struct itimerval timer = {{0, 1000}, {0, 1000}};
  setitimer(ITIMER_REAL, &timer, NULL);
  gb_job *job = must_open(20000, NULL);
  enum { COUNT = 1 << 20 };
  static float data[COUNT];
  for (int i = 0; i < 25; i++) {
    for (size_t k = 0; k < COUNT; k++) data[k] = (float)(gb_rank() + 1);
    gb_buffer buffer = {data, COUNT, GB_FLOAT32};
    MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, error));
    for (size_t k = 0; k < COUNT; k++) GB_CHECK(data[k] == 3.0f);
  }
  must_close(job);
  GB_CHECK(signals > 10);
}

static int stop_waiting(void *arg) { return *(volatile int *)arg; }
static void hook_case(const char *policy) {
  volatile int *stop = gb_test_shared();
  gb_job_params params = GB_JOB_PARAMS_INIT;
  params.timeout_ms = 60000;
  params.policy = policy;
  params.wait_hook = stop_waiting;
  params.wait_hook_arg = (void *)stop;
  gb_job *job;
  MUST(gb_job_open(&params, &job, error));
  must_sum(job, 1);
  gb_error error;
  float value = 1;
  double start = test_now();
  if (gb_rank() == 0) {
    pid_t child = fork();
    if (child == 0) {
      nap_ms(500);
      __atomic_store_n(stop, 1, __ATOMIC_RELEASE);
      _exit(0);
    }
    GB_CHECK_INT(sum_once(job, &value, &error), GB_ERR_INTERRUPTED);
    GB_CHECK_TEXT(error.text, "interrupted");
    __atomic_store_n(stop, 0, __ATOMIC_RELEASE);
    __atomic_store_n(stop + 1, 1, __ATOMIC_RELEASE);
  } else {
    gb_test_await(stop + 1, 1, 20000);
    /* Rank 0's part of its call may be here already: that sum is right. */
    gb_status status = sum_once(job, &value, &error);
    if (status == GB_OK) status = sum_once(job, &value, &error);
    GB_CHECK(status != GB_OK);
    GB_CHECK_TEXT(error.text, "rank 0");
  }
  GB_CHECK(test_now() - start < 10);
  must_close(job);
}
GB_TEST(life, the_wait_hook_ends_a_call, .ranks = 2, .vendors = "na",
        .timeout_ms = 30000) {
  hook_case(bridging_policy());
}
GB_TEST(life, the_wait_hook_ends_a_direct_call, .ranks = 2, .vendors = "na",
        .timeout_ms = 30000) {
  hook_case("direct");
}

/* ---- cores ---- */

/* S059: one core for all; waiting costs no CPU. */
GB_TEST(life, all_on_one_core, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 120000) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(0, &one);
  sched_setaffinity(0, sizeof one, &one);
  gb_job *job = must_open(60000, NULL);
  enum { COUNT = 1 << 18 };
  static float data[COUNT];
  for (int i = 0; i < 50; i++) {
    for (size_t k = 0; k < COUNT; k++) data[k] = 1;
    gb_buffer buffer = {data, COUNT, GB_FLOAT32};
    MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, error));
    GB_CHECK(data[COUNT - 1] == 4.0f);
  }
  MUST(gb_barrier(gb_job_world(job), NULL, error));
  struct rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  if (gb_rank() == 3) nap_ms(5000);
  must_sum(job, 1);
  getrusage(RUSAGE_SELF, &after);
  double cpu =
      (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec) +
      (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec) / 1e6 +
      (double)(after.ru_stime.tv_sec - before.ru_stime.tv_sec) +
      (double)(after.ru_stime.tv_usec - before.ru_stime.tv_usec) / 1e6;
  if (cpu > 0.5) gb_test_fail(__FILE__, __LINE__, "%.2f s of CPU", cpu);
  must_close(job);
}

/* S065: no thread of the library leaves the process's cores. */
GB_TEST(life, threads_keep_the_mask, .ranks = 2, .vendors = "na") {
  cpu_set_t one, seen;
  CPU_ZERO(&one);
  CPU_SET(1, &one);
  if (sched_setaffinity(0, sizeof one, &one)) gb_test_skip("one core only");
  gb_job *job = must_open(20000, NULL);
  must_sum(job, 1);
  DIR *tasks = opendir("/proc/self/task");
  struct dirent *entry;
  int threads = 0;
  while ((entry = readdir(tasks))) {
    if (entry->d_name[0] == '.') continue;
    sched_getaffinity((pid_t)strtol(entry->d_name, NULL, 10), sizeof seen,
                      &seen);
#ifndef __SANITIZE_THREAD__ /* it has a thread of its own, started before */
    GB_CHECK(CPU_EQUAL(&one, &seen));
#endif
    threads++;
  }
  closedir(tasks);
  GB_CHECK(threads >= 2); /* main and gb-control */
  must_close(job);
}

/* T16: no page fault and no growth of the heap in steady calls. */
GB_TEST(life, steady_calls_touch_no_new_memory, .ranks = 4,
        .vendors = "nnaa") {
  gb_job *job = must_open(20000, NULL);
  enum { COUNT = 1 << 20 };
  static float data[COUNT];
  for (size_t k = 0; k < COUNT; k++) data[k] = 1;
  gb_buffer big = {data, COUNT, GB_FLOAT32}, small = {data, 1, GB_FLOAT32};
  for (int i = 0; i < 3; i++) {
    MUST(gb_all_reduce(gb_job_world(job), &big, GB_MAX, NULL, error));
    MUST(gb_all_reduce(gb_job_world(job), &small, GB_MAX, NULL, error));
  }
  struct rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  for (int i = 0; i < 10; i++) {
    MUST(gb_all_reduce(gb_job_world(job), &big, GB_MAX, NULL, error));
    MUST(gb_all_reduce(gb_job_world(job), &small, GB_MAX, NULL, error));
  }
  getrusage(RUSAGE_SELF, &after);
  long faults = after.ru_minflt - before.ru_minflt;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  faults = 0; /* the sanitizers' shadow memory faults by itself */
#endif
  if (faults > 2) gb_test_fail(__FILE__, __LINE__, "%ld page faults", faults);
  must_close(job);
}

/* S086: pointers and counts of a C program. */
GB_TEST(life, odd_arguments, .ranks = 2, .vendors = "na") {
  gb_job *job = must_open(20000, NULL);
  gb_group *g = gb_job_world(job);
  char raw[16] __attribute__((aligned(16))) = {0};
  float one = 1, got;
  memcpy(raw + 1, &one, 4);
  gb_buffer unaligned = {raw + 1, 1, GB_FLOAT32};
  if (gb_rank()) {
    one = 2;
    memcpy(raw + 1, &one, 4);
  }
  MUST(gb_all_reduce(g, &unaligned, GB_SUM, NULL, error));
  memcpy(&got, raw + 1, 4);
  GB_CHECK(got == 3.0f);
  gb_error error;
  gb_buffer null4 = {NULL, 4, GB_FLOAT32}, null0 = {NULL, 0, GB_FLOAT32};
  gb_buffer huge = {raw, SIZE_MAX, GB_FLOAT32};
  gb_buffer good = {raw, 1, GB_FLOAT32};
  GB_CHECK_INT(gb_all_reduce(g, &null4, GB_SUM, NULL, &error),
               GB_ERR_ARGUMENT);
  GB_CHECK_TEXT(error.text, "NULL");
  MUST(gb_all_reduce(g, &null0, GB_SUM, NULL, error));
  GB_CHECK_INT(gb_all_reduce(g, &huge, GB_SUM, NULL, &error), GB_ERR_ARGUMENT);
  GB_CHECK_INT(gb_all_reduce(g, &good, (gb_redop)9, NULL, &error),
               GB_ERR_ARGUMENT);
  GB_CHECK_INT(gb_all_reduce(g, NULL, GB_SUM, NULL, &error), GB_ERR_ARGUMENT);
  GB_CHECK_INT(gb_all_reduce(NULL, &good, GB_SUM, NULL, &error),
               GB_ERR_ARGUMENT);
  must_sum(job, 1);
  must_close(job);
}

/* S085: the input inside the output. */
GB_TEST(life, overlapping_rows, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(20000, NULL);
  gb_group *g = gb_job_world(job);
  float all[8] = {0};
  size_t me = (size_t)gb_rank();
  all[me * 2] = all[me * 2 + 1] = (float)gb_rank();
  gb_buffer output = {all, 8, GB_FLOAT32}, row = {all + me * 2, 2, GB_FLOAT32};
  MUST(gb_all_gather(g, &output, &row, NULL, error));
  for (int i = 0; i < 8; i++) GB_CHECK(all[i] == (float)(i / 2));
  for (int i = 0; i < 8; i++) all[i] = (float)(i + gb_rank());
  MUST(gb_reduce_scatter(g, &row, &output, GB_SUM, NULL, error));
  GB_CHECK(all[me * 2] == (float)(4 * 2 * gb_rank() + 6));
  gb_error error;
  gb_buffer wrong = {all + 1, 2, GB_FLOAT32};
  GB_CHECK_INT(gb_all_gather(g, &output, &wrong, NULL, &error),
               GB_ERR_ARGUMENT);
  GB_CHECK_TEXT(error.text, "overlap");
  must_close(job);
}

/* in_flight (S043): who waits, where; the late rank shows nothing. */
static gb_job *watched;
static gb_in_flight shown[4];
static int shown_count;
static void *look(void *arg) {
  nap_ms(1000);
  shown_count = gb_job_in_flight(watched, shown, 4);
  return NULL;
}
GB_TEST(life, in_flight_shows_the_wait, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(20000, NULL);
  must_sum(job, 2);
  watched = job;
  pthread_t thread;
  GB_CHECK_OK(pthread_create(&thread, NULL, look, NULL));
  if (gb_rank() == 3) nap_ms(2000);
  must_sum(job, 1);
  pthread_join(thread, NULL);
  GB_CHECK_INT(shown_count, gb_rank() == 3 ? 0 : 1);
  if (gb_rank() != 3) {
    GB_CHECK_INT(shown[0].seq, 2);
    GB_CHECK(!strcmp(shown[0].op, "all_reduce"));
    GB_CHECK(shown[0].age_ns > 500000000);
    static const char *const phases[] = {"bridge", "island-broadcast",
                                         "island-reduce"};
    GB_CHECK(shown[0].phase && !strcmp(shown[0].phase, phases[gb_rank()]));
  }
  GB_CHECK_INT(gb_job_in_flight(job, shown, 4), 0);
  must_close(job);
}

/* S108 */
#ifdef GPUBRIDGE_FAULTS
GB_TEST(life, another_protocol_version, .ranks = 2, .vendors = "na") {
  if (gb_rank()) setenv("GPUBRIDGE_TEST_PROTOCOL_VERSION", "7", 1);
  gb_job *job;
  gb_error error;
  double start = test_now();
  GB_CHECK(try_open(15000, NULL, &job, &error) != GB_OK);
  GB_CHECK(test_now() - start < 10);
  GB_CHECK_TEXT(error.text, "7");
  GB_CHECK_TEXT(error.text, "version");
}
#endif

/* S047: rank 3 has one step less, and closes; nobody waits for the timeout. */
GB_TEST(life, one_ends_a_step_early, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(300000, NULL);
  must_sum(job, 4);
  if (gb_rank() < 3) {
    float value = 1;
    gb_error error;
    double start = test_now();
    GB_CHECK_INT(sum_once(job, &value, &error), GB_ERR_PEER);
    GB_CHECK(test_now() - start < 20);
    GB_CHECK_TEXT(error.text, "rank 3");
    GB_CHECK_TEXT(error.text, "left the job after 4 calls");
  }
  must_close(job);
}
