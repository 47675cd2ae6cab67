/* transport/verbs: links of one reliable connection (RC queue pair) each,
 * driven by the calling thread. Nothing outside this folder includes this
 * header. docs/wire/verbs.md has the protocol.
 *
 *   verbs_abi.h, library.c  libibverbs
 *   device.c   settings; which device, port and GID
 *   verbs.c    open, close, describe
 *   connect.c  queue pairs up, hello
 *   wire.c     the header in front of every message
 *   queue.c    work requests, completions, credits, breaking
 *   send.c     the sending side of a link
 *   receive.c  the receiving side
 *
 * A queue pair has GBI_VERBS_DATA + GBI_VERBS_CONTROL receives posted, each
 * into a slot of registered memory. A sender has a credit for each and never
 * has more under way, so that the receiver is always ready. Data (messages, and
 * the announcements of long ones) may wait in their slots for a receive;
 * control (credits, grants, goodbye) is used up on arrival, so that it gets
 * through whatever data wait. */
#ifndef GBI_TRANSPORT_VERBS_VERBS_H
#define GBI_TRANSPORT_VERBS_VERBS_H

#include "transport/verbs/device.h"

#include <stdatomic.h>

enum {
  GBI_VERBS_VERSION = 1,
  GBI_VERBS_DATA = 32,   /* receives for data: enough for 100 Gbit/s and 40 us
                            in slots of 16 KiB */
  GBI_VERBS_CONTROL = 8, /* and for control */
  GBI_VERBS_SLOTS = GBI_VERBS_DATA + GBI_VERBS_CONTROL,
  GBI_VERBS_QUEUE = 64, /* send requests under way, each with a slot */
  GBI_VERBS_SIGNAL = 8, /* a completion is asked for at least so often */
  GBI_VERBS_HEAD = 64,
  GBI_VERBS_SLOT = 16384 + GBI_VERBS_HEAD,
  GBI_VERBS_LONGS = 4,        /* messages under way from registered memory */
  GBI_VERBS_MEMBERS_MAX = 200 /* their numbers fit in an address */
};
/* What one RDMA write carries: each needs a credit, and tells the receiver how
 * far it is. */
#define GBI_VERBS_WRITE_BYTES ((size_t)256 << 10)

typedef enum gbi_verbs_type {
  GBI_VERBS_HELLO = 1, /* control */
  GBI_VERBS_MESSAGE,   /* data: a part of a message, or all of it */
  GBI_VERBS_ANNOUNCE,  /* data: a long message waits to be asked for */
  GBI_VERBS_GRANT,     /* control: write it to this address */
  GBI_VERBS_STREAM,    /* control: send it in MESSAGEs */
  GBI_VERBS_CREDIT,    /* control */
  GBI_VERBS_BYE        /* control: nothing comes any more */
} gbi_verbs_type;

/* The header of a SEND, decoded. */
typedef struct gbi_verbs_head {
  uint8_t type;
  uint16_t data_credits, control_credits; /* given back */
  uint32_t payload;                       /* bytes behind the header */
  uint64_t tag;
  gbi_call call;
  uint64_t message_bytes, offset;
} gbi_verbs_head;

void gbi_verbs_head_write(const gbi_verbs_head *head, uint8_t *raw);
/* Checks what can be checked without the link: NULL, or what is wrong. */
const char *gbi_verbs_head_read(const uint8_t *raw, size_t bytes,
                                gbi_verbs_head *head);

/* A message under way from memory that is registered for it. */
typedef struct gbi_verbs_long {
  gbi_xfer *xfer; /* NULL: free */
  struct ibv_mr *mr;
  unsigned requests; /* not complete */
  bool posted;       /* all of it is */
} gbi_verbs_long;

typedef struct gbi_verbs_arrival {
  uint16_t slot;
  bool written; /* an RDMA write, of `bytes`; else a SEND in the slot */
  uint32_t bytes;
} gbi_verbs_arrival;

typedef struct gbi_verbs_link {
  int member, rank;
  struct ibv_qp *qp; /* NULL: the own place in the list */
  uint32_t peer_qpn;
  uint64_t peer_nonce;
  char peer[160]; /* device, port and address, for texts */
  bool greeted;   /* its HELLO came */
  bool left;      /* it said goodbye */
  bool broken;
  gb_status status; /* why it broke, or the mismatch it saw */
  gb_error error;

  /* Sending. */
  uint8_t *out;             /* GBI_VERBS_QUEUE slots */
  uint64_t posted, retired; /* requests */
  struct {
    gbi_verbs_long *of; /* NULL: nobody waits for it */
    uint32_t bytes;
  } requests[GBI_VERBS_QUEUE];
  unsigned unsignaled;
  unsigned data_credits, control_credits;
  uint64_t last_post_ns;
  gbi_xfer *send_head, **send_tail; /* not wholly posted yet */
  bool announced;                   /* the head is a long message, and is */
  gbi_verbs_long *current;          /* its memory, once granted; or NULL */
  bool granted, by_write, prepared;
  uint64_t grant_address;
  uint32_t grant_key;
  gbi_verbs_long longs[GBI_VERBS_LONGS];

  /* Receiving. */
  uint8_t *in; /* GBI_VERBS_SLOTS slots */
  gbi_verbs_arrival arrivals[GBI_VERBS_DATA];
  unsigned arrivals_at, arrivals_count;
  unsigned owed_data, owed_control; /* credits to give back */
  gbi_xfer *recv_head, **recv_tail; /* posted, not complete */
  gbi_xfer *receiving;              /* whose message is at hand; NULL: none */
  bool refused; /* the message at hand is nobody's: never used up */
  /* It is a long one; that is asked for; comes by RDMA write. */
  bool announced_to_us, asked, written_to_us;
  struct ibv_mr *mr;
  size_t used; /* of the payload in the slot at hand */
} gbi_verbs_link;

typedef struct gbi_verbs {
  gbi_transport base;
  gbi_transport_params params; /* members: own copy */
  gbi_member *members;
  const gbi_verbs_library *lib;
  gbi_verbs_port port;
  struct ibv_pd *pd;
  struct ibv_comp_channel *channel;
  struct ibv_cq *cq;
  unsigned unacknowledged; /* events of the queue */
  struct ibv_mr *mr;       /* of all slots */
  uint8_t *slots;
  size_t slots_bytes;
  uint32_t inline_bytes;
  uint32_t psn;
  uint64_t nonce;
  int timeout, retries;
  size_t register_bytes;
  uint64_t heartbeat_ns;
  int epoll_fd, stop_fd;
  bool armed;           /* the queue's next completion raises an event */
  _Atomic bool stopped; /* pairs: stop's release store, progress's acquire */
  bool canceled;
  gbi_verbs_link *links; /* one a member */
  _Atomic uint64_t bytes_sent, bytes_received;
  _Atomic uint64_t messages_sent, messages_received;
  _Atomic uint64_t written, registered, not_registered;
} gbi_verbs;

static inline void gbi_verbs_count(_Atomic uint64_t *counter, uint64_t more) {
  /* One writer: no atomic add is needed. */
  atomic_store_explicit(
      counter, atomic_load_explicit(counter, memory_order_relaxed) + more,
      memory_order_relaxed);
}

/* connect.c */
gb_status gbi_verbs_make_queues(gbi_verbs *t, gb_error *error);
void gbi_verbs_address(gbi_transport *transport, gbi_writer *out);
gb_status gbi_verbs_connect(gbi_transport *transport,
                            const gbi_reader *addresses, uint64_t deadline_ns,
                            gb_error *error);
/* NULL, or what is wrong with it. Its head has been read. */
const char *gbi_verbs_check_hello(const gbi_verbs *t,
                                  const gbi_verbs_link *link,
                                  const uint8_t *payload, size_t bytes);

/* queue.c */
gb_status gbi_verbs_post_slot(gbi_verbs *t, gbi_verbs_link *link, int slot);
/* Whether so many requests of data (with a credit each) or one of control can
 * be posted now. */
bool gbi_verbs_may_send(const gbi_verbs_link *link);
bool gbi_verbs_may_control(const gbi_verbs_link *link, bool gives_credits);
/* The slot of the next request. */
uint8_t *gbi_verbs_next_slot(const gbi_verbs_link *link);
/* Sends the header, completed with credits, and its payload: behind it in the
 * slot (extra NULL), or at `extra`, in mr. `of` waits for it, may be NULL. */
void gbi_verbs_send(gbi_verbs *t, gbi_verbs_link *link, gbi_verbs_head *head,
                    const void *extra, struct ibv_mr *mr, gbi_verbs_long *of);
/* The next bytes of the message that link->current or a slot has. */
void gbi_verbs_write(gbi_verbs *t, gbi_verbs_link *link, const void *data,
                     size_t bytes, uint32_t key, uint64_t to,
                     gbi_verbs_long *of);
/* Takes in completions; how many. */
unsigned gbi_verbs_poll(gbi_verbs *t);
/* Gives back what is owed, goes on with everything that can. */
unsigned gbi_verbs_go_on(gbi_verbs *t, gbi_verbs_link *link);
void gbi_verbs_break(gbi_verbs *t, gbi_verbs_link *link, gb_status status,
                     const char *reason);
/* Ends all xfers of a link; its queue pair touches no memory any more. */
void gbi_verbs_fail_pending(gbi_verbs *t, gbi_verbs_link *link,
                            gb_status status);
unsigned gbi_verbs_progress(gbi_transport *transport);
/* NULL when the memory cannot be registered: then it is copied. */
struct ibv_mr *gbi_verbs_register(gbi_verbs *t, void *data, size_t bytes,
                                  int access);
/* Readies a posted xfer; false: it ended at once, with its link or at stop. */
bool gbi_verbs_take_on(const gbi_verbs *t, const gbi_verbs_link *link,
                       gbi_xfer *xfer);

/* send.c */
void gbi_verbs_post_send(gbi_transport *transport, int member, gbi_xfer *xfer);
unsigned gbi_verbs_send_on(gbi_verbs *t, gbi_verbs_link *link);
void gbi_verbs_granted(gbi_verbs *t, gbi_verbs_link *link,
                       const gbi_verbs_head *head, const uint8_t *payload);
/* A request that `of` waited for is complete. */
void gbi_verbs_sent(gbi_verbs *t, gbi_verbs_link *link, gbi_verbs_long *of,
                    size_t bytes);

/* receive.c */
void gbi_verbs_post_recv(gbi_transport *transport, int member, gbi_xfer *xfer);
/* Uses up what has arrived, as far as receives and gates allow. */
unsigned gbi_verbs_receive_on(gbi_verbs *t, gbi_verbs_link *link);

#endif
