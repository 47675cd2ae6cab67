/* Proves with the plan checker that every policy's plans fit together and give
 * the right result: every collective and reduction, over hundreds of random and
 * named topologies, up to 4,096 ranks. The last tests break plans on purpose
 * and prove that the checker sees it. */
#include "policy/policy.h"

#include <stdlib.h>

#include "harness/gb_test.h"
#include "plan/check.h"

static uint64_t seed = 12345;
static uint32_t dice(uint32_t sides) {
  seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
  return (uint32_t)(seed >> 33) % sides;
}

static const char *const names[] = {"nvidia", "amd", "third", "fourth"};

static gbi_topology *make_topology(const int *islands, int world) {
  const char **labels = malloc(sizeof *labels * (size_t)world);
  const char **hosts = malloc(sizeof *hosts * (size_t)world);
  for (int r = 0; r < world; r++) {
    labels[r] = names[islands[r]];
    hosts[r] = "one";
  }
  gbi_topology *topology;
  GB_CHECK_OK(gbi_topology_plan(labels, hosts, world, &topology, NULL));
  free(labels);
  free(hosts);
  return topology;
}

static void make_plans(const gbi_policy_ops *policy,
                       const gbi_topology *topology, const gbi_coll *coll,
                       uint64_t chunk_bytes, gbi_plan **plans) {
  for (int r = 0; r < topology->world; r++) {
    gbi_policy_env env = {topology, r, chunk_bytes};
    GB_CHECK_OK(gbi_policy_plan(policy, &env, coll, &plans[r], NULL));
    GB_CHECK(plans[r]->scratch_bytes <=
             gbi_policy_scratch_max(topology, chunk_bytes));
  }
}

static gb_status check_one(const gbi_policy_ops *policy,
                           const gbi_topology *topology, const gbi_coll *coll,
                           uint64_t chunk_bytes, gb_error *error) {
  gbi_plan **plans = calloc((size_t)topology->world, sizeof *plans);
  make_plans(policy, topology, coll, chunk_bytes, plans);
  gb_status status =
      gbi_plans_check(topology, (const gbi_plan *const *)plans, error);
  for (int r = 0; r < topology->world; r++) gbi_plan_free(plans[r]);
  free(plans);
  return status;
}

static const gbi_policy_ops *const policies[] = {
    &gbi_policy_native_only, &gbi_policy_reduce_bridge_broadcast,
    &gbi_policy_flat};

static void check_topology(const gbi_topology *topology, uint64_t count,
                           uint64_t chunk_bytes) {
  static const gbi_coll shapes[] = {
      {GBI_OP_ALL_REDUCE, GB_FLOAT32, GB_SUM, -1, 0},
      {GBI_OP_ALL_REDUCE, GB_FLOAT32, GB_AVG, -1, 0},
      {GBI_OP_ALL_REDUCE, GB_FLOAT16, GB_AVG, -1, 0},
      {GBI_OP_BROADCAST, GB_INT64, 255, 0, 0},
      {GBI_OP_ALL_GATHER, GB_UINT8, 255, -1, 0},
      {GBI_OP_REDUCE_SCATTER, GB_FLOAT64, GB_MAX, -1, 0},
      {GBI_OP_REDUCE_SCATTER, GB_FLOAT32, GB_AVG, -1, 0},
      {GBI_OP_REDUCE_SCATTER, GB_FLOAT16, GB_AVG, -1, 0},
  };
  for (size_t p = 0; p < GBI_COUNT(policies); p++) {
    if (!policies[p]->fits(topology)) continue;
    if (policies[p]->uses_world && topology->world > 64) continue;
    for (size_t s = 0; s < GBI_COUNT(shapes); s++) {
      gbi_coll coll = shapes[s];
      coll.count = count;
      if (coll.op == GBI_OP_BROADCAST)
        coll.root = (int32_t)dice((uint32_t)topology->world);
      gb_error error;
      if (check_one(policies[p], topology, &coll, chunk_bytes, &error))
        gb_test_fail(__FILE__, __LINE__,
                     "%s, world %d, %d islands, shape %zu, count %llu: %s",
                     policies[p]->name, topology->world,
                     topology->islands_count, s, (unsigned long long)count,
                     error.text);
    }
  }
}

GB_TEST(policy, named_layouts, .timeout_ms = 240000) {
  static const struct {
    int world;
    int islands[8];
  } layouts[] = {
      {1, {0}},          {2, {0, 1}},          {2, {0, 0}},
      {4, {0, 0, 1, 1}}, {4, {0, 1, 0, 1}},    {4, {1, 1, 0, 0}},
      {4, {0, 0, 0, 1}}, {4, {0, 1, 1, 1}},    {4, {0, 0, 0, 0}},
      {7, {0, 0, 1, 1, 1, 2, 2}}, {8, {0, 0, 0, 0, 1, 1, 1, 1}},
      {6, {0, 1, 0, 1, 1, 1}},
  };
  static const uint64_t counts[] = {0, 1, 2, 7, 16, 100, 333};
  for (size_t l = 0; l < GBI_COUNT(layouts); l++) {
    gbi_topology *t = make_topology(layouts[l].islands, layouts[l].world);
    for (size_t c = 0; c < GBI_COUNT(counts); c++) {
      check_topology(t, counts[c], 64);
      check_topology(t, counts[c], 8);
      check_topology(t, counts[c], 1 << 20);
    }
    gbi_topology_free(t);
  }
}

/* With the named ones and the large ones: over 500 topologies. */
GB_TEST(policy, five_hundred_random_topologies, .timeout_ms = 240000) {
  for (int i = 0; i < 500; i++) {
    int world = 1 + (int)dice(i % 10 ? 12 : 48);
    int labels = 1 + (int)dice(4);
    int islands[64];
    for (int r = 0; r < world; r++) islands[r] = (int)dice((uint32_t)labels);
    gbi_topology *t = make_topology(islands, world);
    check_topology(t, dice(60), 8u << dice(6));
    gbi_topology_free(t);
  }
}

/* Blocks and alternating vendors at scale: the pure function must stay fast
 * and right there (design 4: 4,096 ranks). */
GB_TEST(policy, four_thousand_ranks, .timeout_ms = 240000) {
  enum { WORLD = 4096 };
  static int islands[WORLD];
  for (int layout = 0; layout < 2; layout++) {
    for (int r = 0; r < WORLD; r++)
      islands[r] = layout ? r / 8 % 2 : r * 4 / WORLD;
    gbi_topology *t = make_topology(islands, WORLD);
    static const gbi_coll shapes[] = {
        {GBI_OP_ALL_REDUCE, GB_FLOAT32, GB_SUM, -1, 100},
        {GBI_OP_BROADCAST, GB_INT64, 255, 77, 100},
        {GBI_OP_ALL_GATHER, GB_FLOAT32, 255, -1, 1},
    };
    for (size_t s = 0; s < GBI_COUNT(shapes); s++) {
      gb_error error;
      if (check_one(&gbi_policy_reduce_bridge_broadcast, t, &shapes[s], 4096,
                    &error))
        gb_test_fail(__FILE__, __LINE__, "shape %zu: %s", s, error.text);
    }
    gbi_topology_free(t);
  }
}

/* A plan of several chunks on 2 + 2 ranks, damaged by `harm` on one rank. */
static void check_harm(void (*harm)(gbi_plan *plan), const char *words) {
  int islands[] = {0, 0, 1, 1};
  gbi_topology *t = make_topology(islands, 4);
  gbi_coll coll = {GBI_OP_ALL_REDUCE, GB_FLOAT32, GB_AVG, -1, 100};
  gbi_plan *plans[4];
  make_plans(&gbi_policy_reduce_bridge_broadcast, t, &coll, 64, plans);
  harm(plans[0]);
  gb_error error;
  GB_CHECK_INT(gbi_plans_check(t, (const gbi_plan *const *)plans, &error),
               GB_ERR_INTERNAL);
  GB_CHECK_TEXT(error.text, words);
  for (int r = 0; r < 4; r++) gbi_plan_free(plans[r]);
  gbi_topology_free(t);
}

static void drop_dependency(gbi_plan *plan) {
  for (uint32_t i = 0; i < plan->count; i++)
    if (plan->steps[i].resource == GBI_ON_BRIDGE)
      plan->steps[i].deps[0].count = 0;
}
static void change_count(gbi_plan *plan) { plan->steps[0].count--; }
static void divide_wrong_place(gbi_plan *plan) {
  for (uint32_t i = plan->count; i-- > 0;)
    if (plan->steps[i].verb == GBI_DO_DIVIDE) {
      plan->steps[i].src = plan->steps[i].dst = (gbi_ref){GBI_OUT, 0};
      return;
    }
}
static void drop_divide(gbi_plan *plan) {
  for (uint32_t i = 0; i < plan->count; i++)
    if (plan->steps[i].verb == GBI_DO_DIVIDE) plan->steps[i].count = 0;
}
static void swap_order(gbi_plan *plan) {
  /* The first take-in waits for the first hand-out: a ring of waits. */
  for (uint32_t i = 0; i < plan->count; i++)
    if (plan->steps[i].verb == GBI_DO_BROADCAST) {
      uint32_t *order = plan->order + plan->first[GBI_ON_ISLAND];
      for (uint32_t k = 0; order[k] != i; k++) {
        uint32_t keep = order[k];
        order[k] = i;
        for (uint32_t j = k + 1;; j++) {
          uint32_t next = order[j];
          order[j] = keep;
          keep = next;
          if (next == i) break;
        }
        break;
      }
      return;
    }
}

GB_TEST(policy, checker_sees_a_missing_dependency) {
  check_harm(drop_dependency, "neither waits");
}
GB_TEST(policy, checker_sees_different_steps) {
  check_harm(change_count, "differs between ranks");
}
GB_TEST(policy, checker_sees_an_unordered_write) {
  check_harm(divide_wrong_place, "neither waits");
}
GB_TEST(policy, checker_sees_a_wrong_result) {
  check_harm(drop_divide, "wrong result");
}
GB_TEST(policy, checker_sees_another_order) {
  check_harm(swap_order, "differs between ranks");
}
