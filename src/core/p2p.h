/* core/p2p: what joins point-to-point messages (p2p/p2p.h) to jobs, groups and
 * works. One gbi_job_p2p per job. */
#ifndef GBI_CORE_P2P_H
#define GBI_CORE_P2P_H

#include "core/job.h"
#include "p2p/p2p.h"

#include <gpubridge/p2p.h>

typedef struct gbi_job_p2p gbi_job_p2p;

/* Needs the job's control plane, discovery, names and host area; before the
 * last exchange of the set-up, because offers may come right after it. Leaves
 * it in job->p2p. */
gb_status gbi_job_p2p_open(gb_job *job, gb_error *error);
/* For meshes; NULL before open. */
gbi_p2p *gbi_job_p2p_of(gb_job *job);

/* The control plane's callbacks. */
void gbi_job_p2p_on_offer(gb_job *job, int from, const void *blob,
                          size_t bytes);
void gbi_job_p2p_on_left(gb_job *job, int rank);
void gbi_job_p2p_on_failure(gb_job *job);

/* Before the goodbye; twice is fine. */
void gbi_job_p2p_stop(gb_job *job);
/* After the control plane is closed. */
void gbi_job_p2p_free(gb_job *job);
void gbi_job_p2p_describe(gb_job *job, gbi_fact_fn fn, void *arg);

/* For messages on GPUs. */
gbi_p2p *gbi_job_p2p_layer(gbi_job_p2p *m);
void gbi_job_p2p_fill(const gbi_group_params *g, const gb_p2p_op *from,
                      gbi_p2p_op *op);
/* Its place among the calls in flight, -1: there is none left. */
int gbi_job_p2p_show(gbi_job_p2p *m, const gbi_p2p_op *op);
void gbi_job_p2p_unshow(gbi_job_p2p *m, int slot, bool success);

/* Checked ops of one call. source_p: of a single receive, may be NULL. */
gb_status gbi_group_messages(gb_group *group, const gb_p2p_op *ops, int count,
                             int *source_p, gb_work **work_p, gb_error *error);

#endif
