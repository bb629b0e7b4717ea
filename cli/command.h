/* The commands of `addend`: one function each, and what they share. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H
#include <argp.h>
#include <stdio.h>

#include "addend/core.h"

/* Exit statuses, as scripts rely on them. */
enum { CLI_HOLDS = 0, CLI_ANSWER_IS_NO = 1, CLI_WRONG_CALL = 2, CLI_UNFINISHED = 3 };

/* argv[0] is "addend COMMAND", or that of another program with these commands. */
int ad_cli_diff(int argc, char **argv);
int ad_cli_explain(int argc, char **argv);
int ad_cli_bench(int argc, char **argv);
int ad_cli_run(int argc, char **argv);
int ad_cli_schedule(int argc, char **argv);
int ad_cli_torch_check(int argc, char **argv);

/* The parsers of their options, from which --help and the completions of shells are made. */
extern const struct argp ad_cli_diff_argp, ad_cli_explain_argp, ad_cli_bench_argp, ad_cli_run_argp,
    ad_cli_schedule_argp, ad_cli_torch_check_argp;
/* The words that the option of this key takes, one by one; NULL after the last, and where it takes others too. */
typedef const char *ad_cli_words(int key, int index);
ad_cli_words ad_cli_bench_word, ad_cli_diff_word;
/* The one of them that was probably meant; NULL: none. */
const char *ad_cli_nearest_word(const char *unknown, ad_cli_words *words, int key);

typedef struct ad_cli_command {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *help;
  const struct argp *argp;
  ad_cli_words *words; /* NULL: no option takes only certain ones */
} ad_cli_command;

/* Every option that a parser takes: its children's and argp's own (--help, ...) too. */
enum { CLI_OPTIONS_MAX = 64 };
typedef struct ad_cli_option_list {
  const struct argp_option *options[CLI_OPTIONS_MAX];
  int count;
} ad_cli_option_list;
ad_cli_option_list ad_cli_options_of(const struct argp *argp);
int ad_cli_is_letter(int key); /* of an option that has a short name too */
/* argp_parse, which says what was probably meant where there is no such option. */
void ad_cli_parse(const struct argp *argp, int argc, char **argv, unsigned flags, void *input);

/* The part of the program that needs libaddend_train. A program without it has a record too (without_trainer.c), that
 * says so. */
typedef struct ad_cli_trainer {
  const ad_cli_command *commands; /* they stand before the core's */
  int count;
  const char *missing;                /* what --help says of commands that are not there; NULL: all are */
  void (*begin)(char **argv);         /* first thing in main; NULL: nothing */
  ad_status (*recipe_keys)(char **);  /* as ad_recipe_keys; NULL: no command reads a recipe */
  int (*refuse)(const char *unknown); /* 1 if that is a command of the trainer's, which then was told; NULL: none is */
} ad_cli_trainer;
extern const ad_cli_trainer ad_cli_trainer_part;

enum { CLI_COMMANDS_MAX = 16, CLI_NAME_SIZE = 64 };

/* A program that has the trainer's commands, and some of its own. */
typedef struct ad_cli_program {
  const char *name;    /* as it is called; at most CLI_NAME_SIZE bytes, with the final 0 */
  const char *help;    /* one line */
  const char *example; /* a call, without the name */
  const ad_cli_command *commands;
  int count;
  void (*print_more)(FILE *file); /* after the commands in --help; NULL: nothing */
} ad_cli_program;
/* What `main` does: runs the command that is called, and returns the exit status. */
int ad_cli_main(int argc, char **argv, const ad_cli_program *program);

/* Prints what completes these commands of a program in a shell: bash, zsh or fish. */
int ad_cli_completions(const char *program, const ad_cli_command *commands, int count, const char *shell);

enum { CLI_MESSAGE = 4096 };
/* As argp_error, which ends the program, with a message that is printable whatever was typed. */
void ad_cli_wrong(const struct argp_state *state, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The number that `option` takes: `least` or more. */
int64_t ad_cli_parse_number(const char *argument, const char *option, int64_t least, struct argp_state *state);
/* The file that `option` takes: a new one, or a regular one to be replaced, but none that a run consists of, except
 * `own`, the name of what is written. */
const char *ad_cli_parse_out(const char *option, const char *argument, const char *own, struct argp_state *state);
/* Prints a path: a terminal gets it printable, a script as it is. */
int ad_cli_print_path(const char *path);
/* Writes text (and a final newline where it has none) to standard output; CLI_UNFINISHED with a message if that cannot
 * be; a reader that is gone (head -1) has what it wanted. */
int ad_cli_print(const char *text);

/* A program that starts this one for its own caller (the Python package does) reads the error itself: this variable
 * names a descriptor that gets "STATUS TEXT", standard error does not. Such a command ends with the program that
 * started it. 0: there is none. */
#define CLI_ERROR_FD "ADDEND_ERROR_FD"
int ad_cli_hand_over(ad_status status, const char *text);
/* Prints the last error and returns the exit status for it. */
int ad_cli_failed(ad_status status);

/* Where ad_comm_launched(): from now on only the first rank prints. */
void ad_cli_let_first_rank_speak(void);
void ad_cli_speak(void); /* this rank does too: what it has to say it knows alone */
/* This rank's end is no wrong call, of which the first rank speaks: launchers kill all others when one fails, so one
 * that does not speak ends a little later where nobody says this. */
void ad_cli_ends_alone(void);
/* The library's log. Ranks that do not print are heard too: what the library says on one, it says on that one only. */
void ad_cli_log(void *context, ad_log_level level, const char *message);
/* Where ad_comm_launched(): the other ranks learn that this one cannot take part. */
void ad_cli_tell_ranks(ad_status status, const char *message);

/* Whether what is written there is seen by a person whose terminal can move its cursor: TERM is not "dumb". */
int ad_cli_is_terminal(int fd);
/* The same, and colours are welcome: NO_COLOR (no-color.org) is not set. */
int ad_cli_takes_colour(int fd);

/* A progress line on standard error, `text` behind it: a moving bar on a terminal, elsewhere a line now and then of
 * work that lasts. ad_cli_progress_end takes the bar away. */
void ad_cli_progress(const char *label, int64_t done, int64_t of, const char *text);
void ad_cli_progress_end(void);

#endif
