/* `addend schedule`: makes, lowers, checks and draws tables of actions. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/command.h"
#include "addend/helpers.h"
#include "addend/schedule.h"

enum {
  KEY_STAGES = 's',
  KEY_MICROBATCHES = 'm',
  KEY_RANKS = 'n',
  KEY_LOWER = 'l',
  KEY_PICTURE = 'p',
  KEY_JSON = 'j',
  KEY_CSV = 'c',
  KEY_GATHERED = 256,
  KEY_REDUCE_EACH,
  KEY_WAITS,
  KEY_LIMIT,
  KEY_BUFFERED,
  KEY_PAIRS,
  KEY_COST,
  KEY_STAGE_COST
};

static const struct argp_option options[] = {
    {"stages", KEY_STAGES, "N", 0, "make: so many stages, one after the other", 0},
    {"microbatches", KEY_MICROBATCHES, "N", 0, "make: so many microbatches", 0},
    {"ranks", KEY_RANKS, "N", 0, "make: stage s lies on rank s modulo N; as many as stages if left out", 0},
    {"lower", KEY_LOWER, NULL, 0, "Insert transfers, reductions and the end of the step, where the table has none", 0},
    {"gathered", KEY_GATHERED, "N", 0,
     "With --lower: also gather sharded parameters before their use, for at most N stages of a rank at a time", 0},
    {"reduce-each", KEY_REDUCE_EACH, NULL, 0,
     "With --lower: reduce after every microbatch's addend, not only after the last", 0},
    {"waits", KEY_WAITS, NULL, 0,
     "With --lower: say where each send and reduction that it inserts is waited for, as torch.distributed.pipelining "
     "needs it",
     0},
    {"limit", KEY_LIMIT, "N", 0, "At most so many activations may be in flight on a rank", 0},
    {"buffered", KEY_BUFFERED, NULL, 0,
     "Assume that a send never waits for its receive; without this option the table must also hold if it does", 0},
    {"pairs", KEY_PAIRS, "HOW", 0,
     "How a receive finds its send: in order on each edge between stages (edge), or among all that one rank sends to "
     "another (ranks), as in PyTorch, which has no tags; left out: ranks for a CSV, edge for all else",
     0},
    {"cost", KEY_COST, "KIND=TIME,...", 0,
     "How long actions take, in any unit: F, B, I, W or transfer (default F=1,B=2,I=1,W=1,transfer=0)", 0},
    {"stage-cost", KEY_STAGE_COST, "FACTOR,...", 0, "For each stage, a factor of how long its F, B, I and W take", 0},
    {"picture", KEY_PICTURE, "FILE", 0, "Also draw the table over time: an SVG picture", 0},
    {"json", KEY_JSON, NULL, 0,
     "check: what was found as one document on standard output and nothing else there; make: the table as JSON", 0},
    {"csv", KEY_CSV, NULL, 0, "make: the table as torch.distributed.pipelining reads it", 0},
    {0},
};

enum { STAGE_COSTS_MAX = 4096 };

typedef struct schedule_input {
  const char *verb, *name; /* "check" and a file, or "make" and a schedule's name */
  ad_table_shape shape;
  ad_table_lowering lowering;
  ad_table_options options;
  ad_table_costs costs;
  double *stage_costs;
  int lower, json, csv;
  const char *picture;
} schedule_input;

/* ---- parsing the options ---- */

static int32_t parse_count(const char *argument, const char *option, struct argp_state *state) {
  int64_t number = ad_cli_parse_number(argument, option, 1, state);
  if (number > INT32_MAX) ad_cli_wrong(state, "%s takes a number from 1 to 2147483647, not '%s'", option, argument);
  return (int32_t)number;
}

/* Parses a time above 0 (or 0, if may_be_zero is 1); *end is the text after it. */
static double parse_time(const char *text, const char *option, int may_be_zero, char **end, struct argp_state *state) {
  errno = 0;
  double time = strtod(text, end);
  int is_time = *end != text && !errno && isfinite(time) && (may_be_zero ? time >= 0 : time > 0);
  if (!is_time || (**end && **end != ',')) ad_cli_wrong(state, "%s takes times above 0, not '%s'", option, text);
  return time;
}

static double *cost_of(ad_table_costs *costs, const char *name, size_t length) {
  static const char *const names[] = {"F", "B", "I", "W", "transfer"};
  double *const fields[] = {&costs->f, &costs->b, &costs->i, &costs->w, &costs->transfer};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strlen(names[i]) == length && !strncmp(names[i], name, length)) return fields[i];
  return NULL;
}

static void parse_costs(schedule_input *input, const char *argument, struct argp_state *state) {
  for (const char *at = argument; *at;) {
    size_t length = strcspn(at, "=");
    double *cost = at[length] ? cost_of(&input->costs, at, length) : NULL;
    char *end;
    if (!cost) ad_cli_wrong(state, "--cost takes F, B, I, W or transfer with its time, like B=2.5, not '%s'", at);
    if (!cost) return;
    *cost = parse_time(at + length + 1, "--cost", cost == &input->costs.transfer, &end, state);
    at = *end ? end + 1 : end;
  }
}

static void parse_stage_costs(schedule_input *input, const char *argument, struct argp_state *state) {
  free(input->stage_costs);
  input->stage_costs = calloc(STAGE_COSTS_MAX, sizeof *input->stage_costs);
  if (!input->stage_costs) argp_failure(state, CLI_UNFINISHED, 0, "no memory for the factors of --stage-cost");
  input->costs.stage_count = 0;
  for (const char *at = argument; *at && input->stage_costs;) {
    char *end;
    if (input->costs.stage_count == STAGE_COSTS_MAX)
      ad_cli_wrong(
          state, "--stage-cost has more than %d factors, the largest number of stages; give one factor for each stage",
          STAGE_COSTS_MAX);
    input->stage_costs[input->costs.stage_count++] = parse_time(at, "--stage-cost", 0, &end, state);
    at = *end ? end + 1 : end;
  }
  input->costs.of_stage = input->stage_costs;
}

static error_t take_word(schedule_input *input, const char *word, struct argp_state *state) {
  if (!input->verb) {
    if (strcmp(word, "check") != 0 && strcmp(word, "make") != 0)
      ad_cli_wrong(state, "the first argument is '%s'; write `check FILE` or `make SCHEDULE`", word);
    input->verb = word;
  } else if (!input->name) {
    input->name = word;
  } else {
    ad_cli_wrong(state, "`%s` takes only one %s; leave out '%s'", input->verb,
                 *input->verb == 'c' ? "file" : "schedule", word);
  }
  return 0;
}

static int makes(const schedule_input *input) { return input->verb && !strcmp(input->verb, "make"); }

static error_t check_call(const schedule_input *input, struct argp_state *state) {
  if (!input->verb) ad_cli_wrong(state, "an argument is missing: write `check FILE` or `make SCHEDULE`");
  if (!input->name)
    ad_cli_wrong(state, makes(input)
                            ? "`make` needs the name of a SCHEDULE: gpipe, 1f1b, interleaved, zb, accumulate or leads"
                            : "`check` needs FILE, the file of a table");
  if (makes(input) && (!input->shape.stages || !input->shape.microbatches))
    ad_cli_wrong(state, "`make` needs the options --stages and --microbatches");
  if (!makes(input) && (input->shape.stages || input->shape.microbatches || input->shape.ranks || input->csv))
    ad_cli_wrong(state,
                 "the options --stages, --microbatches, --ranks and --csv are for `make`; leave them out of `check`, "
                 "which reads them from the file");
  if (input->csv && input->json)
    ad_cli_wrong(state, "--csv and --json exclude each other; give only one of the two options");
  if (!input->lower && (input->lowering.gathered || input->lowering.reduces_each || input->lowering.waits))
    ad_cli_wrong(state, "--gathered, --reduce-each and --waits only change what --lower does; add --lower");
  return 0;
}

static const char *const pairs_words[] = {[AD_TABLE_PAIRS_EDGE] = "edge", [AD_TABLE_PAIRS_RANKS] = "ranks", NULL};

static const char *schedule_word(int key, int index) {
  return key == KEY_PAIRS ? pairs_words[index + AD_TABLE_PAIRS_EDGE] : NULL;
}

static ad_table_pairs parse_pairs(const char *argument, struct argp_state *state) {
  for (ad_table_pairs pairs = AD_TABLE_PAIRS_EDGE; pairs_words[pairs]; pairs++)
    if (!strcmp(pairs_words[pairs], argument)) return pairs;
  ad_cli_wrong(state, "--pairs takes edge or ranks, not '%s'", argument);
  return AD_TABLE_PAIRS_OF_SOURCE;
}

/* Parses the options whose argument is a count. */
static error_t parse_counted(schedule_input *input, int key, const char *argument, struct argp_state *state) {
  switch (key) {
    case KEY_STAGES:
      return input->shape.stages = parse_count(argument, "--stages", state), 0;
    case KEY_MICROBATCHES:
      return input->shape.microbatches = parse_count(argument, "--microbatches", state), 0;
    case KEY_RANKS:
      return input->shape.ranks = parse_count(argument, "--ranks", state), 0;
    case KEY_GATHERED:
      return input->lowering.gathered = parse_count(argument, "--gathered", state), 0;
    case KEY_LIMIT:
      return input->options.in_flight = parse_count(argument, "--limit", state), 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

/* Parses the options without an argument. */
static error_t parse_flag(schedule_input *input, int key) {
  switch (key) {
    case KEY_LOWER:
      return input->lower = 1, 0;
    case KEY_REDUCE_EACH:
      return input->lowering.reduces_each = 1, 0;
    case KEY_WAITS:
      return input->lowering.waits = 1, 0;
    case KEY_BUFFERED:
      return input->options.buffered = 1, 0;
    case KEY_JSON:
      return input->json = 1, 0;
    case KEY_CSV:
      return input->csv = 1, 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

static error_t parse_option(int key, char *argument, struct argp_state *state) {
  schedule_input *input = state->input;
  switch (key) {
    case KEY_COST:
      return parse_costs(input, argument, state), 0;
    case KEY_PAIRS:
      return input->options.pairs = parse_pairs(argument, state), 0;
    case KEY_STAGE_COST:
      return parse_stage_costs(input, argument, state), 0;
    case KEY_PICTURE:
      return input->picture = ad_cli_parse_out("--picture", argument, "", state), 0;
    case ARGP_KEY_ARG:
      return take_word(input, argument, state);
    case ARGP_KEY_END:
      return check_call(input, state);
    default:
      return parse_flag(input, key) ? parse_counted(input, key, argument, state) : 0;
  }
}

static const struct argp schedule_argp = {
    .options = options,
    .parser = parse_option,
    .args_doc = "check FILE\nmake SCHEDULE",
    .doc =
        "check says whether a pipeline's table of actions is right, addend's or one that torch.distributed.pipelining "
        "dumped: its bubble, its activations in flight, and which law is broken where. make prints the table of a "
        "schedule: gpipe, 1f1b, interleaved, zb, accumulate or leads."
        "\vExample: addend schedule check dumped.csv --limit 4 --picture pipeline.svg\n"
        "Example: addend schedule make 1f1b --stages 4 --microbatches 8 --csv\n"
        "Exit status: 0 the table is right, 1 it is not, 2 the call or the file is wrong, 3 could not finish.",
};

/* ---- opening and lowering the table of actions ---- */

/* Returns the exit status for a failed table: a file that cannot be read counts as a wrong call here. */
static int unread(ad_status status) {
  int result = ad_cli_failed(status);
  return status == AD_IO ? CLI_WRONG_CALL : result;
}

static int open_table(const schedule_input *input, ad_table **out) {
  size_t overlapped = 0;
  ad_status status =
      makes(input) ? ad_table_make(input->name, &input->shape, out) : ad_table_read(input->name, out, &overlapped);
  if (status) return unread(status);
  if (overlapped)
    fprintf(
        stderr,
        "addend: the table has %zu OVERLAP_F_B action%s, whose parts are checked as if executed one after the other\n",
        overlapped, overlapped == 1 ? "" : "s");
  return CLI_HOLDS;
}

/* Runs the lowering passes whose actions are missing from the table, if --lower was given. A table that breaks a law is
 * not lowered, but checked as it is. */
static int lower(const schedule_input *input, ad_table *table) {
  ad_table_lowering lowering = input->lowering;
  unsigned parts = AD_TABLE_TRANSFERS | AD_TABLE_REDUCTIONS | AD_TABLE_END;
  if (lowering.gathered) parts |= AD_TABLE_GATHERS;
  lowering.parts = parts & ~ad_table_parts(table);
  if (!input->lower || !lowering.parts || ad_table_check(table, NULL)) return CLI_HOLDS;
  ad_status status = ad_table_lower(table, &lowering);
  if (status) return ad_cli_failed(status);
  if (!makes(input))
    fprintf(stderr,
            "addend: --lower inserted the actions that the file leaves out, and the table is checked with these\n");
  return CLI_HOLDS;
}

/* ---- printing and drawing the table ---- */

static size_t columns(void) {
  struct winsize size;
  return !ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) && size.ws_col ? size.ws_col : 0;
}

static ad_status make_answer(const schedule_input *input, const ad_table *table, int *holds, char **out) {
  ad_text_style style = ad_cli_takes_colour(STDOUT_FILENO) ? AD_COLOURED_TEXT : AD_PLAIN_TEXT;
  *holds = 1;
  if (makes(input) && input->csv) return ad_table_csv(table, out);
  if (makes(input) && input->json) return ad_table_json(table, out);
  if (input->json) return ad_table_report(table, &input->options, holds, out);
  return ad_table_text(table, &input->options, style, columns(), holds, out);
}

static int draw_schedule(const schedule_input *input, const ad_table *table) {
  char made[256];
  snprintf(made, sizeof made, "%s, %d stage%s, %d microbatch%s", input->name, input->shape.stages,
           input->shape.stages == 1 ? "" : "s", input->shape.microbatches, input->shape.microbatches == 1 ? "" : "es");
  ad_status status = ad_table_picture(table, &input->options, makes(input) ? made : input->name, input->picture);
  return status ? ad_cli_failed(status) : CLI_HOLDS;
}

static void report_undrawn(const char *path) {
  char printable[CLI_MESSAGE];
  fprintf(stderr,
          "addend: the picture %s was not written, because the table is wrong and its actions have no times to draw; "
          "repair the table first\n",
          ad_printable(path, printable, sizeof printable));
}

/* Prints the answer and draws the picture. A wrong table has no times, and therefore no picture. */
static int answer(const schedule_input *input, const ad_table *table) {
  char *text;
  int holds;
  ad_status status = make_answer(input, table, &holds, &text);
  if (status) return ad_cli_failed(status);
  int failed = input->picture && holds ? draw_schedule(input, table) : CLI_HOLDS;
  if (input->picture && !holds) report_undrawn(input->picture);
  int unprinted = ad_cli_print(text);
  free(text);
  if (failed || unprinted) return failed ? failed : unprinted;
  return holds ? CLI_HOLDS : CLI_ANSWER_IS_NO;
}

static int run_schedule(int argc, char **argv) {
  schedule_input input = {.shape = {.size = sizeof input.shape},
                          .lowering = {.size = sizeof input.lowering},
                          .options = {.size = sizeof input.options},
                          .costs = {.size = sizeof input.costs}};
  ad_table *table;
  ad_cli_parse(&schedule_argp, argc, argv, 0, &input);
  input.options.costs = &input.costs;
  int failed = open_table(&input, &table);
  if (!failed) {
    failed = lower(&input, table);
    if (!failed) failed = answer(&input, table);
    ad_table_destroy(table);
  }
  free(input.stage_costs);
  return failed;
}

const ad_cli_command ad_cli_schedule = {
    "schedule", run_schedule,
    "whether a pipeline's table of actions is right, its bubble and its activations in flight", &schedule_argp,
    schedule_word};
