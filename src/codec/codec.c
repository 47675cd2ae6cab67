#include "codec/codec.h"

#include "base/cpu.h"
#include "codec/kernels.h"

#include <stdatomic.h>
#include <string.h>

static const char *const names[GBI_CODECS] = {"off", "bf16", "fp8"};

const char *gbi_codec_name(int codec) {
  return codec >= 0 && codec < GBI_CODECS ? names[codec] : NULL;
}

gbi_codec gbi_codec_find(const char *name) {
  for (int i = 0; i < GBI_CODECS; i++)
    if (!strcmp(names[i], name)) return (gbi_codec)i;
  return GBI_CODEC_NONE;
}

uint64_t gbi_codec_bytes(gbi_codec codec, uint64_t count) {
  if (codec == GBI_CODEC_BF16) return count * 2;
  return count + (count + GBI_CODEC_BLOCK - 1) / GBI_CODEC_BLOCK;
}

/* ---- Choice ---- */

static bool runs_here(const gbi_codec_kernels *kernels) {
#if defined(__x86_64__)
  if (kernels == &gbi_codec_avx512bf16)
    return gbi_cpu_has_avx512() && __builtin_cpu_supports("avx512bf16");
  if (kernels == &gbi_codec_avx512) return gbi_cpu_has_avx512();
  if (kernels == &gbi_codec_avx2) return __builtin_cpu_supports("avx2");
#endif
  return true;
}

/* Best first. */
static const gbi_codec_kernels *const variants[] = {
#if defined(__x86_64__)
    &gbi_codec_avx512bf16,
    &gbi_codec_avx512,
    &gbi_codec_avx2,
#elif defined(__aarch64__)
    &gbi_codec_neon,
#endif
    &gbi_codec_portable,
};

/* Written once or by tests; any thread that finds NULL computes the same. */
static _Atomic(const gbi_codec_kernels *) chosen;

static const gbi_codec_kernels *kernels_in_use(void) {
  const gbi_codec_kernels *kernels =
      atomic_load_explicit(&chosen, memory_order_acquire);
  for (size_t i = 0; !kernels; i++)
    if (runs_here(variants[i])) {
      kernels = variants[i];
      atomic_store_explicit(&chosen, kernels, memory_order_release);
    }
  return kernels;
}

const char *gbi_codec_kernels_name(void) {
  return kernels_in_use()->name;
}

bool gbi_codec_kernels_select(const char *name) {
  for (size_t i = 0; i < GBI_COUNT(variants); i++)
    if (!strcmp(variants[i]->name, name) && runs_here(variants[i])) {
      atomic_store_explicit(&chosen, variants[i], memory_order_release);
      return true;
    }
  return false;
}

/* ---- The processor's mode ---- */

/* A program may have told its thread to flush denormals or to round elsewhere
 * (torch.set_flush_denormal); a payload must not depend on it. */
#if defined(__x86_64__)
typedef unsigned int fp_mode;
static fp_mode enter_default_mode(void) {
  fp_mode mode = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(0x1f80);
  return mode;
}
static void leave_default_mode(fp_mode mode) {
  __builtin_ia32_ldmxcsr(mode);
}
#elif defined(__aarch64__)
typedef uint64_t fp_mode;
static fp_mode enter_default_mode(void) {
  fp_mode mode, usual = 0;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode) : : "memory");
  __asm__ volatile("msr fpcr, %0" : : "r"(usual) : "memory");
  return mode;
}
static void leave_default_mode(fp_mode mode) {
  __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory");
}
#else
typedef int fp_mode;
static fp_mode enter_default_mode(void) {
  return 0;
}
static void leave_default_mode(fp_mode mode) {
  (void)mode;
}
#endif

/* ---- The calls ---- */

static const gbi_codec_set *set_of(gbi_codec codec) {
  return &kernels_in_use()->sets[codec];
}

void gbi_codec_encode(gbi_codec codec, void *payload, const float *values,
                      size_t count) {
  fp_mode mode = enter_default_mode();
  set_of(codec)->encode(payload, values, count);
  leave_default_mode(mode);
}

float gbi_codec_encode_feedback(gbi_codec codec, void *payload,
                                const float *values, float *residual,
                                size_t count) {
  fp_mode mode = enter_default_mode();
  float most = set_of(codec)->encode_feedback(payload, values, residual, count);
  leave_default_mode(mode);
  return most;
}

void gbi_codec_decode(gbi_codec codec, float *values, const void *payload,
                      size_t count) {
  fp_mode mode = enter_default_mode();
  set_of(codec)->decode(values, payload, count);
  leave_default_mode(mode);
}

void gbi_codec_add(gbi_codec codec, float *sums, const void *payload,
                   size_t count) {
  fp_mode mode = enter_default_mode();
  set_of(codec)->add(sums, payload, count);
  leave_default_mode(mode);
}
