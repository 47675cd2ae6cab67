/* The sending side of a link: short messages leave from a slot, long ones are
 * announced and go where the receiver says, from memory that is registered for
 * this message, or from slots where it cannot be. */
#include "transport/verbs/verbs.h"

#include <string.h>

enum { PAYLOAD = GBI_VERBS_SLOT - GBI_VERBS_HEAD };

static void complete(gbi_verbs *t, gbi_xfer *xfer) {
  xfer->moved = xfer->bytes;
  xfer->status = GB_OK;
  gbi_verbs_count(&t->bytes_sent, xfer->bytes);
  gbi_verbs_count(&t->messages_sent, 1);
}

static void forget_head(gbi_verbs_link *link) {
  gbi_xfer *xfer = link->send_head;
  link->send_head = xfer->next;
  if (!link->send_head) link->send_tail = &link->send_head;
  link->announced = link->granted = link->prepared = false;
  link->current = NULL;
}

static gbi_verbs_head head_of(const gbi_xfer *xfer, uint8_t type) {
  return (gbi_verbs_head){.type = type,
                          .tag = xfer->tag,
                          .call = xfer->call,
                          .message_bytes = xfer->bytes,
                          .offset = xfer->posted};
}

/* ---- short ---- */

static unsigned send_short(gbi_verbs *t, gbi_verbs_link *link) {
  gbi_xfer *xfer = link->send_head;
  gbi_verbs_head head = head_of(xfer, GBI_VERBS_MESSAGE);
  head.payload = (uint32_t)xfer->bytes;
  if (xfer->bytes)
    memcpy(gbi_verbs_next_slot(link) + GBI_VERBS_HEAD, xfer->data, xfer->bytes);
  forget_head(link);
  complete(t, xfer); /* it is in the slot */
  gbi_verbs_send(t, link, &head, NULL, NULL, NULL);
  return 1;
}

/* ---- long ---- */

static void announce(gbi_verbs *t, gbi_verbs_link *link) {
  gbi_verbs_head head = head_of(link->send_head, GBI_VERBS_ANNOUNCE);
  link->announced = true;
  gbi_verbs_send(t, link, &head, NULL, NULL, NULL);
}

static gbi_verbs_long *free_long(gbi_verbs_link *link) {
  for (int i = 0; i < GBI_VERBS_LONGS; i++)
    if (!link->longs[i].xfer) return &link->longs[i];
  return NULL;
}

/* The head's own memory, when it pays and can be; false: wait for room. */
static bool take_memory(gbi_verbs *t, gbi_verbs_link *link) {
  gbi_xfer *xfer = link->send_head;
  if (xfer->bytes < t->register_bytes) return true;
  gbi_verbs_long *one = free_long(link);
  if (!one) return false;
  struct ibv_mr *mr = gbi_verbs_register(t, xfer->data, xfer->bytes, 0);
  if (!mr) return true; /* by copies */
  *one = (gbi_verbs_long){.xfer = xfer, .mr = mr};
  link->current = one;
  return true;
}

void gbi_verbs_granted(gbi_verbs *t, gbi_verbs_link *link,
                       const gbi_verbs_head *head, const uint8_t *payload) {
  gbi_xfer *xfer = link->send_head;
  bool by_write = head->type == GBI_VERBS_GRANT;
  uint64_t to = 0;
  uint32_t key = 0;
  bool good = head->payload == (by_write ? 12 : 0);
  if (good && by_write) {
    gbi_reader in;
    gbi_reader_init(&in, payload, head->payload);
    to = gbi_get_u64(&in);
    key = gbi_get_u32(&in);
  }
  good = good && xfer && link->announced && !link->granted &&
         head->tag == xfer->tag && head->message_bytes == xfer->bytes;
  if (!good) {
    gbi_verbs_break(t, link, GB_ERR_PROTOCOL,
                    "the other side asked for a message that was not "
                    "announced, or twice");
    return;
  }
  link->by_write = by_write;
  link->granted = true;
  link->grant_address = to;
  link->grant_key = key;
}

static void send_part(gbi_verbs *t, gbi_verbs_link *link) {
  gbi_xfer *xfer = link->send_head;
  const uint8_t *from = (const uint8_t *)xfer->data + xfer->posted;
  uint8_t *slot = gbi_verbs_next_slot(link) + GBI_VERBS_HEAD;
  gbi_verbs_long *one = link->current;
  size_t most = one && link->by_write ? GBI_VERBS_WRITE_BYTES : PAYLOAD;
  size_t bytes = GBI_MIN(most, xfer->bytes - xfer->posted);
  size_t at = xfer->posted;
  xfer->posted += bytes;
  if (one) one->posted = xfer->posted == xfer->bytes;
  if (!one) {
    memcpy(slot, from, bytes);
    xfer->moved = xfer->posted;
  }
  if (link->by_write) {
    gbi_verbs_write(t, link, one ? from : slot, bytes,
                    one ? one->mr->lkey : t->mr->lkey, link->grant_address + at,
                    one);
    return;
  }
  gbi_verbs_head head = head_of(xfer, GBI_VERBS_MESSAGE);
  head.offset = at;
  head.payload = (uint32_t)bytes;
  gbi_verbs_send(t, link, &head, one ? from : NULL, one ? one->mr : NULL, one);
}

static unsigned send_long(gbi_verbs *t, gbi_verbs_link *link) {
  gbi_xfer *xfer = link->send_head;
  if (!link->announced) {
    announce(t, link);
    return 1;
  }
  if (!link->granted) return 0;
  if (!link->prepared && !take_memory(t, link)) return 0;
  link->prepared = true;
  unsigned did = 0;
  while (xfer->posted < xfer->bytes && gbi_verbs_may_send(link)) {
    send_part(t, link);
    did++;
    if (link->broken) return did;
  }
  if (xfer->posted < xfer->bytes) return did;
  bool copied = !link->current;
  forget_head(link);
  if (copied) complete(t, xfer);
  return did + 1;
}

void gbi_verbs_sent(gbi_verbs *t, gbi_verbs_link *link, gbi_verbs_long *of,
                    size_t bytes) {
  (void)link;
  gbi_xfer *xfer = of->xfer;
  if (!xfer) return;
  of->requests--;
  xfer->moved += bytes; /* requests complete in their order */
  if (!of->posted || of->requests) return;
  t->lib->ibv_dereg_mr(of->mr);
  of->xfer = NULL;
  complete(t, xfer);
}

unsigned gbi_verbs_send_on(gbi_verbs *t, gbi_verbs_link *link) {
  unsigned did = 0;
  while (link->send_head && !link->broken && !link->left) {
    if (!gbi_verbs_may_send(link) &&
        !(link->send_head->posted == link->send_head->bytes))
      break;
    unsigned more = link->send_head->bytes <= PAYLOAD ? send_short(t, link)
                                                      : send_long(t, link);
    if (!more) break;
    did += more;
  }
  return did;
}

bool gbi_verbs_take_on(const gbi_verbs *t, const gbi_verbs_link *link,
                       gbi_xfer *xfer) {
  xfer->status = GB_ERR_BUSY;
  xfer->moved = xfer->posted = xfer->inflight = 0;
  xfer->next = NULL;
  if (!t->canceled && !link->broken) return true;
  xfer->status = t->canceled ? GB_ERR_CANCELED : link->status;
  return false;
}

void gbi_verbs_post_send(gbi_transport *transport, int member, gbi_xfer *xfer) {
  gbi_verbs *t = (gbi_verbs *)transport;
  gbi_verbs_link *link = &t->links[member];
  if (!gbi_verbs_take_on(t, link, xfer)) return;
  *link->send_tail = xfer;
  link->send_tail = &xfer->next;
  gbi_verbs_send_on(t, link);
}
