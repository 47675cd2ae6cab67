#include "os/handshake.h"

#include "base/config.h"
#include "base/fault.h"
#include "base/wire.h"
#include "os/io.h"
#include "os/net.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t magic[8] = {'G', 'P', 'U', 'B', 'R', 'I', 'D', 'G'};

enum { GREET_BYTES = 42, HELLO_BYTES = 116, ANSWER_BYTES = 33, MAC_BYTES = 32 };
enum { ST_SEND_GREET, ST_READ_HELLO, ST_SEND_ANSWER, /* acceptor */
       ST_READ_GREET, ST_SEND_HELLO, ST_READ_ANSWER, /* connector */
       ST_DONE };

int gbi_protocol_version(void) {
#ifdef GPUBRIDGE_FAULTS
  char text[16];
  if (gbi_env("GPUBRIDGE_TEST_PROTOCOL_VERSION", text, sizeof text))
    return (int)strtol(text, NULL, 10);
#endif
  return GBI_PROTOCOL_VERSION;
}

static void message_mac(const gbi_handshake *h, const char *direction,
                        const uint8_t *message, size_t bytes,
                        const uint8_t nonce[32], uint8_t mac[MAC_BYTES]) {
  uint8_t input[256];
  gbi_writer w;
  gbi_writer_init(&w, input, sizeof input);
  gbi_put_text(&w, direction);
  gbi_put_raw(&w, h->auth->job_id, GBI_JOB_ID_BYTES);
  gbi_put_raw(&w, message, bytes);
  gbi_put_raw(&w, nonce, 32);
  gbi_hmac(h->auth->key, input, w.used, mac);
}

static void start_write(gbi_handshake *h, uint8_t state, size_t bytes) {
  h->state = state;
  h->used = 0;
  h->wanted = (uint32_t)bytes;
}

static void build_greet(gbi_handshake *h) {
  gbi_writer w;
  gbi_writer_init(&w, h->buffer, sizeof h->buffer);
  gbi_put_raw(&w, magic, sizeof magic);
  gbi_put_u16(&w, (uint16_t)gbi_protocol_version());
  gbi_put_raw(&w, h->nonce, 32);
  start_write(h, ST_SEND_GREET, w.used);
}

static void build_hello(gbi_handshake *h) {
  gbi_writer w;
  gbi_writer_init(&w, h->buffer, sizeof h->buffer);
  gbi_put_raw(&w, magic, sizeof magic);
  gbi_put_u16(&w, (uint16_t)gbi_protocol_version());
  gbi_put_u8(&w, h->hello.kind);
  gbi_put_u8(&w, h->hello.stream);
  gbi_put_u32(&w, h->hello.group);
  gbi_put_u32(&w, h->hello.comm);
  gbi_put_i32(&w, h->hello.from);
  gbi_put_i32(&w, h->hello.to);
  gbi_put_u64(&w, h->hello.settings);
  gbi_put_raw(&w, h->auth->job_id, GBI_JOB_ID_BYTES);
  gbi_put_raw(&w, h->nonce, 32);
  uint8_t mac[MAC_BYTES];
  message_mac(h, "hello", h->buffer, w.used, h->peer_nonce, mac);
  gbi_put_raw(&w, mac, sizeof mac);
  start_write(h, ST_SEND_HELLO, w.used);
}

static void build_answer(gbi_handshake *h) {
  h->buffer[0] = 0;
  uint8_t mac[MAC_BYTES];
  message_mac(h, "answer", h->buffer, 1, h->peer_nonce, mac);
  memcpy(h->buffer + 1, mac, sizeof mac);
  start_write(h, ST_SEND_ANSWER, ANSWER_BYTES);
}

void gbi_handshake_connect(gbi_handshake *h, const gbi_auth *auth,
                           const gbi_hello *hello) {
  *h = (gbi_handshake){.auth = auth, .hello = *hello, .connector = true};
  h->state = ST_READ_GREET;
  h->wanted = GREET_BYTES;
}

void gbi_handshake_accept(gbi_handshake *h, const gbi_auth *auth) {
  *h = (gbi_handshake){.auth = auth};
  if (gbi_random(h->nonce, sizeof h->nonce, NULL) != GB_OK) abort();
  build_greet(h);
}

static gb_status check_head(gbi_handshake *h, gbi_reader *r, gb_error *error) {
  const uint8_t *head = gbi_get_raw(r, sizeof magic);
  if (!head || memcmp(head, magic, sizeof magic))
    return gbi_fail(error, GB_ERR_PROTOCOL,
                    "the other side is not a gpubridge process");
  h->peer_version = gbi_get_u16(r);
  if (h->peer_version != gbi_protocol_version())
    return gbi_fail(error, GB_ERR_VERSION,
                    "protocol versions differ: this process speaks %d, its "
                    "peer %d. Install the same gpubridge on every machine",
                    gbi_protocol_version(), h->peer_version);
  return GB_OK;
}

static gb_status read_greet(gbi_handshake *h, gb_error *error) {
  gbi_reader r;
  gbi_reader_init(&r, h->buffer, h->used);
  gb_status status = check_head(h, &r, error);
  /* HELLO is sent to another version too: the acceptor then knows ours. */
  if (status != GB_OK && status != GB_ERR_VERSION) return status;
  memcpy(h->peer_nonce, gbi_get_raw(&r, 32), 32);
  GBI_TRY(gbi_random(h->nonce, sizeof h->nonce, error));
  build_hello(h);
  return GB_ERR_BUSY;
}

static gb_status read_hello(gbi_handshake *h, gb_error *error) {
  gbi_reader r;
  gbi_reader_init(&r, h->buffer, h->used);
  gb_status version = check_head(h, &r, error);
  if (version == GB_ERR_PROTOCOL) return version;
  gbi_hello hello;
  hello.kind = gbi_get_u8(&r);
  hello.stream = gbi_get_u8(&r);
  hello.group = gbi_get_u32(&r);
  hello.comm = gbi_get_u32(&r);
  hello.from = gbi_get_i32(&r);
  hello.to = gbi_get_i32(&r);
  hello.settings = gbi_get_u64(&r);
  h->hello = hello;
  const uint8_t *job = gbi_get_raw(&r, GBI_JOB_ID_BYTES);
  memcpy(h->peer_nonce, gbi_get_raw(&r, 32), 32);
  uint8_t mac[MAC_BYTES];
  message_mac(h, "hello", h->buffer, HELLO_BYTES - MAC_BYTES, h->nonce, mac);
  h->proven = !memcmp(job, h->auth->job_id, GBI_JOB_ID_BYTES) &&
              gbi_hmac_equal(mac, h->buffer + HELLO_BYTES - MAC_BYTES);
  if (version != GB_OK) return version;
  if (!h->proven)
    return gbi_fail(error, GB_ERR_AUTH,
                    "the other side does not know this job's key");
  build_answer(h);
  return GB_ERR_BUSY;
}

static gb_status read_answer(gbi_handshake *h, gb_error *error) {
  uint8_t mac[MAC_BYTES];
  message_mac(h, "answer", h->buffer, 1, h->nonce, mac);
  if (h->buffer[0] || !gbi_hmac_equal(mac, h->buffer + 1))
    return gbi_fail(error, GB_ERR_AUTH,
                    "the other side does not know this job's key");
  h->state = ST_DONE;
  return GB_OK;
}

static gb_status finished_message(gbi_handshake *h, gb_error *error) {
  if (gbi_handshake_events(h) == POLLIN && gbi_decode_fault(h->buffer, h->used))
    return gbi_fail(error, GB_ERR_PROTOCOL,
                    "the other side is not a gpubridge process");
  switch (h->state) {
    case ST_SEND_GREET:
      start_write(h, ST_READ_HELLO, HELLO_BYTES);
      return GB_ERR_BUSY;
    case ST_READ_HELLO: return read_hello(h, error);
    case ST_SEND_ANSWER: h->state = ST_DONE; return GB_OK;
    case ST_READ_GREET: return read_greet(h, error);
    case ST_SEND_HELLO:
      if (h->peer_version != gbi_protocol_version()) {
        gbi_reader r;
        uint8_t head[10];
        memcpy(head, magic, sizeof magic);
        head[8] = (uint8_t)h->peer_version;
        head[9] = (uint8_t)(h->peer_version >> 8);
        gbi_reader_init(&r, head, sizeof head);
        return check_head(h, &r, error);
      }
      start_write(h, ST_READ_ANSWER, ANSWER_BYTES);
      return GB_ERR_BUSY;
    default: return read_answer(h, error);
  }
}

short gbi_handshake_events(const gbi_handshake *h) {
  bool writes = h->state == ST_SEND_GREET || h->state == ST_SEND_ANSWER ||
                h->state == ST_SEND_HELLO;
  return writes ? POLLOUT : POLLIN;
}

gb_status gbi_handshake_step(gbi_handshake *h, int fd, gb_error *error) {
  while (h->state != ST_DONE) {
    while (h->used < h->wanted) {
      ssize_t n = gbi_handshake_events(h) == POLLOUT
                      ? gbi_send(fd, h->buffer + h->used, h->wanted - h->used)
                      : gbi_recv(fd, h->buffer + h->used, h->wanted - h->used);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return GB_ERR_BUSY;
      if (n < 0)
        return gbi_fail(error, GB_ERR_PEER, "connection broke: %s",
                        strerror(errno));
      if (n == 0)
        return gbi_fail(error, GB_ERR_PEER,
                        "the other side closed the connection");
      h->used += (uint32_t)n;
    }
    gb_status status = finished_message(h, error);
    if (status != GB_ERR_BUSY) return status;
    if (gbi_handshake_events(h) == POLLIN) h->used = 0;
  }
  return GB_OK;
}

gb_status gbi_handshake_run(gbi_handshake *h, int fd, uint64_t deadline_ns,
                            gb_error *error) {
  for (;;) {
    gb_status status = gbi_handshake_step(h, fd, error);
    if (status != GB_ERR_BUSY) return status;
    if (!gbi_poll_one(fd, gbi_handshake_events(h), deadline_ns))
      return gbi_fail(error, GB_ERR_TIMEOUT,
                      "the other side did not answer in time");
  }
}
