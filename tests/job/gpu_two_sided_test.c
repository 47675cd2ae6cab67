/* Why messages between GPUs of one island do not go by the vendor library's
 * send and receive (docs/decisions.md). Both are kernels that hold their stream
 * until the other's runs. A message is matched at some time after it was made,
 * so they would be enqueued at some time, and where streams share a hardware
 * queue each program below, which ends with the messages that there are, locks
 * up: on both vendors' fakes, with a communicator of its own for each
 * direction. With a queue for each stream it ends: nothing else keeps it. A
 * rank that is stuck exits with 3. */
#include "job/gpu.h"

#include "ccl/native.h"

#include <stdatomic.h>

enum { COUNT = 300000, STUCK_AFTER_S = 2, ENDS_WITHIN_S = 20 };
enum { FROM_0, FROM_1, ALL, COMMS };

typedef struct shared {
  volatile int ids, met, staged;
  uint8_t id[COMMS][GBI_NATIVE_ID_BYTES];
} shared;

static shared *common;
static gbi_native *native[COMMS];
static gbi_stream in, out, lane;
static _Atomic uint64_t *gate, *ready; /* of a large message, of a small one */
static void *gate_device, *ready_device;
static pair sent, received, summed;

static void is_stuck(int signal) {
  (void)signal;
  _exit(3);
}

static void make_comms(void) {
  gbi_vendor vendor = gpu->ops->vendor;
  common = gb_test_shared();
  if (!gb_rank()) {
    for (int i = FROM_0; i < COMMS; i++)
      MUST(gbi_native_id(vendor, common->id[i], error));
    __atomic_store_n(&common->ids, 1, __ATOMIC_RELEASE);
  }
  gb_test_await(&common->ids, 1, 20000);
  for (int i = FROM_0; i < COMMS; i++)
    MUST(gbi_native_open(gpu, common->id[i], 2, gb_rank(),
                         gbi_deadline_after_ms(20000), NULL, &native[i],
                         error));
}

static void make_memory(void) {
  void *host, *device;
  MUST(gpu->ops->pinned(gpu, 8192, &host, &device, error));
  gate = host;
  gate_device = device;
  ready = (_Atomic uint64_t *)(void *)((uint8_t *)host + 4096);
  ready_device = (uint8_t *)device + 4096;
  sent = new_pair(COUNT * 4);
  received = new_pair(COUNT * 4);
  summed = new_pair(COUNT * 4);
  for (size_t i = 0; i < COUNT; i++) ((float *)sent.host)[i] = 7;
  memcpy(summed.host, sent.host, sent.bytes);
  memset(received.host, 0, received.bytes);
  upload(sent);
  upload(summed);
  upload(received);
  MUST(gpu->ops->stream_sync(gpu, user, error));
}

/* What a matched message's two sides enqueue. */
static void enqueue_send(void) {
  MUST(gbi_native_send(native[gb_rank() ? FROM_1 : FROM_0], sent.device, COUNT,
                       GB_FLOAT32, !gb_rank(), out, error));
}
static void enqueue_receive(void) {
  MUST(gbi_native_recv(native[gb_rank() ? FROM_0 : FROM_1], received.device,
                       COUNT, GB_FLOAT32, !gb_rank(), in, error));
  MUST(gpu->ops->set_flag(gpu, gate_device, 1, in, error));
}
/* What a wait for the message puts on the caller's stream. */
static void enqueue_wait(void) {
  MUST(gpu->ops->wait_flag(gpu, gate_device, 1, user, error));
}
static void enqueue_sum(void) {
  gbi_event before;
  MUST(gpu->ops->event_new(gpu, &before, error));
  MUST(gpu->ops->event_record(gpu, before, user, error));
  MUST(gpu->ops->stream_wait(gpu, lane, before, error));
  MUST(gbi_native_all_reduce(native[ALL], summed.device, summed.device, COUNT,
                             GB_FLOAT32, GB_MAX, 1, 0, lane, error));
  gpu->ops->event_free(gpu, before);
}

static void sync_all(void) {
  const gbi_stream streams[] = {user, in, out, lane};
  for (int i = 0; i < 4; i++)
    MUST(gpu->ops->stream_sync(gpu, streams[i], error));
}

static void together(void) {
  int place = __atomic_load_n(&common->met, __ATOMIC_ACQUIRE) / 2 * 2 + 2;
  __atomic_add_fetch(&common->met, 1, __ATOMIC_ACQ_REL);
  gb_test_await(&common->met, place, 20000);
}

/* Libraries connect at a first use, which would hold the calls up. */
static void connect_all(void) {
  for (int from = 0; from < 2; from++) {
    if (gb_rank() == from)
      enqueue_send();
    else
      enqueue_receive();
    sync_all();
    together();
  }
  enqueue_sum();
  sync_all();
  atomic_store(gate, 0);
  memset(received.host, 0, received.bytes);
  upload(received);
  sync_all();
}

static void begin(const char *queues) {
  setenv("FAKE_GPU_QUEUES", queues, 1);
  use_fakes();
  MUST(gbi_device_open(is_amd() ? GBI_AMD : GBI_NVIDIA, 0, &gpu, error));
  MUST(gpu->ops->stream_new(gpu, &user, error));
  MUST(gpu->ops->stream_new(gpu, &in, error));
  MUST(gpu->ops->stream_new(gpu, &out, error));
  MUST(gpu->ops->stream_new(gpu, &lane, error));
  make_comms();
  make_memory();
  connect_all();
  signal(SIGALRM, is_stuck);
  together();
  alarm(queues[0] == '1' ? STUCK_AFTER_S : ENDS_WITHIN_S);
}

static void end(bool receives) {
  sync_all();
  alarm(0);
  download(received);
  float want = receives ? 7 : 0;
  GB_CHECK(((float *)received.host)[COUNT - 1] == want);
  together();
  for (int i = FROM_0; i < COMMS; i++)
    gbi_native_close(native[i], gbi_deadline_after_ms(10000));
}

/* irecv, wait: the receive is enqueued when the message is matched, and the
 * caller's stream waits already. */
static void matched_after_the_wait(const char *queues) {
  begin(queues);
  if (gb_rank()) {
    enqueue_wait();
    enqueue_receive();
  } else {
    enqueue_send();
  }
  end(gb_rank());
}

/* Both: irecv, isend. */
static void receives_first(const char *queues) {
  begin(queues);
  enqueue_receive();
  enqueue_send();
  end(true);
}

/* Rank 0: isend, all_reduce. Rank 1: irecv, wait, all_reduce; its wait even
 * makes the host wait until the receive is enqueued. */
static void matched_after_a_collective(const char *queues) {
  begin(queues);
  if (gb_rank()) {
    enqueue_receive();
    enqueue_wait();
    enqueue_sum();
  } else {
    enqueue_sum();
    enqueue_send();
  }
  end(gb_rank());
}

/* Rank 0: isend of a large and of a small message. Rank 1: irecv of both, waits
 * for the small one first, which passes through the hosts. */
static void beside_a_staged_message(const char *queues) {
  begin(queues);
  if (gb_rank()) {
    MUST(gpu->ops->wait_flag(gpu, ready_device, 1, user, error));
    enqueue_receive();
    while (!__atomic_load_n(&common->staged, __ATOMIC_ACQUIRE)) usleep(1000);
    atomic_store_explicit(ready, 1, memory_order_release);
  } else {
    enqueue_send();
    MUST(
        gpu->ops->copy_out(gpu, summed.host, summed.device, 4096, lane, error));
    MUST(gpu->ops->set_flag(gpu, ready_device, 1, lane, error));
    while (!atomic_load_explicit(ready, memory_order_acquire)) usleep(1000);
    __atomic_store_n(&common->staged, 1, __ATOMIC_RELEASE);
  }
  end(gb_rank());
}

#define IN_QUEUES(name_, vendors_, queues_, expect_, body_)      \
  GB_TEST(gpu_two_sided, name_, .ranks = 2, .vendors = vendors_, \
          .expect = expect_) {                                   \
    body_(queues_);                                              \
  }
#define PROGRAM(name_)                                              \
  IN_QUEUES(name_##_in_one_queue, "nn", "1", "xx", name_)           \
  IN_QUEUES(name_##_in_one_queue_on_amd, "aa", "1", "xx", name_)    \
  IN_QUEUES(name_##_in_queues_of_their_own, "nn", "8", NULL, name_) \
  IN_QUEUES(name_##_in_queues_of_their_own_on_amd, "aa", "8", NULL, name_)
PROGRAM(matched_after_the_wait)
PROGRAM(receives_first)
PROGRAM(matched_after_a_collective)
PROGRAM(beside_a_staged_message)
