/* Groups of some ranks: results of every collective in many lists of members,
 * several groups at a time and from several threads, names and numbers, members
 * that differ or do not come, closing in any order, failure in a group (S091's
 * and S092's C side). */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "job/job.h"

typedef struct members {
  int ranks[8], count;
} members;

static gb_group *open_group(gb_job *job, const members *m, const char *name) {
  gb_group_params params = GB_GROUP_PARAMS_INIT;
  gb_group *group = NULL;
  params.name = name;
  params.timeout_ms = 20000;
  MUST(gb_group_open(job, m->ranks, m->count, &params, &group, error));
  return group;
}

static int place_of(const members *m, int rank) {
  for (int i = 0; i < m->count; i++)
    if (m->ranks[i] == rank) return i;
  return -1;
}

/* Every collective, by group rank, exact. */
static void use(gb_group *group, const members *m) {
  int me = place_of(m, gb_rank()), n = m->count;
  float sum = 0, value[37], rows[8 * 3], row[3], slice[2], slices[16];
  for (int i = 0; i < n; i++) sum += (float)(m->ranks[i] + 1);
  for (int i = 0; i < 37; i++) value[i] = (float)(gb_rank() + 1) * (float)i;
  gb_buffer buffer = {value, 37, GB_FLOAT32};
  MUST(gb_all_reduce(group, &buffer, GB_SUM, NULL, error));
  for (int i = 0; i < 37; i++) GB_CHECK(value[i] == sum * (float)i);
  for (int root = 0; root < n; root++) {
    row[0] = (float)(me + 10);
    gb_buffer one = {row, 1, GB_FLOAT32};
    MUST(gb_broadcast(group, &one, root, NULL, error));
    GB_CHECK(row[0] == (float)(root + 10));
  }
  for (int i = 0; i < 3; i++) row[i] = (float)(gb_rank() * 3 + i);
  gb_buffer in = {row, 3, GB_FLOAT32};
  gb_buffer out = {rows, (size_t)n * 3, GB_FLOAT32};
  MUST(gb_all_gather(group, &out, &in, NULL, error));
  for (int r = 0; r < n; r++)
    for (int i = 0; i < 3; i++)
      GB_CHECK(rows[r * 3 + i] == (float)(m->ranks[r] * 3 + i));
  for (int i = 0; i < n * 2; i++) slices[i] = (float)(i + gb_rank());
  gb_buffer all = {slices, (size_t)n * 2, GB_FLOAT32};
  gb_buffer mine = {slice, 2, GB_FLOAT32};
  MUST(gb_reduce_scatter(group, &mine, &all, GB_SUM, NULL, error));
  for (int i = 0; i < 2; i++)
    GB_CHECK(slice[i] == (float)(n * (me * 2 + i)) + sum - (float)n);
  MUST(gb_barrier(group, NULL, error));
}

static void each_list(const char *vendors) {
  static const members lists[] = {
      {{0, 1}, 2},       {{1, 3}, 2},    {{0, 2, 3}, 3}, {{2}, 1},
      {{0, 1, 2, 3}, 4}, {{3, 1, 0}, 3}, {{3, 0}, 2},
  };
  (void)vendors;
  gb_job *job = must_open(30000, NULL);
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
    if (place_of(&lists[i], gb_rank()) < 0) continue;
    gb_group *group = open_group(job, &lists[i], NULL);
    gb_group_info info = {.size = sizeof info};
    GB_CHECK_OK(gb_group_get_info(group, &info));
    GB_CHECK_INT(info.rank, place_of(&lists[i], gb_rank()));
    GB_CHECK_INT(info.count, lists[i].count);
    GB_CHECK(!memcmp(info.ranks, lists[i].ranks,
                     sizeof *info.ranks * (size_t)info.count));
    use(group, &lists[i]);
    if (i % 2) GB_CHECK_OK(gb_group_close(group, NULL));
  }
  must_sum(job, 3);
  must_close(job); /* with some groups open */
}

GB_TEST(group, two_and_two, .ranks = 4, .vendors = "nnaa") {
  each_list("nnaa");
}
GB_TEST(group, interleaved, .ranks = 4, .vendors = "nana") {
  each_list("nana");
}
GB_TEST(group, one_island, .ranks = 4, .vendors = "nnnn") {
  each_list("nnnn");
}
GB_TEST(group, two_hosts, .ranks = 4, .vendors = "nnaa") {
  char host[16];
  snprintf(host, sizeof host, "host%d", gb_rank() % 2);
  setenv("GPUBRIDGE_SIM_HOSTNAME", host, 1);
  each_list("nnaa");
}
GB_TEST(group, flat_policy, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(30000, "flat");
  members m = {{0, 1, 3}, 3};
  if (place_of(&m, gb_rank()) >= 0) use(open_group(job, &m, "x"), &m);
  must_close(job);
}

/* Islands, bridge and policy are the group's own. */
GB_TEST(group, own_islands, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(30000, NULL);
  members island = gb_rank() < 2 ? (members){{0, 1}, 2} : (members){{2, 3}, 2};
  members mixed = {{1, 2}, 2};
  gb_group_info info = {.size = sizeof info};
  GB_CHECK_OK(
      gb_group_get_info(open_group(job, &island, NULL), &info));
  GB_CHECK_INT(info.islands_count, 1);
  GB_CHECK(!strcmp(info.policy, "auto"));
  GB_CHECK(!strcmp(info.bridge, "none"));
  GB_CHECK(info.id != 0);
  if (place_of(&mixed, gb_rank()) >= 0) {
    GB_CHECK_OK(
        gb_group_get_info(open_group(job, &mixed, "mixed"), &info));
    GB_CHECK_INT(info.islands_count, 2);
    GB_CHECK(!strcmp(info.policy, "reduce-bridge-broadcast"));
    GB_CHECK(!strcmp(info.bridge, "shm"));
    GB_CHECK_INT(info.island_of[0], 0);
    GB_CHECK_INT(info.island_of[1], 1);
  }
  GB_CHECK_OK(gb_group_get_info(gb_job_world(job), &info));
  GB_CHECK_INT(info.id, 0);
  GB_CHECK_INT(info.count, 4);
  must_sum(job, 1); /* rank 0 serves the set-up of groups: not to leave yet */
  must_close(job);
}

/* Calls of different groups run at the same time, in any order: rank by rank,
 * two threads, and async ones. */
typedef struct user {
  gb_group *group;
  int count;
} user;

static void *sums(void *arg) {
  const user *u = arg;
  for (int i = 0; i < 200; i++) {
    float one = 1;
    gb_buffer buffer = {&one, 1, GB_FLOAT32};
    MUST(gb_all_reduce(u->group, &buffer, GB_SUM, NULL, error));
    if (one != (float)u->count)
      gb_test_fail(__FILE__, __LINE__, "sum is %g", (double)one);
  }
  return NULL;
}

GB_TEST(group, at_the_same_time, .ranks = 4, .vendors = "nana",
        .timeout_ms = 60000) {
  gb_job *job = must_open(30000, NULL);
  members row = gb_rank() < 2 ? (members){{0, 1}, 2} : (members){{2, 3}, 2};
  members column =
      gb_rank() % 2 ? (members){{1, 3}, 2} : (members){{0, 2}, 2};
  user users[3] = {{open_group(job, &row, "row"), 2},
                   {open_group(job, &column, "column"), 2},
                   {gb_job_world(job), 4}};
  pthread_t threads[3];
  for (int i = 0; i < 3; i++)
    GB_CHECK(!pthread_create(&threads[i], NULL, sums, &users[i]));
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  /* Async: started in another order on every rank. */
  float values[3] = {1, 1, 1};
  gb_work *works[3];
  for (int k = 0; k < 3; k++) {
    int i = (k + gb_rank()) % 3;
    gb_buffer buffer = {&values[i], 1, GB_FLOAT32};
    MUST(gb_all_reduce(users[i].group, &buffer, GB_SUM, &works[i], error));
  }
  for (int i = 0; i < 3; i++) {
    MUST(gb_work_wait(works[i], 0, error));
    gb_work_release(works[i]);
    GB_CHECK(values[i] == (float)users[i].count);
  }
  must_close(job);
}

GB_TEST(group, sequence_numbers_are_its_own, .ranks = 2, .vendors = "na") {
  gb_job *job = must_open(30000, NULL);
  members m = {{0, 1}, 2};
  gb_group *group = open_group(job, &m, NULL);
  must_sum(job, 5);
  float one = 1;
  gb_buffer buffer = {&one, 1, GB_FLOAT32};
  gb_work *work;
  MUST(gb_all_reduce(group, &buffer, GB_SUM, &work, error));
  MUST(gb_work_wait(work, 0, error));
  GB_CHECK_INT(gb_work_seq(work), 0);
  gb_work_release(work);
  must_close(job);
}

GB_TEST(group, refused_lists, .ranks = 2, .vendors = "na") {
  const struct {
    int ranks[3], count;
    const char *word;
  } bad[] = {{{gb_rank(), gb_rank()}, 2, "twice"},
             {{0, 2}, 2, "rank 2, but"},
             {{-1, 0}, 2, "rank -1"},
             {{0, 1, 1}, 3, "1 to 2 ranks"},
             {{0}, 0, "not 0"}};
  gb_job *job = must_open(30000, NULL);
  gb_group *group;
  gb_error error;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    GB_CHECK_INT(gb_group_open(job, bad[i].ranks, bad[i].count, NULL, &group,
                               &error),
                 GB_ERR_ARGUMENT);
    GB_CHECK_TEXT(error.text, bad[i].word);
  }
  int other = 1 - gb_rank();
  GB_CHECK_INT(gb_group_open(job, &other, 1, NULL, &group, &error),
               GB_ERR_ARGUMENT);
  GB_CHECK_TEXT(error.text, "not among");
  must_sum(job, 2);
  must_close(job);
}

/* An open group's name is taken for its members, and the job goes on. */
GB_TEST(group, name_is_taken, .ranks = 3, .vendors = "nna") {
  gb_job *job = must_open(30000, NULL);
  members pair = {{0, 1}, 2}, all = {{0, 1, 2}, 3};
  if (gb_rank() < 2) open_group(job, &pair, "same");
  use(open_group(job, &all, "same"), &all);
  gb_group_params params = GB_GROUP_PARAMS_INIT;
  gb_group *group;
  gb_error error;
  params.name = "same";
  GB_CHECK_INT(
      gb_group_open(job, all.ranks, all.count, &params, &group, &error),
      GB_ERR_ARGUMENT);
  GB_CHECK_TEXT(error.text, "\"same\" open");
  must_sum(job, 2);
  use(open_group(job, &all, "another"), &all);
  must_close(job);
}

GB_TEST(group, name_is_free_after_close, .ranks = 2, .vendors = "na") {
  gb_job *job = must_open(30000, NULL);
  members m = {{1, 0}, 2};
  for (int i = 0; i < 5; i++) {
    gb_group *group = open_group(job, &m, "again");
    use(group, &m);
    GB_CHECK_OK(gb_group_close(group, NULL));
  }
  must_close(job);
}

/* Nobody waits for ever, and the text says what each does. */
GB_TEST(group, members_differ, .ranks = 3, .vendors = "nna") {
  gb_job *job = must_open(30000, NULL);
  members a = {{0, 1, 2}, 3}, b = {{0, 1}, 2};
  const members *m = gb_rank() == 1 ? &b : &a;
  gb_group_params params = GB_GROUP_PARAMS_INIT;
  params.name = "x";
  params.timeout_ms = gb_rank() == 1 ? 3000 : 1000;
  gb_group *group;
  gb_error error;
  GB_CHECK_INT(gb_group_open(job, m->ranks, m->count, &params, &group, &error),
               GB_ERR_TIMEOUT);
  if (gb_rank() != 1)
    GB_CHECK_TEXT(error.text,
                  "rank 1 sets up a group of ranks 0, 1 meanwhile");
  must_sum(job, 1);
  must_close(job);
}

GB_TEST(group, a_member_does_not_come, .ranks = 3, .vendors = "nna") {
  gb_job *job = must_open(30000, NULL);
  members m = {{0, 1, 2}, 3};
  gb_group_params params = GB_GROUP_PARAMS_INIT;
  params.timeout_ms = 1000;
  if (gb_rank() < 2) {
    gb_group *group;
    gb_error error;
    double start = test_now();
    GB_CHECK_INT(
        gb_group_open(job, m.ranks, m.count, &params, &group, &error),
        GB_ERR_TIMEOUT);
    GB_CHECK(test_now() - start < 5);
    GB_CHECK_TEXT(error.text, "rank 2 did not come");
  }
  must_sum(job, 1); /* the job itself is as before */
  must_close(job);
}

/* Different calls in a group end the whole job with both sides. */
GB_TEST(group, mismatch_in_a_group, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(10000, NULL);
  members m = {{1, 2}, 2};
  gb_error error;
  float value[2] = {0};
  gb_buffer buffer = {value, gb_rank() == 1 ? 1 : 2, GB_FLOAT32};
  if (place_of(&m, gb_rank()) >= 0) {
    gb_group *group = open_group(job, &m, NULL);
    GB_CHECK_INT(gb_all_reduce(group, &buffer, GB_SUM, NULL, &error),
                 GB_ERR_MISMATCH);
    GB_CHECK_TEXT(error.text, "rank 1 called all_reduce number 0 of 1");
    GB_CHECK_TEXT(error.text, "rank 2 called all_reduce number 0 of 2");
  } else {
    GB_CHECK(sum_once(job, value, &error) != GB_OK);
    GB_CHECK_TEXT(error.text, "rank 2 called all_reduce number 0 of 2");
  }
  must_close(job);
}

GB_TEST(group, a_member_dies, .ranks = 4, .vendors = "nnaa", .expect = "00k0") {
  gb_job *job = must_open(30000, NULL);
  members m = {{1, 2, 3}, 3};
  gb_error error;
  float one = 1;
  gb_buffer buffer = {&one, 1, GB_FLOAT32};
  gb_group *group = gb_rank() ? open_group(job, &m, NULL) : gb_job_world(job);
  if (gb_rank() == 2) kill(getpid(), SIGKILL);
  double start = test_now();
  GB_CHECK(gb_all_reduce(group, &buffer, GB_SUM, NULL, &error) != GB_OK);
  GB_CHECK(test_now() - start < 2);
  GB_CHECK_TEXT(error.text, "rank 2");
  must_close(job);
}

GB_TEST(group, late_member_is_named, .ranks = 3, .vendors = "nna") {
  gb_job *job = must_open(30000, NULL);
  members m = {{0, 1, 2}, 3};
  gb_group_params params = GB_GROUP_PARAMS_INIT;
  params.timeout_ms = 1500;
  gb_group *group = NULL;
  MUST(gb_group_open(job, m.ranks, m.count, &params, &group, error));
  gb_error error;
  float one = 1;
  gb_buffer buffer = {&one, 1, GB_FLOAT32};
  if (gb_rank() < 2) {
    GB_CHECK_INT(gb_all_reduce(group, &buffer, GB_SUM, NULL, &error),
                 GB_ERR_TIMEOUT);
    GB_CHECK_TEXT(error.text, "not arrived at this call: rank 2");
  } else {
    GB_CHECK(sum_once(job, &one, &error) != GB_OK);
  }
  must_close(job);
}
