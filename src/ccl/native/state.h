/* ccl/native: what its files share. */
#ifndef GBI_CCL_NATIVE_STATE_H
#define GBI_CCL_NATIVE_STATE_H

#include "ccl/native.h"
#include "ccl/native/nccl_abi.h"

#include <pthread.h>
#include <stdatomic.h>

/* A loaded library, for the process's life. */
typedef struct gbi_nccl {
#define GBI_NCCL_FIELD(returns, name, parameters, needed) \
  returns(*name) parameters;
  GBI_NCCL_FUNCTIONS(GBI_NCCL_FIELD)
#undef GBI_NCCL_FIELD
  const char *name; /* "NCCL", "RCCL" */
  void *handle;
  const char *path;
  int version; /* 22809 */
  char version_text[24];
} gbi_nccl;

gb_status gbi_nccl_load(gbi_vendor vendor, const gbi_nccl **nccl_p,
                        gb_error *error);
/* Fails with the status that `result` stands for. `what`: "could not reduce as
 * member 1 of 4 on nvidia device 0 (sm_90)". */
gb_status gbi_nccl_fail(const gbi_nccl *nccl, ncclResult_t result,
                        const char *what, gb_error *error);

/* Makes the device the calling thread's current one, and back: an NCCL
 * communicator is opened on the current device. */
typedef struct gbi_native_current {
  int before; /* AMD: the device that was current */
  int device; /* NVIDIA: CUdevice */
  struct CUctx_st *context;
} gbi_native_current;
gb_status gbi_native_current_enter(const gbi_device *device,
                                   const gbi_nccl *nccl,
                                   gbi_native_current *current,
                                   gb_error *error);
void gbi_native_current_leave(const gbi_device *device,
                              const gbi_native_current *current);

/* A PreMulSum operation that was made: of a type and the factor's bits in it.
 */
#define GBI_NATIVE_OPS_MOST 16
typedef struct gbi_native_op {
  ncclRedOp_t op;
  ncclDataType_t type;
  uint64_t factor_bits;
  uint64_t used; /* 0: an empty place; else when, in calls */
} gbi_native_op;

/* One call, as it waits for the end of its group. */
typedef struct gbi_native_call {
  gbi_op op;
  const void *src;
  void *dst;
  size_t count;
  gb_dtype dtype;
  gb_redop redop;
  double factor;
  int divisor;
  int root; /* or peer */
  gbi_stream stream;
} gbi_native_call;

struct gbi_native {
  const gbi_nccl *nccl;
  gbi_device *device;
  int members_count, me;
  /* For a call that must set up connections first, as much as `open` had. */
  uint64_t patience_ns;
  /* Held over calls of the library, which end at once, never over a wait for a
   * peer: abort takes `comm` away under it. */
  pthread_mutex_t inside;
  _Atomic(ncclComm_t) comm; /* NULL: aborted */
  _Atomic bool aborted;
  _Atomic bool captured; /* graphs hold kernels of it */
  _Atomic int failed; /* the ncclResult_t that it failed with, 0 */
  bool in_group;
  gbi_native_call *calls; /* of the group; the array is kept */
  int calls_count, calls_most;
  uint64_t calls_so_far;
  gbi_native_op ops[GBI_NATIVE_OPS_MOST];
};

/* "could not WHAT as member 1 of 4 on ..." from gbi_nccl_fail. */
gb_status gbi_native_fail(const gbi_native *native, ncclResult_t result,
                          const char *what, gb_error *error);
gb_status gbi_native_fail_aborted(const gbi_native *native, const char *what,
                                  gb_error *error);
/* Takes `inside` and gives the communicator; false: it was aborted, and nothing
 * is held. */
bool gbi_native_enter(gbi_native *native, ncclComm_t *comm_p);
void gbi_native_leave(gbi_native *native);
/* Waits until the communicator is not in progress any more. `aborted` may be
 * NULL. TIMEOUT, ABORTED, or what it failed with. */
gb_status gbi_native_settle(gbi_native *native, const char *what,
                            uint64_t deadline_ns, const _Atomic bool *aborted,
                            gb_error *error);

/* False: the library has no such type, bytes do for a copy. */
bool gbi_native_type(gb_dtype dtype, ncclDataType_t *type_p);
/* The library's operation; makes and remembers a PreMulSum where it takes one.
 * Inside gbi_native_enter. */
gb_status gbi_native_operation(gbi_native *native, ncclComm_t comm,
                               const gbi_native_call *call,
                               ncclDataType_t *type_p, ncclRedOp_t *op_p,
                               gb_error *error);
void gbi_native_operations_free(gbi_native *native, ncclComm_t comm);

#endif
