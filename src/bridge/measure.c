/* Two members measure the round trip between them once, when they connect:
 * member 0 pings until it is sure enough and then tells member 1. So both
 * choose the same way to reduce. */
#include "bridge/step.h"

#include <poll.h>
#include <sched.h>
#include <stdlib.h>

enum { PINGS_MAX = 5, SURE_US = 20000, SLEEP_MS = 50 };

/* Sleeps until the transport may have something to do. */
static void doze(gbi_bridge *b, uint32_t seen) {
  int fd = b->transport->ops->wait_fd(b->transport);
  struct pollfd one = {fd, POLLIN, 0};
  if (b->area)
    gbi_waiter_sleep(gbi_hostarea_waiter(b->area), seen, &one, fd >= 0,
                     SLEEP_MS);
  else
    poll(&one, fd >= 0, fd >= 0 ? SLEEP_MS : 1);
}

static gb_status await(gbi_bridge *b, const gbi_xfer *xfer,
                       uint64_t deadline_ns, gb_error *error) {
  int peer = !b->base.me;
  for (int idle = 0; xfer->status == GB_ERR_BUSY;) {
    uint32_t seen =
        b->area ? gbi_bell_look(gbi_hostarea_waiter(b->area)) : 0;
    if (b->transport->ops->progress(b->transport)) {
      idle = 0;
      continue;
    }
    if (gbi_deadline_passed(deadline_ns))
      return gbi_fail_rank(error, GB_ERR_TIMEOUT, b->members[peer].rank,
                           "rank %d connected over bridge \"%s\" but did not "
                           "answer in time",
                           b->members[peer].rank, b->transport->ops->name);
    if (idle++ < 20)
      sched_yield();
    else
      doze(b, seen);
  }
  if (xfer->status == GB_OK) return GB_OK;
  if (b->transport->ops->link_error(b->transport, peer, error) != GB_OK)
    return xfer->status;
  return gbi_fail(error, xfer->status, "connecting a bridge was stopped");
}

typedef struct ping {
  uint64_t last, rtt_us; /* little-endian on every machine we know: both ends
                            are checked to be of one byte order */
} ping;

/* Tags of flow 3, which no step uses. */
static void set_up(gbi_xfer *xfer, uint64_t number, ping *data) {
  *xfer = (gbi_xfer){.tag = UINT64_C(3) << 18 | number,
                     .data = data,
                     .bytes = sizeof *data,
                     .granule = 1};
}

static gb_status ping_once(gbi_bridge *b, int number, ping *p, uint64_t until,
                           gb_error *error) {
  const gbi_transport_ops *ops = b->transport->ops;
  int me = b->base.me;
  gbi_xfer to, from;
  ping back = {0, 0};
  set_up(&to, (uint64_t)number, me ? &back : p);
  set_up(&from, (uint64_t)number, me ? p : &back);
  uint64_t start = gbi_now_ns();
  if (me == 0) ops->post_send(b->transport, 1, &to);
  ops->post_recv(b->transport, !me, &from);
  gb_status status = await(b, &from, until, error);
  if (status == GB_OK && me == 1) ops->post_send(b->transport, 0, &to);
  if (status == GB_OK) status = await(b, &to, until, error);
  if (status != GB_OK) {
    /* The xfers live on this stack. */
    ops->stop(b->transport);
    ops->progress(b->transport);
    return status;
  }
  if (me == 0)
    p->rtt_us = GBI_MIN(p->rtt_us, (gbi_now_ns() - start) / 1000);
  return GB_OK;
}

gb_status gbi_bridge_measure(gbi_bridge *b, uint64_t deadline_ns,
                             gb_error *error) {
  ping p = {0, UINT64_MAX};
  for (int i = 0; !p.last; i++) {
    if (b->base.me == 0)
      p.last = i && (p.rtt_us <= GBI_BRIDGE_LONG_RTT_US ||
                     p.rtt_us > SURE_US || i == PINGS_MAX);
    uint64_t told = p.rtt_us;
    GBI_TRY(ping_once(b, i, &p, deadline_ns, error));
    /* Both use what the last ping said. */
    if (b->base.me == 0 && p.last) p.rtt_us = told;
  }
  b->rtt_us = p.rtt_us;
  return GB_OK;
}
