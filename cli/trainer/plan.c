/* `addend plan`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

enum { KEY_RANKS_PER_NODE = 'r', KEY_PICTURE = 'p', KEY_COMPARE = 'c' };

typedef struct plan_input {
  ad_cli_recipe_options recipe;
  ad_plan_options options;
  const char *picture;
  char *compared; /* PATH=VALUE,... */
} plan_input;

static const struct argp_option options[] = {
    {"ranks-per-node", KEY_RANKS_PER_NODE, "N", 0,
     "Consecutive ranks that share a machine and so one copy of gathered parameters; all if left out", 0},
    {"picture", KEY_PICTURE, "FILE", 0, "Also draw who sends what to whom: an SVG picture", 0},
    {"compare", KEY_COMPARE, "PATH=VALUE,...", 0,
     "Plan with each of these values of one key: memory and bytes moved, side by side", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
  plan_input *input = state->input;
  switch (key) {
    case ARGP_KEY_INIT:
      state->child_inputs[0] = &input->recipe;
      return 0;
    case KEY_RANKS_PER_NODE:
      return input->options.ranks_per_node = ad_cli_parse_number(argument, "--ranks-per-node", 1, state), 0;
    case KEY_PICTURE:
      return input->picture = ad_cli_parse_out("--picture", argument, "", state), 0;
    case KEY_COMPARE:
      if (!strchr(argument, '=') || *argument == '=')
        ad_cli_wrong(state, "--compare takes a key and its values, like shard.zero=0,1,2,3, not '%s'", argument);
      return input->compared = argument, 0;
    case ARGP_KEY_END:
      if (input->compared && input->picture) ad_cli_wrong(state, "--picture draws one plan: leave out --compare");
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

const struct argp ad_cli_plan_argp = {
    .options = options,
    .parser = parse,
    .args_doc = "RECIPE",
    .doc =
        "Says what a recipe reduces, over which axes, in which order, dtype, bucket and bytes, and each rank's memory. "
        "Nothing "
        "runs and no data moves, so any world size will do."
        "\vExamples: addend plan recipes/gpt-text.yaml --set mesh=\"dp_replicate=64 dp_shard=64\"\n"
        "addend plan recipes/gpt-text.yaml --compare shard.zero=0,1,2,3",
    .children = ad_cli_recipe_children,
};

/* What was typed, so that a shell reads it as the same words. Caller frees; NULL: no memory. */
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
  fclose(file);
  return text;
}

static int draw(const ad_recipe *recipe, const plan_input *input, const char *command) {
  char *picture;
  ad_status status = ad_plan_picture(recipe, &input->options, command, &picture);
  if (status) return ad_cli_failed(status);
  int unwritten = ad_cli_write("the picture", picture, input->picture);
  free(picture);
  return unwritten;
}

static int print(const ad_recipe *recipe, const plan_input *input) {
  char *text;
  ad_status status =
      input->recipe.json ? ad_plan_json(recipe, &input->options, &text) : ad_plan_table(recipe, &input->options, &text);
  if (status) return ad_cli_failed(status);
  int printed = ad_cli_print(text);
  free(text);
  return printed;
}

/* ---- several plans ---- */

enum { PLANS_MAX = 64 };

typedef struct plans {
  char *sets[PLANS_MAX]; /* PATH=VALUE; ours */
  const char *values[PLANS_MAX];
  ad_recipe *recipes[PLANS_MAX];
  size_t count;
} plans;

/* The end of a value: the next comma that stands in no bracket and no quotes. */
static const char *end_of_value(const char *at) {
  int depth = 0;
  char quote = 0;
  for (; *at && (*at != ',' || depth > 0 || quote); at++) {
    if (quote || *at == '"' || *at == '\'') quote = !quote ? *at : *at == quote ? 0 : quote;
    if (!quote) depth += (*at == '[' || *at == '{') - (*at == ']' || *at == '}');
  }
  return at;
}

static int no_memory(const plan_input *input) {
  fprintf(stderr, "addend: no memory for --compare %s\n", input->compared);
  return CLI_UNFINISHED;
}

static int read_one(const plan_input *input, const char *value, plans *to) {
  size_t length = (size_t)(end_of_value(value) - value), key = strcspn(input->compared, "=") + 1, at = to->count;
  ad_cli_recipe_options read = input->recipe;
  read.sets = malloc((read.set_count + 1) * sizeof *read.sets);
  to->sets[at] = read.sets ? malloc(key + length + 1) : NULL;
  if (!to->sets[at]) {
    free(read.sets);
    return no_memory(input);
  }
  snprintf(to->sets[at], key + length + 1, "%.*s%.*s", (int)key, input->compared, (int)length, value);
  for (size_t i = 0; i < input->recipe.set_count; i++) read.sets[i] = input->recipe.sets[i];
  read.sets[read.set_count++] = to->sets[at];
  to->values[at] = to->sets[at] + key;
  to->count++;
  return ad_cli_read_recipe(&read, &to->recipes[at]);
}

static int read_all(const plan_input *input, plans *to) {
  int failed = CLI_HOLDS;
  for (const char *at = strchr(input->compared, '='); *at && !failed; at = end_of_value(at + 1)) {
    if (to->count == PLANS_MAX) {
      fprintf(stderr, "addend: --compare takes %d values at most\n", PLANS_MAX);
      return CLI_WRONG_CALL;
    }
    failed = read_one(input, at + 1, to);
  }
  return failed;
}

static int print_all(const plan_input *input, const plans *of) {
  char *text, key[256];
  snprintf(key, sizeof key, "%.*s", (int)strcspn(input->compared, "="), input->compared);
  ad_plan_comparison comparison = {.size = sizeof comparison,
                                   .key = key,
                                   .count = of->count,
                                   .values = of->values,
                                   .recipes = (const ad_recipe *const *)of->recipes,
                                   .options = &input->options};
  ad_status status =
      input->recipe.json ? ad_plan_compare_json(&comparison, &text) : ad_plan_compare_table(&comparison, &text);
  if (status) return ad_cli_failed(status);
  int printed = ad_cli_print(text);
  free(text);
  return printed;
}

static int compare(plan_input *input) {
  plans all = {.count = 0};
  int failed = read_all(input, &all);
  if (!failed) failed = print_all(input, &all);
  for (size_t i = 0; i < all.count; i++) {
    ad_recipe_destroy(all.recipes[i]);
    free(all.sets[i]);
  }
  free(input->recipe.sets);
  return failed;
}

static int plan_one(plan_input *input, const char *command) {
  ad_recipe *recipe;
  int failed = ad_cli_read_recipe(&input->recipe, &recipe);
  if (failed) return failed;
  ad_cli_say_what_is_drawn(recipe);
  if (input->picture) failed = draw(recipe, input, command);
  if (!failed) failed = print(recipe, input);
  ad_recipe_destroy(recipe);
  return failed;
}

int ad_cli_plan(int argc, char **argv) {
  plan_input input = {.options = {.size = sizeof input.options}};
  char *command = command_of(argc, argv); /* before words are put in another order */
  ad_cli_parse(&ad_cli_plan_argp, argc, argv, 0, &input);
  int failed = input.compared ? compare(&input) : plan_one(&input, command);
  free(command);
  return failed;
}
