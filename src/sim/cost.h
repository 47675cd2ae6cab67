/* Inside of sim: what a step asks of which resource. Nothing outside this
 * folder but its test includes this header.
 *
 * One function a way of moving data, after the code that moves it: host memory
 * (ccl/host/local.c), between hosts (ccl/host/across.c, bridge/step.c), a
 * vendor's library, a single message. */
#ifndef GBI_SIM_COST_H
#define GBI_SIM_COST_H

#include "plan/plan.h"
#include "plan/topology.h"
#include "sim/fluid.h"
#include "sim/links.h"

/* Sizes at which the implementation changes its way; the test compares those
 * that a header has. */
#define GBI_SIM_LOCAL_SMALL_BYTES 8192  /* ccl/host/local.h */
#define GBI_SIM_LOCAL_SLOT_BYTES 131072 /* ccl/host/local.h */
#define GBI_SIM_PAIR_BYTES 262144       /* bridge/step.h */
#define GBI_SIM_SMALL_BYTES 16384       /* bridge/step.h */
#define GBI_SIM_LONG_RTT_US 500         /* bridge/step.h */
#define GBI_SIM_KEPT_BYTES 131072       /* ccl/host/across.c */
#define GBI_SIM_DIRECT_BYTES 1048576    /* ccl/host/across.c */

/* The members of a communicator, and how they lie on hosts. */
typedef struct gbi_members {
  const int *ranks; /* borrowed */
  int count;
  int hosts;    /* how many hosts have one */
  int *leaders; /* per host: its first member's rank */
  int *sizes;   /* per host */
  int *group;   /* per member: its place in the two lists */
} gbi_members;
bool gbi_members_init(gbi_members *members, const gbi_topology *topology,
                      const int *ranks, int count);
void gbi_members_free(gbi_members *members);

typedef struct gbi_cost {
  const gbi_topology *topology;
  const gbi_links *links;
  int links_count;
  int *nic_of;                    /* per rank */
  int *host_ranks;                /* per host */
  const gbi_link_island **fabric; /* per island, NULL: host memory */
  /* Where each kind of resource begins. */
  uint32_t cores, cpus, copies, sends, receives, all_sends, all_receives,
      fabrics, staging, paths_out, paths_in, windows, resources;
  /* The step at hand. */
  double *seconds; /* per resource */
  gbi_part *parts;
  uint32_t *touched, touched_count;
  double *sent;   /* per end of a meeting */
  double latency; /* until the last byte is there, after it was sent */
} gbi_cost;

gb_status gbi_cost_open(const gbi_topology *topology, const gbi_links *links,
                        int links_count, gbi_cost **cost_p, gb_error *error);
void gbi_cost_free(gbi_cost *cost);

/* Whether the island's library runs one step after the other. */
bool gbi_cost_has_fabric(const gbi_cost *cost, int island);

/* Each fills cost->parts and cost->latency; returns how many parts. */
uint32_t gbi_cost_island(gbi_cost *cost, const gbi_members *members, int island,
                         int verb, int root, int peer, uint64_t bytes);
/* link: whose window it is; -1: none. */
uint32_t gbi_cost_bridge(gbi_cost *cost, const gbi_members *members, int link,
                         int verb, int root, int peer, uint64_t bytes);
/* The communicator of all ranks: host memory and TCP, whatever the islands. */
uint32_t gbi_cost_world(gbi_cost *cost, const gbi_members *members, int verb,
                        int root, int peer, uint64_t bytes);
uint32_t gbi_cost_message(gbi_cost *cost, int from, int to, uint64_t bytes);
uint32_t gbi_cost_local(gbi_cost *cost, int rank, uint64_t bytes);

/* "nic 0 of host 3, sending". */
void gbi_cost_name(const gbi_cost *cost, uint32_t resource, char *text,
                   size_t bytes);

#endif
