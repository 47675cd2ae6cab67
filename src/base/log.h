/* Log lines: one component, one level, one line.
 *
 * GPUBRIDGE_LOG is a level, or a list "tcp=trace,warn"; default warn. Values
 * are bare ("peer 4 port 41022"). Every line carries the rank once
 * gbi_log_set_rank was called. Log once, at the edge. Any thread. */
#ifndef GBI_BASE_LOG_H
#define GBI_BASE_LOG_H

#include "base/base.h"

#include <gpubridge/observe.h>

extern int gbi_log_most; /* the most verbose level on for any component */

void gbi_log_write(gb_log_level level, const char *component,
                   const char *format, ...) GB_PRINTF(3, 4);
void gbi_log_set_rank(int rank); /* -1: no rank in the lines */
/* Reads the value of GPUBRIDGE_LOG. */
gb_status gbi_log_configure(const char *value, gb_error *error);

#define GBI_LOG(level, component, ...)                                         \
  do {                                                                         \
    if ((int)(level) <= gbi_log_most)                                          \
      gbi_log_write((level), (component), __VA_ARGS__);                        \
  } while (0)
#define GBI_ERROR(component, ...) GBI_LOG(GB_LOG_ERROR, component, __VA_ARGS__)
#define GBI_WARN(component, ...) GBI_LOG(GB_LOG_WARN, component, __VA_ARGS__)
#define GBI_INFO(component, ...) GBI_LOG(GB_LOG_INFO, component, __VA_ARGS__)
#define GBI_DEBUG(component, ...) GBI_LOG(GB_LOG_DEBUG, component, __VA_ARGS__)
#define GBI_TRACE(component, ...) GBI_LOG(GB_LOG_TRACE, component, __VA_ARGS__)

#endif
