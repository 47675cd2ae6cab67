#include "core/tuning.h"

#include "base/log.h"
#include "base/memory.h"
#include "core/settings.h"
#include "policy/choose.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
  LISTS = GBI_RULE_LISTS, /* collectives, by their list; GBI_RULES_ALL: none */
  SIZES = 8,              /* 8 bytes to 16 MiB, each 8 times the one before */
  POLICIES = GBI_CHOOSE_POLICIES_MAX,
  ROUNDS = 7,
  CALLS_MAX = 16 /* of a batch */
};
static const size_t LARGEST = (size_t)16 << 20;

/* Calls shorter than a batch are repeated to fill it. */
static const double BATCH_US = 1000;
/* A call of at most that is made once before it is measured. */
static const double WARM_US = 2000;
/* A policy so many times slower than the best, twice, is not measured again. */
static const double HOPELESS = 2.5;
/* Of the time left, what a first call of a larger size may take. */
static const double PROBE_SHARE = 0.2;
/* Of the time left, what a step may take while smaller ones wait. */
static const double STEP_SHARE = 0.4;
/* So much faster must one be to replace the first, which is what jobs take that
 * do not measure. */
static const double MARGIN = 1.05;
/* Of the smallest call's time, what a call's bytes may take unseen. */
static const double HIDDEN_SHARE = 0.05;
/* What a step takes is guessed: so much of it must fit. */
static const double CARE = 1.25;

/* Where the time does not do for all, the sizes that tell most come first;
 * those between are guessed from their neighbours. */
static const int size_order[SIZES] = {5, 0, 6, 3, 7, 4, 2, 1};

/* One collective at one size. */
typedef struct point {
  double walls[POLICIES][ROUNDS]; /* us a call, of the slowest rank */
  int rounds[POLICIES];           /* of each policy; some are given up early */
  int taken;
  double cost_us; /* of its last round, all policies; 0: not measured yet */
} point;

typedef struct tuner {
  gb_job *job;
  gb_group *group;
  const gbi_group_spec *spec;
  const gbi_policy_ops *policies[POLICIES];
  int count;
  uint64_t start_ns;
  double budget_us;
  double passed_us;    /* since the start, of the rank that came last */
  double probe[SIZES]; /* one all_reduce under the first policy; 0: none */
  point points[LISTS][SIZES];
  void *in, *out;
} tuner;

static size_t bytes_of(int size) {
  return LARGEST >> (3 * (SIZES - 1 - size));
}

/* ---- candidates ---- */

/* Slow on purpose, or not a way of its own. What passes the bridge by is none
 * for auto, where the bridge was named or sums are to be compressed. */
static bool left_out(const tuner *t, const gbi_policy_ops *policy) {
  static const char *const names[] = {"flat", "auto", "auto-tuned"};
  for (size_t i = 0; i < GBI_COUNT(names); i++)
    if (!strcmp(policy->name, names[i])) return true;
  return policy == &gbi_policy_direct &&
         (!t->spec->direct || gbi_core_codec() != GBI_CODEC_NONE);
}

/* Rules that name each candidate: what a group needs to carry all of them. */
static void list_candidates(tuner *t, gbi_rules *rules) {
  const gbi_topology *topology = t->job->discovery->topology;
  const gbi_policy_ops *policy;
  memset(rules, 0, sizeof *rules);
  t->count = 0;
  for (int i = 0; (policy = gbi_policy_nth(i)) && t->count < POLICIES; i++) {
    if (left_out(t, policy) || !policy->fits(topology)) continue;
    t->policies[t->count++] = policy;
    rules->rules[rules->count++] =
        (gbi_rule){.max_bytes = UINT64_MAX, .policy = policy};
  }
}

/* More links may need another bridge than the leaders', or none may join them
 * all: then what would use them is no candidate. */
static void drop_links(tuner *t, gbi_rules *rules) {
  const gbi_discovery *d = t->job->discovery;
  const char *name;
  char why[GBI_BRIDGE_REASON];
  int links = gbi_policy_links(&gbi_policy_auto_tuned, rules, d->topology,
                               d->links_most);
  gb_error ignored;
  if (gbi_discovery_bridge(d, d->topology, links, t->spec->ranks, &name, why,
                           &ignored) == GB_OK &&
      !strcmp(name, d->bridge) && (links > 1 || d->topology->islands_count < 2))
    return;
  int kept = 0;
  for (int i = 0; i < t->count; i++)
    if (!t->policies[i]->uses_links) t->policies[kept++] = t->policies[i];
  t->count = rules->count = kept;
  for (int i = 0; i < kept; i++) rules->rules[i].policy = t->policies[i];
}

/* ---- one call ---- */

/* Room for a row of its own on every rank. */
static bool has_rows(const tuner *t, int list, int size) {
  bool rows = list == GBI_RULES_ALL_GATHER || list == GBI_RULES_REDUCE_SCATTER;
  return !rows || bytes_of(size) / sizeof(float) >= (size_t)t->job->world;
}

/* A sum is compressed where the job's sums are. */
static gb_status call(tuner *t, int list, int size, gb_error *error) {
  uint64_t count = bytes_of(size) / sizeof(float);
  uint64_t row = count / (uint64_t)t->job->world;
  gbi_coll coll = {
      .dtype = GB_FLOAT32, .redop = 255, .root = -1, .count = count};
  switch (list) {
    case GBI_RULES_BROADCAST:
      coll.op = GBI_OP_BROADCAST;
      coll.root = 0;
      break;
    case GBI_RULES_REDUCE:
      coll.op = GBI_OP_REDUCE;
      coll.redop = GB_SUM;
      coll.root = 0;
      break;
    case GBI_RULES_ALL_GATHER:
      coll.op = GBI_OP_ALL_GATHER;
      coll.count = row;
      break;
    case GBI_RULES_REDUCE_SCATTER:
      coll.op = GBI_OP_REDUCE_SCATTER;
      coll.redop = GB_SUM;
      coll.count = row;
      break;
    default:
      coll.op = GBI_OP_ALL_REDUCE;
      coll.redop = GB_SUM;
      break;
  }
  void *out = gbi_coll_in_place(&coll) ? t->in : t->out;
  return gbi_group_call(t->group, &coll, t->in, out, NULL, error);
}

static gb_status barrier(tuner *t, gb_error *error) {
  gbi_coll coll = {.op = GBI_OP_BARRIER,
                   .dtype = GB_UINT8,
                   .redop = GB_MAX,
                   .root = -1,
                   .count = 1};
  return gbi_group_call(t->group, &coll, NULL, NULL, NULL, error);
}

static double now_us(const tuner *t) {
  return (double)(gbi_now_ns() - t->start_ns) / 1000;
}

/* The largest of all ranks' values, and of the time that has passed: from here
 * on all ranks know the same. A rank whose user gives up says so here. */
static gb_status agree(tuner *t, double *values, int count, gb_error *error) {
  double all[POLICIES + 1];
  const gb_job *job = t->job;
  if (job->wait_hook && job->wait_hook(job->wait_hook_arg))
    return gbi_fail_rank(error, GB_ERR_INTERRUPTED, job->rank,
                         "%s was interrupted by its user while policies were "
                         "measured",
                         job->who[job->rank]);
  memcpy(all, values, sizeof *values * (size_t)count);
  all[count] = now_us(t);
  gbi_coll coll = {.op = GBI_OP_ALL_REDUCE,
                   .dtype = GB_FLOAT64,
                   .redop = GB_MAX,
                   .root = -1,
                   .count = (uint64_t)count + 1};
  gbi_group_set_policy(t->group, t->policies[0]);
  GBI_TRY(gbi_group_call(t->group, &coll, all, all, NULL, error));
  memcpy(values, all, sizeof *values * (size_t)count);
  t->passed_us = all[count];
  return GB_OK;
}

/* ---- measuring ---- */

/* Agreeing on the rules takes a while too. */
static double left_us(const tuner *t) {
  return t->budget_us - t->passed_us - 4 * t->probe[0];
}

/* What a call takes, by the largest one probed that is no larger. What that
 * took beyond the smallest is for its bytes; some is always, for it may hide
 * behind noise. */
static double guess_us(const tuner *t, int size) {
  int known = size;
  while (known && t->probe[known] <= 0) known--;
  double least = fmax(t->probe[0], 1), us = t->probe[known];
  double grows = fmax(us - least, least * HIDDEN_SHARE);
  return known == size ? fmax(us, 1) : least + grows * pow(8, size - known);
}

/* How long a call takes by its bytes, as far as the time allows. */
static gb_status probe(tuner *t, gb_error *error) {
  static const int sizes[] = {0, 2, 3, 4, 5, 6, 7};
  gbi_group_set_policy(t->group, t->policies[0]);
  GBI_TRY(call(t, GBI_RULES_ALL_REDUCE, 0, error));
  for (size_t i = 0; i < GBI_COUNT(sizes); i++) {
    int size = sizes[i];
    if (size && guess_us(t, size) > left_us(t) * PROBE_SHARE) break;
    gbi_group_set_policy(t->group, t->policies[0]);
    double start = now_us(t);
    GBI_TRY(call(t, GBI_RULES_ALL_REDUCE, size, error));
    double us = now_us(t) - start;
    GBI_TRY(agree(t, &us, 1, error));
    t->probe[size] = us;
  }
  return GB_OK;
}

/* The middle of what was measured; of two the smaller. 0: none. */
static double middle_us(const point *at, int policy) {
  double sorted[ROUNDS];
  int n = at->rounds[policy];
  for (int i = 0; i < n; i++) {
    int k = i;
    for (; k && sorted[k - 1] > at->walls[policy][i]; k--)
      sorted[k] = sorted[k - 1];
    sorted[k] = at->walls[policy][i];
  }
  return n ? sorted[(n - 1) / 2] : 0;
}

static bool hopeless(const tuner *t, const point *at, int policy) {
  double best = 0, mine = middle_us(at, policy);
  for (int p = 0; p < t->count; p++) {
    double us = middle_us(at, p);
    if (us > 0 && (best <= 0 || us < best)) best = us;
  }
  return at->rounds[policy] > 1 && mine > best * HOPELESS;
}

static int calls_of(const tuner *t, int size) {
  return (int)fmin(fmax(BATCH_US / guess_us(t, size), 1), CALLS_MAX);
}

static bool is_warmed(const tuner *t, int size) {
  return guess_us(t, size) <= WARM_US;
}

/* Whether one more round of a point fits in this share of the time left. */
static bool has_time(const tuner *t, const point *at, int size, double share) {
  double cost = at->cost_us;
  if (cost <= 0) {
    int calls = calls_of(t, size) + is_warmed(t, size);
    cost = t->count * (calls * guess_us(t, size) + t->probe[0]) + t->probe[0];
  }
  return cost * CARE <= left_us(t) * share;
}

/* One round: every policy's batch in turn. */
static gb_status measure(tuner *t, int list, int size, gb_error *error) {
  point *at = &t->points[list][size];
  double us[POLICIES] = {0}, before_us = t->passed_us;
  bool skip[POLICIES];
  int calls = calls_of(t, size);
  for (int p = 0; p < t->count; p++) skip[p] = hopeless(t, at, p);
  for (int p = 0; p < t->count; p++) {
    if (skip[p]) continue;
    gbi_group_set_policy(t->group, t->policies[p]);
    if (is_warmed(t, size)) GBI_TRY(call(t, list, size, error));
    GBI_TRY(barrier(t, error));
    double start = now_us(t);
    for (int i = 0; i < calls; i++) GBI_TRY(call(t, list, size, error));
    us[p] = (now_us(t) - start) / calls;
  }
  GBI_TRY(agree(t, us, t->count, error));
  for (int p = 0; p < t->count; p++)
    if (!skip[p]) at->walls[p][at->rounds[p]++] = fmax(us[p], 1e-3);
  at->taken++;
  at->cost_us = t->passed_us - before_us;
  return GB_OK;
}

/* One round of every point that still wants one and has the time. */
static gb_status measure_round(tuner *t, double share, bool *any_p,
                               gb_error *error) {
  *any_p = false;
  for (int i = 0; i < SIZES; i++)
    for (int list = GBI_RULES_ALL_REDUCE; list < LISTS; list++) {
      int size = size_order[i];
      const point *at = &t->points[list][size];
      if (at->taken == ROUNDS || !has_rows(t, list, size) ||
          !has_time(t, at, size, share))
        continue;
      GBI_TRY(measure(t, list, size, error));
      *any_p = true;
    }
  return GB_OK;
}

/* Until each point has its rounds or none fits in what is left. Every rank sees
 * the same times, and so measures the same. */
static gb_status measure_all(tuner *t, gb_error *error) {
  bool any = true;
  GBI_TRY(probe(t, error));
  while (any) GBI_TRY(measure_round(t, STEP_SHARE, &any, error));
  any = true;
  while (any) GBI_TRY(measure_round(t, 1, &any, error));
  return GB_OK;
}

/* ---- rules ---- */

/* A size between two that were measured: as if each byte between cost alike.
 * Within the table every policy has a time or none has. */
static void fill_gaps(const tuner *t, gbi_choose_times us) {
  for (int below = 0; below < SIZES; below++) {
    int above = below + 1;
    if (us[below][0] <= 0) continue;
    while (above < SIZES && us[above][0] <= 0) above++;
    if (above == SIZES) return;
    double from = (double)bytes_of(below);
    double span = (double)bytes_of(above) - from;
    for (int s = below + 1; s < above; s++)
      for (int p = 0; p < t->count; p++)
        us[s][p] = us[below][p] + (us[above][p] - us[below][p]) *
                                      ((double)bytes_of(s) - from) / span;
  }
}

/* The policy by size of one collective; false: nothing was measured. */
static bool choose(const tuner *t, int list, int winner[GBI_CHOOSE_SIZES_MAX]) {
  gbi_choose_times us = {{0}};
  bool any = false;
  for (int s = 0; s < SIZES; s++)
    for (int p = 0; p < t->count; p++) {
      us[s][p] = middle_us(&t->points[list][s], p) * (p ? MARGIN : 1);
      any |= us[s][p] > 0;
    }
  fill_gaps(t, us);
  gbi_choose(us, SIZES, t->count, winner);
  return any;
}

/* Neighbours with one winner are one rule; the last takes any size. */
static void add_rules(const tuner *t, int list, const int *winner,
                      gbi_rules *rules) {
  for (int s = 0; s < SIZES; s++) {
    bool last = s == SIZES - 1;
    if (!last && winner[s] == winner[s + 1]) continue;
    rules->rules[rules->count++] =
        (gbi_rule){.list = (uint8_t)list,
                   .max_bytes = last ? UINT64_MAX : bytes_of(s),
                   .policy = t->policies[winner[s]]};
  }
}

/* all_reduce's are those of all; others have a list where theirs differ. */
static void make_rules(const tuner *t, gbi_rules *rules) {
  int all[GBI_CHOOSE_SIZES_MAX], own[GBI_CHOOSE_SIZES_MAX];
  memset(rules, 0, sizeof *rules);
  if (choose(t, GBI_RULES_ALL_REDUCE, all)) {
    add_rules(t, GBI_RULES_ALL, all, rules);
  } else {
    rules->rules[rules->count++] =
        (gbi_rule){.max_bytes = UINT64_MAX, .policy = &gbi_policy_auto};
    for (int s = 0; s < SIZES; s++) all[s] = -1;
  }
  for (int list = GBI_RULES_BROADCAST; list < LISTS; list++)
    if (choose(t, list, own) && memcmp(own, all, sizeof *own * SIZES))
      add_rules(t, list, own, rules);
}

static void log_times(const tuner *t) {
  for (int list = GBI_RULES_ALL_REDUCE; list < LISTS; list++)
    for (int size = 0; size < SIZES; size++) {
      const point *at = &t->points[list][size];
      char line[512];
      gbi_text text;
      gbi_text_init(&text, line, sizeof line);
      for (int p = 0; p < t->count; p++)
        gbi_text_add(&text, "%s%s %.1f us (%d)", p ? ", " : "",
                     t->policies[p]->name, middle_us(at, p), at->rounds[p]);
      if (at->rounds[0])
        GBI_DEBUG("core", "%s of %zu bytes: %s", gbi_rule_list_name(list),
                  bytes_of(size), line);
    }
}

/* That all came to the same follows from how they came to it; were it not so,
 * the first call would hang. Also, nobody closes the group before all are out
 * of its last call. */
static gb_status confirm(tuner *t, const gbi_group_spec *spec,
                         const gbi_rules *rules, gb_error *error) {
  char text[GBI_RULES_TEXT_MAX];
  gbi_writer out;
  gbi_blobs blobs = {0};
  (void)gbi_rules_text(rules, text, sizeof text);
  gbi_writer_init_growing(&out);
  gbi_put_text(&out, text);
  gb_status status =
      gbi_connect_exchange(t->job, spec, NULL, &out, &blobs, error);
  for (int r = 0; status == GB_OK && r < spec->count; r++) {
    char theirs[GBI_RULES_TEXT_MAX] = "";
    gbi_reader in = blobs.items[r];
    gbi_get_text(&in, theirs, sizeof theirs);
    if (in.bad || strcmp(text, theirs))
      status = gbi_fail_rank(error, GB_ERR_PROTOCOL, r,
                             "%s measured other rules than %s", t->job->who[r],
                             t->job->who[t->job->rank]);
  }
  gbi_blobs_free(&blobs);
  gbi_writer_fini(&out);
  return status;
}

/* ---- the group ---- */

/* gb-control may be reporting. */
static void set_group(gb_job *job, gb_group *group) {
  pthread_mutex_lock(&job->subgroups.lock);
  job->tuning = group;
  pthread_mutex_unlock(&job->subgroups.lock);
}

static gb_status measure_in_group(tuner *t, const gbi_rules *candidates,
                                  gbi_rules *found, gb_error *error) {
  gb_job *job = t->job;
  const gbi_discovery *d = job->discovery;
  gbi_group_spec spec = *t->spec;
  spec.id = GBI_TUNING_GROUP;
  spec.rules = candidates;
  spec.links = gbi_policy_links(&gbi_policy_auto_tuned, candidates, d->topology,
                                d->links_most);
  bool settled; /* either way the job ends */
  GBI_TRY(gbi_connect_group(job, &spec, &t->group, &settled, error));
  set_group(job, t->group);
  gb_status status = measure_all(t, error);
  if (status == GB_OK) make_rules(t, found);
  if (status == GB_OK) status = confirm(t, &spec, found, error);
  set_group(job, NULL);
  gbi_engine_stop(gbi_group_engine(t->group));
  gbi_group_free(t->group);
  return status;
}

static gb_status tune(tuner *t, gbi_rules *found, gb_error *error) {
  gbi_rules candidates;
  list_candidates(t, &candidates);
  drop_links(t, &candidates);
  if (t->count < 2) { /* nothing to choose from: what auto takes */
    *found = *t->job->discovery->rules;
    return GB_OK;
  }
  t->in = gbi_malloc(LARGEST);
  t->out = gbi_malloc(LARGEST);
  if (t->in) memset(t->in, 0, LARGEST);
  if (t->out) memset(t->out, 0, LARGEST); /* pages cost whoever is first */
  gb_status status =
      t->in && t->out
          ? measure_in_group(t, &candidates, found, error)
          : gbi_fail(error, GB_ERR_MEMORY,
                     "no memory for two buffers of %zu bytes to measure with",
                     LARGEST);
  free(t->in);
  free(t->out);
  return status;
}

static void announce(const tuner *t, const gbi_rules *found) {
  char text[GBI_RULES_TEXT_MAX];
  if (t->job->rank) return;
  (void)gbi_rules_text(found, text, sizeof text);
  if (t->count < 2)
    GBI_INFO("core", "nothing to measure: no two policies fit this job");
  else
    GBI_INFO("core", "measured for %.2f s which policies are fastest: %s",
             now_us(t) / 1e6, text);
  log_times(t);
}

gb_status gbi_tuning_run(gb_job *job, gbi_group_spec *world, gb_error *error) {
  gbi_discovery *d = job->discovery;
  if (!d->tune_seconds || job->world == 1) return GB_OK;
  tuner *t = gbi_calloc(1, sizeof *t);
  if (!t) return gbi_fail(error, GB_ERR_MEMORY, "no memory for measuring");
  t->job = job;
  t->spec = world;
  t->start_ns = gbi_now_ns();
  t->budget_us = d->tune_seconds * 1e6;
  gbi_rules found;
  gb_status status = tune(t, &found, error);
  if (status == GB_OK) announce(t, &found);
  if (status == GB_OK) status = gbi_discovery_tuned(d, &found, error);
  world->links = d->links;
  world->bridge = d->bridge;
  free(t);
  return status;
}
