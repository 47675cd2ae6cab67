/* policy: how a collective travels.
 *
 * May call base, codec (sizes of payloads) and plan. A policy turns (topology,
 * collective, settings) into one rank's plan. It is pure: no I/O, no sockets,
 * no streams, no clock. It changes how data travels, never what is computed
 * (but for what compression loses); `flat` is the slow reference that all
 * others are compared with. Exchanges (gather, scatter, all_to_all) travel the
 * same way under every policy: exchange.c.
 *
 * Adding one: a file here and a line in policy.c. */
#ifndef GBI_POLICY_POLICY_H
#define GBI_POLICY_POLICY_H

#include "codec/codec.h"
#include "plan/plan.h"
#include "plan/topology.h"

typedef struct gbi_policy_env {
  const gbi_topology *topology;
  int rank;             /* the rank whose plan is made */
  uint64_t chunk_bytes; /* pipelining unit; equal on all ranks */
  uint64_t chunks_most; /* of a call, 0: GBI_CHUNKS_MAX; equal on all ranks */
  const struct gbi_rules *rules; /* of auto-tuned; NULL: none */
  int links;            /* that are open: gbi_policy_links */
  gbi_codec codec;      /* of sums on the bridge; equal on all ranks */
  /* Sums on the bridge that are not compressed, of at least so many bytes, are
   * given to all holders, which COMBINE them; 0: none. Equal on all ranks. */
  uint64_t apart_least;
  bool direct; /* auto may pass the bridge by: gbi_policy_may_pass */
} gbi_policy_env;

typedef struct gbi_policy_ops {
  const char *name;
  const char *help;
  bool (*fits)(const gbi_topology *topology);
  /* Fills an empty plan; the caller seals it. */
  void (*plan)(const gbi_policy_env *env, gbi_plan *plan);
  bool uses_world; /* needs the communicator of all ranks */
  bool uses_links; /* needs the links beside the leaders' */
} gbi_policy_ops;

extern const gbi_policy_ops gbi_policy_auto;
extern const gbi_policy_ops gbi_policy_native_only;
extern const gbi_policy_ops gbi_policy_direct;
extern const gbi_policy_ops gbi_policy_reduce_bridge_broadcast;
extern const gbi_policy_ops gbi_policy_sharded_bridge;
extern const gbi_policy_ops gbi_policy_flat;
extern const gbi_policy_ops gbi_policy_auto_tuned;

/* By name, old aliases included; NULL when unknown. */
const gbi_policy_ops *gbi_policy_find(const char *name);
/* Each in turn, from 0; NULL after the last. */
const gbi_policy_ops *gbi_policy_nth(int index);
/* Whether auto may leave out a bridge of this name: it is the shared memory of
 * the one host that all ranks are on, where a step of all of them is the same
 * thing in fewer moves. Who names another bridge wants it used. */
bool gbi_policy_may_pass(const gbi_topology *topology, const char *bridge);
/* How many links a group under this policy opens: at most `most` (0: no bound),
 * 1 when it needs the leaders' only, 0 with one island. */
int gbi_policy_links(const gbi_policy_ops *policy,
                     const struct gbi_rules *rules,
                     const gbi_topology *topology, int most);
/* The pipelining unit of a group: `setting` is what one rank brings over its
 * link. A function of what all ranks agreed on, so that all cut alike. */
uint64_t gbi_policy_chunk_bytes(const gbi_topology *topology, uint64_t setting,
                                int links);
/* Names for error texts; only those that fit, when topology is given. */
void gbi_policy_names(const gbi_topology *topology, char *buffer,
                      size_t bytes);

/* Whether a group needs the communicator of all ranks: for the policy itself,
 * or for one that its rules (NULL: none) name. direct: as in gbi_policy_env. */
bool gbi_policy_needs_world(const gbi_policy_ops *policy,
                            const struct gbi_rules *rules,
                            const gbi_topology *topology, bool direct);

/* Whether it needs those of islands and bridge: not where every call of it goes
 * direct, which is most groups of one host. */
bool gbi_policy_needs_bridge(const gbi_policy_ops *policy, gbi_codec codec,
                             bool direct);

/* Makes and seals one rank's plan. The caller frees it. */
gb_status gbi_policy_plan(const gbi_policy_ops *policy,
                          const gbi_policy_env *env, const gbi_coll *coll,
                          gbi_plan **plan_p, gb_error *error);

/* A policy of the caller's own (core/parts.h): what it takes, and its plans. */
bool gbi_policy_caller_takes(const gbi_coll *coll);
void gbi_policy_caller_plan(const gbi_policy_env *env, gbi_plan *plan);

/* The most scratch a plan of these settings can ask for. */
uint64_t gbi_policy_scratch_max(const gbi_topology *topology,
                                uint64_t chunk_bytes, gbi_codec codec);

/* ---- shared by the policies ---- */

/* Chunks in flight at most: the bridge works on some while islands fill and
 * empty others. */
#define GBI_LOOKAHEAD 4
#define GBI_SLOTS (GBI_LOOKAHEAD + 2) /* scratch slots of one chunk */

/* Elements per chunk for `total` elements: chunk_bytes of the type they travel
 * in, at least 1, larger when GBI_CHUNKS_MAX would be passed, no more than
 * there are. Aligned to 64 bytes. */
uint64_t gbi_chunk_elements(const gbi_policy_env *env, const gbi_plan *plan,
                            uint64_t total);
/* The plans of reduce-bridge-broadcast over the links 0 to links - 1. */
void gbi_plan_over_links(const gbi_policy_env *env, gbi_plan *plan, int links);
/* The plans of native-only on a communicator of all ranks. */
void gbi_plan_on_one(const gbi_policy_env *env, gbi_plan *plan,
                     gbi_resource on);
/* What auto takes for a call, and how many links it can use. */
const gbi_policy_ops *gbi_auto_choose(const gbi_policy_env *env,
                                      const gbi_coll *coll);
int gbi_auto_links(const gbi_topology *topology, int most);
/* How this call's sums cross the bridge: GBI_CODEC_NONE, or the env's codec for
 * SUM and AVG of all_reduce and reduce_scatter, of float16 to float64, where
 * payloads are smaller than what they stand for. */
gbi_codec gbi_plan_codec(const gbi_policy_env *env, const gbi_coll *coll);
/* gather, scatter and all_to_all. */
bool gbi_is_exchange(int op);
void gbi_plan_exchange(const gbi_policy_env *env, gbi_plan *plan);

#endif
