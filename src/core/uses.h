/* core/uses: the memory of one call on this rank, and whether two calls may be
 * under way together. */
#ifndef GBI_CORE_USES_H
#define GBI_CORE_USES_H

#include "plan/plan.h"

typedef struct gbi_uses {
  const void *in, *out;
  size_t in_bytes, out_bytes;
} gbi_uses;

static inline gbi_uses gbi_uses_of(const gbi_coll *coll, int rank, int world,
                                   const void *in, const void *out) {
  size_t size = gb_dtype_bytes((gb_dtype)coll->dtype);
  uint64_t in_elements, out_elements;
  gbi_coll_extents(coll, rank, world, &in_elements, &out_elements);
  return (gbi_uses){in, out, in_elements * size, out_elements * size};
}

static inline bool gbi_memory_overlaps(const void *a, size_t a_bytes,
                                       const void *b, size_t b_bytes) {
  uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
  return a_bytes && b_bytes && x < y + b_bytes && y < x + a_bytes;
}

/* One writes what the other uses: program order says which is first. */
static inline bool gbi_uses_clash(const gbi_uses *a, const gbi_uses *b) {
  return gbi_memory_overlaps(a->out, a->out_bytes, b->out, b->out_bytes) ||
         gbi_memory_overlaps(a->out, a->out_bytes, b->in, b->in_bytes) ||
         gbi_memory_overlaps(a->in, a->in_bytes, b->out, b->out_bytes);
}

#endif
