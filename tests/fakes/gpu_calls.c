/* Every vendor function goes through fake_call: counted, refused where it must
 * not happen, failed where FAKE_GPU_FAIL says so. */
#include "fakes/gpu.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAULTS_MOST = 32 };

typedef struct fault {
  char function[64];
  uint64_t ordinal, seen;
  int code;
} fault;

static fake_gpu_counts all;
static __thread fake_gpu_counts here;
static __thread const char *call_name = "(none)";
static __thread const void *call_site;
static __thread const char *engine_thread;
static fault faults[FAULTS_MOST];
static int faults_count;
static pthread_once_t faults_once = PTHREAD_ONCE_INIT;

static void add(uint64_t *mine, uint64_t *everybodys) {
  ++*mine;
  __atomic_fetch_add(everybodys, 1, __ATOMIC_RELAXED);
}

void fake_counted_allocation(void) {
  add(&here.allocations, &all.allocations);
}
void fake_counted_blocking(void) {
  add(&here.blocking, &all.blocking);
}
void fake_counted_operation(void) {
  add(&here.operations, &all.operations);
}
void fake_counted_kernel(void) {
  add(&here.kernels, &all.kernels);
}
void fake_counted_check(void) {
  add(&here.checks, &all.checks);
}

void fake_counted_stream(const fake_stream *stream) {
  if (!stream->mine) add(&here.user_streams, &all.user_streams);
}

static uint64_t seen(const uint64_t *count) {
  return __atomic_load_n(count, __ATOMIC_RELAXED);
}

void fake_gpu_count(fake_gpu_counts *counts) {
  *counts = (fake_gpu_counts){.calls = seen(&all.calls),
                              .allocations = seen(&all.allocations),
                              .blocking = seen(&all.blocking),
                              .user_streams = seen(&all.user_streams),
                              .operations = seen(&all.operations),
                              .checks = seen(&all.checks),
                              .kernels = seen(&all.kernels)};
}

void fake_gpu_count_here(fake_gpu_counts *counts) {
  *counts = here;
}

int fake_gpu_deepest(void) {
  fake_lock();
  int deepest = gpu.deepest;
  fake_unlock();
  return deepest;
}

static void read_faults(void) {
  const char *text = getenv("FAKE_GPU_FAIL");
  while (text && *text && faults_count < FAULTS_MOST) {
    fault *f = &faults[faults_count];
    unsigned long long ordinal;
    int read = sscanf(text, "%63[^:]:%llu:%d", f->function, &ordinal, &f->code);
    if (read != 3 || !ordinal || !f->code) {
      fprintf(stderr, "fake gpu: FAKE_GPU_FAIL: cannot read \"%s\"\n", text);
      abort();
    }
    f->ordinal = ordinal;
    faults_count++;
    text = strchr(text, ',');
    if (text) text++;
  }
}

static int injected(const char *function) {
  pthread_once(&faults_once, read_faults);
  int code = 0;
  for (int i = 0; i < faults_count; i++) {
    fault *f = &faults[i];
    if (strcmp(f->function, function) != 0) continue;
    uint64_t nth = __atomic_add_fetch(&f->seen, 1, __ATOMIC_RELAXED);
    if (nth == f->ordinal) code = f->code;
  }
  return code;
}

int fake_call(const char *function, const void *caller) {
  call_name = function;
  call_site = caller;
  if (!__atomic_load_n(&gpu.ready, __ATOMIC_ACQUIRE)) fake_start();
  if (engine_thread)
    fake_check_failed(function, caller, NULL, NULL, "called inside a %s",
                      engine_thread);
  add(&here.calls, &all.calls);
  return injected(function);
}

unsigned int fake_code(fake_result result) {
  static const uint16_t codes[FAKE_RESULTS] = {[FAKE_OK] = 0,
                                               [FAKE_NOT_READY] = 600,
                                               [FAKE_BAD_VALUE] = 1,
                                               [FAKE_BAD_HANDLE] = 400,
                                               [FAKE_NO_MEMORY] = 2,
                                               [FAKE_NO_DEVICE] = 101,
                                               [FAKE_REGISTERED] = 712,
                                               [FAKE_NOT_REGISTERED] = 713,
                                               [FAKE_NOT_FOUND] = 500,
                                               [FAKE_NOT_SUPPORTED] = 801,
                                               [FAKE_CAPTURE_UNSUPPORTED] = 900,
                                               [FAKE_CAPTURE_INVALIDATED] = 901,
                                               [FAKE_CAPTURE_UNMATCHED] = 903,
                                               [FAKE_CAPTURE_UNJOINED] = 904,
                                               [FAKE_CAPTURE_ISOLATION] = 905,
                                               [FAKE_CAPTURE_IMPLICIT] = 906,
                                               [FAKE_CAPTURED_EVENT] = 907,
                                               [FAKE_CAPTURE_THREAD] = 908};
  return codes[result];
}

const char *fake_call_name(void) {
  return call_name;
}
const void *fake_call_site(void) {
  return call_site;
}

void fake_enter_engine(const char *where) {
  engine_thread = where;
}

static void print_site(const char *label, const char *what, const void *site) {
  Dl_info info;
  fprintf(stderr, "  %s %s", label, what);
  if (site && dladdr(site, &info) && info.dli_fname) {
    const char *file = strrchr(info.dli_fname, '/');
    fprintf(stderr, " called at %s+0x%lx", file ? file + 1 : info.dli_fname,
            (unsigned long)((uintptr_t)site - (uintptr_t)info.dli_fbase));
    if (info.dli_sname)
      fprintf(stderr, " (%s+0x%lx)", info.dli_sname,
              (unsigned long)((uintptr_t)site - (uintptr_t)info.dli_saddr));
  }
  fputc('\n', stderr);
}

void fake_check_failed(const char *what, const void *site, const char *before,
                       const void *before_site, const char *format, ...) {
  va_list args;
  va_start(args, format);
  flockfile(stderr);
  fprintf(stderr, "fake gpu: check failed: ");
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  print_site("here: ", what, site);
  if (before) print_site("other:", before, before_site);
  fprintf(stderr, "  FAKE_GPU_SEED=%llu FAKE_GPU_DELAY_US=%d\n",
          (unsigned long long)gpu.set.seed, gpu.set.delay_us);
  funlockfile(stderr);
  va_end(args);
  fflush(stderr);
  abort();
}
