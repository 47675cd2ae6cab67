/* Ranks that disagree: every rank raises, with both sides shown, and nobody
 * waits for the timeout (S027 to S035). The odd rank is in the same island or
 * in the other; the timeout is 20 s and each case must end well before. */
#include <pthread.h>

#include "job/job.h"

enum { TIMEOUT_MS = 20000 };

static void count_case(int odd) {
  gb_job *job = must_open(TIMEOUT_MS, NULL);
  must_sum(job, 3);
  /* Nobody is still inside the third call when the odd one begins. */
  volatile int *ready = gb_test_shared();
  __atomic_add_fetch(ready, 1, __ATOMIC_ACQ_REL);
  gb_test_await(ready, gb_world(), 10000);
  float data[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  gb_buffer buffer = {data, gb_rank() == odd ? 5 : 4, GB_FLOAT32};
  gb_error error;
  double start = test_now();
  gb_status status =
      gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, &error);
  must_fail(status, &error, start, 6, "all_reduce number 3 of 5",
            "all_reduce number 3 of 4");
  /* And the job stays refused, with the same reason. */
  status = gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, &error);
  must_fail(status, &error, test_now(), 1, "of 5 float32", "of 4 float32");
  must_close(job);
}
GB_TEST(mismatch, count_in_the_other_island, .ranks = 4, .vendors = "nnaa") {
  count_case(3);
}
GB_TEST(mismatch, count_in_the_same_island, .ranks = 4, .vendors = "nnaa") {
  count_case(1);
}
GB_TEST(mismatch, direct_count, .ranks = 4, .vendors = "nnaa") {
  setenv("GPUBRIDGE_POLICY", "direct", 1);
  count_case(3);
}
GB_TEST(mismatch, count_over_tcp, .ranks = 2, .vendors = "na") {
  setenv("GPUBRIDGE_BRIDGE", "tcp", 1);
  count_case(1);
}

static void dtype_case(gb_dtype a, size_t na, gb_dtype b, size_t nb,
                       const char *name_a, const char *name_b) {
  gb_job *job = must_open(TIMEOUT_MS, NULL);
  double data[8] = {0};
  gb_buffer buffer = {data, gb_rank() ? nb : na, gb_rank() ? b : a};
  gb_error error;
  double start = test_now();
  gb_status status =
      gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, &error);
  must_fail(status, &error, start, 6, name_a, name_b);
  must_close(job);
}
GB_TEST(mismatch, float_and_int, .ranks = 2, .vendors = "na") {
  dtype_case(GB_FLOAT32, 4, GB_INT32, 4, "4 float32", "4 int32");
}
GB_TEST(mismatch, float_and_half_of_one_size, .ranks = 2, .vendors = "na") {
  dtype_case(GB_FLOAT32, 4, GB_FLOAT16, 8, "4 float32", "8 float16");
}
GB_TEST(mismatch, direct_dtype, .ranks = 2, .vendors = "na") {
  setenv("GPUBRIDGE_POLICY", "direct", 1);
  dtype_case(GB_FLOAT32, 4, GB_INT32, 4, "4 float32", "4 int32");
}
GB_TEST(mismatch, same_dtype_island, .ranks = 2, .vendors = "nn") {
  dtype_case(GB_FLOAT32, 4, GB_INT32, 4, "4 float32", "4 int32");
}

/* S028: the receiver raises, the source now or at its next call. */
static void broadcast_case(void) {
  gb_job *job = must_open(TIMEOUT_MS, NULL);
  double data[8] = {0};
  gb_buffer buffer = {data, 4, gb_rank() ? GB_INT64 : GB_FLOAT64};
  gb_error error;
  double start = test_now();
  gb_status status = gb_broadcast(gb_job_world(job), &buffer, 0, NULL, &error);
  if (status == GB_OK && gb_rank() == 0)
    status = gb_barrier(gb_job_world(job), NULL, &error);
  must_fail(status, &error, start, 8, "float64", "int64");
  must_close(job);
}

GB_TEST(mismatch, broadcast_of_another_type, .ranks = 2, .vendors = "na") {
  broadcast_case();
}
GB_TEST(mismatch, direct_broadcast, .ranks = 2, .vendors = "na") {
  setenv("GPUBRIDGE_POLICY", "direct", 1);
  broadcast_case();
}

GB_TEST(mismatch, reduction, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(TIMEOUT_MS, NULL);
  float value = 1;
  gb_buffer buffer = {&value, 1, GB_FLOAT32};
  gb_error error;
  double start = test_now();
  gb_status status = gb_all_reduce(gb_job_world(job), &buffer,
                                   gb_rank() == 2 ? GB_MAX : GB_SUM, NULL,
                                   &error);
  must_fail(status, &error, start, 6, "max", "sum");
  must_close(job);
}

GB_TEST(mismatch, order_of_two_calls, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(TIMEOUT_MS, NULL);
  float data[8] = {0};
  gb_buffer a = {data, 8, GB_FLOAT32}, b = {data, 3, GB_FLOAT32};
  gb_error error;
  double start = test_now();
  bool even = gb_rank() % 2 == 0;
  gb_status status = gb_all_reduce(gb_job_world(job), even ? &a : &b, GB_SUM,
                                   NULL, &error);
  must_fail(status, &error, start, 6, "number 0 of 8", "number 0 of 3");
  must_close(job);
}

GB_TEST(mismatch, all_reduce_against_broadcast, .ranks = 4,
        .vendors = "nnaa") {
  gb_job *job = must_open(TIMEOUT_MS, NULL);
  float data[8] = {0};
  gb_buffer a = {data, 8, GB_FLOAT32};
  gb_error error;
  double start = test_now();
  gb_group *g = gb_job_world(job);
  gb_status status = gb_rank() % 2
                         ? gb_broadcast(g, &a, 0, NULL, &error)
                         : gb_all_reduce(g, &a, GB_SUM, NULL, &error);
  must_fail(status, &error, start, 6, "all_reduce number 0",
            "broadcast number 0");
  must_close(job);
}

/* S031: three ranks never make the call; the one that did names them. */
GB_TEST(mismatch, only_one_rank_calls, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  gb_job *job = must_open(4000, NULL);
  volatile int *done = gb_test_shared();
  if (gb_rank() == 0) {
    float value = 1;
    gb_error error;
    double start = test_now();
    gb_status status = sum_once(job, &value, &error);
    must_fail(status, &error, start, 8, "all_reduce number 0", "rank 1");
    GB_CHECK_INT(status, GB_ERR_TIMEOUT);
    GB_CHECK_TEXT(error.text, "4 s");
    __atomic_store_n(done, 1, __ATOMIC_RELEASE);
  } else {
    gb_test_await(done, 1, 30000);
  }
  must_close(job);
}

/* S032 */
GB_TEST(mismatch, broadcast_sources, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(TIMEOUT_MS, NULL);
  float value = 1;
  gb_buffer buffer = {&value, 1, GB_FLOAT32};
  gb_error error;
  double start = test_now();
  gb_status status = gb_broadcast(gb_job_world(job), &buffer,
                                  gb_rank() < 2 ? 0 : 2, NULL, &error);
  if (status == GB_OK && gb_rank() % 2)
    status = gb_barrier(gb_job_world(job), NULL, &error);
  must_fail(status, &error, start, 8, "from rank 0", "from rank 2");
  must_close(job);
}
GB_TEST(mismatch, source_out_of_range, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(TIMEOUT_MS, NULL);
  float value = 1;
  gb_buffer buffer = {&value, 1, GB_FLOAT32};
  gb_error error;
  static const int bad[] = {4, -1};
  for (int i = 0; i < 2; i++) {
    GB_CHECK_INT(gb_broadcast(gb_job_world(job), &buffer, bad[i], NULL, &error),
                 GB_ERR_ARGUMENT);
    GB_CHECK_TEXT(error.text, "from 0 to 3");
  }
  must_sum(job, 1); /* still usable */
  must_close(job);
}

/* S033: a rank one step short leaves; the others learn it at once. */
GB_TEST(mismatch, a_rank_skips_a_call_and_leaves, .ranks = 4,
        .vendors = "nnaa") {
  gb_job *job = must_open(TIMEOUT_MS, NULL);
  int calls = gb_rank() == 3 ? 9 : 10;
  gb_error error;
  gb_status status = GB_OK;
  double start = test_now();
  for (int i = 0; i < calls && status == GB_OK; i++) {
    float value = (float)(gb_rank() + 1);
    start = test_now();
    status = sum_once(job, &value, &error);
  }
  if (gb_rank() == 3)
    GB_CHECK_INT(status, GB_OK);
  else
    must_fail(status, &error, start, 6, "rank 3", "left the job");
  must_close(job);
}

/* S034: a refused call on one rank; the others name it. */
GB_TEST(mismatch, one_rank_is_refused, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  gb_job *job = must_open(4000, NULL);
  volatile int *failed = gb_test_shared();
  float value = 1;
  gb_error error;
  if (gb_rank() == 2) {
    gb_buffer bad = {&value, 1, (gb_dtype)42};
    GB_CHECK_INT(gb_all_reduce(gb_job_world(job), &bad, GB_SUM, NULL, &error),
                 GB_ERR_TYPE);
    GB_CHECK_TEXT(error.text, "dtype");
    gb_test_await(failed, 3, 20000);
  } else {
    double start = test_now();
    gb_status status = sum_once(job, &value, &error);
    must_fail(status, &error, start, 9, "rank 2", "all_reduce number 0");
    __atomic_add_fetch(failed, 1, __ATOMIC_ACQ_REL);
  }
  must_close(job);
}

/* S035: sync here, async there: the same program. */
GB_TEST(mismatch, sync_against_async, .ranks = 4, .vendors = "nnaa") {
  gb_job *job = must_open(TIMEOUT_MS, NULL);
  for (int i = 0; i < 50; i++) {
    if (gb_rank() % 2 == 0) {
      must_sum(job, 1);
      continue;
    }
    float value = (float)(gb_rank() + 1);
    gb_buffer buffer = {&value, 1, GB_FLOAT32};
    gb_work *work;
    MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, &work, error));
    MUST(gb_work_wait(work, 0, error));
    GB_CHECK_INT(gb_work_seq(work), i);
    gb_work_release(work);
    GB_CHECK(value == 10.0f);
  }
  must_close(job);
}

/* S063: two threads a rank, the same sizes: every result right. */
static void *hammer(void *arg) {
  gb_job *job = arg;
  for (int i = 0; i < 200; i++) {
    float value = 1;
    MUST(sum_once(job, &value, error));
    if (value != 4.0f) gb_test_fail(__FILE__, __LINE__, "%g", (double)value);
  }
  return NULL;
}
GB_TEST(mismatch, two_threads_per_rank, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  gb_job *job = must_open(TIMEOUT_MS, NULL);
  pthread_t thread;
  GB_CHECK_OK(pthread_create(&thread, NULL, hammer, job));
  hammer(job);
  pthread_join(thread, NULL);
  must_close(job);
}
