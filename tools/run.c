/* gpubridge run: a launcher for one machine.
 *
 * Every rank is a child in a process group of its own. Its output comes out
 * line by line behind its rank. When a rank fails, the others get a grace time
 * to end by themselves (they usually raise the same sentence), then SIGTERM,
 * then SIGKILL. Signals are passed on. When the launcher itself is killed, the
 * kernel kills the ranks. */
#include "tool.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS_MAX = 1024, TERM_SECONDS = 5, LINE_MAX_BYTES = 8192 };

typedef struct child {
  pid_t pid;
  bool running;
  int status;
  int out;
  char line[LINE_MAX_BYTES];
  size_t used;
} child;

typedef struct launch {
  child *children;
  int count;
  bool prefix;
  int grace_s;
  int first_failed;   /* rank, -1 none */
  time_t failed_at;
  bool terminated, killed;
} launch;

/* ---- islands ---- */

static int parse_one(const char *at, size_t bytes, int max, tool_rank *rank) {
  char text[160];
  if (bytes >= sizeof text) return -1;
  memcpy(text, at, bytes);
  text[bytes] = 0;
  char *colon = strrchr(text, ':');
  long count = 1;
  if (colon) {
    char *end;
    count = strtol(colon + 1, &end, 10);
    if (*end || end == colon + 1 || count < 1 || count > max) return -1;
    *colon = 0;
  }
  char *host = strchr(text, '@');
  memset(rank, 0, sizeof *rank);
  if (host) {
    *host++ = 0;
    if (strlen(host) >= sizeof rank->hostname) return -1;
    snprintf(rank->hostname, sizeof rank->hostname, "%s", host);
  }
  if (!text[0] || strlen(text) >= sizeof rank->label) return -1;
  snprintf(rank->label, sizeof rank->label, "%s", text);
  return (int)count;
}

int tool_parse_islands(const char *text, tool_rank *ranks, int max) {
  int total = 0;
  const char *at = text;
  while (*at) {
    size_t bytes = strcspn(at, ",");
    tool_rank one;
    int count = parse_one(at, bytes, max, &one);
    if (count < 0 || total + count > max) {
      fprintf(stderr,
              "gpubridge: \"%.*s\" is not an island. Wanted: "
              "LABEL[@HOST]:RANKS, like nvidia:2,amd:2, at most %d ranks\n",
              (int)bytes, at, max);
      return -1;
    }
    for (int i = 0; i < count; i++) ranks[total++] = one;
    at += bytes + (at[bytes] == ',');
  }
  if (!total) fprintf(stderr, "gpubridge: --islands is empty\n");
  return total ? total : -1;
}

/* ---- starting ---- */

static int free_port(void) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_in address = {.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t bytes = sizeof address;
  int port = -1;
  if (fd >= 0 && !bind(fd, (void *)&address, bytes) &&
      !getsockname(fd, (void *)&address, &bytes))
    port = ntohs(address.sin_port);
  if (fd >= 0) close(fd);
  return port;
}

static void set_number(const char *name, int value) {
  char text[16];
  snprintf(text, sizeof text, "%d", value);
  setenv(name, text, 1);
}

static void set_environment(const tool_rank *ranks, int count, int rank,
                            int port) {
  set_number("RANK", rank);
  set_number("LOCAL_RANK", rank);
  set_number("WORLD_SIZE", count);
  set_number("LOCAL_WORLD_SIZE", count);
  set_number("MASTER_PORT", port);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  const char *label = ranks[rank].label;
  bool vendor = !strcasecmp(label, "nvidia") || !strcasecmp(label, "amd");
  setenv("GPUBRIDGE_VENDOR", vendor ? label : "nvidia", 1);
  if (!vendor) setenv("GPUBRIDGE_ISLAND", label, 1);
  if (ranks[rank].hostname[0])
    setenv("GPUBRIDGE_SIM_HOSTNAME", ranks[rank].hostname, 1);
}

static int start_child(child *c, const tool_rank *ranks, int count, int rank,
                       int port, char **program, const sigset_t *mask) {
  int pipes[2];
  pid_t launcher = getpid();
  if (pipe2(pipes, O_CLOEXEC)) return -1;
  c->pid = fork();
  if (c->pid < 0) return -1;
  if (c->pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(1); /* it died before prctl */
    sigprocmask(SIG_SETMASK, mask, NULL);
    dup2(pipes[1], 1);
    dup2(pipes[1], 2);
    set_environment(ranks, count, rank, port);
    execvp(program[0], program);
    fprintf(stderr, "gpubridge: cannot run \"%s\": %s\n", program[0],
            strerror(errno));
    _exit(127);
  }
  setpgid(c->pid, c->pid);
  close(pipes[1]);
  c->out = pipes[0];
  c->running = true;
  return 0;
}

/* ---- output ---- */

static void print_line(const launch *l, int rank, const char *text, size_t n) {
  if (l->prefix)
    printf("[%d] %.*s\n", rank, (int)n, text);
  else
    printf("%.*s\n", (int)n, text);
}

/* Whole lines as they come; \r lines (progress bars) count as lines. */
static void read_output(launch *l, int rank) {
  child *c = &l->children[rank];
  ssize_t n = read(c->out, c->line + c->used, sizeof c->line - c->used);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (n <= 0) {
    if (c->used) print_line(l, rank, c->line, c->used);
    c->used = 0;
    close(c->out);
    c->out = -1;
    return;
  }
  c->used += (size_t)n;
  size_t start = 0;
  for (size_t i = 0; i < c->used; i++)
    if (c->line[i] == '\n') {
      print_line(l, rank, c->line + start, i - start);
      start = i + 1;
    }
  if (!start && c->used == sizeof c->line) { /* a line longer than the room */
    print_line(l, rank, c->line, c->used);
    start = c->used;
  }
  memmove(c->line, c->line + start, c->used - start);
  c->used -= start;
  fflush(stdout);
}

/* ---- ending ---- */

static int exit_code(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void signal_all(const launch *l, int number) {
  for (int i = 0; i < l->count; i++)
    if (l->children[i].running) kill(-l->children[i].pid, number);
}

/* Notes who ended; true while any rank runs. */
static bool reap(launch *l) {
  bool running = false;
  for (int i = 0; i < l->count; i++) {
    child *c = &l->children[i];
    if (!c->running) continue;
    if (waitpid(c->pid, &c->status, WNOHANG) != c->pid) {
      running = true;
      continue;
    }
    c->running = false;
    kill(-c->pid, SIGKILL); /* what it left in its group */
    if (exit_code(c->status) && l->first_failed < 0) {
      l->first_failed = i;
      l->failed_at = time(NULL);
    }
  }
  return running;
}

static void end_others(launch *l) {
  if (l->first_failed < 0) return;
  time_t waited = time(NULL) - l->failed_at;
  if (!l->terminated && waited >= l->grace_s) {
    l->terminated = true;
    signal_all(l, SIGTERM);
  } else if (!l->killed && waited >= l->grace_s + TERM_SECONDS) {
    l->killed = true;
    signal_all(l, SIGKILL);
  }
}

static void pass_signal(launch *l, int fd) {
  struct signalfd_siginfo info;
  if (read(fd, &info, sizeof info) != sizeof info) return;
  if (info.ssi_signo == SIGCHLD) return;
  signal_all(l, (int)info.ssi_signo);
}

static void watch(launch *l, int signal_fd) {
  struct pollfd *fds = calloc((size_t)l->count + 1, sizeof *fds);
  bool open = true;
  while (reap(l) || open) {
    end_others(l);
    int n = 0;
    fds[n++] = (struct pollfd){signal_fd, POLLIN, 0};
    open = false;
    for (int i = 0; i < l->count; i++)
      if (l->children[i].out >= 0) {
        fds[n++] = (struct pollfd){l->children[i].out, POLLIN, 0};
        open = true;
      }
    if (poll(fds, (nfds_t)n, 200) <= 0) continue;
    if (fds[0].revents) pass_signal(l, signal_fd);
    for (int i = 0, k = 1; i < l->count && k < n; i++)
      if (l->children[i].out >= 0 && fds[k++].revents) read_output(l, i);
  }
  free(fds);
}

static int summarize(const launch *l) {
  if (l->first_failed < 0) return 0;
  int status = l->children[l->first_failed].status;
  fflush(stdout);
  for (int i = 0; i < l->count; i++) {
    int s = l->children[i].status;
    if (!exit_code(s)) continue;
    fprintf(stderr, "gpubridge: rank %d %s %d%s\n", i,
            WIFSIGNALED(s) ? "was ended by signal" : "exited with code",
            WIFSIGNALED(s) ? WTERMSIG(s) : WEXITSTATUS(s),
            i == l->first_failed ? " (the first to fail)" : "");
  }
  return exit_code(status);
}

int tool_launch(const tool_rank *ranks, int count, int port, int grace_s,
                bool prefix, char **program) {
  launch l = {.count = count,
              .prefix = prefix,
              .grace_s = grace_s,
              .first_failed = -1};
  l.children = calloc((size_t)count, sizeof *l.children);
  if (!port) port = free_port();
  sigset_t mask, old;
  sigemptyset(&mask);
  static const int passed[] = {SIGINT,  SIGTERM, SIGHUP, SIGQUIT,
                               SIGUSR1, SIGUSR2, SIGCHLD};
  for (size_t i = 0; i < sizeof passed / sizeof passed[0]; i++)
    sigaddset(&mask, passed[i]);
  sigprocmask(SIG_BLOCK, &mask, &old);
  int signal_fd = signalfd(-1, &mask, SFD_CLOEXEC);
  int started = 0;
  while (started < count &&
         !start_child(&l.children[started], ranks, count, started, port,
                      program, &old))
    started++;
  if (started < count) {
    fprintf(stderr, "gpubridge: could not start rank %d: %s\n", started,
            strerror(errno));
    l.count = started;
    signal_all(&l, SIGKILL);
  }
  watch(&l, signal_fd);
  int code = started < count ? 1 : summarize(&l);
  close(signal_fd);
  sigprocmask(SIG_SETMASK, &old, NULL);
  free(l.children);
  return code;
}

int tool_launch_myself(const char *islands, int argc, char **argv) {
  static tool_rank ranks[RANKS_MAX];
  int world = tool_parse_islands(islands, ranks, RANKS_MAX);
  if (world < 0) return EXIT_USAGE;
  char self[4096];
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  if (n < 0) {
    fprintf(stderr, "gpubridge %s: cannot find this program: %s\n", argv[0],
            strerror(errno));
    return 1;
  }
  self[n] = 0;
  char **program = calloc((size_t)argc + 2, sizeof *program);
  if (!program) return 1;
  program[0] = self;
  for (int i = 0; i < argc; i++) program[i + 1] = argv[i];
  int code = tool_launch(ranks, world, 0, 5, false, program);
  free(program);
  return code;
}

/* ---- the command ---- */

static void usage(FILE *out) {
  fprintf(out,
          "usage: gpubridge run [OPTIONS] -- PROGRAM [ARGS]\n\n"
          "  --islands LIST      LABEL[@HOST]:RANKS, comma-separated, in rank "
          "order\n"
          "                      (default nvidia:2,amd:2). nvidia and amd "
          "simulate that\n"
          "                      vendor; another label is an island of its "
          "own. @HOST\n"
          "                      pretends that the ranks are on that host\n"
          "  --master-port PORT  (default: a free one)\n"
          "  --grace SECONDS     how long the others may take to end after a "
          "rank failed\n"
          "                      before they get SIGTERM (default 10)\n"
          "  --no-prefix         output without the rank in front\n");
}

int tool_run(int argc, char **argv) {
  static const struct option options[] = {
      {"islands", required_argument, NULL, 'i'},
      {"master-port", required_argument, NULL, 'p'},
      {"grace", required_argument, NULL, 'g'},
      {"no-prefix", no_argument, NULL, 'n'},
      {"help", no_argument, NULL, 'h'},
      {0}};
  const char *islands = "nvidia:2,amd:2";
  int port = 0, grace_s = 10, c;
  bool prefix = true;
  while ((c = getopt_long(argc, argv, "+h", options, NULL)) != -1) {
    switch (c) {
      case 'i': islands = optarg; break;
      case 'p': port = (int)strtol(optarg, NULL, 10); break;
      case 'g': grace_s = (int)strtol(optarg, NULL, 10); break;
      case 'n': prefix = false; break;
      case 'h': usage(stdout); return 0;
      default: usage(stderr); return EXIT_USAGE;
    }
  }
  if (optind >= argc || port < 0 || port > 65535 || grace_s < 0) {
    usage(stderr);
    return EXIT_USAGE;
  }
  static tool_rank ranks[RANKS_MAX];
  int count = tool_parse_islands(islands, ranks, RANKS_MAX);
  if (count < 0) return EXIT_USAGE;
  return tool_launch(ranks, count, port, grace_s, prefix, argv + optind);
}
