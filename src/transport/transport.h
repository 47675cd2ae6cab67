/* transport: moves bytes between processes. It knows nothing of collectives,
 * islands, tensors or Python.
 *
 * May call base, os and device/host. A gbi_transport joins a fixed list of
 * members, every pair by one link.
 *
 * Rules:
 *  - The poster lends an xfer and its memory. The transport completes it once:
 *    `status` goes from GB_ERR_BUSY to its final value; then the transport has
 *    forgotten it. Nothing is allocated after connect.
 *  - Matching is by link and tag. Tags of one link are used once per direction
 *    (a 64-bit number that the owner never repeats). Sends of a link leave in
 *    the order posted; a message whose receive is not posted yet waits in the
 *    link without harm and holds back what was posted after it on that link
 *    (per connection), so an owner posts receives in an order that cannot wait
 *    for itself.
 *  - Each message carries the call's identity. When it differs from the
 *    receive's, the receive fails with GB_ERR_MISMATCH and both sides in the
 *    text. A different length is GB_ERR_PROTOCOL, never a truncation.
 *  - A link that broke fails all its xfers with PEER or SYSTEM and stays so.
 *  - After stop every pending xfer completes with GB_ERR_CANCELED. */
#ifndef GBI_TRANSPORT_TRANSPORT_H
#define GBI_TRANSPORT_TRANSPORT_H

#include "base/base.h"
#include "base/config.h"
#include "base/wire.h"
#include "os/handshake.h"
#include "os/hostarea.h"

#define GBI_TRANSPORT_ABI 1

/* Consumes received bytes where they are. `offset` counts from the message's
 * start. `bytes` is a multiple of the xfer's granule; pieces may come in any
 * order, every byte once. */
typedef void (*gbi_sink_fn)(void *arg, size_t offset, const void *data,
                            size_t bytes);

typedef struct gbi_xfer gbi_xfer;
struct gbi_xfer {
  /* Set by the poster. */
  uint64_t tag;
  gbi_call call;
  void *data; /* send: source (not written); receive: target, NULL with sink */
  size_t bytes;
  gbi_sink_fn sink; /* receive only; NULL: bytes go to data */
  void *sink_arg;
  size_t granule; /* sink pieces are multiples of this; a power of two <= 16 */
  /* Receive only, may be NULL: a send over the same memory, or an earlier
   * receive into it. Byte k of data may be written (or sunk) only once
   * after->moved > k. */
  const gbi_xfer *after;
  /* Set by the transport. */
  gb_status status; /* GB_ERR_BUSY while pending */
  /* Send: leading bytes whose memory is no longer needed. Receive: leading
   * bytes that are in place (or were consumed). */
  size_t moved;
  /* The transport's own. */
  gbi_xfer *next;
  size_t posted, inflight;
};

typedef struct gbi_member {
  int rank;       /* global */
  int local;      /* index in this process's host area, -1: another host */
  const char *hostname; /* borrowed for the transport's life; for texts */
  const char *vendor;
} gbi_member;

typedef struct gbi_transport gbi_transport;

typedef struct gbi_transport_params {
  const gbi_member *members; /* copied */
  int members_count;
  int me;                /* index in members */
  gbi_hostarea *area;    /* lent for the transport's life */
  const gbi_auth *auth;  /* lent likewise */
  uint32_t group, comm;  /* numbers that separate this one from others */
  const char *store_host; /* how this rank reaches rank 0; may be "" */
  uint64_t timeout_ms;   /* silent peers are noticed within about this */
  int lane;              /* of the bells that its members ring and wait on */
  /* Of several transports of this host that carry data at the same time, its
   * number, from 0: each may take a network card of its own. At 0 nothing
   * differs from a transport that is alone. A hint: it may differ from the
   * members' own and must not change whether they connect. */
  int spread;
} gbi_transport_params;

/* Counters, read without a lock for telemetry. */
typedef struct gbi_transport_stats {
  uint64_t bytes_sent, bytes_received, messages_sent, messages_received;
} gbi_transport_stats;

/* What this process could join others by, found without joining them. */
typedef struct gbi_endpoint {
  bool asked;       /* somebody has looked */
  bool usable;
  char reason[256]; /* why it is not usable, a part of a sentence; "" */
  char device[64];
  int port;
  char link_layer[16]; /* "InfiniBand", "RoCE": these two cannot connect */
  char address[64];
} gbi_endpoint;

typedef void (*gbi_fact_fn)(void *arg, const char *name, const char *value);

typedef struct gbi_transport_ops {
  uint32_t abi;
  const char *name; /* what users write: "tcp" */
  const gbi_setting *settings;
  int settings_count;
  size_t transport_bytes;

  /* NULL: there is nothing to look for. May open a device for a moment. */
  void (*endpoint)(gbi_endpoint *out);
  /* Whether it could join these members at all; a sentence in why_not. */
  bool (*usable)(const gbi_transport_params *params, gb_error *why_not);
  /* Listens. On failure nothing stays open. */
  gb_status (*open)(const gbi_transport_params *params,
                    gbi_transport **transport_p, gb_error *error);
  /* At most 1 KiB that every other member needs to connect. */
  void (*address)(gbi_transport *transport, gbi_writer *out);
  /* addresses[i]: what member i wrote (its own included). Blocks until all
   * links are up; the text names the pair, every address tried, the reason. */
  gb_status (*connect)(gbi_transport *transport, const gbi_reader *addresses,
                       uint64_t deadline_ns, gb_error *error);

  /* Data: one thread at a time. Never blocks, never allocates. post_send may
   * move bytes at once. */
  void (*post_send)(gbi_transport *transport, int member, gbi_xfer *xfer);
  void (*post_recv)(gbi_transport *transport, int member, gbi_xfer *xfer);
  /* Moves what can be moved now; returns how many things it did. */
  unsigned (*progress)(gbi_transport *transport);
  /* An epoll descriptor that becomes ready when progress has something to do,
   * or -1: the process's bell rings instead. */
  int (*wait_fd)(gbi_transport *transport);
  /* The reason a link broke; GB_OK while it is up. */
  gb_status (*link_error)(const gbi_transport *transport, int member,
                          gb_error *error);

  /* stop: any thread, returns at once. close: after stop, frees. */
  void (*stop)(gbi_transport *transport);
  void (*close)(gbi_transport *transport);
  void (*describe)(const gbi_transport *transport, gbi_fact_fn fn, void *arg);
  void (*stats)(const gbi_transport *transport, gbi_transport_stats *stats);
} gbi_transport_ops;

/* The first member of every transport's struct. */
struct gbi_transport {
  const gbi_transport_ops *ops;
};

extern const gbi_transport_ops gbi_transport_shm;
extern const gbi_transport_ops gbi_transport_verbs;
extern const gbi_transport_ops gbi_transport_tcp;

/* By name, with "multitcp" as an old alias of tcp; NULL when unknown. */
const gbi_transport_ops *gbi_transport_find(const char *name);
/* "shm, tcp": for error texts. */
void gbi_transport_names(char *buffer, size_t bytes);
/* All of them, for settings tables. */
const gbi_transport_ops *const *gbi_transport_all(int *count_p);

#endif
