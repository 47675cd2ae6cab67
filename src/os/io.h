/* The system calls that talk to a peer, with the fault points sock.send and
 * sock.recv: never block, never raise SIGPIPE; otherwise as their namesakes. */
#ifndef GBI_OS_IO_H
#define GBI_OS_IO_H

#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>

ssize_t gbi_send(int fd, const void *data, size_t bytes);
ssize_t gbi_recv(int fd, void *data, size_t bytes);
/* With vectors, `flags` beyond MSG_DONTWAIT and MSG_NOSIGNAL. They carry
 * payload, which only TCP's checksum covers: CORRUPT does nothing here. SHORT
 * does nothing where descriptors ride along, as the kernel never splits such a
 * message. */
ssize_t gbi_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t gbi_recvmsg(int fd, struct msghdr *message, int flags);

#endif
