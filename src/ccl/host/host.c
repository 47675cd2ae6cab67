#include "ccl/ccl.h"

#include "base/memory.h"
#include "bridge/bridge.h"
#include "ccl/host/across.h"
#include "ccl/host/local.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The leaders' bridge of island communicator c has this bit as well. */
#define LEADERS_COMM UINT32_C(0x40000000)

typedef struct host_comm {
  gbi_comm comm; /* first */
  gbi_hostarea *area;
  gbi_local *local;
  gbi_across *across; /* NULL: one host, steps go straight to local */
  gbi_comm *bridge;   /* NULL unless we lead our host and there are others */
  uint64_t bridge_moved;
  int hosts, group;
  int *groups, *local_indices, *leaders; /* see gbi_across_map */
} host_comm;

typedef union host_state {
  gbi_local_step local;
  gbi_across_step across;
} host_state;

static host_comm *self(gbi_comm *comm) { return (host_comm *)comm; }

/* Address: a blob of the local part, a blob of the bridge (may be empty). */
static void host_address(gbi_comm *comm, gbi_writer *out) {
  host_comm *host = self(comm);
  uint8_t raw[2048];
  gbi_writer part;
  gbi_writer_init(&part, raw, sizeof raw);
  gbi_local_address(host->local, &part);
  gbi_put_blob(out, raw, part.used);
  gbi_writer_init(&part, raw, sizeof raw);
  if (host->bridge) host->bridge->ops->address(host->bridge, &part);
  gbi_put_blob(out, raw, part.used);
  out->bad |= part.bad;
}

static gb_status connect_parts(host_comm *host, gbi_reader *addresses,
                               gbi_reader *parts, uint64_t deadline_ns,
                               gb_error *error) {
  int n = host->comm.members_count;
  for (int i = 0; i < n; i++) {
    size_t local_bytes, bridge_bytes;
    const uint8_t *local = gbi_get_blob(&addresses[i], &local_bytes);
    const uint8_t *bridge = gbi_get_blob(&addresses[i], &bridge_bytes);
    if (addresses[i].bad)
      return gbi_fail(error, GB_ERR_PROTOCOL,
                      "member %d of the island sent a malformed address", i);
    if (host->groups[i] == host->group)
      gbi_reader_init(&parts[host->local_indices[i]], local, local_bytes);
    if (host->local_indices[i] == 0)
      gbi_reader_init(&parts[n + host->groups[i]], bridge, bridge_bytes);
  }
  GBI_TRY(gbi_local_connect(host->local, parts, error));
  if (!host->bridge) return GB_OK;
  return host->bridge->ops->connect(host->bridge, parts + n, deadline_ns,
                                    error);
}

static gb_status host_connect(gbi_comm *comm, const gbi_reader *addresses,
                              uint64_t deadline_ns, gb_error *error) {
  size_t n = (size_t)comm->members_count;
  gbi_reader *copies = gbi_calloc(3 * n, sizeof *copies);
  if (!copies) return gbi_fail(error, GB_ERR_MEMORY, "out of memory");
  memcpy(copies, addresses, n * sizeof *copies);
  gb_status status =
      connect_parts(self(comm), copies, copies + n, deadline_ns, error);
  free(copies);
  return status;
}

static void host_start(gbi_comm *comm, const gbi_comm_step *step,
                       void *state) {
  host_comm *host = self(comm);
  if (host->across)
    gbi_across_start(host->across, step, state);
  else
    gbi_local_start(host->local, step, state);
}

static gb_status host_progress(gbi_comm *comm, void *state, gb_error *error) {
  host_comm *host = self(comm);
  if (!host->across) return gbi_local_progress(host->local, state, error);
  gb_status status = gbi_across_progress(host->across, state, error);
  if (host->bridge) {
    comm->moved += host->bridge->moved - host->bridge_moved;
    host->bridge_moved = host->bridge->moved;
  }
  return status;
}

static int host_wait_fds(gbi_comm *comm, int *fds, int max) {
  gbi_comm *bridge = self(comm)->bridge;
  return bridge ? bridge->ops->wait_fds(bridge, fds, max) : 0;
}

static int host_waiting_for(gbi_comm *comm, const void *state, int *members,
                            int max) {
  host_comm *host = self(comm);
  if (host->across) return gbi_across_waiting_for(host->across, members, max);
  return gbi_local_waiting_for(host->local, state, members, max);
}

static void host_stop(gbi_comm *comm) {
  host_comm *host = self(comm);
  gbi_local_stop(host->local);
  if (host->bridge) host->bridge->ops->stop(host->bridge);
  gbi_hostarea_ring(host->area, gbi_hostarea_me(host->area));
}

static void host_close(gbi_comm *comm) {
  host_comm *host = self(comm);
  gbi_across_close(host->across);
  if (host->bridge) host->bridge->ops->close(host->bridge);
  gbi_local_close(host->local);
  free(host->groups);
  free(host->local_indices);
  free(host->leaders);
  free(host);
}

static void host_describe(const gbi_comm *comm, gbi_fact_fn fn, void *arg) {
  const host_comm *host = (const host_comm *)comm;
  char text[32];
  snprintf(text, sizeof text, "%d", comm->members_count);
  fn(arg, "members", text);
  snprintf(text, sizeof text, "%d", host->hosts);
  fn(arg, "hosts", text);
  fn(arg, "kernels", gbi_kernels_name());
  if (host->bridge) host->bridge->ops->describe(host->bridge, fn, arg);
}

static const gbi_comm_ops host_ops = {
    .name = "host",
    .state_bytes = sizeof(host_state),
    .address = host_address,
    .connect = host_connect,
    .start = host_start,
    .progress = host_progress,
    .wait_fds = host_wait_fds,
    .waiting_for = host_waiting_for,
    .stop = host_stop,
    .close = host_close,
    .describe = host_describe,
};

/* Who shares a host with whom, and who leads. */
static void map_hosts(host_comm *host, const int *host_index) {
  for (int i = 0; i < host->comm.members_count; i++) {
    host->groups[i] = -1;
    for (int j = 0; j < i && host->groups[i] < 0; j++)
      if (!host_index || host_index[j] == host_index[i]) {
        host->groups[i] = host->groups[j];
        host->local_indices[i] = 1;
        for (int k = j + 1; k < i; k++)
          host->local_indices[i] += host->groups[k] == host->groups[i];
      }
    if (host->groups[i] >= 0) continue;
    host->groups[i] = host->hosts;
    host->leaders[host->hosts++] = i;
  }
  host->group = host->groups[host->comm.me];
}

static gb_status open_local(host_comm *host,
                            const gbi_transport_params *params,
                            const int *teams, gbi_member *list,
                            gb_error *error) {
  int count = 0, me = 0;
  for (int i = 0; i < params->members_count; i++) {
    if (host->groups[i] != host->group) continue;
    if (params->members[i].local < 0)
      return gbi_fail_rank(error, GB_ERR_INTERNAL, params->members[i].rank,
                           "rank %d is said to be on this host but is not in "
                           "its shared memory", params->members[i].rank);
    if (i == params->me) me = count;
    list[count++] = params->members[i];
  }
  /* On one host the list is the members'. */
  return gbi_local_open(params->area, list, host->hosts == 1 ? teams : NULL,
                        count, me, &host->comm.moved, &host->local, error);
}

static gb_status open_across(host_comm *host,
                             const gbi_transport_params *params,
                             gbi_member *list, gb_error *error) {
  if (host->hosts < 2) return GB_OK;
  if (host->leaders[host->group] == params->me) {
    gbi_transport_params leaders = *params;
    leaders.members = list;
    leaders.members_count = host->hosts;
    leaders.me = host->group;
    leaders.comm = params->comm | LEADERS_COMM;
    for (int g = 0; g < host->hosts; g++)
      list[g] = params->members[host->leaders[g]];
    GBI_TRY(gbi_bridge_open(&gbi_transport_tcp, &leaders, &host->bridge,
                            error));
  }
  gbi_across_map map = {.members_count = params->members_count,
                        .me = params->me, .group = host->groups,
                        .local_index = host->local_indices,
                        .leader = host->leaders};
  return gbi_across_open(&map, host->local, host->bridge, &host->across,
                         error);
}

gb_status gbi_ccl_host_open_teams(const gbi_transport_params *params,
                                  const int *host_index, const int *teams,
                                  gbi_comm **comm_p, gb_error *error) {
  size_t n = (size_t)params->members_count;
  host_comm *host = gbi_calloc(1, sizeof *host);
  if (!host) return gbi_fail(error, GB_ERR_MEMORY, "out of memory");
  host->comm = (gbi_comm){.ops = &host_ops,
                          .members_count = params->members_count,
                          .me = params->me};
  host->area = params->area;
  host->groups = gbi_calloc(n, sizeof *host->groups);
  host->local_indices = gbi_calloc(n, sizeof *host->local_indices);
  host->leaders = gbi_calloc(n, sizeof *host->leaders);
  gbi_member *list = gbi_calloc(n, sizeof *list);
  gb_status status = GB_OK;
  if (!host->groups || !host->local_indices || !host->leaders || !list) {
    status = gbi_fail(error, GB_ERR_MEMORY, "out of memory");
  } else {
    map_hosts(host, host_index);
    status = open_local(host, params, teams, list, error);
    if (status == GB_OK) status = open_across(host, params, list, error);
  }
  free(list);
  if (status != GB_OK) {
    host_close(&host->comm);
    return status;
  }
  *comm_p = &host->comm;
  return GB_OK;
}

gb_status gbi_ccl_host_open(const gbi_transport_params *params,
                            const int *host_index, gbi_comm **comm_p,
                            gb_error *error) {
  return gbi_ccl_host_open_teams(params, host_index, NULL, comm_p, error);
}
