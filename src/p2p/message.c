/* What goes over a link. Everything in a head is checked before it is used;
 * whatever makes no sense breaks the link and ends the job.
 *
 *   small   EAGER (payload inside, or right behind)
 *   large   RTS -> ; <- CTS when its receive is there ; payload ->
 *
 * Eager payloads may wait at the receiver, so their sender counts what they
 * cost there and what the receiver says it has taken. Without room a small
 * message goes the way of the large ones. Therefore heads are always taken, and
 * no message waits behind another one that nobody receives. */
#include "base/memory.h"
#include "p2p/state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const gbi_call no_call = {
    .root = -1, .op = GBI_OP_SEND, .dtype = 255, .redop = 255};

static int peer_index(const gbi_p2p_link *l) {
  return l->rank > l->p2p->params.rank;
}

/* ---- sending ---- */

static void post_send(gbi_p2p_link *l, gbi_xfer *xfer, uint64_t tag,
                      const void *data, size_t bytes) {
  /* A transport does not write what it sends. */
  *xfer = (gbi_xfer){.tag = tag,
                     .call = no_call,
                     .data = (void *)(uintptr_t)data,
                     .bytes = bytes};
  l->hot = l->fresh = true;
  l->transport->ops->post_send(l->transport, peer_index(l), xfer);
}

static void post_head(gbi_p2p_link *l, gbi_xfer *xfer, gbi_p2p_head *head,
                      uint8_t *raw) {
  head->taken = l->taken_told = l->taken;
  gbi_p2p_head_write(head, raw);
  post_send(l, xfer, l->heads_out++, raw, GBI_P2P_HEAD_BYTES);
}

static void post_own(gbi_p2p_link *l, gbi_p2p_own_head *own,
                     gbi_p2p_head *head) {
  own->busy = true;
  post_head(l, &own->xfer, head, own->raw);
}

static gbi_p2p_head head_of(const gbi_p2p_op *op, uint8_t kind) {
  return (gbi_p2p_head){.kind = kind,
                        .class = op->class,
                        .dtype = (uint8_t)op->dtype,
                        .group = op->group,
                        .step = op->step,
                        .tag = op->tag,
                        .count = op->count,
                        .bytes = op->bytes,
                        .call = op->call};
}

static void send_eager(gbi_p2p_link *l, gbi_p2p_op *op) {
  gbi_p2p_head head = head_of(op, GBI_HEAD_EAGER);
  uint64_t number = l->heads_out;
  bool inside = op->bytes <= GBI_P2P_INLINE;
  if (inside) {
    head.inside = (uint8_t)op->bytes;
    head.data = op->data;
  }
  l->eager_out += gbi_p2p_eager_cost(op->bytes);
  op->phase = GBI_OP_EAGER_OUT;
  op->data_xfer.status = GB_OK;
  post_head(l, &op->head_xfer, &head, op->head);
  if (!inside)
    post_send(l, &op->data_xfer, GBI_P2P_EAGER_TAG | number, op->data,
              op->bytes);
}

static void send_rts(gbi_p2p_link *l, gbi_p2p_op *op) {
  gbi_p2p_head head = head_of(op, GBI_HEAD_RTS);
  head.id = op->id = ++l->next_id;
  op->phase = GBI_OP_RTS_OUT;
  op->data_xfer.status = GB_OK;
  l->rts++;
  post_head(l, &op->head_xfer, &head, op->head);
}

static bool has_window(const gbi_p2p_link *l, const gbi_p2p_op *op) {
  if (op->bytes > GBI_P2P_EAGER) return false;
  uint64_t cost = gbi_p2p_eager_cost(op->bytes);
  return l->eager_out - l->peer_taken + cost <= l->p2p->window;
}

/* Moves sends on whose transfers have ended. */
static void reap_sends(gbi_p2p_link *l) {
  gbi_p2p_op *next;
  for (gbi_p2p_op *op = l->sending.first; op; op = next) {
    next = op->next;
    if (op->head_xfer.status == GB_ERR_BUSY ||
        op->data_xfer.status == GB_ERR_BUSY)
      continue;
    /* A transfer that failed broke the link, which ends its ops. */
    if (op->head_xfer.status != GB_OK || op->data_xfer.status != GB_OK)
      continue;
    gbi_p2p_unlink(op);
    l->posted--;
    if (op->phase == GBI_OP_RTS_OUT) {
      op->phase = GBI_OP_ASKED;
      gbi_p2p_push(&l->asked, op);
    } else {
      gbi_p2p_finish(l->p2p, op, GB_OK);
    }
  }
}

void gbi_p2p_pump(gbi_p2p_link *l) {
  gbi_p2p_op *op;
  while (l->state == GBI_LINK_UP && l->posted < GBI_P2P_POSTED_MAX &&
         (op = l->queue.first)) {
    bool eager = has_window(l, op);
    if (!eager && l->rts >= GBI_P2P_RTS_MAX) return;
    gbi_p2p_unlink(op);
    gbi_p2p_push(&l->sending, op);
    l->posted++;
    if (eager)
      send_eager(l, op);
    else
      send_rts(l, op);
    /* Most are out by now. */
    reap_sends(l);
  }
}

/* ---- breaking ---- */

static void reap_receives(gbi_p2p_link *l);
static void reap_messages(gbi_p2p_link *l);

static const char *who(const gbi_p2p_link *l) {
  return l->p2p->params.who[l->rank];
}

void gbi_p2p_break_link(gbi_p2p_link *l, gb_status status, const char *how) {
  gbi_p2p *p = l->p2p;
  if (l->state != GBI_LINK_UP) return;
  /* What came or went before the end counts. */
  reap_sends(l);
  reap_receives(l);
  reap_messages(l);
  const gbi_transport_ops *ops = l->transport->ops;
  if (how || ops->link_error(l->transport, peer_index(l), &l->error) == GB_OK)
    gbi_fail_rank(&l->error, status, l->rank,
                  "the link between rank %d and %s broke: %s", p->params.rank,
                  who(l), how ? how : gb_status_text(status));
  l->state = GBI_LINK_BROKEN;
  if (l->network) {
    epoll_ctl(p->epoll_fd, EPOLL_CTL_DEL, ops->wait_fd(l->transport), NULL);
    p->network_count--;
  }
  /* Nothing of the callers' may be touched any more. */
  ops->stop(l->transport);
  ops->progress(l->transport);
  bool lied = status == GB_ERR_PROTOCOL || status == GB_ERR_MISMATCH ||
              status == GB_ERR_MEMORY;
  if (lied) gbi_p2p_set_cause(p, &l->error);
  gbi_p2p_judge(l);
}

static void protocol(gbi_p2p_link *l, const char *what) {
  char text[160];
  gbi_text t;
  gbi_text_init(&t, text, sizeof text);
  gbi_text_add(&t, "the other side sent %s", what);
  gbi_p2p_break_link(l, GB_ERR_PROTOCOL, text);
}

/* ---- receiving ---- */

static void post_receive(gbi_p2p_link *l, gbi_xfer *xfer, uint64_t tag,
                         void *data, size_t bytes) {
  *xfer = (gbi_xfer){
      .tag = tag, .call = no_call, .data = data, .bytes = bytes};
  l->hot = l->fresh = true;
  l->transport->ops->post_recv(l->transport, peer_index(l), xfer);
}

static void post_head_receive(gbi_p2p_link *l, uint64_t number) {
  int i = (int)(number % GBI_P2P_HEADS);
  post_receive(l, &l->heads[i], number, l->raw[i], GBI_P2P_HEAD_BYTES);
}

static void took(gbi_p2p_link *l, uint64_t bytes) {
  l->taken += gbi_p2p_eager_cost(bytes);
}

/* Asks for the payload, or waits for its turn to. */
static void ask(gbi_p2p_link *l, gbi_p2p_op *op) {
  if (l->asked_for >= GBI_P2P_CTS_MAX) {
    op->phase = GBI_OP_WAITS_TURN;
    gbi_p2p_push(&l->turns, op);
    return;
  }
  gbi_p2p_head head = {
      .kind = GBI_HEAD_CTS, .id = op->id, .payload = ++l->next_payload};
  op->phase = GBI_OP_RECEIVING;
  op->payload = head.payload;
  gbi_p2p_push(&l->receiving, op);
  l->asked_for++;
  post_receive(l, &op->data_xfer, GBI_P2P_ASKED_TAG | head.payload, op->data,
               op->bytes);
  post_head(l, &op->head_xfer, &head, op->head);
}

static void write_mismatch(const gbi_p2p *p, int from, uint64_t sent,
                           int sent_type, int to, uint64_t wanted,
                           int wanted_type, uint64_t tag, gb_error *error) {
  gbi_fail_rank(error, GB_ERR_MISMATCH, from,
                "rank %d sent %" PRIu64 " %s with tag %" PRIu64
                " to rank %d, which receives %" PRIu64
                " %s. A send and its receive must agree on size and type",
                from, sent, gb_dtype_name((gb_dtype)sent_type), tag, to, wanted,
                gb_dtype_name((gb_dtype)wanted_type));
}

/* False: what came is not what is to be received; the job ends over it. */
static bool agree(gbi_p2p_link *l, gbi_p2p_op *op, const gbi_p2p_head *h) {
  gbi_p2p *p = l->p2p;
  gb_error error;
  int me = p->params.rank;
  op->source = l->rank;
  op->link = l;
  if (op->class == GBI_P2P_MESH && !gbi_call_equal(&op->call, &h->call)) {
    gbi_fail_mismatch(&error, me, &op->call, l->rank, &h->call);
  } else if (op->bytes == h->bytes && op->dtype == (gb_dtype)h->dtype) {
    return true;
  } else if (op->class == GBI_P2P_MESH) {
    char call[160];
    gbi_call_text(&op->call, call, sizeof call);
    gbi_fail_rank(&error, GB_ERR_MISMATCH, l->rank,
                  "ranks disagree in %s: rank %d sends %" PRIu64
                  " %s to rank %d, which expects %zu %s",
                  call, l->rank, h->count, gb_dtype_name((gb_dtype)h->dtype),
                  me, op->count, gb_dtype_name(op->dtype));
  } else {
    write_mismatch(p, l->rank, h->count, h->dtype, me, op->count,
                   (int)op->dtype, h->tag, &error);
  }
  if (h->kind == GBI_HEAD_RTS && !l->nack_head.busy) {
    gbi_p2p_head nack = {.kind = GBI_HEAD_NACK,
                         .id = h->id,
                         .count = op->count,
                         .dtype = (uint8_t)op->dtype};
    post_own(l, &l->nack_head, &nack);
  }
  gbi_p2p_set_cause(p, &error);
  return false;
}

static void copy_in(gbi_p2p_op *op, const void *data) {
  if (op->bytes) memcpy(op->data, data, op->bytes);
}

void gbi_p2p_meet_message(gbi_p2p_op *op, gbi_p2p_message *m) {
  gbi_p2p_link *l = m->link;
  const gbi_p2p_head *h = &m->head;
  op->phase = GBI_OP_CLAIMS;
  if (!agree(l, op, h)) {
    /* Both stay until the job's end, which is near. */
    gbi_p2p_keep_message(l->p2p, m);
  } else if (h->kind == GBI_HEAD_RTS) {
    op->id = h->id;
    l->asking--;
    free(m);
    if (l->state == GBI_LINK_UP) ask(l, op);
  } else if (m->arrived) {
    took(l, h->bytes);
    copy_in(op, m->data);
    free(m);
    gbi_p2p_finish(l->p2p, op, GB_OK);
  } else {
    m->claimed = op;
  }
}

/* NULL: no memory, the link is broken. */
static gbi_p2p_message *new_message(gbi_p2p_link *l, const gbi_p2p_head *h) {
  size_t bytes = h->kind == GBI_HEAD_EAGER ? (size_t)h->bytes : 0;
  gbi_p2p_message *m = gbi_malloc(sizeof *m + bytes);
  if (!m) {
    gbi_p2p_break_link(l, GB_ERR_MEMORY, "no memory for a message");
    return NULL;
  }
  memset(m, 0, sizeof *m);
  m->link = l;
  m->head = *h;
  m->head.data = NULL;
  return m;
}

static void take_eager(gbi_p2p_link *l, const gbi_p2p_head *h,
                       uint64_t number) {
  bool inside = h->bytes <= GBI_P2P_INLINE;
  l->eager_in += gbi_p2p_eager_cost(h->bytes);
  if (l->eager_in - l->taken > l->p2p->window)
    return protocol(l, "more than its window");
  gbi_p2p_op *op = gbi_p2p_match_receive(l->p2p, h, l->rank);
  if (op) {
    took(l, h->bytes);
    op->phase = GBI_OP_CLAIMS;
    if (!agree(l, op, h)) return;
    if (inside) {
      copy_in(op, h->data);
      gbi_p2p_finish(l->p2p, op, GB_OK);
      return;
    }
    op->phase = GBI_OP_RECEIVING;
    op->payload = 0;
    op->head_xfer.status = GB_OK;
    gbi_p2p_push(&l->receiving, op);
    post_receive(l, &op->data_xfer, GBI_P2P_EAGER_TAG | number, op->data,
                 op->bytes);
    return;
  }
  gbi_p2p_message *m = new_message(l, h);
  if (!m) return;
  gbi_p2p_keep_message(l->p2p, m);
  m->arrived = inside;
  if (inside) {
    memcpy(m->data, h->data, h->bytes);
    return;
  }
  m->arriving_next = l->arriving;
  l->arriving = m;
  post_receive(l, &m->xfer, GBI_P2P_EAGER_TAG | number, m->data, h->bytes);
}

static void take_rts(gbi_p2p_link *l, const gbi_p2p_head *h) {
  if (h->bytes <= GBI_P2P_EAGER) l->starves = true;
  gbi_p2p_op *op = gbi_p2p_match_receive(l->p2p, h, l->rank);
  if (op) {
    op->phase = GBI_OP_CLAIMS;
    if (!agree(l, op, h)) return;
    op->id = h->id;
    ask(l, op);
    return;
  }
  if (l->asking >= GBI_P2P_RTS_MAX)
    return protocol(l, "more requests than it may");
  gbi_p2p_message *m = new_message(l, h);
  if (!m) return;
  l->asking++;
  gbi_p2p_keep_message(l->p2p, m);
}

static gbi_p2p_op *find_asked(gbi_p2p_link *l, uint64_t id) {
  reap_sends(l); /* its request is out, if it was answered */
  gbi_p2p_op *op = l->asked.first;
  while (op && op->id != id) op = op->next;
  return op;
}

static void take_cts(gbi_p2p_link *l, const gbi_p2p_head *h) {
  gbi_p2p_op *op = find_asked(l, h->id);
  if (!op) return protocol(l, "an answer to nothing");
  gbi_p2p_unlink(op);
  gbi_p2p_push(&l->sending, op);
  l->posted++;
  l->rts--;
  op->phase = GBI_OP_DATA_OUT;
  post_send(l, &op->data_xfer, GBI_P2P_ASKED_TAG | h->payload, op->data,
            op->bytes);
}

static void take_nack(gbi_p2p_link *l, const gbi_p2p_head *h) {
  gbi_p2p_op *op = find_asked(l, h->id);
  if (!op) return protocol(l, "an answer to nothing");
  gb_error error;
  /* A mesh's disagreement is told in full by the receiver, through the control
   * plane. */
  if (op->class == GBI_P2P_MESH) return;
  write_mismatch(l->p2p, l->p2p->params.rank, op->count, (int)op->dtype,
                 l->rank, h->count, h->dtype, op->tag, &error);
  gbi_p2p_set_cause(l->p2p, &error);
}

static void take_head(gbi_p2p_link *l, const uint8_t *raw, uint64_t number) {
  gbi_p2p_head h;
  const char *wrong = gbi_p2p_head_read(raw, &h);
  if (wrong) return protocol(l, wrong);
  if (l->bye) return protocol(l, "a head after its last one");
  if (h.taken < l->peer_taken || h.taken > l->eager_out)
    return protocol(l, "a head with a bad count of what it took");
  l->peer_taken = h.taken;
  switch ((gbi_p2p_kind)h.kind) {
    case GBI_HEAD_EAGER: take_eager(l, &h, number); break;
    case GBI_HEAD_RTS: take_rts(l, &h); break;
    case GBI_HEAD_CTS: take_cts(l, &h); break;
    case GBI_HEAD_NACK: take_nack(l, &h); break;
    case GBI_HEAD_TAKEN: break;
    case GBI_HEAD_BYE:
      l->bye = true;
      gbi_p2p_judge(l);
      break;
    case GBI_HEAD_KINDS: break; /* refused by head_read */
  }
}

/* Heads in their order, whatever order a transport completes them in. */
static unsigned take_heads(gbi_p2p_link *l) {
  unsigned did = 0;
  while (l->state == GBI_LINK_UP && did < 4 * GBI_P2P_HEADS) {
    uint64_t number = l->heads_in;
    gbi_xfer *xfer = &l->heads[number % GBI_P2P_HEADS];
    if (xfer->status != GB_OK) break;
    l->heads_in++;
    did++;
    take_head(l, l->raw[number % GBI_P2P_HEADS], number);
    if (l->state == GBI_LINK_UP)
      post_head_receive(l, number + GBI_P2P_HEADS);
  }
  return did;
}

static void reap_receives(gbi_p2p_link *l) {
  gbi_p2p_op *next;
  for (gbi_p2p_op *op = l->receiving.first; op; op = next) {
    next = op->next;
    if (op->data_xfer.status != GB_OK || op->head_xfer.status != GB_OK)
      continue;
    if (op->payload) l->asked_for--;
    gbi_p2p_finish(l->p2p, op, GB_OK);
  }
  gbi_p2p_op *turn;
  while (l->state == GBI_LINK_UP && l->asked_for < GBI_P2P_CTS_MAX &&
         (turn = l->turns.first)) {
    gbi_p2p_unlink(turn);
    ask(l, turn);
  }
}

static void reap_messages(gbi_p2p_link *l) {
  for (gbi_p2p_message **at = &l->arriving; *at;) {
    gbi_p2p_message *m = *at;
    if (m->xfer.status != GB_OK) {
      at = &m->arriving_next;
      continue;
    }
    *at = m->arriving_next;
    m->arrived = true;
    if (!m->claimed) continue;
    took(l, m->head.bytes);
    copy_in(m->claimed, m->data);
    gbi_p2p_finish(l->p2p, m->claimed, GB_OK);
    free(m);
  }
}

/* Tells the peer what was taken, when it asks for small messages as for large
 * ones. Nothing is sent to a peer that does not wait for it: it may have closed
 * its end, and a connection that is written to then is reset together with what
 * it still holds. */
static void tell_taken(gbi_p2p_link *l) {
  if (!l->starves || l->bye || l->left_ns) return;
  if (l->taken - l->taken_told < l->p2p->window / 4) return;
  if (l->taken_head.busy && l->taken_head.xfer.status == GB_ERR_BUSY) return;
  gbi_p2p_head head = {.kind = GBI_HEAD_TAKEN};
  l->starves = false;
  post_own(l, &l->taken_head, &head);
}

void gbi_p2p_say_bye(gbi_p2p_link *l) {
  gbi_p2p_head head = {.kind = GBI_HEAD_BYE};
  post_own(l, &l->bye_head, &head);
}

/* A transport tells of a broken link by failing what it was lent, and head
 * receives are lent always. */
static bool is_broken(gbi_p2p_link *l) {
  gb_status status = l->heads[l->heads_in % GBI_P2P_HEADS].status;
  if (status == GB_OK || status == GB_ERR_BUSY) return false;
  gbi_p2p_break_link(l, status, NULL);
  return true;
}

unsigned gbi_p2p_progress_link(gbi_p2p_link *l) {
  unsigned did = l->transport->ops->progress(l->transport);
  l->hot = did > 0;
  /* What was posted may have ended at once, without any progress. */
  bool fresh = l->fresh;
  l->fresh = false;
  if (!did && !fresh &&
      l->heads[l->heads_in % GBI_P2P_HEADS].status == GB_ERR_BUSY)
    return 0;
  reap_sends(l);
  did += take_heads(l);
  if (l->state != GBI_LINK_UP) return did;
  reap_sends(l);
  reap_receives(l);
  reap_messages(l);
  if (is_broken(l)) return did;
  gbi_p2p_pump(l);
  tell_taken(l);
  return did;
}

void gbi_p2p_link_up(gbi_p2p_link *l) {
  gbi_p2p *p = l->p2p;
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = l};
  int fd = l->transport->ops->wait_fd(l->transport);
  l->network = fd >= 0;
  l->state = GBI_LINK_UP;
  l->next_up = p->up;
  p->up = l;
  p->up_count++;
  for (uint64_t i = 0; i < GBI_P2P_HEADS; i++) post_head_receive(l, i);
  if (l->network) {
    p->network_count++;
    if (epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, fd, &event))
      gbi_p2p_break_link(l, GB_ERR_SYSTEM, "its descriptor cannot be watched");
  }
  gbi_p2p_pump(l);
}
