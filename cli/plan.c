/* `addend plan`. */
#include <stdio.h>
#include <stdlib.h>

#include "command.h"

static const struct argp_child children[] = {{&cli_recipe_argp, 0, NULL, 0}, {0}};

static error_t parse(int key, char *argument, struct argp_state *state) {
  if (key != ARGP_KEY_INIT) return ARGP_ERR_UNKNOWN;
  state->child_inputs[0] = state->input;
  return 0;
}

static const struct argp argp = {
    .parser = parse,
    .args_doc = "RECIPE",
    .doc =
        "Says what a recipe reduces, over which axes, in which order, dtype, bucket and bytes, and each rank's memory. "
        "Nothing "
        "runs and no data moves, so any world size will do."
        "\vExample: addend plan recipes/gpt-text.yaml --set mesh=\"dp_replicate=64 dp_shard=64\"",
    .children = children,
};

int cli_plan(int argc, char **argv) {
  cli_recipe_options input = {0};
  argp_parse(&argp, argc, argv, 0, NULL, &input);
  ad_recipe *recipe;
  int failed = cli_read_recipe(&input, &recipe);
  if (failed) return failed;
  char *text;
  ad_status status = input.json ? ad_plan_json(recipe, &text) : ad_plan_table(recipe, &text);
  ad_recipe_destroy(recipe);
  if (status) return cli_failed(status);
  int printed = cli_print(text);
  free(text);
  return printed;
}
