/* Curves over message sizes, as SVG: one panel per collective, both axes
 * logarithmic. */
#ifndef GB_TOOL_CHART_H
#define GB_TOOL_CHART_H

#include <stdio.h>

typedef struct tool_curve {
  const char *name;
  const double *values; /* one a size; 0: not measured */
} tool_curve;

typedef struct tool_panel {
  const char *title;
  const tool_curve *curves;
  int curves_count;
} tool_panel;

/* x: sizes in bytes, ascending; values in microseconds. Names are escaped. */
void tool_chart(FILE *out, const char *title, const double *x, int sizes,
                const tool_panel *panels, int panels_count);

#endif
