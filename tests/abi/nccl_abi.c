/* Compiles where nccl.h or rccl.h is installed (ABI_RCCL): our declarations
 * against the vendor's, function by function and number by number. Never run.
 */
#ifdef ABI_RCCL
#define __HIP_PLATFORM_AMD__
#include <rccl/rccl.h>
#define GBI_NCCL_STREAM struct ihipStream_t *
#else
#include <nccl.h>
#define GBI_NCCL_STREAM struct CUstream_st *
#endif

#define GBI_NCCL_VENDOR_HEADER
#include "ccl/native/nccl_abi.h"

#define SAME_FUNCTION(returns, name, parameters, needed)                      \
  _Static_assert(                                                             \
      __builtin_types_compatible_p(__typeof__(&name), returns(*) parameters), \
      #name);                                                                 \
  _Static_assert(__builtin_types_compatible_p(__typeof__(&p##name),           \
                                              returns(*) parameters),         \
                 "p" #name);
GBI_NCCL_FUNCTIONS(SAME_FUNCTION)
GBI_NCCL_MORE_FUNCTIONS(SAME_FUNCTION)

#define SAME_NUMBER(name, value) _Static_assert(name == value, #name);
GBI_NCCL_RESULTS(SAME_NUMBER)
GBI_NCCL_TYPES(SAME_NUMBER)
GBI_NCCL_OPS(SAME_NUMBER)
GBI_NCCL_RESIDENCES(SAME_NUMBER)

/* RCCL before 2.24 calls them otherwise. */
#if NCCL_VERSION_CODE >= 22400
_Static_assert(ncclFloat8e4m3 == GBI_NCCL_FLOAT8_E4M3, "e4m3");
_Static_assert(ncclFloat8e5m2 == GBI_NCCL_FLOAT8_E5M2, "e5m2");
#elif defined(RCCL_FLOAT8)
_Static_assert(ncclFp8E4M3 == GBI_NCCL_FLOAT8_E4M3, "e4m3");
_Static_assert(ncclFp8E5M2 == GBI_NCCL_FLOAT8_E5M2, "e5m2");
#endif
#if NCCL_VERSION_CODE >= 23000 && !defined(ABI_RCCL)
_Static_assert(ncclTimeout == GBI_NCCL_TIMEOUT, "timeout");
#else
_Static_assert(ncclNumResults >= GBI_NCCL_TIMEOUT, "results");
#endif

/* Enums travel as ints, the id as 128 bytes by value. */
_Static_assert(sizeof(ncclResult_t) == 4 && sizeof(ncclDataType_t) == 4 &&
                   sizeof(ncclRedOp_t) == 4 &&
                   sizeof(ncclScalarResidence_t) == 4,
               "enums");
_Static_assert(sizeof(ncclUniqueId) == 128 && _Alignof(ncclUniqueId) == 1 &&
                   sizeof(((ncclUniqueId *)0)->internal) == 128,
               "id");

/* The head of the configuration, and that what we leave out was appended. */
#define SAME_PLACE(field)                                                  \
  _Static_assert(                                                          \
      offsetof(gbi_nccl_config, field) == offsetof(ncclConfig_t, field) && \
          sizeof(((gbi_nccl_config *)0)->field) ==                         \
              sizeof(((ncclConfig_t *)0)->field),                          \
      #field)
SAME_PLACE(size);
SAME_PLACE(magic);
SAME_PLACE(version);
SAME_PLACE(blocking);
_Static_assert(sizeof(gbi_nccl_config) == 24 &&
                   sizeof(ncclConfig_t) >= sizeof(gbi_nccl_config),
               "config");
static const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
_Static_assert(__builtin_types_compatible_p(__typeof__(theirs.magic),
                                            unsigned int),
               "magic");
_Static_assert(NCCL_VERSION_CODE >= GBI_NCCL_CONFIG_VERSION, "config version");
_Static_assert(NCCL_CONFIG_UNDEF_INT == GBI_NCCL_CONFIG_UNDEFINED, "undefined");
#ifdef NCCL_API_MAGIC
_Static_assert(NCCL_API_MAGIC == GBI_NCCL_CONFIG_MAGIC, "magic");
#endif

/* Used, so that nothing is left out quietly. */
const void *abi_config(void);
const void *abi_config(void) {
  return &theirs;
}
