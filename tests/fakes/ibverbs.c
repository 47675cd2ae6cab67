/* The fake libibverbs: settings, devices, asynchronous events, faults.
 * ibverbs_fake.h says what it is. */
#include "fakes/ibverbs_state.h"

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* --- settings --------------------------------------------------------------
 */

typedef struct failure {
  char function[40];
  int n, error;
  int calls;
} failure;
typedef struct fault {
  char what[12], kind[8];
  int n, value;
  bool is_ours;
  int seen;
} fault;
enum { RULES_MOST = 16 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static failure failures[RULES_MOST];
static fault faults[RULES_MOST];
static int failures_count, faults_count, devices_count;
static fake_ib_device devices[FAKE_IB_DEVICES_MOST];
static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;
static fake_ib_context *contexts;

uint64_t fake_ib_slow_us;
fake_verbs_counts fake_ib_counts;
int fake_ib_live[6];

uint64_t fake_ib_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void fake_ib_misuse(const char *format, ...) {
  va_list list;
  fprintf(stderr, "fake verbs: misuse: ");
  va_start(list, format);
  vfprintf(stderr, format, list);
  va_end(list);
  fprintf(stderr, "\n");
  abort();
}

static void not_understood(const char *name, const char *text) {
  fprintf(stderr, "fake verbs: %s: not understood: %s\n", name, text);
  abort();
}

static void read_failures(const char *at) {
  while (at && *at && failures_count < RULES_MOST) {
    failure *f = &failures[failures_count++];
    if (sscanf(at, "%39[^:]:%d:%d", f->function, &f->n, &f->error) != 3)
      not_understood("FAKE_VERBS_FAIL", at);
    at = strchr(at, ',');
    if (at) at++;
  }
}

static void read_faults(const char *at) {
  const char *mine = getenv("RANK");
  while (at && *at && faults_count < RULES_MOST) {
    fault *f = &faults[faults_count++];
    char rank[8];
    if (sscanf(at, "%11[^:]:%7[^:]:%d:%d:%7[^,]", f->what, f->kind, &f->n,
               &f->value, rank) != 5)
      not_understood("FAKE_VERBS_FAULT", at);
    f->is_ours = rank[0] == '*' || (mine && !strcmp(mine, rank));
    at = strchr(at, ',');
    if (at) at++;
  }
}

static int number_of(const char *text, const char *const *words, int most) {
  for (int i = 0; i < most; i++)
    if (!strcmp(text, words[i])) return i;
  not_understood("FAKE_VERBS_DEVICES", text);
  return -1;
}

static void read_gid(fake_ib_device *d, int index, const char *value) {
  if (index < 0 || index >= FAKE_IB_GIDS)
    not_understood("FAKE_VERBS_DEVICES", value);
  memset(&d->gids[index], 0, sizeof d->gids[index]);
  if (strcmp(value, "none") &&
      inet_pton(AF_INET6, value, d->gids[index].raw) != 1)
    not_understood("FAKE_VERBS_DEVICES", value);
}

static void read_pair(fake_ib_device *d, const char *key, const char *value) {
  static const char *const states[] = {"nop", "down", "init", "armed",
                                       "active"};
  static const char *const links[] = {"none", "ib", "eth"};
  static const char *const mtus[] = {"0", "256", "512", "1024", "2048", "4096"};
  int number = (int)strtol(value, NULL, 10);
  if (!strcmp(key, "ports"))
    d->ports = number;
  else if (!strcmp(key, "state"))
    d->state = number_of(value, states, 5);
  else if (!strcmp(key, "link"))
    d->link = number_of(value, links, 3);
  else if (!strcmp(key, "mtu"))
    d->mtu = number_of(value, mtus, 6);
  else if (!strcmp(key, "lid"))
    d->lid = number;
  else if (!strcmp(key, "wr"))
    d->wr_most = number;
  else if (!strcmp(key, "cqe"))
    d->cqe_most = number;
  else if (!strcmp(key, "inline"))
    d->inline_most = number;
  else if (!strcmp(key, "sge"))
    d->sge_most = number;
  else if (!strcmp(key, "qps"))
    d->qps_most = number;
  else if (!strcmp(key, "mr"))
    d->mr_most = strtoull(value, NULL, 10);
  else if (!strcmp(key, "sysfs"))
    snprintf(d->device.ibdev_path, sizeof d->device.ibdev_path, "%s", value);
  else if (!strncmp(key, "gid", 3))
    read_gid(d, (int)strtol(key + 3, NULL, 10), value);
  else
    not_understood("FAKE_VERBS_DEVICES", key);
}

static void read_device(char *text) {
  char *rest = NULL, *pair;
  const char *name = strtok_r(text, ",", &rest);
  if (!name || devices_count == FAKE_IB_DEVICES_MOST) return;
  fake_ib_device *d = &devices[devices_count++];
  *d = (fake_ib_device){.ports = 1,
                        .state = IBV_PORT_ACTIVE,
                        .link = IBV_LINK_LAYER_ETHERNET,
                        .mtu = IBV_MTU_4096,
                        .wr_most = 4096,
                        .cqe_most = 65536,
                        .inline_most = 256,
                        .sge_most = 8,
                        .qps_most = 1024,
                        .mr_most = UINT64_MAX};
  snprintf(d->device.name, sizeof d->device.name, "%s", name);
  snprintf(d->device.dev_name, sizeof d->device.dev_name, "uverbs%d",
           devices_count - 1);
  d->device.node_type = IBV_NODE_CA;
  d->device.transport_type = IBV_TRANSPORT_IB;
  inet_pton(AF_INET6, "fe80::1", d->gids[0].raw);
  inet_pton(AF_INET6, "::ffff:127.0.0.1", d->gids[1].raw);
  while ((pair = strtok_r(NULL, ",", &rest))) {
    char *value = strchr(pair, '=');
    if (!value) not_understood("FAKE_VERBS_DEVICES", pair);
    *value = 0;
    read_pair(d, pair, value + 1);
  }
  if (d->ports < 1 || d->ports > FAKE_IB_PORTS_MOST ||
      d->sge_most > FAKE_IB_SGES_MOST)
    not_understood("FAKE_VERBS_DEVICES", name);
  if (d->link == IBV_LINK_LAYER_INFINIBAND && !d->lid)
    d->lid = 1 + (int)(getpid() % 40000);
}

static const char *const live_names[] = {
    "open device",        "protection domain", "memory region",
    "completion channel", "completion queue",  "queue pair"};

static void at_exit(int status, void *arg) {
  bool any = false;
  (void)arg;
  if (status) return;
  for (int i = 0; i < 6; i++) {
    int left = __atomic_load_n(&fake_ib_live[i], __ATOMIC_RELAXED);
    if (left)
      fprintf(stderr, "fake verbs: left at exit: %d %s(s)\n", left,
              live_names[i]);
    any = any || left;
  }
  fflush(NULL);
  if (any) _exit(98);
}

static void read_settings(void) {
  const char *slow = getenv("FAKE_VERBS_SLOW_US");
  const char *leaks = getenv("FAKE_VERBS_LEAKS");
  const char *list = getenv("FAKE_VERBS_DEVICES");
  char text[4096], *rest = NULL;
  if (slow) fake_ib_slow_us = strtoull(slow, NULL, 10);
  read_failures(getenv("FAKE_VERBS_FAIL"));
  read_faults(getenv("FAKE_VERBS_FAULT"));
  snprintf(text, sizeof text, "%s", list ? list : "fake0");
  for (char *one = strtok_r(text, ";", &rest); one;
       one = strtok_r(NULL, ";", &rest))
    read_device(one);
  if (!leaks || strcmp(leaks, "0")) on_exit(at_exit, NULL);
}

int fake_ib_fails(const char *function) {
  pthread_once(&once, read_settings);
  for (int i = 0; i < failures_count; i++) {
    failure *f = &failures[i];
    if (!strcmp(f->function, function) &&
        __atomic_add_fetch(&f->calls, 1, __ATOMIC_RELAXED) == f->n)
      return errno = f->error;
  }
  return 0;
}

/* --- faults ------------------------------------------------------------------
 */

static const char *kind_of(const fake_ib_work *work) {
  switch (work->opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM: return "send";
    case IBV_WR_RDMA_WRITE: return "write";
    case IBV_WR_RDMA_WRITE_WITH_IMM: return "imm";
    default: return "read";
  }
}

static void do_fault(const fault *f, fake_ib_qp *qp, fake_ib_work *work) {
  fake_ib_context *context = fake_ib_of(qp->qp.context);
  if (!strcmp(f->what, "status"))
    work->fault = f->value;
  else if (!strcmp(f->what, "lose"))
    work->lose = true;
  else if (!strcmp(f->what, "delay"))
    work->delay_ms = (uint64_t)f->value;
  else if (!strcmp(f->what, "kill"))
    raise(SIGKILL);
  else if (!strcmp(f->what, "qp")) {
    fake_ib_break(qp);
    fake_ib_tell(context, IBV_EVENT_QP_FATAL, qp);
  } else if (!strcmp(f->what, "device")) {
    for (fake_ib_qp *q = context->qps; q; q = q->next) fake_ib_break(q);
    fake_ib_tell(context, IBV_EVENT_DEVICE_FATAL, NULL);
  } else if (!strcmp(f->what, "down")) {
    fake_ib_port_changes(context, true);
    if (f->value) context->up_at = fake_ib_now() + (uint64_t)f->value * 1000000;
  } else {
    not_understood("FAKE_VERBS_FAULT", f->what);
  }
}

void fake_ib_faults(fake_ib_qp *qp, fake_ib_work *work) {
  if (work->looked) return;
  work->looked = true;
  for (int i = 0; i < faults_count; i++) {
    fault *f = &faults[i];
    if (!f->is_ours ||
        (strcmp(f->kind, "any") && strcmp(f->kind, kind_of(work))))
      continue;
    if (__atomic_add_fetch(&f->seen, 1, __ATOMIC_RELAXED) == f->n)
      do_fault(f, qp, work);
  }
}

void fake_ib_port_changes(fake_ib_context *context, bool down) {
  if (context->is_down == down) return;
  context->is_down = down;
  context->up_at = 0;
  fake_ib_tell(context, down ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE,
               NULL);
  fake_ib_wake(context);
}

void fake_verbs_port(int up) {
  pthread_mutex_lock(&contexts_lock);
  for (fake_ib_context *c = contexts; c; c = c->next) {
    pthread_mutex_lock(&c->lock);
    fake_ib_port_changes(c, !up);
    pthread_mutex_unlock(&c->lock);
  }
  pthread_mutex_unlock(&contexts_lock);
}

void fake_verbs_count(fake_verbs_counts *counts) {
  uint64_t *from = (uint64_t *)&fake_ib_counts, *to = (uint64_t *)counts;
  for (size_t i = 0; i < sizeof *counts / sizeof *to; i++)
    to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

/* --- devices
 * ------------------------------------------------------------------ */

struct ibv_device **ibv_get_device_list(int *count) {
  if (count) *count = 0;
  if (fake_ib_fails("ibv_get_device_list")) return NULL;
  struct ibv_device **list = calloc((size_t)devices_count + 1, sizeof *list);
  if (!list) return NULL;
  for (int i = 0; i < devices_count; i++) list[i] = &devices[i].device;
  if (count) *count = devices_count;
  return list;
}

void ibv_free_device_list(struct ibv_device **list) {
  free(list);
}

const char *ibv_get_device_name(struct ibv_device *device) {
  return device->name;
}

fake_ib_context *fake_ib_of(struct ibv_context *context) {
  return (fake_ib_context *)context;
}

void fake_ib_wake(fake_ib_context *context) {
  uint64_t one = 1;
  if (write(context->wake, &one, sizeof one) < 0) return;
}

struct ibv_context *ibv_open_device(struct ibv_device *device) {
  if (fake_ib_fails("ibv_open_device")) return NULL;
  fake_ib_context *c = calloc(1, sizeof *c);
  if (!c) return NULL;
  c->device = (fake_ib_device *)device;
  c->context.device = device;
  c->context.ops.poll_cq = fake_ib_poll_cq;
  c->context.ops.req_notify_cq = fake_ib_req_notify;
  c->context.ops.post_send = fake_ib_post_send;
  c->context.ops.post_recv = fake_ib_post_recv;
  c->context.async_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  c->context.cmd_fd = -1;
  c->context.num_comp_vectors = 1;
  c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  c->events_end = &c->events;
  pthread_mutex_init(&c->lock, NULL);
  int error = c->wake < 0 || c->context.async_fd < 0
                  ? errno
                  : pthread_create(&c->thread, NULL, fake_ib_adapter, c);
  if (error) {
    free(c);
    errno = error;
    return NULL;
  }
  FAKE_IB_LIVE(CONTEXTS, 1);
  pthread_mutex_lock(&contexts_lock);
  c->next = contexts;
  contexts = c;
  pthread_mutex_unlock(&contexts_lock);
  return &c->context;
}

int ibv_close_device(struct ibv_context *context) {
  fake_ib_context *c = fake_ib_of(context);
  pthread_mutex_lock(&c->lock);
  if (c->objects || c->qps || c->mrs)
    fake_ib_misuse("ibv_close_device with objects that are still there");
  c->stop = true;
  fake_ib_wake(c);
  pthread_mutex_unlock(&c->lock);
  pthread_join(c->thread, NULL);
  pthread_mutex_lock(&contexts_lock);
  fake_ib_context **at = &contexts;
  while (*at != c) at = &(*at)->next;
  *at = c->next;
  pthread_mutex_unlock(&contexts_lock);
  while (c->events) {
    fake_ib_event *event = c->events;
    c->events = event->next;
    free(event);
  }
  close(c->wake);
  close(context->async_fd);
  pthread_mutex_destroy(&c->lock);
  free(c);
  FAKE_IB_LIVE(CONTEXTS, -1);
  return 0;
}

int ibv_query_device(struct ibv_context *context,
                     struct ibv_device_attr *attr) {
  const fake_ib_device *d = fake_ib_of(context)->device;
  int error = fake_ib_fails("ibv_query_device");
  if (error) return error;
  memset(attr, 0, sizeof *attr);
  snprintf(attr->fw_ver, sizeof attr->fw_ver, "fake");
  attr->max_mr_size = d->mr_most;
  attr->page_size_cap = 4096;
  attr->max_qp = d->qps_most;
  attr->max_qp_wr = d->wr_most;
  attr->max_sge = d->sge_most;
  attr->max_cq = 65536;
  attr->max_cqe = d->cqe_most;
  attr->max_mr = 65536;
  attr->max_pd = 65536;
  attr->max_qp_rd_atom = 16;
  attr->max_qp_init_rd_atom = 16;
  attr->max_pkeys = 1;
  attr->phys_port_cnt = (uint8_t)d->ports;
  return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port,
                   struct ibv_port_attr *attr) {
  fake_ib_context *c = fake_ib_of(context);
  const fake_ib_device *d = c->device;
  int error = fake_ib_fails("ibv_query_port");
  if (error) return error;
  if (port < 1 || port > d->ports) return EINVAL;
  memset(attr, 0, IBV_PORT_ATTR_ALWAYS);
  pthread_mutex_lock(&c->lock);
  attr->state = (enum ibv_port_state)(c->is_down ? IBV_PORT_DOWN : d->state);
  pthread_mutex_unlock(&c->lock);
  attr->max_mtu = IBV_MTU_4096;
  attr->active_mtu = (enum ibv_mtu)d->mtu;
  attr->gid_tbl_len = FAKE_IB_GIDS;
  attr->max_msg_sz = FAKE_IB_MESSAGE_MOST;
  attr->pkey_tbl_len = 1;
  attr->link_layer = (uint8_t)d->link;
  attr->lid = d->link == IBV_LINK_LAYER_INFINIBAND ? (uint16_t)d->lid : 0;
  attr->active_width = 2;
  attr->active_speed = 32;
  attr->phys_state = attr->state == IBV_PORT_ACTIVE ? 5 : 3;
  return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index,
                  union ibv_gid *gid) {
  const fake_ib_device *d = fake_ib_of(context)->device;
  if (fake_ib_fails("ibv_query_gid")) return -1;
  if (port < 1 || port > d->ports || index < 0 || index >= FAKE_IB_GIDS) {
    errno = EINVAL;
    return -1;
  }
  *gid = d->gids[index];
  return 0;
}

int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index,
                   uint16_t *pkey) {
  if (port < 1 || port > fake_ib_of(context)->device->ports || index) {
    errno = EINVAL;
    return -1;
  }
  *pkey = 0xffff;
  return 0;
}

/* --- asynchronous events
 * ------------------------------------------------------- */

void fake_ib_tell(fake_ib_context *context, int type, fake_ib_qp *qp) {
  fake_ib_event *event = calloc(1, sizeof *event);
  uint64_t one = 1;
  if (!event) abort();
  event->event.event_type = (enum ibv_event_type)type;
  if (qp)
    event->event.element.qp = &qp->qp;
  else
    event->event.element.port_num = 1;
  *context->events_end = event;
  context->events_end = &event->next;
  if (write(context->context.async_fd, &one, sizeof one) < 0) return;
}

static bool is_of_qp(const struct ibv_async_event *event) {
  return event->event_type == IBV_EVENT_QP_FATAL ||
         event->event_type == IBV_EVENT_QP_REQ_ERR ||
         event->event_type == IBV_EVENT_QP_ACCESS_ERR;
}

int ibv_get_async_event(struct ibv_context *context,
                        struct ibv_async_event *out) {
  fake_ib_context *c = fake_ib_of(context);
  for (;;) {
    uint64_t one;
    if (read(context->async_fd, &one, sizeof one) != sizeof one) return -1;
    pthread_mutex_lock(&c->lock);
    fake_ib_event *event = c->events;
    if (event) {
      c->events = event->next;
      if (!c->events) c->events_end = &c->events;
      *out = event->event;
      if (is_of_qp(out)) ((fake_ib_qp *)out->element.qp)->unacked++;
    }
    pthread_mutex_unlock(&c->lock);
    free(event);
    if (event) return 0; /* else its object was destroyed */
  }
}

void ibv_ack_async_event(struct ibv_async_event *event) {
  if (!is_of_qp(event)) return;
  fake_ib_qp *qp = (fake_ib_qp *)event->element.qp;
  fake_ib_context *c = fake_ib_of(qp->qp.context);
  pthread_mutex_lock(&c->lock);
  if (--qp->unacked < 0) fake_ib_misuse("an event acknowledged twice");
  pthread_mutex_unlock(&c->lock);
}

/* --- words
 * ----------------------------------------------------------------------- */

const char *ibv_wc_status_str(enum ibv_wc_status status) {
  static const char *const words[] = {"success",
                                      "local length error",
                                      "local QP operation error",
                                      "local EE context operation error",
                                      "local protection error",
                                      "Work Request Flushed Error",
                                      "memory management operation error",
                                      "bad response error",
                                      "local access error",
                                      "remote invalid request error",
                                      "remote access error",
                                      "remote operation error",
                                      "transport retry counter exceeded",
                                      "RNR retry counter exceeded"};
  return (unsigned)status < sizeof words / sizeof *words ? words[status]
                                                         : "unknown";
}

const char *ibv_event_type_str(enum ibv_event_type type) {
  switch ((int)type) {
    case IBV_EVENT_CQ_ERR: return "CQ error";
    case IBV_EVENT_QP_FATAL: return "local work queue catastrophic error";
    case IBV_EVENT_QP_REQ_ERR: return "invalid request local work queue error";
    case IBV_EVENT_QP_ACCESS_ERR: return "local access violation error";
    case IBV_EVENT_DEVICE_FATAL: return "local catastrophic error";
    case IBV_EVENT_PORT_ACTIVE: return "port active";
    case IBV_EVENT_PORT_ERR: return "port error";
    default: return "unknown";
  }
}

const char *ibv_port_state_str(enum ibv_port_state state) {
  static const char *const words[] = {"no state change (NOP)", "down", "init",
                                      "armed", "active"};
  return (unsigned)state < 5 ? words[state] : "invalid state";
}

int ibv_fork_init(void) {
  return fake_ib_fails("ibv_fork_init");
}
