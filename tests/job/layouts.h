/* The layouts that every collective is tried in: X(name, ranks, vendors). */
#ifndef GB_TESTS_LAYOUTS_H
#define GB_TESTS_LAYOUTS_H

#define EACH_LAYOUT(X)           \
  X(two_and_two, 4, "nnaa")      \
  X(interleaved, 4, "nana")      \
  X(three_and_one, 4, "nnna")    \
  X(one_and_three, 4, "naaa")    \
  X(one_and_one, 2, "na")        \
  X(four_and_four, 8, "nnnnaaaa") \
  X(one_island, 4, "nnnn")       \
  X(alone, 1, "n")

#endif
