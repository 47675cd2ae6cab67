/* A rank dies, freezes or leaves: every other rank raises the same sentence
 * within seconds although the timeout is ten minutes, naming the lost rank;
 * nobody returns a wrong number (S036, S041, S042, target T17). */
#include <sys/resource.h>

#include "job/job.h"

enum { LONG_MS = 600000 };

/* What the ranks tell each other through the shared page. */
typedef struct board {
  volatile int rounds;
  volatile int ended;
  volatile double died;
  char texts[8][GB_ERROR_TEXT_MAX];
} board;

/* Loops until a call fails; keeps the text on the board. */
static gb_status loop(gb_job *job, board *b, size_t count, gb_error *error) {
  float *data = malloc(count * sizeof *data);
  for (;;) {
    for (size_t i = 0; i < count; i++) data[i] = (float)(gb_rank() + 1);
    gb_buffer buffer = {data, count, GB_FLOAT32};
    gb_status status =
        gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, error);
    float want = (float)(gb_world() * (gb_world() + 1) / 2);
    if (status != GB_OK) {
      free(data);
      return status;
    }
    for (size_t i = 0; i < count; i++)
      if (data[i] != want)
        gb_test_fail(__FILE__, __LINE__, "wrong number %g", (double)data[i]);
    if (gb_rank() == 0 || (gb_world() > 1 && gb_rank() == 1))
      __atomic_add_fetch(&b->rounds, 1, __ATOMIC_ACQ_REL);
  }
}

static void kill_case(int victim, size_t count, int after_ms) {
  board *b = gb_test_shared();
  gb_job *job = must_open(LONG_MS, NULL);
  gb_error error;
  if (gb_rank() == victim) {
    pid_t me = getpid();
    pid_t killer = fork(); /* never touches the job */
    if (killer == 0) {
      gb_test_await(&b->rounds, 3, 20000);
      nap_ms(after_ms);
      b->died = test_now();
      kill(me, SIGKILL);
      _exit(0);
    }
  }
  gb_status status = loop(job, b, count, &error);
  double took = test_now() - b->died;
  GB_CHECK(status != GB_OK);
  if (took > 2.0)
    gb_test_fail(__FILE__, __LINE__, "took %.2f s: %s", took, error.text);
  must_tell_of(victim, &error, b->texts, &b->ended);
  double start = test_now();
  float value = 1;
  GB_CHECK(sum_once(job, &value, &error) != GB_OK);
  must_close(job);
  GB_CHECK(test_now() - start < 10);
}

#define KILLED(name, victim, count, ms, n, letters, wants)                     \
  GB_TEST(death, name, .ranks = n, .vendors = letters, .expect = wants,        \
          .timeout_ms = 60000) {                                               \
    kill_case(victim, count, ms);                                              \
  }
KILLED(member, 3, 16, 20, 4, "nnaa", "000k")
KILLED(leader, 2, 16, 20, 4, "nnaa", "00k0")
KILLED(member_of_rank_0s_island, 1, 16, 20, 4, "nnaa", "0k00")
KILLED(rank_0, 0, 16, 20, 4, "nnaa", "k000")
KILLED(leader_in_a_big_call, 2, 4 << 20, 35, 4, "nnaa", "00k0")
KILLED(member_in_a_big_call, 1, 4 << 20, 51, 4, "nnaa", "0k00")
KILLED(rank_0_in_a_big_call, 0, 4 << 20, 43, 4, "nnaa", "k000")
KILLED(one_island, 2, 1 << 20, 30, 4, "nnnn", "00k0")

/* In one step of all ranks, without a bridge. */
#define KILLED_DIRECT(name, victim, count, ms, wants)                          \
  GB_TEST(death, direct_##name, .ranks = 4, .vendors = "nnaa",                 \
          .expect = wants, .timeout_ms = 60000) {                              \
    setenv("GPUBRIDGE_POLICY", "direct", 1);                                   \
    kill_case(victim, count, ms);                                              \
  }
KILLED_DIRECT(member, 3, 16, 20, "000k")
KILLED_DIRECT(rank_0, 0, 16, 20, "k000")
KILLED_DIRECT(leader_in_a_big_call, 2, 4 << 20, 35, "00k0")
KILLED_DIRECT(member_in_a_big_call, 1, 4 << 20, 51, "0k00")

GB_TEST(death, leader_over_tcp, .ranks = 4, .vendors = "nnaa",
        .expect = "00k0", .timeout_ms = 60000) {
  setenv("GPUBRIDGE_BRIDGE", "tcp", 1);
  kill_case(2, 1 << 20, 25);
}

/* S042: 256 MiB on the wire, killed after different times. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MID_FLIGHT_COUNT = 2 << 20 }; /* sanitizers are slow */
#else
enum { MID_FLIGHT_COUNT = 64 << 20 };
#endif
#define MID_FLIGHT(name, ms)                                                   \
  GB_TEST(death, name, .ranks = 2, .vendors = "na", .expect = "0k",            \
          .timeout_ms = 120000) {                                              \
    setenv("GPUBRIDGE_BRIDGE", "tcp", 1);                                      \
    kill_case(1, MID_FLIGHT_COUNT, ms);                                        \
  }
MID_FLIGHT(mid_flight_20, 20)
MID_FLIGHT(mid_flight_90, 90)
MID_FLIGHT(mid_flight_170, 170)

/* S041: a frozen rank is found by its heartbeat; woken, it fails too. */
static void freeze_case(void) {
  setenv("GPUBRIDGE_HEARTBEAT_TIMEOUT", "2", 1);
  board *b = gb_test_shared();
  gb_job *job = must_open(LONG_MS, NULL);
  gb_error error;
  if (gb_rank() == 2) {
    pid_t me = getpid();
    if (fork() == 0) {
      gb_test_await(&b->rounds, 3, 20000);
      b->died = test_now();
      kill(me, SIGSTOP);
      gb_test_await(&b->ended, 3, 20000);
      kill(me, SIGCONT);
      _exit(0);
    }
  }
  gb_status status = loop(job, b, 16, &error);
  GB_CHECK(status != GB_OK);
  GB_CHECK_TEXT(error.text, "rank 2");
  GB_CHECK(test_now() - b->died < (gb_rank() == 2 ? 25 : 7));
  __atomic_add_fetch(&b->ended, 1, __ATOMIC_ACQ_REL);
  must_close(job);
}

GB_TEST(death, frozen, .ranks = 4, .vendors = "nnaa", .timeout_ms = 60000) {
  freeze_case();
}
GB_TEST(death, direct_frozen, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  setenv("GPUBRIDGE_POLICY", "direct", 1);
  freeze_case();
}

/* S038: a rank leaves in the middle; the others learn it at once. */
GB_TEST(death, closes_while_others_call, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  gb_job *job = must_open(60000, NULL);
  must_sum(job, 3);
  gb_error error;
  double start = test_now();
  if (gb_rank() == 1) {
    must_close(job);
    GB_CHECK(test_now() - start < 10);
    return;
  }
  float value = 1;
  GB_CHECK(sum_once(job, &value, &error) != GB_OK);
  GB_CHECK(test_now() - start < 5);
  GB_CHECK_TEXT(error.text, "rank 1");
  must_close(job);
}

/* S040: each kind of call obeys the timeout, and closing is quick after it. */
static void timeout_case(void) {
  volatile int *ended = gb_test_shared();
  for (int kind = 0; kind < 6; kind++) {
    gb_job *job = must_open(2000, NULL);
    if (gb_rank() == 3) {
      gb_test_await(ended, 3 * (kind + 1), 30000);
      must_close(job);
      continue;
    }
    float data[8] = {0}, row[2] = {0};
    gb_buffer b = {data, 8, GB_FLOAT32}, small = {row, 2, GB_FLOAT32};
    gb_group *g = gb_job_world(job);
    gb_error error;
    gb_work *work = NULL;
    double start = test_now();
    gb_status status = GB_OK;
    switch (kind) {
      case 0: status = gb_all_reduce(g, &b, GB_SUM, NULL, &error); break;
      case 1: status = gb_broadcast(g, &b, 3, NULL, &error); break;
      case 2: status = gb_all_gather(g, &b, &small, NULL, &error); break;
      case 3:
        status = gb_reduce_scatter(g, &small, &b, GB_SUM, NULL, &error);
        break;
      case 4: status = gb_barrier(g, NULL, &error); break;
      default:
        MUST(gb_all_reduce(g, &b, GB_SUM, &work, error));
        status = gb_work_wait(work, 0, &error);
        gb_work_release(work);
    }
    double took = test_now() - start;
    /* A reduce_scatter that needs nothing of rank 3 may end; nobody else. */
    if (status == GB_OK || took > 6)
      gb_test_fail(__FILE__, __LINE__, "kind %d: status %d after %.1f s", kind,
                   status, took);
    GB_CHECK_TEXT(error.text, "rank 3");
    start = test_now();
    must_close(job);
    GB_CHECK(test_now() - start < 8);
    __atomic_add_fetch(ended, 1, __ATOMIC_ACQ_REL);
  }
}

GB_TEST(death, every_call_obeys_the_timeout, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 120000) {
  timeout_case();
}

/* S089: three calls are queued when a peer dies. */
GB_TEST(death, queued_calls_say_they_were_not_run, .ranks = 4,
        .vendors = "nnaa", .expect = "000?", .timeout_ms = 60000) {
  gb_job *job = must_open(30000, NULL);
  must_sum(job, 1);
  volatile int *summed = gb_test_shared();
  __atomic_add_fetch(summed, 1, __ATOMIC_ACQ_REL);
  gb_test_await(summed, 4, 10000); /* nobody is still in the first call */
  if (gb_rank() == 3) _exit(3);
  float values[3] = {0};
  gb_work *works[3];
  gb_error error;
  int queued = 0;
  for (int i = 0; i < 3; i++) {
    gb_buffer buffer = {&values[i], 1, GB_FLOAT32};
    if (gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, &works[i], &error) !=
        GB_OK)
      break; /* the death may be known already */
    queued++;
  }
  for (int i = 0; i < queued; i++) {
    GB_CHECK(gb_work_wait(works[i], 20000, &error) != GB_OK);
    GB_CHECK_TEXT(error.text, "rank 3");
    if (i) GB_CHECK_TEXT(error.text, "not run");
    gb_work_release(works[i]);
  }
  double start = test_now();
  float value = 1;
  GB_CHECK(sum_once(job, &value, &error) != GB_OK);
  GB_CHECK_TEXT(error.text, "rank 3");
  must_close(job);
  GB_CHECK(test_now() - start < 10);
}

/* S009 and the hundred jobs of the issue, one part: killed jobs leave the port
 * and the processes usable for the next. */
GB_TEST(death, a_new_job_in_the_same_processes, .ranks = 3, .vendors = "naa",
        .expect = "00?", .timeout_ms = 60000) {
  gb_job *job = must_open(20000, NULL);
  must_sum(job, 2);
  volatile int *summed = gb_test_shared();
  __atomic_add_fetch(summed, 1, __ATOMIC_ACQ_REL);
  gb_test_await(summed, 3, 10000);
  if (gb_rank() == 2) _exit(1);
  gb_error error;
  float value = 1;
  GB_CHECK(sum_once(job, &value, &error) != GB_OK);
  must_close(job);
  gb_job_params params = GB_JOB_PARAMS_INIT;
  params.world_size = 2;
  params.rank = gb_rank();
  params.timeout_ms = 20000;
  params.attempt = "second";
  MUST(gb_job_open(&params, &job, error));
  value = (float)(gb_rank() + 1);
  MUST(sum_once(job, &value, error));
  GB_CHECK(value == 3.0f);
  must_close(job);
}
