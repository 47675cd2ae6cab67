#include "sim/links.h"

#include "base/memory.h"

#define JSMN_STATIC
#define JSMN_STRICT
#define JSMN_PARENT_LINKS
#include <jsmn.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS_MAX = 4096, NUMBER_MAX = 31 };

typedef struct file {
  const char *path, *json;
  const jsmntok_t *tokens;
  int count;
  gb_error *error;
} file;

/* ---- what may be said ---- */

typedef struct key {
  const char *name;
  size_t offset;
  double least, most;
  bool whole;
} key;

#define AT(type, name, least, most, whole) \
  { #name, offsetof(type, name), least, most, whole }

static const key host_keys[] = {
    AT(gbi_link_hosts, ranks, 1, 65536, true),
    AT(gbi_link_hosts, cores, 1, 65536, true),
    AT(gbi_link_hosts, core_gbytes_s, 1e-3, 1e5, false),
    AT(gbi_link_hosts, net_gbytes_s, 1e-3, 1e5, false),
    AT(gbi_link_hosts, copy_gbytes_s, 1e-3, 1e6, false),
    AT(gbi_link_hosts, nics, 1, 64, true),
    AT(gbi_link_hosts, nic_gbit_s, 1e-6, 1e5, false),
    AT(gbi_link_hosts, nic_latency_us, 1e-3, 1e7, false),
    AT(gbi_link_hosts, mtu, 576, 65536, true),
};
static const key island_keys[] = {
    AT(gbi_link_island, gbytes_s, 1e-3, 1e6, false),
    AT(gbi_link_island, latency_us, 1e-3, 1e7, false),
    AT(gbi_link_island, staging_gbytes_s, 1e-3, 1e5, false),
};
static const key bridge_keys[] = {
    AT(gbi_link_bridge, gbit_s, 1e-6, 1e6, false),
    AT(gbi_link_bridge, latency_us, 1e-3, 1e7, false),
    AT(gbi_link_bridge, window_mbytes, 1e-3, 1e5, false),
};
static const key top_keys[] = {
    AT(gbi_links, overhead_us, 1e-3, 1e6, false),
};
static const char top_names[] =
    "gpubridge_links, about, hosts, islands, bridge, overhead_us";

void gbi_links_default(gbi_links *links) {
  *links = (gbi_links){.hosts = {.ranks = 8,
                                 .cores = 64,
                                 .core_gbytes_s = 8,
                                 .net_gbytes_s = 3,
                                 .copy_gbytes_s = 100,
                                 .nics = 1,
                                 .nic_gbit_s = 100,
                                 .nic_latency_us = 10,
                                 .mtu = 1500},
                       .overhead_us = 5};
}

const gbi_link_island *gbi_links_island(const gbi_links *links,
                                        const char *label) {
  for (int i = 0; i < links->islands_count; i++)
    if (!strcmp(links->islands[i].label, label)) return &links->islands[i];
  return NULL;
}

/* ---- the parsed tree ---- */

static gb_status refuse(const file *f, const char *format, ...) GB_PRINTF(2, 3);
static gb_status refuse(const file *f, const char *format, ...) {
  char what[600];
  va_list list;
  va_start(list, format);
  vsnprintf(what, sizeof what, format, list);
  va_end(list);
  return gbi_fail(f->error, GB_ERR_SETTING, "links file %.300s: %s", f->path,
                  what);
}

static int length(const jsmntok_t *t) {
  return t->end - t->start;
}

static bool is_text(const file *f, const jsmntok_t *t, const char *text) {
  return t->type == JSMN_STRING && length(t) == (int)strlen(text) &&
         !memcmp(f->json + t->start, text, strlen(text));
}

static bool same(const file *f, const jsmntok_t *a, const jsmntok_t *b) {
  return length(a) == length(b) &&
         !memcmp(f->json + a->start, f->json + b->start, (size_t)length(a));
}

/* What is printed of a key that somebody else wrote. */
static int shown(const jsmntok_t *t) {
  return GBI_MIN(length(t), 60);
}

/* The next child of token `parent` after token `after`, -1: no more. */
static int next_child(const file *f, int parent, int after) {
  for (int i = after + 1; i < f->count; i++)
    if (f->tokens[i].parent == parent) return i;
  return -1;
}

/* An object whose members all have a key, a value, and no second of the name.
 */
static gb_status check_object(const file *f, int at, const char *what) {
  const jsmntok_t *t = f->tokens;
  if (t[at].type != JSMN_OBJECT)
    return refuse(f, "%s must be an object in {}", what);
  for (int i = next_child(f, at, at); i >= 0; i = next_child(f, at, i)) {
    if (t[i].type != JSMN_STRING || t[i].size != 1 || i + 1 >= f->count ||
        t[i + 1].parent != i)
      return refuse(f, "in %s, \"%.*s\" has no value", what, shown(&t[i]),
                    f->json + t[i].start);
    for (int k = next_child(f, at, at); k < i; k = next_child(f, at, k))
      if (same(f, &t[k], &t[i]))
        return refuse(f, "%s has \"%.*s\" twice", what, shown(&t[i]),
                      f->json + t[i].start);
  }
  return GB_OK;
}

/* ---- values ---- */

/* A number as JSON writes it and nothing more ("nan", hex). */
static bool read_double(const file *f, const jsmntok_t *t, double *number) {
  char text[NUMBER_MAX + 1], *end;
  if (t->type != JSMN_PRIMITIVE || length(t) > NUMBER_MAX) return false;
  snprintf(text, sizeof text, "%.*s", length(t), f->json + t->start);
  if (strspn(text, "0123456789+-.eE") != strlen(text)) return false;
  *number = strtod(text, &end);
  return end != text && !*end && isfinite(*number);
}

static gb_status read_number(const file *f, int at, const char *where,
                             const key *k, void *into) {
  const jsmntok_t *t = &f->tokens[at];
  double number;
  if (!read_double(f, t, &number) || number < k->least || number > k->most ||
      (k->whole && number != floor(number)))
    return refuse(f, "%s%s is %.*s. It must be a %snumber from %g to %g", where,
                  k->name, shown(t), f->json + t->start,
                  k->whole ? "whole " : "", k->least, k->most);
  memcpy((char *)into + k->offset, &number, sizeof number);
  return GB_OK;
}

static void names_of(const key *keys, size_t count, char *text, size_t bytes) {
  gbi_text names;
  gbi_text_init(&names, text, bytes);
  for (size_t i = 0; i < count; i++)
    gbi_text_add(&names, "%s%s", i ? ", " : "", keys[i].name);
}

/* An object of numbers. `where`: "hosts.". */
static gb_status read_numbers(const file *f, int object, const char *where,
                              const key *keys, size_t count, void *into) {
  GBI_TRY(check_object(f, object, where));
  for (int i = next_child(f, object, object); i >= 0;
       i = next_child(f, object, i)) {
    const key *found = NULL;
    for (size_t k = 0; k < count; k++)
      if (is_text(f, &f->tokens[i], keys[k].name)) found = &keys[k];
    if (!found) {
      char known[256];
      names_of(keys, count, known, sizeof known);
      return refuse(f, "%s has no key \"%.*s\". Known are %s", where,
                    shown(&f->tokens[i]), f->json + f->tokens[i].start, known);
    }
    GBI_TRY(read_number(f, i + 1, where, found, into));
  }
  return GB_OK;
}

static gb_status read_island(const file *f, int name, gbi_link_island *island) {
  const jsmntok_t *t = &f->tokens[name];
  char where[80];
  if (!length(t) || (size_t)length(t) >= sizeof island->label)
    return refuse(f, "an island's name must have 1 to %zu bytes",
                  sizeof island->label - 1);
  snprintf(island->label, sizeof island->label, "%.*s", length(t),
           f->json + t->start);
  snprintf(where, sizeof where, "islands.%s.", island->label);
  GBI_TRY(read_numbers(f, name + 1, where, island_keys, GBI_COUNT(island_keys),
                       island));
  if (!(island->gbytes_s > 0))
    return refuse(f, "%sgbytes_s is missing: how fast the island is", where);
  return GB_OK;
}

static gb_status read_islands(const file *f, int object, gbi_links *links) {
  GBI_TRY(check_object(f, object, "islands"));
  for (int i = next_child(f, object, object); i >= 0;
       i = next_child(f, object, i)) {
    if (links->islands_count == GBI_LINKS_ISLANDS_MAX)
      return refuse(f, "it has more than %d islands", GBI_LINKS_ISLANDS_MAX);
    GBI_TRY(read_island(f, i, &links->islands[links->islands_count++]));
  }
  return GB_OK;
}

static gb_status read_top(const file *f, int name, gbi_links *links) {
  const jsmntok_t *t = &f->tokens[name];
  if (is_text(f, t, "hosts"))
    return read_numbers(f, name + 1, "hosts.", host_keys, GBI_COUNT(host_keys),
                        &links->hosts);
  if (is_text(f, t, "bridge"))
    return read_numbers(f, name + 1, "bridge.", bridge_keys,
                        GBI_COUNT(bridge_keys), &links->bridge);
  if (is_text(f, t, "islands")) return read_islands(f, name + 1, links);
  if (is_text(f, t, top_keys[0].name))
    return read_number(f, name + 1, "", &top_keys[0], links);
  if (is_text(f, t, "about")) {
    if (f->tokens[name + 1].type == JSMN_STRING) return GB_OK;
    return refuse(f, "about must be a text in \"\"");
  }
  if (is_text(f, t, "gpubridge_links")) return GB_OK;
  return refuse(f, "it has no key \"%.*s\". Known are %s", shown(t),
                f->json + t->start, top_names);
}

static gb_status read_tree(const file *f, gbi_links *links) {
  for (int i = 1; i < f->count; i++)
    if (f->tokens[i].parent < 0)
      return refuse(f, "something follows the closing }");
  GBI_TRY(check_object(f, 0, "the file"));
  double format = 0;
  for (int i = next_child(f, 0, 0); i >= 0; i = next_child(f, 0, i))
    if (is_text(f, &f->tokens[i], "gpubridge_links") &&
        !read_double(f, &f->tokens[i + 1], &format))
      format = 0;
  if (format != 1)
    return refuse(f,
                  "it is not a links file of format 1 "
                  "(\"gpubridge_links\": 1 is missing)");
  for (int i = next_child(f, 0, 0); i >= 0; i = next_child(f, 0, i))
    GBI_TRY(read_top(f, i, links));
  return GB_OK;
}

gb_status gbi_links_parse(const char *json, size_t bytes, const char *path,
                          gbi_links *links, gb_error *error) {
  gbi_links_default(links);
  file f = {path, json, NULL, 0, error};
  if (bytes > GBI_LINKS_BYTES_MAX)
    return refuse(&f, "it has more than %zu bytes", GBI_LINKS_BYTES_MAX);
  jsmntok_t *tokens = gbi_malloc(sizeof *tokens * TOKENS_MAX);
  if (!tokens)
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for a links file");
  jsmn_parser parser;
  jsmn_init(&parser);
  f.tokens = tokens;
  f.count = jsmn_parse(&parser, json, bytes, tokens, TOKENS_MAX);
  gb_status status =
      f.count > 0 ? read_tree(&f, links) : refuse(&f, "it is not JSON");
  free(tokens);
  if (status != GB_OK) gbi_links_default(links);
  return status;
}
