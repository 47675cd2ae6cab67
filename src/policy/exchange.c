/* gather, scatter and all_to_all: the same under every policy.
 *
 * Every part has one sender and one receiver, so each goes straight from one to
 * the other over the mesh: through the leaders it would cross three links
 * instead of one, and they would hold everybody's data. Drawing, 4 ranks:
 *   gather onto 2    0, 1, 3 --row--> 2, which copies its own
 *   scatter from 2   the other way
 *   all_to_all       round k: r --part--> r + k, r <--part-- r - k (mod 4);
 *                    round 0 is a copy
 *
 * Why no order of arrival can lock an all_to_all: take the lowest round that
 * is not over. Every rank is past all earlier ones, so its two messages of this
 * round are the first two it still has to do, and with room for two in flight
 * both are started. That holds on both ends of every message of the round: it
 * ends. With room for one, all ranks would send and nobody receive. A gather or
 * scatter has one rank with several messages, and the others wait for nothing
 * else. An empty part is a message too: it proves that the peer made the same
 * call. */
#include "policy/policy.h"

bool gbi_is_exchange(int op) {
  return op == GBI_OP_GATHER || op == GBI_OP_SCATTER || op == GBI_OP_ALL_TO_ALL;
}

static void add_copy(gbi_plan *plan, uint64_t in_at, uint64_t out_at,
                     uint64_t count) {
  gbi_step step = {.resource = GBI_ON_RANK,
                   .verb = GBI_DO_COPY,
                   .src = gbi_ref_to(GBI_IN, in_at),
                   .dst = gbi_ref_to(GBI_OUT, out_at),
                   .count = count};
  gbi_plan_add(plan, &step);
}

static void add_message(gbi_plan *plan, int verb, int peer, uint32_t number,
                        uint64_t at, uint64_t count) {
  gbi_place place = verb == GBI_DO_SEND ? GBI_IN : GBI_OUT;
  gbi_step step = {.resource = GBI_ON_MESH,
                   .verb = (uint8_t)verb,
                   .phase = GBI_PHASE_EXCHANGE,
                   .peer = peer,
                   .number = number,
                   .src = gbi_ref_to(place, at),
                   .dst = gbi_ref_to(place, at),
                   .count = count};
  gbi_plan_add(plan, &step);
}

/* Rows between root and everybody; `root_verb` is what root does. */
static void plan_rows(const gbi_policy_env *env, gbi_plan *plan,
                      int root_verb) {
  int root = plan->coll.root;
  uint64_t row = plan->coll.count;
  bool gathers = root_verb == GBI_DO_RECV;
  if (env->rank != root) {
    add_message(plan, gathers ? GBI_DO_SEND : GBI_DO_RECV, root, 0, 0, row);
    return;
  }
  uint64_t mine = (uint64_t)root * row;
  add_copy(plan, gathers ? 0 : mine, gathers ? mine : 0, row);
  for (int r = 0; r < env->topology->world; r++)
    if (r != root) add_message(plan, root_verb, r, 0, (uint64_t)r * row, row);
}

static void plan_all_to_all(const gbi_policy_env *env, gbi_plan *plan) {
  int world = env->topology->world, me = env->rank;
  for (int round = 0; round < world; round++) {
    int to = (me + round) % world, from = (me - round + world) % world;
    uint64_t in_at = gbi_plan_row_at(plan, to);
    uint64_t out_at = gbi_plan_out_at(plan, from);
    uint64_t sent = gbi_plan_row_at(plan, to + 1) - in_at;
    uint64_t got = gbi_plan_out_at(plan, from + 1) - out_at;
    if (!round) {
      add_copy(plan, in_at, out_at, GBI_MIN(sent, got));
      continue;
    }
    add_message(plan, GBI_DO_SEND, to, (uint32_t)round, in_at, sent);
    add_message(plan, GBI_DO_RECV, from, (uint32_t)round, out_at, got);
  }
}

void gbi_plan_exchange(const gbi_policy_env *env, gbi_plan *plan) {
  switch (plan->coll.op) {
    case GBI_OP_GATHER: plan_rows(env, plan, GBI_DO_RECV); break;
    case GBI_OP_SCATTER: plan_rows(env, plan, GBI_DO_SEND); break;
    default: plan_all_to_all(env, plan);
  }
}
