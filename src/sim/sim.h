/* sim: how long a collective would take on hosts and links that are not there.
 *
 * May call base, codec, plan, policy. Pure: no I/O, no clock, no threads, the
 * same input gives the same output. It makes the real plans of all ranks, one
 * at a time, and runs their steps as the engine does (core/engine.h): steps of
 * a resource start in the order of the list as soon as what they depend on is
 * done. A step moves data once every member has started it, as in the strictest
 * reading of a communicator (plan/check.h), and shares cores, memory, NICs and
 * paths with all others that are under way (sim/fluid.h). docs/simulate.md says
 * what is left out. */
#ifndef GBI_SIM_SIM_H
#define GBI_SIM_SIM_H

#include "plan/plan.h"
#include "plan/topology.h"
#include "policy/policy.h"
#include "sim/links.h"

/* More steps of all ranks together are refused: hours, not minutes. */
#define GBI_SIM_STEPS_MAX (UINT64_C(1) << 26)

/* One rank's plan; the simulation frees it. */
typedef gb_status (*gbi_sim_plan_fn)(void *arg, int rank, const gbi_coll *coll,
                                     gbi_plan **plan_p, gb_error *error);

typedef struct gbi_sim_spec {
  const gbi_topology *topology;
  const gbi_links *links;
  int bridges; /* links between the islands that are open */
  gbi_sim_plan_fn plan;
  void *plan_arg;
} gbi_sim_spec;

typedef struct gbi_sim_result {
  double seconds; /* until the last rank is done */
  /* The resource that was asked for most, or the communicator whose steps had
   * to follow each other, and the part of the time it was. */
  char busiest[96];
  double busy;
  uint64_t plan_steps; /* of all ranks */
  uint64_t steps;      /* of communicators, messages and ranks, each once */
} gbi_sim_result;

/* INTERNAL: plans that do not fit together, or wait for each other: who for
 * what. ARGUMENT: more than GBI_SIM_STEPS_MAX steps. */
gb_status gbi_sim_run(const gbi_sim_spec *spec, const gbi_coll *coll,
                      gbi_sim_result *result, gb_error *error);

/* The plans of a policy as a job would make them: chunks and links by its
 * rules. on_hosts: what is moved lies in host memory on every rank, so that
 * auto may go direct. chunk_bytes: of the setting. */
typedef struct gbi_sim_policy {
  const gbi_policy_ops *policy;
  gbi_policy_env env;
} gbi_sim_policy;
void gbi_sim_policy_open(gbi_sim_policy *made, const gbi_policy_ops *policy,
                         const gbi_topology *topology, bool on_hosts,
                         uint64_t chunk_bytes, int links_most);
/* A gbi_sim_plan_fn over a gbi_sim_policy. */
gb_status gbi_sim_policy_plan(void *arg, int rank, const gbi_coll *coll,
                              gbi_plan **plan_p, gb_error *error);

#endif
