/* codec: float32 values as payloads of half or a quarter of the bytes.
 *
 * May call base only. It knows nothing of calls, ranks or bridges: the engine
 * encodes what a leader sends and adds up what all leaders sent. Every variant
 * (AVX-512, AVX2, NEON, plain C) gives the same bits for every input, whatever
 * rounding or flushing mode the caller's thread is in: ranks of different
 * machines must end with the same sums. Thread-safe, nothing is allocated;
 * pointers need no alignment.
 *
 * bf16: two bytes a value, little-endian: the upper half of the float32,
 *   rounded to nearest even. Infinities stay, also those that rounding makes
 *   of values from 255.5 * 2^120 on; every NaN is sent as 0x7fc0.
 *
 * fp8: blocks of 256 values, the last one may be short.
 *
 *   | byte   | what                                                        |
 *   | ------ | ----------------------------------------------------------- |
 *   | 0      | e + 134: the block's values are codes times 2^e; 255: the   |
 *   |        | block holds a NaN or an infinity, all of it decodes to NaN  |
 *   | 1..256 | OCP E4M3 codes: sign, 4 bits of exponent, 3 of the fraction |
 *
 *   With A the block's largest magnitude, e is the smallest number from -134 on
 *   with A / 2^e <= 448; a block of zeros has e = 0. Codes are rounded to
 *   nearest even and never overflow. (-134 to 120 is all that one byte holds
 *   beside the reserved code; below it, A < 2^-126, values lose places one by
 *   one, and those under 2^-144 become 0.) Values from 1.9375 * 2^127 on decode
 *   to infinity, as they do with bf16.
 *
 * Decoding takes any bytes: an E4M3 code of 0x7f or 0xff is a NaN. A NaN that
 * comes out is always the quiet 0x7fc00000. */
#ifndef GBI_CODEC_CODEC_H
#define GBI_CODEC_CODEC_H

#include "base/base.h"

typedef enum gbi_codec {
  GBI_CODEC_NONE,
  GBI_CODEC_BF16,
  GBI_CODEC_FP8,
  GBI_CODECS
} gbi_codec;

#define GBI_CODEC_BLOCK 256 /* values, of fp8 */

/* "off", "bf16", "fp8"; NULL for an unknown number. */
const char *gbi_codec_name(int codec);
/* GBI_CODEC_NONE for any other text. */
gbi_codec gbi_codec_find(const char *name);
/* Bytes of a payload of `count` values. At least `count`. */
uint64_t gbi_codec_bytes(gbi_codec codec, uint64_t count);

/* payload = Q(values). The regions are apart. */
void gbi_codec_encode(gbi_codec codec, void *payload, const float *values,
                      size_t count);
/* With feedback: x = values + residual; payload = Q(x); residual = x -
 * decoded(Q(x)), or 0 where that is not finite. Returns the largest magnitude
 * of the new residual. */
float gbi_codec_encode_feedback(gbi_codec codec, void *payload,
                                const float *values, float *residual,
                                size_t count);
/* values = decoded(payload). */
void gbi_codec_decode(gbi_codec codec, float *values, const void *payload,
                      size_t count);
/* sums += decoded(payload), in float32. */
void gbi_codec_add(gbi_codec codec, float *sums, const void *payload,
                   size_t count);

/* "avx512bf16", "avx512", "avx2", "neon", "portable": what is in use. */
const char *gbi_codec_kernels_name(void);
/* For tests: forces a variant by name; false when this machine lacks it. */
bool gbi_codec_kernels_select(const char *name);

#endif
