/* Proves the choice from measured times: the fastest wins, a border that saves
 * little is not made, one that saves much is, gaps follow their neighbours, and
 * over thousands of random tables no other choice is cheaper. */
#include "policy/choose.h"

#include <math.h>
#include <stdlib.h>

#include "harness/gb_test.h"

/* Columns are policies; 0 is not measured. */
static void must_choose(int sizes, int policies, const double rows[][3],
                        const char *want) {
  gbi_choose_times us = {{0}};
  int winner[GBI_CHOOSE_SIZES_MAX];
  char got[GBI_CHOOSE_SIZES_MAX + 1] = "";
  for (int s = 0; s < sizes; s++)
    for (int p = 0; p < policies; p++) us[s][p] = rows[s][p];
  gbi_choose(us, sizes, policies, winner);
  for (int s = 0; s < sizes; s++) got[s] = (char)('0' + winner[s]);
  if (strcmp(got, want))
    gb_test_fail(__FILE__, __LINE__, "chose %s, not %s", got, want);
}

GB_TEST(choose, the_fastest) {
  must_choose(3, 3, (const double[][3]){{5, 4, 9}, {5, 4, 9}, {5, 4, 9}},
              "111");
  must_choose(4, 3,
              (const double[][3]){{1, 2, 4}, {1, 2, 4}, {9, 6, 2}, {9, 6, 2}},
              "0022");
}

/* Both borders of a dent of 20 % cost more than it saves; of 60 %, they pay. */
GB_TEST(choose, noise_makes_no_border) {
  must_choose(3, 2, (const double[][3]){{10, 11}, {12, 10}, {10, 11}}, "000");
  must_choose(3, 2, (const double[][3]){{10, 16}, {18, 10}, {10, 16}}, "010");
}

GB_TEST(choose, a_draw_goes_to_the_first) {
  must_choose(2, 3, (const double[][3]){{7, 7, 7}, {7, 7, 7}}, "00");
  must_choose(2, 3, (const double[][3]){{0, 0, 0}, {0, 0, 0}}, "00");
}

/* What was not measured beside others is not taken, were it the only one that
 * needs no border; what nobody measured follows. */
GB_TEST(choose, gaps) {
  must_choose(3, 2, (const double[][3]){{9, 3}, {9, 3}, {900, 0}}, "110");
  must_choose(4, 2, (const double[][3]){{0, 0}, {9, 3}, {0, 0}, {0, 0}},
              "1111");
  must_choose(4, 2, (const double[][3]){{9, 3}, {0, 0}, {0, 0}, {3, 9}},
              "1000");
}

static double price(const gbi_choose_times us, int sizes, int policies,
                    const int *winner) {
  double sum = 0;
  for (int s = 0; s < sizes; s++) {
    sum += log(us[s][winner[s]] / gbi_choose_best(us, s, policies));
    if (s && winner[s] != winner[s - 1]) sum += log(1.25);
  }
  return sum;
}

GB_TEST(choose, none_is_cheaper) {
  enum { SIZES = 5, POLICIES = 3, ALL = 3 * 3 * 3 * 3 * 3 };
  srand(7);
  for (int round = 0; round < 2000; round++) {
    gbi_choose_times us = {{0}};
    int winner[GBI_CHOOSE_SIZES_MAX], other[SIZES];
    for (int s = 0; s < SIZES; s++)
      for (int p = 0; p < POLICIES; p++) us[s][p] = 1 + rand() % 8;
    gbi_choose(us, SIZES, POLICIES, winner);
    double mine = price(us, SIZES, POLICIES, winner);
    for (int k = 0; k < ALL; k++) {
      for (int s = 0, rest = k; s < SIZES; s++, rest /= POLICIES)
        other[s] = rest % POLICIES;
      GB_CHECK(price(us, SIZES, POLICIES, other) > mine - 1e-9);
    }
  }
}
