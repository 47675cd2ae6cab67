/* The kernels of device/kernels against the host's own, bit for bit: every type
 * and reduction, every half and every float8 code, many floats; payloads of the
 * codecs. On fakes, which run the same source as C; where GB_TEST_REAL_GPU is
 * set, on this machine's first NVIDIA card with its own compiler.
 *
 * The compiler: its errors with their log, code kept on disk (kept code is
 * taken, wrong code is not, several processes at a time, a folder that cannot
 * be written), all of the code on the device before the first call. A real
 * NVRTC, where there is one, must take the source: it needs no GPU. */
#include "device/kernels/kernels.h"

#include "codec/codec.h"
#include "device/cache.h"
#include "device/compiler.h"
#include "device/host/reduce.h"
#include "device/kernels/list.h"
#include "device/library.h"
#include "fakes/fakes.h"
#include "harness/gb_test.h"

#include <dirent.h>
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static gb_error error;
static gbi_device *device;
static gbi_kernel_set *set;
static gbi_stream stream;

#define OK(call)                                                     \
  do {                                                               \
    if ((call) != GB_OK)                                             \
      gb_test_fail(__FILE__, __LINE__, "%s: %s", #call, error.text); \
  } while (0)

/* ---- set-up ---- */

static const char *const gpus[GBI_VENDORS] = {FAKES "/cuda/libcuda.so.1",
                                              FAKES "/hip/libamdhip64.so.6"};
static const char *const rtcs[GBI_VENDORS] = {FAKES "/cuda/libnvrtc.so.13",
                                              FAKES "/hip/libhiprtc.so.6"};
static const char *const gpu_settings[GBI_VENDORS] = {"GPUBRIDGE_CUDA_LIB",
                                                      "GPUBRIDGE_HIP_LIB"};
static const char *const rtc_settings[GBI_VENDORS] = {"GPUBRIDGE_NVRTC_LIB",
                                                      "GPUBRIDGE_HIPRTC_LIB"};

static bool is_real(void) {
  return getenv("GB_TEST_REAL_GPU") != NULL;
}

static char folder[64];

static void use_folder(void) {
  snprintf(folder, sizeof folder, "/tmp/gb-kernels-XXXXXX");
  GB_CHECK(mkdtemp(folder));
  setenv("GPUBRIDGE_CACHE_DIR", folder, 1);
}

static void remove_folder(void) {
  char path[400];
  DIR *dir = opendir(folder);
  for (struct dirent *e; dir && (e = readdir(dir));) {
    snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
    (void)unlink(path);
  }
  if (dir) closedir(dir);
  (void)rmdir(folder);
}

static void name_libraries(gbi_vendor vendor) {
  if (is_real()) return;
  setenv(gpu_settings[vendor], gpus[vendor], 1);
  setenv(rtc_settings[vendor], rtcs[vendor], 1);
}

static void open_set(gbi_vendor vendor) {
  if (is_real() && vendor == GBI_AMD) gb_test_skip("the card is NVIDIA's");
  name_libraries(vendor);
  use_folder();
  OK(gbi_device_open(vendor, 0, &device, &error));
  OK(gbi_kernel_set_open(device, &set, &error));
  OK(device->ops->stream_new(device, &stream, &error));
}

static void close_set(void) {
  device->ops->stream_free(device, stream);
  gbi_kernel_set_close(set);
  device->ops->close(device);
  remove_folder();
}

/* A case of each vendor. */
#define BOTH(name_, ...)                          \
  static void check_##name_(gbi_vendor vendor);   \
  GB_TEST(kernels_nvidia, name_, ##__VA_ARGS__) { \
    check_##name_(GBI_NVIDIA);                    \
  }                                               \
  GB_TEST(kernels_amd, name_, ##__VA_ARGS__) {    \
    check_##name_(GBI_AMD);                       \
  }                                               \
  static void check_##name_(gbi_vendor vendor)

/* Device memory with a pinned twin. */
typedef struct pair {
  uint8_t *host, *gpu;
  size_t bytes;
} pair;

static pair new_pair(size_t bytes) {
  pair p = {.bytes = bytes};
  void *host, *other, *memory;
  OK(device->ops->pinned(device, bytes, &host, &other, &error));
  OK(device->ops->memory(device, bytes, &memory, &error));
  p.host = host;
  p.gpu = memory;
  return p;
}

static void free_pair(pair p) {
  device->ops->free_pinned(device, p.host);
  device->ops->free_memory(device, p.gpu);
}

static void upload(pair p) {
  OK(device->ops->copy_in(device, p.gpu, p.host, p.bytes, stream, &error));
}

static void download(pair p) {
  OK(device->ops->copy_out(device, p.host, p.gpu, p.bytes, stream, &error));
  OK(device->ops->stream_sync(device, stream, &error));
}

static uint64_t state = 88172645463325252u;
static uint64_t random_bits(void) {
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

static const uint32_t edges[] = {
    0x00000000, 0x00000001, 0x00400000, 0x007fffff, 0x00800000, 0x00800001,
    0x33000000, 0x33000001, 0x33800000, 0x387fc000, 0x387fe000, 0x387fffff,
    0x38800000, 0x3f800000, 0x3f800001, 0x3fffffff, 0x40000000, 0x43e00000,
    0x43e00001, 0x43f00000, 0x477fefff, 0x477ff000, 0x47800000, 0x7f000000,
    0x7f7f0000, 0x7f7f7fff, 0x7f7f8000, 0x7f7fffff, 0x7f800000, 0x7f800001,
    0x7fbfffff, 0x7fc00000, 0x7fc12345, 0x7fffffff};

/* Any bits; in part small numbers, those at borders, and not-a-numbers. */
static uint32_t some_float(size_t i) {
  uint32_t bits = (uint32_t)random_bits(), sign = bits & 0x80000000;
  switch (i % 4) {
    case 0: return bits;
    case 1: return edges[bits / 7 % GBI_COUNT(edges)] | sign;
    case 2: return (bits & 0x87ffffff) + 0x3c000000; /* about 1 */
    default: return (bits & 0x8fffffff) | 0x30000000;
  }
}

static uint64_t some_double(size_t i) {
  double value;
  float narrow;
  uint32_t bits = some_float(i);
  uint64_t all = random_bits();
  memcpy(&narrow, &bits, 4);
  if (i % 3 == 0) return all;
  value = (double)narrow * (1 + (double)(all % 1000) * 1e-12);
  memcpy(&all, &value, 8);
  return all;
}

static void fill(uint8_t *to, gb_dtype dtype, size_t bytes) {
  bool wide = dtype == GB_FLOAT64 || dtype == GB_COMPLEX128;
  bool single = dtype == GB_FLOAT32 || dtype == GB_COMPLEX64;
  for (size_t i = 0; i * 8 < bytes; i++) {
    uint64_t bits = random_bits();
    if (wide) bits = some_double(i);
    if (single) bits = some_float(i) | (uint64_t)some_float(i / 3) << 32;
    memcpy(to + i * 8, &bits, GBI_MIN((size_t)8, bytes - i * 8));
  }
}

static void must_equal(const void *got, const void *want, size_t bytes,
                       const char *what, gb_dtype dtype, int op) {
  const uint8_t *g = got, *w = want;
  for (size_t i = 0; i < bytes; i++)
    if (g[i] != w[i])
      gb_test_fail(__FILE__, __LINE__,
                   "%s of %s, op %d: byte %zu is %02x, the host's %02x", what,
                   gb_dtype_name(dtype), op, i, g[i], w[i]);
}

/* ---- folds ---- */

enum { ROWS = 3 };

/* a, then the rows; each `row` bytes. */
static void check_fold(pair in, pair out, gb_dtype dtype, gb_redop op,
                       size_t count) {
  size_t row = count * gb_dtype_bytes(dtype);
  gbi_reduce_fn reduce = gbi_reduce_kernel(dtype, op);
  uint8_t *want = malloc(row);
  GB_CHECK(want && gbi_kernel_folds(dtype, op));
  upload(in);
  gbi_fold fold = {dtype, op, out.gpu, in.gpu, in.gpu + row, count, ROWS, row};
  OK(gbi_kernel_fold(set, &fold, stream, &error));
  download(out);
  memcpy(want, in.host, row);
  for (int i = 1; i <= ROWS; i++) reduce(want, in.host + i * row, count);
  must_equal(out.host, want, row, "fold", dtype, (int)op);
  /* In place, one row. */
  fold.out = in.gpu, fold.rows = 1;
  OK(gbi_kernel_fold(set, &fold, stream, &error));
  memcpy(want, in.host, row);
  reduce(want, in.host + row, count);
  download(in);
  must_equal(in.host, want, row, "fold in place", dtype, (int)op);
  free(want);
}

BOTH(fold_as_the_host_does, .timeout_ms = 120000) {
  enum { COUNT = 20011 };
  open_set(vendor);
  int folded = 0;
  for (int d = 0; d < GB_DTYPE_COUNT; d++) {
    gb_dtype dtype = (gb_dtype)d;
    size_t bytes = COUNT * gb_dtype_bytes(dtype);
    pair in = new_pair(bytes * (ROWS + 1)), out = new_pair(bytes);
    for (int op = 0; op < GB_REDOP_COUNT; op++) {
      bool has = gbi_reduce_kernel(dtype, (gb_redop)op) != NULL;
      GB_CHECK(has == gbi_kernel_folds(dtype, (gb_redop)op));
      if (!has) continue;
      fill(in.host, dtype, in.bytes);
      check_fold(in, out, dtype, (gb_redop)op, COUNT);
      folded++;
    }
    free_pair(in);
    free_pair(out);
  }
  GB_CHECK_INT(folded, 8 * 7 + 4 * 4 + 7 + 2);
  close_set();
}

/* Every half with 64 others, among them the special ones. */
BOTH(fold_every_half, .timeout_ms = 120000) {
  enum { OTHERS = 64, COUNT = 65536 };
  static const gb_dtype types[] = {GB_FLOAT16, GB_BFLOAT16};
  static const gb_redop ops[] = {GB_SUM, GB_PRODUCT, GB_MAX, GB_MIN};
  open_set(vendor);
  pair in = new_pair(COUNT * 2 * (OTHERS + 1)), out = new_pair(COUNT * 2);
  uint16_t *halves = (uint16_t *)(void *)in.host, *want = malloc(COUNT * 2);
  for (int i = 0; i < COUNT; i++) halves[i] = (uint16_t)i;
  for (int r = 0; r < OTHERS; r++) {
    uint16_t other = r % 2 ? (uint16_t)random_bits() : (uint16_t)(r * 0x0420);
    for (int i = 0; i < COUNT; i++) halves[(r + 1) * COUNT + i] = other;
  }
  upload(in);
  for (int k = 0; k < 8; k++) {
    gb_dtype dtype = types[k / 4];
    gb_redop op = ops[k % 4];
    for (int r = 1; r <= OTHERS; r++) {
      gbi_fold fold = {dtype, op, out.gpu, in.gpu, in.gpu + r * COUNT * 2,
                       COUNT, 1,  0};
      OK(gbi_kernel_fold(set, &fold, stream, &error));
      download(out);
      memcpy(want, halves, COUNT * 2);
      gbi_reduce_kernel(dtype, op)(want, halves + r * COUNT, COUNT);
      must_equal(out.host, want, COUNT * 2, "fold", dtype, (int)op);
    }
  }
  free(want);
  free_pair(in);
  free_pair(out);
  close_set();
}

/* ---- load, store, divide ---- */

static void check_load(gb_dtype dtype, double factor) {
  enum { COUNT = 65536 };
  gb_dtype wide = gbi_wide_dtype(dtype);
  size_t size = gb_dtype_bytes(dtype), wide_size = gb_dtype_bytes(wide);
  pair in = new_pair(COUNT * size), out = new_pair(COUNT * wide_size);
  uint8_t *want = malloc(out.bytes);
  for (size_t i = 0; i < COUNT && size <= 2; i++)
    memcpy(in.host + i * size, &(uint16_t){(uint16_t)i}, size);
  if (size > 2) fill(in.host, dtype, in.bytes);
  upload(in);
  OK(gbi_kernel_load(set, dtype, out.gpu, in.gpu, COUNT, factor, stream,
                     &error));
  download(out);
  gbi_wide_load(want, in.host, COUNT, dtype, factor);
  must_equal(out.host, want, out.bytes, "load", dtype, 0);
  free(want);
  free_pair(in);
  free_pair(out);
}

static void check_store(gb_dtype dtype, int divisor) {
  enum { COUNT = 200003 };
  gb_dtype wide = gbi_wide_dtype(dtype);
  size_t size = gb_dtype_bytes(dtype), wide_size = gb_dtype_bytes(wide);
  pair in = new_pair(COUNT * wide_size), out = new_pair(COUNT * size);
  uint8_t *want = malloc(out.bytes);
  fill(in.host, wide, in.bytes);
  upload(in);
  OK(gbi_kernel_store(set, dtype, out.gpu, in.gpu, COUNT, divisor, stream,
                      &error));
  download(out);
  gbi_wide_store(want, in.host, COUNT, dtype, divisor);
  must_equal(out.host, want, out.bytes, "store", dtype, divisor);
  fill(out.host, dtype, out.bytes);
  memcpy(want, out.host, out.bytes);
  upload(out);
  OK(gbi_kernel_divide(set, dtype, out.gpu, COUNT, divisor, stream, &error));
  download(out);
  gbi_divide(want, COUNT, dtype, divisor);
  must_equal(out.host, want, out.bytes, "divide", dtype, divisor);
  free(want);
  free_pair(in);
  free_pair(out);
}

BOTH(scale_as_the_host_does, .timeout_ms = 120000) {
  static const double factors[] = {1, 0.5, 1.0 / 3, -1e30, 3e-39};
  static const int divisors[] = {1, 2, 3, 7, 1000003};
  open_set(vendor);
  for (int d = 0; d < GB_DTYPE_COUNT; d++) {
    int class = (int)gbi_dtype_class((gb_dtype)d);
    bool scaled = class == GBI_CLASS_FLOATING || class == GBI_CLASS_FLOAT8;
    for (size_t i = 0; i < (scaled ? GBI_COUNT(factors) : 1); i++)
      check_load((gb_dtype)d, factors[i]);
    for (size_t i = 0; i < GBI_COUNT(divisors); i++)
      check_store((gb_dtype)d, divisors[i]);
  }
  close_set();
}

/* ---- payloads ---- */

/* kind: any bits; finite ones; of about one size, blocks of zeros. */
static void fill_values(float *values, size_t count, int kind) {
  for (size_t i = 0; i < count; i++) {
    uint32_t bits = some_float(i);
    int scale = (int)(i / 256 * 7 % 277) - 149;
    if (kind == 0) memcpy(values + i, &bits, 4);
    if (kind == 1)
      values[i] = ldexpf((float)(int32_t)bits / 2147483648.0f, scale);
    if (kind == 2)
      values[i] = i / 256 % 3 ? (float)(int32_t)bits / 1e9f : -0.0f;
  }
}

static void check_payload(int codec, size_t count, int kind, bool feedback) {
  size_t bytes = gbi_codec_bytes((gbi_codec)codec, count);
  pair values = new_pair(count * 4), rest = new_pair(count * 4);
  pair payload = new_pair(bytes * 2);
  float *want_rest = malloc(count * 4);
  uint8_t *want = malloc(bytes * 2);
  fill_values((float *)(void *)values.host, count, kind);
  fill_values((float *)(void *)rest.host, count, 1);
  memcpy(want_rest, rest.host, count * 4);
  upload(values);
  upload(rest);
  OK(gbi_kernel_encode(set, codec, payload.gpu, (float *)(void *)values.gpu,
                       feedback ? (float *)(void *)rest.gpu : NULL, count,
                       stream, &error));
  OK(gbi_kernel_encode(set, codec, payload.gpu + bytes,
                       (float *)(void *)rest.gpu, NULL, count, stream, &error));
  download(payload);
  download(rest);
  const float *host = (const float *)(const void *)values.host;
  if (feedback)
    (void)gbi_codec_encode_feedback((gbi_codec)codec, want, host, want_rest,
                                    count);
  else
    gbi_codec_encode((gbi_codec)codec, want, host, count);
  gbi_codec_encode((gbi_codec)codec, want + bytes, want_rest, count);
  must_equal(payload.host, want, bytes * 2, "payload", GB_FLOAT32, codec);
  must_equal(rest.host, want_rest, count * 4, "residual", GB_FLOAT32, codec);
  OK(gbi_kernel_decode(set, codec, (float *)(void *)values.gpu, payload.gpu,
                       count, 2, bytes, stream, &error));
  download(values);
  gbi_codec_decode((gbi_codec)codec, want_rest, want, count);
  gbi_codec_add((gbi_codec)codec, want_rest, want + bytes, count);
  must_equal(values.host, want_rest, count * 4, "sum", GB_FLOAT32, codec);
  free(want);
  free(want_rest);
  free_pair(values);
  free_pair(rest);
  free_pair(payload);
}

BOTH(payloads_as_the_host_makes_them, .timeout_ms = 120000) {
  static const size_t counts[] = {1, 255, 256, 257, 100001};
  open_set(vendor);
  for (int codec = GBI_CODEC_BF16; codec < GBI_CODECS; codec++)
    for (size_t i = 0; i < GBI_COUNT(counts); i++)
      for (int kind = 0; kind < 3; kind++)
        for (int feedback = 0; feedback < 2; feedback++)
          check_payload(codec, counts[i], kind, feedback);
  close_set();
}

/* Every code under every scale, every bf16. */
BOTH(decode_every_code, .timeout_ms = 120000) {
  enum { BLOCKS = 256, VALUES = BLOCKS * 256, BYTES = BLOCKS * 257 };
  open_set(vendor);
  pair payload = new_pair(BYTES), values = new_pair(VALUES * 4);
  float *want = malloc(VALUES * 4);
  for (int b = 0; b < BLOCKS; b++)
    for (int i = 0; i < 257; i++)
      payload.host[b * 257 + i] = (uint8_t)(i ? i - 1 : b);
  for (int codec = GBI_CODEC_FP8; codec >= GBI_CODEC_BF16; codec--) {
    size_t count = codec == GBI_CODEC_FP8 ? VALUES : BYTES / 2;
    upload(payload);
    OK(gbi_kernel_decode(set, codec, (float *)(void *)values.gpu, payload.gpu,
                         GBI_MIN(count, (size_t)VALUES), 1, 0, stream, &error));
    download(values);
    gbi_codec_decode((gbi_codec)codec, want, payload.host,
                     GBI_MIN(count, (size_t)VALUES));
    must_equal(values.host, want, GBI_MIN(count, (size_t)VALUES) * 4, "value",
               GB_FLOAT32, codec);
    for (int i = 0; i < BYTES / 2; i++) {
      payload.host[2 * i] = (uint8_t)i;
      payload.host[2 * i + 1] = (uint8_t)(i >> 8);
    }
  }
  free(want);
  free_pair(payload);
  free_pair(values);
  close_set();
}

/* ---- the compiler ---- */

static void *fake(const char *file, const char *name) {
  void *handle = dlopen(file, RTLD_NOW | RTLD_NOLOAD);
  void *at = handle ? dlsym(handle, name) : NULL;
  if (!at) gb_test_fail(__FILE__, __LINE__, "%s has no %s", file, name);
  return at;
}

static int compiled(gbi_vendor vendor) {
  uint64_t (*count)(void) =
      (uint64_t(*)(void))fake(rtcs[vendor], "fake_rtc_compiled");
  return (int)count();
}

/* The one file that is kept. */
static void kept_file(char *path, size_t bytes) {
  int count = 0;
  DIR *dir = opendir(folder);
  GB_CHECK(dir);
  for (struct dirent *e; (e = readdir(dir));) {
    if (e->d_name[0] == '.') continue;
    snprintf(path, bytes, "%s/%s", folder, e->d_name);
    count++;
  }
  closedir(dir);
  GB_CHECK_INT(count, 1);
}

static void change_file(const char *path, long at, int value, long length) {
  FILE *f = fopen(path, "r+");
  GB_CHECK(f && !fseek(f, at, SEEK_SET));
  if (value >= 0) GB_CHECK(fputc(value, f) == value);
  fclose(f);
  if (length >= 0) GB_CHECK(!truncate(path, length));
}

static gbi_code compile_it(gbi_vendor vendor) {
  gbi_code code;
  const char *arch = vendor == GBI_NVIDIA ? "sm_90" : "gfx942:sramecc+:xnack-";
  OK(gbi_compile(vendor, arch, gbi_kernels_source, &code, &error));
  return code;
}

static void must_compile(gbi_vendor vendor, int times) {
  gbi_code code = compile_it(vendor);
  GB_CHECK_INT(compiled(vendor), times);
  GB_CHECK(code.count > 0 && !memcmp(code.bytes, "fake code ", 10));
  gbi_code_free(&code);
}

static void use_fakes(gbi_vendor vendor) {
  if (is_real()) gb_test_skip("for fakes");
  name_libraries(vendor);
  use_folder();
}

BOTH(kept_code_is_taken) {
  char path[400];
  use_fakes(vendor);
  must_compile(vendor, 1);
  must_compile(vendor, 1);
  kept_file(path, sizeof path);
  struct stat s;
  GB_CHECK(!stat(path, &s) && (s.st_mode & 0777) == 0600);
  remove_folder();
}

BOTH(another_program_is_another_file) {
  gbi_code code;
  use_fakes(vendor);
  must_compile(vendor, 1);
  const char *arch = vendor == GBI_NVIDIA ? "sm_80" : "gfx90a";
  OK(gbi_compile(vendor, arch, gbi_kernels_source, &code, &error));
  GB_CHECK_INT(compiled(vendor), 2);
  gbi_code_free(&code);
  GB_CHECK_INT(gbi_compile(vendor, arch, "another", &code, &error),
               GB_ERR_INTERNAL);
  GB_CHECK_TEXT(error.text, "this fake knows one program only");
  remove_folder();
}

/* Cut off, grown, a changed byte of each part, a file that others may write. */
BOTH(wrong_code_is_not_taken) {
  static const struct {
    long at;
    int value;
    long length;
  } changes[] = {{0, 'x', -1},  {8, 7, -1},    {20, 0xee, -1},
                 {60, '~', -1}, {0, -1, 0},    {0, -1, 30},
                 {0, -1, 100},  {0, -1, 5000}, {15, 0xff, -1}};
  char path[400];
  int times = 1;
  use_fakes(vendor);
  must_compile(vendor, times);
  for (size_t i = 0; i < GBI_COUNT(changes); i++) {
    kept_file(path, sizeof path);
    change_file(path, changes[i].at, changes[i].value, changes[i].length);
    must_compile(vendor, ++times);
    must_compile(vendor, times); /* it was replaced */
  }
  GB_CHECK(!chmod(path, 0666));
  must_compile(vendor, ++times);
  must_compile(vendor, times);
  GB_CHECK(!unlink(path) && !symlink("/dev/zero", path));
  must_compile(vendor, ++times);
  must_compile(vendor, times);
  remove_folder();
}

/* What is right on disk but does not load is compiled anew. */
GB_TEST(kernels_nvidia, code_that_does_not_load) {
  gbi_code code;
  gbi_cache_key key = {{0}};
  char path[400], other[400];
  use_fakes(GBI_NVIDIA);
  OK(gbi_compile(GBI_NVIDIA, "sm_90", gbi_kernels_source, &code, &error));
  gbi_code_free(&code);
  kept_file(path, sizeof path);
  /* The key of the file is not known here: a driver that refuses stands in. */
  setenv("FAKE_GPU_FAIL", "cuModuleLoadData:1:200", 1);
  OK(gbi_device_open(GBI_NVIDIA, 0, &device, &error));
  OK(gbi_kernel_set_open(device, &set, &error));
  GB_CHECK_INT(compiled(GBI_NVIDIA), 2);
  gbi_kernel_set_close(set);
  device->ops->close(device);
  /* A key that nothing was kept under. */
  GB_CHECK(!gbi_cache_read(&key, &code.bytes, &code.count));
  kept_file(other, sizeof other);
  GB_CHECK_TEXT(other, path);
  remove_folder();
}

BOTH(a_folder_that_cannot_be_written) {
  use_fakes(vendor);
  setenv("GPUBRIDGE_CACHE_DIR", "/proc/nowhere/at/all", 1);
  must_compile(vendor, 1);
  must_compile(vendor, 2);
  setenv("GPUBRIDGE_CACHE_DIR", "relative", 1);
  must_compile(vendor, 3);
  remove_folder();
}

GB_TEST(kernels_nvidia, the_folder) {
  char path[400];
  setenv("GPUBRIDGE_CACHE_DIR", "/a/b", 1);
  setenv("XDG_CACHE_HOME", "/x", 1);
  setenv("HOME", "/h", 1);
  GB_CHECK(gbi_cache_folder(path, sizeof path) && !strcmp(path, "/a/b"));
  unsetenv("GPUBRIDGE_CACHE_DIR");
  GB_CHECK(gbi_cache_folder(path, sizeof path) &&
           !strcmp(path, "/x/gpubridge"));
  unsetenv("XDG_CACHE_HOME");
  GB_CHECK(gbi_cache_folder(path, sizeof path) &&
           !strcmp(path, "/h/.cache/gpubridge"));
  unsetenv("HOME");
  GB_CHECK(!gbi_cache_folder(path, sizeof path));
}

/* Four processes compile and replace one file all the time: what they find is
 * right or nothing. */
GB_TEST(kernels_nvidia, several_at_a_time, .ranks = 4) {
  char *shared = gb_test_shared();
  volatile int *ready = (volatile int *)(void *)shared;
  name_libraries(GBI_NVIDIA);
  if (is_real()) gb_test_skip("for fakes");
  if (gb_rank() == 0) {
    use_folder();
    memcpy(shared + 64, folder, sizeof folder);
    __atomic_fetch_add(ready, 1, __ATOMIC_RELEASE);
  }
  gb_test_await(ready, 1, 10000);
  memcpy(folder, shared + 64, sizeof folder);
  setenv("GPUBRIDGE_CACHE_DIR", folder, 1);
  for (int i = 0; i < 200; i++) {
    gbi_code code;
    if (i % 3 == 0)
      OK(gbi_compile_anew(GBI_NVIDIA, "sm_90", gbi_kernels_source, &code,
                          &error));
    else
      OK(gbi_compile(GBI_NVIDIA, "sm_90", gbi_kernels_source, &code, &error));
    GB_CHECK(i == 0 || i % 3 == 0 || code.kept);
    GB_CHECK(!memcmp(code.bytes, "fake code ", 10));
    gbi_code_free(&code);
  }
  __atomic_fetch_add(ready, 1, __ATOMIC_RELEASE);
  if (gb_rank()) return;
  gb_test_await(ready, 5, 20000);
  char path[400];
  kept_file(path, sizeof path); /* nobody's half is left */
  remove_folder();
}

BOTH(errors_have_the_compilers_words) {
  gbi_code code;
  use_fakes(vendor);
  setenv("FAKE_RTC_FAIL", "gpubridge.cu(7): error: identifier \"x\"\nmore", 1);
  const char *arch = vendor == GBI_NVIDIA ? "sm_90" : "gfx942";
  GB_CHECK_INT(gbi_compile(vendor, arch, gbi_kernels_source, &code, &error),
               GB_ERR_INTERNAL);
  GB_CHECK_TEXT(error.text, "(7): error: identifier \"x\" more");
  GB_CHECK_TEXT(error.text, rtcs[vendor]);
  GB_CHECK_INT(gbi_compile(vendor, "xx_1", gbi_kernels_source, &code, &error),
               GB_ERR_UNSUPPORTED);
  GB_CHECK_TEXT(error.text, "invalid value for the architecture");
  GB_CHECK_INT(gbi_compile(vendor, "", gbi_kernels_source, &code, &error),
               GB_ERR_UNSUPPORTED);
  remove_folder();
}

BOTH(no_compiler) {
  if (is_real()) gb_test_skip("for fakes");
  name_libraries(vendor);
  setenv(rtc_settings[vendor], "/nowhere/librtc.so", 1);
  OK(gbi_device_open(vendor, 0, &device, &error));
  GB_CHECK_INT(gbi_kernel_set_open(device, &set, &error), GB_ERR_UNSUPPORTED);
  GB_CHECK_TEXT(error.text, rtc_settings[vendor]);
  device->ops->close(device);
}

/* Code that came to the device at its first launch would wait for a gate that
 * only the host can open. */
BOTH(all_code_is_there_at_once) {
  if (is_real()) gb_test_skip("for fakes");
  setenv("FAKE_GPU_PROFILE", "lazy,no-ring", 1);
  open_set(vendor);
  pair p = new_pair(4096);
  upload(p);
  OK(device->ops->stream_sync(device, stream, &error));
  void (*count)(fake_gpu_counts *) =
      (void (*)(fake_gpu_counts *))fake(gpus[vendor], "fake_gpu_count_here");
  fake_gpu_counts before, after;
  count(&before);
  for (int d = 0; d < GB_DTYPE_COUNT; d++)
    for (int op = 0; op < GB_REDOP_COUNT; op++) {
      gbi_fold fold = {(gb_dtype)d,  (gb_redop)op, p.gpu, p.gpu,
                       p.gpu + 1024, 16,           1,     1024};
      if (gbi_kernel_folds((gb_dtype)d, (gb_redop)op))
        OK(gbi_kernel_fold(set, &fold, stream, &error));
    }
  OK(gbi_kernel_encode(set, GBI_CODEC_FP8, p.gpu, (float *)(void *)p.gpu + 512,
                       NULL, 16, stream, &error));
  count(&after);
  GB_CHECK_INT(after.blocking, before.blocking);
  GB_CHECK_INT(after.allocations, before.allocations);
  free_pair(p);
  close_set();
}

/* ---- the real ones ---- */

static bool holds_text(const gbi_code *code, const char *name) {
  return memmem(code->bytes, code->count, name, strlen(name) + 1) != NULL;
}

/* Without a GPU: the source is compiled, and every kernel is in the code. */
GB_TEST(kernels_real, nvrtc_takes_the_source, .timeout_ms = 120000) {
  static const char *const archs[] = {"sm_80", "sm_90"};
  static const char *const all[] = {
#define NAME(name, in, out) "gbk_" #name,
      GBI_KERNELS(NAME)
#undef NAME
  };
  int major, minor;
  const char *path;
  if (gbi_compiler_look(GBI_NVIDIA, &major, &minor, &path, &error) != GB_OK)
    gb_test_skip("%s", error.text);
  use_folder();
  for (size_t a = 0; a < GBI_COUNT(archs); a++) {
    gbi_code code;
    OK(gbi_compile(GBI_NVIDIA, archs[a], gbi_kernels_source, &code, &error));
    GB_CHECK(!code.kept);
    for (size_t i = 0; i < GBI_COUNT(all); i++)
      if (!holds_text(&code, all[i]))
        gb_test_fail(__FILE__, __LINE__, "%s is not in the code for %s", all[i],
                     archs[a]);
    gbi_code_free(&code);
    OK(gbi_compile(GBI_NVIDIA, archs[a], gbi_kernels_source, &code, &error));
    GB_CHECK(code.kept);
    gbi_code_free(&code);
  }
  gbi_code code;
  GB_CHECK(gbi_compile(GBI_NVIDIA, "sm_90", "void f( {", &code, &error) ==
           GB_ERR_INTERNAL);
  GB_CHECK_TEXT(error.text, "gpubridge.cu(1)");
  remove_folder();
}
