/* The island on host memory passes the communicator battery on one host
 * (S028, S030, S032, S041, S071 to S078). */
#include "ccl/ccl.h"
#include "harness/comm_battery.h"

GB_COMM_BATTERY(ccl_host, gbi_ccl_host_open)
