/* The functions of the fake libcuda.so.1: those that device/cuda calls, and
 * what else a fake application or a fake NCCL may want. Types and constants are
 * cuda_abi.h's. */
#ifndef FAKES_CUDA_FAKE_H
#define FAKES_CUDA_FAKE_H

#include "device/cuda/cuda_abi.h"
#include "fakes/gpu.h"

struct CUmod_st;
struct CUfunc_st;
struct CUgraphExec_st;

/* CUstreamBatchMemOpParams: operation, address, value, flags, each at a
 * multiple of 8 bytes. */
typedef struct fake_cu_batch_op {
  uint64_t word[6];
} fake_cu_batch_op;

enum {
  FAKE_CU_ERROR_INVALID_CONTEXT = 201,
  FAKE_CU_ERROR_INVALID_HANDLE = 400,
  FAKE_CU_ERROR_NOT_FOUND = 500,
  FAKE_CU_ERROR_CONTEXT_IS_DESTROYED = 709,
  FAKE_CU_ERROR_CAPTURE_INVALIDATED = 901,
  FAKE_CU_ERROR_CAPTURE_IMPLICIT = 906
};

/* As GBI_CUDA_FUNCTIONS; `needed` says nothing. */
#define FAKE_CUDA_FUNCTIONS(X)                                                 \
  X(cuGetProcAddress_v2, 0,                                                    \
    (const char *, void **, int, uint64_t, unsigned int *))                    \
  X(cuGetProcAddress, 0, (const char *, void **, int, uint64_t))               \
  X(cuCtxGetCurrent, 0, (gbi_cu_context *))                                    \
  X(cuCtxSetCurrent, 0, (gbi_cu_context))                                      \
  X(cuCtxGetDevice, 0, (gbi_cu_device *))                                      \
  X(cuCtxSynchronize, 0, (void))                                               \
  X(cuCtxGetStreamPriorityRange, 0, (int *, int *))                            \
  X(cuDevicePrimaryCtxGetState, 0, (gbi_cu_device, unsigned int *, int *))     \
  X(cuMemGetAddressRange_v2, 0, (gbi_cu_address *, size_t *, gbi_cu_address))  \
  X(cuMemGetInfo_v2, 0, (size_t *, size_t *))                                  \
  X(cuMemHostGetFlags, 0, (unsigned int *, void *))                            \
  X(cuPointerGetAttribute, 0, (void *, unsigned int, gbi_cu_address))          \
  X(cuPointerSetAttribute, 0, (const void *, unsigned int, gbi_cu_address))    \
  X(cuMemGetHandleForAddressRange, 0,                                          \
    (void *, gbi_cu_address, size_t, unsigned int, unsigned long long))        \
  X(cuMemAddressReserve, 0,                                                    \
    (gbi_cu_address *, size_t, size_t, gbi_cu_address, unsigned long long))    \
  X(cuMemAddressFree, 0, (gbi_cu_address, size_t))                             \
  X(cuMemCreate, 0,                                                            \
    (unsigned long long *, size_t, const void *, unsigned long long))          \
  X(cuMemRelease, 0, (unsigned long long))                                     \
  X(cuMemMap, 0,                                                               \
    (gbi_cu_address, size_t, size_t, unsigned long long, unsigned long long))  \
  X(cuMemUnmap, 0, (gbi_cu_address, size_t))                                   \
  X(cuMemSetAccess, 0, (gbi_cu_address, size_t, const void *, size_t))         \
  X(cuMemcpyAsync, 0, (gbi_cu_address, gbi_cu_address, size_t, gbi_cu_stream)) \
  X(cuMemcpy, 0, (gbi_cu_address, gbi_cu_address, size_t))                     \
  X(cuMemcpyHtoD_v2, 0, (gbi_cu_address, const void *, size_t))                \
  X(cuMemcpyDtoH_v2, 0, (void *, gbi_cu_address, size_t))                      \
  X(cuMemcpyDtoD_v2, 0, (gbi_cu_address, gbi_cu_address, size_t))              \
  X(cuMemsetD8Async, 0,                                                        \
    (gbi_cu_address, unsigned char, size_t, gbi_cu_stream))                    \
  X(cuMemsetD32Async, 0,                                                       \
    (gbi_cu_address, unsigned int, size_t, gbi_cu_stream))                     \
  X(cuStreamCreateWithPriority, 0, (gbi_cu_stream *, unsigned int, int))       \
  X(cuStreamGetCtx, 0, (gbi_cu_stream, gbi_cu_context *))                      \
  X(cuStreamGetFlags, 0, (gbi_cu_stream, unsigned int *))                      \
  X(cuStreamGetPriority, 0, (gbi_cu_stream, int *))                            \
  X(cuStreamGetCaptureInfo_v2, 0,                                              \
    (gbi_cu_stream, unsigned int *, uint64_t *, struct CUgraph_st **,          \
     const void ***, size_t *))                                                \
  X(cuStreamBeginCapture_v2, 0, (gbi_cu_stream, unsigned int))                 \
  X(cuStreamEndCapture, 0, (gbi_cu_stream, struct CUgraph_st **))              \
  X(cuGraphInstantiateWithFlags, 0,                                            \
    (struct CUgraphExec_st **, struct CUgraph_st *, unsigned long long))       \
  X(cuGraphLaunch, 0, (struct CUgraphExec_st *, gbi_cu_stream))                \
  X(cuGraphDestroy, 0, (struct CUgraph_st *))                                  \
  X(cuGraphExecDestroy, 0, (struct CUgraphExec_st *))                          \
  X(cuUserObjectRetain, 0, (struct CUuserObject_st *, unsigned int))           \
  X(cuUserObjectRelease, 0, (struct CUuserObject_st *, unsigned int))          \
  X(cuEventSynchronize, 0, (gbi_cu_event))                                     \
  X(cuEventElapsedTime_v2, 0, (float *, gbi_cu_event, gbi_cu_event))           \
  X(cuEventElapsedTime, 0, (float *, gbi_cu_event, gbi_cu_event))              \
  X(cuStreamWaitValue32_v2, 0,                                                 \
    (gbi_cu_stream, gbi_cu_address, uint32_t, unsigned int))                   \
  X(cuStreamWriteValue32_v2, 0,                                                \
    (gbi_cu_stream, gbi_cu_address, uint32_t, unsigned int))                   \
  X(cuStreamBatchMemOp_v2, 0,                                                  \
    (gbi_cu_stream, unsigned int, fake_cu_batch_op *, unsigned int))           \
  X(cuStreamWaitValue32, 0,                                                    \
    (gbi_cu_stream, gbi_cu_address, uint32_t, unsigned int))                   \
  X(cuStreamWaitValue64, 0,                                                    \
    (gbi_cu_stream, gbi_cu_address, uint64_t, unsigned int))                   \
  X(cuStreamWriteValue32, 0,                                                   \
    (gbi_cu_stream, gbi_cu_address, uint32_t, unsigned int))                   \
  X(cuStreamWriteValue64, 0,                                                   \
    (gbi_cu_stream, gbi_cu_address, uint64_t, unsigned int))                   \
  X(cuStreamBatchMemOp, 0,                                                     \
    (gbi_cu_stream, unsigned int, fake_cu_batch_op *, unsigned int))           \
  X(cuLaunchHostFunc, 0, (gbi_cu_stream, void (*)(void *), void *))            \
  X(cuModuleLoadDataEx, 0,                                                     \
    (struct CUmod_st **, const void *, unsigned int, unsigned int *, void **)) \
  X(cuFlushGPUDirectRDMAWrites, 0, (unsigned int, unsigned int))

#pragma GCC visibility push(default)
#define FAKE_DECLARE(name, needed, arguments) gbi_cu_result name arguments;
GBI_CUDA_FUNCTIONS(FAKE_DECLARE)
FAKE_CUDA_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE
#pragma GCC visibility pop

/* cuda.c, for cuda_work.c */
/* At the top of a function: what it must return at once, or 0. `device_p` gets
 * the current context's device, where not NULL. */
gbi_cu_result fake_cu_enter(const char *function, const void *caller,
                            int *device_p);
gbi_cu_result fake_cu_primary(int device, gbi_cu_context *context_p);

#define FAKE_CU_ENTER(device_p)                                         \
  do {                                                                  \
    gbi_cu_result fake_code_ =                                          \
        fake_cu_enter(__func__, __builtin_return_address(0), device_p); \
    if (fake_code_) return fake_code_;                                  \
  } while (0)

#endif
