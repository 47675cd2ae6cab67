/* One file, records appended under a lock, the newest of a key counts.
 *
 *   magic   u32  0x31464247 "GBF1"
 *   key     u32  length, 1 to 8192
 *   value   u32  length, at most 65536
 *   key and value bytes
 *
 * The file is opened anew for every look, because a network file system shows
 * others' writes then. A writer that died in the middle leaves half a record
 * at the end: readers stop before it, the next writer cuts it off. */
#include "base/wire.h"
#include "base/memory.h"
#include "store/kinds.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
  MAGIC = 0x31464247,
  KEY_MAX = 8192,
  FILE_MAX = 64 << 20,
  POLL_MS = 20,
};

typedef struct file_store {
  gbi_store base;
  gbi_store_wait wait;
  char path[4096];
} file_store;

static gb_status failed(file_store *s, const char *what, gb_error *error) {
  return gbi_fail(error, GB_ERR_SYSTEM,
                  "could not %s the store file \"%s\": %s", what, s->path,
                  strerror(errno));
}

/* Opens and locks. flock also works over NFS, and belongs to the descriptor,
 * so that two jobs of one process cannot drop each other's lock. */
static gb_status open_locked(file_store *s, int lock, int *fd_p,
                             gb_error *error) {
  int fd = open(s->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return failed(s, "open", error);
  while (flock(fd, lock | LOCK_NB)) {
    gb_status status = GB_OK;
    if (errno != EWOULDBLOCK && errno != EINTR)
      status = failed(s, "lock", error);
    else if (gbi_deadline_passed(s->wait.deadline_ns))
      status = gbi_fail(error, GB_ERR_TIMEOUT,
                        "the store file \"%s\" stays locked by another process",
                        s->path);
    else
      status = gbi_store_pause(&s->wait, POLL_MS, error);
    if (status != GB_OK) {
      close(fd);
      return status;
    }
  }
  *fd_p = fd;
  return GB_OK;
}

static gb_status read_all(file_store *s, int fd, uint8_t **data_p,
                          size_t *bytes_p, gb_error *error) {
  struct stat info;
  if (fstat(fd, &info)) return failed(s, "read", error);
  if (!S_ISREG(info.st_mode) || info.st_size > FILE_MAX)
    return gbi_fail(error, GB_ERR_PROTOCOL,
                    "\"%s\" is not a store file of gpubridge: it is %s",
                    s->path,
                    S_ISREG(info.st_mode) ? "too big" : "not a regular file");
  size_t bytes = (size_t)info.st_size, used = 0;
  uint8_t *data = gbi_malloc(bytes + 1);
  if (!data)
    return gbi_fail(error, GB_ERR_MEMORY, "out of memory for a store file");
  while (used < bytes) {
    ssize_t n = pread(fd, data + used, bytes - used, (off_t)used);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      free(data);
      return failed(s, "read", error);
    }
    if (n == 0) break;
    used += (size_t)n;
  }
  *data_p = data;
  *bytes_p = used;
  return GB_OK;
}

typedef struct found {
  const uint8_t *value; /* NULL: no such key */
  size_t bytes;
  size_t end; /* where whole records end */
} found;

static gb_status scan(file_store *s, const uint8_t *data, size_t bytes,
                      const char *key, found *out, gb_error *error) {
  memset(out, 0, sizeof *out);
  while (bytes - out->end >= 12) {
    gbi_reader r;
    gbi_reader_init(&r, data + out->end, bytes - out->end);
    uint32_t magic = gbi_get_u32(&r), key_bytes = gbi_get_u32(&r);
    uint32_t value_bytes = gbi_get_u32(&r);
    if (magic != MAGIC || !key_bytes || key_bytes > KEY_MAX ||
        value_bytes > GBI_STORE_VALUE_MAX)
      return gbi_fail(error, GB_ERR_PROTOCOL,
                      "\"%s\" is not a store file of gpubridge, or is damaged "
                      "at byte %zu. Give a new file",
                      s->path, out->end);
    const uint8_t *name = gbi_get_raw(&r, key_bytes);
    const uint8_t *value = gbi_get_raw(&r, value_bytes);
    if (r.bad) return GB_OK; /* half a record */
    if (key_bytes == strlen(key) && !memcmp(name, key, key_bytes)) {
      out->value = value;
      out->bytes = value_bytes;
    }
    out->end += r.at;
  }
  return GB_OK;
}

static gb_status write_record(file_store *s, int fd, size_t end,
                              const char *key, const void *value, size_t bytes,
                              gb_error *error) {
  gbi_writer w;
  gbi_writer_init_growing(&w);
  gbi_put_u32(&w, MAGIC);
  gbi_put_u32(&w, (uint32_t)strlen(key));
  gbi_put_u32(&w, (uint32_t)bytes);
  gbi_put_raw(&w, key, strlen(key));
  gbi_put_raw(&w, value, bytes);
  gb_status status = GB_OK;
  if (w.bad)
    status = gbi_fail(error, GB_ERR_MEMORY, "out of memory for a store file");
  else if (end + w.used > FILE_MAX)
    status =
        gbi_fail(error, GB_ERR_PROTOCOL,
                 "the store file \"%s\" is full. Give a new file", s->path);
  else if (ftruncate(fd, (off_t)end))
    status = failed(s, "write", error);
  for (size_t used = 0; status == GB_OK && used < w.used;) {
    ssize_t n = pwrite(fd, w.data + used, w.used - used, (off_t)(end + used));
    if (n > 0)
      used += (size_t)n;
    else if (n == 0 || errno != EINTR)
      status = failed(s, "write", error);
  }
  if (status == GB_OK && fsync(fd) && errno != EINVAL && errno != EROFS)
    status = failed(s, "write", error);
  gbi_writer_fini(&w);
  return status;
}

/* Runs `change` on the present value under the exclusive lock. */
static gb_status update(file_store *s, const char *key, const void *value,
                        size_t bytes, const int64_t *delta, int64_t *value_p,
                        gb_error *error) {
  int fd;
  uint8_t *data = NULL;
  size_t size = 0;
  found at;
  char text[32];
  if (bytes > GBI_STORE_VALUE_MAX || !*key || strlen(key) > KEY_MAX)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "a key or value is too long for a store file");
  GBI_TRY(open_locked(s, LOCK_EX, &fd, error));
  gb_status status = read_all(s, fd, &data, &size, error);
  if (status == GB_OK) status = scan(s, data, size, key, &at, error);
  if (status == GB_OK && delta) {
    snprintf(text, sizeof text, "%.*s", (int)GBI_MIN(at.bytes, 24),
             at.value ? (const char *)at.value : "0");
    *value_p = (int64_t)((uint64_t)strtoll(text, NULL, 10) + (uint64_t)*delta);
    bytes = (size_t)snprintf(text, sizeof text, "%" PRId64, *value_p);
    value = text;
  }
  if (status == GB_OK)
    status = write_record(s, fd, at.end, key, value, bytes, error);
  free(data);
  close(fd); /* unlocks */
  return status;
}

static gb_status file_set(gbi_store *store, const char *key, const void *value,
                          size_t bytes, gb_error *error) {
  return update((file_store *)store, key, value, bytes, NULL, NULL, error);
}

static gb_status file_add(gbi_store *store, const char *key, int64_t delta,
                          int64_t *value_p, gb_error *error) {
  return update((file_store *)store, key, NULL, 0, &delta, value_p, error);
}

/* One look: BUSY when the key is not there. */
static gb_status look(file_store *s, const char *key, void *value, size_t bytes,
                      size_t *bytes_p, gb_error *error) {
  int fd;
  uint8_t *data = NULL;
  size_t size = 0;
  found at;
  GBI_TRY(open_locked(s, LOCK_SH, &fd, error));
  gb_status status = read_all(s, fd, &data, &size, error);
  close(fd);
  if (status == GB_OK) status = scan(s, data, size, key, &at, error);
  if (status == GB_OK && !at.value) status = GB_ERR_BUSY;
  if (status == GB_OK && at.bytes > bytes)
    status = gbi_fail(error, GB_ERR_PROTOCOL,
                      "the store file \"%s\" holds a value of %zu bytes where "
                      "at most %zu were expected",
                      s->path, at.bytes, bytes);
  if (status == GB_OK) {
    memcpy(value, at.value, at.bytes);
    *bytes_p = at.bytes;
  }
  free(data);
  return status;
}

static gb_status file_get(gbi_store *store, const char *key, void *value,
                          size_t bytes, size_t *bytes_p, uint64_t deadline_ns,
                          gb_error *error) {
  file_store *s = (file_store *)store;
  for (;;) {
    gb_status status = look(s, key, value, bytes, bytes_p, error);
    if (status != GB_ERR_BUSY) return status;
    if (gbi_deadline_passed(deadline_ns))
      return gbi_fail(error, GB_ERR_TIMEOUT,
                      "the key \"%s\" did not come in the store file \"%s\"",
                      key, s->path);
    GBI_TRY(gbi_store_pause(&s->wait, POLL_MS, error));
  }
}

static void file_close(gbi_store *store) {
  free(store);
}

static const gbi_store_ops ops = {"file", file_set, file_get, file_add,
                                  file_close};

gb_status gbi_store_file_open(const gbi_store_params *params, const char *path,
                              gbi_store **store_p, gb_error *error) {
  file_store *s = gbi_calloc(1, sizeof *s);
  if (!s) return gbi_fail(error, GB_ERR_MEMORY, "out of memory for a store");
  s->base.ops = &ops;
  s->wait = (gbi_store_wait){params->deadline_ns, params->wait_hook,
                             params->wait_hook_arg};
  snprintf(s->path, sizeof s->path, "%s", path);
  snprintf(s->base.described, sizeof s->base.described, "file://%s", path);
  int fd;
  gb_status status = open_locked(s, LOCK_SH, &fd, error);
  if (status != GB_OK) {
    free(s);
    return status;
  }
  close(fd);
  *store_p = &s->base;
  return GB_OK;
}
