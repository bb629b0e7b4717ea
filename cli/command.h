/* The code that all commands of `addend` share: their records, options, output and exit statuses. A folder's commands
 * are in FOLDER/commands, one file and one record `ad_cli_NAME` for each; cli/main.c puts them together. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H
#include <argp.h>
#include <stdio.h>

#include "addend/core.h"

/* Exit statuses, on which scripts rely. */
enum { CLI_HOLDS = 0, CLI_ANSWER_IS_NO = 1, CLI_WRONG_CALL = 2, CLI_UNFINISHED = 3 };
/* The exit status of a command that judged: `holds` as ad_diff and ad_check set it (addend/verdict.h). */
int ad_cli_answer(int holds);

/* Returns word number `index` of an option; NULL after the last. NULL at index 0: it takes other values, too. */
typedef const char *ad_cli_words(int key, int index);
/* Returns the word that was probably meant, or NULL if no word is near. */
const char *ad_cli_nearest_word(const char *unknown, ad_cli_words *words, int key);

typedef struct ad_cli_command {
  const char *name;
  int (*run)(int argc, char **argv); /* argv[0] is "addend COMMAND", or begins with the name of another program that has
                                      * these commands; returns the exit status */
  const char *help;                  /* one line for `addend --help` */
  const struct argp *argp;           /* parser of the options; --help and shell completions are made from it */
  ad_cli_words *words;               /* NULL: no option takes only certain words */
} ad_cli_command;

/* All options of a parser, with its children's and argp's own (--help and so on). */
enum { CLI_OPTIONS_MAX = 64 };
typedef struct ad_cli_option_list {
  const struct argp_option *options[CLI_OPTIONS_MAX];
  int count;
} ad_cli_option_list;
ad_cli_option_list ad_cli_options_of(const struct argp *argp);
int ad_cli_is_letter(int key); /* 1: the option has a short name, too */
/* Calls argp_parse; for an unknown option says which one was probably meant. */
void ad_cli_parse(const struct argp *argp, int argc, char **argv, unsigned flags, void *input);

/* The part of the program that needs libaddend_train. In a program without that library, the record in
 * without_trainer.c says that it is missing. */
typedef struct ad_cli_trainer {
  const ad_cli_command *const *commands; /* listed before the program's own */
  int count;
  const char *missing;                /* the text of --help about missing commands; NULL: none is missing */
  void (*begin)(char **argv);         /* called first in main; NULL: nothing */
  ad_status (*recipe_keys)(char **);  /* ad_recipe_keys; NULL: no command reads a recipe */
  int (*refuse)(const char *unknown); /* 1: `unknown` is a command of the missing trainer, and a message was printed;
                                       * NULL: no command is missing */
} ad_cli_trainer;
extern const ad_cli_trainer ad_cli_trainer_part;

enum { CLI_COMMANDS_MAX = 16, CLI_NAME_SIZE = 64 };

/* A program that has the trainer's commands and additional ones. */
typedef struct ad_cli_program {
  const char *name;    /* name by which it is called; at most CLI_NAME_SIZE bytes with the final 0 */
  const char *help;    /* one line for --help */
  const char *example; /* an example of a call, without the program's name */
  const ad_cli_command *const *commands;
  int count;
  void (*print_more)(FILE *file); /* prints what follows the commands in --help; NULL: nothing */
} ad_cli_program;
/* The body of `main`: runs the command that is called and returns the exit status. */
int ad_cli_main(int argc, char **argv, const ad_cli_program *program);

/* Prints the shell code that completes these commands: bash, zsh or fish. */
int ad_cli_completions(const char *program, const ad_cli_command *commands, int count, const char *shell);

enum { CLI_MESSAGE = 4096 };
/* Reports a wrong call as argp_error does, which ends the program; unprintable characters in the message are
 * escaped. */
void ad_cli_wrong(const struct argp_state *state, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Parses the number that `option` takes, at least `least`. */
int64_t ad_cli_parse_number(const char *argument, const char *option, int64_t least, struct argp_state *state);
/* Checks the file that `option` names for writing: a new file, or a regular file to be replaced. Refuses the names of a
 * run's files, except `own`, the name of the file that the command writes. */
const char *ad_cli_parse_out(const char *option, const char *argument, const char *own, struct argp_state *state);
/* Prints a path: escaped on a terminal, as it is elsewhere. */
int ad_cli_print_path(const char *path);
/* Writes text to standard output, and a newline if the text does not end in one. Returns CLI_UNFINISHED, with a
 * message, if it cannot. If the reader has closed the pipe (head -1), this is no error. */
int ad_cli_print(const char *text);

/* If another program (the Python package) starts this one and reads its errors, this environment variable names a file
 * descriptor. "STATUS TEXT" is then written there instead of to standard error, and the command ends when its starter
 * does. ad_cli_return_text returns 0 if the variable is not set. */
#define CLI_ERROR_FD "ADDEND_ERROR_FD"
int ad_cli_return_text(ad_status status, const char *text);
/* Prints the last error and returns its exit status. */
int ad_cli_failed(ad_status status);

/* If a launcher started this rank (ad_comm_launched()): from now on only the first rank prints. */
void ad_cli_let_first_rank_speak(void);
void ad_cli_speak(void); /* lets this rank print, too: only this rank knows the text */
/* Notes that this rank ends for another reason than a wrong call, which the first rank reports. Launchers kill all
 * ranks when one fails, so without this note a silent rank ends a little later than the first. */
void ad_cli_ends_alone(void);
/* Prints the library's log, on silent ranks too: the library logs a message on one rank only. */
void ad_cli_log(void *context, ad_log_level level, const char *message);
/* If a launcher started this rank: reports to the other ranks that this rank cannot take part. */
void ad_cli_report_ranks(ad_status status, const char *message);

/* Whether fd is a terminal that can move its cursor: TERM is not "dumb". */
int ad_cli_is_terminal(int fd);
/* Whether fd is such a terminal and takes colours: NO_COLOR (no-color.org) is not set. */
int ad_cli_takes_colour(int fd);

/* Shows progress on standard error, followed by `text`: a moving bar on a terminal, elsewhere a line now and then if
 * the work takes long. ad_cli_progress_end removes the bar. */
void ad_cli_progress(const char *label, int64_t done, int64_t of, const char *text);
void ad_cli_progress_end(void);

#endif
