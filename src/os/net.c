#include "os/net.h"

#include "base/config.h"
#include "base/fault.h"
#include "os/fork.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

const gbi_setting gbi_net_settings[] = {
    {.name = "GPUBRIDGE_PORT_RANGE",
     .default_value = "",
     .kind = GBI_SETTING_TEXT,
     .help = "ports that listening sockets may use, \"20000-20100\"; unset: "
             "any free port"},
};
const int gbi_net_settings_count = GBI_COUNT(gbi_net_settings);

const char *gbi_address_text(const gbi_address *address,
                             char buffer[GBI_ADDRESS_TEXT]) {
  char host[INET6_ADDRSTRLEN] = "?";
  if (address->sa.ss_family == AF_INET6) {
    const struct sockaddr_in6 *in6 = (const void *)&address->sa;
    inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof host);
    snprintf(buffer, GBI_ADDRESS_TEXT, "[%s]:%d", host, ntohs(in6->sin6_port));
  } else {
    const struct sockaddr_in *in = (const void *)&address->sa;
    inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
    snprintf(buffer, GBI_ADDRESS_TEXT, "%s:%d", host, ntohs(in->sin_port));
  }
  return buffer;
}

bool gbi_address_is_loopback(const gbi_address *address) {
  if (address->sa.ss_family == AF_INET6) {
    const struct sockaddr_in6 *in6 = (const void *)&address->sa;
    if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr))
      return in6->sin6_addr.s6_addr[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
  }
  const struct sockaddr_in *in = (const void *)&address->sa;
  return (ntohl(in->sin_addr.s_addr) >> 24) == 127;
}

void gbi_address_set_port(gbi_address *address, int port) {
  if (address->sa.ss_family == AF_INET6)
    ((struct sockaddr_in6 *)&address->sa)->sin6_port = htons((uint16_t)port);
  else
    ((struct sockaddr_in *)&address->sa)->sin_port = htons((uint16_t)port);
}

int gbi_address_port(const gbi_address *address) {
  if (address->sa.ss_family == AF_INET6)
    return ntohs(((const struct sockaddr_in6 *)&address->sa)->sin6_port);
  return ntohs(((const struct sockaddr_in *)&address->sa)->sin_port);
}

/* family u8 (4 or 6), port u16, scope u32, 16 address bytes */
void gbi_put_address(gbi_writer *writer, const gbi_address *address) {
  uint8_t raw[16] = {0};
  if (address->sa.ss_family == AF_INET6) {
    const struct sockaddr_in6 *in6 = (const void *)&address->sa;
    memcpy(raw, &in6->sin6_addr, 16);
    gbi_put_u8(writer, 6);
    gbi_put_u16(writer, ntohs(in6->sin6_port));
    gbi_put_u32(writer, in6->sin6_scope_id);
  } else {
    const struct sockaddr_in *in = (const void *)&address->sa;
    memcpy(raw, &in->sin_addr, 4);
    gbi_put_u8(writer, 4);
    gbi_put_u16(writer, ntohs(in->sin_port));
    gbi_put_u32(writer, 0);
  }
  gbi_put_raw(writer, raw, sizeof raw);
}

void gbi_get_address(gbi_reader *reader, gbi_address *address) {
  uint8_t family = gbi_get_u8(reader);
  uint16_t port = gbi_get_u16(reader);
  uint32_t scope = gbi_get_u32(reader);
  const uint8_t *raw = gbi_get_raw(reader, 16);
  memset(address, 0, sizeof *address);
  if (!raw || (family != 4 && family != 6)) {
    reader->bad = true;
    return;
  }
  if (family == 6) {
    struct sockaddr_in6 *in6 = (void *)&address->sa;
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(port);
    in6->sin6_scope_id = scope;
    memcpy(&in6->sin6_addr, raw, 16);
    address->bytes = sizeof *in6;
  } else {
    struct sockaddr_in *in = (void *)&address->sa;
    in->sin_family = AF_INET;
    in->sin_port = htons(port);
    memcpy(&in->sin_addr, raw, 4);
    address->bytes = sizeof *in;
  }
}

static void add_address(gbi_address *list, int *count,
                        const struct sockaddr *sa) {
  if (*count >= GBI_ADDRESSES_MAX) return;
  socklen_t bytes;
  if (sa->sa_family == AF_INET)
    bytes = sizeof(struct sockaddr_in);
  else if (sa->sa_family == AF_INET6)
    bytes = sizeof(struct sockaddr_in6);
  else
    return;
  gbi_address *at = &list[(*count)++];
  memset(at, 0, sizeof *at);
  memcpy(&at->sa, sa, bytes);
  at->bytes = bytes;
}

gb_status gbi_resolve(const char *host, int port, uint64_t deadline_ns,
                      gbi_address *list, int *count_p, gb_error *error) {
  char service[16];
  snprintf(service, sizeof service, "%d", port);
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                           .ai_flags = AI_NUMERICSERV};
  int code;
  for (;;) {
    struct addrinfo *found = NULL;
    code = getaddrinfo(host, service, &hints, &found);
    if (code == 0) {
      *count_p = 0;
      for (struct addrinfo *at = found; at; at = at->ai_next)
        add_address(list, count_p, at->ai_addr);
      freeaddrinfo(found);
      if (*count_p) return GB_OK;
    }
    if (gbi_deadline_passed(deadline_ns)) break;
    struct timespec nap = {0, 200 * 1000 * 1000};
    nanosleep(&nap, NULL);
  }
  return gbi_fail(error, GB_ERR_CONNECT,
                  "could not resolve the host name \"%s\": %s", host,
                  code ? gai_strerror(code) : "it has no address");
}

gb_status gbi_split_host_port(const char *text, char *host, size_t host_bytes,
                              int *port_p, gb_error *error) {
  const char *start = text, *end, *port;
  if (*text == '[') {
    start = text + 1;
    end = strchr(start, ']');
    if (!end || end[1] != ':')
      return gbi_fail(error, GB_ERR_ARGUMENT,
                      "\"%s\" is not an address: an IPv6 address with a port "
                      "is written [address]:port",
                      text);
    port = end + 2;
  } else {
    end = strrchr(text, ':');
    if (!end)
      return gbi_fail(error, GB_ERR_ARGUMENT,
                      "\"%s\" has no port: host:port is wanted", text);
    if (memchr(text, ':', (size_t)(end - text)))
      return gbi_fail(error, GB_ERR_ARGUMENT,
                      "\"%s\" is ambiguous: an IPv6 address with a port is "
                      "written in brackets, like [::1]:29500",
                      text);
    port = end + 1;
  }
  char *stop;
  errno = 0;
  long number = strtol(port, &stop, 10);
  if (errno || stop == port || *stop || number < 1 || number > 65535)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "\"%s\" has the bad port \"%s\": 1 to 65535 is wanted",
                    text, port);
  if (end == start || (size_t)(end - start) >= host_bytes)
    return gbi_fail(error, GB_ERR_ARGUMENT, "\"%s\" has no usable host name",
                    text);
  memcpy(host, start, (size_t)(end - start));
  host[end - start] = 0;
  *port_p = (int)number;
  return GB_OK;
}

static gb_status refuse_interface(const char *variable, const char *name,
                                  struct ifaddrs *all, gb_error *error) {
  char known[512];
  gbi_text text;
  gbi_text_init(&text, known, sizeof known);
  for (struct ifaddrs *at = all; at; at = at->ifa_next) {
    bool seen = false;
    for (struct ifaddrs *b = all; b != at; b = b->ifa_next)
      if (!strcmp(b->ifa_name, at->ifa_name)) seen = true;
    if (!seen)
      gbi_text_add(&text, "%s%s", text.used ? ", " : "", at->ifa_name);
  }
  unsigned char raw[16];
  bool address = inet_pton(AF_INET, name, raw) == 1 ||
                 inet_pton(AF_INET6, name, raw) == 1;
  bool pattern = strpbrk(name, "^,=*") != NULL;
  return gbi_fail(error, GB_ERR_SETTING,
                  "%s is \"%s\", but %s. This machine has the interfaces %s",
                  variable, name,
                  address   ? "the name of an interface is wanted, not an "
                              "address"
                  : pattern ? "one interface name is wanted, not a pattern or "
                              "a list"
                            : "no such interface exists",
                  known);
}

gb_status gbi_interface_addresses(const char *variable, const char *name,
                                  gbi_address *list, int *count_p,
                                  gb_error *error) {
  struct ifaddrs *all = NULL;
  if (getifaddrs(&all))
    return gbi_fail(error, GB_ERR_SYSTEM, "could not list interfaces: %s",
                    strerror(errno));
  *count_p = 0;
  bool exists = false;
  for (struct ifaddrs *at = all; at; at = at->ifa_next) {
    if (strcmp(at->ifa_name, name)) continue;
    exists = true;
    if (!at->ifa_addr || !(at->ifa_flags & IFF_UP)) continue;
    if (at->ifa_addr->sa_family == AF_INET)
      add_address(list, count_p, at->ifa_addr);
  }
  /* Link-local addresses are good on one cable only: a last resort. */
  for (int local = 0; local < 2; local++)
    for (struct ifaddrs *at = all; at; at = at->ifa_next) {
      if (strcmp(at->ifa_name, name) || !at->ifa_addr) continue;
      if (at->ifa_addr->sa_family != AF_INET6 || !(at->ifa_flags & IFF_UP))
        continue;
      const struct sockaddr_in6 *in6 = (const void *)at->ifa_addr;
      bool is_local = IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr);
      if (is_local == (local == 1) && !(local && *count_p))
        add_address(list, count_p, at->ifa_addr);
    }
  gb_status status = GB_OK;
  if (!exists)
    status = refuse_interface(variable, name, all, error);
  else if (!*count_p)
    status = gbi_fail(error, GB_ERR_SETTING,
                      "%s is \"%s\", but that interface is down or has no "
                      "address",
                      variable, name);
  freeifaddrs(all);
  return status;
}

static void add_family(const struct ifaddrs *all, int family,
                       gbi_address *list, int *count) {
  for (const struct ifaddrs *at = all; at; at = at->ifa_next) {
    if (!at->ifa_addr || at->ifa_addr->sa_family != family) continue;
    if (!(at->ifa_flags & IFF_UP) || (at->ifa_flags & IFF_LOOPBACK)) continue;
    const struct sockaddr_in6 *in6 = (const void *)at->ifa_addr;
    if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr)) continue;
    add_address(list, count, at->ifa_addr);
  }
}

gb_status gbi_local_addresses(gbi_address *list, int *count_p,
                              gb_error *error) {
  struct ifaddrs *all = NULL;
  if (getifaddrs(&all))
    return gbi_fail(error, GB_ERR_SYSTEM, "could not list interfaces: %s",
                    strerror(errno));
  *count_p = 0;
  add_family(all, AF_INET, list, count_p);
  add_family(all, AF_INET6, list, count_p);
  freeifaddrs(all);
  return GB_OK;
}

gb_status gbi_route_source(const gbi_address *peer, gbi_address *local,
                           gb_error *error) {
  char text[GBI_ADDRESS_TEXT];
  int fd = socket(peer->sa.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return gbi_fail(error, GB_ERR_SYSTEM, "could not open a socket: %s",
                    strerror(errno));
  gbi_address to = *peer;
  gbi_address_set_port(&to, 9); /* any: a datagram connect sends nothing */
  memset(local, 0, sizeof *local);
  local->bytes = sizeof local->sa;
  gb_status status = GB_OK;
  if (connect(fd, (const void *)&to.sa, to.bytes) ||
      getsockname(fd, (void *)&local->sa, &local->bytes))
    status = gbi_fail(error, GB_ERR_CONNECT, "no route to %s: %s",
                      gbi_address_text(peer, text), strerror(errno));
  close(fd);
  gbi_address_set_port(local, 0);
  return status;
}

static gb_status port_range(int *low_p, int *high_p, gb_error *error) {
  gbi_value value;
  GBI_TRY(gbi_setting_read(&gbi_net_settings[0], &value, error));
  *low_p = *high_p = 0;
  if (!value.text[0]) return GB_OK;
  char extra;
  if (sscanf(value.text, "%d-%d%c", low_p, high_p, &extra) != 2 ||
      *low_p < 1 || *high_p > 65535 || *low_p > *high_p)
    return gbi_fail(error, GB_ERR_SETTING,
                    "GPUBRIDGE_PORT_RANGE is \"%s\", but must be two ports, "
                    "like 20000-20100",
                    value.text);
  return GB_OK;
}

static int bind_in_range(int fd, gbi_address *address, int low, int high) {
  /* Ranks of one host start at different places, so that they do not all try
   * the same ports first. */
  int span = high - low + 1, start = (int)(getpid() % span);
  for (int i = 0; i < span; i++) {
    gbi_address_set_port(address, low + (start + i) % span);
    if (!bind(fd, (const void *)&address->sa, address->bytes)) return 0;
    if (errno != EADDRINUSE) break;
  }
  return -1;
}

gb_status gbi_listen(const gbi_address *wanted, int backlog, int *fd_p,
                     gbi_address *bound_p, gb_error *error) {
  char text[GBI_ADDRESS_TEXT];
  gbi_address address = *wanted;
  const struct sockaddr_in *in = (const void *)&address.sa;
  const struct sockaddr_in6 *in6 = (const void *)&address.sa;
  int port = ntohs(address.sa.ss_family == AF_INET6 ? in6->sin6_port
                                                    : in->sin_port);
  int low = 0, high = 0;
  if (!port) GBI_TRY(port_range(&low, &high, error));
  int fd = socket(address.sa.ss_family,
                  SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return gbi_fail(error, GB_ERR_SYSTEM, "could not open a socket: %s%s",
                    strerror(errno),
                    errno == EMFILE
                        ? ". The limit of open files is reached (ulimit -n)"
                        : "");
  int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  int failed = low ? bind_in_range(fd, &address, low, high)
                   : bind(fd, (const void *)&address.sa, address.bytes);
  if (GBI_FAULT("sock.listen") == GBI_FAULT_FAIL) {
    errno = EADDRINUSE;
    failed = -1;
  }
  if (failed || listen(fd, backlog)) {
    gb_status status = gbi_fail(
        error, errno == EADDRNOTAVAIL ? GB_ERR_CONNECT : GB_ERR_SYSTEM,
        "could not listen on %s%s: %s", gbi_address_text(&address, text),
        low ? " or another port of GPUBRIDGE_PORT_RANGE" : "",
        errno == EADDRINUSE      ? "the port is in use by another program"
        : errno == EADDRNOTAVAIL ? "the address is not one of this machine"
                                 : strerror(errno));
    close(fd);
    return status;
  }
  *bound_p = address;
  bound_p->bytes = sizeof bound_p->sa;
  getsockname(fd, (void *)&bound_p->sa, &bound_p->bytes);
  *fd_p = fd;
  return GB_OK;
}

static gb_status wait_connected(int fd, uint64_t deadline_ns, int *errno_p) {
  if (!gbi_poll_one(fd, POLLOUT, deadline_ns)) {
    *errno_p = ETIMEDOUT;
    return GB_ERR_CONNECT;
  }
  socklen_t bytes = sizeof *errno_p;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, errno_p, &bytes);
  return *errno_p ? GB_ERR_CONNECT : GB_OK;
}

gb_status gbi_connect(const gbi_address *address, uint64_t deadline_ns,
                      int *fd_p, gb_error *error) {
  char text[GBI_ADDRESS_TEXT];
  int fd = socket(address->sa.ss_family,
                  SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return gbi_fail(error, GB_ERR_SYSTEM, "could not open a socket: %s%s",
                    strerror(errno),
                    errno == EMFILE
                        ? ". The limit of open files is reached (ulimit -n)"
                        : "");
  int code = 0;
  if (GBI_FAULT("sock.connect") == GBI_FAULT_FAIL)
    code = ECONNREFUSED;
  else if (connect(fd, (const void *)&address->sa, address->bytes))
    code = errno;
  if (code == EINPROGRESS || code == EINTR)
    (void)wait_connected(fd, deadline_ns, &code);
  if (code) {
    close(fd);
    return gbi_fail(error, GB_ERR_CONNECT, "could not connect to %s: %s",
                    gbi_address_text(address, text),
                    code == ETIMEDOUT ? "no answer in time" : strerror(code));
  }
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  *fd_p = fd;
  return GB_OK;
}

void gbi_socket_tune(int fd, uint64_t timeout_ms) {
  int on = 1, idle, interval, probes = 3;
  int seconds = (int)GBI_MIN(GBI_MAX(timeout_ms / 1000, 1), 3600);
  idle = GBI_MAX(seconds / 2, 1);
  interval = GBI_MAX(seconds / 6, 1);
  unsigned user = (unsigned)GBI_MIN(timeout_ms, 3600u * 1000u);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user, sizeof user);
}

int gbi_accept(int listen_fd) {
  for (;;) {
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0 || (errno != EINTR && errno != ECONNABORTED)) return fd;
  }
}

void gbi_close_connection(int fd) {
  gbi_fork_keeps(fd);
  (void)shutdown(fd, SHUT_RDWR);
  close(fd);
}

void gbi_close_watched(int epoll_fd, int fd) {
  (void)epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd, NULL);
  gbi_close_connection(fd);
}

bool gbi_poll_one(int fd, short events, uint64_t deadline_ns) {
  for (;;) {
    struct pollfd one = {fd, events, 0};
    int n = poll(&one, 1, gbi_deadline_left_ms(deadline_ns, 1000));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return true; /* the next call tells why */
    if (gbi_deadline_passed(deadline_ns)) return false;
  }
}
