/* Rows of different lengths in whole jobs: all_gather_v and reduce_scatter_v
 * are exact on every layout and policy, for lengths of zero, for one long row
 * among short ones, and with the small buffer inside the large one; the lengths
 * are the caller's again when an async call returns. Ranks whose lengths differ
 * learn that they do, and a refused call leaves the job usable (S079, S081,
 * S027, S034). */
#include "job/job.h"
#include "job/layouts.h"
#include "job/values.h"

enum { RANKS_MAX = 8, MOST = 70001 };

/* Lengths of rank r's row. */
static size_t length_of(int pattern, int r) {
  switch (pattern) {
    case 0: return 0;
    case 1: return r % 3 == 1 ? 0 : (size_t)(r * 37 % 11) * 13 + 1;
    case 2: return r == gb_world() - 1 ? 5 : 0;
    case 3: return (size_t)r * 1025 + 3;
    default: return r == gb_world() / 2 ? MOST : (size_t)(r % 2);
  }
}
enum { PATTERNS = 5 };

typedef struct rows {
  size_t counts[RANKS_MAX], at[RANKS_MAX + 1];
  size_t mine, first, total;
} rows;

static rows make_rows(int pattern) {
  rows r = {.mine = 0};
  for (int k = 0; k < gb_world(); k++) {
    r.counts[k] = length_of(pattern, k);
    r.at[k + 1] = r.at[k] + r.counts[k];
  }
  r.mine = r.counts[gb_rank()];
  r.first = r.at[gb_rank()];
  r.total = r.at[gb_world()];
  return r;
}

/* Ends a call whose lengths were lent: they are spoilt first. */
static void end_and_spoil(gb_status status, size_t *lent, gb_work **work,
                          gb_error *error) {
  memset(lent, 0xff, RANKS_MAX * sizeof *lent);
  must_end(status, work, error);
}

static void one_gather(gb_group *group, int pattern, gb_dtype dtype,
                       uint8_t *small, uint8_t *large, bool async) {
  rows r = make_rows(pattern);
  size_t bytes = gb_dtype_bytes(dtype);
  for (int inside = 0; inside < 2; inside++) {
    uint8_t *row = inside ? large + r.first * bytes : small;
    memset(large, 0xee, r.total * bytes);
    put_own(row, r.mine, dtype);
    gb_buffer input = {row, r.mine, dtype}, output = {large, r.total, dtype};
    size_t lent[RANKS_MAX];
    memcpy(lent, r.counts, sizeof lent);
    gb_work *work = NULL;
    gb_error error;
    gb_status status = gb_all_gather_v(group, &output, &input, lent,
                                       async ? &work : NULL, &error);
    end_and_spoil(status, lent, &work, &error);
    for (int k = 0; k < gb_world(); k++)
      check_from((uint8_t *)large + r.at[k] * gb_dtype_bytes(dtype),
                 r.counts[k], dtype, k, 0, "all_gather_v");
  }
}

static double reduced(size_t i, gb_dtype dtype, gb_redop op) {
  double sum = 0, least = 99;
  for (int r = 0; r < gb_world(); r++) {
    sum += value_of(r, i);
    least = fmin(least, value_of(r, i));
  }
  if (op == GB_MIN) return least;
  if (op == GB_SUM) return sum;
  return dtype == GB_FLOAT64 ? sum / gb_world() : (float)(sum / gb_world());
}

static void one_scatter(gb_group *group, int pattern, gb_dtype dtype,
                        gb_redop op, uint8_t *small, uint8_t *large,
                        bool async) {
  rows r = make_rows(pattern);
  size_t bytes = gb_dtype_bytes(dtype);
  for (int inside = 0; inside < 2; inside++) {
    uint8_t *slice = inside ? large + r.first * bytes : small;
    put_own(large, r.total, dtype);
    gb_buffer input = {large, r.total, dtype}, output = {slice, r.mine, dtype};
    size_t lent[RANKS_MAX];
    memcpy(lent, r.counts, sizeof lent);
    gb_work *work = NULL;
    gb_error error;
    gb_status status = gb_reduce_scatter_v(group, &output, &input, lent, op,
                                           async ? &work : NULL, &error);
    end_and_spoil(status, lent, &work, &error);
    for (size_t i = 0, k = to_check(slice, r.mine, dtype); i < k; i++)
      check(slice, i, dtype, reduced(r.first + i, dtype, op),
            "reduce_scatter_v");
    check_but(large, r.total, r.first, inside ? r.first + r.mine : r.first,
              dtype, "its input");
  }
}

static void all_shapes(const char *policy, const char *bridge) {
  static const gb_dtype dtypes[] = {GB_UINT8, GB_FLOAT16, GB_BFLOAT16,
                                    GB_FLOAT32, GB_INT64};
  static const gb_redop ops[] = {GB_SUM, GB_AVG, GB_MIN};
  if (bridge) setenv("GPUBRIDGE_BRIDGE", bridge, 1);
  setenv("GPUBRIDGE_CHUNK_BYTES", "64K", 1);
  gb_job *job = must_open(60000, policy);
  gb_group *group = gb_job_world(job);
  uint8_t *small = malloc(MOST * 8), *large = malloc((MOST + 8) * 8);
  for (int pattern = 0; pattern < PATTERNS; pattern++)
    for (size_t t = 0; t < sizeof dtypes / sizeof dtypes[0]; t++) {
      gb_dtype dtype = dtypes[t];
      if (pattern == PATTERNS - 1 && dtype != GB_FLOAT16 && dtype != GB_FLOAT32)
        continue;
      bool async = (pattern + (int)t) % 2;
      one_gather(group, pattern, dtype, small, large, async);
      for (size_t o = 0; o < 3; o++)
        if (gb_redop_supported(ops[o], dtype))
          one_scatter(group, pattern, dtype, ops[o], small, large, async);
    }
  free(small);
  free(large);
  must_sum(job, 1);
  must_close(job);
}

#define LAYOUT(name, n, letters)                               \
  GB_TEST(rows, name##_auto, .ranks = n, .vendors = letters,   \
          .timeout_ms = 120000) {                              \
    all_shapes("auto", NULL);                                  \
  }                                                            \
  GB_TEST(rows, name##_bridge, .ranks = n, .vendors = letters, \
          .timeout_ms = 120000) {                              \
    all_shapes(NULL, NULL);                                    \
  }                                                            \
  GB_TEST(rows, name##_flat, .ranks = n, .vendors = letters,   \
          .timeout_ms = 120000) {                              \
    all_shapes("flat", NULL);                                  \
  }

EACH_LAYOUT(LAYOUT)
GB_TEST(rows, interleaved_tcp, .ranks = 4, .vendors = "nana",
        .timeout_ms = 120000) {
  all_shapes(NULL, "tcp");
}
GB_TEST(rows, three_islands_auto, .ranks = 7, .vendors = "nnaaann",
        .timeout_ms = 120000) {
  name_three_islands();
  all_shapes(NULL, NULL);
}

/* Several calls of one shape but for their lengths are in flight together: each
 * has its own plan, and buffers that overlap keep their order. */
GB_TEST(rows, several_in_flight, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(20000, NULL);
  enum { CALLS = 8 };
  int32_t in[CALLS][8], out[CALLS][16];
  gb_work *works[CALLS];
  for (int c = 0; c < CALLS; c++) {
    size_t counts[4] = {1, 1, 1, 1};
    counts[c % 4] = 5;
    counts[(c + 1) % 4] = 0;
    gb_buffer input = {in[c], counts[gb_rank()], GB_INT32};
    gb_buffer output = {out[c], 7, GB_INT32};
    for (int i = 0; i < 8; i++) in[c][i] = 100 * c + gb_rank();
    MUST(gb_all_gather_v(gb_job_world(job), &output, &input, counts, &works[c],
                         error));
  }
  for (int c = 0; c < CALLS; c++) {
    MUST(gb_work_wait(works[c], 0, error));
    gb_work_release(works[c]);
    size_t at = 0;
    for (int r = 0; r < 4; r++)
      for (size_t i = 0; i < (size_t)(r == c % 4 ? 5 : r != (c + 1) % 4); i++)
        GB_CHECK_INT(out[c][at++], 100 * c + r);
  }
  must_close(job);
}

GB_TEST(rows, refused_arguments, .ranks = 2, .vendors = "na") {
  gb_job *job = must_open(20000, NULL);
  gb_group *group = gb_job_world(job);
  float large[8] = {0}, small[8] = {0};
  size_t counts[2] = {3, 1}, huge[2] = {SIZE_MAX, 4};
  gb_buffer rows4 = {large, 4, GB_FLOAT32}, rows5 = {large, 5, GB_FLOAT32};
  gb_buffer row = {small, counts[gb_rank()], GB_FLOAT32};
  gb_buffer longer = {small, 7, GB_FLOAT32};
  gb_buffer ints = {small, counts[gb_rank()], GB_INT32};
  gb_buffer inside = {large + 1, counts[gb_rank()], GB_FLOAT32};
  gb_error error;
  must_be_refused(gb_all_gather_v(group, &rows4, &row, NULL, NULL, &error),
                  GB_ERR_ARGUMENT, &error, "counts are NULL");
  must_be_refused(gb_all_gather_v(group, &rows5, &row, counts, NULL, &error),
                  GB_ERR_ARGUMENT, &error,
                  "the output has 5 elements, but the counts add up to 4");
  must_be_refused(gb_all_gather_v(group, &rows4, &longer, counts, NULL, &error),
                  GB_ERR_ARGUMENT, &error, "the input has 7 elements");
  must_be_refused(gb_all_gather_v(group, &rows4, &ints, counts, NULL, &error),
                  GB_ERR_ARGUMENT, &error, "must be of one type");
  must_be_refused(gb_all_gather_v(group, &rows4, &inside, counts, NULL, &error),
                  GB_ERR_ARGUMENT, &error, "overlap otherwise than in row");
  must_be_refused(
      gb_reduce_scatter_v(group, &row, &rows4, huge, GB_SUM, NULL, &error),
      GB_ERR_ARGUMENT, &error, "more than memory can hold");
  must_be_refused(gb_reduce_scatter_v(group, &row, &rows4, counts, (gb_redop)99,
                                      NULL, &error),
                  GB_ERR_ARGUMENT, &error, "reduction code 99");
  must_sum(job, 3);
  must_close(job);
}

/* The lengths of rank `odd` are 4, 2 or 3, 2 where the others' are 2, 4. */
static void disagree(int odd, size_t first, bool reduces, const char *a,
                     const char *b) {
  gb_job *job = must_open(20000, NULL);
  must_sum(job, 2);
  meet(0);
  size_t counts[4] = {2, 4, 0, 0};
  if (gb_rank() == odd) counts[0] = first, counts[1] = 2;
  float large[8] = {0}, small[8] = {0};
  gb_buffer all = {large, counts[0] + counts[1], GB_FLOAT32};
  gb_buffer row = {small, counts[gb_rank()], GB_FLOAT32};
  gb_error error;
  double start = test_now();
  gb_group *g = gb_job_world(job);
  gb_status status =
      reduces ? gb_reduce_scatter_v(g, &row, &all, counts, GB_SUM, NULL, &error)
              : gb_all_gather_v(g, &all, &row, counts, NULL, &error);
  /* Who only gives may be done before it can know. */
  if (status == GB_OK) status = gb_barrier(g, NULL, &error);
  GB_CHECK(status == GB_ERR_MISMATCH || status == GB_ERR_ABORTED);
  must_fail(status, &error, start, 8, a, b);
  must_close(job);
}
GB_TEST(rows, other_lengths_of_one_total, .ranks = 4, .vendors = "nnaa") {
  disagree(3, 4, false, "all_gather_v number 2 of 6 float32",
           "and the rows' lengths differ");
}
GB_TEST(rows, other_lengths_in_one_island, .ranks = 2, .vendors = "nn") {
  disagree(1, 4, false, "all_gather_v number 2 of 6 float32",
           "and the rows' lengths differ");
}
GB_TEST(rows, other_slices_of_one_total, .ranks = 4, .vendors = "nnaa") {
  disagree(2, 4, true, "reduce_scatter_v number 2 of 6 float32, sum",
           "and the rows' lengths differ");
}
GB_TEST(rows, other_slices_over_tcp, .ranks = 2, .vendors = "na") {
  setenv("GPUBRIDGE_BRIDGE", "tcp", 1);
  disagree(1, 4, true, "reduce_scatter_v number 2 of 6 float32, sum",
           "and the rows' lengths differ");
}
GB_TEST(rows, another_total, .ranks = 4, .vendors = "nnaa") {
  disagree(1, 3, false, "number 2 of 6 float32", "number 2 of 5 float32");
}

/* A rank that has nothing to do in a call does not sleep in it: naps of
 * a tenth of a second would add up to twice the time allowed here and more. */
GB_TEST(rows, empty_calls_are_not_slept_through, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  gb_job *job = must_open(30000, NULL);
  gb_buffer nothing = {NULL, 0, GB_FLOAT32};
  must_sum(job, 1);
  double start = test_now();
  for (int i = 0; i < 300; i++) {
    MUST(gb_reduce_scatter(gb_job_world(job), &nothing, &nothing, GB_SUM, NULL,
                           error));
    must_sum(job, 1);
  }
  GB_CHECK(test_now() - start < 5);
  must_close(job);
}
