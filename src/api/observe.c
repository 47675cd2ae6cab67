#include "core/job.h"
#include "core/p2p.h"
#include "core/settings.h"
#include "device/host/reduce.h"

#include <gpubridge/observe.h>

#include <string.h>

gb_status gb_observer_add(gb_job *job, gb_observer_fn fn, void *arg,
                          gb_error *error) {
  if (!job || !fn)
    return gbi_fail(error, GB_ERR_ARGUMENT, "the job or the function is NULL");
  return gbi_watch_add(&job->watch, fn, arg, error);
}

void gb_observer_remove(gb_job *job, gb_observer_fn fn, void *arg) {
  if (job) gbi_watch_remove(&job->watch, fn, arg);
}

int gb_job_in_flight(gb_job *job, gb_in_flight *list, int max) {
  return job && list && max > 0 ? gbi_watch_in_flight(&job->watch, list, max)
                                : 0;
}

/* The rules of auto-tuned, as agreed or as measured at init. */
static void describe_rules(const gbi_discovery *d, gbi_fact_fn fn, void *arg) {
  char buffer[GBI_RULES_TEXT_MAX];
  if (!d->rules || strcmp(d->policy, gbi_policy_auto_tuned.name)) return;
  if (gbi_rules_text(d->rules, buffer, sizeof buffer))
    fn(arg, "policy.rules", buffer);
}

/* "4", and "0-4 1-5 2-6 3-7": the ranks of each link. */
static void describe_links(const gbi_discovery *d, gbi_fact_fn fn, void *arg) {
  char buffer[512];
  gbi_text text;
  gbi_text_init(&text, buffer, sizeof buffer);
  gbi_text_add(&text, "%d", d->links);
  fn(arg, "bridge.links", buffer);
  gbi_text_init(&text, buffer, sizeof buffer);
  const gbi_topology *t = d->topology;
  for (int link = 0; link < d->links; link++)
    for (int i = 0; i < t->islands_count; i++)
      gbi_text_add(&text, "%s%d", i ? "-" : link ? " " : "",
                   t->islands[i].holders[link]);
  if (d->links) fn(arg, "bridge.link_ranks", buffer);
}

void gb_job_telemetry(gb_job *job,
                      void (*fn)(void *arg, const char *name,
                                 const char *value),
                      void *arg) {
  if (!job || !fn) return;
  const gbi_discovery *d = job->discovery;
  fn(arg, "bridge.name", d->bridge);
  fn(arg, "bridge.requested", d->records[job->rank].bridge);
  fn(arg, "bridge.reason", d->bridge_reason);
  fn(arg, "policy", d->policy);
  describe_rules(d, fn, arg);
  describe_links(d, fn, arg);
  fn(arg, "kernels", gbi_kernels_name());
  gbi_engine_describe(gbi_group_engine(job->group), fn, arg);
  const gbi_gpu *gpu = gbi_group_params_of(job->group)->gpu;
  if (gpu) gbi_gpu_describe(gpu, fn, arg);
  gbi_job_p2p_describe(job, fn, arg);
}

void gb_settings_list(void (*fn)(void *arg, const gb_setting_info *info),
                      void *arg) {
  const gbi_setting *tables[GBI_SETTING_TABLES_MAX];
  int counts[GBI_SETTING_TABLES_MAX];
  int count = gbi_settings_tables(tables, counts);
  for (int t = 0; t < count; t++)
    for (int i = 0; i < counts[t]; i++) {
      const gbi_setting *s = &tables[t][i];
      gbi_value value;
      gb_error error;
      gb_status status = gbi_setting_read(s, &value, &error);
      gb_setting_info info = {
          .size = sizeof info,
          .name = s->name,
          .default_value = s->default_value,
          .value = !value.is_set ? s->default_value
                   : s->secret   ? "(set)"
                                 : value.text,
          .source = value.is_set ? "environment" : "default",
          .must_agree = s->must_agree,
          .help = s->help,
          .problem = status == GB_OK ? NULL : error.text,
      };
      fn(arg, &info);
    }
}
