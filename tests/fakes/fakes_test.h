/* What the tests of the CUDA fake share: shorthands, and children that are
 * meant to die. Included once a test file. */
#ifndef FAKES_FAKES_TEST_H
#define FAKES_FAKES_TEST_H

#include "fakes/cuda_fake.h"
#include "fakes/dying.h"
#include "harness/gb_test.h"

#include <stdlib.h>
#include <time.h>

#define CU(call) GB_CHECK_INT((call), GBI_CU_SUCCESS)

__attribute__((unused)) static void start(void) {
  gbi_cu_context context;
  CU(cuInit(0));
  CU(cuDevicePrimaryCtxRetain(&context, 0));
  CU(cuCtxPushCurrent_v2(context));
}

__attribute__((unused)) static gbi_cu_stream new_stream(void) {
  gbi_cu_stream stream;
  CU(cuStreamCreate(&stream, GBI_CU_STREAM_NON_BLOCKING));
  return stream;
}

__attribute__((unused)) static gbi_cu_event new_event(void) {
  gbi_cu_event event;
  CU(cuEventCreate(&event, GBI_CU_EVENT_DISABLE_TIMING));
  return event;
}

__attribute__((unused)) static gbi_cu_address new_memory(size_t bytes) {
  gbi_cu_address address;
  CU(cuMemAlloc_v2(&address, bytes));
  return address;
}

__attribute__((unused)) static void *new_pinned(size_t bytes) {
  void *host;
  CU(cuMemHostAlloc(&host, bytes,
                    GBI_CU_HOST_PORTABLE | GBI_CU_HOST_DEVICEMAP));
  return host;
}

__attribute__((unused)) static gbi_cu_address on_device(const void *host) {
  return (uintptr_t)host;
}

/* The stream goes no further until the flag is raised to `value`. */
__attribute__((unused)) static void gate(gbi_cu_stream stream, uint64_t *flag,
                                         uint64_t value) {
  CU(cuStreamWaitValue64_v2(stream, on_device(flag), value,
                            GBI_CU_WAIT_VALUE_GEQ));
}

__attribute__((unused)) static void raise_flag(uint64_t *flag, uint64_t value) {
  __atomic_store_n(flag, value, __ATOMIC_RELEASE);
}

/* Until the GPU has raised it; a case's deadline ends it otherwise. */
__attribute__((unused)) static void await(const uint64_t *flag,
                                          uint64_t value) {
  struct timespec nap = {0, 200000};
  while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) < value) nanosleep(&nap, NULL);
}

__attribute__((unused)) static fake_gpu_counts counted(void) {
  fake_gpu_counts counts;
  fake_gpu_count(&counts);
  return counts;
}

#endif
