#include "transport/tcp/tcp.h"

#include "base/log.h"
#include "base/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

const gbi_setting gbi_tcp_settings[] = {
    [GBI_TCP_SET_STREAMS] =
        {.name = "GPUBRIDGE_MULTITCP_STREAMS",
         .default_value = "",
         .kind = GBI_SETTING_INT,
         .min = 1,
         .max = GBI_TCP_STREAMS_MAX,
         .must_agree = true,
         .help = "connections per pair of ranks; unset: 1 on one host, else "
                 "4, of which a thin long line uses fewer"},
    [GBI_TCP_SET_STREAMS_ALIAS] =
        {.name = "GPUBRIDGE_TCP_STREAMS",
         .default_value = "",
         .kind = GBI_SETTING_INT,
         .min = 1,
         .max = GBI_TCP_STREAMS_MAX,
         .must_agree = true,
         .help = "another name of GPUBRIDGE_MULTITCP_STREAMS"},
    [GBI_TCP_SET_CHUNK] =
        {.name = "GPUBRIDGE_MULTITCP_CHUNK_BYTES",
         .default_value = "",
         .kind = GBI_SETTING_SIZE,
         .min = 4096,
         .max = 1 << 30,
         .multiple = 64,
         .must_agree = true,
         .help = "piece of a message that one connection takes at a time; "
                 "unset: 256K, and whole messages on a lone connection"},
    [GBI_TCP_SET_CHUNK_ALIAS] =
        {.name = "GPUBRIDGE_TCP_CHUNK_BYTES",
         .default_value = "",
         .kind = GBI_SETTING_SIZE,
         .min = 4096,
         .max = 1 << 30,
         .multiple = 64,
         .must_agree = true,
         .help = "another name of GPUBRIDGE_MULTITCP_CHUNK_BYTES"},
    [GBI_TCP_SET_IFNAME] =
        {.name = "GPUBRIDGE_MULTITCP_IFNAME",
         .default_value = "",
         .kind = GBI_SETTING_TEXT,
         .help = "interface whose addresses the others are told; unset: the "
                 "one that leads to the store"},
    [GBI_TCP_SET_IFNAME_ALIAS] =
        {.name = "GPUBRIDGE_TCP_IFNAME",
         .default_value = "",
         .kind = GBI_SETTING_TEXT,
         .help = "another name of GPUBRIDGE_MULTITCP_IFNAME"},
    [GBI_TCP_SET_CONGESTION] =
        {.name = "GPUBRIDGE_TCP_CONGESTION",
         .default_value = "",
         .kind = GBI_SETTING_TEXT,
         .help = "congestion control of the connections; unset: cubic below "
                 "1 ms of round trip, bbr above 5 ms, else the system's"},
};

gb_status gbi_tcp_setting(int which, gbi_value *value, const char **name_p,
                          gb_error *error) {
  *name_p = gbi_tcp_settings[which].name;
  GBI_TRY(gbi_setting_read(&gbi_tcp_settings[which], value, error));
  if (value->is_set) return GB_OK;
  gbi_value alias;
  GBI_TRY(gbi_setting_read(&gbi_tcp_settings[which + 1], &alias, error));
  if (!alias.is_set) return GB_OK;
  *name_p = gbi_tcp_settings[which + 1].name;
  *value = alias;
  return GB_OK;
}

static gb_status read_settings(gbi_tcp *t, gb_error *error) {
  gbi_value value;
  const char *name;
  GBI_TRY(gbi_tcp_setting(GBI_TCP_SET_STREAMS, &value, &name, error));
  t->streams_setting = (int)value.number;
  GBI_TRY(gbi_tcp_setting(GBI_TCP_SET_CHUNK, &value, &name, error));
  t->piece_setting = value.number;
  GBI_TRY(gbi_setting_read(&gbi_tcp_settings[GBI_TCP_SET_CONGESTION], &value,
                           error));
  if (strlen(value.text) >= sizeof t->congestion_setting)
    return gbi_fail(error, GB_ERR_SETTING,
                    "GPUBRIDGE_TCP_CONGESTION is \"%.40s\", but names have at "
                    "most 15 letters",
                    value.text);
  snprintf(t->congestion_setting, sizeof t->congestion_setting, "%s",
           value.text);
  return GB_OK;
}

static bool usable(const gbi_transport_params *params, gb_error *why_not) {
  (void)params;
  gbi_error_clear(why_not);
  return true;
}

static gb_status listen_all(gbi_tcp *t, gb_error *error) {
  gb_status status = GB_OK;
  int good = 0;
  for (int i = 0; i < t->listeners_count; i++) {
    gbi_address bound;
    int fd;
    status = gbi_listen(&t->addresses[i], 4096, &fd, &bound, error);
    /* An address may have gone, or be one that cannot be bound (a tentative
     * IPv6 address): the others are enough. */
    if (status == GB_ERR_CONNECT) continue;
    if (status != GB_OK) break;
    t->listeners[good] = fd;
    t->addresses[good++] = bound;
  }
  t->listeners_count = good;
  if (good && (status == GB_OK || status == GB_ERR_CONNECT)) return GB_OK;
  return status;
}

static gb_status make_watch(gbi_tcp *t, gb_error *error) {
  t->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  t->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  struct epoll_event event = {.events = EPOLLIN};
  if (t->epoll_fd < 0 || t->stop_fd < 0 ||
      epoll_ctl(t->epoll_fd, EPOLL_CTL_ADD, t->stop_fd, &event))
    return gbi_fail(error, GB_ERR_SYSTEM,
                    "could not set up waiting for sockets: %s",
                    strerror(errno));
  return GB_OK;
}

static void close_transport(gbi_transport *transport) {
  gbi_tcp *t = (gbi_tcp *)transport;
  gbi_tcp_close_listeners(t);
  for (int i = 0; i < t->conns_count; i++)
    if (t->conns[i].fd >= 0) gbi_close_connection(t->conns[i].fd);
  if (t->epoll_fd >= 0) close(t->epoll_fd);
  if (t->stop_fd >= 0) close(t->stop_fd);
  free(t->members);
  free(t->links);
  free(t->conns);
  free(t->buffers);
  free(t->scratch);
  free(t);
}

static gb_status copy_params(gbi_tcp *t, const gbi_transport_params *params,
                             gb_error *error) {
  size_t n = (size_t)params->members_count;
  t->params = *params;
  t->members = gbi_malloc(n * sizeof *t->members);
  t->links = gbi_calloc(n, sizeof *t->links);
  /* Touched here, so that no call meets a fresh page. */
  t->scratch =
      gbi_aligned_alloc(64, GBI_TCP_SCRATCH_LEAD + GBI_TCP_SCRATCH_BYTES);
  if (!t->members || !t->links || !t->scratch)
    return gbi_fail(error, GB_ERR_MEMORY, "out of memory for bridge \"tcp\"");
  memset(t->scratch, 0, GBI_TCP_SCRATCH_LEAD + GBI_TCP_SCRATCH_BYTES);
  memcpy(t->members, params->members, n * sizeof *t->members);
  t->params.members = t->members;
  for (size_t i = 0; i < n; i++) {
    gbi_tcp_link *link = &t->links[i];
    link->member = (int)i;
    link->rank = t->members[i].rank;
    link->send_tail = &link->send_head;
    link->recv_tail = &link->recv_head;
  }
  return GB_OK;
}

static gb_status open_transport(const gbi_transport_params *params,
                                gbi_transport **transport_p, gb_error *error) {
  gbi_tcp *t = gbi_calloc(1, sizeof *t);
  if (!t)
    return gbi_fail(error, GB_ERR_MEMORY, "out of memory for bridge \"tcp\"");
  t->base.ops = &gbi_transport_tcp;
  t->epoll_fd = t->stop_fd = -1;
  gb_status status = copy_params(t, params, error);
  if (status == GB_OK) status = read_settings(t, error);
  if (status == GB_OK) status = gbi_tcp_choose_addresses(t, error);
  if (status == GB_OK) {
    status = listen_all(t, error);
  } else {
    t->listeners_count = 0; /* addresses were chosen, nothing is open */
  }
  if (status == GB_OK) status = make_watch(t, error);
  if (status != GB_OK) {
    close_transport(&t->base);
    return status;
  }
  *transport_p = &t->base;
  return GB_OK;
}

static void put_address(gbi_transport *transport, gbi_writer *out) {
  gbi_tcp *t = (gbi_tcp *)transport;
  gbi_put_u8(out, (uint8_t)t->listeners_count);
  for (int i = 0; i < t->listeners_count; i++)
    gbi_put_address(out, &t->addresses[i]);
}

static int wait_fd(gbi_transport *transport) {
  return ((gbi_tcp *)transport)->epoll_fd;
}

static gb_status link_error(const gbi_transport *transport, int member,
                            gb_error *error) {
  const gbi_tcp_link *link = &((const gbi_tcp *)transport)->links[member];
  if (link->status != GB_OK && error) *error = link->error;
  return link->status;
}

static void stop(gbi_transport *transport) {
  gbi_tcp *t = (gbi_tcp *)transport;
  atomic_store_explicit(&t->stopped, true, memory_order_release);
  uint64_t one = 1;
  ssize_t n = write(t->stop_fd, &one, sizeof one);
  (void)n; /* full: it is readable already */
}

static void read_stats(const gbi_transport *transport,
                       gbi_transport_stats *stats) {
  const gbi_tcp *t = (const gbi_tcp *)transport;
  *stats = (gbi_transport_stats){
      atomic_load_explicit(&t->bytes_sent, memory_order_relaxed),
      atomic_load_explicit(&t->bytes_received, memory_order_relaxed),
      atomic_load_explicit(&t->messages_sent, memory_order_relaxed),
      atomic_load_explicit(&t->messages_received, memory_order_relaxed)};
}

static void describe_links(const gbi_tcp *t, gbi_fact_fn fn, void *arg) {
  char name[32], value[384];
  for (int i = 0; i < t->params.members_count; i++) {
    const gbi_tcp_link *link = &t->links[i];
    if (!link->streams) continue;
    snprintf(name, sizeof name, "peer %d", link->rank);
    snprintf(value, sizeof value,
             "%s from %s streams %d active %d chunk_bytes %zu congestion %s "
             "rtt_us %u",
             link->address, link->from, link->streams, link->active,
             link->piece_bytes, link->congestion, link->rtt_us);
    fn(arg, name, value);
  }
}

static void describe(const gbi_transport *transport, gbi_fact_fn fn,
                     void *arg) {
  const gbi_tcp *t = (const gbi_tcp *)transport;
  char value[GBI_TCP_CANDIDATES_MAX * GBI_ADDRESS_TEXT];
  char one[GBI_ADDRESS_TEXT];
  gbi_text text;
  gbi_text_init(&text, value, sizeof value);
  for (int i = 0; i < t->listeners_count; i++)
    gbi_text_add(&text, "%s%s", i ? ", " : "",
                 gbi_address_text(&t->addresses[i], one));
  fn(arg, "address", value);
  fn(arg, "address_chosen_by", t->chosen_by);
  describe_links(t, fn, arg);
  gbi_transport_stats stats;
  read_stats(transport, &stats);
  snprintf(value, sizeof value, "%llu", (unsigned long long)stats.bytes_sent);
  fn(arg, "bytes_sent", value);
  snprintf(value, sizeof value, "%llu",
           (unsigned long long)stats.bytes_received);
  fn(arg, "bytes_received", value);
}

const gbi_transport_ops gbi_transport_tcp = {
    .abi = GBI_TRANSPORT_ABI,
    .name = "tcp",
    .settings = gbi_tcp_settings,
    .settings_count = GBI_TCP_SETTINGS,
    .transport_bytes = sizeof(gbi_tcp),
    .usable = usable,
    .open = open_transport,
    .address = put_address,
    .connect = gbi_tcp_connect,
    .post_send = gbi_tcp_post_send,
    .post_recv = gbi_tcp_post_recv,
    .progress = gbi_tcp_progress,
    .wait_fd = wait_fd,
    .link_error = link_error,
    .stop = stop,
    .close = close_transport,
    .describe = describe,
    .stats = read_stats,
};
