/* gpubridge config: every setting, default, value in force. */
#include "tool.h"

#include <stdio.h>
#include <string.h>

static void print_setting(void *arg, const gb_setting_info *info) {
  int *problems = arg;
  printf("%-32s %-12s %-12s %-11s %s\n", info->name,
         info->default_value[0] ? info->default_value : "-",
         info->value[0] ? info->value : "-", info->source,
         info->must_agree ? "all ranks" : "this rank");
  printf("    %s\n", info->help);
  if (info->problem) {
    (*problems)++;
    printf("    PROBLEM: %s\n", info->problem);
  }
}

int tool_config(int argc, char **argv) {
  if (argc > 1) {
    bool help = !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h");
    fprintf(help ? stdout : stderr,
            "usage: gpubridge config\n\nPrints every setting: default, value "
            "in force, where it comes from, whether all\nranks must agree. "
            "Exit code 1 when a value is malformed.\n");
    return help ? 0 : EXIT_USAGE;
  }
  int problems = 0;
  printf("%-32s %-12s %-12s %-11s %s\n", "setting", "default", "value", "from",
         "agree");
  gb_settings_list(print_setting, &problems);
  return problems ? 1 : 0;
}
