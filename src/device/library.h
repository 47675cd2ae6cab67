/* device/library: finding and opening a vendor's shared library. */
#ifndef GBI_DEVICE_LIBRARY_H
#define GBI_DEVICE_LIBRARY_H

#include "base/config.h"

/* GPUBRIDGE_CUDA_LIB and its like: one for each library below. */
extern const gbi_setting gbi_library_settings[];
extern const int gbi_library_settings_count;

/* In this order: the file that the setting names; an object already in the
 * process that exports `symbol` or has one of `names` as its file's name
 * (dl_iterate_phdr, RTLD_NOLOAD: also one loaded RTLD_LOCAL by full path);
 * `packages`, folders relative to the one that holds torch's (found by where an
 * already loaded libtorch or libc10 lies); the loader's own search by `names`.
 * Never a second copy of a library that is loaded. */
typedef struct gbi_library_wanted {
  const char *what;            /* "NCCL", for texts */
  const char *setting;         /* "GPUBRIDGE_NCCL_LIB", or NULL */
  const char *symbol;          /* or NULL */
  const char *const *names;    /* "libnccl.so.2", ..., NULL */
  const char *const *packages; /* "nvidia/nccl/lib", ..., NULL; may be NULL */
  const char *without; /* or NULL. An object that shows this symbol too is
                          another library: RCCL has all of NCCL's */
} gbi_library_wanted;

/* UNSUPPORTED with everything that was tried. The library stays loaded for the
 * process's life. *path_p: its file, static. */
gb_status gbi_library_open(const gbi_library_wanted *wanted, void **handle_p,
                           const char **path_p, gb_error *error);

/* The same without loading anything: false when it is not in the process. The
 * setting is not read. */
bool gbi_library_loaded(const gbi_library_wanted *wanted, void **handle_p,
                        const char **path_p);

/* A row of a table of entry points: dlsym(name) goes to *slot. */
typedef struct gbi_library_symbol {
  const char *name;
  void **slot;
  bool needed; /* else NULL when it is not there */
} gbi_library_symbol;
/* UNSUPPORTED, naming the first needed symbol that is missing, the library's
 * file and the version that brought it, if `since` says so (may be NULL). */
gb_status gbi_library_bind(void *handle, const char *path,
                           const gbi_library_symbol *symbols, int count,
                           const char *since, gb_error *error);

/* What both RCCL and the HIP runtime are reached through (one HIP runtime a
 * process: its entry points are those of RCCL's own). */
extern const gbi_library_wanted gbi_library_cuda, gbi_library_nccl,
    gbi_library_rccl, gbi_library_hip, gbi_library_nvrtc, gbi_library_hiprtc;

#endif
