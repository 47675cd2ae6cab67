/* The island on host memory passes the communicator battery on one host
 * (S028, S030, S032, S041, S071 to S078). */
#include "ccl/ccl.h"

#include "bridge/bridge.h"
#include "harness/comm_battery.h"

GB_COMM_BATTERY(ccl_host, gbi_ccl_host_open)

/* The bridge of leaders that share a host runs over shm. */
static gb_status open_bridge_shm(const gbi_transport_params *params,
                                 const int *host, gbi_comm **comm_p,
                                 gb_error *error) {
  return gbi_bridge_open(&gbi_transport_shm, params, comm_p, error);
}

GB_COMM_BATTERY(bridge_shm, open_bridge_shm)
