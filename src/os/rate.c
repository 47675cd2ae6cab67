/* Apart from net.c: the kernel's own header, which has more of tcp_info than
 * the C library's, does not go together with it. */
#include "os/net.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

uint64_t gbi_socket_rate(int fd) {
  struct tcp_info info;
  socklen_t bytes = sizeof info;
  memset(&info, 0, sizeof info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes)) return 0;
  size_t end = offsetof(struct tcp_info, tcpi_delivery_rate) +
               sizeof info.tcpi_delivery_rate;
  return bytes >= end ? info.tcpi_delivery_rate : 0;
}
