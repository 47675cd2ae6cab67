/* Jobs on GPUs that are not there: the fakes of tests/fakes, ranks of both
 * vendors in one job, device memory for calls. */
#ifndef GB_TESTS_GPU_H
#define GB_TESTS_GPU_H

#include "device/device.h"
#include "fakes/find.h"
#include "job/job.h"

static gbi_device *gpu;
static gbi_stream user; /* the caller's stream */

/* On a machine that has a GPU: its own libraries, every rank on the first card,
 * the letters as islands of one vendor. */
static inline bool is_real(void) {
  return getenv("GB_TEST_REAL_GPU");
}

static inline bool is_amd(void) {
  return !is_real() && gb_vendors()[gb_rank()] == 'a';
}

static inline void use_fakes(void) {
  char uuid[64];
  unsetenv("GPUBRIDGE_VENDOR");
  if (is_real()) {
    setenv("GPUBRIDGE_ISLAND",
           gb_vendors()[gb_rank()] == 'a' ? "second" : "first", 1);
    return;
  }
  /* A GPU for each rank. */
  snprintf(uuid, sizeof uuid, "GPU-00000000-0000-0000-0000-%012d",
           gb_rank() * 16);
  setenv("FAKE_GPU_UUID", uuid, 0);
  name_fakes();
}

static inline gb_status try_open_on_gpu(unsigned timeout_ms, const char *policy,
                                        gb_job **job, gb_error *error) {
  gb_job_params params = GB_JOB_PARAMS_INIT;
  params.timeout_ms = timeout_ms;
  params.policy = policy;
  params.vendor = is_amd() ? "amd" : "nvidia";
  params.device = 0;
  return gb_job_open(&params, job, error);
}

/* Opens the job, and the device beside it for the test's own memory. */
static inline gb_job *open_on_gpu(unsigned timeout_ms, const char *policy) {
  gb_job *job;
  gb_error error;
  use_fakes();
  if (try_open_on_gpu(timeout_ms, policy, &job, &error) != GB_OK)
    gb_test_fail(__FILE__, __LINE__, "could not open: %s", error.text);
  MUST(gbi_device_open(is_amd() ? GBI_AMD : GBI_NVIDIA, 0, &gpu, error));
  MUST(gpu->ops->stream_new(gpu, &user, error));
  gb_use_stream(user);
  return job;
}

/* Device memory with a pinned twin to fill and to look at. */
typedef struct pair {
  void *device, *host;
  size_t bytes;
} pair;

static inline pair new_pair(size_t bytes) {
  pair p = {.bytes = bytes};
  void *address;
  MUST(gpu->ops->memory(gpu, bytes, &p.device, error));
  MUST(gpu->ops->pinned(gpu, bytes, &p.host, &address, error));
  return p;
}

static inline void free_pair(pair p) {
  gpu->ops->free_memory(gpu, p.device);
  gpu->ops->free_pinned(gpu, p.host);
}

/* In the order of the caller's stream. */
static inline void upload(pair p) {
  MUST(gpu->ops->copy_in(gpu, p.device, p.host, p.bytes, user, error));
}
static inline void download(pair p) {
  MUST(gpu->ops->copy_out(gpu, p.host, p.device, p.bytes, user, error));
  MUST(gpu->ops->stream_sync(gpu, user, error));
}

/* Until the job has failed here. */
static inline void await_failure(gb_job *job, gb_error *error) {
  double start = test_now();
  while (gb_group_check(gb_job_world(job), error) == GB_OK) {
    if (test_now() - start > 15)
      gb_test_fail(__FILE__, __LINE__, "the job did not fail");
    nap_ms(5);
  }
}

/* For SIGABRT, which a failed check of the fakes raises, where one must fail.
 */
static inline void ends(int signal) {
  (void)signal;
  _exit(3);
}

/* Ends this rank, which has looked at its numbers, as `code` says. Nobody
 * leaves while another still looks: the job fails with the first that goes, and
 * then streams let through what has not arrived. */
__attribute__((noreturn)) static inline void leave_together(int code) {
  volatile int *through = (volatile int *)gb_test_shared() + 1024;
  __atomic_add_fetch(through, 1, __ATOMIC_ACQ_REL);
  gb_test_await(through, gb_world(), 4000);
  _exit(code);
}

static inline void close_on_gpu(gb_job *job) {
  must_close(job);
  gpu->ops->stream_free(gpu, user);
  gpu->ops->close(gpu);
}

#endif
