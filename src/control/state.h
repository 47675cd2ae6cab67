/* control: one rank's state, between control.c, member.c and rendezvous.c.
 *
 * `lock` (level 1, no other is taken under it) guards everything that says so;
 * gb-control and the callers share it. */
#ifndef GBI_CONTROL_STATE_H
#define GBI_CONTROL_STATE_H

#include "control/channel.h"
#include "control/server.h"
#include "os/net.h"

#include <pthread.h>
#include <stdatomic.h>

enum { GBI_LATE_KEPT = 16 };

typedef struct gbi_late {
  bool used;
  uint32_t group;
  uint64_t seq;
  int *ranks;
  int count;
} gbi_late;

typedef struct gbi_round {
  struct gbi_round *next;
  uint32_t group, rounds;
} gbi_round;

struct gbi_control {
  /* Fixed once open returned. */
  gbi_control_params params;
  int rank, world;
  gbi_auth auth;
  uint8_t published_key[GBI_KEY_BYTES]; /* rank 0: auth's without secret */
  char attempt[256];
  char store_host[256];
  uint64_t heartbeat_ns;
  uint64_t opened_ns;
  gbi_who who; /* this rank */
  int epoll_fd, wake_fd;
  gbi_watch wake_watch, link_watch;
  pthread_t thread;
  bool thread_runs;
  gbi_store *store;   /* the opening thread's; closed after gathering */
  gbi_server *server; /* rank 0; gb-control's */

  /* Pairs: the release store under lock with every load outside of it. */
  atomic_bool failed;
  gb_error failure; /* immutable once failed */

  pthread_mutex_t lock;
  pthread_cond_t changed; /* anything below */
  gbi_channel link;       /* to rank 0; sends by any thread */
  uint32_t link_events;
  bool link_down;
  uint64_t heard_ns, beat_ns; /* gb-control's */
  gbi_who who0;
  bool announced; /* on_failure was called */
  bool stopping;
  bool cause_sent;
  gb_error cause;
  uint64_t cause_until_ns; /* then it counts by itself */
  bool rank0_left;
  uint64_t rank0_completed;
  bool left_acked;
  /* Rank 0's gathering: set by gb-control / by the caller. */
  bool gathered, accept;
  /* Answers. */
  bool verdict;
  uint8_t *verdict_data;
  size_t verdict_bytes;
  bool exchange_open, exchange_done;
  uint32_t exchange_group, exchange_round;
  uint8_t *exchange_data; /* a list of blobs; NULL with exchange_error */
  size_t exchange_bytes;
  gb_error exchange_error;
  gbi_round *rounds;
  gbi_late late[GBI_LATE_KEPT];
  int late_next;
};

/* rendezvous.c: rank 0 publishes, the others find, connect and join. */
gb_status gbi_control_publish(gbi_control *control, const gbi_address *list,
                              int count, const char *chosen, gb_error *error);
/* The addresses rank 0 listens on; `chosen` says why in a few words. */
void gbi_control_addresses(gbi_control *control, gbi_address *list,
                           int *count_p, char *chosen, size_t bytes);
gb_status gbi_control_new_auth(gbi_control *control, gb_error *error);
/* Leaves the joined connection in control->link. */
gb_status gbi_control_join(gbi_control *control, gb_error *error);
void gbi_control_read_settings(gbi_control *control);

/* member.c: gb-control's side of a rank's own connection. */
void *gbi_control_run(void *control);
/* Under lock. Marks the job as failed; gb-control calls on_failure. */
void gbi_control_fail_locked(gbi_control *control, const gb_error *error);
void gbi_control_push_locked(gbi_control *control, uint8_t type,
                             const gbi_writer *body);
void gbi_control_left_error_locked(gbi_control *control, const gbi_call *call,
                                   gb_error *error);
void gbi_control_wake(gbi_control *control);

#endif
