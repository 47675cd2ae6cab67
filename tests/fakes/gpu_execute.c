/* What an operation does when its turn has come. */
#include "fakes/gpu.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Host functions of all streams run on one thread, one after another. */
typedef struct host_job {
  struct host_job *next;
  fake_op *op;
  bool done;
} host_job;

static host_job *jobs, **jobs_end = &jobs;
static pthread_cond_t jobs_more = PTHREAD_COND_INITIALIZER;
static bool host_started;

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Yields first, then sleeps an eighth of the time waited so far. */
static void nap(int tries, uint64_t since_ns) {
  if (tries < 20) {
    sched_yield();
    return;
  }
  uint64_t ns = (now_ns() - since_ns) / 8;
  if (ns < 10000) ns = 10000;
  if (ns > 500000) ns = 500000;
  struct timespec time = {0, (long)ns};
  nanosleep(&time, NULL);
}

static uint64_t load(const fake_flag_op *flag) {
  if (flag->bytes == 4)
    return __atomic_load_n((const uint32_t *)flag->word, __ATOMIC_ACQUIRE);
  return __atomic_load_n((const uint64_t *)flag->word, __ATOMIC_ACQUIRE);
}

static void store(const fake_flag_op *flag) {
  if (flag->bytes == 4)
    __atomic_store_n((uint32_t *)flag->word, (uint32_t)flag->value,
                     __ATOMIC_RELEASE);
  else
    __atomic_store_n((uint64_t *)flag->word, flag->value, __ATOMIC_RELEASE);
}

static bool reached(const fake_flag_op *flag, uint64_t seen) {
  uint64_t distance = seen - flag->value;
  if (!flag->cyclic) return (seen & flag->mask) >= flag->value;
  return flag->bytes == 4 ? (int32_t)(uint32_t)distance >= 0
                          : (int64_t)distance >= 0;
}

bool fake_flag_satisfied(const fake_flag_op *flag, uint64_t seen) {
  uint64_t all = flag->bytes == 4 ? 0xffffffffu : ~(uint64_t)0;
  uint64_t masked = seen & flag->mask;
  switch (flag->compare) {
    case FAKE_GEQ: return reached(flag, seen);
    case FAKE_EQ: return masked == (flag->value & flag->mask);
    case FAKE_AND: return (masked & flag->value) != 0;
    case FAKE_NOR: return (~(masked | flag->value) & all) != 0;
  }
  return false;
}

static void wait_value(fake_op *op) {
  uint64_t since_ns = now_ns(), seen;
  for (int tries = 0;; tries++) {
    seen = load(&op->flag);
    if (fake_flag_satisfied(&op->flag, seen)) break;
    if (fake_stopping()) return;
    nap(tries, since_ns);
  }
  fake_lock();
  fake_flag_passed_locked(op, seen);
  fake_unlock();
}

static void write_value(fake_op *op) {
  fake_lock();
  fake_flag_writes_locked(op);
  store(&op->flag);
  fake_unlock();
}

static void record(fake_op *op) {
  fake_lock();
  op->mark->clock = fake_clock_copy(op->stream->clock);
  op->mark->stream = op->stream;
  op->mark->seq = op->seq;
  op->mark->done = true;
  op->event->at_ms = (double)now_ns() / 1e6;
  fake_unlock();
}

static void fill(const fake_op *op) {
  if (op->fill_bytes == 1) {
    memset(op->to, (int)(op->fill & 0xff), op->bytes);
    return;
  }
  for (size_t i = 0; i < op->bytes; i += (size_t)op->fill_bytes)
    memcpy((char *)op->to + i, &op->fill, (size_t)op->fill_bytes);
}

static void *host_main(void *arg) {
  fake_enter_engine("host function");
  fake_lock();
  while (!fake_stopping()) {
    host_job *job = jobs;
    if (!job) {
      pthread_cond_wait(&jobs_more, &gpu.lock);
      continue;
    }
    jobs = job->next;
    if (!jobs) jobs_end = &jobs;
    fake_unlock();
    job->op->run(job->op->arg);
    fake_lock();
    job->done = true;
    fake_wake_locked();
  }
  fake_unlock();
  return NULL;
}

static void start_host_thread(void) {
  if (host_started) return;
  host_started = true;
  pthread_t thread;
  if (pthread_create(&thread, NULL, host_main, NULL)) abort();
  pthread_detach(thread);
}

static void host_function(fake_op *op) {
  host_job *job = fake_new(sizeof *job); /* outlives us when we are stopped */
  job->op = op;
  fake_lock();
  *jobs_end = job;
  jobs_end = &job->next;
  start_host_thread();
  pthread_cond_signal(&jobs_more);
  while (!job->done)
    if (!fake_sleep_locked()) break;
  bool done = job->done;
  fake_unlock();
  if (done) free(job);
}

void fake_execute(fake_op *op) {
  switch (op->kind) {
    case FAKE_COPY: memmove(op->to, op->from, op->bytes); break;
    case FAKE_FILL: fill(op); break;
    case FAKE_WAIT_VALUE: wait_value(op); break;
    case FAKE_WRITE_VALUE: write_value(op); break;
    case FAKE_RECORD: record(op); break;
    case FAKE_HOST: host_function(op); break;
    case FAKE_KERNEL: op->run(op->arg); break;
    case FAKE_WAIT_EVENT:
    case FAKE_NOTHING: break;
  }
}
