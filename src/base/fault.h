/* Fault points: named places where a test can make something go wrong.
 *
 * Compiled in by GPUBRIDGE_FAULTS=ON and absent otherwise: GBI_FAULT is then a
 * constant. GPUBRIDGE_FAULT holds a comma-separated list of
 *
 *   PLACE[@RANK][:nth=N]:ACTION
 *
 * PLACE: alloc, thread.start, sock.listen, sock.connect, sock.send, sock.recv,
 *        wire.decode, mem.map, mem.seal, store.get, store.set; and, where fail
 *        leaves something out that the fakes of tests/fakes or the numbers must
 *        show: what orders a call on a GPU (gpu.begin, gpu.end, gpu.follow,
 *        gpu.switch, gpu.wait, gpu.release, gpu.gate, gpu.ring, gpu.shared,
 *        gpu.rows, gpu.payload, gpu.result, capture.ready, capture.go,
 *        capture.back) or a message (gpu.send.begin, gpu.send.gate,
 *        gpu.send.end, gpu.recv.begin, gpu.recv.gate), or keeps it from locking
 *        up (gpu.post, gpu.order, gpu.worker, gpu.alloc, gpu.chunks,
 *        gpu.blocking)
 *
 * RANK:  only in the process whose RANK is that; without it, in all
 *
 * N:     the N-th time the place is reached (from 1; default 1), once
 *
 * ACTION: fail, again, short, corrupt: returned to the place, which acts as
 *         if the system had done that; delay (50 ms), kill (SIGKILL), freeze
 *         (SIGSTOP), hang (for 60 s): done here
 *
 * When GPUBRIDGE_FAULT_LOG names a file, each fault that strikes appends a line
 * to it, so that a torture run knows when no place is left. */
#ifndef GBI_BASE_FAULT_H
#define GBI_BASE_FAULT_H

#include "base/base.h"

typedef enum gbi_fault {
  GBI_FAULT_NONE,
  GBI_FAULT_FAIL,   /* an error, like ECONNRESET or ENOMEM */
  GBI_FAULT_AGAIN,  /* EAGAIN once */
  GBI_FAULT_SHORT,  /* one byte instead of many */
  GBI_FAULT_CORRUPT /* a flipped bit */
} gbi_fault;

#ifdef GPUBRIDGE_FAULTS
gbi_fault gbi_fault_at(const char *place);
#define GBI_FAULT(place) gbi_fault_at(place)
/* For decoders, before they look at `data`: CORRUPT flips one bit of it (its
 * buffer must be writable whatever the type says). True: FAIL, take the input
 * for malformed. */
bool gbi_decode_fault(const void *data, size_t bytes);
/* Flips one bit; which one depends on RANK and the rules. */
void gbi_fault_flip(void *data, size_t bytes);
#else
#define GBI_FAULT(place) GBI_FAULT_NONE
static inline bool gbi_decode_fault(const void *data, size_t bytes) {
  (void)data;
  (void)bytes;
  return false;
}
static inline void gbi_fault_flip(void *data, size_t bytes) {
  (void)data;
  (void)bytes;
}
#endif

#endif
