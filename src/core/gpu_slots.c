#include "core/gpu_slots.h"

#include "base/memory.h"

#include <stdlib.h>
#include <time.h>

enum {
  FLAG_BYTES = 128, /* a flag has its cache lines for itself */
  PAGE_BYTES = 4096,
  PAGE_SLOTS = PAGE_BYTES / (2 * FLAG_BYTES),
  PAGES = 4096,
  LEAST_BYTES = 4096
};

/* Every wait is for less. */
#define OPEN_ALL (UINT64_C(1) << 62)
#define ROUND_BYTES (UINT64_C(16) << 20)

enum { FREE, TAKEN, MOVES };

struct gbi_slots {
  gbi_device *device;
  const gbi_device_ops *ops;
  gbi_slot *_Atomic first; /* only grows: any thread walks it */
  _Atomic bool opened;
  /* The taker's own. */
  uint8_t *page, *page_device; /* of flags; the newest one */
  int page_used;
  void *pages[PAGES];
  int pages_count;
  bool closed;
};

gbi_slots *gbi_slots_new(gbi_device *device) {
  gbi_slots *slots = gbi_calloc(1, sizeof *slots);
  if (!slots) return NULL;
  slots->device = device;
  slots->ops = device->ops;
  slots->page_used = PAGE_SLOTS;
  return slots;
}

/* ---- taking ---- */

static gb_status need_page(gbi_slots *s, gb_error *error) {
  void *host, *device;
  if (s->page_used < PAGE_SLOTS) return GB_OK;
  if (s->pages_count == PAGES)
    return gbi_fail(error, GB_ERR_BUSY,
                    "%d messages of this group are under way on this GPU, as "
                    "many as there may be. Wait for some of them",
                    PAGES * PAGE_SLOTS);
  GBI_TRY(s->ops->pinned(s->device, PAGE_BYTES, &host, &device, error));
  s->pages[s->pages_count++] = host;
  s->page = host;
  s->page_device = device;
  s->page_used = 0;
  return GB_OK;
}

static uint64_t capacity_for(uint64_t bytes) {
  uint64_t capacity = LEAST_BYTES;
  if (!bytes) return 0;
  if (bytes > ROUND_BYTES)
    return (bytes + ROUND_BYTES - 1) / ROUND_BYTES * ROUND_BYTES;
  while (capacity < bytes) capacity *= 2;
  return capacity;
}

static bool is_free(gbi_slots *s, gbi_slot *slot) {
  int state = atomic_load_explicit(&slot->state, memory_order_acquire);
  if (state == MOVES &&
      s->ops->event_query(s->device, slot->moved, NULL) == GB_OK) {
    atomic_store_explicit(&slot->state, FREE, memory_order_relaxed);
    return true;
  }
  return state == FREE;
}

/* The smallest free one that is large enough and not much too large. */
static gbi_slot *find_free(gbi_slots *s, uint64_t capacity) {
  gbi_slot *best = NULL;
  for (gbi_slot *slot = s->first; slot; slot = slot->next)
    if (slot->bytes >= capacity && slot->bytes / 4 <= capacity &&
        (!best || slot->bytes < best->bytes) && is_free(s, slot))
      best = slot;
  return best;
}

static gb_status pin(gbi_slots *s, gbi_slot *slot, uint64_t bytes,
                     gb_error *error) {
  void *device;
  if (!bytes) return GB_OK;
  gb_status status =
      s->ops->pinned(s->device, bytes, &slot->memory, &device, error);
  if (status != GB_ERR_MEMORY) goto end;
  /* What earlier messages left is too small or too large for this one. */
  for (gbi_slot *other = s->first; other; other = other->next) {
    if (!other->memory || !is_free(s, other)) continue;
    s->ops->free_pinned(s->device, other->memory);
    other->memory = NULL;
    other->bytes = 0;
  }
  status = s->ops->pinned(s->device, bytes, &slot->memory, &device, error);
end:
  if (status == GB_OK) slot->bytes = bytes;
  return status;
}

static gb_status fill_new(gbi_slots *s, gbi_slot *slot, uint64_t bytes,
                          gb_error *error) {
  GBI_TRY(need_page(s, error));
  GBI_TRY(s->ops->event_new(s->device, &slot->moved, error));
  gb_status status = pin(s, slot, bytes, error);
  if (status != GB_OK) {
    s->ops->event_free(s->device, slot->moved);
    return status;
  }
  size_t at = (size_t)s->page_used++ * 2 * FLAG_BYTES;
  slot->ready = (_Atomic uint64_t *)(void *)(s->page + at);
  slot->arrived = (_Atomic uint64_t *)(void *)(s->page + at + FLAG_BYTES);
  slot->ready_device = s->page_device + at;
  slot->arrived_device = s->page_device + at + FLAG_BYTES;
  return GB_OK;
}

/* Fills a new one and lists it. */
static gb_status make(gbi_slots *s, uint64_t bytes, gbi_slot *slot,
                      gb_error *error) {
  GBI_TRY(fill_new(s, slot, bytes, error));
  slot->next = s->first;
  atomic_store(&s->first, slot);
  /* Who opened everything may have walked the list before. */
  if (atomic_load(&s->opened)) atomic_store(slot->arrived, OPEN_ALL);
  return GB_OK;
}

gb_status gbi_slots_take(gbi_slots *s, uint64_t bytes, gbi_slot **slot_p,
                         gb_error *error) {
  uint64_t capacity = capacity_for(bytes);
  gbi_slot *slot = find_free(s, capacity);
  if (!slot) {
    slot = gbi_calloc(1, sizeof *slot);
    if (!slot) return gbi_fail(error, GB_ERR_MEMORY, "no memory for a message");
    gb_status status = make(s, capacity, slot, error);
    if (status != GB_OK) {
      free(slot);
      return status;
    }
  }
  slot->turn++;
  atomic_store(&slot->state, TAKEN);
  *slot_p = slot;
  return GB_OK;
}

void gbi_slots_give(gbi_slot *slot, bool moves) {
  atomic_store_explicit(&slot->state, moves ? MOVES : FREE,
                        memory_order_release);
}

/* ---- flags ---- */

/* Never back: who failed has opened everything. */
void gbi_slot_arrive(gbi_slot *slot) {
  uint64_t old = atomic_load_explicit(slot->arrived, memory_order_relaxed);
  while (old < slot->turn && !atomic_compare_exchange_weak_explicit(
                                 slot->arrived, &old, slot->turn,
                                 memory_order_release, memory_order_relaxed)) {
  }
}

bool gbi_slot_has_arrived(const gbi_slot *slot) {
  return atomic_load_explicit(slot->arrived, memory_order_acquire) >=
         slot->turn;
}

bool gbi_slot_is_ready(const gbi_slot *slot) {
  return atomic_load_explicit(slot->ready, memory_order_acquire) >= slot->turn;
}

void gbi_slots_open(gbi_slots *s) {
  atomic_store(&s->opened, true);
  for (gbi_slot *slot = atomic_load(&s->first); slot; slot = slot->next)
    atomic_store_explicit(slot->arrived, OPEN_ALL, memory_order_release);
}

/* ---- the end ---- */

/* An event that was never recorded counts as done. */
static bool settle(gbi_slots *s, uint64_t deadline_ns) {
  for (gbi_slot *slot = s->first; slot; slot = slot->next)
    while (s->ops->event_query(s->device, slot->moved, NULL) == GB_ERR_BUSY) {
      if (gbi_deadline_passed(deadline_ns)) return false;
      nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
  return true;
}

bool gbi_slots_close(gbi_slots *s, uint64_t deadline_ns) {
  if (!settle(s, deadline_ns)) return false;
  for (gbi_slot *slot = s->first; slot; slot = slot->next) {
    s->ops->event_free(s->device, slot->moved);
    if (slot->memory) s->ops->free_pinned(s->device, slot->memory);
  }
  for (int i = 0; i < s->pages_count; i++)
    s->ops->free_pinned(s->device, s->pages[i]);
  s->closed = true;
  return true;
}

void gbi_slots_free(gbi_slots *s) {
  if (!s) return;
  gbi_slot *slot = s->first;
  while (slot && s->closed) {
    gbi_slot *next = slot->next;
    free(slot);
    slot = next;
  }
  if (s->closed) free(s);
}
