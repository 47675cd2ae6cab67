/* A libcuda that lacks cuEventQuery, or a libamdhip64 of ROCm 5.7: nothing in
 * them does anything. */
#include "device/cuda/cuda_abi.h"
#include "device/hip/hip_abi.h"

#ifdef OLD_cuda
#define cuEventQuery another_function
#define NOTHING(name, needed, arguments) \
  gbi_cu_result name(void);              \
  gbi_cu_result name(void) {             \
    return GBI_CU_SUCCESS;               \
  }
GBI_CUDA_FUNCTIONS(NOTHING)
#else
#define hipDriverGetVersion another_function
#define NOTHING(name, needed, arguments) \
  gbi_hip_result name(void);             \
  gbi_hip_result name(void) {            \
    return GBI_HIP_SUCCESS;              \
  }
GBI_HIP_FUNCTIONS(NOTHING)
NOTHING(hipGetErrorName, 1, )
NOTHING(hipGetErrorString, 1, )
#undef hipDriverGetVersion
gbi_hip_result hipDriverGetVersion(int *version);
gbi_hip_result hipDriverGetVersion(int *version) {
  *version = 50731921;
  return GBI_HIP_SUCCESS;
}
#endif
