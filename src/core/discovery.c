#include "core/discovery.h"

#include "base/log.h"
#include "base/memory.h"
#include "core/agreement.h"
#include "core/parts.h"
#include "policy/policy.h"
#include "transport/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void gbi_discovery_free(gbi_discovery *discovery) {
  if (!discovery) return;
  gbi_topology_free(discovery->topology);
  free(discovery->rules);
  free(discovery->records);
  free(discovery->labels);
  free(discovery);
}

/* ---- labels ---- */

/* hosts[r]: hosts numbered in order of their lowest rank. Returns how many. */
static int number_hosts(const gbi_record *records, int world, int *hosts) {
  int count = 0;
  for (int r = 0; r < world; r++) {
    hosts[r] = -1;
    for (int k = 0; k < r && hosts[r] < 0; k++)
      if (!strcmp(records[k].hostname, records[r].hostname))
        hosts[r] = hosts[k];
    if (hosts[r] < 0) hosts[r] = count++;
  }
  return count;
}

static gb_status check_split(const gbi_discovery *d, int hosts,
                             gb_error *error) {
  const gbi_record *r = d->records;
  if (d->world < 2)
    return gbi_fail(error, GB_ERR_REFUSED,
                    "GPUBRIDGE_SPLIT_TEST needs at least 2 ranks, this job has "
                    "%d",
                    d->world);
  for (int i = 1; i < d->world; i++)
    if (strcmp(r[i].vendor, r[0].vendor))
      return gbi_fail(error, GB_ERR_REFUSED,
                      "GPUBRIDGE_SPLIT_TEST splits a job of one vendor, but "
                      "this one has %s and %s already. Unset it",
                      r[0].vendor, r[i].vendor);
  if (!strcmp(d->split_test, "node") && hosts < 2)
    return gbi_fail(error, GB_ERR_REFUSED,
                    "GPUBRIDGE_SPLIT_TEST=node needs at least 2 hosts, but all "
                    "ranks are on \"%s\". Use half or alternate",
                    r[0].hostname);
  return GB_OK;
}

static bool flipped(const gbi_discovery *d, int rank, const int *hosts) {
  if (!strcmp(d->split_test, "half")) return rank >= (d->world + 1) / 2;
  if (!strcmp(d->split_test, "alternate")) return rank % 2;
  return hosts[rank] % 2; /* node */
}

static gb_status make_labels(gbi_discovery *d, gb_error *error) {
  d->labels = gbi_calloc((size_t)d->world, sizeof *d->labels);
  int *hosts = gbi_malloc((size_t)d->world * sizeof *hosts);
  gb_status status = GB_OK;
  if (!d->labels || !hosts)
    status = gbi_fail(error, GB_ERR_MEMORY, "out of memory for labels");
  if (status == GB_OK && d->split_test[0])
    status = check_split(d, number_hosts(d->records, d->world, hosts), error);
  for (int r = 0; status == GB_OK && r < d->world; r++) {
    const gbi_record *record = &d->records[r];
    const char *label = record->vendor;
    if (d->split_test[0] && flipped(d, r, hosts))
      label = strcmp(label, "nvidia") ? "nvidia" : "amd";
    if (record->island[0]) label = record->island;
    snprintf(d->labels[r], sizeof d->labels[r], "%s", label);
    if (!label[0])
      status = gbi_fail_rank(error, GB_ERR_REFUSED, r,
                             "rank %d on host \"%s\" has no vendor", r,
                             record->hostname);
  }
  free(hosts);
  return status;
}

static gb_status make_topology(gbi_discovery *d, gb_error *error) {
  const char **texts = gbi_malloc(2 * (size_t)d->world * sizeof *texts);
  if (!texts)
    return gbi_fail(error, GB_ERR_MEMORY, "out of memory for the islands");
  for (int r = 0; r < d->world; r++) {
    texts[r] = d->labels[r];
    texts[d->world + r] = d->records[r].host_key;
  }
  gb_status status =
      gbi_topology_plan(texts, texts + d->world, d->world, &d->topology, error);
  free(texts);
  return status;
}

/* ---- policy and bridge ---- */

static bool has_own_policy(const gbi_record *r) {
  for (int i = 0; i < r->settings_count; i++)
    if (!strcmp(r->settings[i].name, GBI_POLICY_SETTINGS)) return true;
  return false;
}

/* All ranks have the same text here: the agreement was checked. */
static gb_status read_rules(gbi_discovery *d, gb_error *error) {
  const char *text = d->records[0].rules;
  if (!text[0]) return GB_OK;
  d->rules = gbi_malloc(sizeof *d->rules);
  if (!d->rules)
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for the rules");
  if (!gbi_rules_parse(text, d->rules))
    return gbi_fail_rank(error, GB_ERR_PROTOCOL, 0,
                         "the rules in rank 0's record are malformed");
  const gbi_rule *misfit = gbi_rules_misfit(d->rules, d->topology);
  if (!misfit) return GB_OK;
  char fit[512], what[64];
  gbi_policy_names(d->topology, fit, sizeof fit);
  gbi_topology_text(d->topology, what, sizeof what);
  return gbi_fail(error, GB_ERR_REFUSED,
                  "rule %d of GPUBRIDGE_THRESHOLDS names the policy \"%s\", "
                  "which does not fit a job of %s. Policies that fit: %s",
                  (int)(misfit - d->rules->rules) + 1, misfit->policy->name,
                  what, fit);
}

/* A number that all ranks agreed on, of rank 0's record; 0 where it says
 * nothing. */
static int agreed_number(const gbi_record *record, const char *name) {
  long number = 0;
  for (int i = 0; i < record->settings_count; i++)
    if (!strcmp(record->settings[i].name, name))
      number = strtol(record->settings[i].value, NULL, 10);
  return number > 0 && number < GBI_WORLD_MAX ? (int)number : 0;
}

/* Rules that are yet to be measured: until then, what auto takes. */
static gb_status prepare_tuning(gbi_discovery *d, gb_error *error) {
  const gbi_record *first = &d->records[0];
  if (!agreed_number(first, "GPUBRIDGE_TUNE") || d->rules) return GB_OK;
  d->tune_seconds = agreed_number(first, "GPUBRIDGE_TUNE_SECONDS");
  d->rules = gbi_calloc(1, sizeof *d->rules);
  if (!d->rules)
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for the rules");
  d->rules->rules[0] =
      (gbi_rule){.max_bytes = UINT64_MAX, .policy = &gbi_policy_auto};
  d->rules->count = 1;
  return GB_OK;
}

static gb_status choose_policy(gbi_discovery *d, gb_error *error) {
  const char *asked = d->records[0].policy;
  d->links_most = agreed_number(&d->records[0], "GPUBRIDGE_SHARD_LINKS");
  if (has_own_policy(&d->records[0])) { /* it is asked itself: parts.h */
    snprintf(d->policy, sizeof d->policy, "%s", asked);
    d->links = d->topology->islands_count > 1; /* to meet over */
    return GB_OK;
  }
  const gbi_policy_ops *policy = gbi_policy_find(asked);
  if (!strcmp(asked, "auto"))
    policy = d->rules ? &gbi_policy_auto_tuned : &gbi_policy_auto;
  if (!policy || !policy->fits(d->topology)) {
    char fit[512], what[64];
    gbi_policy_names(d->topology, fit, sizeof fit);
    gbi_topology_text(d->topology, what, sizeof what);
    return gbi_fail(error, GB_ERR_REFUSED,
                    "the policy \"%s\" does not fit a job of %s. Policies "
                    "that fit: %s",
                    asked, what, fit);
  }
  snprintf(d->policy, sizeof d->policy, "%s", policy->name);
  d->links = gbi_policy_links(policy, d->rules, d->topology, d->links_most);
  return GB_OK;
}

static gb_status choose_bridge(gbi_discovery *d, gb_error *error) {
  int *all = gbi_malloc(sizeof *all * (size_t)d->world);
  if (!all) return gbi_fail(error, GB_ERR_MEMORY, "out of memory for a list");
  for (int r = 0; r < d->world; r++) all[r] = r;
  const char *name;
  gb_status status = gbi_discovery_bridge(d, d->topology, d->links, all, &name,
                                          d->bridge_reason, error);
  free(all);
  if (status != GB_OK) return status;
  snprintf(d->bridge, sizeof d->bridge, "%s", name);
  return GB_OK;
}

gb_status gbi_discovery_tuned(gbi_discovery *d, const gbi_rules *rules,
                              gb_error *error) {
  *d->rules = *rules;
  d->links = gbi_policy_links(&gbi_policy_auto_tuned, d->rules, d->topology,
                              d->links_most);
  return choose_bridge(d, error);
}

static const char *run_kind(const gbi_discovery *d) {
  if (d->split_test[0]) return "split-test";
  if (d->simulated) return "cpu";
  return d->topology->islands_count > 1 ? "gpu-mixed" : "gpu-single-vendor";
}

/* ---- together ---- */

/* Takes `records`, also when it fails. */
static gb_status conclude(gbi_record *records, int rank, int world,
                          gbi_discovery **discovery_p, gb_error *error) {
  gb_status status = gbi_agreement_check(records, world, error);
  gbi_discovery *d = status == GB_OK ? gbi_calloc(1, sizeof *d) : NULL;
  if (!d) {
    free(records);
    if (status != GB_OK) return status;
    return gbi_fail(error, GB_ERR_MEMORY, "out of memory for discovery");
  }
  d->rank = rank;
  d->world = world;
  d->records = records;
  d->simulated = records[0].simulated;
  memcpy(d->split_test, records[0].split_test, sizeof d->split_test);
  status = make_labels(d, error);
  if (status == GB_OK) status = make_topology(d, error);
  if (status == GB_OK) status = read_rules(d, error);
  if (status == GB_OK) status = prepare_tuning(d, error);
  if (status == GB_OK) status = choose_policy(d, error);
  if (status == GB_OK)
    status = gbi_agreement_check_gpus(records, d->topology, error);
  if (status == GB_OK) status = choose_bridge(d, error);
  if (status != GB_OK) {
    gbi_discovery_free(d);
    return status;
  }
  d->run_kind = run_kind(d);
  *discovery_p = d;
  return GB_OK;
}

static gbi_record *new_records(int world, gb_error *error) {
  gbi_record *records = gbi_calloc((size_t)world, sizeof *records);
  if (!records)
    gbi_fail(error, GB_ERR_MEMORY, "out of memory for %d records", world);
  return records;
}

gb_status gbi_discovery_conclude(const gbi_record *records, int rank, int world,
                                 gbi_discovery **discovery_p, gb_error *error) {
  gbi_record *copy = new_records(world, error);
  if (!copy) return GB_ERR_MEMORY;
  memcpy(copy, records, (size_t)world * sizeof *copy);
  return conclude(copy, rank, world, discovery_p, error);
}

static gb_status decode_all(gbi_reader *readers, int world,
                            gbi_record **records_p, gb_error *error) {
  gbi_record *records = new_records(world, error);
  if (!records) return GB_ERR_MEMORY;
  for (int r = 0; r < world; r++) {
    gb_error why;
    gb_status status = gbi_record_decode(&readers[r], &records[r], &why);
    if (status == GB_OK) continue;
    free(records);
    return gbi_fail_rank(error, status, r, "rank %d: %.1900s", r, why.text);
  }
  *records_p = records;
  return GB_OK;
}

/* Rank 0, before anybody is answered. */
static gb_status decide(void *arg, gbi_reader *readers, int count,
                        gb_error *error) {
  gbi_record *records = NULL;
  gbi_discovery *d = NULL;
  GBI_TRY(decode_all(readers, count, &records, error));
  GBI_TRY(conclude(records, 0, count, &d, error));
  gbi_discovery_free(d);
  return GB_OK;
}

/* The part that matters: "2.13.0+cpu" is "2.13.0". */
static bool same_torch(const char *a, const char *b) {
  size_t n = strcspn(a, "+");
  return n == strcspn(b, "+") && !strncmp(a, b, n);
}

static void warn_about(const gbi_discovery *d) {
  const char *first = gbi_record_fact(&d->records[0], "torch_version");
  for (int r = 1; r < d->world; r++) {
    const char *other = gbi_record_fact(&d->records[r], "torch_version");
    if (!first[0] || !other[0] || same_torch(first, other)) continue;
    GBI_WARN("core",
             "ranks run different releases of torch: rank 0 has %s, "
             "rank %d has %s",
             first, r, other);
    break;
  }
  if (d->split_test[0])
    GBI_WARN("core",
             "split test %s: all ranks run %s, and some of them only "
             "play the other vendor. This is a test, not a mixed job",
             d->split_test, d->records[0].vendor);
}

gb_status gbi_discover(gbi_control *control, const gbi_record *mine, int rank,
                       int world, uint64_t deadline_ns,
                       gbi_discovery **discovery_p, gb_error *error) {
  gbi_writer w;
  gbi_blobs blobs;
  gbi_record *records = NULL;
  gbi_writer_init_growing(&w);
  gb_status status = gbi_record_encode(mine, &w);
  if (status != GB_OK)
    gbi_fail(error, status, "out of memory for this rank's record");
  else
    status = gbi_control_gather(control, w.data, w.used, decide, NULL,
                                deadline_ns, &blobs, error);
  gbi_writer_fini(&w);
  if (status != GB_OK) return status;
  status = decode_all(blobs.items, blobs.count, &records, error);
  gbi_blobs_free(&blobs);
  if (status == GB_OK)
    status = conclude(records, rank, world, discovery_p, error);
  if (status == GB_OK && rank == 0) warn_about(*discovery_p);
  return status;
}
