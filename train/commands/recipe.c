/* The arguments and errors of all commands that read a recipe. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "trainer.h"

enum { KEY_SET = 's', KEY_JSON = 'j', KEY_PROGRAM = 'p' };

static const struct argp_option options[] = {
    {"set", KEY_SET, "PATH=VALUE", 0, "Replace one key of the recipe; the value is YAML in flow style. Repeatable", 0},
    {"program", KEY_PROGRAM, "FILE", 0,
     "A shared object that brings the recipe's program: a custom one (train/docs/own-program.md). It is run, so "
     "name none that you do not trust",
     0},
    {"json", KEY_JSON, NULL, 0, "Print one JSON document on standard output and nothing else there", 0},
    {0},
};

static int add_set(ad_cli_recipe_options *input, const char *set, struct argp_state *state) {
  const char **sets = realloc(input->sets, (input->set_count + 1) * sizeof *sets);
  if (!sets) {
    argp_failure(state, CLI_UNFINISHED, 0, "no memory for --set %s", set);
    return ENOMEM;
  }
  input->sets = sets;
  input->sets[input->set_count++] = set;
  return 0;
}

static error_t parse_option(int key, char *argument, struct argp_state *state) {
  ad_cli_recipe_options *input = state->input;
  switch (key) {
    case KEY_SET:
      return add_set(input, argument, state);
    case KEY_PROGRAM:
      if (input->program)
        ad_cli_wrong(state, "--program is given twice, but may be given once; put all programs into one shared object");
      return input->program = argument, 0;
    case KEY_JSON:
      return input->json = 1, 0;
    case ARGP_KEY_ARG:
      if (input->recipe)
        ad_cli_wrong(state, "the command takes one recipe, but '%s' is a second one; leave it out", argument);
      return input->recipe = argument, 0;
    case ARGP_KEY_NO_ARGS:
      ad_cli_wrong(state, "the argument RECIPE is missing; name a file, for example recipes/gpt-text.yaml");
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

const struct argp ad_cli_recipe_argp = {.options = options, .parser = parse_option};
const struct argp_child ad_cli_recipe_children[] = {{&ad_cli_recipe_argp, 0, NULL, 0}, {0}};

int ad_cli_parse_recipe(const struct argp *argp, int argc, char **argv, void *input, const ad_cli_recipe_options *given,
                        ad_recipe **out) {
  ad_cli_parse(argp, argc, argv, 0, input);
  return ad_cli_read_recipe(given, out);
}

ad_status ad_cli_try_recipe(const ad_cli_recipe_options *input, ad_recipe **out) {
  ad_status status = ad_cli_load_program(input->program);
  if (!status)
    status =
        (input->on_paper ? ad_recipe_read_on_paper : ad_recipe_read)(input->recipe, input->sets, input->set_count, out);
  free(input->sets);
  return status;
}

int ad_cli_read_recipe(const ad_cli_recipe_options *input, ad_recipe **out) {
  ad_status status = ad_cli_try_recipe(input, out);
  if (!status) return CLI_HOLDS;
  if (!ad_cli_return_text(status, ad_last_error())) fprintf(stderr, "%s\n", ad_last_error());
  ad_cli_report_ranks(status, ad_last_error());
  return CLI_WRONG_CALL;
}

void ad_cli_report_what_is_drawn(const ad_recipe *recipe) {
  ad_recipe *first;
  if (ad_recipe_pretraining(recipe, &first) || !first) return;
  fprintf(stderr,
          "addend: this command draws random weights for the %s from train.seed, whereas `addend train` trains the %s "
          "first\n",
          recipe->program->course.pretraining->name, recipe->program->course.pretraining->name);
  ad_recipe_destroy(first);
}
