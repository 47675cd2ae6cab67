/* Messages between two ranks of a job, over shared memory and over TCP between
 * simulated hosts: right values in the right order whatever the order of calls
 * (S093, S094), sizes that differ end both sides with both sizes (S094), a peer
 * that dies, leaves or never comes is named with the tag, nothing that was sent
 * is lost by closing, and collectives run beside it. */
#include <pthread.h>

#include "job/job.h"

enum { SECONDS = 1000 };

static gb_error err;

#define BOTH(name, n, letters, ...)                                            \
  static void name##_body(void);                                               \
  GB_TEST(p2p, name##_shm, .ranks = n, .vendors = letters, ##__VA_ARGS__) {    \
    name##_body();                                                             \
  }                                                                            \
  GB_TEST(p2p, name##_tcp, .ranks = n, .vendors = letters, ##__VA_ARGS__) {    \
    own_host();                                                                \
    name##_body();                                                             \
  }                                                                            \
  static void name##_body(void)

/* Every rank on a simulated host of its own. */
static void own_host(void) {
  char name[16];
  snprintf(name, sizeof name, "host%d", gb_rank());
  setenv("GPUBRIDGE_SIM_HOSTNAME", name, 1);
}

static gb_group *world_of(gb_job *job) { return gb_job_world(job); }

static gb_buffer floats(float *data, size_t count) {
  return (gb_buffer){data, count, GB_FLOAT32};
}

static void send_one(gb_job *job, float value, int peer, uint64_t tag) {
  gb_buffer b = floats(&value, 1);
  MUST(gb_send(world_of(job), &b, peer, tag, NULL, error));
}

static float recv_one(gb_job *job, int peer, uint64_t tag) {
  float value = -1;
  gb_buffer b = floats(&value, 1);
  MUST(gb_recv(world_of(job), &b, peer, tag, NULL, NULL, error));
  return value;
}

static void meet_all(gb_job *job) {
  MUST(gb_barrier(world_of(job), NULL, error));
}

static void must_wait(gb_work *work) {
  MUST(gb_work_wait(work, 0, error));
  gb_work_release(work);
}

/* A pattern that tells sender, round and place. */
static void fill(float *data, size_t count, int seed) {
  for (size_t i = 0; i < count; i++)
    data[i] = (float)((i * 7 + (size_t)seed * 13) % 8191);
}

static void must_be(const float *data, size_t count, int seed) {
  for (size_t i = 0; i < count; i++)
    if (data[i] != (float)((i * 7 + (size_t)seed * 13) % 8191))
      gb_test_fail(__FILE__, __LINE__, "wrong at %zu of %zu, seed %d", i,
                   count, seed);
}

/* ---- order ---- */

/* S094. */
BOTH(tags_in_the_other_order, 2, "na") {
  gb_job *job = must_open(10 * SECONDS, NULL);
  if (gb_rank() == 0) {
    send_one(job, 1, 1, 1);
    send_one(job, 2, 1, 2);
  } else {
    GB_CHECK(recv_one(job, 0, 2) == 2);
    GB_CHECK(recv_one(job, 0, 1) == 1);
  }
  must_close(job);
}

/* Sizes around every limit of the protocol, in order under one tag. */
BOTH(sizes_around_the_limits, 2, "na") {
  static const size_t counts[] = {0,    1,    15,    16,    17,     100,
                                  4095, 4096, 4097,  16384, 100000, 0,
                                  1,    70000, 4096, 3};
  static float data[100000];
  gb_job *job = must_open(20 * SECONDS, NULL);
  for (int way = 0; way < 2; way++) {
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
      gb_buffer b = floats(counts[i] ? data : NULL, counts[i]);
      if (gb_rank() == way) {
        fill(data, counts[i], (int)i);
        MUST(gb_send(world_of(job), &b, !way, 9, NULL, error));
      } else {
        memset(data, 0, sizeof data);
        MUST(gb_recv(world_of(job), &b, way, 9, NULL, NULL, error));
        must_be(data, counts[i], (int)i);
      }
    }
  }
  must_close(job);
}

BOTH(ten_thousand_small, 2, "na", .timeout_ms = 60000) {
  gb_job *job = must_open(30 * SECONDS, NULL);
  for (int i = 0; i < 10000; i++) {
    if (gb_rank() == 0)
      send_one(job, (float)i, 1, 5);
    else if (recv_one(job, 0, 5) != (float)i)
      gb_test_fail(__FILE__, __LINE__, "message %d is another one", i);
  }
  must_close(job);
}

/* 3000 tags, received from the last to the first. */
BOTH(many_tags, 2, "na", .timeout_ms = 60000) {
  enum { TAGS = 3000 };
  gb_job *job = must_open(30 * SECONDS, NULL);
  static gb_work *works[TAGS];
  static float values[TAGS];
  for (int i = 0; i < TAGS; i++) {
    int tag = gb_rank() ? TAGS - 1 - i : i;
    gb_buffer b = floats(&values[tag], 1);
    if (gb_rank() == 0) values[tag] = (float)tag;
    if (gb_rank() == 0)
      MUST(gb_send(world_of(job), &b, 1, (uint64_t)tag, &works[tag], error));
    else
      MUST(gb_recv(world_of(job), &b, 0, (uint64_t)tag, NULL, &works[tag],
                   error));
  }
  for (int i = 0; i < TAGS; i++) {
    must_wait(works[i]);
    GB_CHECK(values[i] == (float)i);
  }
  must_close(job);
}

/* The sender is 50 MB ahead in one tag; a message with another one passes, and
 * so do large ones both ways. */
BOTH(sender_far_ahead, 2, "na", .timeout_ms = 60000) {
  enum { AHEAD = 3000, COUNT = 4096, LARGE = 50000 };
  gb_job *job = must_open(40 * SECONDS, NULL);
  static float data[COUNT], large[LARGE], other[LARGE];
  static gb_work *works[AHEAD];
  gb_buffer b = floats(data, COUNT), big = floats(large, LARGE);
  gb_buffer back = floats(other, LARGE);
  fill(data, COUNT, 1);
  if (gb_rank() == 0) {
    for (int i = 0; i < AHEAD; i++)
      MUST(gb_send(world_of(job), &b, 1, 1, &works[i], error));
    send_one(job, 77, 1, 2);
    fill(large, LARGE, 2);
    MUST(gb_send(world_of(job), &big, 1, 3, NULL, error));
    MUST(gb_recv(world_of(job), &back, 1, 3, NULL, NULL, error));
    must_be(other, LARGE, 3);
    for (int i = 0; i < AHEAD; i++) must_wait(works[i]);
  } else {
    GB_CHECK(recv_one(job, 0, 2) == 77);
    MUST(gb_recv(world_of(job), &back, 0, 3, NULL, NULL, error));
    must_be(other, LARGE, 2);
    fill(large, LARGE, 3);
    MUST(gb_send(world_of(job), &big, 0, 3, NULL, error));
    for (int i = 0; i < AHEAD; i++) {
      memset(data, 0, sizeof data);
      MUST(gb_recv(world_of(job), &b, 0, 1, NULL, NULL, error));
      must_be(data, COUNT, 1);
    }
  }
  must_close(job);
}

/* ---- both ways at once (S093) ---- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { EXCHANGE = 2 << 20, ROUNDS = 3 }; /* sanitizers are slow */
#else
enum { EXCHANGE = 16 << 20, ROUNDS = 10 };
#endif

BOTH(exchange, 2, "na", .timeout_ms = 120000) {
  gb_job *job = must_open(20 * SECONDS, NULL);
  float *out = malloc(EXCHANGE * sizeof *out);
  float *in = malloc(EXCHANGE * sizeof *in);
  int peer = !gb_rank();
  meet_all(job);
  for (int i = 0; i < ROUNDS; i++) {
    fill(out, EXCHANGE, 2 * i + gb_rank());
    memset(in, 0, EXCHANGE * sizeof *in);
    gb_p2p_op ops[2] = {{1, floats(out, EXCHANGE), peer, 1},
                        {0, floats(in, EXCHANGE), peer, 1}};
    MUST(gb_batch(world_of(job), ops, 2, NULL, error));
    must_be(in, EXCHANGE, 2 * i + peer);
  }
  for (int i = 0; i < ROUNDS; i++) {
    gb_work *sends, *receives;
    fill(out, EXCHANGE, 100 + 2 * i + gb_rank());
    gb_buffer o = floats(out, EXCHANGE), n = floats(in, EXCHANGE);
    MUST(gb_send(world_of(job), &o, peer, 2, &sends, error));
    MUST(gb_recv(world_of(job), &n, peer, 2, NULL, &receives, error));
    MUST(gb_work_wait(sends, 0, error));
    GB_CHECK_INT(gb_work_source(sends), -1);
    gb_work_release(sends);
    MUST(gb_work_wait(receives, 0, error));
    GB_CHECK_INT(gb_work_source(receives), peer);
    gb_work_release(receives);
    must_be(in, EXCHANGE, 100 + 2 * i + peer);
  }
  free(out);
  free(in);
  must_close(job);
}

/* Small ones are buffered, large ones would wait for each other for ever. */
BOTH(blocking_sends_on_both, 2, "na", .timeout_ms = 60000) {
  static float large[100000];
  gb_job *job = must_open(2 * SECONDS, NULL);
  int peer = !gb_rank();
  for (int i = 0; i < 40; i++) send_one(job, (float)i, peer, 4);
  for (int i = 0; i < 40; i++) GB_CHECK(recv_one(job, peer, 4) == (float)i);
  meet_all(job);
  double start = test_now();
  gb_buffer b = floats(large, 100000);
  GB_CHECK_INT(gb_send(world_of(job), &b, peer, 31, NULL, &err),
               GB_ERR_TIMEOUT);
  GB_CHECK(test_now() - start < 5);
  GB_CHECK_TEXT(err.text, "send of 100000 float32 to rank ");
  GB_CHECK_TEXT(err.text, "with tag 31 in group 0 did not end within 2 s");
  must_close(job);
}

/* ---- who ---- */

BOTH(any_source, 4, "nnaa", .timeout_ms = 60000) {
  enum { EACH = 50 };
  gb_job *job = must_open(20 * SECONDS, NULL);
  if (gb_rank() == 2) {
    int got[4] = {0};
    for (int i = 0; i < 3 * EACH; i++) {
      float pair[2];
      int source = -1;
      gb_buffer b = floats(pair, 2);
      if (i % 3) {
        MUST(gb_recv(world_of(job), &b, GB_ANY_SOURCE, 8, &source, NULL,
                     error));
      } else {
        gb_work *work;
        MUST(gb_recv(world_of(job), &b, GB_ANY_SOURCE, 8, NULL, &work, error));
        MUST(gb_work_wait(work, 0, error));
        source = gb_work_source(work);
        gb_work_release(work);
      }
      GB_CHECK(pair[0] == (float)source);
      GB_CHECK(pair[1] == (float)got[source]++);
    }
    for (int r = 0; r < 4; r++) GB_CHECK_INT(got[r], r == 2 ? 0 : EACH);
  } else {
    for (int i = 0; i < EACH; i++) {
      float pair[2] = {(float)gb_rank(), (float)i};
      gb_buffer b = floats(pair, 2);
      MUST(gb_send(world_of(job), &b, 2, 8, NULL, error));
    }
  }
  meet_all(job); /* without rank 0 there are no new links */
  must_close(job);
}

/* A pipeline whose first stage, rank 0, is done long before the last two have
 * met: links are made through it, so it stays for them. */
BOTH(chain_whose_first_rank_leaves, 4, "nnaa") {
  gb_job *job = must_open(20 * SECONDS, NULL);
  float value = 1;
  gb_buffer b = floats(&value, 1);
  int me = gb_rank();
  if (me > 0)
    MUST(gb_recv(world_of(job), &b, me - 1, 3, NULL, NULL, error));
  GB_CHECK(value == (float)(me + 1) || me == 0);
  if (me > 0) nap_ms(300);
  value = (float)(me + 2);
  if (me < 3) MUST(gb_send(world_of(job), &b, me + 1, 3, NULL, error));
  must_close(job);
}

BOTH(ring_of_three, 3, "nan", .timeout_ms = 60000) {
  enum { COUNT = 30000 };
  static float out[COUNT], in[COUNT];
  gb_job *job = must_open(20 * SECONDS, NULL);
  int next = (gb_rank() + 1) % 3, before = (gb_rank() + 2) % 3;
  for (int i = 0; i < 20; i++) {
    size_t count = i % 2 ? COUNT : 10;
    fill(out, count, gb_rank() + i);
    gb_p2p_op ops[2] = {{0, floats(in, count), before, 6},
                        {1, floats(out, count), next, 6}};
    MUST(gb_batch(world_of(job), ops, 2, NULL, error));
    must_be(in, count, before + i);
  }
  must_close(job);
}

GB_TEST(p2p, arguments_are_refused, .ranks = 2, .vendors = "na") {
  gb_job *job = must_open(10 * SECONDS, NULL);
  gb_group *g = world_of(job);
  float value = 0;
  gb_buffer b = floats(&value, 1), bad = {&value, 1, (gb_dtype)99};
  gb_buffer null = {NULL, 3, GB_FLOAT32};
  gb_work *work;
  int me = gb_rank();
  GB_CHECK_INT(gb_send(g, &b, me, 1, NULL, &err), GB_ERR_ARGUMENT);
  GB_CHECK_TEXT(err.text, "this rank itself");
  GB_CHECK_INT(gb_recv(g, &b, me, 1, NULL, NULL, &err), GB_ERR_ARGUMENT);
  GB_CHECK_INT(gb_send(g, &b, 2, 1, NULL, &err), GB_ERR_ARGUMENT);
  GB_CHECK_TEXT(err.text, "the peer is 2, but must be from 0 to 1");
  GB_CHECK_INT(gb_recv(g, &b, -2, 1, NULL, NULL, &err), GB_ERR_ARGUMENT);
  GB_CHECK_INT(gb_send(g, &b, GB_ANY_SOURCE, 1, NULL, &err), GB_ERR_ARGUMENT);
  GB_CHECK_INT(gb_send(g, &bad, !me, 1, NULL, &err), GB_ERR_TYPE);
  GB_CHECK_INT(gb_send(g, &null, !me, 1, NULL, &err), GB_ERR_ARGUMENT);
  GB_CHECK_INT(gb_send(g, NULL, !me, 1, NULL, &err), GB_ERR_ARGUMENT);
  GB_CHECK_INT(gb_send(NULL, &b, !me, 1, NULL, &err), GB_ERR_ARGUMENT);
  GB_CHECK_INT(gb_batch(g, NULL, 2, NULL, &err), GB_ERR_ARGUMENT);
  GB_CHECK_INT(gb_batch(g, NULL, -1, NULL, &err), GB_ERR_ARGUMENT);
  GB_CHECK_OK(gb_batch(g, NULL, 0, NULL, &err));
  GB_CHECK_OK(gb_batch(g, NULL, 0, &work, &err));
  must_wait(work);
  GB_CHECK_INT(gb_work_source(NULL), -1);
  must_close(job);
}

/* ---- sizes and types that differ (S094) ---- */

static void differ(size_t sent, size_t wanted, gb_dtype type, bool first,
                   const char *text) {
  static float data[100000];
  gb_job *job = must_open(10 * SECONDS, NULL);
  gb_buffer out = floats(data, sent), in = {data, wanted, type};
  gb_work *work = NULL;
  gb_status status;
  double start = test_now();
  if (gb_rank() == 1) {
    if (!first) { /* the receive is posted by then, most likely */
      GB_CHECK(recv_one(job, 0, 1) == 5);
      nap_ms(50);
    }
    status = gb_send(world_of(job), &out, 0, 7, NULL, &err);
    /* A small one has left; the next call tells. */
    if (status == GB_OK)
      status = gb_recv(world_of(job), &out, 0, 8, NULL, NULL, &err);
  } else {
    if (!first) {
      MUST(gb_recv(world_of(job), &in, 1, 7, NULL, &work, error));
      send_one(job, 5, 1, 1);
      status = gb_work_wait(work, 0, &err);
      gb_work_release(work);
    } else {
      nap_ms(50);
      status = gb_recv(world_of(job), &in, 1, 7, NULL, NULL, &err);
    }
  }
  if (status != GB_ERR_MISMATCH && status != GB_ERR_ABORTED)
    gb_test_fail(__FILE__, __LINE__, "status %d: %s", status, err.text);
  if (gb_rank() == 0) GB_CHECK_INT(status, GB_ERR_MISMATCH);
  GB_CHECK_TEXT(err.text, text);
  GB_CHECK(test_now() - start < 5);
  must_close(job);
}

BOTH(small_sizes_differ, 2, "na") {
  differ(5, 4, GB_FLOAT32, true,
         "rank 1 sent 5 float32 with tag 7 to rank 0, which receives 4 "
         "float32");
}
BOTH(small_sizes_differ_receive_first, 2, "na") {
  differ(500, 4, GB_FLOAT32, false,
         "rank 1 sent 500 float32 with tag 7 to rank 0, which receives 4 "
         "float32");
}
BOTH(large_sizes_differ, 2, "na") {
  differ(90000, 80000, GB_FLOAT32, true,
         "rank 1 sent 90000 float32 with tag 7 to rank 0, which receives 80000 "
         "float32");
}
BOTH(types_differ, 2, "na") {
  differ(90000, 90000, GB_INT32, false,
         "rank 1 sent 90000 float32 with tag 7 to rank 0, which receives 90000 "
         "int32");
}

/* ---- peers that die, leave or do not come ---- */

/* All survivors end within two seconds with the name of the dead one, whatever
 * they wait for. */
static void killed(int victim) {
  struct {
    volatile int ready;
    volatile double died;
  } *board = gb_test_shared();
  static float data[100000];
  gb_job *job = must_open(600 * SECONDS, NULL);
  int peer = victim;
  meet_all(job);
  if (gb_rank() != victim) {
    send_one(job, 1, victim, 1); /* there is a link */
    (void)recv_one(job, victim, 1);
  } else {
    for (int r = 0; r < 4; r++)
      if (r != victim) send_one(job, recv_one(job, r, 1), r, 1);
    gb_test_await(&board->ready, 3, 20000);
    nap_ms(50);
    board->died = test_now();
    kill(getpid(), SIGKILL);
  }
  int kind = (gb_rank() - victim + 4) % 4; /* 1 to 3 */
  gb_buffer b = floats(data, 100000);
  gb_work *work = NULL;
  __atomic_add_fetch(&board->ready, 1, __ATOMIC_SEQ_CST);
  gb_status status;
  if (kind == 1) {
    status = gb_recv(world_of(job), &b, peer, 3, NULL, NULL, &err);
  } else if (kind == 2) {
    status = gb_send(world_of(job), &b, peer, 4, &work, &err);
    if (status == GB_OK) status = gb_work_wait(work, 0, &err);
    gb_work_release(work);
  } else {
    status = gb_recv(world_of(job), &b, GB_ANY_SOURCE, 3, NULL, NULL, &err);
  }
  double took = test_now() - board->died;
  GB_CHECK(status != GB_OK);
  GB_CHECK(took < 2);
  char name[16];
  snprintf(name, sizeof name, "rank %d ", victim);
  GB_CHECK_TEXT(err.text, name);
  GB_CHECK_TEXT(err.text, "gone");
  GB_CHECK_INT(gb_send(world_of(job), &b, peer, 4, NULL, &err),
               GB_ERR_ABORTED);
  double start = test_now();
  must_close(job);
  GB_CHECK(test_now() - start < 5);
}

BOTH(killed_peer, 4, "nnaa", .expect = "000k", .timeout_ms = 60000) {
  killed(3);
}
BOTH(killed_rank_0, 4, "nnaa", .expect = "k000", .timeout_ms = 60000) {
  killed(0);
}

/* with_link: they have talked before. */
static void leaves(int who, bool with_link, bool large) {
  static float data[100000];
  gb_job *job = must_open(60 * SECONDS, NULL);
  int other = 3 - who; /* 1 and 2, or 0 and 3 */
  volatile int *left = gb_test_shared();
  meet_all(job);
  if (gb_rank() == who) {
    if (with_link) send_one(job, 3, other, 9);
    must_close(job);
    __atomic_add_fetch(left, 1, __ATOMIC_SEQ_CST);
    return;
  }
  if (gb_rank() == other) {
    double start = test_now();
    if (with_link) GB_CHECK(recv_one(job, who, 9) == 3);
    gb_buffer b = floats(data, large ? 100000 : 4);
    gb_status status =
        large ? gb_send(world_of(job), &b, who, 7, NULL, &err)
              : gb_recv(world_of(job), &b, who, 7, NULL, NULL, &err);
    GB_CHECK_INT(status, GB_ERR_PEER);
    GB_CHECK(test_now() - start < 3);
    char text[64];
    snprintf(text, sizeof text, "rank %d (host", who);
    GB_CHECK_TEXT(err.text, text);
    GB_CHECK_TEXT(err.text, "left the job");
    if (who) GB_CHECK_TEXT(err.text, "with tag 7");
    __atomic_add_fetch(left, 1, __ATOMIC_SEQ_CST);
  }
  gb_test_await(left, 2, 20000); /* also those that only look on */
  must_close(job);
}

BOTH(peer_leaves, 4, "nnaa") { leaves(1, true, false); }
BOTH(peer_leaves_before_a_link, 4, "nnaa") { leaves(1, false, false); }
BOTH(peer_leaves_before_a_large_send, 4, "nnaa") { leaves(2, true, true); }
BOTH(rank_0_leaves, 4, "nnaa") { leaves(0, true, false); }

GB_TEST(p2p, a_receive_nobody_sends_for, .ranks = 2, .vendors = "na") {
  float data[4];
  gb_buffer b = floats(data, 4);
  gb_job *job = must_open(1 * SECONDS, NULL);
  double start = test_now();
  gb_status status;
  if (gb_rank() == 0) {
    status = gb_recv(world_of(job), &b, 1, 7, NULL, NULL, &err);
    GB_CHECK_INT(status, GB_ERR_TIMEOUT);
  } else {
    gb_work *work;
    MUST(gb_recv(world_of(job), &b, 0, 11, NULL, &work, error));
    status = gb_work_wait(work, 0, &err);
    gb_work_release(work);
    GB_CHECK_INT(status, GB_ERR_TIMEOUT);
  }
  GB_CHECK(test_now() - start > 0.9);
  GB_CHECK(test_now() - start < 4);
  GB_CHECK_TEXT(err.text, "recv of 4 float32 from rank ");
  GB_CHECK_TEXT(err.text, "in group 0 did not end within 1 s");
  must_close(job);
}

static int stops(void *arg) {
  int *calls = arg;
  return ++*calls >= 3;
}

GB_TEST(p2p, interrupted_by_its_user, .ranks = 2, .vendors = "na") {
  static int calls;
  float data[4];
  gb_buffer b = floats(data, 4);
  gb_job_params params = GB_JOB_PARAMS_INIT;
  params.timeout_ms = 30 * SECONDS;
  gb_job *job;
  if (gb_rank() == 1) params.wait_hook = stops, params.wait_hook_arg = &calls;
  calls = -1000000;
  MUST(gb_job_open(&params, &job, error));
  calls = 0;
  double start = test_now();
  gb_status status = gb_recv(world_of(job), &b, !gb_rank(), 7, NULL, NULL,
                             &err);
  GB_CHECK_INT(status, GB_ERR_INTERRUPTED);
  GB_CHECK_TEXT(err.text, "was interrupted by its user in recv of 4 float32");
  GB_CHECK(test_now() - start < 3);
  must_close(job);
}

/* ---- works and closing ---- */

static void count_received(void *arg, const char *name, const char *value) {
  if (!strcmp(name, "p2p.messages_received")) *(int *)arg = atoi(value);
}

BOTH(dropped_works_complete, 2, "na") {
  enum { COUNT = 50000 };
  gb_job *job = must_open(20 * SECONDS, NULL);
  static float data[3][COUNT];
  gb_work *work;
  for (int i = 0; i < 3; i++) {
    size_t count = i ? COUNT : 7;
    gb_buffer b = floats(data[i], count);
    if (gb_rank() == 0) {
      fill(data[i], count, i);
      MUST(gb_send(world_of(job), &b, 1, (uint64_t)i, &work, error));
    } else {
      MUST(gb_recv(world_of(job), &b, 0, (uint64_t)i, NULL, &work, error));
    }
    gb_work_release(work);
  }
  if (gb_rank() == 0) {
    send_one(job, 1, 1, 99);
    GB_CHECK(recv_one(job, 1, 99) == 1);
  } else {
    int received = 0;
    for (double until = test_now() + 10; received < 3; nap_ms(1)) {
      gb_job_telemetry(job, count_received, &received);
      GB_CHECK(test_now() < until);
    }
    must_be(data[0], 7, 0);
    must_be(data[1], COUNT, 1);
    must_be(data[2], COUNT, 2);
    GB_CHECK(recv_one(job, 0, 99) == 1);
    send_one(job, 1, 0, 99);
  }
  must_close(job);
}

/* What a send has let go arrives although its sender closes at once, also when
 * the receiver comes much later and has sent things nobody received. */
static void close_early(int messages) {
  enum { COUNT = 3000 };
  static float data[COUNT];
  gb_job *job = must_open(20 * SECONDS, NULL);
  volatile int *closed = gb_test_shared(), *sent = closed + 1;
  gb_buffer b = floats(data, COUNT);
  meet_all(job);
  if (gb_rank() == 1) {
    gb_test_await(sent, 1, 20000);
    for (int i = 0; i < messages; i++) {
      fill(data, COUNT, i);
      MUST(gb_send(world_of(job), &b, 2, 1, NULL, error));
    }
    must_close(job);
    __atomic_store_n(closed, 1, __ATOMIC_SEQ_CST);
    return;
  }
  if (gb_rank() == 2) {
    for (int i = 0; i < messages; i++) send_one(job, 1, 1, 55);
    __atomic_store_n(sent, 1, __ATOMIC_SEQ_CST);
    gb_test_await(closed, 1, 20000);
    nap_ms(300);
    for (int i = 0; i < messages; i++) {
      MUST(gb_recv(world_of(job), &b, 1, 1, NULL, NULL, error));
      must_be(data, COUNT, i);
    }
  }
  gb_test_await(closed, 1, 20000);
  must_close(job);
}

/* As many as fit where nobody reads: the ring, the kernel's buffers. */
GB_TEST(p2p, closing_loses_nothing_shm, .ranks = 3, .vendors = "nan") {
  close_early(3);
}
GB_TEST(p2p, closing_loses_nothing_tcp, .ranks = 3, .vendors = "nan") {
  own_host();
  close_early(50);
}

GB_TEST(p2p, pending_works_are_canceled_by_closing, .ranks = 2,
        .vendors = "na") {
  static float data[100000];
  gb_buffer b = floats(data, 100000);
  gb_job *job = must_open(60 * SECONDS, NULL);
  gb_work *receive, *send;
  MUST(gb_recv(world_of(job), &b, !gb_rank(), 3, NULL, &receive, error));
  MUST(gb_send(world_of(job), &b, !gb_rank(), 4, &send, error));
  meet_all(job);
  double start = test_now();
  must_close(job);
  GB_CHECK(test_now() - start < 5);
  gb_status status = gb_work_wait(receive, 1000, &err);
  /* The faster one leaves the other one waiting. */
  GB_CHECK(status == GB_ERR_CANCELED || status == GB_ERR_PEER);
  status = gb_work_wait(send, 1000, &err);
  GB_CHECK(status == GB_ERR_CANCELED || status == GB_ERR_PEER);
  gb_work_release(receive);
  gb_work_release(send);
}

GB_TEST(p2p, forked_children_are_refused, .ranks = 2, .vendors = "na") {
  gb_job *job = must_open(20 * SECONDS, NULL);
  float value = 1;
  gb_buffer b = floats(&value, 1);
  if (gb_rank() == 0) send_one(job, 2, 1, 1);
  else GB_CHECK(recv_one(job, 0, 1) == 2);
  pid_t child = fork();
  if (child == 0)
    _exit(gb_send(world_of(job), &b, !gb_rank(), 1, NULL, &err) ==
                  GB_ERR_FORKED
              ? 0
              : 1);
  int status;
  GB_CHECK(waitpid(child, &status, 0) == child && status == 0);
  must_close(job);
}

/* ---- beside collectives ---- */

static void *sums(void *arg) {
  must_sum(arg, 300);
  return NULL;
}

BOTH(beside_collectives, 4, "nnaa", .timeout_ms = 90000) {
  enum { COUNT = 20000 };
  static float out[COUNT], in[COUNT];
  gb_job *job = must_open(60 * SECONDS, NULL);
  pthread_t thread;
  GB_CHECK_OK(pthread_create(&thread, NULL, sums, job));
  for (int i = 0; i < 150; i++) {
    int shift = 1 + i % 3;
    int to = (gb_rank() + shift) % 4, from = (gb_rank() + 4 - shift) % 4;
    size_t count = i % 5 ? 5 : COUNT;
    fill(out, count, gb_rank() + i);
    gb_p2p_op ops[2] = {{1, floats(out, count), to, 6},
                        {0, floats(in, count), from, 6}};
    gb_work *work = NULL;
    MUST(gb_batch(world_of(job), ops, 2, i % 2 ? &work : NULL, error));
    if (work) must_wait(work);
    must_be(in, count, from + i);
  }
  GB_CHECK_OK(pthread_join(thread, NULL));
  must_close(job);
}

/* Two threads of a rank wait for messages at once. */
static void *second_waiter(void *arg) {
  for (int i = 0; i < 200; i++) {
    if (gb_rank() == 0) send_one(arg, (float)i, 1, 100);
    else GB_CHECK(recv_one(arg, 0, 100) == (float)i);
    if (gb_rank() == 0) GB_CHECK(recv_one(arg, 1, 101) == (float)i);
    else send_one(arg, (float)i, 0, 101);
  }
  return NULL;
}

BOTH(two_threads_wait, 2, "na", .timeout_ms = 60000) {
  gb_job *job = must_open(30 * SECONDS, NULL);
  pthread_t thread;
  GB_CHECK_OK(pthread_create(&thread, NULL, second_waiter, job));
  for (int i = 0; i < 200; i++) {
    int first = i % 2 == gb_rank();
    if (first) send_one(job, (float)i, !gb_rank(), 7);
    else GB_CHECK(recv_one(job, !gb_rank(), 7) == (float)i);
  }
  GB_CHECK_OK(pthread_join(thread, NULL));
  must_close(job);
}

/* ---- what can be seen ---- */

static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

static int keep(void *arg, const gb_record *record) {
  gb_record *kept = arg; /* of the send, of the receive */
  pthread_mutex_lock(&kept_lock);
  if (!strcmp(record->op, "send")) kept[0] = *record;
  if (!strcmp(record->op, "recv")) kept[1] = *record;
  pthread_mutex_unlock(&kept_lock);
  return 0;
}

static void look(void *arg, const char *name, const char *value) {
  int *seen = arg;
  if (!strcmp(name, "p2p.links") && !strcmp(value, "1")) *seen |= 1;
  if (!strcmp(name, "p2p.bytes_sent") && !strcmp(value, "12")) *seen |= 2;
  if (!strcmp(name, "p2p.messages_received") && !strcmp(value, "1"))
    *seen |= 4;
}

GB_TEST(p2p, records_and_telemetry, .ranks = 2, .vendors = "na") {
  gb_job *job = must_open(20 * SECONDS, NULL);
  float data[3] = {1, 2, 3}, in[3];
  gb_record records[2] = {{0}};
  gb_buffer o = floats(data, 3), b = floats(in, 3);
  gb_work *work;
  MUST(gb_observer_add(job, keep, records, error));
  MUST(gb_recv(world_of(job), &b, !gb_rank(), 1, NULL, &work, error));
  gb_in_flight calls[4];
  GB_CHECK_INT(gb_job_in_flight(job, calls, 4), 1);
  GB_CHECK(!strcmp(calls[0].op, "recv"));
  meet_all(job);
  MUST(gb_send(world_of(job), &o, !gb_rank(), 1, NULL, error));
  must_wait(work);
  pthread_mutex_lock(&kept_lock);
  for (int i = 0; i < 2; i++) {
    GB_CHECK_INT(records[i].bytes, 12);
    GB_CHECK_INT(records[i].root, !gb_rank());
    GB_CHECK_INT(records[i].dtype, GB_FLOAT32);
    GB_CHECK(records[i].end_ns > records[i].start_ns);
  }
  pthread_mutex_unlock(&kept_lock);
  GB_CHECK_INT(gb_job_in_flight(job, calls, 4), 0);
  int seen = 0;
  gb_job_telemetry(job, look, &seen);
  GB_CHECK_INT(seen, 7);
  must_close(job);
}
