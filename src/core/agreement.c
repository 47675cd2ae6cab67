#include "core/agreement.h"

#include "base/memory.h"
#include "core/parts.h"

#include <stdlib.h>
#include <string.h>

/* The value of one rank that is compared. */
typedef const char *(*value_fn)(const gbi_record *record, const char *name);

/* "4194304 on ranks 0-2, 1048576 on rank 3", in order of the lowest rank. */
static void list_values(const gbi_record *records, int world, value_fn value,
                        const char *name, gbi_text *text) {
  int *ranks = gbi_malloc((size_t)world * sizeof *ranks);
  for (int r = 0; ranks && r < world; r++) {
    const char *mine = value(&records[r], name);
    int count = 0;
    bool seen = false;
    for (int k = 0; k < r && !seen; k++)
      seen = !strcmp(value(&records[k], name), mine);
    if (seen) continue;
    for (int k = r; k < world; k++)
      if (!strcmp(value(&records[k], name), mine)) ranks[count++] = k;
    gbi_text_add(text, "%s%s on %s ", r ? ", " : "", mine,
                 count == 1 ? "rank" : "ranks");
    gbi_text_add_ranks(text, ranks, count);
  }
  free(ranks);
}

static gb_status must_be_equal(const gbi_record *records, int world,
                               value_fn value, const char *name,
                               const char *what, gb_error *error) {
  char list[1500];
  gbi_text text;
  int r = 1;
  while (r < world &&
         !strcmp(value(&records[r], name), value(&records[0], name)))
    r++;
  if (r >= world) return GB_OK;
  gbi_text_init(&text, list, sizeof list);
  list_values(records, world, value, name, &text);
  return gbi_fail_rank(error, GB_ERR_REFUSED, r,
                       "ranks disagree about %s: %s. It must be the same on "
                       "every rank",
                       what, list);
}

static const char *bridge_of(const gbi_record *r, const char *name) {
  return r->bridge;
}
static const char *policy_of(const gbi_record *r, const char *name) {
  return r->policy;
}
static const char *rules_of(const gbi_record *r, const char *name) {
  return r->rules[0] ? r->rules : "none";
}
static const char *split_of(const gbi_record *r, const char *name) {
  return r->split_test[0] ? r->split_test : "off";
}
static const char *setting_of(const gbi_record *r, const char *name) {
  for (int i = 0; i < r->settings_count; i++)
    if (!strcmp(r->settings[i].name, name))
      return r->settings[i].value[0] ? r->settings[i].value : "unset";
  return "unknown";
}

static gb_status check_problems(const gbi_record *records, int world,
                                gb_error *error) {
  char list[1800];
  gbi_text text;
  int ranks = 0, problems = 0, first = -1, left_out = 0;
  gbi_text_init(&text, list, sizeof list);
  for (int r = 0; r < world; r++) {
    if (!records[r].problems_count) continue;
    if (first < 0) first = r;
    ranks++;
    for (int i = 0; i < records[r].problems_count; i++) {
      problems++;
      if (text.used > sizeof list - 700)
        left_out++;
      else
        gbi_text_add(&text, "\nrank %d (host \"%.64s\"): %s", r,
                     records[r].hostname, records[r].problems[i]);
    }
  }
  if (!problems) return GB_OK;
  if (left_out) gbi_text_add(&text, "\nand %d more", left_out);
  return gbi_fail_rank(error, GB_ERR_REFUSED, first,
                       "%d of %d ranks cannot take part:%s", ranks, world,
                       list);
}

static gb_status check_mode(const gbi_record *records, int world,
                            gb_error *error) {
  char cpu[600], gpu[600];
  gbi_text texts[2];
  int *ranks = gbi_malloc((size_t)world * sizeof *ranks), counts[2] = {0, 0};
  if (!ranks)
    return gbi_fail(error, GB_ERR_MEMORY, "out of memory for the ranks");
  gbi_text_init(&texts[0], gpu, sizeof gpu);
  gbi_text_init(&texts[1], cpu, sizeof cpu);
  for (int mode = 0; mode < 2; mode++) {
    for (int r = 0; r < world; r++)
      if (records[r].simulated == (mode == 1)) ranks[counts[mode]++] = r;
    gbi_text_add_ranks(&texts[mode], ranks, counts[mode]);
  }
  free(ranks);
  if (!counts[0] || !counts[1]) return GB_OK;
  return gbi_fail(error, GB_ERR_REFUSED,
                  "ranks disagree about CPU and GPU: on CPU are %s, on GPUs "
                  "%s. Set GPUBRIDGE_VENDOR or GPUBRIDGE_CPU_ONLY on every "
                  "rank, or on none",
                  cpu, gpu);
}

/* Every setting that any rank knows; names of rank 0 first. */
static gb_status check_settings(const gbi_record *records, int world,
                                bool of_policy, gb_error *error) {
  static const char *const policys[] = {
      "GPUBRIDGE_CHUNK_BYTES", "GPUBRIDGE_SHARD_LINKS", GBI_POLICY_SETTINGS};
  for (int r = 0; r < world; r++) {
    for (int i = 0; i < records[r].settings_count; i++) {
      const char *name = records[r].settings[i].name;
      bool is_policys = false;
      for (size_t k = 0; k < GBI_COUNT(policys); k++)
        is_policys |= !strcmp(name, policys[k]);
      if (is_policys != of_policy) continue;
      if (r && strcmp(setting_of(&records[0], name), "unknown")) continue;
      GBI_TRY(must_be_equal(records, world, setting_of, name, name, error));
    }
  }
  return GB_OK;
}

gb_status gbi_agreement_check(const gbi_record *records, int world,
                              gb_error *error) {
  GBI_TRY(check_problems(records, world, error));
  GBI_TRY(check_mode(records, world, error));
  GBI_TRY(must_be_equal(records, world, bridge_of, NULL,
                        "the bridge (GPUBRIDGE_BRIDGE)", error));
  GBI_TRY(must_be_equal(records, world, policy_of, NULL, "the policy", error));
  GBI_TRY(must_be_equal(records, world, rules_of, NULL,
                        "the rules of GPUBRIDGE_THRESHOLDS", error));
  GBI_TRY(check_settings(records, world, true, error));
  GBI_TRY(must_be_equal(records, world, split_of, NULL, "GPUBRIDGE_SPLIT_TEST",
                        error));
  return check_settings(records, world, false, error);
}

/* ---- one GPU, one rank ---- */

const char *gbi_record_fact(const gbi_record *record, const char *name) {
  for (int i = 0; i < record->facts_count; i++)
    if (!strcmp(record->facts[i].name, name)) return record->facts[i].value;
  return "";
}

/* The device that both drive, NULL when they differ or cannot be told. UUIDs
 * decide where both have one: slices of one card share its PCI address. */
static const char *shared_gpu(const gbi_record *a, const gbi_record *b) {
  const char *uuid = gbi_record_fact(a, "gpu_uuid");
  const char *other = gbi_record_fact(b, "gpu_uuid");
  if (uuid[0] && other[0]) return strcmp(uuid, other) ? NULL : uuid;
  const char *pci = gbi_record_fact(a, "gpu_pci");
  other = gbi_record_fact(b, "gpu_pci");
  bool same =
      pci[0] && !strcmp(pci, other) && !strcmp(a->hostname, b->hostname);
  return same ? pci : NULL;
}

gb_status gbi_agreement_check_gpus(const gbi_record *records,
                                   const gbi_topology *topology,
                                   gb_error *error) {
  for (int i = 0; i < topology->islands_count; i++) {
    const gbi_island *island = &topology->islands[i];
    for (int a = 0; a < island->count; a++) {
      for (int b = a + 1; b < island->count; b++) {
        int ra = island->ranks[a], rb = island->ranks[b];
        const char *gpu = shared_gpu(&records[ra], &records[rb]);
        if (!gpu) continue;
        return gbi_fail_rank(
            error, GB_ERR_REFUSED, rb,
            "ranks %d and %d of island \"%s\" would drive the same GPU %.64s "
            "on hosts \"%.64s\" and \"%.64s\". Every rank needs a GPU of its "
            "own: check LOCAL_RANK and the visible devices",
            ra, rb, island->label, gpu, records[ra].hostname,
            records[rb].hostname);
      }
    }
  }
  return GB_OK;
}
