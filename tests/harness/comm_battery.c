#include "harness/comm_battery.h"

#include "device/host/reduce.h"

#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RUN_MS = 60000 };

/* ---- driving ---- */

static void open_comm(gb_battery *b, gb_comm_open_fn open) {
  gb_error error;
  gbi_transport_params params = {
      .members = b->members, .members_count = gb_world(), .me = gb_rank(),
      .area = b->area, .auth = &gb_area_auth, .group = 1, .comm = 2,
      .store_host = "127.0.0.1", .timeout_ms = 20000};
  if (open(&params, b->host, &b->comm, &error))
    gb_test_fail(__FILE__, __LINE__, "%s", error.text);
  uint8_t mine[4096];
  gbi_writer w;
  gbi_writer_init(&w, mine, sizeof mine);
  b->comm->ops->address(b->comm, &w);
  GB_CHECK(!w.bad);
  gbi_reader all[GB_AREA_RANKS_MAX];
  gb_exchange(mine, w.used, all);
  if (b->comm->ops->connect(b->comm, all, gbi_deadline_after_ms(20000),
                            &error))
    gb_test_fail(__FILE__, __LINE__, "%s", error.text);
}

void gb_battery_open(gb_battery *b, gb_comm_open_fn open, const int *host) {
  static const char *const names[] = {"host0", "host1", "host2", "host3"};
  *b = (gb_battery){0};
  b->area = gb_area_open(host);
  for (int r = 0, local = 0; r < gb_world(); r++) {
    b->host[r] = host ? host[r] : 0;
    bool here = b->host[r] == (host ? host[gb_rank()] : 0);
    b->members[r] = (gbi_member){.rank = r, .local = here ? local++ : -1,
                                 .hostname = names[b->host[r] % 4],
                                 .vendor = "nvidia"};
  }
  open_comm(b, open);
  size_t bytes = (b->comm->ops->state_bytes + 63) / 64 * 64;
  for (int i = 0; i < GB_STEPS_MAX; i++) {
    b->states[i] = aligned_alloc(64, bytes);
    GB_CHECK(b->states[i]);
    memset(b->states[i], 0xa5, bytes); /* start must not trust it */
  }
  gb_meet();
}

void gb_battery_close(gb_battery *b) {
  gb_meet();
  b->comm->ops->stop(b->comm);
  b->comm->ops->close(b->comm);
  for (int i = 0; i < GB_STEPS_MAX; i++) free(b->states[i]);
  gbi_hostarea_close(b->area);
}

gbi_call gb_battery_call(gb_battery *b, const gbi_comm_step *step) {
  bool reduces =
      step->kind == GBI_COMM_REDUCE || step->kind == GBI_COMM_ALL_REDUCE;
  return (gbi_call){
      .seq = ++b->seq, .count = step->count,
      .root = step->kind == GBI_COMM_BROADCAST ? step->root : -1,
      .op = reduces ? GBI_OP_ALL_REDUCE : GBI_OP_BROADCAST,
      .dtype = (uint8_t)step->dtype,
      .redop = reduces ? (uint8_t)step->redop : 255};
}

void gb_battery_start(gb_battery *b, int slot, const gbi_comm_step *step) {
  b->steps[slot] = *step;
  b->pending[slot] = true;
  b->comm->ops->start(b->comm, &b->steps[slot], b->states[slot]);
}

static void sleep_once(gb_battery *b, uint32_t seen) {
  int fds[16];
  struct pollfd polls[16];
  int n = b->comm->ops->wait_fds(b->comm, fds, 16);
  for (int i = 0; i < n; i++) polls[i] = (struct pollfd){fds[i], POLLIN, 0};
  gbi_waiter_sleep(gbi_hostarea_waiter(b->area), seen, polls, n, 50);
}

/* Slots were started in ascending order from `from`, wrapping round. */
static gb_status progress_all(gb_battery *b, int from, gb_error *error) {
  for (int k = 0; k < GB_STEPS_MAX; k++) {
    int slot = (from + k) % GB_STEPS_MAX;
    if (!b->pending[slot]) continue;
    gb_status status =
        b->comm->ops->progress(b->comm, b->states[slot], error);
    if (status == GB_ERR_BUSY) continue;
    b->pending[slot] = false;
    if (status != GB_OK) return status;
  }
  return GB_OK;
}

gb_status gb_battery_drive(gb_battery *b, int slot, int timeout_ms,
                           gb_error *error) {
  uint64_t deadline = gbi_deadline_after_ms((uint64_t)timeout_ms);
  gbi_waiter *waiter = gbi_hostarea_waiter(b->area);
  for (int idle = 0; b->pending[slot]; idle++) {
    uint32_t seen = gbi_bell_look(waiter);
    uint64_t moved = b->comm->moved;
    gb_status status = progress_all(b, slot, error);
    if (status != GB_OK) return status;
    if (b->comm->moved != moved) idle = 0;
    if (!b->pending[slot]) break;
    if (gbi_deadline_passed(deadline))
      return gbi_fail(error, GB_ERR_WAIT_TIMEOUT, "the step did not end");
    if (idle < 20)
      sched_yield();
    else
      sleep_once(b, seen);
  }
  return GB_OK;
}

gb_status gb_battery_run(gb_battery *b, const gbi_comm_step *step,
                         int timeout_ms, gb_error *error) {
  gb_battery_start(b, 0, step);
  return gb_battery_drive(b, 0, timeout_ms, error);
}

static void must_run(gb_battery *b, const gbi_comm_step *step) {
  gb_error error;
  if (gb_battery_run(b, step, RUN_MS, &error))
    gb_test_fail(__FILE__, __LINE__, "%s", error.text);
}

/* ---- exact values ---- */

/* Small whole numbers, so that any order gives the same sum in any type and
 * eight of them fit int8. Period 15 in i. */
static int value_of(int member, size_t i, uint64_t seq) {
  return (int)((i * 7 + (size_t)member * 4 + seq) % 15) - 7;
}
enum { PERIOD = 15 };

static uint16_t half_bits(int value, gb_dtype dtype) {
  /* |value| < 256 is exact in both, and so is 256. */
  if (!value) return 0;
  unsigned sign = value < 0, v = (unsigned)(sign ? -value : value), e = 0;
  while (v >> (e + 1)) e++;
  if (dtype == GB_FLOAT16)
    return (uint16_t)(sign << 15 | (e + 15) << 10 | ((v << (10 - e)) & 0x3ff));
  v = e > 7 ? v >> (e - 7) : v << (7 - e);
  return (uint16_t)(sign << 15 | (e + 127) << 7 | (v & 0x7f));
}

/* Complex numbers get `value` and its negative; float8 is only copied here, so
 * that any byte will do. */
static void put_value(void *data, size_t i, int value, gb_dtype dtype) {
  switch (gb_dtype_bytes(dtype)) {
    case 1: ((uint8_t *)data)[i] = (uint8_t)value; return;
    case 2:
      ((uint16_t *)data)[i] = dtype == GB_FLOAT16 || dtype == GB_BFLOAT16
                                  ? half_bits(value, dtype)
                                  : (uint16_t)value;
      return;
    default: break;
  }
  switch (dtype) {
    case GB_INT32: case GB_UINT32: ((int32_t *)data)[i] = value; break;
    case GB_INT64: case GB_UINT64: ((int64_t *)data)[i] = value; break;
    case GB_FLOAT32: ((float *)data)[i] = (float)value; break;
    case GB_FLOAT64: ((double *)data)[i] = value; break;
    case GB_COMPLEX64:
      ((float *)data)[2 * i] = (float)value;
      ((float *)data)[2 * i + 1] = (float)-value;
      break;
    default:
      ((double *)data)[2 * i] = value;
      ((double *)data)[2 * i + 1] = -value;
      break;
  }
}

/* The value of a member for this step: not negative for unsigned types, powers
 * of two in products, often 0 for bool. */
static int number_of(const gbi_comm_step *s, int member, size_t i) {
  int value = value_of(member, i, s->call.seq);
  switch (s->dtype) {
    case GB_UINT8:
    case GB_UINT16:
    case GB_UINT32:
    case GB_UINT64: return value + 7;
    case GB_BOOL: return value % 3 ? value : 0;
    default: break;
  }
  if (s->redop != GB_PRODUCT) return value;
  return (value & 1 ? 2 : 1) * (value & 2 ? -1 : 1);
}

/* Goes on like the first PERIOD values. */
static void go_on(void *data, const gbi_comm_step *s) {
  size_t each = gb_dtype_bytes(s->dtype);
  gb_test_repeat(data, PERIOD * each, s->count * each);
}

static void fill(void *data, const gbi_comm_step *s, int member) {
  for (size_t i = 0; i < s->count && i < PERIOD; i++)
    put_value(data, i, number_of(s, member, i), s->dtype);
  go_on(data, s);
}

static int combine_two(const gbi_comm_step *s, int a, int b) {
  if (s->dtype == GB_BOOL) a = a != 0, b = b != 0;
  switch (s->redop) {
    case GB_MAX: return GBI_MAX(a, b);
    case GB_MIN: return GBI_MIN(a, b);
    case GB_PRODUCT: return a * b; /* eight members: at most 14^8, an int */
    case GB_BAND: return a & b;
    case GB_BOR: return a | b;
    case GB_BXOR: return a ^ b;
    default: return s->dtype == GB_BOOL ? a | b : a + b;
  }
}

static int combine_values(const gbi_comm_step *s, size_t i) {
  int result = number_of(s, 0, i);
  for (int m = 1; m < gb_world(); m++)
    result = combine_two(s, result, number_of(s, m, i));
  return result;
}

static void expect(void *data, const gbi_comm_step *s) {
  if (s->kind == GBI_COMM_REDUCE || s->kind == GBI_COMM_ALL_REDUCE) {
    for (size_t i = 0; i < s->count && i < PERIOD; i++)
      put_value(data, i, combine_values(s, i), s->dtype);
    go_on(data, s);
  } else {
    fill(data, s, s->root);
  }
}

static bool gets_result(const gbi_comm_step *s) {
  switch (s->kind) {
    case GBI_COMM_REDUCE: return gb_rank() == s->root;
    case GBI_COMM_TRANSFER: return gb_rank() == s->peer;
    case GBI_COMM_BROADCAST: return true;
    default: return true;
  }
}

typedef struct buffers {
  uint8_t *src, *dst, *want;
  size_t bytes;
} buffers;

static void buffers_open(buffers *m, size_t bytes) {
  m->bytes = bytes + 64;
  m->src = malloc(m->bytes);
  m->dst = malloc(m->bytes);
  m->want = malloc(m->bytes);
  GB_CHECK(m->src && m->dst && m->want);
}

static void buffers_close(buffers *m) {
  free(m->src);
  free(m->dst);
  free(m->want);
}

static void compare(const gbi_comm_step *s, const uint8_t *got,
                    const uint8_t *want, const char *what) {
  size_t bytes = s->count * gb_dtype_bytes(s->dtype);
  if (!memcmp(got, want, bytes)) return;
  for (size_t i = 0; i < bytes; i++)
    if (got[i] != want[i])
      gb_test_fail(__FILE__, __LINE__,
                   "%s: kind %d %s %s count %zu root %d peer %d: byte %zu is "
                   "%#x, not %#x", what, s->kind, gb_dtype_name(s->dtype),
                   gb_redop_name(s->redop), s->count, s->root, s->peer, i,
                   got[i], want[i]);
}

/* One step, checked: the result, what must stay untouched, and the bytes
 * behind the end. */
static void check_step(gb_battery *b, buffers *m, gbi_comm_step s,
                       bool in_place) {
  size_t bytes = s.count * gb_dtype_bytes(s.dtype);
  s.call = gb_battery_call(b, &s);
  fill(m->src, &s, gb_rank());
  memset(m->dst, 0x5a, bytes + 1);
  m->src[bytes] = 0x77;
  s.src = m->src;
  s.dst = in_place ? m->src : m->dst;
  must_run(b, &s);
  uint8_t *dst = s.dst;
  GB_CHECK(m->src[bytes] == 0x77 && m->dst[bytes] == 0x5a);
  bool root_keeps = s.kind == GBI_COMM_BROADCAST && gb_rank() == s.root;
  if (gets_result(&s) && !(root_keeps && !in_place)) {
    expect(m->want, &s);
    compare(&s, dst, m->want, in_place ? "in place" : "dst");
  } else if (!in_place) {
    memset(m->want, 0x5a, bytes);
    if (!root_keeps) compare(&s, m->dst, m->want, "dst of a bystander");
  }
  if (!in_place || !gets_result(&s)) {
    fill(m->want, &s, gb_rank());
    compare(&s, m->src, m->want, "src");
  }
}

/* The first three are also those of gb_battery_large. */
static const gb_redop redops[] = {GB_SUM,  GB_MAX, GB_MIN, GB_PRODUCT,
                                  GB_BAND, GB_BOR, GB_BXOR};
enum { LARGE_REDOPS = 3 };

/* Copies of every type; reductions where the type has a kernel. */
static void sweep_roots(gb_battery *b, buffers *m, gbi_comm_step s,
                        bool all_roots) {
  int n = gb_world();
  bool reduces = gbi_reduce_kernel(s.dtype, s.redop);
  for (int in_place = 0; in_place < 2; in_place++) {
    s.root = 0;
    s.kind = GBI_COMM_ALL_REDUCE;
    if (reduces) check_step(b, m, s, in_place);
    for (int root = 0; root < n; root++) {
      if (!all_roots && root != (int)(b->seq % (uint64_t)n)) continue;
      s.root = root;
      s.kind = GBI_COMM_REDUCE;
      if (reduces) check_step(b, m, s, in_place);
      s.kind = GBI_COMM_BROADCAST;
      check_step(b, m, s, in_place);
      s.kind = GBI_COMM_TRANSFER;
      s.peer = (root + 1 + (int)(b->seq % (uint64_t)n)) % n;
      if (s.peer != s.root) check_step(b, m, s, in_place);
    }
  }
}

/* Sums, maxima and minima of the eight types of old in every size, to see the
 * ways a step is cut; everything else in two, since a kernel is a kernel. */
void gb_battery_values(gb_comm_open_fn open, const int *host) {
  static const size_t counts[] = {3, 4097, 0, 1, 1000, 1023, 20011};
  gb_battery b;
  buffers m;
  gb_battery_open(&b, open, host);
  buffers_open(&m, 20011 * 8);
  for (int dtype = 0; dtype < GB_DTYPE_COUNT; dtype++)
    for (size_t o = 0; o < GBI_COUNT(redops); o++) {
      if (o && !gbi_reduce_kernel((gb_dtype)dtype, redops[o])) continue;
      bool every = dtype <= GB_FLOAT64 && o < LARGE_REDOPS;
      for (size_t c = 0; c < (every ? GBI_COUNT(counts) : 2); c++) {
        gbi_comm_step s = {.dtype = (gb_dtype)dtype, .redop = redops[o],
                           .count = counts[c]};
        sweep_roots(&b, &m, s, counts[c] < 1023 && o == 0);
      }
    }
  buffers_close(&m);
  gb_battery_close(&b);
}

void gb_battery_large(gb_comm_open_fn open, const int *host) {
  static const gb_dtype dtypes[] = {GB_INT8, GB_FLOAT16, GB_FLOAT32,
                                    GB_FLOAT64};
  gb_battery b;
  buffers m;
  gb_battery_open(&b, open, host);
  buffers_open(&m, (size_t)8 << 20);
  for (size_t d = 0; d < GBI_COUNT(dtypes); d++) {
    gbi_comm_step s = {.dtype = dtypes[d], .redop = redops[d % LARGE_REDOPS],
                       .count = 100003};
    sweep_roots(&b, &m, s, true);
    s.count = 1000000 + 1;
    sweep_roots(&b, &m, s, false);
  }
  buffers_close(&m);
  gb_battery_close(&b);
}

/* ---- order ---- */

static uint64_t mix(uint64_t x) {
  x += UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}

/* Finite values of very different size, so that order shows in the bits. */
static void fill_random(void *data, size_t count, gb_dtype dtype, int member,
                        uint64_t seq) {
  for (size_t i = 0; i < count; i++) {
    uint64_t x = mix(mix(i + seq * 977) + (uint64_t)member);
    uint32_t e = 117 + (uint32_t)(x >> 40) % 20;
    uint32_t bits = (uint32_t)(x >> 32 & 1) << 31 | e << 23 |
                    ((uint32_t)x & 0x7fffff);
    float f;
    memcpy(&f, &bits, 4);
    if (dtype == GB_FLOAT32) ((float *)data)[i] = f;
    if (dtype == GB_FLOAT64)
      ((double *)data)[i] = f * (1 + 1e-9 * (double)(x % 997));
    if (dtype == GB_BFLOAT16) ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
    if (dtype == GB_FLOAT16)
      ((uint16_t *)data)[i] =
          (uint16_t)((x & 0x83ff) | ((6 + (x >> 40) % 20) << 10));
  }
}

void gb_battery_order(gb_comm_open_fn open, const int *host) {
  static const gb_dtype dtypes[] = {GB_FLOAT16, GB_BFLOAT16, GB_FLOAT32,
                                    GB_FLOAT64};
  static const size_t counts[] = {5, 1021, 70001, 300007};
  gb_battery b;
  buffers m;
  gb_battery_open(&b, open, host);
  buffers_open(&m, 300007 * 8);
  for (size_t d = 0; d < GBI_COUNT(dtypes); d++)
    for (size_t c = 0; c < GBI_COUNT(counts); c++)
      for (int k = 0; k < 2; k++) {
        gbi_comm_step s = {.kind = k ? GBI_COMM_REDUCE : GBI_COMM_ALL_REDUCE,
                           .dtype = dtypes[d], .count = counts[c],
                           .redop = GB_SUM, .src = m.src, .dst = m.src};
        s.root = k ? (int)(c % (size_t)gb_world()) : 0;
        s.call = gb_battery_call(&b, &s);
        fill_random(m.want, s.count, s.dtype, 0, s.call.seq);
        for (int r = 1; r < gb_world(); r++) {
          fill_random(m.src, s.count, s.dtype, r, s.call.seq);
          gbi_reduce_kernel(s.dtype, GB_SUM)(m.want, m.src, s.count);
        }
        fill_random(m.src, s.count, s.dtype, gb_rank(), s.call.seq);
        must_run(&b, &s);
        if (gets_result(&s)) compare(&s, m.src, m.want, "member order");
      }
  buffers_close(&m);
  gb_battery_close(&b);
}

/* ---- several steps in flight ---- */

/* As the engine chunks one call over two islands: REDUCE(c + 1) is started
 * before BROADCAST(c), and the broadcast comes from the reduce's root. */
static void pipeline_once(gb_battery *b, buffers *m, size_t chunk, int chunks,
                          int root) {
  gbi_comm_step all = {.kind = GBI_COMM_ALL_REDUCE, .dtype = GB_FLOAT32,
                       .redop = GB_SUM, .count = chunk * (size_t)chunks};
  all.call = gb_battery_call(b, &all);
  fill(m->src, &all, gb_rank());
  gb_error error;
  gbi_comm_step s = all;
  s.count = chunk;
  s.root = root;
  int slot = 0, reduce_slot[64];
  for (int c = 0; c <= chunks; c++) {
    if (c < chunks) {
      s.kind = GBI_COMM_REDUCE;
      s.step = (uint32_t)(2 * c);
      s.src = s.dst = m->src + (size_t)c * chunk * 4;
      if (b->pending[slot] && gb_battery_drive(b, slot, RUN_MS, &error))
        gb_test_fail(__FILE__, __LINE__, "%s", error.text);
      reduce_slot[c] = slot;
      gb_battery_start(b, slot, &s);
      slot = (slot + 1) % GB_STEPS_MAX;
    }
    if (c == 0) continue;
    int before = reduce_slot[c - 1];
    if (gb_rank() == root && b->pending[before] &&
        gb_battery_drive(b, before, RUN_MS, &error))
      gb_test_fail(__FILE__, __LINE__, "%s", error.text);
    s.kind = GBI_COMM_BROADCAST;
    s.step = (uint32_t)(2 * c + 1);
    s.src = s.dst = m->src + (size_t)(c - 1) * chunk * 4;
    if (b->pending[slot] && gb_battery_drive(b, slot, RUN_MS, &error))
      gb_test_fail(__FILE__, __LINE__, "%s", error.text);
    gb_battery_start(b, slot, &s);
    slot = (slot + 1) % GB_STEPS_MAX;
  }
  for (int k = 0; k < GB_STEPS_MAX; k++, slot = (slot + 1) % GB_STEPS_MAX)
    if (gb_battery_drive(b, slot, RUN_MS, &error))
      gb_test_fail(__FILE__, __LINE__, "%s", error.text);
  expect(m->want, &all);
  compare(&all, m->src, m->want, "pipeline");
}

void gb_battery_pipeline(gb_comm_open_fn open, const int *host) {
  gb_battery b;
  buffers m;
  gb_battery_open(&b, open, host);
  buffers_open(&m, (size_t)300007 * 4 * 9);
  for (int round = 0; round < 8; round++) {
    pipeline_once(&b, &m, 7, 5, round % gb_world());
    pipeline_once(&b, &m, 5001, 9, round % gb_world());
    pipeline_once(&b, &m, 300007, 9, round % gb_world());
  }
  buffers_close(&m);
  gb_battery_close(&b);
}

/* ---- disagreement: S028, S030, S032 ---- */

typedef struct disagreement {
  size_t count;
  gb_redop redop;
  gb_dtype dtype;
} disagreement;

/* On one host every member must hear of a disagreement. Across hosts at least
 * one must, and in a job its abort reaches the others. */
static bool heard_of_it(gb_status status, const int *host) {
  int *heard = gb_spare();
  if (status == GB_ERR_MISMATCH) __atomic_fetch_add(heard, 1, __ATOMIC_ACQ_REL);
  gb_meet();
  if (!host) GB_CHECK_INT(status, GB_ERR_MISMATCH);
  GB_CHECK(__atomic_load_n(heard, __ATOMIC_ACQUIRE) > 0);
  gb_meet();
  __atomic_store_n(heard, 0, __ATOMIC_RELEASE);
  return status == GB_ERR_MISMATCH;
}

static void disagree(gb_comm_open_fn open, const int *host,
                     const disagreement *theirs) {
  gb_battery b;
  static uint8_t data[1 << 21];
  gb_battery_open(&b, open, host);
  bool odd = gb_rank() == gb_world() - 1;
  gbi_comm_step s = {.kind = GBI_COMM_ALL_REDUCE, .dtype = GB_FLOAT32,
                     .redop = GB_SUM, .count = 100, .src = data, .dst = data};
  if (odd) {
    s.count = theirs->count;
    s.redop = theirs->redop;
    s.dtype = theirs->dtype;
  }
  s.call = gb_battery_call(&b, &s);
  gb_error error;
  uint64_t start = gbi_now_ns();
  gb_status status = gb_battery_run(&b, &s, host ? 1000 : 5000, &error);
  GB_CHECK(gbi_now_ns() - start < (host ? 2 : 1) * GBI_NS_PER_S);
  if (!heard_of_it(status, host)) {
    gb_battery_close(&b);
    return;
  }
  char mine[160];
  gbi_call_text(&s.call, mine, sizeof mine);
  GB_CHECK_TEXT(error.text, mine);
  char last[32];
  snprintf(last, sizeof last, "rank %d called", gb_world() - 1);
  GB_CHECK_TEXT(error.text, last);
  gb_battery_close(&b);
}

void gb_battery_mismatch(gb_comm_open_fn open, const int *host) {
  static const disagreement list[] = {
      {101, GB_SUM, GB_FLOAT32},    {100, GB_MAX, GB_FLOAT32},
      {100, GB_SUM, GB_INT32},      {400000, GB_SUM, GB_FLOAT32},
      {3000, GB_SUM, GB_FLOAT32},
  };
  for (size_t i = 0; i < GBI_COUNT(list); i++) disagree(open, host, &list[i]);
}

/* The lower half broadcasts from rank 0, the upper half from the last rank:
 * whoever can still be done learns of it in the next call. */
void gb_battery_roots_differ(gb_comm_open_fn open, const int *host) {
  gb_battery b;
  static float data[16];
  gb_battery_open(&b, open, host);
  bool upper = gb_rank() >= gb_world() / 2;
  gbi_comm_step s = {.kind = GBI_COMM_BROADCAST, .dtype = GB_FLOAT32,
                     .root = upper ? gb_world() - 1 : 0, .count = 16,
                     .src = data, .dst = data};
  if (gb_world() == 2) s.root = !s.root; /* both wait for each other */
  gb_error error;
  s.call = gb_battery_call(&b, &s);
  uint64_t start = gbi_now_ns();
  int patience_ms = host ? 1000 : 5000;
  gb_status status = gb_battery_run(&b, &s, patience_ms, &error);
  if (status == GB_OK) {
    s.kind = GBI_COMM_ALL_REDUCE;
    s.redop = GB_SUM;
    s.root = 0;
    s.call = gb_battery_call(&b, &s);
    status = gb_battery_run(&b, &s, patience_ms, &error);
  }
  GB_CHECK(gbi_now_ns() - start < (host ? 3 : 2) * GBI_NS_PER_S);
  if (heard_of_it(status, host))
    GB_CHECK_TEXT(error.text, "ranks disagree: rank");
  gb_battery_close(&b);
}

/* ---- scheduling ---- */

static void freeze(int pid) {
  char path[64], state = 0;
  GB_CHECK_OK(kill(pid, SIGSTOP));
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  while (state != 'T') {
    FILE *file = fopen(path, "r");
    GB_CHECK(file && fscanf(file, "%*d %*s %c", &state) == 1);
    fclose(file);
    sched_yield();
  }
}

/* The last rank is frozen for a while in the middle of a row of calls: the
 * others name it while they wait, and everybody ends with the right result. */
void gb_battery_frozen(gb_comm_open_fn open, const int *host) {
  gb_battery b;
  buffers m;
  gb_battery_open(&b, open, host);
  buffers_open(&m, 100003 * 4);
  int last = gb_world() - 1, *pid = gb_spare(); /* pid, waiting, frozen */
  gbi_comm_step s = {.kind = GBI_COMM_ALL_REDUCE, .dtype = GB_FLOAT32,
                     .redop = GB_SUM, .count = 100003};
  if (gb_rank() == last) __atomic_store_n(pid, getpid(), __ATOMIC_RELEASE);
  gb_meet();
  check_step(&b, &m, s, true);
  /* It must be frozen before it starts the second call. */
  if (gb_rank() == 0) {
    freeze(*pid);
    __atomic_store_n(&pid[2], 1, __ATOMIC_RELEASE);
  }
  gb_test_await(&pid[2], 1, 10000);
  gb_error error;
  if (gb_rank() != last) {
    s.call = gb_battery_call(&b, &s);
    s.src = s.dst = m.src;
    fill(m.src, &s, gb_rank());
    gb_battery_start(&b, 0, &s);
    GB_CHECK_INT(gb_battery_drive(&b, 0, 300, &error), GB_ERR_WAIT_TIMEOUT);
    int members[8], found = 0;
    int n = b.comm->ops->waiting_for(b.comm, b.states[0], members, 8);
    GB_CHECK(n >= 1);
    for (int i = 0; i < n; i++) found |= members[i] == last;
    /* Across hosts only its own host can tell. */
    bool tells = host ? host[gb_rank()] == host[last] : gb_rank() == 0;
    GB_CHECK(found || !tells);
    __atomic_fetch_add(&pid[1], 1, __ATOMIC_ACQ_REL);
    if (gb_rank() == 0) {
      gb_test_await(&pid[1], last, 10000);
      GB_CHECK_OK(kill(*pid, SIGCONT));
    }
    GB_CHECK_OK(gb_battery_drive(&b, 0, RUN_MS, &error));
    expect(m.want, &s);
    compare(&s, m.src, m.want, "after the freeze");
  } else {
    check_step(&b, &m, s, true);
  }
  buffers_close(&m);
  gb_battery_close(&b);
}

void gb_battery_one_core(gb_comm_open_fn open, const int *host) {
  gb_battery b;
  buffers m;
  gb_battery_open(&b, open, host);
  buffers_open(&m, 100003 * 4);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(0, &one);
  if (sched_setaffinity(0, sizeof one, &one)) gb_test_skip("no affinity");
  gbi_comm_step s = {.kind = GBI_COMM_ALL_REDUCE, .dtype = GB_FLOAT32,
                     .redop = GB_SUM};
  uint64_t start = gbi_now_ns();
  for (int i = 0; i < 200; i++) {
    s.count = 1 + (size_t)i;
    check_step(&b, &m, s, i % 2);
  }
  s.count = 100003;
  for (int i = 0; i < 10; i++) check_step(&b, &m, s, i % 2);
  uint64_t took_ms = (gbi_now_ns() - start) / GBI_NS_PER_MS;
  /* A lost wake costs 50 ms each; a spinning wait 8 to 16 ms a call. */
  GB_CHECK(took_ms < 8000);
  buffers_close(&m);
  gb_battery_close(&b);
}

/* ---- stop ---- */

/* Rank 0 waits for a step that nobody else joins, and is stopped by a helper
 * that another rank wakes: pending steps end with CANCELED at once. */
void gb_battery_stop(gb_comm_open_fn open, const int *host) {
  gb_battery b;
  static float data[100];
  gb_battery_open(&b, open, host);
  gbi_comm_step s = {.kind = GBI_COMM_ALL_REDUCE, .dtype = GB_FLOAT32,
                     .redop = GB_SUM, .count = 100, .src = data, .dst = data};
  gb_error error;
  if (gb_rank() == 0) {
    for (int slot = 0; slot < 3; slot++) {
      s.call = gb_battery_call(&b, &s);
      gb_battery_start(&b, slot, &s);
    }
    GB_CHECK_INT(gb_battery_drive(&b, 0, 100, &error), GB_ERR_WAIT_TIMEOUT);
    uint32_t seen = gbi_bell_look(gbi_hostarea_waiter(b.area));
    b.comm->ops->stop(b.comm);
    GB_CHECK(gbi_bell_look(gbi_hostarea_waiter(b.area)) != seen);
    for (int slot = 0; slot < 3; slot++)
      GB_CHECK_INT(b.comm->ops->progress(b.comm, b.states[slot], &error),
                   GB_ERR_CANCELED);
  }
  gb_battery_close(&b);
}

/* ---- warm ---- */

/* After the first calls neither the heap nor the page tables change. */
void gb_battery_warm(gb_comm_open_fn open, const int *host) {
  static const size_t counts[] = {1, 1000, 50000, 1000000};
  gb_battery b;
  gb_battery_open(&b, open, host);
  float *src = malloc(4000000), *dst = malloc(4000000);
  GB_CHECK(src && dst);
  memset(src, 0, 4000000);
  memset(dst, 0, 4000000);
  struct rusage before = {0}, after;
  struct mallinfo2 heap = {0};
  gb_error error;
  for (int round = 0; round < 6; round++) {
    if (round == 2) {
      heap = mallinfo2();
      getrusage(RUSAGE_SELF, &before);
    }
    for (size_t c = 0; c < GBI_COUNT(counts); c++)
      for (int k = GBI_COMM_REDUCE; k <= GBI_COMM_TRANSFER; k++) {
        gbi_comm_step s = {.kind = (gbi_comm_kind)k, .dtype = GB_FLOAT32,
                           .redop = GB_SUM, .count = counts[c], .src = src,
                           .dst = dst, .peer = gb_world() - 1};
        s.call = gb_battery_call(&b, &s);
        GB_CHECK_OK(gb_battery_run(&b, &s, RUN_MS, &error));
      }
  }
  getrusage(RUSAGE_SELF, &after);
  GB_CHECK_INT(mallinfo2().uordblks, heap.uordblks);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  GB_CHECK(after.ru_minflt - before.ru_minflt <= 2);
#endif
  free(src);
  free(dst);
  gb_battery_close(&b);
}
