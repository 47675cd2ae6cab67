/* Whole jobs over every layout: all collectives, types and reductions are exact
 * under every policy and transport, whatever the order of ranks (S105, S107,
 * S079, S081, S083, S106). Data are small integers, so that every right sum is
 * exact, or rounds once in the narrow types; the policy `flat` is one of those
 * compared. Every layout runs the common types and reductions; a few run all of
 * them. */
#include "job/job.h"
#include "job/layouts.h"
#include "job/values.h"

/* What a rank gives to a reduction: 1 or 2 to a product, often 0 as a bool. */
static int given(int rank, size_t i, gb_dtype dtype, gb_redop op) {
  int v = value_of(rank, i);
  if (dtype == GB_BOOL) return v % 3 ? 0 : v;
  return op == GB_PRODUCT ? 1 + v % 2 : v;
}

static int combined(int a, int b, gb_dtype dtype, gb_redop op) {
  if (dtype == GB_BOOL) {
    bool both = op == GB_PRODUCT || op == GB_MIN || op == GB_BAND;
    if (op == GB_BXOR) return !a != !b;
    return both ? a && b : a || b;
  }
  switch (op) {
    case GB_MAX: return a > b ? a : b;
    case GB_MIN: return a < b ? a : b;
    case GB_PRODUCT: return a * b;
    case GB_BAND: return a & b;
    case GB_BOR: return a | b;
    case GB_BXOR: return a ^ b;
    default: return a + b;
  }
}

static double reduced(size_t i, gb_dtype dtype, gb_redop op) {
  int result = given(0, i, dtype, op);
  for (int r = 1; r < gb_world(); r++)
    result = combined(result, given(r, i, dtype, op), dtype, op);
  if (op != GB_AVG) return result;
  /* Narrow types are divided in float32; so is complex64, as float. */
  bool wide = dtype == GB_FLOAT64 || dtype == GB_COMPLEX128;
  double mean = (double)result / gb_world();
  return wide ? mean : (float)mean;
}

/* Whether this run is to test it: all layouts have the common ones. */
static bool takes(gb_dtype dtype, gb_redop op, bool everything) {
  if (!everything && (dtype > GB_FLOAT64 || op > GB_MIN)) return false;
  return op != GB_PREMUL_SUM && gb_redop_supported(op, dtype);
}

static void put_given(void *data, size_t n, gb_dtype dtype, gb_redop op) {
  for (size_t i = 0; i < to_put(n); i++)
    put(data, i, dtype, given(gb_rank(), i, dtype, op));
  go_on(data, n, dtype);
}

static void check_reduced(const void *data, size_t n, size_t first,
                          gb_dtype dtype, gb_redop op, const char *what) {
  for (size_t i = 0, k = to_check(data, n, dtype); i < k; i++)
    check(data, i, dtype, reduced(first + i, dtype, op), what);
}

static void one_reduction(gb_job *job, size_t n, gb_dtype dtype, gb_redop op,
                          uint8_t *a, uint8_t *b) {
  gb_group *group = gb_job_world(job);
  size_t world = (size_t)gb_world();
  gb_buffer small = {a, n, dtype}, large = {b, n * world, dtype};
  put_given(a, n, dtype, op);
  MUST(gb_all_reduce(group, &small, op, NULL, error));
  check_reduced(a, n, 0, dtype, op, gb_redop_name(op));
  put_given(b, n * world, dtype, op);
  MUST(gb_reduce_scatter(group, &small, &large, op, NULL, error));
  check_reduced(a, n, n * (size_t)gb_rank(), dtype, op, "reduce_scatter");
  for (size_t i = 0, k = to_check(b, n * world, dtype); i < k; i++)
    check(b, i, dtype, given(gb_rank(), i, dtype, op),
          "reduce_scatter's input");
}

static void one_shape(gb_job *job, size_t n, gb_dtype dtype, uint8_t *a,
                      uint8_t *b, bool everything) {
  gb_group *group = gb_job_world(job);
  size_t world = (size_t)gb_world();
  gb_buffer small = {a, n, dtype}, large = {b, n * world, dtype};
  for (int op = 0; op < GB_REDOP_COUNT; op++)
    if (takes(dtype, (gb_redop)op, everything))
      one_reduction(job, n, dtype, (gb_redop)op, a, b);
  for (int root = 0; root < gb_world(); root++) {
    put_own(a, n, dtype);
    MUST(gb_broadcast(group, &small, root, NULL, error));
    check_from(a, n, dtype, root, 0, "broadcast");
  }
  size_t row = n * gb_dtype_bytes(dtype);
  put_own(a, n, dtype);
  memset(b, 0xee, row * world);
  MUST(gb_all_gather(group, &large, &small, NULL, error));
  for (int r = 0; r < gb_world(); r++)
    check_from(b + row * (size_t)r, n, dtype, r, 0, "all_gather");
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
    for (int dtype = 0; dtype <= GB_FLOAT64; dtype++)
      if (counts[c] < 5000 || dtype == GB_FLOAT32 || dtype == GB_BFLOAT16)
        one_shape(job, counts[c], (gb_dtype)dtype, a, b, false);
  free(a);
  free(b);
  must_close(job);
}

/* Every type and reduction there is; the narrowest and the widest in several
 * chunks too. */
static void all_types(const char *policy, const char *bridge) {
  static const size_t counts[] = {3, 1025, 20011};
  if (bridge) setenv("GPUBRIDGE_BRIDGE", bridge, 1);
  setenv("GPUBRIDGE_CHUNK_BYTES", "16K", 1);
  gb_job *job = must_open(60000, policy);
  size_t most = 20011 * 16 * (size_t)gb_world();
  uint8_t *a = malloc(most), *b = malloc(most);
  for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
    for (int dtype = 0; dtype < GB_DTYPE_COUNT; dtype++)
      if (counts[c] < 5000 || dtype == GB_FLOAT8_E5M2 || dtype == GB_COMPLEX128)
        one_shape(job, counts[c], (gb_dtype)dtype, a, b, true);
  free(a);
  free(b);
  must_close(job);
}

#define LAYOUT(name, n, letters)                                    \
  GB_TEST(collectives, name##_auto, .ranks = n, .vendors = letters, \
          .timeout_ms = 120000) {                                   \
    all_shapes("auto", NULL);                                       \
  }                                                                 \
  GB_TEST(collectives, name##_shm, .ranks = n, .vendors = letters,  \
          .timeout_ms = 120000) {                                   \
    all_shapes(NULL, "shm");                                        \
  }                                                                 \
  GB_TEST(collectives, name##_tcp, .ranks = n, .vendors = letters,  \
          .timeout_ms = 120000) {                                   \
    all_shapes(NULL, "tcp");                                        \
  }                                                                 \
  GB_TEST(collectives, name##_flat, .ranks = n, .vendors = letters, \
          .timeout_ms = 120000) {                                   \
    all_shapes("flat", NULL);                                       \
  }

EACH_LAYOUT(LAYOUT)
LAYOUT(reversed, 4, "aann")

/* Three islands by name: 2 + 3 + 2, and each rank an island of its own. */
GB_TEST(collectives, three_islands_auto, .ranks = 7, .vendors = "nnaaann",
        .timeout_ms = 120000) {
  name_three_islands();
  all_shapes("auto", NULL);
}
GB_TEST(collectives, three_islands_shm, .ranks = 7, .vendors = "nnaaann",
        .timeout_ms = 120000) {
  name_three_islands();
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

#define TYPES(name, n, letters)                               \
  GB_TEST(types, name##_auto, .ranks = n, .vendors = letters, \
          .timeout_ms = 120000) {                             \
    all_types("auto", NULL);                                  \
  }                                                           \
  GB_TEST(types, name##_shm, .ranks = n, .vendors = letters,  \
          .timeout_ms = 120000) {                             \
    all_types(NULL, "shm");                                   \
  }                                                           \
  GB_TEST(types, name##_tcp, .ranks = n, .vendors = letters,  \
          .timeout_ms = 120000) {                             \
    all_types(NULL, "tcp");                                   \
  }                                                           \
  GB_TEST(types, name##_flat, .ranks = n, .vendors = letters, \
          .timeout_ms = 120000) {                             \
    all_types("flat", NULL);                                  \
  }

TYPES(two_and_two, 4, "nnaa")
TYPES(three_and_one, 4, "nnna")
TYPES(one_island, 3, "nnn")
GB_TEST(types, three_islands, .ranks = 5, .vendors = "nnaan",
        .timeout_ms = 120000) {
  static const int islands[] = {0, 1, 0, 1, 2};
  name_island(islands[gb_rank()]);
  all_types(NULL, NULL);
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
GB_TEST(collectives, islands_and_hosts_crossed, .ranks = 6, .vendors = "nanana",
        .timeout_ms = 120000) {
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
