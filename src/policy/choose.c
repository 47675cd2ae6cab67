#include "policy/choose.h"

#include <math.h>

enum { SIZES = GBI_CHOOSE_SIZES_MAX, POLICIES = GBI_CHOOSE_POLICIES_MAX };

/* A border must save this much at one size. */
static const double BORDER = 1.25;
/* Of a policy that was not measured where others were: never. */
static const double NEVER = 1e9;

double gbi_choose_best(const gbi_choose_times us, int size, int policies) {
  double best = 0;
  for (int p = 0; p < policies; p++)
    if (us[size][p] > 0 && (best <= 0 || us[size][p] < best))
      best = us[size][p];
  return best;
}

static double lost_at(const gbi_choose_times us, int size, int policy,
                      int policies) {
  double best = gbi_choose_best(us, size, policies), mine = us[size][policy];
  if (best <= 0) return 0;
  return mine > 0 ? log(mine / best) : NEVER;
}

/* The cheapest policy to have at the size before one that `to` takes. */
static int cheapest(const double lost[POLICIES], int to, int policies,
                    double *sum_p) {
  int from = to;
  *sum_p = lost[to];
  for (int q = 0; q < policies; q++) {
    double sum = lost[q] + (q == to ? 0 : log(BORDER));
    if (sum >= *sum_p) continue;
    from = q;
    *sum_p = sum;
  }
  return from;
}

void gbi_choose(const gbi_choose_times us, int sizes, int policies,
                int winner[GBI_CHOOSE_SIZES_MAX]) {
  double lost[SIZES][POLICIES], before_sum;
  int before[SIZES][POLICIES], last = 0;
  for (int s = 0; s < sizes; s++)
    for (int p = 0; p < policies; p++) {
      lost[s][p] = lost_at(us, s, p, policies);
      before[s][p] = p;
      if (!s) continue;
      before[s][p] = cheapest(lost[s - 1], p, policies, &before_sum);
      lost[s][p] += before_sum;
    }
  for (int p = 1; p < policies; p++)
    if (lost[sizes - 1][p] < lost[sizes - 1][last]) last = p;
  for (int s = sizes - 1; s >= 0; s--) {
    winner[s] = last;
    last = before[s][last];
  }
}
