/* The kernels of the fake NCCL: what runs on a fake stream. */
#include "fakes/nccl.h"

#include <stdlib.h>
#include <string.h>

size_t fake_nccl_type_bytes(int type) {
  static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return bytes[type];
}

/* Leaves the kernel when the communicator ends. */
#define WAIT(comm, condition)                 \
  do {                                        \
    int rounds = 0;                           \
    FAKE_NCCL_WAIT(comm, rounds, condition, { \
      fake_nccl_give_up(comm);                \
      return false;                           \
    });                                       \
  } while (0)

/* The real one waits for data that never come, or come in another shape. */
static bool hang(struct ncclComm *comm) {
  WAIT(comm, false);
  return false;
}

/* What all members must have in common. */
static void describe(const fake_call *call, uint64_t words[2]) {
  words[0] = (uint64_t)call->op << 56 | (uint64_t)call->type << 48 |
             (uint64_t)(call->reduction.op & 0xff) << 40 |
             (uint64_t)call->reduction.scales << 39 |
             (uint64_t)(call->root & 0xffff);
  words[1] = call->count;
}

/* Puts a part of this member's contribution where the others can read it, and
 * waits until they have done so too. */
static bool exchange(const fake_call *call, const char *from, size_t bytes) {
  struct ncclComm *comm = call->comm;
  fake_place *mine = fake_nccl_place(comm, comm->me);
  uint64_t number = comm->chunks, words[2];
  describe(call, words);
  for (int m = 0; m < comm->members_count; m++)
    WAIT(comm, atomic_load(&fake_nccl_place(comm, m)->taken) + 1 >= number);
  if (from && call->reduction.scales)
    fake_nccl_scale(call->type, &call->reduction, mine->chunk[number % 2], from,
                    bytes / fake_nccl_type_bytes(call->type));
  else if (from)
    memcpy(mine->chunk[number % 2], from, bytes);
  atomic_store(&mine->call[number % 2][0], words[0]);
  atomic_store(&mine->call[number % 2][1], words[1]);
  atomic_store(&mine->posted, number + 1);
  for (int m = 0; m < comm->members_count; m++) {
    fake_place *place = fake_nccl_place(comm, m);
    WAIT(comm, atomic_load(&place->posted) > number);
    if (atomic_load(&place->call[number % 2][0]) != words[0] ||
        atomic_load(&place->call[number % 2][1]) != words[1])
      return hang(comm);
  }
  return true;
}

static void taken(struct ncclComm *comm) {
  atomic_store(&fake_nccl_place(comm, comm->me)->taken, ++comm->chunks);
}

static const char *chunk_of(struct ncclComm *comm, int member) {
  return fake_nccl_place(comm, member)->chunk[comm->chunks % 2];
}

/* Reduces `bytes` from `at` of the chunk on into `dst`, in rank order. */
static void reduce_into(const fake_call *call, char *dst, size_t at,
                        size_t bytes) {
  struct ncclComm *comm = call->comm;
  size_t count = bytes / fake_nccl_type_bytes(call->type);
  memcpy(dst, chunk_of(comm, 0) + at, bytes);
  for (int m = 1; m < comm->members_count; m++)
    fake_nccl_combine(call->type, call->reduction.op, dst,
                      chunk_of(comm, m) + at, count);
  fake_nccl_finish(call->type, &call->reduction, dst, count);
}

/* The part of the reduced chunk [at, at + bytes) that is this member's. */
static void scatter_into(const fake_call *call, char *dst, size_t at,
                         size_t bytes) {
  size_t row = call->count * fake_nccl_type_bytes(call->type);
  size_t begin = row * (size_t)call->comm->me, end = begin + row;
  size_t from = at > begin ? at : begin;
  size_t to = at + bytes < end ? at + bytes : end;
  if (from < to) reduce_into(call, dst + (from - begin), from - at, to - from);
}

static void consume(const fake_call *call, char *dst, size_t at, size_t bytes) {
  struct ncclComm *comm = call->comm;
  size_t row = call->count * fake_nccl_type_bytes(call->type);
  switch (call->op) {
    case FAKE_ALL_REDUCE: reduce_into(call, dst + at, 0, bytes); break;
    case FAKE_REDUCE:
      if (comm->me == call->root) reduce_into(call, dst + at, 0, bytes);
      break;
    case FAKE_REDUCE_SCATTER: scatter_into(call, dst, at, bytes); break;
    case FAKE_ALL_GATHER:
      for (int m = 0; m < comm->members_count; m++)
        memcpy(dst + row * (size_t)m + at, chunk_of(comm, m), bytes);
      break;
    default: memcpy(dst + at, chunk_of(comm, call->root), bytes); break;
  }
}

static bool run_collective(const fake_call *call) {
  struct ncclComm *comm = call->comm;
  size_t bytes = call->count * fake_nccl_type_bytes(call->type);
  if (call->op == FAKE_REDUCE_SCATTER) bytes *= (size_t)comm->members_count;
  bool reads = call->op != FAKE_BROADCAST || comm->me == call->root;
  bool writes = call->op != FAKE_REDUCE || comm->me == call->root;
  const char *src = reads ? fake_nccl_open(call->src) : NULL;
  char *dst = writes ? fake_nccl_open(call->dst) : NULL;
  for (size_t at = 0; at < bytes; at += FAKE_NCCL_CHUNK) {
    size_t part = bytes - at < FAKE_NCCL_CHUNK ? bytes - at : FAKE_NCCL_CHUNK;
    if (!exchange(call, src ? src + at : NULL, part)) return false;
    consume(call, dst, at, part);
    taken(comm);
  }
  return true;
}

/* A message: its length in 8 bytes, its bytes, up to a multiple of 8. */
static size_t ring_copy(fake_ring *ring, uint64_t at, void *data, size_t bytes,
                        bool into) {
  char *place = ring->data + at % FAKE_NCCL_RING;
  size_t most = FAKE_NCCL_RING - at % FAKE_NCCL_RING;
  if (bytes > most) bytes = most;
  if (into)
    memcpy(place, data, bytes);
  else
    memcpy(data, place, bytes);
  return bytes;
}

static uint64_t message_end(uint64_t at) {
  return (at + 7) / 8 * 8;
}

/* True: something moved. */
static bool send_some(fake_call *call, char *src, size_t bytes) {
  fake_ring *ring = fake_nccl_ring(call->comm, call->comm->me, call->root);
  uint64_t written = atomic_load(&ring->written);
  size_t room = FAKE_NCCL_RING - (size_t)(written - atomic_load(&ring->read));
  if (room < 8) return false;
  if (!call->begun) {
    uint64_t length = bytes;
    ring_copy(ring, written, &length, 8, true);
    written += 8;
    room -= 8;
    call->begun = true;
  }
  size_t left = bytes - call->moved, part = left < room ? left : room;
  if (part) {
    part = ring_copy(ring, written, src + call->moved, part, true);
    call->moved += part;
    written += part;
  }
  call->done = call->moved == bytes;
  atomic_store(&ring->written, call->done ? message_end(written) : written);
  return true;
}

static bool receive_some(fake_call *call, char *dst, size_t bytes) {
  fake_ring *ring = fake_nccl_ring(call->comm, call->root, call->comm->me);
  uint64_t at = atomic_load(&ring->read);
  size_t there = (size_t)(atomic_load(&ring->written) - at);
  if (!call->begun) {
    uint64_t length = 0;
    if (there < 8) return false;
    ring_copy(ring, at, &length, 8, false);
    if (length != bytes) return false; /* for ever */
    at += 8;
    there -= 8;
    call->begun = true;
  }
  size_t left = bytes - call->moved, part = left < there ? left : there;
  if (part == 0 && left) {
    atomic_store(&ring->read, at);
    return false;
  }
  if (part) part = ring_copy(ring, at, dst + call->moved, part, false);
  call->moved += part;
  call->done = call->moved == bytes;
  at += part;
  atomic_store(&ring->read, call->done ? message_end(at) : at);
  return true;
}

/* Only the first of a peer's in each direction moves: they match in order. */
static bool is_next(const fake_plan *plan, int index) {
  const fake_call *call = &plan->calls[index];
  for (int i = 0; i < index; i++)
    if (plan->calls[i].op == call->op && plan->calls[i].root == call->root &&
        !plan->calls[i].done)
      return false;
  return true;
}

static bool is_p2p(const fake_call *call) {
  return call->op == FAKE_SEND || call->op == FAKE_RECV;
}

static bool move_some(fake_call *call) {
  size_t bytes = call->count * fake_nccl_type_bytes(call->type);
  const void *at = call->op == FAKE_SEND ? call->src : call->dst;
  char *data = bytes ? fake_nccl_open(at) : NULL;
  return call->op == FAKE_SEND ? send_some(call, data, bytes)
                               : receive_some(call, data, bytes);
}

static bool run_p2p(fake_plan *plan) {
  int rounds = 0;
  bool lost = false; /* what it sent before may still be there */
  for (;;) {
    bool all_done = true, moved = false;
    for (int i = 0; i < plan->count; i++) {
      fake_call *call = &plan->calls[i];
      if (!is_p2p(call) || call->done) continue;
      if (is_next(plan, i)) moved |= move_some(call);
      all_done &= call->done;
    }
    if (all_done) return true;
    if (moved) {
      rounds = 0;
    } else if (lost) {
      fake_nccl_give_up(plan->comm);
      return false;
    } else {
      lost = !fake_nccl_idle(plan->comm, &rounds);
    }
  }
}

static bool run_plan(fake_plan *plan) {
  struct ncclComm *comm = plan->comm;
  if (!plan->kept) WAIT(comm, atomic_load(&comm->ticket) == plan->ticket);
  /* Broken or aborted: nothing moves any more. */
  if (atomic_load(&comm->failed) || atomic_load(&comm->abort)) return false;
  if (plan->fails) {
    int none = 0;
    atomic_compare_exchange_strong(&comm->failed, &none, plan->fails);
    return false;
  }
  for (int i = 0; i < plan->count; i++)
    if (!is_p2p(&plan->calls[i]) && !run_collective(&plan->calls[i]))
      return false;
  return run_p2p(plan);
}

void fake_nccl_run(void *arg) {
  fake_plan *plan = arg;
  struct ncclComm *comm = plan->comm;
  /* Of a graph: whoever replays it sees to its order among the others. */
  if (plan->kept) {
    atomic_fetch_add(&comm->running, 1);
    (void)run_plan(plan);
    atomic_fetch_sub(&comm->running, 1);
    return;
  }
  (void)run_plan(plan);
  atomic_store(&comm->ticket, plan->ticket + 1);
  free(plan);
  /* The last that is done with it: abort and destroy wait for this. */
  atomic_fetch_sub(&comm->running, 1);
}
