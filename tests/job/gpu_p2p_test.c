/* Messages between ranks on fake GPUs of both vendors: right values in the
 * order of the caller's streams, whatever the order of calls on the two sides,
 * by tag and from any source (S093, S094), in both directions at once on one
 * hardware queue, of no bytes and of many; sizes that differ, a rank that is
 * killed and a job that is closed while a stream waits for a message end on
 * every rank. Messages of host memory in the same job. Handles that outlive
 * their job. Each thing that orders a message on the streams is left out once,
 * and the fakes' clocks must notice. */
#include "job/gpu.h"

#include <dlfcn.h>
#include <stdatomic.h>

#include "fakes/fakes.h"

enum { LARGE = 1500000 }; /* floats: more than the mesh sends unasked */

static gb_group *world;

static gb_buffer floats(pair p, size_t n) {
  return (gb_buffer){p.device, n, GB_FLOAT32};
}

/* Tells sender, receiver, message and place. */
static float value_at(int from, int to, int message, size_t i) {
  return (float)((from * 64 + to * 16 + message * 5 + (int)(i % 1009)) % 4093);
}

/* The stream is through with the pinned twin of whatever it was told before. */
static void rest(void) {
  MUST(gpu->ops->stream_sync(gpu, user, error));
}

static void fill(pair p, size_t n, int from, int to, int message) {
  rest();
  for (size_t i = 0; i < n; i++)
    ((float *)p.host)[i] = value_at(from, to, message, i);
  upload(p);
}

static void must_be(pair p, size_t n, int from, int to, int message) {
  download(p);
  for (size_t i = 0; i < n; i++)
    if (((float *)p.host)[i] != value_at(from, to, message, i))
      gb_test_fail(__FILE__, __LINE__,
                   "element %zu of %zu from rank %d, message %d, is %g", i, n,
                   from, message, (double)((float *)p.host)[i]);
}

static void clear(pair p) {
  rest();
  memset(p.host, 0, p.bytes);
  upload(p);
}

static gb_work *isend(pair p, size_t n, int peer, uint64_t tag) {
  gb_buffer b = floats(p, n);
  gb_work *work = NULL;
  MUST(gb_send(world, &b, peer, tag, &work, error));
  return work;
}

static gb_work *irecv(pair p, size_t n, int peer, uint64_t tag) {
  gb_buffer b = floats(p, n);
  gb_work *work = NULL;
  MUST(gb_recv(world, &b, peer, tag, NULL, &work, error));
  return work;
}

static void done(gb_work *work) {
  MUST(gb_work_wait(work, 0, error));
  gb_work_release(work);
}

static gb_job *begin(void) {
  gb_job *job = open_on_gpu(20000, NULL);
  world = gb_job_world(job);
  return job;
}

/* ---- values and order ---- */

/* Blocking calls, every pair, both ways; what follows on the stream sees it,
 * and overwriting a sent buffer does no harm. */
static void every_pair(size_t n) {
  pair p = new_pair(n * 4 + 64);
  gb_buffer b = floats(p, n);
  for (int from = 0; from < gb_world(); from++)
    for (int to = 0; to < gb_world(); to++) {
      if (from == to) continue;
      if (gb_rank() == from) {
        fill(p, n, from, to, 1);
        MUST(gb_send(world, &b, to, 7, NULL, error));
        clear(p);
      } else if (gb_rank() == to) {
        int source = -1;
        clear(p);
        MUST(gb_recv(world, &b, from, 7, &source, NULL, error));
        GB_CHECK_INT(source, from);
        must_be(p, n, from, to, 1);
      }
    }
  free_pair(p);
}

/* Everybody to everybody, receives first, sends first, as a batch. */
static void all_at_once(size_t n, int way) {
  enum { MOST = 4 };
  pair out[MOST], in[MOST];
  gb_p2p_op ops[2 * MOST];
  gb_work *works[2 * MOST];
  int count = 0, me = gb_rank();
  for (int r = 0; r < gb_world(); r++) {
    if (r == me) continue;
    out[r] = new_pair(n * 4 + 64);
    in[r] = new_pair(n * 4 + 64);
    fill(out[r], n, me, r, way);
    clear(in[r]);
  }
  for (int half = 0; half < 2; half++)
    for (int r = 0; r < gb_world(); r++) {
      bool is_send = half == (way == 1);
      pair p = is_send ? out[r] : in[r];
      if (r != me) ops[count++] = (gb_p2p_op){is_send, floats(p, n), r, 3};
    }
  if (way == 2) {
    MUST(gb_batch(world, ops, count, &works[0], error));
    done(works[0]);
  } else {
    for (int i = 0; i < count; i++) {
      pair p = {.device = ops[i].buffer.data};
      works[i] = ops[i].is_send ? isend(p, n, ops[i].peer, 3)
                                : irecv(p, n, ops[i].peer, 3);
    }
    for (int i = count - 1; i >= 0; i--) done(works[i]);
  }
  for (int r = 0; r < gb_world(); r++) {
    if (r == me) continue;
    must_be(in[r], n, r, me, way);
    free_pair(out[r]);
    free_pair(in[r]);
  }
}

/* S094: the receiver takes them the other way round. */
static void tags(size_t n) {
  pair a = new_pair(n * 4 + 64), b = new_pair(n * 4 + 64);
  if (gb_rank() == 0) {
    fill(a, n, 0, 1, 1);
    fill(b, n, 0, 1, 2);
    gb_work *first = isend(a, n, 1, 1), *second = isend(b, n, 1, 2);
    done(first);
    done(second);
  } else if (gb_rank() == 1) {
    clear(a);
    clear(b);
    gb_buffer buffer = floats(b, n);
    MUST(gb_recv(world, &buffer, 0, 2, NULL, NULL, error));
    buffer = floats(a, n);
    MUST(gb_recv(world, &buffer, 0, 1, NULL, NULL, error));
    must_be(a, n, 0, 1, 1);
    must_be(b, n, 0, 1, 2);
  }
  free_pair(a);
  free_pair(b);
}

/* S093. */
static void from_any(size_t n) {
  pair p = new_pair(n * 4 + 64);
  gb_buffer b = floats(p, n);
  if (gb_rank()) {
    fill(p, n, gb_rank(), 0, 4);
    done(isend(p, n, 0, 11));
    download(p); /* the stream is through with it */
  }
  unsigned seen = 0;
  for (int i = 1; !gb_rank() && i < gb_world(); i++) {
    int source = -1;
    if (i % 2) {
      MUST(gb_recv(world, &b, GB_ANY_SOURCE, 11, &source, NULL, error));
    } else {
      gb_work *work = irecv(p, n, GB_ANY_SOURCE, 11);
      MUST(gb_work_wait(work, 0, error));
      source = gb_work_source(work);
      gb_work_release(work);
    }
    must_be(p, n, source, 0, 4);
    seen |= 1u << source;
  }
  if (!gb_rank()) GB_CHECK_INT((int)seen, (1 << gb_world()) - 2);
  free_pair(p);
}

/* Nobody waits, somebody asks: the data come all the same. */
static void tested(size_t n) {
  pair p = new_pair(n * 4 + 64);
  int other = gb_rank() ^ 1;
  if (gb_rank() > 1) {
    free_pair(p);
    return;
  }
  if (gb_rank())
    fill(p, n, 1, 0, 6);
  else
    clear(p);
  gb_work *work = gb_rank() ? isend(p, n, other, 0) : irecv(p, n, other, 0);
  int is_done = 0;
  double start = test_now();
  while (!is_done) {
    MUST(gb_work_test(work, &is_done, error));
    GB_CHECK(test_now() - start < 15);
    nap_ms(1);
  }
  if (!gb_rank()) must_be(p, n, 1, 0, 6);
  gb_work_release(work);
  free_pair(p);
}

/* What is on the caller's stream, and on another one, comes in order. */
static void streams(size_t n) {
  pair p = new_pair(n * 4 + 64);
  gbi_stream other;
  MUST(gpu->ops->stream_new(gpu, &other, error));
  if (gb_rank() == 0) {
    fill(p, n, 0, 1, 8);
    gb_work *work = isend(p, n, 1, 0);
    gb_use_stream(other);
    MUST(gb_work_wait(work, 0, error));
    rest();
    memset(p.host, 0, p.bytes);
    MUST(gpu->ops->copy_in(gpu, p.device, p.host, p.bytes, other, error));
    gb_use_stream(user);
    gb_work_release(work);
  } else if (gb_rank() == 1) {
    clear(p); /* still under way when the receive is posted */
    gb_work *work = irecv(p, n, 0, 0);
    gb_use_stream(other);
    MUST(gb_work_wait(work, 0, error));
    gb_use_stream(user);
    MUST(gb_work_wait(work, 0, error)); /* another stream, too */
    must_be(p, n, 0, 1, 8);
    gb_work_release(work);
  }
  MUST(gpu->ops->stream_sync(gpu, other, error));
  gpu->ops->stream_free(gpu, other);
  free_pair(p);
}

static void collectives_beside(size_t n) {
  pair p = new_pair(n * 4), q = new_pair(n * 4);
  int next = (gb_rank() + 1) % gb_world();
  int last = (gb_rank() + gb_world() - 1) % gb_world();
  gb_buffer sum = floats(q, n);
  for (int round = 0; round < 5; round++) {
    pair mine = new_pair(n * 4);
    fill(mine, n, gb_rank(), next, round);
    for (size_t i = 0; i < n; i++) ((float *)q.host)[i] = 1;
    upload(q);
    clear(p);
    gb_work *in = irecv(p, n, last, 1), *out = isend(mine, n, next, 1);
    MUST(gb_all_reduce(world, &sum, GB_SUM, NULL, error));
    done(in);
    done(out);
    must_be(p, n, last, gb_rank(), round);
    download(q);
    GB_CHECK(((float *)q.host)[n - 1] == (float)gb_world());
    free_pair(mine);
  }
  free_pair(p);
  free_pair(q);
}

static void everything(void) {
  static const size_t counts[] = {0, 1, 100, 5000, 300000};
  gb_job *job = begin();
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
    size_t n = counts[i];
    every_pair(n);
    for (int way = 0; way < 3; way++) all_at_once(n, way);
    tags(n);
    from_any(n);
    tested(n);
    streams(n);
  }
  collectives_beside(3000);
  close_on_gpu(job);
}

GB_TEST(gpu_p2p, one_and_one, .ranks = 2, .vendors = "na") {
  everything();
}
GB_TEST(gpu_p2p, two_and_two, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  everything();
}
GB_TEST(gpu_p2p, one_and_three, .ranks = 4, .vendors = "naaa",
        .timeout_ms = 60000) {
  everything();
}
GB_TEST(gpu_p2p, one_island, .ranks = 2, .vendors = "nn") {
  everything();
}
GB_TEST(gpu_p2p, one_hardware_queue, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  setenv("FAKE_GPU_QUEUES", "1", 1);
  everything();
}
GB_TEST(gpu_p2p, delays, .ranks = 2, .vendors = "na", .timeout_ms = 60000) {
  setenv("FAKE_GPU_SEED", "11", 1);
  everything();
}

/* Both ways at once, larger than the ring, on one hardware queue. */
GB_TEST(gpu_p2p, large_both_ways, .ranks = 2, .vendors = "na",
        .timeout_ms = 60000) {
  setenv("FAKE_GPU_QUEUES", "1", 1);
  setenv("GPUBRIDGE_STAGING_BYTES", "65536", 1);
  gb_job *job = begin();
  for (int way = 0; way < 3; way++) all_at_once(LARGE, way);
  close_on_gpu(job);
}

/* Members of a part of the job, by their ranks in it. */
GB_TEST(gpu_p2p, subgroup, .ranks = 3, .vendors = "nna") {
  gb_job *job = begin();
  const int ends[] = {2, 0};
  pair p = new_pair(400);
  if (gb_rank() != 1) {
    MUST(gb_group_open(job, ends, 2, NULL, &world, error));
    gb_buffer b = floats(p, 100);
    if (gb_rank()) { /* rank 0 of the group */
      fill(p, 100, 2, 0, 1);
      MUST(gb_send(world, &b, 1, 0, NULL, error));
    } else {
      clear(p);
      MUST(gb_recv(world, &b, 0, 0, NULL, NULL, error));
      must_be(p, 100, 2, 0, 1);
    }
    MUST(gb_group_close(world, error));
  }
  close_on_gpu(job);
}

/* Host memory in the same job: as on the CPU, also towards a GPU. */
GB_TEST(gpu_p2p, host_memory, .ranks = 2, .vendors = "na") {
  gb_job *job = begin();
  pair p = new_pair(40);
  float values[10] = {1, 2, 3};
  gb_buffer host = {values, 10, GB_FLOAT32}, device = floats(p, 10);
  gb_error error;
  if (gb_rank()) {
    MUST(gb_send(world, &host, 0, 0, NULL, error));
    MUST(gb_send(world, &host, 0, 1, NULL, error));
    gb_p2p_op mixed[2] = {{1, host, 0, 2}, {1, device, 0, 2}};
    gb_status status = gb_batch(world, mixed, 2, NULL, &error);
    must_be_refused(status, GB_ERR_ARGUMENT, &error, "a batch of each");
  } else {
    float got[10] = {0};
    gb_buffer here = {got, 10, GB_FLOAT32};
    MUST(gb_recv(world, &here, 1, 0, NULL, NULL, error));
    MUST(gb_recv(world, &device, 1, 1, NULL, NULL, error));
    download(p);
    GB_CHECK(!memcmp(got, p.host, 40) && got[2] == 3);
  }
  close_on_gpu(job);
}

/* ---- costs ---- */

static void count(fake_gpu_counts *counts) {
  char path[700];
  snprintf(path, sizeof path, "%s", getenv("GPUBRIDGE_CUDA_LIB"));
  if (is_amd())
    memcpy(strstr(path, "cuda/libcuda.so.1"), "hip/libamdhip64.so.6", 21);
  void *fake = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  void (*ask)(fake_gpu_counts *);
  GB_CHECK(fake);
  *(void **)&ask = dlsym(fake, "fake_gpu_count");
  GB_CHECK(ask);
  ask(counts);
}

static void exchange(pair in, pair out, size_t n) {
  int other = !gb_rank();
  gb_work *r = irecv(in, n, other, 0), *s = isend(out, n, other, 0);
  done(r);
  done(s);
}

GB_TEST(gpu_p2p, steady_messages_cost_nothing_extra, .ranks = 2,
        .vendors = "na") {
  gb_job *job = begin();
  pair in = new_pair(40000), out = new_pair(40000);
  fake_gpu_counts before, after;
  fill(out, 10000, 1, 1, 1);
  for (int i = 0; i < 10; i++) exchange(in, out, 10000);
  download(out);
  count(&before);
  for (int i = 0; i < 20; i++) {
    exchange(in, out, 10000);
    double start = test_now();
    while (gpu->ops->stream_query(gpu, user, NULL) == GB_ERR_BUSY) {
      GB_CHECK(test_now() - start < 10);
      nap_ms(1);
    }
  }
  count(&after);
  GB_CHECK_INT(after.allocations - before.allocations, 0);
  GB_CHECK_INT(after.blocking - before.blocking, 0);
  close_on_gpu(job);
}

/* ---- what goes wrong ---- */

GB_TEST(gpu_p2p, sizes_that_differ, .ranks = 2, .vendors = "na") {
  gb_job *job = begin();
  pair p = new_pair(4000);
  gb_buffer b = floats(p, gb_rank() ? 100 : 200);
  gb_error error = {.text = ""};
  clear(p);
  gb_status status = gb_rank() ? gb_send(world, &b, 0, 5, NULL, &error)
                               : gb_recv(world, &b, 1, 5, NULL, NULL, &error);
  GB_CHECK(status == GB_OK || status == GB_ERR_MISMATCH);
  await_failure(job, &error);
  GB_CHECK_TEXT(error.text, "100");
  GB_CHECK_TEXT(error.text, "200");
  MUST(gpu->ops->stream_sync(gpu, user, error)); /* nothing waits any more */
  close_on_gpu(job);
}

/* The other's stream waits for a message of the one that is killed. */
GB_TEST(gpu_p2p, the_sender_is_killed, .ranks = 2, .vendors = "na",
        .expect = "0k") {
  gb_job *job = begin();
  pair p = new_pair(LARGE * 4), q = new_pair(40);
  gb_error error;
  exchange(p, q, 10);
  download(p);
  meet(0);
  if (gb_rank()) {
    nap_ms(200);
    kill(getpid(), SIGKILL);
  }
  gb_work *work = irecv(p, LARGE, 1, 0);
  MUST(gb_work_wait(work, 0, error));
  double start = test_now();
  await_failure(job, &error);
  GB_CHECK(test_now() - start < 5);
  GB_CHECK_TEXT(error.text, "rank 1");
  MUST(gpu->ops->stream_sync(gpu, user, error));
  int is_done = 0;
  GB_CHECK(gb_work_test(work, &is_done, &error) != GB_OK && is_done);
  GB_CHECK_TEXT(error.text, "rank 1");
  gb_work_release(work);
  close_on_gpu(job);
}

GB_TEST(gpu_p2p, it_comes_too_late, .ranks = 2, .vendors = "na") {
  gb_job *job = open_on_gpu(1500, NULL);
  world = gb_job_world(job);
  pair p = new_pair(400);
  gb_error error;
  if (!gb_rank()) {
    gb_buffer b = floats(p, 100);
    gb_status status = gb_recv(world, &b, 1, 42, NULL, NULL, &error);
    GB_CHECK(status == GB_OK || status == GB_ERR_TIMEOUT);
  }
  await_failure(job, &error);
  GB_CHECK_TEXT(error.text, "tag 42");
  MUST(gpu->ops->stream_sync(gpu, user, error));
  close_on_gpu(job);
}

GB_TEST(gpu_p2p, too_little_pinned_memory, .ranks = 2, .vendors = "na") {
  setenv("FAKE_GPU_PINNED_MOST", "3000000", 1);
  gb_job *job = begin();
  void *memory;
  gb_error error = {.text = ""};
  MUST(gpu->ops->memory(gpu, LARGE * 4, &memory, error));
  gb_buffer b = {memory, LARGE, GB_FLOAT32};
  gb_status status = gb_rank() ? gb_send(world, &b, 0, 0, NULL, &error)
                               : gb_recv(world, &b, 1, 0, NULL, NULL, &error);
  GB_CHECK(status != GB_OK);
  await_failure(job, &error);
  GB_CHECK_TEXT(error.text, "pinned");
  gpu->ops->free_memory(gpu, memory);
  close_on_gpu(job);
}

/* A stream waits for a message that never comes, and the job is closed: what
 * the stream has to do after it is done. */
GB_TEST(gpu_p2p, closed_while_a_stream_waits, .ranks = 2, .vendors = "na") {
  gb_job *job = begin();
  pair p = new_pair(400);
  gb_work *work = irecv(p, 100, !gb_rank(), 9);
  MUST(gb_work_wait(work, 0, error));
  meet(0);
  must_close(job);
  gb_error error;
  int is_done = 0;
  GB_CHECK(gb_work_test(work, &is_done, &error) != GB_OK && is_done);
  gb_work_release(work);
  MUST(gpu->ops->stream_sync(gpu, user, error));
  gpu->ops->stream_free(gpu, user);
  gpu->ops->close(gpu);
}

/* What was sent is not lost because its sender closes at once. */
GB_TEST(gpu_p2p, closing_loses_nothing, .ranks = 2, .vendors = "na") {
  setenv("FAKE_GPU_SEED", "5", 1);
  gb_job *job = begin();
  pair p = new_pair(40000);
  if (gb_rank()) {
    fill(p, 10000, 1, 0, 3);
    gb_work_release(isend(p, 10000, 0, 0));
  } else {
    gb_buffer b = floats(p, 10000);
    MUST(gb_recv(world, &b, 1, 0, NULL, NULL, error));
    must_be(p, 10000, 1, 0, 3);
  }
  close_on_gpu(job);
}

/* Handles that their owner uses and releases after the job: of collectives and
 * of messages. */
GB_TEST(gpu_p2p, handles_that_outlive_the_job, .ranks = 2, .vendors = "na") {
  gb_job *job = begin();
  pair p = new_pair(400), q = new_pair(400), r = new_pair(400);
  int other = !gb_rank(), is_done = 0;
  gb_buffer b = floats(p, 100);
  gb_work *sum = NULL;
  for (int i = 0; i < 100; i++) ((float *)p.host)[i] = 1;
  upload(p);
  fill(q, 100, gb_rank(), other, 1);
  MUST(gb_all_reduce(world, &b, GB_SUM, &sum, error));
  gb_work *out = isend(q, 100, other, 0), *in = irecv(r, 100, other, 0);
  MUST(gb_work_wait(in, 0, error));
  must_be(r, 100, other, gb_rank(), 1);
  must_close(job);
  MUST(gb_work_test(sum, &is_done, error));
  GB_CHECK_INT(is_done, 1);
  MUST(gb_work_wait(sum, 0, error));
  MUST(gb_work_wait(in, 0, error));
  MUST(gb_work_wait(out, 0, error));
  GB_CHECK(gb_work_seq(sum) >= 0);
  gb_work_release(sum);
  gb_work_release(out);
  gb_work_release(in);
  download(p);
  GB_CHECK(((float *)p.host)[99] == 2);
  gpu->ops->stream_free(gpu, user);
  gpu->ops->close(gpu);
}

/* ---- what keeps order, left out ---- */

/* A failed check of the fakes aborts: the rank ends with 3; a wrong number
 * with 5. */
static void run_disordered(void) {
  enum { N = 300000 };
  signal(SIGABRT, ends);
  setenv("FAKE_GPU_SEED", "3", 1);
  setenv("FAKE_GPU_DELAY_US", "3000", 1);
  gb_job *job = open_on_gpu(5000, NULL);
  world = gb_job_world(job);
  pair in = new_pair(N * 4), out = new_pair(N * 4);
  gb_error error;
  for (int round = 0; round < 3; round++) {
    gb_buffer to = floats(in, N), from = floats(out, N);
    gb_work *r, *s;
    clear(in);
    fill(out, N, gb_rank(), !gb_rank(), round); /* still under way */
    if (gb_recv(world, &to, !gb_rank(), 0, NULL, &r, &error) != GB_OK) _exit(4);
    if (gb_send(world, &from, !gb_rank(), 0, &s, &error) != GB_OK) _exit(4);
    MUST(gb_work_wait(s, 0, error));
    clear(out); /* may be used again */
    MUST(gb_work_wait(r, 0, error));
    download(in);
    for (size_t i = 0; i < N; i++)
      if (((float *)in.host)[i] != value_at(!gb_rank(), gb_rank(), round, i))
        _exit(5);
    gb_work_release(r);
    gb_work_release(s);
  }
  close_on_gpu(job);
}

#define LEFT_OUT(name_, fault_)                                              \
  GB_TEST(gpu_p2p_order, name_, .ranks = 2, .vendors = "na", .expect = "x?", \
          .fault = fault_) {                                                 \
    run_disordered();                                                        \
  }
LEFT_OUT(a_send_behind_the_callers_stream, "gpu.send.begin@0:fail")
LEFT_OUT(before_the_buffer_is_used_again, "gpu.send.end@0:fail")
static gb_job *disorder(void) {
  signal(SIGABRT, ends);
  setenv("FAKE_GPU_SEED", "3", 1);
  gb_job *job = open_on_gpu(5000, NULL);
  world = gb_job_world(job);
  return job;
}

static void end_with(pair p, size_t n, int message) {
  download(p);
  for (size_t i = 0; i < n; i++)
    if (((float *)p.host)[i] != value_at(1, 0, message, i)) leave_together(5);
  leave_together(0);
}

/* The message is sent when rank 0's stream waits for it. */
GB_TEST(gpu_p2p_order, behind_the_message, .ranks = 2, .vendors = "na",
        .expect = "x?", .fault = "gpu.recv.gate@0:fail") {
  (void)disorder();
  pair p = new_pair(4000);
  if (gb_rank() == 0) {
    clear(p);
    gb_work *work = irecv(p, 1000, 1, 0);
    MUST(gb_work_wait(work, 0, error));
    rest();
    meet(0);
    end_with(p, 1000, 1);
  }
  meet(0);
  fill(p, 1000, 1, 0, 1);
  done(isend(p, 1000, 0, 0));
  download(p);
  leave_together(0);
}

/* A stream that the test holds, by a flag in pinned memory. */
static _Atomic uint64_t *hold(void) {
  void *host, *device;
  MUST(gpu->ops->pinned(gpu, 4096, &host, &device, error));
  MUST(gpu->ops->wait_flag(gpu, device, 1, user, error));
  return host;
}

/* The copy down is behind what the test holds; a small message, which leaves at
 * once, must be too. */
GB_TEST(gpu_p2p_order, the_host_behind_the_copy, .ranks = 2, .vendors = "na",
        .expect = "x?", .fault = "gpu.send.gate@1:fail") {
  (void)disorder();
  pair p = new_pair(4000);
  if (gb_rank() == 0) {
    clear(p);
    gb_buffer b = floats(p, 1000);
    MUST(gb_recv(world, &b, 1, 0, NULL, NULL, error));
    end_with(p, 1000, 1);
  }
  clear(p);
  rest();
  for (size_t i = 0; i < 1000; i++) ((float *)p.host)[i] = value_at(1, 0, 1, i);
  _Atomic uint64_t *flag = hold();
  upload(p);
  gb_work *work = isend(p, 1000, 0, 0);
  nap_ms(300);
  atomic_store_explicit(flag, 1, memory_order_release);
  done(work);
  download(p);
  leave_together(0);
}

/* The receive is posted on a stream that the test holds, and waited for on
 * another one. */
GB_TEST(gpu_p2p_order, a_receive_behind_the_callers_stream, .ranks = 2,
        .vendors = "na", .expect = "x?", .fault = "gpu.recv.begin@0:fail") {
  (void)disorder();
  pair p = new_pair(4000);
  if (gb_rank()) {
    fill(p, 1000, 1, 0, 1);
    done(isend(p, 1000, 0, 0));
    download(p);
    leave_together(0);
  }
  gbi_stream other;
  MUST(gpu->ops->stream_new(gpu, &other, error));
  rest();
  memset(p.host, 0, p.bytes);
  _Atomic uint64_t *flag = hold();
  upload(p);
  gb_work *work = irecv(p, 1000, 1, 0);
  gb_use_stream(other);
  MUST(gb_work_wait(work, 0, error));
  nap_ms(300);
  atomic_store_explicit(flag, 1, memory_order_release);
  MUST(gpu->ops->stream_sync(gpu, other, error));
  rest();
  end_with(p, 1000, 1);
}
/* Nothing is left out: such messages are right. */
GB_TEST(gpu_p2p_order, all_there, .ranks = 2, .vendors = "na") {
  run_disordered();
}
