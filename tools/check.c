/* gpubridge check: every collective, type and reduction over the layout of the
 * job it runs in, with integer-valued data, so that every right answer is
 * exact. Without a job it launches one on this machine. */
#include "tool.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The last reduction, premul_sum, is not for the plain functions. */
enum { COLUMNS = GB_PREMUL_SUM };
typedef enum op {
  ALL_REDUCE,
  REDUCE,
  BROADCAST,
  ALL_GATHER,
  ALL_GATHER_V,
  REDUCE_SCATTER,
  REDUCE_SCATTER_V,
  BARRIER,
  OPS
} op;
static const char *const op_names[OPS] = {
    "all_reduce",   "reduce",         "broadcast",        "all_gather",
    "all_gather_v", "reduce_scatter", "reduce_scatter_v", "barrier"};

typedef struct checker {
  gb_job *job;
  gb_group *group;
  int rank, world;
  size_t count;
  size_t *counts; /* lengths of rows that differ, none above `count` */
  long wrong;     /* of this rank, in the current cell */
} checker;

/* ---- values ---- */

/* Bounded so that no order of summation rounds or overflows: 8-bit types sum
 * to at most 127 with up to 42 ranks. */
static int value_of(int rank, size_t i, gb_dtype dtype) {
  int most = gb_dtype_bytes(dtype) == 1 ? 3 : 16;
  return (int)((i * 7 + (size_t)rank * 5 + 1) % (size_t)most) + 1;
}

/* What a rank gives to a reduction. Six ranks at most give 2 to a product, the
 * others 1; a bool is often false. */
static int given(const checker *c, int rank, size_t i, gb_dtype dtype,
                 gb_redop op) {
  int v = value_of(rank, i, dtype);
  if (dtype == GB_BOOL) return v == 3 ? 0 : v;
  if (op != GB_PRODUCT) return v;
  return (i + (size_t)rank) % (size_t)c->world < 6 ? 2 : 1;
}

/* Digits of the mantissa and bias of the types of one and two bytes. */
static const struct {
  uint8_t digits, bias;
} narrow[GB_DTYPE_COUNT] = {
    [GB_FLOAT16] = {10, 15},          [GB_BFLOAT16] = {7, 127},
    [GB_FLOAT8_E4M3FN] = {3, 7},      [GB_FLOAT8_E5M2] = {2, 15},
    [GB_FLOAT8_E4M3FNUZ] = {3, 8},    [GB_FLOAT8_E5M2FNUZ] = {2, 16},
};

/* 0 or a positive value of the type's normal range, to nearest even. */
static unsigned narrow_bits(double v, gb_dtype dtype) {
  if (v == 0) return 0;
  int digits = narrow[dtype].digits, e;
  frexp(v, &e);
  unsigned units = (unsigned)nearbyint(ldexp(v, digits + 1 - e));
  return ((unsigned)(e - 1 + narrow[dtype].bias) << digits) + units -
         (1u << digits);
}

/* In complex numbers the second part is the negative. */
static void store(void *data, size_t i, gb_dtype dtype, double v) {
  if (narrow[dtype].digits) {
    unsigned bits = narrow_bits(v, dtype);
    if (gb_dtype_bytes(dtype) == 1)
      ((uint8_t *)data)[i] = (uint8_t)bits;
    else
      ((uint16_t *)data)[i] = (uint16_t)bits;
    return;
  }
  switch (dtype) {
    case GB_INT8:
    case GB_UINT8:
    case GB_BOOL: ((uint8_t *)data)[i] = (uint8_t)v; break;
    case GB_INT16:
    case GB_UINT16: ((uint16_t *)data)[i] = (uint16_t)v; break;
    case GB_INT32:
    case GB_UINT32: ((uint32_t *)data)[i] = (uint32_t)v; break;
    case GB_INT64:
    case GB_UINT64: ((uint64_t *)data)[i] = (uint64_t)v; break;
    case GB_FLOAT32: ((float *)data)[i] = (float)v; break;
    case GB_COMPLEX64:
      ((float *)data)[2 * i] = (float)v;
      ((float *)data)[2 * i + 1] = (float)-v;
      break;
    case GB_COMPLEX128:
      ((double *)data)[2 * i] = v;
      ((double *)data)[2 * i + 1] = -v;
      break;
    default: ((double *)data)[i] = v;
  }
}

static int combined(int a, int b, gb_dtype dtype, gb_redop op) {
  bool is_bool = dtype == GB_BOOL;
  if (is_bool) a = a != 0, b = b != 0;
  switch (op) {
    case GB_MAX: return a > b ? a : b;
    case GB_MIN: return a < b ? a : b;
    case GB_PRODUCT: return a * b;
    case GB_BAND: return a & b;
    case GB_BOR: return a | b;
    case GB_BXOR: return a ^ b;
    default: return is_bool ? a | b : a + b;
  }
}

/* What the reduction must give. An average is rounded to the type once, by the
 * same road the library takes: sum, then one division. */
static double reduced(const checker *c, size_t i, gb_dtype dtype, gb_redop op) {
  int result = given(c, 0, i, dtype, op);
  for (int r = 1; r < c->world; r++)
    result = combined(result, given(c, r, i, dtype, op), dtype, op);
  if (op != GB_AVG) return result;
  if (dtype == GB_FLOAT64 || dtype == GB_COMPLEX128)
    return (double)result / c->world;
  return (float)result / (float)c->world;
}

/* ---- one cell of the table ---- */

static void count_wrong(checker *c, const void *data, size_t i, gb_dtype dtype,
                        double want) {
  size_t bytes = gb_dtype_bytes(dtype);
  double room[2] = {0, 0}; /* for the widest type */
  store(room, 0, dtype, want);
  c->wrong += memcmp(room, (const uint8_t *)data + i * bytes, bytes) != 0;
}

static gb_status check_all_reduce(checker *c, void *data, gb_dtype dtype,
                                  gb_redop op, gb_error *error) {
  for (size_t i = 0; i < c->count; i++)
    store(data, i, dtype, given(c, c->rank, i, dtype, op));
  gb_buffer buffer = {data, c->count, dtype};
  gb_status status = gb_all_reduce(c->group, &buffer, op, NULL, error);
  for (size_t i = 0; status == GB_OK && i < c->count; i++)
    count_wrong(c, data, i, dtype, reduced(c, i, dtype, op));
  return status;
}

static gb_status check_broadcast(checker *c, void *data, gb_dtype dtype,
                                 gb_error *error) {
  for (int root = 0; root < c->world; root++) {
    for (size_t i = 0; i < c->count; i++)
      store(data, i, dtype, value_of(c->rank, i, dtype));
    gb_buffer buffer = {data, c->count, dtype};
    gb_status status = gb_broadcast(c->group, &buffer, root, NULL, error);
    if (status != GB_OK) return status;
    for (size_t i = 0; i < c->count; i++)
      count_wrong(c, data, i, dtype, value_of(root, i, dtype));
  }
  return GB_OK;
}

static gb_status check_all_gather(checker *c, void *data, void *row,
                                  gb_dtype dtype, gb_error *error) {
  size_t n = c->count;
  for (size_t i = 0; i < n; i++)
    store(row, i, dtype, value_of(c->rank, i, dtype));
  gb_buffer output = {data, n * (size_t)c->world, dtype};
  gb_buffer input = {row, n, dtype};
  gb_status status = gb_all_gather(c->group, &output, &input, NULL, error);
  for (size_t i = 0; status == GB_OK && i < n * (size_t)c->world; i++)
    count_wrong(c, data, i, dtype, value_of((int)(i / n), i % n, dtype));
  return status;
}

static gb_status check_reduce_scatter(checker *c, void *data, void *row,
                                      gb_dtype dtype, gb_redop op,
                                      gb_error *error) {
  size_t n = c->count;
  for (size_t i = 0; i < n * (size_t)c->world; i++)
    store(data, i, dtype, given(c, c->rank, i, dtype, op));
  gb_buffer output = {row, n, dtype};
  gb_buffer input = {data, n * (size_t)c->world, dtype};
  gb_status status =
      gb_reduce_scatter(c->group, &output, &input, op, NULL, error);
  for (size_t i = 0; status == GB_OK && i < n; i++)
    count_wrong(c, row, i, dtype,
                reduced(c, (size_t)c->rank * n + i, dtype, op));
  return status;
}

static gb_status check_reduce(checker *c, void *data, gb_dtype dtype,
                              gb_redop op, gb_error *error) {
  for (int root = 0; root < c->world; root++) {
    for (size_t i = 0; i < c->count; i++)
      store(data, i, dtype, given(c, c->rank, i, dtype, op));
    gb_buffer buffer = {data, c->count, dtype};
    gb_status status = gb_reduce(c->group, &buffer, op, root, NULL, error);
    if (status != GB_OK) return status;
    bool mine = root == c->rank;
    for (size_t i = 0; i < c->count; i++)
      count_wrong(c, data, i, dtype,
                  mine ? reduced(c, i, dtype, op)
                       : given(c, c->rank, i, dtype, op));
  }
  return GB_OK;
}

/* Elements of all rows before rank r's. */
static size_t row_at(const checker *c, int r) {
  size_t at = 0;
  for (int k = 0; k < r; k++) at += c->counts[k];
  return at;
}

static gb_status check_all_gather_v(checker *c, void *data, void *row,
                                    gb_dtype dtype, gb_error *error) {
  size_t n = c->counts[c->rank], at = 0;
  for (size_t i = 0; i < n; i++)
    store(row, i, dtype, value_of(c->rank, i, dtype));
  gb_buffer output = {data, row_at(c, c->world), dtype};
  gb_buffer input = {row, n, dtype};
  gb_status status =
      gb_all_gather_v(c->group, &output, &input, c->counts, NULL, error);
  for (int r = 0; status == GB_OK && r < c->world; r++)
    for (size_t i = 0; i < c->counts[r]; i++)
      count_wrong(c, data, at++, dtype, value_of(r, i, dtype));
  return status;
}

static gb_status check_reduce_scatter_v(checker *c, void *data, void *row,
                                        gb_dtype dtype, gb_redop op,
                                        gb_error *error) {
  size_t n = c->counts[c->rank], total = row_at(c, c->world);
  for (size_t i = 0; i < total; i++)
    store(data, i, dtype, given(c, c->rank, i, dtype, op));
  gb_buffer output = {row, n, dtype}, input = {data, total, dtype};
  gb_status status = gb_reduce_scatter_v(c->group, &output, &input, c->counts,
                                         op, NULL, error);
  for (size_t i = 0; status == GB_OK && i < n; i++)
    count_wrong(c, row, i, dtype,
                reduced(c, row_at(c, c->rank) + i, dtype, op));
  return status;
}

static gb_status run_cell(checker *c, op op, gb_dtype dtype, gb_redop redop,
                          void *data, void *row, gb_error *error) {
  switch (op) {
    case ALL_REDUCE: return check_all_reduce(c, data, dtype, redop, error);
    case REDUCE: return check_reduce(c, data, dtype, redop, error);
    case BROADCAST: return check_broadcast(c, data, dtype, error);
    case ALL_GATHER: return check_all_gather(c, data, row, dtype, error);
    case ALL_GATHER_V: return check_all_gather_v(c, data, row, dtype, error);
    case REDUCE_SCATTER:
      return check_reduce_scatter(c, data, row, dtype, redop, error);
    case REDUCE_SCATTER_V:
      return check_reduce_scatter_v(c, data, row, dtype, redop, error);
    default: return gb_barrier(c->group, NULL, error);
  }
}

/* The wrong elements of all ranks, so that rank 0 can say so. */
static gb_status add_up(checker *c, long *total, gb_error *error) {
  int64_t sum = c->wrong;
  gb_buffer buffer = {&sum, 1, GB_INT64};
  gb_status status = gb_all_reduce(c->group, &buffer, GB_SUM, NULL, error);
  *total = (long)sum;
  return status;
}

static gb_status check_row(checker *c, op op, gb_dtype dtype, void *data,
                           void *row, long *failures, gb_error *error) {
  bool reduces = op == ALL_REDUCE || op == REDUCE || op == REDUCE_SCATTER ||
                 op == REDUCE_SCATTER_V;
  if (!c->rank)
    printf("%-16s %-15s", op_names[op],
           op == BARRIER ? "-" : gb_dtype_name(dtype));
  for (int redop = 0; redop < (reduces ? COLUMNS : 1); redop++) {
    long total = 0;
    if (reduces && !gb_redop_supported((gb_redop)redop, dtype)) {
      if (!c->rank) printf(" %-7s", "-");
      continue;
    }
    c->wrong = 0;
    gb_status status =
        run_cell(c, op, dtype, (gb_redop)redop, data, row, error);
    if (status == GB_OK) status = add_up(c, &total, error);
    if (status != GB_OK) return status;
    char text[32] = "ok";
    if (total) snprintf(text, sizeof text, "%ld bad", total);
    *failures += total != 0;
    if (!c->rank) printf(" %-7s", text);
  }
  if (!c->rank) printf("\n");
  return GB_OK;
}

static gb_status check_all(checker *c, long *failures, gb_error *error) {
  size_t bytes = c->count * (size_t)c->world * 16;
  void *data = malloc(bytes), *row = malloc(c->count * 16);
  c->counts = malloc((size_t)c->world * sizeof *c->counts);
  gb_status status = data && row && c->counts ? GB_OK : GB_ERR_MEMORY;
  for (int r = 0; status == GB_OK && r < c->world; r++)
    c->counts[r] = c->count / (size_t)(r + 1);
  if (!c->rank) {
    printf("%-16s %-15s", "collective", "type");
    for (int redop = 0; redop < COLUMNS; redop++)
      printf(" %-7s", gb_redop_name((gb_redop)redop));
    printf("\n");
  }
  for (int op = 0; op < OPS && status == GB_OK; op++)
    for (int t = 0; t < (op == BARRIER ? 1 : GB_DTYPE_COUNT); t++)
      if (status == GB_OK)
        status =
            check_row(c, (enum op)op, (gb_dtype)t, data, row, failures, error);
  free(c->counts);
  free(data);
  free(row);
  return status;
}

static void print_layout(const checker *c) {
  gb_job_info info = {.size = sizeof info};
  if (c->rank || gb_job_get_info(c->job, &info) != GB_OK) return;
  for (int i = 0; i < info.islands_count; i++) {
    gb_island_info island = {.size = sizeof island};
    if (gb_job_get_island(c->job, i, &island) != GB_OK) continue;
    printf("island %-12s ranks", island.label);
    for (int k = 0; k < island.ranks_count; k++)
      printf(" %d%s", island.ranks[k],
             island.ranks[k] == island.leader ? "*" : "");
    printf("\n");
  }
  printf("bridge %s (%s), policy %s\n", info.bridge, info.bridge_reason,
         info.policy);
}

static void print_fact(void *arg, const char *name, const char *value) {
  printf("rank %d: %s %s\n", *(int *)arg, name, value);
}

/* Where auto passes the bridge by, it is checked too: another layout of hosts
 * would need it. */
static gb_status check_bridge(checker *c, long *failures, gb_error *error) {
  gb_group_params params = GB_GROUP_PARAMS_INIT;
  int *ranks = malloc((size_t)c->world * sizeof *ranks);
  if (!ranks) return GB_ERR_MEMORY;
  for (int r = 0; r < c->world; r++) ranks[r] = r;
  params.policy = params.name = "reduce-bridge-broadcast";
  gb_status status =
      gb_group_open(c->job, ranks, c->world, &params, &c->group, error);
  free(ranks);
  if (status != GB_OK) return status;
  if (!c->rank) printf("the same over the bridge, policy %s\n", params.policy);
  return check_all(c, failures, error);
}

typedef struct check_options {
  const char *islands, *policy, *bridge, *init_method;
  long count, timeout_s;
  bool verbose;
} check_options;

static int check_in_job(const check_options *o) {
  gb_job_params params = GB_JOB_PARAMS_INIT;
  gb_error error = {.text = ""};
  checker c = {.count = (size_t)o->count};
  long failures = 0;
  params.timeout_ms = (uint64_t)o->timeout_s * 1000;
  params.policy = o->policy;
  params.bridge = o->bridge;
  params.init_method = o->init_method;
  gb_status status = gb_job_open(&params, &c.job, &error);
  if (status == GB_OK) {
    gb_job_info info = {.size = sizeof info};
    (void)gb_job_get_info(c.job, &info);
    c.rank = info.rank;
    c.world = info.world_size;
    c.group = gb_job_world(c.job);
    print_layout(&c);
    status = check_all(&c, &failures, &error);
    if (status == GB_OK && !strcmp(info.policy, "auto") &&
        !strcmp(info.bridge, "shm"))
      status = check_bridge(&c, &failures, &error);
    if (o->verbose) gb_job_telemetry(c.job, print_fact, &c.rank);
    (void)gb_job_close(c.job, NULL);
  }
  if (status != GB_OK) {
    fprintf(stderr, "gpubridge check: %s\n", error.text);
    return 1;
  }
  if (!c.rank) printf("%s\n", failures ? "FAILED" : "all exact");
  return failures ? 1 : 0;
}

static void usage(FILE *out) {
  fprintf(out,
          "usage: gpubridge check [OPTIONS]\n\n"
          "Runs every collective, type and reduction with exact data and "
          "prints a table.\nInside a job (RANK is set) it checks that job; "
          "otherwise it launches one.\n\n"
          "  --islands LIST  layout to launch (default nvidia:2,amd:2)\n"
          "  --policy NAME   (default auto)\n"
          "  --bridge NAME   (default: GPUBRIDGE_BRIDGE, else auto)\n"
          "  --count N       elements per rank (default 4099)\n"
          "  --timeout S     seconds for joining and for each call (default "
          "60)\n"
          "  --init METHOD   env://, tcp://host:port or file:///path\n"
          "  --verbose       facts and counters of every rank at the end\n");
}

int tool_check(int argc, char **argv) {
  static const struct option options[] = {
      {"islands", required_argument, NULL, 'i'},
      {"policy", required_argument, NULL, 'p'},
      {"bridge", required_argument, NULL, 'b'},
      {"count", required_argument, NULL, 'c'},
      {"timeout", required_argument, NULL, 't'},
      {"init", required_argument, NULL, 'm'},
      {"verbose", no_argument, NULL, 'v'},
      {"help", no_argument, NULL, 'h'},
      {0}};
  check_options o = {
      .islands = "nvidia:2,amd:2", .count = 4099, .timeout_s = 60};
  int c;
  while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
    switch (c) {
      case 'i': o.islands = optarg; break;
      case 'p': o.policy = optarg; break;
      case 'b': o.bridge = optarg; break;
      case 'm': o.init_method = optarg; break;
      case 'c': o.count = strtol(optarg, NULL, 10); break;
      case 't': o.timeout_s = strtol(optarg, NULL, 10); break;
      case 'v': o.verbose = true; break;
      case 'h': usage(stdout); return 0;
      default: usage(stderr); return EXIT_USAGE;
    }
  }
  if (o.count < 1 || o.count > 1L << 28 || o.timeout_s < 1) {
    usage(stderr);
    return EXIT_USAGE;
  }
  if (getenv("RANK")) return check_in_job(&o);
  return tool_launch_myself(o.islands, argc, argv);
}
