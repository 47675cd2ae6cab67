/* Proves that two holders of the key meet, that a wrong key, another job and
 * plain garbage are refused, and that the acceptor never waits for a stranger
 * (S119, S120). */
#include "os/handshake.h"
#include "harness/gb_test.h"
#include "os/net.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

static void pair(int fds[2]) {
  GB_CHECK_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds));
}

/* Steps both ends until neither is busy. */
static void meet(gbi_handshake *c, gbi_handshake *a, const int fds[2],
                 gb_status *c_status, gb_status *a_status, gb_error *c_error,
                 gb_error *a_error) {
  *c_status = *a_status = GB_ERR_BUSY;
  for (int i = 0; i < 20; i++) {
    if (*a_status == GB_ERR_BUSY)
      *a_status = gbi_handshake_step(a, fds[1], a_error);
    if (*c_status == GB_ERR_BUSY)
      *c_status = gbi_handshake_step(c, fds[0], c_error);
    if (*a_status != GB_ERR_BUSY && *a_status != GB_OK)
      shutdown(fds[1], SHUT_RDWR);
  }
}

static const gbi_hello hello = {.kind = GBI_HELLO_LINK, .stream = 2,
                                .group = 7, .comm = 9, .from = 3, .to = 1,
                                .settings = 55};

GB_TEST(handshake, proves_and_tells_who) {
  gbi_auth auth = {{1}, {2}};
  int fds[2];
  pair(fds);
  gbi_handshake c, a;
  gb_status cs, as;
  gb_error ce, ae;
  gbi_handshake_connect(&c, &auth, &hello);
  gbi_handshake_accept(&a, &auth);
  meet(&c, &a, fds, &cs, &as, &ce, &ae);
  GB_CHECK_INT(cs, GB_OK);
  GB_CHECK_INT(as, GB_OK);
  GB_CHECK_INT(a.hello.from, 3);
  GB_CHECK_INT(a.hello.comm, 9);
  GB_CHECK_INT(a.hello.stream, 2);
  GB_CHECK_INT(a.hello.settings, 55);
}

GB_TEST(handshake, wrong_key_or_job_is_refused) {
  for (int which = 0; which < 2; which++) {
    gbi_auth mine = {{1}, {2}}, other = mine;
    if (which)
      other.key[31] ^= 1;
    else
      other.job_id[0] ^= 1;
    int fds[2];
    pair(fds);
    gbi_handshake c, a;
    gb_status cs, as;
    gb_error ce, ae;
    gbi_handshake_connect(&c, &other, &hello);
    gbi_handshake_accept(&a, &mine);
    meet(&c, &a, fds, &cs, &as, &ce, &ae);
    GB_CHECK_INT(as, GB_ERR_AUTH);
    GB_CHECK_INT(cs, GB_ERR_PEER);
  }
}

GB_TEST(handshake, garbage_and_silence_are_harmless) {
  gbi_auth auth = {{1}, {2}};
  static const char http[] =
      "GET / HTTP/1.1\r\n"
      "Host: a-name-that-is-long-enough-to-fill-the-message\r\n"
      "User-Agent: scanner/1.0 (with a long name too)\r\n\r\n";
  int fds[2];
  pair(fds);
  gbi_handshake a;
  gb_error error;
  gbi_handshake_accept(&a, &auth);
  GB_CHECK_INT(gbi_handshake_step(&a, fds[1], &error), GB_ERR_BUSY);
  GB_CHECK_INT(gbi_handshake_events(&a), POLLIN);
  GB_CHECK_INT(gbi_handshake_step(&a, fds[1], &error), GB_ERR_BUSY);
  GB_CHECK(write(fds[0], http, sizeof http) > 0);
  GB_CHECK_INT(gbi_handshake_step(&a, fds[1], &error), GB_ERR_PROTOCOL);
  close(fds[0]);
}
