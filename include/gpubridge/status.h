/* Status codes and the error value that every fallible call fills.
 *
 * One table gives each status its name, number, scope and text. The scope
 * says how much broke, so that a caller can decide without a list of codes:
 * CALL (nothing was sent, the group is as before), LINK (one peer or island),
 * JOB (every later call on this job refuses with the same text).
 *
 * Nothing here blocks or allocates; any thread may call it. */
#ifndef GPUBRIDGE_STATUS_H
#define GPUBRIDGE_STATUS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define GB_API __attribute__((visibility("default")))
#define GB_MUST_CHECK __attribute__((warn_unused_result))
#define GB_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define GB_API
#define GB_MUST_CHECK
#define GB_PRINTF(fmt, args)
#endif

typedef enum gb_scope {
  GB_SCOPE_NONE = 0,
  GB_SCOPE_CALL = 1,
  GB_SCOPE_LINK = 2,
  GB_SCOPE_JOB = 3
} gb_scope;

/* X(name, number, scope, text). Numbers are ABI: never reuse one. */
#define GB_STATUS_TABLE(X)                                                     \
  X(GB_OK, 0, GB_SCOPE_NONE, "success")                                        \
  X(GB_ERR_ARGUMENT, -1, GB_SCOPE_CALL, "bad argument")                        \
  X(GB_ERR_TYPE, -2, GB_SCOPE_CALL, "argument of the wrong type")              \
  X(GB_ERR_UNSUPPORTED, -3, GB_SCOPE_CALL, "not supported")                    \
  X(GB_ERR_MEMORY, -4, GB_SCOPE_CALL, "out of memory")                         \
  X(GB_ERR_BUSY, -5, GB_SCOPE_CALL, "busy, try again")                         \
  X(GB_ERR_STATE, -6, GB_SCOPE_CALL, "not possible in this state")             \
  X(GB_ERR_FORKED, -7, GB_SCOPE_CALL, "process is a fork of the job's")        \
  X(GB_ERR_SETTING, -8, GB_SCOPE_CALL, "bad setting")                          \
  X(GB_ERR_WAIT_TIMEOUT, -9, GB_SCOPE_CALL, "wait ended before the work did")  \
  X(GB_ERR_SYSTEM, -20, GB_SCOPE_LINK, "system call failed")                   \
  X(GB_ERR_CONNECT, -21, GB_SCOPE_LINK, "could not connect")                   \
  X(GB_ERR_PEER, -22, GB_SCOPE_LINK, "peer is gone")                           \
  X(GB_ERR_PROTOCOL, -23, GB_SCOPE_LINK, "peer broke the protocol")            \
  X(GB_ERR_VERSION, -24, GB_SCOPE_LINK, "protocol versions differ")            \
  X(GB_ERR_AUTH, -25, GB_SCOPE_LINK, "peer could not prove the job key")       \
  X(GB_ERR_TIMEOUT, -40, GB_SCOPE_JOB, "deadline passed")                      \
  X(GB_ERR_REFUSED, -41, GB_SCOPE_JOB, "job was refused")                      \
  X(GB_ERR_MISMATCH, -42, GB_SCOPE_JOB, "ranks disagree")                      \
  X(GB_ERR_ABORTED, -43, GB_SCOPE_JOB, "job was aborted")                      \
  X(GB_ERR_CANCELED, -44, GB_SCOPE_JOB, "call was not run")                    \
  X(GB_ERR_INTERRUPTED, -45, GB_SCOPE_JOB, "call was interrupted")             \
  X(GB_ERR_INTERNAL, -60, GB_SCOPE_JOB, "defect in gpubridge")

typedef enum gb_status {
#define GB_STATUS_ENUM(name, number, scope, text) name = number,
  GB_STATUS_TABLE(GB_STATUS_ENUM)
#undef GB_STATUS_ENUM
} gb_status;

/* A plain value owned by the caller; it can be copied and sent. `rank` is the
 * global rank that failed or -1. `text` is one line, without a final stop. */
#define GB_ERROR_TEXT_MAX 2048
typedef struct gb_error {
  gb_status status;
  int rank;
  char text[GB_ERROR_TEXT_MAX];
} gb_error;

/* Name ("GB_ERR_PEER"), short text and scope of a status. Never NULL, also
 * for a number that is not in the table. */
GB_API const char *gb_status_name(gb_status status);
GB_API const char *gb_status_text(gb_status status);
GB_API gb_scope gb_status_scope(gb_status status);

#ifdef __cplusplus
}
#endif
#endif
