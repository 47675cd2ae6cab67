#include "harness/gb_test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fnmatch.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS_MAX 64
#define SHARED_BYTES 65536
enum { SKIP_CODE = 77 };

static gb_test_case *cases;
static int my_rank, my_world = 1;
static const char *my_vendors;
static void *shared;

void gb_test_register(gb_test_case *test) {
  gb_test_case **at = &cases;
  while (*at) at = &(*at)->next;
  *at = test;
}

int gb_rank(void) { return my_rank; }
int gb_world(void) { return my_world; }
const char *gb_vendors(void) { return my_vendors; }
void *gb_test_shared(void) { return shared; }

void gb_test_fail(const char *file, int line, const char *format, ...) {
  va_list args;
  va_start(args, format);
  fprintf(stderr, "%s:%d: rank %d: ", file, line, my_rank);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
  fflush(NULL);
  _exit(1);
}

void gb_test_skip(const char *format, ...) {
  va_list args;
  va_start(args, format);
  fprintf(stderr, "skipped: ");
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
  fflush(NULL);
  _exit(SKIP_CODE);
}

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void gb_test_await(volatile int *word, int value, int timeout_ms) {
  int64_t end = now_ms() + timeout_ms;
  while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < value) {
    if (now_ms() > end)
      gb_test_fail(__FILE__, __LINE__, "waited %d ms for %d, saw %d",
                   timeout_ms, value, *word);
    struct timespec nap = {0, 500000};
    nanosleep(&nap, NULL);
  }
}

void gb_test_repeat(void *data, size_t period, size_t bytes) {
  for (size_t have = period; have < bytes;) {
    size_t more = have < bytes - have ? have : bytes - have;
    memcpy((char *)data + have, data, more);
    have += more;
  }
}

bool gb_test_repeats(const void *data, size_t period, size_t bytes) {
  return bytes <= period ||
         !memcmp(data, (const char *)data + period, bytes - period);
}

static int free_port(void) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address = {.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t bytes = sizeof address;
  if (bind(fd, (void *)&address, bytes) ||
      getsockname(fd, (void *)&address, &bytes))
    abort();
  close(fd);
  return ntohs(address.sin_port);
}

static void set_environment(const gb_test_case *test, int rank, int port) {
  char text[32];
  snprintf(text, sizeof text, "%d", rank);
  setenv("RANK", text, 1);
  setenv("LOCAL_RANK", text, 1);
  snprintf(text, sizeof text, "%d", test->ranks ? test->ranks : 1);
  setenv("WORLD_SIZE", text, 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  snprintf(text, sizeof text, "%d", port);
  setenv("MASTER_PORT", text, 1);
  if (test->vendors)
    setenv("GPUBRIDGE_VENDOR", test->vendors[rank] == 'a' ? "amd" : "nvidia",
           1);
  if (test->fault) setenv("GPUBRIDGE_FAULT", test->fault, 1);
}

static pid_t start_rank(const gb_test_case *test, int rank, int port,
                        int *output) {
  int pipes[2];
  if (pipe(pipes)) abort();
  fflush(NULL);
  pid_t pid = fork();
  if (pid < 0) abort();
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(pipes[1], 1);
    dup2(pipes[1], 2);
    close(pipes[0]);
    close(pipes[1]);
    my_rank = rank;
    my_world = test->ranks ? test->ranks : 1;
    my_vendors = test->vendors;
    set_environment(test, rank, port);
    test->run();
    fflush(NULL);
    exit(0);
  }
  setpgid(pid, pid);
  close(pipes[1]);
  *output = pipes[0];
  return pid;
}

typedef struct rank_state {
  pid_t pid;
  int output;
  bool running;
  int status;
  char *text;
  size_t used;
} rank_state;

/* False when the pipe is closed. */
static bool collect(rank_state *rank) {
  char chunk[4096];
  ssize_t n = read(rank->output, chunk, sizeof chunk);
  if (n < 0 && errno == EINTR) return true;
  if (n <= 0) return false;
  if (rank->used + (size_t)n < (1u << 20)) {
    rank->text = realloc(rank->text, rank->used + (size_t)n + 1);
    memcpy(rank->text + rank->used, chunk, (size_t)n);
    rank->used += (size_t)n;
    rank->text[rank->used] = 0;
  }
  return true;
}

/* Only looks: until watch() has signaled its group, a rank stays a zombie. Its
 * number would be given to a process of somebody else, which the signal would
 * kill instead. */
static bool still_run(rank_state *ranks, int count) {
  bool running = false;
  for (int i = 0; i < count; i++) {
    if (!ranks[i].running) continue;
    siginfo_t info = {.si_pid = 0};
    if (!waitid(P_PID, (id_t)ranks[i].pid, &info,
                WEXITED | WNOHANG | WNOWAIT) &&
        info.si_pid == ranks[i].pid)
      ranks[i].running = false;
    else
      running = true;
  }
  return running;
}

/* True when they all ended by themselves before the deadline. */
static bool watch(rank_state *ranks, int count, int timeout_ms) {
  int64_t end = now_ms() + timeout_ms;
  bool in_time = true;
  while (still_run(ranks, count)) {
    if (now_ms() > end && in_time) {
      in_time = false;
      for (int i = 0; i < count; i++)
        if (ranks[i].running) kill(-ranks[i].pid, SIGKILL);
    }
    struct pollfd fds[RANKS_MAX];
    int n = 0;
    for (int i = 0; i < count; i++)
      if (ranks[i].output >= 0)
        fds[n++] = (struct pollfd){ranks[i].output, POLLIN, 0};
    poll(fds, (nfds_t)n, 10);
    for (int i = 0, k = 0; i < count; i++) {
      if (ranks[i].output < 0) continue;
      if (fds[k++].revents && !collect(&ranks[i])) {
        close(ranks[i].output);
        ranks[i].output = -1;
      }
    }
  }
  for (int i = 0; i < count; i++) {
    kill(-ranks[i].pid, SIGKILL); /* what a rank left behind */
    waitpid(ranks[i].pid, &ranks[i].status, 0);
    if (ranks[i].output < 0) continue;
    while (collect(&ranks[i])) {
    }
    close(ranks[i].output);
  }
  return in_time;
}

static bool as_expected(const gb_test_case *test, int rank, int status) {
  char want = test->expect ? test->expect[rank] : '0';
  if (WIFSIGNALED(status))
    return want == 'k' && WTERMSIG(status) == SIGKILL;
  int code = WEXITSTATUS(status);
  switch (want) {
    case '0': return code == 0;
    case 'x': return code != 0;
    case '?': return true;
    default: return false;
  }
}

static void describe(const rank_state *rank, int index) {
  if (WIFSIGNALED(rank->status))
    printf("  rank %d died by signal %d\n", index, WTERMSIG(rank->status));
  else
    printf("  rank %d exited with %d\n", index, WEXITSTATUS(rank->status));
  if (rank->used) printf("%s%s", rank->text,
                         rank->text[rank->used - 1] == '\n' ? "" : "\n");
}

typedef enum verdict { PASSED, FAILED, SKIPPED } verdict;

static verdict run_case(const gb_test_case *test) {
#ifndef GPUBRIDGE_FAULTS
  if (test->fault) {
    printf("SKIP %s.%s: fault points are not compiled in\n", test->suite,
           test->name);
    return SKIPPED;
  }
#endif
  int count = test->ranks ? test->ranks : 1;
  int port = free_port();
  rank_state ranks[RANKS_MAX] = {{0}};
  memset(shared, 0, SHARED_BYTES);
  int64_t start = now_ms();
  for (int i = 0; i < count; i++) {
    ranks[i].pid = start_rank(test, i, port, &ranks[i].output);
    ranks[i].running = true;
  }
  bool in_time = watch(ranks, count,
                       test->timeout_ms ? test->timeout_ms : 30000);
  verdict result = in_time ? PASSED : FAILED;
  bool skipped = false;
  for (int i = 0; i < count; i++) {
    if (WIFEXITED(ranks[i].status) &&
        WEXITSTATUS(ranks[i].status) == SKIP_CODE)
      skipped = true;
    else if (!as_expected(test, i, ranks[i].status))
      result = FAILED;
  }
  if (result == PASSED && skipped) result = SKIPPED;
  static const char *const words[] = {"ok  ", "FAIL", "SKIP"};
  printf("%s %s.%s (%lld ms)%s\n", words[result], test->suite, test->name,
         (long long)(now_ms() - start), in_time ? "" : ": deadline passed");
  for (int i = 0; i < count; i++) {
    if (result != PASSED) describe(&ranks[i], i);
    free(ranks[i].text);
  }
  fflush(stdout);
  return result;
}

static bool selected(const gb_test_case *test, int argc, char **argv) {
  char full[256], skip[512];
  snprintf(full, sizeof full, "%s.%s", test->suite, test->name);
  const char *listed = getenv("GB_TEST_LEAVE_OUT");
  snprintf(skip, sizeof skip, "%s", listed ? listed : "");
  for (char *one, *rest = skip; (one = strtok_r(rest, ",", &rest));)
    if (!fnmatch(one, full, 0)) return false;
  for (int i = 1; i < argc; i++)
    if (!fnmatch(argv[i], full, 0)) return true;
  return argc < 2;
}

int main(int argc, char **argv) {
  if (argc == 2 && !strcmp(argv[1], "--list")) {
    for (gb_test_case *t = cases; t; t = t->next)
      printf("%s.%s\n", t->suite, t->name);
    return 0;
  }
  shared = mmap(NULL, SHARED_BYTES, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int counts[3] = {0};
  for (gb_test_case *t = cases; t; t = t->next)
    if (selected(t, argc, argv)) counts[run_case(t)]++;
  printf("%d passed, %d failed, %d skipped\n", counts[PASSED], counts[FAILED],
         counts[SKIPPED]);
  if (counts[FAILED]) return 1;
  return counts[PASSED] ? 0 : SKIP_CODE;
}
