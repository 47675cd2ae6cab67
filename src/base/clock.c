#include "base/base.h"

#include <time.h>

uint64_t gbi_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * GBI_NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t gbi_deadline_after_ms(uint64_t timeout_ms) {
  uint64_t now = gbi_now_ns();
  if (timeout_ms > (GBI_NEVER - now) / GBI_NS_PER_MS) return GBI_NEVER;
  return now + timeout_ms * GBI_NS_PER_MS;
}

bool gbi_deadline_passed(uint64_t deadline_ns) {
  return deadline_ns != GBI_NEVER && gbi_now_ns() >= deadline_ns;
}

int gbi_deadline_left_ms(uint64_t deadline_ns, int most_ms) {
  if (deadline_ns == GBI_NEVER) return most_ms;
  uint64_t now = gbi_now_ns();
  if (now >= deadline_ns) return 0;
  uint64_t left = (deadline_ns - now + GBI_NS_PER_MS - 1) / GBI_NS_PER_MS;
  return left < (uint64_t)most_ms ? (int)left : most_ms;
}
