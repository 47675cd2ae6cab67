#include "sim/sim.h"

#include "base/memory.h"
#include "sim/lanes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Seconds that count as the same moment. */
static const double MOMENT = 1e-10;

/* What happens at a known time: a step begins to move, or is over. */
typedef struct event {
  double at;
  uint64_t number; /* the order of those at one time */
  uint64_t tag;
  bool over;
} event;

typedef struct run {
  gbi_cost *cost;
  gbi_lanes lanes;
  gbi_fluid *fluid;
  event *events; /* a heap, the next one first */
  uint32_t events_count, events_capacity;
  uint64_t events_made, steps;
  double now, end;
  uint32_t *ready; /* lanes that may have something to start */
  uint32_t ready_count;
  bool *is_ready;
  bool failed; /* no memory */
} run;

static uint64_t tag_of(uint32_t lane, uint32_t place) {
  return (uint64_t)lane << 32 | place;
}

/* ---- events ---- */

static bool sooner(const event *a, const event *b) {
  return a->at < b->at || (!(a->at > b->at) && a->number < b->number);
}

static void push(run *r, double after, uint64_t tag, bool over) {
  if (r->events_count == r->events_capacity) {
    uint32_t capacity = r->events_capacity ? r->events_capacity * 2 : 256;
    event *events = gbi_realloc(r->events, capacity * sizeof *events);
    r->failed |= !events;
    if (!events) return;
    r->events = events;
    r->events_capacity = capacity;
  }
  event one = {r->now + after, r->events_made++, tag, over};
  uint32_t at = r->events_count++;
  for (; at && sooner(&one, &r->events[(at - 1) / 2]); at = (at - 1) / 2)
    r->events[at] = r->events[(at - 1) / 2];
  r->events[at] = one;
}

static event pop(run *r) {
  event first = r->events[0], last = r->events[--r->events_count];
  uint32_t at = 0, n = r->events_count;
  for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
    if (child + 1 < n && sooner(&r->events[child + 1], &r->events[child]))
      child++;
    if (!sooner(&r->events[child], &last)) break;
    r->events[at] = r->events[child];
  }
  r->events[at] = last;
  return first;
}

/* ---- steps ---- */

static void make_ready(run *r, uint32_t lane) {
  if (r->is_ready[lane]) return;
  r->is_ready[lane] = true;
  r->ready[r->ready_count++] = lane;
}

/* The other end of a message. */
static uint32_t other_lane(const run *r, const gbi_lane_step *s) {
  uint32_t first = r->lanes.count - (uint32_t)r->cost->topology->world;
  return first + (uint32_t)s->peer;
}

/* Whether the step is one whose both ends have begun. */
static bool both_began(const run *r, const gbi_lane_step *s) {
  return r->lanes.lanes[other_lane(r, s)].started > s->needs;
}

/* Overheads run beside each other: they are waits more than work. */
static void start(run *r, uint32_t at, uint32_t place) {
  gbi_lane *lane = &r->lanes.lanes[at];
  const gbi_lane_step *s = &lane->steps[place];
  double overhead = r->cost->links->overhead_us / 1e6;
  lane->started++;
  lane->flying++;
  if (lane->kind == GBI_LANE_RANK) overhead = 0;
  if (lane->kind == GBI_LANE_MESH && !both_began(r, s)) return;
  r->steps++;
  push(r, overhead, tag_of(at, place), false);
}

static void start_ready(run *r) {
  for (uint32_t i = 0; i < r->ready_count; i++) {
    uint32_t at = r->ready[i];
    gbi_lane *lane = &r->lanes.lanes[at];
    bool mesh = lane->kind == GBI_LANE_MESH;
    while (lane->started < lane->count && lane->flying < lane->flying_most &&
           !lane->pending[lane->started] &&
           (mesh || lane->ended >= lane->steps[lane->started].needs))
      start(r, at, lane->started);
    r->is_ready[at] = false;
  }
  r->ready_count = 0;
}

static uint32_t cost_of(run *r, const gbi_lane *lane, const gbi_lane_step *s) {
  gbi_cost *c = r->cost;
  const gbi_members *m = &lane->members;
  switch (lane->kind) {
    case GBI_LANE_ISLAND:
      return gbi_cost_island(c, m, lane->number, s->verb, s->root, s->peer,
                             s->bytes);
    case GBI_LANE_BRIDGE:
      return gbi_cost_bridge(c, m, lane->number, s->verb, s->root, s->peer,
                             s->bytes);
    case GBI_LANE_WORLD:
      return gbi_cost_world(c, m, s->verb, s->root, s->peer, s->bytes);
    case GBI_LANE_MESH:
      return s->verb == GBI_DO_SEND
                 ? gbi_cost_message(c, lane->number, s->peer, s->bytes)
                 : gbi_cost_message(c, s->peer, lane->number, s->bytes);
    default: return gbi_cost_local(c, lane->number, s->bytes);
  }
}

/* Whether member `i` sends in a step. */
static bool sends(const gbi_lane_step *s, int i) {
  if (s->verb == GBI_DO_ALL_REDUCE) return true;
  return s->verb == GBI_DO_REDUCE ? i != s->root : i == s->root;
}

/* A connection carries its messages in the order of their steps. */
static bool share_sender(const gbi_lane *lane, const gbi_lane_step *a,
                         const gbi_lane_step *b) {
  if (lane->serial) return true;
  for (int i = 0; i < lane->members.count; i++)
    if (sends(a, i) && sends(b, i)) return true;
  return false;
}

static bool held_up(const gbi_lane *lane, uint32_t place) {
  gbi_step_state enough = lane->to_the_end ? GBI_STEP_OVER : GBI_STEP_SENT;
  if (!lane->serial && !lane->in_order) return false;
  for (uint32_t i = lane->ended; i < place; i++)
    if (lane->steps[i].state < enough &&
        share_sender(lane, &lane->steps[i], &lane->steps[place]))
      return true;
  return false;
}

static void sent(run *r, uint64_t tag);

static void move(run *r, uint32_t at, uint32_t place) {
  gbi_lane *lane = &r->lanes.lanes[at];
  gbi_lane_step *s = &lane->steps[place];
  uint32_t parts = cost_of(r, lane, s);
  s->latency = r->cost->latency;
  s->state = GBI_STEP_MOVES;
  lane->moves_since = r->now;
  if (!parts)
    sent(r, tag_of(at, place));
  else if (!gbi_fluid_begin(r->fluid, r->cost->parts, parts, tag_of(at, place)))
    r->failed = true;
}

/* Steps that a step of their lane has held up. */
static void move_on(run *r, uint32_t at) {
  const gbi_lane *lane = &r->lanes.lanes[at];
  if (!lane->serial && !lane->in_order) return;
  for (uint32_t i = lane->ended; i < lane->started; i++)
    if (lane->steps[i].state == GBI_STEP_SET_UP && !held_up(lane, i))
      move(r, at, i);
}

/* The last byte is on its way. */
static void sent(run *r, uint64_t tag) {
  uint32_t at = (uint32_t)(tag >> 32);
  gbi_lane *lane = &r->lanes.lanes[at];
  gbi_lane_step *s = &lane->steps[(uint32_t)tag];
  s->state = GBI_STEP_SENT;
  if (lane->serial) lane->busy += r->now - lane->moves_since;
  if (lane->to_the_end) lane->busy += s->latency;
  push(r, s->latency, tag, true);
  move_on(r, at);
}

static void set_up(run *r, uint64_t tag) {
  uint32_t at = (uint32_t)(tag >> 32), place = (uint32_t)tag;
  gbi_lane *lane = &r->lanes.lanes[at];
  lane->steps[place].state = GBI_STEP_SET_UP;
  if (!held_up(lane, place)) move(r, at, place);
}

/* Gates open as their places are reached. */
static void pass(run *r, uint32_t at, uint32_t place) {
  gbi_lanes *l = &r->lanes;
  gbi_lane *lane = &l->lanes[at];
  lane->steps[place].state = GBI_STEP_OVER;
  lane->flying--;
  while (lane->ended < lane->count &&
         lane->steps[lane->ended].state == GBI_STEP_OVER)
    lane->ended++;
  for (; lane->gate < lane->gates_end; lane->gate++) {
    const gbi_gate *g = &l->gates[lane->gate];
    if (g->place > lane->ended) break;
    l->lanes[g->to_lane].pending[g->to_place]--;
    make_ready(r, g->to_lane);
  }
  make_ready(r, at);
  if (lane->to_the_end) move_on(r, at);
}

static void over(run *r, uint64_t tag) {
  uint32_t at = (uint32_t)(tag >> 32), place = (uint32_t)tag;
  const gbi_lane *lane = &r->lanes.lanes[at];
  const gbi_lane_step *s = &lane->steps[place];
  r->end = r->now;
  if (lane->kind == GBI_LANE_MESH) pass(r, other_lane(r, s), s->needs);
  pass(r, at, place);
}

/* ---- the run ---- */

static void run_all(run *r) {
  for (uint32_t i = 0; i < r->lanes.count; i++)
    if (r->lanes.lanes[i].count) make_ready(r, i);
  for (;;) {
    start_ready(r);
    double wait = gbi_fluid_next(r->fluid);
    double until = r->events_count ? r->events[0].at - r->now : INFINITY;
    double step = fmax(fmin(wait, until), 0);
    if (r->failed || !isfinite(step)) return;
    /* By the step, not by the clock: it may be too short to be seen there. */
    gbi_fluid_advance(r->fluid, step);
    r->now += step;
    uint64_t tag;
    while (gbi_fluid_ended(r->fluid, &tag)) sent(r, tag);
    while (r->events_count && r->events[0].at <= r->now + MOMENT) {
      event e = pop(r);
      if (e.over)
        over(r, e.tag);
      else
        set_up(r, e.tag);
    }
  }
}

/* Who waits for what, after nothing moves any more. */
static gb_status explain(const run *r, uint32_t at, gb_error *error) {
  const gbi_lanes *l = &r->lanes;
  const gbi_lane *lane = &l->lanes[at];
  char here[96], there[96];
  gbi_lane_name(l, at, here, sizeof here);
  for (uint32_t g = 0; g < l->gates_count; g++) {
    const gbi_gate *gate = &l->gates[g];
    if (gate->to_lane != at || gate->to_place != lane->started ||
        gate->place <= l->lanes[gate->lane].ended)
      continue;
    gbi_lane_name(l, gate->lane, there, sizeof there);
    return gbi_fail_rank(error, GB_ERR_INTERNAL, gate->rank,
                         "the plans lock up: rank %d waits with step %u on %s "
                         "for step %u on %s, which never ends",
                         gate->rank, lane->started, here, gate->place - 1,
                         there);
  }
  return gbi_fail(error, GB_ERR_INTERNAL,
                  "the plans lock up: %u of %u steps on %s end, and no more",
                  lane->ended, lane->count, here);
}

/* The lane that is stuck, UINT32_MAX: none. One that cannot start says more
 * than one that others hold up. */
static uint32_t stuck_lane(const run *r) {
  uint32_t stuck = UINT32_MAX;
  for (uint32_t i = 0; i < r->lanes.count; i++) {
    const gbi_lane *lane = &r->lanes.lanes[i];
    if (lane->ended == lane->count) continue;
    if (lane->started < lane->count && lane->pending[lane->started]) return i;
    if (stuck == UINT32_MAX) stuck = i;
  }
  return stuck;
}

/* What was asked for most; where that is little, whose steps waited for each
 * other instead. */
static void find_busiest(const run *r, gbi_sim_result *result) {
  uint32_t most = 0, longest = 0;
  for (uint32_t i = 1; i < r->cost->resources; i++)
    if (gbi_fluid_busy(r->fluid, i) > gbi_fluid_busy(r->fluid, most)) most = i;
  for (uint32_t i = 1; i < r->lanes.count; i++)
    if (r->lanes.lanes[i].busy > r->lanes.lanes[longest].busy) longest = i;
  double busy = gbi_fluid_busy(r->fluid, most);
  double one_by_one = r->lanes.lanes[longest].busy;
  if (!(r->end > 0)) return;
  if (busy < 0.5 * r->end && one_by_one > busy) {
    char name[64];
    gbi_lane_name(&r->lanes, longest, name, sizeof name);
    snprintf(result->busiest, sizeof result->busiest, "steps of %s in a row",
             name);
    result->busy = one_by_one / r->end;
    return;
  }
  gbi_cost_name(r->cost, most, result->busiest, sizeof result->busiest);
  result->busy = busy / r->end;
}

static gb_status report(const run *r, gbi_sim_result *result, gb_error *error) {
  if (r->failed)
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for a simulation");
  uint32_t stuck = stuck_lane(r);
  if (stuck != UINT32_MAX) return explain(r, stuck, error);
  *result = (gbi_sim_result){
      .seconds = r->end, .plan_steps = r->lanes.plan_steps, .steps = r->steps};
  find_busiest(r, result);
  return GB_OK;
}

static gb_status prepare(run *r, const gbi_sim_spec *spec, const gbi_coll *coll,
                         gb_error *error) {
  GBI_TRY(gbi_cost_open(spec->topology, spec->links, spec->bridges, &r->cost,
                        error));
  GBI_TRY(gbi_lanes_open(spec, r->cost, &r->lanes, error));
  GBI_TRY(gbi_lanes_fill(&r->lanes, coll, error));
  r->fluid = gbi_fluid_new(r->cost->resources);
  r->ready = gbi_malloc(r->lanes.count * sizeof *r->ready);
  r->is_ready = gbi_calloc(r->lanes.count, sizeof *r->is_ready);
  if (r->fluid && r->ready && r->is_ready) return GB_OK;
  return gbi_fail(error, GB_ERR_MEMORY, "no memory for a simulation");
}

gb_status gbi_sim_run(const gbi_sim_spec *spec, const gbi_coll *coll,
                      gbi_sim_result *result, gb_error *error) {
  run r = {0};
  gb_status status = prepare(&r, spec, coll, error);
  if (status == GB_OK) {
    run_all(&r);
    status = report(&r, result, error);
  }
  gbi_fluid_free(r.fluid);
  gbi_lanes_free(&r.lanes);
  gbi_cost_free(r.cost);
  free(r.events);
  free(r.ready);
  free(r.is_ready);
  return status;
}

/* ---- plans of a policy ---- */

void gbi_sim_policy_open(gbi_sim_policy *made, const gbi_policy_ops *policy,
                         const gbi_topology *topology, bool on_hosts,
                         uint64_t chunk_bytes, int links_most) {
  int links = gbi_policy_links(policy, NULL, topology, links_most);
  bool direct = on_hosts && gbi_policy_may_pass(topology, "shm");
  *made = (gbi_sim_policy){.policy = policy,
                           .env = {.topology = topology,
                                   .direct = direct,
                                   .chunk_bytes = gbi_policy_chunk_bytes(
                                       topology, chunk_bytes, links),
                                   .links = links}};
}

gb_status gbi_sim_policy_plan(void *arg, int rank, const gbi_coll *coll,
                              gbi_plan **plan_p, gb_error *error) {
  const gbi_sim_policy *made = arg;
  gbi_policy_env env = made->env;
  env.rank = rank;
  return gbi_policy_plan(made->policy, &env, coll, plan_p, error);
}
