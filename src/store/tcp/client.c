/* The client of torch's protocol, and rank 0's decision to serve. */
#include "base/wire.h"
#include "base/memory.h"
#include "os/io.h"
#include "os/net.h"
#include "store/kinds.h"
#include "store/tcp/protocol.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define ATTEMPT_NS                                             \
  (1 * GBI_NS_PER_S) /* one address, so that the next gets its \
                        turn soon */
#define GREETING_NS (5 * GBI_NS_PER_S)
/* A store that answered once and then refuses for so long has ended with its
 * rank 0; before it ever answered, rank 0 may just be late. */
#define GONE_NS (5 * GBI_NS_PER_S)

typedef struct tcp_store {
  gbi_store base;
  gbi_store_wait wait;
  char host[256];
  int port;
  int fd; /* -1: not connected */
  bool answered; /* at least once */
  gbi_tcp_server *server;
  char tried[400];
  char reason[256]; /* why the newest attempt failed */
} tcp_store;

static void hang_up(tcp_store *s) {
  if (s->fd >= 0) close(s->fd);
  s->fd = -1;
}

/* Waits for bits of `events`, hook included. */
static gb_status ready(tcp_store *s, short events, uint64_t deadline_ns,
                       gb_error *error) {
  for (;;) {
    uint64_t slice = gbi_deadline_after_ms(100);
    if (gbi_poll_one(s->fd, events, GBI_MIN(slice, deadline_ns))) return GB_OK;
    GBI_TRY(gbi_store_check(&s->wait, error));
    if (gbi_deadline_passed(deadline_ns))
      return gbi_fail(error, GB_ERR_TIMEOUT, "%s did not answer in time",
                      s->base.described);
  }
}

static gb_status lost(tcp_store *s, const char *reason, gb_error *error) {
  snprintf(s->reason, sizeof s->reason, "%s", reason);
  return gbi_fail(error, GB_ERR_PEER, "lost the store at %s: %s",
                  s->base.described, reason);
}

static gb_status send_all(tcp_store *s, const void *data, size_t bytes,
                          uint64_t deadline_ns, gb_error *error) {
  const uint8_t *at = data;
  while (bytes) {
    ssize_t n = gbi_send(s->fd, at, bytes);
    if (n >= 0) {
      at += n;
      bytes -= (size_t)n;
    } else if (errno == EAGAIN) {
      GBI_TRY(ready(s, POLLOUT, deadline_ns, error));
    } else if (errno != EINTR) {
      return lost(s, strerror(errno), error);
    }
  }
  return GB_OK;
}

static gb_status receive(tcp_store *s, void *data, size_t bytes,
                         uint64_t deadline_ns, gb_error *error) {
  uint8_t *at = data;
  while (bytes) {
    ssize_t n = gbi_recv(s->fd, at, bytes);
    if (n > 0) {
      at += n;
      bytes -= (size_t)n;
    } else if (n == 0) {
      return lost(s, "it closed the connection", error);
    } else if (errno == EAGAIN) {
      GBI_TRY(ready(s, POLLIN, deadline_ns, error));
    } else if (errno != EINTR) {
      return lost(s, strerror(errno), error);
    }
  }
  return GB_OK;
}

static gb_status receive_number(tcp_store *s, uint64_t *number_p,
                                uint64_t deadline_ns, gb_error *error) {
  uint8_t raw[8];
  GBI_TRY(receive(s, raw, sizeof raw, deadline_ns, error));
  gbi_reader r;
  gbi_reader_init(&r, raw, sizeof raw);
  *number_p = gbi_get_u64(&r);
  return GB_OK;
}

/* torch puts one '/' before every key of its public interface; so do we, and
 * store.get("gpubridge/...") in Python reads what we wrote. */
static void put_key(gbi_writer *w, const char *key) {
  gbi_put_u64(w, strlen(key) + 1);
  gbi_put_u8(w, '/');
  gbi_put_raw(w, key, strlen(key));
}

static gb_status ping(tcp_store *s, uint64_t deadline_ns, gb_error *error) {
  uint8_t raw[16], answer[4];
  gbi_writer w;
  gbi_writer_init(&w, raw, sizeof raw);
  gbi_put_u8(&w, GBI_TCP_PING);
  gbi_put_u32(&w, (uint32_t)getpid());
  GBI_TRY(send_all(s, raw, w.used, deadline_ns, error));
  GBI_TRY(receive(s, answer, sizeof answer, deadline_ns, error));
  if (memcmp(answer, raw + 1, sizeof answer))
    return gbi_fail(error, GB_ERR_PROTOCOL, "%s answers, but it is no TCPStore",
                    s->base.described);
  return GB_OK;
}

static gb_status greet(tcp_store *s, gb_error *error) {
  uint64_t deadline = GBI_MIN(s->wait.deadline_ns, gbi_now_ns() + GREETING_NS);
  uint8_t raw[8];
  gbi_writer w;
  gbi_writer_init(&w, raw, sizeof raw);
  gbi_put_u8(&w, GBI_TCP_VALIDATE);
  gbi_put_u32(&w, GBI_TCP_MAGIC);
  GBI_TRY(send_all(s, raw, w.used, deadline, error));
  return ping(s, deadline, error);
}

/* The part of "could not connect to X: reason" that is news. */
static void remember(tcp_store *s, const gbi_address *address,
                     const gb_error *error) {
  char text[GBI_ADDRESS_TEXT];
  gbi_address_text(address, text);
  const char *colon = strstr(error->text, ": ");
  snprintf(s->reason, sizeof s->reason, "%.*s", (int)sizeof s->reason - 1,
           colon ? colon + 2 : error->text);
  if (strstr(s->tried, text)) return;
  size_t used = strlen(s->tried);
  snprintf(s->tried + used, sizeof s->tried - used, "%s%s", used ? ", " : "",
           text);
}

static gb_status try_address(tcp_store *s, const gbi_address *address,
                             gb_error *error) {
  uint64_t limit = GBI_MIN(s->wait.deadline_ns, gbi_now_ns() + ATTEMPT_NS);
  gb_status status = gbi_connect(address, limit, &s->fd, error);
  if (status == GB_OK) {
    status = greet(s, error);
    if (status != GB_OK) hang_up(s);
  }
  if (status != GB_OK) remember(s, address, error);
  return status;
}

static gb_status try_all(tcp_store *s, gb_error *error) {
  gbi_address list[GBI_ADDRESSES_MAX];
  int count = 0;
  gb_status status =
      gbi_resolve(s->host, s->port, gbi_now_ns(), list, &count, error);
  if (status != GB_OK) {
    snprintf(s->reason, sizeof s->reason, "%.*s", (int)sizeof s->reason - 1,
             error->text);
    return status;
  }
  for (int i = 0; i < count; i++) {
    status = try_address(s, &list[i], error);
    if (status == GB_OK || status == GB_ERR_INTERRUPTED) return status;
    GBI_TRY(gbi_store_check(&s->wait, error));
    if (gbi_deadline_passed(s->wait.deadline_ns)) break;
  }
  return status;
}

static gb_status connected(tcp_store *s, gb_error *error) {
  gb_error local;
  uint64_t gone_ns = gbi_now_ns() + GONE_NS;
  for (int pause_ms = 10; s->fd < 0; pause_ms = GBI_MIN(pause_ms * 2, 100)) {
    gb_status status = try_all(s, &local);
    if (status == GB_OK) {
      s->answered = true;
      return GB_OK;
    }
    if (status == GB_ERR_INTERRUPTED) {
      if (error) *error = local;
      return status;
    }
    if (gbi_deadline_passed(s->wait.deadline_ns))
      return gbi_fail(error, GB_ERR_CONNECT,
                      "could not reach the job's store at %s%s%s%s: %s. Does "
                      "rank 0 run, and may its port be reached from here?",
                      s->base.described, s->tried[0] ? " (tried " : "",
                      s->tried, s->tried[0] ? ")" : "", s->reason);
    if (s->answered && gbi_now_ns() > gone_ns)
      return gbi_fail(error, GB_ERR_CONNECT,
                      "the job's store at %s is gone: %s. Rank 0 has ended, or "
                      "went on without this rank",
                      s->base.described, s->reason);
    GBI_TRY(gbi_store_pause(&s->wait, pause_ms, error));
  }
  return GB_OK;
}

/* A request that may be repeated. `answer` reads what comes back. */
typedef gb_status (*answer_fn)(tcp_store *s, void *arg, uint64_t deadline_ns,
                               gb_error *error);

static gb_status ask(tcp_store *s, const gbi_writer *request, answer_fn answer,
                     void *arg, uint64_t deadline_ns, gb_error *error) {
  if (request->bad)
    return gbi_fail(error, GB_ERR_MEMORY, "out of memory for a store request");
  for (;;) {
    GBI_TRY(connected(s, error));
    gb_status status =
        send_all(s, request->data, request->used, deadline_ns, error);
    if (status == GB_OK) status = answer(s, arg, deadline_ns, error);
    if (status == GB_OK) return GB_OK;
    hang_up(s); /* the answer may still come: never read it as another's */
    if (status != GB_ERR_PEER || gbi_deadline_passed(deadline_ns))
      return status;
    GBI_TRY(gbi_store_pause(&s->wait, 20, error));
  }
}

/* SET has no answer of its own; the ping behind it tells that it arrived. */
static gb_status answer_ping(tcp_store *s, void *arg, uint64_t deadline_ns,
                             gb_error *error) {
  return ping(s, deadline_ns, error);
}

static gb_status tcp_set(gbi_store *store, const char *key, const void *value,
                         size_t bytes, gb_error *error) {
  tcp_store *s = (tcp_store *)store;
  gbi_writer w;
  gbi_writer_init_growing(&w);
  gbi_put_u8(&w, GBI_TCP_SET);
  put_key(&w, key);
  gbi_put_u64(&w, bytes);
  gbi_put_raw(&w, value, bytes);
  gb_status status = ask(s, &w, answer_ping, NULL, s->wait.deadline_ns, error);
  gbi_writer_fini(&w);
  return status;
}

typedef struct get_answer {
  const char *key;
  void *value;
  size_t bytes, *bytes_p;
} get_answer;

/* WAIT's u8, which may take its time; only then GET, because the server goes
 * on serving while a WAIT is open. */
static gb_status answer_get(tcp_store *s, void *arg, uint64_t deadline_ns,
                            gb_error *error) {
  get_answer *a = arg;
  uint8_t stop, raw[64 + 512];
  uint64_t bytes;
  gbi_writer w;
  gbi_writer_init(&w, raw, sizeof raw);
  gbi_put_u8(&w, GBI_TCP_GET);
  put_key(&w, a->key);
  if (w.bad)
    return gbi_fail(error, GB_ERR_ARGUMENT, "a store key is too long");
  GBI_TRY(receive(s, &stop, 1, deadline_ns, error));
  GBI_TRY(send_all(s, raw, w.used, deadline_ns, error));
  GBI_TRY(receive_number(s, &bytes, deadline_ns, error));
  if (stop != 0 || bytes > a->bytes)
    return gbi_fail(error, GB_ERR_PROTOCOL,
                    "the store at %s gave a value of %llu bytes where at most "
                    "%zu were expected",
                    s->base.described, (unsigned long long)bytes, a->bytes);
  GBI_TRY(receive(s, a->value, (size_t)bytes, deadline_ns, error));
  *a->bytes_p = (size_t)bytes;
  return GB_OK;
}

static gb_status tcp_get(gbi_store *store, const char *key, void *value,
                         size_t bytes, size_t *bytes_p, uint64_t deadline_ns,
                         gb_error *error) {
  tcp_store *s = (tcp_store *)store;
  get_answer arg = {key, value, bytes, bytes_p};
  gbi_writer w;
  gbi_writer_init_growing(&w);
  gbi_put_u8(&w, GBI_TCP_WAIT);
  gbi_put_u64(&w, 1);
  put_key(&w, key);
  gb_status status = ask(s, &w, answer_get, &arg, deadline_ns, error);
  gbi_writer_fini(&w);
  return status;
}

static gb_status answer_add(tcp_store *s, void *arg, uint64_t deadline_ns,
                            gb_error *error) {
  return receive_number(s, arg, deadline_ns, error);
}

static gb_status tcp_add(gbi_store *store, const char *key, int64_t delta,
                         int64_t *value_p, gb_error *error) {
  tcp_store *s = (tcp_store *)store;
  uint64_t number = 0, deadline = s->wait.deadline_ns;
  gbi_writer w;
  gbi_writer_init_growing(&w);
  gbi_put_u8(&w, GBI_TCP_ADD);
  put_key(&w, key);
  gbi_put_u64(&w, (uint64_t)delta);
  /* Not through ask: an ADD that may have been done is not repeated. */
  gb_status status = connected(s, error);
  if (status == GB_OK) status = send_all(s, w.data, w.used, deadline, error);
  if (status == GB_OK) status = answer_add(s, &number, deadline, error);
  if (status != GB_OK) hang_up(s);
  gbi_writer_fini(&w);
  if (status == GB_OK) *value_p = (int64_t)number;
  return status;
}

static void tcp_close(gbi_store *store) {
  tcp_store *s = (tcp_store *)store;
  hang_up(s);
  gbi_tcp_server_stop(s->server);
  free(s);
}

static const gbi_store_ops ops = {"tcp", tcp_set, tcp_get, tcp_add, tcp_close};

/* A machine's own name often stands for 127.0.1.1 on the machine itself and for
 * a real address elsewhere (Debian's hosts file). */
static bool means_loopback(const char *host) {
  unsigned char raw[16];
  return !strcasecmp(host, "localhost") || inet_pton(AF_INET, host, raw) == 1 ||
         inet_pton(AF_INET6, host, raw) == 1;
}

static void add_interfaces(gbi_address *list, int *count, int port) {
  gbi_address local[GBI_ADDRESSES_MAX];
  int n = 0;
  for (int i = 0; i < *count; i++)
    if (!gbi_address_is_loopback(&list[i])) return;
  if (gbi_local_addresses(local, &n, NULL) != GB_OK) return;
  for (int i = 0; i < n && *count < GBI_ADDRESSES_MAX; i++) {
    gbi_address_set_port(&local[i], port);
    list[(*count)++] = local[i];
  }
}

static bool is_mine(const gbi_address *address) {
  gbi_address probe = *address;
  gbi_address_set_port(&probe, 0);
  int fd = socket(probe.sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  bool mine = fd >= 0 && !bind(fd, (const void *)&probe.sa, probe.bytes);
  if (fd >= 0) close(fd);
  return mine;
}

/* Keeps the addresses of this machine; never the wildcard. */
static gb_status serve(tcp_store *s, const gbi_store_place *place,
                       gb_error *error) {
  gbi_address list[GBI_ADDRESSES_MAX];
  int count = 0, mine = 0;
  for (;;) {
    gb_status status =
        gbi_resolve(s->host, s->port, gbi_now_ns(), list, &count, error);
    if (status == GB_OK) break;
    if (gbi_deadline_passed(s->wait.deadline_ns)) return status;
    GBI_TRY(gbi_store_pause(&s->wait, 100, error));
  }
  for (int i = 0; i < count; i++)
    if (is_mine(&list[i])) list[mine++] = list[i];
  if (!mine)
    return gbi_fail(error, GB_ERR_CONNECT,
                    "%s is \"%s\", which is not an address of this machine, "
                    "but rank 0 must run on the machine that it names",
                    place->variable, s->host);
  if (!means_loopback(s->host)) add_interfaces(list, &mine, s->port);
  return gbi_tcp_server_start_all(list, mine, &s->server, NULL, error);
}

gb_status gbi_store_tcp_open(const gbi_store_params *params,
                             const gbi_store_place *place, bool serves,
                             gbi_store **store_p, gb_error *error) {
  tcp_store *s = gbi_calloc(1, sizeof *s);
  if (!s) return gbi_fail(error, GB_ERR_MEMORY, "out of memory for a store");
  s->base.ops = &ops;
  s->fd = -1;
  s->port = place->port;
  s->wait = (gbi_store_wait){params->deadline_ns, params->wait_hook,
                             params->wait_hook_arg};
  snprintf(s->host, sizeof s->host, "%s", place->host);
  snprintf(s->base.host, sizeof s->base.host, "%s", place->host);
  snprintf(s->base.described, sizeof s->base.described, "%s", place->described);
  gb_status status = serves ? serve(s, place, error) : GB_OK;
  if (status == GB_OK) status = connected(s, error);
  if (status != GB_OK) {
    tcp_close(&s->base);
    return status;
  }
  *store_p = &s->base;
  return GB_OK;
}
