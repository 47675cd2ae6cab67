/* control, between its own files: rank 0's side of every connection. All calls
 * are made on rank 0's gb-control thread, except where they say otherwise. */
#ifndef GBI_CONTROL_SERVER_H
#define GBI_CONTROL_SERVER_H

#include "control/message.h"

#include <sys/epoll.h>

/* What epoll hands back: the first member of everything that is watched. */
typedef struct gbi_watch {
  enum { GBI_WATCH_WAKE, GBI_WATCH_LINK, GBI_WATCH_SERVER } kind;
} gbi_watch;

typedef struct gbi_server_params {
  int world;
  int epoll_fd;
  int own_fd; /* the server's end of rank 0's own pair; given */
  const gbi_auth *auth;
  const gbi_who *who;              /* rank 0 */
  uint64_t opened_ns, deadline_ns; /* of the gathering */
  uint64_t heartbeat_ns;
  bool (*report)(void *arg, uint32_t group, gbi_call_state *state);
  /* All records are here: gbi_server_record may be called now. */
  void (*gathered)(void *owner);
  void *arg;   /* report's */
  void *owner; /* gathered's */
} gbi_server_params;

typedef struct gbi_server gbi_server;

/* open and close: before the thread starts, after it ended. Listens on the
 * addresses of the list and leaves the bound ones in it: one that cannot be
 * bound (just gone, or tentative) is dropped while another is left. */
gb_status gbi_server_open(const gbi_server_params *params, gbi_address *list,
                          int *count_p, gbi_server **server_p, gb_error *error);
void gbi_server_close(gbi_server *server);

void gbi_server_event(gbi_server *server, gbi_watch *watch, uint32_t events);
/* Timers; returns when it wants to be called next. `frozen`: this process has
 * stood still, silence of others proves nothing. */
uint64_t gbi_server_tick(gbi_server *server, uint64_t now_ns, bool frozen);
/* A record as it came; any thread once `gathered` was called. */
void gbi_server_record(const gbi_server *server, int rank, gbi_reader *record);
/* Everybody gets the table. */
void gbi_server_accept(gbi_server *server);
/* Sends what is queued and waits for the others to close first. */
void gbi_server_drain(gbi_server *server);
bool gbi_server_drained(const gbi_server *server);
/* Ranks that never came and do not know yet why the job failed. Any thread. */
int gbi_server_untold(const gbi_server *server);

#endif
