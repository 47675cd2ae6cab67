/* The host area: one memfd shared by the processes of a job on one host.
 *
 * It holds two bells per process and windows that communicators allocate. The
 * memfd and every process's eventfds travel once, over Unix sockets in the
 * abstract namespace, after a handshake that proves the job key. Nothing is
 * ever put in /dev/shm and nothing outlives the processes.
 *
 * "Local index" is a process's place in the ascending list of the host's ranks;
 * index 0 creates the memfd. Two-step set-up: open, exchange addresses among
 * the host's ranks by other means, connect. One thread sets up; afterwards any
 * thread may alloc, map, unmap and ring. */
#ifndef GBI_OS_HOSTAREA_H
#define GBI_OS_HOSTAREA_H

#include "base/base.h"
#include "base/wire.h"
#include "os/bell.h"
#include "os/handshake.h"

#define GBI_LOCAL_MAX 1024 /* processes of one job on one host */
/* Bells of a process: 0 is rung by collectives, 1 by point-to-point messages,
 * so that those who sleep on one are not woken by the other. */
#define GBI_BELL_LANES 2

typedef struct gbi_hostarea gbi_hostarea;

/* A key that is equal exactly for processes that can share a host area: boot
 * id, network namespace, and the host name (which GPUBRIDGE_SIM_HOSTNAME may
 * fake). Text of at most `bytes`. */
void gbi_host_key(const char *hostname, char *buffer, size_t bytes);

/* ranks: global ranks of the host's processes, ascending; me: local index.
 * Copies ranks and auth. */
gb_status gbi_hostarea_open(const gbi_auth *auth, const int *ranks, int count,
                            int me, gbi_hostarea **area_p, gb_error *error);
/* This process's address, at most 256 bytes. */
void gbi_hostarea_address(const gbi_hostarea *area, gbi_writer *out);
/* addresses[i]: what local index i wrote. Blocks until everybody has what it
 * needs. Closes the Unix socket. */
gb_status gbi_hostarea_connect(gbi_hostarea *area, const gbi_reader *addresses,
                               uint64_t deadline_ns, gb_error *error);
/* Any thread, returns at once: a connect under way soon ends with CANCELED. */
void gbi_hostarea_stop(gbi_hostarea *area);
/* A zeroed window, page aligned, memory really reserved (an error here, never
 * SIGBUS later). Any local process may map it by its offset. */
gb_status gbi_hostarea_alloc(gbi_hostarea *area, size_t bytes,
                             uint64_t *offset_p, gb_error *error);
/* Maps with every page touched already. */
gb_status gbi_hostarea_map(gbi_hostarea *area, uint64_t offset, size_t bytes,
                           void **data_p, gb_error *error);
/* This process is through with a window that `users` processes map. The last of
 * them gives its memory back to the host; until then the others may go on
 * reading what was written. data may be NULL (never mapped). */
void gbi_hostarea_leave(gbi_hostarea *area, void *data, uint64_t offset,
                        size_t bytes, int users);
/* Wakes local process `index`, lane 0 when none is named. */
void gbi_hostarea_ring(gbi_hostarea *area, int index);
void gbi_hostarea_ring_lane(gbi_hostarea *area, int index, int lane);
gbi_waiter *gbi_hostarea_waiter(gbi_hostarea *area);
gbi_waiter *gbi_hostarea_lane_waiter(gbi_hostarea *area, int lane);
int gbi_hostarea_count(const gbi_hostarea *area);
int gbi_hostarea_me(const gbi_hostarea *area);
int gbi_hostarea_index_of(const gbi_hostarea *area, int rank); /* or -1 */
/* NULL is fine, and so is an area that never connected. */
void gbi_hostarea_close(gbi_hostarea *area);

#endif
