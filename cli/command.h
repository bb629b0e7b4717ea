/* The commands of `addend`: one function each, and what they share. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H
#include <argp.h>

#include "addend/core.h"

/* Exit statuses, as scripts rely on them. */
enum { CLI_HOLDS = 0, CLI_ANSWER_IS_NO = 1, CLI_WRONG_CALL = 2, CLI_UNFINISHED = 3 };

/* argv[0] is "addend COMMAND". */
int cli_diff(int argc, char **argv);
int cli_explain(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_run(int argc, char **argv);
int cli_torch_check(int argc, char **argv);

/* The parsers of their options, from which --help and the completions of shells are made. */
extern const struct argp cli_diff_argp, cli_explain_argp, cli_bench_argp, cli_run_argp, cli_torch_check_argp;
/* The words that the option of this key takes, one by one; NULL after the last, and where it takes others too. */
typedef const char *cli_words(int key, int index);
cli_words cli_bench_word, cli_diff_word;
/* The one of them that was probably meant; NULL: none. */
const char *cli_nearest_word(const char *unknown, cli_words *words, int key);

typedef struct cli_command {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *help;
  const struct argp *argp;
  cli_words *words; /* NULL: no option takes only certain ones */
} cli_command;

/* Every option that a parser takes: its children's and argp's own (--help, ...) too. */
enum { CLI_OPTIONS_MAX = 64 };
typedef struct cli_option_list {
  const struct argp_option *options[CLI_OPTIONS_MAX];
  int count;
} cli_option_list;
cli_option_list cli_options_of(const struct argp *argp);
int cli_is_letter(int key); /* of an option that has a short name too */
/* argp_parse, which says what was probably meant where there is no such option. */
void cli_parse(const struct argp *argp, int argc, char **argv, unsigned flags, void *input);

/* The part of the program that needs libaddend_train. A program without it has a record too (without_trainer.c), that
 * says so. */
typedef struct cli_trainer {
  const cli_command *commands; /* they stand before the core's */
  int count;
  const char *missing;                /* what --help says of commands that are not there; NULL: all are */
  void (*begin)(char **argv);         /* first thing in main; NULL: nothing */
  ad_status (*recipe_keys)(char **);  /* as ad_recipe_keys; NULL: no command reads a recipe */
  int (*refuse)(const char *unknown); /* 1 if that is a command of the trainer's, which then was told; NULL: none is */
} cli_trainer;
extern const cli_trainer cli_trainer_part;

enum { CLI_COMMANDS_MAX = 16 };
/* All of this program, in the order of --help. */
int cli_commands(cli_command commands[CLI_COMMANDS_MAX]);

/* Prints what completes these commands in a shell: bash, zsh or fish. */
int cli_completions(const cli_command *commands, int count, const char *shell);

enum { CLI_MESSAGE = 4096 };
/* As argp_error, which ends the program, with a message that is printable whatever was typed. */
void cli_wrong(const struct argp_state *state, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The number that `option` takes: `least` or more. */
int64_t cli_parse_number(const char *argument, const char *option, int64_t least, struct argp_state *state);
/* The file that `option` takes: a new one, or a regular one to be replaced, but none that a run consists of, except
 * `own`, the name of what is written. */
const char *cli_parse_out(const char *option, const char *argument, const char *own, struct argp_state *state);
/* Prints a path: a terminal gets it printable, a script as it is. */
int cli_print_path(const char *path);
/* Writes text (and a final newline where it has none) to standard output; CLI_UNFINISHED with a message if that cannot
 * be; a reader that is gone (head -1) has what it wanted. */
int cli_print(const char *text);

/* A program that starts this one for its own caller (the Python package does) reads the error itself: this variable
 * names a descriptor that gets "STATUS TEXT", standard error does not. Such a command ends with the program that
 * started it. 0: there is none. */
#define CLI_ERROR_FD "ADDEND_ERROR_FD"
int cli_hand_over(ad_status status, const char *text);
/* Prints the last error and returns the exit status for it. */
int cli_failed(ad_status status);

/* Where ad_comm_launched(): from now on only the first rank prints. */
void cli_let_first_rank_speak(void);
void cli_speak(void); /* this rank does too: what it has to say it knows alone */
/* This rank's end is no wrong call, of which the first rank speaks: launchers kill all others when one fails, so one
 * that does not speak ends a little later where nobody says this. */
void cli_ends_alone(void);
/* The library's log. Ranks that do not print are heard too: what the library says on one, it says on that one only. */
void cli_log(void *context, ad_log_level level, const char *message);
/* Where ad_comm_launched(): the other ranks learn that this one cannot take part. */
void cli_tell_ranks(ad_status status, const char *message);

/* Whether what is written there is seen by a person whose terminal can move its cursor: TERM is not "dumb". */
int cli_is_terminal(int fd);
/* The same, and colours are welcome: NO_COLOR (no-color.org) is not set. */
int cli_takes_colour(int fd);

/* A progress line on standard error, `text` behind it: a moving bar on a terminal, elsewhere a line now and then of
 * work that lasts. cli_progress_end takes the bar away. */
void cli_progress(const char *label, int64_t done, int64_t of, const char *text);
void cli_progress_end(void);

#endif
