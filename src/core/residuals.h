/* core/residuals: what quantization lost of payloads, in float32, which the
 * next call of the same buffer adds first.
 *
 * A buffer is known by its address, element count and type, a payload by its
 * number in the call. What is kept is bounded; what was used longest ago goes
 * first. Without room (the bound, or memory) there is none: a payload is then
 * made without feedback, and less precise. One thread at a time, but for the
 * figures. */
#ifndef GBI_CORE_RESIDUALS_H
#define GBI_CORE_RESIDUALS_H

#include "base/base.h"

typedef struct gbi_residuals gbi_residuals;

typedef struct gbi_residual_key {
  const void *buffer;
  uint64_t elements; /* of the whole buffer */
  uint64_t count;    /* of this payload */
  uint32_t number;
  uint8_t op, dtype;
} gbi_residual_key;

/* Where values are kept: the host's memory, or a GPU's. */
typedef struct gbi_residual_memory {
  /* Zeros; NULL: there is no memory. */
  float *(*get)(void *arg, uint64_t count);
  void (*give)(void *arg, float *values);
  void *arg;
} gbi_residual_memory;

/* most: the bound in bytes. memory NULL: the host's. */
gb_status gbi_residuals_new(uint64_t most, const gbi_residual_memory *memory,
                            gbi_residuals **residuals_p, gb_error *error);
void gbi_residuals_free(gbi_residuals *residuals);
/* All of them. NULL is fine. */
void gbi_residuals_drop(gbi_residuals *residuals);

/* What was found before may go from now on; what is found from now on stays
 * until the next time. */
void gbi_residuals_begin(gbi_residuals *residuals);
/* `count` values, zeros the first time; NULL: no room. */
float *gbi_residuals_find(gbi_residuals *residuals,
                          const gbi_residual_key *key);

/* What is kept, in bytes, and how many were dropped for want of room. Any
 * thread. */
uint64_t gbi_residuals_bytes(const gbi_residuals *residuals);
uint64_t gbi_residuals_dropped(const gbi_residuals *residuals);

#endif
