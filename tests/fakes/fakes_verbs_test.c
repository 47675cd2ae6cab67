/* The fake libibverbs (ibverbs_fake.h) itself: bytes arrive between queue pairs
 * and between processes; what a real adapter refuses is refused, what breaks a
 * queue pair there breaks it here, with the same status; misuse is said; each
 * fault does what its name says. */
#include "fakes/dying.h"
#include "fakes/ibverbs_fake.h"
#include "fakes/ibverbs_names.h"
#include "harness/gb_test.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { ROOM = 1 << 20, QUEUE = 16, ALL_ACCESS = 7 };

/* One end of a connection. */
typedef struct end {
  struct ibv_context *context;
  struct ibv_pd *pd;
  struct ibv_comp_channel *channel;
  struct ibv_cq *cq;
  struct ibv_qp *qp;
  struct ibv_mr *mr;
  char *memory;
} end;

static struct ibv_context *open_first(void) {
  struct ibv_device **list = ibv_get_device_list(NULL);
  GB_CHECK(list && list[0]);
  struct ibv_context *context = ibv_open_device(list[0]);
  GB_CHECK(context);
  ibv_free_device_list(list);
  return context;
}

static void make(end *e, unsigned queue) {
  e->context = open_first();
  e->pd = ibv_alloc_pd(e->context);
  e->channel = ibv_create_comp_channel(e->context);
  e->cq = ibv_create_cq(e->context, 128, NULL, e->channel, 0);
  struct ibv_qp_init_attr attr = {
      .send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_RC};
  attr.cap.max_send_wr = attr.cap.max_recv_wr = queue;
  attr.cap.max_send_sge = attr.cap.max_recv_sge = 4;
  attr.cap.max_inline_data = 64;
  e->qp = ibv_create_qp(e->pd, &attr);
  GB_CHECK(e->qp);
  e->memory = malloc(ROOM);
  memset(e->memory, 0, ROOM);
  e->mr = ibv_reg_mr(e->pd, e->memory, ROOM, ALL_ACCESS);
  GB_CHECK(e->mr);
}

static void end_all(end *e) {
  GB_CHECK_INT(ibv_destroy_qp(e->qp), 0);
  GB_CHECK_INT(ibv_destroy_cq(e->cq), 0);
  GB_CHECK_INT(ibv_destroy_comp_channel(e->channel), 0);
  if (e->mr) GB_CHECK_INT(ibv_dereg_mr(e->mr), 0);
  GB_CHECK_INT(ibv_dealloc_pd(e->pd), 0);
  GB_CHECK_INT(ibv_close_device(e->context), 0);
  free(e->memory);
}

static int to_init(end *e) {
  struct ibv_qp_attr attr = {
      .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL_ACCESS};
  return ibv_modify_qp(
      e->qp, &attr,
      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

enum {
  RTR_MASK = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
  RTS_MASK = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
             IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC
};

static struct ibv_qp_attr rtr_to(end *e, uint32_t number) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                             .path_mtu = IBV_MTU_1024,
                             .dest_qp_num = number,
                             .rq_psn = 77,
                             .max_dest_rd_atomic = 1,
                             .min_rnr_timer = 12};
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.grh.sgid_index = 1;
  attr.ah_attr.grh.hop_limit = 1;
  GB_CHECK_INT(ibv_query_gid(e->context, 1, 1, &attr.ah_attr.grh.dgid), 0);
  return attr;
}

static struct ibv_qp_attr rts(int rnr_retry) {
  return (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                              .timeout = 10,
                              .retry_cnt = 3,
                              .sq_psn = 77,
                              .max_rd_atomic = 1,
                              .rnr_retry = (uint8_t)rnr_retry};
}

static void connect_to(end *e, uint32_t number, int rnr_retry) {
  struct ibv_qp_attr attr = rtr_to(e, number), then = rts(rnr_retry);
  GB_CHECK_INT(to_init(e), 0);
  GB_CHECK_INT(ibv_modify_qp(e->qp, &attr, RTR_MASK), 0);
  GB_CHECK_INT(ibv_modify_qp(e->qp, &then, RTS_MASK), 0);
}

static void make_pair(end pair[2]) {
  make(&pair[0], QUEUE);
  make(&pair[1], QUEUE);
  connect_to(&pair[0], pair[1].qp->qp_num, 1);
  connect_to(&pair[1], pair[0].qp->qp_num, 1);
}

static void end_pair(end pair[2]) {
  end_all(&pair[0]);
  end_all(&pair[1]);
}

static struct ibv_sge part(const end *e, size_t at, size_t bytes) {
  return (struct ibv_sge){(uintptr_t)e->memory + at, (uint32_t)bytes,
                          e->mr->lkey};
}

static int post_sge(end *e, int opcode, unsigned flags, struct ibv_sge sge,
                    const end *to, size_t at) {
  struct ibv_send_wr wr = {.wr_id = 5,
                           .sg_list = &sge,
                           .num_sge = 1,
                           .opcode = (enum ibv_wr_opcode)opcode,
                           .send_flags = flags,
                           .imm_data = 0x1234};
  if (to) {
    wr.wr.rdma.remote_addr = (uintptr_t)to->memory + at;
    wr.wr.rdma.rkey = to->mr->rkey;
  }
  struct ibv_send_wr *bad = NULL;
  return e->context->ops.post_send(e->qp, &wr, &bad);
}

static int post(end *e, int opcode, size_t bytes, const end *to) {
  return post_sge(e, opcode, IBV_SEND_SIGNALED, part(e, 0, bytes), to, 0);
}

static int take_sge(end *e, struct ibv_sge sge) {
  struct ibv_recv_wr wr = {.wr_id = 9, .sg_list = &sge, .num_sge = 1};
  struct ibv_recv_wr *bad = NULL;
  return e->context->ops.post_recv(e->qp, &wr, &bad);
}

static int take(end *e, size_t at, size_t bytes) {
  return take_sge(e, part(e, at, bytes));
}

static void nap(void) {
  struct timespec time = {0, 200000};
  nanosleep(&time, NULL);
}

/* The next completion; its absence for 10 s fails the case. */
static struct ibv_wc next(end *e) {
  struct ibv_wc wc;
  for (int i = 0; i < 50000; i++) {
    int n = e->context->ops.poll_cq(e->cq, 1, &wc);
    GB_CHECK(n >= 0);
    if (n) return wc;
    nap();
  }
  gb_test_fail(__FILE__, __LINE__, "no completion came");
}

static void must_end(end *e, int status) {
  GB_CHECK_INT(next(e).status, status);
}

static bool is_readable(int fd, int timeout_ms) {
  struct pollfd one = {.fd = fd, .events = POLLIN};
  return poll(&one, 1, timeout_ms) == 1;
}

static fake_verbs_counts counted(void) {
  fake_verbs_counts counts;
  fake_verbs_count(&counts);
  return counts;
}

/* --- what works --------------------------------------------------------------
 */

GB_TEST(verbs, bytes_arrive) {
  end p[2];
  make_pair(p);
  gb_test_repeat(p[0].memory, 251, ROOM);
  GB_CHECK_INT(take(&p[1], 0, ROOM), 0);
  GB_CHECK_INT(post(&p[0], IBV_WR_SEND, ROOM, NULL), 0);
  must_end(&p[0], IBV_WC_SUCCESS);
  struct ibv_wc wc = next(&p[1]);
  GB_CHECK_INT(wc.opcode, IBV_WC_RECV);
  GB_CHECK_INT(wc.byte_len, ROOM);
  GB_CHECK_INT(wc.wr_id, 9);
  GB_CHECK(!memcmp(p[0].memory, p[1].memory, ROOM));
  memset(p[0].memory, 7, 100);
  GB_CHECK_INT(take(&p[1], ROOM / 2, 0), 0);
  GB_CHECK_INT(post(&p[0], IBV_WR_RDMA_WRITE_WITH_IMM, 100, &p[1]), 0);
  must_end(&p[0], IBV_WC_SUCCESS);
  wc = next(&p[1]);
  GB_CHECK_INT(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  GB_CHECK_INT(wc.imm_data, 0x1234);
  GB_CHECK_INT(wc.byte_len, 100);
  GB_CHECK(p[1].memory[99] == 7);
  p[1].memory[3] = 42;
  GB_CHECK_INT(post(&p[0], IBV_WR_RDMA_READ, 100, &p[1]), 0);
  must_end(&p[0], IBV_WC_SUCCESS);
  GB_CHECK(p[0].memory[3] == 42);
  GB_CHECK_INT(counted().rnr, 0);
  end_pair(p);
  GB_CHECK_INT(counted().registered_now, 0);
}

GB_TEST(verbs, many_in_order_without_signals) {
  end p[2];
  make_pair(p);
  for (int i = 0; i < 200; i++) {
    p[0].memory[i % 8] = (char)i;
    GB_CHECK_INT(take(&p[1], 64, 1), 0);
    GB_CHECK_INT(
        post_sge(&p[0], IBV_WR_SEND,
                 IBV_SEND_INLINE | (i % 8 == 7 ? IBV_SEND_SIGNALED : 0),
                 part(&p[0], (size_t)(i % 8), 1), NULL, 0),
        0);
    GB_CHECK_INT(next(&p[1]).byte_len, 1);
    GB_CHECK(p[1].memory[64] == (char)i);
    if (i % 8 == 7) must_end(&p[0], IBV_WC_SUCCESS);
  }
  end_pair(p);
}

GB_TEST(verbs, an_unsignalled_queue_fills) {
  end p[2];
  make_pair(p);
  for (int i = 0; i < QUEUE; i++)
    GB_CHECK_INT(
        post_sge(&p[0], IBV_WR_RDMA_WRITE, 0, part(&p[0], 0, 8), &p[1], 0), 0);
  GB_CHECK_INT(post(&p[0], IBV_WR_RDMA_WRITE, 8, &p[1]), ENOMEM);
  end_pair(p);
}

/* Rank 1 is killed or leaves; rank 0's work fails after its retries. */
static void with_peer(bool killed) {
  volatile uint32_t *number = gb_test_shared();
  volatile int *at = (volatile int *)gb_test_shared() + 8;
  int me = gb_rank();
  end e;
  make(&e, QUEUE);
  number[me] = e.qp->qp_num;
  __atomic_add_fetch(at, 1, __ATOMIC_ACQ_REL);
  gb_test_await(at, 2, 10000);
  connect_to(&e, number[1 - me], 7);
  GB_CHECK_INT(take(&e, ROOM / 2, 8), 0);
  memset(e.memory, me + 1, 8);
  GB_CHECK_INT(post(&e, IBV_WR_SEND, 8, NULL), 0);
  must_end(&e, IBV_WC_SUCCESS);
  must_end(&e, IBV_WC_SUCCESS);
  GB_CHECK(e.memory[ROOM / 2 + 7] == 2 - me);
  __atomic_add_fetch(at, 1, __ATOMIC_ACQ_REL);
  gb_test_await(at, 4, 10000);
  if (me == 0 && killed) {
    GB_CHECK_INT(take(&e, 0, 8), 0);
    GB_CHECK_INT(post(&e, IBV_WR_SEND, 8, NULL), 0);
    must_end(&e, IBV_WC_RETRY_EXC_ERR);
    must_end(&e, IBV_WC_WR_FLUSH_ERR);
  }
  if (me == 1 && killed) raise(SIGKILL);
  end_all(&e);
}

GB_TEST(verbs, between_processes, .ranks = 2) {
  with_peer(false);
}
GB_TEST(verbs, a_killed_peer_exceeds_retries, .ranks = 2, .expect = "0k") {
  with_peer(true);
}

GB_TEST(verbs, events_come_once_and_only_for_later_completions) {
  end p[2];
  struct ibv_cq *cq;
  void *mine;
  make_pair(p);
  fcntl(p[1].channel->fd, F_SETFL, O_NONBLOCK);
  GB_CHECK_INT(take(&p[1], 0, 8), 0);
  GB_CHECK_INT(take(&p[1], 0, 8), 0);
  GB_CHECK_INT(post(&p[0], IBV_WR_SEND, 8, NULL), 0);
  must_end(&p[0], IBV_WC_SUCCESS);
  GB_CHECK_INT(p[1].context->ops.req_notify_cq(p[1].cq, 0), 0);
  GB_CHECK(!is_readable(p[1].channel->fd, 0));
  GB_CHECK(ibv_get_cq_event(p[1].channel, &cq, &mine) != 0);
  GB_CHECK_INT(post(&p[0], IBV_WR_SEND, 8, NULL), 0);
  GB_CHECK(is_readable(p[1].channel->fd, 10000));
  GB_CHECK_INT(ibv_get_cq_event(p[1].channel, &cq, &mine), 0);
  GB_CHECK(cq == p[1].cq);
  ibv_ack_cq_events(cq, 1);
  must_end(&p[1], IBV_WC_SUCCESS);
  must_end(&p[1], IBV_WC_SUCCESS);
  GB_CHECK(!is_readable(p[1].channel->fd, 0));
  end_pair(p);
}

GB_TEST(verbs, dma_buffers) {
  end p[2];
  make_pair(p);
  int fd = memfd_create("buffer", MFD_CLOEXEC);
  GB_CHECK(fd >= 0 && !ftruncate(fd, 8192));
  struct ibv_mr *mr =
      ibv_reg_dmabuf_mr(p[1].pd, 4096, 4096, 1 << 20, fd, ALL_ACCESS);
  GB_CHECK(mr);
  end there = p[1];
  there.memory = (char *)(uintptr_t)(1 << 20);
  there.mr = mr;
  memset(p[0].memory, 9, 16);
  GB_CHECK_INT(post(&p[0], IBV_WR_RDMA_WRITE, 16, &there), 0);
  must_end(&p[0], IBV_WC_SUCCESS);
  char got[16];
  GB_CHECK_INT(pread(fd, got, 16, 4096), 16);
  GB_CHECK(got[15] == 9);
  GB_CHECK_INT(ibv_dereg_mr(mr), 0);
  setenv("FAKE_VERBS_DMABUF", "0", 1);
  GB_CHECK(!ibv_reg_dmabuf_mr(p[1].pd, 0, 4096, 0, fd, ALL_ACCESS));
  GB_CHECK_INT(errno, EOPNOTSUPP);
  close(fd);
  end_pair(p);
}

/* Our declarations are those of the installed header. */
typedef struct row {
  const char *name;
  long long value;
} row;
extern const row gb_verbs_layout[];
#ifdef HAS_VERBS_HEADER
extern const row gb_verbs_layout_of_header[];
#endif

GB_TEST(verbs, layout_is_the_headers) {
#ifdef HAS_VERBS_HEADER
  for (int i = 0; gb_verbs_layout[i].name; i++)
    if (gb_verbs_layout[i].value != gb_verbs_layout_of_header[i].value)
      gb_test_fail(__FILE__, __LINE__, "%s is %lld, not %lld",
                   gb_verbs_layout[i].name, gb_verbs_layout[i].value,
                   gb_verbs_layout_of_header[i].value);
#else
  gb_test_skip("<infiniband/verbs.h> is not installed");
#endif
}

/* --- what is refused ---------------------------------------------------------
 */

GB_TEST(verbs, states_and_attributes_are_checked) {
  end e;
  make(&e, QUEUE);
  struct ibv_qp_attr attr = rtr_to(&e, 1234), then = rts(7);
  GB_CHECK_INT(take(&e, 0, 8), EINVAL);
  GB_CHECK_INT(ibv_modify_qp(e.qp, &attr, RTR_MASK), EINVAL);
  GB_CHECK_INT(to_init(&e), 0);
  GB_CHECK_INT(post(&e, IBV_WR_SEND, 8, NULL), EINVAL);
  GB_CHECK_INT(ibv_modify_qp(e.qp, &attr, RTR_MASK & ~IBV_QP_RQ_PSN), EINVAL);
  GB_CHECK_INT(ibv_modify_qp(e.qp, &attr, RTR_MASK | IBV_QP_TIMEOUT), EINVAL);
  GB_CHECK_INT(ibv_modify_qp(e.qp, &then, RTS_MASK), EINVAL);
  attr.ah_attr.grh.sgid_index = 5; /* an empty one */
  GB_CHECK_INT(ibv_modify_qp(e.qp, &attr, RTR_MASK), EINVAL);
  attr.ah_attr.grh.sgid_index = 1;
  attr.ah_attr.is_global = 0; /* Ethernet */
  GB_CHECK_INT(ibv_modify_qp(e.qp, &attr, RTR_MASK), EINVAL);
  attr.ah_attr.is_global = 1;
  GB_CHECK_INT(ibv_modify_qp(e.qp, &attr, RTR_MASK), 0);
  then.retry_cnt = 8;
  GB_CHECK_INT(ibv_modify_qp(e.qp, &then, RTS_MASK), EINVAL);
  then.retry_cnt = 7;
  GB_CHECK_INT(ibv_modify_qp(e.qp, &then, RTS_MASK), 0);
  end_all(&e);
}

GB_TEST(verbs, limits_are_checked) {
  end p[2];
  setenv("FAKE_VERBS_MEMLOCK", "3000000", 1);
  make_pair(p);
  GB_CHECK_INT(post_sge(&p[0], IBV_WR_SEND, IBV_SEND_INLINE, part(&p[0], 0, 65),
                        NULL, 0),
               EINVAL);
  GB_CHECK(!ibv_reg_mr(p[0].pd, p[0].memory, ROOM, ALL_ACCESS));
  GB_CHECK_INT(errno, ENOMEM);
  GB_CHECK(!ibv_reg_mr(p[0].pd, p[0].memory, 8, IBV_ACCESS_REMOTE_WRITE));
  GB_CHECK_INT(errno, EINVAL);
  GB_CHECK(!ibv_reg_mr(p[0].pd, (void *)4096, 8, 0));
  GB_CHECK_INT(errno, EFAULT);
  GB_CHECK_INT(ibv_dealloc_pd(p[0].pd), EBUSY);
  GB_CHECK_INT(ibv_destroy_cq(p[0].cq), EBUSY);
  GB_CHECK_INT(ibv_destroy_comp_channel(p[0].channel), EBUSY);
  end_pair(p);
}

GB_TEST(verbs, devices_are_as_described) {
  setenv("FAKE_VERBS_DEVICES",
         "mlx5_0,link=ib,lid=9,mtu=2048;rxe_0,state=down,gid1=fd77::2", 1);
  int count;
  struct ibv_device **list = ibv_get_device_list(&count);
  GB_CHECK_INT(count, 2);
  GB_CHECK_TEXT(ibv_get_device_name(list[0]), "mlx5_0");
  for (int i = 0; i < 2; i++) {
    struct ibv_port_attr port;
    union ibv_gid gid;
    struct ibv_context *context = ibv_open_device(list[i]);
    GB_CHECK_INT(ibv_query_port(context, 1, &port), 0);
    GB_CHECK_INT(port.state, i ? IBV_PORT_DOWN : IBV_PORT_ACTIVE);
    GB_CHECK_INT(port.lid, i ? 0 : 9);
    GB_CHECK_INT(port.active_mtu, i ? IBV_MTU_4096 : IBV_MTU_2048);
    GB_CHECK_INT(ibv_query_port(context, 2, &port), EINVAL);
    GB_CHECK_INT(ibv_query_gid(context, 1, 1, &gid), 0);
    GB_CHECK_INT(gid.raw[0], i ? 0xfd : 0);
    GB_CHECK_INT(ibv_close_device(context), 0);
  }
  ibv_free_device_list(list);
}

GB_TEST(verbs, calls_fail_as_told) {
  setenv("FAKE_VERBS_FAIL", "ibv_open_device:2:13,ibv_alloc_pd:1:12", 1);
  struct ibv_context *context = open_first();
  struct ibv_device **list = ibv_get_device_list(NULL);
  GB_CHECK(!ibv_open_device(list[0]));
  GB_CHECK_INT(errno, EACCES);
  GB_CHECK(!ibv_alloc_pd(context));
  ibv_free_device_list(list);
  GB_CHECK_INT(ibv_close_device(context), 0);
}

/* --- what breaks a queue pair ------------------------------------------------
 */

GB_TEST(verbs, wrong_keys_and_ranges_break_both_ends) {
  for (int wrong = 0; wrong < 3; wrong++) {
    end p[2];
    struct ibv_async_event event;
    make_pair(p);
    end there = p[1];
    struct ibv_mr only_read = *p[1].mr;
    there.mr = &only_read;
    if (wrong == 0) only_read.rkey ^= 1;
    if (wrong == 1) there.memory += ROOM - 4;
    if (wrong == 2) {
      GB_CHECK_INT(ibv_dereg_mr(p[1].mr), 0);
      p[1].mr = NULL;
    }
    GB_CHECK_INT(post(&p[0], IBV_WR_RDMA_WRITE, 8, &there), 0);
    GB_CHECK_INT(post(&p[0], IBV_WR_RDMA_WRITE, 8, &there), 0);
    must_end(&p[0], IBV_WC_REM_ACCESS_ERR);
    must_end(&p[0], IBV_WC_WR_FLUSH_ERR);
    GB_CHECK_INT(ibv_get_async_event(p[1].context, &event), 0);
    GB_CHECK_INT(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
    GB_CHECK(event.element.qp == p[1].qp);
    ibv_ack_async_event(&event);
    end_pair(p);
  }
}

GB_TEST(verbs, a_wrong_lkey_breaks_the_sender) {
  end p[2];
  make_pair(p);
  struct ibv_sge sge = part(&p[0], 0, 8);
  sge.lkey = p[0].mr->rkey;
  GB_CHECK_INT(post_sge(&p[0], IBV_WR_RDMA_WRITE, 0, sge, &p[1], 0), 0);
  must_end(&p[0], IBV_WC_LOC_PROT_ERR);
  end_pair(p);
}

GB_TEST(verbs, a_short_receive_breaks_both_ends) {
  end p[2];
  make_pair(p);
  GB_CHECK_INT(take(&p[1], 0, 7), 0);
  GB_CHECK_INT(take(&p[1], 0, 7), 0);
  GB_CHECK_INT(post(&p[0], IBV_WR_SEND, 8, NULL), 0);
  must_end(&p[0], IBV_WC_REM_INV_REQ_ERR);
  must_end(&p[1], IBV_WC_LOC_LEN_ERR);
  must_end(&p[1], IBV_WC_WR_FLUSH_ERR);
  end_pair(p);
}

GB_TEST(verbs, no_receive_is_waited_for_or_given_up) {
  end p[2];
  make_pair(p);
  GB_CHECK_INT(post(&p[0], IBV_WR_SEND, 8, NULL), 0);
  must_end(&p[0], IBV_WC_RNR_RETRY_EXC_ERR);
  GB_CHECK_INT(counted().rnr, 1);
  end_pair(p);
  make(&p[0], QUEUE);
  make(&p[1], QUEUE);
  connect_to(&p[0], p[1].qp->qp_num, 7);
  connect_to(&p[1], p[0].qp->qp_num, 7);
  GB_CHECK_INT(post(&p[0], IBV_WR_SEND, 8, NULL), 0);
  while (counted().rnr < 2) nap();
  GB_CHECK_INT(take(&p[1], 0, 8), 0);
  must_end(&p[0], IBV_WC_SUCCESS);
  end_pair(p);
}

GB_TEST(verbs, a_wrong_psn_number_or_gid_is_silence) {
  for (int wrong = 0; wrong < 3; wrong++) {
    end p[2];
    make(&p[0], QUEUE);
    make(&p[1], QUEUE);
    connect_to(&p[1], p[0].qp->qp_num, 7);
    struct ibv_qp_attr attr = rtr_to(&p[0], p[1].qp->qp_num), then = rts(7);
    if (wrong == 0) then.sq_psn++;
    if (wrong == 1) attr.dest_qp_num ^= 0x400;
    if (wrong == 2) attr.ah_attr.grh.dgid.raw[15] ^= 8;
    GB_CHECK_INT(to_init(&p[0]), 0);
    GB_CHECK_INT(ibv_modify_qp(p[0].qp, &attr, RTR_MASK), 0);
    GB_CHECK_INT(ibv_modify_qp(p[0].qp, &then, RTS_MASK), 0);
    GB_CHECK_INT(take(&p[1], 0, 8), 0);
    GB_CHECK_INT(post(&p[0], IBV_WR_SEND, 8, NULL), 0);
    must_end(&p[0], IBV_WC_RETRY_EXC_ERR);
    end_pair(p);
  }
}

/* --- misuse ------------------------------------------------------------------
 */

static void deregister_early(void) {
  end e;
  make(&e, QUEUE);
  to_init(&e);
  take(&e, 0, 8);
  ibv_dereg_mr(e.mr);
}
static void change_early(void) {
  end p[2];
  setenv("FAKE_VERBS_FAULT", "delay:any:1:50:*", 1);
  make_pair(p);
  post(&p[0], IBV_WR_RDMA_WRITE, 8, &p[1]);
  p[0].memory[0]++;
  next(&p[0]);
}
static void overflow(void) {
  end e;
  make(&e, 256);
  to_init(&e);
  for (int i = 0; i < 129; i++) take(&e, 0, 8);
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
  ibv_modify_qp(e.qp, &attr, IBV_QP_STATE);
}
static void leave_things(void) {
  end e;
  make(&e, QUEUE);
  exit(0);
}

GB_TEST(verbs, misuse_is_said) {
  dies(deregister_early, (const char *[]){"ibv_dereg_mr", "posted", NULL});
  dies(change_early, (const char *[]){"changed before", NULL});
  dies(overflow, (const char *[]){"128 entries overflows", NULL});
  ends_with(leave_things, "left at exit: 1 memory region");
}

/* --- faults ------------------------------------------------------------------
 */

static void with_fault(const char *fault, end p[2]) {
  setenv("FAKE_VERBS_FAULT", fault, 1);
  make_pair(p);
  GB_CHECK_INT(take(&p[1], 64, 8), 0);
  GB_CHECK_INT(take(&p[1], 64, 8), 0);
  GB_CHECK_INT(post(&p[0], IBV_WR_SEND, 8, NULL), 0);
  GB_CHECK_INT(post(&p[0], IBV_WR_SEND, 8, NULL), 0);
}

static int next_event(const end *e) {
  struct ibv_async_event event;
  GB_CHECK_INT(ibv_get_async_event(e->context, &event), 0);
  ibv_ack_async_event(&event);
  return (int)event.event_type;
}

GB_TEST(verbs, fault_status) {
  end p[2];
  with_fault("status:send:2:10:*", p);
  must_end(&p[0], IBV_WC_SUCCESS);
  must_end(&p[0], IBV_WC_REM_ACCESS_ERR);
  end_pair(p);
}

GB_TEST(verbs, fault_of_another_rank) {
  end p[2];
  setenv("RANK", "1", 1);
  with_fault("status:send:1:10:0", p);
  must_end(&p[0], IBV_WC_SUCCESS);
  end_pair(p);
}

GB_TEST(verbs, fault_lose) {
  end p[2];
  with_fault("lose:send:1:0:*", p);
  must_end(&p[0], IBV_WC_SUCCESS);
  must_end(&p[0], IBV_WC_SUCCESS);
  must_end(&p[1], IBV_WC_SUCCESS);
  struct ibv_wc wc;
  GB_CHECK_INT(p[1].context->ops.poll_cq(p[1].cq, 1, &wc), 0);
  end_pair(p);
}

GB_TEST(verbs, fault_delay) {
  end p[2];
  with_fault("delay:send:1:300:*", p);
  must_end(&p[1], IBV_WC_SUCCESS);
  must_end(&p[1], IBV_WC_SUCCESS);
  struct ibv_wc wc;
  GB_CHECK_INT(p[0].context->ops.poll_cq(p[0].cq, 1, &wc), 0);
  must_end(&p[0], IBV_WC_SUCCESS);
  end_pair(p);
}

GB_TEST(verbs, fault_port_down) {
  end p[2];
  with_fault("down:send:2:0:*", p);
  GB_CHECK_INT(next_event(&p[0]), IBV_EVENT_PORT_ERR);
  struct ibv_port_attr port;
  GB_CHECK_INT(ibv_query_port(p[0].context, 1, &port), 0);
  GB_CHECK_INT(port.state, IBV_PORT_DOWN);
  while (next(&p[0]).status != IBV_WC_RETRY_EXC_ERR) continue;
  end_pair(p);
}

GB_TEST(verbs, fault_port_down_for_a_moment) {
  end p[2];
  with_fault("down:send:2:5:*", p);
  must_end(&p[0], IBV_WC_SUCCESS);
  must_end(&p[0], IBV_WC_SUCCESS);
  must_end(&p[1], IBV_WC_SUCCESS);
  must_end(&p[1], IBV_WC_SUCCESS);
  GB_CHECK_INT(next_event(&p[0]), IBV_EVENT_PORT_ERR);
  GB_CHECK_INT(next_event(&p[0]), IBV_EVENT_PORT_ACTIVE);
  end_pair(p);
}

GB_TEST(verbs, fault_qp_and_device) {
  end p[2];
  with_fault("qp:send:2:0:*", p);
  GB_CHECK_INT(next_event(&p[0]), IBV_EVENT_QP_FATAL);
  while (next(&p[0]).status != IBV_WC_WR_FLUSH_ERR) continue;
  end_pair(p);
}

GB_TEST(verbs, fault_device) {
  end p[2];
  with_fault("device:send:2:0:*", p);
  GB_CHECK_INT(next_event(&p[0]), IBV_EVENT_DEVICE_FATAL);
  while (next(&p[0]).status != IBV_WC_WR_FLUSH_ERR) continue;
  end_pair(p);
}

GB_TEST(verbs, fault_kill, .expect = "k") {
  end p[2];
  with_fault("kill:send:2:0:*", p);
  for (;;) nap();
}

GB_TEST(verbs, a_slow_peer) {
  end p[2];
  setenv("FAKE_VERBS_SLOW_US", "50000", 1);
  make_pair(p);
  struct timespec before, after;
  clock_gettime(CLOCK_MONOTONIC, &before);
  for (int i = 0; i < 3; i++)
    GB_CHECK_INT(post(&p[0], IBV_WR_RDMA_WRITE, 8, &p[1]), 0);
  for (int i = 0; i < 3; i++) must_end(&p[0], IBV_WC_SUCCESS);
  clock_gettime(CLOCK_MONOTONIC, &after);
  GB_CHECK((after.tv_sec - before.tv_sec) * 1000 +
               (after.tv_nsec - before.tv_nsec) / 1000000 >=
           90);
  end_pair(p);
}
