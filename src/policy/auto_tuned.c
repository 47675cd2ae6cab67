/* auto-tuned: each call takes the policy that the rules name for its bytes.
 * Without rules that is `auto`. */
#include "policy/policy.h"
#include "policy/rules.h"

static bool fits(const gbi_topology *topology) {
  (void)topology; /* of the rules, each is asked by itself */
  return true;
}

static void make(const gbi_policy_env *env, gbi_plan *plan) {
  const gbi_policy_ops *policy =
      gbi_rules_choose(env->rules, env->topology, &plan->coll);
  plan->policy = policy->name;
  policy->plan(env, plan);
}

const gbi_policy_ops gbi_policy_auto_tuned = {
    .name = "auto-tuned",
    .help =
        "the policy that a thresholds file names for the call's bytes "
        "(GPUBRIDGE_THRESHOLDS) or init measures (GPUBRIDGE_TUNE); without "
        "either, what auto takes",
    .fits = fits,
    .plan = make,
};
