/* ccl/native: an island's collectives by the vendor's own library, NCCL or
 * RCCL, on streams. Twins over one table of symbols, opened at run time where
 * the installed torch keeps them (order: a setting, a copy already in the
 * process, torch's packages, the loader's default). RCCL brings the HIP runtime
 * that it was linked to: device/hip takes its entry points from there.
 *
 * A missing library or symbol is UNSUPPORTED, with what was looked for where.
 * Calls enqueue on `stream` and return; none waits for a peer, except `open`,
 * which its deadline and its flag end, and a first use: the library then makes
 * connections (sends and receives always, collectives from 2.22 on), for which
 * all concerned must come, in as much time as `open` had; gbi_native_abort of
 * another thread ends that too. One thread at a time calls a communicator,
 * except for abort and check.
 *
 * Reductions are the library's: same bits on every member, in an order of its
 * own. Half types are summed as the library does: a factor, that of AVG too, is
 * first rounded to the type (1/3 in bfloat16 is off by 0.2 %). */
#ifndef GBI_CCL_NATIVE_H
#define GBI_CCL_NATIVE_H

#include "device/device.h"

#include <gpubridge/coll.h>

#define GBI_NATIVE_ID_BYTES 128

typedef struct gbi_native gbi_native;

/* Loads the library (once a process). `version_p`: "2.28.9"; `path_p`: the
 * file. Both static, either may be NULL. */
gb_status gbi_native_load(gbi_vendor vendor, const char **version_p,
                          const char **path_p, gb_error *error);
/* A fresh id for one communicator; member 0 makes it, all get it. */
gb_status gbi_native_id(gbi_vendor vendor, uint8_t id[GBI_NATIVE_ID_BYTES],
                        gb_error *error);
/* All members call it. PEER or TIMEOUT when the others do not. Blocks until all
 * are there; an aborted flag (may be NULL), set by another thread, ends it
 * too. */
gb_status gbi_native_open(gbi_device *device,
                          const uint8_t id[GBI_NATIVE_ID_BYTES],
                          int members_count, int me, uint64_t deadline_ns,
                          const _Atomic bool *aborted, gbi_native **native_p,
                          gb_error *error);

/* Whether the library can do it itself (fp8 needs a recent one and a recent
 * GPU; bitwise operations, complex, 16-bit integers and others never are).
 * Copies (broadcast, all_gather, send ...) of any type work: as bytes. */
bool gbi_native_reduces(const gbi_native *native, gb_dtype dtype,
                        gb_redop redop);

/* `count`: elements of src for all_gather and of dst for reduce_scatter, else
 * of the buffer. root, peer: members. PREMUL_SUM uses `factor`; AVG divides by
 * `divisor` (the job's world, not the island's), 0: by the members. */
gb_status gbi_native_all_reduce(gbi_native *native, const void *src, void *dst,
                                size_t count, gb_dtype dtype, gb_redop redop,
                                double factor, int divisor, gbi_stream stream,
                                gb_error *error);
gb_status gbi_native_reduce(gbi_native *native, const void *src, void *dst,
                            size_t count, gb_dtype dtype, gb_redop redop,
                            double factor, int divisor, int root,
                            gbi_stream stream, gb_error *error);
gb_status gbi_native_reduce_scatter(gbi_native *native, const void *src,
                                    void *dst, size_t count, gb_dtype dtype,
                                    gb_redop redop, double factor, int divisor,
                                    gbi_stream stream, gb_error *error);
gb_status gbi_native_broadcast(gbi_native *native, const void *src, void *dst,
                               size_t count, gb_dtype dtype, int root,
                               gbi_stream stream, gb_error *error);
gb_status gbi_native_all_gather(gbi_native *native, const void *src, void *dst,
                                size_t count, gb_dtype dtype,
                                gbi_stream stream, gb_error *error);
gb_status gbi_native_send(gbi_native *native, const void *src, size_t count,
                          gb_dtype dtype, int peer, gbi_stream stream,
                          gb_error *error);
gb_status gbi_native_recv(gbi_native *native, void *dst, size_t count,
                          gb_dtype dtype, int peer, gbi_stream stream,
                          gb_error *error);
/* Calls between them are one operation: sends and receives of a pair meet. They
 * are made, and can fail, when the group ends. */
gb_status gbi_native_group_begin(gbi_native *native, gb_error *error);
gb_status gbi_native_group_end(gbi_native *native, gb_error *error);

/* OK, or what the communicator has failed with since. Any thread, cheap. */
gb_status gbi_native_check(gbi_native *native, gb_error *error);
/* Any thread, also while another is inside a call: ends its kernels and frees
 * what it can. After it only close. The library waits for kernels that it has
 * launched, also for those that have not begun: a gate in front of them must be
 * open, or be opened by somebody else. */
void gbi_native_abort(gbi_native *native);
/* A graph has captured calls of it. The library then ends the communicator only
 * when every graph is gone, and makes who aborts or destroys it wait for that:
 * abort and close leave it to a thread of their own. */
void gbi_native_captured(gbi_native *native);
/* Finalizes what was not aborted, for `deadline_ns` at most, then aborts. */
void gbi_native_close(gbi_native *native, uint64_t deadline_ns);

#endif
