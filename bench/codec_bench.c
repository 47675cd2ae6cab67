/* Rates of the codec kernels against memcpy, by bytes of float32, one core.
 *
 *   codec_bench [MiB]    every variant of this machine; 8 MiB unless told
 *   codec_bench --all    every variant against the plain C reference over all
 *                        2^32 float32 values: minutes. Exit 1 when bits differ.
 *                        --all 0 2 and --all 1 2: half of them each
 *   codec_bench --some   a 256th of them */
#include "codec/codec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"portable", "avx2", "avx512", "avx512bf16",
                                    "neon"};
enum { RUN = 1 << 16, TRIES = 9 };

static void *room(size_t bytes) {
  void *data = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (!data) exit(2);
  memset(data, 1, bytes);
  return data;
}

/* ---- Rates ---- */

typedef struct work {
  float *values, *other, *residual;
  uint8_t *payload;
  size_t count;
} work;

static void copy(const work *w, gbi_codec codec) {
  (void)codec;
  memcpy(w->other, w->values, w->count * 4);
  __asm__ volatile("" : : "r"(w->other) : "memory");
}

static void encode(const work *w, gbi_codec codec) {
  gbi_codec_encode(codec, w->payload, w->values, w->count);
}

static void feedback(const work *w, gbi_codec codec) {
  (void)gbi_codec_encode_feedback(codec, w->payload, w->values, w->residual,
                                  w->count);
}

static void decode(const work *w, gbi_codec codec) {
  gbi_codec_decode(codec, w->other, w->payload, w->count);
}

static void add(const work *w, gbi_codec codec) {
  gbi_codec_add(codec, w->other, w->payload, w->count);
}

/* GB/s of float32; the best of some tries. */
static double rate(void (*run)(const work *, gbi_codec), const work *w,
                   gbi_codec codec) {
  uint64_t best = UINT64_MAX;
  for (int i = 0; i < TRIES; i++) {
    uint64_t from = gbi_now_ns();
    run(w, codec);
    uint64_t took = gbi_now_ns() - from;
    best = GBI_MIN(best, took);
  }
  return (double)w->count * 4 / (double)best;
}

static void rates(size_t count) {
  work w = {room(count * 4), room(count * 4), room(count * 4), room(count * 2),
            count};
  for (size_t i = 0; i < count; i++) {
    w.values[i] = (float)((i * 2654435761u) % 20011) / 10007 - 1;
    w.other[i] = w.residual[i] = 0;
  }
  double most = rate(copy, &w, GBI_CODEC_NONE);
  printf("%-12s %-5s %8s %9s %8s %8s  GB/s of float32 (memcpy %.1f)\n",
         "variant", "codec", "encode", "feedback", "decode", "add", most);
  for (size_t v = 0; v < GBI_COUNT(names); v++) {
    if (!gbi_codec_kernels_select(names[v])) continue;
    for (int c = GBI_CODEC_BF16; c < GBI_CODECS; c++) {
      gbi_codec codec = (gbi_codec)c;
      double e = rate(encode, &w, codec), f = rate(feedback, &w, codec);
      double d = rate(decode, &w, codec), a = rate(add, &w, codec);
      printf(
          "%-12s %-5s %8.2f %9.2f %8.2f %8.2f  of memcpy: %.2f %.2f %.2f "
          "%.2f\n",
          names[v], gbi_codec_name(c), e, f, d, a, e / most, f / most, d / most,
          a / most);
    }
  }
  free(w.values);
  free(w.other);
  free(w.residual);
  free(w.payload);
}

/* ---- All inputs ---- */

static float float_of(uint32_t bits) {
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

/* 0: the run's values as they are. 1: mixed, so that blocks hold all
 * magnitudes. 2: each block led by 448, so that its scale is 1 and every value
 * up to 448 is rounded there. */
static void fill(float *to, uint64_t at, int way) {
  for (uint32_t i = 0; i < RUN; i++) {
    uint32_t bits = (uint32_t)at + i;
    if (way == 1) bits *= UINT32_C(2654435761);
    to[i] = float_of(bits);
    if (way != 2) continue;
    if ((bits & 0x7fffffff) > 0x43e00000) to[i] = 1;
    if (i % 256 == 0) to[i] = 448;
  }
}

typedef struct results {
  uint8_t payload[RUN * 2], fed[RUN * 2];
  float values[RUN], residual[RUN], sums[RUN], error;
} results;

static void everything(gbi_codec codec, const float *in, results *r) {
  memset(r, 0, sizeof *r);
  gbi_codec_encode(codec, r->payload, in, RUN);
  gbi_codec_decode(codec, r->values, r->payload, RUN);
  for (uint32_t i = 0; i < RUN; i++) r->residual[i] = (float)(i % 251) * 1e-3f;
  r->error = gbi_codec_encode_feedback(codec, r->fed, in, r->residual, RUN);
  memcpy(r->sums, in, sizeof r->sums);
  gbi_codec_add(codec, r->sums, r->fed, RUN);
}

static int compare_all(uint64_t first, uint64_t stride) {
  static float in[RUN];
  static results want, got;
  uint64_t runs = 0, wrong = 0;
  for (uint64_t at = RUN * first; at >> 32 == 0; at += RUN * stride)
    for (int c = GBI_CODEC_BF16; c < GBI_CODECS; c++)
      for (int way = 0; way < (c == GBI_CODEC_FP8 ? 3 : 1); way++) {
        fill(in, at, way);
        gbi_codec_kernels_select("portable");
        everything((gbi_codec)c, in, &want);
        for (size_t v = 1; v < GBI_COUNT(names); v++) {
          if (!gbi_codec_kernels_select(names[v])) continue;
          everything((gbi_codec)c, in, &got);
          runs++;
          if (!memcmp(&want, &got, sizeof got)) continue;
          if (wrong++ < 10)
            printf("%s %s differs in the run at %#llx, way %d\n", names[v],
                   gbi_codec_name(c), (unsigned long long)at, way);
        }
      }
  printf("%llu runs of %d values compared, %llu differ\n",
         (unsigned long long)runs, RUN, (unsigned long long)wrong);
  return wrong || !runs;
}

int main(int argc, char **argv) {
  bool all = argc > 1 && !strcmp(argv[1], "--all");
  if (all && argc == 4)
    return compare_all(strtoul(argv[2], NULL, 10), strtoul(argv[3], NULL, 10));
  if (all) return compare_all(0, 1);
  if (argc > 1 && !strcmp(argv[1], "--some")) return compare_all(0, 256);
  long mib = argc > 1 ? strtol(argv[1], NULL, 10) : 8;
  rates((size_t)GBI_MAX(mib, 1) << 18);
  return 0;
}
