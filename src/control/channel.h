/* control, between its own files: frames over one socket.
 *
 * A frame is u32 length of what follows, u8 type, body. Both sides queue frames
 * without limit of their own: every sender's number of open questions is
 * bounded, so queues are too. A channel belongs to whoever holds its lock or
 * runs its thread. */
#ifndef GBI_CONTROL_CHANNEL_H
#define GBI_CONTROL_CHANNEL_H

#include "base/base.h"
#include "base/wire.h"

/* Shared by the queues of all ranks that it goes to; counted, on one thread. */
typedef struct gbi_frame {
  int refs;
  size_t bytes;
  uint8_t data[];
} gbi_frame;

/* NULL when `body` is bad or memory is short. The caller holds one reference.*/
gbi_frame *gbi_frame_make(uint8_t type, const gbi_writer *body);
void gbi_frame_drop(gbi_frame *frame); /* NULL is a no-op */

typedef struct gbi_channel {
  int fd;
  size_t frame_max; /* longest frame taken; longer ones are PROTOCOL */
  struct gbi_queued *head, *tail;
  size_t sent; /* bytes of head that are out */
  uint8_t *in;
  size_t in_at, in_used, in_bytes;
} gbi_channel;

void gbi_channel_init(gbi_channel *channel, int fd, size_t frame_max);
void gbi_channel_fini(gbi_channel *channel); /* closes the socket */
/* Adds a reference. A lack of memory breaks the channel: flush says so. */
void gbi_channel_push(gbi_channel *channel, gbi_frame *frame);
static inline bool gbi_channel_pending(const gbi_channel *channel) {
  return channel->head != NULL;
}
/* GB_OK: all is sent. BUSY: the socket is full. PEER: broken. */
gb_status gbi_channel_flush(gbi_channel *channel);
/* GB_OK: got bytes, there may be more. BUSY: none now. PEER: the end. */
gb_status gbi_channel_fill(gbi_channel *channel);
/* GB_OK: the next whole frame, valid until the next fill. BUSY: none. */
gb_status gbi_channel_next(gbi_channel *channel, uint8_t *type_p,
                           gbi_reader *body_p);

#endif
