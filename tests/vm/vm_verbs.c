/* tests/fakes/fakes_verbs_test.c without the fake, for the virtual machine: the
 * same cases over the real libibverbs and a kernel's adapter, so that what the
 * fake does is known to be what a kernel does.
 *
 * Bound at run time: a program that is linked without the library's symbol
 * versions gets the functions of 2008, whose structures are others. */
#include "fakes/ibverbs_fake.h"
#include "fakes/ibverbs_names.h"
#include "harness/gb_test.h"

#include <dlfcn.h>

static void *named(const char *name) {
  static void *library;
  if (!library) library = dlopen("libibverbs.so.1", RTLD_NOW);
  void *function = library ? dlsym(library, name) : NULL;
  if (!function) gb_test_fail(__FILE__, __LINE__, "no %s: %s", name, dlerror());
  return function;
}

/* Defines a function that calls the library's of the same name. */
#define FORWARD(returns, name, parameters, arguments) \
  returns name parameters {                           \
    returns(*function) parameters;                    \
    *(void **)&function = named(#name);               \
    return function arguments;                        \
  }
#define FORWARD_VOID(name, parameters, arguments) \
  void name parameters {                          \
    void(*function) parameters;                   \
    *(void **)&function = named(#name);           \
    function arguments;                           \
  }

FORWARD(struct ibv_device **, ibv_get_device_list, (int *count), (count))
FORWARD_VOID(ibv_free_device_list, (struct ibv_device * *list), (list))
FORWARD(const char *, ibv_get_device_name, (struct ibv_device * device),
        (device))
FORWARD(struct ibv_context *, ibv_open_device, (struct ibv_device * device),
        (device))
FORWARD(int, ibv_close_device, (struct ibv_context * c), (c))
FORWARD(int, ibv_query_port,
        (struct ibv_context * c, uint8_t port, struct ibv_port_attr *attr),
        (c, port, attr))
FORWARD(int, ibv_query_gid,
        (struct ibv_context * c, uint8_t port, int i, union ibv_gid *gid),
        (c, port, i, gid))
FORWARD(struct ibv_pd *, ibv_alloc_pd, (struct ibv_context * c), (c))
FORWARD(int, ibv_dealloc_pd, (struct ibv_pd * pd), (pd))
FORWARD(struct ibv_mr *, ibv_reg_mr,
        (struct ibv_pd * pd, void *memory, size_t bytes, int access),
        (pd, memory, bytes, access))
FORWARD(struct ibv_mr *, ibv_reg_dmabuf_mr,
        (struct ibv_pd * pd, uint64_t offset, size_t bytes, uint64_t iova,
         int fd, int access),
        (pd, offset, bytes, iova, fd, access))
FORWARD(int, ibv_dereg_mr, (struct ibv_mr * mr), (mr))
FORWARD(struct ibv_comp_channel *, ibv_create_comp_channel,
        (struct ibv_context * c), (c))
FORWARD(int, ibv_destroy_comp_channel, (struct ibv_comp_channel * channel),
        (channel))
FORWARD(struct ibv_cq *, ibv_create_cq,
        (struct ibv_context * c, int cqe, void *mine,
         struct ibv_comp_channel *channel, int vector),
        (c, cqe, mine, channel, vector))
FORWARD(int, ibv_destroy_cq, (struct ibv_cq * cq), (cq))
FORWARD(int, ibv_get_cq_event,
        (struct ibv_comp_channel * channel, struct ibv_cq **cq, void **mine),
        (channel, cq, mine))
FORWARD_VOID(ibv_ack_cq_events, (struct ibv_cq * cq, unsigned n), (cq, n))
FORWARD(struct ibv_qp *, ibv_create_qp,
        (struct ibv_pd * pd, struct ibv_qp_init_attr *attr), (pd, attr))
FORWARD(int, ibv_modify_qp,
        (struct ibv_qp * qp, struct ibv_qp_attr *attr, int mask),
        (qp, attr, mask))
FORWARD(int, ibv_destroy_qp, (struct ibv_qp * qp), (qp))
FORWARD(int, ibv_get_async_event,
        (struct ibv_context * c, struct ibv_async_event *event), (c, event))
FORWARD_VOID(ibv_ack_async_event, (struct ibv_async_event * event), (event))

/* A kernel does not count for us. */
void fake_verbs_count(fake_verbs_counts *counts) {
  memset(counts, 0, sizeof *counts);
}
