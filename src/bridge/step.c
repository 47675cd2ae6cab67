#include "bridge/step.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* ---- Slots ---- */

bool gbi_bridge_make_slots(gbi_bridge *b, int count) {
  size_t n = (size_t)b->base.members_count;
  while (b->slots_count < count) {
    gbi_bridge_slot *slot = &b->slots[b->slots_count++];
    size_t xfers = n * GBI_FLOWS * GBI_BRIDGE_WINDOW * sizeof *slot->xfers;
    size_t flows = n * sizeof *slot->flows;
    /* Not calloc: its pages would be touched in a call. */
    slot->xfers = gbi_aligned_alloc(64, (xfers + 63) / 64 * 64);
    slot->flows = gbi_aligned_alloc(64, (flows + 63) / 64 * 64);
    slot->small = gbi_aligned_alloc(64, GBI_BRIDGE_SMALL_BYTES);
    if (!slot->xfers || !slot->flows || !slot->small) return false;
    memset(slot->xfers, 0, xfers);
    memset(slot->flows, 0, flows);
    memset(slot->small, 0, GBI_BRIDGE_SMALL_BYTES);
  }
  return true;
}

void gbi_bridge_free_slots(gbi_bridge *b) {
  for (int i = 0; i < b->slots_count; i++) {
    free(b->slots[i].xfers);
    free(b->slots[i].flows);
    free(b->slots[i].small);
  }
}

gbi_bridge_slot *gbi_bridge_take_slot(gbi_bridge *b) {
  for (int i = 0; i < b->slots_count; i++) {
    if (b->slots[i].taken) continue;
    b->slots[i].taken = true;
    return &b->slots[i];
  }
  return NULL;
}

void gbi_bridge_give_slot(gbi_bridge *b, gbi_bridge_slot *slot) {
  (void)b;
  slot->taken = false;
}

static gbi_bridge_xfer *xfer_at(const gbi_bridge_slot *slot, int member,
                                int flow, uint32_t piece) {
  size_t row = (size_t)member * GBI_FLOWS + (size_t)flow;
  return &slot->xfers[row * GBI_BRIDGE_WINDOW + piece % GBI_BRIDGE_WINDOW];
}

/* ---- Who moves what ---- */

typedef struct range {
  size_t begin, bytes;
} range;

/* Segments are whole multiples of 64 bytes, except for the last. */
static range segment(const gbi_bridge *b, const gbi_bridge_slot *slot,
                     int owner) {
  size_t n = (size_t)b->base.members_count;
  size_t share = (slot->bytes + n * 64 - 1) / (n * 64) * 64;
  size_t begin = GBI_MIN((size_t)owner * share, slot->bytes);
  return (range){begin, GBI_MIN(share, slot->bytes - begin)};
}

static uint32_t pieces_of(size_t bytes) {
  return (uint32_t)((bytes + GBI_BRIDGE_PIECE_BYTES - 1) /
                    GBI_BRIDGE_PIECE_BYTES);
}

/* What member `from` contributes to member `to`. */
static range contribution(const gbi_bridge *b, const gbi_bridge_step *s,
                          int from, int to) {
  const gbi_bridge_slot *slot = s->slot;
  range all = {0, slot->bytes}, nothing = {0, 0};
  switch (slot->mode) {
    case GBI_BRIDGE_COPY: return from == s->step.root ? all : nothing;
    case GBI_BRIDGE_REDUCE: return to == s->step.root ? all : nothing;
    case GBI_BRIDGE_SEGMENT: return segment(b, slot, to);
    default: return all;
  }
}

static bool in_pieces(const gbi_bridge_slot *slot) {
  return slot->mode == GBI_BRIDGE_SEGMENT || slot->mode == GBI_BRIDGE_REDUCE;
}

static range piece_of(const gbi_bridge_slot *slot, range whole,
                      uint32_t piece) {
  if (!in_pieces(slot)) return whole;
  size_t at = piece * GBI_BRIDGE_PIECE_BYTES;
  return (range){whole.begin + at,
                 GBI_MIN(GBI_BRIDGE_PIECE_BYTES, whole.bytes - at)};
}

static gbi_bridge_mode mode_of(const gbi_bridge *b, const gbi_comm_step *step,
                               size_t bytes) {
  if (step->kind == GBI_COMM_BROADCAST || step->kind == GBI_COMM_TRANSFER)
    return GBI_BRIDGE_COPY;
  if (step->kind == GBI_COMM_REDUCE) return GBI_BRIDGE_REDUCE;
  if (b->base.members_count == 2)
    return bytes <= GBI_BRIDGE_PAIR_BYTES || b->rtt_us > GBI_BRIDGE_LONG_RTT_US
               ? GBI_BRIDGE_PAIR
               : GBI_BRIDGE_SEGMENT;
  return bytes <= GBI_BRIDGE_SMALL_BYTES ? GBI_BRIDGE_SMALL
                                         : GBI_BRIDGE_SEGMENT;
}

static void plan_flows(gbi_bridge *b, gbi_bridge_step *s) {
  gbi_bridge_slot *slot = s->slot;
  int me = b->base.me;
  for (int i = 0; i < b->base.members_count; i++) {
    gbi_flow *flows = slot->flows[i];
    memset(flows, 0, sizeof slot->flows[i]);
    if (i == me) continue;
    if (s->step.kind == GBI_COMM_TRANSFER && i != s->step.root &&
        i != s->step.peer)
      continue;
    size_t give = contribution(b, s, me, i).bytes;
    size_t take = contribution(b, s, i, me).bytes;
    /* At least one: it carries the identity. */
    flows[GBI_GIVE].total = in_pieces(slot) ? GBI_MAX(pieces_of(give), 1) : 1;
    flows[GBI_TAKE].total = in_pieces(slot) ? GBI_MAX(pieces_of(take), 1) : 1;
    slot->own_total = flows[GBI_TAKE].total;
    if (slot->mode != GBI_BRIDGE_SEGMENT) continue;
    flows[GBI_RESULT_OUT].total = pieces_of(segment(b, slot, me).bytes);
    flows[GBI_RESULT_IN].total = pieces_of(segment(b, slot, i).bytes);
  }
}

/* ---- Adding ---- */

static void sink_own_first(void *arg, size_t offset, const void *data,
                           size_t bytes) {
  gbi_bridge_xfer *x = arg;
  x->combine(x->out + offset, x->own + offset, data, bytes / x->element);
}

static void sink_own_last(void *arg, size_t offset, const void *data,
                          size_t bytes) {
  gbi_bridge_xfer *x = arg;
  x->combine(x->out + offset, data, x->own + offset, bytes / x->element);
}

static void sink_add(void *arg, size_t offset, const void *data, size_t bytes) {
  gbi_bridge_xfer *x = arg;
  x->add(x->sum + offset, data, bytes / x->element);
}

/* The last member below this one: own values join behind it. */
static void sink_add_own(void *arg, size_t offset, const void *data,
                         size_t bytes) {
  gbi_bridge_xfer *x = arg;
  size_t count = bytes / x->element;
  x->add(x->sum + offset, data, count);
  x->combine(x->out + offset, x->sum + offset, x->own + offset, count);
}

/* The place of member `from` in the row of additions at member `me`. */
static void set_sink(gbi_bridge_xfer *x, int from, int me) {
  x->xfer.sink_arg = x;
  x->xfer.granule = x->element;
  if (from == 1 && me == 0) {
    x->xfer.sink = sink_own_first;
  } else if (from == 0 && me == 1) {
    x->xfer.sink = sink_own_last;
  } else if (from == 0) {
    x->xfer.sink = NULL;
    x->xfer.data = x->sum;
  } else if (from == me - 1) {
    x->xfer.sink = sink_add_own;
  } else {
    x->xfer.sink = sink_add;
    if (from > me) x->sum = x->out;
  }
}

/* ---- Posting ---- */

/* Buffers of empty messages may be NULL. */
static void *at(const void *base, range r) {
  return r.bytes ? (uint8_t *)base + r.begin : NULL;
}

/* seq 24 bits, of which the last tells calls of graphs from others, step 20,
 * flow 2, piece 18: no two messages that are under way at a time have the
 * same. */
static uint64_t tag_of(const gbi_comm_step *step, uint64_t flow,
                       uint32_t piece) {
  uint64_t seq = step->call.seq << 1 | step->call.seq >> 63;
  return seq << 40 | ((uint64_t)step->step & 0xfffff) << 20 | flow << 18 |
         (piece & 0x3ffff);
}

static void init_xfer(gbi_xfer *xfer, const gbi_comm_step *step, uint64_t flow,
                      uint32_t piece, size_t bytes) {
  *xfer = (gbi_xfer){.tag = tag_of(step, flow, piece),
                     .call = step->call,
                     .bytes = bytes,
                     .granule = 1};
}

static void post_give(gbi_bridge *b, gbi_bridge_step *s, int to,
                      uint32_t piece) {
  gbi_xfer *xfer = &xfer_at(s->slot, to, GBI_GIVE, piece)->xfer;
  range r = piece_of(s->slot, contribution(b, s, b->base.me, to), piece);
  init_xfer(xfer, &s->step, 0, piece, r.bytes);
  xfer->data = at(s->step.src, r);
  b->transport->ops->post_send(b->transport, to, xfer);
}

/* The receive of the same piece from the member before `from`. */
static const gbi_xfer *turn_before(const gbi_bridge *b,
                                   const gbi_bridge_slot *slot, int from,
                                   uint32_t piece) {
  int before = from - 1;
  if (before == b->base.me) before--;
  if (before < 0) return NULL;
  return &xfer_at(slot, before, GBI_TAKE, piece)->xfer;
}

static void aim_take(gbi_bridge *b, gbi_bridge_step *s, int from,
                     uint32_t piece, range r, gbi_bridge_xfer *x) {
  gbi_bridge_slot *slot = s->slot;
  int me = b->base.me;
  x->add = slot->add;
  x->combine = slot->combine;
  x->element = slot->element;
  x->own = at(s->step.src, r);
  x->out = at(s->step.dst, r);
  x->sum = b->scratch + piece % GBI_BRIDGE_WINDOW * GBI_BRIDGE_PIECE_BYTES;
  if (slot->mode == GBI_BRIDGE_SMALL) x->sum = x->out = slot->small;
  set_sink(x, from, me);
  x->xfer.after = turn_before(b, slot, from, piece);
  if (slot->mode == GBI_BRIDGE_PAIR && s->step.src == s->step.dst)
    x->xfer.after = &xfer_at(slot, from, GBI_GIVE, 0)->xfer;
}

static void post_take(gbi_bridge *b, gbi_bridge_step *s, int from,
                      uint32_t piece) {
  gbi_bridge_slot *slot = s->slot;
  gbi_bridge_xfer *x = xfer_at(slot, from, GBI_TAKE, piece);
  range r = piece_of(slot, contribution(b, s, from, b->base.me), piece);
  init_xfer(&x->xfer, &s->step, 0, piece, r.bytes);
  if (slot->mode == GBI_BRIDGE_COPY)
    x->xfer.data = at(s->step.dst, r);
  else if (r.bytes)
    aim_take(b, s, from, piece, r, x);
  b->transport->ops->post_recv(b->transport, from, &x->xfer);
}

static void post_result(gbi_bridge *b, gbi_bridge_step *s, int member, int flow,
                        uint32_t piece) {
  gbi_xfer *xfer = &xfer_at(s->slot, member, flow, piece)->xfer;
  int owner = flow == GBI_RESULT_OUT ? b->base.me : member;
  range r = piece_of(s->slot, segment(b, s->slot, owner), piece);
  init_xfer(xfer, &s->step, 1, piece, r.bytes);
  xfer->data = at(s->step.dst, r);
  if (flow == GBI_RESULT_OUT)
    b->transport->ops->post_send(b->transport, member, xfer);
  else
    b->transport->ops->post_recv(b->transport, member, xfer);
}

static bool may_post(const gbi_bridge_slot *slot, int flow, const gbi_flow *f) {
  uint32_t piece = f->posted;
  if (piece >= f->total || piece - f->done >= GBI_BRIDGE_WINDOW) return false;
  bool adds_up = slot->reduced < slot->own_total;
  switch (flow) {
    case GBI_GIVE:
      return slot->mode != GBI_BRIDGE_SEGMENT || !adds_up ||
             piece < slot->reduced + slot->ahead;
    case GBI_TAKE: return piece < slot->reduced + GBI_BRIDGE_WINDOW;
    case GBI_RESULT_OUT: return piece < slot->reduced;
    default: return true;
  }
}

static void post_one(gbi_bridge *b, gbi_bridge_step *s, int member, int flow) {
  gbi_flow *f = &s->slot->flows[member][flow];
  uint32_t piece = f->posted++;
  b->base.moved++;
  switch (flow) {
    case GBI_GIVE: post_give(b, s, member, piece); break;
    case GBI_TAKE: post_take(b, s, member, piece); break;
    default: post_result(b, s, member, flow, piece); break;
  }
}

/* Piece by piece over all members, so that links fill evenly and receives of
 * one piece are posted in member order. Starts behind this member, so that not
 * everybody sends to the same one first. */
static void post_flow(gbi_bridge *b, gbi_bridge_step *s, int flow) {
  int n = b->base.members_count;
  int first = flow == GBI_TAKE ? 0 : b->base.me + 1;
  for (bool more = true; more;) {
    more = false;
    for (int k = 0; k < n; k++) {
      int i = (first + k) % n;
      if (!may_post(s->slot, flow, &s->slot->flows[i][flow])) continue;
      post_one(b, s, i, flow);
      more = true;
    }
  }
}

/* Sends first: they carry the identity, also when a receive fails at once.
 * Results before further contributions: they are still in the cache. */
static void post_all(gbi_bridge *b, gbi_bridge_step *s) {
  if (s->slot->mode == GBI_BRIDGE_SEGMENT) post_flow(b, s, GBI_RESULT_OUT);
  post_flow(b, s, GBI_GIVE);
  post_flow(b, s, GBI_TAKE);
  if (s->slot->mode == GBI_BRIDGE_SEGMENT) post_flow(b, s, GBI_RESULT_IN);
}

/* ---- The step ---- */

void gbi_bridge_alone(gbi_bridge_step *s) {
  size_t bytes = s->step.count * gb_dtype_bytes(s->step.dtype);
  bool copies = s->step.kind != GBI_COMM_BROADCAST;
  if (copies && bytes && s->step.dst != s->step.src)
    memcpy(s->step.dst, s->step.src, bytes);
}

void gbi_bridge_begin(gbi_bridge *b, gbi_bridge_step *s) {
  gbi_bridge_slot *slot = s->slot;
  slot->element = gb_dtype_bytes(s->step.dtype);
  slot->bytes = s->step.count * slot->element;
  slot->mode = mode_of(b, &s->step, slot->bytes);
  slot->reduced = 0;
  slot->own_total = 0;
  slot->ahead =
      b->base.members_count == 2 ? GBI_BRIDGE_WINDOW : GBI_BRIDGE_AHEAD;
  slot->add = NULL;
  slot->combine = NULL;
  if (slot->mode != GBI_BRIDGE_COPY) {
    slot->add = gbi_reduce_kernel(s->step.dtype, s->step.redop);
    slot->combine = gbi_combine_kernel(s->step.dtype, s->step.redop);
  }
  plan_flows(b, s);
  post_all(b, s);
}

bool gbi_bridge_all_posted(const gbi_bridge *b, const gbi_bridge_step *s) {
  const gbi_bridge_slot *slot = s->slot;
  for (int i = 0; i < b->base.members_count; i++) {
    const gbi_flow *f = slot->flows[i];
    if (f[GBI_GIVE].posted < f[GBI_GIVE].total ||
        f[GBI_RESULT_OUT].posted < f[GBI_RESULT_OUT].total)
      return false;
  }
  bool uses_scratch = in_pieces(slot) && b->base.me >= 2;
  return !uses_scratch || slot->reduced == slot->own_total;
}

/* Counts what is complete, in order. */
static gb_status reap(gbi_bridge *b, gbi_bridge_slot *slot, int member) {
  for (int flow = 0; flow < GBI_FLOWS; flow++) {
    gbi_flow *f = &slot->flows[member][flow];
    while (f->done < f->posted) {
      gb_status status = xfer_at(slot, member, flow, f->done)->xfer.status;
      if (status == GB_ERR_BUSY) break;
      if (status != GB_OK) return status;
      f->done++;
      b->base.moved++;
    }
  }
  return GB_OK;
}

static bool complete(const gbi_bridge *b, const gbi_bridge_slot *slot) {
  for (int i = 0; i < b->base.members_count; i++)
    for (int flow = 0; flow < GBI_FLOWS; flow++)
      if (slot->flows[i][flow].done < slot->flows[i][flow].total) return false;
  return true;
}

static bool waits_for(const gbi_bridge_slot *slot, int member, bool incoming) {
  const gbi_flow *f = slot->flows[member];
  const gbi_flow *a = &f[incoming ? GBI_TAKE : GBI_GIVE];
  const gbi_flow *b = &f[incoming ? GBI_RESULT_IN : GBI_RESULT_OUT];
  return a->done < a->total || b->done < b->total;
}

bool gbi_bridge_waits(const gbi_bridge_step *s, int member, bool incoming) {
  if (s->slot) return waits_for(s->slot, member, incoming);
  return s->step.kind != GBI_COMM_TRANSFER || member == s->step.root ||
         member == s->step.peer;
}

gb_status gbi_bridge_advance(gbi_bridge *b, gbi_bridge_step *s, int *peer_p) {
  gbi_bridge_slot *slot = s->slot;
  uint32_t reduced = slot->own_total;
  for (int i = 0; i < b->base.members_count; i++) {
    if (i == b->base.me) continue;
    *peer_p = i;
    gb_status status = reap(b, slot, i);
    if (status != GB_OK) return status;
    if (slot->flows[i][GBI_TAKE].total)
      reduced = GBI_MIN(reduced, slot->flows[i][GBI_TAKE].done);
  }
  slot->reduced = reduced;
  post_all(b, s);
  if (!complete(b, slot)) return GB_ERR_BUSY;
  if (slot->mode == GBI_BRIDGE_SMALL && slot->bytes)
    memcpy(s->step.dst, slot->small, slot->bytes);
  return GB_OK;
}
