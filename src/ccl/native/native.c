/* A communicator's life: open, check, abort, close.
 *
 * The library is called non-blocking (blocking = 0): what would wait for a peer
 * says "in progress" and goes on in a thread of the library's, and we ask how
 * it stands. So opening can be ended by a deadline or by another thread, and a
 * first use, when newer releases make their connections, by abort. */
#include "ccl/native/state.h"

#include "base/memory.h"
#include "os/yield.h"

#include <stdio.h>
#include <time.h>

/* How long abort waits for a thread that is in a call of the library. Longer
 * means that it is stuck there, as on a full launch queue, and that only the
 * abort can end it. */
#define INSIDE_MOST_MS 1000

static void pause_a_little(gbi_yields *yields, long *sleep_ns) {
  static gbi_crowd crowd;
  if (gbi_yield_core(&crowd, yields)) return;
  struct timespec time = {0, *sleep_ns};
  nanosleep(&time, NULL);
  *sleep_ns = GBI_MIN(*sleep_ns * 2, 2000000L);
}

static void describe(const gbi_native *native, const char *what, char *text,
                     size_t bytes) {
  const gbi_device *device = native->device;
  snprintf(text, bytes, "%s as member %d of %d on %s device %d (%s)", what,
           native->me, native->members_count,
           gbi_vendor_name(device->ops->vendor), device->index,
           device->facts.arch[0] ? device->facts.arch : device->facts.name);
}

gb_status gbi_native_fail(const gbi_native *native, ncclResult_t result,
                          const char *what, gb_error *error) {
  char text[256];
  describe(native, what, text, sizeof text);
  return gbi_nccl_fail(native->nccl, result, text, error);
}

gb_status gbi_native_fail_aborted(const gbi_native *native, const char *what,
                                  gb_error *error) {
  char text[256];
  describe(native, what, text, sizeof text);
  return gbi_fail(error, GB_ERR_ABORTED, "%s %s: it was aborted",
                  native->nccl->name, text);
}

static gb_status fail_late(const gbi_native *native, const char *what,
                           gb_error *error) {
  char text[256];
  describe(native, what, text, sizeof text);
  return gbi_fail(error, GB_ERR_TIMEOUT,
                  "%s %s %s in time: not all members were there. The logs of "
                  "the other ranks of this island tell which one is late; "
                  "NCCL_DEBUG=INFO shows which network the library uses",
                  native->nccl->name, native->nccl->version_text, text);
}

bool gbi_native_enter(gbi_native *native, ncclComm_t *comm_p) {
  if (atomic_load(&native->aborted)) return false;
  pthread_mutex_lock(&native->inside);
  *comm_p = atomic_load(&native->comm);
  if (*comm_p) return true;
  pthread_mutex_unlock(&native->inside);
  return false;
}

void gbi_native_leave(gbi_native *native) {
  pthread_mutex_unlock(&native->inside);
}

/* How the communicator stands now. */
static gb_status look(gbi_native *native, const char *what,
                      ncclResult_t *state_p, gb_error *error) {
  ncclComm_t comm = NULL;
  if (!gbi_native_enter(native, &comm))
    return gbi_native_fail_aborted(native, what, error);
  *state_p = ncclSuccess;
  ncclResult_t result = native->nccl->ncclCommGetAsyncError(comm, state_p);
  gbi_native_leave(native);
  if (result != ncclSuccess) *state_p = result;
  if (*state_p == ncclSuccess || *state_p == ncclInProgress) return GB_OK;
  atomic_store(&native->failed, (int)*state_p);
  return gbi_native_fail(native, *state_p, what, error);
}

gb_status gbi_native_settle(gbi_native *native, const char *what,
                            uint64_t deadline_ns, const _Atomic bool *aborted,
                            gb_error *error) {
  gbi_yields yields = {0};
  long sleep_ns = 50000;
  for (;;) {
    ncclResult_t state = ncclSuccess;
    GBI_TRY(look(native, what, &state, error));
    if (state == ncclSuccess) return GB_OK;
    if (aborted && atomic_load(aborted))
      return gbi_native_fail_aborted(native, what, error);
    if (gbi_deadline_passed(deadline_ns)) return fail_late(native, what, error);
    pause_a_little(&yields, &sleep_ns);
  }
}

gb_status gbi_native_check(gbi_native *native, gb_error *error) {
  static const char what[] = "failed";
  int failed = atomic_load(&native->failed);
  if (atomic_load(&native->aborted))
    return gbi_native_fail_aborted(native, what, error);
  if (failed) return gbi_native_fail(native, (ncclResult_t)failed, what, error);
  /* Another thread is in a call or aborts: it will tell, or the next check. */
  if (pthread_mutex_trylock(&native->inside) != 0) return GB_OK;
  ncclComm_t comm = atomic_load(&native->comm);
  ncclResult_t state = ncclSuccess, result = ncclSuccess;
  if (comm) result = native->nccl->ncclCommGetAsyncError(comm, &state);
  pthread_mutex_unlock(&native->inside);
  if (!comm) return gbi_native_fail_aborted(native, what, error);
  if (result != ncclSuccess) state = result;
  if (state == ncclSuccess || state == ncclInProgress) return GB_OK;
  atomic_store(&native->failed, (int)state);
  return gbi_native_fail(native, state, what, error);
}

void gbi_native_captured(gbi_native *native) {
  atomic_store(&native->captured, true);
}

typedef struct ending {
  ncclResult_t (*end)(ncclComm_t comm);
  ncclComm_t comm;
} ending;

static void *run_ending(void *arg) {
  ending e = *(ending *)arg;
  free(arg);
  (void)e.end(e.comm);
  return NULL;
}

/* Here, or where graphs hold its kernels on a thread of its own. What cannot be
 * ended so is left: a process that waits for ever is worse. */
static void end_comm(const gbi_native *native,
                     ncclResult_t (*end)(ncclComm_t comm), ncclComm_t comm) {
  if (!atomic_load(&native->captured)) {
    (void)end(comm);
    return;
  }
  pthread_t thread;
  ending *e = gbi_malloc(sizeof *e);
  if (e) *e = (ending){end, comm};
  if (e && pthread_create(&thread, NULL, run_ending, e) == 0)
    pthread_detach(thread);
  else
    free(e);
}

void gbi_native_abort(gbi_native *native) {
  atomic_store(&native->aborted, true);
  uint64_t deadline_ns = gbi_deadline_after_ms(INSIDE_MOST_MS);
  gbi_yields yields = {0};
  long sleep_ns = 50000;
  bool held;
  while (!(held = pthread_mutex_trylock(&native->inside) == 0) &&
         !gbi_deadline_passed(deadline_ns))
    pause_a_little(&yields, &sleep_ns);
  ncclComm_t comm = atomic_exchange(&native->comm, NULL);
  if (held) pthread_mutex_unlock(&native->inside);
  /* Outside: it waits for the communicator's kernels to end. */
  if (comm) end_comm(native, native->nccl->ncclCommAbort, comm);
}

static void free_native(gbi_native *native) {
  pthread_mutex_destroy(&native->inside);
  free(native->calls);
  free(native);
}

/* Starts opening; the communicator may still be in progress. */
static gb_status begin_open(gbi_native *native,
                            const uint8_t id[GBI_NATIVE_ID_BYTES],
                            const char *what, gb_error *error) {
  gbi_native_current current = {0};
  GBI_TRY(
      gbi_native_current_enter(native->device, native->nccl, &current, error));
  ncclUniqueId unique;
  memcpy(&unique, id, sizeof unique);
  ncclConfig_t config = GBI_NCCL_CONFIG_INIT(0);
  ncclComm_t comm = NULL;
  ncclResult_t result = native->nccl->ncclCommInitRankConfig(
      &comm, native->members_count, unique, native->me, &config);
  gbi_native_current_leave(native->device, &current);
  atomic_store(&native->comm, comm);
  if (comm && (result == ncclSuccess || result == ncclInProgress)) return GB_OK;
  return gbi_native_fail(native, result, what, error);
}

gb_status gbi_native_open(gbi_device *device,
                          const uint8_t id[GBI_NATIVE_ID_BYTES],
                          int members_count, int me, uint64_t deadline_ns,
                          const _Atomic bool *aborted, gbi_native **native_p,
                          gb_error *error) {
  static const char what[] = "could not open a communicator";
  *native_p = NULL;
  const gbi_nccl *nccl = NULL;
  GBI_TRY(gbi_nccl_load(device->ops->vendor, &nccl, error));
  gbi_native *native = gbi_calloc(1, sizeof *native);
  if (!native)
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for a communicator");
  native->nccl = nccl;
  native->device = device;
  native->members_count = members_count;
  native->me = me;
  uint64_t now_ns = gbi_now_ns();
  native->patience_ns = deadline_ns == GBI_NEVER ? GBI_NEVER
                        : deadline_ns > now_ns   ? deadline_ns - now_ns
                                                 : 0;
  pthread_mutex_init(&native->inside, NULL);
  gb_status status = begin_open(native, id, what, error);
  if (status == GB_OK)
    status = gbi_native_settle(native, what, deadline_ns, aborted, error);
  if (status == GB_OK) {
    *native_p = native;
    return GB_OK;
  }
  gbi_native_abort(native);
  free_native(native);
  return status;
}

/* True: all is done and the communicator can be destroyed without waiting. */
static bool finalize(gbi_native *native, uint64_t deadline_ns) {
  static const char what[] = "could not close a communicator";
  ncclComm_t comm = NULL;
  if (atomic_load(&native->failed) || !gbi_native_enter(native, &comm))
    return false;
  gbi_native_operations_free(native, comm);
  ncclResult_t result = native->nccl->ncclCommFinalize(comm);
  gbi_native_leave(native);
  if (result != ncclSuccess && result != ncclInProgress) return false;
  return gbi_native_settle(native, what, deadline_ns, NULL, NULL) == GB_OK;
}

void gbi_native_close(gbi_native *native, uint64_t deadline_ns) {
  if (!native) return;
  if (finalize(native, deadline_ns)) {
    ncclComm_t comm = atomic_exchange(&native->comm, NULL);
    end_comm(native, native->nccl->ncclCommDestroy, comm);
  } else {
    gbi_native_abort(native);
  }
  free_native(native);
}
