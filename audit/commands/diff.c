/* The command `addend diff`: its options and its output. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "addend/diff.h"
#include "cli/command.h"

enum {
  KEY_REFERENCE = 'r',
  KEY_JSON = 'j',
  KEY_ALL = 'a',
  KEY_FORMAT = 'f',
  KEY_HTML = 256,
  KEY_IDENTICAL,
  KEY_CALLS,
  KEY_THREADS
};

static const struct argp_option options[] = {
    {"reference", KEY_REFERENCE, "REF", 0,
     "Also compare the sums with these full gradients: one file with plain names, or another dump (file or folder), "
     "whose sums are put together",
     0},
    {"html", KEY_HTML, "FILE", 0,
     "Also write a page with a map: parameters, ranks, and how often each addend was counted", 0},
    {"allow-identical", KEY_IDENTICAL, NULL, 0,
     "Addends that are equal on several ranks, or in several microbatches, are meant to be equal; without this option "
     "it cannot be said which of them were counted",
     0},
    {"all", KEY_ALL, NULL, 0,
     "Print a line for each parameter that is not right; without this option, one line for all parameters with the "
     "same verdict",
     0},
    {"calls", KEY_CALLS, NULL, 0,
     "Print the collectives that the ranks called in the step, and not the table of parameters: dtype, bytes, those "
     "that "
     "the sums need, and which call is too much",
     0},
    {"format", KEY_FORMAT, "FORMAT", 0,
     "What goes to standard output: text (the table), json (the document), html (the page with the map) or github "
     "(annotations for a workflow of GitHub's)",
     0},
    {"threads", KEY_THREADS, "N", 0,
     "Judge at most N parameters at a time, 1 to 64 (default: as many as processors that may be used, 8 at most)", 0},
    {"json", KEY_JSON, NULL, 0, "The same as --format json: one document on standard output and nothing else there", 0},
    {0},
};

typedef enum diff_format { TEXT, JSON, HTML, GITHUB } diff_format;
static const char *const formats[] = {"text", "json", "html", "github", NULL};

typedef struct diff_input {
  const char **files;
  size_t count;
  int all, calls;
  diff_format format;
  const char *html;
  ad_diff_options diff;
} diff_input;

static error_t add_file(diff_input *input, const char *path, struct argp_state *state) {
  const char **files = realloc(input->files, (input->count + 1) * sizeof *files);
  if (!files) argp_failure(state, CLI_UNFINISHED, 0, "not enough memory to list the files of %s", path);
  if (!files) return ENOMEM;
  input->files = files;
  input->files[input->count++] = path;
  return 0;
}

static const char *diff_word(int key, int index) { return key == KEY_FORMAT ? formats[index] : NULL; }

static diff_format format_of(const char *name, struct argp_state *state) {
  int at = 0;
  while (formats[at] && strcmp(formats[at], name) != 0) at++;
  const char *near = formats[at] ? NULL : ad_cli_nearest_word(name, diff_word, KEY_FORMAT);
  if (!formats[at])
    ad_cli_wrong(state, "--format must be text, json, html or github, not '%s'%s%s%s", name,
                 near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
  return (diff_format)at;
}

enum { THREADS_UNASKED = 8, THREADS_MAX = 64 };

static int parse_threads(const char *argument, struct argp_state *state) {
  int64_t threads = ad_cli_parse_number(argument, "--threads", 1, state);
  if (threads > THREADS_MAX)
    ad_cli_wrong(state, "--threads must be a number from 1 to %d, not '%s'", THREADS_MAX, argument);
  return (int)threads;
}

/* Returns the default number of threads: as many as the processors that this process may use, up to THREADS_UNASKED. */
static int threads_unasked(void) {
  cpu_set_t own;
  int count = sched_getaffinity(0, sizeof own, &own) ? 1 : CPU_COUNT(&own);
  return count < THREADS_UNASKED ? count : THREADS_UNASKED;
}

static error_t parse_option(int key, char *argument, struct argp_state *state) {
  diff_input *input = state->input;
  switch (key) {
    case KEY_REFERENCE:
      return input->diff.reference = argument, 0;
    case KEY_HTML:
      return input->html = ad_cli_parse_out("--html", argument, "", state), 0;
    case KEY_IDENTICAL:
      return input->diff.allow_identical = 1, 0;
    case KEY_THREADS:
      return input->diff.threads = parse_threads(argument, state), 0;
    case KEY_JSON:
      return input->format = JSON, 0;
    case KEY_ALL:
      return input->all = 1, 0;
    case KEY_CALLS:
      return input->calls = 1, 0;
    case KEY_FORMAT:
      return input->format = format_of(argument, state), 0;
    case ARGP_KEY_ARG:
      return add_file(input, argument, state);
    case ARGP_KEY_END:
      if (input->calls && input->format != TEXT)
        ad_cli_wrong(state, "--calls is a table of its own: leave out --calls or --format %s", formats[input->format]);
      return 0;
    case ARGP_KEY_NO_ARGS:
      ad_cli_wrong(state, "an argument is missing: write the files of a dump, or the folder that contains them");
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp diff_argp = {
    .options = options,
    .parser = parse_option,
    .args_doc = "DUMP...",
    .doc =
        "Takes one dumped step of any job, each rank's addends and the sums after synchronisation, and says for every "
        "parameter how often each addend was counted and what went wrong. DUMP: safetensors files as "
        "audit/docs/dumps.md describes them, or folders that have them.\vExample: addend diff --reference "
        "one-process.safetensors dump-12/\nExample: addend diff --json --threads 2 dump-12/\nThe first line and the "
        "last are the verdict. Exit status: 0 it matches, 1 it does not match or it cannot tell, 2 the call or a file "
        "is wrong, 3 could not finish.",
};

static void progress(void *context, const char *what, int64_t done, int64_t of) {
  ad_cli_progress("diff", done, of, what);
}

/* Makes the text that is printed, in the format that the user chose, from the JSON document. */
static ad_status make_text(const diff_input *input, const char *json, char **out) {
  ad_text_style style = ad_cli_takes_colour(STDOUT_FILENO) ? AD_COLOURED_TEXT : AD_PLAIN_TEXT;
  if (input->format == HTML) return ad_diff_html(json, out);
  if (input->format == GITHUB) return ad_diff_github(json, out);
  if (input->calls) return ad_diff_calls(json, style, out);
  return input->all ? ad_diff_list(json, style, out) : ad_diff_table(json, style, out);
}

static int print_diff(const diff_input *input, const char *json) {
  char *text;
  if (input->format == JSON) return ad_cli_print(json);
  ad_status status = make_text(input, json, &text);
  if (status) return ad_cli_failed(status);
  int printed = ad_cli_print(text);
  free(text);
  return printed;
}

/* Prints the error and returns the exit status. Here AD_IO means that a dump file could not be read, which counts as
 * a wrong call. */
static int failed(ad_status status) {
  int result = ad_cli_failed(status);
  return status == AD_IO ? CLI_WRONG_CALL : result;
}

static int diff(const diff_input *input) {
  int holds = 0;
  char *json;
  ad_status status = ad_diff(input->files, input->count, &input->diff, &holds, &json);
  ad_cli_progress_end();
  if (status) return failed(status);
  status = input->html ? ad_diff_page(json, input->html) : AD_OK;
  int unprinted = print_diff(input, json);
  free(json);
  if (status) return ad_cli_failed(status);
  if (unprinted) return unprinted;
  return ad_cli_answer(holds);
}

static int run_diff(int argc, char **argv) {
  diff_input input = {.diff = {.size = sizeof input.diff, .progress = progress, .threads = threads_unasked()}};
  ad_cli_parse(&diff_argp, argc, argv, 0, &input);
  int result = diff(&input);
  free(input.files);
  return result;
}

const ad_cli_command ad_cli_diff = {"diff", run_diff,
                                    "what went wrong in gradients that any framework dumped: which addends they hold",
                                    &diff_argp, diff_word};
