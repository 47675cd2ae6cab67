/* gb-store: one thread, one epoll, any number of clients up to a limit.
 *
 *   accepted --VALIDATE--> serving --WAIT--> waiting --keys came--> serving
 *       \_ 10 s, or any broken rule: closed
 *
 * A connection's request is parsed from the start whenever more bytes come, so
 * nothing of a half request is kept but its bytes. */
#include "base/wire.h"
#include "base/fault.h"
#include "base/memory.h"
#include "os/io.h"
#include "os/net.h"
#include "store/kinds.h"
#include "store/tcp/protocol.h"
#include "store/tcp/table.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
  CONNECTIONS_MAX = 16384,
  REQUEST_MAX = 16 << 20, /* one request, all its keys and values */
  REPLY_MAX = 64 << 20,   /* replies that a client has not read yet */
  EVENTS = 64,
  BACKLOG = 4096, /* all ranks of a job connect at once */
};
#define GREETING_NS (10 * GBI_NS_PER_S)

typedef struct conn {
  struct conn *next;
  int fd;
  bool valid; /* has sent VALIDATE */
  bool dead;
  uint32_t events;
  uint64_t since_ns;
  uint8_t *in;
  size_t in_used, in_bytes;
  gbi_writer out;
  size_t out_sent;
  /* A WAIT that has not been answered: the keys' bytes, as they came. */
  uint8_t *wait_keys;
  size_t wait_bytes;
  uint64_t wait_left; /* keys from wait_at on */
  size_t wait_at;
} conn;

struct gbi_tcp_server {
  int epoll_fd, wake_fd;
  int listen_fds[GBI_ADDRESSES_MAX];
  int listen_count;
  bool accepting;
  pthread_t thread;
  conn *conns;
  int conns_count, greeting_count;
  gbi_table table;
};

typedef enum verdict { DONE, MORE, BROKEN } verdict;

/* Reads fields of a request that may not be whole yet. */
typedef struct fields {
  const uint8_t *data;
  size_t bytes, at;
  verdict state;
} fields;

static const uint8_t *take(fields *f, uint64_t bytes) {
  if (f->state != DONE) return NULL;
  if (bytes > f->bytes - f->at) {
    f->state = MORE;
    return NULL;
  }
  f->at += (size_t)bytes;
  return f->data + f->at - bytes;
}

static uint64_t take_number(fields *f, int bytes) {
  const uint8_t *at = take(f, (uint64_t)bytes);
  uint64_t value = 0;
  for (int i = 0; at && i < bytes; i++) value |= (uint64_t)at[i] << (8 * i);
  return value;
}

static gbi_slice take_bytes(fields *f, uint64_t most) {
  uint64_t n = take_number(f, 8);
  if (f->state == DONE && n > most) f->state = BROKEN;
  const uint8_t *at = take(f, n);
  return at ? (gbi_slice){at, (size_t)n} : (gbi_slice){(const void *)"", 0};
}

static gbi_slice take_key(fields *f) {
  return take_bytes(f, GBI_TCP_KEY_MAX);
}

static gbi_slice take_value(fields *f) {
  return take_bytes(f, GBI_TCP_VALUE_MAX);
}

static uint64_t take_count(fields *f) {
  uint64_t n = take_number(f, 8);
  if (n > GBI_TCP_KEYS_MAX) f->state = BROKEN;
  return f->state == DONE ? n : 0;
}

static void reply_bytes(conn *c, const void *data, size_t bytes) {
  gbi_put_u64(&c->out, bytes);
  gbi_put_raw(&c->out, data, bytes);
}

static void reply_value(conn *c, const gbi_entry *entry) {
  if (entry)
    reply_bytes(c, entry->value, entry->value_bytes);
  else
    gbi_put_u64(&c->out, 0);
}

/* Goes on with a WAIT; true when it has been answered. */
static bool wait_over(gbi_tcp_server *s, conn *c) {
  fields f = {c->wait_keys, c->wait_bytes, c->wait_at, DONE};
  while (c->wait_left) {
    if (!gbi_table_find(&s->table, take_key(&f))) return false;
    c->wait_at = f.at;
    c->wait_left--;
  }
  free(c->wait_keys);
  c->wait_keys = NULL;
  gbi_put_u8(&c->out, 0);
  return true;
}

static void arm(gbi_tcp_server *s, conn *c);

/* A key was stored that did not exist: perhaps somebody waits for it. */
static void key_came(gbi_tcp_server *s, gbi_slice key) {
  for (conn *c = s->conns; c; c = c->next) {
    if (!c->wait_keys || c->dead) continue;
    fields f = {c->wait_keys, c->wait_bytes, c->wait_at, DONE};
    gbi_slice wanted = take_key(&f);
    if (wanted.bytes != key.bytes || memcmp(wanted.data, key.data, key.bytes))
      continue;
    if (wait_over(s, c)) arm(s, c);
  }
}

static bool store(gbi_tcp_server *s, gbi_slice key, gbi_slice value) {
  bool fresh = !gbi_table_find(&s->table, key);
  if (!gbi_table_set(&s->table, key, value)) return false;
  if (fresh) key_came(s, key);
  return true;
}

static verdict do_validate(gbi_tcp_server *s, conn *c, fields *f) {
  uint64_t magic = take_number(f, 4);
  if (f->state != DONE) return f->state;
  if (magic != GBI_TCP_MAGIC) return BROKEN;
  if (!c->valid) s->greeting_count--;
  c->valid = true;
  return DONE;
}

static verdict do_ping(gbi_tcp_server *s, conn *c, fields *f) {
  uint64_t nonce = take_number(f, 4);
  if (f->state == DONE) gbi_put_u32(&c->out, (uint32_t)nonce);
  return f->state;
}

static verdict do_set(gbi_tcp_server *s, conn *c, fields *f) {
  gbi_slice key = take_key(f), value = take_value(f);
  if (f->state != DONE) return f->state;
  return store(s, key, value) ? DONE : BROKEN;
}

static verdict do_compare_set(gbi_tcp_server *s, conn *c, fields *f) {
  gbi_slice key = take_key(f), expected = take_value(f);
  gbi_slice desired = take_value(f);
  if (f->state != DONE) return f->state;
  gbi_entry *entry = gbi_table_find(&s->table, key);
  if (!entry && expected.bytes) {
    reply_bytes(c, expected.data, expected.bytes);
    return DONE;
  }
  bool equal = !entry || (entry->value_bytes == expected.bytes &&
                          !memcmp(entry->value, expected.data, expected.bytes));
  if (equal && !store(s, key, desired)) return BROKEN;
  reply_value(c, gbi_table_find(&s->table, key));
  return DONE;
}

static verdict do_get(gbi_tcp_server *s, conn *c, fields *f) {
  gbi_slice key = take_key(f);
  if (f->state == DONE) reply_value(c, gbi_table_find(&s->table, key));
  return f->state;
}

/* Values that ADD made are decimal text, as torch stores them. */
static bool decimal(const gbi_entry *entry, int64_t *number_p) {
  char text[32], *end;
  *number_p = 0;
  if (!entry) return true;
  if (!entry->value_bytes || entry->value_bytes >= sizeof text) return false;
  memcpy(text, entry->value, entry->value_bytes);
  text[entry->value_bytes] = 0;
  errno = 0;
  *number_p = strtoll(text, &end, 10);
  return !errno && !*end;
}

static verdict do_add(gbi_tcp_server *s, conn *c, fields *f) {
  gbi_slice key = take_key(f);
  int64_t delta = (int64_t)take_number(f, 8), number;
  if (f->state != DONE) return f->state;
  if (!decimal(gbi_table_find(&s->table, key), &number) ||
      __builtin_add_overflow(number, delta, &number))
    return BROKEN;
  char text[32];
  int n = snprintf(text, sizeof text, "%" PRId64, number);
  if (!store(s, key, (gbi_slice){(const void *)text, (size_t)n})) return BROKEN;
  gbi_put_u64(&c->out, (uint64_t)number);
  return DONE;
}

static verdict do_check(gbi_tcp_server *s, conn *c, fields *f) {
  uint64_t n = take_count(f);
  uint8_t missing = 0;
  for (; n && f->state == DONE; n--) {
    gbi_slice key = take_key(f);
    if (f->state == DONE && !gbi_table_find(&s->table, key)) missing = 1;
  }
  if (f->state == DONE) gbi_put_u8(&c->out, missing);
  return f->state;
}

static verdict do_wait(gbi_tcp_server *s, conn *c, fields *f) {
  uint64_t n = take_count(f);
  size_t start = f->at;
  for (uint64_t i = 0; i < n && f->state == DONE; i++) (void)take_key(f);
  if (f->state != DONE) return f->state;
  if (c->wait_keys) return BROKEN; /* one WAIT at a time */
  c->wait_bytes = f->at - start;
  c->wait_keys = gbi_malloc(c->wait_bytes + 1);
  if (!c->wait_keys) return BROKEN;
  memcpy(c->wait_keys, f->data + start, c->wait_bytes);
  c->wait_left = n;
  c->wait_at = 0;
  (void)wait_over(s, c);
  return DONE;
}

static verdict do_cancel_wait(gbi_tcp_server *s, conn *c, fields *f) {
  free(c->wait_keys);
  c->wait_keys = NULL;
  gbi_put_u8(&c->out, 1);
  return DONE;
}

static verdict do_numkeys(gbi_tcp_server *s, conn *c, fields *f) {
  gbi_put_u64(&c->out, s->table.count);
  return DONE;
}

static verdict do_delete(gbi_tcp_server *s, conn *c, fields *f) {
  gbi_slice key = take_key(f);
  if (f->state == DONE)
    gbi_put_u64(&c->out, gbi_table_remove(&s->table, key) ? 1 : 0);
  return f->state;
}

static verdict do_append(gbi_tcp_server *s, conn *c, fields *f) {
  gbi_slice key = take_key(f), value = take_value(f);
  if (f->state != DONE) return f->state;
  const gbi_entry *entry = gbi_table_find(&s->table, key);
  bool fresh = !entry;
  if (entry && entry->value_bytes + value.bytes > GBI_TCP_VALUE_MAX)
    return BROKEN;
  if (!gbi_table_append(&s->table, key, value)) return BROKEN;
  if (fresh) key_came(s, key);
  return DONE;
}

static verdict do_multi_get(gbi_tcp_server *s, conn *c, fields *f) {
  fields look = *f; /* first see whether all of it is here */
  uint64_t n = take_count(&look);
  for (uint64_t i = 0; i < n && look.state == DONE; i++) (void)take_key(&look);
  if (look.state != DONE) return look.state;
  n = take_count(f);
  for (uint64_t i = 0; i < n && c->out.used < REPLY_MAX; i++)
    reply_value(c, gbi_table_find(&s->table, take_key(f)));
  return c->out.used < REPLY_MAX ? DONE : BROKEN;
}

static verdict do_multi_set(gbi_tcp_server *s, conn *c, fields *f) {
  fields look = *f;
  uint64_t n = take_count(&look);
  for (uint64_t i = 0; i < n && look.state == DONE; i++) {
    (void)take_key(&look);
    (void)take_value(&look);
  }
  if (look.state != DONE) return look.state;
  n = take_count(f);
  for (uint64_t i = 0; i < n; i++) {
    gbi_slice key = take_key(f), value = take_value(f);
    if (!store(s, key, value)) return BROKEN;
  }
  return DONE;
}

static verdict do_list_keys(gbi_tcp_server *s, conn *c, fields *f) {
  gbi_put_u64(&c->out, s->table.count);
  for (size_t i = 0; i < s->table.buckets_count; i++)
    for (gbi_entry *at = s->table.buckets[i]; at; at = at->next)
      if (c->out.used < REPLY_MAX) reply_bytes(c, at->key, at->key_bytes);
  return c->out.used < REPLY_MAX ? DONE : BROKEN;
}

static verdict (*const handlers[GBI_TCP_QUERIES])(gbi_tcp_server *, conn *,
                                                  fields *) = {
    [GBI_TCP_VALIDATE] = do_validate,
    [GBI_TCP_SET] = do_set,
    [GBI_TCP_COMPARE_SET] = do_compare_set,
    [GBI_TCP_GET] = do_get,
    [GBI_TCP_ADD] = do_add,
    [GBI_TCP_CHECK] = do_check,
    [GBI_TCP_WAIT] = do_wait,
    [GBI_TCP_NUMKEYS] = do_numkeys,
    [GBI_TCP_DELETE] = do_delete,
    [GBI_TCP_APPEND] = do_append,
    [GBI_TCP_MULTI_GET] = do_multi_get,
    [GBI_TCP_MULTI_SET] = do_multi_set,
    [GBI_TCP_CANCEL_WAIT] = do_cancel_wait,
    [GBI_TCP_PING] = do_ping,
    [GBI_TCP_LIST_KEYS] = do_list_keys,
};

static verdict one_request(gbi_tcp_server *s, conn *c, size_t *at) {
  fields f = {c->in, c->in_used, *at, DONE};
  uint64_t query = take_number(&f, 1);
  if (f.state != DONE) return f.state;
  if (!c->valid && query != GBI_TCP_VALIDATE) return BROKEN;
  if (query >= GBI_TCP_QUERIES || !handlers[query]) return BROKEN;
  verdict v = handlers[query](s, c, &f);
  if (v == DONE) *at = f.at;
  return c->out.bad ? BROKEN : v;
}

/* Serves whole requests. Stops while replies pile up: they come first. */
static void serve(gbi_tcp_server *s, conn *c) {
  size_t at = 0;
  verdict v = DONE;
  while (v == DONE && at < c->in_used && c->out.used < REPLY_MAX / 4)
    v = one_request(s, c, &at);
  if (v == BROKEN || (v == MORE && c->in_used - at >= REQUEST_MAX))
    c->dead = true;
  if (at) memmove(c->in, c->in + at, c->in_used - at);
  c->in_used -= at;
}

static void flush(conn *c) {
  while (c->out_sent < c->out.used) {
    ssize_t n =
        gbi_send(c->fd, c->out.data + c->out_sent, c->out.used - c->out_sent);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      if (errno != EAGAIN) c->dead = true;
      return;
    }
    c->out_sent += (size_t)n;
  }
  c->out.used = c->out_sent = 0;
}

/* Sends what can be sent and asks epoll for the rest. */
static void arm(gbi_tcp_server *s, conn *c) {
  flush(c);
  uint32_t events = c->out.used ? EPOLLOUT : 0;
  if (c->out.used < REPLY_MAX / 4) events |= EPOLLIN;
  if (events == c->events) return;
  c->events = events;
  struct epoll_event event = {.events = events, .data.ptr = c};
  epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, c->fd, &event);
}

static bool make_room(conn *c) {
  if (c->in_used < c->in_bytes) return true;
  size_t bytes = GBI_MIN(GBI_MAX(c->in_bytes * 2, 512), (size_t)REQUEST_MAX);
  uint8_t *wider = bytes > c->in_bytes ? gbi_realloc(c->in, bytes) : NULL;
  if (!wider) return false;
  c->in = wider;
  c->in_bytes = bytes;
  return true;
}

static void receive(gbi_tcp_server *s, conn *c) {
  while (!c->dead && c->out.used < REPLY_MAX / 4) {
    if (!make_room(c)) {
      c->dead = true;
      return;
    }
    ssize_t n = gbi_recv(c->fd, c->in + c->in_used, c->in_bytes - c->in_used);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
      c->dead = true;
      return;
    }
    c->in_used += (size_t)n;
    serve(s, c);
    flush(c);
  }
}

/* False when the process has no descriptors left. */
static bool accept_all(gbi_tcp_server *s, int listen_fd) {
  while (s->conns_count < CONNECTIONS_MAX) {
    int fd = gbi_accept(listen_fd);
    if (fd < 0) return errno != EMFILE && errno != ENFILE;
    conn *c = gbi_calloc(1, sizeof *c);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (!c || epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &event)) {
      free(c);
      close(fd);
      return false;
    }
    c->fd = fd;
    c->events = EPOLLIN;
    c->since_ns = gbi_now_ns();
    gbi_writer_init_growing(&c->out);
    gbi_socket_tune(fd, 60000);
    c->next = s->conns;
    s->conns = c;
    s->conns_count++;
    s->greeting_count++;
  }
  return true;
}

static void discard(gbi_tcp_server *s, conn *c) {
  if (!c->valid) s->greeting_count--;
  s->conns_count--;
  /* Closing alone ends neither for as long as a forked child holds a copy. */
  epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
  shutdown(c->fd, SHUT_RDWR);
  close(c->fd);
  free(c->in);
  free(c->wait_keys);
  gbi_writer_fini(&c->out);
  free(c);
}

/* Closes what is dead, and strangers that never greeted. */
static void sweep(gbi_tcp_server *s) {
  uint64_t now = gbi_now_ns();
  for (conn **at = &s->conns; *at;) {
    conn *c = *at;
    if (!c->valid && now - c->since_ns > GREETING_NS) c->dead = true;
    if (!c->dead) {
      at = &c->next;
      continue;
    }
    *at = c->next;
    discard(s, c);
  }
}

/* A full house, or no descriptors left, must not spin on the listener. */
static void set_accepting(gbi_tcp_server *s, bool on) {
  if (s->accepting == on) return;
  s->accepting = on;
  for (int i = 0; i < s->listen_count; i++) {
    struct epoll_event event = {.events = on ? EPOLLIN : 0,
                                .data.ptr = &s->listen_fds[i]};
    epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, s->listen_fds[i], &event);
  }
}

static bool is_listener(gbi_tcp_server *s, void *ptr) {
  return ptr >= (void *)s->listen_fds &&
         ptr < (void *)(s->listen_fds + GBI_ADDRESSES_MAX);
}

static void *run(void *arg) {
  gbi_tcp_server *s = arg;
  pthread_setname_np(pthread_self(), "gb-store");
  for (;;) {
    struct epoll_event events[EVENTS];
    bool timed = s->greeting_count || !s->accepting;
    int n = epoll_wait(s->epoll_fd, events, EVENTS, timed ? 1000 : -1);
    bool room = true;
    for (int i = 0; i < n; i++) {
      void *ptr = events[i].data.ptr;
      if (ptr == s) return NULL;
      if (is_listener(s, ptr)) {
        room = accept_all(s, *(int *)ptr) && room;
        continue;
      }
      conn *c = ptr;
      if (c->dead) continue;
      flush(c);
      receive(s, c);
      if (!c->dead) arm(s, c);
    }
    sweep(s);
    set_accepting(s, room && s->conns_count < CONNECTIONS_MAX);
  }
}

static gb_status watch(gbi_tcp_server *s, int fd, void *ptr, gb_error *error) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = ptr};
  if (fd < 0 || s->epoll_fd < 0 ||
      epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &event))
    return gbi_fail(error, GB_ERR_SYSTEM, "could not start the store: %s",
                    strerror(errno));
  return GB_OK;
}

static gb_status start_thread(gbi_tcp_server *s, gb_error *error) {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int code = GBI_FAULT("thread.start") == GBI_FAULT_FAIL
                 ? EAGAIN
                 : pthread_create(&s->thread, NULL, run, s);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (code)
    return gbi_fail(error, GB_ERR_SYSTEM, "could not start a thread: %s",
                    strerror(code));
  return GB_OK;
}

static void free_server(gbi_tcp_server *s) {
  for (conn *c = s->conns, *next; c; c = next) {
    next = c->next;
    discard(s, c);
  }
  for (int i = 0; i < s->listen_count; i++) close(s->listen_fds[i]);
  if (s->epoll_fd >= 0) close(s->epoll_fd);
  if (s->wake_fd >= 0) close(s->wake_fd);
  gbi_table_fini(&s->table);
  free(s);
}

gb_status gbi_tcp_server_start_all(const gbi_address *addresses, int count,
                                   gbi_tcp_server **server_p, int *port_p,
                                   gb_error *error) {
  gbi_tcp_server *s = gbi_calloc(1, sizeof *s);
  if (!s || !gbi_table_init(&s->table)) {
    if (s) gbi_table_fini(&s->table);
    free(s);
    return gbi_fail(error, GB_ERR_MEMORY, "out of memory for a store");
  }
  s->accepting = true;
  s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  gb_status status = watch(s, s->wake_fd, s, error);
  gbi_address bound = {.bytes = 0};
  for (int i = 0; status == GB_OK && i < count; i++) {
    int *fd = &s->listen_fds[s->listen_count];
    status = gbi_listen(&addresses[i], BACKLOG, fd, &bound, error);
    if (status != GB_OK) break;
    s->listen_count++;
    status = watch(s, *fd, fd, error);
  }
  if (status == GB_OK) status = start_thread(s, error);
  if (status != GB_OK) {
    free_server(s);
    return status;
  }
  if (port_p) *port_p = gbi_address_port(&bound);
  *server_p = s;
  return GB_OK;
}

gb_status gbi_tcp_server_start(const gbi_address *address,
                               gbi_tcp_server **server_p, int *port_p,
                               gb_error *error) {
  return gbi_tcp_server_start_all(address, 1, server_p, port_p, error);
}

void gbi_tcp_server_stop(gbi_tcp_server *s) {
  if (!s) return;
  uint64_t one = 1;
  while (write(s->wake_fd, &one, sizeof one) < 0 && errno == EINTR) {
  }
  pthread_join(s->thread, NULL);
  free_server(s);
}
