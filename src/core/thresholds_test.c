/* Proves what a thresholds file may say (spec 4.8): every bad kind is refused
 * with the variable, the path and what is wrong; good ones choose as told. */
#include "core/thresholds.h"
#include "harness/gb_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static gb_status parse(const char *json, gbi_rules *rules, gb_error *error) {
  return gbi_thresholds_parse(json, strlen(json), "t.json", rules, error);
}

static void bad(const char *json, const char *words) {
  gbi_rules rules;
  gb_error error;
  if (parse(json, &rules, &error) != GB_ERR_SETTING)
    gb_test_fail(__FILE__, __LINE__, "not refused: %s", json);
  GB_CHECK_TEXT(error.text, "GPUBRIDGE_THRESHOLDS=t.json: ");
  GB_CHECK_TEXT(error.text, words);
  GB_CHECK_INT(rules.count, 0);
}

#define FILE_OF(rest) "{\"gpubridge_thresholds\": 1, " rest "}"
#define LAST "{\"max_bytes\": null, \"policy\": \"auto\"}"

GB_TEST(thresholds, bad_kinds) {
  bad("", "not JSON");
  bad("{\"gpubridge_thresholds\": 1, \"rules\": [", "not JSON");
  bad("hello", "not JSON");
  bad("[1]", "not a thresholds file");
  bad("{\"rules\": [" LAST "]}", "gpubridge_thresholds");
  bad("{\"gpubridge_thresholds\": 2, \"rules\": [" LAST "]}", "format 1");
  bad("{\"gpubridge_thresholds\": \"1\", \"rules\": [" LAST "]}", "format 1");
  bad("{\"gpubridge_thresholds\": 1}", "at least one rule");
  bad(FILE_OF("\"rules\": []"), "at least one rule");
  bad(FILE_OF("\"rules\": {\"max_bytes\": null}"), "must be a list");
  bad(FILE_OF("\"rules\": [1]"), "rule 1 is not an object");
  bad(FILE_OF("\"rules\": [{\"max_bytes\": null, \"policy\": \"best\"}]"),
      "\"best\", which a rule cannot. Known are auto, native-only");
  bad(FILE_OF("\"rules\": [{\"max_bytes\": null, \"policy\": \"auto-tuned\"}]"),
      "not auto-tuned itself");
  bad(FILE_OF("\"rules\": [{\"max_bytes\": null}]"), "policy \"\"");
  bad(FILE_OF("\"rules\": [{\"max_bytes\": 8, \"policy\": \"auto\"}]"),
      "must have max_bytes null");
  bad(FILE_OF("\"rules\": [{\"max_bytes\": 8.5, \"policy\": \"auto\"}," LAST
              "]"),
      "whole number");
  bad(FILE_OF("\"rules\": [{\"max_bytes\": -8, \"policy\": \"auto\"}," LAST
              "]"),
      "whole number");
  bad(FILE_OF("\"rules\": [{\"max_bytes\": true, \"policy\": \"auto\"}," LAST
              "]"),
      "whole number");
  bad(FILE_OF("\"rules\": [{\"policy\": \"auto\"}," LAST "]"), "whole number");
  bad(FILE_OF("\"rules\": [{\"max_bytes\": 8, \"policy\": \"auto\"},"
              "{\"max_bytes\": 8, \"policy\": \"flat\"}," LAST "]"),
      "rule 2 of every collective is not larger");
  bad(FILE_OF("\"rules\": [" LAST "," LAST "]"), "not larger");
  bad(FILE_OF("\"rules\": [" LAST "], \"chunk_bytes\": 12"), "multiple of 8");
  bad(FILE_OF("\"rules\": [" LAST "], \"chunk_bytes\": 0"), "multiple of 8");
  bad(FILE_OF("\"rules\": [" LAST "], \"chunk_bytes\": \"4M\""),
      "multiple of 8");
  bad(FILE_OF("\"rules\": [" LAST "], \"collectives\": []"), "an object");
  bad(FILE_OF("\"rules\": [" LAST "], \"collectives\": {\"gather\": [" LAST
              "]}"),
      "collectives has \"gather\"");
  bad(FILE_OF("\"rules\": [" LAST "], \"collectives\": {\"reduce\": []}"),
      "rules of reduce");
}

GB_TEST(thresholds, too_many_rules) {
  char json[8192];
  gbi_text text;
  gbi_text_init(&text, json, sizeof json);
  gbi_text_add(&text, "{\"gpubridge_thresholds\": 1, \"rules\": [");
  for (int i = 0; i < 100; i++)
    gbi_text_add(&text, "{\"max_bytes\": %d, \"policy\": \"flat\"},", i);
  gbi_text_add(&text, LAST "]}");
  bad(json, "more than 64 rules");
}

static void bad_path(const char *path, const char *words) {
  gbi_rules rules;
  gb_error error;
  GB_CHECK_INT(gbi_thresholds_read(path, &rules, &error), GB_ERR_SETTING);
  GB_CHECK_TEXT(error.text, path);
  GB_CHECK_TEXT(error.text, words);
}

GB_TEST(thresholds, unreadable_files, .timeout_ms = 20000) {
  char fifo[] = "/tmp/gb_thresholds_XXXXXX";
  bad_path("/nowhere/t.json", "cannot be read: No such file");
  bad_path("/tmp", "cannot be read");
  close(mkstemp(fifo));
  unlink(fifo);
  GB_CHECK(!mkfifo(fifo, 0600));
  bad_path(fifo, "cannot be read"); /* and nobody waits for a writer */
  unlink(fifo);
}

static const char *chosen(const gbi_rules *rules, const gbi_topology *t, int op,
                          uint64_t count) {
  gbi_coll coll = {.op = (uint8_t)op,
                   .dtype = GB_FLOAT32,
                   .redop = GB_SUM,
                   .root = -1,
                   .count = count};
  return gbi_rules_choose(rules, t, &coll)->name;
}

/* The file's rules, and what becomes of them as text on another rank. */
GB_TEST(thresholds, rules_choose_by_bytes_and_collective) {
  static const char *const labels[] = {"nvidia", "nvidia", "amd", "amd"};
  static const char *const hosts[] = {"a", "a", "a", "a"};
  gbi_topology *t, *one;
  gbi_rules read, told;
  gb_error error;
  char text[GBI_RULES_TEXT], again[GBI_RULES_TEXT];
  GB_CHECK_OK(gbi_topology_plan(labels, hosts, 4, &t, &error));
  GB_CHECK_OK(gbi_topology_plan(labels, hosts, 2, &one, &error));
  GB_CHECK_OK(parse(
      FILE_OF("\"measured\": {\"median_us\": {\"flat@4\": 25.5, \"policy\": "
              "[1, {}]}}, \"collectives\": {\"all_gather\": [{\"policy\": "
              "\"reduce-bridge-broadcast\", \"max_bytes\": 64}, {\"policy\": "
              "\"flat\", \"max_bytes\": null}]}, \"chunk_bytes\": 65536, "
              "\"rules\": [{\"max_bytes\": 4096, \"policy\": \"flat-gloo\"}, "
              "{\"max_bytes\": 8192, \"policy\": "
              "\"pipelined-reduce-bridge-broadcast\"}, " LAST "]"),
      &read, &error));
  GB_CHECK(gbi_rules_text(&read, text, sizeof text));
  GB_CHECK_TEXT(text,
                "4096=flat,8192=reduce-bridge-broadcast,*=auto;"
                "all_gather:64=reduce-bridge-broadcast,*=flat;"
                "chunk=65536");
  GB_CHECK(gbi_rules_parse(text, &told));
  GB_CHECK(gbi_rules_text(&told, again, sizeof again));
  GB_CHECK(!strcmp(text, again));
  GB_CHECK_INT(told.chunk_bytes, 65536);
  GB_CHECK(!strcmp(chosen(&told, t, GBI_OP_ALL_REDUCE, 1024), "flat"));
  GB_CHECK(!strcmp(chosen(&told, t, GBI_OP_ALL_REDUCE, 1025),
                   "reduce-bridge-broadcast"));
  GB_CHECK(!strcmp(chosen(&told, t, GBI_OP_BROADCAST, UINT64_MAX / 4), "auto"));
  /* Rows of 4 ranks count together: 64 bytes are 4 rows of 4 float32. */
  GB_CHECK(!strcmp(chosen(&told, t, GBI_OP_ALL_GATHER, 4),
                   "reduce-bridge-broadcast"));
  GB_CHECK(!strcmp(chosen(&told, t, GBI_OP_ALL_GATHER, 5), "flat"));
  /* A group inside one island: what does not fit there is auto's. */
  GB_CHECK(!strcmp(chosen(&told, one, GBI_OP_ALL_REDUCE, 1025), "auto"));
  GB_CHECK(!strcmp(chosen(NULL, t, GBI_OP_ALL_REDUCE, 1), "auto"));
  GB_CHECK(!gbi_rules_misfit(&told, t));
  GB_CHECK(gbi_rules_misfit(&told, one) == &told.rules[1]);
  gbi_topology_free(t);
  gbi_topology_free(one);
}

/* From the network: nothing but what gbi_rules_text writes is taken. */
GB_TEST(thresholds, malformed_rule_texts) {
  static const char *const texts[] = {"",
                                      "*",
                                      "=",
                                      "*=",
                                      "*=best",
                                      "*=auto-tuned",
                                      "8=flat",
                                      "*=flat,8=flat",
                                      "8=flat,8=flat,*=flat",
                                      "-8=flat,*=flat",
                                      "8x=flat,*=flat",
                                      "18446744073709551616=flat,*=flat",
                                      "reduce:*=flat",
                                      ";",
                                      "chunk=8",
                                      "*=flat;chunk=7",
                                      "*=flat;chunk=",
                                      "*=flat;chunk=8;reduce:*=flat",
                                      "*=flat;reduce:8=flat",
                                      "*=flat;reduce:",
                                      "*=flat;reduce:*=flat;broadcast:*=flat",
                                      "*=flat;gather:*=flat",
                                      "*=flat;*=flat"};
  gbi_rules rules;
  for (size_t i = 0; i < GBI_COUNT(texts); i++)
    if (gbi_rules_parse(texts[i], &rules))
      gb_test_fail(__FILE__, __LINE__, "taken: \"%s\"", texts[i]);
  char longer[GBI_RULES_TEXT + 64];
  memset(longer, '8', sizeof longer - 1);
  longer[sizeof longer - 1] = 0;
  GB_CHECK(!gbi_rules_parse(longer, &rules));
}
