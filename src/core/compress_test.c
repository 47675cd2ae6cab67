/* Proves of compression's steps: a payload out of any type and the sum of
 * several in any type; one residual for each buffer, count, type and payload,
 * which the same one finds again; that the bound holds, that what was used
 * longest ago goes first, and that a failure leaves nothing. */
#include "core/compress.h"
#include "device/host/reduce.h"
#include "harness/gb_test.h"

#include <math.h>
#include <stdlib.h>

enum { N = 3000 };

static gbi_plan plan_of(gb_dtype dtype, uint64_t count) {
  return (gbi_plan){.coll = {.op = GBI_OP_ALL_REDUCE,
                             .dtype = (uint8_t)dtype,
                             .redop = GB_SUM,
                             .root = -1,
                             .count = count}};
}

static gbi_step step_of(gbi_codec codec, uint32_t number, uint64_t count) {
  return (gbi_step){.codec = (uint8_t)codec, .number = number, .count = count};
}

static gbi_compress *open_store(uint64_t bytes) {
  gbi_compress *c;
  GB_CHECK_OK(gbi_compress_new(GBI_CODEC_BF16, bytes, &c, NULL));
  return c;
}

/* Encodes `count` values of 1.001 and gives the first as it arrives. */
static float send(gbi_compress *c, const void *buffer, uint64_t elements,
                  uint32_t number, uint64_t count) {
  static float values[N], out[N];
  static uint8_t payload[2 * N];
  gbi_plan plan = plan_of(GB_FLOAT32, elements);
  gbi_step step = step_of(GBI_CODEC_BF16, number, count);
  for (uint64_t i = 0; i < count; i++) values[i] = 1.001f;
  gbi_compress_encode(c, &plan, &step, buffer, values, payload);
  gbi_codec_decode(GBI_CODEC_BF16, out, payload, count);
  return out[0];
}

GB_TEST(compress, residuals_by_buffer) {
  char place[2];
  gbi_compress *c = open_store(1 << 20);
  uint64_t one = 0;
  /* 1.001 is sent as 1 until the rest has grown to half a step. */
  for (int i = 0; i < 3; i++) GB_CHECK(send(c, place, 500, 0, 100) == 1);
  GB_CHECK(send(c, place, 500, 0, 100) > 1);
  one = gbi_compress_residual_bytes(c);
  GB_CHECK(one >= 400 && one < 600);
  /* Others begin with nothing. */
  for (int i = 0; i < 3; i++) {
    GB_CHECK(send(c, place + 1, 500, 0, 100) == 1);
    GB_CHECK(send(c, place, 501, 0, 100) == 1);
    GB_CHECK(send(c, place, 500, 1, 100) == 1);
    GB_CHECK(send(c, place, 500, 0, 99) == 1);
  }
  GB_CHECK_INT(gbi_compress_residual_bytes(c), 5 * one - 4);
  for (int i = 0; i < 3; i++) (void)send(c, place, 500, 0, 100);
  gbi_compress_drop(c);
  GB_CHECK_INT(gbi_compress_residual_bytes(c), 0);
  for (int i = 0; i < 3; i++) GB_CHECK(send(c, place, 500, 0, 100) == 1);
  gbi_compress_free(c);
}

GB_TEST(compress, the_oldest_goes_first) {
  char place[3];
  gbi_compress *c = open_store(2 * 500);
  for (int i = 0; i < 4; i++) (void)send(c, place, 100, 0, 100);
  for (int i = 0; i < 4; i++) (void)send(c, place + 1, 100, 0, 100);
  (void)send(c, place, 100, 0, 100);     /* the fifth */
  (void)send(c, place + 2, 100, 0, 100); /* in the place of the second */
  GB_CHECK(gbi_compress_residual_bytes(c) <= 1000);
  GB_CHECK(send(c, place + 1, 100, 0, 100) == 1); /* begins anew */
  /* What never fits is sent without, and drops nobody. */
  uint64_t bytes = gbi_compress_residual_bytes(c);
  GB_CHECK(send(c, place, 300, 0, 300) == 1);
  GB_CHECK_INT(gbi_compress_residual_bytes(c), bytes);
  gbi_compress_free(c);
}

/* Two rows of small whole numbers, in each type, over several pieces. */
static void types(gbi_codec codec, gb_dtype dtype) {
  static double src[N], dst[N];
  static uint8_t payloads[2 * 2 * N];
  static float values[N];
  gbi_compress *c = open_store(0);
  gbi_plan plan = plan_of(dtype, N);
  gbi_step step = step_of(codec, 0, N);
  uint64_t row = gbi_codec_bytes(codec, N);
  for (int k = 0; k < 2; k++) {
    for (int i = 0; i < N; i++) {
      values[i] = (float)(i / 256 - 3) * (float)(k + 1);
      src[i] = (double)values[i];
    }
    uint8_t *data = (uint8_t *)src;
    static uint8_t room[N * 8];
    if (dtype != GB_FLOAT64) {
      data = room;
      gbi_wide_store(data, values, N, dtype, 1);
    }
    gbi_compress_encode(c, &plan, &step, src, data, payloads + (size_t)k * row);
  }
  step.rows = 2;
  gbi_compress_decode(&plan, &step, payloads, dst);
  if (dtype != GB_FLOAT64) gbi_wide_load(values, dst, N, dtype, 1);
  for (int i = 0; i < N; i++) {
    double v = dtype == GB_FLOAT64 ? dst[i] : (double)values[i];
    GB_CHECK(v == 3 * (i / 256 - 3));
  }
  gbi_compress_free(c);
}

GB_TEST(compress, every_type) {
  for (int codec = GBI_CODEC_BF16; codec < GBI_CODECS; codec++)
    for (int dtype = GB_FLOAT16; dtype <= GB_FLOAT64; dtype++)
      types((gbi_codec)codec, (gb_dtype)dtype);
}
