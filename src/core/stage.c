#include "core/stage.h"

#include "base/fault.h"
#include "base/memory.h"
#include "codec/codec.h"

#include <stdlib.h>
#include <string.h>

enum { NONE = -1, LINE = 256, WINDOWS = 2 };

/* Bytes [begin, end) of the call's buffers or the scratch. */
typedef struct range {
  uint8_t place;
  uint64_t begin, end;
} range;

/* A piece of the ring and what it holds. */
typedef struct block {
  range r;
  uint64_t at;
  bool alive;    /* the host may go on from it */
  bool dirty;    /* the device does not have it yet */
  int64_t user;  /* the last step of the host on it */
  int64_t flush; /* the event after which it is back, NONE */
  bool late;     /* the last user came after that */
} block;

/* What came from a member's area, and the event after which it is there. */
typedef struct pull {
  range r;
  int64_t event;
} pull;

/* Half of each member's area. */
typedef struct window {
  bool used;     /* since it was last handed back */
  int64_t event; /* the last copy in from it, NONE */
  int64_t back;  /* the step of the host that handed it back, NONE */
} window;

typedef struct maker {
  const gbi_plan *plan;
  const gbi_stage_self *self;
  uint64_t ring, next; /* bytes; where the next block goes */
  gbi_staged *out;
  uint32_t ops_room;
  block *blocks; /* in the order of their places; [head, count) are there */
  uint32_t head, count, room;
  uint32_t *host; /* plan step -> first host step at or after it */
  int64_t *event; /* plan step -> event recorded after it, NONE */
  bool *wanted;   /* plan step of MAIN: a step of the host waits for it */
  int64_t seen[GBI_LANES][GBI_LANES]; /* newest event of b that a waited for */
  int64_t newest[GBI_LANES];          /* event that was recorded there */
  uint32_t raised[GBI_LANES];         /* releases that the lane waited for */
  pull *pulls;
  uint32_t pulls_count, pulls_room;
  window windows[WINDOWS];
  int window;            /* the one in use */
  uint64_t window_taken; /* bytes of it */
  const gbi_step *now;                /* the plan's step; NULL: its end */
  bool failed;
} maker;

/* ---- what a step touches ---- */

static bool on_host(const maker *m, const gbi_step *s) {
  if (s->resource == GBI_ON_ISLAND) return false;
  if (s->resource != GBI_ON_RANK) return true;
  if (s->verb == GBI_DO_COPY) return false;
  return !m->self->on_device || !m->self->on_device(m->self->arg, m->plan, s);
}

static range range_of(const maker *m, gbi_ref ref, uint64_t element,
                      uint64_t bytes) {
  bool scratch = ref.place == GBI_SCRATCH;
  uint64_t begin = scratch ? ref.offset : ref.offset * element;
  uint8_t place = ref.place;
  if (place == GBI_IN && gbi_coll_in_place(&m->plan->coll)) place = GBI_OUT;
  return (range){place, begin, begin + bytes};
}

/* Bytes that a step on the rank reads and writes. */
static void local_bytes(const maker *m, const gbi_step *s, uint64_t *in,
                        uint64_t *out) {
  const gbi_coll *coll = &m->plan->coll;
  uint64_t plain = gb_dtype_bytes((gb_dtype)coll->dtype) * s->count;
  uint64_t travel = gb_dtype_bytes(gbi_coll_travel_dtype(coll)) * s->count;
  uint64_t own = s->wide ? travel : plain;
  *in = *out = plain;
  switch (s->verb) {
    case GBI_DO_LOAD: *out = travel; break;
    case GBI_DO_STORE: *in = travel; break;
    case GBI_DO_COMBINE: *in = *out = own; break;
    case GBI_DO_FOLD: *in = own * (uint64_t)m->self->world; break;
    case GBI_DO_ENCODE:
      *in = own;
      *out = gbi_codec_bytes((gbi_codec)s->codec, s->count);
      break;
    case GBI_DO_DECODE:
      *in = gbi_codec_bytes((gbi_codec)s->codec, s->count) * s->rows;
      *out = own;
      break;
    default: break;
  }
}

/* Empty ranges where this rank does not read, or write. */
static void touches(const maker *m, const gbi_step *s, range *in, range *out) {
  int me = m->self->me[s->resource];
  uint64_t element = gb_dtype_bytes(gbi_step_dtype(m->plan, s));
  uint64_t reads = element * s->count, writes = reads;
  switch (s->verb) {
    case GBI_DO_REDUCE: writes *= s->root == me; break;
    case GBI_DO_BROADCAST:
      reads *= s->root == me;
      writes *= s->root != me;
      break;
    case GBI_DO_ALL_REDUCE: break;
    case GBI_DO_TRANSFER:
      reads *= s->root == me;
      writes *= s->peer == me;
      break;
    case GBI_DO_SEND: writes = 0; break;
    case GBI_DO_RECV: reads = 0; break;
    default:
      element = gb_dtype_bytes((gb_dtype)m->plan->coll.dtype);
      local_bytes(m, s, &reads, &writes);
  }
  *in = range_of(m, s->verb == GBI_DO_DIVIDE ? s->dst : s->src, element, reads);
  *out = range_of(m, s->dst, element, writes);
}

static bool empty(range r) {
  return r.begin == r.end;
}
static bool meet(range a, range b) {
  return a.place == b.place && a.begin < b.end && b.begin < a.end;
}
static bool holds(range a, range b) {
  return a.place == b.place && a.begin <= b.begin && b.end <= a.end;
}

/* ---- the list of operations ---- */

static void emit(maker *m, gbi_stage_op op) {
  gbi_staged *out = m->out;
  if (out->ops_count == m->ops_room) {
    uint32_t room = m->ops_room ? m->ops_room * 2 : 64;
    gbi_stage_op *ops = gbi_realloc(out->ops, room * sizeof *ops);
    if (!ops) {
      m->failed = true;
      return;
    }
    out->ops = ops;
    m->ops_room = room;
  }
  out->ops[out->ops_count++] = op;
}

static int64_t record(maker *m, int lane) {
  uint32_t event = m->out->events++;
  emit(m,
       (gbi_stage_op){
           .verb = GBI_STAGE_RECORD, .lane = (uint8_t)lane, .number = event});
  return m->newest[lane] = event;
}

/* For the tests that see it: what kernels and copies of their results wait for.
 */
static bool left_out(const maker *m, int lane, int other) {
  const gbi_step *s = m->now;
  if (GBI_FAULT("gpu.wait") == GBI_FAULT_FAIL) return true;
  if (lane == GBI_LANE_END && other == GBI_LANE_MAIN)
    return GBI_FAULT("gpu.result") == GBI_FAULT_FAIL;
  if (lane == GBI_LANE_OUT && other == GBI_LANE_MAIN && s && s->codec)
    return GBI_FAULT("gpu.payload") == GBI_FAULT_FAIL;
  if (lane == GBI_LANE_MAIN && s &&
      (s->verb == GBI_DO_COMBINE || s->verb == GBI_DO_DECODE))
    return GBI_FAULT("gpu.rows") == GBI_FAULT_FAIL;
  return false;
}

/* `lane` waits for an event of `other`, unless it waited for a later one. */
static void wait_event(maker *m, int lane, int other, int64_t event) {
  if (event <= m->seen[lane][other]) return;
  m->seen[lane][other] = event;
  if (left_out(m, lane, other)) return;
  emit(m, (gbi_stage_op){.verb = GBI_STAGE_WAIT,
                         .lane = (uint8_t)lane,
                         .number = (uint32_t)event});
}

/* The release of a step of the host, given now if it has none. */
static uint32_t release_of(maker *m, int64_t step) {
  gbi_step *s = &m->out->host->steps[step];
  if (!s->release) s->release = ++m->out->releases;
  return s->release;
}

static void wait_release(maker *m, int lane, int64_t step) {
  uint32_t number = release_of(m, step);
  if (number <= m->raised[lane]) return;
  m->raised[lane] = number;
  if (GBI_FAULT("gpu.release") == GBI_FAULT_FAIL) return;
  emit(m,
       (gbi_stage_op){
           .verb = GBI_STAGE_ARRIVED, .lane = (uint8_t)lane, .number = number});
}

/* ---- blocks ---- */

/* Releases are counted in the order of their numbers: who waits for this one's
 * waits for those before it too, which may be on their way together. */
static void use(maker *m, block *b, int64_t step) {
  if (b->user != NONE && b->user != step) (void)release_of(m, b->user);
  b->user = step;
  b->late = b->flush != NONE;
}

/* Back to the device. */
static void flush(maker *m, block *b) {
  if (!b->dirty) return;
  wait_release(m, GBI_LANE_IN, b->user);
  emit(m, (gbi_stage_op){.verb = GBI_STAGE_IN,
                         .lane = GBI_LANE_IN,
                         .ref = {b->r.place, b->r.begin},
                         .at = b->at,
                         .bytes = b->r.end - b->r.begin});
  b->flush = record(m, GBI_LANE_IN);
  b->dirty = false;
}

/* The device reads or writes `r`: it gets what the host has of it, and waits
 * for what is on its way back, also from blocks that are there no more. */
static void give_back(maker *m, int lane, range r, bool writes) {
  for (uint32_t i = 0; i < m->count; i++) {
    block *b = &m->blocks[i];
    if (!meet(b->r, r)) continue;
    if (b->alive) flush(m, b);
    if (b->flush != NONE) wait_event(m, lane, GBI_LANE_IN, b->flush);
    if (writes) b->alive = false;
  }
  for (uint32_t i = 0; i < m->pulls_count; i++)
    if (meet(m->pulls[i].r, r))
      wait_event(m, lane, GBI_LANE_IN, m->pulls[i].event);
}

/* The ring comes round: the OUT lane waits until the oldest block is free. */
static void retire(maker *m) {
  block *b = &m->blocks[m->head++];
  flush(m, b);
  b->alive = false;
  if (b->flush != NONE) wait_event(m, GBI_LANE_OUT, GBI_LANE_IN, b->flush);
  if (b->user != NONE && (b->flush == NONE || b->late))
    wait_release(m, GBI_LANE_OUT, b->user);
}

static block *new_block(maker *m, range r) {
  uint64_t bytes = (r.end - r.begin + LINE - 1) / LINE * LINE;
  if (m->next + bytes > m->ring) {
    while (m->head < m->count && m->blocks[m->head].at >= m->next) retire(m);
    m->next = 0;
  }
  while (m->head < m->count && m->blocks[m->head].at >= m->next &&
         m->blocks[m->head].at < m->next + bytes)
    retire(m);
  if (m->count == m->room) {
    uint32_t room = m->room ? m->room * 2 : 64;
    block *blocks = gbi_realloc(m->blocks, room * sizeof *blocks);
    if (!blocks) {
      m->failed = true;
      return NULL;
    }
    m->blocks = blocks;
    m->room = room;
  }
  block *b = &m->blocks[m->count++];
  *b = (block){
      .r = r, .at = m->next, .alive = true, .user = NONE, .flush = NONE};
  m->next += bytes;
  m->out->ring_used = GBI_MAX(m->out->ring_used, m->next);
  return b;
}

static block *block_with(maker *m, range r) {
  for (uint32_t i = m->head; i < m->count; i++)
    if (m->blocks[i].alive && holds(m->blocks[i].r, r)) return &m->blocks[i];
  return NULL;
}

/* ---- steps ---- */

/* The newest step of MAIN that `s` waits for, NONE. */
static int64_t device_dep(const maker *m, const gbi_step *s) {
  int64_t newest = NONE;
  for (int d = 0; d < 2; d++)
    for (uint32_t k = 0; k < s->deps[d].count; k++) {
      uint32_t i = s->deps[d].from + k;
      if (!on_host(m, &m->plan->steps[i])) newest = GBI_MAX(newest, (int64_t)i);
    }
  return newest;
}

static void stage_device(maker *m, uint32_t index) {
  const gbi_step *s = &m->plan->steps[index];
  range in, out;
  touches(m, s, &in, &out);
  if (!empty(in)) give_back(m, GBI_LANE_MAIN, in, false);
  if (!empty(out)) give_back(m, GBI_LANE_MAIN, out, true);
  for (int d = 0; d < 2; d++)
    for (uint32_t k = 0; k < s->deps[d].count; k++) {
      uint32_t i = s->deps[d].from + k;
      if (!on_host(m, &m->plan->steps[i])) continue;
      /* What it wrote is back already; else that it is done is all there is. */
      range theirs_in, theirs_out;
      touches(m, &m->plan->steps[i], &theirs_in, &theirs_out);
      if (empty(theirs_out))
        wait_release(m, GBI_LANE_MAIN, m->host[i]);
      else
        give_back(m, GBI_LANE_MAIN, theirs_out, false);
    }
  emit(m, (gbi_stage_op){.verb = GBI_STAGE_STEP, .number = index});
  if (m->wanted[index]) m->event[index] = record(m, GBI_LANE_MAIN);
}

/* The OUT lane is past everything that the range and the step wait for. */
static void out_waits(maker *m, const gbi_step *s, range r) {
  int64_t dep = device_dep(m, s);
  if (dep != NONE)
    wait_event(m, GBI_LANE_OUT, GBI_LANE_MAIN, m->event[dep]);
  else if (!empty(r))
    wait_event(m, GBI_LANE_OUT, GBI_LANE_MAIN, record(m, GBI_LANE_MAIN));
  if (!empty(r)) give_back(m, GBI_LANE_OUT, r, false);
}

static uint32_t raise(maker *m) {
  emit(m, (gbi_stage_op){.verb = GBI_STAGE_READY,
                         .lane = GBI_LANE_OUT,
                         .number = ++m->out->readies});
  return m->out->readies;
}

/* A block with what the step reads; *gate_p when it comes from the device. */
static block *take_in(maker *m, const gbi_step *s, range in, uint32_t *gate_p) {
  block *b = block_with(m, in);
  if (b) return b;
  out_waits(m, s, in);
  b = new_block(m, in);
  if (!b) return NULL;
  emit(m, (gbi_stage_op){.verb = GBI_STAGE_OUT,
                         .lane = GBI_LANE_OUT,
                         .ref = {in.place, in.begin},
                         .at = b->at,
                         .bytes = in.end - in.begin});
  *gate_p = raise(m);
  return b;
}

/* What other blocks have of the range is old as soon as `but` is written. */
static void drop_copies(maker *m, range out, const block *but) {
  for (uint32_t i = m->head; i < m->count; i++) {
    block *old = &m->blocks[i];
    if (old == but || !old->alive || !meet(old->r, out)) continue;
    flush(m, old);
    old->alive = false;
  }
}

/* A block for what it writes. New ones wait for their place in the ring. */
static block *take_out(maker *m, const gbi_step *s, range out,
                       uint32_t *gate_p) {
  block *b = block_with(m, out);
  drop_copies(m, out, b);
  if (b) {
    /* Still being copied back from an earlier step, perhaps, or what came of
     * that is still being read. */
    int64_t dep = device_dep(m, s);
    if (b->flush != NONE) wait_event(m, GBI_LANE_OUT, GBI_LANE_IN, b->flush);
    if (dep != NONE) wait_event(m, GBI_LANE_OUT, GBI_LANE_MAIN, m->event[dep]);
    if (b->flush != NONE || dep != NONE) *gate_p = raise(m);
    return b;
  }
  out_waits(m, s, (range){0});
  b = new_block(m, out);
  if (b) *gate_p = raise(m);
  return b;
}

static uint64_t place_in(const block *b, range r) {
  return b->at + (r.begin - b->r.begin);
}

static void map_deps(const maker *m, const gbi_step *from, gbi_step *to) {
  for (int d = 0; d < 2; d++) {
    uint32_t first = m->host[from->deps[d].from];
    uint32_t last = m->host[from->deps[d].from + from->deps[d].count];
    to->deps[d].from = first;
    to->deps[d].count = from->deps[d].count ? last - first : 0;
  }
}

static void stage_host(maker *m, uint32_t index) {
  const gbi_step *s = &m->plan->steps[index];
  range in, out;
  touches(m, s, &in, &out);
  gbi_step step = *s;
  int64_t mine = m->out->host->count;
  block *from = NULL, *to = NULL;
  uint64_t at_in = 0, at_out = 0;
  map_deps(m, s, &step);
  if (!empty(in)) {
    from = take_in(m, s, in, &step.gate);
    if (!from) return;
    at_in = at_out = place_in(from, in);
    use(m, from, mine);
  }
  if (!empty(out)) {
    to = take_out(m, s, out, &step.gate);
    if (!to) return;
    at_out = place_in(to, out);
    if (empty(in)) at_in = at_out;
    to->dirty = true;
    to->flush = NONE;
    use(m, to, mine);
  }
  /* Nothing new came from the device, and yet it waits for it. */
  int64_t dep = device_dep(m, s);
  if (!step.gate && dep != NONE) {
    wait_event(m, GBI_LANE_OUT, GBI_LANE_MAIN, m->event[dep]);
    step.gate = raise(m);
  }
  if (GBI_FAULT("gpu.gate") == GBI_FAULT_FAIL) step.gate = 0;
  step.src = gbi_ref_to(GBI_SCRATCH, at_in);
  step.dst = gbi_ref_to(GBI_SCRATCH, at_out);
  m->failed |= gbi_plan_add(m->out->host, &step) != (uint32_t)mine;
}

/* ---- steps through areas that members share ---- */

static uint64_t window_bytes(const maker *m) {
  return m->self->shared_bytes / WINDOWS / LINE * LINE;
}

static uint64_t step_bytes(const maker *m, const gbi_step *s) {
  uint64_t bytes = gb_dtype_bytes(gbi_step_dtype(m->plan, s)) * s->count;
  return (bytes + LINE - 1) / LINE * LINE;
}

/* The same on all members. Payloads are where the host works on them. */
static bool is_shared(const maker *m, const gbi_step *s) {
  bool copies = s->verb == GBI_DO_BROADCAST ||
                (s->verb == GBI_DO_TRANSFER && s->root != s->peer);
  if (!copies || s->resource != GBI_ON_BRIDGE || s->codec) return false;
  return s->count && step_bytes(m, s) <= window_bytes(m);
}

static int64_t add_host(maker *m, const gbi_step *step) {
  int64_t at = m->out->host->count;
  m->failed |= gbi_plan_add(m->out->host, step) != (uint32_t)at;
  return at;
}

/* All members meet, each when it has copied all it wants of the window: its
 * owners may write it again behind that. */
static void hand_back(maker *m, window *w) {
  gbi_step step = {.resource = GBI_ON_BRIDGE, .verb = GBI_DO_BROADCAST};
  step.src = step.dst = gbi_ref_to(GBI_SCRATCH, 0);
  w->used = false;
  if (w->event != NONE && GBI_FAULT("gpu.shared") != GBI_FAULT_FAIL) {
    wait_event(m, GBI_LANE_OUT, GBI_LANE_IN, w->event);
    step.gate = raise(m);
  }
  w->event = NONE;
  w->back = add_host(m, &step);
}

/* Where a step lies in its root's area. */
static uint64_t place_shared(maker *m, uint64_t bytes) {
  if (m->window_taken + bytes > window_bytes(m)) {
    m->window = (m->window + 1) % WINDOWS;
    m->window_taken = 0;
    if (m->windows[m->window].used) hand_back(m, &m->windows[m->window]);
  }
  uint64_t at = (uint64_t)m->window * window_bytes(m) + m->window_taken;
  m->window_taken += bytes;
  m->windows[m->window].used = true;
  m->out->shares = true;
  return at;
}

static void push_out(maker *m, const gbi_step *s, range in, uint64_t at,
                     uint32_t *gate_p) {
  const window *w = &m->windows[m->window];
  out_waits(m, s, in);
  if (w->back != NONE) wait_release(m, GBI_LANE_OUT, w->back);
  emit(m, (gbi_stage_op){.verb = GBI_STAGE_OUT,
                         .lane = GBI_LANE_OUT,
                         .area = (uint8_t)(1 + s->root),
                         .ref = {in.place, in.begin},
                         .at = at,
                         .bytes = in.end - in.begin});
  *gate_p = raise(m);
}

static void pull_in(maker *m, const gbi_step *s, range out, uint64_t at,
                    int64_t step) {
  if (m->pulls_count == m->pulls_room) {
    uint32_t room = m->pulls_room ? m->pulls_room * 2 : 64;
    pull *pulls = gbi_realloc(m->pulls, room * sizeof *pulls);
    if (!pulls) {
      m->failed = true;
      return;
    }
    m->pulls = pulls;
    m->pulls_room = room;
  }
  wait_release(m, GBI_LANE_IN, step);
  emit(m, (gbi_stage_op){.verb = GBI_STAGE_IN,
                         .lane = GBI_LANE_IN,
                         .area = (uint8_t)(1 + s->root),
                         .ref = {out.place, out.begin},
                         .at = at,
                         .bytes = out.end - out.begin});
  int64_t event = record(m, GBI_LANE_IN);
  m->windows[m->window].event = event;
  m->pulls[m->pulls_count++] = (pull){out, event};
}

static void stage_shared(maker *m, uint32_t index) {
  const gbi_step *s = &m->plan->steps[index];
  range in, out;
  touches(m, s, &in, &out);
  uint64_t at = place_shared(m, step_bytes(m, s));
  gbi_step step = *s;
  map_deps(m, s, &step);
  step.count = 0;
  step.src = step.dst = gbi_ref_to(GBI_SCRATCH, 0);
  m->host[index] = m->out->host->count;
  if (!empty(in)) push_out(m, s, in, at, &step.gate);
  if (!empty(out)) {
    /* Its copy in waits for this gate, and so for what uses `out` before. */
    drop_copies(m, out, NULL);
    out_waits(m, s, (range){0});
    step.gate = raise(m);
  }
  if (GBI_FAULT("gpu.gate") == GBI_FAULT_FAIL) step.gate = 0;
  int64_t mine = add_host(m, &step);
  if (!empty(out)) pull_in(m, s, out, at, mine);
}

/* The call's last meeting: the next but one writes the same windows. */
static void hand_all_back(maker *m) {
  window *w = &m->windows[m->window], *other = w;
  for (int i = 0; i < WINDOWS; i++)
    if (&m->windows[i] != w && m->windows[i].used) other = &m->windows[i];
  if (!w->used) return;
  w->event = GBI_MAX(w->event, other->event); /* events of one lane */
  hand_back(m, w);
}

/* ---- together ---- */

static gb_status check_verbs(const gbi_plan *plan, gb_error *error) {
  for (uint32_t i = 0; i < plan->count; i++)
    if (plan->steps[i].verb == GBI_DO_CALL)
      return gbi_fail(error, GB_ERR_UNSUPPORTED,
                      "a policy of the caller's own cannot carry GPU memory. "
                      "Use a built-in policy, or tensors on the CPU");
  return GB_OK;
}

/* Three of its largest steps: what one reads, what it writes, and what is left
 * over where the ring comes round. */
uint64_t gbi_stage_ring_least(const gbi_plan *plan,
                              const gbi_stage_self *self) {
  maker m = {.plan = plan, .self = self};
  uint64_t most = 0;
  for (uint32_t i = 0; i < plan->count; i++) {
    range in, out;
    if (!on_host(&m, &plan->steps[i]) || is_shared(&m, &plan->steps[i]))
      continue;
    touches(&m, &plan->steps[i], &in, &out);
    most = GBI_MAX(most, in.end - in.begin + LINE);
    most = GBI_MAX(most, out.end - out.begin + LINE);
  }
  return 3 * most;
}

static void find_wanted(maker *m) {
  for (uint32_t i = 0; i < m->plan->count; i++) {
    m->event[i] = NONE;
    if (!on_host(m, &m->plan->steps[i])) continue;
    int64_t dep = device_dep(m, &m->plan->steps[i]);
    if (dep != NONE) m->wanted[dep] = true;
  }
}

/* What is left of the result goes back; every step of the host is counted, so
 * that the ring is known to be free. */
static void finish(maker *m) {
  gbi_plan *host = m->out->host;
  for (uint32_t i = m->head; i < m->count; i++)
    if (m->blocks[i].alive && m->blocks[i].r.place != GBI_SCRATCH)
      flush(m, &m->blocks[i]);
  hand_all_back(m);
  if (host->count)
    wait_event(m, GBI_LANE_END, GBI_LANE_MAIN, record(m, GBI_LANE_MAIN));
  if (m->newest[GBI_LANE_IN] != NONE)
    wait_event(m, GBI_LANE_END, GBI_LANE_IN, m->newest[GBI_LANE_IN]);
  /* The caller may write its input after the call. */
  if (m->out->readies)
    wait_event(m, GBI_LANE_END, GBI_LANE_OUT, record(m, GBI_LANE_OUT));
  host->releases = gbi_malloc((host->count + 1) * sizeof *host->releases);
  if (!host->releases) {
    m->failed = true;
    return;
  }
  for (uint32_t i = 0; i < host->count; i++)
    host->releases[release_of(m, i) - 1] = i;
  host->releases_count = host->count;
  host->scratch_bytes = m->ring;
}

static bool make_tables(maker *m) {
  size_t n = m->plan->count + 1;
  m->host = gbi_calloc(n, sizeof *m->host);
  m->event = gbi_malloc(n * sizeof *m->event);
  m->wanted = gbi_calloc(n, sizeof *m->wanted);
  m->out->host = gbi_plan_new(&m->plan->coll);
  memset(m->newest, 0xff, sizeof m->newest);
  memset(m->seen, 0xff, sizeof m->seen);
  for (int i = 0; i < WINDOWS; i++)
    m->windows[i] = (window){.event = NONE, .back = NONE};
  return m->host && m->event && m->wanted && m->out->host;
}

static gb_status take_apart(maker *m, gb_error *error) {
  GBI_TRY(check_verbs(m->plan, error));
  find_wanted(m);
  m->out->host->policy = m->plan->policy;
  for (uint32_t i = 0; i < m->plan->count && !m->failed; i++) {
    m->host[i] = m->out->host->count;
    m->now = &m->plan->steps[i];
    if (is_shared(m, m->now))
      stage_shared(m, i);
    else if (on_host(m, m->now))
      stage_host(m, i);
    else
      stage_device(m, i);
    m->host[i + 1] = m->out->host->count;
  }
  m->now = NULL;
  if (!m->failed) finish(m);
  if (m->failed)
    return gbi_fail(error, GB_ERR_MEMORY, "no memory to stage a plan");
  return gbi_plan_seal(m->out->host, error);
}

gb_status gbi_stage(const gbi_plan *plan, const gbi_stage_self *self,
                    uint64_t ring_bytes, gbi_staged **staged_p,
                    gb_error *error) {
  gbi_staged *out = gbi_calloc(1, sizeof *out);
  if (!out) return gbi_fail(error, GB_ERR_MEMORY, "no memory to stage a plan");
  maker m = {.plan = plan, .self = self, .ring = ring_bytes, .out = out};
  gb_status status = make_tables(&m) ? take_apart(&m, error)
                                     : gbi_fail(error, GB_ERR_MEMORY,
                                                "no memory to stage a plan");
  free(m.blocks);
  free(m.pulls);
  free(m.host);
  free(m.event);
  free(m.wanted);
  if (status == GB_OK)
    *staged_p = out;
  else
    gbi_staged_free(out);
  return status;
}

void gbi_staged_free(gbi_staged *staged) {
  if (!staged) return;
  gbi_plan_free(staged->host);
  free(staged->ops);
  free(staged);
}
