/* Wire encoding: little-endian fields in a bounded buffer.
 *
 * A writer that runs out of room and a reader that runs out of bytes only set
 * `bad`; check it once, at the end. A reader never trusts a length: strings and
 * blobs are bounded by what is left. Not thread-safe; no allocation in the
 * reader. */
#ifndef GBI_BASE_WIRE_H
#define GBI_BASE_WIRE_H

#include "base/base.h"

typedef struct gbi_writer {
  uint8_t *data;
  size_t bytes;    /* capacity */
  size_t used;
  bool grows;      /* data is malloc'ed and owned */
  bool bad;
} gbi_writer;

void gbi_writer_init(gbi_writer *writer, void *buffer, size_t bytes);
void gbi_writer_init_growing(gbi_writer *writer); /* gbi_writer_fini frees */
void gbi_writer_fini(gbi_writer *writer);
void gbi_put_u8(gbi_writer *writer, uint8_t value);
void gbi_put_u16(gbi_writer *writer, uint16_t value);
void gbi_put_u32(gbi_writer *writer, uint32_t value);
void gbi_put_u64(gbi_writer *writer, uint64_t value);
void gbi_put_i32(gbi_writer *writer, int32_t value);
void gbi_put_raw(gbi_writer *writer, const void *data, size_t bytes);
/* A blob is a u32 length and the bytes; a text is a blob. */
void gbi_put_blob(gbi_writer *writer, const void *data, size_t bytes);
void gbi_put_text(gbi_writer *writer, const char *text);

typedef struct gbi_reader {
  const uint8_t *data;
  size_t bytes;
  size_t at;
  bool bad;
} gbi_reader;

void gbi_reader_init(gbi_reader *reader, const void *data, size_t bytes);
uint8_t gbi_get_u8(gbi_reader *reader);
uint16_t gbi_get_u16(gbi_reader *reader);
uint32_t gbi_get_u32(gbi_reader *reader);
uint64_t gbi_get_u64(gbi_reader *reader);
int32_t gbi_get_i32(gbi_reader *reader);
/* NULL and bad when fewer than `bytes` are left. */
const uint8_t *gbi_get_raw(gbi_reader *reader, size_t bytes);
const uint8_t *gbi_get_blob(gbi_reader *reader, size_t *bytes_p);
/* Copies a text into `buffer`; bad when it does not fit or holds a NUL. */
void gbi_get_text(gbi_reader *reader, char *buffer, size_t bytes);

#endif
