#include "core/job.h"

#include <gpubridge/group.h>

#include <string.h>

gb_status gb_job_open(const gb_job_params *params, gb_job **job_p,
                      gb_error *error) {
  return gbi_job_open(params, job_p, error);
}

gb_status gb_job_close(gb_job *job, gb_error *error) {
  return gbi_job_close(job, error);
}

void gb_job_abort(gb_job *job, const char *reason) {
  gbi_job_abort(job, reason);
}

void gb_use_stream(void *stream) {
  gbi_gpu_use_stream(stream);
}

gb_group *gb_job_world(gb_job *job) {
  return job ? job->group : NULL;
}

gb_status gb_job_serve(gb_job *job, gb_error *error) {
  if (!job) return gbi_fail(error, GB_ERR_ARGUMENT, "the job is NULL");
  return gb_group_serve(job->group, error);
}

/* Copies as much of `from` as the caller's struct has room for. */
static gb_status fill(void *to, size_t room, void *from, size_t bytes) {
  if (room < sizeof(size_t)) return GB_ERR_ARGUMENT;
  size_t n = GBI_MIN(room, bytes);
  *(size_t *)from = room;
  memcpy(to, from, n);
  return GB_OK;
}

gb_status gb_job_get_info(const gb_job *job, gb_job_info *info) {
  if (!job || !info) return GB_ERR_ARGUMENT;
  const gbi_discovery *d = job->discovery;
  const gbi_record *mine = &d->records[job->rank];
  const gbi_topology *t = d->topology;
  int island = t->island_of[job->rank];
  gb_job_info out = {
      .rank = job->rank,
      .world_size = job->world,
      .vendor = d->labels[job->rank],
      .detected_vendor = mine->vendor,
      .run_kind = d->run_kind,
      .split_test = d->split_test,
      .hostname = mine->hostname,
      .simulated = d->simulated,
      .island = island,
      .islands_count = t->islands_count,
      .is_leader = t->islands[island].leader == job->rank,
      .bridge_requested = mine->bridge,
      .bridge = d->bridge,
      .bridge_reason = d->bridge_reason,
      .policy = d->policy,
      .timeout_ms = job->timeout_ms,
      .links = d->links,
  };
  return fill(info, info->size, &out, sizeof out);
}

gb_status gb_job_get_island(const gb_job *job, int index,
                            gb_island_info *info) {
  if (!job || !info) return GB_ERR_ARGUMENT;
  const gbi_topology *t = job->discovery->topology;
  if (index < 0 || index >= t->islands_count) return GB_ERR_ARGUMENT;
  const gbi_island *island = &t->islands[index];
  gb_island_info out = {.label = island->label,
                        .ranks = island->ranks,
                        .ranks_count = island->count,
                        .leader = island->leader,
                        .holders = island->holders};
  return fill(info, info->size, &out, sizeof out);
}

gb_status gb_job_get_peer(const gb_job *job, int rank, gb_peer_info *info) {
  if (!job || !info || rank < 0 || rank >= job->world) return GB_ERR_ARGUMENT;
  const gbi_discovery *d = job->discovery;
  const gbi_endpoint *rdma = &d->records[rank].rdma;
  size_t first = job->facts_at[rank];
  gb_peer_info out = {.vendor = d->labels[rank],
                      .detected_vendor = d->records[rank].vendor,
                      .hostname = d->records[rank].hostname,
                      .island = d->topology->island_of[rank],
                      .facts = job->facts + first,
                      .facts_count = job->facts_at[rank + 1] - first,
                      .rdma_asked = rdma->asked,
                      .rdma_usable = rdma->usable,
                      .rdma_port = rdma->port,
                      .rdma_reason = rdma->reason,
                      .rdma_device = rdma->device,
                      .rdma_link_layer = rdma->link_layer,
                      .rdma_address = rdma->address};
  return fill(info, info->size, &out, sizeof out);
}
