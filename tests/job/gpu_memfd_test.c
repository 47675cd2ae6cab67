/* GPUs of one host that copy from each other through memory they share: every
 * collective is exact while the areas come round many times, the host moves no
 * byte of a broadcast or an all_gather, whoever cannot have the memory goes
 * without and says why, and a member that dies ends the job as ever. In builds
 * with fault points, what keeps a block until it was read is left out, and the
 * numbers must show it. */
#include "job/gpu.h"
#include "job/values.h"

static gb_job *job;
static gb_group *world;

static void open_with(const char *area, const char *policy) {
  setenv("GPUBRIDGE_BRIDGE", "shm", 0);
  setenv("GPUBRIDGE_CHUNK_BYTES", "4096", 0);
  setenv("GPUBRIDGE_SHARED_STAGING_BYTES", area, 1);
  job = open_on_gpu(20000, policy);
  world = gb_job_world(job);
}

/* ---- what it says of itself ---- */

typedef struct facts {
  long long shared, sent;
  char why[400];
} facts;

static void note(void *arg, const char *name, const char *value) {
  facts *f = arg;
  if (!strcmp(name, "gpu.shared_bytes")) f->shared = atoll(value);
  if (!strcmp(name, "gpu.shared_reason"))
    snprintf(f->why, sizeof f->why, "%s", value);
  if (!strcmp(name, "bridge.bytes_sent")) f->sent = atoll(value);
}

static facts look(void) {
  facts f = {.shared = -1, .sent = -1};
  gb_job_telemetry(job, note, &f);
  return f;
}

/* ---- calls ---- */

static void fill(pair p, size_t n, int rank) {
  for (size_t i = 0; i < n; i++) put(p.host, i, GB_FLOAT32, value_of(rank, i));
  upload(p);
}

static double sum_at(size_t i) {
  double sum = 0;
  for (int r = 0; r < gb_world(); r++) sum += value_of(r, i);
  return sum;
}

static void broadcast(size_t n, int root) {
  pair p = new_pair(n * 4);
  gb_buffer buffer = {p.device, n, GB_FLOAT32};
  fill(p, n, gb_rank());
  MUST(gb_broadcast(world, &buffer, root, NULL, error));
  download(p);
  for (size_t i = 0; i < n; i++)
    check(p.host, i, GB_FLOAT32, value_of(root, i), "broadcast");
  free_pair(p);
}

static void all_gather(size_t n) {
  size_t all = n * (size_t)gb_world();
  pair one = new_pair(n * 4), many = new_pair(all * 4);
  gb_buffer small = {one.device, n, GB_FLOAT32};
  gb_buffer large = {many.device, all, GB_FLOAT32};
  fill(one, n, gb_rank());
  MUST(gb_all_gather(world, &large, &small, NULL, error));
  download(many);
  for (size_t i = 0; i < all; i++)
    check(many.host, i, GB_FLOAT32, value_of((int)(i / n), i % n), "gather");
  free_pair(one);
  free_pair(many);
}

/* A rank's part in a gather may outlast the call behind it. */
static void to_and_from(size_t n, int root) {
  size_t all = n * (size_t)gb_world(), mine = n * (size_t)gb_rank();
  pair one = new_pair(n * 4), many = new_pair(all * 4);
  gb_buffer small = {one.device, n, GB_FLOAT32};
  gb_buffer large = {many.device, all, GB_FLOAT32};
  bool roots = gb_rank() == root;
  fill(many, all, root);
  MUST(gb_scatter(world, &small, roots ? &large : NULL, root, NULL, error));
  download(one);
  for (size_t i = 0; i < n; i++)
    check(one.host, i, GB_FLOAT32, value_of(root, mine + i), "scatter");
  fill(one, n, gb_rank());
  MUST(gb_gather(world, roots ? &large : NULL, &small, root, NULL, error));
  download(many);
  for (size_t i = 0; roots && i < all; i++)
    check(many.host, i, GB_FLOAT32, value_of((int)(i / n), i % n), "gather");
  fill(many, all, gb_rank());
  MUST(gb_reduce_scatter(world, &small, &large, GB_SUM, NULL, error));
  download(one);
  for (size_t i = 0; i < n; i++)
    check(one.host, i, GB_FLOAT32, sum_at(mine + i), "reduce_scatter");
  free_pair(one);
  free_pair(many);
}

static void sums(size_t n, int root, gb_dtype dtype) {
  pair p = new_pair(n * gb_dtype_bytes(dtype));
  gb_buffer buffer = {p.device, n, dtype};
  for (int reduces = 0; reduces < 2; reduces++) {
    for (size_t i = 0; i < n; i++)
      put(p.host, i, dtype, value_of(gb_rank(), i));
    upload(p);
    if (reduces)
      MUST(gb_reduce(world, &buffer, GB_SUM, root, NULL, error));
    else
      MUST(gb_all_reduce(world, &buffer, GB_SUM, NULL, error));
    download(p);
    for (size_t i = 0; i < n && (!reduces || gb_rank() == root); i++)
      check(p.host, i, dtype, sum_at(i), "a sum");
  }
  free_pair(p);
}

static void everything(size_t n) {
  for (int root = 0; root < gb_world(); root++) {
    broadcast(n, root);
    to_and_from(n, root);
    sums(n, root, GB_FLOAT32);
  }
  sums(n, 0, GB_BFLOAT16);
  sums(n, 0, GB_INT64);
  all_gather(n);
  MUST(gb_barrier(world, NULL, error));
}

static void run_all(const char *area, const char *policy) {
  open_with(area, policy);
  GB_CHECK(look().shared);
  everything(1);
  everything(1001);
  everything(20000);
  close_on_gpu(job);
}

#define ROUND "64K" /* four blocks a window */
#define MANY "4M"

GB_TEST(gpu_memfd, one_and_one, .ranks = 2, .vendors = "na") {
  run_all(ROUND, "reduce-bridge-broadcast");
}
GB_TEST(gpu_memfd, two_and_two, .ranks = 4, .vendors = "nnaa") {
  run_all(ROUND, "reduce-bridge-broadcast");
}
GB_TEST(gpu_memfd, interleaved, .ranks = 4, .vendors = "nana") {
  run_all(MANY, "reduce-bridge-broadcast");
}
GB_TEST(gpu_memfd, two_links, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  run_all(ROUND, "sharded-bridge");
}
GB_TEST(gpu_memfd, three_islands, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  static const int islands[] = {0, 1, 2, 2};
  use_fakes();
  name_island(islands[gb_rank()]);
  run_all(ROUND, "reduce-bridge-broadcast");
}
GB_TEST(gpu_memfd, one_hardware_queue, .ranks = 4, .vendors = "nnaa") {
  setenv("FAKE_GPU_QUEUES", "1", 1);
  run_all(ROUND, "reduce-bridge-broadcast");
}
GB_TEST(gpu_memfd, delays, .ranks = 4, .vendors = "nnaa", .timeout_ms = 90000) {
  setenv("FAKE_GPU_SEED", "11", 1);
  run_all(ROUND, "reduce-bridge-broadcast");
}

/* Many calls under way at once: both halves of every area are in use. */
GB_TEST(gpu_memfd, calls_at_once, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  enum { CALLS = 24, N = 9000 };
  pair p[CALLS];
  gb_work *works[CALLS];
  open_with(ROUND, "reduce-bridge-broadcast");
  for (int i = 0; i < CALLS; i++) {
    p[i] = new_pair(N * 4);
    fill(p[i], N, gb_rank() + i);
  }
  for (int i = 0; i < CALLS; i++) {
    gb_buffer buffer = {p[i].device, N, GB_FLOAT32};
    MUST(gb_broadcast(world, &buffer, i % gb_world(), &works[i], error));
  }
  for (int i = 0; i < CALLS; i++) MUST(gb_work_wait(works[i], 0, error));
  for (int i = 0; i < CALLS; i++) {
    download(p[i]);
    for (size_t k = 0; k < N; k++)
      check(p[i].host, k, GB_FLOAT32, value_of(i % gb_world() + i, k), "many");
    gb_work_release(works[i]);
  }
  close_on_gpu(job);
}

/* ---- the host's part ---- */

static void host_moves_nothing(const char *policy) {
  open_with(ROUND, policy);
  long long before = look().sent;
  bool bridges = before >= 0;
  for (int i = 0; i < 3; i++) {
    for (int root = 0; root < gb_world(); root++) broadcast(20000, root);
    all_gather(5000);
  }
  if (bridges) GB_CHECK_INT(look().sent - before, 0);
  close_on_gpu(job);
}
GB_TEST(gpu_memfd, the_host_moves_nothing, .ranks = 4, .vendors = "nnaa") {
  host_moves_nothing("reduce-bridge-broadcast");
}
GB_TEST(gpu_memfd, nor_over_two_links, .ranks = 4, .vendors = "nnaa") {
  host_moves_nothing("sharded-bridge");
}

/* ---- without ---- */

/* Right all the same, the host's copies are counted, and all say why. */
static void must_go_without(const char *why) {
  open_with(getenv("AREA") ? getenv("AREA") : ROUND, "reduce-bridge-broadcast");
  facts before = look();
  if (before.sent >= 0 || before.shared >= 0) {
    GB_CHECK_INT(before.shared, 0);
    GB_CHECK_TEXT(before.why, why);
  }
  everything(3000);
  facts after = look();
  if (before.sent >= 0) GB_CHECK(after.sent > before.sent + 12000);
  close_on_gpu(job);
}
GB_TEST(gpu_memfd, one_rank_has_it_off, .ranks = 2, .vendors = "na") {
  if (gb_rank()) setenv("AREA", "0", 1);
  must_go_without("rank 1 (host");
}
GB_TEST(gpu_memfd, cannot_be_registered_by_cuda, .ranks = 4,
        .vendors = "nnaa") {
  if (!gb_rank()) setenv("FAKE_GPU_FAIL", "cuMemHostRegister_v2:1:2", 1);
  must_go_without("rank 0 (host");
}
/* Its own it can, the other's it cannot. */
GB_TEST(gpu_memfd, cannot_be_registered_by_hip, .ranks = 4, .vendors = "nnaa") {
  if (gb_rank() == 2) setenv("FAKE_GPU_FAIL", "hipHostRegister:2:2", 1);
  must_go_without("rank 2 (host");
}
GB_TEST(gpu_memfd, another_bridge, .ranks = 2, .vendors = "na") {
  setenv("GPUBRIDGE_BRIDGE", "tcp", 1);
  must_go_without("the bridge is not \"shm\"");
}
/* All areas count as large as the smallest. */
GB_TEST(gpu_memfd, areas_of_two_sizes, .ranks = 2, .vendors = "na") {
  open_with(gb_rank() ? "1M" : "96K", "reduce-bridge-broadcast");
  GB_CHECK_INT(look().shared, 96 << 10);
  everything(20000);
  close_on_gpu(job);
}
/* Steps larger than half a window go the other way, beside those that fit. */
GB_TEST(gpu_memfd, steps_that_do_not_fit, .ranks = 4, .vendors = "nnaa") {
  setenv("GPUBRIDGE_CHUNK_BYTES", "64K", 1);
  run_all(ROUND, "reduce-bridge-broadcast");
}

/* ---- failures ---- */

/* Killed while its blocks are being read: what was mapped stays. */
static void die(int victim) {
  gb_error error;
  open_with(ROUND, "reduce-bridge-broadcast");
  pair p = new_pair(400000);
  gb_buffer buffer = {p.device, 100000, GB_FLOAT32};
  fill(p, 100000, gb_rank());
  MUST(gb_broadcast(world, &buffer, victim, NULL, error));
  download(p);
  meet(0);
  double start = test_now();
  for (int i = 0; i < 100000; i++) {
    if (gb_broadcast(world, &buffer, victim, NULL, &error) != GB_OK) break;
    if (gb_rank() == victim && test_now() - start > 0.1)
      kill(getpid(), SIGKILL);
  }
  start = test_now();
  while (gb_group_check(world, &error) == GB_OK) {
    GB_CHECK(test_now() - start < 5);
    nap_ms(5);
  }
  char name[16];
  snprintf(name, sizeof name, "rank %d", victim);
  GB_CHECK_TEXT(error.text, name);
  GB_CHECK_TEXT(error.text, "gone");
  MUST(gpu->ops->stream_sync(gpu, user, error));
  close_on_gpu(job);
}
GB_TEST(gpu_memfd, its_owner_is_killed, .ranks = 4, .vendors = "nnaa",
        .expect = "00k0") {
  die(2);
}
GB_TEST(gpu_memfd, a_reader_is_killed, .ranks = 2, .vendors = "na",
        .expect = "k0") {
  if (gb_rank()) setenv("FAKE_GPU_SEED", "5", 1);
  die(0);
}

/* An owner that gives up opens its own waits, and may write what others still
 * read: what they take for done is right, or they say that the job failed. (In
 * a process that has given up the fakes copy nothing any more; that others
 * notice is in shared_test.c.) */
GB_TEST(gpu_memfd, its_owner_aborts, .ranks = 2, .vendors = "na",
        .timeout_ms = 60000) {
  enum { N = 40000, CALLS = 6 };
  pair p[CALLS];
  gb_work *works[CALLS] = {NULL};
  gb_error error;
  if (gb_rank()) {
    setenv("FAKE_GPU_SEED", "3", 1);
    setenv("FAKE_GPU_DELAY_US", "4000", 1);
  }
  open_with(ROUND, "reduce-bridge-broadcast");
  for (int i = 0; i < CALLS; i++) {
    p[i] = new_pair(N * 4);
    fill(p[i], N, gb_rank() + i);
  }
  meet(0);
  for (int i = 0; i < CALLS; i++) {
    gb_buffer buffer = {p[i].device, N, GB_FLOAT32};
    if (gb_broadcast(world, &buffer, 0, &works[i], &error) != GB_OK) break;
  }
  if (!gb_rank()) {
    nap_ms(60);
    gb_job_abort(job, "enough");
  }
  for (int i = 0; i < CALLS && works[i] && gb_rank(); i++) {
    int done = 0;
    gb_status status = GB_OK;
    while (!done && status == GB_OK)
      status = gb_work_test(works[i], &done, &error);
    if (status != GB_OK) break;
    download(p[i]);
    for (size_t k = 0; k < N; k++)
      check(p[i].host, k, GB_FLOAT32, value_of(i, k), "of one that aborts");
  }
  for (int i = 0; i < CALLS; i++) gb_work_release(works[i]);
  close_on_gpu(job);
}

/* ---- what keeps blocks, left out ---- */

/* The GPU of rank `slow` is: what is not kept for it is gone, and what it has
 * not written yet is not there. */
static void run_disordered(int slow, size_t n) {
  enum { TIMES = 6 };
  pair p[TIMES];
  gb_work *works[TIMES];
  bool wrong = false;
  if (gb_rank() == slow) {
    setenv("FAKE_GPU_SEED", "3", 1);
    setenv("FAKE_GPU_DELAY_US", "8000", 1);
  }
  open_with(ROUND, "reduce-bridge-broadcast");
  for (int i = 0; i < TIMES; i++) {
    p[i] = new_pair(n * 4);
    fill(p[i], n, gb_rank() + i);
  }
  for (int i = 0; i < TIMES; i++) {
    gb_buffer buffer = {p[i].device, n, GB_FLOAT32};
    MUST(gb_broadcast(world, &buffer, 0, &works[i], error));
  }
  for (int i = 0; i < TIMES; i++) MUST(gb_work_wait(works[i], 0, error));
  for (int i = 0; i < TIMES; i++) {
    download(p[i]);
    for (size_t k = 0; k < n; k++)
      wrong |= ((float *)p[i].host)[k] != (float)value_of(i, k);
  }
  /* Not before: whoever goes ends the job. */
  meet(0);
  _exit(wrong ? 5 : 0);
}
/* Of more windows than there are, and of less than one. */
enum { LONG = 30000, SHORT = 3000 };
#define EACH(place) \
  place ":nth=1:fail," place ":nth=2:fail," place ":nth=3:fail"
GB_TEST(gpu_memfd_order, all_there, .ranks = 2, .vendors = "na") {
  run_disordered(1, LONG);
}
GB_TEST(gpu_memfd_order, all_there_in_short_calls, .ranks = 2,
        .vendors = "na") {
  run_disordered(1, SHORT);
}
GB_TEST(gpu_memfd_order, all_there_in_slow_ones, .ranks = 2, .vendors = "na") {
  run_disordered(0, SHORT);
}
/* The reader says that it is through before it is. */
GB_TEST(gpu_memfd_order, handed_back_unread, .ranks = 2, .vendors = "na",
        .expect = "?x", .fault = EACH("gpu.shared@1")) {
  run_disordered(1, LONG);
}
/* The owner does not wait until the others are. */
GB_TEST(gpu_memfd_order, written_before_handed_back, .ranks = 2,
        .vendors = "na", .expect = "?x", .fault = EACH("gpu.release@0")) {
  run_disordered(1, LONG);
}
/* The same from one call to the next but one. */
GB_TEST(gpu_memfd_order, half_taken_before_handed_back, .ranks = 2,
        .vendors = "na", .expect = "?x",
        .fault = "gpu.ring@0:nth=3:fail,gpu.ring@0:nth=4:fail") {
  run_disordered(1, SHORT);
}
/* The owner says that a block is there before it is. */
GB_TEST(gpu_memfd_order, told_too_early, .ranks = 2, .vendors = "na",
        .expect = "?x", .fault = EACH("gpu.gate@0")) {
  run_disordered(0, SHORT);
}
