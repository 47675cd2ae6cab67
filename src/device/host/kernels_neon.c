#if defined(__aarch64__)
#include <arm_neon.h>

#define KERNELS gbi_kernels_neon
#define KERNELS_NAME "neon"
#define VEC 16
#define TARGET
#define F16_TO_F32(out, in)                 \
  do {                                      \
    float16x4_t f16_in;                     \
    memcpy(&f16_in, in, sizeof f16_in);     \
    *(out) = (vec_f32)vcvt_f32_f16(f16_in); \
  } while (0)
#define F32_TO_F16(out, in)                                   \
  do {                                                        \
    float16x4_t f16_out = vcvt_f16_f32((float32x4_t) * (in)); \
    memcpy(out, &f16_out, sizeof f16_out);                    \
  } while (0)
#include "device/host/kernels.inc.h"
#endif
