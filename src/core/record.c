/* One rank's record: filling it, and its bytes. */
#include "core/discovery.h"
#include "base/fault.h"
#include "ccl/native.h"
#include "core/agreement.h"
#include "core/parts.h"
#include "core/settings.h"
#include "core/thresholds.h"
#include "os/hostarea.h"
#include "os/net.h"
#include "policy/policy.h"
#include "transport/transport.h"

#include <gpubridge/version.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RECORD_FORMAT = 3, FACTS_BYTES_MAX = 4096 };

const char *const gbi_known_bridges[] = {"auto", "shm", "tcp", "multitcp",
                                         NULL};

/* ---- bytes ---- */

static void put_pairs(gbi_writer *out, const gbi_record *r) {
  gbi_put_u16(out, (uint16_t)r->settings_count);
  for (int i = 0; i < r->settings_count; i++) {
    gbi_put_text(out, r->settings[i].name);
    gbi_put_text(out, r->settings[i].value);
  }
  gbi_put_u16(out, (uint16_t)r->facts_count);
  for (int i = 0; i < r->facts_count; i++) {
    gbi_put_text(out, r->facts[i].name);
    gbi_put_text(out, r->facts[i].value);
  }
  gbi_put_u16(out, (uint16_t)r->problems_count);
  for (int i = 0; i < r->problems_count; i++) gbi_put_text(out, r->problems[i]);
}

static void put_endpoint(gbi_writer *out, const gbi_endpoint *e) {
  gbi_put_u8(out, (uint8_t)(e->asked | e->usable << 1));
  gbi_put_text(out, e->reason);
  gbi_put_text(out, e->device);
  gbi_put_u16(out, (uint16_t)e->port);
  gbi_put_text(out, e->link_layer);
  gbi_put_text(out, e->address);
}

static void get_endpoint(gbi_reader *in, gbi_endpoint *e) {
  uint8_t flags = gbi_get_u8(in);
  if (flags > 3) in->bad = true;
  e->asked = flags & 1;
  e->usable = flags >> 1;
  gbi_get_text(in, e->reason, sizeof e->reason);
  gbi_get_text(in, e->device, sizeof e->device);
  e->port = gbi_get_u16(in);
  gbi_get_text(in, e->link_layer, sizeof e->link_layer);
  gbi_get_text(in, e->address, sizeof e->address);
}

gb_status gbi_record_encode(const gbi_record *r, gbi_writer *out) {
  gbi_put_u16(out, RECORD_FORMAT);
  gbi_put_text(out, r->vendor);
  gbi_put_text(out, r->island);
  gbi_put_text(out, r->hostname);
  gbi_put_text(out, r->host_key);
  gbi_put_u8(out, r->simulated);
  gbi_put_text(out, r->bridge);
  put_endpoint(out, &r->rdma);
  gbi_put_text(out, r->policy);
  gbi_put_text(out, r->rules);
  gbi_put_text(out, r->split_test);
  gbi_put_text(out, r->version);
  put_pairs(out, r);
  return out->bad ? GB_ERR_MEMORY : GB_OK;
}

/* Bounded count of entries that follow. */
static int get_count(gbi_reader *in, size_t most) {
  uint16_t count = gbi_get_u16(in);
  if (count > most) in->bad = true;
  return in->bad ? 0 : count;
}

/* Entries beyond the counts stay untouched: records are large, and mostly
 * empty pages. */
static void get_pairs(gbi_reader *in, gbi_record *r) {
  r->settings_count = get_count(in, GBI_COUNT(r->settings));
  for (int i = 0; i < r->settings_count && !in->bad; i++) {
    gbi_get_text(in, r->settings[i].name, sizeof r->settings[i].name);
    gbi_get_text(in, r->settings[i].value, sizeof r->settings[i].value);
  }
  r->facts_count = get_count(in, GBI_FACTS_MAX);
  for (int i = 0; i < r->facts_count && !in->bad; i++) {
    gbi_get_text(in, r->facts[i].name, sizeof r->facts[i].name);
    gbi_get_text(in, r->facts[i].value, sizeof r->facts[i].value);
  }
  r->problems_count = get_count(in, GBI_PROBLEMS_MAX);
  for (int i = 0; i < r->problems_count && !in->bad; i++)
    gbi_get_text(in, r->problems[i], sizeof r->problems[i]);
}

gb_status gbi_record_decode(gbi_reader *in, gbi_record *r, gb_error *error) {
  if (gbi_decode_fault(in->data, in->bytes)) in->bad = true;
  uint16_t format = gbi_get_u16(in);
  if (!in->bad && format != RECORD_FORMAT)
    return gbi_fail(error, GB_ERR_VERSION,
                    "a record has format %u, this rank reads format %d. "
                    "Install the same gpubridge on every machine",
                    format, RECORD_FORMAT);
  gbi_get_text(in, r->vendor, sizeof r->vendor);
  gbi_get_text(in, r->island, sizeof r->island);
  gbi_get_text(in, r->hostname, sizeof r->hostname);
  gbi_get_text(in, r->host_key, sizeof r->host_key);
  r->simulated = gbi_get_u8(in) != 0;
  gbi_get_text(in, r->bridge, sizeof r->bridge);
  get_endpoint(in, &r->rdma);
  gbi_get_text(in, r->policy, sizeof r->policy);
  gbi_get_text(in, r->rules, sizeof r->rules);
  gbi_get_text(in, r->split_test, sizeof r->split_test);
  gbi_get_text(in, r->version, sizeof r->version);
  get_pairs(in, r);
  if (in->bad || in->at != in->bytes)
    return gbi_fail(error, GB_ERR_PROTOCOL, "a record is malformed");
  return GB_OK;
}

/* ---- filling ---- */

/* Cuts what is too long. */
static void copy(char *to, size_t bytes, const char *text) {
  size_t n = strnlen(text, bytes - 1);
  memcpy(to, text, n);
  to[n] = 0;
}

static void add_problem(gbi_record *r, const char *text) {
  if (r->problems_count >= GBI_PROBLEMS_MAX) return;
  char *to = r->problems[r->problems_count++];
  copy(to, sizeof r->problems[0], text);
  for (; *to; to++)
    if (*to == '\n') *to = ' '; /* problems are listed one a line */
}

/* A problem that is this rank's own mistake: it raises the first one itself. */
static void add_own(gbi_record *r, const gb_error *error, gb_error *own) {
  add_problem(r, error->text);
  if (own && own->status == GB_OK) *own = *error;
}

/* Compared by fields of their own, in the order of the checks. */
static bool has_own_field(const char *name) {
  return !strcmp(name, "GPUBRIDGE_BRIDGE") ||
         !strcmp(name, "GPUBRIDGE_POLICY") ||
         !strcmp(name, "GPUBRIDGE_SPLIT_TEST");
}

/* GPUBRIDGE_TCP_x is another name of GPUBRIDGE_MULTITCP_x: one setting. Returns
 * the index of the first name's entry, or -1. */
static int alias_of(const gbi_record *r, const char *name) {
  static const char alias[] = "GPUBRIDGE_TCP_";
  char full[96];
  if (strncmp(name, alias, strlen(alias))) return -1;
  snprintf(full, sizeof full, "GPUBRIDGE_MULTITCP_%s", name + strlen(alias));
  for (int i = 0; i < r->settings_count; i++)
    if (!strcmp(r->settings[i].name, full)) return i;
  return -1;
}

static void add_setting(gbi_record *r, const gbi_setting *setting,
                        const gbi_value *value) {
  char ignored[8];
  int at = alias_of(r, setting->name);
  if (at >= 0) {
    if (value->is_set &&
        !gbi_env(r->settings[at].name, ignored, sizeof ignored))
      copy(r->settings[at].value, sizeof r->settings[at].value, value->text);
    return;
  }
  if ((size_t)r->settings_count >= GBI_COUNT(r->settings)) return;
  at = r->settings_count++;
  copy(r->settings[at].name, sizeof r->settings[at].name, setting->name);
  copy(r->settings[at].value, sizeof r->settings[at].value, value->text);
}

static bool is_off(const char *word) {
  return !word[0] || !strcmp(word, "off") || !strcmp(word, "0") ||
         !strcmp(word, "false") || !strcmp(word, "no");
}

/* All ways to say no are one value. */
static void settle_compression(gbi_value *value) {
  if (is_off(value->text)) copy(value->text, sizeof value->text, "off");
}

static void fill_settings(const gbi_setting *const *tables, const int *counts,
                          int tables_count, gbi_record *r, gb_error *own) {
  for (int t = 0; t < tables_count; t++) {
    for (int i = 0; i < counts[t]; i++) {
      const gbi_setting *setting = &tables[t][i];
      gbi_value value;
      gb_error error;
      if (gbi_setting_read(setting, &value, &error) != GB_OK)
        add_own(r, &error, own);
      if (!strcmp(setting->name, "GPUBRIDGE_BRIDGE_COMPRESSION"))
        settle_compression(&value);
      if (setting->must_agree && !has_own_field(setting->name))
        add_setting(r, setting, &value);
    }
  }
}

static void read_text(const char *name, gbi_value *value) {
  (void)gbi_setting_read(gbi_core_setting_find(name), value, NULL);
}

static void fill_vendor(const gb_job_params *params, gbi_record *r,
                        gb_error *own) {
  gbi_value vendor, cpu_only;
  gb_error error;
  read_text("GPUBRIDGE_VENDOR", &vendor);
  read_text("GPUBRIDGE_CPU_ONLY", &cpu_only);
  const char *build = params->vendor;
  if (build && strcmp(build, "nvidia") && strcmp(build, "amd")) {
    gbi_fail(&error, GB_ERR_ARGUMENT,
             "the caller's vendor is \"%.32s\", but must be nvidia or amd",
             build);
    add_own(r, &error, own);
    build = NULL;
  }
  copy(r->vendor, sizeof r->vendor,
       vendor.is_set ? vendor.text
       : build       ? build
                     : "");
  r->simulated = vendor.is_set || cpu_only.number;
  if (r->simulated && !r->vendor[0])
    add_problem(r,
                "the installed build has neither CUDA nor ROCm, and "
                "GPUBRIDGE_CPU_ONLY takes the vendor from the build. "
                "GPUBRIDGE_VENDOR=nvidia or amd simulates one without");
  if (!r->simulated && params->device < 0)
    add_problem(r,
                "no GPU was named for this rank's job. GPUBRIDGE_CPU_ONLY=1 "
                "runs on CPU with the vendor of the build, "
                "GPUBRIDGE_VENDOR=nvidia or amd simulates one");
}

static void add_fact(gbi_record *r, const char *name, const char *value) {
  bool told = gbi_record_fact(r, name)[0]; /* by the caller */
  if (!value[0] || told || r->facts_count >= GBI_FACTS_MAX) return;
  int at = r->facts_count++;
  copy(r->facts[at].name, sizeof r->facts[at].name, name);
  copy(r->facts[at].value, sizeof r->facts[at].value, value);
}

/* Which GPU this rank would drive, for the others to compare; no context is
 * made on it yet. */
static void fill_gpu(const gb_job_params *params, gbi_record *r,
                     gb_error *own) {
  gbi_device_facts facts;
  gb_error error;
  if (r->simulated || params->device < 0) return;
  if (!r->vendor[0]) {
    add_problem(r,
                "a GPU was named for this rank's job, but not whose it is: "
                "the installed build has neither CUDA nor ROCm");
    return;
  }
  gbi_vendor vendor = strcmp(r->vendor, "amd") ? GBI_NVIDIA : GBI_AMD;
  gb_status status = gbi_device_look(vendor, params->device, &facts, &error);
  if (status == GB_OK && !facts.flags)
    status = gbi_fail(&error, GB_ERR_UNSUPPORTED,
                      "GPU %d (%s) cannot wait for memory on a stream, which "
                      "the bridge needs: its driver is too old",
                      params->device, facts.name);
  if (status == GB_OK) status = gbi_native_load(vendor, NULL, NULL, &error);
  if (status != GB_OK) {
    add_own(r, &error, own);
    return;
  }
  add_fact(r, "gpu_uuid", facts.uuid);
  add_fact(r, "gpu_pci", facts.pci);
  add_fact(r, "gpu_name", facts.name);
  add_fact(r, "gpu_arch", facts.arch);
}

static void fill_host(gbi_record *r, gb_error *own) {
  gbi_value island, hostname;
  gb_error error;
  read_text("GPUBRIDGE_ISLAND", &island);
  read_text("GPUBRIDGE_SIM_HOSTNAME", &hostname);
  if (strlen(island.text) >= sizeof r->island) {
    gbi_fail(&error, GB_ERR_SETTING,
             "GPUBRIDGE_ISLAND is \"%s\", but must have at most %zu bytes",
             island.text, sizeof r->island - 1);
    add_own(r, &error, own);
  }
  copy(r->island, sizeof r->island, island.text);
  if (r->simulated && hostname.text[0])
    copy(r->hostname, sizeof r->hostname, hostname.text);
  else if (gethostname(r->hostname, sizeof r->hostname))
    copy(r->hostname, sizeof r->hostname, "unknown");
  r->hostname[sizeof r->hostname - 1] = 0;
  gbi_host_key(r->hostname, r->host_key, sizeof r->host_key);
}

static void fill_bridge(const gb_job_params *params, gbi_record *r,
                        gb_error *own) {
  gbi_value setting;
  gb_error error;
  read_text("GPUBRIDGE_BRIDGE", &setting);
  const char *name = params->bridge ? params->bridge : setting.text;
  if (!strcmp(name, "multitcp")) name = "tcp"; /* its old name */
  bool own_part = params->bridge_ops && !strcmp(name, params->bridge_ops->name);
  if (strcmp(name, "auto") && !gbi_transport_find(name) && !own_part) {
    char known[256];
    gbi_transport_names(known, sizeof known);
    gbi_fail(&error, GB_ERR_ARGUMENT,
             "there is no bridge \"%.64s\". Known are auto, %s", name, known);
    add_own(r, &error, own);
    name = "auto";
  }
  copy(r->bridge, sizeof r->bridge, name);
  const gbi_transport_ops *verbs = gbi_transport_find("verbs");
  if (!strcmp(name, "auto") && verbs) verbs->endpoint(&r->rdma);
}

/* A long text is compared by its beginning and a hash of the whole. */
static void add_policy_settings(gbi_record *r, const gb_policy_ops *policy) {
  const char *text =
      policy->settings && policy->settings[0] ? policy->settings : "none";
  if ((size_t)r->settings_count >= GBI_COUNT(r->settings)) return;
  int at = r->settings_count++;
  size_t bytes = sizeof r->settings[at].value;
  copy(r->settings[at].name, sizeof r->settings[at].name, GBI_POLICY_SETTINGS);
  copy(r->settings[at].value, bytes, text);
  if (strlen(text) < bytes) return;
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (; *text; text++)
    hash = (hash ^ (uint8_t)*text) * UINT64_C(0x100000001b3);
  snprintf(r->settings[at].value + bytes - 24, 24, "... (%016" PRIx64 ")",
           hash);
}

static void fill_policy(const gb_job_params *params, gbi_record *r,
                        gb_error *own) {
  gbi_value setting;
  gb_error error;
  read_text("GPUBRIDGE_POLICY", &setting);
  const char *name = params->policy ? params->policy : setting.text;
  const gbi_policy_ops *policy = gbi_policy_find(name);
  if (params->policy_ops && !strcmp(name, params->policy_ops->name)) {
    add_policy_settings(r, params->policy_ops);
    copy(r->policy, sizeof r->policy, name);
    return;
  }
  if (!policy) {
    char known[512];
    gbi_policy_names(NULL, known, sizeof known);
    gbi_fail(&error, GB_ERR_ARGUMENT,
             "there is no policy \"%.64s\". Known are %s", name, known);
    add_own(r, &error, own);
  }
  copy(r->policy, sizeof r->policy, policy ? policy->name : "auto");
}

static void fill_rules(gbi_record *r, gb_error *own) {
  gbi_value path;
  gbi_rules rules;
  gb_error error;
  read_text("GPUBRIDGE_THRESHOLDS", &path);
  if (!path.text[0]) return;
  if (gbi_thresholds_read(path.text, &rules, &error) != GB_OK)
    add_own(r, &error, own);
  else
    (void)gbi_rules_text(&rules, r->rules, sizeof r->rules);
}

/* Two sources of rules, or none that would be used: neither is a choice to make
 * in silence. A caller's own bridge is not called before its job is open. */
static gb_status check_tuning(const gb_job_params *params, const gbi_record *r,
                              gb_error *error) {
  gbi_value tune, path;
  read_text("GPUBRIDGE_TUNE", &tune);
  read_text("GPUBRIDGE_THRESHOLDS", &path);
  if (!tune.number) return GB_OK;
  if (path.text[0])
    return gbi_fail(
        error, GB_ERR_SETTING,
        "GPUBRIDGE_TUNE=1 measures which policy carries which sizes, and "
        "GPUBRIDGE_THRESHOLDS=%.128s says it already. Unset one of them",
        path.text);
  if (strcmp(r->policy, "auto") && strcmp(r->policy, "auto-tuned"))
    return gbi_fail(
        error, GB_ERR_SETTING,
        "GPUBRIDGE_TUNE=1 measures which policy carries which sizes, but "
        "every call takes the policy \"%.64s\", which was named. Unset it or "
        "name the policy auto or auto-tuned",
        r->policy);
  if (params->bridge_ops && !strcmp(r->bridge, params->bridge_ops->name))
    return gbi_fail(
        error, GB_ERR_SETTING,
        "GPUBRIDGE_TUNE=1 measures before the job is open, when the bridge "
        "\"%.32s\", which is the caller's own, cannot be called. Unset it or "
        "use the bridge auto, shm or tcp",
        r->bridge);
  return GB_OK;
}

static void fill_split_test(gbi_record *r) {
  gbi_value value;
  read_text("GPUBRIDGE_SPLIT_TEST", &value);
  if (is_off(value.text)) return;
  bool named = !strcmp(value.text, "alternate") || !strcmp(value.text, "node");
  copy(r->split_test, sizeof r->split_test, named ? value.text : "half");
}

/* A name that no interface has must not become somebody's silent choice. */
static void check_interface(gbi_record *r, gb_error *own) {
  static const char *const variables[] = {"GPUBRIDGE_MULTITCP_IFNAME",
                                          "GPUBRIDGE_TCP_IFNAME"};
  gbi_address list[GBI_ADDRESSES_MAX];
  char name[256];
  gb_error error;
  int count;
  for (size_t i = 0; i < GBI_COUNT(variables); i++) {
    if (!gbi_env(variables[i], name, sizeof name)) continue;
    if (gbi_interface_addresses(variables[i], name, list, &count, &error) !=
        GB_OK)
      add_own(r, &error, own);
  }
}

static void fill_facts(const gb_job_params *params, gbi_record *r,
                       gb_error *own) {
  size_t bytes = 0;
  gb_error error;
  for (size_t i = 0; i < params->facts_count; i++) {
    const gb_pair *fact = &params->facts[i];
    bytes += strlen(fact->name) + strlen(fact->value);
    if (i >= GBI_FACTS_MAX || bytes > FACTS_BYTES_MAX ||
        strlen(fact->name) >= sizeof r->facts[0].name ||
        strlen(fact->value) >= sizeof r->facts[0].value) {
      gbi_fail(&error, GB_ERR_ARGUMENT,
               "the caller gives too many facts: at most %d are taken, of %zu "
               "and %zu bytes, %d bytes in all",
               GBI_FACTS_MAX, sizeof r->facts[0].name - 1,
               sizeof r->facts[0].value - 1, FACTS_BYTES_MAX);
      add_own(r, &error, own);
      return;
    }
    copy(r->facts[i].name, sizeof r->facts[i].name, fact->name);
    copy(r->facts[i].value, sizeof r->facts[i].value, fact->value);
    r->facts_count++;
  }
}

gb_status gbi_record_fill(const gb_job_params *params,
                          const gbi_setting *const *tables, const int *counts,
                          int tables_count, gbi_record *record, gb_error *own) {
  gb_error error;
  if (own) gbi_error_clear(own);
  memset(record, 0, sizeof *record);
  snprintf(record->version, sizeof record->version, "%s", GB_VERSION);
  fill_settings(tables, counts, tables_count, record, own);
  fill_vendor(params, record, own);
  fill_host(record, own);
  fill_bridge(params, record, own);
  fill_policy(params, record, own);
  fill_rules(record, own);
  if (check_tuning(params, record, &error) != GB_OK)
    add_own(record, &error, own);
  fill_split_test(record);
  check_interface(record, own);
  fill_facts(params, record, own);
  fill_gpu(params, record, own);
  for (size_t i = 0; i < params->problems_count; i++)
    add_problem(record, params->problems[i]);
  return GB_OK;
}
