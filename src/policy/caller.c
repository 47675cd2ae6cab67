/* A policy of the caller's own: a call is one step, which the caller carries
 * out as a whole.
 *
 *   meet:  an empty sum over islands and bridge, so that the library finds who
 *          is late, who left and who called something else, before a callback
 *          waits for it where nobody can look
 *   call:  on the world, in one piece
 *   local: an average's division; where elements travel wide, a piece at a time
 *          is loaded and stored around the call
 *
 * What such a policy does not know (barrier, rows of different lengths and the
 * like) goes the built-in way. */
#include "policy/policy.h"

bool gbi_policy_caller_takes(const gbi_coll *coll) {
  return (coll->op == GBI_OP_ALL_REDUCE || coll->op == GBI_OP_BROADCAST ||
          coll->op == GBI_OP_ALL_GATHER || coll->op == GBI_OP_REDUCE_SCATTER) &&
         !coll->counts_count;
}

static uint32_t add_after(gbi_plan *plan, gbi_step step, uint32_t from,
                          uint32_t count) {
  step.deps[0].from = from;
  step.deps[0].count = count;
  return gbi_plan_add(plan, &step);
}

static void add_meeting(const gbi_policy_env *env, gbi_plan *plan) {
  const gbi_topology *t = env->topology;
  const gbi_island *island = &t->islands[t->island_of[env->rank]];
  gbi_ref none = gbi_ref_to(GBI_OUT, 0);
  gbi_step step = {.resource = GBI_ON_ISLAND, .src = none, .dst = none};
  step.verb = GBI_DO_REDUCE;
  if (island->count > 1) add_after(plan, step, 0, plan->count);
  if (t->islands_count > 1 && island->leader == env->rank) {
    step.resource = GBI_ON_BRIDGE;
    step.verb = GBI_DO_ALL_REDUCE;
    add_after(plan, step, 0, plan->count);
  }
  step.resource = GBI_ON_ISLAND;
  step.verb = GBI_DO_BROADCAST;
  if (island->count > 1) add_after(plan, step, 0, plan->count);
}

/* Every step waits for all before it. */
static void add_next(gbi_plan *plan, int resource, int verb, bool wide,
                     gbi_ref src, gbi_ref dst, uint64_t count) {
  gbi_step step = {.resource = (uint8_t)resource,
                   .verb = (uint8_t)verb,
                   .wide = wide,
                   .src = src,
                   .dst = dst,
                   .count = count};
  uint32_t last = plan->count ? plan->count - 1 : 0;
  if (verb == GBI_DO_CALL) step.root = GBI_MAX(plan->coll.root, 0);
  add_after(plan, step, last, plan->count ? 1 : 0);
}

/* rows: of the input in the scratch; the result follows them, or lies in their
 * place when there is one. */
static void plan_wide(const gbi_policy_env *env, gbi_plan *plan, int rows) {
  uint64_t count = plan->coll.count;
  uint64_t bytes = gb_dtype_bytes(gbi_coll_travel_dtype(&plan->coll));
  uint64_t places = rows > 1 ? (uint64_t)rows + 1 : 1;
  uint64_t chunk = gbi_chunk_elements(env, plan, count * places) / places;
  chunk = GBI_MAX(chunk, 1);
  plan->scratch_bytes = chunk * bytes * places;
  for (uint64_t at = 0; at < GBI_MAX(count, 1); at += chunk) {
    uint64_t n = GBI_MIN(chunk, count - at);
    for (int r = 0; r < rows; r++)
      add_next(plan, GBI_ON_RANK, GBI_DO_LOAD, false,
               gbi_ref_to(GBI_IN, (uint64_t)r * count + at),
               gbi_ref_to(GBI_SCRATCH, (uint64_t)r * n * bytes), n);
    gbi_ref sum =
        gbi_ref_to(GBI_SCRATCH, rows > 1 ? (uint64_t)rows * n * bytes : 0);
    add_next(plan, GBI_ON_WORLD, GBI_DO_CALL, true, gbi_ref_to(GBI_SCRATCH, 0),
             sum, n);
    add_next(plan, GBI_ON_RANK, GBI_DO_STORE, false, sum,
             gbi_ref_to(GBI_OUT, at), n);
  }
}

void gbi_policy_caller_plan(const gbi_policy_env *env, gbi_plan *plan) {
  const gbi_coll *coll = &plan->coll;
  if (!gbi_policy_caller_takes(coll)) {
    gbi_policy_auto(env->topology)->plan(env, plan);
    return;
  }
  gbi_ref in = gbi_ref_to(GBI_IN, 0), out = gbi_ref_to(GBI_OUT, 0);
  add_meeting(env, plan);
  if (gbi_coll_is_wide(coll)) {
    plan_wide(env, plan,
              coll->op == GBI_OP_REDUCE_SCATTER ? env->topology->world : 1);
    return;
  }
  add_next(plan, GBI_ON_WORLD, GBI_DO_CALL, false, in, out, coll->count);
  if (coll->redop == GB_AVG)
    add_next(plan, GBI_ON_RANK, GBI_DO_DIVIDE, false, out, out, coll->count);
}
