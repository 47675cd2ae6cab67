/* device: compiled code on disk, so that only the first job of a machine waits
 * for a compiler.
 *
 * $GPUBRIDGE_CACHE_DIR, else $XDG_CACHE_HOME/gpubridge, else
 * ~/.cache/gpubridge; one file for each key. A file is written under a name of
 * its own and then renamed: ranks that compile at a time do not see each
 * other's halves. Nothing that is wrong with the folder is an error.
 *
 *   | byte | what                                                      |
 *   | ---- | --------------------------------------------------------- |
 *   | 0    | "gpubcod1"                                                |
 *   | 8    | bytes of code, little-endian                              |
 *   | 16   | HMAC-SHA256 of the code under the key                     |
 *   | 48   | the code                                                  |
 *
 * What is read is believed only if it belongs to this user or to root, nobody
 * else may write it, and length and sum are right: code for a GPU can do there
 * what it likes. Others are as if not there, and written anew. */
#ifndef GBI_DEVICE_CACHE_H
#define GBI_DEVICE_CACHE_H

#include "base/hmac.h"

/* What code depends on: a hash of all of it. */
typedef struct gbi_cache_key {
  uint8_t bytes[GBI_HMAC_BYTES];
} gbi_cache_key;

/* The folder; false: none is known. It need not exist. */
bool gbi_cache_folder(char *path, size_t bytes);
/* Whether the folder can be written, or made. */
bool gbi_cache_writable(const char *folder);
/* False: not there, or not to be believed. The caller frees the code. */
bool gbi_cache_read(const gbi_cache_key *key, void **code_p, size_t *bytes_p);
void gbi_cache_write(const gbi_cache_key *key, const void *code, size_t bytes);

#endif
