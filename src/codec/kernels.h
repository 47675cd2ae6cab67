/* One set of codec kernels per instruction set; reference.c is the plain C that
 * all others must equal bit by bit, they are made from kernels.inc.h. Internal
 * to codec. The contract is codec.h's, in the processor's default mode. */
#ifndef GBI_CODEC_KERNELS_H
#define GBI_CODEC_KERNELS_H

#include "codec/codec.h"

enum {
  GBI_FP8_STRIDE = GBI_CODEC_BLOCK + 1, /* bytes of a full block */
  GBI_FP8_BIAS = 134,                   /* of the scale byte */
  GBI_FP8_RESERVED = 255                /* the block decodes to NaN */
};

/* One codec of one instruction set. */
typedef struct gbi_codec_set {
  void (*encode)(uint8_t *payload, const float *values, size_t count);
  float (*encode_feedback)(uint8_t *payload, const float *values,
                           float *residual, size_t count);
  void (*decode)(float *values, const uint8_t *payload, size_t count);
  void (*add)(float *sums, const uint8_t *payload, size_t count);
} gbi_codec_set;

typedef struct gbi_codec_kernels {
  const char *name;
  gbi_codec_set sets[GBI_CODECS]; /* [GBI_CODEC_NONE] is empty */
} gbi_codec_kernels;

extern const gbi_codec_kernels gbi_codec_portable;
extern const gbi_codec_kernels gbi_codec_avx2;
extern const gbi_codec_kernels gbi_codec_avx512;
extern const gbi_codec_kernels gbi_codec_avx512bf16;
extern const gbi_codec_kernels gbi_codec_neon;

/* The scale byte of a block whose largest magnitude has the bits `most`, which
 * are finite. 448 = 1.75 * 2^8: what is above 1.75 carries over. */
static inline unsigned gbi_fp8_scale(uint32_t most) {
  if (!most) return GBI_FP8_BIAS;
  uint32_t exponent = (most + 0x1fffff) >> 23;
  return exponent ? exponent - 1 : 0;
}

#endif
