/* store, between its own files: the three kinds, and how they wait. */
#ifndef GBI_STORE_KINDS_H
#define GBI_STORE_KINDS_H

#include "store/store.h"

/* How long and how politely a store may wait. */
typedef struct gbi_store_wait {
  uint64_t deadline_ns;
  int (*hook)(void *arg);
  void *hook_arg;
} gbi_store_wait;

/* Calls the hook; INTERRUPTED when it says stop. */
gb_status gbi_store_check(const gbi_store_wait *wait, gb_error *error);
/* The same, then sleeps `ms` (at most 100), but not past the deadline. */
gb_status gbi_store_pause(const gbi_store_wait *wait, int ms, gb_error *error);

/* `variable` is what the user wrote the address in, for error texts. */
typedef struct gbi_store_place {
  char host[256];
  int port;
  const char *variable; /* "MASTER_ADDR" or "init_method" */
  char described[320];
} gbi_store_place;

gb_status gbi_store_tcp_open(const gbi_store_params *params,
                             const gbi_store_place *place, bool serve,
                             gbi_store **store_p, gb_error *error);
gb_status gbi_store_file_open(const gbi_store_params *params, const char *path,
                              gbi_store **store_p, gb_error *error);
gb_status gbi_store_caller_open(const gbi_store_params *params,
                                gbi_store **store_p, gb_error *error);

/* A server on several addresses with one port. */
gb_status gbi_tcp_server_start_all(const gbi_address *addresses, int count,
                                   gbi_tcp_server **server_p, int *port_p,
                                   gb_error *error);

#endif
