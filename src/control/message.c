#include "control/message.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Texts of others end up in errors and terminals: no control characters. */
static void sanitize(char *text, bool lines) {
  for (; *text; text++)
    if (((unsigned char)*text < 0x20 && !(lines && *text == '\n')) ||
        *text == 0x7f)
      *text = ' ';
}

static void one_line(char *text) {
  sanitize(text, false);
}

const char *gbi_who_text(int rank, const gbi_who *who,
                         char text[GBI_WHO_TEXT]) {
  snprintf(text, GBI_WHO_TEXT, "rank %d (host \"%s\", %s)", rank,
           who->hostname[0] ? who->hostname : "unknown",
           who->vendor[0] ? who->vendor : "vendor unknown");
  return text;
}

void gbi_who_set(gbi_who *who, const char *hostname, const char *vendor) {
  snprintf(who->hostname, sizeof who->hostname, "%s", hostname ? hostname : "");
  snprintf(who->vendor, sizeof who->vendor, "%s", vendor ? vendor : "");
  one_line(who->hostname);
  one_line(who->vendor);
}

void gbi_put_who(gbi_writer *w, const gbi_who *who) {
  gbi_put_text(w, who->hostname);
  gbi_put_text(w, who->vendor);
}

void gbi_get_who(gbi_reader *r, gbi_who *who) {
  gbi_get_text(r, who->hostname, sizeof who->hostname);
  gbi_get_text(r, who->vendor, sizeof who->vendor);
  one_line(who->hostname);
  one_line(who->vendor);
}

void gbi_put_error(gbi_writer *w, const gb_error *error) {
  gbi_put_i32(w, error->status);
  gbi_put_i32(w, error->rank);
  gbi_put_text(w, error->text);
}

void gbi_get_error(gbi_reader *r, gb_error *error) {
  int32_t status = gbi_get_i32(r);
  error->rank = gbi_get_i32(r);
  gbi_get_text(r, error->text, sizeof error->text);
  sanitize(error->text, true); /* a refusal lists problems, one a line */
  /* Only failures of the table are failures. */
  error->status = (gb_status)status;
  if (status >= 0 || gb_status_scope(error->status) == GB_SCOPE_NONE)
    error->status = GB_ERR_ABORTED;
}

void gbi_put_call(gbi_writer *w, const gbi_call *call) {
  gbi_put_u64(w, call->seq);
  gbi_put_u64(w, call->count);
  gbi_put_i32(w, call->root);
  gbi_put_u8(w, call->op);
  gbi_put_u8(w, call->dtype);
  gbi_put_u8(w, call->redop);
  gbi_put_u8(w, 0);
}

void gbi_get_call(gbi_reader *r, gbi_call *call) {
  call->seq = gbi_get_u64(r);
  call->count = gbi_get_u64(r);
  call->root = gbi_get_i32(r);
  call->op = gbi_get_u8(r);
  call->dtype = gbi_get_u8(r);
  call->redop = gbi_get_u8(r);
  call->spare = gbi_get_u8(r);
}

void gbi_put_state(gbi_writer *w, bool known, const gbi_call_state *state) {
  gbi_put_u8(w, known);
  gbi_put_u64(w, state->started);
  gbi_put_u64(w, state->completed);
  gbi_put_call(w, &state->last);
  gbi_put_text(w, state->phase);
}

bool gbi_get_state(gbi_reader *r, gbi_call_state *state) {
  bool known = gbi_get_u8(r) != 0;
  state->started = gbi_get_u64(r);
  state->completed = gbi_get_u64(r);
  gbi_get_call(r, &state->last);
  gbi_get_text(r, state->phase, sizeof state->phase);
  one_line(state->phase);
  return known;
}

void gbi_put_ranks(gbi_writer *w, const int *ranks, int count) {
  gbi_put_u32(w, (uint32_t)count);
  for (int i = 0; i < count; i++) gbi_put_i32(w, ranks[i]);
}

int *gbi_get_ranks(gbi_reader *r, int world, int *count_p) {
  uint32_t count = gbi_get_u32(r);
  if (r->bad || !count || count > (uint32_t)world ||
      count > (r->bytes - r->at) / 4) {
    r->bad = true;
    return NULL;
  }
  int *ranks = gbi_malloc(count * sizeof *ranks);
  for (uint32_t i = 0; ranks && i < count; i++) {
    ranks[i] = gbi_get_i32(r);
    if (ranks[i] < 0 || ranks[i] >= world) r->bad = true;
  }
  if (!ranks || r->bad) {
    r->bad = true;
    free(ranks);
    return NULL;
  }
  *count_p = (int)count;
  return ranks;
}

bool gbi_reader_done(const gbi_reader *r) {
  return !r->bad && r->at == r->bytes;
}

uint32_t gbi_left_ms(uint64_t deadline_ns) {
  if (deadline_ns == GBI_NEVER) return UINT32_MAX;
  uint64_t now = gbi_now_ns();
  uint64_t left = deadline_ns > now ? (deadline_ns - now) / GBI_NS_PER_MS : 0;
  return (uint32_t)GBI_MIN(left, (uint64_t)UINT32_MAX - 1);
}

uint64_t gbi_deadline_of_left(uint32_t left_ms) {
  return left_ms == UINT32_MAX ? GBI_NEVER : gbi_deadline_after_ms(left_ms);
}
