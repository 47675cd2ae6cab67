/* The 64 bytes in front of every piece; docs/wire/tcp.md has the table. */
#include "transport/tcp/tcp.h"

#include "base/fault.h"

#include <endian.h>
#include <string.h>

enum { MAGIC = 0x46544247 /* "GBTF" */, VERSION = 1, TYPE_DATA = 1 };

typedef struct raw_frame {
  uint32_t magic;
  uint8_t version, type, stream, spare_a;
  uint64_t tag;
  uint64_t seq, count;
  uint32_t root;
  uint8_t op, dtype, redop, call_spare;
  uint64_t message_bytes, offset;
  uint32_t piece_bytes, spare_b;
} raw_frame;
_Static_assert(sizeof(raw_frame) == GBI_TCP_FRAME_BYTES, "no padding");

void gbi_tcp_frame_write(const gbi_tcp_frame *frame,
                         uint8_t raw[GBI_TCP_FRAME_BYTES]) {
  raw_frame out = {
      .magic = htole32(MAGIC),
      .version = VERSION,
      .type = TYPE_DATA,
      .stream = frame->stream,
      .tag = htole64(frame->tag),
      .seq = htole64(frame->call.seq),
      .count = htole64(frame->call.count),
      .root = htole32((uint32_t)frame->call.root),
      .op = frame->call.op,
      .dtype = frame->call.dtype,
      .redop = frame->call.redop,
      .message_bytes = htole64(frame->message_bytes),
      .offset = htole64(frame->offset),
      .piece_bytes = htole32(frame->piece_bytes),
  };
  memcpy(raw, &out, sizeof out);
}

const char *gbi_tcp_frame_read(const uint8_t raw[GBI_TCP_FRAME_BYTES],
                               uint8_t stream, size_t piece_bytes,
                               gbi_tcp_frame *frame) {
  raw_frame in;
  memcpy(&in, raw, sizeof in);
  if (gbi_decode_fault(&in, sizeof in)) return "a frame that a test broke";
  if (le32toh(in.magic) != MAGIC) return "a frame with a bad magic";
  if (in.version != VERSION) return "a frame of another version";
  if (in.type != TYPE_DATA) return "a frame of an unknown type";
  if (in.stream != stream) return "a frame of another connection";
  if (in.spare_a || in.spare_b || in.call_spare)
    return "a frame with spare bytes in use";
  *frame = (gbi_tcp_frame){
      .stream = in.stream,
      .tag = le64toh(in.tag),
      .call = {.seq = le64toh(in.seq),
               .count = le64toh(in.count),
               .root = (int32_t)le32toh(in.root),
               .op = in.op,
               .dtype = in.dtype,
               .redop = in.redop},
      .message_bytes = le64toh(in.message_bytes),
      .offset = le64toh(in.offset),
      .piece_bytes = le32toh(in.piece_bytes),
  };
  if (frame->message_bytes > (uint64_t)INT64_MAX)
    return "a frame with an absurd message length";
  if (frame->offset > frame->message_bytes || frame->offset % piece_bytes ||
      (frame->offset && frame->offset == frame->message_bytes))
    return "a frame with a bad offset";
  if (frame->piece_bytes !=
      GBI_MIN(piece_bytes, frame->message_bytes - frame->offset))
    return "a frame with a bad piece length";
  return NULL;
}
