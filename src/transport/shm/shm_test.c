/* Shared memory passes the transport battery, and refuses what is not on one
 * host. (The bridge over it: src/ccl/host/host_test.c.) */
#include "harness/transport_battery.h"

static const gbi_transport_ops *open_shm(void) { return &gbi_transport_shm; }

GB_TRANSPORT_BATTERY(shm, open_shm)

GB_TEST(shm, other_hosts_are_refused) {
  gbi_member members[2] = {{0, 0, "here", "nvidia"}, {1, -1, "there", "amd"}};
  gbi_transport_params params = {.members = members, .members_count = 2};
  gb_error error;
  GB_CHECK(!gbi_transport_shm.usable(&params, &error));
  GB_CHECK_TEXT(error.text, "rank 1 is on host there");
  GB_CHECK(gbi_transport_find("shm") == &gbi_transport_shm);
}
