/* `addend --completions SHELL`: prints scripts that complete commands, options and values in bash, zsh and fish. They
 * are made from the tables of --help and from the keys of recipes. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "addend/diff.h"
#include "addend/schedule.h"
#include "cli/command.h"

/* The kind of word that follows an option or a command's name, so that a shell can complete it. */
typedef enum taking { NOTHING, ANYTHING, WORDS, KEYS, FILES, FOLDERS, RECIPES, DUMPS, PAGES, TABLES, PROGRAM } taking;

typedef struct shell {
  const char *name;
  void (*print)(const ad_cli_command *commands, int count, char *keys);
} shell;

/* ---- words to complete: an option's values, pages, commands ---- */

static taking taken_by(const ad_cli_command *command, const struct argp_option *option) {
  if (!option->arg || option->flags & OPTION_ARG_OPTIONAL) return NOTHING;
  if (command->words && command->words(option->key, 0)) return WORDS;
  if (!strcmp(option->arg, "PATH=VALUE")) return KEYS;
  if (!strcmp(option->arg, "FOLDER")) return FOLDERS;
  return !strcmp(option->arg, "FILE") || !strcmp(option->arg, "REF") ? FILES : ANYTHING;
}

static taking arguments_of(const ad_cli_command *command) {
  static const struct {
    const char *begins;
    taking what;
  } kinds[] = {{"RECIPE", RECIPES}, {"RUN", FOLDERS},       {"DUMP", DUMPS},
               {"[NAME", PAGES},    {"check FILE", TABLES}, {"--", PROGRAM}};
  const char *words = command->argp->args_doc;
  for (size_t i = 0; words && i < sizeof kinds / sizeof *kinds; i++)
    if (!strncmp(words, kinds[i].begins, strlen(kinds[i].begins))) return kinds[i].what;
  return NOTHING;
}

static void print_words(const ad_cli_command *command, const struct argp_option *option) {
  const char *word;
  for (int i = 0; (word = command->words(option->key, i)); i++) printf("%s%s", i ? " " : "", word);
}

/* Prints the names of the pages of `addend explain`: the first word of each line of its list. */
static void print_pages(void) {
  char *list;
  if (ad_explain(NULL, &list)) return;
  for (char *line = strtok(list, "\n"); line; line = strtok(NULL, "\n")) {
    const char *name = line + strspn(line, " ");
    printf("%s%.*s", line == list ? "" : " ", (int)strcspn(name, " "), name);
  }
  free(list);
}

/* Prints an option's help up to the first ';', for use between single quotes: a character in `special` gets a
 * backslash, and a single quote is replaced by `quote`. */
static void print_help(const char *help, const char *special, const char *quote) {
  for (const char *c = help; *c && *c != ';'; c++) {
    if (strchr(special, *c)) putchar('\\');
    if (*c == '\'')
      fputs(quote, stdout);
    else
      putchar(*c);
  }
}

/* Prints the words that `addend schedule` takes as well as names of files. */
static void print_schedules(void) {
  const char *name;
  fputs("check make", stdout);
  for (size_t i = 0; (name = ad_table_schedule_name(i)); i++) printf(" %s", name);
}

/* ---- the completion script for bash ---- */

static const char bash_head[] =
    "_addend_has() { # kind [words]: those that begin as the current word does\n"
    "  case $1 in\n"
    "    words) mapfile -t COMPREPLY < <(compgen -W \"$2\" -- \"$current\") && return ;;\n"
    "    keys) compopt -o nospace 2>/dev/null\n"
    "      mapfile -t COMPREPLY < <(compgen -S = -W \"$_addend_keys\" -- \"$current\") && return ;;\n"
    "  esac\n"
    "  compopt -o filenames 2>/dev/null\n"
    "  case $1 in\n"
    "    files) mapfile -t COMPREPLY < <(compgen -f -- \"$current\") ;;\n"
    "    tables) mapfile -t COMPREPLY < <(compgen -W \"$2\" -- \"$current\"; compgen -f -- \"$current\") ;;\n"
    "    folders) mapfile -t COMPREPLY < <(compgen -d -- \"$current\") ;;\n"
    "    recipes) mapfile -t COMPREPLY < <({ compgen -f -X '!*.@(yaml|yml)' -- \"$current\"; compgen -d -- "
    "\"$current\"; } | sort -u) ;;\n"
    "    dumps) mapfile -t COMPREPLY < <({ compgen -f -X '!*.safetensors' -- \"$current\"; compgen -d -- \"$current\"; "
    "} | sort -u) ;;\n"
    "  esac\n"
    "}\n"
    "_addend_program() { # place of the program: it and its arguments, which are the user's own\n"
    "  compopt -o filenames 2>/dev/null\n"
    "  if [ \"$1\" -eq \"$COMP_CWORD\" ]; then\n"
    "    mapfile -t COMPREPLY < <({ compgen -c -- \"$current\"; compgen -f -- \"$current\"; } | sort -u)\n"
    "  else\n"
    "    mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
    "  fi\n"
    "}\n"
    "_addend() {\n"
    "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]} i\n"
    "  COMPREPLY=()\n"
    "  if [ \"$current\" = = ]; then current=; elif [ \"$previous\" = = ]; then previous=${COMP_WORDS[COMP_CWORD - "
    "2]}; fi\n";

static const char *bash_kind(taking what) {
  static const char *const names[] = {
      [KEYS] = "keys", [FILES] = "files", [FOLDERS] = "folders", [RECIPES] = "recipes", [DUMPS] = "dumps"};
  return names[what];
}

static void print_bash_value(const ad_cli_command *command, const struct argp_option *option) {
  taking what = taken_by(command, option);
  if (what == NOTHING) return;
  printf("    %s:--%s", command->name, option->name);
  if (ad_cli_is_letter(option->key)) printf(" | %s:-%c", command->name, option->key);
  fputs(") ", stdout);
  if (what == WORDS) {
    fputs("_addend_has words \"", stdout);
    print_words(command, option);
    fputs("\"; ", stdout);
  } else if (what != ANYTHING) {
    printf("_addend_has %s; ", bash_kind(what));
  }
  puts("return ;;");
}

static void print_bash_command(const ad_cli_command *command) {
  ad_cli_option_list list = ad_cli_options_of(command->argp);
  taking what = arguments_of(command);
  printf("    %s:-*", command->name);
  if (what == NOTHING || what == PROGRAM) printf(" | %s:*", command->name);
  fputs(") _addend_has words \"", stdout);
  for (int i = 0; i < list.count; i++) printf("%s--%s", i ? " " : "", list.options[i]->name);
  puts(what == PROGRAM ? " --\" ;;" : "\" ;;");
  if (what == PAGES) {
    printf("    %s:*) _addend_has words \"", command->name);
    print_pages();
    puts("\" ;;");
  } else if (what == TABLES) {
    printf("    %s:*) _addend_has tables \"", command->name);
    print_schedules();
    puts("\" ;;");
  } else if (what != NOTHING && what != PROGRAM) {
    printf("    %s:*) _addend_has %s ;;\n", command->name, bash_kind(what));
  }
}

static void print_bash(const ad_cli_command *commands, int count, char *keys) {
  for (char *c = keys; *c; c++)
    if (*c == '\n') *c = ' ';
  printf("_addend_keys='%s'\n%s", keys, bash_head);
  fputs("  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    _addend_has words \"", stdout);
  for (int i = 0; i < count; i++) printf("%s ", commands[i].name);
  puts("--help --version --completions\"\n    return\n  fi");
  for (int i = 0; i < count; i++)
    if (arguments_of(&commands[i]) == PROGRAM)
      printf(
          "  for ((i = 2; i < COMP_CWORD; i++)); do\n"
          "    if [ \"$command:${COMP_WORDS[i]}\" = %s:-- ]; then _addend_program $((i + 1)); return; fi\n  done\n",
          commands[i].name);
  puts("  case $command:$previous in\n    --completions:*) _addend_has words \"bash zsh fish\"; return ;;");
  for (int i = 0; i < count; i++) {
    ad_cli_option_list list = ad_cli_options_of(commands[i].argp);
    for (int k = 0; k < list.count; k++) print_bash_value(&commands[i], list.options[k]);
  }
  puts("  esac\n  case $command:$current in");
  for (int i = 0; i < count; i++) print_bash_command(&commands[i]);
  puts("  esac\n}\nshopt -s extglob\ncomplete -F _addend addend");
}

/* ---- the completion script for zsh ---- */

static const char zsh_special[] = "[]:\\", zsh_quote[] = "'\\''";

static void print_zsh_value(const ad_cli_command *command, const struct argp_option *option) {
  taking what = taken_by(command, option);
  if (!option->arg) return;
  printf("%s:%s:", option->flags & OPTION_ARG_OPTIONAL ? ":" : "", option->arg);
  if (what == WORDS) {
    putchar('(');
    print_words(command, option);
    putchar(')');
  }
  if (what == KEYS) fputs("{compadd -S = -- $keys}", stdout);
  if (what == FILES) fputs("_files", stdout);
  if (what == FOLDERS) fputs("_files -/", stdout);
}

/* Prints zsh's description of one option. A value is the next word or follows '='; an optional value must follow '='.
 * --set may be repeated. */
static void print_zsh_option(const ad_cli_command *command, const struct argp_option *option) {
  int is_optional = option->flags & OPTION_ARG_OPTIONAL;
  const char *repeated = taken_by(command, option) == KEYS ? "*" : "";
  const char *value = !option->arg ? "" : is_optional ? "=-" : "=";
  printf(" \\\n        '%s--%s%s[", repeated, option->name, value);
  print_help(option->doc, zsh_special, zsh_quote);
  putchar(']');
  print_zsh_value(command, option);
  putchar('\'');
  if (!ad_cli_is_letter(option->key)) return;
  printf(" \\\n        '%s-%c%s[", repeated, option->key, !option->arg ? "" : is_optional ? "-" : "+");
  print_help(option->doc, zsh_special, zsh_quote);
  putchar(']');
  print_zsh_value(command, option);
  putchar('\'');
}

static const char *zsh_arguments(taking what) {
  static const char *const specs[] = {[FOLDERS] = "*:folder of a run:_files -/",
                                      [RECIPES] = "1:recipe:_files -g \"*.(yaml|yml)\"",
                                      [DUMPS] = "*:dump:_files -g \"*.safetensors\"",
                                      [PROGRAM] = "*:: :_normal"};
  return specs[what];
}

static void print_zsh_command(const ad_cli_command *command) {
  ad_cli_option_list list = ad_cli_options_of(command->argp);
  taking what = arguments_of(command);
  printf("    %s)\n      _arguments", command->name);
  for (int i = 0; i < list.count; i++) print_zsh_option(command, list.options[i]);
  if (what == PAGES) {
    fputs(" \\\n        '*:page:(", stdout);
    print_pages();
    fputs(")'", stdout);
  } else if (what == TABLES) {
    fputs(" \\\n        '1:what to do:(check make)' '2:file or schedule:{_files; compadd", stdout);
    for (size_t i = 0; ad_table_schedule_name(i); i++) printf(" %s", ad_table_schedule_name(i));
    fputs("}'", stdout);
  } else if (what != NOTHING) {
    printf(" \\\n        '%s'", zsh_arguments(what));
  }
  puts("\n      ;;");
}

static void print_zsh(const ad_cli_command *commands, int count, char *keys) {
  puts("_addend() {\n  local -a commands keys\n  keys=(");
  fputs(keys, stdout);
  puts("  )\n  commands=(");
  for (int i = 0; i < count; i++) {
    printf("    '%s:", commands[i].name);
    print_help(commands[i].help, zsh_special, zsh_quote);
    puts("'");
  }
  puts(
      "  )\n  if (( CURRENT == 2 )); then\n    _describe command commands\n"
      "    _arguments '--help[all commands]' '--version[which version this is]' "
      "'--completions[what completes commands in a shell]:shell:(bash zsh fish)'\n    return\n  fi\n"
      "  local command=$words[2]\n  shift words\n  (( CURRENT-- ))\n  case $command in\n"
      "    --completions) compadd bash zsh fish ;;");
  for (int i = 0; i < count; i++) print_zsh_command(&commands[i]);
  puts("  esac\n}\n_addend \"$@\"");
}

/* ---- the completion script for fish ---- */

static void print_fish_value(const ad_cli_command *command, const struct argp_option *option) {
  taking what = taken_by(command, option);
  if (what == NOTHING) return;
  if (what == FILES) {
    fputs(" -r -F", stdout);
    return;
  }
  fputs(" -x", stdout);
  if (what == FOLDERS) fputs(" -a '(__fish_complete_directories)'", stdout);
  if (what == KEYS) fputs(" -a '$_addend_keys'", stdout);
  if (what != WORDS) return;
  fputs(" -a '", stdout);
  print_words(command, option);
  putchar('\'');
}

static void print_fish_option(const ad_cli_command *command, const struct argp_option *option) {
  printf("complete -c addend -n '__fish_seen_subcommand_from %s' -l %s", command->name, option->name);
  if (ad_cli_is_letter(option->key)) printf(" -s %c", option->key);
  print_fish_value(command, option);
  fputs(" -d '", stdout);
  print_help(option->doc, "\\", "\\'");
  puts("'");
}

static void print_fish_arguments(const ad_cli_command *command) {
  static const char *const from[] = {[FOLDERS] = "-a '(__fish_complete_directories)'",
                                     [RECIPES] = "-a '(__fish_complete_suffix .yaml .yml)'",
                                     [DUMPS] = "-a '(__fish_complete_suffix .safetensors)'"};
  taking what = arguments_of(command);
  if (what == PROGRAM) {
    printf("complete -c addend -n '__fish_seen_subcommand_from %s; and contains -- -- (commandline -opc)' -F\n",
           command->name);
  } else if (what == PAGES) {
    printf("complete -c addend -n '__fish_seen_subcommand_from %s' -a '", command->name);
    print_pages();
    puts("'");
  } else if (what == TABLES) {
    printf("complete -c addend -n '__fish_seen_subcommand_from %s' -F -a '", command->name);
    print_schedules();
    puts("'");
  } else if (what != NOTHING) {
    printf("complete -c addend -n '__fish_seen_subcommand_from %s' %s\n", command->name, from[what]);
  }
}

static void print_fish_command(const ad_cli_command *command) {
  ad_cli_option_list list = ad_cli_options_of(command->argp);
  printf("complete -c addend -n __fish_use_subcommand -a %s -d '", command->name);
  print_help(command->help, "\\", "\\'");
  puts("'");
  print_fish_arguments(command);
  for (int i = 0; i < list.count; i++) print_fish_option(command, list.options[i]);
}

static void print_fish(const ad_cli_command *commands, int count, char *keys) {
  puts("set -g _addend_keys");
  for (char *key = strtok(keys, "\n"); key; key = strtok(NULL, "\n")) printf("set -a _addend_keys %s=\n", key);
  puts(
      "complete -c addend -f\n"
      "complete -c addend -n __fish_use_subcommand -l help -d 'all commands'\n"
      "complete -c addend -n __fish_use_subcommand -l version -d 'which version this is'\n"
      "complete -c addend -n __fish_use_subcommand -l completions -x -a 'bash zsh fish' -d 'what completes commands in "
      "a shell'");
  for (int i = 0; i < count; i++) print_fish_command(&commands[i]);
}

/* ---- the command --completions itself ---- */

/* Prints the script with "addend" replaced by another program's name, also in the names of shell functions, where
 * characters other than letters and digits become _. */
static void print_renamed(const char *text, const char *program) {
  static const char known[] = "addend";
  for (const char *at; (at = strstr(text, known)); text = at + sizeof known - 1) {
    int is_identifier = at > text && at[-1] == '_';
    fwrite(text, 1, (size_t)(at - text), stdout);
    for (const char *c = program; *c; c++) putchar(!is_identifier || isalnum((unsigned char)*c) ? *c : '_');
  }
  fputs(text, stdout);
}

static void print_completions(const shell *of, const ad_cli_command *commands, int count, char *keys) {
  if (of->print == print_zsh) puts("#compdef addend");
  printf("# Completion of the addend command in %s, made by `addend --completions %s`.\n", of->name, of->name);
  of->print(commands, count, keys);
}

/* Captures the script in memory, by assigning glibc's variable stdout, then prints it with "addend" replaced by the
 * program's name. */
static int print_for(const char *program, const shell *of, const ad_cli_command *commands, int count, char *keys) {
  char *text = NULL;
  size_t size;
  FILE *screen = stdout, *memory = open_memstream(&text, &size);
  if (memory) {
    stdout = memory;
    print_completions(of, commands, count, keys);
    stdout = screen;
  }
  int is_whole = memory && !fclose(memory);
  if (is_whole) print_renamed(text, program);
  free(text);
  return is_whole ? ad_cli_print("") : ad_cli_failed(ad_fail(AD_MEMORY, "no memory for the completions"));
}

int ad_cli_completions(const char *program, const ad_cli_command *commands, int count, const char *name) {
  static const shell shells[] = {{"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};
  const shell *found = NULL;
  char *keys = NULL, none[] = "";
  for (size_t i = 0; name && i < sizeof shells / sizeof *shells; i++)
    if (!strcmp(shells[i].name, name)) found = &shells[i];
  if (!found) {
    fprintf(stderr, "addend: --completions must be bash, zsh or fish, not '%s'\n", name ? name : "");
    return CLI_WRONG_CALL;
  }
  ad_status status = ad_cli_trainer_part.recipe_keys ? ad_cli_trainer_part.recipe_keys(&keys) : AD_OK;
  if (status) return ad_cli_failed(status);
  int printed = print_for(program, found, commands, count, keys ? keys : none);
  free(keys);
  return printed;
}
