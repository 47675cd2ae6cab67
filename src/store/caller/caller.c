/* A store that the caller passes in: bounded, polite waits around its get. */
#include "store/kinds.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct caller_store {
  gbi_store base;
  gbi_store_wait wait;
  const gb_store *theirs;
} caller_store;

static gb_status caller_set(gbi_store *store, const char *key,
                            const void *value, size_t bytes, gb_error *error) {
  const gb_store *theirs = ((caller_store *)store)->theirs;
  char text[512] = "";
  if (!theirs->set(theirs->arg, key, value, bytes, text, sizeof text))
    return GB_OK;
  text[sizeof text - 1] = 0;
  return gbi_fail(error, GB_ERR_CONNECT,
                  "the caller's store could not set the key \"%s\": %s", key,
                  text[0] ? text : "it gave no reason");
}

static gb_status caller_get(gbi_store *store, const char *key, void *value,
                            size_t bytes, size_t *bytes_p, uint64_t deadline_ns,
                            gb_error *error) {
  caller_store *s = (caller_store *)store;
  const gb_store *theirs = s->theirs;
  for (;;) {
    char text[512] = "";
    size_t got = 0;
    uint64_t slice = (uint64_t)gbi_deadline_left_ms(deadline_ns, 100);
    int code = theirs->get(theirs->arg, key, value, bytes, &got, slice, text,
                           sizeof text);
    text[sizeof text - 1] = 0;
    if (code < 0)
      return gbi_fail(error, GB_ERR_CONNECT,
                      "the caller's store could not get the key \"%s\": %s",
                      key, text[0] ? text : "it gave no reason");
    if (code == 0 && got > bytes)
      return gbi_fail(error, GB_ERR_PROTOCOL,
                      "the caller's store gave a value of %zu bytes where at "
                      "most %zu were expected",
                      got, bytes);
    if (code == 0) {
      *bytes_p = got;
      return GB_OK;
    }
    GBI_TRY(gbi_store_check(&s->wait, error));
    if (gbi_deadline_passed(deadline_ns))
      return gbi_fail(error, GB_ERR_TIMEOUT,
                      "the key \"%s\" did not come in the caller's store", key);
    /* In case its get does not wait by itself. */
    GBI_TRY(gbi_store_pause(&s->wait, 2, error));
  }
}

static gb_status caller_add(gbi_store *store, const char *key, int64_t delta,
                            int64_t *value_p, gb_error *error) {
  return gbi_fail(error, GB_ERR_UNSUPPORTED,
                  "the caller's store has no counters");
}

static void caller_close(gbi_store *store) {
  free(store);
}

static const gbi_store_ops ops = {"caller", caller_set, caller_get, caller_add,
                                  caller_close};

gb_status gbi_store_caller_open(const gbi_store_params *params,
                                gbi_store **store_p, gb_error *error) {
  if (!params->caller->set || !params->caller->get)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "the caller's store needs both set and get");
  caller_store *s = gbi_calloc(1, sizeof *s);
  if (!s) return gbi_fail(error, GB_ERR_MEMORY, "out of memory for a store");
  s->base.ops = &ops;
  s->theirs = params->caller;
  s->wait = (gbi_store_wait){params->deadline_ns, params->wait_hook,
                             params->wait_hook_arg};
  if (params->caller->host)
    snprintf(s->base.host, sizeof s->base.host, "%s", params->caller->host);
  snprintf(s->base.described, sizeof s->base.described, "the caller's store");
  *store_p = &s->base;
  return GB_OK;
}
