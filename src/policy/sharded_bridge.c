/* sharded-bridge: k links between the islands instead of one.
 *
 * Rank j of every island holds link j (plan/topology.h). Drawing of an
 * all_reduce, 2 + 2 ranks, 2 links, per chunk:
 *
 *      island A                              island B
 *   segment 0 --reduce--> rank 0 <==link 0==> rank 2 <--reduce-- segment 0
 *   segment 1 --reduce--> rank 1 <==link 1==> rank 3 <--reduce-- segment 1
 *   everybody <--bcast--- 0 and 1            2 and 3 ---bcast--> everybody
 *
 * Everything else is cut into segments the same way, so this is the plan of
 * reduce-bridge-broadcast with several leaders; that file makes it. Each
 * element is added up in the same order as there: the same bits come out. */
#include "policy/policy.h"

static bool fits(const gbi_topology *topology) {
  return topology->islands_count >= 2;
}

static void make(const gbi_policy_env *env, gbi_plan *plan) {
  gbi_plan_over_links(env, plan, env->links);
}

const gbi_policy_ops gbi_policy_sharded_bridge = {
    .name = "sharded-bridge",
    .help = "as reduce-bridge-broadcast, cut over as many links as the "
            "smallest island has ranks, one a rank",
    .fits = fits,
    .plan = make,
    .uses_links = true,
};
