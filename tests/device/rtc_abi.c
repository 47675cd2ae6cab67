/* Compiles where nvrtc.h or hip/hiprtc.h is installed: our declarations of the
 * run-time compilers against the vendors' own. Never run. */
#include "device/rtc_abi.h"

#ifdef ABI_HIPRTC
#define __HIP_PLATFORM_AMD__ 1
#include <hip/hiprtc.h>
#define RTC(name) hiprtc##name
#define RTC_CONSTANT(name) HIPRTC_##name
/* Older headers lack a const in them. */
typedef __typeof__(*(const char **)0) *texts;
#else
#include <nvrtc.h>
#define RTC(name) nvrtc##name
#define RTC_CONSTANT(name) NVRTC_##name
typedef const char *const *texts;
#endif

typedef RTC(Program) program;

#define SAME_FUNCTION(name, arguments)                                     \
  _Static_assert(__builtin_types_compatible_p(gbi_rtc_result(*) arguments, \
                                              __typeof__(&RTC(name))),     \
                 #name);
GBI_RTC_FUNCTIONS(SAME_FUNCTION, program, texts)
#ifndef ABI_HIPRTC
#define nvrtcCodeSize nvrtcGetCUBINSize
#define nvrtcCode nvrtcGetCUBIN
#else
#define hiprtcCodeSize hiprtcGetCodeSize
#define hiprtcCode hiprtcGetCode
#endif
GBI_RTC_CODE_FUNCTIONS(SAME_FUNCTION, program)
_Static_assert(__builtin_types_compatible_p(const char *(*)(gbi_rtc_result),
                                            __typeof__(&RTC(GetErrorString))),
               "GetErrorString");

#define SAME(name) \
  _Static_assert((int)GBI_RTC_##name == (int)RTC_CONSTANT(name), #name)
SAME(SUCCESS);
SAME(ERROR_INVALID_INPUT);
SAME(ERROR_INVALID_PROGRAM);
SAME(ERROR_INVALID_OPTION);
SAME(ERROR_COMPILATION);
