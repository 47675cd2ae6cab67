/* Two members measure the round trip between them once, when they connect:
 * member 0 pings until it is sure enough and then tells member 1. So both
 * choose the same way to reduce. */
#include "bridge/step.h"

#include <endian.h>
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
    uint32_t seen = b->area ? gbi_bell_look(gbi_hostarea_waiter(b->area)) : 0;
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

/* What goes over the wire, little-endian. */
typedef struct ping {
  uint64_t last, rtt_us;
} ping;

/* Tags of flow 3, which no step uses. */
static void set_up(gbi_xfer *xfer, uint64_t number, ping *data) {
  *xfer = (gbi_xfer){.tag = UINT64_C(3) << 18 | number,
                     .data = data,
                     .bytes = sizeof *data,
                     .granule = 1};
}

/* Member 0 sends `out` and gets its echo in `in`; member 1 the other way. */
static gb_status ping_once(gbi_bridge *b, uint64_t number, ping *out, ping *in,
                           uint64_t deadline_ns, gb_error *error) {
  const gbi_transport_ops *ops = b->transport->ops;
  bool leads = b->base.me == 0;
  gbi_xfer to, from;
  set_up(&to, number, out);
  set_up(&from, number, in);
  if (leads) ops->post_send(b->transport, 1, &to);
  ops->post_recv(b->transport, leads ? 1 : 0, &from);
  gb_status status = await(b, &from, deadline_ns, error);
  if (!leads && status == GB_OK) {
    *out = *in;
    ops->post_send(b->transport, 0, &to);
  }
  if (status == GB_OK) status = await(b, &to, deadline_ns, error);
  if (status != GB_OK) {
    /* The xfers live on this stack. */
    ops->stop(b->transport);
    ops->progress(b->transport);
  }
  return status;
}

static gb_status lead(gbi_bridge *b, uint64_t deadline_ns, gb_error *error) {
  uint64_t best = UINT64_MAX;
  for (uint64_t i = 0;; i++) {
    bool last = i && (best <= GBI_BRIDGE_LONG_RTT_US || best > SURE_US ||
                      i == PINGS_MAX);
    ping out = {htole64(last), htole64(best)}, in;
    uint64_t start = gbi_now_ns();
    GBI_TRY(ping_once(b, i, &out, &in, deadline_ns, error));
    if (last) break;
    best = GBI_MIN(best, (gbi_now_ns() - start) / 1000);
  }
  b->rtt_us = best;
  return GB_OK;
}

gb_status gbi_bridge_measure(gbi_bridge *b, uint64_t deadline_ns,
                             gb_error *error) {
  if (b->base.me == 0) return lead(b, deadline_ns, error);
  for (uint64_t i = 0;; i++) {
    ping out, in;
    GBI_TRY(ping_once(b, i, &out, &in, deadline_ns, error));
    b->rtt_us = le64toh(in.rtt_us);
    if (in.last) return GB_OK;
  }
}
