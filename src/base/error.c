#include "base/base.h"

#include <stdio.h>
#include <string.h>

const char *gb_status_name(gb_status status) {
  switch (status) {
#define NAME(name, number, scope, text)                                        \
  case name:                                                                   \
    return #name;
    GB_STATUS_TABLE(NAME)
#undef NAME
  }
  return "GB_ERR_UNKNOWN";
}

const char *gb_status_text(gb_status status) {
  switch (status) {
#define TEXT(name, number, scope, text)                                        \
  case name:                                                                   \
    return text;
    GB_STATUS_TABLE(TEXT)
#undef TEXT
  }
  return "unknown status";
}

gb_scope gb_status_scope(gb_status status) {
  switch (status) {
#define SCOPE(name, number, scope, text)                                       \
  case name:                                                                   \
    return scope;
    GB_STATUS_TABLE(SCOPE)
#undef SCOPE
  }
  return GB_SCOPE_JOB;
}

GB_PRINTF(4, 0)
static gb_status fail_v(gb_error *error, gb_status status, int rank,
                        const char *format, va_list args) {
  if (error) {
    error->status = status;
    error->rank = rank;
    /* Through a second buffer: an argument may point into error->text. */
    char text[GB_ERROR_TEXT_MAX];
    vsnprintf(text, sizeof text, format, args);
    memcpy(error->text, text, strlen(text) + 1);
  }
  return status;
}

gb_status gbi_fail(gb_error *error, gb_status status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  fail_v(error, status, -1, format, args);
  va_end(args);
  return status;
}

gb_status gbi_fail_rank(gb_error *error, gb_status status, int rank,
                        const char *format, ...) {
  va_list args;
  va_start(args, format);
  fail_v(error, status, rank, format, args);
  va_end(args);
  return status;
}

void gbi_error_clear(gb_error *error) {
  if (!error) return;
  error->status = GB_OK;
  error->rank = -1;
  error->text[0] = 0;
}

void gbi_text_init(gbi_text *text, char *buffer, size_t bytes) {
  text->at = buffer;
  text->bytes = bytes;
  text->used = 0;
  if (bytes) buffer[0] = 0;
}

void gbi_text_add(gbi_text *text, const char *format, ...) {
  if (text->used + 1 >= text->bytes) return;
  va_list args;
  va_start(args, format);
  int n = vsnprintf(text->at + text->used, text->bytes - text->used, format,
                    args);
  va_end(args);
  if (n > 0) text->used = GBI_MIN(text->used + (size_t)n, text->bytes - 1);
}

void gbi_text_add_ranks(gbi_text *text, const int *ranks, int count) {
  for (int i = 0; i < count;) {
    int last = i;
    while (last + 1 < count && ranks[last + 1] == ranks[last] + 1) last++;
    const char *lead = i ? ", " : "";
    if (last - i >= 2) {
      gbi_text_add(text, "%s%d-%d", lead, ranks[i], ranks[last]);
      i = last + 1;
    } else {
      gbi_text_add(text, "%s%d", lead, ranks[i]);
      i++;
    }
  }
}
