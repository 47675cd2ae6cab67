/* Hardware queues: FIFOs with a thread each. */
#include "fakes/gpu.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

fake_op *fake_op_new(fake_kind kind) {
  fake_op *op = fake_new(sizeof *op);
  op->kind = kind;
  op->what = fake_call_name();
  op->site = fake_call_site();
  return op;
}

void fake_mark_drop_locked(fake_mark *mark) {
  if (!mark || --mark->refs) return;
  free(mark->clock);
  free(mark);
}

void fake_op_free_locked(fake_op *op) {
  fake_flag_forgets_locked(op);
  fake_mark_drop_locked(op->mark);
  if (op->drop) op->drop(op->arg);
  free(op->host);
  free(op->needs);
  free(op->ranges);
  free(op);
}

void fake_op_range(fake_op *op, const void *begin, size_t bytes, bool writes) {
  op->ranges =
      realloc(op->ranges, (size_t)(op->ranges_count + 1) * sizeof *op->ranges);
  if (!op->ranges) abort();
  op->ranges[op->ranges_count++] = (fake_range){begin, bytes, writes};
}

int fake_outstanding_locked(const fake_stream *stream) {
  return (int)(stream->enqueued - stream->completed);
}

static bool has_come(const fake_op *op) {
  for (int i = 0; i < op->needs_count; i++)
    if (op->needs[i].stream->completed < op->needs[i].seq) return false;
  return op->kind != FAKE_WAIT_EVENT || op->mark->done;
}

static void delay(const fake_op *op) {
  if (!gpu.set.seed || !gpu.set.delay_us) return;
  uint64_t r = fake_random((uint64_t)op->stream->line, op->seq);
  if (r & 1) return;
  uint64_t ns = (r >> 8) % ((uint64_t)gpu.set.delay_us * 1000);
  struct timespec nap = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
  nanosleep(&nap, NULL);
}

/* With the lock held again afterwards. */
static void run_locked(fake_op *op) {
  fake_begin_locked(op);
  bool moves = op->kind == FAKE_COPY || op->kind == FAKE_FILL;
  bool skipped = gpu.abandoned && moves;
  fake_unlock();
  delay(op);
  if (!skipped) fake_execute(op);
  fake_lock();
  op->stream->completed = op->seq;
  if (op->stream->dead && !fake_outstanding_locked(op->stream))
    fake_line_free_locked(op->stream->line, op->seq);
  fake_op_free_locked(op);
  fake_wake_locked();
}

static void *queue_main(void *arg) {
  fake_queue *queue = arg;
  fake_enter_engine("queue's thread");
  fake_lock();
  while (!fake_stopping()) {
    fake_op *op = queue->head;
    if (!op) {
      pthread_cond_wait(&queue->work, &gpu.lock);
      continue;
    }
    while (!has_come(op))
      if (!fake_sleep_locked()) break;
    if (fake_stopping()) break;
    queue->head = op->next;
    if (!queue->head) queue->tail = NULL;
    run_locked(op);
  }
  fake_unlock();
  return NULL;
}

static void start_queue(fake_queue *queue) {
  if (queue->started) return;
  queue->started = true;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  if (pthread_create(&thread, &attributes, queue_main, queue)) abort();
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void need(fake_op *op, fake_stream *stream) {
  bool pending = fake_outstanding_locked(stream) > 0;
  bool ever = stream->enqueued > stream->first;
  if (!pending && (!ever || !gpu.set.checks)) return;
  op->needs =
      realloc(op->needs, (size_t)(op->needs_count + 1) * sizeof *op->needs);
  if (!op->needs) abort();
  op->needs[op->needs_count++] = (fake_need){stream, stream->enqueued};
}

/* The legacy stream and blocking ones wait for each other. */
static void add_needs(fake_op *op) {
  fake_stream *stream = op->stream;
  if (!stream->blocking) return;
  fake_stream *legacy = gpu.devices[stream->device].legacy;
  if (!stream->legacy) {
    if (legacy) need(op, legacy);
    return;
  }
  for (fake_stream *other = gpu.streams; other; other = other->next)
    if (other->device == stream->device && other->blocking && other != stream)
      need(op, other);
}

void fake_wait_for_locked(const fake_stream *stream, uint64_t seq) {
  while (stream->completed < seq)
    if (!fake_sleep_locked()) return;
}

static void wait_for_room(fake_stream *stream) {
  bool waited = false;
  while (stream->held ||
         (gpu.set.ring && fake_outstanding_locked(stream) >= FAKE_RING)) {
    if (!waited) fake_counted_blocking();
    waited = true;
    if (!fake_sleep_locked()) return;
  }
}

static bool blocks_under_profile(const fake_op *op) {
  if (!gpu.set.blocking) return false;
  return op->kind == FAKE_COPY || op->kind == FAKE_FILL ||
         op->kind == FAKE_KERNEL || op->kind == FAKE_WAIT_VALUE ||
         op->kind == FAKE_WRITE_VALUE;
}

static void append(fake_queue *queue, fake_op *op) {
  if (queue->tail)
    queue->tail->next = op;
  else
    queue->head = op;
  queue->tail = op;
  start_queue(queue);
  pthread_cond_signal(&queue->work);
}

fake_result fake_enqueue_locked(fake_stream *stream, fake_op *op) {
  bool taken = false;
  fake_result result = fake_capture_take_locked(stream, op, &taken);
  if (taken) return result;
  wait_for_room(stream);
  op->stream = stream;
  op->host = fake_host_knows_locked();
  add_needs(op);
  bool first = !fake_outstanding_locked(stream);
  op->seq = ++stream->enqueued;
  if (fake_outstanding_locked(stream) > gpu.deepest)
    gpu.deepest = fake_outstanding_locked(stream);
  fake_counted_operation();
  bool blocks = blocks_under_profile(op);
  uint64_t seq = op->seq;
  if (first && op->ranges_count && has_come(op)) fake_begin_locked(op);
  if (op->kind == FAKE_WAIT_VALUE) fake_flag_waits_locked(op);
  append(stream->queue, op);
  if (blocks) {
    fake_counted_blocking();
    fake_wait_for_locked(stream, seq);
  }
  return FAKE_OK;
}

void fake_stream_drain_locked(fake_stream *stream) {
  fake_wait_for_locked(stream, stream->enqueued);
  fake_host_learns_stream_locked(stream);
}

void fake_device_drain_locked(int device) {
  for (fake_stream *stream = gpu.streams; stream; stream = stream->next)
    if (stream->device == device && !stream->capture)
      fake_stream_drain_locked(stream);
}
