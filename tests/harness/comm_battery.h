/* The battery that every communicator passes (comm/comm.h).
 *
 *   GB_COMM_BATTERY(host, gbi_ccl_host_open)
 *
 * makes cases for 1 to 8 members: every kind, type and operation over sizes
 * around the piece borders, any root, in place and not; sums in member order
 * bit for bit; several steps in flight; disagreeing calls; a frozen member;
 * eight ranks on one core; stop; no page fault once warm.
 *
 * The pieces below it serve tests of their own: open, start, drive, close. */
#ifndef GB_COMM_BATTERY_H
#define GB_COMM_BATTERY_H

#include "ccl/ccl.h"
#include "comm/comm.h"
#include "harness/gb_area.h"
#include "harness/gb_test.h"

typedef gb_status (*gb_comm_open_fn)(const gbi_transport_params *params,
                                     const int *host_index,
                                     gbi_comm **comm_p, gb_error *error);

enum { GB_STEPS_MAX = 8 };

/* One rank's end: an area, a communicator over all ranks of the case and room
 * for the states of a few steps. Member i is rank i. */
typedef struct gb_battery {
  gbi_hostarea *area;
  gbi_comm *comm;
  gbi_member members[GB_AREA_RANKS_MAX];
  int host[GB_AREA_RANKS_MAX];
  void *states[GB_STEPS_MAX];
  gbi_comm_step steps[GB_STEPS_MAX];
  bool pending[GB_STEPS_MAX];
  uint64_t seq;
} gb_battery;

/* host: as in gb_area_open. Fails the case when it cannot. */
void gb_battery_open(gb_battery *b, gb_comm_open_fn open, const int *host);
/* Waits for everybody first, so that nobody leaves early. */
void gb_battery_close(gb_battery *b);

/* A step of a call of its own, in slot 0. Returns its end. */
gb_status gb_battery_run(gb_battery *b, const gbi_comm_step *step,
                         int timeout_ms, gb_error *error);
/* Starts a step in slot `slot`; its call is set by the caller. */
void gb_battery_start(gb_battery *b, int slot, const gbi_comm_step *step);
/* Drives what is pending until slot `slot` is done (or any slot fails), at
 * most timeout_ms: then WAIT_TIMEOUT. Sleeps as the engine does. */
gb_status gb_battery_drive(gb_battery *b, int slot, int timeout_ms,
                           gb_error *error);
/* A call with a fresh sequence number that describes the step. */
gbi_call gb_battery_call(gb_battery *b, const gbi_comm_step *step);

void gb_battery_values(gb_comm_open_fn open, const int *host);
void gb_battery_large(gb_comm_open_fn open, const int *host);
void gb_battery_order(gb_comm_open_fn open, const int *host);
void gb_battery_pipeline(gb_comm_open_fn open, const int *host);
void gb_battery_mismatch(gb_comm_open_fn open, const int *host);
void gb_battery_roots_differ(gb_comm_open_fn open, const int *host);
void gb_battery_frozen(gb_comm_open_fn open, const int *host);
void gb_battery_one_core(gb_comm_open_fn open, const int *host);
void gb_battery_stop(gb_comm_open_fn open, const int *host);
void gb_battery_warm(gb_comm_open_fn open, const int *host);

#define GB_COMM_CASE(suite_, name_, ranks_, what, open, host)                  \
  GB_TEST(suite_, name_, .ranks = ranks_, .timeout_ms = 120000) {              \
    what(open, host);                                                          \
  }
#define GB_COMM_BATTERY(suite_, open)                                          \
  GB_COMM_CASE(suite_, values_1, 1, gb_battery_values, open, NULL)             \
  GB_COMM_CASE(suite_, values_2, 2, gb_battery_values, open, NULL)             \
  GB_COMM_CASE(suite_, values_3, 3, gb_battery_values, open, NULL)             \
  GB_COMM_CASE(suite_, values_4, 4, gb_battery_values, open, NULL)             \
  GB_COMM_CASE(suite_, values_5, 5, gb_battery_values, open, NULL)             \
  GB_COMM_CASE(suite_, values_7, 7, gb_battery_values, open, NULL)             \
  GB_COMM_CASE(suite_, values_8, 8, gb_battery_values, open, NULL)             \
  GB_COMM_CASE(suite_, large_2, 2, gb_battery_large, open, NULL)               \
  GB_COMM_CASE(suite_, large_3, 3, gb_battery_large, open, NULL)               \
  GB_COMM_CASE(suite_, large_8, 8, gb_battery_large, open, NULL)               \
  GB_COMM_CASE(suite_, order_2, 2, gb_battery_order, open, NULL)               \
  GB_COMM_CASE(suite_, order_4, 4, gb_battery_order, open, NULL)               \
  GB_COMM_CASE(suite_, order_7, 7, gb_battery_order, open, NULL)               \
  GB_COMM_CASE(suite_, pipeline_2, 2, gb_battery_pipeline, open, NULL)         \
  GB_COMM_CASE(suite_, pipeline_4, 4, gb_battery_pipeline, open, NULL)         \
  GB_COMM_CASE(suite_, mismatch_2, 2, gb_battery_mismatch, open, NULL)         \
  GB_COMM_CASE(suite_, mismatch_4, 4, gb_battery_mismatch, open, NULL)         \
  GB_COMM_CASE(suite_, roots_differ_2, 2, gb_battery_roots_differ, open, NULL) \
  GB_COMM_CASE(suite_, roots_differ_4, 4, gb_battery_roots_differ, open, NULL) \
  GB_COMM_CASE(suite_, frozen_3, 3, gb_battery_frozen, open, NULL)             \
  GB_COMM_CASE(suite_, one_core_8, 8, gb_battery_one_core, open, NULL)         \
  GB_COMM_CASE(suite_, stop_3, 3, gb_battery_stop, open, NULL)                 \
  GB_COMM_CASE(suite_, warm_4, 4, gb_battery_warm, open, NULL)

#endif
