/* Inside of sim: all ranks' plans as lanes. Nothing outside this folder
 * includes this header.
 *
 * A lane is one communicator, one rank's local work, or one rank's messages. As
 * all members list the same steps on a communicator, they are kept once, and a
 * step is known by its place. What is left of the plans of thousands of ranks
 * is which place on one lane waits for which on another: the gates. A place is
 * reached when all steps of its lane up to there are over, so of the gates
 * between the same two lanes of one rank only those count that ask for more
 * than the one before. */
#ifndef GBI_SIM_LANES_H
#define GBI_SIM_LANES_H

#include "sim/cost.h"
#include "sim/sim.h"

typedef enum gbi_lane_kind {
  GBI_LANE_ISLAND, /* number: the island */
  GBI_LANE_BRIDGE, /* the link */
  GBI_LANE_WORLD,
  GBI_LANE_RANK, /* the rank */
  GBI_LANE_MESH  /* the rank */
} gbi_lane_kind;

/* How far a step is: set up, its bytes on their way, all of them sent, over. */
typedef enum gbi_step_state {
  GBI_STEP_WAITS,
  GBI_STEP_SET_UP,
  GBI_STEP_MOVES,
  GBI_STEP_SENT,
  GBI_STEP_OVER
} gbi_step_state;

typedef struct gbi_lane_step {
  uint64_t bytes;
  double latency; /* set when it moves */
  int32_t root, peer;
  uint32_t needs; /* steps of this lane that must be over; mesh: the message's
                     number, then the place of its other end */
  uint8_t verb, state;
} gbi_lane_step;

typedef struct gbi_lane {
  gbi_lane_kind kind;
  int number;
  gbi_members members; /* none: of one rank */
  int listed;          /* members whose plan was taken in */
  gbi_lane_step *steps;
  uint32_t *pending; /* per step: gates that are shut */
  uint32_t count, capacity;
  /* Steps may start together, but their bytes move one step after the other;
   * the next one's when the last byte was sent, or when the step is over. */
  bool serial, to_the_end;
  bool in_order; /* the same among steps that have a sender in common */
  double moves_since, busy; /* of a serial one, seconds */
  uint32_t flying_most;
  uint32_t started, flying, ended; /* ended: all before it are over */
  uint32_t gate, gates_end;        /* those that wait for this lane */
} gbi_lane;

typedef struct gbi_gate {
  uint32_t lane, place; /* waits until `place` steps are over there */
  uint32_t to_lane, to_place;
  int rank;
} gbi_gate;

typedef struct gbi_lanes {
  const gbi_sim_spec *spec;
  gbi_cost *cost;
  int *ranks; /* lists of members */
  gbi_lane *lanes;
  uint32_t count;
  gbi_gate *gates; /* by (lane, place) */
  uint32_t gates_count, gates_capacity;
  uint64_t plan_steps;
  uint32_t *before[GBI_RESOURCES]; /* steps on it before the i-th: one plan's */
  uint32_t before_capacity;
} gbi_lanes;

gb_status gbi_lanes_open(const gbi_sim_spec *spec, gbi_cost *cost,
                         gbi_lanes *lanes, gb_error *error);
/* Also after a failed open. */
void gbi_lanes_free(gbi_lanes *lanes);
/* Makes and takes in every rank's plan of a call. */
gb_status gbi_lanes_fill(gbi_lanes *lanes, const gbi_coll *coll,
                         gb_error *error);
/* "island nvidia", "link 0", "local work of rank 3". */
void gbi_lane_name(const gbi_lanes *lanes, uint32_t lane, char *text,
                   size_t bytes);

#endif
