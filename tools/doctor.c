/* gpubridge doctor: which GPU libraries a job would use, whether the GPUs work,
 * and what to do about what is missing. It opens what a job opens, in the same
 * way (src/device), so it links these parts of the library. */
#include "tool.h"

#include "device/cache.h"
#include "device/compiler.h"
#include "device/device.h"
#include "device/kernels/kernels.h"
#include "device/library.h"

#include <dlfcn.h>
#include <limits.h>
#include <getopt.h>
#include <inttypes.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { COLUMNS = 79, INDENT = 17, TRY_BYTES = 16 << 20, TRY_MS = 10000 };

/* A text that may be long, broken between words. */
static void print_line(const char *label, const char *text) {
  int column = printf("  %-*s", INDENT - 3, label);
  while (*text) {
    int word = (int)strcspn(text, " ");
    if (column >= INDENT && column + 1 + word > COLUMNS) {
      printf("\n");
      column = printf("%*s", INDENT - 1, "");
    }
    column += printf(" %.*s", word, text);
    text += word + (text[word] == ' ');
  }
  printf("\n");
}

/* ---- libraries ---- */

typedef enum number_style {
  NCCL_NUMBER, /* 22809: 2.28.9; before 2.9 2804: 2.8.4 */
  CUDA_NUMBER, /* 12080: 12.8 */
  HIP_NUMBER,  /* 60342131: 6.3.42131 */
  TWO_NUMBERS  /* by two pointers */
} number_style;

static void version_text(void *handle, const char *symbol, number_style style,
                         char *text, size_t bytes) {
  void *at = dlsym(handle, symbol);
  int v = 0, minor = 0;
  snprintf(text, bytes, "version unknown");
  if (!at) return;
  int failed = style == TWO_NUMBERS ? ((int (*)(int *, int *))at)(&v, &minor)
                                    : ((int (*)(int *))at)(&v);
  if (failed) return;
  if (style == NCCL_NUMBER) {
    int unit = v < 10000 ? 1000 : 10000;
    snprintf(text, bytes, "%d.%d.%d", v / unit, v % unit / 100, v % 100);
  } else if (style == CUDA_NUMBER) {
    snprintf(text, bytes, "CUDA %d.%d", v / 1000, v % 1000 / 10);
  } else if (style == HIP_NUMBER) {
    snprintf(text, bytes, "%d.%d.%d", v / 10000000, v / 100000 % 100,
             v % 100000);
  } else {
    snprintf(text, bytes, "%d.%d", v, minor);
  }
}

static void print_found(const char *label, void *handle, const char *path,
                        const char *symbol, number_style style) {
  char version[64], text[1200];
  version_text(handle, symbol, style, version, sizeof version);
  snprintf(text, sizeof text, "%s, %s", version, path);
  print_line(label, text);
}

static bool show_library(const char *label, const gbi_library_wanted *wanted,
                         const char *symbol, number_style style) {
  void *handle;
  const char *path;
  gb_error error = {0};
  if (gbi_library_open(wanted, &handle, &path, &error) != GB_OK) {
    print_line(label, error.text);
    return false;
  }
  print_found(label, handle, path, symbol, style);
  return true;
}

/* ---- devices ---- */

typedef struct trial {
  gbi_device *device;
  gbi_stream stream;
  void *in, *out, *flags;
  void *in_gpu, *out_gpu, *flags_gpu, *memory;
} trial;

static gb_status prepare(trial *t, gb_error *error) {
  gbi_device *d = t->device;
  GBI_TRY(d->ops->stream_new(d, &t->stream, error));
  GBI_TRY(d->ops->memory(d, TRY_BYTES, &t->memory, error));
  GBI_TRY(d->ops->pinned(d, TRY_BYTES, &t->in, &t->in_gpu, error));
  GBI_TRY(d->ops->pinned(d, TRY_BYTES, &t->out, &t->out_gpu, error));
  return d->ops->pinned(d, 4096, &t->flags, &t->flags_gpu, error);
}

/* The stream waits for the host, copies there and back, and tells the host. */
static gb_status enqueue(trial *t, gb_error *error) {
  gbi_device *d = t->device;
  char *flags = t->flags_gpu;
  GBI_TRY(d->ops->wait_flag(d, flags, 1, t->stream, error));
  GBI_TRY(d->ops->copy_in(d, t->memory, t->in, TRY_BYTES, t->stream, error));
  GBI_TRY(d->ops->copy_out(d, t->out, t->memory, TRY_BYTES, t->stream, error));
  return d->ops->set_flag(d, flags + 128, 1, t->stream, error);
}

static gb_status await(trial *t, gb_error *error) {
  _Atomic uint64_t *mine = t->flags;
  _Atomic uint64_t *its = (void *)((char *)t->flags + 128);
  uint64_t deadline = gbi_deadline_after_ms(TRY_MS);
  if (atomic_load_explicit(its, memory_order_acquire))
    return gbi_fail(error, GB_ERR_SYSTEM,
                    "a stream did not wait for the host's flag");
  atomic_store_explicit(mine, 1, memory_order_release);
  while (!atomic_load_explicit(its, memory_order_acquire)) {
    if (gbi_deadline_passed(deadline))
      return gbi_fail(error, GB_ERR_TIMEOUT,
                      "a stream did not pass the host's flag in %d s",
                      TRY_MS / 1000);
    sched_yield();
  }
  if (memcmp(t->in, t->out, TRY_BYTES))
    return gbi_fail(error, GB_ERR_SYSTEM,
                    "copied to the GPU and back, data is not what it was");
  return GB_OK;
}

/* Freeing waits for the stream, so it is let pass first; if it did not pass in
 * time, nothing is freed. */
static void clean_up(trial *t) {
  gbi_device *d = t->device;
  if (t->flags)
    atomic_store_explicit((_Atomic uint64_t *)t->flags, 1,
                          memory_order_release);
  d->ops->free_memory(d, t->memory);
  d->ops->free_pinned(d, t->in);
  d->ops->free_pinned(d, t->out);
  d->ops->free_pinned(d, t->flags);
  d->ops->stream_free(d, t->stream);
  d->ops->close(d);
}

static bool try_device(gbi_vendor vendor, int index, double *ms_p,
                       gb_error *error) {
  trial t = {0};
  if (gbi_device_open(vendor, index, &t.device, error) != GB_OK) return false;
  gb_status status = prepare(&t, error);
  uint64_t start = 0;
  if (status == GB_OK) {
    for (size_t i = 0; i < TRY_BYTES / 4; i++)
      ((uint32_t *)t.in)[i] = (uint32_t)(i * 2654435761u);
    start = gbi_now_ns();
    status = enqueue(&t, error);
  }
  if (status == GB_OK) status = await(&t, error);
  *ms_p = (double)(gbi_now_ns() - start) / 1e6;
  if (status != GB_ERR_TIMEOUT) clean_up(&t);
  return status == GB_OK;
}

/* What a job would do with this GPU's kernels. */
static void show_kernels(gbi_vendor vendor, int index) {
  char text[GB_ERROR_TEXT_MAX + 128];
  gb_error error = {0};
  gbi_device *device = NULL;
  gbi_kernel_set *set = NULL;
  uint64_t start = gbi_now_ns();
  if (gbi_compiler_wanted() == GBI_KERNELS_OFF) {
    print_line("", "no kernels of our own: GPUBRIDGE_KERNELS is off");
    return;
  }
  gb_status status = gbi_device_open(vendor, index, &device, &error);
  if (status == GB_OK) status = gbi_kernel_set_open(device, &set, &error);
  if (status == GB_OK)
    snprintf(text, sizeof text, "kernels of our own: ready after %.1f s",
             (double)(gbi_now_ns() - start) / 1e9);
  else
    snprintf(text, sizeof text,
             "no kernels of our own: some reductions are refused, arithmetic "
             "is done on the host: %s",
             error.text);
  print_line("", text);
  gbi_kernel_set_close(set);
  if (device) device->ops->close(device);
}

static bool show_device(gbi_vendor vendor, int index, bool trying) {
  char label[16], text[1024];
  gbi_device_facts f;
  gb_error error = {0};
  gbi_text out;
  gbi_text_init(&out, text, sizeof text);
  snprintf(label, sizeof label, "GPU %d", index);
  if (gbi_device_look(vendor, index, &f, &error) != GB_OK) {
    print_line(label, error.text);
    return false;
  }
  gbi_text_add(&out, "%s, %.1f GiB, %s, %s, %s", f.name,
               (double)f.memory_bytes / 1073741824.0, f.arch, f.pci, f.uuid);
  print_line(label, text);
  if (!f.flags) {
    print_line("",
               "a stream of it cannot wait for the host: no job can use it. "
               "A newer driver may help");
    return false;
  }
  if (!trying) return true;
  double ms = 0;
  bool works = try_device(vendor, index, &ms, &error);
  gbi_text_init(&out, text, sizeof text);
  gbi_text_add(&out, "works: 16 MiB there and back behind flags took %.1f ms",
               ms);
  print_line("", works ? text : error.text);
  if (works) show_kernels(vendor, index);
  return works;
}

/* ---- vendors ---- */

static const struct {
  const char *driver, *driver_symbol;
  number_style driver_style;
  const char *native, *compiler, *compiler_symbol;
  const gbi_library_wanted *native_wanted, *compiler_wanted;
  const char *none; /* what to do when no GPU is seen */
} vendors[GBI_VENDORS] = {
    {"CUDA driver", "cuDriverGetVersion", CUDA_NUMBER, "NCCL", "NVRTC",
     "nvrtcVersion", &gbi_library_nccl, &gbi_library_nvrtc,
     "none seen. If this machine has some: is CUDA_VISIBLE_DEVICES empty, and "
     "does nvidia-smi list them? In a container: was it started with --gpus?"},
    {"HIP runtime", "hipDriverGetVersion", HIP_NUMBER, "RCCL", "HIPRTC",
     "hiprtcVersion", &gbi_library_rccl, &gbi_library_hiprtc,
     "none seen. If this machine has some: is HIP_VISIBLE_DEVICES or "
     "ROCR_VISIBLE_DEVICES empty, and may this user open /dev/kfd (groups "
     "render and video)? In a container: was it started with --device "
     "/dev/kfd --device /dev/dri?"},
};

typedef struct verdict {
  int good;    /* devices that work */
  bool native; /* and the library for ranks of one vendor */
} verdict;

static verdict show_vendor(gbi_vendor vendor, bool trying) {
  int count = 0, good = 0;
  const char *path = NULL;
  gb_error error = {0};
  printf("%s\n", gbi_vendor_name(vendor));
  gb_status status = gbi_device_count(vendor, &count, &path, &error);
  void *handle = path ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
  if (handle)
    print_found(vendors[vendor].driver, handle, path,
                vendors[vendor].driver_symbol, vendors[vendor].driver_style);
  else
    print_line(vendors[vendor].driver, status == GB_OK ? path : error.text);
  bool native =
      show_library(vendors[vendor].native, vendors[vendor].native_wanted,
                   "ncclGetVersion", NCCL_NUMBER);
  show_library(vendors[vendor].compiler, vendors[vendor].compiler_wanted,
               vendors[vendor].compiler_symbol, TWO_NUMBERS);
  if (status == GB_OK && !count) print_line("GPUs", vendors[vendor].none);
  for (int i = 0; i < count; i++) good += show_device(vendor, i, trying);
  return (verdict){good, native};
}

/* ---- the rest ---- */

static void show_cache(void) {
  char folder[PATH_MAX], text[PATH_MAX + 128];
  if (!gbi_cache_folder(folder, sizeof folder))
    snprintf(text, sizeof text,
             "no folder is known: every start compiles anew. Set "
             "GPUBRIDGE_CACHE_DIR");
  else
    snprintf(text, sizeof text, "%s%s", folder,
             gbi_cache_writable(folder)
                 ? ""
                 : " cannot be written: every start compiles anew. Set "
                   "GPUBRIDGE_CACHE_DIR");
  print_line("kernels in", text);
}

static void show_limits(void) {
  struct rlimit limit;
  char text[128];
  printf("host\n");
  show_cache();
  if (getrlimit(RLIMIT_MEMLOCK, &limit)) return;
  if (limit.rlim_cur == RLIM_INFINITY)
    snprintf(text, sizeof text, "no limit");
  else
    snprintf(text, sizeof text,
             "%" PRIu64
             " KiB (ulimit -l). GPU drivers pin beside this limit, "
             "RDMA does not",
             (uint64_t)limit.rlim_cur / 1024);
  print_line("locked memory", text);
}

static void count_problem(void *arg, const gb_setting_info *info) {
  if (!info->problem) return;
  print_line("setting", info->problem);
  ++*(int *)arg;
}

static int show_settings(void) {
  int problems = 0;
  gb_settings_list(count_problem, &problems);
  if (!problems) print_line("settings", "well formed");
  return problems;
}

static bool usable(const verdict *v) {
  return v->good && v->native;
}

static void show_summary(const verdict verdicts[GBI_VENDORS], int problems) {
  char text[512];
  gbi_text out;
  int kinds = 0;
  gbi_text_init(&out, text, sizeof text);
  gbi_text_add(&out, problems ? "no job can run here before the settings above "
                                "are right"
                              : "a job can run on CPU here");
  for (int v = 0; v < GBI_VENDORS && !problems; v++)
    if (usable(&verdicts[v]))
      gbi_text_add(&out, "%s %d %s GPU%s", kinds++ ? " and" : ", and on",
                   verdicts[v].good, gbi_vendor_name((gbi_vendor)v),
                   verdicts[v].good > 1 ? "s" : "");
  if (!kinds && !problems) gbi_text_add(&out, ", on no GPU");
  printf("%s\n", text);
  for (int v = 0; v < GBI_VENDORS; v++)
    if (verdicts[v].good && !verdicts[v].native)
      printf(
          "%s GPUs work, but a job needs %s. torch brings it: "
          "--torch looks there\n",
          gbi_vendor_name((gbi_vendor)v), vendors[v].native);
}

/* torch's libraries are found by where one that is loaded lies. */
static bool load_torch(const char *folder) {
  char path[4096];
  snprintf(path, sizeof path, "%s/lib/libc10.so", folder);
  if (dlopen(path, RTLD_LAZY | RTLD_LOCAL)) return true;
  fprintf(stderr, "gpubridge: no torch in %s: %s\n", folder, dlerror());
  return false;
}

static void usage(FILE *out) {
  fprintf(out,
          "usage: gpubridge doctor [OPTIONS]\n\n"
          "Shows which GPU libraries a job would use and why others are not "
          "found, tries\neach GPU, and says on what a job can run here. Exit "
          "code 0 when it can run on\nCPU or GPU.\n\n"
          "  --torch DIR   look beside this torch too, as a job in its Python "
          "does: the\n                folder that python3 -c 'import torch; "
          "print(torch.__path__[0])'\n                prints\n"
          "  --need WHAT   exit code 1 unless a job can run on: gpu, nvidia "
          "or amd\n"
          "  --look        do not try the GPUs, which takes some of their "
          "memory\n");
}

static bool meets(const char *need, const verdict verdicts[GBI_VENDORS]) {
  if (!need) return true;
  const verdict *nvidia = &verdicts[GBI_NVIDIA], *amd = &verdicts[GBI_AMD];
  if (!strcmp(need, "gpu")) return usable(nvidia) || usable(amd);
  return usable(!strcmp(need, "nvidia") ? nvidia : amd);
}

static bool known_need(const char *need) {
  return !strcmp(need, "gpu") || !strcmp(need, "nvidia") ||
         !strcmp(need, "amd");
}

int tool_doctor(int argc, char **argv) {
  static const struct option options[] = {
      {"torch", required_argument, NULL, 't'},
      {"need", required_argument, NULL, 'n'},
      {"look", no_argument, NULL, 'l'},
      {"help", no_argument, NULL, 'h'},
      {0}};
  const char *torch = NULL, *need = NULL;
  bool trying = true;
  int c;
  while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
    switch (c) {
      case 't': torch = optarg; break;
      case 'n': need = optarg; break;
      case 'l': trying = false; break;
      case 'h': usage(stdout); return 0;
      default: usage(stderr); return EXIT_USAGE;
    }
  }
  if (optind < argc || (need && !known_need(need))) {
    usage(stderr);
    return EXIT_USAGE;
  }
  if (torch && !load_torch(torch)) return 1;
  verdict verdicts[GBI_VENDORS];
  printf("gpubridge %s\n", gb_version());
  for (int v = 0; v < GBI_VENDORS; v++)
    verdicts[v] = show_vendor((gbi_vendor)v, trying);
  show_limits();
  int problems = show_settings();
  show_summary(verdicts, problems);
  return problems || !meets(need, verdicts);
}
