/* base: what every other layer stands on.
 *
 * Status and error helpers, clock and deadlines, log, settings, wire encoding,
 * HMAC. It calls libc and libcrypto only. It must never open a socket, start a
 * thread or know what a rank does.
 *
 * This header: errors, deadlines, small macros. */
#ifndef GBI_BASE_BASE_H
#define GBI_BASE_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <gpubridge/coll.h>
#include <gpubridge/status.h>

/* Returns early with a failure; only in functions that own nothing. */
#define GBI_TRY(call)                                                          \
  do {                                                                         \
    gb_status gbi_try_status = (call);                                         \
    if (gbi_try_status != GB_OK) return gbi_try_status;                        \
  } while (0)

#define GBI_LIKELY(x) __builtin_expect(!!(x), 1)
#define GBI_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define GBI_MIN(a, b) ((a) < (b) ? (a) : (b))
#define GBI_MAX(a, b) ((a) > (b) ? (a) : (b))
#define GBI_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Fills `error` (may be NULL) and returns `status`. The first function that
 * knows what went wrong writes the text; callers above pass it on. Texts: lower
 * case, no full stop, no function name, what where why; a hint is a second
 * sentence after ". ". */
gb_status gbi_fail(gb_error *error, gb_status status, const char *format, ...)
    GB_PRINTF(3, 4);
/* The same, with the failing rank. */
gb_status gbi_fail_rank(gb_error *error, gb_status status, int rank,
                        const char *format, ...) GB_PRINTF(4, 5);
void gbi_error_clear(gb_error *error);

/* Monotonic nanoseconds. A deadline is an absolute time on this clock and is
 * passed down whole. GBI_NEVER never passes. */
#define GBI_NEVER UINT64_MAX
#define GBI_NS_PER_MS UINT64_C(1000000)
#define GBI_NS_PER_S UINT64_C(1000000000)
uint64_t gbi_now_ns(void);
uint64_t gbi_deadline_after_ms(uint64_t timeout_ms); /* saturates */
bool gbi_deadline_passed(uint64_t deadline_ns);
/* Milliseconds left, rounded up, at most `most_ms`; 0 when passed. */
int gbi_deadline_left_ms(uint64_t deadline_ns, int most_ms);

/* snprintf into what is left of a buffer; never past its end. */
typedef struct gbi_text {
  char *at;
  size_t bytes;
  size_t used;
} gbi_text;
void gbi_text_init(gbi_text *text, char *buffer, size_t bytes);
void gbi_text_add(gbi_text *text, const char *format, ...) GB_PRINTF(2, 3);
/* "0-3, 7": a list of ascending numbers in words a person reads. */
void gbi_text_add_ranks(gbi_text *text, const int *ranks, int count);

/* The identity of one collective call: what all ranks must agree on. It rides
 * in every shared-memory slot and bridge frame, so that a mismatch is an error
 * that shows both sides. Fixed layout, little-endian on the wire. */
typedef enum gbi_op {
  GBI_OP_ALL_REDUCE = 1,
  GBI_OP_BROADCAST,
  GBI_OP_ALL_GATHER,
  GBI_OP_REDUCE_SCATTER,
  GBI_OP_BARRIER,
  GBI_OP_REDUCE,
  GBI_OP_GATHER,
  GBI_OP_SCATTER,
  GBI_OP_ALL_TO_ALL,
  GBI_OP_ALL_GATHER_V,
  GBI_OP_REDUCE_SCATTER_V,
  GBI_OP_SEND,
  GBI_OP_RECV,
  GBI_OP_COUNT
} gbi_op;

/* A call that was captured into a graph has no number among its group's calls:
 * its own number, from 0 on, and the replay's, from 1 on, stand for it. */
#define GBI_SEQ_CAPTURED (UINT64_C(1) << 63)
#define GBI_SEQ_CAPTURES_MAX (UINT64_C(1) << 20)
static inline uint64_t gbi_seq_captured(uint64_t number, uint64_t replay) {
  return GBI_SEQ_CAPTURED | (replay << 20 & ~GBI_SEQ_CAPTURED) | number;
}

typedef struct gbi_call {
  uint64_t seq;   /* the group's sequence number, or gbi_seq_captured */
  uint64_t count; /* elements of the call's larger buffer; gather, scatter: of
                     one row; all_to_all: 0 */
  int32_t root;   /* group rank, -1 when the op has none; the v ops: 31 bits
                     that stand for the rows' lengths */
  uint8_t op;     /* gbi_op */
  uint8_t dtype;  /* gb_dtype; 255 for barrier */
  uint8_t redop;  /* gb_redop; 255 when the op has none */
  uint8_t spare;  /* 0 */
} gbi_call;

/* What sort of numbers a type holds. */
typedef enum gbi_class {
  GBI_CLASS_NONE, /* an unknown code */
  GBI_CLASS_INTEGER,
  GBI_CLASS_BOOL,
  GBI_CLASS_FLOATING,
  GBI_CLASS_FLOAT8,
  GBI_CLASS_COMPLEX
} gbi_class;
gbi_class gbi_dtype_class(gb_dtype dtype);
/* The type that sums travel in where a collective is wide (plan/plan.h):
 * float32 for float16, bfloat16 and float8, for others the type itself. */
gb_dtype gbi_wide_dtype(gb_dtype dtype);

bool gbi_call_equal(const gbi_call *a, const gbi_call *b);
/* "all_reduce number 12 of 5 float32, sum": the same words everywhere. */
void gbi_call_text(const gbi_call *call, char *buffer, size_t bytes);
const char *gbi_op_name(int op); /* "all_reduce", ... as spec 1.11 names them */
/* GB_ERR_MISMATCH with both sides: "ranks disagree: rank 1 called X, rank 3
 * called Y". */
gb_status gbi_fail_mismatch(gb_error *error, int rank_a, const gbi_call *a,
                            int rank_b, const gbi_call *b);

#endif
