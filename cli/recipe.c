/* What every command that reads a recipe shares: its arguments, its errors, its exit statuses, its
 * signals. */
#include <signal.h>
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"

enum { KEY_SET = 's', KEY_JSON = 'j' };

static const struct argp_option options[] = {
    {"set", KEY_SET, "PATH=VALUE", 0, "Replace one key of the recipe; the value is YAML in flow style. Repeatable", 0},
    {"json", KEY_JSON, NULL, 0, "Print one JSON document on standard output and nothing else there", 0},
    {0},
};

void cli_wrong(const struct argp_state *state, const char *format, ...) {
  char message[CLI_MESSAGE], printable[CLI_MESSAGE];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  argp_error(state, "%s", ad_printable(message, printable, sizeof printable));
}

static int add_set(cli_recipe_options *input, const char *set, struct argp_state *state) {
  const char **sets = realloc(input->sets, (input->set_count + 1) * sizeof *sets);
  if (!sets) {
    argp_failure(state, CLI_UNFINISHED, 0, "no memory for --set %s", set);
    return ENOMEM;
  }
  input->sets = sets;
  input->sets[input->set_count++] = set;
  return 0;
}

static error_t parse(int key, char *argument, struct argp_state *state) {
  cli_recipe_options *input = state->input;
  switch (key) {
    case KEY_SET:
      return add_set(input, argument, state);
    case KEY_JSON:
      return input->json = 1, 0;
    case ARGP_KEY_ARG:
      if (input->recipe) cli_wrong(state, "one recipe at a time: '%s' is the second", argument);
      return input->recipe = argument, 0;
    case ARGP_KEY_NO_ARGS:
      cli_wrong(state, "name a recipe, for example recipes/gpt-text.yaml");
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

const struct argp cli_recipe_argp = {.options = options, .parser = parse};
const struct argp_child cli_recipe_children[] = {{&cli_recipe_argp, 0, NULL, 0}, {0}};

int64_t cli_parse_number(const char *argument, const char *option, int64_t least, struct argp_state *state) {
  char *end;
  errno = 0;
  long long number = strtoll(argument, &end, 10);
  if (*end || end == argument || number < least || errno)
    cli_wrong(state, "%s takes a number from %lld on, not '%s'", option, (long long)least, argument);
  return number;
}

int cli_parse_recipe(const struct argp *argp, int argc, char **argv, void *input, const cli_recipe_options *given,
                     ad_recipe **out) {
  cli_parse(argp, argc, argv, 0, input);
  return cli_read_recipe(given, out);
}

int cli_read_recipe(const cli_recipe_options *input, ad_recipe **out) {
  ad_status status = ad_recipe_read(input->recipe, input->sets, input->set_count, out);
  free(input->sets);
  if (!status) return CLI_HOLDS;
  if (!cli_hand_over(status, ad_last_error())) fprintf(stderr, "%s\n", ad_last_error());
  cli_tell_ranks(status, ad_last_error());
  return CLI_WRONG_CALL;
}

void cli_say_what_is_drawn(const ad_recipe *recipe) {
  ad_recipe *first;
  if (ad_recipe_pretraining(recipe, &first) || !first) return;
  fprintf(stderr, "addend: the %s is drawn from the seed here; `addend train` trains it first\n",
          recipe->program->pretraining->name);
  ad_recipe_destroy(first);
}

/* Of a pipe. The error of a write that a library made long ago is not known any more, this is. */
static int reader_is_gone(void) {
  struct pollfd output = {.fd = STDOUT_FILENO, .events = POLLOUT};
  return poll(&output, 1, 0) == 1 && output.revents & POLLERR;
}

/* Said once: at the end of the process the output is looked at again. */
static int unwritten(int error) {
  static int is_said;
  if (reader_is_gone()) return CLI_HOLDS; /* it had enough */
  if (!is_said)
    fprintf(stderr, "addend: standard output cannot be written%s%s\n", error ? ": " : "", error ? strerror(error) : "");
  is_said = 1;
  return CLI_UNFINISHED;
}

int cli_print(const char *text) {
  size_t length = strlen(text);
  int ends = !length || text[length - 1] == '\n';
  errno = 0;
  if (fputs(text, stdout) >= 0 && (ends || putchar('\n') != EOF) && fflush(stdout) == 0 && !ferror(stdout))
    return CLI_HOLDS;
  return unwritten(errno);
}

int cli_print_path(const char *path) {
  char printable[CLI_MESSAGE];
  return cli_print(isatty(STDOUT_FILENO) ? ad_printable(path, printable, sizeof printable) : path);
}

int cli_hand_over(ad_status status, const char *text) {
  const char *fd = getenv(CLI_ERROR_FD);
  return fd && dprintf(atoi(fd), "%s %s", ad_status_name(status), text) > 0;
}

int cli_failed(ad_status status) {
  if (!cli_hand_over(status, ad_last_error())) fprintf(stderr, "addend: %s\n", ad_last_error());
  return status == AD_INVALID ? CLI_WRONG_CALL : CLI_UNFINISHED;
}

void cli_on_request(void (*handler)(int signal_number)) {
  struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, before;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  sigaction(SIGHUP, NULL, &before);
  if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, NULL);
}

void cli_on_checkpoint(void (*handler)(int signal_number)) {
  struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  sigaction(SIGUSR1, &action, NULL);
}
