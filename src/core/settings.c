#include "core/settings.h"

#include "control/control.h"
#include "device/compiler.h"
#include "device/library.h"
#include "os/net.h"
#include "transport/transport.h"

#include <string.h>

/* Words that mean yes or no, where a setting has other words too. */
#define OFF_WORDS "off|0|false|no"
#define ON_WORDS "on|1|true|yes"

const gbi_setting gbi_core_settings[] = {
    {.name = "GPUBRIDGE_BRIDGE",
     .default_value = "auto",
     .kind = GBI_SETTING_TEXT,
     .must_agree = true,
     .help = "bridge between islands when the program names none: auto, shm, "
             "tcp"},
    {.name = "GPUBRIDGE_POLICY",
     .default_value = "auto",
     .kind = GBI_SETTING_TEXT,
     .must_agree = true,
     .help = "collective policy when the program names none"},
    {.name = "GPUBRIDGE_VENDOR",
     .default_value = "",
     .kind = GBI_SETTING_CHOICE,
     .choices = "nvidia|amd",
     .help = "simulate this vendor on CPU"},
    {.name = "GPUBRIDGE_CPU_ONLY",
     .default_value = "0",
     .kind = GBI_SETTING_BOOL,
     .help = "run on CPU, with the vendor of the installed build"},
    {.name = "GPUBRIDGE_ISLAND",
     .default_value = "",
     .kind = GBI_SETTING_TEXT,
     .help = "name of this rank's island; unset: its vendor"},
    {.name = "GPUBRIDGE_SIM_HOSTNAME",
     .default_value = "",
     .kind = GBI_SETTING_TEXT,
     .help = "host name that a simulated rank reports"},
    {.name = "GPUBRIDGE_SPLIT_TEST",
     .default_value = "off",
     .kind = GBI_SETTING_CHOICE,
     .must_agree = true,
     .choices = "half|alternate|node|" ON_WORDS "|" OFF_WORDS,
     .help = "for tests: split a single-vendor job in two islands; yes means "
             "half"},
    {.name = "GPUBRIDGE_CHUNK_BYTES",
     .default_value = "1M",
     .kind = GBI_SETTING_SIZE,
     .must_agree = true,
     .min = 8,
     .max = INT64_C(1) << 40,
     .multiple = 8,
     .help = "unit in which a collective is pipelined; at most 256K when all "
             "ranks share a host"},
    {.name = "GPUBRIDGE_THRESHOLDS",
     .default_value = "",
     .kind = GBI_SETTING_TEXT,
     .help = "thresholds file: which policy carries which sizes; its rules "
             "must agree, its path need not"},
    {.name = "GPUBRIDGE_TUNE",
     .default_value = "0",
     .kind = GBI_SETTING_BOOL,
     .must_agree = true,
     .help = "measure at init which policy carries which sizes; instead of a "
             "thresholds file"},
    {.name = "GPUBRIDGE_TUNE_SECONDS",
     .default_value = "3",
     .kind = GBI_SETTING_INT,
     .must_agree = true,
     .min = 1,
     .max = 60,
     .help = "seconds that GPUBRIDGE_TUNE may take, at most"},
    {.name = "GPUBRIDGE_SHARD_LINKS",
     .default_value = "0",
     .kind = GBI_SETTING_INT,
     .must_agree = true,
     .max = 65536,
     .help = "links of the policy sharded-bridge, at most; 0: as many as the "
             "smallest island has ranks"},
    {.name = "GPUBRIDGE_PINNED_STAGING",
     .default_value = "0",
     .kind = GBI_SETTING_BOOL,
     .must_agree = true,
     .help = "leaders stage through one pinned buffer"},
    {.name = "GPUBRIDGE_BRIDGE_COMPRESSION",
     .default_value = "off",
     .kind = GBI_SETTING_CHOICE,
     .must_agree = true,
     .choices = "bf16|fp8|" OFF_WORDS,
     .help = "sums of floating types cross the bridge in fewer bytes, lossy: "
             "bf16, fp8"},
    {.name = "GPUBRIDGE_COMPRESSION_RESIDUALS",
     .default_value = "1G",
     .kind = GBI_SETTING_SIZE,
     .help = "memory of a group's leader for what compression lost, which the "
             "next call adds; 0: none is kept"},
    {.name = "GPUBRIDGE_ASYNC_QUEUE",
     .default_value = "1024",
     .kind = GBI_SETTING_INT,
     .min = 1,
     .max = 1 << 20,
     .help = "async collectives that may wait in line"},
    {.name = "GPUBRIDGE_ASYNC_BYTES",
     .default_value = "64G",
     .kind = GBI_SETTING_SIZE,
     .min = 1,
     .max = INT64_C(1) << 60,
     .help = "bytes of the buffers of async collectives that may wait in line; "
             "one alone may have more"},
    {.name = "GPUBRIDGE_STAGING_BYTES",
     .default_value = "32M",
     .kind = GBI_SETTING_SIZE,
     .min = 64 << 10,
     .max = INT64_C(1) << 40,
     .help =
         "pinned memory that a call on a GPU passes through on its way over "
         "the bridge; twice as much per group"},
    {.name = "GPUBRIDGE_SHARED_STAGING_BYTES",
     .default_value = "32M",
     .kind = GBI_SETTING_SIZE,
     .min = 0,
     .max = INT64_C(1) << 40,
     .help = "memory of each rank through which the GPUs of one host copy "
             "from one another without the host; 0: none"},
    {.name = "GPUBRIDGE_COMBINE",
     .default_value = "auto",
     .kind = GBI_SETTING_CHOICE,
     .choices = "auto|gpu|host",
     .help = "where a job on GPUs scales, rounds, encodes, decodes and adds up "
             "what comes over the bridge: auto, gpu by kernels of its own, "
             "host"},
    {.name = "GPUBRIDGE_ALLOW_DEBUG_GLOO",
     .default_value = "0",
     .kind = GBI_SETTING_BOOL,
     .must_agree = true,
     .help = "accept the Gloo groups that torch makes at debug level DETAIL"},
    {.name = "GPUBRIDGE_BLOCKING_WAIT",
     .default_value = "0",
     .kind = GBI_SETTING_BOOL,
     .help = "torch backend: waits for calls on GPUs block the host until the "
             "GPU is through with them"},
    {.name = "GPUBRIDGE_WARN_AFTER",
     .default_value = "30",
     .kind = GBI_SETTING_INT,
     .min = 1,
     .max = 86400,
     .help = "seconds after which a waiting call asks who is late"},
    {.name = "GPUBRIDGE_LOG",
     .default_value = "warn",
     .kind = GBI_SETTING_TEXT,
     .help = "error, warn, info, debug, trace or data, or a list like "
             "tcp=trace,warn"},
};
const int gbi_core_settings_count = GBI_COUNT(gbi_core_settings);

int gbi_settings_tables(const gbi_setting *tables[GBI_SETTING_TABLES_MAX],
                        int counts[GBI_SETTING_TABLES_MAX]) {
  int count = 0, transports_count;
  tables[count] = gbi_core_settings;
  counts[count++] = gbi_core_settings_count;
  tables[count] = gbi_control_settings;
  counts[count++] = gbi_control_settings_count;
  tables[count] = gbi_net_settings;
  counts[count++] = gbi_net_settings_count;
  tables[count] = gbi_library_settings;
  counts[count++] = gbi_library_settings_count;
  tables[count] = gbi_compiler_settings;
  counts[count++] = gbi_compiler_settings_count;
  const gbi_transport_ops *const *all = gbi_transport_all(&transports_count);
  for (int i = 0; i < transports_count && count < GBI_SETTING_TABLES_MAX; i++) {
    if (!all[i]->settings_count) continue;
    tables[count] = all[i]->settings;
    counts[count++] = all[i]->settings_count;
  }
  return count;
}

const gbi_setting *gbi_core_setting_find(const char *name) {
  for (int i = 0; i < gbi_core_settings_count; i++)
    if (!strcmp(gbi_core_settings[i].name, name)) return &gbi_core_settings[i];
  return NULL;
}

int64_t gbi_core_setting(const char *name) {
  const gbi_setting *setting = gbi_core_setting_find(name);
  return setting ? gbi_setting_number(setting) : 0;
}

gbi_codec gbi_core_codec(void) {
  gbi_value value;
  (void)gbi_setting_read(gbi_core_setting_find("GPUBRIDGE_BRIDGE_COMPRESSION"),
                         &value, NULL);
  return gbi_codec_find(value.text);
}

int gbi_core_combine(void) {
  gbi_value value;
  (void)gbi_setting_read(gbi_core_setting_find("GPUBRIDGE_COMBINE"), &value,
                         NULL);
  if (!strcmp(value.text, "host")) return 0;
  return strcmp(value.text, "gpu") ? 1 : 2;
}
