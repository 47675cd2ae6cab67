#include "core/gpu_p2p.h"

#include "base/fault.h"
#include "base/log.h"
#include "base/memory.h"
#include "core/capture.h"
#include "core/gpu_slots.h"
#include "core/p2p.h"
#include "core/work.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

enum { SLICE_MS = 100, OWN_MESSAGES = 2 };

/* One message. The slot is its until its batch ends. */
typedef struct message {
  gbi_p2p_op op;
  gbi_p2p_call call; /* of op alone */
  struct batch *batch;
  gbi_slot *slot;
  void *memory;         /* on the GPU */
  struct message *next; /* in the list of sends on their way down */
  int shown;            /* see gbi_job_p2p_show */
  bool moved;           /* the copy up is enqueued; under the issuing lock */
  bool started;         /* the host has a part in it that will end */
  bool done;            /* it has ended; under the works' lock */
} message;

/* One call. `work` is first: releasing it frees all. Held by the caller, and
 * once for each message that was started. */
typedef struct batch {
  gb_work work;
  gbi_gpu_p2p *m;
  struct gbi_job_p2p *messages_of; /* the job's */
  gbi_event began;
  message *messages;
  int count, left;
  bool from_any; /* some receive's sender is not known before it came */
  message own[OWN_MESSAGES];
} batch;

struct gbi_gpu_p2p {
  gbi_gpu *gpu;
  gbi_device *device;
  const gbi_device_ops *ops;
  gbi_p2p *p2p;
  gbi_control *control;
  int rank;
  gbi_works *works;
  gbi_slots *slots;
  gbi_stream out, in;
  pthread_mutex_t lock; /* level 12: the rest */
  pthread_cond_t changed;
  message *first, *last; /* sends that are copied down */
  int pending;           /* messages of which the host has a part left */
  pthread_t thread;
  bool thread_runs, stopping, failed;
};

/* ---- the end of a message ---- */

static void finish(message *x, const gb_error *failure) {
  batch *b = x->batch;
  gbi_gpu_p2p *m = b->m;
  gb_work *work = &b->work;
  const gbi_p2p_op *op = &x->op;
  gbi_job_p2p_unshow(b->messages_of, x->shown, !failure);
  pthread_mutex_lock(&work->works->lock);
  if (failure && work->error.status == GB_OK) work->error = *failure;
  if (!failure && b->count == 1 && !op->is_send)
    for (int r = 0; r < op->members_count; r++)
      if (op->members[r] == op->source) work->source = r;
  x->done = true;
  if (--b->left == 0) work->done = true;
  pthread_cond_broadcast(&work->works->changed);
  pthread_mutex_unlock(&work->works->lock);
  /* Of a failed one the job's failure opens the gate, once all can see why. */
  if (!failure && !op->is_send) gbi_slot_arrive(x->slot);
  gbi_work_release(work);
  pthread_mutex_lock(&m->lock); /* closing waits for what is pending */
  m->pending--;
  pthread_cond_broadcast(&m->changed);
  pthread_mutex_unlock(&m->lock);
}

static void on_done(gbi_p2p_call *call) {
  message *x = call->arg;
  gb_error why;
  bool good = atomic_load(&call->status) == GB_OK;
  if (!good) (void)gbi_p2p_error(x->batch->m->p2p, &why);
  finish(x, good ? NULL : &why);
}

/* ---- gb-gpu-p2p: sends whose data came down ---- */

/* Nobody is there to be told by a return value. */
static void start_send(gbi_gpu_p2p *m, message *x) {
  gb_error why, cause;
  if (gbi_p2p_start(m->p2p, &x->call, &why) == GB_OK) return;
  if (why.status != GB_ERR_STATE && why.status != GB_ERR_ABORTED) {
    gbi_fail_rank(&cause, why.status, m->rank, "rank %d: %.1900s", m->rank,
                  why.text);
    (void)gbi_control_settle(m->control, &cause, &why);
  }
  finish(x, &why);
}

/* In the order in which they were made, which is the OUT lane's. A library that
 * has failed lets its streams go on with what means nothing. */
static message *take_ready(gbi_gpu_p2p *m) {
  message *x = m->first;
  const gbi_gates *gates = gbi_gpu_gates(m->gpu);
  bool ready = gbi_slot_is_ready(x->slot) && gates->sound(gates->arg);
  if (!ready && !m->failed && GBI_FAULT("gpu.send.gate") != GBI_FAULT_FAIL)
    return NULL;
  m->first = x->next;
  if (!m->first) m->last = NULL;
  return x;
}

static void *thread_main(void *arg) {
  gbi_gpu_p2p *m = arg;
  uint64_t since = 0;
  prctl(PR_SET_NAME, "gb-gpu-p2p");
  pthread_mutex_lock(&m->lock);
  while (!m->stopping || m->first) {
    if (!m->first) {
      pthread_cond_wait(&m->changed, &m->lock);
      since = 0;
      continue;
    }
    message *x = take_ready(m);
    pthread_mutex_unlock(&m->lock);
    if (x) {
      start_send(m, x);
      since = 0;
    } else {
      /* A device rings no bell: an eighth of the time waited, 20 to 500 us. */
      uint64_t now = gbi_now_ns();
      if (!since) since = now;
      uint64_t ns = GBI_MIN(GBI_MAX((now - since) / 8, 20000), 500000);
      nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
    }
    pthread_mutex_lock(&m->lock);
  }
  pthread_mutex_unlock(&m->lock);
  return NULL;
}

static gb_status need_thread(gbi_gpu_p2p *m, gb_error *error) {
  if (m->thread_runs) return GB_OK;
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int code = GBI_FAULT("thread.start") == GBI_FAULT_FAIL
                 ? EAGAIN
                 : pthread_create(&m->thread, NULL, thread_main, m);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (code)
    return gbi_fail(error, GB_ERR_SYSTEM,
                    "could not start the thread for messages from GPUs: %s",
                    strerror(code));
  m->thread_runs = true;
  return GB_OK;
}

/* ---- opening ---- */

static void free_streams(gbi_gpu_p2p *m) {
  if (m->out) m->ops->stream_free(m->device, m->out);
  if (m->in) m->ops->stream_free(m->device, m->in);
}

void gbi_gpu_p2p_free(gbi_gpu_p2p *m) {
  if (!m) return;
  if (m->works) gbi_works_release(m->works);
  gbi_slots_free(m->slots);
  pthread_cond_destroy(&m->changed);
  pthread_mutex_destroy(&m->lock);
  free(m);
}

static gb_status make_parts(gbi_gpu_p2p *m, gb_error *error) {
  m->works = gbi_works_new(sizeof(batch));
  m->slots = gbi_slots_new(m->device);
  if (!m->works || !m->slots)
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for messages");
  GBI_TRY(m->ops->stream_new(m->device, &m->out, error));
  return m->ops->stream_new(m->device, &m->in, error);
}

/* With the issuing lock held. NULL: *error says why. */
static gbi_gpu_p2p *need(const gbi_group_params *g, gb_error *error) {
  gbi_gpu_p2p *m = gbi_gpu_messages_of(g->gpu);
  if (m) return m;
  m = gbi_calloc(1, sizeof *m);
  if (!m) {
    gbi_fail(error, GB_ERR_MEMORY, "no memory for messages");
    return NULL;
  }
  m->gpu = g->gpu;
  m->device = gbi_gpu_device(g->gpu);
  m->ops = m->device->ops;
  m->p2p = gbi_job_p2p_layer(g->p2p);
  m->control = g->control;
  m->rank = g->members[g->rank];
  pthread_mutex_init(&m->lock, NULL);
  pthread_cond_init(&m->changed, NULL);
  gb_status status = make_parts(m, error);
  if (status == GB_OK) status = need_thread(m, error);
  if (status == GB_OK) {
    gbi_gpu_set_messages(g->gpu, m);
    return m;
  }
  free_streams(m);
  gbi_gpu_p2p_free(m);
  return NULL;
}

/* ---- failing and closing ---- */

void gbi_gpu_p2p_fail(gbi_gpu_p2p *m) {
  if (!m) return;
  pthread_mutex_lock(&m->lock);
  m->failed = true;
  pthread_cond_broadcast(&m->changed);
  pthread_mutex_unlock(&m->lock);
  gbi_slots_open(m->slots);
}

/* With the lock held. */
static void wait_changed(gbi_gpu_p2p *m) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += SLICE_MS / 10 * 1000000L;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  pthread_cond_timedwait(&m->changed, &m->lock, &until);
}

void gbi_gpu_p2p_flush(gbi_gpu_p2p *m, uint64_t deadline_ns) {
  if (!m) return;
  pthread_mutex_lock(&m->lock);
  while (m->first && !gbi_deadline_passed(deadline_ns)) wait_changed(m);
  pthread_mutex_unlock(&m->lock);
}

bool gbi_gpu_p2p_close(gbi_gpu_p2p *m, uint64_t deadline_ns) {
  if (!m) return true;
  pthread_mutex_lock(&m->lock);
  while (m->pending && !gbi_deadline_passed(deadline_ns)) wait_changed(m);
  bool over = !m->pending;
  m->stopping = m->failed = true;
  pthread_cond_broadcast(&m->changed);
  pthread_mutex_unlock(&m->lock);
  if (m->thread_runs) pthread_join(m->thread, NULL);
  /* A receive that nothing came for: its caller's stream waits for it. */
  gbi_slots_open(m->slots);
  if (!over || !gbi_slots_close(m->slots, deadline_ns)) return false;
  free_streams(m);
  return true;
}

/* ---- the handle ---- */

static void end_batch(gb_work *work) {
  batch *b = (batch *)work;
  for (int i = 0; i < b->count; i++) {
    message *x = &b->messages[i];
    if (x->slot) gbi_slots_give(x->slot, x->moved);
  }
  if (b->began) gbi_gpu_give_event(work->gpu, b->began);
  if (b->messages != b->own) free(b->messages);
  gbi_gpu_release(work->gpu);
}

static gb_status how_it_ended(batch *b, gb_error *error) {
  pthread_mutex_lock(&b->work.works->lock);
  gb_status status = b->work.error.status;
  if (status != GB_OK && error) *error = b->work.error;
  bool done = b->work.done;
  pthread_mutex_unlock(&b->work.works->lock);
  for (int i = 0; i < b->count && status == GB_OK; i++)
    if (!done || (!b->messages[i].op.is_send && !b->messages[i].moved))
      status = gbi_fail(error, GB_ERR_STATE,
                        "the group was closed before this message was waited "
                        "for: its data are not there");
  return status;
}

static bool is_done(const message *x) {
  gbi_works *works = x->batch->work.works;
  pthread_mutex_lock(&works->lock);
  bool done = x->done;
  pthread_mutex_unlock(&works->lock);
  return done;
}

/* The copy up, behind what was on the caller's stream when it posted the
 * receive, and behind the message. */
static gb_status move_up(batch *b, message *x, gbi_stream stream,
                         gb_error *error) {
  gbi_gpu_p2p *m = b->m;
  gbi_slot *slot = x->slot;
  if (GBI_FAULT("gpu.recv.begin") != GBI_FAULT_FAIL)
    GBI_TRY(m->ops->stream_wait(m->device, stream, b->began, error));
  if (!gbi_slot_has_arrived(slot) &&
      GBI_FAULT("gpu.recv.gate") != GBI_FAULT_FAIL)
    GBI_TRY(m->ops->wait_flag(m->device, slot->arrived_device, slot->turn,
                              stream, error));
  GBI_TRY(m->ops->copy_in(m->device, x->memory, slot->memory, x->op.bytes,
                          stream, error));
  x->moved = true;
  return m->ops->event_record(m->device, slot->moved, stream, error);
}

static gb_status wait_for(batch *b, message *x, gbi_stream stream,
                          gb_error *error) {
  gbi_gpu_p2p *m = b->m;
  if (!x->op.is_send && !x->moved) return move_up(b, x, stream, error);
  if (GBI_FAULT("gpu.send.end") == GBI_FAULT_FAIL) return GB_OK;
  return m->ops->stream_wait(m->device, stream, x->slot->moved, error);
}

/* Each replay would need another message. */
static gb_status check_capture(gbi_gpu *gpu, gb_error *error) {
  bool captures;
  GBI_TRY(gbi_capture_wanted(gpu, gbi_gpu_stream(), &captures, error));
  if (!captures) return GB_OK;
  return gbi_capture_refuse("a message between two ranks",
                            "it passes through the host. Make it, and wait for "
                            "it, outside of the capture",
                            error);
}

static gb_status wait_batch(gb_work *work, uint64_t timeout_ms,
                            gb_error *error) {
  batch *b = (batch *)work;
  if (b->from_any) /* The host waits: who sent is not known before. */
    GBI_TRY(gbi_work_await(work, timeout_ms, "the message", "was not there",
                           "is still waited for", error));
  if (!gbi_gpu_enter(work->gpu)) return how_it_ended(b, error);
  gb_status status = gbi_work_check_sound(work, error);
  if (status == GB_OK) status = check_capture(work->gpu, error);
  gbi_gpu_lock(work->gpu);
  for (int i = 0; i < b->count && status == GB_OK; i++)
    status = wait_for(b, &b->messages[i], gbi_gpu_stream(), error);
  gbi_gpu_unlock(work->gpu);
  gbi_gpu_leave(work->gpu);
  return status;
}

/* BUSY: not in place yet. */
static gb_status test_message(batch *b, message *x, gb_error *error) {
  gbi_gpu_p2p *m = b->m;
  if (!x->op.is_send && !x->moved) {
    if (!is_done(x)) return GB_ERR_BUSY;
    GBI_TRY(move_up(b, x, m->in, error));
  }
  return m->ops->event_query(m->device, x->slot->moved, error);
}

static gb_status test_batch(gb_work *work, int *done_p, gb_error *error) {
  batch *b = (batch *)work;
  *done_p = 1;
  if (!gbi_gpu_enter(work->gpu)) return how_it_ended(b, error);
  gb_status status = gbi_work_check_sound(work, error);
  gbi_gpu_lock(work->gpu);
  for (int i = 0; i < b->count && status == GB_OK; i++)
    status = test_message(b, &b->messages[i], error);
  gbi_gpu_unlock(work->gpu);
  gbi_gpu_leave(work->gpu);
  if (status != GB_ERR_BUSY) return status;
  *done_p = 0;
  return GB_OK;
}

static const gbi_work_ops batch_ops = {wait_batch, test_batch, end_batch};

/* ---- calls ---- */

/* NULL: no memory. */
static batch *make_batch(gbi_gpu_p2p *m, const gbi_group_params *g,
                         uint64_t timeout_ms, const gb_p2p_op *ops, int count) {
  static const gbi_coll none = {.root = -1};
  batch *b = (batch *)gbi_works_take(m->works);
  message *messages = NULL;
  if (b && count > OWN_MESSAGES)
    messages = gbi_calloc((size_t)count, sizeof *messages);
  if (!b || (count > OWN_MESSAGES && !messages)) {
    free(b);
    return NULL;
  }
  memset(b, 0, sizeof *b);
  gbi_work_init(&b->work, m->works, &none, NULL, NULL, 1);
  atomic_fetch_add(&m->works->holds, 1);
  b->work.ops = &batch_ops;
  b->work.gpu = g->gpu;
  gbi_gpu_hold(g->gpu);
  b->work.control = g->control;
  b->work.hook = g->wait_hook;
  b->work.hook_arg = g->wait_hook_arg;
  b->m = m;
  b->messages_of = g->p2p;
  b->messages = messages ? messages : b->own;
  b->count = b->left = count;
  for (int i = 0; i < count; i++) {
    message *x = &b->messages[i];
    gbi_job_p2p_fill(g, &ops[i], &x->op);
    x->op.bytes = x->op.count * gb_dtype_bytes(x->op.dtype);
    x->memory = x->op.data;
    x->batch = b;
    x->call = (gbi_p2p_call){.ops = &x->op,
                             .count = 1,
                             .timeout_ms = timeout_ms,
                             .done = on_done,
                             .arg = x};
    x->shown = -1;
    b->from_any |= ops[i].peer == GB_ANY_SOURCE;
  }
  return b;
}

static gb_status take_slots(batch *b, gb_error *error) {
  for (int i = 0; i < b->count; i++) {
    message *x = &b->messages[i];
    GBI_TRY(gbi_slots_take(b->m->slots, x->op.bytes, &x->slot, error));
    x->op.data = x->slot->memory;
  }
  return gbi_gpu_take_event(b->work.gpu, &b->began, error);
}

/* Sends behind the caller's stream, on the OUT lane. */
static gb_status enqueue(batch *b, gbi_stream stream, gb_error *error) {
  gbi_gpu_p2p *m = b->m;
  const gbi_device_ops *ops = m->ops;
  bool behind = false;
  GBI_TRY(ops->event_record(m->device, b->began, stream, error));
  for (int i = 0; i < b->count; i++) {
    message *x = &b->messages[i];
    gbi_slot *slot = x->slot;
    if (!x->op.is_send) continue;
    if (!behind && GBI_FAULT("gpu.send.begin") != GBI_FAULT_FAIL)
      GBI_TRY(ops->stream_wait(m->device, m->out, b->began, error));
    behind = true;
    GBI_TRY(ops->copy_out(m->device, slot->memory, x->memory, x->op.bytes,
                          m->out, error));
    GBI_TRY(ops->set_flag(m->device, slot->ready_device, slot->turn, m->out,
                          error));
    GBI_TRY(ops->event_record(m->device, slot->moved, m->out, error));
  }
  return GB_OK;
}

/* Once it has started its own end releases this hold. */
static void note_start(message *x) {
  gbi_gpu_p2p *m = x->batch->m;
  x->shown = gbi_job_p2p_show(x->batch->messages_of, &x->op);
  atomic_fetch_add(&x->batch->work.holds, 1);
  pthread_mutex_lock(&m->lock);
  m->pending++;
  pthread_mutex_unlock(&m->lock);
}

static void undo_start(message *x) {
  gbi_gpu_p2p *m = x->batch->m;
  gbi_job_p2p_unshow(x->batch->messages_of, x->shown, false);
  atomic_fetch_sub(&x->batch->work.holds, 1); /* never the last one */
  pthread_mutex_lock(&m->lock);
  m->pending--;
  pthread_mutex_unlock(&m->lock);
}

static void queue_send(message *x) {
  gbi_gpu_p2p *m = x->batch->m;
  pthread_mutex_lock(&m->lock);
  if (m->last)
    m->last->next = x;
  else
    m->first = x;
  m->last = x;
  pthread_cond_broadcast(&m->changed);
  pthread_mutex_unlock(&m->lock);
}

/* Receives first: what is sent may need no memory of the mesh then. */
static gb_status start(batch *b, gb_error *error) {
  for (int i = 0; i < b->count; i++) {
    message *x = &b->messages[i];
    if (x->op.is_send) continue;
    note_start(x);
    gb_status status = gbi_p2p_start(b->m->p2p, &x->call, error);
    if (status == GB_OK) continue;
    undo_start(x);
    return status;
  }
  for (int i = 0; i < b->count; i++) {
    message *x = &b->messages[i];
    if (!x->op.is_send) continue;
    note_start(x);
    queue_send(x);
  }
  return GB_OK;
}

/* `error` is not NULL. */
static gb_status issue(gb_group *group, const gb_p2p_op *ops, int count,
                       batch **b_p, gb_error *error) {
  const gbi_group_params *g = gbi_group_params_of(group);
  gbi_gpu_p2p *m = need(g, error);
  if (!m) return error->status;
  batch *b = make_batch(m, g, gbi_group_timeout(group), ops, count);
  if (!b)
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for %d messages", count);
  gb_status status = take_slots(b, error);
  if (status == GB_OK) status = enqueue(b, gbi_gpu_stream(), error);
  if (status == GB_OK) status = start(b, error);
  if (status != GB_OK)
    gbi_work_release(&b->work);
  else
    *b_p = b;
  return status;
}

/* The other side may go on into a message that this rank cannot make. */
static gb_status give_up(const gbi_group_params *g, const gb_error *why,
                         gb_error *error) {
  gb_error cause;
  gbi_fail_rank(&cause, why->status, g->members[g->rank], "%s: %.1900s",
                g->who[g->rank], why->text);
  (void)gbi_control_settle(g->control, &cause, error);
  return why->status;
}

gb_status gbi_gpu_messages(gb_group *group, const gb_p2p_op *ops, int count,
                           int *source_p, gb_work **work_p, gb_error *error) {
  const gbi_group_params *g = gbi_group_params_of(group);
  batch *b = NULL;
  gb_error why;
  for (int i = 0; i < count; i++)
    if (ops[i].buffer.count)
      GBI_TRY(gbi_gpu_check_memory(g->gpu, ops[i].buffer.data, error));
  GBI_TRY(gbi_group_check(group, error));
  GBI_TRY(check_capture(g->gpu, error));
  gbi_gpu_lock(g->gpu);
  gb_status status = issue(group, ops, count, &b, &why);
  gbi_gpu_unlock(g->gpu);
  if (status == GB_ERR_ABORTED || status == GB_ERR_STATE) {
    if (error) *error = why;
    return status;
  }
  if (status != GB_OK || !b) return give_up(g, &why, error);
  if (work_p) {
    *work_p = &b->work;
    return GB_OK;
  }
  status = wait_batch(&b->work, 0, error);
  if (status == GB_OK && source_p)
    *source_p = b->from_any ? gbi_work_source(&b->work) : ops[0].peer;
  gbi_work_release(&b->work);
  return status;
}
