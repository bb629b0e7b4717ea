/* `addend run`: starts ranks of a user's own program. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/command.h"
#include "addend/helpers.h"

static const struct argp_option options[] = {
    {"ranks", 'n', "N", 0, "How many ranks to start", 0},
    {0},
};

enum { NOT_RUN = 127 }; /* exit status of a rank whose program could not be started */

typedef struct run_input {
  int64_t ranks;
  char **program;
} run_input;

static error_t parse_option(int key, char *argument, struct argp_state *state) {
  run_input *input = state->input;
  switch (key) {
    case 'n':
      return input->ranks = ad_cli_parse_number(argument, "-n", 1, state), 0;
    case ARGP_KEY_ARG:
      input->program = &state->argv[state->next - 1];
      state->next = state->argc;
      return 0;
    case ARGP_KEY_END:
      if (!input->program) ad_cli_wrong(state, "the program to start is missing; write its name after --");
      if (!input->ranks) ad_cli_wrong(state, "the number of ranks is missing; set it with -n");
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp run_argp = {
    .options = options,
    .parser = parse_option,
    .args_doc = "-- PROGRAM [ARGUMENT...]",
    .doc =
        "Starts N ranks of a program on this machine; in each, ad_comm_open joins them."
        "\vExample: addend run -n 4 -- ./my_trainer --steps 100\n"
        "Exit status: 0 if every rank returned 0; 2 if the program cannot be started; otherwise 3, and the message "
        "names "
        "the rank.",
};

/* Warns if processes never joined: a program that runs alone on each rank by mistake should be noticed. */
static void report_alone(const run_input *input, const ad_launch_result *result) {
  if (result->joined == input->ranks) return;
  char program[CLI_MESSAGE];
  fprintf(stderr,
          "addend: %lld of the %lld processes of %s ended without calling ad_comm_open, so each of these computed "
          "alone. Call ad_comm_open in the program if anything is to be summed over ranks\n",
          (long long)(input->ranks - result->joined), (long long)input->ranks,
          ad_printable(input->program[0], program, sizeof program));
}

static int run_run(int argc, char **argv) {
  run_input input = {0};
  signal(SIGPIPE, SIG_DFL); /* SIGPIPE may be ignored in this process, and the user's programs would inherit that */
  ad_cli_parse(&run_argp, argc, argv, ARGP_IN_ORDER, &input);
  ad_launch_options launch = {.size = sizeof launch, .ranks = input.ranks, .argv = input.program};
  ad_launch_result result = {.size = sizeof result};
  ad_status status = ad_launch(&launch, &result);
  if (!status) return report_alone(&input, &result), CLI_HOLDS;
  int exit_status = ad_cli_failed(status);
  return status == AD_SYSTEM && result.exit_status == NOT_RUN ? CLI_WRONG_CALL : exit_status;
}

const ad_cli_command ad_cli_run = {"run", run_run, "start N ranks of your own program", &run_argp, NULL};
