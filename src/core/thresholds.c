#include "core/thresholds.h"

#include "base/memory.h"

#define JSMN_STATIC
#define JSMN_STRICT
#define JSMN_PARENT_LINKS
#include <jsmn.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 1 << 20, TOKENS_MAX = 65536 };

typedef struct file {
  const char *path, *json;
  const jsmntok_t *tokens;
  int count;
  gbi_rules *rules;
  gb_error *error;
} file;

static gb_status refuse(const file *f, const char *format, ...) GB_PRINTF(2, 3);
static gb_status refuse(const file *f, const char *format, ...) {
  char what[800];
  va_list list;
  va_start(list, format);
  vsnprintf(what, sizeof what, format, list);
  va_end(list);
  return gbi_fail(f->error, GB_ERR_SETTING, "GPUBRIDGE_THRESHOLDS=%.300s: %s",
                  f->path, what);
}

/* ---- the parsed tree ---- */

static int length(const jsmntok_t *t) {
  return t->end - t->start;
}

static bool is_text(const file *f, const jsmntok_t *t, const char *text) {
  return t->type == JSMN_STRING && length(t) == (int)strlen(text) &&
         !memcmp(f->json + t->start, text, strlen(text));
}

static bool is_null(const file *f, const jsmntok_t *t) {
  return t->type == JSMN_PRIMITIVE && f->json[t->start] == 'n';
}

/* The value of `name` in the object at `object`, NULL when it has none. */
static const jsmntok_t *member(const file *f, const jsmntok_t *object,
                               const char *name) {
  int at = (int)(object - f->tokens);
  for (int i = at + 1; i < f->count - 1; i++)
    if (f->tokens[i].parent == at && f->tokens[i + 1].parent == i &&
        is_text(f, &f->tokens[i], name))
      return &f->tokens[i + 1];
  return NULL;
}

/* The next child of `parent` after token `after`; NULL: no more. */
static const jsmntok_t *next_child(const file *f, const jsmntok_t *parent,
                                   const jsmntok_t *after) {
  int at = (int)(parent - f->tokens);
  for (int i = (int)(after - f->tokens) + 1; i < f->count; i++)
    if (f->tokens[i].parent == at) return &f->tokens[i];
  return NULL;
}

static bool whole_number(const file *f, const jsmntok_t *t, uint64_t *number) {
  if (t->type != JSMN_PRIMITIVE || length(t) > 18) return false;
  *number = 0;
  for (int i = t->start; i < t->end; i++) {
    if (f->json[i] < '0' || f->json[i] > '9') return false;
    *number = *number * 10 + (uint64_t)(f->json[i] - '0');
  }
  return true;
}

/* ---- rules ---- */

static gb_status read_policy(const file *f, const jsmntok_t *object, int number,
                             gbi_rule *rule) {
  const jsmntok_t *t = member(f, object, "policy");
  char name[64] = "", known[512];
  if (t && t->type == JSMN_STRING)
    snprintf(name, sizeof name, "%.*s", GBI_MIN(length(t), 63),
             f->json + t->start);
  rule->policy = gbi_rules_policy(name);
  if (rule->policy) return GB_OK;
  gbi_policy_names(NULL, known, sizeof known);
  return refuse(f,
                "rule %d names the policy \"%s\", which a rule cannot. Known "
                "are %s, but not auto-tuned itself",
                number, name, known);
}

static gb_status read_rule(const file *f, const jsmntok_t *t, int list,
                           int number, gbi_rule *rule) {
  *rule = (gbi_rule){.list = (uint8_t)list, .max_bytes = UINT64_MAX};
  if (t->type != JSMN_OBJECT)
    return refuse(f, "rule %d is not an object with max_bytes and policy",
                  number);
  GBI_TRY(read_policy(f, t, number, rule));
  const jsmntok_t *most = member(f, t, "max_bytes");
  if (!most || (!is_null(f, most) && !whole_number(f, most, &rule->max_bytes)))
    return refuse(f,
                  "max_bytes of rule %d must be a whole number of bytes, or "
                  "null for any size",
                  number);
  return GB_OK;
}

static gb_status read_list(const file *f, const jsmntok_t *array, int list) {
  const char *of = list ? gbi_rule_list_name(list) : "every collective";
  if (!array || array->type != JSMN_ARRAY || !array->size)
    return refuse(f, "the rules of %s must be a list with at least one rule",
                  of);
  gbi_rules *rules = f->rules;
  const gbi_rule *last = NULL;
  int number = 1;
  for (const jsmntok_t *t = next_child(f, array, array); t;
       t = next_child(f, array, t), number++) {
    if (rules->count >= GBI_RULES_MAX)
      return refuse(f, "it has more than %d rules", GBI_RULES_MAX);
    gbi_rule *rule = &rules->rules[rules->count];
    GBI_TRY(read_rule(f, t, list, number, rule));
    if (last && rule->max_bytes <= last->max_bytes)
      return refuse(f,
                    "max_bytes of rule %d of %s is not larger than that of "
                    "the rule before it",
                    number, of);
    last = rule;
    rules->count++;
  }
  if (last->max_bytes != UINT64_MAX)
    return refuse(f,
                  "the last rule of %s must have max_bytes null, so that "
                  "every size has a rule",
                  of);
  return GB_OK;
}

/* Lists of single collectives, an addition of ours; names we do not know are
 * refused, because they would silently do nothing. */
static gb_status read_collectives(const file *f, const jsmntok_t *object) {
  if (object->type != JSMN_OBJECT)
    return refuse(f, "collectives must be an object of lists of rules");
  for (int list = GBI_RULES_ALL_REDUCE; list < GBI_RULE_LISTS; list++) {
    const jsmntok_t *array = member(f, object, gbi_rule_list_name(list));
    if (array) GBI_TRY(read_list(f, array, list));
  }
  for (const jsmntok_t *t = next_child(f, object, object); t;
       t = next_child(f, object, t)) {
    bool known = false;
    for (int list = GBI_RULES_ALL_REDUCE; list < GBI_RULE_LISTS; list++)
      known = known || is_text(f, t, gbi_rule_list_name(list));
    if (!known)
      return refuse(f,
                    "collectives has \"%.*s\". Known are all_reduce, "
                    "broadcast, reduce, all_gather, reduce_scatter",
                    GBI_MIN(length(t), 64), f->json + t->start);
  }
  return GB_OK;
}

static gb_status read_chunk(const file *f, const jsmntok_t *t) {
  if (!t || is_null(f, t)) return GB_OK;
  if (!whole_number(f, t, &f->rules->chunk_bytes) || !f->rules->chunk_bytes ||
      f->rules->chunk_bytes % 8)
    return refuse(f, "chunk_bytes must be a positive multiple of 8");
  return GB_OK;
}

static gb_status read_tree(const file *f) {
  const jsmntok_t *top = f->tokens;
  uint64_t format;
  const jsmntok_t *t =
      top->type == JSMN_OBJECT ? member(f, top, "gpubridge_thresholds") : NULL;
  if (!t || !whole_number(f, t, &format) || format != 1)
    return refuse(f,
                  "it is not a thresholds file of format 1 "
                  "(\"gpubridge_thresholds\": 1 is missing)");
  GBI_TRY(read_list(f, member(f, top, "rules"), GBI_RULES_ALL));
  t = member(f, top, "collectives");
  if (t) GBI_TRY(read_collectives(f, t));
  GBI_TRY(read_chunk(f, member(f, top, "chunk_bytes")));
  char text[GBI_RULES_TEXT];
  if (!gbi_rules_text(f->rules, text, sizeof text))
    return refuse(f, "its rules are too long to be told to the other ranks");
  return GB_OK;
}

gb_status gbi_thresholds_parse(const char *json, size_t bytes, const char *path,
                               gbi_rules *rules, gb_error *error) {
  memset(rules, 0, sizeof *rules);
  jsmntok_t *tokens = gbi_malloc(sizeof *tokens * TOKENS_MAX);
  if (!tokens)
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for a thresholds file");
  file f = {path, json, tokens, 0, rules, error};
  jsmn_parser parser;
  jsmn_init(&parser);
  f.count = jsmn_parse(&parser, json, bytes, tokens, TOKENS_MAX);
  gb_status status = f.count > 0 ? read_tree(&f) : refuse(&f, "it is not JSON");
  free(tokens);
  if (status != GB_OK) memset(rules, 0, sizeof *rules);
  return status;
}

/* A FIFO or a device would block or never end. */
static ssize_t read_file(const char *path, char *buffer, size_t bytes) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return -1;
  struct stat info;
  ssize_t used = -1;
  if (fstat(fd, &info)) {
    used = -1;
  } else if (!S_ISREG(info.st_mode)) {
    errno = EINVAL;
  } else {
    ssize_t n;
    used = 0;
    while ((size_t)used < bytes &&
           (n = read(fd, buffer + used, bytes - (size_t)used)) != 0) {
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        used = -1;
        break;
      }
      used += n;
    }
  }
  int code = errno;
  close(fd);
  errno = code;
  return used;
}

gb_status gbi_thresholds_read(const char *path, gbi_rules *rules,
                              gb_error *error) {
  memset(rules, 0, sizeof *rules);
  file f = {.path = path, .error = error};
  char *json = gbi_malloc(FILE_BYTES_MAX + 1);
  if (!json)
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for a thresholds file");
  ssize_t n = read_file(path, json, FILE_BYTES_MAX + 1);
  gb_status status;
  if (n < 0)
    status = refuse(&f, "it cannot be read: %s", strerror(errno));
  else if (n > FILE_BYTES_MAX)
    status = refuse(&f, "it has more than %d bytes", FILE_BYTES_MAX);
  else
    status = gbi_thresholds_parse(json, (size_t)n, path, rules, error);
  free(json);
  return status;
}
