/* The functions of the fake NCCL; nccl.h says what it is. */
#include "fakes/nccl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

/* Each function is there twice, as in the real library: pncclX, and ncclX as a
 * weak alias of it. */
#define DECLARE(returns, name, parameters, needed) \
  returns p##name parameters;                      \
  returns name parameters                          \
      __attribute__((weak, alias("p" #name), visibility("default")));
#pragma GCC visibility push(default)
GBI_NCCL_FUNCTIONS(DECLARE)
GBI_NCCL_MORE_FUNCTIONS(DECLARE)
#pragma GCC visibility pop

/* --- settings, failures by order, the last error ------------------------ */

typedef struct rule {
  char function[48];
  int ordinal, result;
  _Atomic int calls;
} rule;
static rule rules[32];
static int rules_count, version_code = 22809;
static pthread_once_t settings_once = PTHREAD_ONCE_INIT;

static pthread_mutex_t said_lock = PTHREAD_MUTEX_INITIALIZER;
static char said[512];

static void read_settings(void) {
  const char *version = getenv("FAKE_NCCL_VERSION");
  const char *at = getenv("FAKE_NCCL_FAIL");
  if (version && version[0]) version_code = (int)strtol(version, NULL, 10);
  while (at && *at && rules_count < 32) {
    rule *r = &rules[rules_count];
    if (sscanf(at, "%47[^:]:%d:%d", r->function, &r->ordinal, &r->result) !=
        3) {
      fprintf(stderr, "fake NCCL: FAKE_NCCL_FAIL: not understood: %s\n", at);
      abort();
    }
    rules_count++;
    at = strchr(at, ',');
    if (at) at++;
  }
}

/* The result that this call of `function` is to fail with, 0. */
static ncclResult_t fails_now(const char *function) {
  pthread_once(&settings_once, read_settings);
  for (int i = 0; i < rules_count; i++) {
    rule *r = &rules[i];
    if (strcmp(r->function, function) != 0) continue;
    if (atomic_fetch_add(&r->calls, 1) + 1 != r->ordinal) continue;
    fake_nccl_say("call %d of %s fails as FAKE_NCCL_FAIL says", r->ordinal,
                  function);
    return (ncclResult_t)r->result;
  }
  return ncclSuccess;
}

#define ENTER(function)                       \
  do {                                        \
    ncclResult_t fails = fails_now(function); \
    if (fails != ncclSuccess) return fails;   \
  } while (0)

int fake_nccl_version(void) {
  pthread_once(&settings_once, read_settings);
  return version_code;
}

void fake_nccl_say(const char *format, ...) {
  va_list args;
  va_start(args, format);
  pthread_mutex_lock(&said_lock);
  vsnprintf(said, sizeof said, format, args);
  pthread_mutex_unlock(&said_lock);
  va_end(args);
}

static ncclResult_t refuse(ncclResult_t result, const char *why) {
  fake_nccl_say("%s", why);
  return result;
}

const char *pncclGetLastError(ncclComm_t comm) {
  static _Thread_local char mine[sizeof said];
  (void)comm;
  pthread_mutex_lock(&said_lock);
  memcpy(mine, said, sizeof mine);
  pthread_mutex_unlock(&said_lock);
  return mine;
}

const char *pncclGetErrorString(ncclResult_t result) {
  switch ((int)result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    case GBI_NCCL_TIMEOUT: return "operation timed out";
    default: return "unknown result code";
  }
}

ncclResult_t pncclGetVersion(int *version) {
  ENTER("ncclGetVersion");
  if (!version) return ncclInvalidArgument;
  *version = fake_nccl_version();
  return ncclSuccess;
}

/* --- jobs: what a non-blocking communicator does in a thread ------------- */

static void nap(void) {
  struct timespec time = {0, 100000};
  nanosleep(&time, NULL);
}

static void join_job(ncclComm_t comm) {
  pthread_mutex_lock(&comm->job_lock);
  if (comm->job_is_there) pthread_join(comm->job, NULL);
  comm->job_is_there = false;
  pthread_mutex_unlock(&comm->job_lock);
}

static void end_job(ncclComm_t comm, ncclResult_t result) {
  int none = 0;
  if (result != ncclSuccess)
    atomic_compare_exchange_strong(&comm->failed, &none, (int)result);
  atomic_store(&comm->state, ncclSuccess);
}

/* In a thread, or here when the communicator is a blocking one. */
static ncclResult_t start_job(ncclComm_t comm, void *(*run)(void *)) {
  join_job(comm);
  atomic_store(&comm->state, ncclInProgress);
  if (comm->blocking) {
    run(comm);
    return (ncclResult_t)atomic_load(&comm->failed);
  }
  pthread_mutex_lock(&comm->job_lock);
  int error = pthread_create(&comm->job, NULL, run, comm);
  comm->job_is_there = error == 0;
  pthread_mutex_unlock(&comm->job_lock);
  if (error == 0) return ncclInProgress;
  end_job(comm, ncclSystemError);
  return ncclSystemError;
}

/* Takes until all kernels have ended, gates in front of them included. */
static void wait_for_kernels(ncclComm_t comm) {
  while (atomic_load(&comm->running)) nap();
}

/* The real one polls for the end of what graphs hold too. */
static void wait_for_graphs(ncclComm_t comm) {
  while (atomic_load(&comm->graphs)) nap();
}

static void free_comm(ncclComm_t comm, int state) {
  fake_nccl_leave(comm, state);
  pthread_mutex_destroy(&comm->job_lock);
  comm->magic = 0;
  free(comm);
}

/* --- communicators ------------------------------------------------------- */

ncclResult_t pncclGetUniqueId(ncclUniqueId *id) {
  ENTER("ncclGetUniqueId");
  if (!id) return ncclInvalidArgument;
  memset(id, 0, sizeof *id);
  if (getrandom(id, 16, 0) != 16) return ncclSystemError;
  return ncclSuccess;
}

/* The id travels in the communicator until its job has read it. */
typedef struct init_job {
  struct ncclComm comm;
  ncclUniqueId id;
} init_job;

static void *run_init(void *arg) {
  init_job *job = arg;
  ncclResult_t result = fails_now("init");
  if (result == ncclSuccess) result = fake_nccl_join(&job->comm, &job->id);
  if (result == ncclSuccess) result = fake_nccl_meet(&job->comm);
  end_job(&job->comm, result);
  return NULL;
}

static ncclResult_t read_config(const ncclConfig_t *config, bool *blocking_p) {
  *blocking_p = true;
  if (!config) return ncclSuccess;
  if (config->size < offsetof(ncclConfig_t, blocking) + sizeof(int) ||
      config->magic != GBI_NCCL_CONFIG_MAGIC)
    return refuse(ncclInvalidArgument,
                  "ncclConfig_t argument not initialized via "
                  "NCCL_CONFIG_INITIALIZER");
  if (config->version < 21400 || config->blocking == GBI_NCCL_CONFIG_UNDEFINED)
    return ncclSuccess;
  if (config->blocking != 0 && config->blocking != 1)
    return refuse(ncclInvalidArgument, "Invalid config blocking attribute");
  *blocking_p = config->blocking;
  return ncclSuccess;
}

static _Thread_local struct {
  int depth;
  ncclResult_t failed;
  fake_call *calls;
  int count, most;
} group;

ncclResult_t pncclCommInitRankConfig(ncclComm_t *comm_p, int nranks,
                                     ncclUniqueId id, int rank,
                                     ncclConfig_t *config) {
  static _Atomic int serials;
  ENTER("ncclCommInitRankConfig");
  if (!comm_p || nranks < 1 || rank < 0 || rank >= nranks)
    return refuse(ncclInvalidArgument, "Invalid rank requested");
  *comm_p = NULL;
  if (nranks > FAKE_NCCL_MEMBERS_MOST || group.depth)
    return refuse(ncclInvalidUsage,
                  "the fake opens 64 ranks at most, and not in a group");
  bool blocking;
  ncclResult_t result = read_config(config, &blocking);
  if (result != ncclSuccess) return result;
  init_job *job = calloc(1, sizeof *job);
  if (!job) return ncclSystemError;
  ncclComm_t comm = &job->comm;
  job->id = id;
  comm->magic = FAKE_NCCL_MAGIC;
  comm->members_count = nranks;
  comm->me = rank;
  comm->device = fake_nccl_device();
  comm->blocking = blocking;
  comm->serial = atomic_fetch_add(&serials, 1) % 1000;
  pthread_mutex_init(&comm->job_lock, NULL);
  result = start_job(comm, run_init);
  if (result == ncclSuccess || result == ncclInProgress)
    *comm_p = comm;
  else
    free_comm(comm, FAKE_GONE);
  return result;
}

ncclResult_t pncclCommInitRank(ncclComm_t *comm_p, int nranks, ncclUniqueId id,
                               int rank) {
  ENTER("ncclCommInitRank");
  return ncclCommInitRankConfig(comm_p, nranks, id, rank, NULL);
}

static bool is_comm(ncclComm_t comm) {
  return comm && comm->magic == FAKE_NCCL_MAGIC;
}

/* Whether it takes a call now. */
static ncclResult_t ready(ncclComm_t comm) {
  if (!is_comm(comm))
    return refuse(ncclInvalidArgument,
                  "comm argument is "
                  "not a communicator");
  int failed = atomic_load(&comm->failed);
  if (failed) return (ncclResult_t)failed;
  if (atomic_load(&comm->abort))
    return refuse(ncclInvalidUsage, "communicator is being aborted");
  if (atomic_load(&comm->state) == ncclInProgress)
    return refuse(ncclInvalidArgument,
                  "Attempt to use communicator before the previous operation "
                  "returned ncclSuccess");
  if (atomic_load(&comm->finalized))
    return refuse(ncclInvalidUsage, "communicator was finalized");
  return ncclSuccess;
}

static void *run_finalize(void *arg) {
  ncclComm_t comm = arg;
  wait_for_kernels(comm);
  end_job(comm, ncclSuccess);
  return NULL;
}

ncclResult_t pncclCommFinalize(ncclComm_t comm) {
  ENTER("ncclCommFinalize");
  ncclResult_t result = ready(comm);
  if (result != ncclSuccess) return result;
  atomic_store(&comm->finalized, true);
  return start_job(comm, run_finalize);
}

ncclResult_t pncclCommDestroy(ncclComm_t comm) {
  ENTER("ncclCommDestroy");
  if (!comm) return ncclSuccess;
  if (!is_comm(comm)) return ncclInvalidArgument;
  join_job(comm);
  wait_for_kernels(comm);
  wait_for_graphs(comm);
  free_comm(comm, atomic_load(&comm->failed) ? FAKE_GONE : FAKE_LEFT);
  return ncclSuccess;
}

ncclResult_t pncclCommAbort(ncclComm_t comm) {
  ENTER("ncclCommAbort");
  if (!comm) return ncclSuccess;
  if (!is_comm(comm)) return ncclInvalidArgument;
  atomic_store(&comm->abort, true);
  join_job(comm);
  wait_for_kernels(comm);
  wait_for_graphs(comm);
  free_comm(comm, FAKE_GONE);
  return ncclSuccess;
}

ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
  ENTER("ncclCommGetAsyncError");
  if (!is_comm(comm) || !error) return ncclInvalidArgument;
  /* In this order: a job that fails says so before it says that it is done. */
  int state = atomic_load(&comm->state), failed = atomic_load(&comm->failed);
  *error = (ncclResult_t)(failed ? failed : state);
  return ncclSuccess;
}

ncclResult_t pncclCommCount(const ncclComm_t comm, int *count) {
  ENTER("ncclCommCount");
  if (!is_comm(comm) || !count) return ncclInvalidArgument;
  *count = comm->members_count;
  return ncclSuccess;
}

ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int *device) {
  ENTER("ncclCommCuDevice");
  if (!is_comm(comm) || !device) return ncclInvalidArgument;
  *device = comm->device;
  return ncclSuccess;
}

ncclResult_t pncclCommUserRank(const ncclComm_t comm, int *rank) {
  ENTER("ncclCommUserRank");
  if (!is_comm(comm) || !rank) return ncclInvalidArgument;
  *rank = comm->me;
  return ncclSuccess;
}

ncclResult_t pncclMemAlloc(void **memory_p, size_t bytes) {
  ENTER("ncclMemAlloc");
  return fake_nccl_memory(memory_p, bytes) == 0 ? ncclSuccess
                                                : ncclUnhandledCudaError;
}

ncclResult_t pncclMemFree(void *memory) {
  ENTER("ncclMemFree");
  return fake_nccl_free(memory) == 0 ? ncclSuccess : ncclUnhandledCudaError;
}

/* --- operations of a communicator ---------------------------------------- */

static bool is_float(int type) {
  return (type >= ncclFloat16 && type <= ncclBfloat16) ||
         type >= GBI_NCCL_FLOAT8_E4M3;
}

static ncclResult_t check_type(int type) {
  int types = fake_nccl_version() >= 22400 ? 12 : 10;
  if (type < 0 || type >= types)
    return refuse(ncclInvalidArgument, "invalid type");
  return ncclSuccess;
}

/* Handles: 5 on, different ones in each communicator. */
static int first_handle(ncclComm_t comm) {
  return 5 + comm->serial * FAKE_OPS_MOST;
}

ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar,
                                       ncclDataType_t type,
                                       ncclScalarResidence_t residence,
                                       ncclComm_t comm) {
  ENTER("ncclRedOpCreatePreMulSum");
  ncclResult_t result = ready(comm);
  if (result == ncclSuccess) result = check_type((int)type);
  if (result != ncclSuccess) return result;
  if (residence != ncclScalarHostImmediate)
    return refuse(ncclInvalidUsage, "the fake takes scalars of the host only");
  for (int i = 0; i < FAKE_OPS_MOST; i++) {
    if (comm->ops[i].is_there) continue;
    comm->ops[i].is_there = true;
    comm->ops[i].type = (int)type;
    comm->ops[i].factor_bits = 0;
    memcpy(&comm->ops[i].factor_bits, scalar, fake_nccl_type_bytes((int)type));
    *op = (ncclRedOp_t)(first_handle(comm) + i);
    return ncclSuccess;
  }
  return refuse(ncclInternalError, "too many operations were not destroyed");
}

/* The communicator's operation of that handle, -1. */
static int find_op(ncclComm_t comm, int op) {
  int index = op - first_handle(comm);
  return index >= 0 && index < FAKE_OPS_MOST && comm->ops[index].is_there
             ? index
             : -1;
}

ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  ENTER("ncclRedOpDestroy");
  if (!is_comm(comm)) return ncclInvalidArgument;
  int index = find_op(comm, (int)op);
  if (index < 0)
    return refuse(ncclInvalidArgument, "operator unknown to this communicator");
  comm->ops[index].is_there = false;
  return ncclSuccess;
}

static ncclResult_t read_op(ncclComm_t comm, int op, int type,
                            fake_reduction *reduction) {
  if (op >= ncclSum && op < ncclAvg) {
    reduction->op = op;
    return ncclSuccess;
  }
  reduction->op = ncclSum;
  if (op == ncclAvg && !is_float(type)) {
    reduction->divisor = comm->members_count;
  } else if (op == ncclAvg) {
    reduction->scales = true;
    reduction->factor_bits = fake_nccl_factor(type, 1.0 / comm->members_count);
  } else {
    int index = find_op(comm, op);
    if (index < 0 || comm->ops[index].type != type)
      return refuse(ncclInvalidArgument,
                    "operator unknown to this communicator, or of another "
                    "type");
    reduction->scales = true;
    reduction->factor_bits = comm->ops[index].factor_bits;
  }
  return ncclSuccess;
}

/* --- launches ------------------------------------------------------------ */

static bool reads(const fake_call *call) {
  return call->op != FAKE_RECV &&
         (call->op != FAKE_BROADCAST || call->root == call->comm->me);
}

static bool writes(const fake_call *call) {
  return call->op != FAKE_SEND &&
         (call->op != FAKE_REDUCE || call->root == call->comm->me);
}

static int ranges_of(const fake_plan *plan, fake_range *ranges) {
  int n = 0;
  for (int i = 0; i < plan->count; i++) {
    const fake_call *call = &plan->calls[i];
    size_t bytes = call->count * fake_nccl_type_bytes(call->type);
    size_t all = bytes * (size_t)call->comm->members_count;
    if (reads(call) && bytes)
      ranges[n++] = (fake_range){
          call->src, call->op == FAKE_REDUCE_SCATTER ? all : bytes, 0};
    if (writes(call) && bytes)
      ranges[n++] =
          (fake_range){call->dst, call->op == FAKE_ALL_GATHER ? all : bytes, 1};
  }
  return n;
}

static const char *name_of(const fake_plan *plan) {
  static const char *const names[] = {"?",
                                      "ncclAllReduce",
                                      "ncclReduce",
                                      "ncclReduceScatter",
                                      "ncclBroadcast",
                                      "ncclAllGather",
                                      "ncclSend",
                                      "ncclRecv"};
  return plan->count == 1 ? names[plan->calls[0].op] : "nccl group";
}

static ncclResult_t enqueue(fake_plan *plan) {
  ncclComm_t comm = plan->comm;
  fake_range *ranges = malloc(2 * (size_t)plan->count * sizeof *ranges);
  if (!ranges) return ncclSystemError;
  int ranges_count = ranges_of(plan, ranges);
  plan->kept = fake_nccl_captures(plan->stream);
  if (!plan->kept) {
    plan->ticket = comm->tickets++;
    atomic_fetch_add(&comm->running, 1);
  }
  int error = fake_nccl_enqueue(plan, name_of(plan), ranges, ranges_count,
                                fake_nccl_run);
  free(ranges);
  if (error == 0) return ncclSuccess;
  if (!plan->kept) {
    comm->tickets--;
    atomic_fetch_sub(&comm->running, 1);
    free(plan);
  }
  return refuse(ncclUnhandledCudaError, "the kernel could not be launched");
}

static void *run_connect(void *arg) {
  ncclComm_t comm = arg;
  ncclResult_t result = fake_nccl_connect(comm, comm->pending);
  if (result == ncclSuccess)
    result = enqueue(comm->pending);
  else
    free(comm->pending);
  comm->pending = NULL;
  end_job(comm, result);
  return NULL;
}

/* All calls of the group that are the communicator's, as one kernel. */
static ncclResult_t launch(ncclComm_t comm, fake_call *calls, int count) {
  fake_plan *plan = calloc(1, sizeof *plan + (size_t)count * sizeof *calls);
  if (!plan) return ncclSystemError;
  plan->comm = comm;
  for (int i = 0; i < count; i++) {
    bool p2p = calls[i].op == FAKE_SEND || calls[i].op == FAKE_RECV;
    if (calls[i].comm != comm || (calls[i].count == 0 && !p2p)) continue;
    ncclResult_t fails = fails_now("async");
    if (fails != ncclSuccess) plan->fails = (int)fails;
    if (plan->count && plan->stream != calls[i].stream) {
      free(plan);
      return refuse(ncclInvalidUsage,
                    "the fake takes one stream a communicator in a group");
    }
    plan->stream = calls[i].stream;
    plan->calls[plan->count++] = calls[i];
  }
  if (plan->count == 0) {
    free(plan);
    return ncclSuccess;
  }
  if (!fake_nccl_needs_connecting(comm, plan)) return enqueue(plan);
  comm->pending = plan;
  return start_job(comm, run_connect);
}

static ncclResult_t launch_group(void) {
  ncclResult_t worst = group.failed;
  for (int i = 0; i < group.count && worst == ncclSuccess; i++) {
    ncclComm_t comm = group.calls[i].comm;
    bool seen = false;
    for (int j = 0; j < i; j++) seen |= group.calls[j].comm == comm;
    if (seen) continue;
    ncclResult_t result = launch(comm, group.calls, group.count);
    if (result == ncclSuccess || result == ncclInProgress)
      worst = result == ncclInProgress ? worst : ncclSuccess;
    else
      worst = result;
  }
  bool in_progress = false;
  for (int i = 0; i < group.count && worst == ncclSuccess; i++)
    in_progress |= atomic_load(&group.calls[i].comm->state) == ncclInProgress;
  free(group.calls);
  group.calls = NULL;
  group.count = group.most = 0;
  group.failed = ncclSuccess;
  return worst == ncclSuccess && in_progress ? ncclInProgress : worst;
}

ncclResult_t pncclGroupStart(void) {
  ENTER("ncclGroupStart");
  group.depth++;
  return ncclSuccess;
}

ncclResult_t pncclGroupEnd(void) {
  ENTER("ncclGroupEnd");
  if (group.depth == 0)
    return refuse(ncclInvalidUsage, "ncclGroupEnd: not in a group call");
  return --group.depth ? ncclSuccess : launch_group();
}

static ncclResult_t check_call(const fake_call *call, int op) {
  ncclResult_t result = ready(call->comm);
  if (result == ncclSuccess) result = check_type(call->type);
  if (result != ncclSuccess) return result;
  if (call->root < 0 || call->root >= call->comm->members_count)
    return refuse(ncclInvalidArgument, "invalid root or peer");
  if (call->count &&
      ((reads(call) && !call->src) || (writes(call) && !call->dst)))
    return refuse(ncclInvalidArgument, "a buffer is NULL");
  return op < 0 ? ncclSuccess
                : read_op(call->comm, op, call->type,
                          (fake_reduction *)&call->reduction);
}

static ncclResult_t keep(const fake_call *call) {
  if (group.count == group.most) {
    int most = group.most ? 2 * group.most : 16;
    fake_call *calls = realloc(group.calls, (size_t)most * sizeof *calls);
    if (!calls) return ncclSystemError;
    group.calls = calls;
    group.most = most;
  }
  group.calls[group.count++] = *call;
  return ncclSuccess;
}

/* `op`: -1 when the call reduces nothing. */
static ncclResult_t submit(fake_call call, const void *site, int op) {
  call.site = site;
  ncclResult_t result = check_call(&call, op);
  if (result == ncclSuccess) result = keep(&call);
  if (result != ncclSuccess) {
    if (group.depth && group.failed == ncclSuccess) group.failed = result;
    return result;
  }
  return group.depth ? ncclSuccess : launch_group();
}

ncclResult_t pncclAllReduce(const void *src, void *dst, size_t count,
                            ncclDataType_t type, ncclRedOp_t op,
                            ncclComm_t comm, void *stream) {
  ENTER("ncclAllReduce");
  return submit((fake_call){.op = FAKE_ALL_REDUCE,
                            .src = src,
                            .dst = dst,
                            .count = count,
                            .type = (int)type,
                            .comm = comm,
                            .stream = stream},
                __builtin_return_address(0), (int)op);
}

ncclResult_t pncclReduce(const void *src, void *dst, size_t count,
                         ncclDataType_t type, ncclRedOp_t op, int root,
                         ncclComm_t comm, void *stream) {
  ENTER("ncclReduce");
  return submit((fake_call){.op = FAKE_REDUCE,
                            .src = src,
                            .dst = dst,
                            .count = count,
                            .type = (int)type,
                            .root = root,
                            .comm = comm,
                            .stream = stream},
                __builtin_return_address(0), (int)op);
}

ncclResult_t pncclReduceScatter(const void *src, void *dst, size_t count,
                                ncclDataType_t type, ncclRedOp_t op,
                                ncclComm_t comm, void *stream) {
  ENTER("ncclReduceScatter");
  return submit((fake_call){.op = FAKE_REDUCE_SCATTER,
                            .src = src,
                            .dst = dst,
                            .count = count,
                            .type = (int)type,
                            .comm = comm,
                            .stream = stream},
                __builtin_return_address(0), (int)op);
}

ncclResult_t pncclBroadcast(const void *src, void *dst, size_t count,
                            ncclDataType_t type, int root, ncclComm_t comm,
                            void *stream) {
  ENTER("ncclBroadcast");
  return submit((fake_call){.op = FAKE_BROADCAST,
                            .src = src,
                            .dst = dst,
                            .count = count,
                            .type = (int)type,
                            .root = root,
                            .comm = comm,
                            .stream = stream},
                __builtin_return_address(0), -1);
}

/* Through the public name, as the real one does. */
ncclResult_t pncclBcast(void *buffer, size_t count, ncclDataType_t type,
                        int root, ncclComm_t comm, void *stream) {
  ENTER("ncclBcast");
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

ncclResult_t pncclAllGather(const void *src, void *dst, size_t count,
                            ncclDataType_t type, ncclComm_t comm,
                            void *stream) {
  ENTER("ncclAllGather");
  return submit((fake_call){.op = FAKE_ALL_GATHER,
                            .src = src,
                            .dst = dst,
                            .count = count,
                            .type = (int)type,
                            .comm = comm,
                            .stream = stream},
                __builtin_return_address(0), -1);
}

ncclResult_t pncclSend(const void *src, size_t count, ncclDataType_t type,
                       int peer, ncclComm_t comm, void *stream) {
  ENTER("ncclSend");
  return submit((fake_call){.op = FAKE_SEND,
                            .src = src,
                            .count = count,
                            .type = (int)type,
                            .root = peer,
                            .comm = comm,
                            .stream = stream},
                __builtin_return_address(0), -1);
}

ncclResult_t pncclRecv(void *dst, size_t count, ncclDataType_t type, int peer,
                       ncclComm_t comm, void *stream) {
  ENTER("ncclRecv");
  return submit((fake_call){.op = FAKE_RECV,
                            .dst = dst,
                            .count = count,
                            .type = (int)type,
                            .root = peer,
                            .comm = comm,
                            .stream = stream},
                __builtin_return_address(0), -1);
}
