/* ccl: collectives inside an island, on what the vendor gives.
 *
 * May call base, os, device, transport, comm, bridge. Must not know that a
 * bridge between islands exists. `host` is the always-present implementation on
 * host memory: shared memory among the ranks of one host; across hosts the
 * first rank of each host joins a bridge/ communicator over TCP. `nccl` and
 * `rccl` come beside it. */
#ifndef GBI_CCL_CCL_H
#define GBI_CCL_CCL_H

#include "comm/comm.h"

/* Across hosts a sum is added inside each host in member order, then over the
 * hosts in the order of their first members: every member gets the same bits,
 * and they depend on the layout of hosts but on nothing else.
 *
 * Opens the island communicator on host memory; params->area is connected.
 * params->members is the island, ascending by rank; `local` tells who shares
 * this host. Members with equal host_index share a host; NULL: all share this
 * one. */
gb_status gbi_ccl_host_open(const gbi_transport_params *params,
                            const int *host_index, gbi_comm **comm_p,
                            gb_error *error);
/* The same with members in teams: members with equal numbers are one. On one
 * host a reduction then adds up each team in member order, and the teams' sums
 * in the order of their first members: the bits of a step inside each team and
 * one over the teams, for half types too. Across hosts the numbers say nothing.
 * NULL: no teams. */
gb_status gbi_ccl_host_open_teams(const gbi_transport_params *params,
                                  const int *host_index, const int *teams,
                                  gbi_comm **comm_p, gb_error *error);

#endif
