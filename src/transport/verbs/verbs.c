#include "transport/verbs/verbs.h"

#include "base/memory.h"
#include "os/io.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

/* How long a goodbye may take to arrive. */
enum { BYE_MS = 1000, ALIGNED = 4096 };

static const gbi_verbs_library *open_library(gb_error *error) {
  gbi_value path;
  if (gbi_setting_read(&gbi_verbs_settings[GBI_VERBS_SET_LIB], &path, error) !=
      GB_OK)
    return NULL;
  return gbi_verbs_library_open(path.text, error);
}

static bool usable(const gbi_transport_params *params, gb_error *why_not) {
  gbi_verbs_port port;
  (void)params;
  gbi_error_clear(why_not);
  const gbi_verbs_library *lib = open_library(why_not);
  if (!lib || gbi_verbs_port_open(lib, &port, why_not) != GB_OK) return false;
  lib->ibv_close_device(port.context);
  return true;
}

/* ---- open ---- */

static int64_t number(int which) {
  return gbi_setting_number(&gbi_verbs_settings[which]);
}

static gb_status read_settings(gbi_verbs *t, gb_error *error) {
  gbi_value value;
  for (int i = 0; i < GBI_VERBS_SETTINGS; i++)
    GBI_TRY(gbi_setting_read(&gbi_verbs_settings[i], &value, error));
  t->timeout = (int)number(GBI_VERBS_SET_TIMEOUT);
  t->retries = (int)number(GBI_VERBS_SET_RETRIES);
  t->register_bytes = (size_t)number(GBI_VERBS_SET_REGISTER);
  GBI_TRY(gbi_setting_read(&gbi_verbs_settings[GBI_VERBS_SET_GPU_PATH], &value,
                           error));
  if (!strcmp(value.text, "direct"))
    return gbi_fail(error, GB_ERR_UNSUPPORTED,
                    "GPUBRIDGE_VERBS_GPU_PATH is direct, but this version "
                    "brings data of GPUs to the network card through host "
                    "memory only. Unset it or say staged");
  return GB_OK;
}

static gb_status copy_params(gbi_verbs *t, const gbi_transport_params *params,
                             gb_error *error) {
  size_t n = (size_t)params->members_count;
  if (n > GBI_VERBS_MEMBERS_MAX)
    return gbi_fail(error, GB_ERR_UNSUPPORTED,
                    "the bridge \"verbs\" joins at most %d ranks, not %zu. Use "
                    "the bridge tcp",
                    GBI_VERBS_MEMBERS_MAX, n);
  t->params = *params;
  t->members = gbi_malloc(n * sizeof *t->members);
  t->links = gbi_calloc(n, sizeof *t->links);
  t->slots_bytes =
      n * (GBI_VERBS_SLOTS + GBI_VERBS_QUEUE) * (size_t)GBI_VERBS_SLOT;
  t->slots_bytes = (t->slots_bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
  t->slots = gbi_aligned_alloc(ALIGNED, t->slots_bytes);
  if (!t->members || !t->links || !t->slots)
    return gbi_fail(error, GB_ERR_MEMORY, "out of memory for bridge \"verbs\"");
  memset(t->slots, 0, t->slots_bytes); /* no call meets a fresh page */
  memcpy(t->members, params->members, n * sizeof *t->members);
  t->params.members = t->members;
  uint8_t *at = t->slots;
  for (size_t i = 0; i < n; i++) {
    gbi_verbs_link *link = &t->links[i];
    link->member = (int)i;
    link->rank = t->members[i].rank;
    link->send_tail = &link->send_head;
    link->recv_tail = &link->recv_head;
    link->data_credits = GBI_VERBS_DATA;
    link->control_credits = GBI_VERBS_CONTROL;
    link->in = at;
    link->out = at + (size_t)GBI_VERBS_SLOTS * GBI_VERBS_SLOT;
    at += (size_t)(GBI_VERBS_SLOTS + GBI_VERBS_QUEUE) * GBI_VERBS_SLOT;
  }
  return GB_OK;
}

static gb_status no_memory(const gbi_verbs *t, gb_error *error) {
  struct rlimit limit = {0, 0};
  int code = errno;
  (void)getrlimit(RLIMIT_MEMLOCK, &limit);
  return gbi_fail(error, GB_ERR_MEMORY,
                  "the RDMA device %s could not register %zu KiB of buffers: "
                  "%s. This process may lock %llu KiB: raise the limit with "
                  "`ulimit -l unlimited` (systemd: LimitMEMLOCK=infinity, "
                  "containers: --ulimit memlock=-1)",
                  t->port.device, t->slots_bytes >> 10, strerror(code),
                  (unsigned long long)limit.rlim_cur >> 10);
}

static gb_status watch(gbi_verbs *t, int fd, gb_error *error) {
  struct epoll_event event = {.events = EPOLLIN};
  int flags = fcntl(fd, F_GETFL);
  if (flags >= 0 && !fcntl(fd, F_SETFL, flags | O_NONBLOCK) &&
      !epoll_ctl(t->epoll_fd, EPOLL_CTL_ADD, fd, &event))
    return GB_OK;
  return gbi_fail(error, GB_ERR_SYSTEM,
                  "could not set up waiting for the RDMA device: %s",
                  strerror(errno));
}

static gb_status open_device(gbi_verbs *t, gb_error *error) {
  t->lib = open_library(error);
  if (!t->lib) return error->status;
  GBI_TRY(gbi_verbs_port_open(t->lib, &t->port, error));
  struct ibv_context *context = t->port.context;
  int entries = (GBI_VERBS_SLOTS + GBI_VERBS_QUEUE) * t->params.members_count;
  errno = 0;
  t->pd = t->lib->ibv_alloc_pd(context);
  t->channel = t->lib->ibv_create_comp_channel(context);
  if (t->pd && t->channel)
    t->cq = t->lib->ibv_create_cq(context, entries, NULL, t->channel, 0);
  if (!t->cq)
    return gbi_fail(error, GB_ERR_SYSTEM,
                    "the RDMA device %s gave no completion queue of %d "
                    "entries: %s",
                    t->port.device, entries, strerror(errno ? errno : EIO));
  errno = 0;
  t->mr = t->lib->ibv_reg_mr(t->pd, t->slots, t->slots_bytes,
                             IBV_ACCESS_LOCAL_WRITE);
  if (!t->mr) return no_memory(t, error);
  t->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  t->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  GBI_TRY(watch(t, t->stop_fd, error));
  GBI_TRY(watch(t, t->channel->fd, error));
  GBI_TRY(watch(t, context->async_fd, error));
  return gbi_verbs_make_queues(t, error);
}

/* ---- close ---- */

static bool still_sends(const gbi_verbs *t) {
  for (int i = 0; i < t->params.members_count; i++) {
    const gbi_verbs_link *link = &t->links[i];
    /* Who has said goodbye has all that it waits for. */
    if (link->qp && link->greeted && !link->broken && !link->left &&
        link->retired < link->posted)
      return true;
  }
  return false;
}

/* What was sent arrives, and the others learn that nothing follows; then they
 * do not take the end of this queue pair for a failure. */
static void say_goodbye(gbi_verbs *t) {
  if (!t->cq) return;
  for (int i = 0; i < t->params.members_count; i++) {
    gbi_verbs_link *link = &t->links[i];
    gbi_verbs_head head = {.type = GBI_VERBS_BYE};
    if (!link->qp || !link->greeted || link->broken) continue;
    gbi_verbs_fail_pending(t, link, GB_ERR_CANCELED);
    if (gbi_verbs_may_control(link, true))
      gbi_verbs_send(t, link, &head, NULL, NULL, NULL);
  }
  uint64_t deadline = gbi_deadline_after_ms(BYE_MS);
  while (still_sends(t) && !gbi_deadline_passed(deadline)) {
    if (gbi_verbs_poll(t)) continue;
    struct pollfd one = {t->channel->fd, POLLIN, 0};
    (void)poll(&one, 1, 1);
  }
}

static void close_device(gbi_verbs *t) {
  for (int i = 0; t->links && i < t->params.members_count; i++)
    if (t->links[i].qp) t->lib->ibv_destroy_qp(t->links[i].qp);
  if (t->mr) t->lib->ibv_dereg_mr(t->mr);
  if (t->cq && t->unacknowledged)
    t->lib->ibv_ack_cq_events(t->cq, t->unacknowledged);
  if (t->cq) t->lib->ibv_destroy_cq(t->cq);
  if (t->channel) t->lib->ibv_destroy_comp_channel(t->channel);
  if (t->pd) t->lib->ibv_dealloc_pd(t->pd);
  if (t->port.context) t->lib->ibv_close_device(t->port.context);
}

static void close_transport(gbi_transport *transport) {
  gbi_verbs *t = (gbi_verbs *)transport;
  if (t->links) say_goodbye(t);
  if (t->lib) close_device(t);
  if (t->epoll_fd >= 0) close(t->epoll_fd);
  if (t->stop_fd >= 0) close(t->stop_fd);
  free(t->slots);
  free(t->members);
  free(t->links);
  free(t);
}

static gb_status open_transport(const gbi_transport_params *params,
                                gbi_transport **transport_p, gb_error *error) {
  gbi_verbs *t = gbi_calloc(1, sizeof *t);
  if (!t)
    return gbi_fail(error, GB_ERR_MEMORY, "out of memory for bridge \"verbs\"");
  t->base.ops = &gbi_transport_verbs;
  t->epoll_fd = t->stop_fd = -1;
  uint64_t beat_ms = GBI_MAX(params->timeout_ms / 4, 250);
  t->heartbeat_ns = GBI_MIN(beat_ms, 1000) * GBI_NS_PER_MS;
  gb_status status = copy_params(t, params, error);
  if (status == GB_OK) status = read_settings(t, error);
  if (status == GB_OK)
    status = gbi_random((uint8_t *)&t->nonce, sizeof t->nonce, error);
  t->psn = (uint32_t)(t->nonce >> 32) & 0xffffff;
  if (status == GB_OK) status = open_device(t, error);
  if (status != GB_OK) {
    close_transport(&t->base);
    return status;
  }
  *transport_p = &t->base;
  return GB_OK;
}

/* ---- the rest of the table ---- */

static int wait_fd(gbi_transport *transport) {
  return ((gbi_verbs *)transport)->epoll_fd;
}

static gb_status link_error(const gbi_transport *transport, int member,
                            gb_error *error) {
  const gbi_verbs_link *link = &((const gbi_verbs *)transport)->links[member];
  if (link->status != GB_OK && error) *error = link->error;
  return link->status;
}

static void stop(gbi_transport *transport) {
  gbi_verbs *t = (gbi_verbs *)transport;
  atomic_store_explicit(&t->stopped, true, memory_order_release);
  uint64_t one = 1;
  ssize_t n = write(t->stop_fd, &one, sizeof one);
  (void)n; /* full: it is readable already */
}

static uint64_t load(const _Atomic uint64_t *counter) {
  return atomic_load_explicit(counter, memory_order_relaxed);
}

static void read_stats(const gbi_transport *transport,
                       gbi_transport_stats *stats) {
  const gbi_verbs *t = (const gbi_verbs *)transport;
  *stats = (gbi_transport_stats){load(&t->bytes_sent), load(&t->bytes_received),
                                 load(&t->messages_sent),
                                 load(&t->messages_received)};
}

static void tell(gbi_fact_fn fn, void *arg, const char *name, uint64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%llu", (unsigned long long)value);
  fn(arg, name, text);
}

static void describe(const gbi_transport *transport, gbi_fact_fn fn,
                     void *arg) {
  const gbi_verbs *t = (const gbi_verbs *)transport;
  char text[64];
  fn(arg, "device", t->port.device);
  tell(fn, arg, "port", t->port.port);
  fn(arg, "link_layer", gbi_verbs_layer_name(t->port.link_layer));
  fn(arg, "address",
     gbi_verbs_address_text(t->port.link_layer, t->port.lid, &t->port.gid,
                            text));
  tell(fn, arg, "gid_index", (uint64_t)t->port.gid_index);
  tell(fn, arg, "mtu", UINT64_C(128) << t->port.mtu);
  tell(fn, arg, "protocol", GBI_VERBS_VERSION);
  fn(arg, "gpu_path", "staged: data of GPUs go through host memory");
  for (int i = 0; i < t->params.members_count; i++) {
    const gbi_verbs_link *link = &t->links[i];
    if (!link->qp) continue;
    snprintf(text, sizeof text, "peer %d", link->rank);
    fn(arg, text, link->peer);
  }
  tell(fn, arg, "bytes_sent", load(&t->bytes_sent));
  tell(fn, arg, "bytes_received", load(&t->bytes_received));
  tell(fn, arg, "bytes_written", load(&t->written));
  tell(fn, arg, "registrations", load(&t->registered));
  tell(fn, arg, "registrations_failed", load(&t->not_registered));
}

const gbi_transport_ops gbi_transport_verbs = {
    .abi = GBI_TRANSPORT_ABI,
    .name = "verbs",
    .settings = gbi_verbs_settings,
    .settings_count = GBI_VERBS_SETTINGS,
    .transport_bytes = sizeof(gbi_verbs),
    .endpoint = gbi_verbs_endpoint,
    .usable = usable,
    .open = open_transport,
    .address = gbi_verbs_address,
    .connect = gbi_verbs_connect,
    .post_send = gbi_verbs_post_send,
    .post_recv = gbi_verbs_post_recv,
    .progress = gbi_verbs_progress,
    .wait_fd = wait_fd,
    .link_error = link_error,
    .stop = stop,
    .close = close_transport,
    .describe = describe,
    .stats = read_stats,
};
