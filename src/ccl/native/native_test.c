/* Proves, for NCCL and RCCL (fakes of both, real processes, real shared
 * memory): every reduction that gbi_native_reduces promises is exact and every
 * other one is refused; copies of all types; groups whose sends and receives
 * meet in any order; averages over more than the island and premultiplied sums,
 * also more of them than are remembered; the device that a communicator is
 * opened on; and that every failure ends in time with its own status: a missing
 * library or symbol, a failing call, an asynchronous error, a dead peer, a late
 * one, calls that do not match, an abort from another thread. (S024 and the
 * island's part of S001 to S012.) */
#include "ccl/native/state.h"

#include "fakes/find.h"
#include "harness/gb_test.h"

#include <dlfcn.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define S GBI_NS_PER_S
enum { COUNT = 1000 };

/* What a case has. */
static gbi_device *device;
static gbi_native *native;
static gbi_stream stream;

static uint64_t soon(void) {
  return gbi_now_ns() + 20 * S;
}

static void open_device(gbi_vendor vendor, int index) {
  gb_error error = {0};
  name_fakes();
  gb_status status = gbi_device_open(vendor, index, &device, &error);
  if (status != GB_OK) gb_test_fail(__FILE__, __LINE__, "%s", error.text);
  GB_CHECK_OK(device->ops->stream_new(device, &stream, &error));
}

/* Member 0's id to all; `id_p` may be NULL. */
static void share_id(uint8_t id[GBI_NATIVE_ID_BYTES]) {
  struct shared {
    volatile int there;
    uint8_t id[GBI_NATIVE_ID_BYTES];
  } *shared = gb_test_shared();
  gb_error error = {0};
  if (gb_rank() == 0) {
    gb_status status = gbi_native_id(device->ops->vendor, shared->id, &error);
    if (status != GB_OK) gb_test_fail(__FILE__, __LINE__, "%s", error.text);
    __atomic_store_n(&shared->there, 1, __ATOMIC_RELEASE);
  } else {
    gb_test_await(&shared->there, 1, 20000);
  }
  memcpy(id, shared->id, GBI_NATIVE_ID_BYTES);
}

/* Counts members that have come to a place. */
static void meet(int place) {
  volatile int *words = (volatile int *)gb_test_shared() + 1024;
  __atomic_add_fetch(&words[place], 1, __ATOMIC_ACQ_REL);
  gb_test_await(&words[place], gb_world(), 20000);
}

static void open_all(gbi_vendor vendor) {
  uint8_t id[GBI_NATIVE_ID_BYTES];
  gb_error error = {0};
  open_device(vendor, 0);
  share_id(id);
  gb_status status = gbi_native_open(device, id, gb_world(), gb_rank(), soon(),
                                     NULL, &native, &error);
  if (status != GB_OK) gb_test_fail(__FILE__, __LINE__, "%s", error.text);
}

static void close_all(void) {
  gbi_native_close(native, soon());
  device->ops->stream_free(device, stream);
  device->ops->close(device);
}

static void done(gb_status status, const gb_error *error, int line) {
  if (status != GB_OK) gb_test_fail(__FILE__, line, "%s", error->text);
}
#define OK(call)                    \
  do {                              \
    gb_error error = {0};           \
    done((call), &error, __LINE__); \
  } while (0)

static void *on_device(const void *host, size_t bytes) {
  void *memory = NULL, *pinned = NULL, *unused;
  OK(device->ops->memory(device, bytes ? bytes : 1, &memory, &error));
  if (bytes == 0) return memory;
  OK(device->ops->pinned(device, bytes, &pinned, &unused, &error));
  memcpy(pinned, host, bytes);
  OK(device->ops->copy_in(device, memory, pinned, bytes, stream, &error));
  OK(device->ops->stream_sync(device, stream, &error));
  device->ops->free_pinned(device, pinned);
  return memory;
}

static void from_device(void *host, const void *memory, size_t bytes) {
  void *pinned = NULL, *unused;
  OK(device->ops->pinned(device, bytes, &pinned, &unused, &error));
  OK(device->ops->copy_out(device, pinned, memory, bytes, stream, &error));
  OK(device->ops->stream_sync(device, stream, &error));
  memcpy(host, pinned, bytes);
  device->ops->free_pinned(device, pinned);
}

/* --- numbers ------------------------------------------------------------- */

static bool is_unsigned(gb_dtype t) {
  return t == GB_UINT8 || t == GB_UINT32 || t == GB_UINT64;
}

/* Small ones: sums, products and halves of four are exact in every type. */
static double value(gb_dtype dtype, int rank, size_t i) {
  static const double values[] = {1, 2, 1, -1};
  double v = values[(i * 7 + (size_t)rank * 3) % 4];
  return v < 0 && is_unsigned(dtype) ? 2 : v;
}

/* An exact value as a binary float of so many bits. */
static unsigned small_code(double v, int exponent_bits, int fraction_bits,
                           int bias) {
  if (v == 0) return 0;
  int e = ilogb(v);
  double fraction = ldexp(fabs(v), fraction_bits - e) - ldexp(1, fraction_bits);
  return (v < 0 ? 1U << (exponent_bits + fraction_bits) : 0) |
         (unsigned)(e + bias) << fraction_bits | (unsigned)fraction;
}

static void put(gb_dtype dtype, void *at, size_t i, double v) {
  switch (dtype) {
    case GB_INT8: ((int8_t *)at)[i] = (int8_t)v; break;
    case GB_UINT8: ((uint8_t *)at)[i] = (uint8_t)v; break;
    case GB_INT32: ((int32_t *)at)[i] = (int32_t)v; break;
    case GB_UINT32: ((uint32_t *)at)[i] = (uint32_t)v; break;
    case GB_INT64: ((int64_t *)at)[i] = (int64_t)v; break;
    case GB_UINT64: ((uint64_t *)at)[i] = (uint64_t)v; break;
    case GB_FLOAT32: ((float *)at)[i] = (float)v; break;
    case GB_FLOAT64: ((double *)at)[i] = v; break;
    case GB_FLOAT16:
      ((uint16_t *)at)[i] = (uint16_t)small_code(v, 5, 10, 15);
      break;
    case GB_BFLOAT16:
      ((uint16_t *)at)[i] = (uint16_t)small_code(v, 8, 7, 127);
      break;
    case GB_FLOAT8_E4M3FN:
      ((uint8_t *)at)[i] = (uint8_t)small_code(v, 4, 3, 7);
      break;
    case GB_FLOAT8_E5M2:
      ((uint8_t *)at)[i] = (uint8_t)small_code(v, 5, 2, 15);
      break;
    case GB_FLOAT8_E4M3FNUZ:
      ((uint8_t *)at)[i] = (uint8_t)small_code(v, 4, 3, 8);
      break;
    case GB_FLOAT8_E5M2FNUZ:
      ((uint8_t *)at)[i] = (uint8_t)small_code(v, 5, 2, 16);
      break;
    default: gb_test_fail(__FILE__, __LINE__, "no numbers of %d", (int)dtype);
  }
}

/* What rank multiplies by in PREMUL_SUM. */
static double factor_of(int rank) {
  return rank % 2 ? 0.5 : 2;
}

static double wanted(gb_dtype dtype, gb_redop redop, int divisor, size_t i) {
  double result = 0;
  for (int r = 0; r < gb_world(); r++) {
    double v = value(dtype, r, i);
    if (redop == GB_PREMUL_SUM) v *= factor_of(r);
    if (redop == GB_AVG) v /= divisor ? divisor : gb_world();
    if (r == 0)
      result = v;
    else if (redop == GB_PRODUCT)
      result *= v;
    else if (redop == GB_MAX)
      result = fmax(result, v);
    else if (redop == GB_MIN)
      result = fmin(result, v);
    else
      result += v;
  }
  return result;
}

static void *values(gb_dtype dtype, int rank, size_t count) {
  void *host = calloc(count, gb_dtype_bytes(dtype));
  GB_CHECK(host != NULL);
  for (size_t i = 0; i < count; i++) put(dtype, host, i, value(dtype, rank, i));
  return host;
}

/* Elements of `memory`, from the result's element `first` on. */
static void check_result(const void *memory, gb_dtype dtype, gb_redop redop,
                         int divisor, size_t first, size_t count) {
  size_t bytes = gb_dtype_bytes(dtype);
  char *got = malloc(count * bytes);
  char want[8];
  from_device(got, memory, count * bytes);
  for (size_t i = 0; i < count; i++) {
    put(dtype, want, 0, wanted(dtype, redop, divisor, first + i));
    if (memcmp(want, got + i * bytes, bytes) != 0)
      gb_test_fail(__FILE__, __LINE__, "%s %s of %zu: element %zu is wrong",
                   gb_dtype_name(dtype), gb_redop_name(redop), count, i);
  }
  free(got);
}

/* all_reduce out of place and in place, reduce, reduce_scatter. */
static void reduce_all_ways(gb_dtype dtype, gb_redop redop, int divisor,
                            size_t row) {
  size_t n = (size_t)gb_world(), bytes = gb_dtype_bytes(dtype);
  int me = gb_rank(), root = 1 % gb_world();
  double factor = factor_of(me);
  void *host = values(dtype, me, n * row), *zeros = calloc(n * row, bytes);
  void *src = on_device(host, n * row * bytes);
  void *dst = on_device(zeros, n * row * bytes);
  OK(gbi_native_all_reduce(native, src, dst, n * row, dtype, redop, factor,
                           divisor, stream, &error));
  check_result(dst, dtype, redop, divisor, 0, n * row);
  OK(gbi_native_reduce_scatter(native, src, dst, row, dtype, redop, factor,
                               divisor, stream, &error));
  check_result(dst, dtype, redop, divisor, (size_t)me * row, row);
  OK(gbi_native_reduce(native, src, dst, n * row, dtype, redop, factor, divisor,
                       root, stream, &error));
  if (me == root)
    check_result(dst, dtype, redop, divisor, 0, n * row);
  else
    check_result(dst, dtype, redop, divisor, (size_t)me * row, row);
  OK(gbi_native_all_reduce(native, src, src, n * row, dtype, redop, factor,
                           divisor, stream, &error));
  check_result(src, dtype, redop, divisor, 0, n * row);
  device->ops->free_memory(device, src);
  device->ops->free_memory(device, dst);
  free(host);
  free(zeros);
}

/* The table of what is promised, written down once more. */
static bool promised(gbi_vendor vendor, gb_dtype dtype, gb_redop redop) {
  static const bool base[GB_DTYPE_COUNT] = {
      [GB_INT8] = 1,    [GB_UINT8] = 1,  [GB_INT32] = 1,   [GB_UINT32] = 1,
      [GB_INT64] = 1,   [GB_UINT64] = 1, [GB_FLOAT16] = 1, [GB_BFLOAT16] = 1,
      [GB_FLOAT32] = 1, [GB_FLOAT64] = 1};
  bool floating = dtype == GB_FLOAT16 || dtype == GB_BFLOAT16 ||
                  dtype == GB_FLOAT32 || dtype == GB_FLOAT64;
  bool ocp = dtype == GB_FLOAT8_E4M3FN || dtype == GB_FLOAT8_E5M2;
  bool fnuz = dtype == GB_FLOAT8_E4M3FNUZ || dtype == GB_FLOAT8_E5M2FNUZ;
  if (redop == GB_SUM || redop == GB_PRODUCT || redop == GB_MAX ||
      redop == GB_MIN)
    return base[dtype] || (vendor == GBI_NVIDIA ? ocp : fnuz);
  return (redop == GB_AVG || redop == GB_PREMUL_SUM) && floating;
}

static void refuse(gb_dtype dtype, gb_redop redop) {
  gb_error error = {0};
  char nothing[4096] = {0};
  void *memory = on_device(nothing, sizeof nothing);
  GB_CHECK_INT(gbi_native_all_reduce(native, memory, memory, 4, dtype, redop, 1,
                                     0, stream, &error),
               GB_ERR_UNSUPPORTED);
  GB_CHECK_TEXT(error.text, gb_dtype_name(dtype));
  device->ops->free_memory(device, memory);
}

static void every_reduction(gbi_vendor vendor) {
  open_all(vendor);
  for (int t = 0; t < GB_DTYPE_COUNT; t++)
    for (int op = 0; op < GB_REDOP_COUNT; op++) {
      bool promise = promised(vendor, (gb_dtype)t, (gb_redop)op);
      if (gbi_native_reduces(native, (gb_dtype)t, (gb_redop)op) != promise)
        gb_test_fail(__FILE__, __LINE__, "%s %s: not %d",
                     gb_dtype_name((gb_dtype)t), gb_redop_name((gb_redop)op),
                     promise);
      if (promise)
        reduce_all_ways((gb_dtype)t, (gb_redop)op, 0, COUNT / 4);
      else
        refuse((gb_dtype)t, (gb_redop)op);
    }
  close_all();
}

GB_TEST(native, nccl_reduces_all_it_says, .ranks = 4, .timeout_ms = 120000) {
  every_reduction(GBI_NVIDIA);
}
GB_TEST(native, rccl_reduces_all_it_says, .ranks = 4, .timeout_ms = 120000) {
  every_reduction(GBI_AMD);
}

/* Many chunks, and parts of them. */
static void long_reductions(gbi_vendor vendor) {
  open_all(vendor);
  reduce_all_ways(GB_FLOAT32, GB_SUM, 0, 100003);
  reduce_all_ways(GB_INT8, GB_MAX, 0, 65537);
  reduce_all_ways(GB_BFLOAT16, GB_SUM, 0, 0 + 1);
  close_all();
}

GB_TEST(native, nccl_reduces_long_buffers, .ranks = 3, .timeout_ms = 60000) {
  long_reductions(GBI_NVIDIA);
}
GB_TEST(native, rccl_reduces_long_buffers, .ranks = 3, .timeout_ms = 60000) {
  long_reductions(GBI_AMD);
}

/* --- averages and factors ------------------------------------------------ */

/* 1/3 is exact nowhere: the factor is rounded to the type, as are the terms. */
static void average_by_three(void) {
  float host[COUNT], got[COUNT];
  double wide[COUNT], wide_got[COUNT];
  for (int i = 0; i < COUNT; i++) {
    host[i] = (float)(i + gb_rank() * 0.37);
    wide[i] = i + gb_rank() * 0.37;
  }
  void *narrow_memory = on_device(host, sizeof host);
  void *wide_memory = on_device(wide, sizeof wide);
  OK(gbi_native_all_reduce(native, narrow_memory, narrow_memory, COUNT,
                           GB_FLOAT32, GB_AVG, 0, 3, stream, &error));
  OK(gbi_native_all_reduce(native, wide_memory, wide_memory, COUNT, GB_FLOAT64,
                           GB_AVG, 0, 3, stream, &error));
  from_device(got, narrow_memory, sizeof got);
  from_device(wide_got, wide_memory, sizeof wide_got);
  for (int i = 0; i < COUNT; i++) {
    float sum = 0;
    double wide_sum = 0;
    for (int r = 0; r < gb_world(); r++) {
      volatile float term = (float)(i + r * 0.37) * (float)(1.0 / 3);
      volatile double wide_term = (i + r * 0.37) * (1.0 / 3);
      sum = r ? sum + term : term;
      wide_sum = r ? wide_sum + wide_term : wide_term;
    }
    GB_CHECK(got[i] == sum);
    GB_CHECK(wide_got[i] == wide_sum);
  }
  device->ops->free_memory(device, narrow_memory);
  device->ops->free_memory(device, wide_memory);
}

/* More factors than are remembered, twice: what is forgotten is destroyed, or
 * the library would run out of places (the fake has 64). */
static void many_factors(void) {
  float one = 1, got;
  void *src = on_device(&one, sizeof one), *dst = on_device(&one, sizeof one);
  for (int i = 0; i < 160; i++) {
    double factor = (i % 80 + 1) * (gb_rank() + 1);
    OK(gbi_native_all_reduce(native, src, dst, 1, GB_FLOAT32, GB_PREMUL_SUM,
                             factor, 0, stream, &error));
    from_device(&got, dst, sizeof got);
    int ranks = gb_world() * (gb_world() + 1) / 2;
    GB_CHECK_INT(got, (i % 80 + 1) * ranks);
  }
  device->ops->free_memory(device, src);
  device->ops->free_memory(device, dst);
}

/* In a group too, an operation may be forgotten before the group ends. */
static void factors_in_a_group(void) {
  enum { CALLS = 40 };
  float ones[CALLS], got[CALLS];
  for (int i = 0; i < CALLS; i++) ones[i] = 1;
  float *src = on_device(ones, sizeof ones),
        *dst = on_device(ones, sizeof ones);
  OK(gbi_native_group_begin(native, &error));
  for (int i = 0; i < CALLS; i++)
    OK(gbi_native_all_reduce(native, src + i, dst + i, 1, GB_FLOAT32,
                             GB_PREMUL_SUM, i + 0.5, 0, stream, &error));
  OK(gbi_native_group_end(native, &error));
  from_device(got, dst, sizeof got);
  for (int i = 0; i < CALLS; i++)
    GB_CHECK(got[i] == (float)((i + 0.5) * gb_world()));
  device->ops->free_memory(device, src);
  device->ops->free_memory(device, dst);
}

static void factors(gbi_vendor vendor) {
  static const gb_dtype floats[] = {GB_FLOAT16, GB_BFLOAT16, GB_FLOAT32,
                                    GB_FLOAT64};
  open_all(vendor);
  for (int t = 0; t < 4; t++)
    for (int divisor = 2; divisor <= 16; divisor *= 2)
      reduce_all_ways(floats[t], GB_AVG, divisor, COUNT / 10);
  average_by_three();
  many_factors();
  factors_in_a_group();
  close_all();
}

GB_TEST(native, nccl_averages_over_the_job, .ranks = 2, .timeout_ms = 60000) {
  factors(GBI_NVIDIA);
}
GB_TEST(native, rccl_averages_over_the_job, .ranks = 2, .timeout_ms = 60000) {
  factors(GBI_AMD);
}

/* --- copies -------------------------------------------------------------- */

static uint8_t pattern(int rank, size_t i) {
  return (uint8_t)(i * 31 + i / 251 + (size_t)rank * 77 + 1);
}

static void check_pattern(const void *memory, int rank, size_t bytes) {
  uint8_t *got = malloc(bytes);
  from_device(got, memory, bytes);
  for (size_t i = 0; i < bytes; i++)
    if (got[i] != pattern(rank, i))
      gb_test_fail(__FILE__, __LINE__, "byte %zu of %zu from %d is wrong", i,
                   bytes, rank);
  free(got);
}

static uint8_t *pattern_on_device(int rank, size_t bytes) {
  uint8_t *host = malloc(bytes + 1);
  for (size_t i = 0; i < bytes; i++) host[i] = pattern(rank, i);
  void *memory = on_device(host, bytes);
  free(host);
  return memory;
}

static void copies_of(gb_dtype dtype, size_t count) {
  size_t n = (size_t)gb_world(), bytes = count * gb_dtype_bytes(dtype);
  int last = gb_world() - 1;
  uint8_t *mine = pattern_on_device(gb_rank(), bytes);
  uint8_t *all = pattern_on_device(99, n * bytes);
  OK(gbi_native_broadcast(native, mine, all, count, dtype, last, stream,
                          &error));
  check_pattern(all, last, bytes);
  OK(gbi_native_all_gather(native, mine, all, count, dtype, stream, &error));
  for (size_t r = 0; r < n; r++) check_pattern(all + r * bytes, (int)r, bytes);
  /* In place: this member's row is the source. */
  OK(gbi_native_all_gather(native, all + (size_t)gb_rank() * bytes, all, count,
                           dtype, stream, &error));
  for (size_t r = 0; r < n; r++) check_pattern(all + r * bytes, (int)r, bytes);
  OK(gbi_native_broadcast(native, mine, mine, count, dtype, 0, stream, &error));
  check_pattern(mine, 0, bytes);
  device->ops->free_memory(device, mine);
  device->ops->free_memory(device, all);
}

static void copies(gbi_vendor vendor) {
  open_all(vendor);
  for (int t = 0; t < GB_DTYPE_COUNT; t++) copies_of((gb_dtype)t, COUNT);
  copies_of(GB_COMPLEX128, 20011);
  close_all();
}

GB_TEST(native, nccl_copies_all_types, .ranks = 3, .timeout_ms = 60000) {
  copies(GBI_NVIDIA);
}
GB_TEST(native, rccl_copies_all_types, .ranks = 3, .timeout_ms = 60000) {
  copies(GBI_AMD);
}

/* --- groups -------------------------------------------------------------- */

/* All to all with rows of different lengths, longer than what is buffered, all
 * sends first: alone, each would wait for its peer for ever. Rows of no bytes
 * and to oneself included, and two messages a pair, which meet in order. */
static void all_to_all(void) {
  int n = gb_world(), me = gb_rank();
  uint8_t *out[8], *in[8];
  size_t rows[8];
  for (int peer = 0; peer < n; peer++) {
    rows[peer] = me == peer ? 0 : (size_t)(me + peer) * 60011;
    out[peer] = pattern_on_device(me * 8 + peer, rows[peer] + 10);
    in[peer] = pattern_on_device(99, rows[peer] + 10);
  }
  OK(gbi_native_group_begin(native, &error));
  for (int peer = 0; peer < n; peer++) {
    OK(gbi_native_send(native, out[peer], rows[peer], GB_BOOL, peer, stream,
                       &error));
    OK(gbi_native_send(native, out[peer] + rows[peer], 5, GB_INT16, peer,
                       stream, &error));
  }
  for (int peer = n - 1; peer >= 0; peer--) {
    OK(gbi_native_recv(native, in[peer], rows[peer], GB_BOOL, peer, stream,
                       &error));
    OK(gbi_native_recv(native, in[peer] + rows[peer], 5, GB_INT16, peer, stream,
                       &error));
  }
  OK(gbi_native_group_end(native, &error));
  for (int peer = 0; peer < n; peer++) {
    check_pattern(in[peer], peer * 8 + me, rows[peer] + 10);
    device->ops->free_memory(device, out[peer]);
    device->ops->free_memory(device, in[peer]);
  }
}

/* A collective and a ring of messages in one group. */
static void mixed_group(void) {
  int n = gb_world(), me = gb_rank();
  int next = (me + 1) % n, before = (me + n - 1) % n;
  void *host = values(GB_FLOAT32, me, COUNT);
  void *sum = on_device(host, COUNT * 4);
  uint8_t *out = pattern_on_device(me, 5000), *in = pattern_on_device(99, 5000);
  OK(gbi_native_group_begin(native, &error));
  OK(gbi_native_recv(native, in, 5000, GB_UINT8, before, stream, &error));
  OK(gbi_native_all_reduce(native, sum, sum, COUNT, GB_FLOAT32, GB_SUM, 0, 0,
                           stream, &error));
  OK(gbi_native_send(native, out, 5000, GB_UINT8, next, stream, &error));
  OK(gbi_native_group_end(native, &error));
  check_pattern(in, before, 5000);
  check_result(sum, GB_FLOAT32, GB_SUM, 0, 0, COUNT);
  device->ops->free_memory(device, sum);
  device->ops->free_memory(device, out);
  device->ops->free_memory(device, in);
  free(host);
}

static void groups(gbi_vendor vendor) {
  gb_error error = {0};
  open_all(vendor);
  all_to_all();
  mixed_group();
  /* Nothing in it is nothing; half a group is a defect, not a hang. */
  OK(gbi_native_group_begin(native, &error));
  GB_CHECK_INT(gbi_native_group_begin(native, &error), GB_ERR_INTERNAL);
  OK(gbi_native_group_end(native, &error));
  GB_CHECK_INT(gbi_native_group_end(native, &error), GB_ERR_INTERNAL);
  all_to_all();
  close_all();
}

GB_TEST(native, nccl_groups_meet_in_any_order, .ranks = 4,
        .timeout_ms = 60000) {
  groups(GBI_NVIDIA);
}
GB_TEST(native, rccl_groups_meet_in_any_order, .ranks = 4,
        .timeout_ms = 60000) {
  groups(GBI_AMD);
}

/* --- opening ------------------------------------------------------------- */

/* A member alone, on the second device; no device is current afterwards. */
static void second_device(gbi_vendor vendor) {
  setenv("FAKE_GPU_DEVICES", "2", 1);
  uint8_t id[GBI_NATIVE_ID_BYTES];
  open_device(vendor, 1);
  share_id(id);
  OK(gbi_native_open(device, id, 1, 0, soon(), NULL, &native, &error));
  ncclResult_t (*which)(const ncclComm_t comm, int *index);
  *(void **)&which = dlsym(native->nccl->handle, "ncclCommCuDevice");
  int index = -1;
  GB_CHECK_INT(which(atomic_load(&native->comm), &index), ncclSuccess);
  GB_CHECK_INT(index, 1);
  if (vendor == GBI_NVIDIA) {
    int (*current)(void **context);
    void *context = &index;
    *(void **)&current = dlsym(RTLD_DEFAULT, "cuCtxGetCurrent");
    GB_CHECK(current != NULL);
    GB_CHECK_INT(current(&context), 0);
    GB_CHECK(context == NULL);
  } else {
    int (*current)(int *device);
    *(void **)&current = dlsym(native->nccl->handle, "hipGetDevice");
    GB_CHECK_INT(current(&index), 0);
    GB_CHECK_INT(index, 0);
  }
  reduce_all_ways(GB_INT64, GB_SUM, 0, COUNT);
  all_to_all();
  close_all();
}

GB_TEST(native, nccl_opens_on_its_device) {
  second_device(GBI_NVIDIA);
}
GB_TEST(native, rccl_opens_on_its_device) {
  second_device(GBI_AMD);
}

GB_TEST(native, version_and_file) {
  const char *version = NULL, *path = NULL;
  setenv("FAKE_NCCL_VERSION", "22304", 1);
  name_fakes();
  OK(gbi_native_load(GBI_NVIDIA, &version, &path, &error));
  GB_CHECK_TEXT(version, "2.23.4");
  GB_CHECK_TEXT(path, "libnccl.so.2");
  OK(gbi_native_load(GBI_AMD, &version, &path, &error));
  GB_CHECK_TEXT(path, "librccl.so.1");
}

/* float8 came with 2.24; before it the library refuses the types. */
GB_TEST(native, old_nccl_does_not_reduce_float8) {
  setenv("FAKE_NCCL_VERSION", "22304", 1);
  open_all(GBI_NVIDIA);
  GB_CHECK(!gbi_native_reduces(native, GB_FLOAT8_E4M3FN, GB_SUM));
  GB_CHECK(gbi_native_reduces(native, GB_BFLOAT16, GB_SUM));
  copies_of(GB_FLOAT8_E4M3FN, COUNT);
  close_all();
}

/* Another GPU than the one there is: the answer follows its name. */
GB_TEST(native, float8_follows_the_gpu) {
  static const struct {
    const char *arch;
    bool ocp, fnuz;
  } rows[] = {{"gfx942:sramecc+:xnack-", false, true},
              {"gfx950", true, false},
              {"gfx1201", true, false},
              {"gfx90a", false, false},
              {"gfx1100", false, false}};
  open_all(GBI_AMD);
  for (size_t i = 0; i < GBI_COUNT(rows); i++) {
    snprintf(device->facts.arch, sizeof device->facts.arch, "%s", rows[i].arch);
    GB_CHECK_INT(gbi_native_reduces(native, GB_FLOAT8_E5M2, GB_MAX),
                 rows[i].ocp);
    GB_CHECK_INT(gbi_native_reduces(native, GB_FLOAT8_E5M2FNUZ, GB_MAX),
                 rows[i].fnuz);
  }
  close_all();
  open_all(GBI_NVIDIA);
  static const char *const archs[] = {"sm_80", "sm_89", "sm_90", "sm_100"};
  for (int i = 0; i < 4; i++) {
    snprintf(device->facts.arch, sizeof device->facts.arch, "%s", archs[i]);
    GB_CHECK_INT(gbi_native_reduces(native, GB_FLOAT8_E4M3FN, GB_SUM), i >= 2);
    GB_CHECK(!gbi_native_reduces(native, GB_FLOAT8_E4M3FNUZ, GB_SUM));
  }
  close_all();
}

GB_TEST(native, missing_library) {
  gb_error error = {0};
  setenv("GPUBRIDGE_NCCL_LIB", "/nowhere/libnccl.so.2", 1);
  GB_CHECK_INT(gbi_native_load(GBI_NVIDIA, NULL, NULL, &error),
               GB_ERR_UNSUPPORTED);
  GB_CHECK_TEXT(error.text, "/nowhere/libnccl.so.2");
  /* And once it is there, it is found. */
  name_fakes();
  OK(gbi_native_load(GBI_NVIDIA, NULL, NULL, &error));
}

GB_TEST(native, missing_symbol) {
  gb_error error = {0};
  char path[600];
  fake_path("hip/libamdhip64.so.6", path, sizeof path);
  setenv("GPUBRIDGE_RCCL_LIB", path, 1);
  GB_CHECK_INT(gbi_native_load(GBI_AMD, NULL, NULL, &error),
               GB_ERR_UNSUPPORTED);
  GB_CHECK_TEXT(error.text, "ncclGetVersion");
  GB_CHECK_TEXT(error.text, "libamdhip64.so.6");
}

/* --- failures ------------------------------------------------------------ */

static gb_status try_open(gb_error *error) {
  uint8_t id[GBI_NATIVE_ID_BYTES];
  share_id(id);
  gb_status status = gbi_native_open(device, id, gb_world(), gb_rank(), soon(),
                                     NULL, &native, error);
  GB_CHECK((native != NULL) == (status == GB_OK));
  return status;
}

/* The library's own results, at once and from its thread. */
static void failing_open(const char *fails, gb_status status,
                         const char *text) {
  gb_error error = {0};
  setenv("FAKE_NCCL_FAIL", fails, 1);
  open_device(GBI_NVIDIA, 0);
  GB_CHECK_INT(try_open(&error), status);
  GB_CHECK_TEXT(error.text, text);
  GB_CHECK_TEXT(error.text,
                "NCCL 2.28.9 could not open a communicator as "
                "member 0 of 1 on nvidia device 0 (sm_90)");
  GB_CHECK_TEXT(error.text, "as FAKE_NCCL_FAIL says"); /* its last error */
  /* Once only: the next one is as if nothing had been. */
  GB_CHECK_INT(try_open(&error), GB_OK);
  reduce_all_ways(GB_FLOAT32, GB_SUM, 0, COUNT);
  close_all();
}

GB_TEST(native, open_fails_at_once) {
  failing_open("ncclCommInitRankConfig:1:2", GB_ERR_SYSTEM,
               "unhandled system error");
}
GB_TEST(native, open_fails_in_its_thread) {
  failing_open("init:1:1", GB_ERR_SYSTEM, "unhandled cuda error");
}
GB_TEST(native, open_fails_by_our_fault) {
  failing_open("init:1:4", GB_ERR_INTERNAL, "invalid argument");
}
GB_TEST(native, open_fails_by_a_peer) {
  failing_open("init:1:6", GB_ERR_PEER, "the logs of the other ranks");
}

GB_TEST(native, id_and_version_fail) {
  gb_error error = {0};
  uint8_t id[GBI_NATIVE_ID_BYTES];
  setenv("FAKE_NCCL_FAIL", "ncclGetVersion:1:3,ncclGetUniqueId:1:2", 1);
  name_fakes();
  GB_CHECK_INT(gbi_native_load(GBI_NVIDIA, NULL, NULL, &error), GB_ERR_SYSTEM);
  GB_CHECK_TEXT(error.text, "internal error");
  GB_CHECK_INT(gbi_native_id(GBI_NVIDIA, id, &error), GB_ERR_SYSTEM);
  OK(gbi_native_id(GBI_NVIDIA, id, &error));
}

/* Every function that a call uses, failing: the status, and the communicator
 * still closes. A group that fails inside is not left open. */
GB_TEST(native, calls_fail) {
  gb_error error = {0};
  setenv("FAKE_NCCL_FAIL",
         "ncclAllReduce:2:1,ncclRedOpCreatePreMulSum:1:3,ncclGroupStart:1:2,"
         "ncclSend:2:5,ncclGroupEnd:3:2",
         1);
  open_all(GBI_NVIDIA);
  float *at = on_device("0123456789abcdef", 16);
  OK(gbi_native_all_reduce(native, at, at, 4, GB_FLOAT32, GB_SUM, 0, 0, stream,
                           &error));
  GB_CHECK_INT(gbi_native_all_reduce(native, at, at, 4, GB_FLOAT32, GB_SUM, 0,
                                     0, stream, &error),
               GB_ERR_SYSTEM);
  GB_CHECK_TEXT(error.text,
                "could not run all_reduce of 4 float32 as member 0 "
                "of 1");
  GB_CHECK_INT(gbi_native_all_reduce(native, at, at, 4, GB_FLOAT32,
                                     GB_PREMUL_SUM, 2, 0, stream, &error),
               GB_ERR_SYSTEM);
  for (int round = 0; round < 4; round++) {
    static const gb_status wants[] = {GB_ERR_SYSTEM, GB_OK, GB_ERR_UNSUPPORTED,
                                      GB_ERR_SYSTEM};
    OK(gbi_native_group_begin(native, &error));
    OK(gbi_native_recv(native, at + 2, 1, GB_FLOAT32, 0, stream, &error));
    OK(gbi_native_send(native, at, 1, GB_FLOAT32, 0, stream, &error));
    GB_CHECK_INT(gbi_native_group_end(native, &error), wants[round]);
    if (round == 0) GB_CHECK_TEXT(error.text, "a group of 2 calls");
    if (round == 2) break; /* half of that group may have been launched */
  }
  gbi_native_abort(native);
  device->ops->free_memory(device, at);
  close_all();
}

/* Waits until check says something other than OK. */
static gb_status await_failure(gb_error *error) {
  uint64_t deadline_ns = gbi_now_ns() + 20 * S;
  for (;;) {
    gb_status status = gbi_native_check(native, error);
    if (status != GB_OK) return status;
    if (gbi_deadline_passed(deadline_ns)) return GB_OK;
    usleep(1000);
  }
}

/* The operation that fails on the GPU: check tells, later calls too. */
static void asynchronous_error(gbi_vendor vendor) {
  gb_error error = {0};
  setenv("FAKE_NCCL_FAIL", "async:2:1", 1);
  open_all(vendor);
  void *at = on_device("0123456789abcdef", 16);
  OK(gbi_native_all_reduce(native, at, at, 4, GB_FLOAT32, GB_SUM, 0, 0, stream,
                           &error));
  OK(device->ops->stream_sync(device, stream, &error));
  OK(gbi_native_check(native, &error));
  OK(gbi_native_all_reduce(native, at, at, 4, GB_FLOAT32, GB_SUM, 0, 0, stream,
                           &error));
  GB_CHECK_INT(await_failure(&error), GB_ERR_SYSTEM);
  GB_CHECK_TEXT(error.text, "unhandled cuda error");
  GB_CHECK_INT(gbi_native_all_reduce(native, at, at, 4, GB_FLOAT32, GB_SUM, 0,
                                     0, stream, &error),
               GB_ERR_SYSTEM);
  device->ops->free_memory(device, at);
  close_all();
}

GB_TEST(native, nccl_fails_on_the_gpu) {
  asynchronous_error(GBI_NVIDIA);
}
GB_TEST(native, rccl_fails_on_the_gpu) {
  asynchronous_error(GBI_AMD);
}

/* A member is killed while the others wait for it on the GPU: their stream goes
 * on and check says PEER. */
static void dead_peer(gbi_vendor vendor) {
  gb_error error = {0};
  open_all(vendor);
  reduce_all_ways(GB_FLOAT32, GB_SUM, 0, COUNT);
  meet(0);
  if (gb_rank() == 1) raise(SIGKILL);
  void *at = on_device("0123456789abcdef", 16);
  OK(gbi_native_all_reduce(native, at, at, 4, GB_FLOAT32, GB_SUM, 0, 0, stream,
                           &error));
  OK(device->ops->stream_sync(device, stream, &error));
  GB_CHECK_INT(await_failure(&error), GB_ERR_PEER);
  GB_CHECK_TEXT(error.text, "a member is gone");
  device->ops->free_memory(device, at);
  close_all();
}

GB_TEST(native, nccl_peer_dies, .ranks = 3, .expect = "0k0") {
  dead_peer(GBI_NVIDIA);
}
GB_TEST(native, rccl_peer_dies, .ranks = 3, .expect = "0k0") {
  dead_peer(GBI_AMD);
}

/* Two processes on one GPU: the library refuses, and we say what to do. */
GB_TEST(native, one_gpu_twice, .ranks = 2) {
  gb_error error = {0};
  setenv("FAKE_GPU_UUID", "GPU-00000000-0000-0000-0000-000000000001", 1);
  open_device(GBI_NVIDIA, 0);
  gb_status status = try_open(&error);
  GB_CHECK_INT(status, GB_ERR_UNSUPPORTED);
  GB_CHECK_TEXT(error.text, "Duplicate GPU");
  GB_CHECK_TEXT(error.text, "a GPU of its own");
  meet(0);
}

/* --- waits that end ------------------------------------------------------ */

GB_TEST(native, open_ends_at_its_deadline) {
  gb_error error = {0};
  uint8_t id[GBI_NATIVE_ID_BYTES];
  open_device(GBI_NVIDIA, 0);
  share_id(id);
  uint64_t begin_ns = gbi_now_ns();
  GB_CHECK_INT(gbi_native_open(device, id, 2, 0, begin_ns + S / 5, NULL,
                               &native, &error),
               GB_ERR_TIMEOUT);
  GB_CHECK(gbi_now_ns() - begin_ns >= S / 5);
  GB_CHECK(gbi_now_ns() - begin_ns < 5 * S);
  GB_CHECK_TEXT(error.text, "not all members were there");
  GB_CHECK(native == NULL);
}

static _Atomic bool aborted;
static void *set_aborted(void *unused) {
  usleep(100000);
  atomic_store(&aborted, true);
  return NULL;
}

GB_TEST(native, open_ends_when_aborted) {
  gb_error error = {0};
  uint8_t id[GBI_NATIVE_ID_BYTES];
  pthread_t thread;
  open_device(GBI_AMD, 0);
  share_id(id);
  GB_CHECK_INT(pthread_create(&thread, NULL, set_aborted, NULL), 0);
  uint64_t begin_ns = gbi_now_ns();
  GB_CHECK_INT(gbi_native_open(device, id, 2, 1, begin_ns + 20 * S, &aborted,
                               &native, &error),
               GB_ERR_ABORTED);
  GB_CHECK(gbi_now_ns() - begin_ns < 10 * S);
  pthread_join(thread, NULL);
}

/* A member that was there and aborts is a peer that is gone to the others. */
GB_TEST(native, open_ends_when_a_member_gives_up, .ranks = 3) {
  gb_error error = {0};
  uint8_t id[GBI_NATIVE_ID_BYTES];
  open_device(GBI_NVIDIA, 0);
  share_id(id);
  uint64_t wait_ns = gb_rank() == 0 ? S / 2 : 20 * S;
  gb_status status = gbi_native_open(
      device, id, 4, gb_rank(), gbi_now_ns() + wait_ns, NULL, &native, &error);
  GB_CHECK_INT(status, gb_rank() == 0 ? GB_ERR_TIMEOUT : GB_ERR_PEER);
}

static void *abort_native(void *unused) {
  usleep(100000);
  gbi_native_abort(native);
  return NULL;
}

/* The first use makes connections, and the peer does not come: the call waits
 * inside, until another thread aborts. */
static void abort_inside_a_call(gbi_vendor vendor) {
  gb_error error = {0};
  pthread_t thread;
  open_all(vendor);
  if (gb_rank() == 0) {
    void *at = on_device("0123456789abcdef", 16);
    GB_CHECK_INT(pthread_create(&thread, NULL, abort_native, NULL), 0);
    uint64_t begin_ns = gbi_now_ns();
    GB_CHECK_INT(gbi_native_all_reduce(native, at, at, 4, GB_FLOAT32, GB_SUM, 0,
                                       0, stream, &error),
                 GB_ERR_ABORTED);
    GB_CHECK(gbi_now_ns() - begin_ns < 10 * S);
    pthread_join(thread, NULL);
    GB_CHECK_INT(gbi_native_check(native, &error), GB_ERR_ABORTED);
    GB_CHECK_INT(gbi_native_send(native, at, 4, GB_FLOAT32, 1, stream, &error),
                 GB_ERR_ABORTED);
    gbi_native_abort(native); /* again: nothing */
    device->ops->free_memory(device, at);
  }
  meet(0);
  gbi_native_abort(native);
  close_all();
}

GB_TEST(native, nccl_abort_inside_a_call, .ranks = 2) {
  abort_inside_a_call(GBI_NVIDIA);
}
GB_TEST(native, rccl_abort_inside_a_call, .ranks = 2) {
  abort_inside_a_call(GBI_AMD);
}

/* Abort waits for kernels that a gate holds back, as the real library does: it
 * ends when somebody opens the gate. */
static _Atomic bool abort_ended;
static void *abort_and_say(void *unused) {
  gbi_native_abort(native);
  atomic_store(&abort_ended, true);
  return NULL;
}

static void abort_behind_a_gate(gbi_vendor vendor) {
  pthread_t thread;
  void *flag = NULL, *flag_device = NULL;
  open_all(vendor);
  reduce_all_ways(GB_FLOAT32, GB_SUM, 0, COUNT);
  void *at = on_device("0123456789abcdef", 16);
  OK(device->ops->pinned(device, 4096, &flag, &flag_device, &error));
  OK(device->ops->wait_flag(device, flag_device, 1, stream, &error));
  OK(gbi_native_all_reduce(native, at, at, 4, GB_FLOAT32, GB_SUM, 0, 0, stream,
                           &error));
  GB_CHECK_INT(pthread_create(&thread, NULL, abort_and_say, NULL), 0);
  usleep(200000);
  GB_CHECK(!atomic_load(&abort_ended));
  gb_error error = {0};
  GB_CHECK_INT(gbi_native_check(native, &error), GB_ERR_ABORTED); /* no wait */
  __atomic_store_n((uint64_t *)flag, 1, __ATOMIC_RELEASE);
  pthread_join(thread, NULL);
  OK(device->ops->stream_sync(device, stream, &error));
  device->ops->free_pinned(device, flag);
  device->ops->free_memory(device, at);
  close_all();
}

GB_TEST(native, nccl_abort_behind_a_gate, .ranks = 2) {
  abort_behind_a_gate(GBI_NVIDIA);
}
GB_TEST(native, rccl_abort_behind_a_gate, .ranks = 2) {
  abort_behind_a_gate(GBI_AMD);
}

/* A peer that is late for the first use, not absent: the call waits for it. */
GB_TEST(native, first_use_waits_for_a_late_peer, .ranks = 2) {
  open_all(GBI_NVIDIA);
  if (gb_rank() == 1) usleep(300000);
  reduce_all_ways(GB_FLOAT32, GB_SUM, 0, COUNT);
  all_to_all();
  close_all();
}

/* The same, without anybody who aborts: as much patience as open had. */
GB_TEST(native, first_use_ends_with_its_patience, .ranks = 2) {
  gb_error error = {0};
  open_all(GBI_NVIDIA);
  native->patience_ns = S / 5;
  if (gb_rank() == 0) {
    void *at = on_device("0123456789abcdef", 16);
    GB_CHECK_INT(gbi_native_all_reduce(native, at, at, 4, GB_FLOAT32, GB_SUM, 0,
                                       0, stream, &error),
                 GB_ERR_TIMEOUT);
    device->ops->free_memory(device, at);
  }
  meet(0);
  gbi_native_abort(native);
  close_all();
}

/* Members that call differently hang on the GPU, and abort lets the stream go
 * on. The kernels behind the one that hangs end with it. */
static void mismatch(gbi_vendor vendor) {
  gb_error error = {0};
  open_all(vendor);
  reduce_all_ways(GB_FLOAT32, GB_SUM, 0, COUNT);
  void *at = on_device("0123456789abcdef", 16);
  size_t count = gb_rank() ? 4 : 2;
  OK(gbi_native_all_reduce(native, at, at, count, GB_FLOAT32, GB_SUM, 0, 0,
                           stream, &error));
  OK(gbi_native_all_reduce(native, at, at, 4, GB_FLOAT32, GB_SUM, 0, 0, stream,
                           &error));
  usleep(200000);
  GB_CHECK_INT(device->ops->stream_query(device, stream, &error), GB_ERR_BUSY);
  GB_CHECK_INT(gbi_native_check(native, &error), GB_OK);
  meet(0);
  gbi_native_abort(native);
  OK(device->ops->stream_sync(device, stream, &error));
  device->ops->free_memory(device, at);
  close_all();
}

GB_TEST(native, nccl_mismatch_ends_by_abort, .ranks = 2) {
  mismatch(GBI_NVIDIA);
}
GB_TEST(native, rccl_mismatch_ends_by_abort, .ranks = 2) {
  mismatch(GBI_AMD);
}

/* --- the fake itself ----------------------------------------------------- */

#define LOOK(returns, name, parameters, needed) \
  returns(*name) parameters;                    \
  *(void **)&name = dlsym(nccl->handle, #name); \
  GB_CHECK(name != NULL);

/* What native does not use: blocking communicators, groups in groups, the
 * magic of a native handle, memory of the library's. */
static void the_rest_of_the_api(gbi_vendor vendor) {
  const gbi_nccl *nccl = NULL;
  ncclUniqueId id;
  ncclComm_t comm = NULL;
  int number = -1;
  void *memory = NULL;
  float four[4] = {1, 2, 3, 4}, got[4];
  open_device(vendor, 0);
  OK(gbi_nccl_load(vendor, &nccl, &error));
  GBI_NCCL_MORE_FUNCTIONS(LOOK)
  share_id((uint8_t *)&id);
  GB_CHECK_INT(ncclCommInitRank(&comm, gb_world(), id, gb_rank()), 0);
  GB_CHECK(*(uint64_t *)comm == UINT64_C(0x0280028002800280));
  GB_CHECK_INT(ncclCommCount(comm, &number), 0);
  GB_CHECK_INT(number, gb_world());
  GB_CHECK_INT(ncclCommUserRank(comm, &number), 0);
  GB_CHECK_INT(number, gb_rank());
  GB_CHECK_INT(ncclCommCuDevice(comm, &number), 0);
  GB_CHECK_INT(number, 0);
  void *at = on_device(four, sizeof four);
  GB_CHECK_INT(nccl->ncclGroupStart(), 0);
  GB_CHECK_INT(nccl->ncclGroupStart(), 0);
  GB_CHECK_INT(
      nccl->ncclAllReduce(at, at, 4, ncclFloat32, ncclSum, comm, stream), 0);
  GB_CHECK_INT(nccl->ncclGroupEnd(), 0);
  OK(device->ops->stream_query(device, stream, &error)); /* not launched */
  GB_CHECK_INT(ncclBcast(at, 4, ncclFloat32, 1, comm, stream), 0);
  GB_CHECK_INT(nccl->ncclGroupEnd(), 0);
  from_device(got, at, sizeof got);
  for (int i = 0; i < 4; i++) GB_CHECK(got[i] == four[i] * gb_world());
  GB_CHECK_INT(nccl->ncclGroupEnd(), ncclInvalidUsage);
  GB_CHECK_INT(
      nccl->ncclAllReduce(at, at, 4, (ncclDataType_t)99, ncclSum, comm, stream),
      ncclInvalidArgument);
  GB_CHECK_INT(nccl->ncclSend(at, 4, ncclFloat32, 7, comm, stream),
               ncclInvalidArgument);
  /* The driver would need a current context. */
  if (vendor == GBI_AMD) GB_CHECK_INT(ncclMemAlloc(&memory, 100), 0);
  if (vendor == GBI_AMD) GB_CHECK_INT(ncclMemFree(memory), 0);
  GB_CHECK_INT(nccl->ncclCommFinalize(comm), 0);
  GB_CHECK_INT(
      nccl->ncclAllReduce(at, at, 4, ncclFloat32, ncclSum, comm, stream),
      ncclInvalidUsage);
  GB_CHECK_INT(nccl->ncclCommDestroy(comm), 0);
  device->ops->free_memory(device, at);
}

GB_TEST(native, nccl_fake_has_the_rest, .ranks = 2) {
  the_rest_of_the_api(GBI_NVIDIA);
}
GB_TEST(native, rccl_fake_has_the_rest, .ranks = 2) {
  the_rest_of_the_api(GBI_AMD);
}

/* A non-blocking communicator that is called too early. */
GB_TEST(native, fake_refuses_calls_in_progress) {
  const gbi_nccl *nccl = NULL;
  ncclUniqueId id;
  ncclComm_t comm = NULL;
  ncclResult_t state;
  ncclConfig_t config = GBI_NCCL_CONFIG_INIT(0), bad = config;
  bad.magic = 1;
  open_device(GBI_NVIDIA, 0);
  OK(gbi_nccl_load(GBI_NVIDIA, &nccl, &error));
  share_id((uint8_t *)&id);
  GB_CHECK_INT(nccl->ncclCommInitRankConfig(&comm, 2, id, 0, &bad),
               ncclInvalidArgument);
  GB_CHECK_INT(nccl->ncclCommInitRankConfig(&comm, 2, id, 0, &config),
               ncclInProgress);
  GB_CHECK_INT(nccl->ncclCommGetAsyncError(comm, &state), ncclSuccess);
  GB_CHECK_INT(state, ncclInProgress);
  void *at = on_device("0123456789abcdef", 16);
  GB_CHECK_INT(
      nccl->ncclAllReduce(at, at, 4, ncclFloat32, ncclSum, comm, stream),
      ncclInvalidArgument);
  GB_CHECK_TEXT(nccl->ncclGetLastError(NULL), "before the previous operation");
  GB_CHECK_INT(nccl->ncclCommAbort(comm), 0);
  device->ops->free_memory(device, at);
}

/* A kernel that nobody joins keeps close waiting for its deadline only. */
GB_TEST(native, close_ends_at_its_deadline, .ranks = 2) {
  open_all(GBI_NVIDIA);
  reduce_all_ways(GB_FLOAT32, GB_SUM, 0, COUNT);
  void *at = on_device("0123456789abcdef", 16);
  if (gb_rank() == 0)
    OK(gbi_native_all_reduce(native, at, at, 4, GB_FLOAT32, GB_SUM, 0, 0,
                             stream, &error));
  uint64_t begin_ns = gbi_now_ns();
  if (gb_rank() == 0) gbi_native_close(native, begin_ns + S / 5);
  GB_CHECK(gbi_now_ns() - begin_ns < 10 * S);
  meet(0);
  if (gb_rank() == 1) gbi_native_close(native, soon());
  OK(device->ops->stream_sync(device, stream, &error));
  device->ops->free_memory(device, at);
  device->ops->stream_free(device, stream);
  device->ops->close(device);
}

/* Two streams, one communicator: its calls run in the order they were made. */
GB_TEST(native, calls_of_two_streams_keep_their_order, .ranks = 2,
        .timeout_ms = 60000) {
  gbi_stream other = NULL;
  open_all(GBI_NVIDIA);
  OK(device->ops->stream_new(device, &other, &error));
  void *a = on_device("\1\0\0\0", 4), *b = on_device("\2\0\0\0", 4);
  for (int i = 0; i < 50; i++) {
    OK(gbi_native_all_reduce(native, a, a, 1, GB_UINT32, GB_MAX, 0, 0,
                             i % 2 ? other : stream, &error));
    OK(gbi_native_all_reduce(native, b, b, 1, GB_UINT32, GB_MAX, 0, 0,
                             i % 2 ? stream : other, &error));
    OK(device->ops->stream_sync(device, other, &error));
    OK(device->ops->stream_sync(device, stream, &error));
  }
  uint32_t got = 0;
  from_device(&got, b, sizeof got);
  GB_CHECK_INT(got, 2);
  device->ops->free_memory(device, a);
  device->ops->free_memory(device, b);
  device->ops->stream_free(device, other);
  close_all();
}
