#include "base/wire.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

void gbi_writer_init(gbi_writer *writer, void *buffer, size_t bytes) {
  *writer = (gbi_writer){.data = buffer, .bytes = bytes};
}

void gbi_writer_init_growing(gbi_writer *writer) {
  *writer = (gbi_writer){.grows = true};
}

void gbi_writer_fini(gbi_writer *writer) {
  if (writer->grows) free(writer->data);
  *writer = (gbi_writer){0};
}

static bool reserve(gbi_writer *writer, size_t more) {
  if (writer->bad) return false;
  if (more <= writer->bytes - writer->used) return true;
  if (writer->grows && more < SIZE_MAX / 4) {
    size_t bytes = GBI_MAX(writer->bytes * 2, writer->used + more + 256);
    uint8_t *data = gbi_realloc(writer->data, bytes);
    if (data) {
      writer->data = data;
      writer->bytes = bytes;
      return true;
    }
  }
  writer->bad = true;
  return false;
}

void gbi_put_raw(gbi_writer *writer, const void *data, size_t bytes) {
  if (!bytes || !reserve(writer, bytes)) return;
  memcpy(writer->data + writer->used, data, bytes);
  writer->used += bytes;
}

static void put_le(gbi_writer *writer, uint64_t value, size_t bytes) {
  uint8_t raw[8];
  for (size_t i = 0; i < bytes; i++) raw[i] = (uint8_t)(value >> (8 * i));
  gbi_put_raw(writer, raw, bytes);
}

void gbi_put_u8(gbi_writer *writer, uint8_t value) { put_le(writer, value, 1); }
void gbi_put_u16(gbi_writer *writer, uint16_t value) {
  put_le(writer, value, 2);
}
void gbi_put_u32(gbi_writer *writer, uint32_t value) {
  put_le(writer, value, 4);
}
void gbi_put_u64(gbi_writer *writer, uint64_t value) {
  put_le(writer, value, 8);
}
void gbi_put_i32(gbi_writer *writer, int32_t value) {
  put_le(writer, (uint32_t)value, 4);
}

void gbi_put_blob(gbi_writer *writer, const void *data, size_t bytes) {
  if (bytes > UINT32_MAX) {
    writer->bad = true;
    return;
  }
  gbi_put_u32(writer, (uint32_t)bytes);
  gbi_put_raw(writer, data, bytes);
}

void gbi_put_text(gbi_writer *writer, const char *text) {
  gbi_put_blob(writer, text, strlen(text));
}

void gbi_reader_init(gbi_reader *reader, const void *data, size_t bytes) {
  *reader = (gbi_reader){.data = data, .bytes = bytes};
}

const uint8_t *gbi_get_raw(gbi_reader *reader, size_t bytes) {
  if (reader->bad || bytes > reader->bytes - reader->at) {
    reader->bad = true;
    return NULL;
  }
  const uint8_t *at = reader->data + reader->at;
  reader->at += bytes;
  return at;
}

static uint64_t get_le(gbi_reader *reader, size_t bytes) {
  const uint8_t *raw = gbi_get_raw(reader, bytes);
  uint64_t value = 0;
  for (size_t i = 0; raw && i < bytes; i++)
    value |= (uint64_t)raw[i] << (8 * i);
  return value;
}

uint8_t gbi_get_u8(gbi_reader *reader) { return (uint8_t)get_le(reader, 1); }
uint16_t gbi_get_u16(gbi_reader *reader) { return (uint16_t)get_le(reader, 2); }
uint32_t gbi_get_u32(gbi_reader *reader) { return (uint32_t)get_le(reader, 4); }
uint64_t gbi_get_u64(gbi_reader *reader) { return get_le(reader, 8); }
int32_t gbi_get_i32(gbi_reader *reader) {
  return (int32_t)(uint32_t)get_le(reader, 4);
}

const uint8_t *gbi_get_blob(gbi_reader *reader, size_t *bytes_p) {
  size_t bytes = gbi_get_u32(reader);
  const uint8_t *data = gbi_get_raw(reader, bytes);
  *bytes_p = data ? bytes : 0;
  return data;
}

void gbi_get_text(gbi_reader *reader, char *buffer, size_t bytes) {
  size_t n;
  const uint8_t *data = gbi_get_blob(reader, &n);
  buffer[0] = 0;
  if (!data) return;
  if (n >= bytes || memchr(data, 0, n)) {
    reader->bad = true;
    return;
  }
  memcpy(buffer, data, n);
  buffer[n] = 0;
}
