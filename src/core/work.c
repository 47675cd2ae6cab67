#include "core/work.h"

#include "base/memory.h"
#include "core/capture.h"
#include "core/group.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SLICE_MS = 100, SPARES_MAX = 64 };

gbi_works *gbi_works_new(size_t work_bytes) {
  gbi_works *works = gbi_calloc(1, sizeof *works);
  if (!works) return NULL;
  works->work_bytes = work_bytes;
  atomic_init(&works->holds, 1);
  pthread_mutex_init(&works->lock, NULL);
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&works->changed, &attributes);
  pthread_condattr_destroy(&attributes);
  return works;
}

void gbi_works_release(gbi_works *works) {
  if (atomic_fetch_sub(&works->holds, 1) != 1) return;
  while (works->spare) {
    gb_work *next = works->spare->next;
    free(works->spare);
    works->spare = next;
  }
  pthread_cond_destroy(&works->changed);
  pthread_mutex_destroy(&works->lock);
  free(works);
}

void gbi_works_wait(gbi_works *works, int most_ms) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += (long)most_ms * 1000000;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  pthread_cond_timedwait(&works->changed, &works->lock, &until);
}

void gbi_work_init(gb_work *work, gbi_works *works, const gbi_coll *coll,
                   const void *in, void *out, double factor) {
  memset(work, 0, offsetof(gb_work, error));
  gbi_error_clear(&work->error);
  atomic_init(&work->holds, 1);
  work->coll = *coll;
  work->in = in;
  work->out = out;
  work->factor = factor;
  work->seq = UINT64_MAX;
  work->source = -1;
  work->task = NULL;
  work->works = works;
  work->fork_count = gbi_fork_count();
  work->hook = NULL;
  memset(&work->turn, 0, sizeof work->turn);
  work->gpu = NULL;
  work->control = NULL;
  work->captured = work->replay = false;
  work->event = NULL;
  work->ops = NULL;
}

gb_work *gbi_works_take(gbi_works *works) {
  pthread_mutex_lock(&works->lock);
  gb_work *work = works->spare;
  if (work) {
    works->spare = work->next;
    works->spares--;
  }
  pthread_mutex_unlock(&works->lock);
  return work ? work : gbi_malloc(works->work_bytes);
}

gb_work *gbi_work_new(gbi_works *works, const gbi_coll *coll, const void *in,
                      void *out, double factor) {
  gb_work *work = gbi_works_take(works);
  uint64_t *counts = gbi_coll_copy_counts(coll);
  if (!work || (coll->counts_count && !counts)) {
    free(work);
    free(counts);
    return NULL;
  }
  gbi_work_init(work, works, coll, in, out, factor);
  if (counts) work->coll.counts = work->counts = counts;
  atomic_fetch_add(&works->holds, 1);
  atomic_store(&work->holds, 2);
  return work;
}

/* What it has failed with so far. */
static gb_status failure_of(gb_work *work, gb_error *error) {
  pthread_mutex_lock(&work->works->lock);
  gb_status status = work->error.status;
  if (status != GB_OK && error) *error = work->error;
  pthread_mutex_unlock(&work->works->lock);
  return status;
}

/* Gates that were opened because the job failed let garbage through, perhaps
 * before the work is told of it: whatever it was, it is not to be used. */
gb_status gbi_work_check_sound(gb_work *work, gb_error *error) {
  GBI_TRY(failure_of(work, error));
  if (!gbi_gpu_has_failed(work->gpu)) return GB_OK;
  gb_error cause;
  if (gbi_control_failed(work->control, &cause)) {
    if (error) *error = cause;
    return cause.status;
  }
  return gbi_fail(error, GB_ERR_ABORTED,
                  "the job failed while this call's result was not used yet: "
                  "it may be wrong");
}

/* Closing waits for the streams: it is done, unless they had failed. */
static gb_status end_of_closed(gb_work *work, gb_error *error) {
  GBI_TRY(failure_of(work, error));
  if (!gbi_gpu_has_failed(work->gpu)) return GB_OK;
  return gbi_fail(error, GB_ERR_ABORTED,
                  "the job had failed when it was closed: this call's result "
                  "may be wrong");
}

/* An edge between a capture and what is outside of it would break it. */
static gb_status check_side(const gb_work *work, gb_error *error) {
  bool captures;
  GBI_TRY(gbi_capture_wanted(work->gpu, gbi_gpu_stream(), &captures, error));
  if (captures == work->captured) return GB_OK;
  return gbi_fail(error, GB_ERR_STATE,
                  captures ? "the calling thread's stream captures, and this "
                             "call was made outside of the capture: wait for "
                             "it before the capture begins"
                           : "this call was captured into a graph: order what "
                             "follows behind the graph's replays");
}

/* The thread's stream waits, the host does not. */
static gb_status wait_on_stream(gb_work *work, gb_error *error) {
  if (!gbi_gpu_enter(work->gpu)) return end_of_closed(work, error);
  gbi_device *device = gbi_gpu_device(work->gpu);
  gb_status status = gbi_work_check_sound(work, error);
  if (status == GB_OK) status = check_side(work, error);
  if (status == GB_OK)
    status =
        device->ops->stream_wait(device, gbi_gpu_stream(), work->event, error);
  gbi_gpu_leave(work->gpu);
  return status;
}

static gb_status test_on_gpu(gb_work *work, int *done_p, gb_error *error) {
  *done_p = 1;
  if (!gbi_gpu_enter(work->gpu)) return end_of_closed(work, error);
  gbi_device *device = gbi_gpu_device(work->gpu);
  gb_status status = device->ops->event_query(device, work->event, error);
  bool busy = status == GB_ERR_BUSY;
  if (status == GB_OK || busy) status = gbi_work_check_sound(work, error);
  gbi_gpu_leave(work->gpu);
  if (status == GB_OK) *done_p = !busy;
  return status;
}

gb_status gbi_work_await(gb_work *work, uint64_t timeout_ms, const char *what,
                         const char *not_yet, const char *goes_on,
                         gb_error *error) {
  uint64_t deadline =
      timeout_ms ? gbi_deadline_after_ms(timeout_ms) : GBI_NEVER;
  gb_status status = GB_OK;
  pthread_mutex_lock(&work->works->lock);
  while (!work->done && status == GB_OK) {
    int left = gbi_deadline_left_ms(deadline, SLICE_MS);
    if (!left) {
      status = gbi_fail(error, GB_ERR_WAIT_TIMEOUT, "%s %s after %.4g s; it %s",
                        what, not_yet, (double)timeout_ms / 1000.0, goes_on);
      break;
    }
    gbi_works_wait(work->works, left);
    if (work->done || !work->hook) continue;
    pthread_mutex_unlock(&work->works->lock);
    if (work->hook(work->hook_arg))
      status = gbi_fail(error, GB_ERR_INTERRUPTED,
                        "the wait was interrupted; %s %s", what, goes_on);
    pthread_mutex_lock(&work->works->lock);
  }
  pthread_mutex_unlock(&work->works->lock);
  return status;
}

gb_status gbi_work_wait(gb_work *work, uint64_t timeout_ms, gb_error *error) {
  if (!work) return gbi_fail(error, GB_ERR_ARGUMENT, "the work is NULL");
  if (work->fork_count != gbi_fork_count()) return gbi_fail_forked(error);
  if (work->ops) return work->ops->wait(work, timeout_ms, error);
  if (work->event) return wait_on_stream(work, error);
  GBI_TRY(gbi_work_await(work, timeout_ms, "the work", "was not done",
                         "goes on", error));
  return failure_of(work, error);
}

gb_status gbi_work_test(gb_work *work, int *done_p, gb_error *error) {
  if (!work || !done_p)
    return gbi_fail(error, GB_ERR_ARGUMENT, "the work or done_p is NULL");
  if (work->fork_count != gbi_fork_count()) return gbi_fail_forked(error);
  if (work->ops) return work->ops->test(work, done_p, error);
  if (work->captured) {
    *done_p = 1;
    return GB_OK;
  }
  if (work->event) return test_on_gpu(work, done_p, error);
  pthread_mutex_lock(&work->works->lock);
  *done_p = work->done;
  gb_status status = GB_OK;
  if (work->done && work->error.status != GB_OK) {
    status = work->error.status;
    if (error) *error = work->error;
  }
  pthread_mutex_unlock(&work->works->lock);
  return status;
}

int64_t gbi_work_seq(const gb_work *work) {
  if (!work) return -1;
  pthread_mutex_lock(&work->works->lock);
  int64_t seq = work->seq == UINT64_MAX ? -1 : (int64_t)work->seq;
  pthread_mutex_unlock(&work->works->lock);
  return seq;
}

int gbi_work_source(const gb_work *work) {
  if (!work) return -1;
  pthread_mutex_lock(&work->works->lock);
  int source = work->done ? work->source : -1;
  pthread_mutex_unlock(&work->works->lock);
  return source;
}

void gbi_work_release(gb_work *work) {
  if (!work) return;
  if (atomic_fetch_sub(&work->holds, 1) != 1) return;
  gbi_works *works = work->works;
  if (work->ops) {
    work->ops->end(work);
  } else if (work->event) {
    gbi_gpu_give_event(work->gpu, work->event);
    gbi_gpu_release(work->gpu);
  }
  free(work->counts);
  pthread_mutex_lock(&works->lock);
  bool keep = works->spares < SPARES_MAX;
  if (keep) {
    work->next = works->spare;
    works->spare = work;
    works->spares++;
  }
  pthread_mutex_unlock(&works->lock);
  if (!keep) free(work);
  gbi_works_release(works);
}
