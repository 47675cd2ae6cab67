#include "control/control.h"

#include "base/fault.h"
#include "base/log.h"
#include "base/memory.h"
#include "control/state.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* How much longer than its own deadline a rank waits for rank 0's word, so that
 * all raise rank 0's sentence and not one of their own. */
#define GRACE_NS (2 * GBI_NS_PER_S)
#define SETTLE_NS (2 * GBI_NS_PER_S)
#define SETTLE_LINK_NS (2500 * GBI_NS_PER_MS) /* rank 0 holds it for 500 ms */
/* How long rank 0 stays to tell a refusal to ranks that have not come yet. */
#define LINGER_NS (10 * GBI_NS_PER_S)

/* ---- waiting ---- */

static uint64_t later(uint64_t deadline_ns, uint64_t by_ns) {
  return deadline_ns > GBI_NEVER - by_ns ? GBI_NEVER : deadline_ns + by_ns;
}

/* Sleeps until something changed, at most 100 ms. Under lock. */
static void wait_change(gbi_control *c, uint64_t deadline_ns) {
  uint64_t until = GBI_MIN(gbi_deadline_after_ms(100), deadline_ns);
  struct timespec at = {(time_t)(until / GBI_NS_PER_S),
                        (long)(until % GBI_NS_PER_S)};
  pthread_cond_timedwait(&c->changed, &c->lock, &at);
}

/* Under lock, which it gives up for the hook. INTERRUPTED ends the job for
 * everybody: this rank will not go on. */
static gb_status call_hook(gbi_control *c, gb_error *error) {
  const gbi_store_params *p = &c->params.store;
  if (!p->wait_hook) return GB_OK;
  pthread_mutex_unlock(&c->lock);
  int stop = p->wait_hook(p->wait_hook_arg);
  if (stop) {
    char who[GBI_WHO_TEXT];
    gb_error cause;
    gbi_fail_rank(&cause, GB_ERR_INTERRUPTED, c->rank,
                  "%s was interrupted while the job was set up",
                  gbi_who_text(c->rank, &c->who, who));
    gbi_control_abort(c, &cause);
    if (error) *error = cause;
  }
  pthread_mutex_lock(&c->lock);
  return stop ? GB_ERR_INTERRUPTED : GB_OK;
}

bool gbi_control_failed(const gbi_control *control, gb_error *error) {
  if (GBI_LIKELY(!atomic_load_explicit(&control->failed, memory_order_acquire)))
    return false;
  if (error) *error = control->failure;
  return true;
}

static gb_status failure(const gbi_control *c, gb_error *error) {
  if (error) *error = c->failure;
  return c->failure.status;
}

/* ---- open ---- */

static gb_status start_thread(gbi_control *c, gb_error *error) {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int code = GBI_FAULT("thread.start") == GBI_FAULT_FAIL
                 ? EAGAIN
                 : pthread_create(&c->thread, NULL, gbi_control_run, c);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (code)
    return gbi_fail(error, GB_ERR_SYSTEM, "could not start a thread: %s",
                    strerror(code));
  c->thread_runs = true;
  return GB_OK;
}

static gb_status watch_link(gbi_control *c, gb_error *error) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = &c->link_watch};
  c->link_events = EPOLLIN;
  if (epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, c->link.fd, &event))
    return gbi_fail(error, GB_ERR_SYSTEM, "could not watch a socket: %s",
                    strerror(errno));
  return GB_OK;
}

static void on_gathered(void *owner) {
  gbi_control *c = owner;
  pthread_mutex_lock(&c->lock);
  c->gathered = true;
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->lock);
}

/* Rank 0 talks to itself over a pair of sockets, so that all its own calls go
 * the way that everybody's go. */
static gb_status open_server(gbi_control *c, gbi_address *list, int *count_p,
                             gb_error *error) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair))
    return gbi_fail(error, GB_ERR_SYSTEM, "could not open a socket: %s",
                    strerror(errno));
  c->link.fd = pair[0];
  gbi_server_params params = {
      .world = c->world,
      .epoll_fd = c->epoll_fd,
      .own_fd = pair[1],
      .auth = &c->auth,
      .who = &c->who,
      .opened_ns = c->opened_ns,
      .deadline_ns = c->params.store.deadline_ns,
      .heartbeat_ns = c->heartbeat_ns,
      .report = c->params.report,
      .gathered = on_gathered,
      .arg = c->params.arg,
      .owner = c,
  };
  return gbi_server_open(&params, list, count_p, &c->server, error);
}

static gb_status open_rank0(gbi_control *c, gb_error *error) {
  gbi_address list[GBI_ADDRESSES_MAX];
  char chosen[200] = "";
  int count = 0;
  GBI_TRY(gbi_control_new_auth(c, error));
  if (c->world > 1)
    gbi_control_addresses(c, list, &count, chosen, sizeof chosen);
  GBI_TRY(open_server(c, list, &count, error));
  c->who0 = c->who;
  GBI_TRY(watch_link(c, error));
  GBI_TRY(start_thread(c, error));
  if (c->world > 1) GBI_TRY(gbi_control_publish(c, list, count, chosen, error));
  return GB_OK;
}

static gb_status open_other(gbi_control *c, gb_error *error) {
  GBI_TRY(gbi_control_join(c, error));
  GBI_TRY(watch_link(c, error));
  return start_thread(c, error);
}

static void close_store(gbi_control *c) {
  if (c->store) c->store->ops->close(c->store);
  c->store = NULL;
}

static gbi_control *new_control(const gbi_control_params *params) {
  gbi_control *c = gbi_calloc(1, sizeof *c);
  if (!c) return NULL;
  c->params = *params;
  c->rank = params->store.rank;
  c->world = params->store.world_size;
  c->opened_ns = gbi_now_ns();
  c->wake_watch.kind = GBI_WATCH_WAKE;
  c->link_watch.kind = GBI_WATCH_LINK;
  gbi_who_set(&c->who, params->hostname, params->vendor);
  gbi_channel_init(&c->link, -1,
                   (size_t)c->world * (GBI_BLOB_MAX + 1024) + 65536);
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&c->changed, &attributes);
  pthread_condattr_destroy(&attributes);
  pthread_mutex_init(&c->lock, NULL);
  c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return c;
}

static gb_status open_parts(gbi_control *c, gb_error *error) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = &c->wake_watch};
  if (c->epoll_fd < 0 || c->wake_fd < 0 ||
      epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, c->wake_fd, &event))
    return gbi_fail(error, GB_ERR_SYSTEM,
                    "could not open the control plane: %s", strerror(errno));
  gbi_control_read_settings(c);
  if (c->world == 1) {
    GBI_TRY(gbi_store_validate(&c->params.store, error));
  } else {
    GBI_TRY(gbi_store_open(&c->params.store, &c->store, error));
    snprintf(c->store_host, sizeof c->store_host, "%s", c->store->host);
  }
  if (c->rank == 0) return open_rank0(c, error);
  GBI_TRY(open_other(c, error));
  close_store(c); /* rank 0's server stays until all have come */
  return GB_OK;
}

gb_status gbi_control_open(const gbi_control_params *params,
                           gbi_control **control_p, gb_error *error) {
  int rank = params->store.rank, world = params->store.world_size;
  if (world < 1 || rank < 0 || rank >= world)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "rank %d of %d is out of range: 0 to %d are wanted", rank,
                    world, world - 1);
  gbi_control *c = new_control(params);
  if (!c)
    return gbi_fail(error, GB_ERR_MEMORY,
                    "out of memory for the control plane");
  gb_status status = open_parts(c, error);
  if (status != GB_OK) {
    gbi_control_close(c);
    return status;
  }
  *control_p = c;
  return GB_OK;
}

const gbi_auth *gbi_control_auth(const gbi_control *control) {
  return &control->auth;
}

const char *gbi_control_store_host(const gbi_control *control) {
  return control->store_host;
}

void gbi_blobs_free(gbi_blobs *blobs) {
  free(blobs->items);
  free(blobs->storage);
  *blobs = (gbi_blobs){NULL, 0, NULL};
}

/* ---- gathering ---- */

static gb_status send_record(gbi_control *c, const void *record, size_t bytes,
                             uint64_t deadline_ns, gb_error *error) {
  gbi_writer w;
  if (bytes > GBI_RECORD_MAX)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "this rank's record has %zu bytes, more than %d", bytes,
                    GBI_RECORD_MAX);
  gbi_writer_init_growing(&w);
  gbi_put_u32(&w, gbi_left_ms(deadline_ns));
  gbi_put_blob(&w, record, bytes);
  pthread_mutex_lock(&c->lock);
  gbi_control_push_locked(c, GBI_MSG_RECORD, &w);
  pthread_mutex_unlock(&c->lock);
  gbi_writer_fini(&w);
  return GB_OK;
}

/* Rank 0, all records here: on the calling thread, without lock. */
static void decide_and_tell(gbi_control *c, gbi_decide_fn decide, void *arg) {
  gb_error refusal = {.status = GB_OK, .rank = -1};
  gb_status status = GB_ERR_MEMORY;
  gbi_reader *records = gbi_calloc((size_t)c->world, sizeof *records);
  for (int r = 0; records && r < c->world; r++)
    gbi_server_record(c->server, r, &records[r]);
  if (records)
    status = decide ? decide(arg, records, c->world, &refusal) : GB_OK;
  else
    gbi_fail(&refusal, status, "out of memory for the ranks' records");
  free(records);
  refusal.status = status;
  if (status != GB_OK) {
    gbi_control_abort(c, &refusal);
    return;
  }
  pthread_mutex_lock(&c->lock);
  c->accept = true;
  gbi_control_wake(c);
  pthread_mutex_unlock(&c->lock);
}

/* Under lock. GB_OK: the verdict is there. */
static gb_status wait_verdict(gbi_control *c, gbi_decide_fn decide, void *arg,
                              uint64_t deadline_ns, gb_error *error) {
  uint64_t limit = later(deadline_ns, GRACE_NS);
  bool decided = false;
  while (!c->verdict) {
    if (atomic_load(&c->failed)) return failure(c, error);
    if (c->gathered && !decided) {
      decided = true;
      pthread_mutex_unlock(&c->lock);
      decide_and_tell(c, decide, arg);
      pthread_mutex_lock(&c->lock);
      continue;
    }
    if (c->link_down) {
      gbi_control_left_error_locked(c, NULL, error);
      return GB_ERR_PEER;
    }
    if (gbi_deadline_passed(limit))
      return gbi_fail_rank(error, GB_ERR_TIMEOUT, 0,
                           "rank 0 gave no verdict about the job in time");
    wait_change(c, limit);
    GBI_TRY(call_hook(c, error));
  }
  return GB_OK;
}

static gb_status parse_verdict(gbi_control *c, gbi_blobs *blobs,
                               gb_error *error) {
  gbi_reader r;
  gbi_who who;
  gbi_reader_init(&r, c->verdict_data, c->verdict_bytes);
  r.bad = gbi_decode_fault(c->verdict_data, c->verdict_bytes);
  gbi_reader *items = gbi_calloc((size_t)c->world, sizeof *items);
  if (!items)
    return gbi_fail(error, GB_ERR_MEMORY, "out of memory for the records");
  if (gbi_get_u32(&r) != (uint32_t)c->world) r.bad = true;
  for (int i = 0; !r.bad && i < c->world; i++) {
    size_t bytes = 0;
    gbi_get_who(&r, &who);
    const uint8_t *data = gbi_get_blob(&r, &bytes);
    gbi_reader_init(&items[i], data, bytes);
  }
  if (!gbi_reader_done(&r)) {
    free(items);
    return gbi_fail(error, GB_ERR_PROTOCOL, "rank 0's verdict is malformed");
  }
  *blobs = (gbi_blobs){items, c->world, c->verdict_data};
  c->verdict_data = NULL;
  return GB_OK;
}

/* Ranks that come after a refusal must learn it from somebody. A deadline that
 * passed has already cost everybody its whole time. */
static void linger(gbi_control *c, uint64_t deadline_ns) {
  uint64_t limit = GBI_MIN(deadline_ns, gbi_now_ns() + LINGER_NS);
  while (c->server && gbi_server_untold(c->server) > 0 &&
         !gbi_deadline_passed(limit)) {
    wait_change(c, limit);
    if (call_hook(c, NULL) != GB_OK) return;
  }
}

gb_status gbi_control_gather(gbi_control *c, const void *record, size_t bytes,
                             gbi_decide_fn decide, void *arg,
                             uint64_t deadline_ns, gbi_blobs *records_p,
                             gb_error *error) {
  GBI_TRY(send_record(c, record, bytes, deadline_ns, error));
  pthread_mutex_lock(&c->lock);
  gb_status status = wait_verdict(c, decide, arg, deadline_ns, error);
  if (status == GB_OK) status = parse_verdict(c, records_p, error);
  if (status != GB_OK && status != GB_ERR_TIMEOUT &&
      status != GB_ERR_INTERRUPTED)
    linger(c, deadline_ns);
  pthread_mutex_unlock(&c->lock);
  close_store(c);
  return status;
}

/* ---- exchange ---- */

/* Under lock. Rounds count the exchanges of one group, equal on all members. */
static gb_status next_round(gbi_control *c, uint32_t group, uint32_t *round_p,
                            gb_error *error) {
  gbi_round *at = c->rounds;
  while (at && at->group != group) at = at->next;
  if (!at) {
    at = gbi_calloc(1, sizeof *at);
    if (!at) return gbi_fail(error, GB_ERR_MEMORY, "out of memory for a group");
    at->group = group;
    at->next = c->rounds;
    c->rounds = at;
  }
  *round_p = at->rounds++;
  return GB_OK;
}

/* Under lock. */
static gb_status wait_exchange(gbi_control *c, uint64_t deadline_ns,
                               gb_error *error) {
  uint64_t limit = later(deadline_ns, GRACE_NS);
  while (!c->exchange_done) {
    if (atomic_load(&c->failed)) return failure(c, error);
    if (c->rank0_left || c->link_down) {
      gbi_control_left_error_locked(c, NULL, error);
      return GB_ERR_PEER;
    }
    if (gbi_deadline_passed(limit))
      return gbi_fail_rank(error, GB_ERR_TIMEOUT, 0,
                           "rank 0 gave no answer in the set-up of group %u",
                           c->exchange_group);
    wait_change(c, limit);
    GBI_TRY(call_hook(c, error));
  }
  if (c->exchange_data) return GB_OK;
  if (atomic_load(&c->failed)) return failure(c, error);
  if (error) *error = c->exchange_error;
  return c->exchange_error.status;
}

static gb_status parse_blobs(uint8_t *data, size_t bytes, int count,
                             gbi_blobs *blobs, gb_error *error) {
  gbi_reader r;
  gbi_reader_init(&r, data, bytes);
  r.bad = gbi_decode_fault(data, bytes);
  gbi_reader *items = gbi_calloc((size_t)count, sizeof *items);
  if (!items) {
    free(data);
    return gbi_fail(error, GB_ERR_MEMORY, "out of memory for a group");
  }
  if (gbi_get_u32(&r) != (uint32_t)count) r.bad = true;
  for (int i = 0; !r.bad && i < count; i++) {
    size_t n = 0;
    const uint8_t *blob = gbi_get_blob(&r, &n);
    gbi_reader_init(&items[i], blob, n);
  }
  if (!gbi_reader_done(&r)) {
    free(items);
    free(data);
    return gbi_fail(error, GB_ERR_PROTOCOL,
                    "rank 0's answer in the set-up of a group is malformed");
  }
  *blobs = (gbi_blobs){items, count, data};
  return GB_OK;
}

static void send_entry(gbi_control *c, uint32_t group, uint32_t round,
                       const int *members, int count, int me,
                       const gb_error *problem, const void *blob, size_t bytes,
                       uint64_t deadline_ns) {
  gbi_writer w;
  gbi_writer_init_growing(&w);
  gbi_put_u32(&w, group);
  gbi_put_u32(&w, round);
  gbi_put_u32(&w, gbi_left_ms(deadline_ns));
  gbi_put_ranks(&w, members, count);
  gbi_put_i32(&w, me);
  gbi_put_u8(&w, problem != NULL);
  if (problem) gbi_put_error(&w, problem);
  gbi_put_blob(&w, blob, bytes);
  gbi_control_push_locked(c, GBI_MSG_EXCHANGE, &w);
  gbi_writer_fini(&w);
}

gb_status gbi_control_exchange(gbi_control *c, uint32_t group,
                               const int *members, int count, int me,
                               const gb_error *problem, const void *blob,
                               size_t bytes, uint64_t deadline_ns,
                               gbi_blobs *blobs_p, gb_error *error) {
  uint32_t round = 0;
  uint8_t *data = NULL;
  size_t data_bytes = 0;
  if (bytes > GBI_BLOB_MAX)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "a group's set-up has a part of %zu bytes, more than %d",
                    bytes, GBI_BLOB_MAX);
  pthread_mutex_lock(&c->lock);
  gb_status status = GB_ERR_STATE;
  if (c->exchange_open)
    gbi_fail(error, status, "another thread sets up a group at the moment");
  else
    status = next_round(c, group, &round, error);
  if (status == GB_OK) {
    c->exchange_open = true;
    c->exchange_done = false;
    c->exchange_group = group;
    c->exchange_round = round;
    send_entry(c, group, round, members, count, me, problem, blob, bytes,
               deadline_ns);
    status = wait_exchange(c, deadline_ns, error);
    data = c->exchange_data;
    data_bytes = c->exchange_bytes;
    c->exchange_data = NULL;
    c->exchange_open = false;
  }
  pthread_mutex_unlock(&c->lock);
  if (status == GB_OK)
    return parse_blobs(data, data_bytes, count, blobs_p, error);
  free(data);
  return status;
}

/* ---- failure ---- */

/* Under lock. Rank 0 decides which cause is the first; should it not answer in
 * time, this one counts. */
static void send_cause(gbi_control *c, const gb_error *cause) {
  if (atomic_load(&c->failed) || c->cause_sent) return;
  bool link = gb_status_scope(cause->status) == GB_SCOPE_LINK;
  gbi_writer w;
  c->cause_sent = true;
  c->cause = *cause;
  c->cause_until_ns = gbi_now_ns() + (link ? SETTLE_LINK_NS : SETTLE_NS);
  gbi_writer_init_growing(&w);
  gbi_put_error(&w, cause);
  gbi_control_push_locked(c, GBI_MSG_CAUSE, &w);
  gbi_writer_fini(&w);
  gbi_control_wake(c);
}

void gbi_control_abort(gbi_control *c, const gb_error *cause) {
  pthread_mutex_lock(&c->lock);
  send_cause(c, cause);
  pthread_mutex_unlock(&c->lock);
}

/* Under lock. Rank 0 has left and can settle nothing. A broken link then most
 * likely broke because it went. */
static void settle_alone(gbi_control *c, const gb_error *cause) {
  gb_error error = *cause;
  bool link = gb_status_scope(cause->status) == GB_SCOPE_LINK;
  if (c->rank0_left && link && cause->rank <= 0)
    gbi_control_left_error_locked(c, NULL, &error);
  gbi_control_fail_locked(c, &error);
}

gb_status gbi_control_settle(gbi_control *c, const gb_error *cause,
                             gb_error *shared_p) {
  pthread_mutex_lock(&c->lock);
  uint64_t limit = gbi_now_ns() + SETTLE_LINK_NS;
  if (!c->rank0_left) send_cause(c, cause);
  while (!atomic_load(&c->failed)) {
    if (c->rank0_left || c->link_down || gbi_deadline_passed(limit))
      settle_alone(c, cause);
    else
      wait_change(c, limit);
  }
  pthread_mutex_unlock(&c->lock);
  return failure(c, shared_p);
}

/* ---- who is late ---- */

void gbi_control_stalled(gbi_control *c, uint32_t group, const int *members,
                         int count, const gbi_call *call) {
  pthread_mutex_lock(&c->lock);
  if (c->rank0_left) {
    /* Nobody can be asked. What rank 0 has completed does not wait for it; of
     * other groups nothing is known, and their deadlines end them. */
    gb_error error;
    gbi_control_left_error_locked(c, call, &error);
    if (group == 0 && call->seq >= c->rank0_completed)
      gbi_control_fail_locked(c, &error);
  } else if (!atomic_load(&c->failed)) {
    gbi_writer w;
    gbi_writer_init_growing(&w);
    gbi_put_u32(&w, group);
    gbi_put_call(&w, call);
    gbi_put_ranks(&w, members, count);
    gbi_control_push_locked(c, GBI_MSG_STALLED, &w);
    gbi_writer_fini(&w);
  }
  pthread_mutex_unlock(&c->lock);
}

int gbi_control_late(gbi_control *c, uint32_t group, uint64_t seq, int *ranks,
                     int max) {
  int count = -1;
  pthread_mutex_lock(&c->lock);
  for (int i = 0; i < GBI_LATE_KEPT; i++) {
    const gbi_late *late = &c->late[i];
    if (!late->used || late->group != group || late->seq != seq) continue;
    count = GBI_MIN(late->count, max);
    memcpy(ranks, late->ranks, (size_t)count * sizeof *ranks);
  }
  pthread_mutex_unlock(&c->lock);
  return count;
}

/* ---- offers ---- */

void gbi_control_offer(gbi_control *c, int to, const void *blob, size_t bytes) {
  gbi_writer w;
  gbi_writer_init_growing(&w);
  gbi_put_i32(&w, to);
  gbi_put_blob(&w, blob, bytes);
  pthread_mutex_lock(&c->lock);
  if (!c->rank0_left) gbi_control_push_locked(c, GBI_MSG_OFFER, &w);
  pthread_mutex_unlock(&c->lock);
  gbi_writer_fini(&w);
}

/* ---- leaving ---- */

void gbi_control_goodbye(gbi_control *c, uint64_t deadline_ns) {
  gbi_call_state state = {.started = 0};
  bool known = c->params.report && c->params.report(c->params.arg, 0, &state);
  gbi_writer w;
  gbi_writer_init_growing(&w);
  gbi_put_state(&w, known, &state);
  pthread_mutex_lock(&c->lock);
  if (!c->rank0_left) gbi_control_push_locked(c, GBI_MSG_GOODBYE, &w);
  while (!c->left_acked && !c->rank0_left && !c->link_down &&
         !atomic_load(&c->failed) && !gbi_deadline_passed(deadline_ns))
    wait_change(c, deadline_ns);
  pthread_mutex_unlock(&c->lock);
  gbi_writer_fini(&w);
}

static void free_control(gbi_control *c) {
  gbi_server_close(c->server);
  gbi_channel_fini(&c->link);
  close_store(c);
  if (c->epoll_fd >= 0) close(c->epoll_fd);
  if (c->wake_fd >= 0) close(c->wake_fd);
  for (gbi_round *at = c->rounds, *next; at; at = next) {
    next = at->next;
    free(at);
  }
  for (int i = 0; i < GBI_LATE_KEPT; i++) free(c->late[i].ranks);
  free(c->verdict_data);
  free(c->exchange_data);
  pthread_mutex_destroy(&c->lock);
  pthread_cond_destroy(&c->changed);
  free(c);
}

void gbi_control_close(gbi_control *c) {
  if (!c) return;
  if (c->thread_runs) {
    pthread_mutex_lock(&c->lock);
    c->stopping = true;
    gbi_control_wake(c);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
  }
  free_control(c);
}
