/* The 144 bytes of a head; docs/wire/p2p.md has the table. */
#include "base/fault.h"
#include "p2p/state.h"

#include <endian.h>
#include <string.h>

enum { MAGIC = 0x4d504247 /* "GBPM" */ };

typedef struct raw_head {
  uint32_t magic;
  uint8_t kind, class, dtype, inside;
  uint32_t group, step;
  uint64_t tag, count, bytes, id, payload, taken;
  uint64_t call_count;
  uint32_t call_root;
  uint8_t call_op, call_dtype, call_redop, spare;
  uint8_t data[GBI_P2P_INLINE];
} raw_head;
_Static_assert(sizeof(raw_head) == GBI_P2P_HEAD_BYTES, "no padding");

uint64_t gbi_p2p_eager_cost(uint64_t bytes) {
  return bytes + GBI_P2P_EAGER_COST;
}

void gbi_p2p_head_write(const gbi_p2p_head *head,
                        uint8_t raw[GBI_P2P_HEAD_BYTES]) {
  raw_head out = {
      .magic = htole32(MAGIC),
      .kind = head->kind,
      .class = head->class,
      .dtype = head->dtype,
      .inside = head->inside,
      .group = htole32(head->group),
      .step = htole32(head->step),
      .tag = htole64(head->tag),
      .count = htole64(head->count),
      .bytes = htole64(head->bytes),
      .id = htole64(head->id),
      .payload = htole64(head->payload),
      .taken = htole64(head->taken),
      .call_count = htole64(head->call.count),
      .call_root = htole32((uint32_t)head->call.root),
      .call_op = head->call.op,
      .call_dtype = head->call.dtype,
      .call_redop = head->call.redop,
  };
  if (head->inside) memcpy(out.data, head->data, head->inside);
  memcpy(raw, &out, sizeof out);
}

static bool is_empty_call(const gbi_call *call) {
  return !call->count && !call->root && !call->op && !call->dtype &&
         !call->redop;
}

/* EAGER and RTS: a message of somebody's. */
static const char *check_message(const gbi_p2p_head *h) {
  size_t size = gb_dtype_bytes((gb_dtype)h->dtype);
  if (h->class != GBI_P2P_USER && h->class != GBI_P2P_MESH)
    return "a head of an unknown class";
  if (!size) return "a head with an unknown type";
  if (h->count > (uint64_t)PTRDIFF_MAX / size || h->bytes != h->count * size)
    return "a head with a bad length";
  if (h->class == GBI_P2P_USER && (h->step || !is_empty_call(&h->call)))
    return "a head with spare fields in use";
  if (h->payload) return "a head with spare fields in use";
  if (h->kind == GBI_HEAD_RTS)
    return h->inside ? "a head with a bad length" : NULL;
  uint64_t inside = h->bytes <= GBI_P2P_INLINE ? h->bytes : 0;
  if (h->id) return "a head with spare fields in use";
  if (h->bytes > GBI_P2P_EAGER || h->inside != inside)
    return "a head with a bad length";
  return NULL;
}

/* The others: between the two links. */
static const char *check_own(const gbi_p2p_head *h) {
  bool numbered = h->kind == GBI_HEAD_CTS || h->kind == GBI_HEAD_NACK;
  bool sized = h->kind == GBI_HEAD_NACK;
  if (h->class || h->inside || h->group || h->step || h->tag || h->bytes ||
      !is_empty_call(&h->call) || (!numbered && h->id) ||
      (h->kind != GBI_HEAD_CTS && h->payload) ||
      (!sized && (h->count || h->dtype)))
    return "a head with spare fields in use";
  if (h->payload >= GBI_P2P_ASKED_TAG) return "a head with a bad number";
  if (sized && !gb_dtype_bytes((gb_dtype)h->dtype))
    return "a head with an unknown type";
  return NULL;
}

const char *gbi_p2p_head_read(const uint8_t raw[GBI_P2P_HEAD_BYTES],
                              gbi_p2p_head *head) {
  raw_head in;
  if (gbi_decode_fault(raw, GBI_P2P_HEAD_BYTES))
    return "a head that a test broke";
  memcpy(&in, raw, sizeof in);
  *head = (gbi_p2p_head){
      .kind = in.kind,
      .class = in.class,
      .dtype = in.dtype,
      .inside = in.inside,
      .group = le32toh(in.group),
      .step = le32toh(in.step),
      .tag = le64toh(in.tag),
      .count = le64toh(in.count),
      .bytes = le64toh(in.bytes),
      .id = le64toh(in.id),
      .payload = le64toh(in.payload),
      .taken = le64toh(in.taken),
      .call = {.seq = 0,
               .count = le64toh(in.call_count),
               .root = (int32_t)le32toh(in.call_root),
               .op = in.call_op,
               .dtype = in.call_dtype,
               .redop = in.call_redop},
      .data = raw + offsetof(raw_head, data),
  };
  if (le32toh(in.magic) != MAGIC) return "a head with a bad magic";
  if (in.spare) return "a head with spare fields in use";
  if (!in.kind || in.kind >= GBI_HEAD_KINDS)
    return "a head of an unknown kind";
  bool message = in.kind == GBI_HEAD_EAGER || in.kind == GBI_HEAD_RTS;
  const char *wrong = message ? check_message(head) : check_own(head);
  if (head->class == GBI_P2P_MESH) head->call.seq = head->tag;
  return wrong;
}
