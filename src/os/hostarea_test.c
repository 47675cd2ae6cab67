/* Proves that the ranks of a host find each other's bells and windows, that
 * strangers on the Unix socket do no harm, that a rank that never comes is
 * named at the deadline, and that the host key separates what cannot share. */
#include "os/hostarea.h"
#include "harness/gb_area.h"
#include "harness/gb_test.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void share(void) {
  gbi_hostarea *area = gb_area_open(NULL);
  GB_CHECK_INT(gbi_hostarea_count(area), gb_world());
  GB_CHECK_INT(gbi_hostarea_me(area), gb_rank());
  GB_CHECK_INT(gbi_hostarea_index_of(area, gb_world() - 1), gb_world() - 1);
  GB_CHECK_INT(gbi_hostarea_index_of(area, gb_world()), -1);
  /* Everybody makes a window and writes into everybody's. */
  size_t bytes = gb_rank() % 2 ? (size_t)3 << 20 : 12345;
  uint64_t offset;
  GB_CHECK_OK(gbi_hostarea_alloc(area, bytes, &offset, NULL));
  GB_CHECK_INT(offset % 4096, 0);
  uint8_t blob[16];
  gbi_writer w;
  gbi_writer_init(&w, blob, sizeof blob);
  gbi_put_u64(&w, offset);
  gbi_put_u64(&w, bytes);
  gbi_reader all[GB_AREA_RANKS_MAX];
  gb_exchange(blob, w.used, all);
  void *data[GB_AREA_RANKS_MAX];
  size_t sizes[GB_AREA_RANKS_MAX];
  uint64_t offsets[GB_AREA_RANKS_MAX];
  for (int r = 0; r < gb_world(); r++) {
    offsets[r] = gbi_get_u64(&all[r]);
    sizes[r] = gbi_get_u64(&all[r]);
    GB_CHECK_OK(
        gbi_hostarea_map(area, offsets[r], sizes[r], &data[r], NULL));
    GB_CHECK_INT(((uint8_t *)data[r])[sizes[r] - 1], 0);
  }
  gb_meet();
  for (int r = 0; r < gb_world(); r++)
    ((uint8_t *)data[r])[sizes[r] - 1 - (size_t)gb_rank()] =
        (uint8_t)(gb_rank() + 1);
  gb_meet();
  for (int r = 0; r < gb_world(); r++)
    GB_CHECK_INT(((uint8_t *)data[gb_rank()])[bytes - 1 - (size_t)r], r + 1);
  /* Rank 0 leaves late: what others wrote before they left is still there. */
  if (gb_rank())
    for (int r = 0; r < gb_world(); r++)
      gbi_hostarea_leave(area, data[r], offsets[r], sizes[r], gb_world());
  gb_meet();
  if (gb_rank() == 0)
    for (int r = 0; r < gb_world(); r++) {
      GB_CHECK_INT(((uint8_t *)data[r])[sizes[r] - (size_t)gb_world()],
                   gb_world());
      gbi_hostarea_leave(area, data[r], offsets[r], sizes[r], gb_world());
    }
  gb_meet();
  gbi_hostarea_close(area);
}

GB_TEST(hostarea, alone) { share(); }
GB_TEST(hostarea, two_share, .ranks = 2) { share(); }
GB_TEST(hostarea, sixteen_share, .ranks = 16) { share(); }

GB_TEST(hostarea, windows_are_fresh_touched_and_checked) {
  gbi_hostarea *area = gb_area_open(NULL);
  size_t bytes = (size_t)4 << 20;
  uint64_t first, second;
  void *data;
  gb_error error;
  GB_CHECK_OK(gbi_hostarea_alloc(area, bytes, &first, NULL));
  GB_CHECK_INT(first % (2 << 20), 0);
  GB_CHECK_OK(gbi_hostarea_map(area, first, bytes, &data, NULL));
  struct rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  memset(data, 1, bytes);
  getrusage(RUSAGE_SELF, &after);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  GB_CHECK(after.ru_minflt - before.ru_minflt < 8);
#endif
  gbi_hostarea_leave(area, data, first, bytes, 1);
  GB_CHECK_OK(gbi_hostarea_alloc(area, bytes, &second, NULL));
  GB_CHECK(second >= first + bytes);
  GB_CHECK_OK(gbi_hostarea_map(area, second, bytes, &data, NULL));
  for (size_t i = 0; i < bytes; i += 997) GB_CHECK(!((uint8_t *)data)[i]);
  gbi_hostarea_leave(area, data, second, bytes, 1);
  /* Offsets of other processes are not believed. */
  GB_CHECK_INT(gbi_hostarea_map(area, UINT64_C(1) << 40, 4096, &data, &error),
               GB_ERR_PROTOCOL);
  GB_CHECK_INT(gbi_hostarea_map(area, 100, 4096, &data, &error),
               GB_ERR_PROTOCOL);
  GB_CHECK_INT(gbi_hostarea_map(area, second, SIZE_MAX, &data, &error),
               GB_ERR_PROTOCOL);
  /* More than any machine has: refused now, not SIGBUS later. */
  struct rlimit limit = {(rlim_t)1 << 30, (rlim_t)1 << 30};
  signal(SIGXFSZ, SIG_IGN);
  GB_CHECK_OK(setrlimit(RLIMIT_FSIZE, &limit));
  GB_CHECK(gbi_hostarea_alloc(area, (size_t)1 << 45, &first, &error) != GB_OK);
  GB_CHECK_TEXT(error.text, "shared by the ranks of this host");
  gbi_hostarea_close(area);
}

/* Index 0 opens; `visit` runs in rank 1, which knows the socket's name. */
static gbi_hostarea *open_pair(gbi_reader *all) {
  int ranks[] = {0, 1};
  gbi_hostarea *area;
  GB_CHECK_OK(gbi_hostarea_open(&gb_area_auth, ranks, 2, gb_rank(), &area,
                                NULL));
  uint8_t mine[256];
  gbi_writer w;
  gbi_writer_init(&w, mine, sizeof mine);
  gbi_hostarea_address(area, &w);
  gb_exchange(mine, w.used, all);
  return area;
}

static int knock(gbi_reader address) {
  char name[64];
  struct sockaddr_un sa = {.sun_family = AF_UNIX};
  gbi_get_text(&address, name, sizeof name);
  memcpy(sa.sun_path + 1, name, strlen(name));
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  GB_CHECK_OK(connect(fd, (void *)&sa,
                      (socklen_t)(sizeof(sa_family_t) + 1 + strlen(name))));
  return fd;
}

GB_TEST(hostarea, strangers_do_no_harm, .ranks = 2) {
  gbi_reader all[2];
  gbi_hostarea *area = open_pair(all);
  if (gb_rank() == 1) {
    for (int i = 0; i < 100; i++) {
      int fd = knock(all[0]); /* some stay open and silent */
      if (i % 3 == 0) GB_CHECK(write(fd, "GET / HTTP/1.1\r\n\r\n", 18) > 0);
      if (i % 3 == 1) close(fd);
    }
    /* A holder of another key. */
    gbi_auth other = gb_area_auth;
    other.key[0] ^= 1;
    gbi_hello hello = {.kind = GBI_HELLO_HOST, .from = 1, .to = 0};
    gbi_handshake h;
    gbi_handshake_connect(&h, &other, &hello);
    GB_CHECK(gbi_handshake_run(&h, knock(all[0]), gbi_deadline_after_ms(5000),
                               NULL) != GB_OK);
  }
  gb_error error;
  if (gbi_hostarea_connect(area, all, gbi_deadline_after_ms(20000), &error))
    gb_test_fail(__FILE__, __LINE__, "%s", error.text);
  gbi_hostarea_ring(area, !gb_rank());
  gb_meet();
  GB_CHECK(gbi_bell_look(gbi_hostarea_waiter(area)) > 0);
  gbi_hostarea_close(area);
}

GB_TEST(hostarea, rank_that_never_comes_is_named, .ranks = 2) {
  gbi_reader all[2];
  gbi_hostarea *area = open_pair(all);
  gb_error error;
  if (gb_rank() == 0) {
    uint64_t start = gbi_now_ns();
    GB_CHECK_INT(gbi_hostarea_connect(area, all, gbi_deadline_after_ms(300),
                                      &error), GB_ERR_TIMEOUT);
    GB_CHECK(gbi_now_ns() - start < 2 * GBI_NS_PER_S);
    GB_CHECK_TEXT(error.text, "rank 1 of this host did not come");
    GB_CHECK_INT(error.rank, 1);
  }
  gb_meet();
  gbi_hostarea_close(area);
}

/* Whoever can shrink the memory can end everybody that touches it. */
GB_TEST(hostarea, memory_without_a_seal_is_refused, .ranks = 2,
        .fault = "mem.seal@0:fail") {
  gbi_reader all[2];
  gbi_hostarea *area = open_pair(all);
  gb_error error;
  gb_status status =
      gbi_hostarea_connect(area, all, gbi_deadline_after_ms(2000), &error);
  if (gb_rank()) {
    GB_CHECK_INT(status, GB_ERR_PROTOCOL);
    GB_CHECK_TEXT(error.text, "is not sealed");
  }
  gb_meet();
  gbi_hostarea_close(area);
}

GB_TEST(hostarea, key_tells_hosts_apart) {
  char a[256], b[256], c[256];
  gbi_host_key("host", a, sizeof a);
  gbi_host_key("host", b, sizeof b);
  gbi_host_key("other", c, sizeof c);
  GB_CHECK(!strcmp(a, b));
  GB_CHECK(strcmp(a, c));
  GB_CHECK_TEXT(a, "host");
}

static int open_files(void) {
  DIR *dir = opendir("/proc/self/fd");
  int n = 0;
  while (readdir(dir)) n++;
  closedir(dir);
  return n;
}

GB_TEST(hostarea, leaves_no_descriptor, .ranks = 4) {
  gb_meet();
  int before = open_files();
  gbi_hostarea *area = gb_area_open(NULL);
  gb_meet();
  gbi_hostarea_close(area);
  GB_CHECK_INT(open_files(), before);
}
