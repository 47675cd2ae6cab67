/* What we call of NCCL and RCCL, declared by us: nothing of a vendor is needed
 * to build. Both libraries have one ABI, so one table does for both. tests/abi
 * holds it against the vendors' headers where those are installed; there,
 * GBI_NCCL_VENDOR_HEADER says that the types come from the header. */
#ifndef GBI_CCL_NATIVE_NCCL_ABI_H
#define GBI_CCL_NATIVE_NCCL_ABI_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

/* X(name, value) */
#define GBI_NCCL_RESULTS(X)    \
  X(ncclSuccess, 0)            \
  X(ncclUnhandledCudaError, 1) \
  X(ncclSystemError, 2)        \
  X(ncclInternalError, 3)      \
  X(ncclInvalidArgument, 4)    \
  X(ncclInvalidUsage, 5)       \
  X(ncclRemoteError, 6)        \
  X(ncclInProgress, 7)
/* From 2.30 on; before, 8 was the number of results and never returned. */
#define GBI_NCCL_TIMEOUT 8

#define GBI_NCCL_TYPES(X) \
  X(ncclInt8, 0)          \
  X(ncclUint8, 1)         \
  X(ncclInt32, 2)         \
  X(ncclUint32, 3)        \
  X(ncclInt64, 4)         \
  X(ncclUint64, 5)        \
  X(ncclFloat16, 6)       \
  X(ncclFloat32, 7)       \
  X(ncclFloat64, 8)       \
  X(ncclBfloat16, 9)
/* From 2.24 on (RCCL: 2.21.5, under other names), in the encoding that the GPU
 * knows: OCP, or FNUZ on gfx94x. */
#define GBI_NCCL_FLOAT8_E4M3 10
#define GBI_NCCL_FLOAT8_E5M2 11

#define GBI_NCCL_OPS(X) \
  X(ncclSum, 0)         \
  X(ncclProd, 1)        \
  X(ncclMax, 2)         \
  X(ncclMin, 3)         \
  X(ncclAvg, 4)

#define GBI_NCCL_RESIDENCES(X) \
  X(ncclScalarDevice, 0)       \
  X(ncclScalarHostImmediate, 1)

/* The head of ncclConfig_t and its first field: the layout of 2.14, which has
 * all that we set. A library copies as many bytes as `size` says and takes its
 * defaults for every field that is younger than `version`; fields were only
 * ever appended. So this one is understood by every library from 2.14 on, and
 * later layouts (2.17 filled `padding`) cannot be read into it. */
typedef struct gbi_nccl_config {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;
  int padding; /* undefined, to those who would look */
} gbi_nccl_config;
#define GBI_NCCL_CONFIG_MAGIC 0xcafebeefU
#define GBI_NCCL_CONFIG_VERSION 21400
#define GBI_NCCL_CONFIG_UNDEFINED INT_MIN
#define GBI_NCCL_CONFIG_INIT(blocking)                                       \
  {                                                                          \
    sizeof(gbi_nccl_config), GBI_NCCL_CONFIG_MAGIC, GBI_NCCL_CONFIG_VERSION, \
        blocking, GBI_NCCL_CONFIG_UNDEFINED                                  \
  }

#ifndef GBI_NCCL_VENDOR_HEADER

#define GBI_NCCL_ENUM(name, value) name = value,
typedef enum { GBI_NCCL_RESULTS(GBI_NCCL_ENUM) } ncclResult_t;
typedef enum { GBI_NCCL_TYPES(GBI_NCCL_ENUM) } ncclDataType_t;
/* User operations count from 5 on. */
typedef enum {
  GBI_NCCL_OPS(GBI_NCCL_ENUM) ncclMaxRedOp = 0x7fffffff
} ncclRedOp_t;
typedef enum { GBI_NCCL_RESIDENCES(GBI_NCCL_ENUM) } ncclScalarResidence_t;
#undef GBI_NCCL_ENUM

typedef struct ncclComm *ncclComm_t;
/* Passed by value: on the stack on x86-64. */
typedef struct {
  char internal[128];
} ncclUniqueId;
typedef gbi_nccl_config ncclConfig_t;
/* cudaStream_t or hipStream_t: an opaque pointer in either case. */
#define GBI_NCCL_STREAM void *

#endif

/* X(returns, name, parameters, needed): what the table of entry points has. */
#define GBI_NCCL_FUNCTIONS(X)                                                 \
  X(ncclResult_t, ncclGetVersion, (int *version), 1)                          \
  X(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * id), 1)                    \
  X(ncclResult_t, ncclCommInitRankConfig,                                     \
    (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank,                \
     ncclConfig_t *config),                                                   \
    1)                                                                        \
  X(ncclResult_t, ncclCommFinalize, (ncclComm_t comm), 1)                     \
  X(ncclResult_t, ncclCommDestroy, (ncclComm_t comm), 1)                      \
  X(ncclResult_t, ncclCommAbort, (ncclComm_t comm), 1)                        \
  X(const char *, ncclGetErrorString, (ncclResult_t result), 1)               \
  X(const char *, ncclGetLastError, (ncclComm_t comm), 0)                     \
  X(ncclResult_t, ncclCommGetAsyncError,                                      \
    (ncclComm_t comm, ncclResult_t * error), 1)                               \
  X(ncclResult_t, ncclRedOpCreatePreMulSum,                                   \
    (ncclRedOp_t * op, void *scalar, ncclDataType_t type,                     \
     ncclScalarResidence_t residence, ncclComm_t comm),                       \
    1)                                                                        \
  X(ncclResult_t, ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t comm), 1)     \
  X(ncclResult_t, ncclAllReduce,                                              \
    (const void *src, void *dst, size_t count, ncclDataType_t type,           \
     ncclRedOp_t op, ncclComm_t comm, GBI_NCCL_STREAM stream),                \
    1)                                                                        \
  X(ncclResult_t, ncclReduce,                                                 \
    (const void *src, void *dst, size_t count, ncclDataType_t type,           \
     ncclRedOp_t op, int root, ncclComm_t comm, GBI_NCCL_STREAM stream),      \
    1)                                                                        \
  X(ncclResult_t, ncclReduceScatter,                                          \
    (const void *src, void *dst, size_t dst_count, ncclDataType_t type,       \
     ncclRedOp_t op, ncclComm_t comm, GBI_NCCL_STREAM stream),                \
    1)                                                                        \
  X(ncclResult_t, ncclBroadcast,                                              \
    (const void *src, void *dst, size_t count, ncclDataType_t type, int root, \
     ncclComm_t comm, GBI_NCCL_STREAM stream),                                \
    1)                                                                        \
  X(ncclResult_t, ncclAllGather,                                              \
    (const void *src, void *dst, size_t src_count, ncclDataType_t type,       \
     ncclComm_t comm, GBI_NCCL_STREAM stream),                                \
    1)                                                                        \
  X(ncclResult_t, ncclSend,                                                   \
    (const void *src, size_t count, ncclDataType_t type, int peer,            \
     ncclComm_t comm, GBI_NCCL_STREAM stream),                                \
    1)                                                                        \
  X(ncclResult_t, ncclRecv,                                                   \
    (void *dst, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, \
     GBI_NCCL_STREAM stream),                                                 \
    1)                                                                        \
  X(ncclResult_t, ncclGroupStart, (void), 1)                                  \
  X(ncclResult_t, ncclGroupEnd, (void), 1)

/* More of the API, for the fakes and the checks. */
#define GBI_NCCL_MORE_FUNCTIONS(X)                                           \
  X(ncclResult_t, ncclCommInitRank,                                          \
    (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank), 0)           \
  X(ncclResult_t, ncclCommCount, (const ncclComm_t comm, int *count), 0)     \
  X(ncclResult_t, ncclCommCuDevice, (const ncclComm_t comm, int *device), 0) \
  X(ncclResult_t, ncclCommUserRank, (const ncclComm_t comm, int *rank), 0)   \
  X(ncclResult_t, ncclBcast,                                                 \
    (void *buffer, size_t count, ncclDataType_t type, int root,              \
     ncclComm_t comm, GBI_NCCL_STREAM stream),                               \
    0)                                                                       \
  X(ncclResult_t, ncclMemAlloc, (void **memory_p, size_t bytes), 0)          \
  X(ncclResult_t, ncclMemFree, (void *memory), 0)

#endif
