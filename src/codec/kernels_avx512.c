#if defined(__x86_64__)
#include "codec/avx512.h"

#define KERNELS gbi_codec_avx512
#define KERNELS_NAME "avx512"
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#include "codec/kernels.inc.h"
#endif
