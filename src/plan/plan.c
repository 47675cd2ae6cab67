#include "plan/plan.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

const char *gbi_phase_name(int phase) {
  static const char *const names[] = {
      "",       "island-reduce",    "island-gather",
      "bridge", "island-broadcast", "island-scatter",
      "exchange", "island-reduce-scatter", "island-all-gather",
      "compress", "decompress",
  };
  return phase >= 0 && phase < GBI_PHASES ? names[phase] : "";
}

bool gbi_coll_equal(const gbi_coll *a, const gbi_coll *b) {
  return a->op == b->op && a->dtype == b->dtype && a->redop == b->redop &&
         a->root == b->root && a->count == b->count &&
         a->counts_count == b->counts_count &&
         (!a->counts_count ||
          !memcmp(a->counts, b->counts, a->counts_count * sizeof *a->counts));
}

bool gbi_coll_is_scaled(const gbi_coll *coll) {
  return coll->redop == GB_PREMUL_SUM;
}

bool gbi_coll_is_wide(const gbi_coll *coll) {
  if (gbi_coll_is_scaled(coll)) return true;
  if (coll->redop == GB_AVG && coll->dtype == GB_FLOAT16) return true;
  return coll->redop != 255 &&
         gbi_dtype_class((gb_dtype)coll->dtype) == GBI_CLASS_FLOAT8;
}

gb_dtype gbi_coll_travel_dtype(const gbi_coll *coll) {
  gb_dtype dtype = (gb_dtype)coll->dtype;
  return gbi_coll_is_wide(coll) ? gbi_wide_dtype(dtype) : dtype;
}

bool gbi_coll_in_place(const gbi_coll *coll) {
  return coll->op == GBI_OP_ALL_REDUCE || coll->op == GBI_OP_BROADCAST ||
         coll->op == GBI_OP_REDUCE || coll->op == GBI_OP_BARRIER;
}

uint64_t *gbi_coll_copy_counts(const gbi_coll *coll) {
  if (!coll->counts_count) return NULL;
  uint64_t *copy = gbi_malloc(coll->counts_count * sizeof *copy);
  if (copy) memcpy(copy, coll->counts, coll->counts_count * sizeof *copy);
  return copy;
}

static uint64_t add_up(const uint64_t *counts, int n) {
  uint64_t sum = 0;
  for (int i = 0; i < n; i++) sum += counts[i];
  return sum;
}

void gbi_coll_extents(const gbi_coll *coll, int rank, int world, uint64_t *in,
                      uint64_t *out) {
  const uint64_t *counts = coll->counts;
  uint64_t all = coll->count * (uint64_t)world;
  *in = *out = coll->count;
  switch (coll->op) {
    case GBI_OP_ALL_GATHER: *out = all; break;
    case GBI_OP_REDUCE_SCATTER: *in = all; break;
    case GBI_OP_ALL_GATHER_V: *in = counts[rank]; break;
    case GBI_OP_REDUCE_SCATTER_V: *out = counts[rank]; break;
    case GBI_OP_GATHER: *out = rank == coll->root ? all : 0; break;
    case GBI_OP_SCATTER: *in = rank == coll->root ? all : 0; break;
    case GBI_OP_ALL_TO_ALL:
      *in = counts ? add_up(counts, world) : all;
      *out = counts ? add_up(counts + world, world) : all;
      break;
    default: break;
  }
}

uint64_t gbi_coll_bytes(const gbi_coll *coll, int world) {
  uint64_t in, out, size = gb_dtype_bytes((gb_dtype)coll->dtype);
  gbi_coll_extents(coll, 0, world, &in, &out);
  uint64_t most = GBI_MAX(in, out);
  return most > UINT64_MAX / size ? UINT64_MAX : most * size;
}

int32_t gbi_coll_counts_hash(const gbi_coll *coll) {
  if (!coll->counts_count) return -1;
  uint64_t hash = coll->counts_count;
  for (uint32_t i = 0; i < coll->counts_count; i++) {
    hash = (hash ^ coll->counts[i]) * UINT64_C(0x9e3779b97f4a7c15);
    hash ^= hash >> 29;
  }
  return (int32_t)(hash >> 33);
}

gb_dtype gbi_step_dtype(const gbi_plan *plan, const gbi_step *step) {
  if (step->codec && step->resource != GBI_ON_RANK) return GB_UINT8;
  return step->wide ? gbi_coll_travel_dtype(&plan->coll)
                    : (gb_dtype)plan->coll.dtype;
}

/* ---- rows ---- */

static int lists(const gbi_coll *coll) {
  return coll->op == GBI_OP_ALL_TO_ALL ? 2 : 1;
}

static bool add_rows(gbi_plan *plan) {
  const gbi_coll *coll = &plan->coll;
  if (!coll->counts_count) return true;
  uint32_t n = coll->counts_count / (uint32_t)lists(coll);
  plan->coll.counts = gbi_coll_copy_counts(coll);
  plan->rows =
      gbi_malloc(((size_t)coll->counts_count + 2) * sizeof *plan->rows);
  if (!coll->counts || !plan->rows) return false;
  for (int list = 0; list < lists(coll); list++) {
    uint64_t *rows = plan->rows + (size_t)list * (n + 1);
    rows[0] = 0;
    for (uint32_t i = 0; i < n; i++)
      rows[i + 1] = rows[i] + coll->counts[(size_t)list * n + i];
  }
  return true;
}

uint64_t gbi_plan_row_at(const gbi_plan *plan, int row) {
  return plan->rows ? plan->rows[row] : plan->coll.count * (uint64_t)row;
}

uint64_t gbi_plan_out_at(const gbi_plan *plan, int row) {
  uint32_t rows = plan->coll.counts_count / 2 + 1;
  return plan->rows ? plan->rows[rows + (uint32_t)row]
                    : plan->coll.count * (uint64_t)row;
}

/* ---- building ---- */

gbi_plan *gbi_plan_new(const gbi_coll *coll) {
  gbi_plan *plan = gbi_calloc(1, sizeof *plan);
  if (!plan) return NULL;
  plan->coll = *coll;
  if (add_rows(plan)) return plan;
  gbi_plan_free(plan);
  return NULL;
}

void gbi_plan_free(gbi_plan *plan) {
  if (!plan) return;
  if (plan->coll.counts_count) free((void *)(uintptr_t)plan->coll.counts);
  free(plan->rows);
  free(plan->steps);
  free(plan->order);
  free(plan->releases);
  free(plan);
}

uint32_t gbi_plan_add(gbi_plan *plan, const gbi_step *step) {
  if (plan->count == plan->capacity) {
    uint32_t capacity = plan->capacity ? plan->capacity * 2 : 16;
    gbi_step *steps = NULL;
    if (capacity <= GBI_PLAN_STEPS_MAX)
      steps = gbi_realloc(plan->steps, capacity * sizeof *steps);
    if (!steps) {
      plan->failed = true;
      return 0;
    }
    plan->steps = steps;
    plan->capacity = capacity;
  }
  plan->steps[plan->count] = *step;
  return plan->count++;
}

gb_status gbi_plan_seal(gbi_plan *plan, gb_error *error) {
  plan->order = gbi_malloc((plan->count + 1) * sizeof *plan->order);
  if (plan->failed || !plan->order)
    return gbi_fail(error, GB_ERR_MEMORY,
                    "no memory for a plan of more than %u steps", plan->count);
  uint32_t at = 0;
  for (int resource = 0; resource < GBI_RESOURCES; resource++) {
    plan->first[resource] = at;
    for (uint32_t i = 0; i < plan->count; i++)
      if (plan->steps[i].resource == resource) plan->order[at++] = i;
  }
  plan->first[GBI_RESOURCES] = at;
  for (uint32_t i = 0; i < plan->count; i++)
    plan->phases |= (uint16_t)(1u << plan->steps[i].phase);
  plan->phases &= (uint16_t)~1u;
  return GB_OK;
}
