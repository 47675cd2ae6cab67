/* The bridge's all_reduce of float32 between two processes on loopback, against
 * a raw exchange of the same bytes over one socket by a minimal program, in
 * turns within one run, so that the machine's load cancels in the ratios.
 *
 *   bridge_bench [rounds [largest bytes]]
 *
 * Prints medians per call: wall time and CPU time (user and system, of one
 * process), and the bridge's part over the raw exchange's. Every bridge result
 * is checked. */
#include "bridge/bridge.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS_MAX = 101, BLOB_BYTES = 1024 };

typedef struct shared_page {
  _Atomic int arrived;
  uint32_t bytes[2];
  uint8_t blob[2][BLOB_BYTES];
} shared_page;

static shared_page *page;
static int me;
static int raw_fd;
static gbi_comm *comm;
static void *state;
static float *data, *other;
static uint64_t seq;

static void die(const char *what) {
  fprintf(stderr, "bridge_bench: %s\n", what);
  exit(1);
}

static void meet(void) {
  static int passed;
  passed += 2;
  atomic_fetch_add(&page->arrived, 1);
  while (atomic_load(&page->arrived) < passed) sched_yield();
}

static double cpu_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* ---- The raw exchange ---- */

static void open_raw(void) {
  struct sockaddr_in address = {.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t bytes = sizeof address;
  int on = 1;
  if (me == 0) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd, (void *)&address, bytes) || listen(fd, 1) ||
        getsockname(fd, (void *)&address, &bytes))
      die("cannot listen");
    memcpy(page->blob[0], &address, sizeof address);
    meet();
    raw_fd = accept4(fd, NULL, NULL, SOCK_NONBLOCK);
    close(fd);
  } else {
    meet();
    memcpy(&address, page->blob[0], sizeof address);
    raw_fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(raw_fd, (void *)&address, bytes)) die("cannot connect");
  }
  setsockopt(raw_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(raw_fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
  meet();
}

static void exchange_raw(size_t bytes) {
  size_t sent = 0, got = 0;
  for (int idle = 0; sent < bytes || got < bytes;) {
    ssize_t n = 0, m = 0;
    if (sent < bytes) {
      n = send(raw_fd, (char *)data + sent, GBI_MIN(bytes - sent, 262144),
               MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n > 0) sent += (size_t)n;
    }
    if (got < bytes) {
      m = recv(raw_fd, (char *)other + got, GBI_MIN(bytes - got, 262144),
               MSG_DONTWAIT);
      if (m > 0) got += (size_t)m;
      if (m == 0) die("the raw connection broke");
    }
    if (n > 0 || m > 0) {
      idle = 0;
    } else if (idle++ < 20) {
      sched_yield();
    } else {
      struct pollfd one = {raw_fd,
                           (short)(POLLIN | (sent < bytes ? POLLOUT : 0)), 0};
      poll(&one, 1, 50);
    }
  }
}

/* One way of a round trip of 4 bytes, by a receiver that never sleeps. */
static double ping_us(int trips) {
  char word[4] = {0};
  meet();
  uint64_t begin = gbi_now_ns();
  for (int i = 0; i < 2 * trips; i++) {
    if (i % 2 == me && send(raw_fd, word, 4, MSG_NOSIGNAL) != 4)
      die("cannot ping");
    if (i % 2 == me) continue;
    while (recv(raw_fd, word, 4, MSG_DONTWAIT) != 4)
      if (errno != EAGAIN) die("cannot take a ping");
  }
  return (double)(gbi_now_ns() - begin) / 1e3 / (2.0 * trips);
}

/* ---- The bridge ---- */

static void open_bridge(void) {
  static const gbi_auth auth;
  gb_error error;
  gbi_member members[2] = {
      {.rank = 0, .local = -1, .hostname = "a", .vendor = "nvidia"},
      {.rank = 1, .local = -1, .hostname = "b", .vendor = "amd"}};
  gbi_transport_params params = {.members = members,
                                 .members_count = 2,
                                 .me = me,
                                 .auth = &auth,
                                 .store_host = "127.0.0.1",
                                 .timeout_ms = 10000};
  if (gbi_bridge_open(&gbi_transport_tcp, &params, &comm, &error))
    die(error.text);
  gbi_writer w;
  gbi_writer_init(&w, page->blob[me], BLOB_BYTES);
  comm->ops->address(comm, &w);
  page->bytes[me] = (uint32_t)w.used;
  meet();
  gbi_reader readers[2];
  for (int i = 0; i < 2; i++)
    gbi_reader_init(&readers[i], page->blob[i], page->bytes[i]);
  if (comm->ops->connect(comm, readers, gbi_deadline_after_ms(10000), &error))
    die(error.text);
  state = aligned_alloc(64, (comm->ops->state_bytes + 63) / 64 * 64);
  if (!state) die("out of memory");
}

static void reduce_bridge(size_t bytes) {
  gb_error error;
  gbi_comm_step step = {.kind = GBI_COMM_ALL_REDUCE,
                        .call = {.seq = ++seq,
                                 .count = bytes / 4,
                                 .root = -1,
                                 .op = GBI_OP_ALL_REDUCE,
                                 .dtype = GB_FLOAT32},
                        .src = data,
                        .dst = data,
                        .count = bytes / 4,
                        .dtype = GB_FLOAT32,
                        .redop = GB_SUM};
  comm->ops->start(comm, &step, state);
  for (int idle = 0;;) {
    uint64_t moved = comm->moved;
    gb_status status = comm->ops->progress(comm, state, &error);
    if (status == GB_OK) return;
    if (status != GB_ERR_BUSY) die(error.text);
    if (comm->moved != moved) {
      idle = 0;
    } else if (idle++ < 20) {
      sched_yield();
    } else {
      int fd;
      comm->ops->wait_fds(comm, &fd, 1);
      struct pollfd one = {fd, POLLIN, 0};
      poll(&one, 1, 50);
    }
  }
}

/* ---- Figures ---- */

typedef struct figures {
  double wall[ROUNDS_MAX], cpu[ROUNDS_MAX];
} figures;

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *list, int count) {
  qsort(list, (size_t)count, sizeof *list, ascending);
  return list[count / 2];
}

static void measure(void (*call)(size_t), size_t bytes, int calls, int round,
                    figures *f) {
  meet();
  double cpu = cpu_us();
  uint64_t wall = gbi_now_ns();
  for (int i = 0; i < calls; i++) call(bytes);
  f->wall[round] = (double)(gbi_now_ns() - wall) / 1e3 / calls;
  f->cpu[round] = (cpu_us() - cpu) / calls;
}

static void fill(size_t count) {
  for (size_t i = 0; i < count; i++) data[i] = (float)(i % 61 + (size_t)me);
}

/* All values of both sides add up the same after any number of calls: the
 * first call's sum, doubled by every later one. */
static void check(size_t count, int calls) {
  double factor = 1;
  for (int i = 1; i < calls; i++) factor *= 2;
  for (size_t i = 0; i < count; i++)
    if (data[i] != (float)((double)(2 * (i % 61) + 1) * factor))
      die("wrong sum");
}

static void bench(size_t bytes, int rounds) {
  static figures raw, bridge;
  int calls = bytes <= 65536     ? 100
              : bytes <= 1 << 20 ? 20
              : bytes <= 1 << 24 ? 3
                                 : 1;
  for (int i = -1; i < rounds; i++) {
    measure(exchange_raw, bytes, calls, GBI_MAX(i, 0), &raw);
    fill(bytes / 4);
    measure(reduce_bridge, bytes, calls, GBI_MAX(i, 0), &bridge);
    check(bytes / 4, calls);
  }
  if (me) return;
  double a = median(raw.wall, rounds), b = median(raw.cpu, rounds);
  double c = median(bridge.wall, rounds), d = median(bridge.cpu, rounds);
  printf("%10zu %12.1f %10.1f %12.1f %10.1f %8.2f %8.2f\n", bytes, a, b, c, d,
         c / a, d / b);
  fflush(stdout);
}

int main(int argc, char **argv) {
  int rounds = argc > 1 ? atoi(argv[1]) : 9;
  size_t most = argc > 2 ? strtoull(argv[2], NULL, 10) : (size_t)64 << 20;
  if (rounds < 1 || rounds > ROUNDS_MAX || most < 4) die("bad arguments");
  page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE,
              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  data = aligned_alloc(4096, (most + 4095) / 4096 * 4096);
  other = aligned_alloc(4096, (most + 4095) / 4096 * 4096);
  if (page == MAP_FAILED || !data || !other) die("out of memory");
  pid_t child = fork();
  me = child == 0;
  memset(data, 1, most);
  memset(other, 1, most);
  open_raw();
  open_bridge();
  double pings[ROUNDS_MAX];
  for (int i = 0; i < rounds; i++) pings[i] = ping_us(200);
  if (!me) printf("ping %.2f us one way\n", median(pings, rounds));
  if (!me)
    printf("%10s %12s %10s %12s %10s %8s %8s\n", "bytes", "raw wall us",
           "cpu us", "bridge wall", "cpu us", "wall x", "cpu x");
  static const size_t sizes[] = {4,       1024,    16384,    65536,   262144,
                                 1 << 20, 4 << 20, 16 << 20, 64 << 20};
  for (size_t i = 0; i < GBI_COUNT(sizes) && sizes[i] <= most; i++)
    bench(sizes[i], rounds);
  meet();
  comm->ops->stop(comm);
  comm->ops->close(comm);
  int code = 0;
  if (!me && (waitpid(child, &code, 0) != child || code)) return 1;
  return 0;
}
