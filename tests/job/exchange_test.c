/* gather, scatter and all_to_all in whole jobs: exact on every layout, sync and
 * async, with the root's own row in place, with parts of every length and of
 * none; ranks that disagree learn it, and a refused call leaves the job usable
 * (S079, S081, S027, S032, S034). */
#include "job/job.h"
#include "job/layouts.h"
#include "job/values.h"

enum { RANKS_MAX = 8, MOST = 70001 };

static const gb_dtype dtypes[] = {GB_UINT8, GB_BFLOAT16, GB_FLOAT32, GB_INT64};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

static void one_gather(gb_group *group, size_t n, gb_dtype dtype, int root,
                       uint8_t *small, uint8_t *large, bool async) {
  size_t world = (size_t)gb_world(), bytes = gb_dtype_bytes(dtype);
  bool mine = gb_rank() == root;
  for (int inside = 0; inside < 2; inside++) {
    uint8_t *row = inside && mine ? large + (size_t)root * n * bytes : small;
    memset(large, 0xee, n * world * bytes);
    put_own(row, n, dtype);
    gb_buffer input = {row, n, dtype}, output = {large, n * world, dtype};
    gb_work *work = NULL;
    gb_error error;
    must_end(gb_gather(group, mine ? &output : NULL, &input, root,
                       async ? &work : NULL, &error),
             &work, &error);
    for (int r = 0; mine && r < gb_world(); r++)
      check_from((uint8_t *)large + (size_t)r * n * gb_dtype_bytes(dtype), n,
                 dtype, r, 0, "gather");
    check_from(row, n, dtype, gb_rank(), 0, "gather's input");
  }
}

static void one_scatter(gb_group *group, size_t n, gb_dtype dtype, int root,
                        uint8_t *small, uint8_t *large, bool async) {
  size_t world = (size_t)gb_world(), bytes = gb_dtype_bytes(dtype);
  size_t first = n * (size_t)gb_rank();
  bool mine = gb_rank() == root;
  for (int inside = 0; inside < 2; inside++) {
    uint8_t *row = inside && mine ? large + first * bytes : small;
    put_own(large, n * world, dtype);
    gb_buffer input = {large, n * world, dtype}, output = {row, n, dtype};
    gb_work *work = NULL;
    gb_error error;
    must_end(gb_scatter(group, &output, mine ? &input : NULL, root,
                        async ? &work : NULL, &error),
             &work, &error);
    check_from(row, n, dtype, root, first, "scatter");
    check_from(large, n * world, dtype, gb_rank(), 0, "scatter's input");
  }
}

/* Elements that rank `from` sends to rank `to`. */
static size_t part_of(int pattern, size_t n, int from, int to) {
  if (pattern == 0) return n;
  if (pattern == 1) return (from + 2 * to) % 3 ? (size_t)(from * 5 + to) : 0;
  return from == 0 && to == gb_world() - 1 ? n : 0;
}
enum { PATTERNS = 3 };

static void one_all_to_all(gb_group *group, int pattern, size_t n,
                           gb_dtype dtype, uint8_t *in, uint8_t *out,
                           bool async) {
  size_t in_counts[RANKS_MAX], out_counts[RANKS_MAX], ins = 0, outs = 0;
  for (int r = 0; r < gb_world(); r++) {
    ins += in_counts[r] = part_of(pattern, n, gb_rank(), r);
    outs += out_counts[r] = part_of(pattern, n, r, gb_rank());
  }
  put_own(in, ins, dtype);
  gb_buffer input = {in, ins, dtype}, output = {out, outs, dtype};
  gb_work *work = NULL;
  gb_error error;
  /* Equal parts by either list, by none or by both. */
  bool no_in = pattern == 0 && n % 2, no_out = pattern == 0 && n % 3;
  gb_status status =
      gb_all_to_all(group, &output, no_out ? NULL : out_counts, &input,
                    no_in ? NULL : in_counts, async ? &work : NULL, &error);
  memset(in_counts, 0xff, sizeof in_counts);
  memset(out_counts, 0xff, sizeof out_counts);
  must_end(status, &work, &error);
  size_t at = 0;
  for (int r = 0; r < gb_world(); r++) {
    size_t first = 0;
    for (int k = 0; k < gb_rank(); k++) first += part_of(pattern, n, r, k);
    for (size_t i = 0; i < part_of(pattern, n, r, gb_rank()); i++)
      check(out, at++, dtype, value_of(r, first + i), "all_to_all");
  }
  check_from(in, ins, dtype, gb_rank(), 0, "all_to_all's input");
}

static void all_shapes(const char *policy) {
  static const size_t counts[] = {0, 1, 1000, 1025, MOST};
  gb_job *job = must_open(60000, policy);
  gb_group *group = gb_job_world(job);
  uint8_t *a = malloc(MOST * 8 * (size_t)gb_world());
  uint8_t *b = malloc(MOST * 8 * (size_t)gb_world());
  int turn = 0;
  for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
    for (size_t t = 0; t < DTYPES; t++) {
      if (counts[c] == MOST && dtypes[t] != GB_FLOAT32) continue;
      int root = ++turn % gb_world();
      bool async = turn % 2;
      one_gather(group, counts[c], dtypes[t], root, a, b, async);
      one_scatter(group, counts[c], dtypes[t], root, a, b, async);
      for (int pattern = 0; pattern < PATTERNS; pattern++)
        one_all_to_all(group, pattern, counts[c], dtypes[t], a, b, async);
    }
  free(a);
  free(b);
  must_sum(job, 1);
  must_close(job);
}

#define LAYOUT(name, n, letters)                                 \
  GB_TEST(exchange, name##_auto, .ranks = n, .vendors = letters, \
          .timeout_ms = 120000) {                                \
    all_shapes(NULL);                                            \
  }                                                              \
  GB_TEST(exchange, name##_flat, .ranks = n, .vendors = letters, \
          .timeout_ms = 120000) {                                \
    all_shapes("flat");                                          \
  }

EACH_LAYOUT(LAYOUT)
GB_TEST(exchange, three_islands_auto, .ranks = 7, .vendors = "nnaaann",
        .timeout_ms = 120000) {
  name_three_islands();
  all_shapes(NULL);
}

/* More calls than the engine runs at once, mixed with others, all in flight. */
GB_TEST(exchange, many_in_flight, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  enum { CALLS = 30, N = 500 };
  gb_job *job = must_open(30000, NULL);
  gb_group *group = gb_job_world(job);
  int32_t(*in)[4 * N] = malloc(CALLS * sizeof *in);
  int32_t(*out)[4 * N] = malloc(CALLS * sizeof *out);
  float sums[CALLS];
  gb_work *works[CALLS], *others[CALLS];
  for (int c = 0; c < CALLS; c++) {
    for (int i = 0; i < 4 * N; i++) in[c][i] = c * 1000000 + gb_rank() * N + i;
    sums[c] = (float)gb_rank();
    gb_buffer input = {in[c], 4 * N, GB_INT32},
              output = {out[c], 4 * N, GB_INT32};
    gb_buffer sum = {&sums[c], 1, GB_FLOAT32};
    MUST(gb_all_to_all(group, &output, NULL, &input, NULL, &works[c], error));
    MUST(gb_all_reduce(group, &sum, GB_SUM, &others[c], error));
  }
  for (int c = 0; c < CALLS; c++) {
    MUST(gb_work_wait(works[c], 0, error));
    MUST(gb_work_wait(others[c], 0, error));
    gb_work_release(works[c]);
    gb_work_release(others[c]);
    GB_CHECK(sums[c] == 6);
    for (int i = 0; i < 4 * N; i++)
      GB_CHECK_INT(out[c][i], c * 1000000 + i / N * N + gb_rank() * N + i % N);
  }
  free(in);
  free(out);
  must_close(job);
}

GB_TEST(exchange, refused_arguments, .ranks = 2, .vendors = "na") {
  gb_job *job = must_open(20000, NULL);
  gb_group *group = gb_job_world(job);
  float a[8] = {0}, b[8] = {0};
  gb_buffer row = {a, 2, GB_FLOAT32}, rows = {b, 4, GB_FLOAT32};
  gb_buffer odd = {b, 5, GB_FLOAT32}, ints = {b, 4, GB_INT32};
  gb_buffer all = {a, 4, GB_FLOAT32}, inside = {b + 1, 2, GB_FLOAT32};
  size_t uneven[2] = {1, 3}, wrong[2] = {1, 1};
  gb_error error;
  int me = gb_rank(), other = 1 - me;
  must_be_refused(gb_gather(group, &rows, &row, 2, NULL, &error),
                  GB_ERR_ARGUMENT, &error, "destination rank is 2");
  must_be_refused(gb_scatter(group, &row, &rows, -1, NULL, &error),
                  GB_ERR_ARGUMENT, &error, "source rank is -1");
  must_be_refused(gb_gather(group, NULL, &row, me, NULL, &error),
                  GB_ERR_ARGUMENT, &error, "output is NULL");
  must_be_refused(gb_gather(group, &rows, &row, other, NULL, &error),
                  GB_ERR_ARGUMENT, &error, "output must be NULL on rank");
  must_be_refused(gb_scatter(group, &row, &rows, other, NULL, &error),
                  GB_ERR_ARGUMENT, &error, "input must be NULL on rank");
  must_be_refused(gb_gather(group, &odd, &row, me, NULL, &error),
                  GB_ERR_ARGUMENT, &error, "output has 5 elements");
  must_be_refused(gb_scatter(group, &row, &ints, me, NULL, &error),
                  GB_ERR_ARGUMENT, &error, "of one type");
  must_be_refused(gb_gather(group, &rows, &inside, me, NULL, &error),
                  GB_ERR_ARGUMENT, &error, "overlap otherwise");
  must_be_refused(gb_all_to_all(group, &odd, NULL, &all, NULL, NULL, &error),
                  GB_ERR_ARGUMENT, &error, "not a multiple of the 2 ranks");
  must_be_refused(gb_all_to_all(group, &rows, NULL, &all, wrong, NULL, &error),
                  GB_ERR_ARGUMENT, &error, "in_counts add up to 2");
  must_be_refused(gb_all_to_all(group, &rows, NULL, &all, uneven, NULL, &error),
                  GB_ERR_ARGUMENT, &error, "the part that this rank keeps");
  must_be_refused(gb_all_to_all(group, &rows, NULL, &rows, NULL, NULL, &error),
                  GB_ERR_ARGUMENT, &error, "two buffers");
  must_be_refused(gb_all_to_all(group, &ints, NULL, &all, NULL, NULL, &error),
                  GB_ERR_ARGUMENT, &error, "of one type");
  must_sum(job, 3);
  must_close(job);
}

/* What rank 3 calls otherwise than the others. */
typedef enum difference { ROOT, COUNT, TYPE, CALL, PART } difference;
static gb_status odd_call(gb_group *group, difference what, bool odd,
                          gb_error *error) {
  static double a[64], b[64];
  int root = odd && what == ROOT ? 3 : 0;
  size_t n = odd && what == COUNT ? 5 : 4;
  gb_dtype dtype = odd && what == TYPE ? GB_INT32 : GB_FLOAT32;
  gb_buffer small = {a, n, dtype}, large = {b, 4 * n, dtype};
  gb_buffer all = {a, 4 * n, dtype};
  if (what == PART) {
    size_t counts[4] = {n, n, n, n};
    if (odd) counts[1]++, counts[2]--;
    return gb_all_to_all(group, &large, NULL, &all, counts, NULL, error);
  }
  bool root_here = gb_rank() == root;
  if (odd && what == CALL)
    return gb_scatter(group, &small, root_here ? &large : NULL, root, NULL,
                      error);
  return gb_gather(group, root_here ? &large : NULL, &small, root, NULL, error);
}

static void disagree(difference what, const char *a, const char *b) {
  gb_job *job = must_open(20000, NULL);
  must_sum(job, 2);
  meet(0);
  gb_error error;
  double start = test_now();
  gb_status status = odd_call(gb_job_world(job), what, gb_rank() == 3, &error);
  /* Who only gives may be done before it can know. */
  if (status == GB_OK) status = gb_barrier(gb_job_world(job), NULL, &error);
  must_fail(status, &error, start, 10, a, b);
  must_close(job);
}
GB_TEST(exchange, another_root, .ranks = 4, .vendors = "nnaa") {
  disagree(ROOT, "onto rank 0", "onto rank 3");
}
GB_TEST(exchange, another_count, .ranks = 4, .vendors = "nnaa") {
  disagree(COUNT, "of 4 float32", "of 5 float32");
}
GB_TEST(exchange, another_type, .ranks = 4, .vendors = "nnaa") {
  disagree(TYPE, "4 float32", "4 int32");
}
GB_TEST(exchange, another_call, .ranks = 4, .vendors = "nnaa") {
  disagree(CALL, "gather number 2", "scatter number 2");
}
/* The ends of one part disagree: found by its message, which has the sizes. */
GB_TEST(exchange, another_part, .ranks = 4, .vendors = "nnaa") {
  disagree(PART, "rank 3", "all_to_all number 2");
}
