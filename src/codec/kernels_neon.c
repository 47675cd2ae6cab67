#if defined(__aarch64__)
#include <arm_neon.h>

#define KERNELS gbi_codec_neon
#define KERNELS_NAME "neon"
#define VEC 16
#define TARGET
#define HALVES(a, b) \
  vcombine_u16(vmovn_u32((uint32x4_t)(a)), vmovn_u32((uint32x4_t)(b)))
#define NARROW16(out, v)                                                      \
  do {                                                                        \
    uint16x8_t low_ = HALVES((v)[0], (v)[1]), high_ = HALVES((v)[2], (v)[3]); \
    STORE(out, low_);                                                         \
    STORE((out) + 16, high_);                                                 \
  } while (0)
#define NARROW8(out, v)                                                 \
  do {                                                                  \
    uint8x16_t bytes_ = vcombine_u8(vmovn_u16(HALVES((v)[0], (v)[1])),  \
                                    vmovn_u16(HALVES((v)[2], (v)[3]))); \
    STORE(out, bytes_);                                                 \
  } while (0)
#define WIDEN16(v, in)                   \
  EACH(k_) {                             \
    uint16x4_t half_;                    \
    LOAD(half_, (in) + k_ * 8);          \
    (v)[k_] = (vec_u32)vmovl_u16(half_); \
  }
#define WIDEN8(v, in)                                  \
  do {                                                 \
    uint8x16_t bytes_;                                 \
    LOAD(bytes_, in);                                  \
    uint16x8_t low_ = vmovl_u8(vget_low_u8(bytes_));   \
    uint16x8_t high_ = vmovl_u8(vget_high_u8(bytes_)); \
    (v)[0] = (vec_u32)vmovl_u16(vget_low_u16(low_));   \
    (v)[1] = (vec_u32)vmovl_u16(vget_high_u16(low_));  \
    (v)[2] = (vec_u32)vmovl_u16(vget_low_u16(high_));  \
    (v)[3] = (vec_u32)vmovl_u16(vget_high_u16(high_)); \
  } while (0)
#define CHOOSE(mask, a, b) \
  (vec_u32) vbslq_u32((uint32x4_t)(mask), (uint32x4_t)(a), (uint32x4_t)(b))
#define LARGER(a, b) (vec_u32) vmaxq_u32((uint32x4_t)(a), (uint32x4_t)(b))
#include "codec/kernels.inc.h"
#endif
