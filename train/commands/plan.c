/* The command `addend plan`: its options and its call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

enum { KEY_RANKS_PER_NODE = 'r', KEY_PICTURE = 'p', KEY_COMPARE = 'c', KEY_TRACE = 't', KEY_SPMD = 's' };

typedef struct plan_input {
  ad_cli_recipe_options recipe;
  ad_plan_options options;
  const char *picture;
  char *compared; /* the argument of --compare: PATH=VALUE,VALUE,... */
  int spmd;       /* 1: print the types of parameters in place of the plan */
} plan_input;

static const struct argp_option options[] = {
    {"ranks-per-node", KEY_RANKS_PER_NODE, "N", 0,
     "Consecutive ranks that share a machine and so one copy of gathered parameters; all if left out", 0},
    {"picture", KEY_PICTURE, "FILE", 0,
     "Also draw an SVG picture: who sends what to whom or, for a pipeline, its schedule over time", 0},
    {"trace", KEY_TRACE, "RUN", 0,
     "Time a pipeline's schedule by how long each action took in this run (its folder); by matrix products if left out",
     0},
    {"compare", KEY_COMPARE, "PATH=VALUE,...", 0,
     "Plan with each of these values of one key: memory and bytes moved, side by side; schedule=KIND,... for a "
     "pipeline's",
     0},
    {"spmd", KEY_SPMD, NULL, 0,
     "Print the types of parameters in place of the plan, in the notation of spmd_types for PyTorch programs", 0},
    {0},
};

static error_t parse_option(int key, char *argument, struct argp_state *state) {
  plan_input *input = state->input;
  switch (key) {
    case ARGP_KEY_INIT:
      state->child_inputs[0] = &input->recipe;
      return 0;
    case KEY_RANKS_PER_NODE:
      return input->options.ranks_per_node = ad_cli_parse_number(argument, "--ranks-per-node", 1, state), 0;
    case KEY_PICTURE:
      return input->picture = ad_cli_parse_out("--picture", argument, "", state), 0;
    case KEY_TRACE:
      return input->options.trace = argument, 0;
    case KEY_COMPARE:
      if (!strchr(argument, '=') || *argument == '=')
        ad_cli_wrong(state, "--compare takes a key and its values, such as shard.zero=0,1,2,3, not '%s'", argument);
      return input->compared = argument, 0;
    case KEY_SPMD:
      return input->spmd = 1, 0;
    case ARGP_KEY_END:
      if (input->compared && input->picture)
        ad_cli_wrong(state, "--picture draws only one plan; leave out --compare or --picture");
      if (input->spmd && (input->compared || input->picture || input->options.trace))
        ad_cli_wrong(state, "--spmd prints types alone; leave out %s",
                     input->compared  ? "--compare"
                     : input->picture ? "--picture"
                                      : "--trace");
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp plan_argp = {
    .options = options,
    .parser = parse_option,
    .args_doc = "RECIPE",
    .doc =
        "Says what a recipe reduces, over which axes, in which order, dtype, bucket and bytes, and each rank's memory. "
        "Nothing "
        "runs and no data moves, so any world size will do."
        "\vExamples: addend plan recipes/gpt-text.yaml --set mesh=\"dp_replicate=64 dp_shard=64\"\n"
        "addend plan recipes/gpt-text.yaml --compare shard.zero=0,1,2,3\n"
        "addend plan recipes/gpt-pp.yaml --compare schedule=gpipe,1f1b,interleaved,zb",
    .children = ad_cli_recipe_children,
};

/* Returns the call as a shell would read it, or NULL if there is no memory. The caller frees it. */
static char *command_of(int argc, char **argv) {
  char *text = NULL;
  size_t size;
  FILE *file = open_memstream(&text, &size);
  if (!file) return NULL;
  fputs(argv[0], file);
  for (int i = 1; i < argc; i++) {
    int is_plain = *argv[i] && !argv[i][strspn(argv[i],
                                               "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                               "%+,-./:=@_")];
    fputs(is_plain ? " " : " '", file);
    for (const char *c = argv[i]; *c; c++) fputs(*c == '\'' ? "'\\''" : (char[]){*c, 0}, file);
    if (!is_plain) fputc('\'', file);
  }
  if (!fclose(file)) return text;
  free(text);
  return NULL;
}

static int draw_plan(const ad_recipe *recipe, const plan_input *input, const char *command) {
  char *picture;
  ad_status status = ad_plan_picture(recipe, &input->options, command, &picture);
  if (status) return ad_cli_failed(status);
  int unwritten = ad_cli_write("the picture", picture, input->picture);
  free(picture);
  return unwritten;
}

static int print_plan(const ad_recipe *recipe, const plan_input *input) {
  static ad_status (*const makers[2][2])(const ad_recipe *, const ad_plan_options *, char **) = {
      {ad_plan_table, ad_plan_json}, {ad_plan_spmd_table, ad_plan_spmd_json}};
  char *text;
  ad_status status = makers[input->spmd][!!input->recipe.json](recipe, &input->options, &text);
  if (status) return ad_cli_failed(status);
  int printed = ad_cli_print(text);
  free(text);
  return printed;
}

/* ---- --compare: several plans ---- */

enum { PLANS_MAX = 64 };

typedef struct plans {
  char *sets[PLANS_MAX]; /* PATH=VALUE of each plan; owned */
  const char *values[PLANS_MAX];
  ad_recipe *recipes[PLANS_MAX]; /* NULL if there is no plan for this value */
  char *unfit[PLANS_MAX];        /* why there is no plan for this value, owned; NULL if there is one */
  size_t count;
} plans;

/* Returns the end of the value at `at`: the next comma outside brackets and quotes, or the end of the text. */
static const char *end_of_value(const char *at) {
  int depth = 0;
  char quote = 0;
  for (; *at && (*at != ',' || depth > 0 || quote); at++) {
    if (quote || *at == '"' || *at == '\'') quote = !quote ? *at : *at == quote ? 0 : quote;
    if (!quote) depth += (*at == '[' || *at == '{') - (*at == ']' || *at == '}');
  }
  return at;
}

/* Returns 1 if `--compare schedule=gpipe,...` means the recipe key schedule.kind. A value of the complete section
 * `schedule` begins with a brace. */
static int is_kind(const plan_input *input, const char *value) {
  return !strncmp(input->compared, "schedule=", strlen("schedule=")) && *value != '{';
}

static int is_schedule(const char *value) {
  for (size_t i = 0; ad_table_schedule_name(i); i++)
    if (!strcmp(value, ad_table_schedule_name(i))) return 1;
  return 0;
}

static int no_memory(const plan_input *input) {
  fprintf(stderr, "addend: no memory for --compare %s\n", input->compared);
  return CLI_UNFINISHED;
}

/* Makes PATH=VALUE from the value at `value`, and sets *at to the VALUE in it. Returns NULL if there is no memory. The
 * caller frees the result. */
static char *set_of(const plan_input *input, const char *value, const char **at) {
  size_t length = (size_t)(end_of_value(value) - value), key = strcspn(input->compared, "=");
  const char *below = is_kind(input, value) ? ".kind" : "";
  size_t size = key + strlen(below) + 1 + length + 1;
  char *set = malloc(size);
  if (!set) return NULL;
  snprintf(set, size, "%.*s%s=%.*s", (int)key, input->compared, below, (int)length, value);
  *at = set + size - 1 - length;
  return set;
}

/* Reads the recipe with one kind of schedule. If that kind does not fit, keeps the error, which is shown beside the
 * other plans. */
static int read_kind(const plan_input *input, const ad_cli_recipe_options *read, plans *to, size_t at) {
  ad_status status = ad_cli_try_recipe(read, &to->recipes[at]);
  if (!status) return CLI_HOLDS;
  to->unfit[at] = strdup(ad_last_error());
  return to->unfit[at] ? CLI_HOLDS : no_memory(input);
}

static int read_one(const plan_input *input, const char *value, plans *to) {
  size_t at = to->count;
  ad_cli_recipe_options read = input->recipe;
  read.sets = malloc((read.set_count + 1) * sizeof *read.sets);
  to->sets[at] = read.sets ? set_of(input, value, &to->values[at]) : NULL;
  if (!to->sets[at]) {
    free(read.sets);
    return no_memory(input);
  }
  for (size_t i = 0; i < input->recipe.set_count; i++) read.sets[i] = input->recipe.sets[i];
  read.sets[read.set_count++] = to->sets[at];
  to->count++;
  if (is_kind(input, value) && is_schedule(to->values[at])) return read_kind(input, &read, to, at);
  return ad_cli_read_recipe(&read, &to->recipes[at]);
}

/* Reports an error, as for any wrong call, if no value gives a plan. */
static int check_any(const plans *of) {
  for (size_t i = 0; i < of->count; i++)
    if (of->recipes[i]) return CLI_HOLDS;
  for (size_t i = 0; i < of->count; i++) fprintf(stderr, "%s\n", of->unfit[i]);
  return CLI_WRONG_CALL;
}

static int read_all(const plan_input *input, plans *to) {
  int failed = CLI_HOLDS;
  for (const char *at = strchr(input->compared, '='); *at && !failed; at = end_of_value(at + 1)) {
    if (to->count == PLANS_MAX) {
      fprintf(stderr, "addend: --compare takes at most %d values; leave some out\n", PLANS_MAX);
      return CLI_WRONG_CALL;
    }
    failed = read_one(input, at + 1, to);
  }
  return failed ? failed : check_any(to);
}

static int print_all(const plan_input *input, const plans *of) {
  char *text, key[256];
  snprintf(key, sizeof key, "%.*s", (int)strcspn(input->compared, "="), input->compared);
  ad_plan_comparison comparison = {.size = sizeof comparison,
                                   .key = key,
                                   .count = of->count,
                                   .values = of->values,
                                   .recipes = (const ad_recipe *const *)of->recipes,
                                   .options = &input->options,
                                   .unfit = (const char *const *)of->unfit};
  ad_status status =
      input->recipe.json ? ad_plan_compare_json(&comparison, &text) : ad_plan_compare_table(&comparison, &text);
  if (status) return ad_cli_failed(status);
  int printed = ad_cli_print(text);
  free(text);
  return printed;
}

static int compare_plans(plan_input *input) {
  plans all = {.count = 0};
  int failed = read_all(input, &all);
  if (!failed) failed = print_all(input, &all);
  for (size_t i = 0; i < all.count; i++) {
    ad_recipe_destroy(all.recipes[i]);
    free(all.sets[i]);
    free(all.unfit[i]);
  }
  free(input->recipe.sets);
  return failed;
}

static int plan_one(plan_input *input, const char *command) {
  ad_recipe *recipe;
  int failed = ad_cli_read_recipe(&input->recipe, &recipe);
  if (failed) return failed;
  ad_cli_report_what_is_drawn(recipe);
  if (input->picture) failed = draw_plan(recipe, input, command);
  if (!failed) failed = print_plan(recipe, input);
  ad_recipe_destroy(recipe);
  return failed;
}

static int run_plan(int argc, char **argv) {
  plan_input input = {.recipe = {.on_paper = 1}, .options = {.size = sizeof input.options}};
  char *command = command_of(argc, argv); /* before parsing, because parsing reorders the words */
  ad_cli_parse(&plan_argp, argc, argv, 0, &input);
  int failed = input.compared ? compare_plans(&input) : plan_one(&input, command);
  free(command);
  return failed;
}

const ad_cli_command ad_cli_plan = {
    "plan", run_plan, "what is reduced over which axes, in how many bytes, at any world size; nothing runs", &plan_argp,
    NULL};
