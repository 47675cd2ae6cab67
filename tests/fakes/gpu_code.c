/* The library's kernels: source.h, which GPUs get compiled from text, as C.
 * Each launch runs on a queue's thread with what it reads and writes declared.
 */
#include "device/kernels/source.h"

#include "device/kernels/list.h"
#include "fakes/gpu.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const char gbi_kernels_source[];
static const char mark[] = "fake code ";

uint64_t fake_source_hash(const char *source) {
  uint64_t hash = UINT64_C(14695981039346656037);
  for (; *source; source++)
    hash = (hash ^ (unsigned char)*source) * UINT64_C(1099511628211);
  return hash;
}

void fake_code_text(const char *arch, uint64_t source_hash,
                    char code[FAKE_CODE_BYTES]) {
  memset(code, 0, FAKE_CODE_BYTES);
  snprintf(code, FAKE_CODE_BYTES, "%s%016" PRIx64 " %s", mark, source_hash,
           arch);
}

bool fake_is_code(const char *image) {
  return strncmp(image, mark, sizeof mark - 1) == 0;
}

bool fake_code_fits(const char *image, const char *arch) {
  char code[FAKE_CODE_BYTES];
  fake_code_text(arch, fake_source_hash(gbi_kernels_source), code);
  return strncmp(image, code, sizeof code) == 0;
}

/* ---- arguments ---- */

static void *address(const fake_launch *l, int i) {
  return *(void **)l->params[i];
}
static gbk_u64 number(const fake_launch *l, int i) {
  return *(gbk_u64 *)l->params[i];
}
/* NULL stays so. */
static void *view(const fake_launch *l, int i) {
  return address(l, i) ? fake_gpu_open(address(l, i)) : NULL;
}

static void must_fit(const fake_launch *l) {
  if (l->block[0] == GBK_THREADS_EACH && l->block[1] == 1 && l->grid[0] > 0)
    return;
  fake_check_failed("launch", NULL, NULL, NULL, "a kernel with %u threads",
                    l->block[0]);
}

static int add(fake_range *ranges, int count, const void *begin, size_t bytes,
               int writes) {
  if (!begin || !bytes) return count;
  ranges[count] = (fake_range){begin, bytes, writes};
  return count + 1;
}

/* From the first row to the end of the last. */
static size_t rows_bytes(gbk_u64 row, gbk_u64 rows, gbk_u64 stride) {
  return row && rows ? (rows - 1) * stride + row : 0;
}

static size_t payload_bytes(gbk_u64 count, bool fp8) {
  return fp8 ? count + (count + GBK_FP8_BLOCK - 1) / GBK_FP8_BLOCK : 2 * count;
}

/* ---- folds ---- */

static int fold_ranges(const fake_launch *l, size_t bytes, fake_range *ranges) {
  size_t row = number(l, 3) * bytes;
  int count = add(ranges, 0, address(l, 0), row, 1);
  count = add(ranges, count, address(l, 1), row, 0);
  return add(ranges, count, address(l, 2),
             rows_bytes(row, number(l, 4), number(l, 5)), 0);
}

#define FOLD(name, in, out)                                                    \
  static void run_##name(const fake_launch *l) {                               \
    must_fit(l);                                                               \
    gbk_##name(view(l, 0), view(l, 1), view(l, 2), number(l, 3), number(l, 4), \
               number(l, 5));                                                  \
  }                                                                            \
  static int ranges_##name(const fake_launch *l, fake_range *ranges) {         \
    return fold_ranges(l, in, ranges);                                         \
  }
GBI_FOLD_KERNELS(FOLD)

/* ---- maps ---- */

#define MAP(name, in, out)                                              \
  static void run_##name(const fake_launch *l) {                        \
    must_fit(l);                                                        \
    gbk_##name(view(l, 0), view(l, 1), number(l, 2),                    \
               *(gbk_f64 *)l->params[3]);                               \
  }                                                                     \
  static int ranges_##name(const fake_launch *l, fake_range *ranges) {  \
    int count = add(ranges, 0, address(l, 0), number(l, 2) * (out), 1); \
    return add(ranges, count, address(l, 1), number(l, 2) * (in), 0);   \
  }
GBI_MAP_KERNELS(MAP)

/* ---- payloads ---- */

static int encode_ranges(const fake_launch *l, bool fp8, fake_range *ranges) {
  gbk_u64 n = number(l, 3);
  int count = add(ranges, 0, address(l, 0), payload_bytes(n, fp8), 1);
  count = add(ranges, count, address(l, 1), n * 4, 0);
  count = add(ranges, count, address(l, 2), n * 4, 0);
  return add(ranges, count, address(l, 2), n * 4, 1);
}

static int decode_ranges(const fake_launch *l, bool fp8, fake_range *ranges) {
  size_t row = payload_bytes(number(l, 2), fp8);
  int count = add(ranges, 0, address(l, 0), number(l, 2) * 4, 1);
  return add(ranges, count, address(l, 1),
             rows_bytes(row, number(l, 3), number(l, 4)), 0);
}

#define ENCODE(name, in, out)                                          \
  static void run_##name(const fake_launch *l) {                       \
    must_fit(l);                                                       \
    gbk_##name(view(l, 0), view(l, 1), view(l, 2), number(l, 3));      \
  }                                                                    \
  static int ranges_##name(const fake_launch *l, fake_range *ranges) { \
    return encode_ranges(l, strstr(#name, "fp8") != NULL, ranges);     \
  }
GBI_ENCODE_KERNELS(ENCODE)

#define DECODE(name, in, out)                                          \
  static void run_##name(const fake_launch *l) {                       \
    must_fit(l);                                                       \
    gbk_##name(view(l, 0), view(l, 1), number(l, 2), number(l, 3),     \
               number(l, 4));                                          \
  }                                                                    \
  static int ranges_##name(const fake_launch *l, fake_range *ranges) { \
    return decode_ranges(l, strstr(#name, "fp8") != NULL, ranges);     \
  }
GBI_DECODE_KERNELS(DECODE)

/* ---- all ---- */

/* Every argument is of 8 bytes. */
static const size_t eights[] = {8, 8, 8, 8, 8, 8};

#define ROW(name, count) \
  {"gbk_" #name, run_##name, count, eights, ranges_##name},
#define ROW_6(name, in, out) ROW(name, 6)
#define ROW_4(name, in, out) ROW(name, 4)
#define ROW_5(name, in, out) ROW(name, 5)
static const fake_kernel built_in[] = {GBI_FOLD_KERNELS(ROW_6) GBI_MAP_KERNELS(
    ROW_4) GBI_ENCODE_KERNELS(ROW_4) GBI_DECODE_KERNELS(ROW_5)};

const fake_kernel *fake_kernel_built_in(const char *name) {
  for (size_t i = 0; i < sizeof built_in / sizeof built_in[0]; i++)
    if (strcmp(built_in[i].name, name) == 0) return &built_in[i];
  return NULL;
}
