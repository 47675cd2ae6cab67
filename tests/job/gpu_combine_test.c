/* What comes over the bridge is added up by kernels on the GPU, and compressed
 * sums are encoded there, with feedback: bit for bit what a job does whose host
 * has that work, over any number of islands, types, odd values, call after call
 * on the same buffers, with little pinned memory, delays and one hardware
 * queue. Nothing extra in a steady call; auto takes it up from the size that
 * docs/gpu-engine.md says, and only where every rank can. Captured calls too.
 * In builds with fault points, each wait is left out once, and the fakes'
 * clocks must notice. */
#include "job/gpu_graph.h"

#include <signal.h>
#include <string.h>

/* ---- the same bits ---- */

enum { MOST = 20000, RESULTS = 64 << 20 };

/* Results of one job, one behind the other. */
typedef struct results {
  uint8_t *bytes;
  size_t used;
} results;

static uint64_t noise(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

/* Numbers of many sizes, and some that are odd. */
static void fill_odd(pair p, gb_dtype dtype, size_t n, int rank, int round) {
  static const float odd[] = {0.0f, -0.0f, 1e-42f, -3e38f, 3e38f};
  uint64_t state = (uint64_t)(rank * 1000 + round + 1) * 77777;
  gbi_class class = gbi_dtype_class(dtype);
  size_t size = gb_dtype_bytes(dtype);
  for (size_t i = 0; i < n * size / 4; i++) {
    uint32_t word = (uint32_t)noise(&state) << 1 ^ (uint32_t)noise(&state);
    float value = (float)((int)(word % 20001) - 10000) / (float)(1 + i % 9973);
    if (i % 1009 < 5 && i < n * size / 8) value = odd[i % 1009];
    if (dtype == GB_FLOAT32 || dtype == GB_COMPLEX64)
      memcpy((char *)p.host + 4 * i, &value, 4);
    else if (class == GBI_CLASS_INTEGER)
      memcpy((char *)p.host + 4 * i, &word, 4);
  }
  for (size_t i = 0; i < n && dtype == GB_FLOAT64; i++)
    ((double *)p.host)[i] = (double)((int)(noise(&state) % 20001) - 10000) / 7;
  /* Any bits: not a number, too. */
  for (size_t i = 0; i < n && size == 2 && class == GBI_CLASS_FLOATING; i++)
    ((uint16_t *)p.host)[i] = (uint16_t)noise(&state);
  for (size_t i = 0; i < n * size && size == 1; i++)
    ((uint8_t *)p.host)[i] = (uint8_t)noise(&state);
  upload(p);
}

/* Half types that stay numbers. */
static void fill_halves(pair p, gb_dtype dtype, size_t n, int rank, int round) {
  uint64_t state = (uint64_t)(rank * 1000 + round + 1) * 77777;
  for (size_t i = 0; i < n; i++) {
    uint16_t high = dtype == GB_BFLOAT16 ? 0x3f00 : 0x3800;
    ((uint16_t *)p.host)[i] =
        (uint16_t)(high | (noise(&state) & 0xff) | (noise(&state) & 1) << 15);
  }
  upload(p);
}

static void keep(results *r, pair p, size_t bytes) {
  download(p);
  GB_CHECK(r->used + bytes <= RESULTS);
  memcpy(r->bytes + r->used, p.host, bytes);
  r->used += bytes;
}

static void reduce_all(gb_group *world, gb_dtype dtype, gb_redop op, size_t n,
                       results *r) {
  size_t size = gb_dtype_bytes(dtype), all = n * (size_t)gb_world();
  pair one = new_pair(n * size), many = new_pair(all * size);
  gb_buffer small = {one.device, n, dtype}, large = {many.device, all, dtype};
  int root = (int)(n % (size_t)gb_world());
  fill_odd(one, dtype, n, gb_rank(), 0);
  MUST(gb_all_reduce(world, &small, op, NULL, error));
  keep(r, one, one.bytes);
  fill_odd(one, dtype, n, gb_rank(), 1);
  MUST(gb_reduce(world, &small, op, root, NULL, error));
  keep(r, one, one.bytes);
  fill_odd(many, dtype, all, gb_rank(), 2);
  MUST(gb_reduce_scatter(world, &small, &large, op, NULL, error));
  keep(r, one, one.bytes);
  free_pair(one);
  free_pair(many);
}

/* Everything that is summed, by a job that combines there. Returns how many
 * kernels it launched. */
static uint64_t sums(const char *combine, results *r) {
  static const gb_dtype types[] = {GB_FLOAT32, GB_FLOAT16,      GB_BFLOAT16,
                                   GB_FLOAT64, GB_INT32,        GB_COMPLEX64,
                                   GB_UINT8,   GB_FLOAT8_E4M3FN};
  static const gb_redop ops[] = {GB_SUM, GB_AVG, GB_MAX, GB_PRODUCT};
  setenv("GPUBRIDGE_COMBINE", combine, 1);
  gb_job *job = open_on_gpu(20000, NULL);
  uint64_t before = counts_now().kernels;
  for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
    for (size_t o = 0; o < sizeof ops / sizeof ops[0]; o++)
      if (gb_redop_supported(ops[o], types[t]))
        reduce_all(gb_job_world(job), types[t], ops[o],
                   (t + o) % 2 ? 5003 : MOST, r);
  uint64_t launched = counts_now().kernels - before;
  close_on_gpu(job);
  return launched;
}

static void must_be_equal(const results *host, const results *device) {
  GB_CHECK_INT(host->used, device->used);
  for (size_t i = 0; i < host->used; i++)
    if (host->bytes[i] != device->bytes[i])
      gb_test_fail(__FILE__, __LINE__,
                   "byte %zu of all is %02x, on the host "
                   "%02x",
                   i, device->bytes[i], host->bytes[i]);
}

static void same_sums(void) {
  results host = {malloc(RESULTS), 0}, device = {malloc(RESULTS), 0};
  GB_CHECK(host.bytes && device.bytes);
  setenv("GPUBRIDGE_CHUNK_BYTES", "4096", 1);
  setenv("GPUBRIDGE_KERNELS", "require", 1);
  (void)sums("host", &host);
  uint64_t launched = sums("gpu", &device);
  must_be_equal(&host, &device);
  if (gb_rank() == 0) GB_CHECK(launched > 500);
  free(host.bytes);
  free(device.bytes);
}

GB_TEST(gpu_combine, sums_of_one_and_one, .ranks = 2, .vendors = "na",
        .timeout_ms = 120000) {
  same_sums();
}
GB_TEST(gpu_combine, sums_of_two_and_two, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 120000) {
  same_sums();
}
/* Order matters here. */
GB_TEST(gpu_combine, sums_of_three_islands, .ranks = 4, .vendors = "nana",
        .timeout_ms = 120000) {
  static const char *const names[] = {"x", "y", "z", "y"};
  setenv("GPUBRIDGE_ISLAND", names[gb_rank()], 1);
  same_sums();
}
GB_TEST(gpu_combine, delays_and_little_memory, .ranks = 3, .vendors = "naa",
        .timeout_ms = 120000) {
  setenv("FAKE_GPU_SEED", "5", 1);
  setenv("GPUBRIDGE_STAGING_BYTES", "65536", 1);
  same_sums();
}
GB_TEST(gpu_combine, one_hardware_queue, .ranks = 2, .vendors = "na",
        .timeout_ms = 120000) {
  setenv("FAKE_GPU_QUEUES", "1", 1);
  same_sums();
}

/* ---- payloads ---- */

/* Calls on two buffers in turn: what was lost of each comes back to it. */
static void code(const char *combine, gb_dtype dtype, results *r) {
  enum { ROUNDS = 4, N = 9001 };
  pair p[2], parts;
  setenv("GPUBRIDGE_COMBINE", combine, 1);
  gb_job *job = open_on_gpu(20000, NULL);
  gb_group *world = gb_job_world(job);
  size_t size = gb_dtype_bytes(dtype), all = 3000 * (size_t)gb_world();
  for (int i = 0; i < 2; i++) p[i] = new_pair(N * size);
  parts = new_pair(all * size);
  for (int round = 0; round < ROUNDS; round++) {
    gb_buffer from = {parts.device, all, dtype};
    for (int i = 0; i < 2; i++) {
      gb_buffer buffer = {p[i].device, N, dtype};
      if (size == 2)
        fill_halves(p[i], dtype, N, gb_rank(), i);
      else
        fill_odd(p[i], dtype, N, gb_rank(), i);
      MUST(gb_all_reduce(world, &buffer, i ? GB_AVG : GB_SUM, NULL, error));
      keep(r, p[i], p[i].bytes);
    }
    gb_buffer to = {p[0].device, 3000, dtype};
    if (size == 2)
      fill_halves(parts, dtype, all, gb_rank(), round);
    else
      fill_odd(parts, dtype, all, gb_rank(), round);
    MUST(gb_reduce_scatter(world, &to, &from, GB_SUM, NULL, error));
    keep(r, p[0], 3000 * size);
  }
  for (int i = 0; i < 2; i++) free_pair(p[i]);
  free_pair(parts);
  close_on_gpu(job);
}

static void same_payloads(void) {
  static const gb_dtype types[] = {GB_FLOAT32, GB_FLOAT16, GB_BFLOAT16,
                                   GB_FLOAT64};
  setenv("GPUBRIDGE_CHUNK_BYTES", "4096", 1);
  for (int fp8 = 0; fp8 < 2; fp8++)
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
      results host = {malloc(RESULTS), 0}, device = {malloc(RESULTS), 0};
      GB_CHECK(host.bytes && device.bytes);
      setenv("GPUBRIDGE_BRIDGE_COMPRESSION", fp8 ? "fp8" : "bf16", 1);
      code("host", types[t], &host);
      code("auto", types[t], &device);
      must_be_equal(&host, &device);
      free(host.bytes);
      free(device.bytes);
    }
}

GB_TEST(gpu_combine, payloads_of_one_and_one, .ranks = 2, .vendors = "na",
        .timeout_ms = 120000) {
  same_payloads();
}
GB_TEST(gpu_combine, payloads_of_two_and_one, .ranks = 3, .vendors = "naa",
        .timeout_ms = 120000) {
  setenv("FAKE_GPU_SEED", "9", 1);
  same_payloads();
}
/* The last payloads of a call are shorter, and lie in others' places. */
GB_TEST(gpu_combine, payloads_of_three_islands, .ranks = 4, .vendors = "nana",
        .timeout_ms = 120000) {
  static const char *const names[] = {"x", "y", "z", "y"};
  setenv("GPUBRIDGE_ISLAND", names[gb_rank()], 1);
  same_payloads();
}
GB_TEST(gpu_combine, payloads_without_feedback, .ranks = 2, .vendors = "na",
        .timeout_ms = 120000) {
  setenv("GPUBRIDGE_COMPRESSION_RESIDUALS", "0", 1);
  same_payloads();
}

/* Feedback is there: a value that is lost each time comes through in the end.
 * Two buffers of which the bound lets one keep it lose it again and again. */
static void lose(const char *bound, bool comes_through) {
  enum { N = 4096, ROUNDS = 8 };
  pair p[2];
  setenv("GPUBRIDGE_BRIDGE_COMPRESSION", "bf16", 1);
  setenv("GPUBRIDGE_COMPRESSION_RESIDUALS", bound, 1);
  gb_job *job = open_on_gpu(20000, NULL);
  for (int i = 0; i < 2; i++) p[i] = new_pair(N * 4);
  int more = 0;
  for (int round = 0; round < ROUNDS; round++)
    for (int i = 0; i < 2; i++) {
      gb_buffer buffer = {p[i].device, N, GB_FLOAT32};
      for (int k = 0; k < N; k++) ((float *)p[i].host)[k] = 1.001f;
      upload(p[i]);
      MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, error));
      download(p[i]);
      more += ((float *)p[i].host)[N - 1] > 2;
    }
  GB_CHECK_INT(more > 0, comes_through);
  close_on_gpu(job);
}
GB_TEST(gpu_combine, feedback_comes_through, .ranks = 2, .vendors = "na") {
  lose("1M", true);
}
GB_TEST(gpu_combine, feedback_has_a_bound, .ranks = 2, .vendors = "na") {
  lose("20000", false); /* one buffer's */
}

/* ---- when, and at what cost ---- */

/* Kernels that a sum of so many bytes launches. */
static uint64_t kernels_of(gb_job *job, size_t bytes) {
  pair p = new_pair(bytes);
  gb_buffer buffer = {p.device, bytes / 4, GB_FLOAT32};
  fill_odd(p, GB_FLOAT32, bytes / 4, gb_rank(), 0);
  uint64_t before = counts_now().kernels;
  MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, error));
  download(p);
  uint64_t launched = counts_now().kernels - before;
  free_pair(p);
  return launched;
}

GB_TEST(gpu_combine, auto_takes_long_sums, .ranks = 2, .vendors = "na") {
  gb_job *job = open_on_gpu(20000, NULL);
  GB_CHECK_INT(kernels_of(job, 4096), 0);
  GB_CHECK_INT(kernels_of(job, (256 << 10) - 64), 0);
  GB_CHECK_INT(kernels_of(job, 256 << 10), 1);
  close_on_gpu(job);
}

/* One rank's word or lack is enough, and nobody waits for what the others do
 * otherwise. */
GB_TEST(gpu_combine, all_ranks_or_none, .ranks = 2, .vendors = "na") {
  for (int how = 0; how < 2; how++) {
    bool first = gb_rank() == 0;
    setenv("GPUBRIDGE_COMBINE", first && !how ? "host" : "gpu", 1);
    setenv("GPUBRIDGE_KERNELS", first && how ? "off" : "auto", 1);
    gb_job *job = open_on_gpu(20000, NULL);
    GB_CHECK_INT(kernels_of(job, 1 << 20), 0);
    close_on_gpu(job);
  }
}

static void steady(const char *compression) {
  enum { N = 30000 };
  setenv("FAKE_GPU_PROFILE", "lazy", 1);
  setenv("GPUBRIDGE_COMBINE", "gpu", 1);
  setenv("GPUBRIDGE_BRIDGE_COMPRESSION", compression, 1);
  gb_job *job = open_on_gpu(20000, NULL);
  pair p = new_pair(N * 4);
  gb_buffer buffer = {p.device, N, GB_FLOAT32};
  fill_odd(p, GB_FLOAT32, N, gb_rank(), 0);
  MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, error));
  download(p);
  fake_gpu_counts before = counts_now();
  for (int k = 0; k < 3; k++)
    MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, error));
  fake_gpu_counts after = counts_now();
  GB_CHECK_INT(after.blocking, before.blocking);
  GB_CHECK_INT(after.allocations, before.allocations);
  GB_CHECK(gb_rank() % 2 || after.kernels > before.kernels);
  download(p);
  close_on_gpu(job);
}
GB_TEST(gpu_combine, steady_sums_cost_nothing_extra, .ranks = 4,
        .vendors = "nnaa", .timeout_ms = 60000) {
  steady("off");
}
GB_TEST(gpu_combine, steady_payloads_cost_nothing_extra, .ranks = 4,
        .vendors = "nnaa", .timeout_ms = 60000) {
  steady("fp8");
}

/* ---- graphs ---- */

static void must_hold(pair p, size_t n, float want) {
  download(p);
  for (size_t i = 0; i < n; i++)
    if (((float *)p.host)[i] != want)
      gb_test_fail(__FILE__, __LINE__, "element %zu is %g, not %g", i,
                   (double)((float *)p.host)[i], (double)want);
}

static void fill(pair p, float value) {
  for (size_t i = 0; i < p.bytes / 4; i++) ((float *)p.host)[i] = value;
  upload(p);
}

/* Replays among calls that are not captured. */
static void replay_sums(const char *compression) {
  enum { N = 20000 };
  setenv("GPUBRIDGE_CHUNK_BYTES", "4096", 1);
  setenv("GPUBRIDGE_COMBINE", "gpu", 1);
  setenv("GPUBRIDGE_BRIDGE_COMPRESSION", compression, 1);
  setenv("FAKE_GPU_PROFILE", "graph-memops", 0);
  gb_job *job = open_on_gpu(20000, NULL);
  make_current();
  pair p = new_pair(N * 4);
  gb_buffer buffer = {p.device, N, GB_FLOAT32};
  uint64_t before = counts_now().kernels;
  begin_capture();
  MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, error));
  void *graph = end_capture();
  if (gb_rank() == 0) GB_CHECK(counts_now().kernels > before);
  for (int i = 0; i < 5; i++) {
    fill(p, (float)(i + gb_rank() + 1));
    replay(graph);
    MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, error));
    float w = (float)gb_world();
    must_hold(p, N, w * (w * (float)(i + 1) + w * (w - 1) / 2));
  }
  destroy(graph);
  close_on_gpu(job);
}
GB_TEST(gpu_combine, replays, .ranks = 2, .vendors = "na",
        .timeout_ms = 60000) {
  replay_sums("off");
}
GB_TEST(gpu_combine, replays_of_three, .ranks = 3, .vendors = "naa",
        .timeout_ms = 60000) {
  setenv("FAKE_GPU_SEED", "4", 1);
  replay_sums("off");
}
GB_TEST(gpu_combine, replays_of_payloads, .ranks = 2, .vendors = "na",
        .timeout_ms = 60000) {
  replay_sums("bf16");
}

/* ---- what keeps order, left out ---- */

/* A failed check of the fakes aborts; sums that are wrong end it too. */
static void run_disordered(const char *compression) {
  enum { BUFFERS = 3, N = 40000 };
  pair p[BUFFERS];
  gb_work *works[BUFFERS];
  gb_error error;
  signal(SIGABRT, ends);
  setenv("GPUBRIDGE_CHUNK_BYTES", "4096", 1);
  setenv("GPUBRIDGE_STAGING_BYTES", "65536", 1);
  setenv("GPUBRIDGE_COMBINE", "gpu", 1);
  setenv("GPUBRIDGE_BRIDGE_COMPRESSION", compression, 1);
  setenv("FAKE_GPU_SEED", "3", 1);
  gb_job *job = open_on_gpu(5000, NULL);
  for (int i = 0; i < BUFFERS; i++) p[i] = new_pair(N * 4);
  for (int i = 0; i < BUFFERS; i++) fill(p[i], (float)(i + 1));
  for (int i = 0; i < BUFFERS; i++) {
    gb_buffer buffer = {p[i].device, N, GB_FLOAT32};
    if (gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, &works[i], &error) !=
        GB_OK)
      _exit(4);
  }
  for (int i = 0; i < BUFFERS; i++) MUST(gb_work_wait(works[i], 0, error));
  for (int i = 0; i < BUFFERS; i++) download(p[i]);
  for (int i = 0; i < BUFFERS; i++)
    for (size_t k = 0; k < N; k++)
      if (((float *)p[i].host)[k] != (float)(2 * (i + 1))) leave_together(5);
  leave_together(0);
}

#define LEFT_OUT(name_, compression_, fault_)                     \
  GB_TEST(gpu_combine_order, name_, .ranks = 2, .vendors = "na",  \
          .expect = "x?", .fault = fault_, .timeout_ms = 60000) { \
    run_disordered(compression_);                                 \
  }
LEFT_OUT(a_sum_before_its_row, "off", "gpu.rows@0:fail")
LEFT_OUT(a_decoding_before_its_payloads, "bf16", "gpu.rows@0:fail")
LEFT_OUT(a_copy_before_its_payload, "bf16", "gpu.payload@0:fail")
LEFT_OUT(the_end_before_the_last_sum, "off", "gpu.result@0:fail")
LEFT_OUT(the_end_before_the_last_decoding, "bf16", "gpu.result@0:fail")
/* Nothing is left out: such calls are right. */
GB_TEST(gpu_combine_order, all_there, .ranks = 2, .vendors = "na",
        .timeout_ms = 60000) {
  run_disordered("off");
}
GB_TEST(gpu_combine_order, all_there_of_payloads, .ranks = 2, .vendors = "na",
        .timeout_ms = 60000) {
  run_disordered("bf16");
}
