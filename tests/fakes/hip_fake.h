/* The functions of the fake libamdhip64.so.6: those that device/hip calls, and
 * what else a fake application or a fake RCCL may want. Types and constants are
 * hip_abi.h's. */
#ifndef FAKES_HIP_FAKE_H
#define FAKES_HIP_FAKE_H

#include "device/hip/hip_abi.h"
#include "fakes/gpu.h"

struct hipGraphExec;

enum {
  FAKE_HIP_HOST_NON_COHERENT = (int)0x80000000,
  FAKE_HIP_SIGNAL_MEMORY = 2 /* of hipExtMallocWithFlags */
};

/* As GBI_HIP_FUNCTIONS; `needed` says nothing. */
#define FAKE_HIP_FUNCTIONS(X)                                              \
  X(hipInit, 0, (unsigned int))                                            \
  X(hipRuntimeGetVersion, 0, (int *))                                      \
  X(hipPeekAtLastError, 0, (void))                                         \
  X(hipDeviceGet, 0, (gbi_hip_device *, int))                              \
  X(hipDeviceSynchronize, 0, (void))                                       \
  X(hipMemGetInfo, 0, (size_t *, size_t *))                                \
  X(hipMemGetAddressRange, 0, (void **, size_t *, void *))                 \
  X(hipExtMallocWithFlags, 0, (void **, size_t, unsigned int))             \
  X(hipMemcpy, 0, (void *, const void *, size_t, unsigned int))            \
  X(hipMemset, 0, (void *, int, size_t))                                   \
  X(hipMemsetAsync, 0, (void *, int, size_t, gbi_hip_stream))              \
  X(hipStreamCreate, 0, (gbi_hip_stream *))                                \
  X(hipExtStreamCreateWithCUMask, 0,                                       \
    (gbi_hip_stream *, uint32_t, const uint32_t *))                        \
  X(hipStreamGetFlags, 0, (gbi_hip_stream, unsigned int *))                \
  X(hipStreamGetPriority, 0, (gbi_hip_stream, int *))                      \
  X(hipStreamGetDevice, 0, (gbi_hip_stream, gbi_hip_device *))             \
  X(hipStreamBeginCapture, 0, (gbi_hip_stream, unsigned int))              \
  X(hipStreamEndCapture, 0, (gbi_hip_stream, struct ihipGraph **))         \
  X(hipStreamGetCaptureInfo, 0,                                            \
    (gbi_hip_stream, unsigned int *, unsigned long long *))                \
  X(hipUserObjectRelease, 0, (struct hipUserObject *, unsigned int))       \
  X(hipGraphInstantiate, 0,                                                \
    (struct hipGraphExec **, struct ihipGraph *, void **, char *, size_t)) \
  X(hipGraphLaunch, 0, (struct hipGraphExec *, gbi_hip_stream))            \
  X(hipGraphDestroy, 0, (struct ihipGraph *))                              \
  X(hipGraphExecDestroy, 0, (struct hipGraphExec *))                       \
  X(hipEventCreate, 0, (gbi_hip_event *))                                  \
  X(hipEventSynchronize, 0, (gbi_hip_event))                               \
  X(hipEventElapsedTime, 0, (float *, gbi_hip_event, gbi_hip_event))       \
  X(hipStreamWaitValue32, 0,                                               \
    (gbi_hip_stream, void *, uint32_t, unsigned int, uint32_t))            \
  X(hipStreamWriteValue32, 0,                                              \
    (gbi_hip_stream, void *, uint32_t, unsigned int))                      \
  X(hipLaunchHostFunc, 0, (gbi_hip_stream, void (*)(void *), void *))

#pragma GCC visibility push(default)
#define FAKE_DECLARE(name, needed, arguments) gbi_hip_result name arguments;
GBI_HIP_FUNCTIONS(FAKE_DECLARE)
FAKE_HIP_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE
const char *hipGetErrorName(gbi_hip_result error);
const char *hipGetErrorString(gbi_hip_result error);
#pragma GCC visibility pop

/* hip.c, for hip_work.c: the calling thread's device, and its last error. */
int fake_hip_device(void);
gbi_hip_result fake_hip_result(unsigned int code);
unsigned int fake_hip_enter(const char *function, const void *caller);

#define FAKE_HIP_ENTER()                                       \
  do {                                                         \
    unsigned int fake_code_ =                                  \
        fake_hip_enter(__func__, __builtin_return_address(0)); \
    if (fake_code_) return fake_hip_result(fake_code_);        \
  } while (0)
#define FAKE_HIP_DO(call)                    \
  do {                                       \
    FAKE_HIP_ENTER();                        \
    return fake_hip_result(fake_code(call)); \
  } while (0)

#endif
