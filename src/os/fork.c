#include "os/fork.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { FDS_MAX = 65536, WORD_BITS = 64 };

static atomic_uint forks;
static _Atomic uint64_t closed_by_children[FDS_MAX / WORD_BITS];

/* The child has one thread, and close may be called between fork and exec. */
static void in_child(void) {
  atomic_fetch_add(&forks, 1);
  for (int word = 0; word < FDS_MAX / WORD_BITS; word++) {
    uint64_t bits = atomic_exchange(&closed_by_children[word], 0);
    for (; bits; bits &= bits - 1)
      close(word * WORD_BITS + __builtin_ctzll(bits));
  }
}

__attribute__((constructor)) static void watch_forks(void) {
  pthread_atfork(NULL, NULL, in_child);
}

unsigned gbi_fork_count(void) {
  return atomic_load_explicit(&forks, memory_order_relaxed);
}

void gbi_fork_closes(int fd) {
  if (fd < 0 || fd >= FDS_MAX) return;
  atomic_fetch_or(&closed_by_children[fd / WORD_BITS],
                  (uint64_t)1 << (fd % WORD_BITS));
}

void gbi_fork_keeps(int fd) {
  if (fd < 0 || fd >= FDS_MAX) return;
  atomic_fetch_and(&closed_by_children[fd / WORD_BITS],
                   ~((uint64_t)1 << (fd % WORD_BITS)));
}
