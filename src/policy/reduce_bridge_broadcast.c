/* reduce-bridge-broadcast: the default across islands.
 *
 *            island A                bridge                island B
 *   all_reduce, per chunk:
 *     members --reduce--> leader <==all_reduce==> leader <--reduce-- members
 *     members <-bcast---- leader                  leader --bcast---> members
 *   broadcast from a rank of A:
 *     rank --bcast--> A's others      leader ====> leader --bcast--> members
 *   all_gather, per run of rows: as a broadcast of that run from its island
 *   reduce_scatter, per run of slices that belong to B:
 *     members --reduce--> leader ===reduce===> leader --slice--> its rank
 *   reduce onto a rank of B: a reduce_scatter whose only slice is that rank's
 *
 * Only what the other side needs crosses the bridge. Chunks are pipelined: the
 * island works on chunk c + GBI_LOOKAHEAD while the bridge has chunk c and the
 * island hands out chunk c - 1. The order of steps on the island is therefore
 * "take in c, hand out c - GBI_LOOKAHEAD", the same on every rank.
 *
 * With compression, what `<==>` stands for is three things: each leader encodes
 * its sum, the payloads are given to all (or to the leader that wants the sum),
 * and whoever has them decodes and adds up, in member order.
 *
 * A "run" is a maximal range of consecutive ranks of one island, so that
 * contiguous islands cost one range and interleaved ones one range a rank. */
#include "policy/policy.h"

#include "base/memory.h"

#include <stdlib.h>

static bool fits(const gbi_topology *topology) {
  return topology->islands_count >= 2;
}

/* What one rank needs to know to write its plan. */
typedef struct maker {
  const gbi_policy_env *env;
  const gbi_topology *topology;
  gbi_plan *plan;
  const gbi_island *island; /* mine */
  int island_index;
  bool leads;
  bool alone; /* the island has one rank: it needs no island steps */
  bool wide;
  uint64_t bytes; /* of one element on its way */
  gbi_codec codec;    /* of sums on the bridge */
  uint32_t payloads;  /* made so far */
} maker;

/* Where rank r's row begins; a reduce is one row, the root's. */
static uint64_t row_at(const maker *m, int r) {
  const gbi_coll *coll = &m->plan->coll;
  if (coll->op == GBI_OP_REDUCE) return r <= coll->root ? 0 : coll->count;
  return gbi_plan_row_at(m->plan, r);
}

static void depend(gbi_step *step, uint32_t from, uint32_t count) {
  int slot = step->deps[0].count ? 1 : 0;
  step->deps[slot].from = from;
  step->deps[slot].count = count;
}

static uint32_t add_local(maker *m, int verb, gbi_ref src, gbi_ref dst,
                          uint64_t count, uint32_t from, uint32_t n) {
  gbi_step step = {.resource = GBI_ON_RANK,
                   .verb = (uint8_t)verb,
                   .src = src,
                   .dst = dst,
                   .count = count};
  depend(&step, from, n);
  return gbi_plan_add(m->plan, &step);
}

static gbi_step island_step(int verb, int phase, int root, gbi_ref src,
                            gbi_ref dst, uint64_t count) {
  return (gbi_step){.resource = GBI_ON_ISLAND,
                    .verb = (uint8_t)verb,
                    .phase = (uint8_t)phase,
                    .root = root,
                    .src = src,
                    .dst = dst,
                    .count = count};
}

static gbi_step bridge_step(int verb, int root, gbi_ref src, gbi_ref dst,
                            uint64_t count) {
  gbi_step step = island_step(verb, GBI_PHASE_BRIDGE, root, src, dst, count);
  step.resource = GBI_ON_BRIDGE;
  return step;
}

/* ---- sums on the bridge ---- */

/* Payloads of `count` values of all leaders, in whole lines. */
static uint64_t coded_bytes(const maker *m, uint64_t count) {
  if (!m->codec) return 0;
  uint64_t bytes = gbi_codec_bytes(m->codec, count) *
                   (uint64_t)m->topology->islands_count;
  return (bytes + 63) / 64 * 64;
}

/* This leader's payload out of src, all that reach it into dst. `to`: the only
 * leader that gets them; -1: everybody. Returns the last step. */
static uint32_t coded_sum(maker *m, int to, gbi_ref src, gbi_ref dst,
                          uint64_t n, uint64_t coded_at, uint32_t from,
                          uint32_t from_count) {
  uint64_t bytes = gbi_codec_bytes(m->codec, n);
  int leaders = m->topology->islands_count;
  gbi_step encode = {.resource = GBI_ON_RANK,
                     .verb = GBI_DO_ENCODE,
                     .phase = GBI_PHASE_COMPRESS,
                     .wide = m->wide,
                     .codec = (uint8_t)m->codec,
                     .number = m->payloads++,
                     .src = src,
                     .count = n};
  encode.dst = gbi_ref_to(
      GBI_SCRATCH, coded_at + (uint64_t)m->island_index * bytes);
  depend(&encode, from, from_count);
  uint32_t first = gbi_plan_add(m->plan, &encode), last = first;
  for (int i = 0; i < leaders; i++) {
    if (i == to) continue;
    gbi_ref row = gbi_ref_to(GBI_SCRATCH, coded_at + (uint64_t)i * bytes);
    gbi_step step = bridge_step(to < 0 ? GBI_DO_BROADCAST : GBI_DO_TRANSFER, i,
                                row, row, bytes);
    step.codec = (uint8_t)m->codec;
    step.peer = GBI_MAX(to, 0);
    depend(&step, first, 1);
    last = gbi_plan_add(m->plan, &step);
  }
  gbi_step decode = {.resource = GBI_ON_RANK,
                     .verb = GBI_DO_DECODE,
                     .phase = GBI_PHASE_DECOMPRESS,
                     .wide = m->wide,
                     .codec = (uint8_t)m->codec,
                     .rows = (uint32_t)leaders,
                     .src = gbi_ref_to(GBI_SCRATCH, coded_at),
                     .dst = dst,
                     .count = n};
  depend(&decode, first, last - first + 1);
  if (to >= 0 && to != m->island_index) return last;
  return gbi_plan_add(m->plan, &decode);
}

/* ---- all_reduce ---- */

/* Island sum onto the leader and the bridge's total, in place. Returns the
 * index of the step after which the leader's chunk is final; members have none
 * (returns their only step). */
static uint32_t reduce_chunk(maker *m, uint64_t at, uint64_t n, gbi_ref place,
                             uint64_t coded_at, uint32_t free_from,
                             uint32_t free_count) {
  uint32_t last_from = free_from, last_count = free_count;
  gbi_ref out = gbi_ref_to(GBI_OUT, at);
  if (m->wide) {
    last_from = add_local(m, GBI_DO_LOAD, gbi_ref_to(GBI_IN, at), place, n,
                          last_from, last_count);
    last_count = 1;
  }
  if (!m->alone) {
    gbi_step step =
        island_step(GBI_DO_REDUCE, GBI_PHASE_ISLAND_REDUCE, 0, place, place, n);
    step.wide = m->wide;
    depend(&step, last_from, last_count);
    last_from = gbi_plan_add(m->plan, &step);
    last_count = 1;
  }
  if (!m->leads) return last_from;
  if (m->codec && n) {
    last_from = coded_sum(m, -1, place, place, n, coded_at, last_from,
                          last_count);
  } else {
    gbi_step step = bridge_step(GBI_DO_ALL_REDUCE, 0, place, place, n);
    step.wide = m->wide;
    depend(&step, last_from, last_count);
    last_from = gbi_plan_add(m->plan, &step);
  }
  if (m->wide)
    last_from = add_local(m, GBI_DO_STORE, place, out, n, last_from, 1);
  else if (m->plan->coll.redop == GB_AVG)
    last_from = add_local(m, GBI_DO_DIVIDE, out, out, n, last_from, 1);
  return last_from;
}

static uint32_t hand_out_chunk(maker *m, uint64_t at, uint64_t n,
                               uint32_t after) {
  if (m->alone) return after;
  gbi_step step =
      island_step(GBI_DO_BROADCAST, GBI_PHASE_ISLAND_BROADCAST, 0,
                  gbi_ref_to(GBI_OUT, at), gbi_ref_to(GBI_OUT, at), n);
  depend(&step, after, 1);
  return gbi_plan_add(m->plan, &step);
}

static void plan_all_reduce(maker *m) {
  uint64_t count = m->plan->coll.count;
  uint64_t chunk = gbi_chunk_elements(m->env, m->plan, count);
  uint64_t chunks = count ? (count + chunk - 1) / chunk : 1;
  uint64_t wide_bytes = m->wide ? chunk * m->bytes : 0;
  uint64_t slot_bytes = wide_bytes + coded_bytes(m, chunk);
  m->plan->scratch_bytes = slot_bytes * GBI_SLOTS;
  uint32_t done[GBI_SLOTS] = {0}; /* last step of the chunk in each slot */
  for (uint64_t c = 0; c < chunks + GBI_LOOKAHEAD; c++) {
    if (c < chunks) {
      uint64_t at = c * chunk, n = GBI_MIN(chunk, count - at);
      uint32_t slot = (uint32_t)(c % GBI_SLOTS);
      gbi_ref place = m->wide ? gbi_ref_to(GBI_SCRATCH, slot * slot_bytes)
                              : gbi_ref_to(GBI_OUT, at);
      bool reused = slot_bytes && c >= GBI_SLOTS;
      done[slot] = reduce_chunk(m, at, n, place, slot * slot_bytes + wide_bytes,
                                done[slot], reused);
    }
    if (c >= GBI_LOOKAHEAD) {
      uint64_t k = c - GBI_LOOKAHEAD, at = k * chunk;
      uint32_t slot = (uint32_t)(k % GBI_SLOTS);
      done[slot] =
          hand_out_chunk(m, at, GBI_MIN(chunk, count - at), done[slot]);
    }
  }
}

/* ---- broadcast and all_gather ---- */

/* A range of OUT that one island gives to all others. */
typedef struct unit {
  int island;
  int rank;  /* broadcast: the source; -1: rows of several ranks */
  int first; /* of those: the one whose row `at` is in */
  uint64_t at, count;
  uint64_t turn; /* its place in the order that all ranks follow */
} unit;

/* The source island's own part: everybody there gets each row from its rank.
 * Returns the first step; *count_p how many. */
static uint32_t spread_at_home(maker *m, const unit *u, uint32_t copied,
                               uint32_t *count_p) {
  uint32_t first = m->plan->count;
  uint64_t at = u->at, last = u->at + u->count;
  int rank = u->rank >= 0 ? u->rank : u->first;
  do {
    while (u->rank < 0 && row_at(m, rank + 1) <= at) rank++;
    uint64_t end = u->rank >= 0 ? last : GBI_MIN(row_at(m, rank + 1), last);
    gbi_step step = island_step(
        GBI_DO_BROADCAST,
        u->rank >= 0 ? GBI_PHASE_ISLAND_BROADCAST : GBI_PHASE_ISLAND_GATHER,
        gbi_topology_position(m->topology, rank), gbi_ref_to(GBI_OUT, at),
        gbi_ref_to(GBI_OUT, at), end - at);
    if (u->rank < 0 && rank == m->env->rank) depend(&step, copied, 1);
    gbi_plan_add(m->plan, &step);
    at = end;
  } while (at < last);
  *count_p = m->plan->count - first;
  return first;
}

/* Takes the unit in: home spread and bridge. Returns the step after which the
 * leader of another island may hand it out. */
static uint32_t take_unit(maker *m, const unit *u, uint32_t copied) {
  uint32_t first = copied, spread = u->rank < 0;
  if (u->island == m->island_index && !m->alone) {
    uint32_t count;
    first = spread_at_home(m, u, copied, &count);
    spread = count;
  }
  if (!m->leads) return first;
  gbi_step step =
      bridge_step(GBI_DO_BROADCAST, u->island, gbi_ref_to(GBI_OUT, u->at),
                  gbi_ref_to(GBI_OUT, u->at), u->count);
  if (u->island == m->island_index) depend(&step, first, spread);
  return gbi_plan_add(m->plan, &step);
}

static void hand_out_unit(maker *m, const unit *u, uint32_t after) {
  if (u->island == m->island_index || m->alone) return;
  gbi_step step = island_step(GBI_DO_BROADCAST, GBI_PHASE_ISLAND_BROADCAST, 0,
                              gbi_ref_to(GBI_OUT, u->at),
                              gbi_ref_to(GBI_OUT, u->at), u->count);
  if (m->leads) depend(&step, after, 1);
  gbi_plan_add(m->plan, &step);
}

static int compare_turns(const void *a, const void *b) {
  uint64_t x = ((const unit *)a)->turn, y = ((const unit *)b)->turn;
  return x < y ? -1 : x > y;
}

/* Cuts rows 0..world-1 into units: runs, cut by chunk. Islands take turns, so
 * that the bridge is busy in every direction at once. The caller frees; NULL
 * sets plan->failed. */
static unit *cut_units(maker *m, uint64_t chunk, uint64_t *count_p) {
  const gbi_topology *t = m->topology;
  uint64_t most = row_at(m, t->world) / chunk + (uint64_t)t->world + 1;
  unit *units = gbi_malloc(most * sizeof *units);
  uint64_t *turns = gbi_calloc((size_t)t->islands_count, sizeof *turns);
  uint64_t count = 0;
  m->plan->failed |= !units || !turns;
  for (int first = 0, last; first < t->world && units && turns; first = last) {
    int island = t->island_of[first];
    for (last = first + 1; last < t->world; last++)
      if (t->island_of[last] != island) break;
    uint64_t end = row_at(m, last);
    int row = first;
    for (uint64_t at = row_at(m, first); at < end; at += chunk) {
      uint64_t turn = turns[island]++ * (uint64_t)t->islands_count;
      while (row_at(m, row + 1) <= at) row++;
      units[count++] = (unit){island, -1, row, at, GBI_MIN(chunk, end - at),
                              turn + (uint64_t)island};
    }
  }
  if (!turns) {
    free(units);
    units = NULL;
  }
  free(turns);
  if (units) qsort(units, count, sizeof *units, compare_turns);
  *count_p = count;
  return units;
}

static void plan_all_gather(maker *m) {
  uint64_t total = row_at(m, m->topology->world), count;
  uint64_t chunk = gbi_chunk_elements(m->env, m->plan, total);
  uint64_t mine = row_at(m, m->env->rank);
  uint32_t copied = add_local(m, GBI_DO_COPY, gbi_ref_to(GBI_IN, 0),
                              gbi_ref_to(GBI_OUT, mine),
                              row_at(m, m->env->rank + 1) - mine, 0, 0);
  unit *units = cut_units(m, chunk, &count);
  uint32_t after[GBI_LOOKAHEAD];
  for (uint64_t i = 0; units && i < count + GBI_LOOKAHEAD; i++) {
    uint32_t *slot = &after[i % GBI_LOOKAHEAD];
    if (i >= GBI_LOOKAHEAD) hand_out_unit(m, &units[i - GBI_LOOKAHEAD], *slot);
    if (i < count) *slot = take_unit(m, &units[i], copied);
  }
  free(units);
}

static void plan_broadcast(maker *m) {
  uint64_t count = m->plan->coll.count;
  uint64_t chunk = gbi_chunk_elements(m->env, m->plan, count);
  uint64_t chunks = count ? (count + chunk - 1) / chunk : 1;
  int root = m->plan->coll.root;
  unit ring[GBI_LOOKAHEAD];
  uint32_t after[GBI_LOOKAHEAD];
  for (uint64_t c = 0; c < chunks + GBI_LOOKAHEAD; c++) {
    uint64_t i = c % GBI_LOOKAHEAD;
    if (c >= GBI_LOOKAHEAD) hand_out_unit(m, &ring[i], after[i]);
    if (c >= chunks) continue;
    ring[i] = (unit){.island = m->topology->island_of[root],
                     .rank = root,
                     .at = c * chunk,
                     .count = GBI_MIN(chunk, count - c * chunk)};
    after[i] = take_unit(m, &ring[i], 0);
  }
}

/* ---- reduce_scatter and reduce ---- */

/* Slices [at, at + count) of the input, all of ranks of island `to`. */
static uint32_t gather_sum(maker *m, const unit *u, gbi_ref place,
                           uint64_t coded_at, uint32_t free_from,
                           uint32_t free_count) {
  gbi_ref src = gbi_ref_to(GBI_IN, u->at);
  uint32_t from = free_from, n = free_count;
  if (m->wide) {
    from = add_local(m, GBI_DO_LOAD, src, place, u->count, from, n);
    n = 1;
    src = place;
  }
  if (!m->alone) {
    gbi_step step = island_step(GBI_DO_REDUCE, GBI_PHASE_ISLAND_REDUCE, 0, src,
                                place, u->count);
    step.wide = m->wide;
    depend(&step, from, n);
    from = gbi_plan_add(m->plan, &step);
    n = 1;
    src = place;
  }
  if (!m->leads) return from;
  if (m->codec && u->count)
    return coded_sum(m, u->island, src, place, u->count, coded_at, from, n);
  gbi_step step = bridge_step(GBI_DO_REDUCE, u->island, src, place, u->count);
  step.wide = m->wide;
  depend(&step, from, n);
  return gbi_plan_add(m->plan, &step);
}

/* Elements [at, at + n) of the unit that lies at `place`. */
static gbi_ref part_of(const maker *m, gbi_ref place, uint64_t at) {
  uint64_t size = place.place == GBI_SCRATCH ? m->bytes : 1;
  return (gbi_ref){place.place, place.offset + at * size};
}

/* The end of a slice at its rank: `part` is the sum, after step `after`. */
static void keep_sum(maker *m, gbi_ref part, gbi_ref out, uint64_t n,
                     uint32_t after) {
  if (m->wide) {
    add_local(m, GBI_DO_STORE, part, out, n, after, 1);
    return;
  }
  if (part.place != GBI_OUT)
    after = add_local(m, GBI_DO_COPY, part, out, n, after, 1);
  if (m->plan->coll.redop == GB_AVG)
    add_local(m, GBI_DO_DIVIDE, out, out, n, after, 1);
}

/* At the island the slices belong to: the leader sends each rank its part and
 * keeps its own. `place` is the leader's sum. */
static void scatter_sum(maker *m, const unit *u, gbi_ref place,
                        uint32_t after) {
  uint64_t last = u->at + u->count;
  int rank = u->first;
  for (uint64_t at = u->at, end; at < last; at = end) {
    while (row_at(m, rank + 1) <= at) rank++;
    end = GBI_MIN(row_at(m, rank + 1), last);
    gbi_ref part = part_of(m, place, at - u->at);
    gbi_ref out = gbi_ref_to(GBI_OUT, at - row_at(m, rank));
    bool mine = rank == m->env->rank;
    if (m->leads && mine) keep_sum(m, part, out, end - at, after);
    if (m->alone || rank == m->island->leader) continue;
    gbi_ref to = m->wide ? part : out;
    gbi_step step = island_step(GBI_DO_TRANSFER, GBI_PHASE_ISLAND_SCATTER, 0,
                                part, to, end - at);
    step.peer = gbi_topology_position(m->topology, rank);
    step.wide = m->wide;
    depend(&step, after, 1);
    uint32_t got = gbi_plan_add(m->plan, &step);
    if (mine) keep_sum(m, to, out, end - at, got);
  }
}

/* Where the sum of a unit gathers: in its slot, but what the leader keeps of a
 * reduce may as well gather in the result. */
static gbi_ref sum_place(const maker *m, const unit *u, uint64_t slot_at) {
  bool keeps = m->plan->coll.op == GBI_OP_REDUCE && !m->wide &&
               m->plan->coll.root == m->env->rank && m->leads;
  return keeps ? gbi_ref_to(GBI_OUT, u->at) : gbi_ref_to(GBI_SCRATCH, slot_at);
}

static void plan_reduce_scatter(maker *m) {
  uint64_t total = row_at(m, m->topology->world), count;
  uint64_t chunk = gbi_chunk_elements(m->env, m->plan, total);
  uint64_t sum_bytes = chunk * m->bytes;
  uint64_t slot_bytes = sum_bytes + coded_bytes(m, chunk);
  m->plan->scratch_bytes = slot_bytes * GBI_SLOTS;
  unit *units = cut_units(m, chunk, &count);
  /* An empty reduce is still a meeting, as an empty all_reduce is. */
  int root = m->plan->coll.root;
  if (m->plan->coll.op == GBI_OP_REDUCE && units && !count)
    units[count++] =
        (unit){m->topology->island_of[root], -1, root, 0, 0, 0};
  /* Per slot: the step that ends the sum in it, and the steps after which it is
   * free again. */
  uint32_t sum[GBI_SLOTS], from[GBI_SLOTS] = {0}, steps[GBI_SLOTS] = {0};
  for (uint64_t i = 0; units && i < count + GBI_LOOKAHEAD; i++) {
    if (i < count) {
      uint32_t slot = (uint32_t)(i % GBI_SLOTS), first = m->plan->count;
      gbi_ref place = sum_place(m, &units[i], slot * slot_bytes);
      sum[slot] = gather_sum(m, &units[i], place, slot * slot_bytes + sum_bytes,
                             from[slot], steps[slot]);
      from[slot] = first;
      steps[slot] = m->plan->count - first;
    }
    if (i < GBI_LOOKAHEAD) continue;
    const unit *u = &units[i - GBI_LOOKAHEAD];
    if (u->island != m->island_index) continue;
    uint32_t slot = (uint32_t)((i - GBI_LOOKAHEAD) % GBI_SLOTS);
    uint32_t first = m->plan->count;
    scatter_sum(m, u, sum_place(m, u, slot * slot_bytes), sum[slot]);
    if (m->plan->count == first) continue;
    from[slot] = first;
    steps[slot] = m->plan->count - first;
  }
  free(units);
}

static void make(const gbi_policy_env *env, gbi_plan *plan) {
  const gbi_topology *t = env->topology;
  int index = t->island_of[env->rank];
  maker m = {.env = env,
             .topology = t,
             .plan = plan,
             .island = &t->islands[index],
             .island_index = index,
             .leads = t->islands[index].leader == env->rank,
             .alone = t->islands[index].count == 1,
             .wide = gbi_coll_is_wide(&plan->coll),
             .bytes = gb_dtype_bytes(gbi_coll_travel_dtype(&plan->coll)),
             .codec = gbi_plan_codec(env, &plan->coll)};
  switch (plan->coll.op) {
    case GBI_OP_BROADCAST: plan_broadcast(&m); break;
    case GBI_OP_ALL_GATHER:
    case GBI_OP_ALL_GATHER_V: plan_all_gather(&m); break;
    case GBI_OP_REDUCE:
    case GBI_OP_REDUCE_SCATTER:
    case GBI_OP_REDUCE_SCATTER_V: plan_reduce_scatter(&m); break;
    default: plan_all_reduce(&m);
  }
}

const gbi_policy_ops gbi_policy_reduce_bridge_broadcast = {
    .name = "reduce-bridge-broadcast",
    .help =
        "islands reduce onto their leaders, leaders meet over the bridge, "
        "islands hand out; pipelined by chunk",
    .fits = fits,
    .plan = make,
};
