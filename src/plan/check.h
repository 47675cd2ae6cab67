/* The checker: proves that all ranks' plans of one call fit together.
 *
 * It runs every rank's plan in one process on symbolic data, with the strictest
 * reading of a communicator: a step moves data only when every member has
 * started it. It reports
 *   - a communicator whose members list different steps,
 *   - a deadlock (nobody can start or finish a step),
 *   - a wrong result: an element not reduced, reduced twice, misplaced, or an
 *     input that was changed,
 *   - a hazard: two steps of one rank that touch the same memory, one of them
 *     writing, with no dependency between them,
 *   - a scratch reference outside plan->scratch_bytes.
 * Elements are 64-bit tags added modulo 2^64, so "exactly once" is exact up to
 * a chance of 2^-64. */
#ifndef GBI_PLAN_CHECK_H
#define GBI_PLAN_CHECK_H

#include "plan/plan.h"
#include "plan/topology.h"

/* plans[r]: rank r's plan. GB_ERR_INTERNAL with the reason. */
gb_status gbi_plans_check(const gbi_topology *topology,
                          const gbi_plan *const *plans, gb_error *error);

#endif
