/* Proves for tcp: the transport battery with one, a few and many connections
 * and the smallest chunk (S081); which addresses it listens on and how bad
 * names are refused (S002, S003, S122); that strangers at the port do no harm
 * (S119, S120) and hostile frames break only the link (S121); that a failed
 * connect names ranks, addresses and reasons (S012), and that the other
 * direction is tried. */
#include "transport/tcp/tcp.h"

#include "harness/transport_battery.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const gbi_transport_ops *open_default(void) {
  return &gbi_transport_tcp;
}

static const gbi_transport_ops *with(const char *streams, const char *chunk) {
  setenv("GPUBRIDGE_MULTITCP_STREAMS", streams, 1);
  if (chunk) setenv("GPUBRIDGE_MULTITCP_CHUNK_BYTES", chunk, 1);
  return &gbi_transport_tcp;
}
static const gbi_transport_ops *open_one_small(void) {
  return with("1", "4096");
}
static const gbi_transport_ops *open_three_small(void) {
  return with("3", "4096");
}
static const gbi_transport_ops *open_four(void) {
  return with("4", NULL);
}
static const gbi_transport_ops *open_eight(void) {
  return with("8", "64K");
}
static const gbi_transport_ops *open_many(void) {
  return with("64", "4096");
}

GB_TRANSPORT_BATTERY(tcp, open_default)
GB_TRANSPORT_BATTERY(tcp_1_4k, open_one_small)
GB_TRANSPORT_BATTERY(tcp_3_4k, open_three_small)
GB_TRANSPORT_BATTERY(tcp_4, open_four)
GB_TRANSPORT_BATTERY(tcp_8, open_eight)
GB_TRANSPORT_CASE(tcp_64, sizes, 2, gb_transport_sizes, open_many)

GB_TEST(tcp, killed, .ranks = 2, .expect = "0k") {
  gb_transport_killed(open_default);
}
GB_TEST(tcp_4, killed, .ranks = 2, .expect = "0k") {
  gb_transport_killed(open_four);
}

/* ---- Frames ---- */

GB_TEST(tcp_frame, checks_every_field) {
  gbi_tcp_frame frame = {.stream = 2,
                         .tag = 99,
                         .message_bytes = 10000,
                         .offset = 8192,
                         .piece_bytes = 1808},
                got;
  frame.call = (gbi_call){
      .seq = 3, .count = 4, .root = -1, .op = 1, .dtype = 6, .redop = 0};
  uint8_t raw[GBI_TCP_FRAME_BYTES];
  gbi_tcp_frame_write(&frame, raw);
  GB_CHECK(!gbi_tcp_frame_read(raw, 2, 4096, &got));
  GB_CHECK(gbi_call_equal(&frame.call, &got.call));
  GB_CHECK(got.tag == 99 && got.message_bytes == 10000 && got.offset == 8192 &&
           got.piece_bytes == 1808);
  GB_CHECK(gbi_tcp_frame_read(raw, 1, 4096, &got));
  GB_CHECK(gbi_tcp_frame_read(raw, 2, 8192 * 2, &got));
  /* Any bit outside tag and call makes it wrong. */
  for (int bit = 0; bit < GBI_TCP_FRAME_BYTES * 8; bit++) {
    bool free_field = bit / 8 >= 8 && bit / 8 < 39;
    raw[bit / 8] ^= (uint8_t)(1 << bit % 8);
    bool refused = gbi_tcp_frame_read(raw, 2, 4096, &got) != NULL;
    if (!free_field) GB_CHECK(refused);
    raw[bit / 8] ^= (uint8_t)(1 << bit % 8);
  }
}

GB_TEST(tcp_frame, absurd_lengths_are_refused) { /* S121 */
  static const uint64_t lengths[] = {UINT64_MAX, INT64_MAX, UINT64_C(1) << 63};
  uint8_t raw[GBI_TCP_FRAME_BYTES];
  gbi_tcp_frame got;
  for (size_t i = 0; i < GBI_COUNT(lengths); i++) {
    gbi_tcp_frame frame = {.message_bytes = lengths[i],
                           .piece_bytes = UINT32_MAX};
    gbi_tcp_frame_write(&frame, raw);
    GB_CHECK(gbi_tcp_frame_read(raw, 0, 1 << 30, &got));
    frame.piece_bytes = 0;
    gbi_tcp_frame_write(&frame, raw);
    GB_CHECK(gbi_tcp_frame_read(raw, 0, 1 << 30, &got));
  }
}

/* ---- Addresses ---- */

static gb_status open_alone(const char *store_host, gbi_transport **t,
                            gb_error *error) {
  static gbi_member members[2] = {{.rank = 0, .local = -1, .hostname = "a"},
                                  {.rank = 1, .local = -1, .hostname = "b"}};
  gbi_transport_params params = {.members = members,
                                 .members_count = 2,
                                 .auth = &gb_area_auth,
                                 .store_host = store_host,
                                 .timeout_ms = 5000};
  return gbi_transport_tcp.open(&params, t, error);
}

GB_TEST(tcp_address, bad_interface_names_are_refused) { /* S002, S003 */
  static const char *const names[] = {"^lo", "eth0,eth1", "=lo", "eth9",
                                      "127.0.0.1"};
  for (size_t i = 0; i < GBI_COUNT(names); i++) {
    gbi_transport *t;
    gb_error error;
    setenv("GPUBRIDGE_MULTITCP_IFNAME", names[i], 1);
    GB_CHECK_INT(open_alone("127.0.0.1", &t, &error), GB_ERR_SETTING);
    GB_CHECK_TEXT(error.text, "GPUBRIDGE_MULTITCP_IFNAME");
    GB_CHECK_TEXT(error.text, names[i]);
    GB_CHECK_TEXT(error.text, "lo");
  }
  unsetenv("GPUBRIDGE_MULTITCP_IFNAME");
  setenv("GPUBRIDGE_TCP_IFNAME", "eth9", 1);
  gbi_transport *t;
  gb_error error;
  GB_CHECK_INT(open_alone("127.0.0.1", &t, &error), GB_ERR_SETTING);
  GB_CHECK_TEXT(error.text, "GPUBRIDGE_TCP_IFNAME");
}

GB_TEST(tcp_address, bad_settings_are_refused) {
  static const char *const bad[][2] = {
      {"GPUBRIDGE_MULTITCP_STREAMS", "0"},
      {"GPUBRIDGE_MULTITCP_STREAMS", "65"},
      {"GPUBRIDGE_TCP_STREAMS", "many"},
      {"GPUBRIDGE_MULTITCP_CHUNK_BYTES", "4095"},
      {"GPUBRIDGE_TCP_CHUNK_BYTES", "-1"}};
  for (size_t i = 0; i < GBI_COUNT(bad); i++) {
    gbi_transport *t;
    gb_error error;
    setenv(bad[i][0], bad[i][1], 1);
    GB_CHECK_INT(open_alone("127.0.0.1", &t, &error), GB_ERR_SETTING);
    GB_CHECK_TEXT(error.text, bad[i][0]);
    GB_CHECK_TEXT(error.text, bad[i][1]);
    unsetenv(bad[i][0]);
  }
}

static int read_addresses(gbi_transport *t, gbi_address *list) {
  uint8_t raw[1024];
  gbi_writer w;
  gbi_reader r;
  gbi_writer_init(&w, raw, sizeof raw);
  gbi_transport_tcp.address(t, &w);
  gbi_reader_init(&r, raw, w.used);
  int count = gbi_get_u8(&r);
  for (int i = 0; i < count; i++) gbi_get_address(&r, &list[i]);
  GB_CHECK(!r.bad && r.at == r.bytes);
  return count;
}

/* S122: never the wildcard, and a store on loopback means loopback only. */
GB_TEST(tcp_address, listens_where_the_store_is) {
  gbi_transport *t;
  gb_error error;
  gbi_address list[GBI_TCP_CANDIDATES_MAX];
  GB_CHECK_OK(open_alone("127.0.0.1", &t, &error));
  GB_CHECK_INT(read_addresses(t, list), 1);
  GB_CHECK(gbi_address_is_loopback(&list[0]));
  gbi_transport_tcp.stop(t);
  gbi_transport_tcp.close(t);
}

GB_TEST(tcp_address, without_a_store_loopback_comes_last) {
  gbi_transport *t;
  gb_error error;
  gbi_address list[GBI_TCP_CANDIDATES_MAX];
  char text[GBI_ADDRESS_TEXT];
  setenv("GLOO_SOCKET_IFNAME", "^docker0,lo", 1); /* leniently ignored */
  GB_CHECK_OK(open_alone("", &t, &error));
  int count = read_addresses(t, list);
  GB_CHECK(count >= 1);
  for (int i = 0; i < count; i++) {
    gbi_address_text(&list[i], text);
    GB_CHECK(strncmp(text, "0.0.0.0", 7) && strncmp(text, "[::]", 4));
    if (i && gbi_address_is_loopback(&list[i - 1]))
      GB_CHECK(gbi_address_is_loopback(&list[i]));
  }
  gbi_transport_tcp.stop(t);
  gbi_transport_tcp.close(t);
}

GB_TEST(tcp_address, port_range_holds) {
  gbi_transport *t;
  gb_error error;
  gbi_address list[GBI_TCP_CANDIDATES_MAX];
  setenv("GPUBRIDGE_PORT_RANGE", "23000-23999", 1);
  GB_CHECK_OK(open_alone("127.0.0.1", &t, &error));
  read_addresses(t, list);
  int port = ntohs(((struct sockaddr_in *)&list[0].sa)->sin_port);
  GB_CHECK(port >= 23000 && port <= 23999);
  gbi_transport_tcp.stop(t);
  gbi_transport_tcp.close(t);
}

/* ---- Connecting ---- */

static gb_status connect_within(gb_fabric *f, const gbi_reader *all,
                                uint64_t limit_ms, gb_error *error) {
  return f->ops->connect(f->transport, all, gbi_deadline_after_ms(limit_ms),
                         error);
}

/* A blob that tells a port at which nobody listens. */
static size_t lie(uint8_t *raw, size_t bytes) {
  gbi_address address = {.bytes = sizeof(struct sockaddr_in)};
  gbi_writer w;
  struct sockaddr_in *in = (void *)&address.sa;
  in->sin_family = AF_INET;
  in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  in->sin_port = htons(1);
  gbi_writer_init(&w, raw, bytes);
  gbi_put_u8(&w, 1);
  gbi_put_address(&w, &address);
  GB_CHECK(!w.bad);
  return w.used;
}

/* S012: the address that `liar` tells leads nowhere. */
static void one_lies(int liar, bool both) {
  gb_fabric f;
  gbi_reader all[GB_AREA_RANKS_MAX];
  gb_error error;
  uint8_t raw[1024];
  gb_fabric_listen(&f, open_default, all);
  for (int r = 0; r < 2; r++)
    if ((r == liar || both) && r != gb_rank())
      gbi_reader_init(&all[r], raw, lie(raw, sizeof raw));
  gb_status status = connect_within(&f, all, both ? 2000 : 20000, &error);
  if (both) {
    GB_CHECK_INT(status, GB_ERR_CONNECT);
    char text[128];
    snprintf(text, sizeof text,
             "could not connect bridge \"tcp\" from rank %d to rank %d at "
             "127.0.0.1:1: connection refused",
             gb_rank(), !gb_rank());
    GB_CHECK_TEXT(error.text, text);
    GB_CHECK_TEXT(error.text, "advertised this address");
    GB_CHECK_TEXT(error.text, "GPUBRIDGE_MULTITCP_IFNAME");
  } else {
    GB_CHECK_OK(status);
    gbi_xfer send, recv;
    int out = gb_rank(), in = -1;
    gb_fabric_send(&f, !gb_rank(), &send, 1, &out, sizeof out);
    gb_fabric_recv(&f, !gb_rank(), &recv, 1, &in, sizeof in);
    GB_CHECK_INT(gb_fabric_wait(&f, &recv, 5000), GB_OK);
    GB_CHECK_INT(in, !gb_rank());
  }
  gb_fabric_close(&f);
}

GB_TEST(tcp_connect, other_way_round, .ranks = 2) {
  one_lies(0, false);
}
GB_TEST(tcp_connect, usual_way, .ranks = 2) {
  one_lies(1, false);
}
GB_TEST(tcp_connect, no_way_names_everything, .ranks = 2) {
  one_lies(0, true);
}

/* Several connections each way round, with one direction blocked. */
GB_TEST(tcp_connect, other_way_round_striped, .ranks = 2) {
  setenv("GPUBRIDGE_MULTITCP_STREAMS", "8", 1);
  one_lies(0, false);
}

GB_TEST(tcp_connect, different_settings_are_refused, .ranks = 2) {
  gb_fabric f;
  gbi_reader all[GB_AREA_RANKS_MAX];
  gb_error error;
  setenv("GPUBRIDGE_MULTITCP_STREAMS", gb_rank() ? "2" : "3", 1);
  gb_fabric_listen(&f, open_default, all);
  gb_status status = connect_within(&f, all, 2000, &error);
  GB_CHECK(status == GB_ERR_REFUSED || status == GB_ERR_CONNECT);
  if (gb_rank() == 0) {
    GB_CHECK_INT(status, GB_ERR_REFUSED);
    GB_CHECK_TEXT(error.text, "GPUBRIDGE_MULTITCP_STREAMS");
  }
  gb_fabric_close(&f);
}

/* ---- Strangers ---- */

static int knock(const gbi_address *address) {
  int fd = socket(address->sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  GB_CHECK(fd >= 0);
  GB_CHECK(!connect(fd, (const void *)&address->sa, address->bytes));
  return fd;
}

static void say(int fd, const void *data, size_t bytes) {
  /* It may have been shown the door already. */
  ssize_t n = send(fd, data, bytes, MSG_NOSIGNAL);
  (void)n;
}

static int open_files(void) {
  int count = 0;
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  for (int fd = 0; fd < 4096 && fd < (int)limit.rlim_cur; fd++) {
    struct pollfd one = {fd, 0, 0};
    poll(&one, 1, 0);
    count += !(one.revents & POLLNVAL);
  }
  return count;
}

/* S119, S120: rank 1 opens its port and goes on when 600 strangers of all
 * kinds stand at its door, many of them silent for good. */
GB_TEST(tcp_connect, strangers_do_no_harm, .ranks = 2) {
  enum { EACH = 100 };
  gb_fabric f;
  gbi_reader all[GB_AREA_RANKS_MAX];
  gb_error error;
  struct rlimit limit = {4096, 4096};
  setrlimit(RLIMIT_NOFILE, &limit);
  int before = open_files();
  gb_fabric_listen(&f, open_four, all);
  int held[EACH * 5];
  memset(held, -1, sizeof held);
  if (gb_rank() == 0) {
    static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    uint8_t noise[200], half[60] = "GPUBRIDG\1";
    gb_pattern(noise, sizeof noise, 1);
    gbi_reader reader = all[1];
    gbi_address victim;
    GB_CHECK_INT(gbi_get_u8(&reader), 1);
    gbi_get_address(&reader, &victim);
    for (int i = 0; i < EACH; i++) {
      close(knock(&victim));
      for (int k = 0; k < 5; k++) held[i * 5 + k] = knock(&victim);
      say(held[i * 5 + 1], noise, 64);
      say(held[i * 5 + 2], http, sizeof http - 1);
      say(held[i * 5 + 3], noise, 1);
      say(held[i * 5 + 4], half, sizeof half);
    }
  }
  gb_meet();
  uint64_t start = gbi_now_ns();
  if (connect_within(&f, all, 20000, &error))
    gb_test_fail(__FILE__, __LINE__, "%s", error.text);
  GB_CHECK(gbi_now_ns() - start < 10 * GBI_NS_PER_S);
  gbi_xfer send, recv;
  int out = gb_rank(), in = -1;
  gb_fabric_send(&f, !gb_rank(), &send, 1, &out, sizeof out);
  gb_fabric_recv(&f, !gb_rank(), &recv, 1, &in, sizeof in);
  GB_CHECK_INT(gb_fabric_wait(&f, &recv, 5000), GB_OK);
  GB_CHECK_INT(in, !gb_rank());
  for (int i = 0; i < EACH * 5; i++)
    if (held[i] >= 0) close(held[i]);
  gb_fabric_close(&f);
  GB_CHECK_INT(open_files(), before);
}

/* S122: after connecting nobody listens any more. */
GB_TEST(tcp_connect, nobody_listens_during_the_job, .ranks = 2) {
  gb_fabric f;
  gbi_reader all[GB_AREA_RANKS_MAX];
  gb_error error;
  gb_fabric_listen(&f, open_default, all);
  gbi_reader reader = all[!gb_rank()];
  gbi_address address;
  gbi_get_u8(&reader);
  gbi_get_address(&reader, &address);
  GB_CHECK_OK(connect_within(&f, all, 20000, &error));
  gb_meet();
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  GB_CHECK(connect(fd, (void *)&address.sa, address.bytes) &&
           errno == ECONNREFUSED);
  close(fd);
  gb_fabric_close(&f);
}

/* ---- Hostile peers ---- */

/* S121: rank 1 knows the key, greets well and then sends `raw`. */
static void send_frame(const uint8_t raw[GBI_TCP_FRAME_BYTES],
                       const char *reason) {
  gb_fabric f;
  gbi_reader all[GB_AREA_RANKS_MAX];
  gb_error error;
  gb_fabric_listen(&f, open_default, all);
  GB_CHECK_OK(connect_within(&f, all, 20000, &error));
  if (gb_rank() == 1) {
    gbi_tcp *t = (gbi_tcp *)f.transport;
    say(t->links[0].conns[0].fd, raw, GBI_TCP_FRAME_BYTES);
  } else {
    gbi_xfer recv;
    uint8_t data[100];
    gb_fabric_recv(&f, 1, &recv, 1, data, sizeof data);
    GB_CHECK_INT(gb_fabric_wait(&f, &recv, 5000), GB_ERR_PROTOCOL);
    GB_CHECK_INT(f.ops->link_error(f.transport, 1, &error), GB_ERR_PROTOCOL);
    GB_CHECK_TEXT(error.text, "between rank 0 and rank 1");
    GB_CHECK_TEXT(error.text, reason);
  }
  gb_fabric_close(&f);
}

GB_TEST(tcp_hostile, garbage_header, .ranks = 2) {
  uint8_t raw[GBI_TCP_FRAME_BYTES];
  gb_pattern(raw, sizeof raw, 5);
  send_frame(raw, "bad magic");
}

GB_TEST(tcp_hostile, absurd_length, .ranks = 2) {
  uint8_t raw[GBI_TCP_FRAME_BYTES];
  gbi_tcp_frame frame = {
      .tag = 1, .message_bytes = UINT64_MAX, .piece_bytes = UINT32_MAX};
  gbi_tcp_frame_write(&frame, raw);
  send_frame(raw, "absurd message length");
}

/* As many connections as the line needs, where it is thin and long. */
GB_TEST(tcp_rules, connections_that_take_part) {
  const uint64_t mbit = 125000;
  static const struct {
    int streams;
    uint64_t mbit;
    uint32_t ms;
    int want;
    bool is_short; /* their send buffers do not hold twice what it does */
  } rows[] = {
      {4, 200, 40, 2, false},   {4, 1000, 20, 2, false}, {4, 1000, 80, 4, true},
      {4, 500, 80, 3, false},   {4, 2499, 80, 4, true},  {4, 2500, 6, 4, false},
      {4, 9000, 20, 4, true},   {4, 100, 5, 4, false},   {4, 0, 40, 2, false},
      {16, 1000, 80, 5, false}, {1, 100, 40, 1, false},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    bool is_short;
    GB_CHECK_INT(gbi_tcp_active(rows[i].streams, rows[i].mbit * mbit,
                                rows[i].ms * 1000, &is_short),
                 rows[i].want);
    GB_CHECK_INT(is_short, rows[i].is_short);
  }
}

/* A line is sent what it carries once it has dropped more than stray frames,
 * and more again when it turns out to carry more. */
GB_TEST(tcp_rules, pace_of_a_line_that_drops) {
  const uint64_t ms = 1000000, second = 1000 * ms;
  gbi_tcp_pace pace = {0};
  for (int i = 0; i < 100; i++) /* stray losses: one frame in a thousand */
    GB_CHECK_INT((long)gbi_tcp_pace_window(&pace, second / 10, 10000000, 10000),
                 0);
  uint64_t rate = gbi_tcp_pace_window(&pace, second / 10, 9000000, 900000);
  GB_CHECK_INT((long)rate,
               100000000); /* what it carried, not what it was sent */
  int more = 0;
  for (int i = 0; i < 64; i++) {
    rate = gbi_tcp_pace_window(&pace, second / 10, 9500000, 0);
    GB_CHECK(rate == 100000000 || rate == 120000000 || rate == 95000000 ||
             rate == 114000000);
    more += rate == 120000000 || rate == 114000000;
  }
  GB_CHECK_INT(more, 8); /* a little more is tried now and then */
  rate = gbi_tcp_pace_window(&pace, second / 10, 12000000, 0);
  GB_CHECK_INT((long)rate, 180000000); /* there was room: quickly on */
  /* A line that has become slow: what it used to carry is forgotten. */
  for (int i = 0; i < 128; i++)
    rate = gbi_tcp_pace_window(&pace, second / 10, 1000000, 0);
  GB_CHECK(rate <= 12000000);
}

/* A frame of the right message, whose piece is sent twice: the receive must
 * not be completed by the copy. */
GB_TEST(tcp_hostile, piece_comes_twice, .ranks = 2) {
  gb_fabric f;
  gbi_reader all[GB_AREA_RANKS_MAX];
  gb_error error;
  gb_fabric_listen(&f, open_three_small, all);
  GB_CHECK_OK(connect_within(&f, all, 20000, &error));
  static uint8_t data[8192];
  if (gb_rank() == 1) {
    gbi_tcp *t = (gbi_tcp *)f.transport;
    for (uint8_t k = 0; k < 2; k++) {
      uint8_t raw[GBI_TCP_FRAME_BYTES];
      gbi_tcp_frame frame = {.stream = k,
                             .tag = 1,
                             .message_bytes = 8192,
                             .offset = 0,
                             .piece_bytes = 4096};
      frame.call = (gbi_call){.seq = 7,
                              .count = 5,
                              .root = -1,
                              .op = GBI_OP_ALL_REDUCE,
                              .dtype = GB_FLOAT32};
      gbi_tcp_frame_write(&frame, raw);
      say(t->links[0].conns[k].fd, raw, sizeof raw);
      say(t->links[0].conns[k].fd, data, 4096);
    }
  } else {
    gbi_xfer recv;
    gb_fabric_recv(&f, 1, &recv, 1, data, sizeof data);
    GB_CHECK_INT(gb_fabric_wait(&f, &recv, 5000), GB_ERR_PROTOCOL);
    GB_CHECK_INT(f.ops->link_error(f.transport, 1, &error), GB_ERR_PROTOCOL);
    GB_CHECK_TEXT(error.text, "twice");
  }
  gb_fabric_close(&f);
}

/* ---- Silence ---- */

static void set_loopback(bool up) {
  struct ifreq request = {.ifr_name = "lo"};
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  request.ifr_flags = up ? IFF_UP : 0;
  if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request))
    gb_test_skip("no loopback of our own");
  close(fd);
}

typedef struct end {
  gbi_transport *transport;
  gbi_reader *all;
  gb_status status;
} end;

static void *connect_end(void *arg) {
  end *e = arg;
  e->status = gbi_transport_tcp.connect(e->transport, e->all,
                                        gbi_deadline_after_ms(10000), NULL);
  return NULL;
}

/* T17: the cable is cut. Two ends in one process, in a network of their own
 * whose only interface goes down while data is under way. */
GB_TEST(tcp, cut_cable_is_noticed) {
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET))
    gb_test_skip("no network namespace of our own");
  set_loopback(true);
  gbi_member members[2] = {{.rank = 10, .local = -1, .hostname = "a"},
                           {.rank = 20, .local = -1, .hostname = "b"}};
  uint8_t raw[2][1024];
  gbi_reader all[2];
  end ends[2];
  for (int i = 0; i < 2; i++) {
    gb_error error;
    gbi_writer w;
    gbi_transport_params params = {.members = members,
                                   .members_count = 2,
                                   .me = i,
                                   .auth = &gb_area_auth,
                                   .store_host = "127.0.0.1",
                                   .timeout_ms = 1500};
    GB_CHECK_OK(gbi_transport_tcp.open(&params, &ends[i].transport, &error));
    gbi_writer_init(&w, raw[i], sizeof raw[i]);
    gbi_transport_tcp.address(ends[i].transport, &w);
    gbi_reader_init(&all[i], raw[i], w.used);
    ends[i].all = all;
  }
  pthread_t thread;
  GB_CHECK(!pthread_create(&thread, NULL, connect_end, &ends[1]));
  connect_end(&ends[0]);
  pthread_join(thread, NULL);
  GB_CHECK_INT(ends[0].status, GB_OK);
  GB_CHECK_INT(ends[1].status, GB_OK);
  set_loopback(false);
  uint64_t start = gbi_now_ns();
  static uint8_t data[100];
  gbi_xfer send = {.tag = 1, .data = data, .bytes = 100, .granule = 1};
  gbi_xfer recv = send;
  gbi_transport_tcp.post_send(ends[0].transport, 1, &send);
  gbi_transport_tcp.post_recv(ends[0].transport, 1, &recv);
  while (recv.status == GB_ERR_BUSY) {
    gbi_transport_tcp.progress(ends[0].transport);
    gbi_poll_one(gbi_transport_tcp.wait_fd(ends[0].transport), POLLIN,
                 gbi_deadline_after_ms(50));
    GB_CHECK(gbi_now_ns() - start < 4 * GBI_NS_PER_S);
  }
  gb_error error;
  GB_CHECK_INT(recv.status, GB_ERR_PEER);
  GB_CHECK_INT(gbi_transport_tcp.link_error(ends[0].transport, 1, &error),
               GB_ERR_PEER);
  GB_CHECK_TEXT(error.text, "between rank 10 and rank 20");
  GB_CHECK_TEXT(error.text, "no sign of life for 1500 ms");
  for (int i = 0; i < 2; i++) {
    gbi_transport_tcp.stop(ends[i].transport);
    gbi_transport_tcp.close(ends[i].transport);
  }
}

/* A peer that waits idle for a long time costs no CPU, also with a message at
 * hand that nobody has posted. */
GB_TEST(tcp, waiting_costs_nothing, .ranks = 2) {
  gb_fabric f;
  gb_fabric_open(&f, open_four);
  static uint8_t data[1 << 20];
  gbi_xfer early, recv;
  int *word = gb_spare();
  if (gb_rank() == 1) {
    gb_fabric_send(&f, 0, &early, 9, data, sizeof data);
    gb_test_await(word, 1, 20000);
    gb_fabric_wait(&f, &early, 20000);
  } else {
    gb_fabric_recv(&f, 1, &recv, 1, data, 10);
    struct rusage a, b;
    getrusage(RUSAGE_SELF, &a);
    GB_CHECK_INT(gb_fabric_wait(&f, &recv, 600), GB_ERR_BUSY);
    getrusage(RUSAGE_SELF, &b);
    long used_us = (b.ru_utime.tv_sec - a.ru_utime.tv_sec) * 1000000L +
                   b.ru_utime.tv_usec - a.ru_utime.tv_usec +
                   (b.ru_stime.tv_sec - a.ru_stime.tv_sec) * 1000000L +
                   b.ru_stime.tv_usec - a.ru_stime.tv_usec;
    GB_CHECK(used_us < 60000);
    gb_fabric_recv(&f, 1, &early, 9, data, sizeof data);
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
    GB_CHECK_INT(gb_fabric_wait(&f, &early, 20000), GB_OK);
  }
  gb_fabric_close(&f);
}
