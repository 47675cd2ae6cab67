/* Everything that reads what others wrote takes thousands of damaged inputs
 * without a crash, an over-read (inputs lie in exact allocations, for the
 * address sanitizer) or a hang: records, control messages both ways, the
 * greeting, thresholds files, tcp frames, addresses, the store's server,
 * settings and texts (S119, S121, S122). Damage: flipped bits, bytes, cut ends,
 * and lengths that are extreme. GB_FUZZ_SEED repeats a run with another
 * seed. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "base/config.h"
#include "base/log.h"
#include "base/wire.h"
#include "control/channel.h"
#include "control/message.h"
#include "control/server_state.h"
#include "control/state.h"
#include "core/discovery.h"
#include "core/settings.h"
#include "core/thresholds.h"
#include "job/job.h"
#include "os/handshake.h"
#include "os/net.h"
#include "store/kinds.h"
#include "store/tcp/protocol.h"
#include "transport/tcp/tcp.h"

static uint64_t state;

static uint64_t next_random(void) {
  if (!state) {
    const char *text = getenv("GB_FUZZ_SEED");
    state = text ? strtoull(text, NULL, 10) : 20;
    state = (state + 1) * UINT64_C(0x9e3779b97f4a7c15);
    printf("GB_FUZZ_SEED=%s\n", text ? text : "20");
  }
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

static size_t below(size_t limit) {
  return limit ? (size_t)(next_random() % limit) : 0;
}

static void damage_once(uint8_t *data, size_t *bytes) {
  static const uint64_t extremes[] = {
      0,          1,          0x7f,       0xff,      0xffff,
      0x7fffffff, 0x80000000, 0xffffffff, INT64_MAX, UINT64_C(1) << 63,
      UINT64_MAX};
  size_t at = below(*bytes), width;
  uint64_t value;
  switch (below(5)) {
    case 0: data[at] ^= (uint8_t)(1 << below(8)); break;
    case 1: data[at] = (uint8_t)next_random(); break;
    case 2: *bytes = at; break;
    default:
      width = (size_t)1 << below(4);
      value = extremes[below(GBI_COUNT(extremes))];
      if (at + width > *bytes) break;
      for (size_t i = 0; i < width; i++)
        data[at + i] = (uint8_t)(value >> (8 * i));
  }
}

/* A damaged copy in an allocation of exactly its size; free it. */
static uint8_t *damaged(const void *good, size_t bytes, size_t *bytes_p) {
  uint8_t *work = malloc(bytes + 1);
  memcpy(work, good, bytes);
  for (size_t n = 1 + below(3); n && bytes; n--) damage_once(work, &bytes);
  uint8_t *exact = malloc(bytes ? bytes : 1);
  memcpy(exact, work, bytes);
  free(work);
  *bytes_p = bytes;
  return exact;
}

static void text_ends(const char *text, size_t bytes) {
  GB_CHECK(memchr(text, 0, bytes) != NULL);
}

/* ---- records ---- */

static void check_record(const gbi_record *r) {
  text_ends(r->vendor, sizeof r->vendor);
  text_ends(r->island, sizeof r->island);
  text_ends(r->host_key, sizeof r->host_key);
  GB_CHECK(r->settings_count >= 0 &&
           (size_t)r->settings_count <= GBI_COUNT(r->settings));
  GB_CHECK(r->facts_count >= 0 && r->facts_count <= GBI_FACTS_MAX);
  GB_CHECK(r->problems_count >= 0 && r->problems_count <= GBI_PROBLEMS_MAX);
  for (int i = 0; i < r->facts_count; i++) {
    text_ends(r->facts[i].name, sizeof r->facts[i].name);
    text_ends(r->facts[i].value, sizeof r->facts[i].value);
  }
}

GB_TEST(fuzz, records, .timeout_ms = 60000) {
  static gbi_record record, out;
  const gbi_setting *tables[GBI_SETTING_TABLES_MAX];
  int counts[GBI_SETTING_TABLES_MAX], taken = 0;
  int count = gbi_settings_tables(tables, counts);
  gb_pair facts[] = {{"torch_version", "2.13.0"}, {"gpu", "none"}};
  gb_job_params params = GB_JOB_PARAMS_INIT;
  params.facts = facts;
  params.facts_count = 2;
  gbi_record_fill(&params, tables, counts, count, &record, NULL);
  gbi_writer w;
  gbi_writer_init_growing(&w);
  GB_CHECK_OK(gbi_record_encode(&record, &w));
  for (int i = 0; i < 6000; i++) {
    size_t bytes;
    gb_error error;
    gbi_reader r;
    uint8_t *data = damaged(w.data, w.used, &bytes);
    gbi_reader_init(&r, data, bytes);
    memset(&out, 0, sizeof out);
    if (gbi_record_decode(&r, &out, &error) == GB_OK) {
      check_record(&out);
      gbi_record *two = calloc(2, sizeof *two);
      two[0] = record;
      two[1] = out;
      gbi_discovery *d;
      if (gbi_discovery_conclude(two, 0, 2, &d, &error) == GB_OK)
        gbi_discovery_free(d);
      free(two);
      taken++;
    }
    free(data);
  }
  printf("%d of 6000 still were records\n", taken);
  gbi_writer_fini(&w);
}

/* ---- thresholds files ---- */

GB_TEST(fuzz, thresholds, .timeout_ms = 60000) {
  static const char good[] =
      "{\"gpubridge_thresholds\": 1, \"rules\": [{\"max_bytes\": 4096, "
      "\"policy\": \"flat\"}, {\"max_bytes\": null, \"policy\": \"auto\"}], "
      "\"chunk_bytes\": 65536, \"collectives\": {\"reduce\": [{\"max_bytes\": "
      "null, \"policy\": \"auto\"}]}, \"measured\": {\"a\": [1, {}, \"\\n\"]}}";
  int taken = 0;
  for (int i = 0; i < 6000; i++) {
    size_t bytes;
    gb_error error;
    gbi_rules rules;
    uint8_t *data = damaged(good, sizeof good - 1, &bytes);
    if (gbi_thresholds_parse((const char *)data, bytes, "t", &rules, &error) ==
        GB_OK) {
      char text[GBI_RULES_TEXT];
      gbi_rules again;
      taken++;
      GB_CHECK(gbi_rules_text(&rules, text, sizeof text));
      GB_CHECK(gbi_rules_parse(text, &again));
    }
    free(data);
  }
  printf("%d of 6000 still were thresholds\n", taken);
}

/* ---- parts of control messages ---- */

GB_TEST(fuzz, parts_of_messages) {
  uint8_t good[4096];
  gbi_writer w;
  gbi_writer_init(&w, good, sizeof good);
  gbi_who who;
  gbi_who_set(&who, "some-host", "nvidia");
  gb_error error;
  gbi_fail_rank(&error, GB_ERR_PEER, 3, "rank 3 is gone\nand more");
  gbi_call_state call = {.started = 7, .completed = 6, .phase = "bridge"};
  int ranks[] = {0, 1, 5, 7};
  gbi_put_ranks(&w, ranks, 4);
  gbi_put_who(&w, &who);
  gbi_put_error(&w, &error);
  gbi_put_state(&w, true, &call);
  for (int i = 0; i < 20000; i++) {
    size_t bytes;
    int count = 0;
    gbi_reader r;
    uint8_t *data = damaged(good, w.used, &bytes);
    gbi_reader_init(&r, data, bytes);
    int *list = gbi_get_ranks(&r, 8, &count);
    for (int k = 0; list && k < count; k++)
      GB_CHECK(list[k] >= 0 && list[k] < 8);
    free(list);
    gbi_get_who(&r, &who);
    gbi_get_error(&r, &error);
    gbi_get_state(&r, &call);
    text_ends(who.hostname, sizeof who.hostname);
    text_ends(error.text, sizeof error.text);
    text_ends(call.phase, sizeof call.phase);
    GB_CHECK(error.status < 0 || r.bad);
    free(data);
  }
}

/* A stream of frames, cut anywhere. */
GB_TEST(fuzz, channel) {
  for (int i = 0; i < 2000; i++) {
    uint8_t body[300] = {0}, type;
    gbi_writer w;
    gbi_writer_init(&w, body, sizeof body);
    w.used = below(sizeof body);
    gbi_frame *frame = gbi_frame_make(GBI_MSG_RECORD, &w);
    size_t bytes;
    uint8_t *data = damaged(frame->data, frame->bytes, &bytes);
    int fds[2];
    GB_CHECK_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds));
    GB_CHECK(send(fds[1], frame->data, frame->bytes, 0) > 0);
    GB_CHECK(send(fds[1], data, bytes, 0) >= 0);
    close(fds[1]);
    gbi_channel channel;
    gbi_reader reader;
    gbi_channel_init(&channel, fds[0], 1024);
    gb_status status;
    while ((status = gbi_channel_fill(&channel)) == GB_OK)
      while ((status = gbi_channel_next(&channel, &type, &reader)) == GB_OK)
        GB_CHECK(reader.bytes < 1024);
    GB_CHECK(channel.in_bytes < 16384);
    gbi_channel_fini(&channel);
    gbi_frame_drop(frame);
    free(data);
  }
}

/* ---- a member that went mad, and a rank 0 that did ---- */

static void open_pair(int round, gbi_control **control) {
  char attempt[32], url[96];
  gb_error error;
  snprintf(attempt, sizeof attempt, "round %d", round);
  snprintf(url, sizeof url, "tcp://127.0.0.1:%s", getenv("MASTER_PORT"));
  gbi_control_params params = {
      .store = {.init_method = url,
                .rank = gb_rank(),
                .world_size = 2,
                .deadline_ns = gbi_deadline_after_ms(20000)},
      .attempt = attempt,
      .hostname = "host",
      .vendor = "amd"};
  if (gbi_control_open(&params, control, &error) != GB_OK)
    gb_test_fail(__FILE__, __LINE__, "round %d: %s", round, error.text);
}

/* A plausible body for the type, then damaged. */
static void push_damaged(int fd, const uint8_t *types, size_t types_count) {
  uint8_t body[2048];
  gbi_writer w;
  gb_error error;
  gbi_call_state call = {.started = 1, .phase = "x"};
  int both[] = {0, 1};
  gbi_writer_init(&w, body, sizeof body);
  gbi_put_u32(&w, (uint32_t)below(3));
  gbi_put_u32(&w, (uint32_t)below(3));
  gbi_put_u32(&w, 5000);
  gbi_put_ranks(&w, both, 2);
  gbi_put_i32(&w, 1);
  gbi_put_u8(&w, (uint8_t)below(2));
  gbi_fail_rank(&error, GB_ERR_PEER, 1, "a text");
  if (below(2)) gbi_put_error(&w, &error);
  if (below(2)) gbi_put_state(&w, true, &call);
  gbi_put_blob(&w, "blob", 4);
  size_t bytes;
  uint8_t *data = damaged(body, w.used, &bytes);
  gbi_writer d = {.data = data, .bytes = bytes, .used = bytes};
  gbi_frame *frame = gbi_frame_make(types[below(types_count)], &d);
  if (!below(8)) damage_once(frame->data, &frame->bytes);
  (void)!send(fd, frame->data, frame->bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  gbi_frame_drop(frame);
  free(data);
}

static void wait_failed(gbi_control *c, int ms) {
  for (int i = 0; i < ms && !gbi_control_failed(c, NULL); i++) nap_ms(1);
}

/* Rank `mad` writes what it likes to the other one. */
static void mad_rank(int mad, const uint8_t *types, size_t types_count) {
  volatile int *meet = gb_test_shared();
  for (int round = 0; round < 150; round++) {
    gbi_control *c;
    open_pair(round, &c);
    __atomic_add_fetch(meet, 1, __ATOMIC_ACQ_REL);
    gb_test_await(meet, 4 * round + 2, 20000);
    gbi_blobs records = {0};
    gb_error error;
    /* Half of them while gathering, half of them behind it. */
    if (round % 2 &&
        gbi_control_gather(c, "r", 1, NULL, NULL, gbi_deadline_after_ms(5000),
                           &records, &error) == GB_OK)
      gbi_blobs_free(&records);
    if (gb_rank() == mad) {
      int fd = c->link.fd;
      for (gbi_conn *k = mad ? NULL : c->server->conns; k; k = k->next)
        if (k->rank == 1) fd = k->channel.fd;
      for (int i = 0; i < 12; i++) push_damaged(fd, types, types_count);
    } else {
      wait_failed(c, 20);
    }
    __atomic_add_fetch(meet, 1, __ATOMIC_ACQ_REL);
    gb_test_await(meet, 4 * round + 4, 20000);
    gbi_control_close(c);
  }
}

GB_TEST(fuzz, mad_member, .ranks = 2, .timeout_ms = 150000) {
  static const uint8_t types[] = {GBI_MSG_RECORD,
                                  GBI_MSG_EXCHANGE,
                                  GBI_MSG_EXCHANGE,
                                  GBI_MSG_CAUSE,
                                  GBI_MSG_STALLED,
                                  GBI_MSG_STALLED,
                                  GBI_MSG_STATE,
                                  GBI_MSG_BEAT,
                                  GBI_MSG_GOODBYE,
                                  GBI_MSG_JOIN,
                                  99};
  mad_rank(1, types, sizeof types);
}

GB_TEST(fuzz, mad_rank_0, .ranks = 2, .timeout_ms = 150000) {
  static const uint8_t types[] = {GBI_MSG_VERDICT,
                                  GBI_MSG_EXCHANGED,
                                  GBI_MSG_ABORT,
                                  GBI_MSG_QUESTION,
                                  GBI_MSG_LATE,
                                  GBI_MSG_LATE,
                                  GBI_MSG_LEFT,
                                  GBI_MSG_GOODBYE_OK,
                                  GBI_MSG_BEAT,
                                  GBI_MSG_WELCOME,
                                  99};
  mad_rank(0, types, sizeof types);
}

/* ---- the greeting ---- */

static size_t greet_once(gbi_handshake *h, int fd, int peer, uint8_t *out,
                         size_t bytes) {
  gb_error error;
  (void)gbi_handshake_step(h, fd, &error);
  ssize_t n = recv(peer, out, bytes, MSG_DONTWAIT);
  return n > 0 ? (size_t)n : 0;
}

/* Each message of a good greeting is damaged once; nobody may be convinced by
 * bytes that differ from what a holder of the key would send. */
GB_TEST(fuzz, greeting) {
  gbi_auth auth = {{1}, {2}};
  gbi_hello hello = {.kind = GBI_HELLO_LINK, .from = 1, .to = 0};
  for (int i = 0; i < 3000; i++) {
    int a[2], b[2]; /* [0]: the machine's end, [1]: ours */
    GB_CHECK_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, a));
    GB_CHECK_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, b));
    gbi_handshake accepts, connects;
    gb_error error;
    uint8_t message[256];
    size_t which = below(3), bytes, n;
    gbi_handshake_accept(&accepts, &auth);
    gbi_handshake_connect(&connects, &auth, &hello);
    for (size_t turn = 0; turn < 3; turn++) {
      bool to_acceptor = turn == 1;
      n = to_acceptor
              ? greet_once(&connects, b[0], b[1], message, sizeof message)
              : greet_once(&accepts, a[0], a[1], message, sizeof message);
      uint8_t *data = malloc(n + 1);
      memcpy(data, message, n);
      bytes = n;
      if (turn == which && n) {
        free(data);
        data = damaged(message, n, &bytes);
      }
      bool same = bytes == n && !memcmp(data, message, n);
      (void)!send(to_acceptor ? a[1] : b[1], data, bytes, MSG_NOSIGNAL);
      free(data);
      gb_status status = GB_ERR_BUSY;
      if (to_acceptor)
        status = gbi_handshake_step(&accepts, a[0], &error);
      else if (turn)
        status = gbi_handshake_step(&connects, b[0], &error);
      if (turn == which && status == GB_OK) GB_CHECK(same);
      if (status != GB_OK && status != GB_ERR_BUSY) break;
    }
    for (int k = 0; k < 2; k++) {
      close(a[k]);
      close(b[k]);
    }
  }
}

/* ---- frames, addresses ---- */

GB_TEST(fuzz, frames) {
  gbi_tcp_frame frame = {.stream = 1,
                         .tag = 77,
                         .call = {.seq = 3, .count = 1 << 20},
                         .message_bytes = 1 << 22,
                         .offset = 1 << 20,
                         .piece_bytes = 1 << 20},
                out;
  uint8_t good[GBI_TCP_FRAME_BYTES];
  gbi_tcp_frame_write(&frame, good);
  for (int i = 0; i < 50000; i++) {
    size_t bytes;
    uint8_t *data = damaged(good, sizeof good, &bytes);
    uint8_t *whole = calloc(1, sizeof good);
    memcpy(whole, data, bytes);
    if (!gbi_tcp_frame_read(whole, 1, 1 << 20, &out)) {
      GB_CHECK(out.offset <= out.message_bytes);
      GB_CHECK(out.piece_bytes <= 1 << 20);
      GB_CHECK(out.piece_bytes <= out.message_bytes - out.offset);
    }
    free(data);
    free(whole);
  }
}

GB_TEST(fuzz, addresses) {
  uint8_t good[64];
  gbi_writer w;
  gbi_writer_init(&w, good, sizeof good);
  gbi_address list[2] = {{.bytes = sizeof(struct sockaddr_in)},
                         {.bytes = sizeof(struct sockaddr_in6)}};
  list[0].sa.ss_family = AF_INET;
  list[1].sa.ss_family = AF_INET6;
  for (int i = 0; i < 2; i++) gbi_put_address(&w, &list[i]);
  for (int i = 0; i < 20000; i++) {
    char text[GBI_ADDRESS_TEXT];
    size_t bytes;
    gbi_reader r;
    gbi_address out;
    uint8_t *data = damaged(good, w.used, &bytes);
    gbi_reader_init(&r, data, bytes);
    for (int k = 0; k < 3; k++) {
      gbi_get_address(&r, &out);
      text_ends(gbi_address_text(&out, text), sizeof text);
      (void)gbi_address_is_loopback(&out);
      (void)gbi_address_port(&out);
    }
    GB_CHECK(r.bad);
    free(data);
  }
}

/* ---- texts that users write ---- */

static char *damaged_text(const char *good) {
  size_t bytes;
  uint8_t *data = damaged(good, strlen(good), &bytes);
  char *text = malloc(bytes + 1);
  memcpy(text, data, bytes);
  text[bytes] = 0;
  free(data);
  return text;
}

GB_TEST(fuzz, host_and_port) {
  static const char *const good[] = {"node-1:29500", "[::1]:29500",
                                     "[fe80::1%eth0]:1", "10.0.0.1:65535"};
  for (int i = 0; i < 30000; i++) {
    char *text = damaged_text(good[below(GBI_COUNT(good))]);
    char *host = malloc(12);
    int port = 0;
    gb_error error;
    if (gbi_split_host_port(text, host, 12, &port, &error) == GB_OK) {
      GB_CHECK(port >= 1 && port <= 65535);
      GB_CHECK(strlen(host) >= 1 && strlen(host) < 12);
    } else {
      text_ends(error.text, sizeof error.text);
    }
    free(host);
    free(text);
  }
}

GB_TEST(fuzz, settings_and_log) {
  static const char *const good[] = {
      "tcp=trace,warn",      "64K",     "12",  "half",
      "20000-20100",         "1048576", "yes", "-1",
      "9223372036854775807", "4GiB"};
  const gbi_setting *tables[GBI_SETTING_TABLES_MAX];
  int counts[GBI_SETTING_TABLES_MAX];
  int count = gbi_settings_tables(tables, counts);
  for (int i = 0; i < 3000; i++) {
    char *text = damaged_text(good[below(GBI_COUNT(good))]);
    gbi_value value;
    gb_error error;
    for (int t = 0; t < count; t++)
      for (int k = 0; k < counts[t]; k++) {
        const gbi_setting *s = &tables[t][k];
        if (gbi_setting_parse(s, text, &value, &error) != GB_OK ||
            (s->kind != GBI_SETTING_INT && s->kind != GBI_SETTING_SIZE))
          continue;
        GB_CHECK(value.number >= s->min);
        GB_CHECK(!s->max || value.number <= s->max);
      }
    (void)gbi_log_configure(text, &error);
    free(text);
  }
  GB_CHECK_OK(gbi_log_configure("", NULL));
}

/* ---- the store's server ---- */

static void put_store_key(gbi_writer *w, const char *key) {
  gbi_put_u64(w, strlen(key));
  gbi_put_raw(w, key, strlen(key));
}

static void fill_requests(gbi_writer *w) {
  gbi_put_u8(w, GBI_TCP_VALIDATE);
  gbi_put_u32(w, GBI_TCP_MAGIC);
  gbi_put_u8(w, GBI_TCP_PING);
  gbi_put_u32(w, 7);
  for (int i = 0; i < 4; i++) {
    static const uint8_t kinds[] = {
        GBI_TCP_SET,       GBI_TCP_GET,       GBI_TCP_ADD,
        GBI_TCP_CHECK,     GBI_TCP_WAIT,      GBI_TCP_NUMKEYS,
        GBI_TCP_DELETE,    GBI_TCP_APPEND,    GBI_TCP_MULTI_GET,
        GBI_TCP_MULTI_SET, GBI_TCP_LIST_KEYS, GBI_TCP_COMPARE_SET};
    uint8_t kind = kinds[below(sizeof kinds)];
    gbi_put_u8(w, kind);
    bool many = kind == GBI_TCP_CHECK || kind == GBI_TCP_WAIT ||
                kind == GBI_TCP_MULTI_GET || kind == GBI_TCP_MULTI_SET;
    if (many) gbi_put_u64(w, 2);
    put_store_key(w, "/key");
    if (kind == GBI_TCP_ADD) gbi_put_u64(w, 3);
    put_store_key(w, "value-or-key");
    if (kind == GBI_TCP_COMPARE_SET) put_store_key(w, "new");
  }
}

static int dial_store(int port) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_in to = {.sin_family = AF_INET,
                           .sin_port = htons((uint16_t)port),
                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  GB_CHECK_OK(connect(fd, (void *)&to, sizeof to));
  return fd;
}

GB_TEST(fuzz, store_server, .timeout_ms = 120000) {
  gbi_address address = {.bytes = sizeof(struct sockaddr_in)};
  struct sockaddr_in *in = (void *)&address.sa;
  gbi_tcp_server *server;
  gb_error error;
  int port;
  in->sin_family = AF_INET;
  in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  GB_CHECK_OK(gbi_tcp_server_start(&address, &server, &port, &error));
  struct rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  for (int i = 0; i < 3000; i++) {
    uint8_t good[512], answers[512];
    size_t bytes;
    gbi_writer w;
    gbi_writer_init(&w, good, sizeof good);
    fill_requests(&w);
    uint8_t *data = damaged(good, w.used, &bytes);
    int fd = dial_store(port);
    (void)!send(fd, data, bytes, MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    struct pollfd one = {fd, POLLIN, 0};
    if (i % 3) poll(&one, 1, 100);
    (void)!recv(fd, answers, sizeof answers, MSG_DONTWAIT);
    close(fd);
    free(data);
  }
  getrusage(RUSAGE_SELF, &after);
  printf("memory grew by %ld KiB\n", after.ru_maxrss - before.ru_maxrss);
  GB_CHECK(after.ru_maxrss - before.ru_maxrss < 64 * 1024);
  /* It still serves. */
  char url[64], value[8] = "";
  snprintf(url, sizeof url, "tcp://127.0.0.1:%d", port);
  gbi_store_params params = {.init_method = url,
                             .rank = 1,
                             .world_size = 2,
                             .deadline_ns = gbi_deadline_after_ms(5000)};
  gbi_store *store;
  GB_CHECK_OK(gbi_store_open(&params, &store, &error));
  GB_CHECK_OK(gbi_store_set(store, "k", "well", 4, &error));
  GB_CHECK_OK(gbi_store_get(store, "k", value, sizeof value, &(size_t){0},
                            gbi_deadline_after_ms(5000), &error));
  GB_CHECK_TEXT(value, "well");
  store->ops->close(store);
  gbi_tcp_server_stop(server);
}
