/* core/tuning: GPUBRIDGE_TUNE: measures at init which policy carries which
 * sizes of which collective (docs/policies/auto-tuned.md).
 *
 * A group of all ranks is opened for it, with what the candidates need, and
 * closed before the world's group is opened with the rules found: a job that
 * measured is built like one whose thresholds file has the same rules. Every
 * decision follows from times that all ranks have alike, each the largest of
 * all ranks' own, the time that has passed included. */
#ifndef GBI_CORE_TUNING_H
#define GBI_CORE_TUNING_H

#include "core/connect.h"

/* Its number; no subgroup has it. */
#define GBI_TUNING_GROUP UINT32_C(0x80000001)

/* Every rank calls it, before the world is open. Does nothing unless the job is
 * to be tuned. `world` is what the world's group will be opened with: its links
 * and its bridge follow the rules. On failure the job must end. */
gb_status gbi_tuning_run(gb_job *job, gbi_group_spec *world, gb_error *error);

#endif
