/* A bridge and a policy of the caller's own: right results of every collective
 * in several layouts and groups, over nothing but messages between two ranks;
 * failures, refusals and interruptions with one text on every rank; what is
 * asked when (spec 1.9, 1.10, 6.7). */
#include <stdio.h>
#include <string.h>

#include "job/job.h"

enum { RANKS_MAX = 8, BYTES_MAX = 1 << 16 };

/* What the callbacks of one test share. */
typedef struct caller {
  gb_job *job;
  int opened, closed, ran; /* calls */
  int fails_on;            /* rank whose run or all_reduce fails, -1 none */
  int code;                /* with this code */
  int fits, accepts;
  int calls_inside; /* run makes a collective of its own group */
} caller;

typedef struct link {
  caller *owner;
  int ranks[RANKS_MAX], count;
} link_t;

#define CALLER_INIT \
  { .fails_on = -1, .code = GB_PART_FAILED }

static int fail(const caller *c, char *text, size_t bytes) {
  if (c->fails_on != gb_rank()) return GB_PART_OK;
  snprintf(text, bytes, "boom");
  return c->code;
}

/* ---- all contributions, in rank order, by messages ---- */

static void add(const gb_buffer *to, const void *from, gb_redop op) {
  for (size_t i = 0; i < to->count; i++) {
    if (to->dtype == GB_FLOAT32)
      ((float *)to->data)[i] += ((const float *)from)[i];
    else if (to->dtype == GB_UINT8)
      ((uint8_t *)to->data)[i] += ((const uint8_t *)from)[i];
    else if (op == GB_MAX && to->dtype == GB_INT32)
      ((int *)to->data)[i] = ((int *)to->data)[i] > ((const int *)from)[i]
                                 ? ((int *)to->data)[i]
                                 : ((const int *)from)[i];
    else
      GB_CHECK(!"a type that this test does not send");
  }
}

/* A message of a callback: it fails once the job has. */
static int sent(gb_status status, const gb_error *error, char *text,
                size_t bytes) {
  if (status == GB_OK) return GB_PART_OK;
  snprintf(text, bytes, "no message: %.200s", error->text);
  return GB_PART_FAILED;
}

/* `buffer` of ranks[from] to all the others. */
static int spread(const link_t *l, int from, const gb_buffer *buffer,
                  char *text, size_t bytes) {
  gb_group *world = gb_job_world(l->owner->job);
  gb_error error;
  int code = GB_PART_OK;
  for (int i = 0; i < l->count && !code; i++) {
    if (i == from) continue;
    if (l->ranks[from] == gb_rank())
      code = sent(gb_send(world, buffer, l->ranks[i], 77, NULL, &error), &error,
                  text, bytes);
    else if (l->ranks[i] == gb_rank())
      code =
          sent(gb_recv(world, buffer, l->ranks[from], 77, NULL, NULL, &error),
               &error, text, bytes);
  }
  return code;
}

static int sum(const link_t *l, const gb_buffer *buffer, gb_redop op,
               char *text, size_t text_bytes) {
  static uint8_t mine[BYTES_MAX], row[BYTES_MAX];
  size_t bytes = buffer->count * gb_dtype_bytes(buffer->dtype);
  GB_CHECK(bytes <= BYTES_MAX);
  memcpy(mine, buffer->data, bytes);
  for (int i = 0; i < l->count; i++) {
    gb_buffer one = {l->ranks[i] == gb_rank() ? mine : row, buffer->count,
                     buffer->dtype};
    int code = spread(l, i, &one, text, text_bytes);
    if (code) return code;
    if (i)
      add(buffer, one.data, op);
    else
      memcpy(buffer->data, one.data, bytes);
  }
  return GB_PART_OK;
}

/* ---- the bridge ---- */

static int bridge_open(void *arg, const gb_bridge_site *site, void **link_p,
                       char *text, size_t bytes) {
  caller *c = arg;
  gb_peer_info peer = {.size = sizeof peer};
  GB_CHECK_OK(gb_job_get_peer(site->job, site->ranks[0], &peer));
  c->opened++;
  GB_CHECK(site->count >= 2 && site->timeout_ms == 20000);
  if (!site->is_member) return GB_PART_OK;
  link_t *l = calloc(1, sizeof *l);
  l->owner = c;
  l->count = site->count;
  memcpy(l->ranks, site->ranks, sizeof *l->ranks * (size_t)site->count);
  *link_p = l;
  return GB_PART_OK;
}

static int bridge_open_fails(void *arg, const gb_bridge_site *site,
                             void **link_p, char *text, size_t bytes) {
  int code = fail(arg, text, bytes);
  return code ? code : bridge_open(arg, site, link_p, text, bytes);
}

static int bridge_all_reduce(void *arg, const gb_buffer *buffer, gb_redop op,
                             char *text, size_t bytes) {
  link_t *l = arg;
  l->owner->ran++;
  int code = fail(l->owner, text, bytes);
  return code ? code : sum(l, buffer, op, text, bytes);
}

static int bridge_broadcast(void *arg, const gb_buffer *buffer, int src,
                            char *text, size_t bytes) {
  link_t *l = arg;
  int from = 0;
  while (l->ranks[from] != src) from++;
  return spread(l, from, buffer, text, bytes);
}

static void bridge_close(void *arg) {
  ((link_t *)arg)->owner->closed++;
  free(arg);
}

static gb_bridge_ops bridge_of(caller *c) {
  return (gb_bridge_ops){.size = sizeof(gb_bridge_ops),
                         .arg = c,
                         .name = "messages",
                         .redops = 1u << GB_SUM,
                         .open = bridge_open,
                         .all_reduce = bridge_all_reduce,
                         .broadcast = bridge_broadcast,
                         .close = bridge_close};
}

/* ---- the policy ---- */

static int policy_fits(void *arg, const char *const *labels, int count,
                       char *text, size_t bytes) {
  GB_CHECK_INT(count, gb_world());
  GB_CHECK(!strcmp(labels[0], "nvidia"));
  return ((caller *)arg)->fits;
}

static int policy_accepts(void *arg, const gb_policy_call *call, char *text,
                          size_t bytes) {
  if (call->redop == GB_MIN) {
    snprintf(text, bytes, "no minimum here");
    return GB_PART_NO;
  }
  return ((caller *)arg)->accepts;
}

static link_t everyone(caller *c) {
  link_t l = {.owner = c, .count = gb_world()};
  for (int i = 0; i < l.count; i++) l.ranks[i] = i;
  return l;
}

static int policy_run(void *arg, const gb_policy_call *call, char *text,
                      size_t bytes) {
  static uint8_t all[BYTES_MAX];
  caller *c = arg;
  link_t l = everyone(c);
  size_t size = gb_dtype_bytes(call->dtype);
  c->ran++;
  int code = fail(c, text, bytes);
  if (code) return code;
  if (c->calls_inside) {
    gb_error error;
    float value = 1;
    GB_CHECK_INT(sum_once(c->job, &value, &error), GB_ERR_STATE);
    GB_CHECK_TEXT(error.text, "use another group");
  }
  gb_buffer out = {call->out, call->out_count, call->dtype};
  if (!strcmp(call->op, "broadcast"))
    return spread(&l, call->src, &out, text, bytes);
  if (!strcmp(call->op, "all_reduce"))
    return sum(&l, &out, (gb_redop)call->redop, text, bytes);
  if (!strcmp(call->op, "all_gather_into_tensor")) {
    uint8_t *rows = call->out;
    size_t row_bytes = call->in_count * size;
    memcpy(rows + (size_t)gb_rank() * row_bytes, call->in, row_bytes);
    for (int r = 0; r < l.count && !code; r++) {
      gb_buffer row = {rows + (size_t)r * row_bytes, call->in_count,
                       call->dtype};
      code = spread(&l, r, &row, text, bytes);
    }
    return code;
  }
  GB_CHECK(!strcmp(call->op, "reduce_scatter_tensor"));
  GB_CHECK(call->in_count * size <= sizeof all);
  memcpy(all, call->in, call->in_count * size);
  gb_buffer total = {all, call->in_count, call->dtype};
  code = sum(&l, &total, (gb_redop)call->redop, text, bytes);
  memcpy(call->out, all + (size_t)gb_rank() * call->out_count * size,
         call->out_count * size);
  return code;
}

static gb_policy_ops policy_of(caller *c) {
  return (gb_policy_ops){.size = sizeof(gb_policy_ops),
                         .arg = c,
                         .name = "mine",
                         .settings = "{}",
                         .fits = policy_fits,
                         .accepts = policy_accepts,
                         .run = policy_run};
}

/* ---- opening ---- */

static gb_status open_with(caller *c, const gb_bridge_ops *bridge,
                           const gb_policy_ops *policy, gb_error *error) {
  gb_job_params params = GB_JOB_PARAMS_INIT;
  params.timeout_ms = 20000;
  params.bridge_ops = bridge;
  params.policy_ops = policy;
  if (bridge) params.bridge = bridge->name;
  if (policy) params.policy = policy->name;
  return gb_job_open(&params, &c->job, error);
}

static void must_open_with(caller *c, const gb_bridge_ops *bridge,
                           const gb_policy_ops *policy) {
  MUST(open_with(c, bridge, policy, error));
}

/* ---- results ---- */

/* Every collective of `group`, whose members are the global ranks `ranks`. */
static void use(gb_group *group, const int *ranks, int n) {
  float sum_of = 0, value[40], rows[3 * RANKS_MAX], slices[2 * RANKS_MAX];
  int me = 0;
  for (int i = 0; i < n; i++) {
    sum_of += (float)(ranks[i] + 1);
    if (ranks[i] == gb_rank()) me = i;
  }
  for (int times = 0; times < 3; times++) {
    gb_work *work = NULL;
    for (int i = 0; i < 40; i++) value[i] = (float)((gb_rank() + 1) * i);
    gb_buffer buffer = {value, 40, GB_FLOAT32};
    MUST(gb_all_reduce(group, &buffer, GB_SUM, times == 2 ? &work : NULL,
                       error));
    if (work) MUST(gb_work_wait(work, 0, error));
    gb_work_release(work);
    for (int i = 0; i < 40; i++) GB_CHECK(value[i] == sum_of * (float)i);
    MUST(gb_all_reduce(group, &buffer, GB_AVG, NULL, error));
    for (int i = 0; i < 40; i++) GB_CHECK(value[i] == sum_of * (float)i);
  }
  uint16_t half[3] = {0x7bff, 0x3c00, 0}; /* 65504: a sum would overflow */
  gb_buffer halves = {half, 3, GB_FLOAT16};
  MUST(gb_all_reduce(group, &halves, GB_AVG, NULL, error));
  GB_CHECK(half[0] == 0x7bff && half[1] == 0x3c00 && !half[2]);
  for (int root = 0; root < n; root++) {
    uint64_t word = (uint64_t)(ranks[me] + 10);
    gb_buffer one = {&word, 1, GB_UINT64};
    MUST(gb_broadcast(group, &one, root, NULL, error));
    GB_CHECK(word == (uint64_t)(ranks[root] + 10));
    float part = (float)(gb_rank() + 1);
    gb_buffer single = {&part, 1, GB_FLOAT32};
    MUST(gb_reduce(group, &single, GB_SUM, root, NULL, error));
    GB_CHECK(part == (me == root ? sum_of : (float)(gb_rank() + 1)));
  }
  float row[3], slice[2], want = 0;
  for (int i = 0; i < 3; i++) row[i] = (float)(gb_rank() * 3 + i);
  gb_buffer in = {row, 3, GB_FLOAT32}, out = {rows, (size_t)n * 3, GB_FLOAT32};
  MUST(gb_all_gather(group, &out, &in, NULL, error));
  for (int i = 0; i < 3 * n; i++)
    GB_CHECK(rows[i] == (float)(ranks[i / 3] * 3 + i % 3));
  for (int i = 0; i < 2 * n; i++) slices[i] = (float)(i + gb_rank());
  for (int i = 0; i < n; i++) want += (float)(2 * me + ranks[i]);
  gb_buffer all = {slices, (size_t)n * 2, GB_FLOAT32};
  gb_buffer mine = {slice, 2, GB_FLOAT32};
  MUST(gb_reduce_scatter(group, &mine, &all, GB_SUM, NULL, error));
  GB_CHECK(slice[0] == want && slice[1] == want + (float)n);
  GB_CHECK(slices[1] == (float)(1 + gb_rank()));
  gb_buffer nothing = {NULL, 0, GB_FLOAT32};
  MUST(gb_all_reduce(group, &nothing, GB_SUM, NULL, error));
  MUST(gb_barrier(group, NULL, error));
}

static void use_world(caller *c) {
  int ranks[RANKS_MAX];
  for (int i = 0; i < gb_world(); i++) ranks[i] = i;
  use(gb_job_world(c->job), ranks, gb_world());
}

static void bridge_in(const char *policy) {
  caller c = CALLER_INIT;
  gb_bridge_ops bridge = bridge_of(&c);
  must_open_with(&c, &bridge, NULL);
  gb_job_info info = {.size = sizeof info};
  GB_CHECK_OK(gb_job_get_info(c.job, &info));
  GB_CHECK(!strcmp(info.bridge, "messages"));
  GB_CHECK_INT(c.opened, 1);
  use_world(&c);
  GB_CHECK(!c.ran == !info.is_leader);
  must_close(c.job);
  GB_CHECK_INT(c.closed, info.is_leader);
}

GB_TEST(custom, bridge_two_and_two, .ranks = 4, .vendors = "nnaa") {
  bridge_in(NULL);
}
GB_TEST(custom, bridge_one_and_three, .ranks = 4, .vendors = "naaa") {
  bridge_in(NULL);
}
GB_TEST(custom, bridge_interleaved, .ranks = 4, .vendors = "nana") {
  bridge_in(NULL);
}
GB_TEST(custom, bridge_three_islands, .ranks = 7, .vendors = "nnnnnnn") {
  name_three_islands();
  bridge_in(NULL);
}

/* Each group opens its own, on its members only. */
GB_TEST(custom, bridge_of_groups, .ranks = 4, .vendors = "nnaa") {
  caller c = CALLER_INIT;
  gb_bridge_ops bridge = bridge_of(&c);
  must_open_with(&c, &bridge, NULL);
  static const int mixed[] = {0, 1, 3}, island[] = {2, 3};
  gb_group *group = NULL;
  if (gb_rank() != 2) {
    MUST(gb_group_open(c.job, mixed, 3, NULL, &group, error));
    GB_CHECK_INT(c.opened, 2);
    use(group, mixed, 3);
    GB_CHECK_OK(gb_group_close(group, NULL));
    GB_CHECK_INT(c.closed, gb_rank() != 1);
  }
  if (gb_rank() >= 2) {
    int opened = c.opened;
    MUST(gb_group_open(c.job, island, 2, NULL, &group, error));
    GB_CHECK_INT(c.opened, opened); /* one island has nothing to bridge */
  }
  use_world(&c);
  must_close(c.job);
}

GB_TEST(custom, bridge_fails, .ranks = 4, .vendors = "nnaa") {
  caller c = CALLER_INIT;
  gb_bridge_ops bridge = bridge_of(&c);
  gb_error error;
  float value = 1;
  must_open_with(&c, &bridge, NULL);
  must_sum(c.job, 1);
  meet(0); /* else the failure could find others in this call */
  c.fails_on = 2;
  double start = test_now();
  gb_status status = sum_once(c.job, &value, &error);
  /* rank 0 waits for a message in its callback, which ends with the job */
  must_fail(status, &error, start, 8, "failed on rank 2 (host", "boom");
  GB_CHECK_TEXT(error.text, "all_reduce number 1 of 1 float32, sum");
  must_close(c.job);
}

GB_TEST(custom, bridge_cannot_open, .ranks = 4, .vendors = "nnaa") {
  caller c = CALLER_INIT;
  gb_bridge_ops bridge = bridge_of(&c);
  bridge.open = bridge_open_fails;
  gb_error error;
  for (int r = 0; r < 4; r++) {
    char rank[16];
    c.fails_on = r;
    snprintf(rank, sizeof rank, "on rank %d", r);
    double start = test_now();
    gb_status status = open_with(&c, &bridge, NULL, &error);
    must_fail(status, &error, start, 8, "opening the bridge \"messages\"",
              rank);
    GB_CHECK_TEXT(error.text, "boom");
    meet(r);
  }
}

GB_TEST(custom, bridge_refuses, .ranks = 4, .vendors = "nnaa") {
  caller c = CALLER_INIT;
  gb_bridge_ops bridge = bridge_of(&c);
  bridge.dtypes = 1u << GB_FLOAT32 | 1u << GB_UINT8;
  gb_error error;
  gb_work *work = NULL;
  float value = 1;
  int number = 1;
  must_open_with(&c, &bridge, NULL);
  gb_group *world = gb_job_world(c.job);
  gb_buffer floats = {&value, 1, GB_FLOAT32}, ints = {&number, 1, GB_INT32};
  must_be_refused(gb_all_reduce(world, &floats, GB_MAX, NULL, &error),
                  GB_ERR_UNSUPPORTED, &error,
                  "\"messages\" cannot reduce with max");
  must_be_refused(gb_all_reduce(world, &floats, GB_MAX, &work, &error),
                  GB_ERR_UNSUPPORTED, &error, "It offers sum");
  must_be_refused(gb_all_reduce(world, &ints, GB_SUM, NULL, &error),
                  GB_ERR_UNSUPPORTED, &error, "cannot reduce int32");
  GB_CHECK(gb_group_calls(world) == 0); /* refused before anything is sent */
  GB_CHECK_OK(gb_group_check(world, NULL));
  must_sum(c.job, 2);
  must_close(c.job);
}

/* ---- policies ---- */

static void policy_in(int one_call_in_each) {
  caller c = CALLER_INIT;
  gb_policy_ops policy = policy_of(&c);
  c.calls_inside = one_call_in_each;
  must_open_with(&c, NULL, &policy);
  gb_job_info info = {.size = sizeof info};
  GB_CHECK_OK(gb_job_get_info(c.job, &info));
  GB_CHECK(!strcmp(info.policy, "mine"));
  use_world(&c);
  GB_CHECK(c.ran > 0);
  must_close(c.job);
}

GB_TEST(custom, policy_two_and_two, .ranks = 4, .vendors = "nnaa") {
  policy_in(0);
}
GB_TEST(custom, policy_one_island, .ranks = 3, .vendors = "nnn") {
  policy_in(0);
}
GB_TEST(custom, policy_alone, .ranks = 1, .vendors = "n") {
  policy_in(0);
}
GB_TEST(custom, policy_calls_its_own_group, .ranks = 2, .vendors = "na") {
  policy_in(1);
}

GB_TEST(custom, policy_over_bridge, .ranks = 4, .vendors = "nnaa") {
  caller c = CALLER_INIT;
  gb_bridge_ops bridge = bridge_of(&c);
  gb_policy_ops policy = policy_of(&c);
  must_open_with(&c, &bridge, &policy);
  use_world(&c);
  must_close(c.job);
}

GB_TEST(custom, policy_fails, .ranks = 4, .vendors = "nnaa") {
  gb_error error;
  float value = 1;
  for (int asked = 0; asked < 2; asked++) {
    caller c = CALLER_INIT;
    gb_policy_ops policy = policy_of(&c);
    must_open_with(&c, NULL, &policy);
    must_sum(c.job, 1);
    meet(2 * asked);
    if (asked && gb_rank() == 3) c.accepts = GB_PART_FAILED;
    if (!asked) c.fails_on = 3;
    double start = test_now();
    gb_status status = sum_once(c.job, &value, &error);
    must_fail(status, &error, start, 8, "failed on rank 3",
              asked ? "asking the policy" : "boom");
    GB_CHECK(gb_group_check(gb_job_world(c.job), &error) == GB_ERR_ABORTED);
    must_close(c.job);
    meet(2 * asked + 1);
  }
}

GB_TEST(custom, policy_is_interrupted, .ranks = 4, .vendors = "nnaa") {
  caller c = CALLER_INIT;
  gb_policy_ops policy = policy_of(&c);
  gb_error error;
  float value = 1;
  must_open_with(&c, NULL, &policy);
  c.fails_on = 1;
  c.code = GB_PART_INTERRUPTED;
  double start = test_now();
  gb_status status = sum_once(c.job, &value, &error);
  must_fail(status, &error, start, 8, "rank 1", "interrupted by its user");
  if (gb_rank() == 1) GB_CHECK_INT(status, GB_ERR_INTERRUPTED);
  must_close(c.job);
}

/* A rank that is late or calls something else is found before the policy's own
 * code waits for it. */
GB_TEST(custom, policy_mismatch, .ranks = 4, .vendors = "nnaa") {
  caller c = CALLER_INIT;
  gb_policy_ops policy = policy_of(&c);
  gb_error error;
  float value[2] = {1, 1};
  must_open_with(&c, NULL, &policy);
  gb_buffer buffer = {value, gb_rank() == 1 ? 2 : 1, GB_FLOAT32};
  double start = test_now();
  gb_status status =
      gb_all_reduce(gb_job_world(c.job), &buffer, GB_SUM, NULL, &error);
  must_fail(status, &error, start, 8, "ranks disagree", "rank 1");
  GB_CHECK_INT(c.ran, 0);
  must_close(c.job);
}

GB_TEST(custom, policy_refusals, .ranks = 4, .vendors = "nnaa") {
  caller c = CALLER_INIT;
  gb_policy_ops policy = policy_of(&c);
  gb_error error;
  float value = 1;
  gb_buffer buffer = {&value, 1, GB_FLOAT32};
  must_open_with(&c, NULL, &policy);
  must_be_refused(
      gb_all_reduce(gb_job_world(c.job), &buffer, GB_MIN, NULL, &error),
      GB_ERR_UNSUPPORTED, &error, "no minimum here");
  must_sum(c.job, 1);
  must_close(c.job);
  meet(0);
  c.fits = GB_PART_NO;
  must_be_refused(open_with(&c, NULL, &policy, &error), GB_ERR_REFUSED, &error,
                  "\"mine\" does not fit a job of 2 islands");
  meet(1);
  c.fits = GB_PART_OK;
  policy.settings = gb_rank() == 2 ? "{\"size\": 2}" : "{\"size\": 1}";
  must_be_refused(open_with(&c, NULL, &policy, &error), GB_ERR_REFUSED, &error,
                  "{\"size\": 1} on ranks 0, 1, 3, {\"size\": 2} on rank 2");
  char text[600];
  memset(text, 'x', sizeof text - 1);
  text[sizeof text - 1] = 0;
  if (gb_rank() == 1) text[sizeof text - 2] = 'y'; /* far behind the cut */
  policy.settings = text;
  meet(2);
  must_be_refused(open_with(&c, NULL, &policy, &error), GB_ERR_REFUSED, &error,
                  "on rank 1");
}

GB_TEST(custom, names, .ranks = 1, .vendors = "n") {
  static const char *const bad[] = {"",     "auto", "shm",        "multitcp",
                                    "none", "flat", "native-only"};
  gb_error error;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    caller c = CALLER_INIT;
    gb_bridge_ops bridge = bridge_of(&c);
    gb_policy_ops policy = policy_of(&c);
    bridge.name = policy.name = bad[i];
    GB_CHECK_INT(i < 5 ? open_with(&c, &bridge, NULL, &error)
                       : open_with(&c, NULL, &policy, &error),
                 GB_ERR_ARGUMENT);
  }
  caller c = CALLER_INIT;
  gb_bridge_ops bridge = bridge_of(&c);
  bridge.close = NULL;
  must_be_refused(open_with(&c, &bridge, NULL, &error), GB_ERR_ARGUMENT, &error,
                  "lacks a callback");
}

/* ---- islands that call different things ---- */

/* The first island makes call `a`, the second call `b`: every rank is told of
 * both, and no sum comes out. */
static void must_not_match(int a, int b, const char *words,
                           const char *more_words) {
  caller c = CALLER_INIT;
  gb_bridge_ops bridge = bridge_of(&c);
  gb_error error;
  float data[64] = {1};
  must_open_with(&c, &bridge, NULL);
  use_world(&c); /* calls that match go on matching */
  gb_group *world = gb_job_world(c.job);
  gb_buffer floats = {data, 16, GB_FLOAT32}, ints = {data, 16, GB_UINT8};
  gb_buffer more = {data, 17, GB_FLOAT32};
  double start = test_now();
  gb_status status;
  switch (gb_rank() < 2 ? a : b) {
    case 0: status = gb_all_reduce(world, &floats, GB_SUM, NULL, &error); break;
    case 1: status = gb_all_reduce(world, &ints, GB_SUM, NULL, &error); break;
    case 2: status = gb_all_reduce(world, &more, GB_SUM, NULL, &error); break;
    case 3: status = gb_broadcast(world, &floats, 0, NULL, &error); break;
    case 4: status = gb_broadcast(world, &floats, 2, NULL, &error); break;
    default: status = gb_barrier(world, NULL, &error); break;
  }
  /* Who only sends, or only hears its own island, may be done before. */
  if (status == GB_OK) {
    GB_CHECK(gb_rank() < 2 ? a >= 3 : b >= 3);
    status = gb_barrier(world, NULL, &error);
  }
  must_fail(status, &error, start, 10, "ranks disagree", words);
  GB_CHECK_TEXT(error.text, more_words);
  must_close(c.job);
}
#define DIFFER(name_, a, b, words, more)                                       \
  GB_TEST(custom, name_, .ranks = 4, .vendors = "nnaa") {                      \
    must_not_match(a, b, words, more);                                         \
  }
DIFFER(another_type, 0, 1, "of 16 float32, sum", "of 16 uint8, sum")
DIFFER(another_type_here, 1, 0, "of 16 uint8, sum", "of 16 float32, sum")
DIFFER(another_count, 0, 2, "of 16 float32", "of 17 float32")
DIFFER(another_op, 3, 0, "broadcast number", "all_reduce number")
DIFFER(another_root, 3, 4, "from rank 0", "from rank 2")
DIFFER(a_barrier, 5, 0, "barrier number", "all_reduce number")
