/* gpubridge probe: what this machine has, as far as a job cares. Never fails
 * because something is missing: that is what it tells. */
#include "tool.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

static void probe_library(const char *what, const char *const *names) {
  for (int i = 0; names[i]; i++) {
    void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library) continue;
    printf("  %-24s %s\n", what, names[i]);
    dlclose(library);
    return;
  }
  printf("  %-24s not found (tried %s)\n", what, names[0]);
}

static void probe_libraries(void) {
  static const char *const cuda[] = {"libcuda.so.1", "libcuda.so", NULL};
  static const char *const nccl[] = {"libnccl.so.2", "libnccl.so", NULL};
  static const char *const hip[] = {"libamdhip64.so", "libamdhip64.so.6",
                                    "libamdhip64.so.7", NULL};
  static const char *const rccl[] = {"librccl.so.1", "librccl.so", NULL};
  static const char *const verbs[] = {"libibverbs.so.1", NULL};
  static const char *const ucx[] = {"libucp.so.0", NULL};
  printf("libraries\n");
  probe_library("CUDA driver", cuda);
  probe_library("NCCL", nccl);
  probe_library("HIP runtime", hip);
  probe_library("RCCL", rccl);
  probe_library("libibverbs", verbs);
  probe_library("UCX", ucx);
}

static void probe_interfaces(void) {
  struct ifaddrs *all = NULL;
  printf("interfaces\n");
  if (getifaddrs(&all)) {
    printf("  could not list them\n");
    return;
  }
  for (struct ifaddrs *at = all; at; at = at->ifa_next) {
    char text[INET6_ADDRSTRLEN] = "";
    if (!at->ifa_addr) continue;
    if (at->ifa_addr->sa_family == AF_INET)
      inet_ntop(AF_INET, &((struct sockaddr_in *)at->ifa_addr)->sin_addr, text,
                sizeof text);
    else if (at->ifa_addr->sa_family == AF_INET6)
      inet_ntop(AF_INET6, &((struct sockaddr_in6 *)at->ifa_addr)->sin6_addr,
                text, sizeof text);
    else
      continue;
    printf("  %-24s %s%s\n", at->ifa_name, text,
           at->ifa_flags & IFF_UP ? "" : " (down)");
  }
  freeifaddrs(all);
}

static void print_limit(const char *name, int resource) {
  struct rlimit limit;
  if (getrlimit(resource, &limit)) return;
  if (limit.rlim_cur == RLIM_INFINITY)
    printf("  %-24s unlimited\n", name);
  else
    printf("  %-24s %llu\n", name, (unsigned long long)limit.rlim_cur);
}

int tool_probe(int argc, char **argv) {
  if (argc > 1) {
    bool help = !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h");
    fprintf(help ? stdout : stderr,
            "usage: gpubridge probe\n\nShows libraries, interfaces and limits "
            "of this machine.\n");
    return help ? 0 : EXIT_USAGE;
  }
  struct utsname name;
  uname(&name);
  printf("gpubridge %s\nmachine\n", gb_version());
  printf("  %-24s %s\n  %-24s %s %s %s\n", "host", name.nodename, "kernel",
         name.sysname, name.release, name.machine);
  printf("  %-24s %ld\n", "cores", sysconf(_SC_NPROCESSORS_ONLN));
  probe_libraries();
  probe_interfaces();
  printf("limits\n");
  print_limit("open files", RLIMIT_NOFILE);
  print_limit("locked memory, bytes", RLIMIT_MEMLOCK);
  return 0;
}
