#include "chart.h"

#include <math.h>

enum { PANEL_WIDTH = 460, PANEL_HEIGHT = 300, ACROSS = 2 };
enum { LEFT = 60, RIGHT = 12, TOP = 34, BOTTOM = 34, HEAD = 40, LEGEND = 26 };

static const char *const colours[] = {"#2563eb", "#dc2626", "#059669",
                                      "#d97706", "#7c3aed", "#475569"};
enum { COLOURS = sizeof colours / sizeof colours[0] };

/* Where the axes of one panel lie; x and y in powers of two and ten. */
typedef struct frame {
  double left, top, width, height;
  double x_low, x_high, y_low, y_high;
} frame;

static void put_text(FILE *out, const char *text) {
  for (; *text; text++) switch (*text) {
      case '<': fputs("&lt;", out); break;
      case '>': fputs("&gt;", out); break;
      case '&': fputs("&amp;", out); break;
      default: fputc(*text, out);
    }
}

static double at_x(const frame *f, double x) {
  return f->left + (log2(x) - f->x_low) / (f->x_high - f->x_low) * f->width;
}
static double at_y(const frame *f, double y) {
  return f->top + f->height -
         (log10(y) - f->y_low) / (f->y_high - f->y_low) * f->height;
}

static frame fit(const tool_panel *panel, const double *x, int sizes,
                 int number) {
  double low = INFINITY, high = 0;
  for (int c = 0; c < panel->curves_count; c++)
    for (int i = 0; i < sizes; i++) {
      double y = panel->curves[c].values[i];
      if (y > 0) low = fmin(low, y);
      high = fmax(high, y);
    }
  if (!(low <= high)) low = high = 1;
  return (frame){
      .left = number % ACROSS * PANEL_WIDTH + LEFT,
      .top = HEAD + (double)(number / ACROSS) * PANEL_HEIGHT + TOP,
      .width = PANEL_WIDTH - LEFT - RIGHT,
      .height = PANEL_HEIGHT - TOP - BOTTOM,
      .x_low = log2(x[0]),
      .x_high = fmax(log2(x[sizes - 1]), log2(x[0]) + 1),
      .y_low = floor(log10(low)),
      .y_high = fmax(ceil(log10(high)), floor(log10(low)) + 1),
  };
}

static void put_bytes(FILE *out, double bytes) {
  static const char *const units[] = {"", "K", "M", "G"};
  int unit = 0;
  for (; bytes >= 1024 && unit < 3; unit++) bytes /= 1024;
  fprintf(out, "%.0f%s", bytes, units[unit]);
}

static void put_axes(FILE *out, const frame *f, const double *x, int sizes,
                     const char *title) {
  fprintf(out, "<text x='%.0f' y='%.0f' font-weight='bold'>", f->left,
          f->top - 10);
  put_text(out, title);
  fprintf(out, "</text>\n");
  for (double p = f->y_low; p <= f->y_high; p++) {
    double y = at_y(f, pow(10, p));
    fprintf(out,
            "<line x1='%.0f' x2='%.0f' y1='%.1f' y2='%.1f' stroke='#ddd'/>"
            "<text x='%.0f' y='%.1f' text-anchor='end'>%g us</text>\n",
            f->left, f->left + f->width, y, y, f->left - 5, y + 4, pow(10, p));
  }
  for (int i = 0; i < sizes; i++) {
    if (i % 2 && sizes > 8) continue;
    fprintf(out, "<text x='%.1f' y='%.0f' text-anchor='middle'>", at_x(f, x[i]),
            f->top + f->height + 16);
    put_bytes(out, x[i]);
    fprintf(out, "</text>\n");
  }
}

static void put_curve(FILE *out, const frame *f, const double *x, int sizes,
                      const tool_curve *curve, const char *colour) {
  fprintf(out, "<polyline fill='none' stroke='%s' stroke-width='1.8' points='",
          colour);
  for (int i = 0; i < sizes; i++)
    if (curve->values[i] > 0)
      fprintf(out, "%.1f,%.1f ", at_x(f, x[i]), at_y(f, curve->values[i]));
  fprintf(out, "'/>\n");
}

static void put_legend(FILE *out, const tool_panel *panel, double y) {
  for (int c = 0; c < panel->curves_count; c++) {
    double x = LEFT + c * 190.0;
    fprintf(out,
            "<rect x='%.0f' y='%.0f' width='14' height='4' fill='%s'/>"
            "<text x='%.0f' y='%.0f'>",
            x, y - 6, colours[c % COLOURS], x + 20, y);
    put_text(out, panel->curves[c].name);
    fprintf(out, "</text>\n");
  }
}

void tool_chart(FILE *out, const char *title, const double *x, int sizes,
                const tool_panel *panels, int panels_count) {
  int rows = (panels_count + ACROSS - 1) / ACROSS;
  int width = PANEL_WIDTH * (panels_count > 1 ? ACROSS : 1);
  int height = HEAD + rows * PANEL_HEIGHT + LEGEND;
  fprintf(out,
          "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' "
          "font-family='sans-serif' font-size='11'>\n"
          "<rect width='100%%' height='100%%' fill='white'/>\n"
          "<text x='%d' y='24' font-size='15'>",
          width, height, LEFT);
  put_text(out, title);
  fprintf(out, "</text>\n");
  for (int p = 0; p < panels_count; p++) {
    frame f = fit(&panels[p], x, sizes, p);
    put_axes(out, &f, x, sizes, panels[p].title);
    for (int c = 0; c < panels[p].curves_count; c++)
      put_curve(out, &f, x, sizes, &panels[p].curves[c], colours[c % COLOURS]);
  }
  if (panels_count) put_legend(out, &panels[0], height - 10.0);
  fprintf(out, "</svg>\n");
}
