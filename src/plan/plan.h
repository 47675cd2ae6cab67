/* plan: the step language.
 *
 * A plan is what one rank does for one collective: a bounded list of steps. A
 * step runs on a resource (the island's communicator, the bridge, the world's
 * communicator of the `flat` policy, the mesh of single messages, or the rank
 * itself) over one contiguous range of elements. Steps on the rank run as soon
 * as what they depend on is done, in any order within GBI_LOCAL_AHEAD of the
 * first that waits. Steps of another resource start in
 * the order of the list, as soon as what they depend on is done; several may be
 * in flight.
 *
 * All ranks' plans of one call fit together: every member of a communicator
 * lists the same steps on it in the same order, and every send on the mesh has
 * its receive. check.h proves that.
 *
 * Plans are made by policies, run by the engine, cached by call shape. A plan
 * is immutable once made; any thread may read it. */
#ifndef GBI_PLAN_PLAN_H
#define GBI_PLAN_PLAN_H

#include "base/base.h"
#include "plan/topology.h"

#define GBI_PLAN_STEPS_MAX (1u << 20)
#define GBI_LOCAL_AHEAD 64
#define GBI_CHUNKS_MAX 65536 /* chunks grow rather than pass this */

typedef enum gbi_resource {
  GBI_ON_RANK,   /* local work */
  GBI_ON_ISLAND, /* members: the island's ranks, ascending */
  GBI_ON_BRIDGE, /* members: the holders of this rank's link, by island */
  GBI_ON_WORLD,  /* members: all ranks */
  GBI_ON_MESH,   /* members: all ranks; each lists its own messages only */
  GBI_RESOURCES
} gbi_resource;

typedef enum gbi_verb {
  /* On a communicator; the words of comm.h. */
  GBI_DO_REDUCE,
  GBI_DO_BROADCAST,
  GBI_DO_ALL_REDUCE,
  GBI_DO_TRANSFER,
  /* On the mesh: src to rank `peer`, dst from it. */
  GBI_DO_SEND,
  GBI_DO_RECV,
  /* On the world: a call as a whole, by the caller's own policy. */
  GBI_DO_CALL,
  /* On the rank. */
  GBI_DO_COPY,   /* src to dst, same dtype; nothing when they are one */
  GBI_DO_LOAD,   /* src times the call's factor, to dst of the wide type */
  GBI_DO_DIVIDE, /* dst by the world size, in place */
  GBI_DO_STORE,  /* wide src, for an AVG by the world size, to dst */
  GBI_DO_FOLD,   /* dst = row 0 (op) row 1 ..., rows of `count` at src, wide
                    ones where the step is wide; an AVG is divided too */
  GBI_DO_COMBINE, /* dst = src (op) dst where `number` is 0, dst (op) src where
                     it is 1; of what sums travel in. On a GPU only */
  /* Between what sums travel in and payloads of codec.h, in the scratch. */
  GBI_DO_ENCODE, /* src as one payload at dst; with feedback: `number` tells
                    the call's payloads apart */
  GBI_DO_DECODE  /* dst = the sum of `rows` payloads, one behind the other at
                    src, in their order */
} gbi_verb;

/* Phase names of spec 4.9; NONE is not shown. */
typedef enum gbi_phase_id {
  GBI_PHASE_NONE,
  GBI_PHASE_ISLAND_REDUCE,
  GBI_PHASE_ISLAND_GATHER,
  GBI_PHASE_BRIDGE,
  GBI_PHASE_ISLAND_BROADCAST,
  GBI_PHASE_ISLAND_SCATTER,
  GBI_PHASE_EXCHANGE, /* the mesh */
  GBI_PHASE_ISLAND_REDUCE_SCATTER,
  GBI_PHASE_ISLAND_ALL_GATHER,
  GBI_PHASE_COMPRESS,
  GBI_PHASE_DECOMPRESS,
  GBI_PHASES
} gbi_phase_id;
const char *gbi_phase_name(int phase); /* "island-reduce"; static */

typedef enum gbi_place { GBI_IN, GBI_OUT, GBI_SCRATCH } gbi_place;

/* `offset` counts elements of the step's dtype in the call's buffers, bytes in
 * the scratch. For in-place calls IN and OUT are one memory. */
typedef struct gbi_ref {
  uint8_t place;
  uint64_t offset;
} gbi_ref;
static inline gbi_ref gbi_ref_to(gbi_place place, uint64_t offset) {
  return (gbi_ref){(uint8_t)place, offset};
}

typedef struct gbi_step {
  uint8_t resource, verb, phase;
  uint8_t wide;       /* elements are of the wide type (a fold's: its src's) */
  uint8_t codec;      /* gbi_codec; a communicator's: elements are the bytes of
                         payloads */
  uint32_t rows;      /* DECODE */
  int32_t root, peer; /* member indices */
  uint32_t number;    /* mesh: equal on the two ends of a message */
  gbi_ref src, dst;
  uint64_t count;     /* elements */
  /* Of a plan's host part (core/stage.h), 0: none. */
  uint32_t gate;    /* starts once the device raised `ready` so far */
  uint32_t release; /* done, it is the release-th that `arrived` counts */
  /* Steps [from, from + count) must be done first; two ranges. */
  struct { uint32_t from, count; } deps[2];
} gbi_step;

/* One collective as a policy sees it. */
typedef struct gbi_coll {
  uint8_t op;      /* gbi_op */
  uint8_t dtype;   /* gb_dtype */
  uint8_t redop;   /* gb_redop, 255 none */
  int32_t root;    /* group rank, -1 none */
  uint64_t count;  /* all_reduce, broadcast, reduce: elements; all_gather and
                      gather: of one row; reduce_scatter and scatter: of one
                      slice; the v ops: of all rows; all_to_all: of one part */
  /* Elements of each row: of the v ops, one entry a rank; of an all_to_all
   * whose parts differ, this rank's parts of the input, then those of the
   * output (`count` is then 0). NULL for equal rows. Borrowed. */
  const uint64_t *counts;
  uint32_t counts_count;
} gbi_coll;
bool gbi_coll_equal(const gbi_coll *a, const gbi_coll *b);
/* Whether a call's elements travel in gbi_wide_dtype, into which each rank
 * loads them and from which the result is stored: averages of float16, so that
 * they cannot overflow; float8, which is rounded once; scaled sums. */
bool gbi_coll_is_wide(const gbi_coll *coll);
/* Contributions are multiplied by each rank's own factor. */
bool gbi_coll_is_scaled(const gbi_coll *coll);
/* The type that a call's elements travel in. */
gb_dtype gbi_coll_travel_dtype(const gbi_coll *coll);
/* IN and OUT are one memory: all_reduce, broadcast, reduce. */
bool gbi_coll_in_place(const gbi_coll *coll);
/* A copy of the lengths, to own and free; NULL: none, or no memory. */
uint64_t *gbi_coll_copy_counts(const gbi_coll *coll);
/* Elements of the input and the output of `rank`. */
void gbi_coll_extents(const gbi_coll *coll, int rank, int world, uint64_t *in,
                      uint64_t *out);
/* Bytes of its larger buffer on rank 0, which stands for all: what is chosen by
 * them must come out alike. */
uint64_t gbi_coll_bytes(const gbi_coll *coll, int world);
/* What of the lengths ranks must agree on: 31 bits of them, -1 without any. */
int32_t gbi_coll_counts_hash(const gbi_coll *coll);

typedef struct gbi_plan {
  gbi_coll coll;      /* with lengths of its own */
  const char *policy; /* name of the policy that made it; static */
  uint64_t *rows;     /* where each row begins and the last ends, NULL for equal
                         rows; an all_to_all's output parts follow */
  gbi_step *steps;
  uint32_t count;
  uint32_t capacity;
  uint64_t scratch_bytes;
  /* Per resource: the steps on it, in order. Made by gbi_plan_seal. */
  uint32_t *order;
  uint32_t first[GBI_RESOURCES + 1];
  /* Of a host part: the step of each release, from 1 on. */
  uint32_t *releases;
  uint32_t releases_count;
  uint16_t phases; /* bit p: this rank takes part in phase p */
  bool failed; /* a builder call ran out of memory or steps */
} gbi_plan;

gbi_plan *gbi_plan_new(const gbi_coll *coll);
void gbi_plan_free(gbi_plan *plan);
/* Where row `row` begins in the buffer of all rows (all_to_all: in the input),
 * in elements; row = world: its end. */
uint64_t gbi_plan_row_at(const gbi_plan *plan, int row);
/* The same in the output of an all_to_all. */
uint64_t gbi_plan_out_at(const gbi_plan *plan, int row);
/* Appends a copy; returns its index. On failure plan->failed is set. */
uint32_t gbi_plan_add(gbi_plan *plan, const gbi_step *step);
/* The last call: MEMORY when the plan failed. */
gb_status gbi_plan_seal(gbi_plan *plan, gb_error *error);

/* The element type of a communicator step, and bytes per element. */
gb_dtype gbi_step_dtype(const gbi_plan *plan, const gbi_step *step);

#endif
