/* core/discovery: what each rank publishes, how all agree, what they conclude.
 *
 * Spec 3. Every conclusion is a pure function of the records, so no rank
 * decides alone. */
#ifndef GBI_CORE_DISCOVERY_H
#define GBI_CORE_DISCOVERY_H

#include "base/config.h"
#include "control/control.h"
#include "plan/topology.h"
#include "policy/rules.h"
#include "transport/transport.h"

#include <gpubridge/job.h>

#define GBI_FACTS_MAX 64
#define GBI_PROBLEMS_MAX 16
#define GBI_BRIDGE_REASON 512

/* One rank's record. Strings are bounded; the encoding is in docs/wire/. */
typedef struct gbi_record {
  char vendor[32];    /* "" when it could not be told */
  char island[64];    /* GPUBRIDGE_ISLAND, "" unset */
  char hostname[256]; /* GPUBRIDGE_SIM_HOSTNAME in simulation */
  char host_key[512]; /* gbi_host_key */
  bool simulated;
  char bridge[32];   /* as asked for */
  gbi_endpoint rdma; /* looked for where the bridge is auto's to choose */
  char policy[64];
  char rules[GBI_RULES_TEXT]; /* of GPUBRIDGE_THRESHOLDS, "" unset */
  char split_test[16];
  char version[32]; /* gpubridge's */
  /* Settings that must agree, canonical texts, NAME=value in table order. */
  struct {
    char name[64];
    char value[256];
  } settings[64];
  int settings_count;
  struct {
    char name[64];
    char value[1024];
  } facts[GBI_FACTS_MAX];
  int facts_count;
  char problems[GBI_PROBLEMS_MAX][512];
  int problems_count;
} gbi_record;

gb_status gbi_record_encode(const gbi_record *record, gbi_writer *out);
/* Hostile until checked: PROTOCOL on anything malformed. */
gb_status gbi_record_decode(gbi_reader *in, gbi_record *record,
                            gb_error *error);

/* Fills this rank's record from params, settings and the machine. A malformed
 * variable of this rank is GB_ERR_SETTING in `own` (also listed as a problem in
 * the record, so that the others learn of it); the call itself fails only for
 * lack of memory. `tables` are all the settings of the library. */
gb_status gbi_record_fill(const gb_job_params *params,
                          const gbi_setting *const *tables, const int *counts,
                          int tables_count, gbi_record *record, gb_error *own);

/* What the job knows about its ranks after discovery. Immutable, but for the
 * rules that are measured before any group is open: gbi_discovery_tuned. */
typedef struct gbi_discovery {
  int rank, world;
  gbi_record *records;    /* by global rank */
  char (*labels)[64];     /* island label by rank (split tests applied) */
  gbi_topology *topology; /* of the world */
  bool simulated;
  char split_test[16];
  const char *run_kind; /* spec 1.7 */
  char bridge[32];      /* resolved: "shm", "verbs", "tcp", "none" */
  char bridge_reason[GBI_BRIDGE_REASON];
  char policy[64];  /* resolved */
  gbi_rules *rules; /* of auto-tuned; NULL: none */
  int tune_seconds; /* GPUBRIDGE_TUNE: measure that long; 0: do not */
  int links_most;   /* GPUBRIDGE_SHARD_LINKS */
  int links;        /* of the world under its policy */
} gbi_discovery;

/* Exchanges records over `control`, checks agreement (spec 3.5, 3.7, 3.9) and
 * draws the conclusions. REFUSED with one text on every rank. */
gb_status gbi_discover(gbi_control *control, const gbi_record *mine, int rank,
                       int world, uint64_t deadline_ns,
                       gbi_discovery **discovery_p, gb_error *error);
/* The same without I/O: records in, conclusions out. For tests and the tool. */
gb_status gbi_discovery_conclude(const gbi_record *records, int rank, int world,
                                 gbi_discovery **discovery_p, gb_error *error);
/* The bridge for a group with this topology and so many links, by the job's
 * wish (spec 6.1); ranks: global rank of each rank of the topology. The name
 * lives as long as the discovery; why: GBI_BRIDGE_REASON bytes. REFUSED when
 * what was asked for cannot join them. */
gb_status gbi_discovery_bridge(const gbi_discovery *discovery,
                               const gbi_topology *topology, int links,
                               const int *ranks, const char **name_p, char *why,
                               gb_error *error);
/* `rules`, measured, are in force from here on; all ranks give the same. */
gb_status gbi_discovery_tuned(gbi_discovery *discovery, const gbi_rules *rules,
                              gb_error *error);
void gbi_discovery_free(gbi_discovery *discovery);

/* Known policies and bridges, for the name checks; NULL-terminated. */
extern const char *const gbi_known_bridges[];

#endif
