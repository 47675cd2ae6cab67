/* The greeting on every connection of a job: who, which protocol, and a proof
 * of the job key by both sides.
 *
 *   acceptor -> connector  GREET   magic 8, version u16, nonce 32       (42)
 *   connector -> acceptor  HELLO   magic 8, version u16, kind u8, stream u8,
 *                                  group u32, comm u32, from i32, to i32,
 *                                  settings u64, job 16, nonce 32, mac 32 (116)
 *   acceptor -> connector  ANSWER  verdict u8 (0 good), mac 32          (33)
 *
 * mac is HMAC-SHA256 over the sender's message (without mac), its peer's nonce
 * and a word for the direction. Versions are read before any proof, so that two
 * builds can tell each other theirs; GREET and HELLO therefore keep their
 * layout in all versions, and a HELLO of another version is proven like any
 * other. A stranger gets nothing but GREET.
 *
 * A gbi_handshake is a state machine over one non-blocking socket: call step
 * when the socket is ready until it no longer returns BUSY. It reads no byte
 * past its own messages. Nothing is allocated. */
#ifndef GBI_OS_HANDSHAKE_H
#define GBI_OS_HANDSHAKE_H

#include "base/base.h"
#include "base/hmac.h"

#define GBI_PROTOCOL_VERSION 2
#define GBI_JOB_ID_BYTES 16

typedef enum gbi_hello_kind {
  GBI_HELLO_CONTROL = 1, /* rank to rank 0 */
  GBI_HELLO_HOST = 2,    /* Unix socket of the host area */
  GBI_HELLO_LINK = 3     /* a transport's connection */
} gbi_hello_kind;

typedef struct gbi_hello {
  uint8_t kind;
  uint8_t stream;  /* number of this connection within its link */
  uint32_t group;  /* group and communicator the connection belongs to */
  uint32_t comm;
  int32_t from;    /* global ranks */
  int32_t to;
  uint64_t settings; /* hash of what both sides must agree on, else 0 */
} gbi_hello;

typedef struct gbi_auth {
  uint8_t job_id[GBI_JOB_ID_BYTES]; /* random per job, not secret */
  uint8_t key[GBI_KEY_BYTES];
} gbi_auth;

typedef struct gbi_handshake {
  const gbi_auth *auth; /* borrowed until the handshake ends */
  gbi_hello hello;      /* connector: ours; acceptor: the peer's, once done */
  bool connector;
  bool proven; /* acceptor: the HELLO's proof is good, whatever its version */
  uint8_t state;
  uint16_t peer_version; /* 0 until known */
  uint8_t nonce[32], peer_nonce[32];
  uint8_t buffer[128];
  uint32_t used, wanted;
} gbi_handshake;

void gbi_handshake_connect(gbi_handshake *h, const gbi_auth *auth,
                           const gbi_hello *hello);
void gbi_handshake_accept(gbi_handshake *h, const gbi_auth *auth);
/* GB_OK: proven, h->hello is filled. BUSY: wait for gbi_handshake_events.
 * VERSION (text has both versions), AUTH, PROTOCOL, PEER: close the socket. */
gb_status gbi_handshake_step(gbi_handshake *h, int fd, gb_error *error);
short gbi_handshake_events(const gbi_handshake *h); /* POLLIN or POLLOUT */
/* Runs it to its end, blocking. TIMEOUT at the deadline. */
gb_status gbi_handshake_run(gbi_handshake *h, int fd, uint64_t deadline_ns,
                            gb_error *error);
/* The version this process speaks: GBI_PROTOCOL_VERSION, except in builds with
 * fault points, where GPUBRIDGE_TEST_PROTOCOL_VERSION overrides it (S108). */
int gbi_protocol_version(void);

#endif
