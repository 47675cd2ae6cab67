#include "transport/verbs/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static gbi_verbs_library loaded;
static char loaded_from[256];
static bool is_loaded;

static gb_status load(const char *file, gb_error *error) {
  void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    return gbi_fail(error, GB_ERR_UNSUPPORTED,
                    "the library of RDMA verbs cannot be loaded: %s. Install "
                    "rdma-core (libibverbs1 and ibverbs-providers, or "
                    "libibverbs) or name the file in GPUBRIDGE_VERBS_LIB",
                    dlerror());
#define BIND(returns, name, parameters)                                        \
  *(void **)&loaded.name = dlsym(handle, #name);                               \
  if (!loaded.name)                                                            \
    return gbi_fail(error, GB_ERR_UNSUPPORTED,                                 \
                    "%s has no %s: it is not libibverbs, or older than 2016. " \
                    "Install a newer rdma-core",                               \
                    file, #name);
  GBI_IBV_FUNCTIONS(BIND)
#undef BIND
  return GB_OK;
}

const gbi_verbs_library *gbi_verbs_library_open(const char *path,
                                                gb_error *error) {
  const char *file = path[0] ? path : "libibverbs.so.1";
  gb_status status = GB_OK;
  pthread_mutex_lock(&lock);
  if (!is_loaded) {
    status = load(file, error);
    is_loaded = status == GB_OK;
    if (is_loaded) strncpy(loaded_from, file, sizeof loaded_from - 1);
  } else if (strncmp(loaded_from, file, sizeof loaded_from - 1) != 0) {
    status = gbi_fail(error, GB_ERR_STATE,
                      "GPUBRIDGE_VERBS_LIB is %s now, but this process uses %s "
                      "already",
                      file, loaded_from);
  }
  pthread_mutex_unlock(&lock);
  return status == GB_OK ? &loaded : NULL;
}
