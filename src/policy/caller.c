/* A policy of the caller's own: a call is one step, which the caller carries
 * out as a whole.
 *
 *   meet:  a word of each rank over islands and bridge, so that the library
 *          finds who is late, who left and who called something else, before a
 *          callback waits for it where nobody can look
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

typedef struct maker {
  const gbi_policy_env *env;
  gbi_plan *plan;
  uint32_t met; /* steps of the meeting, the first of the plan */
} maker;

enum { WORD_BYTES = 16 }; /* one element of any type */

static void add_word(maker *m, int resource, int verb, int root, int place,
                     uint32_t waits) {
  gbi_ref word = gbi_ref_to(GBI_SCRATCH, (uint64_t)place * WORD_BYTES);
  gbi_step step = {.resource = (uint8_t)resource,
                   .verb = (uint8_t)verb,
                   .root = root,
                   .src = word,
                   .dst = word,
                   .count = 1};
  step.deps[0].count = waits; /* the first ones */
  gbi_plan_add(m->plan, &step);
}

/* A word from each rank to its leader, from each leader to the others, and
 * back: copies only, which every type allows. */
static void add_meeting(maker *m) {
  const gbi_topology *t = m->env->topology;
  const gbi_island *island = &t->islands[t->island_of[m->env->rank]];
  for (int i = 1; i < island->count; i++)
    add_word(m, GBI_ON_ISLAND, GBI_DO_TRANSFER, i, i, 0);
  uint32_t waits = m->plan->count;
  if (t->islands_count > 1 && island->leader == m->env->rank)
    for (int i = 0; i < t->islands_count; i++)
      add_word(m, GBI_ON_BRIDGE, GBI_DO_BROADCAST, i, i, waits);
  if (island->count > 1)
    add_word(m, GBI_ON_ISLAND, GBI_DO_BROADCAST, 0, 0, m->plan->count);
  m->met = m->plan->count;
  m->plan->scratch_bytes = WORD_BYTES * (uint64_t)t->world;
}

/* Every step waits for the one before it, and for the meeting. */
static void add_next(maker *m, int resource, int verb, bool wide, gbi_ref src,
                     gbi_ref dst, uint64_t count) {
  gbi_plan *plan = m->plan;
  gbi_step step = {.resource = (uint8_t)resource,
                   .verb = (uint8_t)verb,
                   .wide = wide,
                   .src = src,
                   .dst = dst,
                   .count = count};
  if (verb == GBI_DO_CALL) step.root = GBI_MAX(plan->coll.root, 0);
  step.deps[0].count = m->met;
  step.deps[1].from = plan->count ? plan->count - 1 : 0;
  step.deps[1].count = plan->count ? 1 : 0;
  gbi_plan_add(plan, &step);
}

/* rows: of the input in the scratch; the result follows them, or lies in their
 * place when there is one. */
static void plan_wide(maker *m, int rows) {
  gbi_plan *plan = m->plan;
  uint64_t count = plan->coll.count;
  uint64_t bytes = gb_dtype_bytes(gbi_coll_travel_dtype(&plan->coll));
  uint64_t places = rows > 1 ? (uint64_t)rows + 1 : 1;
  uint64_t chunk = gbi_chunk_elements(m->env, plan, count * places) / places;
  chunk = GBI_MAX(chunk, 1);
  plan->scratch_bytes = GBI_MAX(plan->scratch_bytes, chunk * bytes * places);
  for (uint64_t at = 0; at < GBI_MAX(count, 1); at += chunk) {
    uint64_t n = GBI_MIN(chunk, count - at);
    for (int r = 0; r < rows; r++)
      add_next(m, GBI_ON_RANK, GBI_DO_LOAD, false,
               gbi_ref_to(GBI_IN, (uint64_t)r * count + at),
               gbi_ref_to(GBI_SCRATCH, (uint64_t)r * n * bytes), n);
    gbi_ref sum =
        gbi_ref_to(GBI_SCRATCH, rows > 1 ? (uint64_t)rows * n * bytes : 0);
    add_next(m, GBI_ON_WORLD, GBI_DO_CALL, true, gbi_ref_to(GBI_SCRATCH, 0),
             sum, n);
    add_next(m, GBI_ON_RANK, GBI_DO_STORE, false, sum, gbi_ref_to(GBI_OUT, at),
             n);
  }
}

void gbi_policy_caller_plan(const gbi_policy_env *env, gbi_plan *plan) {
  const gbi_coll *coll = &plan->coll;
  if (!gbi_policy_caller_takes(coll)) {
    gbi_auto_choose(env, coll)->plan(env, plan);
    return;
  }
  maker m = {.env = env, .plan = plan};
  gbi_ref in = gbi_ref_to(GBI_IN, 0), out = gbi_ref_to(GBI_OUT, 0);
  add_meeting(&m);
  if (gbi_coll_is_wide(coll)) {
    plan_wide(&m, coll->op == GBI_OP_REDUCE_SCATTER ? env->topology->world : 1);
    return;
  }
  add_next(&m, GBI_ON_WORLD, GBI_DO_CALL, false, in, out, coll->count);
  if (coll->redop == GB_AVG)
    add_next(&m, GBI_ON_RANK, GBI_DO_DIVIDE, false, out, out, coll->count);
}
