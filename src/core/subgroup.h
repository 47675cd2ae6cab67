/* core/subgroup: the groups of a job besides the world: who, which number, how
 * long. The public calls of group.h, whose contracts hold. */
#ifndef GBI_CORE_SUBGROUP_H
#define GBI_CORE_SUBGROUP_H

#include "core/job.h"

#include <gpubridge/group.h>

void gbi_subgroups_init(gb_job *job);
/* Ends the queues of all, then (free) gives all back. */
void gbi_subgroups_drain(gb_job *job);
void gbi_subgroups_free(gb_job *job);
void gbi_subgroups_fini(gb_job *job);

gb_status gbi_subgroup_open(gb_job *job, const int *ranks, int count,
                            const gb_group_params *params, gb_group **group_p,
                            gb_error *error);
void gbi_subgroup_close(gb_group *group);
/* The job has failed: no group's streams wait any longer. Any thread. */
void gbi_subgroups_wake(gb_job *job);
/* For other ranks' questions, the world's group (0) included; false when there
 * is no such group. Any thread. */
bool gbi_subgroup_report(gb_job *job, uint32_t id, gbi_call_state *state);

#endif
