/* bridge: collectives among members over any byte transport.
 *
 * May call base, os, device, transport, comm. Must not know islands, policies
 * or what its members stand for. Two members exchange halves and add; more
 * reduce-scatter by direct exchange in member order, then all-gather. Every
 * step exchanges the call's identity with every member before it is done, also
 * where no data flows, so that a disagreement ends the call on both sides. */
#ifndef GBI_BRIDGE_BRIDGE_H
#define GBI_BRIDGE_BRIDGE_H

#include "comm/comm.h"

/* Opens (listens); set-up goes on with comm->ops->address and connect. The
 * params are those of the transport. */
gb_status gbi_bridge_open(const gbi_transport_ops *transport,
                          const gbi_transport_params *params,
                          gbi_comm **comm_p, gb_error *error);

#endif
