/* The fake's memory: what the host may touch, what the driver knows of an
 * address, what an asynchronous copy of pageable memory costs; and devices and
 * contexts. */
#include "fakes/fakes_test.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void read_device_memory(void) {
  start();
  volatile char *memory = (char *)(uintptr_t)new_memory(4096);
  char got = memory[0];
  (void)got;
}

static void write_device_memory(void) {
  start();
  volatile char *memory = (char *)(uintptr_t)new_memory(4096);
  memory[4095] = 1;
}

static void read_freed_pinned_memory(void) {
  start();
  volatile char *host = new_pinned(4096);
  CU(cuMemFreeHost((void *)host));
  char got = host[0];
  (void)got;
}

GB_TEST(fakes, host_cannot_touch_device_memory) {
  crashes(read_device_memory);
  crashes(write_device_memory);
}

GB_TEST(fakes, freed_pinned_memory_is_gone) {
  crashes(read_freed_pinned_memory);
}

GB_TEST(fakes, copies_carry_bytes) {
  start();
  enum { N = 1 << 20 };
  gbi_cu_stream stream = new_stream();
  gbi_cu_address a = new_memory(N), b = new_memory(N);
  unsigned char *host = new_pinned(2 * N);
  for (int i = 0; i < N; i++) host[i] = (unsigned char)(i * 7 + (i >> 9));
  CU(cuMemcpyHtoDAsync_v2(a, host, N, stream));
  CU(cuMemcpyDtoDAsync_v2(b + 3, a + 5, N - 5, stream));
  CU(cuMemcpyDtoHAsync_v2(host + N, b + 3, N - 5, stream));
  CU(cuMemcpyHtoDAsync_v2(a, host, 0, stream));
  CU(cuStreamSynchronize(stream));
  GB_CHECK(!memcmp(host + N, host + 5, N - 5));
  unsigned int words[4];
  CU(cuMemsetD32Async(a, 0x01020304, 4, stream));
  CU(cuStreamSynchronize(stream));
  CU(cuMemcpyDtoH_v2(words, a, sizeof words));
  for (int i = 0; i < 4; i++) GB_CHECK_INT(words[i], 0x01020304);
}

GB_TEST(fakes, new_device_memory_is_poison) {
  start();
  unsigned char got[64];
  CU(cuMemcpyDtoH_v2(got, new_memory(64), 64));
  for (int i = 0; i < 64; i++) GB_CHECK_INT(got[i], FAKE_POISON);
}

GB_TEST(fakes, pageable_copy_waits_and_is_counted) {
  start();
  gbi_cu_stream stream = new_stream();
  gbi_cu_address memory = new_memory(4096);
  char *pinned = new_pinned(4096);
  static char pageable[4096];
  CU(cuMemsetD8Async(memory, 5, 4096, stream));
  uint64_t before = counted().blocking;
  CU(cuMemcpyDtoHAsync_v2(pinned, memory, 4096, stream));
  GB_CHECK_INT(counted().blocking, before);
  CU(cuMemcpyDtoHAsync_v2(pageable, memory, 4096, stream));
  GB_CHECK_INT(counted().blocking, before + 1);
  GB_CHECK_INT(pageable[4095], 5); /* there when it returns */
  CU(cuMemcpyHtoDAsync_v2(memory, pageable, 4096, stream));
  GB_CHECK_INT(counted().blocking, before + 2);
}

GB_TEST(fakes, adopted_memory_is_pinned) {
  start();
  gbi_cu_stream stream = new_stream();
  gbi_cu_address memory = new_memory(8192), address;
  char *host = mmap(NULL, 8192, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CU(cuMemHostRegister_v2(host, 8192, GBI_CU_HOST_PORTABLE));
  GB_CHECK_INT(cuMemHostRegister_v2(host + 4096, 8192, 1),
               GBI_CU_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CU(cuMemHostGetDevicePointer_v2(&address, host, 0));
  uint64_t before = counted().blocking;
  CU(cuMemsetD8Async(memory, 9, 8192, stream));
  CU(cuMemcpyDtoHAsync_v2(host, memory, 8192, stream));
  GB_CHECK_INT(counted().blocking, before);
  CU(cuStreamSynchronize(stream));
  GB_CHECK_INT(host[8191], 9);
  CU(cuMemHostUnregister(host));
  GB_CHECK_INT(cuMemHostUnregister(host), 713);
  GB_CHECK_INT(cuMemHostGetDevicePointer_v2(&address, host, 0),
               GBI_CU_ERROR_INVALID_VALUE);
}

GB_TEST(fakes, pinned_memory_has_an_end) {
  setenv("FAKE_GPU_PINNED_MOST", "65536", 1);
  start();
  void *a, *b;
  CU(cuMemHostAlloc(&a, 40000, 0));
  GB_CHECK_INT(cuMemHostAlloc(&b, 40000, 0), GBI_CU_ERROR_OUT_OF_MEMORY);
  CU(cuMemFreeHost(a));
  CU(cuMemHostAlloc(&b, 40000, 0));
}

GB_TEST(fakes, device_memory_has_an_end) {
  start();
  size_t left, total;
  gbi_cu_address memory;
  CU(cuMemGetInfo_v2(&left, &total));
  GB_CHECK_INT(cuMemAlloc_v2(&memory, left + 1), GBI_CU_ERROR_OUT_OF_MEMORY);
  GB_CHECK_INT(cuMemAlloc_v2(&memory, 0), GBI_CU_ERROR_INVALID_VALUE);
}

static void look(gbi_cu_address address, unsigned *kind, int *device) {
  unsigned int which[3] = {GBI_CU_POINTER_MEMORY_TYPE,
                           GBI_CU_POINTER_DEVICE_ORDINAL,
                           GBI_CU_POINTER_IS_MANAGED};
  unsigned int managed = 7;
  void *data[3] = {kind, device, &managed};
  CU(cuPointerGetAttributes(3, which, data, address));
  GB_CHECK_INT(managed, 0);
}

GB_TEST(fakes, pointer_attributes) {
  setenv("FAKE_GPU_DEVICES", "2", 1);
  start();
  gbi_cu_context second;
  CU(cuDevicePrimaryCtxRetain(&second, 1));
  CU(cuCtxPushCurrent_v2(second));
  gbi_cu_address memory = new_memory(4096), begin;
  CU(cuCtxPopCurrent_v2(NULL));
  unsigned kind;
  int device, here = 0;
  look(memory + 4095, &kind, &device);
  GB_CHECK_INT(kind, GBI_CU_MEMORYTYPE_DEVICE);
  GB_CHECK_INT(device, 1);
  look(on_device(new_pinned(64)), &kind, &device);
  GB_CHECK_INT(kind, GBI_CU_MEMORYTYPE_HOST);
  look(on_device(&here), &kind, &device);
  GB_CHECK_INT(kind, 0);
  GB_CHECK_INT(cuPointerGetAttribute(&kind, 2, on_device(&here)),
               GBI_CU_ERROR_INVALID_VALUE);
  size_t bytes;
  CU(cuMemGetAddressRange_v2(&begin, &bytes, memory + 99));
  GB_CHECK(begin == memory && bytes == 4096);
}

GB_TEST(fakes, calls_need_what_the_driver_needs) {
  gbi_cu_context context;
  gbi_cu_address memory;
  int count;
  GB_CHECK_INT(cuDeviceGetCount(&count), GBI_CU_ERROR_NOT_INITIALIZED);
  CU(cuInit(0));
  CU(cuDeviceGetCount(&count));
  GB_CHECK_INT(count, 1);
  GB_CHECK_INT(cuMemAlloc_v2(&memory, 64), FAKE_CU_ERROR_INVALID_CONTEXT);
  GB_CHECK_INT(cuDevicePrimaryCtxRetain(&context, 1),
               GBI_CU_ERROR_INVALID_DEVICE);
  CU(cuDevicePrimaryCtxRetain(&context, 0));
  CU(cuCtxPushCurrent_v2(context));
  CU(cuMemAlloc_v2(&memory, 64));
  gbi_cu_context popped;
  CU(cuCtxPopCurrent_v2(&popped));
  GB_CHECK(popped == context);
  GB_CHECK_INT(cuMemFree_v2(memory), FAKE_CU_ERROR_INVALID_CONTEXT);
  CU(cuDevicePrimaryCtxRelease_v2(0));
  CU(cuCtxPushCurrent_v2(context));
  GB_CHECK_INT(cuMemFree_v2(memory), FAKE_CU_ERROR_CONTEXT_IS_DESTROYED);
}

GB_TEST(fakes, a_forked_child_has_no_gpu) {
  start();
  pid_t pid = fork();
  if (!pid) {
    int count;
    _exit(cuDeviceGetCount(&count) == GBI_CU_ERROR_NOT_INITIALIZED ? 0 : 1);
  }
  int status;
  GB_CHECK(waitpid(pid, &status, 0) == pid);
  GB_CHECK_INT(status, 0);
}

GB_TEST(fakes, no_devices) {
  setenv("FAKE_GPU_DEVICES", "0", 1);
  GB_CHECK_INT(cuInit(0), GBI_CU_ERROR_NO_DEVICE);
}

GB_TEST(fakes, device_facts) {
  setenv("FAKE_GPU_DEVICES", "2", 1);
  setenv("FAKE_GPU_UUID", "GPU-00112233-4455-6677-8899-aabbccddeeff", 1);
  start();
  struct {
    unsigned char bytes[16];
  } uuid;
  char pci[2][32], name[64];
  CU(cuDeviceGetUuid_v2((struct CUuuid_st *)&uuid, 0));
  for (int i = 0; i < 16; i++) GB_CHECK_INT(uuid.bytes[i], i * 17);
  CU(cuDeviceGetUuid_v2((struct CUuuid_st *)&uuid, 1));
  GB_CHECK_INT(uuid.bytes[15], 0);
  GB_CHECK_INT(uuid.bytes[14], 0xef);
  CU(cuDeviceGetPCIBusId(pci[0], 32, 0));
  CU(cuDeviceGetPCIBusId(pci[1], 32, 1));
  GB_CHECK(strcmp(pci[0], pci[1]) != 0);
  CU(cuDeviceGetName(name, sizeof name, 0));
  GB_CHECK_TEXT(name, "NVIDIA");
  int value;
  CU(cuDeviceGetAttribute(&value, 122, 0));
  GB_CHECK_INT(value, 1);
  CU(cuDeviceGetAttribute(&value, 75, 0));
  GB_CHECK_INT(value, 9);
  GB_CHECK_INT(cuDeviceGetAttribute(&value, 75, 2),
               GBI_CU_ERROR_INVALID_DEVICE);
  const char *text;
  CU(cuGetErrorName(600, &text));
  GB_CHECK_TEXT(text, "CUDA_ERROR_NOT_READY");
}

GB_TEST(fakes, copies_must_mean_what_they_say) {
  start();
  gbi_cu_stream stream = new_stream();
  gbi_cu_address memory = new_memory(64);
  char pageable[64], *pinned = new_pinned(64);
  GB_CHECK_INT(cuMemcpyDtoHAsync_v2(pageable, on_device(pageable), 8, stream),
               GBI_CU_ERROR_INVALID_VALUE);
  GB_CHECK_INT(
      cuMemcpyHtoDAsync_v2(memory, (void *)(uintptr_t)memory, 8, stream),
      GBI_CU_ERROR_INVALID_VALUE);
  CU(cuMemcpyDtoDAsync_v2(memory, on_device(pinned), 8, stream));
  GB_CHECK_INT(cuMemFree_v2(memory + 1), GBI_CU_ERROR_INVALID_VALUE);
  GB_CHECK_INT(cuMemFree_v2(on_device(pinned)), GBI_CU_ERROR_INVALID_VALUE);
  GB_CHECK_INT(cuMemFreeHost(pageable), GBI_CU_ERROR_INVALID_VALUE);
}
