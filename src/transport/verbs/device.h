/* transport/verbs/device: which device, port and GID this process uses.
 *
 * Devices in the order of their names, ports ascending; the first port that is
 * active and has an address, unless the settings name them. An InfiniBand
 * port's address is its LID. An Ethernet port's is a GID: of RoCE v2 that maps
 * an IPv4 address, else of RoCE v2, else any; link-local ones last; of equals
 * the lowest index. */
#ifndef GBI_TRANSPORT_VERBS_DEVICE_H
#define GBI_TRANSPORT_VERBS_DEVICE_H

#include "transport/transport.h"
#include "transport/verbs/library.h"

enum {
  GBI_VERBS_SET_DEVICE,
  GBI_VERBS_SET_PORT,
  GBI_VERBS_SET_GID_INDEX,
  GBI_VERBS_SET_GPU_PATH,
  GBI_VERBS_SET_TIMEOUT,
  GBI_VERBS_SET_RETRIES,
  GBI_VERBS_SET_REGISTER,
  GBI_VERBS_SET_LIB,
  GBI_VERBS_SETTINGS
};
extern const gbi_setting gbi_verbs_settings[];

typedef struct gbi_verbs_port {
  struct ibv_context *context;
  char device[64];
  uint8_t port, link_layer; /* IBV_LINK_LAYER_... */
  uint16_t lid;
  int gid_index, mtu;
  uint32_t message_max;
  union ibv_gid gid;
} gbi_verbs_port;

/* Opens the device: close with ibv_close_device. UNSUPPORTED, SETTING or SYSTEM
 * with what was seen and how to look at it. */
gb_status gbi_verbs_port_open(const gbi_verbs_library *lib,
                              gbi_verbs_port *port, gb_error *error);
/* "InfiniBand", "RoCE". */
const char *gbi_verbs_layer_name(uint8_t link_layer);
/* "10.0.0.1", "fe80::1" or "LID 7"; buffer: 64 bytes. */
const char *gbi_verbs_address_text(uint8_t link_layer, uint16_t lid,
                                   const union ibv_gid *gid, char *buffer);
/* gbi_transport_ops.endpoint: opens the device for a moment. */
void gbi_verbs_endpoint(gbi_endpoint *out);

#endif
