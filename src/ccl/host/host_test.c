/* The island on host memory passes the communicator battery on one host and
 * on simulated several (S028, S030, S032, S041, S071 to S078); so does the
 * bridge over shared memory, which joins leaders of one host. */
#include "ccl/ccl.h"

#include "bridge/bridge.h"
#include "device/host/reduce.h"
#include "harness/comm_battery.h"

#include <stdlib.h>

GB_COMM_BATTERY(ccl_host, gbi_ccl_host_open)

/* Interleaved, uneven and one-by-one layouts. */
static const int two_hosts[] = {0, 0, 1, 1, 0, 1, 1, 0};
static const int three_hosts[] = {0, 1, 0, 1, 2, 0, 2, 1};
static const int own_hosts[] = {0, 1, 2, 3, 4, 5, 6, 7};

#define ACROSS(name, ranks, what, host) \
  GB_COMM_CASE(ccl_across, name, ranks, what, gbi_ccl_host_open, host)
ACROSS(values_4_on_2, 4, gb_battery_values, two_hosts)
ACROSS(values_7_on_2, 7, gb_battery_values, two_hosts)
ACROSS(values_8_on_3, 8, gb_battery_values, three_hosts)
ACROSS(values_3_on_3, 3, gb_battery_values, own_hosts)
ACROSS(large_4_on_2, 4, gb_battery_large, two_hosts)
ACROSS(large_5_on_3, 5, gb_battery_large, three_hosts)
ACROSS(large_2_on_2, 2, gb_battery_large, own_hosts)
ACROSS(pipeline_4_on_2, 4, gb_battery_pipeline, two_hosts)
ACROSS(pipeline_5_on_3, 5, gb_battery_pipeline, three_hosts)
ACROSS(mismatch_4_on_2, 4, gb_battery_mismatch, two_hosts)
ACROSS(mismatch_2_on_2, 2, gb_battery_mismatch, own_hosts)
ACROSS(roots_differ_4_on_2, 4, gb_battery_roots_differ, two_hosts)
ACROSS(frozen_4_on_2, 4, gb_battery_frozen, two_hosts)
ACROSS(one_core_8_on_2, 8, gb_battery_one_core, two_hosts)
ACROSS(stop_4_on_2, 4, gb_battery_stop, two_hosts)
ACROSS(warm_4_on_2, 4, gb_battery_warm, two_hosts)

/* Several connections between the hosts: what is under way at a time on them
 * must not be taken for one message. */
static gb_status open_striped(const gbi_transport_params *params,
                              const int *host, gbi_comm **comm_p,
                              gb_error *error) {
  setenv("GPUBRIDGE_MULTITCP_STREAMS", "4", 1);
  setenv("GPUBRIDGE_MULTITCP_CHUNK_BYTES", "4096", 1);
  return gbi_ccl_host_open(params, host, comm_p, error);
}
#define STRIPED(name, ranks, what, host) \
  GB_COMM_CASE(ccl_striped, name, ranks, what, open_striped, host)
STRIPED(large_2_on_2, 2, gb_battery_large, own_hosts)
STRIPED(large_4_on_2, 4, gb_battery_large, two_hosts)
STRIPED(large_3_on_3, 3, gb_battery_large, own_hosts)
STRIPED(pipeline_3_on_3, 3, gb_battery_pipeline, own_hosts)

/* Across hosts a sum is added per host first, then over the hosts: the same
 * bits on every member, whatever the chunks. */
GB_TEST(ccl_across, sums_per_host_then_over_hosts, .ranks = 5) {
  enum { COUNT = 700001 };
  static float data[COUNT], want[COUNT], part[3][COUNT], one[COUNT];
  gb_battery b;
  gb_battery_open(&b, gbi_ccl_host_open, three_hosts);
  bool begun[3] = {false};
  for (int r = 0; r < gb_world(); r++) {
    int h = three_hosts[r];
    for (int i = 0; i < COUNT; i++)
      one[i] = (float)(i % 1009 + 1) * 1.1f / (float)(r + 3) +
               (float)(1 << r * 3);
    if (r == gb_rank()) memcpy(data, one, sizeof one);
    if (begun[h])
      gbi_reduce_kernel(GB_FLOAT32, GB_SUM)(part[h], one, COUNT);
    else
      memcpy(part[h], one, sizeof one);
    begun[h] = true;
  }
  memcpy(want, part[0], sizeof want);
  for (int h = 1; h < 3; h++)
    gbi_reduce_kernel(GB_FLOAT32, GB_SUM)(want, part[h], COUNT);
  gbi_comm_step s = {.kind = GBI_COMM_ALL_REDUCE, .dtype = GB_FLOAT32,
                     .redop = GB_SUM, .count = COUNT, .src = data,
                     .dst = data};
  s.call = gb_battery_call(&b, &s);
  gb_error error;
  GB_CHECK_OK(gb_battery_run(&b, &s, 60000, &error));
  GB_CHECK(!memcmp(data, want, sizeof want));
  gb_battery_close(&b);
}

/* A step that waits is asked again and again between looks at sockets: asking
 * costs well under 100 ns. The best of many rounds, so that load is no matter;
 * the limit leaves room for slow machines. */
GB_TEST(ccl_host, asking_a_waiting_step_is_cheap, .ranks = 2) {
  gb_battery b;
  static float data[100];
  gb_battery_open(&b, gbi_ccl_host_open, NULL);
  gbi_comm_step s = {.kind = GBI_COMM_ALL_REDUCE, .dtype = GB_FLOAT32,
                     .redop = GB_SUM, .count = 100, .src = data, .dst = data};
  gb_error error;
  s.call = gb_battery_call(&b, &s);
  gb_battery_start(&b, 0, &s);
  uint64_t best = UINT64_MAX;
  for (int round = 0; gb_rank() == 0 && round < 200; round++) {
    uint64_t start = gbi_now_ns();
    for (int i = 0; i < 1000; i++)
      GB_CHECK_INT(b.comm->ops->progress(b.comm, b.states[0], &error),
                   GB_ERR_BUSY);
    best = GBI_MIN(best, gbi_now_ns() - start);
  }
  printf("%llu ps a call\n", (unsigned long long)best);
  gb_meet();
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  GB_CHECK(gb_rank() || best < 200 * 1000);
#endif
  GB_CHECK_OK(gb_battery_drive(&b, 0, 10000, &error));
  gb_battery_close(&b);
}

static gb_status open_bridge_shm(const gbi_transport_params *params,
                                 const int *host, gbi_comm **comm_p,
                                 gb_error *error) {
  return gbi_bridge_open(&gbi_transport_shm, params, comm_p, error);
}

GB_COMM_BATTERY(bridge_shm, open_bridge_shm)
