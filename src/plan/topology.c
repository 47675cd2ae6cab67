#include "plan/topology.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sorting by (string, rank) puts equal strings side by side with their lowest
 * rank first, so that numbering costs n log n also for thousands of ranks. */
typedef struct entry {
  const char *text;
  int rank;
} entry;

static int by_text(const void *a, const void *b) {
  const entry *x = a, *y = b;
  int order = strcmp(x->text, y->text);
  return order ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

/* number_of[r]: classes of equal strings, numbered in order of lowest rank.
 * Returns how many, -1 for lack of memory. */
static int classify(const char *const *texts, int world, int *number_of) {
  entry *entries = gbi_malloc((size_t)world * sizeof *entries);
  if (!entries) return -1;
  for (int r = 0; r < world; r++) entries[r] = (entry){texts[r], r};
  qsort(entries, (size_t)world, sizeof *entries, by_text);
  /* First each rank's lowest equal, then numbers in rank order. */
  int lowest = 0;
  for (int i = 0; i < world; i++) {
    if (!i || strcmp(entries[i].text, entries[i - 1].text))
      lowest = entries[i].rank;
    number_of[entries[i].rank] = lowest;
  }
  int count = 0;
  for (int r = 0; r < world; r++)
    number_of[r] = number_of[r] == r ? count++ : number_of[number_of[r]];
  free(entries);
  return count;
}

static void fill_islands(gbi_topology *t, const char *const *labels,
                         int *ranks, int *holders) {
  for (int r = 0; r < t->world; r++) t->islands[t->island_of[r]].count++;
  for (int i = 0; i < t->islands_count; i++) {
    t->islands[i].ranks = ranks;
    t->islands[i].holders = holders;
    ranks += t->islands[i].count;
    holders += t->islands[i].count;
    t->islands[i].count = 0;
  }
  for (int r = 0; r < t->world; r++) {
    gbi_island *island = &t->islands[t->island_of[r]];
    if (!island->count) {
      island->leader = r;
      snprintf(island->label, sizeof island->label, "%s", labels[r]);
    }
    island->ranks[island->count++] = r;
  }
}

/* `round`: how many of the island's ranks on the same host come before. */
typedef struct holder {
  int round, rank;
} holder;

static int by_round(const void *a, const void *b) {
  const holder *x = a, *y = b;
  int order = (x->round > y->round) - (x->round < y->round);
  return order ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

static bool fill_holders(gbi_topology *t) {
  int *seen = gbi_calloc((size_t)t->hosts_count, sizeof *seen);
  holder *order = gbi_malloc((size_t)t->world * sizeof *order);
  for (int i = 0; i < t->islands_count && seen && order; i++) {
    const gbi_island *island = &t->islands[i];
    size_t n = (size_t)island->count;
    for (size_t k = 0; k < n; k++) {
      int rank = island->ranks[k];
      order[k] = (holder){seen[t->host_of[rank]]++, rank};
    }
    qsort(order, n, sizeof *order, by_round);
    for (size_t k = 0; k < n; k++) {
      island->holders[k] = order[k].rank;
      t->link_of[order[k].rank] = (int)k;
      seen[t->host_of[order[k].rank]] = 0;
    }
  }
  bool filled = seen && order;
  free(seen);
  free(order);
  return filled;
}

gb_status gbi_topology_plan(const char *const *labels, const char *const *hosts,
                            int world, gbi_topology **topology_p,
                            gb_error *error) {
  if (world < 1 || world > GBI_WORLD_MAX)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "a topology needs 1 to %d ranks, not %d", GBI_WORLD_MAX,
                    world);
  gbi_topology *t = gbi_calloc(1, sizeof *t);
  size_t n = (size_t)world;
  if (!t || !(t->storage = gbi_malloc(5 * n * sizeof *t->storage)))
    goto no_memory;
  t->world = world;
  t->island_of = t->storage;
  t->host_of = t->storage + n;
  t->islands_count = classify(labels, world, t->island_of);
  t->hosts_count = classify(hosts, world, t->host_of);
  if (t->islands_count < 0 || t->hosts_count < 0) goto no_memory;
  t->islands = gbi_calloc((size_t)t->islands_count, sizeof *t->islands);
  if (!t->islands) goto no_memory;
  t->link_of = t->storage + 2 * n;
  fill_islands(t, labels, t->storage + 3 * n, t->storage + 4 * n);
  if (!fill_holders(t)) goto no_memory;
  *topology_p = t;
  return GB_OK;

no_memory:
  gbi_topology_free(t);
  return gbi_fail(error, GB_ERR_MEMORY,
                  "out of memory for a topology of %d ranks", world);
}

void gbi_topology_free(gbi_topology *topology) {
  if (!topology) return;
  free(topology->islands);
  free(topology->storage);
  free(topology);
}

void gbi_topology_text(const gbi_topology *t, char *buffer, size_t bytes) {
  gbi_text text;
  gbi_text_init(&text, buffer, bytes);
  gbi_text_add(&text, "%d %s", t->islands_count,
               t->islands_count == 1 ? "island" : "islands");
  if (t->hosts_count > 1) gbi_text_add(&text, " on %d hosts", t->hosts_count);
}

int gbi_topology_position(const gbi_topology *topology, int rank) {
  const gbi_island *island = &topology->islands[topology->island_of[rank]];
  int low = 0, high = island->count - 1;
  while (low < high) {
    int middle = (low + high) / 2;
    if (island->ranks[middle] < rank)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

int gbi_topology_links(const gbi_topology *topology, int most) {
  int links = topology->world;
  for (int i = 0; i < topology->islands_count; i++)
    links = GBI_MIN(links, topology->islands[i].count);
  return most > 0 ? GBI_MIN(links, most) : links;
}
