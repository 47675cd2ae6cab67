/* Proves that what the writer writes the reader reads, and that no length in
 * the data can make the reader leave its buffer. */
#include "base/wire.h"
#include "harness/gb_test.h"

GB_TEST(wire, round_trip) {
  uint8_t buffer[64];
  gbi_writer w;
  gbi_writer_init(&w, buffer, sizeof buffer);
  gbi_put_u8(&w, 7);
  gbi_put_u32(&w, 0xdeadbeef);
  gbi_put_u64(&w, UINT64_C(1) << 63);
  gbi_put_i32(&w, -5);
  gbi_put_text(&w, "nvidia");
  GB_CHECK(!w.bad);
  gbi_reader r;
  gbi_reader_init(&r, buffer, w.used);
  char text[16];
  GB_CHECK_INT(gbi_get_u8(&r), 7);
  GB_CHECK_INT(gbi_get_u32(&r), 0xdeadbeef);
  GB_CHECK(gbi_get_u64(&r) == UINT64_C(1) << 63);
  GB_CHECK_INT(gbi_get_i32(&r), -5);
  gbi_get_text(&r, text, sizeof text);
  GB_CHECK(!strcmp(text, "nvidia"));
  GB_CHECK(!r.bad);
  (void)gbi_get_u8(&r);
  GB_CHECK(r.bad);
}

GB_TEST(wire, absurd_length_is_refused) {
  uint8_t raw[8] = {0xff, 0xff, 0xff, 0x7f, 'a'};
  gbi_reader r;
  gbi_reader_init(&r, raw, sizeof raw);
  size_t bytes;
  GB_CHECK(!gbi_get_blob(&r, &bytes));
  GB_CHECK(r.bad);
  GB_CHECK_INT(bytes, 0);
}

GB_TEST(wire, full_writer_is_bad) {
  uint8_t buffer[3];
  gbi_writer w;
  gbi_writer_init(&w, buffer, sizeof buffer);
  gbi_put_u32(&w, 1);
  GB_CHECK(w.bad);
  GB_CHECK_INT(w.used, 0);
}
