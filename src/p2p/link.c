/* How a pair of ranks gets its link. Whoever needs it first starts a thread
 * that opens a transport, offers its address to the other one and waits for the
 * other's offer; that offer, when it comes unasked, starts the same thread on
 * the other side. Then both connect. The threads wait for nothing but their own
 * pair, so no circle of ranks can stop them; both starting at once is the same
 * thing. */
#include "base/memory.h"
#include "p2p/state.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define PAIRS_GROUP UINT32_C(0xfffffffe)
#define LEFT_NS (1 * GBI_NS_PER_S)

/* ---- what can no longer happen ---- */

static bool is_on(const gbi_p2p_op *op, const gbi_p2p_link *l) {
  return op->peer == l->rank || op->link == l;
}

/* An op that waits for this peer in vain. After its BYE what it sent before
 * still comes. */
static const gbi_p2p_op *doomed(const gbi_p2p_link *l) {
  bool all = l->state == GBI_LINK_BROKEN ||
             (l->left_ns && gbi_now_ns() - l->left_ns > LEFT_NS);
  const gbi_p2p_op *oldest = NULL;
  if (!all && !l->bye) return NULL;
  for (const gbi_p2p_op *op = l->p2p->all; op; op = op->all_next)
    if (is_on(op, l) && (all || op->is_send || op->phase == GBI_OP_POSTED))
      oldest = op;
  return oldest;
}

static void fail_left(const gbi_p2p_link *l, const gbi_p2p_op *op,
                      gb_error *error) {
  const gbi_p2p_params *params = &l->p2p->params;
  char text[700];
  gbi_p2p_op_text(l->p2p, op, text, sizeof text);
  gbi_fail_rank(error, GB_ERR_PEER, l->rank,
                "%s left the job; rank %d waits for it in %s",
                params->who[l->rank], params->rank, text);
}

void gbi_p2p_judge(gbi_p2p_link *l) {
  gbi_p2p *p = l->p2p;
  if (p->failed || p->stopping) return;
  const gbi_p2p_op *op = doomed(l);
  if (!op) return;
  gb_error error = l->error;
  if (l->bye || l->left_ns) fail_left(l, op, &error);
  gbi_p2p_set_cause(p, &error);
}

/* ---- the thread ---- */

static gb_status open_transport(gbi_p2p_link *l, gbi_transport **transport_p,
                                gb_error *error) {
  const gbi_p2p_params *params = &l->p2p->params;
  int me = params->rank, low = GBI_MIN(me, l->rank);
  int high = GBI_MAX(me, l->rank);
  gbi_member members[2] = {params->members[low], params->members[high]};
  bool near = params->members[l->rank].local >= 0;
  gbi_transport_params t = {
      .members = members,
      .members_count = 2,
      .me = me == high,
      .area = params->area,
      .auth = params->auth,
      .group = PAIRS_GROUP,
      .comm = (uint32_t)low << 16 | (uint32_t)high,
      .store_host = params->store_host,
      .timeout_ms = params->timeout_ms,
      .lane = 1,
  };
  const gbi_transport_ops *ops = near ? &gbi_transport_shm : params->network;
  return ops->open(&t, transport_p, error);
}

/* Under lock. Whether setting up makes sense no more. */
static bool is_over(const gbi_p2p *p) {
  return p->stopping || p->failed ||
         gbi_control_failed(p->params.control, NULL);
}

static gb_status canceled(gb_error *error) {
  return gbi_fail(error, GB_ERR_CANCELED, "the job ended");
}

static gb_status gone(const gbi_p2p_link *l, gb_error *error) {
  const gbi_p2p_params *params = &l->p2p->params;
  int who = l->left_ns ? l->rank : 0;
  return gbi_fail_rank(error, GB_ERR_PEER, who,
                       "%s left the job before rank %d and rank %d had a link",
                       params->who[who], params->rank, l->rank);
}

/* Under lock, which it gives up while it sleeps. */
static gb_status await_offer(gbi_p2p_link *l, uint64_t deadline_ns,
                             gb_error *error) {
  gbi_p2p *p = l->p2p;
  while (!l->offered) {
    if (is_over(p)) return canceled(error);
    if (l->left_ns || p->alone) return gone(l, error);
    uint64_t now = gbi_now_ns();
    if (now >= deadline_ns)
      return gbi_fail_rank(error, GB_ERR_TIMEOUT, l->rank,
                           "rank %d did not answer in time", l->rank);
    uint64_t until = GBI_MIN(deadline_ns, now + GBI_NS_PER_S);
    struct timespec at = {(time_t)(until / GBI_NS_PER_S),
                          (long)(until % GBI_NS_PER_S)};
    pthread_cond_timedwait(&p->changed, &p->lock, &at);
  }
  return GB_OK;
}

static gb_status send_offer(gbi_p2p_link *l, gbi_writer *mine,
                            gb_error *error) {
  l->transport->ops->address(l->transport, mine);
  if (mine->bad)
    return gbi_fail(error, GB_ERR_INTERNAL, "an address is too long");
  gbi_control_offer(l->p2p->params.control, l->rank, mine->data, mine->used);
  return GB_OK;
}

static gb_status connect_link(gbi_p2p_link *l, const gbi_writer *mine,
                              uint64_t deadline_ns, gb_error *error) {
  gbi_reader addresses[2];
  bool above = l->rank > l->p2p->params.rank;
  gbi_reader_init(&addresses[!above], mine->data, mine->used);
  gbi_reader_init(&addresses[above], l->offer, l->offer_bytes);
  return l->transport->ops->connect(l->transport, addresses, deadline_ns,
                                    error);
}

static gb_status set_up(gbi_p2p_link *l, gb_error *error) {
  gbi_p2p *p = l->p2p;
  uint64_t deadline_ns = gbi_deadline_after_ms(p->params.timeout_ms);
  uint8_t raw[GBI_OFFER_MAX];
  gbi_writer mine;
  gbi_transport *transport;
  gbi_writer_init(&mine, raw, sizeof raw);
  GBI_TRY(open_transport(l, &transport, error));
  gbi_p2p_lock(p);
  l->transport = transport; /* from here it can be stopped */
  bool over = is_over(p);
  pthread_mutex_unlock(&p->lock);
  if (over) return canceled(error);
  GBI_TRY(send_offer(l, &mine, error));
  gbi_p2p_lock(p);
  gb_status status = await_offer(l, deadline_ns, error);
  pthread_mutex_unlock(&p->lock);
  GBI_TRY(status);
  return connect_link(l, &mine, deadline_ns, error);
}

/* Under lock. Setting up failed on this side; the peer waits for it, so the job
 * ends, unless the peer or the job is on its way out. */
static void refuse_link(gbi_p2p_link *l, gb_status status,
                        const gb_error *why) {
  gbi_p2p *p = l->p2p;
  l->state = GBI_LINK_BROKEN;
  l->error = *why;
  if (is_over(p)) return;
  if (!l->left_ns && !p->alone)
    gbi_fail_rank(&l->error, status, l->rank,
                  "the link between rank %d and rank %d could not be set up: "
                  "%.1800s",
                  p->params.rank, l->rank, why->text);
  if (l->left_ns || p->alone)
    gbi_p2p_judge(l);
  else
    gbi_p2p_set_cause(p, &l->error);
}

static void *link_main(void *arg) {
  gbi_p2p_link *l = arg;
  gbi_p2p *p = l->p2p;
  gb_error error;
  prctl(PR_SET_NAME, "gb-link");
  gb_status status = set_up(l, &error);
  gbi_p2p_lock(p);
  if (status == GB_OK && is_over(p)) status = canceled(&error);
  if (status == GB_OK)
    gbi_p2p_link_up(l);
  else
    refuse_link(l, status, &error);
  gbi_p2p_wake_driver(p);
  pthread_cond_broadcast(&p->changed);
  gbi_p2p_unlock(p);
  return NULL;
}

static gb_status start_thread(gbi_p2p_link *l, gb_error *error) {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int code = GBI_FAULT("thread.start") == GBI_FAULT_FAIL
                 ? EAGAIN
                 : pthread_create(&l->thread, NULL, link_main, l);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (code)
    return gbi_fail(error, GB_ERR_SYSTEM,
                    "could not start a thread to connect to rank %d: %s",
                    l->rank, strerror(code));
  l->thread_runs = true;
  return GB_OK;
}

gbi_p2p_link *gbi_p2p_need_link(gbi_p2p *p, int rank, gb_error *error) {
  gbi_p2p_link *l = p->links[rank];
  if (l) return l;
  l = gbi_calloc(1, sizeof *l);
  if (!l) {
    gbi_fail(error, GB_ERR_MEMORY, "no memory for a link to rank %d", rank);
    return NULL;
  }
  l->p2p = p;
  l->rank = rank;
  l->state = GBI_LINK_SETUP;
  if (start_thread(l, error) != GB_OK) {
    free(l);
    return NULL;
  }
  p->links[rank] = l;
  return l;
}

/* ---- the control plane's word ---- */

void gbi_p2p_on_offer(gbi_p2p *p, int from, const void *blob, size_t bytes) {
  gb_error error;
  uint8_t *copy = gbi_malloc(bytes + 1);
  gbi_p2p_lock(p);
  bool over = p->stopping || p->failed || from == p->params.rank;
  gbi_p2p_link *l = over ? NULL : gbi_p2p_need_link(p, from, &error);
  if (!over && (!l || !copy)) {
    if (l) gbi_fail(&error, GB_ERR_MEMORY, "no memory for an offer");
    gbi_p2p_set_cause(p, &error);
  } else if (l && !l->offered) {
    if (bytes) memcpy(copy, blob, bytes);
    l->offer = copy;
    l->offer_bytes = bytes;
    l->offered = true;
    copy = NULL;
    pthread_cond_broadcast(&p->changed);
  }
  gbi_p2p_unlock(p);
  free(copy);
}

void gbi_p2p_on_left(gbi_p2p *p, int rank) {
  gbi_p2p_lock(p);
  if (rank == 0) p->alone = true;
  gbi_p2p_link *l = p->links[rank];
  if (l && !l->left_ns) {
    l->left_ns = gbi_now_ns();
    gbi_p2p_judge(l);
  }
  pthread_cond_broadcast(&p->changed);
  gbi_p2p_unlock(p);
}

void gbi_p2p_free_link(gbi_p2p_link *l) {
  if (!l) return;
  while (l->arriving) {
    gbi_p2p_message *m = l->arriving;
    l->arriving = m->arriving_next;
    free(m);
  }
  free(l->offer);
  free(l);
}
