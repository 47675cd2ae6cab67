#include "core/gpu_watch.h"

#include "base/fault.h"
#include "base/memory.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

/* After so many looks at nothing the thread sleeps until a call wakes it, which
 * costs the caller. */
enum { LOOK_MS = 100, IDLE_LOOKS = 10, CALLS = 1024 };

typedef struct watched {
  uint64_t number, deadline_ns, timeout_ms;
  gbi_call call;
} watched;

struct gbi_gpu_watch {
  gbi_gpu_watch_params p;
  pthread_mutex_t lock; /* level 13 */
  pthread_cond_t changed;
  watched calls[CALLS]; /* a ring, oldest at `first` */
  uint32_t first, count;
  pthread_t thread;
  bool stopping, asleep;
};

/* With the lock held: drops what is over. The oldest that is late, or NULL. */
static const watched *look(gbi_gpu_watch *w) {
  uint64_t over = gbi_gpu_over(w->p.gpu);
  while (w->count && w->calls[w->first].number <= over) {
    w->first = (w->first + 1) % CALLS;
    w->count--;
  }
  const watched *oldest = &w->calls[w->first];
  return w->count && gbi_deadline_passed(oldest->deadline_ns) ? oldest : NULL;
}

static gb_status fail_late(const gbi_gpu_watch *w, const watched *late,
                           gb_error *error) {
  char call[160];
  gbi_call_text(&late->call, call, sizeof call);
  return gbi_fail_rank(
      error, GB_ERR_TIMEOUT, w->p.rank,
      "%s did not end on the GPU within its timeout of %.4g s: %s. A rank of "
      "its island has not made this call, or work before it on the stream "
      "takes longer",
      call, (double)late->timeout_ms / 1000.0, w->p.who);
}

/* Without the lock. OK: nothing is wrong. */
static gb_status judge(gbi_gpu_watch *w, const watched *late, gb_error *cause) {
  gb_error why;
  if (late) return fail_late(w, late, cause);
  if (gbi_gpu_check(w->p.gpu, &why) == GB_OK) return GB_OK;
  return gbi_fail_rank(cause, why.status, w->p.rank, "%s: %.1900s", w->p.who,
                       why.text);
}

/* With the lock held. */
static void nap(gbi_gpu_watch *w) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += LOOK_MS * 1000000L;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  pthread_cond_timedwait(&w->changed, &w->lock, &until);
}

/* With the lock held and nothing to look at. */
static void rest(gbi_gpu_watch *w, int *idle) {
  if (++*idle <= IDLE_LOOKS) {
    nap(w);
    return;
  }
  w->asleep = true;
  pthread_cond_wait(&w->changed, &w->lock);
  w->asleep = false;
}

static void *thread_main(void *arg) {
  gbi_gpu_watch *w = arg;
  gb_error cause, shared;
  prctl(PR_SET_NAME, "gb-gpu-watch");
  pthread_mutex_lock(&w->lock);
  for (int idle = 0; !w->stopping;) {
    const watched *late = look(w);
    if (!w->count) {
      rest(w, &idle);
      continue;
    }
    idle = 0;
    watched copy = w->calls[w->first];
    pthread_mutex_unlock(&w->lock);
    gb_status status = judge(w, late ? &copy : NULL, &cause);
    if (status != GB_OK) {
      (void)gbi_control_settle(w->p.control, &cause, &shared);
      return NULL; /* the job is over */
    }
    pthread_mutex_lock(&w->lock);
    if (!w->stopping) nap(w);
  }
  pthread_mutex_unlock(&w->lock);
  return NULL;
}

static int start(gbi_gpu_watch *w) {
  sigset_t all, old;
  if (GBI_FAULT("thread.start") == GBI_FAULT_FAIL) return EAGAIN;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int code = pthread_create(&w->thread, NULL, thread_main, w);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  return code;
}

static void free_watch(gbi_gpu_watch *w) {
  pthread_cond_destroy(&w->changed);
  pthread_mutex_destroy(&w->lock);
  free(w);
}

gb_status gbi_gpu_watch_open(const gbi_gpu_watch_params *params,
                             gbi_gpu_watch **watch_p, gb_error *error) {
  gbi_gpu_watch *w = gbi_calloc(1, sizeof *w);
  if (!w) return gbi_fail(error, GB_ERR_MEMORY, "no memory for a watch");
  w->p = *params;
  pthread_condattr_t attributes;
  pthread_mutex_init(&w->lock, NULL);
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&w->changed, &attributes);
  pthread_condattr_destroy(&attributes);
  int code = start(w);
  if (code) {
    free_watch(w);
    return gbi_fail(error, GB_ERR_SYSTEM,
                    "could not start the thread that watches calls on GPUs: %s",
                    strerror(code));
  }
  *watch_p = w;
  return GB_OK;
}

void gbi_gpu_watch_call(gbi_gpu_watch *w, uint64_t number, const gbi_call *call,
                        uint64_t timeout_ms) {
  pthread_mutex_lock(&w->lock);
  (void)look(w);
  /* In a full ring there are older ones, which would be late first. */
  if (w->count < CALLS) {
    w->calls[(w->first + w->count++) % CALLS] =
        (watched){number, gbi_deadline_after_ms(timeout_ms), timeout_ms, *call};
    if (w->asleep) pthread_cond_broadcast(&w->changed);
  }
  pthread_mutex_unlock(&w->lock);
}

void gbi_gpu_watch_close(gbi_gpu_watch *w) {
  if (!w) return;
  pthread_mutex_lock(&w->lock);
  w->stopping = true;
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->lock);
  pthread_join(w->thread, NULL);
  free_watch(w);
}
