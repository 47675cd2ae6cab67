/* Memory from the heap, with the fault point "alloc": malloc and its family,
 * except that a torture run can make any single call fail. Given back with
 * free() as always. */
#ifndef GBI_BASE_MEMORY_H
#define GBI_BASE_MEMORY_H

#include "base/fault.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static inline bool gbi_alloc_fault(void) {
  if (GBI_FAULT("alloc") != GBI_FAULT_FAIL) return false;
  errno = ENOMEM;
  return true;
}

static inline void *gbi_malloc(size_t bytes) {
  return gbi_alloc_fault() ? NULL : malloc(bytes);
}

static inline void *gbi_calloc(size_t count, size_t bytes) {
  return gbi_alloc_fault() ? NULL : calloc(count, bytes);
}

static inline void *gbi_realloc(void *data, size_t bytes) {
  return gbi_alloc_fault() ? NULL : realloc(data, bytes);
}

static inline void *gbi_aligned_alloc(size_t alignment, size_t bytes) {
  return gbi_alloc_fault() ? NULL : aligned_alloc(alignment, bytes);
}

static inline char *gbi_strdup(const char *text) {
  return gbi_alloc_fault() ? NULL : strdup(text);
}

#endif
