/* The command `addend check`: its options and its call. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trainer.h"

enum {
  KEY_STEPS = 'n',
  KEY_DTYPE = 'd',
  KEY_DIRECTIONAL = 'D',
  KEY_MUTATE = 'S',
  KEY_OUT = 'o',
  KEY_SEED = 'r',
  KEY_ALL = 'a',
  KEY_DUMP = 'f'
};

static const struct argp_option options[] = {
    {"steps", KEY_STEPS, "N", 0, "Check N steps; the reference restarts each from the distributed state (default 2)",
     0},
    {"dtype", KEY_DTYPE, "DTYPE", 0, "f64 (default), f32, or recipe: the recipe's own precision policy", 0},
    {"directional", KEY_DIRECTIONAL, NULL, 0,
     "Compare the loss's difference quotient with <gradient, direction>, without a reference; a custom program's check "
     "takes it along",
     0},
    {"mutate", KEY_MUTATE, "N", OPTION_ARG_OPTIONAL,
     "Then try mutants, copies of the program with a mistake made on purpose, and report how many the check kills: "
     "those derived from the program (N of them, drawn; all without N) and known bugs",
     0},
    {"seed", KEY_SEED, "S", 0, "Seed of the draw of --mutate=N (default 1)", 0},
    {"all", KEY_ALL, NULL, 0,
     "Print a row for each parameter and each mutant; without this option, only for what does not match and for "
     "mutants that survived",
     0},
    {"dump", KEY_DUMP, "FOLDER", 0,
     "Write there what each step starts from and its gradients, as safetensors (audit/docs/dumps.md)", 0},
    {"out", KEY_OUT, "FILE", 0, "Also write the JSON document there; runs/NAME/check.json is shown in NAME's report",
     0},
    {0},
};

typedef struct check_input {
  ad_cli_recipe_options recipe;
  ad_check_options check;
  int all;
  const char *out;
} check_input;

static const char *check_word(int key, int index) {
  static const char *const dtypes[] = {"f64", "f32", "recipe", NULL};
  return key == KEY_DTYPE ? dtypes[index] : NULL;
}

static void parse_dtype(const char *argument, ad_check_options *check, struct argp_state *state) {
  check->recipe_dtype = strcmp(argument, "recipe") == 0;
  if (check->recipe_dtype) return;
  if (ad_dtype_parse(argument, &check->dtype) || (check->dtype != AD_F64 && check->dtype != AD_F32))
    ad_cli_wrong(state, "--dtype takes f64, f32 or recipe, not '%s'", argument);
}

static error_t parse_option(int key, char *argument, struct argp_state *state) {
  check_input *input = state->input;
  switch (key) {
    case ARGP_KEY_INIT:
      return state->child_inputs[0] = &input->recipe, 0;
    case KEY_STEPS:
      return input->check.steps = ad_cli_parse_number(argument, "--steps", 1, state), 0;
    case KEY_DTYPE:
      return parse_dtype(argument, &input->check, state), 0;
    case KEY_DIRECTIONAL:
      return input->check.directional = 1, 0;
    case KEY_MUTATE:
      input->check.mutate = 1;
      if (argument) input->check.mutant_count = ad_cli_parse_number(argument, "--mutate", 1, state);
      return 0;
    case KEY_SEED:
      input->check.mutant_seed = (uint64_t)ad_cli_parse_number(argument, "--seed", 1, state);
      return 0;
    case KEY_ALL:
      return input->all = 1, 0;
    case KEY_DUMP:
      return input->check.dump = argument, 0;
    case KEY_OUT:
      return input->out = ad_cli_parse_out("--out", argument, "check.json", state), 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp check_argp = {
    .options = options,
    .parser = parse_option,
    .args_doc = "RECIPE",
    .doc =
        "Compares the distributed gradient of a recipe, parameter by parameter, with that of one process on the same "
        "global batch. The first line and the last are the verdict."
        "\vExample: addend check recipes/gpt-dp.yaml --steps 3 --mutate\n"
        "Exit status: 0 it matches, 1 it does not, nothing was checked, or a mutant survived, "
        "2 "
        "wrong call or recipe, 3 could not finish.",
    .children = ad_cli_recipe_children,
};

static void progress(void *context, const char *what, int64_t done, int64_t of) {
  ad_cli_progress("check", done, of, what);
}

static int print_check(const char *json, const check_input *input) {
  char *table;
  if (input->recipe.json) return ad_cli_print(json);
  ad_text_style style = ad_cli_takes_colour(STDOUT_FILENO) ? AD_COLOURED_TEXT : AD_PLAIN_TEXT;
  ad_status status = input->all ? ad_check_list(json, style, &table) : ad_check_table(json, style, &table);
  if (status) return ad_cli_failed(status);
  int printed = ad_cli_print(table);
  free(table);
  return printed;
}

static int deliver(const char *json, const check_input *input) {
  int unwritten = input->out ? ad_cli_write("the check's document", json, input->out) : CLI_HOLDS;
  return unwritten ? unwritten : print_check(json, input);
}

static int check_recipe(const ad_recipe *recipe, const check_input *input) {
  int holds = 0;
  char *json;
  ad_cli_on_request(SIG_DFL); /* unlike a training, a check has nothing to write when it is stopped */
  ad_cli_on_checkpoint(SIG_IGN);
  ad_status status = ad_check(recipe, &input->check, &holds, &json);
  ad_cli_progress_end();
  if (status) return ad_cli_failed(status);
  int undelivered = deliver(json, input);
  free(json);
  if (undelivered) return undelivered;
  return ad_cli_answer(holds);
}

/* Runs the check as a rank that mpirun, srun or `addend run` started. Only the first rank gets the document and prints
 * it. */
static int check_as_rank(const ad_recipe *recipe, const check_input *input) {
  int holds = 0;
  char *json = NULL;
  ad_comm *comm;
  int failed = ad_cli_join(recipe, &comm);
  if (failed) return failed;
  ad_cli_on_request(SIG_DFL);
  ad_cli_on_checkpoint(SIG_IGN);
  ad_status status = ad_check_on(comm, recipe, &input->check, &holds, &json);
  ad_cli_progress_end();
  int result = status ? ad_cli_failed(status) : ad_cli_answer(holds);
  int undelivered = json ? deliver(json, input) : CLI_HOLDS;
  free(json);
  ad_comm_close(comm);
  return undelivered ? undelivered : result;
}

static int run_check(int argc, char **argv) {
  check_input input = {.check = {.size = sizeof input.check, .mutant_seed = 1, .progress = progress}};
  ad_recipe *recipe;
  int failed = ad_cli_parse_recipe(&check_argp, argc, argv, &input, &input.recipe, &recipe);
  if (failed) return failed;
  ad_cli_report_what_is_drawn(recipe);
  int result = ad_comm_launched() ? check_as_rank(recipe, &input) : check_recipe(recipe, &input);
  ad_recipe_destroy(recipe);
  return result;
}

const ad_cli_command ad_cli_check = {
    "check", run_check,
    "compare the distributed gradient with that of one process; --mutate shows what the check notices", &check_argp,
    check_word};
