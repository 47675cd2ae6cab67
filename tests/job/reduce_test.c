/* Reduces onto one rank and reductions with a factor, in whole jobs: the result
 * is exact on every layout and policy, called sync and async, the buffers that
 * a call must not write stay as they are, ranks that disagree learn it at once,
 * and a refused call leaves the job usable (S079, S081, S027, S032, S034). */
#include "job/job.h"
#include "job/layouts.h"
#include "job/values.h"

static const gb_dtype dtypes[] = {GB_INT32,        GB_INT64,   GB_FLOAT16,
                                  GB_BFLOAT16,     GB_FLOAT32, GB_FLOAT64,
                                  GB_FLOAT8_E4M3FN};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

static double reduced(size_t i, gb_dtype dtype, gb_redop op) {
  double sum = 0, most = 0;
  for (int r = 0; r < gb_world(); r++) {
    sum += value_of(r, i);
    most = fmax(most, value_of(r, i));
  }
  if (op == GB_MAX) return most;
  if (op == GB_SUM) return sum;
  return dtype == GB_FLOAT64 ? sum / gb_world() : (float)(sum / gb_world());
}

static void fill(void *data, size_t n, gb_dtype dtype) {
  put_own(data, n, dtype);
}

static void one_reduce(gb_group *group, void *data, size_t n, gb_dtype dtype,
                       gb_redop op, int root, bool async) {
  gb_buffer buffer = {data, n, dtype};
  gb_work *work = NULL;
  gb_error error;
  fill(data, n, dtype);
  must_end(gb_reduce(group, &buffer, op, root, async ? &work : NULL, &error),
           &work, &error);
  for (size_t i = 0, k = to_check(data, n, dtype); i < k; i++)
    check(data, i, dtype,
          gb_rank() == root ? reduced(i, dtype, op) : value_of(gb_rank(), i),
          gb_rank() == root ? "reduce" : "another rank's buffer");
}

/* A factor of its own for each rank; sums are exact in float32. */
static double factor_of(int rank) {
  return 0.5 * (rank % 4 + 1);
}

static double scaled(size_t i) {
  double sum = 0;
  for (int r = 0; r < gb_world(); r++) sum += factor_of(r) * value_of(r, i);
  return sum;
}

static void one_scaled(gb_group *group, uint8_t *data, uint8_t *all, size_t n,
                       gb_dtype dtype, int root, bool async) {
  size_t world = (size_t)gb_world(), bytes = gb_dtype_bytes(dtype);
  size_t first = n * (size_t)gb_rank();
  gb_buffer small = {data, n, dtype}, large = {all, n * world, dtype};
  gb_work *work = NULL, **work_p = async ? &work : NULL;
  double factor = factor_of(gb_rank());
  gb_error error;
  fill(data, n, dtype);
  must_end(gb_all_reduce_scaled(group, &small, factor, work_p, &error), &work,
           &error);
  for (size_t i = 0, k = to_check(data, n, dtype); i < k; i++)
    check(data, i, dtype, scaled(i), "all_reduce_scaled");
  fill(data, n, dtype);
  must_end(gb_reduce_scaled(group, &small, factor, root, work_p, &error), &work,
           &error);
  for (size_t i = 0, k = to_check(data, n, dtype); i < k; i++)
    check(data, i, dtype,
          gb_rank() == root ? scaled(i) : value_of(gb_rank(), i),
          "reduce_scaled");
  /* Apart, and with the output in the input. */
  for (int inside = 0; inside < 2; inside++) {
    if (inside) small.data = all + first * bytes;
    fill(all, n * world, dtype);
    must_end(
        gb_reduce_scatter_scaled(group, &small, &large, factor, work_p, &error),
        &work, &error);
    for (size_t i = 0, k = to_check(small.data, n, dtype); i < k; i++)
      check(small.data, i, dtype, scaled(first + i), "reduce_scatter_scaled");
    check_but(all, n * world, first, inside ? first + n : first, dtype,
              "its input");
  }
}

static void all_shapes(const char *policy, const char *bridge) {
  static const size_t counts[] = {0, 1, 1025, 70001};
  static const gb_redop ops[] = {GB_SUM, GB_AVG, GB_MAX};
  if (bridge) setenv("GPUBRIDGE_BRIDGE", bridge, 1);
  setenv("GPUBRIDGE_CHUNK_BYTES", "64K", 1);
  gb_job *job = must_open(60000, policy);
  gb_group *group = gb_job_world(job);
  uint8_t *data = malloc(70001 * 8);
  uint8_t *all = malloc(70001 * 8 * (size_t)gb_world());
  int turn = 0;
  for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
    for (size_t t = 0; t < DTYPES; t++) {
      gb_dtype dtype = dtypes[t];
      if (counts[c] > 5000 && dtype != GB_FLOAT16 && dtype != GB_FLOAT32)
        continue;
      int root = turn++ % gb_world();
      for (size_t o = 0; o < 3; o++)
        if (gb_redop_supported(ops[o], dtype))
          one_reduce(group, data, counts[c], dtype, ops[o],
                     (root + (int)o) % gb_world(), turn % 2);
      if (gb_redop_supported(GB_PREMUL_SUM, dtype) && dtype != GB_FLOAT8_E4M3FN)
        one_scaled(group, data, all, counts[c], dtype, root, turn % 2);
    }
  free(data);
  free(all);
  must_close(job);
}

#define LAYOUT(name, n, letters)                                 \
  GB_TEST(reduce, name##_auto, .ranks = n, .vendors = letters,   \
          .timeout_ms = 120000) {                                \
    all_shapes("auto", NULL);                                    \
  }                                                              \
  GB_TEST(reduce, name##_bridge, .ranks = n, .vendors = letters, \
          .timeout_ms = 120000) {                                \
    all_shapes(NULL, NULL);                                      \
  }                                                              \
  GB_TEST(reduce, name##_flat, .ranks = n, .vendors = letters,   \
          .timeout_ms = 120000) {                                \
    all_shapes("flat", NULL);                                    \
  }

EACH_LAYOUT(LAYOUT)
GB_TEST(reduce, two_and_two_tcp, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 120000) {
  all_shapes(NULL, "tcp");
}
GB_TEST(reduce, three_islands_auto, .ranks = 7, .vendors = "nnaaann",
        .timeout_ms = 120000) {
  name_three_islands();
  all_shapes(NULL, NULL);
}

/* ---- factors ---- */

/* The unscaled sum would overflow, the scaled one fits; a float64 factor keeps
 * its last bit; NaN and infinity come out as arithmetic says. */
GB_TEST(reduce, factors, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(20000, NULL);
  gb_group *group = gb_job_world(job);
  uint16_t half = (uint16_t)bits_of(60000, 10, 15), want = half;
  gb_buffer buffer = {&half, 1, GB_FLOAT16};
  MUST(gb_all_reduce_scaled(group, &buffer, 0.25, NULL, error));
  GB_CHECK_INT(half, want);
  double fine = 1, step = ldexp(1, -40);
  buffer = (gb_buffer){&fine, 1, GB_FLOAT64};
  MUST(gb_all_reduce_scaled(group, &buffer, 1 + step, NULL, error));
  GB_CHECK(fine == 4 + 4 * step);
  float value = (float)(gb_rank() + 1);
  buffer = (gb_buffer){&value, 1, GB_FLOAT32};
  MUST(gb_all_reduce_scaled(group, &buffer, 1, NULL, error));
  GB_CHECK(value == 10);
  MUST(gb_all_reduce_scaled(group, &buffer, gb_rank() == 2 ? NAN : 1, NULL,
                            error));
  GB_CHECK(isnan(value));
  value = 1;
  MUST(gb_all_reduce_scaled(group, &buffer, gb_rank() == 3 ? INFINITY : 1, NULL,
                            error));
  GB_CHECK(isinf(value));
  must_sum(job, 1);
  must_close(job);
}

/* ---- refused ---- */

GB_TEST(reduce, refused_arguments, .ranks = 2, .vendors = "na") {
  gb_job *job = must_open(20000, NULL);
  gb_group *group = gb_job_world(job);
  int32_t values[4] = {0};
  gb_buffer ints = {values, 2, GB_INT32}, small = {values + 3, 1, GB_INT32};
  gb_buffer bad = {values, 1, (gb_dtype)77};
  gb_error error;
  must_be_refused(gb_reduce(group, &ints, GB_SUM, 2, NULL, &error),
                  GB_ERR_ARGUMENT, &error, "destination rank is 2");
  must_be_refused(gb_reduce(group, &ints, GB_SUM, -1, NULL, &error),
                  GB_ERR_ARGUMENT, &error, "from 0 to 1");
  must_be_refused(gb_reduce(group, NULL, GB_SUM, 0, NULL, &error),
                  GB_ERR_ARGUMENT, &error, "buffer is NULL");
  must_be_refused(gb_reduce(group, &bad, GB_SUM, 0, NULL, &error), GB_ERR_TYPE,
                  &error, "dtype code 77");
  must_be_refused(gb_reduce(group, &ints, GB_PREMUL_SUM, 0, NULL, &error),
                  GB_ERR_ARGUMENT, &error, "factor");
  must_be_refused(gb_all_reduce_scaled(group, &ints, 2, NULL, &error),
                  GB_ERR_ARGUMENT, &error, "premul_sum of int32");
  must_be_refused(gb_reduce_scaled(group, &ints, 2, 0, NULL, &error),
                  GB_ERR_ARGUMENT, &error, "premul_sum of int32");
  must_be_refused(
      gb_reduce_scatter_scaled(group, &small, &ints, 2, NULL, &error),
      GB_ERR_ARGUMENT, &error, "premul_sum of int32");
  must_sum(job, 3);
  must_close(job);
}

/* ---- ranks that disagree ---- */

/* Rank `odd` calls with another root, count or reduction. */
static void disagree(int odd, int root, size_t count, gb_redop op,
                     const char *a, const char *b) {
  gb_job *job = must_open(20000, NULL);
  must_sum(job, 2);
  meet(0);
  float data[8] = {1};
  bool other = gb_rank() == odd;
  gb_buffer buffer = {data, other ? count : 4, GB_FLOAT32};
  gb_error error;
  double start = test_now();
  gb_status status = gb_reduce(gb_job_world(job), &buffer, other ? op : GB_SUM,
                               other ? root : 0, NULL, &error);
  /* Who only gives may be done before it can know. */
  if (status == GB_OK) status = gb_barrier(gb_job_world(job), NULL, &error);
  must_fail(status, &error, start, 8, a, b);
  must_close(job);
}
GB_TEST(reduce, another_root, .ranks = 4, .vendors = "nnaa") {
  disagree(2, 1, 4, GB_SUM, "float32, sum onto rank 0",
           "float32, sum onto rank 1");
}
GB_TEST(reduce, another_root_in_one_island, .ranks = 2, .vendors = "nn") {
  disagree(1, 1, 4, GB_SUM, "onto rank 0", "onto rank 1");
}
GB_TEST(reduce, another_count, .ranks = 4, .vendors = "nnaa") {
  disagree(3, 0, 5, GB_SUM, "reduce number 2 of 4", "reduce number 2 of 5");
}
GB_TEST(reduce, another_reduction, .ranks = 4, .vendors = "nnaa") {
  disagree(1, 0, 4, GB_MAX, "sum onto", "max onto");
}

/* The factor is each rank's own; that the call has one is not. */
GB_TEST(reduce, scaled_against_plain, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(20000, NULL);
  float value = 1;
  gb_buffer buffer = {&value, 1, GB_FLOAT32};
  gb_error error;
  double start = test_now();
  gb_group *group = gb_job_world(job);
  gb_status status =
      gb_rank() == 2 ? gb_all_reduce(group, &buffer, GB_SUM, NULL, &error)
                     : gb_all_reduce_scaled(group, &buffer, 1, NULL, &error);
  must_fail(status, &error, start, 8, "float32, sum", "float32, premul_sum");
  must_close(job);
}
