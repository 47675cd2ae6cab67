/* The fake libibverbs: the adapter's thread and the wire between two queue
 * pairs. A queue pair that has something to send connects to the socket named
 * by the peer's number, says hello, and then sends messages; on the way back
 * come answers. */
#include "fakes/ibverbs_state.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MS UINT64_C(1000000)
enum { TICK_MS = 2, AGAIN_MS = 5 };

/* --- sockets
 * --------------------------------------------------------------------- */

static socklen_t name_of(uint32_t number, struct sockaddr_un *name) {
  *name = (struct sockaddr_un){.sun_family = AF_UNIX};
  int n = snprintf(name->sun_path + 1, sizeof name->sun_path - 1,
                   "fake-verbs-%06x", number);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

int fake_ib_listen(fake_ib_qp *qp) {
  struct sockaddr_un name;
  qp->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  for (int i = 0; qp->listener >= 0 && i < 100; i++) {
    uint32_t number;
    if (getrandom(&number, sizeof number, 0) != sizeof number) return -1;
    number = (number & 0xffffff) | 0x100; /* 0 and 1 are special */
    socklen_t bytes = name_of(number, &name);
    if (bind(qp->listener, (void *)&name, bytes)) continue;
    qp->qp.qp_num = number;
    return listen(qp->listener, 8);
  }
  return -1;
}

static void close_fd(int *fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

static void close_in(fake_ib_qp *qp) {
  fake_ib_in *in = &qp->in;
  close_fd(&in->fd);
  in->has_hello = in->begun = in->violated = false;
  in->hello_at = in->head_at = 0;
  in->at = in->rnr_since = in->rests_until = 0;
  in->mr = NULL;
  in->answers_at = in->answers_bytes = 0;
}

static void close_out(fake_ib_qp *qp) {
  fake_ib_out *out = &qp->out;
  close_fd(&out->fd);
  out->said_hello = false;
  out->hello_at = out->head_at = out->answer_at = 0;
  out->at = out->data_at = 0;
  qp->sent = qp->acked;
}

void fake_ib_hang_up(fake_ib_qp *qp) {
  close_in(qp);
  close_out(qp);
  qp->out.lost_at = qp->out.retry_at = 0;
}

/* Nobody answers: tries again for as long as the attributes say. */
static void lose(fake_ib_qp *qp) {
  uint64_t now = fake_ib_now();
  close_out(qp);
  if (!qp->out.lost_at) qp->out.lost_at = now;
  qp->out.retry_at = now + AGAIN_MS * MS;
}

/* -1: nothing now; -2: the connection is gone. */
static ssize_t read_some(int fd, struct iovec *into, int count) {
  struct msghdr message = {.msg_iov = into, .msg_iovlen = (size_t)count};
  ssize_t n;
  do n = recvmsg(fd, &message, MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  if (n > 0) return n;
  if (n < 0 && errno == EAGAIN) return -1;
  return n < 0 && errno == EFAULT ? -3 : -2;
}

static ssize_t write_some(int fd, struct iovec *from, int count) {
  struct msghdr message = {.msg_iov = from, .msg_iovlen = (size_t)count};
  ssize_t n;
  do n = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  while (n < 0 && errno == EINTR);
  if (n >= 0) return n;
  if (errno == EAGAIN) return -1;
  return errno == EFAULT ? -3 : -2;
}

/* Fills a structure of `bytes` bytes. 1: it is full. */
static int read_whole(int fd, void *into, size_t bytes, size_t *at) {
  while (*at < bytes) {
    struct iovec part = {(char *)into + *at, bytes - *at};
    ssize_t n = read_some(fd, &part, 1);
    if (n < 0) return (int)n;
    *at += (size_t)n;
  }
  return 1;
}

/* --- sending
 * ---------------------------------------------------------------------- */

static fake_ib_work *send_of(fake_ib_qp *qp, uint64_t n) {
  return &qp->sends[n % qp->cap.max_send_wr];
}

static bool is_up(const fake_ib_qp *qp) {
  const fake_ib_context *c = fake_ib_of(qp->qp.context);
  return !c->is_down && c->device->state == IBV_PORT_ACTIVE;
}

static bool call(fake_ib_qp *qp) {
  struct sockaddr_un name;
  socklen_t bytes = name_of(qp->attr.dest_qp_num, &name);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  qp->out.fd = fd;
  if (!connect(fd, (void *)&name, bytes)) return true;
  lose(qp);
  return false;
}

static fake_ib_hello hello_of(const fake_ib_qp *qp) {
  const fake_ib_device *d = fake_ib_of(qp->qp.context)->device;
  const struct ibv_ah_attr *ah = &qp->attr.ah_attr;
  fake_ib_hello hello = {.magic = FAKE_IB_MAGIC,
                         .from = qp->qp.qp_num,
                         .to = qp->attr.dest_qp_num,
                         .psn = qp->attr.sq_psn,
                         .rnr_retry = qp->attr.rnr_retry,
                         .sequence = qp->acked};
  if (d->link == IBV_LINK_LAYER_INFINIBAND) {
    hello.from_lid = (uint32_t)d->lid;
    hello.to_lid = ah->dlid;
  }
  if (ah->is_global) {
    hello.from_gid = d->gids[ah->grh.sgid_index];
    hello.to_gid = ah->grh.dgid;
  }
  return hello;
}

static bool say_hello(fake_ib_qp *qp) {
  fake_ib_out *out = &qp->out;
  fake_ib_hello hello = hello_of(qp);
  while (out->hello_at < sizeof hello) {
    struct iovec part = {(char *)&hello + out->hello_at,
                         sizeof hello - out->hello_at};
    ssize_t n = write_some(out->fd, &part, 1);
    if (n < 0) return false;
    out->hello_at += (size_t)n;
  }
  return out->said_hello = true;
}

static fake_ib_head head_of(const fake_ib_qp *qp, const fake_ib_work *work) {
  fake_ib_head head = {.sequence = qp->sent,
                       .imm = work->imm,
                       .remote = work->remote,
                       .rkey = work->rkey,
                       .bytes = work->bytes,
                       .lose = work->lose,
                       .solicited = !!(work->flags & IBV_SEND_SOLICITED)};
  head.has_imm = work->opcode == IBV_WR_SEND_WITH_IMM ||
                 work->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  head.kind = work->opcode == IBV_WR_RDMA_READ ? FAKE_IB_READ
              : work->opcode == IBV_WR_RDMA_WRITE ||
                      work->opcode == IBV_WR_RDMA_WRITE_WITH_IMM
                  ? FAKE_IB_WRITE
                  : FAKE_IB_SEND;
  return head;
}

/* One write of the message's rest. False: no more now. */
static bool write_part(fake_ib_qp *qp, fake_ib_work *work) {
  fake_ib_out *out = &qp->out;
  struct iovec parts[FAKE_IB_SGES_MOST + 1];
  uint64_t data = work->opcode == IBV_WR_RDMA_READ ? 0 : work->bytes;
  int count = 0, more = 0;
  if (out->head_at < sizeof out->head) {
    parts[0].iov_base = (char *)&out->head + out->head_at;
    parts[0].iov_len = sizeof out->head - out->head_at;
    count = 1;
  }
  if (out->at < data)
    more =
        fake_ib_gather(qp, work, out->at, data - out->at, false, parts + count);
  ssize_t n = more < 0 ? -3 : write_some(out->fd, parts, count + more);
  if (n == -3) work->fault = IBV_WC_LOC_PROT_ERR;
  if (n < 0) return false;
  uint64_t of_head = sizeof out->head - out->head_at;
  if (of_head > (uint64_t)n) of_head = (uint64_t)n;
  out->head_at += of_head;
  out->at += (uint64_t)n - of_head;
  if (out->head_at == sizeof out->head && out->at == data) {
    out->head_at = 0;
    out->at = 0;
    qp->sent++;
  }
  return true;
}

/* Where local memory is wrong, nothing of the message goes out. */
static bool is_sendable(fake_ib_qp *qp, const fake_ib_work *work) {
  struct iovec parts[FAKE_IB_SGES_MOST];
  return fake_ib_gather(qp, work, 0, work->bytes,
                        work->opcode == IBV_WR_RDMA_READ, parts) >= 0;
}

void fake_ib_send_some(fake_ib_qp *qp) {
  fake_ib_out *out = &qp->out;
  while (qp->qp.state == IBV_QPS_RTS && qp->sent < qp->posted) {
    fake_ib_work *work = send_of(qp, qp->sent);
    if (!work->looked) {
      fake_ib_faults(qp, work);
      if (!work->fault && !is_sendable(qp, work))
        work->fault = IBV_WC_LOC_PROT_ERR;
      continue;
    }
    if (work->fault || !is_up(qp)) return;
    if (out->fd < 0 && (fake_ib_now() < out->retry_at || !call(qp))) return;
    if (!out->said_hello && !say_hello(qp)) return;
    if (!out->head_at && !out->at) out->head = head_of(qp, work);
    if (!write_part(qp, work)) return;
  }
}

/* What was acknowledged ends, in order, unless it is held back. */
static void end_acked(fake_ib_qp *qp) {
  while (qp->done < qp->acked) {
    fake_ib_work *work = send_of(qp, qp->done);
    uint64_t now = fake_ib_now();
    if (work->delay_ms) {
      work->held_until = now + work->delay_ms * MS;
      work->delay_ms = 0;
    }
    if (work->held_until > now) return;
    fake_ib_send_ends(qp, 0);
  }
  if (qp->done < qp->posted && send_of(qp, qp->done)->fault)
    fake_ib_send_ends(qp, send_of(qp, qp->done)->fault);
}

/* The data of a READ, of the oldest message. 1: all is there. */
static int read_data(fake_ib_qp *qp) {
  fake_ib_out *out = &qp->out;
  const fake_ib_work *work = send_of(qp, out->answer.sequence - 1);
  while (out->data_at < out->answer.bytes) {
    struct iovec parts[FAKE_IB_SGES_MOST];
    int count = fake_ib_gather(qp, work, out->data_at,
                               out->answer.bytes - out->data_at, true, parts);
    ssize_t n = count < 0 ? -3 : read_some(out->fd, parts, count);
    if (n < 0) return (int)n;
    out->data_at += (uint64_t)n;
  }
  out->data_at = 0;
  return 1;
}

static void read_answers(fake_ib_qp *qp) {
  fake_ib_out *out = &qp->out;
  while (out->fd >= 0) {
    int n =
        read_whole(out->fd, &out->answer, sizeof out->answer, &out->answer_at);
    if (n > 0 && !out->answer.status && out->answer.bytes) n = read_data(qp);
    if (n == -1) return;
    if (n == -3) send_of(qp, qp->acked)->fault = IBV_WC_LOC_PROT_ERR;
    if (n < 0 || out->answer.status == FAKE_IB_SILENCE) {
      lose(qp);
      return;
    }
    out->answer_at = 0;
    out->lost_at = 0;
    if (out->answer.sequence > qp->acked) qp->acked = out->answer.sequence;
    if (qp->sent < qp->acked) qp->sent = qp->acked;
    if (out->answer.status) {
      send_of(qp, qp->acked)->fault = (int)out->answer.status;
      return;
    }
  }
}

static void check_lost(fake_ib_qp *qp) {
  fake_ib_out *out = &qp->out;
  if (qp->acked == qp->posted || qp->qp.state != IBV_QPS_RTS) return;
  if (!is_up(qp) && !out->lost_at) out->lost_at = fake_ib_now();
  if (!out->lost_at || !qp->attr.timeout) return;
  uint64_t most =
      (UINT64_C(4096) << qp->attr.timeout) * (uint64_t)(qp->attr.retry_cnt + 1);
  if (fake_ib_now() - out->lost_at < most) return;
  fake_ib_work *work = send_of(qp, qp->acked);
  if (!work->fault) work->fault = IBV_WC_RETRY_EXC_ERR;
}

/* --- receiving
 * ----------------------------------------------------------------------- */

static void write_answers(fake_ib_qp *qp) {
  fake_ib_in *in = &qp->in;
  while (in->fd >= 0 && in->answers_at < in->answers_bytes) {
    struct iovec part = {in->answers + in->answers_at,
                         in->answers_bytes - in->answers_at};
    ssize_t n = write_some(in->fd, &part, 1);
    if (n == -1) return;
    if (n < 0) {
      close_in(qp);
      return;
    }
    in->answers_at += (size_t)n;
  }
  in->answers_at = in->answers_bytes = 0;
}

static void answer(fake_ib_qp *qp, int status, const void *data,
                   uint64_t bytes) {
  fake_ib_in *in = &qp->in;
  fake_ib_answer a = {.sequence = qp->expected,
                      .status = (uint32_t)status,
                      .bytes = (uint32_t)bytes};
  size_t room = in->answers_bytes + sizeof a + (size_t)bytes;
  if (room > in->answers_room) {
    char *more = realloc(in->answers, room * 2);
    if (!more) abort();
    in->answers = more;
    in->answers_room = room * 2;
  }
  memcpy(in->answers + in->answers_bytes, &a, sizeof a);
  if (bytes)
    memcpy(in->answers + in->answers_bytes + sizeof a, data, (size_t)bytes);
  in->answers_bytes = room;
  write_answers(qp);
}

/* The peer's work fails with `status`, and this queue pair breaks too. */
static void refuse(fake_ib_qp *qp, int status, int event) {
  answer(qp, status, NULL, 0);
  fake_ib_break(qp);
  if (event) fake_ib_tell(fake_ib_of(qp->qp.context), event, qp);
}

static bool is_of_device(const fake_ib_device *d, const union ibv_gid *gid) {
  for (int i = 0; i < FAKE_IB_GIDS; i++)
    if (!memcmp(&d->gids[i], gid, sizeof *gid)) return true;
  return false;
}

static bool is_for_us(const fake_ib_qp *qp, const fake_ib_hello *hello) {
  const fake_ib_device *d = fake_ib_of(qp->qp.context)->device;
  const struct ibv_ah_attr *ah = &qp->attr.ah_attr;
  if (qp->qp.state != IBV_QPS_RTR && qp->qp.state != IBV_QPS_RTS) return false;
  if (hello->magic != FAKE_IB_MAGIC || hello->to != qp->qp.qp_num ||
      hello->from != qp->attr.dest_qp_num || hello->psn != qp->attr.rq_psn ||
      hello->sequence > qp->expected)
    return false;
  if (d->link == IBV_LINK_LAYER_INFINIBAND &&
      (hello->to_lid != (uint32_t)d->lid || hello->from_lid != ah->dlid))
    return false;
  return !ah->is_global ||
         (is_of_device(d, &hello->to_gid) &&
          !memcmp(&hello->from_gid, &ah->grh.dgid, sizeof ah->grh.dgid));
}

static void hang_up_silently(fake_ib_qp *qp) {
  answer(qp, FAKE_IB_SILENCE, NULL, 0);
  close_in(qp);
}

static void accept_one(fake_ib_qp *qp) {
  int fd = accept4(qp->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) return;
  close_in(qp);
  qp->in.fd = fd;
}

/* Nobody has posted a receive. True: wait on. */
static bool not_ready(fake_ib_qp *qp) {
  static const uint32_t us[32] = {
      655360, 10,    20,    30,     40,     60,     80,     120,
      160,    240,   320,   480,    640,    960,    1280,   1920,
      2560,   3840,  5120,  7680,   10240,  15360,  20480,  30720,
      40960,  61440, 81920, 122880, 163840, 245760, 327680, 491520};
  fake_ib_in *in = &qp->in;
  uint64_t now = fake_ib_now();
  if (!in->rnr_since) {
    FAKE_IB_COUNT(rnr, 1);
    in->rnr_since = now;
  }
  uint64_t rests = us[qp->attr.min_rnr_timer] * UINT64_C(1000);
  if (in->hello.rnr_retry == 7 ||
      now - in->rnr_since <= rests * (in->hello.rnr_retry + 1))
    return true;
  answer(qp, IBV_WC_RNR_RETRY_EXC_ERR, NULL, 0);
  close_in(qp);
  return false;
}

static fake_ib_work *receive_of(fake_ib_qp *qp) {
  return &qp->receives[qp->received % qp->cap.max_recv_wr];
}

static void begin_write(fake_ib_qp *qp) {
  fake_ib_in *in = &qp->in;
  if (!in->head.bytes) return;
  in->mr = fake_ib_remote(qp, in->head.rkey, in->head.remote, in->head.bytes,
                          IBV_ACCESS_REMOTE_WRITE);
  if (!in->mr) refuse(qp, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

static void do_read(fake_ib_qp *qp) {
  fake_ib_in *in = &qp->in;
  fake_ib_head head = in->head;
  fake_ib_mr *mr = fake_ib_remote(qp, head.rkey, head.remote, head.bytes,
                                  IBV_ACCESS_REMOTE_READ);
  if (!mr && head.bytes) {
    refuse(qp, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
    return;
  }
  in->head_at = 0;
  if (head.sequence == qp->expected) qp->expected++;
  answer(qp, 0, mr ? mr->memory + (head.remote - mr->iova) : NULL, head.bytes);
}

/* The head is there: where the data goes. False: not yet, or no more. */
static bool begin(fake_ib_qp *qp) {
  fake_ib_in *in = &qp->in;
  const fake_ib_head *head = &in->head;
  if (head->kind == FAKE_IB_READ) {
    do_read(qp);
    return in->fd >= 0;
  }
  in->drops = head->lose || head->sequence < qp->expected;
  bool needs = !in->drops && (head->kind == FAKE_IB_SEND || head->has_imm);
  if (needs && qp->received == qp->received_posted) {
    not_ready(qp);
    return false;
  }
  in->rnr_since = 0;
  in->begun = true;
  in->at = 0;
  if (in->drops) return true;
  if (head->kind == FAKE_IB_WRITE)
    begin_write(qp);
  else if (head->bytes > receive_of(qp)->bytes) {
    answer(qp, IBV_WC_REM_INV_REQ_ERR, NULL, 0);
    fake_ib_receive_ends(qp, IBV_WC_LOC_LEN_ERR, NULL);
  }
  return in->fd >= 0;
}

static ssize_t read_into_place(fake_ib_qp *qp) {
  fake_ib_in *in = &qp->in;
  uint64_t left = in->head.bytes - in->at;
  struct iovec parts[FAKE_IB_SGES_MOST];
  char nowhere[16384];
  int count = 1;
  if (in->drops) {
    parts[0].iov_base = nowhere;
    parts[0].iov_len = left < sizeof nowhere ? (size_t)left : sizeof nowhere;
  } else if (in->head.kind == FAKE_IB_WRITE) {
    if (in->violated) return -3;
    parts[0].iov_base =
        in->mr->memory + (in->head.remote - in->mr->iova) + in->at;
    parts[0].iov_len = (size_t)left;
  } else {
    count = fake_ib_gather(qp, receive_of(qp), in->at, left, true, parts);
    if (count < 0) return -3;
  }
  return read_some(in->fd, parts, count);
}

static void cannot_place(fake_ib_qp *qp) {
  if (qp->in.head.kind == FAKE_IB_WRITE) {
    refuse(qp, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
  } else {
    answer(qp, IBV_WC_REM_OP_ERR, NULL, 0);
    fake_ib_receive_ends(qp, IBV_WC_LOC_PROT_ERR, NULL);
  }
}

static void end_message(fake_ib_qp *qp) {
  fake_ib_in *in = &qp->in;
  fake_ib_head head = in->head;
  bool drops = in->drops;
  in->begun = false;
  in->head_at = 0;
  in->mr = NULL;
  if (fake_ib_slow_us) in->rests_until = fake_ib_now() + fake_ib_slow_us * 1000;
  if (head.sequence == qp->expected) qp->expected++;
  answer(qp, 0, NULL, 0);
  if (drops) return;
  FAKE_IB_COUNT(bytes_received, head.bytes);
  if (head.kind == FAKE_IB_SEND || head.has_imm)
    fake_ib_receive_ends(qp, 0, &head);
}

/* One step of what comes in. False: no more now. */
static bool receive_part(fake_ib_qp *qp) {
  fake_ib_in *in = &qp->in;
  int n = 1;
  if (in->rests_until > fake_ib_now()) return false;
  if (!in->has_hello) {
    n = read_whole(in->fd, &in->hello, sizeof in->hello, &in->hello_at);
    if (n > 0 && !is_for_us(qp, &in->hello)) {
      hang_up_silently(qp);
      return false;
    }
    in->has_hello = n > 0;
    if (n > 0) answer(qp, 0, NULL, 0);
  } else if (!in->begun) {
    n = read_whole(in->fd, &in->head, sizeof in->head, &in->head_at);
    if (n > 0) return begin(qp);
  } else if (in->at < in->head.bytes) {
    ssize_t got = read_into_place(qp);
    if (got > 0) in->at += (uint64_t)got;
    n = got > 0 ? 1 : (int)got;
  } else {
    end_message(qp);
    return in->fd >= 0;
  }
  if (n == -2) close_in(qp);
  if (n == -3) cannot_place(qp);
  return n > 0 && in->fd >= 0;
}

/* --- the thread
 * ---------------------------------------------------------------------- */

static void step(fake_ib_qp *qp) {
  bool up = is_up(qp);
  accept_one(qp);
  if (!up) {
    close_in(qp);
    close_out(qp);
  }
  write_answers(qp);
  while (qp->in.fd >= 0 && receive_part(qp)) continue;
  read_answers(qp);
  fake_ib_send_some(qp);
  check_lost(qp);
  if (qp->qp.state == IBV_QPS_RTS) end_acked(qp);
}

typedef struct polled {
  struct pollfd *fds;
  size_t count, room;
  bool ticks;
} polled;

static void add(polled *p, int fd, short events) {
  if (p->count == p->room) {
    p->room = p->room ? p->room * 2 : 64;
    p->fds = realloc(p->fds, p->room * sizeof *p->fds);
    if (!p->fds) abort();
  }
  p->fds[p->count++] = (struct pollfd){.fd = fd, .events = events};
}

static void add_qp(polled *p, const fake_ib_qp *qp) {
  const fake_ib_in *in = &qp->in;
  const fake_ib_out *out = &qp->out;
  bool rests = in->rnr_since || in->rests_until > fake_ib_now();
  bool waits = qp->qp.state == IBV_QPS_RTS && qp->acked < qp->posted;
  add(p, qp->listener, POLLIN);
  if (in->fd >= 0 && !rests)
    add(p, in->fd,
        (short)(POLLIN | (in->answers_at < in->answers_bytes ? POLLOUT : 0)));
  if (out->fd >= 0)
    add(p, out->fd,
        (short)(POLLIN | (waits && qp->sent < qp->posted ? POLLOUT : 0)));
  if (rests || qp->done < qp->acked || (waits && out->lost_at) ||
      (waits && !is_up(qp)))
    p->ticks = true;
}

void *fake_ib_adapter(void *arg) {
  fake_ib_context *c = arg;
  polled p = {0};
  pthread_mutex_lock(&c->lock);
  while (!c->stop) {
    if (c->up_at && fake_ib_now() >= c->up_at) fake_ib_port_changes(c, false);
    p.count = 0;
    p.ticks = c->up_at != 0;
    add(&p, c->wake, POLLIN);
    for (fake_ib_qp *qp = c->qps; qp; qp = qp->next) step(qp);
    for (fake_ib_qp *qp = c->qps; qp; qp = qp->next) add_qp(&p, qp);
    pthread_mutex_unlock(&c->lock);
    uint64_t wakes;
    poll(p.fds, p.count, p.ticks ? TICK_MS : -1);
    if (read(c->wake, &wakes, sizeof wakes) < 0) wakes = 0;
    pthread_mutex_lock(&c->lock);
  }
  pthread_mutex_unlock(&c->lock);
  free(p.fds);
  return NULL;
}
