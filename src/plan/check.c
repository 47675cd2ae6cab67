#include "plan/check.h"

#include <stdlib.h>
#include <string.h>

/* One rank while its plan runs. Memory is 64-bit tags, one an element; the
 * scratch holds one tag a byte of offset, which wastes room and keeps every
 * reference exact. */
typedef struct runner {
  const gbi_plan *plan;
  uint64_t *in, *out, *scratch;
  bool aliased;               /* IN and OUT are one memory */
  uint8_t *state;             /* per step: 0 waits, 1 started, 2 done */
  uint32_t cursor[GBI_RESOURCES];
  uint32_t done;
} runner;

typedef struct checker {
  const gbi_topology *topology;
  runner *ranks;
  int world;
  uint64_t in_elements, out_elements, scratch_elements;
  gb_error *error;
} checker;

enum { WAITS, STARTED, DONE };

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

static uint64_t sum_tag(int world, uint64_t i) {
  uint64_t sum = 0;
  for (int r = 0; r < world; r++) sum += tag(r, i);
  return sum;
}

static uint64_t element_bytes(const gbi_plan *plan, const gbi_step *step) {
  return gb_dtype_bytes(gbi_step_dtype(plan, step));
}

/* ---- one rank's memory ---- */

static uint64_t *resolve(runner *r, gbi_ref ref) {
  switch (ref.place) {
    case GBI_IN: return r->in + ref.offset;
    case GBI_OUT: return (r->aliased ? r->in : r->out) + ref.offset;
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
    if (step->verb == GBI_DO_WIDEN && !is_src) return 4;
    if (step->verb == GBI_DO_NARROW && is_src) return 4;
    return gb_dtype_bytes((gb_dtype)plan->coll.dtype);
  }
  return element_bytes(plan, step);
}

static span make_span(const runner *r, const gbi_step *step, bool is_src,
                      uint64_t rows) {
  gbi_ref ref = is_src ? step->src : step->dst;
  int place = ref.place == GBI_OUT && r->aliased ? GBI_IN : ref.place;
  uint64_t unit = place == GBI_SCRATCH ? ref_size(r->plan, step, is_src) : 1;
  return (span){place, ref.offset, ref.offset + step->count * rows * unit,
                !is_src};
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
      default: break;
    }
  }
  int n = 0;
  uint64_t rows = step->verb == GBI_DO_FOLD ? (uint64_t)c->world : 1;
  if (reads && step->count) list[n++] = make_span(r, step, true, rows);
  if (writes && step->count) list[n++] = make_span(r, step, false, 1);
  return n;
}

/* ---- members of a resource ---- */

static int members_count(const checker *c, int resource, int rank) {
  if (resource == GBI_ON_ISLAND)
    return c->topology->islands[c->topology->island_of[rank]].count;
  return resource == GBI_ON_BRIDGE ? c->topology->islands_count : c->world;
}

static int member(const checker *c, int resource, int rank, int index) {
  if (resource == GBI_ON_ISLAND)
    return c->topology->islands[c->topology->island_of[rank]].ranks[index];
  return resource == GBI_ON_BRIDGE ? c->topology->islands[index].leader : index;
}

static int my_index(const checker *c, int resource, int rank) {
  if (resource == GBI_ON_ISLAND)
    return gbi_topology_position(c->topology, rank);
  return resource == GBI_ON_BRIDGE ? c->topology->island_of[rank] : rank;
}

/* ---- static checks of one plan ---- */

static gb_status check_refs(checker *c, int rank) {
  const gbi_plan *plan = c->ranks[rank].plan;
  for (uint32_t i = 0; i < plan->count; i++) {
    const gbi_step *step = &plan->steps[i];
    if (step->resource != GBI_ON_RANK) {
      int n = members_count(c, step->resource, rank);
      if (step->root < 0 || step->root >= n || step->peer < 0 ||
          step->peer >= n)
        return gbi_fail(c->error, GB_ERR_INTERNAL,
                        "rank %d step %u: root %d or peer %d of %d members",
                        rank, i, step->root, step->peer, n);
    }
    for (int d = 0; d < 2; d++)
      if (step->deps[d].count &&
          (uint64_t)step->deps[d].from + step->deps[d].count > i)
        return gbi_fail(c->error, GB_ERR_INTERNAL,
                        "rank %d step %u depends on a later step", rank, i);
    span list[2];
    int n = touched(c, rank, step, my_index(c, step->resource, rank), list);
    for (int s = 0; s < n; s++) {
      uint64_t most = list[s].place == GBI_SCRATCH ? plan->scratch_bytes
                      : list[s].place == GBI_IN   ? c->in_elements
                                                  : c->out_elements;
      if (list[s].to > most)
        return gbi_fail(c->error, GB_ERR_INTERNAL,
                        "rank %d step %u reaches element %llu of %llu", rank,
                        i, (unsigned long long)list[s].to,
                        (unsigned long long)most);
    }
  }
  return GB_OK;
}

static bool conflict(const span *a, int na, const span *b, int nb) {
  for (int i = 0; i < na; i++)
    for (int k = 0; k < nb; k++)
      if ((a[i].writes || b[k].writes) && a[i].place == b[k].place &&
          a[i].from < b[k].to && b[k].from < a[i].to)
        return true;
  return false;
}

enum { HAZARD_STEPS_MAX = 512 };

/* Every pair of steps that touch one memory must be ordered by dependencies.
 * Quadratic, so for plans of a few hundred steps; longer ones repeat the same
 * pattern. */
static gb_status check_hazards(checker *c, int rank) {
  const gbi_plan *plan = c->ranks[rank].plan;
  if (plan->count > HAZARD_STEPS_MAX) return GB_OK;
  static uint64_t before[HAZARD_STEPS_MAX][HAZARD_STEPS_MAX / 64];
  memset(before, 0, sizeof before);
  for (uint32_t i = 0; i < plan->count; i++) {
    const gbi_step *step = &plan->steps[i];
    for (int d = 0; d < 2; d++)
      for (uint32_t k = 0; k < step->deps[d].count; k++) {
        uint32_t dep = step->deps[d].from + k;
        before[i][dep / 64] |= UINT64_C(1) << dep % 64;
        for (size_t w = 0; w < HAZARD_STEPS_MAX / 64; w++)
          before[i][w] |= before[dep][w];
      }
    span mine[2], other[2];
    int n = touched(c, rank, step, my_index(c, step->resource, rank), mine);
    for (uint32_t k = 0; k < i; k++) {
      if (before[i][k / 64] >> k % 64 & 1) continue;
      const gbi_step *older = &plan->steps[k];
      int m =
          touched(c, rank, older, my_index(c, older->resource, rank), other);
      if (conflict(mine, n, other, m))
        return gbi_fail(c->error, GB_ERR_INTERNAL,
                        "rank %d: steps %u and %u touch the same memory and "
                        "neither waits for the other",
                        rank, k, i);
    }
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
        x->count != y->count || x->wide != y->wide)
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

static void run_local(const checker *c, runner *r, const gbi_step *step) {
  uint64_t *src = resolve(r, step->src), *dst = resolve(r, step->dst);
  uint64_t unit_src = step->src.place == GBI_SCRATCH
                          ? ref_size(r->plan, step, true)
                          : 1;
  uint64_t unit_dst = step->dst.place == GBI_SCRATCH
                          ? ref_size(r->plan, step, false)
                          : 1;
  for (uint64_t i = 0; i < step->count; i++) {
    uint64_t value = src[i * unit_src];
    if (step->verb == GBI_DO_FOLD) {
      for (int row = 1; row < c->world; row++)
        value += src[((uint64_t)row * step->count + i) * unit_src];
      if (r->plan->coll.redop == GB_AVG) value ^= UINT64_MAX;
    }
    if (step->verb == GBI_DO_DIVIDE) value = dst[i * unit_dst] ^ UINT64_MAX;
    if (step->verb == GBI_DO_NARROW) value ^= UINT64_MAX;
    dst[i * unit_dst] = value;
  }
}

/* Starts what this rank can start; true when anything happened. */
static bool advance(checker *c, int rank) {
  runner *r = &c->ranks[rank];
  bool any = false;
  for (int resource = 0; resource < GBI_RESOURCES; resource++) {
    while (r->cursor[resource] < r->plan->first[resource + 1]) {
      uint32_t index = r->plan->order[r->cursor[resource]];
      const gbi_step *step = &r->plan->steps[index];
      if (!deps_done(r, step)) break;
      r->state[index] = STARTED;
      r->cursor[resource]++;
      any = true;
      if (resource != GBI_ON_RANK) continue;
      run_local(c, r, step);
      r->state[index] = DONE;
      r->done++;
    }
  }
  return any;
}

static void move_data(checker *c, int resource, int rank, uint32_t position,
                      int n) {
  const gbi_plan *plan = c->ranks[rank].plan;
  const gbi_step *mine =
      &plan->steps[plan->order[plan->first[resource] + position]];
  uint64_t size = element_bytes(plan, mine);
  for (uint64_t i = 0; i < mine->count; i++) {
    uint64_t value = 0;
    bool sums = mine->verb == GBI_DO_REDUCE || mine->verb == GBI_DO_ALL_REDUCE;
    for (int k = 0; k < n; k++) {
      if (!sums && k != mine->root) continue;
      runner *r = &c->ranks[member(c, resource, rank, k)];
      const gbi_step *step =
          &r->plan->steps[r->plan->order[r->plan->first[resource] + position]];
      uint64_t unit = step->src.place == GBI_SCRATCH ? size : 1;
      value += resolve(r, step->src)[i * unit];
    }
    for (int k = 0; k < n; k++) {
      if (mine->verb == GBI_DO_REDUCE && k != mine->root) continue;
      if (mine->verb == GBI_DO_TRANSFER && k != mine->peer) continue;
      if (mine->verb == GBI_DO_BROADCAST && k == mine->root) continue;
      runner *r = &c->ranks[member(c, resource, rank, k)];
      const gbi_step *step =
          &r->plan->steps[r->plan->order[r->plan->first[resource] + position]];
      uint64_t unit = step->dst.place == GBI_SCRATCH ? size : 1;
      resolve(r, step->dst)[i * unit] = value;
    }
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
    move_data(c, resource, rank, *finished, n);
    for (int k = 0; k < n; k++) {
      runner *r = &c->ranks[member(c, resource, rank, k)];
      r->state[r->plan->order[r->plan->first[resource] + *finished]] = DONE;
      r->done++;
    }
  }
  return any;
}

static gb_status run_all(checker *c) {
  uint32_t(*finished)[GBI_RESOURCES] =
      calloc((size_t)c->world, sizeof *finished);
  if (!finished)
    return gbi_fail(c->error, GB_ERR_MEMORY, "no memory for the checker");
  bool any = true;
  while (any) {
    any = false;
    for (int rank = 0; rank < c->world; rank++) any |= advance(c, rank);
    for (int resource = GBI_ON_ISLAND; resource < GBI_RESOURCES; resource++)
      for (int rank = 0; rank < c->world; rank++)
        if (c->ranks[rank].plan->first[resource + 1] >
                c->ranks[rank].plan->first[resource] &&
            member(c, resource, rank, 0) == rank)
          any |= finish(c, resource, rank, &finished[rank][resource]);
  }
  free(finished);
  for (int rank = 0; rank < c->world; rank++)
    if (c->ranks[rank].done != c->ranks[rank].plan->count)
      return gbi_fail(c->error, GB_ERR_INTERNAL,
                      "deadlock: rank %d stands at %u of %u steps", rank,
                      c->ranks[rank].done, c->ranks[rank].plan->count);
  return GB_OK;
}

/* ---- results ---- */

static uint64_t expected(const checker *c, int rank, uint64_t i) {
  const gbi_coll *coll = &c->ranks[0].plan->coll;
  uint64_t value;
  switch (coll->op) {
    case GBI_OP_BROADCAST: return tag(coll->root, i);
    case GBI_OP_ALL_GATHER:
      return tag((int)(i / coll->count), i % coll->count);
    case GBI_OP_REDUCE_SCATTER:
      value = sum_tag(c->world, (uint64_t)rank * coll->count + i);
      break;
    default: value = sum_tag(c->world, i);
  }
  return coll->redop == GB_AVG ? value ^ UINT64_MAX : value;
}

static gb_status check_results(checker *c) {
  for (int rank = 0; rank < c->world; rank++) {
    runner *r = &c->ranks[rank];
    const uint64_t *out = r->aliased ? r->in : r->out;
    for (uint64_t i = 0; i < c->out_elements; i++)
      if (out[i] != expected(c, rank, i))
        return gbi_fail(c->error, GB_ERR_INTERNAL,
                        "wrong result: rank %d element %llu", rank,
                        (unsigned long long)i);
    for (uint64_t i = 0; !r->aliased && i < c->in_elements; i++)
      if (r->in[i] != tag(rank, i))
        return gbi_fail(c->error, GB_ERR_INTERNAL,
                        "rank %d's input was changed at element %llu", rank,
                        (unsigned long long)i);
  }
  return GB_OK;
}

static void fini_ranks(checker *c) {
  for (int r = 0; c->ranks && r < c->world; r++) {
    free(c->ranks[r].in);
    free(c->ranks[r].out);
    free(c->ranks[r].scratch);
    free(c->ranks[r].state);
  }
  free(c->ranks);
}

static gb_status init_ranks(checker *c, const gbi_plan *const *plans) {
  const gbi_coll *coll = &plans[0]->coll;
  uint64_t n = coll->count, world = (uint64_t)c->world;
  c->in_elements = coll->op == GBI_OP_REDUCE_SCATTER ? n * world : n;
  c->out_elements = coll->op == GBI_OP_ALL_GATHER ? n * world : n;
  bool aliased =
      coll->op != GBI_OP_ALL_GATHER && coll->op != GBI_OP_REDUCE_SCATTER;
  for (int rank = 0; rank < c->world; rank++) {
    runner *r = &c->ranks[rank];
    r->plan = plans[rank];
    r->aliased = aliased;
    r->in = calloc(c->in_elements + 1, 8);
    r->out = calloc(c->out_elements + 1, 8);
    r->scratch = calloc(plans[rank]->scratch_bytes + 1, 8);
    r->state = calloc(plans[rank]->count + 1, 1);
    if (!r->in || !r->out || !r->scratch || !r->state)
      return gbi_fail(c->error, GB_ERR_MEMORY, "no memory for the checker");
    for (uint64_t i = 0; i < c->in_elements; i++) r->in[i] = tag(rank, i);
    memcpy(r->cursor, r->plan->first, sizeof r->cursor);
  }
  return GB_OK;
}

gb_status gbi_plans_check(const gbi_topology *topology,
                          const gbi_plan *const *plans, gb_error *error) {
  checker c = {.topology = topology, .world = topology->world, .error = error};
  c.ranks = calloc((size_t)c.world, sizeof *c.ranks);
  if (!c.ranks)
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for the checker");
  gb_status status = init_ranks(&c, plans);
  for (int rank = 0; rank < c.world && status == GB_OK; rank++) {
    status = check_refs(&c, rank);
    if (status == GB_OK) status = check_hazards(&c, rank);
    for (int on = GBI_ON_ISLAND; on < GBI_RESOURCES && status == GB_OK; on++)
      if (plans[rank]->first[on + 1] > plans[rank]->first[on])
        status = check_same(&c, on, rank);
  }
  if (status == GB_OK) status = run_all(&c);
  if (status == GB_OK) status = check_results(&c);
  fini_ranks(&c);
  return status;
}
