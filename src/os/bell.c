#include "os/bell.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* `sleeper` counts, because two threads of the owner may sleep, one each way.
 * A flag that the ringer takes down would be cheaper for the second ringer, but
 * it could be taken between a sleeper's last look and its futex call, and the
 * ring after that would wake nobody. */
enum { IN_FUTEX = 1, IN_POLL = 1 << 16, FDS_MAX = 64 };

static void futex_wake(_Atomic uint32_t *word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void event_add(int event_fd) {
  uint64_t one = 1;
  /* EAGAIN: the counter is full, so the sleeper wakes anyway. */
  while (write(event_fd, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void gbi_bell_ring(gbi_bell *bell, int event_fd) {
  /* Pairs with the sleeper's add and re-check: in the one order of these four
   * operations either the sleeper sees the new number or we see the sleeper. */
  atomic_fetch_add(&bell->rung, 1);
  uint32_t sleeper = atomic_load(&bell->sleeper);
  if (GBI_LIKELY(!sleeper)) return;
  if (sleeper % IN_POLL) futex_wake(&bell->rung);
  if (sleeper >= IN_POLL && event_fd >= 0) event_add(event_fd);
}

static void sleep_in_futex(gbi_bell *bell, uint32_t seen, int most_ms) {
  struct timespec most = {most_ms / 1000, (most_ms % 1000) * 1000000L};
  atomic_fetch_add(&bell->sleeper, IN_FUTEX);
  if (atomic_load(&bell->rung) == seen)
    syscall(SYS_futex, &bell->rung, FUTEX_WAIT, seen, &most, NULL, 0);
  atomic_fetch_sub(&bell->sleeper, IN_FUTEX);
}

/* Takes what the event says, unless another sleeper still has to see it. */
static void drain_event(gbi_waiter *waiter, uint32_t sleepers_before) {
  uint64_t rings;
  ssize_t got = read(waiter->event_fd, &rings, sizeof rings);
  if (got > 0 && sleepers_before >= 2u * IN_POLL)
    event_add(waiter->event_fd);
}

static void sleep_in_poll(gbi_waiter *waiter, uint32_t seen,
                          struct pollfd *fds, int count, int most_ms) {
  struct pollfd all[FDS_MAX + 1];
  memcpy(all, fds, (size_t)count * sizeof *fds);
  all[count] = (struct pollfd){waiter->event_fd, POLLIN, 0};
  atomic_fetch_add(&waiter->bell->sleeper, IN_POLL);
  int ready = 0;
  if (atomic_load(&waiter->bell->rung) == seen)
    ready = poll(all, (nfds_t)count + 1, most_ms);
  uint32_t before = atomic_fetch_sub(&waiter->bell->sleeper, IN_POLL);
  for (int i = 0; i < count; i++)
    fds[i].revents = ready > 0 ? all[i].revents : 0;
  if (ready > 0 && all[count].revents) drain_event(waiter, before);
}

void gbi_waiter_arm(gbi_waiter *waiter, uint32_t seen) {
  atomic_fetch_add(&waiter->bell->sleeper, IN_POLL);
  if (atomic_load(&waiter->bell->rung) != seen) event_add(waiter->event_fd);
}

void gbi_waiter_disarm(gbi_waiter *waiter) {
  drain_event(waiter, atomic_fetch_sub(&waiter->bell->sleeper, IN_POLL));
}

void gbi_waiter_sleep(gbi_waiter *waiter, uint32_t seen, struct pollfd *fds,
                      int count, int most_ms) {
  if (most_ms <= 0 || gbi_bell_look(waiter) != seen) {
    if (count > 0 && poll(fds, (nfds_t)count, 0) < 0)
      for (int i = 0; i < count; i++) fds[i].revents = 0;
    return;
  }
  /* More descriptors than fit: a short nap instead of none watched. */
  if (count > FDS_MAX) {
    poll(fds, (nfds_t)count, GBI_MIN(most_ms, 1));
    return;
  }
  if (count > 0 && waiter->event_fd >= 0)
    sleep_in_poll(waiter, seen, fds, count, most_ms);
  else
    sleep_in_futex(waiter->bell, seen, most_ms);
}
