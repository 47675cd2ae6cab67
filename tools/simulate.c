/* gpubridge simulate: what calls would take on hosts and links that are not
 * here, from a links file (docs/simulate.md).
 *
 * Needs no job, no GPU and no network. The only command that uses more of the
 * library than its public functions: it links the simulator (src/sim) and the
 * policies beside them. */
#include "tool.h"

#include "chart.h"
#include "json.h"
#include "sim/sim.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { RANKS_MAX = 16384, POLICIES_MAX = 6, SIZES_MAX = 24, LIST_BYTES = 512 };
enum { ELEMENT_BYTES = 4, CHUNK_BYTES = 1 << 20 };

static const struct {
  const char *name;
  gbi_op op;
  bool reduces, rows;
} collectives[] = {
    {"all_reduce", GBI_OP_ALL_REDUCE, true, false},
    {"broadcast", GBI_OP_BROADCAST, false, false},
    {"reduce", GBI_OP_REDUCE, true, false},
    {"all_gather", GBI_OP_ALL_GATHER, false, true},
    {"reduce_scatter", GBI_OP_REDUCE_SCATTER, true, true},
    {"gather", GBI_OP_GATHER, false, true},
    {"scatter", GBI_OP_SCATTER, false, true},
    {"all_to_all", GBI_OP_ALL_TO_ALL, false, true},
};
enum { COLLECTIVES = sizeof collectives / sizeof collectives[0] };
static const char default_collectives[] =
    "all_reduce,broadcast,reduce,all_gather,reduce_scatter";
static const char default_policies[] =
    "direct,reduce-bridge-broadcast,sharded-bridge,native-only";
static const char default_sizes[] = "4,64,1K,16K,256K,1M,4M,16M,64M";

typedef struct options {
  const char *islands, *links, *policies, *collectives, *sizes, *svg, *json;
  double chunk_bytes;
  long shard_links;
} options;

typedef struct cell {
  gbi_sim_result result; /* seconds 0: left out */
  double us, bus_gbytes_s;
} cell;

typedef struct simulation {
  const options *given;
  gbi_links links;
  gbi_topology *topology;
  gbi_sim_policy policies[POLICIES_MAX];
  int policies_count;
  int chosen[COLLECTIVES], chosen_count; /* indices of collectives */
  double sizes[SIZES_MAX];
  int sizes_count;
  cell cells[COLLECTIVES][POLICIES_MAX][SIZES_MAX];
  uint64_t plan_steps, steps;
  char left_out[300]; /* why a cell was */
} simulation;

static int refuse(const char *format, ...)
    __attribute__((format(printf, 1, 2)));
static int refuse(const char *format, ...) {
  va_list list;
  va_start(list, format);
  fprintf(stderr, "gpubridge simulate: ");
  vfprintf(stderr, format, list);
  fprintf(stderr, "\n");
  va_end(list);
  return EXIT_USAGE;
}

/* ---- what is asked for ---- */

static int read_links(const char *path, gbi_links *links) {
  static char json[GBI_LINKS_BYTES_MAX + 1];
  gb_error error;
  size_t used = 0;
  ssize_t n = 1;
  struct stat info;
  /* A FIFO would block. */
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd >= 0 && !fstat(fd, &info) && !S_ISREG(info.st_mode)) {
    close(fd);
    return refuse("links file %s: it is not a file", path);
  }
  while (fd >= 0 && n > 0 && used < sizeof json) {
    n = read(fd, json + used, sizeof json - used);
    if (n > 0) used += (size_t)n;
  }
  int code = errno;
  if (fd >= 0) close(fd);
  if (fd < 0 || n < 0)
    return refuse("links file %s: it cannot be read: %s", path, strerror(code));
  if (gbi_links_parse(json, used, path, links, &error) == GB_OK) return 0;
  return refuse("%s", error.text);
}

/* Hosts of ranks that name none: hosts.ranks of them each; a host has ranks of
 * several islands only when all ranks fit on one. */
static void name_hosts(tool_rank *ranks, int count, int each) {
  int host = -1, on_it = 0;
  bool one = count <= each;
  for (int r = 0; r < count; r++) {
    if (ranks[r].hostname[0]) {
      on_it = each;
      continue;
    }
    bool next = !r || on_it == each ||
                (!one && strcmp(ranks[r].label, ranks[r - 1].label));
    if (next) {
      host++;
      on_it = 0;
    }
    on_it++;
    /* A space cannot be in a name of the list's. */
    snprintf(ranks[r].hostname, sizeof ranks[r].hostname, "host %d", host);
  }
}

static int make_topology(simulation *s) {
  tool_rank *ranks = calloc(RANKS_MAX, sizeof *ranks);
  const char **texts = calloc(2 * RANKS_MAX, sizeof *texts);
  int count = -1;
  gb_error error = {.text = "out of memory"};
  if (ranks && texts)
    count = tool_parse_islands(s->given->islands, ranks, RANKS_MAX);
  gb_status status = GB_ERR_MEMORY;
  if (count > 0) {
    name_hosts(ranks, count, (int)s->links.hosts.ranks);
    for (int r = 0; r < count; r++) {
      texts[r] = ranks[r].label;
      texts[RANKS_MAX + r] = ranks[r].hostname;
    }
    status = gbi_topology_plan(texts, texts + RANKS_MAX, count, &s->topology,
                               &error);
  }
  free(texts);
  free(ranks);
  if (count < 0) return EXIT_USAGE;
  return status == GB_OK ? 0 : refuse("%s", error.text);
}

/* Calls `take` for each word of a list. */
static int each_word(simulation *s, const char *list,
                     int (*take)(simulation *s, const char *word)) {
  char words[LIST_BYTES], *rest = NULL;
  int code = 0;
  if (strlen(list) >= sizeof words) return refuse("\"%.60s...\" is long", list);
  snprintf(words, sizeof words, "%s", list);
  for (char *word = strtok_r(words, ",", &rest); word && !code;
       word = strtok_r(NULL, ",", &rest))
    code = take(s, word);
  return code;
}

static int take_policy(simulation *s, const char *name) {
  const gbi_policy_ops *policy = gbi_policy_find(name);
  char known[256];
  gbi_policy_names(s->topology, known, sizeof known);
  if (!policy || policy == &gbi_policy_auto_tuned)
    return refuse("there is no policy \"%s\" to simulate. What fits is %s",
                  name, known);
  if (!policy->fits(s->topology)) {
    if (s->given->policies == default_policies) return 0;
    return refuse("policy %s does not fit these islands. What fits is %s", name,
                  known);
  }
  if (policy == &gbi_policy_direct && s->links.islands_count) {
    if (s->given->policies == default_policies) return 0;
    return refuse("policy direct is one of host memory, and island %s has a "
                  "fabric of its own",
                  s->links.islands[0].label);
  }
  if (s->policies_count == POLICIES_MAX)
    return refuse("more than %d policies", POLICIES_MAX);
  gbi_sim_policy_open(&s->policies[s->policies_count++], policy, s->topology,
                      !s->links.islands_count,
                      (uint64_t)s->given->chunk_bytes,
                      (int)s->given->shard_links);
  return 0;
}

static int take_collective(simulation *s, const char *name) {
  for (int i = 0; i < COLLECTIVES; i++) {
    if (strcmp(collectives[i].name, name)) continue;
    for (int k = 0; k < s->chosen_count; k++)
      if (s->chosen[k] == i) return refuse("%s is listed twice", name);
    s->chosen[s->chosen_count++] = i;
    return 0;
  }
  return refuse(
      "there is no collective \"%s\". Known are %s, gather, scatter, "
      "all_to_all",
      name, default_collectives);
}

/* "64K"; 0: it is not a size. */
static double size_of(const char *text) {
  static const char units[] = "KMG";
  char *end;
  double size = strtod(text, &end);
  const char *unit = *end ? strchr(units, *end) : NULL;
  if (end == text || (*end && (!unit || end[1]))) return 0;
  for (long n = unit ? unit - units + 1 : 0; n > 0; n--) size *= 1024;
  bool whole =
      size >= ELEMENT_BYTES && size <= 1e12 && (double)(uint64_t)size >= size;
  return whole ? size : 0;
}

static int take_size(simulation *s, const char *text) {
  double size = size_of(text);
  if (!(size > 0) || (uint64_t)size % ELEMENT_BYTES)
    return refuse(
        "\"%s\" is not a size. Wanted: bytes, like 4, 64K or 1M, a "
        "multiple of %d",
        text, ELEMENT_BYTES);
  if (s->sizes_count == SIZES_MAX)
    return refuse("more than %d sizes", SIZES_MAX);
  if (s->sizes_count && size <= s->sizes[s->sizes_count - 1])
    return refuse("sizes must ascend: %s does not", text);
  s->sizes[s->sizes_count++] = size;
  return 0;
}

/* ---- the runs ---- */

/* What nccl-tests call the bus rate: of each rank's link, by the bytes that the
 * best algorithm moves. */
static double bus_bytes(int collective, double bytes, double world) {
  if (collectives[collective].op == GBI_OP_ALL_REDUCE)
    return bytes * 2 * (world - 1) / world;
  return collectives[collective].rows ? bytes * (world - 1) / world : bytes;
}

/* False: that size leaves ranks without a row of their own. */
static bool call_of(const simulation *s, int collective, double bytes,
                    gbi_coll *coll) {
  uint64_t count = (uint64_t)bytes / ELEMENT_BYTES;
  bool rooted =
      collective == 1 || collective == 2 || collective == 5 || collective == 6;
  *coll = (gbi_coll){.op = (uint8_t)collectives[collective].op,
                     .dtype = GB_FLOAT32,
                     .redop = collectives[collective].reduces ? GB_SUM : 255,
                     .root = rooted ? 0 : -1,
                     .count = count};
  if (collectives[collective].rows)
    coll->count = count / (uint64_t)s->topology->world;
  return coll->count > 0;
}

static int run_cell(simulation *s, int k, int p, int size) {
  int collective = s->chosen[k];
  cell *c = &s->cells[k][p][size];
  gbi_sim_policy *policy = &s->policies[p];
  gbi_sim_spec spec = {.topology = s->topology,
                       .links = &s->links,
                       .bridges = policy->env.links,
                       .plan = gbi_sim_policy_plan,
                       .plan_arg = policy};
  gbi_coll coll;
  gb_error error;
  if (!call_of(s, collective, s->sizes[size], &coll)) return 0;
  gb_status status = gbi_sim_run(&spec, &coll, &c->result, &error);
  if (status == GB_ERR_ARGUMENT || status == GB_ERR_MEMORY) {
    snprintf(s->left_out, sizeof s->left_out, "%s of %.0f bytes, %s: %.200s",
             collectives[collective].name, s->sizes[size], policy->policy->name,
             error.text);
    return 0;
  }
  if (status != GB_OK) {
    refuse("%s", error.text);
    return 1;
  }
  s->plan_steps += c->result.plan_steps;
  s->steps += c->result.steps;
  c->us = c->result.seconds * 1e6;
  if (c->us > 0)
    c->bus_gbytes_s =
        bus_bytes(collective, s->sizes[size], s->topology->world) / c->us / 1e3;
  return 0;
}

/* The fastest policy, -1: none. */
static int best_of(const simulation *s, int k, int size) {
  int best = -1;
  for (int p = 0; p < s->policies_count; p++) {
    double us = s->cells[k][p][size].us;
    if (us > 0 && (best < 0 || us < s->cells[k][best][size].us)) best = p;
  }
  return best;
}

static int width_of(const char *policy) {
  int width = (int)strlen(policy);
  return width < 22 ? 22 : width;
}

static void print_head(const simulation *s) {
  const gbi_topology *t = s->topology;
  printf("%d ranks in %d islands on %d hosts, links file %s\n", t->world,
         t->islands_count, t->hosts_count, s->given->links);
  for (int i = 0; i < t->islands_count; i++) {
    const gbi_link_island *fabric =
        gbi_links_island(&s->links, t->islands[i].label);
    printf("  island %s: %d ranks, ", t->islands[i].label, t->islands[i].count);
    if (fabric)
      printf("fabric of %g GB/s\n", fabric->gbytes_s);
    else
      printf("on host memory (the links file has no such island)\n");
  }
  printf(
      "predicted time of a call and bus rate; * is the best, whose "
      "bottleneck is named\n%-14s %10s",
      "collective", "bytes");
  for (int p = 0; p < s->policies_count; p++) {
    const char *name = s->policies[p].policy->name;
    printf("  %*s ", width_of(name), name);
  }
  printf("  bottleneck\n");
}

static void print_row(const simulation *s, int k, int size) {
  int best = best_of(s, k, size);
  if (best < 0) return;
  printf("%-14s %10.0f", collectives[s->chosen[k]].name, s->sizes[size]);
  for (int p = 0; p < s->policies_count; p++) {
    const cell *c = &s->cells[k][p][size];
    char text[64] = "-";
    if (c->us > 0)
      snprintf(text, sizeof text, "%.1f us %.3f GB/s", c->us, c->bus_gbytes_s);
    printf("  %*s%c", width_of(s->policies[p].policy->name), text,
           p == best ? '*' : ' ');
  }
  const gbi_sim_result *r = &s->cells[k][best][size].result;
  printf("  %s%s, %.0f %% busy\n", r->busy < 0.5 ? "latency; " : "", r->busiest,
         r->busy * 100);
  fflush(stdout);
}

static int run_cells(simulation *s) {
  int code = 0;
  print_head(s);
  for (int k = 0; k < s->chosen_count; k++)
    for (int size = 0; size < s->sizes_count; size++) {
      for (int p = 0; p < s->policies_count && !code; p++)
        code = run_cell(s, k, p, size);
      if (code) return code;
      print_row(s, k, size);
    }
  return code;
}

/* ---- files ---- */

static void put_json(FILE *out, const simulation *s) {
  const char *comma = "";
  fprintf(out, "{\"gpubridge_simulation\": 1,\n \"islands\": ");
  tool_put_json(out, s->given->islands);
  fprintf(out, ",\n \"ranks\": %d, \"hosts\": %d, \"cells\": [",
          s->topology->world, s->topology->hosts_count);
  for (int k = 0; k < s->chosen_count; k++)
    for (int size = 0; size < s->sizes_count; size++)
      for (int p = 0; p < s->policies_count; p++) {
        const cell *c = &s->cells[k][p][size];
        if (!(c->us > 0)) continue;
        fprintf(out,
                "%s\n  {\"collective\": \"%s\", \"bytes\": %.0f, "
                "\"policy\": \"%s\", \"us\": %.3f, \"bus_gbytes_s\": %.6g, "
                "\"busy\": %.4f, \"busiest\": ",
                comma, collectives[s->chosen[k]].name, s->sizes[size],
                s->policies[p].policy->name, c->us, c->bus_gbytes_s,
                c->result.busy);
        tool_put_json(out, c->result.busiest);
        fprintf(out, "}");
        comma = ",";
      }
  fprintf(out, "]}\n");
}

static void put_chart(FILE *out, const simulation *s) {
  static double values[COLLECTIVES][POLICIES_MAX][SIZES_MAX];
  tool_curve curves[COLLECTIVES][POLICIES_MAX];
  tool_panel panels[COLLECTIVES];
  char title[160];
  for (int k = 0; k < s->chosen_count; k++) {
    for (int p = 0; p < s->policies_count; p++) {
      for (int i = 0; i < s->sizes_count; i++)
        values[k][p][i] = s->cells[k][p][i].us;
      curves[k][p] = (tool_curve){s->policies[p].policy->name, values[k][p]};
    }
    panels[k] = (tool_panel){collectives[s->chosen[k]].name, curves[k],
                             s->policies_count};
  }
  snprintf(title, sizeof title,
           "%d ranks in %d islands on %d hosts: predicted time of a call by "
           "its bytes",
           s->topology->world, s->topology->islands_count,
           s->topology->hosts_count);
  tool_chart(out, title, s->sizes, s->sizes_count, panels, s->chosen_count);
}

static int write_file(const simulation *s, const char *path,
                      void (*put)(FILE *out, const simulation *s)) {
  if (!path) return 0;
  FILE *out = fopen(path, "w");
  if (out) put(out, s);
  bool written = out && !ferror(out);
  if (out && fclose(out)) written = false;
  if (written) {
    printf("wrote %s\n", path);
    return 0;
  }
  refuse("cannot write %s: %s", path, strerror(errno));
  return 1;
}

/* ---- the command ---- */

static double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int simulate(simulation *s) {
  const options *o = s->given;
  double begin = now_s();
  int code = read_links(o->links, &s->links);
  if (!code) code = make_topology(s);
  if (!code) code = each_word(s, o->policies, take_policy);
  if (!code) code = each_word(s, o->collectives, take_collective);
  if (!code) code = each_word(s, o->sizes, take_size);
  if (!code && (!s->policies_count || !s->chosen_count || !s->sizes_count))
    code = refuse("an empty list of policies, collectives or sizes");
  if (!code) code = run_cells(s);
  if (code) return code;
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  if (s->left_out[0]) printf("left out (-), the last one: %s\n", s->left_out);
  printf(
      "%d ranks on %d hosts, %llu steps of all ranks' plans, %llu of "
      "communicators, in %.1f s and %.0f MiB\n",
      s->topology->world, s->topology->hosts_count,
      (unsigned long long)s->plan_steps, (unsigned long long)s->steps,
      now_s() - begin, (double)usage.ru_maxrss / 1024);
  code = write_file(s, o->json, put_json);
  return code ? code : write_file(s, o->svg, put_chart);
}

static void usage(FILE *out) {
  fprintf(out,
          "usage: gpubridge simulate --islands LIST --links FILE [OPTIONS]\n\n"
          "Predicts what calls take on hosts and links that need not be here: "
          "the real\nplans of every rank over a model of cores, memory, NICs "
          "and paths\n(docs/simulate.md has the file's format).\n\n"
          "  --islands LIST      LABEL[@HOST]:RANKS, like "
          "nvidia:1024,amd:1024\n"
          "  --links FILE        how fast they are\n"
          "  --policy LIST       (default %s,\n"
          "                      those that fit)\n"
          "  --collectives LIST  (default\n"
          "                      %s)\n"
          "  --sizes LIST        bytes of the larger buffer, ascending "
          "(default\n"
          "                      %s)\n"
          "  --chunk BYTES       GPUBRIDGE_CHUNK_BYTES (default 1M)\n"
          "  --shard-links N     GPUBRIDGE_SHARD_LINKS (default 0: as many as "
          "there can be)\n"
          "  --svg FILE          curves\n"
          "  --json FILE         the table\n",
          default_policies, default_collectives, default_sizes);
}

int tool_simulate(int argc, char **argv) {
  static const struct option known[] = {
      {"islands", required_argument, NULL, 'i'},
      {"links", required_argument, NULL, 'l'},
      {"policy", required_argument, NULL, 'p'},
      {"policies", required_argument, NULL, 'p'},
      {"collectives", required_argument, NULL, 'c'},
      {"sizes", required_argument, NULL, 's'},
      {"chunk", required_argument, NULL, 'k'},
      {"shard-links", required_argument, NULL, 'n'},
      {"svg", required_argument, NULL, 'g'},
      {"json", required_argument, NULL, 'j'},
      {"help", no_argument, NULL, 'h'},
      {0}};
  static simulation s;
  options o = {.policies = default_policies,
               .collectives = default_collectives,
               .sizes = default_sizes,
               .chunk_bytes = CHUNK_BYTES};
  int c;
  while ((c = getopt_long(argc, argv, "h", known, NULL)) != -1) {
    switch (c) {
      case 'i': o.islands = optarg; break;
      case 'l': o.links = optarg; break;
      case 'p': o.policies = optarg; break;
      case 'c': o.collectives = optarg; break;
      case 's': o.sizes = optarg; break;
      case 'k': o.chunk_bytes = size_of(optarg); break;
      case 'n': o.shard_links = strtol(optarg, NULL, 10); break;
      case 'g': o.svg = optarg; break;
      case 'j': o.json = optarg; break;
      case 'h': usage(stdout); return 0;
      default: usage(stderr); return EXIT_USAGE;
    }
  }
  if (optind < argc || !o.islands || !o.links || !(o.chunk_bytes >= 64) ||
      o.chunk_bytes > 1 << 30 || o.shard_links < 0 ||
      o.shard_links > RANKS_MAX || (uint64_t)o.chunk_bytes % 8) {
    usage(stderr);
    return EXIT_USAGE;
  }
  s.given = &o;
  int code = simulate(&s);
  gbi_topology_free(s.topology);
  return code;
}
