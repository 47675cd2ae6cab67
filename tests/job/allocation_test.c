/* Collectives cost no allocation once warm, sync and async ones. malloc and its
 * kin are counted, of every thread of the process but the control plane's:
 * heartbeats go by time and not by calls. (A message that comes before its
 * receive is kept in memory of its own.) */
#include "job/job.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS 0 /* the sanitizers have a malloc of their own */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define COUNTS 0
#endif
#endif
#ifndef COUNTS
#define COUNTS 1
#endif

#if COUNTS
static _Atomic long allocations;

static void count_one(void) {
  char name[16] = "";
  prctl(PR_GET_NAME, name);
  if (strcmp(name, "gb-control")) atomic_fetch_add(&allocations, 1);
}

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t align, size_t bytes);

void *malloc(size_t bytes) {
  count_one();
  return __libc_malloc(bytes);
}
void *calloc(size_t count, size_t bytes) {
  count_one();
  return __libc_calloc(count, bytes);
}
void *realloc(void *old, size_t bytes) {
  count_one();
  return __libc_realloc(old, bytes);
}
void *aligned_alloc(size_t align, size_t bytes) {
  count_one();
  return __libc_memalign(align, bytes);
}
static long counted(void) { return atomic_load(&allocations); }
#else
static long counted(void) {
  gb_test_skip("a sanitizer counts allocations itself");
}
#endif

enum { COUNT = 3000, CALLS = 40 };
static float in[4 * COUNT], out[4 * COUNT];

typedef void (*call_fn)(gb_job *job, gb_work **work_p);

static void all_reduce(gb_job *job, gb_work **work_p) {
  gb_buffer b = {in, COUNT, GB_FLOAT32};
  MUST(gb_all_reduce(gb_job_world(job), &b, GB_SUM, work_p, error));
}
static void broadcast(gb_job *job, gb_work **work_p) {
  gb_buffer b = {in, COUNT, GB_FLOAT32};
  MUST(gb_broadcast(gb_job_world(job), &b, 1, work_p, error));
}
static void reduce(gb_job *job, gb_work **work_p) {
  gb_buffer b = {in, COUNT, GB_FLOAT32};
  MUST(gb_reduce(gb_job_world(job), &b, GB_MAX, 2, work_p, error));
}
static void all_gather(gb_job *job, gb_work **work_p) {
  gb_buffer o = {out, 4 * COUNT, GB_FLOAT32}, i = {in, COUNT, GB_FLOAT32};
  MUST(gb_all_gather(gb_job_world(job), &o, &i, work_p, error));
}
static void reduce_scatter(gb_job *job, gb_work **work_p) {
  gb_buffer o = {out, COUNT, GB_FLOAT32}, i = {in, 4 * COUNT, GB_FLOAT32};
  MUST(gb_reduce_scatter(gb_job_world(job), &o, &i, GB_SUM, work_p, error));
}
static void barrier(gb_job *job, gb_work **work_p) {
  MUST(gb_barrier(gb_job_world(job), work_p, error));
}
static void repeat(gb_job *job, call_fn call, bool async) {
  for (int i = 0; i < CALLS; i++) {
    gb_work *work = NULL;
    call(job, async ? &work : NULL);
    if (!async) continue;
    MUST(gb_work_wait(work, 0, error));
    gb_work_release(work);
  }
}

/* A call may find its predecessor's handle still with the library, which tells
 * of the end before it lets go: with many at once there are enough for that. */
static void warm_up(gb_job *job, call_fn call, bool async) {
  gb_work *works[8];
  repeat(job, call, async);
  for (int i = 0; i < 8 && async; i++) call(job, &works[i]);
  for (int i = 0; i < 8 && async; i++) {
    MUST(gb_work_wait(works[i], 0, error));
    gb_work_release(works[i]);
  }
}

static void none_once_warm(const char *bridge) {
  static const struct {
    const char *name;
    call_fn call;
  } calls[] = {{"all_reduce", all_reduce}, {"broadcast", broadcast},
               {"reduce", reduce},         {"all_gather", all_gather},
               {"barrier", barrier},       {"reduce_scatter", reduce_scatter}};
  (void)counted(); /* skips at once where nothing can be seen */
  setenv("GPUBRIDGE_BRIDGE", bridge, 1);
  gb_job *job = must_open(30000, NULL);
  int place = 0;
  for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
    for (int async = 0; async < 2; async++) {
      warm_up(job, calls[i].call, async);
      meet(place++);
      long before = counted();
      repeat(job, calls[i].call, async);
      long made = counted() - before;
      meet(place++); /* before anybody warms the next */
      if (made)
        gb_test_fail(__FILE__, __LINE__, "%s %s: %ld allocations in %d calls",
                     async ? "async" : "sync", calls[i].name, made, CALLS);
    }
  must_close(job);
}
GB_TEST(allocation, none_over_shm, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  none_once_warm("shm");
}
GB_TEST(allocation, none_over_tcp, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  none_once_warm("tcp");
}
