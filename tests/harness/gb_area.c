#include "harness/gb_area.h"

#include "harness/gb_test.h"

#include <stdlib.h>

#define ARENA_BYTES (48 * 1024)

typedef struct shared_page {
  int arrived;
  char pad[124];
  uint32_t bytes[GB_AREA_RANKS_MAX];
  uint8_t arena[ARENA_BYTES];
} shared_page;

const gbi_auth gb_area_auth = {{1, 2, 3}, {4, 5, 6}};

void *gb_spare(void) {
  return (char *)gb_test_shared() + 65536 - GB_SPARE_BYTES;
}

void gb_meet(void) {
  static int passed;
  shared_page *page = gb_test_shared();
  passed += gb_world();
  __atomic_fetch_add(&page->arrived, 1, __ATOMIC_ACQ_REL);
  gb_test_await(&page->arrived, passed, 60000);
}

void gb_exchange(const void *mine, size_t bytes, gbi_reader *all) {
  static uint8_t copy[ARENA_BYTES];
  shared_page *page = gb_test_shared();
  size_t share = ARENA_BYTES / (size_t)gb_world();
  GB_CHECK(bytes <= share);
  memcpy(page->arena + share * (size_t)gb_rank(), mine, bytes);
  page->bytes[gb_rank()] = (uint32_t)bytes;
  gb_meet();
  memcpy(copy, page->arena, sizeof copy);
  for (int r = 0; r < gb_world(); r++)
    gbi_reader_init(&all[r], copy + share * (size_t)r, page->bytes[r]);
  gb_meet();
}

gbi_hostarea *gb_area_open(const int *host) {
  int ranks[GB_AREA_RANKS_MAX], count = 0, me = 0;
  for (int r = 0; r < gb_world(); r++) {
    if (host && host[r] != host[gb_rank()]) continue;
    if (r == gb_rank()) me = count;
    ranks[count++] = r;
  }
  gbi_hostarea *area;
  gb_error error;
  if (gbi_hostarea_open(&gb_area_auth, ranks, count, me, &area, &error))
    gb_test_fail(__FILE__, __LINE__, "%s", error.text);
  uint8_t mine[256];
  gbi_writer w;
  gbi_writer_init(&w, mine, sizeof mine);
  gbi_hostarea_address(area, &w);
  GB_CHECK(!w.bad);
  gbi_reader all[GB_AREA_RANKS_MAX], local[GB_AREA_RANKS_MAX];
  gb_exchange(mine, w.used, all);
  for (int i = 0; i < count; i++) local[i] = all[ranks[i]];
  if (gbi_hostarea_connect(area, local, gbi_deadline_after_ms(20000), &error))
    gb_test_fail(__FILE__, __LINE__, "%s", error.text);
  return area;
}
