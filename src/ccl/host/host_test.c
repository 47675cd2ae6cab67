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

/* ---- teams ---- */

enum { TEAM_COUNT = 150001 };

static const int *teams_now;
static gb_status open_teams(const gbi_transport_params *params,
                            const int *host, gbi_comm **comm_p,
                            gb_error *error) {
  return gbi_ccl_host_open_teams(params, host, teams_now, comm_p, error);
}

static size_t give(void *data, size_t count, gb_dtype dtype, int member) {
  uint64_t seed = (uint64_t)member * 7919 + 1;
  for (size_t i = 0; i < count; i++) {
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    float f = (1 + (float)(seed >> 44) * 0x1p-20f) * (float)(1 << seed % 7);
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if (dtype == GB_FLOAT32)
      ((float *)data)[i] = f;
    else
      ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
  }
  return count * gb_dtype_bytes(dtype);
}

/* Each team in member order, then the teams in that of their first members. */
static void add_up_teams(void *want, size_t count, gb_dtype dtype) {
  static uint8_t one[TEAM_COUNT * 4], team[TEAM_COUNT * 4];
  gbi_reduce_fn add = gbi_reduce_kernel(dtype, GB_SUM);
  for (int first = 0; first < gb_world(); first++) {
    int before = 0;
    while (teams_now[before] != teams_now[first]) before++;
    if (before < first) continue;
    size_t bytes = give(team, count, dtype, first);
    for (int m = first + 1; m < gb_world(); m++) {
      if (teams_now[m] != teams_now[first]) continue;
      give(one, count, dtype, m);
      add(team, one, count);
    }
    if (first)
      add(want, team, count);
    else
      memcpy(want, team, bytes);
  }
}

static void one_sum(gb_battery *b, gb_dtype dtype, size_t count, int root,
                    bool apart) {
  static uint8_t src[TEAM_COUNT * 4], dst[TEAM_COUNT * 4], want[TEAM_COUNT * 4];
  gb_error error;
  size_t bytes = give(src, count, dtype, gb_rank());
  add_up_teams(want, count, dtype);
  gbi_comm_step s = {.kind = root < 0 ? GBI_COMM_ALL_REDUCE : GBI_COMM_REDUCE,
                     .dtype = dtype, .redop = GB_SUM, .count = count,
                     .root = root < 0 ? 0 : root, .src = src,
                     .dst = apart ? dst : src};
  s.call = gb_battery_call(b, &s);
  GB_CHECK_OK(gb_battery_run(b, &s, 60000, &error));
  if (root < 0 || root == gb_rank()) GB_CHECK(!memcmp(s.dst, want, bytes));
}

/* Any root, in place and not, in one round, one piece and several. */
static void check_teams(const int *teams) {
  static const size_t counts[] = {1, 1000, 9000, TEAM_COUNT};
  gb_battery b;
  teams_now = teams;
  gb_battery_open(&b, open_teams, NULL);
  for (size_t c = 0; c < GBI_COUNT(counts); c++)
    for (int root = -1; root < gb_world(); root++)
      for (int apart = 0; apart < 2; apart++) {
        one_sum(&b, GB_FLOAT32, counts[c], root, apart);
        one_sum(&b, GB_BFLOAT16, counts[c], root, apart);
      }
  gb_battery_close(&b);
}
#define TEAMS(name, ranks_, ...)                                               \
  GB_TEST(ccl_teams, name, .ranks = ranks_, .timeout_ms = 120000) {            \
    static const int teams[] = {__VA_ARGS__};                                  \
    check_teams(teams);                                                        \
  }
TEAMS(two_and_two, 4, 0, 0, 1, 1)
TEAMS(interleaved, 4, 7, 3, 7, 3)
TEAMS(inside_out, 4, 1, 0, 0, 1)
TEAMS(one_and_three, 4, 0, 1, 1, 1)
TEAMS(three_and_one, 4, 0, 0, 0, 1)
TEAMS(one_alone_in_the_middle, 5, 2, 2, 0, 1, 1)
TEAMS(all_alone, 3, 2, 1, 0)
TEAMS(crossed, 7, 0, 1, 2, 0, 1, 2, 1)

static const int of_two[] = {0, 1, 0, 1, 1, 0, 0, 1};
#define OF_TWO(name, ranks_, what)                                             \
  GB_TEST(ccl_teams, name, .ranks = ranks_, .timeout_ms = 120000) {            \
    teams_now = of_two;                                                        \
    what(open_teams, NULL);                                                    \
  }
OF_TWO(values_4, 4, gb_battery_values)
OF_TWO(values_7, 7, gb_battery_values)
OF_TWO(large_5, 5, gb_battery_large)
OF_TWO(pipeline_4, 4, gb_battery_pipeline)
OF_TWO(mismatch_4, 4, gb_battery_mismatch)
OF_TWO(frozen_4, 4, gb_battery_frozen)
OF_TWO(stop_4, 4, gb_battery_stop)
OF_TWO(warm_4, 4, gb_battery_warm)

/* Across hosts teams say nothing: the bits are those of the hosts. */
GB_TEST(ccl_teams, across_hosts_they_say_nothing, .ranks = 4) {
  teams_now = of_two;
  gb_battery_values(open_teams, two_hosts);
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
