/* direct: one host, so all ranks meet in its memory and nothing crosses a
 * bridge.
 *
 *      island A            shared memory            island B
 *   rank 0, rank 1  --->  one step of all ranks  <---  rank 2, rank 3
 *
 * The plans are those of native-only, on the communicator of all ranks. That
 * one adds up each island first and then the islands (ccl/ccl.h: teams): the
 * bits are those of reduce-bridge-broadcast. */
#include "policy/policy.h"

static bool fits(const gbi_topology *topology) {
  return topology->islands_count >= 2 && topology->hosts_count == 1;
}

static void make(const gbi_policy_env *env, gbi_plan *plan) {
  gbi_plan_on_one(env, plan, GBI_ON_WORLD);
}

const gbi_policy_ops gbi_policy_direct = {
    .name = "direct",
    .help = "one host: every collective is one step of all ranks in its shared "
            "memory, without the bridge",
    .fits = fits,
    .plan = make,
    .uses_world = true,
};
