/* core/group: a list of ranks that call collectives together.
 *
 * It numbers calls, makes and caches plans, runs sync calls on the caller's
 * thread and async calls on a worker, and turns the first failure into the
 * job's one sentence. Locks, in order: group->lock (level 10: queue, driver
 * role, works), group->state_lock (level 20: what other ranks may ask about).
 * Neither is held while steps run or a callback is called. */
#ifndef GBI_CORE_GROUP_H
#define GBI_CORE_GROUP_H

#include "control/control.h"
#include "core/engine.h"
#include "core/gpu.h"
#include "core/parts.h"
#include "os/fork.h"
#include "policy/policy.h"
#include "policy/rules.h"

#include <gpubridge/coll.h>
#include <gpubridge/job.h>

#define GBI_PLANS_CACHED 64

/* What a group needs of its job. All borrowed for the group's life. */
typedef struct gbi_group_params {
  uint32_t id;
  int rank, world;        /* within the group */
  const int *members;     /* global rank of each group rank; copied */
  const char *const *who; /* "rank 3 (host \"h\", amd)" by group rank */
  const gbi_topology *topology;
  const gbi_policy_ops *policy;
  const gbi_rules *rules; /* of auto-tuned; NULL: none */
  const char *bridge;     /* resolved name */
  uint64_t chunk_bytes;
  int links;       /* see gbi_policy_env */
  gbi_codec codec; /* of sums on the bridge */
  bool direct;     /* see gbi_policy_env */
  struct gb_job *job;
  gbi_engine *engine; /* given */
  gbi_control *control;
  gbi_watch *watch;
  gbi_waiter *waiter;
  uint64_t timeout_ms; /* at first; see gbi_group_set_timeout */
  uint64_t warn_after_ms;
  int queue_max;
  uint64_t queue_bytes_max;
  int (*wait_hook)(void *arg);
  void *wait_hook_arg;
  struct gbi_job_p2p *p2p;     /* core/p2p.h */
  const gbi_parts *parts;      /* the job's */
  gbi_gpu *gpu;                /* given; NULL: the group is on host memory */
  uint64_t chunks_most;        /* see gbi_policy_env */
  bool own_policy, own_bridge; /* this group's are parts */
} gbi_group_params;

gb_status gbi_group_open(const gbi_group_params *params, gb_group **group_p,
                         gb_error *error);
/* Runs what is queued (or fails it, when the job has failed), ends the worker.
 * After it every call is refused. */
void gbi_group_drain(gb_group *group);
void gbi_group_free(gb_group *group);

/* A checked call. in and out as the plan's GBI_IN and GBI_OUT. NULL work_p:
 * blocks. Lengths in `coll` are borrowed until it returns. */
gb_status gbi_group_call(gb_group *group, const gbi_coll *coll, const void *in,
                         void *out, gb_work **work_p, gb_error *error);
/* The same for a reduction that multiplies this rank's contribution. */
gb_status gbi_group_call_scaled(gb_group *group, const gbi_coll *coll,
                                const void *in, void *out, double factor,
                                gb_work **work_p, gb_error *error);
/* The job has failed, and says so: nothing on the group's streams waits any
 * longer. Any thread. */
void gbi_group_wake(gb_group *group);
/* Runs queued calls on the calling thread until the group is drained. */
void gbi_group_serve(gb_group *group);
/* For other ranks' questions. Any thread. */
bool gbi_group_report(gb_group *group, gbi_call_state *state);

gbi_engine *gbi_group_engine(gb_group *group);
int gbi_group_rank(const gb_group *group);
/* As given at open; members are the group's own copy. */
const gbi_group_params *gbi_group_params_of(const gb_group *group);
int gbi_group_world(const gb_group *group);
/* Of every call that starts from now on. Any thread. */
void gbi_group_set_timeout(gb_group *group, uint64_t timeout_ms);
uint64_t gbi_group_timeout(const gb_group *group);
/* Of every call that starts from now on, in the place of the one it was opened
 * with, whose communicators it must do with. On all members between the same
 * calls, by the only thread that calls. */
void gbi_group_set_policy(gb_group *group, const gbi_policy_ops *policy);
/* STATE or FORKED with a text, when no call may be made now. */
gb_status gbi_group_usable(gb_group *group, gb_error *error);
/* gb_group_check, of which the contract holds. */
gb_status gbi_group_check(gb_group *group, gb_error *error);

gb_status gbi_fail_forked(gb_error *error);

#endif
