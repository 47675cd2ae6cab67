/* Groups: some of a job's ranks that call collectives together.
 *
 * The world (gb_job_world) is one; a group of any other members is opened by
 * all of its members, and by nobody else. It has its own islands, bridge,
 * sequence numbers, plans and worker; calls of different groups may run at the
 * same time. A failure of any group ends the job. */
#ifndef GPUBRIDGE_GROUP_H
#define GPUBRIDGE_GROUP_H

#include <gpubridge/job.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gb_group_params {
  size_t size; /* sizeof(gb_group_params) of the caller's header */
  /* Equal on all members, and different from the names of the other open groups
   * of the same members. NULL: made from how many groups of these members this
   * process opened before; members must then open them in one order. */
  const char *name;
  uint64_t timeout_ms; /* of the set-up and of every call; 0: the job's */
  const char *policy;  /* NULL: the job's, where it fits these members */
} gb_group_params;

#define GB_GROUP_PARAMS_INIT                                                   \
  { sizeof(gb_group_params), NULL, 0, NULL }

/* ranks: global ranks, all different, in the order of the group's own ranks
 * (torch passes them sorted, but any order is fine); this rank must be one of
 * them. Blocks until every member has called it, at most until timeout_ms; a
 * member that did not come is named. Borrowed until it returns. params NULL:
 * GB_GROUP_PARAMS_INIT. The caller owns *group_p: gb_group_close, at the latest
 * before gb_job_close, which closes what is left.
 * Statuses: ARGUMENT at once; MISMATCH (members gave different lists), TIMEOUT,
 * CONNECT, MEMORY, ABORTED and the like on every member. */
GB_API gb_status gb_group_open(gb_job *job, const int *ranks, int count,
                               const gb_group_params *params,
                               gb_group **group_p,
                               gb_error *error) GB_MUST_CHECK;
/* Runs what is queued and frees it. Members need not call it together. NULL and
 * the world's group are no-ops. */
GB_API gb_status gb_group_close(gb_group *group, gb_error *error);

/* gb_job_serve for one group: runs its async calls on the calling thread until
 * the group or the job is closed. */
GB_API gb_status gb_group_serve(gb_group *group, gb_error *error) GB_MUST_CHECK;

/* Bounds every call that starts from now on; 0: the job's. Any thread. */
GB_API gb_status gb_group_set_timeout(gb_group *group, uint64_t timeout_ms);
/* Calls that this group has started: the next one takes this number. Any
 * thread. */
GB_API uint64_t gb_group_calls(gb_group *group);
/* GB_OK until the job fails; then what calls are refused with. For callers that
 * wait for something of their own. Never blocks. Any thread. */
GB_API gb_status gb_group_check(gb_group *group, gb_error *error);

/* Fixed at open; strings and lists live as long as the group. */
typedef struct gb_group_info {
  size_t size;
  int rank; /* this process within the group */
  int count;
  const int *ranks; /* global rank of each group rank */
  uint32_t id;      /* equal on all members; 0: the world */
  const char *policy;
  const char *bridge; /* "none" with one island */
  int islands_count;
  const int *island_of; /* by group rank: islands in order of lowest rank */
  int hosts_count;
  const int *host_of;
} gb_group_info;
GB_API gb_status gb_group_get_info(const gb_group *group, gb_group_info *info);

#ifdef __cplusplus
}
#endif
#endif
