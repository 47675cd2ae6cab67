/* tools: the gpubridge command, one file per subcommand.
 *
 * Uses the public API only, but for simulate.c, tune.c (the chooser) and
 * doctor.c (the devices). The only place that prints.
 * Exit codes: 0 success, 1 the job or check failed, 2 wrong usage. */
#ifndef GB_TOOL_H
#define GB_TOOL_H

#include <gpubridge/gpubridge.h>
#include <stdbool.h>

enum { EXIT_USAGE = 2 };

int tool_run(int argc, char **argv);
int tool_check(int argc, char **argv);
int tool_tune(int argc, char **argv);
int tool_simulate(int argc, char **argv);
int tool_probe(int argc, char **argv);
int tool_doctor(int argc, char **argv);
int tool_config(int argc, char **argv);

/* One rank of a local launch. */
typedef struct tool_rank {
  char label[64];    /* island */
  char hostname[64]; /* simulated, "" none */
} tool_rank;

/* "nvidia:2,amd@hostb:2": at most `max` ranks; -1 with a text on stderr. */
int tool_parse_islands(const char *text, tool_rank *ranks, int max);
/* Launches one process per rank and waits for all; returns the exit code. */
int tool_launch(const tool_rank *ranks, int count, int port, int grace_s,
                bool prefix, char **program);

/* Launches this command again, once per rank: it finds RANK set then. argv[0]
 * is the subcommand. */
int tool_launch_myself(const char *islands, int argc, char **argv);

#endif
