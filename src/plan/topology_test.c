/* Islands and hosts from lists of labels: order by leader, members ascending,
 * whatever the order of the ranks; zero ranks refused. */
#include "harness/gb_test.h"
#include "plan/topology.h"

#include <stdio.h>
#include <stdlib.h>

/* One letter a rank for labels and hosts. */
static gbi_topology *plan(const char *labels, const char *hosts) {
  int world = (int)strlen(labels);
  char(*texts)[2][2] = calloc((size_t)world + 1, sizeof *texts);
  const char **l = calloc((size_t)world + 1, sizeof *l);
  const char **h = calloc((size_t)world + 1, sizeof *h);
  for (int r = 0; r < world; r++) {
    texts[r][0][0] = labels[r];
    texts[r][1][0] = hosts[r];
    l[r] = texts[r][0];
    h[r] = texts[r][1];
  }
  gbi_topology *t = NULL;
  GB_CHECK_OK(gbi_topology_plan(l, h, world, &t, NULL));
  free(texts);
  free(l);
  free(h);
  return t;
}

static void describe(const gbi_topology *t, char *out, size_t bytes) {
  gbi_text text;
  gbi_text_init(&text, out, bytes);
  for (int i = 0; i < t->islands_count; i++) {
    const gbi_island *island = &t->islands[i];
    gbi_text_add(&text, "%s%s>%d:", i ? " " : "", island->label,
                 island->leader);
    for (int k = 0; k < island->count; k++) {
      gbi_text_add(&text, "%d", island->ranks[k]);
      GB_CHECK_INT(t->island_of[island->ranks[k]], i);
      GB_CHECK_INT(gbi_topology_position(t, island->ranks[k]), k);
    }
  }
  gbi_text_add(&text, " hosts");
  for (int r = 0; r < t->world; r++) gbi_text_add(&text, "%d", t->host_of[r]);
}

static void expect(const char *labels, const char *hosts, const char *want) {
  char got[256];
  gbi_topology *t = plan(labels, hosts);
  describe(t, got, sizeof got);
  gbi_topology_free(t);
  if (strcmp(got, want))
    gb_test_fail(__FILE__, __LINE__, "%s on %s is \"%s\", not \"%s\"", labels,
                 hosts, got, want);
}

/* S105's layouts: blocks, alternating, reversed, uneven. */
GB_TEST(topology, islands_are_ordered_by_leader) {
  expect("nnaa", "xxyy", "n>0:01 a>2:23 hosts0011");
  expect("nana", "xyxy", "n>0:02 a>1:13 hosts0101");
  expect("aann", "xxxx", "a>0:01 n>2:23 hosts0000");
  expect("naaaa", "xzyzy", "n>0:0 a>1:1234 hosts01212");
  expect("n", "x", "n>0:0 hosts0");
}

GB_TEST(topology, takes_more_than_two_labels) {
  expect("cabcab", "qqrrss", "c>0:03 a>1:14 b>2:25 hosts001122");
}

GB_TEST(topology, zero_ranks_are_refused) {
  gb_error error;
  gbi_topology *t = NULL;
  GB_CHECK_INT(gbi_topology_plan(NULL, NULL, 0, &t, &error), GB_ERR_ARGUMENT);
  GB_CHECK_TEXT(error.text, "not 0");
  GB_CHECK(!t);
}

GB_TEST(topology, four_thousand_ranks) {
  enum { WORLD = 4096 };
  const char **labels = calloc(WORLD, sizeof *labels);
  const char **hosts = calloc(WORLD, sizeof *hosts);
  char(*names)[8] = calloc(WORLD, sizeof *names);
  for (int r = 0; r < WORLD; r++) {
    labels[r] = r % 3 ? "nvidia" : "amd";
    snprintf(names[r], sizeof names[r], "h%d", r / 8);
    hosts[r] = names[r];
  }
  gbi_topology *t = NULL;
  GB_CHECK_OK(gbi_topology_plan(labels, hosts, WORLD, &t, NULL));
  GB_CHECK_INT(t->islands_count, 2);
  GB_CHECK_INT(t->hosts_count, WORLD / 8);
  GB_CHECK_INT(t->host_of[WORLD - 1], WORLD / 8 - 1);
  GB_CHECK_INT(t->islands[0].count + t->islands[1].count, WORLD);
  GB_CHECK_INT(t->islands[1].leader, 1);
  gbi_topology_free(t);
  free(labels);
  free(hosts);
  free(names);
}

/* Links: as many as the smallest island has ranks; holders go round the hosts
 * of their island, and link 0 has the leaders. */
GB_TEST(topology, links) {
  static const char *const labels[] = {"a", "a", "a", "a", "b", "b", "b"};
  static const char *const hosts[] = {"x", "x", "y", "y", "z", "z", "z"};
  gbi_topology *t;
  GB_CHECK_OK(gbi_topology_plan(labels, hosts, 7, &t, NULL));
  GB_CHECK_INT(gbi_topology_links(t, 0), 3);
  GB_CHECK_INT(gbi_topology_links(t, 2), 2);
  GB_CHECK_INT(gbi_topology_links(t, 9), 3);
  static const int a[] = {0, 2, 1, 3}, b[] = {4, 5, 6};
  for (int i = 0; i < 4; i++) {
    GB_CHECK_INT(t->islands[0].holders[i], a[i]);
    GB_CHECK_INT(t->link_of[a[i]], i);
  }
  for (int i = 0; i < 3; i++) {
    GB_CHECK_INT(t->islands[1].holders[i], b[i]);
    GB_CHECK_INT(gbi_topology_linked(t, a[i], 1), b[i]);
    GB_CHECK_INT(gbi_topology_linked(t, b[i], 0), a[i]);
  }
  gbi_topology_free(t);
}
