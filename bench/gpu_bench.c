/* What issuing a call on a GPU costs the host, on the fakes of tests/fakes, as
 * one line of JSON on rank 0. Started by bench/gpu_issue.py under `gpubridge
 * run`, which gives each rank its place and vendor, with the fakes named by
 * GPUBRIDGE_CUDA_LIB, GPUBRIDGE_NCCL_LIB and GPUBRIDGE_RCCL_LIB.
 *
 * "issue_us": the median time in gb_all_reduce of 4 KiB. "calls": how many
 * calls of the vendor's runtime were made in it. "call_us": what one costs here
 * (record an event, let a stream wait for it), the median. "native_us": the
 * library's own all_reduce on the same stream, where the job is one island. */
#include <gpubridge/gpubridge.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ccl/native.h"
#include "device/device.h"
#include "fakes/fakes.h"

enum { ROUNDS = 200, WARM_UP = 20, COUNT = 1024 };

static gbi_device *gpu;
static gbi_stream stream;
static double samples[ROUNDS];

static void must(gb_status status, const gb_error *error) {
  if (status == GB_OK) return;
  fprintf(stderr, "gpu_bench: %s\n", error->text);
  exit(1);
}

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static double median(void) {
  qsort(samples, ROUNDS, sizeof *samples, compare);
  return samples[ROUNDS / 2];
}

/* Nothing runs while calls are timed: the fakes' threads would take the time of
 * the one that issues, which a GPU does not. */
static _Atomic uint64_t *gate;
static uint8_t *gate_address;
static uint64_t gate_value;

static void make_gate(void) {
  gb_error error;
  void *host, *address;
  must(gpu->ops->pinned(gpu, 4096, &host, &address, &error), &error);
  gate = host;
  gate_address = address;
}
static void hold(gbi_stream on) {
  gb_error error;
  must(gpu->ops->wait_flag(gpu, gate_address, gate_value + 1, on, &error),
       &error);
}
static void let_go(void) {
  *gate = ++gate_value;
}

/* Until the stream is through: calls do not pile up. */
static void settle(void) {
  gb_error error;
  must(gpu->ops->stream_sync(gpu, stream, &error), &error);
}

static uint64_t calls_here(const char *library) {
  void *fake = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  void (*ask)(fake_gpu_counts *) = NULL;
  if (fake) *(void **)&ask = dlsym(fake, "fake_gpu_count_here");
  fake_gpu_counts counts = {0};
  if (ask) ask(&counts);
  return counts.calls;
}

/* The same calls of the vendor's runtime that a bridged all_reduce of one chunk
 * between two islands of one rank makes, without anything between them. */
static double time_calls(void *memory) {
  enum { STREAMS = 4, EVENTS = 4 };
  static const struct {
    char what;
    int stream, event;
  } calls[] = {
      {'f', 0, 0}, {'r', 3, 0}, {'w', 0, 0}, {'w', 1, 0}, {'w', 1, 1},
      {'g', 1, 0}, {'r', 0, 1}, {'w', 1, 1}, {'o', 1, 0}, {'s', 1, 0},
      {'g', 2, 0}, {'i', 2, 0}, {'r', 2, 2}, {'r', 0, 1}, {'w', 3, 1},
      {'w', 3, 2}, {'r', 1, 1}, {'w', 3, 1}, {'r', 3, 3}, {'w', 0, 3},
      {'r', 2, 2},
  };
  const gbi_device_ops *ops = gpu->ops;
  gb_error e;
  gbi_stream s[STREAMS];
  gbi_event events[EVENTS];
  void *pinned, *address;
  gbi_memory_facts facts;
  for (int i = 0; i < STREAMS; i++) must(ops->stream_new(gpu, &s[i], &e), &e);
  for (int i = 0; i < EVENTS; i++)
    must(ops->event_new(gpu, &events[i], &e), &e);
  must(ops->pinned(gpu, COUNT * 4 + 4096, &pinned, &address, &e), &e);
  uint8_t *flag = (uint8_t *)address + COUNT * 4;
  for (int i = 0; i < ROUNDS; i++) {
    for (int k = 0; k < STREAMS; k++) hold(s[k]);
    double start = now_us();
    for (size_t k = 0; k < sizeof calls / sizeof *calls; k++) {
      gbi_stream on = s[calls[k].stream];
      gbi_event event = events[calls[k].event];
      switch (calls[k].what) {
        case 'f': must(ops->memory_facts(gpu, memory, &facts, &e), &e); break;
        case 'r': must(ops->event_record(gpu, event, on, &e), &e); break;
        case 'w': must(ops->stream_wait(gpu, on, event, &e), &e); break;
        case 'g': must(ops->wait_flag(gpu, flag, 0, on, &e), &e); break;
        case 's': must(ops->set_flag(gpu, flag, 1, on, &e), &e); break;
        case 'o':
          must(ops->copy_out(gpu, pinned, memory, COUNT * 4, on, &e), &e);
          break;
        default: must(ops->copy_in(gpu, memory, pinned, COUNT * 4, on, &e), &e);
      }
    }
    samples[i] = now_us() - start;
    let_go();
    for (int k = 0; k < STREAMS; k++) must(ops->stream_sync(gpu, s[k], &e), &e);
  }
  for (int i = 0; i < STREAMS; i++) ops->stream_free(gpu, s[i]);
  for (int i = 0; i < EVENTS; i++) ops->event_free(gpu, events[i]);
  ops->free_pinned(gpu, pinned);
  return median();
}

static double time_issue(gb_job *job, const gb_buffer *buffer,
                         const char *library, double *calls_p) {
  gb_error error;
  uint64_t before = 0;
  for (int i = -WARM_UP; i < ROUNDS; i++) {
    if (!i) before = calls_here(library);
    hold(stream);
    double start = now_us();
    must(gb_all_reduce(gb_job_world(job), buffer, GB_SUM, NULL, &error),
         &error);
    if (i >= 0) samples[i] = now_us() - start;
    let_go();
    settle();
  }
  uint64_t ours = 2 * ROUNDS; /* hold and settle */
  *calls_p = (double)(calls_here(library) - before - ours) / ROUNDS;
  return median();
}

/* A communicator of our own beside the job's. The id goes round by the job. */
static double time_native(gb_job *job, int rank, int world, void *memory) {
  gb_error error;
  gbi_native *native;
  uint8_t id[GBI_NATIVE_ID_BYTES] = {0};
  if (!rank) must(gbi_native_id(gpu->ops->vendor, id, &error), &error);
  void *pinned, *address;
  must(gpu->ops->pinned(gpu, sizeof id, &pinned, &address, &error), &error);
  memcpy(pinned, id, sizeof id);
  must(gpu->ops->copy_in(gpu, memory, pinned, sizeof id, stream, &error),
       &error);
  gb_buffer buffer = {memory, sizeof id, GB_UINT8};
  must(gb_broadcast(gb_job_world(job), &buffer, 0, NULL, &error), &error);
  must(gpu->ops->copy_out(gpu, pinned, memory, sizeof id, stream, &error),
       &error);
  settle();
  memcpy(id, pinned, sizeof id);
  must(gbi_native_open(gpu, id, world, rank, gbi_deadline_after_ms(20000), NULL,
                       &native, &error),
       &error);
  for (int i = -WARM_UP; i < ROUNDS; i++) {
    hold(stream);
    double start = now_us();
    must(gbi_native_all_reduce(native, memory, memory, COUNT, GB_FLOAT32,
                               GB_SUM, 1, 0, stream, &error),
         &error);
    if (i >= 0) samples[i] = now_us() - start;
    let_go();
    settle();
  }
  gbi_native_close(native, gbi_deadline_after_ms(5000));
  return median();
}

int main(void) {
  gb_job_params params = GB_JOB_PARAMS_INIT;
  gb_job *job;
  gb_error error;
  char vendor[16], library[1024];
  snprintf(vendor, sizeof vendor, "%s", getenv("GPUBRIDGE_VENDOR"));
  unsetenv("GPUBRIDGE_VENDOR");
  bool amd = !strcmp(vendor, "amd");
  snprintf(library, sizeof library, "%s", getenv("GPUBRIDGE_CUDA_LIB"));
  char uuid[64]; /* a GPU for each rank */
  snprintf(uuid, sizeof uuid, "GPU-00000000-0000-0000-0000-%012d",
           (int)strtol(getenv("RANK"), NULL, 10));
  setenv("FAKE_GPU_UUID", uuid, 1);
  params.timeout_ms = 30000;
  params.vendor = vendor;
  params.device = 0;
  must(gb_job_open(&params, &job, &error), &error);
  gb_job_info info = {.size = sizeof info};
  must(gb_job_get_info(job, &info), &error);
  must(gbi_device_open(amd ? GBI_AMD : GBI_NVIDIA, 0, &gpu, &error), &error);
  must(gpu->ops->stream_new(gpu, &stream, &error), &error);
  gb_use_stream(stream);
  make_gate();
  void *memory;
  must(gpu->ops->memory(gpu, COUNT * 4, &memory, &error), &error);
  gb_buffer buffer = {memory, COUNT, GB_FLOAT32};
  double calls;
  double issue = time_issue(job, &buffer, library, &calls);
  bool alone = info.islands_count == 1;
  double alike = alone ? 0 : time_calls(memory);
  double native =
      alone ? time_native(job, info.rank, info.world_size, memory) : 0;
  if (!info.rank)
    printf(
        "{\"issue_us\": %.2f, \"calls\": %.1f, \"calls_us\": %.2f, "
        "\"native_us\": %.2f}\n",
        issue, calls, alike, native);
  must(gb_job_close(job, &error), &error);
  return 0;
}
