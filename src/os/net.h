/* os: sockets, interfaces, bells, shared memory between processes of a host.
 *
 * May call base. Must not know ranks' roles, collectives or the job's store.
 *
 * This header: addresses, listening, connecting. Every function is
 * thread-safe; those with a deadline block at most until it. Sockets are
 * CLOEXEC and never raise SIGPIPE (send with MSG_NOSIGNAL). */
#ifndef GBI_OS_NET_H
#define GBI_OS_NET_H

#include "base/base.h"
#include "base/config.h"
#include "base/wire.h"

#include <sys/socket.h>

#define GBI_ADDRESSES_MAX 16
#define GBI_ADDRESS_TEXT 80

typedef struct gbi_address {
  struct sockaddr_storage sa;
  socklen_t bytes;
} gbi_address;

/* "10.0.0.7:41022", "[::1]:41022". Returns buffer. */
const char *gbi_address_text(const gbi_address *address,
                             char buffer[GBI_ADDRESS_TEXT]);
bool gbi_address_is_loopback(const gbi_address *address);
void gbi_put_address(gbi_writer *writer, const gbi_address *address);
void gbi_get_address(gbi_reader *reader, gbi_address *address);
void gbi_address_set_port(gbi_address *address, int port);
int gbi_address_port(const gbi_address *address);

/* All addresses of a name, both families, in the resolver's order. Retries a
 * name that is not known yet until the deadline. CONNECT names the host. */
gb_status gbi_resolve(const char *host, int port, uint64_t deadline_ns,
                      gbi_address *list, int *count_p, gb_error *error);
/* "host:port", "[v6]:port"; a bare v6 with a port is refused with a hint. */
gb_status gbi_split_host_port(const char *text, char *host, size_t host_bytes,
                              int *port_p, gb_error *error);

/* Addresses of an interface by name. ARGUMENT lists the interfaces that exist
 * and, when `name` is an address or a pattern, says that a name is wanted. */
gb_status gbi_interface_addresses(const char *variable, const char *name,
                                  gbi_address *list, int *count_p,
                                  gb_error *error);
/* Every address of this machine that others may reach: interfaces that are up,
 * IPv4 first, neither loopback nor IPv6 link-local. May be none. */
gb_status gbi_local_addresses(gbi_address *list, int *count_p,
                              gb_error *error);
/* The local address from which `peer` is reached (no packet is sent). */
gb_status gbi_route_source(const gbi_address *peer, gbi_address *local,
                           gb_error *error);

/* A non-blocking listening socket. Port 0: taken from GPUBRIDGE_PORT_RANGE
 * ("20000-20100") when set, else the kernel's choice. *bound_p has the port. */
gb_status gbi_listen(const gbi_address *address, int backlog, int *fd_p,
                     gbi_address *bound_p, gb_error *error);
/* A connected non-blocking socket with TCP_NODELAY. One attempt. */
gb_status gbi_connect(const gbi_address *address, uint64_t deadline_ns,
                      int *fd_p, gb_error *error);
/* TCP_NODELAY, keep-alive and TCP_USER_TIMEOUT such that a silent peer is
 * noticed within timeout_ms. Never fails: telemetry may read it back. */
void gbi_socket_tune(int fd, uint64_t timeout_ms);
/* Bytes per second that a TCP connection delivered of late, as the kernel
 * counts them; 0: nothing yet, or an old kernel. */
uint64_t gbi_socket_rate(int fd);
/* Adds what a TCP connection has delivered since it began (also behind a hole),
 * and what it sent again, in bytes of full frames; nothing on an old kernel. */
void gbi_socket_delivered(int fd, uint64_t *delivered, uint64_t *again);
/* Next accepted connection, non-blocking, or -1. */
int gbi_accept(int listen_fd);
/* Ends the connection and closes it. Closing alone shows the peer no end while
 * somebody else's child, made without fork handlers, holds a copy. */
void gbi_close_connection(int fd);
/* Takes it out of `epoll_fd` first, which would go on reporting such a copy. */
void gbi_close_watched(int epoll_fd, int fd);
/* Blocks until `fd` has one of `events` (poll bits) or the deadline; false when
 * the deadline passed. */
bool gbi_poll_one(int fd, short events, uint64_t deadline_ns);

extern const gbi_setting gbi_net_settings[];
extern const int gbi_net_settings_count;

#endif
