/* Proves that the simulator computes what can be worked out by hand: one flow,
 * shared flows, exchanges, broadcasts, several links; that faster links are
 * never slower and the same input gives the same output; that every plan of
 * every policy ends, in the layouts of the tests; that plans which do not fit
 * or lock up are errors with who waits; that a links file is hostile until
 * checked; and that 2,048 ranks fit in little memory. */
#include "sim/sim.h"

#include <math.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "bridge/step.h"
#include "ccl/host/local.h"
#include "harness/gb_test.h"
#include "sim/cost.h"
#include "sim/fluid.h"

static void near(double got, double want, double within) {
  if (fabs(got - want) > within * want)
    gb_test_fail(__FILE__, __LINE__, "%g is not near %g", got, want);
}

/* ---- fluid ---- */

/* Runs until one flow ends; returns when, and which. */
static double until_end(gbi_fluid *fluid, uint64_t *tag) {
  double took = gbi_fluid_next(fluid);
  gbi_fluid_advance(fluid, took);
  GB_CHECK(gbi_fluid_ended(fluid, tag));
  return took;
}

GB_TEST(fluid, alone_takes_its_largest_part) {
  gbi_fluid *fluid = gbi_fluid_new(3);
  gbi_part parts[] = {{0, 0.5}, {1, 2}, {2, 1}};
  uint64_t tag;
  GB_CHECK(isinf(gbi_fluid_next(fluid)));
  GB_CHECK(gbi_fluid_begin(fluid, parts, 3, 7));
  near(until_end(fluid, &tag), 2, 1e-6);
  GB_CHECK_INT(tag, 7);
  near(gbi_fluid_busy(fluid, 2), 1, 1e-9);
  GB_CHECK(!gbi_fluid_ended(fluid, &tag));
  gbi_fluid_free(fluid);
}

GB_TEST(fluid, two_share_and_the_rest_is_given_on) {
  gbi_fluid *fluid = gbi_fluid_new(2);
  gbi_part both[] = {{0, 1}, {1, 1}}, second[] = {{1, 1}};
  uint64_t tag;
  /* Two on resource 0: half each. Resource 1 has half left for the third, but
   * all three are slowed down alike where they meet: a third each there. */
  GB_CHECK(gbi_fluid_begin(fluid, both, 2, 1));
  GB_CHECK(gbi_fluid_begin(fluid, both, 2, 2));
  GB_CHECK(gbi_fluid_begin(fluid, second, 1, 3));
  near(until_end(fluid, &tag), 3, 1e-6);
  gbi_fluid_free(fluid);
  fluid = gbi_fluid_new(2);
  /* One waits on resource 0, so that the other gets more of resource 1. */
  gbi_part slow[] = {{0, 1}, {1, 0.25}};
  for (int i = 0; i < 2; i++) GB_CHECK(gbi_fluid_begin(fluid, slow, 2, 1));
  GB_CHECK(gbi_fluid_begin(fluid, second, 1, 3));
  near(until_end(fluid, &tag), 1 / 0.75, 1e-2);
  GB_CHECK_INT(tag, 3);
  gbi_fluid_free(fluid);
}

/* ---- worlds ---- */

/* A letter a rank: its island; `each` ranks a host. */
static gbi_topology *world_of(const char *letters, int each) {
  static const char *const labels[] = {"amd", "nvidia", "third"};
  static char names[64][16];
  const char *islands[64], *hosts[64];
  int world = (int)strlen(letters);
  for (int r = 0; r < world; r++) {
    snprintf(names[r], sizeof names[r], "h%d", r / each);
    islands[r] = labels[letters[r] == 'a' ? 0 : letters[r] == 'n' ? 1 : 2];
    hosts[r] = names[r];
  }
  gbi_topology *topology;
  GB_CHECK_OK(gbi_topology_plan(islands, hosts, world, &topology, NULL));
  return topology;
}

/* Nothing costs anything but what a test sets. */
static gbi_links ideal(void) {
  gbi_links links;
  gbi_links_default(&links);
  links.hosts.core_gbytes_s = links.hosts.net_gbytes_s = 1e5;
  links.hosts.copy_gbytes_s = 1e6;
  links.hosts.cores = 1000;
  links.hosts.nic_gbit_s = 8; /* 1 GB/s */
  links.hosts.nic_latency_us = 1000;
  links.overhead_us = 1e-3;
  return links;
}

static double frames(const gbi_links *links) {
  return (links->hosts.mtu + 14) / (links->hosts.mtu - 52);
}

static gb_status run(const gbi_topology *t, const gbi_links *links,
                     const gbi_policy_ops *policy, int op, int root,
                     uint64_t count, gbi_sim_result *result, gb_error *error) {
  gbi_sim_policy made;
  gbi_sim_policy_open(&made, policy, t, true, 1 << 20, 0);
  gbi_sim_spec spec = {t, links, made.env.links, gbi_sim_policy_plan, &made};
  bool reduces = op == GBI_OP_ALL_REDUCE || op == GBI_OP_REDUCE ||
                 op == GBI_OP_REDUCE_SCATTER;
  gbi_coll coll = {.op = (uint8_t)op,
                   .dtype = GB_FLOAT32,
                   .redop = reduces ? GB_SUM : 255,
                   .root = root,
                   .count = count};
  return gbi_sim_run(&spec, &coll, result, error);
}

static double seconds(const gbi_topology *t, const gbi_links *links,
                      const gbi_policy_ops *policy, int op, int root,
                      uint64_t count) {
  gbi_sim_result result;
  gb_error error = {.text = ""};
  if (run(t, links, policy, op, root, count, &result, &error) != GB_OK)
    gb_test_fail(__FILE__, __LINE__, "%s", error.text);
  return result.seconds;
}

#define RBB &gbi_policy_reduce_bridge_broadcast
#define SHARDED &gbi_policy_sharded_bridge
enum { MIB = 1 << 18 }; /* elements of a MiB */

/* ---- closed forms ---- */

GB_TEST(sim, one_flow_is_latency_and_bytes_over_rate) {
  gbi_topology *t = world_of("na", 1);
  gbi_links links = ideal();
  double want = 1e-3 + 1048576 / 1e9 * frames(&links);
  near(seconds(t, &links, RBB, GBI_OP_BROADCAST, 0, MIB), want, 1e-3);
  near(seconds(t, &links, RBB, GBI_OP_REDUCE, 1, MIB), want, 1e-3);
  gbi_topology_free(t);
}

GB_TEST(sim, two_members_exchange_in_both_directions_at_once) {
  gbi_topology *t = world_of("na", 1);
  gbi_links links = ideal();
  /* A long round trip: everything to the other, added there. */
  double wire = 1048576 / 1e9 * frames(&links);
  near(seconds(t, &links, RBB, GBI_OP_ALL_REDUCE, -1, MIB), 1e-3 + wire, 1e-3);
  /* A short one: halves, and the sums of halves back. */
  links.hosts.nic_latency_us = 100;
  near(seconds(t, &links, RBB, GBI_OP_ALL_REDUCE, -1, MIB), 2e-4 + wire, 1e-3);
  gbi_topology_free(t);
}

GB_TEST(sim, three_islands_send_two_thirds_twice) {
  gbi_topology *t = world_of("nab", 1);
  gbi_links links = ideal();
  double wire = 4.0 / 3 * 1048576 / 1e9 * frames(&links);
  near(seconds(t, &links, RBB, GBI_OP_ALL_REDUCE, -1, MIB), 2e-3 + wire, 1e-3);
  /* A root's NIC takes in both others'. */
  wire = 2 * 1048576 / 1e9 * frames(&links);
  near(seconds(t, &links, RBB, GBI_OP_REDUCE, 0, MIB), 1e-3 + wire, 1e-3);
  gbi_topology_free(t);
}

GB_TEST(sim, three_and_one_broadcast) {
  gbi_topology *t = world_of("nnna", 3);
  gbi_links links = ideal();
  links.hosts.core_gbytes_s = 1;
  double bytes = 1048576, wire = bytes / 1e9 * frames(&links);
  double island = bytes / 1e9 + 131072 / 1e9; /* and the last piece again */
  /* In one chunk the two parts follow each other, whichever is first: the
   * plan's bridge step waits for the spread at home. */
  near(seconds(t, &links, RBB, GBI_OP_BROADCAST, 0, MIB), 1e-3 + wire + island,
       1e-2);
  near(seconds(t, &links, RBB, GBI_OP_BROADCAST, 3, MIB), 1e-3 + wire + island,
       1e-2);
  /* In many they overlap. */
  near(seconds(t, &links, RBB, GBI_OP_BROADCAST, 3, 64 * MIB),
       1e-3 + 64 * wire + island, 1e-2);
  gbi_topology_free(t);
}

GB_TEST(sim, four_links_take_a_quarter) {
  gbi_topology *t = world_of("nnnnaaaa", 4);
  gbi_links links = ideal();
  links.hosts.nics = 4;
  links.hosts.nic_latency_us = 1;
  double one = seconds(t, &links, RBB, GBI_OP_ALL_REDUCE, -1, 64 * MIB);
  double four = seconds(t, &links, SHARDED, GBI_OP_ALL_REDUCE, -1, 64 * MIB);
  near(four, one / 4, 0.03);
  /* Over one NIC they gain nothing. */
  links.hosts.nics = 1;
  near(seconds(t, &links, SHARDED, GBI_OP_ALL_REDUCE, -1, 64 * MIB), one, 0.03);
  /* Nor over one path between the islands. */
  links.hosts.nics = 4;
  links.bridge = (gbi_link_bridge){.gbit_s = 8, .latency_us = 1};
  near(seconds(t, &links, SHARDED, GBI_OP_ALL_REDUCE, -1, 64 * MIB), one, 0.03);
  gbi_topology_free(t);
}

GB_TEST(sim, the_bottleneck_is_named) {
  gbi_topology *t = world_of("nnaa", 2);
  gbi_links links = ideal();
  gbi_sim_result result;
  GB_CHECK_OK(
      run(t, &links, RBB, GBI_OP_BROADCAST, 0, 64 * MIB, &result, NULL));
  GB_CHECK_TEXT(result.busiest, "nic 0 of host 0, sending");
  GB_CHECK(result.busy > 0.95 && result.busy <= 1.001);
  links.bridge = (gbi_link_bridge){.gbit_s = 1, .latency_us = 10};
  GB_CHECK_OK(
      run(t, &links, RBB, GBI_OP_BROADCAST, 0, 64 * MIB, &result, NULL));
  GB_CHECK_TEXT(result.busiest, "bridge out of island nvidia");
  links.bridge = (gbi_link_bridge){.latency_us = 1e4, .window_mbytes = 1};
  GB_CHECK_OK(
      run(t, &links, RBB, GBI_OP_BROADCAST, 0, 64 * MIB, &result, NULL));
  GB_CHECK_TEXT(result.busiest, "window of link 0");
  /* A window of a MB a round trip of 22 ms. */
  near(result.seconds, 64 * 1.048576 * 0.022, 0.05);
  links = ideal();
  links.hosts.net_gbytes_s = 0.1;
  GB_CHECK_OK(run(t, &links, RBB, GBI_OP_REDUCE, 0, 64 * MIB, &result, NULL));
  GB_CHECK_TEXT(result.busiest, "core of rank");
  links = ideal();
  links.islands_count = 1;
  links.islands[0] = (gbi_link_island){"nvidia", 0.01, 1, 0};
  GB_CHECK_OK(run(t, &links, RBB, GBI_OP_REDUCE, 0, 64 * MIB, &result, NULL));
  GB_CHECK_TEXT(result.busiest, "fabric of nvidia on host 0");
  gbi_topology_free(t);
}

/* ---- properties ---- */

static const struct {
  const char *letters;
  int each;
} layouts[] = {{"nnaa", 4},      {"nana", 4},     {"nnna", 2},
               {"naaa", 1},      {"na", 1},       {"nnnnaaaa", 4},
               {"nnnn", 2},      {"n", 1},        {"nnaabb", 2},
               {"nabnabnab", 3}, {"nnnnaaaa", 1}, {"nannaabannba", 5}};
static const gbi_policy_ops *const policies[] = {
    &gbi_policy_reduce_bridge_broadcast, &gbi_policy_sharded_bridge,
    &gbi_policy_native_only, &gbi_policy_flat, &gbi_policy_auto_tuned};
static const int ops[] = {
    GBI_OP_ALL_REDUCE, GBI_OP_BROADCAST,      GBI_OP_REDUCE,
    GBI_OP_ALL_GATHER, GBI_OP_REDUCE_SCATTER, GBI_OP_GATHER,
    GBI_OP_SCATTER,    GBI_OP_ALL_TO_ALL,     GBI_OP_BARRIER};

static int root_of(int op, int world) {
  bool rooted = op == GBI_OP_BROADCAST || op == GBI_OP_REDUCE ||
                op == GBI_OP_GATHER || op == GBI_OP_SCATTER;
  return rooted ? world - 1 : -1;
}

/* Every policy, layout and collective ends, also empty ones, and a job with
 * twice the bandwidth everywhere is not slower. */
GB_TEST(sim, every_plan_ends_and_more_bandwidth_is_not_slower) {
  gbi_links links, faster;
  gbi_links_default(&links);
  links.islands_count = 1;
  links.islands[0] = (gbi_link_island){"third", 20, 10, 10};
  faster = links;
  faster.hosts.nic_gbit_s *= 2;
  faster.hosts.core_gbytes_s *= 2;
  faster.hosts.net_gbytes_s *= 2;
  faster.hosts.copy_gbytes_s *= 2;
  faster.islands[0].gbytes_s *= 2;
  static const uint64_t counts[] = {0, 1, 1000, 300000, 3000000};
  int ended = 0;
  for (size_t l = 0; l < GBI_COUNT(layouts); l++) {
    gbi_topology *t = world_of(layouts[l].letters, layouts[l].each);
    for (size_t p = 0; p < GBI_COUNT(policies); p++)
      for (size_t o = 0; o < GBI_COUNT(ops); o++)
        for (size_t c = 0; c < GBI_COUNT(counts); c++) {
          if (!policies[p]->fits(t)) continue;
          if (ops[o] == GBI_OP_BARRIER && counts[c]) continue;
          int root = root_of(ops[o], t->world);
          double slow =
              seconds(t, &links, policies[p], ops[o], root, counts[c]);
          double fast =
              seconds(t, &faster, policies[p], ops[o], root, counts[c]);
          GB_CHECK(fast <= slow * 1.02 + 1e-9);
          ended++;
        }
    gbi_topology_free(t);
  }
  printf("%d calls ended\n", ended);
  GB_CHECK(ended > 1500);
}

GB_TEST(sim, the_same_twice) {
  gbi_topology *t = world_of("nnnnaaaabbbb", 2);
  gbi_links links;
  gbi_links_default(&links);
  for (size_t o = 0; o < GBI_COUNT(ops); o++) {
    gbi_sim_result a, b;
    int root = root_of(ops[o], t->world);
    GB_CHECK_OK(run(t, &links, SHARDED, ops[o], root, 900000, &a, NULL));
    GB_CHECK_OK(run(t, &links, SHARDED, ops[o], root, 900000, &b, NULL));
    GB_CHECK(!memcmp(&a.seconds, &b.seconds, sizeof a.seconds));
    GB_CHECK(!strcmp(a.busiest, b.busiest) && a.steps == b.steps);
  }
  gbi_topology_free(t);
}

/* Where the implementation changes its way, so does the model. */
GB_TEST(sim, sizes_are_those_of_the_implementation) {
  GB_CHECK_INT(GBI_SIM_LOCAL_SMALL_BYTES, GBI_LOCAL_SMALL_BYTES);
  GB_CHECK_INT(GBI_SIM_LOCAL_SLOT_BYTES, GBI_LOCAL_SLOT_BYTES);
  GB_CHECK_INT(GBI_SIM_PAIR_BYTES, GBI_BRIDGE_PAIR_BYTES);
  GB_CHECK_INT(GBI_SIM_SMALL_BYTES, GBI_BRIDGE_SMALL_BYTES);
  GB_CHECK_INT(GBI_SIM_LONG_RTT_US, GBI_BRIDGE_LONG_RTT_US);
}

/* ---- plans that are wrong ---- */

typedef enum fault {
  LOCKS,
  DIFFERS,
  LACKS,
  NO_MEMBER,
  NO_LINK,
  FAR,
  ALONE
} fault;

static void add(gbi_plan *plan, int resource, int verb, int root, uint32_t from,
                uint32_t deps) {
  gbi_step step = {.resource = (uint8_t)resource,
                   .verb = (uint8_t)verb,
                   .root = root,
                   .count = 10};
  step.deps[0].from = from;
  step.deps[0].count = deps;
  gbi_plan_add(plan, &step);
}

static gb_status wrong_plan(void *arg, int rank, const gbi_coll *coll,
                            gbi_plan **plan_p, gb_error *error) {
  fault which = *(fault *)arg;
  gbi_plan *plan = gbi_plan_new(coll);
  GB_CHECK(plan);
  /* Rank 0 leads nvidia (0, 1), rank 2 amd (2, 3); rank 0 has the link first
   * and rank 2 the island first: each waits for the other. */
  bool late = which == LOCKS && rank == 0;
  if (rank % 2 == 0 && which != NO_LINK)
    add(plan, GBI_ON_BRIDGE, GBI_DO_BROADCAST, 1, late ? 1 : 0, late);
  if (rank == 1 && which == NO_LINK)
    add(plan, GBI_ON_BRIDGE, GBI_DO_BROADCAST, 0, 0, 0);
  if (which == ALONE && rank == 1) add(plan, GBI_ON_MESH, GBI_DO_SEND, 0, 0, 0);
  int root = which == NO_MEMBER ? 7 : which == DIFFERS && rank == 1;
  if (which != LACKS || rank != 1) {
    bool waits = which == LOCKS && rank == 1;
    add(plan, GBI_ON_ISLAND, GBI_DO_BROADCAST, root, waits, waits);
  }
  if (which == LOCKS && rank == 1) add(plan, GBI_ON_RANK, GBI_DO_COPY, 0, 0, 1);
  if (which == FAR) add(plan, GBI_ON_RANK, GBI_DO_COPY, 0, 5, 2);
  gb_status status = gbi_plan_seal(plan, error);
  *plan_p = plan;
  return status;
}

GB_TEST(sim, wrong_plans_are_told) {
  static const struct {
    fault which;
    const char *text;
  } wrong[] = {
      {LOCKS, "the plans lock up: rank"},
      {LOCKS, "never ends"},
      {DIFFERS, "plans differ: step 0 of rank 1 on island nvidia"},
      {LACKS, "rank 1 lists 0 steps on island nvidia, others 1"},
      {NO_MEMBER, "names member 7 of 2"},
      {NO_LINK, "rank 1's plan has a step on a bridge"},
      {FAR, "waits for step 6 of"},
      {ALONE, "message 0 from rank 1 to rank 0 has no counterpart"},
  };
  gbi_topology *t = world_of("nnaa", 2);
  gbi_links links;
  gbi_links_default(&links);
  gbi_coll coll = {
      .op = GBI_OP_BROADCAST, .dtype = GB_FLOAT32, .redop = 255, .count = 10};
  for (size_t i = 0; i < GBI_COUNT(wrong); i++) {
    fault which = wrong[i].which;
    gbi_sim_spec spec = {t, &links, 1, wrong_plan, &which};
    gbi_sim_result result;
    gb_error error = {.text = ""};
    GB_CHECK_INT(gbi_sim_run(&spec, &coll, &result, &error), GB_ERR_INTERNAL);
    GB_CHECK_TEXT(error.text, wrong[i].text);
  }
  gbi_topology_free(t);
}

/* ---- links files ---- */

static gb_status parse(const char *json, gbi_links *links, gb_error *error) {
  return gbi_links_parse(json, strlen(json), "x.json", links, error);
}

GB_TEST(links, says_what_is_read) {
  gbi_links links;
  gb_error error;
  GB_CHECK_OK(parse("{\"gpubridge_links\": 1}", &links, &error));
  GB_CHECK_INT(links.hosts.ranks, 8);
  GB_CHECK_OK(
      parse("{\"about\": \"a \\\"test\\\"\", \"gpubridge_links\": 1,"
            "\"hosts\": {\"ranks\": 4, \"nic_gbit_s\": 2e2, \"mtu\": 9000},"
            "\"islands\": {\"amd\": {\"gbytes_s\": 250, \"latency_us\": 0.5}},"
            "\"bridge\": {\"gbit_s\": 0.1}, \"overhead_us\": 7}",
            &links, &error));
  GB_CHECK_INT(links.hosts.ranks, 4);
  near(links.hosts.nic_gbit_s, 200, 1e-9);
  near(links.bridge.gbit_s, 0.1, 1e-9);
  near(links.overhead_us, 7, 1e-9);
  GB_CHECK_INT(links.islands_count, 1);
  near(gbi_links_island(&links, "amd")->gbytes_s, 250, 1e-9);
  GB_CHECK(!gbi_links_island(&links, "nvidia"));
}

#define TOP "{\"gpubridge_links\": 1, "

/* Each is refused with the file and what is wrong, and leaves the defaults. */
GB_TEST(links, hostile_files_are_refused) {
  static const struct {
    const char *json, *text;
  } bad[] = {
      {"", "it is not JSON"},
      {"{", "it is not JSON"},
      {"nonsense", "it is not JSON"},
      {"[1]", "must be an object"},
      {"{}", "\"gpubridge_links\": 1 is missing"},
      {"{\"gpubridge_links\": 2}", "is missing"},
      {"{\"gpubridge_links\": \"1\"}", "is missing"},
      {"{\"gpubridge_links\": 1} {}", "follows the closing }"},
      {TOP "\"host\": {}}", "no key \"host\". Known are gpubridge_links"},
      {TOP "\"hosts\": 4}", "must be an object"},
      {TOP "\"hosts\": {\"rank\": 4}}", "hosts. has no key \"rank\". Known"},
      {TOP "\"hosts\": {\"ranks\": 0}}",
       "hosts.ranks is 0. It must be a whole"},
      {TOP "\"hosts\": {\"ranks\": 2.5}}", "whole number from 1 to 65536"},
      {TOP "\"hosts\": {\"ranks\": -1}}", "hosts.ranks is -1"},
      {TOP "\"hosts\": {\"nics\": 1e9}}", "hosts.nics is 1e9"},
      {TOP "\"hosts\": {\"nic_gbit_s\": 0}}", "hosts.nic_gbit_s is 0"},
      {TOP "\"hosts\": {\"nic_gbit_s\": null}}", "is null"},
      {TOP "\"hosts\": {\"nic_gbit_s\": true}}", "is true"},
      {TOP "\"hosts\": {\"nic_gbit_s\": \"4\"}}", "nic_gbit_s is 4"},
      {TOP "\"hosts\": {\"nic_gbit_s\": [4]}}", "nic_gbit_s is [4]"},
      {TOP "\"hosts\": {\"nic_gbit_s\": nan}}", "nan"},
      {TOP "\"hosts\": {\"nic_gbit_s\": 1e400}}", "1e400"},
      {TOP "\"hosts\": {\"nic_gbit_s\": 0x10}}", "0x10"},
      {TOP "\"hosts\": {\"nic_gbit_s\": 4 5}}", "x.json"},
      {TOP "\"hosts\": {\"nic_gbit_s\"}}", "has no value"},
      {TOP "\"hosts\": {\"mtu\": 100}}", "hosts.mtu is 100"},
      {TOP "\"hosts\": {\"ranks\": 1, \"ranks\": 2}}", "\"ranks\" twice"},
      {TOP "\"hosts\": {}, \"hosts\": {}}", "\"hosts\" twice"},
      {TOP "\"islands\": {\"amd\": {}}}", "islands.amd.gbytes_s is missing"},
      {TOP "\"islands\": {\"amd\": {\"gbyte_s\": 3}}}", "no key \"gbyte_s\""},
      {TOP "\"islands\": {\"\": {\"gbytes_s\": 3}}}", "1 to 63 bytes"},
      {TOP "\"islands\": {\"amd\": 3}}", "islands.amd. must be an object"},
      {TOP "\"bridge\": {\"gbit_s\": -3}}", "bridge.gbit_s is -3"},
      {TOP "\"overhead_us\": 0}", "overhead_us is 0"},
      {TOP "\"about\": 3}", "about must be a text"},
      {TOP "\"overhead_us\": 00000000000000000000000000000000000000001}",
       "overhead_us"},
  };
  for (size_t i = 0; i < GBI_COUNT(bad); i++) {
    gbi_links links, untouched;
    gb_error error = {.text = ""};
    gbi_links_default(&untouched);
    if (parse(bad[i].json, &links, &error) != GB_ERR_SETTING)
      gb_test_fail(__FILE__, __LINE__, "taken: %s", bad[i].json);
    GB_CHECK_TEXT(error.text, "links file x.json: ");
    GB_CHECK_TEXT(error.text, bad[i].text);
    GB_CHECK(!memcmp(&links.hosts, &untouched.hosts, sizeof links.hosts));
    GB_CHECK_INT(links.islands_count, 0);
  }
}

GB_TEST(links, long_files_and_many_islands_are_refused) {
  gbi_links links;
  gb_error error;
  size_t bytes = GBI_LINKS_BYTES_MAX + 1;
  char *json = malloc(bytes);
  memset(json, '[', bytes);
  GB_CHECK_INT(gbi_links_parse(json, bytes, "x", &links, &error),
               GB_ERR_SETTING);
  GB_CHECK_TEXT(error.text, "more than 65536 bytes");
  GB_CHECK_INT(gbi_links_parse(json, bytes / 2, "x", &links, &error),
               GB_ERR_SETTING);
  int used = snprintf(json, bytes, TOP "\"islands\": {");
  for (int i = 0; i <= GBI_LINKS_ISLANDS_MAX; i++)
    used += snprintf(json + used, bytes - (size_t)used,
                     "%s\"i%d\": {\"gbytes_s\": 1}", i ? "," : "", i);
  snprintf(json + used, bytes - (size_t)used, "}}");
  GB_CHECK_INT(parse(json, &links, &error), GB_ERR_SETTING);
  GB_CHECK_TEXT(error.text, "more than 16 islands");
  free(json);
}

/* Cut and changed at every byte: an error or not, but never a crash. */
GB_TEST(links, mangled_files_do_no_harm) {
  static const char good[] = TOP
      "\"hosts\": {\"ranks\": 4}, \"islands\": {\"a\": "
      "{\"gbytes_s\": 25}}, \"bridge\": {\"gbit_s\": 1}}";
  static const char puts[] = "{}[]\",:0-e\\\x01\xff";
  gbi_links links;
  gb_error error;
  for (size_t cut = 0; cut < sizeof good; cut++) {
    char json[sizeof good];
    memcpy(json, good, sizeof good);
    gbi_links_parse(json, cut, "x", &links, &error);
    for (size_t p = 0; p < sizeof puts && cut < sizeof good - 1; p++) {
      json[cut] = puts[p];
      gbi_links_parse(json, sizeof good - 1, "x", &links, &error);
    }
  }
}

/* ---- many ranks ---- */

GB_TEST(sim, two_thousand_ranks_fit_in_little_memory, .timeout_ms = 240000) {
  enum { WORLD = 2048, EACH = 8 };
  static char names[WORLD / EACH][16];
  static const char *islands[WORLD], *hosts[WORLD];
  for (int r = 0; r < WORLD; r++) {
    snprintf(names[r / EACH], sizeof names[0], "h%d", r / EACH);
    islands[r] = r < WORLD / 2 ? "nvidia" : "amd";
    hosts[r] = names[r / EACH];
  }
  gbi_topology *t;
  GB_CHECK_OK(gbi_topology_plan(islands, hosts, WORLD, &t, NULL));
  gbi_links links;
  gbi_links_default(&links);
  static const int five[] = {GBI_OP_ALL_REDUCE, GBI_OP_BROADCAST, GBI_OP_REDUCE,
                             GBI_OP_ALL_GATHER, GBI_OP_REDUCE_SCATTER};
  uint64_t steps = 0;
  for (size_t o = 0; o < GBI_COUNT(five); o++) {
    gbi_sim_result result;
    bool rows = five[o] >= GBI_OP_ALL_GATHER && five[o] != GBI_OP_REDUCE;
    GB_CHECK_OK(run(t, &links, SHARDED, five[o], root_of(five[o], WORLD),
                    rows ? MIB / WORLD : MIB, &result, NULL));
    GB_CHECK(result.seconds > 0);
    steps += result.plan_steps;
  }
  gbi_sim_result result;
  gb_error error;
  GB_CHECK_INT(run(t, &links, &gbi_policy_flat, GBI_OP_ALL_REDUCE, -1, MIB / 16,
                   &result, &error),
               GB_ERR_ARGUMENT);
  GB_CHECK_TEXT(error.text, "more than a simulation takes");
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  printf("%llu steps of plans, %ld KiB\n", (unsigned long long)steps,
         usage.ru_maxrss);
  gbi_topology_free(t);
}
