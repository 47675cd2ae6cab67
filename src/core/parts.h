/* core/parts: the bridge and the policy that a job's caller brought along
 * (gpubridge/parts.h), as communicators for the engine.
 *
 * Their steps run in `progress`, one at a time, in the order in which they were
 * started; that may block, and the library looks around again afterwards. */
#ifndef GBI_CORE_PARTS_H
#define GBI_CORE_PARTS_H

#include "comm/comm.h"
#include "policy/policy.h"

#include <gpubridge/job.h>
#include <gpubridge/parts.h>

/* The name under which a record carries them; says that the policy is a
 * caller's. */
#define GBI_POLICY_SETTINGS "the policy's settings"

typedef struct gbi_parts {
  gb_bridge_ops bridge; /* name NULL: none */
  gb_policy_ops policy;
  char bridge_name[32], policy_name[64];
  gbi_policy_ops plans; /* the policy's, for the engine */
} gbi_parts;

/* Copies what params bring. ARGUMENT for a name or a callback that is missing,
 * or a name of the library's own. */
gb_status gbi_parts_take(const gb_job_params *params, gbi_parts *parts,
                         gb_error *error);
bool gbi_parts_has_bridge(const gbi_parts *parts, const char *name);
bool gbi_parts_has_policy(const gbi_parts *parts, const char *name);

/* The policy for the world; REFUSED, with one text on every rank, when it does
 * not fit. */
gb_status gbi_parts_fit(const gbi_parts *parts, const gbi_topology *topology,
                        const char (*labels)[64], const char *who, int rank,
                        const gbi_policy_ops **policy_p, gb_error *error);

/* Whether a part refuses this call, before anything is sent: UNSUPPORTED. A
 * part that fails here is ABORTED, and the caller ends the job. */
gb_status gbi_parts_check(const gbi_parts *parts, bool of_policy,
                          bool over_bridge, const gbi_coll *coll, int rank,
                          int world, gb_error *error);

/* Members of one link, by global rank, ascending. */
typedef struct gbi_part_link {
  int *ranks;
  int count;
} gbi_part_link;

/* Whose they are: lent for the communicator's life, `links` borrowed. */
typedef struct gbi_part_site {
  const gbi_parts *parts;
  const struct gb_job *job;
  uint32_t group;
  int rank;        /* global */
  const char *who; /* this rank, for texts */
  uint64_t timeout_ms;
} gbi_part_site;

/* The bridge. Also on ranks that are in none of the links: all take part in
 * opening. connect opens each link in order; the steps go over the one that
 * this rank is in. */
gb_status gbi_parts_open_bridge(const gbi_part_site *site,
                                const gbi_part_link *links, int links_count,
                                gbi_comm **comm_p, gb_error *error);
/* The policy, for GBI_COMM_CALL. ranks: global, by group rank. */
gb_status gbi_parts_open_policy(const gbi_part_site *site, const int *ranks,
                                int count, int me, gbi_comm **comm_p,
                                gb_error *error);

#endif
