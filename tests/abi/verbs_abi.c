/* Compiles where libibverbs' headers are installed: our declarations against
 * theirs, number by number and member by member. Never run. */
#include <infiniband/verbs.h>

#define GBI_IBV_REAL_HEADER
#include "transport/verbs/verbs_abi.h"

#define SAME_NUMBER(name, number) _Static_assert(name == (number), #name);
GBI_IBV_NUMBERS(SAME_NUMBER)

#define SAME_PLACE(type, member)                                   \
  _Static_assert(offsetof(struct ibv_##type, member) ==            \
                     offsetof(struct gbi_ibv_##type, member),      \
                 #type "." #member);                               \
  _Static_assert(sizeof(((struct ibv_##type *)0)->member) ==       \
                     sizeof(((struct gbi_ibv_##type *)0)->member), \
                 #type "." #member);
#define SAME_SIZE(type)                                                      \
  _Static_assert(sizeof(struct ibv_##type) == sizeof(struct gbi_ibv_##type), \
                 #type);
/* The caller makes it, and an old library may know less. */
#define HAS_ROOM(type)                                                       \
  _Static_assert(sizeof(struct ibv_##type) <= sizeof(struct gbi_ibv_##type), \
                 #type);

SAME_PLACE(device, node_type)
SAME_PLACE(device, transport_type)
SAME_PLACE(device, name)
SAME_SIZE(sge)
SAME_PLACE(sge, addr)
SAME_PLACE(sge, length)
SAME_PLACE(sge, lkey)
_Static_assert(sizeof(union ibv_gid) == sizeof(union gbi_ibv_gid), "gid");

SAME_SIZE(send_wr)
SAME_PLACE(send_wr, wr_id)
SAME_PLACE(send_wr, next)
SAME_PLACE(send_wr, sg_list)
SAME_PLACE(send_wr, num_sge)
SAME_PLACE(send_wr, opcode)
SAME_PLACE(send_wr, send_flags)
SAME_PLACE(send_wr, imm_data)
SAME_PLACE(send_wr, wr.rdma.remote_addr)
SAME_PLACE(send_wr, wr.rdma.rkey)
SAME_SIZE(recv_wr)
SAME_PLACE(recv_wr, wr_id)
SAME_PLACE(recv_wr, sg_list)
SAME_PLACE(recv_wr, num_sge)

SAME_SIZE(wc)
SAME_PLACE(wc, wr_id)
SAME_PLACE(wc, status)
SAME_PLACE(wc, opcode)
SAME_PLACE(wc, vendor_err)
SAME_PLACE(wc, byte_len)
SAME_PLACE(wc, imm_data)
SAME_PLACE(wc, qp_num)

SAME_PLACE(qp, qp_num)
SAME_PLACE(context_ops, poll_cq)
SAME_PLACE(context_ops, req_notify_cq)
SAME_PLACE(context_ops, post_send)
SAME_PLACE(context_ops, post_recv)
SAME_SIZE(context_ops)
SAME_PLACE(context, device)
SAME_PLACE(context, ops)
SAME_PLACE(context, async_fd)
SAME_PLACE(mr, addr)
SAME_PLACE(mr, lkey)
SAME_PLACE(mr, rkey)
SAME_PLACE(comp_channel, fd)

SAME_SIZE(qp_cap)
SAME_PLACE(qp_cap, max_inline_data)
SAME_SIZE(qp_init_attr)
SAME_PLACE(qp_init_attr, send_cq)
SAME_PLACE(qp_init_attr, cap)
SAME_PLACE(qp_init_attr, qp_type)
SAME_PLACE(qp_init_attr, sq_sig_all)
SAME_SIZE(ah_attr)
SAME_PLACE(ah_attr, grh.dgid)
SAME_PLACE(ah_attr, grh.sgid_index)
SAME_PLACE(ah_attr, grh.hop_limit)
SAME_PLACE(ah_attr, dlid)
SAME_PLACE(ah_attr, is_global)
SAME_PLACE(ah_attr, port_num)
SAME_SIZE(qp_attr)
SAME_PLACE(qp_attr, path_mtu)
SAME_PLACE(qp_attr, rq_psn)
SAME_PLACE(qp_attr, dest_qp_num)
SAME_PLACE(qp_attr, qp_access_flags)
SAME_PLACE(qp_attr, ah_attr)
SAME_PLACE(qp_attr, max_rd_atomic)
SAME_PLACE(qp_attr, min_rnr_timer)
SAME_PLACE(qp_attr, port_num)
SAME_PLACE(qp_attr, timeout)
SAME_PLACE(qp_attr, retry_cnt)
SAME_PLACE(qp_attr, rnr_retry)

HAS_ROOM(port_attr)
SAME_PLACE(port_attr, state)
SAME_PLACE(port_attr, active_mtu)
SAME_PLACE(port_attr, gid_tbl_len)
SAME_PLACE(port_attr, max_msg_sz)
SAME_PLACE(port_attr, lid)
SAME_PLACE(port_attr, link_layer)
SAME_SIZE(device_attr)
SAME_PLACE(device_attr, max_qp_wr)
SAME_PLACE(device_attr, max_cqe)
SAME_PLACE(device_attr, phys_port_cnt)
SAME_SIZE(async_event)
SAME_PLACE(async_event, event_type)
