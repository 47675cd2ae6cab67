/* Virtual memory management of the driver, as far as an allocator with
 * expandable segments uses it: addresses, pieces of memory, and pieces mapped
 * one behind the other. Access is what mapping gives. */
#include "fakes/cuda_fake.h"

#include <stdlib.h>

enum { GRANULE = 2 << 20 };

typedef struct piece {
  size_t bytes;
} piece;

gbi_cu_result cuMemAddressReserve(gbi_cu_address *address, size_t bytes,
                                  size_t alignment, gbi_cu_address wanted,
                                  unsigned long long flags) {
  int device;
  FAKE_CU_ENTER(&device);
  void *got = NULL;
  if (bytes % GRANULE || flags) return GBI_CU_ERROR_INVALID_VALUE;
  fake_result result = fake_reserve(device, bytes, &got);
  if (!result) *address = (uintptr_t)got;
  return fake_code(result);
}

gbi_cu_result cuMemAddressFree(gbi_cu_address address, size_t bytes) {
  FAKE_CU_ENTER(NULL);
  return fake_code(fake_unreserve((void *)(uintptr_t)address, bytes));
}

gbi_cu_result cuMemCreate(unsigned long long *handle, size_t bytes,
                          const void *properties, unsigned long long flags) {
  FAKE_CU_ENTER(NULL);
  if (!bytes || bytes % GRANULE || !properties || flags)
    return GBI_CU_ERROR_INVALID_VALUE;
  piece *made = fake_new(sizeof *made);
  made->bytes = bytes;
  *handle = (uintptr_t)made;
  return GBI_CU_SUCCESS;
}

/* What is mapped lives on without its handle. */
gbi_cu_result cuMemRelease(unsigned long long handle) {
  FAKE_CU_ENTER(NULL);
  free((piece *)(uintptr_t)handle);
  return GBI_CU_SUCCESS;
}

gbi_cu_result cuMemMap(gbi_cu_address address, size_t bytes, size_t offset,
                       unsigned long long handle, unsigned long long flags) {
  FAKE_CU_ENTER(NULL);
  const piece *of = (const piece *)(uintptr_t)handle;
  if (offset || flags || !of || of->bytes != bytes)
    return GBI_CU_ERROR_INVALID_VALUE;
  return fake_code(fake_map((void *)(uintptr_t)address, bytes));
}

gbi_cu_result cuMemUnmap(gbi_cu_address address, size_t bytes) {
  FAKE_CU_ENTER(NULL);
  return fake_code(fake_unmap((void *)(uintptr_t)address, bytes));
}

gbi_cu_result cuMemSetAccess(gbi_cu_address address, size_t bytes,
                             const void *access, size_t count) {
  FAKE_CU_ENTER(NULL);
  fake_memory memory;
  if (!access || !count ||
      !fake_memory_look((void *)(uintptr_t)address, &memory))
    return GBI_CU_ERROR_INVALID_VALUE;
  return GBI_CU_SUCCESS;
}
