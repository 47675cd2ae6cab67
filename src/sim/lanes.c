#include "sim/lanes.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As core/engine.h and bridge/step.h bound them. */
enum { STEPS_FLYING = 16, BRIDGE_FLYING = 8 };

/* ---- lanes ---- */

static uint32_t bridge_lane(const gbi_lanes *l, int link) {
  return (uint32_t)(l->spec->topology->islands_count + link);
}
static uint32_t world_lane(const gbi_lanes *l) {
  return bridge_lane(l, l->spec->bridges);
}
static uint32_t rank_lane(const gbi_lanes *l, int rank) {
  return world_lane(l) + 1 + (uint32_t)rank;
}
static uint32_t mesh_lane(const gbi_lanes *l, int rank) {
  return rank_lane(l, l->spec->topology->world) + (uint32_t)rank;
}

void gbi_lane_name(const gbi_lanes *l, uint32_t lane, char *text,
                   size_t bytes) {
  const gbi_lane *one = &l->lanes[lane];
  switch (one->kind) {
    case GBI_LANE_ISLAND:
      snprintf(text, bytes, "island %s",
               l->spec->topology->islands[one->number].label);
      break;
    case GBI_LANE_BRIDGE: snprintf(text, bytes, "link %d", one->number); break;
    case GBI_LANE_WORLD: snprintf(text, bytes, "all ranks"); break;
    case GBI_LANE_RANK:
      snprintf(text, bytes, "local work of rank %d", one->number);
      break;
    default: snprintf(text, bytes, "messages of rank %d", one->number);
  }
}

static bool lane_of_ranks(gbi_lanes *l, uint32_t at, gbi_lane_kind kind,
                          int number, const int *ranks, int count) {
  gbi_lane *lane = &l->lanes[at];
  *lane =
      (gbi_lane){.kind = kind, .number = number, .flying_most = STEPS_FLYING};
  if (!gbi_members_init(&lane->members, l->spec->topology, ranks, count))
    return false;
  lane->to_the_end =
      kind == GBI_LANE_ISLAND && gbi_cost_has_fabric(l->cost, number);
  lane->serial =
      lane->to_the_end || (kind != GBI_LANE_BRIDGE && lane->members.hosts > 1);
  lane->in_order = kind == GBI_LANE_BRIDGE;
  if (lane->in_order) lane->flying_most = BRIDGE_FLYING;
  return true;
}

static gb_status no_memory(gb_error *error) {
  return gbi_fail(error, GB_ERR_MEMORY, "no memory for a simulation");
}

/* The members of every link, and after them all ranks. */
static int *lists_of_ranks(const gbi_sim_spec *spec) {
  const gbi_topology *t = spec->topology;
  size_t n = (size_t)spec->bridges * (size_t)t->islands_count;
  int *ranks = gbi_malloc((n + (size_t)t->world) * sizeof *ranks), *at = ranks;
  if (!ranks) return NULL;
  for (int j = 0; j < spec->bridges; j++)
    for (int i = 0; i < t->islands_count; i++) *at++ = t->islands[i].holders[j];
  for (int r = 0; r < t->world; r++) *at++ = r;
  return ranks;
}

gb_status gbi_lanes_open(const gbi_sim_spec *spec, gbi_cost *cost, gbi_lanes *l,
                         gb_error *error) {
  const gbi_topology *t = spec->topology;
  *l = (gbi_lanes){.spec = spec, .cost = cost};
  uint32_t count = mesh_lane(l, t->world);
  l->lanes = gbi_calloc(count, sizeof *l->lanes);
  l->ranks = lists_of_ranks(spec);
  if (!l->lanes || !l->ranks) return no_memory(error);
  l->count = count;
  int islands = t->islands_count;
  bool made = true;
  for (int i = 0; i < islands && made; i++)
    made = lane_of_ranks(l, (uint32_t)i, GBI_LANE_ISLAND, i,
                         t->islands[i].ranks, t->islands[i].count);
  for (int j = 0; j < spec->bridges && made; j++)
    made = lane_of_ranks(l, bridge_lane(l, j), GBI_LANE_BRIDGE, j,
                         l->ranks + (size_t)j * (size_t)islands, islands);
  made =
      made && lane_of_ranks(l, world_lane(l), GBI_LANE_WORLD, 0,
                            l->ranks + (size_t)spec->bridges * (size_t)islands,
                            t->world);
  for (int r = 0; r < t->world; r++) {
    l->lanes[rank_lane(l, r)] = (gbi_lane){
        .kind = GBI_LANE_RANK, .number = r, .serial = true, .flying_most = 1};
    l->lanes[mesh_lane(l, r)] = (gbi_lane){
        .kind = GBI_LANE_MESH, .number = r, .flying_most = STEPS_FLYING};
  }
  return made ? GB_OK : no_memory(error);
}

void gbi_lanes_free(gbi_lanes *l) {
  for (uint32_t i = 0; i < l->count; i++) {
    gbi_members_free(&l->lanes[i].members);
    free(l->lanes[i].steps);
    free(l->lanes[i].pending);
  }
  for (int r = 0; r < GBI_RESOURCES; r++) free(l->before[r]);
  free(l->lanes);
  free(l->ranks);
  free(l->gates);
  *l = (gbi_lanes){0};
}

/* ---- one plan ---- */

typedef struct taker {
  gbi_lanes *lanes;
  const gbi_plan *plan;
  int rank;
  uint32_t lane[GBI_RESOURCES];
  /* [a][b]: steps of b that a later step of a waits for anyway. */
  uint32_t waits[GBI_RESOURCES][GBI_RESOURCES];
  gb_error *error;
} taker;

static gb_status count_steps(gbi_lanes *l, const gbi_plan *plan,
                             gb_error *error) {
  if (plan->count + 1 > l->before_capacity) {
    l->before_capacity = plan->count + plan->count / 4 + 64;
    for (int r = 0; r < GBI_RESOURCES; r++) {
      free(l->before[r]);
      l->before[r] = gbi_malloc(l->before_capacity * sizeof *l->before[r]);
    }
  }
  for (int r = 0; r < GBI_RESOURCES; r++) {
    if (!l->before[r]) return no_memory(error);
    uint32_t so_far = 0;
    for (uint32_t i = 0; i <= plan->count; i++) {
      l->before[r][i] = so_far;
      so_far += i < plan->count && plan->steps[i].resource == r;
    }
  }
  return GB_OK;
}

/* Bytes of a step: what a communicator moves, or a rank goes through. */
static uint64_t bytes_of(const gbi_plan *plan, const gbi_step *step,
                         int world) {
  if (step->resource != GBI_ON_RANK)
    return step->count * gb_dtype_bytes(gbi_step_dtype(plan, step));
  uint64_t bytes =
      step->count * gb_dtype_bytes(gbi_coll_travel_dtype(&plan->coll));
  if (step->verb == GBI_DO_FOLD) return bytes * (uint64_t)world;
  if (step->verb == GBI_DO_DECODE) return bytes * step->rows;
  return bytes;
}

static gb_status append(gbi_lane *lane, const gbi_lane_step *step,
                        gb_error *error) {
  if (lane->count == lane->capacity) {
    uint32_t capacity = lane->capacity ? lane->capacity * 2 : 8;
    gbi_lane_step *steps = gbi_realloc(lane->steps, capacity * sizeof *steps);
    if (!steps) return no_memory(error);
    lane->steps = steps;
    lane->capacity = capacity;
  }
  lane->steps[lane->count++] = *step;
  return GB_OK;
}

/* The first member's list is the lane's; the others' must be the same. */
static gb_status take_step(taker *t, uint32_t at, uint32_t place,
                           const gbi_lane_step *step) {
  gbi_lane *lane = &t->lanes->lanes[at];
  const gbi_lane_step *theirs = &lane->steps[place];
  int members = lane->members.count;
  bool joint = members > 0;
  if (joint && (step->root < 0 || step->root >= members || step->peer < 0 ||
                step->peer >= members))
    return gbi_fail(t->error, GB_ERR_INTERNAL,
                    "rank %d's plan names member %d of %d", t->rank,
                    GBI_MAX(step->root, step->peer), members);
  if (!lane->listed || !joint) return append(lane, step, t->error);
  if (place < lane->count && theirs->verb == step->verb &&
      theirs->bytes == step->bytes && theirs->root == step->root &&
      theirs->peer == step->peer) {
    lane->steps[place].needs = GBI_MAX(theirs->needs, step->needs);
    return GB_OK;
  }
  char name[96];
  gbi_lane_name(t->lanes, at, name, sizeof name);
  return gbi_fail(t->error, GB_ERR_INTERNAL,
                  "plans differ: step %u of rank %d on %s is not what rank %d "
                  "lists there",
                  place, t->rank, name, lane->members.ranks[0]);
}

static gb_status add_gate(taker *t, int from, uint32_t needs, int to,
                          uint32_t place) {
  gbi_lanes *l = t->lanes;
  if (l->gates_count == l->gates_capacity) {
    uint32_t capacity = l->gates_capacity ? l->gates_capacity * 2 : 1024;
    gbi_gate *gates = gbi_realloc(l->gates, capacity * sizeof *gates);
    if (!gates) return no_memory(t->error);
    l->gates = gates;
    l->gates_capacity = capacity;
  }
  l->gates[l->gates_count++] =
      (gbi_gate){t->lane[from], needs, t->lane[to], place, t->rank};
  return GB_OK;
}

/* What step `index` waits for, as gates; *own_p: of its own lane. */
static gb_status take_deps(taker *t, uint32_t index, uint32_t *own_p) {
  gbi_lanes *l = t->lanes;
  const gbi_step *step = &t->plan->steps[index];
  int to = step->resource;
  uint32_t place = l->before[to][index];
  for (int d = 0; d < 2; d++) {
    uint32_t from = step->deps[d].from, count = step->deps[d].count;
    if (!count) continue;
    if (from >= t->plan->count || count > t->plan->count - from)
      return gbi_fail(t->error, GB_ERR_INTERNAL,
                      "step %u of rank %d's plan waits for step %u of %u",
                      index, t->rank, from + count - 1, t->plan->count);
    for (int r = 0; r < GBI_RESOURCES; r++) {
      uint32_t needs = l->before[r][from + count];
      if (needs == l->before[r][from] || needs <= t->waits[to][r]) continue;
      t->waits[to][r] = needs;
      if (r == to)
        *own_p = needs;
      else
        GBI_TRY(add_gate(t, r, needs, to, place));
    }
  }
  return GB_OK;
}

static gb_status take_steps(taker *t) {
  gbi_lanes *l = t->lanes;
  for (uint32_t i = 0; i < t->plan->count; i++) {
    const gbi_step *step = &t->plan->steps[i];
    int r = step->resource;
    if (t->lane[r] == UINT32_MAX)
      return gbi_fail(t->error, GB_ERR_INTERNAL,
                      "rank %d's plan has a step on a bridge that it holds no "
                      "link of",
                      t->rank);
    gbi_lane_step one = {
        .bytes = bytes_of(t->plan, step, l->spec->topology->world),
        .root = step->root,
        .peer = step->peer,
        .verb = step->verb};
    GBI_TRY(take_deps(t, i, &one.needs));
    /* A serial lane has no other order anyway. */
    uint32_t place = l->before[r][i];
    if (l->lanes[t->lane[r]].serial && one.needs <= place) one.needs = 0;
    if (r == GBI_ON_MESH) one.needs = step->number;
    GBI_TRY(take_step(t, t->lane[r], place, &one));
  }
  return GB_OK;
}

static gb_status take_plan(gbi_lanes *l, const gbi_plan *plan, int rank,
                           gb_error *error) {
  const gbi_topology *topology = l->spec->topology;
  taker t = {.lanes = l, .plan = plan, .rank = rank, .error = error};
  int link = topology->link_of[rank];
  t.lane[GBI_ON_RANK] = rank_lane(l, rank);
  t.lane[GBI_ON_ISLAND] = (uint32_t)topology->island_of[rank];
  t.lane[GBI_ON_BRIDGE] =
      link < l->spec->bridges ? bridge_lane(l, link) : UINT32_MAX;
  t.lane[GBI_ON_WORLD] = world_lane(l);
  t.lane[GBI_ON_MESH] = mesh_lane(l, rank);
  GBI_TRY(count_steps(l, plan, error));
  GBI_TRY(take_steps(&t));
  for (int r = 0; r < GBI_RESOURCES; r++) {
    if (t.lane[r] == UINT32_MAX) continue;
    gbi_lane *lane = &l->lanes[t.lane[r]];
    lane->listed++;
    if (l->before[r][plan->count] == lane->count) continue;
    char name[96];
    gbi_lane_name(l, t.lane[r], name, sizeof name);
    return gbi_fail(error, GB_ERR_INTERNAL,
                    "plans differ: rank %d lists %u steps on %s, others %u",
                    rank, l->before[r][plan->count], name, lane->count);
  }
  return GB_OK;
}

/* ---- messages ---- */

/* One end of a message. */
typedef struct end {
  int from, to;
  uint32_t number, lane, place;
  uint64_t bytes;
} end;

static int compare_ends(const void *a, const void *b) {
  const end *x = a, *y = b;
  if (x->from != y->from) return x->from < y->from ? -1 : 1;
  if (x->to != y->to) return x->to < y->to ? -1 : 1;
  if (x->number != y->number) return x->number < y->number ? -1 : 1;
  return (x->lane > y->lane) - (x->lane < y->lane);
}

static void list_ends(const gbi_lanes *l, end *ends) {
  for (uint32_t i = 0; i < l->count; i++) {
    const gbi_lane *lane = &l->lanes[i];
    for (uint32_t p = 0; lane->kind == GBI_LANE_MESH && p < lane->count; p++) {
      const gbi_lane_step *s = &lane->steps[p];
      bool sends = s->verb == GBI_DO_SEND;
      *ends++ = (end){sends ? lane->number : s->peer,
                      sends ? s->peer : lane->number,
                      s->needs,
                      i,
                      p,
                      s->bytes};
    }
  }
}

/* Each end learns the place of the other. */
static gb_status join_ends(gbi_lanes *l, end *ends, size_t count,
                           gb_error *error) {
  qsort(ends, count, sizeof *ends, compare_ends);
  for (size_t i = 0; i < count; i += 2) {
    const end *a = &ends[i], *b = i + 1 < count ? a + 1 : NULL;
    if (!b || a->from != b->from || a->to != b->to || a->number != b->number ||
        a->lane == b->lane || a->bytes != b->bytes)
      return gbi_fail(error, GB_ERR_INTERNAL,
                      "message %u from rank %d to rank %d has no counterpart",
                      a->number, a->from, a->to);
    l->lanes[a->lane].steps[a->place].needs = b->place;
    l->lanes[b->lane].steps[b->place].needs = a->place;
  }
  return GB_OK;
}

static gb_status join_messages(gbi_lanes *l, gb_error *error) {
  size_t count = 0;
  for (uint32_t i = 0; i < l->count; i++)
    if (l->lanes[i].kind == GBI_LANE_MESH) count += l->lanes[i].count;
  if (!count) return GB_OK;
  end *ends = gbi_malloc(count * sizeof *ends);
  if (!ends) return no_memory(error);
  list_ends(l, ends);
  gb_status status = join_ends(l, ends, count, error);
  free(ends);
  return status;
}

/* ---- all plans ---- */

static int compare_gates(const void *a, const void *b) {
  const gbi_gate *x = a, *y = b;
  if (x->lane != y->lane) return x->lane < y->lane ? -1 : 1;
  if (x->place != y->place) return x->place < y->place ? -1 : 1;
  if (x->to_lane != y->to_lane) return x->to_lane < y->to_lane ? -1 : 1;
  if (x->to_place != y->to_place) return x->to_place < y->to_place ? -1 : 1;
  return (x->rank > y->rank) - (x->rank < y->rank);
}

static gb_status set_gates(gbi_lanes *l, gb_error *error) {
  for (uint32_t i = 0; i < l->count; i++) {
    gbi_lane *lane = &l->lanes[i];
    if (!lane->count) continue;
    lane->pending = gbi_calloc(lane->count, sizeof *lane->pending);
    if (!lane->pending) return no_memory(error);
  }
  if (l->gates_count)
    qsort(l->gates, l->gates_count, sizeof *l->gates, compare_gates);
  for (uint32_t i = 0, g = 0; i < l->count; i++) {
    l->lanes[i].gate = g;
    for (; g < l->gates_count && l->gates[g].lane == i; g++)
      l->lanes[l->gates[g].to_lane].pending[l->gates[g].to_place]++;
    l->lanes[i].gates_end = g;
  }
  return GB_OK;
}

gb_status gbi_lanes_fill(gbi_lanes *l, const gbi_coll *coll, gb_error *error) {
  const gbi_sim_spec *spec = l->spec;
  int world = spec->topology->world;
  for (int r = 0; r < world; r++) {
    gbi_plan *plan;
    GBI_TRY(spec->plan(spec->plan_arg, r, coll, &plan, error));
    gb_status status = GB_OK;
    if ((uint64_t)plan->count * (uint64_t)world > GBI_SIM_STEPS_MAX)
      status = gbi_fail(error, GB_ERR_ARGUMENT,
                        "%d ranks with %u steps each are more than a "
                        "simulation takes",
                        world, plan->count);
    else
      status = take_plan(l, plan, r, error);
    l->plan_steps += plan->count;
    gbi_plan_free(plan);
    GBI_TRY(status);
  }
  GBI_TRY(join_messages(l, error));
  return set_gates(l, error);
}
