/* Proves address texts, host:port parsing (S005) and interface refusals (S002,
 * S003). */
#include "os/net.h"
#include "harness/gb_test.h"

GB_TEST(net, host_and_port) {
  char host[64];
  int port;
  gb_error error;
  GB_CHECK_OK(gbi_split_host_port("[::1]:29500", host, 64, &port, &error));
  GB_CHECK(!strcmp(host, "::1") && port == 29500);
  GB_CHECK_OK(gbi_split_host_port("head:1", host, 64, &port, &error));
  GB_CHECK(!strcmp(host, "head") && port == 1);
  GB_CHECK_INT(gbi_split_host_port("::1:29500", host, 64, &port, &error),
               GB_ERR_ARGUMENT);
  GB_CHECK_TEXT(error.text, "brackets");
  const char *bad[] = {"head", "head:", "head:0", "head:70000", ":1", "[::1]",
                       "head:1x"};
  for (size_t i = 0; i < GBI_COUNT(bad); i++)
    GB_CHECK_INT(gbi_split_host_port(bad[i], host, 64, &port, &error),
                 GB_ERR_ARGUMENT);
}

GB_TEST(net, addresses_travel_and_print) {
  gbi_address list[GBI_ADDRESSES_MAX], back;
  int count;
  gb_error error;
  GB_CHECK_OK(gbi_resolve("::1", 29500, 0, list, &count, &error));
  uint8_t raw[64];
  gbi_writer w;
  gbi_writer_init(&w, raw, sizeof raw);
  gbi_put_address(&w, &list[0]);
  gbi_reader r;
  gbi_reader_init(&r, raw, w.used);
  gbi_get_address(&r, &back);
  char text[GBI_ADDRESS_TEXT];
  GB_CHECK(!r.bad);
  GB_CHECK(!strcmp(gbi_address_text(&back, text), "[::1]:29500"));
  GB_CHECK(gbi_address_is_loopback(&back));
}

GB_TEST(net, interface_refusals_name_what_exists) {
  gbi_address list[GBI_ADDRESSES_MAX];
  int count;
  gb_error error;
  GB_CHECK_OK(gbi_interface_addresses("X_IFNAME", "lo", list, &count, &error));
  const char *bad[] = {"eth77", "^lo", "lo,eth0", "127.0.0.1"};
  for (size_t i = 0; i < GBI_COUNT(bad); i++) {
    GB_CHECK_INT(
        gbi_interface_addresses("X_IFNAME", bad[i], list, &count, &error),
        GB_ERR_SETTING);
    GB_CHECK_TEXT(error.text, "X_IFNAME");
    GB_CHECK_TEXT(error.text, bad[i]);
    GB_CHECK_TEXT(error.text, "lo");
  }
}
