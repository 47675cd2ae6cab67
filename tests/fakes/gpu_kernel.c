/* Kernels: C functions that tests register, found by name. */
#include "fakes/gpu.h"

#include <stdlib.h>
#include <string.h>

enum { KERNELS_MOST = 64, SEEN_MOST = 256 };

static const fake_kernel *kernels[KERNELS_MOST];
static int kernels_count;
static const char *seen[SEEN_MOST]; /* launched at least once */
static int seen_count;

typedef struct launched {
  const fake_kernel *kernel;
  fake_launch launch;
  void **params;
} launched;

void fake_gpu_kernel(const fake_kernel *kernel) {
  fake_lock();
  if (kernels_count == KERNELS_MOST) abort();
  kernels[kernels_count++] = kernel;
  fake_unlock();
}

const fake_kernel *fake_kernel_named(const char *name) {
  const fake_kernel *found = NULL;
  fake_lock();
  for (int i = kernels_count; i-- > 0 && !found;)
    if (strcmp(kernels[i]->name, name) == 0) found = kernels[i];
  fake_unlock();
  return found;
}

/* Lazy loading: code comes to the device when it is first launched, and the
 * device must be idle for it. */
void fake_kernel_first_locked(fake_stream *stream, const char *name) {
  if (!gpu.set.lazy || stream->capture) return;
  for (int i = 0; i < seen_count; i++)
    if (strcmp(seen[i], name) == 0) return;
  if (seen_count == SEEN_MOST) return;
  seen[seen_count++] = strdup(name);
  fake_counted_blocking();
  fake_device_drain_locked(stream->device);
}

static void *keep(const fake_kernel *kernel, const fake_launch *launch,
                  void *const *params) {
  launched *l = fake_new(sizeof *l);
  l->kernel = kernel;
  l->launch = *launch;
  l->params = fake_new((size_t)kernel->params_count * sizeof *l->params);
  for (int i = 0; i < kernel->params_count; i++) {
    l->params[i] = fake_new(kernel->params_bytes[i]);
    memcpy(l->params[i], params[i], kernel->params_bytes[i]);
  }
  l->launch.params = l->params;
  return l;
}

static void *keep_again(const void *arg) {
  const launched *l = arg;
  return keep(l->kernel, &l->launch, l->params);
}

static void run_kernel(void *arg) {
  launched *l = arg;
  l->kernel->run(&l->launch);
}

static void drop_kernel(void *arg) {
  launched *l = arg;
  for (int i = 0; i < l->kernel->params_count; i++) free(l->params[i]);
  free(l->params);
  free(l);
}

fake_result fake_kernel_launch(int device, void *handle,
                               const fake_kernel *kernel,
                               const fake_launch *launch, void **params) {
  if (!kernel || (kernel->params_count && !params)) return FAKE_BAD_VALUE;
  fake_counted_kernel();
  launched *l = keep(kernel, launch, params);
  fake_range ranges[8];
  int count = kernel->ranges ? kernel->ranges(&l->launch, ranges) : 0;
  fake_result result = FAKE_BAD_HANDLE;
  fake_lock();
  fake_stream *stream = fake_stream_at_locked(device, handle);
  if (stream) {
    fake_op *op = fake_op_new(FAKE_KERNEL);
    op->run = run_kernel;
    op->arg = l;
    op->drop = drop_kernel;
    op->copy_arg = keep_again;
    for (int i = 0; i < count; i++) {
      fake_memory_span_locked(ranges[i].begin, ranges[i].bytes);
      fake_op_range(op, ranges[i].begin, ranges[i].bytes,
                    ranges[i].writes != 0);
    }
    fake_kernel_first_locked(stream, kernel->name);
    result = fake_enqueue_locked(stream, op);
  } else {
    drop_kernel(l);
  }
  fake_unlock();
  return result;
}
