/* core/capture: a group's calls that were captured into graphs.
 *
 * A captured call is enqueued on the capturing stream alone, as one chain: a
 * graph's branches may run in any order, and a wait for the host that came
 * before what the host waits for would never end. Its nodes are replayed with
 * the values they were captured with, so it has flags of its own, which go up
 * and down with each replay, and a ring of its own:
 *
 *   GPU                                      the group's worker
 *   ready = 0, start = 1
 *   copies down, ready = 1, 2 ...            sees 1: arrived = over = 0, then
 *   waits for go >= 1, start = 2               go = 1
 *   waits for arrived >= 1, copies up ...    runs the host part, counts arrived
 *   waits for over >= 1                      done and sees 2: go = 0, over = 1
 *
 * What the GPU waits for only the host writes, so that a job that fails can
 * open all of it for good. And no value of the replay before is taken for this
 * one's: the host takes `go` back once the GPU is past it and before the chain
 * can end, the others before it gives `go`.
 *
 * Calls without a part for the host are the vendor library's, which captures
 * by itself: their nodes are all there is.
 *
 * A captured call lives as long as its graph and all that was instantiated of
 * it (on CUDA before 12.3: as long as the group). */
#ifndef GBI_CORE_CAPTURE_H
#define GBI_CORE_CAPTURE_H

#include "core/gpu.h"

typedef struct gbi_captures gbi_captures;
struct gbi_works;

gb_status gbi_captures_open(gbi_gpu *gpu, gbi_captures **captures_p,
                            gb_error *error);
/* The group has failed: nothing of them waits any longer, now or in a replay to
 * come. NULL is fine. Any thread. */
void gbi_captures_release(gbi_captures *captures);
/* Nobody replays any more. What graphs still hold stays, with its gates open
 * and a warning. NULL is fine. */
void gbi_captures_close(gbi_captures *captures);

/* Whether `stream`, which a call of the group is to go on, captures. */
gb_status gbi_capture_wanted(gbi_gpu *gpu, gbi_stream stream, bool *wanted_p,
                             gb_error *error);
/* A refusal of what cannot be captured: "WHAT cannot be captured into a graph:
 * WHY". Nothing was enqueued. */
gb_status gbi_capture_refuse(const char *what, const char *why,
                             gb_error *error);
/* Captures a call. *hosted_p: the worker has a part in its replays, and must be
 * there. *begun_p: nodes of it may be in the graph; a failure is then final,
 * else a refusal. With the GPU's lock held. */
gb_status gbi_capture_call(gbi_gpu *gpu, const gbi_policy_ops *policy,
                           const gbi_policy_env *env, const gbi_coll *coll,
                           const void *in, void *out, double factor,
                           gbi_stream stream, struct gbi_works *works,
                           bool *hosted_p, bool *begun_p, gb_error *error);

/* ---- the worker ---- */

/* Whether replays may come. Cheap, any thread. */
bool gbi_captures_any(gbi_captures *captures);
/* There is something for gbi_captures_take to do. Cheap. */
bool gbi_captures_rings(gbi_captures *captures);
/* Ends what can end, and takes up the replay that has begun: a work to run,
 * with `replay` set; NULL: none. MISMATCH when two have begun at once. */
gb_status gbi_captures_take(gbi_captures *captures, gb_work **work_p,
                            gb_error *error);
/* The host's part of it is done. The replay ends when the GPU is so far. */
void gbi_captures_end(gb_work *work);

#endif
