#include "os/yield.h"

#include <sched.h>

enum {
  YIELDS = 20,         /* measured: research 1.6, yield then sleep */
  /* Yields that take longer go to others of this core; a sleeper is woken on
   * an idle one. */
  YIELDS_NS = 100000,
  /* A yield that took this long went to a program that computes, which gets a
   * whole time slice each time; a sleeper that is woken goes first, but waking
   * costs. So as many waits go without yields as that time is worth. */
  CROWDED_NS = 1000000,
  WAKE_NS = 20000
};

static uint64_t waits_without(const gbi_crowd *crowd) {
  return atomic_load_explicit(&crowd->waits_without_yields,
                              memory_order_relaxed);
}

static void set_waits_without(gbi_crowd *crowd, uint64_t waits) {
  atomic_store_explicit(&crowd->waits_without_yields, waits,
                        memory_order_relaxed);
}

bool gbi_yield_core(gbi_crowd *crowd, gbi_yields *yields) {
  uint64_t without = waits_without(crowd);
  if (without) {
    set_waits_without(crowd, without - 1);
    return false;
  }
  uint64_t now = gbi_now_ns();
  if (!yields->count) yields->end_ns = now + YIELDS_NS;
  if (yields->count >= YIELDS || now >= yields->end_ns) return false;
  yields->count++;
  sched_yield();
  uint64_t took = gbi_now_ns() - now;
  if (took > CROWDED_NS) set_waits_without(crowd, took / WAKE_NS);
  return true;
}
