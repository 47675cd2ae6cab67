#include "ccl/host/local.h"

#include "base/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What this member does in a step. */
enum {
  ROLE_NONE,
  ROLE_SEND,  /* publishes src */
  ROLE_TAKE,  /* copies from the root's ring to dst */
  ROLE_FOLD,  /* root of a REDUCE: adds everybody's pieces */
  ROLE_SMALL, /* ALL_REDUCE in one round: publishes, adds everything */
  ROLE_PARTS  /* ALL_REDUCE: adds its part of each piece, copies the others' */
};

/* What the member at a place in the order of additions joins. */
enum {
  JOINS_SUM,   /* one of the first team, or alone in its own */
  BEGINS_TEAM, /* the first of a later team */
  JOINS_TEAM,
  ENDS_TEAM /* joins it, and the team joins the sum */
};

/* ROLE_PARTS. Rounds of K pieces: data 0, data 1, then result j, data j + 2 for
 * each j. Every member runs the same program, one action after the other:
 *
 *   publish data 0, data 1
 *   for each j: combine my part of j and publish it; publish data j + 2;
 *               copy the results of j - 1
 *   copy the results of K - 1
 *
 * The reads come in ascending rounds, and every round is read before the slot's
 * next round is published (2 * AHEAD + 1 < depth), so it cannot wait for
 * itself. */
enum { AHEAD = 2, PART_ALIGN = 64, PIECE_LEAST = 32768 };

typedef struct peer {
  gbi_ring ring;
  void *window;
  uint64_t window_offset;
  gbi_member member;
} peer;

struct gbi_local {
  gbi_hostarea *area;
  peer *peers;
  int count, me;
  uint64_t *moved;
  uint64_t *seen;
  /* Additions: who is added in which order, and how; our own place there. */
  int *order;
  uint8_t *joins;
  int my_place;
  uint8_t *scratch; /* one piece: root's running sum when dst is src */
  uint8_t *team_scratch; /* one piece: the running sum of a team */
  uint64_t window_offset;
  size_t window_bytes, slot_bytes;
  uint64_t next_round;
  gbi_call announced;
  uint64_t chain; /* over every call announced, to find late disagreement */
  gbi_local_step *oldest, *newest;
  /* Oldest step that still publishes, and that still reads: pieces of one
   * publisher are published and taken in order of rounds. */
  gbi_local_step *publishing, *reading;
  int watch; /* whose announcement is looked at next */
  gb_error broken;
  _Atomic bool stopped; /* set by any thread */
};

/* ---- set-up ---- */

/* Whether adding up by teams may differ from adding up by members. */
static bool has_teams(const int *teams, int count) {
  bool one = true, single = true;
  for (int i = 1; teams && i < count; i++) {
    one = one && teams[i] == teams[0];
    for (int j = 0; j < i; j++) single = single && teams[j] != teams[i];
  }
  return teams && !one && !single;
}

/* Teams in the order of their first members, members in theirs. */
static void set_order(gbi_local *local, const int *teams) {
  int n = local->count, placed = 0;
  for (int first = 0; first < n; first++) {
    bool taken = false;
    for (int i = 0; i < placed && !taken; i++)
      taken = local->order[i] == first;
    if (taken) continue;
    int begin = placed;
    for (int i = first; i < n; i++)
      if (!teams || teams[i] == teams[first]) local->order[placed++] = i;
    if (!begin || placed - begin == 1) continue; /* JOINS_SUM */
    for (int i = begin; i < placed; i++) local->joins[i] = JOINS_TEAM;
    local->joins[begin] = BEGINS_TEAM;
    local->joins[placed - 1] = ENDS_TEAM;
  }
  for (int i = 0; i < n; i++)
    if (local->order[i] == local->me) local->my_place = i;
}

/* One piece, touched once, here. */
static uint8_t *new_scratch(const gbi_local *local) {
  uint8_t *scratch = gbi_aligned_alloc(4096, local->slot_bytes);
  if (scratch) memset(scratch, 0, local->slot_bytes);
  return scratch;
}

gb_status gbi_local_open(gbi_hostarea *area, const gbi_member *members,
                         const int *teams, int count, int me, uint64_t *moved,
                         gbi_local **local_p, gb_error *error) {
  if (!has_teams(teams, count)) teams = NULL;
  gbi_local *local = gbi_calloc(1, sizeof *local);
  if (!local) return gbi_fail(error, GB_ERR_MEMORY, "out of memory");
  local->area = area;
  local->count = count;
  local->me = me;
  local->moved = moved;
  local->peers = gbi_calloc((size_t)count, sizeof *local->peers);
  local->seen = gbi_calloc((size_t)count, sizeof *local->seen);
  local->slot_bytes = teams && count >= GBI_LOCAL_CROWD
                          ? GBI_LOCAL_SLOT_BYTES / 2
                          : GBI_LOCAL_SLOT_BYTES;
  local->order = gbi_calloc((size_t)count, sizeof *local->order);
  local->joins = gbi_calloc((size_t)count, sizeof *local->joins);
  local->scratch = new_scratch(local);
  if (teams) local->team_scratch = new_scratch(local);
  gb_status status = GB_OK;
  if (!local->peers || !local->seen || !local->order || !local->joins ||
      !local->scratch || (teams && !local->team_scratch))
    status = gbi_fail(error, GB_ERR_MEMORY, "out of memory");
  local->window_bytes =
      gbi_ring_bytes(count, GBI_LOCAL_DEPTH, local->slot_bytes);
  if (status == GB_OK && count > 1) {
    status = gbi_hostarea_alloc(area, local->window_bytes,
                                &local->window_offset, error);
  }
  if (status != GB_OK) {
    gbi_local_close(local);
    return status;
  }
  set_order(local, teams);
  for (int i = 0; i < count; i++) local->peers[i].member = members[i];
  *local_p = local;
  return GB_OK;
}

void gbi_local_address(const gbi_local *local, gbi_writer *out) {
  gbi_put_u64(out, local->window_offset);
}

gb_status gbi_local_connect(gbi_local *local, gbi_reader *addresses,
                            gb_error *error) {
  if (local->count == 1) return GB_OK;
  for (int i = 0; i < local->count; i++) {
    peer *p = &local->peers[i];
    uint64_t offset = gbi_get_u64(&addresses[i]);
    if (addresses[i].bad)
      return gbi_fail_rank(error, GB_ERR_PROTOCOL, p->member.rank,
                           "rank %d sent a malformed island address",
                           p->member.rank);
    GBI_TRY(gbi_hostarea_map(local->area, offset, local->window_bytes,
                             &p->window, error));
    p->window_offset = offset;
    gbi_ring_init(&p->ring, p->window, local->count, GBI_LOCAL_DEPTH,
                  local->slot_bytes, i, i == local->me ? local->seen : NULL);
  }
  return GB_OK;
}

void gbi_local_stop(gbi_local *local) {
  atomic_store_explicit(&local->stopped, true, memory_order_release);
}

void gbi_local_close(gbi_local *local) {
  if (!local) return;
  for (int i = 0; local->peers && i < local->count; i++)
    gbi_hostarea_leave(local->area, local->peers[i].window,
                       local->peers[i].window_offset, local->window_bytes,
                       local->count);
  free(local->peers);
  free(local->seen);
  free(local->order);
  free(local->joins);
  free(local->scratch);
  free(local->team_scratch);
  free(local);
}

/* ---- the list of steps in flight ---- */

static void settle(gbi_local *local) {
  while (local->publishing && local->publishing->pub_done)
    local->publishing = local->publishing->after;
  while (local->reading && local->reading->read_done)
    local->reading = local->reading->after;
}

static void append(gbi_local *local, gbi_local_step *step) {
  step->before = local->newest;
  step->after = NULL;
  if (local->newest)
    local->newest->after = step;
  else
    local->oldest = step;
  local->newest = step;
  if (!local->publishing) local->publishing = step;
  if (!local->reading) local->reading = step;
  settle(local);
}

static void take_out(gbi_local *local, gbi_local_step *step) {
  settle(local);
  if (step->before)
    step->before->after = step->after;
  else
    local->oldest = step->after;
  if (step->after)
    step->after->before = step->before;
  else
    local->newest = step->before;
}

/* ---- starting ---- */

/* Several pieces let the copies of the two sides overlap; tiny ones cost a
 * wake each. */
static size_t piece_bytes_of(const gbi_local *local, size_t bytes) {
  size_t piece = (bytes / 4 + 4095) / 4096 * 4096;
  return GBI_MIN(GBI_MAX(piece, PIECE_LEAST), local->slot_bytes);
}

static uint8_t role_of(const gbi_local *local, const gbi_local_step *step) {
  const gbi_comm_step *what = &step->what;
  bool root = local->me == what->root;
  if (!step->bytes || local->count == 1) return ROLE_NONE;
  switch (what->kind) {
    case GBI_COMM_REDUCE: return root ? ROLE_FOLD : ROLE_SEND;
    case GBI_COMM_BROADCAST: return root ? ROLE_SEND : ROLE_TAKE;
    case GBI_COMM_TRANSFER:
      if (what->root == what->peer) return ROLE_NONE;
      if (root) return ROLE_SEND;
      return local->me == what->peer ? ROLE_TAKE : ROLE_NONE;
    default:
      return step->bytes <= GBI_LOCAL_SMALL_BYTES ? ROLE_SMALL : ROLE_PARTS;
  }
}

static bool takes_part_alone(const gbi_local *local,
                             const gbi_comm_step *what) {
  if (what->kind == GBI_COMM_TRANSFER)
    return what->root == what->peer && local->me == what->root;
  return local->count == 1 && what->kind != GBI_COMM_BROADCAST;
}

static void announce(gbi_local *local, const gbi_call *call) {
  if (local->count == 1 || gbi_call_equal(&local->announced, call)) return;
  local->announced = *call;
  uint64_t words[3];
  memcpy(words, call, sizeof words);
  for (int i = 0; i < 3; i++) {
    local->chain = (local->chain ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15);
    local->chain ^= local->chain >> 29;
  }
  gbi_ring_announce(&local->peers[local->me].ring, call);
}

void gbi_local_start(gbi_local *local, const gbi_comm_step *what,
                     gbi_local_step *step) {
  size_t bytes = what->count * gb_dtype_bytes(what->dtype);
  bool all_reduce = what->kind == GBI_COMM_ALL_REDUCE;
  *step = (gbi_local_step){
      .what = *what, .bytes = bytes, .first_round = local->next_round,
      .reduce = gbi_reduce_kernel(what->dtype, what->redop),
      .combine = gbi_combine_kernel(what->dtype, what->redop)};
  step->piece_bytes = all_reduce && bytes <= GBI_LOCAL_SMALL_BYTES
                          ? GBI_LOCAL_SMALL_BYTES
                          : piece_bytes_of(local, bytes);
  step->pieces =
      (uint32_t)((bytes + step->piece_bytes - 1) / step->piece_bytes);
  step->role = role_of(local, step);
  bool publishes = step->role != ROLE_NONE && step->role != ROLE_TAKE &&
                   step->role != ROLE_FOLD;
  step->pub_done = !publishes;
  step->read_done = step->role == ROLE_NONE || step->role == ROLE_SEND;
  /* A result per piece as well, unless everybody adds everything. */
  bool results = all_reduce && bytes > GBI_LOCAL_SMALL_BYTES;
  local->next_round += (uint64_t)step->pieces * (results ? 2 : 1);
  if (takes_part_alone(local, what) && what->dst && what->dst != what->src &&
      bytes)
    memcpy(what->dst, what->src, bytes);
  announce(local, &what->call);
  step->chain = local->chain;
  append(local, step);
}

/* ---- pieces ---- */

static size_t piece_at(const gbi_local_step *step, uint32_t piece) {
  return (size_t)piece * step->piece_bytes;
}

static size_t piece_size(const gbi_local_step *step, uint32_t piece) {
  return GBI_MIN(step->piece_bytes, step->bytes - piece_at(step, piece));
}

static uint64_t data_round(const gbi_local_step *step, uint32_t piece) {
  uint64_t round = piece;
  if (step->role == ROLE_PARTS && piece >= AHEAD) round += piece - AHEAD + 1;
  return step->first_round + round;
}

static uint64_t result_round(const gbi_local_step *step, uint32_t piece) {
  return step->first_round + piece + GBI_MIN(piece + AHEAD, step->pieces);
}

/* Part of member i within a piece of `bytes`: [*at_p, *at_p + return). */
static size_t part_of(const gbi_local *local, size_t bytes, int i,
                      size_t *at_p) {
  size_t units = (bytes + PART_ALIGN - 1) / PART_ALIGN;
  size_t n = (size_t)local->count, k = (size_t)i;
  size_t at = GBI_MIN(units * k / n * PART_ALIGN, bytes);
  size_t end = GBI_MIN(units * (k + 1) / n * PART_ALIGN, bytes);
  *at_p = at;
  return end - at;
}

/* ---- bells ---- */

static void ring_member(const gbi_local *local, int i) {
  gbi_hostarea_ring(local->area, local->peers[i].member.local);
}

static void publish(gbi_local *local, gbi_local_step *step, uint64_t round,
                    size_t bytes, int to) {
  gbi_ring_publish(&local->peers[local->me].ring, round, &step->what.call,
                   step->what.step, step->chain, bytes, to);
  ++*local->moved;
  for (int i = 0; i < local->count; i++)
    if (i != local->me && (to == GBI_RING_ALL || to == i))
      ring_member(local, i);
}

static void consume(gbi_local *local, int from, uint64_t round) {
  ++*local->moved;
  if (from == local->me) return;
  if (gbi_ring_consume(&local->peers[from].ring, local->me, round))
    ring_member(local, from);
}

/* ---- disagreement ---- */

static gb_status fail_step(gbi_local *local, gb_status status) {
  /* Others that sleep look at our announcement or our end sooner. */
  for (int i = 0; i < local->count; i++)
    if (i != local->me) ring_member(local, i);
  return status;
}

/* Our call number `seq` against what `other` announced under that number. */
static gb_status compare_notice(gbi_local *local, uint64_t seq, int other,
                                gb_error *error) {
  gbi_call mine, theirs;
  const peer *me = &local->peers[local->me], *p = &local->peers[other];
  if (other == local->me || !gbi_ring_noticed(&me->ring, seq, &mine) ||
      !gbi_ring_noticed(&p->ring, seq, &theirs) ||
      gbi_call_equal(&mine, &theirs))
    return GB_OK;
  return gbi_fail_mismatch(error, me->member.rank, &mine, p->member.rank,
                           &theirs);
}

/* While a step waits for `other`: has it, or any other, called something else,
 * now or just before? One more member a time, so that a wait costs the same at
 * any size. */
static gb_status wait_for(gbi_local *local, const gbi_local_step *step,
                          int other, gb_error *error) {
  uint64_t seq = step->what.call.seq;
  gb_status status = compare_notice(local, seq, other, error);
  local->watch = (local->watch + 1) % local->count;
  if (status == GB_OK) status = compare_notice(local, seq, local->watch, error);
  if (status == GB_OK)
    status = compare_notice(local, seq - 1, local->watch, error);
  if (status != GB_OK) return fail_step(local, status);
  return GB_ERR_BUSY;
}

/* Both made this call, but not the same calls before it: a member that is done
 * without hearing from everybody learns of it here. */
static gb_status fail_history(gbi_local *local, const gbi_local_step *step,
                              int other, gb_error *error) {
  for (uint64_t k = 1; k < GBI_RING_NOTICES; k++) {
    gb_status status =
        compare_notice(local, step->what.call.seq - k, other, error);
    if (status != GB_OK) return fail_step(local, status);
  }
  int mine = local->peers[local->me].member.rank;
  int theirs = local->peers[other].member.rank;
  char text[160];
  gbi_call_text(&step->what.call, text, sizeof text);
  return fail_step(local, gbi_fail_rank(
      error, GB_ERR_MISMATCH, theirs,
      "ranks disagree: rank %d and rank %d made different calls before %s",
      mine, theirs, text));
}

static gb_status check_head(gbi_local *local, const gbi_local_step *step,
                            int from, const gbi_slot *slot, uint64_t round,
                            size_t bytes, gb_error *error) {
  const gbi_comm_step *what = &step->what;
  if (GBI_LIKELY(gbi_call_equal(&slot->call, &what->call) &&
                 slot->round == round && slot->tag == what->step &&
                 slot->bytes == bytes && slot->chain == step->chain))
    return GB_OK;
  int rank = local->peers[from].member.rank;
  if (!gbi_call_equal(&slot->call, &what->call))
    return fail_step(local, gbi_fail_mismatch(
        error, local->peers[local->me].member.rank, &what->call, rank,
        &slot->call));
  if (slot->chain != step->chain)
    return fail_history(local, step, from, error);
  return fail_step(local, gbi_fail_rank(
      error, GB_ERR_PROTOCOL, rank,
      "rank %d published %" PRIu64 " bytes for step %" PRIu64 " where %zu for "
      "step %u were due", rank, slot->bytes, slot->tag, bytes, what->step));
}

/* The data of `from` for `round`. */
static gb_status look(gbi_local *local, const gbi_local_step *step, int from,
                      uint64_t round, size_t bytes, const void **data_p,
                      gb_error *error) {
  const gbi_slot *slot = gbi_ring_peek(&local->peers[from].ring, round);
  if (!slot) return wait_for(local, step, from, error);
  GBI_TRY(check_head(local, step, from, slot, round, bytes, error));
  *data_p = gbi_slot_data(slot);
  return GB_OK;
}

/* Room in our own ring. */
static gb_status find_room(gbi_local *local, const gbi_local_step *step,
                           uint64_t round, void **data_p, gb_error *error) {
  gbi_ring *ring = &local->peers[local->me].ring;
  *data_p = gbi_ring_room(ring, round);
  if (*data_p) return GB_OK;
  int holder = local->me;
  gbi_ring_holders(ring, round, &holder, 1);
  return wait_for(local, step, holder, error);
}

/* ---- actions: OK when the piece (or one member's share of it) is through ----
 */

static int readers_of(const gbi_comm_step *what) {
  switch (what->kind) {
    case GBI_COMM_REDUCE: return what->root;
    case GBI_COMM_TRANSFER: return what->peer;
    case GBI_COMM_BROADCAST: return GBI_RING_ALL;
    default: return GBI_RING_ALL;
  }
}

static gb_status publish_data(gbi_local *local, gbi_local_step *step,
                              gb_error *error) {
  if (local->publishing != step) return GB_ERR_BUSY;
  uint64_t round = data_round(step, step->published);
  size_t bytes = piece_size(step, step->published), at = bytes, own = 0;
  const uint8_t *src =
      (const uint8_t *)step->what.src + piece_at(step, step->published);
  void *room;
  GBI_TRY(find_room(local, step, round, &room, error));
  /* Nobody but us needs our own part of the piece. */
  if (step->role == ROLE_PARTS) own = part_of(local, bytes, local->me, &at);
  memcpy(room, src, at);
  if (at + own < bytes)
    memcpy((uint8_t *)room + at + own, src + at + own, bytes - at - own);
  publish(local, step, round, bytes, readers_of(&step->what));
  step->published++;
  return GB_OK;
}

static gb_status take_piece(gbi_local *local, gbi_local_step *step,
                            gb_error *error) {
  if (local->reading != step) return GB_ERR_BUSY;
  uint64_t round = data_round(step, step->copied);
  size_t bytes = piece_size(step, step->copied);
  const void *data;
  GBI_TRY(look(local, step, step->what.root, round, bytes, &data, error));
  memcpy((uint8_t *)step->what.dst + piece_at(step, step->copied), data, bytes);
  consume(local, step->what.root, round);
  step->copied++;
  return GB_OK;
}

/* data joins *sum_p in `to`, where that may lie already. */
static void add_to(const gbi_local_step *step, const void **sum_p, void *to,
                   const void *data, size_t count) {
  if (*sum_p == to)
    step->reduce(to, data, count);
  else
    step->combine(to, *sum_p, data, count);
  *sum_p = to;
}

/* The piece of the member whose place it is joins the sum in `to`. It stays in
 * its ring until the whole piece is added up: sums begin where it lies. */
static void add_member(gbi_local *local, gbi_local_step *step, void *to,
                       const void *data, size_t count) {
  int joins = local->joins[step->member];
  if (step->member == 0) {
    step->sum = data;
  } else if (joins == JOINS_SUM) {
    add_to(step, &step->sum, to, data, count);
  } else if (joins == BEGINS_TEAM) {
    step->team = data;
  } else {
    add_to(step, &step->team, local->team_scratch, data, count);
    if (joins == ENDS_TEAM) add_to(step, &step->sum, to, step->team, count);
  }
  step->member++;
  ++*local->moved;
}

/* All are through with a piece that is added up. */
static void consume_all(gbi_local *local, gbi_local_step *step,
                        uint64_t round) {
  for (int m = 0; m < local->count; m++) consume(local, m, round);
  step->member = 0;
}

/* Everybody's piece into the root's sum. That lives in dst, unless dst is src
 * and our own value is still to come. */
static gb_status fold_piece(gbi_local *local, gbi_local_step *step,
                            gb_error *error) {
  if (local->reading != step) return GB_ERR_BUSY;
  uint64_t round = data_round(step, step->combined);
  size_t bytes = piece_size(step, step->combined);
  size_t count = bytes / gb_dtype_bytes(step->what.dtype);
  size_t at = piece_at(step, step->combined);
  uint8_t *dst = (uint8_t *)step->what.dst + at;
  while (step->member < local->count) {
    int m = local->order[step->member];
    const void *data = (const uint8_t *)step->what.src + at;
    if (m != local->me)
      GBI_TRY(look(local, step, m, round, bytes, &data, error));
    bool hidden =
        step->what.src == step->what.dst && step->member < local->my_place;
    add_member(local, step, hidden ? local->scratch : dst, data, count);
  }
  consume_all(local, step, round);
  step->combined++;
  return GB_OK;
}

/* Everybody's value is in a ring, ours too, so dst may be src. */
static gb_status add_small(gbi_local *local, gbi_local_step *step,
                           gb_error *error) {
  if (local->reading != step) return GB_ERR_BUSY;
  uint64_t round = step->first_round;
  while (step->member < local->count) {
    const void *data;
    GBI_TRY(look(local, step, local->order[step->member], round, step->bytes,
                 &data, error));
    add_member(local, step, step->what.dst, data, step->what.count);
  }
  consume_all(local, step, round);
  step->copied = 1;
  return GB_OK;
}

/* Our part of a piece over all members, in our ring. */
static gb_status combine_part(gbi_local *local, gbi_local_step *step,
                              gb_error *error) {
  if (local->reading != step || local->publishing != step) return GB_ERR_BUSY;
  uint32_t piece = step->combined;
  uint64_t round = data_round(step, piece), to = result_round(step, piece);
  size_t bytes = piece_size(step, piece), at;
  size_t part = part_of(local, bytes, local->me, &at);
  size_t count = part / gb_dtype_bytes(step->what.dtype);
  const uint8_t *own =
      (const uint8_t *)step->what.src + piece_at(step, piece) + at;
  void *sum;
  GBI_TRY(find_room(local, step, to, &sum, error));
  while (step->member < local->count) {
    int m = local->order[step->member];
    const void *data = own;
    if (m != local->me) {
      GBI_TRY(look(local, step, m, round, bytes, &data, error));
      data = (const uint8_t *)data + at;
    }
    add_member(local, step, sum, data, count);
  }
  consume_all(local, step, round);
  publish(local, step, to, part, GBI_RING_ALL);
  step->combined++;
  return GB_OK;
}

static gb_status copy_results(gbi_local *local, gbi_local_step *step,
                              gb_error *error) {
  if (local->reading != step) return GB_ERR_BUSY;
  uint32_t piece = step->copied;
  uint64_t round = result_round(step, piece);
  size_t bytes = piece_size(step, piece), at;
  uint8_t *dst = (uint8_t *)step->what.dst + piece_at(step, piece);
  for (; step->member < local->count; step->member++) {
    const void *data;
    size_t part = part_of(local, bytes, step->member, &at);
    GBI_TRY(look(local, step, step->member, round, part, &data, error));
    memcpy(dst + at, data, part);
    consume(local, step->member, round);
  }
  step->member = 0;
  step->copied++;
  return GB_OK;
}

/* ---- programs ---- */

static gb_status run_parts(gbi_local *local, gbi_local_step *step,
                           gb_error *error) {
  uint32_t all = step->pieces;
  if (step->published < GBI_MIN(step->combined + AHEAD, all))
    return publish_data(local, step, error);
  if (step->copied + 1 < step->combined || step->combined == all)
    return copy_results(local, step, error);
  return combine_part(local, step, error);
}

/* The next action of the step. */
static gb_status run_one(gbi_local *local, gbi_local_step *step,
                         gb_error *error) {
  switch (step->role) {
    case ROLE_SEND: return publish_data(local, step, error);
    case ROLE_TAKE: return take_piece(local, step, error);
    case ROLE_FOLD: return fold_piece(local, step, error);
    case ROLE_SMALL:
      return step->published ? add_small(local, step, error)
                             : publish_data(local, step, error);
    default: return run_parts(local, step, error);
  }
}

static void note_done(gbi_local *local, gbi_local_step *step) {
  uint32_t all = step->pieces;
  switch (step->role) {
    case ROLE_SEND: step->pub_done = step->published == all; break;
    case ROLE_TAKE: step->read_done = step->copied == all; break;
    case ROLE_FOLD: step->read_done = step->combined == all; break;
    case ROLE_SMALL:
      step->pub_done = step->published == 1;
      step->read_done = step->copied == 1;
      break;
    default:
      step->pub_done = step->combined == all;
      step->read_done = step->copied == all;
  }
  if (step->pub_done || step->read_done) settle(local);
}

static gb_status stay_broken(gbi_local *local, gb_error *error) {
  local->oldest = local->newest = local->publishing = local->reading = NULL;
  if (error) *error = local->broken;
  return local->broken.status;
}

/* A step in which not everybody hears from everybody: whoever started its call
 * last sees here what all the others called. */
static gb_status compare_all(gbi_local *local, const gbi_local_step *step,
                             gb_error *error) {
  if (step->role == ROLE_SMALL || step->role == ROLE_PARTS) return GB_OK;
  for (int i = 0; i < local->count; i++) {
    gb_status status = compare_notice(local, step->what.call.seq, i, error);
    if (status != GB_OK) return fail_step(local, status);
  }
  return GB_OK;
}

static gb_status run_all(gbi_local *local, gbi_local_step *step,
                         gb_error *error) {
  while (!step->pub_done || !step->read_done) {
    GBI_TRY(run_one(local, step, error));
    note_done(local, step);
  }
  return local->count > 1 ? compare_all(local, step, error) : GB_OK;
}

gb_status gbi_local_progress(gbi_local *local, gbi_local_step *step,
                             gb_error *error) {
  if (GBI_UNLIKELY(local->broken.status)) return stay_broken(local, error);
  if (GBI_UNLIKELY(atomic_load_explicit(&local->stopped,
                                        memory_order_acquire)))
    return gbi_fail(error, GB_ERR_CANCELED, "the group was stopped");
  gb_status status = run_all(local, step, error);
  if (status == GB_ERR_BUSY) return status;
  if (status == GB_OK) {
    take_out(local, step);
    return GB_OK;
  }
  if (error) local->broken = *error;
  local->broken.status = status;
  return stay_broken(local, error);
}

/* ---- for error texts ---- */

static int missing_in(const gbi_local *local, uint64_t round, int only,
                      int *members, int max) {
  int n = 0;
  for (int i = 0; i < local->count && n < max; i++)
    if ((only < 0 || only == i) && i != local->me &&
        !gbi_ring_peek(&local->peers[i].ring, round))
      members[n++] = i;
  return n;
}

int gbi_local_waiting_for(const gbi_local *local, const gbi_local_step *step,
                          int *members, int max) {
  if (local->broken.status || local->count == 1) return 0;
  bool publishes = step->role == ROLE_SEND ||
                   (step->role == ROLE_SMALL && !step->published) ||
                   (step->role == ROLE_PARTS && step->published < step->pieces);
  /* What holds up a step that has to wait for its turn is an older one. */
  if (publishes && local->publishing) step = local->publishing;
  else if (!publishes && local->reading) step = local->reading;
  const gbi_ring *own = &local->peers[local->me].ring;
  switch (step->role) {
    case ROLE_SEND:
      return gbi_ring_holders(own, data_round(step, step->published), members,
                              max);
    case ROLE_TAKE:
      return missing_in(local, data_round(step, step->copied), step->what.root,
                        members, max);
    case ROLE_FOLD:
    case ROLE_SMALL:
      return missing_in(local, data_round(step, step->combined), -1, members,
                        max);
    case ROLE_PARTS: {
      bool results = step->combined == step->pieces ||
                     step->copied + 1 < step->combined;
      uint64_t round = results ? result_round(step, step->copied)
                               : data_round(step, step->combined);
      int n = missing_in(local, round, -1, members, max);
      if (n) return n;
      round = step->published < step->pieces
                  ? data_round(step, step->published)
                  : result_round(step, step->combined);
      return gbi_ring_holders(own, round, members, max);
    }
    default: return 0;
  }
}
