/* choose: which policy takes which sizes, from measured times.
 *
 * Pure, and includes nothing of the library: the command links it too. */
#ifndef GBI_POLICY_CHOOSE_H
#define GBI_POLICY_CHOOSE_H

#define GBI_CHOOSE_SIZES_MAX 24
#define GBI_CHOOSE_POLICIES_MAX 8

/* Times of one collective: us[size][policy], sizes ascending; 0: that policy
 * was not measured there. */
typedef double gbi_choose_times[GBI_CHOOSE_SIZES_MAX][GBI_CHOOSE_POLICIES_MAX];

/* The least time at a size, 0 where nothing was measured. */
double gbi_choose_best(const gbi_choose_times us, int size, int policies);

/* winner[size] for each size, an index of a policy: what is lost to the best,
 * summed over the sizes in logarithms, plus the price of each border between
 * two policies, is the least. So a border that only noise asks for does not
 * pay. A size where nothing was measured takes the winner of the next larger
 * measured one, else of the largest; a draw goes to the lower index. */
void gbi_choose(const gbi_choose_times us, int sizes, int policies,
                int winner[GBI_CHOOSE_SIZES_MAX]);

#endif
