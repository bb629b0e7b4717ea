/* `addend torch-check` and `addend torch-matrix`: call the Python package, which checks PyTorch jobs. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"

/* Keys of options without a short name. Python reads the values; here options are known for --help, completions and
 * what was probably meant. */
enum {
  KEY_FIRST = 256,
  KEY_FORMAT = KEY_FIRST,
  KEY_HTML,
  KEY_JOBS,
  KEY_JSON,
  KEY_KNOWN,
  KEY_LAYOUT,
  KEY_MICROBATCHES,
  KEY_MINUTES,
  KEY_REFERENCE,
  KEY_REPRODUCE,
  KEY_MUTATE,
  KEY_TIMEOUT,
  KEY_TYPECHECK,
  KEY_WRITE_KNOWN,
  KEY_WRITE_REFERENCE,
  KEY_LAST
};
enum { WORDS_BEFORE = 3, WORDS_MAX = 1024 };

/* What an argument names; input of `parse_option`. */
typedef struct named {
  int count;
  int most;            /* arguments that the command takes */
  const char *missing; /* what it says where there is none, or are too many */
} named;

static const struct argp_option check_options[] = {
    {"json", KEY_JSON, 0, 0, "Print one JSON document on standard output", 0},
    {"reference", KEY_REFERENCE, "FILE", 0, "Compare with what --write-reference wrote, without one process", 0},
    {"mutate", KEY_MUTATE, 0, 0, "Try mutants: mistakes in the collectives of the backward", 0},
    {"timeout", KEY_TIMEOUT, "SECONDS", 0, "Stop processes that have not ended by then, and show where they are", 0},
    {"typecheck", KEY_TYPECHECK, 0, 0, "Run a step more under spmd_types' type checker, in the job's own dtypes", 0},
    {"write-reference", KEY_WRITE_REFERENCE, "FILE", 0, "Run one process alone, and write what it computes", 0},
    {0},
};

static const struct argp_option matrix_options[] = {
    {"format", KEY_FORMAT, "NAME", 0,
     "What goes to standard output: text (the table), json (the document) or github (annotations for a workflow of "
     "GitHub's)",
     0},
    {"html", KEY_HTML, "FILE", 0, "Write the report as a page", 0},
    {"jobs", KEY_JOBS, "N", 0, "Cells at the same time (1); each has as many processes as its layout has ranks", 0},
    {"json", KEY_JSON, 0, 0, "--format json", 0},
    {"known", KEY_KNOWN, "FILE", 0,
     "What is known and accepted, mutants that survived too: only what is not in it makes the exit "
     "status 1 or 3",
     0},
    {"layout", KEY_LAYOUT, "SIZES", 0,
     "A layout, as fsdp=2,ep=2, or its name; may be given again. Without it: those that the model declares", 0},
    {"microbatches", KEY_MICROBATCHES, "LIST", 0, "Numbers of microbatches of a step, in their order (2,1,3)", 0},
    {"minutes", KEY_MINUTES, "N", 0,
     "Begin no further cell after so long; if some are left, they are not tried, and the exit status is 3", 0},
    {"mutate", KEY_MUTATE, 0, 0,
     "Try mutants of cells that match: rules of plans, hooks and collectives; report which survive", 0},
    {"reproduce", KEY_REPRODUCE, "FOLDER", 0, "Write, for each bug, a program that shows it without addend", 0},
    {"timeout", KEY_TIMEOUT, "SECONDS", 0, "Stop a cell that has not ended by then (120)", 0},
    {"write-known", KEY_WRITE_KNOWN, "FILE", 0, "Write what was found as a file for --known", 0},
    {0},
};

static error_t parse_option(int key, char *argument, struct argp_state *state) {
  (void)argument;
  named *input = state->input;
  if (key == ARGP_KEY_ARG) return ++input->count, 0;
  if (key == ARGP_KEY_END) {
    if (!input->count || input->count > input->most) ad_cli_wrong(state, "%s", input->missing);
    return 0;
  }
  return key >= KEY_FIRST && key < KEY_LAST ? 0 : ARGP_ERR_UNKNOWN;
}

#define NEEDS "\nIt needs the Python package addend and PyTorch, in the python3 of the path or in $ADDEND_PYTHON."

static const struct argp torch_check_argp = {
    .options = check_options,
    .parser = parse_option,
    .args_doc = "MODULE:FUNCTION",
    .doc =
        "Compares the ranks of a PyTorch job with one process, and says where they first differ. The function returns "
        "a dictionary of the arguments of addend.torch.check.\vExample: addend torch-check jobs:tensor_parallel "
        "--mutate" NEEDS,
};

static const struct argp torch_matrix_argp = {
    .options = matrix_options,
    .parser = parse_option,
    .args_doc = "MODEL...",
    .doc =
        "Compares models under many layouts, with one, two and three microbatches, with one process each: one verdict "
        "for each. A model is an architecture of Transformers (qwen3_moe; `transformers`: all that declare a plan), a "
        "folder with a config.json, or a Python file with the functions that addend.torch.check takes.\vExample: "
        "addend torch-matrix qwen3_moe llama --layout tp=2 --layout fsdp=2,ep=2" NEEDS,
};

/* Runs a module of the Python package with the command's arguments; returns only where it cannot. */
static int run_python(int argc, char **argv, const char *command, const char *program) {
  const char *python = getenv("ADDEND_PYTHON");
  if (!python || !*python) python = "python3";
  if (argc > WORDS_MAX - WORDS_BEFORE) {
    fprintf(stderr, "addend %s: %d arguments are too many; at most %d are allowed\n", command, argc - 1,
            WORDS_MAX - WORDS_BEFORE - 1);
    return CLI_WRONG_CALL;
  }
  char *words[WORDS_MAX + 1] = {(char *)python, "-c", (char *)program};
  memcpy(words + WORDS_BEFORE, argv + 1, (size_t)argc * sizeof *argv); /* with the NULL at the end */
  execvp(python, words);
  fprintf(stderr, "addend %s: %s cannot be run: %s\n", command, python, strerror(errno));
  return CLI_UNFINISHED;
}

#define PROGRAM(command, module)                                                         \
  "import sys\n"                                                                         \
  "try:\n"                                                                               \
  "    from addend.torch." module                                                        \
  " import main\n"                                                                       \
  "except ModuleNotFoundError as error:\n"                                               \
  "    print(f'addend " command                                                          \
  ": {sys.executable} has no module {error.name}; pip install addend with its extra '\n" \
  "          'torch there, or name another Python in ADDEND_PYTHON', file=sys.stderr)\n" \
  "    sys.exit(3)\n"                                                                    \
  "except KeyboardInterrupt:\n"                                                          \
  "    print('addend " command                                                           \
  ": interrupted by signal 2, SIGINT', file=sys.stderr)\n"                               \
  "    sys.exit(3)\n"                                                                    \
  "main(sys.argv[1:])\n"

static int run_torch_check(int argc, char **argv) {
  named input = {.most = 1, .missing = "name one function that returns the arguments of check: MODULE:FUNCTION"};
  ad_cli_parse(&torch_check_argp, argc, argv, 0, &input);
  return run_python(argc, argv, "torch-check", PROGRAM("torch-check", "_checks._command"));
}

static int run_torch_matrix(int argc, char **argv) {
  named input = {.most = WORDS_MAX,
                 .missing =
                     "name at least one model: an architecture of Transformers, a folder with its config.json, "
                     "`transformers` for all with a plan, or a Python file"};
  ad_cli_parse(&torch_matrix_argp, argc, argv, 0, &input);
  return run_python(argc, argv, "torch-matrix", PROGRAM("torch-matrix", "_matrix._command"));
}

static const char *torch_matrix_word(int key, int index) {
  static const char *const formats[] = {"text", "json", "github", NULL};
  return key == KEY_FORMAT ? formats[index] : NULL;
}

const ad_cli_command ad_cli_torch_check = {"torch-check", run_torch_check,
                                           "whether the ranks of a PyTorch job compute what one process does",
                                           &torch_check_argp, NULL};

const ad_cli_command ad_cli_torch_matrix = {
    "torch-matrix", run_torch_matrix, "the same for models by layouts by numbers of microbatches: one verdict for each",
    &torch_matrix_argp, torch_matrix_word};
