#include "base/config.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool gbi_env(const char *name, char *buffer, size_t bytes) {
  const char *value = getenv(name);
  buffer[0] = 0;
  if (!value) return false;
  while (isspace((unsigned char)*value)) value++;
  size_t n = strlen(value);
  while (n && isspace((unsigned char)value[n - 1])) n--;
  if (n >= bytes) n = bytes - 1;
  memcpy(buffer, value, n);
  buffer[n] = 0;
  return n > 0;
}

static bool parse_bool(const char *text, int64_t *number_p) {
  static const char *const yes[] = {"1", "true", "yes", "on"};
  static const char *const no[] = {"0", "false", "no", "off"};
  for (size_t i = 0; i < GBI_COUNT(yes); i++) {
    if (!strcasecmp(text, yes[i])) return *number_p = 1, true;
    if (!strcasecmp(text, no[i])) return *number_p = 0, true;
  }
  return false;
}

static bool parse_int(const char *text, int64_t *number_p) {
  char *end;
  errno = 0;
  long long number = strtoll(text, &end, 10);
  if (errno || end == text || *end) return false;
  *number_p = number;
  return true;
}

static bool parse_size(const char *text, int64_t *number_p) {
  size_t digits = strspn(text, "0123456789.");
  if (!digits || digits > 32) return false;
  char number[40];
  memcpy(number, text, digits);
  number[digits] = 0;
  char *end;
  double value = strtod(number, &end);
  if (*end || !isfinite(value)) return false;
  const char *unit = text + digits;
  double scale = 1;
  switch (toupper((unsigned char)*unit)) {
    case 'K': scale = 1024.0, unit++; break;
    case 'M': scale = 1048576.0, unit++; break;
    case 'G': scale = 1073741824.0, unit++; break;
    default: break;
  }
  if (toupper((unsigned char)*unit) == 'B') unit++;
  value *= scale;
  if (*unit || value > 9.0e15 || value != floor(value)) return false;
  *number_p = (int64_t)value;
  return true;
}

static bool parse_choice(const gbi_setting *setting, const char *text,
                         gbi_value *value) {
  const char *at = setting->choices;
  while (*at) {
    size_t n = strcspn(at, "|");
    if (strlen(text) == n && !strncasecmp(at, text, n)) {
      snprintf(value->text, sizeof value->text, "%.*s", (int)n, at);
      return true;
    }
    at += n + (at[n] == '|');
  }
  return false;
}

static gb_status refuse(const gbi_setting *setting, const char *text,
                        gb_error *error) {
  char wanted[256];
  gbi_text out;
  gbi_text_init(&out, wanted, sizeof wanted);
  switch (setting->kind) {
    case GBI_SETTING_BOOL:
      gbi_text_add(&out, "1, true, yes, on, 0, false, no or off");
      break;
    case GBI_SETTING_INT:
    case GBI_SETTING_SIZE:
      gbi_text_add(&out, "%s of at least %" PRId64,
                   setting->kind == GBI_SETTING_INT
                       ? "a whole number"
                       : "a size in bytes, like 65536 or 4M,",
                   setting->min);
      if (setting->max)
        gbi_text_add(&out, " and at most %" PRId64, setting->max);
      if (setting->multiple)
        gbi_text_add(&out, ", a multiple of %" PRId64, setting->multiple);
      break;
    case GBI_SETTING_CHOICE:
      gbi_text_add(&out, "one of %s", setting->choices);
      break;
    case GBI_SETTING_TEXT:
      gbi_text_add(&out, "a text of at most 255 bytes");
      break;
  }
  return gbi_fail(error, GB_ERR_SETTING, "%s is \"%s\", but must be %s",
                  setting->name, text, wanted);
}

gb_status gbi_setting_parse(const gbi_setting *setting, const char *text,
                            gbi_value *value, gb_error *error) {
  memset(value, 0, sizeof *value);
  bool good = true;
  switch (setting->kind) {
    case GBI_SETTING_BOOL: good = parse_bool(text, &value->number); break;
    case GBI_SETTING_INT: good = parse_int(text, &value->number); break;
    case GBI_SETTING_SIZE: good = parse_size(text, &value->number); break;
    case GBI_SETTING_CHOICE: good = parse_choice(setting, text, value); break;
    case GBI_SETTING_TEXT:
      good = strlen(text) < sizeof value->text;
      snprintf(value->text, sizeof value->text, "%s", text);
      break;
  }
  if (good && (setting->kind == GBI_SETTING_INT ||
               setting->kind == GBI_SETTING_SIZE)) {
    good = value->number >= setting->min &&
           (!setting->max || value->number <= setting->max) &&
           (!setting->multiple || value->number % setting->multiple == 0);
  }
  if (!good) return refuse(setting, text, error);
  if (setting->kind != GBI_SETTING_CHOICE && setting->kind != GBI_SETTING_TEXT)
    snprintf(value->text, sizeof value->text, "%" PRId64, value->number);
  return GB_OK;
}

gb_status gbi_setting_read(const gbi_setting *setting, gbi_value *value,
                           gb_error *error) {
  char text[4096];
  gb_status status = GB_OK;
  if (gbi_env(setting->name, text, sizeof text)) {
    status = gbi_setting_parse(setting, text, value, error);
    if (status == GB_OK) {
      value->is_set = true;
      return GB_OK;
    }
  }
  memset(value, 0, sizeof *value);
  if (setting->default_value[0])
    (void)gbi_setting_parse(setting, setting->default_value, value, NULL);
  return status;
}

int64_t gbi_setting_number(const gbi_setting *setting) {
  gbi_value value;
  (void)gbi_setting_read(setting, &value, NULL);
  return value.number;
}
