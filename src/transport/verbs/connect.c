/* Queue pairs, the address that the others need, and the greeting. */
#include "transport/verbs/verbs.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HELLO_BYTES = 40 };

/* What a member's address says. */
typedef struct peer_address {
  uint8_t link_layer, mtu;
  uint16_t lid;
  union ibv_gid gid;
  uint32_t psn, qpn;
  uint64_t nonce;
  char text[160];
} peer_address;

/* ---- queue pairs ---- */

static struct ibv_qp *make_queue(gbi_verbs *t, uint32_t inline_bytes) {
  struct ibv_qp_init_attr init = {.send_cq = t->cq,
                                  .recv_cq = t->cq,
                                  .cap = {.max_send_wr = GBI_VERBS_QUEUE,
                                          .max_recv_wr = GBI_VERBS_SLOTS,
                                          .max_send_sge = 2,
                                          .max_recv_sge = 1,
                                          .max_inline_data = inline_bytes},
                                  .qp_type = IBV_QPT_RC};
  struct ibv_qp *qp = t->lib->ibv_create_qp(t->pd, &init);
  if (qp) t->inline_bytes = GBI_MIN(inline_bytes, init.cap.max_inline_data);
  return qp;
}

static gb_status to_init(gbi_verbs *t, gbi_verbs_link *link, gb_error *error) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                             .port_num = t->port.port,
                             .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
  int code = t->lib->ibv_modify_qp(
      link->qp, &attr,
      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  for (int slot = 0; slot < GBI_VERBS_SLOTS && !code; slot++)
    if (gbi_verbs_post_slot(t, link, slot) != GB_OK) code = EIO;
  if (!code) return GB_OK;
  return gbi_fail(error, GB_ERR_SYSTEM,
                  "a queue pair of the RDMA device %s port %d could not be set "
                  "up: %s",
                  t->port.device, t->port.port, strerror(code));
}

gb_status gbi_verbs_make_queues(gbi_verbs *t, gb_error *error) {
  for (int i = 0; i < t->params.members_count; i++) {
    gbi_verbs_link *link = &t->links[i];
    if (i == t->params.me) continue;
    errno = 0;
    link->qp = make_queue(t, 256);
    if (!link->qp) link->qp = make_queue(t, 64); /* some have less */
    if (!link->qp) link->qp = make_queue(t, 0);
    if (!link->qp)
      return gbi_fail(error, GB_ERR_SYSTEM,
                      "the RDMA device %s gave no queue pair for rank %d: %s",
                      t->port.device, link->rank,
                      strerror(errno ? errno : EIO));
    GBI_TRY(to_init(t, link, error));
  }
  return GB_OK;
}

/* ---- addresses ---- */

void gbi_verbs_address(gbi_transport *transport, gbi_writer *out) {
  gbi_verbs *t = (gbi_verbs *)transport;
  gbi_put_u16(out, GBI_VERBS_VERSION);
  gbi_put_u16(out, GBI_VERBS_DATA);
  gbi_put_u16(out, GBI_VERBS_CONTROL);
  gbi_put_u32(out, GBI_VERBS_SLOT);
  gbi_put_u8(out, t->port.link_layer);
  gbi_put_u8(out, (uint8_t)t->port.mtu);
  gbi_put_u16(out, t->port.lid);
  gbi_put_raw(out, t->port.gid.raw, sizeof t->port.gid.raw);
  gbi_put_u32(out, t->psn);
  gbi_put_u64(out, t->nonce);
  gbi_put_u8(out, t->port.port);
  gbi_put_text(out, t->port.device);
  for (int i = 0; i < t->params.members_count; i++) {
    uint32_t qpn = t->links[i].qp ? t->links[i].qp->qp_num : 0;
    for (int k = 0; k < 3; k++) gbi_put_u8(out, (uint8_t)(qpn >> 8 * k));
  }
}

static uint32_t get_qpn(gbi_reader *in) {
  uint32_t qpn = 0;
  for (int k = 0; k < 3; k++) qpn |= (uint32_t)gbi_get_u8(in) << 8 * k;
  return qpn;
}

static gb_status refuse(const gbi_verbs *t, const gbi_verbs_link *link,
                        gb_status status, const char *reason, gb_error *error) {
  return gbi_fail_rank(error, status, link->rank,
                       "rank %d cannot reach rank %d by the bridge \"verbs\": "
                       "%s",
                       t->members[t->params.me].rank, link->rank, reason);
}

static gb_status read_address(const gbi_verbs *t, const gbi_verbs_link *link,
                              gbi_reader in, peer_address *p, gb_error *error) {
  char reason[512], device[64], address[64];
  uint16_t version = gbi_get_u16(&in), data = gbi_get_u16(&in);
  uint16_t control = gbi_get_u16(&in);
  uint32_t slot = gbi_get_u32(&in);
  if (!in.bad && version != GBI_VERBS_VERSION) {
    snprintf(reason, sizeof reason,
             "it speaks version %u of the protocol, this rank version %d. "
             "Install the same gpubridge on every machine",
             version, GBI_VERBS_VERSION);
    return refuse(t, link, GB_ERR_VERSION, reason, error);
  }
  p->link_layer = gbi_get_u8(&in);
  p->mtu = gbi_get_u8(&in);
  p->lid = gbi_get_u16(&in);
  const uint8_t *gid = gbi_get_raw(&in, sizeof p->gid.raw);
  if (gid) memcpy(p->gid.raw, gid, sizeof p->gid.raw);
  p->psn = gbi_get_u32(&in) & 0xffffff;
  p->nonce = gbi_get_u64(&in);
  unsigned port = gbi_get_u8(&in);
  gbi_get_text(&in, device, sizeof device);
  for (int i = 0; i < t->params.members_count; i++) {
    uint32_t qpn = get_qpn(&in);
    if (i == t->params.me) p->qpn = qpn;
  }
  bool bad = in.bad || in.at != in.bytes || data != GBI_VERBS_DATA ||
             control != GBI_VERBS_CONTROL || slot != GBI_VERBS_SLOT ||
             p->mtu < 1 || p->mtu > IBV_MTU_4096 || !p->qpn;
  if (bad)
    return refuse(t, link, GB_ERR_PROTOCOL, "its address is malformed", error);
  gbi_verbs_address_text(p->link_layer, p->lid, &p->gid, address);
  snprintf(p->text, sizeof p->text, "%s port %u, %s %s", device, port,
           gbi_verbs_layer_name(p->link_layer), address);
  if (p->link_layer == t->port.link_layer) return GB_OK;
  snprintf(reason, sizeof reason,
           "it is on %s (%s) and this rank on %s (%s port %d), which cannot "
           "connect. Name devices of one kind in GPUBRIDGE_VERBS_DEVICE, or "
           "use the bridge tcp",
           gbi_verbs_layer_name(p->link_layer), p->text,
           gbi_verbs_layer_name(t->port.link_layer), t->port.device,
           t->port.port);
  return refuse(t, link, GB_ERR_CONNECT, reason, error);
}

/* ---- to each other ---- */

static int to_ready(gbi_verbs *t, gbi_verbs_link *link, const peer_address *p) {
  bool global = t->port.link_layer == IBV_LINK_LAYER_ETHERNET;
  struct ibv_qp_attr attr = {
      .qp_state = IBV_QPS_RTR,
      .path_mtu = GBI_MIN(p->mtu, t->port.mtu),
      .dest_qp_num = p->qpn,
      .rq_psn = p->psn,
      .max_dest_rd_atomic = 1,
      .min_rnr_timer = 12,
      .ah_attr = {.dlid = p->lid,
                  .is_global = global,
                  .port_num = t->port.port,
                  .grh = {.dgid = p->gid,
                          .sgid_index = (uint8_t)t->port.gid_index,
                          .hop_limit = 64}}};
  int code = t->lib->ibv_modify_qp(
      link->qp, &attr,
      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
          IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (code) return code;
  struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS,
                             .timeout = (uint8_t)t->timeout,
                             .retry_cnt = (uint8_t)t->retries,
                             .rnr_retry = 6,
                             .sq_psn = t->psn,
                             .max_rd_atomic = 1};
  return t->lib->ibv_modify_qp(link->qp, &send,
                               IBV_QP_STATE | IBV_QP_TIMEOUT |
                                   IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                   IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static void greet(gbi_verbs *t, gbi_verbs_link *link) {
  gbi_verbs_head head = {.type = GBI_VERBS_HELLO, .payload = HELLO_BYTES};
  gbi_writer out;
  gbi_writer_init(&out, gbi_verbs_next_slot(link) + GBI_VERBS_HEAD,
                  HELLO_BYTES);
  gbi_put_u32(&out, t->params.group);
  gbi_put_u32(&out, t->params.comm);
  gbi_put_u32(&out, (uint32_t)t->members[t->params.me].rank);
  gbi_put_u32(&out, (uint32_t)link->rank);
  gbi_put_u32(&out, (uint32_t)t->params.members_count);
  gbi_put_u32(&out, 0);
  gbi_put_u64(&out, t->nonce);
  gbi_put_u64(&out, link->peer_nonce);
  gbi_verbs_send(t, link, &head, NULL, NULL, NULL);
}

const char *gbi_verbs_check_hello(const gbi_verbs *t,
                                  const gbi_verbs_link *link,
                                  const uint8_t *payload, size_t bytes) {
  gbi_reader in;
  gbi_reader_init(&in, payload, bytes);
  if (bytes != HELLO_BYTES || link->greeted) return "a second greeting";
  bool same = gbi_get_u32(&in) == t->params.group;
  same &= gbi_get_u32(&in) == t->params.comm;
  same &= gbi_get_u32(&in) == (uint32_t)link->rank;
  same &= gbi_get_u32(&in) == (uint32_t)t->members[t->params.me].rank;
  same &= gbi_get_u32(&in) == (uint32_t)t->params.members_count;
  same &= gbi_get_u32(&in) == 0;
  same &= gbi_get_u64(&in) == link->peer_nonce;
  same &= gbi_get_u64(&in) == t->nonce;
  return same ? NULL : "the greeting of another connection";
}

static gb_status await_greetings(gbi_verbs *t, uint64_t deadline_ns,
                                 gb_error *error) {
  for (;;) {
    gbi_verbs_link *missing = NULL;
    gbi_verbs_progress(&t->base);
    for (int i = 0; i < t->params.members_count; i++) {
      gbi_verbs_link *link = &t->links[i];
      if (link->broken) {
        *error = link->error;
        return link->status;
      }
      /* Ours has arrived too when its request is complete. */
      if (link->qp && (!link->greeted || link->retired < 1) && !missing)
        missing = link;
    }
    if (!missing) return GB_OK;
    if (atomic_load_explicit(&t->stopped, memory_order_acquire))
      return gbi_fail(error, GB_ERR_CANCELED, "the bridge was stopped");
    if (gbi_deadline_passed(deadline_ns)) {
      char reason[320];
      snprintf(reason, sizeof reason,
               "no greeting came from %s to %s port %d before the deadline",
               missing->peer, t->port.device, t->port.port);
      return refuse(t, missing, GB_ERR_TIMEOUT, reason, error);
    }
    struct pollfd one = {t->epoll_fd, POLLIN, 0};
    (void)poll(&one, 1, gbi_deadline_left_ms(deadline_ns, 20));
  }
}

gb_status gbi_verbs_connect(gbi_transport *transport,
                            const gbi_reader *addresses, uint64_t deadline_ns,
                            gb_error *error) {
  gbi_verbs *t = (gbi_verbs *)transport;
  for (int i = 0; i < t->params.members_count; i++) {
    gbi_verbs_link *link = &t->links[i];
    peer_address p;
    if (!link->qp) continue;
    memset(&p, 0, sizeof p);
    GBI_TRY(read_address(t, link, addresses[i], &p, error));
    snprintf(link->peer, sizeof link->peer, "%s", p.text);
    link->peer_qpn = p.qpn;
    link->peer_nonce = p.nonce;
    int code = to_ready(t, link, &p);
    if (code) {
      char reason[320], mine[64];
      snprintf(reason, sizeof reason,
               "the RDMA device %s port %d (GID %d, %s) found no way to %s: %s",
               t->port.device, t->port.port, t->port.gid_index,
               gbi_verbs_address_text(t->port.link_layer, t->port.lid,
                                      &t->port.gid, mine),
               p.text, strerror(code > 0 ? code : errno));
      return refuse(t, link, GB_ERR_CONNECT, reason, error);
    }
  }
  for (int i = 0; i < t->params.members_count; i++)
    if (t->links[i].qp) greet(t, &t->links[i]);
  return await_greetings(t, deadline_ns, error);
}
