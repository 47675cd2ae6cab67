/* Sizes, places and numbers of libibverbs' ABI as one table, compiled twice:
 * from our declarations (ibverbs_names.h) and, where it is installed, from
 * <infiniband/verbs.h> (LAYOUT_OF_HEADER). fakes_verbs_test compares them. */
#ifdef LAYOUT_OF_HEADER
#include <infiniband/verbs.h>
#define TABLE gb_verbs_layout_of_header
#else
#include "fakes/ibverbs_names.h"
#define TABLE gb_verbs_layout
#endif

#include <stddef.h>

#define S(type) {#type, (long long)sizeof(struct type)},
#define F(type, field) \
  {#type "." #field, (long long)offsetof(struct type, field)},
#define N(number) {#number, (long long)(number)},

typedef struct row {
  const char *name;
  long long value;
} row;
extern const row TABLE[];
// clang-format off
const row TABLE[] = {
  S(ibv_device) F(ibv_device, node_type) F(ibv_device, transport_type)
  F(ibv_device, name) F(ibv_device, dev_name) F(ibv_device, dev_path)
  F(ibv_device, ibdev_path)
  S(ibv_context_ops) F(ibv_context_ops, poll_cq)
  F(ibv_context_ops, req_notify_cq) F(ibv_context_ops, post_send)
  F(ibv_context_ops, post_recv)
  S(ibv_context) F(ibv_context, device) F(ibv_context, ops)
  F(ibv_context, cmd_fd) F(ibv_context, async_fd)
  F(ibv_context, num_comp_vectors) F(ibv_context, mutex)
  F(ibv_context, abi_compat)
  S(ibv_device_attr) F(ibv_device_attr, fw_ver) F(ibv_device_attr, node_guid)
  F(ibv_device_attr, sys_image_guid) F(ibv_device_attr, max_mr_size)
  F(ibv_device_attr, page_size_cap) F(ibv_device_attr, vendor_id)
  F(ibv_device_attr, vendor_part_id) F(ibv_device_attr, hw_ver)
  F(ibv_device_attr, max_qp) F(ibv_device_attr, max_qp_wr)
  F(ibv_device_attr, device_cap_flags) F(ibv_device_attr, max_sge)
  F(ibv_device_attr, max_sge_rd) F(ibv_device_attr, max_cq)
  F(ibv_device_attr, max_cqe) F(ibv_device_attr, max_mr)
  F(ibv_device_attr, max_pd) F(ibv_device_attr, max_qp_rd_atom)
  F(ibv_device_attr, max_ee_rd_atom) F(ibv_device_attr, max_res_rd_atom)
  F(ibv_device_attr, max_qp_init_rd_atom)
  F(ibv_device_attr, max_ee_init_rd_atom) F(ibv_device_attr, atomic_cap)
  F(ibv_device_attr, max_ee) F(ibv_device_attr, max_rdd)
  F(ibv_device_attr, max_mw) F(ibv_device_attr, max_raw_ipv6_qp)
  F(ibv_device_attr, max_raw_ethy_qp) F(ibv_device_attr, max_mcast_grp)
  F(ibv_device_attr, max_mcast_qp_attach)
  F(ibv_device_attr, max_total_mcast_qp_attach) F(ibv_device_attr, max_ah)
  F(ibv_device_attr, max_fmr) F(ibv_device_attr, max_map_per_fmr)
  F(ibv_device_attr, max_srq) F(ibv_device_attr, max_srq_wr)
  F(ibv_device_attr, max_srq_sge) F(ibv_device_attr, max_pkeys)
  F(ibv_device_attr, local_ca_ack_delay) F(ibv_device_attr, phys_port_cnt)
  S(ibv_port_attr) F(ibv_port_attr, state) F(ibv_port_attr, max_mtu)
  F(ibv_port_attr, active_mtu) F(ibv_port_attr, gid_tbl_len)
  F(ibv_port_attr, port_cap_flags) F(ibv_port_attr, max_msg_sz)
  F(ibv_port_attr, bad_pkey_cntr) F(ibv_port_attr, qkey_viol_cntr)
  F(ibv_port_attr, pkey_tbl_len) F(ibv_port_attr, lid) F(ibv_port_attr, sm_lid)
  F(ibv_port_attr, lmc) F(ibv_port_attr, max_vl_num) F(ibv_port_attr, sm_sl)
  F(ibv_port_attr, subnet_timeout) F(ibv_port_attr, init_type_reply)
  F(ibv_port_attr, active_width) F(ibv_port_attr, active_speed)
  F(ibv_port_attr, phys_state) F(ibv_port_attr, link_layer)
  F(ibv_port_attr, flags) F(ibv_port_attr, port_cap_flags2)
  S(ibv_async_event) F(ibv_async_event, element) F(ibv_async_event, event_type)
  S(ibv_pd) F(ibv_pd, context) F(ibv_pd, handle)
  S(ibv_mr) F(ibv_mr, context) F(ibv_mr, pd) F(ibv_mr, addr) F(ibv_mr, length)
  F(ibv_mr, handle) F(ibv_mr, lkey) F(ibv_mr, rkey)
  S(ibv_comp_channel) F(ibv_comp_channel, context) F(ibv_comp_channel, fd)
  F(ibv_comp_channel, refcnt)
  S(ibv_cq) F(ibv_cq, context) F(ibv_cq, channel) F(ibv_cq, cq_context)
  F(ibv_cq, handle) F(ibv_cq, cqe) F(ibv_cq, mutex) F(ibv_cq, cond)
  F(ibv_cq, comp_events_completed) F(ibv_cq, async_events_completed)
  S(ibv_wc) F(ibv_wc, wr_id) F(ibv_wc, status) F(ibv_wc, opcode)
  F(ibv_wc, vendor_err) F(ibv_wc, byte_len) F(ibv_wc, imm_data)
  F(ibv_wc, qp_num) F(ibv_wc, src_qp) F(ibv_wc, wc_flags) F(ibv_wc, pkey_index)
  F(ibv_wc, slid) F(ibv_wc, sl) F(ibv_wc, dlid_path_bits)
  S(ibv_qp_cap) F(ibv_qp_cap, max_send_wr) F(ibv_qp_cap, max_recv_wr)
  F(ibv_qp_cap, max_send_sge) F(ibv_qp_cap, max_recv_sge)
  F(ibv_qp_cap, max_inline_data)
  S(ibv_qp_init_attr) F(ibv_qp_init_attr, qp_context)
  F(ibv_qp_init_attr, send_cq) F(ibv_qp_init_attr, recv_cq)
  F(ibv_qp_init_attr, srq) F(ibv_qp_init_attr, cap)
  F(ibv_qp_init_attr, qp_type) F(ibv_qp_init_attr, sq_sig_all)
  S(ibv_global_route) F(ibv_global_route, dgid) F(ibv_global_route, flow_label)
  F(ibv_global_route, sgid_index) F(ibv_global_route, hop_limit)
  F(ibv_global_route, traffic_class)
  S(ibv_ah_attr) F(ibv_ah_attr, grh) F(ibv_ah_attr, dlid) F(ibv_ah_attr, sl)
  F(ibv_ah_attr, src_path_bits) F(ibv_ah_attr, static_rate)
  F(ibv_ah_attr, is_global) F(ibv_ah_attr, port_num)
  S(ibv_qp_attr) F(ibv_qp_attr, qp_state) F(ibv_qp_attr, cur_qp_state)
  F(ibv_qp_attr, path_mtu) F(ibv_qp_attr, path_mig_state) F(ibv_qp_attr, qkey)
  F(ibv_qp_attr, rq_psn) F(ibv_qp_attr, sq_psn) F(ibv_qp_attr, dest_qp_num)
  F(ibv_qp_attr, qp_access_flags) F(ibv_qp_attr, cap) F(ibv_qp_attr, ah_attr)
  F(ibv_qp_attr, alt_ah_attr) F(ibv_qp_attr, pkey_index)
  F(ibv_qp_attr, alt_pkey_index) F(ibv_qp_attr, en_sqd_async_notify)
  F(ibv_qp_attr, sq_draining) F(ibv_qp_attr, max_rd_atomic)
  F(ibv_qp_attr, max_dest_rd_atomic) F(ibv_qp_attr, min_rnr_timer)
  F(ibv_qp_attr, port_num) F(ibv_qp_attr, timeout) F(ibv_qp_attr, retry_cnt)
  F(ibv_qp_attr, rnr_retry) F(ibv_qp_attr, alt_port_num)
  F(ibv_qp_attr, alt_timeout) F(ibv_qp_attr, rate_limit)
  S(ibv_qp) F(ibv_qp, context) F(ibv_qp, qp_context) F(ibv_qp, pd)
  F(ibv_qp, send_cq) F(ibv_qp, recv_cq) F(ibv_qp, srq) F(ibv_qp, handle)
  F(ibv_qp, qp_num) F(ibv_qp, state) F(ibv_qp, qp_type) F(ibv_qp, mutex)
  F(ibv_qp, cond) F(ibv_qp, events_completed)
  S(ibv_sge) F(ibv_sge, addr) F(ibv_sge, length) F(ibv_sge, lkey)
  S(ibv_send_wr) F(ibv_send_wr, wr_id) F(ibv_send_wr, next)
  F(ibv_send_wr, sg_list) F(ibv_send_wr, num_sge) F(ibv_send_wr, opcode)
  F(ibv_send_wr, send_flags) F(ibv_send_wr, wr) F(ibv_send_wr, imm_data)
  F(ibv_send_wr, wr.rdma.remote_addr) F(ibv_send_wr, wr.rdma.rkey)
  S(ibv_recv_wr) F(ibv_recv_wr, wr_id) F(ibv_recv_wr, next)
  F(ibv_recv_wr, sg_list) F(ibv_recv_wr, num_sge)
  N(IBV_ACCESS_LOCAL_WRITE) N(IBV_ACCESS_RELAXED_ORDERING)
  N(IBV_ACCESS_REMOTE_READ) N(IBV_ACCESS_REMOTE_WRITE) N(IBV_EVENT_CQ_ERR)
  N(IBV_EVENT_DEVICE_FATAL) N(IBV_EVENT_PORT_ACTIVE) N(IBV_EVENT_PORT_ERR)
  N(IBV_EVENT_QP_ACCESS_ERR) N(IBV_EVENT_QP_FATAL) N(IBV_EVENT_QP_REQ_ERR)
  N(IBV_LINK_LAYER_ETHERNET) N(IBV_LINK_LAYER_INFINIBAND) N(IBV_MTU_1024)
  N(IBV_MTU_2048) N(IBV_MTU_256) N(IBV_MTU_4096) N(IBV_MTU_512) N(IBV_NODE_CA)
  N(IBV_PORT_ACTIVE) N(IBV_PORT_ARMED) N(IBV_PORT_DOWN) N(IBV_PORT_INIT)
  N(IBV_PORT_NOP) N(IBV_QPS_ERR) N(IBV_QPS_INIT) N(IBV_QPS_RESET)
  N(IBV_QPS_RTR) N(IBV_QPS_RTS) N(IBV_QPT_RC) N(IBV_QP_ACCESS_FLAGS)
  N(IBV_QP_AV) N(IBV_QP_CUR_STATE) N(IBV_QP_DEST_QPN)
  N(IBV_QP_MAX_DEST_RD_ATOMIC) N(IBV_QP_MAX_QP_RD_ATOMIC)
  N(IBV_QP_MIN_RNR_TIMER) N(IBV_QP_PATH_MTU) N(IBV_QP_PKEY_INDEX)
  N(IBV_QP_PORT) N(IBV_QP_RETRY_CNT) N(IBV_QP_RNR_RETRY) N(IBV_QP_RQ_PSN)
  N(IBV_QP_SQ_PSN) N(IBV_QP_STATE) N(IBV_QP_TIMEOUT) N(IBV_SEND_INLINE)
  N(IBV_SEND_SIGNALED) N(IBV_SEND_SOLICITED) N(IBV_TRANSPORT_IB)
  N(IBV_WC_LOC_LEN_ERR) N(IBV_WC_LOC_PROT_ERR) N(IBV_WC_RDMA_READ)
  N(IBV_WC_RDMA_WRITE) N(IBV_WC_RECV) N(IBV_WC_RECV_RDMA_WITH_IMM)
  N(IBV_WC_REM_ACCESS_ERR) N(IBV_WC_REM_INV_REQ_ERR) N(IBV_WC_REM_OP_ERR)
  N(IBV_WC_RETRY_EXC_ERR) N(IBV_WC_RNR_RETRY_EXC_ERR) N(IBV_WC_SEND)
  N(IBV_WC_SUCCESS) N(IBV_WC_WITH_IMM) N(IBV_WC_WR_FLUSH_ERR)
  N(IBV_WR_RDMA_READ) N(IBV_WR_RDMA_WRITE) N(IBV_WR_RDMA_WRITE_WITH_IMM)
  N(IBV_WR_SEND) N(IBV_WR_SEND_WITH_IMM)
  {NULL, 0}};
// clang-format on
