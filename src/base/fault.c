#include "base/fault.h"

#ifdef GPUBRIDGE_FAULTS

#include "base/config.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RULES_MAX = 16 };
enum { DO_DELAY = 100, DO_KILL, DO_FREEZE, DO_HANG };

typedef struct rule {
  char place[32];
  int action; /* gbi_fault or DO_ */
  long nth;
  long seen;
} rule;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* level: last */
static rule rules[RULES_MAX];
static int rules_count = -1;

static int action_of(const char *word) {
  static const struct {
    const char *word;
    int action;
  } words[] = {{"fail", GBI_FAULT_FAIL},   {"again", GBI_FAULT_AGAIN},
               {"short", GBI_FAULT_SHORT}, {"corrupt", GBI_FAULT_CORRUPT},
               {"delay", DO_DELAY},        {"kill", DO_KILL},
               {"freeze", DO_FREEZE},      {"hang", DO_HANG}};
  for (size_t i = 0; i < GBI_COUNT(words); i++)
    if (!strcmp(words[i].word, word)) return words[i].action;
  /* A test with a misspelt fault must not pass for one without. */
  fprintf(stderr, "GPUBRIDGE_FAULT: unknown action \"%s\"\n", word);
  abort();
}

static void read_rule(char *text, long rank) {
  rule r = {.nth = 1};
  char *part = strtok_r(text, ":", &text);
  if (!part) return;
  char *at = strchr(part, '@');
  if (at) *at++ = 0;
  snprintf(r.place, sizeof r.place, "%s", part);
  while ((part = strtok_r(NULL, ":", &text))) {
    if (!strncmp(part, "nth=", 4))
      r.nth = strtol(part + 4, NULL, 10);
    else
      r.action = action_of(part);
  }
  if (at && strtol(at, NULL, 10) != rank) return;
  if (rules_count < RULES_MAX) rules[rules_count++] = r;
}

static void read_rules(void) {
  char text[1024], rank[16] = "-1";
  rules_count = 0;
  gbi_env("RANK", rank, sizeof rank);
  if (!gbi_env("GPUBRIDGE_FAULT", text, sizeof text)) return;
  char *rest = text, *one;
  while ((one = strtok_r(rest, ",", &rest)))
    read_rule(one, strtol(rank, NULL, 10));
}

static void note_strike(const rule *r) {
  char path[1024], line[128];
  if (!gbi_env("GPUBRIDGE_FAULT_LOG", path, sizeof path)) return;
  int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return;
  int n = snprintf(line, sizeof line, "%s nth %ld\n", r->place, r->nth);
  if (write(fd, line, (size_t)n) != n) abort();
  close(fd);
}

static void nap(long ms) {
  struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

gbi_fault gbi_fault_at(const char *place) {
  int action = GBI_FAULT_NONE;
  pthread_mutex_lock(&lock);
  if (rules_count < 0) read_rules();
  for (int i = 0; i < rules_count; i++) {
    if (strcmp(rules[i].place, place) || ++rules[i].seen != rules[i].nth)
      continue;
    action = rules[i].action;
    note_strike(&rules[i]);
  }
  pthread_mutex_unlock(&lock);
  switch (action) {
    case DO_DELAY: nap(50); return GBI_FAULT_NONE;
    case DO_KILL: raise(SIGKILL); return GBI_FAULT_NONE;
    case DO_FREEZE: raise(SIGSTOP); return GBI_FAULT_NONE;
    case DO_HANG: nap(60000); return GBI_FAULT_NONE;
    default: return (gbi_fault)action;
  }
}

void gbi_fault_flip(void *data, size_t bytes) {
  char rank[16];
  if (!bytes) return;
  /* By the rank and the rules: a run can be repeated, and a whole torture
   * meets many bits. */
  pthread_mutex_lock(&lock);
  uint64_t mix = (uint64_t)rules_count;
  for (int i = 0; i < rules_count; i++)
    mix = mix * 1000003 + (uint64_t)rules[i].nth * 7919;
  if (gbi_env("RANK", rank, sizeof rank)) mix += strtoul(rank, NULL, 10);
  pthread_mutex_unlock(&lock);
  uint64_t bit = mix * UINT64_C(0x9e3779b97f4a7c15) % (bytes * 8);
  ((uint8_t *)data)[bit / 8] ^= (uint8_t)(1u << bit % 8);
}

bool gbi_decode_fault(const void *data, size_t bytes) {
  gbi_fault fault = GBI_FAULT("wire.decode");
  if (fault == GBI_FAULT_CORRUPT) gbi_fault_flip((void *)data, bytes);
  return fault == GBI_FAULT_FAIL;
}

#endif
