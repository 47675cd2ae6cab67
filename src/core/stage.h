/* core/stage: a plan taken apart for a GPU: a list of operations for its
 * streams, enqueued as a whole when the call is issued, and a host part, which
 * the engine runs on pinned memory meanwhile (engine E1 and invariant G of
 * research/gpu-runtime-and-nccl.md D). Pure: no I/O, no streams.
 *
 * Steps of islands, copies and what arithmetic the device does go on the MAIN
 * lane in the plan's order. What the bridge, the mesh and other arithmetic work
 * on passes through a ring of pinned
 * memory: copied out on the OUT lane, which then raises `ready`; the host's
 * step has a gate at that number; what it wrote is copied in on the IN lane
 * once `arrived` counts its release. A range that one step of the host leaves
 * and the next one takes stays in the ring.
 *
 * What members of the bridge only copy from one another goes through areas that
 * all of them have pinned (core/shared.h), where they do: copied out to its
 * owner's area; all meet on the bridge, with no bytes; the others copy in from
 * there. Every member puts a step at the same place, so nobody is told where
 * it is. An area's two halves take turns: before one is written again all meet
 * once more, each when its copies from there are over.
 *
 * The END lane waits for all of it, so that the next call's first steps need
 * not.
 *
 * Order: a lane waits only for events recorded, and for releases of host steps
 * whose gates were raised, by operations earlier in the list. So one hardware
 * queue for all lanes is enough, and no order of other calls can lock it. */
#ifndef GBI_CORE_STAGE_H
#define GBI_CORE_STAGE_H

#include "plan/plan.h"

typedef enum gbi_lane {
  GBI_LANE_MAIN,
  GBI_LANE_OUT,
  GBI_LANE_IN,
  GBI_LANE_END, /* waits for all others: the call is over */
  GBI_LANES
} gbi_lane;

typedef enum gbi_stage_verb {
  GBI_STAGE_STEP,    /* MAIN: the plan's step `number` */
  GBI_STAGE_RECORD,  /* event `number` on `lane` */
  GBI_STAGE_WAIT,    /* `lane` waits for event `number` */
  GBI_STAGE_OUT,     /* OUT: `bytes` of ref to the ring, at `at` */
  GBI_STAGE_READY,   /* OUT: raises ready to `number` */
  GBI_STAGE_ARRIVED, /* `lane` waits until `number` releases arrived */
  GBI_STAGE_IN       /* IN: back from the ring to ref */
} gbi_stage_verb;

typedef struct gbi_stage_op {
  uint8_t verb, lane;
  uint8_t area; /* OUT, IN: 0 the ring; else 1 + the bridge member whose area */
  uint32_t number;
  gbi_ref ref; /* offset in bytes */
  uint64_t at, bytes;
} gbi_stage_op;

typedef struct gbi_staged {
  gbi_plan *host; /* refers to the ring as its scratch; may be empty */
  gbi_stage_op *ops;
  uint32_t ops_count;
  uint32_t events;  /* numbers 0 to events - 1 */
  uint32_t readies; /* the last number raised */
  uint32_t releases;
  uint64_t ring_used; /* bytes from its beginning */
  bool shares;        /* areas are used */
} gbi_staged;

/* The rank whose plan it is. */
typedef struct gbi_stage_self {
  const int *me; /* member index on each resource, [GBI_RESOURCES] */
  int world;     /* rows of a fold */
  /* Whether a step of arithmetic is one of MAIN's; NULL: none is. */
  bool (*on_device)(const void *arg, const gbi_plan *plan,
                    const gbi_step *step);
  const void *arg;
  /* Bytes of each bridge member's area for a call, equal on all; 0: none. */
  uint64_t shared_bytes;
} gbi_stage_self;

/* The smallest ring through which the plan goes; 0: it needs none. */
uint64_t gbi_stage_ring_least(const gbi_plan *plan, const gbi_stage_self *self);
/* ring_bytes: of the ring, at least the smallest. UNSUPPORTED for a plan of a
 * caller's own policy. The caller frees it, after it the plan. */
gb_status gbi_stage(const gbi_plan *plan, const gbi_stage_self *self,
                    uint64_t ring_bytes, gbi_staged **staged_p,
                    gb_error *error);
void gbi_staged_free(gbi_staged *staged);

#endif
