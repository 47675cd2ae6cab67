/* native-only: one island, so every collective is the island's own.
 *
 * The same plans serve any communicator W that holds all ranks: `direct` has
 * them on the world's. Drawing, 3 ranks:
 *   all_reduce      W:all_reduce (in place), divide for AVG; or W:reduce onto
 *                   rank 0, divide there, W:broadcast
 *   reduce          W:reduce, divide on the root for AVG
 *   broadcast       W:broadcast
 *   all_gather      copy own row, W:broadcast of each row from its rank
 *   reduce_scatter  W:reduce of each slice onto its rank, divide for AVG; or
 *                   W:all_reduce into scratch, copy own slice
 * The v forms are the same with rows of their own lengths. Wide calls (an AVG
 * of float16, float8, scaled sums) go through scratch of the wide type, chunk
 * by chunk. */
#include "policy/policy.h"

/* On one host an all_reduce of these many bytes is a reduce onto rank 0 and a
 * broadcast: ranks wait for each other once each way, not in every piece. With
 * 8 ranks on 2 cores that took half the time at 16 KiB, three quarters at
 * 256 KiB. (Two ranks have nobody else to wait for.) Longer ones are added up
 * by all, each its part; shorter ones by everybody in one round. */
enum { SMALL_BYTES = 8192, BY_ONE_BYTES = 256 * 1024 };

/* Which communicator, for whose plan. */
typedef struct maker {
  const gbi_policy_env *env;
  gbi_plan *plan;
  gbi_resource on;
} maker;

static bool fits(const gbi_topology *topology) {
  return topology->islands_count == 1;
}

static uint32_t add_local(const maker *m, int verb, gbi_ref src, gbi_ref dst,
                          uint64_t count, uint32_t after, uint32_t afters) {
  gbi_step step = {.resource = GBI_ON_RANK,
                   .verb = (uint8_t)verb,
                   .src = src,
                   .dst = dst,
                   .count = count};
  step.deps[0].from = after;
  step.deps[0].count = afters;
  return gbi_plan_add(m->plan, &step);
}

/* load, reduce (onto `root`, or everywhere with -1), store: in chunks. */
static void wide_range(const maker *m, uint64_t in_at, uint64_t out_at,
                       uint64_t count, int root) {
  gbi_plan *plan = m->plan;
  uint64_t chunk = gbi_chunk_elements(m->env, plan, count);
  uint64_t slot_bytes =
      chunk * gb_dtype_bytes(gbi_coll_travel_dtype(&plan->coll));
  plan->scratch_bytes = GBI_MAX(plan->scratch_bytes, slot_bytes * GBI_SLOTS);
  uint32_t last_of_slot[GBI_SLOTS] = {0};
  uint64_t number = 0;
  for (uint64_t at = 0; at < count; at += chunk, number++) {
    uint64_t n = GBI_MIN(chunk, count - at);
    uint32_t slot = (uint32_t)(number % GBI_SLOTS);
    gbi_ref place = gbi_ref_to(GBI_SCRATCH, slot * slot_bytes);
    bool reused = number >= GBI_SLOTS;
    uint32_t load =
        add_local(m, GBI_DO_LOAD, gbi_ref_to(GBI_IN, in_at + at), place, n,
                  last_of_slot[slot], reused);
    gbi_step step = {.resource = (uint8_t)m->on,
                     .verb = root < 0 ? GBI_DO_ALL_REDUCE : GBI_DO_REDUCE,
                     .wide = 1,
                     .root = GBI_MAX(root, 0),
                     .src = place,
                     .dst = place,
                     .count = n};
    step.deps[0].from = load;
    step.deps[0].count = 1;
    uint32_t last = gbi_plan_add(plan, &step);
    if (root < 0 || root == m->env->rank)
      last = add_local(m, GBI_DO_STORE, place,
                       gbi_ref_to(GBI_OUT, out_at + at), n, last, 1);
    last_of_slot[slot] = last;
  }
}

static void plan_reduce_scatter_wide(const maker *m) {
  gbi_plan *plan = m->plan;
  /* Slices one after another share the slots: each waits for the one before. */
  uint32_t previous = 0;
  for (int r = 0; r < m->env->topology->world; r++) {
    uint32_t before = plan->count;
    uint64_t at = gbi_plan_row_at(plan, r);
    wide_range(m, at, 0, gbi_plan_row_at(plan, r + 1) - at, r);
    if (plan->count == before) continue;
    for (uint32_t i = before; i < plan->count; i++) {
      gbi_step *step = &plan->steps[i];
      if (step->verb != GBI_DO_LOAD || step->deps[0].count) continue;
      step->deps[1].from = previous;
      step->deps[1].count = before - previous;
    }
    previous = before;
  }
}

/* All slices to everybody, in one round instead of one a rank. */
static void plan_reduce_scatter_small(const maker *m) {
  gbi_plan *plan = m->plan;
  int rank = m->env->rank;
  uint64_t at = gbi_plan_row_at(plan, rank);
  uint64_t all = gbi_plan_row_at(plan, m->env->topology->world);
  uint64_t size = gb_dtype_bytes((gb_dtype)plan->coll.dtype);
  gbi_ref out = gbi_ref_to(GBI_OUT, 0);
  gbi_step step = {.resource = (uint8_t)m->on,
                   .verb = GBI_DO_ALL_REDUCE,
                   .src = gbi_ref_to(GBI_IN, 0),
                   .dst = gbi_ref_to(GBI_SCRATCH, 0),
                   .count = all};
  plan->scratch_bytes = all * size;
  uint32_t last = gbi_plan_add(plan, &step);
  uint64_t count = gbi_plan_row_at(plan, rank + 1) - at;
  last = add_local(m, GBI_DO_COPY, gbi_ref_to(GBI_SCRATCH, at * size), out,
                   count, last, 1);
  if (plan->coll.redop == GB_AVG)
    add_local(m, GBI_DO_DIVIDE, out, out, count, last, 1);
}

static void plan_reduce_scatter(const maker *m) {
  gbi_plan *plan = m->plan;
  if (gbi_coll_is_wide(&plan->coll)) {
    plan_reduce_scatter_wide(m);
    return;
  }
  uint64_t all = gbi_plan_row_at(plan, m->env->topology->world) *
                 gb_dtype_bytes((gb_dtype)plan->coll.dtype);
  uint64_t most = GBI_MIN(SMALL_BYTES, m->env->chunk_bytes); /* of scratch */
  if (all && all <= most && m->env->topology->hosts_count == 1) {
    plan_reduce_scatter_small(m);
    return;
  }
  uint32_t mine = 0;
  uint64_t slice = 0;
  for (int r = 0; r < m->env->topology->world; r++) {
    uint64_t at = gbi_plan_row_at(plan, r);
    uint64_t count = gbi_plan_row_at(plan, r + 1) - at;
    gbi_step step = {.resource = (uint8_t)m->on,
                     .verb = GBI_DO_REDUCE,
                     .root = r,
                     .src = gbi_ref_to(GBI_IN, at),
                     .dst = gbi_ref_to(GBI_OUT, 0),
                     .count = count};
    uint32_t index = gbi_plan_add(plan, &step);
    if (r != m->env->rank) continue;
    mine = index;
    slice = count;
  }
  if (plan->coll.redop == GB_AVG)
    add_local(m, GBI_DO_DIVIDE, gbi_ref_to(GBI_OUT, 0),
              gbi_ref_to(GBI_OUT, 0), slice, mine, 1);
}

static void plan_all_gather(const maker *m) {
  gbi_plan *plan = m->plan;
  int rank = m->env->rank;
  uint64_t first = gbi_plan_row_at(plan, rank);
  uint32_t copied =
      add_local(m, GBI_DO_COPY, gbi_ref_to(GBI_IN, 0),
                gbi_ref_to(GBI_OUT, first),
                gbi_plan_row_at(plan, rank + 1) - first, 0, 0);
  for (int r = 0; r < m->env->topology->world; r++) {
    gbi_ref at = gbi_ref_to(GBI_OUT, gbi_plan_row_at(plan, r));
    gbi_step step = {.resource = (uint8_t)m->on,
                     .verb = GBI_DO_BROADCAST,
                     .root = r,
                     .src = at,
                     .dst = at,
                     .count = gbi_plan_row_at(plan, r + 1) - at.offset};
    step.deps[0].from = copied;
    step.deps[0].count = r == rank;
    gbi_plan_add(plan, &step);
  }
}

static void plan_whole(const maker *m, int verb, int root) {
  gbi_plan *plan = m->plan;
  gbi_step step = {.resource = (uint8_t)m->on,
                   .verb = (uint8_t)verb,
                   .root = root,
                   .src = gbi_ref_to(GBI_IN, 0),
                   .dst = gbi_ref_to(GBI_OUT, 0),
                   .count = plan->coll.count};
  uint32_t index = gbi_plan_add(plan, &step);
  bool gets = verb == GBI_DO_ALL_REDUCE ||
              (verb == GBI_DO_REDUCE && root == m->env->rank);
  if (plan->coll.redop == GB_AVG && gets)
    add_local(m, GBI_DO_DIVIDE, step.dst, step.dst, step.count, index, 1);
}

static void plan_all_reduce(const maker *m) {
  gbi_plan *plan = m->plan;
  uint64_t bytes = gbi_coll_bytes(&plan->coll, m->env->topology->world);
  const gbi_topology *t = m->env->topology;
  if (t->hosts_count > 1 || t->world < 3 || bytes <= SMALL_BYTES ||
      bytes > BY_ONE_BYTES) {
    plan_whole(m, GBI_DO_ALL_REDUCE, 0);
    return;
  }
  uint32_t before = plan->count;
  plan_whole(m, GBI_DO_REDUCE, 0);
  uint32_t reduced = plan->count;
  plan_whole(m, GBI_DO_BROADCAST, 0);
  if (plan->failed) return;
  gbi_step *step = &plan->steps[reduced];
  step->src = step->dst;
  step->deps[0].from = before;
  step->deps[0].count = reduced - before;
}

void gbi_plan_on_one(const gbi_policy_env *env, gbi_plan *plan,
                     gbi_resource on) {
  const gbi_coll *coll = &plan->coll;
  maker m = {env, plan, on};
  switch (coll->op) {
    case GBI_OP_BROADCAST:
      plan_whole(&m, GBI_DO_BROADCAST, coll->root);
      break;
    case GBI_OP_ALL_GATHER:
    case GBI_OP_ALL_GATHER_V: plan_all_gather(&m); break;
    case GBI_OP_REDUCE_SCATTER:
    case GBI_OP_REDUCE_SCATTER_V: plan_reduce_scatter(&m); break;
    default: /* all_reduce and barrier: root -1; reduce */
      if (gbi_coll_is_wide(coll))
        wide_range(&m, 0, 0, coll->count, coll->root);
      else if (coll->op == GBI_OP_REDUCE)
        plan_whole(&m, GBI_DO_REDUCE, coll->root);
      else
        plan_all_reduce(&m);
  }
}

static void make(const gbi_policy_env *env, gbi_plan *plan) {
  gbi_plan_on_one(env, plan, GBI_ON_ISLAND);
}

const gbi_policy_ops gbi_policy_native_only = {
    .name = "native-only",
    .help = "one island: every collective is the island's own",
    .fits = fits,
    .plan = make,
};
