/* core/job: the life of a job, from gb_job_open to gb_job_close. */
#ifndef GBI_CORE_JOB_H
#define GBI_CORE_JOB_H

#include "control/control.h"
#include "core/discovery.h"
#include "core/group.h"
#include "core/parts.h"
#include "observe/watch.h"
#include "os/hostarea.h"

#include <pthread.h>

/* The groups besides the world; see core/subgroup.h. */
typedef struct gbi_subgroups {
  pthread_mutex_t open_lock; /* level 1: one is set up at a time */
  pthread_mutex_t lock;      /* level 5: the list */
  struct gbi_subgroup *first;
  struct gbi_membership *memberships; /* how often each list was opened */
} gbi_subgroups;

struct gb_job {
  unsigned fork_count;
  int rank, world;
  uint64_t timeout_ms;
  gbi_control *control;
  gbi_discovery *discovery;
  gbi_parts parts; /* the caller's own */
  gbi_hostarea *area;
  /* What may block in connecting now; on_failure stops it. */
  pthread_mutex_t connect_lock; /* level 2 */
  gbi_hostarea *connecting_area;
  gbi_comm *connecting[GBI_RESOURCES];
  gbi_gpu *connecting_gpu;
  int gpu_index;           /* -1: on host memory */
  gbi_device *device;      /* NULL: on host memory */
  gbi_kernel_set *kernels; /* NULL: none, kernels_why says why */
  gb_error kernels_why;
  gb_group *group;         /* the world */
  gb_group *tuning;        /* while core/tuning.h measures */
  gbi_subgroups subgroups; /* all others */
  int (*wait_hook)(void *arg);
  void *wait_hook_arg;
  struct gbi_job_p2p *p2p; /* core/p2p.h */
  gbi_watch watch;
  char **who;               /* by global rank, for texts */
  gb_pair *facts;           /* all ranks' facts, one after another */
  size_t *facts_at;         /* world + 1 */
  struct gb_job *next_open; /* list of open jobs, for the exit handler */
};

/* The public calls of job.h, whose contracts hold. */
gb_status gbi_job_open(const gb_job_params *params, gb_job **job_p,
                       gb_error *error);
gb_status gbi_job_close(gb_job *job, gb_error *error);
void gbi_job_abort(gb_job *job, const char *reason);

/* The job has failed: whoever sleeps or connects in this process looks up. Any
 * thread. */
void gbi_job_wake(gb_job *job);

#endif
