/* core/local: the steps that a rank does by itself, on host memory. */
#ifndef GBI_CORE_LOCAL_H
#define GBI_CORE_LOCAL_H

#include "plan/plan.h"

/* factor: what LOAD multiplies by. */
void gbi_local_run(const gbi_coll *coll, const gbi_step *step, const void *src,
                   void *dst, int world, double factor);

#endif
