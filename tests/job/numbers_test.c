/* Numbers at their edges are right and equal in every bit on every rank: NaN
 * and infinities (S071), means over unequal islands (S072), halves that round
 * (S073), means whose sum overflows (S074), integers that wrap (S075), one hash
 * over runs, chunks, streams and transports (S076), edges of float32 (S077),
 * flags (S048, S078), float8 that rounds once and overflows by its type's rule,
 * and types and reductions that are not there (S083). */
#include <math.h>

#include "job/job.h"

static void reduce(gb_job *job, void *data, size_t count, gb_dtype dtype,
                   gb_redop op) {
  gb_buffer buffer = {data, count, dtype};
  MUST(gb_all_reduce(gb_job_world(job), &buffer, op, NULL, error));
}

static void both_transports(void (*body)(gb_job *job)) {
  static const char *const bridges[] = {"auto", "tcp"};
  for (int i = 0; i < 2; i++) {
    setenv("GPUBRIDGE_BRIDGE", bridges[i], 1);
    gb_job *job = must_open(30000, NULL);
    body(job);
    must_close(job);
  }
}

/* S071 */
static void nan_and_infinities(gb_job *job) {
  float v[8];
  for (int i = 0; i < 8; i++) v[i] = (float)(gb_rank() + 1);
  if (gb_rank() == 2) v[5] = NAN;
  if (gb_rank() == 0) v[6] = INFINITY;
  if (gb_rank() == 3) v[6] = -INFINITY;
  if (gb_rank() == 1) v[7] = INFINITY;
  reduce(job, v, 8, GB_FLOAT32, GB_SUM);
  for (int i = 0; i < 5; i++) GB_CHECK(v[i] == 10.0f);
  GB_CHECK(isnan(v[5]) && isnan(v[6]) && isinf(v[7]) && v[7] > 0);
  for (int op = GB_MAX; op <= GB_MIN; op++) {
    double w[3] = {gb_rank(), gb_rank() == 2 ? NAN : 1, -gb_rank()};
    reduce(job, w, 3, GB_FLOAT64, (gb_redop)op);
    GB_CHECK(w[0] == (op == GB_MAX ? 3 : 0) && isnan(w[1]));
  }
  uint16_t h[2] = {gb_rank() == 2 ? 0x7e01 : 0x3c00,
                   gb_rank() == 1 ? 0x7c00 : 0x3c00};
  reduce(job, h, 2, GB_FLOAT16, GB_SUM);
  GB_CHECK((h[0] & 0x7c00) == 0x7c00 && (h[0] & 0x3ff) && h[1] == 0x7c00);
}
GB_TEST(numbers, nan_and_infinities, .ranks = 4, .vendors = "nnaa") {
  both_transports(nan_and_infinities);
}

/* S072 */
GB_TEST(numbers, mean_over_unequal_islands, .ranks = 4, .vendors = "nnna") {
  gb_job *job = must_open(30000, NULL);
  float f = (float)(gb_rank() + 1);
  double d = gb_rank() + 1;
  static const uint16_t half[] = {0x3c00, 0x4000, 0x4200, 0x4400};
  static const uint16_t brain[] = {0x3f80, 0x4000, 0x4040, 0x4080};
  uint16_t h = half[gb_rank()], b = brain[gb_rank()];
  reduce(job, &f, 1, GB_FLOAT32, GB_AVG);
  reduce(job, &d, 1, GB_FLOAT64, GB_AVG);
  reduce(job, &h, 1, GB_FLOAT16, GB_AVG);
  reduce(job, &b, 1, GB_BFLOAT16, GB_AVG);
  GB_CHECK(f == 2.5f && d == 2.5 && h == 0x4100 && b == 0x4020);
  int32_t i = 1;
  gb_buffer buffer = {&i, 1, GB_INT32};
  gb_error error;
  GB_CHECK_INT(
      gb_all_reduce(gb_job_world(job), &buffer, GB_AVG, NULL, &error),
      GB_ERR_ARGUMENT);
  GB_CHECK_TEXT(error.text, "integers");
  must_sum(job, 1);
  must_close(job);
}

/* S073: 1 + 2^-11, 1 + 3*2^-11, 2048 + 1, 65504 + 65504, 6e-8 + 6e-8 */
static void halves_round(gb_job *job) {
  static const uint16_t a[] = {0x3c00, 0x3c00, 0x6800, 0x7bff, 0x0001};
  static const uint16_t b[] = {0x1000, 0x1600, 0x3c00, 0x7bff, 0x0001};
  static const uint16_t want[] = {0x3c00, 0x3c02, 0x6800, 0x7c00, 0x0002};
  uint16_t v[5];
  memcpy(v, gb_rank() ? b : a, sizeof v);
  reduce(job, v, 5, GB_FLOAT16, GB_SUM);
  for (int i = 0; i < 5; i++) GB_CHECK_INT(v[i], want[i]);
}
GB_TEST(numbers, halves_round, .ranks = 2, .vendors = "na") {
  both_transports(halves_round);
}

/* S074: the mean fits, the sum would not: 30000 and 65504, not infinity. */
GB_TEST(numbers, mean_that_fits, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(30000, NULL);
  enum { COUNT = 5000 };
  uint16_t v[COUNT], scattered[COUNT / 4];
  for (int i = 0; i < COUNT; i++) v[i] = i % 2 ? 0x7753 : 0x7bff;
  reduce(job, v, COUNT, GB_FLOAT16, GB_AVG);
  for (int i = 0; i < COUNT; i++)
    GB_CHECK_INT(v[i], i % 2 ? 0x7753 : 0x7bff);
  gb_buffer in = {v, COUNT, GB_FLOAT16};
  gb_buffer out = {scattered, COUNT / 4, GB_FLOAT16};
  MUST(gb_reduce_scatter(gb_job_world(job), &out, &in, GB_AVG, NULL, error));
  for (int i = 0; i < COUNT / 4; i++)
    GB_CHECK_INT(scattered[i],
                 (i + COUNT / 4 * gb_rank()) % 2 ? 0x7753 : 0x7bff);
  must_close(job);
}

/* S075 */
static void integers_wrap(gb_job *job) {
  bool second = gb_rank() == 1;
  int8_t a = 100;
  uint8_t b = second ? 100 : 200;
  int32_t c = second ? 1 : INT32_MAX;
  int64_t d = second ? 1 : INT64_C(1) << 53, e = second ? 1 : INT64_MAX;
  reduce(job, &a, 1, GB_INT8, GB_SUM);
  reduce(job, &b, 1, GB_UINT8, GB_SUM);
  reduce(job, &c, 1, GB_INT32, GB_SUM);
  reduce(job, &d, 1, GB_INT64, GB_SUM);
  reduce(job, &e, 1, GB_INT64, GB_SUM);
  GB_CHECK(a == -56 && b == 44 && c == INT32_MIN);
  GB_CHECK(d == INT64_C(9007199254740993) && e == INT64_MIN);
}
GB_TEST(numbers, integers_wrap, .ranks = 2, .vendors = "na") {
  both_transports(integers_wrap);
}

/* S077, as scalars and as long vectors of them (vector code). */
static void float_edges(gb_job *job) {
  static const uint32_t a[] = {1, 0x80000000, 0x4b800000, 0x7f7fffff};
  static const uint32_t b[] = {1, 0x80000000, 0x3f800000, 0x7f7fffff};
  static const uint32_t want[] = {2, 0x80000000, 0x4b800000, 0x7f800000};
  enum { COUNT = 1 << 18 };
  static uint32_t v[COUNT];
  for (size_t n = 4; n <= COUNT; n = n == 4 ? COUNT : COUNT + 1) {
    for (size_t i = 0; i < n; i++) v[i] = (gb_rank() ? b : a)[i % 4];
    reduce(job, v, n, GB_FLOAT32, GB_SUM);
    for (size_t i = 0; i < n; i++) GB_CHECK_INT(v[i], want[i % 4]);
  }
  float f = gb_rank() ? -1 : -INFINITY;
  reduce(job, &f, 1, GB_FLOAT32, GB_MAX);
  GB_CHECK(f == -1.0f);
}
GB_TEST(numbers, float_edges, .ranks = 2, .vendors = "na") {
  both_transports(float_edges);
}

/* S083: rare types give the right result on every rank. */
static void rare_types(gb_job *job) {
  int r = gb_rank();
  int16_t h = (int16_t)(1000 * (r + 1));
  float z[2] = {(float)(r + 1), (float)-r};
  /* 16 + 1 + 1 + 1: rounded at each step it would stay 16; once gives 20. */
  uint8_t e = r == 0 ? 0x58 : 0x38, mean = r == 0 ? 0x58 : 0x38;
  double d = r + 1;
  reduce(job, &h, 1, GB_INT16, GB_SUM);
  reduce(job, z, 1, GB_COMPLEX64, GB_SUM);
  reduce(job, &e, 1, GB_FLOAT8_E4M3FN, GB_SUM);
  reduce(job, &mean, 1, GB_FLOAT8_E4M3FN, GB_AVG);
  reduce(job, &d, 1, GB_FLOAT64, GB_SUM);
  GB_CHECK(h == 10000 && z[0] == 10 && z[1] == -6 && d == 10);
  GB_CHECK_INT(e, 0x5a);
  GB_CHECK_INT(mean, 0x4a); /* 19 / 4 = 4.75, a tie between 4.5 and 5 */
  reduce(job, z, 1, GB_COMPLEX64, GB_AVG);
  GB_CHECK(z[0] == 10 && z[1] == -6);
}
GB_TEST(numbers, rare_types, .ranks = 4, .vendors = "nnaa") {
  both_transports(rare_types);
}

/* The largest value of each type from every rank; then a NaN from one. */
static void float8_overflows(gb_job *job) {
  static const struct {
    gb_dtype dtype;
    uint8_t most, sum, nan_in, nan_out;
  } types[] = {{GB_FLOAT8_E4M3FN, 0x7e, 0x7e, 0xff, 0x7f},
               {GB_FLOAT8_E5M2, 0x7b, 0x7c, 0xfd, 0x7f},
               {GB_FLOAT8_E4M3FNUZ, 0x7f, 0x80, 0x80, 0x80},
               {GB_FLOAT8_E5M2FNUZ, 0x7f, 0x80, 0x80, 0x80}};
  for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
    uint8_t sum = types[t].most, mean = sum;
    reduce(job, &sum, 1, types[t].dtype, GB_SUM);
    reduce(job, &mean, 1, types[t].dtype, GB_AVG);
    GB_CHECK_INT(sum, types[t].sum);
    GB_CHECK_INT(mean, types[t].most);
    for (int op = 0; op < GB_BAND; op++) {
      uint8_t nan = gb_rank() == 2 ? types[t].nan_in : 0x38;
      reduce(job, &nan, 1, types[t].dtype, (gb_redop)op);
      GB_CHECK_INT(nan, types[t].nan_out);
    }
  }
}
GB_TEST(numbers, float8_overflows, .ranks = 4, .vendors = "nnaa") {
  both_transports(float8_overflows);
}

static void must_refuse(gb_job *job, gb_dtype dtype, gb_redop op,
                        gb_status want, const char *words) {
  uint8_t data[16] = {0};
  gb_buffer buffer = {data, 1, dtype};
  gb_error error;
  GB_CHECK_INT(gb_all_reduce(gb_job_world(job), &buffer, op, NULL, &error),
               want);
  GB_CHECK_TEXT(error.text, words);
}

/* S083: what does not exist or has no meaning is refused, with its name. */
GB_TEST(numbers, refused_types_and_reductions, .ranks = 2, .vendors = "na") {
  gb_job *job = must_open(30000, NULL);
  must_refuse(job, GB_DTYPE_COUNT, GB_SUM, GB_ERR_TYPE, "dtype code 19 is not");
  must_refuse(job, GB_DTYPE_COUNT, GB_SUM, GB_ERR_TYPE, "int8, uint8, int32");
  must_refuse(job, GB_DTYPE_COUNT, GB_SUM, GB_ERR_TYPE, "fnuz, complex64, ");
  must_refuse(job, (gb_dtype)-1, GB_SUM, GB_ERR_TYPE, "dtype code -1 is not");
  must_refuse(job, GB_FLOAT32, GB_REDOP_COUNT, GB_ERR_ARGUMENT,
              "code 9 is not supported. Supported: sum, avg");
  must_refuse(job, GB_BOOL, GB_AVG, GB_ERR_ARGUMENT, "avg of integers (bool)");
  must_refuse(job, GB_UINT64, GB_AVG, GB_ERR_ARGUMENT, "(uint64) is refused");
  must_refuse(job, GB_COMPLEX64, GB_MAX, GB_ERR_ARGUMENT,
              "max of complex64 is refused: complex numbers have no order");
  must_refuse(job, GB_COMPLEX128, GB_PRODUCT, GB_ERR_ARGUMENT,
              "product of complex128");
  must_refuse(job, GB_FLOAT8_E5M2, GB_BXOR, GB_ERR_ARGUMENT,
              "bxor of float8_e5m2 is refused");
  must_refuse(job, GB_FLOAT32, GB_PREMUL_SUM, GB_ERR_ARGUMENT,
              "gb_all_reduce_scaled");
  must_sum(job, 1);
  must_close(job);
}

/* S048 and S078 */
GB_TEST(numbers, flags, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(30000, NULL);
  int steps = 0;
  for (int8_t go = 1; go; steps++) {
    go = steps < 3 + gb_rank();
    reduce(job, &go, 1, GB_INT8, GB_MIN);
    GB_CHECK_INT(go, steps < 3);
  }
  GB_CHECK_INT(steps, 4);
  float found = gb_rank() == 2;
  int32_t total = gb_rank() == 2;
  reduce(job, &found, 1, GB_FLOAT32, GB_MAX);
  reduce(job, &total, 1, GB_INT32, GB_SUM);
  GB_CHECK(found == 1.0f && total == 1);
  must_close(job);
}

/* S076: the same bits in every run, whatever the chunk, the number of
 * connections, the transport, sync or async. Rounding data. */
static uint64_t hash(const void *data, size_t bytes) {
  uint64_t h = UINT64_C(14695981039346656037);
  for (size_t i = 0; i < bytes; i++)
    h = (h ^ ((const uint8_t *)data)[i]) * UINT64_C(1099511628211);
  return h;
}
static void one_hash(int world_islands) {
  (void)world_islands;
  static const struct {
    const char *bridge, *chunk, *streams, *piece;
  } runs[] = {{"auto", "4M", "1", "256K"}, {"auto", "4K", "1", "256K"},
              {"tcp", "4M", "1", "256K"},  {"tcp", "64K", "8", "4K"},
              {"tcp", "256K", "3", "4K"},  {"auto", "4M", "1", "256K"}};
  enum { COUNT = 100003 };
  static float v[COUNT];
  uint64_t first = 0, *shared = gb_test_shared();
  for (size_t r = 0; r < sizeof runs / sizeof runs[0]; r++) {
    setenv("GPUBRIDGE_BRIDGE", runs[r].bridge, 1);
    setenv("GPUBRIDGE_CHUNK_BYTES", runs[r].chunk, 1);
    setenv("GPUBRIDGE_MULTITCP_STREAMS", runs[r].streams, 1);
    setenv("GPUBRIDGE_MULTITCP_CHUNK_BYTES", runs[r].piece, 1);
    gb_job *job = must_open(30000, NULL);
    for (int async = 0; async < 2; async++) {
      uint64_t seed = (uint64_t)gb_rank() + 1;
      for (size_t i = 0; i < COUNT; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1;
        v[i] = (float)((int64_t)(seed >> 20) % 2000003) * 1.37e-3f;
      }
      gb_buffer buffer = {v, COUNT, GB_FLOAT32};
      gb_work *work = NULL;
      MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM,
                         async ? &work : NULL, error));
      if (work) MUST(gb_work_wait(work, 0, error));
      gb_work_release(work);
      uint64_t h = hash(v, sizeof v);
      if (!first) first = h;
      if (h != first)
        gb_test_fail(__FILE__, __LINE__, "run %zu, async %d: other bits", r,
                     async);
    }
    must_close(job);
  }
  __atomic_store_n(&shared[gb_rank()], first, __ATOMIC_RELEASE);
  for (int r = 0; r < gb_world(); r++) {
    volatile uint64_t *at = &shared[r];
    for (int i = 0; !*at && i < 20000; i++) nap_ms(1);
    GB_CHECK(*at == first);
  }
}
GB_TEST(numbers, one_hash_2_2, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 90000) {
  one_hash(2);
}
GB_TEST(numbers, one_hash_three_islands, .ranks = 5, .vendors = "nnaan",
        .timeout_ms = 90000) {
  static const int islands[] = {0, 0, 1, 2, 2};
  name_island(islands[gb_rank()]);
  one_hash(3);
}
