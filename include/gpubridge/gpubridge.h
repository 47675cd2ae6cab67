/* gpubridge: one training job across NVIDIA and AMD GPUs. Include this one.
 *
 *   gb_job_params params = GB_JOB_PARAMS_INIT;
 *   gb_job *job;
 *   gb_error error;
 *   if (gb_job_open(&params, &job, &error) != GB_OK) ...error.text...
 *   gb_buffer b = {data, count, GB_FLOAT32};
 *   gb_all_reduce(gb_job_world(job), &b, GB_SUM, NULL, &error);
 *   gb_job_close(job, &error);
 */
#ifndef GPUBRIDGE_GPUBRIDGE_H
#define GPUBRIDGE_GPUBRIDGE_H

#include <gpubridge/coll.h>
#include <gpubridge/group.h>
#include <gpubridge/job.h>
#include <gpubridge/observe.h>
#include <gpubridge/p2p.h>
#include <gpubridge/parts.h>
#include <gpubridge/status.h>
#include <gpubridge/store.h>
#include <gpubridge/version.h>

#endif
