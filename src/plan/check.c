#include "plan/check.h"

#include "codec/codec.h"

#include <stdlib.h>
#include <string.h>

enum { WAITS, STARTED, DONE };
enum { WINDOW_MAX = 16, OWN_ROW_WORLD_MAX = 1024 };

/* One rank while its plan runs. Memory is 64-bit tags, one an element; the
 * scratch holds one tag a byte of offset, which wastes room and keeps every
 * reference exact. */
typedef struct runner {
  const gbi_plan *plan;
  uint64_t *in, *out, *scratch;
  bool aliased; /* IN and OUT are parts of one memory, `in` */
  uint64_t in_elements, out_elements, memory_elements;
  uint64_t in_at, out_at; /* where they begin in it */
  uint8_t *state;         /* per step */
  uint32_t cursor[GBI_RESOURCES];
  uint32_t done;
  uint32_t flying[WINDOW_MAX]; /* mesh steps in flight */
  int flying_count;
} runner;

typedef struct checker {
  const gbi_topology *topology;
  runner *ranks;
  int world;
  int links;
  int window;
  bool own_row;   /* the small buffer is this rank's row of the large one */
  uint64_t *sums; /* what each element of a reduction must give */
  gb_error *error;
} checker;

static uint64_t mix(uint64_t x) {
  x += UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

/* What element i of rank r's input stands for. */
static uint64_t tag(int rank, uint64_t i) {
  return mix(((uint64_t)rank << 40) + i + 1);
}

/* Marks an element of the wide type, so that one that was not loaded, or not
 * stored, is seen. */
#define WIDE_MARK UINT64_C(0x5851f42d4c957f2d)

/* The factor that rank `rank` loads with. */
static uint64_t factor(const gbi_coll *coll, int rank) {
  return gbi_coll_is_scaled(coll) ? 2 * (uint64_t)rank + 3 : 1;
}

/* Marks what a payload's bytes stand for: value i of it is at byte i. */
#define CODED_MARK UINT64_C(0x14057b7ef767814f)

static uint64_t element_bytes(const gbi_plan *plan, const gbi_step *step) {
  return gb_dtype_bytes(gbi_step_dtype(plan, step));
}

/* ---- one rank's memory ---- */

static uint64_t *resolve(runner *r, gbi_ref ref) {
  switch (ref.place) {
    case GBI_IN: return r->in + r->in_at + ref.offset;
    case GBI_OUT: return (r->aliased ? r->in : r->out) + r->out_at + ref.offset;
    default: return r->scratch + ref.offset;
  }
}

/* Memory an access touches, on one axis per place. */
typedef struct span {
  int place;
  uint64_t from, to;
  bool writes;
} span;

static uint64_t ref_size(const gbi_plan *plan, const gbi_step *step,
                         bool is_src) {
  if (step->resource == GBI_ON_RANK) {
    bool wide = (step->verb == GBI_DO_LOAD && !is_src) ||
                (step->verb == GBI_DO_STORE && is_src) ||
                (step->verb == GBI_DO_FOLD && is_src && step->wide) ||
                (step->verb >= GBI_DO_COMBINE && step->wide);
    return gb_dtype_bytes(wide ? gbi_coll_travel_dtype(&plan->coll)
                               : (gb_dtype)plan->coll.dtype);
  }
  return element_bytes(plan, step);
}

static span make_span(const runner *r, const gbi_step *step, bool is_src,
                      uint64_t rows) {
  gbi_ref ref = is_src ? step->src : step->dst;
  int place = ref.place == GBI_OUT && r->aliased ? GBI_IN : ref.place;
  uint64_t unit = place == GBI_SCRATCH ? ref_size(r->plan, step, is_src) : 1;
  uint64_t from = ref.offset + (ref.place == GBI_IN    ? r->in_at
                                : ref.place == GBI_OUT ? r->out_at
                                                       : 0);
  uint64_t size = step->count * unit;
  if (step->verb == (is_src ? GBI_DO_DECODE : GBI_DO_ENCODE))
    size = gbi_codec_bytes((gbi_codec)step->codec, step->count);
  return (span){place, from, from + size * rows, !is_src};
}

/* What a step touches on this rank: at most one read and one write. */
static int touched(const checker *c, int rank, const gbi_step *step, int me,
                   span list[2]) {
  const runner *r = &c->ranks[rank];
  bool reads = true, writes = true;
  if (step->resource != GBI_ON_RANK) {
    switch (step->verb) {
      case GBI_DO_REDUCE: writes = me == step->root; break;
      case GBI_DO_BROADCAST: reads = me == step->root; writes = !reads; break;
      case GBI_DO_TRANSFER:
        reads = me == step->root;
        writes = me == step->peer;
        break;
      case GBI_DO_SEND: writes = false; break;
      case GBI_DO_RECV: reads = false; break;
      default: break;
    }
  }
  int n = 0;
  uint64_t rows = step->verb == GBI_DO_FOLD     ? (uint64_t)c->world
                  : step->verb == GBI_DO_DECODE ? step->rows
                                                : 1;
  if (reads && step->count) list[n++] = make_span(r, step, true, rows);
  if (writes && step->count) list[n++] = make_span(r, step, false, 1);
  return n;
}

/* ---- members of a resource ---- */

static int members_count(const checker *c, int resource, int rank) {
  if (resource == GBI_ON_ISLAND)
    return c->topology->islands[c->topology->island_of[rank]].count;
  if (resource != GBI_ON_BRIDGE) return c->world;
  return c->topology->link_of[rank] < c->links ? c->topology->islands_count : 0;
}

static int member(const checker *c, int resource, int rank, int index) {
  if (resource == GBI_ON_ISLAND)
    return c->topology->islands[c->topology->island_of[rank]].ranks[index];
  return resource == GBI_ON_BRIDGE
             ? gbi_topology_linked(c->topology, rank, index)
             : index;
}

static int my_index(const checker *c, int resource, int rank) {
  if (resource == GBI_ON_ISLAND)
    return gbi_topology_position(c->topology, rank);
  return resource == GBI_ON_BRIDGE ? c->topology->island_of[rank] : rank;
}

/* ---- static checks of one plan ---- */

static gb_status check_members(const checker *c, int rank, uint32_t i) {
  const gbi_step *step = &c->ranks[rank].plan->steps[i];
  if (step->resource == GBI_ON_RANK) return GB_OK;
  int n = members_count(c, step->resource, rank);
  bool alone = step->resource == GBI_ON_MESH && step->peer == rank;
  if (step->root < 0 || step->root >= n || step->peer < 0 || step->peer >= n ||
      alone)
    return gbi_fail(c->error, GB_ERR_INTERNAL,
                    "rank %d step %u: root %d or peer %d of %d members", rank,
                    i, step->root, step->peer, n);
  return GB_OK;
}

static gb_status check_refs(checker *c, int rank) {
  const runner *r = &c->ranks[rank];
  const gbi_plan *plan = r->plan;
  for (uint32_t i = 0; i < plan->count; i++) {
    const gbi_step *step = &plan->steps[i];
    GBI_TRY(check_members(c, rank, i));
    for (int d = 0; d < 2; d++)
      if (step->deps[d].count &&
          (uint64_t)step->deps[d].from + step->deps[d].count > i)
        return gbi_fail(c->error, GB_ERR_INTERNAL,
                        "rank %d step %u depends on a later step", rank, i);
    span list[2];
    int n = touched(c, rank, step, my_index(c, step->resource, rank), list);
    for (int s = 0; s < n; s++) {
      uint64_t most = list[s].place == GBI_SCRATCH ? plan->scratch_bytes
                      : r->aliased                 ? r->memory_elements
                      : list[s].place == GBI_IN    ? r->in_elements
                                                   : r->out_elements;
      if (list[s].to > most)
        return gbi_fail(c->error, GB_ERR_INTERNAL,
                        "rank %d step %u reaches element %llu of %llu", rank,
                        i, (unsigned long long)list[s].to,
                        (unsigned long long)most);
    }
  }
  return GB_OK;
}

/* One message at most from each rank to each other. */
static gb_status check_messages(checker *c, int rank) {
  const gbi_plan *plan = c->ranks[rank].plan;
  if (plan->first[GBI_ON_MESH] == plan->first[GBI_ON_MESH + 1]) return GB_OK;
  uint8_t *seen = calloc((size_t)c->world, 1);
  if (!seen) return gbi_fail(c->error, GB_ERR_MEMORY, "no memory for a check");
  gb_status status = GB_OK;
  for (uint32_t i = plan->first[GBI_ON_MESH]; i < plan->first[GBI_ON_MESH + 1];
       i++) {
    const gbi_step *step = &plan->steps[plan->order[i]];
    uint8_t bit = step->verb == GBI_DO_SEND ? 1 : 2;
    if (seen[step->peer] & bit)
      status = gbi_fail(c->error, GB_ERR_INTERNAL,
                        "rank %d has two messages %s rank %d", rank,
                        bit == 1 ? "to" : "from", step->peer);
    seen[step->peer] |= bit;
  }
  free(seen);
  return status;
}

static bool conflict(const span *a, int na, const span *b, int nb) {
  for (int i = 0; i < na; i++)
    for (int k = 0; k < nb; k++)
      if ((a[i].writes || b[k].writes) && a[i].place == b[k].place &&
          a[i].from < b[k].to && b[k].from < a[i].to)
        return true;
  return false;
}

enum { HAZARD_STEPS_MAX = 512, HAZARD_WORDS = HAZARD_STEPS_MAX / 64 };

typedef struct history {
  uint64_t before[HAZARD_WORDS]; /* bit k: step k is surely over */
  span spans[2];
  int count;
} history;

/* An older step that touches the same memory and may still run; -1: none. */
static int64_t find_hazard(const history *steps, uint32_t i) {
  const history *mine = &steps[i];
  for (uint32_t w = 0; w <= i / 64; w++) {
    uint64_t open = ~mine->before[w];
    if (w == i / 64) open &= (UINT64_C(1) << i % 64) - 1;
    for (; open; open &= open - 1) {
      uint32_t k = w * 64 + (uint32_t)__builtin_ctzll(open);
      if (conflict(mine->spans, mine->count, steps[k].spans, steps[k].count))
        return k;
    }
  }
  return -1;
}

/* Every pair of steps that touch one memory must be ordered by dependencies.
 * Quadratic, so for plans of a few hundred steps; longer ones repeat the same
 * pattern. */
static gb_status check_hazards(checker *c, int rank) {
  const gbi_plan *plan = c->ranks[rank].plan;
  if (plan->count > HAZARD_STEPS_MAX) return GB_OK;
  static history steps[HAZARD_STEPS_MAX];
  for (uint32_t i = 0; i < plan->count; i++) {
    const gbi_step *step = &plan->steps[i];
    history *mine = &steps[i];
    memset(mine->before, 0, sizeof mine->before);
    for (int d = 0; d < 2; d++)
      for (uint32_t k = 0; k < step->deps[d].count; k++) {
        uint32_t dep = step->deps[d].from + k;
        mine->before[dep / 64] |= UINT64_C(1) << dep % 64;
        for (size_t w = 0; w < HAZARD_WORDS; w++)
          mine->before[w] |= steps[dep].before[w];
      }
    mine->count = touched(c, rank, step, my_index(c, step->resource, rank),
                          mine->spans);
    int64_t other = find_hazard(steps, i);
    if (other >= 0)
      return gbi_fail(c->error, GB_ERR_INTERNAL,
                      "rank %d: steps %u and %u touch the same memory and "
                      "neither waits for the other",
                      rank, (uint32_t)other, i);
  }
  return GB_OK;
}

/* All members list the same steps on a resource. */
static gb_status check_same(checker *c, int resource, int rank) {
  int first = member(c, resource, rank, 0);
  if (first == rank) return GB_OK;
  const gbi_plan *a = c->ranks[first].plan, *b = c->ranks[rank].plan;
  uint32_t na = a->first[resource + 1] - a->first[resource];
  uint32_t nb = b->first[resource + 1] - b->first[resource];
  if (na != nb)
    return gbi_fail(c->error, GB_ERR_INTERNAL,
                    "resource %d: rank %d lists %u steps, rank %d %u", resource,
                    first, na, rank, nb);
  for (uint32_t i = 0; i < na; i++) {
    const gbi_step *x = &a->steps[a->order[a->first[resource] + i]];
    const gbi_step *y = &b->steps[b->order[b->first[resource] + i]];
    if (x->verb != y->verb || x->root != y->root || x->peer != y->peer ||
        x->count != y->count || x->wide != y->wide || x->codec != y->codec)
      return gbi_fail(c->error, GB_ERR_INTERNAL,
                      "resource %d: step %u differs between ranks %d and %d",
                      resource, i, first, rank);
  }
  return GB_OK;
}

/* ---- running ---- */

static bool deps_done(const runner *r, const gbi_step *step) {
  for (int d = 0; d < 2; d++)
    for (uint32_t k = 0; k < step->deps[d].count; k++)
      if (r->state[step->deps[d].from + k] != DONE) return false;
  return true;
}

static void run_encode(const gbi_step *step, const uint64_t *src,
                       uint64_t *dst, uint64_t unit) {
  uint64_t bytes = gbi_codec_bytes((gbi_codec)step->codec, step->count);
  for (uint64_t i = 0; i < bytes; i++)
    dst[i] = i < step->count ? src[i * unit] ^ CODED_MARK : CODED_MARK;
}

static void run_decode(const gbi_step *step, const uint64_t *src,
                       uint64_t *dst, uint64_t unit) {
  uint64_t bytes = gbi_codec_bytes((gbi_codec)step->codec, step->count);
  for (uint64_t i = 0; i < step->count; i++) {
    uint64_t sum = 0;
    for (uint32_t row = 0; row < step->rows; row++)
      sum += src[row * bytes + i] ^ CODED_MARK;
    dst[i * unit] = sum;
  }
}

static void run_local(const checker *c, runner *r, const gbi_step *step) {
  uint64_t *src = resolve(r, step->src), *dst = resolve(r, step->dst);
  uint64_t unit_src = step->src.place == GBI_SCRATCH
                          ? ref_size(r->plan, step, true)
                          : 1;
  uint64_t unit_dst = step->dst.place == GBI_SCRATCH
                          ? ref_size(r->plan, step, false)
                          : 1;
  if (step->verb == GBI_DO_ENCODE) run_encode(step, src, dst, unit_src);
  if (step->verb == GBI_DO_DECODE) run_decode(step, src, dst, unit_dst);
  if (step->verb >= GBI_DO_ENCODE) return;
  const gbi_coll *coll = &r->plan->coll;
  uint64_t scale = factor(coll, (int)(r - c->ranks));
  uint64_t marks = (uint64_t)c->world * WIDE_MARK;
  bool stores = step->verb == GBI_DO_STORE ||
                (step->verb == GBI_DO_FOLD && step->wide);
  bool divides = coll->redop == GB_AVG && (stores || step->verb == GBI_DO_FOLD);
  for (uint64_t i = 0; i < step->count; i++) {
    uint64_t value = src[i * unit_src];
    if (step->verb == GBI_DO_FOLD)
      for (int row = 1; row < c->world; row++)
        value += src[((uint64_t)row * step->count + i) * unit_src];
    if (step->verb == GBI_DO_COMBINE) value += dst[i * unit_dst];
    if (step->verb == GBI_DO_LOAD) value = value * scale + WIDE_MARK;
    if (stores) value -= marks;
    if (step->verb == GBI_DO_DIVIDE) value = dst[i * unit_dst] ^ UINT64_MAX;
    dst[i * unit_dst] = divides ? value ^ UINT64_MAX : value;
  }
}

/* Local steps in the worst order that is allowed: the last that can, first. */
static bool advance_local(checker *c, runner *r) {
  uint32_t *cursor = &r->cursor[GBI_ON_RANK];
  uint32_t end = r->plan->first[GBI_ON_RANK + 1];
  uint32_t at = GBI_MIN(end, *cursor + GBI_LOCAL_AHEAD);
  bool any = false;
  while (at > *cursor) {
    uint32_t index = r->plan->order[--at];
    const gbi_step *step = &r->plan->steps[index];
    if (r->state[index] == DONE || !deps_done(r, step)) continue;
    run_local(c, r, step);
    r->state[index] = DONE;
    r->done++;
    any = true;
  }
  while (*cursor < end && r->state[r->plan->order[*cursor]] == DONE) ++*cursor;
  return any;
}

/* Starts what this rank can start; true when anything happened. */
static bool advance(checker *c, int rank) {
  runner *r = &c->ranks[rank];
  bool any = advance_local(c, r);
  for (int resource = GBI_ON_RANK + 1; resource < GBI_RESOURCES; resource++) {
    while (r->cursor[resource] < r->plan->first[resource + 1]) {
      uint32_t index = r->plan->order[r->cursor[resource]];
      const gbi_step *step = &r->plan->steps[index];
      if (!deps_done(r, step)) break;
      if (resource == GBI_ON_MESH) {
        if (r->flying_count == c->window) break;
        r->flying[r->flying_count++] = index;
      }
      r->state[index] = STARTED;
      r->cursor[resource]++;
      any = true;
    }
  }
  return any;
}

static const gbi_step *step_at(const runner *r, int resource,
                               uint32_t position) {
  const gbi_plan *plan = r->plan;
  return &plan->steps[plan->order[plan->first[resource] + position]];
}

/* What the step carries: one source's elements or everybody's sum. */
static void collect(checker *c, int resource, int rank, uint32_t position,
                    int n, uint64_t *values) {
  const gbi_step *mine = step_at(&c->ranks[rank], resource, position);
  uint64_t size = element_bytes(c->ranks[rank].plan, mine);
  bool sums = mine->verb == GBI_DO_REDUCE || mine->verb == GBI_DO_ALL_REDUCE;
  memset(values, 0, mine->count * sizeof *values);
  for (int k = sums ? 0 : mine->root; k < (sums ? n : mine->root + 1); k++) {
    runner *r = &c->ranks[member(c, resource, rank, k)];
    const gbi_step *step = step_at(r, resource, position);
    uint64_t unit = step->src.place == GBI_SCRATCH ? size : 1;
    const uint64_t *src = resolve(r, step->src);
    for (uint64_t i = 0; i < mine->count; i++) values[i] += src[i * unit];
  }
}

static void move_data(checker *c, int resource, int rank, uint32_t position,
                      int n, uint64_t *values) {
  const gbi_step *mine = step_at(&c->ranks[rank], resource, position);
  uint64_t size = element_bytes(c->ranks[rank].plan, mine);
  collect(c, resource, rank, position, n, values);
  for (int k = 0; k < n; k++) {
    if (mine->verb == GBI_DO_REDUCE && k != mine->root) continue;
    if (mine->verb == GBI_DO_TRANSFER && k != mine->peer) continue;
    if (mine->verb == GBI_DO_BROADCAST && k == mine->root) continue;
    runner *r = &c->ranks[member(c, resource, rank, k)];
    const gbi_step *step = step_at(r, resource, position);
    uint64_t unit = step->dst.place == GBI_SCRATCH ? size : 1;
    uint64_t *dst = resolve(r, step->dst);
    for (uint64_t i = 0; i < mine->count; i++) dst[i * unit] = values[i];
  }
}

/* Finishes the communicator steps that every member has started. Called for
 * the first member of each communicator. */
static bool finish(checker *c, int resource, int rank, uint32_t *finished) {
  int n = members_count(c, resource, rank);
  uint32_t started = UINT32_MAX;
  for (int k = 0; k < n; k++) {
    runner *r = &c->ranks[member(c, resource, rank, k)];
    started = GBI_MIN(started, r->cursor[resource] - r->plan->first[resource]);
  }
  bool any = false;
  for (; *finished < started; (*finished)++) {
    any = true;
    uint64_t count = step_at(&c->ranks[rank], resource, *finished)->count;
    uint64_t *values = malloc((count + 1) * sizeof *values);
    if (!values) return false; /* reported as a deadlock */
    move_data(c, resource, rank, *finished, n, values);
    free(values);
    for (int k = 0; k < n; k++) {
      runner *r = &c->ranks[member(c, resource, rank, k)];
      r->state[r->plan->order[r->plan->first[resource] + *finished]] = DONE;
      r->done++;
    }
  }
  return any;
}

static void land(runner *r, int at) {
  r->state[r->flying[at]] = DONE;
  r->done++;
  r->flying_count--;
  for (int i = at; i < r->flying_count; i++) r->flying[i] = r->flying[i + 1];
}

/* Ends the messages from `rank` whose other end is in flight too. */
static gb_status meet(checker *c, int rank, bool *any_p) {
  runner *r = &c->ranks[rank];
  for (int i = 0; i < r->flying_count;) {
    const gbi_step *send = &r->plan->steps[r->flying[i]], *recv = NULL;
    runner *p = &c->ranks[send->peer];
    int k = 0;
    for (; send->verb == GBI_DO_SEND && k < p->flying_count; k++) {
      recv = &p->plan->steps[p->flying[k]];
      if (recv->verb == GBI_DO_RECV && recv->peer == rank &&
          recv->number == send->number)
        break;
      recv = NULL;
    }
    if (!recv) {
      i++;
      continue;
    }
    if (recv->count != send->count)
      return gbi_fail(c->error, GB_ERR_INTERNAL,
                      "rank %d sends %llu elements to rank %d, which expects "
                      "%llu",
                      rank, (unsigned long long)send->count, send->peer,
                      (unsigned long long)recv->count);
    if (send->count)
      memcpy(resolve(p, recv->dst), resolve(r, send->src), send->count * 8);
    land(r, i);
    land(p, k);
    /* At once: a root's long list then goes through in one round. */
    (void)advance(c, rank);
    (void)advance(c, (int)(p - c->ranks));
    *any_p = true;
  }
  return GB_OK;
}

/* Everybody starts what it can, then what everybody has started ends. */
static gb_status run_round(checker *c, uint32_t (*finished)[GBI_RESOURCES],
                           bool *any_p) {
  for (int rank = 0; rank < c->world; rank++) *any_p |= advance(c, rank);
  for (int resource = GBI_ON_ISLAND; resource <= GBI_ON_WORLD; resource++)
    for (int rank = 0; rank < c->world; rank++)
      if (c->ranks[rank].plan->first[resource + 1] >
              c->ranks[rank].plan->first[resource] &&
          member(c, resource, rank, 0) == rank)
        *any_p |= finish(c, resource, rank, &finished[rank][resource]);
  for (int rank = 0; rank < c->world; rank++)
    GBI_TRY(meet(c, rank, any_p));
  return GB_OK;
}

static gb_status run_all(checker *c) {
  uint32_t(*finished)[GBI_RESOURCES] =
      calloc((size_t)c->world, sizeof *finished);
  if (!finished)
    return gbi_fail(c->error, GB_ERR_MEMORY, "no memory for the checker");
  gb_status status = GB_OK;
  for (bool any = true; any && status == GB_OK;) {
    any = false;
    status = run_round(c, finished, &any);
  }
  free(finished);
  for (int rank = 0; rank < c->world && status == GB_OK; rank++)
    if (c->ranks[rank].done != c->ranks[rank].plan->count)
      status = gbi_fail(c->error, GB_ERR_INTERNAL,
                        "deadlock: rank %d stands at %u of %u steps", rank,
                        c->ranks[rank].done, c->ranks[rank].plan->count);
  return status;
}

/* ---- results ---- */

/* The rank in whose row (slice, part) of the output element i is. */
static int row_of(const runner *r, uint64_t i) {
  int row = 0;
  bool parts = r->plan->coll.op == GBI_OP_ALL_TO_ALL;
  while ((parts ? gbi_plan_out_at : gbi_plan_row_at)(r->plan, row + 1) <= i)
    row++;
  return row;
}

static uint64_t expected(const checker *c, int rank, uint64_t i) {
  const runner *r = &c->ranks[rank];
  const gbi_plan *plan = r->plan;
  const gbi_coll *coll = &plan->coll;
  int row;
  switch (coll->op) {
    case GBI_OP_BROADCAST: return tag(coll->root, i);
    case GBI_OP_ALL_GATHER:
    case GBI_OP_GATHER:
      return tag((int)(i / coll->count), i % coll->count);
    case GBI_OP_ALL_GATHER_V:
      row = row_of(r, i);
      return tag(row, i - gbi_plan_row_at(plan, row));
    case GBI_OP_SCATTER:
      return tag(coll->root, (uint64_t)rank * coll->count + i);
    case GBI_OP_ALL_TO_ALL:
      row = row_of(r, i);
      return tag(row, i - gbi_plan_out_at(plan, row) +
                          gbi_plan_row_at(c->ranks[row].plan, rank));
    case GBI_OP_REDUCE_SCATTER:
    case GBI_OP_REDUCE_SCATTER_V:
      return c->sums[gbi_plan_row_at(plan, rank) + i];
    default: return c->sums[i];
  }
}

/* Elements of the output that this call writes at all. */
static uint64_t results_count(const runner *r, int rank) {
  const gbi_coll *coll = &r->plan->coll;
  bool keeps = coll->op == GBI_OP_REDUCE && coll->root != rank;
  return keeps ? 0 : r->out_elements;
}

static gb_status check_results_of(checker *c, int rank) {
  const runner *r = &c->ranks[rank];
  const uint64_t *out = (r->aliased ? r->in : r->out) + r->out_at;
  uint64_t results = results_count(r, rank);
  for (uint64_t i = 0; i < results; i++)
    if (out[i] != expected(c, rank, i))
      return gbi_fail(c->error, GB_ERR_INTERNAL,
                      "wrong result: rank %d element %llu", rank,
                      (unsigned long long)i);
  for (uint64_t i = 0; i < r->in_elements; i++) {
    uint64_t at = r->in_at + i; /* wraps below the output's first */
    if (r->aliased && at - r->out_at < results) continue;
    if (r->in[at] != tag(rank, i))
      return gbi_fail(c->error, GB_ERR_INTERNAL,
                      "rank %d's input was changed at element %llu", rank,
                      (unsigned long long)i);
  }
  return GB_OK;
}

/* ---- set-up ---- */

static void fini_ranks(checker *c) {
  for (int r = 0; c->ranks && r < c->world; r++) {
    free(c->ranks[r].in);
    free(c->ranks[r].out);
    free(c->ranks[r].scratch);
    free(c->ranks[r].state);
  }
  free(c->ranks);
  free(c->sums);
}

static bool has_own_row(const gbi_coll *coll) {
  return !gbi_coll_in_place(coll) && coll->op != GBI_OP_ALL_TO_ALL;
}

static void place_buffers(const checker *c, runner *r, int rank) {
  const gbi_coll *coll = &r->plan->coll;
  gbi_coll_extents(coll, rank, c->world, &r->in_elements, &r->out_elements);
  r->memory_elements = GBI_MAX(r->in_elements, r->out_elements);
  bool rooted = coll->op == GBI_OP_GATHER || coll->op == GBI_OP_SCATTER;
  r->aliased = gbi_coll_in_place(coll) ||
               (c->own_row && (!rooted || coll->root == rank));
  if (!r->aliased || gbi_coll_in_place(coll)) return;
  uint64_t at = gbi_plan_row_at(r->plan, rank);
  bool gathers = coll->op == GBI_OP_ALL_GATHER || coll->op == GBI_OP_GATHER ||
                 coll->op == GBI_OP_ALL_GATHER_V;
  *(gathers ? &r->in_at : &r->out_at) = at;
}

static bool make_sums(checker *c) {
  const runner *first = &c->ranks[0];
  const gbi_coll *coll = &first->plan->coll;
  if (coll->redop == 255) return true;
  c->sums = calloc(first->in_elements + 1, sizeof *c->sums);
  for (uint64_t i = 0; c->sums && i < first->in_elements; i++) {
    for (int r = 0; r < c->world; r++)
      c->sums[i] += tag(r, i) * factor(coll, r);
    if (coll->redop == GB_AVG) c->sums[i] ^= UINT64_MAX;
  }
  return c->sums;
}

static gb_status init_ranks(checker *c, const gbi_plan *const *plans) {
  for (int rank = 0; rank < c->world; rank++) {
    runner *r = &c->ranks[rank];
    r->plan = plans[rank];
    place_buffers(c, r, rank);
    r->in = calloc(r->memory_elements + 1, 8);
    r->out = calloc(r->aliased ? 1 : r->out_elements + 1, 8);
    r->scratch = calloc(plans[rank]->scratch_bytes + 1, 8);
    r->state = calloc(plans[rank]->count + 1, 1);
    if (!r->in || !r->out || !r->scratch || !r->state)
      return gbi_fail(c->error, GB_ERR_MEMORY, "no memory for the checker");
    for (uint64_t i = 0; i < r->in_elements; i++)
      r->in[r->in_at + i] = tag(rank, i);
    memcpy(r->cursor, r->plan->first, sizeof r->cursor);
  }
  if (!make_sums(c))
    return gbi_fail(c->error, GB_ERR_MEMORY, "no memory for the checker");
  return GB_OK;
}

static gb_status check_rank(checker *c, int rank) {
  const gbi_plan *plan = c->ranks[rank].plan;
  GBI_TRY(check_refs(c, rank));
  GBI_TRY(check_hazards(c, rank));
  for (int on = GBI_ON_ISLAND; on <= GBI_ON_WORLD; on++)
    if (plan->first[on + 1] > plan->first[on])
      GBI_TRY(check_same(c, on, rank));
  return check_messages(c, rank);
}

static gb_status check_once(const gbi_topology *topology, int links,
                            const gbi_plan *const *plans, int window,
                            bool own_row, gb_error *error) {
  checker c = {.topology = topology,
               .world = topology->world,
               .links = links,
               .window = window,
               .own_row = own_row,
               .error = error};
  c.ranks = calloc((size_t)c.world, sizeof *c.ranks);
  if (!c.ranks)
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for the checker");
  gb_status status = init_ranks(&c, plans);
  for (int rank = 0; rank < c.world && status == GB_OK; rank++)
    status = check_rank(&c, rank);
  if (status == GB_OK) status = run_all(&c);
  for (int rank = 0; rank < c.world && status == GB_OK; rank++)
    status = check_results_of(&c, rank);
  fini_ranks(&c);
  return status;
}

gb_status gbi_plans_check_window(const gbi_topology *topology, int links,
                                 const gbi_plan *const *plans, int window,
                                 gb_error *error) {
  GBI_TRY(check_once(topology, links, plans, window, false, error));
  if (!has_own_row(&plans[0]->coll) || topology->world > OWN_ROW_WORLD_MAX)
    return GB_OK;
  return check_once(topology, links, plans, window, true, error);
}

gb_status gbi_plans_check(const gbi_topology *topology, int links,
                          const gbi_plan *const *plans, gb_error *error) {
  return gbi_plans_check_window(topology, links, plans, GBI_CHECK_WINDOW,
                                error);
}
