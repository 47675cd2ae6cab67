/* Jobs on fake GPUs of both vendors, one process a rank: every collective is
 * exact under every policy, in the order of the caller's stream, while the
 * fakes look for uses before data are ready, host access to device memory and
 * one hardware queue that everything shares. */
#include "job/gpu.h"
#include "job/values.h"

static gb_group *world;

static void fill(pair p, size_t n, gb_dtype dtype, int rank) {
  for (size_t i = 0; i < n; i++) put(p.host, i, dtype, value_of(rank, i));
  upload(p);
}

static double sum_at(size_t i) {
  double sum = 0;
  for (int r = 0; r < gb_world(); r++) sum += value_of(r, i);
  return sum;
}

/* The vendors' libraries scale each contribution: not the last bit is told. */
static void check_mean(float got, double sum) {
  if (fabs(got - sum / gb_world()) > 1e-6 * sum)
    gb_test_fail(__FILE__, __LINE__, "the mean is %g, not %g", (double)got,
                 sum / gb_world());
}

static void all_reduce(size_t n, gb_dtype dtype, gb_redop op) {
  pair p = new_pair(n * gb_dtype_bytes(dtype) + 64);
  gb_buffer buffer = {p.device, n, dtype};
  fill(p, n, dtype, gb_rank());
  MUST(gb_all_reduce(world, &buffer, op, NULL, error));
  download(p);
  for (size_t i = 0; i < n; i++) {
    if (op == GB_AVG)
      check_mean(((float *)p.host)[i], sum_at(i));
    else
      check(p.host, i, dtype, sum_at(i), "all_reduce");
  }
  free_pair(p);
}

static void broadcast(size_t n, int root) {
  pair p = new_pair(n * 4 + 64);
  gb_buffer buffer = {p.device, n, GB_FLOAT32};
  fill(p, n, GB_FLOAT32, gb_rank());
  MUST(gb_broadcast(world, &buffer, root, NULL, error));
  download(p);
  for (size_t i = 0; i < n; i++)
    check(p.host, i, GB_FLOAT32, value_of(root, i), "broadcast");
  free_pair(p);
}

static void gather_and_scatter(size_t n) {
  size_t all = n * (size_t)gb_world();
  pair one = new_pair(n * 4 + 64), many = new_pair(all * 4 + 64);
  gb_buffer small = {one.device, n, GB_FLOAT32};
  gb_buffer large = {many.device, all, GB_FLOAT32};
  fill(one, n, GB_FLOAT32, gb_rank());
  MUST(gb_all_gather(world, &large, &small, NULL, error));
  download(many);
  for (size_t i = 0; i < all; i++)
    check(many.host, i, GB_FLOAT32, value_of((int)(i / n), i % n), "gather");
  fill(many, all, GB_FLOAT32, gb_rank());
  MUST(gb_reduce_scatter(world, &small, &large, GB_SUM, NULL, error));
  download(one);
  for (size_t i = 0; i < n; i++)
    check(one.host, i, GB_FLOAT32, sum_at(i + n * (size_t)gb_rank()),
          "reduce_scatter");
  free_pair(one);
  free_pair(many);
}

static void reduce(size_t n, int root) {
  pair p = new_pair(n * 4 + 64);
  gb_buffer buffer = {p.device, n, GB_FLOAT32};
  fill(p, n, GB_FLOAT32, gb_rank());
  MUST(gb_reduce(world, &buffer, GB_SUM, root, NULL, error));
  download(p);
  for (size_t i = 0; i < n; i++)
    check(p.host, i, GB_FLOAT32,
          gb_rank() == root ? sum_at(i) : value_of(gb_rank(), i), "reduce");
  free_pair(p);
}

static void all_to_all(size_t n) {
  size_t all = n * (size_t)gb_world();
  pair in = new_pair(all * 4 + 64), out = new_pair(all * 4 + 64);
  gb_buffer from = {in.device, all, GB_FLOAT32};
  gb_buffer to = {out.device, all, GB_FLOAT32};
  fill(in, all, GB_FLOAT32, gb_rank());
  MUST(gb_all_to_all(world, &to, NULL, &from, NULL, NULL, error));
  download(out);
  for (size_t i = 0; i < all; i++)
    check(out.host, i, GB_FLOAT32,
          value_of((int)(i / n), i % n + n * (size_t)gb_rank()), "all_to_all");
  free_pair(in);
  free_pair(out);
}

static void everything(size_t n) {
  all_reduce(n, GB_FLOAT32, GB_SUM);
  all_reduce(n, GB_FLOAT32, GB_AVG);
  all_reduce(n, GB_INT64, GB_SUM);
  all_reduce(n, GB_BFLOAT16, GB_SUM);
  for (int root = 0; root < gb_world(); root++) {
    broadcast(n, root);
    reduce(n, root);
  }
  gather_and_scatter(n);
  all_to_all(n);
  MUST(gb_barrier(world, NULL, error));
}

static void run_all(const char *policy) {
  setenv("GPUBRIDGE_CHUNK_BYTES", "4096", 1);
  gb_job *job = open_on_gpu(20000, policy);
  world = gb_job_world(job);
  everything(1);
  everything(1000);
  everything(20000);
  close_on_gpu(job);
}

GB_TEST(gpu, two_and_two, .ranks = 4, .vendors = "nnaa") {
  run_all(NULL);
}
GB_TEST(gpu, one_and_one, .ranks = 2, .vendors = "na") {
  run_all(NULL);
}
GB_TEST(gpu, one_and_three, .ranks = 4, .vendors = "naaa") {
  run_all(NULL);
}
GB_TEST(gpu, interleaved, .ranks = 4, .vendors = "nana") {
  run_all(NULL);
}
GB_TEST(gpu, nvidia_alone, .ranks = 3, .vendors = "nnn") {
  run_all(NULL);
}
GB_TEST(gpu, amd_alone, .ranks = 2, .vendors = "aa") {
  run_all(NULL);
}
GB_TEST(gpu, over_two_links, .ranks = 4, .vendors = "nnaa") {
  run_all("sharded-bridge");
}
GB_TEST(gpu, flat, .ranks = 4, .vendors = "nnaa") {
  run_all("flat");
}
GB_TEST(gpu, one_hardware_queue, .ranks = 4, .vendors = "nnaa") {
  setenv("FAKE_GPU_QUEUES", "1", 1);
  run_all(NULL);
}
GB_TEST(gpu, delays, .ranks = 4, .vendors = "nnaa", .timeout_ms = 60000) {
  setenv("FAKE_GPU_SEED", "7", 1);
  run_all(NULL);
}
/* The ring comes round many times in each call. */
GB_TEST(gpu, little_pinned_memory, .ranks = 4, .vendors = "nnaa") {
  setenv("GPUBRIDGE_STAGING_BYTES", "65536", 1);
  run_all(NULL);
}
