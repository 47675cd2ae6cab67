/* Collectives of a whole job through the public functions, as one line of
 * JSON a size on rank 0. Started by `gpubridge run`, which gives each rank its
 * place.
 *
 *   job_bench [--memory] [BYTES ...]
 *
 * "wall_us" is the mean over the calls of one batch on rank 0, "p50_us" their
 * median, "cpu_us" user and system time of a rank per call (mean over ranks),
 * "faults" the page faults of the whole batch on the rank that had most of
 * them. The first calls of a size are not counted. Sums are checked.
 *
 * --memory: what a rank's memory grew by between before the job was opened and
 * after calls of 256 MiB, without the tensor. */
#include <gpubridge/gpubridge.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

enum { CALLS_MAX = 4096, WARM_UP = 2 };

static gb_job *job;
static int rank, world;
static double walls[CALLS_MAX];

static void must(gb_status status, const gb_error *error) {
  if (status == GB_OK) return;
  fprintf(stderr, "job_bench: %s\n", error->text);
  exit(1);
}

static double clock_us(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void sum(float *data, size_t count) {
  gb_error error;
  gb_buffer buffer = {data, count, GB_FLOAT32};
  must(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, &error), &error);
}

static double over_ranks(double value, gb_redop op) {
  gb_error error;
  gb_buffer buffer = {&value, 1, GB_FLOAT64};
  must(gb_all_reduce(gb_job_world(job), &buffer, op, NULL, &error), &error);
  return value;
}

static void open_job(void) {
  gb_job_params params = GB_JOB_PARAMS_INIT;
  params.timeout_ms = 60000;
  gb_error error;
  must(gb_job_open(&params, &job, &error), &error);
  gb_job_info info = {.size = sizeof info};
  must(gb_job_get_info(job, &info), &error);
  rank = info.rank;
  world = info.world_size;
}

static void *memory(size_t bytes) {
  void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (data == MAP_FAILED) {
    fprintf(stderr, "job_bench: no memory\n");
    exit(1);
  }
  return data;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static int calls_of(size_t bytes) {
  if (bytes <= 4096) return 1000;
  if (bytes <= 65536) return 300;
  if (bytes <= (size_t)1 << 20) return 40;
  return bytes <= (size_t)16 << 20 ? 5 : 2;
}

static void fill(float *data, size_t count) {
  for (size_t i = 0; i < count; i++) data[i] = (float)(i % 5) + (float)rank;
}

static void check(const float *data, size_t count) {
  for (size_t i = 0; i < count; i++) {
    float want = (float)(i % 5) * (float)world +
                 (float)(world * (world - 1)) / 2;
    if (data[i] == want) continue;
    fprintf(stderr, "job_bench: element %zu is %g, not %g\n", i,
            (double)data[i], (double)want);
    exit(1);
  }
}

static void bench(float *data, size_t bytes) {
  size_t count = bytes / 4;
  struct rusage before, after;
  for (int i = 0; i < WARM_UP; i++) {
    fill(data, count);
    sum(data, count);
    check(data, count);
  }
  memset(data, 0, bytes);
  /* All ranks leave this call at about the same time. */
  over_ranks(0, GB_SUM);
  int calls = calls_of(bytes);
  getrusage(RUSAGE_SELF, &before);
  double cpu = clock_us(CLOCK_PROCESS_CPUTIME_ID);
  double begin = clock_us(CLOCK_MONOTONIC), last = begin;
  for (int i = 0; i < calls; i++) {
    sum(data, count);
    double now = clock_us(CLOCK_MONOTONIC);
    walls[i] = now - last;
    last = now;
  }
  cpu = (clock_us(CLOCK_PROCESS_CPUTIME_ID) - cpu) / calls;
  getrusage(RUSAGE_SELF, &after);
  double faults = over_ranks((double)(after.ru_minflt - before.ru_minflt +
                                      after.ru_majflt - before.ru_majflt),
                             GB_MAX);
  cpu = over_ranks(cpu, GB_SUM) / world;
  if (rank) return;
  qsort(walls, (size_t)calls, sizeof *walls, ascending);
  printf("{\"bytes\": %zu, \"wall_us\": %.2f, \"p50_us\": %.2f, "
         "\"cpu_us\": %.2f, \"faults\": %.0f}\n",
         bytes, (last - begin) / calls, walls[calls / 2], cpu, faults);
  fflush(stdout);
}

/* ---- memory ---- */

/* Private and shared memory that is resident, in bytes. */
static double resident(void) {
  FILE *file = fopen("/proc/self/status", "r");
  char line[256];
  double bytes = 0;
  long kib;
  while (file && fgets(line, sizeof line, file))
    if (sscanf(line, "RssAnon: %ld", &kib) == 1 ||
        sscanf(line, "RssShmem: %ld", &kib) == 1)
      bytes += (double)kib * 1024;
  if (file) fclose(file);
  return bytes;
}

static void measure_memory(void) {
  size_t bytes = (size_t)256 << 20;
  float *data = memory(bytes);
  memset(data, 0, bytes);
  double before = resident();
  open_job();
  for (int i = 0; i < 3; i++) sum(data, bytes / 4);
  double most = over_ranks(resident() - before, GB_MAX);
  if (!rank) printf("{\"memory_bytes\": %.0f}\n", most);
}

int main(int argc, char **argv) {
  gb_error error;
  if (argc > 1 && !strcmp(argv[1], "--memory")) {
    measure_memory();
  } else {
    size_t most = 4;
    for (int i = 1; i < argc; i++) {
      size_t bytes = strtoull(argv[i], NULL, 10) / 4 * 4;
      if (bytes > most) most = bytes;
    }
    open_job();
    float *data = memory(most);
    for (int i = 1; i < argc; i++) bench(data, strtoull(argv[i], NULL, 10));
  }
  must(gb_job_close(job, &error), &error);
  return 0;
}
