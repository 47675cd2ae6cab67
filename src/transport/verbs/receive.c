/* The receiving side of a link. Arrivals are used up in their order: the first
 * one finds its receive by tag, or rests in its slot until there is one; a long
 * message has the link until it is whole. */
#include "transport/verbs/verbs.h"

#include <stdio.h>
#include <string.h>

/* How far the message may be written now. */
static size_t gate(const gbi_xfer *xfer) {
  const gbi_xfer *after = xfer->after;
  if (!after || after->status == GB_OK) return xfer->bytes;
  return GBI_MIN(xfer->bytes, after->moved);
}

static gbi_verbs_arrival *first(gbi_verbs_link *link) {
  return &link->arrivals[link->arrivals_at];
}

/* Its slot takes the next one. */
static void use_up(gbi_verbs *t, gbi_verbs_link *link) {
  int slot = first(link)->slot;
  link->arrivals_at = (link->arrivals_at + 1) % GBI_VERBS_DATA;
  link->arrivals_count--;
  link->owed_data++;
  link->used = 0;
  if (link->left) return; /* nothing comes any more */
  if (gbi_verbs_post_slot(t, link, slot) != GB_OK)
    gbi_verbs_break(t, link, GB_ERR_SYSTEM, "a receive could not be posted");
}

static void forget_recv(gbi_verbs_link *link, gbi_xfer *xfer) {
  gbi_xfer **at = &link->recv_head;
  while (*at != xfer) at = &(*at)->next;
  *at = xfer->next;
  if (!*at) link->recv_tail = at;
}

static void finish(gbi_verbs *t, gbi_verbs_link *link) {
  gbi_xfer *xfer = link->receiving;
  if (link->mr) t->lib->ibv_dereg_mr(link->mr);
  link->mr = NULL;
  link->receiving = NULL;
  link->announced_to_us = link->written_to_us = link->asked = false;
  forget_recv(link, xfer);
  xfer->moved = xfer->bytes;
  xfer->status = GB_OK;
  gbi_verbs_count(&t->bytes_received, xfer->bytes);
  gbi_verbs_count(&t->messages_received, 1);
}

static void refuse_call(gbi_verbs *t, gbi_verbs_link *link, gbi_xfer *xfer,
                        const gbi_verbs_head *head) {
  gb_error error;
  gb_status status = gbi_fail_mismatch(&error, t->members[t->params.me].rank,
                                       &xfer->call, link->rank, &head->call);
  if (link->status == GB_OK) {
    link->status = status;
    link->error = error;
  }
  link->refused = true;
  forget_recv(link, xfer);
  xfer->status = status;
}

/* Finds the receive of the message at hand; false: it has to wait. */
static bool match(gbi_verbs *t, gbi_verbs_link *link,
                  const gbi_verbs_head *head) {
  if (link->refused) return false;
  gbi_xfer *xfer = link->recv_head;
  while (xfer && xfer->tag != head->tag) xfer = xfer->next;
  if (!xfer) return false;
  if (!gbi_call_equal(&xfer->call, &head->call)) {
    refuse_call(t, link, xfer, head);
    return false;
  }
  if (xfer->bytes != head->message_bytes) {
    char text[128];
    snprintf(text, sizeof text,
             "the other side sent a message of %llu bytes where %zu were "
             "expected",
             (unsigned long long)head->message_bytes, xfer->bytes);
    gbi_verbs_break(t, link, GB_ERR_PROTOCOL, text);
    return false;
  }
  link->receiving = xfer;
  return true;
}

/* ---- what is in a slot ---- */

static size_t deliver(gbi_xfer *xfer, const uint8_t *data, size_t bytes) {
  if (!xfer->sink) {
    if (bytes) memcpy((uint8_t *)xfer->data + xfer->posted, data, bytes);
  } else {
    size_t granule = GBI_MAX(xfer->granule, 1);
    if (xfer->posted + bytes < xfer->bytes) bytes -= bytes % granule;
    if (bytes) xfer->sink(xfer->sink_arg, xfer->posted, data, bytes);
  }
  xfer->posted += bytes;
  xfer->moved = xfer->posted;
  return bytes;
}

/* A part of the message at hand; whether anything was done. */
static bool take_part(gbi_verbs *t, gbi_verbs_link *link,
                      const gbi_verbs_head *head, const uint8_t *payload) {
  gbi_xfer *xfer = link->receiving;
  if (link->written_to_us || head->tag != xfer->tag ||
      head->message_bytes != xfer->bytes ||
      head->offset + link->used != xfer->posted) {
    gbi_verbs_break(t, link, GB_ERR_PROTOCOL,
                    "the other side sent a part of a message out of its place");
    return true;
  }
  size_t room = GBI_MIN(gate(xfer) - xfer->posted, head->payload - link->used);
  size_t took = deliver(xfer, payload + link->used, room);
  link->used += took;
  if (link->used < head->payload) return took;
  use_up(t, link);
  if (!link->broken && xfer->posted == xfer->bytes) finish(t, link);
  return true;
}

/* ---- long ones ---- */

/* Where it is to go: to the receive's own memory, registered while it comes, or
 * through slots. Through slots too where it may not be written yet: two sides
 * that exchange in place would each wait for the other to ask first, while
 * slots take what leaves. */
static void begin_long(gbi_verbs *t, gbi_verbs_link *link) {
  gbi_xfer *xfer = link->receiving;
  link->announced_to_us = true;
  if (!xfer->sink && xfer->bytes >= t->register_bytes &&
      gate(xfer) == xfer->bytes)
    link->mr =
        gbi_verbs_register(t, xfer->data, xfer->bytes,
                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  link->written_to_us = link->mr;
  use_up(t, link);
}

/* Asks for all of it, once: slots keep what may not be written yet. */
static unsigned ask(gbi_verbs *t, gbi_verbs_link *link) {
  gbi_xfer *xfer = link->receiving;
  if (!xfer || !link->announced_to_us || link->asked ||
      !gbi_verbs_may_control(link, false))
    return 0;
  gbi_verbs_head head = {
      .type = link->written_to_us ? GBI_VERBS_GRANT : GBI_VERBS_STREAM,
      .tag = xfer->tag,
      .call = xfer->call,
      .message_bytes = xfer->bytes};
  if (link->written_to_us) {
    gbi_writer out;
    gbi_writer_init(&out, gbi_verbs_next_slot(link) + GBI_VERBS_HEAD, 12);
    gbi_put_u64(&out, (uintptr_t)xfer->data);
    gbi_put_u32(&out, link->mr->rkey);
    head.payload = 12;
  }
  link->asked = true;
  gbi_verbs_send(t, link, &head, NULL, NULL, NULL);
  return 1;
}

static void take_write(gbi_verbs *t, gbi_verbs_link *link, size_t bytes) {
  gbi_xfer *xfer = link->receiving;
  if (!xfer || !link->written_to_us || !bytes ||
      bytes > xfer->bytes - xfer->posted || !link->asked) {
    gbi_verbs_break(t, link, GB_ERR_PROTOCOL,
                    "the other side wrote what nobody asked for");
    return;
  }
  xfer->posted += bytes;
  xfer->moved = xfer->posted;
  use_up(t, link);
  if (!link->broken && xfer->posted == xfer->bytes) finish(t, link);
}

/* ---- in order ---- */

static bool take_first(gbi_verbs *t, gbi_verbs_link *link) {
  const gbi_verbs_arrival *a = first(link);
  if (a->written) {
    take_write(t, link, a->bytes);
    return true;
  }
  const uint8_t *raw = link->in + (size_t)a->slot * GBI_VERBS_SLOT;
  gbi_verbs_head head;
  if (gbi_verbs_head_read(raw, a->bytes, &head)) {
    gbi_verbs_break(t, link, GB_ERR_PROTOCOL,
                    "a slot changed after it had arrived");
    return true;
  }
  if (!link->receiving && !match(t, link, &head)) return link->broken;
  if (head.type == GBI_VERBS_MESSAGE)
    return take_part(t, link, &head, raw + GBI_VERBS_HEAD);
  if (link->announced_to_us || head.payload || head.offset ||
      link->receiving->posted || !head.message_bytes) {
    gbi_verbs_break(t, link, GB_ERR_PROTOCOL,
                    "the other side announced a message amid another");
    return true;
  }
  begin_long(t, link);
  return true;
}

unsigned gbi_verbs_receive_on(gbi_verbs *t, gbi_verbs_link *link) {
  unsigned did = 0;
  while (!link->broken && link->arrivals_count && take_first(t, link)) did++;
  if (!link->broken) did += ask(t, link);
  return did;
}

void gbi_verbs_post_recv(gbi_transport *transport, int member, gbi_xfer *xfer) {
  gbi_verbs *t = (gbi_verbs *)transport;
  gbi_verbs_link *link = &t->links[member];
  if (!gbi_verbs_take_on(t, link, xfer)) return;
  *link->recv_tail = xfer;
  link->recv_tail = &xfer->next;
  gbi_verbs_receive_on(t, link); /* its message may wait here already */
}
