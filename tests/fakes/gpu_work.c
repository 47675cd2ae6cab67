/* What is put on streams. Addresses are checked here, where the caller is. */
#include "fakes/gpu.h"

#include <stdlib.h>
#include <string.h>

static __thread const void *called_from;

void fake_gpu_called_from(const void *site) {
  called_from = site;
}

static void *view_of(const fake_memory *memory, const void *address) {
  return memory ? memory->view + ((uintptr_t)address - memory->begin)
                : (void *)address;
}

static bool is_flag(const fake_memory *memory, const fake_value *value) {
  size_t at = (uintptr_t)value->address - memory->begin;
  return at % (size_t)value->bytes == 0 &&
         memory->bytes - at >= (size_t)value->bytes;
}

/* Enqueues, and for pageable memory waits: what the real ones do with it. */
static fake_result copy_locked(fake_stream *stream, void *to, const void *from,
                               size_t bytes, bool now) {
  fake_memory *into = fake_memory_span_locked(to, bytes);
  fake_memory *out = fake_memory_span_locked(from, bytes);
  bool pageable = !into || !out;
  if (pageable && stream->capture) {
    fake_capture_break_locked(stream->capture);
    return FAKE_CAPTURE_UNSUPPORTED;
  }
  fake_op *op = fake_op_new(FAKE_COPY);
  op->to = view_of(into, to);
  op->from = view_of(out, from);
  op->bytes = bytes;
  fake_op_range(op, from, bytes, false);
  fake_op_range(op, to, bytes, true);
  fake_result result = fake_enqueue_locked(stream, op);
  if (result || (!pageable && !now)) return result;
  fake_counted_blocking();
  fake_stream_drain_locked(stream);
  return FAKE_OK;
}

fake_result fake_copy(int device, void *to, const void *from, size_t bytes,
                      void *handle) {
  if (!to || !from) return bytes ? FAKE_BAD_VALUE : FAKE_OK;
  fake_lock();
  fake_stream *stream = fake_stream_at_locked(device, handle);
  fake_result result = FAKE_BAD_HANDLE;
  if (stream)
    result = bytes ? copy_locked(stream, to, from, bytes, false) : FAKE_OK;
  fake_unlock();
  return result;
}

fake_result fake_copy_now(int device, void *to, const void *from,
                          size_t bytes) {
  if (!bytes) return FAKE_OK;
  if (!to || !from) return FAKE_BAD_VALUE;
  fake_result result = fake_capture_unsafe();
  if (result) return result;
  fake_lock();
  fake_stream *stream = fake_stream_at_locked(device, NULL);
  result = stream ? copy_locked(stream, to, from, bytes, true) : FAKE_NO_DEVICE;
  fake_unlock();
  return result;
}

fake_result fake_fill(int device, void *to, uint32_t value, int value_bytes,
                      size_t count, void *handle) {
  size_t bytes = count * (size_t)value_bytes;
  if (!bytes) return FAKE_OK;
  fake_lock();
  fake_stream *stream = fake_stream_at_locked(device, handle);
  fake_memory *into = fake_memory_span_locked(to, bytes);
  fake_result result = FAKE_BAD_VALUE;
  if (!stream) {
    result = FAKE_BAD_HANDLE;
  } else if (into) {
    fake_op *op = fake_op_new(FAKE_FILL);
    op->to = view_of(into, to);
    op->bytes = bytes;
    op->fill = value;
    op->fill_bytes = value_bytes;
    fake_op_range(op, to, bytes, true);
    result = fake_enqueue_locked(stream, op);
  }
  fake_unlock();
  return result;
}

static fake_result value_locked(fake_kind kind, fake_stream *stream,
                                const fake_value *value) {
  fake_memory *memory =
      fake_memory_span_locked(value->address, (size_t)value->bytes);
  if (!memory || !is_flag(memory, value)) return FAKE_BAD_VALUE;
  if (!memory->coherent)
    fake_check_failed(fake_call_name(), fake_call_site(), NULL, NULL,
                      "a flag at %p, in pinned memory that is not coherent",
                      value->address);
  fake_op *op = fake_op_new(kind);
  op->flag = (fake_flag_op){.word = view_of(memory, value->address),
                            .address = value->address,
                            .value = value->value,
                            .mask = value->mask,
                            .bytes = value->bytes,
                            .compare = value->compare,
                            .cyclic = fake_here.cyclic,
                            .host_visible = memory->kind != FAKE_DEVICE};
  return fake_enqueue_locked(stream, op);
}

static fake_result on_value(fake_kind kind, int device, void *handle,
                            const fake_value *value) {
  fake_lock();
  fake_stream *stream = fake_stream_at_locked(device, handle);
  fake_result result =
      stream ? value_locked(kind, stream, value) : FAKE_BAD_HANDLE;
  fake_unlock();
  return result;
}

fake_result fake_wait_value(int device, void *stream, const fake_value *value) {
  return on_value(FAKE_WAIT_VALUE, device, stream, value);
}

fake_result fake_write_value(int device, void *stream,
                             const fake_value *value) {
  return on_value(FAKE_WRITE_VALUE, device, stream, value);
}

fake_result fake_host_function(int device, void *handle, void (*run)(void *),
                               void *arg) {
  if (!run) return FAKE_BAD_VALUE;
  fake_result result = FAKE_BAD_HANDLE;
  fake_lock();
  fake_stream *stream = fake_stream_at_locked(device, handle);
  if (stream) {
    fake_op *op = fake_op_new(FAKE_HOST);
    op->run = run;
    op->arg = arg;
    result = fake_enqueue_locked(stream, op);
  }
  fake_unlock();
  return result;
}

static int enqueue_kernel(void *handle, const char *what, const void *site,
                          const fake_range *ranges, int ranges_count,
                          const fake_kept *kept, void *arg) {
  fake_start();
  fake_lock();
  fake_stream *stream = fake_stream_at_locked(fake_here.device(), handle);
  fake_result result = FAKE_BAD_HANDLE;
  if (stream) {
    fake_op *op = fake_op_new(FAKE_KERNEL);
    op->what = what;
    op->site = site;
    op->run = kept->run;
    op->arg = arg;
    op->copy_arg = kept->copy;
    op->drop = kept->drop;
    for (int i = 0; i < ranges_count; i++) {
      fake_memory_span_locked(ranges[i].begin, ranges[i].bytes);
      fake_op_range(op, ranges[i].begin, ranges[i].bytes,
                    ranges[i].writes != 0);
    }
    fake_kernel_first_locked(stream, what);
    result = fake_enqueue_locked(stream, op);
  }
  fake_unlock();
  return (int)result;
}

int fake_gpu_enqueue(void *handle, const char *what, const fake_range *ranges,
                     int ranges_count, void (*run)(void *arg), void *arg) {
  const void *site = called_from ? called_from : __builtin_return_address(0);
  fake_kept kept = {.run = run};
  called_from = NULL;
  return enqueue_kernel(handle, what, site, ranges, ranges_count, &kept, arg);
}

int fake_gpu_enqueue_kept(void *handle, const char *what,
                          const fake_range *ranges, int ranges_count,
                          const fake_kept *kept, void *arg) {
  const void *site = called_from ? called_from : __builtin_return_address(0);
  called_from = NULL;
  return enqueue_kernel(handle, what, site, ranges, ranges_count, kept, arg);
}

int fake_gpu_captures(void *handle) {
  fake_start();
  fake_lock();
  fake_stream *stream = fake_stream_at_locked(fake_here.device(), handle);
  int captures = stream && stream->capture;
  fake_unlock();
  return captures;
}
