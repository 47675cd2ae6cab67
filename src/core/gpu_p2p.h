/* core/gpu_p2p: messages between single ranks of a job on GPUs (gb_send,
 * gb_recv, gb_batch on device memory).
 *
 * A message goes by the job's mesh (p2p/p2p.h), whoever the two ranks are, so
 * tags, any-source receives, checked sizes and types, time-outs and failures
 * are those of messages on the host. What is added is staging: every message
 * has a slot, that is pinned memory as large as itself and two flags.
 *
 *   send     OUT lane: waits for the caller's stream, copies down, raises
 *            `ready`; "gb-gpu-p2p" sees the flag and hands the slot's memory to
 *            the mesh.
 *   receive  the mesh fills the slot's memory and raises `arrived`. Who waits
 *            for the receive has its stream wait for that flag and copy up;
 *            who tests after it came gets the copy on the IN lane.
 *
 * Nothing is allocated once as many messages of such sizes were under way
 * before. Slots and their memory stay until the group is closed.
 *
 * Invariant G. No stream of ours ever waits for another rank: OUT and IN wait
 * for events only. The one gate is put on a caller's stream by its own wait, so
 * behind it stands what a program that blocks in its waits would not have made
 * yet: messages lock up only where such a program does. That holds on a single
 * hardware queue too, and for messages in both directions of any size: a send
 * needs no room at the receiver to leave its GPU. No thread of ours calls the
 * vendor's runtime here.
 *
 * Errors come first: the mesh's failure is the job's, which opens the gates
 * (gbi_gpu_fail) after every rank can see why. */
#ifndef GBI_CORE_GPU_P2P_H
#define GBI_CORE_GPU_P2P_H

#include "base/base.h"

#include <gpubridge/p2p.h>

typedef struct gbi_gpu_p2p gbi_gpu_p2p;

/* Checked ops of one call on a group that has a GPU; at least one, all on
 * device memory. work_p NULL: the calling thread's stream waits. source_p (may
 * be NULL) makes the host wait for a single receive, and so does any wait for
 * one from GB_ANY_SOURCE: its sender is known afterwards. */
gb_status gbi_gpu_messages(gb_group *group, const gb_p2p_op *ops, int count,
                           int *source_p, gb_work **work_p, gb_error *error);

/* Of gbi_gpu, which owns it. All accept NULL. */
/* Waits until every send's data have left the GPU; to the deadline. */
void gbi_gpu_p2p_flush(gbi_gpu_p2p *p2p, uint64_t deadline_ns);
/* Opens all gates. Any thread, at once. */
void gbi_gpu_p2p_fail(gbi_gpu_p2p *p2p);
/* False: its memory is still in use and stays. Works that the caller still
 * holds only say then how they ended. */
bool gbi_gpu_p2p_close(gbi_gpu_p2p *p2p, uint64_t deadline_ns);
/* When nobody holds the gbi_gpu any more. */
void gbi_gpu_p2p_free(gbi_gpu_p2p *p2p);

#endif
