#include "control/channel.h"

#include "base/fault.h"
#include "base/memory.h"
#include "os/fork.h"
#include "os/io.h"
#include "os/net.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEAD_BYTES = 4, ROOM_BYTES = 4096 };

struct gbi_queued {
  struct gbi_queued *next;
  gbi_frame *frame;
};

gbi_frame *gbi_frame_make(uint8_t type, const gbi_writer *body) {
  size_t bytes = body ? body->used : 0;
  if ((body && body->bad) || bytes > UINT32_MAX - 1) return NULL;
  gbi_frame *frame = gbi_malloc(sizeof *frame + HEAD_BYTES + 1 + bytes);
  if (!frame) return NULL;
  frame->refs = 1;
  frame->bytes = HEAD_BYTES + 1 + bytes;
  gbi_writer w;
  gbi_writer_init(&w, frame->data, frame->bytes);
  gbi_put_u32(&w, (uint32_t)(bytes + 1));
  gbi_put_u8(&w, type);
  if (bytes) gbi_put_raw(&w, body->data, bytes);
  return frame;
}

void gbi_frame_drop(gbi_frame *frame) {
  if (frame && --frame->refs == 0) free(frame);
}

void gbi_channel_init(gbi_channel *channel, int fd, size_t frame_max) {
  *channel = (gbi_channel){.fd = fd, .frame_max = frame_max};
  gbi_fork_closes(fd);
}

static void pop(gbi_channel *channel) {
  struct gbi_queued *head = channel->head;
  channel->head = head->next;
  channel->sent = 0;
  gbi_frame_drop(head->frame);
  free(head);
}

void gbi_channel_fini(gbi_channel *channel) {
  while (channel->head) pop(channel);
  free(channel->in);
  if (channel->fd >= 0) gbi_close_connection(channel->fd);
  *channel = (gbi_channel){.fd = -1};
}

void gbi_channel_push(gbi_channel *channel, gbi_frame *frame) {
  struct gbi_queued *queued = frame ? gbi_malloc(sizeof *queued) : NULL;
  if (!queued || channel->fd < 0) {
    free(queued);
    /* Silence would be a hang: the other side sees a broken connection. */
    if (channel->fd >= 0) shutdown(channel->fd, SHUT_RDWR);
    return;
  }
  frame->refs++;
  *queued = (struct gbi_queued){NULL, frame};
  if (channel->head)
    channel->tail->next = queued;
  else
    channel->head = queued;
  channel->tail = queued;
}

gb_status gbi_channel_flush(gbi_channel *channel) {
  while (channel->head) {
    gbi_frame *frame = channel->head->frame;
    ssize_t n = gbi_send(channel->fd, frame->data + channel->sent,
                         frame->bytes - channel->sent);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return GB_ERR_BUSY;
    if (n < 0) {
      /* A send may fail (ENOBUFS) on a connection that is well otherwise. What
       * was not sent would be missed for ever: reading must tell the end. */
      shutdown(channel->fd, SHUT_RDWR);
      return GB_ERR_PEER;
    }
    channel->sent += (size_t)n;
    if (channel->sent == frame->bytes) pop(channel);
  }
  return GB_OK;
}

/* Bytes of the frame that starts at in_at, as far as they are known. */
static size_t frame_bytes(const gbi_channel *channel) {
  if (channel->in_used - channel->in_at < HEAD_BYTES) return HEAD_BYTES + 1;
  gbi_reader r;
  gbi_reader_init(&r, channel->in + channel->in_at, HEAD_BYTES);
  return HEAD_BYTES + (size_t)gbi_get_u32(&r);
}

/* Room grows with the bytes that really came, not with what a length says. */
static bool make_room(gbi_channel *channel) {
  if (channel->in_at) {
    memmove(channel->in, channel->in + channel->in_at,
            channel->in_used - channel->in_at);
    channel->in_used -= channel->in_at;
    channel->in_at = 0;
  }
  if (channel->in_used < channel->in_bytes) return true;
  size_t bytes = GBI_MAX(channel->in_bytes * 2, (size_t)ROOM_BYTES);
  if (channel->in_used >= HEAD_BYTES)
    bytes = GBI_MIN(
        bytes, GBI_MAX(frame_bytes(channel), channel->in_bytes + ROOM_BYTES));
  uint8_t *wider = gbi_realloc(channel->in, bytes);
  if (!wider) return false;
  channel->in = wider;
  channel->in_bytes = bytes;
  return true;
}

gb_status gbi_channel_fill(gbi_channel *channel) {
  if (!make_room(channel)) return GB_ERR_PEER;
  for (;;) {
    ssize_t n = gbi_recv(channel->fd, channel->in + channel->in_used,
                         channel->in_bytes - channel->in_used);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN ? GB_ERR_BUSY : GB_ERR_PEER;
    if (n == 0) return GB_ERR_PEER;
    channel->in_used += (size_t)n;
    return GB_OK;
  }
}

gb_status gbi_channel_next(gbi_channel *channel, uint8_t *type_p,
                           gbi_reader *body_p) {
  size_t have = channel->in_used - channel->in_at;
  if (have < HEAD_BYTES) return GB_ERR_BUSY;
  size_t wanted = frame_bytes(channel);
  if (wanted <= HEAD_BYTES || wanted - HEAD_BYTES > channel->frame_max)
    return GB_ERR_PROTOCOL;
  if (have < wanted) return GB_ERR_BUSY;
  const uint8_t *at = channel->in + channel->in_at;
  *type_p = at[HEAD_BYTES];
  gbi_reader_init(body_p, at + HEAD_BYTES + 1, wanted - HEAD_BYTES - 1);
  if (gbi_decode_fault(body_p->data, body_p->bytes)) return GB_ERR_PROTOCOL;
  channel->in_at += wanted;
  return GB_OK;
}
