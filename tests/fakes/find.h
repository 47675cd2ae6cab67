/* Where the fakes of this build are, for tests that open them by the settings
 * GPUBRIDGE_*_LIB. */
#ifndef FAKES_FIND_H
#define FAKES_FIND_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/gb_test.h"

/* They lie beside this executable's folder. */
static inline void fake_path(const char *file, char *path, size_t bytes) {
  char self[512];
  ssize_t got = readlink("/proc/self/exe", self, sizeof self - 1);
  GB_CHECK(got > 0);
  self[got] = 0;
  *strrchr(self, '/') = 0;
  *strrchr(self, '/') = 0;
  snprintf(path, bytes, "%s/lib/fakes/%s", self, file);
}

/* CUDA's driver, NCCL, and RCCL, which brings HIP's runtime; the run-time
 * compilers, and a folder for what they compile. */
static inline void name_fakes(void) {
  static const char *const names[][2] = {
      {"GPUBRIDGE_CUDA_LIB", "cuda/libcuda.so.1"},
      {"GPUBRIDGE_NCCL_LIB", "cuda/libnccl.so.2"},
      {"GPUBRIDGE_RCCL_LIB", "hip/librccl.so.1"},
      {"GPUBRIDGE_NVRTC_LIB", "cuda/libnvrtc.so.13"},
      {"GPUBRIDGE_HIPRTC_LIB", "hip/libhiprtc.so.6"},
      {"GPUBRIDGE_CACHE_DIR", "cache"},
  };
  char path[700];
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    fake_path(names[i][1], path, sizeof path);
    setenv(names[i][0], path, 1);
  }
}

/* The adapter that is not there, for every rank of the case. */
static inline void name_fake_adapter(void) {
  char path[700];
  fake_path("rdma/libibverbs.so.1", path, sizeof path);
  setenv("GPUBRIDGE_VERBS_LIB", path, 1);
}

#endif
