/* device/compiler: kernels for the GPU that is there, by the vendor's run-time
 * compiler (NVRTC, HIPRTC), opened at run time; kept on disk (cache.h).
 *
 * A missing compiler, or one that does not know the GPU, is UNSUPPORTED; a
 * text that it does not take is INTERNAL with its log. Any thread, several at
 * once; takes seconds. */
#ifndef GBI_DEVICE_COMPILER_H
#define GBI_DEVICE_COMPILER_H

#include "base/config.h"
#include "device/device.h"

enum { GBI_SETTING_KERNELS, GBI_SETTING_CACHE_DIR, GBI_COMPILER_SETTINGS };
extern const gbi_setting gbi_compiler_settings[];
extern const int gbi_compiler_settings_count;

typedef enum gbi_kernels_wanted {
  GBI_KERNELS_AUTO,
  GBI_KERNELS_OFF,
  GBI_KERNELS_REQUIRE
} gbi_kernels_wanted;
gbi_kernels_wanted gbi_compiler_wanted(void); /* what GPUBRIDGE_KERNELS says */

typedef struct gbi_code {
  void *bytes;
  size_t count;
  bool kept; /* was on disk */
} gbi_code;

/* Loads the vendor's compiler (once a process). *path_p: its file, static. */
gb_status gbi_compiler_look(gbi_vendor vendor, int *major_p, int *minor_p,
                            const char **path_p, gb_error *error);
/* `arch` is gbi_device_facts'. */
gb_status gbi_compile(gbi_vendor vendor, const char *arch, const char *source,
                      gbi_code *code, gb_error *error);
/* For an arch whose kept code turned out not to load: forgets it. */
gb_status gbi_compile_anew(gbi_vendor vendor, const char *arch,
                           const char *source, gbi_code *code, gb_error *error);
void gbi_code_free(gbi_code *code);

/* kernels/source.h, as it is given to compilers. */
extern const char gbi_kernels_source[];

#endif
