/* Sends, receives and progress. Everything here runs in the thread that drives
 * the transport; only stop() comes from another one.
 *
 * Receiving: a connection is between frames (bytes go to its own buffer, a
 * header and what came behind it in one call), or in a frame whose receive is
 * posted (bytes go in place, or through the scratch into the sink), or in a
 * frame that nobody has posted yet (the connection rests). */
#include "transport/tcp/tcp.h"

#include "base/log.h"
#include "os/io.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
  /* Up to this many connections are tried one by one; more are asked for by
   * epoll first. */
  TRY_MAX = 4,
  /* What is read behind a payload: the next header and a small message. */
  AHEAD_BYTES = 16384,
  /* Between two looks for peers that went silent. */
  CHECK_MS = 500,
  /* Between two looks at a connection's rate, while it sends. */
  RATE_MS = 50
};

static gbi_tcp *tcp(gbi_transport *transport) {
  return (gbi_tcp *)transport;
}

static void count(_Atomic uint64_t *counter, uint64_t more) {
  /* One writer: no atomic add is needed. */
  atomic_store_explicit(
      counter, atomic_load_explicit(counter, memory_order_relaxed) + more,
      memory_order_relaxed);
}

/* ---- Breaking ---- */

static void fail_xfer(gbi_xfer *xfer, gb_status status) {
  if (xfer->status == GB_ERR_BUSY) xfer->status = status;
}

static void fail_pending(gbi_tcp_link *link, gb_status status) {
  for (int i = 0; i < link->streams; i++) {
    if (link->conns[i].out) fail_xfer(link->conns[i].out, status);
    link->conns[i].out = NULL;
    link->conns[i].in = NULL;
  }
  while (link->send_head) {
    gbi_xfer *xfer = link->send_head;
    link->send_head = xfer->next;
    fail_xfer(xfer, status);
  }
  while (link->recv_head) {
    gbi_xfer *xfer = link->recv_head;
    link->recv_head = xfer->next;
    fail_xfer(xfer, status);
  }
  link->send_tail = &link->send_head;
  link->recv_tail = &link->recv_head;
}

static void close_conns(gbi_tcp *t, gbi_tcp_link *link) {
  for (int i = 0; i < link->streams; i++) {
    if (link->conns[i].fd >= 0)
      gbi_close_watched(t->epoll_fd, link->conns[i].fd);
    link->conns[i].fd = -1;
    link->conns[i].armed = 0;
    link->conns[i].eof = true;
  }
}

static void break_link(gbi_tcp *t, gbi_tcp_link *link, gb_status status,
                       const char *reason) {
  if (link->broken) return;
  link->broken = true;
  if (link->status == GB_OK) {
    link->status = status;
    gbi_fail_rank(&link->error, status, link->rank,
                  "connection of bridge \"tcp\" between rank %d and rank %d "
                  "(%s) broke: %s",
                  t->members[t->params.me].rank, link->rank, link->address,
                  reason);
  }
  fail_pending(link, link->status);
  close_conns(t, link);
}

static void break_by_errno(gbi_tcp *t, gbi_tcp_link *link, int code) {
  char text[128];
  switch (code) {
    case ETIMEDOUT:
      snprintf(text, sizeof text, "no sign of life for %llu ms",
               (unsigned long long)t->params.timeout_ms);
      break;
    case ECONNRESET: snprintf(text, sizeof text, "it was reset"); break;
    case EPIPE: snprintf(text, sizeof text, "the other side closed it"); break;
    default: snprintf(text, sizeof text, "%s", strerror(code)); break;
  }
  break_link(t, link, GB_ERR_PEER, text);
}

/* ---- Sending ---- */

void gbi_tcp_bound_unsent(gbi_tcp_conn *c, size_t bytes) {
  int unsent = (int)bytes;
  if (!setsockopt(c->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent,
                  sizeof unsent))
    c->unsent = bytes;
}

int gbi_tcp_active(int streams, uint64_t rate, uint32_t rtt_us, bool *short_p) {
  *short_p = false;
  if (rtt_us <= GBI_TCP_LONG_RTT_US) return streams;
  uint64_t twice = 2 * rate * rtt_us / 1000000;
  uint64_t want = (twice + GBI_TCP_SEND_BUFFER - 1) / GBI_TCP_SEND_BUFFER;
  *short_p = want > (uint64_t)streams;
  if (rate >= GBI_TCP_THIN_BYTES_S) return streams;
  return (int)GBI_MIN((uint64_t)streams, GBI_MAX(want, 2));
}

static void fit_active(gbi_tcp_link *link) {
  if (!link->adapts) return;
  uint64_t rate = 0;
  for (int i = 0; i < link->active; i++) rate += link->conns[i].rate;
  bool is_short;
  link->active = gbi_tcp_active(link->streams, rate, link->rtt_us, &is_short);
  if (is_short) gbi_tcp_widen(link);
}

/* Without a bound the kernel's buffers take an equal share each at once and
 * nothing is left to balance; with one that is wide for a slow connection, the
 * others wait for its last bytes. */
static void fit_unsent(gbi_tcp_conn *c) {
  size_t bytes =
      GBI_MIN(c->rate * GBI_TCP_UNSENT_MS / 1000, GBI_TCP_UNSENT_MAX);
  bytes = GBI_MAX(bytes, GBI_TCP_UNSENT_MIN);
  if (bytes > c->unsent + c->unsent / 4 || bytes < c->unsent - c->unsent / 4)
    gbi_tcp_bound_unsent(c, bytes);
}

/* Where several connections share a link, looks now and then at what this one
 * carries. */
static void follow_rate(gbi_tcp_link *link, gbi_tcp_conn *c) {
  if (!c->unsent) return;
  uint64_t now = gbi_now_ns();
  gbi_tcp_pace_look(link, now);
  if (now < c->next_rate_ns) return;
  c->next_rate_ns = now + RATE_MS * GBI_NS_PER_MS;
  uint64_t rate = gbi_socket_rate(c->fd);
  if (!rate) return;
  c->rate = rate;
  fit_active(link);
  fit_unsent(c);
}

static gbi_xfer *take_piece(gbi_tcp_link *link, gbi_tcp_conn *c) {
  gbi_xfer *xfer = link->send_head;
  if (!xfer || c->stream >= link->active) return NULL;
  follow_rate(link, c);
  size_t bytes = GBI_MIN(link->piece_bytes, xfer->bytes - xfer->posted);
  gbi_tcp_frame frame = {.stream = c->stream,
                         .tag = xfer->tag,
                         .call = xfer->call,
                         .message_bytes = xfer->bytes,
                         .offset = xfer->posted,
                         .piece_bytes = (uint32_t)bytes};
  gbi_tcp_frame_write(&frame, c->head);
  c->head_left = GBI_TCP_FRAME_BYTES;
  c->out = xfer;
  c->out_at = xfer->posted;
  c->out_end = xfer->posted + bytes;
  xfer->posted += bytes;
  xfer->inflight++;
  if (xfer->posted == xfer->bytes) {
    link->send_head = xfer->next;
    if (!link->send_head) link->send_tail = &link->send_head;
  }
  return xfer;
}

/* Leading bytes that are out: up to the lowest piece still on its way. */
static void note_sent(gbi_tcp_link *link, gbi_xfer *xfer) {
  size_t low = xfer->posted;
  for (int i = 0; i < link->streams; i++)
    if (link->conns[i].out == xfer) low = GBI_MIN(low, link->conns[i].out_at);
  xfer->moved = low;
}

static void piece_sent(gbi_tcp *t, gbi_tcp_link *link, gbi_tcp_conn *c) {
  gbi_xfer *xfer = c->out;
  c->out = NULL;
  xfer->inflight--;
  if (xfer->posted < xfer->bytes || xfer->inflight) return;
  xfer->moved = xfer->bytes;
  xfer->status = GB_OK;
  count(&t->bytes_sent, xfer->bytes);
  count(&t->messages_sent, 1);
}

/* True when all that was asked for went out. */
static bool send_some(gbi_tcp *t, gbi_tcp_link *link, gbi_tcp_conn *c,
                      size_t *moved_p) {
  gbi_xfer *xfer = c->out;
  size_t payload = GBI_MIN(c->out_end - c->out_at, GBI_TCP_CALL_BYTES);
  struct iovec iov[2] = {
      {c->head + GBI_TCP_FRAME_BYTES - c->head_left, c->head_left},
      {(char *)xfer->data + c->out_at, payload}};
  int first = c->head_left ? 0 : 1;
  struct msghdr message = {.msg_iov = iov + first,
                           .msg_iovlen = (size_t)((payload ? 2 : 1) - first)};
  ssize_t n = gbi_sendmsg(c->fd, &message, 0);
  if (n < 0) {
    if (errno != EAGAIN && errno != EINTR && errno != ENOBUFS)
      break_by_errno(t, link, errno);
    return false;
  }
  size_t sent = (size_t)n, wanted = c->head_left + payload;
  *moved_p += sent;
  size_t head = GBI_MIN(sent, c->head_left);
  c->head_left -= head;
  c->out_at += sent - head;
  if (c->out_at == c->out_end && !c->head_left) piece_sent(t, link, c);
  if (xfer->status == GB_ERR_BUSY) note_sent(link, xfer);
  return sent == wanted;
}

static unsigned send_on(gbi_tcp *t, gbi_tcp_link *link, gbi_tcp_conn *c) {
  size_t moved = 0;
  while (!link->broken && !c->eof && moved < GBI_TCP_CALL_BYTES) {
    if (!c->out && !take_piece(link, c)) break;
    if (!send_some(t, link, c, &moved)) break;
  }
  return moved > 0;
}

/* Readies a posted xfer; false: it ended at once, with its link or at stop. */
static bool take_on(const gbi_tcp *t, const gbi_tcp_link *link,
                    gbi_xfer *xfer) {
  xfer->status = GB_ERR_BUSY;
  xfer->moved = xfer->posted = xfer->inflight = 0;
  xfer->next = NULL;
  if (!t->canceled && !link->broken) return true;
  xfer->status = t->canceled ? GB_ERR_CANCELED : link->status;
  return false;
}

static bool sends(const gbi_tcp_link *link) {
  for (int i = 0; i < link->streams; i++)
    if (link->conns[i].out) return true;
  return false;
}

void gbi_tcp_post_send(gbi_transport *transport, int member, gbi_xfer *xfer) {
  gbi_tcp *t = tcp(transport);
  gbi_tcp_link *link = &t->links[member];
  if (!take_on(t, link, xfer)) return;
  if (!link->send_head && !sends(link)) gbi_tcp_pace_pause(link);
  *link->send_tail = xfer;
  link->send_tail = &xfer->next;
  for (int i = 0; i < link->streams && link->send_head; i++) {
    gbi_tcp_conn *c = &link->conns[link->next_conn];
    link->next_conn = (link->next_conn + 1) % link->streams;
    if (!c->out) send_on(t, link, c);
  }
}

/* ---- Receiving ---- */

/* How far the piece may be written now. */
static size_t gate(const gbi_tcp_conn *c) {
  const gbi_xfer *after = c->in->after;
  if (!after || after->status == GB_OK) return c->in_end;
  return GBI_MAX(c->in_at, GBI_MIN(c->in_end, after->moved));
}

static void forget_recv(gbi_tcp_link *link, gbi_xfer *xfer) {
  gbi_xfer **at = &link->recv_head;
  while (*at != xfer) at = &(*at)->next;
  *at = xfer->next;
  if (!*at) link->recv_tail = at;
}

static void refuse_call(gbi_tcp *t, gbi_tcp_link *link, gbi_tcp_conn *c,
                        gbi_xfer *xfer) {
  gb_error error;
  gb_status status = gbi_fail_mismatch(&error, t->members[t->params.me].rank,
                                       &xfer->call, link->rank, &c->frame.call);
  if (link->status == GB_OK) {
    link->status = status;
    link->error = error;
  }
  c->refused = true;
  forget_recv(link, xfer);
  xfer->status = status;
}

/* Finds the receive of the frame at hand; false when it has to wait. */
static bool match(gbi_tcp *t, gbi_tcp_link *link, gbi_tcp_conn *c) {
  if (c->in) return true;
  if (c->refused) return false;
  gbi_xfer *xfer = link->recv_head;
  while (xfer && xfer->tag != c->frame.tag) xfer = xfer->next;
  if (!xfer) return false;
  if (!gbi_call_equal(&xfer->call, &c->frame.call)) {
    refuse_call(t, link, c, xfer);
    return false;
  }
  if (xfer->bytes != c->frame.message_bytes) {
    char text[128];
    snprintf(text, sizeof text,
             "the other side sent a message of %llu bytes where %zu were "
             "expected",
             (unsigned long long)c->frame.message_bytes, xfer->bytes);
    break_link(t, link, GB_ERR_PROTOCOL, text);
    return false;
  }
  c->in = xfer;
  c->in_at = c->frame.offset;
  c->in_end = c->frame.offset + c->frame.piece_bytes;
  c->carry_bytes = 0;
  return true;
}

/* Pieces of one message come in any order over several connections. `inflight`
 * of a receive remembers, a bit each, which of the 64 pieces from `moved` on
 * are complete; what lies further away is only counted, so that `moved` may
 * lag until the message is complete. False: the piece came twice. */
static bool note_piece(gbi_tcp_link *link, gbi_xfer *xfer, size_t offset) {
  size_t piece = offset / link->piece_bytes;
  size_t first = xfer->moved / link->piece_bytes;
  if (piece < first) return false;
  if (piece - first >= 64) return true;
  uint64_t bit = UINT64_C(1) << (piece - first);
  if (xfer->inflight & bit) return false;
  xfer->inflight |= bit;
  while (xfer->inflight & 1) {
    xfer->inflight >>= 1;
    first++;
  }
  xfer->moved =
      GBI_MAX(xfer->moved, GBI_MIN(first * link->piece_bytes, xfer->bytes));
  return true;
}

/* A finished piece is note_piece's business. */
static void note_received(gbi_tcp_link *link, gbi_tcp_conn *c) {
  if (c->in_at == c->in_end) return;
  size_t in_place = c->in_at - c->carry_bytes;
  if (c->in->moved / link->piece_bytes == c->frame.offset / link->piece_bytes)
    c->in->moved = GBI_MAX(c->in->moved, in_place);
}

static void piece_received(gbi_tcp *t, gbi_tcp_link *link, gbi_tcp_conn *c) {
  gbi_xfer *xfer = c->in;
  c->has_frame = false;
  c->in = NULL;
  bool good = note_piece(link, xfer, c->frame.offset);
  if (xfer->posted >= xfer->bytes) {
    good = good && xfer->posted == xfer->bytes;
    for (int i = 0; i < link->streams; i++)
      if (link->conns[i].in == xfer) good = false;
  }
  if (!good) {
    break_link(t, link, GB_ERR_PROTOCOL,
               "the other side sent a piece of a message twice");
    return;
  }
  if (xfer->posted < xfer->bytes) return;
  forget_recv(link, xfer);
  xfer->moved = xfer->bytes;
  xfer->status = GB_OK;
  count(&t->bytes_received, xfer->bytes);
  count(&t->messages_received, 1);
}

/* Feeds whole elements; a rest waits in `carry`. `data` has room for the carry
 * in front of it when there is one. */
static void feed_sink(gbi_tcp_conn *c, const uint8_t *data, size_t bytes) {
  gbi_xfer *xfer = c->in;
  size_t offset = c->in_at - c->carry_bytes;
  size_t all = bytes + c->carry_bytes;
  if (c->carry_bytes) {
    uint8_t *start = (uint8_t *)data - c->carry_bytes;
    memcpy(start, c->carry, c->carry_bytes);
    data = start;
  }
  size_t granule = GBI_MAX(xfer->granule, 1);
  size_t whole = all - all % granule;
  /* The end of a message is never held back, whatever its poster promised. */
  if (c->in_at + bytes == xfer->bytes) whole = all;
  if (whole) xfer->sink(xfer->sink_arg, offset, data, whole);
  c->carry_bytes = all - whole;
  memcpy(c->carry, data + whole, c->carry_bytes);
}

static void took(gbi_tcp_link *link, gbi_tcp_conn *c, size_t bytes) {
  c->in_at += bytes;
  c->in->posted += bytes;
  note_received(link, c);
}

static void deliver_buffered(gbi_tcp *t, gbi_tcp_link *link, gbi_tcp_conn *c,
                             size_t bytes) {
  gbi_xfer *xfer = c->in;
  const uint8_t *data = c->buffer + c->at;
  if (!xfer->sink) {
    memcpy((char *)xfer->data + c->in_at, data, bytes);
  } else if (c->carry_bytes) {
    bytes = GBI_MIN(bytes, GBI_TCP_SCRATCH_BYTES);
    memcpy(t->scratch + GBI_TCP_SCRATCH_LEAD, data, bytes);
    feed_sink(c, t->scratch + GBI_TCP_SCRATCH_LEAD, bytes);
  } else {
    feed_sink(c, data, bytes);
  }
  c->at += bytes;
  took(link, c, bytes);
}

/* Opens the frame whose header is in the buffer. */
static bool open_frame(gbi_tcp *t, gbi_tcp_link *link, gbi_tcp_conn *c) {
  if (c->has_frame) return true;
  if (c->have - c->at < GBI_TCP_FRAME_BYTES) return false;
  const char *wrong = gbi_tcp_frame_read(c->buffer + c->at, c->stream,
                                         link->piece_bytes, &c->frame);
  if (wrong) {
    char text[128];
    snprintf(text, sizeof text, "the other side sent %s", wrong);
    break_link(t, link, GB_ERR_PROTOCOL, text);
    return false;
  }
  c->at += GBI_TCP_FRAME_BYTES;
  c->has_frame = true;
  return true;
}

/* Uses up what the buffer holds, as far as receives and gates allow. */
static unsigned consume(gbi_tcp *t, gbi_tcp_link *link, gbi_tcp_conn *c) {
  unsigned did = 0;
  while (open_frame(t, link, c) && match(t, link, c)) {
    size_t bytes = GBI_MIN(gate(c) - c->in_at, c->have - c->at);
    if (bytes) {
      deliver_buffered(t, link, c, bytes);
      did++;
    }
    if (c->in_at < c->in_end) {
      if (bytes) continue;
      break;
    }
    piece_received(t, link, c);
    did++;
  }
  return did + (link->broken ? 1 : 0);
}

static bool can_read(const gbi_tcp_conn *c) {
  if (c->eof) return false;
  return !c->has_frame || (c->in && gate(c) > c->in_at);
}

static void at_end(gbi_tcp *t, gbi_tcp_link *link, gbi_tcp_conn *c) {
  /* A peer that is done closes its connections one by one, and another one may
   * still hold its last message. */
  c->eof = true;
  bool partial = (c->in && c->in_at < c->in_end) || c->out ||
                 (!c->has_frame && c->have > c->at);
  int left = 0;
  for (int i = 0; i < link->streams; i++) left += !link->conns[i].eof;
  if (partial || !left)
    break_link(t, link, GB_ERR_PEER, "the other side closed it");
}

static ssize_t read_bytes(gbi_tcp *t, gbi_tcp_link *link, gbi_tcp_conn *c,
                          struct iovec *iov, int parts) {
  struct msghdr message = {.msg_iov = iov, .msg_iovlen = (size_t)parts};
  size_t wanted = iov[0].iov_len + (parts > 1 ? iov[1].iov_len : 0);
  ssize_t n = gbi_recvmsg(c->fd, &message, 0);
  c->drained = n < (ssize_t)wanted;
  if (n == 0) at_end(t, link, c);
  if (n < 0 && errno != EAGAIN && errno != EINTR)
    break_by_errno(t, link, errno);
  return n;
}

/* Between frames: the header, and whatever came with it. */
static ssize_t read_header(gbi_tcp *t, gbi_tcp_link *link, gbi_tcp_conn *c) {
  if (c->at) memmove(c->buffer, c->buffer + c->at, c->have - c->at);
  c->have -= c->at;
  c->at = 0;
  struct iovec iov = {c->buffer + c->have, t->buffer_bytes - c->have};
  ssize_t n = read_bytes(t, link, c, &iov, 1);
  if (n > 0) c->have += (size_t)n;
  return n;
}

/* In a frame: the payload to where it belongs, and the next header behind it.
 * The buffer is empty here. */
static ssize_t read_payload(gbi_tcp *t, gbi_tcp_link *link, gbi_tcp_conn *c) {
  gbi_xfer *xfer = c->in;
  size_t room = gate(c) - c->in_at;
  uint8_t *to = t->scratch + GBI_TCP_SCRATCH_LEAD;
  if (xfer->sink) {
    room = GBI_MIN(room, GBI_TCP_SCRATCH_BYTES);
  } else {
    room = GBI_MIN(room, GBI_TCP_CALL_BYTES);
    to = (uint8_t *)xfer->data + c->in_at;
  }
  bool ahead = c->in_at + room == c->in_end;
  struct iovec iov[2] = {{to, room},
                         {c->buffer, GBI_MIN(t->buffer_bytes, AHEAD_BYTES)}};
  c->at = c->have = 0;
  ssize_t n = read_bytes(t, link, c, iov, ahead ? 2 : 1);
  if (n <= 0) return n;
  size_t payload = GBI_MIN((size_t)n, room);
  c->have = (size_t)n - payload;
  if (xfer->sink) feed_sink(c, to, payload);
  took(link, c, payload);
  if (c->in_at == c->in_end) piece_received(t, link, c);
  return n;
}

static unsigned receive_on(gbi_tcp *t, gbi_tcp_link *link, gbi_tcp_conn *c) {
  unsigned did = consume(t, link, c);
  size_t moved = 0;
  c->drained = false;
  while (!link->broken && !c->drained && moved < GBI_TCP_CALL_BYTES &&
         can_read(c)) {
    ssize_t n =
        c->has_frame ? read_payload(t, link, c) : read_header(t, link, c);
    if (n <= 0) break;
    moved += (size_t)n;
    did++;
    if (!link->broken) did += consume(t, link, c);
  }
  if (link->broken) did++;
  return did;
}

void gbi_tcp_post_recv(gbi_transport *transport, int member, gbi_xfer *xfer) {
  gbi_tcp *t = tcp(transport);
  gbi_tcp_link *link = &t->links[member];
  if (!take_on(t, link, xfer)) return;
  *link->recv_tail = xfer;
  link->recv_tail = &xfer->next;
  /* Its message may wait here already. */
  for (int i = 0; i < link->streams && !link->broken; i++) {
    gbi_tcp_conn *c = &link->conns[i];
    if (c->has_frame && !c->in) consume(t, link, c);
  }
}

/* ---- Progress ---- */

/* Before the caller sleeps: epoll must watch exactly what could go on. A
 * connection that rests is taken out, or its end would wake the caller again
 * and again. */
static void arm(gbi_tcp *t) {
  for (int i = 0; i < t->params.members_count; i++) {
    gbi_tcp_link *link = &t->links[i];
    if (link->broken) continue;
    for (int k = 0; k < link->streams; k++) {
      gbi_tcp_conn *c = &link->conns[k];
      uint32_t events = can_read(c) ? (uint32_t)EPOLLIN : 0;
      bool sends = c->out || (link->send_head && k < link->active);
      if (!c->eof && sends) events |= EPOLLOUT;
      if (events == c->armed) continue;
      struct epoll_event event = {.events = events, .data.ptr = c};
      int how = !events    ? EPOLL_CTL_DEL
                : c->armed ? EPOLL_CTL_MOD
                           : EPOLL_CTL_ADD;
      if (!epoll_ctl(t->epoll_fd, how, c->fd, &event)) c->armed = events;
    }
  }
}

/* A peer whose host is gone: nothing was acknowledged for the whole timeout,
 * though something was sent again or probed in vain. A peer that is alive but
 * does not read acknowledges probes of its closed window. Connections with
 * nothing under way are the keep-alive's. */
static bool is_silent(int fd, uint64_t timeout_ms) {
  struct tcp_info info;
  socklen_t bytes = sizeof info;
  memset(&info, 0, sizeof info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes)) return false;
  return info.tcpi_last_ack_recv > timeout_ms &&
         (info.tcpi_retransmits || info.tcpi_probes > 1);
}

static unsigned check_silence(gbi_tcp *t) {
  uint64_t now = gbi_now_ns();
  if (now < t->next_check_ns) return 0;
  t->next_check_ns = now + CHECK_MS * GBI_NS_PER_MS;
  unsigned did = 0;
  for (int i = 0; i < t->params.members_count; i++) {
    gbi_tcp_link *link = &t->links[i];
    for (int k = 0; k < link->streams && !link->broken; k++) {
      if (link->conns[k].eof) continue;
      if (!is_silent(link->conns[k].fd, t->params.timeout_ms)) continue;
      break_by_errno(t, link, ETIMEDOUT);
      did++;
    }
  }
  return did;
}

static void ask_epoll(gbi_tcp *t) {
  struct epoll_event events[64];
  int n = epoll_wait(t->epoll_fd, events, GBI_COUNT(events), 0);
  for (int i = 0; i < n; i++) {
    gbi_tcp_conn *c = events[i].data.ptr;
    if (c) c->ready = true;
  }
}

static unsigned progress_link(gbi_tcp *t, gbi_tcp_link *link, bool all) {
  unsigned did = 0;
  for (int k = 0; k < link->streams && !link->broken; k++) {
    gbi_tcp_conn *c = &link->conns[k];
    if (c->out || link->send_head) did += send_on(t, link, c);
    if (link->broken) break;
    if (all || c->ready || c->has_frame || !(c->armed & EPOLLIN)) {
      did += receive_on(t, link, c);
      if (c->drained) c->ready = false;
    }
  }
  return did;
}

unsigned gbi_tcp_progress(gbi_transport *transport) {
  gbi_tcp *t = tcp(transport);
  if (atomic_load_explicit(&t->stopped, memory_order_acquire)) {
    if (t->canceled) return 0;
    t->canceled = true;
    for (int i = 0; i < t->params.members_count; i++)
      fail_pending(&t->links[i], GB_ERR_CANCELED);
    return 1;
  }
  bool all = t->conns_count <= TRY_MAX;
  if (!all) ask_epoll(t);
  unsigned did = 0;
  for (int i = 0; i < t->params.members_count; i++)
    if (!t->links[i].broken) did += progress_link(t, &t->links[i], all);
  if (!did) {
    did = check_silence(t);
    arm(t);
  }
  return did;
}
