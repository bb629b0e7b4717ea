/* `addend torch-check`: calls the Python package, which checks PyTorch jobs. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"

enum { KEY_JSON = 256, KEY_REFERENCE, KEY_SABOTAGE, KEY_TIMEOUT, KEY_WRITE_REFERENCE };
enum { WORDS_BEFORE = 3, WORDS_MAX = 64 };

static const struct argp_option options[] = {
    {"json", KEY_JSON, 0, 0, "Print one JSON document on standard output", 0},
    {"reference", KEY_REFERENCE, "FILE", 0, "Compare with what --write-reference wrote, without one process", 0},
    {"sabotage", KEY_SABOTAGE, 0, 0, "Plant mistakes in the collectives of the backward", 0},
    {"timeout", KEY_TIMEOUT, "SECONDS", 0, "Stop processes that have not ended by then, and show where they are", 0},
    {"write-reference", KEY_WRITE_REFERENCE, "FILE", 0, "Run one process alone, and write what it computes", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
  (void)argument;
  int *functions = state->input;
  switch (key) {
    case KEY_JSON:
    case KEY_REFERENCE:
    case KEY_SABOTAGE:
    case KEY_TIMEOUT:
    case KEY_WRITE_REFERENCE:
      return 0;
    case ARGP_KEY_ARG:
      return ++*functions, 0;
    case ARGP_KEY_END:
      if (*functions != 1)
        ad_cli_wrong(state, "name one function that returns the arguments of check: MODULE:FUNCTION");
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

const struct argp ad_cli_torch_check_argp = {
    .options = options,
    .parser = parse,
    .args_doc = "MODULE:FUNCTION",
    .doc =
        "Compares the ranks of a PyTorch job with one process, and says where they first differ. The function returns "
        "a dictionary of the arguments of addend.torch.check.\vExample: addend torch-check jobs:tensor_parallel "
        "--sabotage\nIt needs the Python package addend and PyTorch, in the python3 of the path or in $ADDEND_PYTHON.",
};

static const char program[] =
    "import sys\n"
    "try:\n"
    "    from addend.torch._proof._command import main\n"
    "except ModuleNotFoundError as error:\n"
    "    print(f'addend torch-check: {sys.executable} has no module {error.name}; pip install addend with its extra '\n"
    "          'torch there, or name another Python in ADDEND_PYTHON', file=sys.stderr)\n"
    "    sys.exit(3)\n"
    "main(sys.argv[1:])\n";

int ad_cli_torch_check(int argc, char **argv) {
  int functions = 0;
  ad_cli_parse(&ad_cli_torch_check_argp, argc, argv, 0, &functions);
  const char *python = getenv("ADDEND_PYTHON");
  if (!python || !*python) python = "python3";
  if (argc > WORDS_MAX - WORDS_BEFORE) {
    fprintf(stderr, "addend torch-check: %d arguments are too many; at most %d are allowed\n", argc - 1,
            WORDS_MAX - WORDS_BEFORE - 1);
    return CLI_WRONG_CALL;
  }
  char *words[WORDS_MAX + 1] = {(char *)python, "-c", (char *)program};
  memcpy(words + WORDS_BEFORE, argv + 1, (size_t)argc * sizeof *argv); /* with the NULL at the end */
  execvp(python, words);
  fprintf(stderr, "addend torch-check: %s cannot be run: %s\n", python, strerror(errno));
  return CLI_UNFINISHED;
}
