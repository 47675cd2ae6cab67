/* rules: which policy carries a call of so many bytes.
 *
 * May call base and plan. Pure. Rules are read from a thresholds file
 * (core/thresholds.h) and travel between ranks as text, so that all can tell
 * whether they have the same. */
#ifndef GBI_POLICY_RULES_H
#define GBI_POLICY_RULES_H

#include "policy/policy.h"

#define GBI_RULES_MAX 64 /* of all lists together */
#define GBI_RULES_TEXT 1024 /* of rules that travel */
#define GBI_RULES_TEXT_MAX 4096 /* room for any */

/* One list for all collectives, and one for each that has its own. */
typedef enum gbi_rule_list {
  GBI_RULES_ALL,
  GBI_RULES_ALL_REDUCE,
  GBI_RULES_BROADCAST,
  GBI_RULES_REDUCE,
  GBI_RULES_ALL_GATHER,
  GBI_RULES_REDUCE_SCATTER,
  GBI_RULE_LISTS
} gbi_rule_list;

typedef struct gbi_rule {
  uint8_t list;
  uint64_t max_bytes;           /* UINT64_MAX: any size */
  const gbi_policy_ops *policy;
} gbi_rule;

typedef struct gbi_rules {
  gbi_rule rules[GBI_RULES_MAX]; /* by list, in each by size; last: any size */
  int count;
  uint64_t chunk_bytes; /* 0: the setting's */
} gbi_rules;

/* "all_reduce"; "" for the list of all. Static. */
const char *gbi_rule_list_name(int list);

/* "65536=flat,*=auto;all_gather:*=auto;chunk=1048576". False: does not fit. */
bool gbi_rules_text(const gbi_rules *rules, char *text, size_t bytes);
/* The reverse, strict: the text may come from anybody. */
bool gbi_rules_parse(const char *text, gbi_rules *rules);

/* What a rule may name: any policy but auto-tuned; flat-gloo, which files of
 * old have, is our own flat. */
const gbi_policy_ops *gbi_rules_policy(const char *name);

/* The policy of the first rule that takes the call, of its collective's own
 * list if there is one; auto where that does not fit (a group of part of the
 * ranks) or there are no rules. */
const gbi_policy_ops *gbi_rules_choose(const gbi_rules *rules,
                                       const gbi_topology *topology,
                                       const gbi_coll *coll);
/* The first rule whose policy does not fit, NULL: all fit. */
const gbi_rule *gbi_rules_misfit(const gbi_rules *rules,
                                 const gbi_topology *topology);

#endif
