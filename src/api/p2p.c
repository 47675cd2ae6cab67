/* Point-to-point: arguments are checked here, before anything is sent. */
#include "core/p2p.h"

#include "api/check.h"
#include "core/work.h"

static gb_status check_op(const gb_group *group, const gb_p2p_op *op,
                          gb_error *error) {
  int world = gbi_group_world(group), me = gbi_group_rank(group);
  bool any = op->peer == GB_ANY_SOURCE;
  if (any && op->is_send)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "a send needs a peer: GB_ANY_SOURCE is for receives");
  if (!any && (op->peer < 0 || op->peer >= world))
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "the peer is %d, but must be from 0 to %d", op->peer,
                    world - 1);
  if (op->peer == me)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "the peer is this rank itself, %d: copy instead", me);
  return gbi_check_buffer("buffer", &op->buffer, 1, error);
}

static gb_status call(gb_group *group, const gb_buffer *buffer, int is_send,
                      int peer, uint64_t tag, int *source_p, gb_work **work_p,
                      gb_error *error) {
  GBI_TRY(gbi_check_group(group, error));
  if (!buffer) return gbi_fail(error, GB_ERR_ARGUMENT, "the buffer is NULL");
  gb_p2p_op op = {is_send, *buffer, peer, tag};
  GBI_TRY(check_op(group, &op, error));
  return gbi_group_messages(group, &op, 1, source_p, work_p, error);
}

gb_status gb_send(gb_group *group, const gb_buffer *buffer, int peer,
                  uint64_t tag, gb_work **work_p, gb_error *error) {
  return call(group, buffer, 1, peer, tag, NULL, work_p, error);
}

gb_status gb_recv(gb_group *group, const gb_buffer *buffer, int peer,
                  uint64_t tag, int *source_p, gb_work **work_p,
                  gb_error *error) {
  return call(group, buffer, 0, peer, tag, source_p, work_p, error);
}

gb_status gb_batch(gb_group *group, const gb_p2p_op *ops, int count,
                   gb_work **work_p, gb_error *error) {
  GBI_TRY(gbi_check_group(group, error));
  if (count < 0 || (count && !ops))
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "a batch of %d operations at %s", count,
                    ops ? "an address" : "NULL");
  for (int i = 0; i < count; i++) GBI_TRY(check_op(group, &ops[i], error));
  return gbi_group_messages(group, ops, count, NULL, work_p, error);
}

int gb_work_source(const gb_work *work) { return gbi_work_source(work); }
