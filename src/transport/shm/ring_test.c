/* Proves the ring's own promises without the layers above: a slot is not given
 * out before its readers are through, rounds may be skipped, a waiting
 * publisher is told, and announcements are never torn. */
#include "transport/shm/ring.h"
#include "harness/gb_area.h"
#include "harness/gb_test.h"

#include <stdlib.h>

enum { DEPTH = 4, SLOT = 256, READERS = 3 };

static const gbi_call a_call = {.seq = 3, .count = 9, .op = GBI_OP_BROADCAST};

static void *make(gbi_ring *publisher, gbi_ring *reader, uint64_t *seen) {
  size_t bytes = gbi_ring_bytes(READERS, DEPTH, SLOT);
  void *window = aligned_alloc(4096, bytes);
  GB_CHECK(window);
  memset(window, 0, bytes);
  gbi_ring_init(publisher, window, READERS, DEPTH, SLOT, 0, seen);
  gbi_ring_init(reader, window, READERS, DEPTH, SLOT, 0, NULL);
  return window;
}

static void put(gbi_ring *ring, uint64_t round, int to) {
  void *room = gbi_ring_room(ring, round);
  GB_CHECK(room);
  memcpy(room, &round, sizeof round);
  gbi_ring_publish(ring, round, &a_call, round * 2, 0, sizeof round, to);
}

static void get(gbi_ring *ring, uint64_t round) {
  const gbi_slot *slot = gbi_ring_peek(ring, round);
  uint64_t data;
  GB_CHECK(slot);
  memcpy(&data, gbi_slot_data(slot), sizeof data);
  GB_CHECK_INT(data, round);
  GB_CHECK_INT(slot->tag, round * 2);
  GB_CHECK(gbi_call_equal(&slot->call, &a_call));
}

GB_TEST(ring, slot_waits_for_its_readers) {
  gbi_ring p, r;
  uint64_t seen[READERS] = {0};
  void *window = make(&p, &r, seen);
  int holders[READERS];
  GB_CHECK(!gbi_ring_peek(&r, 0));
  put(&p, 0, GBI_RING_ALL); /* readers 1 and 2: 0 is the publisher */
  put(&p, 2, 2);            /* round 1 is not used */
  get(&r, 0);
  GB_CHECK(!gbi_ring_peek(&r, 3));
  GB_CHECK(!gbi_ring_room(&p, 4));
  GB_CHECK_INT(gbi_ring_holders(&p, 4, holders, READERS), 2);
  GB_CHECK(gbi_ring_consume(&r, 1, 0)); /* the publisher wants to know */
  GB_CHECK(!gbi_ring_room(&p, 4));
  GB_CHECK_INT(gbi_ring_holders(&p, 4, holders, READERS), 1);
  GB_CHECK_INT(holders[0], 2);
  GB_CHECK(gbi_ring_consume(&r, 2, 0));
  put(&p, 4, GBI_RING_ALL);
  get(&r, 4);
  put(&p, 5, GBI_RING_ALL); /* slot 1 was never used */
  GB_CHECK(!gbi_ring_room(&p, 6)); /* round 2 is reader 2's alone */
  GB_CHECK(gbi_ring_consume(&r, 2, 2));
  put(&p, 6, 1);
  GB_CHECK(!gbi_ring_consume(&r, 1, 6));
  free(window);
}

GB_TEST(ring, announcements_are_never_torn, .ranks = 2) {
  gbi_hostarea *area = gb_area_open(NULL);
  size_t bytes = gbi_ring_bytes(2, DEPTH, SLOT);
  uint64_t offset = 0, seen[2] = {0};
  if (gb_rank() == 0)
    GB_CHECK_OK(gbi_hostarea_alloc(area, bytes, &offset, NULL));
  gbi_reader all[2];
  gb_exchange(&offset, sizeof offset, all);
  void *window;
  memcpy(&offset, all[0].data, sizeof offset);
  GB_CHECK_OK(gbi_hostarea_map(area, offset, bytes, &window, NULL));
  gbi_ring ring;
  gbi_ring_init(&ring, window, 2, DEPTH, SLOT, 0, gb_rank() ? NULL : seen);
  _Atomic int *done = gb_spare();
  uint64_t read = 0;
  gbi_call call;
  for (uint64_t i = 1; gb_rank() == 0 && i < 400000; i++) {
    call = (gbi_call){.seq = 8 * i, .count = i, .root = (int)(i % 1000)};
    gbi_ring_announce(&ring, &call);
    if (i + 1 == 400000) atomic_store(done, 1);
  }
  while (gb_rank() == 1) {
    bool over = atomic_load(done);
    /* The slot of every multiple of 8; the number is whatever is there. */
    for (uint64_t i = read; i < read + 1000; i++)
      if (gbi_ring_noticed(&ring, 8 * i, &call)) {
        GB_CHECK_INT(call.count, i);
        GB_CHECK_INT(call.root, i % 1000);
        read = i;
      }
    if (over) break;
    read += 500;
    if (read > 399000) read = 0;
  }
  gb_meet();
  GB_CHECK(gbi_ring_noticed(&ring, 8 * 399999, &call));
  gbi_hostarea_close(area);
}
