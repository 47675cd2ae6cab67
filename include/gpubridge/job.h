/* Job life: open, close, topology.
 *
 * A process opens at most one job at a time per gb_job; several jobs one after
 * another are fine. Unless a declaration says otherwise, any thread may call
 * it, outputs are set only on success, and `error` may be NULL. */
#ifndef GPUBRIDGE_JOB_H
#define GPUBRIDGE_JOB_H

#include <gpubridge/status.h>
#include <gpubridge/store.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gb_bridge_ops; /* parts.h */
struct gb_policy_ops;
typedef struct gb_job gb_job;     /* opaque, one per open */
typedef struct gb_group gb_group; /* opaque, owned by its job */

/* A name and a value, both borrowed, NUL-terminated UTF-8. */
typedef struct gb_pair {
  const char *name;
  const char *value;
} gb_pair;

/* What gb_job_open needs. Start from GB_JOB_PARAMS_INIT; every pointer is
 * borrowed until gb_job_open returns, except `wait_hook_arg`, which is lent
 * until gb_job_close returns. */
typedef struct gb_job_params {
  size_t size; /* sizeof(gb_job_params) of the caller's header */
  /* NULL or "env://", "tcp://host:port", "file:///path". Ignored when `store`
   * is given. "env://" reads MASTER_ADDR and MASTER_PORT. */
  const char *init_method;
  int rank;            /* -1: RANK */
  int world_size;      /* -1: WORLD_SIZE */
  uint64_t timeout_ms; /* discovery and every call; 0: 30 minutes */
  const char *bridge;  /* NULL: GPUBRIDGE_BRIDGE, else "auto" */
  const char *policy;  /* NULL: "auto" */
  const gb_store *store;
  /* Vendor of the build that calls, "nvidia" or "amd", or NULL when it cannot
   * be told; GPUBRIDGE_VENDOR wins. */
  const char *vendor;
  /* Facts about this rank that travel in its record and come back in
   * gb_peer_info, for example torch_version. At most 64, 4 KiB in all. */
  const gb_pair *facts;
  size_t facts_count;
  /* What stops this rank, found by the caller before opening: published, so
   * that every rank refuses with the same text. At most 16. */
  const char *const *problems;
  size_t problems_count;
  /* Called about ten times a second, without locks, on a thread that waits
   * inside a call of this job. A non-zero return ends that call with
   * GB_ERR_INTERRUPTED. NULL: waits end by deadline or failure only. */
  int (*wait_hook)(void *arg);
  void *wait_hook_arg;
  /* A name that separates this attempt's keys from others in one store.
   * NULL: TORCHELASTIC_RUN_ID and TORCHELASTIC_RESTART_COUNT. */
  const char *attempt;
  /* A bridge and a policy of the caller's own (parts.h), or NULL. They are used
   * where `bridge` and `policy` (or their variables) say their names. */
  const struct gb_bridge_ops *bridge_ops;
  const struct gb_policy_ops *policy_ops;
  /* Index of the GPU, among those that this process sees, whose memory the
   * job's calls are made on; `vendor` must say whose it is. -1: host memory.
   * Not used in simulation (GPUBRIDGE_VENDOR, GPUBRIDGE_CPU_ONLY). On a GPU a
   * call is ordered on the calling thread's stream (gb_use_stream) like any
   * work there: it returns once it is enqueued, and gb_work_wait makes that
   * stream wait, not the host. */
  int device;
} gb_job_params;

#define GB_JOB_PARAMS_INIT                                                     \
  {                                                                            \
    sizeof(gb_job_params), NULL, -1, -1, 0, NULL, NULL, NULL, NULL, NULL, 0,   \
        NULL, 0, NULL, NULL, NULL, NULL, NULL, -1                              \
  }

/* Joins the job: meets all ranks, checks that they agree, plans the islands,
 * connects everything. Blocks until it is up or until timeout_ms plus a second
 * or two. On failure nothing stays open, and the same refusal text is given on
 * every rank that took part.
 * Statuses: ARGUMENT, SETTING (this rank's own variable), REFUSED (agreed
 * refusal), TIMEOUT (names the ranks that never came), CONNECT, VERSION, AUTH,
 * SYSTEM, MEMORY, INTERRUPTED. The caller owns *job_p: gb_job_close. */
GB_API gb_status gb_job_open(const gb_job_params *params, gb_job **job_p,
                             gb_error *error) GB_MUST_CHECK;

/* Leaves in order: runs what is queued, says goodbye, joins every thread,
 * frees the job. Returns within 10 s plus the queue's own deadlines. NULL is a
 * no-op. In a forked child it frees nothing and returns GB_ERR_FORKED. */
GB_API gb_status gb_job_close(gb_job *job, gb_error *error);

/* Ends every pending and later call on every rank with `reason`. Returns at
 * once. `reason` is borrowed. */
GB_API void gb_job_abort(gb_job *job, const char *reason);

/* Runs the job's async calls on the calling thread, until gb_job_close is
 * called by another. For callers that must know the thread (an interpreter):
 * attach it before the first async call, else the library starts its own,
 * named gpubridge-async. FORKED. */
GB_API gb_status gb_job_serve(gb_job *job, gb_error *error) GB_MUST_CHECK;

/* The stream (a CUstream or hipStream_t; NULL: the legacy default one) that
 * this thread's next calls on GPUs are ordered on. While it captures, they go
 * into its graph and run at each replay (docs/gpu-engine.md, Graphs), or are
 * UNSUPPORTED where the runtime cannot capture them. */
GB_API void gb_use_stream(void *stream);

/* The group of all ranks; owned by the job. */
GB_API gb_group *gb_job_world(gb_job *job);

/* Everything below is fixed at open; strings live as long as the job. */
typedef struct gb_job_info {
  size_t size;
  int rank;
  int world_size;
  const char *vendor;          /* this rank's island label */
  const char *detected_vendor; /* differs from vendor in a split test only */
  const char *run_kind;        /* "cpu", "split-test", "gpu-mixed", ... */
  const char *split_test;      /* mode, or "" */
  const char *hostname;
  int simulated;               /* 1 in simulation and CPU-only mode */
  int island;                  /* index of this rank's island */
  int islands_count;
  int is_leader;
  const char *bridge_requested;
  const char *bridge;          /* "shm", "verbs", "tcp" ..., "none" with one
                                * island */
  const char *bridge_reason;   /* why it was chosen, one sentence */
  const char *policy;          /* resolved: never "auto" */
  uint64_t timeout_ms;
  int links;                   /* that join the islands, 0 with one island */
} gb_job_info;

typedef struct gb_island_info {
  size_t size;
  const char *label;
  const int *ranks; /* ascending */
  int ranks_count;
  int leader;
  const int *holders; /* the same ranks: number j holds link j, j < links */
} gb_island_info;

typedef struct gb_peer_info {
  size_t size;
  const char *vendor;
  const char *detected_vendor;
  const char *hostname;
  int island;
  const gb_pair *facts; /* what the peer gave in gb_job_params.facts */
  size_t facts_count;
  /* What RDMA device the peer could be joined by, where the bridge was left to
   * auto (rdma_asked). The link layer is "InfiniBand" or "RoCE"; the reason
   * says why a device is not usable, "" otherwise. */
  int rdma_asked, rdma_usable, rdma_port;
  const char *rdma_reason, *rdma_device, *rdma_link_layer, *rdma_address;
} gb_peer_info;

/* Fill a caller's struct whose `size` is set. ARGUMENT for an index out of
 * range. Never block. */
GB_API gb_status gb_job_get_info(const gb_job *job, gb_job_info *info);
GB_API gb_status gb_job_get_island(const gb_job *job, int index,
                                   gb_island_info *info);
GB_API gb_status gb_job_get_peer(const gb_job *job, int rank,
                                 gb_peer_info *info);

#ifdef __cplusplus
}
#endif
#endif
