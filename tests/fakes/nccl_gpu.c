/* The fake GPU library beside the fake NCCL. NCCL opens libcuda itself; RCCL is
 * linked to its HIP runtime. */
#include "fakes/nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
  fake_enqueue_fn enqueue;
  int (*enqueue_kept)(void *stream, const char *what, const fake_range *ranges,
                      int ranges_count, const fake_kept *kept, void *arg);
  int (*captures)(void *stream);
  void (*called_from)(const void *site);
  void *(*open)(const void *memory);
  int (*device)(int *device);
  int (*memory)(void **memory_p, size_t bytes); /* cuMemAlloc_v2, hipMalloc */
  int (*free_memory)(void *memory);
} gpu;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void *find(void *handle, const char *name) {
  return handle ? dlsym(handle, name) : NULL;
}

static void bind(void) {
#ifdef FAKE_RCCL
  static const char library[] = "libamdhip64.so.6";
  static const char *const names[] = {"hipGetDevice", "hipMalloc", "hipFree"};
#else
  static const char library[] = "libcuda.so.1";
  static const char *const names[] = {"cuCtxGetDevice", "cuMemAlloc_v2",
                                      "cuMemFree_v2"};
#endif
  void *handle = dlopen(library, RTLD_NOW);
  *(void **)&gpu.enqueue = find(handle, "fake_gpu_enqueue");
  *(void **)&gpu.enqueue_kept = find(handle, "fake_gpu_enqueue_kept");
  *(void **)&gpu.captures = find(handle, "fake_gpu_captures");
  *(void **)&gpu.called_from = find(handle, "fake_gpu_called_from");
  *(void **)&gpu.open = find(handle, "fake_gpu_open");
  *(void **)&gpu.device = find(handle, names[0]);
  *(void **)&gpu.memory = find(handle, names[1]);
  *(void **)&gpu.free_memory = find(handle, names[2]);
  if (gpu.enqueue && gpu.called_from && gpu.open) return;
  fprintf(stderr, "fake NCCL: no fake GPU beside it: %s is %s\n", library,
          handle ? "not a fake" : dlerror());
  abort();
}

static void *copy_plan(const void *arg) {
  const fake_plan *plan = arg;
  size_t bytes = sizeof *plan + sizeof plan->calls[0] * (size_t)plan->count;
  void *copy = malloc(bytes);
  if (!copy) abort();
  atomic_fetch_add(&plan->comm->graphs, 1);
  return memcpy(copy, plan, bytes);
}

static void drop_plan(void *arg) {
  fake_plan *plan = arg;
  struct ncclComm *comm = plan->comm;
  free(plan);
  atomic_fetch_sub(&comm->graphs, 1);
}

int fake_nccl_enqueue(fake_plan *plan, const char *what,
                      const fake_range *ranges, int ranges_count,
                      void (*run)(void *arg)) {
  pthread_once(&once, bind);
  gpu.called_from(plan->calls[0].site);
  if (!plan->kept)
    return gpu.enqueue(plan->stream, what, ranges, ranges_count, run, plan);
  fake_kept kept = {run, copy_plan, drop_plan};
  atomic_fetch_add(&plan->comm->graphs, 1);
  return gpu.enqueue_kept(plan->stream, what, ranges, ranges_count, &kept,
                          plan);
}

int fake_nccl_captures(void *stream) {
  pthread_once(&once, bind);
  return gpu.captures(stream);
}

void *fake_nccl_open(const void *memory) {
  pthread_once(&once, bind);
  return gpu.open(memory);
}

/* As for the real one, no current device is device 0. */
int fake_nccl_device(void) {
  pthread_once(&once, bind);
  int device = 0;
  return gpu.device && gpu.device(&device) == 0 ? device : 0;
}

int fake_nccl_memory(void **memory_p, size_t bytes) {
  pthread_once(&once, bind);
  return gpu.memory ? gpu.memory(memory_p, bytes) : -1;
}

int fake_nccl_free(void *memory) {
  pthread_once(&once, bind);
  return gpu.free_memory ? gpu.free_memory(memory) : -1;
}
