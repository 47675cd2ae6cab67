#include "control/server.h"

#include "base/log.h"
#include "base/memory.h"
#include "control/server_state.h"
#include "os/net.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STRANGERS_MAX = 64, BACKLOG = 4096 };
#define STRANGER_NS (10 * GBI_NS_PER_S)
#define YOUNG_NS \
  (1 * GBI_NS_PER_S) /* a stranger this young is not pushed out */
#define HOLD_NS (500 * GBI_NS_PER_MS)
#define SHORT_NS (2 * GBI_NS_PER_S) /* strangers may have left by then */
#define DRAIN_NS (1 * GBI_NS_PER_S)
#define LEAVE_NS (3 * GBI_NS_PER_S)

/* A rank may send one blob and a list of members, or a record. */
static size_t frame_max(const gbi_server *s) {
  return GBI_BLOB_MAX + GB_ERROR_TEXT_MAX + 4 * (size_t)s->params.world + 1024;
}

/* ---- connections ---- */

static void lose(gbi_server *s, gbi_conn *c) {
  if (c->dead) return;
  c->dead = true;
  s->any_dead = true;
  if (c->state <= GBI_CONN_JOINING) s->strangers--;
}

static void watch_for(gbi_server *s, gbi_conn *c, uint32_t events) {
  if (events == c->events) return;
  struct epoll_event event = {.events = events, .data.ptr = &c->watch};
  epoll_ctl(s->params.epoll_fd, c->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD,
            c->channel.fd, &event);
  c->events = events;
}

/* Sends what it can; asks epoll for the rest. */
static void arm(gbi_server *s, gbi_conn *c) {
  if (c->dead) return;
  if (gbi_channel_flush(&c->channel) == GB_ERR_PEER) {
    /* Reading tells the end, after what the other side sent before it. */
    watch_for(s, c, EPOLLIN);
    return;
  }
  bool more = gbi_channel_pending(&c->channel);
  if (c->state == GBI_CONN_ENDING && !more && !c->shut) {
    c->shut = true;
    shutdown(c->channel.fd, SHUT_WR);
  }
  watch_for(s, c, more ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void gbi_server_send(gbi_server *s, int rank, gbi_frame *frame) {
  gbi_conn *c = s->members[rank].conn;
  if (!c || c->dead || c->state != GBI_CONN_MEMBER) return;
  gbi_channel_push(&c->channel, frame);
  arm(s, c);
}

void gbi_server_send_new(gbi_server *s, int rank, uint8_t type,
                         const gbi_writer *body) {
  gbi_frame *frame = gbi_frame_make(type, body);
  gbi_server_send(s, rank, frame);
  gbi_frame_drop(frame);
}

static void send_all(gbi_server *s, uint8_t type, const gbi_writer *body) {
  gbi_frame *frame = gbi_frame_make(type, body);
  for (int r = 0; r < s->params.world; r++) gbi_server_send(s, r, frame);
  gbi_frame_drop(frame);
}

static gbi_conn *add_conn(gbi_server *s, int fd, gbi_conn_state state,
                          int rank) {
  gbi_conn *c = gbi_calloc(1, sizeof *c);
  if (!c) {
    close(fd);
    return NULL;
  }
  c->watch.kind = GBI_WATCH_SERVER;
  c->state = state;
  c->rank = rank;
  c->since_ns = c->heard_ns = gbi_now_ns();
  gbi_channel_init(&c->channel, fd, frame_max(s));
  c->next = s->conns;
  s->conns = c;
  return c;
}

static void set_state(gbi_server *s, gbi_conn *c, gbi_conn_state state) {
  bool was = c->state <= GBI_CONN_JOINING, is = state <= GBI_CONN_JOINING;
  s->strangers += (int)is - (int)was;
  c->state = state;
}

static void sweep(gbi_server *s) {
  if (!s->any_dead) return;
  s->any_dead = false;
  for (gbi_conn **at = &s->conns; *at;) {
    gbi_conn *c = *at;
    if (!c->dead) {
      at = &c->next;
      continue;
    }
    *at = c->next;
    if (c->rank >= 0 && s->members[c->rank].conn == c)
      s->members[c->rank].conn = NULL;
    gbi_close_watched(s->params.epoll_fd, c->channel.fd);
    c->channel.fd = -1;
    gbi_channel_fini(&c->channel);
    free(c);
  }
}

/* ---- failure ---- */

static void mark_told(gbi_server *s, int rank) {
  gbi_server_member *m = &s->members[rank];
  if (m->came || m->told) return;
  m->told = true;
  atomic_fetch_sub(&s->untold, 1);
}

void gbi_server_fail(gbi_server *s, const gb_error *error) {
  if (s->failed || s->leaving) return;
  s->failed = true;
  s->failure = *error;
  gbi_writer w;
  gbi_writer_init_growing(&w);
  gbi_put_error(&w, error);
  send_all(s, GBI_MSG_ABORT, &w);
  gbi_writer_fini(&w);
}

void gbi_server_cause(gbi_server *s, const gb_error *error) {
  /* A call of a rank's own system failed: that is a reason, not a link that
   * broke for one. */
  if (gb_status_scope(error->status) != GB_SCOPE_LINK ||
      error->status == GB_ERR_SYSTEM) {
    gbi_server_fail(s, error);
  } else if (!s->held) {
    s->held = true;
    s->held_error = *error;
    s->held_until_ns = gbi_now_ns() + HOLD_NS;
  }
}

/* "; rank 0 was in all_reduce number 3 ..., phase bridge", or nothing. */
static void own_call(gbi_server *s, char *text, size_t bytes) {
  gbi_call_state state = {.started = 0};
  char call[160];
  text[0] = 0;
  if (!s->params.report || !s->params.report(s->params.arg, 0, &state)) return;
  if (state.started <= state.completed) return;
  gbi_call_text(&state.last, call, sizeof call);
  snprintf(text, bytes, "; rank 0 was in %s%s%s", call,
           state.phase[0] ? ", phase " : "", state.phase);
}

static void member_gone(gbi_server *s, int rank, const char *how) {
  char who[GBI_WHO_TEXT], call[256];
  gb_error error;
  if (s->failed || s->leaving || s->draining) return;
  own_call(s, call, sizeof call);
  gbi_fail_rank(&error, GB_ERR_PEER, rank, "%s %s%s",
                gbi_who_text(rank, &s->members[rank].who, who), how, call);
  gbi_server_fail(s, &error);
}

static void member_lost(gbi_server *s, gbi_conn *c) {
  gbi_server_member *m = &s->members[c->rank];
  lose(s, c);
  if (m->conn != c) return;
  m->conn = NULL;
  if (m->left) return;
  /* It went because the set-up of a group failed; those who have not come to
   * it yet must hear of that, not of its consequence. */
  const gb_error *reason = gbi_server_open_error(s, c->rank);
  if (reason)
    gbi_server_fail(s, reason);
  else
    member_gone(s, c->rank, "is gone: its connection closed without a goodbye");
}

static void member_broke(gbi_server *s, gbi_conn *c, const char *what) {
  char who[GBI_WHO_TEXT];
  gb_error error;
  gbi_fail_rank(&error, GB_ERR_PROTOCOL, c->rank,
                "%s broke the control protocol: %s",
                gbi_who_text(c->rank, &s->members[c->rank].who, who), what);
  gbi_server_fail(s, &error);
  set_state(s, c, GBI_CONN_ENDING);
  arm(s, c);
}

/* ---- joining ---- */

static void refuse(gbi_server *s, gbi_conn *c, bool again,
                   const gb_error *error) {
  gbi_writer w;
  gbi_writer_init_growing(&w);
  gbi_put_u8(&w, again);
  gbi_put_error(&w, error);
  gbi_frame *frame = gbi_frame_make(GBI_MSG_REFUSE, &w);
  gbi_channel_push(&c->channel, frame);
  gbi_frame_drop(frame);
  gbi_writer_fini(&w);
  set_state(s, c, GBI_CONN_ENDING);
  if (!again) mark_told(s, c->rank);
  arm(s, c);
}

/* This job will not have the rank, but its next one may: one process opens
 * jobs one after another, and may be ahead of rank 0. */
static void come_again(gbi_server *s, gbi_conn *c) {
  gb_error error;
  gbi_fail(&error, GB_ERR_CONNECT,
           "rank 0 is still in the job before this one");
  refuse(s, c, true, &error);
}

static void claimed_twice(gbi_server *s, gbi_conn *c, const gbi_who *who) {
  gb_error error;
  gbi_fail_rank(&error, GB_ERR_REFUSED, c->rank,
                "rank %d was claimed twice, by a process on host \"%s\" and by "
                "one on host \"%s\". Every process needs a RANK of its own",
                c->rank, s->members[c->rank].who.hostname, who->hostname);
  gbi_server_fail(s, &error);
  refuse(s, c, false, &s->failure);
  /* This process is the one that some other rank will never have. */
  atomic_fetch_sub(&s->untold, 1);
}

static void read_member(gbi_server *s, gbi_conn *c);

/* True when the rank is not taken by a process that lives. */
static bool is_free(gbi_server *s, int rank) {
  gbi_server_member *m = &s->members[rank];
  if (m->conn) read_member(s, m->conn); /* its end may wait to be read */
  return !m->conn;
}

static void welcome(gbi_server *s, gbi_conn *c, const gbi_who *who) {
  gbi_server_member *m = &s->members[c->rank];
  m->conn = c;
  m->came = true;
  m->who = *who;
  s->joined++;
  atomic_fetch_sub(&s->untold, 1);
  set_state(s, c, GBI_CONN_MEMBER);
  gbi_writer w;
  gbi_writer_init_growing(&w);
  gbi_put_who(&w, &s->members[0].who);
  gbi_server_send_new(s, c->rank, GBI_MSG_WELCOME, &w);
  gbi_writer_fini(&w);
}

static bool join(gbi_server *s, gbi_conn *c, gbi_reader *body) {
  gbi_who who;
  int32_t rank = gbi_get_i32(body), world = gbi_get_i32(body);
  gbi_get_who(body, &who);
  if (!gbi_reader_done(body) || rank != c->rank) return false;
  gbi_server_member *m = &s->members[rank];
  if (s->leaving || s->draining || m->left) {
    come_again(s, c);
  } else if (world != s->params.world) {
    gb_error error;
    gbi_fail_rank(&error, GB_ERR_REFUSED, rank,
                  "ranks disagree about the number of ranks: rank 0 has "
                  "WORLD_SIZE %d, rank %d on host \"%s\" has %d",
                  s->params.world, rank, who.hostname, world);
    gbi_server_fail(s, &error);
    refuse(s, c, false, &s->failure);
  } else if (m->came && !s->failed && !is_free(s, rank)) {
    claimed_twice(s, c, &who);
  } else if (m->came) {
    come_again(s, c);
  } else if (s->failed) {
    refuse(s, c, false, &s->failure);
  } else {
    welcome(s, c, &who);
  }
  return true;
}

/* Versions are compared before the proof, but only a proven rank may end the
 * job with it. */
static void other_version(gbi_server *s, gbi_conn *c) {
  const gbi_handshake *h = &c->handshake;
  int rank = h->hello.from;
  if (h->proven && rank > 0 && rank < s->params.world) {
    gb_error error;
    gbi_fail_rank(&error, GB_ERR_VERSION, rank,
                  "protocol versions differ: rank 0 speaks %d, rank %d speaks "
                  "%d. Install the same gpubridge on every machine",
                  gbi_protocol_version(), rank, h->peer_version);
    gbi_server_fail(s, &error);
    mark_told(s, rank);
  } else {
    GBI_DEBUG("control", "dropped a stranger with protocol version %d",
              h->peer_version);
  }
  lose(s, c);
}

static void step_greeting(gbi_server *s, gbi_conn *c) {
  gb_error error;
  gb_status status = gbi_handshake_step(&c->handshake, c->channel.fd, &error);
  if (status == GB_ERR_BUSY) {
    bool writes = gbi_handshake_events(&c->handshake) == POLLOUT;
    watch_for(s, c, writes ? EPOLLOUT : EPOLLIN);
    return;
  }
  const gbi_hello *hello = &c->handshake.hello;
  if (status == GB_ERR_VERSION) {
    other_version(s, c);
  } else if (status != GB_OK || hello->kind != GBI_HELLO_CONTROL ||
             hello->to != 0 || hello->from < 1 ||
             hello->from >= s->params.world) {
    GBI_DEBUG("control", "dropped a stranger: %s",
              status == GB_OK ? "its greeting makes no sense" : error.text);
    lose(s, c);
  } else {
    c->rank = hello->from;
    set_state(s, c, GBI_CONN_JOINING);
    watch_for(s, c, EPOLLIN);
  }
}

/* Off while there is no room: a listener that stays ready would spin. */
static void set_listening(gbi_server *s, bool on) {
  if (s->deaf != on) return;
  s->deaf = !on;
  for (int i = 0; i < s->listeners_count; i++) {
    struct epoll_event event = {.events = on ? EPOLLIN : 0,
                                .data.ptr = &s->listeners[i].watch};
    epoll_ctl(s->params.epoll_fd, EPOLL_CTL_MOD, s->listeners[i].fd, &event);
  }
}

/* Pushes out the oldest stranger when the list is full of slow ones. */
static bool room_for_stranger(gbi_server *s) {
  if (s->strangers < STRANGERS_MAX) return true;
  gbi_conn *oldest = NULL; /* the list is newest first */
  for (gbi_conn *c = s->conns; c; c = c->next)
    if (c->state <= GBI_CONN_JOINING && !c->dead) oldest = c;
  if (!oldest || gbi_now_ns() - oldest->since_ns < YOUNG_NS) return false;
  lose(s, oldest);
  return true;
}

static void accept_all(gbi_server *s, int listen_fd) {
  for (;;) {
    if (!room_for_stranger(s)) return set_listening(s, false);
    int fd = gbi_accept(listen_fd);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS)) {
      if (!s->short_ns) s->short_ns = gbi_now_ns();
      return set_listening(s, false);
    }
    if (fd < 0) return;
    s->short_ns = 0;
    gbi_conn *c = add_conn(s, fd, GBI_CONN_GREETING, -1);
    if (!c) return;
    s->strangers++;
    gbi_socket_tune(fd, 2 * s->params.heartbeat_ns / GBI_NS_PER_MS);
    gbi_handshake_accept(&c->handshake, s->params.auth);
    step_greeting(s, c);
  }
}

/* ---- members' frames ---- */

static bool take_record(gbi_server *s, gbi_conn *c, gbi_reader *body) {
  gbi_server_member *m = &s->members[c->rank];
  uint64_t deadline = gbi_deadline_of_left(gbi_get_u32(body));
  size_t bytes;
  const uint8_t *record = gbi_get_blob(body, &bytes);
  if (!gbi_reader_done(body) || bytes > GBI_RECORD_MAX || m->record)
    return false;
  m->record = gbi_malloc(bytes + 1);
  if (!m->record) return false;
  memcpy(m->record, record, bytes);
  m->record_bytes = bytes;
  s->reported++;
  /* The first rank that would give up ends it for all: one text for all. */
  s->gather_deadline_ns = GBI_MIN(s->gather_deadline_ns, deadline);
  if (s->reported == s->params.world && !s->failed) {
    s->gathered = true;
    s->params.gathered(s->params.owner);
  }
  return true;
}

static bool take_cause(gbi_server *s, gbi_reader *body) {
  gb_error error;
  gbi_get_error(body, &error);
  if (!gbi_reader_done(body)) return false;
  gbi_server_cause(s, &error);
  return true;
}

static void rank0_leaves(gbi_server *s) {
  gbi_writer w;
  gbi_writer_init_growing(&w);
  gbi_put_i32(&w, 0);
  gbi_put_u64(&w, s->members[0].left_completed);
  gbi_frame *frame = gbi_frame_make(GBI_MSG_LEFT, &w);
  s->leaving = true;
  for (int r = 1; r < s->params.world; r++) {
    gbi_server_send(s, r, frame);
    gbi_conn *c = s->members[r].conn;
    if (!c || c->dead) continue;
    set_state(s, c, GBI_CONN_ENDING);
    arm(s, c);
  }
  gbi_frame_drop(frame);
  gbi_writer_fini(&w);
}

/* Rank 0 said goodbye. In a job that sends messages or has groups of part of
 * its ranks it stays for a while, because links and groups are made through it:
 * the first stage of a pipeline is done before the others have met. */
static void try_to_leave(gbi_server *s) {
  if (!s->members[0].left || s->leaving) return;
  if (!s->failed && gbi_server_is_needed(s) && gbi_now_ns() < s->leave_by_ns)
    return;
  rank0_leaves(s);
  gbi_server_send_new(s, 0, GBI_MSG_GOODBYE_OK, NULL);
}

static bool take_goodbye(gbi_server *s, gbi_conn *c, gbi_reader *body) {
  gbi_server_member *m = &s->members[c->rank];
  gbi_call_state state;
  bool known = gbi_get_state(body, &state);
  if (!gbi_reader_done(body)) return false;
  if (!m->left) {
    m->left = true;
    m->left_completed = known ? state.completed : 0;
    if (c->rank == 0) {
      s->leave_by_ns = gbi_now_ns() + LEAVE_NS;
      gbi_server_leaves_exchanges(s, 0);
      try_to_leave(s);
      return true; /* its answer comes when it may go */
    }
    gbi_server_member_left(s, c->rank);
  }
  gbi_server_send_new(s, c->rank, GBI_MSG_GOODBYE_OK, NULL);
  return true;
}

static bool member_frame(gbi_server *s, gbi_conn *c, uint8_t type,
                         gbi_reader *body) {
  if (type == GBI_MSG_GOODBYE) return take_goodbye(s, c, body);
  if (type == GBI_MSG_BEAT) return true;
  if (type == GBI_MSG_RECORD) return take_record(s, c, body);
  if (s->failed || s->leaving) return true; /* it is too late for questions */
  switch (type) {
    case GBI_MSG_EXCHANGE: return gbi_server_exchange(s, c->rank, body);
    case GBI_MSG_CAUSE: return take_cause(s, body);
    case GBI_MSG_STALLED: return gbi_server_stalled(s, c->rank, body);
    case GBI_MSG_STATE: return gbi_server_state(s, c->rank, body);
    case GBI_MSG_OFFER:
      if (!gbi_server_offer(s, c->rank, body)) return false;
      try_to_leave(s);
      return true;
    default: return false;
  }
}

/* Handles the frames that are whole. */
static void handle_frames(gbi_server *s, gbi_conn *c) {
  uint8_t type;
  gbi_reader body;
  gb_status status = GB_OK;
  while (!c->dead && c->state != GBI_CONN_ENDING) {
    status = gbi_channel_next(&c->channel, &type, &body);
    if (status == GB_ERR_BUSY) return;
    if (c->state == GBI_CONN_JOINING) {
      if (status != GB_OK || type != GBI_MSG_JOIN || !join(s, c, &body))
        lose(s, c);
    } else if (status != GB_OK) {
      member_broke(s, c, "a frame has an absurd length");
    } else if (!member_frame(s, c, type, &body)) {
      member_broke(s, c, "a message is malformed");
    }
  }
}

static void read_member(gbi_server *s, gbi_conn *c) {
  while (!c->dead) {
    gb_status status = gbi_channel_fill(&c->channel);
    if (status == GB_ERR_BUSY) return;
    if (status == GB_ERR_PEER) {
      if (c->state == GBI_CONN_MEMBER)
        member_lost(s, c);
      else
        lose(s, c);
      return;
    }
    c->heard_ns = gbi_now_ns();
    if (c->state == GBI_CONN_ENDING)
      c->channel.in_used = c->channel.in_at = 0;
    else
      handle_frames(s, c);
  }
}

void gbi_server_event(gbi_server *s, gbi_watch *watch, uint32_t events) {
  for (int i = 0; i < s->listeners_count; i++) {
    if (watch != &s->listeners[i].watch) continue;
    accept_all(s, s->listeners[i].fd);
    return;
  }
  gbi_conn *c = (gbi_conn *)watch;
  if (c->dead) return;
  if (c->state == GBI_CONN_GREETING) step_greeting(s, c);
  if (c->dead || c->state == GBI_CONN_GREETING) return;
  if (events & EPOLLOUT) arm(s, c);
  read_member(s, c);
}

/* ---- gathering ---- */

static void name_missing(gbi_server *s) {
  char list[512];
  gb_error error;
  gbi_text text;
  int first = -1, count = 0;
  int *missing = gbi_malloc((size_t)s->params.world * sizeof *missing);
  for (int r = 0; r < s->params.world; r++) {
    if (s->members[r].record) continue;
    if (first < 0) first = r;
    if (missing) missing[count++] = r;
  }
  gbi_text_init(&text, list, sizeof list);
  if (missing) gbi_text_add_ranks(&text, missing, count);
  free(missing);
  uint64_t limit = s->gather_deadline_ns - s->params.opened_ns;
  gbi_fail_rank(&error, GB_ERR_TIMEOUT, first,
                "%s %s never reported within %.0f s. Every rank must be "
                "started, and must reach the same rank 0",
                count == 1 ? "rank" : "ranks", list,
                (double)limit / (double)GBI_NS_PER_S);
  gbi_server_fail(s, &error);
}

void gbi_server_record(const gbi_server *s, int rank, gbi_reader *record) {
  gbi_reader_init(record, s->members[rank].record,
                  s->members[rank].record_bytes);
}

void gbi_server_accept(gbi_server *s) {
  if (s->failed || s->accepted) return;
  s->accepted = true;
  gbi_writer w;
  gbi_writer_init_growing(&w);
  gbi_put_u32(&w, (uint32_t)s->params.world);
  for (int r = 0; r < s->params.world; r++) {
    gbi_put_who(&w, &s->members[r].who);
    gbi_put_blob(&w, s->members[r].record, s->members[r].record_bytes);
  }
  send_all(s, GBI_MSG_VERDICT, &w);
  gbi_writer_fini(&w);
}

int gbi_server_untold(const gbi_server *s) {
  return atomic_load(&s->untold);
}

/* ---- time ---- */

static void beat(gbi_server *s, uint64_t now, bool frozen) {
  gbi_frame *frame = gbi_frame_make(GBI_MSG_BEAT, NULL);
  char how[64];
  snprintf(how, sizeof how, "has not answered for %.0f s",
           (double)s->params.heartbeat_ns / (double)GBI_NS_PER_S);
  for (int r = 1; r < s->params.world; r++) {
    gbi_conn *c = s->members[r].conn;
    if (!c || c->dead) continue;
    if (frozen) c->heard_ns = now;
    if (!gbi_channel_pending(&c->channel)) gbi_server_send(s, r, frame);
    if (now > c->heard_ns && now - c->heard_ns > s->params.heartbeat_ns)
      member_gone(s, r, how);
  }
  gbi_frame_drop(frame);
}

static void drop_slow_strangers(gbi_server *s, uint64_t now) {
  for (gbi_conn *c = s->strangers ? s->conns : NULL; c; c = c->next)
    if (c->state <= GBI_CONN_JOINING && now - c->since_ns > STRANGER_NS)
      lose(s, c);
}

/* Ranks that are still to come would wait at the door until the deadline. The
 * spare descriptor lets them in, one by one, to hear why. */
static void check_shortage(gbi_server *s, uint64_t now) {
  char who[GBI_WHO_TEXT];
  gb_error error;
  if (!s->short_ns || now - s->short_ns < SHORT_NS || s->gathered || s->failed)
    return;
  gbi_fail_rank(&error, GB_ERR_SYSTEM, 0,
                "%s cannot accept the connections of this job's ranks: too "
                "many open files. Raise its limit (ulimit -n)",
                gbi_who_text(0, &s->members[0].who, who));
  gbi_server_fail(s, &error);
  if (s->spare_fd >= 0) close(s->spare_fd);
  s->spare_fd = -1;
}

uint64_t gbi_server_tick(gbi_server *s, uint64_t now, bool frozen) {
  uint64_t interval = GBI_MIN(GBI_NS_PER_S, s->params.heartbeat_ns / 4);
  if (frozen || now >= s->beat_ns) {
    s->beat_ns = now + interval;
    beat(s, now, frozen);
    drop_slow_strangers(s, now);
    check_shortage(s, now);
    set_listening(s, true);
  }
  if (s->strangers < STRANGERS_MAX / 2) set_listening(s, true);
  uint64_t next = s->beat_ns;
  if (!s->gathered && !s->failed) {
    if (now >= s->gather_deadline_ns) name_missing(s);
    next = GBI_MIN(next, s->gather_deadline_ns);
  }
  if (s->held && !s->failed) {
    if (now >= s->held_until_ns) gbi_server_fail(s, &s->held_error);
    next = GBI_MIN(next, s->held_until_ns);
  }
  if (!s->failed && !s->leaving)
    next = GBI_MIN(next, gbi_server_questions_tick(s, now));
  if (s->draining) next = GBI_MIN(next, s->drain_until_ns);
  try_to_leave(s);
  if (s->members[0].left && !s->leaving) next = GBI_MIN(next, s->leave_by_ns);
  sweep(s);
  return next;
}

/* ---- open and close ---- */

void gbi_server_drain(gbi_server *s) {
  if (s->draining) return;
  const gb_error *reason = gbi_server_open_error(s, -1);
  if (reason) gbi_server_fail(s, reason);
  s->draining = true;
  /* Without a goodbye or a failure, this end is a death for the others. */
  bool orderly = s->failed || s->leaving;
  s->drain_until_ns = gbi_now_ns() + (orderly ? DRAIN_NS : 0);
  for (gbi_conn *c = s->conns; c; c = c->next) {
    if (c->dead || c == s->own) continue;
    if (c->state <= GBI_CONN_JOINING || !orderly) {
      lose(s, c);
    } else {
      set_state(s, c, GBI_CONN_ENDING);
      arm(s, c);
    }
  }
  sweep(s);
}

bool gbi_server_drained(const gbi_server *s) {
  bool others = false;
  for (const gbi_conn *c = s->conns; c; c = c->next)
    if (c != s->own && !c->dead) others = true;
  return s->draining && (!others || gbi_now_ns() >= s->drain_until_ns);
}

static gb_status listen_on(gbi_server *s, gbi_address *address,
                           gb_error *error) {
  gbi_listener *l = &s->listeners[s->listeners_count];
  l->watch.kind = GBI_WATCH_SERVER;
  GBI_TRY(gbi_listen(address, BACKLOG, &l->fd, address, error));
  s->listeners_count++;
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = &l->watch};
  if (epoll_ctl(s->params.epoll_fd, EPOLL_CTL_ADD, l->fd, &event))
    return gbi_fail(error, GB_ERR_SYSTEM, "could not watch a socket: %s",
                    strerror(errno));
  return GB_OK;
}

/* Keeps the addresses that could be bound. */
static gb_status listen_on_all(gbi_server *s, gbi_address *list, int *count_p,
                               gb_error *error) {
  gb_status status = GB_OK;
  int good = 0;
  for (int i = 0; i < *count_p; i++) {
    status = listen_on(s, &list[i], error);
    if (status == GB_ERR_CONNECT) continue;
    if (status != GB_OK) return status;
    list[good++] = list[i];
  }
  *count_p = good;
  return good ? GB_OK : status;
}

gb_status gbi_server_open(const gbi_server_params *params, gbi_address *list,
                          int *count_p, gbi_server **server_p,
                          gb_error *error) {
  gbi_server *s = gbi_calloc(1, sizeof *s);
  if (s) s->members = gbi_calloc((size_t)params->world, sizeof *s->members);
  if (s && s->members) {
    s->params = *params;
    s->own = add_conn(s, params->own_fd, GBI_CONN_MEMBER, 0);
  }
  if (!s || !s->own) {
    free(s ? s->members : NULL);
    free(s);
    return gbi_fail(error, GB_ERR_MEMORY,
                    "out of memory for the control plane");
  }
  s->spare_fd = fcntl(params->epoll_fd, F_DUPFD_CLOEXEC, 0);
  s->members[0].conn = s->own;
  s->members[0].came = true;
  s->members[0].who = *params->who;
  s->joined = 1;
  atomic_store(&s->untold, params->world - 1);
  s->gather_deadline_ns = params->deadline_ns;
  arm(s, s->own);
  gb_status status = listen_on_all(s, list, count_p, error);
  if (status != GB_OK) {
    gbi_server_close(s);
    return status;
  }
  *server_p = s;
  return GB_OK;
}

void gbi_server_close(gbi_server *s) {
  if (!s) return;
  for (gbi_conn *c = s->conns; c; c = c->next) lose(s, c);
  sweep(s);
  for (int i = 0; i < s->listeners_count; i++) close(s->listeners[i].fd);
  if (s->spare_fd >= 0) close(s->spare_fd);
  gbi_server_questions_free(s);
  for (int r = 0; r < s->params.world; r++) {
    free(s->members[r].record);
    free(s->members[r].offered_to);
  }
  free(s->members);
  free(s);
}
