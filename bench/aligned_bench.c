/* What a collective takes from one moment on which all ranks begin until the
 * last one is done, by one clock: all ranks on one machine (namespaces, as in
 * the project's lab), which is what simulate_lab.py compares predictions with.
 *
 *   aligned_bench [--calls N] COLLECTIVE BYTES [COLLECTIVE BYTES ...]
 *
 * BYTES: of the larger buffer. One line of JSON per pair on rank 0, with the
 * microseconds of each call. Before those come as many as it takes to warm up,
 * which are not printed: a connection that carries little at a time needs many
 * round trips to find out what its path takes. */
#include <gpubridge/gpubridge.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CALLS_MAX = 64 };
static const double PAUSE_US = 45000;

static gb_job *job;
static int rank, world;

static void must(gb_status status, const gb_error *error) {
  if (status == GB_OK) return;
  fprintf(stderr, "aligned_bench: %s\n", error->text);
  exit(1);
}

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static double largest(double value) {
  gb_error error;
  gb_buffer buffer = {&value, 1, GB_FLOAT64};
  must(gb_all_reduce(gb_job_world(job), &buffer, GB_MAX, NULL, &error), &error);
  return value;
}

static void sleep_until(double at_us) {
  struct timespec t = {(time_t)(at_us / 1e6), 0};
  t.tv_nsec = (long)((at_us - (double)t.tv_sec * 1e6) * 1e3);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL)) continue;
}

static gb_status call(const char *name, float *in, float *out, size_t bytes,
                      gb_error *error) {
  gb_group *group = gb_job_world(job);
  size_t count = bytes / sizeof *in, row = count / (size_t)world;
  gb_buffer whole = {in, count, GB_FLOAT32};
  gb_buffer rows = {out, row * (size_t)world, GB_FLOAT32};
  gb_buffer one = {in, row, GB_FLOAT32};
  if (!strcmp(name, "all_reduce"))
    return gb_all_reduce(group, &whole, GB_SUM, NULL, error);
  if (!strcmp(name, "broadcast"))
    return gb_broadcast(group, &whole, 0, NULL, error);
  if (!strcmp(name, "reduce"))
    return gb_reduce(group, &whole, GB_SUM, 0, NULL, error);
  if (!strcmp(name, "all_gather"))
    return gb_all_gather(group, &rows, &one, NULL, error);
  if (!strcmp(name, "reduce_scatter"))
    return gb_reduce_scatter(group, &one, &rows, GB_SUM, NULL, error);
  fprintf(stderr, "aligned_bench: unknown collective %s\n", name);
  exit(2);
}

/* At least ten, more of what is short. */
static int warm_up_of(size_t bytes) {
  size_t more = ((size_t)32 << 20) / bytes;
  return 10 + (int)(more > 30 ? 30 : more);
}

static void bench(const char *name, size_t bytes, int calls) {
  gb_error error;
  double took[CALLS_MAX];
  float *in = calloc(1, bytes), *out = calloc(1, bytes);
  if (!in || !out) {
    fprintf(stderr, "aligned_bench: no memory\n");
    exit(1);
  }
  memset(in, 1, bytes); /* touched */
  memset(out, 1, bytes);
  double begin = largest(now_us()) + PAUSE_US;
  for (int i = -warm_up_of(bytes); i < calls; i++) {
    sleep_until(begin);
    must(call(name, in, out, bytes, &error), &error);
    double end = largest(now_us());
    if (i >= 0) took[i] = end - begin;
    begin = end + PAUSE_US + (double)bytes / 1e3; /* the reset below */
    memset(in, 1, bytes);
  }
  free(in);
  free(out);
  if (rank) return;
  printf("{\"collective\": \"%s\", \"bytes\": %zu, \"us\": [", name, bytes);
  for (int i = 0; i < calls; i++) printf(i ? ", %.1f" : "%.1f", took[i]);
  printf("]}\n");
  fflush(stdout);
}

int main(int argc, char **argv) {
  gb_error error;
  int at = 1, calls = 7;
  if (argc > 2 && !strcmp(argv[1], "--calls")) {
    calls = (int)strtol(argv[2], NULL, 10);
    at = 3;
  }
  if (calls < 1 || calls > CALLS_MAX || (argc - at) % 2) {
    fprintf(stderr, "usage: aligned_bench [--calls N] COLLECTIVE BYTES ...\n");
    return 2;
  }
  gb_job_params params = GB_JOB_PARAMS_INIT;
  params.timeout_ms = 60000;
  must(gb_job_open(&params, &job, &error), &error);
  gb_job_info info = {.size = sizeof info};
  must(gb_job_get_info(job, &info), &error);
  rank = info.rank;
  world = info.world_size;
  for (; at < argc; at += 2)
    bench(argv[at], strtoull(argv[at + 1], NULL, 10) / 4 * 4, calls);
  must(gb_job_close(job, &error), &error);
  return 0;
}
