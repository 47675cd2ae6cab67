/* The control plane among real processes: everybody meets, everybody hears the
 * same sentence, and nobody outside can disturb it. Each case says which user's
 * trouble (S0xx) it covers. */
#include "control/control.h"

#include "base/hmac.h"
#include "harness/gb_test.h"
#include "os/net.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define COPY(to, from) snprintf((to), sizeof(to), "%s", (from))

enum { SECONDS = 1000 };

/* What the cases share between their ranks. */
typedef struct board {
  volatile int step, ready;
  volatile int failures[64]; /* on_failure calls by rank */
  volatile int port;
  char texts[64][900];
} board;

static board *b;
static gbi_control *control;
static gb_error error;
static pthread_mutex_t state_lock = PTHREAD_MUTEX_INITIALIZER;
static gbi_call_state my_state; /* under state_lock, as have_state */
static bool have_state;

static void on_failure(void *arg) {
  __atomic_add_fetch(&b->failures[gb_rank()], 1, __ATOMIC_SEQ_CST);
}

static bool report(void *arg, uint32_t group, gbi_call_state *state) {
  pthread_mutex_lock(&state_lock);
  bool known = have_state;
  if (known) *state = my_state;
  pthread_mutex_unlock(&state_lock);
  return known;
}

static void set_state(const gbi_call_state *state) {
  pthread_mutex_lock(&state_lock);
  my_state = *state;
  have_state = true;
  pthread_mutex_unlock(&state_lock);
}

/* Offers got so far, and the ranks that left: by bit. */
static _Atomic int offers_got, ranks_left;

static void on_offer(void *arg, int from, const void *blob, size_t bytes) {
  char want[32];
  snprintf(want, sizeof want, "%d to %d", from, gb_rank());
  GB_CHECK_INT(bytes, bytes == GBI_OFFER_MAX ? bytes : strlen(want));
  GB_CHECK(!memcmp(blob, want, strlen(want)));
  offers_got |= 1 << from;
}

static void on_left(void *arg, int rank) {
  GB_CHECK(!(ranks_left & 1 << rank)); /* once each */
  ranks_left |= 1 << rank;
}

static gbi_control_params params_ms(uint64_t timeout_ms) {
  static char hostname[16];
  offers_got = ranks_left = 0;
  snprintf(hostname, sizeof hostname, "h%d", gb_rank());
  return (gbi_control_params){
      .store = {.rank = gb_rank(),
                .world_size = gb_world(),
                .deadline_ns = gbi_deadline_after_ms(timeout_ms)},
      .on_failure = on_failure,
      .report = report,
      .on_offer = on_offer,
      .on_left = on_left,
      .hostname = hostname,
      .vendor = gb_rank() % 2 ? "amd" : "nvidia",
  };
}

static gb_status open_ms(uint64_t timeout_ms) {
  gbi_control_params params = params_ms(timeout_ms);
  b = gb_test_shared();
  control = NULL; /* closing that is a no-op */
  return gbi_control_open(&params, &control, &error);
}

static void must_open(void) {
  if (open_ms(20 * SECONDS) != GB_OK)
    gb_test_fail(__FILE__, __LINE__, "%s", error.text);
}

static gb_status gather_ms(gbi_decide_fn decide, uint64_t timeout_ms) {
  char record[64];
  gbi_blobs blobs;
  int n = snprintf(record, sizeof record, "record of %d", gb_rank());
  gb_status status =
      gbi_control_gather(control, record, (size_t)n, decide, NULL,
                         gbi_deadline_after_ms(timeout_ms), &blobs, &error);
  if (status != GB_OK) return status;
  GB_CHECK_INT(blobs.count, gb_world());
  for (int r = 0; r < blobs.count; r++) {
    n = snprintf(record, sizeof record, "record of %d", r);
    GB_CHECK_INT(blobs.items[r].bytes, n);
    GB_CHECK(!memcmp(blobs.items[r].data, record, (size_t)n));
  }
  gbi_blobs_free(&blobs);
  return GB_OK;
}

static void must_gather(void) {
  if (gather_ms(NULL, 20 * SECONDS) != GB_OK)
    gb_test_fail(__FILE__, __LINE__, "%s", error.text);
}

static void leave(void) {
  gbi_control_goodbye(control, gbi_deadline_after_ms(10 * SECONDS));
  GB_CHECK(!gbi_control_failed(control, NULL));
  gbi_control_close(control);
}

/* Every rank of `ranks` writes its text; all must be the same. */
static void same_text(const char *text, int expected) {
  board *board = gb_test_shared();
  snprintf(board->texts[gb_rank()], sizeof board->texts[0], "%s", text);
  __atomic_add_fetch(&board->ready, 1, __ATOMIC_SEQ_CST);
  gb_test_await(&board->ready, expected, 20 * SECONDS);
  for (int r = 0; r < gb_world(); r++)
    if (board->texts[r][0] && strcmp(board->texts[r], text))
      gb_test_fail(__FILE__, __LINE__, "\"%s\" is not \"%s\"", board->texts[r],
                   text);
}

static void await_failure(int timeout_ms) {
  uint64_t deadline = gbi_deadline_after_ms((uint64_t)timeout_ms);
  while (!gbi_control_failed(control, &error)) {
    GB_CHECK(!gbi_deadline_passed(deadline));
    struct timespec nap = {0, 1000000};
    nanosleep(&nap, NULL);
  }
}

static int count_entries(const char *path) {
  DIR *dir = opendir(path);
  int count = 0;
  while (readdir(dir)) count++;
  closedir(dir);
  return count;
}

/* ---- meeting ---- */

GB_TEST(control, gathers_all_records, .ranks = 4) {
  must_open();
  GB_CHECK_TEXT(gbi_control_store_host(control), "127.0.0.1");
  must_gather();
  leave();
}

/* S005: nothing but IPv6. */
GB_TEST(control, gathers_over_ipv6, .ranks = 3) {
  setenv("MASTER_ADDR", "::1", 1);
  must_open();
  must_gather();
  leave();
}

/* The user's interface decides where rank 0 listens. */
GB_TEST(control, gathers_over_a_named_interface, .ranks = 2) {
  setenv("GPUBRIDGE_TCP_IFNAME", "lo", 1);
  must_open();
  must_gather();
  leave();
}

GB_TEST(control, one_rank_needs_nobody) {
  unsetenv("MASTER_ADDR"); /* S021 */
  GB_CHECK_INT(open_ms(1000), GB_ERR_SETTING);
  GB_CHECK_TEXT(error.text, "MASTER_ADDR is not set");
  setenv("MASTER_ADDR", "not.a.host.test", 1);
  must_open();
  must_gather();
  gbi_blobs blobs;
  int me = 0;
  GB_CHECK_OK(gbi_control_exchange(control, 0, &me, 1, 0, NULL, "x", 1,
                                   gbi_deadline_after_ms(5000), &blobs,
                                   &error));
  GB_CHECK_INT(blobs.items[0].bytes, 1);
  gbi_blobs_free(&blobs);
  leave();
}

static gb_status refuse(void *arg, gbi_reader *records, int count,
                        gb_error *out) {
  return gbi_fail_rank(out, GB_ERR_REFUSED, 2, "rank 2 has no GPU (%d records)",
                       count);
}

GB_TEST(control, refusal_is_the_same_everywhere, .ranks = 4) {
  must_open();
  GB_CHECK_INT(gather_ms(refuse, 20 * SECONDS), GB_ERR_REFUSED);
  GB_CHECK_INT(error.rank, 2);
  GB_CHECK_TEXT(error.text, "rank 2 has no GPU (4 records)");
  gbi_control_close(control);
  same_text(error.text, 4);
  GB_CHECK_INT(b->failures[gb_rank()], 1);
}

/* S015: a rank that never comes is named, and only it, by everybody. */
GB_TEST(control, missing_rank_is_named, .ranks = 4) {
  if (gb_rank() == 3) return;
  GB_CHECK_OK(open_ms(2000));
  uint64_t start = gbi_now_ns();
  GB_CHECK_INT(gather_ms(NULL, 2000), GB_ERR_TIMEOUT);
  GB_CHECK_TEXT(error.text, "rank 3 never reported within 2 s");
  GB_CHECK_INT(error.rank, 3);
  GB_CHECK(gbi_now_ns() - start < 5 * GBI_NS_PER_S);
  gbi_control_close(control);
  same_text(error.text, 3);
}

/* S015: late is not missing. */
GB_TEST(control, late_rank_zero_is_waited_for, .ranks = 3) {
  if (gb_rank() == 0) {
    struct timespec nap = {1, 0};
    nanosleep(&nap, NULL);
  }
  must_open();
  must_gather();
  leave();
}

/* S020 on the control plane: 32 ranks at the same moment. */
GB_TEST(control, thirty_two_ranks, .ranks = 32, .timeout_ms = 60000) {
  uint64_t start = gbi_now_ns();
  must_open();
  must_gather();
  if (gb_rank() == 0)
    printf("up in %.2f s\n",
           (double)(gbi_now_ns() - start) / (double)GBI_NS_PER_S);
  GB_CHECK(gbi_now_ns() - start < 10 * GBI_NS_PER_S);
  leave();
}

/* S017, and rank 1 is often ahead of rank 0: its old job answers it. */
GB_TEST(control, twenty_jobs_in_one_process, .ranks = 3, .timeout_ms = 60000) {
  int files = 0, threads = 0;
  for (int round = 0; round < 20; round++) {
    must_open();
    must_gather();
    leave();
    int now_files = count_entries("/proc/self/fd");
    int now_threads = count_entries("/proc/self/task");
    /* The kernel lists a thread a moment longer than its join takes. */
    uint64_t patience = gbi_deadline_after_ms(1000);
    while (round > 2 && now_threads > threads && !gbi_deadline_passed(patience))
      now_threads = count_entries("/proc/self/task");
    if (round == 2) files = now_files, threads = now_threads;
    if (round < 2) continue;
    GB_CHECK_INT(now_files, files);
    GB_CHECK_INT(now_threads, threads);
  }
}

/* The same over a file, where the keys of all jobs stay. */
GB_TEST(control, jobs_over_one_file, .ranks = 3, .timeout_ms = 60000) {
  char url[96];
  snprintf(url, sizeof url, "file:///tmp/gb_control_%s", getenv("MASTER_PORT"));
  for (int round = 0; round < 5; round++) {
    gbi_control_params params = params_ms(20 * SECONDS);
    params.store.init_method = url;
    if (gbi_control_open(&params, &control, &error) != GB_OK)
      gb_test_fail(__FILE__, __LINE__, "%s", error.text);
    must_gather();
    leave();
  }
  if (gb_rank() == 0) unlink(url + 7);
}

/* After a job that was refused the same processes open the next one. */
GB_TEST(control, next_job_after_a_refusal, .ranks = 3) {
  must_open();
  GB_CHECK_INT(gather_ms(refuse, 20 * SECONDS), GB_ERR_REFUSED);
  gbi_control_close(control);
  must_open();
  must_gather();
  leave();
}

/* S023: both claims of rank 1 fail, and so does everybody, with that text. */
GB_TEST(control, rank_claimed_twice, .ranks = 3) {
  gbi_control_params params = params_ms(8 * SECONDS);
  b = gb_test_shared();
  uint64_t start = gbi_now_ns();
  if (gb_rank() == 2) params.store.rank = 1;
  gb_status status = gbi_control_open(&params, &control, &error);
  if (status == GB_OK) {
    status = gather_ms(NULL, 8 * SECONDS);
    gbi_control_close(control);
  }
  GB_CHECK_INT(status, GB_ERR_REFUSED);
  GB_CHECK_TEXT(error.text, "rank 1 was claimed twice");
  GB_CHECK(gbi_now_ns() - start < 4 * GBI_NS_PER_S);
  same_text(error.text, 3);
}

GB_TEST(control, world_sizes_differ, .ranks = 3) {
  gbi_control_params params = params_ms(8 * SECONDS);
  b = gb_test_shared();
  if (gb_rank() == 2) params.store.world_size = 4;
  gb_status status = gbi_control_open(&params, &control, &error);
  if (status == GB_OK) {
    status = gather_ms(NULL, 8 * SECONDS);
    gbi_control_close(control);
  }
  GB_CHECK_INT(status, GB_ERR_REFUSED);
  GB_CHECK_TEXT(error.text, "WORLD_SIZE 3");
  GB_CHECK_TEXT(error.text, "has 4");
  same_text(error.text, 3);
}

GB_TEST(control, bad_rank_is_refused) {
  gbi_control_params params = params_ms(1000);
  params.store.rank = 1;
  GB_CHECK_INT(gbi_control_open(&params, &control, &error), GB_ERR_ARGUMENT);
}

/* S108: both versions and both ranks, on both sides. */
GB_TEST(control, versions_differ, .ranks = 3) {
#ifndef GPUBRIDGE_FAULTS
  gb_test_skip("needs a build with fault points");
#endif
  if (gb_rank() == 1) setenv("GPUBRIDGE_TEST_PROTOCOL_VERSION", "7", 1);
  gb_status status = open_ms(8 * SECONDS);
  if (status == GB_OK) {
    status = gather_ms(NULL, 8 * SECONDS);
    gbi_control_close(control);
  }
  GB_CHECK_INT(status, GB_ERR_VERSION);
  GB_CHECK_TEXT(error.text, "rank 0 speaks 2, rank 1 speaks 7");
  same_text(error.text, 3);
}

/* ---- secrets ---- */

GB_TEST(control, same_secret_joins, .ranks = 2) {
  setenv("GPUBRIDGE_SECRET", "open sesame", 1);
  must_open();
  must_gather();
  leave();
}

GB_TEST(control, wrong_secret_is_told, .ranks = 2) {
  setenv("GPUBRIDGE_SECRET", gb_rank() ? "wrong" : "right", 1);
  gb_status status = open_ms(6 * SECONDS);
  if (gb_rank() == 1) {
    GB_CHECK_INT(status, GB_ERR_AUTH);
    GB_CHECK_TEXT(error.text, "GPUBRIDGE_SECRET");
    return;
  }
  GB_CHECK_INT(gather_ms(NULL, 6 * SECONDS), GB_ERR_TIMEOUT);
  GB_CHECK_TEXT(error.text, "rank 1 never reported");
  gbi_control_close(control);
}

GB_TEST(control, unreadable_secret_file_is_named) {
  setenv("GPUBRIDGE_SECRET_FILE", "/nonexistent/secret", 1);
  GB_CHECK_INT(open_ms(1000), GB_ERR_SETTING);
  GB_CHECK_TEXT(error.text, "/nonexistent/secret");
}

/* ---- group set-up ---- */

GB_TEST(control, exchange_among_some_and_all, .ranks = 4) {
  static const int all[] = {0, 1, 2, 3}, some[] = {1, 3};
  must_open();
  must_gather();
  for (int round = 0; round < 3; round++) {
    gbi_blobs blobs;
    char mine[32];
    int n = snprintf(mine, sizeof mine, "r%d round %d", gb_rank(), round);
    GB_CHECK_OK(gbi_control_exchange(control, 0, all, 4, gb_rank(), NULL, mine,
                                     (size_t)n, gbi_deadline_after_ms(10000),
                                     &blobs, &error));
    for (int r = 0; r < 4; r++) {
      snprintf(mine, sizeof mine, "r%d round %d", r, round);
      GB_CHECK_INT(blobs.items[r].bytes, strlen(mine));
      GB_CHECK(!memcmp(blobs.items[r].data, mine, strlen(mine)));
    }
    gbi_blobs_free(&blobs);
    if (gb_rank() % 2 == 0) continue;
    GB_CHECK_OK(gbi_control_exchange(control, 5, some, 2, gb_rank() / 2, NULL,
                                     NULL, 0, gbi_deadline_after_ms(10000),
                                     &blobs, &error));
    GB_CHECK_INT(blobs.count, 2);
    GB_CHECK_INT(blobs.items[0].bytes, 0);
    gbi_blobs_free(&blobs);
  }
  __atomic_add_fetch(&b->step, 1, __ATOMIC_SEQ_CST);
  gb_test_await(&b->step, 4, 20 * SECONDS);
  leave();
}

GB_TEST(control, exchange_fails_together, .ranks = 4) {
  static const int all[] = {0, 1, 2, 3};
  gb_error problem;
  gbi_blobs blobs;
  must_open();
  must_gather();
  gbi_fail_rank(&problem, GB_ERR_CONNECT, 2, "rank 2 could not connect");
  GB_CHECK_INT(
      gbi_control_exchange(control, 0, all, 4, gb_rank(),
                           gb_rank() == 2 ? &problem : NULL, "x", 1,
                           gbi_deadline_after_ms(10000), &blobs, &error),
      GB_ERR_CONNECT);
  GB_CHECK_TEXT(error.text, "rank 2 could not connect");
  same_text(error.text, 4);
  /* The job goes on. */
  GB_CHECK_OK(gbi_control_exchange(control, 0, all, 4, gb_rank(), NULL, "x", 1,
                                   gbi_deadline_after_ms(10000), &blobs,
                                   &error));
  gbi_blobs_free(&blobs);
  leave();
}

/* The rank with the problem is gone before the last one comes to hear of it; so
 * is, in the second case, rank 0. */
static void problem_for_a_late_rank(int bad, int late) {
  static const int all[] = {0, 1, 2, 3};
  gb_error problem;
  gbi_blobs blobs;
  must_open();
  must_gather();
  gbi_fail_rank(&problem, GB_ERR_CONNECT, bad, "rank %d could not connect",
                bad);
  if (gb_rank() == late) {
    gb_test_await(&b->step, 1, 20 * SECONDS);
    struct timespec nap = {0, 300000000};
    nanosleep(&nap, NULL);
  }
  GB_CHECK_INT(
      gbi_control_exchange(control, 0, all, 4, gb_rank(),
                           gb_rank() == bad ? &problem : NULL, "x", 1,
                           gbi_deadline_after_ms(10000), &blobs, &error),
      GB_ERR_CONNECT);
  gbi_control_close(control);
  if (gb_rank() == bad) __atomic_store_n(&b->step, 1, __ATOMIC_SEQ_CST);
  same_text(error.text, 4);
}

GB_TEST(control, late_rank_hears_the_problem, .ranks = 4) {
  problem_for_a_late_rank(2, 3);
}

GB_TEST(control, late_rank_hears_rank_zeros_problem, .ranks = 4) {
  problem_for_a_late_rank(0, 3);
}

GB_TEST(control, exchange_names_who_did_not_come, .ranks = 3) {
  static const int all[] = {0, 1, 2};
  gbi_blobs blobs;
  must_open();
  must_gather();
  if (gb_rank() != 2) {
    GB_CHECK_INT(
        gbi_control_exchange(control, 0, all, 3, gb_rank(), NULL, "x", 1,
                             gbi_deadline_after_ms(700), &blobs, &error),
        GB_ERR_TIMEOUT);
    GB_CHECK_TEXT(error.text, "rank 2 did not come");
  }
  __atomic_add_fetch(&b->step, 1, __ATOMIC_SEQ_CST);
  gb_test_await(&b->step, 3, 20 * SECONDS);
  leave();
}

/* ---- death ---- */

static void die_and_tell(int victim, const char *text) {
  must_open();
  must_gather();
  if (gb_rank() == 0 && victim != 0) {
    gbi_call_state state = {.started = 4, .completed = 3};
    state.last = (gbi_call){.seq = 3,
                            .count = 5,
                            .root = -1,
                            .op = GBI_OP_ALL_REDUCE,
                            .dtype = GB_FLOAT32,
                            .redop = GB_SUM};
    COPY(state.phase, "bridge");
    set_state(&state);
  }
  __atomic_add_fetch(&b->step, 1, __ATOMIC_SEQ_CST);
  gb_test_await(&b->step, gb_world(), 20 * SECONDS);
  if (gb_rank() == victim) kill(getpid(), SIGKILL);
  uint64_t start = gbi_now_ns();
  await_failure(5000);
  GB_CHECK(gbi_now_ns() - start < 1 * GBI_NS_PER_S);
  GB_CHECK_INT(error.status, GB_ERR_PEER);
  GB_CHECK_INT(error.rank, victim);
  if (strcmp(error.text, text))
    gb_test_fail(__FILE__, __LINE__, "\"%s\" is not \"%s\"", error.text, text);
  gb_test_await(&b->failures[gb_rank()], 1, 5000);
  gbi_control_close(control);
  same_text(error.text, gb_world() - 1);
  GB_CHECK_INT(b->failures[gb_rank()], 1);
}

GB_TEST(control, death_of_a_rank_is_told, .ranks = 4, .expect = "00k0") {
  die_and_tell(2,
               "rank 2 (host \"h2\", nvidia) is gone: its connection closed "
               "without a goodbye; rank 0 was in all_reduce number 3 of 5 "
               "float32, sum, phase bridge");
}

GB_TEST(control, death_of_rank_zero_is_told, .ranks = 4, .expect = "k000") {
  die_and_tell(0,
               "rank 0 (host \"h0\", nvidia) is gone: its connection closed "
               "without a goodbye");
}

/* A rank that dies before it reported does not cost the whole deadline. */
GB_TEST(control, death_while_gathering, .ranks = 3, .expect = "00k") {
  gb_status status = open_ms(20 * SECONDS);
  if (gb_rank() == 2) kill(getpid(), SIGKILL);
  /* A rank that comes after the death is told when it joins. */
  if (status == GB_OK) status = gather_ms(NULL, 20 * SECONDS);
  GB_CHECK_INT(status, GB_ERR_PEER);
  GB_CHECK_TEXT(error.text, "rank 2");
  gbi_control_close(control);
  same_text(error.text, 2);
}

static void freeze_and_tell(int victim) {
  setenv("GPUBRIDGE_HEARTBEAT_TIMEOUT", "2", 1);
  must_open();
  must_gather();
  volatile int *pid = &b->port;
  if (gb_rank() == victim) {
    *pid = getpid();
    __atomic_store_n(&b->step, 1, __ATOMIC_SEQ_CST);
    kill(getpid(), SIGSTOP);
    /* Woken again: this rank learns it too. */
    await_failure(5000);
  } else {
    gb_test_await(&b->step, 1, 20 * SECONDS);
    uint64_t start = gbi_now_ns();
    await_failure(8000);
    uint64_t took = gbi_now_ns() - start;
    GB_CHECK(took > 1 * GBI_NS_PER_S && took < 5 * GBI_NS_PER_S);
    char text[64];
    snprintf(text, sizeof text, "rank %d (host \"h%d\"", victim, victim);
    GB_CHECK_TEXT(error.text, text);
    GB_CHECK_TEXT(error.text, "has not answered for 2 s");
    same_text(error.text, gb_world() - 1);
    kill(*pid, SIGCONT);
  }
  gbi_control_close(control);
}

GB_TEST(control, frozen_rank_is_found, .ranks = 3) {
  freeze_and_tell(1);
}

GB_TEST(control, frozen_rank_zero_is_found, .ranks = 3) {
  freeze_and_tell(0);
}

/* A process that was stopped shorter than the timeout takes nobody for dead. */
GB_TEST(control, short_stop_is_no_death, .ranks = 3) {
  setenv("GPUBRIDGE_HEARTBEAT_TIMEOUT", "4", 1);
  must_open();
  must_gather();
  if (gb_rank() == 0) {
    b->port = getpid();
    __atomic_store_n(&b->step, 1, __ATOMIC_SEQ_CST);
    kill(getpid(), SIGSTOP);
    __atomic_store_n(&b->step, 3, __ATOMIC_SEQ_CST);
  } else {
    gb_test_await(&b->step, 1, 20 * SECONDS);
    struct timespec nap = {2, 0};
    if (gb_rank() == 1) {
      nanosleep(&nap, NULL);
      kill(b->port, SIGCONT);
    }
    gb_test_await(&b->step, 3, 20 * SECONDS);
    nap.tv_sec = 1;
    nanosleep(&nap, NULL);
  }
  GB_CHECK(!gbi_control_failed(control, &error));
  leave();
}

/* ---- abort and settle ---- */

GB_TEST(control, first_abort_wins, .ranks = 4) {
  gb_error cause, shared;
  must_open();
  must_gather();
  gbi_fail_rank(&cause, GB_ERR_TIMEOUT, gb_rank(), "cause of rank %d",
                gb_rank());
  if (gb_rank() == 1) {
    gbi_control_abort(control, &cause);
    await_failure(5000);
    GB_CHECK_TEXT(error.text, "cause of rank 1");
    __atomic_store_n(&b->step, 1, __ATOMIC_SEQ_CST);
  }
  gb_test_await(&b->step, 1, 20 * SECONDS);
  GB_CHECK_INT(gbi_control_settle(control, &cause, &shared), GB_ERR_TIMEOUT);
  GB_CHECK_TEXT(shared.text, "cause of rank 1");
  gbi_control_close(control);
  same_text(shared.text, 4);
}

GB_TEST(control, all_settle_on_one_sentence, .ranks = 4) {
  gb_error cause, shared;
  must_open();
  must_gather();
  gbi_fail_rank(&cause, GB_ERR_TIMEOUT, gb_rank(), "cause of rank %d",
                gb_rank());
  GB_CHECK_INT(gbi_control_settle(control, &cause, &shared), GB_ERR_TIMEOUT);
  gbi_control_close(control);
  same_text(shared.text, 4);
}

/* A broken link is reported first, the mismatch behind it 100 ms later. */
GB_TEST(control, link_cause_yields_to_the_reason, .ranks = 3) {
  gb_error cause, shared;
  must_open();
  must_gather();
  if (gb_rank() == 1) {
    gbi_fail(&cause, GB_ERR_PEER, "a link broke");
    __atomic_store_n(&b->step, 1, __ATOMIC_SEQ_CST);
  } else {
    gb_test_await(&b->step, 1, 20 * SECONDS);
    struct timespec nap = {0, 100000000};
    nanosleep(&nap, NULL);
    gbi_fail(&cause, GB_ERR_MISMATCH, "ranks disagree");
  }
  GB_CHECK_INT(gbi_control_settle(control, &cause, &shared), GB_ERR_MISMATCH);
  gbi_control_close(control);
  same_text(shared.text, 3);
}

GB_TEST(control, link_cause_alone_counts_after_half_a_second, .ranks = 2) {
  gb_error cause, shared;
  must_open();
  must_gather();
  uint64_t start = gbi_now_ns();
  if (gb_rank() == 1) {
    gbi_fail(&cause, GB_ERR_PEER, "a link broke");
    GB_CHECK_INT(gbi_control_settle(control, &cause, &shared), GB_ERR_PEER);
    GB_CHECK(gbi_now_ns() - start < 2 * GBI_NS_PER_S);
  } else {
    await_failure(5000);
    shared = error;
  }
  GB_CHECK_TEXT(shared.text, "a link broke");
  gbi_control_close(control);
  same_text(shared.text, 2);
}

/* A rank whose link broke goes while the others set up a group: they hear of
 * the link, not that it left. */
GB_TEST(control, who_leaves_for_a_reason_leaves_the_reason, .ranks = 4) {
  static const int all[] = {0, 1, 2, 3};
  gb_error cause;
  gbi_blobs blobs;
  must_open();
  must_gather();
  if (gb_rank() == 2) {
    gbi_fail_rank(&cause, GB_ERR_PEER, 3, "the link to rank 3 broke");
    gb_test_await(&b->step, 3, 20 * SECONDS);
    gbi_control_abort(control, &cause);
    gbi_control_goodbye(control, gbi_deadline_after_ms(10 * SECONDS));
    gbi_control_close(control);
    return;
  }
  __atomic_add_fetch(&b->step, 1, __ATOMIC_SEQ_CST);
  GB_CHECK_INT(
      gbi_control_exchange(control, 0, all, 4, gb_rank(), NULL, "x", 1,
                           gbi_deadline_after_ms(10000), &blobs, &error),
      GB_ERR_PEER);
  GB_CHECK_TEXT(error.text, "the link to rank 3 broke");
  GB_CHECK_INT(error.rank, 3);
  same_text(error.text, 3);
  gbi_control_close(control);
}

/* ---- leaving ---- */

/* S018: rank 0 goes first; the others notice nothing until they need it. */
GB_TEST(control, rank_zero_leaves_first, .ranks = 4) {
  static const int all[] = {0, 1, 2, 3};
  gbi_blobs blobs;
  must_open();
  must_gather();
  gbi_call_state state = {.started = 7, .completed = 7};
  if (gb_rank() == 0) {
    set_state(&state);
    leave();
    __atomic_store_n(&b->step, 1, __ATOMIC_SEQ_CST);
    return;
  }
  gb_test_await(&b->step, 1, 20 * SECONDS);
  struct timespec nap = {0, 300000000};
  nanosleep(&nap, NULL);
  GB_CHECK(!gbi_control_failed(control, NULL));
  if (gb_rank() == 1) {
    GB_CHECK_INT(
        gbi_control_exchange(control, 1, all, 4, 1, NULL, "x", 1,
                             gbi_deadline_after_ms(5000), &blobs, &error),
        GB_ERR_PEER);
    GB_CHECK_TEXT(error.text,
                  "rank 0 (host \"h0\", nvidia) left the job after 7 calls");
  }
  if (gb_rank() == 2) {
    gbi_call call = {
        .seq = 7, .root = -1, .op = GBI_OP_BARRIER, .dtype = 255, .redop = 255};
    gbi_control_stalled(control, 0, all, 4, &call);
    await_failure(1000);
    GB_CHECK_TEXT(error.text,
                  "left the job after 7 calls; rank 2 waits in "
                  "barrier number 7");
    gbi_control_close(control);
    return;
  }
  leave();
}

/* Rank 0 goes first, but others who had a group without it open another one;
 * one that needs rank 0 they do not get. */
GB_TEST(control, rank_zero_stays_for_groups_of_others, .ranks = 4) {
  static const int pair[] = {1, 2}, with_0[] = {0, 1, 2};
  int me = gb_rank() - 1;
  gbi_blobs blobs = {0};
  must_open();
  must_gather();
  if (me == 0 || me == 1) {
    uint64_t deadline = gbi_deadline_after_ms(10 * SECONDS);
    GB_CHECK_OK(gbi_control_exchange(control, 5, pair, 2, me, NULL, "x", 1,
                                     deadline, &blobs, &error));
    gbi_blobs_free(&blobs);
    __atomic_add_fetch(&b->step, 1, __ATOMIC_SEQ_CST);
    gb_test_await(&b->step, 3, 20 * SECONDS);
    struct timespec nap = {0, 300000000};
    nanosleep(&nap, NULL);
    GB_CHECK_OK(gbi_control_exchange(control, 6, pair, 2, me, NULL, "x", 1,
                                     deadline, &blobs, &error));
    gbi_blobs_free(&blobs);
    GB_CHECK_INT(gbi_control_exchange(control, 7, with_0, 3, me + 1, NULL, "x",
                                      1, deadline, &blobs, &error),
                 GB_ERR_PEER);
    GB_CHECK_TEXT(error.text, "rank 0 (host \"h0\", nvidia) left the job");
  } else if (gb_rank() == 0) {
    gb_test_await(&b->step, 2, 20 * SECONDS);
    __atomic_add_fetch(&b->step, 1, __ATOMIC_SEQ_CST);
  }
  leave();
}

GB_TEST(control, goodbye_in_any_order, .ranks = 4) {
  static const int order[] = {2, 3, 1, 0};
  must_open();
  must_gather();
  gb_test_await(&b->step, order[gb_rank()], 20 * SECONDS);
  leave();
  __atomic_add_fetch(&b->step, 1, __ATOMIC_SEQ_CST);
}

/* ---- offers ---- */

static void offer(int to, size_t bytes) {
  char blob[GBI_OFFER_MAX + 1] = "";
  int n = snprintf(blob, sizeof blob, "%d to %d", gb_rank(), to);
  gbi_control_offer(control, to, blob, bytes ? bytes : (size_t)n);
}

static void await_bits(_Atomic int *bits, int want) {
  uint64_t deadline = gbi_deadline_after_ms(10 * SECONDS);
  while (*bits != want) {
    GB_CHECK(!gbi_deadline_passed(deadline));
    struct timespec nap = {0, 1000000};
    nanosleep(&nap, NULL);
  }
}

/* Everybody offers to everybody; the sender's number is rank 0's word. */
GB_TEST(control, offers_arrive, .ranks = 4) {
  must_open();
  must_gather();
  for (int r = 0; r < 4; r++)
    if (r != gb_rank()) offer(r, gb_rank() == 2 ? GBI_OFFER_MAX : 0);
  await_bits(&offers_got, 15 & ~(1 << gb_rank()));
  same_text("got all", 4);
  leave();
}

/* Who offered to a rank hears that it leaves, and who offers to one that left;
 * the others do not. */
GB_TEST(control, offers_to_those_who_leave, .ranks = 4) {
  must_open();
  must_gather();
  if (gb_rank() == 1) offer(2, 0);
  if (gb_rank() == 2) {
    await_bits(&offers_got, 1 << 1);
    leave();
    __atomic_store_n(&b->step, 1, __ATOMIC_SEQ_CST);
    return;
  }
  gb_test_await(&b->step, 1, 20 * SECONDS);
  if (gb_rank() == 0) offer(2, 0);
  if (gb_rank() != 3) await_bits(&ranks_left, 1 << 2);
  __atomic_add_fetch(&b->step, 1, __ATOMIC_SEQ_CST);
  gb_test_await(&b->step, 4, 20 * SECONDS);
  if (gb_rank() == 3) GB_CHECK_INT(ranks_left & 1 << 2, 0);
  GB_CHECK(!gbi_control_failed(control, NULL));
  if (gb_rank() != 0) await_bits(&ranks_left, ranks_left | 1);
  leave();
}

/* Rank 0 goes while two others are half way: they still meet. */
GB_TEST(control, rank_zero_leaves_amid_offers, .ranks = 3) {
  must_open();
  must_gather();
  if (gb_rank() == 0) {
    gb_test_await(&b->step, 1, 20 * SECONDS);
    leave();
    return;
  }
  if (gb_rank() == 1) {
    offer(2, 0);
    await_bits(&offers_got, 1 << 2);
  } else {
    await_bits(&offers_got, 1 << 1);
    __atomic_store_n(&b->step, 1, __ATOMIC_SEQ_CST);
    struct timespec nap = {0, 300000000};
    nanosleep(&nap, NULL);
    GB_CHECK_INT(ranks_left, 0);
    offer(1, 0);
  }
  await_bits(&ranks_left, 1);
  leave();
}

static void bad_offer(int to, size_t bytes, int times) {
  must_open();
  must_gather();
  if (gb_rank() == 1)
    for (int i = 0; i < times; i++) offer(to, bytes);
  await_failure(5000);
  GB_CHECK_TEXT(error.text,
                "rank 1 (host \"h1\", amd) broke the control "
                "protocol: a message is malformed");
  gbi_control_close(control);
}

GB_TEST(control, offer_to_itself, .ranks = 3) {
  bad_offer(1, 0, 1);
}
GB_TEST(control, offer_to_nobody, .ranks = 3) {
  bad_offer(3, 0, 1);
}
GB_TEST(control, offer_to_a_negative_rank, .ranks = 3) {
  bad_offer(-1, 0, 1);
}
GB_TEST(control, offer_twice, .ranks = 3) {
  bad_offer(2, 0, 2);
}
GB_TEST(control, offer_too_long, .ranks = 3) {
  bad_offer(2, GBI_OFFER_MAX + 1, 1);
}

/* ---- who is late ---- */

static gbi_call all_reduce(uint64_t seq, uint64_t count) {
  return (gbi_call){.seq = seq,
                    .count = count,
                    .root = -1,
                    .op = GBI_OP_ALL_REDUCE,
                    .dtype = GB_FLOAT32,
                    .redop = GB_SUM};
}

static void start_calls(uint64_t started, uint64_t count) {
  gbi_call_state state = {.started = started, .completed = started};
  if (started) state.last = all_reduce(started - 1, count);
  if (started) state.completed = started - 1;
  set_state(&state);
}

static void all_ready(void) {
  __atomic_add_fetch(&b->step, 1, __ATOMIC_SEQ_CST);
  gb_test_await(&b->step, gb_world(), 20 * SECONDS);
}

GB_TEST(control, late_ranks_are_listed, .ranks = 5) {
  static const int all[] = {0, 1, 2, 3, 4};
  /* 3 and 4 have not started number 5; 0 is ahead; 1 and 2 are there. */
  static const uint64_t started[] = {9, 6, 6, 5, 0};
  must_open();
  must_gather();
  start_calls(started[gb_rank()], 10);
  all_ready();
  if (gb_rank() == 2) {
    gbi_call call = all_reduce(5, 10);
    int ranks[8], count;
    GB_CHECK_INT(gbi_control_late(control, 0, 5, ranks, 8), -1);
    gbi_control_stalled(control, 0, all, 5, &call);
    uint64_t deadline = gbi_deadline_after_ms(5000);
    while ((count = gbi_control_late(control, 0, 5, ranks, 8)) < 0)
      GB_CHECK(!gbi_deadline_passed(deadline));
    GB_CHECK_INT(count, 2);
    GB_CHECK_INT(ranks[0], 3);
    GB_CHECK_INT(ranks[1], 4);
    GB_CHECK_INT(gbi_control_late(control, 0, 6, ranks, 8), -1);
    __atomic_store_n(&b->port, 1, __ATOMIC_SEQ_CST);
  }
  gb_test_await(&b->port, 1, 20 * SECONDS);
  leave();
}

/* S113's cousin: who does not answer at all is late, too. */
GB_TEST(control, frozen_rank_counts_as_late, .ranks = 3) {
  static const int all[] = {0, 1, 2};
  must_open();
  must_gather();
  start_calls(6, 10);
  if (gb_rank() == 1) b->port = getpid();
  all_ready();
  if (gb_rank() == 1) kill(getpid(), SIGSTOP);
  if (gb_rank() == 2) {
    gbi_call call = all_reduce(5, 10);
    int ranks[8], count;
    struct timespec nap = {0, 200000000};
    nanosleep(&nap, NULL);
    gbi_control_stalled(control, 0, all, 3, &call);
    uint64_t deadline = gbi_deadline_after_ms(5000);
    while ((count = gbi_control_late(control, 0, 5, ranks, 8)) < 0)
      GB_CHECK(!gbi_deadline_passed(deadline));
    kill(b->port, SIGCONT);
    GB_CHECK_INT(count, 1);
    GB_CHECK_INT(ranks[0], 1);
    __atomic_store_n(&b->step, 9, __ATOMIC_SEQ_CST);
  }
  gb_test_await(&b->step, 9, 20 * SECONDS);
  leave();
}

/* S027 where no data flows between the two that disagree. */
GB_TEST(control, stalled_finds_a_mismatch, .ranks = 4) {
  static const int all[] = {0, 1, 2, 3};
  must_open();
  must_gather();
  start_calls(6, gb_rank() == 3 ? 5 : 4);
  all_ready();
  if (gb_rank() == 1) {
    gbi_call call = all_reduce(5, 4);
    gbi_control_stalled(control, 0, all, 4, &call);
  }
  await_failure(5000);
  GB_CHECK_INT(error.status, GB_ERR_MISMATCH);
  GB_CHECK_TEXT(error.text, "rank 1 called all_reduce number 5 of 4 float32");
  GB_CHECK_TEXT(error.text, "rank 3 called all_reduce number 5 of 5 float32");
  gbi_control_close(control);
  same_text(error.text, 4);
}

GB_TEST(control, stalled_finds_who_left_early, .ranks = 4) {
  static const int all[] = {0, 1, 2, 3};
  must_open();
  must_gather();
  gbi_call_state state = {.started = 5, .completed = 5};
  set_state(&state);
  if (gb_rank() == 3) leave();
  all_ready();
  if (gb_rank() == 3) return;
  start_calls(6, 4);
  if (gb_rank() == 0) {
    gbi_call call = all_reduce(5, 4);
    gbi_control_stalled(control, 0, all, 4, &call);
  }
  await_failure(5000);
  GB_CHECK_INT(error.status, GB_ERR_PEER);
  if (strcmp(error.text,
             "rank 3 (host \"h3\", amd) left the job after 5 calls; rank 0 "
             "waits for it in all_reduce number 5 of 4 float32, sum"))
    gb_test_fail(__FILE__, __LINE__, "%s", error.text);
  gbi_control_close(control);
}

/* ---- strangers ---- */

/* Ports this process listens on, from /proc. */
static int my_listeners(gbi_address *list, int max) {
  int count = 0;
  DIR *dir = opendir("/proc/self/fd");
  for (struct dirent *at; (at = readdir(dir)) && count < max;) {
    int fd = (int)strtol(at->d_name, NULL, 10), on = 0;
    socklen_t bytes = sizeof on;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &bytes) || !on) continue;
    list[count].bytes = sizeof list[count].sa;
    getsockname(fd, (void *)&list[count].sa, &list[count].bytes);
    count++;
  }
  closedir(dir);
  return count;
}

static void disturb(const gbi_address *address, int *open_fds, int round) {
  static const char half[] = "GPUBRIDG\002";
  uint8_t junk[64];
  int fd;
  GB_CHECK_OK(gbi_connect(address, gbi_deadline_after_ms(5000), &fd, NULL));
  switch (round % 5) {
    case 0:
      close(fd);
      fd = -1;
      break;
    case 1:
      (void)gbi_random(junk, sizeof junk, NULL);
      (void)!send(fd, junk, sizeof junk, MSG_NOSIGNAL);
      break;
    case 2: (void)!send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL); break;
    case 3: (void)!send(fd, half, sizeof half - 1, MSG_NOSIGNAL); break;
    default: break; /* silence */
  }
  open_fds[round] = fd;
}

/* S119, S120, S122: scanners, silent connections, half greetings, before and
 * after the others join; and nobody listens on a wildcard. */
GB_TEST(control, strangers_change_nothing, .ranks = 3, .timeout_ms = 60000) {
  static int fds[200];
  b = gb_test_shared();
  if (gb_rank() == 0) {
    must_open();
    gbi_address list[8];
    int count = my_listeners(list, 8);
    GB_CHECK_INT(count, 2); /* the store's and ours */
    for (int i = 0; i < count; i++) GB_CHECK(gbi_address_is_loopback(&list[i]));
    for (int i = 0; i < 200; i++) disturb(&list[i % count], fds, i);
    __atomic_store_n(&b->step, 1, __ATOMIC_SEQ_CST);
  } else {
    gb_test_await(&b->step, 1, 30 * SECONDS);
    must_open();
  }
  uint64_t start = gbi_now_ns();
  must_gather();
  GB_CHECK(gbi_now_ns() - start < 15 * GBI_NS_PER_S);
  for (int i = 0; i < 200; i++)
    if (gb_rank() == 0 && fds[i] >= 0) close(fds[i]);
  leave();
}

/* S121: somebody proves the key, then sends an absurd length. The job ends with
 * a name, and no memory is taken for what was only announced. */
GB_TEST(control, absurd_length_of_a_proven_peer, .ranks = 2) {
  static const uint8_t huge[] = {0xff, 0xff, 0xff, 0x7f, 2};
  must_open();
  must_gather();
  if (gb_rank() == 1) {
    /* The only socket of this process is the one to rank 0. */
    gbi_address peer;
    for (int fd = 3; fd < 64; fd++) {
      peer.bytes = sizeof peer.sa;
      if (getpeername(fd, (void *)&peer.sa, &peer.bytes)) continue;
      if (peer.sa.ss_family != AF_INET) continue;
      GB_CHECK(send(fd, huge, sizeof huge, MSG_NOSIGNAL) == sizeof huge);
    }
  }
  await_failure(5000);
  GB_CHECK_TEXT(error.text,
                "rank 1 (host \"h1\", amd) broke the control "
                "protocol");
  gbi_control_close(control);
}

static int stop_after_five(void *arg) {
  int *calls = arg; /* negative: not yet */
  return *calls >= 0 && ++*calls >= 5;
}

/* Ctrl-C in one rank: all raise that it was interrupted. */
GB_TEST(control, hook_interrupts_for_all, .ranks = 3) {
  int calls = -1;
  gbi_control_params params = params_ms(20 * SECONDS);
  b = gb_test_shared();
  if (gb_rank() == 1) {
    params.store.wait_hook = stop_after_five;
    params.store.wait_hook_arg = &calls;
  }
  GB_CHECK_OK(gbi_control_open(&params, &control, &error));
  calls = 0;
  if (gb_rank() == 2) { /* never gathers, so that the others wait */
    await_failure(10000);
  } else {
    GB_CHECK_INT(gather_ms(NULL, 20 * SECONDS), GB_ERR_INTERRUPTED);
  }
  GB_CHECK_TEXT(error.text, "rank 1 (host \"h1\", amd) was interrupted");
  gbi_control_close(control);
}
