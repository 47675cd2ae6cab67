/* sim/links: how fast things are, read from a links file (docs/simulate.md).
 *
 * Numbers are what the file says, in its units; a file that leaves one out gets
 * the value of gbi_links_default. Pure: the caller reads the file. */
#ifndef GBI_SIM_LINKS_H
#define GBI_SIM_LINKS_H

#include "base/base.h"

#define GBI_LINKS_BYTES_MAX ((size_t)1 << 16) /* of the file */
#define GBI_LINKS_ISLANDS_MAX 16

/* Counts are doubles too, so that one table reads them all. */
typedef struct gbi_link_hosts {
  double ranks; /* on each host, where --islands names no hosts */
  double cores;
  double core_gbytes_s;    /* one core copies, or adds up */
  double net_gbytes_s;     /* one core sends or receives over TCP */
  double copy_gbytes_s;    /* all cores of a host together */
  double nics, nic_gbit_s; /* each way at once */
  double nic_latency_us;   /* one way, between any two hosts */
  double mtu;
} gbi_link_hosts;

/* An island with a fabric and a library of its own; others run on host memory,
 * as ccl/host does. */
typedef struct gbi_link_island {
  char label[64];
  double gbytes_s, latency_us;
  double staging_gbytes_s; /* between a rank's device and its host, each way */
} gbi_link_island;

typedef struct gbi_link_bridge {
  double gbit_s;        /* out of an island and into one; 0: no such limit */
  double latency_us;    /* one way, beside the NICs' */
  double window_mbytes; /* in flight at most on one link, each way; 0: any */
} gbi_link_bridge;

typedef struct gbi_links {
  gbi_link_hosts hosts;
  gbi_link_island islands[GBI_LINKS_ISLANDS_MAX];
  int islands_count;
  gbi_link_bridge bridge;
  double overhead_us; /* until a step begins on all its members */
} gbi_links;

void gbi_links_default(gbi_links *links);
/* Strict: whatever is not a links file, or says something that would be left
 * aside, is SETTING with the file, the key and what is allowed. */
gb_status gbi_links_parse(const char *json, size_t bytes, const char *path,
                          gbi_links *links, gb_error *error);
/* NULL: the island of this label runs on host memory. */
const gbi_link_island *gbi_links_island(const gbi_links *links,
                                        const char *label);

#endif
