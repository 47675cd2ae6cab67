/* The part of libibverbs' ABI that the fake has, declared here: it is built
 * where no header of rdma-core is. Written down apart from the transport's own
 * declarations, so that a mistake in either shows; fakes_verbs_layout.c holds
 * it against the installed header. */
#ifndef FAKES_IBVERBS_NAMES_H
#define FAKES_IBVERBS_NAMES_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

enum { IBV_NODE_CA = 1 };
enum { IBV_TRANSPORT_IB = 0 };
enum { IBV_LINK_LAYER_INFINIBAND = 1, IBV_LINK_LAYER_ETHERNET = 2 };
enum ibv_port_state {
  IBV_PORT_NOP,
  IBV_PORT_DOWN,
  IBV_PORT_INIT,
  IBV_PORT_ARMED,
  IBV_PORT_ACTIVE
};
enum ibv_mtu {
  IBV_MTU_256 = 1,
  IBV_MTU_512,
  IBV_MTU_1024,
  IBV_MTU_2048,
  IBV_MTU_4096
};
enum ibv_event_type {
  IBV_EVENT_CQ_ERR,
  IBV_EVENT_QP_FATAL,
  IBV_EVENT_QP_REQ_ERR,
  IBV_EVENT_QP_ACCESS_ERR,
  IBV_EVENT_DEVICE_FATAL = 8,
  IBV_EVENT_PORT_ACTIVE,
  IBV_EVENT_PORT_ERR
};
enum ibv_wc_status {
  IBV_WC_SUCCESS,
  IBV_WC_LOC_LEN_ERR,
  IBV_WC_LOC_PROT_ERR = 4,
  IBV_WC_WR_FLUSH_ERR,
  IBV_WC_REM_INV_REQ_ERR = 9,
  IBV_WC_REM_ACCESS_ERR,
  IBV_WC_REM_OP_ERR,
  IBV_WC_RETRY_EXC_ERR,
  IBV_WC_RNR_RETRY_EXC_ERR
};
enum ibv_wc_opcode {
  IBV_WC_SEND,
  IBV_WC_RDMA_WRITE,
  IBV_WC_RDMA_READ,
  IBV_WC_RECV = 128,
  IBV_WC_RECV_RDMA_WITH_IMM
};
enum { IBV_WC_WITH_IMM = 2 };
enum {
  IBV_ACCESS_LOCAL_WRITE = 1,
  IBV_ACCESS_REMOTE_WRITE = 2,
  IBV_ACCESS_REMOTE_READ = 4,
  IBV_ACCESS_RELAXED_ORDERING = 1 << 20
};
enum ibv_qp_type { IBV_QPT_RC = 2 };
enum ibv_qp_state {
  IBV_QPS_RESET,
  IBV_QPS_INIT,
  IBV_QPS_RTR,
  IBV_QPS_RTS,
  IBV_QPS_ERR = 6
};
enum {
  IBV_QP_STATE = 1 << 0,
  IBV_QP_CUR_STATE = 1 << 1,
  IBV_QP_ACCESS_FLAGS = 1 << 3,
  IBV_QP_PKEY_INDEX = 1 << 4,
  IBV_QP_PORT = 1 << 5,
  IBV_QP_AV = 1 << 7,
  IBV_QP_PATH_MTU = 1 << 8,
  IBV_QP_TIMEOUT = 1 << 9,
  IBV_QP_RETRY_CNT = 1 << 10,
  IBV_QP_RNR_RETRY = 1 << 11,
  IBV_QP_RQ_PSN = 1 << 12,
  IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
  IBV_QP_MIN_RNR_TIMER = 1 << 15,
  IBV_QP_SQ_PSN = 1 << 16,
  IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
  IBV_QP_DEST_QPN = 1 << 20
};
enum ibv_wr_opcode {
  IBV_WR_RDMA_WRITE,
  IBV_WR_RDMA_WRITE_WITH_IMM,
  IBV_WR_SEND,
  IBV_WR_SEND_WITH_IMM,
  IBV_WR_RDMA_READ
};
enum { IBV_SEND_SIGNALED = 2, IBV_SEND_SOLICITED = 4, IBV_SEND_INLINE = 8 };

union ibv_gid {
  uint8_t raw[16];
  uint64_t words[2]; /* of the alignment */
};

struct ibv_device {
  void *ops[2];
  int node_type;
  int transport_type;
  char name[64];
  char dev_name[64];
  char dev_path[256];
  char ibdev_path[256];
};

struct ibv_cq;
struct ibv_qp;
struct ibv_wc;
struct ibv_send_wr;
struct ibv_recv_wr;

/* A table of 32 functions, of which programs call these four. */
struct ibv_context_ops {
  void *before_poll[11];
  int (*poll_cq)(struct ibv_cq *cq, int most, struct ibv_wc *wcs);
  int (*req_notify_cq)(struct ibv_cq *cq, int solicited_only);
  void *before_send[12];
  int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr,
                   struct ibv_send_wr **bad);
  int (*post_recv)(struct ibv_qp *qp, struct ibv_recv_wr *wr,
                   struct ibv_recv_wr **bad);
  void *after[5];
};

struct ibv_context {
  struct ibv_device *device;
  struct ibv_context_ops ops;
  int cmd_fd;
  int async_fd;
  int num_comp_vectors;
  pthread_mutex_t mutex;
  void *abi_compat;
};

struct ibv_device_attr {
  char fw_ver[64];
  uint64_t node_guid, sys_image_guid;
  uint64_t max_mr_size, page_size_cap;
  uint32_t vendor_id, vendor_part_id, hw_ver;
  int max_qp, max_qp_wr;
  unsigned device_cap_flags;
  int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd;
  int max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom;
  int max_qp_init_rd_atom, max_ee_init_rd_atom;
  int atomic_cap;
  int max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp;
  int max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach;
  int max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge;
  uint16_t max_pkeys;
  uint8_t local_ca_ack_delay, phys_port_cnt;
};

struct ibv_port_attr {
  enum ibv_port_state state;
  enum ibv_mtu max_mtu, active_mtu;
  int gid_tbl_len;
  uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
  uint16_t pkey_tbl_len, lid, sm_lid;
  uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply;
  uint8_t active_width, active_speed, phys_state, link_layer, flags;
  uint16_t port_cap_flags2;
};
/* A caller built against an older header has no room for more. */
enum { IBV_PORT_ATTR_ALWAYS = 48 };

struct ibv_async_event {
  union {
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    int port_num;
  } element;
  enum ibv_event_type event_type;
};

struct ibv_pd {
  struct ibv_context *context;
  uint32_t handle;
};

struct ibv_mr {
  struct ibv_context *context;
  struct ibv_pd *pd;
  void *addr;
  size_t length;
  uint32_t handle, lkey, rkey;
};

struct ibv_comp_channel {
  struct ibv_context *context;
  int fd;
  int refcnt;
};

struct ibv_cq {
  struct ibv_context *context;
  struct ibv_comp_channel *channel;
  void *cq_context;
  uint32_t handle;
  int cqe;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  uint32_t comp_events_completed, async_events_completed;
};

struct ibv_wc {
  uint64_t wr_id;
  enum ibv_wc_status status;
  enum ibv_wc_opcode opcode;
  uint32_t vendor_err, byte_len, imm_data, qp_num, src_qp;
  unsigned wc_flags;
  uint16_t pkey_index, slid;
  uint8_t sl, dlid_path_bits;
};

struct ibv_qp_cap {
  uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge;
  uint32_t max_inline_data;
};

struct ibv_qp_init_attr {
  void *qp_context;
  struct ibv_cq *send_cq, *recv_cq;
  void *srq;
  struct ibv_qp_cap cap;
  enum ibv_qp_type qp_type;
  int sq_sig_all;
};

struct ibv_global_route {
  union ibv_gid dgid;
  uint32_t flow_label;
  uint8_t sgid_index, hop_limit, traffic_class;
};

struct ibv_ah_attr {
  struct ibv_global_route grh;
  uint16_t dlid;
  uint8_t sl, src_path_bits, static_rate, is_global, port_num;
};

struct ibv_qp_attr {
  enum ibv_qp_state qp_state, cur_qp_state;
  enum ibv_mtu path_mtu;
  int path_mig_state;
  uint32_t qkey, rq_psn, sq_psn, dest_qp_num;
  unsigned qp_access_flags;
  struct ibv_qp_cap cap;
  struct ibv_ah_attr ah_attr, alt_ah_attr;
  uint16_t pkey_index, alt_pkey_index;
  uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic;
  uint8_t max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt;
  uint8_t rnr_retry, alt_port_num, alt_timeout;
  uint32_t rate_limit;
};

struct ibv_qp {
  struct ibv_context *context;
  void *qp_context;
  struct ibv_pd *pd;
  struct ibv_cq *send_cq, *recv_cq;
  void *srq;
  uint32_t handle, qp_num;
  enum ibv_qp_state state;
  enum ibv_qp_type qp_type;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  uint32_t events_completed;
};

struct ibv_sge {
  uint64_t addr;
  uint32_t length, lkey;
};

struct ibv_send_wr {
  uint64_t wr_id;
  struct ibv_send_wr *next;
  struct ibv_sge *sg_list;
  int num_sge;
  enum ibv_wr_opcode opcode;
  unsigned send_flags;
  uint32_t imm_data;
  union {
    struct {
      uint64_t remote_addr;
      uint32_t rkey;
    } rdma;
    uint64_t others[4];
  } wr;
  uint32_t xrc;
  uint64_t more[6]; /* of memory windows and segmentation */
};

struct ibv_recv_wr {
  uint64_t wr_id;
  struct ibv_recv_wr *next;
  struct ibv_sge *sg_list;
  int num_sge;
};

/* What the library exports. */
#pragma GCC visibility push(default)
struct ibv_device **ibv_get_device_list(int *count);
void ibv_free_device_list(struct ibv_device **list);
const char *ibv_get_device_name(struct ibv_device *device);
struct ibv_context *ibv_open_device(struct ibv_device *device);
int ibv_close_device(struct ibv_context *context);
int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr);
int ibv_query_port(struct ibv_context *context, uint8_t port,
                   struct ibv_port_attr *attr);
int ibv_query_gid(struct ibv_context *context, uint8_t port, int index,
                  union ibv_gid *gid);
int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index,
                   uint16_t *pkey);
int ibv_get_async_event(struct ibv_context *context,
                        struct ibv_async_event *event);
void ibv_ack_async_event(struct ibv_async_event *event);
const char *ibv_wc_status_str(enum ibv_wc_status status);
const char *ibv_event_type_str(enum ibv_event_type type);
const char *ibv_port_state_str(enum ibv_port_state state);
int ibv_fork_init(void);
struct ibv_pd *ibv_alloc_pd(struct ibv_context *context);
int ibv_dealloc_pd(struct ibv_pd *pd);
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *memory, size_t bytes,
                          int access);
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *memory, size_t bytes,
                                uint64_t iova, unsigned access);
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset,
                                 size_t bytes, uint64_t iova, int fd,
                                 int access);
int ibv_dereg_mr(struct ibv_mr *mr);
struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context);
int ibv_destroy_comp_channel(struct ibv_comp_channel *channel);
struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe,
                             void *cq_context, struct ibv_comp_channel *channel,
                             int vector);
int ibv_destroy_cq(struct ibv_cq *cq);
int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq,
                     void **cq_context);
void ibv_ack_cq_events(struct ibv_cq *cq, unsigned count);
struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
int ibv_destroy_qp(struct ibv_qp *qp);
int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
                 struct ibv_qp_init_attr *init);
#pragma GCC visibility pop

#endif
