/* core/compress: what a leader does to sums before and after the bridge, when
 * compression is on: payloads out of them, with error feedback, and sums out of
 * the payloads of all leaders.
 *
 * One residual per payload, in float32: what quantization lost of it, which the
 * next call of the same buffer adds first. A buffer is known by its address,
 * element count and type, a payload by its number in the call. The residuals
 * are bounded; the one that was used longest ago goes first. Without room for
 * one (the bound, or memory) a payload is made without feedback: results are
 * then just less precise. One thread at a time, but for describe. */
#ifndef GBI_CORE_COMPRESS_H
#define GBI_CORE_COMPRESS_H

#include "codec/codec.h"
#include "plan/plan.h"
#include "transport/transport.h"

typedef struct gbi_compress gbi_compress;

/* residual_bytes: the bound; 0: no feedback. */
gb_status gbi_compress_new(gbi_codec codec, uint64_t residual_bytes,
                           gbi_compress **compress_p, gb_error *error);
void gbi_compress_free(gbi_compress *compress);
/* A call has failed: what its residuals stand for never arrived. */
void gbi_compress_drop(gbi_compress *compress);

/* An ENCODE step; buffer: where the call's elements lie. */
void gbi_compress_encode(gbi_compress *compress, const gbi_plan *plan,
                         const gbi_step *step, const void *buffer,
                         const void *src, void *payload);
/* A DECODE step: adds in float32, rounds once to what sums travel in. */
void gbi_compress_decode(const gbi_plan *plan, const gbi_step *step,
                         const void *payloads, void *dst);

/* Facts for telemetry. Any thread. */
void gbi_compress_describe(const gbi_compress *compress, gbi_fact_fn fn,
                           void *arg);
/* What of residuals is kept now, in bytes. */
uint64_t gbi_compress_residual_bytes(const gbi_compress *compress);

#endif
