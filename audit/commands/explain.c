/* The command `addend explain`. */
#include <stdio.h>
#include <stdlib.h>

#include "addend/diff.h"
#include "cli/command.h"

typedef struct explain_input {
  char **names;
  int count;
} explain_input;

static error_t parse_option(int key, char *argument, struct argp_state *state) {
  explain_input *input = state->input;
  (void)argument;
  if (key != ARGP_KEY_ARGS) return ARGP_ERR_UNKNOWN;
  input->names = state->argv + state->next;
  input->count = state->argc - state->next;
  return 0;
}

static const struct argp explain_argp = {
    .parser = parse_option,
    .args_doc = "[NAME...]",
    .doc =
        "Explains a cause that `addend diff`, `addend check` or addend.torch names: what it means, how it shows in the "
        "counts, where to look, and where it happened to others. Without a NAME: lists the pages.\vExample: addend "
        "explain own_only\nExit status: 0, or 2 if there is no page of that name.",
};

static int print_page(const char *name, const char *before) {
  char *text;
  ad_status status = ad_explain(name, &text);
  if (status) return ad_cli_failed(status);
  fputs(before, stdout);
  int printed = ad_cli_print(text);
  free(text);
  return printed;
}

static int run_explain(int argc, char **argv) {
  explain_input input = {0};
  int result = CLI_HOLDS;
  ad_cli_parse(&explain_argp, argc, argv, 0, &input);
  if (!input.count) return print_page(NULL, "");
  for (int i = 0; i < input.count && !result; i++) result = print_page(input.names[i], i ? "\n" : "");
  return result;
}

const ad_cli_command ad_cli_explain = {"explain", run_explain, "what a named cause means, and where to look",
                                       &explain_argp, NULL};
