/* Which bridge joins a group's islands: a pure function of the records, so that
 * every rank names the same one for the same reason (spec 6.1). */
#include "core/discovery.h"

#include <stdio.h>
#include <string.h>

/* A rank with a link that ends on another host, and *other_p there; -1 when
 * there is none. */
static int foreign_end(const gbi_topology *t, int links, int *other_p) {
  for (int link = 0; link < links; link++)
    for (int i = 1; i < t->islands_count; i++) {
      int here = t->islands[0].holders[link];
      *other_p = t->islands[i].holders[link];
      if (t->host_of[here] != t->host_of[*other_p]) return here;
    }
  return -1;
}

/* Whether RDMA joins all ends of the links; else the first thing against it. */
static bool joins_by_rdma(const gbi_discovery *d, const gbi_topology *t,
                          int links, const int *ranks, gbi_text *why) {
  const gbi_record *first = NULL;
  int first_rank = -1;
  for (int link = 0; link < links; link++)
    for (int i = 0; i < t->islands_count; i++) {
      int rank = ranks[t->islands[i].holders[link]];
      const gbi_record *r = &d->records[rank];
      if (!r->rdma.usable) {
        gbi_text_add(why, "rank %d (host \"%.64s\") has no RDMA device to use",
                     rank, r->hostname);
        if (r->rdma.reason[0]) gbi_text_add(why, ": %s", r->rdma.reason);
        return false;
      }
      if (!first) {
        first = r;
        first_rank = rank;
      } else if (strcmp(first->rdma.link_layer, r->rdma.link_layer)) {
        gbi_text_add(why,
                     "rank %d's RDMA device %s is on %s and rank %d's %s on "
                     "%s, which cannot connect",
                     first_rank, first->rdma.device, first->rdma.link_layer,
                     rank, r->rdma.device, r->rdma.link_layer);
        return false;
      }
    }
  if (first)
    gbi_text_add(why, "all %s have an RDMA device on %s",
                 links > 1 ? "ends of the links" : "island leaders",
                 first->rdma.link_layer);
  return first;
}

/* auto, where some link leaves its host. */
static const char *choose_network(const gbi_discovery *d, const gbi_topology *t,
                                  int links, const int *ranks, char *why) {
  char rdma[GBI_BRIDGE_REASON / 2 + 128];
  gbi_text text;
  gbi_text_init(&text, rdma, sizeof rdma);
  bool joins =
      gbi_transport_find("verbs") && joins_by_rdma(d, t, links, ranks, &text);
  snprintf(why, GBI_BRIDGE_REASON, "the %s are on different hosts%s%s",
           links > 1 ? "ends of a link" : "island leaders",
           !rdma[0] ? ""
           : joins  ? ", and "
                    : "; ",
           rdma);
  return joins ? "verbs" : "tcp";
}

static gb_status refuse_shm(const gbi_discovery *d, int links, int here,
                            int other, gb_error *error) {
  return gbi_fail_rank(
      error, GB_ERR_REFUSED, other,
      "the bridge \"shm\" joins %s on one host only, but rank %d is on "
      "host \"%.64s\" and rank %d on host \"%.64s\", or they cannot share "
      "memory. Use the bridge auto or tcp",
      links > 1 ? "the ends of a link" : "leaders", here,
      d->records[here].hostname, other, d->records[other].hostname);
}

gb_status gbi_discovery_bridge(const gbi_discovery *d, const gbi_topology *t,
                               int links, const int *ranks, const char **name_p,
                               char *why, gb_error *error) {
  const char *asked = d->records[0].bridge, *reason = NULL;
  int other, foreign = foreign_end(t, links, &other);
  *name_p = asked;
  if (t->islands_count == 1) {
    *name_p = "none";
    reason = "there is one island, and nothing to bridge";
  } else if (!strcmp(asked, "shm") && foreign >= 0) {
    return refuse_shm(d, links, ranks[foreign], ranks[other], error);
  } else if (strcmp(asked, "auto")) {
    reason = "it was asked for";
  } else if (foreign >= 0) {
    *name_p = choose_network(d, t, links, ranks, why);
  } else if (gbi_transport_find("shm")) {
    *name_p = "shm";
    reason = links > 1 ? "the ends of every link are on one host and share "
                         "memory"
                       : "all island leaders are on one host and share memory";
  } else {
    *name_p = "tcp";
    reason = "this build has no shared-memory bridge";
  }
  if (reason) snprintf(why, GBI_BRIDGE_REASON, "%s", reason);
  return GB_OK;
}
