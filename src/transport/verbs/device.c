#include "transport/verbs/device.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES_MAX = 64, GIDS_MAX = 256 };

const gbi_setting gbi_verbs_settings[] = {
    [GBI_VERBS_SET_DEVICE] = {.name = "GPUBRIDGE_VERBS_DEVICE",
                              .default_value = "",
                              .kind = GBI_SETTING_TEXT,
                              .help = "RDMA device, as ibv_devices lists them; "
                                      "unset: the first with an active port"},
    [GBI_VERBS_SET_PORT] = {.name = "GPUBRIDGE_VERBS_PORT",
                            .default_value = "0",
                            .kind = GBI_SETTING_INT,
                            .max = 255,
                            .help = "its port; 0: the first active one"},
    [GBI_VERBS_SET_GID_INDEX] =
        {.name = "GPUBRIDGE_VERBS_GID_INDEX",
         .default_value = "-1",
         .kind = GBI_SETTING_INT,
         .min = -1,
         .max = 255,
         .help = "its GID; -1: RoCE v2 with an IPv4 address before others"},
    [GBI_VERBS_SET_GPU_PATH] =
        {.name = "GPUBRIDGE_VERBS_GPU_PATH",
         .default_value = "auto",
         .kind = GBI_SETTING_CHOICE,
         .choices = "auto|staged|direct",
         .help = "how data of GPUs reach the network card: staged through host "
                 "memory, or direct, which this version cannot"},
    [GBI_VERBS_SET_TIMEOUT] =
        {.name = "GPUBRIDGE_VERBS_TIMEOUT",
         .default_value = "17",
         .kind = GBI_SETTING_INT,
         .min = 8,
         .max = 24,
         .help =
             "how long an adapter waits for an acknowledgement, as 4.096 us "
             "times 2 to this power (17: half a second)"},
    [GBI_VERBS_SET_RETRIES] =
        {.name = "GPUBRIDGE_VERBS_RETRY_COUNT",
         .default_value = "6",
         .kind = GBI_SETTING_INT,
         .min = 1,
         .max = 7,
         .help = "how often it sends again before it gives the peer up"},
    [GBI_VERBS_SET_REGISTER] =
        {.name = "GPUBRIDGE_VERBS_REGISTER_BYTES",
         .default_value = "256K",
         .kind = GBI_SETTING_SIZE,
         .min = 65536,
         .help = "messages from here on go between the tensors themselves, "
                 "registered for that message; smaller ones through buffers"},
    [GBI_VERBS_SET_LIB] = {.name = "GPUBRIDGE_VERBS_LIB",
                           .default_value = "",
                           .kind = GBI_SETTING_TEXT,
                           .help = "file of libibverbs; unset: the system's"},
};

const char *gbi_verbs_layer_name(uint8_t link_layer) {
  return link_layer == IBV_LINK_LAYER_ETHERNET ? "RoCE" : "InfiniBand";
}

static bool maps_ipv4(const union ibv_gid *gid) {
  static const uint8_t lead[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return !memcmp(gid->raw, lead, sizeof lead);
}

const char *gbi_verbs_address_text(uint8_t link_layer, uint16_t lid,
                                   const union ibv_gid *gid, char *buffer) {
  if (link_layer != IBV_LINK_LAYER_ETHERNET)
    snprintf(buffer, 64, "LID %u", lid);
  else if (maps_ipv4(gid))
    inet_ntop(AF_INET, gid->raw + 12, buffer, 64);
  else
    inet_ntop(AF_INET6, gid->raw, buffer, 64);
  return buffer;
}

/* ---- one port ---- */

typedef struct search {
  const gbi_verbs_library *lib;
  gbi_value device, port, gid;
  gbi_text seen; /* devices, or why their ports do not do */
} search;

static const char *state_name(int state) {
  switch (state) {
    case IBV_PORT_DOWN: return "down";
    case IBV_PORT_INIT: return "initialising";
    case IBV_PORT_ARMED: return "armed";
    case IBV_PORT_ACTIVE: return "active";
    default: return "in an unknown state";
  }
}

static bool is_roce_v2(const char *device, int port, int index) {
  char path[256], text[32] = "";
  snprintf(path, sizeof path,
           "/sys/class/infiniband/%s/ports/%d/gid_attrs/types/%d", device, port,
           index);
  FILE *file = fopen(path, "re");
  if (!file) return false;
  if (!fgets(text, sizeof text, file)) text[0] = 0;
  fclose(file);
  return strstr(text, "v2");
}

static bool is_zero(const union ibv_gid *gid) {
  static const union ibv_gid none;
  return !memcmp(gid, &none, sizeof none);
}

static int gid_rank(const char *device, int port, int index,
                    const union ibv_gid *gid) {
  if (gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80) return 1;
  if (!is_roce_v2(device, port, index)) return 2;
  return maps_ipv4(gid) ? 4 : 3;
}

/* The GID that was asked for. */
static gb_status take_gid(const search *s, gbi_verbs_port *p, int length,
                          gb_error *error) {
  int count = 0;
  union ibv_gid gid;
  for (int i = 0; i < GBI_MIN(length, GIDS_MAX); i++)
    if (!s->lib->ibv_query_gid(p->context, p->port, i, &gid) && !is_zero(&gid))
      count++;
  p->gid_index = (int)s->gid.number;
  if (p->gid_index < length &&
      !s->lib->ibv_query_gid(p->context, p->port, p->gid_index, &p->gid) &&
      !is_zero(&p->gid))
    return GB_OK;
  return gbi_fail(
      error, GB_ERR_SETTING,
      "GPUBRIDGE_VERBS_GID_INDEX is %d, but port %d of the RDMA "
      "device %s has %d GIDs, and none there. `ibv_devinfo -v -d %s` "
      "lists them; unset it to have one chosen",
      p->gid_index, p->port, p->device, count, p->device);
}

static bool choose_gid(const search *s, gbi_verbs_port *p, int length) {
  int best = 0;
  union ibv_gid gid;
  for (int i = 0; i < GBI_MIN(length, GIDS_MAX); i++) {
    if (s->lib->ibv_query_gid(p->context, p->port, i, &gid) || is_zero(&gid))
      continue;
    int rank = gid_rank(p->device, p->port, i, &gid);
    if (rank <= best) continue;
    best = rank;
    p->gid = gid;
    p->gid_index = i;
  }
  return best;
}

/* *good_p: this port does. An error only for a setting that cannot be. */
static gb_status look_at_port(search *s, gbi_verbs_port *p, bool *good_p,
                              gb_error *error) {
  struct ibv_port_attr attr;
  memset(&attr, 0, sizeof attr);
  *good_p = false;
  int code = s->lib->ibv_query_port(p->context, p->port, &attr);
  if (code) {
    gbi_text_add(&s->seen, "%s port %d (%s) ", p->device, p->port,
                 strerror(code > 0 ? code : errno));
    return GB_OK;
  }
  if (attr.state != IBV_PORT_ACTIVE) {
    gbi_text_add(&s->seen, "%s port %d (%s) ", p->device, p->port,
                 state_name(attr.state));
    return GB_OK;
  }
  p->link_layer = attr.link_layer == IBV_LINK_LAYER_ETHERNET
                      ? IBV_LINK_LAYER_ETHERNET
                      : IBV_LINK_LAYER_INFINIBAND;
  p->lid = attr.lid;
  p->mtu = attr.active_mtu;
  p->message_max = attr.max_msg_sz;
  bool ethernet = p->link_layer == IBV_LINK_LAYER_ETHERNET;
  if (s->gid.number >= 0) {
    GBI_TRY(take_gid(s, p, attr.gid_tbl_len, error));
    *good_p = ethernet || p->lid;
  } else {
    *good_p = choose_gid(s, p, attr.gid_tbl_len) || !ethernet;
    if (!ethernet) *good_p = p->lid;
  }
  if (!*good_p)
    gbi_text_add(&s->seen, "%s port %d (no address) ", p->device, p->port);
  return GB_OK;
}

static gb_status look_at_device(search *s, struct ibv_device *device,
                                gbi_verbs_port *p, bool *good_p,
                                gb_error *error) {
  *good_p = false;
  if (device->node_type == IBV_NODE_RNIC) {
    gbi_text_add(&s->seen, "%s (iWARP, which gpubridge does not speak) ",
                 p->device);
    return GB_OK;
  }
  errno = 0;
  p->context = s->lib->ibv_open_device(device);
  if (!p->context) {
    gbi_text_add(&s->seen,
                 "%s (cannot be opened: %s; may this user read and write "
                 "/dev/infiniband/uverbs*?) ",
                 p->device, strerror(errno ? errno : EIO));
    return GB_OK;
  }
  struct ibv_device_attr attr;
  gb_status status = GB_OK;
  if (s->lib->ibv_query_device(p->context, &attr)) attr.phys_port_cnt = 1;
  int last = attr.phys_port_cnt, first = 1;
  if (s->port.number) first = last = (int)s->port.number;
  if (first > attr.phys_port_cnt && !s->device.text[0])
    gbi_text_add(&s->seen, "%s (%d ports) ", p->device, attr.phys_port_cnt);
  else if (first > attr.phys_port_cnt)
    status = gbi_fail(error, GB_ERR_SETTING,
                      "GPUBRIDGE_VERBS_PORT is %d, but the RDMA device %s has "
                      "%d. `ibv_devinfo -d %s` shows them",
                      first, p->device, attr.phys_port_cnt, p->device);
  last = GBI_MIN(last, attr.phys_port_cnt);
  for (int port = first; port <= last && status == GB_OK && !*good_p; port++) {
    p->port = (uint8_t)port;
    status = look_at_port(s, p, good_p, error);
  }
  if (*good_p && status == GB_OK) return GB_OK;
  s->lib->ibv_close_device(p->context);
  p->context = NULL;
  return status;
}

/* ---- all of them ---- */

static int by_name(const void *a, const void *b) {
  return strcmp((*(struct ibv_device *const *)a)->name,
                (*(struct ibv_device *const *)b)->name);
}

static gb_status none_good(const search *s, int count, bool named,
                           gb_error *error) {
  if (!count)
    return gbi_fail(error, GB_ERR_UNSUPPORTED,
                    "no RDMA device is on this machine: `ibv_devices` lists "
                    "none");
  if (s->device.text[0] && !named)
    return gbi_fail(error, GB_ERR_SETTING,
                    "GPUBRIDGE_VERBS_DEVICE is \"%.40s\", but this machine's "
                    "RDMA devices are %s(`ibv_devices` lists them)",
                    s->device.text, s->seen.at);
  return gbi_fail(error, GB_ERR_UNSUPPORTED,
                  "no port of an RDMA device can be used: %s(`ibv_devinfo` "
                  "shows them)",
                  s->seen.at);
}

static gb_status search_devices(search *s, struct ibv_device **list, int count,
                                gbi_verbs_port *p, gb_error *error) {
  bool good = false, named = false;
  for (int i = 0; i < count && !good; i++) {
    snprintf(p->device, sizeof p->device, "%s", list[i]->name);
    if (s->device.text[0] && strcmp(p->device, s->device.text) != 0) continue;
    named = true;
    GBI_TRY(look_at_device(s, list[i], p, &good, error));
  }
  if (good) return GB_OK;
  if (s->device.text[0] && !named)
    for (int i = 0; i < count; i++)
      gbi_text_add(&s->seen, "%s ", list[i]->name);
  return none_good(s, count, named, error);
}

gb_status gbi_verbs_port_open(const gbi_verbs_library *lib,
                              gbi_verbs_port *port, gb_error *error) {
  char seen[512];
  search s = {.lib = lib};
  gbi_text_init(&s.seen, seen, sizeof seen);
  memset(port, 0, sizeof *port);
  GBI_TRY(gbi_setting_read(&gbi_verbs_settings[GBI_VERBS_SET_DEVICE], &s.device,
                           error));
  GBI_TRY(gbi_setting_read(&gbi_verbs_settings[GBI_VERBS_SET_PORT], &s.port,
                           error));
  GBI_TRY(gbi_setting_read(&gbi_verbs_settings[GBI_VERBS_SET_GID_INDEX], &s.gid,
                           error));
  int count = 0;
  errno = 0;
  struct ibv_device **list = lib->ibv_get_device_list(&count);
  if (!list) {
    if (errno && errno != ENOSYS)
      return gbi_fail(error, GB_ERR_SYSTEM,
                      "RDMA devices could not be listed: %s", strerror(errno));
    return none_good(&s, 0, false, error);
  }
  qsort(list, (size_t)count, sizeof *list, by_name);
  gb_status status = search_devices(&s, list, count, port, error);
  lib->ibv_free_device_list(list);
  return status;
}

void gbi_verbs_endpoint(gbi_endpoint *out) {
  gbi_value path;
  gbi_verbs_port port;
  gb_error error;
  memset(out, 0, sizeof *out);
  out->asked = true;
  (void)gbi_setting_read(&gbi_verbs_settings[GBI_VERBS_SET_LIB], &path, NULL);
  const gbi_verbs_library *lib = gbi_verbs_library_open(path.text, &error);
  if (!lib || gbi_verbs_port_open(lib, &port, &error) != GB_OK) {
    snprintf(out->reason, sizeof out->reason, "%.255s", error.text);
    return;
  }
  lib->ibv_close_device(port.context);
  out->usable = true;
  out->port = port.port;
  snprintf(out->device, sizeof out->device, "%s", port.device);
  snprintf(out->link_layer, sizeof out->link_layer, "%s",
           gbi_verbs_layer_name(port.link_layer));
  gbi_verbs_address_text(port.link_layer, port.lid, &port.gid, out->address);
}
