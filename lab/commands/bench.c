/* `addend bench`: its options and its call. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "cli/command.h"

enum {
  KEY_JSON = 'j',
  KEY_PEERS = 'p',
  KEY_QUICK = 'q',
  KEY_OP = 'o',
  KEY_RANKS = 'r',
  KEY_LARGEST = 'l',
  KEY_HOSTS = 'h',
  KEY_QDISC = 'n',
  KEY_WRITE = 'w'
};

static const struct argp_option options[] = {
    {"json", KEY_JSON, NULL, 0, "Print one JSON document on standard output and nothing else there", 0},
    {"peers", KEY_PEERS, NULL, 0, "Also measure every other library that is installed, in turns within one run", 0},
    {"quick", KEY_QUICK, NULL, 0,
     "Collectives up to 1 MiB, the rest on a model of 43 MB or less; few rounds; 2 ranks, errors on 3 too, startup on "
     "32",
     0},
    {"op", KEY_OP, "NAME", 0, "Only this one: ", /* report_ops adds the names */
     0},
    {"ranks", KEY_RANKS, "LIST", 0, "Numbers of ranks, for example 2,4,8", 0},
    {"largest", KEY_LARGEST, "BYTES", 0, "Leave out larger sizes", 0},
    {"hosts", KEY_HOSTS, "LIST", 0,
     "Measure collectives, sharded and training steps between hosts: pairs of hosts and ranks a host, for example "
     "2x1,2x2,3x1. The hosts are network namespaces of this machine, made for it and removed again (needs root, "
     "iproute2, Open MPI or MPICH)",
     0},
    {"qdisc", KEY_QDISC, "WORDS", 0,
     "With --hosts: shape the network like a real one: the arguments of tc for every host's interface, for example "
     "'netem rate 10gbit delay 25us', or without a delay 'tbf rate 10gbit burst 1mb latency 10ms'",
     0},
    {"write", KEY_WRITE, "FILE", 0,
     "With --op products: write to this file which library was fastest at which products; programs that are started "
     "with ADDEND_PRODUCTS=FILE use it",
     0},
    {0},
};

typedef struct bench_input {
  bench_options bench;
  int json;
} bench_input;

static void parse_ranks(const char *argument, bench_options *bench, struct argp_state *state) {
  const char *at = argument;
  for (bench->rank_count = 0; *at; bench->rank_count++) {
    char *end;
    long ranks = strtol(at, &end, 10);
    if (end == at || (*end && *end != ',') || ranks < 1 || ranks > 32 || bench->rank_count == BENCH_COUNTS_MAX)
      ad_cli_wrong(state,
                   "--ranks must be at most %d numbers from 1 to 32 with commas between, for example 2,4,8, not '%s'",
                   BENCH_COUNTS_MAX, argument);
    bench->ranks[bench->rank_count] = (int)ranks;
    at = *end ? end + 1 : end;
    if (*end && !*at) ad_cli_wrong(state, "--ranks is '%s', but must not end in a comma", argument);
  }
  if (!bench->rank_count)
    ad_cli_wrong(state, "--ranks is empty, but must have at least one number, for example --ranks 2,4,8");
}

static const char *bench_word(int key, int index) { return key == KEY_OP ? bench_op(index) : NULL; }

static void parse_op(const char *argument, bench_options *bench, struct argp_state *state) {
  if (!bench_has_op(argument)) {
    const char *near = ad_cli_nearest_word(argument, bench_word, KEY_OP);
    ad_cli_wrong(state, "there is no operation '%s' to measure; %s%s%s", argument,
                 near ? "did you mean " : "see --help", near ? near : "", near ? "?" : "");
  }
  bench->op = argument;
}

/* Completes the help of --op with the operations that exist. argp frees what it gets. */
static char *report_ops(int key, const char *text, void *input) {
  char *help = NULL;
  size_t size;
  FILE *file = key == KEY_OP && text ? open_memstream(&help, &size) : NULL;
  if (!file) return (char *)text;
  fputs(text, file);
  for (int i = 0; bench_op(i); i++) fprintf(file, "%s%s", !i ? "" : bench_op(i + 1) ? ", " : " or ", bench_op(i));
  return fclose(file) ? (free(help), (char *)text) : help;
}

static void parse_largest(const char *argument, bench_options *bench, struct argp_state *state) {
  char *end;
  bench->largest = strtoull(argument, &end, 10);
  if (*end || !isdigit((unsigned char)*argument) || bench->largest < BENCH_SMALLEST)
    ad_cli_wrong(state, "--largest must be a number of bytes, at least %d, not '%s'", BENCH_SMALLEST, argument);
}

/* Parses "2x3" (2 hosts of 3 ranks) or "2" (2 hosts of 1 rank). Returns the end of it; NULL: `at` is no such world. */
static const char *parse_world(const char *at, bench_world *out) {
  char *end;
  long hosts = strtol(at, &end, 10), ranks = 1;
  if (end == at) return NULL;
  if (*end == 'x') ranks = strtol(at = end + 1, &end, 10);
  if (end == at || hosts < 2 || hosts > BENCH_HOSTS_MAX || ranks < 1 || hosts * ranks > 32) return NULL;
  *out = (bench_world){(int)hosts, (int)ranks};
  return end;
}

static void parse_hosts(const char *argument, bench_options *bench, struct argp_state *state) {
  const char *at = argument;
  for (bench->world_count = 0; !bench->world_count || *at; bench->world_count++) {
    bench_world world;
    const char *end = parse_world(at, &world);
    if (!end || (*end && (*end != ',' || !end[1])) || bench->world_count == BENCH_COUNTS_MAX) {
      ad_cli_wrong(state,
                   "--hosts must be at most %d worlds HOSTSxRANKS with commas between, each of 2 to %d hosts and at "
                   "most 32 ranks, for example 2x1,2x2 for two hosts of one rank and two hosts of two ranks; not '%s'",
                   BENCH_COUNTS_MAX, BENCH_HOSTS_MAX, argument);
      return;
    }
    bench->worlds[bench->world_count] = world;
    at = *end ? end + 1 : end;
  }
}

static int is_measured_between(const char *op) {
  const char *known;
  for (int i = 0; (known = bench_between_op(i)); i++)
    if (!strcmp(known, op)) return 1;
  return 0;
}

static void check_hosts(const bench_options *bench, struct argp_state *state) {
  if (!bench->world_count && bench->qdisc) ad_cli_wrong(state, "--qdisc shapes the network between hosts: add --hosts");
  if (!bench->world_count && bench->op && !strcmp(bench->op, "all_to_all"))
    ad_cli_wrong(state, "all_to_all is only measured between hosts; add --hosts, for example --hosts 2x1");
  if (bench->world_count && bench->op && !is_measured_between(bench->op))
    ad_cli_wrong(state, "%s is not measured between hosts; leave out --hosts", bench->op);
  if (bench->world_count && bench->rank_count)
    ad_cli_wrong(state,
                 "--ranks and --hosts exclude each other; write the number of ranks per host in --hosts, for example "
                 "--hosts 2x2");
}

static void check_write(const bench_options *bench, struct argp_state *state) {
  if (bench->write && (!bench->op || strcmp(bench->op, "products") != 0))
    ad_cli_wrong(state, "--write only writes what --op products measures; add --op products");
}

/* The options that take an argument. */
static error_t parse_value(bench_options *bench, int key, char *argument, struct argp_state *state) {
  switch (key) {
    case KEY_OP:
      return parse_op(argument, bench, state), 0;
    case KEY_RANKS:
      return parse_ranks(argument, bench, state), 0;
    case KEY_LARGEST:
      return parse_largest(argument, bench, state), 0;
    case KEY_HOSTS:
      return parse_hosts(argument, bench, state), 0;
    case KEY_QDISC:
      return bench->qdisc = argument, 0;
    case KEY_WRITE:
      return bench->write = argument, 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

static error_t parse_option(int key, char *argument, struct argp_state *state) {
  bench_input *input = state->input;
  switch (key) {
    case KEY_JSON:
      return input->json = 1, 0;
    case KEY_PEERS:
      return input->bench.peers = 1, 0;
    case KEY_QUICK:
      return input->bench.quick = 1, 0;
    case ARGP_KEY_ARG:
      ad_cli_wrong(state, "`addend bench` takes options only; leave out '%s'", argument);
      return 0;
    case ARGP_KEY_END:
      check_hosts(&input->bench, state);
      return check_write(&input->bench, state), 0;
    default:
      return parse_value(&input->bench, key, argument, state);
  }
}

static const struct argp bench_argp = {
    .options = options,
    .parser = parse_option,
    .help_filter = report_ops,
    .doc =
        "Measures collectives, the reducer, sharded and training steps against a bare program that moves the same "
        "bytes, and with --peers against every peer that is installed: Open MPI, MPICH, gloo, PyTorch DDP and FSDP, "
        "and this library's own backend mpi under either MPI. All take turns in one run. `train_step` trains two "
        "models, "
        "one twice as wide as the other, in f32 and in bf16, on one rank and on two, beside PyTorch DDP as it is, "
        "compiled and with bf16 autocast, and says which instructions made the products. `memory` trains, and compares "
        "what ranks hold with what `addend plan` says, and activations in bf16 with those in f32. `errors` lets one "
        "rank make a mistake (another call than the "
        "others', its death, a circle of waits), and times how soon every other rank has the error. `parallel_step` is "
        "a training step of ranks that share matrices (tp), beside the same ranks sharing the batch and PyTorch's "
        "tensor parallelism. `pipeline` is a step of two stages on two ranks by each schedule, beside one process with "
        "the "
        "same microbatches, the same ranks sharing the batch, and torch.distributed.pipelining, and what part of it "
        "ranks "
        "spend in transfers between stages, waiting for them included. `leaves` is a training step in which each "
        "sample is a leaf, and with --peers the same step without leaves, with as many microbatches and with one. "
        "`exchange` takes rows "
        "to the ranks of their experts, by "
        "uneven counts, and back; "
        "`grouped` multiplies rows with the matrices of their experts, beside one product of that size; `experts` is "
        "the whole layer on one rank; both beside PyTorch's grouped products. `bridge` brings a batch to another mesh "
        "and its gradient back: fan_in, fan_out, equal. `decompose_step` is a step of the program decompose on three "
        "pools "
        "of ranks, beside all of it in one process and the same losses in PyTorch; `decompose_exchange` each of the "
        "six "
        "exchanges between the pools. `attention` is attention alone, on one rank and around a ring, "
        "cut zigzag and plainly: its time, how evenly its arithmetic is spread, and how much of the time is waiting. "
        "`torch_group` is torch.distributed over addend's process group: its collectives beside the same calls in C, "
        "in "
        "the same memory, and with --peers beside gloo and DeepSpeed's all_reduce through shared memory, which is "
        "fetched "
        "from the package index and compiled then; and steps of DDP and FSDP2. "
        "`products` is matrix products on one "
        "rank: as addend makes them, by each library, and oneDNN's own rate. With --hosts collectives (all_to_all too) "
        "and sharded steps go over a network: backend mpi beside plain TCP streams of the same bytes, and with --peers "
        "beside the collectives of Open MPI, MPICH and gloo; with what the interfaces counted and the processor's "
        "seconds. `train_step` is then a step with ZeRO-2, and says for how much of it ranks waited for sums of "
        "gradients."
        "\vExample: addend bench --peers --op all_reduce --ranks 2\n"
        "Example: addend bench --op products --write products.json\n"
        "Example: sudo addend bench --peers --hosts 2x1,2x2 --qdisc 'netem rate 10gbit delay 25us'\n"
        "$ADDEND_PEER_PYTHON names a python3 that has torch; $ADDEND_PEERS the folder of the peers' programs, if not "
        "`peers` beside this program.",
};

static void progress(const char *what, int done, int of) { ad_cli_progress("bench", done, of, what); }

static int print_bench(const char *json, int as_json) {
  if (as_json) return ad_cli_print(json);
  char *table = bench_table(json);
  int printed = table ? ad_cli_print(table) : CLI_UNFINISHED;
  free(table);
  return printed;
}

static int run_bench(int argc, char **argv) {
  bench_input input = {.bench = {.progress = progress}};
  ad_cli_parse(&bench_argp, argc, argv, 0, &input);
  char *json;
  ad_status measured = bench_run(&input.bench, &json);
  ad_cli_progress_end();
  if (!json) return fprintf(stderr, "addend: no memory is left to start the measurement\n"), CLI_UNFINISHED;
  int status = print_bench(json, input.json);
  free(json);
  return measured && !status ? CLI_UNFINISHED : status;
}

const ad_cli_command ad_cli_bench = {
    "bench", run_bench, "collectives and the reducer against this machine's memory bandwidth and its peers",
    &bench_argp, bench_word};
