/* gpu: what the fake libcuda and the fake libamdhip64 are made of.
 *
 * The vendor files (cuda.c, hip.c) translate names and codes, nothing else. The
 * engine is a process-wide lock, `gpu.lock`, under which all of the state below
 * lives, and one thread per hardware queue that runs operations outside of it.
 * Functions here take the lock themselves unless they end in `_locked`.
 *
 * Model
 *   Streams are FIFOs; each is tied to one of the device's hardware queues (in
 *   turn), and a queue runs its operations strictly in the order they were
 *   enqueued: an operation that waits holds up every stream of its queue.
 *   The legacy default stream waits for all blocking streams of its device and
 *   they for it. Device memory has an address that nobody can read or write
 *   (PROT_NONE) and a second one that only the engine knows; freed addresses
 *   stay reserved. Pinned memory is one mapping for both sides, so that the
 *   thread sanitizer sees what the host and the "GPU" do to it.
 *
 * Poison
 *   An operation begins as soon as it has nothing left to wait for: when it is
 *   enqueued, if all that comes before it is done, else when its turn comes
 *   (never earlier: what precedes it may still read the destination, or the
 *   host may until it opens a gate). From its beginning to its end, what it
 *   writes and does not read is filled with FAKE_POISON; then comes the delay.
 *
 * Clocks
 *   Each stream is a timeline; an operation's clock says which operations of
 *   every stream are known to have ended before it began. Edges: stream order;
 *   record -> wait-event; the legacy stream; write-value -> wait-value that saw
 *   its value; whatever the host knew when it enqueued the operation, and what
 *   it knew when a wait-value saw a value that no GPU operation had written.
 *   The host knows of what it synchronised with or queried successfully, and of
 *   every write-value to host-visible memory that has ended (it may have looked
 *   at the flag; the fake cannot see a plain load, so it assumes so).
 *   (A wait takes what the host knew before the first moment at which its flag
 *   was seen to be up; all waits are looked at whenever the host learns.)
 *   When an operation begins, its ranges are compared with those of the others:
 *   a read and a write, or two writes, that touch the same bytes without an
 *   edge are a failed check, whichever of the two ran first.
 *   Caught: a missing event or wait between streams; a staging slot reused
 *   before its flag was raised; memory reused without synchronising.
 *   Not caught: an edge that is missing where a flag that covers it had already
 *   ended by luck (vary FAKE_GPU_SEED); host loads and stores themselves (the
 *   thread sanitizer sees those on pinned memory, in a tsan build); edges that
 *   only another thread of the host has (the host is one timeline); accesses of
 *   other processes.
 *
 * Capture: see gpu_capture.c. */
#ifndef FAKES_GPU_H
#define FAKES_GPU_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#include "fakes/fakes.h"
#pragma GCC visibility pop

enum {
  FAKE_LINES = 256, /* streams alive at a time */
  FAKE_DEVICES_MOST = 8,
  FAKE_QUEUES_MOST = 32,
  FAKE_RING = 64, /* outstanding operations of a stream under rocm-ring */
  FAKE_POISON = 0xfb
};

/* What the engine answers; fake_code has the vendors' number. */
typedef enum fake_result {
  FAKE_OK,
  FAKE_NOT_READY,
  FAKE_BAD_VALUE,
  FAKE_BAD_HANDLE,
  FAKE_NO_MEMORY,
  FAKE_NO_DEVICE,
  FAKE_REGISTERED,
  FAKE_NOT_REGISTERED,
  FAKE_NOT_FOUND,
  FAKE_NOT_SUPPORTED,
  FAKE_CAPTURE_UNSUPPORTED,
  FAKE_CAPTURE_INVALIDATED,
  FAKE_CAPTURE_UNMATCHED,
  FAKE_CAPTURE_UNJOINED,
  FAKE_CAPTURE_ISOLATION,
  FAKE_CAPTURE_IMPLICIT,
  FAKE_CAPTURE_THREAD,
  FAKE_CAPTURED_EVENT,
  FAKE_RESULTS
} fake_result;

typedef struct fake_clock {
  uint64_t at[FAKE_LINES];
} fake_clock;

typedef struct fake_queue fake_queue;
typedef struct fake_stream fake_stream;
typedef struct fake_capture fake_capture;

/* One position in a stream: what a record leaves behind. Counted. */
typedef struct fake_mark {
  int refs;
  bool done;
  fake_stream *stream;
  uint64_t seq;
  fake_clock *clock; /* once done; NULL without checks */
  fake_capture *capture;
} fake_mark;

typedef struct fake_event {
  uint32_t magic;
  int device;
  fake_mark *mark; /* NULL: never recorded */
  double at_ms;    /* when the last record ended */
  struct fake_event *next;
} fake_event;

struct fake_stream {
  uint32_t magic;
  int device;
  bool blocking, legacy, mine, dead;
  bool held; /* rocm-lock: somebody synchronises with it */
  int priority;
  unsigned flags; /* as the vendor's function got them */
  fake_queue *queue;
  int line; /* index in clocks; sequence numbers go on where it was left */
  uint64_t first, enqueued, completed;
  fake_clock *clock; /* of what has begun; NULL without checks */
  fake_capture *capture;
  fake_stream *next; /* all streams, dead ones too: handles stay checkable */
};

typedef enum fake_kind {
  FAKE_COPY,
  FAKE_FILL,
  FAKE_WAIT_VALUE,
  FAKE_WRITE_VALUE,
  FAKE_RECORD,
  FAKE_WAIT_EVENT,
  FAKE_HOST,
  FAKE_KERNEL,
  FAKE_NOTHING
} fake_kind;

typedef enum fake_compare {
  FAKE_GEQ,
  FAKE_EQ,
  FAKE_AND,
  FAKE_NOR
} fake_compare;

typedef struct fake_flag_op {
  void *word; /* the engine's view */
  const void *address;
  uint64_t value, mask;
  int bytes; /* 4 or 8 */
  fake_compare compare;
  bool cyclic; /* CUDA: signed distance; HIP: unsigned */
  bool host_visible;
  fake_clock *passed;         /* taken when it was first seen satisfied */
  struct fake_op *next, **at; /* among the waits that have not passed */
} fake_flag_op;

typedef struct fake_need {
  fake_stream *stream;
  uint64_t seq;
} fake_need;

typedef struct fake_op {
  struct fake_op *next;
  fake_kind kind;
  const char *what; /* the vendor's function */
  const void *site; /* its caller */
  fake_stream *stream;
  uint64_t seq;
  bool begun;
  fake_need *needs;
  int needs_count;
  fake_range *ranges;
  int ranges_count;
  fake_clock *host; /* what the host knew; NULL without checks */
  fake_mark *mark;
  fake_event *event;
  void *to;
  const void *from;
  size_t bytes;
  uint32_t fill;
  int fill_bytes;
  fake_flag_op flag;
  void (*run)(void *arg);
  void *arg;
  void (*drop)(void *arg);            /* frees arg with the operation */
  void *(*copy_arg)(const void *arg); /* for replays; NULL: arg itself */
} fake_op;

struct fake_queue {
  int device;
  pthread_cond_t work;
  fake_op *head, *tail;
  bool started;
  bool owned; /* by one stream */
};

/* One operation's access to a part of an allocation. */
typedef struct fake_access {
  uintptr_t begin, end;
  int line;
  uint64_t seq;
  bool writes;
  const char *what;
  const void *site;
} fake_access;

typedef enum fake_memory_kind {
  FAKE_PAGEABLE,
  FAKE_DEVICE,
  FAKE_PINNED,
  FAKE_ADOPTED
} fake_memory_kind;

typedef struct fake_memory {
  fake_memory_kind kind;
  int device;
  uintptr_t begin;
  size_t bytes;
  char *view; /* where the engine finds it */
  size_t reserved; /* addresses that memory is mapped to bit by bit, or 0 */
  bool coherent;
  bool freed;
  uint64_t id;
  const char *freed_by;
  const void *freed_at;
  fake_access *accesses;
  int accesses_count, accesses_room;
} fake_memory;

typedef struct fake_device {
  fake_queue queues[FAKE_QUEUES_MOST];
  int queues_used, high_used; /* streams made so far, for taking turns */
  fake_stream *legacy;
  size_t used;
  uint8_t uuid[16], slice[16]; /* equal: not a slice */
  char pci[32];
  int pci_domain, pci_bus;
} fake_device;

typedef struct fake_settings {
  int devices, queues, delay_us;
  uint64_t seed;
  size_t pinned_most;
  bool checks, lazy, blocking, alloc_sync, ring, lock, graph_memops;
} fake_settings;

/* Who gives up opens every gate at once, by a value that no gate waits for:
 * from then on what runs is garbage that nobody is to look at, and nothing that
 * the clocks could check. */
#define FAKE_OPEN_ALL (UINT64_C(1) << 62)

/* Differs between the two libraries; each defines one. */
typedef struct fake_vendor {
  const char *name;
  bool ring;           /* rocm-ring without being asked */
  bool cyclic;         /* how wait-value compares */
  bool eager_memops;   /* memory operations are not captured but run at once */
  size_t memory_bytes; /* of a device */
  int (*device)(void); /* the calling thread's current one; -1: none */
} fake_vendor;
extern const fake_vendor fake_here;

typedef struct fake_gpu {
  pthread_mutex_t lock;
  pthread_cond_t changed; /* something ended, or a hold was given up */
  int sleepers;           /* on changed */
  bool ready, forked;
  int stopping; /* atomic */
  fake_settings set;
  fake_device devices[FAKE_DEVICES_MOST];
  fake_stream *streams;
  fake_event *events;
  int deepest;
  size_t pinned;
  bool mine;
  bool abandoned; /* a wait saw FAKE_OPEN_ALL */
} fake_gpu;
extern fake_gpu gpu;

/* gpu.c: life */
void fake_start(void);
fake_device *fake_device_at(int device);      /* NULL: no such */
uint64_t fake_random(uint64_t a, uint64_t b); /* of the seed and both */
void fake_lock(void);
void fake_unlock(void);
/* Waits for gpu.changed. False when the process is ending. */
bool fake_sleep_locked(void);
void fake_wake_locked(void);
bool fake_stopping(void);
void *fake_new(size_t bytes); /* zeroed; never NULL */

/* gpu_calls.c: at the top of every vendor function. Returns the code to fail
 * with at once, 0 for none. */
int fake_call(const char *function, const void *caller);
/* The vendors' code; both count alike. */
unsigned int fake_code(fake_result result);
const char *fake_call_name(void);
const void *fake_call_site(void);
void fake_counted_allocation(void);
void fake_counted_blocking(void);
void fake_counted_operation(void);
void fake_counted_check(void);
void fake_counted_kernel(void);
void fake_counted_stream(const fake_stream *stream);
/* On a thread of the engine, calls of vendor functions are failed checks;
 * `where` says which thread. */
void fake_enter_engine(const char *where);
/* Prints and aborts. before: the other operation's function, or NULL. */
void fake_check_failed(const char *what, const void *site, const char *before,
                       const void *before_site, const char *format, ...)
    __attribute__((noreturn, format(printf, 5, 6)));

/* gpu_memory.c */
fake_result fake_allocate(int device, size_t bytes, void **address_p);
fake_result fake_pin(size_t bytes, bool coherent, void **address_p);
fake_result fake_adopt(void *host, size_t bytes);
fake_result fake_unadopt(void *host);
/* Addresses without memory; memory at their end, and what there is taken away,
 * and the addresses. */
fake_result fake_reserve(int device, size_t bytes, void **address_p);
fake_result fake_map(void *address, size_t bytes);
fake_result fake_unmap(void *address, size_t bytes);
fake_result fake_unreserve(void *address, size_t bytes);
/* Waits for the memory's device, as the real ones do. `pinned`: which of the
 * two free functions this is. */
fake_result fake_free(void *address, bool pinned);
/* NULL: pageable. Freed ones are found too. */
fake_memory *fake_memory_locked(const void *address);
/* Of freed memory, what it was. */
fake_memory_kind fake_memory_kind_of(const void *address);
/* A copy of what is known of live memory; false: pageable or freed. */
bool fake_memory_look(const void *address, fake_memory *memory_p);
/* Checks that [address, bytes) lies in one live allocation; fails the check of
 * the running call otherwise. NULL: pageable. */
fake_memory *fake_memory_span_locked(const void *address, size_t bytes);

/* gpu_clock.c */
void fake_clock_join(fake_clock *clock, const fake_clock *other);
/* What the host knows at this moment; NULL without checks. */
fake_clock *fake_host_knows_locked(void);
void fake_host_learns_locked(const fake_clock *clock);
/* All that has ended on the stream. */
void fake_host_learns_stream_locked(const fake_stream *stream);
int fake_line_new_locked(uint64_t *first_p);
void fake_line_free_locked(int line, uint64_t last);
fake_clock *fake_clock_copy(const fake_clock *clock); /* NULL of NULL */
/* The operation begins: its edges, its ranges, its poison. */
void fake_begin_locked(fake_op *op);
/* Waits are known from their enqueueing until they pass or are freed. */
void fake_flag_waits_locked(fake_op *op);
void fake_flag_forgets_locked(fake_op *op);
/* A wait has seen `value`; a write is about to be visible. The store must come
 * under the same hold of the lock: whoever sees it finds its clock. */
void fake_flag_passed_locked(fake_op *op, uint64_t value);
void fake_flag_writes_locked(fake_op *op);
void fake_flags_forget_locked(uintptr_t begin, size_t bytes);

/* gpu_queue.c */
fake_op *fake_op_new(fake_kind kind);
void fake_op_free_locked(fake_op *op);
void fake_op_range(fake_op *op, const void *begin, size_t bytes, bool writes);
/* Takes the operation over. May wait (rocm-ring, rocm-lock, blocking). */
fake_result fake_enqueue_locked(fake_stream *stream, fake_op *op);
void fake_wait_for_locked(const fake_stream *stream, uint64_t seq);
void fake_stream_drain_locked(fake_stream *stream);
void fake_device_drain_locked(int device);
void fake_mark_drop_locked(fake_mark *mark);
int fake_outstanding_locked(const fake_stream *stream);

/* gpu_stream.c */
/* Which queue a stream gets: in turn from the common ones, one of its own, or
 * in turn from those for streams of high priority (ROCm has a set of each). */
enum { FAKE_ANY_QUEUE, FAKE_OWN_QUEUE, FAKE_HIGH_QUEUE };
fake_result fake_stream_new(int device, bool blocking, int priority,
                            unsigned flags, int how, fake_stream **stream_p);
fake_result fake_stream_free(fake_stream *stream);
/* handle NULL: the legacy stream of `device`. Fails the check for a handle that
 * is no stream any more. NULL: no such. Counts the call. */
fake_stream *fake_stream_at_locked(int device, void *handle);
fake_result fake_stream_query(int device, void *handle);
fake_result fake_stream_sync(int device, void *handle);
fake_result fake_device_sync(int device);
fake_result fake_event_new(int device, fake_event **event_p);
fake_result fake_event_free(void *handle);
fake_result fake_event_record(int device, void *handle, void *stream);
fake_result fake_event_query(void *handle);
fake_result fake_event_sync(void *handle);
fake_result fake_event_elapsed(void *start, void *end, float *ms_p);
fake_result fake_stream_wait(int device, void *stream, void *event);

/* gpu_execute.c: an operation's work, on a queue's thread and unlocked. */
void fake_execute(fake_op *op);
/* Whether a wait would pass having seen this. */
bool fake_flag_satisfied(const fake_flag_op *flag, uint64_t seen);

/* gpu_work.c: what streams do */
typedef struct fake_value {
  void *address;
  uint64_t value, mask;
  int bytes;
  fake_compare compare;
} fake_value;
fake_result fake_copy(int device, void *to, const void *from, size_t bytes,
                      void *stream);
/* The host waits for it. */
fake_result fake_copy_now(int device, void *to, const void *from, size_t bytes);
fake_result fake_fill(int device, void *to, uint32_t value, int value_bytes,
                      size_t count, void *stream);
fake_result fake_wait_value(int device, void *stream, const fake_value *value);
fake_result fake_write_value(int device, void *stream, const fake_value *value);
fake_result fake_host_function(int device, void *stream, void (*run)(void *),
                               void *arg);

/* gpu_kernel.c: kernels of tests, found by name. */
typedef struct fake_launch {
  unsigned grid[3], block[3];
  unsigned shared_bytes;
  void *const *params; /* copies of what was launched with */
} fake_launch;
typedef struct fake_kernel {
  const char *name;                       /* lives on */
  void (*run)(const fake_launch *launch); /* memory through fake_gpu_open */
  int params_count;
  const size_t *params_bytes;
  /* Fills at most 8 ranges that a launch touches; NULL: none are checked. */
  int (*ranges)(const fake_launch *launch, fake_range *ranges);
} fake_kernel;
#pragma GCC visibility push(default)
/* Any module has it from then on; `kernel` is kept, not copied. */
void fake_gpu_kernel(const fake_kernel *kernel);
#pragma GCC visibility pop
const fake_kernel *fake_kernel_named(const char *name);

/* gpu_code.c: the library's own kernels, its source compiled as C. What the
 * fake compilers (rtc.c) give away is a text that names the source. */
enum { FAKE_CODE_BYTES = 128 };
void fake_code_text(const char *arch, uint64_t source_hash,
                    char code[FAKE_CODE_BYTES]);
uint64_t fake_source_hash(const char *source);
bool fake_is_code(const char *image);
bool fake_code_fits(const char *image, const char *arch);
const fake_kernel *fake_kernel_built_in(const char *name);
/* Before a kernel is enqueued: lazy loading. */
void fake_kernel_first_locked(fake_stream *stream, const char *name);
fake_result fake_kernel_launch(int device, void *stream,
                               const fake_kernel *kernel,
                               const fake_launch *launch, void **params);

/* gpu_capture.c */
enum { FAKE_CAPTURE_NONE, FAKE_CAPTURE_ACTIVE, FAKE_CAPTURE_BROKEN };
typedef struct fake_graph fake_graph;
fake_result fake_capture_begin(int device, void *stream, int mode);
fake_result fake_capture_end(int device, void *stream, fake_graph **graph_p);
fake_result fake_capture_state(int device, void *stream, int *state_p,
                               uint64_t *id_p, fake_graph **graph_p);
int fake_capture_mode_exchange(int mode);
/* A call that must not happen while a stream captures: breaks what captures
 * and says so. */
fake_result fake_capture_unsafe(void);
fake_result fake_capture_unsafe_locked(void);
void fake_capture_break_locked(fake_capture *capture);
/* Takes the operation over if the stream captures: *taken_p. */
fake_result fake_capture_take_locked(fake_stream *stream, fake_op *op,
                                     bool *taken_p);
fake_result fake_capture_join_locked(fake_stream *stream,
                                     fake_capture *capture);
fake_result fake_graph_copy(fake_graph *graph, fake_graph **copy_p);
void fake_graph_free(fake_graph *graph);
/* `destroy` runs when the last reference goes. */
typedef struct fake_object fake_object;
fake_object *fake_object_new(void (*destroy)(void *), void *arg, int refs);
void fake_object_keep(fake_object *object, int count);
void fake_object_drop(fake_object *object, int count);
/* Takes `count` references over. */
void fake_graph_hold(fake_graph *graph, fake_object *object, int count);
fake_result fake_graph_launch(int device, fake_graph *graph, void *stream);

#endif
