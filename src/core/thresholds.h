/* core/thresholds: the file that says which policy carries which sizes (spec
 * 4.8, docs/policies/auto-tuned.md). JSON, written by `gpubridge tune`. */
#ifndef GBI_CORE_THRESHOLDS_H
#define GBI_CORE_THRESHOLDS_H

#include "policy/rules.h"

/* Reads and checks `path`. SETTING: what is wrong, with the variable and the
 * path; *rules is then empty. Blocks on the file system only. */
gb_status gbi_thresholds_read(const char *path, gbi_rules *rules,
                              gb_error *error);
/* The same from text; `path` is for the error. */
gb_status gbi_thresholds_parse(const char *json, size_t bytes, const char *path,
                               gbi_rules *rules, gb_error *error);

#endif
