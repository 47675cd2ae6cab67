#include "plan/plan.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

const char *gbi_phase_name(int phase) {
  static const char *const names[] = {
      "",       "island-reduce",    "island-gather",
      "bridge", "island-broadcast", "island-scatter",
  };
  return phase >= 0 && phase < GBI_PHASES ? names[phase] : "";
}

bool gbi_coll_equal(const gbi_coll *a, const gbi_coll *b) {
  return a->op == b->op && a->dtype == b->dtype && a->redop == b->redop &&
         a->root == b->root && a->count == b->count;
}

bool gbi_coll_is_wide(const gbi_coll *coll) {
  if (coll->redop == GB_PREMUL_SUM) return true;
  if (coll->redop == GB_AVG && coll->dtype == GB_FLOAT16) return true;
  return coll->redop != 255 &&
         gbi_dtype_class((gb_dtype)coll->dtype) == GBI_CLASS_FLOAT8;
}

gb_dtype gbi_step_dtype(const gbi_plan *plan, const gbi_step *step) {
  gb_dtype dtype = (gb_dtype)plan->coll.dtype;
  return step->wide ? gbi_wide_dtype(dtype) : dtype;
}

gbi_plan *gbi_plan_new(const gbi_coll *coll) {
  gbi_plan *plan = gbi_calloc(1, sizeof *plan);
  if (plan) plan->coll = *coll;
  return plan;
}

void gbi_plan_free(gbi_plan *plan) {
  if (!plan) return;
  free(plan->steps);
  free(plan->order);
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
    plan->phases |= (uint8_t)(1u << plan->steps[i].phase);
  plan->phases &= (uint8_t)~1u;
  return GB_OK;
}
