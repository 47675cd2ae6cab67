/* control: rank 0's state, between server.c and questions.c. Owned by
 * gb-control. */
#ifndef GBI_CONTROL_SERVER_STATE_H
#define GBI_CONTROL_SERVER_STATE_H

#include "control/channel.h"
#include "control/server.h"

/*  GREETING --proof--> JOINING --JOIN--> MEMBER --goodbye, job over--> ENDING
 *      |                  |                 |                            |
 *   closed              ENDING            death: the job ends       EOF: closed
 *
 * ENDING: what is queued goes out, our side is shut, bytes are dropped until
 * the other side closes. A plain close could destroy what is under way. */
typedef enum gbi_conn_state {
  GBI_CONN_GREETING,
  GBI_CONN_JOINING,
  GBI_CONN_MEMBER,
  GBI_CONN_ENDING
} gbi_conn_state;

typedef struct gbi_conn {
  gbi_watch watch;
  struct gbi_conn *next;
  gbi_conn_state state;
  bool dead; /* closed and freed at the end of this round */
  bool shut; /* ENDING: our side is shut */
  int rank;  /* -1 until proven */
  uint64_t since_ns, heard_ns;
  uint32_t events;
  gbi_channel channel;
  gbi_handshake handshake;
} gbi_conn;

typedef struct gbi_server_member {
  gbi_conn *conn; /* NULL: not here */
  bool came;      /* has joined once */
  bool told;      /* never joined, but knows why the job failed */
  bool left;
  uint64_t left_completed; /* calls of group 0 */
  gbi_who who;
  uint8_t *record;
  size_t record_bytes;
  uint8_t *offered_to; /* a bit a rank; NULL: to nobody yet */
} gbi_server_member;

/* An exchange that some members have entered. */
typedef struct gbi_exchange {
  struct gbi_exchange *next;
  uint32_t group, round;
  int *members;
  int count, got;
  bool failed; /* kept until every member has had the answer */
  gb_error error;
  uint64_t opened_ns, deadline_ns;
  struct gbi_slot {
    bool in;
    uint8_t *blob;
    size_t bytes;
  } * slots;
} gbi_exchange;

typedef enum gbi_answer {
  GBI_ANSWER_NONE,
  GBI_ANSWER_THERE,
  GBI_ANSWER_LATE,
  GBI_ANSWER_LEFT
} gbi_answer;

typedef struct gbi_question {
  struct gbi_question *next;
  uint32_t id, group;
  int asker;
  gbi_call call;
  int *members;
  uint8_t *answers; /* gbi_answer, by member */
  int count, waiting;
  uint64_t deadline_ns;
} gbi_question;

typedef struct gbi_listener {
  gbi_watch watch;
  int fd;
} gbi_listener;

struct gbi_server {
  gbi_server_params params;
  gbi_listener listeners[GBI_ADDRESSES_MAX];
  int listeners_count;
  gbi_conn *conns;
  gbi_conn *own; /* rank 0's own pair */
  int strangers; /* GREETING and JOINING */
  bool any_dead;
  bool deaf;                  /* listeners are off for a while */
  int spare_fd;      /* given up to tell late ranks that there is none left */
  uint64_t short_ns; /* since then none to accept with; 0: there is */
  gbi_server_member *members; /* by rank */
  int joined, reported;
  bool gathered, accepted;
  uint64_t gather_deadline_ns;
  bool failed;
  gb_error failure;
  bool held; /* a LINK cause that waits for the reason behind it */
  gb_error held_error;
  uint64_t held_until_ns;
  bool parted;  /* a group of part of the ranks was opened */
  bool leaving; /* rank 0 said goodbye and the others know */
  uint64_t leave_by_ns; /* with rank 0's goodbye: when they know at last */
  bool draining;
  uint64_t beat_ns, drain_until_ns;
  gbi_exchange *exchanges;
  gbi_question *questions;
  uint32_t next_question;
  _Atomic int untold;
};

/* Ends the job with `error`. The first one wins. */
void gbi_server_fail(gbi_server *server, const gb_error *error);
/* The same for a cause that a rank reported: LINK causes are held. */
void gbi_server_cause(gbi_server *server, const gb_error *error);
/* NULL frames mean that memory ran out: the connection breaks. */
void gbi_server_send(gbi_server *server, int rank, gbi_frame *frame);
/* Makes, sends and drops. */
void gbi_server_send_new(gbi_server *server, int rank, uint8_t type,
                         const gbi_writer *body);

/* questions.c. Readers are hostile; false: malformed. */
bool gbi_server_exchange(gbi_server *server, int rank, gbi_reader *body);
bool gbi_server_stalled(gbi_server *server, int rank, gbi_reader *body);
bool gbi_server_state(gbi_server *server, int rank, gbi_reader *body);
void gbi_server_member_left(gbi_server *server, int rank);
bool gbi_server_offer(gbi_server *server, int rank, gbi_reader *body);
/* Ranks of this job send messages or have groups without others, and some are
 * still in it: they may need new links and groups, which are made through rank
 * 0. */
bool gbi_server_is_needed(const gbi_server *server);
/* Exchanges that wait for a rank that left end for everybody. */
void gbi_server_leaves_exchanges(gbi_server *server, int rank);
/* The error of an exchange that `rank` (-1: anybody) has taken part in and that
 * others have yet to hear of; NULL when there is none. */
const gb_error *gbi_server_open_error(const gbi_server *server, int rank);
uint64_t gbi_server_questions_tick(gbi_server *server, uint64_t now_ns);
void gbi_server_questions_free(gbi_server *server);

#endif
