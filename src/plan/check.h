/* The checker: proves that all ranks' plans of one call fit together.
 *
 * It runs every rank's plan in one process on symbolic data, with the strictest
 * reading of a communicator: a step moves data only when every member has
 * started it; a message of the mesh when both ends have, and a rank has room
 * for GBI_CHECK_WINDOW of them in flight. Calls whose small buffer may be this
 * rank's row of the large one run a second time like that, up to 1,024 ranks.
 * It reports
 *   - a communicator whose members list different steps, or a step of a rank
 *     on a bridge that it holds no link of,
 *   - a message without its counterpart, of another length, or sent twice,
 *   - a deadlock (nobody can start or finish a step),
 *   - a wrong result: an element not reduced, reduced twice, misplaced, not
 *     loaded with its rank's factor or not stored, or an input that changed,
 *   - a hazard: two steps of one rank that touch the same memory, one of them
 *     writing, with no dependency between them,
 *   - a scratch reference outside plan->scratch_bytes.
 * Elements are 64-bit tags added modulo 2^64, so "exactly once" is exact up to
 * a chance of 2^-64. */
#ifndef GBI_PLAN_CHECK_H
#define GBI_PLAN_CHECK_H

#include "plan/plan.h"
#include "plan/topology.h"

#define GBI_CHECK_WINDOW 2

/* plans[r]: rank r's plan; links: how many there are, 1 unless a policy uses
 * more. GB_ERR_INTERNAL with the reason. */
gb_status gbi_plans_check(const gbi_topology *topology, int links,
                          const gbi_plan *const *plans, gb_error *error);
/* The same with room for `window` messages, 1 to 16, in flight at each rank. */
gb_status gbi_plans_check_window(const gbi_topology *topology, int links,
                                 const gbi_plan *const *plans, int window,
                                 gb_error *error);

#endif
