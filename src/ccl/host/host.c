#include "ccl/ccl.h"

#include "ccl/host/local.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct host_comm {
  gbi_comm comm; /* first */
  gbi_local *local;
  gbi_hostarea *area;
} host_comm;

static host_comm *self(gbi_comm *comm) { return (host_comm *)comm; }

static void host_address(gbi_comm *comm, gbi_writer *out) {
  gbi_local_address(self(comm)->local, out);
}

static gb_status host_connect(gbi_comm *comm, const gbi_reader *addresses,
                              uint64_t deadline_ns, gb_error *error) {
  gbi_reader *copies =
      malloc((size_t)comm->members_count * sizeof *copies);
  if (!copies) return gbi_fail(error, GB_ERR_MEMORY, "out of memory");
  memcpy(copies, addresses, (size_t)comm->members_count * sizeof *copies);
  gb_status status = gbi_local_connect(self(comm)->local, copies, error);
  free(copies);
  return status;
}

static void host_start(gbi_comm *comm, const gbi_comm_step *step,
                       void *state) {
  gbi_local_start(self(comm)->local, step, state);
}

static gb_status host_progress(gbi_comm *comm, void *state, gb_error *error) {
  return gbi_local_progress(self(comm)->local, state, error);
}

static int host_wait_fds(gbi_comm *comm, int *fds, int max) { return 0; }

static int host_waiting_for(gbi_comm *comm, const void *state, int *members,
                            int max) {
  return gbi_local_waiting_for(self(comm)->local, state, members, max);
}

static void host_stop(gbi_comm *comm) {
  gbi_local_stop(self(comm)->local);
  gbi_hostarea_ring(self(comm)->area, gbi_hostarea_me(self(comm)->area));
}

static void host_close(gbi_comm *comm) {
  gbi_local_close(self(comm)->local);
  free(comm);
}

static void host_describe(const gbi_comm *comm, gbi_fact_fn fn, void *arg) {
  char text[32];
  snprintf(text, sizeof text, "%d", comm->members_count);
  fn(arg, "members", text);
  fn(arg, "kernels", gbi_kernels_name());
}

static const gbi_comm_ops host_ops = {
    .name = "host",
    .state_bytes = sizeof(gbi_local_step),
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

gb_status gbi_ccl_host_open(const gbi_transport_params *params,
                            const int *host_index, gbi_comm **comm_p,
                            gb_error *error) {
  host_comm *host = calloc(1, sizeof *host);
  if (!host) return gbi_fail(error, GB_ERR_MEMORY, "out of memory");
  host->comm = (gbi_comm){.ops = &host_ops,
                          .members_count = params->members_count,
                          .me = params->me};
  host->area = params->area;
  gb_status status =
      gbi_local_open(params->area, params->members, params->members_count,
                     params->me, &host->comm.moved, &host->local, error);
  if (status != GB_OK) {
    free(host);
    return status;
  }
  *comm_p = &host->comm;
  return GB_OK;
}
