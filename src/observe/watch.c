#include "observe/watch.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Thread_local bool inside_callback;

/* Which thread runs a call is noted by its number, which costs no system call
 * after the first; the name is looked up when somebody asks. */
static _Thread_local int thread_number;
static void forget_thread(void) { thread_number = 0; }
__attribute__((constructor)) static void watch_forks(void) {
  pthread_atfork(NULL, NULL, forget_thread);
}

static int this_thread(void) {
  if (!thread_number) thread_number = (int)syscall(SYS_gettid);
  return thread_number;
}

/* "" when it has ended. */
static void thread_name(int number, char name[16]) {
  char path[64];
  snprintf(path, sizeof path, "/proc/self/task/%d/comm", number);
  name[0] = 0;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  ssize_t n = read(fd, name, 15);
  close(fd);
  name[n > 0 ? n : 0] = 0;
  name[strcspn(name, "\n")] = 0;
}

bool gbi_watch_inside_callback(void) { return inside_callback; }

void gbi_watch_init(gbi_watch *watch) {
  memset(watch, 0, sizeof *watch);
  pthread_mutex_init(&watch->lock, NULL);
}

void gbi_watch_fini(gbi_watch *watch) { pthread_mutex_destroy(&watch->lock); }

int gbi_watch_begin(gbi_watch *watch, const gb_record *record) {
  int slot = -1;
  pthread_mutex_lock(&watch->lock);
  for (int i = 0; i < GBI_WATCH_CALLS && slot < 0; i++)
    if (!watch->calls[i].used) slot = i;
  if (slot >= 0) {
    gbi_watch_call *call = &watch->calls[slot];
    call->used = true;
    call->record = *record;
    call->record.size = sizeof *record;
    call->record.phases_count = 0;
    call->record.start_ns = gbi_now_ns();
    call->record.end_ns = 0;
    call->thread = this_thread();
  }
  pthread_mutex_unlock(&watch->lock);
  return slot;
}

void gbi_watch_phase(gbi_watch *watch, int slot, const char *name, int steps) {
  if (slot < 0) return;
  gbi_watch_call *call = &watch->calls[slot];
  uint64_t now = gbi_now_ns();
  pthread_mutex_lock(&watch->lock);
  int i = call->record.phases_count;
  if (i < GB_PHASES_MAX) {
    call->record.phases[i] = (gb_phase){name, now, 0};
    call->open[i] = steps;
    call->record.phases_count++;
  }
  pthread_mutex_unlock(&watch->lock);
}

void gbi_watch_phase_step(gbi_watch *watch, int slot, const char *name) {
  if (slot < 0) return;
  gbi_watch_call *call = &watch->calls[slot];
  /* Only the thread that runs the call writes its phases: looking needs no
   * lock, changing does. */
  for (int i = 0; i < call->record.phases_count; i++) {
    if (call->record.phases[i].name != name) continue;
    pthread_mutex_lock(&watch->lock);
    if (--call->open[i] == 0) call->record.phases[i].end_ns = gbi_now_ns();
    pthread_mutex_unlock(&watch->lock);
    return;
  }
}

/* The newest phase that is still open, or -1. */
static int open_phase(const gbi_watch_call *call) {
  for (int i = call->record.phases_count - 1; i >= 0; i--)
    if (!call->record.phases[i].end_ns) return i;
  return -1;
}

const char *gbi_watch_open_phase(gbi_watch *watch, int slot) {
  if (slot < 0) return "";
  pthread_mutex_lock(&watch->lock);
  int i = open_phase(&watch->calls[slot]);
  const char *name = i < 0 ? "" : watch->calls[slot].record.phases[i].name;
  pthread_mutex_unlock(&watch->lock);
  return name;
}

static void deliver(gbi_watch *watch, const gb_record *record) {
  for (int i = 0;; i++) {
    pthread_mutex_lock(&watch->lock);
    bool have = i < atomic_load(&watch->observers_count);
    gb_observer_fn fn = have ? watch->observers[i].fn : NULL;
    void *arg = have ? watch->observers[i].arg : NULL;
    pthread_mutex_unlock(&watch->lock);
    if (!have) return;
    inside_callback = true;
    int detach = fn(arg, record);
    inside_callback = false;
    if (!detach) continue;
    gbi_watch_remove(watch, fn, arg);
    i--;
  }
}

void gbi_watch_end(gbi_watch *watch, int slot, bool success) {
  if (slot < 0) return;
  gb_record record;
  bool watched = success && atomic_load(&watch->observers_count);
  pthread_mutex_lock(&watch->lock);
  if (watched) record = watch->calls[slot].record;
  watch->calls[slot].used = false;
  pthread_mutex_unlock(&watch->lock);
  if (!watched) return;
  record.end_ns = gbi_now_ns();
  deliver(watch, &record);
}

gb_status gbi_watch_add(gbi_watch *watch, gb_observer_fn fn, void *arg,
                        gb_error *error) {
  gb_status status = GB_OK;
  pthread_mutex_lock(&watch->lock);
  int count = atomic_load(&watch->observers_count);
  bool known = false;
  for (int i = 0; i < count; i++)
    known |= watch->observers[i].fn == fn && watch->observers[i].arg == arg;
  if (!known && count == GBI_OBSERVERS_MAX) {
    status = gbi_fail(error, GB_ERR_BUSY, "at most %d observers can be added",
                      GBI_OBSERVERS_MAX);
  } else if (!known) {
    watch->observers[count].fn = fn;
    watch->observers[count].arg = arg;
    atomic_store(&watch->observers_count, count + 1);
  }
  pthread_mutex_unlock(&watch->lock);
  return status;
}

void gbi_watch_remove(gbi_watch *watch, gb_observer_fn fn, void *arg) {
  pthread_mutex_lock(&watch->lock);
  int count = atomic_load(&watch->observers_count), kept = 0;
  for (int i = 0; i < count; i++)
    if (watch->observers[i].fn != fn || watch->observers[i].arg != arg)
      watch->observers[kept++] = watch->observers[i];
  atomic_store(&watch->observers_count, kept);
  pthread_mutex_unlock(&watch->lock);
}

static void show(const gbi_watch_call *call, gb_in_flight *out, uint64_t now) {
  memset(out, 0, sizeof *out);
  out->size = sizeof *out;
  out->seq = call->record.seq;
  out->op = call->record.op;
  out->policy = call->record.policy;
  int open = open_phase(call);
  out->phase = open < 0 ? NULL : call->record.phases[open].name;
  for (int i = 0; i < call->record.phases_count; i++)
    if (call->record.phases[i].end_ns)
      out->phases_done[out->phases_done_count++] = call->record.phases[i].name;
  out->age_ns = now - call->record.start_ns;
  out->group = call->record.group;
}

int gbi_watch_in_flight(gbi_watch *watch, gb_in_flight *list, int max) {
  int count = 0;
  pthread_mutex_lock(&watch->lock);
  uint64_t now = gbi_now_ns();
  for (int i = 0; i < GBI_WATCH_CALLS && count < max; i++) {
    if (!watch->calls[i].used) continue;
    gb_in_flight entry;
    show(&watch->calls[i], &entry, now);
    thread_name(watch->calls[i].thread, entry.thread);
    int at = count++;
    for (; at > 0 && list[at - 1].seq > entry.seq; at--)
      list[at] = list[at - 1];
    list[at] = entry;
  }
  pthread_mutex_unlock(&watch->lock);
  return count;
}
