/* ccl/host, the part across hosts: shared memory inside each host, a bridge
 * among the first members of the hosts.
 *
 * One island step after the other, each cut in chunks of which a few are under
 * way at once. A chunk has up to three stages: inside the hosts towards their
 * leaders, among the leaders, and inside the hosts again. Sums are added inside
 * each host in member order, then over the hosts in the order of their leaders.
 * Same rules as comm/comm.h. */
#ifndef GBI_CCL_HOST_ACROSS_H
#define GBI_CCL_HOST_ACROSS_H

#include "ccl/host/local.h"

/* Where everybody is. Arrays by member, lent. */
typedef struct gbi_across_map {
  int members_count, me;
  const int *group;       /* the host's number, by order of leaders */
  const int *local_index; /* place within the host; 0: its leader */
  const int *leader;      /* by group: its leader */
} gbi_across_map;

typedef struct gbi_across_step gbi_across_step;
struct gbi_across_step {
  gbi_comm_step what;
  gbi_across_step *after;
  bool done;
};

typedef struct gbi_across gbi_across;

/* bridge: NULL unless this member leads its host. local and bridge are lent. */
gb_status gbi_across_open(const gbi_across_map *map, gbi_local *local,
                          gbi_comm *bridge, gbi_across **across_p,
                          gb_error *error);
void gbi_across_start(gbi_across *across, const gbi_comm_step *what,
                      gbi_across_step *step);
gb_status gbi_across_progress(gbi_across *across, gbi_across_step *step,
                              gb_error *error);
int gbi_across_waiting_for(const gbi_across *across, int *members, int max);
void gbi_across_close(gbi_across *across);

#endif
