#include "fakes/gpu.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

fake_gpu gpu = {.lock = PTHREAD_MUTEX_INITIALIZER,
                .changed = PTHREAD_COND_INITIALIZER};

void *fake_new(size_t bytes) {
  void *memory = calloc(1, bytes ? bytes : 1);
  if (!memory) abort();
  return memory;
}

void fake_lock(void) {
  pthread_mutex_lock(&gpu.lock);
}
void fake_unlock(void) {
  pthread_mutex_unlock(&gpu.lock);
}

bool fake_stopping(void) {
  return __atomic_load_n(&gpu.stopping, __ATOMIC_ACQUIRE) != 0;
}

bool fake_sleep_locked(void) {
  if (fake_stopping()) return false;
  gpu.sleepers++;
  pthread_cond_wait(&gpu.changed, &gpu.lock);
  gpu.sleepers--;
  return !fake_stopping();
}

void fake_wake_locked(void) {
  if (gpu.sleepers) pthread_cond_broadcast(&gpu.changed);
}

/* splitmix64 */
static uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t fake_random(uint64_t a, uint64_t b) {
  return mix(mix(mix(gpu.set.seed) ^ a) ^ b);
}

static uint64_t number(const char *name, uint64_t otherwise) {
  const char *text = getenv(name);
  return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static bool has_word(const char *words, const char *word) {
  size_t bytes = strlen(word);
  for (const char *at = words; at && (at = strstr(at, word)); at += bytes) {
    bool starts = at == words || strchr(", ", at[-1]);
    if (starts && (!at[bytes] || strchr(", ", at[bytes]))) return true;
  }
  return false;
}

static int at_most(uint64_t value, int most) {
  return value > (uint64_t)most ? most : (int)value;
}

static void read_settings(void) {
  fake_settings *set = &gpu.set;
  const char *profile = getenv("FAKE_GPU_PROFILE");
  set->devices = at_most(number("FAKE_GPU_DEVICES", 1), FAKE_DEVICES_MOST);
  set->queues = at_most(number("FAKE_GPU_QUEUES", 4), FAKE_QUEUES_MOST / 4);
  if (set->queues < 1) set->queues = 1;
  set->seed = number("FAKE_GPU_SEED", 0);
  set->delay_us = at_most(number("FAKE_GPU_DELAY_US", 200), 1000000);
  set->checks = number("FAKE_GPU_CHECKS", 1) != 0;
  set->pinned_most = number("FAKE_GPU_PINNED_MOST", 0);
  set->lazy = has_word(profile, "lazy");
  set->blocking = has_word(profile, "blocking");
  set->alloc_sync = has_word(profile, "alloc-sync");
  set->ring = has_word(profile, "rocm-ring") ||
              (fake_here.ring && !has_word(profile, "no-ring"));
  set->lock = has_word(profile, "rocm-lock");
  set->graph_memops = has_word(profile, "graph-memops");
}

/* Hexadecimal digits, whatever stands between them; nor are a "GPU-" or
 * a "MIG-". */
static void parse_uuid(const char *text, uint8_t *uuid) {
  if (!strncmp(text, "GPU-", 4) || !strncmp(text, "MIG-", 4)) text += 4;
  int digits = 0;
  for (; *text && digits < 32; text++) {
    const char *found = strchr("0123456789abcdef0123456789ABCDEF", *text);
    if (!found) continue;
    int value = (int)((found - "0123456789abcdef0123456789ABCDEF") & 15);
    uuid[digits / 2] |= (uint8_t)(value << (digits % 2 ? 0 : 4));
    digits++;
  }
}

static void name_device(fake_device *device, int index) {
  const char *text = getenv("FAKE_GPU_UUID");
  if (text && *text) {
    parse_uuid(text, device->uuid);
  } else {
    uint64_t parts[2] = {mix((uint64_t)getpid()), mix((uint64_t)getpid() + 7)};
    memcpy(device->uuid, parts, 16);
  }
  for (int i = 15, carry = index; i >= 0 && carry; i--) {
    carry += device->uuid[i];
    device->uuid[i] = (uint8_t)carry;
    carry >>= 8;
  }
  const char *slice = getenv("FAKE_GPU_MIG");
  if (slice && *slice && !index)
    parse_uuid(slice, device->slice);
  else
    memcpy(device->slice, device->uuid, sizeof device->slice);
  uint64_t sum = 0;
  for (int i = 0; i < 16; i++) sum = mix(sum ^ device->uuid[i]);
  device->pci_domain = (int)(sum & 0xffff);
  device->pci_bus = (int)((sum >> 16) & 0xff);
  snprintf(device->pci, sizeof device->pci, "%04x:%02x:00.0",
           device->pci_domain, device->pci_bus);
}

static void start_device(int index) {
  fake_device *device = &gpu.devices[index];
  name_device(device, index);
  for (int i = 0; i < FAKE_QUEUES_MOST; i++) {
    device->queues[i].device = index;
    pthread_cond_init(&device->queues[i].work, NULL);
  }
}

void fake_start(void) {
  fake_lock();
  if (!gpu.ready) {
    read_settings();
    for (int i = 0; i < gpu.set.devices; i++) start_device(i);
    __atomic_store_n(&gpu.ready, true, __ATOMIC_RELEASE);
  }
  fake_unlock();
}

fake_device *fake_device_at(int device) {
  return device >= 0 && device < gpu.set.devices ? &gpu.devices[device] : NULL;
}

/* As with the real ones, a child of fork has no GPU. */
static void forked(void) {
  if (gpu.ready) gpu.forked = true;
}

/* The fake NCCL beside us looks for fake_gpu_* by dlsym(RTLD_DEFAULT), and
 * whoever loads a driver by dlopen keeps its names to himself. */
__attribute__((constructor)) static void loaded(void) {
  Dl_info info;
  if (dladdr((void *)&gpu, &info) && info.dli_fname)
    dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
  pthread_atfork(NULL, NULL, forked);
}

/* The queues' threads are detached and may sit in a wait for ever; they must
 * start nothing new while the process takes itself apart. */
__attribute__((destructor)) static void unloaded(void) {
  __atomic_store_n(&gpu.stopping, 1, __ATOMIC_RELEASE);
  if (gpu.forked || pthread_mutex_trylock(&gpu.lock)) return;
  pthread_cond_broadcast(&gpu.changed);
  for (int i = 0; i < gpu.set.devices; i++)
    for (int j = 0; j < FAKE_QUEUES_MOST; j++)
      pthread_cond_broadcast(&gpu.devices[i].queues[j].work);
  fake_unlock();
}
