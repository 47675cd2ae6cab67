/* Proves for verbs, on the fake adapter and on the software ones of tests/vm:
 * the transport battery, with and without registered memory; a killed peer;
 * which device, port and GID is taken, and how bad names are refused (S066,
 * S068, S070); every field of the header. */
#include "transport/verbs/verbs.h"

#include "fakes/find.h"
#include "harness/transport_battery.h"

#include <stdlib.h>

/* By the fake adapter; or by real ones: GB_TEST_VERBS_DEVICES has each rank's,
 * separated by commas, for software ones find no way to themselves. */
static void use_own_device(void) {
  const char *list = getenv("GB_TEST_VERBS_DEVICES");
  char name[64];
  if (!list) name_fake_adapter();
  for (int r = 0; list && r <= gb_rank(); r++) {
    size_t length = strcspn(list, ",");
    snprintf(name, sizeof name, "%.*s", (int)length, list);
    setenv("GPUBRIDGE_VERBS_DEVICE", name, 1);
    list = list[length] ? list + length + 1 : NULL;
  }
}

static const gbi_transport_ops *open_verbs(void) {
  gb_error error;
  use_own_device();
  if (!gbi_transport_verbs.usable(NULL, &error))
    gb_test_fail(__FILE__, __LINE__, "%s", error.text);
  return &gbi_transport_verbs;
}

/* Everything is copied. */
static const gbi_transport_ops *open_copying(void) {
  setenv("GPUBRIDGE_VERBS_REGISTER_BYTES", "1G", 1);
  return open_verbs();
}
/* All that does not fit into a slot is registered. */
static const gbi_transport_ops *open_registering(void) {
  setenv("GPUBRIDGE_VERBS_REGISTER_BYTES", "64K", 1);
  return open_verbs();
}

GB_TRANSPORT_BATTERY(verbs, open_verbs)
#define SOME(suite, open)                                            \
  GB_TRANSPORT_CASE(suite, sizes, 2, gb_transport_sizes, open)       \
  GB_TRANSPORT_CASE(suite, tags, 2, gb_transport_tags, open)         \
  GB_TRANSPORT_CASE(suite, late, 2, gb_transport_late_receive, open) \
  GB_TRANSPORT_CASE(suite, sinks, 2, gb_transport_sinks, open)       \
  GB_TRANSPORT_CASE(suite, in_place, 2, gb_transport_in_place, open) \
  GB_TRANSPORT_CASE(suite, chain, 3, gb_transport_chain, open)       \
  GB_TRANSPORT_CASE(suite, pairs, 5, gb_transport_all_pairs, open)   \
  GB_TRANSPORT_CASE(suite, stop, 2, gb_transport_stop, open)
SOME(verbs_copying, open_copying)
SOME(verbs_registering, open_registering)

GB_TEST(verbs, killed, .ranks = 2, .expect = "0k", .timeout_ms = 60000) {
  /* Nobody tells an adapter: it sends again, seven times half a second. */
  gb_fabric_death_ms = 12000;
  gb_transport_killed(open_verbs);
}

/* Rank 1 sends and goes; what it sent is there for a receive that comes later,
 * also when a message to it has failed meanwhile, which is told at once. */
GB_TEST(verbs, what_was_sent_before_a_goodbye, .ranks = 2) {
  gb_fabric f;
  gbi_xfer one, two, late;
  uint8_t data[200], got[200];
  int *word = gb_spare();
  gb_fabric_open(&f, open_verbs);
  gb_pattern(data, sizeof data, 5);
  if (gb_rank() == 1) {
    gb_fabric_send(&f, 0, &one, 1, data, sizeof data);
    gb_fabric_send(&f, 0, &two, 2, data, sizeof data);
    f.ops->stop(f.transport);
    f.ops->close(f.transport);
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
    gb_test_await(word, 2, 20000);
    gbi_hostarea_close(f.area);
    return;
  }
  gb_test_await(word, 1, 20000);
  gb_fabric_recv(&f, 1, &one, 1, got, sizeof got);
  GB_CHECK_INT(gb_fabric_wait(&f, &one, 10000), GB_OK);
  gb_check_pattern(got, sizeof got, 5);
  uint8_t *large = calloc(1, 1 << 20);
  gb_fabric_send(&f, 1, &late, 3, large, 1 << 20);
  GB_CHECK_INT(gb_fabric_wait(&f, &late, 10000), GB_ERR_PEER);
  gb_fabric_recv(&f, 1, &two, 2, got, sizeof got);
  GB_CHECK_INT(gb_fabric_wait(&f, &two, 10000), GB_OK);
  gb_check_pattern(got, sizeof got, 5);
  gb_fabric_recv(&f, 1, &two, 4, got, sizeof got);
  GB_CHECK_INT(gb_fabric_wait(&f, &two, 10000), GB_ERR_PEER);
  __atomic_store_n(word, 2, __ATOMIC_RELEASE);
  free(large);
  f.ops->stop(f.transport);
  f.ops->close(f.transport);
  gbi_hostarea_close(f.area);
}

/* ---- the header ---- */

static uint8_t raw[GBI_VERBS_HEAD + 100];
static gbi_verbs_head head, got;

static void fresh(void) {
  head = (gbi_verbs_head){.type = GBI_VERBS_MESSAGE,
                          .data_credits = 3,
                          .control_credits = 2,
                          .payload = 100,
                          .tag = 99,
                          .message_bytes = 1000,
                          .offset = 900};
  head.call = (gbi_call){
      .seq = 3, .count = 4, .root = -1, .op = 1, .dtype = 6, .redop = 0};
  gbi_verbs_head_write(&head, raw);
}

GB_TEST(verbs_head, checks_every_field) {
  fresh();
  GB_CHECK(!gbi_verbs_head_read(raw, sizeof raw, &got));
  GB_CHECK(gbi_call_equal(&head.call, &got.call));
  GB_CHECK(got.tag == 99 && got.message_bytes == 1000 && got.offset == 900);
  GB_CHECK(got.payload == 100 && got.data_credits == 3 &&
           got.control_credits == 2 && got.type == GBI_VERBS_MESSAGE);
  GB_CHECK(gbi_verbs_head_read(raw, sizeof raw - 1, &got));
  GB_CHECK(gbi_verbs_head_read(raw, 63, &got));
  static const int places[] = {0, 4, 5, 10, 47};
  for (size_t i = 0; i < GBI_COUNT(places); i++) {
    fresh();
    raw[places[i]] ^= 0x40;
    GB_CHECK(gbi_verbs_head_read(raw, sizeof raw, &got));
  }
  fresh();
  head.offset = 800; /* a part that neither ends the message nor fills a slot */
  gbi_verbs_head_write(&head, raw);
  GB_CHECK(gbi_verbs_head_read(raw, sizeof raw, &got));
  fresh();
  head.payload = 0; /* nothing, of a message that has more */
  gbi_verbs_head_write(&head, raw);
  GB_CHECK(gbi_verbs_head_read(raw, GBI_VERBS_HEAD, &got));
  fresh();
  head.offset = 901; /* beyond the message */
  gbi_verbs_head_write(&head, raw);
  GB_CHECK(gbi_verbs_head_read(raw, sizeof raw, &got));
  head.offset = 1001;
  gbi_verbs_head_write(&head, raw);
  GB_CHECK(gbi_verbs_head_read(raw, sizeof raw, &got));
  head.message_bytes = UINT64_MAX;
  gbi_verbs_head_write(&head, raw);
  GB_CHECK(gbi_verbs_head_read(raw, sizeof raw, &got));
}

/* ---- what cannot be ---- */

GB_TEST(verbs, without_its_library) {
  gb_error error;
  setenv("GPUBRIDGE_VERBS_LIB", "/nowhere/libibverbs.so.1", 1);
  GB_CHECK(!gbi_transport_verbs.usable(NULL, &error));
  GB_CHECK_TEXT(error.text, "/nowhere/libibverbs.so.1");
  GB_CHECK_TEXT(error.text, "Install rdma-core");
  gbi_endpoint endpoint;
  gbi_transport_verbs.endpoint(&endpoint);
  GB_CHECK(endpoint.asked && !endpoint.usable);
  GB_CHECK_TEXT(endpoint.reason, "cannot be loaded");
}

GB_TEST(verbs, by_a_library_of_something_else) {
  gb_error error;
  setenv("GPUBRIDGE_VERBS_LIB", "libm.so.6", 1);
  GB_CHECK(!gbi_transport_verbs.usable(NULL, &error));
  GB_CHECK_TEXT(error.text, "libm.so.6 has no ibv_get_device_list");
}

GB_TEST(verbs, a_device_that_is_not_there) {
  gb_error error;
  (void)open_verbs();
  setenv("GPUBRIDGE_VERBS_DEVICE", "mlx9_9", 1);
  GB_CHECK(!gbi_transport_verbs.usable(NULL, &error));
  GB_CHECK_TEXT(error.text, "GPUBRIDGE_VERBS_DEVICE is \"mlx9_9\"");
  GB_CHECK_TEXT(error.text, "devices are");
}

GB_TEST(verbs, a_gid_that_is_not_there) {
  gb_error error;
  (void)open_verbs();
  setenv("GPUBRIDGE_VERBS_GID_INDEX", "99", 1);
  GB_CHECK(!gbi_transport_verbs.usable(NULL, &error));
  GB_CHECK_TEXT(error.text, "GPUBRIDGE_VERBS_GID_INDEX is 99");
  GB_CHECK_TEXT(error.text, "port 1");
  GB_CHECK_TEXT(error.text, "GIDs");
  setenv("GPUBRIDGE_VERBS_GID_INDEX", "256", 1); /* a byte's most is 255 */
  GB_CHECK(!gbi_transport_verbs.usable(NULL, &error));
  GB_CHECK_TEXT(error.text, "256");
}

GB_TEST(verbs, a_port_that_is_not_there) {
  gb_error error;
  (void)open_verbs();
  setenv("GPUBRIDGE_VERBS_PORT", "7", 1);
  GB_CHECK(!gbi_transport_verbs.usable(NULL, &error));
  GB_CHECK_TEXT(error.text, "(1 ports)");
  setenv("GPUBRIDGE_VERBS_DEVICE", "fake0", 1);
  if (getenv("GB_TEST_VERBS_DEVICES")) return;
  GB_CHECK(!gbi_transport_verbs.usable(NULL, &error));
  GB_CHECK_TEXT(error.text, "GPUBRIDGE_VERBS_PORT is 7");
}

GB_TEST(verbs, straight_from_a_gpu_is_refused) {
  (void)open_verbs();
  gbi_member members[2] = {{0, 0, "here", "nvidia"}, {1, -1, "there", "amd"}};
  gbi_transport_params params = {.members = members, .members_count = 2};
  gbi_transport *transport;
  gb_error error;
  setenv("GPUBRIDGE_VERBS_GPU_PATH", "direct", 1);
  GB_CHECK_INT(gbi_transport_verbs.open(&params, &transport, &error),
               GB_ERR_UNSUPPORTED);
  GB_CHECK_TEXT(error.text, "GPUBRIDGE_VERBS_GPU_PATH is direct");
}
