#include "p2p/p2p.h"

#include "base/log.h"
#include "base/memory.h"
#include "p2p/mesh.h"
#include "p2p/state.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum {
  SLICE_MS = 100, /* hooks and deadlines are looked at this often */
  CLOSE_MS = 1000,
  ASK_ALL_MAX = 2 /* network links that are tried without asking epoll */
};

/* ---- the lock ---- */

void gbi_p2p_lock(gbi_p2p *p) {
  atomic_fetch_add_explicit(&p->knocks, 1, memory_order_relaxed);
  pthread_mutex_lock(&p->lock);
  atomic_fetch_sub_explicit(&p->knocks, 1, memory_order_relaxed);
}

/* A driver that is busy would else have the lock for itself. */
static void let_others_in(const gbi_p2p *p) {
  if (atomic_load_explicit(&p->knocks, memory_order_relaxed)) sched_yield();
}

void gbi_p2p_unlock(gbi_p2p *p) {
  gbi_p2p_call *call = p->finished;
  bool ring = p->ring_meshes, tell = p->has_cause && !p->cause_told;
  p->finished = NULL;
  p->finished_end = &p->finished;
  p->ring_meshes = false;
  p->cause_told |= tell;
  pthread_mutex_unlock(&p->lock);
  if (ring)
    gbi_hostarea_ring(p->params.area, gbi_hostarea_me(p->params.area));
  if (tell) gbi_control_abort(p->params.control, &p->cause);
  while (call) {
    gbi_p2p_call *next = call->next;
    call->done(call);
    call = next;
  }
}

void gbi_p2p_wake_driver(gbi_p2p *p) {
  if (p->role != GBI_ROLE_FREE)
    gbi_hostarea_ring_lane(p->params.area, gbi_hostarea_me(p->params.area), 1);
}

void gbi_p2p_release_role(gbi_p2p *p) {
  p->role = GBI_ROLE_FREE;
  p->driver = NULL;
  if (p->asyncs || p->sleepers) pthread_cond_broadcast(&p->changed);
  if (p->mesh_calls) p->ring_meshes = true;
}

/* ---- ends ---- */

static void count_up(_Atomic uint64_t *counter, uint64_t by) {
  atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

static void end_call(gbi_p2p *p, gbi_p2p_call *call, gb_status status) {
  if (call->done) {
    p->asyncs--;
    call->next = NULL;
    *p->finished_end = call;
    p->finished_end = &call->next;
  } else if (call->mesh) {
    p->mesh_calls--;
    if (call->mesh != p->driver) p->ring_meshes = true;
  } else if (p->sleepers) {
    pthread_cond_broadcast(&p->changed);
  }
  /* From here on its owner may take its memory back. */
  atomic_store_explicit(&call->status, status, memory_order_release);
}

void gbi_p2p_finish(gbi_p2p *p, gbi_p2p_op *op, gb_status status) {
  gbi_p2p_call *call = op->owner;
  gbi_p2p_unlink(op);
  op->phase = GBI_OP_ENDED;
  if (op->all_prev)
    op->all_prev->all_next = op->all_next;
  else
    p->all = op->all_next;
  if (op->all_next) op->all_next->all_prev = op->all_prev;
  if (status == GB_OK) {
    count_up(op->is_send ? &p->sent : &p->received, 1);
    count_up(op->is_send ? &p->bytes_sent : &p->bytes_received, op->bytes);
  }
  if (--call->left == 0) end_call(p, call, status);
}

void gbi_p2p_set_cause(gbi_p2p *p, const gb_error *cause) {
  if (p->has_cause || p->failed || p->stopping) return;
  p->has_cause = true;
  p->cause = *cause;
  pthread_cond_broadcast(&p->changed);
}

void gbi_p2p_end_all(gbi_p2p *p, const gb_error *why) {
  if (p->failed) return;
  p->failed = true;
  p->failure = *why;
  for (int r = 0; r < p->params.world; r++) {
    gbi_p2p_link *l = p->links[r];
    if (!l || !l->transport) continue;
    l->transport->ops->stop(l->transport);
    if (l->state == GBI_LINK_UP) l->transport->ops->progress(l->transport);
  }
  while (p->all) {
    gbi_p2p_op *op = p->all;
    gbi_p2p_finish(p, op, why->status);
  }
  pthread_cond_broadcast(&p->changed);
}

gb_status gbi_p2p_error(gbi_p2p *p, gb_error *error) {
  gbi_p2p_lock(p);
  gb_status status = p->failed ? p->failure.status : GB_OK;
  if (p->failed && error) *error = p->failure;
  gbi_p2p_unlock(p);
  return status;
}

/* ---- driving ---- */

static void ask_epoll(gbi_p2p *p) {
  struct epoll_event events[64];
  int n = epoll_wait(p->epoll_fd, events, GBI_COUNT(events), 0);
  for (int i = 0; i < n; i++) {
    gbi_p2p_link *l = events[i].data.ptr;
    l->hot = true;
  }
}

unsigned gbi_p2p_pass(gbi_p2p *p) {
  gb_error error;
  if (p->failed) return 0;
  if (gbi_control_failed(p->params.control, &error)) {
    gbi_p2p_end_all(p, &error);
    return 1;
  }
  bool all = p->network_count <= ASK_ALL_MAX;
  if (!all) ask_epoll(p);
  unsigned did = 0;
  for (gbi_p2p_link *l = p->up; l; l = l->next_up)
    if (l->state == GBI_LINK_UP && (all || l->hot || !l->network))
      did += gbi_p2p_progress_link(l);
  return did;
}

static void fail_late(const gbi_p2p *p, const gbi_p2p_op *op,
                      gb_error *error) {
  char text[700];
  gbi_p2p_op_text(p, op, text, sizeof text);
  gbi_fail_rank(error, GB_ERR_TIMEOUT, p->params.rank,
                "%s did not end within %.4g s: %s", text,
                (double)op->owner->timeout_ms / 1000.0,
                p->params.who[p->params.rank]);
}

/* Nothing moves: deadlines, and links whose peer has left. A mesh's calls are
 * its engine's to look after. */
void gbi_p2p_look_around(gbi_p2p *p) {
  uint64_t now = gbi_now_ns();
  gb_error error;
  if (p->failed || p->has_cause || now < p->next_look_ns) return;
  p->next_look_ns = now + SLICE_MS * GBI_NS_PER_MS;
  const gbi_p2p_op *late = NULL;
  for (const gbi_p2p_op *op = p->all; op; op = op->all_next)
    if (op->owner->deadline_ns <= now) late = op; /* the oldest of them */
  if (late) {
    fail_late(p, late, &error);
    gbi_p2p_set_cause(p, &error);
  }
  for (int r = 0; r < p->params.world; r++) {
    gbi_p2p_link *l = p->links[r];
    if (!l) continue;
    l->hot = true; /* transports look for silent peers now and then */
    if (l->left_ns) gbi_p2p_judge(l);
  }
}

static void sleep_for_work(gbi_p2p *p, uint32_t seen, bool network) {
  struct pollfd fd = {p->epoll_fd, POLLIN, 0};
  gbi_waiter_sleep(p->waiter, seen, network ? &fd : NULL, network, SLICE_MS);
}

/* The wait hook of a caller, about ten times a second. */
typedef struct hook {
  int (*fn)(void *arg);
  void *arg;
  uint64_t next_ns;
  bool said_stop;
} hook;

/* Without lock. */
static bool wants_to_stop(hook *h) {
  if (!h || !h->fn || h->said_stop) return false;
  uint64_t now = gbi_now_ns();
  bool first = !h->next_ns;
  if (now < h->next_ns) return false;
  h->next_ns = now + SLICE_MS * GBI_NS_PER_MS;
  if (first) return false;
  h->said_stop = h->fn(h->arg) != 0;
  return h->said_stop;
}

/* Under lock. */
static void interrupt(gbi_p2p *p, const gbi_p2p_call *call) {
  char text[700];
  gb_error error;
  if (atomic_load(&call->status) != GB_ERR_BUSY) return;
  gbi_p2p_op_text(p, &call->ops[0], text, sizeof text);
  gbi_fail_rank(&error, GB_ERR_INTERRUPTED, p->params.rank,
                "%s was interrupted by its user in %s",
                p->params.who[p->params.rank], text);
  gbi_p2p_set_cause(p, &error);
}

static bool is_done(const gbi_p2p_call *call) {
  return atomic_load_explicit(&call->status, memory_order_acquire) !=
         GB_ERR_BUSY;
}

/* Whether this thread should go on driving. */
static bool drives_on(const gbi_p2p *p, const gbi_p2p_call *call,
                      gbi_p2p_role role) {
  if (call) return !is_done(call) && p->role == role;
  return p->asyncs && !p->stopping && p->role == role;
}

/* Drives with lock held on entry and exit, until `call` is done (NULL: no async
 * call is left) or another thread took the role. */
static void drive(gbi_p2p *p, gbi_p2p_call *call, gbi_p2p_role role,
                  hook *h) {
  gbi_yields yields = {0};
  while (drives_on(p, call, role)) {
    uint32_t seen = gbi_bell_look(p->waiter);
    unsigned did = gbi_p2p_pass(p);
    bool go_on = drives_on(p, call, role);
    if (!did && go_on) gbi_p2p_look_around(p);
    bool network = p->network_count > 0;
    gbi_p2p_unlock(p);
    if (did) {
      yields.count = 0;
      let_others_in(p);
    } else if (go_on && !gbi_yield_core(&p->crowd, &yields)) {
      if (wants_to_stop(h)) {
        gbi_p2p_lock(p);
        interrupt(p, call);
        gbi_p2p_unlock(p);
      }
      sleep_for_work(p, seen, network);
    }
    gbi_p2p_lock(p);
  }
}

static void wait_changed(gbi_p2p *p) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += SLICE_MS * 1000000L;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  p->sleepers++;
  pthread_cond_timedwait(&p->changed, &p->lock, &until);
  p->sleepers--;
}

gb_status gbi_p2p_wait(gbi_p2p *p, gbi_p2p_call *call, int (*fn)(void *),
                       void *arg, gb_error *error) {
  hook h = {.fn = fn, .arg = arg};
  if (is_done(call) && atomic_load(&call->status) == GB_OK) return GB_OK;
  gbi_p2p_lock(p);
  while (!is_done(call)) {
    if (p->role != GBI_ROLE_WAITER) {
      /* The others notice that the role is gone when they wake. */
      p->role = GBI_ROLE_WAITER;
      p->driver = NULL;
      drive(p, call, GBI_ROLE_WAITER, &h);
      gbi_p2p_release_role(p);
      continue;
    }
    wait_changed(p);
    gbi_p2p_unlock(p);
    bool stop = wants_to_stop(&h);
    gbi_p2p_lock(p);
    if (stop) interrupt(p, call);
  }
  gb_status status = (gb_status)atomic_load(&call->status);
  if (status != GB_OK && h.said_stop) status = GB_ERR_INTERRUPTED;
  if (status != GB_OK && error) {
    *error = p->failure;
    error->status = status;
  }
  gbi_p2p_unlock(p);
  return status;
}

/* ---- gb-p2p ---- */

static void *thread_main(void *arg) {
  gbi_p2p *p = arg;
  prctl(PR_SET_NAME, "gb-p2p");
  gbi_p2p_lock(p);
  while (!p->stopping) {
    if (p->asyncs && p->role == GBI_ROLE_FREE) {
      p->role = GBI_ROLE_THREAD;
      drive(p, NULL, GBI_ROLE_THREAD, NULL);
      if (p->role == GBI_ROLE_THREAD) gbi_p2p_release_role(p);
      gbi_p2p_unlock(p);
      gbi_p2p_lock(p);
    } else {
      pthread_cond_wait(&p->changed, &p->lock);
    }
  }
  gbi_p2p_unlock(p);
  return NULL;
}

static gb_status need_thread(gbi_p2p *p, gb_error *error) {
  if (p->thread_runs) return GB_OK;
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int code = GBI_FAULT("thread.start") == GBI_FAULT_FAIL
                 ? EAGAIN
                 : pthread_create(&p->thread, NULL, thread_main, p);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (code)
    return gbi_fail(error, GB_ERR_SYSTEM,
                    "could not start the thread for async messages: %s",
                    strerror(code));
  p->thread_runs = true;
  return GB_OK;
}

/* ---- starting ---- */

static gb_status refusal(gbi_p2p *p, gb_error *error) {
  gb_error cause;
  bool failed = p->failed;
  if (failed)
    cause = p->failure;
  else
    failed = gbi_control_failed(p->params.control, &cause);
  if (p->closing)
    return gbi_fail(error, GB_ERR_STATE, "the job is being closed");
  if (failed)
    return gbi_fail_rank(error, GB_ERR_ABORTED, cause.rank,
                         "%.1900s. The job has failed and refuses calls: close "
                         "it and open a new one",
                         cause.text);
  return GB_OK;
}

static void start_op(gbi_p2p *p, gbi_p2p_call *call, gbi_p2p_op *op) {
  gbi_p2p_link *l = op->peer >= 0 ? p->links[op->peer] : NULL;
  op->owner = call;
  op->bytes = op->count * gb_dtype_bytes(op->dtype);
  op->source = -1;
  op->list = NULL;
  op->link = l;
  op->all_prev = NULL;
  op->all_next = p->all;
  if (p->all) p->all->all_prev = op;
  p->all = op;
  if (!op->is_send) {
    gbi_p2p_post_receive(p, op);
  } else {
    op->phase = GBI_OP_QUEUED;
    gbi_p2p_push(&l->queue, op);
    gbi_p2p_pump(l);
  }
}

static bool needs_driver(const gbi_p2p_link *l) {
  return l->network && (l->sending.first || l->receiving.first);
}

gb_status gbi_p2p_start(gbi_p2p *p, gbi_p2p_call *call, gb_error *error) {
  gbi_p2p_lock(p);
  gb_status status = refusal(p, error);
  if (status == GB_OK && call->done) status = need_thread(p, error);
  for (int i = 0; i < call->count && status == GB_OK; i++) {
    int peer = call->ops[i].peer;
    gb_error why;
    if (peer >= 0 && !gbi_p2p_need_link(p, peer, &why)) {
      status = why.status;
      if (error) *error = why;
    }
  }
  if (status == GB_OK) {
    int count = call->count;
    bool wake = false;
    call->left = count + 1; /* one for this loop: it is not to end inside */
    call->deadline_ns =
        call->mesh ? GBI_NEVER : gbi_deadline_after_ms(call->timeout_ms);
    atomic_store_explicit(&call->status, GB_ERR_BUSY, memory_order_relaxed);
    if (call->done) p->asyncs++;
    if (call->mesh) p->mesh_calls++;
    for (int i = 0; i < count; i++) {
      start_op(p, call, &call->ops[i]);
      gbi_p2p_link *l = call->ops[i].link;
      if (!l) continue;
      if (l->state == GBI_LINK_BROKEN || l->bye || l->left_ns)
        gbi_p2p_judge(l);
      wake |= needs_driver(l);
    }
    if (--call->left == 0) end_call(p, call, GB_OK);
    else if (call->done && p->role == GBI_ROLE_FREE)
      pthread_cond_broadcast(&p->changed);
    if (wake) gbi_p2p_wake_driver(p);
  }
  gbi_p2p_unlock(p);
  return status;
}

void gbi_p2p_on_failure(gbi_p2p *p) {
  gbi_p2p_lock(p);
  gbi_p2p_wake_driver(p);
  pthread_cond_broadcast(&p->changed);
  for (int r = 0; r < p->params.world; r++) {
    gbi_p2p_link *l = p->links[r];
    if (l && l->transport && l->state == GBI_LINK_SETUP)
      l->transport->ops->stop(l->transport);
  }
  gbi_p2p_unlock(p);
}

/* ---- open and close ---- */

static gb_status make_parts(gbi_p2p *p, gb_error *error) {
  size_t world = (size_t)p->params.world;
  p->members = gbi_malloc(world * sizeof *p->members);
  p->links = gbi_calloc(world, sizeof *p->links);
  if (!p->members || !p->links)
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for messages");
  memcpy(p->members, p->params.members, world * sizeof *p->members);
  p->params.members = p->members;
  p->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (p->epoll_fd < 0)
    return gbi_fail(error, GB_ERR_SYSTEM,
                    "could not set up waiting for messages: %s",
                    strerror(errno));
  return GB_OK;
}

gb_status gbi_p2p_open(const gbi_p2p_params *params, gbi_p2p **p2p_p,
                       gb_error *error) {
  gbi_p2p *p = gbi_calloc(1, sizeof *p);
  if (!p) return gbi_fail(error, GB_ERR_MEMORY, "no memory for messages");
  p->params = *params;
  p->epoll_fd = -1;
  p->finished_end = &p->finished;
  p->waiter = gbi_hostarea_lane_waiter(params->area, 1);
  uint64_t share = GBI_P2P_WINDOWS / (uint64_t)params->world;
  p->window = GBI_MIN(share, (uint64_t)GBI_P2P_WINDOW);
  p->window = GBI_MAX(p->window, gbi_p2p_eager_cost(GBI_P2P_EAGER));
  pthread_mutex_init(&p->lock, NULL);
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&p->changed, &attributes);
  pthread_condattr_destroy(&attributes);
  gb_status status = make_parts(p, error);
  if (status != GB_OK) {
    gbi_p2p_free(p);
    return status;
  }
  *p2p_p = p;
  return GB_OK;
}

/* Whether anything this rank has sent is still to leave it. */
static bool has_sends(const gbi_p2p *p) {
  for (const gbi_p2p_op *op = p->all; op; op = op->all_next)
    if (op->is_send) return true;
  return false;
}

static bool has_byes(const gbi_p2p *p) {
  for (const gbi_p2p_link *l = p->up; l; l = l->next_up)
    if (l->state == GBI_LINK_UP && l->bye_head.xfer.status == GB_ERR_BUSY)
      return true;
  return false;
}

/* Drives until `more` says no, at most until the deadline. Under lock. */
static void drive_out(gbi_p2p *p, bool (*more)(const gbi_p2p *p),
                      uint64_t deadline_ns) {
  while (!p->failed && more(p) && !gbi_deadline_passed(deadline_ns)) {
    uint32_t seen = gbi_bell_look(p->waiter);
    unsigned did = gbi_p2p_pass(p);
    bool network = p->network_count > 0;
    if (!did) gbi_p2p_look_around(p);
    gbi_p2p_unlock(p);
    if (!did) {
      struct pollfd fd = {p->epoll_fd, POLLIN, 0};
      int left = gbi_deadline_left_ms(deadline_ns, SLICE_MS);
      gbi_waiter_sleep(p->waiter, seen, network ? &fd : NULL, network, left);
    }
    gbi_p2p_lock(p);
  }
}

/* What was sent leaves; the others hear that this rank does too. What they sent
 * is read, so that closing a socket does not destroy what they have yet to
 * read of it. */
static void part(gbi_p2p *p) {
  uint64_t deadline_ns = gbi_deadline_after_ms(CLOSE_MS);
  drive_out(p, has_sends, deadline_ns);
  for (gbi_p2p_link *l = p->up; l && !p->failed; l = l->next_up)
    if (l->state == GBI_LINK_UP) gbi_p2p_say_bye(l);
  drive_out(p, has_byes, deadline_ns);
  for (int i = 0; i < 100 && !p->failed && gbi_p2p_pass(p); i++) {
  }
}

static void join_threads(gbi_p2p *p) {
  if (p->thread_runs) pthread_join(p->thread, NULL);
  p->thread_runs = false;
  for (int r = 0; r < p->params.world; r++) {
    gbi_p2p_link *l = p->links[r];
    if (l && l->thread_runs) pthread_join(l->thread, NULL);
    if (l) l->thread_runs = false;
  }
}

void gbi_p2p_stop(gbi_p2p *p) {
  if (!p) return;
  gb_error why;
  gbi_p2p_lock(p);
  p->closing = true;
  p->role = GBI_ROLE_WAITER; /* nobody else drives from here on */
  if (!p->failed) part(p);
  p->stopping = true;
  gbi_fail(&why, GB_ERR_CANCELED, "the job was closed before this ended");
  gbi_p2p_end_all(p, &why);
  for (int r = 0; r < p->params.world; r++) {
    gbi_p2p_link *l = p->links[r];
    if (l && l->transport) l->transport->ops->stop(l->transport);
  }
  pthread_cond_broadcast(&p->changed);
  gbi_p2p_unlock(p);
  join_threads(p);
  for (int r = 0; r < p->params.world; r++) {
    /* gb-control may still look for something to stop. */
    gbi_p2p_lock(p);
    gbi_p2p_link *l = p->links[r];
    gbi_transport *transport = l ? l->transport : NULL;
    if (l) l->transport = NULL;
    gbi_p2p_unlock(p);
    if (transport) transport->ops->close(transport);
  }
}

void gbi_p2p_free(gbi_p2p *p) {
  if (!p) return;
  gbi_p2p_free_messages(p);
  for (int r = 0; p->links && r < p->params.world; r++)
    gbi_p2p_free_link(p->links[r]);
  if (p->epoll_fd >= 0) close(p->epoll_fd);
  pthread_cond_destroy(&p->changed);
  pthread_mutex_destroy(&p->lock);
  free(p->links);
  free(p->members);
  free(p);
}

/* ---- texts ---- */

void gbi_p2p_op_text(const gbi_p2p *p, const gbi_p2p_op *op, char *buffer,
                     size_t bytes) {
  gbi_text text;
  gbi_text_init(&text, buffer, bytes);
  gbi_text_add(&text, "%s of %zu %s %s %s", op->is_send ? "send" : "recv",
               op->count, gb_dtype_name(op->dtype),
               op->is_send ? "to" : "from",
               op->peer < 0 ? "any rank" : p->params.who[op->peer]);
  if (op->class == GBI_P2P_USER) {
    gbi_text_add(&text, " with tag %" PRIu64 " in group %u", op->tag,
                 op->group);
  } else {
    char call[160];
    gbi_call_text(&op->call, call, sizeof call);
    gbi_text_add(&text, " for %s", call);
  }
}

void gbi_p2p_describe(gbi_p2p *p, gbi_fact_fn fn, void *arg) {
  gbi_p2p_lock(p);
  int links = p->up_count;
  gbi_p2p_unlock(p);
  const struct {
    const char *name;
    uint64_t value;
  } facts[] = {
      {"links", (uint64_t)links},
      {"bytes_sent", atomic_load(&p->bytes_sent)},
      {"bytes_received", atomic_load(&p->bytes_received)},
      {"messages_sent", atomic_load(&p->sent)},
      {"messages_received", atomic_load(&p->received)},
  };
  for (size_t i = 0; i < GBI_COUNT(facts); i++) {
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, facts[i].value);
    fn(arg, facts[i].name, text);
  }
}
