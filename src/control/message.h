/* control, between its own files: what frames hold. docs/wire/control.md has
 * the byte tables. */
#ifndef GBI_CONTROL_MESSAGE_H
#define GBI_CONTROL_MESSAGE_H

#include "control/control.h"

enum {
  /* rank to rank 0 */
  GBI_MSG_JOIN = 1,
  GBI_MSG_RECORD,
  GBI_MSG_EXCHANGE,
  GBI_MSG_CAUSE,
  GBI_MSG_STALLED,
  GBI_MSG_STATE,
  GBI_MSG_GOODBYE,
  GBI_MSG_OFFER,
  /* both ways */
  GBI_MSG_BEAT = 16,
  /* rank 0 to rank */
  GBI_MSG_WELCOME = 32,
  GBI_MSG_REFUSE,
  GBI_MSG_VERDICT,
  GBI_MSG_EXCHANGED,
  GBI_MSG_ABORT,
  GBI_MSG_QUESTION,
  GBI_MSG_LATE,
  GBI_MSG_LEFT,
  GBI_MSG_GOODBYE_OK,
  GBI_MSG_OFFERED,
};

/* Who a rank is, for texts. */
typedef struct gbi_who {
  char hostname[256];
  char vendor[32];
} gbi_who;

enum { GBI_WHO_TEXT = 384 };
/* rank 3 (host "h", amd) */
const char *gbi_who_text(int rank, const gbi_who *who, char text[GBI_WHO_TEXT]);
void gbi_who_set(gbi_who *who, const char *hostname, const char *vendor);
void gbi_put_who(gbi_writer *w, const gbi_who *who);
void gbi_get_who(gbi_reader *r, gbi_who *who);

void gbi_put_error(gbi_writer *w, const gb_error *error);
void gbi_get_error(gbi_reader *r, gb_error *error);
void gbi_put_call(gbi_writer *w, const gbi_call *call);
void gbi_get_call(gbi_reader *r, gbi_call *call);
void gbi_put_state(gbi_writer *w, bool known, const gbi_call_state *state);
bool gbi_get_state(gbi_reader *r, gbi_call_state *state);
void gbi_put_ranks(gbi_writer *w, const int *ranks, int count);
/* malloc'ed, 1 to world ranks in range; NULL and bad otherwise. */
int *gbi_get_ranks(gbi_reader *r, int world, int *count_p);
/* Whole and nothing behind it. */
bool gbi_reader_done(const gbi_reader *r);
/* Milliseconds to a deadline on the wire, as clocks differ between hosts. */
uint32_t gbi_left_ms(uint64_t deadline_ns);
uint64_t gbi_deadline_of_left(uint32_t left_ms);

#endif
