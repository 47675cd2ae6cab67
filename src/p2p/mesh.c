#include "p2p/mesh.h"

#include "base/memory.h"
#include "p2p/state.h"

#include <stdlib.h>
#include <string.h>

typedef struct gbi_mesh {
  gbi_comm base;
  gbi_p2p *p2p;
  uint32_t group;
  int *members; /* global ranks */
  /* The engine's thread only. */
  const void *leader; /* the step whose progress drives for all */
  int flying;         /* steps started and not yet seen to be done */
  bool drives;        /* took the driver's place; it may have lost it since */
  uint32_t seen;      /* of the bell, before the last round */
  bool armed;
} gbi_mesh;

typedef struct mesh_step {
  gbi_p2p_call call;
  gbi_p2p_op op;
  int peer; /* index */
} mesh_step;

static gbi_mesh *mesh_of(gbi_comm *comm) { return (gbi_mesh *)comm; }

static void address(gbi_comm *comm, gbi_writer *out) {}

static gb_status connect_mesh(gbi_comm *comm, const gbi_reader *addresses,
                              uint64_t deadline_ns, gb_error *error) {
  return GB_OK;
}

static void start(gbi_comm *comm, const gbi_comm_step *step, void *state) {
  gbi_mesh *m = mesh_of(comm);
  mesh_step *s = state;
  bool sends = step->kind == GBI_COMM_SEND;
  memset(s, 0, sizeof *s);
  s->peer = step->peer;
  s->call.ops = &s->op;
  s->call.count = 1;
  s->call.mesh = m;
  s->op.is_send = sends;
  s->op.class = GBI_P2P_MESH;
  s->op.group = m->group;
  s->op.peer = m->members[step->peer];
  s->op.tag = step->call.seq;
  s->op.step = step->step;
  s->op.call = step->call;
  s->op.data = sends ? (void *)(uintptr_t)step->src : step->dst;
  s->op.count = step->count;
  s->op.dtype = step->dtype;
  gb_status status = gbi_p2p_start(m->p2p, &s->call, NULL);
  if (status != GB_OK) atomic_store(&s->call.status, status);
  m->flying++;
  comm->moved++;
}

static gb_status fail(gbi_mesh *m, gb_status status, gb_error *error) {
  gb_error why;
  if (gbi_p2p_error(m->p2p, &why) == GB_OK &&
      !gbi_control_failed(m->p2p->params.control, &why))
    return gbi_fail(error, status, "a message could not be started: %s",
                    gb_status_text(status));
  if (error) *error = why;
  return why.status;
}

/* Under lock: becomes or stays the one who drives, if nobody waits for
 * messages alone. */
static bool may_drive(gbi_mesh *m) {
  gbi_p2p *p = m->p2p;
  if (p->role == GBI_ROLE_MESH) return p->driver == m;
  if (p->role == GBI_ROLE_WAITER) return false;
  p->role = GBI_ROLE_MESH;
  p->driver = m;
  return true;
}

static void release(gbi_mesh *m) {
  if (m->p2p->role == GBI_ROLE_MESH && m->p2p->driver == m)
    gbi_p2p_release_role(m->p2p);
}

static void round_of(gbi_mesh *m) {
  gbi_p2p *p = m->p2p;
  gbi_p2p_lock(p);
  m->drives = may_drive(m);
  if (m->drives) {
    m->seen = gbi_bell_look(p->waiter);
    unsigned did = gbi_p2p_pass(p);
    m->base.moved += did;
    if (!did) gbi_p2p_look_around(p);
  }
  gbi_p2p_unlock(p);
}

/* The last step in flight is done: another mesh, or whoever waits, drives from
 * here on. The step may have ended on another thread (a link that came up sends
 * what was queued), so this does not depend on a round of ours. */
static void let_go(gbi_mesh *m) {
  gbi_p2p_lock(m->p2p);
  release(m);
  gbi_p2p_unlock(m->p2p);
  m->drives = false;
}

static void disarm(gbi_mesh *m) {
  if (m->armed) gbi_waiter_disarm(m->p2p->waiter);
  m->armed = false;
}

static gb_status progress(gbi_comm *comm, void *state, gb_error *error) {
  gbi_mesh *m = mesh_of(comm);
  mesh_step *s = state;
  disarm(m);
  int status = atomic_load_explicit(&s->call.status, memory_order_acquire);
  if (status == GB_ERR_BUSY && (!m->leader || m->leader == state)) {
    m->leader = state;
    round_of(m);
    status = atomic_load_explicit(&s->call.status, memory_order_acquire);
  }
  if (status == GB_ERR_BUSY) return GB_ERR_BUSY;
  if (m->leader == state) m->leader = NULL;
  if (--m->flying == 0 && m->drives) let_go(m);
  comm->moved++;
  return status == GB_OK ? GB_OK : fail(m, (gb_status)status, error);
}

/* Called right before the engine sleeps: whoever drives must wake from what
 * wakes the links. The others are rung when something of theirs ends, or when
 * the driver's place is free. */
static int wait_fds(gbi_comm *comm, int *fds, int max) {
  gbi_mesh *m = mesh_of(comm);
  gbi_p2p *p = m->p2p;
  gbi_p2p_lock(p);
  bool drives = p->role == GBI_ROLE_MESH && p->driver == m;
  bool network = p->network_count > 0;
  if (drives && max < 2) gbi_p2p_release_role(p);
  gbi_p2p_unlock(p);
  if (!drives || max < 2) return 0;
  if (!m->armed) gbi_waiter_arm(p->waiter, m->seen);
  m->armed = true;
  fds[0] = p->waiter->event_fd;
  fds[1] = p->epoll_fd;
  return network ? 2 : 1;
}

static int waiting_for(gbi_comm *comm, const void *state, int *members,
                       int max) {
  const mesh_step *s = state;
  if (max < 1 || atomic_load(&s->call.status) != GB_ERR_BUSY) return 0;
  members[0] = s->peer;
  return 1;
}

/* Under lock. */
static bool has_calls(const gbi_mesh *m) {
  for (const gbi_p2p_op *op = m->p2p->all; op; op = op->all_next)
    if (op->owner->mesh == m) return true;
  return false;
}

/* The steps' memory goes back to the engine's caller at any time after this:
 * with steps on their way all links end, as does the job. */
static void stop(gbi_comm *comm) {
  gbi_mesh *m = mesh_of(comm);
  gbi_p2p *p = m->p2p;
  gb_error why;
  gbi_p2p_lock(p);
  if (has_calls(m)) {
    if (!gbi_control_failed(p->params.control, &why))
      gbi_fail(&why, GB_ERR_CANCELED, "the communicator was stopped");
    gbi_p2p_end_all(p, &why);
  }
  release(m);
  gbi_p2p_unlock(p);
  gbi_hostarea_ring(p->params.area, gbi_hostarea_me(p->params.area));
}

static void close_mesh(gbi_comm *comm) {
  gbi_mesh *m = mesh_of(comm);
  disarm(m);
  free(m->members);
  free(m);
}

static void describe(const gbi_comm *comm, gbi_fact_fn fn, void *arg) {
  fn(arg, "mesh", "p2p");
}

static const gbi_comm_ops ops = {
    .name = "mesh",
    .state_bytes = sizeof(mesh_step),
    .address = address,
    .connect = connect_mesh,
    .start = start,
    .progress = progress,
    .wait_fds = wait_fds,
    .waiting_for = waiting_for,
    .stop = stop,
    .close = close_mesh,
    .describe = describe,
};

gb_status gbi_mesh_open(gbi_p2p *p2p, uint32_t group, const int *members,
                        int count, int me, gbi_comm **comm_p,
                        gb_error *error) {
  gbi_mesh *m = gbi_calloc(1, sizeof *m);
  int *copy = gbi_malloc(sizeof *copy * (size_t)count);
  if (!m || !copy) {
    free(m);
    free(copy);
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for a mesh");
  }
  memcpy(copy, members, sizeof *copy * (size_t)count);
  m->base = (gbi_comm){.ops = &ops, .members_count = count, .me = me};
  m->p2p = p2p;
  m->group = group;
  m->members = copy;
  *comm_p = &m->base;
  return GB_OK;
}
