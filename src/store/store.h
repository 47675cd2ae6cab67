/* store: how a job finds its rank 0.
 *
 * May call base and os. Must never carry anything big or live longer than the
 * opening of a job. Three kinds behind one interface: torch's TCPStore protocol
 * (client, and a server when nobody else serves it), a shared file, and a store
 * that the caller passes in. */
#ifndef GBI_STORE_STORE_H
#define GBI_STORE_STORE_H

#include "base/base.h"
#include "os/net.h"

#include <gpubridge/store.h>

#define GBI_STORE_VALUE_MAX 65536

typedef struct gbi_store gbi_store;

typedef struct gbi_store_ops {
  const char *name; /* "tcp", "file", "caller" */
  gb_status (*set)(gbi_store *store, const char *key, const void *value,
                   size_t bytes, gb_error *error);
  /* Waits until the key exists or the deadline: TIMEOUT. The value is copied
   * to `value`; longer than `bytes` is PROTOCOL. */
  gb_status (*get)(gbi_store *store, const char *key, void *value, size_t bytes,
                   size_t *bytes_p, uint64_t deadline_ns, gb_error *error);
  /* Adds and gives the new value back. UNSUPPORTED by the caller's store. */
  gb_status (*add)(gbi_store *store, const char *key, int64_t delta,
                   int64_t *value_p, gb_error *error);
  void (*close)(gbi_store *store); /* stops a server that it started too */
} gbi_store_ops;

struct gbi_store {
  const gbi_store_ops *ops;
  char host[256];      /* how this rank reaches the store's host; "" unknown */
  char described[320]; /* "MASTER_ADDR 10.0.0.1:29500", for error texts */
};

typedef struct gbi_store_params {
  const char *init_method; /* NULL: env:// */
  const gb_store *caller;  /* wins over init_method; borrowed for its life */
  int rank;
  int world_size;
  uint64_t deadline_ns;
  int (*wait_hook)(void *arg); /* about ten times a second; non-zero: stop */
  void *wait_hook_arg;
} gbi_store_params;

/* Opens what init_method names. tcp:// and env://: rank 0 serves unless
 * TORCHELASTIC_USE_AGENT_STORE says that somebody does; a port in use is an
 * error at once, with the port. Others connect, trying every address of the
 * name until the deadline. */
gb_status gbi_store_open(const gbi_store_params *params, gbi_store **store_p,
                         gb_error *error);

/* The store's own set and get. */
gb_status gbi_store_set(gbi_store *store, const char *key, const void *value,
                        size_t bytes, gb_error *error);
gb_status gbi_store_get(gbi_store *store, const char *key, void *value,
                        size_t bytes, size_t *bytes_p, uint64_t deadline_ns,
                        gb_error *error);

/* Whether init_method is well-formed and, for env://, its variables are there.
 * A job of one rank needs no store, but the same mistakes are told. */
gb_status gbi_store_validate(const gbi_store_params *params, gb_error *error);

/* The server alone, for tests and the tool: serves torch's clients too. */
typedef struct gbi_tcp_server gbi_tcp_server;
gb_status gbi_tcp_server_start(const gbi_address *address,
                               gbi_tcp_server **server_p, int *port_p,
                               gb_error *error);
void gbi_tcp_server_stop(gbi_tcp_server *server);

#endif
