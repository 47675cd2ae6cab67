/* Whole jobs over every layout: all collectives, types and reductions are exact
 * under every policy and transport, whatever the order of ranks (S105, S107,
 * S079, S081, S106). Data are small integers, so that every right answer is
 * exact in every type; the policy `flat` is one of those compared. */
#include "job/job.h"

static int value_of(int rank, size_t i) {
  return (int)((i + (size_t)rank) % 7) + 1;
}

static const gb_dtype floats[] = {GB_FLOAT16, GB_BFLOAT16, GB_FLOAT32,
                                  GB_FLOAT64};

static uint16_t half_of(double v, int mantissa, int bias) {
  /* v is a small multiple of 1/4: exact in both half types. */
  if (v == 0) return 0;
  int e = 0;
  while (v >= 2) v /= 2, e++;
  while (v < 1) v *= 2, e--;
  return (uint16_t)((e + bias) << mantissa |
                    (int)((v - 1) * (double)(1 << mantissa)));
}

static void put(void *data, size_t i, gb_dtype dtype, double v) {
  switch (dtype) {
    case GB_INT8:
    case GB_UINT8: ((uint8_t *)data)[i] = (uint8_t)v; break;
    case GB_INT32: ((int32_t *)data)[i] = (int32_t)v; break;
    case GB_INT64: ((int64_t *)data)[i] = (int64_t)v; break;
    case GB_FLOAT16: ((uint16_t *)data)[i] = half_of(v, 10, 15); break;
    case GB_BFLOAT16: ((uint16_t *)data)[i] = half_of(v, 7, 127); break;
    case GB_FLOAT32: ((float *)data)[i] = (float)v; break;
    default: ((double *)data)[i] = v;
  }
}

static void check(const void *data, size_t i, gb_dtype dtype, double v,
                  const char *what) {
  uint8_t want[8] = {0};
  size_t bytes = gb_dtype_bytes(dtype);
  put(want, 0, dtype, v);
  if (memcmp(want, (const uint8_t *)data + i * bytes, bytes))
    gb_test_fail(__FILE__, __LINE__, "%s, %s: element %zu is not %g", what,
                 gb_dtype_name(dtype), i, v);
}

static double reduced(size_t i, gb_redop op) {
  double sum = 0, most = 0, least = 99;
  for (int r = 0; r < gb_world(); r++) {
    int v = value_of(r, i);
    sum += v;
    most = v > most ? v : most;
    least = v < least ? v : least;
  }
  return op == GB_SUM   ? sum
         : op == GB_AVG ? sum / gb_world()
         : op == GB_MAX ? most
                        : least;
}

static bool fits_avg(gb_dtype dtype) {
  for (size_t i = 0; i < 4; i++)
    if (floats[i] == dtype) return gb_world() == 2 || gb_world() == 4;
  return false; /* other worlds: quotients that round */
}

static void one_shape(gb_job *job, size_t n, gb_dtype dtype, uint8_t *a,
                      uint8_t *b) {
  gb_group *group = gb_job_world(job);
  size_t world = (size_t)gb_world();
  gb_buffer small = {a, n, dtype}, large = {b, n * world, dtype};
  for (int op = 0; op < GB_REDOP_COUNT; op++) {
    if (op == GB_AVG && !fits_avg(dtype)) continue;
    for (size_t i = 0; i < n; i++) put(a, i, dtype, value_of(gb_rank(), i));
    MUST(gb_all_reduce(group, &small, (gb_redop)op, NULL, error));
    for (size_t i = 0; i < n; i++)
      check(a, i, dtype, reduced(i, (gb_redop)op), "all_reduce");
    for (size_t i = 0; i < n * world; i++)
      put(b, i, dtype, value_of(gb_rank(), i));
    MUST(gb_reduce_scatter(group, &small, &large, (gb_redop)op, NULL, error));
    for (size_t i = 0; i < n; i++)
      check(a, i, dtype, reduced(i + n * (size_t)gb_rank(), (gb_redop)op),
            "reduce_scatter");
    for (size_t i = 0; i < n * world; i++)
      check(b, i, dtype, value_of(gb_rank(), i), "reduce_scatter's input");
  }
  for (int root = 0; root < gb_world(); root++) {
    for (size_t i = 0; i < n; i++) put(a, i, dtype, value_of(gb_rank(), i));
    MUST(gb_broadcast(group, &small, root, NULL, error));
    for (size_t i = 0; i < n; i++)
      check(a, i, dtype, value_of(root, i), "broadcast");
  }
  for (size_t i = 0; i < n; i++) put(a, i, dtype, value_of(gb_rank(), i));
  memset(b, 0xee, n * world * gb_dtype_bytes(dtype));
  MUST(gb_all_gather(group, &large, &small, NULL, error));
  for (size_t i = 0; i < n * world; i++)
    check(b, i, dtype, value_of((int)(i / n), i % n), "all_gather");
  MUST(gb_barrier(group, NULL, error));
}

static void all_shapes(const char *policy, const char *bridge) {
  static const size_t counts[] = {0, 1, 3, 1000, 1025, 70001};
  if (bridge) setenv("GPUBRIDGE_BRIDGE", bridge, 1);
  setenv("GPUBRIDGE_CHUNK_BYTES", "64K", 1);
  gb_job *job = must_open(60000, policy);
  size_t most = 70001 * 8 * (size_t)gb_world();
  uint8_t *a = malloc(most), *b = malloc(most);
  for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
    for (int dtype = 0; dtype < GB_DTYPE_COUNT; dtype++)
      if (counts[c] < 5000 || dtype == GB_FLOAT32 || dtype == GB_BFLOAT16)
        one_shape(job, counts[c], (gb_dtype)dtype, a, b);
  free(a);
  free(b);
  must_close(job);
}

#define LAYOUT(name, n, letters)                                               \
  GB_TEST(collectives, name##_auto, .ranks = n, .vendors = letters,            \
          .timeout_ms = 120000) {                                              \
    all_shapes(NULL, NULL);                                                    \
  }                                                                            \
  GB_TEST(collectives, name##_tcp, .ranks = n, .vendors = letters,             \
          .timeout_ms = 120000) {                                              \
    all_shapes(NULL, "tcp");                                                   \
  }                                                                            \
  GB_TEST(collectives, name##_flat, .ranks = n, .vendors = letters,            \
          .timeout_ms = 120000) {                                              \
    all_shapes("flat", NULL);                                                  \
  }

LAYOUT(two_and_two, 4, "nnaa")
LAYOUT(interleaved, 4, "nana")
LAYOUT(reversed, 4, "aann")
LAYOUT(three_and_one, 4, "nnna")
LAYOUT(one_and_three, 4, "naaa")
LAYOUT(one_and_one, 2, "na")
LAYOUT(four_and_four, 8, "nnnnaaaa")
LAYOUT(one_island, 4, "nnnn")
LAYOUT(alone, 1, "n")

/* Three islands by name: 2 + 3 + 2, and each rank an island of its own. */
static void name_island(int island) {
  static const char *const names[] = {"one", "two", "three", "four"};
  setenv("GPUBRIDGE_ISLAND", names[island], 1);
}
GB_TEST(collectives, three_islands_auto, .ranks = 7, .vendors = "nnaaann",
        .timeout_ms = 120000) {
  static const int islands[] = {0, 0, 1, 1, 1, 2, 2};
  name_island(islands[gb_rank()]);
  all_shapes(NULL, NULL);
}
GB_TEST(collectives, three_islands_tcp, .ranks = 7, .vendors = "nnaaann",
        .timeout_ms = 120000) {
  static const int islands[] = {0, 1, 2, 0, 1, 2, 1};
  name_island(islands[gb_rank()]);
  all_shapes(NULL, "tcp");
}
GB_TEST(collectives, four_islands_of_one, .ranks = 4, .vendors = "nana",
        .timeout_ms = 120000) {
  name_island(gb_rank());
  all_shapes(NULL, NULL);
}

/* Hosts by simulated names: islands over two hosts use TCP inside. */
static void on_host(const char *letters) {
  char name[16];
  snprintf(name, sizeof name, "host-%c", letters[gb_rank()]);
  setenv("GPUBRIDGE_SIM_HOSTNAME", name, 1);
}
GB_TEST(collectives, an_island_over_two_hosts, .ranks = 4, .vendors = "nnnn",
        .timeout_ms = 120000) {
  on_host("xxyy");
  all_shapes(NULL, NULL);
}
GB_TEST(collectives, islands_and_hosts_crossed, .ranks = 6,
        .vendors = "nanana", .timeout_ms = 120000) {
  on_host("xxyyxy");
  all_shapes(NULL, NULL);
}

/* S106: who leads, which bridge, which phases. */
typedef struct seen {
  int count;
  gb_record last;
} seen;
static int note(void *arg, const gb_record *record) {
  seen *s = arg;
  s->count++;
  s->last = *record;
  return 0;
}
GB_TEST(collectives, topology_and_phases, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(30000, NULL);
  gb_job_info info = {.size = sizeof info};
  GB_CHECK_OK(gb_job_get_info(job, &info));
  GB_CHECK_INT(info.islands_count, 2);
  GB_CHECK_INT(info.is_leader, gb_rank() % 2 == 0);
  GB_CHECK(!strcmp(info.bridge, "shm"));
  GB_CHECK(!strcmp(info.policy, "reduce-bridge-broadcast"));
  gb_island_info island = {.size = sizeof island};
  GB_CHECK_OK(gb_job_get_island(job, 1, &island));
  GB_CHECK(!strcmp(island.label, "amd"));
  GB_CHECK_INT(island.leader, 2);
  GB_CHECK_INT(island.ranks[1], 3);
  seen s = {0};
  MUST(gb_observer_add(job, note, &s, error));
  must_sum(job, 3);
  GB_CHECK_INT(s.count, 3);
  GB_CHECK_INT(s.last.seq, 2);
  GB_CHECK_INT(s.last.bytes, 4);
  bool leads = info.is_leader;
  GB_CHECK_INT(s.last.phases_count, leads ? 3 : 2);
  GB_CHECK(!strcmp(s.last.phases[0].name, "island-reduce"));
  if (leads) GB_CHECK(!strcmp(s.last.phases[1].name, "bridge"));
  GB_CHECK(!strcmp(s.last.phases[leads ? 2 : 1].name, "island-broadcast"));
  for (int i = 0; i < s.last.phases_count; i++)
    GB_CHECK(s.last.phases[i].end_ns >= s.last.phases[i].start_ns);
  must_close(job);
}
