/* Declares what all commands of `addend` share: their records, options, output and exit statuses. The commands of a
 * folder are in FOLDER/commands, one file and one record `ad_cli_NAME` for each; cli/main.c lists the records. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H
#include <argp.h>
#include <stdio.h>

#include "addend/core.h"

/* Exit statuses, on which scripts rely. */
enum { CLI_HOLDS = 0, CLI_ANSWER_IS_NO = 1, CLI_WRONG_CALL = 2, CLI_UNFINISHED = 3 };
/* Returns the exit status of a command that judged: CLI_HOLDS or CLI_ANSWER_IS_NO. `holds` is the value that ad_diff or
 * ad_check set (addend/verdict.h). */
int ad_cli_answer(int holds);

/* Returns the word with index `index` that the option `key` takes, NULL after the last. NULL at index 0 means that
 * the option takes values that are not in a list. */
typedef const char *ad_cli_words(int key, int index);
/* Returns the word of the option `key` that is most similar to `unknown`, or NULL if none is similar. */
const char *ad_cli_nearest_word(const char *unknown, ad_cli_words *words, int key);

typedef struct ad_cli_command {
  const char *name;
  int (*run)(int argc, char **argv); /* runs the command and returns its exit status; argv[0] is "addend COMMAND",
                                      * with another program's name in place of "addend" if that program has these
                                      * commands */
  const char *help;                  /* one line for `addend --help` */
  const struct argp *argp;           /* parser of the options; --help and shell completions are made from it */
  ad_cli_words *words;               /* lists the words that options take (see ad_cli_words); NULL if no option has
                                      * such a list */
} ad_cli_command;

/* All options of a parser: its own, those of its child parsers, and those that argp adds (--help and so on). */
enum { CLI_OPTIONS_MAX = 64 };
typedef struct ad_cli_option_list {
  const struct argp_option *options[CLI_OPTIONS_MAX];
  int count;
} ad_cli_option_list;
ad_cli_option_list ad_cli_options_of(const struct argp *argp);
int ad_cli_is_letter(int key); /* returns 1 if an option with this key has a short name (one letter), too */
/* Calls argp_parse. If an option is unknown, the error names the option that was probably meant. */
void ad_cli_parse(const struct argp *argp, int argc, char **argv, unsigned flags, void *input);

/* What the program takes from libaddend_train. In a program without that library, the record in without_trainer.c
 * reports that the trainer is missing. */
typedef struct ad_cli_trainer {
  const ad_cli_command *const *commands; /* the trainer's commands; listed before the program's other commands */
  int count;
  const char *missing;                /* a sentence in --help about the commands that are missing; NULL if none is
                                       * missing */
  void (*begin)(char **argv);         /* called first in main; may be NULL */
  ad_status (*recipe_keys)(char **);  /* is ad_recipe_keys; NULL if no command reads a recipe */
  int (*refuse)(const char *unknown); /* if `unknown` is a command of the missing trainer, prints a message and
                                       * returns 1; the pointer is NULL if no command is missing */
} ad_cli_trainer;
extern const ad_cli_trainer ad_cli_trainer_part;

enum { CLI_COMMANDS_MAX = 16, CLI_NAME_SIZE = 64 };

/* A program that has the trainer's commands and commands of its own. */
typedef struct ad_cli_program {
  const char *name;    /* the program's name; at most CLI_NAME_SIZE bytes with the final 0 */
  const char *help;    /* one line for --help about the program */
  const char *example; /* an example of a call, without the program's name */
  const ad_cli_command *const *commands;
  int count;
  void (*print_more)(FILE *file); /* prints the text that follows the list of commands in --help; may be NULL */
} ad_cli_program;
/* The body of `main`: runs the command that argv names and returns the exit status. */
int ad_cli_main(int argc, char **argv, const ad_cli_program *program);

/* Prints the shell code that completes these commands; `shell` is bash, zsh or fish. Returns an exit status. */
int ad_cli_completions(const char *program, const ad_cli_command *commands, int count, const char *shell);

enum { CLI_MESSAGE = 4096 };
/* Reports a wrong use of the command line and ends the program, as argp_error does; unprintable characters in the
 * message are escaped. */
void ad_cli_wrong(const struct argp_state *state, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Parses the argument of `option` as a number that is at least `least`. */
int64_t ad_cli_parse_number(const char *argument, const char *option, int64_t least, struct argp_state *state);
/* Checks the path that `option` names for writing: it must be new or a regular file, which is replaced. Refuses names
 * that files of a run have, except `own`, the name of the file that this command writes. */
const char *ad_cli_parse_out(const char *option, const char *argument, const char *own, struct argp_state *state);
/* Prints a path to standard output. On a terminal, unprintable characters are escaped; elsewhere the path is printed
 * unchanged. */
int ad_cli_print_path(const char *path);
/* Writes text to standard output, and a newline if the text does not end in one. If writing fails, prints a message and
 * returns CLI_UNFINISHED. A reader that closes the pipe early (head -1) is no failure. */
int ad_cli_print(const char *text);

/* If another program (the Python package) starts this one and reads its errors, this environment variable names a file
 * descriptor. ad_cli_return_text writes "STATUS TEXT" to that descriptor, or returns 0 if the variable is not set. The
 * command also ends when the program that started it ends. */
#define CLI_ERROR_FD "ADDEND_ERROR_FD"
int ad_cli_return_text(ad_status status, const char *text);
/* Prints the library's last error (ad_last_error) and returns the exit status that belongs to `status`. */
int ad_cli_failed(ad_status status);

/* Silences this rank, if a launcher started it (ad_comm_launched()) and it is not the first: only the first rank
 * prints. */
void ad_cli_let_first_rank_speak(void);
void ad_cli_speak(void); /* lets a silent rank print errors again, for text that only this rank knows */
/* Records that this rank ends because of an error of its own, not because of a wrong call, which the first rank
 * reports. A silent rank without this record ends some seconds late, because launchers kill all ranks when one fails
 * and might kill the first rank before it prints. */
void ad_cli_ends_alone(void);
/* Prints a message of the library's log, on silent ranks too, because the library logs each message on one rank
 * only. */
void ad_cli_log(void *context, ad_log_level level, const char *message);
/* Reports to the other ranks that this rank cannot take part; does nothing if no launcher started this rank. */
void ad_cli_report_ranks(ad_status status, const char *message);

/* Returns 1 if fd is a terminal whose cursor can move (TERM is not "dumb"), else 0. */
int ad_cli_is_terminal(int fd);
/* Returns 1 if ad_cli_is_terminal(fd) and colours are allowed (NO_COLOR, no-color.org, is not set), else 0. */
int ad_cli_takes_colour(int fd);

/* Shows progress (`label`, done / of, `text`) on standard error. On a terminal this is a bar that is redrawn, and
 * ad_cli_progress_end removes it; elsewhere a line is printed every few seconds. */
void ad_cli_progress(const char *label, int64_t done, int64_t of, const char *text);
void ad_cli_progress_end(void);

#endif
