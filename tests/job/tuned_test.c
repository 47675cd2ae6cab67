/* Whole jobs whose calls take the policy that a thresholds file names (spec 4.7
 * and 4.8): every size on its way with the right sum, the record says which,
 * and ranks with other rules, a bad file or a rule that does not fit are
 * refused with one text everywhere. */
#include "job/job.h"

#include <string.h>

/* A file of this rank's own: equal rules at different paths agree. */
static char path[64];
static void write_rules(const char *json) {
  snprintf(path, sizeof path, "/tmp/gb_rules_%d_%d", (int)getppid(), gb_rank());
  FILE *file = fopen(path, "w");
  GB_CHECK(file && fputs(json, file) >= 0);
  fclose(file);
  setenv("GPUBRIDGE_THRESHOLDS", path, 1);
}

typedef struct seen {
  int calls;
  char policy[64];
  int phases;
} seen;

static int note(void *arg, const gb_record *record) {
  seen *s = arg;
  s->calls++;
  snprintf(s->policy, sizeof s->policy, "%s",
           record->policy ? record->policy : "");
  s->phases = (int)record->phases_count;
  return 0;
}

static void must_travel(gb_job *job, size_t count, const char *policy,
                        seen *s) {
  float *data = malloc(count * sizeof *data);
  int world = gb_world();
  for (size_t i = 0; i < count; i++) data[i] = (float)(gb_rank() + 1);
  gb_buffer buffer = {data, count, GB_FLOAT32};
  MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, error));
  for (size_t i = 0; i < count; i++)
    if (data[i] != (float)(world * (world + 1) / 2))
      gb_test_fail(__FILE__, __LINE__, "%zu elements: %g at %zu", count,
                   (double)data[i], i);
  free(data);
  if (strcmp(s->policy, policy))
    gb_test_fail(__FILE__, __LINE__, "%zu elements went by %s, not %s", count,
                 s->policy, policy);
}

#define RULES(most)                                                  \
  "{\"gpubridge_thresholds\": 1, \"rules\": [{\"max_bytes\": " #most \
  ", \"policy\": \"flat\"}, {\"max_bytes\": null, \"policy\": \"auto\"}]}"

/* large: what carries calls above the border. */
static void sizes(const char *policy, const char *large) {
  write_rules(RULES(4096));
  gb_job *job = must_open(20000, policy);
  gb_job_info info = {.size = sizeof info};
  GB_CHECK_OK(gb_job_get_info(job, &info));
  GB_CHECK(!strcmp(info.policy, "auto-tuned"));
  seen s = {0};
  MUST(gb_observer_add(job, note, &s, error));
  for (int round = 0; round < 3; round++) {
    must_travel(job, 1, "flat", &s);
    GB_CHECK_INT(s.phases, 0);
    must_travel(job, 1024, "flat", &s);
    must_travel(job, 1025, large, &s);
    GB_CHECK((s.phases > 0) == (strcmp(large, "direct") != 0));
    must_travel(job, 300000, large, &s);
  }
  must_close(job);
  unlink(path);
}
GB_TEST(tuned, sizes_by_auto, .ranks = 4, .vendors = "nnaa") {
  sizes(NULL, "direct");
}
GB_TEST(tuned, sizes_by_name, .ranks = 4, .vendors = "naaa") {
  sizes("auto-tuned", "direct");
}
GB_TEST(tuned, sizes_over_tcp, .ranks = 4, .vendors = "nnaa") {
  setenv("GPUBRIDGE_BRIDGE", "tcp", 1);
  sizes(NULL, "reduce-bridge-broadcast");
}

/* A group of one island: rules that do not fit it are auto's. */
GB_TEST(tuned, groups_have_the_rules, .ranks = 4, .vendors = "nnaa") {
  write_rules(
      "{\"gpubridge_thresholds\": 1, \"rules\": [{\"max_bytes\": 64, "
      "\"policy\": \"flat\"}, {\"max_bytes\": null, \"policy\": "
      "\"reduce-bridge-broadcast\"}]}");
  gb_job *job = must_open(20000, NULL);
  seen s = {0};
  MUST(gb_observer_add(job, note, &s, error));
  int mine[] = {gb_rank() / 2 * 2, gb_rank() / 2 * 2 + 1};
  gb_group_params params = GB_GROUP_PARAMS_INIT;
  gb_group *group;
  MUST(gb_group_open(job, mine, 2, &params, &group, error));
  for (size_t count = 1; count <= 17; count += 16) {
    float data[17] = {1};
    gb_buffer buffer = {data, count, GB_FLOAT32};
    MUST(gb_all_reduce(group, &buffer, GB_SUM, NULL, error));
    GB_CHECK(data[0] == 2);
    GB_CHECK(!strcmp(s.policy, count == 1 ? "flat" : "native-only"));
  }
  MUST(gb_group_close(group, error));
  meet(0); /* groups are opened with rank 0's help */
  must_close(job);
  unlink(path);
}

/* Without a file: what auto takes. */
GB_TEST(tuned, without_a_file, .ranks = 2, .vendors = "na") {
  gb_job *job = must_open(20000, "auto-tuned");
  seen s = {0};
  MUST(gb_observer_add(job, note, &s, error));
  must_travel(job, 1, "direct", &s);
  must_close(job);
}

static void must_be_refused_everywhere(const char *words, const char *more) {
  gb_job *job;
  gb_error error;
  double start = test_now();
  gb_status status = try_open(20000, "auto", &job, &error);
  unlink(path);
  must_fail(status, &error, start, 10, words, more);
}

GB_TEST(tuned, rules_differ, .ranks = 4, .vendors = "nnaa") {
  write_rules(gb_rank() == 2 ? RULES(8192) : RULES(4096));
  must_be_refused_everywhere(
      "the rules of GPUBRIDGE_THRESHOLDS: 4096=flat,*=auto on ranks 0, 1, 3, "
      "8192=flat,*=auto on rank 2",
      "same on every rank");
}
GB_TEST(tuned, one_rank_without, .ranks = 2, .vendors = "na") {
  if (gb_rank()) write_rules(RULES(8));
  must_be_refused_everywhere("none on rank 0, 8=flat,*=auto on rank 1",
                             "GPUBRIDGE_THRESHOLDS");
}
GB_TEST(tuned, a_bad_file_on_one_rank, .ranks = 2, .vendors = "na") {
  write_rules(gb_rank() ? "{" : RULES(8));
  must_be_refused_everywhere("GPUBRIDGE_THRESHOLDS=", "it is not JSON");
}
GB_TEST(tuned, a_rule_that_does_not_fit, .ranks = 2, .vendors = "na") {
  write_rules(
      "{\"gpubridge_thresholds\": 1, \"rules\": [{\"max_bytes\": 8, "
      "\"policy\": \"auto\"}, {\"max_bytes\": null, \"policy\": "
      "\"native-only\"}]}");
  must_be_refused_everywhere(
      "rule 2 of GPUBRIDGE_THRESHOLDS names the policy "
      "\"native-only\", which does not fit",
      "Policies that fit: auto, ");
}
