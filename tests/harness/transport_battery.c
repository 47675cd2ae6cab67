#include "harness/transport_battery.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum { RUN_MS = 30000 };

uint64_t gb_fabric_timeout_ms = 10000;
uint64_t gb_fabric_death_ms = 1000;

/* ---- Set-up ---- */

void gb_fabric_listen(gb_fabric *f, gb_transport_fn open, gbi_reader *all) {
  gb_error error;
  f->ops = open();
  f->area = gb_area_open(NULL);
  for (int r = 0; r < gb_world(); r++)
    f->members[r] = (gbi_member){
        .rank = r, .local = r, .hostname = "here", .vendor = "nvidia"};
  gbi_transport_params params = {.members = f->members,
                                 .members_count = gb_world(),
                                 .me = gb_rank(),
                                 .area = f->area,
                                 .auth = &gb_area_auth,
                                 .group = 3,
                                 .comm = 4,
                                 .store_host = "127.0.0.1",
                                 .timeout_ms = gb_fabric_timeout_ms};
  if (f->ops->open(&params, &f->transport, &error))
    gb_test_fail(__FILE__, __LINE__, "%s", error.text);
  uint8_t mine[1024];
  gbi_writer w;
  gbi_writer_init(&w, mine, sizeof mine);
  f->ops->address(f->transport, &w);
  GB_CHECK(!w.bad);
  gb_exchange(mine, w.used, all);
}

void gb_fabric_open(gb_fabric *f, gb_transport_fn open) {
  gbi_reader all[GB_AREA_RANKS_MAX];
  gb_error error;
  gb_fabric_listen(f, open, all);
  if (f->ops->connect(f->transport, all, gbi_deadline_after_ms(20000), &error))
    gb_test_fail(__FILE__, __LINE__, "%s", error.text);
  gb_meet();
}

void gb_fabric_close(gb_fabric *f) {
  gb_meet();
  f->ops->stop(f->transport);
  f->ops->close(f->transport);
  gbi_hostarea_close(f->area);
}

gb_status gb_fabric_wait(gb_fabric *f, const gbi_xfer *xfer, int timeout_ms) {
  uint64_t deadline = gbi_deadline_after_ms((uint64_t)timeout_ms);
  gbi_waiter *waiter = gbi_hostarea_waiter(f->area);
  for (int idle = 0; xfer->status == GB_ERR_BUSY;) {
    uint32_t seen = gbi_bell_look(waiter);
    if (f->ops->progress(f->transport)) {
      idle = 0;
    } else if (gbi_deadline_passed(deadline)) {
      return GB_ERR_BUSY;
    } else if (idle++ < 20) {
      sched_yield();
    } else {
      int fd = f->ops->wait_fd(f->transport);
      struct pollfd one = {fd, POLLIN, 0};
      gbi_waiter_sleep(waiter, seen, &one, fd >= 0, 50);
    }
  }
  return xfer->status;
}

static const gbi_call the_call = {.seq = 7,
                                  .count = 5,
                                  .root = -1,
                                  .op = GBI_OP_ALL_REDUCE,
                                  .dtype = GB_FLOAT32,
                                  .redop = GB_SUM};

static void init(gbi_xfer *xfer, uint64_t tag, void *data, size_t bytes) {
  memset(xfer, 0xa5, sizeof *xfer); /* the transport must not trust its part */
  xfer->tag = tag;
  xfer->call = the_call;
  xfer->data = data;
  xfer->bytes = bytes;
  xfer->sink = NULL;
  xfer->sink_arg = NULL;
  xfer->granule = 1;
  xfer->after = NULL;
}

void gb_fabric_send(gb_fabric *f, int to, gbi_xfer *xfer, uint64_t tag,
                    const void *data, size_t bytes) {
  init(xfer, tag, (void *)data, bytes);
  f->ops->post_send(f->transport, to, xfer);
}

void gb_fabric_recv(gb_fabric *f, int from, gbi_xfer *xfer, uint64_t tag,
                    void *data, size_t bytes) {
  init(xfer, tag, data, bytes);
  f->ops->post_recv(f->transport, from, xfer);
}

static uint8_t pattern_byte(uint64_t seed, size_t i) {
  uint64_t x = (i / 8 + seed * 1000003) * UINT64_C(0x9e3779b97f4a7c15);
  return (uint8_t)(x >> 56) ^ (uint8_t)(i * 31);
}

void gb_pattern(void *data, size_t bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes; i++)
    ((uint8_t *)data)[i] = pattern_byte(seed, i);
}

void gb_check_pattern(const void *data, size_t bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes; i++)
    if (((const uint8_t *)data)[i] != pattern_byte(seed, i))
      gb_test_fail(__FILE__, __LINE__, "byte %zu of %zu is wrong", i, bytes);
}

static uint8_t *buffer(size_t bytes) {
  uint8_t *data = malloc(bytes + 1);
  GB_CHECK(data);
  data[bytes] = 0x77;
  return data;
}

static const size_t sizes[] = {0,       1,      63,      64,
                               65,      4095,   4096,    65537,
                               262144,  262145, 1 << 20, (1 << 20) + 7,
                               16 << 20};

/* ---- Bytes ---- */

void gb_transport_sizes(gb_transport_fn open) {
  gb_fabric f;
  gb_fabric_open(&f, open);
  int other = !gb_rank();
  for (size_t i = 0; i < GBI_COUNT(sizes); i++) {
    size_t bytes = sizes[i];
    uint8_t *out = buffer(bytes), *in = buffer(bytes);
    gbi_xfer send, recv;
    gb_pattern(out, bytes, i * 2 + (size_t)gb_rank());
    memset(in, 0, bytes);
    gb_fabric_send(&f, other, &send, i, out, bytes);
    gb_fabric_recv(&f, other, &recv, i, in, bytes);
    GB_CHECK_INT(gb_fabric_wait(&f, &recv, RUN_MS), GB_OK);
    GB_CHECK_INT(gb_fabric_wait(&f, &send, RUN_MS), GB_OK);
    GB_CHECK_INT(recv.moved, bytes);
    GB_CHECK_INT(send.moved, bytes);
    gb_check_pattern(in, bytes, i * 2 + (size_t)other);
    GB_CHECK(in[bytes] == 0x77);
    free(out);
    free(in);
  }
  gbi_transport_stats stats;
  f.ops->stats(f.transport, &stats);
  GB_CHECK_INT(stats.messages_sent, GBI_COUNT(sizes));
  GB_CHECK_INT(stats.messages_received, GBI_COUNT(sizes));
  GB_CHECK_INT(stats.bytes_sent, stats.bytes_received);
  gb_fabric_close(&f);
}

enum { TAGS = 16 };

/* Receives posted all at once, in an order of their own. */
void gb_transport_tags(gb_transport_fn open) {
  gb_fabric f;
  gb_fabric_open(&f, open);
  int other = !gb_rank();
  static uint8_t out[TAGS][70000], in[TAGS][70000];
  gbi_xfer send[TAGS], recv[TAGS];
  for (uint64_t round = 0; round < 10; round++) {
    for (int i = 0; i < TAGS; i++) {
      int tag = (i * 7 + 3) % TAGS;
      gb_fabric_recv(&f, other, &recv[tag], round * TAGS + (uint64_t)tag,
                     in[tag], sizeof in[0] >> tag % 5);
    }
    for (int i = 0; i < TAGS; i++) {
      gb_pattern(out[i], sizeof out[0], round * 100 + (uint64_t)i);
      gb_fabric_send(&f, other, &send[i], round * TAGS + (uint64_t)i, out[i],
                     sizeof out[0] >> i % 5);
    }
    for (int i = TAGS - 1; i >= 0; i--) {
      GB_CHECK_INT(gb_fabric_wait(&f, &recv[i], RUN_MS), GB_OK);
      gb_check_pattern(in[i], sizeof in[0] >> i % 5, round * 100 + (uint64_t)i);
    }
    for (int i = 0; i < TAGS; i++)
      GB_CHECK_INT(gb_fabric_wait(&f, &send[i], RUN_MS), GB_OK);
  }
  gb_fabric_close(&f);
}

/* A message of each size is on its way, and looked for, long before its
 * receive is posted; another one behind it. */
void gb_transport_late_receive(gb_transport_fn open) {
  gb_fabric f;
  gb_fabric_open(&f, open);
  int *word = gb_spare(), *posted = word + 1;
  for (size_t i = 0; i < GBI_COUNT(sizes); i++) {
    size_t bytes = sizes[i];
    uint8_t *data = buffer(bytes), last[40];
    gbi_xfer first, second, nothing;
    if (gb_rank() == 0) {
      gb_pattern(data, bytes, i);
      gb_pattern(last, sizeof last, i + 1000);
      gb_fabric_send(&f, 1, &first, 10 * i, data, bytes);
      gb_fabric_send(&f, 1, &second, 10 * i + 1, last, sizeof last);
      __atomic_store_n(word, (int)i + 1, __ATOMIC_RELEASE);
    } else {
      gb_test_await(word, (int)i + 1, RUN_MS);
      gb_fabric_recv(&f, 0, &nothing, 10 * i + 5, NULL, 0);
      GB_CHECK_INT(gb_fabric_wait(&f, &nothing, 30), GB_ERR_BUSY);
      gb_fabric_recv(&f, 0, &first, 10 * i, data, bytes);
      gb_fabric_recv(&f, 0, &second, 10 * i + 1, last, sizeof last);
      __atomic_store_n(posted, (int)i + 1, __ATOMIC_RELEASE);
    }
    GB_CHECK_INT(gb_fabric_wait(&f, &first, RUN_MS), GB_OK);
    GB_CHECK_INT(gb_fabric_wait(&f, &second, RUN_MS), GB_OK);
    gb_check_pattern(data, bytes, i);
    gb_check_pattern(last, sizeof last, i + 1000);
    if (gb_rank() == 0) {
      gb_test_await(posted, (int)i + 1, RUN_MS);
      gb_fabric_send(&f, 1, &nothing, 10 * i + 5, NULL, 0);
    }
    GB_CHECK_INT(gb_fabric_wait(&f, &nothing, RUN_MS), GB_OK);
    free(data);
  }
  gb_fabric_close(&f);
}

typedef struct sink_log {
  uint8_t *data, *seen;
  size_t granule, bytes;
  const gbi_xfer *after;
} sink_log;

static void log_sink(void *arg, size_t offset, const void *data, size_t bytes) {
  sink_log *log = arg;
  GB_CHECK(bytes && bytes % log->granule == 0);
  GB_CHECK(offset % log->granule == 0 && offset + bytes <= log->bytes);
  if (log->after) GB_CHECK(log->after->moved >= offset + bytes);
  memcpy(log->data + offset, data, bytes);
  for (size_t i = 0; i < bytes; i++) log->seen[offset + i]++;
}

static void recv_sink(gb_fabric *f, int from, gbi_xfer *xfer, uint64_t tag,
                      sink_log *log) {
  init(xfer, tag, NULL, log->bytes);
  xfer->sink = log_sink;
  xfer->sink_arg = log;
  xfer->granule = log->granule;
  xfer->after = log->after;
  memset(log->seen, 0, log->bytes);
  f->ops->post_recv(f->transport, from, xfer);
}

static void check_seen(const sink_log *log) {
  for (size_t i = 0; i < log->bytes; i++) GB_CHECK_INT(log->seen[i], 1);
}

void gb_transport_sinks(gb_transport_fn open) {
  gb_fabric f;
  gb_fabric_open(&f, open);
  int other = !gb_rank();
  size_t most = (size_t)3 << 20;
  uint8_t *out = buffer(most);
  sink_log log = {.data = buffer(most), .seen = buffer(most)};
  uint64_t tag = 0;
  for (log.granule = 1; log.granule <= 16; log.granule *= 2)
    for (size_t bytes = 16; bytes <= most; bytes = bytes * 9 / 16 * 16 + 48) {
      gbi_xfer send, recv;
      log.bytes = bytes;
      tag++;
      gb_pattern(out, bytes, tag * 2 + (uint64_t)gb_rank());
      if (gb_rank()) recv_sink(&f, other, &recv, tag, &log);
      gb_fabric_send(&f, other, &send, tag, out, bytes);
      if (!gb_rank()) recv_sink(&f, other, &recv, tag, &log);
      GB_CHECK_INT(gb_fabric_wait(&f, &recv, RUN_MS), GB_OK);
      GB_CHECK_INT(gb_fabric_wait(&f, &send, RUN_MS), GB_OK);
      check_seen(&log);
      gb_check_pattern(log.data, bytes, tag * 2 + (uint64_t)other);
    }
  free(out);
  free(log.data);
  free(log.seen);
  gb_fabric_close(&f);
}

/* Both sides send and receive the same memory at once. */
void gb_transport_in_place(gb_transport_fn open) {
  gb_fabric f;
  gb_fabric_open(&f, open);
  int other = !gb_rank();
  for (size_t i = 0; i < GBI_COUNT(sizes); i++)
    for (int sunk = 0; sunk < 2; sunk++) {
      size_t bytes = sizes[i];
      uint64_t tag = i * 2 + (size_t)sunk;
      uint8_t *data = buffer(bytes);
      gbi_xfer send, recv;
      sink_log log = {.data = data,
                      .seen = buffer(bytes),
                      .granule = 1,
                      .bytes = bytes,
                      .after = &send};
      gb_pattern(data, bytes, tag * 2 + (uint64_t)gb_rank());
      gb_fabric_send(&f, other, &send, tag, data, bytes);
      if (sunk) {
        recv_sink(&f, other, &recv, tag, &log);
      } else {
        init(&recv, tag, data, bytes);
        recv.after = &send;
        f.ops->post_recv(f.transport, other, &recv);
      }
      GB_CHECK_INT(gb_fabric_wait(&f, &recv, RUN_MS), GB_OK);
      GB_CHECK_INT(gb_fabric_wait(&f, &send, RUN_MS), GB_OK);
      if (sunk) check_seen(&log);
      gb_check_pattern(data, bytes, tag * 2 + (uint64_t)other);
      GB_CHECK(data[bytes] == 0x77);
      free(data);
      free(log.seen);
    }
  gb_fabric_close(&f);
}

/* Rank 0 takes rank 2's bytes only behind rank 1's, who comes late. */
void gb_transport_chain(gb_transport_fn open) {
  gb_fabric f;
  gb_fabric_open(&f, open);
  int *word = gb_spare();
  for (size_t i = 1; i < GBI_COUNT(sizes); i++) {
    size_t bytes = sizes[i];
    uint8_t *data = buffer(bytes);
    gbi_xfer one, two;
    if (gb_rank() == 0) {
      uint8_t *first = buffer(bytes);
      sink_log log = {.data = data,
                      .seen = buffer(bytes),
                      .granule = 1,
                      .bytes = bytes,
                      .after = &one};
      gb_fabric_recv(&f, 1, &one, i, first, bytes);
      recv_sink(&f, 2, &two, i, &log);
      GB_CHECK_INT(gb_fabric_wait(&f, &two, 10), GB_ERR_BUSY);
      GB_CHECK_INT(two.moved, 0);
      __atomic_store_n(word, (int)i, __ATOMIC_RELEASE);
      GB_CHECK_INT(gb_fabric_wait(&f, &two, RUN_MS), GB_OK);
      GB_CHECK_INT(one.status, GB_OK);
      check_seen(&log);
      gb_check_pattern(first, bytes, i * 2 + 1);
      gb_check_pattern(data, bytes, i * 2 + 2);
      free(first);
      free(log.seen);
    } else {
      gb_pattern(data, bytes, i * 2 + (size_t)gb_rank());
      if (gb_rank() == 1) gb_test_await(word, (int)i, RUN_MS);
      gb_fabric_send(&f, 0, &one, i, data, bytes);
      GB_CHECK_INT(gb_fabric_wait(&f, &one, RUN_MS), GB_OK);
    }
    free(data);
  }
  gb_fabric_close(&f);
}

/* Rank 1 is busy for three times the timeout, while rank 0 has more to send
 * than any buffer takes: rank 1 is not silent, only late. */
void gb_transport_busy_peer(gb_transport_fn open) {
  gb_fabric f;
  gb_fabric_timeout_ms = 1000;
  gb_fabric_open(&f, open);
  size_t bytes = (size_t)64 << 20;
  uint8_t *data = buffer(bytes);
  int *word = gb_spare();
  gbi_xfer xfer;
  if (gb_rank() == 0) {
    gb_pattern(data, bytes, 1);
    gb_fabric_send(&f, 1, &xfer, 1, data, bytes);
    GB_CHECK_INT(gb_fabric_wait(&f, &xfer, 3000), GB_ERR_BUSY);
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
  } else {
    gb_test_await(word, 1, RUN_MS);
    gb_fabric_recv(&f, 0, &xfer, 1, data, bytes);
  }
  GB_CHECK_INT(gb_fabric_wait(&f, &xfer, RUN_MS), GB_OK);
  gb_check_pattern(data, bytes, 1);
  free(data);
  gb_fabric_close(&f);
}

void gb_transport_all_pairs(gb_transport_fn open) {
  enum { BYTES = 300001, RANKS = 8 };
  gb_fabric f;
  gb_fabric_open(&f, open);
  static uint8_t out[RANKS][BYTES], in[RANKS][BYTES];
  gbi_xfer send[RANKS], recv[RANKS];
  for (uint64_t round = 0; round < 20; round++) {
    for (int r = 0; r < gb_world(); r++) {
      if (r == gb_rank()) continue;
      gb_pattern(out[r], BYTES, round * 100 + (uint64_t)(gb_rank() * 10 + r));
      gb_fabric_send(&f, r, &send[r], round, out[r], BYTES);
      gb_fabric_recv(&f, r, &recv[r], round, in[r], BYTES);
    }
    for (int r = 0; r < gb_world(); r++) {
      if (r == gb_rank()) continue;
      GB_CHECK_INT(gb_fabric_wait(&f, &recv[r], RUN_MS), GB_OK);
      GB_CHECK_INT(gb_fabric_wait(&f, &send[r], RUN_MS), GB_OK);
      gb_check_pattern(in[r], BYTES,
                       round * 100 + (uint64_t)(r * 10 + gb_rank()));
    }
  }
  gb_fabric_close(&f);
}

/* ---- Failures ---- */

void gb_transport_wrong_length(gb_transport_fn open) {
  gb_fabric f;
  gb_fabric_open(&f, open);
  uint8_t data[200] = {0};
  gbi_xfer xfer;
  gb_error error;
  if (gb_rank() == 0) {
    gb_fabric_send(&f, 1, &xfer, 1, data, 200);
    gb_fabric_wait(&f, &xfer, RUN_MS);
  } else {
    gb_fabric_recv(&f, 0, &xfer, 1, data, 100);
    GB_CHECK_INT(gb_fabric_wait(&f, &xfer, RUN_MS), GB_ERR_PROTOCOL);
    GB_CHECK_INT(f.ops->link_error(f.transport, 0, &error), GB_ERR_PROTOCOL);
    GB_CHECK_TEXT(error.text, "rank 0");
    GB_CHECK_TEXT(error.text, "200");
    GB_CHECK_TEXT(error.text, "100");
  }
  gb_fabric_close(&f);
}

void gb_transport_mismatch(gb_transport_fn open) {
  gb_fabric f;
  gb_fabric_open(&f, open);
  uint8_t data[4096] = {0};
  gbi_xfer send, recv;
  gb_error error;
  int other = !gb_rank();
  init(&send, 1, data, gb_rank() ? 4096 : 100);
  init(&recv, 1, data, gb_rank() ? 4096 : 100);
  send.call.count = recv.call.count = gb_rank() ? 4 : 5;
  f.ops->post_send(f.transport, other, &send);
  f.ops->post_recv(f.transport, other, &recv);
  GB_CHECK_INT(gb_fabric_wait(&f, &recv, RUN_MS), GB_ERR_MISMATCH);
  GB_CHECK_INT(f.ops->link_error(f.transport, other, &error), GB_ERR_MISMATCH);
  GB_CHECK_TEXT(error.text,
                "rank 0 called all_reduce number 7 of 5 float32, sum, rank 1 "
                "called all_reduce number 7 of 4 float32, sum");
  gb_fabric_close(&f);
}

void gb_transport_stop(gb_transport_fn open) {
  gb_fabric f;
  gb_fabric_open(&f, open);
  size_t bytes = (size_t)64 << 20;
  uint8_t *data = gb_rank() ? NULL : buffer(bytes), small[8];
  gbi_xfer send, recv, late;
  if (gb_rank() == 0) {
    memset(data, 0, bytes);
    gb_fabric_send(&f, 1, &send, 1, data, bytes);
    gb_fabric_recv(&f, 1, &recv, 2, small, sizeof small);
    GB_CHECK_INT(gb_fabric_wait(&f, &recv, 50), GB_ERR_BUSY);
    f.ops->stop(f.transport);
    GB_CHECK_INT(gb_fabric_wait(&f, &recv, 1000), GB_ERR_CANCELED);
    GB_CHECK_INT(send.status, GB_ERR_CANCELED);
    gb_fabric_recv(&f, 1, &late, 3, small, sizeof small);
    GB_CHECK_INT(gb_fabric_wait(&f, &late, 1000), GB_ERR_CANCELED);
  }
  gb_fabric_close(&f);
  free(data);
}

void gb_transport_killed(gb_transport_fn open) {
  gb_fabric f;
  gb_fabric_open(&f, open);
  uint64_t *died = gb_spare();
  uint8_t *data = buffer((size_t)32 << 20);
  gbi_xfer send, recv;
  gb_error error;
  if (gb_rank() == 1) {
    GB_CHECK_INT(gb_fabric_wait(&f, &(gbi_xfer){.status = GB_ERR_BUSY}, 30),
                 GB_ERR_BUSY);
    *died = gbi_now_ns();
    raise(SIGKILL);
  }
  memset(data, 0, (size_t)32 << 20);
  gb_fabric_send(&f, 1, &send, 1, data, (size_t)32 << 20);
  gb_fabric_recv(&f, 1, &recv, 2, data, 100);
  GB_CHECK_INT(gb_fabric_wait(&f, &recv, RUN_MS), GB_ERR_PEER);
  GB_CHECK(gbi_now_ns() - *died < gb_fabric_death_ms * GBI_NS_PER_MS);
  GB_CHECK_INT(send.status, GB_ERR_PEER);
  GB_CHECK_INT(f.ops->link_error(f.transport, 1, &error), GB_ERR_PEER);
  GB_CHECK_INT(error.rank, 1);
  GB_CHECK_TEXT(error.text, "between rank 0 and rank 1");
  gb_fabric_recv(&f, 1, &recv, 3, data, 100);
  GB_CHECK_INT(recv.status, GB_ERR_PEER);
  _exit(0);
}

void gb_transport_warm(gb_transport_fn open) {
  gb_fabric f;
  gb_fabric_open(&f, open);
  int other = !gb_rank();
  size_t most = (size_t)4 << 20;
  uint8_t *out = buffer(most), *in = buffer(most);
  memset(out, 1, most);
  memset(in, 1, most);
  struct rusage before = {0}, after;
  for (uint64_t round = 0; round < 20; round++) {
    if (round == 4) getrusage(RUSAGE_SELF, &before);
    size_t bytes = most >> round % 4 * 7;
    gbi_xfer send, recv;
    gb_fabric_send(&f, other, &send, round, out, bytes);
    gb_fabric_recv(&f, other, &recv, round, in, bytes);
    GB_CHECK_INT(gb_fabric_wait(&f, &recv, RUN_MS), GB_OK);
    GB_CHECK_INT(gb_fabric_wait(&f, &send, RUN_MS), GB_OK);
  }
  getrusage(RUSAGE_SELF, &after);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  GB_CHECK(after.ru_minflt - before.ru_minflt <= 2);
#endif
  free(out);
  free(in);
  gb_fabric_close(&f);
}
