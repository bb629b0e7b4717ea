/* `addend plan`. */
#include <stdio.h>
#include <stdlib.h>

#include "command.h"

enum { KEY_RANKS_PER_NODE = 'r' };

typedef struct plan_input {
  cli_recipe_options recipe;
  ad_plan_options options;
} plan_input;

static const struct argp_option options[] = {
    {"ranks-per-node", KEY_RANKS_PER_NODE, "N", 0,
     "Consecutive ranks that share a machine and so one copy of gathered parameters; all if left out", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
  plan_input *input = state->input;
  switch (key) {
    case ARGP_KEY_INIT:
      state->child_inputs[0] = &input->recipe;
      return 0;
    case KEY_RANKS_PER_NODE:
      return input->options.ranks_per_node = cli_parse_count(argument, "--ranks-per-node", state), 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp argp = {
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

int cli_plan(int argc, char **argv) {
  plan_input input = {.options = {.size = sizeof input.options}};
  ad_recipe *recipe;
  int failed = cli_parse_recipe(&argp, argc, argv, &input, &input.recipe, &recipe);
  if (failed) return failed;
  char *text;
  ad_status status =
      input.recipe.json ? ad_plan_json(recipe, &input.options, &text) : ad_plan_table(recipe, &input.options, &text);
  ad_recipe_destroy(recipe);
  if (status) return cli_failed(status);
  int printed = cli_print(text);
  free(text);
  return printed;
}
