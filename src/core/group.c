#include "core/group.h"

#include "base/fault.h"
#include "base/log.h"
#include "base/memory.h"
#include "core/capture.h"
#include "core/gpu_watch.h"
#include "core/uses.h"
#include "core/work.h"
#include "os/yield.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum {
  SLICE_MS = 100, /* hooks and deadlines are looked at this often */
  FIRST_QUESTION_MS = 500,
  BARRIER_BYTES = 64
};

typedef struct plan_entry {
  gbi_plan *plan;
  const gbi_policy_ops *policy; /* that made it */
  uint64_t used;                /* clock of the cache, for eviction */
  int users;                    /* tasks that run it now */
} plan_entry;

struct gb_group {
  gbi_group_params p;
  int *members;
  unsigned fork_count;
  _Atomic uint64_t timeout_ms;

  gbi_works *works; /* the lock and what is signalled */
  bool driving;     /* a thread runs the engine */
  pthread_t driver; /* while it does */
  bool draining, drained;
  gbi_gpu_watch *gpu_watch; /* with the GPU's lock; NULL: nothing to watch */
  bool serving;             /* a worker thread is attached */
  bool own_worker;
  pthread_t worker;
  gb_work *queue_head, *queue_tail;
  int queued;
  uint64_t queued_bytes;
  bool failed;
  gb_error failure; /* the job's one sentence */

  /* The driver's own. */
  uint64_t next_seq;
  plan_entry plans[GBI_PLANS_CACHED];
  uint64_t plan_clock;
  gbi_crowd crowd;
  gb_work *replay; /* taken up, until there is room for it */
  uint8_t barrier_byte[BARRIER_BYTES];

  pthread_mutex_t state_lock;
  gbi_call_state state;
  int watch_slot; /* of the newest call */
};

/* One stretch of driving the engine. */
typedef struct driver {
  gb_group *g;
  bool hooks;       /* the caller's thread: the wait hook may run */
  bool from_queue;  /* the worker: takes queued works as tasks end */
  uint64_t idle_ns; /* since when nothing moved, 0: it moves */
  uint64_t held_ns; /* since when what is queued waits for the GPU, 0: not */
  uint64_t next_hook_ns, next_question_ns, next_warning_ns;
  uint64_t question_gap_ms, warning_gap_ms;
} driver;

gb_status gbi_fail_forked(gb_error *error) {
  return gbi_fail(error, GB_ERR_FORKED,
                  "this process is a fork of the one that opened the job: a "
                  "forked child cannot use its parent's job. Open jobs after "
                  "the fork, or start workers with spawn");
}

/* ---- open and close ---- */

gb_status gbi_group_open(const gbi_group_params *params, gb_group **group_p,
                         gb_error *error) {
  gb_group *g = gbi_calloc(1, sizeof *g);
  int *members = gbi_malloc(sizeof *members * (size_t)params->world);
  gbi_works *works = gbi_works_new(sizeof(gb_work));
  if (!g || !members || !works) {
    free(g);
    free(members);
    if (works) gbi_works_release(works);
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for a group");
  }
  g->p = *params;
  memcpy(members, params->members, sizeof *members * (size_t)params->world);
  g->members = members;
  g->p.members = members;
  g->fork_count = gbi_fork_count();
  g->watch_slot = -1;
  atomic_store(&g->timeout_ms, params->timeout_ms);
  g->works = works;
  pthread_mutex_init(&g->state_lock, NULL);
  *group_p = g;
  return GB_OK;
}

gbi_engine *gbi_group_engine(gb_group *g) {
  return g->p.engine;
}
int gbi_group_rank(const gb_group *g) {
  return g->p.rank;
}
const gbi_group_params *gbi_group_params_of(const gb_group *g) {
  return &g->p;
}
int gbi_group_world(const gb_group *g) {
  return g->p.world;
}
void gbi_group_set_timeout(gb_group *g, uint64_t timeout_ms) {
  atomic_store_explicit(&g->timeout_ms, timeout_ms, memory_order_relaxed);
}
uint64_t gbi_group_timeout(const gb_group *g) {
  return atomic_load_explicit(&g->timeout_ms, memory_order_relaxed);
}

void gbi_group_set_policy(gb_group *g, const gbi_policy_ops *policy) {
  g->p.policy = policy;
}

void gbi_group_free(gb_group *g) {
  if (!g) return;
  gbi_engine_close(g->p.engine);
  gbi_gpu_watch_close(g->gpu_watch);
  gbi_gpu_close(g->p.gpu);
  for (int i = 0; i < GBI_PLANS_CACHED; i++) gbi_plan_free(g->plans[i].plan);
  gbi_works_release(g->works);
  pthread_mutex_destroy(&g->state_lock);
  free(g->members);
  free(g);
}

/* ---- plans ---- */

static plan_entry *find_plan(gb_group *g, const gbi_coll *coll) {
  for (int i = 0; i < GBI_PLANS_CACHED; i++)
    if (g->plans[i].plan && g->plans[i].policy == g->p.policy &&
        gbi_coll_equal(&g->plans[i].plan->coll, coll))
      return &g->plans[i];
  return NULL;
}

static gbi_policy_env env_of(const gb_group *g) {
  return (gbi_policy_env){.topology = g->p.topology,
                          .rank = g->p.rank,
                          .chunk_bytes = g->p.chunk_bytes,
                          .chunks_most = g->p.chunks_most,
                          .rules = g->p.rules,
                          .links = g->p.links,
                          .codec = g->p.codec,
                          .direct = g->p.direct};
}

static gb_status get_plan(gb_group *g, const gbi_coll *coll,
                          plan_entry **entry_p, gb_error *error) {
  plan_entry *entry = find_plan(g, coll);
  if (!entry) {
    plan_entry *oldest = NULL;
    for (int i = 0; i < GBI_PLANS_CACHED; i++)
      if (!g->plans[i].users && (!oldest || g->plans[i].used < oldest->used))
        oldest = &g->plans[i];
    entry = oldest; /* at most GBI_TASKS entries are in use */
    gbi_plan_free(entry->plan);
    entry->plan = NULL;
    gbi_policy_env env = env_of(g);
    GBI_TRY(gbi_policy_plan(g->p.policy, &env, coll, &entry->plan, error));
    entry->policy = g->p.policy;
  }
  entry->used = ++g->plan_clock;
  entry->users++;
  *entry_p = entry;
  return GB_OK;
}

/* ---- one call: begin and end, by the driver ---- */

/* What all ranks must agree on. The ends of an all_to_all's parts know only
 * their own lengths: each message is checked by itself. */
static gbi_call identity_of(const gb_group *g, const gb_work *work) {
  const gbi_coll *coll = &work->coll;
  bool many =
      coll->op == GBI_OP_ALL_GATHER || coll->op == GBI_OP_REDUCE_SCATTER;
  gbi_call call = {.seq = work->seq,
                   .count = coll->count * (many ? (uint64_t)g->p.world : 1),
                   .root = coll->root,
                   .op = coll->op,
                   .dtype = coll->dtype,
                   .redop = coll->redop};
  if (coll->op == GBI_OP_BARRIER) {
    call.count = 0;
    call.dtype = call.redop = 255;
  } else if (coll->op == GBI_OP_ALL_TO_ALL) {
    call.count = 0;
  } else if (coll->counts_count) {
    call.root = gbi_coll_counts_hash(coll);
  }
  return call;
}

static void note_started(gb_group *g, const gb_work *work) {
  pthread_mutex_lock(&g->state_lock);
  if (!work->replay) g->state.started = work->task->call.seq + 1;
  g->state.last = work->task->call;
  g->watch_slot = work->task->watch_slot;
  pthread_mutex_unlock(&g->state_lock);
}

static void note_completed(gb_group *g, const gb_work *work) {
  pthread_mutex_lock(&g->state_lock);
  if (!work->replay) g->state.completed++;
  pthread_mutex_unlock(&g->state_lock);
}

bool gbi_group_report(gb_group *g, gbi_call_state *state) {
  pthread_mutex_lock(&g->state_lock);
  *state = g->state;
  snprintf(state->phase, sizeof state->phase, "%s",
           state->started > state->completed
               ? gbi_watch_open_phase(g->p.watch, g->watch_slot)
               : "");
  pthread_mutex_unlock(&g->state_lock);
  return true;
}

/* A record's bytes are those of the input; a scatter's, of the root's. */
static gb_record describe_call(const gb_group *g, const gb_work *work,
                               const gbi_plan *plan) {
  const gbi_coll *coll = &work->coll;
  bool barrier = coll->op == GBI_OP_BARRIER;
  bool scatter = coll->op == GBI_OP_SCATTER;
  uint64_t elements, out;
  gbi_coll_extents(coll, scatter ? coll->root : g->p.rank, g->p.world,
                   &elements, &out);
  return (gb_record){
      .seq = work->seq,
      .op = gbi_op_name(coll->op),
      .bytes = barrier ? 0 : elements * gb_dtype_bytes((gb_dtype)coll->dtype),
      .dtype = barrier ? -1 : coll->dtype,
      .redop = barrier || coll->redop == 255 ? -1 : coll->redop,
      .root = coll->root,
      .policy = barrier ? NULL : plan->policy,
      .group = g->p.id,
  };
}

/* Of work on a GPU: the host's part, whose memory is the ring. */
static void set_gates(const gb_group *g, const gb_work *work, gbi_task *task) {
  task->gates = work->turn.gates   ? work->turn.gates
                : work->turn.shape ? gbi_gpu_gates(g->p.gpu)
                                   : NULL;
  task->ready = work->turn.ready;
  task->arrived = work->turn.arrived;
  task->staging = work->turn.staging;
  if (task->gates)
    task->ready_end = work->turn.ready + work->turn.shape->staged->readies;
}

static gb_status find_plan_of(gb_group *g, gb_work *work, const gbi_plan **plan,
                              gb_error *error) {
  plan_entry *entry;
  if (work->turn.shape) {
    *plan = work->turn.shape->staged->host;
    return GB_OK;
  }
  GBI_TRY(get_plan(g, &work->coll, &entry, error));
  work->seq = g->next_seq++;
  work->plan_users = &entry->users;
  *plan = entry->plan;
  return GB_OK;
}

/* The work does not need its plan any more, and nor does the engine: of a shape
 * on a GPU it may be freed now. */
static void let_plan_go(gb_work *work) {
  if (work->turn.shape)
    atomic_fetch_sub(&work->turn.shape->users, 1);
  else
    --*work->plan_users;
  work->task = NULL;
}

static gb_status begin_work(gb_group *g, gb_work *work, gb_error *error) {
  const gbi_coll *coll = &work->coll;
  const gbi_plan *plan;
  GBI_TRY(find_plan_of(g, work, &plan, error));
  gbi_task *task = gbi_engine_task(g->p.engine);
  bool barrier = coll->op == GBI_OP_BARRIER;
  work->deadline_ns = gbi_deadline_after_ms(gbi_group_timeout(g));
  gb_record record = describe_call(g, work, plan);
  set_gates(g, work, task);
  task->plan = plan;
  task->call = identity_of(g, work);
  task->in = barrier ? g->barrier_byte : work->in;
  task->out = barrier ? g->barrier_byte : work->out;
  task->factor = work->factor;
  task->owner = work;
  task->watch_slot = gbi_watch_begin(g->p.watch, &record);
  work->task = task;
  gb_status status = gbi_engine_begin(g->p.engine, task, error);
  if (status != GB_OK) {
    gbi_watch_end(g->p.watch, task->watch_slot, false);
    let_plan_go(work);
    return status;
  }
  note_started(g, work);
  return GB_OK;
}

/* Marks the work done and drops the library's hold on it. */
static void settle_work(gb_group *g, gb_work *work, const gb_error *failure) {
  pthread_mutex_lock(&g->works->lock);
  if (failure) work->error = *failure;
  work->done = true;
  pthread_cond_broadcast(&g->works->changed);
  pthread_mutex_unlock(&g->works->lock);
  gbi_work_release(work);
}

static void end_work(gb_group *g, gbi_task *task) {
  gb_work *work = task->owner;
  int slot = task->watch_slot;
  gbi_engine_release(g->p.engine, task);
  let_plan_go(work);
  note_completed(g, work);
  gbi_watch_end(g->p.watch, slot, true);
  if (work->replay)
    gbi_captures_end(work);
  else if (work->queued)
    settle_work(g, work, NULL);
  else
    work->done = true;
}

/* ---- waiting ---- */

static void add_who(gbi_text *text, const gb_group *g, const int *ranks,
                    int count) {
  for (int i = 0; i < count && i < 8; i++)
    gbi_text_add(text, "%s%s", i ? ", " : "", g->p.who[ranks[i]]);
  if (count > 8) gbi_text_add(text, " and %d more", count - 8);
}

static int late_members(const gb_group *g, uint64_t seq, int *ranks, int max) {
  int global[256];
  int count = gbi_control_late(g->p.control, g->p.id, seq, global,
                               (int)GBI_COUNT(global));
  int kept = 0;
  for (int i = 0; i < count; i++)
    for (int r = 0; r < g->p.world; r++)
      if (g->members[r] == global[i] && kept < max) ranks[kept++] = r;
  return kept;
}

/* ", phase bridge, waits for rank 2 (...); not arrived at this call: ..." */
static void add_wait_text(gb_group *g, const gb_work *work, gbi_text *text) {
  int ranks[64];
  const char *phase = gbi_watch_open_phase(g->p.watch, work->task->watch_slot);
  if (phase[0]) gbi_text_add(text, ", phase %s", phase);
  int count = gbi_engine_waiting_for(g->p.engine, g->p.topology, g->p.rank,
                                     ranks, (int)GBI_COUNT(ranks));
  if (count) {
    gbi_text_add(text, ", waits for ");
    add_who(text, g, ranks, count);
  }
  count = late_members(g, work->seq, ranks, (int)GBI_COUNT(ranks));
  if (count) {
    gbi_text_add(text, "; not arrived at this call: ");
    add_who(text, g, ranks, count);
  }
}

static gb_status fail_late(gb_group *g, const gb_work *work, gb_error *error) {
  char call[160], details[1200];
  gbi_text text;
  gbi_text_init(&text, details, sizeof details);
  gbi_call_text(&work->task->call, call, sizeof call);
  add_wait_text(g, work, &text);
  return gbi_fail_rank(error, GB_ERR_TIMEOUT, g->members[g->p.rank],
                       "%s did not end within its timeout of %.4g s: %s%s",
                       call, (double)gbi_group_timeout(g) / 1000.0,
                       g->p.who[g->p.rank], details);
}

static void ask_and_warn(driver *d, const gb_work *work, uint64_t now) {
  gb_group *g = d->g;
  if (now >= d->next_question_ns) {
    gbi_control_stalled(g->p.control, g->p.id, g->members, g->p.world,
                        &work->task->call);
    d->question_gap_ms = GBI_MIN(d->question_gap_ms * 2, 10000);
    d->next_question_ns = now + d->question_gap_ms * GBI_NS_PER_MS;
  }
  if (now >= d->next_warning_ns) {
    char call[160], details[1200];
    gbi_text text;
    gbi_text_init(&text, details, sizeof details);
    gbi_call_text(&work->task->call, call, sizeof call);
    add_wait_text(g, work, &text);
    GBI_WARN("core", "%s has waited for %.0f s%s", call,
             (double)(now - d->idle_ns) / 1e9, details);
    d->warning_gap_ms *= 2;
    d->next_warning_ns = now + d->warning_gap_ms * GBI_NS_PER_MS;
  }
}

static gb_status run_hook(const driver *d, const gbi_call *call,
                          gb_error *error) {
  const gb_group *g = d->g;
  if (!d->hooks || !g->p.wait_hook || !g->p.wait_hook(g->p.wait_hook_arg))
    return GB_OK;
  char text[160];
  gbi_call_text(call, text, sizeof text);
  return gbi_fail_rank(error, GB_ERR_INTERRUPTED, g->members[g->p.rank],
                       "%s was interrupted by its user in %s",
                       g->p.who[g->p.rank], text);
}

static gb_status fail_in_own_name(const gb_group *g, const gb_error *why,
                                  gb_error *error) {
  return gbi_fail_rank(error, why->status, g->members[g->p.rank], "%s: %.1900s",
                       g->p.who[g->p.rank], why->text);
}

/* What the island's library has met meanwhile, in this rank's name. */
static gb_status check_gpu(const gb_group *g, gb_error *error) {
  gb_error why;
  if (gbi_gpu_check(g->p.gpu, &why) == GB_OK) return GB_OK;
  return fail_in_own_name(g, &why, error);
}

/* Nothing moves: deadline, hook, questions. */
static gb_status look_around(driver *d, gb_error *error) {
  gb_group *g = d->g;
  uint64_t now = gbi_now_ns();
  gbi_task *task = gbi_engine_oldest(g->p.engine);
  if (!task) return GB_OK;
  const gb_work *work = task->owner;
  if (!d->idle_ns) {
    uint64_t warn = GBI_MAX(g->p.warn_after_ms, 1);
    d->idle_ns = now;
    d->question_gap_ms =
        GBI_MIN(FIRST_QUESTION_MS, gbi_group_timeout(g) / 2 + 1);
    d->next_question_ns = now + d->question_gap_ms * GBI_NS_PER_MS;
    d->warning_gap_ms = warn;
    d->next_warning_ns = now + warn * GBI_NS_PER_MS;
    d->next_hook_ns = now + SLICE_MS * GBI_NS_PER_MS;
  }
  if (now >= work->deadline_ns) return fail_late(g, work, error);
  if (g->p.gpu) GBI_TRY(check_gpu(g, error));
  if (now >= d->next_hook_ns) {
    d->next_hook_ns = now + SLICE_MS * GBI_NS_PER_MS;
    GBI_TRY(run_hook(d, &task->call, error));
  }
  ask_and_warn(d, work, now);
  return GB_OK;
}

/* ---- driving ---- */

static gbi_uses uses_of(const gb_group *g, const gb_work *work) {
  return gbi_uses_of(&work->coll, g->p.rank, g->p.world, work->in, work->out);
}

/* Whether `work` writes what a call in flight uses, or reads what one writes:
 * it must then wait for it, as program order says. The others may start it
 * already; they wait for us inside it. */
static bool must_wait(gb_group *g, const gb_work *work) {
  if (work->turn.shape) return false; /* its streams see to that */
  gbi_uses mine = uses_of(g, work);
  for (int i = 0; i < gbi_engine_active(g->p.engine); i++) {
    gbi_uses other = uses_of(g, gbi_engine_nth(g->p.engine, i)->owner);
    if (gbi_uses_clash(&mine, &other)) return true;
  }
  return false;
}

/* A part blocks in its call: nothing that another rank may wait for must be on
 * its way beside it. */
static int tasks_max(const gb_group *g) {
  return g->p.own_policy || g->p.own_bridge ? 1 : GBI_TASKS;
}

static bool has_captures(const gb_group *g) {
  return g->p.gpu && gbi_captures_any(gbi_gpu_captures(g->p.gpu));
}

/* Replays are known to the host when the GPU comes to them, so calls beside
 * them are begun when it comes to these: the order of both is then the GPU's,
 * as it is on every rank. */
static bool has_come(const gb_group *g, const gb_work *work) {
  if (!work->turn.shape || !work->turn.shape->staged->readies) return true;
  const gbi_gates *gates = gbi_gpu_gates(g->p.gpu);
  return atomic_load_explicit(gates->ready, memory_order_acquire) >
             work->turn.ready &&
         gates->sound(gates->arg);
}

static gb_status begin_replay(gb_group *g, gb_error *error) {
  gb_work *work = g->replay;
  g->replay = NULL;
  return begin_work(g, work, error);
}

/* The worker takes what is queued while there is room. Of a graph's replay and
 * what is queued, all that the GPU came to before it is begun before it: it is
 * looked for first. */
static gb_status refill(driver *d, gb_error *error) {
  gb_group *g = d->g;
  bool captures = has_captures(g);
  if (captures && !g->replay)
    GBI_TRY(gbi_captures_take(gbi_gpu_captures(g->p.gpu), &g->replay, error));
  while (gbi_engine_active(g->p.engine) < tasks_max(g)) {
    pthread_mutex_lock(&g->works->lock);
    gb_work *work = g->queue_head;
    if (work && must_wait(g, work)) work = NULL;
    if (work && captures && !has_come(g, work)) work = NULL;
    if (work) {
      g->queue_head = work->next;
      if (!g->queue_head) g->queue_tail = NULL;
      g->queued--;
      g->queued_bytes -= work->bytes;
      pthread_cond_broadcast(&g->works->changed);
    }
    pthread_mutex_unlock(&g->works->lock);
    if (!work) return g->replay ? begin_replay(g, error) : GB_OK;
    gb_status status = begin_work(g, work, error);
    if (status != GB_OK) {
      settle_work(g, work, error);
      return status;
    }
  }
  return GB_OK;
}

/* What the worker must not do, for the test that sees it. */
static void ask_runtime(const gb_group *g) {
  gbi_event event;
  gb_error why;
  if (!g->p.gpu || gbi_gpu_take_event(g->p.gpu, &event, &why) != GB_OK) return;
  gbi_device *device = gbi_gpu_device(g->p.gpu);
  (void)device->ops->event_query(device, event, NULL);
  gbi_gpu_give_event(g->p.gpu, event);
}

/* A device rings no bell: an eighth of the time waited so far, 20 to 500 us. */
static void nap(uint64_t waited_ns) {
  uint64_t ns = GBI_MIN(GBI_MAX(waited_ns / 8, 20000), 500000);
  nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

/* Nothing runs. Whether something is queued that the GPU has not come to. */
static gb_status is_held(driver *d, bool *held_p, gb_error *error) {
  gb_group *g = d->g;
  pthread_mutex_lock(&g->works->lock);
  *held_p = d->from_queue && g->queued && has_captures(g);
  pthread_mutex_unlock(&g->works->lock);
  if (!*held_p) return GB_OK;
  if (gbi_control_failed(g->p.control, error)) return error->status;
  GBI_TRY(check_gpu(g, error));
  uint64_t now = gbi_now_ns();
  if (!d->held_ns) d->held_ns = now;
  nap(now - d->held_ns);
  return GB_OK;
}

static gb_status drive(driver *d, gb_error *error) {
  gb_group *g = d->g;
  gbi_yields yields = {0};
  for (;;) {
    if (d->from_queue) GBI_TRY(refill(d, error));
    if (!gbi_engine_active(g->p.engine)) {
      bool held;
      GBI_TRY(is_held(d, &held, error));
      if (!held) return GB_OK;
      continue;
    }
    d->held_ns = 0;
    uint32_t seen = gbi_bell_look(g->p.waiter);
    bool moved;
    GBI_TRY(gbi_engine_progress(g->p.engine, &moved, error));
    gbi_task *task;
    while ((task = gbi_engine_finished(g->p.engine))) {
      end_work(g, task);
      moved = true; /* also when it had no steps here */
    }
    if (moved) {
      yields.count = 0;
      d->idle_ns = 0;
      continue;
    }
    if (gbi_control_failed(g->p.control, error)) return error->status;
    if (gbi_yield_core(&g->crowd, &yields)) continue;
    GBI_TRY(look_around(d, error));
    if (GBI_FAULT("gpu.worker") == GBI_FAULT_FAIL) ask_runtime(g);
    if (gbi_engine_gated(g->p.engine) || has_captures(g))
      nap(gbi_now_ns() - d->idle_ns);
    else
      gbi_engine_sleep(g->p.engine, seen, SLICE_MS);
  }
}

/* ---- failure ---- */

/* Everything that was on its way or queued ends; the group refuses from now
 * on. Called by the driver. */
static void fail_group(gb_group *g, const gb_error *cause) {
  gb_error shared;
  (void)gbi_control_settle(g->p.control, cause, &shared);
  gbi_engine_stop(g->p.engine);
  pthread_mutex_lock(&g->works->lock);
  g->failed = true;
  g->failure = shared;
  gb_work *queue = g->queue_head;
  g->queue_head = g->queue_tail = NULL;
  g->queued = 0;
  g->queued_bytes = 0;
  pthread_mutex_unlock(&g->works->lock);
  g->replay = NULL;
  bool first = true;
  gbi_task *task;
  gb_error not_run;
  gbi_fail_rank(&not_run, GB_ERR_CANCELED, shared.rank,
                "this call was not run, because an earlier one failed: %.1800s",
                shared.text);
  while ((task = gbi_engine_oldest(g->p.engine))) {
    gb_work *work = task->owner;
    gbi_watch_end(g->p.watch, task->watch_slot, false);
    gbi_engine_release(g->p.engine, task);
    let_plan_go(work);
    if (work->queued) settle_work(g, work, first ? &shared : &not_run);
    first = false;
  }
  while (queue) {
    gb_work *next = queue->next;
    if (queue->turn.shape) atomic_fetch_sub(&queue->turn.shape->users, 1);
    settle_work(g, queue, &not_run);
    queue = next;
  }
  if (g->p.gpu) gbi_gpu_fail(g->p.gpu);
}

/* ---- the driver's role ---- */

static gb_status refusal(const gb_group *g, gb_error *error) {
  if (g->failed)
    return gbi_fail_rank(error, GB_ERR_ABORTED, g->failure.rank,
                         "%.1900s. The job has failed and refuses calls: close "
                         "it and open a new one",
                         g->failure.text);
  if (g->draining)
    return gbi_fail(error, GB_ERR_STATE, "the job is being closed");
  return GB_OK;
}

gb_status gbi_group_usable(gb_group *g, gb_error *error) {
  if (GBI_UNLIKELY(g->fork_count != gbi_fork_count()))
    return gbi_fail_forked(error);
  if (GBI_UNLIKELY(gbi_watch_inside_callback()))
    return gbi_fail(error, GB_ERR_STATE,
                    "a collective cannot be called inside an observer's "
                    "callback: other ranks would wait for it");
  return GB_OK;
}

/* A caller's part that calls its own group would wait for itself. Called with
 * the lock held. */
static gb_status check_inside(const gb_group *g, gb_error *error) {
  if (!g->driving || !pthread_equal(g->driver, pthread_self())) return GB_OK;
  return gbi_fail(error, GB_ERR_STATE,
                  "a custom policy or bridge cannot call a collective of the "
                  "group whose call it carries out: use another group");
}

/* Becomes the driver once the queue is empty. Called with the lock held. */
static gb_status become_driver(gb_group *g, gb_error *error) {
  GBI_TRY(check_inside(g, error));
  while (g->driving || g->queued) {
    GBI_TRY(refusal(g, error));
    gbi_works_wait(g->works, SLICE_MS);
    if (!g->p.wait_hook) continue;
    pthread_mutex_unlock(&g->works->lock);
    int stop = g->p.wait_hook(g->p.wait_hook_arg);
    pthread_mutex_lock(&g->works->lock);
    if (stop)
      return gbi_fail(error, GB_ERR_INTERRUPTED,
                      "interrupted while earlier calls were running");
  }
  GBI_TRY(refusal(g, error));
  g->driving = true;
  g->driver = pthread_self();
  return GB_OK;
}

static void stop_driving(gb_group *g) {
  pthread_mutex_lock(&g->works->lock);
  g->driving = false;
  pthread_cond_broadcast(&g->works->changed);
  pthread_mutex_unlock(&g->works->lock);
}

/* A failure seen by the control plane while no call ran. */
static void notice_failure(gb_group *g) {
  gb_error error;
  if (!gbi_control_failed(g->p.control, &error)) return;
  pthread_mutex_lock(&g->works->lock);
  if (!g->failed) {
    g->failed = true;
    g->failure = error;
  }
  pthread_mutex_unlock(&g->works->lock);
  if (g->p.gpu) gbi_gpu_fail(g->p.gpu);
}

static gb_status call_sync(gb_group *g, gb_work *work, gb_error *error) {
  pthread_mutex_lock(&g->works->lock);
  gb_status status = become_driver(g, error);
  pthread_mutex_unlock(&g->works->lock);
  if (status != GB_OK) return status;
  driver d = {.g = g, .hooks = true};
  gb_error local;
  status = begin_work(g, work, &local);
  if (status == GB_OK) status = drive(&d, &local);
  if (status != GB_OK) {
    fail_group(g, &local);
    pthread_mutex_lock(&g->works->lock);
    /* The caller's own interruption stays what it is. */
    gb_error shared = g->failure;
    pthread_mutex_unlock(&g->works->lock);
    if (status == GB_ERR_INTERRUPTED) shared.status = status;
    status = shared.status;
    if (error) *error = shared;
  }
  stop_driving(g);
  return status;
}

/* ---- worker ---- */

/* A graph's replay rings no bell either: an eighth of the time since the last
 * call, 20 us to 1 ms. With the lock held. True: there is something to do. */
static bool await_work(gb_group *g, uint64_t *since_ns) {
  bool captures = has_captures(g);
  if (g->driving || (!g->queued && !captures)) {
    pthread_cond_wait(&g->works->changed, &g->works->lock);
    *since_ns = 0;
    return false;
  }
  if (g->queued || g->replay || gbi_captures_rings(gbi_gpu_captures(g->p.gpu)))
    return true;
  pthread_mutex_unlock(&g->works->lock);
  uint64_t now = gbi_now_ns();
  if (!*since_ns) *since_ns = now;
  uint64_t ns = GBI_MIN(GBI_MAX((now - *since_ns) / 8, 20000), 1000000);
  nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
  pthread_mutex_lock(&g->works->lock);
  return false;
}

void gbi_group_serve(gb_group *g) {
  uint64_t since_ns = 0;
  prctl(PR_SET_NAME, "gpubridge-async"); /* calls in flight show it */
  pthread_mutex_lock(&g->works->lock);
  g->serving = true;
  pthread_cond_broadcast(&g->works->changed);
  while (!(g->draining && !g->queued) && !g->drained) {
    if (!await_work(g, &since_ns)) continue;
    since_ns = 0;
    g->driving = true;
    g->driver = pthread_self();
    pthread_mutex_unlock(&g->works->lock);
    driver d = {.g = g, .from_queue = true};
    gb_error error;
    if (drive(&d, &error) != GB_OK) fail_group(g, &error);
    pthread_mutex_lock(&g->works->lock);
    g->driving = false;
    pthread_cond_broadcast(&g->works->changed);
  }
  g->serving = false;
  pthread_cond_broadcast(&g->works->changed);
  pthread_mutex_unlock(&g->works->lock);
}

static void *worker_main(void *arg) {
  gbi_group_serve(arg);
  return NULL;
}

/* With the lock held. The caller may have attached a thread of its own by
 * gbi_group_serve; else the library starts one at the first async call. */
static gb_status need_worker(gb_group *g, gb_error *error) {
  if (g->serving || g->own_worker) return GB_OK;
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int code = GBI_FAULT("thread.start") == GBI_FAULT_FAIL
                 ? EAGAIN
                 : pthread_create(&g->worker, NULL, worker_main, g);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (code)
    return gbi_fail(error, GB_ERR_SYSTEM,
                    "could not start the thread for async calls: %s",
                    strerror(code));
  g->own_worker = true;
  return GB_OK;
}

/* Whether one more call may wait. With nobody waiting any size may. */
static gb_status check_room(const gb_group *g, const gb_work *work,
                            gb_error *error) {
  if (g->queued >= g->p.queue_max)
    return gbi_fail(error, GB_ERR_BUSY,
                    "%d async calls are waiting, as many as "
                    "GPUBRIDGE_ASYNC_QUEUE allows. Wait for one of them and "
                    "call again",
                    g->queued);
  if (g->queued && g->queued_bytes + work->bytes > g->p.queue_bytes_max)
    return gbi_fail(error, GB_ERR_BUSY,
                    "%d async calls with %llu bytes are waiting, %llu more "
                    "would pass the %llu that GPUBRIDGE_ASYNC_BYTES allows. "
                    "Wait for one of them and call again",
                    g->queued, (unsigned long long)g->queued_bytes,
                    (unsigned long long)work->bytes,
                    (unsigned long long)g->p.queue_bytes_max);
  return GB_OK;
}

static gb_status call_async(gb_group *g, gb_work *work, gb_error *error) {
  gbi_uses uses = uses_of(g, work);
  work->bytes =
      uses.in_bytes + (gbi_coll_in_place(&work->coll) ? 0 : uses.out_bytes);
  pthread_mutex_lock(&g->works->lock);
  gb_status status = check_inside(g, error);
  if (status == GB_OK) status = refusal(g, error);
  if (status == GB_OK) status = check_room(g, work, error);
  if (status == GB_OK) status = need_worker(g, error);
  if (status == GB_OK) {
    work->queued = true;
    if (g->queue_tail)
      g->queue_tail->next = work;
    else
      g->queue_head = work;
    g->queue_tail = work;
    g->queued++;
    g->queued_bytes += work->bytes;
    pthread_cond_broadcast(&g->works->changed);
  }
  pthread_mutex_unlock(&g->works->lock);
  return status;
}

void gbi_group_drain(gb_group *g) {
  pthread_mutex_lock(&g->works->lock);
  g->draining = true;
  pthread_cond_broadcast(&g->works->changed);
  /* A worker that its owner attached may have ended with calls left. */
  if (g->queued) (void)need_worker(g, NULL);
  while (g->driving || g->queued || g->serving)
    gbi_works_wait(g->works, SLICE_MS);
  g->drained = true;
  bool own = g->own_worker;
  pthread_mutex_unlock(&g->works->lock);
  if (own) pthread_join(g->worker, NULL);
  if (g->p.gpu) gbi_gpu_flush(g->p.gpu);
}

/* ---- calls ---- */

/* An exchange needs the mesh, unless there is nobody to exchange with. */
static gb_status check_mesh(gb_group *g, const gbi_coll *coll,
                            gb_error *error) {
  if (!gbi_is_exchange(coll->op) || g->p.world == 1 ||
      gbi_engine_has(g->p.engine, GBI_ON_MESH))
    return GB_OK;
  return gbi_fail(error, GB_ERR_UNSUPPORTED,
                  "%s is not supported: this group has no connections between "
                  "all of its ranks",
                  gbi_op_name(coll->op));
}

/* What the caller's parts refuse is refused on every rank. One that breaks
 * while it is asked ends the job: other ranks may go on into the call. */
static gb_status check_parts(gb_group *g, const gbi_coll *coll,
                             gb_error *error) {
  gb_error why;
  int rank = g->members[g->p.rank];
  gb_status status =
      gbi_parts_check(g->p.parts, g->p.own_policy, g->p.own_bridge, coll, rank,
                      g->p.world, &why);
  if (status == GB_OK) return GB_OK;
  if (error) *error = why;
  if (status == GB_ERR_UNSUPPORTED) return status;
  (void)gbi_control_settle(g->p.control, &why, error);
  notice_failure(g);
  return status;
}

/* Nobody may be waiting: whoever asks or calls sees it first. */
static void notice_gpu(gb_group *g) {
  gb_error cause, shared;
  if (!g->p.gpu || check_gpu(g, &cause) == GB_OK) return;
  (void)gbi_control_settle(g->p.control, &cause, &shared);
}

gb_status gbi_group_check(gb_group *g, gb_error *error) {
  GBI_TRY(gbi_group_usable(g, error));
  notice_gpu(g);
  notice_failure(g);
  pthread_mutex_lock(&g->works->lock);
  /* What is queued still runs while the job is being closed. */
  gb_status status = g->failed ? refusal(g, error) : GB_OK;
  pthread_mutex_unlock(&g->works->lock);
  return status;
}

/* ---- on a GPU ---- */

void gbi_group_wake(gb_group *g) {
  if (g->p.gpu) gbi_gpu_fail(g->p.gpu);
}

static gb_status need_watch(gb_group *g, gb_error *error) {
  gbi_gpu_watch_params params = {.gpu = g->p.gpu,
                                 .control = g->p.control,
                                 .rank = g->members[g->p.rank],
                                 .who = g->p.who[g->p.rank]};
  if (g->gpu_watch) return GB_OK;
  return gbi_gpu_watch_open(&params, &g->gpu_watch, error);
}

/* A call without a part for the host never comes to the worker. */
static void settle_issued(gb_group *g, gb_work *work) {
  gb_record record = describe_call(g, work, work->turn.shape->plan);
  int slot = gbi_watch_begin(g->p.watch, &record);
  gbi_watch_end(g->p.watch, slot, true);
  pthread_mutex_lock(&g->state_lock);
  g->state.started++;
  g->state.completed++;
  g->state.last = identity_of(g, work);
  pthread_mutex_unlock(&g->state_lock);
  gbi_call call = identity_of(g, work);
  gbi_gpu_watch_call(g->gpu_watch, gbi_gpu_alone(g->p.gpu), &call,
                     gbi_group_timeout(g));
  atomic_fetch_sub(&work->turn.shape->users, 1);
  settle_work(g, work, NULL);
}

/* The others may go on into a call that this rank cannot make. */
static void give_up(gb_group *g, const gb_error *why, gb_error *error) {
  gb_error cause;
  (void)fail_in_own_name(g, why, &cause);
  (void)gbi_control_settle(g->p.control, &cause, error);
  notice_failure(g);
}

/* With the GPU's lock held. The host's part is queued before the first gate is
 * enqueued: a runtime that launches synchronously would wait for it here. */
static gb_status issue(gb_group *g, gb_work *work, gbi_event done,
                       gb_error *error) {
  bool hosted = gbi_gpu_has_host(&work->turn);
  bool late = GBI_FAULT("gpu.post") == GBI_FAULT_FAIL;
  atomic_fetch_add(&work->turn.shape->users, 1);
  work->seq = g->next_seq;
  gb_status status = GB_OK;
  if (hosted && !late) {
    status = call_async(g, work, error);
  } else {
    pthread_mutex_lock(&g->works->lock);
    status = refusal(g, error);
    pthread_mutex_unlock(&g->works->lock);
    if (status == GB_OK) status = need_watch(g, error);
  }
  if (status != GB_OK) {
    atomic_fetch_sub(&work->turn.shape->users, 1);
    gbi_work_release(work); /* the library's hold */
    return status;
  }
  g->next_seq++;
  /* The worker may be through with it before everything is enqueued. */
  gbi_gpu_turn turn = work->turn;
  gb_error why;
  status = gbi_gpu_enqueue(g->p.gpu, &turn, work->in, work->out, work->factor,
                           gbi_gpu_stream(), done, &why);
  if (hosted && late) status = call_async(g, work, &why);
  if (!hosted) settle_issued(g, work);
  if (status == GB_OK) return GB_OK;
  give_up(g, &why, error);
  return status;
}

/* What is wrong with the arguments is wrong on every rank, and said there. */
static bool is_refusal(gb_status status) {
  return status == GB_ERR_ARGUMENT || status == GB_ERR_UNSUPPORTED ||
         status == GB_ERR_BUSY;
}

/* The handle of a captured call: done, and an edge to wait behind. */
static gb_status new_captured(gb_group *g, const gbi_coll *coll, const void *in,
                              void *out, gb_work **work_p, gb_error *error) {
  gb_work *work = gbi_work_new(g->works, coll, in, out, 1);
  if (!work) return gbi_fail(error, GB_ERR_MEMORY, "no memory for a call");
  gbi_work_release(work); /* the library's hold */
  gb_status status = gbi_gpu_take_event(g->p.gpu, &work->event, error);
  if (status != GB_OK) {
    work->event = NULL;
    gbi_work_release(work);
    return status;
  }
  gbi_gpu_hold(g->p.gpu);
  work->gpu = g->p.gpu;
  work->control = g->p.control;
  work->captured = work->done = true;
  *work_p = work;
  return GB_OK;
}

/* Whoever may serve its replays is there before the first. */
static gb_status prepare_replays(gb_group *g, gb_error *error) {
  pthread_mutex_lock(&g->works->lock);
  gb_status status = refusal(g, error);
  if (status == GB_OK) status = need_worker(g, error);
  pthread_mutex_unlock(&g->works->lock);
  return status;
}

/* A call whose caller's stream captures: nodes, and nothing runs now. */
static gb_status call_captured(gb_group *g, const gbi_coll *coll,
                               const void *in, void *out, double factor,
                               gb_work **work_p, gb_error *error) {
  gbi_device *device = gbi_gpu_device(g->p.gpu);
  gbi_stream stream = gbi_gpu_stream();
  gbi_policy_env env = env_of(g);
  gb_work *work = NULL;
  bool hosted, begun;
  gb_error why;
  GBI_TRY(prepare_replays(g, error));
  if (work_p) GBI_TRY(new_captured(g, coll, in, out, &work, error));
  gb_status status =
      gbi_capture_call(g->p.gpu, g->p.policy, &env, coll, in, out, factor,
                       stream, g->works, &hosted, &begun, &why);
  if (status == GB_OK && work)
    status = device->ops->event_record(device, work->event, stream, &why);
  if (hosted) { /* the worker begins to look for replays */
    pthread_mutex_lock(&g->works->lock);
    pthread_cond_broadcast(&g->works->changed);
    pthread_mutex_unlock(&g->works->lock);
  }
  if (status == GB_OK) {
    if (work_p) *work_p = work;
    return GB_OK;
  }
  if (error) *error = why;
  if (begun) give_up(g, &why, error);
  gbi_work_release(work);
  return status;
}

static gb_status call_inside(gb_group *g, const gbi_coll *coll, const void *in,
                             void *out, double factor, gb_work **work_p,
                             gb_error *error) {
  gbi_gpu *gpu = g->p.gpu;
  bool captures;
  if (coll->op == GBI_OP_BARRIER) in = out = gbi_gpu_barrier(gpu);
  GBI_TRY(gbi_capture_wanted(gpu, gbi_gpu_stream(), &captures, error));
  if (captures) {
    gbi_gpu_lock(gpu);
    gb_status status = call_captured(g, coll, in, out, factor, work_p, error);
    gbi_gpu_unlock(gpu);
    return status;
  }
  gbi_policy_env env = env_of(g);
  gb_work *work = gbi_work_new(g->works, coll, in, out, factor);
  if (!work) return gbi_fail(error, GB_ERR_MEMORY, "no memory for a call");
  gbi_event done = NULL;
  gb_error why;
  gbi_gpu_lock(gpu);
  gb_status status =
      gbi_gpu_prepare(gpu, g->p.policy, &env, coll, in, out, &work->turn, &why);
  if (status != GB_OK && error) *error = why;
  if (status == GB_OK && work_p) status = gbi_gpu_take_event(gpu, &done, error);
  if (status == GB_OK) {
    status = issue(g, work, done, error);
  } else {
    gbi_work_release(work); /* the library's hold */
  }
  if (status != GB_OK && done) gbi_gpu_give_event(gpu, done);
  gbi_gpu_unlock(gpu);
  if (status != GB_OK && !work->turn.shape && !is_refusal(status))
    give_up(g, &why, error);
  if (status == GB_OK && work_p) {
    work->gpu = gpu;
    gbi_gpu_hold(gpu);
    work->control = g->p.control;
    work->event = done;
    *work_p = work;
  } else {
    gbi_work_release(work);
  }
  return status;
}

static gb_status call_on_gpu(gb_group *g, const gbi_coll *coll, const void *in,
                             void *out, double factor, gb_work **work_p,
                             gb_error *error) {
  gbi_device *device = gbi_gpu_device(g->p.gpu);
  GBI_TRY(device->ops->enter(device, error));
  gb_status status = call_inside(g, coll, in, out, factor, work_p, error);
  device->ops->leave(device);
  return status;
}

gb_status gbi_group_call_scaled(gb_group *g, const gbi_coll *coll,
                                const void *in, void *out, double factor,
                                gb_work **work_p, gb_error *error) {
  GBI_TRY(check_mesh(g, coll, error));
  notice_gpu(g);
  notice_failure(g);
  if (GBI_UNLIKELY(g->p.own_policy || g->p.own_bridge))
    GBI_TRY(check_parts(g, coll, error));
  if (g->p.gpu) return call_on_gpu(g, coll, in, out, factor, work_p, error);
  if (!work_p) {
    gb_work work;
    gbi_work_init(&work, g->works, coll, in, out, factor);
    return call_sync(g, &work, error);
  }
  gb_work *work = gbi_work_new(g->works, coll, in, out, factor);
  if (!work) return gbi_fail(error, GB_ERR_MEMORY, "no memory for a call");
  work->hook = g->p.wait_hook;
  work->hook_arg = g->p.wait_hook_arg;
  gb_status status = call_async(g, work, error);
  if (status == GB_OK) {
    *work_p = work;
  } else {
    gbi_work_release(work);
    gbi_work_release(work);
  }
  return status;
}

gb_status gbi_group_call(gb_group *g, const gbi_coll *coll, const void *in,
                         void *out, gb_work **work_p, gb_error *error) {
  return gbi_group_call_scaled(g, coll, in, out, 1, work_p, error);
}
