#include "core/parts.h"

#include "base/memory.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 1024 };

/* One communicator over callbacks. */
typedef struct part_comm {
  gbi_comm base;
  gbi_part_site site;
  atomic_bool stopped;
  gbi_part_link *links; /* a bridge: all of the group */
  int links_count;
  int mine;           /* which of them this rank is in, -1 */
  void *link;         /* the caller's */
  int *ranks;         /* members of `mine`; a policy: all */
  uint64_t next_call; /* a bridge: calls before it were compared */
  uint8_t *scratch;   /* of sums that must not change this rank's memory */
  size_t scratch_bytes;
} part_comm;

static part_comm *part_of(gbi_comm *comm) {
  return (part_comm *)comm;
}

/* ---- taking and asking ---- */

static gb_status check_name(const char *kind, const char *name, size_t most,
                            bool taken, gb_error *error) {
  size_t bytes = name ? strlen(name) : 0;
  if (!bytes || bytes > most)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "the name of the caller's %s has %zu bytes, but must have "
                    "1 to %zu",
                    kind, bytes, most);
  if (taken || !strcmp(name, "auto") || !strcmp(name, "none"))
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "the caller's %s cannot be named \"%s\": that is one of "
                    "the library's own",
                    kind, name);
  return GB_OK;
}

gb_status gbi_parts_take(const gb_job_params *params, gbi_parts *parts,
                         gb_error *error) {
  const gb_bridge_ops *bridge = params->bridge_ops;
  const gb_policy_ops *policy = params->policy_ops;
  if (bridge) {
    memcpy(&parts->bridge, bridge, GBI_MIN(bridge->size, sizeof *bridge));
    GBI_TRY(check_name(
        "bridge", parts->bridge.name, sizeof parts->bridge_name - 1,
        parts->bridge.name && gbi_transport_find(parts->bridge.name), error));
    snprintf(parts->bridge_name, sizeof parts->bridge_name, "%s", bridge->name);
    parts->bridge.name = parts->bridge_name;
    if (!bridge->open || !bridge->all_reduce || !bridge->broadcast ||
        !bridge->close)
      return gbi_fail(error, GB_ERR_ARGUMENT,
                      "the caller's bridge \"%s\" lacks a callback",
                      parts->bridge_name);
  }
  if (policy) {
    memcpy(&parts->policy, policy, GBI_MIN(policy->size, sizeof *policy));
    GBI_TRY(check_name(
        "policy", parts->policy.name, sizeof parts->policy_name - 1,
        parts->policy.name && gbi_policy_find(parts->policy.name), error));
    snprintf(parts->policy_name, sizeof parts->policy_name, "%s", policy->name);
    parts->policy.name = parts->policy_name;
    parts->policy.settings = NULL; /* the record has them */
    if (!policy->fits || !policy->accepts || !policy->run)
      return gbi_fail(error, GB_ERR_ARGUMENT,
                      "the caller's policy \"%s\" lacks a callback",
                      parts->policy_name);
    parts->plans = (gbi_policy_ops){.name = parts->policy_name,
                                    .help = "the caller's own",
                                    .plan = gbi_policy_caller_plan,
                                    .uses_world = true};
  }
  return GB_OK;
}

bool gbi_parts_has_bridge(const gbi_parts *parts, const char *name) {
  return parts->bridge.name && !strcmp(parts->bridge.name, name);
}

bool gbi_parts_has_policy(const gbi_parts *parts, const char *name) {
  return parts->policy.name && !strcmp(parts->policy.name, name);
}

/* What a callback said, as an error. */
static gb_status failed(const char *who, int rank, int code, const char *where,
                        const char *text, gb_error *error) {
  if (code == GB_PART_INTERRUPTED)
    return gbi_fail_rank(error, GB_ERR_INTERRUPTED, rank,
                         "%s was interrupted by its user in %s", who, where);
  return gbi_fail_rank(error, GB_ERR_ABORTED, rank, "%s failed on %s: %s",
                       where, who, text[0] ? text : "it gave no reason");
}

gb_status gbi_parts_fit(const gbi_parts *parts, const gbi_topology *topology,
                        const char (*labels)[64], const char *who, int rank,
                        const gbi_policy_ops **policy_p, gb_error *error) {
  char text[TEXT_BYTES] = "", fit[512], what[64];
  int world = topology->world;
  const char **list = gbi_malloc(sizeof *list * (size_t)world);
  if (!list) return gbi_fail(error, GB_ERR_MEMORY, "no memory for labels");
  for (int r = 0; r < world; r++) list[r] = labels[r];
  int code =
      parts->policy.fits(parts->policy.arg, list, world, text, sizeof text);
  text[sizeof text - 1] = 0;
  free(list);
  *policy_p = &parts->plans;
  if (code == GB_PART_OK) return GB_OK;
  if (code != GB_PART_NO)
    return failed(who, rank, code, "asking whether the policy fits", text,
                  error);
  gbi_policy_names(topology, fit, sizeof fit);
  gbi_topology_text(topology, what, sizeof what);
  return gbi_fail_rank(error, GB_ERR_REFUSED, 0,
                       "the policy \"%s\" does not fit a job of %s. "
                       "Policies that fit: %s",
                       parts->policy_name, what, fit);
}

/* ---- before a call ---- */

static void list_redops(uint32_t redops, gbi_text *text) {
  for (int op = 0; op < GB_REDOP_COUNT; op++)
    if (redops & 1u << op)
      gbi_text_add(text, "%s%s", text->used ? ", " : "",
                   gb_redop_name((gb_redop)op));
}

static gb_status check_bridge(const gbi_parts *parts, const gbi_coll *coll,
                              gb_error *error) {
  const gb_bridge_ops *b = &parts->bridge;
  if (coll->redop == 255 || coll->op == GBI_OP_BARRIER) return GB_OK;
  gb_redop redop = gbi_comm_redop(coll->redop);
  gb_dtype dtype = gbi_coll_travel_dtype(coll);
  char known[256] = "nothing";
  gbi_text text;
  gbi_text_init(&text, known, sizeof known);
  list_redops(b->redops, &text);
  if (!(b->redops & 1u << redop))
    return gbi_fail(error, GB_ERR_UNSUPPORTED,
                    "the bridge \"%s\" cannot reduce with %s. It offers %s",
                    b->name, gb_redop_name((gb_redop)coll->redop), known);
  if (b->dtypes && !(b->dtypes & 1u << dtype))
    return gbi_fail(error, GB_ERR_UNSUPPORTED,
                    "the bridge \"%s\" cannot reduce %s. The bridges shm and "
                    "tcp can",
                    b->name, gb_dtype_name(dtype));
  return GB_OK;
}

/* The caller's view of a call of `count` elements a row. */
static gb_policy_call describe_call(int op, gb_dtype dtype, int redop,
                                    uint64_t count, int world) {
  bool gathers = op == GBI_OP_ALL_GATHER, cuts = op == GBI_OP_REDUCE_SCATTER;
  return (gb_policy_call){.size = sizeof(gb_policy_call),
                          .op = gbi_op_name(op),
                          .dtype = dtype,
                          .redop = redop,
                          .src = -1,
                          .in_count = count * (uint64_t)(cuts ? world : 1),
                          .out_count = count * (uint64_t)(gathers ? world : 1)};
}

gb_status gbi_parts_check(const gbi_parts *parts, bool of_policy,
                          bool over_bridge, const gbi_coll *coll, int rank,
                          int world, gb_error *error) {
  if (of_policy && gbi_policy_caller_takes(coll)) {
    char text[TEXT_BYTES] = "", who[32];
    gb_policy_call call = describe_call(
        coll->op, gbi_coll_travel_dtype(coll),
        coll->redop == 255 ? -1 : (int)gbi_comm_redop(coll->redop), coll->count,
        world);
    int code =
        parts->policy.accepts(parts->policy.arg, &call, text, sizeof text);
    text[sizeof text - 1] = 0;
    snprintf(who, sizeof who, "rank %d", rank);
    if (code == GB_PART_NO)
      return gbi_fail(error, GB_ERR_UNSUPPORTED, "%s", text);
    if (code != GB_PART_OK)
      return failed(who, rank, code, "asking the policy", text, error);
    return GB_OK;
  }
  return over_bridge && !gbi_is_exchange(coll->op)
             ? check_bridge(parts, coll, error)
             : GB_OK;
}

/* ---- the bridge's steps ---- */

static bool make_scratch(part_comm *c, size_t bytes) {
  if (bytes <= c->scratch_bytes) return true;
  uint8_t *scratch = gbi_realloc(c->scratch, bytes);
  if (!scratch) return false;
  c->scratch = scratch;
  c->scratch_bytes = bytes;
  return true;
}

static gb_status failed_step(const part_comm *c, const gbi_comm_step *s,
                             int code, const char *text, gb_error *error) {
  char call[160];
  gbi_call_text(&s->call, call, sizeof call);
  return failed(c->site.who, c->site.rank, code, call, text, error);
}

/* Sums into `to`, which has this rank's contribution. */
static int sum(part_comm *c, const gbi_comm_step *s, void *to, char *text) {
  gb_buffer buffer = {to, s->count, s->dtype};
  return c->site.parts->bridge.all_reduce(c->link, &buffer, s->redop, text,
                                          TEXT_BYTES);
}

/* Nothing to move, but members still meet here: by a byte, because to nothing a
 * transport may do nothing. */
static int meet(part_comm *c, char *text) {
  uint8_t byte = 0;
  gb_buffer buffer = {&byte, 1, GB_UINT8};
  return c->site.parts->bridge.all_reduce(c->link, &buffer, GB_SUM, text,
                                          TEXT_BYTES);
}

/* A callback that reduces knows sums for all only: the sum for one is a sum for
 * all of which the others drop their copy. */
static int reduce(part_comm *c, const gbi_comm_step *s, size_t bytes,
                  char *text) {
  memcpy(c->scratch, s->src, bytes);
  int code = sum(c, s, c->scratch, text);
  if (code == GB_PART_OK && c->base.me == s->root)
    memcpy(s->dst, c->scratch, bytes);
  return code;
}

/* From the root to all, or (TRANSFER) to one: the others drop theirs. */
static int spread(part_comm *c, const gbi_comm_step *s, char *text) {
  int me = c->base.me;
  bool wanted = s->kind == GBI_COMM_BROADCAST || me == s->peer;
  void *at = me == s->root ? (void *)(uintptr_t)s->src
             : wanted      ? s->dst
                           : c->scratch;
  gb_buffer buffer = {at, s->count, s->dtype};
  return c->site.parts->bridge.broadcast(c->link, &buffer, c->ranks[s->root],
                                         text, TEXT_BYTES);
}

/* What the first member sends the others in front of a call's first step:
 *
 *   0  u64  number of the call in its group
 *   8  u64  count
 *  16  i32  root
 *  20  u8   op, dtype, redop, 0 */
enum { CALL_BYTES = 24 };

static void put_call(const gbi_call *call, uint8_t raw[CALL_BYTES]) {
  gbi_writer out;
  gbi_writer_init(&out, raw, CALL_BYTES);
  gbi_put_u64(&out, call->seq);
  gbi_put_u64(&out, call->count);
  gbi_put_i32(&out, call->root);
  gbi_put_u8(&out, call->op);
  gbi_put_u8(&out, call->dtype);
  gbi_put_u8(&out, call->redop);
  gbi_put_u8(&out, 0);
}

static gbi_call get_call(const uint8_t raw[CALL_BYTES]) {
  gbi_reader in;
  gbi_call call = {0};
  gbi_reader_init(&in, raw, CALL_BYTES);
  call.seq = gbi_get_u64(&in);
  call.count = gbi_get_u64(&in);
  call.root = gbi_get_i32(&in);
  call.op = gbi_get_u8(&in);
  call.dtype = gbi_get_u8(&in);
  call.redop = gbi_get_u8(&in);
  return call;
}

/* A callback does not know which call its bytes belong to: islands that call
 * different things would add up what does not belong together. Whatever the
 * call, it begins with the same broadcast, so that these always fit. */
static gb_status compare_calls(part_comm *c, const gbi_comm_step *s,
                               gb_error *error) {
  char text[TEXT_BYTES] = "";
  uint8_t raw[CALL_BYTES];
  if (s->call.seq < c->next_call) return GB_OK;
  c->next_call = s->call.seq + 1;
  put_call(&s->call, raw);
  gb_buffer buffer = {raw, CALL_BYTES, GB_UINT8};
  int code = c->site.parts->bridge.broadcast(c->link, &buffer, c->ranks[0],
                                             text, TEXT_BYTES);
  text[sizeof text - 1] = 0;
  if (code != GB_PART_OK) return failed_step(c, s, code, text, error);
  gbi_call theirs = get_call(raw);
  if (gbi_call_equal(&theirs, &s->call)) return GB_OK;
  return gbi_fail_mismatch(error, c->ranks[0], &theirs, c->site.rank, &s->call);
}

static gb_status bridge_step(part_comm *c, const gbi_comm_step *s,
                             gb_error *error) {
  char text[TEXT_BYTES] = "";
  size_t bytes = s->count * gb_dtype_bytes(s->dtype);
  int code = GB_PART_OK;
  if (c->base.members_count == 1) {
    if (s->dst && s->dst != s->src && bytes) memmove(s->dst, s->src, bytes);
    return GB_OK;
  }
  GBI_TRY(compare_calls(c, s, error));
  if (!make_scratch(c, GBI_MAX(bytes, 1)))
    return gbi_fail(error, GB_ERR_MEMORY,
                    "no memory for %zu bytes of the bridge \"%s\"", bytes,
                    c->site.parts->bridge.name);
  if (!bytes) {
    code = meet(c, text);
  } else if (s->kind == GBI_COMM_REDUCE) {
    code = reduce(c, s, bytes, text);
  } else if (s->kind == GBI_COMM_ALL_REDUCE) {
    if (s->dst != s->src) memcpy(s->dst, s->src, bytes);
    code = sum(c, s, s->dst, text);
  } else {
    code = spread(c, s, text);
    if (code == GB_PART_OK && c->base.me == s->root && s->dst &&
        s->dst != s->src && s->kind == GBI_COMM_BROADCAST)
      memmove(s->dst, s->src, bytes);
  }
  text[sizeof text - 1] = 0;
  return code == GB_PART_OK ? GB_OK : failed_step(c, s, code, text, error);
}

/* ---- the policy's steps ---- */

static gb_status policy_step(part_comm *c, const gbi_comm_step *s,
                             gb_error *error) {
  char text[TEXT_BYTES] = "";
  const gb_policy_ops *p = &c->site.parts->policy;
  bool reduces = s->call.redop != 255;
  gb_policy_call call =
      describe_call(s->call.op, s->dtype, reduces ? (int)s->redop : -1,
                    s->count, c->base.members_count);
  if (s->call.op == GBI_OP_BROADCAST) call.src = c->ranks[s->root];
  if (!call.in_count && !call.out_count) return GB_OK; /* all have met */
  call.in = s->src;
  call.out = s->dst;
  int code = p->run(p->arg, &call, text, sizeof text);
  text[sizeof text - 1] = 0;
  return code == GB_PART_OK ? GB_OK : failed_step(c, s, code, text, error);
}

/* ---- as a communicator ---- */

static void no_address(gbi_comm *comm, gbi_writer *out) {}

/* None of a policy: it has no links. */
static gb_status connect_links(gbi_comm *comm, const gbi_reader *addresses,
                               uint64_t deadline_ns, gb_error *error) {
  part_comm *c = part_of(comm);
  const gb_bridge_ops *b = &c->site.parts->bridge;
  for (int i = 0; i < c->links_count; i++) {
    char text[TEXT_BYTES] = "", where[96];
    void *link = NULL;
    gb_bridge_site site = {.size = sizeof site,
                           .job = c->site.job,
                           .group = c->site.group,
                           .ranks = c->links[i].ranks,
                           .count = c->links[i].count,
                           .is_member = i == c->mine,
                           .timeout_ms = c->site.timeout_ms};
    int code = b->open(b->arg, &site, &link, text, sizeof text);
    text[sizeof text - 1] = 0;
    snprintf(where, sizeof where, "opening the bridge \"%s\"", b->name);
    if (code == GB_PART_OK && i == c->mine)
      c->link = link;
    else if (code == GB_PART_OK && link)
      b->close(link); /* a link that is not this rank's is of no use */
    if (code == GB_PART_OK && i == c->mine && !link) code = GB_PART_FAILED;
    if (code != GB_PART_OK)
      return failed(c->site.who, c->site.rank, code, where, text, error);
  }
  return GB_OK;
}

static void start(gbi_comm *comm, const gbi_comm_step *step, void *state) {
  memcpy(state, step, sizeof *step);
  comm->moved++;
}

static gb_status progress(gbi_comm *comm, void *state, gb_error *error) {
  part_comm *c = part_of(comm);
  const gbi_comm_step *s = state;
  if (atomic_load_explicit(&c->stopped, memory_order_acquire))
    return gbi_fail(error, GB_ERR_CANCELED, "the communicator was stopped");
  return s->kind == GBI_COMM_CALL ? policy_step(c, s, error)
                                  : bridge_step(c, s, error);
}

static int no_fds(gbi_comm *comm, int *fds, int max) {
  return 0;
}

static int nobody(gbi_comm *comm, const void *state, int *members, int max) {
  return 0;
}

static void stop(gbi_comm *comm) {
  atomic_store_explicit(&part_of(comm)->stopped, true, memory_order_release);
}

static void close_part(gbi_comm *comm) {
  part_comm *c = part_of(comm);
  if (c->link) c->site.parts->bridge.close(c->link);
  for (int i = 0; i < c->links_count; i++) free(c->links[i].ranks);
  free(c->links);
  if (c->mine < 0) free(c->ranks); /* else one of the links' */
  free(c->scratch);
  free(c);
}

static void describe(const gbi_comm *comm, gbi_fact_fn fn, void *arg) {
  const part_comm *c = (const part_comm *)comm;
  if (c->links) fn(arg, "transport", c->site.parts->bridge.name);
}

static const gbi_comm_ops part_ops = {
    .name = "caller's part",
    .state_bytes = sizeof(gbi_comm_step),
    .address = no_address,
    .connect = connect_links,
    .start = start,
    .progress = progress,
    .wait_fds = no_fds,
    .waiting_for = nobody,
    .stop = stop,
    .close = close_part,
    .describe = describe,
};

static part_comm *new_part(const gbi_part_site *site, gb_error *error) {
  part_comm *c = gbi_calloc(1, sizeof *c);
  if (!c) {
    gbi_fail(error, GB_ERR_MEMORY, "no memory for a caller's part");
    return NULL;
  }
  c->base = (gbi_comm){.ops = &part_ops, .me = -1};
  c->site = *site;
  c->mine = -1;
  return c;
}

gb_status gbi_parts_open_bridge(const gbi_part_site *site,
                                const gbi_part_link *links, int links_count,
                                gbi_comm **comm_p, gb_error *error) {
  part_comm *c = new_part(site, error);
  if (!c) return GB_ERR_MEMORY;
  c->links = gbi_calloc((size_t)links_count + 1, sizeof *c->links);
  for (int i = 0; c->links && i < links_count; i++) {
    size_t bytes = sizeof(int) * (size_t)links[i].count;
    int *ranks = gbi_malloc(bytes);
    if (!ranks) break;
    memcpy(ranks, links[i].ranks, bytes);
    c->links[c->links_count++] = (gbi_part_link){ranks, links[i].count};
    for (int k = 0; k < links[i].count; k++)
      if (ranks[k] == site->rank) {
        c->mine = i;
        c->base.me = k;
        c->base.members_count = links[i].count;
        c->ranks = ranks;
      }
  }
  if (!c->links || c->links_count < links_count) {
    close_part(&c->base);
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for a bridge's members");
  }
  *comm_p = &c->base;
  return GB_OK;
}

gb_status gbi_parts_open_policy(const gbi_part_site *site, const int *ranks,
                                int count, int me, gbi_comm **comm_p,
                                gb_error *error) {
  part_comm *c = new_part(site, error);
  if (!c) return GB_ERR_MEMORY;
  c->ranks = gbi_malloc(sizeof *ranks * (size_t)count);
  if (!c->ranks) {
    close_part(&c->base);
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for a policy's ranks");
  }
  memcpy(c->ranks, ranks, sizeof *ranks * (size_t)count);
  c->base.members_count = count;
  c->base.me = me;
  *comm_p = &c->base;
  return GB_OK;
}
