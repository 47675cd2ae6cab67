/* One rank of a job that something may happen to. torture.py and test_soak.py
 * start it, with a launcher's variables set, and read what it prints:
 *
 *   ready              the job is open
 *   ok N NAME          call N succeeded, with the right numbers
 *   failed N TEXT      call N failed with this error; N is -1 for the opening
 *
 * It exits 0 when all went well, 1 after an error, 2 after a wrong number.
 *
 *   torture_job [ROUNDS [TIMEOUT_MS]] */
#include <gpubridge/gpubridge.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BIG = 200000, ASYNC = 3 };

static gb_job *job;
static int me, world, number;

static void say_failed(int call, const gb_error *error) {
  printf("failed %d [%d] %s\n", call, (int)error->status, error->text);
}

static void wrong(const char *name, size_t at, float got, float want) {
  printf("wrong %d %s: element %zu is %g, not %g\n", number, name, at,
         (double)got, (double)want);
  exit(2);
}

static float *new_data(size_t count, float value) {
  float *data = malloc(count * sizeof *data);
  if (!data) abort();
  for (size_t i = 0; i < count; i++) data[i] = value;
  return data;
}

static void check(const char *name, const float *data, size_t count,
                  float want) {
  for (size_t i = 0; i < count; i++)
    if (data[i] != want) wrong(name, i, data[i], want);
}

static int finish(const char *name, gb_status status, const gb_error *error) {
  if (status != GB_OK) {
    say_failed(number, error);
    return 1;
  }
  printf("ok %d %s\n", number++, name);
  return 0;
}

static float sum(void) { return (float)(world * (world + 1) / 2); }

static int reduce(size_t count) {
  gb_error error;
  float *data = new_data(count, (float)(me + 1));
  gb_buffer buffer = {data, count, GB_FLOAT32};
  gb_status status =
      gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, &error);
  if (status == GB_OK) check("all_reduce", data, count, sum());
  free(data);
  return finish("all_reduce", status, &error);
}

static int broadcast(size_t count, int root) {
  gb_error error;
  float *data = new_data(count, (float)(me + 1));
  gb_buffer buffer = {data, count, GB_FLOAT32};
  gb_status status =
      gb_broadcast(gb_job_world(job), &buffer, root, NULL, &error);
  if (status == GB_OK) check("broadcast", data, count, (float)(root + 1));
  free(data);
  return finish("broadcast", status, &error);
}

static int gather(size_t count) {
  gb_error error;
  float *all = new_data(count * (size_t)world, -1);
  float *own = new_data(count, (float)(me + 1));
  gb_buffer out = {all, count * (size_t)world, GB_FLOAT32};
  gb_buffer in = {own, count, GB_FLOAT32};
  gb_status status = gb_all_gather(gb_job_world(job), &out, &in, NULL, &error);
  for (int r = 0; status == GB_OK && r < world; r++)
    check("all_gather", all + count * (size_t)r, count, (float)(r + 1));
  free(all);
  free(own);
  return finish("all_gather", status, &error);
}

static int scatter(size_t count) {
  gb_error error;
  float *all = new_data(count * (size_t)world, (float)(me + 1));
  float *own = new_data(count, -1);
  gb_buffer out = {own, count, GB_FLOAT32};
  gb_buffer in = {all, count * (size_t)world, GB_FLOAT32};
  gb_status status =
      gb_reduce_scatter(gb_job_world(job), &out, &in, GB_SUM, NULL, &error);
  if (status == GB_OK) check("reduce_scatter", own, count, sum());
  free(all);
  free(own);
  return finish("reduce_scatter", status, &error);
}

static int barrier(void) {
  gb_error error;
  return finish("barrier", gb_barrier(gb_job_world(job), NULL, &error), &error);
}

/* Several at once; their buffers live until all have ended. */
static int reduce_async(size_t count) {
  gb_error error;
  float *data[ASYNC];
  gb_work *works[ASYNC];
  int begun = 0, failed = 0;
  for (; begun < ASYNC && !failed; begun++) {
    data[begun] = new_data(count, (float)(me + 1));
    gb_buffer buffer = {data[begun], count, GB_FLOAT32};
    gb_status status = gb_all_reduce(gb_job_world(job), &buffer, GB_SUM,
                                     &works[begun], &error);
    if (status == GB_OK) continue;
    free(data[begun]);
    failed = finish("async", status, &error);
    break;
  }
  for (int i = 0; i < begun; i++) {
    gb_status status = gb_work_wait(works[i], 0, &error);
    if (status == GB_OK) check("async", data[i], count, sum());
    if (!failed || status == GB_OK) failed |= finish("async", status, &error);
    gb_work_release(works[i]);
    free(data[i]);
  }
  return failed;
}

/* Every rank's part r is for rank r. */
static int exchange(size_t count) {
  gb_error error;
  size_t all = count * (size_t)world;
  float *out = new_data(all, -1), *in = new_data(all, (float)(me + 1));
  gb_buffer output = {out, all, GB_FLOAT32}, input = {in, all, GB_FLOAT32};
  gb_status status = gb_all_to_all(gb_job_world(job), &output, NULL, &input,
                                   NULL, NULL, &error);
  for (int r = 0; status == GB_OK && r < world; r++)
    check("all_to_all", out + count * (size_t)r, count, (float)(r + 1));
  free(out);
  free(in);
  return finish("all_to_all", status, &error);
}

/* Round the ring; both at once, so that nobody waits for his turn. */
static int ring(size_t count) {
  gb_error error;
  int before = (me + world - 1) % world;
  float *out = new_data(count, (float)(me + 1)), *in = new_data(count, -1);
  gb_p2p_op ops[2] = {{0, {in, count, GB_FLOAT32}, before, 9},
                      {1, {out, count, GB_FLOAT32}, (me + 1) % world, 9}};
  gb_status status = gb_batch(gb_job_world(job), ops, 2, NULL, &error);
  if (status == GB_OK) check("ring", in, count, (float)(before + 1));
  free(out);
  free(in);
  return finish("ring", status, &error);
}

/* A group of all, in another order. */
static int group_reduce(size_t count) {
  gb_error error;
  gb_group *group = NULL;
  int *ranks = malloc(sizeof *ranks * (size_t)world);
  for (int r = 0; r < world; r++) ranks[r] = world - 1 - r;
  gb_status status =
      gb_group_open(job, ranks, world, NULL, &group, &error);
  free(ranks);
  if (finish("group", status, &error)) return 1;
  float *data = new_data(count, (float)(me + 1));
  gb_buffer buffer = {data, count, GB_FLOAT32};
  status = gb_all_reduce(group, &buffer, GB_SUM, NULL, &error);
  if (status == GB_OK) check("group_reduce", data, count, sum());
  free(data);
  if (finish("group_reduce", status, &error)) return 1;
  return finish("group_close", gb_group_close(group, &error), &error);
}

static int calls(int rounds) {
  for (int i = 0; i < rounds; i++)
    if (reduce(1) || exchange(100) || group_reduce(5000) || ring(BIG / 4) ||
        broadcast(1000, i % world) || reduce_async(500) ||
        gather(300) || scatter(BIG / 8) || reduce(BIG) || barrier() ||
        reduce_async(BIG / 4))
      return 1;
  return 0;
}

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IONBF, 0);
  int rounds = argc > 1 ? atoi(argv[1]) : 2;
  gb_job_params params = GB_JOB_PARAMS_INIT;
  params.timeout_ms = argc > 2 ? (unsigned)atoi(argv[2]) : 8000;
  gb_error error;
  if (gb_job_open(&params, &job, &error) != GB_OK) {
    say_failed(-1, &error);
    return 1;
  }
  puts("ready");
  me = atoi(getenv("RANK"));
  world = atoi(getenv("WORLD_SIZE"));
  int failed = calls(rounds);
  if (gb_job_close(job, &error) != GB_OK) {
    say_failed(number, &error);
    failed = 1;
  }
  return failed;
}
