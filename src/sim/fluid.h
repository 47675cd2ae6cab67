/* sim/fluid: work that shares resources.
 *
 * A flow asks each of several resources for so many seconds of it alone, all at
 * once and in step: it is over when each has given its part. Resources are
 * shared max-min fairly: flows are slowed down alike, and what one of them
 * cannot use because it waits elsewhere goes to the others. Alone, a flow takes
 * the time of its largest part. Levels within a thousandth of each other count
 * as one. */
#ifndef GBI_SIM_FLUID_H
#define GBI_SIM_FLUID_H

#include "base/base.h"

typedef struct gbi_part {
  uint32_t resource;
  double seconds; /* > 0 */
} gbi_part;

typedef struct gbi_fluid gbi_fluid;

/* NULL: no memory. */
gbi_fluid *gbi_fluid_new(uint32_t resources);
void gbi_fluid_free(gbi_fluid *fluid);
/* At least one part; copied. False: no memory. */
bool gbi_fluid_begin(gbi_fluid *fluid, const gbi_part *parts, uint32_t count,
                     uint64_t tag);
/* Seconds until the next flow ends, INFINITY when there is none. */
double gbi_fluid_next(gbi_fluid *fluid);
/* No further than the next end. */
void gbi_fluid_advance(gbi_fluid *fluid, double seconds);
/* Takes out one that has ended, those that began first, first. */
bool gbi_fluid_ended(gbi_fluid *fluid, uint64_t *tag_p);
/* Seconds that a resource was asked for so far. */
double gbi_fluid_busy(const gbi_fluid *fluid, uint32_t resource);

#endif
