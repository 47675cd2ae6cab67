/* Parts of a job that its caller brings along: a bridge, a policy.
 *
 * Both are structs of callbacks in gb_job_params, given alike on every rank.
 * The library still meets, plans islands, numbers calls and turns a failure
 * into one sentence on every rank; the callbacks move the data.
 *
 * A callback runs on the thread that makes the call (async calls: on the thread
 * of gb_group_serve), one at a time per group, in the same order on every rank.
 * It may block. It may call collectives of other groups, never of its own. A
 * callback that fails writes one line why, without a final stop, to `text`; the
 * job then ends on every rank with that reason. GB_PART_INTERRUPTED: the user
 * of this rank wants out (Ctrl-C); the call ends with GB_ERR_INTERRUPTED. */
#ifndef GPUBRIDGE_PARTS_H
#define GPUBRIDGE_PARTS_H

#include <gpubridge/coll.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GB_PART_OK 0
#define GB_PART_NO 1 /* where a question is answered */
#define GB_PART_FAILED (-1)
#define GB_PART_INTERRUPTED (-2)

/* Where a link is to be opened. Borrowed during the call. */
typedef struct gb_bridge_site {
  size_t size;
  const struct gb_job *job; /* may be asked by gb_job_get_peer */
  uint32_t group;           /* 0: the world */
  const int *ranks;         /* global ranks of the members, ascending */
  int count;
  int is_member; /* this rank is one of them */
  uint64_t timeout_ms;
} gb_bridge_site;

typedef struct gb_bridge_ops {
  size_t size;      /* sizeof(gb_bridge_ops) */
  void *arg;        /* lent until gb_job_close returns */
  const char *name; /* 1 to 31 bytes, none of the library's bridges */
  uint32_t redops;  /* bit n: all_reduce can do gb_redop n */
  uint32_t dtypes;  /* bit n: all_reduce can do gb_dtype n; 0: all */
  /* Once per link of a group, on every rank of the group, in one order. Members
   * set *link_p, which the calls below get; the others may leave it NULL. */
  int (*open)(void *arg, const gb_bridge_site *site, void **link_p, char *text,
              size_t text_bytes);
  /* In place among the members; all must end with the same bits. */
  int (*all_reduce)(void *link, const gb_buffer *buffer, gb_redop op,
                    char *text, size_t text_bytes);
  /* In place from global rank `src`, whose buffer must not be changed. Every
   * call of a group begins with 24 bytes from the first member, that say what
   * it is: islands that call different things are told of it. */
  int (*broadcast)(void *link, const gb_buffer *buffer, int src, char *text,
                   size_t text_bytes);
  /* Only for links that were set. */
  void (*close)(void *link);
} gb_bridge_ops;

/* One call, as a policy sees it. AVG and PREMUL_SUM come as sums. */
typedef struct gb_policy_call {
  size_t size;
  const char *op; /* "all_reduce", "broadcast", "all_gather_into_tensor",
                     "reduce_scatter_tensor" */
  gb_dtype dtype;
  int redop;       /* gb_redop, -1: none */
  int src;         /* global rank of a broadcast's source, else -1 */
  const void *in;  /* all_reduce, broadcast: the same memory as out */
  size_t in_count; /* elements */
  void *out;
  size_t out_count;
} gb_policy_call;

/* The world's policy. Other groups, and the collectives that are not in
 * gb_policy_call, use the library's own. Every call first meets: run is called
 * on no rank before all ranks have come to this call and agree about it, and
 * not for calls without elements. */
typedef struct gb_policy_ops {
  size_t size;          /* sizeof(gb_policy_ops) */
  void *arg;            /* lent until gb_job_close returns */
  const char *name;     /* 1 to 63 bytes, none of the library's policies */
  const char *settings; /* a text that all ranks must agree about, or NULL */
  /* GB_PART_OK: fits islands with these labels, one a rank; GB_PART_NO. */
  int (*fits)(void *arg, const char *const *labels, int count, char *text,
              size_t text_bytes);
  /* Asked before a call is taken, memory not given: GB_PART_OK; GB_PART_NO
   * refuses it with `text`, on this rank alone: it must say the same on all. */
  int (*accepts)(void *arg, const gb_policy_call *call, char *text,
                 size_t text_bytes);
  int (*run)(void *arg, const gb_policy_call *call, char *text,
             size_t text_bytes);
} gb_policy_ops;

#ifdef __cplusplus
}
#endif
#endif
