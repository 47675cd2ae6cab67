/* Messages between two ranks of a job: round trips of small messages and both
 * ways at once of large ones, over shared memory and over TCP between two
 * simulated hosts.
 *
 *   p2p_bench [trips [exchanges]]
 *
 * Prints half a round trip (median and mean) and the rate of an exchange in one
 * direction. What arrives is checked. */
#include <gpubridge/gpubridge.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LARGE = 16 << 20 }; /* floats: 64 MiB */

static int me;
static gb_job *job;
static gb_group *group;
static gb_error error;

static void die(const char *what) {
  fprintf(stderr, "p2p_bench: %s: %s\n", what, error.text);
  exit(1);
}

static double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static void ping(const char *name, size_t bytes, int trips) {
  uint8_t *data = calloc(1, bytes);
  double *took = calloc((size_t)trips, sizeof *took);
  gb_buffer b = {data, bytes, GB_UINT8};
  double start = 0;
  for (int i = -trips / 10; i < trips; i++) {
    double at = now_us();
    if (i == 0) start = at;
    if (me == 0) data[0] = (uint8_t)i;
    gb_status status = me == 0 ? gb_send(group, &b, 1, 1, NULL, &error)
                               : gb_recv(group, &b, 0, 1, NULL, NULL, &error);
    if (status == GB_OK)
      status = me == 0 ? gb_recv(group, &b, 1, 1, NULL, NULL, &error)
                       : gb_send(group, &b, 0, 1, NULL, &error);
    if (status != GB_OK) die("ping");
    if (me == 0 && data[0] != (uint8_t)i) die("a wrong byte");
    if (i >= 0) took[i] = (now_us() - at) / 2;
  }
  double mean = (now_us() - start) / 2 / trips;
  qsort(took, (size_t)trips, sizeof *took, by_value);
  if (me == 0)
    printf("%-4s %7zu bytes: half a round trip %8.2f us median, %8.2f mean\n",
           name, bytes, took[trips / 2], mean);
  free(data);
  free(took);
}

static void exchange(const char *name, int times) {
  float *out = malloc(LARGE * sizeof *out), *in = malloc(LARGE * sizeof *in);
  for (int i = 0; i < LARGE; i++) out[i] = (float)(i % 1000 + me);
  memset(in, 0, LARGE * sizeof *in);
  double best = 1e30;
  for (int i = 0; i < times; i++) {
    gb_p2p_op ops[2] = {{1, {out, LARGE, GB_FLOAT32}, !me, 2},
                        {0, {in, LARGE, GB_FLOAT32}, !me, 2}};
    if (gb_barrier(group, NULL, &error) != GB_OK) die("barrier");
    double at = now_us();
    if (gb_batch(group, ops, 2, NULL, &error) != GB_OK) die("exchange");
    double took = now_us() - at;
    if (took < best) best = took;
    if (in[LARGE - 1] != (float)((LARGE - 1) % 1000 + !me)) die("wrong values");
  }
  double bytes = (double)LARGE * sizeof *out;
  if (me == 0)
    printf("%-4s 64 MiB both ways: %.1f ms, %.2f GB/s each way\n", name,
           best / 1e3, bytes / best / 1e3);
  free(out);
  free(in);
}

static void run(const char *name, bool far, int trips, int exchanges) {
  if (far) setenv("GPUBRIDGE_SIM_HOSTNAME", me ? "host1" : "host0", 1);
  gb_job_params params = GB_JOB_PARAMS_INIT;
  params.timeout_ms = 60000;
  params.attempt = name;
  if (gb_job_open(&params, &job, &error) != GB_OK) die("open");
  group = gb_job_world(job);
  ping(name, 4, trips);
  ping(name, 4096, trips);
  ping(name, 65536, trips / 10);
  exchange(name, exchanges);
  if (gb_job_close(job, &error) != GB_OK) die("close");
}

int main(int argc, char **argv) {
  int trips = argc > 1 ? atoi(argv[1]) : 20000;
  int exchanges = argc > 2 ? atoi(argv[2]) : 7;
  char port[16];
  if (trips < 10 || exchanges < 1) die("trips from 10, exchanges from 1");
  snprintf(port, sizeof port, "%d", 20000 + getpid() % 20000);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", port, 1);
  setenv("WORLD_SIZE", "2", 1);
  pid_t child = fork();
  me = child ? 0 : 1;
  setenv("RANK", me ? "1" : "0", 1);
  setenv("GPUBRIDGE_VENDOR", me ? "amd" : "nvidia", 1);
  run("shm", false, trips, exchanges);
  run("tcp", true, trips, exchanges);
  int status = 0;
  if (child) waitpid(child, &status, 0);
  return status != 0;
}
