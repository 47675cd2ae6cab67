/* What we use of libibverbs, declared by us: the library is opened at run time
 * and its headers need not be there. tests/abi compares with the real ones.
 *
 * Only layouts that are the same in every libibverbs.so.1 are here. Structures
 * that the library makes are declared up to the last member we look at. */
#ifndef GBI_TRANSPORT_VERBS_ABI_H
#define GBI_TRANSPORT_VERBS_ABI_H

#include <stddef.h>
#include <stdint.h>

struct ibv_pd;
struct ibv_cq;
struct ibv_srq;

/* name, number */
#define GBI_IBV_NUMBERS(X)              \
  X(IBV_NODE_RNIC, 4)                   \
  X(IBV_PORT_DOWN, 1)                   \
  X(IBV_PORT_INIT, 2)                   \
  X(IBV_PORT_ARMED, 3)                  \
  X(IBV_PORT_ACTIVE, 4)                 \
  X(IBV_LINK_LAYER_INFINIBAND, 1)       \
  X(IBV_LINK_LAYER_ETHERNET, 2)         \
  X(IBV_MTU_1024, 3)                    \
  X(IBV_MTU_4096, 5)                    \
  X(IBV_ACCESS_LOCAL_WRITE, 1)          \
  X(IBV_ACCESS_REMOTE_WRITE, 2)         \
  X(IBV_QPT_RC, 2)                      \
  X(IBV_QPS_RESET, 0)                   \
  X(IBV_QPS_INIT, 1)                    \
  X(IBV_QPS_RTR, 2)                     \
  X(IBV_QPS_RTS, 3)                     \
  X(IBV_QPS_ERR, 6)                     \
  X(IBV_QP_STATE, 1)                    \
  X(IBV_QP_ACCESS_FLAGS, 1 << 3)        \
  X(IBV_QP_PKEY_INDEX, 1 << 4)          \
  X(IBV_QP_PORT, 1 << 5)                \
  X(IBV_QP_AV, 1 << 7)                  \
  X(IBV_QP_PATH_MTU, 1 << 8)            \
  X(IBV_QP_TIMEOUT, 1 << 9)             \
  X(IBV_QP_RETRY_CNT, 1 << 10)          \
  X(IBV_QP_RNR_RETRY, 1 << 11)          \
  X(IBV_QP_RQ_PSN, 1 << 12)             \
  X(IBV_QP_MAX_QP_RD_ATOMIC, 1 << 13)   \
  X(IBV_QP_MIN_RNR_TIMER, 1 << 15)      \
  X(IBV_QP_SQ_PSN, 1 << 16)             \
  X(IBV_QP_MAX_DEST_RD_ATOMIC, 1 << 17) \
  X(IBV_QP_DEST_QPN, 1 << 20)           \
  X(IBV_WR_RDMA_WRITE_WITH_IMM, 1)      \
  X(IBV_WR_SEND, 2)                     \
  X(IBV_SEND_SIGNALED, 2)               \
  X(IBV_SEND_INLINE, 8)                 \
  X(IBV_WC_SUCCESS, 0)                  \
  X(IBV_WC_WR_FLUSH_ERR, 5)             \
  X(IBV_WC_RETRY_EXC_ERR, 12)           \
  X(IBV_WC_RECV, 128)                   \
  X(IBV_WC_RECV_RDMA_WITH_IMM, 129)     \
  X(IBV_EVENT_CQ_ERR, 0)                \
  X(IBV_EVENT_QP_FATAL, 1)              \
  X(IBV_EVENT_QP_REQ_ERR, 2)            \
  X(IBV_EVENT_QP_ACCESS_ERR, 3)         \
  X(IBV_EVENT_DEVICE_FATAL, 8)          \
  X(IBV_EVENT_PORT_ERR, 10)

#ifndef GBI_IBV_REAL_HEADER
#define GBI_IBV_NUMBER(name, number) name = number,
enum { GBI_IBV_NUMBERS(GBI_IBV_NUMBER) };
#undef GBI_IBV_NUMBER
#define GBI_IBV(name) ibv_##name
#else /* beside the real ones, for the comparison */
#define GBI_IBV(name) gbi_ibv_##name
#endif

struct GBI_IBV(device) {
  void *ops[2];
  int node_type, transport_type;
  char name[64], dev_name[64], dev_path[256], ibdev_path[256];
};

struct GBI_IBV(sge) {
  uint64_t addr;
  uint32_t length, lkey;
};

union GBI_IBV(gid) {
  uint8_t raw[16];
  struct {
    uint64_t subnet_prefix, interface_id;
  } global;
};

struct GBI_IBV(send_wr) {
  uint64_t wr_id;
  struct GBI_IBV(send_wr) * next;
  struct GBI_IBV(sge) * sg_list;
  int num_sge, opcode;
  unsigned send_flags;
  uint32_t imm_data; /* in network order */
  union {
    struct {
      uint64_t remote_addr;
      uint32_t rkey;
    } rdma;
    struct {
      uint64_t remote_addr, compare_add, swap;
      uint32_t rkey;
    } atomic;
  } wr;
  uint64_t unused[7];
};

struct GBI_IBV(recv_wr) {
  uint64_t wr_id;
  struct GBI_IBV(recv_wr) * next;
  struct GBI_IBV(sge) * sg_list;
  int num_sge;
};

struct GBI_IBV(wc) {
  uint64_t wr_id;
  int status, opcode;
  uint32_t vendor_err, byte_len;
  uint32_t imm_data; /* in network order */
  uint32_t qp_num, src_qp;
  unsigned wc_flags;
  uint16_t pkey_index, slid;
  uint8_t sl, dlid_path_bits;
};

struct GBI_IBV(qp) {
  struct GBI_IBV(context) * context;
  void *qp_context;
  struct ibv_pd *pd;
  struct ibv_cq *send_cq, *recv_cq;
  struct ibv_srq *srq;
  uint32_t handle, qp_num;
};

/* Entry points that the headers' inline functions take from here. */
struct GBI_IBV(context_ops) {
  void *others_a[11];
  int (*poll_cq)(struct ibv_cq *, int count, struct GBI_IBV(wc) *);
  int (*req_notify_cq)(struct ibv_cq *, int solicited_only);
  void *others_b[12];
  int (*post_send)(struct GBI_IBV(qp) *, struct GBI_IBV(send_wr) *,
                   struct GBI_IBV(send_wr) * *bad);
  int (*post_recv)(struct GBI_IBV(qp) *, struct GBI_IBV(recv_wr) *,
                   struct GBI_IBV(recv_wr) * *bad);
  void *others_c[5];
};

struct GBI_IBV(context) {
  struct GBI_IBV(device) * device;
  struct GBI_IBV(context_ops) ops;
  int cmd_fd, async_fd;
};

struct GBI_IBV(mr) {
  struct GBI_IBV(context) * context;
  struct ibv_pd *pd;
  void *addr;
  size_t length;
  uint32_t handle, lkey, rkey;
};

struct GBI_IBV(comp_channel) {
  struct GBI_IBV(context) * context;
  int fd, refcnt;
};

struct GBI_IBV(qp_cap) {
  uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge,
      max_inline_data;
};

struct GBI_IBV(qp_init_attr) {
  void *qp_context;
  struct ibv_cq *send_cq, *recv_cq;
  struct ibv_srq *srq;
  struct GBI_IBV(qp_cap) cap;
  int qp_type, sq_sig_all;
};

struct GBI_IBV(global_route) {
  union GBI_IBV(gid) dgid;
  uint32_t flow_label;
  uint8_t sgid_index, hop_limit, traffic_class;
};

struct GBI_IBV(ah_attr) {
  struct GBI_IBV(global_route) grh;
  uint16_t dlid;
  uint8_t sl, src_path_bits, static_rate, is_global, port_num;
};

struct GBI_IBV(qp_attr) {
  int qp_state, cur_qp_state, path_mtu, path_mig_state;
  uint32_t qkey, rq_psn, sq_psn, dest_qp_num;
  unsigned qp_access_flags;
  struct GBI_IBV(qp_cap) cap;
  struct GBI_IBV(ah_attr) ah_attr, alt_ah_attr;
  uint16_t pkey_index, alt_pkey_index;
  uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic;
  uint8_t min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry;
  uint8_t alt_port_num, alt_timeout;
  uint32_t rate_limit;
};

struct GBI_IBV(port_attr) {
  int state, max_mtu, active_mtu, gid_tbl_len;
  uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
  uint16_t pkey_tbl_len, lid, sm_lid;
  uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply;
  uint8_t active_width, active_speed, phys_state, link_layer, flags;
  uint16_t port_cap_flags2;
  uint8_t room[64]; /* newer libraries know more */
};

struct GBI_IBV(device_attr) {
  char fw_ver[64];
  uint64_t node_guid, sys_image_guid, max_mr_size, page_size_cap;
  uint32_t vendor_id, vendor_part_id, hw_ver;
  int max_qp, max_qp_wr;
  unsigned device_cap_flags;
  int max_sge, max_sge_rd, max_cq, max_cqe, max_mr;
  int others[21];
  uint16_t max_pkeys;
  uint8_t local_ca_ack_delay, phys_port_cnt;
};

struct GBI_IBV(async_event) {
  union {
    struct ibv_cq *cq;
    struct GBI_IBV(qp) * qp;
    int port_num;
  } element;
  int event_type;
};

#endif
