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

static double time_calls(void) {
  gb_error error;
  gbi_event event;
  must(gpu->ops->event_new(gpu, &event, &error), &error);
  for (int i = 0; i < ROUNDS; i++) {
    double start = now_us();
    must(gpu->ops->event_record(gpu, event, stream, &error), &error);
    must(gpu->ops->stream_wait(gpu, stream, event, &error), &error);
    samples[i] = (now_us() - start) / 2;
    if (i % 8 == 7) settle();
  }
  gpu->ops->event_free(gpu, event);
  return median();
}

static double time_issue(gb_job *job, const gb_buffer *buffer,
                         const char *library, double *calls_p) {
  gb_error error;
  uint64_t before = 0;
  for (int i = -WARM_UP; i < ROUNDS; i++) {
    if (!i) before = calls_here(library);
    double start = now_us();
    must(gb_all_reduce(gb_job_world(job), buffer, GB_SUM, NULL, &error),
         &error);
    if (i >= 0) samples[i] = now_us() - start;
    settle();
  }
  uint64_t settled = ROUNDS; /* one call each */
  *calls_p = (double)(calls_here(library) - before - settled) / ROUNDS;
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
    double start = now_us();
    must(gbi_native_all_reduce(native, memory, memory, COUNT, GB_FLOAT32,
                               GB_SUM, 1, 0, stream, &error),
         &error);
    if (i >= 0) samples[i] = now_us() - start;
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
  void *memory;
  must(gpu->ops->memory(gpu, COUNT * 4, &memory, &error), &error);
  gb_buffer buffer = {memory, COUNT, GB_FLOAT32};
  double calls;
  double issue = time_issue(job, &buffer, library, &calls);
  double call = time_calls();
  bool alone = info.islands_count == 1;
  double native =
      alone ? time_native(job, info.rank, info.world_size, memory) : 0;
  if (!info.rank)
    printf(
        "{\"issue_us\": %.2f, \"calls\": %.1f, \"call_us\": %.2f, "
        "\"native_us\": %.2f}\n",
        issue, calls, call, native);
  must(gb_job_close(job, &error), &error);
  return 0;
}
