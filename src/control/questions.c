/* Rank 0: exchanges among the members of a group, who is late, and offers. */
#include "control/server_state.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { QUESTIONS_PER_RANK = 8 };
#define ANSWER_NS (1 * GBI_NS_PER_S)

/* ---- exchanges ---- */

static void free_exchange(gbi_exchange *x) {
  for (int i = 0; x->slots && i < x->count; i++) free(x->slots[i].blob);
  free(x->slots);
  free(x->members);
  free(x);
}

static void unlink_exchange(gbi_server *s, gbi_exchange *x) {
  gbi_exchange **at = &s->exchanges;
  while (*at != x) at = &(*at)->next;
  *at = x->next;
  free_exchange(x);
}

static gbi_exchange *find_exchange(gbi_server *s, uint32_t group,
                                   uint32_t round) {
  gbi_exchange *x = s->exchanges;
  while (x && (x->group != group || x->round != round)) x = x->next;
  return x;
}

static void answer_head(gbi_writer *w, const gbi_exchange *x) {
  gbi_writer_init_growing(w);
  gbi_put_u32(w, x->group);
  gbi_put_u32(w, x->round);
  gbi_put_u8(w, !x->failed);
}

/* Everybody who is in gets the error; the others when they come. */
static void fail_exchange(gbi_server *s, gbi_exchange *x,
                          const gb_error *error) {
  gbi_writer w;
  x->failed = true;
  x->error = *error;
  answer_head(&w, x);
  gbi_put_error(&w, error);
  gbi_frame *frame = gbi_frame_make(GBI_MSG_EXCHANGED, &w);
  for (int i = 0; i < x->count; i++)
    if (x->slots[i].in) gbi_server_send(s, x->members[i], frame);
  gbi_frame_drop(frame);
  gbi_writer_fini(&w);
}

static void finish_exchange(gbi_server *s, gbi_exchange *x) {
  gbi_writer w;
  answer_head(&w, x);
  gbi_put_u32(&w, (uint32_t)x->count);
  for (int i = 0; i < x->count; i++)
    gbi_put_blob(&w, x->slots[i].blob, x->slots[i].bytes);
  gbi_frame *frame = gbi_frame_make(GBI_MSG_EXCHANGED, &w);
  for (int i = 0; i < x->count; i++) gbi_server_send(s, x->members[i], frame);
  gbi_frame_drop(frame);
  gbi_writer_fini(&w);
}

/* Who leaves a job that fails does so for its reason. */
static void left_error(gbi_server *s, int rank, gb_error *error) {
  char who[GBI_WHO_TEXT];
  if (s->failed || s->held) {
    *error = s->failed ? s->failure : s->held_error;
    return;
  }
  gbi_fail_rank(error, GB_ERR_PEER, rank,
                "%s left the job before the set-up of a group",
                gbi_who_text(rank, &s->members[rank].who, who));
}

/* What a member sent. */
typedef struct entry {
  uint32_t group, round, left_ms;
  int *members;
  int count, me;
  bool problem;
  gb_error error;
  const uint8_t *blob;
  size_t bytes;
} entry;

static bool read_entry(gbi_server *s, int rank, gbi_reader *body, entry *e) {
  e->group = gbi_get_u32(body);
  e->round = gbi_get_u32(body);
  e->left_ms = gbi_get_u32(body);
  e->members = gbi_get_ranks(body, s->params.world, &e->count);
  e->me = gbi_get_i32(body);
  e->problem = gbi_get_u8(body) != 0;
  if (e->problem) gbi_get_error(body, &e->error);
  e->blob = gbi_get_blob(body, &e->bytes);
  if (gbi_reader_done(body) && e->bytes <= GBI_BLOB_MAX && e->me >= 0 &&
      e->me < e->count && e->members[e->me] == rank)
    return true;
  free(e->members);
  return false;
}

static gbi_exchange *create_exchange(gbi_server *s, entry *e) {
  gbi_exchange *x = gbi_calloc(1, sizeof *x);
  if (x) x->slots = gbi_calloc((size_t)e->count, sizeof *x->slots);
  if (!x || !x->slots) {
    free(x);
    return NULL;
  }
  x->group = e->group;
  x->round = e->round;
  x->members = e->members;
  x->count = e->count;
  s->parted |= e->count < s->params.world;
  x->opened_ns = gbi_now_ns();
  x->deadline_ns = GBI_NEVER;
  e->members = NULL;
  x->next = s->exchanges;
  s->exchanges = x;
  for (int i = 0; i < x->count && !x->failed; i++) {
    int rank = x->members[i];
    if (!s->members[rank].left) continue;
    gb_error error;
    left_error(s, rank, &error);
    fail_exchange(s, x, &error);
  }
  return x;
}

/* The member's part: kept, or the reason why it ends for everybody. */
static bool enter_exchange(gbi_server *s, gbi_exchange *x, int rank,
                           const entry *e) {
  struct gbi_slot *slot = &x->slots[e->me];
  if (slot->in) return false;
  slot->in = true;
  x->got++;
  slot->blob = gbi_malloc(e->bytes + 1);
  if (!slot->blob) return false;
  memcpy(slot->blob, e->blob, e->bytes);
  slot->bytes = e->bytes;
  x->deadline_ns = GBI_MIN(x->deadline_ns, gbi_deadline_of_left(e->left_ms));
  if (x->failed) { /* it failed before this member came */
    gbi_writer w;
    answer_head(&w, x);
    gbi_put_error(&w, &x->error);
    gbi_server_send_new(s, rank, GBI_MSG_EXCHANGED, &w);
    gbi_writer_fini(&w);
  } else if (e->problem) {
    fail_exchange(s, x, &e->error);
  } else if (x->got == x->count) {
    finish_exchange(s, x);
  }
  if (x->got == x->count) unlink_exchange(s, x);
  return true;
}

static void disagree(gbi_server *s, gbi_exchange *x, int rank) {
  gb_error error;
  gbi_fail_rank(&error, GB_ERR_MISMATCH, rank,
                "ranks disagree about the members of group %u: rank %d gave "
                "another list than rank %d",
                x->group, rank, x->members[0]);
  gbi_server_fail(s, &error);
}

bool gbi_server_exchange(gbi_server *s, int rank, gbi_reader *body) {
  entry e;
  if (!read_entry(s, rank, body, &e)) return false;
  gbi_exchange *x = find_exchange(s, e.group, e.round);
  bool good = true;
  if (!x) {
    x = create_exchange(s, &e);
    good = x != NULL;
  } else if (x->count != e.count ||
             memcmp(x->members, e.members,
                    (size_t)e.count * sizeof *e.members)) {
    disagree(s, x, rank);
    free(e.members);
    return true;
  }
  good = good && enter_exchange(s, x, rank, &e);
  free(e.members);
  return good;
}

/* Another exchange in which `rank` waits. */
static const gbi_exchange *waits_elsewhere(const gbi_server *s,
                                           const gbi_exchange *x, int rank) {
  for (const gbi_exchange *o = s->exchanges; o; o = o->next)
    for (int i = 0; o != x && i < o->count; i++)
      if (o->members[i] == rank && o->slots[i].in && !o->failed) return o;
  return NULL;
}

/* "; rank 2 sets up a group of ranks 2-3 meanwhile": lists that differ, or
 * groups opened in another order. */
static void add_elsewhere(const gbi_server *s, const gbi_exchange *x,
                          gbi_text *text) {
  for (int i = 0; i < x->count; i++) {
    const gbi_exchange *o =
        x->slots[i].in ? NULL : waits_elsewhere(s, x, x->members[i]);
    if (!o) continue;
    gbi_text_add(text, "; rank %d sets up a group of ranks ", x->members[i]);
    gbi_text_add_ranks(text, o->members, o->count);
    gbi_text_add(text, " meanwhile");
    return;
  }
}

static void exchange_too_late(gbi_server *s, gbi_exchange *x) {
  char list[512], elsewhere[512];
  gb_error error;
  gbi_text text;
  int missing = 0, first = -1;
  gbi_text_init(&text, list, sizeof list);
  for (int i = 0; i < x->count; i++) {
    if (x->slots[i].in) continue;
    if (first < 0) first = x->members[i];
    gbi_text_add(&text, "%s%d", missing++ ? ", " : "", x->members[i]);
  }
  gbi_text_init(&text, elsewhere, sizeof elsewhere);
  add_elsewhere(s, x, &text);
  char members[256];
  gbi_text_init(&text, members, sizeof members);
  gbi_text_add_ranks(&text, x->members, x->count);
  gbi_fail_rank(&error, GB_ERR_TIMEOUT, first,
                "%s %s did not come to the set-up of the group of ranks %s "
                "within %.3g s%s",
                missing == 1 ? "rank" : "ranks", list, members,
                (double)(gbi_now_ns() - x->opened_ns) / (double)GBI_NS_PER_S,
                elsewhere);
  fail_exchange(s, x, &error);
}

/* ---- who is late ---- */

static void free_question(gbi_question *q) {
  free(q->members);
  free(q->answers);
  free(q);
}

static void unlink_question(gbi_server *s, gbi_question *q) {
  gbi_question **at = &s->questions;
  while (*at != q) at = &(*at)->next;
  *at = q->next;
  free_question(q);
}

static void left_too_early(gbi_server *s, const gbi_question *q, int rank) {
  char who[GBI_WHO_TEXT], call[160];
  gb_error error;
  gbi_call_text(&q->call, call, sizeof call);
  gbi_fail_rank(&error, GB_ERR_PEER, rank,
                "%s left the job after %llu calls; rank %d waits for it in %s",
                gbi_who_text(rank, &s->members[rank].who, who),
                (unsigned long long)s->members[rank].left_completed, q->asker,
                call);
  gbi_server_fail(s, &error);
}

/* All answers are in, or time is up: silence means late. */
static void answer(gbi_server *s, gbi_question *q) {
  gbi_writer w;
  int late = 0;
  int *ranks = gbi_malloc((size_t)q->count * sizeof *ranks);
  for (int i = 0; ranks && i < q->count; i++)
    if (q->answers[i] != GBI_ANSWER_THERE) ranks[late++] = q->members[i];
  if (ranks) {
    gbi_writer_init_growing(&w);
    gbi_put_u32(&w, q->group);
    gbi_put_u64(&w, q->call.seq);
    gbi_put_ranks(&w, ranks, late);
    gbi_server_send_new(s, q->asker, GBI_MSG_LATE, &w);
    gbi_writer_fini(&w);
  }
  free(ranks);
  unlink_question(s, q);
}

static void ask_member(gbi_server *s, gbi_question *q, int index) {
  int rank = q->members[index];
  const gbi_server_member *m = &s->members[rank];
  if (rank == q->asker) {
    q->answers[index] = GBI_ANSWER_THERE;
  } else if (m->left) {
    /* Of group 0 we know how many calls it had completed; of another group it
     * may have, and is no reason to end the job. */
    bool enough = m->left_completed > q->call.seq;
    q->answers[index] = q->group ? GBI_ANSWER_LATE
                        : enough ? GBI_ANSWER_THERE
                                 : GBI_ANSWER_LEFT;
  } else if (!m->conn) {
    q->answers[index] = GBI_ANSWER_LATE;
  } else {
    gbi_writer w;
    gbi_writer_init_growing(&w);
    gbi_put_u32(&w, q->id);
    gbi_put_u32(&w, q->group);
    q->waiting++;
    gbi_server_send_new(s, rank, GBI_MSG_QUESTION, &w);
    gbi_writer_fini(&w);
  }
}

/* A question that is open already will be answered; more help nobody. */
static bool may_ask(gbi_server *s, int rank, uint32_t group) {
  int open = 0;
  for (gbi_question *q = s->questions; q; q = q->next) {
    if (q->asker != rank) continue;
    open++;
    if (q->group == group) return false;
  }
  return open < QUESTIONS_PER_RANK;
}

bool gbi_server_stalled(gbi_server *s, int rank, gbi_reader *body) {
  gbi_question *q = gbi_calloc(1, sizeof *q);
  if (!q) return true;
  q->asker = rank;
  q->group = gbi_get_u32(body);
  gbi_get_call(body, &q->call);
  q->members = gbi_get_ranks(body, s->params.world, &q->count);
  if (!gbi_reader_done(body)) {
    free_question(q);
    return false;
  }
  q->answers = gbi_calloc((size_t)q->count, 1);
  if (!q->answers || !may_ask(s, rank, q->group)) {
    free_question(q);
    return true;
  }
  q->id = s->next_question++;
  q->deadline_ns = gbi_now_ns() + ANSWER_NS;
  q->next = s->questions;
  s->questions = q;
  for (int i = 0; i < q->count; i++) {
    ask_member(s, q, i);
    if (q->answers[i] != GBI_ANSWER_LEFT) continue;
    left_too_early(s, q, q->members[i]);
    return true;
  }
  if (!q->waiting) answer(s, q);
  return true;
}

bool gbi_server_state(gbi_server *s, int rank, gbi_reader *body) {
  gbi_call_state state;
  uint32_t id = gbi_get_u32(body);
  bool known = gbi_get_state(body, &state);
  if (!gbi_reader_done(body)) return false;
  gbi_question *q = s->questions;
  while (q && q->id != id) q = q->next;
  int at = 0;
  while (q && at < q->count && q->members[at] != rank) at++;
  if (!q || at == q->count || q->answers[at] != GBI_ANSWER_NONE)
    return true; /* answered too late */
  bool there = known && state.started > q->call.seq;
  q->answers[at] = there ? GBI_ANSWER_THERE : GBI_ANSWER_LATE;
  q->waiting--;
  if (there && state.last.seq == q->call.seq &&
      !gbi_call_equal(&state.last, &q->call)) {
    gb_error error;
    gbi_fail_mismatch(&error, q->asker, &q->call, rank, &state.last);
    gbi_server_fail(s, &error);
    return true;
  }
  if (!q->waiting) answer(s, q);
  return true;
}

/* ---- offers ---- */

static bool has_offered(const gbi_server *s, int from, int to) {
  const uint8_t *bits = s->members[from].offered_to;
  return bits && bits[to / 8] >> to % 8 & 1;
}

bool gbi_server_is_needed(const gbi_server *s) {
  bool used = s->parted, others = false;
  for (int r = 0; r < s->params.world; r++) {
    used |= s->members[r].offered_to != NULL;
    others |= r > 0 && s->members[r].conn && !s->members[r].left;
  }
  return used && others;
}

static void tell_left(gbi_server *s, int to, int who) {
  gbi_writer w;
  gbi_writer_init_growing(&w);
  gbi_put_i32(&w, who);
  gbi_put_u64(&w, s->members[who].left_completed);
  gbi_server_send_new(s, to, GBI_MSG_LEFT, &w);
  gbi_writer_fini(&w);
}

bool gbi_server_offer(gbi_server *s, int rank, gbi_reader *body) {
  gbi_server_member *m = &s->members[rank];
  size_t bytes;
  int32_t to = gbi_get_i32(body);
  const uint8_t *blob = gbi_get_blob(body, &bytes);
  if (!gbi_reader_done(body) || bytes > GBI_OFFER_MAX || to < 0 ||
      to >= s->params.world || to == rank || has_offered(s, rank, to))
    return false;
  if (!m->offered_to)
    m->offered_to = gbi_calloc((size_t)s->params.world / 8 + 1, 1);
  if (!m->offered_to) return false;
  m->offered_to[to / 8] |= (uint8_t)(1 << to % 8);
  if (s->members[to].left) {
    /* Not twice: it may have been told when that rank left. */
    if (!has_offered(s, to, rank)) tell_left(s, rank, to);
    return true;
  }
  gbi_writer w;
  gbi_writer_init_growing(&w);
  gbi_put_i32(&w, rank);
  gbi_put_blob(&w, blob, bytes);
  gbi_server_send_new(s, to, GBI_MSG_OFFERED, &w);
  gbi_writer_fini(&w);
  return true;
}

/* ---- all ---- */

void gbi_server_member_left(gbi_server *s, int rank) {
  for (int r = 0; r < s->params.world; r++)
    if (r != rank && (has_offered(s, r, rank) || has_offered(s, rank, r)))
      tell_left(s, r, rank);
  gbi_server_leaves_exchanges(s, rank);
}

void gbi_server_leaves_exchanges(gbi_server *s, int rank) {
  for (gbi_exchange *x = s->exchanges; x; x = x->next) {
    for (int i = 0; i < x->count && !x->failed; i++) {
      if (x->members[i] != rank || x->slots[i].in) continue;
      gb_error error;
      left_error(s, rank, &error);
      fail_exchange(s, x, &error);
    }
  }
}

const gb_error *gbi_server_open_error(const gbi_server *s, int rank) {
  for (const gbi_exchange *x = s->exchanges; x; x = x->next)
    for (int i = 0; x->failed && i < x->count; i++)
      if (rank < 0 || (x->members[i] == rank && x->slots[i].in))
        return &x->error;
  return NULL;
}

uint64_t gbi_server_questions_tick(gbi_server *s, uint64_t now) {
  uint64_t next = GBI_NEVER;
  for (gbi_exchange *x = s->exchanges; x; x = x->next) {
    if (x->failed) continue;
    if (now >= x->deadline_ns)
      exchange_too_late(s, x);
    else
      next = GBI_MIN(next, x->deadline_ns);
  }
  for (gbi_question *q = s->questions, *after; q && !s->failed; q = after) {
    after = q->next;
    if (now >= q->deadline_ns)
      answer(s, q);
    else
      next = GBI_MIN(next, q->deadline_ns);
  }
  return next;
}

void gbi_server_questions_free(gbi_server *s) {
  while (s->exchanges) unlink_exchange(s, s->exchanges);
  while (s->questions) unlink_question(s, s->questions);
}
