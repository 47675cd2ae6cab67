/* The fake libibverbs from inside; ibverbs_fake.h says what it is. One lock for
 * each open device guards all that hangs on it. */
#ifndef FAKES_IBVERBS_STATE_H
#define FAKES_IBVERBS_STATE_H

#include "fakes/ibverbs_fake.h"
#include "fakes/ibverbs_names.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

enum {
  FAKE_IB_DEVICES_MOST = 16,
  FAKE_IB_GIDS = 16,
  FAKE_IB_SGES_MOST = 16,
  FAKE_IB_PORTS_MOST = 4
};
#define FAKE_IB_MESSAGE_MOST (UINT32_C(1) << 30)

typedef struct fake_ib_device {
  struct ibv_device device; /* first */
  int ports, state, link, mtu, lid;
  int wr_most, cqe_most, inline_most, sge_most, qps_most;
  uint64_t mr_most;
  union ibv_gid gids[FAKE_IB_GIDS];
} fake_ib_device;

typedef struct fake_ib_event {
  struct fake_ib_event *next;
  struct ibv_async_event event;
} fake_ib_event;

typedef struct fake_ib_context {
  struct ibv_context context; /* first */
  fake_ib_device *device;
  struct fake_ib_context *next;
  pthread_mutex_t lock;
  pthread_t thread;
  int wake; /* eventfd */
  bool stop;
  bool is_down;   /* by a fault */
  uint64_t up_at; /* ns, 0: stays */
  int objects;    /* PDs, CQs and channels */
  int qps_count;
  struct fake_ib_qp *qps;
  struct fake_ib_mr *mrs;
  fake_ib_event *events, **events_end;
} fake_ib_context;

typedef struct fake_ib_pd {
  struct ibv_pd pd;
  int uses;
} fake_ib_pd;

typedef struct fake_ib_mr {
  struct ibv_mr mr;
  struct fake_ib_mr *next;
  char *memory; /* of address `iova` */
  uint64_t iova;
  int access;
  int posted;     /* scatter and gather entries of posted work */
  bool is_mapped; /* a DMA buffer, by us */
} fake_ib_mr;

typedef struct fake_ib_channel {
  struct ibv_comp_channel channel;
  struct fake_ib_cq *first; /* with an event */
  int cqs;
} fake_ib_channel;

enum { FAKE_IB_NOT_ARMED, FAKE_IB_SOLICITED, FAKE_IB_ANY };

typedef struct fake_ib_done {
  struct ibv_wc wc;
  struct fake_ib_qp *qp;
  uint64_t frees; /* slots of the send queue up to this one; 0: a receive */
} fake_ib_done;

typedef struct fake_ib_cq {
  struct ibv_cq cq;
  fake_ib_done *ring;
  uint32_t head, count, capacity;
  int armed;
  int uses;                /* QPs, twice for both queues */
  uint64_t events;         /* in the channel and not taken */
  uint64_t unacked;        /* taken */
  struct fake_ib_cq *next; /* in the channel */
} fake_ib_cq;

/* Posted work. */
typedef struct fake_ib_work {
  uint64_t id;
  int opcode;
  unsigned flags;
  uint32_t imm;
  uint64_t remote;
  uint32_t rkey;
  int sges_count;
  struct ibv_sge sges[FAKE_IB_SGES_MOST];
  char *inlined; /* of the queue's memory */
  uint64_t bytes;
  uint64_t sum; /* of what is sent, as it was when posted */
  int fault;    /* status that it ends with */
  bool lose;
  bool looked; /* at the faults */
  uint64_t held_until;
  uint64_t delay_ms;
} fake_ib_work;

/* On the wire: a sender says hello, then messages; the other side answers. All
 * in the host's byte order. */
enum { FAKE_IB_SEND = 1, FAKE_IB_WRITE, FAKE_IB_READ };
typedef struct fake_ib_hello {
  uint64_t magic;
  uint32_t from, to; /* QP numbers */
  union ibv_gid from_gid, to_gid;
  uint32_t from_lid, to_lid;
  uint32_t psn;
  uint32_t rnr_retry;
  uint64_t sequence; /* of the next message */
} fake_ib_hello;
typedef struct fake_ib_head {
  uint64_t sequence;
  uint32_t kind;
  uint32_t has_imm, imm, solicited, lose;
  uint32_t rkey;
  uint64_t remote;
  uint64_t bytes;
} fake_ib_head;
/* status: 0, FAKE_IB_SILENCE, or what the sender's work completes with. */
enum { FAKE_IB_SILENCE = 1000 };
typedef struct fake_ib_answer {
  uint64_t sequence; /* messages that have arrived */
  uint32_t status;
  uint32_t bytes; /* of a READ, that follow */
} fake_ib_answer;
#define FAKE_IB_MAGIC UINT64_C(0x6661b6e1b0000001)

typedef struct fake_ib_out {
  int fd; /* -1 */
  bool said_hello;
  size_t hello_at;
  fake_ib_head head;
  size_t head_at; /* bytes of it that are written */
  uint64_t at;    /* of its data */
  fake_ib_answer answer;
  size_t answer_at;
  uint64_t data_at;
  uint64_t lost_at; /* since then nobody answers; 0 */
  uint64_t retry_at;
} fake_ib_out;

typedef struct fake_ib_in {
  int fd;
  bool has_hello;
  fake_ib_hello hello;
  size_t hello_at;
  fake_ib_head head;
  size_t head_at;
  bool begun; /* its place is known */
  uint64_t at;
  fake_ib_mr *mr; /* of a WRITE */
  bool violated;  /* that was deregistered meanwhile */
  bool drops;     /* its data goes nowhere */
  uint64_t rnr_since;
  uint64_t rests_until;
  char *answers;
  size_t answers_at, answers_bytes, answers_room;
} fake_ib_in;

typedef struct fake_ib_qp {
  struct ibv_qp qp;
  struct fake_ib_qp *next;
  struct ibv_qp_attr attr;
  struct ibv_qp_cap cap;
  bool sig_all;
  int listener;
  int unacked; /* async events */
  /* Send queue: numbers of work requests, each counted from 0. */
  fake_ib_work *sends;
  char *inline_memory;
  uint64_t posted, sent, acked, done, freed;
  fake_ib_out out;
  /* Receive queue. */
  fake_ib_work *receives;
  uint64_t received_posted, received;
  uint64_t expected; /* sequence number */
  fake_ib_in in;
} fake_ib_qp;

/* ibverbs.c */
uint64_t fake_ib_now(void);
/* The n-th call of a function fails: its errno; 0. */
int fake_ib_fails(const char *function);
void fake_ib_misuse(const char *format, ...)
    __attribute__((noreturn, format(printf, 1, 2)));
fake_ib_context *fake_ib_of(struct ibv_context *context);
void fake_ib_wake(fake_ib_context *context);
/* What is to happen when this piece of work goes out; sets its fields. */
void fake_ib_faults(fake_ib_qp *qp, fake_ib_work *work);
void fake_ib_tell(fake_ib_context *context, int type, fake_ib_qp *qp);
void fake_ib_port_changes(fake_ib_context *context, bool down);
extern uint64_t fake_ib_slow_us;
extern fake_verbs_counts fake_ib_counts; /* atomically */
#define FAKE_IB_COUNT(what, more) \
  __atomic_add_fetch(&fake_ib_counts.what, (uint64_t)(more), __ATOMIC_RELAXED)
extern int fake_ib_live[6];
enum {
  FAKE_IB_LIVE_CONTEXTS,
  FAKE_IB_LIVE_PDS,
  FAKE_IB_LIVE_MRS,
  FAKE_IB_LIVE_CHANNELS,
  FAKE_IB_LIVE_CQS,
  FAKE_IB_LIVE_QPS
};
#define FAKE_IB_LIVE(what, more) \
  __atomic_add_fetch(&fake_ib_live[FAKE_IB_LIVE_##what], more, __ATOMIC_RELAXED)

/* ibverbs_memory.c */
fake_ib_mr *fake_ib_local(fake_ib_qp *qp, const struct ibv_sge *sge,
                          bool written);
fake_ib_mr *fake_ib_remote(fake_ib_qp *qp, uint32_t rkey, uint64_t address,
                           uint64_t bytes, int access);
/* Entries of memory for `work` from byte `at` on, `most` bytes at most. -1: a
 * key or range is wrong. */
int fake_ib_gather(fake_ib_qp *qp, const fake_ib_work *work, uint64_t at,
                   uint64_t most, bool written, struct iovec *into);
uint64_t fake_ib_sum(fake_ib_qp *qp, const fake_ib_work *work);
/* Counts posted work at its regions; says when one is not there. */
void fake_ib_use(fake_ib_qp *qp, const fake_ib_work *work, int more);

/* ibverbs_cq.c */
void fake_ib_complete(fake_ib_cq *cq, const fake_ib_done *done, bool solicited);
void fake_ib_forget(fake_ib_cq *cq, const fake_ib_qp *qp);
int fake_ib_poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wcs);
int fake_ib_req_notify(struct ibv_cq *cq, int solicited_only);

/* ibverbs_qp.c */
int fake_ib_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
                      struct ibv_send_wr **bad);
int fake_ib_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr,
                      struct ibv_recv_wr **bad);
/* The oldest send ends; not 0 breaks the QP. */
void fake_ib_send_ends(fake_ib_qp *qp, int status);
void fake_ib_receive_ends(fake_ib_qp *qp, int status, const fake_ib_head *head);
/* To the error state: everything posted is flushed. */
void fake_ib_break(fake_ib_qp *qp);
int fake_ib_listen(fake_ib_qp *qp);

/* ibverbs_wire.c */
void *fake_ib_adapter(void *context);
void fake_ib_send_some(fake_ib_qp *qp);
void fake_ib_hang_up(fake_ib_qp *qp);

#endif
