/* core/connect: brings a group up: its communicators, its engine, the group. */
#ifndef GBI_CORE_CONNECT_H
#define GBI_CORE_CONNECT_H

#include "core/job.h"

/* Which group. Everything is by group rank, and borrowed until it is open,
 * except `topology`, `who` and the names: lent for the group's life. */
typedef struct gbi_group_spec {
  uint32_t id;
  const int *ranks; /* global */
  int count, me;
  const gbi_topology *topology;
  const char *const *who;
  const gbi_policy_ops *policy;
  const gbi_rules *rules; /* NULL: none; outlive the group */
  int links;              /* between its islands: gbi_policy_links */
  const char *bridge;     /* resolved: a transport's name, or "none" */
  bool direct;            /* see gbi_policy_env */
  uint64_t timeout_ms, deadline_ns;
} gbi_group_spec;

/* Every member calls it. Blocks until all members are connected or the deadline
 * passed; a failure anywhere ends it everywhere with the same text. *settled_p:
 * the members have agreed on that failure, and nobody is left in the middle;
 * otherwise the job must end, so that nobody waits. */
gb_status gbi_connect_group(gb_job *job, const gbi_group_spec *spec,
                            gb_group **group_p, bool *settled_p,
                            gb_error *error);

/* An exchange of blobs among the members; `problem` may be NULL. */
gb_status gbi_connect_exchange(gb_job *job, const gbi_group_spec *spec,
                               const gb_error *problem, const gbi_writer *blob,
                               gbi_blobs *blobs, gb_error *error);

/* From here to the call with NULLs, a failure of the job ends the connecting of
 * these. Without it a rank would wait for a peer that has given up until the
 * deadline, which may be half an hour. */
void gbi_connect_watch(gb_job *job, gbi_hostarea *area, gbi_comm **comms,
                       gbi_gpu *gpu);

#endif
