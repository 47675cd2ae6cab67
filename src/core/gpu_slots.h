/* core/gpu_slots: where messages of a GPU lie between it and the mesh: pinned
 * memory and two flags each, taken for one message, used again for later ones.
 *
 * take: one thread at a time, which may call the vendor's runtime. The rest:
 * any thread, and no call of the runtime, close excepted. */
#ifndef GBI_CORE_GPU_SLOTS_H
#define GBI_CORE_GPU_SLOTS_H

#include "device/device.h"

#include <stdatomic.h>

typedef struct gbi_slots gbi_slots;

typedef struct gbi_slot {
  void *memory;   /* pinned; NULL: for messages of no bytes */
  uint64_t bytes; /* of it */
  uint64_t turn;  /* what both flags are raised to for this message */
  _Atomic uint64_t *ready, *arrived; /* by the GPU, by the host */
  uint8_t *ready_device, *arrived_device;
  gbi_event moved; /* the GPU is through with the memory, once recorded */
  /* The pool's own. */
  struct gbi_slot *next;
  _Atomic int state;
} gbi_slot;

gbi_slots *gbi_slots_new(gbi_device *device); /* NULL: no memory */
/* A free slot for that many bytes. MEMORY where they cannot be pinned. */
gb_status gbi_slots_take(gbi_slots *slots, uint64_t bytes, gbi_slot **slot_p,
                         gb_error *error);
/* Back again. moves: the GPU may still use the memory, until `moved`. */
void gbi_slots_give(gbi_slot *slot, bool moves);
/* Lets the GPU go on that waits for this message. */
void gbi_slot_arrive(gbi_slot *slot);
bool gbi_slot_has_arrived(const gbi_slot *slot);
bool gbi_slot_is_ready(const gbi_slot *slot);
/* Lets everything go on that waits or will wait. For good. */
void gbi_slots_open(gbi_slots *slots);
/* Waits until the GPU is through with all of them and gives the memory back.
 * False: not by then; it stays. */
bool gbi_slots_close(gbi_slots *slots, uint64_t deadline_ns);
void gbi_slots_free(gbi_slots *slots); /* the rest; NULL is fine */

#endif
