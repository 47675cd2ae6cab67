/* Work requests and completions, credits, and how links break. */
#include "transport/verbs/verbs.h"

#include "base/log.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { POLLED = 32, RECEIVE = 1 };

/* What a completion belongs to: the link's member, and a receive's slot or the
 * number of a request. */
static uint64_t name_of(const gbi_verbs_link *link, uint64_t number,
                        int receive) {
  return (uint64_t)link->member << 48 | (number & 0x7fffffffffff) << 1 |
         (unsigned)receive;
}

/* ---- breaking ---- */

static void fail_list(gbi_xfer **head, gbi_xfer ***tail, gb_status status) {
  while (*head) {
    gbi_xfer *xfer = *head;
    *head = xfer->next;
    if (xfer->status == GB_ERR_BUSY) xfer->status = status;
  }
  *tail = head;
}

/* The adapter lets go of memory before its owner hears of the end. */
static void end_queue(gbi_verbs *t, gbi_verbs_link *link) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
  (void)t->lib->ibv_modify_qp(link->qp, &attr, IBV_QP_STATE);
}

static void let_go(gbi_verbs *t, gbi_verbs_link *link) {
  bool registered = link->mr;
  for (int i = 0; i < GBI_VERBS_LONGS; i++)
    registered = registered || link->longs[i].xfer;
  if (registered) end_queue(t, link);
}

static void fail_sends(gbi_verbs *t, gbi_verbs_link *link, gb_status status) {
  link->current = NULL;
  for (int i = 0; i < GBI_VERBS_LONGS; i++) {
    gbi_verbs_long *one = &link->longs[i];
    if (!one->xfer) continue;
    t->lib->ibv_dereg_mr(one->mr);
    if (one->xfer->status == GB_ERR_BUSY) one->xfer->status = status;
    one->xfer = NULL;
  }
  for (int i = 0; i < GBI_VERBS_QUEUE; i++) link->requests[i].of = NULL;
  fail_list(&link->send_head, &link->send_tail, status);
}

void gbi_verbs_fail_pending(gbi_verbs *t, gbi_verbs_link *link,
                            gb_status status) {
  if (!link->qp) return;
  let_go(t, link);
  if (link->mr) t->lib->ibv_dereg_mr(link->mr);
  link->mr = NULL;
  link->receiving = NULL;
  fail_sends(t, link, status);
  fail_list(&link->recv_head, &link->recv_tail, status);
}

static void note_reason(gbi_verbs *t, gbi_verbs_link *link, gb_status status,
                        const char *reason) {
  if (link->status == GB_OK) {
    link->status = status;
    gbi_fail_rank(&link->error, status, link->rank,
                  "connection of bridge \"verbs\" between rank %d and rank %d "
                  "(from %s port %d to %s) broke: %s",
                  t->members[t->params.me].rank, link->rank, t->port.device,
                  t->port.port, link->peer, reason);
  }
}

void gbi_verbs_break(gbi_verbs *t, gbi_verbs_link *link, gb_status status,
                     const char *reason) {
  if (link->broken) return;
  link->broken = true;
  note_reason(t, link, status, reason);
  end_queue(t, link); /* the other side is not acknowledged any more */
  gbi_verbs_fail_pending(t, link, link->status);
}

/* After its goodbye: what has arrived is still there for receives, but nothing
 * leaves any more, and nothing else comes. */
static unsigned end_with_peer(gbi_verbs *t, gbi_verbs_link *link) {
  static const char reason[] = "the other side closed it";
  bool sends = link->send_head;
  for (int i = 0; i < GBI_VERBS_LONGS; i++)
    sends = sends || link->longs[i].xfer;
  if (sends) {
    note_reason(t, link, GB_ERR_PEER, reason);
    let_go(t, link);
    fail_sends(t, link, link->status);
  }
  if (!link->recv_head || link->arrivals_count) return sends;
  gbi_verbs_break(t, link, GB_ERR_PEER, reason);
  return 1;
}

/* ---- requests ---- */

struct ibv_mr *gbi_verbs_register(gbi_verbs *t, void *data, size_t bytes,
                                  int access) {
  struct ibv_mr *mr = t->lib->ibv_reg_mr(t->pd, data, bytes, access);
  gbi_verbs_count(mr ? &t->registered : &t->not_registered, 1);
  return mr;
}

gb_status gbi_verbs_post_slot(gbi_verbs *t, gbi_verbs_link *link, int slot) {
  struct ibv_sge sge = {
      .addr = (uintptr_t)(link->in + (size_t)slot * GBI_VERBS_SLOT),
      .length = GBI_VERBS_SLOT,
      .lkey = t->mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = name_of(link, (uint64_t)slot, RECEIVE),
                           .sg_list = &sge,
                           .num_sge = 1},
                     *bad;
  int code = t->port.context->ops.post_recv(link->qp, &wr, &bad);
  return code ? GB_ERR_SYSTEM : GB_OK;
}

static bool has_room(const gbi_verbs_link *link, unsigned left) {
  return link->posted - link->retired + left < GBI_VERBS_QUEUE;
}

/* A few places of the queue are for control. */
bool gbi_verbs_may_send(const gbi_verbs_link *link) {
  return link->data_credits && has_room(link, 4);
}

/* The last credit is for giving credits back: without it two sides that both
 * have used theirs up would wait for each other. */
bool gbi_verbs_may_control(const gbi_verbs_link *link, bool gives_credits) {
  return link->control_credits > (gives_credits ? 0u : 1u) && has_room(link, 0);
}

uint8_t *gbi_verbs_next_slot(const gbi_verbs_link *link) {
  return link->out + link->posted % GBI_VERBS_QUEUE * GBI_VERBS_SLOT;
}

static void post(gbi_verbs *t, gbi_verbs_link *link, struct ibv_send_wr *wr,
                 gbi_verbs_long *of, size_t bytes, bool signal) {
  struct ibv_send_wr *bad;
  unsigned at = link->posted % GBI_VERBS_QUEUE;
  wr->wr_id = name_of(link, link->posted, 0);
  if (signal || of || ++link->unsignaled >= GBI_VERBS_SIGNAL) {
    wr->send_flags |= IBV_SEND_SIGNALED;
    link->unsignaled = 0;
  }
  link->requests[at].of = of;
  link->requests[at].bytes = (uint32_t)bytes;
  if (of) of->requests++;
  link->posted++;
  link->last_post_ns = gbi_now_ns();
  int code = t->port.context->ops.post_send(link->qp, wr, &bad);
  if (!code) return;
  char text[128];
  snprintf(text, sizeof text, "a request could not be posted: %s",
           strerror(code < 0 ? -code : code));
  gbi_verbs_break(t, link, GB_ERR_SYSTEM, text);
}

static bool is_control(uint8_t type) {
  return type != GBI_VERBS_MESSAGE && type != GBI_VERBS_ANNOUNCE;
}

void gbi_verbs_send(gbi_verbs *t, gbi_verbs_link *link, gbi_verbs_head *head,
                    const void *extra, struct ibv_mr *mr, gbi_verbs_long *of) {
  uint8_t *slot = gbi_verbs_next_slot(link);
  head->data_credits = (uint16_t)link->owed_data;
  head->control_credits = (uint16_t)link->owed_control;
  link->owed_data = link->owed_control = 0;
  *(is_control(head->type) ? &link->control_credits : &link->data_credits) -= 1;
  gbi_verbs_head_write(head, slot);
  struct ibv_sge sge[2] = {
      {(uintptr_t)slot, GBI_VERBS_HEAD + (extra ? 0 : head->payload),
       t->mr->lkey},
      {(uintptr_t)extra, head->payload, mr ? mr->lkey : 0}};
  struct ibv_send_wr wr = {
      .sg_list = sge, .num_sge = extra ? 2 : 1, .opcode = IBV_WR_SEND};
  if (!extra && sge[0].length <= t->inline_bytes)
    wr.send_flags = IBV_SEND_INLINE;
  bool last = head->type == GBI_VERBS_BYE || head->type == GBI_VERBS_HELLO;
  post(t, link, &wr, of, of ? head->payload : 0, last);
}

void gbi_verbs_write(gbi_verbs *t, gbi_verbs_link *link, const void *data,
                     size_t bytes, uint32_t key, uint64_t to,
                     gbi_verbs_long *of) {
  struct ibv_sge sge = {(uintptr_t)data, (uint32_t)bytes, key};
  struct ibv_send_wr wr = {.sg_list = &sge,
                           .num_sge = 1,
                           .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                           .imm_data = htobe32((uint32_t)bytes)};
  wr.wr.rdma.remote_addr = to;
  wr.wr.rdma.rkey = link->grant_key;
  link->data_credits--;
  gbi_verbs_count(&t->written, bytes);
  post(t, link, &wr, of, bytes, false);
}

/* ---- completions ---- */

static void retire(gbi_verbs *t, gbi_verbs_link *link, uint64_t number) {
  /* In order: this one and those before it that asked for no completion. */
  uint64_t low = link->retired & 0x7fffffffffff;
  uint64_t more = ((number - low) & 0x7fffffffffff) + 1;
  if (more > link->posted - link->retired) return; /* of before a break */
  while (more-- && !link->broken) {
    unsigned at = link->retired++ % GBI_VERBS_QUEUE;
    gbi_verbs_long *of = link->requests[at].of;
    link->requests[at].of = NULL;
    if (of) gbi_verbs_sent(t, link, of, link->requests[at].bytes);
  }
}

static unsigned look_at_device(gbi_verbs *t) {
  struct ibv_async_event event;
  char text[160];
  unsigned did = 0;
  while (!t->lib->ibv_get_async_event(t->port.context, &event)) {
    int type = event.event_type;
    bool all =
        type == IBV_EVENT_DEVICE_FATAL || type == IBV_EVENT_CQ_ERR ||
        (type == IBV_EVENT_PORT_ERR && event.element.port_num == t->port.port);
    bool one = type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR ||
               type == IBV_EVENT_QP_ACCESS_ERR;
    snprintf(text, sizeof text, "the RDMA device %s says \"%s\"",
             t->port.device, t->lib->ibv_event_type_str(type));
    for (int i = 0; i < t->params.members_count; i++) {
      gbi_verbs_link *link = &t->links[i];
      if (!link->qp || link->broken) continue;
      if (!all && !(one && event.element.qp == link->qp)) continue;
      gbi_verbs_break(t, link, all ? GB_ERR_SYSTEM : GB_ERR_PEER, text);
      did++;
    }
    t->lib->ibv_ack_async_event(&event);
  }
  return did;
}

/* A queue pair that ended flushes all that was posted, what ended it may come
 * behind: among the completions of the same look, or as an event. */
static const struct ibv_wc *cause_of(const struct ibv_wc *wc, int more) {
  for (int i = 0; i < more && wc->status == IBV_WC_WR_FLUSH_ERR; i++)
    if (wc[i].wr_id >> 48 == wc->wr_id >> 48 &&
        wc[i].status != IBV_WC_SUCCESS && wc[i].status != IBV_WC_WR_FLUSH_ERR)
      return &wc[i];
  return wc;
}

static void failed(gbi_verbs *t, gbi_verbs_link *link, const struct ibv_wc *wc,
                   int more) {
  char text[256];
  if (link->broken) return;
  if (!link->left && wc->status == IBV_WC_WR_FLUSH_ERR) look_at_device(t);
  if (link->broken) return;
  wc = cause_of(wc, more);
  if (link->left) return; /* it has gone, as it said */
  snprintf(text, sizeof text,
           "a %s ended with \"%s\" (status %d, vendor's %#x)%s",
           wc->wr_id & RECEIVE ? "receive" : "send",
           t->lib->ibv_wc_status_str(wc->status), wc->status, wc->vendor_err,
           wc->status == IBV_WC_RETRY_EXC_ERR
               ? ": the other side does not answer. Is the process there, the "
                 "link up, and the GID reachable?"
               : "");
  gbi_verbs_break(t, link, GB_ERR_PEER, text);
}

static const char *take_credits(gbi_verbs_link *link,
                                const gbi_verbs_head *head) {
  link->data_credits += head->data_credits;
  link->control_credits += head->control_credits;
  if (link->data_credits <= GBI_VERBS_DATA &&
      link->control_credits <= GBI_VERBS_CONTROL)
    return NULL;
  return "more credits than there are";
}

/* It is used up here, whatever it says. */
static const char *take_control(gbi_verbs *t, gbi_verbs_link *link,
                                const gbi_verbs_head *head,
                                const uint8_t *payload) {
  switch (head->type) {
    case GBI_VERBS_HELLO: {
      const char *wrong =
          gbi_verbs_check_hello(t, link, payload, head->payload);
      link->greeted = !wrong;
      return wrong;
    }
    case GBI_VERBS_GRANT:
    case GBI_VERBS_STREAM: gbi_verbs_granted(t, link, head, payload); break;
    case GBI_VERBS_BYE: link->left = true; break;
    default: break;
  }
  return NULL;
}

static const char *take_send(gbi_verbs *t, gbi_verbs_link *link, int slot,
                             uint32_t bytes) {
  const uint8_t *raw = link->in + (size_t)slot * GBI_VERBS_SLOT;
  gbi_verbs_head head;
  const char *wrong = gbi_verbs_head_read(raw, bytes, &head);
  if (!wrong && !link->greeted && head.type != GBI_VERBS_HELLO)
    wrong = "something before its greeting";
  if (!wrong) wrong = take_credits(link, &head);
  if (wrong) return wrong;
  if (is_control(head.type)) {
    wrong = take_control(t, link, &head, raw + GBI_VERBS_HEAD);
    if (wrong || link->broken) return wrong;
    link->owed_control++;
    return gbi_verbs_post_slot(t, link, slot) ? "what no receive could be "
                                                "posted for any more"
                                              : NULL;
  }
  if (link->arrivals_count == GBI_VERBS_DATA)
    return "more than it has credits for";
  link->arrivals[(link->arrivals_at + link->arrivals_count++) %
                 GBI_VERBS_DATA] =
      (gbi_verbs_arrival){.slot = (uint16_t)slot, .bytes = bytes};
  return NULL;
}

static const char *take_write(gbi_verbs_link *link, int slot,
                              const struct ibv_wc *wc) {
  uint32_t bytes = be32toh(wc->imm_data);
  /* What was not written is no part of a message, whatever it says. */
  if (bytes != wc->byte_len) return "a write of another length than it tells";
  if (link->arrivals_count == GBI_VERBS_DATA)
    return "more than it has credits for";
  link->arrivals[(link->arrivals_at + link->arrivals_count++) %
                 GBI_VERBS_DATA] = (gbi_verbs_arrival){
      .slot = (uint16_t)slot, .written = true, .bytes = bytes};
  return NULL;
}

/* `more`: completions from this one on. */
static void take(gbi_verbs *t, const struct ibv_wc *wc, int more) {
  gbi_verbs_link *link = &t->links[wc->wr_id >> 48];
  uint64_t number = wc->wr_id >> 1 & 0x7fffffffffff;
  if (wc->status != IBV_WC_SUCCESS) {
    failed(t, link, wc, more);
    return;
  }
  if (link->broken) return;
  if (!(wc->wr_id & RECEIVE)) {
    retire(t, link, number);
    return;
  }
  const char *wrong = wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM
                          ? take_write(link, (int)number, wc)
                          : take_send(t, link, (int)number, wc->byte_len);
  if (!wrong) return;
  char text[160];
  snprintf(text, sizeof text, "the other side sent %s", wrong);
  gbi_verbs_break(t, link, GB_ERR_PROTOCOL, text);
}

unsigned gbi_verbs_poll(gbi_verbs *t) {
  struct ibv_wc wc[POLLED];
  int n = t->port.context->ops.poll_cq(t->cq, POLLED, wc);
  for (int i = 0; i < n; i++) take(t, &wc[i], n - i);
  return n > 0 ? (unsigned)n : 0;
}

/* ---- progress ---- */

static bool owes_much(const gbi_verbs_link *link) {
  return link->owed_data >= GBI_VERBS_DATA / 2 ||
         link->owed_control >= GBI_VERBS_CONTROL / 2;
}

static unsigned give_back(gbi_verbs *t, gbi_verbs_link *link, bool at_all) {
  if (!at_all || link->broken || link->left ||
      !gbi_verbs_may_control(link, true))
    return 0;
  gbi_verbs_head head = {.type = GBI_VERBS_CREDIT};
  gbi_verbs_send(t, link, &head, NULL, NULL, NULL);
  return 1;
}

unsigned gbi_verbs_go_on(gbi_verbs *t, gbi_verbs_link *link) {
  unsigned did = gbi_verbs_receive_on(t, link);
  if (!link->broken) did += gbi_verbs_send_on(t, link);
  if (!link->broken) did += give_back(t, link, owes_much(link));
  if (link->left && !link->broken) did += end_with_peer(t, link);
  return did;
}

/* A peer that is gone is noticed by what is sent to it. */
static void beat(gbi_verbs *t, uint64_t now) {
  for (int i = 0; i < t->params.members_count; i++) {
    gbi_verbs_link *link = &t->links[i];
    bool waits = link->recv_head || link->send_head;
    if (!link->qp || link->broken || !waits) continue;
    if (now - link->last_post_ns > t->heartbeat_ns) give_back(t, link, true);
  }
}

/* Events that have told what they were for. */
static void drain_events(gbi_verbs *t) {
  struct ibv_cq *cq;
  void *context;
  while (!t->lib->ibv_get_cq_event(t->channel, &cq, &context)) {
    t->armed = false;
    if (++t->unacknowledged < 64) continue;
    t->lib->ibv_ack_cq_events(t->cq, t->unacknowledged);
    t->unacknowledged = 0;
  }
}

/* Before the caller sleeps; what came in between is taken by another look. */
static unsigned arm(gbi_verbs *t) {
  drain_events(t);
  if (!t->armed && !t->port.context->ops.req_notify_cq(t->cq, 0))
    t->armed = true;
  return gbi_verbs_poll(t);
}

static unsigned all_go_on(gbi_verbs *t) {
  unsigned did = 0;
  for (int i = 0; i < t->params.members_count; i++)
    if (t->links[i].qp && !t->links[i].broken)
      did += gbi_verbs_go_on(t, &t->links[i]);
  return did;
}

unsigned gbi_verbs_progress(gbi_transport *transport) {
  gbi_verbs *t = (gbi_verbs *)transport;
  if (atomic_load_explicit(&t->stopped, memory_order_acquire)) {
    if (t->canceled) return 0;
    t->canceled = true;
    for (int i = 0; i < t->params.members_count; i++)
      gbi_verbs_fail_pending(t, &t->links[i], GB_ERR_CANCELED);
    return 1;
  }
  unsigned did = gbi_verbs_poll(t);
  did += all_go_on(t);
  if (did) return did;
  beat(t, gbi_now_ns());
  did = look_at_device(t) + arm(t);
  return did ? did + all_go_on(t) : 0;
}
