/* Compression on the bridge, in whole jobs: every rank ends with the same bits,
 * within spec 7.4's bounds, on several layouts over shared memory and TCP; what
 * is exact in the payload stays exact (S115); a NaN arrives as one and is gone
 * in the next step (S116); everything but floating sums stays exact, and off
 * means off (S117); settings must agree (S118); feedback makes means converge,
 * within its bound of memory; telemetry and phases tell what was done. */
#include <math.h>

#include "job/job.h"
#include "job/values.h"

enum { MOST = 70001 };

/* ---- Values ---- */

static uint32_t noise(uint64_t i) {
  uint64_t x = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return (uint32_t)(x >> 32);
}

/* Sums inside an island are exact: few places for the half types. */
static double given(int rank, size_t i, gb_dtype dtype) {
  uint32_t bits = noise((uint64_t)rank * 1000003 + i);
  bool half = dtype == GB_FLOAT16 || dtype == GB_BFLOAT16;
  if (half) return (double)((int)(bits % 63) - 31) / 16;
  return (double)((int)(bits % (1 << 21)) - (1 << 20)) / (1 << 20);
}

static void put_signed(void *data, size_t i, gb_dtype dtype, double v) {
  put(data, i, dtype, fabs(v));
  if (v >= 0) return;
  if (dtype == GB_FLOAT16 || dtype == GB_BFLOAT16)
    ((uint16_t *)data)[i] |= 0x8000;
  else
    put(data, i, dtype, v);
}

static double got(const void *data, size_t i, gb_dtype dtype) {
  uint16_t half = ((const uint16_t *)data)[i];
  uint32_t bits = (uint32_t)half << 16;
  float f;
  memcpy(&f, &bits, 4);
  if (dtype == GB_FLOAT32) return (double)((const float *)data)[i];
  if (dtype == GB_FLOAT64) return ((const double *)data)[i];
  if (dtype == GB_BFLOAT16) return (double)f;
  int e = half >> 10 & 31, m = half & 1023;
  double v = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
  return half & 0x8000 ? -v : v;
}

/* ---- Layouts ---- */

typedef struct layout {
  const char *codec, *bridge;
  int islands[8];
  int count; /* of islands */
} layout;

static layout lay_out(const char *vendors, const char *codec,
                      const char *bridge) {
  static const int three[] = {0, 0, 1, 1, 1, 2, 2};
  bool by_name = gb_world() == 7;
  layout l = {.codec = codec, .bridge = bridge, .count = by_name ? 3 : 2};
  if (by_name) name_three_islands();
  for (int r = 0; r < gb_world(); r++)
    l.islands[r] = by_name ? three[r] : vendors[r] == 'a';
  setenv("GPUBRIDGE_BRIDGE_COMPRESSION", codec, 1);
  setenv("GPUBRIDGE_BRIDGE", bridge, 1);
  setenv("GPUBRIDGE_CHUNK_BYTES", "64K", 1);
  return l;
}

/* What element i may be off by, before the average; *sum_p: the exact sum. */
static double bound_of(const layout *l, size_t i, gb_dtype dtype,
                       double *sum_p) {
  double bound = 1e-5, sum = 0;
  for (int k = 0; k < l->count; k++) {
    double v = 0;
    for (int r = 0; r < gb_world(); r++)
      if (l->islands[r] == k) v += given(r, i, dtype);
    sum += v;
    /* A block's largest value is below 8. */
    bound += !strcmp(l->codec, "bf16") ? ldexp(fabs(v), -8)
                                       : fmax(ldexp(fabs(v), -4), 8e-3 / 224);
  }
  *sum_p = sum;
  if (dtype == GB_BFLOAT16) bound += ldexp(fabs(sum) + bound, -7);
  if (dtype == GB_FLOAT16) bound += ldexp(fabs(sum) + bound, -10);
  return bound;
}

static void must_be_near(const layout *l, const void *data, size_t at,
                         size_t first, size_t n, gb_dtype dtype, gb_redop op) {
  for (size_t i = 0; i < n; i++) {
    double sum, bound = bound_of(l, first + i, dtype, &sum);
    double divisor = op == GB_AVG ? gb_world() : 1;
    double v = got(data, at + i, dtype);
    if (!(fabs(v - sum / divisor) <= bound / divisor))
      gb_test_fail(__FILE__, __LINE__, "%s %s: element %zu is %g, not %g +- %g",
                   gb_dtype_name(dtype), gb_redop_name(op), first + i, v,
                   sum / divisor, bound / divisor);
  }
}

/* Rank 0's bytes are this rank's: a broadcast is exact. */
static void must_be_everywhere(gb_group *group, const void *data,
                               size_t bytes) {
  uint8_t *copy = malloc(bytes + 1);
  memcpy(copy, data, bytes);
  gb_buffer buffer = {copy, bytes, GB_UINT8};
  MUST(gb_broadcast(group, &buffer, 0, NULL, error));
  if (memcmp(copy, data, bytes))
    gb_test_fail(__FILE__, __LINE__, "ranks have different bits");
  free(copy);
}

/* ---- Sums ---- */

static void one_all_reduce(gb_group *group, const layout *l, void *data,
                           size_t n, gb_dtype dtype, gb_redop op, bool async) {
  gb_buffer buffer = {data, n, dtype};
  gb_work *work = NULL;
  gb_error error;
  for (size_t i = 0; i < n; i++)
    put_signed(data, i, dtype, given(gb_rank(), i, dtype));
  must_end(gb_all_reduce(group, &buffer, op, async ? &work : NULL, &error),
           &work, &error);
  must_be_near(l, data, 0, 0, n, dtype, op);
  must_be_everywhere(group, data, n * gb_dtype_bytes(dtype));
}

static void one_reduce_scatter(gb_group *group, const layout *l, void *data,
                               void *all, size_t n, gb_dtype dtype,
                               gb_redop op) {
  size_t world = (size_t)gb_world(), first = n * (size_t)gb_rank();
  gb_buffer small = {data, n, dtype}, large = {all, n * world, dtype};
  for (size_t i = 0; i < n * world; i++)
    put_signed(all, i, dtype, given(gb_rank(), i, dtype));
  MUST(gb_reduce_scatter(group, &small, &large, op, NULL, error));
  must_be_near(l, data, 0, first, n, dtype, op);
}

static void sums(const char *vendors, const char *codec, const char *bridge) {
  static const size_t counts[] = {0, 1, 255, 257, 1025, MOST};
  static const gb_dtype dtypes[] = {GB_FLOAT32, GB_FLOAT64, GB_FLOAT16,
                                    GB_BFLOAT16};
  layout l = lay_out(vendors, codec, bridge);
  /* Each call by itself; feedback has its own tests. */
  setenv("GPUBRIDGE_COMPRESSION_RESIDUALS", "0", 1);
  gb_job *job = must_open(60000, NULL);
  gb_group *group = gb_job_world(job);
  void *data = malloc(MOST * 8), *all = malloc(MOST * 8);
  for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
    for (size_t t = 0; t < 4; t++)
      for (int op = GB_SUM; op <= GB_AVG; op++) {
        one_all_reduce(group, &l, data, counts[c], dtypes[t], (gb_redop)op,
                       (c + t) % 2);
        one_reduce_scatter(group, &l, data, all, counts[c] / 8, dtypes[t],
                           (gb_redop)op);
      }
  free(data);
  free(all);
  must_close(job);
}

#define SUMS(name, n, letters, codec, bridge)                                  \
  GB_TEST(compress, name##_##codec##_##bridge, .ranks = n, .vendors = letters, \
          .timeout_ms = 120000) {                                              \
    sums(letters, #codec, #bridge);                                            \
  }
#define EVERY_WAY(name, n, letters) \
  SUMS(name, n, letters, bf16, shm) \
  SUMS(name, n, letters, fp8, shm)  \
  SUMS(name, n, letters, bf16, tcp) \
  SUMS(name, n, letters, fp8, tcp)
EVERY_WAY(two_and_two, 4, "nnaa")
EVERY_WAY(one_and_three, 4, "naaa")
EVERY_WAY(three_islands, 7, "nnaaann")

/* Each link codes its own segments. */
#define SHARDED(name, n, letters, codec, bridge)                               \
  GB_TEST(compress, name##_##codec##_##bridge, .ranks = n, .vendors = letters, \
          .timeout_ms = 120000) {                                              \
    setenv("GPUBRIDGE_POLICY", "sharded-bridge", 1);                           \
    sums(letters, #codec, #bridge);                                            \
  }
SHARDED(sharded_two_and_two, 4, "nnaa", bf16, shm)
SHARDED(sharded_two_and_two, 4, "nnaa", fp8, tcp)
SHARDED(sharded_three_islands, 7, "nnaaann", fp8, shm)
SHARDED(sharded_three_islands, 7, "nnaaann", bf16, tcp)

/* ---- What stays exact ---- */

static gb_job *open_with(const char *codec) {
  setenv("GPUBRIDGE_BRIDGE_COMPRESSION", codec, 1);
  return must_open(60000, NULL);
}

static void all_reduce(gb_job *job, void *data, size_t n, gb_dtype dtype,
                       gb_redop op) {
  gb_buffer buffer = {data, n, dtype};
  MUST(gb_all_reduce(gb_job_world(job), &buffer, op, NULL, error));
}

/* S115 */
static void exact_sums(const char *codec) {
  gb_job *job = open_with(codec);
  static float v[1024];
  for (int step = 0; step < 3; step++) {
    for (int i = 0; i < 1024; i++) v[i] = (float)(gb_rank() + 1);
    all_reduce(job, v, 1024, GB_FLOAT32, GB_SUM);
    for (int i = 0; i < 1024; i++) GB_CHECK(v[i] == 10);
    memset(v, 0, sizeof v);
    all_reduce(job, v, 1000, GB_FLOAT32, GB_SUM);
    for (int i = 0; i < 1000; i++) GB_CHECK(v[i] == 0 && !signbit(v[i]));
  }
  for (int i = 0; i < 256; i++) v[i] = i ? 1 : 448;
  all_reduce(job, v, 256, GB_FLOAT32, GB_SUM);
  GB_CHECK(fabsf(v[0] - 4 * 448) <= 4 * 448 / 16.0f);
  for (int i = 1; i < 256; i++) GB_CHECK(fabsf(v[i] - 4) <= 4 * 448 / 16.0f);
  must_be_everywhere(gb_job_world(job), v, sizeof v);
  must_close(job);
}
GB_TEST(compress, exact_values_bf16, .ranks = 4, .vendors = "nnaa") {
  exact_sums("bf16");
}
GB_TEST(compress, exact_values_fp8, .ranks = 4, .vendors = "nnaa") {
  exact_sums("fp8");
}

/* S117 */
static void untouched(const char *codec) {
  gb_job *job = open_with(codec);
  gb_group *group = gb_job_world(job);
  static int64_t whole[300];
  static float v[300], all[1200], copy[300];
  for (int i = 0; i < 300; i++) whole[i] = (INT64_C(1) << 53) + 1 + i;
  all_reduce(job, whole, 300, GB_INT64, GB_SUM);
  for (int i = 0; i < 300; i++)
    GB_CHECK(whole[i] == 4 * ((INT64_C(1) << 53) + 1 + i));
  for (int i = 0; i < 300; i++)
    v[i] = 1.0009765625f + (float)(gb_rank() == 2) * 0x1p-20f;
  all_reduce(job, v, 300, GB_FLOAT32, GB_MAX);
  for (int i = 0; i < 300; i++) GB_CHECK(v[i] == 1.0009765625f + 0x1p-20f);
  for (int i = 0; i < 300; i++)
    v[i] = (float)given(gb_rank(), (size_t)i, GB_FLOAT32);
  memcpy(copy, v, sizeof v);
  gb_buffer one = {v, 300, GB_FLOAT32}, rows = {all, 1200, GB_FLOAT32};
  MUST(gb_all_gather(group, &rows, &one, NULL, error));
  for (size_t i = 0; i < 1200; i++)
    GB_CHECK(all[i] == (float)given((int)(i / 300), i % 300, GB_FLOAT32));
  MUST(gb_reduce(group, &one, GB_SUM, 3, NULL, error));
  for (size_t i = 0; i < 300 && gb_rank() == 3; i++)
    GB_CHECK(v[i] == (all[i] + all[300 + i]) + (all[600 + i] + all[900 + i]));
  MUST(gb_broadcast(group, &one, 3, NULL, error));
  must_be_everywhere(group, v, sizeof v);
  must_close(job);
}
GB_TEST(compress, untouched_bf16, .ranks = 4, .vendors = "nnaa") {
  untouched("bf16");
}
GB_TEST(compress, untouched_fp8, .ranks = 4, .vendors = "nnaa") {
  untouched("fp8");
}

typedef struct facts {
  char codec[16];
  double saved, given, error, residuals, dropped;
  int count;
} facts;

static void note_fact(void *arg, const char *name, const char *value) {
  facts *f = arg;
  const char *own = "compression.";
  if (strncmp(name, own, strlen(own))) return;
  name += strlen(own);
  f->count++;
  double number = strtod(value, NULL);
  if (!strcmp(name, "codec")) snprintf(f->codec, sizeof f->codec, "%s", value);
  if (!strcmp(name, "bytes_saved")) f->saved = number;
  if (!strcmp(name, "bytes_given")) f->given = number;
  if (!strcmp(name, "largest_error")) f->error = number;
  if (!strcmp(name, "residual_bytes")) f->residuals = number;
  if (!strcmp(name, "residuals_dropped")) f->dropped = number;
}

static facts facts_of(gb_job *job) {
  facts f = {.codec = ""};
  gb_job_telemetry(job, note_fact, &f);
  return f;
}

/* Off: the sums of float32 in member order, bit by bit; no word of it in
 * telemetry. */
GB_TEST(compress, off_is_exact, .ranks = 4, .vendors = "nnaa") {
  static const char *const words[] = {"off", "", "0", " False "};
  for (int w = 0; w < 4; w++) {
    gb_job *job = open_with(words[w]);
    static float v[5000];
    for (size_t i = 0; i < 5000; i++)
      v[i] = (float)given(gb_rank(), i, GB_FLOAT32) / 3;
    all_reduce(job, v, 5000, GB_FLOAT32, GB_SUM);
    for (size_t i = 0; i < 5000; i++) {
      float x[4];
      for (int r = 0; r < 4; r++) x[r] = (float)given(r, i, GB_FLOAT32) / 3;
      GB_CHECK(v[i] == (x[0] + x[1]) + (x[2] + x[3]));
    }
    GB_CHECK_INT(facts_of(job).count, 0);
    must_close(job);
  }
}

/* bfloat16 with bf16 is sent as it is. */
GB_TEST(compress, bfloat16_passes_through, .ranks = 2, .vendors = "na") {
  gb_job *job = open_with("bf16");
  uint16_t v[4] = {0x3f81, 0x3f81, 0x4000, 0x7fc0};
  all_reduce(job, v, 4, GB_BFLOAT16, GB_SUM);
  GB_CHECK(v[0] == 0x4001 && v[1] == 0x4001 && v[2] == 0x4080);
  facts f = facts_of(job);
  GB_CHECK_TEXT(f.codec, "bf16");
  GB_CHECK(f.count > 3 && f.given == 0 && f.saved == 0);
  must_close(job);
}

/* S116 */
static void not_finite(const char *codec) {
  bool blocks = !strcmp(codec, "fp8");
  gb_job *job = open_with(codec);
  static float v[700];
  for (int i = 0; i < 700; i++) v[i] = 1;
  if (gb_rank() == 1) {
    v[3] = NAN;
    v[300] = INFINITY;
  }
  all_reduce(job, v, 700, GB_FLOAT32, GB_SUM);
  must_be_everywhere(gb_job_world(job), v, sizeof v);
  GB_CHECK(isnan(v[3]));
  GB_CHECK(blocks ? isnan(v[300]) : isinf(v[300]) && v[300] > 0);
  for (int i = 0; i < 700; i++)
    if (blocks ? i >= 512 : i != 3 && i != 300) GB_CHECK(v[i] == 2);
  for (int i = 0; i < 700; i++) v[i] = 1;
  all_reduce(job, v, 700, GB_FLOAT32, GB_SUM);
  for (int i = 0; i < 700; i++) GB_CHECK(v[i] == 2);
  must_close(job);
}
GB_TEST(compress, not_finite_bf16, .ranks = 2, .vendors = "na") {
  not_finite("bf16");
}
GB_TEST(compress, not_finite_fp8, .ranks = 2, .vendors = "na") {
  not_finite("fp8");
}

/* ---- Feedback ---- */

/* How far the mean of many steps is from the true one, at worst. */
static double mean_off(gb_job *job, int steps) {
  enum { N = 3000 };
  static float v[N];
  static double total[N];
  memset(total, 0, sizeof total);
  for (int step = 0; step < steps; step++) {
    for (size_t i = 0; i < N; i++)
      v[i] = (float)given(gb_rank(), i, GB_FLOAT32);
    all_reduce(job, v, N, GB_FLOAT32, GB_SUM);
    for (size_t i = 0; i < N; i++) total[i] += (double)v[i];
  }
  double worst = 0;
  for (size_t i = 0; i < N; i++) {
    double want = 0;
    for (int r = 0; r < gb_world(); r++) want += given(r, i, GB_FLOAT32);
    worst = fmax(worst, fabs(total[i] / steps - want));
  }
  return worst;
}

static void feedback(const char *codec, double with_most,
                     double without_least) {
  setenv("GPUBRIDGE_CHUNK_BYTES", "4K", 1); /* several payloads a call */
  gb_job *job = open_with(codec);
  double with = mean_off(job, 200);
  bool leads = gb_rank() % 2 == 0;
  GB_CHECK(!leads || facts_of(job).residuals > 3000 * 4);
  must_close(job);
  setenv("GPUBRIDGE_COMPRESSION_RESIDUALS", "0", 1);
  job = open_with(codec);
  double without = mean_off(job, 200);
  GB_CHECK(facts_of(job).residuals == 0 && facts_of(job).dropped == 0);
  must_close(job);
  if (!(with < with_most) || !(without > without_least))
    gb_test_fail(__FILE__, __LINE__, "off by %g with feedback, %g without",
                 with, without);
}
GB_TEST(compress, feedback_bf16, .ranks = 4, .vendors = "nnaa") {
  feedback("bf16", 1e-4, 3e-3);
}
GB_TEST(compress, feedback_fp8, .ranks = 4, .vendors = "nnaa") {
  feedback("fp8", 2e-3, 5e-2);
}

static int warnings;
static void count_warnings(void *arg, gb_log_level level, const char *component,
                           const char *line) {
  if (level == GB_LOG_WARN && strstr(line, "GPUBRIDGE_COMPRESSION_RESIDUALS"))
    warnings++;
}

/* Twenty buffers of 16 KiB of residuals where 100 KiB are allowed; then one
 * that never fits. Results stay within the bound. */
GB_TEST(compress, residuals_are_bounded, .ranks = 2, .vendors = "na") {
  enum { N = 4096 };
  gb_log_set(count_warnings, NULL);
  setenv("GPUBRIDGE_COMPRESSION_RESIDUALS", "100K", 1);
  gb_job *job = open_with("bf16");
  float *v = malloc(20 * N * sizeof *v);
  for (int round = 0; round < 3; round++)
    for (int b = 0; b < 20; b++) {
      for (int i = 0; i < N; i++) v[b * N + i] = 1.001f;
      all_reduce(job, v + b * N, N, GB_FLOAT32, GB_SUM);
      for (int i = 0; i < N; i++)
        GB_CHECK(fabsf(v[b * N + i] - 2.002f) < 2.1f / 128);
      GB_CHECK(facts_of(job).residuals <= 100 * 1024);
    }
  facts f = facts_of(job);
  GB_CHECK(f.residuals > 90 * 1024 && f.dropped >= 14 && f.error > 0);
  for (int i = 0; i < 20 * N; i++) v[i] = 1;
  all_reduce(job, v, 20 * N, GB_FLOAT32, GB_SUM);
  for (int i = 0; i < 20 * N; i++) GB_CHECK(v[i] == 2);
  GB_CHECK(facts_of(job).residuals <= 100 * 1024);
  must_close(job);
  GB_CHECK_INT(warnings, 1);
  gb_log_set(NULL, NULL);
  free(v);
}

/* ---- What is told ---- */

static char phases[256];
static int note_phases(void *arg, const gb_record *record) {
  phases[0] = 0;
  for (int i = 0; i < record->phases_count; i++)
    snprintf(phases + strlen(phases), sizeof phases - strlen(phases), "%s ",
             record->phases[i].name);
  return 0;
}

GB_TEST(compress, telemetry_and_phases, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = open_with("fp8");
  MUST(gb_observer_add(job, note_phases, NULL, error));
  bool leads = gb_rank() % 2 == 0;
  static float v[2560];
  for (int i = 0; i < 2560; i++) v[i] = (float)(gb_rank() + 1) + 0.03f;
  all_reduce(job, v, 2560, GB_FLOAT32, GB_SUM);
  GB_CHECK(!strcmp(phases, leads ? "island-reduce compress bridge decompress "
                                   "island-broadcast "
                                 : "island-reduce island-broadcast "));
  facts f = facts_of(job);
  GB_CHECK_TEXT(f.codec, "fp8");
  GB_CHECK(f.given == (leads ? 2560 * 4 : 0));
  GB_CHECK(f.saved == (leads ? 2560 * 4 - 2570 : 0));
  GB_CHECK(leads ? f.error > 0.01 && f.error < 0.5 : f.error == 0);
  must_close(job);
}

/* S118 */
/* The next chunks are encoded while the first one waits for the other island:
 * on a long line each would take a round trip otherwise. Rank 1 comes only when
 * rank 0 has encoded three. */
GB_TEST(compress, chunks_are_encoded_ahead, .ranks = 2, .vendors = "na") {
  enum { CHUNK = 1 << 16, COUNT = 8 * CHUNK / 4 };
  static float v[COUNT];
  volatile int *step = gb_test_shared();
  setenv("GPUBRIDGE_CHUNK_BYTES", "64K", 1);
  gb_job *job = open_with("fp8");
  for (size_t i = 0; i < COUNT; i++) v[i] = (float)(gb_rank() + 1);
  gb_buffer buffer = {v, COUNT, GB_FLOAT32};
  gb_work *work = NULL;
  if (gb_rank()) gb_test_await(step, 1, 20000);
  MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, &work, error));
  double start = test_now();
  while (!gb_rank() && facts_of(job).given < 3 * CHUNK)
    GB_CHECK(test_now() - start < 10);
  if (!gb_rank()) *step = 1;
  MUST(gb_work_wait(work, 0, error));
  gb_work_release(work);
  GB_CHECK(v[0] == 3 && v[COUNT - 1] == 3);
  must_close(job);
}

GB_TEST(compress, settings_differ, .ranks = 4, .vendors = "nnaa") {
  char(*texts)[GB_ERROR_TEXT_MAX] = (void *)((int *)gb_test_shared() + 64);
  setenv("GPUBRIDGE_BRIDGE_COMPRESSION", gb_rank() == 1 ? "bf16" : "off", 1);
  gb_job *job;
  gb_error error;
  GB_CHECK_INT(try_open(20000, NULL, &job, &error), GB_ERR_REFUSED);
  GB_CHECK_TEXT(error.text, "GPUBRIDGE_BRIDGE_COMPRESSION");
  GB_CHECK_TEXT(error.text, "bf16");
  GB_CHECK_TEXT(error.text, "off");
  memcpy(texts[gb_rank()], error.text, sizeof error.text);
  meet(0);
  GB_CHECK(!strcmp(texts[0], texts[gb_rank()]));
}

GB_TEST(compress, settings_in_capitals, .ranks = 2, .vendors = "na") {
  gb_job *job = open_with(gb_rank() ? " BF16 " : "bf16");
  GB_CHECK_TEXT(facts_of(job).codec, "bf16");
  must_sum(job, 3);
  must_close(job);
}

GB_TEST(compress, settings_unknown, .ranks = 2, .vendors = "na") {
  setenv("GPUBRIDGE_BRIDGE_COMPRESSION", "zstd", 1);
  gb_job *job;
  gb_error error;
  GB_CHECK(try_open(20000, NULL, &job, &error) != GB_OK);
  GB_CHECK_TEXT(error.text, "GPUBRIDGE_BRIDGE_COMPRESSION");
  GB_CHECK_TEXT(error.text, "zstd");
  GB_CHECK_TEXT(error.text, "fp8");
}

/* A group of some ranks compresses too. */
GB_TEST(compress, groups, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = open_with("fp8");
  static const int members[] = {1, 2};
  if (gb_rank() == 1 || gb_rank() == 2) {
    gb_group *group;
    MUST(gb_group_open(job, members, 2, NULL, &group, error));
    float v[3] = {1 + 1.0f / 64, 2, 3};
    gb_buffer buffer = {v, 3, GB_FLOAT32};
    MUST(gb_all_reduce(group, &buffer, GB_SUM, NULL, error));
    GB_CHECK(v[0] == 2 && v[1] == 4 && v[2] == 6);
  }
  must_sum(job, 1);
  must_close(job);
}
