/* The battery that every transport passes (transport/transport.h).
 *
 *   GB_TRANSPORT_BATTERY(tcp, open_tcp)
 *
 * where open_tcp sets the environment and returns the ops table. It proves:
 * bytes arrive whole at every size around the borders, both ways at once; tags
 * match whatever the order of posting; a message that nobody has posted waits
 * without harm; sinks get whole elements, every byte once; a gated receive
 * never writes ahead of its gate; a peer that does not read for longer than the
 * timeout is waited for; a wrong length is PROTOCOL and another call
 * MISMATCH; stop completes everything; no page fault once warm. */
#ifndef GB_TRANSPORT_BATTERY_H
#define GB_TRANSPORT_BATTERY_H

#include "harness/gb_area.h"
#include "harness/gb_test.h"
#include "transport/transport.h"

typedef const gbi_transport_ops *(*gb_transport_fn)(void);

/* One rank's end of a transport over all ranks of the case; member i is rank
 * i. */
typedef struct gb_fabric {
  const gbi_transport_ops *ops;
  gbi_hostarea *area;
  gbi_transport *transport;
  gbi_member members[GB_AREA_RANKS_MAX];
} gb_fabric;

/* params.timeout_ms of the transports opened from now on; 10 s at first. */
extern uint64_t gb_fabric_timeout_ms;
/* How soon a killed peer is to be noticed; 1 s at first. */
extern uint64_t gb_fabric_death_ms;
/* Fails the case when it cannot. */
void gb_fabric_open(gb_fabric *f, gb_transport_fn open);
/* In two parts, for tests that do something in between. */
void gb_fabric_listen(gb_fabric *f, gb_transport_fn open, gbi_reader *all);
/* Waits for everybody first. */
void gb_fabric_close(gb_fabric *f);
/* Drives until *xfer is complete, at most timeout_ms: then BUSY. Sleeps as the
 * engine does. */
gb_status gb_fabric_wait(gb_fabric *f, const gbi_xfer *xfer, int timeout_ms);
void gb_fabric_send(gb_fabric *f, int to, gbi_xfer *xfer, uint64_t tag,
                    const void *data, size_t bytes);
void gb_fabric_recv(gb_fabric *f, int from, gbi_xfer *xfer, uint64_t tag,
                    void *data, size_t bytes);
/* A pattern that tells every message and place from every other. */
void gb_pattern(void *data, size_t bytes, uint64_t seed);
void gb_check_pattern(const void *data, size_t bytes, uint64_t seed);

void gb_transport_sizes(gb_transport_fn open);
void gb_transport_tags(gb_transport_fn open);
void gb_transport_late_receive(gb_transport_fn open);
void gb_transport_sinks(gb_transport_fn open);
void gb_transport_in_place(gb_transport_fn open);
void gb_transport_chain(gb_transport_fn open);
void gb_transport_busy_peer(gb_transport_fn open);
void gb_transport_all_pairs(gb_transport_fn open);
void gb_transport_wrong_length(gb_transport_fn open);
void gb_transport_mismatch(gb_transport_fn open);
void gb_transport_stop(gb_transport_fn open);
void gb_transport_warm(gb_transport_fn open);
/* For transports that notice a death by themselves; ranks 2, expect "0k". */
void gb_transport_killed(gb_transport_fn open);

#define GB_TRANSPORT_CASE(suite_, name_, ranks_, what, open)     \
  GB_TEST(suite_, name_, .ranks = ranks_, .timeout_ms = 60000) { \
    what(open);                                                  \
  }
#define GB_TRANSPORT_BATTERY(suite_, open)                                    \
  GB_TRANSPORT_CASE(suite_, sizes, 2, gb_transport_sizes, open)               \
  GB_TRANSPORT_CASE(suite_, tags, 2, gb_transport_tags, open)                 \
  GB_TRANSPORT_CASE(suite_, late_receive, 2, gb_transport_late_receive, open) \
  GB_TRANSPORT_CASE(suite_, sinks, 2, gb_transport_sinks, open)               \
  GB_TRANSPORT_CASE(suite_, in_place, 2, gb_transport_in_place, open)         \
  GB_TRANSPORT_CASE(suite_, chain, 3, gb_transport_chain, open)               \
  GB_TRANSPORT_CASE(suite_, busy_peer, 2, gb_transport_busy_peer, open)       \
  GB_TRANSPORT_CASE(suite_, all_pairs, 5, gb_transport_all_pairs, open)       \
  GB_TRANSPORT_CASE(suite_, wrong_length, 2, gb_transport_wrong_length, open) \
  GB_TRANSPORT_CASE(suite_, mismatch, 2, gb_transport_mismatch, open)         \
  GB_TRANSPORT_CASE(suite_, stop, 2, gb_transport_stop, open)                 \
  GB_TRANSPORT_CASE(suite_, warm, 2, gb_transport_warm, open)

#endif
