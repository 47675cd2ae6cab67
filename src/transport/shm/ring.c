#include "transport/shm/ring.h"

#include <string.h>

_Static_assert(sizeof(gbi_slot) == 64, "the head of a slot is one cache line");
_Static_assert(sizeof(gbi_call) == 24, "the notice holds a call in 3 words");
_Static_assert(sizeof(gbi_ring_notice) == sizeof(gbi_ring_line), "one line");

enum {
  LINES = 2 + GBI_RING_NOTICES,
  PAGE = 4096,
  LINE = sizeof(gbi_ring_line)
};

static size_t round_up(size_t bytes, size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

static size_t slots_at(int readers) {
  return round_up((size_t)(LINES + readers) * LINE, PAGE);
}

static size_t stride_of(size_t slot_bytes) {
  return round_up(sizeof(gbi_slot) + slot_bytes, LINE);
}

size_t gbi_ring_bytes(int readers, int depth, size_t slot_bytes) {
  return round_up(slots_at(readers) + (size_t)depth * stride_of(slot_bytes),
                  PAGE);
}

void gbi_ring_init(gbi_ring *ring, void *window, int readers, int depth,
                   size_t slot_bytes, int owner, uint64_t *seen) {
  gbi_ring_line *lines = window;
  *ring = (gbi_ring){
      .filled = &lines[0], .wants_room = &lines[1],
      .notices = (gbi_ring_notice *)&lines[2], .consumed = &lines[LINES],
      .slots = (uint8_t *)window + slots_at(readers),
      .slot_bytes = slot_bytes, .stride = stride_of(slot_bytes),
      .readers = readers, .depth = depth, .owner = owner, .seen = seen};
}

/* Whether reader r is through with the round before `end`. */
static bool is_through(gbi_ring *ring, int r, uint64_t end) {
  if (ring->seen[r] >= end || r == ring->owner) return true;
  /* Pairs with the store in gbi_ring_consume: what the reader read from the
   * slot it read before we overwrite it. */
  ring->seen[r] = atomic_load(&ring->consumed[r].value);
  return ring->seen[r] >= end;
}

static bool is_free(gbi_ring *ring, int slot) {
  uint64_t end = ring->last[slot];
  if (!end) return true;
  if (ring->to[slot] != GBI_RING_ALL)
    return is_through(ring, ring->to[slot], end);
  for (int r = 0; r < ring->readers; r++)
    if (!is_through(ring, r, end)) return false;
  return true;
}

void *gbi_ring_room(gbi_ring *ring, uint64_t round) {
  int slot = (int)(round % (uint64_t)ring->depth);
  if (!is_free(ring, slot)) {
    if (ring->asked) return NULL;
    /* Either the reader sees this when it is through, or we see that it is:
     * the store, the reader's load and both on `consumed` have one order. */
    atomic_store(&ring->wants_room->value, 1);
    ring->asked = true;
    if (!is_free(ring, slot)) return NULL;
  }
  if (ring->asked) {
    atomic_store_explicit(&ring->wants_room->value, 0, memory_order_relaxed);
    ring->asked = false;
  }
  return ring->slots + ring->stride * (size_t)slot + sizeof(gbi_slot);
}

void gbi_ring_publish(gbi_ring *ring, uint64_t round, const gbi_call *call,
                      uint64_t tag, uint64_t chain, size_t bytes, int to) {
  int slot = (int)(round % (uint64_t)ring->depth);
  gbi_slot *head = (gbi_slot *)(ring->slots + ring->stride * (size_t)slot);
  head->call = *call;
  head->round = round;
  head->tag = tag;
  head->bytes = bytes;
  head->chain = chain;
  ring->last[slot] = round + 1;
  ring->to[slot] = to;
  atomic_store_explicit(&ring->filled->value, round + 1, memory_order_release);
}

void gbi_ring_announce(gbi_ring *ring, const gbi_call *call) {
  uint64_t words[3];
  memcpy(words, call, sizeof words);
  gbi_ring_notice *notice = &ring->notices[call->seq % GBI_RING_NOTICES];
  uint64_t version =
      atomic_load_explicit(&notice->version, memory_order_relaxed);
  atomic_store_explicit(&notice->version, version + 1, memory_order_relaxed);
  for (int i = 0; i < 3; i++)
    atomic_store_explicit(&notice->words[i], words[i], memory_order_release);
  atomic_store_explicit(&notice->version, version + 2, memory_order_release);
}

bool gbi_ring_noticed(const gbi_ring *ring, uint64_t seq, gbi_call *call) {
  gbi_ring_notice *notice = &ring->notices[seq % GBI_RING_NOTICES];
  uint64_t words[3];
  uint64_t version =
      atomic_load_explicit(&notice->version, memory_order_acquire);
  if (!version || version % 2) return false;
  for (int i = 0; i < 3; i++)
    words[i] = atomic_load_explicit(&notice->words[i], memory_order_acquire);
  if (atomic_load_explicit(&notice->version, memory_order_relaxed) != version)
    return false;
  memcpy(call, words, sizeof words);
  return call->seq == seq;
}

int gbi_ring_holders(const gbi_ring *ring, uint64_t round, int *readers,
                     int max) {
  int slot = (int)(round % (uint64_t)ring->depth), n = 0;
  for (int r = 0; r < ring->readers && n < max; r++) {
    if (r == ring->owner) continue;
    if (ring->to[slot] != GBI_RING_ALL && ring->to[slot] != r) continue;
    if (atomic_load(&ring->consumed[r].value) < ring->last[slot])
      readers[n++] = r;
  }
  return n;
}

bool gbi_ring_consume(gbi_ring *ring, int me, uint64_t round) {
  atomic_store(&ring->consumed[me].value, round + 1);
  return atomic_load(&ring->wants_room->value) != 0;
}
