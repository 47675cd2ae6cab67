#include "policy/policy.h"
#include "policy/rules.h"

#include <string.h>

static const gbi_policy_ops *const policies[] = {
    &gbi_policy_auto,
    &gbi_policy_native_only,
    &gbi_policy_direct,
    &gbi_policy_reduce_bridge_broadcast,
    &gbi_policy_sharded_bridge,
    &gbi_policy_flat,
    &gbi_policy_auto_tuned,
};

const gbi_policy_ops *gbi_policy_find(const char *name) {
  /* Pipelining is how bridge steps work here; its old name still answers. */
  if (!strcmp(name, "pipelined-reduce-bridge-broadcast"))
    name = gbi_policy_reduce_bridge_broadcast.name;
  for (size_t i = 0; i < GBI_COUNT(policies); i++)
    if (!strcmp(policies[i]->name, name)) return policies[i];
  return NULL;
}

const gbi_policy_ops *gbi_policy_nth(int index) {
  return index < (int)GBI_COUNT(policies) ? policies[index] : NULL;
}

bool gbi_policy_may_pass(const gbi_topology *topology, const char *bridge) {
  return gbi_policy_direct.fits(topology) && !strcmp(bridge, "shm");
}

/* What calls may travel by, besides the policy itself: number i of it, NULL
 * behind the last. A rule that does not fit gives way to auto. */
static const gbi_policy_ops *carrier(const gbi_policy_ops *policy,
                                     const gbi_rules *rules,
                                     const gbi_topology *topology, int i) {
  if (policy != &gbi_policy_auto_tuned) return i ? NULL : policy;
  if (!rules) return i ? NULL : &gbi_policy_auto;
  if (i >= rules->count) return NULL;
  const gbi_policy_ops *named = rules->rules[i].policy;
  return named->fits(topology) ? named : &gbi_policy_auto;
}

bool gbi_policy_needs_world(const gbi_policy_ops *policy,
                            const gbi_rules *rules,
                            const gbi_topology *topology, bool direct) {
  const gbi_policy_ops *p;
  for (int i = 0; (p = carrier(policy, rules, topology, i)); i++)
    if (p->uses_world || (p == &gbi_policy_auto && direct)) return true;
  return false;
}

bool gbi_policy_needs_bridge(const gbi_policy_ops *policy, gbi_codec codec,
                             bool direct) {
  bool passes = policy == &gbi_policy_direct ||
                (policy == &gbi_policy_auto && codec == GBI_CODEC_NONE);
  return !direct || !passes;
}

int gbi_policy_links(const gbi_policy_ops *policy, const gbi_rules *rules,
                     const gbi_topology *topology, int most) {
  if (topology->islands_count < 2) return 0;
  const gbi_policy_ops *p;
  int links = 1;
  for (int i = 0; (p = carrier(policy, rules, topology, i)); i++) {
    int wants = p == &gbi_policy_auto ? gbi_auto_links(topology, most)
                : p->uses_links       ? gbi_topology_links(topology, most)
                                      : 1;
    links = GBI_MAX(links, wants);
  }
  return links;
}

enum { ONE_HOST_CHUNK_BYTES = 256 * 1024 };
enum { CHUNK_LINKS_MAX = 8 }; /* chunks grow with the links up to here */

/* Between hosts, chunks in flight must cover the round trip. Inside one, a sum
 * should still be in the cache when it goes over the bridge and is handed out.
 * Both are about what one rank brings over its link. */
uint64_t gbi_policy_chunk_bytes(const gbi_topology *topology, uint64_t setting,
                                int links) {
  uint64_t chunk = setting;
  /* Nothing to hand out: the bridge cuts pieces of its own. */
  if (topology->islands_count == topology->world) return chunk;
  if (topology->hosts_count == 1) chunk = GBI_MIN(chunk, ONE_HOST_CHUNK_BYTES);
  return chunk * (uint64_t)GBI_MIN(GBI_MAX(links, 1), CHUNK_LINKS_MAX);
}

void gbi_policy_names(const gbi_topology *topology, char *buffer,
                      size_t bytes) {
  gbi_text text;
  gbi_text_init(&text, buffer, bytes);
  for (size_t i = 0; i < GBI_COUNT(policies); i++)
    if (!topology || policies[i]->fits(topology))
      gbi_text_add(&text, "%s%s", text.used ? ", " : "", policies[i]->name);
}

gb_status gbi_policy_plan(const gbi_policy_ops *policy,
                          const gbi_policy_env *env, const gbi_coll *coll,
                          gbi_plan **plan_p, gb_error *error) {
  gbi_plan *plan = gbi_plan_new(coll);
  if (!plan) return gbi_fail(error, GB_ERR_MEMORY, "no memory for a plan");
  plan->policy = policy->name;
  if (gbi_is_exchange(coll->op))
    gbi_plan_exchange(env, plan);
  else
    policy->plan(env, plan);
  gb_status status = gbi_plan_seal(plan, error);
  if (status != GB_OK)
    gbi_plan_free(plan);
  else
    *plan_p = plan;
  return status;
}

uint64_t gbi_chunk_elements(const gbi_policy_env *env, const gbi_plan *plan,
                            uint64_t total) {
  uint64_t bytes = gb_dtype_bytes(gbi_coll_travel_dtype(&plan->coll));
  uint64_t chunk = GBI_MAX(env->chunk_bytes / bytes, 1);
  uint64_t most = env->chunks_most;
  bool scratch = gbi_coll_is_wide(&plan->coll) || env->codec;
  if (most && !scratch && total / chunk >= most) chunk = total / most + 1;
  if (total / chunk >= GBI_CHUNKS_MAX) chunk = total / GBI_CHUNKS_MAX + 1;
  chunk = GBI_MIN(chunk, GBI_MAX(total, 1));
  uint64_t line = 64 / bytes;
  return chunk > line ? (chunk + line - 1) / line * line : chunk;
}

gbi_codec gbi_plan_codec(const gbi_policy_env *env, const gbi_coll *coll) {
  if (coll->op != GBI_OP_ALL_REDUCE && coll->op != GBI_OP_REDUCE_SCATTER &&
      coll->op != GBI_OP_REDUCE_SCATTER_V)
    return GBI_CODEC_NONE;
  if (coll->redop != GB_SUM && coll->redop != GB_AVG) return GBI_CODEC_NONE;
  if (gbi_dtype_class((gb_dtype)coll->dtype) != GBI_CLASS_FLOATING)
    return GBI_CODEC_NONE;
  /* bf16 is no smaller than a half type. */
  bool halves = gb_dtype_bytes(gbi_coll_travel_dtype(coll)) <= 2;
  if (halves && env->codec == GBI_CODEC_BF16) return GBI_CODEC_NONE;
  return env->codec;
}

uint64_t gbi_policy_scratch_max(const gbi_topology *topology,
                                uint64_t chunk_bytes, gbi_codec codec) {
  /* A chunk is rounded up to a line of 64 bytes; the rows of `flat` are at
   * least one element each. Payloads are at most half of a chunk, and what
   * scales and rounding add, one from each leader. */
  uint64_t payload = chunk_bytes / 2 + chunk_bytes / 256 + 128;
  uint64_t rows = codec ? (uint64_t)topology->islands_count : 0;
  return (chunk_bytes + 64 + rows * payload) * GBI_SLOTS +
         16 * (uint64_t)topology->world;
}
