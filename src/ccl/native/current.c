/* The calling thread's current device, around the opening of a communicator. */
#include "ccl/native/state.h"

#include "device/cuda/cuda_abi.h"
#include "device/hip/hip_abi.h"
#include "device/library.h"

/* A slot for one row of the vendors' tables. */
typedef struct current_cuda {
  gbi_cu_result (*get)(gbi_cu_device *device, int ordinal);
  gbi_cu_result (*retain)(gbi_cu_context *context, gbi_cu_device device);
  gbi_cu_result (*release)(gbi_cu_device device);
  gbi_cu_result (*push)(gbi_cu_context context);
  gbi_cu_result (*pop)(gbi_cu_context *context);
} current_cuda;
typedef struct current_hip {
  gbi_hip_result (*get)(int *device);
  gbi_hip_result (*set)(int device);
} current_hip;

static pthread_mutex_t binding = PTHREAD_MUTEX_INITIALIZER;
static current_cuda cuda;
static current_hip hip;
static bool bound[GBI_VENDORS];

static gb_status bind_cuda(gb_error *error) {
  void *handle = NULL;
  const char *path = NULL;
  const gbi_library_symbol symbols[] = {
      {"cuDeviceGet", (void **)&cuda.get, true},
      {"cuDevicePrimaryCtxRetain", (void **)&cuda.retain, true},
      {"cuDevicePrimaryCtxRelease_v2", (void **)&cuda.release, true},
      {"cuCtxPushCurrent_v2", (void **)&cuda.push, true},
      {"cuCtxPopCurrent_v2", (void **)&cuda.pop, true}};
  GBI_TRY(gbi_library_open(&gbi_library_cuda, &handle, &path, error));
  return gbi_library_bind(handle, path, symbols, GBI_COUNT(symbols), NULL,
                          error);
}

/* From RCCL's handle: of the HIP runtime that this RCCL runs on. */
static gb_status bind_hip(const gbi_nccl *nccl, gb_error *error) {
  const gbi_library_symbol symbols[] = {
      {"hipGetDevice", (void **)&hip.get, true},
      {"hipSetDevice", (void **)&hip.set, true}};
  return gbi_library_bind(nccl->handle, nccl->path, symbols, GBI_COUNT(symbols),
                          NULL, error);
}

static gb_status bind(gbi_vendor vendor, const gbi_nccl *nccl,
                      gb_error *error) {
  pthread_mutex_lock(&binding);
  gb_status status = GB_OK;
  if (!bound[vendor])
    status = vendor == GBI_NVIDIA ? bind_cuda(error) : bind_hip(nccl, error);
  bound[vendor] = status == GB_OK;
  pthread_mutex_unlock(&binding);
  return status;
}

static gbi_cu_result enter_cuda(int index, gbi_native_current *current) {
  gbi_cu_result result = cuda.get(&current->device, index);
  if (result == 0) result = cuda.retain(&current->context, current->device);
  if (result != 0) return result;
  result = cuda.push(current->context);
  if (result != 0) cuda.release(current->device);
  return result;
}

static gbi_hip_result enter_hip(int index, gbi_native_current *current) {
  gbi_hip_result result = hip.get(&current->before);
  return result ? result : hip.set(index);
}

gb_status gbi_native_current_enter(const gbi_device *device,
                                   const gbi_nccl *nccl,
                                   gbi_native_current *current,
                                   gb_error *error) {
  gbi_vendor vendor = device->ops->vendor;
  GBI_TRY(bind(vendor, nccl, error));
  unsigned result = vendor == GBI_NVIDIA ? enter_cuda(device->index, current)
                                         : enter_hip(device->index, current);
  if (result != 0)
    return gbi_fail(error, GB_ERR_SYSTEM,
                    "could not make %s device %d the current one for %s: "
                    "error %u of the driver",
                    gbi_vendor_name(vendor), device->index, nccl->name, result);
  return GB_OK;
}

void gbi_native_current_leave(const gbi_device *device,
                              const gbi_native_current *current) {
  if (device->ops->vendor == GBI_AMD) {
    hip.set(current->before);
    return;
  }
  gbi_cu_context popped = NULL;
  cuda.pop(&popped);
  cuda.release(current->device);
}
