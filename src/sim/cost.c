#include "sim/cost.h"

#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Around the payload of a full packet: IPv4 and TCP with a time stamp inside
 * the MTU, Ethernet outside. */
enum { INSIDE_MTU = 52, OUTSIDE_MTU = 14 };
static const double GIGA = 1e9, MEGA = 1e6, BITS = 8;

/* ---- members ---- */

bool gbi_members_init(gbi_members *m, const gbi_topology *topology,
                      const int *ranks, int count) {
  size_t n = (size_t)GBI_MAX(count, 1), hosts = (size_t)topology->hosts_count;
  *m = (gbi_members){.ranks = ranks, .count = count};
  m->leaders = gbi_malloc(n * sizeof *m->leaders);
  m->sizes = gbi_calloc(n, sizeof *m->sizes);
  m->group = gbi_malloc(n * sizeof *m->group);
  int *place = gbi_malloc(hosts * sizeof *place);
  bool made = m->leaders && m->sizes && m->group && place;
  for (size_t h = 0; made && h < hosts; h++) place[h] = -1;
  for (int i = 0; made && i < count; i++) {
    int host = topology->host_of[ranks[i]];
    if (place[host] < 0) {
      m->leaders[m->hosts] = ranks[i];
      place[host] = m->hosts++;
    }
    m->group[i] = place[host];
    m->sizes[place[host]]++;
  }
  free(place);
  if (!made) gbi_members_free(m);
  return made;
}

void gbi_members_free(gbi_members *m) {
  free(m->leaders);
  free(m->sizes);
  free(m->group);
  *m = (gbi_members){0};
}

/* ---- resources ---- */

static uint32_t take(gbi_cost *c, size_t count) {
  uint32_t first = c->resources;
  c->resources += (uint32_t)count;
  return first;
}

static void lay_out(gbi_cost *c) {
  const gbi_topology *t = c->topology;
  size_t world = (size_t)t->world, hosts = (size_t)t->hosts_count;
  size_t islands = (size_t)t->islands_count;
  size_t nics = hosts * (size_t)c->links->hosts.nics;
  c->cores = take(c, world);
  c->cpus = take(c, hosts);
  c->copies = take(c, hosts);
  c->sends = take(c, nics);
  c->receives = take(c, nics);
  c->all_sends = take(c, hosts);
  c->all_receives = take(c, hosts);
  c->fabrics = take(c, islands * hosts);
  c->staging = take(c, world);
  c->paths_out = take(c, islands);
  c->paths_in = take(c, islands);
  c->windows = take(c, (size_t)c->links_count);
}

static void place_ranks(gbi_cost *c) {
  const gbi_topology *t = c->topology;
  for (int r = 0; r < t->world; r++)
    c->nic_of[r] = c->host_ranks[t->host_of[r]]++ % (int)c->links->hosts.nics;
  for (int i = 0; i < t->islands_count; i++)
    c->fabric[i] = gbi_links_island(c->links, t->islands[i].label);
}

gb_status gbi_cost_open(const gbi_topology *topology, const gbi_links *links,
                        int links_count, gbi_cost **cost_p, gb_error *error) {
  gbi_cost *c = gbi_calloc(1, sizeof *c);
  if (!c) return gbi_fail(error, GB_ERR_MEMORY, "no memory for a simulation");
  size_t world = (size_t)topology->world;
  c->topology = topology;
  c->links = links;
  c->links_count = links_count;
  lay_out(c);
  c->nic_of = gbi_calloc(world, sizeof *c->nic_of);
  c->host_ranks = gbi_calloc((size_t)topology->hosts_count, sizeof(int));
  c->fabric = gbi_calloc((size_t)topology->islands_count, sizeof *c->fabric);
  c->seconds = gbi_calloc(c->resources, sizeof *c->seconds);
  c->parts = gbi_malloc(c->resources * sizeof *c->parts);
  c->touched = gbi_malloc(c->resources * sizeof *c->touched);
  c->sent = gbi_calloc(world, sizeof *c->sent);
  if (!c->nic_of || !c->host_ranks || !c->fabric || !c->seconds || !c->parts ||
      !c->touched || !c->sent) {
    gbi_cost_free(c);
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for a simulation");
  }
  place_ranks(c);
  *cost_p = c;
  return GB_OK;
}

void gbi_cost_free(gbi_cost *c) {
  if (!c) return;
  free(c->nic_of);
  free(c->host_ranks);
  free(c->fabric);
  free(c->seconds);
  free(c->parts);
  free(c->touched);
  free(c->sent);
  free(c);
}

bool gbi_cost_has_fabric(const gbi_cost *c, int island) {
  return c->fabric[island];
}

/* ---- the step at hand ---- */

static void begin(gbi_cost *c) {
  c->touched_count = 0;
  c->latency = 0;
}

static void use(gbi_cost *c, uint32_t resource, double seconds) {
  if (!(seconds > 0)) return;
  if (!(c->seconds[resource] > 0)) c->touched[c->touched_count++] = resource;
  c->seconds[resource] += seconds;
}

static uint32_t finish(gbi_cost *c) {
  for (uint32_t i = 0; i < c->touched_count; i++) {
    uint32_t resource = c->touched[i];
    c->parts[i] = (gbi_part){resource, c->seconds[resource]};
    c->seconds[resource] = 0;
  }
  return c->touched_count;
}

static double core_seconds(const gbi_cost *c, double bytes) {
  return bytes / (c->links->hosts.core_gbytes_s * GIGA);
}

/* `seconds` of a rank's core, which is one of its host's. */
static void work(gbi_cost *c, int rank, double seconds) {
  uint32_t host = (uint32_t)c->topology->host_of[rank];
  use(c, c->cores + (uint32_t)rank, seconds);
  use(c, c->cpus + host, seconds / c->links->hosts.cores);
}

/* `bytes` copied or added by a rank, from one place of the host to another. */
static void copy(gbi_cost *c, int rank, double bytes) {
  uint32_t host = (uint32_t)c->topology->host_of[rank];
  work(c, rank, core_seconds(c, bytes));
  use(c, c->copies + host, bytes / (c->links->hosts.copy_gbytes_s * GIGA));
}

static void stage(gbi_cost *c, int rank, double bytes) {
  const gbi_link_island *fabric = c->fabric[c->topology->island_of[rank]];
  if (fabric && fabric->staging_gbytes_s > 0)
    use(c, c->staging + (uint32_t)rank,
        bytes / (fabric->staging_gbytes_s * GIGA));
}

/* ---- the wire ---- */

static double wire_seconds(const gbi_cost *c, double bytes) {
  double mtu = c->links->hosts.mtu;
  double frames = bytes * (mtu + OUTSIDE_MTU) / (mtu - INSIDE_MTU);
  return frames * BITS / (c->links->hosts.nic_gbit_s * GIGA);
}

/* A host's NICs together: its own library spreads its traffic over them. */
static void use_nics(gbi_cost *c, uint32_t host, bool sends, double bytes) {
  use(c, (sends ? c->all_sends : c->all_receives) + host,
      wire_seconds(c, bytes) / c->links->hosts.nics);
}

/* The one that a rank's connections go through. */
static void use_nic(gbi_cost *c, int rank, bool sends, double bytes) {
  uint32_t nics = (uint32_t)c->links->hosts.nics;
  uint32_t host = (uint32_t)c->topology->host_of[rank];
  uint32_t nic = host * nics + (uint32_t)c->nic_of[rank];
  use(c, (sends ? c->sends : c->receives) + nic, wire_seconds(c, bytes));
  if (nics > 1) use_nics(c, host, sends, bytes);
}

/* One way between two ranks. */
static double latency_us(const gbi_cost *c, int a, int b) {
  const gbi_topology *t = c->topology;
  if (t->host_of[a] == t->host_of[b]) return 0;
  bool apart = t->island_of[a] != t->island_of[b];
  return c->links->hosts.nic_latency_us +
         (apart ? c->links->bridge.latency_us : 0);
}

/* `bytes` from one rank to another, which adds them to its own or keeps them.
 * Neither end's staging. */
static void send(gbi_cost *c, int from, int to, double bytes, bool adds) {
  const gbi_topology *t = c->topology;
  c->latency = fmax(c->latency, latency_us(c, from, to) / MEGA);
  if (t->host_of[from] == t->host_of[to]) {
    copy(c, from, bytes);
    copy(c, to, bytes); /* an addition reads as much as a copy */
    return;
  }
  double net = bytes / (c->links->hosts.net_gbytes_s * GIGA);
  work(c, from, net);
  work(c, to, net);
  if (adds) copy(c, to, bytes);
  use_nic(c, from, true, bytes);
  use_nic(c, to, false, bytes);
  const gbi_link_bridge *bridge = &c->links->bridge;
  int a = t->island_of[from], b = t->island_of[to];
  if (a == b || !(bridge->gbit_s > 0)) return;
  double path =
      wire_seconds(c, bytes) * c->links->hosts.nic_gbit_s / bridge->gbit_s;
  use(c, c->paths_out + (uint32_t)a, path);
  use(c, c->paths_in + (uint32_t)b, path);
}

/* ---- bridge/step.c ---- */

/* Every end's row to every other: `each` bytes, given and got again. */
static void exchange(gbi_cost *c, const int *ends, int n, double each) {
  for (int i = 0; i < n; i++)
    for (int k = 0; k < n; k++) {
      if (i == k) continue;
      send(c, ends[i], ends[k], each, true);
      c->sent[i] += each;
    }
}

static void all_reduce(gbi_cost *c, const int *ends, int n, double bytes) {
  double most_us = 0;
  for (int i = 1; i < n; i++)
    most_us = fmax(most_us, latency_us(c, ends[0], ends[i]));
  bool whole =
      n == 2 ? bytes <= GBI_SIM_PAIR_BYTES || 2 * most_us > GBI_SIM_LONG_RTT_US
             : bytes <= GBI_SIM_SMALL_BYTES;
  exchange(c, ends, n, whole ? bytes : bytes / n);
  if (whole) return;
  /* Sums come back from the owners of their segments. */
  for (int i = 0; i < n; i++)
    for (int k = 0; k < n; k++) {
      if (i == k) continue;
      send(c, ends[i], ends[k], bytes / n, false);
      c->sent[i] += bytes / n;
    }
  c->latency *= 2;
}

/* A step among n ends, as the bridge runs it. root, peer: places in the list.
 */
static void meet(gbi_cost *c, const int *ends, int n, int verb, int root,
                 int peer, double bytes) {
  memset(c->sent, 0, sizeof *c->sent * (size_t)n);
  if (verb == GBI_DO_ALL_REDUCE) {
    all_reduce(c, ends, n, bytes);
    return;
  }
  for (int i = 0; i < n; i++) {
    if (i == root || (verb == GBI_DO_TRANSFER && i != peer)) continue;
    bool gives = verb == GBI_DO_REDUCE;
    send(c, ends[gives ? i : root], ends[gives ? root : i], bytes, gives);
    c->sent[gives ? i : root] += bytes;
  }
}

uint32_t gbi_cost_bridge(gbi_cost *c, const gbi_members *m, int link, int verb,
                         int root, int peer, uint64_t bytes) {
  begin(c);
  meet(c, m->ranks, m->count, verb, root, peer, (double)bytes);
  double most = 0;
  for (int i = 0; i < m->count; i++) {
    most = fmax(most, c->sent[i]);
    bool moves = verb != GBI_DO_TRANSFER || i == root || i == peer;
    if (moves) stage(c, m->ranks[i], (double)bytes);
  }
  const gbi_link_bridge *bridge = &c->links->bridge;
  if (link >= 0 && bridge->window_mbytes > 0 && c->latency > 0) {
    double rtt = 2 * (c->links->hosts.nic_latency_us + bridge->latency_us);
    use(c, c->windows + (uint32_t)link,
        most * rtt / MEGA / (bridge->window_mbytes * MEGA));
  }
  return finish(c);
}

/* ---- ccl/host/local.c ---- */

/* Pieces let both sides work at a time; the last reader starts one later. */
static double piece_seconds(const gbi_cost *c, double bytes) {
  double piece = fmin(fmax(bytes / 4, 16384), GBI_SIM_LOCAL_SLOT_BYTES);
  return core_seconds(c, fmin(piece, bytes));
}

/* What others of a host do at the same time: their cores are not named. */
static void copy_beside(gbi_cost *c, int rank, double bytes) {
  uint32_t host = (uint32_t)c->topology->host_of[rank];
  use(c, c->cpus + host, core_seconds(c, bytes) / c->links->hosts.cores);
  use(c, c->copies + host, bytes / (c->links->hosts.copy_gbytes_s * GIGA));
}

/* What member `rank` of `n` copies or adds in a step of `bytes`. */
static double share_of(int verb, bool is_root, int n, double bytes) {
  if (verb == GBI_DO_REDUCE && is_root) return bytes * (n - 1);
  if (verb != GBI_DO_ALL_REDUCE) return bytes;
  if (bytes <= GBI_SIM_LOCAL_SMALL_BYTES) return bytes * (n + 1);
  return 2 * bytes * (n - 1) / n + bytes; /* publish, add a part, take */
}

/* A step among the members of one host, the number of which is m->sizes[host];
 * `root` and `peer` are ranks, `root` the busiest. With several hosts nobody
 * else's core is named: there the leaders are what counts. */
static void local_step(gbi_cost *c, const gbi_members *m, int host, int verb,
                       int root, int peer, double bytes) {
  int n = m->sizes[host];
  if (n < 2 || (verb == GBI_DO_TRANSFER && root == peer)) return;
  c->latency += piece_seconds(c, bytes);
  copy(c, root, share_of(verb, true, n, bytes));
  double other = share_of(verb, false, n, bytes);
  if (verb == GBI_DO_TRANSFER) {
    copy(c, peer, other);
  } else if (m->hosts > 1) {
    copy_beside(c, root, other * (n - 1));
  } else {
    for (int i = 0; i < m->count; i++)
      if (m->ranks[i] != root) copy(c, m->ranks[i], other);
  }
}

/* ---- ccl/host/across.c ---- */

/* What a host's leader does before and after its own part of a chunk. */
static void across(gbi_cost *c, const gbi_members *m, int verb, int root,
                   int peer, double bytes) {
  const int *lead = m->leaders;
  int from = m->group[root], to = m->group[peer];
  int root_rank = m->ranks[root], peer_rank = m->ranks[peer];
  meet(c, lead, m->hosts, verb, from, to, bytes);
  double there = c->latency;
  bool kept = verb == GBI_DO_REDUCE || verb == GBI_DO_TRANSFER;
  double chunk = fmin(bytes, kept ? GBI_SIM_KEPT_BYTES : GBI_SIM_DIRECT_BYTES);
  int widest = 0;
  for (int h = 0; h < m->hosts; h++) {
    widest = GBI_MAX(widest, m->sizes[h]);
    if (verb == GBI_DO_REDUCE || verb == GBI_DO_ALL_REDUCE)
      local_step(c, m, h, GBI_DO_REDUCE, lead[h], lead[h], bytes);
    if (verb == GBI_DO_ALL_REDUCE)
      local_step(c, m, h, GBI_DO_BROADCAST, lead[h], lead[h], bytes);
    if (verb == GBI_DO_BROADCAST)
      local_step(c, m, h, GBI_DO_BROADCAST, h == from ? root_rank : lead[h],
                 lead[h], bytes);
  }
  if (verb == GBI_DO_REDUCE && root_rank != lead[from])
    local_step(c, m, from, GBI_DO_TRANSFER, lead[from], root_rank, bytes);
  if (verb == GBI_DO_TRANSFER && from == to)
    local_step(c, m, from, GBI_DO_TRANSFER, root_rank, peer_rank, bytes);
  if (verb == GBI_DO_TRANSFER && from != to) {
    local_step(c, m, from, GBI_DO_TRANSFER, root_rank, lead[from], bytes);
    local_step(c, m, to, GBI_DO_TRANSFER, lead[to], peer_rank, bytes);
  }
  /* The first chunk goes through the host before it crosses, the last one
   * after it; those between overlap. */
  double adds = verb == GBI_DO_BROADCAST || verb == GBI_DO_TRANSFER
                    ? 1
                    : GBI_MAX(widest - 1, 0);
  c->latency = there + core_seconds(c, chunk * (widest > 1 ? 1 + adds : 0));
}

static void host_memory(gbi_cost *c, const gbi_members *m, int verb, int root,
                        int peer, double bytes) {
  if (verb == GBI_DO_TRANSFER && root == peer)
    copy(c, m->ranks[root], bytes);
  else if (m->hosts > 1)
    across(c, m, verb, root, peer, bytes);
  else
    local_step(c, m, 0, verb, m->ranks[root], m->ranks[peer], bytes);
}

uint32_t gbi_cost_world(gbi_cost *c, const gbi_members *m, int verb, int root,
                        int peer, uint64_t bytes) {
  begin(c);
  host_memory(c, m, verb, root, peer, (double)bytes);
  for (int i = 0; i < m->count; i++) stage(c, m->ranks[i], (double)bytes);
  return finish(c);
}

/* ---- a vendor's library ---- */

/* A ring or a tree, cut so fine that each host passes on what it gets. */
static void vendor(gbi_cost *c, const gbi_members *m, int island, int verb,
                   int root, int peer, double bytes) {
  const gbi_link_island *fabric = c->fabric[island];
  const gbi_topology *t = c->topology;
  double n = m->count;
  if (m->count < 2) return;
  bool single = verb == GBI_DO_TRANSFER;
  double passed = verb == GBI_DO_ALL_REDUCE ? bytes * 2 * (n - 1) / n : bytes;
  bool crosses = single ? m->group[root] != m->group[peer] : m->hosts > 1;
  for (int h = 0; h < m->hosts; h++) {
    if (single && h != m->group[root] && h != m->group[peer]) continue;
    uint32_t host = (uint32_t)t->host_of[m->leaders[h]];
    use(c, c->fabrics + (uint32_t)island * (uint32_t)t->hosts_count + host,
        passed / (fabric->gbytes_s * GIGA));
    if (!crosses || single) continue;
    use_nics(c, host, true, passed);
    use_nics(c, host, false, passed);
  }
  if (crosses && single) {
    use_nic(c, m->ranks[root], true, bytes);
    use_nic(c, m->ranks[peer], false, bytes);
  }
  double hops = single ? 1 : ceil(log2(fmax(m->hosts, 2)));
  c->latency = (fabric->latency_us +
                (crosses ? hops * c->links->hosts.nic_latency_us : 0)) /
               MEGA;
}

uint32_t gbi_cost_island(gbi_cost *c, const gbi_members *m, int island,
                         int verb, int root, int peer, uint64_t bytes) {
  begin(c);
  if (c->fabric[island])
    vendor(c, m, island, verb, root, peer, (double)bytes);
  else
    host_memory(c, m, verb, root, peer, (double)bytes);
  return finish(c);
}

/* ---- one or two ranks ---- */

uint32_t gbi_cost_message(gbi_cost *c, int from, int to, uint64_t bytes) {
  begin(c);
  send(c, from, to, (double)bytes, false);
  stage(c, from, (double)bytes);
  stage(c, to, (double)bytes);
  return finish(c);
}

/* On a device that is nothing beside the rest. */
uint32_t gbi_cost_local(gbi_cost *c, int rank, uint64_t bytes) {
  begin(c);
  if (!c->fabric[c->topology->island_of[rank]]) copy(c, rank, (double)bytes);
  return finish(c);
}

/* ---- names ---- */

static void name_nic(const gbi_cost *c, uint32_t nic, const char *way,
                     char *text, size_t bytes) {
  uint32_t nics = (uint32_t)c->links->hosts.nics;
  snprintf(text, bytes, "nic %u of host %u, %s", nic % nics, nic / nics, way);
}

void gbi_cost_name(const gbi_cost *c, uint32_t resource, char *text,
                   size_t bytes) {
  const gbi_topology *t = c->topology;
  uint32_t hosts = (uint32_t)t->hosts_count;
  if (resource >= c->windows) {
    snprintf(text, bytes, "window of link %u", resource - c->windows);
  } else if (resource >= c->paths_in) {
    snprintf(text, bytes, "bridge into island %s",
             t->islands[resource - c->paths_in].label);
  } else if (resource >= c->paths_out) {
    snprintf(text, bytes, "bridge out of island %s",
             t->islands[resource - c->paths_out].label);
  } else if (resource >= c->staging) {
    snprintf(text, bytes, "staging of rank %u", resource - c->staging);
  } else if (resource >= c->fabrics) {
    uint32_t at = resource - c->fabrics;
    snprintf(text, bytes, "fabric of %s on host %u",
             t->islands[at / hosts].label, at % hosts);
  } else if (resource >= c->all_receives) {
    snprintf(text, bytes, "nics of host %u, receiving",
             resource - c->all_receives);
  } else if (resource >= c->all_sends) {
    snprintf(text, bytes, "nics of host %u, sending", resource - c->all_sends);
  } else if (resource >= c->receives) {
    name_nic(c, resource - c->receives, "receiving", text, bytes);
  } else if (resource >= c->sends) {
    name_nic(c, resource - c->sends, "sending", text, bytes);
  } else if (resource >= c->copies) {
    snprintf(text, bytes, "memory of host %u", resource - c->copies);
  } else if (resource >= c->cpus) {
    snprintf(text, bytes, "cores of host %u", resource - c->cpus);
  } else {
    snprintf(text, bytes, "core of rank %u", resource - c->cores);
  }
}
