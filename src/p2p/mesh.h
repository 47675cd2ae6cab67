/* p2p: a communicator of the kinds SEND and RECV over a job's links, for
 * collectives among any members (comm/comm.h). A message's tag is the call's
 * number and the step. Nothing is set up: links come when first needed. Its
 * engine's thread drives the links while it waits, unless another one does. */
#ifndef GBI_P2P_MESH_H
#define GBI_P2P_MESH_H

#include "comm/comm.h"
#include "p2p/p2p.h"

/* members: global ranks, copied; me: this rank's place. The p2p must outlive
 * it. */
gb_status gbi_mesh_open(gbi_p2p *p2p, uint32_t group, const int *members,
                        int count, int me, gbi_comm **comm_p, gb_error *error);

#endif
