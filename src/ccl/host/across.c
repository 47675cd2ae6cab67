#include "ccl/host/across.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* Chunks under way, and their size: what a host's leader must keep aside lies
 * in scratch, what goes straight to its result may be larger. */
enum {
  FLIGHT = 4,
  KEPT_BYTES = 128 * 1024,
  DIRECT_BYTES = 1024 * 1024
};

/* Stages of a chunk, by kind of step:
 *              GATHER (host)        CROSS (leaders)   SPREAD (host)
 *   REDUCE     reduce to leader     reduce            root's: to root
 *   ALL_REDUCE reduce to leader     all_reduce        broadcast from leader
 *   BROADCAST  root's: broadcast    broadcast         others: from leader
 *   TRANSFER   root's: to leader    transfer          peer's: to peer
 *
 * Members of a host must start the same local steps in the same order, while a
 * leader is held up by the bridge and the others are not. So the order is
 * fixed: GATHER(k + FLIGHT - 1), SPREAD(k), GATHER(k + FLIGHT), ... */
enum { GATHER, CROSS, SPREAD, STAGES };
enum { WAITING, RUNNING, DONE };

typedef struct chunk {
  uint8_t state[STAGES];
  gbi_local_step local[STAGES]; /* CROSS: unused */
  void *cross;                  /* the bridge's state; leaders */
  uint8_t *scratch;             /* KEPT_BYTES; leaders */
} chunk;

struct gbi_across {
  gbi_across_map map;
  gbi_local *local;
  gbi_comm *bridge;
  int group;
  bool leads;
  chunk chunks[FLIGHT];
  gbi_across_step *oldest, *newest;
  /* The oldest step's program. */
  bool loaded;
  size_t chunk_count; /* elements */
  size_t total;       /* chunks */
  size_t next[STAGES], finished;
  uint32_t crossings; /* CROSS stages begun, alike on every leader */
  gb_error broken;
};

gb_status gbi_across_open(const gbi_across_map *map, gbi_local *local,
                          gbi_comm *bridge, gbi_across **across_p,
                          gb_error *error) {
  gbi_across *a = gbi_calloc(1, sizeof *a);
  if (!a) return gbi_fail(error, GB_ERR_MEMORY, "out of memory");
  a->map = *map;
  a->local = local;
  a->bridge = bridge;
  a->group = map->group[map->me];
  a->leads = bridge != NULL;
  for (int i = 0; a->leads && i < FLIGHT; i++) {
    size_t bytes = (bridge->ops->state_bytes + 63) / 64 * 64;
    a->chunks[i].cross = gbi_aligned_alloc(64, bytes);
    a->chunks[i].scratch = gbi_aligned_alloc(4096, KEPT_BYTES);
    if (!a->chunks[i].cross || !a->chunks[i].scratch) {
      gbi_across_close(a);
      return gbi_fail(error, GB_ERR_MEMORY, "out of memory");
    }
    memset(a->chunks[i].cross, 0, bytes); /* touched once, here */
    memset(a->chunks[i].scratch, 0, KEPT_BYTES);
  }
  *across_p = a;
  return GB_OK;
}

void gbi_across_close(gbi_across *a) {
  if (!a) return;
  for (int i = 0; i < FLIGHT; i++) {
    free(a->chunks[i].cross);
    free(a->chunks[i].scratch);
  }
  free(a);
}

void gbi_across_start(gbi_across *a, const gbi_comm_step *what,
                      gbi_across_step *step) {
  *step = (gbi_across_step){.what = *what};
  if (a->newest)
    a->newest->after = step;
  else
    a->oldest = step;
  a->newest = step;
}

/* ---- what a stage is for this member; false: nothing ---- */

typedef struct place {
  const uint8_t *src;
  uint8_t *dst, *scratch;
  int root_group, peer_group, root_local, peer_local;
  bool is_root, is_peer;
} place;

static place place_of(const gbi_across *a, const gbi_comm_step *what,
                      size_t k) {
  size_t at = k * a->chunk_count * gb_dtype_bytes(what->dtype);
  const gbi_across_map *map = &a->map;
  return (place){
      .src = what->src ? (const uint8_t *)what->src + at : NULL,
      .dst = what->dst ? (uint8_t *)what->dst + at : NULL,
      .scratch = a->chunks[k % FLIGHT].scratch,
      .root_group = map->group[what->root],
      .peer_group = map->group[what->peer],
      .root_local = map->local_index[what->root],
      .peer_local = map->local_index[what->peer],
      .is_root = map->me == what->root,
      .is_peer = map->me == what->peer};
}

static bool set(gbi_comm_step *step, gbi_comm_kind kind, int root, int peer,
                const void *src, void *dst) {
  step->kind = kind;
  step->root = root;
  step->peer = peer;
  step->src = src;
  step->dst = dst;
  return true;
}

static bool gather_stage(const gbi_across *a, const place *p,
                         gbi_comm_step *step) {
  bool root_here = a->group == p->root_group;
  switch (step->kind) {
    case GBI_COMM_REDUCE:
      return set(step, GBI_COMM_REDUCE, 0, 0, p->src,
                 p->is_root ? p->dst : p->scratch);
    case GBI_COMM_ALL_REDUCE:
      return set(step, GBI_COMM_REDUCE, 0, 0, p->src, p->dst);
    case GBI_COMM_BROADCAST:
      return root_here && set(step, GBI_COMM_BROADCAST, p->root_local, 0,
                              p->src, p->dst);
    default:
      if (!root_here) return false;
      if (p->root_group == p->peer_group)
        return set(step, GBI_COMM_TRANSFER, p->root_local, p->peer_local,
                   p->src, p->dst);
      return p->root_local && set(step, GBI_COMM_TRANSFER, p->root_local, 0,
                                  p->src, p->scratch);
  }
}

static bool cross_stage(const gbi_across *a, const place *p,
                        gbi_comm_step *step) {
  int root = p->root_group, peer = p->peer_group;
  uint8_t *sum = p->is_root ? p->dst : p->scratch;
  if (!a->leads) return false;
  switch (step->kind) {
    case GBI_COMM_REDUCE:
      return set(step, GBI_COMM_REDUCE, root, 0, sum, sum);
    case GBI_COMM_ALL_REDUCE:
      return set(step, GBI_COMM_ALL_REDUCE, 0, 0, p->dst, p->dst);
    case GBI_COMM_BROADCAST:
      return set(step, GBI_COMM_BROADCAST, root, 0,
                 p->is_root ? p->src : p->dst, p->dst);
    default:
      if (root == peer || (a->group != root && a->group != peer)) return false;
      return set(step, GBI_COMM_TRANSFER, root, peer,
                 p->is_root ? p->src : p->scratch,
                 p->is_peer ? p->dst : p->scratch);
  }
}

static bool spread_stage(const gbi_across *a, const place *p,
                         gbi_comm_step *step) {
  bool root_here = a->group == p->root_group;
  switch (step->kind) {
    case GBI_COMM_REDUCE:
      return root_here && p->root_local &&
             set(step, GBI_COMM_TRANSFER, 0, p->root_local, p->scratch, p->dst);
    case GBI_COMM_ALL_REDUCE:
      return set(step, GBI_COMM_BROADCAST, 0, 0, p->dst, p->dst);
    case GBI_COMM_BROADCAST:
      return !root_here &&
             set(step, GBI_COMM_BROADCAST, 0, 0, p->dst, p->dst);
    default:
      return p->root_group != p->peer_group && a->group == p->peer_group &&
             p->peer_local && set(step, GBI_COMM_TRANSFER, 0, p->peer_local,
                                  p->scratch, p->dst);
  }
}

/* ---- running ---- */

static void load(gbi_across *a) {
  const gbi_comm_step *what = &a->oldest->what;
  bool kept =
      what->kind == GBI_COMM_REDUCE || what->kind == GBI_COMM_TRANSFER;
  a->chunk_count =
      (kept ? KEPT_BYTES : DIRECT_BYTES) / gb_dtype_bytes(what->dtype);
  /* An empty step still lets everybody compare what was called. */
  a->total = GBI_MAX((what->count + a->chunk_count - 1) / a->chunk_count, 1);
  memset(a->next, 0, sizeof a->next);
  a->finished = 0;
  a->loaded = true;
}

static void begin_stage(gbi_across *a, int stage) {
  size_t k = a->next[stage]++;
  chunk *c = &a->chunks[k % FLIGHT];
  gbi_comm_step step = a->oldest->what;
  place p = place_of(a, &step, k);
  step.count = GBI_MIN(a->chunk_count, step.count - k * a->chunk_count);
  bool takes_part = stage == GATHER  ? gather_stage(a, &p, &step)
                    : stage == CROSS ? cross_stage(a, &p, &step)
                                     : spread_stage(a, &p, &step);
  c->state[stage] = takes_part ? RUNNING : DONE;
  /* Several chunks of a step are on the bridge at a time: its messages are
   * told apart by the number of the step. */
  if (stage == CROSS) step.step = a->crossings++;
  if (!takes_part) return;
  if (stage == CROSS)
    a->bridge->ops->start(a->bridge, &step, c->cross);
  else
    gbi_local_start(a->local, &step, &c->local[stage]);
}

static bool may_begin(const gbi_across *a, int stage) {
  size_t k = a->next[stage];
  const chunk *c = &a->chunks[k % FLIGHT];
  if (k >= a->total) return false;
  if (stage == GATHER) return k < a->finished + FLIGHT;
  if (k >= a->next[stage - 1] || c->state[stage - 1] != DONE) return false;
  return stage == CROSS || a->next[GATHER] >= GBI_MIN(k + FLIGHT, a->total);
}

static gb_status run_chunk(gbi_across *a, size_t k, bool *moved,
                           gb_error *error) {
  chunk *c = &a->chunks[k % FLIGHT];
  for (int stage = 0; stage < STAGES; stage++) {
    if (k >= a->next[stage] || c->state[stage] != RUNNING) continue;
    gb_status status =
        stage == CROSS
            ? a->bridge->ops->progress(a->bridge, c->cross, error)
            : gbi_local_progress(a->local, &c->local[stage], error);
    if (status == GB_ERR_BUSY) continue;
    if (status != GB_OK) return status;
    c->state[stage] = DONE;
    *moved = true;
  }
  return GB_OK;
}

/* Everything that can be done now for the oldest step. */
static gb_status run_oldest(gbi_across *a, gb_error *error) {
  if (!a->loaded) load(a);
  for (bool moved = true; moved;) {
    moved = false;
    for (int stage = 0; stage < STAGES; stage++)
      while (may_begin(a, stage)) {
        begin_stage(a, stage);
        moved = true;
      }
    for (size_t k = a->finished; k < a->next[GATHER]; k++)
      GBI_TRY(run_chunk(a, k, &moved, error));
    while (a->finished < a->next[SPREAD] &&
           a->chunks[a->finished % FLIGHT].state[SPREAD] == DONE)
      a->finished++;
  }
  if (a->finished < a->total) return GB_ERR_BUSY;
  a->loaded = false;
  a->oldest->done = true;
  a->oldest = a->oldest->after;
  if (!a->oldest) a->newest = NULL;
  return GB_OK;
}

gb_status gbi_across_progress(gbi_across *a, gbi_across_step *step,
                              gb_error *error) {
  while (!step->done && a->broken.status == GB_OK) {
    gb_error reason;
    gb_status status = run_oldest(a, &reason);
    if (status == GB_ERR_BUSY) return status;
    if (status != GB_OK) a->broken = reason;
  }
  if (step->done) return GB_OK;
  if (error) *error = a->broken;
  return a->broken.status;
}

/* ---- for error texts ---- */

static int member_of(const gbi_across *a, int local_index) {
  for (int i = 0; i < a->map.members_count; i++)
    if (a->map.group[i] == a->group && a->map.local_index[i] == local_index)
      return i;
  return a->map.me;
}

int gbi_across_waiting_for(const gbi_across *a, int *members, int max) {
  if (!a->loaded || a->broken.status != GB_OK) return 0;
  for (size_t k = a->finished; k < a->next[GATHER]; k++) {
    const chunk *c = &a->chunks[k % FLIGHT];
    for (int stage = 0; stage < STAGES; stage++) {
      if (k >= a->next[stage] || c->state[stage] != RUNNING) continue;
      int n = stage == CROSS
                  ? a->bridge->ops->waiting_for(a->bridge, c->cross, members,
                                                max)
                  : gbi_local_waiting_for(a->local, &c->local[stage], members,
                                          max);
      for (int i = 0; i < n; i++)
        members[i] = stage == CROSS ? a->map.leader[members[i]]
                                    : member_of(a, members[i]);
      if (n) return n;
    }
  }
  return 0;
}
