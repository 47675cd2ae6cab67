/* libnvrtc.so.13 and libhiprtc.so.6: run-time compilers that know one program,
 * the library's kernels, as it was when they were built. What they give away
 * names it and the GPU; a fake GPU of this build runs it. Anything else is a
 * compile error with a log, as are options that are not known. */
#include "device/rtc_abi.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const char gbi_kernels_source[];

#ifdef FAKE_HIPRTC
#define RTC(name) hiprtc##name
#define RTC_CODE_SIZE hiprtcGetCodeSize
#define RTC_CODE hiprtcGetCode
static const char arch_option[] = "--offload-arch=";
static const char exact_option[] = "-ffp-contract=off";
#else
#define RTC(name) nvrtc##name
#define RTC_CODE_SIZE nvrtcGetCUBINSize
#define RTC_CODE nvrtcGetCUBIN
static const char arch_option[] = "--gpu-architecture=";
static const char exact_option[] = "--fmad=false";
#endif

enum { CODE_BYTES = 128 };

struct gbi_rtc_program {
  char *source;
  char log[512];
  char code[CODE_BYTES];
  int compiled;
};

static uint64_t compiled; /* atomic */

#pragma GCC visibility push(default)
uint64_t fake_rtc_compiled(void);
gbi_rtc_result RTC(Version)(int *major, int *minor);
const char *RTC(GetErrorString)(gbi_rtc_result result);
gbi_rtc_result RTC(CreateProgram)(gbi_rtc_program *program, const char *source,
                                  const char *name, int headers_count,
                                  const char *const *headers,
                                  const char *const *names);
gbi_rtc_result RTC(CompileProgram)(gbi_rtc_program program, int count,
                                   const char *const *options);
gbi_rtc_result RTC(GetProgramLogSize)(gbi_rtc_program program, size_t *bytes);
gbi_rtc_result RTC(GetProgramLog)(gbi_rtc_program program, char *log);
gbi_rtc_result RTC_CODE_SIZE(gbi_rtc_program program, size_t *bytes);
gbi_rtc_result RTC_CODE(gbi_rtc_program program, char *code);
gbi_rtc_result RTC(DestroyProgram)(gbi_rtc_program *program);
#pragma GCC visibility pop

uint64_t fake_rtc_compiled(void) {
  return __atomic_load_n(&compiled, __ATOMIC_RELAXED);
}

gbi_rtc_result RTC(Version)(int *major, int *minor) {
  const char *says = getenv("FAKE_RTC_VERSION");
  *major = 13, *minor = 0;
  if (says) sscanf(says, "%d.%d", major, minor);
  return GBI_RTC_SUCCESS;
}

const char *RTC(GetErrorString)(gbi_rtc_result result) {
  switch (result) {
    case GBI_RTC_SUCCESS: return "SUCCESS";
    case GBI_RTC_ERROR_INVALID_OPTION: return "ERROR_INVALID_OPTION";
    case GBI_RTC_ERROR_COMPILATION: return "ERROR_COMPILATION";
    default: return "ERROR_INVALID_INPUT";
  }
}

gbi_rtc_result RTC(CreateProgram)(gbi_rtc_program *program, const char *source,
                                  const char *name, int headers_count,
                                  const char *const *headers,
                                  const char *const *names) {
  if (!program || !source || headers_count) return GBI_RTC_ERROR_INVALID_INPUT;
  *program = calloc(1, sizeof **program);
  if (!*program) abort();
  (*program)->source = strdup(source);
  return GBI_RTC_SUCCESS;
}

/* As in gpu_code.c, which is in another library. */
static uint64_t hash(const char *source) {
  uint64_t h = UINT64_C(14695981039346656037);
  for (; *source; source++)
    h = (h ^ (unsigned char)*source) * UINT64_C(1099511628211);
  return h;
}

static gbi_rtc_result fail(gbi_rtc_program program, gbi_rtc_result result,
                           const char *log) {
  snprintf(program->log, sizeof program->log, "%s\n", log);
  return result;
}

gbi_rtc_result RTC(CompileProgram)(gbi_rtc_program program, int count,
                                   const char *const *options) {
  const char *arch = NULL, *says = getenv("FAKE_RTC_FAIL");
  int exact = 0;
  for (int i = 0; i < count; i++) {
    if (!strncmp(options[i], arch_option, sizeof arch_option - 1))
      arch = options[i] + sizeof arch_option - 1;
    exact |= !strcmp(options[i], exact_option);
  }
  if (!arch || (strncmp(arch, "sm_", 3) && strncmp(arch, "gfx", 3)))
    return fail(program, GBI_RTC_ERROR_INVALID_OPTION,
                "error: invalid value for the architecture");
  if (!exact)
    return fail(program, GBI_RTC_ERROR_COMPILATION,
                "error: results would not be the host's");
  if (says) return fail(program, GBI_RTC_ERROR_COMPILATION, says);
  if (strcmp(program->source, gbi_kernels_source))
    return fail(program, GBI_RTC_ERROR_COMPILATION,
                "gpubridge.cu(1): error: this fake knows one program only");
  snprintf(program->code, sizeof program->code, "fake code %016" PRIx64 " %s",
           hash(program->source), arch);
  program->compiled = 1;
  __atomic_fetch_add(&compiled, 1, __ATOMIC_RELAXED);
  return GBI_RTC_SUCCESS;
}

gbi_rtc_result RTC(GetProgramLogSize)(gbi_rtc_program program, size_t *bytes) {
  *bytes = strlen(program->log) + 1;
  return GBI_RTC_SUCCESS;
}

gbi_rtc_result RTC(GetProgramLog)(gbi_rtc_program program, char *log) {
  memcpy(log, program->log, strlen(program->log) + 1);
  return GBI_RTC_SUCCESS;
}

gbi_rtc_result RTC_CODE_SIZE(gbi_rtc_program program, size_t *bytes) {
  if (!program->compiled) return GBI_RTC_ERROR_INVALID_PROGRAM;
  *bytes = CODE_BYTES;
  return GBI_RTC_SUCCESS;
}

gbi_rtc_result RTC_CODE(gbi_rtc_program program, char *code) {
  if (!program->compiled) return GBI_RTC_ERROR_INVALID_PROGRAM;
  memcpy(code, program->code, CODE_BYTES);
  return GBI_RTC_SUCCESS;
}

gbi_rtc_result RTC(DestroyProgram)(gbi_rtc_program *program) {
  free((*program)->source);
  free(*program);
  *program = NULL;
  return GBI_RTC_SUCCESS;
}
