/* device: what we use of the run-time compilers' ABI, NVRTC and HIPRTC,
 * declared by us: no header of a vendor is needed to build. Both have the same
 * functions under names that begin with nvrtc or hiprtc; only that which gives
 * the code away is called otherwise. tests/device compares this with the
 * vendors' headers, the fakes implement it. */
#ifndef GBI_DEVICE_RTC_ABI_H
#define GBI_DEVICE_RTC_ABI_H

#include <stddef.h>

typedef unsigned int gbi_rtc_result; /* nvrtcResult, hiprtcResult */

enum {
  GBI_RTC_SUCCESS = 0,
  GBI_RTC_ERROR_INVALID_INPUT = 3,
  GBI_RTC_ERROR_INVALID_PROGRAM = 4,
  GBI_RTC_ERROR_INVALID_OPTION = 5,
  GBI_RTC_ERROR_COMPILATION = 6
};

/* X(name, arguments); all return a result. `program`: nvrtcProgram; `texts`:
 * const char *const *, but const char ** in older headers of HIP. */
#define GBI_RTC_FUNCTIONS(X, program, texts)                                   \
  X(Version, (int *, int *))                                                   \
  X(CreateProgram, (program *, const char *, const char *, int, texts, texts)) \
  X(CompileProgram, (program, int, texts))                                     \
  X(GetProgramLogSize, (program, size_t *))                                    \
  X(GetProgramLog, (program, char *))                                          \
  X(DestroyProgram, (program *))
/* GetCUBINSize and GetCUBIN of NVIDIA, GetCodeSize and GetCode of AMD. */
#define GBI_RTC_CODE_FUNCTIONS(X, program) \
  X(CodeSize, (program, size_t *))         \
  X(Code, (program, char *))

typedef struct gbi_rtc_program *gbi_rtc_program;

typedef struct gbi_rtc_api {
#define GBI_RTC_SLOT(name, arguments) gbi_rtc_result(*name) arguments;
  GBI_RTC_FUNCTIONS(GBI_RTC_SLOT, gbi_rtc_program, const char *const *)
  GBI_RTC_CODE_FUNCTIONS(GBI_RTC_SLOT, gbi_rtc_program)
#undef GBI_RTC_SLOT
  const char *(*GetErrorString)(gbi_rtc_result);
} gbi_rtc_api;

#endif
