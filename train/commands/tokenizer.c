/* Communicates with a tokenizer process: sends one line of JSON and receives one line of JSON. */
#include "tokenizer.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The Python program that the process runs. Its first line reports whether it is ready. It writes U+FFFD for NUL, which
 * a C string cannot contain. */
static const char program[] =
    "import json, signal, sys\n"
    "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
    "try:\n"
    "    import tokenizers\n"
    "except ModuleNotFoundError:\n"
    "    print(json.dumps(f'{sys.executable} has no package tokenizers; pip install tokenizers there, or name another "
    "Python in ADDEND_PYTHON'), flush=True)\n"
    "    sys.exit()\n"
    "try:\n"
    "    own = tokenizers.Tokenizer.from_file(sys.argv[1])\n"
    "except Exception as error:\n"
    "    print(json.dumps(f'{sys.argv[1]}: {error}'), flush=True)\n"
    "    sys.exit()\n"
    "print('null', flush=True)\n"
    "for line in sys.stdin:\n"
    "    if not line.endswith(chr(10)): break\n" /* the line is incomplete: addend was interrupted */
    "    asked = json.loads(line)\n"
    "    print(json.dumps(own.encode(asked).ids if isinstance(asked, str) else "
    "own.decode(asked).replace(chr(0), chr(0xFFFD))), flush=True)\n";

static void become_python(const int *asked, const int *answers, const char *file) {
  const char *python = getenv("ADDEND_PYTHON");
  if (!python || !*python) python = "python3";
  dup2(asked[0], STDIN_FILENO);
  dup2(answers[1], STDOUT_FILENO);
  close(asked[1]);
  close(answers[0]);
  execlp(python, python, "-c", program, file, (char *)NULL);
  printf("\"%s cannot be run: %s\"\n", python, strerror(errno));
  fflush(stdout);
  _exit(1);
}

static int open_ends(ad_cli_tokenizer *out, const int *asked, const int *answers) {
  close(asked[0]);
  close(answers[1]);
  out->asked = fdopen(asked[1], "w");
  out->answers = fdopen(answers[0], "r");
  return out->asked && out->answers;
}

static int start_process(const char *file, ad_cli_tokenizer *out) {
  int asked[2], answers[2];
  if (pipe(asked)) return 0;
  if (pipe(answers)) {
    close(asked[0]);
    close(asked[1]);
    return 0;
  }
  signal(SIGPIPE, SIG_IGN);
  out->process = fork();
  if (!out->process) become_python(asked, answers, file);
  return open_ends(out, asked, answers) && out->process > 0;
}

static json_t *answer(const ad_cli_tokenizer *tokenizer) {
  char *line = NULL;
  size_t size = 0;
  ssize_t length = getline(&line, &size, tokenizer->answers);
  json_t *read = length > 0 ? json_loadb(line, (size_t)length, JSON_DECODE_ANY, NULL) : NULL;
  free(line);
  return read;
}

int ad_cli_tokenizer_start(const char *file, ad_cli_tokenizer *out) {
  *out = (ad_cli_tokenizer){0};
  json_t *first = start_process(file, out) ? answer(out) : NULL;
  int is_there = json_is_null(first);
  if (!is_there)
    fprintf(stderr,
            "addend: no tokenizer can be used (%s), so the prompt and the answer must be token numbers, not text\n",
            json_is_string(first) ? json_string_value(first) : "Python could not be started");
  json_decref(first);
  if (!is_there) ad_cli_tokenizer_end(out);
  return is_there;
}

json_t *ad_cli_tokenizer_ask(const ad_cli_tokenizer *tokenizer, json_t *question) {
  if (!question) return NULL;
  /* written in ASCII, which Python can read with any locale */
  int failed = json_dumpf(question, tokenizer->asked, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
  json_decref(question);
  failed |= fputc('\n', tokenizer->asked) == EOF || fflush(tokenizer->asked);
  return failed ? NULL : answer(tokenizer);
}

void ad_cli_tokenizer_end(ad_cli_tokenizer *tokenizer) {
  if (tokenizer->asked) fclose(tokenizer->asked);
  if (tokenizer->answers) fclose(tokenizer->answers);
  if (tokenizer->process > 0) waitpid(tokenizer->process, NULL, 0);
  *tokenizer = (ad_cli_tokenizer){0};
}
