/* The 64 bytes in front of every message; docs/wire/verbs.md has the table. */
#include "base/fault.h"
#include "transport/verbs/verbs.h"

#include <endian.h>
#include <string.h>

enum { MAGIC = 0x56424247 /* "GBBV" */ };

typedef struct raw_head {
  uint32_t magic;
  uint8_t version, type;
  uint16_t data_credits, control_credits;
  uint16_t spare_a;
  uint32_t payload;
  uint64_t tag;
  uint64_t seq, count;
  uint32_t root;
  uint8_t op, dtype, redop, spare_b;
  uint64_t message_bytes, offset;
} raw_head;
_Static_assert(sizeof(raw_head) == GBI_VERBS_HEAD, "no padding");

void gbi_verbs_head_write(const gbi_verbs_head *head, uint8_t *raw) {
  raw_head out = {
      .magic = htole32(MAGIC),
      .version = GBI_VERBS_VERSION,
      .type = head->type,
      .data_credits = htole16(head->data_credits),
      .control_credits = htole16(head->control_credits),
      .payload = htole32(head->payload),
      .tag = htole64(head->tag),
      .seq = htole64(head->call.seq),
      .count = htole64(head->call.count),
      .root = htole32((uint32_t)head->call.root),
      .op = head->call.op,
      .dtype = head->call.dtype,
      .redop = head->call.redop,
      .message_bytes = htole64(head->message_bytes),
      .offset = htole64(head->offset),
  };
  memcpy(raw, &out, sizeof out);
}

static const char *check_place(const gbi_verbs_head *head) {
  if (head->message_bytes > (uint64_t)INT64_MAX)
    return "a header with an absurd message length";
  if (head->offset > head->message_bytes) return "a header with a bad offset";
  /* All parts but the last fill their slot: a sink gets whole granules. */
  if (head->type == GBI_VERBS_MESSAGE &&
      head->payload != GBI_MIN(GBI_VERBS_SLOT - GBI_VERBS_HEAD,
                               head->message_bytes - head->offset))
    return "a header with a bad payload length";
  return NULL;
}

const char *gbi_verbs_head_read(const uint8_t *raw, size_t bytes,
                                gbi_verbs_head *head) {
  raw_head in;
  if (bytes < sizeof in) return "a message shorter than its header";
  memcpy(&in, raw, sizeof in);
  if (gbi_decode_fault(&in, sizeof in)) return "a header that a test broke";
  if (le32toh(in.magic) != MAGIC) return "a header with a bad magic";
  if (in.version != GBI_VERBS_VERSION) return "a header of another version";
  if (in.type < GBI_VERBS_HELLO || in.type > GBI_VERBS_BYE)
    return "a header of an unknown type";
  if (in.spare_a || in.spare_b) return "a header with spare bytes in use";
  *head = (gbi_verbs_head){
      .type = in.type,
      .data_credits = le16toh(in.data_credits),
      .control_credits = le16toh(in.control_credits),
      .payload = le32toh(in.payload),
      .tag = le64toh(in.tag),
      .call = {.seq = le64toh(in.seq),
               .count = le64toh(in.count),
               .root = (int32_t)le32toh(in.root),
               .op = in.op,
               .dtype = in.dtype,
               .redop = in.redop},
      .message_bytes = le64toh(in.message_bytes),
      .offset = le64toh(in.offset),
  };
  if (head->payload != bytes - sizeof in)
    return "a header with a length that is not the message's";
  return check_place(head);
}
