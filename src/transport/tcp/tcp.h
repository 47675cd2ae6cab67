/* transport/tcp: links of one or more TCP connections, driven by the calling
 * thread. Nothing outside this folder includes this header.
 *
 *   tcp.c      settings, open, close, describe
 *   address.c  which local addresses to listen on
 *   connect.c  brings all links up; strangers at the door
 *   frame.c    the header in front of every piece
 *   data.c     sends, receives, progress
 *
 * A link has `streams` connections. A message is cut into pieces of at most
 * `piece_bytes`; whichever connection has room takes the next piece. The
 * receiver knows a piece's place from its frame header. */
#ifndef GBI_TRANSPORT_TCP_TCP_H
#define GBI_TRANSPORT_TCP_TCP_H

#include "os/card.h"
#include "os/net.h"
#include "transport/transport.h"

#include <stdatomic.h>

#define GBI_TCP_STREAMS_MAX 64
#define GBI_TCP_CANDIDATES_MAX 8
#define GBI_TCP_FRAME_BYTES 64
/* One system call moves at most this much: enough to make its fixed cost
 * vanish, little enough that sending and receiving alternate. */
#define GBI_TCP_CALL_BYTES ((size_t)512 << 10)
/* Sinks are fed from here while it is still in the second-level cache. */
#define GBI_TCP_SCRATCH_BYTES ((size_t)256 << 10)
/* Bytes in front of the scratch for a part of an element left from before. */
#define GBI_TCP_SCRATCH_LEAD 64
/* A connection's own buffer takes a header with what came right behind it. */
#define GBI_TCP_BUFFER_MAX ((size_t)72 << 10)
#define GBI_TCP_BUFFER_MIN ((size_t)4 << 10)
#define GBI_TCP_BUFFERS_BYTES ((size_t)1 << 20) /* all of them, about */
/* With several connections each holds about as much unsent as it sends in so
 * many milliseconds, within these bounds: enough to be busy until its thread
 * comes round again, little enough that all end a message together. */
#define GBI_TCP_UNSENT_MS 15
#define GBI_TCP_UNSENT_MIN ((size_t)32 << 10)
#define GBI_TCP_UNSENT_MAX ((size_t)512 << 10)
/* On a thin long line few connections share the line better than many: each of
 * those that BBR paces takes the rate of a moment alone for its own. As many
 * carry messages as their send buffers (4 MiB, the kernel's default bound) need
 * to hold twice what is under way, two at least. */
#define GBI_TCP_THIN_BYTES_S UINT64_C(312500000) /* 2.5 Gbit/s */
#define GBI_TCP_LONG_RTT_US 5000
#define GBI_TCP_SEND_BUFFER (4 << 20)
/* A lone connection has nothing to share out: a piece is a whole message. */
#define GBI_TCP_PIECE_ALONE ((size_t)1 << 30)

/* The header of a piece, decoded. */
typedef struct gbi_tcp_frame {
  uint8_t stream;
  uint64_t tag;
  gbi_call call;
  uint64_t message_bytes, offset;
  uint32_t piece_bytes;
} gbi_tcp_frame;

void gbi_tcp_frame_write(const gbi_tcp_frame *frame,
                         uint8_t raw[GBI_TCP_FRAME_BYTES]);
/* Checks what can be checked without the receive: NULL, or what is wrong. */
const char *gbi_tcp_frame_read(const uint8_t raw[GBI_TCP_FRAME_BYTES],
                               uint8_t stream, size_t piece_bytes,
                               gbi_tcp_frame *frame);

typedef struct gbi_tcp_conn {
  int fd; /* -1: closed */
  uint8_t stream;
  bool eof;       /* the other side sends nothing any more */
  bool ready;     /* epoll said so; only where there are many connections */
  uint32_t armed; /* what epoll watches; 0: not in its set */

  size_t unsent;         /* the kernel's bound in force; 0: none */
  uint64_t next_rate_ns; /* when to look again whether it fits */
  uint64_t rate;         /* bytes per second, at the last look */

  /* The piece being sent, NULL: none. */
  gbi_xfer *out;
  size_t out_at, out_end; /* offsets in the message */
  size_t head_left;       /* header bytes not sent yet */
  uint8_t head[GBI_TCP_FRAME_BYTES];

  /* The piece being received. */
  bool has_frame;
  bool refused; /* its receive failed with a mismatch: never consumed */
  gbi_xfer *in; /* NULL: no receive has its tag yet */
  gbi_tcp_frame frame;
  size_t in_at, in_end;
  uint8_t carry[16]; /* part of an element that waits for its rest */
  size_t carry_bytes;
  bool drained; /* the last read took less than it asked for */
  uint8_t *buffer;
  size_t at, have; /* buffer[at..have) is not consumed */
} gbi_tcp_conn;

/* What a long line carries (pace.c). */
typedef struct gbi_tcp_pace {
  uint64_t since_ns, delivered, again; /* a window's start; ns 0: none */
  uint64_t best[2]; /* bytes per second, of late and before */
  int windows;
  bool bound;    /* it dropped what was too much */
  uint64_t rate; /* of all connections together, in force; 0: unbounded */
} gbi_tcp_pace;

typedef struct gbi_tcp_link {
  int member, rank;
  int streams; /* 0: this is the own place in the list */
  size_t piece_bytes;
  uint32_t rtt_us;
  char address[GBI_ADDRESS_TEXT]; /* of the other side, for texts */
  char from[GBI_ADDRESS_TEXT];    /* of this side, likewise */
  char congestion[16];
  gbi_tcp_conn *conns;
  _Atomic int active; /* the first of them, which take pieces; telemetry reads
                         it from other threads */
  gbi_tcp_pace pace;
  bool widened; /* their send buffers, as far as the kernel lets */
  bool adapts;    /* active follows the line: their number was not set */
  int next_conn;                    /* where the next message starts */
  gbi_xfer *send_head, **send_tail; /* not wholly cut into pieces yet */
  gbi_xfer *recv_head, **recv_tail; /* posted, not complete */
  bool broken;
  gb_status status; /* why it broke, or the mismatch it saw */
  gb_error error;
} gbi_tcp_link;

typedef struct gbi_tcp {
  gbi_transport base;
  gbi_transport_params params; /* members: own copy */
  gbi_member *members;
  int epoll_fd;
  int stop_fd;           /* an eventfd in the epoll set */
  _Atomic bool stopped;  /* pairs: stop's release store, progress's acquire */
  bool canceled;         /* pending xfers were completed after stop */
  int streams_setting;   /* 0: by rule */
  int64_t piece_setting; /* 0: by rule */
  char congestion_setting[16];
  char chosen_by[400]; /* why these addresses, for telemetry */
  bool has_card; /* else the routes decide by which card packets leave */
  gbi_card card; /* its address is the first of `addresses` */
  int listeners_count;
  int listeners[GBI_TCP_CANDIDATES_MAX];
  gbi_address addresses[GBI_TCP_CANDIDATES_MAX]; /* with ports */
  gbi_tcp_link *links;                           /* one a member */
  gbi_tcp_conn *conns;                           /* of all links */
  int conns_count;
  uint8_t *buffers;
  size_t buffer_bytes; /* of one connection */
  uint8_t *scratch;
  uint64_t next_check_ns; /* for silence */
  _Atomic uint64_t bytes_sent, bytes_received;
  _Atomic uint64_t messages_sent, messages_received;
} gbi_tcp;

enum {
  GBI_TCP_SET_STREAMS,
  GBI_TCP_SET_STREAMS_ALIAS,
  GBI_TCP_SET_CHUNK,
  GBI_TCP_SET_CHUNK_ALIAS,
  GBI_TCP_SET_IFNAME,
  GBI_TCP_SET_IFNAME_ALIAS,
  GBI_TCP_SET_CONGESTION,
  GBI_TCP_SETTINGS
};
extern const gbi_setting gbi_tcp_settings[];
/* Reads a setting that has an old and a new name (`which` and the next one).
 * *name_p: the one that was used. */
gb_status gbi_tcp_setting(int which, gbi_value *value, const char **name_p,
                          gb_error *error);

/* address.c: fills t->addresses (ports 0) and listeners_count, and the card
 * where links are spread over several. */
gb_status gbi_tcp_choose_addresses(gbi_tcp *t, gb_error *error);

/* connect.c */
gb_status gbi_tcp_connect(gbi_transport *transport, const gbi_reader *addresses,
                          uint64_t deadline_ns, gb_error *error);
void gbi_tcp_close_listeners(gbi_tcp *t);

/* pace.c */
/* A window of `ns` in which the link had something to send all the time, so
 * many bytes delivered and sent again: bytes per second that it should send at
 * most, 0: no bound. */
uint64_t gbi_tcp_pace_window(gbi_tcp_pace *pace, uint64_t ns,
                             uint64_t delivered, uint64_t again);
/* A line that holds more than the connections' send buffers do. */
void gbi_tcp_widen(gbi_tcp_link *link);
/* While there is something to send, at least every round trip. */
void gbi_tcp_pace_look(gbi_tcp_link *link, uint64_t now);
/* There was nothing to send. */
void gbi_tcp_pace_pause(gbi_tcp_link *link);

/* data.c */
/* How many of a link's connections carry what leaves here, at so many bytes
 * per second together. *short_p: their send buffers do not hold it. */
int gbi_tcp_active(int streams, uint64_t rate, uint32_t rtt_us, bool *short_p);
/* Bounds what the kernel holds of a connection unsent. */
void gbi_tcp_bound_unsent(gbi_tcp_conn *c, size_t bytes);
void gbi_tcp_post_send(gbi_transport *transport, int member, gbi_xfer *xfer);
void gbi_tcp_post_recv(gbi_transport *transport, int member, gbi_xfer *xfer);
unsigned gbi_tcp_progress(gbi_transport *transport);

#endif
