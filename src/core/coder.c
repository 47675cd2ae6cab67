#include "core/coder.h"

/* ---- residuals ---- */

/* A sum of no payloads is zeros. */
static float *get_values(void *arg, uint64_t count) {
  const gbi_coder *c = arg;
  void *memory;
  if (c->device->ops->memory(c->device, count * sizeof(float), &memory, NULL) !=
      GB_OK)
    return NULL;
  if (gbi_kernel_decode(c->kernels, GBI_CODEC_BF16, memory, memory, count, 0, 0,
                        c->stream, NULL) == GB_OK)
    return memory;
  c->device->ops->free_memory(c->device, memory);
  return NULL;
}

/* Kernels that were enqueued may still use them. */
static void give_values(void *arg, float *values) {
  const gbi_coder *c = arg;
  if (c->rest) (void)c->rest(c->arg);
  c->device->ops->free_memory(c->device, values);
}

gb_status gbi_coder_open(gbi_coder *coder, gbi_compress *compress,
                         uint64_t most, gb_error *error) {
  gbi_residual_memory memory = {
      .get = get_values, .give = give_values, .arg = coder};
  if (!coder->kernels) return GB_OK;
  GBI_TRY(gbi_residuals_new(most, &memory, &coder->residuals, error));
  coder->compress = compress;
  gbi_compress_watch(compress, coder->residuals);
  return GB_OK;
}

void gbi_coder_close(gbi_coder *coder) {
  coder->rest = NULL;
  gbi_residuals_free(coder->residuals);
  coder->residuals = NULL;
}

/* ---- steps ---- */

static gb_dtype travels_in(const gbi_plan *plan, const gbi_step *step) {
  return step->wide ? gbi_coll_travel_dtype(&plan->coll)
                    : (gb_dtype)plan->coll.dtype;
}

static bool is_half(gb_dtype dtype) {
  return dtype == GB_FLOAT16 || dtype == GB_BFLOAT16;
}

static bool codes(const gbi_step *step) {
  return step->resource == GBI_ON_RANK &&
         (step->verb == GBI_DO_ENCODE || step->verb == GBI_DO_DECODE);
}

bool gbi_coder_takes(const gbi_coder *coder, const gbi_plan *plan,
                     const gbi_step *step) {
  gb_dtype dtype = travels_in(plan, step);
  if (!coder->compress || !codes(step)) return false;
  return dtype == GB_FLOAT32 || is_half(dtype);
}

/* Half types are made float32 first, and back. */
uint64_t gbi_coder_room(const gbi_plan *plan) {
  uint64_t most = 0;
  for (uint32_t i = 0; i < plan->count; i++) {
    const gbi_step *step = &plan->steps[i];
    if (codes(step) && is_half(travels_in(plan, step)))
      most = GBI_MAX(most, step->count);
  }
  return most * sizeof(float);
}

uint32_t gbi_coder_payloads(const gbi_plan *plan) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < plan->count; i++)
    if (codes(&plan->steps[i]) && plan->steps[i].verb == GBI_DO_ENCODE)
      count = GBI_MAX(count, plan->steps[i].number + 1);
  return count;
}

void gbi_coder_prepare(gbi_coder *coder, const gbi_plan *plan,
                       const void *buffer, float **residuals) {
  if (!coder->residuals) return;
  gbi_residuals_begin(coder->residuals);
  for (uint32_t i = 0; i < plan->count; i++) {
    const gbi_step *step = &plan->steps[i];
    if (step->verb != GBI_DO_ENCODE || !gbi_coder_takes(coder, plan, step))
      continue;
    gbi_residual_key key = gbi_compress_key(plan, step, buffer);
    residuals[step->number] = gbi_residuals_find(coder->residuals, &key);
  }
}

static gb_status encode(const gbi_coder *c, const gbi_plan *plan,
                        const gbi_step *step, const void *src, void *dst,
                        void *room, float *residual, gbi_stream stream,
                        gb_error *error) {
  gb_dtype dtype = travels_in(plan, step);
  if (is_half(dtype)) {
    GBI_TRY(gbi_kernel_load(c->kernels, dtype, room, src, step->count, 1,
                            stream, error));
    src = room;
  }
  gbi_compress_note(c->compress, plan, step);
  return gbi_kernel_encode(c->kernels, step->codec, dst, src, residual,
                           step->count, stream, error);
}

static gb_status decode(const gbi_coder *c, const gbi_plan *plan,
                        const gbi_step *step, const void *src, void *dst,
                        void *room, gbi_stream stream, gb_error *error) {
  gb_dtype dtype = travels_in(plan, step);
  uint64_t row = gbi_codec_bytes((gbi_codec)step->codec, step->count);
  float *values = is_half(dtype) ? room : dst;
  GBI_TRY(gbi_kernel_decode(c->kernels, step->codec, values, src, step->count,
                            step->rows, row, stream, error));
  if (values == dst) return GB_OK;
  return gbi_kernel_store(c->kernels, dtype, dst, values, step->count, 1,
                          stream, error);
}

gb_status gbi_coder_run(const gbi_coder *coder, const gbi_plan *plan,
                        const gbi_step *step, const void *src, void *dst,
                        void *room, float *residual, gbi_stream stream,
                        gb_error *error) {
  if (step->verb == GBI_DO_ENCODE)
    return encode(coder, plan, step, src, dst, room, residual, stream, error);
  return decode(coder, plan, step, src, dst, room, stream, error);
}
