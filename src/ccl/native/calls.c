/* Collectives, sends and receives, one by one or as a group.
 *
 * A group is kept here and given to the library in one piece when it ends: the
 * library's own group is then open for an instant only, and an abort meanwhile
 * cannot take a communicator away from under it. */
#include "ccl/native/state.h"

#include "base/memory.h"

#include <stdio.h>

/* Copies: of a type that the library lacks, as bytes. */
static void copied(const gbi_native_call *call, ncclDataType_t *type_p,
                   size_t *count_p) {
  *count_p = call->count;
  if (gbi_native_type(call->dtype, type_p)) return;
  *type_p = ncclUint8;
  *count_p = call->count * gb_dtype_bytes(call->dtype);
}

static ncclResult_t issue_copy(const gbi_native *native, ncclComm_t comm,
                               const gbi_native_call *call) {
  const gbi_nccl *nccl = native->nccl;
  ncclDataType_t type;
  size_t count;
  copied(call, &type, &count);
  switch (call->op) {
    case GBI_OP_BROADCAST:
      return nccl->ncclBroadcast(call->src, call->dst, count, type, call->root,
                                 comm, call->stream);
    case GBI_OP_ALL_GATHER:
      return nccl->ncclAllGather(call->src, call->dst, count, type, comm,
                                 call->stream);
    case GBI_OP_SEND:
      return nccl->ncclSend(call->src, count, type, call->root, comm,
                            call->stream);
    default:
      return nccl->ncclRecv(call->dst, count, type, call->root, comm,
                            call->stream);
  }
}

static ncclResult_t issue_reduction(const gbi_native *native, ncclComm_t comm,
                                    const gbi_native_call *call,
                                    ncclDataType_t type, ncclRedOp_t op) {
  const gbi_nccl *nccl = native->nccl;
  switch (call->op) {
    case GBI_OP_REDUCE:
      return nccl->ncclReduce(call->src, call->dst, call->count, type, op,
                              call->root, comm, call->stream);
    case GBI_OP_REDUCE_SCATTER:
      return nccl->ncclReduceScatter(call->src, call->dst, call->count, type,
                                     op, comm, call->stream);
    default:
      return nccl->ncclAllReduce(call->src, call->dst, call->count, type, op,
                                 comm, call->stream);
  }
}

static bool reduces(gbi_op op) {
  return op == GBI_OP_ALL_REDUCE || op == GBI_OP_REDUCE ||
         op == GBI_OP_REDUCE_SCATTER;
}

/* "could not run all_reduce of 4 float32", "... a group of 2 calls". */
typedef struct call_text {
  char text[128];
} call_text;
static call_text what_failed(const gbi_native_call *calls, int count) {
  call_text what;
  if (count > 1)
    snprintf(what.text, sizeof what.text, "could not run a group of %d calls",
             count);
  else
    snprintf(what.text, sizeof what.text, "could not run %s of %zu %s",
             gbi_op_name(calls->op), calls->count, gb_dtype_name(calls->dtype));
  return what;
}

/* InProgress is no failure. */
static gb_status check(const gbi_native *native, ncclResult_t result,
                       const gbi_native_call *calls, int count,
                       bool *in_progress, gb_error *error) {
  if (result == ncclInProgress) *in_progress = true;
  if (result == ncclSuccess || result == ncclInProgress) return GB_OK;
  return gbi_native_fail(native, result, what_failed(calls, count).text, error);
}

static gb_status issue(gbi_native *native, ncclComm_t comm,
                       const gbi_native_call *call, bool *in_progress,
                       gb_error *error) {
  ncclResult_t result;
  if (reduces(call->op)) {
    ncclDataType_t type;
    ncclRedOp_t op;
    GBI_TRY(gbi_native_operation(native, comm, call, &type, &op, error));
    result = issue_reduction(native, comm, call, type, op);
  } else {
    result = issue_copy(native, comm, call);
  }
  return check(native, result, call, 1, in_progress, error);
}

/* The calls as one operation of the library. Inside. */
static gb_status issue_group(gbi_native *native, ncclComm_t comm,
                             const gbi_native_call *calls, int count,
                             bool *in_progress, gb_error *error) {
  GBI_TRY(check(native, native->nccl->ncclGroupStart(), calls, count,
                in_progress, error));
  gb_status status = GB_OK;
  for (int i = 0; i < count && status == GB_OK; i++)
    status = issue(native, comm, &calls[i], in_progress, error);
  /* Also after a failure: the thread's group must not stay open. What was
   * issued may then run alone; the caller aborts. */
  ncclResult_t result = native->nccl->ncclGroupEnd();
  return status == GB_OK
             ? check(native, result, calls, count, in_progress, error)
             : status;
}

static gb_status run(gbi_native *native, const gbi_native_call *calls,
                     int count, gb_error *error) {
  ncclComm_t comm = NULL;
  bool in_progress = false;
  if (!gbi_native_enter(native, &comm))
    return gbi_native_fail_aborted(native, what_failed(calls, count).text,
                                   error);
  gb_status status =
      count == 1 ? issue(native, comm, calls, &in_progress, error)
                 : issue_group(native, comm, calls, count, &in_progress, error);
  gbi_native_leave(native);
  if (status != GB_OK || !in_progress) return status;
  /* The library makes connections first. */
  uint64_t now_ns = gbi_now_ns();
  uint64_t deadline_ns = native->patience_ns < GBI_NEVER - now_ns
                             ? now_ns + native->patience_ns
                             : GBI_NEVER;
  return gbi_native_settle(native, what_failed(calls, count).text, deadline_ns,
                           NULL, error);
}

static gb_status keep(gbi_native *native, const gbi_native_call *call,
                      gb_error *error) {
  if (native->calls_count == native->calls_most) {
    int most = GBI_MAX(16, native->calls_most * 2);
    gbi_native_call *calls =
        gbi_realloc(native->calls, (size_t)most * sizeof *calls);
    if (!calls)
      return gbi_fail(error, GB_ERR_MEMORY, "no memory for %d calls of a group",
                      most);
    native->calls = calls;
    native->calls_most = most;
  }
  native->calls[native->calls_count++] = *call;
  return GB_OK;
}

static gb_status call_or_keep(gbi_native *native, const gbi_native_call *call,
                              gb_error *error) {
  return native->in_group ? keep(native, call, error)
                          : run(native, call, 1, error);
}

gb_status gbi_native_group_begin(gbi_native *native, gb_error *error) {
  if (native->in_group)
    return gbi_fail(error, GB_ERR_INTERNAL,
                    "a group of native calls begins inside another");
  native->in_group = true;
  native->calls_count = 0;
  return GB_OK;
}

gb_status gbi_native_group_end(gbi_native *native, gb_error *error) {
  if (!native->in_group)
    return gbi_fail(error, GB_ERR_INTERNAL,
                    "a group of native calls ends that did not begin");
  native->in_group = false;
  if (native->calls_count == 0) return GB_OK;
  return run(native, native->calls, native->calls_count, error);
}

static gb_status reduction(gbi_native *native, gbi_op op, const void *src,
                           void *dst, size_t count, gb_dtype dtype,
                           gb_redop redop, double factor, int divisor, int root,
                           gbi_stream stream, gb_error *error) {
  gbi_native_call call = {.op = op,
                          .src = src,
                          .dst = dst,
                          .count = count,
                          .dtype = dtype,
                          .redop = redop,
                          .factor = factor,
                          .divisor = divisor,
                          .root = root,
                          .stream = stream};
  return call_or_keep(native, &call, error);
}

/* `root`: also the peer of a message. */
static gb_status copy(gbi_native *native, gbi_op op, const void *src, void *dst,
                      size_t count, gb_dtype dtype, int root, gbi_stream stream,
                      gb_error *error) {
  gbi_native_call call = {.op = op,
                          .src = src,
                          .dst = dst,
                          .count = count,
                          .dtype = dtype,
                          .root = root,
                          .stream = stream};
  return call_or_keep(native, &call, error);
}

gb_status gbi_native_all_reduce(gbi_native *native, const void *src, void *dst,
                                size_t count, gb_dtype dtype, gb_redop redop,
                                double factor, int divisor, gbi_stream stream,
                                gb_error *error) {
  return reduction(native, GBI_OP_ALL_REDUCE, src, dst, count, dtype, redop,
                   factor, divisor, 0, stream, error);
}

gb_status gbi_native_reduce(gbi_native *native, const void *src, void *dst,
                            size_t count, gb_dtype dtype, gb_redop redop,
                            double factor, int divisor, int root,
                            gbi_stream stream, gb_error *error) {
  return reduction(native, GBI_OP_REDUCE, src, dst, count, dtype, redop, factor,
                   divisor, root, stream, error);
}

gb_status gbi_native_reduce_scatter(gbi_native *native, const void *src,
                                    void *dst, size_t count, gb_dtype dtype,
                                    gb_redop redop, double factor, int divisor,
                                    gbi_stream stream, gb_error *error) {
  return reduction(native, GBI_OP_REDUCE_SCATTER, src, dst, count, dtype, redop,
                   factor, divisor, 0, stream, error);
}

gb_status gbi_native_broadcast(gbi_native *native, const void *src, void *dst,
                               size_t count, gb_dtype dtype, int root,
                               gbi_stream stream, gb_error *error) {
  return copy(native, GBI_OP_BROADCAST, src, dst, count, dtype, root, stream,
              error);
}

gb_status gbi_native_all_gather(gbi_native *native, const void *src, void *dst,
                                size_t count, gb_dtype dtype, gbi_stream stream,
                                gb_error *error) {
  return copy(native, GBI_OP_ALL_GATHER, src, dst, count, dtype, 0, stream,
              error);
}

gb_status gbi_native_send(gbi_native *native, const void *src, size_t count,
                          gb_dtype dtype, int peer, gbi_stream stream,
                          gb_error *error) {
  return copy(native, GBI_OP_SEND, src, NULL, count, dtype, peer, stream,
              error);
}

gb_status gbi_native_recv(gbi_native *native, void *dst, size_t count,
                          gb_dtype dtype, int peer, gbi_stream stream,
                          gb_error *error) {
  return copy(native, GBI_OP_RECV, NULL, dst, count, dtype, peer, stream,
              error);
}
