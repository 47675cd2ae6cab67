#include "store/store.h"

#include "base/config.h"
#include "base/fault.h"
#include "store/kinds.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

gb_status gbi_store_check(const gbi_store_wait *wait, gb_error *error) {
  if (wait->hook && wait->hook(wait->hook_arg))
    return gbi_fail(error, GB_ERR_INTERRUPTED,
                    "interrupted while looking for the job's rank 0");
  return GB_OK;
}

gb_status gbi_store_pause(const gbi_store_wait *wait, int ms, gb_error *error) {
  GBI_TRY(gbi_store_check(wait, error));
  int left = gbi_deadline_left_ms(wait->deadline_ns, GBI_MIN(ms, 100));
  struct timespec nap = {0, (long)left * 1000000};
  nanosleep(&nap, NULL);
  return GB_OK;
}

static const char launcher_hint[] =
    ". A launcher such as torchrun sets it; without one, give init_method "
    "tcp://host:port or file:///path";

static void describe(gbi_store_place *place, const char *what) {
  bool v6 = strchr(place->host, ':') != NULL;
  snprintf(place->described, sizeof place->described, "%s%s%s%s:%d", what,
           v6 ? "[" : "", place->host, v6 ? "]" : "", place->port);
}

/* "[::1]" is taken for "::1", as people write it in both ways. */
static void strip_brackets(char *host) {
  size_t n = strlen(host);
  if (n < 2 || host[0] != '[' || host[n - 1] != ']') return;
  memmove(host, host + 1, n - 2);
  host[n - 2] = 0;
}

static gb_status place_from_env(gbi_store_place *place, gb_error *error) {
  char port[32];
  place->variable = "MASTER_ADDR";
  if (!gbi_env("MASTER_ADDR", place->host, sizeof place->host))
    return gbi_fail(error, GB_ERR_SETTING, "MASTER_ADDR is not set%s",
                    launcher_hint);
  if (!gbi_env("MASTER_PORT", port, sizeof port))
    return gbi_fail(error, GB_ERR_SETTING, "MASTER_PORT is not set%s",
                    launcher_hint);
  char *end;
  errno = 0;
  long number = strtol(port, &end, 10);
  if (errno || end == port || *end || number < 1 || number > 65535)
    return gbi_fail(error, GB_ERR_SETTING,
                    "MASTER_PORT is \"%s\", but must be a port from 1 to 65535"
                    "%s",
                    port, launcher_hint);
  place->port = (int)number;
  strip_brackets(place->host);
  describe(place, "MASTER_ADDR:MASTER_PORT ");
  return GB_OK;
}

static gb_status place_from_url(const char *url, gbi_store_place *place,
                                gb_error *error) {
  char text[512];
  place->variable = "init_method";
  snprintf(text, sizeof text, "%s", url + strlen("tcp://"));
  text[strcspn(text, "/?")] = 0; /* torch allows a path and a query */
  GBI_TRY(gbi_split_host_port(text, place->host, sizeof place->host,
                              &place->port, error));
  describe(place, "tcp://");
  return GB_OK;
}

static gb_status path_from_url(const char *url, char *path, size_t bytes,
                               gb_error *error) {
  const char *start = url + strlen("file://");
  size_t n = strcspn(start, "?");
  if (start[0] != '/')
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "init_method \"%s\" has no absolute path: "
                    "file:///path/to/file is wanted",
                    url);
  if (n >= bytes)
    return gbi_fail(error, GB_ERR_ARGUMENT, "init_method \"%s\" is too long",
                    url);
  memcpy(path, start, n);
  path[n] = 0;
  return GB_OK;
}

enum { PATH_BYTES = 4096 };

static const char *url_of(const gbi_store_params *params) {
  return params->init_method ? params->init_method : "env://";
}

/* Fills `path` for a file, else `place`. */
static gb_status read_url(const char *url, gbi_store_place *place,
                          char path[PATH_BYTES], gb_error *error) {
  path[0] = 0;
  if (!strncmp(url, "file://", 7))
    return path_from_url(url, path, PATH_BYTES, error);
  if (!strncmp(url, "tcp://", 6)) return place_from_url(url, place, error);
  if (!strncmp(url, "env://", 6)) return place_from_env(place, error);
  return gbi_fail(error, GB_ERR_ARGUMENT,
                  "init_method \"%s\" is not known: env://, tcp://host:port "
                  "or file:///path is wanted",
                  url);
}

gb_status gbi_store_validate(const gbi_store_params *params, gb_error *error) {
  char path[PATH_BYTES];
  gbi_store_place place = {.port = 0};
  if (params->caller) return GB_OK;
  return read_url(url_of(params), &place, path, error);
}

gb_status gbi_store_open(const gbi_store_params *params, gbi_store **store_p,
                         gb_error *error) {
  char path[PATH_BYTES], agent[16];
  gbi_store_place place = {.port = 0};
  const char *url = url_of(params);
  if (params->caller) return gbi_store_caller_open(params, store_p, error);
  GBI_TRY(read_url(url, &place, path, error));
  if (path[0]) return gbi_store_file_open(params, path, store_p, error);
  /* torchrun's agent serves MASTER_PORT itself and says so. */
  bool served = gbi_env("TORCHELASTIC_USE_AGENT_STORE", agent, sizeof agent) &&
                !strcasecmp(agent, "True") && url[0] == 'e';
  return gbi_store_tcp_open(params, &place, params->rank == 0 && !served,
                            store_p, error);
}

gb_status gbi_store_set(gbi_store *store, const char *key, const void *value,
                        size_t bytes, gb_error *error) {
  if (GBI_FAULT("store.set") == GBI_FAULT_FAIL)
    return gbi_fail(error, GB_ERR_PEER, "lost the store at %s",
                    store->described);
  return store->ops->set(store, key, value, bytes, error);
}

gb_status gbi_store_get(gbi_store *store, const char *key, void *value,
                        size_t bytes, size_t *bytes_p, uint64_t deadline_ns,
                        gb_error *error) {
  gbi_fault fault = GBI_FAULT("store.get");
  if (fault == GBI_FAULT_FAIL)
    return gbi_fail(error, GB_ERR_PEER, "lost the store at %s",
                    store->described);
  gb_status status =
      store->ops->get(store, key, value, bytes, bytes_p, deadline_ns, error);
  if (fault == GBI_FAULT_CORRUPT && status == GB_OK)
    gbi_fault_flip(value, *bytes_p);
  return status;
}
