/* The test harness: GB_TEST cases, each in processes of its own.
 *
 *   GB_TEST(wire, short_blob_is_refused) { GB_CHECK(reader.bad); }
 *   GB_TEST(job, sums, .ranks = 4, .vendors = "nnaa", .timeout_ms = 20000) {
 *     ... runs in 4 forked processes, gb_rank() tells which ...
 *   }
 *
 * Every rank of a case is a forked child in a process group of its own, with
 * RANK, WORLD_SIZE, MASTER_ADDR=127.0.0.1, a free MASTER_PORT, and
 * GPUBRIDGE_VENDOR from the letters of `vendors` (n, a) set. Output is captured
 * and printed only for a case that fails. A case that outlives its deadline is
 * killed and fails. A rank that dies by a signal fails, unless `expect` says
 * otherwise. The executable takes name patterns ("job.*"), leaves out those of
 * the list GB_TEST_LEAVE_OUT, and prints "N passed, N failed, N skipped" last;
 * exit 0, 1, or 77 when all were skipped. */
#ifndef GB_TEST_H
#define GB_TEST_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct gb_test_case {
  const char *suite;
  const char *name;
  void (*run)(void);
  int ranks;           /* 0 or 1: one process */
  const char *vendors; /* one letter a rank: n or a; NULL: none set */
  int timeout_ms;      /* 0: 30 s */
  /* What rank r must end with: NULL: exit 0 everywhere; else one letter a
   * rank: '0' exit 0, 'x' exit non-zero, 'k' killed by SIGKILL, '?' anything
   * but a crash. */
  const char *expect;
  const char *fault; /* GPUBRIDGE_FAULT for all ranks; skipped when not built */
  struct gb_test_case *next;
} gb_test_case;

void gb_test_register(gb_test_case *test);

#define GB_TEST(suite_, name_, ...)                                            \
  static void gb_run_##suite_##_##name_(void);                                 \
  static gb_test_case gb_case_##suite_##_##name_ = {                           \
      .suite = #suite_, .name = #name_, .run = gb_run_##suite_##_##name_,      \
      ##__VA_ARGS__};                                                          \
  __attribute__((constructor)) static void gb_add_##suite_##_##name_(void) {   \
    gb_test_register(&gb_case_##suite_##_##name_);                             \
  }                                                                            \
  static void gb_run_##suite_##_##name_(void)

int gb_rank(void);
int gb_world(void);
const char *gb_vendors(void); /* the case's letters; NULL */
/* Ends this rank's case as failed / skipped, with a reason. */
void gb_test_fail(const char *file, int line, const char *format, ...)
    __attribute__((noreturn, format(printf, 3, 4)));
void gb_test_skip(const char *format, ...)
    __attribute__((noreturn, format(printf, 1, 2)));
/* A shared-memory page of the case, zeroed: for tests that count or signal
 * between ranks. 64 KiB. */
void *gb_test_shared(void);
/* Waits until *word >= value, at most timeout_ms; fails the case otherwise. */
void gb_test_await(volatile int *word, int value, int timeout_ms);
/* Values that repeat: the first `period` of `bytes` bytes again and again, by
 * copying; and whether they are. Filling and checking one by one took most of
 * the time of the tests that move much. */
void gb_test_repeat(void *data, size_t period, size_t bytes);
bool gb_test_repeats(const void *data, size_t period, size_t bytes);

#define GB_CHECK(condition)                                                    \
  do {                                                                         \
    if (!(condition))                                                          \
      gb_test_fail(__FILE__, __LINE__, "not true: %s", #condition);            \
  } while (0)
#define GB_CHECK_INT(got, want)                                                \
  do {                                                                         \
    long long gb_got = (long long)(got), gb_want = (long long)(want);          \
    if (gb_got != gb_want)                                                     \
      gb_test_fail(__FILE__, __LINE__, "%s is %lld, not %lld", #got, gb_got,   \
                   gb_want);                                                   \
  } while (0)
#define GB_CHECK_TEXT(got, part)                                               \
  do {                                                                         \
    const char *gb_got = (got), *gb_part = (part);                             \
    if (!strstr(gb_got, gb_part))                                              \
      gb_test_fail(__FILE__, __LINE__, "\"%s\" does not contain \"%s\"",       \
                   gb_got, gb_part);                                           \
  } while (0)
/* For calls that take a gb_error. */
#define GB_CHECK_OK(call)                                                      \
  do {                                                                         \
    int gb_status_ = (int)(call);                                              \
    if (gb_status_)                                                            \
      gb_test_fail(__FILE__, __LINE__, "%s gave %d", #call, gb_status_);       \
  } while (0)

#endif
