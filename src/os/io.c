#include "os/io.h"

#include "base/fault.h"

#include <errno.h>
#include <sys/uio.h>

/* True: the call ends here, with errno. */
static bool strike(gbi_fault fault) {
  if (fault == GBI_FAULT_FAIL)
    errno = ECONNRESET;
  else if (fault == GBI_FAULT_AGAIN)
    errno = EAGAIN;
  else
    return false;
  return true;
}

ssize_t gbi_send(int fd, const void *data, size_t bytes) {
  gbi_fault fault = GBI_FAULT("sock.send");
  if (strike(fault)) return -1;
  if (fault == GBI_FAULT_SHORT) bytes = GBI_MIN(bytes, 1);
  return send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t gbi_recv(int fd, void *data, size_t bytes) {
  gbi_fault fault = GBI_FAULT("sock.recv");
  if (strike(fault)) return -1;
  if (fault == GBI_FAULT_SHORT) bytes = GBI_MIN(bytes, 1);
  ssize_t n = recv(fd, data, bytes, MSG_DONTWAIT);
  if (fault == GBI_FAULT_CORRUPT && n > 0) gbi_fault_flip(data, (size_t)n);
  return n;
}

/* The message, cut to its first byte. */
static struct msghdr first_byte(const struct msghdr *message,
                                struct iovec *byte) {
  struct msghdr one = *message;
  *byte = (struct iovec){message->msg_iov[0].iov_base,
                         GBI_MIN(message->msg_iov[0].iov_len, 1)};
  one.msg_iov = byte;
  one.msg_iovlen = 1;
  return one;
}

ssize_t gbi_sendmsg(int fd, const struct msghdr *message, int flags) {
  gbi_fault fault = GBI_FAULT("sock.send");
  flags |= MSG_NOSIGNAL | MSG_DONTWAIT;
  if (strike(fault)) return -1;
  if (fault != GBI_FAULT_SHORT || message->msg_controllen)
    return sendmsg(fd, message, flags);
  struct iovec byte;
  struct msghdr one = first_byte(message, &byte);
  return sendmsg(fd, &one, flags);
}

ssize_t gbi_recvmsg(int fd, struct msghdr *message, int flags) {
  gbi_fault fault = GBI_FAULT("sock.recv");
  flags |= MSG_DONTWAIT;
  if (strike(fault)) return -1;
  if (fault != GBI_FAULT_SHORT || message->msg_controllen)
    return recvmsg(fd, message, flags);
  struct iovec byte;
  struct msghdr one = first_byte(message, &byte);
  return recvmsg(fd, &one, flags);
}
