#include "policy/rules.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const list_names[GBI_RULE_LISTS] = {
    "", "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter"};

const char *gbi_rule_list_name(int list) {
  return list_names[list];
}

const gbi_policy_ops *gbi_rules_policy(const char *name) {
  if (!strcmp(name, "flat-gloo")) return &gbi_policy_flat;
  const gbi_policy_ops *policy = gbi_policy_find(name);
  return policy == &gbi_policy_auto_tuned ? NULL : policy;
}

/* ---- text ---- */

bool gbi_rules_text(const gbi_rules *rules, char *buffer, size_t bytes) {
  gbi_text text;
  gbi_text_init(&text, buffer, bytes);
  for (int i = 0; i < rules->count; i++) {
    const gbi_rule *rule = &rules->rules[i];
    if (!i || rule->list != rules->rules[i - 1].list)
      gbi_text_add(&text, "%s%s%s", i ? ";" : "", list_names[rule->list],
                   rule->list ? ":" : "");
    else
      gbi_text_add(&text, ",");
    if (rule->max_bytes == UINT64_MAX)
      gbi_text_add(&text, "*=");
    else
      gbi_text_add(&text, "%" PRIu64 "=", rule->max_bytes);
    gbi_text_add(&text, "%s", rule->policy->name);
  }
  if (rules->chunk_bytes)
    gbi_text_add(&text, ";chunk=%" PRIu64, rules->chunk_bytes);
  return text.used + 1 < bytes;
}

/* Decimal, nothing else around it. */
static bool parse_number(const char *text, uint64_t *number) {
  char *end;
  if (*text < '0' || *text > '9') return false;
  *number = strtoull(text, &end, 10);
  return !*end && *number < UINT64_MAX;
}

static bool parse_rule(char *text, int list, gbi_rules *rules) {
  char *equals = strchr(text, '=');
  if (!equals || rules->count >= GBI_RULES_MAX) return false;
  *equals = 0;
  gbi_rule *last = rules->count ? &rules->rules[rules->count - 1] : NULL;
  gbi_rule rule = {.list = (uint8_t)list, .max_bytes = UINT64_MAX};
  if (strcmp(text, "*") && !parse_number(text, &rule.max_bytes)) return false;
  if (last && last->list == list && rule.max_bytes <= last->max_bytes)
    return false;
  rule.policy = gbi_rules_policy(equals + 1);
  if (!rule.policy) return false;
  rules->rules[rules->count++] = rule;
  return true;
}

/* A list and its rules: lists come in their order, each ends with any size. */
static bool parse_list(char *text, int *list_p, gbi_rules *rules) {
  int list = GBI_RULES_ALL;
  char *colon = strchr(text, ':'), *rest = NULL;
  if (colon) {
    *colon = 0;
    for (list = 1; list < GBI_RULE_LISTS; list++)
      if (!strcmp(list_names[list], text)) break;
    text = colon + 1;
  }
  if (list >= GBI_RULE_LISTS || list <= *list_p) return false;
  if (*list_p < 0 && list != GBI_RULES_ALL) return false;
  *list_p = list;
  for (char *item = strtok_r(text, ",", &rest); item;
       item = strtok_r(NULL, ",", &rest))
    if (!parse_rule(item, list, rules)) return false;
  return rules->count &&
         rules->rules[rules->count - 1].max_bytes == UINT64_MAX &&
         rules->rules[rules->count - 1].list == list;
}

bool gbi_rules_parse(const char *given, gbi_rules *rules) {
  char text[GBI_RULES_TEXT], *rest = NULL;
  int list = -1;
  memset(rules, 0, sizeof *rules);
  if (strlen(given) >= sizeof text) return false;
  snprintf(text, sizeof text, "%s", given);
  for (char *item = strtok_r(text, ";", &rest); item;
       item = strtok_r(NULL, ";", &rest)) {
    if (rules->chunk_bytes) return false;
    if (!strncmp(item, "chunk=", 6)) {
      if (!parse_number(item + 6, &rules->chunk_bytes) || !rules->chunk_bytes ||
          rules->chunk_bytes % 8)
        return false;
    } else if (!parse_list(item, &list, rules)) {
      return false;
    }
  }
  return rules->count > 0;
}

/* ---- choosing ---- */

static int list_of(int op) {
  switch (op) {
    case GBI_OP_ALL_REDUCE: return GBI_RULES_ALL_REDUCE;
    case GBI_OP_BROADCAST: return GBI_RULES_BROADCAST;
    case GBI_OP_REDUCE: return GBI_RULES_REDUCE;
    case GBI_OP_ALL_GATHER:
    case GBI_OP_ALL_GATHER_V: return GBI_RULES_ALL_GATHER;
    case GBI_OP_REDUCE_SCATTER:
    case GBI_OP_REDUCE_SCATTER_V: return GBI_RULES_REDUCE_SCATTER;
    default: return GBI_RULES_ALL;
  }
}

const gbi_policy_ops *gbi_rules_choose(const gbi_rules *rules,
                                       const gbi_topology *topology,
                                       const gbi_coll *coll) {
  int list = list_of(coll->op);
  bool own = false;
  for (int i = 0; rules && i < rules->count; i++)
    own = own || rules->rules[i].list == list;
  if (!own) list = GBI_RULES_ALL;
  uint64_t bytes = gbi_coll_bytes(coll, topology->world);
  for (int i = 0; rules && i < rules->count; i++) {
    const gbi_rule *rule = &rules->rules[i];
    if (rule->list != list || bytes > rule->max_bytes) continue;
    return rule->policy->fits(topology) ? rule->policy : &gbi_policy_auto;
  }
  return &gbi_policy_auto;
}

const gbi_rule *gbi_rules_misfit(const gbi_rules *rules,
                                 const gbi_topology *topology) {
  for (int i = 0; i < rules->count; i++)
    if (!rules->rules[i].policy->fits(topology))
      return &rules->rules[i];
  return NULL;
}
