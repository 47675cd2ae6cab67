#include "os/hostarea.h"

#include "base/fault.h"
#include "base/memory.h"
#include "os/io.h"
#include "os/net.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* The memfd:
 *   0     head
 *   4096  bells, 128 bytes each: GBI_BELL_LANES of local index 0, of 1, ...
 *   ...   windows, from `next` on; offsets are never used twice, so that a
 *         window is always fresh zeros */
typedef struct area_head {
  uint64_t magic;
  uint32_t count;
  uint32_t spare;
  _Atomic uint64_t next; /* bumped by whoever allocates */
} area_head;

#define AREA_MAGIC UINT64_C(0x3261657261626720) /* " gbarea2" */
enum {
  PAGE = 4096,
  HUGE_PAGE = 2 << 20,
  FDS_A_MESSAGE = 250, /* the kernel's SCM_MAX_FD is 253 */
  STRANGERS_MAX = 32,  /* connections beyond the expected ones */
  PROOF_MS = 5000,     /* a connection that says nothing is dropped */
  SLICE_MS = 50,       /* how soon a stop is noticed */
  NAME_BYTES = 32
};

struct gbi_hostarea {
  gbi_auth auth;
  int *ranks;
  int *event_fds; /* one a bell, in the order of bells; -1 unknown */
  int count, me;
  int memfd;
  int listen_fd;
  _Atomic bool stopped; /* set by any thread */
  char name[NAME_BYTES + 1]; /* abstract, without the leading NUL */
  area_head *head;           /* NULL until connected */
  size_t head_bytes;
  gbi_bell *bells;
  gbi_waiter waiters[GBI_BELL_LANES];
};

static int bell_of(int index, int lane) {
  return index * GBI_BELL_LANES + lane;
}

void gbi_host_key(const char *hostname, char *buffer, size_t bytes) {
  char boot[64] = "no-boot-id";
  int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    ssize_t n = read(fd, boot, sizeof boot - 1);
    close(fd);
    boot[n > 0 ? n : 0] = 0;
    boot[strcspn(boot, "\n")] = 0;
  }
  struct stat net = {0};
  if (stat("/proc/self/ns/net", &net)) net.st_ino = 0;
  snprintf(buffer, bytes, "%s/%ju/%s", boot, (uintmax_t)net.st_ino, hostname);
}

static size_t round_up(size_t bytes, size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

/* The kernel refuses the memory: the fault point of all places that ask. */
static bool refused(void) {
  if (GBI_FAULT("mem.map") != GBI_FAULT_FAIL) return false;
  errno = ENOMEM;
  return true;
}

static gb_status reserve(int fd, uint64_t offset, size_t bytes,
                         gb_error *error) {
  while (refused() || fallocate(fd, 0, (off_t)offset, (off_t)bytes)) {
    if (errno == EINTR) continue;
    gb_status status = errno == ENOSPC || errno == ENOMEM ? GB_ERR_MEMORY
                                                          : GB_ERR_SYSTEM;
    return gbi_fail(error, status,
                    "could not reserve %zu bytes of memory shared by the ranks "
                    "of this host: %s. Raise the memory limit of the "
                    "container, or run fewer ranks per host",
                    bytes, strerror(errno));
  }
  return GB_OK;
}

static gb_status map_head(gbi_hostarea *area, gb_error *error) {
  void *data = refused() ? MAP_FAILED
                         : mmap(NULL, area->head_bytes, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_POPULATE, area->memfd, 0);
  if (data == MAP_FAILED)
    return gbi_fail(error, GB_ERR_SYSTEM,
                    "could not map the memory shared by this host's ranks: %s",
                    strerror(errno));
  area->head = data;
  area->bells = (gbi_bell *)((char *)data + PAGE);
  for (int lane = 0; lane < GBI_BELL_LANES; lane++)
    area->waiters[lane].bell = &area->bells[bell_of(area->me, lane)];
  return GB_OK;
}

static gb_status create_memory(gbi_hostarea *area, gb_error *error) {
  area->memfd =
      refused() ? -1
                : memfd_create("gpubridge", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (area->memfd < 0)
    return gbi_fail(error, GB_ERR_SYSTEM,
                    "could not create shared memory (memfd_create): %s",
                    strerror(errno));
  GBI_TRY(reserve(area->memfd, 0, area->head_bytes, error));
  /* Nobody can make it smaller and so raise SIGBUS in the others. */
  if (GBI_FAULT("mem.seal") != GBI_FAULT_FAIL &&
      fcntl(area->memfd, F_ADD_SEALS, F_SEAL_SHRINK))
    return gbi_fail(error, GB_ERR_SYSTEM, "could not seal shared memory: %s",
                    strerror(errno));
  GBI_TRY(map_head(area, error));
  area->head->count = (uint32_t)area->count;
  atomic_store(&area->head->next, area->head_bytes);
  area->head->magic = AREA_MAGIC;
  return GB_OK;
}

static socklen_t fill_name(struct sockaddr_un *sa, const char *name) {
  *sa = (struct sockaddr_un){.sun_family = AF_UNIX};
  memcpy(sa->sun_path + 1, name, NAME_BYTES);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + NAME_BYTES);
}

static gb_status listen_abstract(gbi_hostarea *area, gb_error *error) {
  uint8_t random[NAME_BYTES / 2];
  GBI_TRY(gbi_random(random, sizeof random, error));
  for (size_t i = 0; i < sizeof random; i++)
    snprintf(area->name + 2 * i, 3, "%02x", random[i]);
  struct sockaddr_un sa;
  socklen_t bytes = fill_name(&sa, area->name);
  area->listen_fd =
      socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  bool fault = GBI_FAULT("sock.listen") == GBI_FAULT_FAIL;
  if (fault) errno = ENOBUFS;
  if (fault || area->listen_fd < 0 ||
      bind(area->listen_fd, (void *)&sa, bytes) ||
      listen(area->listen_fd, 1024))
    return gbi_fail(error, GB_ERR_SYSTEM,
                    "could not listen on a Unix socket: %s", strerror(errno));
  return GB_OK;
}

static gb_status set_up(gbi_hostarea *area, const int *ranks,
                        gb_error *error) {
  size_t count = (size_t)area->count;
  area->ranks = gbi_malloc(count * sizeof *area->ranks);
  size_t bells = count * GBI_BELL_LANES;
  area->event_fds = gbi_malloc(bells * sizeof *area->event_fds);
  if (!area->ranks || !area->event_fds)
    return gbi_fail(error, GB_ERR_MEMORY, "out of memory");
  memcpy(area->ranks, ranks, count * sizeof *ranks);
  for (size_t i = 0; i < bells; i++) area->event_fds[i] = -1;
  area->head_bytes = round_up(PAGE + bells * sizeof(gbi_bell), PAGE);
  for (int lane = 0; lane < GBI_BELL_LANES; lane++) {
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0)
      return gbi_fail(error, GB_ERR_SYSTEM, "could not create an eventfd: %s",
                      strerror(errno));
    area->event_fds[bell_of(area->me, lane)] = fd;
    area->waiters[lane].event_fd = fd;
  }
  if (area->me) return GB_OK;
  GBI_TRY(create_memory(area, error));
  return area->count > 1 ? listen_abstract(area, error) : GB_OK;
}

gb_status gbi_hostarea_open(const gbi_auth *auth, const int *ranks, int count,
                            int me, gbi_hostarea **area_p, gb_error *error) {
  if (count < 1 || count > GBI_LOCAL_MAX || me < 0 || me >= count)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "%d ranks on one host; at most %d can share memory", count,
                    GBI_LOCAL_MAX);
  gbi_hostarea *area = gbi_calloc(1, sizeof *area);
  if (!area) return gbi_fail(error, GB_ERR_MEMORY, "out of memory");
  area->auth = *auth;
  area->count = count;
  area->me = me;
  area->memfd = area->listen_fd = -1;
  for (int lane = 0; lane < GBI_BELL_LANES; lane++)
    area->waiters[lane].event_fd = -1;
  gb_status status = set_up(area, ranks, error);
  if (status != GB_OK) {
    gbi_hostarea_close(area);
    return status;
  }
  *area_p = area;
  return GB_OK;
}

void gbi_hostarea_address(const gbi_hostarea *area, gbi_writer *out) {
  gbi_put_text(out, area->name);
}

/* Set-up messages, over the stream after the handshake: 8 bytes each, with the
 * descriptors of bells first..first+count-1 (or the memfd) attached.
 *   0  u32 first; MEMFD for the shared memory
 *   4  u32 count */
#define MEMFD UINT32_MAX
enum { MESSAGE_BYTES = 8 };

typedef union control_space {
  struct cmsghdr head; /* alignment */
  char space[CMSG_SPACE(sizeof(int) * FDS_A_MESSAGE)];
} control_space;

/* False: the deadline passed, or connecting was stopped. */
static bool wait_ready(const gbi_hostarea *area, int fd, short events,
                       uint64_t deadline_ns) {
  while (!atomic_load(&area->stopped)) {
    uint64_t slice = gbi_deadline_after_ms(SLICE_MS);
    if (gbi_poll_one(fd, events, GBI_MIN(slice, deadline_ns))) return true;
    if (gbi_deadline_passed(deadline_ns)) return false;
  }
  return false;
}

static gb_status fail_canceled(gb_error *error) {
  return gbi_fail(error, GB_ERR_CANCELED,
                  "sharing memory with this host's ranks was canceled");
}

static gb_status fail_waiting(const gbi_hostarea *area, const char *what,
                              gb_error *error) {
  if (atomic_load(&area->stopped)) return fail_canceled(error);
  return gbi_fail(error, GB_ERR_TIMEOUT, "the other side %s in time", what);
}

static gb_status send_fds(const gbi_hostarea *area, int socket_fd,
                          uint32_t first, const int *fds,
                          uint32_t count, uint64_t deadline_ns,
                          gb_error *error) {
  uint8_t raw[MESSAGE_BYTES];
  gbi_writer w;
  gbi_writer_init(&w, raw, sizeof raw);
  gbi_put_u32(&w, first);
  gbi_put_u32(&w, count);
  struct iovec iov = {raw, sizeof raw};
  control_space control;
  memset(&control, 0, sizeof control);
  struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1,
                           .msg_control = &control,
                           .msg_controllen = CMSG_SPACE(sizeof(int) * count)};
  struct cmsghdr *head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int) * count);
  memcpy(CMSG_DATA(head), fds, sizeof(int) * count);
  while (gbi_sendmsg(socket_fd, &message, 0) < 0) {
    if (errno == EINTR) continue;
    /* ETOOMANYREFS: descriptors of other ranks are still under way. */
    bool later = errno == EAGAIN || errno == ETOOMANYREFS;
    if (!later)
      return gbi_fail(error, GB_ERR_PEER, "connection broke: %s",
                      strerror(errno));
    if (errno == ETOOMANYREFS) poll(NULL, 0, 1);
    if (!wait_ready(area, socket_fd, POLLOUT, deadline_ns))
      return fail_waiting(area, "took no descriptors", error);
  }
  return GB_OK;
}

static gb_status fail_files(gb_error *error) {
  return gbi_fail(error, GB_ERR_SYSTEM,
                  "could not receive the descriptors of this host's ranks: too "
                  "many open files. Raise the limit (ulimit -n)");
}

static void close_all(const int *fds, size_t count) {
  for (size_t i = 0; i < count; i++) close(fds[i]);
}

/* One message. fds has room for FDS_A_MESSAGE. BUSY: nothing there yet. */
static gb_status receive_fds(int socket_fd, uint32_t *first_p, int *fds,
                             uint32_t *count_p, gb_error *error) {
  uint8_t raw[MESSAGE_BYTES];
  struct iovec iov = {raw, sizeof raw};
  control_space control;
  struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1,
                           .msg_control = &control,
                           .msg_controllen = sizeof control};
  ssize_t n;
  do {
    n = gbi_recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno == EAGAIN) return GB_ERR_BUSY;
  if (n <= 0)
    return gbi_fail(error, GB_ERR_PEER, "connection broke: %s",
                    n ? strerror(errno) : "closed by the other side");
  struct cmsghdr *head = CMSG_FIRSTHDR(&message);
  size_t got = 0;
  if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS) {
    got = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    memcpy(fds, CMSG_DATA(head), got * sizeof(int));
  }
  gbi_reader r;
  gbi_reader_init(&r, raw, (size_t)n);
  r.bad = gbi_decode_fault(raw, (size_t)n);
  *first_p = gbi_get_u32(&r);
  *count_p = gbi_get_u32(&r);
  if (!r.bad && !(message.msg_flags & MSG_CTRUNC) && got == *count_p)
    return GB_OK;
  close_all(fds, got);
  if (message.msg_flags & MSG_CTRUNC)
    return fail_files(error);
  return gbi_fail(error, GB_ERR_PROTOCOL,
                  "malformed message on the host's Unix socket");
}

static gb_status receive_fds_until(const gbi_hostarea *area, int socket_fd,
                                   uint32_t *first_p, int *fds,
                                   uint32_t *count_p, uint64_t deadline_ns,
                                   gb_error *error) {
  for (;;) {
    gb_status status = receive_fds(socket_fd, first_p, fds, count_p, error);
    if (status != GB_ERR_BUSY) return status;
    if (!wait_ready(area, socket_fd, POLLIN, deadline_ns))
      return fail_waiting(area, "sent no descriptors", error);
  }
}

/* One connection to index 0 that has not handed in its eventfd yet. */
typedef struct guest {
  int fd; /* -1: free */
  int index; /* -1: not proven yet */
  uint64_t give_up_ns;
  gbi_handshake handshake;
} guest;

typedef struct reception {
  gbi_hostarea *area;
  guest *guests;
  int guests_max;
  int *sockets; /* by local index, of those that are through */
  int missing;
  bool no_files; /* this process has no descriptor left for them */
} reception;

static void drop(guest *g) {
  close(g->fd);
  g->fd = -1;
}

static void admit(reception *r) {
  int fd;
  while ((fd = gbi_accept(r->area->listen_fd)) >= 0) {
    guest *at = NULL;
    for (int i = 0; i < r->guests_max; i++) {
      guest *g = &r->guests[i];
      if (!at || (at->fd >= 0 && (g->fd < 0 || g->give_up_ns < at->give_up_ns)))
        at = g;
    }
    if (at->fd >= 0) drop(at); /* full of strangers: the oldest goes */
    at->fd = fd;
    at->index = -1;
    at->give_up_ns = gbi_deadline_after_ms(PROOF_MS);
    gbi_handshake_accept(&at->handshake, &r->area->auth);
  }
  if (errno == EMFILE || errno == ENFILE) r->no_files = true;
}

static bool is_expected(const reception *r, const gbi_hello *hello) {
  int index = gbi_hostarea_index_of(r->area, hello->from);
  return hello->kind == GBI_HELLO_HOST && hello->to == r->area->ranks[0] &&
         index > 0 && r->sockets[index] < 0;
}

/* Moves one guest on. A guest that fails in any way is dropped without harm. */
static void receive_guest(reception *r, guest *g) {
  gb_error ignored;
  if (g->index < 0) {
    gb_status status = gbi_handshake_step(&g->handshake, g->fd, &ignored);
    if (status == GB_ERR_BUSY) return;
    if (status != GB_OK || !is_expected(r, &g->handshake.hello)) {
      drop(g);
      return;
    }
    g->index = gbi_hostarea_index_of(r->area, g->handshake.hello.from);
  }
  uint32_t first, count;
  int fds[FDS_A_MESSAGE];
  gb_status status = receive_fds(g->fd, &first, fds, &count, &ignored);
  if (status == GB_ERR_BUSY) return;
  if (status != GB_OK) {
    if (status == GB_ERR_SYSTEM) r->no_files = true; /* a proven one's */
    drop(g);
    return;
  }
  if (count != GBI_BELL_LANES || first != (uint32_t)bell_of(g->index, 0) ||
      r->sockets[g->index] >= 0) {
    close_all(fds, count);
    drop(g);
    return;
  }
  memcpy(r->area->event_fds + first, fds, count * sizeof *fds);
  r->sockets[g->index] = g->fd;
  r->missing--;
  g->fd = -1;
}

static gb_status fail_missing(const reception *r, gb_error *error) {
  int missing[GBI_LOCAL_MAX], n = 0;
  char text[256];
  gbi_text list;
  for (int i = 1; i < r->area->count; i++)
    if (r->sockets[i] < 0) missing[n++] = r->area->ranks[i];
  gbi_text_init(&list, text, sizeof text);
  gbi_text_add_ranks(&list, missing, n);
  return gbi_fail_rank(error, GB_ERR_TIMEOUT, missing[0],
                       "rank %s of this host did not come to share memory in "
                       "time", text);
}

static gb_status receive_all(reception *r, struct pollfd *fds,
                             uint64_t deadline_ns, gb_error *error) {
  while (r->missing) {
    int n = 0;
    uint64_t now = gbi_now_ns(), soonest = deadline_ns;
    fds[n++] = (struct pollfd){r->area->listen_fd, POLLIN, 0};
    for (int i = 0; i < r->guests_max; i++) {
      guest *g = &r->guests[i];
      if (g->fd >= 0 && g->give_up_ns <= now) drop(g);
      if (g->fd < 0) continue;
      short events =
          g->index < 0 ? gbi_handshake_events(&g->handshake) : POLLIN;
      fds[n++] = (struct pollfd){g->fd, events, 0};
      soonest = GBI_MIN(soonest, g->give_up_ns);
    }
    if (atomic_load(&r->area->stopped)) return fail_canceled(error);
    if (r->no_files) return fail_files(error);
    if (now >= deadline_ns) return fail_missing(r, error);
    poll(fds, (nfds_t)n, gbi_deadline_left_ms(soonest, SLICE_MS));
    for (int i = 0; i < r->guests_max; i++)
      if (r->guests[i].fd >= 0) receive_guest(r, &r->guests[i]);
    admit(r);
  }
  return GB_OK;
}

static gb_status hand_out(reception *r, uint64_t deadline_ns,
                          gb_error *error) {
  const gbi_hostarea *area = r->area;
  for (int i = 1; i < area->count; i++) {
    GBI_TRY(send_fds(area, r->sockets[i], MEMFD, &area->memfd, 1, deadline_ns,
                     error));
    int bells = area->count * GBI_BELL_LANES;
    for (int first = 0; first < bells; first += FDS_A_MESSAGE) {
      int n = GBI_MIN(bells - first, (int)FDS_A_MESSAGE);
      GBI_TRY(send_fds(area, r->sockets[i], (uint32_t)first,
                       area->event_fds + first, (uint32_t)n, deadline_ns,
                       error));
    }
  }
  return GB_OK;
}

static gb_status connect_first(gbi_hostarea *area, uint64_t deadline_ns,
                               gb_error *error) {
  reception r = {.area = area, .missing = area->count - 1,
                 .guests_max = area->count + STRANGERS_MAX};
  r.guests = gbi_calloc((size_t)r.guests_max, sizeof *r.guests);
  r.sockets = gbi_malloc((size_t)area->count * sizeof *r.sockets);
  struct pollfd *fds = gbi_calloc((size_t)r.guests_max + 1, sizeof *fds);
  gb_status status;
  if (!r.guests || !r.sockets || !fds) {
    status = gbi_fail(error, GB_ERR_MEMORY, "out of memory");
    goto out_free;
  }
  for (int i = 0; i < r.guests_max; i++) r.guests[i].fd = -1;
  for (int i = 0; i < area->count; i++) r.sockets[i] = -1;
  status = receive_all(&r, fds, deadline_ns, error);
  if (status == GB_OK) status = hand_out(&r, deadline_ns, error);
  for (int i = 0; i < r.guests_max; i++)
    if (r.guests[i].fd >= 0) drop(&r.guests[i]);
  for (int i = 0; i < area->count; i++)
    if (r.sockets[i] >= 0) close(r.sockets[i]);
out_free:
  free(r.guests);
  free(r.sockets);
  free(fds);
  return status;
}

static int connect_to(int fd, const struct sockaddr_un *sa, socklen_t bytes) {
  gbi_fault fault = GBI_FAULT("sock.connect");
  if (fault != GBI_FAULT_FAIL && fault != GBI_FAULT_AGAIN)
    return connect(fd, (const void *)sa, bytes);
  errno = fault == GBI_FAULT_FAIL ? ECONNREFUSED : EAGAIN;
  return -1;
}

static gb_status dial(const gbi_hostarea *area, const char *name,
                      uint64_t deadline_ns, int *fd_p, gb_error *error) {
  struct sockaddr_un sa;
  socklen_t bytes = fill_name(&sa, name);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return gbi_fail(error, GB_ERR_SYSTEM, "could not create a Unix socket: %s",
                    strerror(errno));
  /* EAGAIN: the backlog is full. There is nothing to poll for. */
  while (connect_to(fd, &sa, bytes)) {
    bool again = errno == EAGAIN || errno == EINTR;
    if (again && !gbi_deadline_passed(deadline_ns) &&
        !atomic_load(&area->stopped)) {
      poll(NULL, 0, 1);
      continue;
    }
    gb_status status =
        gbi_fail(error, again ? GB_ERR_TIMEOUT : GB_ERR_CONNECT,
                 "could not reach the first rank of this host over its Unix "
                 "socket: %s. Ranks that report one host must share its "
                 "network namespace", strerror(errno));
    close(fd);
    return status;
  }
  *fd_p = fd;
  return GB_OK;
}

/* Everything that index 0 hands out. */
static gb_status take_fds(gbi_hostarea *area, int fd, uint64_t deadline_ns,
                          gb_error *error) {
  int bells = area->count * GBI_BELL_LANES, left = bells;
  while (left > 0 || area->memfd < 0) {
    uint32_t first, count;
    int fds[FDS_A_MESSAGE];
    GBI_TRY(receive_fds_until(area, fd, &first, fds, &count, deadline_ns,
                              error));
    bool memory = first == MEMFD && count == 1 && area->memfd < 0;
    if (memory) {
      area->memfd = fds[0];
      continue;
    }
    if (first != (uint32_t)(bells - left) || count < 1 ||
        count > (uint32_t)left) {
      close_all(fds, count);
      return gbi_fail(error, GB_ERR_PROTOCOL,
                      "malformed message on the host's Unix socket");
    }
    for (uint32_t i = 0; i < count; i++) {
      if ((int)(first + i) / GBI_BELL_LANES == area->me)
        close(fds[i]); /* a copy of our own */
      else
        area->event_fds[first + i] = fds[i];
    }
    left -= (int)count;
  }
  return GB_OK;
}

static gb_status prove(const gbi_hostarea *area, gbi_handshake *h, int fd,
                       uint64_t deadline_ns, gb_error *error) {
  for (;;) {
    gb_status status = gbi_handshake_step(h, fd, error);
    if (status != GB_ERR_BUSY) return status;
    if (!wait_ready(area, fd, gbi_handshake_events(h), deadline_ns))
      return fail_waiting(area, "did not answer", error);
  }
}

static gb_status join(gbi_hostarea *area, int fd, uint64_t deadline_ns,
                      gb_error *error) {
  gbi_hello hello = {.kind = GBI_HELLO_HOST, .from = area->ranks[area->me],
                     .to = area->ranks[0]};
  gbi_handshake h;
  gbi_handshake_connect(&h, &area->auth, &hello);
  GBI_TRY(prove(area, &h, fd, deadline_ns, error));
  int own = bell_of(area->me, 0);
  GBI_TRY(send_fds(area, fd, (uint32_t)own, area->event_fds + own,
                   GBI_BELL_LANES, deadline_ns, error));
  GBI_TRY(take_fds(area, fd, deadline_ns, error));
  struct stat st;
  if (fstat(area->memfd, &st) || (uint64_t)st.st_size < area->head_bytes)
    return gbi_fail(error, GB_ERR_PROTOCOL,
                    "the memory shared by this host's ranks is too small");
  /* Whoever can shrink it can end everybody that touches it. */
  int seals = fcntl(area->memfd, F_GET_SEALS);
  if (seals < 0 || !(seals & F_SEAL_SHRINK))
    return gbi_fail(error, GB_ERR_PROTOCOL,
                    "the memory shared by this host's ranks is not sealed");
  GBI_TRY(map_head(area, error));
  if (area->head->magic != AREA_MAGIC ||
      area->head->count != (uint32_t)area->count)
    return gbi_fail(error, GB_ERR_PROTOCOL,
                    "ranks of this host disagree on how many they are");
  return GB_OK;
}

/* What went wrong between the two ranks says who the other one is; what went
 * wrong in this process does not blame it. */
static gb_status blame_first(const gbi_hostarea *area, gb_error *error) {
  gb_error why = *error;
  if (why.rank >= 0 || why.status == GB_ERR_MEMORY ||
      why.status == GB_ERR_SYSTEM || why.status == GB_ERR_CANCELED)
    return why.status;
  return gbi_fail_rank(error, why.status, area->ranks[0],
                       "could not share memory with rank %d of this host: "
                       "%.1900s",
                       area->ranks[0], why.text);
}

gb_status gbi_hostarea_connect(gbi_hostarea *area, const gbi_reader *addresses,
                               uint64_t deadline_ns, gb_error *error) {
  gb_status status = GB_OK;
  gb_error local;
  if (!error) error = &local;
  if (area->me) {
    gbi_reader reader = addresses[0];
    char name[NAME_BYTES + 1];
    gbi_get_text(&reader, name, sizeof name);
    if (reader.bad || strlen(name) != NAME_BYTES)
      return gbi_fail_rank(error, GB_ERR_PROTOCOL, area->ranks[0],
                           "rank %d sent a malformed host address",
                           area->ranks[0]);
    int fd = -1;
    GBI_TRY(dial(area, name, deadline_ns, &fd, error));
    status = join(area, fd, deadline_ns, error);
    if (status != GB_OK) status = blame_first(area, error);
    close(fd);
  } else if (area->count > 1) {
    status = connect_first(area, deadline_ns, error);
  }
  if (area->listen_fd >= 0) close(area->listen_fd);
  area->listen_fd = -1;
  return status;
}

void gbi_hostarea_stop(gbi_hostarea *area) {
  atomic_store(&area->stopped, true);
}

/* A window and, behind it, the count of processes that have left it. */
static size_t window_bytes(size_t bytes) {
  return round_up(bytes + sizeof(uint64_t), PAGE);
}

static void give_back(gbi_hostarea *area, uint64_t offset, size_t whole) {
  (void)fallocate(area->memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  (off_t)offset, (off_t)whole);
}

gb_status gbi_hostarea_alloc(gbi_hostarea *area, size_t bytes,
                             uint64_t *offset_p, gb_error *error) {
  if (bytes == 0 || bytes > (size_t)1 << 46)
    return gbi_fail(error, GB_ERR_ARGUMENT, "a window of %zu bytes", bytes);
  size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : PAGE;
  size_t whole = window_bytes(bytes);
  uint64_t next = atomic_load(&area->head->next), offset;
  do {
    offset = (next + align - 1) / align * align;
  } while (!atomic_compare_exchange_weak(&area->head->next, &next,
                                         offset + whole));
  gb_status status = reserve(area->memfd, offset, whole, error);
  if (status != GB_OK) {
    /* What a part of it took goes back; the range itself stays unused. */
    give_back(area, offset, whole);
    return status;
  }
  *offset_p = offset;
  return GB_OK;
}

/* A write that changes nothing, so that the page table entry is writable. */
static void touch(void *data, size_t bytes) {
  for (size_t at = 0; at < bytes; at += PAGE)
    atomic_fetch_add_explicit((_Atomic uint8_t *)((char *)data + at), 0,
                              memory_order_relaxed);
}

gb_status gbi_hostarea_map(gbi_hostarea *area, uint64_t offset, size_t bytes,
                           void **data_p, gb_error *error) {
  struct stat st;
  size_t whole = bytes < (size_t)1 << 46 ? window_bytes(bytes) : SIZE_MAX;
  /* The offset came from another process. */
  if (offset % PAGE || bytes == 0 || fstat(area->memfd, &st) ||
      offset > (uint64_t)st.st_size || whole > (uint64_t)st.st_size - offset)
    return gbi_fail(error, GB_ERR_PROTOCOL,
                    "a window of %zu bytes at %" PRIu64
                    " lies outside the memory shared by this host's ranks",
                    bytes, offset);
  void *data = refused() ? MAP_FAILED
                         : mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED,
                                area->memfd, (off_t)offset);
  if (data == MAP_FAILED)
    return gbi_fail(error, GB_ERR_MEMORY,
                    "could not map %zu bytes of shared memory: %s", bytes,
                    strerror(errno));
  /* Refused by kernels without huge shared pages: small ones do as well. */
  if (bytes >= HUGE_PAGE) (void)madvise(data, bytes, MADV_HUGEPAGE);
  touch(data, whole);
  *data_p = data;
  return GB_OK;
}

void gbi_hostarea_leave(gbi_hostarea *area, void *data, uint64_t offset,
                        size_t bytes, int users) {
  if (!data) return;
  size_t whole = window_bytes(bytes);
  _Atomic uint64_t *left =
      (_Atomic uint64_t *)((char *)data + whole - sizeof(uint64_t));
  bool last = atomic_fetch_add(left, 1) + 1 == (uint64_t)users;
  munmap(data, whole);
  if (last) give_back(area, offset, whole);
}

void gbi_hostarea_ring_lane(gbi_hostarea *area, int index, int lane) {
  int bell = bell_of(index, lane);
  gbi_bell_ring(&area->bells[bell], area->event_fds[bell]);
}

void gbi_hostarea_ring(gbi_hostarea *area, int index) {
  gbi_hostarea_ring_lane(area, index, 0);
}

gbi_waiter *gbi_hostarea_lane_waiter(gbi_hostarea *area, int lane) {
  return &area->waiters[lane];
}

gbi_waiter *gbi_hostarea_waiter(gbi_hostarea *area) {
  return gbi_hostarea_lane_waiter(area, 0);
}
int gbi_hostarea_count(const gbi_hostarea *area) { return area->count; }
int gbi_hostarea_me(const gbi_hostarea *area) { return area->me; }

int gbi_hostarea_index_of(const gbi_hostarea *area, int rank) {
  int low = 0, high = area->count - 1;
  while (low <= high) {
    int middle = (low + high) / 2;
    if (area->ranks[middle] == rank) return middle;
    if (area->ranks[middle] < rank)
      low = middle + 1;
    else
      high = middle - 1;
  }
  return -1;
}

void gbi_hostarea_close(gbi_hostarea *area) {
  if (!area) return;
  if (area->head) munmap(area->head, area->head_bytes);
  for (int i = 0; area->event_fds && i < bell_of(area->count, 0); i++)
    if (area->event_fds[i] >= 0) close(area->event_fds[i]);
  if (area->listen_fd >= 0) close(area->listen_fd);
  if (area->memfd >= 0) close(area->memfd);
  free(area->ranks);
  free(area->event_fds);
  free(area);
}
