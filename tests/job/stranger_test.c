/* A whole job among strangers and on a poor machine.
 *
 * Scanners that connect to every port while the job comes up do no harm: it
 * opens within 20 s and sums right (S119 connections that say nothing, S120
 * noise, S121 half a greeting and a wrong proof, S122 absurd lengths). Ports
 * are open on the chosen address only, and none after the close. A /dev/shm
 * without room is not needed (S058). Few descriptors: the job works, or every
 * rank says "open files" (S060). 32 ranks (S020). */
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "job/job.h"

enum { RANKS_MAX = 32, PORTS_MAX = 64, HELD_MAX = 900, CROWD = 100 };

typedef struct board {
  volatile int pids[RANKS_MAX];
  volatile int started;
  volatile int rounds; /* of the scanner over all ports */
  volatile int most_ports;
  volatile int delays; /* how often a rank was held up for the scanner */
  volatile int stop;
  volatile int scanner_ended;
  char outside[128]; /* a listening address that is not the chosen one */
  char texts[RANKS_MAX][GB_ERROR_TEXT_MAX];
} board;

/* ---- which ports do these processes listen on ---- */

typedef struct port {
  unsigned long inode;
  int number;
  bool loopback;
} port;

/* Lines of /proc/net/tcp and tcp6 in state 0A. */
static int listening(const char *path, port *list, int count) {
  FILE *file = fopen(path, "r");
  char line[512], address[64];
  while (file && fgets(line, sizeof line, file)) {
    unsigned number, state;
    unsigned long inode;
    if (sscanf(line,
               " %*d: %63[0-9A-F]:%x %*[0-9A-F]:%*x %x %*s %*s %*s %*s "
               "%*s %lu",
               address, &number, &state, &inode) != 4 ||
        state != 0x0a || count >= PORTS_MAX * 8)
      continue;
    list[count++] = (port){inode, (int)number, !strcmp(address, "0100007F")};
  }
  if (file) fclose(file);
  return count;
}

static int ports_of(int pid, const port *all, int all_count, port *mine,
                    int count) {
  char path[64], name[320], link[64];
  snprintf(path, sizeof path, "/proc/%d/fd", pid);
  DIR *folder = opendir(path);
  struct dirent *entry;
  while (folder && (entry = readdir(folder))) {
    unsigned long inode;
    snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
    ssize_t n = readlink(name, link, sizeof link - 1);
    if (n <= 0) continue;
    link[n] = 0;
    if (sscanf(link, "socket:[%lu]", &inode) != 1) continue;
    for (int i = 0; i < all_count; i++)
      if (all[i].inode == inode && count < PORTS_MAX) mine[count++] = all[i];
  }
  if (folder) closedir(folder);
  return count;
}

static int ports_now(const volatile int *pids, int pids_count, port *mine) {
  static port all[PORTS_MAX * 8];
  int all_count = listening("/proc/net/tcp", all, 0), count = 0;
  all_count = listening("/proc/net/tcp6", all, all_count);
  for (int i = 0; i < pids_count; i++)
    if (pids[i]) count = ports_of(pids[i], all, all_count, mine, count);
  return count;
}

/* ---- the scanner ---- */

static int held[HELD_MAX], held_at;

/* Open until HELD_MAX later ones came. */
static void hold(int fd) {
  if (held[held_at]) close(held[held_at]);
  held[held_at] = fd;
  held_at = (held_at + 1) % HELD_MAX;
}

static int dial(int number) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  struct sockaddr_in to = {.sin_family = AF_INET,
                           .sin_port = htons((uint16_t)number),
                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (fd < 0) return -1;
  if (syscall(SYS_connect, fd, &to, sizeof to) && errno != EINPROGRESS) {
    close(fd);
    return -1;
  }
  struct pollfd one = {fd, POLLOUT, 0};
  poll(&one, 1, 200);
  return fd;
}

static void say(int number, const void *data, size_t bytes, bool stay) {
  int fd = dial(number);
  if (fd < 0) return;
  (void)!send(fd, data, bytes, MSG_NOSIGNAL);
  if (stay)
    hold(fd);
  else
    close(fd);
}

/* magic, version, kind control, stream, group, comm, from 2, to 0, settings,
 * then a job id, a nonce and a proof that nobody gave us. */
static void fill_hello(uint8_t hello[116]) {
  memset(hello, 0x5a, 116);
  memcpy(hello, "GPUBRIDG\1\0\1\0", 12);
  memset(hello + 12, 0, 24);
  hello[20] = 2;
}

static void greet_wrongly(int number) {
  uint8_t greet[42], hello[116];
  int fd = dial(number);
  if (fd < 0) return;
  struct pollfd one = {fd, POLLIN, 0};
  poll(&one, 1, 100);
  (void)!recv(fd, greet, sizeof greet, 0);
  fill_hello(hello);
  (void)!send(fd, hello, sizeof hello, MSG_NOSIGNAL);
  hold(fd);
}

static void attack(int number) {
  uint8_t noise[1000], hello[116];
  for (size_t i = 0; i < sizeof noise; i++) noise[i] = (uint8_t)rand();
  int fd = dial(number);
  if (fd >= 0) close(fd);
  say(number, noise, sizeof noise, false);
  say(number, noise, sizeof noise, true);
  const char get[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  say(number, get, sizeof get - 1, true);
  fill_hello(hello);
  say(number, hello, 50, true);
  greet_wrongly(number);
  /* torch's store: VALIDATE, then SET with a key of 2^63 bytes. */
  const uint8_t store[] = {0,    0xd2, 0xc8, 0x85, 0x3c, 1,    0xff,
                           0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f};
  say(number, store, sizeof store, true);
  /* A frame of the control protocol and one of 4 GiB. */
  const uint8_t frame[] = {0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4};
  say(number, frame, sizeof frame, true);
  for (int i = 0; i < CROWD; i++) {
    fd = dial(number);
    if (fd >= 0) hold(fd);
  }
}

static void scan(board *b, int ranks) {
  port list[PORTS_MAX];
  while (!b->stop) {
    int count = ports_now(b->pids, ranks, list);
    if (count > b->most_ports) b->most_ports = count;
    for (int i = 0; i < count && !b->stop; i++) {
      if (!list[i].loopback)
        snprintf(b->outside, sizeof b->outside,
                 "port %d is open to others than 127.0.0.1", list[i].number);
      attack(list[i].number);
    }
    __atomic_add_fetch(&b->rounds, 1, __ATOMIC_ACQ_REL);
    nap_ms(5);
  }
  b->scanner_ended = 1;
  _exit(0);
}

/* ---- holding a rank up, so that the others wait with open ports ---- */

static board *delayed_by; /* NULL: this process is not held up */

static bool is_inet(const struct sockaddr *to, int fd) {
  struct sockaddr_storage own = {0};
  socklen_t bytes = sizeof own;
  if (to) return to->sa_family == AF_INET;
  return !getsockname(fd, (void *)&own, &bytes) && own.ss_family == AF_INET;
}

static void hold_up(void) {
  board *b = delayed_by;
  int seen = b->rounds;
  gb_test_await(&b->rounds, seen + 2, 15000);
  b->delays++;
}

/* The library's calls come here: the executable's symbols win. */
int listen(int fd, int backlog) {
  int result = (int)syscall(SYS_listen, fd, backlog);
  if (delayed_by && is_inet(NULL, fd)) hold_up();
  return result;
}

int connect(int fd, const struct sockaddr *to, socklen_t bytes) {
  static bool done; /* the first one behind listen() */
  if (delayed_by && delayed_by->delays == 1 && !done && is_inet(to, fd)) {
    done = true;
    hold_up();
  }
  return (int)syscall(SYS_connect, fd, to, bytes);
}

static void scanned_job(const char *bridge, int late) {
  board *b = gb_test_shared();
  setenv("GPUBRIDGE_BRIDGE", bridge, 1);
  b->pids[gb_rank()] = getpid();
  __atomic_add_fetch(&b->started, 1, __ATOMIC_ACQ_REL);
  gb_test_await(&b->started, gb_world(), 20000);
  if (gb_rank() == 1 && fork() == 0) scan(b, gb_world());
  if (gb_rank() == late) delayed_by = b;
  double start = test_now();
  gb_job *job = must_open(60000, NULL);
  double took = test_now() - start;
  if (took > 20) gb_test_fail(__FILE__, __LINE__, "opening took %.1f s", took);
  must_sum(job, 20);
  must_close(job);
  port mine[PORTS_MAX];
  GB_CHECK_INT(ports_now(&b->pids[gb_rank()], 1, mine), 0);
  if (gb_rank() == 1) {
    b->stop = 1;
    gb_test_await(&b->scanner_ended, 1, 20000);
  }
  if (b->outside[0]) gb_test_fail(__FILE__, __LINE__, "%s", b->outside);
  if (gb_rank() == late) GB_CHECK(b->delays >= 1);
  GB_CHECK(b->most_ports >= 2); /* store and control at least */
}

GB_TEST(stranger, scan_while_a_leader_is_late, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 90000) {
  scanned_job("tcp", 2);
}

GB_TEST(stranger, scan_while_rank_0_is_late, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 90000) {
  scanned_job("tcp", 0);
}

/* A member comes late: the store and rank 0 wait among strangers. */
GB_TEST(stranger, scan_before_the_last_rank_comes, .ranks = 4,
        .vendors = "nana", .timeout_ms = 90000) {
  board *b = gb_test_shared();
  setenv("GPUBRIDGE_BRIDGE", "shm", 1);
  if (gb_rank() == 3) {
    /* Started, but not open, until the ports were scanned three times. */
    b->pids[3] = getpid();
    __atomic_add_fetch(&b->started, 1, __ATOMIC_ACQ_REL);
    gb_test_await(&b->rounds, 3, 20000);
    gb_job *job = must_open(60000, NULL);
    must_sum(job, 20);
    must_close(job);
    return;
  }
  scanned_job("shm", -1);
}

/* ---- a poor machine ---- */

/* Of 4 KiB and one inode: no file fits. */
static void shrink_dev_shm(void) {
  if (unshare(CLONE_NEWNS) ||
      mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
      mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=4k,nr_inodes=1"))
    gb_test_skip("mounting is not permitted here: %s", strerror(errno));
  int fd = open("/dev/shm/probe", O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0) gb_test_fail(__FILE__, __LINE__, "a file fits in /dev/shm");
}

static void big_sum(gb_job *job, size_t count) {
  float *data = malloc(count * sizeof *data);
  for (size_t i = 0; i < count; i++) data[i] = (float)(gb_rank() + 1);
  gb_buffer buffer = {data, count, GB_FLOAT32};
  MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, error));
  float want = (float)(gb_world() * (gb_world() + 1) / 2);
  for (size_t i = 0; i < count; i++)
    if (data[i] != want)
      gb_test_fail(__FILE__, __LINE__, "element %zu is %g", i, (double)data[i]);
  free(data);
}

GB_TEST(poor, dev_shm_without_room, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  shrink_dev_shm();
  gb_job *job = must_open(30000, NULL);
  must_sum(job, 5);
  big_sum(job, 8 << 20);
  must_close(job);
}

static void limit_files(int limit) {
  struct rlimit files = {(rlim_t)limit, (rlim_t)limit};
  if (setrlimit(RLIMIT_NOFILE, &files))
    gb_test_fail(__FILE__, __LINE__, "setrlimit: %s", strerror(errno));
}

/* All ranks open and sum, or all say what they lack. `victim` -1: all have few
 * descriptors. */
static void few_files(const char *bridge, int limit, int victim) {
  board *b = gb_test_shared();
  setenv("GPUBRIDGE_BRIDGE", bridge, 1);
  if (victim < 0 || gb_rank() == victim) limit_files(limit);
  gb_job *job = NULL;
  gb_error error = {.text = ""};
  double start = test_now();
  gb_status status = try_open(10000, NULL, &job, &error);
  double took = test_now() - start;
  snprintf(b->texts[gb_rank()], GB_ERROR_TEXT_MAX, "%s",
           status == GB_OK ? "" : error.text);
  __atomic_add_fetch(&b->started, 1, __ATOMIC_ACQ_REL);
  gb_test_await(&b->started, gb_world(), 25000);
  printf("limit %d, rank %d, %.1f s: %s\n", limit, gb_rank(), took,
         status == GB_OK ? "open" : error.text);
  for (int r = 0; r < gb_world(); r++)
    GB_CHECK_INT(b->texts[r][0] != 0, status != GB_OK);
  if (status == GB_OK) {
    must_sum(job, 3);
    must_close(job);
  } else {
    GB_CHECK_TEXT(error.text, "open files");
  }
}

#define FEW(name, bridge, limit, victim)                         \
  GB_TEST(poor, few_files_##name, .ranks = 4, .vendors = "nnaa", \
          .timeout_ms = 60000) {                                 \
    few_files(bridge, limit, victim);                            \
  }
FEW(40_shm, "shm", 40, -1)
FEW(40_tcp, "tcp", 40, -1)
FEW(20_tcp, "tcp", 20, -1)
FEW(12_at_a_leader, "tcp", 12, 2)
FEW(10_at_a_member, "shm", 10, 3)

/* Rank 0 has too few to let all ranks in: it and those inside say it, the
 * others at least end in time. */
GB_TEST(poor, few_files_at_rank_0, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 40000) {
  if (gb_rank() == 0) limit_files(16);
  gb_job *job;
  gb_error error;
  double start = test_now();
  GB_CHECK(try_open(6000, NULL, &job, &error) != GB_OK);
  GB_CHECK(test_now() - start < 12);
  if (gb_rank() == 0) GB_CHECK_TEXT(error.text, "open files");
}

/* Too few even to reach the others: the rank itself says it, the rest time
 * out and say who is missing. */
GB_TEST(poor, no_files_at_all, .ranks = 2, .vendors = "na",
        .timeout_ms = 40000) {
  if (gb_rank() == 1) limit_files(5);
  gb_job *job;
  gb_error error;
  double start = test_now();
  GB_CHECK(try_open(4000, NULL, &job, &error) != GB_OK);
  GB_CHECK(test_now() - start < 10);
  GB_CHECK_TEXT(error.text, gb_rank() ? "open files" : "rank 1");
}

/* S020 */
GB_TEST(poor, thirty_two_ranks, .ranks = 32,
        .vendors = "nnnnnnnnnnnnnnnnaaaaaaaaaaaaaaaa", .timeout_ms = 60000) {
  gb_job *job = must_open(60000, NULL);
  must_sum(job, 5);
  must_close(job);
}
