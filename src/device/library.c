#include "device/library.h"

#include "base/memory.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const gbi_setting gbi_library_settings[] = {
    {.name = "GPUBRIDGE_CUDA_LIB",
     .default_value = "",
     .kind = GBI_SETTING_TEXT,
     .help = "file of the CUDA driver; unset: found"},
    {.name = "GPUBRIDGE_NCCL_LIB",
     .default_value = "",
     .kind = GBI_SETTING_TEXT,
     .help = "file of NCCL; unset: found"},
    {.name = "GPUBRIDGE_RCCL_LIB",
     .default_value = "",
     .kind = GBI_SETTING_TEXT,
     .help = "file of RCCL; unset: found"},
    {.name = "GPUBRIDGE_HIP_LIB",
     .default_value = "",
     .kind = GBI_SETTING_TEXT,
     .help = "file of the HIP runtime; unset: RCCL's own"},
    {.name = "GPUBRIDGE_NVRTC_LIB",
     .default_value = "",
     .kind = GBI_SETTING_TEXT,
     .help = "file of NVIDIA's run-time compiler; unset: found"},
    {.name = "GPUBRIDGE_HIPRTC_LIB",
     .default_value = "",
     .kind = GBI_SETTING_TEXT,
     .help = "file of AMD's run-time compiler; unset: found"},
};
const int gbi_library_settings_count = GBI_COUNT(gbi_library_settings);

/* Names carry the ABI's number where there is one: torch's own wheels of ROCm
 * have none. The newest first. A folder of ROCm's comes last: its packages do
 * not always tell the loader about it. */
const gbi_library_wanted gbi_library_cuda = {
    .what = "the CUDA driver",
    .setting = "GPUBRIDGE_CUDA_LIB",
    .symbol = "cuInit",
    .names = (const char *const[]){"libcuda.so.1", NULL},
};
const gbi_library_wanted gbi_library_nccl = {
    .what = "NCCL",
    .setting = "GPUBRIDGE_NCCL_LIB",
    .symbol = "ncclGetVersion",
    .names = (const char *const[]){"libnccl.so.2", "libnccl.so", NULL},
    .packages = (const char *const[]){"nvidia/nccl/lib", NULL},
    .without = "hipGetDeviceCount",
};
/* No symbol: NCCL has the same ones. */
const gbi_library_wanted gbi_library_rccl = {
    .what = "RCCL",
    .setting = "GPUBRIDGE_RCCL_LIB",
    .names = (const char *const[]){"librccl.so.1", "librccl.so",
                                   "/opt/rocm/lib/librccl.so.1", NULL},
    .packages = (const char *const[]){"torch/lib", NULL},
};
const gbi_library_wanted gbi_library_hip = {
    .what = "the HIP runtime",
    .setting = "GPUBRIDGE_HIP_LIB",
    .symbol = "hipGetDeviceCount",
    .names = (const char *const[]){"libamdhip64.so.7", "libamdhip64.so.6",
                                   "libamdhip64.so",
                                   "/opt/rocm/lib/libamdhip64.so", NULL},
    .packages = (const char *const[]){"torch/lib", "_rocm_sdk_core/lib", NULL},
};
const gbi_library_wanted gbi_library_nvrtc = {
    .what = "NVRTC",
    .setting = "GPUBRIDGE_NVRTC_LIB",
    .symbol = "nvrtcVersion",
    .names = (const char *const[]){"libnvrtc.so.13", "libnvrtc.so.12",
                                   "libnvrtc.so", NULL},
    .packages =
        (const char *const[]){"nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", NULL},
};
/* Before ROCm 7 its functions are in the HIP runtime too. */
const gbi_library_wanted gbi_library_hiprtc = {
    .what = "HIPRTC",
    .setting = "GPUBRIDGE_HIPRTC_LIB",
    .symbol = "hiprtcVersion",
    .names = (const char *const[]){"libhiprtc.so.7", "libhiprtc.so.6",
                                   "libhiprtc.so", "/opt/rocm/lib/libhiprtc.so",
                                   NULL},
    .packages = (const char *const[]){"torch/lib", "_rocm_sdk_core/lib", NULL},
};

/* Looking whether a library is loaded and loading it are one step. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

/* "libx.so" names "libx.so" and "libx.so.2.1", not "libx.sound". */
static bool names_file(const char *name, const char *path) {
  const char *base = base_name(path);
  size_t n = strlen(base_name(name));
  return !strncmp(base, base_name(name), n) && (!base[n] || base[n] == '.');
}

/* The loader keeps this text as long as the object. */
static const char *path_of(void *handle) {
  struct link_map *map = NULL;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) || !map || !map->l_name[0])
    return "the program itself";
  return map->l_name;
}

/* ---- objects of this process ---- */

typedef struct objects {
  char **paths;
  int count;
} objects;

static int add_object(struct dl_phdr_info *info, size_t bytes, void *arg) {
  objects *all = arg;
  (void)bytes;
  if (!info->dlpi_name || !info->dlpi_name[0]) return 0;
  char **more =
      gbi_realloc(all->paths, (size_t)(all->count + 1) * sizeof *more);
  if (!more) return 1;
  all->paths = more;
  char *copy = strdup(info->dlpi_name);
  if (copy) all->paths[all->count++] = copy;
  return 0;
}

/* Copies, because nothing may be opened inside the walk, and another thread may
 * close an object after it. */
static void list_objects(objects *all) {
  *all = (objects){0};
  dl_iterate_phdr(add_object, all);
}

static void free_objects(objects *all) {
  for (int i = 0; i < all->count; i++) free(all->paths[i]);
  free(all->paths);
}

static void *open_loaded(const char *path) {
  return dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
}

static void *loaded_by_name(const gbi_library_wanted *wanted,
                            const objects *all) {
  /* Bare names: the loader compares what the objects call themselves, so a
   * renamed file is found as well. */
  for (int i = 0; wanted->names && wanted->names[i]; i++) {
    void *handle = open_loaded(wanted->names[i]);
    if (handle) return handle;
  }
  for (int i = 0; wanted->names && wanted->names[i]; i++)
    for (int k = 0; k < all->count; k++) {
      if (!names_file(wanted->names[i], all->paths[k])) continue;
      void *handle = open_loaded(all->paths[k]);
      if (handle) return handle;
    }
  return NULL;
}

/* The object that the symbol, seen through `handle`, is in: dlsym looks into
 * what an object depends on, too. The handle is used up. */
static void *owner_of(void *handle, const gbi_library_wanted *wanted) {
  void *at = dlsym(handle, wanted->symbol);
  void *owner = NULL;
  Dl_info info;
  if (at && dladdr(at, &info) && info.dli_fname)
    owner = open_loaded(info.dli_fname);
  if (at && !owner) owner = handle; /* the program */
  if (owner != handle) dlclose(handle);
  if (owner && wanted->without && dlsym(owner, wanted->without)) {
    dlclose(owner);
    owner = NULL;
  }
  return owner;
}

static void *loaded_by_symbol(const gbi_library_wanted *wanted,
                              const objects *all) {
  if (!wanted->symbol) return NULL;
  void *handle = dlopen(NULL, RTLD_LAZY); /* what is global */
  handle = handle ? owner_of(handle, wanted) : NULL;
  for (int i = 0; i < all->count && !handle; i++) {
    handle = open_loaded(all->paths[i]);
    if (handle) handle = owner_of(handle, wanted);
  }
  return handle;
}

static void *find_loaded(const gbi_library_wanted *wanted) {
  objects all;
  list_objects(&all);
  void *handle = loaded_by_name(wanted, &all);
  if (!handle) handle = loaded_by_symbol(wanted, &all);
  free_objects(&all);
  return handle;
}

bool gbi_library_loaded(const gbi_library_wanted *wanted, void **handle_p,
                        const char **path_p) {
  pthread_mutex_lock(&lock);
  void *handle = find_loaded(wanted);
  const char *path = handle ? path_of(handle) : NULL;
  pthread_mutex_unlock(&lock);
  if (!handle) return false;
  *handle_p = handle;
  if (path_p) *path_p = path;
  return true;
}

/* ---- files ---- */

/* What was tried, and the first reason that is not just a file's absence. */
typedef struct attempts {
  char reason[512];
  char folder[PATH_MAX]; /* that torch's is in; "" */
} attempts;

static void *open_file(const char *path, attempts *tried) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle) return handle;
  const char *why = dlerror();
  /* "PATH: cannot open ...": there is no such file. Another name in front
   * means that this one is there, but something that it needs is not. */
  bool absent = why && !strncmp(why, path, strlen(path)) &&
                strstr(why, "cannot open shared object file: No such file");
  if (why && !absent && !tried->reason[0]) {
    gbi_text out;
    gbi_text_init(&out, tried->reason, sizeof tried->reason);
    gbi_text_add(&out, "%s: %s", path, why);
  }
  return NULL;
}

static bool torch_library(const char *path) {
  const char *base = base_name(path);
  return !strncmp(base, "libtorch.so", 11) || !strncmp(base, "libc10.so", 9) ||
         !strncmp(base, "libtorch_cpu.so", 15);
}

/* ".../torch/lib/libc10.so" gives "...". */
static void find_torch(attempts *tried) {
  objects all;
  list_objects(&all);
  for (int i = 0; i < all.count && !tried->folder[0]; i++) {
    char real[PATH_MAX];
    if (!torch_library(all.paths[i]) || !realpath(all.paths[i], real)) continue;
    int levels = 3;
    char *slash = NULL;
    while (levels-- && (slash = strrchr(real, '/')) && slash != real)
      *slash = 0;
    memcpy(tried->folder, real, strlen(real) + 1);
  }
  free_objects(&all);
}

static void *open_package(const gbi_library_wanted *wanted, attempts *tried) {
  if (!wanted->packages) return NULL;
  find_torch(tried);
  for (int p = 0; tried->folder[0] && wanted->packages[p]; p++)
    for (int i = 0; wanted->names && wanted->names[i]; i++) {
      char path[PATH_MAX];
      gbi_text out;
      gbi_text_init(&out, path, sizeof path);
      gbi_text_add(&out, "%s/%s/%s", tried->folder, wanted->packages[p],
                   base_name(wanted->names[i]));
      void *handle = access(path, R_OK) ? NULL : open_file(path, tried);
      if (handle) return handle;
    }
  return NULL;
}

static void *open_by_name(const gbi_library_wanted *wanted, attempts *tried) {
  void *handle = NULL;
  for (int i = 0; wanted->names && wanted->names[i] && !handle; i++)
    handle = open_file(wanted->names[i], tried);
  return handle;
}

static gb_status not_found(const gbi_library_wanted *wanted,
                           const attempts *tried, gb_error *error) {
  char text[GB_ERROR_TEXT_MAX];
  gbi_text out;
  gbi_text_init(&out, text, sizeof text);
  gbi_text_add(&out, "%s was not found: not loaded in this process",
               wanted->what);
  if (wanted->packages && !tried->folder[0])
    gbi_text_add(&out, ", torch neither");
  for (int i = 0; tried->folder[0] && wanted->packages[i]; i++)
    gbi_text_add(&out, ", not in %s/%s", tried->folder, wanted->packages[i]);
  for (int i = 0; wanted->names && wanted->names[i]; i++)
    gbi_text_add(&out, "%s %s", i ? "," : ", and the loader does not find",
                 wanted->names[i]);
  if (tried->reason[0]) gbi_text_add(&out, ". %s", tried->reason);
  gbi_text_add(&out, ". Install it, or add its folder to LD_LIBRARY_PATH");
  if (wanted->setting)
    gbi_text_add(&out, ", or name its file in %s", wanted->setting);
  return gbi_fail(error, GB_ERR_UNSUPPORTED, "%s", text);
}

/* *handle_p stays NULL when the setting is not set. A file that a user names is
 * used or refused, never replaced by another. */
static gb_status open_setting(const gbi_library_wanted *wanted, void **handle_p,
                              gb_error *error) {
  if (!wanted->setting) return GB_OK;
  const gbi_setting setting = {
      .name = wanted->setting, .default_value = "", .kind = GBI_SETTING_TEXT};
  gbi_value value;
  GBI_TRY(gbi_setting_read(&setting, &value, error));
  if (!value.text[0]) return GB_OK;
  *handle_p = dlopen(value.text, RTLD_NOW | RTLD_LOCAL);
  if (*handle_p) return GB_OK;
  const char *why = dlerror();
  return gbi_fail(error, GB_ERR_UNSUPPORTED,
                  "%s could not be loaded from %s, which %s names: %s. Unset "
                  "%s to have it looked for",
                  wanted->what, value.text, wanted->setting,
                  why ? why : "no reason given", wanted->setting);
}

static gb_status open_locked(const gbi_library_wanted *wanted, void **handle_p,
                             gb_error *error) {
  attempts tried = {0};
  *handle_p = NULL;
  GBI_TRY(open_setting(wanted, handle_p, error));
  if (!*handle_p) *handle_p = find_loaded(wanted);
  if (!*handle_p) *handle_p = open_package(wanted, &tried);
  if (!*handle_p) *handle_p = open_by_name(wanted, &tried);
  return *handle_p ? GB_OK : not_found(wanted, &tried, error);
}

gb_status gbi_library_open(const gbi_library_wanted *wanted, void **handle_p,
                           const char **path_p, gb_error *error) {
  void *handle;
  pthread_mutex_lock(&lock);
  gb_status status = open_locked(wanted, &handle, error);
  const char *path = status == GB_OK ? path_of(handle) : NULL;
  pthread_mutex_unlock(&lock);
  if (status != GB_OK) return status;
  *handle_p = handle;
  if (path_p) *path_p = path;
  return GB_OK;
}

gb_status gbi_library_bind(void *handle, const char *path,
                           const gbi_library_symbol *symbols, int count,
                           const char *since, gb_error *error) {
  for (int i = 0; i < count; i++) {
    *symbols[i].slot = dlsym(handle, symbols[i].name);
    if (*symbols[i].slot || !symbols[i].needed) continue;
    return gbi_fail(
        error, GB_ERR_UNSUPPORTED, "%s does not have %s. It is too old%s%s",
        path, symbols[i].name, since ? ": needed is " : "", since ? since : "");
  }
  return GB_OK;
}
