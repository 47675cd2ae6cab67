/* Collectives and work handles.
 *
 * Order: every member of a group makes the same calls in the same order.
 * Calls from several threads are put in one order per process; they must then
 * agree across ranks. A call whose arguments are refused sends nothing, takes
 * no sequence number and leaves the group usable.
 *
 * With work_p NULL a call blocks until its result is in place, at most until
 * the job's timeout. Otherwise it returns at once, the buffers are lent until
 * the work completes, and *work_p is the caller's: gb_work_release.
 *
 * Statuses of every collective: ARGUMENT, TYPE, UNSUPPORTED, BUSY (the async
 * queue is full), FORKED, STATE at once; TIMEOUT, MISMATCH, PEER, ABORTED,
 * CANCELED, INTERRUPTED when it ran: then the job is aborted on all ranks. */
#ifndef GPUBRIDGE_COLL_H
#define GPUBRIDGE_COLL_H

#include <gpubridge/job.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, number, bytes, text). Numbers are ABI and go over the wire. */
#define GB_DTYPE_TABLE(X)                                                      \
  X(GB_INT8, 0, 1, "int8")                                                     \
  X(GB_UINT8, 1, 1, "uint8")                                                   \
  X(GB_INT32, 2, 4, "int32")                                                   \
  X(GB_INT64, 3, 8, "int64")                                                   \
  X(GB_FLOAT16, 4, 2, "float16")                                               \
  X(GB_BFLOAT16, 5, 2, "bfloat16")                                             \
  X(GB_FLOAT32, 6, 4, "float32")                                               \
  X(GB_FLOAT64, 7, 8, "float64")                                               \
  X(GB_INT16, 8, 2, "int16")                                                   \
  X(GB_UINT16, 9, 2, "uint16")                                                 \
  X(GB_UINT32, 10, 4, "uint32")                                                \
  X(GB_UINT64, 11, 8, "uint64")                                                \
  X(GB_BOOL, 12, 1, "bool")                                                    \
  X(GB_FLOAT8_E4M3FN, 13, 1, "float8_e4m3fn")                                  \
  X(GB_FLOAT8_E5M2, 14, 1, "float8_e5m2")                                      \
  X(GB_FLOAT8_E4M3FNUZ, 15, 1, "float8_e4m3fnuz")                              \
  X(GB_FLOAT8_E5M2FNUZ, 16, 1, "float8_e5m2fnuz")                              \
  X(GB_COMPLEX64, 17, 8, "complex64")                                          \
  X(GB_COMPLEX128, 18, 16, "complex128")

typedef enum gb_dtype {
#define GB_DTYPE_ENUM(name, number, bytes, text) name = number,
  GB_DTYPE_TABLE(GB_DTYPE_ENUM)
#undef GB_DTYPE_ENUM
  GB_DTYPE_COUNT
} gb_dtype;

/* Integers wrap. NaN in any contribution gives NaN. float16 and bfloat16 are
 * combined in float32 and rounded in each step; a float8 type is reduced in
 * float32 and rounded once, at the end: too large becomes 448 for e4m3fn (which
 * saturates, as in PyTorch), infinity for e5m2, NaN for the fnuz types.
 * bool is one byte; any byte but 0 is true, and two or more ranks get exactly 0
 * or 1. SUM, MAX and BOR of bool are "or", PRODUCT, MIN and BAND are "and". */
typedef enum gb_redop {
  GB_SUM = 0,        /* all types */
  GB_AVG = 1,        /* sum over the number of ranks; floating and complex */
  GB_MAX = 2,        /* all but complex, as are MIN and PRODUCT */
  GB_MIN = 3,
  GB_PRODUCT = 4,
  GB_BAND = 5,       /* bitwise: integers and bool */
  GB_BOR = 6,
  GB_BXOR = 7,
  GB_PREMUL_SUM = 8, /* floating; only by the gb_*_scaled functions */
  GB_REDOP_COUNT
} gb_redop;

/* Bytes of one element, 0 for an unknown code; names, "unknown" for one. */
GB_API size_t gb_dtype_bytes(gb_dtype dtype);
GB_API const char *gb_dtype_name(gb_dtype dtype);
GB_API const char *gb_redop_name(gb_redop op);
/* 1 if elements of `dtype` can be reduced with `op`, else 0. */
GB_API int gb_redop_supported(gb_redop op, gb_dtype dtype);

/* Elements in this process's memory. `data` may be NULL only with count 0 and
 * needs no alignment beyond a byte. */
typedef struct gb_buffer {
  void *data;
  size_t count;
  gb_dtype dtype;
} gb_buffer;

typedef struct gb_work gb_work; /* opaque, counted */

/* In place over all ranks; every rank ends with the same bits. */
GB_API gb_status gb_all_reduce(gb_group *group, const gb_buffer *buffer,
                               gb_redop op, gb_work **work_p,
                               gb_error *error) GB_MUST_CHECK;
/* In place, from the group's rank `root`. */
GB_API gb_status gb_broadcast(gb_group *group, const gb_buffer *buffer,
                              int root, gb_work **work_p,
                              gb_error *error) GB_MUST_CHECK;
/* Row r of `output` (input->count elements) is rank r's input. `input` may be
 * row `rank` of `output` itself; any other overlap is ARGUMENT. */
GB_API gb_status gb_all_gather(gb_group *group, const gb_buffer *output,
                               const gb_buffer *input, gb_work **work_p,
                               gb_error *error) GB_MUST_CHECK;
/* Slice r of the reduced input (output->count elements) goes to rank r; the
 * input is unchanged, except that `output` may be its slice `rank`. */
GB_API gb_status gb_reduce_scatter(gb_group *group, const gb_buffer *output,
                                   const gb_buffer *input, gb_redop op,
                                   gb_work **work_p,
                                   gb_error *error) GB_MUST_CHECK;
/* Onto the group's rank `root` only: the others' buffers stay as they are. */
GB_API gb_status gb_reduce(gb_group *group, const gb_buffer *buffer,
                           gb_redop op, int root, gb_work **work_p,
                           gb_error *error) GB_MUST_CHECK;

/* GB_PREMUL_SUM: every rank's contribution is multiplied by its own `factor`,
 * then they are summed. Floating types; half and float8 types are multiplied
 * and summed in float32 and rounded once. Inputs of reduce_scatter stay as they
 * are. */
GB_API gb_status gb_all_reduce_scaled(gb_group *group, const gb_buffer *buffer,
                                      double factor, gb_work **work_p,
                                      gb_error *error) GB_MUST_CHECK;
GB_API gb_status gb_reduce_scaled(gb_group *group, const gb_buffer *buffer,
                                  double factor, int root, gb_work **work_p,
                                  gb_error *error) GB_MUST_CHECK;
GB_API gb_status gb_reduce_scatter_scaled(gb_group *group,
                                          const gb_buffer *output,
                                          const gb_buffer *input, double factor,
                                          gb_work **work_p,
                                          gb_error *error) GB_MUST_CHECK;

/* Rows of different lengths, packed: row r has counts[r] elements, `counts` has
 * one entry a rank, is equal on all ranks (MISMATCH otherwise) and is borrowed
 * until the call returns. input->count (output->count) must be this rank's. */
GB_API gb_status gb_all_gather_v(gb_group *group, const gb_buffer *output,
                                 const gb_buffer *input, const size_t *counts,
                                 gb_work **work_p,
                                 gb_error *error) GB_MUST_CHECK;
GB_API gb_status gb_reduce_scatter_v(gb_group *group, const gb_buffer *output,
                                     const gb_buffer *input,
                                     const size_t *counts, gb_redop op,
                                     gb_work **work_p,
                                     gb_error *error) GB_MUST_CHECK;

/* Row r of root's `output` is rank r's input; `output` is NULL elsewhere. On
 * root, `input` may be its own row of `output`. */
GB_API gb_status gb_gather(gb_group *group, const gb_buffer *output,
                           const gb_buffer *input, int root, gb_work **work_p,
                           gb_error *error) GB_MUST_CHECK;
/* Row r of root's `input` goes to rank r's output; `input` is NULL elsewhere.
 * On root, `output` may be its own row of `input`. */
GB_API gb_status gb_scatter(gb_group *group, const gb_buffer *output,
                            const gb_buffer *input, int root, gb_work **work_p,
                            gb_error *error) GB_MUST_CHECK;
/* Part r of `input` goes to rank r, part r of `output` comes from rank r, parts
 * packed in rank order. out_counts and in_counts: elements of each part, one
 * entry a rank, or NULL for equal parts; borrowed until the call returns. A
 * part whose two ends disagree is MISMATCH. The buffers must not overlap. */
GB_API gb_status gb_all_to_all(gb_group *group, const gb_buffer *output,
                               const size_t *out_counts, const gb_buffer *input,
                               const size_t *in_counts, gb_work **work_p,
                               gb_error *error) GB_MUST_CHECK;

/* Returns on no rank before every rank has called it. */
GB_API gb_status gb_barrier(gb_group *group, gb_work **work_p,
                            gb_error *error) GB_MUST_CHECK;

/* Blocks until the work is done, or for timeout_ms (0: no limit of its own;
 * the call's deadline ends it). WAIT_TIMEOUT leaves the work running; every
 * other failure is the work's own and is returned again by each later wait. */
GB_API gb_status gb_work_wait(gb_work *work, uint64_t timeout_ms,
                              gb_error *error) GB_MUST_CHECK;
/* *done_p is 1 once it completed, in success or failure. Never blocks. */
GB_API gb_status gb_work_test(gb_work *work, int *done_p, gb_error *error);
/* Sequence number the call took; -1 until it started. */
GB_API int64_t gb_work_seq(const gb_work *work);
/* Gives the handle back; the operation runs on. NULL is a no-op. */
GB_API void gb_work_release(gb_work *work);

#ifdef __cplusplus
}
#endif
#endif
