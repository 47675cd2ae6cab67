/* flat: the slow, obviously right reference.
 *
 * All ranks are one list; islands and bridge are not used. Every contribution
 * is broadcast to everybody, chunk by chunk, and each rank folds the rows in
 * rank order with a plain loop. Nothing is clever, so that everything else can
 * be compared with it. */
#include "policy/policy.h"

static bool fits(const gbi_topology *topology) {
  (void)topology;
  return true;
}

static uint32_t add_broadcast(gbi_plan *plan, int root, bool wide, gbi_ref src,
                              gbi_ref dst, uint64_t count, uint32_t from,
                              uint32_t n) {
  gbi_step step = {.resource = GBI_ON_WORLD,
                   .verb = GBI_DO_BROADCAST,
                   .wide = wide,
                   .root = root,
                   .src = src,
                   .dst = dst,
                   .count = count};
  step.deps[0].from = from;
  step.deps[0].count = n;
  return gbi_plan_add(plan, &step);
}

/* Rows of [in_at, in_at + count) of every rank into scratch (loaded, when the
 * call is wide: only their own rank knows the factor), then folded into OUT at
 * out_at when `keep`. */
static void fold_range(const gbi_policy_env *env, gbi_plan *plan,
                       uint64_t in_at, uint64_t out_at, uint64_t count,
                       bool keep, uint32_t *previous_p) {
  bool wide = gbi_coll_is_wide(&plan->coll);
  uint64_t bytes = gb_dtype_bytes(gbi_coll_travel_dtype(&plan->coll));
  uint64_t world = (uint64_t)env->topology->world;
  uint64_t chunk = gbi_chunk_elements(env, plan, count * world);
  chunk = GBI_MAX(chunk / world, 1);
  plan->scratch_bytes = GBI_MAX(plan->scratch_bytes, chunk * bytes * world);
  /* Each chunk waits for the whole one before it (the last one of the slice
   * before, at first): one chunk at a time is in the scratch. */
  uint32_t previous = GBI_MIN(*previous_p, plan->count);
  for (uint64_t at = 0; at < count; at += chunk) {
    uint64_t n = GBI_MIN(chunk, count - at);
    uint32_t before = plan->count, waits = before - previous;
    gbi_step copy = {
        .resource = GBI_ON_RANK,
        .verb = wide ? GBI_DO_LOAD : GBI_DO_COPY,
        .src = gbi_ref_to(GBI_IN, in_at + at),
        .dst = gbi_ref_to(GBI_SCRATCH, (uint64_t)env->rank * n * bytes),
        .count = n};
    copy.deps[0].from = previous;
    copy.deps[0].count = waits;
    gbi_plan_add(plan, &copy);
    for (int r = 0; r < env->topology->world; r++) {
      gbi_ref row = gbi_ref_to(GBI_SCRATCH, (uint64_t)r * n * bytes);
      add_broadcast(plan, r, wide, row, row, n, previous,
                    r == env->rank ? waits + 1 : waits);
    }
    previous = before;
    if (!keep) continue;
    gbi_step fold = {.resource = GBI_ON_RANK,
                     .verb = GBI_DO_FOLD,
                     .wide = wide,
                     .src = gbi_ref_to(GBI_SCRATCH, 0),
                     .dst = gbi_ref_to(GBI_OUT, out_at + at),
                     .count = n};
    fold.deps[0].from = before;
    fold.deps[0].count = plan->count - before;
    gbi_plan_add(plan, &fold);
  }
  *previous_p = previous;
}

static void plan_all_gather(const gbi_policy_env *env, gbi_plan *plan) {
  uint64_t mine = gbi_plan_row_at(plan, env->rank);
  gbi_step copy = {.resource = GBI_ON_RANK,
                   .verb = GBI_DO_COPY,
                   .src = gbi_ref_to(GBI_IN, 0),
                   .dst = gbi_ref_to(GBI_OUT, mine),
                   .count = gbi_plan_row_at(plan, env->rank + 1) - mine};
  uint32_t copied = gbi_plan_add(plan, &copy);
  for (int r = 0; r < env->topology->world; r++) {
    gbi_ref at = gbi_ref_to(GBI_OUT, gbi_plan_row_at(plan, r));
    add_broadcast(plan, r, false, at, at,
                  gbi_plan_row_at(plan, r + 1) - at.offset, copied,
                  r == env->rank);
  }
}

static void plan_reduce_scatter(const gbi_policy_env *env, gbi_plan *plan) {
  uint32_t previous = 0;
  for (int r = 0; r < env->topology->world; r++) {
    uint64_t at = gbi_plan_row_at(plan, r);
    fold_range(env, plan, at, 0, gbi_plan_row_at(plan, r + 1) - at,
               r == env->rank, &previous);
  }
}

static void make(const gbi_policy_env *env, gbi_plan *plan) {
  uint64_t count = plan->coll.count;
  uint32_t previous = 0;
  gbi_ref in = gbi_ref_to(GBI_IN, 0), out = gbi_ref_to(GBI_OUT, 0);
  switch (plan->coll.op) {
    case GBI_OP_BROADCAST:
      add_broadcast(plan, plan->coll.root, false, in, out, count, 0, 0);
      break;
    case GBI_OP_ALL_GATHER:
    case GBI_OP_ALL_GATHER_V: plan_all_gather(env, plan); break;
    case GBI_OP_REDUCE_SCATTER:
    case GBI_OP_REDUCE_SCATTER_V: plan_reduce_scatter(env, plan); break;
    case GBI_OP_REDUCE:
      fold_range(env, plan, 0, 0, count, env->rank == plan->coll.root,
                 &previous);
      break;
    default: fold_range(env, plan, 0, 0, count, true, &previous);
  }
}

const gbi_policy_ops gbi_policy_flat = {
    .name = "flat",
    .help =
        "reference: every rank gets every contribution and folds them in "
        "rank order",
    .fits = fits,
    .plan = make,
    .uses_world = true,
};
