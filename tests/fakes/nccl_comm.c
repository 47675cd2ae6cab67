/* How the members of a fake communicator meet, and whether they live. */
#include "fakes/nccl.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* The file: meeting, places, rings [from][to]. */
static size_t places_at(void) {
  return 4096;
}

static size_t rings_at(int members_count) {
  return places_at() + sizeof(fake_place) * (size_t)members_count;
}

fake_place *fake_nccl_place(const struct ncclComm *comm, int member) {
  return (fake_place *)((char *)comm->meeting + places_at()) + member;
}

fake_ring *fake_nccl_ring(const struct ncclComm *comm, int from, int to) {
  char *rings = (char *)comm->meeting + rings_at(comm->members_count);
  return (fake_ring *)rings + (size_t)from * (size_t)comm->members_count + to;
}

static uint64_t gpu_hash(int device) {
  const char *uuid = getenv("FAKE_GPU_UUID"), *slice = getenv("FAKE_GPU_MIG");
  if (slice && slice[0]) uuid = slice;
  if (!uuid || !uuid[0]) return 0;
  uint64_t hash = UINT64_C(1469598103934665603) + (uint64_t)device;
  for (; *uuid; uuid++) hash = (hash ^ (uint8_t)*uuid) * 1099511628211U;
  return hash | 1;
}

/* A zombie has died too: its parent has not looked yet. */
static bool is_alive(int pid) {
  char path[64], line[512];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return errno != ENOENT;
  ssize_t got = read(file, line, sizeof line - 1);
  close(file);
  if (got <= 0) return false;
  line[got] = 0;
  const char *end = strrchr(line, ')');
  return !end || (end[2] != 'Z' && end[2] != 'X');
}

static int lost_member(const struct ncclComm *comm) {
  for (int m = 0; m < comm->members_count; m++) {
    fake_place *place = fake_nccl_place(comm, m);
    int state = atomic_load(&place->state);
    if (state == FAKE_GONE) return m;
    if (state == FAKE_HERE && m != comm->me &&
        !is_alive(atomic_load(&place->pid)))
      return m;
  }
  return -1;
}

bool fake_nccl_idle(struct ncclComm *comm, int *rounds) {
  if (atomic_load(&comm->abort)) return false;
  if (++*rounds < 20) {
    sched_yield();
    return true;
  }
  struct timespec time = {0, *rounds < 200 ? 50000 : 500000};
  nanosleep(&time, NULL);
  if (*rounds % 20) return true;
  int lost = lost_member(comm);
  if (lost < 0) return true;
  fake_nccl_say("member %d waits for member %d, which is gone", comm->me, lost);
  return false;
}

ncclResult_t fake_nccl_give_up(struct ncclComm *comm) {
  int none = 0;
  if (!atomic_load(&comm->abort))
    atomic_compare_exchange_strong(&comm->failed, &none, ncclRemoteError);
  int failed = atomic_load(&comm->failed);
  return failed ? (ncclResult_t)failed : ncclInternalError;
}

/* The id's first bytes are random: they name the file. */
static void name_file(struct ncclComm *comm, const ncclUniqueId *id) {
  for (int i = 0; i < 16; i++)
    snprintf(comm->id + 2 * i, 3, "%02x", (uint8_t)id->internal[i]);
  const char *folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
  snprintf(comm->file, sizeof comm->file, "%s/fake-nccl-%s", folder, comm->id);
}

static ncclResult_t map_file(struct ncclComm *comm) {
  int n = comm->members_count;
  comm->bytes = rings_at(n) + sizeof(fake_ring) * (size_t)n * (size_t)n;
  int file = open(comm->file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, (off_t)comm->bytes) != 0) {
    fake_nccl_say("%s: %s", comm->file, strerror(errno));
    if (file >= 0) close(file);
    return ncclSystemError;
  }
  void *map =
      mmap(NULL, comm->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (map == MAP_FAILED) return ncclSystemError;
  comm->meeting = map;
  return ncclSuccess;
}

static ncclResult_t take_place(struct ncclComm *comm) {
  int count = 0;
  if (!atomic_compare_exchange_strong(&comm->meeting->members_count, &count,
                                      comm->members_count) &&
      count != comm->members_count) {
    fake_nccl_say("Bootstrap Root : mismatch in rank count from procs %d : %d",
                  count, comm->members_count);
    return ncclInvalidUsage;
  }
  fake_place *place = fake_nccl_place(comm, comm->me);
  int state = FAKE_ABSENT;
  if (!atomic_compare_exchange_strong(&place->state, &state, FAKE_COMING)) {
    fake_nccl_say("Bootstrap Root : rank %d of %d ranks has already checked in",
                  comm->me, comm->members_count);
    return ncclInvalidUsage;
  }
  atomic_store(&place->pid, (int)getpid());
  atomic_store(&place->gpu, gpu_hash(comm->device));
  atomic_store(&place->state, FAKE_HERE);
  comm->is_member = true;
  atomic_fetch_add(&comm->meeting->here, 1);
  return ncclSuccess;
}

ncclResult_t fake_nccl_join(struct ncclComm *comm, const ncclUniqueId *id) {
  name_file(comm, id);
  ncclResult_t result = map_file(comm);
  return result == ncclSuccess ? take_place(comm) : result;
}

static ncclResult_t check_gpus(struct ncclComm *comm) {
  uint64_t mine = atomic_load(&fake_nccl_place(comm, comm->me)->gpu);
  for (int m = 0; m < comm->members_count; m++) {
    if (mine == 0 || m == comm->me ||
        atomic_load(&fake_nccl_place(comm, m)->gpu) != mine)
      continue;
    fake_nccl_say(
        "Duplicate GPU detected : rank %d and rank %d both on device %d",
        comm->me, m, comm->device);
    return ncclInvalidUsage;
  }
  return ncclSuccess;
}

ncclResult_t fake_nccl_meet(struct ncclComm *comm) {
  int rounds = 0;
  FAKE_NCCL_WAIT(comm, rounds,
                 atomic_load(&comm->meeting->here) == comm->members_count,
                 return fake_nccl_give_up(comm));
  if (!atomic_exchange(&comm->unlinked, true) && comm->me == 0)
    unlink(comm->file);
  return check_gpus(comm);
}

/* Which members a plan talks to for the first time. */
static bool first_use(const struct ncclComm *comm, const fake_plan *plan,
                      bool needed[FAKE_KINDS][FAKE_NCCL_MEMBERS_MOST]) {
  bool any = false;
  for (int i = 0; i < plan->count; i++) {
    const fake_call *call = &plan->calls[i];
    bool p2p = call->op == FAKE_SEND || call->op == FAKE_RECV;
    int kind = p2p ? FAKE_P2P : FAKE_COLLECTIVE;
    for (int m = 0; m < comm->members_count; m++) {
      if (m == comm->me || (p2p && m != call->root)) continue;
      if (comm->connected[kind][m]) continue;
      needed[kind][m] = any = true;
    }
  }
  return any;
}

bool fake_nccl_needs_connecting(struct ncclComm *comm, const fake_plan *plan) {
  bool needed[FAKE_KINDS][FAKE_NCCL_MEMBERS_MOST] = {{false}};
  if (fake_nccl_version() < 22200)
    memset(comm->connected[FAKE_COLLECTIVE], 1,
           sizeof comm->connected[FAKE_COLLECTIVE]);
  return first_use(comm, plan, needed);
}

ncclResult_t fake_nccl_connect(struct ncclComm *comm, const fake_plan *plan) {
  bool needed[FAKE_KINDS][FAKE_NCCL_MEMBERS_MOST] = {{false}};
  first_use(comm, plan, needed);
  fake_place *mine = fake_nccl_place(comm, comm->me);
  for (int k = 0; k < FAKE_KINDS; k++)
    for (int m = 0; m < comm->members_count; m++)
      if (needed[k][m]) atomic_store(&mine->wants[k][m], 1);
  int rounds = 0;
  for (int k = 0; k < FAKE_KINDS; k++)
    for (int m = 0; m < comm->members_count; m++) {
      if (!needed[k][m]) continue;
      fake_place *place = fake_nccl_place(comm, m);
      FAKE_NCCL_WAIT(comm, rounds, atomic_load(&place->wants[k][comm->me]),
                     return fake_nccl_give_up(comm));
      comm->connected[k][m] = true;
    }
  return ncclSuccess;
}

void fake_nccl_leave(struct ncclComm *comm, int state) {
  if (!comm->meeting) return;
  if (comm->is_member) {
    if (!atomic_exchange(&comm->unlinked, true)) unlink(comm->file);
    atomic_store(&fake_nccl_place(comm, comm->me)->state, state);
  }
  munmap(comm->meeting, comm->bytes);
  comm->meeting = NULL;
}
