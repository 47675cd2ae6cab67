/* All_reduce inside one island on host memory: wall and CPU time per call.
 *
 *   island_bench [ranks] [seconds per size] [core]
 *
 * Forks the ranks, checks results (from 64 KiB on only those of the warm-up),
 * and prints per size the median, mean and best wall time of a call on rank 0,
 * the mean CPU time of a rank per call, and wrong answers. Ranks that share a
 * core find the others' data there already in many calls, so for small sizes
 * the mean says more than the median.
 * core pins all ranks to one core. */
#include "ccl/ccl.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS_MAX = 64, CALLS_MAX = 20000 };

typedef struct meeting {
  _Atomic int arrived;
  uint8_t blobs[RANKS_MAX][512];
  uint32_t bytes[RANKS_MAX];
  double wall[CALLS_MAX];
  double cpu[RANKS_MAX];
  _Atomic uint64_t wrong;
  _Atomic int calls;
} meeting;

static meeting *shared;
static int ranks = 4, me;

static void meet(void) {
  static int passed;
  passed += ranks;
  atomic_fetch_add(&shared->arrived, 1);
  while (atomic_load(&shared->arrived) < passed) sched_yield();
}

static void exchange(gbi_writer *w, gbi_reader *all) {
  memcpy(shared->blobs[me], w->data, w->used);
  shared->bytes[me] = (uint32_t)w->used;
  meet();
  for (int r = 0; r < ranks; r++)
    gbi_reader_init(&all[r], shared->blobs[r], shared->bytes[r]);
}

static void must(gb_status status, const gb_error *error) {
  if (status == GB_OK) return;
  fprintf(stderr, "rank %d: %s\n", me, error->text);
  exit(1);
}

static double now_us(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void run(gbi_comm *comm, gbi_waiter *waiter, void *state) {
  gb_error error;
  for (int idle = 0;; idle++) {
    uint32_t seen = gbi_bell_look(waiter);
    uint64_t moved = comm->moved;
    gb_status status = comm->ops->progress(comm, state, &error);
    if (status == GB_OK) return;
    if (status != GB_ERR_BUSY) must(status, &error);
    if (comm->moved != moved) idle = 0;
    if (idle < 20)
      sched_yield();
    else
      gbi_waiter_sleep(waiter, seen, NULL, 0, 100);
  }
}

static gbi_comm *open_comm(gbi_hostarea **area_p) {
  static const gbi_auth auth = {{1}, {2}};
  gbi_member members[RANKS_MAX];
  int list[RANKS_MAX], host[RANKS_MAX] = {0};
  gbi_reader all[RANKS_MAX];
  uint8_t blob[512];
  gbi_writer w;
  gb_error error;
  for (int r = 0; r < ranks; r++) {
    list[r] = r;
    members[r] = (gbi_member){r, r, "host", "nvidia"};
  }
  must(gbi_hostarea_open(&auth, list, ranks, me, area_p, &error), &error);
  gbi_writer_init(&w, blob, sizeof blob);
  gbi_hostarea_address(*area_p, &w);
  exchange(&w, all);
  uint64_t deadline = gbi_deadline_after_ms(20000);
  must(gbi_hostarea_connect(*area_p, all, deadline, &error), &error);
  meet();
  gbi_transport_params params = {
      .members = members, .members_count = ranks, .me = me, .area = *area_p,
      .auth = &auth, .store_host = "", .timeout_ms = 20000};
  gbi_comm *comm;
  must(gbi_ccl_host_open(&params, host, &comm, &error), &error);
  gbi_writer_init(&w, blob, sizeof blob);
  comm->ops->address(comm, &w);
  exchange(&w, all);
  must(comm->ops->connect(comm, all, deadline, &error), &error);
  meet();
  return comm;
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void one_size(gbi_comm *comm, gbi_hostarea *area, void *state,
                     size_t bytes, double seconds, uint64_t *seq) {
  size_t count = bytes / 4;
  float *data = malloc(bytes + 64);
  double begin = 0, cpu = 0;
  int calls = 0;
  if (me == 0) atomic_store(&shared->calls, CALLS_MAX);
  for (int i = -2; i < atomic_load(&shared->calls); i++) {
    for (size_t k = 0; k < count && (i < 0 || bytes < 65536); k++)
      data[k] = (float)(me + 1);
    if (i == 0) {
      meet();
      begin = now_us(CLOCK_MONOTONIC);
      cpu = now_us(CLOCK_PROCESS_CPUTIME_ID);
    }
    gbi_comm_step step = {
        .kind = GBI_COMM_ALL_REDUCE, .src = data, .dst = data, .count = count,
        .dtype = GB_FLOAT32, .redop = GB_SUM,
        .call = {.seq = ++*seq, .count = count, .root = -1,
                 .op = GBI_OP_ALL_REDUCE, .dtype = GB_FLOAT32}};
    double start = now_us(CLOCK_MONOTONIC);
    comm->ops->start(comm, &step, state);
    run(comm, gbi_hostarea_waiter(area), state);
    double end = now_us(CLOCK_MONOTONIC);
    if (i < 0 || bytes < 65536)
      for (size_t k = 0; k < count; k++)
        if (data[k] != (float)(ranks * (ranks + 1) / 2) && i != -1)
          atomic_fetch_add(&shared->wrong, 1);
    if (i < 0) continue;
    calls = i + 1;
    if (me == 0) shared->wall[i] = end - start;
    /* Rank 0 ends the row a few calls ahead, so that all agree where. */
    if (me == 0 && atomic_load(&shared->calls) == CALLS_MAX &&
        end - begin > seconds * 1e6)
      atomic_store(&shared->calls, GBI_MIN(i + 3, CALLS_MAX));
  }
  shared->cpu[me] = (now_us(CLOCK_PROCESS_CPUTIME_ID) - cpu) / calls;
  meet();
  if (me == 0) {
    double sum = 0, wall = 0;
    for (int r = 0; r < ranks; r++) sum += shared->cpu[r];
    for (int i = 0; i < calls; i++) wall += shared->wall[i];
    qsort(shared->wall, (size_t)calls, sizeof(double), by_size);
    printf("%10zu %8d %12.1f %12.1f %12.1f %12.1f %8llu\n", bytes, calls,
           shared->wall[calls / 2], wall / calls, shared->wall[0], sum / ranks,
           (unsigned long long)atomic_load(&shared->wrong));
    fflush(stdout);
  }
  meet();
  free(data);
}

static int rank_main(double seconds) {
  static const size_t sizes[] = {4, 1024, 8192, 65536, 1 << 20, 16 << 20,
                                 64 << 20};
  gbi_hostarea *area;
  gbi_comm *comm = open_comm(&area);
  void *state = aligned_alloc(64, (comm->ops->state_bytes + 63) / 64 * 64);
  uint64_t seq = 0;
  if (me == 0)
    printf("# float32 sum, %d ranks, kernels %s\n"
           "#%9s %8s %12s %12s %12s %12s %8s\n",
           ranks, "host", "bytes", "calls", "median us", "mean us", "best us",
           "cpu us/rank", "wrong");
  for (size_t i = 0; i < GBI_COUNT(sizes); i++)
    one_size(comm, area, state, sizes[i], seconds, &seq);
  meet();
  comm->ops->stop(comm);
  comm->ops->close(comm);
  gbi_hostarea_close(area);
  free(state);
  return 0;
}

int main(int argc, char **argv) {
  if (argc > 1) ranks = GBI_MAX(1, GBI_MIN(atoi(argv[1]), RANKS_MAX));
  double seconds = argc > 2 ? atof(argv[2]) : 1;
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  if (argc > 3) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(atoi(argv[3]), &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  for (me = 0; me < ranks; me++) {
    pid_t pid = fork();
    if (pid == 0) exit(rank_main(seconds));
    if (pid < 0) return 1;
  }
  int failed = 0, status;
  while (wait(&status) > 0) failed |= status != 0;
  return failed;
}
