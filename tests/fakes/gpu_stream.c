/* Streams and events: what a host thread asks of them. */
#include "fakes/gpu.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STREAM_MAGIC = 0x5712ea11, EVENT_MAGIC = 0x0e7e2701, DEAD = 0xdead };

void fake_gpu_mine(int on) {
  fake_lock();
  gpu.mine = on != 0;
  fake_unlock();
}

/* The common queues come first, then those for high priority, then those that
 * belong to one stream (the last is shared by all that come too late). */
static fake_queue *choose_queue(fake_device *device, int how) {
  int n = gpu.set.queues;
  if (how == FAKE_ANY_QUEUE) return &device->queues[device->queues_used++ % n];
  if (how == FAKE_HIGH_QUEUE)
    return &device->queues[n + device->high_used++ % n];
  int i = 2 * n;
  while (i < FAKE_QUEUES_MOST - 1 && device->queues[i].owned) i++;
  device->queues[i].owned = true;
  return &device->queues[i];
}

static fake_stream *make_locked(int device, bool blocking, int how) {
  fake_stream *stream = fake_new(sizeof *stream);
  stream->magic = STREAM_MAGIC;
  stream->device = device;
  stream->blocking = blocking;
  stream->mine = gpu.mine;
  stream->line = fake_line_new_locked(&stream->first);
  stream->enqueued = stream->completed = stream->first;
  if (gpu.set.checks) stream->clock = fake_new(sizeof *stream->clock);
  stream->queue = choose_queue(&gpu.devices[device], how);
  stream->next = gpu.streams;
  gpu.streams = stream;
  return stream;
}

static fake_stream *legacy_locked(int device) {
  fake_device *on = fake_device_at(device);
  if (!on) return NULL;
  if (!on->legacy) {
    on->legacy = make_locked(device, true, 0);
    on->legacy->legacy = true;
    on->legacy->mine = false;
  }
  return on->legacy;
}

fake_result fake_stream_new(int device, bool blocking, int priority,
                            unsigned flags, int how, fake_stream **stream_p) {
  if (!fake_device_at(device)) return FAKE_NO_DEVICE;
  fake_lock();
  legacy_locked(device); /* takes the first queue, whoever comes first */
  fake_stream *stream = make_locked(device, blocking, how);
  stream->priority = priority;
  stream->flags = flags;
  fake_unlock();
  *stream_p = stream;
  return FAKE_OK;
}

fake_stream *fake_stream_at_locked(int device, void *handle) {
  enum { LEGACY = 1, PER_THREAD = 2 }; /* handles that are no pointers */
  if ((uintptr_t)handle == PER_THREAD)
    fake_check_failed(fake_call_name(), fake_call_site(), NULL, NULL,
                      "the per-thread default stream is not modelled");
  bool legacy = !handle || (uintptr_t)handle == LEGACY;
  fake_stream *stream = legacy ? legacy_locked(device) : handle;
  if (!stream) return NULL;
  if (stream->magic == DEAD)
    fake_check_failed(fake_call_name(), fake_call_site(), NULL, NULL,
                      "stream %p was destroyed", handle);
  if (stream->magic != STREAM_MAGIC)
    fake_check_failed(fake_call_name(), fake_call_site(), NULL, NULL,
                      "%p is no stream", handle);
  fake_counted_stream(stream);
  return stream;
}

/* What is enqueued still runs. */
fake_result fake_stream_free(fake_stream *handle) {
  if (!handle) return FAKE_BAD_HANDLE;
  fake_lock();
  fake_stream *stream = fake_stream_at_locked(0, handle);
  if (!stream || stream->legacy) {
    fake_unlock();
    return FAKE_BAD_HANDLE;
  }
  stream->magic = DEAD;
  stream->dead = true;
  if (stream->capture) fake_capture_break_locked(stream->capture);
  if (!fake_outstanding_locked(stream))
    fake_line_free_locked(stream->line, stream->completed);
  fake_unlock();
  return FAKE_OK;
}

static void wait_unheld(fake_stream *stream) {
  if (stream->held) fake_counted_blocking();
  while (stream->held)
    if (!fake_sleep_locked()) return;
}

/* Calls that a capturing stream, or the legacy one beside it, does not take. */
static fake_result refuse_capture(fake_stream *stream) {
  if (stream->capture) {
    fake_capture_break_locked(stream->capture);
    return FAKE_CAPTURE_UNSUPPORTED;
  }
  if (!stream->legacy) return FAKE_OK;
  for (fake_stream *other = gpu.streams; other; other = other->next) {
    if (!other->capture || !other->blocking) continue;
    fake_capture_break_locked(other->capture);
    return FAKE_CAPTURE_IMPLICIT;
  }
  return FAKE_OK;
}

fake_result fake_stream_query(int device, void *handle) {
  fake_lock();
  fake_stream *stream = fake_stream_at_locked(device, handle);
  fake_result result = stream ? refuse_capture(stream) : FAKE_BAD_HANDLE;
  if (!result) {
    wait_unheld(stream);
    if (fake_outstanding_locked(stream))
      result = FAKE_NOT_READY;
    else
      fake_host_learns_stream_locked(stream);
  }
  fake_unlock();
  return result;
}

fake_result fake_stream_sync(int device, void *handle) {
  fake_lock();
  fake_stream *stream = fake_stream_at_locked(device, handle);
  fake_result result = stream ? refuse_capture(stream) : FAKE_BAD_HANDLE;
  if (!result) {
    fake_counted_blocking();
    wait_unheld(stream);
    stream->held = gpu.set.lock;
    fake_stream_drain_locked(stream);
    if (stream->held) {
      stream->held = false;
      fake_wake_locked();
    }
  }
  fake_unlock();
  return result;
}

fake_result fake_device_sync(int device) {
  if (!fake_device_at(device)) return FAKE_NO_DEVICE;
  fake_result result = fake_capture_unsafe();
  if (result) return result;
  fake_lock();
  fake_counted_blocking();
  fake_device_drain_locked(device);
  fake_unlock();
  return FAKE_OK;
}

fake_result fake_event_new(int device, fake_event **event_p) {
  if (!fake_device_at(device)) return FAKE_NO_DEVICE;
  fake_event *event = fake_new(sizeof *event);
  event->magic = EVENT_MAGIC;
  event->device = device;
  fake_lock();
  event->next = gpu.events;
  gpu.events = event;
  fake_unlock();
  *event_p = event;
  return FAKE_OK;
}

static fake_event *event_at_locked(void *handle) {
  fake_event *event = handle;
  if (!event) return NULL;
  if (event->magic != EVENT_MAGIC)
    fake_check_failed(
        fake_call_name(), fake_call_site(), NULL, NULL,
        event->magic == DEAD ? "event %p was destroyed" : "%p is no event",
        handle);
  return event;
}

fake_result fake_event_free(void *handle) {
  fake_lock();
  fake_event *event = event_at_locked(handle);
  if (event) {
    event->magic = DEAD;
    fake_mark_drop_locked(event->mark);
    event->mark = NULL;
  }
  fake_unlock();
  return event ? FAKE_OK : FAKE_BAD_HANDLE;
}

fake_result fake_event_record(int device, void *handle, void *on) {
  fake_result result = FAKE_BAD_HANDLE;
  fake_lock();
  fake_event *event = event_at_locked(handle);
  fake_stream *stream = fake_stream_at_locked(device, on);
  if (event && stream && event->device == stream->device) {
    fake_mark *mark = fake_new(sizeof *mark);
    mark->refs = 2; /* the event's and the operation's */
    fake_mark_drop_locked(event->mark);
    event->mark = mark;
    fake_op *op = fake_op_new(FAKE_RECORD);
    op->mark = mark;
    op->event = event;
    result = fake_enqueue_locked(stream, op);
  }
  fake_unlock();
  return result;
}

fake_result fake_event_query(void *handle) {
  fake_result result = fake_capture_unsafe();
  if (result) return result;
  fake_lock();
  fake_event *event = event_at_locked(handle);
  if (!event) {
    result = FAKE_BAD_HANDLE;
  } else if (event->mark && event->mark->capture) {
    fake_capture_break_locked(event->mark->capture);
    result = FAKE_CAPTURED_EVENT;
  } else if (event->mark && !event->mark->done) {
    result = FAKE_NOT_READY;
  } else if (event->mark) {
    fake_host_learns_locked(event->mark->clock);
  }
  fake_unlock();
  return result;
}

fake_result fake_event_sync(void *handle) {
  fake_lock();
  fake_event *event = event_at_locked(handle);
  fake_mark *mark = event ? event->mark : NULL;
  fake_result result = event ? FAKE_OK : FAKE_BAD_HANDLE;
  if (mark && mark->capture) {
    fake_capture_break_locked(mark->capture);
    result = FAKE_CAPTURED_EVENT;
  } else if (mark) {
    fake_counted_blocking();
    mark->refs++;
    while (!mark->done)
      if (!fake_sleep_locked()) break;
    fake_host_learns_locked(mark->clock);
    fake_mark_drop_locked(mark);
  }
  fake_unlock();
  return result;
}

fake_result fake_event_elapsed(void *start, void *end, float *ms_p) {
  fake_lock();
  fake_event *a = event_at_locked(start), *b = event_at_locked(end);
  fake_result result = FAKE_OK;
  if (!a || !b || !a->mark || !b->mark)
    result = FAKE_BAD_HANDLE;
  else if (!a->mark->done || !b->mark->done)
    result = FAKE_NOT_READY;
  else
    *ms_p = (float)(b->at_ms - a->at_ms);
  fake_unlock();
  return result;
}

fake_result fake_stream_wait(int device, void *on, void *handle) {
  fake_result result = FAKE_BAD_HANDLE;
  fake_lock();
  fake_event *event = event_at_locked(handle);
  fake_stream *stream = fake_stream_at_locked(device, on);
  if (event && stream) {
    fake_mark *mark = event->mark;
    result = FAKE_OK;
    if (mark && mark->capture)
      result = fake_capture_join_locked(stream, mark->capture);
    if (mark && !result) {
      fake_op *op = fake_op_new(FAKE_WAIT_EVENT);
      mark->refs++;
      op->mark = mark;
      result = fake_enqueue_locked(stream, op);
    }
  }
  fake_unlock();
  return result;
}
