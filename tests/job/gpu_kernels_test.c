/* Jobs on fake GPUs whose arithmetic our own kernels do: reductions that no
 * vendor's library has (bitwise, complex, 16-bit integers, bool), exact on
 * every rank and with the bits of a job on CPU; work on one rank's elements on
 * the device instead of the host, with the same bits; nothing extra in a steady
 * call, whatever kernel it launches, with code that comes to devices lazily. */
#include "job/gpu.h"

#include "device/host/reduce.h"
#include "fakes/fakes.h"
#include "job/values.h"

#include <dlfcn.h>

static gb_group *world;

/* Any bits for whole numbers, small values for others. */
static void fill(pair p, gb_dtype dtype, size_t n, int rank) {
  gbi_class class = gbi_dtype_class(dtype);
  uint64_t state = 0x9e3779b97f4a7c15u * (uint64_t)(rank + 1);
  for (size_t i = 0; i < n; i++) put(p.host, i, dtype, value_of(rank, i));
  if (class != GBI_CLASS_INTEGER && class != GBI_CLASS_BOOL) return;
  for (size_t i = 0; i < n * gb_dtype_bytes(dtype); i++) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    ((uint8_t *)p.host)[i] = (uint8_t)(state >> 33);
    if (class == GBI_CLASS_BOOL) ((uint8_t *)p.host)[i] &= 1;
  }
}

/* What the ranks' elements give in their order. */
static uint8_t *expect(pair p, gb_dtype dtype, gb_redop op, size_t n) {
  size_t bytes = n * gb_dtype_bytes(dtype);
  uint8_t *want = malloc(bytes);
  gb_redop what = op == GB_AVG ? GB_SUM : op;
  GB_CHECK(want);
  for (int r = 0; r < gb_world(); r++) {
    fill(p, dtype, n, r);
    if (r)
      gbi_reduce_kernel(dtype, what)(want, p.host, n);
    else
      memcpy(want, p.host, bytes);
  }
  if (op == GB_AVG) gbi_divide(want, n, dtype, gb_world());
  return want;
}

static void must_equal(pair p, const uint8_t *want, size_t bytes,
                       gb_dtype dtype, gb_redop op) {
  download(p);
  for (size_t i = 0; i < bytes; i++)
    if (((uint8_t *)p.host)[i] != want[i])
      gb_test_fail(__FILE__, __LINE__, "%s of %s: byte %zu is %02x, not %02x",
                   gb_redop_name(op), gb_dtype_name(dtype), i,
                   ((uint8_t *)p.host)[i], want[i]);
}

static void all_reduce(gb_dtype dtype, gb_redop op, size_t n) {
  size_t bytes = n * gb_dtype_bytes(dtype);
  pair p = new_pair(bytes);
  gb_buffer buffer = {p.device, n, dtype};
  uint8_t *want = expect(p, dtype, op, n);
  fill(p, dtype, n, gb_rank());
  upload(p);
  MUST(gb_all_reduce(world, &buffer, op, NULL, error));
  must_equal(p, want, bytes, dtype, op);
  free(want);
  free_pair(p);
}

static void reduce(gb_dtype dtype, gb_redop op, size_t n, int root) {
  size_t bytes = n * gb_dtype_bytes(dtype);
  pair p = new_pair(bytes);
  gb_buffer buffer = {p.device, n, dtype};
  uint8_t *want = expect(p, dtype, op, n);
  fill(p, dtype, n, gb_rank());
  upload(p);
  if (gb_rank() != root) memcpy(want, p.host, bytes);
  MUST(gb_reduce(world, &buffer, op, root, NULL, error));
  must_equal(p, want, bytes, dtype, op);
  free(want);
  free_pair(p);
}

static void reduce_scatter(gb_dtype dtype, gb_redop op, size_t n) {
  size_t size = gb_dtype_bytes(dtype), all = n * (size_t)gb_world();
  pair in = new_pair(all * size), out = new_pair(n * size);
  gb_buffer from = {in.device, all, dtype}, to = {out.device, n, dtype};
  uint8_t *want = expect(in, dtype, op, all);
  fill(in, dtype, all, gb_rank());
  upload(in);
  MUST(gb_reduce_scatter(world, &to, &from, op, NULL, error));
  must_equal(out, want + (size_t)gb_rank() * n * size, n * size, dtype, op);
  free(want);
  free_pair(in);
  free_pair(out);
}

static void check_all(gb_dtype dtype, gb_redop op, size_t n) {
  if (!gb_redop_supported(op, dtype)) return;
  all_reduce(dtype, op, n);
  reduce(dtype, op, n, (int)(n % (size_t)gb_world()));
  reduce_scatter(dtype, op, n);
}

static void run_all(const char *policy) {
  static const gb_dtype lacking[] = {GB_INT16, GB_UINT16, GB_BOOL, GB_COMPLEX64,
                                     GB_COMPLEX128};
  static const gb_redop bitwise[] = {GB_BAND, GB_BOR, GB_BXOR};
  static const gb_dtype whole[] = {GB_INT8,   GB_UINT8, GB_INT32,
                                   GB_UINT32, GB_INT64, GB_UINT64};
  static const size_t counts[] = {1, 1000, 9001};
  setenv("GPUBRIDGE_CHUNK_BYTES", "4096", 1);
  setenv("GPUBRIDGE_KERNELS", "require", 1);
  gb_job *job = open_on_gpu(20000, policy);
  world = gb_job_world(job);
  for (size_t i = 0; i < sizeof lacking / sizeof lacking[0]; i++)
    for (int op = 0; op < GB_PREMUL_SUM; op++)
      check_all(lacking[i], (gb_redop)op, counts[(i + (size_t)op) % 3]);
  for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++)
    for (int op = 0; op < 3; op++)
      check_all(whole[i], bitwise[op], counts[(i + (size_t)op) % 3]);
  close_on_gpu(job);
}

GB_TEST(gpu_kernels, two_and_two, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  run_all(NULL);
}
GB_TEST(gpu_kernels, one_and_one, .ranks = 2, .vendors = "na") {
  run_all(NULL);
}
GB_TEST(gpu_kernels, one_and_three, .ranks = 4, .vendors = "naaa",
        .timeout_ms = 60000) {
  run_all(NULL);
}
GB_TEST(gpu_kernels, nvidia_alone, .ranks = 3, .vendors = "nnn",
        .timeout_ms = 60000) {
  run_all(NULL);
}
GB_TEST(gpu_kernels, over_two_links, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  run_all("sharded-bridge");
}
GB_TEST(gpu_kernels, flat, .ranks = 4, .vendors = "nnaa", .timeout_ms = 60000) {
  run_all("flat");
}
GB_TEST(gpu_kernels, one_hardware_queue, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  setenv("FAKE_GPU_QUEUES", "1", 1);
  run_all(NULL);
}
GB_TEST(gpu_kernels, delays, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 120000) {
  setenv("FAKE_GPU_SEED", "11", 1);
  run_all(NULL);
}

/* Longer than a piece of the device memory that rows are gathered in. */
GB_TEST(gpu_kernels, many_pieces, .ranks = 3, .vendors = "nnn",
        .timeout_ms = 60000) {
  gb_job *job = open_on_gpu(20000, NULL);
  world = gb_job_world(job);
  all_reduce(GB_INT16, GB_SUM, (9 << 20) + 4);
  reduce(GB_UINT32, GB_BXOR, (5 << 20) + 3, 1);
  close_on_gpu(job);
}

/* Parts are shared out among three and four: with and without a rest. */
GB_TEST(gpu_kernels, shared_out, .ranks = 4, .vendors = "nnnn",
        .timeout_ms = 60000) {
  gb_job *job = open_on_gpu(20000, NULL);
  world = gb_job_world(job);
  all_reduce(GB_UINT16, GB_SUM, 4 * 8192);
  all_reduce(GB_UINT16, GB_SUM, 4 * 8192 - 1);
  all_reduce(GB_COMPLEX128, GB_SUM, 4 * 1024 + 3);
  all_reduce(GB_INT64, GB_BXOR, 70001);
  close_on_gpu(job);
}

/* ---- work on the rank ---- */

typedef enum scaling { SUM, AVG, SCALED } scaling;

/* The result's bits, of a job with this much on the host. */
static void scale(const char *combine, gb_dtype dtype, scaling how, size_t n,
                  uint8_t *result) {
  gb_error error;
  setenv("GPUBRIDGE_COMBINE", combine, 1);
  gb_job *job = open_on_gpu(20000, NULL);
  pair p = new_pair(n * gb_dtype_bytes(dtype));
  gb_buffer buffer = {p.device, n, dtype};
  for (size_t i = 0; i < n; i++)
    put(p.host, i, dtype, value_of(gb_rank(), i) * (1 + (double)(i % 5) / 4));
  upload(p);
  gb_status status =
      how == SCALED ? gb_all_reduce_scaled(gb_job_world(job), &buffer,
                                           1.0 / (3 + gb_rank()), NULL, &error)
                    : gb_all_reduce(gb_job_world(job), &buffer,
                                    how == AVG ? GB_AVG : GB_SUM, NULL, &error);
  if (status != GB_OK) gb_test_fail(__FILE__, __LINE__, "%s", error.text);
  download(p);
  memcpy(result, p.host, p.bytes);
  free_pair(p);
  close_on_gpu(job);
}

static void same_bits(gb_dtype dtype, scaling how, size_t n) {
  size_t bytes = n * gb_dtype_bytes(dtype);
  uint8_t *host = malloc(bytes), *kernels = malloc(bytes);
  GB_CHECK(host && kernels);
  scale("host", dtype, how, n, host);
  scale("gpu", dtype, how, n, kernels);
  for (size_t i = 0; i < bytes; i++)
    if (host[i] != kernels[i])
      gb_test_fail(__FILE__, __LINE__,
                   "%s, scaling %d: byte %zu is %02x, on the host %02x",
                   gb_dtype_name(dtype), (int)how, i, kernels[i], host[i]);
  free(host);
  free(kernels);
}

/* An island of one rank: the vendor's library scales nothing. */
GB_TEST(gpu_kernels, scaling_is_the_hosts, .ranks = 3, .vendors = "nna",
        .timeout_ms = 60000) {
  static const gb_dtype types[] = {GB_FLOAT16, GB_BFLOAT16, GB_FLOAT32,
                                   GB_FLOAT8_E4M3FN, GB_FLOAT8_E5M2};
  setenv("GPUBRIDGE_CHUNK_BYTES", "4096", 1);
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
    for (int how = SUM; how <= SCALED; how++)
      same_bits(types[i], (scaling)how, 5000);
  same_bits(GB_COMPLEX64, AVG, 5000);
}

/* The case for a real card, too. */
GB_TEST(gpu_kernels, scaling_of_one_and_one, .ranks = 2, .vendors = "na",
        .timeout_ms = 60000) {
  same_bits(GB_BFLOAT16, SCALED, 5000);
  same_bits(GB_FLOAT16, AVG, 5000);
  same_bits(GB_FLOAT8_E4M3FN, SUM, 5000);
}

GB_TEST(gpu_kernels, payloads_are_the_hosts, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  setenv("GPUBRIDGE_CHUNK_BYTES", "4096", 1);
  for (int fp8 = 0; fp8 < 2; fp8++) {
    setenv("GPUBRIDGE_BRIDGE_COMPRESSION", fp8 ? "fp8" : "bf16", 1);
    same_bits(GB_FLOAT32, SUM, 20000);
    same_bits(GB_FLOAT16, AVG, 5000);
  }
}

/* ---- what a steady call costs ---- */

static void count(fake_gpu_counts *counts) {
  char path[700];
  fake_path(is_amd() ? "hip/libamdhip64.so.6" : "cuda/libcuda.so.1", path,
            sizeof path);
  void *handle = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  GB_CHECK(handle);
  void (*get)(fake_gpu_counts *) =
      (void (*)(fake_gpu_counts *))dlsym(handle, "fake_gpu_count");
  GB_CHECK(get);
  get(counts);
}

GB_TEST(gpu_kernels, steady_calls_cost_nothing_extra, .ranks = 4,
        .vendors = "nnaa", .timeout_ms = 60000) {
  static const gb_redop ops[] = {GB_BAND, GB_BOR, GB_BXOR};
  enum { N = 3000 };
  fake_gpu_counts before, after;
  setenv("FAKE_GPU_PROFILE", "lazy", 1);
  gb_job *job = open_on_gpu(20000, NULL);
  pair p = new_pair(N * 4);
  gb_buffer buffer = {p.device, N, GB_INT32};
  fill(p, GB_INT32, N, gb_rank());
  upload(p);
  /* The first makes what calls of its kind need; the others' kernels were
   * never launched. */
  MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_BAND, NULL, error));
  download(p);
  for (int i = 0; i < 2; i++) {
    count(&before);
    for (int k = 0; k < 3; k++)
      MUST(gb_all_reduce(gb_job_world(job), &buffer, ops[k], NULL, error));
    count(&after);
    GB_CHECK_INT(after.blocking, before.blocking);
    if (i) GB_CHECK_INT(after.allocations, before.allocations);
    download(p);
  }
  close_on_gpu(job);
}
