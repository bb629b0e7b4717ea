/* The command `addend report`: its options and its call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

enum { PATH_SIZE = 4096 };

static const struct argp_option options[] = {
    {"out", 'o', "FILE", 0, "Where the page goes (default: report.html in the first run's folder)", 0},
    {0},
};

typedef struct report_input {
  const char **runs;
  size_t count;
  const char *out;
} report_input;

static error_t add_run(report_input *input, char *folder, struct argp_state *state) {
  const char **runs = realloc(input->runs, (input->count + 1) * sizeof *runs);
  if (!runs) argp_failure(state, CLI_UNFINISHED, 0, "not enough memory to list the run %s", folder);
  if (!runs) return ENOMEM;
  for (size_t end = strlen(folder); end > 1 && folder[end - 1] == '/'; end--) folder[end - 1] = 0;
  input->runs = runs;
  input->runs[input->count++] = folder;
  return 0;
}

static error_t parse_option(int key, char *argument, struct argp_state *state) {
  report_input *input = state->input;
  switch (key) {
    case 'o':
      return input->out = ad_cli_parse_out("--out", argument, "report.html", state), 0;
    case ARGP_KEY_ARG:
      return add_run(input, argument, state);
    case ARGP_KEY_NO_ARGS:
      ad_cli_wrong(state, "the argument RUN is missing; name the folder of a run, for example runs/gpt-text");
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp report_argp = {
    .options = options,
    .parser = parse_option,
    .args_doc = "RUN...",
    .doc =
        "Makes the page of a run again from the files in its folder, also of one that is in flight or was killed; "
        "several runs are laid over each other, and their page goes to the first one's folder. Prints where the page "
        "is."
        "\vExample: addend report runs/gpt-text runs/gpt-text-warm --out compared.html",
};

static int write_report(const report_input *input) {
  char path[PATH_SIZE];
  if (snprintf(path, sizeof path, "%s/report.html", input->runs[0]) >= (int)sizeof path && !input->out)
    return fprintf(
               stderr,
               "addend: the path of the report has more than %d bytes; write the report to a shorter path with --out\n",
               PATH_SIZE),
           CLI_WRONG_CALL;
  const char *out = input->out ? input->out : path;
  ad_status status = ad_report_write(input->runs, input->count, out);
  return status ? ad_cli_failed(status) : ad_cli_print_path(out);
}

static int run_report(int argc, char **argv) {
  report_input input = {0};
  ad_cli_parse(&report_argp, argc, argv, 0, &input);
  int result = write_report(&input);
  free(input.runs);
  return result;
}

const ad_cli_command ad_cli_report = {"report", run_report,
                                      "make a run's page again from its files; several runs are laid over each other",
                                      &report_argp, NULL};
