/* Both vendors' devices over the fakes of tests/fakes, each case once with
 * either: every operation of the table, what it leaves alone (the current
 * device, outputs of failed calls, a host that must not wait), and what is said
 * when there is no driver, no device, no memory or no such function. Without
 * the fakes: what a machine without a driver says.
 *
 * The rules of the fakes hold: touching device memory on the host, or reading
 * what is not done yet, ends the process. */
#include "device/device.h"

#include "device/vendor.h"
#include "fakes/fakes.h"
#include "harness/gb_test.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const files[GBI_VENDORS] = {FAKES "/cuda/libcuda.so.1",
                                               FAKES "/hip/libamdhip64.so.6"};
static const char *const settings[GBI_VENDORS] = {"GPUBRIDGE_CUDA_LIB",
                                                  "GPUBRIDGE_HIP_LIB"};

static void use_fake(gbi_vendor vendor) {
  if (access(files[vendor], R_OK)) gb_test_skip("no %s", files[vendor]);
  setenv(settings[vendor], files[vendor], 1);
}

/* A case of each vendor's suite, with the fake in place. */
#define BOTH(name_, ...)                        \
  static void check_##name_(gbi_vendor vendor); \
  GB_TEST(cuda, name_, ##__VA_ARGS__) {         \
    use_fake(GBI_NVIDIA);                       \
    check_##name_(GBI_NVIDIA);                  \
  }                                             \
  GB_TEST(hip, name_, ##__VA_ARGS__) {          \
    use_fake(GBI_AMD);                          \
    check_##name_(GBI_AMD);                     \
  }                                             \
  static void check_##name_(gbi_vendor vendor)

static gb_error error;

#define OK(call)                                                     \
  do {                                                               \
    if ((call) != GB_OK)                                             \
      gb_test_fail(__FILE__, __LINE__, "%s: %s", #call, error.text); \
  } while (0)

static gbi_device *open_device(gbi_vendor vendor, int index) {
  gbi_device *device = NULL;
  OK(gbi_device_open(vendor, index, &device, &error));
  GB_CHECK(device && device->index == index);
  GB_CHECK_INT(device->ops->vendor, vendor);
  return device;
}

/* A function of the fake's own. */
static void *fake(gbi_vendor vendor, const char *name) {
  void *handle = dlopen(files[vendor], RTLD_NOW | RTLD_NOLOAD);
  void *at = handle ? dlsym(handle, name) : NULL;
  if (!at) gb_test_fail(__FILE__, __LINE__, "the fake has no %s", name);
  return at;
}

static fake_gpu_counts counts(gbi_vendor vendor) {
  void (*count)(fake_gpu_counts *) =
      (void (*)(fake_gpu_counts *))fake(vendor, "fake_gpu_count_here");
  fake_gpu_counts now;
  count(&now);
  return now;
}

/* Flags are words of their own cache lines. */
static _Atomic uint64_t *flag_at(void *host, int i) {
  return (_Atomic uint64_t *)((char *)host + 128 * i);
}

static void raise_flag(void *host, int i, uint64_t value) {
  atomic_store_explicit(flag_at(host, i), value, memory_order_release);
}

static void await_flag(void *host, int i, uint64_t value) {
  uint64_t deadline = gbi_deadline_after_ms(10000);
  while (atomic_load_explicit(flag_at(host, i), memory_order_acquire) < value) {
    GB_CHECK(!gbi_deadline_passed(deadline));
    sched_yield();
  }
}

static void await_query(gbi_device *d, gbi_stream stream) {
  uint64_t deadline = gbi_deadline_after_ms(10000);
  gb_status status;
  while ((status = d->ops->stream_query(d, stream, &error)) == GB_ERR_BUSY) {
    GB_CHECK(!gbi_deadline_passed(deadline));
    sched_yield();
  }
  OK(status);
}

/* ---- opening ---- */

BOTH(facts) {
  setenv("FAKE_GPU_DEVICES", "3", 1);
  int count = 0;
  const char *way = NULL;
  OK(gbi_device_count(vendor, &count, &way, &error));
  GB_CHECK_INT(count, 3);
  GB_CHECK_TEXT(way, files[vendor]);
  gbi_device_facts facts[3];
  for (int i = 0; i < 3; i++) {
    memset(&facts[i], 0x55, sizeof facts[i]);
    OK(gbi_device_look(vendor, i, &facts[i], &error));
    GB_CHECK(facts[i].name[0]);
    GB_CHECK(!strncmp(facts[i].uuid, "GPU-", 4));
    int domain, bus, slot, function, end = 0;
    int fields = sscanf(facts[i].pci, "%4x:%2x:%2x.%1x%n", &domain, &bus, &slot,
                        &function, &end);
    GB_CHECK_INT(fields, 4);
    GB_CHECK_INT(end, strlen(facts[i].pci));
    const char *arch = vendor == GBI_NVIDIA ? "sm_" : "gfx";
    GB_CHECK(!strncmp(facts[i].arch, arch, 3));
    GB_CHECK(facts[i].memory_bytes > 0);
    GB_CHECK(facts[i].driver >= (vendor == GBI_NVIDIA ? 11000 : 60000000));
    GB_CHECK(facts[i].flags);
  }
  GB_CHECK(strcmp(facts[0].uuid, facts[1].uuid));
  GB_CHECK(strcmp(facts[0].pci, facts[2].pci));
  gbi_device *d = open_device(vendor, 1);
  GB_CHECK(!memcmp(&d->facts, &facts[1], sizeof d->facts));
  d->ops->close(d);
}

BOTH(wrong_index) {
  gbi_device *device = NULL;
  gbi_device_facts facts;
  setenv("FAKE_GPU_DEVICES", "2", 1);
  setenv("CUDA_VISIBLE_DEVICES", "0,1", 1);
  setenv("HIP_VISIBLE_DEVICES", "0,1", 1);
  for (int index = -1; index <= 2; index += 3) {
    GB_CHECK_INT(gbi_device_open(vendor, index, &device, &error),
                 GB_ERR_ARGUMENT);
    GB_CHECK(!device);
    GB_CHECK_TEXT(error.text, "sees 2");
    GB_CHECK_TEXT(error.text, index < 0 ? "GPU -1" : "GPU 2");
    GB_CHECK_TEXT(error.text, "VISIBLE_DEVICES is \"0,1\"");
    GB_CHECK_INT(gbi_device_look(vendor, index, &facts, &error),
                 GB_ERR_ARGUMENT);
  }
  if (vendor == GBI_AMD)
    GB_CHECK_TEXT(error.text, "ROCR_VISIBLE_DEVICES is not set");
}

BOTH(no_devices) {
  int count = 7;
  gbi_device *device = NULL;
  setenv("FAKE_GPU_DEVICES", "0", 1);
  OK(gbi_device_count(vendor, &count, NULL, &error));
  GB_CHECK_INT(count, 0);
  GB_CHECK_INT(gbi_device_open(vendor, 0, &device, &error), GB_ERR_ARGUMENT);
  GB_CHECK_TEXT(error.text, "sees none");
}

GB_TEST(device, unknown_vendor) {
  int count;
  GB_CHECK_INT(gbi_device_count((gbi_vendor)7, &count, NULL, &error),
               GB_ERR_ARGUMENT);
  GB_CHECK_TEXT(gbi_vendor_name(GBI_NVIDIA), "nvidia");
  GB_CHECK_TEXT(gbi_vendor_name(GBI_AMD), "amd");
  GB_CHECK(gbi_vendor_name((gbi_vendor)7));
}

/* This machine has a driver or not: without one the text says what was looked
 * for and how to help oneself. */
static void check_no_driver(gbi_vendor vendor, const char *name) {
  int count = 7;
  gb_status status = gbi_device_count(vendor, &count, NULL, &error);
  if (status == GB_OK) gb_test_skip("this machine has the vendor's library");
  GB_CHECK_INT(status, GB_ERR_UNSUPPORTED);
  GB_CHECK_INT(count, 7);
  GB_CHECK_TEXT(error.text, name);
  GB_CHECK_TEXT(error.text, settings[vendor]);
}
GB_TEST(cuda, no_driver) {
  check_no_driver(GBI_NVIDIA, "libcuda.so.1");
}
GB_TEST(hip, no_driver) {
  check_no_driver(GBI_AMD, "libamdhip64.so");
}

static void check_other_library(gbi_vendor vendor, const char *symbol,
                                const char *since) {
  gbi_device *device = NULL;
  setenv(settings[vendor], FINDING "/loader/libgbfind.so.2", 1);
  GB_CHECK_INT(gbi_device_open(vendor, 0, &device, &error), GB_ERR_UNSUPPORTED);
  GB_CHECK_TEXT(error.text, "libgbfind.so.2");
  GB_CHECK_TEXT(error.text, symbol);
  GB_CHECK_TEXT(error.text, since);
  setenv(settings[vendor], "/nowhere/libvendor.so", 1);
  GB_CHECK_INT(gbi_device_open(vendor, 0, &device, &error), GB_ERR_UNSUPPORTED);
  GB_CHECK_TEXT(error.text, "/nowhere/libvendor.so");
  GB_CHECK(!device);
}
GB_TEST(cuda, not_a_driver) {
  check_other_library(GBI_NVIDIA, "cuInit", "450");
}
GB_TEST(hip, not_a_runtime) {
  check_other_library(GBI_AMD, "hipDriverGetVersion", "ROCm 6.0");
}

/* What does not start says why; what starts later is taken then. */
GB_TEST(cuda, starts_at_the_second_try) {
  int count = 0;
  use_fake(GBI_NVIDIA);
  setenv("FAKE_GPU_FAIL", "cuInit:1:803", 1);
  GB_CHECK_INT(gbi_device_count(GBI_NVIDIA, &count, NULL, &error),
               GB_ERR_UNSUPPORTED);
  GB_CHECK_INT(error.status, GB_ERR_UNSUPPORTED);
  GB_CHECK_TEXT(error.text, "803");
  GB_CHECK_TEXT(error.text, "reboot");
  OK(gbi_device_count(GBI_NVIDIA, &count, NULL, &error));
  GB_CHECK_INT(count, 1);
}

GB_TEST(cuda, no_device_is_no_error) {
  int count = 7;
  use_fake(GBI_NVIDIA);
  setenv("FAKE_GPU_FAIL", "cuInit:1:100", 1);
  OK(gbi_device_count(GBI_NVIDIA, &count, NULL, &error));
  GB_CHECK_INT(count, 0);
}

/* Stand-ins of tests/device with all functions but one, and of an old age. */
GB_TEST(cuda, lacks_a_function) {
  int count;
  setenv("GPUBRIDGE_CUDA_LIB", FINDING "/old/libcuda.so.2", 1);
  GB_CHECK_INT(gbi_device_count(GBI_NVIDIA, &count, NULL, &error),
               GB_ERR_UNSUPPORTED);
  GB_CHECK_TEXT(error.text, "/old/libcuda.so.2 does not have cuEventQuery");
}
GB_TEST(hip, is_too_old) {
  int count;
  setenv("GPUBRIDGE_HIP_LIB", FINDING "/old/libamdhip64.so.2", 1);
  GB_CHECK_INT(gbi_device_count(GBI_AMD, &count, NULL, &error),
               GB_ERR_UNSUPPORTED);
  GB_CHECK_TEXT(error.text, "/old/libamdhip64.so.2 is of version 5.7");
  GB_CHECK_TEXT(error.text, "ROCm 6.0");
}

/* CUDA does not survive a fork; the child is told. */
GB_TEST(cuda, in_a_forked_child) {
  int count = 0, status = 0;
  use_fake(GBI_NVIDIA);
  OK(gbi_device_count(GBI_NVIDIA, &count, NULL, &error));
  pid_t child = fork();
  GB_CHECK(child >= 0);
  if (!child) {
    gb_status got = gbi_device_count(GBI_NVIDIA, &count, NULL, &error);
    _exit(got == GB_ERR_STATE && strstr(error.text, "forked") ? 0 : 1);
  }
  GB_CHECK_INT(waitpid(child, &status, 0), child);
  GB_CHECK_INT(status, 0);
}

/* One HIP runtime a process: RCCL's, whatever else could be found. */
GB_TEST(hip, comes_with_rccl) {
  int count = 0;
  const char *way = NULL;
  if (access(FAKES "/hip/librccl.so.1", R_OK)) gb_test_skip("no fake RCCL");
  setenv("GPUBRIDGE_RCCL_LIB", FAKES "/hip/librccl.so.1", 1);
  OK(gbi_device_count(GBI_AMD, &count, &way, &error));
  GB_CHECK_INT(count, 1);
  GB_CHECK_TEXT(way, "libamdhip64");
  GB_CHECK(dlopen(FAKES "/hip/librccl.so.1", RTLD_NOW | RTLD_NOLOAD));
}

/* ---- streams, events, flags ---- */

BOTH(a_stream_waits_for_a_flag_and_raises_one) {
  gbi_device *d = open_device(vendor, 0);
  gbi_stream stream = NULL;
  void *host, *gpu;
  OK(d->ops->stream_new(d, &stream, &error));
  OK(d->ops->pinned(d, 4096, &host, &gpu, &error));
  char *word = gpu;
  OK(d->ops->wait_flag(d, word, 5, stream, &error));
  OK(d->ops->set_flag(d, word + 128, 9, stream, &error));
  raise_flag(host, 0, 4); /* not enough */
  GB_CHECK_INT(d->ops->stream_query(d, stream, &error), GB_ERR_BUSY);
  GB_CHECK_INT(atomic_load(flag_at(host, 1)), 0);
  raise_flag(host, 0, 7); /* more than was asked for */
  await_flag(host, 1, 9);
  GB_CHECK_INT(atomic_load(flag_at(host, 1)), 9);
  /* Passed already: held by nobody. */
  OK(d->ops->wait_flag(d, word, 6, stream, &error));
  OK(d->ops->stream_sync(d, stream, &error));
  OK(d->ops->stream_query(d, stream, &error));
  d->ops->stream_free(d, stream);
  d->ops->free_pinned(d, host);
  d->ops->close(d);
}

BOTH(big_flag_values) {
  gbi_device *d = open_device(vendor, 0);
  gbi_stream stream = NULL;
  void *host, *gpu;
  uint64_t big = (UINT64_C(1) << 61) + 12345;
  OK(d->ops->stream_new(d, &stream, &error));
  OK(d->ops->pinned(d, 4096, &host, &gpu, &error));
  OK(d->ops->wait_flag(d, gpu, big, stream, &error));
  OK(d->ops->set_flag(d, (char *)gpu + 128, big + 1, stream, &error));
  raise_flag(host, 0, big - 1);
  GB_CHECK_INT(d->ops->stream_query(d, stream, &error), GB_ERR_BUSY);
  raise_flag(host, 0, big);
  await_flag(host, 1, big + 1);
  d->ops->stream_free(d, stream);
  d->ops->free_pinned(d, host);
  d->ops->close(d);
}

BOTH(events_order_streams) {
  gbi_device *d = open_device(vendor, 0);
  gbi_stream first = NULL, second = NULL;
  gbi_event event = NULL;
  void *host, *gpu;
  OK(d->ops->stream_new(d, &first, &error));
  OK(d->ops->stream_new(d, &second, &error));
  OK(d->ops->event_new(d, &event, &error));
  OK(d->ops->pinned(d, 4096, &host, &gpu, &error));
  OK(d->ops->wait_flag(d, gpu, 1, first, &error));
  OK(d->ops->event_record(d, event, first, &error));
  OK(d->ops->stream_wait(d, second, event, &error));
  OK(d->ops->set_flag(d, (char *)gpu + 128, 1, second, &error));
  GB_CHECK_INT(d->ops->event_query(d, event, &error), GB_ERR_BUSY);
  GB_CHECK_INT(d->ops->stream_query(d, second, &error), GB_ERR_BUSY);
  GB_CHECK_INT(atomic_load(flag_at(host, 1)), 0);
  raise_flag(host, 0, 1);
  await_flag(host, 1, 1);
  OK(d->ops->event_query(d, event, &error));
  await_query(d, second);
  d->ops->event_free(d, event);
  d->ops->stream_free(d, first);
  d->ops->stream_free(d, second);
  d->ops->free_pinned(d, host);
  d->ops->close(d);
}

static void check_apart(gbi_vendor vendor) {
  gbi_device *d = open_device(vendor, 0);
  gbi_stream mine = NULL;
  void *host, *gpu;
  OK(d->ops->stream_new(d, &mine, &error));
  OK(d->ops->pinned(d, 4096, &host, &gpu, &error));
  OK(d->ops->wait_flag(d, gpu, 1, NULL, &error)); /* holds the default one */
  OK(d->ops->set_flag(d, (char *)gpu + 128, 1, mine, &error));
  await_flag(host, 1, 1);
  await_query(d, mine);
  raise_flag(host, 0, 1);
  OK(d->ops->stream_sync(d, NULL, &error));
  d->ops->stream_free(d, mine);
  d->ops->free_pinned(d, host);
  d->ops->close(d);
}

/* A stream of ours does not wait for what a user does on the default stream. */
BOTH(apart_from_the_default_stream) {
  setenv("FAKE_GPU_QUEUES", "4", 1);
  check_apart(vendor);
}
/* On HIP not even where all streams of users share one queue. */
GB_TEST(hip, queues_apart_from_users) {
  use_fake(GBI_AMD);
  setenv("FAKE_GPU_QUEUES", "1", 1);
  check_apart(GBI_AMD);
}

/* ---- memory ---- */

static void fill(void *memory, size_t bytes, unsigned seed) {
  for (size_t i = 0; i < bytes; i++)
    ((uint8_t *)memory)[i] = (uint8_t)(i * 7 + seed);
}

static bool filled(const void *memory, size_t bytes, unsigned seed) {
  for (size_t i = 0; i < bytes; i++)
    if (((const uint8_t *)memory)[i] != (uint8_t)(i * 7 + seed)) return false;
  return true;
}

BOTH(copies) {
  enum { BYTES = 300001 };
  gbi_device *d = open_device(vendor, 0);
  gbi_stream stream = NULL;
  void *in, *out, *flags, *gpu, *gpu_flags, *one = NULL, *two = NULL;
  OK(d->ops->stream_new(d, &stream, &error));
  OK(d->ops->pinned(d, BYTES, &in, &gpu, &error));
  OK(d->ops->pinned(d, BYTES, &out, &gpu, &error));
  OK(d->ops->pinned(d, 4096, &flags, &gpu_flags, &error));
  OK(d->ops->memory(d, BYTES, &one, &error));
  OK(d->ops->memory(d, BYTES, &two, &error));
  fill(in, BYTES, 3);
  uint64_t blocked = counts(vendor).blocking;
  OK(d->ops->copy_in(d, one, in, BYTES, stream, &error));
  OK(d->ops->copy(d, two, one, BYTES, stream, &error));
  OK(d->ops->copy_out(d, out, two, BYTES, stream, &error));
  OK(d->ops->set_flag(d, gpu_flags, 1, stream, &error));
  GB_CHECK_INT(counts(vendor).blocking, blocked);
  await_flag(flags, 0, 1); /* all before the flag is there for the host */
  GB_CHECK(filled(out, BYTES, 3));
  uint64_t operations = counts(vendor).operations;
  OK(d->ops->copy_in(d, one, in, 0, stream, &error));
  OK(d->ops->copy(d, two, one, 0, stream, &error));
  OK(d->ops->copy_out(d, out, two, 0, stream, &error));
  GB_CHECK_INT(counts(vendor).operations, operations);
  OK(d->ops->stream_sync(d, stream, &error));
  d->ops->free_memory(d, one);
  d->ops->free_memory(d, two);
  d->ops->free_pinned(d, in);
  d->ops->free_pinned(d, out);
  d->ops->free_pinned(d, flags);
  d->ops->stream_free(d, stream);
  d->ops->close(d);
}

BOTH(pinned_memory) {
  gbi_device *d = open_device(vendor, 0);
  static const size_t sizes[] = {1, 128, 4095, 4096, 4097, 1 << 20};
  void *hosts[GBI_COUNT(sizes)], *gpu;
  for (size_t i = 0; i < GBI_COUNT(sizes); i++) {
    OK(d->ops->pinned(d, sizes[i], &hosts[i], &gpu, &error));
    GB_CHECK_INT((uintptr_t)hosts[i] % 4096, 0);
    for (size_t k = 0; k < sizes[i]; k++)
      if (((char *)hosts[i])[k]) gb_test_fail(__FILE__, __LINE__, "not zeroed");
    fill(hosts[i], sizes[i], (unsigned)i);
  }
  for (size_t i = 0; i < GBI_COUNT(sizes); i++) {
    GB_CHECK(filled(hosts[i], sizes[i], (unsigned)i));
    d->ops->free_pinned(d, hosts[i]);
  }
  /* Again: used memory is zeroed. */
  OK(d->ops->pinned(d, 4096, &hosts[0], &gpu, &error));
  for (int k = 0; k < 4096; k++) GB_CHECK(!((char *)hosts[0])[k]);
  d->ops->free_pinned(d, hosts[0]);
  d->ops->close(d);
}

BOTH(out_of_pinned_memory) {
  setenv("FAKE_GPU_PINNED_MOST", "1048576", 1);
  gbi_device *d = open_device(vendor, 0);
  void *host = &error, *gpu = &error, *kept;
  GB_CHECK_INT(d->ops->pinned(d, 8 << 20, &host, &gpu, &error), GB_ERR_MEMORY);
  GB_CHECK(host == &error && gpu == &error);
  GB_CHECK_TEXT(error.text, "pinned memory of 8388608 bytes");
  GB_CHECK_TEXT(error.text, gbi_vendor_name(vendor));
  GB_CHECK_TEXT(error.text, "container");
  GB_CHECK_INT(d->ops->pinned(d, SIZE_MAX - 5, &host, &gpu, &error),
               GB_ERR_MEMORY);
  for (int i = 0; i < 8; i++) { /* it comes back when it is freed */
    OK(d->ops->pinned(d, 700000, &kept, &gpu, &error));
    GB_CHECK_INT(d->ops->pinned(d, 700000, &host, &gpu, &error), GB_ERR_MEMORY);
    d->ops->free_pinned(d, kept);
  }
  void *own = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  GB_CHECK(own != MAP_FAILED);
  GB_CHECK_INT(d->ops->adopt(d, own, 2 << 20, &gpu, &error), GB_ERR_MEMORY);
  GB_CHECK_TEXT(error.text, "pin memory of 2097152 bytes");
  munmap(own, 2 << 20);
  d->ops->close(d);
}

BOTH(out_of_device_memory) {
  gbi_device *d = open_device(vendor, 0);
  void *memory = &error;
  GB_CHECK_INT(d->ops->memory(d, (size_t)1 << 50, &memory, &error),
               GB_ERR_MEMORY);
  GB_CHECK(memory == &error);
  GB_CHECK_TEXT(error.text, "device memory");
  GB_CHECK_TEXT(error.text, "-smi");
  OK(d->ops->memory(d, 0, &memory, &error)); /* nothing is something to free */
  d->ops->free_memory(d, memory);
  d->ops->close(d);
}

BOTH(adopted_memory) {
  enum { BYTES = 1 << 16 };
  gbi_device *d = open_device(vendor, 0);
  gbi_stream stream = NULL;
  void *gpu = NULL, *memory = NULL;
  char *own = mmap(NULL, BYTES, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  GB_CHECK(own != MAP_FAILED);
  OK(d->ops->stream_new(d, &stream, &error));
  OK(d->ops->memory(d, BYTES, &memory, &error));
  for (int again = 0; again < 2; again++) {
    OK(d->ops->adopt(d, own, BYTES, &gpu, &error));
    fill(own + 4096, 4096, 11);
    uint64_t blocked = counts(vendor).blocking;
    OK(d->ops->copy_in(d, memory, own + 4096, 4096, stream, &error));
    OK(d->ops->copy_out(d, own + 8192, memory, 4096, stream, &error));
    OK(d->ops->set_flag(d, (char *)gpu + 128, 3 + (uint64_t)again, stream,
                        &error));
    GB_CHECK_INT(counts(vendor).blocking, blocked);
    await_flag(own, 1, 3 + (uint64_t)again);
    GB_CHECK(filled(own + 8192, 4096, 11));
    OK(d->ops->stream_sync(d, stream, &error));
    d->ops->unadopt(d, own);
  }
  d->ops->free_memory(d, memory);
  d->ops->stream_free(d, stream);
  d->ops->close(d);
}

/* One buffer for two vendors' runtimes in one process. */
GB_TEST(device, adopted_by_both_vendors) {
  enum { BYTES = 1 << 14 };
  use_fake(GBI_NVIDIA);
  use_fake(GBI_AMD);
  gbi_device *devices[GBI_VENDORS];
  void *gpu[GBI_VENDORS];
  gbi_stream streams[GBI_VENDORS];
  char *own = mmap(NULL, BYTES, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  GB_CHECK(own != MAP_FAILED);
  for (int v = 0; v < GBI_VENDORS; v++) {
    gbi_device *d = devices[v] = open_device((gbi_vendor)v, 0);
    OK(d->ops->adopt(d, own, BYTES, &gpu[v], &error));
    OK(d->ops->stream_new(d, &streams[v], &error));
  }
  /* The host passes on what one raises to what the other waits for. */
  gbi_device *a = devices[0], *b = devices[1];
  OK(b->ops->wait_flag(b, (char *)gpu[1] + 128, 2, streams[1], &error));
  OK(b->ops->set_flag(b, (char *)gpu[1] + 256, 3, streams[1], &error));
  OK(a->ops->set_flag(a, gpu[0], 1, streams[0], &error));
  await_flag(own, 0, 1);
  raise_flag(own, 1, 2);
  await_flag(own, 2, 3);
  for (int v = 0; v < GBI_VENDORS; v++) {
    gbi_device *d = devices[v];
    OK(d->ops->stream_sync(d, streams[v], &error));
    d->ops->unadopt(d, own);
    d->ops->stream_free(d, streams[v]);
    d->ops->close(d);
  }
}

static void check_kind(gbi_device *d, const void *memory, gbi_memory_kind kind,
                       int index) {
  gbi_memory_facts facts = {.device = 77};
  OK(d->ops->memory_facts(d, memory, &facts, &error));
  GB_CHECK_INT(facts.kind, kind);
  GB_CHECK_INT(facts.device, index);
}

BOTH(tells_kinds_of_memory) {
  setenv("FAKE_GPU_DEVICES", "2", 1);
  gbi_device *d = open_device(vendor, 0), *other = open_device(vendor, 1);
  void *host, *gpu, *first, *second;
  int on_stack = 0;
  char *own = mmap(NULL, 8192, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  GB_CHECK(own != MAP_FAILED);
  OK(d->ops->pinned(d, 8192, &host, &gpu, &error));
  OK(d->ops->memory(d, 8192, &first, &error));
  OK(other->ops->memory(other, 8192, &second, &error));
  check_kind(d, &on_stack, GBI_MEMORY_PAGEABLE, -1);
  check_kind(d, own, GBI_MEMORY_PAGEABLE, -1);
  check_kind(d, host, GBI_MEMORY_PINNED, -1);
  check_kind(d, (char *)host + 5000, GBI_MEMORY_PINNED, -1);
  check_kind(d, (char *)first + 100, GBI_MEMORY_DEVICE, 0);
  check_kind(d, second, GBI_MEMORY_DEVICE, 1);
  OK(d->ops->adopt(d, own, 8192, &gpu, &error));
  check_kind(d, own + 1, GBI_MEMORY_PINNED, -1);
  d->ops->unadopt(d, own);
  check_kind(d, own, GBI_MEMORY_PAGEABLE, -1);
  d->ops->free_memory(d, first);
  other->ops->free_memory(other, second);
  d->ops->free_pinned(d, host);
  d->ops->close(d);
  other->ops->close(other);
}

/* ---- what is left alone ---- */

static uintptr_t current(gbi_vendor vendor) {
  void *context = NULL;
  int index = -1;
  if (vendor == GBI_NVIDIA) {
    unsigned (*get)(void **) =
        (unsigned (*)(void **))fake(vendor, "cuCtxGetCurrent");
    GB_CHECK_INT(get(&context), 0);
    return (uintptr_t)context;
  }
  unsigned (*get)(int *) = (unsigned (*)(int *))fake(vendor, "hipGetDevice");
  GB_CHECK_INT(get(&index), 0);
  return (uintptr_t)index;
}

/* As an application does it. */
static void make_current(gbi_vendor vendor, int index) {
  if (vendor == GBI_AMD) {
    unsigned (*set)(int) = (unsigned (*)(int))fake(vendor, "hipSetDevice");
    GB_CHECK_INT(set(index), 0);
    return;
  }
  unsigned (*retain)(void **, int) =
      (unsigned (*)(void **, int))fake(vendor, "cuDevicePrimaryCtxRetain");
  unsigned (*set)(void *) =
      (unsigned (*)(void *))fake(vendor, "cuCtxSetCurrent");
  void *context = NULL;
  GB_CHECK_INT(retain(&context, index), 0);
  GB_CHECK_INT(set(context), 0);
}

/* Every operation once. */
static void use_all(gbi_device *d) {
  gbi_stream stream = NULL;
  gbi_event event = NULL;
  void *host = NULL, *gpu = NULL, *memory = NULL;
  bool captures = true;
  gbi_memory_facts facts;
  char *own = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  OK(d->ops->stream_new(d, &stream, &error));
  OK(d->ops->event_new(d, &event, &error));
  OK(d->ops->memory(d, 256, &memory, &error));
  OK(d->ops->pinned(d, 4096, &host, &gpu, &error));
  OK(d->ops->stream_captures(d, stream, &captures, &error));
  GB_CHECK(!captures);
  OK(d->ops->copy_in(d, memory, host, 256, stream, &error));
  OK(d->ops->copy(d, memory, (char *)memory + 128, 128, stream, &error));
  OK(d->ops->copy_out(d, host, memory, 256, stream, &error));
  OK(d->ops->wait_flag(d, gpu, 0, stream, &error));
  OK(d->ops->set_flag(d, (char *)gpu + 1024, 1, stream, &error));
  OK(d->ops->event_record(d, event, stream, &error));
  OK(d->ops->stream_wait(d, stream, event, &error));
  OK(d->ops->stream_sync(d, stream, &error));
  OK(d->ops->event_query(d, event, &error));
  OK(d->ops->stream_query(d, stream, &error));
  OK(d->ops->memory_facts(d, memory, &facts, &error));
  GB_CHECK_INT(facts.device, d->index);
  OK(d->ops->adopt(d, own, 4096, &gpu, &error));
  d->ops->unadopt(d, own);
  d->ops->own_thread(d);
  d->ops->free_pinned(d, host);
  d->ops->free_memory(d, memory);
  d->ops->event_free(d, event);
  d->ops->stream_free(d, stream);
  munmap(own, 4096);
}

BOTH(current_device_is_as_it_was) {
  setenv("FAKE_GPU_DEVICES", "3", 1);
  int count;
  OK(gbi_device_count(vendor, &count, NULL, &error));
  uintptr_t none = current(vendor);
  gbi_device *first = open_device(vendor, 0), *second = open_device(vendor, 2);
  GB_CHECK(current(vendor) == none);
  use_all(first);
  use_all(second);
  GB_CHECK(current(vendor) == none);
  make_current(vendor, 1);
  uintptr_t theirs = current(vendor);
  GB_CHECK(theirs != none);
  use_all(first);
  use_all(second);
  GB_CHECK(current(vendor) == theirs);
  first->ops->close(first);
  second->ops->close(second);
  GB_CHECK(current(vendor) == theirs);
}

typedef struct user {
  gbi_device *devices[2];
  int number;
  bool good;
} user;

static void *use_from_thread(void *arg) {
  user *me = arg;
  for (int i = 0; i < 20; i++) {
    gbi_device *d = me->devices[(i + me->number) % 2];
    void *host, *gpu, *memory;
    gbi_stream stream;
    if (d->ops->stream_new(d, &stream, NULL) ||
        d->ops->memory(d, 8192, &memory, NULL) ||
        d->ops->pinned(d, 16384, &host, &gpu, NULL))
      return NULL;
    char *data = (char *)host + 4096;
    fill(data, 4096, (unsigned)(me->number * 100 + i));
    if (d->ops->copy_in(d, memory, data, 4096, stream, NULL) ||
        d->ops->copy_out(d, data + 4096, memory, 4096, stream, NULL) ||
        d->ops->wait_flag(d, (char *)gpu + 128, 1, stream, NULL) ||
        d->ops->set_flag(d, gpu, 1, stream, NULL))
      return NULL;
    raise_flag(host, 1, 1);
    await_flag(host, 0, 1);
    if (!filled(data + 4096, 4096, (unsigned)(me->number * 100 + i)))
      return NULL;
    d->ops->stream_free(d, stream);
    d->ops->free_memory(d, memory);
    d->ops->free_pinned(d, host);
  }
  me->good = true;
  return NULL;
}

BOTH(several_threads, .timeout_ms = 60000) {
  setenv("FAKE_GPU_DEVICES", "2", 1);
  user users[4] = {0};
  pthread_t threads[4];
  gbi_device *a = open_device(vendor, 0), *b = open_device(vendor, 1);
  for (int i = 0; i < 4; i++) {
    users[i] = (user){.devices = {a, b}, .number = i};
    GB_CHECK_OK(pthread_create(&threads[i], NULL, use_from_thread, &users[i]));
  }
  for (int i = 0; i < 4; i++) {
    pthread_join(threads[i], NULL);
    GB_CHECK(users[i].good);
  }
  a->ops->close(a);
  b->ops->close(b);
}

static void *count_from_thread(void *arg) {
  int count = 0;
  gb_status status = gbi_device_count(*(gbi_vendor *)arg, &count, NULL, NULL);
  return status == GB_OK && count == 1 ? arg : NULL;
}

BOTH(threads_start_it_together) {
  pthread_t threads[8];
  for (int i = 0; i < 8; i++)
    GB_CHECK_OK(pthread_create(&threads[i], NULL, count_from_thread, &vendor));
  for (int i = 0; i < 8; i++) {
    void *good = NULL;
    pthread_join(threads[i], &good);
    GB_CHECK(good);
  }
}

BOTH(sees_a_capture) {
  gbi_device *d = open_device(vendor, 0);
  gbi_stream stream = NULL;
  void *graph = NULL;
  bool captures = false;
  bool cuda = vendor == GBI_NVIDIA;
  unsigned (*begin)(void *, unsigned) = (unsigned (*)(void *, unsigned))fake(
      vendor, cuda ? "cuStreamBeginCapture_v2" : "hipStreamBeginCapture");
  unsigned (*end)(void *, void **) = (unsigned (*)(void *, void **))fake(
      vendor, cuda ? "cuStreamEndCapture" : "hipStreamEndCapture");
  OK(d->ops->stream_new(d, &stream, &error));
  make_current(vendor, 0);
  GB_CHECK_INT(begin(stream, 1 /* thread-local */), 0);
  OK(d->ops->stream_captures(d, stream, &captures, &error));
  GB_CHECK(captures);
  GB_CHECK_INT(end(stream, &graph), 0);
  unsigned (*destroy)(void *) = (unsigned (*)(void *))fake(
      vendor, cuda ? "cuGraphDestroy" : "hipGraphDestroy");
  GB_CHECK_INT(destroy(graph), 0);
  OK(d->ops->stream_captures(d, stream, &captures, &error));
  GB_CHECK(!captures);
  d->ops->stream_free(d, stream);
  d->ops->close(d);
}

/* A GPU whose streams cannot wait: known from its facts, refused in words. */
BOTH(without_flags) {
  setenv("FAKE_GPU_FAIL",
         vendor == GBI_NVIDIA ? "cuDeviceGetAttribute:3:801"
                              : "hipDeviceGetAttribute:1:801",
         1);
  gbi_device *d = open_device(vendor, 0);
  GB_CHECK(!d->facts.flags);
  GB_CHECK_INT(d->ops->wait_flag(d, &error, 1, NULL, &error),
               GB_ERR_UNSUPPORTED);
  GB_CHECK_TEXT(error.text, "GPU 0");
  GB_CHECK_INT(d->ops->set_flag(d, &error, 1, NULL, &error),
               GB_ERR_UNSUPPORTED);
  d->ops->close(d);
}

/* ---- failures of the vendor's functions ---- */

typedef struct objects {
  gbi_stream stream;
  gbi_event event;
  void *memory, *host, *gpu;
} objects;

static gb_status do_stream_new(gbi_device *d, objects *o) {
  gbi_stream stream = o;
  gb_status status = d->ops->stream_new(d, &stream, &error);
  GB_CHECK(stream == o);
  return status;
}
static gb_status do_query(gbi_device *d, objects *o) {
  return d->ops->stream_query(d, o->stream, &error);
}
static gb_status do_sync(gbi_device *d, objects *o) {
  return d->ops->stream_sync(d, o->stream, &error);
}
static gb_status do_captures(gbi_device *d, objects *o) {
  bool captures;
  return d->ops->stream_captures(d, o->stream, &captures, &error);
}
static gb_status do_event_new(gbi_device *d, objects *o) {
  gbi_event event = o;
  gb_status status = d->ops->event_new(d, &event, &error);
  GB_CHECK(event == o);
  return status;
}
static gb_status do_record(gbi_device *d, objects *o) {
  return d->ops->event_record(d, o->event, o->stream, &error);
}
static gb_status do_event_query(gbi_device *d, objects *o) {
  return d->ops->event_query(d, o->event, &error);
}
static gb_status do_wait(gbi_device *d, objects *o) {
  return d->ops->stream_wait(d, o->stream, o->event, &error);
}
static gb_status do_memory(gbi_device *d, objects *o) {
  void *memory = o;
  gb_status status = d->ops->memory(d, 64, &memory, &error);
  GB_CHECK(memory == o);
  return status;
}
static gb_status do_pinned(gbi_device *d, objects *o) {
  void *host = o, *gpu = o;
  gb_status status = d->ops->pinned(d, 64, &host, &gpu, &error);
  GB_CHECK(host == o && gpu == o);
  return status;
}
static gb_status do_adopt(gbi_device *d, objects *o) {
  static _Alignas(4096) char page[4096];
  void *gpu = o;
  gb_status status = d->ops->adopt(d, page, sizeof page, &gpu, &error);
  GB_CHECK(gpu == o);
  return status;
}
static gb_status do_copy_out(gbi_device *d, objects *o) {
  return d->ops->copy_out(d, o->host, o->memory, 64, o->stream, &error);
}
static gb_status do_copy_in(gbi_device *d, objects *o) {
  return d->ops->copy_in(d, o->memory, o->host, 64, o->stream, &error);
}
static gb_status do_copy(gbi_device *d, objects *o) {
  char *memory = o->memory;
  return d->ops->copy(d, memory, memory + 64, 64, o->stream, &error);
}
static gb_status do_wait_flag(gbi_device *d, objects *o) {
  return d->ops->wait_flag(d, o->gpu, 0, o->stream, &error);
}
static gb_status do_set_flag(gbi_device *d, objects *o) {
  return d->ops->set_flag(d, o->gpu, 1, o->stream, &error);
}
static gb_status do_facts(gbi_device *d, objects *o) {
  gbi_memory_facts facts;
  return d->ops->memory_facts(d, o->memory, &facts, &error);
}

/* `fail`: FAKE_GPU_FAIL of either vendor; the run whose function it is fails
 * with the vendor's words, changes no output and no current device. */
static void check_failure(gbi_vendor vendor, const char *fail,
                          gb_status (*run)(gbi_device *d, objects *o)) {
  setenv("FAKE_GPU_FAIL", fail, 1);
  gbi_device *d = open_device(vendor, 0);
  objects o = {0};
  OK(d->ops->stream_new(d, &o.stream, &error));
  OK(d->ops->event_new(d, &o.event, &error));
  OK(d->ops->memory(d, 4096, &o.memory, &error));
  OK(d->ops->pinned(d, 4096, &o.host, &o.gpu, &error));
  uintptr_t before = current(vendor);
  GB_CHECK_INT(run(d, &o), GB_ERR_SYSTEM);
  GB_CHECK_TEXT(error.text, "could not ");
  GB_CHECK_TEXT(error.text, "GPU 0");
  GB_CHECK_TEXT(error.text, d->facts.name);
  GB_CHECK_TEXT(error.text, "(999)");
  GB_CHECK(current(vendor) == before);
  d->ops->free_pinned(d, o.host);
  d->ops->free_memory(d, o.memory);
  d->ops->event_free(d, o.event);
  d->ops->stream_free(d, o.stream);
  d->ops->close(d);
}

#define FAILS(name_, run_, cuda_, hip_)                               \
  BOTH(name_##_fails) {                                               \
    check_failure(vendor, vendor == GBI_NVIDIA ? cuda_ : hip_, run_); \
  }
FAILS(stream_new, do_stream_new, "cuStreamCreate:2:999",
      "hipStreamCreateWithPriority:2:999,hipStreamCreateWithFlags:1:999")
FAILS(stream_query, do_query, "cuStreamQuery:1:999", "hipStreamQuery:1:999")
FAILS(stream_sync, do_sync, "cuStreamSynchronize:1:999",
      "hipStreamSynchronize:1:999")
FAILS(stream_captures, do_captures, "cuStreamIsCapturing:1:999",
      "hipStreamIsCapturing:1:999")
FAILS(event_new, do_event_new, "cuEventCreate:2:999",
      "hipEventCreateWithFlags:2:999")
FAILS(event_record, do_record, "cuEventRecord:1:999", "hipEventRecord:1:999")
FAILS(event_query, do_event_query, "cuEventQuery:1:999", "hipEventQuery:1:999")
FAILS(stream_wait, do_wait, "cuStreamWaitEvent:1:999",
      "hipStreamWaitEvent:1:999")
FAILS(memory, do_memory, "cuMemAlloc_v2:2:999", "hipMalloc:2:999")
FAILS(pinned, do_pinned, "cuMemHostAlloc:2:999", "hipHostMalloc:2:999")
FAILS(pinned_address, do_pinned, "cuMemHostGetDevicePointer_v2:2:999",
      "hipHostGetDevicePointer:2:999")
FAILS(adopt, do_adopt, "cuMemHostRegister_v2:1:999", "hipHostRegister:1:999")
FAILS(adopt_address, do_adopt, "cuMemHostGetDevicePointer_v2:2:999",
      "hipHostGetDevicePointer:2:999")
FAILS(copy_out, do_copy_out, "cuMemcpyDtoHAsync_v2:1:999",
      "hipMemcpyAsync:1:999")
FAILS(copy_in, do_copy_in, "cuMemcpyHtoDAsync_v2:1:999", "hipMemcpyAsync:1:999")
FAILS(copy, do_copy, "cuMemcpyDtoDAsync_v2:1:999", "hipMemcpyAsync:1:999")
FAILS(wait_flag, do_wait_flag, "cuStreamWaitValue64_v2:1:999",
      "hipStreamWaitValue64:1:999")
FAILS(set_flag, do_set_flag, "cuStreamWriteValue64_v2:1:999",
      "hipStreamWriteValue64:1:999")
FAILS(memory_facts, do_facts, "cuPointerGetAttributes:1:999",
      "hipPointerGetAttributes:1:999")

GB_TEST(cuda, no_context) {
  gbi_device *device = NULL;
  use_fake(GBI_NVIDIA);
  setenv("FAKE_GPU_FAIL", "cuDevicePrimaryCtxRetain:1:2", 1);
  GB_CHECK_INT(gbi_device_open(GBI_NVIDIA, 0, &device, &error), GB_ERR_MEMORY);
  GB_CHECK(!device);
  GB_CHECK_TEXT(error.text, "make a context");
  GB_CHECK_TEXT(error.text, "nvidia-smi");
}

/* Older runtimes have no priorities: streams are made without. */
GB_TEST(hip, streams_without_priorities) {
  gbi_stream stream = NULL;
  use_fake(GBI_AMD);
  setenv("FAKE_GPU_FAIL", "hipDeviceGetStreamPriorityRange:1:801", 1);
  gbi_device *d = open_device(GBI_AMD, 0);
  OK(d->ops->stream_new(d, &stream, &error));
  d->ops->stream_free(d, stream);
  d->ops->close(d);
}

/* torch asks for the last error after its kernels: ours are not left there. */
GB_TEST(hip, leaves_no_last_error) {
  use_fake(GBI_AMD);
  setenv("FAKE_GPU_FAIL", "hipMalloc:1:999", 1);
  gbi_device *d = open_device(GBI_AMD, 0);
  unsigned (*last)(void) = (unsigned (*)(void))fake(GBI_AMD, "hipGetLastError");
  gbi_memory_facts facts;
  gbi_stream stream = NULL;
  void *memory, *host, *gpu;
  (void)last();
  GB_CHECK_INT(d->ops->memory(d, 64, &memory, &error), GB_ERR_SYSTEM);
  GB_CHECK_INT(last(), 0);
  OK(d->ops->memory_facts(d, &facts, &facts, &error));
  GB_CHECK_INT(last(), 0);
  OK(d->ops->stream_new(d, &stream, &error));
  OK(d->ops->pinned(d, 4096, &host, &gpu, &error));
  OK(d->ops->wait_flag(d, gpu, 1, stream, &error));
  GB_CHECK_INT(d->ops->stream_query(d, stream, &error), GB_ERR_BUSY);
  GB_CHECK_INT(last(), 0);
  raise_flag(host, 0, 1);
  OK(d->ops->stream_sync(d, stream, &error));
  d->ops->stream_free(d, stream);
  d->ops->free_pinned(d, host);
  d->ops->close(d);
}

/* ---- texts ---- */

GB_TEST(device, uuid_texts) {
  char text[48];
  uint8_t uuid[16] = {0};
  gbi_uuid_text(uuid, "GPU-", text, sizeof text);
  GB_CHECK(!text[0]);
  for (int i = 0; i < 16; i++) uuid[i] = (uint8_t)(0xf0 + i);
  gbi_uuid_text(uuid, "MIG-", text, sizeof text);
  GB_CHECK(!strcmp(text, "MIG-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff"));
  memcpy(uuid, "4A0b1c2d3e4f5061", 16);
  gbi_uuid_text(uuid, "GPU-", text, sizeof text);
  GB_CHECK(!strcmp(text, "GPU-4A0b1c2d3e4f5061"));
}

GB_TEST(device, pci_texts) {
  static const char *const pairs[][2] = {
      {"0000:65:00.0", "0000:65:00.0"},
      {"0000:C1:00.0", "0000:c1:00.0"},
      {"00000000:C1:00.0", "0000:c1:00.0"},
      {"00010000:01:00.0", "00010000:01:00.0"},
      {"0001:01:00.0", "0001:01:00.0"},
      {"", ""}};
  for (size_t i = 0; i < GBI_COUNT(pairs); i++) {
    char text[32];
    snprintf(text, sizeof text, "%s", pairs[i][0]);
    gbi_pci_text(text);
    if (strcmp(text, pairs[i][1]))
      gb_test_fail(__FILE__, __LINE__, "%s gave %s", pairs[i][0], text);
  }
}

GB_TEST(device, failure_texts) {
  gbi_device device = {.index = 3, .facts = {.name = "Instinct"}};
  gbi_vendor_failure failure = {.vendor = GBI_AMD,
                                .device = &device,
                                .doing = "do it",
                                .code_name = "hipErrorWhat",
                                .text = "what",
                                .code = 12,
                                .way_out = "Do it differently"};
  GB_CHECK_INT(gbi_vendor_fail(&failure, GB_ERR_SYSTEM, &error), GB_ERR_SYSTEM);
  GB_CHECK(!strcmp(error.text,
                   "could not do it on amd GPU 3 (Instinct): "
                   "hipErrorWhat (12), what. Do it differently"));
  failure = (gbi_vendor_failure){.doing = "do it", .code = 12};
  GB_CHECK_INT(gbi_vendor_fail(&failure, GB_ERR_SYSTEM, &error), GB_ERR_SYSTEM);
  GB_CHECK(!strcmp(error.text, "could not do it: error (12)"));
  GB_CHECK_INT(gbi_vendor_fail(&failure, GB_ERR_BUSY, NULL), GB_ERR_BUSY);
}
