#include "sim/fluid.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A flow with less than this left is over: rounding, not work. */
static const double LEAST_LEFT = 1e-9;
static const double ALIKE = 1.001;

typedef struct flow {
  gbi_part *parts; /* in seconds of the largest one */
  uint32_t count;
  double alone; /* seconds of the largest part */
  double left;  /* of it, 1 to 0 */
  double rate;  /* a second */
  uint64_t tag;
  bool frozen;
} flow;

/* What is left of a resource while rates are found, and what still asks. */
typedef struct share {
  double left, asked;
  uint32_t epoch;
  bool full;
} share;

struct gbi_fluid {
  share *shares;
  double *busy;
  uint32_t *used; /* resources of this epoch */
  uint32_t used_count, epoch;
  flow *flows; /* in order of their begin */
  uint32_t count, capacity;
  bool stale; /* rates are to be found again */
};

gbi_fluid *gbi_fluid_new(uint32_t resources) {
  gbi_fluid *fluid = gbi_calloc(1, sizeof *fluid);
  if (!fluid) return NULL;
  size_t n = GBI_MAX(resources, 1);
  fluid->shares = gbi_calloc(n, sizeof *fluid->shares);
  fluid->busy = gbi_calloc(n, sizeof *fluid->busy);
  fluid->used = gbi_calloc(n, sizeof *fluid->used);
  if (fluid->shares && fluid->busy && fluid->used) return fluid;
  gbi_fluid_free(fluid);
  return NULL;
}

void gbi_fluid_free(gbi_fluid *fluid) {
  if (!fluid) return;
  for (uint32_t i = 0; i < fluid->count; i++) free(fluid->flows[i].parts);
  free(fluid->flows);
  free(fluid->shares);
  free(fluid->busy);
  free(fluid->used);
  free(fluid);
}

bool gbi_fluid_begin(gbi_fluid *fluid, const gbi_part *parts, uint32_t count,
                     uint64_t tag) {
  if (fluid->count == fluid->capacity) {
    uint32_t capacity = fluid->capacity ? fluid->capacity * 2 : 64;
    flow *flows = gbi_realloc(fluid->flows, capacity * sizeof *flows);
    if (!flows) return false;
    fluid->flows = flows;
    fluid->capacity = capacity;
  }
  flow f = {.count = count, .left = 1, .tag = tag};
  f.parts = gbi_malloc(count * sizeof *f.parts);
  if (!f.parts) return false;
  for (uint32_t i = 0; i < count; i++)
    f.alone = fmax(f.alone, parts[i].seconds);
  for (uint32_t i = 0; i < count; i++) {
    fluid->busy[parts[i].resource] += parts[i].seconds;
    f.parts[i] = (gbi_part){parts[i].resource, parts[i].seconds / f.alone};
  }
  fluid->flows[fluid->count++] = f;
  fluid->stale = true;
  return true;
}

/* Every resource that a flow uses, whole, and how much is asked of it. */
static void open_shares(gbi_fluid *fluid) {
  fluid->epoch++;
  fluid->used_count = 0;
  for (uint32_t i = 0; i < fluid->count; i++) {
    flow *f = &fluid->flows[i];
    f->frozen = false;
    for (uint32_t k = 0; k < f->count; k++) {
      share *s = &fluid->shares[f->parts[k].resource];
      if (s->epoch != fluid->epoch) {
        *s = (share){.left = 1, .epoch = fluid->epoch};
        fluid->used[fluid->used_count++] = f->parts[k].resource;
      }
      s->asked += f->parts[k].seconds;
    }
  }
}

/* The lowest level at which a resource is full; marks those that are. */
static double find_level(gbi_fluid *fluid) {
  double level = INFINITY;
  for (uint32_t i = 0; i < fluid->used_count; i++) {
    const share *s = &fluid->shares[fluid->used[i]];
    if (s->asked > 1e-12) level = fmin(level, s->left / s->asked);
  }
  for (uint32_t i = 0; i < fluid->used_count; i++) {
    share *s = &fluid->shares[fluid->used[i]];
    s->full = s->asked > 1e-12 && s->left / s->asked <= level * ALIKE;
  }
  return fmax(level, 0);
}

/* Flows on a full resource get what the level says. Returns how many. */
static uint32_t freeze(gbi_fluid *fluid, double level) {
  uint32_t frozen = 0;
  for (uint32_t i = 0; i < fluid->count; i++) {
    flow *f = &fluid->flows[i];
    bool full = false;
    for (uint32_t k = 0; k < f->count && !f->frozen && !full; k++)
      full = fluid->shares[f->parts[k].resource].full;
    if (f->frozen || !full) continue;
    f->frozen = true;
    f->rate = level / f->alone;
    frozen++;
    for (uint32_t k = 0; k < f->count; k++) {
      share *s = &fluid->shares[f->parts[k].resource];
      s->left = fmax(s->left - level * f->parts[k].seconds, 0);
      s->asked -= f->parts[k].seconds;
    }
  }
  return frozen;
}

static void find_rates(gbi_fluid *fluid) {
  open_shares(fluid);
  for (uint32_t left = fluid->count; left;) {
    uint32_t frozen = freeze(fluid, find_level(fluid));
    if (!frozen) break; /* rounding left nothing to ask for */
    left -= frozen;
  }
  fluid->stale = false;
}

double gbi_fluid_next(gbi_fluid *fluid) {
  double next = INFINITY;
  if (fluid->stale) find_rates(fluid);
  for (uint32_t i = 0; i < fluid->count; i++)
    next = fmin(next, fluid->flows[i].left / fluid->flows[i].rate);
  return next;
}

void gbi_fluid_advance(gbi_fluid *fluid, double seconds) {
  if (fluid->stale) find_rates(fluid);
  for (uint32_t i = 0; i < fluid->count; i++)
    fluid->flows[i].left -= fluid->flows[i].rate * seconds;
}

bool gbi_fluid_ended(gbi_fluid *fluid, uint64_t *tag_p) {
  for (uint32_t i = 0; i < fluid->count; i++) {
    flow *f = &fluid->flows[i];
    if (f->left > LEAST_LEFT) continue;
    *tag_p = f->tag;
    free(f->parts);
    memmove(f, f + 1, (fluid->count - i - 1) * sizeof *f);
    fluid->count--;
    fluid->stale = true;
    return true;
  }
  return false;
}

double gbi_fluid_busy(const gbi_fluid *fluid, uint32_t resource) {
  return fluid->busy[resource];
}
