/* Settings: one table per component, read once from the environment.
 *
 * Values are trimmed; an empty value counts as unset. Booleans are 1 true yes
 * on / 0 false no off in any case; sizes are bytes or a number with K, M, G
 * (powers of 1024) and an optional B. A malformed value is GB_ERR_SETTING that
 * names the variable, the value and what is accepted. getenv appears in
 * config.c only. Reading is thread-safe as long as nobody calls setenv. */
#ifndef GBI_BASE_CONFIG_H
#define GBI_BASE_CONFIG_H

#include "base/base.h"

typedef enum gbi_setting_kind {
  GBI_SETTING_BOOL,
  GBI_SETTING_INT,   /* decimal, within min..max */
  GBI_SETTING_SIZE,  /* bytes, within min..max, a multiple of `multiple` */
  GBI_SETTING_TEXT,  /* any string */
  GBI_SETTING_CHOICE /* one of `choices`, any case; given back as listed */
} gbi_setting_kind;

typedef struct gbi_setting {
  const char *name;          /* "GPUBRIDGE_..." */
  const char *default_value; /* as a user would write it; "" = unset */
  const char *help;
  gbi_setting_kind kind;
  bool must_agree;     /* compared across ranks in discovery */
  bool secret;         /* its value is never shown */
  int64_t min, max;    /* INT and SIZE; max 0: no limit */
  int64_t multiple;    /* SIZE; 0: any */
  const char *choices; /* CHOICE: "half|alternate|node" */
} gbi_setting;

typedef struct gbi_value {
  int64_t number; /* BOOL, INT, SIZE */
  char text[256]; /* TEXT, CHOICE; for others the canonical text */
  bool is_set;    /* came from the environment */
} gbi_value;

/* Reads one setting. On a malformed value *value_p is the default. */
gb_status gbi_setting_read(const gbi_setting *setting, gbi_value *value_p,
                           gb_error *error);
/* Parses `text` as the setting's value (tests, files). */
gb_status gbi_setting_parse(const gbi_setting *setting, const char *text,
                            gbi_value *value_p, gb_error *error);
/* Short forms for settings already checked at open: the default on error. */
int64_t gbi_setting_number(const gbi_setting *setting);
/* A variable that others own (RANK, MASTER_ADDR ...): trimmed copy in `buffer`,
 * false when unset or empty. */
bool gbi_env(const char *name, char *buffer, size_t bytes);

#endif
