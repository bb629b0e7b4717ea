/* `addend plan`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"

enum { KEY_RANKS_PER_NODE = 'r', KEY_PICTURE = 'p' };

typedef struct plan_input {
  cli_recipe_options recipe;
  ad_plan_options options;
  const char *picture;
} plan_input;

static const struct argp_option options[] = {
    {"ranks-per-node", KEY_RANKS_PER_NODE, "N", 0,
     "Consecutive ranks that share a machine and so one copy of gathered parameters; all if left out", 0},
    {"picture", KEY_PICTURE, "FILE", 0, "Also draw who sends what to whom: an SVG picture", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
  plan_input *input = state->input;
  switch (key) {
    case ARGP_KEY_INIT:
      state->child_inputs[0] = &input->recipe;
      return 0;
    case KEY_RANKS_PER_NODE:
      return input->options.ranks_per_node = cli_parse_number(argument, "--ranks-per-node", 1, state), 0;
    case KEY_PICTURE:
      return input->picture = cli_parse_out("--picture", argument, "", state), 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

const struct argp cli_plan_argp = {
    .options = options,
    .parser = parse,
    .args_doc = "RECIPE",
    .doc =
        "Says what a recipe reduces, over which axes, in which order, dtype, bucket and bytes, and each rank's memory. "
        "Nothing "
        "runs and no data moves, so any world size will do."
        "\vExample: addend plan recipes/gpt-text.yaml --set mesh=\"dp_replicate=64 dp_shard=64\"",
    .children = cli_recipe_children,
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
  if (status) return cli_failed(status);
  int unwritten = cli_write("the picture", picture, input->picture);
  free(picture);
  return unwritten;
}

static int print(const ad_recipe *recipe, const plan_input *input) {
  char *text;
  ad_status status =
      input->recipe.json ? ad_plan_json(recipe, &input->options, &text) : ad_plan_table(recipe, &input->options, &text);
  if (status) return cli_failed(status);
  int printed = cli_print(text);
  free(text);
  return printed;
}

int cli_plan(int argc, char **argv) {
  plan_input input = {.options = {.size = sizeof input.options}};
  ad_recipe *recipe;
  char *command = command_of(argc, argv); /* before words are put in another order */
  int failed = cli_parse_recipe(&cli_plan_argp, argc, argv, &input, &input.recipe, &recipe);
  if (!failed) {
    cli_say_what_is_drawn(recipe);
    if (input.picture) failed = draw(recipe, &input, command);
    if (!failed) failed = print(recipe, &input);
    ad_recipe_destroy(recipe);
  }
  free(command);
  return failed;
}
