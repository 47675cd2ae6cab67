/* transport/verbs/library: libibverbs, opened when it is first needed. */
#ifndef GBI_TRANSPORT_VERBS_LIBRARY_H
#define GBI_TRANSPORT_VERBS_LIBRARY_H

#include "base/config.h"
#include "transport/verbs/verbs_abi.h"

/* returns, name, parameters */
#define GBI_IBV_FUNCTIONS(X)                                                   \
  X(struct ibv_device **, ibv_get_device_list, (int *count))                   \
  X(void, ibv_free_device_list, (struct ibv_device * *list))                   \
  X(const char *, ibv_get_device_name, (struct ibv_device * device))           \
  X(struct ibv_context *, ibv_open_device, (struct ibv_device * device))       \
  X(int, ibv_close_device, (struct ibv_context * context))                     \
  X(int, ibv_query_device,                                                     \
    (struct ibv_context * context, struct ibv_device_attr * attr))             \
  X(int, ibv_query_port,                                                       \
    (struct ibv_context * context, uint8_t port, struct ibv_port_attr * attr)) \
  X(int, ibv_query_gid,                                                        \
    (struct ibv_context * context, uint8_t port, int index,                    \
     union ibv_gid *gid))                                                      \
  X(struct ibv_pd *, ibv_alloc_pd, (struct ibv_context * context))             \
  X(int, ibv_dealloc_pd, (struct ibv_pd * pd))                                 \
  X(struct ibv_mr *, ibv_reg_mr,                                               \
    (struct ibv_pd * pd, void *addr, size_t length, int access))               \
  X(int, ibv_dereg_mr, (struct ibv_mr * mr))                                   \
  X(struct ibv_comp_channel *, ibv_create_comp_channel,                        \
    (struct ibv_context * context))                                            \
  X(int, ibv_destroy_comp_channel, (struct ibv_comp_channel * channel))        \
  X(struct ibv_cq *, ibv_create_cq,                                            \
    (struct ibv_context * context, int cqe, void *cq_context,                  \
     struct ibv_comp_channel *channel, int comp_vector))                       \
  X(int, ibv_destroy_cq, (struct ibv_cq * cq))                                 \
  X(int, ibv_get_cq_event,                                                     \
    (struct ibv_comp_channel * channel, struct ibv_cq * *cq,                   \
     void **cq_context))                                                       \
  X(void, ibv_ack_cq_events, (struct ibv_cq * cq, unsigned count))             \
  X(struct ibv_qp *, ibv_create_qp,                                            \
    (struct ibv_pd * pd, struct ibv_qp_init_attr * attr))                      \
  X(int, ibv_destroy_qp, (struct ibv_qp * qp))                                 \
  X(int, ibv_modify_qp,                                                        \
    (struct ibv_qp * qp, struct ibv_qp_attr * attr, int mask))                 \
  X(int, ibv_get_async_event,                                                  \
    (struct ibv_context * context, struct ibv_async_event * event))            \
  X(void, ibv_ack_async_event, (struct ibv_async_event * event))               \
  X(const char *, ibv_wc_status_str, (int status))                             \
  X(const char *, ibv_event_type_str, (int event))

typedef struct gbi_verbs_library {
#define GBI_IBV_POINTER(returns, name, parameters) returns(*name) parameters;
  GBI_IBV_FUNCTIONS(GBI_IBV_POINTER)
#undef GBI_IBV_POINTER
} gbi_verbs_library;

/* NULL with UNSUPPORTED: the file or the symbol that is missing and what
 * installs it. `path`: GPUBRIDGE_VERBS_LIB, "" for the loader's own search. The
 * library stays for the process's life; any thread. */
const gbi_verbs_library *gbi_verbs_library_open(const char *path,
                                                gb_error *error);

#endif
