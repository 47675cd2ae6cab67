/* os: the network cards of this machine, for links that are to go by different
 * ones. Every function is thread-safe and sends nothing. */
#ifndef GBI_OS_CARD_H
#define GBI_OS_CARD_H

#include "os/net.h"

#include <net/if.h>

#define GBI_CARDS_MAX 32

typedef struct gbi_card {
  char name[IF_NAMESIZE];
  int index;           /* the kernel's number of it; 0: not told */
  gbi_address address; /* port 0 */
  int prefix_bits;     /* of the network behind it */
  bool usable;    /* up, with a cable, an Ethernet or InfiniBand card, neither
                     loopback nor a bridge nor a tunnel */
  bool hardware;  /* else something that software made, as a container's card */
  int speed_mbit; /* -1: not told */
  /* What is sent from its address to its own network leaves by it. Not so for
   * the second of two cards in one network, unless a rule says it. */
  bool routed;
  /* A socket may be bound to it: what is sent to its address comes in by it.
   * An IPv4 host answers for each address on every card, and another card may
   * bring it, unless arp_ignore (1 or 2) and arp_announce (2) of the other
   * cards say otherwise; and rp_filter must not be strict. */
  bool bindable;
} gbi_card;

/* The interfaces that are up, each with its first address of `first`'s family
 * that is neither loopback nor link-local; that which has `first` with it. At
 * most GBI_CARDS_MAX. */
gb_status gbi_cards_list(const gbi_address *first, gbi_card *list, int *count_p,
                         gb_error *error);
/* Those over which links may be spread, in place: the card with the address
 * `first`, then the others by ascending address, beginning again at the lowest:
 * hosts whose cards are in the same networks have them in the same order. Left
 * out are cards that are not usable, slower than the first, made by software
 * where the first is hardware, and those by which nothing would leave. 0:
 * no card has that address. A pure function of the list. */
int gbi_cards_choose(gbi_card *list, int count, const gbi_address *first);

/* How packets from the card's address to `peer` leave by the card. */
typedef enum gbi_card_way {
  GBI_CARD_NOT,   /* they do not */
  GBI_CARD_ROUTE, /* by the kernel's routes */
  GBI_CARD_BIND   /* once gbi_card_bind was called */
} gbi_card_way;
gbi_card_way gbi_card_way_to(const gbi_card *card, const gbi_address *peer);
/* Lets a socket send and receive by this card only. False: not allowed, and
 * the socket is what it was. */
bool gbi_card_bind(const gbi_card *card, int fd);

/* Number of the interface by which the kernel sends from `from` (NULL: it
 * chooses) to `to`; 1 is loopback. 0: there is no route, or it does not tell.
 */
int gbi_route_index(const gbi_address *from, const gbi_address *to);
bool gbi_address_same_host(const gbi_address *a, const gbi_address *b);

#endif
