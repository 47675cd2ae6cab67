/* How fast the connections of a long line may send together. BBR paces each by
 * a share that it takes for its own, and at nearly three times that while it
 * has not sent without a pause: together they overflow the line, and what is
 * dropped holds everything behind it up for a round trip. So once a line has
 * dropped more than stray frames, it is sent what it is known to carry. */
#include "os/net.h"
#include "transport/tcp/tcp.h"

#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

/* Every so many windows a little more is tried; after so many, the best of
 * those before is forgotten. */
enum { TRY_EVERY = 8, REMEMBER = 64 };
/* Longer, and the line was not watched. */
enum { WINDOW_MOST_RTTS = 4 };

uint64_t gbi_tcp_pace_window(gbi_tcp_pace *pace, uint64_t ns,
                             uint64_t delivered, uint64_t again) {
  uint64_t rate = (uint64_t)((double)delivered * 1e9 / (double)ns);
  uint64_t known = GBI_MAX(pace->best[0], pace->best[1]);
  if (again * 100 > delivered) pace->bound = true;
  pace->best[0] = GBI_MAX(pace->best[0], rate);
  if (++pace->windows % REMEMBER == 0) {
    pace->best[1] = pace->best[0];
    pace->best[0] = 0;
  }
  if (!pace->bound) return 0;
  uint64_t best = GBI_MAX(known, rate);
  if (rate > known + known / 10) return best + best / 2;
  return pace->windows % TRY_EVERY ? best : best + best / 5;
}

static void set_pace(gbi_tcp_link *link, uint64_t rate) {
  if (!rate || rate == link->pace.rate) return;
  link->pace.rate = rate;
  uint64_t each = rate / (uint64_t)link->active;
  for (int i = 0; i < link->streams; i++)
    setsockopt(link->conns[i].fd, SOL_SOCKET, SO_MAX_PACING_RATE, &each,
               sizeof each);
}

/* The kernel lets a send buffer grow to tcp_wmem's bound, 4 MiB by default.
 * Asked for by hand it may be twice net.core.wmem_max, which can also be less,
 * and there is no way back: tried on a socket of no use. */
static bool may_widen(void) {
  int want = GBI_TCP_SEND_BUFFER, got = 0, grows_to = 0;
  socklen_t bytes = sizeof got;
  FILE *file = fopen("/proc/sys/net/ipv4/tcp_wmem", "re");
  if (!file) return false;
  int fields = fscanf(file, "%*d %*d %d", &grows_to);
  fclose(file);
  int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return false;
  bool wider = fields == 1 &&
               !setsockopt(probe, SOL_SOCKET, SO_SNDBUF, &want, sizeof want) &&
               !getsockopt(probe, SOL_SOCKET, SO_SNDBUF, &got, &bytes) &&
               got > grows_to;
  close(probe);
  return wider;
}

void gbi_tcp_widen(gbi_tcp_link *link) {
  int want = GBI_TCP_SEND_BUFFER;
  if (link->widened) return;
  link->widened = true;
  if (!may_widen()) return;
  for (int i = 0; i < link->streams; i++)
    setsockopt(link->conns[i].fd, SOL_SOCKET, SO_SNDBUF, &want, sizeof want);
}

void gbi_tcp_pace_pause(gbi_tcp_link *link) {
  link->pace.since_ns = 0;
}

void gbi_tcp_pace_look(gbi_tcp_link *link, uint64_t now) {
  gbi_tcp_pace *pace = &link->pace;
  uint64_t rtt = (uint64_t)link->rtt_us * 1000, ns = now - pace->since_ns;
  if (link->rtt_us <= GBI_TCP_LONG_RTT_US) return;
  if (pace->since_ns && ns < rtt) return;
  uint64_t delivered = 0, again = 0;
  for (int i = 0; i < link->streams; i++)
    gbi_socket_delivered(link->conns[i].fd, &delivered, &again);
  if (pace->since_ns && ns < WINDOW_MOST_RTTS * rtt &&
      delivered >= pace->delivered && again >= pace->again)
    set_pace(link, gbi_tcp_pace_window(pace, ns, delivered - pace->delivered,
                                       again - pace->again));
  pace->since_ns = now;
  pace->delivered = delivered;
  pace->again = again;
}
