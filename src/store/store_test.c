/* The three stores behind one interface, torch's protocol request by request,
 * what hostile bytes do to the server and to a store file, and what a user is
 * told when MASTER_ADDR or MASTER_PORT is wrong. */
#include "store/store.h"

#include "base/wire.h"
#include "harness/gb_test.h"
#include "os/net.h"
#include "store/tcp/protocol.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static gbi_address loopback(int port) {
  gbi_address address = {.bytes = sizeof(struct sockaddr_in)};
  struct sockaddr_in *in = (void *)&address.sa;
  in->sin_family = AF_INET;
  in->sin_port = htons((uint16_t)port);
  in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

static int connect_to(int port) {
  gbi_address address = loopback(port);
  int fd;
  GB_CHECK_OK(gbi_connect(&address, gbi_deadline_after_ms(5000), &fd, NULL));
  return fd;
}

static gbi_tcp_server *start(int *port_p) {
  gbi_address address = loopback(0);
  gbi_tcp_server *server;
  GB_CHECK_OK(gbi_tcp_server_start(&address, &server, port_p, NULL));
  return server;
}

static void must_send(int fd, const void *data, size_t bytes) {
  GB_CHECK(send(fd, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
}

static void must_read(int fd, void *data, size_t bytes) {
  uint8_t *at = data;
  while (bytes) {
    GB_CHECK(gbi_poll_one(fd, POLLIN, gbi_deadline_after_ms(5000)));
    ssize_t n = recv(fd, at, bytes, 0);
    if (n < 0 && errno == EAGAIN) continue;
    GB_CHECK(n > 0);
    at += n;
    bytes -= (size_t)n;
  }
}

/* True when the server closes the connection within 5 s. */
static bool closed(int fd) {
  char byte;
  for (;;) {
    if (!gbi_poll_one(fd, POLLIN, gbi_deadline_after_ms(5000))) return false;
    ssize_t n = recv(fd, &byte, 1, 0);
    if (n == 0 || (n < 0 && errno == ECONNRESET)) return true;
    if (n < 0 && errno == EAGAIN) continue;
    return false;
  }
}

static uint8_t raw[8192];
static gbi_writer w;

static void begin(int query) {
  gbi_writer_init(&w, raw, sizeof raw);
  gbi_put_u8(&w, (uint8_t)query);
}
static void field(const char *text) {
  gbi_put_u64(&w, strlen(text));
  gbi_put_raw(&w, text, strlen(text));
}
static void finish(int fd) {
  must_send(fd, w.data, w.used);
}

static int greeted(int port) {
  int fd = connect_to(port);
  uint32_t magic = GBI_TCP_MAGIC, nonce = 7, answer;
  uint8_t validate = GBI_TCP_VALIDATE, ping = GBI_TCP_PING;
  must_send(fd, &validate, 1);
  must_send(fd, &magic, 4);
  must_send(fd, &ping, 1);
  must_send(fd, &nonce, 4);
  must_read(fd, &answer, 4);
  GB_CHECK_INT(answer, 7);
  return fd;
}

static void expect_payload(int fd, const char *text) {
  uint64_t bytes;
  char data[256] = "";
  must_read(fd, &bytes, 8);
  GB_CHECK_INT(bytes, strlen(text));
  must_read(fd, data, (size_t)bytes);
  GB_CHECK(!strcmp(data, text));
}
static void expect_number(int fd, int64_t want) {
  int64_t got;
  must_read(fd, &got, 8);
  GB_CHECK_INT(got, want);
}
static void expect_byte(int fd, int want) {
  uint8_t got;
  must_read(fd, &got, 1);
  GB_CHECK_INT(got, want);
}
static void set(int fd, const char *key, const char *value) {
  begin(GBI_TCP_SET), field(key), field(value), finish(fd);
}
static void expect_get(int fd, const char *key, const char *value) {
  begin(GBI_TCP_GET), field(key), finish(fd);
  expect_payload(fd, value);
}

GB_TEST(store, single_requests) {
  int port;
  gbi_tcp_server *server = start(&port);
  int fd = greeted(port);
  set(fd, "/a", "one");
  expect_get(fd, "/a", "one");
  expect_get(fd, "/absent", "");
  set(fd, "/a", "");
  expect_get(fd, "/a", "");
  begin(GBI_TCP_ADD), field("/n"), gbi_put_u64(&w, 5), finish(fd);
  expect_number(fd, 5);
  begin(GBI_TCP_ADD), field("/n"), gbi_put_u64(&w, (uint64_t)-7), finish(fd);
  expect_number(fd, -2);
  expect_get(fd, "/n", "-2");
  begin(GBI_TCP_APPEND), field("/l"), field("x"), finish(fd);
  begin(GBI_TCP_APPEND), field("/l"), field("yz"), finish(fd);
  expect_get(fd, "/l", "xyz");
  begin(GBI_TCP_NUMKEYS), finish(fd);
  expect_number(fd, 3);
  begin(GBI_TCP_DELETE), field("/l"), finish(fd);
  expect_number(fd, 1);
  begin(GBI_TCP_DELETE), field("/l"), finish(fd);
  expect_number(fd, 0);
  close(fd);
  gbi_tcp_server_stop(server);
}

GB_TEST(store, compare_set_and_lists) {
  int port;
  gbi_tcp_server *server = start(&port);
  int fd = greeted(port);
  begin(GBI_TCP_COMPARE_SET), field("/c"), field("no"), field("x"), finish(fd);
  expect_payload(fd, "no"); /* absent, and something was expected: echoed */
  begin(GBI_TCP_COMPARE_SET), field("/c"), field(""), field("x"), finish(fd);
  expect_payload(fd, "x");
  begin(GBI_TCP_COMPARE_SET), field("/c"), field("y"), field("z"), finish(fd);
  expect_payload(fd, "x");
  begin(GBI_TCP_COMPARE_SET), field("/c"), field("x"), field("z"), finish(fd);
  expect_payload(fd, "z");
  begin(GBI_TCP_MULTI_SET), gbi_put_u64(&w, 2), field("/p"), field("1"),
      field("/q"), field("2"), finish(fd);
  begin(GBI_TCP_MULTI_GET), gbi_put_u64(&w, 3), field("/q"), field("/p"),
      field("/none"), finish(fd);
  expect_payload(fd, "2");
  expect_payload(fd, "1");
  expect_payload(fd, "");
  begin(GBI_TCP_CHECK), gbi_put_u64(&w, 2), field("/p"), field("/q"),
      finish(fd);
  expect_byte(fd, 0);
  begin(GBI_TCP_CHECK), gbi_put_u64(&w, 2), field("/p"), field("/r"),
      finish(fd);
  expect_byte(fd, 1);
  begin(GBI_TCP_DELETE), field("/c"), finish(fd);
  expect_number(fd, 1);
  begin(GBI_TCP_DELETE), field("/p"), finish(fd);
  expect_number(fd, 1);
  begin(GBI_TCP_LIST_KEYS), finish(fd);
  expect_number(fd, 1);
  expect_payload(fd, "/q");
  close(fd);
  gbi_tcp_server_stop(server);
}

GB_TEST(store, wait_is_answered_later_or_canceled) {
  int port;
  gbi_tcp_server *server = start(&port);
  int waiter = greeted(port), setter = greeted(port);
  begin(GBI_TCP_WAIT), gbi_put_u64(&w, 2), field("/x"), field("/y"),
      finish(waiter);
  set(setter, "/y", "1");
  begin(GBI_TCP_NUMKEYS), finish(setter);
  expect_number(setter, 1);
  struct pollfd one = {waiter, POLLIN, 0};
  GB_CHECK_INT(poll(&one, 1, 50), 0);
  set(setter, "/x", "1");
  expect_byte(waiter, 0);
  begin(GBI_TCP_WAIT), gbi_put_u64(&w, 1), field("/x"), finish(waiter);
  expect_byte(waiter, 0);
  begin(GBI_TCP_WAIT), gbi_put_u64(&w, 1), field("/never"), finish(waiter);
  begin(GBI_TCP_CANCEL_WAIT), finish(waiter);
  expect_byte(waiter, 1);
  expect_get(waiter, "/x", "1");
  close(waiter);
  close(setter);
  gbi_tcp_server_stop(server);
}

/* A request that comes byte by byte is the same request. */
GB_TEST(store, requests_in_single_bytes) {
  int port;
  gbi_tcp_server *server = start(&port);
  int fd = greeted(port);
  begin(GBI_TCP_MULTI_SET), gbi_put_u64(&w, 2), field("/p"), field("1"),
      field("/q"), field("2");
  gbi_put_u8(&w, GBI_TCP_GET), field("/q");
  for (size_t i = 0; i < w.used; i++) {
    must_send(fd, w.data + i, 1);
    struct timespec nap = {0, 200000};
    nanosleep(&nap, NULL);
  }
  expect_payload(fd, "2");
  close(fd);
  gbi_tcp_server_stop(server);
}

/* S119 to S121 for the store: strangers and broken clients lose their
 * connection, nobody else notices. */
GB_TEST(store, hostile_bytes_close_the_connection) {
  int port;
  gbi_tcp_server *server = start(&port);
  int good = greeted(port);
  set(good, "/a", "text");
  int fd = connect_to(port);
  must_send(fd, "GET / HTTP/1.1\r\n\r\n", 18);
  GB_CHECK(closed(fd));
  close(fd);
  fd = connect_to(port); /* a request before VALIDATE */
  begin(GBI_TCP_NUMKEYS), finish(fd);
  GB_CHECK(closed(fd));
  close(fd);
  static const uint64_t lengths[] = {UINT64_MAX, INT64_MAX, 8193, 1u << 31};
  for (size_t i = 0; i < GBI_COUNT(lengths); i++) {
    fd = greeted(port);
    begin(GBI_TCP_SET), gbi_put_u64(&w, lengths[i]), finish(fd);
    GB_CHECK(closed(fd));
    close(fd);
    fd = greeted(port);
    begin(GBI_TCP_WAIT), gbi_put_u64(&w, lengths[i] << 8), finish(fd);
    GB_CHECK(closed(fd));
    close(fd);
  }
  static const uint8_t unknown[] = {14, 15, 16, 18, 19, 99, 255};
  for (size_t i = 0; i < GBI_COUNT(unknown); i++) {
    fd = greeted(port);
    begin(unknown[i]), finish(fd);
    GB_CHECK(closed(fd));
    close(fd);
  }
  fd = greeted(port); /* ADD to what is no number */
  begin(GBI_TCP_ADD), field("/a"), gbi_put_u64(&w, 1), finish(fd);
  GB_CHECK(closed(fd));
  close(fd);
  expect_get(good, "/a", "text");
  close(good);
  gbi_tcp_server_stop(server);
}

GB_TEST(store, big_values_pass_and_too_big_ones_do_not) {
  int port;
  gbi_tcp_server *server = start(&port);
  int fd = greeted(port);
  size_t bytes = GBI_TCP_VALUE_MAX;
  uint8_t *value = calloc(1, bytes);
  value[bytes - 1] = 42;
  begin(GBI_TCP_SET), field("/big"), gbi_put_u64(&w, bytes), finish(fd);
  for (size_t used = 0; used < bytes;) {
    ssize_t n = send(fd, value + used, bytes - used, MSG_NOSIGNAL);
    if (n < 0)
      (void)gbi_poll_one(fd, POLLOUT, gbi_deadline_after_ms(5000));
    else
      used += (size_t)n;
  }
  memset(value, 0, bytes);
  begin(GBI_TCP_GET), field("/big"), finish(fd);
  expect_number(fd, (int64_t)bytes);
  must_read(fd, value, bytes);
  GB_CHECK_INT(value[bytes - 1], 42);
  begin(GBI_TCP_APPEND), field("/big"), field("x"), finish(fd);
  GB_CHECK(closed(fd));
  free(value);
  close(fd);
  gbi_tcp_server_stop(server);
}

/* The interface's contract, over any store. */
static void battery(gbi_store *a, gbi_store *b, bool counts) {
  char value[64];
  size_t bytes;
  gb_error error;
  GB_CHECK_OK(a->ops->set(a, "job/key", "first", 5, NULL));
  GB_CHECK_OK(a->ops->set(a, "job/key", "second!", 7, NULL));
  GB_CHECK_OK(b->ops->get(b, "job/key", value, sizeof value, &bytes,
                          gbi_deadline_after_ms(5000), NULL));
  GB_CHECK_INT(bytes, 7);
  GB_CHECK(!memcmp(value, "second!", 7));
  GB_CHECK_INT(b->ops->get(b, "job/key", value, 3, &bytes,
                           gbi_deadline_after_ms(5000), &error),
               GB_ERR_PROTOCOL);
  uint64_t start = gbi_now_ns();
  GB_CHECK_INT(b->ops->get(b, "job/none", value, sizeof value, &bytes,
                           gbi_deadline_after_ms(300), &error),
               GB_ERR_TIMEOUT);
  GB_CHECK(gbi_now_ns() - start < 3 * GBI_NS_PER_S);
  int64_t number;
  gb_status status = a->ops->add(a, "job/n", 3, &number, NULL);
  GB_CHECK_INT(status, counts ? GB_OK : GB_ERR_UNSUPPORTED);
  if (!counts) return;
  GB_CHECK_INT(number, 3);
  GB_CHECK_OK(b->ops->add(b, "job/n", -5, &number, NULL));
  GB_CHECK_INT(number, -2);
}

static gbi_store_params params_for(const char *url, int rank) {
  return (gbi_store_params){.init_method = url,
                            .rank = rank,
                            .world_size = 2,
                            .deadline_ns = gbi_deadline_after_ms(10000)};
}

static gbi_store *opened(const gbi_store_params *params) {
  gbi_store *store;
  gb_error error;
  if (gbi_store_open(params, &store, &error) != GB_OK)
    gb_test_fail(__FILE__, __LINE__, "%s", error.text);
  return store;
}

/* Rank 0 serves, rank 1 finds it; then the same port again at once (S009). */
GB_TEST(store, env_serves_and_connects) {
  for (int round = 0; round < 3; round++) {
    gbi_store_params zero = params_for(NULL, 0), one = params_for(NULL, 1);
    gbi_store *a = opened(&zero), *b = opened(&one);
    GB_CHECK_TEXT(a->host, "127.0.0.1");
    battery(a, b, true);
    a->ops->close(a);
    b->ops->close(b);
  }
}

GB_TEST(store, file_keeps_and_shares) {
  char path[] = "/tmp/gb_store_XXXXXX", url[64];
  close(mkstemp(path));
  snprintf(url, sizeof url, "file://%s", path);
  gbi_store_params zero = params_for(url, 0), one = params_for(url, 1);
  gbi_store *a = opened(&zero), *b = opened(&one);
  battery(a, b, true);
  /* A writer that died in the middle: its half record disappears. */
  int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
  static const uint8_t half[] = {'G', 'B', 'F', '1', 3, 0,  0,
                                 0,   9,   0,   0,   0, 'k'};
  GB_CHECK(write(fd, half, sizeof half) == sizeof half);
  close(fd);
  char value[8];
  size_t bytes;
  GB_CHECK_OK(a->ops->set(a, "later", "x", 1, NULL));
  GB_CHECK_OK(b->ops->get(b, "later", value, sizeof value, &bytes,
                          gbi_deadline_after_ms(5000), NULL));
  GB_CHECK_INT(bytes, 1);
  a->ops->close(a);
  b->ops->close(b);
  unlink(path);
}

GB_TEST(store, file_with_strange_content_is_refused) {
  char path[] = "/tmp/gb_store_XXXXXX", url[64];
  int fd = mkstemp(path);
  GB_CHECK(write(fd, "#!/bin/sh\necho hello\n", 21) == 21);
  close(fd);
  snprintf(url, sizeof url, "file://%s", path);
  gbi_store_params params = params_for(url, 0);
  gbi_store *store = opened(&params);
  gb_error error;
  GB_CHECK_INT(store->ops->set(store, "k", "v", 1, &error), GB_ERR_PROTOCOL);
  GB_CHECK_TEXT(error.text, path);
  struct stat info;
  GB_CHECK(!stat(path, &info));
  GB_CHECK_INT(info.st_size, 21); /* untouched */
  store->ops->close(store);
  unlink(path);
}

/* Four processes add under the lock: no count is lost. */
GB_TEST(store, file_add_is_atomic, .ranks = 4) {
  char url[96];
  int64_t number = 0;
  const char *port = getenv("MASTER_PORT");
  snprintf(url, sizeof url, "file:///tmp/gb_store_add_%s", port);
  gbi_store_params params = params_for(url, gb_rank());
  gbi_store *store = opened(&params);
  for (int i = 0; i < 25; i++)
    GB_CHECK_OK(store->ops->add(store, "n", 1, &number, NULL));
  volatile int *done = gb_test_shared();
  __atomic_add_fetch(done, 1, __ATOMIC_SEQ_CST);
  gb_test_await(done, 4, 20000);
  GB_CHECK_OK(store->ops->add(store, "n", 0, &number, NULL));
  GB_CHECK_INT(number, 100);
  store->ops->close(store);
  /* Not before all have looked: a look would make a new, empty file. */
  __atomic_add_fetch(done, 1, __ATOMIC_SEQ_CST);
  if (gb_rank() == 0) {
    gb_test_await(done, 8, 20000);
    unlink(url + 7);
  }
}

/* A caller's store in memory, and one that fails. */
static char kept_key[64], kept[64];
static size_t kept_bytes;

static int mem_set(void *arg, const char *key, const void *value, size_t bytes,
                   char *text, size_t text_bytes) {
  if (arg) {
    snprintf(text, text_bytes, "disk on fire");
    return -1;
  }
  snprintf(kept_key, sizeof kept_key, "%s", key);
  memcpy(kept, value, bytes);
  kept_bytes = bytes;
  return 0;
}

static int mem_get(void *arg, const char *key, void *value, size_t bytes,
                   size_t *bytes_p, uint64_t timeout_ms, char *text,
                   size_t text_bytes) {
  if (strcmp(key, kept_key)) return 1;
  memcpy(value, kept, GBI_MIN(bytes, kept_bytes));
  *bytes_p = kept_bytes;
  return 0;
}

GB_TEST(store, caller_store_works_and_its_reason_is_told) {
  gb_store mine = {sizeof mine, NULL, mem_set, mem_get, "10.0.0.1"};
  gbi_store_params params = params_for(NULL, 0);
  params.caller = &mine;
  gbi_store *store = opened(&params);
  GB_CHECK_TEXT(store->host, "10.0.0.1");
  battery(store, store, false);
  mine.arg = &mine;
  gb_error error;
  GB_CHECK_INT(store->ops->set(store, "k", "v", 1, &error), GB_ERR_CONNECT);
  GB_CHECK_TEXT(error.text, "disk on fire");
  store->ops->close(store);
}

static void refused(const char *url, int rank, gb_status want,
                    const char *text) {
  gbi_store_params params = params_for(url, rank);
  params.deadline_ns = gbi_deadline_after_ms(500);
  gbi_store *store;
  gb_error error;
  GB_CHECK_INT(gbi_store_open(&params, &store, &error), want);
  GB_CHECK_TEXT(error.text, text);
}

/* S021, S022, S005: told at once, with the name and the way out. */
GB_TEST(store, bad_addresses_are_named) {
  setenv("MASTER_PORT", "99999", 1);
  refused(NULL, 2, GB_ERR_SETTING, "MASTER_PORT is \"99999\"");
  refused(NULL, 2, GB_ERR_SETTING, "launcher such as torchrun");
  setenv("MASTER_PORT", " ", 1);
  refused(NULL, 2, GB_ERR_SETTING, "MASTER_PORT is not set");
  unsetenv("MASTER_ADDR");
  refused("env://", 2, GB_ERR_SETTING, "MASTER_ADDR is not set");
  refused("tcp://::1:29500", 2, GB_ERR_ARGUMENT, "[::1]:29500");
  refused("http://x", 2, GB_ERR_ARGUMENT, "file:///path");
  refused("file://relative", 2, GB_ERR_ARGUMENT, "absolute");
}

/* S008 and S019: rank 0 fails at once; others name what they tried. */
GB_TEST(store, port_in_use_and_foreign_address) {
  gbi_address address = loopback(0), bound;
  int fd;
  char url[64];
  GB_CHECK_OK(gbi_listen(&address, 4, &fd, &bound, NULL));
  snprintf(url, sizeof url, "tcp://127.0.0.1:%d", gbi_address_port(&bound));
  uint64_t start = gbi_now_ns();
  refused(url, 0, GB_ERR_SYSTEM, "in use");
  refused("tcp://192.0.2.1:4711", 0, GB_ERR_CONNECT, "192.0.2.1");
  GB_CHECK(gbi_now_ns() - start < 2 * GBI_NS_PER_S);
  refused(url, 1, GB_ERR_CONNECT, url + 6);
  close(fd);
  refused(url, 1, GB_ERR_CONNECT, "tried 127.0.0.1");
}

static void *serve_late(void *arg) {
  struct timespec nap = {0, 400000000};
  nanosleep(&nap, NULL);
  gbi_store_params params = params_for(arg, 0);
  return opened(&params);
}

/* Rank 0 comes later, with IPv6 in brackets (S005). */
GB_TEST(store, waits_for_a_late_server_over_ipv6) {
  char url[64];
  snprintf(url, sizeof url, "tcp://[::1]:%s", getenv("MASTER_PORT"));
  pthread_t thread;
  void *server;
  pthread_create(&thread, NULL, serve_late, url);
  gbi_store_params params = params_for(url, 1);
  gbi_store *store = opened(&params);
  pthread_join(thread, &server);
  GB_CHECK_TEXT(store->described, "tcp://[::1]:");
  battery(store, server, true);
  store->ops->close(store);
  ((gbi_store *)server)->ops->close(server);
}

static void *set_late(void *arg) {
  struct timespec nap = {0, 200000000};
  nanosleep(&nap, NULL);
  gbi_store *store = arg;
  GB_CHECK_OK(store->ops->set(store, "late", "now", 3, NULL));
  return NULL;
}

/* A get that waits gives the value, not the answer of its own question. */
GB_TEST(store, get_waits_for_the_key) {
  gbi_store_params zero = params_for(NULL, 0), one = params_for(NULL, 1);
  gbi_store *a = opened(&zero), *b = opened(&one);
  pthread_t thread;
  char value[8] = "";
  size_t bytes;
  pthread_create(&thread, NULL, set_late, b);
  GB_CHECK_OK(a->ops->get(a, "late", value, sizeof value, &bytes,
                          gbi_deadline_after_ms(5000), NULL));
  pthread_join(thread, NULL);
  GB_CHECK_INT(bytes, 3);
  GB_CHECK_TEXT(value, "now");
  a->ops->close(a);
  b->ops->close(b);
}

static int stop_at_once(void *arg) {
  return 1;
}

GB_TEST(store, hook_ends_a_wait) {
  gbi_store_params params = params_for(NULL, 1);
  params.wait_hook = stop_at_once;
  gbi_store *store;
  gb_error error;
  GB_CHECK_INT(gbi_store_open(&params, &store, &error), GB_ERR_INTERRUPTED);
}
