/* Capture of streams into graphs, and their replay.
 *
 * A capture begins on one stream; a stream that waits for an event recorded in
 * it joins. While it lasts, operations are kept instead of run. Calls that
 * would have to look at the device break it: on the capturing streams, and the
 * "unsafe" ones (allocations, event queries, device-wide waits) on any thread
 * by the rules of the capture modes. A replay enqueues what was kept, with the
 * constants it was kept with, one after another on the stream of the launch:
 * branches that could run side by side do not. HIP runs memory operations at
 * once, in silence, as ROCm up to 7.2 does. */
#include "fakes/gpu.h"

#include <stdlib.h>
#include <string.h>

enum { MODE_GLOBAL, MODE_THREAD, MODE_RELAXED };

struct fake_capture {
  fake_stream *origin;
  pthread_t thread;
  int mode;
  uint64_t id;
  bool broken, ended;
  fake_graph *graph;
  fake_op **tail;
  fake_capture *next;
};

typedef struct held {
  struct held *next;
  fake_object *object;
  int count;
} held;

struct fake_graph {
  fake_op *head;
  held *objects;
};

struct fake_object {
  int refs;
  void (*destroy)(void *arg);
  void *arg;
};

static fake_capture *captures; /* those that last */
static fake_capture *past;     /* events still point at them */
static uint64_t last_id;
static __thread int thread_mode;

void fake_capture_break_locked(fake_capture *capture) {
  capture->broken = true;
}

int fake_capture_mode_exchange(int mode) {
  int before = thread_mode;
  thread_mode = mode;
  return before;
}

static bool forbids(const fake_capture *capture) {
  if (thread_mode == MODE_RELAXED) return false;
  bool mine = pthread_equal(capture->thread, pthread_self());
  if (mine) return capture->mode != MODE_RELAXED;
  return thread_mode == MODE_GLOBAL && capture->mode == MODE_GLOBAL;
}

fake_result fake_capture_unsafe(void) {
  fake_result result = FAKE_OK;
  fake_lock();
  for (fake_capture *capture = captures; capture; capture = capture->next) {
    if (!forbids(capture)) continue;
    fake_capture_break_locked(capture);
    result = FAKE_CAPTURE_UNSUPPORTED;
  }
  fake_unlock();
  return result;
}

fake_result fake_capture_begin(int device, void *handle, int mode) {
  if (mode < MODE_GLOBAL || mode > MODE_RELAXED) return FAKE_BAD_VALUE;
  fake_lock();
  fake_stream *stream = fake_stream_at_locked(device, handle);
  fake_result result = FAKE_OK;
  if (!stream || stream->capture) {
    result = stream ? FAKE_BAD_VALUE : FAKE_BAD_HANDLE;
  } else if (stream->legacy) {
    result = FAKE_CAPTURE_UNSUPPORTED;
  } else {
    fake_capture *capture = fake_new(sizeof *capture);
    capture->origin = stream;
    capture->thread = pthread_self();
    capture->mode = mode;
    capture->id = ++last_id;
    capture->graph = fake_new(sizeof *capture->graph);
    capture->tail = &capture->graph->head;
    capture->next = captures;
    captures = capture;
    stream->capture = capture;
  }
  fake_unlock();
  return result;
}

static void leave_all(fake_capture *capture) {
  for (fake_stream *stream = gpu.streams; stream; stream = stream->next)
    if (stream->capture == capture) stream->capture = NULL;
  fake_capture **at = &captures;
  while (*at != capture) at = &(*at)->next;
  *at = capture->next;
  capture->ended = true;
  capture->next = past;
  past = capture;
}

static void free_ops(fake_op *op) {
  while (op) {
    fake_op *next = op->next;
    fake_op_free_locked(op);
    op = next;
  }
}

fake_object *fake_object_new(void (*destroy)(void *), void *arg, int refs) {
  fake_object *object = fake_new(sizeof *object);
  object->refs = refs;
  object->destroy = destroy;
  object->arg = arg;
  return object;
}

void fake_object_keep(fake_object *object, int count) {
  fake_lock();
  object->refs += count;
  fake_unlock();
}

/* Like a host function's, what it runs must not call the driver. */
void fake_object_drop(fake_object *object, int count) {
  fake_lock();
  object->refs -= count;
  bool last = object->refs <= 0;
  fake_unlock();
  if (!last) return;
  fake_enter_engine("user object's destructor");
  object->destroy(object->arg);
  fake_enter_engine(NULL);
  free(object);
}

static void hold_locked(fake_graph *graph, fake_object *object, int count) {
  held *h = fake_new(sizeof *h);
  h->object = object;
  h->count = count;
  h->next = graph->objects;
  graph->objects = h;
}

void fake_graph_hold(fake_graph *graph, fake_object *object, int count) {
  fake_lock();
  hold_locked(graph, object, count);
  fake_unlock();
}

void fake_graph_free(fake_graph *graph) {
  if (!graph) return;
  fake_lock();
  free_ops(graph->head);
  fake_unlock();
  for (held *h = graph->objects, *next; h; h = next) {
    next = h->next;
    fake_object_drop(h->object, h->count);
    free(h);
  }
  free(graph);
}

fake_result fake_capture_end(int device, void *handle, fake_graph **graph_p) {
  fake_lock();
  fake_stream *stream = fake_stream_at_locked(device, handle);
  fake_capture *capture = stream ? stream->capture : NULL;
  fake_graph *broken = NULL;
  fake_result result = FAKE_OK;
  if (!capture) {
    result = FAKE_BAD_VALUE;
  } else if (capture->origin != stream) {
    result = FAKE_CAPTURE_UNMATCHED;
  } else if (capture->mode != MODE_RELAXED &&
             !pthread_equal(capture->thread, pthread_self())) {
    result = FAKE_CAPTURE_THREAD;
  } else {
    leave_all(capture);
    if (capture->broken) {
      broken = capture->graph;
      result = FAKE_CAPTURE_INVALIDATED;
    } else {
      *graph_p = capture->graph;
    }
    capture->graph = NULL;
  }
  fake_unlock();
  fake_graph_free(broken);
  return result;
}

fake_result fake_capture_state(int device, void *handle, int *state_p,
                               uint64_t *id_p, fake_graph **graph_p) {
  fake_lock();
  fake_stream *stream = fake_stream_at_locked(device, handle);
  fake_result result = stream ? FAKE_OK : FAKE_BAD_HANDLE;
  const fake_capture *capture = stream ? stream->capture : NULL;
  *state_p = FAKE_CAPTURE_NONE;
  if (stream && stream->legacy) {
    for (fake_stream *other = gpu.streams; other; other = other->next)
      if (other->capture && other->blocking) result = FAKE_CAPTURE_IMPLICIT;
  } else if (capture) {
    *state_p = capture->broken ? FAKE_CAPTURE_BROKEN : FAKE_CAPTURE_ACTIVE;
    if (id_p) *id_p = capture->id;
    if (graph_p) *graph_p = capture->broken ? NULL : capture->graph;
  }
  fake_unlock();
  return result;
}

static bool runs_at_once(const fake_op *op) {
  return fake_here.eager_memops && !gpu.set.graph_memops &&
         (op->kind == FAKE_WAIT_VALUE || op->kind == FAKE_WRITE_VALUE);
}

/* The legacy stream cannot be captured, and using it while a blocking stream
 * captures would order the two. */
static fake_result refuse_legacy(const fake_stream *stream) {
  if (!stream->legacy || !captures) return FAKE_OK;
  for (fake_stream *other = gpu.streams; other; other = other->next) {
    if (!other->capture || !other->blocking) continue;
    fake_capture_break_locked(other->capture);
    return FAKE_CAPTURE_IMPLICIT;
  }
  return FAKE_OK;
}

fake_result fake_capture_take_locked(fake_stream *stream, fake_op *op,
                                     bool *taken_p) {
  fake_capture *capture = stream->capture;
  fake_result result = refuse_legacy(stream);
  *taken_p = result || (capture && !runs_at_once(op));
  if (!*taken_p) return FAKE_OK;
  if (!result && capture->broken) result = FAKE_CAPTURE_INVALIDATED;
  if (result) {
    fake_op_free_locked(op);
    return result;
  }
  if (op->kind == FAKE_WAIT_EVENT && op->mark->capture != capture) {
    /* What was recorded outside cannot be an edge of a graph. */
    fake_capture_break_locked(capture);
    fake_op_free_locked(op);
    return FAKE_CAPTURE_ISOLATION;
  }
  if (op->kind == FAKE_RECORD) op->mark->capture = capture;
  if (op->kind == FAKE_RECORD || op->kind == FAKE_WAIT_EVENT) {
    fake_op_free_locked(op); /* the order of the list says as much */
    return FAKE_OK;
  }
  *capture->tail = op;
  capture->tail = &op->next;
  return FAKE_OK;
}

fake_result fake_capture_join_locked(fake_stream *stream,
                                     fake_capture *capture) {
  if (capture->ended) return FAKE_CAPTURED_EVENT;
  if (stream->capture && stream->capture != capture) {
    fake_capture_break_locked(stream->capture);
    fake_capture_break_locked(capture);
    return FAKE_CAPTURE_UNMATCHED;
  }
  if (stream->legacy) {
    fake_capture_break_locked(capture);
    return FAKE_CAPTURE_IMPLICIT;
  }
  stream->capture = capture;
  return FAKE_OK;
}

static fake_op *copy_op(const fake_op *op) {
  fake_op *copy = fake_new(sizeof *copy);
  *copy = *op;
  copy->next = NULL;
  copy->ranges = NULL;
  copy->ranges_count = 0;
  for (int i = 0; i < op->ranges_count; i++)
    fake_op_range(copy, op->ranges[i].begin, op->ranges[i].bytes,
                  op->ranges[i].writes != 0);
  if (op->copy_arg) copy->arg = op->copy_arg(op->arg);
  return copy;
}

static fake_op *copy_ops(const fake_op *op) {
  fake_op *head = NULL, **tail = &head;
  for (; op; op = op->next) {
    *tail = copy_op(op);
    tail = &(*tail)->next;
  }
  return head;
}

fake_result fake_graph_copy(fake_graph *graph, fake_graph **copy_p) {
  fake_graph *copy = fake_new(sizeof *copy);
  fake_lock();
  copy->head = copy_ops(graph->head);
  for (held *h = graph->objects; h; h = h->next) {
    h->object->refs += h->count;
    hold_locked(copy, h->object, h->count);
  }
  fake_unlock();
  *copy_p = copy;
  return FAKE_OK;
}

fake_result fake_graph_launch(int device, fake_graph *graph, void *handle) {
  fake_lock();
  fake_stream *stream = fake_stream_at_locked(device, handle);
  fake_result result = stream ? FAKE_OK : FAKE_BAD_HANDLE;
  fake_op *op = stream ? copy_ops(graph->head) : NULL;
  while (op) {
    fake_op *next = op->next;
    op->next = NULL;
    if (result)
      fake_op_free_locked(op);
    else
      result = fake_enqueue_locked(stream, op);
    op = next;
  }
  fake_unlock();
  return result;
}
