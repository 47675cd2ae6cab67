/* The edges of calls on GPUs: nothing to carry, of every collective, with and
 * without an address; memory of an allocator that maps pieces one behind the
 * other at addresses it has reserved (torch's expandable segments): buffers lie
 * across pieces, and the segment grows between calls. And calls that are
 * through before others that were called first. */
#include "job/gpu_graph.h"

/* ---- calls of nothing ---- */

static void nothing(gb_job *job, void *memory) {
  enum { WORLD_MOST = 8 };
  size_t none[WORLD_MOST] = {0};
  gb_group *world = gb_job_world(job);
  gb_buffer empty = {memory, 0, GB_FLOAT32};
  int last = gb_world() - 1;
  bool root = gb_rank() == last;
  MUST(gb_all_reduce(world, &empty, GB_SUM, NULL, error));
  MUST(gb_all_reduce(world, &empty, GB_AVG, NULL, error));
  MUST(gb_all_reduce_scaled(world, &empty, 0.5, NULL, error));
  MUST(gb_broadcast(world, &empty, last, NULL, error));
  MUST(gb_reduce(world, &empty, GB_MAX, last, NULL, error));
  MUST(gb_all_gather(world, &empty, &empty, NULL, error));
  MUST(gb_reduce_scatter(world, &empty, &empty, GB_SUM, NULL, error));
  MUST(gb_all_gather_v(world, &empty, &empty, none, NULL, error));
  MUST(gb_reduce_scatter_v(world, &empty, &empty, none, GB_SUM, NULL, error));
  MUST(gb_gather(world, root ? &empty : NULL, &empty, last, NULL, error));
  MUST(gb_scatter(world, &empty, root ? &empty : NULL, last, NULL, error));
  MUST(gb_all_to_all(world, &empty, NULL, &empty, NULL, NULL, error));
  MUST(gb_all_to_all(world, &empty, none, &empty, none, NULL, error));
  gb_buffer odd = {memory, 0, GB_COMPLEX64};
  MUST(gb_all_reduce(world, &odd, GB_SUM, NULL, error));
  gb_work *work = NULL;
  MUST(gb_all_reduce(world, &empty, GB_SUM, &work, error));
  MUST(gb_work_wait(work, 0, error));
  gb_work_release(work);
}

/* Between and after them, calls of something are right. */
static void run_nothing(const char *policy) {
  gb_job *job = open_on_gpu(20000, policy);
  pair p = new_pair(64 * 4);
  gb_buffer buffer = {p.device, 64, GB_FLOAT32};
  for (int round = 0; round < 2; round++) {
    nothing(job, round ? NULL : p.device);
    for (int i = 0; i < 64; i++) ((float *)p.host)[i] = 1;
    upload(p);
    MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, error));
    download(p);
    GB_CHECK(((float *)p.host)[63] == (float)gb_world());
  }
  close_on_gpu(job);
}

GB_TEST(gpu_nothing, two_and_two, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  run_nothing(NULL);
}
GB_TEST(gpu_nothing, one_and_one, .ranks = 2, .vendors = "na") {
  run_nothing(NULL);
}
GB_TEST(gpu_nothing, nvidia_alone, .ranks = 2, .vendors = "nn") {
  run_nothing(NULL);
}
GB_TEST(gpu_nothing, flat, .ranks = 3, .vendors = "nna") {
  run_nothing("flat");
}
GB_TEST(gpu_nothing, over_two_links, .ranks = 4, .vendors = "nnaa",
        .timeout_ms = 60000) {
  run_nothing("sharded-bridge");
}
GB_TEST(gpu_nothing, combined_and_compressed, .ranks = 3, .vendors = "nna",
        .timeout_ms = 60000) {
  setenv("GPUBRIDGE_COMBINE", "gpu", 1);
  run_nothing(NULL);
  setenv("GPUBRIDGE_BRIDGE_COMPRESSION", "fp8", 1);
  run_nothing(NULL);
}

/* ---- calls that overtake others ---- */

/* Two exchanges of nothing over the mesh end before the long sum on the bridge
 * that was called first. Their ends are not forgotten: the next call, which
 * takes the place of one of them, begins. */
GB_TEST(gpu_order, calls_that_overtake, .ranks = 2, .vendors = "na") {
  enum { LONG = 4 << 20, CALLS = 3 };
  gb_job *job = open_on_gpu(10000, NULL);
  gb_group *world = gb_job_world(job);
  pair sum = new_pair(LONG * 4), small = new_pair(64);
  gb_buffer buffer = {sum.device, LONG, GB_FLOAT32};
  gb_buffer none = {NULL, 0, GB_FLOAT32},
            little = {small.device, 16, GB_FLOAT32};
  for (int i = 0; i < LONG; i++) ((float *)sum.host)[i] = 1;
  for (int i = 0; i < 16; i++) ((float *)small.host)[i] = 1;
  for (int round = 0; round < 5; round++) {
    gb_work *works[CALLS];
    upload(sum);
    upload(small);
    MUST(gb_all_reduce(world, &buffer, GB_SUM, &works[0], error));
    for (int i = 1; i < CALLS; i++)
      MUST(gb_all_to_all(world, &none, NULL, &none, NULL, &works[i], error));
    for (int i = 0; i < CALLS; i++) {
      MUST(gb_work_wait(works[i], 0, error));
      gb_work_release(works[i]);
    }
    download(sum);
    MUST(gb_all_reduce(world, &little, GB_SUM, NULL, error));
    download(small);
    GB_CHECK(((float *)sum.host)[LONG - 1] == 2);
    GB_CHECK(((float *)small.host)[15] == 2);
    for (int i = 0; i < LONG; i++) ((float *)sum.host)[i] = 1;
    for (int i = 0; i < 16; i++) ((float *)small.host)[i] = 1;
  }
  close_on_gpu(job);
}

/* ---- expandable segments ---- */

enum { PIECE = 2 << 20, PIECES = 3 };

static uint64_t reserve(void) {
  uint64_t address = 0;
  unsigned (*call)(uint64_t *, size_t, size_t, uint64_t, unsigned long long) =
      (unsigned (*)(uint64_t *, size_t, size_t, uint64_t, unsigned long long))
          fake_function("cuMemAddressReserve", NULL);
  GB_CHECK_INT(call(&address, PIECES * PIECE, 0, 0, 0), 0);
  return address;
}

/* A piece of memory behind what is there already. */
static void grow(uint64_t at) {
  unsigned long long handle = 0;
  char properties[64] = {0};
  unsigned (*create)(unsigned long long *, size_t, const void *,
                     unsigned long long) =
      (unsigned (*)(unsigned long long *, size_t, const void *,
                    unsigned long long))fake_function("cuMemCreate", NULL);
  unsigned (*map)(uint64_t, size_t, size_t, unsigned long long,
                  unsigned long long) =
      (unsigned (*)(uint64_t, size_t, size_t, unsigned long long,
                    unsigned long long))fake_function("cuMemMap", NULL);
  unsigned (*access)(uint64_t, size_t, const void *, size_t) =
      (unsigned (*)(uint64_t, size_t, const void *, size_t))fake_function(
          "cuMemSetAccess", NULL);
  unsigned (*release)(unsigned long long) =
      (unsigned (*)(unsigned long long))fake_function("cuMemRelease", NULL);
  GB_CHECK_INT(create(&handle, PIECE, properties, 0), 0);
  GB_CHECK_INT(map(at, PIECE, 0, handle, 0), 0);
  GB_CHECK_INT(access(at, PIECE, properties, 1), 0);
  GB_CHECK_INT(release(handle), 0);
}

static void give_all_back(uint64_t address, int pieces) {
  unsigned (*unmap)(uint64_t, size_t) =
      (unsigned (*)(uint64_t, size_t))fake_function("cuMemUnmap", NULL);
  unsigned (*unreserve)(uint64_t, size_t) =
      (unsigned (*)(uint64_t, size_t))fake_function("cuMemAddressFree", NULL);
  while (pieces-- > 0)
    GB_CHECK_INT(unmap(address + (uint64_t)pieces * PIECE, PIECE), 0);
  GB_CHECK_INT(unreserve(address, PIECES * PIECE), 0);
}

GB_TEST(gpu_memory, expandable_segments, .ranks = 2, .vendors = "na",
        .timeout_ms = 60000) {
  gb_job *job = open_on_gpu(20000, NULL);
  uint64_t segment = 0;
  size_t bytes = PIECE + PIECE / 2;
  make_current();
  pair p = new_pair(bytes);
  void *plain = p.device;
  if (!is_amd()) segment = reserve();
  if (!is_amd()) grow(segment);
  for (int pieces = 2; pieces <= PIECES; pieces++) {
    if (!is_amd()) {
      grow(segment + (uint64_t)(pieces - 1) * PIECE);
      /* Across the last two. */
      p.device = (void *)(uintptr_t)(segment + (uint64_t)(pieces - 2) * PIECE +
                                     PIECE / 4);
    }
    gb_buffer buffer = {p.device, bytes / 4, GB_FLOAT32};
    for (size_t i = 0; i < bytes / 4; i++)
      ((float *)p.host)[i] = (float)((i + (size_t)pieces) % 97);
    upload(p);
    MUST(gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, error));
    download(p);
    for (size_t i = 0; i < bytes / 4; i++)
      GB_CHECK(((float *)p.host)[i] ==
               (float)(2 * ((i + (size_t)pieces) % 97)));
  }
  /* Addresses without memory are nobody's. */
  gb_error error = {.text = ""};
  if (segment) {
    give_all_back(segment, PIECES);
    gb_buffer gone = {(void *)(uintptr_t)segment, 16, GB_FLOAT32};
    GB_CHECK_INT(gb_all_reduce(gb_job_world(job), &gone, GB_SUM, NULL, &error),
                 GB_ERR_ARGUMENT);
  }
  p.device = plain;
  free_pair(p);
  close_on_gpu(job);
}
