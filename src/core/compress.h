/* core/compress: what a leader does to sums before and after the bridge, when
 * compression is on: payloads out of them, with error feedback, and sums out of
 * the payloads of all leaders.
 *
 * One residual per payload (core/residuals.h). One thread at a time, but for
 * describe and note. */
#ifndef GBI_CORE_COMPRESS_H
#define GBI_CORE_COMPRESS_H

#include "codec/codec.h"
#include "core/residuals.h"
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

/* ENCODE steps that a GPU does: the name of what it keeps, that it did one, and
 * what it keeps (NULL: nothing any more). Any thread. */
gbi_residual_key gbi_compress_key(const gbi_plan *plan, const gbi_step *step,
                                  const void *buffer);
void gbi_compress_note(gbi_compress *compress, const gbi_plan *plan,
                       const gbi_step *step);
void gbi_compress_watch(gbi_compress *compress, const gbi_residuals *others);

/* Facts for telemetry. Any thread. */
void gbi_compress_describe(const gbi_compress *compress, gbi_fact_fn fn,
                           void *arg);
/* What of residuals is kept now on the host, in bytes. */
uint64_t gbi_compress_residual_bytes(const gbi_compress *compress);

#endif
