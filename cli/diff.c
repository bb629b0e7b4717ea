/* `addend diff`. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "command.h"

enum { KEY_REFERENCE = 'r', KEY_JSON = 'j', KEY_HTML = 256, KEY_IDENTICAL };

static const struct argp_option options[] = {
    {"reference", KEY_REFERENCE, "REF", 0,
     "Also compare the sums with these whole gradients: one file with plain names, or another dump (file or folder), "
     "whose sums are put together",
     0},
    {"html", KEY_HTML, "FILE", 0,
     "Also write a page with a map: parameters, ranks, and how often each addend was counted", 0},
    {"allow-identical", KEY_IDENTICAL, NULL, 0,
     "Addends that are the same on ranks, or in microbatches, are meant to be; without this what was counted of them "
     "cannot be told",
     0},
    {"json", KEY_JSON, NULL, 0, "One JSON document on standard output and nothing else there", 0},
    {0},
};

typedef struct diff_input {
  const char **files;
  size_t count;
  int json;
  const char *html;
  ad_diff_options diff;
} diff_input;

static error_t add_file(diff_input *input, const char *path, struct argp_state *state) {
  const char **files = realloc(input->files, (input->count + 1) * sizeof *files);
  if (!files) argp_failure(state, CLI_UNFINISHED, 0, "no memory for %s", path);
  if (!files) return ENOMEM;
  input->files = files;
  input->files[input->count++] = path;
  return 0;
}

static error_t parse(int key, char *argument, struct argp_state *state) {
  diff_input *input = state->input;
  switch (key) {
    case KEY_REFERENCE:
      return input->diff.reference = argument, 0;
    case KEY_HTML:
      return input->html = cli_parse_out("--html", argument, "", state), 0;
    case KEY_IDENTICAL:
      return input->diff.allow_identical = 1, 0;
    case KEY_JSON:
      return input->json = 1, 0;
    case ARGP_KEY_ARG:
      return add_file(input, argument, state);
    case ARGP_KEY_NO_ARGS:
      cli_wrong(state, "name the files of a dump, or the folder that has them");
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

const struct argp cli_diff_argp = {
    .options = options,
    .parser = parse,
    .args_doc = "DUMP...",
    .doc =
        "Takes one dumped step of any job, each rank's addends and the sums after synchronisation, and says for every "
        "parameter how often each addend was counted and what went wrong. DUMP: safetensors files as docs/dumps.md "
        "describes them, or folders that have them."
        "\vExample: addend diff --reference one-process.safetensors dump-12/\n"
        "Exit status: 0 every sum is right, 1 one is not or cannot be told, 2 the call or a file is wrong, 3 could not "
        "finish.",
};

static void progress(void *context, const char *what, int64_t done, int64_t of) {
  cli_progress("diff", done, of, what);
}

static int print(const char *json, int as_json) {
  char *table;
  if (as_json) return cli_print(json);
  ad_status status = ad_diff_table(json, cli_takes_colour(STDOUT_FILENO) ? AD_COLOURED_TEXT : AD_PLAIN_TEXT, &table);
  if (status) return cli_failed(status);
  int printed = cli_print(table);
  free(table);
  return printed;
}

/* What cannot be read is a wrong call here: nothing is written but the answer. */
static int failed(ad_status status) {
  int result = cli_failed(status);
  return status == AD_IO ? CLI_WRONG_CALL : result;
}

static int diff(const diff_input *input) {
  int holds = 0;
  char *json;
  ad_status status = ad_diff(input->files, input->count, &input->diff, &holds, &json);
  cli_progress_end();
  if (status) return failed(status);
  status = input->html ? ad_diff_page(json, input->html) : AD_OK;
  int unprinted = print(json, input->json);
  free(json);
  if (status) return cli_failed(status);
  if (unprinted) return unprinted;
  return holds ? CLI_HOLDS : CLI_ANSWER_IS_NO;
}

int cli_diff(int argc, char **argv) {
  diff_input input = {.diff = {.size = sizeof input.diff, .progress = progress}};
  cli_parse(&cli_diff_argp, argc, argv, 0, &input);
  int result = diff(&input);
  free(input.files);
  return result;
}
