/* Point-to-point: messages between two ranks of a group.
 *
 * A message goes from one rank to another with a tag. Messages of one group
 * with equal sender, receiver and tag arrive in the order they were sent; those
 * with different tags or senders do not wait for each other. Two ranks get a
 * link the first time one of them sends. Sizes and types of a send and its
 * receive must agree: a difference is MISMATCH on both, never a cut message.
 *
 * These calls take no sequence number, may be made by any thread beside
 * collectives, and do not wait for the group's queue. With work_p NULL they
 * block until the buffer may be used again: a send until its data has left it
 * (small messages may then still be under way), a receive until it is filled.
 * With work_p they never block, whatever the other side does.
 *
 * Statuses: ARGUMENT, TYPE, FORKED, STATE at once; TIMEOUT (names the peer and
 * the tag), MISMATCH, PEER, ABORTED, CANCELED, INTERRUPTED when it ran: then
 * the job is aborted on all ranks. */
#ifndef GPUBRIDGE_P2P_H
#define GPUBRIDGE_P2P_H

#include <gpubridge/coll.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GB_ANY_SOURCE (-1)

/* peer: rank of the group, not the caller's own (ARGUMENT). tag: any number.
 * The buffer is lent until the call or its work is done; a send does not write
 * it. */
GB_API gb_status gb_send(gb_group *group, const gb_buffer *buffer, int peer,
                         uint64_t tag, gb_work **work_p,
                         gb_error *error) GB_MUST_CHECK;
/* peer may be GB_ANY_SOURCE: the first message with this tag, from whichever
 * member. source_p (may be NULL; not used with work_p) is set to the sender's
 * group rank. */
GB_API gb_status gb_recv(gb_group *group, const gb_buffer *buffer, int peer,
                         uint64_t tag, int *source_p, gb_work **work_p,
                         gb_error *error) GB_MUST_CHECK;

/* Several sends and receives that start together. One work for all of them: it
 * is done when the last one is. Borrowed; work_p NULL blocks. count 0 is fine
 * (done at once). */
typedef struct gb_p2p_op {
  int is_send;
  gb_buffer buffer;
  int peer;
  uint64_t tag;
} gb_p2p_op;
GB_API gb_status gb_batch(gb_group *group, const gb_p2p_op *ops, int count,
                          gb_work **work_p, gb_error *error) GB_MUST_CHECK;

/* Group rank that a completed receive came from; -1 for anything else. */
GB_API int gb_work_source(const gb_work *work);

#ifdef __cplusplus
}
#endif
#endif
