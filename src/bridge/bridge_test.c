/* Proves the communicator's contract for the bridge over tcp and shm: the whole
 * battery; over verbs, on the fake adapter, much of it; over tcp also with one
 * and several connections and odd chunks (S081); sums in member order bit for
 * bit, disagreement (S027 to S032), a death in mid-flight (S042). */
#include "bridge/bridge.h"

#include "fakes/find.h"
#include "harness/comm_battery.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static gb_status open_tcp(const gbi_transport_params *params, const int *host,
                          gbi_comm **comm_p, gb_error *error) {
  (void)host;
  return gbi_bridge_open(&gbi_transport_tcp, params, comm_p, error);
}

static gb_status open_striped(const gbi_transport_params *params,
                              const int *host, gbi_comm **comm_p,
                              gb_error *error) {
  setenv("GPUBRIDGE_MULTITCP_STREAMS", "3", 1);
  setenv("GPUBRIDGE_MULTITCP_CHUNK_BYTES", "4096", 1);
  return open_tcp(params, host, comm_p, error);
}

static gb_status open_four(const gbi_transport_params *params, const int *host,
                           gbi_comm **comm_p, gb_error *error) {
  setenv("GPUBRIDGE_TCP_STREAMS", "4", 1);
  return open_tcp(params, host, comm_p, error);
}

static gb_status open_shm(const gbi_transport_params *params, const int *host,
                          gbi_comm **comm_p, gb_error *error) {
  (void)host;
  return gbi_bridge_open(&gbi_transport_shm, params, comm_p, error);
}

static gb_status open_verbs(const gbi_transport_params *params, const int *host,
                            gbi_comm **comm_p, gb_error *error) {
  (void)host;
  name_fake_adapter();
  return gbi_bridge_open(&gbi_transport_verbs, params, comm_p, error);
}

GB_COMM_CASE(bridge_verbs, values_2, 2, gb_battery_values, open_verbs, NULL)
GB_COMM_CASE(bridge_verbs, values_4, 4, gb_battery_values, open_verbs, NULL)
GB_COMM_CASE(bridge_verbs, large_2, 2, gb_battery_large, open_verbs, NULL)
GB_COMM_CASE(bridge_verbs, large_5, 5, gb_battery_large, open_verbs, NULL)
GB_COMM_CASE(bridge_verbs, order_4, 4, gb_battery_order, open_verbs, NULL)
GB_COMM_CASE(bridge_verbs, pipeline_4, 4, gb_battery_pipeline, open_verbs, NULL)
GB_COMM_CASE(bridge_verbs, mismatch_3, 3, gb_battery_mismatch, open_verbs, NULL)
GB_COMM_CASE(bridge_verbs, warm_3, 3, gb_battery_warm, open_verbs, NULL)
GB_COMM_BATTERY(bridge_tcp, open_tcp)
GB_COMM_BATTERY(bridge_shm, open_shm)

GB_COMM_CASE(bridge_striped, values_2, 2, gb_battery_values, open_striped, NULL)
GB_COMM_CASE(bridge_striped, values_4, 4, gb_battery_values, open_striped, NULL)
GB_COMM_CASE(bridge_striped, large_2, 2, gb_battery_large, open_striped, NULL)
GB_COMM_CASE(bridge_striped, large_5, 5, gb_battery_large, open_striped, NULL)
GB_COMM_CASE(bridge_striped, order_2, 2, gb_battery_order, open_striped, NULL)
GB_COMM_CASE(bridge_striped, order_5, 5, gb_battery_order, open_striped, NULL)
GB_COMM_CASE(bridge_striped, pipeline_4, 4, gb_battery_pipeline, open_striped,
             NULL)
GB_COMM_CASE(bridge_striped, mismatch_3, 3, gb_battery_mismatch, open_striped,
             NULL)
GB_COMM_CASE(bridge_striped, warm_3, 3, gb_battery_warm, open_striped, NULL)
GB_COMM_CASE(bridge_four, large_2, 2, gb_battery_large, open_four, NULL)
GB_COMM_CASE(bridge_four, order_4, 4, gb_battery_order, open_four, NULL)
GB_COMM_CASE(bridge_four, pipeline_2, 2, gb_battery_pipeline, open_four, NULL)

/* S042: the other side dies while 256 MiB are on the wire. The survivor gets
 * an error that names it, within a second, at whatever moment it comes. */
static void die_in_flight(int delay_ms) {
  gb_battery b;
  size_t bytes = (size_t)256 << 20;
  gb_battery_open(&b, open_tcp, NULL);
  float *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  GB_CHECK(data != MAP_FAILED);
  uint64_t *died = gb_spare();
  gb_meet();
  gbi_comm_step s = {.kind = GBI_COMM_ALL_REDUCE,
                     .dtype = GB_FLOAT32,
                     .redop = GB_SUM,
                     .count = bytes / 4,
                     .src = data,
                     .dst = data};
  s.call = gb_battery_call(&b, &s);
  gb_error error;
  if (gb_rank() == 1) {
    gb_battery_start(&b, 0, &s);
    GB_CHECK_INT(gb_battery_drive(&b, 0, delay_ms, &error),
                 GB_ERR_WAIT_TIMEOUT);
    *died = gbi_now_ns();
    raise(SIGKILL);
  }
  gb_status status = gb_battery_run(&b, &s, 20000, &error);
  GB_CHECK_INT(status, GB_ERR_PEER);
  GB_CHECK_INT(error.rank, 1);
  GB_CHECK_TEXT(error.text, "between rank 0 and rank 1 (127.0.0.1:");
  GB_CHECK(gbi_now_ns() - *died < GBI_NS_PER_S);
  _exit(0);
}

GB_TEST(bridge, peer_dies_at_once, .ranks = 2, .expect = "0k") {
  die_in_flight(1);
}
GB_TEST(bridge, peer_dies_in_flight, .ranks = 2, .expect = "0k") {
  die_in_flight(20);
}

/* 256 MiB go through whole, with other sums than a lost piece would give. */
GB_TEST(bridge, moves_much, .ranks = 2, .timeout_ms = 60000) {
  gb_battery b;
  size_t count = (size_t)64 << 20;
  gb_battery_open(&b, open_tcp, NULL);
  float *data = mmap(NULL, count * 4, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  GB_CHECK(data != MAP_FAILED);
  for (size_t i = 0; i < count; i++)
    data[i] = (float)(i % 8191 + (size_t)gb_rank());
  gbi_comm_step s = {.kind = GBI_COMM_ALL_REDUCE,
                     .dtype = GB_FLOAT32,
                     .redop = GB_SUM,
                     .count = count,
                     .src = data,
                     .dst = data};
  s.call = gb_battery_call(&b, &s);
  gb_error error;
  GB_CHECK_OK(gb_battery_run(&b, &s, 60000, &error));
  for (size_t i = 0; i < count; i++)
    if (data[i] != (float)(2 * (i % 8191) + 1)) GB_CHECK_INT(i, -1);
  gb_battery_close(&b);
}

/* A result may only be started when its own sum is done (member 1 of three
 * broadcasts what it reduced), while another member starts the broadcast
 * early: the early message must not sit in front of what the reduce needs. */
GB_TEST(bridge, early_starter_does_not_block, .ranks = 3) {
  gb_battery b;
  enum { COUNT = 1000003 };
  static float data[COUNT];
  gb_battery_open(&b, open_tcp, NULL);
  for (int round = 0; round < 20; round++) {
    for (int i = 0; i < COUNT; i++) data[i] = (float)(gb_rank() + i % 100);
    gbi_comm_step sum = {.kind = GBI_COMM_ALL_REDUCE,
                         .dtype = GB_FLOAT32,
                         .redop = GB_SUM,
                         .count = COUNT,
                         .src = data,
                         .dst = data};
    sum.call = gb_battery_call(&b, &sum);
    static float copy[16];
    gbi_comm_step tell = {.kind = GBI_COMM_BROADCAST,
                          .dtype = GB_FLOAT32,
                          .root = 1,
                          .step = 1,
                          .count = 16,
                          .src = copy,
                          .dst = copy,
                          .call = sum.call};
    gb_error error;
    gb_battery_start(&b, 0, &sum);
    if (gb_rank() == 1) {
      GB_CHECK_OK(gb_battery_drive(&b, 0, 20000, &error));
      memcpy(copy, data, sizeof copy);
      gb_battery_start(&b, 1, &tell);
    } else {
      gb_battery_start(&b, 1, &tell);
      GB_CHECK_OK(gb_battery_drive(&b, 0, 20000, &error));
    }
    GB_CHECK_OK(gb_battery_drive(&b, 1, 20000, &error));
    for (int i = 0; i < 16; i++) GB_CHECK(copy[i] == (float)(3 * i + 3));
  }
  gb_battery_close(&b);
}
