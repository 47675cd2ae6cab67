/* The fake GPU library beside the fake NCCL. NCCL opens libcuda itself; RCCL is
 * linked to its HIP runtime. */
#include "fakes/nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static struct {
  fake_enqueue_fn enqueue;
  void *(*open)(const void *memory);
  int (*device)(int *device);
  int (*memory)(void **memory_p, size_t bytes); /* cuMemAlloc_v2, hipMalloc */
  int (*free_memory)(void *memory);
} gpu;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void *find(void *handle, const char *name) {
  void *found = dlsym(RTLD_DEFAULT, name);
  return found || !handle ? found : dlsym(handle, name);
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
  *(void **)&gpu.open = find(handle, "fake_gpu_open");
  *(void **)&gpu.device = find(handle, names[0]);
  *(void **)&gpu.memory = find(handle, names[1]);
  *(void **)&gpu.free_memory = find(handle, names[2]);
  if (gpu.enqueue && gpu.open) return;
  fprintf(stderr, "fake NCCL: no fake GPU beside it: %s is %s\n", library,
          handle ? "not a fake" : dlerror());
  abort();
}

int fake_nccl_enqueue(void *stream, const char *what, const fake_range *ranges,
                      int ranges_count, void (*run)(void *arg), void *arg) {
  pthread_once(&once, bind);
  return gpu.enqueue(stream, what, ranges, ranges_count, run, arg);
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
