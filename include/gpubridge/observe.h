/* Watching a job: records of finished calls, calls in flight, counters, log.
 * Nothing here communicates or changes what a call does. */
#ifndef GPUBRIDGE_OBSERVE_H
#define GPUBRIDGE_OBSERVE_H

#include <gpubridge/coll.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GB_PHASES_MAX 8

/* Times are monotonic nanoseconds of this host. */
typedef struct gb_phase {
  const char *name; /* static string, for example "island-reduce" */
  uint64_t start_ns;
  uint64_t end_ns; /* 0 while open */
} gb_phase;

typedef struct gb_record {
  size_t size;
  uint64_t seq;          /* calls this group ran before; equal on all ranks */
  const char *op;        /* "all_reduce", "broadcast", ... static */
  uint64_t bytes;        /* input bytes; 0 for barrier */
  int dtype;             /* gb_dtype, or -1 */
  int redop;             /* gb_redop, or -1 */
  int root;              /* or -1 */
  const char *policy;    /* NULL for barrier; lives as long as the job */
  uint64_t start_ns;
  uint64_t end_ns;
  gb_phase phases[GB_PHASES_MAX]; /* only steps this rank took part in */
  int phases_count;
  uint32_t group; /* gb_group_info.id; 0: the world */
} gb_record;

/* Called after each successful collective, on the thread that ran it, with no
 * lock held. It must not call a collective of the same job (such a call
 * returns GB_ERR_STATE). The record is borrowed. A non-zero return detaches
 * the observer. */
typedef int (*gb_observer_fn)(void *arg, const gb_record *record);

/* Observers are called in the order they were added. The same (fn, arg) is
 * added once. Removing an unknown one is a no-op. At most 16: BUSY. */
GB_API gb_status gb_observer_add(gb_job *job, gb_observer_fn fn, void *arg,
                                 gb_error *error);
GB_API void gb_observer_remove(gb_job *job, gb_observer_fn fn, void *arg);

typedef struct gb_in_flight {
  size_t size;
  uint64_t seq;
  const char *op;
  const char *policy;
  const char *phase; /* innermost open step, NULL between steps */
  const char *phases_done[GB_PHASES_MAX];
  int phases_done_count;
  char thread[16]; /* name of the thread that runs it */
  uint64_t age_ns;
  uint32_t group; /* as in the record */
} gb_in_flight;

/* Copies at most `max` calls that have started and not ended, oldest first,
 * and returns how many. Any thread; never blocks on communication. */
GB_API int gb_job_in_flight(gb_job *job, gb_in_flight *list, int max);

/* Calls `fn` once per counter and fact of the job's links ("bridge.tcp.bytes_
 * sent", "4194304"). Strings are borrowed for the call. */
GB_API void gb_job_telemetry(gb_job *job,
                             void (*fn)(void *arg, const char *name,
                                        const char *value),
                             void *arg);

typedef enum gb_log_level {
  GB_LOG_ERROR = 0,
  GB_LOG_WARN,
  GB_LOG_INFO,
  GB_LOG_DEBUG,
  GB_LOG_TRACE,
  GB_LOG_DATA
} gb_log_level;

/* Where log lines go, for the whole process; NULL: stderr. Called from any
 * thread of the library, one line at a time, never with a lock that a gb_
 * call takes. */
typedef void (*gb_log_fn)(void *arg, gb_log_level level, const char *component,
                          const char *line);
GB_API void gb_log_set(gb_log_fn fn, void *arg);

/* Calls `fn` for each setting: name, default, value in force, where the value
 * comes from ("default", "environment"), whether all ranks must agree, and
 * help. A malformed value is reported as it stands, with `problem` set. */
typedef struct gb_setting_info {
  size_t size;
  const char *name;
  const char *default_value;
  const char *value;
  const char *source;
  int must_agree;
  const char *help;
  const char *problem; /* NULL when fine */
} gb_setting_info;
GB_API void gb_settings_list(void (*fn)(void *arg, const gb_setting_info *info),
                             void *arg);

#ifdef __cplusplus
}
#endif
#endif
