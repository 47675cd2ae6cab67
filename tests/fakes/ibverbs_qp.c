/* The fake libibverbs: queue pairs, their states, and what is posted. */
#include "fakes/ibverbs_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- life
 * ---------------------------------------------------------------------- */

static int refusal(const fake_ib_context *c,
                   const struct ibv_qp_init_attr *attr) {
  const fake_ib_device *d = c->device;
  const struct ibv_qp_cap *cap = &attr->cap;
  if (attr->qp_type != IBV_QPT_RC) return EOPNOTSUPP;
  if (!attr->send_cq || !attr->recv_cq || attr->srq) return EINVAL;
  if ((int)cap->max_send_wr > d->wr_most ||
      (int)cap->max_recv_wr > d->wr_most || !cap->max_send_wr ||
      (int)cap->max_send_sge > d->sge_most ||
      (int)cap->max_recv_sge > d->sge_most ||
      (int)cap->max_inline_data > d->inline_most)
    return EINVAL;
  return c->qps_count >= d->qps_most ? ENOMEM : 0;
}

static void free_qp(fake_ib_qp *qp) {
  if (qp->listener >= 0) close(qp->listener);
  free(qp->sends);
  free(qp->receives);
  free(qp->inline_memory);
  free(qp->in.answers);
  free(qp);
}

static bool take_memory(fake_ib_qp *qp) {
  const struct ibv_qp_cap *cap = &qp->cap;
  qp->sends = calloc(cap->max_send_wr, sizeof *qp->sends);
  qp->receives = calloc((size_t)cap->max_recv_wr + 1, sizeof *qp->receives);
  qp->inline_memory =
      malloc((size_t)cap->max_send_wr * cap->max_inline_data + 1);
  return qp->sends && qp->receives && qp->inline_memory;
}

static void join(fake_ib_qp *qp, int more) {
  ((fake_ib_cq *)qp->qp.send_cq)->uses += more;
  ((fake_ib_cq *)qp->qp.recv_cq)->uses += more;
  ((fake_ib_pd *)qp->qp.pd)->uses += more;
  fake_ib_of(qp->qp.context)->qps_count += more;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr) {
  fake_ib_context *c = fake_ib_of(pd->context);
  if (fake_ib_fails("ibv_create_qp")) return NULL;
  if ((errno = refusal(c, attr))) return NULL;
  fake_ib_qp *qp = calloc(1, sizeof *qp);
  if (!qp) return NULL;
  qp->listener = qp->in.fd = qp->out.fd = -1;
  qp->cap = attr->cap;
  qp->sig_all = attr->sq_sig_all;
  qp->qp.context = pd->context;
  qp->qp.qp_context = attr->qp_context;
  qp->qp.pd = pd;
  qp->qp.send_cq = attr->send_cq;
  qp->qp.recv_cq = attr->recv_cq;
  qp->qp.qp_type = IBV_QPT_RC;
  qp->qp.state = IBV_QPS_RESET;
  if (!take_memory(qp) || fake_ib_listen(qp)) {
    free_qp(qp);
    errno = ENOMEM;
    return NULL;
  }
  pthread_mutex_lock(&c->lock);
  qp->next = c->qps;
  c->qps = qp;
  join(qp, 1);
  fake_ib_wake(c);
  pthread_mutex_unlock(&c->lock);
  FAKE_IB_LIVE(QPS, 1);
  return &qp->qp;
}

/* What was posted is forgotten, without completions. */
static void drop_all(fake_ib_qp *qp) {
  for (; qp->done < qp->posted; qp->done++)
    fake_ib_use(qp, &qp->sends[qp->done % qp->cap.max_send_wr], -1);
  for (; qp->received < qp->received_posted; qp->received++)
    fake_ib_use(qp, &qp->receives[qp->received % qp->cap.max_recv_wr], -1);
  fake_ib_forget((fake_ib_cq *)qp->qp.send_cq, qp);
  fake_ib_forget((fake_ib_cq *)qp->qp.recv_cq, qp);
  fake_ib_hang_up(qp);
  qp->posted = qp->sent = qp->acked = qp->done = qp->freed = 0;
  qp->received_posted = qp->received = qp->expected = 0;
}

static void purge_events(fake_ib_context *c, const fake_ib_qp *qp) {
  fake_ib_event **at = &c->events;
  while (*at) {
    fake_ib_event *event = *at;
    int type = (int)event->event.event_type;
    bool of_qp = type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR ||
                 type == IBV_EVENT_QP_ACCESS_ERR;
    if (of_qp && event->event.element.qp == &qp->qp) {
      *at = event->next;
      free(event);
    } else {
      at = &event->next;
    }
  }
  c->events_end = at;
}

int ibv_destroy_qp(struct ibv_qp *ibv_qp) {
  fake_ib_qp *qp = (fake_ib_qp *)ibv_qp;
  fake_ib_context *c = fake_ib_of(ibv_qp->context);
  pthread_mutex_lock(&c->lock);
  if (qp->unacked)
    fake_ib_misuse(
        "ibv_destroy_qp with an event that nobody acknowledged: it "
        "would wait for ever");
  fake_ib_qp **at = &c->qps;
  while (*at && *at != qp) at = &(*at)->next;
  if (!*at) fake_ib_misuse("ibv_destroy_qp of what is no queue pair");
  *at = qp->next;
  drop_all(qp);
  purge_events(c, qp);
  join(qp, -1);
  fake_ib_wake(c);
  pthread_mutex_unlock(&c->lock);
  free_qp(qp);
  FAKE_IB_LIVE(QPS, -1);
  return 0;
}

/* --- states
 * --------------------------------------------------------------------- */

typedef struct transition {
  int from, to, needs, may;
} transition;
static const transition transitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT,
     IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0,
     IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
         IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER}};

static bool may_go(int from, int to, int mask) {
  mask &= ~IBV_QP_STATE;
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return mask == 0;
  for (size_t i = 0; i < sizeof transitions / sizeof *transitions; i++) {
    const transition *t = &transitions[i];
    if (t->from == from && t->to == to)
      return (mask & t->needs) == t->needs && !(mask & ~(t->needs | t->may));
  }
  return false;
}

static bool good_path(const fake_ib_device *d, const struct ibv_ah_attr *ah) {
  static const union ibv_gid none;
  if (ah->port_num < 1 || ah->port_num > d->ports) return false;
  if (ah->is_global || d->link == IBV_LINK_LAYER_ETHERNET)
    return ah->is_global && ah->grh.sgid_index < FAKE_IB_GIDS &&
           memcmp(&d->gids[ah->grh.sgid_index], &none, sizeof none) &&
           memcmp(&ah->grh.dgid, &none, sizeof none);
  return ah->dlid != 0;
}

/* An empty entry of the table: the kernel has words of its own for it. */
static bool names_no_gid(const fake_ib_device *d, const struct ibv_qp_attr *a,
                         int mask) {
  static const union ibv_gid none;
  const struct ibv_ah_attr *ah = &a->ah_attr;
  return (mask & IBV_QP_AV) && ah->is_global &&
         ah->grh.sgid_index < FAKE_IB_GIDS &&
         !memcmp(&d->gids[ah->grh.sgid_index], &none, sizeof none);
}

static bool good_values(const fake_ib_device *d, const struct ibv_qp_attr *a,
                        int mask) {
  if ((mask & IBV_QP_PORT) && (a->port_num < 1 || a->port_num > d->ports))
    return false;
  if ((mask & IBV_QP_PKEY_INDEX) && a->pkey_index) return false;
  if ((mask & IBV_QP_AV) && !good_path(d, &a->ah_attr)) return false;
  if ((mask & IBV_QP_PATH_MTU) &&
      ((int)a->path_mtu < IBV_MTU_256 || (int)a->path_mtu > d->mtu))
    return false;
  if ((mask & IBV_QP_DEST_QPN) && a->dest_qp_num > 0xffffff) return false;
  if ((mask & IBV_QP_TIMEOUT) && a->timeout > 31) return false;
  if ((mask & IBV_QP_RETRY_CNT) && a->retry_cnt > 7) return false;
  if ((mask & IBV_QP_RNR_RETRY) && a->rnr_retry > 7) return false;
  if ((mask & IBV_QP_MIN_RNR_TIMER) && a->min_rnr_timer > 31) return false;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) && a->max_rd_atomic > 16) return false;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) && a->max_dest_rd_atomic > 16)
    return false;
  return true;
}

static void take_values(struct ibv_qp_attr *to, const struct ibv_qp_attr *a,
                        int mask) {
  if (mask & IBV_QP_PORT) to->port_num = a->port_num;
  if (mask & IBV_QP_ACCESS_FLAGS) to->qp_access_flags = a->qp_access_flags;
  if (mask & IBV_QP_AV) to->ah_attr = a->ah_attr;
  if (mask & IBV_QP_PATH_MTU) to->path_mtu = a->path_mtu;
  if (mask & IBV_QP_DEST_QPN) to->dest_qp_num = a->dest_qp_num;
  if (mask & IBV_QP_RQ_PSN) to->rq_psn = a->rq_psn & 0xffffff;
  if (mask & IBV_QP_SQ_PSN) to->sq_psn = a->sq_psn & 0xffffff;
  if (mask & IBV_QP_TIMEOUT) to->timeout = a->timeout;
  if (mask & IBV_QP_RETRY_CNT) to->retry_cnt = a->retry_cnt;
  if (mask & IBV_QP_RNR_RETRY) to->rnr_retry = a->rnr_retry;
  if (mask & IBV_QP_MIN_RNR_TIMER) to->min_rnr_timer = a->min_rnr_timer;
  if (mask & IBV_QP_MAX_QP_RD_ATOMIC) to->max_rd_atomic = a->max_rd_atomic;
  if (mask & IBV_QP_MAX_DEST_RD_ATOMIC)
    to->max_dest_rd_atomic = a->max_dest_rd_atomic;
}

int ibv_modify_qp(struct ibv_qp *ibv_qp, struct ibv_qp_attr *attr, int mask) {
  fake_ib_qp *qp = (fake_ib_qp *)ibv_qp;
  fake_ib_context *c = fake_ib_of(ibv_qp->context);
  int error = fake_ib_fails("ibv_modify_qp");
  if (error) return error;
  pthread_mutex_lock(&c->lock);
  int from = (int)ibv_qp->state;
  int to = mask & IBV_QP_STATE ? (int)attr->qp_state : from;
  if (!may_go(from, to, mask) || !good_values(c->device, attr, mask) ||
      ((mask & IBV_QP_CUR_STATE) && (int)attr->cur_qp_state != from)) {
    error = names_no_gid(c->device, attr, mask) ? ENODATA : EINVAL;
  } else if (to == IBV_QPS_ERR) {
    fake_ib_break(qp);
  } else {
    if (to == IBV_QPS_RESET) {
      drop_all(qp);
      memset(&qp->attr, 0, sizeof qp->attr);
    }
    take_values(&qp->attr, attr, mask);
    ibv_qp->state = (enum ibv_qp_state)to;
    fake_ib_wake(c);
  }
  pthread_mutex_unlock(&c->lock);
  return error;
}

int ibv_query_qp(struct ibv_qp *ibv_qp, struct ibv_qp_attr *attr, int mask,
                 struct ibv_qp_init_attr *init) {
  fake_ib_qp *qp = (fake_ib_qp *)ibv_qp;
  fake_ib_context *c = fake_ib_of(ibv_qp->context);
  int error = fake_ib_fails("ibv_query_qp");
  (void)mask;
  if (error) return error;
  pthread_mutex_lock(&c->lock);
  *attr = qp->attr;
  attr->qp_state = attr->cur_qp_state = ibv_qp->state;
  attr->cap = qp->cap;
  memset(init, 0, sizeof *init);
  init->send_cq = ibv_qp->send_cq;
  init->recv_cq = ibv_qp->recv_cq;
  init->cap = qp->cap;
  init->qp_type = IBV_QPT_RC;
  init->sq_sig_all = qp->sig_all;
  pthread_mutex_unlock(&c->lock);
  return 0;
}

/* --- completions
 * ------------------------------------------------------------------ */

static int wc_opcode(const fake_ib_work *work) {
  switch (work->opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM: return IBV_WC_SEND;
    case IBV_WR_RDMA_READ: return IBV_WC_RDMA_READ;
    default: return IBV_WC_RDMA_WRITE;
  }
}

static void count_send(const fake_ib_work *work) {
  switch (work->opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM: FAKE_IB_COUNT(sends, 1); break;
    case IBV_WR_RDMA_WRITE: FAKE_IB_COUNT(writes, 1); break;
    case IBV_WR_RDMA_WRITE_WITH_IMM: FAKE_IB_COUNT(imms, 1); break;
    default: FAKE_IB_COUNT(reads, 1); return;
  }
  FAKE_IB_COUNT(bytes_sent, work->bytes);
}

static void end_send(fake_ib_qp *qp, int status) {
  const fake_ib_work *work = &qp->sends[qp->done % qp->cap.max_send_wr];
  if (!status) {
    count_send(work);
    if (work->opcode != IBV_WR_RDMA_READ && fake_ib_sum(qp, work) != work->sum)
      fake_ib_misuse(
          "work request %#llx: what it sends was changed before it "
          "was completed",
          (unsigned long long)work->id);
  }
  fake_ib_use(qp, work, -1);
  qp->done++;
  if (!status && !qp->sig_all && !(work->flags & IBV_SEND_SIGNALED)) return;
  fake_ib_done done = {.qp = qp, .frees = qp->done};
  done.wc.wr_id = work->id;
  done.wc.status = (enum ibv_wc_status)status;
  done.wc.opcode = (enum ibv_wc_opcode)wc_opcode(work);
  done.wc.byte_len = (uint32_t)work->bytes;
  done.wc.qp_num = qp->qp.qp_num;
  done.wc.vendor_err = status ? 0x80 + (uint32_t)status : 0;
  fake_ib_complete((fake_ib_cq *)qp->qp.send_cq, &done, false);
}

void fake_ib_send_ends(fake_ib_qp *qp, int status) {
  end_send(qp, status);
  if (status) fake_ib_break(qp);
}

static void end_receive(fake_ib_qp *qp, int status, const fake_ib_head *head) {
  const fake_ib_work *work =
      &qp->receives[qp->received++ % qp->cap.max_recv_wr];
  fake_ib_use(qp, work, -1);
  fake_ib_done done = {.qp = qp};
  done.wc.wr_id = work->id;
  done.wc.status = (enum ibv_wc_status)status;
  done.wc.qp_num = qp->qp.qp_num;
  done.wc.src_qp = qp->attr.dest_qp_num;
  done.wc.vendor_err = status ? 0x80 + (uint32_t)status : 0;
  if (head) {
    done.wc.opcode =
        head->kind == FAKE_IB_WRITE ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
    done.wc.byte_len = (uint32_t)head->bytes;
    done.wc.wc_flags = head->has_imm ? IBV_WC_WITH_IMM : 0;
    done.wc.imm_data = head->imm;
    FAKE_IB_COUNT(receives, 1);
  }
  fake_ib_complete((fake_ib_cq *)qp->qp.recv_cq, &done,
                   head && head->solicited);
}

void fake_ib_receive_ends(fake_ib_qp *qp, int status,
                          const fake_ib_head *head) {
  end_receive(qp, status, head);
  if (status) fake_ib_break(qp);
}

void fake_ib_break(fake_ib_qp *qp) {
  qp->qp.state = IBV_QPS_ERR;
  while (qp->done < qp->posted) end_send(qp, IBV_WC_WR_FLUSH_ERR);
  qp->sent = qp->acked = qp->done;
  while (qp->received < qp->received_posted)
    end_receive(qp, IBV_WC_WR_FLUSH_ERR, NULL);
  fake_ib_hang_up(qp);
}

/* --- posting
 * ------------------------------------------------------------------------ */

static bool is_known(int opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM ||
         opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM ||
         opcode == IBV_WR_RDMA_READ;
}

static int read_send(fake_ib_qp *qp, const struct ibv_send_wr *wr,
                     fake_ib_work *work) {
  if (!is_known((int)wr->opcode) || wr->num_sge < 0 ||
      wr->num_sge > (int)qp->cap.max_send_sge)
    return EINVAL;
  work->id = wr->wr_id;
  work->opcode = (int)wr->opcode;
  work->flags = (unsigned)wr->send_flags;
  work->imm = wr->imm_data;
  work->remote = wr->wr.rdma.remote_addr;
  work->rkey = wr->wr.rdma.rkey;
  work->sges_count = wr->num_sge;
  for (int i = 0; i < wr->num_sge; i++) {
    work->sges[i] = wr->sg_list[i];
    work->bytes += wr->sg_list[i].length;
  }
  if (work->bytes > FAKE_IB_MESSAGE_MOST) return EINVAL;
  if (!(work->flags & IBV_SEND_INLINE)) return 0;
  return work->opcode == IBV_WR_RDMA_READ ||
                 work->bytes > qp->cap.max_inline_data
             ? EINVAL
             : 0;
}

static void take_inline(fake_ib_qp *qp, fake_ib_work *work) {
  char *to = qp->inline_memory +
             (qp->posted % qp->cap.max_send_wr) * qp->cap.max_inline_data;
  work->inlined = to;
  for (int i = 0; i < work->sges_count; i++) {
    memcpy(to, (const void *)(uintptr_t)work->sges[i].addr,
           work->sges[i].length);
    to += work->sges[i].length;
  }
  FAKE_IB_COUNT(inlined, 1);
}

static int post_one_send(fake_ib_qp *qp, const struct ibv_send_wr *wr) {
  fake_ib_work work = {0};
  int error = fake_ib_fails("ibv_post_send");
  if (error) return error;
  if (qp->qp.state != IBV_QPS_RTS && qp->qp.state != IBV_QPS_ERR) return EINVAL;
  if (qp->posted - qp->freed >= qp->cap.max_send_wr) return ENOMEM;
  error = read_send(qp, wr, &work);
  if (error) return error;
  if (work.flags & IBV_SEND_INLINE) take_inline(qp, &work);
  if (work.flags & IBV_SEND_SIGNALED) FAKE_IB_COUNT(signalled, 1);
  fake_ib_use(qp, &work, 1);
  if (work.opcode != IBV_WR_RDMA_READ) work.sum = fake_ib_sum(qp, &work);
  qp->sends[qp->posted++ % qp->cap.max_send_wr] = work;
  if (qp->qp.state == IBV_QPS_ERR) fake_ib_break(qp);
  return 0;
}

int fake_ib_post_send(struct ibv_qp *ibv_qp, struct ibv_send_wr *wr,
                      struct ibv_send_wr **bad) {
  fake_ib_qp *qp = (fake_ib_qp *)ibv_qp;
  fake_ib_context *c = fake_ib_of(ibv_qp->context);
  int error = 0;
  pthread_mutex_lock(&c->lock);
  for (; wr && !error; wr = error ? wr : wr->next) {
    error = post_one_send(qp, wr);
    if (error) *bad = wr;
  }
  fake_ib_send_some(qp);
  fake_ib_wake(c);
  pthread_mutex_unlock(&c->lock);
  return error;
}

static int post_one_receive(fake_ib_qp *qp, const struct ibv_recv_wr *wr) {
  int error = fake_ib_fails("ibv_post_recv");
  if (error) return error;
  if (qp->qp.state == IBV_QPS_RESET || wr->num_sge < 0 ||
      wr->num_sge > (int)qp->cap.max_recv_sge)
    return EINVAL;
  if (qp->received_posted - qp->received >= qp->cap.max_recv_wr) return ENOMEM;
  fake_ib_work work = {.id = wr->wr_id, .sges_count = wr->num_sge};
  for (int i = 0; i < wr->num_sge; i++) {
    work.sges[i] = wr->sg_list[i];
    work.bytes += wr->sg_list[i].length;
  }
  fake_ib_use(qp, &work, 1);
  qp->receives[qp->received_posted++ % qp->cap.max_recv_wr] = work;
  if (qp->qp.state == IBV_QPS_ERR) fake_ib_break(qp);
  return 0;
}

int fake_ib_post_recv(struct ibv_qp *ibv_qp, struct ibv_recv_wr *wr,
                      struct ibv_recv_wr **bad) {
  fake_ib_qp *qp = (fake_ib_qp *)ibv_qp;
  fake_ib_context *c = fake_ib_of(ibv_qp->context);
  int error = 0;
  pthread_mutex_lock(&c->lock);
  for (; wr && !error; wr = error ? wr : wr->next) {
    error = post_one_receive(qp, wr);
    if (error) *bad = wr;
  }
  if (qp->in.rnr_since) fake_ib_wake(c);
  pthread_mutex_unlock(&c->lock);
  return error;
}
