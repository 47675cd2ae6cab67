/* Proves which cards links are spread over and in which order, over made-up
 * lists; and that this machine's own loopback and cards are told apart. */
#include "os/card.h"

#include "harness/gb_test.h"

#include <arpa/inet.h>
#include <stdio.h>

static gbi_address address_of(const char *text) {
  gbi_address list[GBI_ADDRESSES_MAX];
  int count = 0;
  GB_CHECK_OK(gbi_resolve(text, 1, 0, list, &count, NULL));
  gbi_address_set_port(&list[0], 0);
  return list[0];
}

static gbi_card card_of(const char *name, const char *address) {
  gbi_card card = {.address = address_of(address),
                   .prefix_bits = 24,
                   .usable = true,
                   .hardware = true,
                   .speed_mbit = -1,
                   .routed = true};
  snprintf(card.name, sizeof card.name, "%s", name);
  return card;
}

/* "a b c": what was chosen, in order. */
static const char *chosen(gbi_card *list, int count, const char *first) {
  static char text[128];
  gbi_address address = address_of(first);
  int kept = gbi_cards_choose(list, count, &address);
  gbi_text t;
  gbi_text_init(&t, text, sizeof text);
  for (int i = 0; i < kept; i++)
    gbi_text_add(&t, "%s%s", i ? " " : "", list[i].name);
  return kept ? text : "";
}

GB_TEST(card, order_is_by_address_from_the_routed_one) {
  gbi_card list[] = {card_of("d", "10.0.4.9"), card_of("a", "10.0.1.9"),
                     card_of("c", "10.0.3.9"), card_of("b", "10.0.2.9")};
  GB_CHECK(!strcmp(chosen(list, 4, "10.0.1.9"), "a b c d"));
  GB_CHECK(!strcmp(chosen(list, 4, "10.0.3.9"), "c d a b"));
  gbi_card six[] = {card_of("b", "fd00:2::9"), card_of("a", "fd00:1::9")};
  GB_CHECK(!strcmp(chosen(six, 2, "fd00:2::9"), "b a"));
}

GB_TEST(card, an_address_of_no_card_gives_none) {
  gbi_card list[] = {card_of("a", "10.0.1.9")};
  GB_CHECK(!strcmp(chosen(list, 1, "10.0.1.8"), ""));
  GB_CHECK(!strcmp(chosen(list, 1, "::1"), ""));
  GB_CHECK(!strcmp(chosen(list, 0, "10.0.1.9"), ""));
}

GB_TEST(card, slower_ones_stay_out_where_both_tell) {
  static const struct {
    int first, second;
    const char *want;
  } cases[] = {{25000, 10000, "a"},   {25000, 25000, "a b"},
               {1000, 100000, "a b"}, {-1, 1000, "a b"},
               {1000, -1, "a b"},     {-1, -1, "a b"}};
  for (size_t i = 0; i < GBI_COUNT(cases); i++) {
    gbi_card list[] = {card_of("a", "10.0.1.9"), card_of("b", "10.0.2.9")};
    list[0].speed_mbit = cases[i].first;
    list[1].speed_mbit = cases[i].second;
    GB_CHECK(!strcmp(chosen(list, 2, "10.0.1.9"), cases[i].want));
  }
}

GB_TEST(card, what_is_no_card_stays_out) {
  gbi_card list[] = {card_of("eth0", "10.0.1.9"), card_of("down", "10.0.2.9"),
                     card_of("soft", "10.0.3.9"), card_of("eth3", "10.0.4.9")};
  list[1].usable = false;
  list[2].hardware = false;
  GB_CHECK(!strcmp(chosen(list, 4, "10.0.1.9"), "eth0 eth3"));
  /* The routed one is taken whatever it is: it was good enough to get here.
   * Where it is software's, as in a container, others may be. */
  gbi_card in[] = {card_of("eth0", "10.0.1.9"), card_of("eth1", "10.0.2.9"),
                   card_of("net1", "10.0.3.9")};
  in[0].usable = in[0].hardware = in[1].hardware = false;
  GB_CHECK(!strcmp(chosen(in, 3, "10.0.1.9"), "eth0 eth1 net1"));
}

GB_TEST(card, one_by_which_nothing_leaves_stays_out) {
  gbi_card list[] = {card_of("a", "10.0.1.8"), card_of("b", "10.0.1.9"),
                     card_of("c", "10.0.1.10")};
  list[1].routed = list[2].routed = false;
  list[2].bindable = true;
  GB_CHECK(!strcmp(chosen(list, 3, "10.0.1.8"), "a c"));
}

GB_TEST(card, routes_of_this_machine) {
  gbi_address here = address_of("127.0.0.1");
  GB_CHECK_INT(gbi_route_index(NULL, &here), 1);
  GB_CHECK_INT(gbi_route_index(&here, &here), 1);
  gbi_card list[GBI_CARDS_MAX];
  int count;
  gb_error error;
  GB_CHECK_OK(gbi_cards_list(&here, list, &count, &error));
  for (int i = 0; i < count; i++) {
    GB_CHECK(list[i].index > 1);
    /* An own address is reached without a card. */
    GB_CHECK_INT(gbi_card_way_to(&list[i], &list[i].address), GBI_CARD_NOT);
    GB_CHECK_INT(gbi_card_way_to(&list[i], &here), GBI_CARD_NOT);
  }
  gbi_address six = address_of("::1");
  GB_CHECK_INT(gbi_route_index(&here, &six), 0);
}
