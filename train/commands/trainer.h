/* The trainer's commands, and the functions that the commands share. */
#ifndef CLI_TRAINER_TRAINER_H
#define CLI_TRAINER_TRAINER_H
#include <jansson.h>
#include "addend/addend.h"
#include "cli/command.h"

extern const ad_cli_command ad_cli_train, ad_cli_check, ad_cli_plan, ad_cli_report, ad_cli_export, ad_cli_sample;

/* Corrects how OpenBLAS starts: with one thread, because a rank has one, and with kernels for this processor. (OpenBLAS
 * mistakes a processor that is newer than itself for an old one, whose kernels are several times slower.) OpenBLAS
 * reads the environment when it is loaded, so if the environment is wrong, the program corrects it and executes itself
 * again. */
void ad_cli_correct_blas(char **argv);

/* The options that every command has that reads a recipe: RECIPE, --set, --program, --json. */
typedef struct ad_cli_recipe_options {
  const char *recipe;
  const char *program; /* path of the shared object with the recipe's custom program; NULL if the program is built in */
  const char **sets;
  size_t set_count;
  int json;
  int on_paper; /* 1: the recipe is only planned, not run */
} ad_cli_recipe_options;
/* argp's child parser for these options; its input is an ad_cli_recipe_options */
extern const struct argp ad_cli_recipe_argp;
/* the list of argp children for a parser that has no other child */
extern const struct argp_child ad_cli_recipe_children[];
/* Parses the call into `input`, a struct that contains `options`, and then reads the recipe as ad_cli_read_recipe
 * does. */
int ad_cli_parse_recipe(const struct argp *argp, int argc, char **argv, void *input,
                        const ad_cli_recipe_options *options, ad_recipe **out);
/* Loads the recipe's program and reads the recipe. Frees options->sets. */
ad_status ad_cli_try_recipe(const ad_cli_recipe_options *options, ad_recipe **out);
/* Calls ad_cli_try_recipe. If that fails, prints every message and returns CLI_WRONG_CALL. */
int ad_cli_read_recipe(const ad_cli_recipe_options *options, ad_recipe **out);

/* Registers the custom programs that were passed to ad_main, so that recipes may name them; `kinds` ends with NULL. */
ad_status ad_cli_register_programs(const ad_program_kind *const *kinds);
/* Loads the shared object that --program names; does nothing if `path` is NULL. With a custom program, the command
 * continues in a separate process: if a function of the program ends that process, the error names the function. */
ad_status ad_cli_load_program(const char *path);

/* For commands that do not train. If `addend train` would first run a pretraining and take the recipe's weights from
 * it, reports that this command draws these weights from the seed instead. */
void ad_cli_report_what_is_drawn(const ad_recipe *recipe);

/* Joins the ranks that the launcher started. If their number differs from that of the recipe's mesh, prints an error
 * and returns an exit status. */
int ad_cli_join(const ad_recipe *recipe, ad_comm **out);
/* Sets the handler of SIGINT (Ctrl-C) and SIGTERM, even if they are ignored because a shell started this command in the
 * background; and that of SIGHUP, unless it is ignored (nohup). */
void ad_cli_on_request(void (*handler)(int signal_number));
/* Sets the handler of SIGUSR1, with which a person asks for a checkpoint. */
void ad_cli_on_checkpoint(void (*handler)(int signal_number));

/* Returns the document as text for ad_cli_print, and releases the document; the caller frees the text. Characters that
 * a terminal would obey (ad_printable) become \uHHHH. Returns NULL if the document is NULL or has a text that is not
 * UTF-8, or if there is no memory. */
char *ad_cli_json(json_t *document, size_t flags);

/* Writes text to the file `path`. If that fails, prints a message, in which `what` names the text, and returns
 * CLI_UNFINISHED. */
int ad_cli_write(const char *what, const char *text, const char *path);

#endif
