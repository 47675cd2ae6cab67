/* Memory that bridge members share, without a job: both sides of it in one
 * process, on a device that only registers. What peers say is checked, one
 * refusal is everybody's with its reason, what was taken is given back, and an
 * owner that has given up is noticed. */
#include "core/shared.h"

#include "harness/gb_area.h"
#include "harness/gb_test.h"

enum { BYTES = 64 << 10, SIDES = 2 };

static int registered, refusing; /* the refusing-th one from now; 0: none */

static gb_status adopt(gbi_device *device, void *host, size_t bytes,
                       void **device_p, gb_error *error) {
  (void)device;
  GB_CHECK_INT((uintptr_t)host % 4096, 0);
  GB_CHECK_INT(bytes % 4096, 0);
  if (refusing && !--refusing)
    return gbi_fail(error, GB_ERR_MEMORY, "no more of it");
  *device_p = host;
  registered++;
  return GB_OK;
}

static void unadopt(gbi_device *device, void *host) {
  (void)device;
  (void)host;
  registered--;
}

static const gbi_device_ops ops = {.adopt = adopt, .unadopt = unadopt};
static gbi_device device = {.ops = &ops};
static gbi_shared *sides[SIDES];

static void open_side(gbi_hostarea *area, int me, uint64_t bytes,
                      const char *why) {
  gbi_shared_params params = {.device = &device,
                              .area = area,
                              .members_count = SIDES,
                              .me = me,
                              .bytes = bytes,
                              .who = me ? "rank 7" : "rank 3",
                              .why = why};
  sides[me] = gbi_shared_open(&params);
  GB_CHECK(sides[me]);
}

static void say(const uint8_t *data, size_t bytes, int to, int member,
                gb_status want) {
  gb_error error;
  gbi_reader in;
  gbi_reader_init(&in, data, bytes);
  GB_CHECK_INT(gbi_shared_hear_offer(sides[to], member, &in, &error), want);
}

/* Everybody hears everybody, twice. */
static void agree(void) {
  uint8_t raw[GBI_SHARED_MESSAGE_BYTES];
  gbi_writer out;
  for (int from = 0; from < SIDES; from++) {
    gbi_writer_init(&out, raw, sizeof raw);
    gbi_shared_offer(sides[from], &out);
    GB_CHECK(!out.bad);
    for (int to = 0; to < SIDES; to++) say(raw, out.used, to, from, GB_OK);
  }
  for (int i = 0; i < SIDES; i++) gbi_shared_map(sides[i]);
  for (int from = 0; from < SIDES; from++) {
    gbi_writer_init(&out, raw, sizeof raw);
    gbi_shared_verdict(sides[from], &out);
    GB_CHECK(!out.bad);
    for (int to = 0; to < SIDES; to++) {
      gbi_reader in;
      gbi_reader_init(&in, raw, out.used);
      GB_CHECK_OK(gbi_shared_hear_verdict(sides[to], from, &in, NULL));
    }
  }
}

static void close_all(gbi_hostarea *area) {
  for (int i = 0; i < SIDES; i++) gbi_shared_close(sides[i]);
  GB_CHECK_INT(registered, 0);
  gbi_hostarea_close(area);
}

static void must_refuse(const char *why) {
  agree();
  for (int i = 0; i < SIDES; i++) {
    GB_CHECK_INT(gbi_shared_settle(sides[i]), 0);
    GB_CHECK_TEXT(gbi_shared_why(sides[i]), why);
  }
  GB_CHECK_INT(registered, 0);
}

GB_TEST(shared, what_one_writes_the_other_reads) {
  gbi_hostarea *area = gb_area_open(NULL);
  open_side(area, 0, BYTES, NULL);
  open_side(area, 1, 3 * BYTES + 100, NULL);
  agree();
  for (int i = 0; i < SIDES; i++) {
    GB_CHECK_INT(gbi_shared_settle(sides[i]), BYTES);
    GB_CHECK(!gbi_shared_why(sides[i])[0]);
  }
  GB_CHECK_INT(registered, SIDES * SIDES);
  memset(gbi_shared_at(sides[0], 0), 5, BYTES);
  memset(gbi_shared_at(sides[1], 1), 6, BYTES);
  for (int owner = 0; owner < SIDES; owner++) {
    const uint8_t *seen = gbi_shared_at(sides[!owner], owner);
    GB_CHECK(seen != gbi_shared_at(sides[owner], owner));
    GB_CHECK_INT(seen[0], 5 + owner);
    GB_CHECK_INT(seen[BYTES - 1], 5 + owner);
  }
  close_all(area);
}

GB_TEST(shared, who_gives_up_is_noticed) {
  gb_error error;
  gbi_hostarea *area = gb_area_open(NULL);
  for (int i = 0; i < SIDES; i++) open_side(area, i, BYTES, NULL);
  agree();
  for (int i = 0; i < SIDES; i++) {
    GB_CHECK_INT(gbi_shared_settle(sides[i]), BYTES);
    GB_CHECK_OK(gbi_shared_check(sides[i], NULL));
  }
  memset(gbi_shared_at(sides[0], 0), 255, BYTES); /* its word is beyond */
  GB_CHECK_OK(gbi_shared_check(sides[1], NULL));
  gbi_shared_give_up(sides[0]);
  GB_CHECK_INT(gbi_shared_check(sides[1], &error), GB_ERR_PEER);
  GB_CHECK_TEXT(error.text, "member 0 of the bridge has given up");
  close_all(area);
}

GB_TEST(shared, one_refusal_is_everybodys) {
  gbi_hostarea *area = gb_area_open(NULL);
  open_side(area, 0, BYTES, NULL);
  open_side(area, 1, 0, NULL);
  must_refuse("rank 7: GPUBRIDGE_SHARED_STAGING_BYTES is 0");
  close_all(area);
}
GB_TEST(shared, a_bridge_that_needs_none) {
  gbi_hostarea *area = gb_area_open(NULL);
  for (int i = 0; i < SIDES; i++) open_side(area, i, BYTES, "not here");
  must_refuse("not here");
  close_all(area);
}
/* Its own, then the other's: 1 to 4 in the order of the calls. */
GB_TEST(shared, what_cannot_be_registered) {
  for (int nth = 1; nth <= SIDES * SIDES; nth++) {
    gbi_hostarea *area = gb_area_open(NULL);
    refusing = nth;
    for (int i = 0; i < SIDES; i++) open_side(area, i, BYTES, NULL);
    must_refuse(nth % 2 ? "rank 3: no more of it" : "rank 7: no more of it");
    close_all(area);
  }
}

/* ---- what a peer may say ---- */

static size_t offer(uint8_t *raw, uint64_t bytes, uint64_t offset,
                    const char *why) {
  gbi_writer out;
  gbi_writer_init(&out, raw, GBI_SHARED_MESSAGE_BYTES);
  gbi_put_u64(&out, bytes);
  gbi_put_u64(&out, offset);
  gbi_put_text(&out, why);
  return out.used;
}

GB_TEST(shared, malformed_offers_are_refused) {
  uint8_t raw[GBI_SHARED_MESSAGE_BYTES];
  gbi_hostarea *area = gb_area_open(NULL);
  open_side(area, 0, BYTES, NULL);
  size_t used = offer(raw, BYTES, 4096, "");
  for (size_t cut = 0; cut < used; cut++) say(raw, cut, 0, 1, GB_ERR_PROTOCOL);
  say(raw, offer(raw, BYTES + 1, 4096, ""), 0, 1, GB_ERR_PROTOCOL);
  say(raw, offer(raw, UINT64_C(1) << 41, 4096, ""), 0, 1, GB_ERR_PROTOCOL);
  say(raw, offer(raw, 0, 0, ""), 0, 1, GB_ERR_PROTOCOL);
  say(raw, offer(raw, BYTES, 4096, "both"), 0, 1, GB_ERR_PROTOCOL);
  close_all(area);
}

/* Beyond the host's memory: no window, and so no area anywhere. */
GB_TEST(shared, windows_that_are_not_there) {
  static const uint64_t offsets[] = {UINT64_C(1) << 40, UINT64_MAX - 4095, 17};
  uint8_t raw[GBI_SHARED_MESSAGE_BYTES];
  for (int i = 0; i < 3; i++) {
    gbi_hostarea *area = gb_area_open(NULL);
    open_side(area, 0, BYTES, NULL);
    say(raw, offer(raw, BYTES, offsets[i], ""), 0, 1, GB_OK);
    gbi_shared_map(sides[0]);
    GB_CHECK_INT(gbi_shared_settle(sides[0]), 0);
    GB_CHECK_TEXT(gbi_shared_why(sides[0]), "lies outside");
    sides[1] = NULL;
    close_all(area);
  }
}
