#include "base/log.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define COMPONENTS_MAX 16

int gbi_log_most = GB_LOG_WARN;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* level: last */
static int default_level = GB_LOG_WARN;
static int log_rank = -1;
static struct {
  char name[24];
  int level;
} components[COMPONENTS_MAX];
static int components_count;
static gb_log_fn sink;
static void *sink_arg;

static const char *const level_names[] = {"error", "warn",  "info",
                                          "debug", "trace", "data"};

void gb_log_set(gb_log_fn fn, void *arg) {
  pthread_mutex_lock(&lock);
  sink = fn;
  sink_arg = arg;
  pthread_mutex_unlock(&lock);
}

void gbi_log_set_rank(int rank) { log_rank = rank; }

static int level_of(const char *word, size_t bytes) {
  for (int i = 0; i < (int)GBI_COUNT(level_names); i++)
    if (strlen(level_names[i]) == bytes &&
        !strncasecmp(level_names[i], word, bytes))
      return i;
  return -1;
}

static gb_status configure_one(const char *at, size_t bytes, gb_error *error) {
  const char *equals = memchr(at, '=', bytes);
  const char *word = equals ? equals + 1 : at;
  int level = level_of(word, bytes - (size_t)(word - at));
  if (level < 0)
    return gbi_fail(error, GB_ERR_SETTING,
                    "GPUBRIDGE_LOG has the unknown level \"%.*s\". Known: "
                    "error, warn, info, debug, trace, data",
                    (int)(bytes - (size_t)(word - at)), word);
  if (!equals) {
    default_level = level;
  } else if (components_count < COMPONENTS_MAX) {
    snprintf(components[components_count].name,
             sizeof components[components_count].name, "%.*s",
             (int)(equals - at), at);
    components[components_count++].level = level;
  }
  gbi_log_most = GBI_MAX(gbi_log_most, level);
  return GB_OK;
}

gb_status gbi_log_configure(const char *value, gb_error *error) {
  pthread_mutex_lock(&lock);
  default_level = GB_LOG_WARN;
  gbi_log_most = GB_LOG_WARN;
  components_count = 0;
  gb_status status = GB_OK;
  while (*value && status == GB_OK) {
    size_t bytes = strcspn(value, ",");
    if (bytes) status = configure_one(value, bytes, error);
    value += bytes + (value[bytes] == ',');
  }
  pthread_mutex_unlock(&lock);
  return status;
}

static bool wanted(gb_log_level level, const char *component) {
  for (int i = 0; i < components_count; i++)
    if (!strcmp(components[i].name, component))
      return (int)level <= components[i].level;
  return (int)level <= default_level;
}

void gbi_log_write(gb_log_level level, const char *component,
                   const char *format, ...) {
  char line[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(line, sizeof line, format, args);
  va_end(args);
  pthread_mutex_lock(&lock);
  bool on = wanted(level, component);
  gb_log_fn fn = sink;
  void *arg = sink_arg;
  int rank = log_rank;
  pthread_mutex_unlock(&lock);
  if (!on) return;
  if (fn) {
    fn(arg, level, component, line);
    return;
  }
  char who[24] = "";
  if (rank >= 0) snprintf(who, sizeof who, " rank %d", rank);
  fprintf(stderr, "gpubridge %s%s %s: %s\n", level_names[level], who,
          component, line);
}
