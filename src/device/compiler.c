#include "device/compiler.h"

#include "base/log.h"
#include "base/memory.h"
#include "device/cache.h"
#include "device/library.h"
#include "device/rtc_abi.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

const gbi_setting gbi_compiler_settings[] = {
    [GBI_SETTING_KERNELS] =
        {.name = "GPUBRIDGE_KERNELS",
         .default_value = "auto",
         .kind = GBI_SETTING_CHOICE,
         .choices = "auto|require|off|0|false|no",
         .help = "kernels of our own on GPUs, for what the vendor's library "
                 "cannot reduce: auto, off, require (no job without them)"},
    [GBI_SETTING_CACHE_DIR] =
        {.name = "GPUBRIDGE_CACHE_DIR",
         .default_value = "",
         .kind = GBI_SETTING_TEXT,
         .help = "folder for compiled kernels; unset: gpubridge in the user's "
                 "cache folder"},
};
const int gbi_compiler_settings_count = GBI_COUNT(gbi_compiler_settings);

gbi_kernels_wanted gbi_compiler_wanted(void) {
  gbi_value value;
  (void)gbi_setting_read(&gbi_compiler_settings[GBI_SETTING_KERNELS], &value,
                         NULL);
  if (!strcmp(value.text, "auto")) return GBI_KERNELS_AUTO;
  if (!strcmp(value.text, "require")) return GBI_KERNELS_REQUIRE;
  return GBI_KERNELS_OFF;
}

/* ---- the two compilers ---- */

/* Options that results depend on: no contraction to fused operations, no
 * flushing of subnormals, correctly rounded division. They are what both take
 * by themselves, but for the first. */
typedef struct brand {
  const char *name, *prefix, *code_size, *code;
  const gbi_library_wanted *wanted;
  const char *arch_option;
  const char *const *options; /* NULL at the end */
} brand;

static const brand brands[GBI_VENDORS] = {
    [GBI_NVIDIA] = {.name = "NVRTC",
                    .prefix = "nvrtc",
                    .code_size = "nvrtcGetCUBINSize",
                    .code = "nvrtcGetCUBIN",
                    .wanted = &gbi_library_nvrtc,
                    .arch_option = "--gpu-architecture=",
                    .options =
                        (const char *const[]){"--std=c++14", "--fmad=false",
                                              "--ftz=false", "--prec-div=true",
                                              NULL}},
    [GBI_AMD] = {.name = "HIPRTC",
                 .prefix = "hiprtc",
                 .code_size = "hiprtcGetCodeSize",
                 .code = "hiprtcGetCode",
                 .wanted = &gbi_library_hiprtc,
                 .arch_option = "--offload-arch=",
                 .options = (const char *const[]){"-std=c++14", "-O3",
                                                  "-ffp-contract=off",
                                                  "-fno-fast-math", NULL}},
};

typedef struct compiler {
  const brand *brand;
  bool ready;
  const char *path;
  int major, minor;
  gbi_rtc_api api;
} compiler;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static compiler compilers[GBI_VENDORS]; /* written once, under the lock */

static gb_status failed(const compiler *c, gbi_rtc_result result,
                        gb_status status, const char *doing, const char *more,
                        gb_error *error) {
  if (result == GBI_RTC_SUCCESS) return GB_OK;
  const char *text = c->api.GetErrorString(result);
  return gbi_fail(error, status, "%s %d.%d (%s) could not %s: %s (%u)%s%s",
                  c->brand->name, c->major, c->minor, c->path, doing,
                  text ? text : "error", result, more && *more ? ": " : "",
                  more ? more : "");
}

/* What the compilers' own packages do not tell the loader: the part of NVRTC
 * that it opens itself, by name, when it compiles. Once loaded it is found. */
static void load_builtins(const compiler *c) {
  char path[PATH_MAX];
  const char *slash = strrchr(c->path, '/');
  if (c->brand->wanted != &gbi_library_nvrtc || !slash) return;
  int length = snprintf(path, sizeof path, "%.*s/libnvrtc-builtins.so.%d.%d",
                        (int)(slash - c->path), c->path, c->major, c->minor);
  if (length > 0 && (size_t)length < sizeof path)
    (void)dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static gb_status bind_compiler(compiler *c, void *handle, gb_error *error) {
  char names[16][48];
  gbi_library_symbol symbols[16];
  int count = 0;
#define ROW(name, arguments)                                                \
  snprintf(names[count], sizeof names[0], "%s%s", c->brand->prefix, #name); \
  symbols[count] =                                                          \
      (gbi_library_symbol){names[count], (void **)&c->api.name, true};      \
  count++;
  GBI_RTC_FUNCTIONS(ROW, gbi_rtc_program, const char *const *)
  ROW(GetErrorString, )
#undef ROW
  symbols[count++] = (gbi_library_symbol){c->brand->code_size,
                                          (void **)&c->api.CodeSize, true};
  symbols[count++] =
      (gbi_library_symbol){c->brand->code, (void **)&c->api.Code, true};
  return gbi_library_bind(handle, c->path, symbols, count,
                          "CUDA 11.2 or ROCm 6.0, or later", error);
}

static gb_status start_locked(gbi_vendor vendor, gb_error *error) {
  compiler *c = &compilers[vendor];
  void *handle;
  if (c->ready) return GB_OK;
  c->brand = &brands[vendor];
  GBI_TRY(gbi_library_open(c->brand->wanted, &handle, &c->path, error));
  GBI_TRY(bind_compiler(c, handle, error));
  GBI_TRY(failed(c, c->api.Version(&c->major, &c->minor), GB_ERR_UNSUPPORTED,
                 "tell its version", NULL, error));
  load_builtins(c);
  c->ready = true;
  GBI_INFO("device", "%s %d.%d %s", c->brand->name, c->major, c->minor,
           c->path);
  return GB_OK;
}

static gb_status start(gbi_vendor vendor, const compiler **compiler_p,
                       gb_error *error) {
  if ((unsigned)vendor >= GBI_VENDORS)
    return gbi_fail(error, GB_ERR_ARGUMENT, "there is no vendor number %d",
                    (int)vendor);
  pthread_mutex_lock(&lock);
  gb_status status = start_locked(vendor, error);
  pthread_mutex_unlock(&lock);
  *compiler_p = &compilers[vendor];
  return status;
}

gb_status gbi_compiler_look(gbi_vendor vendor, int *major_p, int *minor_p,
                            const char **path_p, gb_error *error) {
  const compiler *c = NULL;
  GBI_TRY(start(vendor, &c, error));
  *major_p = c->major;
  *minor_p = c->minor;
  *path_p = c->path;
  return GB_OK;
}

/* ---- compiling ---- */

enum { OPTIONS_MOST = 8 };

typedef struct options {
  char arch[96];
  const char *all[OPTIONS_MOST];
  int count;
} options;

static void fill_options(const compiler *c, const char *arch, options *o) {
  snprintf(o->arch, sizeof o->arch, "%s%s", c->brand->arch_option, arch);
  o->count = 0;
  o->all[o->count++] = o->arch;
  for (int i = 0; c->brand->options[i]; i++)
    o->all[o->count++] = c->brand->options[i];
}

static gbi_cache_key key_of(const compiler *c, const options *o,
                            const char *source) {
  static const uint8_t label[GBI_KEY_BYTES] = "gpubridge kernels, cache 1";
  char text[512];
  gbi_text out;
  gbi_cache_key key;
  uint8_t both[2 * GBI_HMAC_BYTES];
  gbi_text_init(&out, text, sizeof text);
  gbi_text_add(&out, "%s %d.%d", c->brand->name, c->major, c->minor);
  for (int i = 0; i < o->count; i++) gbi_text_add(&out, "\n%s", o->all[i]);
  gbi_hmac(label, text, strlen(text), both);
  gbi_hmac(label, source, strlen(source), both + GBI_HMAC_BYTES);
  gbi_hmac(label, both, sizeof both, key.bytes);
  return key;
}

/* The compiler's own words, on one line; empty without any. */
static void read_log(const compiler *c, gbi_rtc_program program, char *text,
                     size_t bytes) {
  size_t size = 0;
  text[0] = 0;
  if (c->api.GetProgramLogSize(program, &size) || size < 2) return;
  char *log = gbi_calloc(1, size + 1);
  if (log && !c->api.GetProgramLog(program, log)) {
    for (char *at = log; *at; at++)
      if ((unsigned char)*at < ' ') *at = ' ';
    gbi_text out;
    gbi_text_init(&out, text, bytes);
    gbi_text_add(&out, "%s", log + strspn(log, " "));
  }
  free(log);
}

static gb_status take_code(const compiler *c, gbi_rtc_program program,
                           gbi_code *code, gb_error *error) {
  size_t size = 0;
  GBI_TRY(failed(c, c->api.CodeSize(program, &size), GB_ERR_UNSUPPORTED,
                 "give code", NULL, error));
  if (!size)
    return gbi_fail(error, GB_ERR_UNSUPPORTED,
                    "%s %d.%d (%s) gives no code for this GPU", c->brand->name,
                    c->major, c->minor, c->path);
  char *bytes = gbi_malloc(size);
  if (!bytes)
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for %zu bytes of code",
                    size);
  gb_status status = failed(c, c->api.Code(program, bytes), GB_ERR_SYSTEM,
                            "give code", NULL, error);
  if (status != GB_OK) {
    free(bytes);
    return status;
  }
  *code = (gbi_code){bytes, size, false};
  return GB_OK;
}

static gb_status compile(const compiler *c, const options *o,
                         const char *source, gbi_code *code, gb_error *error) {
  gbi_rtc_program program = NULL;
  char doing[160], log[600];
  uint64_t start_ns = gbi_now_ns();
  snprintf(doing, sizeof doing, "compile the kernels with %s", o->arch);
  GBI_TRY(failed(
      c, c->api.CreateProgram(&program, source, "gpubridge.cu", 0, NULL, NULL),
      GB_ERR_SYSTEM, doing, NULL, error));
  gbi_rtc_result result = c->api.CompileProgram(program, o->count, o->all);
  gb_status status = GB_OK;
  if (result != GBI_RTC_SUCCESS) {
    bool options = result == GBI_RTC_ERROR_INVALID_OPTION;
    read_log(c, program, log, sizeof log);
    status = failed(c, result, options ? GB_ERR_UNSUPPORTED : GB_ERR_INTERNAL,
                    doing, log, error);
  } else {
    status = take_code(c, program, code, error);
  }
  (void)c->api.DestroyProgram(&program);
  if (status == GB_OK)
    GBI_INFO("device", "kernels compiled with %s in %.1f s: %zu bytes", o->arch,
             (double)(gbi_now_ns() - start_ns) / 1e9, code->count);
  return status;
}

static gb_status compile_or_read(gbi_vendor vendor, const char *arch,
                                 const char *source, bool reads, gbi_code *code,
                                 gb_error *error) {
  const compiler *c = NULL;
  options o;
  *code = (gbi_code){0};
  GBI_TRY(start(vendor, &c, error));
  if (!arch[0])
    return gbi_fail(error, GB_ERR_UNSUPPORTED,
                    "the driver does not tell what instructions the GPU has");
  fill_options(c, arch, &o);
  gbi_cache_key key = key_of(c, &o, source);
  code->kept = reads && gbi_cache_read(&key, &code->bytes, &code->count);
  if (code->kept) return GB_OK;
  GBI_TRY(compile(c, &o, source, code, error));
  gbi_cache_write(&key, code->bytes, code->count);
  return GB_OK;
}

gb_status gbi_compile(gbi_vendor vendor, const char *arch, const char *source,
                      gbi_code *code, gb_error *error) {
  return compile_or_read(vendor, arch, source, true, code, error);
}

gb_status gbi_compile_anew(gbi_vendor vendor, const char *arch,
                           const char *source, gbi_code *code,
                           gb_error *error) {
  return compile_or_read(vendor, arch, source, false, code, error);
}

void gbi_code_free(gbi_code *code) {
  free(code->bytes);
  *code = (gbi_code){0};
}
