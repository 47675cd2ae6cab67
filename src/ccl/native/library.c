/* Loading NCCL or RCCL, and what its results mean. */
#include "ccl/native/state.h"

#include "device/library.h"

#include <stdio.h>
#include <string.h>

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static gbi_nccl loaded[GBI_VENDORS];

/* "2.28.9" of 22809; of 2804, from before 2.9, "2.8.4". */
static void write_version(int code, char *text, size_t bytes) {
  int scale = code >= 10000 ? 10000 : 1000;
  snprintf(text, bytes, "%d.%d.%d", code / scale, code % scale / 100,
           code % 100);
}

static gb_status bind(gbi_nccl *nccl, gb_error *error) {
  const gbi_library_symbol symbols[] = {
#define ROW(returns, name, parameters, needed) \
  {#name, (void **)&nccl->name, needed},
      GBI_NCCL_FUNCTIONS(ROW)
#undef ROW
  };
  return gbi_library_bind(nccl->handle, nccl->path, symbols, GBI_COUNT(symbols),
                          "2.14", error);
}

static gb_status load(gbi_vendor vendor, gbi_nccl *nccl, gb_error *error) {
  nccl->name = vendor == GBI_NVIDIA ? "NCCL" : "RCCL";
  GBI_TRY(gbi_library_open(
      vendor == GBI_NVIDIA ? &gbi_library_nccl : &gbi_library_rccl,
      &nccl->handle, &nccl->path, error));
  GBI_TRY(bind(nccl, error));
  ncclResult_t result = nccl->ncclGetVersion(&nccl->version);
  if (result != ncclSuccess)
    return gbi_nccl_fail(nccl, result, "could not tell its version", error);
  write_version(nccl->version, nccl->version_text, sizeof nccl->version_text);
  return GB_OK;
}

gb_status gbi_nccl_load(gbi_vendor vendor, const gbi_nccl **nccl_p,
                        gb_error *error) {
  pthread_mutex_lock(&loading);
  gb_status status = GB_OK;
  if (!loaded[vendor].handle) {
    gbi_nccl nccl = {0};
    status = load(vendor, &nccl, error);
    if (status == GB_OK) loaded[vendor] = nccl;
  }
  pthread_mutex_unlock(&loading);
  *nccl_p = status == GB_OK ? &loaded[vendor] : NULL;
  return status;
}

gb_status gbi_native_load(gbi_vendor vendor, const char **version_p,
                          const char **path_p, gb_error *error) {
  const gbi_nccl *nccl = NULL;
  GBI_TRY(gbi_nccl_load(vendor, &nccl, error));
  if (version_p) *version_p = nccl->version_text;
  if (path_p) *path_p = nccl->path;
  return GB_OK;
}

gb_status gbi_native_id(gbi_vendor vendor, uint8_t id[GBI_NATIVE_ID_BYTES],
                        gb_error *error) {
  const gbi_nccl *nccl = NULL;
  GBI_TRY(gbi_nccl_load(vendor, &nccl, error));
  ncclUniqueId unique;
  ncclResult_t result = nccl->ncclGetUniqueId(&unique);
  if (result != ncclSuccess)
    return gbi_nccl_fail(nccl, result, "could not make a communicator's id",
                         error);
  _Static_assert(sizeof unique == GBI_NATIVE_ID_BYTES, "an id's size");
  memcpy(id, &unique, sizeof unique);
  return GB_OK;
}

/* The library's own failures are the system's: wrong networks, drivers, limits.
 * What it calls invalid is what we passed, but for two members on one GPU. */
static gb_status status_of(const gbi_nccl *nccl, int result,
                           const char **hint_p) {
  *hint_p = "NCCL_DEBUG=WARN on all ranks makes the library say more";
  switch (result) {
    case ncclInvalidArgument:
      *hint_p =
          "this is a defect of gpubridge; NCCL_DEBUG=WARN says which "
          "argument";
      return GB_ERR_INTERNAL;
    case ncclInvalidUsage:
      *hint_p =
          "each process needs a GPU of its own, and all ranks of an "
          "island the same library; NCCL_DEBUG=WARN says more";
      return GB_ERR_UNSUPPORTED;
    case ncclRemoteError:
      *hint_p =
          "a member is gone or cannot be reached: the logs of the other "
          "ranks of this island tell which, and why";
      return GB_ERR_PEER;
    case GBI_NCCL_TIMEOUT:
      if (nccl->version < 23000) return GB_ERR_SYSTEM;
      *hint_p =
          "a member is too late or is stuck: the logs of the other ranks "
          "of this island tell which";
      return GB_ERR_TIMEOUT;
    default: return GB_ERR_SYSTEM;
  }
}

gb_status gbi_nccl_fail(const gbi_nccl *nccl, ncclResult_t result,
                        const char *what, gb_error *error) {
  const char *hint = "";
  gb_status status = status_of(nccl, (int)result, &hint);
  const char *text = nccl->ncclGetErrorString(result);
  /* Of this thread's last failure; a communicator may be gone by now. */
  const char *more =
      nccl->ncclGetLastError ? nccl->ncclGetLastError(NULL) : NULL;
  bool has_more = more && more[0];
  return gbi_fail(error, status, "%s %s %s: %s%s%s%s. %s", nccl->name,
                  nccl->version_text, what, text ? text : "unknown error",
                  has_more ? " (" : "", has_more ? more : "",
                  has_more ? ")" : "", hint);
}
