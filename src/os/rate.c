/* Apart from net.c: the kernel's own header, which has more of tcp_info than
 * the C library's, does not go together with it. */
#include "os/net.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

#define THROUGH(field) \
  (offsetof(struct tcp_info, field) + sizeof(((struct tcp_info *)0)->field))

/* True when the kernel knows its first `wanted` bytes. */
static bool look(int fd, struct tcp_info *info, size_t wanted) {
  socklen_t bytes = sizeof *info;
  memset(info, 0, sizeof *info);
  return !getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &bytes) &&
         bytes >= wanted;
}

uint64_t gbi_socket_rate(int fd) {
  struct tcp_info info;
  return look(fd, &info, THROUGH(tcpi_delivery_rate)) ? info.tcpi_delivery_rate
                                                      : 0;
}

void gbi_socket_delivered(int fd, uint64_t *delivered, uint64_t *again) {
  struct tcp_info info;
  if (!look(fd, &info, THROUGH(tcpi_delivered))) return;
  *delivered += (uint64_t)info.tcpi_delivered * info.tcpi_snd_mss;
  *again += (uint64_t)info.tcpi_total_retrans * info.tcpi_snd_mss;
}
