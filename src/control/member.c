/* gb-control: every rank's end of its connection to rank 0, and on rank 0 the
 * thread that drives the server too. */
#include "base/log.h"
#include "base/memory.h"
#include "control/state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 64 };
/* Standing still longer than this beyond what was planned means that the
 * process was stopped: the silence of others was its own. */
#define FROZEN_NS (1 * GBI_NS_PER_S)
#define FLUSH_NS (500 * GBI_NS_PER_MS)

void gbi_control_wake(gbi_control *c) {
  uint64_t one = 1;
  while (write(c->wake_fd, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void gbi_control_fail_locked(gbi_control *c, const gb_error *error) {
  if (atomic_load_explicit(&c->failed, memory_order_relaxed)) return;
  c->failure = *error;
  atomic_store_explicit(&c->failed, true, memory_order_release);
  pthread_cond_broadcast(&c->changed);
  gbi_control_wake(c);
}

void gbi_control_push_locked(gbi_control *c, uint8_t type,
                             const gbi_writer *body) {
  if (c->link_down) return;
  gbi_frame *frame = gbi_frame_make(type, body);
  gbi_channel_push(&c->link, frame);
  gbi_frame_drop(frame);
  gbi_control_wake(c);
}

void gbi_control_left_error_locked(gbi_control *c, const gbi_call *call,
                                   gb_error *error) {
  char who[GBI_WHO_TEXT], text[160], wait[224] = "";
  if (call) {
    gbi_call_text(call, text, sizeof text);
    snprintf(wait, sizeof wait, "; rank %d waits in %s", c->rank, text);
  }
  gbi_fail_rank(error, GB_ERR_PEER, 0, "%s left the job after %llu calls%s",
                gbi_who_text(0, &c->who0, who),
                (unsigned long long)c->rank0_completed, wait);
}

/* ---- frames of rank 0 ---- */

static void take_verdict(gbi_control *c, gbi_reader *body) {
  uint8_t *data = gbi_malloc(body->bytes + 1);
  if (!data) return;
  memcpy(data, body->data, body->bytes);
  body->at = body->bytes;
  pthread_mutex_lock(&c->lock);
  free(c->verdict_data);
  c->verdict_data = data;
  c->verdict_bytes = body->bytes;
  c->verdict = true;
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->lock);
}

static void take_abort(gbi_control *c, gbi_reader *body) {
  gb_error error;
  gbi_get_error(body, &error);
  if (!gbi_reader_done(body)) return;
  pthread_mutex_lock(&c->lock);
  gbi_control_fail_locked(c, &error);
  pthread_mutex_unlock(&c->lock);
}

static void take_exchanged(gbi_control *c, gbi_reader *body) {
  uint32_t group = gbi_get_u32(body), round = gbi_get_u32(body);
  bool good = gbi_get_u8(body) != 0;
  gb_error error = {.status = GB_OK};
  const uint8_t *rest = NULL;
  size_t bytes = 0;
  if (good) {
    bytes = body->bytes - body->at;
    rest = gbi_get_raw(body, bytes);
  } else {
    gbi_get_error(body, &error);
  }
  if (!gbi_reader_done(body)) return;
  pthread_mutex_lock(&c->lock);
  if (c->exchange_open && !c->exchange_done && group == c->exchange_group &&
      round == c->exchange_round) {
    c->exchange_done = true;
    c->exchange_error = error;
    c->exchange_bytes = bytes;
    c->exchange_data = good ? gbi_malloc(bytes + 1) : NULL;
    if (good && c->exchange_data)
      memcpy(c->exchange_data, rest, bytes);
    else if (good)
      gbi_fail(&c->exchange_error, GB_ERR_MEMORY,
               "out of memory for the set-up of a group");
    pthread_cond_broadcast(&c->changed);
  }
  pthread_mutex_unlock(&c->lock);
}

static void take_question(gbi_control *c, gbi_reader *body) {
  gbi_call_state state = {.started = 0};
  gbi_writer w;
  uint32_t id = gbi_get_u32(body), group = gbi_get_u32(body);
  if (!gbi_reader_done(body)) return;
  bool known =
      c->params.report && c->params.report(c->params.arg, group, &state);
  gbi_writer_init_growing(&w);
  gbi_put_u32(&w, id);
  gbi_put_state(&w, known, &state);
  pthread_mutex_lock(&c->lock);
  gbi_control_push_locked(c, GBI_MSG_STATE, &w);
  pthread_mutex_unlock(&c->lock);
  gbi_writer_fini(&w);
}

static void keep_late(gbi_control *c, gbi_late *fresh) {
  pthread_mutex_lock(&c->lock);
  int at = -1;
  for (int i = 0; i < GBI_LATE_KEPT; i++)
    if (c->late[i].used && c->late[i].group == fresh->group) at = i;
  if (at < 0) {
    at = c->late_next;
    c->late_next = (c->late_next + 1) % GBI_LATE_KEPT;
  }
  free(c->late[at].ranks);
  c->late[at] = *fresh;
  pthread_mutex_unlock(&c->lock);
}

static void take_late(gbi_control *c, gbi_reader *body) {
  gbi_late fresh = {.used = true};
  fresh.group = gbi_get_u32(body);
  fresh.seq = gbi_get_u64(body);
  uint32_t count = gbi_get_u32(body);
  if (count > (uint32_t)c->world) body->bad = true;
  if (body->bad) return;
  fresh.count = (int)count;
  fresh.ranks = gbi_malloc((size_t)count * sizeof(int) + 1);
  for (uint32_t i = 0; fresh.ranks && i < count; i++)
    fresh.ranks[i] = gbi_get_i32(body);
  if (!fresh.ranks || !gbi_reader_done(body))
    free(fresh.ranks);
  else
    keep_late(c, &fresh);
}

static void take_left(gbi_control *c, gbi_reader *body) {
  int32_t rank = gbi_get_i32(body);
  uint64_t completed = gbi_get_u64(body);
  if (rank < 0 || rank >= c->world) body->bad = true;
  if (!gbi_reader_done(body)) return;
  pthread_mutex_lock(&c->lock);
  if (rank == 0) {
    c->rank0_left = true;
    c->rank0_completed = completed;
    pthread_cond_broadcast(&c->changed);
  }
  pthread_mutex_unlock(&c->lock);
  if (c->params.on_left) c->params.on_left(c->params.arg, rank);
}

static void take_offered(gbi_control *c, gbi_reader *body) {
  size_t bytes;
  int32_t from = gbi_get_i32(body);
  const uint8_t *blob = gbi_get_blob(body, &bytes);
  if (from < 0 || from >= c->world || bytes > GBI_OFFER_MAX) body->bad = true;
  if (gbi_reader_done(body) && c->params.on_offer)
    c->params.on_offer(c->params.arg, from, blob, bytes);
}

static void take_goodbye_ok(gbi_control *c) {
  pthread_mutex_lock(&c->lock);
  c->left_acked = true;
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->lock);
}

/* False: rank 0 said something that makes no sense. */
static bool handle_frame(gbi_control *c, uint8_t type, gbi_reader *body) {
  switch (type) {
    case GBI_MSG_BEAT: break;
    case GBI_MSG_VERDICT: take_verdict(c, body); break;
    case GBI_MSG_ABORT: take_abort(c, body); break;
    case GBI_MSG_EXCHANGED: take_exchanged(c, body); break;
    case GBI_MSG_QUESTION: take_question(c, body); break;
    case GBI_MSG_LATE: take_late(c, body); break;
    case GBI_MSG_LEFT: take_left(c, body); break;
    case GBI_MSG_OFFERED: take_offered(c, body); break;
    case GBI_MSG_GOODBYE_OK: take_goodbye_ok(c); break;
    default: return false;
  }
  return gbi_reader_done(body);
}

/* ---- the connection ---- */

static void rank0_gone(gbi_control *c, gb_status status, const char *how) {
  char who[GBI_WHO_TEXT];
  gb_error error;
  pthread_mutex_lock(&c->lock);
  gbi_fail_rank(&error, status, 0, "%s %s", gbi_who_text(0, &c->who0, who),
                how);
  if (!c->rank0_left && !c->left_acked) gbi_control_fail_locked(c, &error);
  c->link_down = true;
  if (c->link.fd >= 0) gbi_close_watched(c->epoll_fd, c->link.fd);
  c->link.fd = -1;
  gbi_channel_fini(&c->link); /* rank 0 may wait for our end */
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->lock);
}

/* False when the connection ended with it. */
static bool handle_frames(gbi_control *c) {
  uint8_t type;
  gbi_reader body;
  gb_status status;
  while ((status = gbi_channel_next(&c->link, &type, &body)) == GB_OK)
    if (!handle_frame(c, type, &body)) break;
  if (status == GB_ERR_BUSY) return true;
  rank0_gone(c, GB_ERR_PROTOCOL,
             "broke the control protocol: a message is malformed");
  return false;
}

/* Whole frames first: some may have come along with WELCOME. */
static void read_link(gbi_control *c) {
  while (!c->link_down && handle_frames(c)) {
    gb_status status = gbi_channel_fill(&c->link);
    if (status == GB_ERR_BUSY) return;
    if (status == GB_ERR_PEER)
      rank0_gone(c, GB_ERR_PEER,
                 "is gone: its connection closed without a goodbye");
    c->heard_ns = gbi_now_ns();
  }
}

static void flush_link(gbi_control *c) {
  pthread_mutex_lock(&c->lock);
  if (!c->link_down) {
    (void)gbi_channel_flush(&c->link); /* reading tells why it broke */
    uint32_t events = EPOLLIN;
    if (gbi_channel_pending(&c->link)) events |= EPOLLOUT;
    if (events != c->link_events) {
      struct epoll_event event = {.events = events, .data.ptr = &c->link_watch};
      epoll_ctl(c->epoll_fd, EPOLL_CTL_MOD, c->link.fd, &event);
      c->link_events = events;
    }
  }
  pthread_mutex_unlock(&c->lock);
}

/* ---- time ---- */

static void beat(gbi_control *c, uint64_t now, bool frozen) {
  if (frozen) c->heard_ns = now;
  if (c->rank == 0) return;
  pthread_mutex_lock(&c->lock);
  if (!gbi_channel_pending(&c->link))
    gbi_control_push_locked(c, GBI_MSG_BEAT, NULL);
  pthread_mutex_unlock(&c->lock);
  if (!c->link_down && now > c->heard_ns &&
      now - c->heard_ns > c->heartbeat_ns) {
    char how[64];
    snprintf(how, sizeof how, "has not answered for %.0f s",
             (double)c->heartbeat_ns / (double)GBI_NS_PER_S);
    rank0_gone(c, GB_ERR_PEER, how);
  }
}

static uint64_t tick(gbi_control *c, uint64_t now, bool frozen) {
  if (now >= c->beat_ns) {
    c->beat_ns = now + GBI_MIN(GBI_NS_PER_S, c->heartbeat_ns / 4);
    beat(c, now, frozen);
  }
  uint64_t next = c->beat_ns;
  pthread_mutex_lock(&c->lock);
  if (c->cause_sent && !atomic_load(&c->failed)) {
    if (now >= c->cause_until_ns || c->link_down)
      gbi_control_fail_locked(c, &c->cause);
    else
      next = GBI_MIN(next, c->cause_until_ns);
  }
  bool accept = c->accept;
  c->accept = false;
  pthread_mutex_unlock(&c->lock);
  if (c->server) {
    if (accept) gbi_server_accept(c->server);
    next = GBI_MIN(next, gbi_server_tick(c->server, now, frozen));
  }
  return next;
}

static void announce(gbi_control *c) {
  if (c->announced || !atomic_load_explicit(&c->failed, memory_order_acquire))
    return;
  c->announced = true;
  GBI_DEBUG("control", "the job failed: %s", c->failure.text);
  if (c->params.on_failure) c->params.on_failure(c->params.arg);
}

/* True when gb-control may end: told to, and nothing of use is left to send. */
static bool may_end(gbi_control *c, uint64_t *since_ns) {
  pthread_mutex_lock(&c->lock);
  bool stopping = c->stopping;
  bool pending = !c->link_down && gbi_channel_pending(&c->link);
  pthread_mutex_unlock(&c->lock);
  if (!stopping) return false;
  uint64_t now = gbi_now_ns();
  if (!*since_ns) *since_ns = now;
  if (pending && now - *since_ns < FLUSH_NS) return false;
  if (!c->server) return true;
  gbi_server_drain(c->server);
  return gbi_server_drained(c->server);
}

static void dispatch(gbi_control *c, struct epoll_event *event) {
  gbi_watch *watch = event->data.ptr;
  uint64_t count;
  switch (watch->kind) {
    case GBI_WATCH_WAKE:
      while (read(c->wake_fd, &count, sizeof count) < 0 && errno == EINTR) {
      }
      break;
    case GBI_WATCH_LINK: read_link(c); break;
    case GBI_WATCH_SERVER:
      gbi_server_event(c->server, watch, event->events);
      break;
  }
}

void *gbi_control_run(void *arg) {
  gbi_control *c = arg;
  pthread_setname_np(pthread_self(), "gb-control");
  uint64_t stopping_since = 0;
  c->heard_ns = gbi_now_ns();
  read_link(c);
  for (uint64_t next = 0;;) {
    uint64_t before = gbi_now_ns();
    int wait_ms = gbi_deadline_left_ms(next, stopping_since ? 20 : 1000);
    struct epoll_event events[EVENTS];
    int n = epoll_wait(c->epoll_fd, events, EVENTS, wait_ms);
    uint64_t now = gbi_now_ns();
    bool frozen = now - before > (uint64_t)wait_ms * GBI_NS_PER_MS + FROZEN_NS;
    for (int i = 0; i < n; i++) dispatch(c, &events[i]);
    if (frozen) c->beat_ns = now; /* before any silence is judged */
    next = tick(c, now, frozen);
    flush_link(c);
    announce(c);
    if (may_end(c, &stopping_since)) return NULL;
  }
}
