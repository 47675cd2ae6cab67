#include "os/card.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LOOPBACK_INDEX = 1 }; /* in every network namespace */

/* ---- Addresses ---- */

static const uint8_t *bytes_of(const gbi_address *address, int *bytes_p) {
  if (address->sa.ss_family == AF_INET6) {
    *bytes_p = 16;
    return ((const struct sockaddr_in6 *)&address->sa)->sin6_addr.s6_addr;
  }
  *bytes_p = 4;
  return (const uint8_t *)&((const struct sockaddr_in *)&address->sa)->sin_addr;
}

static int compare_hosts(const gbi_address *a, const gbi_address *b) {
  int a_bytes, b_bytes;
  const uint8_t *x = bytes_of(a, &a_bytes), *y = bytes_of(b, &b_bytes);
  if (a_bytes != b_bytes) return a_bytes - b_bytes;
  return memcmp(x, y, (size_t)a_bytes);
}

bool gbi_address_same_host(const gbi_address *a, const gbi_address *b) {
  return !compare_hosts(a, b);
}

static int prefix_of(const struct sockaddr *mask) {
  gbi_address address = {.bytes = 0};
  int bytes, bits = 0;
  if (!mask) return 0;
  memcpy(&address.sa, mask,
         mask->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                     : sizeof(struct sockaddr_in));
  const uint8_t *raw = bytes_of(&address, &bytes);
  for (int i = 0; i < bytes; i++) bits += __builtin_popcount(raw[i]);
  return bits;
}

static bool in_network(const gbi_card *card, const gbi_address *peer) {
  int bytes, theirs;
  const uint8_t *mine = bytes_of(&card->address, &bytes);
  const uint8_t *other = bytes_of(peer, &theirs);
  if (bytes != theirs) return false;
  int whole = card->prefix_bits / 8, rest = card->prefix_bits % 8;
  if (memcmp(mine, other, (size_t)whole)) return false;
  return !rest || !((mine[whole] ^ other[whole]) >> (8 - rest));
}

/* ---- Routes ---- */

static void add_attribute(struct nlmsghdr *head, int type,
                          const gbi_address *address) {
  int bytes;
  const uint8_t *raw = bytes_of(address, &bytes);
  struct rtattr *at = (void *)((uint8_t *)head + NLMSG_ALIGN(head->nlmsg_len));
  at->rta_type = (unsigned short)type;
  at->rta_len = (unsigned short)RTA_LENGTH((size_t)bytes);
  memcpy(RTA_DATA(at), raw, (size_t)bytes);
  head->nlmsg_len =
      NLMSG_ALIGN(head->nlmsg_len) + (unsigned)RTA_ALIGN(at->rta_len);
}

static int read_index(struct nlmsghdr *head, ssize_t bytes) {
  if (bytes < 0 || !NLMSG_OK(head, (size_t)bytes) ||
      head->nlmsg_type != RTM_NEWROUTE)
    return 0;
  struct rtattr *at = RTM_RTA(NLMSG_DATA(head));
  int left = (int)RTM_PAYLOAD(head), index = 0;
  for (; RTA_OK(at, left); at = RTA_NEXT(at, left))
    if (at->rta_type == RTA_OIF && RTA_PAYLOAD(at) == sizeof index)
      memcpy(&index, RTA_DATA(at), sizeof index);
  return index;
}

int gbi_route_index(const gbi_address *from, const gbi_address *to) {
  union {
    struct nlmsghdr head;
    uint8_t raw[2048];
  } buffer;
  memset(&buffer, 0, sizeof buffer);
  if (from && from->sa.ss_family != to->sa.ss_family) return 0;
  int bytes;
  (void)bytes_of(to, &bytes);
  struct nlmsghdr *head = &buffer.head;
  *head = (struct nlmsghdr){.nlmsg_len = NLMSG_LENGTH(sizeof(struct rtmsg)),
                            .nlmsg_type = RTM_GETROUTE,
                            .nlmsg_flags = NLM_F_REQUEST};
  struct rtmsg *route = NLMSG_DATA(head);
  route->rtm_family = (uint8_t)to->sa.ss_family;
  route->rtm_dst_len = (uint8_t)(bytes * 8);
  route->rtm_src_len = (uint8_t)(from ? bytes * 8 : 0);
  add_attribute(head, RTA_DST, to);
  if (from) add_attribute(head, RTA_SRC, from);
  int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (fd < 0) return 0;
  ssize_t n = send(fd, head, head->nlmsg_len, 0);
  /* The answer is made while the question is sent. */
  if (n >= 0) n = recv(fd, &buffer, sizeof buffer, MSG_DONTWAIT);
  close(fd);
  return read_index(head, n);
}

gbi_card_way gbi_card_way_to(const gbi_card *card, const gbi_address *peer) {
  if (card->address.sa.ss_family != peer->sa.ss_family) return GBI_CARD_NOT;
  int index = gbi_route_index(&card->address, peer);
  if (!index || !card->index) { /* a kernel that does not tell */
    gbi_address local;
    bool leads = gbi_route_source(peer, &local, NULL) == GB_OK &&
                 gbi_address_same_host(&local, &card->address);
    return leads ? GBI_CARD_ROUTE : GBI_CARD_NOT;
  }
  if (index == card->index) return GBI_CARD_ROUTE;
  bool near = index != LOOPBACK_INDEX && in_network(card, peer);
  return near && card->bindable ? GBI_CARD_BIND : GBI_CARD_NOT;
}

bool gbi_card_bind(const gbi_card *card, int fd) {
  return !setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, card->name,
                     (socklen_t)strlen(card->name) + 1);
}

/* ---- What a card is ---- */

static bool read_file(char *buffer, size_t bytes, const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t n = read(fd, buffer, bytes - 1);
  close(fd);
  if (n < 0) return false;
  buffer[n] = 0;
  return true;
}

static bool has_file(const char *card, const char *file) {
  char path[128];
  snprintf(path, sizeof path, "/sys/class/net/%s/%s", card, file);
  return !access(path, F_OK);
}

/* -1: not told. */
static int read_number(const char *folder, const char *card, const char *file) {
  char path[128], text[32], *end;
  snprintf(path, sizeof path, "%s/%s/%s", folder, card, file);
  if (!read_file(text, sizeof text, path)) return -1;
  long number = strtol(text, &end, 10);
  return end == text || number < 0 || number > 100000000 ? -1 : (int)number;
}

static bool made_of_others(const char *card) {
  static const char *const kinds[] = {"DEVTYPE=bridge", "DEVTYPE=vxlan",
                                      "DEVTYPE=geneve"};
  char path[128], text[512];
  if (has_file(card, "bridge") || has_file(card, "tun_flags")) return true;
  snprintf(path, sizeof path, "/sys/class/net/%s/uevent", card);
  if (!read_file(text, sizeof text, path)) return false;
  for (size_t i = 0; i < GBI_COUNT(kinds); i++)
    if (strstr(text, kinds[i])) return true;
  return false;
}

static bool looks_usable(const gbi_card *card, unsigned flags) {
  int type = read_number("/sys/class/net", card->name, "type");
  int bytes;
  (void)bytes_of(&card->address, &bytes);
  if (!(flags & IFF_UP) || !(flags & IFF_RUNNING) || (flags & IFF_LOOPBACK))
    return false;
  if (type >= 0 && type != ARPHRD_ETHER && type != ARPHRD_INFINIBAND)
    return false;
  /* An address without a network is a service's or an overlay's, but for
   * clouds that give their cards such. */
  if (card->prefix_bits == bytes * 8 && !card->hardware) return false;
  return !made_of_others(card->name);
}

/* The kernel takes the greater of the machine's and the card's. */
static int ipv4_setting(const char *card, const char *name) {
  static const char folder[] = "/proc/sys/net/ipv4/conf";
  return GBI_MAX(read_number(folder, "all", name),
                 read_number(folder, card, name));
}

static bool is_bindable(const gbi_card *list, int count, int which) {
  if (list[which].address.sa.ss_family != AF_INET) return true;
  /* Strict: packets of a network that is reached by another card are dropped */
  if (ipv4_setting(list[which].name, "rp_filter") == 1) return false;
  for (int i = 0; i < count; i++) {
    if (i == which) continue;
    int ignore = ipv4_setting(list[i].name, "arp_ignore");
    if (ignore != 1 && ignore != 2) return false;
    if (ipv4_setting(list[i].name, "arp_announce") != 2) return false;
  }
  return true;
}

static bool is_own(const gbi_card *list, int count, const gbi_address *other) {
  for (int i = 0; i < count; i++)
    if (gbi_address_same_host(&list[i].address, other)) return true;
  return false;
}

/* Asks for the way to a neighbour, an address that differs in the last bits.
 * True where that cannot be told. */
static bool is_routed(const gbi_card *list, int count, int which) {
  const gbi_card *card = &list[which];
  for (uint8_t flip = 1; flip < 8; flip++) {
    gbi_address other = card->address;
    int bytes;
    uint8_t *raw = (uint8_t *)bytes_of(&other, &bytes);
    int host_bits = bytes * 8 - card->prefix_bits;
    if (host_bits < 3 && flip >> host_bits) break;
    raw[bytes - 1] ^= flip;
    if (is_own(list, count, &other)) continue;
    int index = gbi_route_index(&card->address, &other);
    if (index == card->index) return true;
    /* Loopback: another own address, or the network's own two. */
    if (index > LOOPBACK_INDEX) return false;
  }
  return true;
}

/* False: an address that no link can use. */
static bool read_address(const struct ifaddrs *at, gbi_address *address) {
  *address = (gbi_address){.bytes = at->ifa_addr->sa_family == AF_INET6
                                        ? sizeof(struct sockaddr_in6)
                                        : sizeof(struct sockaddr_in)};
  memcpy(&address->sa, at->ifa_addr, address->bytes);
  const struct sockaddr_in6 *in6 = (const void *)&address->sa;
  return !gbi_address_is_loopback(address) &&
         !(address->sa.ss_family == AF_INET6 &&
           IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr));
}

static void add_card(gbi_card *list, int *count, const struct ifaddrs *at,
                     const gbi_address *first) {
  gbi_address address;
  char name[IF_NAMESIZE]; /* more addresses have labels, "eth0:1" */
  snprintf(name, sizeof name, "%.*s", (int)strcspn(at->ifa_name, ":"),
           at->ifa_name);
  if (!read_address(at, &address)) return;
  int i = 0;
  while (i < *count && strcmp(list[i].name, name)) i++;
  if (i == GBI_CARDS_MAX) return;
  if (i < *count && !gbi_address_same_host(&address, first)) return;
  gbi_card *card = &list[i];
  *card = (gbi_card){.index = (int)if_nametoindex(name),
                     .address = address,
                     .prefix_bits = prefix_of(at->ifa_netmask)};
  memcpy(card->name, name, sizeof name);
  card->hardware = has_file(name, "device");
  card->speed_mbit = read_number("/sys/class/net", name, "speed");
  if (!card->speed_mbit) card->speed_mbit = -1;
  card->usable = looks_usable(card, at->ifa_flags);
  if (i == *count) ++*count;
}

gb_status gbi_cards_list(const gbi_address *first, gbi_card *list, int *count_p,
                         gb_error *error) {
  struct ifaddrs *all = NULL;
  *count_p = 0;
  if (getifaddrs(&all))
    return gbi_fail(error, GB_ERR_SYSTEM, "could not list interfaces: %s",
                    strerror(errno));
  for (struct ifaddrs *at = all; at; at = at->ifa_next)
    if (at->ifa_addr && at->ifa_addr->sa_family == first->sa.ss_family &&
        (at->ifa_flags & IFF_UP))
      add_card(list, count_p, at, first);
  freeifaddrs(all);
  for (int i = 0; i < *count_p; i++) {
    list[i].bindable = is_bindable(list, *count_p, i);
    list[i].routed = is_routed(list, *count_p, i);
  }
  return GB_OK;
}

/* ---- Choosing ---- */

static int by_address(const void *a, const void *b) {
  return compare_hosts(&((const gbi_card *)a)->address,
                       &((const gbi_card *)b)->address);
}

static bool is_as_good(const gbi_card *card, const gbi_card *first) {
  if (!card->usable || (first->hardware && !card->hardware)) return false;
  if (card->speed_mbit >= 0 && card->speed_mbit < first->speed_mbit)
    return false;
  return card->routed || card->bindable;
}

int gbi_cards_choose(gbi_card *list, int count, const gbi_address *first) {
  gbi_card sorted[GBI_CARDS_MAX];
  int at = -1, kept = 0;
  if (count > GBI_CARDS_MAX) return 0;
  qsort(list, (size_t)count, sizeof *list, by_address);
  for (int i = 0; i < count; i++)
    if (gbi_address_same_host(&list[i].address, first)) at = i;
  if (at < 0) return 0;
  for (int i = 0; i < count; i++) {
    const gbi_card *card = &list[(at + i) % count];
    if (!i || is_as_good(card, &list[at])) sorted[kept++] = *card;
  }
  memcpy(list, sorted, sizeof *list * (size_t)kept);
  return kept;
}
