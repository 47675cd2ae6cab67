#include <gpubridge/group.h>

#include "core/subgroup.h"

#include <string.h>

gb_status gb_group_open(gb_job *job, const int *ranks, int count,
                        const gb_group_params *params, gb_group **group_p,
                        gb_error *error) {
  if (!job || !group_p)
    return gbi_fail(error, GB_ERR_ARGUMENT, "the job or group_p is NULL");
  return gbi_subgroup_open(job, ranks, count, params, group_p, error);
}

gb_status gb_group_close(gb_group *group, gb_error *error) {
  if (!group) return GB_OK;
  const gbi_group_params *its = gbi_group_params_of(group);
  if (its->job->fork_count != gbi_fork_count()) return gbi_fail_forked(error);
  if (its->id) gbi_subgroup_close(group);
  return GB_OK;
}

gb_status gb_group_serve(gb_group *group, gb_error *error) {
  if (!group) return gbi_fail(error, GB_ERR_ARGUMENT, "the group is NULL");
  if (gbi_group_params_of(group)->job->fork_count != gbi_fork_count())
    return gbi_fail_forked(error);
  gbi_group_serve(group);
  return GB_OK;
}

gb_status gb_group_set_timeout(gb_group *group, uint64_t timeout_ms) {
  if (!group) return GB_ERR_ARGUMENT;
  const gb_job *job = gbi_group_params_of(group)->job;
  gbi_group_set_timeout(group, timeout_ms ? timeout_ms : job->timeout_ms);
  return GB_OK;
}

uint64_t gb_group_calls(gb_group *group) {
  gbi_call_state state = {.started = 0};
  return group && gbi_group_report(group, &state) ? state.started : 0;
}

gb_status gb_group_check(gb_group *group, gb_error *error) {
  if (!group) return gbi_fail(error, GB_ERR_ARGUMENT, "the group is NULL");
  return gbi_group_check(group, error);
}

gb_status gb_group_get_info(const gb_group *group, gb_group_info *info) {
  if (!group || !info || info->size < sizeof(size_t)) return GB_ERR_ARGUMENT;
  const gbi_group_params *its = gbi_group_params_of(group);
  const gbi_topology *t = its->topology;
  gb_group_info out = {.size = info->size,
                       .rank = its->rank,
                       .count = its->world,
                       .ranks = its->members,
                       .id = its->id,
                       .policy = its->policy->name,
                       .bridge = its->bridge,
                       .islands_count = t->islands_count,
                       .island_of = t->island_of,
                       .hosts_count = t->hosts_count,
                       .host_of = t->host_of};
  memcpy(info, &out, GBI_MIN(info->size, sizeof out));
  return GB_OK;
}
