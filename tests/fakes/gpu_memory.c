/* Allocations: a sorted table of all there ever were. Addresses of freed ones
 * stay reserved, so that a use after the free is known for what it is. */
#include "fakes/gpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static fake_memory **table; /* by address */
static int table_count, table_room;
static uint64_t last_id;

/* Index of the first one that begins behind `address`. */
static int behind(uintptr_t address) {
  int low = 0, high = table_count;
  while (low < high) {
    int middle = (low + high) / 2;
    if (table[middle]->begin > address)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

fake_memory *fake_memory_locked(const void *address) {
  int i = behind((uintptr_t)address) - 1;
  if (i < 0 || (uintptr_t)address - table[i]->begin >= table[i]->bytes)
    return NULL;
  return table[i];
}

static void remember(fake_memory *memory) {
  if (table_count == table_room) {
    table_room = table_room ? 2 * table_room : 64;
    table = realloc(table, (size_t)table_room * sizeof *table);
    if (!table) abort();
  }
  int at = behind(memory->begin);
  memmove(table + at + 1, table + at,
          (size_t)(table_count - at) * sizeof *table);
  table[at] = memory;
  table_count++;
}

static void forget(fake_memory *memory) {
  int at = behind(memory->begin) - 1;
  memmove(table + at, table + at + 1,
          (size_t)(table_count - at - 1) * sizeof *table);
  table_count--;
  free(memory->accesses);
  free(memory);
}

static size_t whole_pages(size_t bytes) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}

static void *map(size_t bytes, int protection) {
  void *memory = mmap(NULL, whole_pages(bytes), protection,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

static fake_memory *add(fake_memory_kind kind, void *begin, void *view,
                        size_t bytes) {
  fake_memory *memory = fake_new(sizeof *memory);
  memory->kind = kind;
  memory->begin = (uintptr_t)begin;
  memory->bytes = bytes;
  memory->view = view;
  memory->coherent = true;
  memory->id = ++last_id;
  remember(memory);
  return memory;
}

static void before_allocating(int device) {
  fake_counted_allocation();
  if (!gpu.set.alloc_sync) return;
  fake_counted_blocking();
  if (device < 0) {
    for (int i = 0; i < gpu.set.devices; i++) fake_device_drain_locked(i);
  } else {
    fake_device_drain_locked(device);
  }
}

fake_result fake_allocate(int device, size_t bytes, void **address_p) {
  fake_result result = fake_capture_unsafe();
  if (result) return result;
  fake_device *on = fake_device_at(device);
  if (!on) return FAKE_NO_DEVICE;
  if (!bytes) return FAKE_BAD_VALUE;
  fake_lock();
  before_allocating(device);
  void *address = NULL, *view = NULL;
  if (bytes <= fake_here.memory_bytes &&
      on->used <= fake_here.memory_bytes - bytes) {
    address = map(bytes, PROT_NONE);
    view = address ? map(bytes, PROT_READ | PROT_WRITE) : NULL;
  }
  if (view) {
    add(FAKE_DEVICE, address, view, bytes)->device = device;
    on->used += bytes;
    if (gpu.set.checks && bytes <= (64u << 20))
      memset(view, FAKE_POISON, bytes);
    *address_p = address;
  }
  fake_unlock();
  return view ? FAKE_OK : FAKE_NO_MEMORY;
}

/* ---- addresses that memory is mapped to ---- */

fake_result fake_reserve(int device, size_t bytes, void **address_p) {
  if (!bytes) return FAKE_BAD_VALUE;
  fake_lock();
  void *address = map(bytes, PROT_NONE);
  void *view = address ? map(bytes, PROT_READ | PROT_WRITE) : NULL;
  if (view) {
    fake_memory *memory = add(FAKE_DEVICE, address, view, 0);
    memory->device = device;
    memory->reserved = bytes;
    *address_p = address;
  }
  fake_unlock();
  return view ? FAKE_OK : FAKE_NO_MEMORY;
}

static fake_memory *reserved_locked(const void *address) {
  int i = behind((uintptr_t)address) - 1;
  if (i < 0 || table[i]->freed) return NULL;
  bool inside = (uintptr_t)address - table[i]->begin < table[i]->reserved;
  return inside ? table[i] : NULL;
}

/* As the allocator of torch does it: each piece behind the last. */
fake_result fake_map(void *address, size_t bytes) {
  fake_result result = fake_capture_unsafe();
  if (result) return result;
  fake_lock();
  fake_memory *memory = reserved_locked(address);
  if (!memory || (uintptr_t)address != memory->begin + memory->bytes ||
      bytes > memory->reserved - memory->bytes) {
    result = FAKE_BAD_VALUE;
  } else {
    before_allocating(memory->device);
    if (gpu.set.checks)
      memset(memory->view + memory->bytes, FAKE_POISON, bytes);
    memory->bytes += bytes;
    gpu.devices[memory->device].used += bytes;
  }
  fake_unlock();
  return result;
}

static void drain_all(void);

fake_result fake_unmap(void *address, size_t bytes) {
  fake_result result = fake_capture_unsafe();
  if (result) return result;
  fake_lock();
  fake_memory *memory = reserved_locked(address);
  if (!memory || bytes > memory->bytes ||
      (uintptr_t)address != memory->begin + memory->bytes - bytes) {
    result = FAKE_BAD_VALUE;
  } else {
    drain_all();
    memory->bytes -= bytes;
    gpu.devices[memory->device].used -= bytes;
  }
  fake_unlock();
  return result;
}

fake_result fake_unreserve(void *address, size_t bytes) {
  fake_lock();
  fake_memory *memory = reserved_locked(address);
  bool whole = memory && memory->begin == (uintptr_t)address &&
               memory->reserved == bytes && !memory->bytes;
  if (whole) {
    munmap(memory->view, whole_pages(bytes));
    memory->view = NULL;
    memory->freed = true;
    memory->freed_by = fake_call_name();
    memory->freed_at = fake_call_site();
  }
  fake_unlock();
  return whole ? FAKE_OK : FAKE_BAD_VALUE;
}

/* ---- the host's ---- */

static bool may_pin(size_t bytes) {
  size_t most = gpu.set.pinned_most;
  return !most || (bytes <= most && gpu.pinned <= most - bytes);
}

fake_result fake_pin(size_t bytes, bool coherent, void **address_p) {
  fake_result result = fake_capture_unsafe();
  if (result) return result;
  if (!bytes) return FAKE_BAD_VALUE;
  fake_lock();
  before_allocating(-1);
  void *host = may_pin(bytes) ? map(bytes, PROT_READ | PROT_WRITE) : NULL;
  if (host) {
    add(FAKE_PINNED, host, host, bytes)->coherent = coherent;
    gpu.pinned += bytes;
    *address_p = host;
  }
  fake_unlock();
  return host ? FAKE_OK : FAKE_NO_MEMORY;
}

fake_result fake_adopt(void *host, size_t bytes) {
  fake_result result = fake_capture_unsafe();
  if (result) return result;
  if (!bytes || !host) return FAKE_BAD_VALUE;
  fake_lock();
  before_allocating(-1);
  int next = behind((uintptr_t)host);
  fake_memory *inside = fake_memory_locked(host);
  bool reaches =
      next < table_count && table[next]->begin - (uintptr_t)host < bytes;
  if (inside || reaches) {
    result = FAKE_REGISTERED;
  } else if (!may_pin(bytes)) {
    result = FAKE_NO_MEMORY;
  } else {
    add(FAKE_ADOPTED, host, host, bytes);
    gpu.pinned += bytes;
  }
  fake_unlock();
  return result;
}

static void drain_all(void) {
  fake_counted_blocking();
  for (int i = 0; i < gpu.set.devices; i++) fake_device_drain_locked(i);
}

fake_result fake_unadopt(void *host) {
  fake_result result = fake_capture_unsafe();
  if (result) return result;
  fake_lock();
  fake_memory *memory = fake_memory_locked(host);
  if (!memory || memory->kind != FAKE_ADOPTED ||
      memory->begin != (uintptr_t)host) {
    result = FAKE_NOT_REGISTERED;
  } else {
    drain_all();
    fake_flags_forget_locked(memory->begin, memory->bytes);
    gpu.pinned -= memory->bytes;
    if (!fake_stopping()) forget(memory);
  }
  fake_unlock();
  return result;
}

static void release(fake_memory *memory) {
  if (fake_stopping()) return; /* nobody waited for what still uses it */
  fake_flags_forget_locked(memory->begin, memory->bytes);
  memory->freed = true;
  memory->freed_by = fake_call_name();
  memory->freed_at = fake_call_site();
  free(memory->accesses);
  memory->accesses = NULL;
  memory->accesses_count = memory->accesses_room = 0;
  if (memory->kind == FAKE_DEVICE) {
    gpu.devices[memory->device].used -= memory->bytes;
    munmap(memory->view, whole_pages(memory->bytes));
  } else {
    gpu.pinned -= memory->bytes;
    /* Replaced, not unmapped: nobody else may get the address. */
    void *kept =
        mmap(memory->view, whole_pages(memory->bytes), PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (kept == MAP_FAILED) abort();
  }
  memory->view = NULL;
}

static void check_not_freed(const fake_memory *memory, const void *address) {
  if (memory->freed)
    fake_check_failed(fake_call_name(), fake_call_site(), memory->freed_by,
                      memory->freed_at, "%p (in %zu bytes at %p) was freed",
                      address, memory->bytes, (void *)memory->begin);
}

fake_result fake_free(void *address, bool pinned) {
  if (!address) return FAKE_OK;
  fake_result result = fake_capture_unsafe();
  if (result) return result;
  fake_lock();
  fake_memory *memory = fake_memory_locked(address);
  fake_memory_kind kind = pinned ? FAKE_PINNED : FAKE_DEVICE;
  if (!memory || memory->kind != kind || memory->begin != (uintptr_t)address ||
      memory->reserved) {
    result = FAKE_BAD_VALUE;
  } else {
    check_not_freed(memory, address);
    drain_all();
    check_not_freed(memory, address);
    release(memory);
  }
  fake_unlock();
  return result;
}

fake_memory_kind fake_memory_kind_of(const void *address) {
  fake_lock();
  const fake_memory *memory = fake_memory_locked(address);
  fake_memory_kind kind = memory ? memory->kind : FAKE_PAGEABLE;
  fake_unlock();
  return kind;
}

bool fake_memory_look(const void *address, fake_memory *memory_p) {
  fake_lock();
  fake_memory *memory = fake_memory_locked(address);
  bool found = memory && !memory->freed;
  if (found) *memory_p = *memory;
  fake_unlock();
  return found;
}

fake_memory *fake_memory_span_locked(const void *address, size_t bytes) {
  fake_memory *memory = fake_memory_locked(address);
  if (!memory) return NULL;
  check_not_freed(memory, address);
  if (bytes > memory->bytes - ((uintptr_t)address - memory->begin))
    fake_check_failed(fake_call_name(), fake_call_site(), NULL, NULL,
                      "%zu bytes at %p reach beyond the %zu bytes at %p", bytes,
                      address, memory->bytes, (void *)memory->begin);
  return memory;
}

void *fake_gpu_open(const void *device_memory) {
  fake_lock();
  fake_memory *memory = fake_memory_locked(device_memory);
  if (!memory)
    fake_check_failed("fake_gpu_open", __builtin_return_address(0), NULL, NULL,
                      "a kernel touches %p, which is host memory",
                      device_memory);
  check_not_freed(memory, device_memory);
  void *view = memory->view + ((uintptr_t)device_memory - memory->begin);
  fake_unlock();
  return view;
}
