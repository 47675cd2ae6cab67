/* Proves that forked children count and close what they must not hold. */
#include "os/fork.h"
#include "harness/gb_test.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

static bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

GB_TEST(fork, children_close_what_they_are_told) {
  int closed[2], kept[2];
  GB_CHECK(!pipe(closed) && !pipe(kept));
  unsigned before = gbi_fork_count();
  for (int i = 0; i < 2; i++) {
    gbi_fork_closes(closed[i]);
    gbi_fork_closes(kept[i]);
    gbi_fork_keeps(kept[i]);
  }
  gbi_fork_closes(-1);
  gbi_fork_closes(1 << 30);
  pid_t child = fork();
  if (!child) {
    bool right = gbi_fork_count() == before + 1;
    for (int i = 0; i < 2; i++)
      right = right && !is_open(closed[i]) && is_open(kept[i]);
    int again = dup(kept[0]); /* gets a number that was closed */
    pid_t grandchild = fork();
    if (!grandchild) _exit(is_open(again) ? 0 : 1);
    int status;
    waitpid(grandchild, &status, 0);
    _exit(right && !status ? 0 : 1);
  }
  int status;
  waitpid(child, &status, 0);
  GB_CHECK_INT(status, 0);
  GB_CHECK_INT(gbi_fork_count(), before);
  for (int i = 0; i < 2; i++) GB_CHECK(is_open(closed[i]) && is_open(kept[i]));
}
