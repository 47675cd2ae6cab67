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
 * Over k links (sharded_bridge.c) every range above is cut into segments, one a
 * link: "leader" is then the holder of the segment's link. With one link there
 * is one segment, and the plan is the one drawn.
 *
 * With compression, what `<==>` stands for is three things: each holder encodes
 * its sum, the payloads are given to all (or to the holder that wants the sum),
 * and whoever has them decodes and adds up, in member order.
 *
 * Sums that are combined apart (on GPUs) are as those: each holder's own goes
 * to the others as it is, into a row each, and is joined with theirs in member
 * order. Between two holders that is as many bytes as a sum on the bridge.
 *
 * A "run" is a maximal range of consecutive ranks of one island, so that
 * contiguous islands cost one range and interleaved ones one range a rank. */
#include "policy/policy.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* Less is not worth a segment of its own (nor an eighth of a chunk, where
 * chunks are set smaller). */
#define SEGMENT_LEAST_BYTES ((uint64_t)16 << 10)
/* Of scratch, for the rows of sums that are combined apart. */
#define APART_MOST_BYTES ((uint64_t)256 << 20)

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
  int links;      /* that this call uses: numbers 0 .. links - 1 */
  int link;       /* the one that this rank holds, -1: none */
  uint64_t least; /* bytes that are worth a segment of their own */
  uint8_t reduces, hands_out; /* what the island phases are called */
  bool alone; /* the island has one rank: it needs no island steps */
  bool wide;
  uint64_t bytes; /* of one element on its way */
  gbi_codec codec;
  uint32_t payloads; /* encoded so far */
  bool apart;        /* sums may be combined by the holders */
} maker;

/* Where rank r's row begins; a reduce is one row, the root's. */
static uint64_t row_at(const maker *m, int r) {
  const gbi_coll *coll = &m->plan->coll;
  if (coll->op == GBI_OP_REDUCE) return r <= coll->root ? 0 : coll->count;
  return gbi_plan_row_at(m->plan, r);
}

/* ---- segments ---- */

/* How a range is cut: segment q goes over link (first + q) % links. */
typedef struct cut {
  uint64_t count;   /* of the range */
  uint64_t segment; /* elements in each, but for the last */
  int segments;
  int first;
} cut;

/* `turn` numbers the ranges of a call, alike on every rank: those too short for
 * all links take turns on them. An empty range is one segment, a meeting. */
static cut cut_range(const maker *m, uint64_t count, uint64_t turn) {
  uint64_t links = (uint64_t)m->links;
  uint64_t worth = GBI_MAX(count * m->bytes / m->least, 1);
  uint64_t most = GBI_MIN(links, worth);
  uint64_t segment = GBI_MAX((count + most - 1) / most, 1);
  uint64_t line = 64 / m->bytes;
  if (segment > line) segment = (segment + line - 1) / line * line;
  uint64_t segments = count ? (count + segment - 1) / segment : 1;
  uint64_t first = turn % links * segments % links;
  return (cut){count, segment, (int)segments, (int)first};
}

static uint64_t cut_at(const cut *c, int q) {
  return (uint64_t)q * c->segment;
}
static uint64_t cut_count(const cut *c, int q) {
  return GBI_MIN(c->segment, c->count - cut_at(c, q));
}
static int link_of(const maker *m, const cut *c, int q) {
  return (c->first + q) % m->links;
}
/* The rank of my island that holds the segment's link. */
static int holder_of(const maker *m, const cut *c, int q) {
  return m->island->holders[link_of(m, c, q)];
}
static int root_of(const maker *m, const cut *c, int q) {
  return gbi_topology_position(m->topology, holder_of(m, c, q));
}
/* The segment whose link this rank holds, -1: none. */
static int my_segment(const maker *m, const cut *c) {
  if (m->link < 0) return -1;
  int q = (m->link - c->first + m->links) % m->links;
  return q < c->segments ? q : -1;
}

/* The island's reduces of a range, one a segment, and what came of them. */
typedef struct taken {
  uint32_t first; /* the first of the reduces */
  uint32_t last;  /* after it this rank's own segment is final */
} taken;

/* The step after which this rank's part in segment q is over. */
static uint32_t after_segment(const maker *m, const cut *c, const taken *t,
                              int q) {
  return q == my_segment(m, c) ? t->last : t->first + (uint32_t)q;
}

/* Whether this rank hands segment q out, or gets it, only when its own link is
 * through with the range: its own segment, and all of a call's first range, so
 * that the phases of a record begin in the order of their names. */
static bool waits_for_link(const maker *m, const cut *c, int q, bool first) {
  int mine = my_segment(m, c);
  return q == mine || (first && mine >= 0);
}

/* Elements [at, ...) of the range that lies at `place`. */
static gbi_ref part_of(const maker *m, gbi_ref place, uint64_t at) {
  uint64_t size = place.place == GBI_SCRATCH ? m->bytes : 1;
  return (gbi_ref){place.place, place.offset + at * size};
}

/* ---- steps ---- */

static void depend(gbi_step *step, uint32_t from, uint32_t count) {
  int slot = step->deps[0].count ? 1 : 0;
  step->deps[slot].from = from;
  step->deps[slot].count = count;
}

static void depend_only(gbi_step *step, uint32_t on) {
  memset(step->deps, 0, sizeof step->deps);
  depend(step, on, 1);
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

/* Each segment onto its holder. Returns the first of the steps, which all wait
 * for the same. */
static uint32_t reduce_segments(maker *m, const cut *c, gbi_ref src,
                                gbi_ref dst, const gbi_step *like) {
  uint32_t first = m->plan->count;
  for (int q = 0; q < c->segments; q++) {
    uint64_t at = cut_at(c, q);
    gbi_step step = island_step(GBI_DO_REDUCE, m->reduces, root_of(m, c, q),
                                part_of(m, src, at), part_of(m, dst, at),
                                cut_count(c, q));
    step.wide = m->wide;
    step.deps[0] = like->deps[0];
    step.deps[1] = like->deps[1];
    gbi_plan_add(m->plan, &step);
  }
  return first;
}

/* ---- sums on the bridge ---- */

/* Payloads of `count` values of all islands, or the other islands' rows, in
 * whole lines. */
static uint64_t coded_bytes(const maker *m, uint64_t count) {
  uint64_t others = (uint64_t)m->topology->islands_count - 1;
  if (m->apart) return (count * m->bytes * others + 63) / 64 * 64;
  if (!m->codec) return 0;
  uint64_t bytes = gbi_codec_bytes(m->codec, count) *
                   (uint64_t)m->topology->islands_count;
  return (bytes + 63) / 64 * 64;
}

/* This holder's payload out of src, all that reach it into dst. `to`: the
 * island whose holder alone gets them; -1: everybody. `waits`: what src waits
 * for. Returns the last step. */
static uint32_t coded_sum(maker *m, int to, gbi_ref src, gbi_ref dst,
                          uint64_t n, uint64_t coded_at,
                          const gbi_step *waits) {
  uint64_t bytes = gbi_codec_bytes(m->codec, n);
  int holders = m->topology->islands_count;
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
  encode.deps[0] = waits->deps[0];
  encode.deps[1] = waits->deps[1];
  uint32_t first = gbi_plan_add(m->plan, &encode), last = first;
  for (int i = 0; i < holders; i++) {
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
                     .rows = (uint32_t)holders,
                     .src = gbi_ref_to(GBI_SCRATCH, coded_at),
                     .dst = dst,
                     .count = n};
  depend(&decode, first, last - first + 1);
  if (to >= 0 && to != m->island_index) return last;
  return gbi_plan_add(m->plan, &decode);
}

/* Whether a chunk's sums may be: where it is long enough, and rows of it are
 * not too much memory. Calls that share scratch follow each other. */
static void choose_apart(maker *m, uint64_t chunk) {
  uint64_t rows = (uint64_t)m->topology->islands_count - 1;
  m->apart = m->env->apart_least && !m->codec &&
             chunk * m->bytes >= m->env->apart_least &&
             chunk * m->bytes * rows <= APART_MOST_BYTES / GBI_SLOTS;
}

static bool goes_apart(const maker *m, uint64_t n) {
  return m->apart && n && n * m->bytes >= m->env->apart_least;
}

/* Island i's row of n values. */
static gbi_ref row_of(const maker *m, int i, uint64_t rows_at, uint64_t n) {
  uint64_t row = (uint64_t)(i - (i > m->island_index));
  return gbi_ref_to(GBI_SCRATCH, rows_at + row * n * m->bytes);
}

/* dst, which holds this island's sum, and the others' rows, left to right:
 * those before this island's first, in the first of them. */
static uint32_t combine_rows(maker *m, gbi_ref dst, uint64_t n,
                             uint64_t rows_at, uint32_t first, uint32_t count) {
  gbi_step step = {.resource = GBI_ON_RANK,
                   .verb = GBI_DO_COMBINE,
                   .wide = m->wide,
                   .count = n};
  uint32_t last = 0;
  depend(&step, first, count);
  for (int i = 0; i < m->topology->islands_count; i++) {
    bool before = i < m->island_index, mine = i == m->island_index;
    if (!i) continue; /* the sum so far */
    step.number = !mine;
    step.src = row_of(m, mine ? 0 : i, rows_at, n);
    step.dst = before ? row_of(m, 0, rows_at, n) : dst;
    last = gbi_plan_add(m->plan, &step);
    memset(&step.deps[1], 0, sizeof step.deps[1]);
    depend(&step, last, 1);
  }
  return last;
}

/* As coded_sum, of the values themselves. */
static uint32_t apart_sum(maker *m, int to, gbi_ref src, gbi_ref dst,
                          uint64_t n, uint64_t rows_at,
                          const gbi_step *waits) {
  int holders = m->topology->islands_count;
  bool keeps = to < 0 || to == m->island_index;
  uint32_t first = m->plan->count, last = first;
  for (int i = 0; i < holders; i++) {
    if (i == to) continue;
    bool mine = i == m->island_index;
    gbi_ref row = mine ? src : row_of(m, i, rows_at, n);
    gbi_step step = bridge_step(to < 0 ? GBI_DO_BROADCAST : GBI_DO_TRANSFER, i,
                                row, row, n);
    step.wide = m->wide;
    step.peer = GBI_MAX(to, 0);
    step.deps[0] = waits->deps[0];
    step.deps[1] = waits->deps[1];
    last = gbi_plan_add(m->plan, &step);
  }
  if (!keeps) return last;
  if (src.place != dst.place || src.offset != dst.offset) {
    gbi_step copy = *waits;
    copy.resource = GBI_ON_RANK;
    copy.verb = GBI_DO_COPY;
    copy.src = src;
    copy.dst = dst;
    copy.count = n;
    last = gbi_plan_add(m->plan, &copy);
  }
  return combine_rows(m, dst, n, rows_at, first, last - first + 1);
}

/* ---- all_reduce ---- */

/* Island sums of the chunk onto the holders and the links' totals, in place. */
static taken reduce_chunk(maker *m, const cut *c, uint64_t at, gbi_ref place,
                          uint64_t coded_at, gbi_step waits) {
  gbi_ref out = gbi_ref_to(GBI_OUT, at);
  uint64_t n = c->count;
  if (m->wide) {
    uint32_t load = add_local(m, GBI_DO_LOAD, gbi_ref_to(GBI_IN, at), place, n,
                              waits.deps[0].from, waits.deps[0].count);
    depend_only(&waits, load);
  }
  taken t = {m->plan->count, m->plan->count};
  int mine = my_segment(m, c);
  if (!m->alone) t.first = reduce_segments(m, c, place, place, &waits);
  if (mine < 0) return t;
  if (!m->alone) depend_only(&waits, t.first + (uint32_t)mine);
  uint64_t skip = cut_at(c, mine);
  n = cut_count(c, mine);
  place = part_of(m, place, skip);
  out = part_of(m, out, skip);
  if (m->codec && n) {
    t.last = coded_sum(m, -1, place, place, n, coded_at, &waits);
  } else if (goes_apart(m, n)) {
    t.last = apart_sum(m, -1, place, place, n, coded_at, &waits);
  } else {
    gbi_step step = bridge_step(GBI_DO_ALL_REDUCE, 0, place, place, n);
    step.wide = m->wide;
    step.deps[0] = waits.deps[0];
    t.last = gbi_plan_add(m->plan, &step);
  }
  if (m->wide)
    t.last = add_local(m, GBI_DO_STORE, place, out, n, t.last, 1);
  else if (m->plan->coll.redop == GB_AVG)
    t.last = add_local(m, GBI_DO_DIVIDE, out, out, n, t.last, 1);
  return t;
}

/* From the holders to everybody. *first_p, *count_p: the chunk's last steps. */
static void hand_out_chunk(maker *m, const cut *c, uint64_t at, const taken *t,
                           uint32_t *first_p, uint32_t *count_p) {
  *first_p = m->alone ? t->last : m->plan->count;
  *count_p = m->alone ? 1 : (uint32_t)c->segments;
  for (int q = 0; q < c->segments && !m->alone; q++) {
    gbi_ref place = gbi_ref_to(GBI_OUT, at + cut_at(c, q));
    gbi_step step = island_step(GBI_DO_BROADCAST, m->hands_out,
                                root_of(m, c, q), place, place,
                                cut_count(c, q));
    if (waits_for_link(m, c, q, !at)) depend(&step, t->last, 1);
    if (q != my_segment(m, c)) depend(&step, t->first + (uint32_t)q, 1);
    gbi_plan_add(m->plan, &step);
  }
}

static void plan_all_reduce(maker *m) {
  uint64_t count = m->plan->coll.count;
  uint64_t chunk = gbi_chunk_elements(m->env, m->plan, count);
  uint64_t chunks = count ? (count + chunk - 1) / chunk : 1;
  uint64_t wide_bytes = m->wide ? chunk * m->bytes : 0;
  choose_apart(m, chunk);
  uint64_t slot_bytes = wide_bytes + coded_bytes(m, chunk);
  m->plan->scratch_bytes = slot_bytes * GBI_SLOTS;
  taken done[GBI_SLOTS] = {{0}};
  uint32_t from[GBI_SLOTS] = {0}, steps[GBI_SLOTS] = {0}; /* ends of a chunk */
  for (uint64_t c = 0; c < chunks + GBI_LOOKAHEAD; c++) {
    if (c < chunks) {
      uint64_t at = c * chunk;
      uint32_t slot = (uint32_t)(c % GBI_SLOTS);
      gbi_ref place = m->wide ? gbi_ref_to(GBI_SCRATCH, slot * slot_bytes)
                              : gbi_ref_to(GBI_OUT, at);
      gbi_step waits = {0};
      if (slot_bytes && c >= GBI_SLOTS) depend(&waits, from[slot], steps[slot]);
      cut cuts = cut_range(m, GBI_MIN(chunk, count - at), c);
      done[slot] = reduce_chunk(m, &cuts, at, place,
                                slot * slot_bytes + wide_bytes, waits);
    }
    if (c >= GBI_LOOKAHEAD) {
      uint64_t k = c - GBI_LOOKAHEAD, at = k * chunk;
      uint32_t slot = (uint32_t)(k % GBI_SLOTS);
      cut cuts = cut_range(m, GBI_MIN(chunk, count - at), k);
      hand_out_chunk(m, &cuts, at, &done[slot], &from[slot], &steps[slot]);
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

static cut cut_unit(const maker *m, const unit *u) {
  return cut_range(m, u->count, u->turn);
}

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

/* Takes the unit in: home spread and links. Returns the step after which this
 * rank, when it holds a link in another island, may hand its segment out. */
static uint32_t take_unit(maker *m, const unit *u, uint32_t copied) {
  uint32_t first = copied, spread = u->rank < 0;
  if (u->island == m->island_index && !m->alone) {
    uint32_t count;
    first = spread_at_home(m, u, copied, &count);
    spread = count;
  }
  cut c = cut_unit(m, u);
  int mine = my_segment(m, &c);
  if (mine < 0) return first;
  gbi_ref place = gbi_ref_to(GBI_OUT, u->at + cut_at(&c, mine));
  gbi_step step = bridge_step(GBI_DO_BROADCAST, u->island, place, place,
                              cut_count(&c, mine));
  if (u->island == m->island_index) depend(&step, first, spread);
  return gbi_plan_add(m->plan, &step);
}

static void hand_out_unit(maker *m, const unit *u, uint32_t after) {
  if (u->island == m->island_index || m->alone) return;
  cut c = cut_unit(m, u);
  for (int q = 0; q < c.segments; q++) {
    gbi_ref place = gbi_ref_to(GBI_OUT, u->at + cut_at(&c, q));
    gbi_step step = island_step(GBI_DO_BROADCAST, m->hands_out,
                                root_of(m, &c, q), place, place,
                                cut_count(&c, q));
    if (waits_for_link(m, &c, q, !u->turn)) depend(&step, after, 1);
    gbi_plan_add(m->plan, &step);
  }
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
  for (uint64_t i = 0; units && i < count; i++) units[i].turn = i;
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
                     .count = GBI_MIN(chunk, count - c * chunk),
                     .turn = c};
    after[i] = take_unit(m, &ring[i], 0);
  }
}

/* ---- reduce_scatter and reduce ---- */

/* Slices [at, at + count) of the input, all of ranks of island `to`. `waits`:
 * what the slot's last users were. */
static taken gather_sum(maker *m, const unit *u, gbi_ref place,
                        uint64_t coded_at, gbi_step waits) {
  gbi_ref src = gbi_ref_to(GBI_IN, u->at);
  cut c = cut_unit(m, u);
  if (m->wide) {
    gbi_step load = waits;
    load.resource = GBI_ON_RANK;
    load.verb = GBI_DO_LOAD;
    load.src = src;
    load.dst = place;
    load.count = u->count;
    depend_only(&waits, gbi_plan_add(m->plan, &load));
    src = place;
  }
  taken t = {m->plan->count, m->plan->count};
  int mine = my_segment(m, &c);
  if (!m->alone) t.first = reduce_segments(m, &c, src, place, &waits);
  if (mine < 0) return t;
  if (!m->alone) {
    depend_only(&waits, t.first + (uint32_t)mine);
    src = place;
  }
  uint64_t at = cut_at(&c, mine), n = cut_count(&c, mine);
  src = part_of(m, src, at);
  place = part_of(m, place, at);
  if (m->codec && n) {
    t.last = coded_sum(m, u->island, src, place, n, coded_at, &waits);
    return t;
  }
  if (goes_apart(m, n)) {
    t.last = apart_sum(m, u->island, src, place, n, coded_at, &waits);
    return t;
  }
  gbi_step step = bridge_step(GBI_DO_REDUCE, u->island, src, place, n);
  step.wide = m->wide;
  step.deps[0] = waits.deps[0];
  step.deps[1] = waits.deps[1];
  t.last = gbi_plan_add(m->plan, &step);
  return t;
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

/* At the island the slices belong to: the holder of segment q sends each rank
 * its part and keeps its own. `place` is where the unit's sum lies. */
static void scatter_segment(maker *m, const unit *u, const cut *c, int q,
                            gbi_ref place, uint32_t after) {
  uint64_t first = u->at + cut_at(c, q), last = first + cut_count(c, q);
  int rank = u->first, holder = holder_of(m, c, q);
  for (uint64_t at = first, end; at < last; at = end) {
    while (row_at(m, rank + 1) <= at) rank++;
    end = GBI_MIN(row_at(m, rank + 1), last);
    gbi_ref part = part_of(m, place, at - u->at);
    gbi_ref out = gbi_ref_to(GBI_OUT, at - row_at(m, rank));
    bool mine = rank == m->env->rank;
    if (holder == m->env->rank && mine)
      keep_sum(m, part, out, end - at, after);
    if (rank == holder) continue;
    gbi_ref to = m->wide ? part : out;
    gbi_step step = island_step(GBI_DO_TRANSFER, GBI_PHASE_ISLAND_SCATTER,
                                root_of(m, c, q), part, to, end - at);
    step.peer = gbi_topology_position(m->topology, rank);
    step.wide = m->wide;
    depend(&step, after, 1);
    uint32_t got = gbi_plan_add(m->plan, &step);
    if (mine) keep_sum(m, to, out, end - at, got);
  }
}

static void scatter_sum(maker *m, const unit *u, gbi_ref place,
                        const taken *t) {
  cut c = cut_unit(m, u);
  for (int q = 0; q < c.segments; q++)
    scatter_segment(m, u, &c, q, place, after_segment(m, &c, t, q));
}

/* Where the sum of a unit gathers: in its slot, but what a holder keeps of a
 * reduce may as well gather in the result. */
static gbi_ref sum_place(const maker *m, const unit *u, uint64_t slot_at) {
  bool keeps = m->plan->coll.op == GBI_OP_REDUCE && !m->wide &&
               m->plan->coll.root == m->env->rank && m->link >= 0;
  return keeps ? gbi_ref_to(GBI_OUT, u->at) : gbi_ref_to(GBI_SCRATCH, slot_at);
}

static void plan_reduce_scatter(maker *m) {
  uint64_t total = row_at(m, m->topology->world), count;
  uint64_t chunk = gbi_chunk_elements(m->env, m->plan, total);
  uint64_t sum_bytes = chunk * m->bytes;
  choose_apart(m, chunk);
  uint64_t slot_bytes = sum_bytes + coded_bytes(m, chunk);
  m->plan->scratch_bytes = slot_bytes * GBI_SLOTS;
  unit *units = cut_units(m, chunk, &count);
  /* An empty reduce is still a meeting, as an empty all_reduce is. */
  int root = m->plan->coll.root;
  if (m->plan->coll.op == GBI_OP_REDUCE && units && !count)
    units[count++] =
        (unit){m->topology->island_of[root], -1, root, 0, 0, 0};
  /* Per slot: how its sum was taken, and the steps that use it. */
  taken sum[GBI_SLOTS];
  gbi_step users[GBI_SLOTS] = {{0}};
  for (uint64_t i = 0; units && i < count + GBI_LOOKAHEAD; i++) {
    if (i < count) {
      uint32_t slot = (uint32_t)(i % GBI_SLOTS), first = m->plan->count;
      gbi_ref place = sum_place(m, &units[i], slot * slot_bytes);
      sum[slot] = gather_sum(m, &units[i], place, slot * slot_bytes + sum_bytes,
                             users[slot]);
      users[slot] = (gbi_step){0};
      depend(&users[slot], first, m->plan->count - first);
    }
    if (i < GBI_LOOKAHEAD) continue;
    const unit *u = &units[i - GBI_LOOKAHEAD];
    if (u->island != m->island_index) continue;
    uint32_t slot = (uint32_t)((i - GBI_LOOKAHEAD) % GBI_SLOTS);
    uint32_t first = m->plan->count;
    scatter_sum(m, u, sum_place(m, u, slot * slot_bytes), &sum[slot]);
    depend(&users[slot], first, m->plan->count - first);
  }
  free(units);
}

/* A short call takes link 0 alone: its latency counts, not its bytes. */
static void choose_links(maker *m, int links) {
  const gbi_coll *coll = &m->plan->coll;
  bool rows = coll->op != GBI_OP_BROADCAST && coll->op != GBI_OP_ALL_REDUCE &&
              coll->op != GBI_OP_BARRIER;
  uint64_t count = rows ? row_at(m, m->topology->world) : coll->count;
  m->least = GBI_MAX(GBI_MIN(SEGMENT_LEAST_BYTES, m->env->chunk_bytes / 8), 1);
  m->links = count * m->bytes < 2 * m->least ? 1 : links;
  m->link = m->topology->link_of[m->env->rank];
  if (m->link >= m->links) m->link = -1;
  bool exact = m->links > 1 && m->island->count == m->links &&
               (coll->op == GBI_OP_ALL_REDUCE || coll->op == GBI_OP_BROADCAST);
  m->reduces =
      exact ? GBI_PHASE_ISLAND_REDUCE_SCATTER : GBI_PHASE_ISLAND_REDUCE;
  m->hands_out =
      exact ? GBI_PHASE_ISLAND_ALL_GATHER : GBI_PHASE_ISLAND_BROADCAST;
}

void gbi_plan_over_links(const gbi_policy_env *env, gbi_plan *plan, int links) {
  const gbi_topology *t = env->topology;
  int index = t->island_of[env->rank];
  maker m = {.env = env,
             .topology = t,
             .plan = plan,
             .island = &t->islands[index],
             .island_index = index,
             .alone = t->islands[index].count == 1,
             .wide = gbi_coll_is_wide(&plan->coll),
             .bytes = gb_dtype_bytes(gbi_coll_travel_dtype(&plan->coll)),
             .codec = gbi_plan_codec(env, &plan->coll)};
  choose_links(&m, links);
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

static void make(const gbi_policy_env *env, gbi_plan *plan) {
  gbi_plan_over_links(env, plan, 1);
}

const gbi_policy_ops gbi_policy_reduce_bridge_broadcast = {
    .name = "reduce-bridge-broadcast",
    .help =
        "islands reduce onto their leaders, leaders meet over the bridge, "
        "islands hand out; pipelined by chunk",
    .fits = fits,
    .plan = make,
};
