#include "fakes/dying.h"

#include "harness/gb_test.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TEXT_BYTES = 16384 };

static int run(void (*what)(void), char *text) {
  int ends[2];
  if (pipe(ends)) abort();
  fflush(NULL);
  pid_t pid = fork();
  if (pid < 0) abort();
  if (pid == 0) {
    dup2(ends[1], 2);
    close(ends[0]);
    close(ends[1]);
    what();
    exit(0);
  }
  close(ends[1]);
  size_t used = 0;
  ssize_t n;
  while ((n = read(ends[0], text + used, TEXT_BYTES - 1 - used)) > 0)
    used += (size_t)n;
  text[used] = 0;
  close(ends[0]);
  int status;
  if (waitpid(pid, &status, 0) != pid) abort();
  fputs(text, stderr);
  return status;
}

void dies(void (*what)(void), const char *const *texts) {
  char text[TEXT_BYTES];
  int status = run(what, text);
  if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
    gb_test_fail(__FILE__, __LINE__, "the child was not aborted: status %d",
                 status);
  for (int i = 0; texts && texts[i]; i++) GB_CHECK_TEXT(text, texts[i]);
}

void crashes(void (*what)(void)) {
  char text[TEXT_BYTES];
  int status = run(what, text);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
    gb_test_fail(__FILE__, __LINE__, "the child lived");
  if (WIFEXITED(status)) GB_CHECK_TEXT(text, "SEGV");
}

void ends_with(void (*what)(void), const char *text) {
  char got[TEXT_BYTES];
  int status = run(what, got);
  GB_CHECK(WIFEXITED(status) && WEXITSTATUS(status) != 0);
  GB_CHECK_TEXT(got, text);
}

int lives(void (*what)(void)) {
  char text[TEXT_BYTES];
  struct timespec before, after;
  clock_gettime(CLOCK_MONOTONIC, &before);
  int status = run(what, text);
  clock_gettime(CLOCK_MONOTONIC, &after);
  GB_CHECK_INT(status, 0);
  return (int)((after.tv_sec - before.tv_sec) * 1000 +
               (after.tv_nsec - before.tv_nsec) / 1000000);
}
