/* gpubridge tune: measures every policy on the job's own cluster and writes the
 * thresholds file that makes each call take the fastest.
 *
 * One group of all ranks per policy in one job; their calls take turns, so that
 * a noisy machine is noisy for all. A batch counts as its slowest rank. How
 * many calls a batch has follows from a first call and the time that is left,
 * the same on every rank because rank 0 tells. */
#include "tool.h"

#include "chart.h"
#include "json.h"
#include "policy/choose.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
  POLICIES_MAX = GBI_CHOOSE_POLICIES_MAX,
  SIZES_MAX = GBI_CHOOSE_SIZES_MAX,
  ROUNDS = 5,
  CALLS_MAX = 200
};
/* A policy that took this many times the best one's time at two sizes is left
 * out at the larger ones. */
static const double HOPELESS = 3;

static const char *const collectives[] = {"all_reduce", "broadcast", "reduce",
                                          "all_gather", "reduce_scatter"};
enum { COLLECTIVES = sizeof collectives / sizeof collectives[0], ROWS = 3 };
static const char default_policies[] =
    "direct,reduce-bridge-broadcast,native-only,sharded-bridge,flat";

typedef struct tuner {
  gb_job *job;
  int rank, world;
  const char *policies[POLICIES_MAX];
  gb_group *groups[POLICIES_MAX];
  int policies_count;
  double sizes[SIZES_MAX];
  int sizes_count;
  double seconds; /* for measuring, all in all */
  double median_us[COLLECTIVES][POLICIES_MAX][SIZES_MAX]; /* 0: left out */
  int winner[COLLECTIVES][SIZES_MAX];
  float *in, *out;
} tuner;

typedef struct tune_options {
  const char *islands, *bridge, *init_method, *policies, *out, *svg;
  double max_bytes, seconds;
  long timeout_s;
} tune_options;

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* ---- measuring ---- */

/* One call whose larger buffer has `bytes`. */
static gb_status call(const tuner *t, gb_group *group, int collective,
                      size_t bytes, gb_error *error) {
  size_t count = bytes / sizeof *t->in, row = count / (size_t)t->world;
  gb_buffer whole = {t->in, count, GB_FLOAT32};
  gb_buffer rows = {t->out, row * (size_t)t->world, GB_FLOAT32};
  gb_buffer one = {t->in, row, GB_FLOAT32};
  switch (collective) {
    case 0: return gb_all_reduce(group, &whole, GB_MAX, NULL, error);
    case 1: return gb_broadcast(group, &whole, 0, NULL, error);
    case 2: return gb_reduce(group, &whole, GB_MAX, 0, NULL, error);
    case 3: return gb_all_gather(group, &rows, &one, NULL, error);
    default: return gb_reduce_scatter(group, &one, &rows, GB_MAX, NULL, error);
  }
}

/* The largest of all ranks' values, so that all decide alike. */
static gb_status largest(const tuner *t, double *value, gb_error *error) {
  gb_buffer buffer = {value, 1, GB_FLOAT64};
  return gb_all_reduce(gb_job_world(t->job), &buffer, GB_MAX, NULL, error);
}

/* Microseconds per call of a batch on its slowest rank. */
static gb_status batch(const tuner *t, int policy, int collective, size_t bytes,
                       int calls, double *us, gb_error *error) {
  gb_status status = gb_barrier(gb_job_world(t->job), NULL, error);
  double start = now_us();
  for (int i = 0; i < calls && status == GB_OK; i++)
    status = call(t, t->groups[policy], collective, bytes, error);
  *us = (now_us() - start) / calls;
  return status == GB_OK ? largest(t, us, error) : status;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

/* 0: nothing was measured. */
static double best_us(const tuner *t, int collective, int size) {
  double best = 0;
  for (int p = 0; p < t->policies_count; p++) {
    double mine = t->median_us[collective][p][size];
    if (mine && (!best || mine < best)) best = mine;
  }
  return best;
}

static bool hopeless(const tuner *t, int collective, int policy, int size) {
  for (int s = size < 2 ? size : size - 2; s < size; s++) {
    double mine = t->median_us[collective][policy][s];
    double best = best_us(t, collective, s);
    if (!best || (mine && mine < best * HOPELESS)) return false;
  }
  return size >= 2;
}

/* One size of one collective: every policy in turns. Sizes that leave a rank
 * without a row of its own are left out. */
static gb_status measure(tuner *t, int collective, int size, double slot_us,
                         gb_error *error) {
  double walls[POLICIES_MAX][ROUNDS], us;
  int calls[POLICIES_MAX] = {0};
  size_t bytes = (size_t)t->sizes[size];
  gb_status status = GB_OK;
  if (collective >= ROWS && bytes < sizeof *t->in * (size_t)t->world)
    return GB_OK;
  for (int p = 0; p < t->policies_count && status == GB_OK; p++) {
    if (hopeless(t, collective, p, size)) continue;
    status = batch(t, p, collective, bytes, 1, &us, error); /* warms it too */
    if (status == GB_OK) status = batch(t, p, collective, bytes, 1, &us, error);
    double fit = slot_us / ROUNDS / fmax(us, 1);
    calls[p] = (int)fmin(fmax(fit, 1), CALLS_MAX);
  }
  for (int round = 0; round < ROUNDS && status == GB_OK; round++)
    for (int p = 0; p < t->policies_count && status == GB_OK; p++)
      if (calls[p])
        status =
            batch(t, p, collective, bytes, calls[p], &walls[p][round], error);
  if (status != GB_OK) return status;
  for (int p = 0; p < t->policies_count; p++) {
    if (!calls[p]) continue;
    qsort(walls[p], ROUNDS, sizeof walls[p][0], by_value);
    t->median_us[collective][p][size] = walls[p][ROUNDS / 2];
  }
  return GB_OK;
}

static void choose(tuner *t, int collective) {
  gbi_choose_times us = {{0}};
  for (int s = 0; s < t->sizes_count; s++)
    for (int p = 0; p < t->policies_count; p++)
      us[s][p] = t->median_us[collective][p][s];
  gbi_choose(us, t->sizes_count, t->policies_count, t->winner[collective]);
}

static void print_row(const tuner *t, int collective, int size) {
  double best = best_us(t, collective, size);
  if (!best) return;
  if (!t->rank) printf("%-15s %10.0f", collectives[collective], t->sizes[size]);
  for (int p = 0; p < t->policies_count && !t->rank; p++) {
    double us = t->median_us[collective][p][size];
    if (us)
      printf(" %*.1f%c", (int)strlen(t->policies[p]) + 1, us,
             us == best ? '*' : ' ');
    else
      printf(" %*s ", (int)strlen(t->policies[p]) + 1, "-");
  }
  if (!t->rank) printf("\n");
  fflush(stdout);
}

static gb_status measure_all(tuner *t, gb_error *error) {
  if (!t->rank) {
    printf("microseconds a call, slowest rank, median of %d; * is the best\n",
           ROUNDS);
    printf("%-15s %10s", "collective", "bytes");
    for (int p = 0; p < t->policies_count; p++) printf("  %s ", t->policies[p]);
    printf("\n");
  }
  double end = now_us() + t->seconds * 1e6;
  int left = COLLECTIVES * t->sizes_count;
  gb_status status = GB_OK;
  for (int c = 0; c < COLLECTIVES && status == GB_OK; c++) {
    for (int s = 0; s < t->sizes_count && status == GB_OK; s++, left--) {
      /* Of the time that is left, small sizes need less than their share. */
      double slot = fmax(end - now_us(), 0) / left / t->policies_count;
      status = largest(t, &slot, error);
      if (status == GB_OK) status = measure(t, c, s, slot, error);
      if (status == GB_OK) print_row(t, c, s);
    }
    choose(t, c);
  }
  return status;
}

/* ---- the file ---- */

/* Neighbours with one winner are one rule; the last takes every size. */
static void put_rules(FILE *out, const tuner *t, int collective) {
  const int *winner = t->winner[collective];
  fprintf(out, "[");
  for (int s = 0; s < t->sizes_count; s++) {
    bool last = s == t->sizes_count - 1;
    if (!last && winner[s] == winner[s + 1]) continue;
    fprintf(out, "{\"max_bytes\": ");
    if (last)
      fprintf(out, "null");
    else
      fprintf(out, "%.0f", t->sizes[s]);
    fprintf(out, ", \"policy\": ");
    tool_put_json(out, t->policies[winner[s]]);
    fprintf(out, "}%s", last ? "]" : ", ");
  }
}

static void put_measured(FILE *out, const tuner *t, const gb_job_info *info) {
  char date[32];
  time_t now = time(NULL);
  struct tm utc;
  strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
  fprintf(out, " \"measured\": {\"run_kind\": ");
  tool_put_json(out, info->run_kind);
  fprintf(out, ", \"split_test\": ");
  tool_put_json(out, info->split_test);
  fprintf(out, ", \"bridge\": ");
  tool_put_json(out, info->bridge);
  fprintf(out, ", \"world_size\": %d, \"gpubridge\": ", t->world);
  tool_put_json(out, gb_version());
  fprintf(out, ", \"date\": \"%s\", \"islands\": {", date);
  for (int i = 0; i < info->islands_count; i++) {
    gb_island_info island = {.size = sizeof island};
    if (gb_job_get_island(t->job, i, &island) != GB_OK) continue;
    fprintf(out, i ? ", " : "");
    tool_put_json(out, island.label);
    fprintf(out, ": %d", island.ranks_count);
  }
  fprintf(out, "},\n  \"median_us\": {");
  const char *comma = "";
  for (int c = 0; c < COLLECTIVES; c++)
    for (int p = 0; p < t->policies_count; p++)
      for (int s = 0; s < t->sizes_count; s++) {
        double us = t->median_us[c][p][s];
        if (!us) continue;
        fprintf(out, "%s\n   \"%s %s@%.0f\": %.1f", comma, collectives[c],
                t->policies[p], t->sizes[s], us);
        comma = ",";
      }
  fprintf(out, "}}}\n");
}

static void put_file(FILE *out, const tuner *t, const gb_job_info *info) {
  fprintf(out, "{\"gpubridge_thresholds\": 1,\n \"rules\": ");
  put_rules(out, t, 0);
  fprintf(out, ",\n \"collectives\": {");
  for (int c = 1; c < COLLECTIVES; c++) {
    fprintf(out, "%s\n  \"%s\": ", c > 1 ? "," : "", collectives[c]);
    put_rules(out, t, c);
  }
  fprintf(out, "},\n");
  put_measured(out, t, info);
}

static void put_chart(FILE *out, const tuner *t, const gb_job_info *info) {
  tool_curve curves[COLLECTIVES][POLICIES_MAX];
  tool_panel panels[COLLECTIVES];
  char title[160];
  for (int c = 0; c < COLLECTIVES; c++) {
    for (int p = 0; p < t->policies_count; p++)
      curves[c][p] = (tool_curve){t->policies[p], t->median_us[c][p]};
    panels[c] = (tool_panel){collectives[c], curves[c], t->policies_count};
  }
  snprintf(title, sizeof title,
           "%d ranks in %d islands, bridge %s: time of a call by its bytes",
           t->world, info->islands_count, info->bridge);
  tool_chart(out, title, t->sizes, t->sizes_count, panels, COLLECTIVES);
}

/* Whole or not at all: a job may read it at this moment. */
static int write_file(const char *path, const tuner *t, const gb_job_info *info,
                      void (*put)(FILE *, const tuner *, const gb_job_info *)) {
  char part[4096];
  int n = snprintf(part, sizeof part, "%s.part", path);
  FILE *out = n < (int)sizeof part ? fopen(part, "w") : NULL;
  bool good = out != NULL;
  if (out) {
    put(out, t, info);
    good = !ferror(out);
    good = !fclose(out) && good;
  }
  if (!good || rename(part, path)) {
    fprintf(stderr, "gpubridge tune: cannot write %s: %s\n", path,
            strerror(errno));
    return 1;
  }
  printf("wrote %s\n", path);
  return 0;
}

static void explain(const tuner *t) {
  for (int c = 0; c < COLLECTIVES; c++) {
    printf("%s: ", collectives[c]);
    for (int s = 0; s < t->sizes_count; s++) {
      int winner = t->winner[c][s];
      bool last = s == t->sizes_count - 1;
      if (!last && winner == t->winner[c][s + 1]) continue;
      if (last)
        printf("%s\n", t->policies[winner]);
      else
        printf("up to %.0f bytes %s (%.0f us there, %s %.0f us), then ",
               t->sizes[s], t->policies[winner], t->median_us[c][winner][s],
               t->policies[t->winner[c][s + 1]],
               t->median_us[c][t->winner[c][s + 1]][s]);
    }
  }
}

/* ---- the job ---- */

/* The same on every rank: a policy that does not fit is refused everywhere, at
 * once. */
static gb_status open_groups(tuner *t, const char *list, gb_error *error) {
  static char names[512];
  int *ranks = malloc((size_t)t->world * sizeof *ranks);
  if (!ranks) return GB_ERR_MEMORY;
  for (int r = 0; r < t->world; r++) ranks[r] = r;
  snprintf(names, sizeof names, "%s", list);
  gb_status status = GB_OK;
  char *rest = NULL;
  for (char *name = strtok_r(names, ",", &rest);
       name && status == GB_OK && t->policies_count < POLICIES_MAX;
       name = strtok_r(NULL, ",", &rest)) {
    gb_group_params params = GB_GROUP_PARAMS_INIT;
    params.policy = params.name = name;
    status = gb_group_open(t->job, ranks, t->world, &params,
                           &t->groups[t->policies_count], error);
    if (status == GB_ERR_ARGUMENT) {
      if (!t->rank) printf("left out: %s\n", error->text);
      status = GB_OK;
    } else if (status == GB_OK) {
      t->policies[t->policies_count++] = name;
    }
  }
  free(ranks);
  if (status == GB_OK && !t->policies_count) {
    snprintf(error->text, sizeof error->text,
             "none of the policies \"%.200s\" fits this job", list);
    return GB_ERR_ARGUMENT;
  }
  return status;
}

static gb_status prepare(tuner *t, const tune_options *o, gb_error *error) {
  size_t bytes = (size_t)o->max_bytes;
  for (double b = 4; b <= o->max_bytes && t->sizes_count < SIZES_MAX; b *= 4)
    t->sizes[t->sizes_count++] = b;
  t->seconds = o->seconds;
  t->in = calloc(1, bytes);
  t->out = calloc(1, bytes);
  if (!t->in || !t->out) {
    snprintf(error->text, sizeof error->text,
             "no memory for two buffers of %zu bytes", bytes);
    return GB_ERR_MEMORY;
  }
  return open_groups(t, o->policies, error);
}

static int tune_in_job(const tune_options *o) {
  static tuner t;
  gb_job_params params = GB_JOB_PARAMS_INIT;
  gb_error error = {.text = ""};
  params.timeout_ms = (uint64_t)o->timeout_s * 1000;
  params.policy = "auto";
  params.bridge = o->bridge;
  params.init_method = o->init_method;
  unsetenv("GPUBRIDGE_THRESHOLDS"); /* not what is measured */
  gb_status status = gb_job_open(&params, &t.job, &error);
  gb_job_info info = {.size = sizeof info};
  int code = 0;
  if (status == GB_OK) {
    (void)gb_job_get_info(t.job, &info);
    t.rank = info.rank;
    t.world = info.world_size;
    status = prepare(&t, o, &error);
    if (status == GB_OK) status = measure_all(&t, &error);
    if (status == GB_OK && !t.rank) {
      explain(&t);
      code = write_file(o->out, &t, &info, put_file);
      if (!code && o->svg) code = write_file(o->svg, &t, &info, put_chart);
    }
    (void)gb_job_close(t.job, NULL);
  }
  free(t.in);
  free(t.out);
  if (status == GB_OK) return code;
  fprintf(stderr, "gpubridge tune: %s\n", error.text);
  return 1;
}

static void usage(FILE *out) {
  fprintf(out,
          "usage: gpubridge tune [OPTIONS]\n\n"
          "Measures every policy on this cluster, by collective and size, and "
          "writes the\nthresholds file (GPUBRIDGE_THRESHOLDS) that makes each "
          "call take the fastest.\nInside a job (RANK is set) it measures that "
          "job; otherwise it launches one.\n\n"
          "  --islands LIST   layout to launch (default nvidia:2,amd:2)\n"
          "  --bridge NAME    (default: GPUBRIDGE_BRIDGE, else auto)\n"
          "  --policies LIST  what to measure; the first wins a draw (default\n"
          "                   %s)\n"
          "  --max BYTES      largest message, 4 to 1073741824 (default "
          "67108864)\n"
          "  --seconds S      time for measuring (default 60)\n"
          "  --out FILE       (default thresholds.json)\n"
          "  --svg FILE       curves (default thresholds.svg; \"\": none)\n"
          "  --timeout S      seconds for joining and for each call (default "
          "60)\n"
          "  --init METHOD    env://, tcp://host:port or file:///path\n",
          default_policies);
}

int tool_tune(int argc, char **argv) {
  static const struct option options[] = {
      {"islands", required_argument, NULL, 'i'},
      {"bridge", required_argument, NULL, 'b'},
      {"policies", required_argument, NULL, 'p'},
      {"max", required_argument, NULL, 'x'},
      {"seconds", required_argument, NULL, 's'},
      {"out", required_argument, NULL, 'o'},
      {"svg", required_argument, NULL, 'g'},
      {"timeout", required_argument, NULL, 't'},
      {"init", required_argument, NULL, 'm'},
      {"help", no_argument, NULL, 'h'},
      {0}};
  tune_options o = {.islands = "nvidia:2,amd:2",
                    .policies = default_policies,
                    .max_bytes = 64 << 20,
                    .seconds = 60,
                    .out = "thresholds.json",
                    .svg = "thresholds.svg",
                    .timeout_s = 60};
  int c;
  while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
    switch (c) {
      case 'i': o.islands = optarg; break;
      case 'b': o.bridge = optarg; break;
      case 'p': o.policies = optarg; break;
      case 'x': o.max_bytes = strtod(optarg, NULL); break;
      case 's': o.seconds = strtod(optarg, NULL); break;
      case 'o': o.out = optarg; break;
      case 'g': o.svg = *optarg ? optarg : NULL; break;
      case 't': o.timeout_s = strtol(optarg, NULL, 10); break;
      case 'm': o.init_method = optarg; break;
      case 'h': usage(stdout); return 0;
      default: usage(stderr); return EXIT_USAGE;
    }
  }
  if (!(o.max_bytes >= 4 && o.max_bytes <= 1 << 30) ||
      !(o.seconds > 0 && o.seconds < 1e6) || o.timeout_s < 1) {
    usage(stderr);
    return EXIT_USAGE;
  }
  if (getenv("RANK")) return tune_in_job(&o);
  return tool_launch_myself(o.islands, argc, argv);
}
