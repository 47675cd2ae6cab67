/* Which local addresses the others are told. */
#include "transport/tcp/tcp.h"

#include "base/log.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

static bool is_link_local(const gbi_address *address) {
  const struct sockaddr_in6 *in6 = (const void *)&address->sa;
  return address->sa.ss_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr);
}

static bool same_address(const gbi_address *a, const gbi_address *b) {
  return a->bytes == b->bytes && !memcmp(&a->sa, &b->sa, a->bytes);
}

static void add(gbi_tcp *t, const gbi_address *address) {
  for (int i = 0; i < t->listeners_count; i++)
    if (same_address(&t->addresses[i], address)) return;
  if (t->listeners_count < GBI_TCP_CANDIDATES_MAX)
    t->addresses[t->listeners_count++] = *address;
}

/* Link-local addresses need a scope that means nothing on another machine:
 * only where there is nothing else. */
static void add_list(gbi_tcp *t, const gbi_address *list, int count) {
  for (int i = 0; i < count; i++)
    if (!is_link_local(&list[i])) add(t, &list[i]);
  if (!t->listeners_count)
    for (int i = 0; i < count; i++) add(t, &list[i]);
}

static gb_status by_interface(gbi_tcp *t, bool *done_p, gb_error *error) {
  gbi_value value;
  const char *name;
  gbi_address list[GBI_ADDRESSES_MAX];
  int count = 0;
  GBI_TRY(gbi_tcp_setting(GBI_TCP_SET_IFNAME, &value, &name, error));
  *done_p = value.text[0] != 0;
  if (!*done_p) return GB_OK;
  GBI_TRY(gbi_interface_addresses(name, value.text, list, &count, error));
  add_list(t, list, count);
  snprintf(t->chosen_by, sizeof t->chosen_by, "%s=%s", name, value.text);
  return GB_OK;
}

/* Set for Gloo, in Gloo's own terms: taken when it is the name of an interface
 * here, else it is none of our business. */
static bool by_gloo_interface(gbi_tcp *t) {
  char name[128];
  gbi_address list[GBI_ADDRESSES_MAX];
  int count = 0;
  gb_error why;
  if (!gbi_env("GLOO_SOCKET_IFNAME", name, sizeof name)) return false;
  if (gbi_interface_addresses("GLOO_SOCKET_IFNAME", name, list, &count, &why) !=
      GB_OK) {
    GBI_INFO("tcp", "ignored: %s", why.text);
    return false;
  }
  add_list(t, list, count);
  snprintf(t->chosen_by, sizeof t->chosen_by, "GLOO_SOCKET_IFNAME=%s", name);
  return true;
}

static bool says_loopback(const char *host) {
  return !strcmp(host, "localhost") || !strncmp(host, "127.", 4) ||
         !strcmp(host, "::1");
}

/* The route to the store decides: it was good enough to get here. A host file
 * may map this machine's own name to 127.0.1.1, so a loopback address counts
 * only where the user wrote one. */
static bool by_store(gbi_tcp *t) {
  const char *host = t->params.store_host;
  gbi_address list[GBI_ADDRESSES_MAX], local;
  int count = 0;
  if (!host || !host[0]) return false;
  uint64_t limit_ms = GBI_MIN(t->params.timeout_ms, 5000);
  if (gbi_resolve(host, 1, gbi_deadline_after_ms(limit_ms), list, &count,
                  NULL) != GB_OK)
    return false;
  for (int i = 0; i < count; i++) {
    if (gbi_route_source(&list[i], &local, NULL) != GB_OK) continue;
    if (gbi_address_is_loopback(&local) && !says_loopback(host)) continue;
    add(t, &local);
  }
  snprintf(t->chosen_by, sizeof t->chosen_by, "the route to %.200s", host);
  return t->listeners_count > 0;
}

static gb_status by_all(gbi_tcp *t, gb_error *error) {
  struct ifaddrs *all = NULL;
  if (getifaddrs(&all))
    return gbi_fail(error, GB_ERR_SYSTEM, "could not list interfaces: %m");
  for (int loopback = 0; loopback < 2; loopback++) {
    for (struct ifaddrs *at = all; at; at = at->ifa_next) {
      if (!at->ifa_addr || !(at->ifa_flags & IFF_UP)) continue;
      int family = at->ifa_addr->sa_family;
      if (family != AF_INET && family != AF_INET6) continue;
      gbi_address address = {.bytes = family == AF_INET
                                          ? sizeof(struct sockaddr_in)
                                          : sizeof(struct sockaddr_in6)};
      memcpy(&address.sa, at->ifa_addr, address.bytes);
      if (is_link_local(&address)) continue;
      if (gbi_address_is_loopback(&address) == (loopback == 1))
        add(t, &address);
    }
  }
  freeifaddrs(all);
  snprintf(t->chosen_by, sizeof t->chosen_by, "all interfaces");
  if (t->listeners_count) return GB_OK;
  return gbi_fail(error, GB_ERR_CONNECT,
                  "bridge \"tcp\" found no interface with an address that is "
                  "up");
}

/* "eth0 eth1": the cards by name. */
static void name_cards(gbi_text *text, const gbi_card *list, int count) {
  for (int i = 0; i < count; i++)
    gbi_text_add(text, "%s%s", i ? " " : "", list[i].name);
}

/* Links of one host take one card each, as far as there are cards. That card's
 * address goes first; what led here stays behind it, for peers that the card
 * does not reach. */
static void spread(gbi_tcp *t) {
  gbi_card list[GBI_CARDS_MAX];
  int count;
  gb_error why;
  if (t->params.spread < 1 || gbi_address_is_loopback(&t->addresses[0])) return;
  if (gbi_cards_list(&t->addresses[0], list, &count, &why) != GB_OK) {
    GBI_INFO("tcp", "links share a card: %s", why.text);
    return;
  }
  count = gbi_cards_choose(list, count, &t->addresses[0]);
  if (count < 2) return;
  const gbi_card *card = &list[t->params.spread % count];
  gbi_text text;
  char before[sizeof t->chosen_by];
  memcpy(before, t->chosen_by, sizeof before);
  gbi_text_init(&text, t->chosen_by, sizeof t->chosen_by);
  gbi_text_add(&text, "card %s for link %d of this host, of ", card->name,
               t->params.spread);
  name_cards(&text, list, count);
  gbi_text_add(&text, "; %s", before);
  if (card == list) return; /* the others' order is right already */
  t->has_card = true;
  t->card = *card;
  gbi_address old[GBI_TCP_CANDIDATES_MAX];
  int old_count = t->listeners_count;
  memcpy(old, t->addresses, sizeof old);
  t->listeners_count = 0;
  add(t, &card->address);
  for (int i = 0; i < old_count; i++) add(t, &old[i]);
}

gb_status gbi_tcp_choose_addresses(gbi_tcp *t, gb_error *error) {
  bool done = false;
  GBI_TRY(by_interface(t, &done, error));
  if (done || by_gloo_interface(t)) return GB_OK;
  if (!by_store(t)) GBI_TRY(by_all(t, error));
  spread(t);
  return GB_OK;
}
