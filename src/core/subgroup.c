#include "core/subgroup.h"

#include "base/memory.h"
#include "core/connect.h"
#include "core/tuning.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_BYTES = 256 };

struct gbi_subgroup {
  struct gbi_subgroup *next;
  gb_group *group;
  uint32_t id;
  char name[NAME_MAX_BYTES];
  int *ranks; /* global, by group rank */
  int count;
  gbi_topology *topology;
  const char **who;
};

/* How many groups of one list of members were opened without a name. */
struct gbi_membership {
  struct gbi_membership *next;
  uint64_t hash;
  unsigned opened;
};

typedef struct gbi_subgroup subgroup;

void gbi_subgroups_init(gb_job *job) {
  pthread_mutex_init(&job->subgroups.open_lock, NULL);
  pthread_mutex_init(&job->subgroups.lock, NULL);
}

void gbi_subgroups_fini(gb_job *job) {
  struct gbi_membership *m = job->subgroups.memberships;
  while (m) {
    struct gbi_membership *next = m->next;
    free(m);
    m = next;
  }
  pthread_mutex_destroy(&job->subgroups.open_lock);
  pthread_mutex_destroy(&job->subgroups.lock);
}

static void free_subgroup(subgroup *s) {
  if (s->group) {
    gbi_engine_stop(gbi_group_engine(s->group));
    gbi_group_free(s->group);
  }
  gbi_topology_free(s->topology);
  free(s->who);
  free(s->ranks);
  free(s);
}

void gbi_subgroups_drain(gb_job *job) {
  for (subgroup *s = job->subgroups.first; s; s = s->next)
    gbi_group_drain(s->group);
}

void gbi_subgroups_free(gb_job *job) {
  pthread_mutex_lock(&job->subgroups.lock); /* gb-control may be reporting */
  subgroup *s = job->subgroups.first;
  job->subgroups.first = NULL;
  pthread_mutex_unlock(&job->subgroups.lock);
  while (s) {
    subgroup *next = s->next;
    free_subgroup(s);
    s = next;
  }
}

void gbi_subgroups_wake(gb_job *job) {
  pthread_mutex_lock(&job->subgroups.lock);
  if (job->group) gbi_group_wake(job->group);
  if (job->tuning) gbi_group_wake(job->tuning);
  for (subgroup *s = job->subgroups.first; s; s = s->next)
    if (s->group) gbi_group_wake(s->group);
  pthread_mutex_unlock(&job->subgroups.lock);
}

bool gbi_subgroup_report(gb_job *job, uint32_t id, gbi_call_state *state) {
  pthread_mutex_lock(&job->subgroups.lock);
  subgroup *s = job->subgroups.first;
  while (s && s->id != id) s = s->next;
  gb_group *group = s                        ? s->group
                    : !id                    ? job->group
                    : id == GBI_TUNING_GROUP ? job->tuning
                                             : NULL;
  bool known = group && gbi_group_report(group, state);
  pthread_mutex_unlock(&job->subgroups.lock);
  return known;
}

/* ---- names and numbers ---- */

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes) {
  const uint8_t *at = data;
  for (size_t i = 0; i < bytes; i++)
    hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
  return hash;
}

static uint64_t hash_ranks(const int *ranks, int count) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (int i = 0; i < count; i++) {
    uint32_t rank = (uint32_t)ranks[i];
    uint8_t raw[4] = {(uint8_t)rank, (uint8_t)(rank >> 8),
                      (uint8_t)(rank >> 16), (uint8_t)(rank >> 24)};
    hash = hash_bytes(hash, raw, sizeof raw);
  }
  return hash;
}

/* The same name on every member that opens its groups in the same order. */
static gb_status make_name(gb_job *job, subgroup *s, gb_error *error) {
  uint64_t hash = hash_ranks(s->ranks, s->count);
  struct gbi_membership *m = job->subgroups.memberships;
  while (m && m->hash != hash) m = m->next;
  if (!m) {
    m = gbi_calloc(1, sizeof *m);
    if (!m) return gbi_fail(error, GB_ERR_MEMORY, "no memory for a group");
    m->hash = hash;
    m->next = job->subgroups.memberships;
    job->subgroups.memberships = m;
  }
  snprintf(s->name, sizeof s->name, "%016" PRIx64 ".%u", hash, m->opened++);
  return GB_OK;
}

/* From the name and the members, so that groups of other members may have the
 * same name. Group 0 is the world; the upper half belongs to the library. */
static uint32_t number_of(const subgroup *s) {
  uint64_t hash =
      hash_bytes(hash_ranks(s->ranks, s->count), s->name, strlen(s->name));
  uint32_t number = (uint32_t)(hash ^ hash >> 32) & 0x7fffffff;
  return number ? number : 1;
}

/* An open group with the same number: the members must choose another name, or
 * their messages would mix. */
static gb_status check_number(gb_job *job, const subgroup *s,
                              gb_error *problem) {
  gb_status status = GB_OK;
  pthread_mutex_lock(&job->subgroups.lock);
  for (const subgroup *o = job->subgroups.first; o; o = o->next)
    if (o->id == s->id)
      status = gbi_fail_rank(
          problem, GB_ERR_ARGUMENT, job->rank,
          "the group \"%.64s\" cannot be opened: rank %d has the group "
          "\"%.64s\" open, and their numbers are the same. Close it first or "
          "choose another name",
          s->name, job->rank, o->name);
  pthread_mutex_unlock(&job->subgroups.lock);
  return status;
}

/* ---- opening ---- */

static int by_number(const void *a, const void *b) {
  int x = *(const int *)a, y = *(const int *)b;
  return (x > y) - (x < y);
}

static gb_status check_ranks(const gb_job *job, const int *ranks, int count,
                             gb_error *error) {
  if (!ranks || count < 1 || count > job->world)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "a group has 1 to %d ranks of this job, not %d", job->world,
                    ranks ? count : 0);
  bool member = false;
  for (int i = 0; i < count; i++) {
    member |= ranks[i] == job->rank;
    if (ranks[i] < 0 || ranks[i] >= job->world)
      return gbi_fail(error, GB_ERR_ARGUMENT,
                      "the group lists rank %d, but the job has the ranks 0 to "
                      "%d",
                      ranks[i], job->world - 1);
  }
  if (!member)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "rank %d is not among the group's %d ranks: only members "
                    "open a group",
                    job->rank, count);
  int *sorted = gbi_malloc(sizeof *sorted * (size_t)count);
  if (!sorted) return gbi_fail(error, GB_ERR_MEMORY, "no memory for a list");
  memcpy(sorted, ranks, sizeof *sorted * (size_t)count);
  qsort(sorted, (size_t)count, sizeof *sorted, by_number);
  int twice = -1;
  for (int i = 1; i < count && twice < 0; i++)
    if (sorted[i] == sorted[i - 1]) twice = sorted[i];
  free(sorted);
  if (twice >= 0)
    return gbi_fail(error, GB_ERR_ARGUMENT, "the group lists rank %d twice",
                    twice);
  return GB_OK;
}

static gb_status plan_topology(const gb_job *job, subgroup *s,
                               gb_error *error) {
  const gbi_discovery *d = job->discovery;
  size_t n = (size_t)s->count;
  const char **texts = gbi_malloc(2 * n * sizeof *texts);
  s->who = gbi_malloc(n * sizeof *s->who);
  gb_status status = GB_OK;
  if (!texts || !s->who)
    status = gbi_fail(error, GB_ERR_MEMORY, "no memory for a group");
  for (int i = 0; i < s->count && status == GB_OK; i++) {
    texts[i] = d->labels[s->ranks[i]];
    texts[n + (size_t)i] = d->records[s->ranks[i]].host_key;
    s->who[i] = job->who[s->ranks[i]];
  }
  if (status == GB_OK)
    status = gbi_topology_plan(texts, texts + n, s->count, &s->topology, error);
  free(texts);
  return status;
}

static gb_status choose_policy(const gb_job *job, const subgroup *s,
                               const char *asked,
                               const gbi_policy_ops **policy_p,
                               gb_error *error) {
  const gbi_topology *t = s->topology;
  const char *name = asked ? asked : job->discovery->records[0].policy;
  const gbi_policy_ops *automatic =
      job->discovery->rules ? &gbi_policy_auto_tuned : &gbi_policy_auto;
  *policy_p = strcmp(name, "auto") ? gbi_policy_find(name) : automatic;
  if (*policy_p && (*policy_p)->fits(t)) return GB_OK;
  if (!asked) { /* the job's own need not fit a part of it */
    *policy_p = automatic;
    return GB_OK;
  }
  char fit[512], what[64];
  gbi_policy_names(t, fit, sizeof fit);
  gbi_topology_text(t, what, sizeof what);
  return gbi_fail(error, GB_ERR_ARGUMENT,
                  "the policy \"%.64s\" does not fit a group of %s. "
                  "Policies that fit: %s",
                  asked, what, fit);
}

static gb_status prepare(gb_job *job, subgroup *s,
                         const gb_group_params *params, gbi_group_spec *spec,
                         gb_error *error) {
  char why[GBI_BRIDGE_REASON];
  if (params->name)
    snprintf(s->name, sizeof s->name, "%s", params->name);
  else
    GBI_TRY(make_name(job, s, error));
  s->id = number_of(s);
  GBI_TRY(plan_topology(job, s, error));
  *spec = (gbi_group_spec){
      .id = s->id,
      .ranks = s->ranks,
      .count = s->count,
      .topology = s->topology,
      .who = s->who,
      .rules = job->discovery->rules,
      .timeout_ms = params->timeout_ms ? params->timeout_ms : job->timeout_ms};
  for (int i = 0; i < s->count; i++)
    if (s->ranks[i] == job->rank) spec->me = i;
  spec->deadline_ns = gbi_deadline_after_ms(spec->timeout_ms);
  GBI_TRY(choose_policy(job, s, params->policy, &spec->policy, error));
  spec->links = gbi_policy_links(spec->policy, spec->rules, s->topology,
                                 job->discovery->links_most);
  GBI_TRY(gbi_discovery_bridge(job->discovery, s->topology, spec->links,
                               s->ranks, &spec->bridge, why, error));
  spec->direct = !job->device && gbi_policy_may_pass(s->topology, spec->bridge);
  return GB_OK;
}

/* Some members may be in the middle of connecting: the job ends, so that they
 * do not wait for this one. */
static gb_status give_up(gb_job *job, const subgroup *s, gb_error *error) {
  gb_error cause = *error;
  if (cause.rank < 0)
    gbi_fail_rank(&cause, error->status, job->rank,
                  "%s could not set up the group \"%.64s\": %.1500s",
                  job->who[job->rank], s->name, error->text);
  return gbi_control_settle(job->control, &cause, error);
}

/* Under open_lock. */
static gb_status open_one(gb_job *job, subgroup *s,
                          const gb_group_params *params, gb_error *error) {
  gbi_group_spec spec;
  GBI_TRY(prepare(job, s, params, &spec, error));
  /* The members agree on who they are before anything is opened. */
  gb_error problem = {0};
  gbi_writer nothing;
  gbi_writer_init_growing(&nothing);
  gbi_blobs blobs = {0};
  gb_status fit = check_number(job, s, &problem);
  gb_status status = gbi_connect_exchange(
      job, &spec, fit == GB_OK ? NULL : &problem, &nothing, &blobs, error);
  gbi_blobs_free(&blobs);
  gbi_writer_fini(&nothing);
  if (status != GB_OK) return status;
  bool settled;
  status = gbi_connect_group(job, &spec, &s->group, &settled, error);
  if (status != GB_OK && !settled) status = give_up(job, s, error);
  if (status != GB_OK) return status;
  pthread_mutex_lock(&job->subgroups.lock);
  s->next = job->subgroups.first;
  job->subgroups.first = s;
  pthread_mutex_unlock(&job->subgroups.lock);
  return GB_OK;
}

gb_status gbi_subgroup_open(gb_job *job, const int *ranks, int count,
                            const gb_group_params *given, gb_group **group_p,
                            gb_error *error) {
  gb_group_params params = GB_GROUP_PARAMS_INIT;
  gb_error local;
  if (!error) error = &local;
  if (given) memcpy(&params, given, GBI_MIN(given->size, sizeof params));
  GBI_TRY(gbi_group_usable(job->group, error));
  GBI_TRY(check_ranks(job, ranks, count, error));
  if (params.name && (!params.name[0] || strlen(params.name) >= NAME_MAX_BYTES))
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "a group's name has 1 to %d bytes, not %zu",
                    NAME_MAX_BYTES - 1, strlen(params.name));
  subgroup *s = gbi_calloc(1, sizeof *s);
  if (s) s->ranks = gbi_malloc(sizeof *ranks * (size_t)count);
  if (!s || !s->ranks) {
    free(s);
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for a group");
  }
  memcpy(s->ranks, ranks, sizeof *ranks * (size_t)count);
  s->count = count;
  pthread_mutex_lock(&job->subgroups.open_lock);
  gb_status status = open_one(job, s, &params, error);
  pthread_mutex_unlock(&job->subgroups.open_lock);
  if (status != GB_OK)
    free_subgroup(s);
  else
    *group_p = s->group;
  return status;
}

void gbi_subgroup_close(gb_group *group) {
  gb_job *job = gbi_group_params_of(group)->job;
  gbi_group_drain(group);
  pthread_mutex_lock(&job->subgroups.lock);
  subgroup **at = &job->subgroups.first;
  while (*at && (*at)->group != group) at = &(*at)->next;
  subgroup *s = *at;
  if (s) *at = s->next;
  pthread_mutex_unlock(&job->subgroups.lock);
  if (s) free_subgroup(s);
}
