#include "core/job.h"

#include "base/log.h"
#include "base/memory.h"
#include "core/connect.h"
#include "core/p2p.h"
#include "core/subgroup.h"
#include "core/settings.h"
#include "core/tuning.h"
#include "device/compiler.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_TIMEOUT_MS = 30 * 60 * 1000, GOODBYE_MS = 5000 };
enum { HOST_ADDRESS_MAX = 512 };

/* Jobs that are open in this process; closed by the exit handler. */
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER; /* level 1 */
static gb_job *open_jobs;

/* Everything that opening needs and the job does not keep. */
typedef struct opener {
  gb_job *job;
  const gb_job_params *params;
  uint64_t deadline_ns;
  gbi_record *record;
  int *all; /* 0, 1, 2, ... */
  gbi_group_spec world;
} opener;

/* ---- who is who ---- */

static gb_status rank_from_env(const char *name, int given, int low, int *value,
                               gb_error *error) {
  char text[64], hint[128] = "";
  *value = given;
  if (given >= 0) return GB_OK;
  if (!gbi_env(name, text, sizeof text)) {
    char other[32];
    if (gbi_env("SLURM_PROCID", other, sizeof other))
      snprintf(hint, sizeof hint,
               ". SLURM_PROCID is set, but not used: set RANK and WORLD_SIZE "
               "from SLURM_PROCID and SLURM_NTASKS");
    return gbi_fail(error, GB_ERR_SETTING,
                    "%s is not set: a launcher such as torchrun or gpubridge "
                    "run sets RANK and WORLD_SIZE, or pass rank and "
                    "world_size%s",
                    name, hint);
  }
  char *end;
  errno = 0;
  long number = strtol(text, &end, 10);
  if (errno || *end || end == text || number < low || number > GBI_WORLD_MAX)
    return gbi_fail(error, GB_ERR_SETTING,
                    "%s is \"%s\", but must be a whole number of at least %d",
                    name, text, low);
  *value = (int)number;
  return GB_OK;
}

static gb_status find_rank(opener *o, gb_error *error) {
  gb_job *job = o->job;
  GBI_TRY(rank_from_env("RANK", o->params->rank, 0, &job->rank, error));
  GBI_TRY(rank_from_env("WORLD_SIZE", o->params->world_size, 1, &job->world,
                        error));
  if (job->world < 1)
    return gbi_fail(error, GB_ERR_SETTING,
                    "the world size is %d, but must be at least 1", job->world);
  if (job->rank >= job->world)
    return gbi_fail(error, GB_ERR_SETTING,
                    "RANK is %d, but must be from 0 to %d, below the world "
                    "size %d",
                    job->rank, job->world - 1, job->world);
  return GB_OK;
}

/* ---- callbacks of the control plane ---- */

void gbi_job_wake(gb_job *job) {
  pthread_mutex_lock(&job->connect_lock);
  if (job->connecting_area) gbi_hostarea_stop(job->connecting_area);
  for (int r = 0; r < GBI_RESOURCES; r++)
    if (job->connecting[r]) job->connecting[r]->ops->stop(job->connecting[r]);
  if (job->connecting_gpu) gbi_gpu_fail(job->connecting_gpu);
  pthread_mutex_unlock(&job->connect_lock);
  gbi_hostarea *area = __atomic_load_n(&job->area, __ATOMIC_ACQUIRE);
  if (area) gbi_hostarea_ring(area, gbi_hostarea_me(area));
  gbi_job_p2p_on_failure(job);
  gbi_subgroups_wake(job);
}

static void on_failure(void *arg) {
  gbi_job_wake(arg);
}

static void on_offer(void *arg, int from, const void *blob, size_t bytes) {
  gbi_job_p2p_on_offer(arg, from, blob, bytes);
}

static void on_left(void *arg, int rank) {
  gbi_job_p2p_on_left(arg, rank);
}

static bool report(void *arg, uint32_t group, gbi_call_state *state) {
  return gbi_subgroup_report(arg, group, state);
}

/* ---- opening, step by step ---- */

static gb_status fill_record(opener *o, gb_error *own, gb_error *error) {
  const gbi_setting *tables[GBI_SETTING_TABLES_MAX];
  int counts[GBI_SETTING_TABLES_MAX];
  int count = gbi_settings_tables(tables, counts);
  o->record = gbi_calloc(1, sizeof *o->record);
  if (!o->record)
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for a record");
  return gbi_record_fill(o->params, tables, counts, count, o->record, own);
}

static gb_status open_control(opener *o, gb_error *error) {
  const gb_job_params *p = o->params;
  gbi_control_params params = {
      .store = {.init_method = p->init_method,
                .caller = p->store,
                .rank = o->job->rank,
                .world_size = o->job->world,
                .deadline_ns = o->deadline_ns,
                .wait_hook = p->wait_hook,
                .wait_hook_arg = p->wait_hook_arg},
      .attempt = p->attempt,
      .hostname = o->record->hostname,
      .vendor = o->record->vendor,
      .on_failure = on_failure,
      .report = report,
      .on_offer = on_offer,
      .on_left = on_left,
      .arg = o->job,
  };
  return gbi_control_open(&params, &o->job->control, error);
}

static gb_status name_ranks(gb_job *job, gb_error *error) {
  const gbi_discovery *d = job->discovery;
  job->who = gbi_calloc((size_t)job->world, sizeof *job->who);
  for (int r = 0; job->who && r < job->world; r++) {
    char text[512];
    snprintf(text, sizeof text, "rank %d (host \"%s\", %s)", r,
             d->records[r].hostname, d->labels[r]);
    job->who[r] = gbi_strdup(text);
    if (!job->who[r])
      return gbi_fail(error, GB_ERR_MEMORY, "no memory for names");
  }
  return job->who ? GB_OK
                  : gbi_fail(error, GB_ERR_MEMORY, "no memory for names");
}

static gb_status list_facts(gb_job *job, gb_error *error) {
  const gbi_discovery *d = job->discovery;
  size_t total = 0;
  for (int r = 0; r < job->world; r++)
    total += (size_t)d->records[r].facts_count;
  job->facts = gbi_calloc(total + 1, sizeof *job->facts);
  job->facts_at = gbi_calloc((size_t)job->world + 1, sizeof *job->facts_at);
  if (!job->facts || !job->facts_at)
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for facts");
  size_t at = 0;
  for (int r = 0; r < job->world; r++) {
    job->facts_at[r] = at;
    for (int i = 0; i < d->records[r].facts_count; i++)
      job->facts[at++] =
          (gb_pair){d->records[r].facts[i].name, d->records[r].facts[i].value};
  }
  job->facts_at[job->world] = at;
  return GB_OK;
}

static gb_status join_host(opener *o, gb_error *error) {
  gb_job *job = o->job;
  const gbi_topology *t = job->discovery->topology;
  int *ranks = gbi_malloc(sizeof *ranks * (size_t)job->world);
  gbi_reader *addresses = gbi_malloc(sizeof *addresses * (size_t)job->world);
  uint8_t raw[HOST_ADDRESS_MAX];
  gbi_writer out;
  gbi_writer_init(&out, raw, sizeof raw);
  int count = 0, me = 0;
  for (int r = 0; ranks && r < job->world; r++) {
    if (t->host_of[r] != t->host_of[job->rank]) continue;
    if (r == job->rank) me = count;
    ranks[count++] = r;
  }
  gbi_hostarea *area = NULL;
  gb_status status =
      ranks && addresses
          ? gbi_hostarea_open(gbi_control_auth(job->control), ranks, count, me,
                              &area, error)
          : gbi_fail(error, GB_ERR_MEMORY, "no memory for the host's ranks");
  if (status == GB_OK) gbi_hostarea_address(area, &out);
  gb_error problem = {0};
  if (status != GB_OK && error) problem = *error;
  gbi_blobs blobs = {0};
  gb_status met = gbi_connect_exchange(
      job, &o->world, status == GB_OK ? NULL : &problem, &out, &blobs, error);
  if (status == GB_OK) status = met;
  if (status == GB_OK) {
    for (int i = 0; i < count; i++) addresses[i] = blobs.items[ranks[i]];
    gbi_connect_watch(job, area, NULL, NULL);
    status = gbi_hostarea_connect(area, addresses, o->deadline_ns, error);
    gbi_connect_watch(job, NULL, NULL, NULL);
  }
  /* Only an area that connected has bells that on_failure may ring. */
  if (status == GB_OK)
    __atomic_store_n(&job->area, area, __ATOMIC_RELEASE);
  else
    gbi_hostarea_close(area);
  gbi_blobs_free(&blobs);
  free(ranks);
  free(addresses);
  return status;
}

/* gb-control may be reporting. */
static void set_world(gb_job *job, gb_group *group) {
  pthread_mutex_lock(&job->subgroups.lock);
  job->group = group;
  pthread_mutex_unlock(&job->subgroups.lock);
}

static gb_status open_world(opener *o, gb_error *error) {
  gb_group *group = NULL;
  bool settled; /* either way the job ends: see tell */
  gb_status status =
      gbi_connect_group(o->job, &o->world, &group, &settled, error);
  set_world(o->job, group);
  return status;
}

static void announce(const gb_job *job) {
  const gbi_discovery *d = job->discovery;
  if (job->rank) return;
  GBI_INFO("core", "job of %d ranks in %d islands, policy %s, bridge %s: %s",
           job->world, d->topology->islands_count, d->policy, d->bridge,
           d->bridge_reason);
  if (strcmp(d->bridge, "tcp") || strcmp(d->records[0].bridge, "auto")) return;
  for (int i = 0; i < d->topology->islands_count; i++) {
    int leader = d->topology->islands[i].holders[0];
    const gbi_endpoint *rdma = &d->records[leader].rdma;
    if (!rdma->usable) continue;
    GBI_WARN("core",
             "the bridge is tcp although rank %d has the RDMA device %s: %s",
             leader, rdma->device, d->bridge_reason);
    return;
  }
}

static gb_status specify_world(opener *o, gb_error *error) {
  gb_job *job = o->job;
  const gbi_discovery *d = job->discovery;
  o->all = gbi_malloc(sizeof *o->all * (size_t)job->world);
  if (!o->all) return gbi_fail(error, GB_ERR_MEMORY, "no memory for a list");
  for (int r = 0; r < job->world; r++) o->all[r] = r;
  const gbi_policy_ops *policy = gbi_policy_find(d->policy);
  bool own = gbi_parts_has_policy(&job->parts, d->policy);
  if (own)
    GBI_TRY(gbi_parts_fit(&job->parts, d->topology,
                          (const char(*)[64])d->labels, job->who[job->rank],
                          job->rank, &policy, error));
  o->world =
      (gbi_group_spec){.ranks = o->all,
                       .count = job->world,
                       .me = job->rank,
                       .topology = d->topology,
                       .who = (const char *const *)job->who,
                       .policy = policy,
                       .rules = d->rules,
                       .links = d->links,
                       .bridge = d->bridge,
                       .direct = !own && !job->device &&
                                 gbi_policy_may_pass(d->topology, d->bridge),
                       .timeout_ms = job->timeout_ms,
                       .deadline_ns = o->deadline_ns};
  return GB_OK;
}

/* Not in simulation, where the device says nothing. */
static gb_status open_device(opener *o, gb_error *error) {
  gb_job *job = o->job;
  job->gpu_index = job->discovery->simulated ? -1 : o->params->device;
  if (job->gpu_index < 0) return GB_OK;
  bool amd = !strcmp(job->discovery->records[job->rank].vendor, "amd");
  return gbi_device_open(amd ? GBI_AMD : GBI_NVIDIA, job->gpu_index,
                         &job->device, error);
}

/* Compiling takes seconds where no rank of this machine has done it before.
 * Before the first call: code that comes to a device later waits for it. */
static gb_status open_kernels(gb_job *job, gb_error *error) {
  gbi_kernels_wanted wanted = gbi_compiler_wanted();
  gb_error *why = &job->kernels_why;
  if (!job->device) return GB_OK;
  if (wanted == GBI_KERNELS_OFF) {
    (void)gbi_fail(why, GB_ERR_UNSUPPORTED, "GPUBRIDGE_KERNELS is off");
    return GB_OK;
  }
  gb_status status = gbi_kernel_set_open(job->device, &job->kernels, why);
  if (status == GB_OK) return GB_OK;
  if (wanted == GBI_KERNELS_REQUIRE)
    return gbi_fail(error, status,
                    "there are no kernels, which GPUBRIDGE_KERNELS requires: "
                    "%s",
                    why->text);
  GBI_INFO("core",
           "no kernels of our own: arithmetic beside the vendor's library is "
           "done on the host: %s",
           why->text);
  return GB_OK;
}

static gb_status open_parts(opener *o, gb_error *error) {
  GBI_TRY(open_device(o, error));
  GBI_TRY(open_kernels(o->job, error));
  GBI_TRY(name_ranks(o->job, error));
  GBI_TRY(list_facts(o->job, error));
  GBI_TRY(specify_world(o, error));
  GBI_TRY(join_host(o, error));
  GBI_TRY(gbi_job_p2p_open(o->job, error));
  GBI_TRY(gbi_tuning_run(o->job, &o->world, error));
  return open_world(o, error);
}

/* This rank cannot go on with the set-up: the others, who may be waiting for it
 * somewhere, learn why at once. A cause of its own is signed. */
static gb_status tell(opener *o, gb_error *error) {
  const gb_job *job = o->job;
  gb_error cause = *error;
  if (cause.rank < 0)
    gbi_fail_rank(&cause, error->status, job->rank,
                  "rank %d (host \"%.64s\") could not set the job up: %.1800s",
                  job->rank, o->record->hostname, error->text);
  return gbi_control_settle(job->control, &cause, error);
}

static gb_status open_steps(opener *o, gb_error *error) {
  gb_job *job = o->job;
  gb_error own = {0};
  GBI_TRY(fill_record(o, &own, error));
  gb_status status = open_control(o, error);
  if (status == GB_OK)
    status = gbi_discover(job->control, o->record, job->rank, job->world,
                          o->deadline_ns, &job->discovery, error);
  /* A rank with a malformed variable of its own has told the others by its
   * record; it raises its own error. */
  if (own.status != GB_OK) {
    if (error) *error = own;
    return own.status;
  }
  if (status == GB_OK) status = open_parts(o, error);
  if (status != GB_OK) return job->control ? tell(o, error) : status;
  announce(job);
  return GB_OK;
}

/* ---- the list of open jobs ---- */

static void close_at_exit(void) {
  for (;;) {
    pthread_mutex_lock(&open_lock);
    gb_job *job = open_jobs;
    pthread_mutex_unlock(&open_lock);
    if (!job || job->fork_count != gbi_fork_count()) return;
    (void)gbi_job_close(job, NULL);
  }
}

static void remember(gb_job *job) {
  static bool registered; /* under open_lock */
  pthread_mutex_lock(&open_lock);
  if (!registered) registered = !atexit(close_at_exit);
  job->next_open = open_jobs;
  open_jobs = job;
  pthread_mutex_unlock(&open_lock);
}

static void forget(gb_job *job) {
  pthread_mutex_lock(&open_lock);
  for (gb_job **at = &open_jobs; *at; at = &(*at)->next_open)
    if (*at == job) {
      *at = job->next_open;
      break;
    }
  pthread_mutex_unlock(&open_lock);
}

/* ---- open and close ---- */

static void free_job(gb_job *job) {
  gb_group *world = job->group;
  gbi_subgroups_free(job);
  set_world(job, NULL);
  if (world) gbi_group_free(world);
  gbi_job_p2p_stop(job);
  gbi_control_close(job->control);
  gbi_job_p2p_free(job);
  gbi_hostarea_close(job->area);
  gbi_discovery_free(job->discovery);
  for (int r = 0; job->who && r < job->world; r++) free(job->who[r]);
  free(job->who);
  free(job->facts);
  free(job->facts_at);
  gbi_kernel_set_close(job->kernels);
  if (job->device) job->device->ops->close(job->device);
  gbi_watch_fini(&job->watch);
  pthread_mutex_destroy(&job->connect_lock);
  gbi_subgroups_fini(job);
  free(job);
}

/* Reads what the caller's header covers. */
static gb_status copy_params(const gb_job_params *given, gb_job_params *params,
                             gb_error *error) {
  static const gb_job_params init = GB_JOB_PARAMS_INIT;
  *params = init;
  if (!given) return GB_OK;
  if (given->size < offsetof(gb_job_params, timeout_ms))
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "the size of gb_job_params is %zu: start from "
                    "GB_JOB_PARAMS_INIT",
                    given->size);
  memcpy(params, given, GBI_MIN(given->size, sizeof *params));
  return GB_OK;
}

gb_status gbi_job_open(const gb_job_params *given, gb_job **job_p,
                       gb_error *error) {
  gb_error local;
  if (!error) error = &local;
  gbi_error_clear(error);
  gb_job_params params;
  GBI_TRY(copy_params(given, &params, error));
  if (!job_p) return gbi_fail(error, GB_ERR_ARGUMENT, "job_p is NULL");
  char level[256] = "";
  gbi_env("GPUBRIDGE_LOG", level, sizeof level);
  GBI_TRY(gbi_log_configure(level, error));
  gb_job *job = gbi_calloc(1, sizeof *job);
  if (!job) return gbi_fail(error, GB_ERR_MEMORY, "no memory for a job");
  job->fork_count = gbi_fork_count();
  job->timeout_ms = params.timeout_ms ? params.timeout_ms : DEFAULT_TIMEOUT_MS;
  gbi_watch_init(&job->watch);
  pthread_mutex_init(&job->connect_lock, NULL);
  gbi_subgroups_init(job);
  job->wait_hook = params.wait_hook;
  job->wait_hook_arg = params.wait_hook_arg;
  opener o = {.job = job, .params = &params};
  o.deadline_ns = gbi_deadline_after_ms(job->timeout_ms);
  gb_status status = gbi_parts_take(&params, &job->parts, error);
  if (status == GB_OK) status = find_rank(&o, error);
  if (status == GB_OK) {
    gbi_log_set_rank(job->rank);
    status = open_steps(&o, error);
  }
  free(o.record);
  free(o.all);
  if (status != GB_OK) {
    free_job(job);
    return status;
  }
  remember(job);
  *job_p = job;
  return GB_OK;
}

gb_status gbi_job_close(gb_job *job, gb_error *error) {
  if (!job) return GB_OK;
  if (job->fork_count != gbi_fork_count()) return gbi_fail_forked(error);
  forget(job);
  gbi_subgroups_drain(job);
  gbi_group_drain(job->group);
  gbi_job_p2p_stop(job);
  gbi_control_goodbye(job->control, gbi_deadline_after_ms(GOODBYE_MS));
  gbi_engine_stop(gbi_group_engine(job->group));
  free_job(job);
  return GB_OK;
}

void gbi_job_abort(gb_job *job, const char *reason) {
  if (!job || job->fork_count != gbi_fork_count()) return;
  gb_error cause;
  gbi_fail_rank(&cause, GB_ERR_ABORTED, job->rank,
                "%s aborted the job: %.1500s", job->who[job->rank],
                reason ? reason : "no reason given");
  gbi_control_abort(job->control, &cause);
}
