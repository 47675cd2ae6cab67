#include "core/p2p.h"

#include "base/memory.h"
#include "core/gpu_p2p.h"
#include "core/work.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the table of calls in flight, so that collectives keep some. */
enum { SHOWN_MAX = GBI_WATCH_CALLS * 3 / 4 };

struct gbi_job_p2p {
  gbi_p2p *p2p;
  gbi_works *works; /* of all its works */
  gbi_watch *watch;
  _Atomic uint64_t calls; /* ops started, for records */
  _Atomic int shown;
};

enum { OWN_OPS = 4 };

/* One call of gb_send, gb_recv or gb_batch. `work` is first: releasing it frees
 * all. A sync call's lives on its caller's stack; its work is not used. */
typedef struct messages {
  gb_work work;
  gbi_job_p2p *m;
  const gb_group *group;
  gbi_p2p_call call;
  int *slots;                  /* of the watch, one an op */
  gbi_p2p_op own_ops[OWN_OPS]; /* used where there are no more */
  int own_slots[OWN_OPS];
} messages;

/* ---- of a job ---- */

static const gbi_transport_ops *network_of(const gb_job *job) {
  const gbi_transport_ops *ops = gbi_transport_find(job->discovery->bridge);
  return ops && ops != &gbi_transport_shm ? ops : &gbi_transport_tcp;
}

static gb_status open_p2p(gb_job *job, gbi_job_p2p *m, gb_error *error) {
  const gbi_discovery *d = job->discovery;
  gbi_member *members = gbi_calloc((size_t)job->world, sizeof *members);
  if (!members) return gbi_fail(error, GB_ERR_MEMORY, "no memory for members");
  for (int r = 0; r < job->world; r++)
    members[r] = (gbi_member){r, gbi_hostarea_index_of(job->area, r),
                              d->records[r].hostname, d->labels[r]};
  gbi_p2p_params params = {
      .rank = job->rank,
      .world = job->world,
      .members = members,
      .who = (const char *const *)job->who,
      .area = job->area,
      .auth = gbi_control_auth(job->control),
      .control = job->control,
      .network = network_of(job),
      .store_host = gbi_control_store_host(job->control),
      .timeout_ms = job->timeout_ms,
  };
  gb_status status = gbi_p2p_open(&params, &m->p2p, error);
  free(members);
  return status;
}

gb_status gbi_job_p2p_open(gb_job *job, gb_error *error) {
  gbi_job_p2p *m = gbi_calloc(1, sizeof *m);
  gbi_works *works = gbi_works_new(sizeof(messages));
  gb_status status = GB_OK;
  if (!m || !works)
    status = gbi_fail(error, GB_ERR_MEMORY, "no memory for messages");
  if (status == GB_OK) status = open_p2p(job, m, error);
  if (status != GB_OK) {
    free(m);
    if (works) gbi_works_release(works);
    return status;
  }
  m->works = works;
  m->watch = &job->watch;
  __atomic_store_n(&job->p2p, m, __ATOMIC_RELEASE);
  return GB_OK;
}

gbi_p2p *gbi_job_p2p_of(gb_job *job) {
  gbi_job_p2p *m = __atomic_load_n(&job->p2p, __ATOMIC_ACQUIRE);
  return m ? m->p2p : NULL;
}

gbi_p2p *gbi_job_p2p_layer(gbi_job_p2p *m) {
  return m->p2p;
}

void gbi_job_p2p_on_offer(gb_job *job, int from, const void *blob,
                          size_t bytes) {
  gbi_p2p *p2p = gbi_job_p2p_of(job);
  if (p2p) gbi_p2p_on_offer(p2p, from, blob, bytes);
}

void gbi_job_p2p_on_left(gb_job *job, int rank) {
  gbi_p2p *p2p = gbi_job_p2p_of(job);
  if (p2p) gbi_p2p_on_left(p2p, rank);
}

void gbi_job_p2p_on_failure(gb_job *job) {
  gbi_p2p *p2p = gbi_job_p2p_of(job);
  if (p2p) gbi_p2p_on_failure(p2p);
}

void gbi_job_p2p_stop(gb_job *job) {
  gbi_p2p_stop(gbi_job_p2p_of(job));
}

void gbi_job_p2p_free(gb_job *job) {
  gbi_job_p2p *m = job->p2p;
  if (!m) return;
  gbi_p2p_free(m->p2p);
  gbi_works_release(m->works);
  free(m);
}

typedef struct prefixed {
  gbi_fact_fn fn;
  void *arg;
} prefixed;

static void add_prefix(void *arg, const char *name, const char *value) {
  const prefixed *to = arg;
  char text[64];
  snprintf(text, sizeof text, "p2p.%s", name);
  to->fn(to->arg, text, value);
}

void gbi_job_p2p_describe(gb_job *job, gbi_fact_fn fn, void *arg) {
  prefixed to = {fn, arg};
  gbi_p2p *p2p = gbi_job_p2p_of(job);
  if (p2p) gbi_p2p_describe(p2p, add_prefix, &to);
}

/* ---- records ---- */

int gbi_job_p2p_show(gbi_job_p2p *m, const gbi_p2p_op *op) {
  gb_record record = {
      .seq = atomic_fetch_add(&m->calls, 1),
      .op = gbi_op_name(op->is_send ? GBI_OP_SEND : GBI_OP_RECV),
      .bytes = op->count * gb_dtype_bytes(op->dtype),
      .dtype = (int)op->dtype,
      .redop = -1,
      .root = -1,
  };
  for (int r = 0; r < op->members_count; r++)
    if (op->members[r] == op->peer) record.root = r;
  int slot = -1;
  if (atomic_fetch_add(&m->shown, 1) < SHOWN_MAX)
    slot = gbi_watch_begin(m->watch, &record);
  if (slot < 0) atomic_fetch_sub(&m->shown, 1);
  return slot;
}

void gbi_job_p2p_unshow(gbi_job_p2p *m, int slot, bool success) {
  if (slot < 0) return;
  atomic_fetch_sub(&m->shown, 1);
  gbi_watch_end(m->watch, slot, success);
}

static void unshow(messages *x, bool success) {
  for (int i = 0; i < x->call.count; i++)
    gbi_job_p2p_unshow(x->m, x->slots[i], success);
}

/* ---- calls ---- */

void gbi_job_p2p_fill(const gbi_group_params *g, const gb_p2p_op *from,
                      gbi_p2p_op *op) {
  op->is_send = from->is_send != 0;
  op->class = GBI_P2P_USER;
  op->group = g->id;
  op->peer =
      from->peer == GB_ANY_SOURCE ? GB_ANY_SOURCE : g->members[from->peer];
  op->members = g->members;
  op->members_count = g->world;
  op->tag = from->tag;
  op->step = 0;
  op->call = (gbi_call){.seq = 0};
  op->data = from->buffer.data;
  op->count = from->buffer.count;
  op->dtype = from->buffer.dtype;
}

static void fill_ops(messages *x, const gb_p2p_op *ops, int count) {
  const gbi_group_params *g = gbi_group_params_of(x->group);
  for (int i = 0; i < count; i++) {
    gbi_job_p2p_fill(g, &ops[i], &x->call.ops[i]);
    x->slots[i] = gbi_job_p2p_show(x->m, &x->call.ops[i]);
  }
}

static gb_status prepare(messages *x, gb_group *group, const gb_p2p_op *ops,
                         int count, gb_error *error) {
  const gbi_group_params *g = gbi_group_params_of(group);
  x->m = g->p2p;
  x->group = group;
  x->call = (gbi_p2p_call){.ops = x->own_ops,
                           .count = count,
                           .timeout_ms = gbi_group_timeout(group),
                           .arg = x};
  x->slots = x->own_slots;
  if (count > OWN_OPS) {
    x->call.ops = gbi_calloc((size_t)count, sizeof *x->call.ops);
    x->slots = gbi_malloc(sizeof *x->slots * (size_t)count);
    if (!x->call.ops || !x->slots) {
      free(x->call.ops);
      free(x->slots);
      return gbi_fail(error, GB_ERR_MEMORY, "no memory for %d messages", count);
    }
  }
  fill_ops(x, ops, count);
  return GB_OK;
}

static void free_ops(messages *x) {
  if (x->call.count <= OWN_OPS) return;
  free(x->call.ops);
  free(x->slots);
}

/* Group rank of the sender of a single receive, else -1. */
static int source_of(const messages *x) {
  const gbi_p2p_op *op = x->call.ops;
  const gbi_group_params *g = gbi_group_params_of(x->group);
  if (x->call.count != 1 || op->is_send) return -1;
  for (int r = 0; r < g->world; r++)
    if (g->members[r] == op->source) return r;
  return -1;
}

static void on_done(gbi_p2p_call *call) {
  messages *x = call->arg;
  gb_work *work = &x->work;
  bool good = atomic_load(&call->status) == GB_OK;
  unshow(x, good);
  pthread_mutex_lock(&work->works->lock);
  if (good)
    work->source = source_of(x);
  else
    (void)gbi_p2p_error(x->m->p2p, &work->error);
  work->done = true;
  pthread_cond_broadcast(&work->works->changed);
  pthread_mutex_unlock(&work->works->lock);
  free_ops(x);
  gbi_work_release(work);
}

static gb_status call_async(gb_group *group, const gb_p2p_op *ops, int count,
                            gb_work **work_p, gb_error *error) {
  static const gbi_coll none = {.root = -1};
  const gbi_group_params *g = gbi_group_params_of(group);
  gbi_works *works = g->p2p->works;
  messages *x = (messages *)gbi_works_take(works);
  if (!x) return gbi_fail(error, GB_ERR_MEMORY, "no memory for a call");
  gb_status status = prepare(x, group, ops, count, error);
  if (status != GB_OK) {
    free(x);
    return status;
  }
  gbi_work_init(&x->work, x->m->works, &none, NULL, NULL, 1);
  atomic_fetch_add(&x->m->works->holds, 1);
  x->work.hook = g->wait_hook;
  x->work.hook_arg = g->wait_hook_arg;
  x->work.done = count == 0;
  atomic_store(&x->work.holds, count ? 2 : 1);
  x->call.done = on_done;
  if (count) status = gbi_p2p_start(x->m->p2p, &x->call, error);
  if (status == GB_OK) {
    *work_p = &x->work;
    return GB_OK;
  }
  unshow(x, false);
  free_ops(x);
  gbi_works_release(x->m->works);
  free(x);
  return status;
}

static gb_status call_sync(gb_group *group, const gb_p2p_op *ops, int count,
                           int *source_p, gb_error *error) {
  const gbi_group_params *g = gbi_group_params_of(group);
  messages x;
  GBI_TRY(prepare(&x, group, ops, count, error));
  gb_status status = gbi_p2p_start(x.m->p2p, &x.call, error);
  if (status == GB_OK)
    status =
        gbi_p2p_wait(x.m->p2p, &x.call, g->wait_hook, g->wait_hook_arg, error);
  unshow(&x, status == GB_OK);
  if (status == GB_OK && source_p) *source_p = source_of(&x);
  free_ops(&x);
  return status;
}

/* Of a job on a GPU: messages of host memory need none of it. */
static gb_status place_of(gbi_gpu *gpu, const gb_p2p_op *ops, int count,
                          bool *on_gpu_p, gb_error *error) {
  int host = 0, device = 0;
  for (int i = 0; gpu && i < count; i++) {
    if (!ops[i].buffer.count) continue;
    if (gbi_gpu_is_host_memory(gpu, ops[i].buffer.data))
      host++;
    else
      device++;
  }
  if (host && device)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "some of a batch's %d messages are in memory of the host "
                    "and others on the GPU: make a batch of each",
                    count);
  *on_gpu_p = gpu && !host;
  return GB_OK;
}

gb_status gbi_group_messages(gb_group *group, const gb_p2p_op *ops, int count,
                             int *source_p, gb_work **work_p, gb_error *error) {
  bool on_gpu = false;
  gbi_gpu *gpu = gbi_group_params_of(group)->gpu;
  GBI_TRY(place_of(gpu, ops, count, &on_gpu, error));
  if (on_gpu && count)
    return gbi_gpu_messages(group, ops, count, source_p, work_p, error);
  if (work_p) return call_async(group, ops, count, work_p, error);
  return count ? call_sync(group, ops, count, source_p, error) : GB_OK;
}
