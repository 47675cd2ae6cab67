/* One rank of a job between the machines of the VM suite (guest). It prints
 * what went wrong and exits 0 when all was right, 1 after an error, 2 after a
 * wrong byte.
 *
 *   vm_job same POLICY...   every collective with each policy in turn, on
 *                           small, middle and odd sizes: the bytes that
 *                           `flat` gives
 *   vm_job small N          N calls of a few bytes
 *   vm_job send MIB TIMES   rank 0 sends the last rank a message, TIMES times
 *   vm_job sum MIB          one all_reduce
 *   vm_job mixed ROUNDS     messages both ways beside collectives
 *   vm_job limited BYTES COMMAND...  the command, able to lock BYTES only */
#include <gpubridge/gpubridge.h>

#include <linux/capability.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

static gb_job *job;
static gb_error error;
static int me, world;

#define MUST(call)                                               \
  do {                                                           \
    if ((call) != GB_OK) {                                       \
      printf("failed [%d] %s\n", (int)error.status, error.text); \
      exit(1);                                                   \
    }                                                            \
  } while (0)

static void *room(size_t bytes) {
  void *memory = malloc(bytes ? bytes : 1);
  if (memory) return memory;
  printf("no memory for %zu bytes\n", bytes);
  exit(1);
}

static void wrong(const char *what, size_t at) {
  printf("wrong: %s, at %zu\n", what, at);
  exit(2);
}

static void open_job(const char *policy) {
  gb_job_params params = GB_JOB_PARAMS_INIT;
  gb_job_info info = {.size = sizeof info};
  params.timeout_ms = 60000;
  params.policy = policy;
  MUST(gb_job_open(&params, &job, &error));
  MUST(gb_job_get_info(job, &info));
  me = info.rank;
  world = info.world_size;
  if (me == 0) printf("bridge %s, policy %s\n", info.bridge, info.policy);
}

static void close_job(void) {
  MUST(gb_job_close(job, &error));
}

/* --- same
 * ---------------------------------------------------------------------- */

typedef struct bytes {
  uint8_t *at;
  size_t used, room;
} bytes;

static void keep(bytes *all, const void *data, size_t n) {
  if (all->used + n > all->room) {
    all->room = (all->used + n) * 2;
    all->at = realloc(all->at, all->room);
    if (!all->at) exit(1);
  }
  memcpy(all->at + all->used, data, n);
  all->used += n;
}

/* Small whole numbers, of which every order gives the same sum. */
static void give(float *data, size_t n) {
  for (size_t i = 0; i < n; i++)
    data[i] = (float)((i * 31 + (size_t)me * 17) % 251);
}

static void keep_reductions(bytes *all, float *one, float *many, size_t n) {
  size_t total = n * (size_t)world;
  gb_group *group = gb_job_world(job);
  gb_buffer small = {one, n, GB_FLOAT32}, large = {many, total, GB_FLOAT32};
  static const gb_redop ops[] = {GB_SUM, GB_MAX};
  for (int i = 0; i < 2; i++) {
    give(one, n);
    MUST(gb_all_reduce(group, &small, ops[i], NULL, &error));
    keep(all, one, n * sizeof *one);
  }
  for (int root = 0; root < world; root++) {
    give(one, n);
    MUST(gb_reduce(group, &small, GB_SUM, root, NULL, &error));
    if (me == root) keep(all, one, n * sizeof *one);
  }
  give(many, total);
  MUST(gb_reduce_scatter(group, &small, &large, GB_SUM, NULL, &error));
  keep(all, one, n * sizeof *one);
}

static void keep_copies(bytes *all, float *one, float *many, size_t n) {
  size_t total = n * (size_t)world;
  gb_group *group = gb_job_world(job);
  gb_buffer small = {one, n, GB_FLOAT32}, large = {many, total, GB_FLOAT32};
  for (int root = 0; root < world; root++) {
    give(one, n);
    MUST(gb_broadcast(group, &small, root, NULL, &error));
    keep(all, one, n * sizeof *one);
  }
  give(one, n);
  MUST(gb_all_gather(group, &large, &small, NULL, &error));
  keep(all, many, total * sizeof *many);
  float *out = room(total * sizeof *out);
  gb_buffer output = {out, total, GB_FLOAT32};
  give(many, total);
  MUST(gb_all_to_all(group, &output, NULL, &large, NULL, NULL, &error));
  keep(all, out, total * sizeof *out);
  free(out);
}

/* Rank r has r % 3 thirds of n. */
static void keep_rows(bytes *all, float *one, float *many, size_t n) {
  size_t counts[8], total = 0;
  gb_group *group = gb_job_world(job);
  for (int r = 0; r < world; r++) total += counts[r] = n * (size_t)(r % 3) / 3;
  gb_buffer mine = {one, counts[me], GB_FLOAT32};
  gb_buffer rows = {many, total, GB_FLOAT32};
  give(one, counts[me]);
  MUST(gb_all_gather_v(group, &rows, &mine, counts, NULL, &error));
  keep(all, many, total * sizeof *many);
  give(many, total);
  MUST(gb_reduce_scatter_v(group, &mine, &rows, counts, GB_SUM, NULL, &error));
  keep(all, one, counts[me] * sizeof *one);
}

static bytes all_results(const char *policy) {
  static const size_t sizes[] = {0, 1, 333, 4096, 50021};
  bytes all = {0};
  open_job(policy);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    size_t n = sizes[i];
    float *one = room(n * sizeof *one);
    float *many = room(n * (size_t)world * sizeof *many);
    keep_reductions(&all, one, many, n);
    keep_copies(&all, one, many, n);
    keep_rows(&all, one, many, n);
    MUST(gb_barrier(gb_job_world(job), NULL, &error));
    free(one);
    free(many);
  }
  close_job();
  return all;
}

static void same(char **policies, int count) {
  bytes want = all_results("flat");
  for (int i = 0; i < count; i++) {
    bytes got = all_results(policies[i]);
    if (got.used != want.used) wrong(policies[i], got.used);
    for (size_t k = 0; k < got.used; k++)
      if (got.at[k] != want.at[k]) wrong(policies[i], k);
    free(got.at);
  }
  free(want.at);
}

/* --- small, send, sum
 * ------------------------------------------------------------- */

static void small(int calls) {
  gb_group *group = gb_job_world(job);
  for (int i = 0; i < calls; i++) {
    int32_t value = i + me;
    gb_buffer one = {&value, 1, GB_INT32};
    if (i % 4 < 2)
      MUST(gb_all_reduce(group, &one, GB_SUM, NULL, &error));
    else
      MUST(gb_broadcast(group, &one, i % world, NULL, &error));
    int32_t want =
        i % 4 < 2 ? i * world + world * (world - 1) / 2 : i + i % world;
    if (value != want) wrong("small call", (size_t)i);
  }
}

static void fill(uint32_t *data, size_t n, uint32_t seed) {
  for (size_t i = 0; i < n; i++) data[i] = (uint32_t)i * 2654435761u + seed;
}

static void check(const uint32_t *data, size_t n, uint32_t seed) {
  for (size_t i = 0; i < n; i++)
    if (data[i] != (uint32_t)i * 2654435761u + seed) wrong("message", i);
}

static void send_large(size_t mib, int times) {
  size_t n = mib << 18;
  uint32_t *data = room(n * sizeof *data);
  gb_buffer buffer = {data, n, GB_INT32};
  for (int i = 0; i < times; i++) {
    uint32_t seed = (uint32_t)i + 1;
    if (me == 0) {
      fill(data, n, seed);
      MUST(gb_send(gb_job_world(job), &buffer, world - 1, 3, NULL, &error));
    } else if (me == world - 1) {
      memset(data, 0, n * sizeof *data);
      MUST(gb_recv(gb_job_world(job), &buffer, 0, 3, NULL, NULL, &error));
      check(data, n, seed);
    }
  }
  MUST(gb_barrier(gb_job_world(job), NULL, &error));
  free(data);
}

static void sum_large(size_t mib) {
  size_t n = mib << 18;
  int32_t *data = room(n * sizeof *data);
  gb_buffer buffer = {data, n, GB_INT32};
  for (size_t i = 0; i < n; i++) data[i] = (int32_t)(i % 1000003) + me;
  MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, &error));
  for (size_t i = 0; i < n; i++)
    if (data[i] != (int32_t)(i % 1000003) * world + world * (world - 1) / 2)
      wrong("sum", i);
  free(data);
}

/* --- mixed
 * ---------------------------------------------------------------------- */

enum { MESSAGES = 6 };

static void end(gb_work *work) {
  if (!work) return;
  MUST(gb_work_wait(work, 0, &error));
  gb_work_release(work);
}

/* A round: messages of six sizes to the next rank and from the last, started in
 * one order and received in the other, while three sums and a broadcast run. */
static void mixed_round(int round) {
  static const size_t sizes[MESSAGES] = {1, 60, 1000, 9000, 65536, 300000};
  gb_group *group = gb_job_world(job);
  uint32_t *out[MESSAGES], *in[MESSAGES];
  gb_work *works[2 * MESSAGES + 3] = {0};
  float sums[3];
  int next = (me + 1) % world, before = (me + world - 1) % world;
  for (int i = 0; i < MESSAGES; i++) {
    int k = MESSAGES - 1 - i;
    out[i] = room(sizes[i] * sizeof **out);
    in[k] = room(sizes[k] * sizeof **in);
    fill(out[i], sizes[i], (uint32_t)(round * 100 + i + me * 7));
    gb_buffer from = {out[i], sizes[i], GB_INT32};
    gb_buffer to = {in[k], sizes[k], GB_INT32};
    MUST(gb_send(group, &from, next, (uint64_t)i, &works[2 * i], &error));
    MUST(gb_recv(group, &to, before, (uint64_t)k, NULL, &works[2 * i + 1],
                 &error));
    if (i % 2) continue;
    sums[i / 2] = (float)(me + i);
    gb_buffer one = {&sums[i / 2], 1, GB_FLOAT32};
    MUST(gb_all_reduce(group, &one, GB_SUM, &works[2 * MESSAGES + i / 2],
                       &error));
  }
  float value = (float)me;
  gb_buffer one = {&value, 1, GB_FLOAT32};
  MUST(gb_broadcast(group, &one, round % world, NULL, &error));
  if (value != (float)(round % world)) wrong("broadcast", (size_t)round);
  for (int i = 0; i < 2 * MESSAGES + 3; i++) end(works[i]);
  for (int i = 0; i < 3; i++)
    if (sums[i] != (float)(2 * i * world + world * (world - 1) / 2))
      wrong("sum beside messages", (size_t)i);
  for (int i = 0; i < MESSAGES; i++) {
    check(in[i], sizes[i], (uint32_t)(round * 100 + i + before * 7));
    free(in[i]);
    free(out[i]);
  }
}

/* --- limited
 * -------------------------------------------------------------------- */

/* Root may lock what it likes unless it cannot. */
static int limited(char **argv) {
  struct rlimit limit;
  limit.rlim_cur = limit.rlim_max = strtoul(argv[0], NULL, 10);
  if (setrlimit(RLIMIT_MEMLOCK, &limit) ||
      prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0)) {
    perror("vm_job: limited");
    return 1;
  }
  execvp(argv[1], argv + 1);
  perror(argv[1]);
  return 1;
}

int main(int argc, char **argv) {
  const char *what = argc > 2 ? argv[1] : "";
  int number = argc > 2 ? atoi(argv[2]) : 0;
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (!strcmp(what, "limited") && argc > 3) return limited(argv + 2);
  if (!strcmp(what, "same")) {
    same(argv + 2, argc - 2);
    return 0;
  }
  open_job(NULL);
  if (!strcmp(what, "small"))
    small(number);
  else if (!strcmp(what, "send") && argc > 3)
    send_large((size_t)number, atoi(argv[3]));
  else if (!strcmp(what, "sum"))
    sum_large((size_t)number);
  else if (!strcmp(what, "mixed"))
    for (int i = 0; i < number; i++) mixed_round(i);
  else
    return 1;
  close_job();
  return 0;
}
