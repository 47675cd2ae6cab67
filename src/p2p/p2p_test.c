/* The layer below gb_send: heads are refused whatever is wrong with them, a
 * peer that lies over a link ends the job with its name, groups do not mix, a
 * mesh moves what its steps say, in any order, and finds calls that differ.
 * (Whole jobs: tests/job/p2p_test.c.) */
#include "harness/gb_area.h"
#include "harness/gb_test.h"
#include "p2p/mesh.h"
#include "p2p/state.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- heads ---- */

static gbi_p2p_head eager_head(void) {
  static const uint8_t word[4] = {1, 2, 3, 4};
  return (gbi_p2p_head){.kind = GBI_HEAD_EAGER,
                        .class = GBI_P2P_USER,
                        .dtype = GB_FLOAT32,
                        .inside = 4,
                        .group = 3,
                        .tag = 9,
                        .count = 1,
                        .bytes = 4,
                        .data = word};
}

static const char *pass_on(const gbi_p2p_head *head, gbi_p2p_head *read) {
  static uint8_t raw[GBI_P2P_HEAD_BYTES];
  gbi_p2p_head_write(head, raw);
  return gbi_p2p_head_read(raw, read);
}

GB_TEST(head, travels) {
  gbi_p2p_head head = eager_head(), read;
  head.taken = 77;
  GB_CHECK(!pass_on(&head, &read));
  GB_CHECK_INT(read.group, 3);
  GB_CHECK_INT(read.tag, 9);
  GB_CHECK_INT(read.taken, 77);
  GB_CHECK(!memcmp(read.data, head.data, 4));
  head.class = GBI_P2P_MESH;
  head.step = 5;
  head.call = (gbi_call){.seq = 9, .count = 8, .root = -1, .op = 3};
  GB_CHECK(!pass_on(&head, &read));
  GB_CHECK(gbi_call_equal(&read.call, &head.call));
  GB_CHECK_INT(read.step, 5);
}

#define REFUSED(change, text)                                                  \
  do {                                                                         \
    gbi_p2p_head h = eager_head(), got;                                        \
    change;                                                                    \
    const char *wrong = pass_on(&h, &got);                                     \
    GB_CHECK(wrong != NULL);                                                   \
    GB_CHECK_TEXT(wrong, text);                                                \
  } while (0)

GB_TEST(head, nonsense_is_refused) {
  REFUSED(h.kind = 0, "unknown kind");
  REFUSED(h.kind = GBI_HEAD_KINDS, "unknown kind");
  REFUSED(h.class = 3, "unknown class");
  REFUSED(h.dtype = 200, "unknown type");
  REFUSED(h.bytes = 5, "bad length");
  REFUSED((h.count = UINT64_MAX / 4 + 2, h.bytes = 4), "bad length");
  REFUSED(h.inside = 3, "bad length");
  REFUSED(h.inside = 0, "bad length");
  REFUSED((h.count = 5000, h.bytes = 20000, h.inside = 0), "bad length");
  REFUSED(h.step = 1, "spare");
  REFUSED(h.call.count = 1, "spare");
  REFUSED(h.id = 1, "spare");
  REFUSED(h.payload = 1, "spare");
  REFUSED(h.kind = GBI_HEAD_RTS, "bad length");
  REFUSED(h.kind = GBI_HEAD_CTS, "spare");
  REFUSED(h.kind = GBI_HEAD_BYE, "spare");
  REFUSED(h = ((gbi_p2p_head){.kind = GBI_HEAD_CTS,
                              .payload = GBI_P2P_ASKED_TAG}),
          "bad number");
  REFUSED(h = ((gbi_p2p_head){.kind = GBI_HEAD_TAKEN, .id = 1}), "spare");
  REFUSED(h = ((gbi_p2p_head){.kind = GBI_HEAD_NACK, .dtype = 99}), "type");
}

/* No bytes are taken for a head whose fields point outside of it. */
GB_TEST(head, noise) {
  uint8_t raw[GBI_P2P_HEAD_BYTES];
  gbi_p2p_head head = eager_head(), read;
  uint64_t seed = 1;
  for (int i = 0; i < 200000; i++) {
    gbi_p2p_head_write(&head, raw);
    for (int k = 0; k < 3; k++) {
      seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
      raw[4 + (seed >> 33) % (GBI_P2P_HEAD_BYTES - 4)] = (uint8_t)(seed >> 56);
    }
    if (gbi_p2p_head_read(raw, &read)) continue;
    GB_CHECK(read.inside <= GBI_P2P_INLINE);
    GB_CHECK(read.kind != GBI_HEAD_EAGER || read.bytes <= GBI_P2P_EAGER);
  }
}

/* ---- a small job: a control plane, a host area and messages ---- */

static gbi_control *control;
static gbi_hostarea *area;
static gbi_p2p *p2p;
static gb_error err;
static gbi_member members[8];
static const char *const who[] = {"rank 0 (h)", "rank 1 (h)", "rank 2 (h)",
                                  "rank 3 (h)"};

static void on_offer(void *arg, int from, const void *blob, size_t bytes) {
  gbi_p2p *p = __atomic_load_n(&p2p, __ATOMIC_ACQUIRE);
  if (p) gbi_p2p_on_offer(p, from, blob, bytes);
}
static void on_left(void *arg, int rank) {
  gbi_p2p *p = __atomic_load_n(&p2p, __ATOMIC_ACQUIRE);
  if (p) gbi_p2p_on_left(p, rank);
}
static void on_failure(void *arg) {
  gbi_p2p *p = __atomic_load_n(&p2p, __ATOMIC_ACQUIRE);
  if (p) gbi_p2p_on_failure(p);
  gbi_hostarea_ring(area, gbi_hostarea_me(area));
}

static void open_control(void (*offer)(void *, int, const void *, size_t)) {
  int world = gb_world();
  gbi_control_params params = {
      .store = {.rank = gb_rank(),
                .world_size = world,
                .deadline_ns = gbi_deadline_after_ms(20000)},
      .on_failure = on_failure,
      .on_offer = offer,
      .on_left = on_left,
      .hostname = "h",
      .vendor = "amd",
  };
  gbi_blobs blobs;
  area = gb_area_open(NULL);
  if (gbi_control_open(&params, &control, &err) != GB_OK)
    gb_test_fail(__FILE__, __LINE__, "%s", err.text);
  GB_CHECK_OK(gbi_control_gather(control, "x", 1, NULL, NULL,
                                 gbi_deadline_after_ms(20000), &blobs, &err));
  gbi_blobs_free(&blobs);
  for (int r = 0; r < world; r++)
    members[r] = (gbi_member){r, r, "h", "amd"};
}

/* far: ranks do not share a host for their links. */
static void open_all(bool far) {
  open_control(on_offer);
  gbi_member seen[8];
  memcpy(seen, members, sizeof seen);
  for (int r = 0; far && r < gb_world(); r++) seen[r].local = -1;
  gbi_p2p_params params = {.rank = gb_rank(),
                           .world = gb_world(),
                           .members = seen,
                           .who = who,
                           .area = area,
                           .auth = &gb_area_auth,
                           .control = control,
                           .network = &gbi_transport_tcp,
                           .store_host = "127.0.0.1",
                           .timeout_ms = 10000};
  gbi_p2p *p;
  GB_CHECK_OK(gbi_p2p_open(&params, &p, &err));
  __atomic_store_n(&p2p, p, __ATOMIC_RELEASE);
  gb_meet();
}

static void close_all(void) {
  gbi_p2p_stop(p2p);
  gbi_control_goodbye(control, gbi_deadline_after_ms(5000));
  gbi_control_close(control);
  gbi_p2p_free(p2p);
  gbi_hostarea_close(area);
}

static gbi_p2p_op op_of(bool is_send, int peer, uint32_t group, uint64_t tag,
                        void *data, size_t count) {
  return (gbi_p2p_op){.is_send = is_send,
                      .class = GBI_P2P_USER,
                      .group = group,
                      .peer = peer,
                      .tag = tag,
                      .data = data,
                      .count = count,
                      .dtype = GB_FLOAT32};
}

static gb_status run(gbi_p2p_op *op) {
  gbi_p2p_call call = {.ops = op, .count = 1, .timeout_ms = 5000};
  GBI_TRY(gbi_p2p_start(p2p, &call, &err));
  return gbi_p2p_wait(p2p, &call, NULL, NULL, &err);
}

#define RUN(op)                                                                \
  do {                                                                         \
    if (run(op) != GB_OK) gb_test_fail(__FILE__, __LINE__, "%s", err.text);    \
  } while (0)

/* Equal tags of two groups are two messages; what any member may send is not
 * taken from others. */
GB_TEST(p2p, groups_do_not_mix, .ranks = 3) {
  static const int one[] = {0, 1}, two[] = {0, 2};
  open_all(false);
  float value = (float)gb_rank();
  if (gb_rank()) {
    gbi_p2p_op a = op_of(true, 0, 10, 5, &value, 1);
    RUN(&a);
    value += 10;
    a = op_of(true, 0, 20, 5, &value, 1);
    RUN(&a);
  } else {
    for (int i = 0; i < 4; i++) {
      gbi_p2p_op a = op_of(false, GB_ANY_SOURCE, i < 2 ? 20 : 10, 5, &value, 1);
      a.members = i % 2 ? one : two;
      a.members_count = 2;
      RUN(&a);
      GB_CHECK_INT(a.source, i % 2 ? 1 : 2);
      GB_CHECK(value == (float)(a.source + (i < 2 ? 10 : 0)));
    }
  }
  gb_meet();
  close_all();
}

/* ---- liars ---- */

static uint8_t their_offer[GBI_OFFER_MAX];
static size_t their_bytes;
static _Atomic bool have_offer;

static void keep_offer(void *arg, int from, const void *blob, size_t bytes) {
  memcpy(their_offer, blob, bytes);
  their_bytes = bytes;
  have_offer = true;
}

/* Rank 1's own end of a link to rank 0, without the layer under test. */
static gbi_transport *raw_link(void) {
  gbi_transport *t;
  uint8_t mine[1024];
  gbi_writer w;
  gbi_reader addresses[2];
  gbi_transport_params params = {.members = members,
                                 .members_count = 2,
                                 .me = 1,
                                 .area = area,
                                 .auth = &gb_area_auth,
                                 .timeout_ms = 10000,
                                 .lane = 1};
  GB_CHECK_OK(gbi_transport_shm.open(&params, &t, &err));
  gbi_writer_init(&w, mine, sizeof mine);
  t->ops->address(t, &w);
  gbi_control_offer(control, 0, mine, w.used);
  while (!have_offer) usleep(1000);
  gbi_reader_init(&addresses[0], their_offer, their_bytes);
  gbi_reader_init(&addresses[1], mine, w.used);
  GB_CHECK_OK(
      t->ops->connect(t, addresses, gbi_deadline_after_ms(5000), &err));
  return t;
}

static void send_raw(gbi_transport *t, const gbi_p2p_head *head, uint64_t n) {
  static const gbi_call call = {
      .root = -1, .op = GBI_OP_SEND, .dtype = 255, .redop = 255};
  uint8_t raw[GBI_P2P_HEAD_BYTES];
  gbi_p2p_head_write(head, raw);
  gbi_xfer xfer = {
      .tag = n, .call = call, .data = raw, .bytes = sizeof raw};
  uint64_t until = gbi_deadline_after_ms(5000);
  t->ops->post_send(t, 0, &xfer);
  while (xfer.status == GB_ERR_BUSY && !gbi_deadline_passed(until) &&
         !gbi_control_failed(control, NULL))
    t->ops->progress(t);
}

static void lie(const gbi_p2p_head *head, int times, const char *text) {
  if (gb_rank() == 0) {
    float value;
    open_all(false);
    gbi_p2p_op a = op_of(false, 1, 1, 1, &value, 1);
    GB_CHECK_INT(run(&a), GB_ERR_PROTOCOL);
    GB_CHECK_TEXT(err.text, "rank 1");
    GB_CHECK_TEXT(err.text, text);
    close_all();
  } else {
    open_control(keep_offer);
    gb_meet();
    gbi_transport *t = raw_link();
    for (int i = 0; i < times; i++) send_raw(t, head, (uint64_t)i);
    uint64_t until = gbi_deadline_after_ms(10000);
    while (!gbi_control_failed(control, &err))
      GB_CHECK(!gbi_deadline_passed(until));
    GB_CHECK_TEXT(err.text, text);
    t->ops->stop(t);
    t->ops->close(t);
    gbi_control_close(control);
    gbi_hostarea_close(area);
  }
}

GB_TEST(p2p, liar_unknown_kind, .ranks = 2) {
  gbi_p2p_head h = {.kind = 99};
  lie(&h, 1, "a head of an unknown kind");
}
GB_TEST(p2p, liar_answers_nothing, .ranks = 2) {
  gbi_p2p_head h = {.kind = GBI_HEAD_CTS, .id = 4, .payload = 1};
  lie(&h, 1, "an answer to nothing");
}
GB_TEST(p2p, liar_refuses_nothing, .ranks = 2) {
  gbi_p2p_head h = {.kind = GBI_HEAD_NACK, .id = 4, .dtype = GB_FLOAT32};
  lie(&h, 1, "an answer to nothing");
}
GB_TEST(p2p, liar_took_what_was_not_sent, .ranks = 2) {
  gbi_p2p_head h = {.kind = GBI_HEAD_TAKEN, .taken = 1};
  lie(&h, 1, "a bad count of what it took");
}
GB_TEST(p2p, liar_ignores_the_window, .ranks = 2) {
  gbi_p2p_head h = eager_head();
  lie(&h, GBI_P2P_WINDOW / GBI_P2P_EAGER_COST + 1, "more than its window");
}
GB_TEST(p2p, liar_asks_without_end, .ranks = 2) {
  gbi_p2p_head h = eager_head();
  h.kind = GBI_HEAD_RTS;
  h.inside = 0;
  h.id = 1;
  lie(&h, GBI_P2P_RTS_MAX + 1, "more requests than it may");
}
GB_TEST(p2p, liar_talks_after_its_bye, .ranks = 2) {
  gbi_p2p_head h = {.kind = GBI_HEAD_BYE};
  if (gb_rank() == 1) {
    lie(&h, 2, "");
    return;
  }
  /* Its bye alone ends who waits for it. */
  float value;
  open_all(false);
  gbi_p2p_op a = op_of(false, 1, 1, 1, &value, 1);
  gb_status status = run(&a);
  GB_CHECK(status == GB_ERR_PEER || status == GB_ERR_PROTOCOL);
  GB_CHECK_TEXT(err.text, "rank 1");
  close_all();
}

/* ---- the mesh ---- */

enum { MESH_STEPS = 64 };

/* Drives steps as the engine does: all in flight, progress on each, sleep. */
static gb_status drive_mesh(gbi_comm *comm, const gbi_comm_step *steps,
                            int count) {
  static void *states[MESH_STEPS];
  bool done[MESH_STEPS] = {false};
  gbi_waiter *waiter = gbi_hostarea_waiter(area);
  uint64_t until = gbi_deadline_after_ms(20000);
  for (int i = 0; i < count; i++) {
    if (!states[i])
      states[i] = aligned_alloc(64, (comm->ops->state_bytes + 63) / 64 * 64);
    comm->ops->start(comm, &steps[i], states[i]);
  }
  for (int left = count, idle = 0; left;) {
    uint32_t seen = gbi_bell_look(waiter);
    bool moved = false;
    for (int i = 0; i < count; i++) {
      if (done[i]) continue;
      gb_status status = comm->ops->progress(comm, states[i], &err);
      if (status == GB_ERR_BUSY) continue;
      if (status != GB_OK) return status;
      done[i] = moved = true;
      left--;
    }
    GB_CHECK(!gbi_deadline_passed(until));
    if (gbi_control_failed(control, &err)) return err.status;
    idle = moved ? 0 : idle + 1;
    if (idle < 20 || !left) continue;
    int fds[8];
    struct pollfd polls[8];
    int n = comm->ops->wait_fds(comm, fds, 8);
    for (int i = 0; i < n; i++) polls[i] = (struct pollfd){fds[i], POLLIN, 0};
    gbi_waiter_sleep(waiter, seen, n ? polls : NULL, n, 100);
  }
  return GB_OK;
}

static gbi_comm_step mesh_step_of(bool sends, uint64_t seq, uint32_t step,
                                  int peer, void *data, size_t count) {
  return (gbi_comm_step){
      .kind = sends ? GBI_COMM_SEND : GBI_COMM_RECV,
      .call = {.seq = seq, .count = 7, .root = -1, .op = GBI_OP_ALL_TO_ALL,
               .dtype = GB_INT32, .redop = 255},
      .step = step,
      .peer = peer,
      .src = sends ? data : NULL,
      .dst = sends ? NULL : data,
      .count = count,
      .dtype = GB_INT32};
}

/* All to all of the members, small and large; receives come first on one half
 * of the ranks and in another order than the sends. */
static void all_to_all(gbi_comm *comm, uint64_t seq, int count) {
  static int32_t out[4][40000], in[4][40000];
  gbi_comm_step steps[MESH_STEPS] = {{0}};
  int n = 0, world = comm->members_count, me = comm->me;
  for (int k = 1; k < world; k++) {
    int to = (me + k) % world, from = (me + world - k) % world;
    for (int i = 0; i < count; i++)
      out[to][i] = (int32_t)(seq * 1000 + (uint64_t)(me * 10 + to) + i);
    memset(in[from], 0, sizeof in[from]);
    gbi_comm_step send = mesh_step_of(true, seq, (uint32_t)(me * 8 + to), to,
                                      out[to], (size_t)count);
    gbi_comm_step recv = mesh_step_of(false, seq, (uint32_t)(from * 8 + me),
                                      from, in[from], (size_t)count);
    steps[n++] = me % 2 ? recv : send;
    steps[n++] = me % 2 ? send : recv;
  }
  if (drive_mesh(comm, steps, n) != GB_OK)
    gb_test_fail(__FILE__, __LINE__, "%s", err.text);
  for (int from = 0; from < world; from++)
    for (int i = 0; from != me && i < count; i++)
      GB_CHECK_INT(in[from][i],
                   seq * 1000 + (uint64_t)(from * 10 + me) + i);
}

static void mesh_rounds(bool far) {
  static const int all[] = {0, 1, 2, 3};
  gbi_comm *comm;
  open_all(far);
  GB_CHECK_OK(gbi_mesh_open(p2p, 4, all, 4, gb_rank(), &comm, &err));
  for (uint64_t seq = 0; seq < 60; seq++)
    all_to_all(comm, seq, seq % 5 == 1 ? 40000 : seq % 5 == 2 ? 0 : 3);
  gb_meet();
  comm->ops->stop(comm);
  comm->ops->close(comm);
  close_all();
}

GB_TEST(mesh, all_to_all_shm, .ranks = 4, .timeout_ms = 60000) {
  mesh_rounds(false);
}
GB_TEST(mesh, all_to_all_tcp, .ranks = 4, .timeout_ms = 60000) {
  mesh_rounds(true);
}

/* User messages on another thread while the mesh's engine drives. */
static void *user_messages(void *arg) {
  for (int i = 0; i < 200; i++) {
    float value = (float)i;
    bool first = i % 2 == gb_rank();
    gbi_p2p_op a = op_of(first, !gb_rank(), 4, 1, &value, 1);
    RUN(&a);
    GB_CHECK(value == (float)i);
  }
  return NULL;
}

GB_TEST(mesh, beside_user_messages, .ranks = 2, .timeout_ms = 60000) {
  static const int all[] = {0, 1};
  gbi_comm *comm;
  open_all(false);
  GB_CHECK_OK(gbi_mesh_open(p2p, 4, all, 2, gb_rank(), &comm, &err));
  pthread_t thread;
  GB_CHECK_OK(pthread_create(&thread, NULL, user_messages, NULL));
  for (uint64_t seq = 0; seq < 100; seq++)
    all_to_all(comm, seq, seq % 4 ? 3 : 30000);
  GB_CHECK_OK(pthread_join(thread, NULL));
  gb_meet();
  comm->ops->stop(comm);
  comm->ops->close(comm);
  close_all();
}

static void finish_mesh_step(gbi_comm *comm, void *state) {
  uint64_t until = gbi_deadline_after_ms(20000);
  gb_status status;
  while ((status = comm->ops->progress(comm, state, &err)) == GB_ERR_BUSY) {
    GB_CHECK(!gbi_deadline_passed(until));
    sched_yield();
  }
  GB_CHECK_OK(status);
}

/* Whoever drove for one group leaves its place when that one's messages are
 * there, though another group still waits for some. */
GB_TEST(mesh, two_groups_in_turn, .ranks = 2, .timeout_ms = 60000) {
  static const int all[] = {0, 1};
  int32_t data[2] = {gb_rank() * 7, gb_rank() * 8};
  bool sends = gb_rank() == 1;
  gbi_comm *comms[2];
  void *states[2];
  gbi_comm_step steps[2];
  open_all(false);
  for (int i = 0; i < 2; i++) {
    GB_CHECK_OK(gbi_mesh_open(p2p, 4 + (uint32_t)i, all, 2, gb_rank(),
                              &comms[i], &err));
    states[i] = aligned_alloc(64, (comms[i]->ops->state_bytes + 63) / 64 * 64);
    steps[i] = mesh_step_of(sends, 6, 1, !gb_rank(), &data[i], 1);
    if (!sends) comms[i]->ops->start(comms[i], &steps[i], states[i]);
  }
  if (!sends) /* drives from here on */
    GB_CHECK_INT(comms[0]->ops->progress(comms[0], states[0], &err),
                 GB_ERR_BUSY);
  for (int i = 0; i < 2; i++) {
    gb_meet(); /* so that the second message comes after the first is taken */
    if (sends) comms[i]->ops->start(comms[i], &steps[i], states[i]);
    finish_mesh_step(comms[i], states[i]);
  }
  GB_CHECK_INT(data[0], 7);
  GB_CHECK_INT(data[1], 8);
  gb_meet();
  for (int i = 0; i < 2; i++) {
    comms[i]->ops->stop(comms[i]);
    comms[i]->ops->close(comms[i]);
    free(states[i]);
  }
  close_all();
}

/* Both sides end with both calls in the text. */
static void calls_differ(size_t count) {
  static const int all[] = {0, 1};
  static int32_t data[40000];
  gbi_comm *comm;
  open_all(false);
  GB_CHECK_OK(gbi_mesh_open(p2p, 4, all, 2, gb_rank(), &comm, &err));
  gbi_comm_step step =
      mesh_step_of(gb_rank() == 0, 6, 1, !gb_rank(), data, count);
  if (gb_rank()) step.call.op = GBI_OP_GATHER, step.call.root = 1;
  gb_status status = drive_mesh(comm, &step, 1);
  /* A small send may be over before its receiver looks. */
  uint64_t until = gbi_deadline_after_ms(5000);
  while (!gbi_control_failed(control, &err))
    GB_CHECK(!gbi_deadline_passed(until));
  if (gb_rank()) GB_CHECK_INT(status, GB_ERR_MISMATCH);
  GB_CHECK_INT(err.status, GB_ERR_MISMATCH);
  GB_CHECK_TEXT(err.text, "rank 0 called all_to_all number 6");
  GB_CHECK_TEXT(err.text, "rank 1 called gather number 6");
  comm->ops->stop(comm);
  comm->ops->close(comm);
  gbi_p2p_stop(p2p);
  gbi_control_close(control);
  gbi_p2p_free(p2p);
  gbi_hostarea_close(area);
}

GB_TEST(mesh, small_calls_differ, .ranks = 2) { calls_differ(3); }
GB_TEST(mesh, large_calls_differ, .ranks = 2) { calls_differ(40000); }

/* A step's memory is the engine's again once stop has returned. */
GB_TEST(mesh, stopped_with_a_step_open, .ranks = 2) {
  static const int all[] = {0, 1};
  gbi_comm *comm;
  open_all(false);
  GB_CHECK_OK(gbi_mesh_open(p2p, 4, all, 2, gb_rank(), &comm, &err));
  int32_t data[3];
  gbi_comm_step step = mesh_step_of(false, 6, 1, !gb_rank(), data, 3);
  void *state = aligned_alloc(64, (comm->ops->state_bytes + 63) / 64 * 64);
  comm->ops->start(comm, &step, state);
  GB_CHECK_INT(comm->ops->progress(comm, state, &err), GB_ERR_BUSY);
  int waits[2];
  GB_CHECK_INT(comm->ops->waiting_for(comm, state, waits, 2), 1);
  GB_CHECK_INT(waits[0], !gb_rank());
  comm->ops->stop(comm);
  GB_CHECK_INT(comm->ops->progress(comm, state, &err), GB_ERR_CANCELED);
  comm->ops->close(comm);
  free(state);
  close_all();
}
