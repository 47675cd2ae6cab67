/* Brings all links up, in one loop over all sockets.
 *
 * Of a pair the member with the higher index connects and the lower one
 * accepts. When nothing came within REVERSE_MS the lower one connects too: one
 * of them may sit behind an address translator. Whoever connected, the lower
 * one decides which connection is stream k, by one GO byte on it: so both
 * sides always take the same one.
 *
 * Strangers are state machines like everybody else. There is room for
 * STRANGERS_MAX of them; the oldest makes room for the next, and a peer whose
 * connection was closed that way comes back. */
#include "transport/tcp/tcp.h"

#include "base/fault.h"
#include "base/log.h"
#include "base/memory.h"
#include "os/fork.h"
#include "os/io.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
  REVERSE_MS = 1000,   /* the lower member then tries as well */
  STAGGER_MS = 250,    /* between one candidate address and the next */
  ROUND_MS = 500,      /* between one pass over all candidates and the next */
  GIVE_UP_MS = 10000,  /* every address refused: no wait for the deadline */
  STRANGER_MS = 10000, /* for a greeting */
  STRANGERS_MAX = 192,
  GO = 'G'
};

enum { PHASE_CONNECT, PHASE_GREET, PHASE_AWAIT_GO };
enum { WAYS_MAX = 2 * GBI_TCP_CANDIDATES_MAX };

/* One way to a peer: an address of it, from this side's card or as the routes
 * lead. */
typedef struct way {
  int address; /* index in the peer's list */
  bool from_card;
  char why[96]; /* how it failed */
} way;

/* One socket that may become a connection. */
typedef struct attempt {
  int fd;        /* -1: free */
  bool accepted; /* else this side connected */
  int member;    /* -1: has not said who it is */
  int stream, way, phase;
  uint64_t started, until;
  gbi_handshake shake;
} attempt;

/* What is known of the other side of one link. */
typedef struct peer {
  gbi_address list[GBI_TCP_CANDIDATES_MAX];
  int count;
  way ways[WAYS_MAX];
  int ways_count;
  int cursor; /* next way of this pass */
  int passes;
  int route; /* the way that worked, -1 */
  int up;    /* connections so far */
  uint64_t next_ns;
} peer;

typedef struct setup {
  gbi_tcp *t;
  peer *peers;
  attempt *attempts;
  int attempts_count;
  struct pollfd *fds;
  int *owners; /* of fds: attempt index, -1 - i: listener i */
  uint64_t start_ns, deadline_ns;
  gb_error *error;
} setup;

void gbi_tcp_close_listeners(gbi_tcp *t) {
  for (int i = 0; i < t->listeners_count; i++) {
    if (t->listeners[i] >= 0) close(t->listeners[i]);
    t->listeners[i] = -1;
  }
}

static int my_rank(const setup *s) {
  return s->t->members[s->t->params.me].rank;
}

static bool same_host_address(const gbi_address *a, const gbi_address *b) {
  if (gbi_address_is_loopback(a) || gbi_address_is_loopback(b))
    return gbi_address_is_loopback(a) && gbi_address_is_loopback(b);
  gbi_address x = *a, y = *b;
  gbi_address_set_port(&x, 0);
  gbi_address_set_port(&y, 0);
  return x.bytes == y.bytes && !memcmp(&x.sa, &y.sa, x.bytes);
}

/* The number of connections and the piece, by a rule that both sides apply to
 * the same facts. */
static void size_link(gbi_tcp *t, int member, const peer *p) {
  gbi_tcp_link *link = &t->links[member];
  const gbi_address *mine = &t->addresses[t->listeners_count - 1];
  const gbi_address *last = &p->list[p->count - 1];
  /* The first ones may be of different cards, which both have. */
  bool near = t->members[member].local >= 0 ||
              same_host_address(&p->list[0], &t->addresses[0]) ||
              (!gbi_address_is_loopback(last) && same_host_address(last, mine));
  link->streams = t->streams_setting ? t->streams_setting : near ? 1 : 4;
  link->active = link->streams;
  link->adapts = !t->streams_setting;
  if (t->piece_setting)
    link->piece_bytes = (size_t)t->piece_setting;
  else
    link->piece_bytes =
        link->streams > 1 ? (size_t)256 << 10 : GBI_TCP_PIECE_ALONE;
}

static uint64_t settings_hash(const gbi_tcp_link *link) {
  return (uint64_t)link->piece_bytes << 8 | (uint64_t)link->streams;
}

/* Where this side has a card of its own, from it before all else. A card that
 * packets to an address would not leave by is not tried: the routes lead there
 * as well. */
static void find_ways(const gbi_tcp *t, peer *p) {
  for (int i = 0; i < p->count; i++) {
    gbi_address local;
    bool card =
        t->has_card && gbi_card_way_to(&t->card, &p->list[i]) != GBI_CARD_NOT;
    if (card) p->ways[p->ways_count++] = (way){.address = i, .from_card = true};
    /* The same twice would only cost time. */
    if (!card || gbi_route_source(&p->list[i], &local, NULL) != GB_OK ||
        !gbi_address_same_host(&local, &t->card.address))
      p->ways[p->ways_count++] = (way){.address = i};
  }
}

static gb_status read_peers(setup *s, const gbi_reader *addresses) {
  gbi_tcp *t = s->t;
  for (int i = 0; i < t->params.members_count; i++) {
    peer *p = &s->peers[i];
    p->route = -1;
    if (i == t->params.me) continue;
    gbi_reader reader = addresses[i];
    p->count = gbi_get_u8(&reader);
    if (p->count < 1 || p->count > GBI_TCP_CANDIDATES_MAX) reader.bad = true;
    for (int k = 0; k < p->count && !reader.bad; k++)
      gbi_get_address(&reader, &p->list[k]);
    if (reader.bad)
      return gbi_fail_rank(s->error, GB_ERR_PROTOCOL, t->members[i].rank,
                           "rank %d told a malformed address for bridge "
                           "\"tcp\"",
                           t->members[i].rank);
    find_ways(t, p);
    size_link(t, i, p);
  }
  return GB_OK;
}

static gb_status make_conns(gbi_tcp *t, gb_error *error) {
  int total = 0;
  for (int i = 0; i < t->params.members_count; i++)
    total += t->links[i].streams;
  size_t n = (size_t)GBI_MAX(total, 1);
  size_t share = GBI_TCP_BUFFERS_BYTES / n & ~(size_t)63;
  t->buffer_bytes =
      GBI_MAX(GBI_MIN(share, GBI_TCP_BUFFER_MAX), GBI_TCP_BUFFER_MIN);
  t->conns = gbi_calloc(n, sizeof *t->conns);
  /* Not malloc: the compiler would make calloc of it, whose pages are first
   * touched in a call. */
  t->buffers = gbi_aligned_alloc(64, n * t->buffer_bytes);
  if (!t->conns || !t->buffers)
    return gbi_fail(error, GB_ERR_MEMORY, "out of memory for bridge \"tcp\"");
  memset(t->buffers, 0, n * t->buffer_bytes);
  t->conns_count = total;
  gbi_tcp_conn *at = t->conns;
  for (int i = 0; i < t->params.members_count; i++) {
    t->links[i].conns = at;
    for (int k = 0; k < t->links[i].streams; k++, at++) {
      at->fd = -1;
      at->stream = (uint8_t)k;
      at->buffer = t->buffers + (size_t)(at - t->conns) * t->buffer_bytes;
    }
  }
  return GB_OK;
}

static gb_status make_setup(setup *s) {
  gbi_tcp *t = s->t;
  s->peers = gbi_calloc((size_t)t->params.members_count, sizeof *s->peers);
  if (!s->peers)
    return gbi_fail(s->error, GB_ERR_MEMORY, "out of memory while connecting");
  return GB_OK;
}

static gb_status make_attempts(setup *s) {
  gbi_tcp *t = s->t;
  s->attempts_count =
      STRANGERS_MAX + t->conns_count + t->params.members_count * WAYS_MAX;
  size_t n = (size_t)s->attempts_count + GBI_TCP_CANDIDATES_MAX;
  s->attempts = gbi_calloc(n, sizeof *s->attempts);
  s->fds = gbi_calloc(n, sizeof *s->fds);
  s->owners = gbi_calloc(n, sizeof *s->owners);
  if (!s->attempts || !s->fds || !s->owners)
    return gbi_fail(s->error, GB_ERR_MEMORY, "out of memory while connecting");
  for (int i = 0; i < s->attempts_count; i++) s->attempts[i].fd = -1;
  return GB_OK;
}

static void drop(attempt *a) {
  if (a->fd >= 0) close(a->fd);
  a->fd = -1;
}

static void free_setup(setup *s) {
  for (int i = 0; s->attempts && i < s->attempts_count; i++)
    drop(&s->attempts[i]);
  free(s->peers);
  free(s->attempts);
  free(s->fds);
  free(s->owners);
}

static attempt *free_attempt(setup *s) {
  for (int i = 0; i < s->attempts_count; i++)
    if (s->attempts[i].fd < 0) return &s->attempts[i];
  return NULL;
}

static bool is_up(const setup *s, int member, int stream) {
  return s->t->links[member].conns[stream].fd >= 0;
}

/* ---- Connecting ---- */

static const char *reason_text(int code, char *buffer, size_t bytes) {
  switch (code) {
    case ECONNREFUSED: return "connection refused";
    case ETIMEDOUT: return "no answer in time";
    case EHOSTUNREACH: return "no route to that host";
    case ENETUNREACH: return "no route to that network";
    default: snprintf(buffer, bytes, "%s", strerror(code)); return buffer;
  }
}

static void note_failure(setup *s, const attempt *a, const char *reason) {
  if (a->accepted || a->member < 0) return;
  peer *p = &s->peers[a->member];
  snprintf(p->ways[a->way].why, sizeof p->ways[0].why, "%.90s", reason);
}

static void greet_as_connector(setup *s, attempt *a) {
  gbi_tcp_link *link = &s->t->links[a->member];
  gbi_hello hello = {.kind = GBI_HELLO_LINK,
                     .stream = (uint8_t)a->stream,
                     .group = s->t->params.group,
                     .comm = s->t->params.comm,
                     .from = my_rank(s),
                     .to = link->rank,
                     .settings = settings_hash(link)};
  a->phase = PHASE_GREET;
  gbi_handshake_connect(&a->shake, s->t->params.auth, &hello);
}

/* Packets to where it leads, and from there, go by the card. Where that is not
 * allowed they go by the routes. */
static void keep_to_card(const gbi_tcp *t, int fd, const gbi_address *peer) {
  if (gbi_card_way_to(&t->card, peer) == GBI_CARD_BIND &&
      !gbi_card_bind(&t->card, fd))
    GBI_INFO("tcp", "a socket could not be bound to %s: %s", t->card.name,
             strerror(errno));
}

/* 0 or the reason. */
static int start_from_card(const gbi_tcp *t, int fd, const gbi_address *to) {
  int on = 1;
  keep_to_card(t, fd, to);
  setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
  const gbi_address *from = &t->card.address;
  return bind(fd, (const void *)&from->sa, from->bytes) ? errno : 0;
}

/* False: this way failed at once. */
static bool start_attempt(setup *s, int member, int stream, int which) {
  attempt *a = free_attempt(s);
  if (!a) return true;
  char text[64];
  const way *by = &s->peers[member].ways[which];
  const gbi_address *to = &s->peers[member].list[by->address];
  *a = (attempt){.fd = -1,
                 .member = member,
                 .stream = stream,
                 .way = which,
                 .started = gbi_now_ns(),
                 .until = s->deadline_ns};
  a->fd =
      socket(to->sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (a->fd < 0) {
    note_failure(s, a, reason_text(errno, text, sizeof text));
    return false;
  }
  int code = by->from_card ? start_from_card(s->t, a->fd, to) : 0;
  if (GBI_FAULT("sock.connect") == GBI_FAULT_FAIL)
    code = ECONNREFUSED;
  else if (!code && connect(a->fd, (const void *)&to->sa, to->bytes))
    code = errno;
  if (!code) {
    greet_as_connector(s, a);
  } else if (code != EINPROGRESS && code != EINTR) {
    note_failure(s, a, reason_text(code, text, sizeof text));
    drop(a);
  }
  return a->fd >= 0;
}

static bool is_trying(const setup *s, int member, int stream, int which) {
  for (int i = 0; i < s->attempts_count; i++) {
    const attempt *a = &s->attempts[i];
    if (a->fd >= 0 && !a->accepted && a->member == member &&
        a->stream == stream && (which < 0 || a->way == which))
      return true;
  }
  return false;
}

/* Looks for a way that works, with stream 0. */
static void probe(setup *s, int member, uint64_t now) {
  peer *p = &s->peers[member];
  if (now < p->next_ns) return;
  if (p->cursor == p->ways_count) {
    p->cursor = 0;
    p->passes++;
  }
  int which = p->cursor++;
  bool waits =
      is_trying(s, member, 0, which) || start_attempt(s, member, 0, which);
  bool last = p->cursor == p->ways_count;
  int wait_ms = last ? ROUND_MS : waits ? STAGGER_MS : 0;
  p->next_ns = now + (uint64_t)wait_ms * GBI_NS_PER_MS;
}

static void start_due(setup *s) {
  uint64_t now = gbi_now_ns();
  uint64_t reverse_ns = s->start_ns + REVERSE_MS * GBI_NS_PER_MS;
  for (int i = 0; i < s->t->params.members_count; i++) {
    peer *p = &s->peers[i];
    int streams = s->t->links[i].streams;
    if (p->up == streams) continue;
    bool connects = i < s->t->params.me || now >= reverse_ns;
    if (p->route >= 0) {
      if (now < p->next_ns) continue;
      p->next_ns = now + 100 * GBI_NS_PER_MS;
      for (int k = 0; k < streams; k++)
        if (!is_up(s, i, k) && !is_trying(s, i, k, -1))
          (void)start_attempt(s, i, k, p->route);
    } else if (connects && !p->up) {
      probe(s, i, now);
    }
  }
}

/* ---- Taking a connection ---- */

static bool set_congestion(int fd, const char *name) {
  return !setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name,
                     (socklen_t)strlen(name));
}

static void tune(setup *s, gbi_tcp_link *link, int fd) {
  struct tcp_info info;
  socklen_t bytes = sizeof info;
  memset(&info, 0, sizeof info);
  gbi_socket_tune(fd, s->t->params.timeout_ms);
  /* The kernel's limit also ends connections whose peer answers but does not
   * read, as one that computes for a minute before its next call. data.c
   * looks for silence itself. */
  unsigned off = 0;
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &off, sizeof off);
  if (!getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) &&
      (!link->rtt_us || info.tcpi_rtt < link->rtt_us))
    link->rtt_us = info.tcpi_rtt;
  const char *wanted = s->t->congestion_setting;
  if (!wanted[0] && link->rtt_us < 1000) wanted = "cubic";
  if (!wanted[0] && link->rtt_us > GBI_TCP_LONG_RTT_US) wanted = "bbr";
  if (wanted[0] && !set_congestion(fd, wanted))
    GBI_DEBUG("tcp", "congestion control %s is not to be had", wanted);
  bytes = sizeof link->congestion - 1;
  if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, link->congestion, &bytes))
    snprintf(link->congestion, sizeof link->congestion, "?");
}

static void adopt(setup *s, attempt *a) {
  gbi_tcp_link *link = &s->t->links[a->member];
  peer *p = &s->peers[a->member];
  gbi_address other = {.bytes = sizeof other.sa};
  gbi_address own = {.bytes = sizeof own.sa};
  if (!getpeername(a->fd, (void *)&other.sa, &other.bytes))
    gbi_address_text(&other, link->address);
  if (!getsockname(a->fd, (void *)&own.sa, &own.bytes))
    gbi_address_text(&own, link->from);
  tune(s, link, a->fd);
  link->conns[a->stream].fd = a->fd;
  if (link->streams > 1)
    gbi_tcp_bound_unsent(&link->conns[a->stream], GBI_TCP_UNSENT_MAX);
  gbi_fork_closes(a->fd);
  a->fd = -1;
  p->up++;
  if (!a->accepted && p->route < 0) {
    p->route = a->way;
    p->next_ns = 0;
  }
  for (int i = 0; i < s->attempts_count; i++) {
    attempt *b = &s->attempts[i];
    if (b->fd >= 0 && b->member == a->member && b->stream == a->stream) drop(b);
  }
}

/* Proven: the lower member of the pair decides, the other one waits for it. */
static void proven(setup *s, attempt *a) {
  if (is_up(s, a->member, a->stream)) {
    drop(a);
    return;
  }
  if (s->t->params.me > a->member) {
    a->phase = PHASE_AWAIT_GO;
    return;
  }
  char go = GO;
  if (gbi_send(a->fd, &go, 1) == 1)
    adopt(s, a);
  else
    drop(a);
}

static void await_go(setup *s, attempt *a) {
  char go = 0;
  ssize_t n = gbi_recv(a->fd, &go, 1);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n == 1 && go == GO && !is_up(s, a->member, a->stream)) {
    adopt(s, a);
    return;
  }
  note_failure(s, a, "the other side closed the connection");
  drop(a);
}

/* Who came in? False: nobody this link waits for. */
static bool identify(setup *s, attempt *a) {
  const gbi_hello *hello = &a->shake.hello;
  const gbi_transport_params *params = &s->t->params;
  if (hello->kind != GBI_HELLO_LINK || hello->group != params->group ||
      hello->comm != params->comm || hello->to != my_rank(s))
    return false;
  for (int i = 0; i < params->members_count; i++) {
    if (i == params->me || s->t->members[i].rank != hello->from) continue;
    if (hello->stream >= s->t->links[i].streams) return false;
    a->member = i;
    a->stream = hello->stream;
    return true;
  }
  return false;
}

static gb_status refuse_settings(setup *s, const attempt *a) {
  const gbi_tcp_link *link = &s->t->links[a->member];
  return gbi_fail_rank(
      s->error, GB_ERR_REFUSED, link->rank,
      "could not connect bridge \"tcp\" from rank %d to rank %d: they have "
      "different numbers of connections or chunk sizes (%d and %zu bytes on "
      "rank %d). GPUBRIDGE_MULTITCP_STREAMS and GPUBRIDGE_MULTITCP_CHUNK_BYTES "
      "must be equal on all ranks",
      my_rank(s), link->rank, link->streams, link->piece_bytes, my_rank(s));
}

static gb_status greet(setup *s, attempt *a) {
  gb_error why;
  gb_status status = gbi_handshake_step(&a->shake, a->fd, &why);
  if (status == GB_ERR_BUSY) return GB_OK;
  if (status != GB_OK) {
    if (a->accepted) GBI_DEBUG("tcp", "dropped a stranger: %s", why.text);
    note_failure(s, a, why.text);
    bool ours = !a->accepted && status == GB_ERR_VERSION;
    drop(a);
    if (!ours) return GB_OK;
    return gbi_fail_rank(s->error, status, s->t->links[a->member].rank, "%s",
                         why.text);
  }
  if (a->accepted && !identify(s, a)) {
    drop(a);
    return GB_OK;
  }
  if (a->accepted &&
      a->shake.hello.settings != settings_hash(&s->t->links[a->member]))
    return refuse_settings(s, a);
  proven(s, a);
  return GB_OK;
}

/* A port of this machine that nobody listens on may be the one the kernel
 * picks for our own end: TCP then connects the socket to itself. */
static bool met_itself(int fd) {
  gbi_address here = {.bytes = sizeof here.sa};
  gbi_address there = {.bytes = sizeof there.sa};
  return !getsockname(fd, (void *)&here.sa, &here.bytes) &&
         !getpeername(fd, (void *)&there.sa, &there.bytes) &&
         here.bytes == there.bytes && !memcmp(&here.sa, &there.sa, here.bytes);
}

static void finish_connect(setup *s, attempt *a) {
  int code = 0;
  char text[64];
  socklen_t bytes = sizeof code;
  getsockopt(a->fd, SOL_SOCKET, SO_ERROR, &code, &bytes);
  if (!code && met_itself(a->fd)) code = ECONNREFUSED;
  if (code) {
    note_failure(s, a, reason_text(code, text, sizeof text));
    drop(a);
  } else {
    greet_as_connector(s, a);
  }
}

static gb_status step(setup *s, attempt *a) {
  if (a->phase == PHASE_CONNECT) finish_connect(s, a);
  if (a->fd >= 0 && a->phase == PHASE_GREET) GBI_TRY(greet(s, a));
  if (a->fd >= 0 && a->phase == PHASE_AWAIT_GO) await_go(s, a);
  return GB_OK;
}

/* ---- Accepting ---- */

/* A free place; with STRANGERS_MAX at the door the oldest of them leaves. */
static attempt *place_for_stranger(setup *s) {
  attempt *oldest = NULL;
  int strangers = 0;
  for (int i = 0; i < s->attempts_count; i++) {
    attempt *a = &s->attempts[i];
    if (a->fd < 0 || !a->accepted || a->member >= 0) continue;
    strangers++;
    if (!oldest || a->started < oldest->started) oldest = a;
  }
  if (strangers < STRANGERS_MAX) return free_attempt(s);
  drop(oldest);
  return oldest;
}

/* A connection that came to the card's address is answered by the card. */
static void accept_on_card(const gbi_tcp *t, int fd) {
  gbi_address here = {.bytes = sizeof here.sa};
  gbi_address there = {.bytes = sizeof there.sa};
  if (t->has_card && !getsockname(fd, (void *)&here.sa, &here.bytes) &&
      gbi_address_same_host(&here, &t->card.address) &&
      !getpeername(fd, (void *)&there.sa, &there.bytes))
    keep_to_card(t, fd, &there);
}

static gb_status accept_all(setup *s, int listener) {
  for (int i = 0; i < STRANGERS_MAX; i++) {
    int fd = gbi_accept(s->t->listeners[listener]);
    if (fd < 0) return GB_OK;
    attempt *a = place_for_stranger(s);
    if (!a) {
      close(fd);
      continue;
    }
    uint64_t now = gbi_now_ns();
    *a = (attempt){
        .fd = fd,
        .accepted = true,
        .member = -1,
        .phase = PHASE_GREET,
        .started = now,
        .until = GBI_MIN(s->deadline_ns, now + STRANGER_MS * GBI_NS_PER_MS)};
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    accept_on_card(s->t, fd);
    gbi_handshake_accept(&a->shake, s->t->params.auth);
    GBI_TRY(greet(s, a));
  }
  return GB_OK;
}

/* ---- The loop ---- */

static int collect(setup *s) {
  int n = 0;
  for (int i = 0; i < s->t->listeners_count; i++) {
    s->owners[n] = -1 - i;
    s->fds[n++] = (struct pollfd){s->t->listeners[i], POLLIN, 0};
  }
  for (int i = 0; i < s->attempts_count; i++) {
    attempt *a = &s->attempts[i];
    if (a->fd < 0) continue;
    short events = a->phase == PHASE_CONNECT ? POLLOUT
                   : a->phase == PHASE_GREET ? gbi_handshake_events(&a->shake)
                                             : POLLIN;
    s->owners[n] = i;
    s->fds[n++] = (struct pollfd){a->fd, events, 0};
  }
  return n;
}

static void drop_late(setup *s) {
  uint64_t now = gbi_now_ns();
  for (int i = 0; i < s->attempts_count; i++)
    if (s->attempts[i].fd >= 0 && now >= s->attempts[i].until)
      drop(&s->attempts[i]);
}

static gb_status turn(setup *s) {
  start_due(s);
  int n = collect(s);
  int left_ms = gbi_deadline_left_ms(s->deadline_ns, 50);
  if (poll(s->fds, (nfds_t)n, left_ms) < 0 && errno != EINTR)
    return gbi_fail(s->error, GB_ERR_SYSTEM, "could not wait for sockets: %s",
                    strerror(errno));
  for (int i = 0; i < n; i++) {
    if (!s->fds[i].revents) continue;
    if (s->owners[i] < 0) {
      GBI_TRY(accept_all(s, -1 - s->owners[i]));
    } else {
      attempt *a = &s->attempts[s->owners[i]];
      if (a->fd == s->fds[i].fd) GBI_TRY(step(s, a));
    }
  }
  drop_late(s);
  return GB_OK;
}

static int first_missing(const setup *s) {
  for (int i = 0; i < s->t->params.members_count; i++)
    if (s->peers[i].up < s->t->links[i].streams) return i;
  return -1;
}

static gb_status fail_connect(setup *s, int member) {
  char tried[1024], one[GBI_ADDRESS_TEXT];
  gbi_text text;
  gbi_text_init(&text, tried, sizeof tried);
  const peer *p = &s->peers[member];
  int rank = s->t->members[member].rank;
  for (int i = 0; i < p->ways_count; i++) {
    const way *by = &p->ways[i];
    gbi_text_add(&text, "%s%s%s%s: %s", i ? "; at " : "",
                 gbi_address_text(&p->list[by->address], one),
                 by->from_card ? " by " : "",
                 by->from_card ? s->t->card.name : "",
                 by->why[0] ? by->why : "no answer in time");
  }
  return gbi_fail_rank(
      s->error, GB_ERR_CONNECT, rank,
      "could not connect bridge \"tcp\" from rank %d to rank %d at %s. Rank %d "
      "advertised %s; GPUBRIDGE_MULTITCP_IFNAME on its machine (%s) chooses "
      "another interface",
      my_rank(s), rank, tried, rank,
      p->count > 1 ? "these addresses" : "this address",
      s->t->members[member].hostname ? s->t->members[member].hostname
                                     : "unknown");
}

/* Every address of a peer that this side has to connect to was refused, again
 * and again, and it did not come by itself either. */
static bool hopeless(const setup *s, int member) {
  const peer *p = &s->peers[member];
  if (member > s->t->params.me || p->up || p->passes < 2) return false;
  if (gbi_now_ns() < s->start_ns + GIVE_UP_MS * GBI_NS_PER_MS) return false;
  for (int i = 0; i < p->ways_count; i++)
    if (!p->ways[i].why[0] || is_trying(s, member, 0, i)) return false;
  return true;
}

static gb_status run(setup *s) {
  int missing;
  while ((missing = first_missing(s)) >= 0) {
    if (atomic_load_explicit(&s->t->stopped, memory_order_acquire))
      return gbi_fail(s->error, GB_ERR_CANCELED,
                      "connecting bridge \"tcp\" was canceled");
    bool late = gbi_deadline_passed(s->deadline_ns);
    if (late || hopeless(s, missing)) return fail_connect(s, missing);
    GBI_TRY(turn(s));
  }
  return GB_OK;
}

static gb_status watch_conns(gbi_tcp *t, gb_error *error) {
  for (int i = 0; i < t->conns_count; i++) {
    gbi_tcp_conn *c = &t->conns[i];
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(t->epoll_fd, EPOLL_CTL_ADD, c->fd, &event))
      return gbi_fail(error, GB_ERR_SYSTEM, "could not watch a socket: %s",
                      strerror(errno));
    c->armed = EPOLLIN;
  }
  return GB_OK;
}

gb_status gbi_tcp_connect(gbi_transport *transport, const gbi_reader *addresses,
                          uint64_t deadline_ns, gb_error *error) {
  setup s = {.t = (gbi_tcp *)transport,
             .start_ns = gbi_now_ns(),
             .deadline_ns = deadline_ns,
             .error = error};
  gb_status status = make_setup(&s);
  if (status == GB_OK) status = read_peers(&s, addresses);
  if (status == GB_OK) status = make_conns(s.t, error);
  if (status == GB_OK) status = make_attempts(&s);
  if (status == GB_OK) status = run(&s);
  free_setup(&s);
  gbi_tcp_close_listeners(s.t);
  if (status == GB_OK) status = watch_conns(s.t, error);
  return status;
}
