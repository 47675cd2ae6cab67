/* How ranks find rank 0: one key in the store, read until it leads somewhere.
 *
 * The key is gpubridge/<attempt>/job, and rank 0 of every new job overwrites
 * it. A reader may see the value of the job before: its rank 0 is then gone, or
 * answers "come again" because this rank was in that job already, or cannot
 * match the proof. In all three cases the reader reads again a little later,
 * until its deadline. So no counter of jobs is needed that ranks could disagree
 * about, and a store without counters, or a file left by a run that crashed,
 * serves as well. */
#include "base/log.h"
#include "base/fault.h"
#include "control/state.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x314a4247u /* "GBJ1" */
enum { FORMAT = 1, VALUE_MAX = 2048, SECRET_MAX = 4096 };
#define ATTEMPT_NS (1 * GBI_NS_PER_S)
#define GREETING_NS (5 * GBI_NS_PER_S)
/* How long a key that our secret does not fit may turn out to be an old one. */
#define OLD_KEY_NS (2 * GBI_NS_PER_S)

const gbi_setting gbi_control_settings[] = {
    {.name = "GPUBRIDGE_HEARTBEAT_TIMEOUT",
     .default_value = "10",
     .kind = GBI_SETTING_INT,
     .min = 1,
     .max = 86400,
     .help = "seconds of silence after which a rank counts as dead"},
    {.name = "GPUBRIDGE_SECRET",
     .secret = true,
     .default_value = "",
     .kind = GBI_SETTING_TEXT,
     .help =
         "a secret of the job's owner, mixed into the job key: whoever only "
         "reads the store cannot join"},
    {.name = "GPUBRIDGE_SECRET_FILE",
     .default_value = "",
     .kind = GBI_SETTING_TEXT,
     .help = "a file with that secret, at most 4096 bytes"},
};
const int gbi_control_settings_count = GBI_COUNT(gbi_control_settings);

/* ---- settings ---- */

void gbi_control_read_settings(gbi_control *c) {
  /* A malformed value is this rank's problem in discovery, which tells all
   * ranks; the control plane is needed for that. */
  c->heartbeat_ns =
      (uint64_t)gbi_setting_number(&gbi_control_settings[0]) * GBI_NS_PER_S;
  char run[200], restart[32];
  if (c->params.attempt) {
    snprintf(c->attempt, sizeof c->attempt, "%s", c->params.attempt);
  } else if (gbi_env("TORCHELASTIC_RUN_ID", run, sizeof run)) {
    if (!gbi_env("TORCHELASTIC_RESTART_COUNT", restart, sizeof restart))
      snprintf(restart, sizeof restart, "0");
    snprintf(c->attempt, sizeof c->attempt, "%s.%s", run, restart);
  } else {
    snprintf(c->attempt, sizeof c->attempt, "default");
  }
}

static gb_status read_secret_file(const char *path, char *secret,
                                  gb_error *error) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = -1;
  if (fd >= 0) {
    n = read(fd, secret, SECRET_MAX + 1);
    int code = errno;
    close(fd);
    errno = code;
  }
  if (n < 0)
    return gbi_fail(error, GB_ERR_SETTING,
                    "GPUBRIDGE_SECRET_FILE is \"%s\", which cannot be read: %s",
                    path, strerror(errno));
  while (n && strchr("\r\n \t", secret[n - 1])) n--;
  if (!n || n > SECRET_MAX)
    return gbi_fail(error, GB_ERR_SETTING,
                    "GPUBRIDGE_SECRET_FILE is \"%s\", which must hold 1 to %d "
                    "bytes",
                    path, SECRET_MAX);
  secret[n] = 0;
  return GB_OK;
}

/* The key of the handshakes: the published one, or a digest of it and of the
 * secret. */
static gb_status mix_secret(const uint8_t published[GBI_KEY_BYTES],
                            uint8_t key[GBI_KEY_BYTES], gb_error *error) {
  static const char domain[] = "gpubridge secret 1";
  char secret[SECRET_MAX + 2] = "";
  uint8_t input[sizeof domain + SECRET_MAX];
  gbi_value value, file;
  GBI_TRY(gbi_setting_read(&gbi_control_settings[1], &value, error));
  GBI_TRY(gbi_setting_read(&gbi_control_settings[2], &file, error));
  if (value.text[0])
    snprintf(secret, sizeof secret, "%s", value.text);
  else if (file.text[0])
    GBI_TRY(read_secret_file(file.text, secret, error));
  memcpy(key, published, GBI_KEY_BYTES);
  if (!secret[0]) return GB_OK;
  size_t n = strlen(secret);
  memcpy(input, domain, sizeof domain);
  memcpy(input + sizeof domain, secret, n);
  gbi_hmac(published, input, sizeof domain + n, key);
  return GB_OK;
}

/* Tells a reader whether its secret is rank 0's, before any connection. */
static void key_check(const gbi_auth *auth, uint8_t mac[GBI_HMAC_BYTES]) {
  uint8_t input[32 + GBI_JOB_ID_BYTES] = "gpubridge key check 1";
  memcpy(input + 32, auth->job_id, GBI_JOB_ID_BYTES);
  gbi_hmac(auth->key, input, sizeof input, mac);
}

/* ---- rank 0: where to listen ---- */

static void add_unique(gbi_address *list, int *count, gbi_address address) {
  char wanted[GBI_ADDRESS_TEXT], text[GBI_ADDRESS_TEXT];
  gbi_address_set_port(&address, 0);
  gbi_address_text(&address, wanted);
  for (int i = 0; i < *count; i++)
    if (!strcmp(gbi_address_text(&list[i], text), wanted)) return;
  if (*count < GBI_ADDRESSES_MAX) list[(*count)++] = address;
}

/* The user's interface. An unusable name of ours is a problem of this rank that
 * discovery tells to everybody; Gloo's name is only a wish. */
static bool by_interface(gbi_address *list, int *count_p, char *chosen,
                         size_t bytes) {
  static const char *const variables[] = {"GPUBRIDGE_MULTITCP_IFNAME",
                                          "GPUBRIDGE_TCP_IFNAME",
                                          "GLOO_SOCKET_IFNAME"};
  char name[256];
  gb_error error;
  for (size_t i = 0; i < GBI_COUNT(variables); i++) {
    if (!gbi_env(variables[i], name, sizeof name)) continue;
    if (gbi_interface_addresses(variables[i], name, list, count_p, &error) ==
        GB_OK) {
      snprintf(chosen, bytes, "%s is %.*s", variables[i], 64, name);
      return true;
    }
    GBI_INFO("control", "%s", error.text);
  }
  *count_p = 0;
  return false;
}

static void add_all(gbi_address *list, int *count, bool loopback) {
  gbi_address local[GBI_ADDRESSES_MAX];
  int n = 0;
  if (gbi_local_addresses(local, &n, NULL) == GB_OK)
    for (int i = 0; i < n && i < GBI_ADDRESSES_MAX - 1; i++)
      add_unique(list, count, local[i]);
  if (!loopback) return;
  gbi_address own = {.bytes = sizeof(struct sockaddr_in)};
  struct sockaddr_in *in = (void *)&own.sa;
  in->sin_family = AF_INET;
  in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  add_unique(list, count, own);
}

static bool is_literal(const char *host) {
  unsigned char raw[16];
  return !strcasecmp(host, "localhost") || inet_pton(AF_INET, host, raw) == 1 ||
         inet_pton(AF_INET6, host, raw) == 1;
}

void gbi_control_addresses(gbi_control *c, gbi_address *list, int *count_p,
                           char *chosen, size_t bytes) {
  if (by_interface(list, count_p, chosen, bytes)) return;
  if (c->store_host[0]) {
    gbi_address peers[GBI_ADDRESSES_MAX], local;
    int n = 0;
    bool only_loopback = true;
    /* The store was reached by this name, or it is a hint of the caller's. */
    (void)gbi_resolve(c->store_host, 9, gbi_now_ns(), peers, &n, NULL);
    for (int i = 0; i < n; i++) {
      if (gbi_route_source(&peers[i], &local, NULL) != GB_OK) continue;
      only_loopback = only_loopback && gbi_address_is_loopback(&local);
      add_unique(list, count_p, local);
    }
    /* A machine's own name often means loopback on the machine itself. */
    if (only_loopback && !is_literal(c->store_host))
      add_all(list, count_p, *count_p == 0);
    snprintf(chosen, bytes, "it lies on the way to %.*s", 80, c->store_host);
  }
  if (!*count_p) {
    add_all(list, count_p, true);
    snprintf(chosen, bytes, "these are all addresses of its machine");
  }
}

/* ---- rank 0: publishing ---- */

gb_status gbi_control_new_auth(gbi_control *c, gb_error *error) {
  GBI_TRY(gbi_random(c->auth.job_id, sizeof c->auth.job_id, error));
  GBI_TRY(gbi_random(c->published_key, GBI_KEY_BYTES, error));
  return mix_secret(c->published_key, c->auth.key, error);
}

static void job_key(const gbi_control *c, char *key, size_t bytes) {
  snprintf(key, bytes, "gpubridge/%s/job", c->attempt);
}

/* magic u32, format u16, job 16, key 32, check 32, chosen text, count u8,
 * addresses 23 each */
gb_status gbi_control_publish(gbi_control *c, const gbi_address *list,
                              int count, const char *chosen, gb_error *error) {
  uint8_t value[VALUE_MAX], check[GBI_HMAC_BYTES];
  char key[320];
  gbi_writer w;
  gbi_writer_init(&w, value, sizeof value);
  gbi_put_u32(&w, MAGIC);
  gbi_put_u16(&w, FORMAT);
  gbi_put_raw(&w, c->auth.job_id, GBI_JOB_ID_BYTES);
  gbi_put_raw(&w, c->published_key, GBI_KEY_BYTES);
  key_check(&c->auth, check);
  gbi_put_raw(&w, check, sizeof check);
  gbi_put_text(&w, chosen);
  gbi_put_u8(&w, (uint8_t)count);
  for (int i = 0; i < count; i++) gbi_put_address(&w, &list[i]);
  job_key(c, key, sizeof key);
  return gbi_store_set(c->store, key, value, w.used, error);
}

/* ---- the others ---- */

typedef struct job_value {
  gbi_auth auth;
  bool fits; /* our secret is rank 0's */
  char chosen[256];
  gbi_address list[GBI_ADDRESSES_MAX];
  int count;
} job_value;

static gb_status parse_value(const uint8_t *data, size_t bytes, job_value *job,
                             gb_error *error) {
  uint8_t published[GBI_KEY_BYTES] = {0}, check[GBI_HMAC_BYTES];
  gbi_reader r;
  gbi_reader_init(&r, data, bytes);
  r.bad = gbi_decode_fault(data, bytes);
  uint32_t magic = gbi_get_u32(&r);
  uint16_t format = gbi_get_u16(&r);
  const uint8_t *id = gbi_get_raw(&r, GBI_JOB_ID_BYTES);
  const uint8_t *key = gbi_get_raw(&r, GBI_KEY_BYTES);
  const uint8_t *theirs = gbi_get_raw(&r, GBI_HMAC_BYTES);
  gbi_get_text(&r, job->chosen, sizeof job->chosen);
  job->count = gbi_get_u8(&r);
  if (job->count < 1 || job->count > GBI_ADDRESSES_MAX) r.bad = true;
  for (int i = 0; !r.bad && i < job->count; i++)
    gbi_get_address(&r, &job->list[i]);
  if (!r.bad && magic == MAGIC && format != FORMAT)
    return gbi_fail(error, GB_ERR_VERSION,
                    "rank 0 publishes the job in format %u, this rank reads "
                    "format %d. Install the same gpubridge on every machine",
                    format, FORMAT);
  if (r.bad || magic != MAGIC)
    return gbi_fail(error, GB_ERR_PROTOCOL,
                    "the store holds something else than a gpubridge job under "
                    "the job's key");
  memcpy(published, key, sizeof published);
  memcpy(job->auth.job_id, id, GBI_JOB_ID_BYTES);
  GBI_TRY(mix_secret(published, job->auth.key, error));
  key_check(&job->auth, check);
  job->fits = gbi_hmac_equal(check, theirs);
  return GB_OK;
}

static gb_status pause_ms(gbi_control *c, int ms, gb_error *error) {
  const gbi_store_params *p = &c->params.store;
  if (p->wait_hook && p->wait_hook(p->wait_hook_arg))
    return gbi_fail(error, GB_ERR_INTERRUPTED,
                    "interrupted while looking for the job's rank 0");
  struct timespec nap = {
      0, (long)gbi_deadline_left_ms(p->deadline_ns, ms) * 1000000};
  nanosleep(&nap, NULL);
  return GB_OK;
}

static gb_status wait_frame(gbi_control *c, gbi_channel *link, uint8_t *type,
                            gbi_reader *body, gb_error *error) {
  uint64_t deadline =
      GBI_MIN(c->params.store.deadline_ns, gbi_now_ns() + GREETING_NS);
  for (;;) {
    gb_status status = gbi_channel_next(link, type, body);
    if (status == GB_OK) return GB_OK;
    if (status == GB_ERR_PROTOCOL)
      return gbi_fail(error, GB_ERR_PROTOCOL, "its answer is malformed");
    status = gbi_channel_fill(link);
    if (status == GB_ERR_PEER)
      return gbi_fail(error, GB_ERR_PEER, "it closed the connection");
    if (status == GB_OK) continue;
    uint64_t slice = gbi_deadline_after_ms(100);
    if (gbi_poll_one(link->fd, POLLIN, GBI_MIN(slice, deadline))) continue;
    GBI_TRY(pause_ms(c, 0, error));
    if (gbi_deadline_passed(deadline))
      return gbi_fail(error, GB_ERR_TIMEOUT, "it did not answer in time");
  }
}

/* BUSY: ask again later; the text says why. */
static gb_status say_join(gbi_control *c, gbi_channel *link, gb_error *error) {
  uint8_t type;
  gbi_reader body;
  gbi_writer w;
  gbi_writer_init_growing(&w);
  gbi_put_i32(&w, c->rank);
  gbi_put_i32(&w, c->world);
  gbi_put_who(&w, &c->who);
  gbi_frame *frame = gbi_frame_make(GBI_MSG_JOIN, &w);
  gbi_channel_push(link, frame);
  gbi_frame_drop(frame);
  gbi_writer_fini(&w);
  if (gbi_channel_flush(link) != GB_OK)
    return gbi_fail(error, GB_ERR_BUSY, "it closed the connection");
  gb_status status = wait_frame(c, link, &type, &body, error);
  if (status == GB_ERR_INTERRUPTED) return status;
  if (status != GB_OK) return GB_ERR_BUSY;
  if (type == GBI_MSG_WELCOME) {
    gbi_get_who(&body, &c->who0);
    if (gbi_reader_done(&body)) return GB_OK;
  } else if (type == GBI_MSG_REFUSE) {
    gb_error theirs;
    bool again = gbi_get_u8(&body) != 0;
    gbi_get_error(&body, &theirs);
    if (gbi_reader_done(&body)) {
      *error = theirs;
      return again ? GB_ERR_BUSY : theirs.status;
    }
  }
  return gbi_fail(error, GB_ERR_BUSY, "its answer is malformed");
}

/* One attempt at one address. BUSY: not this time. */
static gb_status try_address(gbi_control *c, const gbi_address *address,
                             gbi_channel *link, gb_error *error) {
  uint64_t deadline = c->params.store.deadline_ns;
  int fd;
  gb_status status = gbi_connect(
      address, GBI_MIN(deadline, gbi_now_ns() + ATTEMPT_NS), &fd, error);
  if (status != GB_OK) return GB_ERR_BUSY;
  gbi_socket_tune(fd, 2 * c->heartbeat_ns / GBI_NS_PER_MS);
  gbi_handshake h;
  gbi_hello hello = {.kind = GBI_HELLO_CONTROL, .from = c->rank, .to = 0};
  gbi_handshake_connect(&h, &c->auth, &hello);
  status = gbi_handshake_run(
      &h, fd, GBI_MIN(deadline, gbi_now_ns() + GREETING_NS), error);
  if (status != GB_OK) {
    close(fd);
    if (status != GB_ERR_VERSION) return GB_ERR_BUSY;
    return gbi_fail_rank(error, GB_ERR_VERSION, c->rank,
                         "protocol versions differ: rank 0 speaks %d, rank %d "
                         "speaks %d. Install the same gpubridge on every "
                         "machine",
                         h.peer_version, c->rank, gbi_protocol_version());
  }
  gbi_channel_init(link, fd, c->link.frame_max);
  status = say_join(c, link, error);
  if (status != GB_OK) gbi_channel_fini(link);
  return status;
}

static gb_status try_all(gbi_control *c, const job_value *job,
                         gbi_channel *link, gb_error *error) {
  gb_status status = GB_ERR_BUSY;
  for (int i = 0; i < job->count && status == GB_ERR_BUSY; i++) {
    status = try_address(c, &job->list[i], link, error);
    if (status == GB_ERR_BUSY) GBI_TRY(pause_ms(c, 0, error));
    if (gbi_deadline_passed(c->params.store.deadline_ns)) break;
  }
  return status;
}

static gb_status give_up(const job_value *job, const gb_error *last,
                         gb_error *error) {
  char list[512], address[GBI_ADDRESS_TEXT];
  gbi_text text;
  gbi_text_init(&text, list, sizeof list);
  for (int i = 0; i < job->count; i++)
    gbi_text_add(&text, "%s%s", i ? ", " : "",
                 gbi_address_text(&job->list[i], address));
  return gbi_fail_rank(error, GB_ERR_CONNECT, 0,
                       "could not join the job at rank 0, which listens on %s "
                       "(%s): %.400s. Can these addresses be reached from "
                       "here? GPUBRIDGE_MULTITCP_IFNAME on rank 0 names the "
                       "interface to use",
                       list, job->chosen, last->text);
}

static gb_status wrong_secret(gb_error *error) {
  return gbi_fail(error, GB_ERR_AUTH,
                  "the job key does not fit: GPUBRIDGE_SECRET or "
                  "GPUBRIDGE_SECRET_FILE differs from rank 0's, or is set on "
                  "one of the two only");
}

static gb_status read_job(gbi_control *c, job_value *job, gb_error *error) {
  uint8_t value[VALUE_MAX];
  size_t bytes;
  char key[320];
  job_key(c, key, sizeof key);
  gb_status status = gbi_store_get(c->store, key, value, sizeof value, &bytes,
                                   c->params.store.deadline_ns, error);
  if (status == GB_ERR_TIMEOUT)
    return gbi_fail_rank(error, GB_ERR_TIMEOUT, 0,
                         "rank 0 has not come: it never wrote its address to "
                         "%s. Was it started, with the same rendezvous?",
                         c->store->described);
  GBI_TRY(status);
  return parse_value(value, bytes, job, error);
}

gb_status gbi_control_join(gbi_control *c, gb_error *error) {
  uint64_t unfit_since = 0;
  gb_error last = {.text = "no attempt was made"};
  for (int nap = 10;; nap = GBI_MIN(nap * 2, 100)) {
    job_value job;
    gbi_channel link;
    GBI_TRY(read_job(c, &job, error));
    c->auth = job.auth;
    gb_status status = GB_ERR_BUSY;
    if (job.fits) {
      unfit_since = 0;
      status = try_all(c, &job, &link, &last);
    } else if (!unfit_since) {
      unfit_since = gbi_now_ns();
    } else if (gbi_now_ns() - unfit_since > OLD_KEY_NS) {
      return wrong_secret(error);
    }
    if (status == GB_OK) {
      c->link = link;
      return GB_OK;
    }
    if (status != GB_ERR_BUSY) {
      if (error) *error = last;
      return status;
    }
    if (gbi_deadline_passed(c->params.store.deadline_ns))
      return job.fits ? give_up(&job, &last, error) : wrong_secret(error);
    GBI_TRY(pause_ms(c, nap, error));
  }
}
