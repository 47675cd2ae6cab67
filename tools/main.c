#include "tool.h"

#include <stdio.h>
#include <string.h>

static const struct {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *help;
} commands[] = {
    {"run", tool_run, "start one process per rank on this machine"},
    {"check", tool_check, "run every collective, type and reduction, exact"},
    {"tune", tool_tune, "measure the policies, write a thresholds file"},
    {"simulate", tool_simulate, "predict times on hosts that are not here"},
    {"probe", tool_probe, "show what this machine has"},
    {"doctor", tool_doctor, "say what GPU jobs need and have here"},
    {"config", tool_config, "show every setting and its value in force"},
};

static void usage(FILE *out) {
  fprintf(out, "usage: gpubridge COMMAND [OPTIONS]\n\n");
  for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
    fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].help);
  fprintf(out,
          "  %-8s print the version\n\n"
          "gpubridge COMMAND --help tells more. For example:\n"
          "  gpubridge run --islands nvidia:2,amd:2 -- python3 train.py\n",
          "version");
}

int main(int argc, char **argv) {
  if (argc < 2) {
    usage(stderr);
    return EXIT_USAGE;
  }
  if (!strcmp(argv[1], "version") || !strcmp(argv[1], "--version")) {
    printf("gpubridge %s\n", gb_version());
    return 0;
  }
  if (!strcmp(argv[1], "help") || !strcmp(argv[1], "--help") ||
      !strcmp(argv[1], "-h")) {
    usage(stdout);
    return 0;
  }
  for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
    if (!strcmp(argv[1], commands[i].name))
      return commands[i].run(argc - 1, argv + 1);
  fprintf(stderr, "gpubridge: unknown command \"%s\"\n\n", argv[1]);
  usage(stderr);
  return EXIT_USAGE;
}
