/* native-only: one island, so every collective is the island's own.
 *
 * The same plans serve any resource that holds all ranks. Drawing, 3 ranks:
 *   all_reduce      I:all_reduce (in place), divide for AVG
 *   broadcast       I:broadcast
 *   all_gather      copy own row, I:broadcast of each row from its rank
 *   reduce_scatter  I:reduce of each slice onto its rank, divide for AVG
 * An AVG of float16 goes through float32 scratch, chunk by chunk. */
#include "policy/policy.h"

static bool fits(const gbi_topology *topology) {
  return topology->islands_count == 1;
}

static uint32_t add_local(gbi_plan *plan, int verb, gbi_ref src, gbi_ref dst,
                          uint64_t count, uint32_t after, uint32_t afters) {
  gbi_step step = {.resource = GBI_ON_RANK,
                   .verb = (uint8_t)verb,
                   .src = src,
                   .dst = dst,
                   .count = count};
  step.deps[0].from = after;
  step.deps[0].count = afters;
  return gbi_plan_add(plan, &step);
}

/* widen, reduce (onto `root`, or everywhere with -1), narrow: in chunks. */
static void wide_range(const gbi_policy_env *env, gbi_plan *plan,
                       uint64_t in_at, uint64_t out_at, uint64_t count,
                       int root) {
  uint64_t chunk = gbi_chunk_elements(env, plan, count);
  uint64_t slot_bytes = chunk * 4;
  plan->scratch_bytes = GBI_MAX(plan->scratch_bytes, slot_bytes * GBI_SLOTS);
  uint32_t last_of_slot[GBI_SLOTS] = {0};
  uint64_t number = 0;
  for (uint64_t at = 0; at < count; at += chunk, number++) {
    uint64_t n = GBI_MIN(chunk, count - at);
    uint32_t slot = (uint32_t)(number % GBI_SLOTS);
    gbi_ref place = gbi_ref_to(GBI_SCRATCH, slot * slot_bytes);
    bool reused = number >= GBI_SLOTS;
    uint32_t widen =
        add_local(plan, GBI_DO_WIDEN, gbi_ref_to(GBI_IN, in_at + at), place, n,
                  last_of_slot[slot], reused);
    gbi_step step = {.resource = GBI_ON_ISLAND,
                     .verb = root < 0 ? GBI_DO_ALL_REDUCE : GBI_DO_REDUCE,
                     .wide = 1,
                     .root = GBI_MAX(root, 0),
                     .src = place,
                     .dst = place,
                     .count = n};
    step.deps[0].from = widen;
    step.deps[0].count = 1;
    uint32_t last = gbi_plan_add(plan, &step);
    if (root < 0 || root == env->rank)
      last = add_local(plan, GBI_DO_NARROW, place,
                       gbi_ref_to(GBI_OUT, out_at + at), n, last, 1);
    last_of_slot[slot] = last;
  }
}

static void plan_reduce_scatter_wide(const gbi_policy_env *env,
                                     gbi_plan *plan) {
  uint64_t slice = plan->coll.count;
  /* Slices one after another share the slots: each waits for the one before. */
  uint32_t previous = 0;
  for (int r = 0; r < env->topology->world; r++) {
    uint32_t before = plan->count;
    wide_range(env, plan, (uint64_t)r * slice, 0, slice, r);
    for (uint32_t i = before; i < plan->count; i++) {
      gbi_step *step = &plan->steps[i];
      if (step->verb != GBI_DO_WIDEN || step->deps[0].count) continue;
      step->deps[1].from = previous;
      step->deps[1].count = before - previous;
    }
    previous = before;
  }
}

static void plan_reduce_scatter(const gbi_policy_env *env, gbi_plan *plan) {
  uint64_t slice = plan->coll.count;
  if (gbi_coll_is_wide(&plan->coll)) {
    plan_reduce_scatter_wide(env, plan);
    return;
  }
  uint32_t mine = 0;
  for (int r = 0; r < env->topology->world; r++) {
    gbi_step step = {.resource = GBI_ON_ISLAND,
                     .verb = GBI_DO_REDUCE,
                     .root = r,
                     .src = gbi_ref_to(GBI_IN, (uint64_t)r * slice),
                     .dst = gbi_ref_to(GBI_OUT, 0),
                     .count = slice};
    uint32_t index = gbi_plan_add(plan, &step);
    if (r == env->rank) mine = index;
  }
  if (plan->coll.redop == GB_AVG)
    add_local(plan, GBI_DO_DIVIDE, gbi_ref_to(GBI_OUT, 0),
              gbi_ref_to(GBI_OUT, 0), slice, mine, 1);
}

static void plan_all_gather(const gbi_policy_env *env, gbi_plan *plan) {
  uint64_t row = plan->coll.count;
  gbi_ref mine = gbi_ref_to(GBI_OUT, (uint64_t)env->rank * row);
  uint32_t copied =
      add_local(plan, GBI_DO_COPY, gbi_ref_to(GBI_IN, 0), mine, row, 0, 0);
  for (int r = 0; r < env->topology->world; r++) {
    gbi_ref at = gbi_ref_to(GBI_OUT, (uint64_t)r * row);
    gbi_step step = {.resource = GBI_ON_ISLAND,
                     .verb = GBI_DO_BROADCAST,
                     .root = r,
                     .src = at,
                     .dst = at,
                     .count = row};
    step.deps[0].from = copied;
    step.deps[0].count = r == env->rank;
    gbi_plan_add(plan, &step);
  }
}

static void plan_whole(gbi_plan *plan, int verb, int root) {
  gbi_step step = {.resource = GBI_ON_ISLAND,
                   .verb = (uint8_t)verb,
                   .root = root,
                   .src = gbi_ref_to(GBI_IN, 0),
                   .dst = gbi_ref_to(GBI_OUT, 0),
                   .count = plan->coll.count};
  uint32_t index = gbi_plan_add(plan, &step);
  if (plan->coll.redop == GB_AVG)
    add_local(plan, GBI_DO_DIVIDE, step.dst, step.dst, step.count, index, 1);
}

static void make(const gbi_policy_env *env, gbi_plan *plan) {
  switch (plan->coll.op) {
    case GBI_OP_BROADCAST:
      plan_whole(plan, GBI_DO_BROADCAST, plan->coll.root);
      break;
    case GBI_OP_ALL_GATHER: plan_all_gather(env, plan); break;
    case GBI_OP_REDUCE_SCATTER: plan_reduce_scatter(env, plan); break;
    default: /* all_reduce and barrier */
      if (gbi_coll_is_wide(&plan->coll))
        wide_range(env, plan, 0, 0, plan->coll.count, -1);
      else
        plan_whole(plan, GBI_DO_ALL_REDUCE, 0);
  }
}

const gbi_policy_ops gbi_policy_native_only = {
    .name = "native-only",
    .help = "one island: every collective is the island's own",
    .fits = fits,
    .plan = make,
};
