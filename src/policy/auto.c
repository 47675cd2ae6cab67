/* auto: each call takes the policy that measured best for calls like it. A pure
 * function of what all ranks know, so that all choose alike. */
#include "policy/policy.h"

/* The table: a call takes the first line whose policy fits the topology and is
 * open to the group, from so many bytes on. Compressed sums pass by the one
 * that has no bridge. One of the first and the last fits always.
 * docs/policies/auto.md has the figures. */
typedef struct line {
  const gbi_policy_ops *policy;
  uint64_t least; /* bytes of the call's larger buffer */
} line;

static const line lines[] = {
    /* One island has no bridge. */
    {&gbi_policy_native_only, 0},
    /* One host: all ranks see one memory, and a step of all of them there takes
     * a third to nine tenths of the time of the three hops on 2 + 2 ranks, in
     * every collective, at every size. */
    {&gbi_policy_direct, 0},
    /* Islands over several hosts each, with a link a host. Shorter calls lose
     * more to their segments than a second line brings. */
    {&gbi_policy_sharded_bridge, 256 << 10},
    {&gbi_policy_reduce_bridge_broadcast, 0},
};

/* The hosts of the island that has the fewest. */
static int hosts_least(const gbi_topology *t) {
  int least = t->hosts_count;
  for (int i = 0; i < t->islands_count; i++) {
    /* Holders go round the hosts: up to a host's second turn all differ. */
    const gbi_island *island = &t->islands[i];
    int hosts = 1;
    while (hosts < island->count &&
           t->host_of[island->holders[hosts]] != t->host_of[island->holders[0]])
      hosts++;
    least = GBI_MIN(least, hosts);
  }
  return least;
}

int gbi_auto_links(const gbi_topology *topology, int most) {
  int hosts = hosts_least(topology);
  return gbi_topology_links(topology, most ? GBI_MIN(most, hosts) : hosts);
}

/* Whether a group under auto may ever send a call this way. */
static bool open_to(const gbi_policy_ops *policy, const gbi_policy_env *env) {
  if (!policy->fits(env->topology)) return false;
  if (policy == &gbi_policy_direct) return env->direct;
  if (policy == &gbi_policy_sharded_bridge) return env->links > 1;
  return true;
}

const gbi_policy_ops *gbi_auto_choose(const gbi_policy_env *env,
                                      const gbi_coll *coll) {
  uint64_t bytes = gbi_coll_bytes(coll, env->topology->world);
  /* The bridge is where sums are compressed. */
  bool coded = gbi_plan_codec(env, coll) != GBI_CODEC_NONE;
  const line *l = lines;
  while (!open_to(l->policy, env) || bytes < l->least ||
         (coded && l->policy == &gbi_policy_direct))
    l++;
  return l->policy;
}

static bool fits(const gbi_topology *topology) {
  (void)topology;
  return true;
}

static void make(const gbi_policy_env *env, gbi_plan *plan) {
  const gbi_policy_ops *policy = gbi_auto_choose(env, &plan->coll);
  plan->policy = policy->name;
  policy->plan(env, plan);
}

const gbi_policy_ops gbi_policy_auto = {
    .name = "auto",
    .help = "by topology and by a call's bytes, the policy that measured best",
    .fits = fits,
    .plan = make,
};
