/* The collectives: arguments are checked here, before anything is sent. */
#include "api/check.h"
#include "core/work.h"

#include <gpubridge/coll.h>

gb_status gb_all_reduce(gb_group *group, const gb_buffer *buffer, gb_redop op,
                        gb_work **work_p, gb_error *error) {
  GBI_TRY(gbi_check_group(group, error));
  GBI_TRY(gbi_check_buffer("buffer", buffer, 1, error));
  GBI_TRY(gbi_check_redop(op, buffer->dtype, error));
  gbi_coll coll = {.op = GBI_OP_ALL_REDUCE,
                   .dtype = (uint8_t)buffer->dtype,
                   .redop = (uint8_t)op,
                   .root = -1,
                   .count = buffer->count};
  return gbi_group_call(group, &coll, buffer->data, buffer->data, work_p,
                        error);
}

gb_status gb_broadcast(gb_group *group, const gb_buffer *buffer, int root,
                       gb_work **work_p, gb_error *error) {
  GBI_TRY(gbi_check_group(group, error));
  int world = gbi_group_world(group);
  if (root < 0 || root >= world)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "the source rank is %d, but must be from 0 to %d", root,
                    world - 1);
  GBI_TRY(gbi_check_buffer("buffer", buffer, 1, error));
  gbi_coll coll = {.op = GBI_OP_BROADCAST,
                   .dtype = (uint8_t)buffer->dtype,
                   .redop = 255,
                   .root = root,
                   .count = buffer->count};
  return gbi_group_call(group, &coll, buffer->data, buffer->data, work_p,
                        error);
}

gb_status gb_all_gather(gb_group *group, const gb_buffer *output,
                        const gb_buffer *input, gb_work **work_p,
                        gb_error *error) {
  GBI_TRY(gbi_check_group(group, error));
  GBI_TRY(gbi_check_pair(group, "output", output, "input", input, error));
  gbi_coll coll = {.op = GBI_OP_ALL_GATHER,
                   .dtype = (uint8_t)input->dtype,
                   .redop = 255,
                   .root = -1,
                   .count = input->count};
  return gbi_group_call(group, &coll, input->data, output->data, work_p, error);
}

gb_status gb_reduce_scatter(gb_group *group, const gb_buffer *output,
                            const gb_buffer *input, gb_redop op,
                            gb_work **work_p, gb_error *error) {
  GBI_TRY(gbi_check_group(group, error));
  GBI_TRY(gbi_check_pair(group, "input", input, "output", output, error));
  GBI_TRY(gbi_check_redop(op, input->dtype, error));
  gbi_coll coll = {.op = GBI_OP_REDUCE_SCATTER,
                   .dtype = (uint8_t)input->dtype,
                   .redop = (uint8_t)op,
                   .root = -1,
                   .count = output->count};
  return gbi_group_call(group, &coll, input->data, output->data, work_p, error);
}

gb_status gb_barrier(gb_group *group, gb_work **work_p, gb_error *error) {
  GBI_TRY(gbi_check_group(group, error));
  gbi_coll coll = {.op = GBI_OP_BARRIER,
                   .dtype = GB_UINT8,
                   .redop = GB_MAX,
                   .root = -1,
                   .count = 1};
  return gbi_group_call(group, &coll, NULL, NULL, work_p, error);
}

gb_status gb_work_wait(gb_work *work, uint64_t timeout_ms, gb_error *error) {
  return gbi_work_wait(work, timeout_ms, error);
}

gb_status gb_work_test(gb_work *work, int *done_p, gb_error *error) {
  return gbi_work_test(work, done_p, error);
}

int64_t gb_work_seq(const gb_work *work) {
  return gbi_work_seq(work);
}

void gb_work_release(gb_work *work) {
  gbi_work_release(work);
}
