/* The results of many calls as one row of bytes, for tests that compare ways of
 * carrying them bit by bit. */
#ifndef GB_TESTS_BITS_H
#define GB_TESTS_BITS_H

#include "job/job.h"
#include "job/values.h"

typedef struct results {
  uint8_t *bytes;
  size_t used, room;
} results;

static inline void keep(results *all, const void *data, size_t bytes) {
  if (!bytes) return;
  if (all->used + bytes > all->room) {
    all->room = (all->used + bytes) * 2;
    all->bytes = realloc(all->bytes, all->room);
    GB_CHECK(all->bytes);
  }
  memcpy(all->bytes + all->used, data, bytes);
  all->used += bytes;
}

/* What ranks contribute: small integers; values of many magnitudes, whose sums
 * round; these and any bits, which may stand for infinity or for no number. */
typedef enum given { EXACT, ROUNDS, ANY_BITS } given;

static inline bool is_whole(gb_dtype dtype) {
  return dtype <= GB_INT64 || (dtype >= GB_INT16 && dtype <= GB_BOOL);
}

static inline void make_given(void *data, size_t n, gb_dtype dtype,
                              given what) {
  uint64_t seed = (uint64_t)gb_rank() * 977 + 1;
  size_t bytes = gb_dtype_bytes(dtype);
  for (size_t i = 0; i < n; i++) {
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    int dice = (int)(seed >> 40);
    double v = what != EXACT
                   ? (1 + dice % 4093 / 4096.0) * ldexp(1, dice / 4096 % 9)
                   : value_of(gb_rank(), i);
    if (what == ANY_BITS && (is_whole(dtype) || i % 8 == 0))
      for (size_t k = 0; k < bytes; k++)
        ((uint8_t *)data)[i * bytes + k] = (uint8_t)(seed >> (17 + 3 * k));
    else
      put(data, i, dtype, v);
  }
}

/* The same values serve call after call. */
static inline void give(void *data, size_t n, gb_dtype dtype, given what) {
  static struct {
    void *data;
    size_t n, room;
    gb_dtype dtype;
    given what;
  } made;
  size_t bytes = n * gb_dtype_bytes(dtype);
  if (!n) return;
  if (made.dtype != dtype || made.what != what || made.n < n) {
    if (made.room < bytes) {
      free(made.data);
      made.data = malloc(made.room = bytes);
      GB_CHECK(made.data);
    }
    make_given(made.data, n, dtype, what);
    made.n = n;
    made.dtype = dtype;
    made.what = what;
  }
  memcpy(data, made.data, bytes);
}

typedef struct run {
  gb_group *group;
  size_t n;
  gb_dtype dtype;
  given given;
  uint8_t *small, *large; /* n elements; world * n */
  results *all;
} run;

static inline void keep_sums(const run *r, gb_redop op) {
  size_t bytes = r->n * gb_dtype_bytes(r->dtype), world = (size_t)gb_world();
  gb_buffer small = {r->small, r->n, r->dtype};
  gb_buffer large = {r->large, r->n * world, r->dtype};
  if (!gb_redop_supported(op, r->dtype)) return;
  give(r->small, r->n, r->dtype, r->given);
  MUST(gb_all_reduce(r->group, &small, op, NULL, error));
  keep(r->all, r->small, bytes);
  give(r->large, r->n * world, r->dtype, r->given);
  MUST(gb_reduce_scatter(r->group, &small, &large, op, NULL, error));
  keep(r->all, r->small, bytes);
  for (int root = 0; root < gb_world(); root += 2) {
    give(r->small, r->n, r->dtype, r->given);
    MUST(gb_reduce(r->group, &small, op, root, NULL, error));
    keep(r->all, r->small, bytes);
  }
}

/* Rows of lengths 0, n, 2 n / 3 ... that are as long together as n each. */
static inline void keep_rows(const run *r) {
  size_t bytes = gb_dtype_bytes(r->dtype), counts[16], total = 0;
  for (int k = 0; k < gb_world(); k++) {
    counts[k] = r->n * (size_t)(k % 4) / 3;
    total += counts[k];
  }
  gb_buffer mine = {r->small, counts[gb_rank()], r->dtype};
  gb_buffer all = {r->large, total, r->dtype};
  give(r->small, mine.count, r->dtype, r->given);
  memset(r->large, 0xee, total * bytes);
  MUST(gb_all_gather_v(r->group, &all, &mine, counts, NULL, error));
  keep(r->all, r->large, total * bytes);
  give(r->large, total, r->dtype, r->given);
  MUST(gb_reduce_scatter_v(r->group, &mine, &all, counts, GB_SUM, NULL, error));
  keep(r->all, r->small, mine.count * bytes);
}

static inline void keep_copies(const run *r) {
  size_t bytes = r->n * gb_dtype_bytes(r->dtype), world = (size_t)gb_world();
  gb_buffer small = {r->small, r->n, r->dtype};
  gb_buffer large = {r->large, r->n * world, r->dtype};
  for (int root = 0; root < gb_world(); root++) {
    give(r->small, r->n, r->dtype, r->given);
    MUST(gb_broadcast(r->group, &small, root, NULL, error));
    keep(r->all, r->small, bytes);
  }
  give(r->small, r->n, r->dtype, r->given);
  memset(r->large, 0xee, bytes * world);
  MUST(gb_all_gather(r->group, &large, &small, NULL, error));
  keep(r->all, r->large, bytes * world);
}

/* Both were made by the same calls. */
static inline void must_equal(const results *got, const results *want,
                              const char *other) {
  GB_CHECK_INT(got->used, want->used);
  if (!got->used || !memcmp(got->bytes, want->bytes, got->used)) return;
  for (size_t i = 0; i < got->used; i++)
    if (got->bytes[i] != want->bytes[i])
      gb_test_fail(__FILE__, __LINE__, "byte %zu of %zu differs from %s", i,
                   got->used, other);
}

#endif
