/* p2p: its state, between its own files. Everything here is guarded by
 * gbi_p2p.lock, except where it says otherwise. */
#ifndef GBI_P2P_STATE_H
#define GBI_P2P_STATE_H

#include "os/yield.h"
#include "p2p/p2p.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>

enum {
  GBI_P2P_INLINE = 64,           /* payload that rides in the head */
  GBI_P2P_EAGER = 16 * 1024,     /* payload sent without asking */
  GBI_P2P_WINDOW = 1 << 20,      /* eager cost not taken yet, per peer */
  GBI_P2P_WINDOWS = 16 << 20,    /* the same, of all peers */
  GBI_P2P_EAGER_COST = 256,      /* of a message beside its payload */
  GBI_P2P_RTS_MAX = 4096,        /* asked for and not answered, per peer */
  GBI_P2P_CTS_MAX = 16,          /* payloads asked for at once, per peer */
  GBI_P2P_POSTED_MAX = 64,       /* sends handed to a transport at once */
  GBI_P2P_HEADS = 8,             /* head receives posted, always */
  GBI_P2P_BUCKETS = 1024
};
/* A transport's tags: heads are numbered from 0; payloads as below. */
#define GBI_P2P_EAGER_TAG (UINT64_C(1) << 63) /* + its head's number */
#define GBI_P2P_ASKED_TAG (UINT64_C(1) << 62) /* + the receiver's number */

/* ---- heads ---- */

typedef enum gbi_p2p_kind {
  GBI_HEAD_EAGER = 1, /* the payload is inside, or follows at once */
  GBI_HEAD_RTS,       /* a large message waits at the sender */
  GBI_HEAD_CTS,       /* send it */
  GBI_HEAD_NACK,      /* never: the receive differs */
  GBI_HEAD_TAKEN,     /* only says what is taken */
  GBI_HEAD_BYE,       /* the last head: the sender leaves in order */
  GBI_HEAD_KINDS
} gbi_p2p_kind;

typedef struct gbi_p2p_head {
  uint8_t kind, class, dtype, inside; /* inside: bytes of payload in it */
  uint32_t group, step;
  uint64_t tag, count, bytes;
  uint64_t id;      /* RTS, CTS, NACK: the sender's number */
  uint64_t payload; /* CTS: the payload's */
  uint64_t taken;   /* eager cost of the other direction taken so far */
  gbi_call call;    /* mesh */
  const uint8_t *data;
} gbi_p2p_head;

void gbi_p2p_head_write(const gbi_p2p_head *head,
                        uint8_t raw[GBI_P2P_HEAD_BYTES]);
/* NULL, or what is wrong. head->data points into raw. */
const char *gbi_p2p_head_read(const uint8_t raw[GBI_P2P_HEAD_BYTES],
                              gbi_p2p_head *head);
uint64_t gbi_p2p_eager_cost(uint64_t bytes);

/* ---- lists ---- */

typedef struct gbi_p2p_list {
  gbi_p2p_op *first, *last;
} gbi_p2p_list;
void gbi_p2p_push(gbi_p2p_list *list, gbi_p2p_op *op);
void gbi_p2p_unlink(gbi_p2p_op *op); /* from its list, if any */

/* ---- messages that came before their receive ---- */

typedef struct gbi_p2p_message {
  struct gbi_p2p_message *next, *prev; /* in its bucket */
  struct gbi_p2p_message *arriving_next;
  struct gbi_p2p_link *link;
  gbi_p2p_head head;
  bool arrived;    /* eager: the payload is in data */
  bool in_bucket;
  gbi_p2p_op *claimed; /* the receive that waits for the rest of it */
  gbi_xfer xfer;
  uint8_t data[];
} gbi_p2p_message;

typedef struct gbi_p2p_bucket {
  gbi_p2p_list posted;             /* in the order posted */
  gbi_p2p_message *first, *last;   /* in the order they came */
} gbi_p2p_bucket;

/* ---- ops ---- */

typedef enum gbi_p2p_phase {
  GBI_OP_QUEUED = 1, /* send: in link->queue */
  GBI_OP_EAGER_OUT,  /* send: in link->sending */
  GBI_OP_RTS_OUT,    /* send: in link->sending */
  GBI_OP_ASKED,      /* send: in link->asked, waits for CTS */
  GBI_OP_DATA_OUT,   /* send: in link->sending */
  GBI_OP_POSTED,     /* receive: in its bucket */
  GBI_OP_CLAIMS,     /* receive: its message is arriving */
  GBI_OP_WAITS_TURN, /* receive: in link->turns, to send its CTS */
  GBI_OP_RECEIVING,  /* receive: in link->receiving; with CTS or eager */
  GBI_OP_ENDED
} gbi_p2p_phase;

/* ---- links ---- */

/* A head of the link's own, one of each kind under way. */
typedef struct gbi_p2p_own_head {
  gbi_xfer xfer;
  bool busy;
  uint8_t raw[GBI_P2P_HEAD_BYTES];
} gbi_p2p_own_head;

typedef enum gbi_link_state {
  GBI_LINK_SETUP, /* its thread runs */
  GBI_LINK_UP,
  GBI_LINK_BROKEN /* error tells; for good */
} gbi_link_state;

typedef struct gbi_p2p_link {
  gbi_p2p *p2p;
  int rank;
  gbi_link_state state;
  gb_error error;
  gbi_transport *transport; /* NULL until it is open */
  bool network;             /* its transport has a descriptor to wait on */
  bool hot;                 /* network: progress has something to do */
  pthread_t thread;         /* gb-link */
  bool thread_runs;         /* to be joined */
  uint8_t *offer;           /* of the peer */
  size_t offer_bytes;
  bool offered;             /* it came; connecting starts or has started */
  bool fresh;               /* something was posted since the last look */
  bool bye;                 /* the peer sends no more heads */
  bool starves;             /* the peer has no window left */
  uint64_t left_ns;         /* the peer left in order; 0: it has not */
  struct gbi_p2p_link *next_up;

  /* Receiving. */
  uint8_t raw[GBI_P2P_HEADS][GBI_P2P_HEAD_BYTES];
  gbi_xfer heads[GBI_P2P_HEADS];
  uint64_t heads_in; /* handled so far */
  uint64_t next_payload;
  int asked_for;             /* CTS under way */
  int asking;                /* RTS that wait here for a receive */
  gbi_p2p_list receiving, turns;
  gbi_p2p_message *arriving;
  uint64_t eager_in, taken, taken_told; /* cost, cumulated */

  /* Sending. */
  gbi_p2p_list queue, sending, asked;
  int posted, rts;
  uint64_t heads_out, next_id;
  uint64_t eager_out, peer_taken;
  gbi_p2p_own_head taken_head, nack_head, bye_head;
} gbi_p2p_link;

/* ---- the whole ---- */

typedef enum gbi_p2p_role {
  GBI_ROLE_FREE,
  GBI_ROLE_WAITER,
  GBI_ROLE_THREAD,
  GBI_ROLE_MESH
} gbi_p2p_role;

struct gbi_p2p {
  gbi_p2p_params params; /* members: own copy; fixed once open */
  gbi_member *members;
  int epoll_fd; /* of all network links' descriptors */
  gbi_waiter *waiter;
  uint64_t window;

  pthread_mutex_t lock;
  pthread_cond_t changed;
  _Atomic int knocks; /* threads that want the lock */
  gbi_p2p_link **links; /* by global rank */
  gbi_p2p_link *up;
  int up_count, network_count;
  gbi_p2p_bucket buckets[GBI_P2P_BUCKETS];
  gbi_p2p_op *all;      /* pending ops, newest first */

  gbi_p2p_role role;
  struct gbi_mesh *driver; /* with GBI_ROLE_MESH */
  pthread_t thread;        /* gb-p2p */
  bool thread_runs;
  int asyncs;    /* calls with `done` that are pending */
  int sleepers;  /* waiters that wait for `changed` */
  int mesh_calls;
  bool ring_meshes; /* a mesh's call ended that its own thread did not end */
  gbi_crowd crowd;
  uint64_t next_look_ns;

  bool closing, stopping; /* no new calls; threads end */
  bool alone;             /* rank 0 left: no new links */
  bool has_cause, cause_told;
  gb_error cause;
  bool failed;
  gb_error failure; /* set with failed, under lock; then immutable */
  gbi_p2p_call *finished, **finished_end; /* `done` is still to be called */

  _Atomic uint64_t bytes_sent, bytes_received, sent, received;
};

void gbi_p2p_lock(gbi_p2p *p2p);
/* Unlocks, then does what cannot be done under lock: calls `done`s, rings,
 * tells the control plane. Use it wherever ops may have ended. */
void gbi_p2p_unlock(gbi_p2p *p2p);
/* One round over everything that can move; how much did. */
unsigned gbi_p2p_pass(gbi_p2p *p2p);
/* The first reason why the job has to end. */
void gbi_p2p_set_cause(gbi_p2p *p2p, const gb_error *cause);
void gbi_p2p_finish(gbi_p2p *p2p, gbi_p2p_op *op, gb_status status);
/* Ends everything that is pending, for good. */
void gbi_p2p_end_all(gbi_p2p *p2p, const gb_error *why);
/* Deadlines and peers that left; cheap when it was just done. */
void gbi_p2p_look_around(gbi_p2p *p2p);
void gbi_p2p_release_role(gbi_p2p *p2p);
void gbi_p2p_wake_driver(gbi_p2p *p2p);

/* link.c. need: finds or makes the link to `rank`; NULL with an error. */
gbi_p2p_link *gbi_p2p_need_link(gbi_p2p *p2p, int rank, gb_error *error);
/* Ends what can no longer happen on this link. */
void gbi_p2p_judge(gbi_p2p_link *link);
void gbi_p2p_free_link(gbi_p2p_link *link);

/* message.c */
void gbi_p2p_link_up(gbi_p2p_link *link);
unsigned gbi_p2p_progress_link(gbi_p2p_link *link);
void gbi_p2p_pump(gbi_p2p_link *link);
void gbi_p2p_say_bye(gbi_p2p_link *link);
/* A receive and a message found each other. */
void gbi_p2p_meet_message(gbi_p2p_op *op, gbi_p2p_message *message);
void gbi_p2p_break_link(gbi_p2p_link *link, gb_status status, const char *how);

/* match.c */
gbi_p2p_op *gbi_p2p_match_receive(gbi_p2p *p2p, const gbi_p2p_head *head,
                                  int source);
void gbi_p2p_keep_message(gbi_p2p *p2p, gbi_p2p_message *message);
/* Posts a receive, or gives it the message that waits for it. */
void gbi_p2p_post_receive(gbi_p2p *p2p, gbi_p2p_op *op);
void gbi_p2p_forget_message(gbi_p2p *p2p, gbi_p2p_message *message);
void gbi_p2p_free_messages(gbi_p2p *p2p);

#endif
