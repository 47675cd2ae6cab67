/* Proves that a ring is never lost: two processes pass a turn back and forth
 * through every way of sleeping, and each round must be far shorter than the
 * longest nap; and that two sleepers of one bell both wake. */
#include "os/bell.h"
#include "harness/gb_area.h"
#include "harness/gb_test.h"
#include "os/hostarea.h"

#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { ROUNDS = 3000, NAP_MS = 5000 };

/* how: 0 futex, 1 poll, 2 either in turn. */
static void ping_pong(int how) {
  gbi_hostarea *area = gb_area_open(NULL);
  gbi_waiter *waiter = gbi_hostarea_waiter(area);
  _Atomic int *turn = gb_spare();
  int pipes[2];
  GB_CHECK_OK(pipe(pipes)); /* never ready */
  gb_meet();
  uint64_t start = gbi_now_ns();
  for (int i = 0; i < ROUNDS; i++) {
    int mine = 2 * i + gb_rank();
    for (;;) {
      uint32_t seen = gbi_bell_look(waiter);
      if (atomic_load(turn) == mine) break;
      struct pollfd fd = {pipes[0], POLLIN, 0};
      int fds = how == 2 ? i % 2 : how;
      gbi_waiter_sleep(waiter, seen, fds ? &fd : NULL, fds, NAP_MS);
    }
    atomic_store(turn, mine + 1);
    gbi_hostarea_ring(area, !gb_rank());
  }
  GB_CHECK(gbi_now_ns() - start < NAP_MS * GBI_NS_PER_MS);
  gb_meet();
  gbi_hostarea_close(area);
}

GB_TEST(bell, ping_pong_in_futex, .ranks = 2) { ping_pong(0); }
GB_TEST(bell, ping_pong_in_poll, .ranks = 2) { ping_pong(1); }
GB_TEST(bell, ping_pong_in_both, .ranks = 2) { ping_pong(2); }

typedef struct sleepers {
  gbi_bell bell;
  gbi_waiter waiter;
  _Atomic int round;
  _Atomic int woken;
  int never[2];
} sleepers;

static void sleep_until(sleepers *s, int round, bool polls) {
  for (;;) {
    uint32_t seen = gbi_bell_look(&s->waiter);
    if (atomic_load(&s->round) >= round) return;
    struct pollfd fd = {s->never[0], POLLIN, 0};
    gbi_waiter_sleep(&s->waiter, seen, polls ? &fd : NULL, polls, NAP_MS);
  }
}

static void *sleeper_polls(void *arg) {
  for (int i = 1; i <= 500; i++) {
    sleep_until(arg, i, true);
    atomic_fetch_add(&((sleepers *)arg)->woken, 1);
  }
  return NULL;
}

static void *sleeper_mixed(void *arg) {
  for (int i = 1; i <= 500; i++) {
    sleep_until(arg, i, i % 2);
    atomic_fetch_add(&((sleepers *)arg)->woken, 1);
  }
  return NULL;
}

GB_TEST(bell, wakes_two_sleepers_of_one_process, .timeout_ms = 120000) {
  static sleepers s;
  s.waiter = (gbi_waiter){&s.bell, eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  GB_CHECK_OK(pipe(s.never));
  pthread_t a, b;
  GB_CHECK_OK(pthread_create(&a, NULL, sleeper_polls, &s));
  GB_CHECK_OK(pthread_create(&b, NULL, sleeper_mixed, &s));
  for (int i = 1; i <= 500; i++) {
    uint64_t start = gbi_now_ns();
    /* Let them fall asleep in most rounds. */
    for (int k = 0; k < 50 && i % 4; k++) sched_yield();
    atomic_store(&s.round, i);
    gbi_bell_ring(&s.bell, s.waiter.event_fd);
    while (atomic_load(&s.woken) < 2 * i) sched_yield();
    /* A lost wake would cost the whole nap. */
    GB_CHECK(gbi_now_ns() - start < NAP_MS * GBI_NS_PER_MS * 9 / 10);
  }
  GB_CHECK_OK(pthread_join(a, NULL));
  GB_CHECK_OK(pthread_join(b, NULL));
  GB_CHECK_INT(atomic_load(&s.bell.sleeper), 0);
}

GB_TEST(bell, other_descriptors_wake_too) {
  static gbi_bell bell;
  gbi_waiter waiter = {&bell, eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  int pipes[2];
  GB_CHECK_OK(pipe(pipes));
  GB_CHECK(write(pipes[1], "x", 1) == 1);
  struct pollfd fd = {pipes[0], POLLIN, 0};
  gbi_waiter_sleep(&waiter, gbi_bell_look(&waiter), &fd, 1, NAP_MS);
  GB_CHECK(fd.revents & POLLIN);
  /* A nap ends by itself. */
  gbi_waiter_sleep(&waiter, gbi_bell_look(&waiter), NULL, 0, 1);
}

/* A lane's ring wakes its own sleepers only, and an armed waiter's descriptor
 * tells of rings before and after. */
GB_TEST(bell, lanes_and_arming, .ranks = 2) {
  gbi_hostarea *area = gb_area_open(NULL);
  gbi_waiter *other = gbi_hostarea_lane_waiter(area, 1);
  uint32_t first = gbi_bell_look(gbi_hostarea_waiter(area));
  uint32_t seen = gbi_bell_look(other);
  struct pollfd fd = {other->event_fd, POLLIN, 0};
  gb_meet();
  gbi_waiter_arm(other, seen);
  gb_meet();
  gbi_hostarea_ring_lane(area, !gb_rank(), 1);
  GB_CHECK_INT(poll(&fd, 1, NAP_MS), 1);
  gbi_waiter_disarm(other);
  GB_CHECK_INT(poll(&fd, 1, 0), 0);
  gbi_waiter_arm(other, seen); /* it has rung since */
  GB_CHECK_INT(poll(&fd, 1, 0), 1);
  gbi_waiter_disarm(other);
  GB_CHECK_INT(gbi_bell_look(gbi_hostarea_waiter(area)), first);
  gb_meet();
  gbi_hostarea_close(area);
}
