/* auto: each call takes the policy that measured best for calls like it, by
 * collective, bytes and topology. A pure function of what all ranks know, so
 * all choose alike. */
#include "policy/policy.h"

/* The table: a call takes the first line that its topology fits, that is open
 * to its group, and that takes its collective and bytes. The last takes what is
 * left. docs/policies/auto.md has the figures. */
typedef struct line {
  const gbi_policy_ops *policy;
  int op;                /* GBI_OP_COUNT: any */
  uint64_t least, most;  /* bytes of the call's larger buffer */
  bool pair;             /* two ranks only, an island each */
} line;

static const line lines[] = {
    /* One island has no bridge. */
    {&gbi_policy_native_only, GBI_OP_COUNT, 0, UINT64_MAX, false},
    /* Two ranks on one host: the bridge's own step is all there is to an
     * all_reduce, and between these sizes it takes 5 to 14 % less time than a
     * step of the island's kind. */
    {&gbi_policy_reduce_bridge_broadcast, GBI_OP_ALL_REDUCE, 8193, 4 << 20,
     true},
    /* One host: all ranks see one memory. A step there takes a third to nine
     * tenths of the time of the three hops. */
    {&gbi_policy_direct, GBI_OP_COUNT, 0, UINT64_MAX, false},
    /* Islands over several hosts each, with a link a host. Shorter calls lose
     * more to their segments than a second line brings. */
    {&gbi_policy_sharded_bridge, GBI_OP_COUNT, 256 << 10, UINT64_MAX, false},
    {&gbi_policy_reduce_bridge_broadcast, GBI_OP_COUNT, 0, UINT64_MAX, false},
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

static bool takes(const line *l, const gbi_policy_env *env,
                  const gbi_coll *coll, uint64_t bytes) {
  return open_to(l->policy, env) &&
         (l->op == GBI_OP_COUNT || l->op == coll->op) && bytes >= l->least &&
         bytes <= l->most && (!l->pair || env->topology->world == 2);
}

const gbi_policy_ops *gbi_auto_choose(const gbi_policy_env *env,
                                      const gbi_coll *coll) {
  uint64_t bytes = gbi_coll_bytes(coll, env->topology->world);
  /* The bridge is where sums are compressed. */
  bool bridge = gbi_plan_codec(env, coll) != GBI_CODEC_NONE;
  const line *l = lines;
  while (!takes(l, env, coll, bytes) ||
         (bridge && l->policy == &gbi_policy_direct))
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
    .help = "by each call's collective and bytes and by the topology, what "
            "measured best",
    .fits = fits,
    .plan = make,
};
