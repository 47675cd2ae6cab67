/* Who is known to have ended before whom, and who touched which bytes. */
#include "fakes/gpu.h"

#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 256 };

/* The last write of the GPU to a flag. */
typedef struct flag {
  struct flag *next;
  uintptr_t address;
  uint64_t value;
  fake_clock clock;
} flag;

static fake_clock host; /* what the host may know */
static uint64_t line_last[FAKE_LINES];
static bool line_used[FAKE_LINES];
static int lines; /* ever used: clocks are zero beyond */
static flag *flags[BUCKETS];
static fake_op *waits; /* enqueued and not passed */

/* A line that was used before goes on counting: the operations of the stream
 * that had it count as the new one's earlier ones. */
int fake_line_new_locked(uint64_t *first_p) {
  for (int i = 0; i < FAKE_LINES; i++) {
    if (line_used[i]) continue;
    line_used[i] = true;
    *first_p = line_last[i];
    if (i >= lines) lines = i + 1;
    return i;
  }
  fake_check_failed(fake_call_name(), fake_call_site(), NULL, NULL,
                    "more than %d streams at a time", FAKE_LINES);
}

void fake_line_free_locked(int line, uint64_t last) {
  line_used[line] = false;
  line_last[line] = last;
}

void fake_clock_join(fake_clock *clock, const fake_clock *other) {
  if (!other) return;
  for (int i = 0; i < lines; i++)
    if (other->at[i] > clock->at[i]) clock->at[i] = other->at[i];
}

fake_clock *fake_clock_copy(const fake_clock *clock) {
  if (!clock) return NULL;
  fake_clock *copy = malloc(sizeof *copy);
  if (!copy) abort();
  memcpy(copy, clock, sizeof *copy);
  return copy;
}

static flag **flag_at(uintptr_t address) {
  flag **at = &flags[(address >> 3) * 0x9e3779b1u % BUCKETS];
  while (*at && (*at)->address != address) at = &(*at)->next;
  return at;
}

void fake_flags_forget_locked(uintptr_t begin, size_t bytes) {
  for (int i = 0; i < BUCKETS; i++) {
    for (flag **at = &flags[i]; *at;) {
      flag *f = *at;
      if (f->address - begin < bytes) {
        *at = f->next;
        free(f);
      } else {
        at = &f->next;
      }
    }
  }
}

fake_clock *fake_host_knows_locked(void) {
  return gpu.set.checks ? fake_clock_copy(&host) : NULL;
}

/* A value above the last one that a GPU wrote must be the host's. */
static const fake_clock *clock_behind(const fake_flag_op *op, uint64_t value) {
  const flag *f = *flag_at((uintptr_t)op->address);
  return f && value <= f->value ? &f->clock : &host;
}

/* Not an acquire: the thread that looks here has not seen the flag. */
static uint64_t peek(const fake_flag_op *op) {
  if (op->bytes == 4)
    return __atomic_load_n((const uint32_t *)op->word, __ATOMIC_RELAXED);
  return __atomic_load_n((const uint64_t *)op->word, __ATOMIC_RELAXED);
}

static void look_at_wait(fake_op *op, uint64_t seen) {
  if (!fake_flag_satisfied(&op->flag, seen)) {
    free(op->flag.passed);
    op->flag.passed = NULL;
  } else if (!op->flag.passed) {
    op->flag.passed = fake_clock_copy(clock_behind(&op->flag, seen));
  }
}

/* Before the host learns more: a flag that is up by now was raised by a host
 * that knew no more than this. */
static void look_at_waits(void) {
  for (fake_op *op = waits; op; op = op->flag.next)
    look_at_wait(op, peek(&op->flag));
}

void fake_flag_waits_locked(fake_op *op) {
  if (!gpu.set.checks) return;
  op->flag.next = waits;
  op->flag.at = &waits;
  if (waits) waits->flag.at = &op->flag.next;
  waits = op;
}

void fake_flag_forgets_locked(fake_op *op) {
  free(op->flag.passed);
  op->flag.passed = NULL;
  if (!op->flag.at) return;
  *op->flag.at = op->flag.next;
  if (op->flag.next) op->flag.next->flag.at = op->flag.at;
  op->flag.at = NULL;
}

static void learn(const fake_clock *clock) {
  bool news = false;
  for (int i = 0; i < lines && !news; i++) news = clock->at[i] > host.at[i];
  if (!news) return;
  look_at_waits();
  fake_clock_join(&host, clock);
}

void fake_host_learns_locked(const fake_clock *clock) {
  if (clock) learn(clock);
}

void fake_host_learns_stream_locked(const fake_stream *stream) {
  if (!stream->clock) return;
  fake_clock known = *stream->clock;
  known.at[stream->line] = stream->completed;
  learn(&known);
}

void fake_flag_passed_locked(fake_op *op, uint64_t value) {
  fake_clock *clock = op->stream->clock;
  if (!clock) return;
  if (value >= FAKE_OPEN_ALL) gpu.abandoned = true;
  fake_clock_join(clock, op->flag.passed ? op->flag.passed
                                         : clock_behind(&op->flag, value));
  fake_flag_forgets_locked(op);
}

void fake_flag_writes_locked(fake_op *op) {
  const fake_clock *clock = op->stream->clock;
  if (!clock) return;
  look_at_waits();
  flag **at = flag_at((uintptr_t)op->flag.address);
  if (!*at) {
    *at = fake_new(sizeof **at);
    (*at)->address = (uintptr_t)op->flag.address;
  }
  (*at)->value = op->flag.value;
  (*at)->clock = *clock;
  for (fake_op *wait = waits; wait; wait = wait->flag.next)
    if (wait->flag.address == op->flag.address)
      look_at_wait(wait, op->flag.value); /* it may go down again */
  if (op->flag.host_visible) fake_clock_join(&host, clock);
}

static bool ordered(const fake_access *access, const fake_op *op) {
  return access->line == op->stream->line ||
         access->seq <= op->stream->clock->at[access->line];
}

static void append(fake_memory *memory, fake_access access) {
  if (memory->accesses_count == memory->accesses_room) {
    int room = memory->accesses_room ? 2 * memory->accesses_room : 8;
    memory->accesses =
        realloc(memory->accesses, (size_t)room * sizeof *memory->accesses);
    if (!memory->accesses) abort();
    memory->accesses_room = room;
  }
  memory->accesses[memory->accesses_count++] = access;
}

/* Takes [begin, end) out of access i. True: nothing of it is left, and another
 * one is in its place. */
static bool cut(fake_memory *memory, int i, uintptr_t begin, uintptr_t end) {
  fake_access *access = &memory->accesses[i];
  fake_access right = *access;
  bool left_stays = access->begin<begin, right_stays = access->end> end;
  if (left_stays && right_stays) {
    access->end = begin;
    right.begin = end;
    append(memory, right);
  } else if (left_stays) {
    access->end = begin;
  } else if (right_stays) {
    access->begin = end;
  } else {
    *access = memory->accesses[--memory->accesses_count];
    return true;
  }
  return false;
}

static void check_against(const fake_op *op, const fake_access *access,
                          bool writes) {
  if ((!writes && !access->writes) || ordered(access, op)) return;
  if (gpu.abandoned) return;
  fake_check_failed(
      op->what, op->site, access->what, access->site,
      "%s of bytes that %s, and nothing orders the two (%p, %zu bytes; "
      "stream %d operation %llu, other stream %d operation %llu)",
      writes ? "write" : "read",
      access->writes ? "another operation writes" : "another operation reads",
      (void *)access->begin, (size_t)(access->end - access->begin),
      op->stream->line, (unsigned long long)op->seq, access->line,
      (unsigned long long)access->seq);
}

/* An access that is ordered before this one and says no more than it about
 * later ones is cut away: the list stays as long as there are parties. */
static void look_at(fake_op *op, const fake_range *range) {
  fake_memory *memory = fake_memory_locked(range->begin);
  if (!memory || memory->freed || !range->bytes) return;
  uintptr_t begin = (uintptr_t)range->begin, end = begin + range->bytes;
  bool writes = range->writes != 0;
  fake_counted_check();
  for (int i = 0; i < memory->accesses_count;) {
    fake_access *access = &memory->accesses[i];
    if (access->end <= begin || access->begin >= end) {
      i++;
      continue;
    }
    check_against(op, access, writes);
    bool covers = writes || (!access->writes && ordered(access, op));
    if (!covers || !cut(memory, i, begin, end)) i++;
  }
  append(memory, (fake_access){.begin = begin,
                               .end = end,
                               .line = op->stream->line,
                               .seq = op->seq,
                               .writes = writes,
                               .what = op->what,
                               .site = op->site});
}

/* Fills [begin, end) but for what ranges i and later read. */
static void poison(const fake_op *op, char *view, uintptr_t base,
                   uintptr_t begin, uintptr_t end, int i) {
  for (; i < op->ranges_count && begin < end; i++) {
    const fake_range *range = &op->ranges[i];
    uintptr_t from = (uintptr_t)range->begin, to = from + range->bytes;
    if (range->writes || to <= begin || from >= end) continue;
    if (from > begin) poison(op, view, base, begin, from, i + 1);
    begin = to;
  }
  if (begin < end) memset(view + (begin - base), FAKE_POISON, end - begin);
}

static void poison_all(const fake_op *op) {
  for (int i = 0; i < op->ranges_count; i++) {
    const fake_range *range = &op->ranges[i];
    if (!range->writes || !range->bytes) continue;
    const fake_memory *memory = fake_memory_locked(range->begin);
    if (!memory || memory->freed) continue;
    uintptr_t begin = (uintptr_t)range->begin;
    poison(op, memory->view, memory->begin, begin, begin + range->bytes, 0);
  }
}

/* The needed stream may have gone on since; its own line is cut back to what
 * was needed, what it learned from others meanwhile is taken as it is. */
static void join_need(fake_clock *clock, const fake_need *need) {
  const fake_stream *stream = need->stream;
  uint64_t mine = clock->at[stream->line];
  fake_clock_join(clock, stream->clock);
  clock->at[stream->line] = need->seq > mine ? need->seq : mine;
}

void fake_begin_locked(fake_op *op) {
  if (op->begun) return;
  op->begun = true;
  fake_clock *clock = op->stream->clock;
  if (!clock) return;
  fake_clock_join(clock, op->host);
  for (int i = 0; i < op->needs_count; i++) join_need(clock, &op->needs[i]);
  if (op->kind == FAKE_WAIT_EVENT) fake_clock_join(clock, op->mark->clock);
  clock->at[op->stream->line] = op->seq;
  for (int i = 0; i < op->ranges_count; i++)
    if (!op->ranges[i].writes) look_at(op, &op->ranges[i]);
  for (int i = 0; i < op->ranges_count; i++)
    if (op->ranges[i].writes) look_at(op, &op->ranges[i]);
  if (!gpu.abandoned) poison_all(op);
}
