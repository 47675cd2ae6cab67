#include "device/cache.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/wire.h"
#include "device/compiler.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAGIC_BYTES = 8, SUM_AT = 16, HEAD_BYTES = SUM_AT + GBI_HMAC_BYTES };
static const char magic[] = "gpubcod1";
/* Ours are some hundred KiB. */
static const uint64_t code_most = UINT64_C(64) << 20;

bool gbi_cache_folder(char *path, size_t bytes) {
  gbi_value value;
  char home[PATH_MAX];
  const char *end = "";
  bool known = gbi_setting_read(&gbi_compiler_settings[GBI_SETTING_CACHE_DIR],
                                &value, NULL) == GB_OK &&
               value.text[0];
  if (known) {
    snprintf(home, sizeof home, "%s", value.text);
  } else if (gbi_env("XDG_CACHE_HOME", home, sizeof home)) {
    end = "/gpubridge";
  } else if (gbi_env("HOME", home, sizeof home)) {
    end = "/.cache/gpubridge";
  } else {
    return false;
  }
  int length = snprintf(path, bytes, "%s%s", home, end);
  return home[0] == '/' && length > 0 && (size_t)length < bytes;
}

/* All folders of the path, for nobody else to write. */
static void make_folder(const char *folder) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s", folder);
  for (char *at = path + 1; *at; at++) {
    if (*at != '/') continue;
    *at = 0;
    (void)mkdir(path, 0700);
    *at = '/';
  }
  (void)mkdir(path, 0700);
}

bool gbi_cache_writable(const char *folder) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s", folder);
  for (char *slash; access(path, F_OK) && (slash = strrchr(path, '/'));)
    slash[slash == path] = 0; /* "/" is there */
  return access(path, W_OK | X_OK) == 0;
}

static bool file_of(const gbi_cache_key *key, char *path, size_t bytes) {
  char folder[PATH_MAX];
  if (!gbi_cache_folder(folder, sizeof folder)) return false;
  gbi_text out;
  gbi_text_init(&out, path, bytes);
  gbi_text_add(&out, "%s/", folder);
  for (int i = 0; i < 16; i++) gbi_text_add(&out, "%02x", key->bytes[i]);
  gbi_text_add(&out, ".code");
  return strlen(folder) + 40 < bytes;
}

static bool read_whole(int fd, uint8_t *to, size_t bytes) {
  while (bytes) {
    ssize_t got = read(fd, to, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    bytes -= (size_t)got;
  }
  return true;
}

static bool write_whole(int fd, const uint8_t *from, size_t bytes) {
  while (bytes) {
    ssize_t put = write(fd, from, bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    from += put;
    bytes -= (size_t)put;
  }
  return true;
}

/* Whose file it is decides whether its code may run. */
static bool is_ours(int fd, uint64_t *bytes_p) {
  struct stat s;
  if (fstat(fd, &s) || !S_ISREG(s.st_mode)) return false;
  if (s.st_uid != geteuid() && s.st_uid != 0) return false;
  if (s.st_mode & (S_IWGRP | S_IWOTH)) return false;
  *bytes_p = (uint64_t)s.st_size;
  return *bytes_p > HEAD_BYTES && *bytes_p <= HEAD_BYTES + code_most;
}

static uint64_t number_at(const uint8_t *at) {
  uint64_t number = 0;
  for (int i = 8; i-- > 0;) number = number << 8 | at[i];
  return number;
}

/* The code, or NULL for what is not to be believed. */
static void *read_code(int fd, const gbi_cache_key *key, size_t *bytes_p) {
  uint64_t bytes;
  uint8_t head[HEAD_BYTES], sum[GBI_HMAC_BYTES];
  if (!is_ours(fd, &bytes) || !read_whole(fd, head, sizeof head)) return NULL;
  bytes -= HEAD_BYTES;
  if (memcmp(head, magic, MAGIC_BYTES) || number_at(head + 8) != bytes)
    return NULL;
  uint8_t *code = gbi_malloc(bytes);
  if (!code) return NULL;
  if (read_whole(fd, code, bytes)) {
    gbi_hmac(key->bytes, code, bytes, sum);
    *bytes_p = bytes;
    if (gbi_hmac_equal(sum, head + SUM_AT)) return code;
  }
  free(code);
  return NULL;
}

bool gbi_cache_read(const gbi_cache_key *key, void **code_p, size_t *bytes_p) {
  char path[PATH_MAX];
  if (!file_of(key, path, sizeof path)) return false;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return false;
  *code_p = read_code(fd, key, bytes_p);
  close(fd);
  if (!*code_p)
    GBI_INFO("device", "%s is not what was kept there: compiled anew", path);
  return *code_p != NULL;
}

static bool write_code(int fd, const gbi_cache_key *key, const void *code,
                       size_t bytes) {
  uint8_t head[HEAD_BYTES];
  memcpy(head, magic, MAGIC_BYTES);
  for (int i = 0; i < 8; i++) head[8 + i] = (uint8_t)(bytes >> (8 * i));
  gbi_hmac(key->bytes, code, bytes, head + SUM_AT);
  return write_whole(fd, head, sizeof head) && write_whole(fd, code, bytes);
}

void gbi_cache_write(const gbi_cache_key *key, const void *code, size_t bytes) {
  char path[PATH_MAX], folder[PATH_MAX], temporary[PATH_MAX + 16];
  if (!gbi_cache_folder(folder, sizeof folder) ||
      !file_of(key, path, sizeof path))
    return;
  make_folder(folder);
  snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
  int fd = mkostemp(temporary, O_CLOEXEC); /* mode 0600 */
  bool written = fd >= 0 && write_code(fd, key, code, bytes);
  if (fd >= 0 && close(fd)) written = false;
  if (written && rename(temporary, path) == 0) return;
  GBI_INFO("device",
           "compiled code cannot be kept in %s: %s. Each start compiles it "
           "anew; GPUBRIDGE_CACHE_DIR names another folder",
           folder, strerror(errno));
  if (fd >= 0) (void)unlink(temporary);
}
