/* Graphs on fake GPUs, by the vendors' own functions. */
#ifndef GB_TESTS_GPU_GRAPH_H
#define GB_TESTS_GPU_GRAPH_H

#include <dlfcn.h>

#include "fakes/fakes.h"
#include "job/gpu.h"

static inline void *fake_function(const char *cuda, const char *hip) {
  char path[700];
  fake_path(is_amd() ? "hip/libamdhip64.so.6" : "cuda/libcuda.so.1", path,
            sizeof path);
  void *fake = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  void *at = fake ? dlsym(fake, is_amd() ? hip : cuda) : NULL;
  if (!at) gb_test_fail(__FILE__, __LINE__, "no %s", is_amd() ? hip : cuda);
  return at;
}

static inline fake_gpu_counts counts_now(void) {
  fake_gpu_counts counts;
  void (*get)(fake_gpu_counts *) = (void (*)(fake_gpu_counts *))fake_function(
      "fake_gpu_count", "fake_gpu_count");
  get(&counts);
  return counts;
}

/* As an application has it: the vendors' graph functions want one. */
static inline void make_current(void) {
  void *context = NULL;
  if (is_amd()) return;
  unsigned (*retain)(void **, int) = (unsigned (*)(void **, int))fake_function(
      "cuDevicePrimaryCtxRetain", NULL);
  unsigned (*set)(void *) =
      (unsigned (*)(void *))fake_function("cuCtxSetCurrent", NULL);
  GB_CHECK_INT(retain(&context, 0), 0);
  GB_CHECK_INT(set(context), 0);
}

static inline void begin_capture(void) {
  enum { GLOBAL = 0 }; /* the strictest mode */
  unsigned (*begin)(void *, unsigned) =
      (unsigned (*)(void *, unsigned))fake_function("cuStreamBeginCapture_v2",
                                                    "hipStreamBeginCapture");
  GB_CHECK_INT(begin(user, GLOBAL), 0);
}

/* The capture was not broken. Returns what can be replayed. */
static inline void *end_capture(void) {
  void *graph = NULL, *exec = NULL;
  unsigned (*end)(void *, void **) =
      (unsigned (*)(void *, void **))fake_function("cuStreamEndCapture",
                                                   "hipStreamEndCapture");
  GB_CHECK_INT(end(user, &graph), 0);
  GB_CHECK(graph);
  if (is_amd()) {
    unsigned (*make)(void **, void *, void *, void *, size_t) =
        (unsigned (*)(void **, void *, void *, void *, size_t))fake_function(
            NULL, "hipGraphInstantiate");
    GB_CHECK_INT(make(&exec, graph, NULL, NULL, 0), 0);
  } else {
    unsigned (*make)(void **, void *, unsigned long long) =
        (unsigned (*)(void **, void *, unsigned long long))fake_function(
            "cuGraphInstantiateWithFlags", NULL);
    GB_CHECK_INT(make(&exec, graph, 0), 0);
  }
  unsigned (*destroy)(void *) =
      (unsigned (*)(void *))fake_function("cuGraphDestroy", "hipGraphDestroy");
  GB_CHECK_INT(destroy(graph), 0);
  return exec;
}

static inline void replay(void *exec) {
  unsigned (*launch)(void *, void *) = (unsigned (*)(
      void *, void *))fake_function("cuGraphLaunch", "hipGraphLaunch");
  GB_CHECK_INT(launch(exec, user), 0);
}

static inline void destroy(void *exec) {
  unsigned (*call)(void *) = (unsigned (*)(void *))fake_function(
      "cuGraphExecDestroy", "hipGraphExecDestroy");
  GB_CHECK_INT(call(exec), 0);
}

#endif
