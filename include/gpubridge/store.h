/* The key-value store a caller may supply to find the job's rank 0.
 *
 * gpubridge uses it once per job, from the thread that calls gb_job_open: rank
 * 0 sets one key, the others read it. Values are at most 64 KiB. */
#ifndef GPUBRIDGE_STORE_H
#define GPUBRIDGE_STORE_H

#include <gpubridge/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gb_store {
  size_t size; /* sizeof(gb_store) */
  void *arg;   /* passed back as is; lent until gb_job_open returns */
  /* Stores `bytes` bytes under `key`. Returns 0, or -1 with a reason in
   * `text`. */
  int (*set)(void *arg, const char *key, const void *value, size_t bytes,
             char *text, size_t text_bytes);
  /* Waits at most `timeout_ms` for `key` and copies its value to `value`
   * (room for `bytes`); *bytes_p is the value's length. Returns 0; 1 when the
   * key has not come by then; -1 with a reason in `text`. Called with short
   * timeouts, many times. */
  int (*get)(void *arg, const char *key, void *value, size_t bytes,
             size_t *bytes_p, uint64_t timeout_ms, char *text,
             size_t text_bytes);
  /* The address of the store's host as this rank reached it, or NULL. Used to
   * choose which local address to publish. Borrowed. */
  const char *host;
} gb_store;

#ifdef __cplusplus
}
#endif
#endif
