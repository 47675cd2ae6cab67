/* transport/shm: links between processes of one host, a ring per direction.
 *
 * A message is cut in pieces of at most one slot, which take the link's rounds
 * one after the other, so that a receiver reads a link as a stream. Slot heads
 * use ring.h's fields thus: tag is the message's tag, chain its whole length,
 * and the pieces of a message follow each other. Bells wake both sides; a link
 * does not notice a death, the job's control plane does. */
#include "transport/shm/ring.h"
#include "base/memory.h"
#include "transport/transport.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 8, SLOT_BYTES = 64 * 1024 };
_Static_assert(SLOT_BYTES % 16 == 0, "sinks get whole granules");

typedef struct queue {
  gbi_xfer *first;
  gbi_xfer **end;
} queue;

typedef struct link {
  gbi_member member;
  void *window; /* the other member's, with its ring towards us */
  uint64_t window_offset;
  gbi_ring out, in;
  uint64_t seen; /* the out ring's memory */
  uint64_t out_round, in_round;
  queue sends, receives;
  gbi_xfer *current; /* the receive whose message is being read */
  gb_error broken;   /* of the receiving side; status OK while it is up */
} link;

typedef struct shm {
  gbi_transport transport; /* first */
  gbi_hostarea *area;
  int count, me, rank, lane;
  uint64_t window_offset;
  size_t ring_bytes, window_bytes;
  void *window; /* our own: our rings towards the others */
  link *links;  /* by member; our own entry is unused */
  bool canceled;
  _Atomic bool stopped; /* set by any thread */
  _Atomic uint64_t bytes_sent, bytes_received, sent, received;
} shm;

static shm *shm_of(gbi_transport *transport) { return (shm *)transport; }

static void count_up(_Atomic uint64_t *counter, uint64_t by) {
  /* One writer, so that no locked add is needed. */
  atomic_store_explicit(
      counter, atomic_load_explicit(counter, memory_order_relaxed) + by,
      memory_order_relaxed);
}

/* ---- queues ---- */

static void push(queue *q, gbi_xfer *xfer) {
  xfer->next = NULL;
  *q->end = xfer;
  q->end = &xfer->next;
}

static void take(queue *q, gbi_xfer *xfer) {
  gbi_xfer **at = &q->first;
  while (*at != xfer) at = &(*at)->next;
  *at = xfer->next;
  if (!*at) q->end = at;
}

static void fail_queue(queue *q, gb_status status) {
  gbi_xfer *xfer = q->first;
  q->first = NULL;
  q->end = &q->first;
  while (xfer) {
    gbi_xfer *next = xfer->next; /* the poster's again once status is set */
    xfer->status = status;
    xfer = next;
  }
}

/* ---- set-up ---- */

static bool shm_usable(const gbi_transport_params *params, gb_error *why_not) {
  for (int i = 0; i < params->members_count; i++)
    if (params->members[i].local < 0) {
      gbi_fail_rank(why_not, GB_ERR_UNSUPPORTED, params->members[i].rank,
                    "transport \"shm\" joins ranks of one host, and rank %d "
                    "is on host %s", params->members[i].rank,
                    params->members[i].hostname);
      return false;
    }
  return true;
}

/* Our ring towards `to` within a window of ours; each member skips itself. */
static size_t ring_at(const shm *t, int from, int to) {
  return t->ring_bytes * (size_t)(to < from ? to : to - 1);
}

static void shm_close(gbi_transport *transport) {
  shm *t = shm_of(transport);
  for (int i = 0; t->links && i < t->count; i++)
    gbi_hostarea_leave(t->area, t->links[i].window, t->links[i].window_offset,
                       t->window_bytes, t->count);
  gbi_hostarea_leave(t->area, t->window, t->window_offset, t->window_bytes,
                     t->count);
  free(t->links);
  free(t);
}

static gb_status make_window(shm *t, gb_error *error) {
  if (t->count < 2) return GB_OK;
  GBI_TRY(gbi_hostarea_alloc(t->area, t->window_bytes, &t->window_offset,
                             error));
  return gbi_hostarea_map(t->area, t->window_offset, t->window_bytes,
                          &t->window, error);
}

static gb_status shm_open(const gbi_transport_params *params,
                          gbi_transport **transport_p, gb_error *error) {
  if (!shm_usable(params, error)) return GB_ERR_UNSUPPORTED;
  shm *t = gbi_calloc(1, sizeof *t);
  if (!t) return gbi_fail(error, GB_ERR_MEMORY, "out of memory");
  t->transport.ops = &gbi_transport_shm;
  t->area = params->area;
  t->count = params->members_count;
  t->me = params->me;
  t->lane = params->lane;
  t->rank = params->members[params->me].rank;
  t->ring_bytes = gbi_ring_bytes(1, DEPTH, SLOT_BYTES);
  t->window_bytes = t->ring_bytes * (size_t)(t->count - 1);
  t->links = gbi_calloc((size_t)t->count, sizeof *t->links);
  gb_status status = t->links ? make_window(t, error)
                              : gbi_fail(error, GB_ERR_MEMORY, "out of memory");
  if (status != GB_OK) {
    shm_close(&t->transport);
    return status;
  }
  for (int i = 0; i < t->count; i++) {
    link *l = &t->links[i];
    l->member = params->members[i];
    l->sends.end = &l->sends.first;
    l->receives.end = &l->receives.first;
  }
  *transport_p = &t->transport;
  return GB_OK;
}

static void shm_address(gbi_transport *transport, gbi_writer *out) {
  gbi_put_u64(out, shm_of(transport)->window_offset);
}

static gb_status shm_connect(gbi_transport *transport,
                             const gbi_reader *addresses, uint64_t deadline_ns,
                             gb_error *error) {
  shm *t = shm_of(transport);
  for (int i = 0; i < t->count; i++) {
    if (i == t->me) continue;
    link *l = &t->links[i];
    gbi_reader reader = addresses[i];
    uint64_t offset = gbi_get_u64(&reader);
    if (reader.bad)
      return gbi_fail_rank(error, GB_ERR_PROTOCOL, l->member.rank,
                           "rank %d sent a malformed shm address",
                           l->member.rank);
    GBI_TRY(gbi_hostarea_map(t->area, offset, t->window_bytes, &l->window,
                             error));
    l->window_offset = offset;
    gbi_ring_init(&l->out, (uint8_t *)t->window + ring_at(t, t->me, i), 1,
                  DEPTH, SLOT_BYTES, -1, &l->seen);
    gbi_ring_init(&l->in, (uint8_t *)l->window + ring_at(t, i, t->me), 1, DEPTH,
                  SLOT_BYTES, -1, NULL);
  }
  return GB_OK;
}

/* ---- sending ---- */

/* An empty message is one empty piece. */
static unsigned push_pieces(shm *t, link *l) {
  unsigned done = 0;
  gbi_xfer *xfer;
  while ((xfer = l->sends.first)) {
    void *room = gbi_ring_room(&l->out, l->out_round);
    if (!room) break;
    size_t bytes = GBI_MIN(xfer->bytes - xfer->posted, (size_t)SLOT_BYTES);
    if (bytes) memcpy(room, (uint8_t *)xfer->data + xfer->posted, bytes);
    gbi_ring_publish(&l->out, l->out_round++, &xfer->call, xfer->tag,
                     xfer->bytes, bytes, 0);
    gbi_hostarea_ring_lane(t->area, l->member.local, t->lane);
    count_up(&t->bytes_sent, bytes);
    done++;
    xfer->posted += bytes;
    xfer->moved = xfer->posted;
    if (xfer->posted < xfer->bytes) continue;
    take(&l->sends, xfer);
    count_up(&t->sent, 1);
    xfer->status = GB_OK;
  }
  return done;
}

static bool refuse_stopped(shm *t, gbi_xfer *xfer) {
  xfer->moved = xfer->posted = 0;
  xfer->next = NULL;
  bool stopped = atomic_load_explicit(&t->stopped, memory_order_acquire);
  xfer->status = stopped ? GB_ERR_CANCELED : GB_ERR_BUSY;
  return stopped;
}

static void shm_post_send(gbi_transport *transport, int member,
                          gbi_xfer *xfer) {
  shm *t = shm_of(transport);
  link *l = &t->links[member];
  if (refuse_stopped(t, xfer)) return;
  push(&l->sends, xfer);
  if (l->sends.first == xfer) push_pieces(t, l);
}

static void shm_post_recv(gbi_transport *transport, int member,
                          gbi_xfer *xfer) {
  shm *t = shm_of(transport);
  link *l = &t->links[member];
  if (refuse_stopped(t, xfer)) return;
  if (l->broken.status != GB_OK)
    xfer->status = l->broken.status;
  else
    push(&l->receives, xfer);
}

/* ---- receiving ---- */

static void break_link(link *l, gb_status status) {
  l->broken.status = status;
  l->current = NULL;
  fail_queue(&l->receives, status);
}

/* The receive that the message in `slot` is for; NULL: not posted yet, or the
 * link broke over it. */
static gbi_xfer *match(shm *t, link *l, const gbi_slot *slot) {
  gbi_xfer *xfer = l->receives.first;
  while (xfer && xfer->tag != slot->tag) xfer = xfer->next;
  if (!xfer) return NULL;
  gb_status status = GB_OK;
  if (!gbi_call_equal(&xfer->call, &slot->call))
    status = gbi_fail_mismatch(&l->broken, t->rank, &xfer->call,
                               l->member.rank, &slot->call);
  else if (slot->chain != xfer->bytes)
    status = gbi_fail_rank(&l->broken, GB_ERR_PROTOCOL, l->member.rank,
                           "rank %d sent %" PRIu64 " bytes where rank %d "
                           "expected %zu", l->member.rank, slot->chain,
                           t->rank, xfer->bytes);
  if (status == GB_OK) return xfer;
  break_link(l, status);
  return NULL;
}

/* A piece of the current message must fit what is left of it. */
static bool fits(shm *t, link *l, const gbi_xfer *xfer, const gbi_slot *slot) {
  size_t left = xfer->bytes - xfer->posted;
  size_t due = GBI_MIN(left, (size_t)SLOT_BYTES);
  if (slot->tag == xfer->tag && slot->bytes == due) return true;
  break_link(l, gbi_fail_rank(&l->broken, GB_ERR_PROTOCOL, l->member.rank,
                              "rank %d broke the order of a message to rank %d",
                              l->member.rank, t->rank));
  return false;
}

static unsigned pull_pieces(shm *t, link *l) {
  unsigned done = 0;
  const gbi_slot *slot;
  while (l->receives.first && (slot = gbi_ring_peek(&l->in, l->in_round))) {
    if (!l->current) l->current = match(t, l, slot);
    gbi_xfer *xfer = l->current;
    if (!xfer || !fits(t, l, xfer, slot)) break;
    size_t bytes = slot->bytes, at = xfer->posted;
    if (xfer->after && xfer->after->moved < at + bytes) break;
    if (bytes && xfer->sink)
      xfer->sink(xfer->sink_arg, at, gbi_slot_data(slot), bytes);
    else if (bytes)
      memcpy((uint8_t *)xfer->data + at, gbi_slot_data(slot), bytes);
    if (gbi_ring_consume(&l->in, 0, l->in_round++))
      gbi_hostarea_ring_lane(t->area, l->member.local, t->lane);
    count_up(&t->bytes_received, bytes);
    done++;
    xfer->moved = xfer->posted = at + bytes;
    if (xfer->posted < xfer->bytes) continue;
    l->current = NULL;
    take(&l->receives, xfer);
    count_up(&t->received, 1);
    xfer->status = GB_OK;
  }
  return done;
}

static unsigned cancel_all(shm *t) {
  if (t->canceled) return 0;
  t->canceled = true;
  for (int i = 0; i < t->count; i++) {
    fail_queue(&t->links[i].sends, GB_ERR_CANCELED);
    fail_queue(&t->links[i].receives, GB_ERR_CANCELED);
    t->links[i].current = NULL;
  }
  return 1;
}

static unsigned shm_progress(gbi_transport *transport) {
  shm *t = shm_of(transport);
  if (GBI_UNLIKELY(atomic_load_explicit(&t->stopped, memory_order_acquire)))
    return cancel_all(t);
  unsigned done = 0;
  for (int i = 0; i < t->count; i++) {
    link *l = &t->links[i];
    if (l->sends.first) done += push_pieces(t, l);
    if (l->receives.first) done += pull_pieces(t, l);
  }
  return done;
}

/* ---- the rest ---- */

static int shm_wait_fd(gbi_transport *transport) { return -1; }

static gb_status shm_link_error(const gbi_transport *transport, int member,
                                gb_error *error) {
  const link *l = &((const shm *)transport)->links[member];
  if (l->broken.status != GB_OK && error) *error = l->broken;
  return l->broken.status;
}

static void shm_stop(gbi_transport *transport) {
  shm *t = shm_of(transport);
  atomic_store_explicit(&t->stopped, true, memory_order_release);
  gbi_hostarea_ring_lane(t->area, gbi_hostarea_me(t->area), t->lane);
}

static void shm_describe(const gbi_transport *transport, gbi_fact_fn fn,
                         void *arg) {
  char text[32];
  snprintf(text, sizeof text, "%zu",
           ((const shm *)transport)->window_bytes);
  fn(arg, "window_bytes", text);
}

static void shm_stats(const gbi_transport *transport,
                      gbi_transport_stats *stats) {
  const shm *t = (const shm *)transport;
  *stats = (gbi_transport_stats){
      atomic_load_explicit(&t->bytes_sent, memory_order_relaxed),
      atomic_load_explicit(&t->bytes_received, memory_order_relaxed),
      atomic_load_explicit(&t->sent, memory_order_relaxed),
      atomic_load_explicit(&t->received, memory_order_relaxed)};
}

const gbi_transport_ops gbi_transport_shm = {
    .abi = GBI_TRANSPORT_ABI,
    .name = "shm",
    .transport_bytes = sizeof(shm),
    .usable = shm_usable,
    .open = shm_open,
    .address = shm_address,
    .connect = shm_connect,
    .post_send = shm_post_send,
    .post_recv = shm_post_recv,
    .progress = shm_progress,
    .wait_fd = shm_wait_fd,
    .link_error = shm_link_error,
    .stop = shm_stop,
    .close = shm_close,
    .describe = shm_describe,
    .stats = shm_stats,
};
