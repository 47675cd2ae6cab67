/* fakes: libcuda, libamdhip64, libnccl and librccl without a GPU, as shared
 * objects with the vendors' names and ABI, found through LD_LIBRARY_PATH.
 *
 * This is what the fakes offer each other and the tests, beside the vendors'
 * functions. `gpu` (gpu.h, linked into libcuda and libamdhip64) models devices:
 * streams that are FIFOs run by threads over N hardware queues, memory that the
 * host must not touch, poison, vector clocks, delays. A fake NCCL is loaded
 * beside exactly one of the two and finds these by dlsym(RTLD_DEFAULT).
 *
 * Settings are environment variables, read when a fake is first called:
 *   FAKE_GPU_DEVICES   devices of this process, 1
 *   FAKE_GPU_QUEUES    hardware queues of a device, 4: streams share them, each
 *                      queue runs its operations one after another
 *   FAKE_GPU_SEED      of delays; 0 (default): none. Printed when a check fails
 *   FAKE_GPU_DELAY_US  the longest delay before an operation, 200
 *   FAKE_GPU_CHECKS    0: no poison, no clocks (for benchmarks); 1
 *   FAKE_GPU_UUID      UUID of device 0 (others count up): equal in two
 *                      processes, and they share one GPU
 *   FAKE_GPU_MIG       UUID of the slice of device 0 that this process sees, as
 *                      MIG has them: FAKE_GPU_UUID and the PCI address are then
 *                      the whole card's. CUDA only
 *   FAKE_GPU_PINNED_MOST  bytes that can be pinned; 0, no bound
 *   FAKE_GPU_FAIL      "function:ordinal:code[,...]": the n-th call of a vendor
 *                      function fails with that code
 *   FAKE_GPU_PROFILE   words: "lazy" (a kernel's first launch waits for the
 *                      device), "blocking" (a launch waits for the operation),
 *                      "alloc-sync" (allocating waits for the device),
 *                      "rocm-ring" (an operation beyond 64 outstanding ones
 *                      on a stream makes the submitter wait; default in hip,
 *                      "no-ring" to have none),
 *                      "rocm-lock" (stream synchronise holds the stream's
 *                      lock), "graph-memops" (hip: of ROCm 7.3, which captures
 *                      memory operations)
 *   FAKE_RTC_FAIL      what the run-time compilers say instead of compiling
 *   FAKE_RTC_VERSION   what they say that they are, 13.0
 *   FAKE_NCCL_VERSION  what ncclGetVersion says, 22809
 *   FAKE_NCCL_FAIL     "function:ordinal:result": as above; "init:...": the
 *                      n-th opening fails in its thread; "async:ordinal:
 *                      result": the n-th operation fails asynchronously
 *
 * Once a wait-value of 64 bits saw 2^62 or more, the clocks are no longer
 * checked in that process, and copies move nothing: somebody gave up and opened
 * all gates.
 *
 * A failed check prints what, both call sites (the vendor functions' callers)
 * and the seed to stderr, and aborts the process: a test sees a dead rank. */
#ifndef FAKES_FAKES_H
#define FAKES_FAKES_H

#include <stddef.h>
#include <stdint.h>

/* A range that an operation reads or writes. */
typedef struct fake_range {
  const void *begin; /* device or pinned memory */
  size_t bytes;
  int writes;
} fake_range;

/* Enqueues `run(arg)` on a stream, as a kernel: it runs on a queue's thread,
 * when its turn comes, and may take long; `stop` in it is set when the context
 * or the communicator is torn down. ranges: checked (clocks) and poisoned (what
 * is written and not read: in place, give both). `what` lives on. Inside,
 * device memory is readable through fake_gpu_open. Returns 0. */
typedef int (*fake_enqueue_fn)(void *stream, const char *what,
                               const fake_range *ranges, int ranges_count,
                               void (*run)(void *arg), void *arg);
int fake_gpu_enqueue(void *stream, const char *what, const fake_range *ranges,
                     int ranges_count, void (*run)(void *arg), void *arg);
/* The same for what may be captured: each replay runs a copy of its own, and
 * every copy is freed. */
typedef struct fake_kept {
  void (*run)(void *arg);
  void *(*copy)(const void *arg);
  void (*drop)(void *arg);
} fake_kept;
int fake_gpu_enqueue_kept(void *stream, const char *what,
                          const fake_range *ranges, int ranges_count,
                          const fake_kept *kept, void *arg);
/* Whether what is enqueued on the stream goes into a graph. */
int fake_gpu_captures(void *stream);
/* Memory behind a device or pinned address, for code that runs as a kernel. */
void *fake_gpu_open(const void *device_memory);

/* The application's call that the next fake_gpu_enqueue of this thread serves:
 * what a failed check names as the call site. Optional. */
void fake_gpu_called_from(const void *site);

/* Streams that this process makes from now on are the library's (1) or, as at
 * the start, a user's (0). The default stream is always a user's. */
void fake_gpu_mine(int on);

/* What was called so far in this process, for tests that count. */
typedef struct fake_gpu_counts {
  uint64_t calls;        /* of vendor functions, all threads */
  uint64_t allocations;  /* device, pinned, registered */
  uint64_t blocking;     /* calls that wait for device work, if there is any */
  uint64_t user_streams; /* calls on streams that are not `mine` */
  uint64_t operations;   /* enqueued */
  uint64_t checks;       /* ranges looked at by the clocks */
  uint64_t kernels;      /* launched */
} fake_gpu_counts;
void fake_gpu_count(fake_gpu_counts *counts);
/* The same for the calling thread only. */
void fake_gpu_count_here(fake_gpu_counts *counts);
/* The most operations that were outstanding on any stream at a time. */
int fake_gpu_deepest(void);

/* Of the fake compilers: programs compiled in this process. */
uint64_t fake_rtc_compiled(void);

#endif
