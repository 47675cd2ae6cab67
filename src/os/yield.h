/* Giving the core away for a moment before sleeping: what every wait of the
 * library does first. */
#ifndef GBI_OS_YIELD_H
#define GBI_OS_YIELD_H

#include "base/base.h"

#include <stdatomic.h>

/* What waits learn about their core, kept between them. Zeroed at first;
 * threads may share one, and lose nothing but a count when they meet. */
typedef struct gbi_crowd {
  _Atomic uint64_t waits_without_yields; /* to come: others compute here */
} gbi_crowd;

/* One wait, from the last thing that moved on. Start with {0}. */
typedef struct gbi_yields {
  int count;
  uint64_t end_ns;
} gbi_yields;

/* Lets others run for a moment. False: it is time to sleep. */
bool gbi_yield_core(gbi_crowd *crowd, gbi_yields *yields);

#endif
