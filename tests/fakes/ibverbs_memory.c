/* The fake libibverbs: protection domains and memory regions. */
#include "fakes/ibverbs_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
  fake_ib_context *c = fake_ib_of(context);
  if (fake_ib_fails("ibv_alloc_pd")) return NULL;
  fake_ib_pd *pd = calloc(1, sizeof *pd);
  if (!pd) return NULL;
  pd->pd.context = context;
  pthread_mutex_lock(&c->lock);
  c->objects++;
  pthread_mutex_unlock(&c->lock);
  FAKE_IB_LIVE(PDS, 1);
  return &pd->pd;
}

int ibv_dealloc_pd(struct ibv_pd *ibv_pd) {
  fake_ib_pd *pd = (fake_ib_pd *)ibv_pd;
  fake_ib_context *c = fake_ib_of(ibv_pd->context);
  pthread_mutex_lock(&c->lock);
  bool used = pd->uses > 0;
  if (!used) c->objects--;
  pthread_mutex_unlock(&c->lock);
  if (used) return EBUSY;
  free(pd);
  FAKE_IB_LIVE(PDS, -1);
  return 0;
}

/* --- registering
 * -------------------------------------------------------------- */

static bool is_mapped(const char *memory, size_t bytes) {
  const uintptr_t page = 4096;
  uintptr_t begin = (uintptr_t)memory & ~(page - 1);
  uintptr_t end = ((uintptr_t)memory + bytes + page - 1) & ~(page - 1);
  unsigned char states[256];
  while (begin < end) {
    size_t now = end - begin;
    if (now > page * sizeof states) now = page * sizeof states;
    if (mincore((void *)begin, now, states)) return false;
    begin += now;
  }
  return true;
}

static uint64_t memlock(void) {
  const char *text = getenv("FAKE_VERBS_MEMLOCK");
  return text ? strtoull(text, NULL, 10) : 0;
}

static int refusal(fake_ib_context *c, size_t bytes, int access) {
  const int known = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING;
  uint64_t most = memlock();
  if (access & ~known) return EOPNOTSUPP;
  if ((access & IBV_ACCESS_REMOTE_WRITE) && !(access & IBV_ACCESS_LOCAL_WRITE))
    return EINVAL;
  if (!bytes || bytes > c->device->mr_most) return EINVAL;
  if (most &&
      __atomic_load_n(&fake_ib_counts.registered_bytes, __ATOMIC_RELAXED) +
              bytes >
          most)
    return ENOMEM;
  return 0;
}

/* Keys are never used twice soon, so that a stale one is noticed. */
static uint32_t new_key(fake_ib_context *c) {
  static uint32_t last;
  uint32_t key;
  bool taken;
  do {
    key = __atomic_add_fetch(&last, 0x101, __ATOMIC_RELAXED) ^ 0x5a000000;
    taken = false;
    for (fake_ib_mr *m = c->mrs; m; m = m->next)
      taken = taken || m->mr.lkey == key || m->mr.rkey == key;
  } while (taken);
  return key;
}

static struct ibv_mr *add_region(struct ibv_pd *pd, char *memory, size_t bytes,
                                 uint64_t iova, int access, bool mapped) {
  fake_ib_context *c = fake_ib_of(pd->context);
  fake_ib_mr *mr = calloc(1, sizeof *mr);
  if (!mr) return NULL;
  mr->mr.context = pd->context;
  mr->mr.pd = pd;
  mr->mr.addr = mapped ? NULL : memory;
  mr->mr.length = bytes;
  mr->memory = memory;
  mr->iova = iova;
  mr->access = access;
  mr->is_mapped = mapped;
  pthread_mutex_lock(&c->lock);
  mr->mr.lkey = new_key(c);
  mr->mr.rkey = mr->mr.lkey ^ 0x00800000; /* not the same, as on some */
  mr->next = c->mrs;
  c->mrs = mr;
  ((fake_ib_pd *)pd)->uses++;
  pthread_mutex_unlock(&c->lock);
  FAKE_IB_COUNT(registered, 1);
  FAKE_IB_COUNT(registered_now, 1);
  FAKE_IB_COUNT(registered_bytes, bytes);
  FAKE_IB_LIVE(MRS, 1);
  return &mr->mr;
}

static struct ibv_mr *register_host(struct ibv_pd *pd, void *memory,
                                    size_t bytes, uint64_t iova, int access) {
  if (fake_ib_fails("ibv_reg_mr")) return NULL;
  int error = refusal(fake_ib_of(pd->context), bytes, access);
  if (!error && !is_mapped(memory, bytes)) error = EFAULT;
  if (error) {
    errno = error;
    return NULL;
  }
  return add_region(pd, memory, bytes, iova, access, false);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *memory, size_t bytes,
                          int access) {
  return register_host(pd, memory, bytes, (uintptr_t)memory, access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *memory, size_t bytes,
                                uint64_t iova, unsigned access) {
  return register_host(pd, memory, bytes, iova, (int)access);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset,
                                 size_t bytes, uint64_t iova, int fd,
                                 int access) {
  const char *has = getenv("FAKE_VERBS_DMABUF");
  const uint64_t page = 4096;
  if (fake_ib_fails("ibv_reg_dmabuf_mr")) return NULL;
  int error = has && !strcmp(has, "0")
                  ? EOPNOTSUPP
                  : refusal(fake_ib_of(pd->context), bytes, access);
  if (!error && (offset % page) != (iova % page)) error = EINVAL;
  if (error) {
    errno = error;
    return NULL;
  }
  size_t whole = bytes + offset % page;
  char *memory = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                      (off_t)(offset - offset % page));
  if (memory == MAP_FAILED) return NULL;
  struct ibv_mr *mr =
      add_region(pd, memory + offset % page, bytes, iova, access, true);
  if (!mr) munmap(memory, whole);
  return mr;
}

static void violate(fake_ib_context *c, const fake_ib_mr *mr) {
  for (fake_ib_qp *qp = c->qps; qp; qp = qp->next)
    if (qp->in.mr == mr) {
      qp->in.mr = NULL;
      qp->in.violated = true;
    }
}

int ibv_dereg_mr(struct ibv_mr *ibv_mr) {
  fake_ib_mr *mr = (fake_ib_mr *)ibv_mr;
  fake_ib_context *c = fake_ib_of(ibv_mr->context);
  int error = fake_ib_fails("ibv_dereg_mr");
  if (error) return error;
  pthread_mutex_lock(&c->lock);
  if (mr->posted)
    fake_ib_misuse(
        "ibv_dereg_mr of memory %p that %d entries of posted work "
        "use",
        (void *)mr->memory, mr->posted);
  fake_ib_mr **at = &c->mrs;
  while (*at && *at != mr) at = &(*at)->next;
  if (!*at) fake_ib_misuse("ibv_dereg_mr of what is no region");
  *at = mr->next;
  ((fake_ib_pd *)mr->mr.pd)->uses--;
  violate(c, mr);
  pthread_mutex_unlock(&c->lock);
  FAKE_IB_COUNT(registered_now, -1);
  FAKE_IB_COUNT(registered_bytes, -mr->mr.length);
  FAKE_IB_LIVE(MRS, -1);
  if (mr->is_mapped) {
    size_t before = (uintptr_t)mr->memory % 4096;
    munmap(mr->memory - before, mr->mr.length + before);
  }
  free(mr);
  return 0;
}

/* --- using
 * -------------------------------------------------------------------- */

static fake_ib_mr *in_region(fake_ib_mr *mr, const struct ibv_pd *pd,
                             uint64_t address, uint64_t bytes) {
  if (mr->mr.pd != pd || address < mr->iova || bytes > mr->mr.length ||
      address - mr->iova > mr->mr.length - bytes)
    return NULL;
  return mr;
}

fake_ib_mr *fake_ib_local(fake_ib_qp *qp, const struct ibv_sge *sge,
                          bool written) {
  for (fake_ib_mr *m = fake_ib_of(qp->qp.context)->mrs; m; m = m->next)
    if (m->mr.lkey == sge->lkey) {
      if (written && !(m->access & IBV_ACCESS_LOCAL_WRITE)) return NULL;
      return in_region(m, qp->qp.pd, sge->addr, sge->length);
    }
  return NULL;
}

fake_ib_mr *fake_ib_remote(fake_ib_qp *qp, uint32_t rkey, uint64_t address,
                           uint64_t bytes, int access) {
  if (!((int)qp->attr.qp_access_flags & access)) return NULL;
  for (fake_ib_mr *m = fake_ib_of(qp->qp.context)->mrs; m; m = m->next)
    if (m->mr.rkey == rkey) {
      if (!(m->access & access)) return NULL;
      return in_region(m, qp->qp.pd, address, bytes);
    }
  return NULL;
}

int fake_ib_gather(fake_ib_qp *qp, const fake_ib_work *work, uint64_t at,
                   uint64_t most, bool written, struct iovec *into) {
  int count = 0;
  if (work->flags & IBV_SEND_INLINE) {
    into[0].iov_base = work->inlined + at;
    into[0].iov_len =
        (size_t)(work->bytes - at < most ? work->bytes - at : most);
    return 1;
  }
  for (int i = 0; i < work->sges_count && most; i++) {
    const struct ibv_sge *sge = &work->sges[i];
    if (at >= sge->length) {
      at -= sge->length;
      continue;
    }
    fake_ib_mr *mr = fake_ib_local(qp, sge, written);
    if (!mr) return -1;
    uint64_t bytes = sge->length - at < most ? sge->length - at : most;
    into[count].iov_base = mr->memory + (sge->addr - mr->iova) + at;
    into[count++].iov_len = (size_t)bytes;
    most -= bytes;
    at = 0;
  }
  return count;
}

/* The first and last bytes of each entry are enough. */
enum { SUMMED = 1024 };
static uint64_t add_sum(uint64_t sum, const unsigned char *from, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    sum = (sum ^ from[i]) * UINT64_C(0x100000001b3);
  return sum;
}

uint64_t fake_ib_sum(fake_ib_qp *qp, const fake_ib_work *work) {
  struct iovec parts[FAKE_IB_SGES_MOST];
  uint64_t sum = UINT64_C(0xcbf29ce484222325);
  int count = fake_ib_gather(qp, work, 0, work->bytes, false, parts);
  for (int i = 0; i < count; i++) {
    const unsigned char *from = parts[i].iov_base;
    size_t bytes = parts[i].iov_len;
    size_t some = bytes < SUMMED ? bytes : SUMMED;
    sum = add_sum(sum, from, some);
    sum = add_sum(sum, from + bytes - some, some);
  }
  return sum;
}

void fake_ib_use(fake_ib_qp *qp, const fake_ib_work *work, int more) {
  if (work->flags & IBV_SEND_INLINE) return;
  for (int i = 0; i < work->sges_count; i++)
    for (fake_ib_mr *m = fake_ib_of(qp->qp.context)->mrs; m; m = m->next)
      if (m->mr.lkey == work->sges[i].lkey) m->posted += more;
}
