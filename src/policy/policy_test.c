/* Proves with the plan checker that every policy's plans fit together and give
 * the right result: every collective and reduction, over hundreds of random and
 * named topologies, up to 4,096 ranks. The last tests break plans on purpose
 * and prove that the checker sees it. */
#include "policy/policy.h"
#include "policy/rules.h"

#include <stdlib.h>

#include "harness/gb_test.h"
#include "plan/check.h"

static uint64_t seed = 12345;
static uint32_t dice(uint32_t sides) {
  seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
  return (uint32_t)(seed >> 33) % sides;
}

static const char *const names[] = {"nvidia", "amd", "third", "fourth"};

static gbi_topology *make_hosts(const int *islands, const int *host,
                                int world) {
  const char **labels = malloc(sizeof *labels * (size_t)world);
  const char **hosts = malloc(sizeof *hosts * (size_t)world);
  for (int r = 0; r < world; r++) {
    labels[r] = names[islands[r]];
    hosts[r] = host ? names[host[r]] : "one";
  }
  gbi_topology *topology;
  GB_CHECK_OK(gbi_topology_plan(labels, hosts, world, &topology, NULL));
  free(labels);
  free(hosts);
  return topology;
}

static gbi_topology *make_topology(const int *islands, int world) {
  return make_hosts(islands, NULL, world);
}

/* What is called; the lengths of rows: equal, differing, or all zero. */
typedef enum lengths { EQUAL, MIXED, EMPTY } lengths;
typedef struct shape {
  uint8_t op, dtype, redop;
  lengths lengths;
} shape;

static const shape shapes[] = {
    {GBI_OP_ALL_REDUCE, GB_FLOAT32, GB_SUM, EQUAL},
    {GBI_OP_ALL_REDUCE, GB_FLOAT32, GB_AVG, EQUAL},
    {GBI_OP_ALL_REDUCE, GB_FLOAT16, GB_AVG, EQUAL},
    {GBI_OP_ALL_REDUCE, GB_BFLOAT16, GB_PREMUL_SUM, EQUAL},
    {GBI_OP_REDUCE, GB_FLOAT32, GB_SUM, EQUAL},
    {GBI_OP_REDUCE, GB_FLOAT64, GB_AVG, EQUAL},
    {GBI_OP_REDUCE, GB_FLOAT16, GB_AVG, EQUAL},
    {GBI_OP_REDUCE, GB_FLOAT64, GB_PREMUL_SUM, EQUAL},
    {GBI_OP_BROADCAST, GB_INT64, 255, EQUAL},
    {GBI_OP_ALL_GATHER, GB_UINT8, 255, EQUAL},
    {GBI_OP_ALL_GATHER_V, GB_FLOAT32, 255, MIXED},
    {GBI_OP_ALL_GATHER_V, GB_INT64, 255, EMPTY},
    {GBI_OP_REDUCE_SCATTER, GB_FLOAT64, GB_MAX, EQUAL},
    {GBI_OP_REDUCE_SCATTER, GB_FLOAT32, GB_AVG, EQUAL},
    {GBI_OP_REDUCE_SCATTER, GB_FLOAT16, GB_AVG, EQUAL},
    {GBI_OP_REDUCE_SCATTER, GB_FLOAT32, GB_PREMUL_SUM, EQUAL},
    {GBI_OP_REDUCE_SCATTER_V, GB_INT32, GB_SUM, MIXED},
    {GBI_OP_REDUCE_SCATTER_V, GB_FLOAT32, GB_AVG, MIXED},
    {GBI_OP_REDUCE_SCATTER_V, GB_FLOAT16, GB_AVG, MIXED},
    {GBI_OP_REDUCE_SCATTER_V, GB_FLOAT16, GB_AVG, EMPTY},
    {GBI_OP_GATHER, GB_FLOAT32, 255, EQUAL},
    {GBI_OP_SCATTER, GB_INT8, 255, EQUAL},
    {GBI_OP_ALL_TO_ALL, GB_FLOAT32, 255, EQUAL},
    {GBI_OP_ALL_TO_ALL, GB_FLOAT64, 255, MIXED},
    {GBI_OP_ALL_TO_ALL, GB_UINT8, 255, EMPTY},
};

/* One call on all ranks of a topology. */
typedef struct call {
  const gbi_topology *topology;
  gbi_coll coll;
  uint64_t *lengths; /* row lengths, or part [from][to] of an all_to_all */
  uint64_t *parts;   /* [rank]: its two lists */
  gbi_plan **plans;
  int links, links_most;
  gbi_codec codec;
  bool direct;
  uint64_t apart_least;
} call;

static void init_lengths(call *c, const shape *s, uint64_t count) {
  size_t n = (size_t)c->topology->world;
  bool table = s->op == GBI_OP_ALL_TO_ALL;
  c->lengths = calloc(table ? n * n : n, sizeof *c->lengths);
  for (size_t i = 0; i < (table ? n * n : n) && s->lengths == MIXED; i++)
    c->lengths[i] = dice(3) ? dice((uint32_t)count + 1) : 0;
  c->coll.count = 0;
  if (!table) {
    for (size_t i = 0; i < n; i++) c->coll.count += c->lengths[i];
    return;
  }
  c->parts = calloc(n * n * 2, sizeof *c->parts);
  for (size_t r = 0; r < n; r++)
    for (size_t k = 0; k < n; k++) {
      c->parts[r * 2 * n + k] = c->lengths[r * n + k];
      c->parts[r * 2 * n + n + k] = c->lengths[k * n + r];
    }
}

static void call_init(call *c, const shape *s, const gbi_topology *topology,
                      uint64_t count) {
  bool rooted = s->op == GBI_OP_BROADCAST || s->op == GBI_OP_REDUCE ||
                s->op == GBI_OP_GATHER || s->op == GBI_OP_SCATTER;
  *c = (call){.topology = topology,
              .coll = {.op = s->op,
                       .dtype = s->dtype,
                       .redop = s->redop,
                       .root = -1,
                       .count = count}};
  if (rooted) c->coll.root = (int32_t)dice((uint32_t)topology->world);
  if (s->lengths != EQUAL) init_lengths(c, s, count);
  c->plans = calloc((size_t)topology->world, sizeof(gbi_plan *));
}

static void call_fini(call *c) {
  for (int r = 0; r < c->topology->world; r++) gbi_plan_free(c->plans[r]);
  free(c->plans);
  free(c->lengths);
  free(c->parts);
}

static const gbi_rules *rules; /* of auto-tuned */

static void call_plan(call *c, const gbi_policy_ops *policy,
                      uint64_t chunk_bytes) {
  int world = c->topology->world;
  c->links = gbi_policy_links(policy, rules, c->topology, c->links_most);
  for (int r = 0; r < world; r++) {
    gbi_policy_env env = {.topology = c->topology,
                          .rank = r,
                          .chunk_bytes = chunk_bytes,
                          .rules = rules,
                          .links = c->links,
                          .codec = c->codec,
                          .apart_least = c->apart_least,
                          .direct = c->direct};
    gbi_coll coll = c->coll;
    if (c->lengths) {
      coll.counts = c->parts ? c->parts + (size_t)r * 2 * (size_t)world
                             : c->lengths;
      coll.counts_count = (uint32_t)world * (c->parts ? 2 : 1);
    }
    GB_CHECK_OK(gbi_policy_plan(policy, &env, &coll, &c->plans[r], NULL));
    GB_CHECK(c->apart_least ||
             c->plans[r]->scratch_bytes <=
             gbi_policy_scratch_max(c->topology, chunk_bytes, c->codec));
  }
}

static void check_coded(const gbi_policy_ops *policy, const shape *s,
                        const gbi_topology *topology, uint64_t count,
                        uint64_t chunk_bytes, int links_most,
                        gbi_codec codec, uint64_t apart_least) {
  call c;
  gb_error error;
  call_init(&c, s, topology, count);
  c.links_most = links_most;
  c.codec = codec;
  c.apart_least = apart_least;
  c.direct = gbi_policy_direct.fits(topology) && dice(2);
  call_plan(&c, policy, chunk_bytes);
  if (gbi_plans_check(topology, c.links, (const gbi_plan *const *)c.plans,
                      &error))
    gb_test_fail(__FILE__, __LINE__,
                 "%s, world %d, %d islands, %d links, chunk %llu, %s of type "
                 "%d, redop %d, root %d, lengths %d, count %llu, compression "
                 "%s, apart from %llu: %s",
                 policy->name, topology->world, topology->islands_count,
                 c.links, (unsigned long long)chunk_bytes,
                 gbi_op_name(s->op), s->dtype, s->redop, (int)c.coll.root,
                 (int)s->lengths, (unsigned long long)count,
                 gbi_codec_name((int)codec), (unsigned long long)apart_least,
                 error.text);
  call_fini(&c);
}

/* With each compression that changes this call's plan too, and with sums that
 * the holders combine. */
static void check_one(const gbi_policy_ops *policy, const shape *s,
                      const gbi_topology *topology, uint64_t count,
                      uint64_t chunk_bytes, int links_most) {
  gbi_coll coll = {.op = s->op, .dtype = s->dtype, .redop = s->redop};
  check_coded(policy, s, topology, count, chunk_bytes, links_most,
              GBI_CODEC_NONE, 0);
  if (policy != &gbi_policy_reduce_bridge_broadcast && !policy->uses_links &&
      policy != &gbi_policy_auto)
    return;
  check_coded(policy, s, topology, count, chunk_bytes, links_most,
              GBI_CODEC_NONE, 1 + dice(128));
  for (int codec = GBI_CODEC_BF16; codec < GBI_CODECS; codec++) {
    gbi_policy_env env = {.codec = (gbi_codec)codec};
    if (gbi_plan_codec(&env, &coll))
      check_coded(policy, s, topology, count, chunk_bytes, links_most,
                  env.codec, 0);
  }
}

static const gbi_policy_ops *const policies[] = {
    &gbi_policy_native_only,    &gbi_policy_reduce_bridge_broadcast,
    &gbi_policy_sharded_bridge, &gbi_policy_flat,
    &gbi_policy_direct,         &gbi_policy_auto};

static void check_topology(const gbi_topology *topology, uint64_t count,
                           uint64_t chunk_bytes) {
  for (size_t p = 0; p < GBI_COUNT(policies); p++) {
    if (!policies[p]->fits(topology)) continue;
    if (policies[p] == &gbi_policy_flat && topology->world > 8) continue;
    for (size_t s = 0; s < GBI_COUNT(shapes); s++) {
      /* Exchanges are the same under every policy. */
      if (policies[p]->uses_world && gbi_is_exchange(shapes[s].op)) continue;
      /* All links there are, or a random bound. */
      int most = policies[p]->uses_links ? (int)dice(4) : 0;
      check_one(policies[p], &shapes[s], topology, count, chunk_bytes, most);
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
      {6, {0, 1, 0, 1, 1, 1}},   {5, {0, 0, 0, 1, 1}},
      {6, {0, 0, 0, 1, 1, 1}},
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
    int hosts[64];
    for (int r = 0; r < world; r++) hosts[r] = (int)dice(i % 3 ? 1 : 4);
    gbi_topology *t = make_hosts(islands, hosts, world);
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
    static const struct {
      shape shape;
      uint64_t count;
    } large[] = {
        {{GBI_OP_ALL_REDUCE, GB_FLOAT32, GB_SUM, EQUAL}, 1500},
        {{GBI_OP_REDUCE, GB_FLOAT16, GB_AVG, EQUAL}, 600},
        {{GBI_OP_ALL_REDUCE, GB_FLOAT32, GB_SUM, EQUAL}, 100},
        {{GBI_OP_REDUCE, GB_FLOAT16, GB_AVG, EQUAL}, 100},
        {{GBI_OP_BROADCAST, GB_INT64, 255, EQUAL}, 100},
        {{GBI_OP_ALL_GATHER, GB_FLOAT32, 255, EQUAL}, 1},
        {{GBI_OP_GATHER, GB_FLOAT32, 255, EQUAL}, 3},
        {{GBI_OP_SCATTER, GB_FLOAT32, 255, EQUAL}, 3},
    };
    for (size_t i = 0; i < GBI_COUNT(large); i++) {
      check_one(&gbi_policy_reduce_bridge_broadcast, &large[i].shape, t,
                large[i].count, 4096, 0);
      check_one(&gbi_policy_sharded_bridge, &large[i].shape, t, large[i].count,
                4096, layout ? 0 : 8);
    }
    gbi_topology_free(t);
  }
}

/* All_reduces between those that all add up at once and those that all add up
 * in parts: reduce and broadcast. */
GB_TEST(policy, all_reduce_by_one) {
  static const int islands[] = {0, 1, 1, 0, 2};
  gbi_topology *mixed = make_topology(islands, 5);
  gbi_topology *one = make_topology((int[]){0, 0, 0}, 3);
  for (size_t s = 0; shapes[s].op == GBI_OP_ALL_REDUCE; s++)
    for (uint64_t count = 2040; count < 2060; count += 4) {
      check_one(&gbi_policy_direct, &shapes[s], mixed, count, 4096, 0);
      check_one(&gbi_policy_native_only, &shapes[s], one, count, 4096, 0);
    }
  gbi_topology_free(mixed);
  gbi_topology_free(one);
}

/* Sizes at a border take one policy on all ranks, whatever their part. */
GB_TEST(policy, rules_choose_alike_on_all_ranks) {
  static const int islands[] = {0, 0, 1, 1, 1, 2, 2};
  gbi_rules mixed;
  GB_CHECK(gbi_rules_parse(
      "8=auto,64=flat,*=sharded-bridge;all_gather:100=flat,*=sharded-bridge",
      &mixed));
  rules = &mixed;
  gbi_topology *t = make_topology(islands, 7);
  for (uint64_t count = 0; count < 40; count++)
    for (size_t s = 0; s < GBI_COUNT(shapes); s++)
      check_one(&gbi_policy_auto_tuned, &shapes[s], t, count, 64, 0);
  gbi_topology_free(t);
  rules = NULL;
}

/* What auto takes of `bytes` bytes on ranks of these islands and hosts. */
static void check_auto(const char *islands, const char *hosts, bool direct,
                       gbi_codec codec, shape s, uint64_t bytes,
                       const gbi_policy_ops *want) {
  int island[16] = {0}, host[16] = {0}, world = (int)strlen(islands);
  for (int r = 0; r < world; r++) {
    island[r] = islands[r] - '0';
    host[r] = hosts[r] - '0';
  }
  gbi_topology *t = make_hosts(island, host, world);
  int links = gbi_policy_links(&gbi_policy_auto, NULL, t, 0);
  gbi_coll coll = {.op = s.op, .dtype = s.dtype, .redop = s.redop, .root = -1,
                   .count = bytes / gb_dtype_bytes((gb_dtype)s.dtype)};
  for (int r = 0; r < world; r++) {
    gbi_policy_env env = {.topology = t, .rank = r, .chunk_bytes = 1 << 20,
                          .links = links, .codec = codec, .direct = direct};
    const gbi_policy_ops *got = gbi_auto_choose(&env, &coll);
    if (got != want)
      gb_test_fail(__FILE__, __LINE__, "islands %s on hosts %s, %s of %llu "
                   "bytes: rank %d takes %s, not %s", islands, hosts,
                   gbi_op_name(s.op), (unsigned long long)bytes, r, got->name,
                   want->name);
  }
  gbi_topology_free(t);
}

GB_TEST(policy, what_auto_takes) {
  static const shape sum = {GBI_OP_ALL_REDUCE, GB_FLOAT32, GB_SUM, EQUAL};
  static const shape copy = {GBI_OP_BROADCAST, GB_FLOAT32, 255, EQUAL};
  static const gbi_policy_ops *const native = &gbi_policy_native_only,
                                    *const step = &gbi_policy_direct,
                                    *const hops =
                                        &gbi_policy_reduce_bridge_broadcast,
                                    *const links = &gbi_policy_sharded_bridge;
  enum { K = 1024, M = 1024 * 1024 };
  check_auto("0000", "0000", false, 0, sum, 4, native);
  check_auto("0000", "0011", false, 0, sum, M, native);
  /* One host: where the bridge may be left out, and has nothing to do. */
  check_auto("0011", "0000", true, 0, sum, 4, step);
  check_auto("0110", "0000", true, 0, copy, 64 * M, step);
  check_auto("0011", "0000", false, 0, sum, 4, hops);
  check_auto("0011", "0000", true, GBI_CODEC_BF16, sum, 4 * K, hops);
  check_auto("0011", "0000", true, GBI_CODEC_BF16, copy, 4 * K, step);
  check_auto("01", "00", true, 0, sum, 64 * K, step);
  /* Several hosts: links from 256 KiB where both islands have two hosts. */
  check_auto("0011", "0011", false, 0, sum, 64 * M, hops);
  check_auto("0011", "0123", false, 0, sum, 256 * K - 4, hops);
  check_auto("0011", "0123", false, 0, sum, 256 * K, links);
  check_auto("0011", "0122", false, 0, sum, 64 * M, hops);
}

/* Links of auto: one for each host of the island with the fewest. */
GB_TEST(policy, links_of_auto) {
  static const struct {
    const char *islands, *hosts;
    int most, links;
  } cases[] = {
      {"0000", "0000", 0, 0},         {"0011", "0000", 0, 1},
      {"0011", "0011", 0, 1},         {"0011", "0123", 0, 2},
      {"0011", "0123", 1, 1},         {"00001111", "00112233", 0, 2},
      {"0000011111", "0012334567", 0, 4},
      {"00001111", "01012323", 0, 2}, {"000111", "012345", 0, 3}};
  for (size_t i = 0; i < GBI_COUNT(cases); i++) {
    int islands[16], hosts[16], world = (int)strlen(cases[i].islands);
    static const char *const labels[] = {"a", "b"};
    static const char *const names_of[] = {"0", "1", "2", "3",
                                           "4", "5", "6", "7"};
    const char *label[16], *host[16];
    for (int r = 0; r < world; r++) {
      islands[r] = cases[i].islands[r] - '0';
      hosts[r] = cases[i].hosts[r] - '0';
      label[r] = labels[islands[r]];
      host[r] = names_of[hosts[r]];
    }
    gbi_topology *t;
    GB_CHECK_OK(gbi_topology_plan(label, host, world, &t, NULL));
    GB_CHECK_INT(gbi_policy_links(&gbi_policy_auto, NULL, t, cases[i].most),
                 cases[i].links);
    gbi_topology_free(t);
  }
}

/* Rounds of all_to_all where each rank has hundreds of messages and room for
 * two. */
GB_TEST(policy, all_to_all_of_many, .timeout_ms = 120000) {
  enum { WORLD = 256 };
  static int islands[WORLD];
  for (int r = 0; r < WORLD; r++) islands[r] = r / 8 % 2;
  gbi_topology *t = make_topology(islands, WORLD);
  shape s = {GBI_OP_ALL_TO_ALL, GB_FLOAT32, 255, EQUAL};
  check_one(&gbi_policy_reduce_bridge_broadcast, &s, t, 2, 4096, 0);
  s.lengths = MIXED;
  check_one(&gbi_policy_reduce_bridge_broadcast, &s, t, 3, 4096, 0);
  gbi_topology_free(t);
}

/* What is compressed: sums and averages of all_reduce and reduce_scatter, of
 * floating types, where that makes them smaller. */
GB_TEST(policy, what_is_compressed) {
  for (int codec = 0; codec < GBI_CODECS; codec++)
    for (int op = GBI_OP_ALL_REDUCE; op < GBI_OP_COUNT; op++)
      for (int dtype = 0; dtype < GB_DTYPE_COUNT; dtype++)
        for (int redop = 0; redop < GB_REDOP_COUNT; redop++) {
          gbi_coll coll = {.op = (uint8_t)op,
                           .dtype = (uint8_t)dtype,
                           .redop = (uint8_t)redop};
          gbi_policy_env env = {.codec = (gbi_codec)codec};
          bool want = op == GBI_OP_ALL_REDUCE || op == GBI_OP_REDUCE_SCATTER ||
                      op == GBI_OP_REDUCE_SCATTER_V;
          want &= redop == GB_SUM || redop == GB_AVG;
          want &= dtype >= GB_FLOAT16 && dtype <= GB_FLOAT64;
          if (codec == GBI_CODEC_BF16)
            want &= dtype != GB_BFLOAT16 &&
                    (dtype != GB_FLOAT16 || redop == GB_AVG);
          GB_CHECK_INT(gbi_plan_codec(&env, &coll), want ? codec : 0);
        }
}

/* A plan of several chunks on 2 + 2 ranks, damaged by `harm` on some. */
static void check_harm_of(const gbi_policy_ops *policy, shape s, int window,
                          int ranks, void (*harm)(gbi_plan *plan),
                          const char *words) {
  int islands[] = {0, 0, 1, 1};
  gbi_topology *t = make_topology(islands, 4);
  call c;
  gb_error error;
  call_init(&c, &s, t, 100);
  if (c.coll.root >= 0) c.coll.root = 1;
  call_plan(&c, policy, 64);
  for (int r = 0; r < ranks; r++) harm(c.plans[r]);
  GB_CHECK_INT(gbi_plans_check_window(t, c.links,
                                      (const gbi_plan *const *)c.plans, window,
                                      &error),
               GB_ERR_INTERNAL);
  GB_CHECK_TEXT(error.text, words);
  call_fini(&c);
  gbi_topology_free(t);
}
static void check_harm(shape s, int window, int ranks,
                       void (*harm)(gbi_plan *plan), const char *words) {
  check_harm_of(&gbi_policy_reduce_bridge_broadcast, s, window, ranks, harm,
                words);
}
static const shape average = {GBI_OP_ALL_REDUCE, GB_FLOAT32, GB_AVG, EQUAL};
static const shape scaled = {GBI_OP_REDUCE, GB_FLOAT32, GB_PREMUL_SUM, EQUAL};
static const shape exchange = {GBI_OP_ALL_TO_ALL, GB_FLOAT32, 255, EQUAL};

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
  check_harm(average, 2, 1, drop_dependency, "neither waits");
}
GB_TEST(policy, checker_sees_different_steps) {
  check_harm(average, 2, 1, change_count, "differs between ranks");
}
GB_TEST(policy, checker_sees_an_unordered_write) {
  check_harm(average, 2, 1, divide_wrong_place, "neither waits");
}
GB_TEST(policy, checker_sees_a_wrong_result) {
  check_harm(average, 2, 1, drop_divide, "wrong result");
}
GB_TEST(policy, checker_sees_another_order) {
  check_harm(average, 2, 1, swap_order, "differs between ranks");
}

/* Over two links every rank holds one: each has damage of its own to show. */
#define SHARDED(words_of_test, shape_of, ranks, harm, words)                  \
  GB_TEST(policy, checker_sees_on_links_##words_of_test) {                    \
    check_harm_of(&gbi_policy_sharded_bridge, shape_of, 2, ranks, harm,       \
                  words);                                                     \
  }
SHARDED(a_missing_dependency, average, 2, drop_dependency, "neither waits")
SHARDED(different_steps, average, 1, change_count, "differs between ranks")
SHARDED(a_wrong_result, average, 2, drop_divide, "wrong result")
SHARDED(another_order, average, 1, swap_order, "differs between ranks")

/* Rank 1 skips its link: the other end waits for it. */
static void leave_the_link(gbi_plan *plan) {
  for (uint32_t i = 0; i < plan->count; i++)
    if (plan->steps[i].resource == GBI_ON_BRIDGE) {
      plan->steps[i].resource = GBI_ON_RANK;
      plan->steps[i].verb = GBI_DO_COPY;
    }
  free(plan->order);
  GB_CHECK_OK(gbi_plan_seal(plan, NULL));
}
SHARDED(a_link_that_is_left, average, 2, leave_the_link, "lists")

/* With one link only, a plan for two goes over one that is not there. */
GB_TEST(policy, checker_sees_a_link_that_is_not_there) {
  int islands[] = {0, 0, 1, 1};
  gbi_topology *t = make_topology(islands, 4);
  call c;
  gb_error error;
  call_init(&c, &average, t, 100);
  call_plan(&c, &gbi_policy_sharded_bridge, 64);
  GB_CHECK_INT(c.links, 2);
  GB_CHECK_INT(
      gbi_plans_check(t, 1, (const gbi_plan *const *)c.plans, &error),
      GB_ERR_INTERNAL);
  GB_CHECK_TEXT(error.text, "of 0 members");
  call_fini(&c);
  gbi_topology_free(t);
}

/* What one link carries of n elements: an even share, and link 0 all of a call
 * that is too short to cut. */
static uint64_t carried(const gbi_plan *plan) {
  uint64_t count = 0;
  for (uint32_t i = 0; i < plan->count; i++)
    if (plan->steps[i].resource == GBI_ON_BRIDGE) count += plan->steps[i].count;
  return count;
}
GB_TEST(policy, links_share_evenly) {
  int islands[] = {0, 0, 0, 0, 1, 1, 1, 1, 1};
  gbi_topology *t = make_topology(islands, 9);
  static const shape sum = {GBI_OP_ALL_REDUCE, GB_FLOAT32, GB_SUM, EQUAL};
  for (int shorter = 0; shorter < 2; shorter++) {
    call c;
    call_init(&c, &sum, t, shorter ? 4000 : 1 << 20);
    call_plan(&c, &gbi_policy_sharded_bridge, 1 << 18);
    GB_CHECK_INT(c.links, 4);
    for (int r = 0; r < 9; r++)
      GB_CHECK_INT(carried(c.plans[r]), r == 8     ? 0
                                        : !shorter ? 1 << 18
                                        : r % 4    ? 0
                                                   : 4000);
    call_fini(&c);
  }
  gbi_topology_free(t);
}

/* The leader, which is not the root, loads without its factor. */
static void copy_for_load(gbi_plan *plan) {
  for (uint32_t i = 0; i < plan->count; i++)
    if (plan->steps[i].verb == GBI_DO_LOAD)
      plan->steps[i].verb = GBI_DO_COPY;
}
GB_TEST(policy, checker_sees_an_unscaled_contribution) {
  check_harm(scaled, 2, 1, copy_for_load, "wrong result");
}
/* The leader keeps the sum in its own buffer, which a reduce must not touch. */
static void keep_the_sum(gbi_plan *plan) {
  gbi_step *last = NULL;
  for (uint32_t i = 0; i < plan->count; i++)
    if (plan->steps[i].verb == GBI_DO_TRANSFER) last = &plan->steps[i];
  gbi_step store = {.resource = GBI_ON_RANK,
                    .verb = GBI_DO_STORE,
                    .src = last->src,
                    .dst = {GBI_OUT, 0},
                    .count = 1,
                    .deps = {{0, plan->count}}};
  gbi_plan_add(plan, &store);
  free(plan->order);
  GB_CHECK_OK(gbi_plan_seal(plan, NULL));
}
GB_TEST(policy, checker_sees_a_changed_buffer) {
  check_harm(scaled, 2, 1, keep_the_sum, "input was changed");
}

static gbi_step *nth_message(gbi_plan *plan, uint32_t n) {
  return &plan->steps[plan->order[plan->first[GBI_ON_MESH] + n]];
}
static void lose_a_message(gbi_plan *plan) { nth_message(plan, 0)->number = 9; }
static void shorten_a_message(gbi_plan *plan) { nth_message(plan, 1)->count--; }
static void repeat_a_message(gbi_plan *plan) {
  nth_message(plan, 2)->peer = nth_message(plan, 0)->peer;
}
/* All sends, then all receives: three of them do not fit into two. */
static void send_first(gbi_plan *plan) {
  uint32_t *order = plan->order + plan->first[GBI_ON_MESH], kept[6];
  memcpy(kept, order, sizeof kept);
  for (uint32_t i = 0; i < 3; i++) {
    order[i] = kept[2 * i];
    order[i + 3] = kept[2 * i + 1];
  }
}
GB_TEST(policy, checker_sees_a_message_without_its_end) {
  check_harm(exchange, 2, 1, lose_a_message, "deadlock");
}
GB_TEST(policy, checker_sees_a_message_of_another_length) {
  check_harm(exchange, 2, 1, shorten_a_message, "which expects");
}
GB_TEST(policy, checker_sees_a_message_twice) {
  check_harm(exchange, 2, 1, repeat_a_message, "two messages to");
}
/* With room for one message all ranks send and nobody receives; with room for
 * two so do ranks that put all their sends first. */
GB_TEST(policy, checker_sees_a_window_that_is_too_small) {
  check_harm(exchange, 1, 0, NULL, "deadlock");
}
GB_TEST(policy, checker_sees_sends_before_receives) {
  check_harm(exchange, 2, 4, send_first, "deadlock");
}
