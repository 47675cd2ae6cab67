/* Records in, conclusions out: every check of spec 3.5 to 3.9 with its text,
 * the record's bytes and what hostile ones do, what a rank reads from its
 * environment, and whole discoveries among processes. */
#include "core/discovery.h"

#include "core/settings.h"
#include "harness/gb_test.h"
#include "transport/transport.h"

#include <stdlib.h>

#define COPY(to, from) snprintf((to), sizeof(to), "%s", (from))

enum { WORLD_MAX = 8 };

static gbi_record *records;
static gbi_discovery *d;
static gb_error error;

/* One letter a rank: n or a; any letter is a host. */
static void make(const char *vendors, const char *hosts) {
  records = calloc(WORLD_MAX, sizeof *records);
  for (int r = 0; vendors[r]; r++) {
    gbi_record *at = &records[r];
    COPY(at->vendor, vendors[r] == 'a' ? "amd" : "nvidia");
    snprintf(at->hostname, sizeof at->hostname, "host-%c", hosts[r]);
    snprintf(at->host_key, sizeof at->host_key, "key-%c", hosts[r]);
    at->simulated = true;
    COPY(at->bridge, "auto");
    COPY(at->policy, "auto");
    COPY(at->settings[0].name, "GPUBRIDGE_CHUNK_BYTES");
    COPY(at->settings[0].value, "4194304");
    COPY(at->settings[1].name, "GPUBRIDGE_PINNED_STAGING");
    COPY(at->settings[1].value, "0");
    at->settings_count = 2;
  }
}

static void accepted(int world) {
  if (gbi_discovery_conclude(records, world - 1, world, &d, &error) != GB_OK)
    gb_test_fail(__FILE__, __LINE__, "%s", error.text);
}

static void refused(int world, const char *text) {
  GB_CHECK_INT(gbi_discovery_conclude(records, 0, world, &d, &error),
               GB_ERR_REFUSED);
  GB_CHECK_TEXT(error.text, text);
}

static void done(void) {
  gbi_discovery_free(d);
  d = NULL;
  free(records);
}

static void fact(int rank, const char *name, const char *value) {
  gbi_record *r = &records[rank];
  COPY(r->facts[r->facts_count].name, name);
  COPY(r->facts[r->facts_count++].value, value);
}

/* ---- conclusions ---- */

GB_TEST(discovery, two_islands_on_one_host) {
  make("nnaa", "xxxx");
  accepted(4);
  GB_CHECK_INT(d->topology->islands_count, 2);
  GB_CHECK_INT(d->topology->hosts_count, 1);
  GB_CHECK_TEXT(d->policy, "auto");
  GB_CHECK_TEXT(d->bridge, gbi_transport_find("shm") ? "shm" : "tcp");
  GB_CHECK(d->bridge_reason[0]);
  GB_CHECK(!strcmp(d->run_kind, "cpu"));
  GB_CHECK_INT(d->rank, 3);
  GB_CHECK(!strcmp(d->labels[3], "amd"));
  done();
}

GB_TEST(discovery, two_islands_on_two_hosts) {
  make("nana", "xyxy");
  accepted(4);
  GB_CHECK_TEXT(d->bridge, "tcp");
  GB_CHECK_TEXT(d->bridge_reason, "different hosts");
  done();
}

/* ---- RDMA, where it is auto's to choose (S067, spec 6.1) ---- */

static void has_rdma(int rank, const char *link_layer) {
  records[rank].rdma = (gbi_endpoint){.asked = true, .port = 1};
  records[rank].rdma.usable = link_layer;
  COPY(records[rank].rdma.device, link_layer ? "mlx5_0" : "");
  COPY(records[rank].rdma.link_layer, link_layer ? link_layer : "");
  COPY(records[rank].rdma.reason, link_layer ? "" : "no device is there");
}

GB_TEST(discovery, rdma_on_all_leaders) {
  make("nnaa", "xxyy");
  for (int r = 0; r < 4; r++) has_rdma(r, r % 2 ? NULL : "RoCE");
  accepted(4);
  GB_CHECK(!strcmp(d->bridge, "verbs"));
  GB_CHECK_TEXT(d->bridge_reason, "different hosts, and all");
  GB_CHECK_TEXT(d->bridge_reason, "RDMA device on RoCE");
  done();
}

/* Other ends of links than the leaders carry data too. */
GB_TEST(discovery, rdma_on_leaders_alone_does_not_join_two_links) {
  make("nnaa", "xxyy");
  for (int r = 0; r < 4; r++) {
    has_rdma(r, r == 3 ? NULL : "RoCE");
    COPY(records[r].policy, "sharded-bridge");
  }
  accepted(4);
  GB_CHECK(!strcmp(d->bridge, "tcp"));
  GB_CHECK_TEXT(d->bridge_reason,
                "rank 3 (host \"host-y\") has no RDMA device to use: no device "
                "is there");
  done();
}

GB_TEST(discovery, rdma_on_one_side) {
  make("na", "xy");
  has_rdma(0, "InfiniBand");
  has_rdma(1, NULL);
  accepted(2);
  GB_CHECK(!strcmp(d->bridge, "tcp"));
  GB_CHECK_TEXT(d->bridge_reason, "rank 1 (host \"host-y\") has no RDMA");
  done();
}

GB_TEST(discovery, rdma_on_two_link_layers) {
  make("na", "xy");
  has_rdma(0, "InfiniBand");
  has_rdma(1, "RoCE");
  accepted(2);
  GB_CHECK(!strcmp(d->bridge, "tcp"));
  GB_CHECK_TEXT(d->bridge_reason,
                "rank 0's RDMA device mlx5_0 is on "
                "InfiniBand and rank 1's mlx5_0 on RoCE");
  done();
}

GB_TEST(discovery, shared_memory_is_before_rdma) {
  make("na", "xx");
  for (int r = 0; r < 2; r++) has_rdma(r, "RoCE");
  accepted(2);
  GB_CHECK(!strcmp(d->bridge, "shm"));
  done();
}

GB_TEST(discovery, a_named_bridge_is_never_replaced) {
  make("na", "xy");
  for (int r = 0; r < 2; r++) {
    has_rdma(r, "RoCE");
    COPY(records[r].bridge, "tcp");
  }
  accepted(2);
  GB_CHECK(!strcmp(d->bridge, "tcp"));
  GB_CHECK_TEXT(d->bridge_reason, "asked for");
  done();
}

GB_TEST(discovery, one_island_has_no_bridge) {
  make("nnn", "xyx");
  accepted(3);
  GB_CHECK_TEXT(d->policy, "auto");
  GB_CHECK_TEXT(d->bridge, "none");
  done();
}

GB_TEST(discovery, island_names_win_over_vendors) {
  make("nnnn", "xxyy");
  for (int r = 0; r < 4; r++)
    COPY(records[r].island, r < 1 ? "paris" : r < 2 ? "rome" : "oslo");
  accepted(4);
  GB_CHECK_INT(d->topology->islands_count, 3);
  GB_CHECK(!strcmp(d->topology->islands[2].label, "oslo"));
  done();
}

GB_TEST(discovery, policies_that_do_not_fit) {
  make("nnaa", "xxxx");
  for (int r = 0; r < 4; r++) COPY(records[r].policy, "native-only");
  refused(4,
          "\"native-only\" does not fit a job of 2 islands. Policies that "
          "fit: auto, direct, reduce-bridge-broadcast, "
          "sharded-bridge, flat, auto-tuned");
  done();
  make("nn", "xx");
  for (int r = 0; r < 2; r++)
    COPY(records[r].policy, "reduce-bridge-broadcast");
  refused(2, "a job of 1 island. Policies that fit: auto, native-only, flat");
  done();
  make("nna", "xxy");
  for (int r = 0; r < 3; r++) COPY(records[r].policy, "flat");
  accepted(3);
  GB_CHECK_TEXT(d->policy, "flat");
  done();
}

GB_TEST(discovery, named_shm_over_two_hosts_is_refused) {
  make("na", "xy");
  for (int r = 0; r < 2; r++) COPY(records[r].bridge, "shm");
  refused(2, "rank 1 on host \"host-y\"");
  done();
}

/* ---- agreement, in order ---- */

/* S025: problems come first, one a line, with rank and host. */
GB_TEST(discovery, problems_are_listed) {
  make("nnaa", "xxyy");
  COPY(records[1].problems[0], "the fan is broken");
  records[1].problems_count = 1;
  COPY(records[3].problems[0], "no GPU");
  COPY(records[3].problems[1], "no air");
  records[3].problems_count = 2;
  COPY(records[2].bridge, "tcp");
  refused(4,
          "2 of 4 ranks cannot take part:\n"
          "rank 1 (host \"host-x\"): the fan is broken\n"
          "rank 3 (host \"host-y\"): no GPU\n"
          "rank 3 (host \"host-y\"): no air");
  GB_CHECK_INT(error.rank, 1);
  for (int r = 0; r < 4; r++) { /* more than fits */
    records[r].problems_count = GBI_PROBLEMS_MAX;
    for (int i = 0; i < GBI_PROBLEMS_MAX; i++)
      memset(records[r].problems[i], 'x', 511);
  }
  refused(4, "\nand 6");
  done();
}

GB_TEST(discovery, disagreements_list_values_with_ranks) {
  make("nnaa", "xxyy");
  records[2].simulated = false;
  refused(4, "on CPU are 0, 1, 3, on GPUs 2");
  records[2].simulated = true;
  COPY(records[3].bridge, "tcp");
  refused(4, "the bridge (GPUBRIDGE_BRIDGE): auto on ranks 0-2, tcp on rank 3");
  COPY(records[3].bridge, "auto");
  COPY(records[1].policy, "flat");
  refused(4, "the policy: auto on ranks 0, 2, 3, flat on rank 1");
  COPY(records[1].policy, "auto");
  COPY(records[0].settings[1].value, "1");
  COPY(records[3].settings[0].value, "1048576"); /* S024 */
  refused(4, "GPUBRIDGE_CHUNK_BYTES: 4194304 on ranks 0-2, 1048576 on rank 3");
  COPY(records[3].settings[0].value, "4194304");
  COPY(records[2].split_test, "half");
  refused(4, "GPUBRIDGE_SPLIT_TEST: off on ranks 0, 1, 3, half on rank 2");
  records[2].split_test[0] = 0;
  refused(4, "GPUBRIDGE_PINNED_STAGING: 1 on rank 0, 0 on ranks 1-3");
  COPY(records[0].settings[1].value, "0");
  records[1].settings_count = 1;
  refused(4, "GPUBRIDGE_PINNED_STAGING: 0 on ranks 0, 2, 3, unknown on rank 1");
  done();
}

/* ---- split tests ---- */

static void split(const char *mode, int world) {
  for (int r = 0; r < world; r++) COPY(records[r].split_test, mode);
}

static void expect_labels(const char *letters) {
  for (int r = 0; letters[r]; r++)
    if (d->labels[r][0] != letters[r])
      gb_test_fail(__FILE__, __LINE__, "label of %d is %s", r, d->labels[r]);
  GB_CHECK(!strcmp(d->run_kind, "split-test"));
  done();
}

GB_TEST(discovery, split_labels) {
  make("nnnnn", "xxxxx");
  split("half", 5);
  accepted(5);
  expect_labels("nnnaa");
  make("aaaa", "xxxx");
  split("alternate", 4);
  accepted(4);
  expect_labels("anan");
  make("nnnnnn", "xyxyzz");
  split("node", 6);
  accepted(6);
  expect_labels("nanann");
}

GB_TEST(discovery, split_refusals) {
  make("n", "x");
  split("half", 1);
  refused(1, "at least 2 ranks");
  done();
  make("na", "xx");
  split("half", 2);
  refused(2, "nvidia and amd");
  done();
  make("nn", "xx");
  split("node", 2);
  refused(2, "\"host-x\". Use half or alternate");
  done();
}

/* ---- GPUs ---- */

/* S109. */
GB_TEST(discovery, two_ranks_on_one_gpu) {
  make("nnaa", "xxyy");
  fact(0, "gpu_uuid", "GPU-1");
  fact(1, "gpu_uuid", "GPU-1");
  refused(4,
          "ranks 0 and 1 of island \"nvidia\" would drive the same GPU GPU-1");
  COPY(records[1].facts[0].value, "GPU-2");
  fact(0, "gpu_pci", "0000:01:00.0"); /* slices: one card, two UUIDs */
  fact(1, "gpu_pci", "0000:01:00.0");
  accepted(4);
  gbi_discovery_free(d);
  records[1].facts[0].value[0] = 0;
  refused(4, "0000:01:00.0");
  COPY(records[1].hostname, "elsewhere");
  accepted(4);
  gbi_discovery_free(d);
  COPY(records[2].facts[0].name, "gpu_uuid"); /* another island */
  COPY(records[2].facts[0].value, "GPU-1");
  records[2].facts_count = 1;
  accepted(4);
  done();
}

/* ---- bytes ---- */

static void filled(gbi_record *r) {
  memset(r, 0, sizeof *r);
  COPY(r->vendor, "amd");
  COPY(r->hostname, "h");
  COPY(r->host_key, "k");
  COPY(r->bridge, "tcp");
  COPY(r->settings[0].name, "GPUBRIDGE_X");
  COPY(r->settings[0].value, "1");
  r->settings_count = 1;
  COPY(r->facts[0].name, "torch_version");
  COPY(r->facts[0].value, "2.13.0+cpu");
  r->facts_count = 1;
  COPY(r->problems[0], "p");
  r->problems_count = 1;
}

GB_TEST(discovery, record_survives_the_wire) {
  gbi_record *a = calloc(2, sizeof *a), *b = a + 1;
  gbi_writer w;
  gbi_reader r;
  filled(a);
  gbi_writer_init_growing(&w);
  GB_CHECK_OK(gbi_record_encode(a, &w));
  gbi_reader_init(&r, w.data, w.used);
  GB_CHECK_OK(gbi_record_decode(&r, b, NULL));
  GB_CHECK(!memcmp(a, b, sizeof *a));
  /* Every shorter piece, and one byte more, is malformed, not believed. */
  for (size_t n = 0; n < w.used; n++) {
    gbi_reader_init(&r, w.data, n);
    GB_CHECK_INT(gbi_record_decode(&r, b, &error), GB_ERR_PROTOCOL);
  }
  gbi_put_u8(&w, 0);
  gbi_reader_init(&r, w.data, w.used);
  GB_CHECK_INT(gbi_record_decode(&r, b, &error), GB_ERR_PROTOCOL);
  gbi_writer_fini(&w);
  free(a);
}

/* Every byte replaced in turn: refused or taken, never out of bounds (asan). */
GB_TEST(discovery, hostile_records) {
  gbi_record *a = calloc(1, sizeof *a);
  gbi_writer w;
  gbi_reader r;
  filled(a);
  gbi_writer_init_growing(&w);
  GB_CHECK_OK(gbi_record_encode(a, &w));
  for (size_t i = 0; i < w.used; i++) {
    uint8_t kept = w.data[i];
    for (int value = 0; value < 256; value += 51) {
      w.data[i] = (uint8_t)value;
      gbi_reader_init(&r, w.data, w.used);
      (void)gbi_record_decode(&r, a, NULL);
    }
    w.data[i] = kept;
  }
  w.data[0] = 9;
  gbi_reader_init(&r, w.data, w.used);
  GB_CHECK_INT(gbi_record_decode(&r, a, &error), GB_ERR_VERSION);
  gbi_writer_fini(&w);
  free(a);
}

/* ---- a rank's own record ---- */

static gb_error own;

static gbi_record *fill(gb_job_params *params) {
  static const gb_job_params init = GB_JOB_PARAMS_INIT;
  gb_job_params none = init;
  const gbi_setting *tables[GBI_SETTING_TABLES_MAX];
  int counts[GBI_SETTING_TABLES_MAX];
  int count = gbi_settings_tables(tables, counts);
  gbi_record *r = calloc(1, sizeof *r);
  GB_CHECK_OK(
      gbi_record_fill(params ? params : &none, tables, counts, count, r, &own));
  return r;
}

static const char *value_of(const gbi_record *r, const char *name) {
  for (int i = 0; i < r->settings_count; i++)
    if (!strcmp(r->settings[i].name, name)) return r->settings[i].value;
  return "(not there)";
}

GB_TEST(record, reads_the_environment) {
  setenv("GPUBRIDGE_VENDOR", " NVIDIA ", 1);
  setenv("GPUBRIDGE_SIM_HOSTNAME", "moon", 1);
  setenv("GPUBRIDGE_ISLAND", "paris", 1);
  setenv("GPUBRIDGE_SPLIT_TEST", "Yes", 1);
  setenv("GPUBRIDGE_BRIDGE", "multitcp", 1);
  setenv("GPUBRIDGE_POLICY", "pipelined-reduce-bridge-broadcast", 1);
  setenv("GPUBRIDGE_CHUNK_BYTES", "4M", 1);
  setenv("GPUBRIDGE_TCP_STREAMS", "2", 1);
  gbi_record *r = fill(NULL);
  GB_CHECK_INT(own.status, GB_OK);
  GB_CHECK_INT(r->problems_count, 0);
  GB_CHECK(r->simulated);
  GB_CHECK(!strcmp(r->vendor, "nvidia"));
  GB_CHECK(!strcmp(r->hostname, "moon"));
  GB_CHECK_TEXT(r->host_key, "moon");
  GB_CHECK(!strcmp(r->island, "paris"));
  GB_CHECK(!strcmp(r->split_test, "half"));
  GB_CHECK(!strcmp(r->bridge, "tcp"));
  GB_CHECK(!strcmp(r->policy, "reduce-bridge-broadcast"));
  GB_CHECK(!strcmp(value_of(r, "GPUBRIDGE_CHUNK_BYTES"), "4194304"));
  /* Two names of one setting are compared as one. */
  GB_CHECK(!strcmp(value_of(r, "GPUBRIDGE_MULTITCP_STREAMS"), "2"));
  GB_CHECK(!strcmp(value_of(r, "GPUBRIDGE_TCP_STREAMS"), "(not there)"));
  free(r);
}

/* S025 and S003: this rank's error has name and value, and the others learn. */
static void bad(const char *name, const char *value, gb_status status,
                const char *text) {
  setenv("GPUBRIDGE_VENDOR", "amd", 1);
  setenv(name, value, 1);
  gbi_record *r = fill(NULL);
  unsetenv(name);
  GB_CHECK_INT(own.status, status);
  GB_CHECK_TEXT(own.text, name);
  GB_CHECK_TEXT(own.text, text);
  GB_CHECK_TEXT(r->problems[0], text);
  free(r);
}

GB_TEST(record, malformed_variables) {
  setenv("GPUBRIDGE_CPU_ONLY", "1", 1);
  bad("GPUBRIDGE_VENDOR", "intel", GB_ERR_SETTING, "intel");
  bad("GPUBRIDGE_PINNED_STAGING", "maybe", GB_ERR_SETTING, "maybe");
  bad("GPUBRIDGE_BRIDGE_COMPRESSION", "int4", GB_ERR_SETTING, "int4");
  bad("GPUBRIDGE_ASYNC_QUEUE", "0", GB_ERR_SETTING, "\"0\"");
  bad("GPUBRIDGE_CHUNK_BYTES", "10", GB_ERR_SETTING, "multiple of 8");
  bad("GPUBRIDGE_SPLIT_TEST", "third", GB_ERR_SETTING, "half|alternate|node");
  bad("GPUBRIDGE_MULTITCP_IFNAME", "eth99", GB_ERR_SETTING, "eth99");
  bad("GPUBRIDGE_TCP_IFNAME", "127.0.0.1", GB_ERR_SETTING, "not an address");
  bad("GPUBRIDGE_HEARTBEAT_TIMEOUT", "soon", GB_ERR_SETTING, "soon");
}

GB_TEST(record, unknown_names_list_the_known) {
  gb_job_params params = GB_JOB_PARAMS_INIT;
  setenv("GPUBRIDGE_VENDOR", "amd", 1);
  params.bridge = "pigeon";
  gbi_record *r = fill(&params);
  GB_CHECK_INT(own.status, GB_ERR_ARGUMENT);
  GB_CHECK_TEXT(own.text, "no bridge \"pigeon\". Known are auto, ");
  GB_CHECK_INT(r->problems_count, 1);
  free(r);
  params.bridge = NULL;
  params.policy = "best";
  r = fill(&params);
  GB_CHECK_INT(own.status, GB_ERR_ARGUMENT);
  GB_CHECK_TEXT(own.text, "no policy \"best\". Known are auto, native-only, ");
  free(r);
}

GB_TEST(record, no_gpu_names_both_ways_out) {
  gbi_record *r = fill(NULL);
  GB_CHECK_INT(own.status, GB_OK); /* agreed refusal, no mistake of its own */
  GB_CHECK_INT(r->problems_count, 1);
  GB_CHECK_TEXT(r->problems[0], "GPUBRIDGE_VENDOR");
  GB_CHECK_TEXT(r->problems[0], "GPUBRIDGE_CPU_ONLY");
  free(r);
  setenv("GPUBRIDGE_CPU_ONLY", "1", 1);
  r = fill(NULL);
  GB_CHECK_TEXT(r->problems[0], "neither CUDA nor ROCm");
  free(r);
  gb_job_params params = GB_JOB_PARAMS_INIT;
  params.vendor = "amd";
  r = fill(&params);
  GB_CHECK_INT(r->problems_count, 0);
  GB_CHECK(r->simulated && !strcmp(r->vendor, "amd"));
  free(r);
}

GB_TEST(record, compression_has_one_value_a_codec) {
  setenv("GPUBRIDGE_VENDOR", "amd", 1);
  setenv("GPUBRIDGE_BRIDGE_COMPRESSION", " BF16 ", 1);
  gbi_record *r = fill(NULL);
  GB_CHECK_INT(r->problems_count, 0);
  GB_CHECK(!strcmp(value_of(r, "GPUBRIDGE_BRIDGE_COMPRESSION"), "bf16"));
  free(r);
  setenv("GPUBRIDGE_BRIDGE_COMPRESSION", "False", 1);
  r = fill(NULL);
  GB_CHECK_INT(r->problems_count, 0);
  GB_CHECK(!strcmp(value_of(r, "GPUBRIDGE_BRIDGE_COMPRESSION"), "off"));
  free(r);
}

GB_TEST(record, caller_gives_facts_and_problems) {
  static const gb_pair facts[] = {{"torch_version", "2.13.0"}, {"x", "y"}};
  static const char *const problems[] = {"LOCAL_RANK is\n\"two\""};
  gb_job_params params = GB_JOB_PARAMS_INIT;
  setenv("GPUBRIDGE_VENDOR", "amd", 1);
  params.facts = facts;
  params.facts_count = 2;
  params.problems = problems;
  params.problems_count = 1;
  gbi_record *r = fill(&params);
  GB_CHECK_INT(r->facts_count, 2);
  GB_CHECK(!strcmp(r->facts[1].value, "y"));
  GB_CHECK(!strcmp(r->problems[0], "LOCAL_RANK is \"two\""));
  free(r);
  params.facts_count = 65;
  gb_pair many[65];
  for (int i = 0; i < 65; i++) many[i] = facts[1];
  params.facts = many;
  r = fill(&params);
  GB_CHECK_INT(own.status, GB_ERR_ARGUMENT);
  free(r);
}

/* ---- among processes ---- */

static gb_status discover(void) {
  gbi_control *control;
  gbi_record *mine = fill(NULL);
  gbi_control_params params = {
      .store = {.rank = gb_rank(),
                .world_size = gb_world(),
                .deadline_ns = gbi_deadline_after_ms(15000)},
      .hostname = mine->hostname,
      .vendor = mine->vendor};
  if (gbi_control_open(&params, &control, &error) != GB_OK)
    gb_test_fail(__FILE__, __LINE__, "%s", error.text);
  gb_status status = gbi_discover(control, mine, gb_rank(), gb_world(),
                                  gbi_deadline_after_ms(15000), &d, &error);
  free(mine);
  if (status == GB_OK)
    gbi_control_goodbye(control, gbi_deadline_after_ms(5000));
  gbi_control_close(control);
  return status;
}

GB_TEST(discovery, whole_job, .ranks = 4, .vendors = "nana") {
  if (discover() != GB_OK) gb_test_fail(__FILE__, __LINE__, "%s", error.text);
  GB_CHECK_INT(d->topology->islands_count, 2);
  GB_CHECK_INT(d->topology->islands[1].ranks[1], 3);
  GB_CHECK_INT(d->rank, gb_rank());
  gbi_discovery_free(d);
}

/* S025 among processes: rank 3 has its own error, all the shared one. */
GB_TEST(discovery, one_bad_rank_refuses_all, .ranks = 4, .vendors = "nnaa") {
  if (gb_rank() == 3) setenv("GPUBRIDGE_PINNED_STAGING", "maybe", 1);
  uint64_t start = gbi_now_ns();
  GB_CHECK_INT(discover(), GB_ERR_REFUSED);
  GB_CHECK(gbi_now_ns() - start < 5 * GBI_NS_PER_S);
  GB_CHECK_TEXT(error.text, "1 of 4 ranks cannot take part:\nrank 3 ");
  GB_CHECK_TEXT(error.text, "GPUBRIDGE_PINNED_STAGING is \"maybe\"");
  GB_CHECK_INT(own.status, gb_rank() == 3 ? GB_ERR_SETTING : GB_OK);
}

/* A rank without GPU refuses the job for all, in seconds. */
GB_TEST(discovery, rank_without_gpu_refuses_all, .ranks = 3) {
  GB_CHECK_INT(discover(), GB_ERR_REFUSED);
  GB_CHECK_TEXT(error.text, "3 of 3 ranks");
  GB_CHECK_TEXT(error.text, "GPUBRIDGE_CPU_ONLY");
}
