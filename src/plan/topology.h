/* plan: the step language, topologies, and the checker.
 *
 * May call base only. A pure layer: no I/O, no clock, no settings.
 *
 * This header: who is in which island and on which host. */
#ifndef GBI_PLAN_TOPOLOGY_H
#define GBI_PLAN_TOPOLOGY_H

#include "base/base.h"

#define GBI_WORLD_MAX 65536

typedef struct gbi_island {
  char label[64]; /* vendor, or GPUBRIDGE_ISLAND's name */
  int *ranks;     /* group ranks, ascending; owned by the topology */
  int count;
  int leader;     /* ranks[0] */
  int *holders;   /* the same ranks, that of link 0, of link 1, ... */
} gbi_island;

/* Ranks here are ranks of one group: positions 0..world-1. For the world group
 * they are global ranks. Immutable after planning. */
typedef struct gbi_topology {
  int world;
  int islands_count;
  gbi_island *islands; /* ordered by leader */
  int *island_of;      /* per rank */
  int *host_of;        /* per rank: hosts numbered in order of lowest rank */
  int *link_of;        /* per rank: its place among its island's holders */
  int hosts_count;
  int *storage;
} gbi_topology;

/* labels[r], hosts[r]: any strings; equal string = same island / same host.
 * ARGUMENT for zero ranks. The result depends on nothing else. */
gb_status gbi_topology_plan(const char *const *labels, const char *const *hosts,
                            int world, gbi_topology **topology_p,
                            gb_error *error);
void gbi_topology_free(gbi_topology *topology);
/* "1 island", "2 islands", "2 islands on 3 hosts": for error texts. */
void gbi_topology_text(const gbi_topology *topology, char *buffer,
                       size_t bytes);
/* Position of `rank` in its island's list. */
int gbi_topology_position(const gbi_topology *topology, int rank);

/* Links join islands: link j has one rank of each, its holder there. Link 0 has
 * the leaders. The holders of an island go round its hosts, so that few links
 * use many hosts: the first rank of every host, then the second of every host,
 * and so on. On one host link j has the island's rank number j. */

/* How many there can be: as many as the smallest island has ranks, and no more
 * than `most` (0: no bound). */
int gbi_topology_links(const gbi_topology *topology, int most);
/* The member of `rank`'s link that belongs to `island`. */
static inline int gbi_topology_linked(const gbi_topology *topology, int rank,
                                      int island) {
  return topology->islands[island].holders[topology->link_of[rank]];
}

#endif
