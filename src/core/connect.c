#include "core/connect.h"

#include "base/fault.h"
#include "base/log.h"
#include "base/memory.h"
#include "bridge/bridge.h"
#include "ccl/ccl.h"
#include "core/p2p.h"
#include "core/settings.h"
#include "p2p/mesh.h"

#include <stdlib.h>
#include <string.h>

enum {
  COMM_ADDRESS_MAX = 8192,
  SHARED_BLOB = GBI_RESOURCES - GBI_ON_ISLAND + 1 /* behind the GPU's */
};

typedef struct connector {
  gb_job *job;
  const gbi_group_spec *spec;
  gbi_comm *comms[GBI_RESOURCES];
  gbi_gpu *gpu;       /* NULL: on host memory */
  gbi_shared *shared; /* NULL: no GPU, or not on the bridge */
} connector;

gb_status gbi_connect_exchange(gb_job *job, const gbi_group_spec *spec,
                               const gb_error *problem, const gbi_writer *blob,
                               gbi_blobs *blobs, gb_error *error) {
  gb_error mine;
  if (problem && problem->status != GB_OK && problem->rank < 0) {
    /* Signed here: the others pass it on, and would be taken for its cause. */
    gbi_fail_rank(&mine, problem->status, job->rank,
                  "rank %d (host \"%.64s\") could not set a group up: %.1800s",
                  job->rank, job->discovery->records[job->rank].hostname,
                  problem->text);
    problem = &mine;
  }
  return gbi_control_exchange(job->control, spec->id, spec->ranks, spec->count,
                              spec->me, problem, blob->data, blob->used,
                              spec->deadline_ns, blobs, error);
}

void gbi_connect_watch(gb_job *job, gbi_hostarea *area, gbi_comm **comms,
                       gbi_gpu *gpu) {
  pthread_mutex_lock(&job->connect_lock);
  job->connecting_area = area;
  for (int r = 0; r < GBI_RESOURCES; r++)
    job->connecting[r] = comms ? comms[r] : NULL;
  job->connecting_gpu = gpu;
  pthread_mutex_unlock(&job->connect_lock);
  if ((area || comms) && gbi_control_failed(job->control, NULL))
    gbi_job_wake(job);
}

/* ---- communicators ---- */

/* Only between islands is there anything to compress. */
static gbi_codec codec_of(const gbi_group_spec *spec) {
  return spec->topology->islands_count > 1 ? gbi_core_codec() : GBI_CODEC_NONE;
}

/* Group ranks of the members of this rank's communicator on `resource`, none
 * when it has none. Returns how many; *me_p: this rank's place. */
static int comm_members(const gbi_group_spec *spec, int resource, int *ranks,
                        int *me_p) {
  const gbi_topology *t = spec->topology;
  const gbi_island *island = &t->islands[t->island_of[spec->me]];
  int count = 0;
  *me_p = -1;
  bool bridges =
      gbi_policy_needs_bridge(spec->policy, codec_of(spec), spec->direct);
  if (resource == GBI_ON_ISLAND && bridges) {
    count = island->count;
    memcpy(ranks, island->ranks, sizeof *ranks * (size_t)count);
  } else if (resource == GBI_ON_BRIDGE && bridges &&
             t->link_of[spec->me] < spec->links) {
    for (int i = 0; i < t->islands_count; i++)
      ranks[count++] = gbi_topology_linked(t, spec->me, i);
  } else if (resource == GBI_ON_WORLD &&
             gbi_policy_needs_world(spec->policy, spec->rules, t,
                                    spec->direct)) {
    for (int r = 0; r < spec->count; r++) ranks[count++] = r;
  }
  for (int i = 0; i < count; i++)
    if (ranks[i] == spec->me) *me_p = i;
  return count;
}

/* How many links of lower numbers this rank's host holds, of its island: each
 * may take the next network card. */
static int links_before(const gbi_group_spec *spec) {
  const gbi_topology *t = spec->topology;
  const gbi_island *island = &t->islands[t->island_of[spec->me]];
  int count = 0;
  for (int j = 0; j < t->link_of[spec->me]; j++)
    count += t->host_of[island->holders[j]] == t->host_of[spec->me];
  return count;
}

static bool is_own_bridge(const connector *c) {
  return gbi_parts_has_bridge(&c->job->parts, c->spec->bridge);
}

static bool is_own_policy(const connector *c) {
  return c->spec->policy == &c->job->parts.plans;
}

static gbi_part_site part_site(const connector *c) {
  const gbi_group_spec *spec = c->spec;
  return (gbi_part_site){.parts = &c->job->parts,
                         .job = c->job,
                         .group = spec->id,
                         .rank = c->job->rank,
                         .who = spec->who[spec->me],
                         .timeout_ms = spec->timeout_ms};
}

/* Every rank knows every link: each is listed by its first member. */
static gb_status open_own_bridge(connector *c, gb_error *error) {
  size_t n = (size_t)c->spec->count;
  gbi_part_link *links = gbi_calloc(n, sizeof *links);
  int *ranks = gbi_malloc(sizeof *ranks * n), count = 0, me;
  gb_status status = GB_OK;
  if (!links || !ranks)
    status = gbi_fail(error, GB_ERR_MEMORY, "no memory for a bridge's links");
  for (int r = 0; r < c->spec->count && status == GB_OK; r++) {
    gbi_group_spec theirs = *c->spec;
    theirs.me = r;
    int members = comm_members(&theirs, GBI_ON_BRIDGE, ranks, &me);
    if (!members || me) continue;
    int *list = gbi_malloc(sizeof *list * (size_t)members);
    links[count++] = (gbi_part_link){list, members};
    if (!list)
      status = gbi_fail(error, GB_ERR_MEMORY, "no memory for a bridge's link");
    for (int i = 0; list && i < members; i++)
      list[i] = c->spec->ranks[ranks[i]];
  }
  gbi_part_site site = part_site(c);
  if (status == GB_OK)
    status = gbi_parts_open_bridge(&site, links, count,
                                   &c->comms[GBI_ON_BRIDGE], error);
  for (int i = 0; i < count; i++) free(links[i].ranks);
  free(links);
  free(ranks);
  return status;
}

static gb_status open_own_policy(connector *c, gb_error *error) {
  const gbi_group_spec *spec = c->spec;
  gbi_part_site site = part_site(c);
  return gbi_parts_open_policy(&site, spec->ranks, spec->count, spec->me,
                               &c->comms[GBI_ON_WORLD], error);
}

static gb_status open_comm(connector *c, int resource, gb_error *error) {
  gb_job *job = c->job;
  /* There the vendor's library is the island's. */
  if (resource == GBI_ON_ISLAND && job->device) return GB_OK;
  if (resource == GBI_ON_BRIDGE && is_own_bridge(c))
    return open_own_bridge(c, error);
  if (resource == GBI_ON_WORLD && is_own_policy(c))
    return open_own_policy(c, error);
  const gbi_group_spec *spec = c->spec;
  const gbi_discovery *d = job->discovery;
  size_t n = (size_t)spec->count;
  int *ranks = gbi_malloc(sizeof *ranks * n * 3), me;
  gbi_member *members = gbi_calloc(n, sizeof *members);
  if (!ranks || !members) {
    free(ranks);
    free(members);
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for members");
  }
  int count = comm_members(spec, resource, ranks, &me);
  int *hosts = ranks + n, *islands = ranks + 2 * n;
  for (int i = 0; i < count; i++) {
    int rank = spec->ranks[ranks[i]];
    members[i] = (gbi_member){rank, gbi_hostarea_index_of(job->area, rank),
                              d->records[rank].hostname, d->labels[rank]};
    hosts[i] = spec->topology->host_of[ranks[i]];
    islands[i] = spec->topology->island_of[ranks[i]];
  }
  gbi_transport_params params = {
      .members = members,
      .members_count = count,
      .me = me,
      .area = job->area,
      .auth = gbi_control_auth(job->control),
      .group = spec->id,
      .comm = (uint32_t)resource,
      .store_host = gbi_control_store_host(job->control),
      .timeout_ms = spec->timeout_ms,
      .spread = count && resource == GBI_ON_BRIDGE ? links_before(spec) : 0,
  };
  gb_status status = GB_OK;
  if (count && resource == GBI_ON_BRIDGE)
    status = gbi_bridge_open(gbi_transport_find(spec->bridge), &params,
                             &c->comms[resource], error);
  else if (count)
    status = gbi_ccl_host_open_teams(&params, hosts, islands,
                                     &c->comms[resource], error);
  free(ranks);
  free(members);
  return status;
}

/* ---- on GPUs ---- */

/* This rank's place among the members of each communicator. */
static gb_status find_places(const gbi_group_spec *spec, int me[GBI_RESOURCES],
                             gb_error *error) {
  int *ranks = gbi_malloc(sizeof *ranks * (size_t)spec->count);
  if (!ranks) return gbi_fail(error, GB_ERR_MEMORY, "no memory for members");
  for (int r = 0; r < GBI_RESOURCES; r++) me[r] = spec->me;
  for (int r = GBI_ON_ISLAND; r <= GBI_ON_WORLD; r++)
    comm_members(spec, r, ranks, &me[r]);
  free(ranks);
  return GB_OK;
}

static int least_island(const gbi_topology *t) {
  int least = t->world;
  for (int i = 0; i < t->islands_count; i++)
    least = GBI_MIN(least, t->islands[i].count);
  return least;
}

static uint64_t chunk_bytes(const gbi_topology *topology,
                            const gbi_rules *rules, int links) {
  uint64_t chunk = (uint64_t)gbi_core_setting("GPUBRIDGE_CHUNK_BYTES");
  if (rules && rules->chunk_bytes) return rules->chunk_bytes; /* measured */
  return gbi_policy_chunk_bytes(topology, chunk, links);
}

static gb_status open_gpu(connector *c, gb_error *error) {
  const gbi_group_spec *spec = c->spec;
  const gbi_topology *t = spec->topology;
  if (!c->job->device) return GB_OK;
  gbi_gpu_params params = {
      .device = c->job->device,
      .island_count = t->islands[t->island_of[spec->me]].count,
      .rank = spec->me,
      .world = spec->count,
      .least_island = least_island(t),
      .ring_bytes = (uint64_t)gbi_core_setting("GPUBRIDGE_STAGING_BYTES"),
      .kernels = c->job->kernels,
      .kernels_why = c->job->kernels_why.text,
      .islands = t->islands_count,
      .sums = (gbi_sums)gbi_core_combine(),
  };
  GBI_TRY(find_places(spec, params.me, error));
  return gbi_gpu_open(&params, &c->gpu, error);
}

/* Only what passes through this host's memory anyway can stay in one place. */
static gb_status open_shared(connector *c, gb_error *error) {
  const gbi_group_spec *spec = c->spec;
  gbi_comm *bridge = c->comms[GBI_ON_BRIDGE];
  if (!c->gpu || !bridge || bridge->members_count < 2) return GB_OK;
  gbi_shared_params params = {
      .device = c->job->device,
      .area = c->job->area,
      .members_count = bridge->members_count,
      .me = bridge->me,
      .bytes = (uint64_t)gbi_core_setting("GPUBRIDGE_SHARED_STAGING_BYTES"),
      .who = spec->who[spec->me],
      .why = is_own_bridge(c) || strcmp(spec->bridge, "shm")
                 ? "the bridge is not \"shm\""
                 : NULL,
  };
  c->shared = gbi_shared_open(&params);
  if (!c->shared)
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for a group");
  return GB_OK;
}

/* One of the last blobs of each member of the bridge, to `hear`. */
typedef gb_status (*hear_fn)(gbi_shared *shared, int member, gbi_reader *in,
                             gb_error *error);
static gb_status hear_members(connector *c, const gbi_blobs *blobs, int skip,
                              hear_fn hear, gb_error *error) {
  int *ranks = gbi_malloc(sizeof *ranks * (size_t)c->spec->count), me;
  if (!ranks) return gbi_fail(error, GB_ERR_MEMORY, "no memory for members");
  int count = comm_members(c->spec, GBI_ON_BRIDGE, ranks, &me);
  gb_status status = GB_OK;
  for (int i = 0; i < count && status == GB_OK; i++) {
    gbi_reader all = blobs->items[ranks[i]], one;
    const uint8_t *data = NULL;
    size_t bytes = 0;
    for (int k = 0; k <= skip; k++) data = gbi_get_blob(&all, &bytes);
    gbi_reader_init(&one, data, bytes);
    status = hear(c->shared, i, &one, error);
  }
  free(ranks);
  return status;
}

static gb_status connect_shared(connector *c, const gbi_blobs *blobs,
                                gb_error *error) {
  if (!c->shared) return GB_OK;
  GBI_TRY(hear_members(c, blobs, SHARED_BLOB, gbi_shared_hear_offer, error));
  gbi_shared_map(c->shared);
  return GB_OK;
}

static gb_status settle_shared(connector *c, const gbi_blobs *blobs,
                               gb_error *error) {
  if (!c->shared) return GB_OK;
  GBI_TRY(hear_members(c, blobs, 0, gbi_shared_hear_verdict, error));
  uint64_t bytes = gbi_shared_settle(c->shared);
  if (!bytes)
    GBI_INFO("core",
             "what crosses to other GPUs of this host is copied by "
             "the host: %s",
             gbi_shared_why(c->shared));
  gbi_gpu_share(c->gpu, c->shared, bytes);
  c->shared = NULL;
  return GB_OK;
}

/* An operation more than these on a ROCm stream would make its submitter wait
 * (device.h); a chunk takes three. */
static uint64_t chunks_most(const connector *c) {
  if (GBI_FAULT("gpu.chunks") == GBI_FAULT_FAIL) return 0;
  for (int i = 0; c->gpu && i < c->spec->count; i++) {
    int rank = c->spec->ranks[i];
    if (!strcmp(c->job->discovery->records[rank].vendor, "amd")) return 10;
  }
  return 0;
}

/* What a rank's GPU has to say, and the rank said it well. */
static gb_status hear_gpu(connector *c, const gbi_blobs *blobs, int rank,
                          gbi_reader *in, gb_error *error) {
  gbi_reader all = blobs->items[rank];
  const uint8_t *data = NULL;
  size_t bytes = 0;
  for (int r = GBI_ON_ISLAND; r <= GBI_RESOURCES; r++)
    data = gbi_get_blob(&all, &bytes);
  gbi_reader_init(in, data, bytes);
  return gbi_gpu_hear(c->gpu, in, c->spec->who[rank], error);
}

/* The first of the island made the id that all connect with. */
static gb_status connect_gpu(connector *c, const gbi_blobs *blobs,
                             gb_error *error) {
  const gbi_topology *t = c->spec->topology;
  if (!c->gpu) return GB_OK;
  int first = t->islands[t->island_of[c->spec->me]].ranks[0];
  gbi_reader in, id = {0};
  for (int r = 0; r < c->spec->count; r++) {
    GBI_TRY(hear_gpu(c, blobs, r, &in, error));
    if (r == first) id = in;
  }
  return gbi_gpu_connect(c->gpu, &id, c->spec->deadline_ns, error);
}

/* ---- addresses ---- */

/* A rank's blob: per resource, a blob that is empty without a communicator;
 * then the GPU's, and what it offers the bridge. */
static gb_status put_addresses(connector *c, gbi_writer *out, gb_error *error) {
  for (int r = GBI_ON_ISLAND; r < GBI_RESOURCES; r++) {
    uint8_t raw[COMM_ADDRESS_MAX];
    gbi_writer one;
    gbi_writer_init(&one, raw, sizeof raw);
    if (c->comms[r]) c->comms[r]->ops->address(c->comms[r], &one);
    gbi_put_blob(out, raw, one.used);
    out->bad |= one.bad;
  }
  uint8_t raw[GBI_FOLD_STATE_BYTES + GBI_NATIVE_ID_BYTES];
  gbi_writer id;
  gbi_writer_init(&id, raw, sizeof raw);
  if (c->gpu) GBI_TRY(gbi_gpu_address(c->gpu, &id, error));
  gbi_put_blob(out, raw, id.used);
  uint8_t offer[GBI_SHARED_MESSAGE_BYTES];
  gbi_writer shared;
  gbi_writer_init(&shared, offer, sizeof offer);
  if (c->shared) gbi_shared_offer(c->shared, &shared);
  gbi_put_blob(out, offer, shared.used);
  return GB_OK;
}

static gb_status connect_comm(connector *c, int resource,
                              const gbi_blobs *blobs, gb_error *error) {
  const gbi_group_spec *spec = c->spec;
  gbi_comm *comm = c->comms[resource];
  if (!comm) return GB_OK;
  size_t n = (size_t)spec->count;
  int *ranks = gbi_malloc(sizeof *ranks * n), me;
  gbi_reader *addresses = gbi_malloc(sizeof *addresses * n);
  gb_status status = GB_OK;
  if (!ranks || !addresses)
    status = gbi_fail(error, GB_ERR_MEMORY, "no memory for addresses");
  int count = status == GB_OK ? comm_members(spec, resource, ranks, &me) : 0;
  for (int i = 0; i < count; i++) {
    gbi_reader all = blobs->items[ranks[i]];
    for (int r = GBI_ON_ISLAND; r <= resource; r++) {
      size_t bytes;
      const uint8_t *data = gbi_get_blob(&all, &bytes);
      gbi_reader_init(&addresses[i], data, bytes);
    }
    int rank = spec->ranks[ranks[i]];
    if (all.bad)
      status = gbi_fail_rank(error, GB_ERR_PROTOCOL, rank,
                             "rank %d sent a malformed address", rank);
  }
  if (status == GB_OK)
    status = comm->ops->connect(comm, addresses, spec->deadline_ns, error);
  free(ranks);
  free(addresses);
  return status;
}

/* All did, and know of each other what came of it. */
static gb_status settle(connector *c, gb_error *error) {
  uint8_t verdict[GBI_SHARED_MESSAGE_BYTES], raw[sizeof verdict + 16];
  gbi_writer inner, out;
  gbi_blobs blobs = {0};
  gbi_writer_init(&inner, verdict, sizeof verdict);
  gbi_writer_init(&out, raw, sizeof raw);
  if (c->shared) gbi_shared_verdict(c->shared, &inner);
  gbi_put_blob(&out, verdict, inner.used);
  GBI_TRY(gbi_connect_exchange(c->job, c->spec, NULL, &out, &blobs, error));
  gb_status status = settle_shared(c, &blobs, error);
  gbi_blobs_free(&blobs);
  return status;
}

/* Opens, exchanges addresses, connects, and makes sure that all did. */
static gb_status connect_comms(connector *c, bool *settled_p, gb_error *error) {
  gbi_writer out;
  gbi_writer_init_growing(&out);
  gb_error problem = {0};
  gb_status status = GB_OK;
  for (int r = GBI_ON_ISLAND; r < GBI_RESOURCES && status == GB_OK; r++)
    status = open_comm(c, r, &problem);
  if (status == GB_OK) status = open_gpu(c, &problem);
  if (status == GB_OK) status = open_shared(c, &problem);
  if (status == GB_OK) status = put_addresses(c, &out, &problem);
  gbi_blobs blobs = {0};
  status = gbi_connect_exchange(
      c->job, c->spec, status == GB_OK ? NULL : &problem, &out, &blobs, error);
  gbi_writer_fini(&out);
  *settled_p = status != GB_OK;
  if (status != GB_OK) return status;
  gbi_connect_watch(c->job, NULL, c->comms, c->gpu);
  for (int r = GBI_ON_ISLAND; r < GBI_RESOURCES && status == GB_OK; r++)
    status = connect_comm(c, r, &blobs, error);
  if (status == GB_OK) status = connect_gpu(c, &blobs, error);
  if (status == GB_OK) status = connect_shared(c, &blobs, error);
  gbi_connect_watch(c->job, NULL, NULL, NULL);
  gbi_blobs_free(&blobs);
  return status == GB_OK ? settle(c, error) : status;
}

/* ---- the group ---- */

/* Links of the mesh come when they are first needed: nothing to connect. */
static gb_status open_mesh(connector *c, gb_error *error) {
  const gbi_group_spec *spec = c->spec;
  return gbi_mesh_open(gbi_job_p2p_of(c->job), spec->id, spec->ranks,
                       spec->count, spec->me, &c->comms[GBI_ON_MESH], error);
}

static gb_status open_compress(gbi_engine *engine, gbi_gpu *gpu,
                               gbi_codec codec, gb_error *error) {
  if (codec == GBI_CODEC_NONE) return GB_OK;
  gbi_compress *compress;
  uint64_t most = (uint64_t)gbi_core_setting("GPUBRIDGE_COMPRESSION_RESIDUALS");
  GBI_TRY(gbi_compress_new(codec, most, &compress, error));
  gbi_engine_compress(engine, compress);
  return gpu ? gbi_gpu_compress(gpu, compress, most, error) : GB_OK;
}

static gb_status make_group(connector *c, gb_group **group_p, gb_error *error) {
  gb_job *job = c->job;
  const gbi_group_spec *spec = c->spec;
  uint64_t chunk = chunk_bytes(spec->topology, spec->rules, spec->links);
  gbi_group_params params = {
      .id = spec->id,
      .rank = spec->me,
      .world = spec->count,
      .members = spec->ranks,
      .who = spec->who,
      .topology = spec->topology,
      .policy = spec->policy,
      .rules = spec->rules,
      .bridge = spec->bridge,
      .chunk_bytes = chunk,
      .links = spec->links,
      .codec = codec_of(spec),
      .direct = spec->direct,
      .job = job,
      .p2p = job->p2p,
      .control = job->control,
      .watch = &job->watch,
      .waiter = gbi_hostarea_waiter(job->area),
      .timeout_ms = spec->timeout_ms,
      .warn_after_ms =
          (uint64_t)gbi_core_setting("GPUBRIDGE_WARN_AFTER") * 1000,
      .queue_max = (int)gbi_core_setting("GPUBRIDGE_ASYNC_QUEUE"),
      .queue_bytes_max = (uint64_t)gbi_core_setting("GPUBRIDGE_ASYNC_BYTES"),
      .wait_hook = job->wait_hook,
      .wait_hook_arg = job->wait_hook_arg,
      .parts = &job->parts,
      .own_policy = is_own_policy(c),
      .own_bridge = is_own_bridge(c),
      .gpu = c->gpu,
      .chunks_most = chunks_most(c),
  };
  GBI_TRY(gbi_engine_open(
      c->comms, spec->count,
      gbi_policy_scratch_max(spec->topology, chunk, params.codec), &job->watch,
      job->area, &params.engine, error));
  memset(c->comms, 0, sizeof c->comms); /* given to the engine */
  gb_status status = open_compress(params.engine, c->gpu, params.codec, error);
  if (status == GB_OK) status = gbi_group_open(&params, group_p, error);
  if (status != GB_OK) gbi_engine_close(params.engine);
  if (status == GB_OK) c->gpu = NULL; /* given to the group */
  return status;
}

gb_status gbi_connect_group(gb_job *job, const gbi_group_spec *spec,
                            gb_group **group_p, bool *settled_p,
                            gb_error *error) {
  connector c = {.job = job, .spec = spec};
  *settled_p = false;
  gb_status status = connect_comms(&c, settled_p, error);
  if (status == GB_OK) status = open_mesh(&c, error);
  if (status == GB_OK) status = make_group(&c, group_p, error);
  gbi_gpu_close(c.gpu);
  gbi_shared_close(c.shared);
  for (int r = 0; r < GBI_RESOURCES; r++) {
    if (!c.comms[r]) continue;
    c.comms[r]->ops->stop(c.comms[r]);
    c.comms[r]->ops->close(c.comms[r]);
  }
  return status;
}
