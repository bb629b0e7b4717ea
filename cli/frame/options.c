/* Lists the options of a command, reports wrong values, and names the option that was probably meant. argp parses the
 * options. */
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
#include "addend/helpers.h"

enum { KEY_HELP = 0x1000, KEY_USAGE };

static const struct argp_option of_argp[] = {
    {"help", KEY_HELP, NULL, 0, "What the command does, with an example", 0},
    {"usage", KEY_USAGE, NULL, 0, "Its options in short", 0},
    {"version", 'V', NULL, 0, "Which version this is", 0},
    {0},
};

static void add_options(const struct argp_option *options, ad_cli_option_list *out) {
  for (; options && options->name && out->count < CLI_OPTIONS_MAX; options++) out->options[out->count++] = options;
}

static void add_parser(const struct argp *argp, ad_cli_option_list *out) {
  add_options(argp->options, out);
  for (const struct argp_child *child = argp->children; child && child->argp; child++) add_parser(child->argp, out);
}

ad_cli_option_list ad_cli_options_of(const struct argp *argp) {
  ad_cli_option_list list = {.count = 0};
  add_parser(argp, &list);
  add_options(of_argp, &list);
  return list;
}

int ad_cli_is_letter(int key) { return key > 0 && key < 0x80 && isalnum(key); }

const char *ad_cli_nearest_word(const char *unknown, ad_cli_words *words, int key) {
  const char *names[CLI_OPTIONS_MAX];
  size_t count = 0;
  while (count < CLI_OPTIONS_MAX && (names[count] = words(key, (int)count))) count++;
  return ad_nearest_name(unknown, names, count);
}

/* ---- reporting unknown options ---- */

/* A command's options as tables for getopt_long, with which argp parses calls. */
typedef struct getopt_tables {
  struct option longs[CLI_OPTIONS_MAX + 1];
  char shorts[3 * CLI_OPTIONS_MAX + 2];
} getopt_tables;

static int takes_value(const struct argp_option *option) {
  if (!option->arg) return no_argument;
  return option->flags & OPTION_ARG_OPTIONAL ? optional_argument : required_argument;
}

static getopt_tables tables_of(const ad_cli_option_list *list, unsigned flags) {
  getopt_tables tables = {0};
  char *letter = tables.shorts;
  if (flags & ARGP_IN_ORDER) *letter++ = '+';
  for (int i = 0; i < list->count; i++) {
    const struct argp_option *option = list->options[i];
    int value = takes_value(option);
    tables.longs[i] = (struct option){option->name, value, NULL, option->key};
    if (!ad_cli_is_letter(option->key)) continue;
    *letter++ = (char)option->key;
    for (int colon = 0; colon < value; colon++) *letter++ = ':';
  }
  return tables;
}

/* Returns the first word "--name" whose name is neither an option nor the beginning of exactly one option, or NULL if
 * there is none. Stops at --help, which ends a call. Reorders `words`. */
static const char *first_unknown(const getopt_tables *tables, int argc, char **words) {
  int key;
  opterr = optind = 0;
  for (;;) {
    optopt = 0;
    key = getopt_long(argc, words, tables->shorts, tables->longs, NULL);
    if (key == -1 || key == KEY_HELP || key == KEY_USAGE || key == 'V') return NULL;
    if (key != '?') continue;
    return !optopt && !strncmp(words[optind - 1], "--", 2) ? words[optind - 1] + 2 : NULL;
  }
}

/* Returns 1 if an option's name begins with `name`. If several do, argp lists them in its error. */
static int begins_some(const ad_cli_option_list *list, const char *name) {
  for (int i = 0; i < list->count; i++)
    if (!strncmp(list->options[i]->name, name, strlen(name))) return 1;
  return 0;
}

/* Returns the present name of an option that was called `name` in earlier versions, or NULL. */
static const char *renamed_option(const ad_cli_option_list *list, const char *name) {
  static const char *const names[][2] = {{"sabotage", "mutate"}, {"plant", "mutate"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!strcmp(names[i][0], name) && begins_some(list, names[i][1])) return names[i][1];
  return NULL;
}

/* Returns the option whose name is most similar to `name` ("steps" for "stesp=3"), or NULL. */
static const char *nearest_option(const ad_cli_option_list *list, const char *name) {
  const char *names[CLI_OPTIONS_MAX];
  for (int i = 0; i < list->count; i++) names[i] = list->options[i]->name;
  return ad_nearest_name(name, names, (size_t)list->count);
}

static void refuse_unknown(const struct argp *argp, int argc, char **words, unsigned flags) {
  ad_cli_option_list list = ad_cli_options_of(argp);
  getopt_tables tables = tables_of(&list, flags);
  const char *unknown = first_unknown(&tables, argc, words);
  char name[64];
  if (!unknown) return; /* argp reports other errors */
  snprintf(name, sizeof name, "%.*s", (int)strcspn(unknown, "="), unknown);
  if (begins_some(&list, name)) return;
  /* argp would take the start of the word for its hidden option --program-name */
  const char *now = renamed_option(&list, name), *near = now ? NULL : nearest_option(&list, name);
  fprintf(stderr, "%s: unrecognized option '--%s'%s%s%s\n", words[0], unknown,
          now    ? "; it is called --"
          : near ? "; did you mean --"
                 : "",
          now    ? now
          : near ? near
                 : "",
          now    ? " now"
          : near ? "?"
                 : "");
  argp_help(argp, stderr, ARGP_HELP_SEE, words[0]);
  exit(CLI_WRONG_CALL);
}

void ad_cli_parse(const struct argp *argp, int argc, char **argv, unsigned flags, void *input) {
  char **words = malloc(((size_t)argc + 1) * sizeof *words);
  if (words) {
    memcpy(words, argv, ((size_t)argc + 1) * sizeof *words);
    refuse_unknown(argp, argc, words, flags);
  }
  free(words);
  argp_parse(argp, argc, argv, flags, NULL, input);
}

/* ---- reporting and parsing options' values ---- */

void ad_cli_wrong(const struct argp_state *state, const char *format, ...) {
  char message[CLI_MESSAGE], printable[CLI_MESSAGE];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  argp_error(state, "%s", ad_printable(message, printable, sizeof printable));
}

int64_t ad_cli_parse_number(const char *argument, const char *option, int64_t least, struct argp_state *state) {
  char *end;
  errno = 0;
  long long number = strtoll(argument, &end, 10);
  if (*end || end == argument || number < least || errno)
    ad_cli_wrong(state, "%s must be a whole number of at least %lld, not '%s'", option, (long long)least, argument);
  return number;
}
