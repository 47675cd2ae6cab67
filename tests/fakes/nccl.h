/* fakes: NCCL and RCCL without a GPU, one source for libnccl.so.2 and
 * librccl.so.1 (FAKE_RCCL).
 *
 * Real collectives among real processes: members meet in a file of shared
 * memory named by the unique id, which is unlinked as soon as all have it. A
 * call becomes a kernel on the caller's fake stream; the kernels of all members
 * move the data, and wait for each other there, on the queue's thread.
 *
 * What is like the real library, because programs have been bitten by it:
 *  - blocking = 0: InProgress while a communicator opens, closes, or makes
 *    connections at a first use (p2p always, collectives from 2.22 on, by all
 *    members together); a call meanwhile is InvalidArgument;
 *  - calls of different order, type or size on two members hang until an abort;
 *  - kernels of a communicator run in the order of their launches; abort and
 *    destroy wait for all of them to end, also for those that have not begun
 *    because a gate in front of them is shut;
 *  - a member that died or aborted ends the others' waits: ncclRemoteError;
 *  - two members with one GPU (equal FAKE_GPU_UUID and device): InvalidUsage;
 *  - a PreMulSum operation belongs to one communicator and one type;
 *  - count 0: a collective is dropped, a send or receive meets its peer.
 *
 * What is not: one stream a communicator in a group; collectives of a group run
 * in the order of issue, then its sends and receives together; no capture.
 *
 * Reductions add in the order of ranks, 0 first. float16 and bfloat16 are
 * combined in float32 and rounded in each step, as are float8 types (too large
 * becomes the largest finite value); float8 is OCP in libnccl and FNUZ (gfx942)
 * in librccl. AVG: floats multiplied by 1/n, rounded to the type, before they
 * are added; integers divided at the end. */
#ifndef FAKES_NCCL_H
#define FAKES_NCCL_H

#include "ccl/native/nccl_abi.h"
#include "fakes/fakes.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#define FAKE_NCCL_MEMBERS_MOST 64
#define FAKE_NCCL_CHUNK ((size_t)128 << 10) /* of a collective */
#define FAKE_NCCL_RING ((size_t)64 << 10)   /* between two members */
#define FAKE_NCCL_MAGIC UINT64_C(0x0280028002800280)

enum { FAKE_ABSENT, FAKE_COMING, FAKE_HERE, FAKE_LEFT, FAKE_GONE };
enum { FAKE_COLLECTIVE, FAKE_P2P, FAKE_KINDS };

/* In the file: one for each member. */
typedef struct fake_place {
  _Atomic int state;
  _Atomic int pid;
  _Atomic uint64_t gpu;        /* hash of the GPU's name, 0: not known */
  _Atomic uint64_t posted;     /* chunks of collectives that are in `chunk` */
  _Atomic uint64_t taken;      /* of everybody's that this one has read */
  _Atomic uint64_t call[2][2]; /* what each chunk belongs to */
  _Atomic uint8_t wants[FAKE_KINDS][FAKE_NCCL_MEMBERS_MOST];
  char chunk[2][FAKE_NCCL_CHUNK];
} fake_place;

typedef struct fake_ring {
  _Atomic uint64_t written, read; /* bytes, each message from a multiple of 8 */
  char data[FAKE_NCCL_RING];
} fake_ring;

typedef struct fake_meeting {
  _Atomic int members_count; /* 0: nobody has said */
  _Atomic int here;          /* have come */
} fake_meeting;

/* A reduction: an operation and, for PreMulSum and Avg, its factor. */
typedef struct fake_reduction {
  int op; /* ncclSum ... ncclMin, after the factor; ncclAvg: integers only */
  bool scales;
  uint64_t factor_bits; /* in the type */
  int divisor;          /* of integers */
} fake_reduction;

typedef enum fake_op {
  FAKE_ALL_REDUCE = 1,
  FAKE_REDUCE,
  FAKE_REDUCE_SCATTER,
  FAKE_BROADCAST,
  FAKE_ALL_GATHER,
  FAKE_SEND,
  FAKE_RECV
} fake_op;

typedef struct fake_call {
  fake_op op;
  const void *src;
  void *dst;
  size_t count;
  int type;
  int root; /* or peer */
  fake_reduction reduction;
  struct ncclComm *comm;
  void *stream;
  const void *site; /* the call's, for failed checks */
  /* While it runs, of sends and receives. */
  bool begun;
  size_t moved;
  bool done;
} fake_call;

/* What one kernel does. */
typedef struct fake_plan {
  struct ncclComm *comm;
  uint64_t ticket;
  int kept;  /* of a graph: has no ticket, and runs more than once */
  int fails; /* ncclResult_t, 0 */
  void *stream;
  int count;
  fake_call calls[];
} fake_plan;

#define FAKE_OPS_MOST 64
struct ncclComm {
  uint64_t magic; /* of real ones since 2.21 */
  int members_count, me, device;
  bool blocking;
  bool is_member; /* has a place in the file */
  char file[96];
  char id[33];
  size_t bytes;
  fake_meeting *meeting;
  _Atomic int state;  /* InProgress, Success; see failed */
  _Atomic int failed; /* the first asynchronous error */
  _Atomic bool abort;
  _Atomic bool finalized;
  _Atomic bool unlinked;
  _Atomic int running;     /* kernels enqueued and not done */
  _Atomic int graphs;      /* kernels that graphs hold, and their replays */
  uint64_t tickets;        /* launched */
  _Atomic uint64_t ticket; /* whose turn it is */
  uint64_t chunks;         /* of collectives so far; only in kernels */
  bool connected[FAKE_KINDS][FAKE_NCCL_MEMBERS_MOST];
  int serial; /* in its operations: they are of one communicator */
  pthread_mutex_t job_lock;
  pthread_t job;
  bool job_is_there;
  fake_plan *pending; /* of the job */
  struct {
    bool is_there;
    int type;
    uint64_t factor_bits;
  } ops[FAKE_OPS_MOST];
};

/* nccl.c */
int fake_nccl_version(void);
void fake_nccl_say(const char *format, ...)
    __attribute__((format(printf, 1, 2)));

/* nccl_gpu.c: the fake GPU beside us. */
int fake_nccl_enqueue(fake_plan *plan, const char *what,
                      const fake_range *ranges, int ranges_count,
                      void (*run)(void *arg));
int fake_nccl_captures(void *stream);
void *fake_nccl_open(const void *memory);
int fake_nccl_device(void);
int fake_nccl_memory(void **memory_p, size_t bytes);
int fake_nccl_free(void *memory);

/* nccl_comm.c */
fake_place *fake_nccl_place(const struct ncclComm *comm, int member);
fake_ring *fake_nccl_ring(const struct ncclComm *comm, int from, int to);
ncclResult_t fake_nccl_join(struct ncclComm *comm, const ncclUniqueId *id);
/* Waits for all members; what it says is the communicator's state. */
ncclResult_t fake_nccl_meet(struct ncclComm *comm);
/* Waits until each member that `kinds` calls need wants it too. */
ncclResult_t fake_nccl_connect(struct ncclComm *comm, const fake_plan *plan);
bool fake_nccl_needs_connecting(struct ncclComm *comm, const fake_plan *plan);
/* A wait goes on: yields, then sleeps. False: the communicator is aborted, or a
 * member has gone; but what it did before may be what is waited for. */
bool fake_nccl_idle(struct ncclComm *comm, int *rounds);
#define FAKE_NCCL_WAIT(comm, rounds, condition, else_do) \
  while (!(condition))                                   \
    if (!fake_nccl_idle(comm, &(rounds)) && !(condition)) else_do
/* Says that a member is gone, unless it was an abort. What now is. */
ncclResult_t fake_nccl_give_up(struct ncclComm *comm);
void fake_nccl_leave(struct ncclComm *comm, int state);

/* nccl_run.c */
void fake_nccl_run(void *plan);
size_t fake_nccl_type_bytes(int type);

/* nccl_math.c. A member's contribution times its own factor. */
void fake_nccl_scale(int type, const fake_reduction *reduction, void *out,
                     const void *in, size_t count);
/* acc = acc op in */
void fake_nccl_combine(int type, int op, void *acc, const void *in,
                       size_t count);
/* After the last contribution. */
void fake_nccl_finish(int type, const fake_reduction *reduction, void *acc,
                      size_t count);
uint64_t fake_nccl_factor(int type, double factor);

#endif
