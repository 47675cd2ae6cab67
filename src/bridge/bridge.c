/* One step is a set of flows. With every other member there are up to four:
 *
 *   contribution out/in  what the other one adds or copies; where nothing is
 *                        to be moved, an empty message that carries the
 *                        identity of the call
 *   result out/in        reduced pieces from the member that owns a segment
 *
 * A flow is a row of messages ("pieces"), at most WINDOW of them posted at a
 * time. Additions happen in member order: the receive of a piece from member k
 * is gated (gbi_xfer.after) by the receive of the same piece from the member
 * before it, so that no byte waits in memory of ours. Own values join at their
 * place; until the members below this one are in, sums live in a scratch.
 *
 * In-place results need no gate: a reduced piece can only come back after the
 * contribution to it has left this memory.
 *
 * Order on a link: a step posts its first message only when all earlier steps
 * have posted all of theirs. Otherwise a message of a step that the other side
 * cannot start yet could sit in front of a result that it needs to get there.
 */
#include "bridge/bridge.h"

#include "base/memory.h"
#include "bridge/step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static gbi_bridge *bridge_of(gbi_comm *comm) {
  return (gbi_bridge *)comm;
}

/* ---- Failing ---- */

static gb_status failed(const gbi_bridge *b, gb_error *error) {
  if (error) *error = b->error;
  return b->error.status;
}

/* The communicator is over: nothing may touch the callers' memory again. */
static void break_bridge(gbi_bridge *b) {
  b->failed = true;
  b->transport->ops->stop(b->transport);
  b->transport->ops->progress(b->transport);
}

static void fail_on(gbi_bridge *b, int peer, gb_status status) {
  int rank = b->members[peer].rank;
  if (status == GB_ERR_CANCELED) {
    gbi_fail(&b->error, status, "the communicator was stopped");
  } else if (b->transport->ops->link_error(b->transport, peer, &b->error) ==
             GB_OK) {
    gbi_fail_rank(&b->error, status, rank,
                  "bridge \"%s\" could not exchange data with rank %d: %s",
                  b->transport->ops->name, rank, gb_status_text(status));
  }
  break_bridge(b);
}

/* ---- Driving ---- */

/* Gives the turn to the next steps, as far as they can take it. */
static void pass_turn(gbi_bridge *b) {
  while (b->turn) {
    gbi_bridge_step *s = b->turn;
    if (!s->slot) {
      s->slot = gbi_bridge_take_slot(b);
      if (!s->slot) return;
      gbi_bridge_begin(b, s);
    }
    if (!gbi_bridge_all_posted(b, s)) return;
    b->turn = s->next;
    if (!b->turn) b->turn_tail = &b->turn;
  }
}

static void start(gbi_comm *comm, const gbi_comm_step *step, void *state) {
  gbi_bridge *b = bridge_of(comm);
  gbi_bridge_step *s = state;
  *s = (gbi_bridge_step){.step = *step, .finished = true};
  comm->moved++;
  if (b->failed) return;
  if (step->kind == GBI_COMM_TRANSFER && comm->me != step->root &&
      comm->me != step->peer)
    return;
  if (comm->members_count == 1 ||
      (step->kind == GBI_COMM_TRANSFER && step->root == step->peer)) {
    gbi_bridge_alone(s);
    return;
  }
  s->finished = false;
  *b->turn_tail = s;
  b->turn_tail = &s->next;
  pass_turn(b);
}

static gb_status advance(gbi_bridge *b, gbi_bridge_step *s) {
  pass_turn(b);
  if (!s->slot) return GB_ERR_BUSY;
  int peer;
  gb_status status = gbi_bridge_advance(b, s, &peer);
  if (status != GB_OK && status != GB_ERR_BUSY) {
    fail_on(b, peer, status);
    return status;
  }
  pass_turn(b);
  if (status == GB_OK) {
    gbi_bridge_give_slot(b, s->slot);
    s->slot = NULL;
    s->finished = true;
    b->base.moved++;
    pass_turn(b);
  }
  return status;
}

static gb_status progress(gbi_comm *comm, void *state, gb_error *error) {
  gbi_bridge *b = bridge_of(comm);
  gbi_bridge_step *s = state;
  if (b->failed) return failed(b, error);
  if (atomic_load_explicit(&b->stopped, memory_order_acquire)) {
    gbi_fail(&b->error, GB_ERR_CANCELED, "the communicator was stopped");
    break_bridge(b);
    return failed(b, error);
  }
  if (s->finished) return GB_OK;
  if (!b->pump) b->pump = s;
  if (b->pump == s) comm->moved += b->transport->ops->progress(b->transport);
  gb_status status = advance(b, s);
  if (s->finished && b->pump == s) b->pump = NULL;
  if (status != GB_OK && status != GB_ERR_BUSY) return failed(b, error);
  return status;
}

static int wait_fds(gbi_comm *comm, int *fds, int max) {
  gbi_bridge *b = bridge_of(comm);
  int fd = b->transport->ops->wait_fd(b->transport);
  if (fd < 0 || max < 1) return 0;
  fds[0] = fd;
  return 1;
}

static int waiting_for(gbi_comm *comm, const void *state, int *members,
                       int max) {
  const gbi_bridge_step *s = state;
  int n = 0;
  for (int side = 0; side < 2 && !n; side++)
    for (int i = 0; i < comm->members_count && n < max; i++)
      if (i != comm->me && !s->finished && gbi_bridge_waits(s, i, side == 0))
        members[n++] = i;
  return n;
}

/* ---- Set-up ---- */

static void address(gbi_comm *comm, gbi_writer *out) {
  gbi_bridge *b = bridge_of(comm);
  b->transport->ops->address(b->transport, out);
}

static gb_status look_far_ahead(gbi_bridge *b, gb_error *error) {
  if (!gbi_bridge_make_slots(b, GBI_BRIDGE_SLOTS_LONG))
    return gbi_fail(error, GB_ERR_MEMORY, "out of memory for a bridge of two");
  b->base.flying = GBI_COMM_FLYING_MAX;
  return GB_OK;
}

static gb_status connect_bridge(gbi_comm *comm, const gbi_reader *addresses,
                                uint64_t deadline_ns, gb_error *error) {
  gbi_bridge *b = bridge_of(comm);
  GBI_TRY(
      b->transport->ops->connect(b->transport, addresses, deadline_ns, error));
  if (comm->members_count != 2) return GB_OK;
  GBI_TRY(gbi_bridge_measure(b, deadline_ns, error));
  return b->rtt_us > GBI_BRIDGE_LONG_RTT_US ? look_far_ahead(b, error) : GB_OK;
}

static void stop(gbi_comm *comm) {
  gbi_bridge *b = bridge_of(comm);
  atomic_store_explicit(&b->stopped, true, memory_order_release);
  b->transport->ops->stop(b->transport);
  if (b->area) gbi_hostarea_ring(b->area, gbi_hostarea_me(b->area));
}

static void close_bridge(gbi_comm *comm) {
  gbi_bridge *b = bridge_of(comm);
  if (b->transport) b->transport->ops->close(b->transport);
  gbi_bridge_free_slots(b);
  free(b->members);
  free(b->scratch);
  free(b);
}

static void describe(const gbi_comm *comm, gbi_fact_fn fn, void *arg) {
  const gbi_bridge *b = (const gbi_bridge *)comm;
  char text[32];
  fn(arg, "transport", b->transport->ops->name);
  if (comm->members_count == 2) {
    snprintf(text, sizeof text, "%llu", (unsigned long long)b->rtt_us);
    fn(arg, "round_trip_us", text);
  }
  gbi_transport_stats stats;
  b->transport->ops->stats(b->transport, &stats);
  snprintf(text, sizeof text, "%llu", (unsigned long long)stats.bytes_sent);
  fn(arg, "bridge.bytes_sent", text);
  snprintf(text, sizeof text, "%llu", (unsigned long long)stats.bytes_received);
  fn(arg, "bridge.bytes_received", text);
  b->transport->ops->describe(b->transport, fn, arg);
}

static const gbi_comm_ops ops = {
    .name = "bridge",
    .state_bytes = sizeof(gbi_bridge_step),
    .address = address,
    .connect = connect_bridge,
    .start = start,
    .progress = progress,
    .wait_fds = wait_fds,
    .waiting_for = waiting_for,
    .stop = stop,
    .close = close_bridge,
    .describe = describe,
};

static gb_status make_memory(gbi_bridge *b, gb_error *error) {
  size_t n = (size_t)b->base.members_count;
  size_t bytes = GBI_BRIDGE_WINDOW * GBI_BRIDGE_PIECE_BYTES;
  b->members = gbi_malloc(n * sizeof *b->members);
  /* Only members above the second collect sums outside their result. */
  b->scratch = gbi_aligned_alloc(4096, b->base.me >= 2 ? bytes : 4096);
  if (!b->members || !b->scratch || !gbi_bridge_make_slots(b, GBI_BRIDGE_SLOTS))
    return gbi_fail(error, GB_ERR_MEMORY, "out of memory for a bridge of %d",
                    b->base.members_count);
  memset(b->scratch, 0, b->base.me >= 2 ? bytes : 4096);
  return GB_OK;
}

gb_status gbi_bridge_open(const gbi_transport_ops *transport,
                          const gbi_transport_params *params, gbi_comm **comm_p,
                          gb_error *error) {
  gbi_bridge *b = gbi_calloc(1, sizeof *b);
  if (!b) return gbi_fail(error, GB_ERR_MEMORY, "out of memory for a bridge");
  b->base = (gbi_comm){
      .ops = &ops, .members_count = params->members_count, .me = params->me};
  b->turn_tail = &b->turn;
  b->area = params->area;
  gb_status status = make_memory(b, error);
  if (status == GB_OK) {
    memcpy(b->members, params->members,
           (size_t)params->members_count * sizeof *b->members);
    status = transport->open(params, &b->transport, error);
  }
  if (status != GB_OK) {
    b->transport = NULL;
    close_bridge(&b->base);
    return status;
  }
  *comm_p = &b->base;
  return GB_OK;
}
