/* The fake libibverbs: completion queues and their channels. */
#include "fakes/ibverbs_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) {
  fake_ib_context *c = fake_ib_of(context);
  if (fake_ib_fails("ibv_create_comp_channel")) return NULL;
  fake_ib_channel *channel = calloc(1, sizeof *channel);
  if (!channel) return NULL;
  channel->channel.context = context;
  channel->channel.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  if (channel->channel.fd < 0) {
    free(channel);
    return NULL;
  }
  pthread_mutex_lock(&c->lock);
  c->objects++;
  pthread_mutex_unlock(&c->lock);
  FAKE_IB_LIVE(CHANNELS, 1);
  return &channel->channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *ibv_channel) {
  fake_ib_channel *channel = (fake_ib_channel *)ibv_channel;
  fake_ib_context *c = fake_ib_of(ibv_channel->context);
  pthread_mutex_lock(&c->lock);
  bool used = channel->cqs > 0;
  if (!used) c->objects--;
  pthread_mutex_unlock(&c->lock);
  if (used) return EBUSY;
  close(ibv_channel->fd);
  free(channel);
  FAKE_IB_LIVE(CHANNELS, -1);
  return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe,
                             void *cq_context, struct ibv_comp_channel *channel,
                             int vector) {
  fake_ib_context *c = fake_ib_of(context);
  if (fake_ib_fails("ibv_create_cq")) return NULL;
  if (cqe < 1 || cqe > c->device->cqe_most || vector != 0) {
    errno = EINVAL;
    return NULL;
  }
  fake_ib_cq *cq = calloc(1, sizeof *cq);
  fake_ib_done *ring = calloc((size_t)cqe, sizeof *ring);
  if (!cq || !ring) {
    free(cq);
    free(ring);
    return NULL;
  }
  cq->ring = ring;
  cq->capacity = (uint32_t)cqe;
  cq->cq.context = context;
  cq->cq.channel = channel;
  cq->cq.cq_context = cq_context;
  cq->cq.cqe = cqe;
  pthread_mutex_lock(&c->lock);
  c->objects++;
  if (channel) ((fake_ib_channel *)channel)->cqs++;
  pthread_mutex_unlock(&c->lock);
  FAKE_IB_LIVE(CQS, 1);
  return &cq->cq;
}

static void leave_channel(fake_ib_cq *cq) {
  fake_ib_channel *channel = (fake_ib_channel *)cq->cq.channel;
  fake_ib_cq **at = &channel->first;
  while (*at && *at != cq) at = &(*at)->next;
  if (*at) *at = cq->next;
  channel->cqs--;
}

int ibv_destroy_cq(struct ibv_cq *ibv_cq) {
  fake_ib_cq *cq = (fake_ib_cq *)ibv_cq;
  fake_ib_context *c = fake_ib_of(ibv_cq->context);
  pthread_mutex_lock(&c->lock);
  if (cq->uses) {
    pthread_mutex_unlock(&c->lock);
    return EBUSY;
  }
  if (cq->unacked)
    fake_ib_misuse(
        "ibv_destroy_cq with %llu events that nobody acknowledged: "
        "it would wait for ever",
        (unsigned long long)cq->unacked);
  if (cq->cq.channel) leave_channel(cq);
  c->objects--;
  pthread_mutex_unlock(&c->lock);
  free(cq->ring);
  free(cq);
  FAKE_IB_LIVE(CQS, -1);
  return 0;
}

/* --- events
 * ------------------------------------------------------------------- */

static void tell_channel(fake_ib_cq *cq) {
  fake_ib_channel *channel = (fake_ib_channel *)cq->cq.channel;
  uint64_t one = 1;
  if (!channel) return;
  FAKE_IB_COUNT(events, 1);
  if (cq->events++ == 0) {
    fake_ib_cq **at = &channel->first;
    while (*at) at = &(*at)->next;
    cq->next = NULL;
    *at = cq;
  }
  if (write(channel->channel.fd, &one, sizeof one) < 0) return;
}

int ibv_get_cq_event(struct ibv_comp_channel *ibv_channel, struct ibv_cq **cq_p,
                     void **cq_context) {
  fake_ib_channel *channel = (fake_ib_channel *)ibv_channel;
  fake_ib_context *c = fake_ib_of(ibv_channel->context);
  for (;;) {
    uint64_t one;
    if (read(ibv_channel->fd, &one, sizeof one) != sizeof one) return -1;
    pthread_mutex_lock(&c->lock);
    fake_ib_cq *cq = channel->first;
    if (cq) {
      cq->unacked++;
      if (--cq->events == 0) channel->first = cq->next;
      *cq_p = &cq->cq;
      *cq_context = cq->cq.cq_context;
    }
    pthread_mutex_unlock(&c->lock);
    if (cq) return 0; /* else it was destroyed meanwhile */
  }
}

void ibv_ack_cq_events(struct ibv_cq *ibv_cq, unsigned count) {
  fake_ib_cq *cq = (fake_ib_cq *)ibv_cq;
  fake_ib_context *c = fake_ib_of(ibv_cq->context);
  pthread_mutex_lock(&c->lock);
  if (count > cq->unacked)
    fake_ib_misuse("ibv_ack_cq_events of %u events, %llu were taken", count,
                   (unsigned long long)cq->unacked);
  cq->unacked -= count;
  pthread_mutex_unlock(&c->lock);
}

int fake_ib_req_notify(struct ibv_cq *ibv_cq, int solicited_only) {
  fake_ib_cq *cq = (fake_ib_cq *)ibv_cq;
  fake_ib_context *c = fake_ib_of(ibv_cq->context);
  int error = fake_ib_fails("ibv_req_notify_cq");
  if (error) return error;
  pthread_mutex_lock(&c->lock);
  int wanted = solicited_only ? FAKE_IB_SOLICITED : FAKE_IB_ANY;
  if (wanted > cq->armed) cq->armed = wanted;
  pthread_mutex_unlock(&c->lock);
  return 0;
}

/* --- completions
 * ---------------------------------------------------------------- */

void fake_ib_complete(fake_ib_cq *cq, const fake_ib_done *done,
                      bool solicited) {
  if (cq->count == cq->capacity)
    fake_ib_misuse("a completion queue of %u entries overflows", cq->capacity);
  cq->ring[(cq->head + cq->count++) % cq->capacity] = *done;
  if (cq->armed == FAKE_IB_ANY ||
      (cq->armed == FAKE_IB_SOLICITED &&
       (solicited || done->wc.status != IBV_WC_SUCCESS))) {
    cq->armed = FAKE_IB_NOT_ARMED;
    tell_channel(cq);
  }
}

void fake_ib_forget(fake_ib_cq *cq, const fake_ib_qp *qp) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < cq->count; i++) {
    fake_ib_done *done = &cq->ring[(cq->head + i) % cq->capacity];
    if (done->qp != qp) cq->ring[(cq->head + kept++) % cq->capacity] = *done;
  }
  cq->count = kept;
}

/* Only these can be read when it failed. */
static void make_noise(struct ibv_wc *wc) {
  struct ibv_wc kept = *wc;
  memset(wc, 0xdb, sizeof *wc);
  wc->wr_id = kept.wr_id;
  wc->status = kept.status;
  wc->qp_num = kept.qp_num;
  wc->vendor_err = kept.vendor_err;
}

int fake_ib_poll_cq(struct ibv_cq *ibv_cq, int most, struct ibv_wc *wcs) {
  fake_ib_cq *cq = (fake_ib_cq *)ibv_cq;
  fake_ib_context *c = fake_ib_of(ibv_cq->context);
  int count = 0;
  if (fake_ib_fails("ibv_poll_cq")) return -1;
  pthread_mutex_lock(&c->lock);
  while (count < most && cq->count) {
    const fake_ib_done *done = &cq->ring[cq->head];
    if (done->frees > done->qp->freed) done->qp->freed = done->frees;
    wcs[count] = done->wc;
    if (wcs[count].status != IBV_WC_SUCCESS) make_noise(&wcs[count]);
    count++;
    cq->head = (cq->head + 1) % cq->capacity;
    cq->count--;
  }
  pthread_mutex_unlock(&c->lock);
  return count;
}
