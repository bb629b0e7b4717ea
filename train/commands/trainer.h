/* The trainer's commands, and the functions that they share. */
#ifndef CLI_TRAINER_TRAINER_H
#define CLI_TRAINER_TRAINER_H
#include <jansson.h>
#include "addend/addend.h"
#include "cli/command.h"

extern const ad_cli_command ad_cli_train, ad_cli_check, ad_cli_plan, ad_cli_report, ad_cli_export, ad_cli_sample;

/* Corrects how OpenBLAS starts: with one thread, as a rank has, and with the kernels of this processor (OpenBLAS
 * takes a processor newer than itself for an old one, with kernels several times slower). OpenBLAS reads the
 * environment when it is loaded. If that does not set both, the program sets it and executes itself again. */
void ad_cli_correct_blas(char **argv);

/* The options of every command that reads a recipe: RECIPE, --set, --program, --json. */
typedef struct ad_cli_recipe_options {
  const char *recipe;
  const char *program; /* the shared object with the recipe's program; NULL: a program that is built in */
  const char **sets;
  size_t set_count;
  int json;
  int on_paper; /* the recipe is planned and not run */
} ad_cli_recipe_options;
extern const struct argp ad_cli_recipe_argp;             /* a child parser; its input is an ad_cli_recipe_options */
extern const struct argp_child ad_cli_recipe_children[]; /* for a parser that has only this child */
/* Parses the call into `input`, which contains `options`, then reads the recipe like ad_cli_read_recipe. */
int ad_cli_parse_recipe(const struct argp *argp, int argc, char **argv, void *input,
                        const ad_cli_recipe_options *options, ad_recipe **out);
/* Loads the recipe's program and reads the recipe. Frees options->sets. */
ad_status ad_cli_try_recipe(const ad_cli_recipe_options *options, ad_recipe **out);
/* Calls ad_cli_try_recipe; on failure prints every message and returns CLI_WRONG_CALL. */
int ad_cli_read_recipe(const ad_cli_recipe_options *options, ad_recipe **out);

/* Registers the programs given to ad_main; `kinds` ends with NULL. */
ad_status ad_cli_register_programs(const ad_program_kind *const *kinds);
/* Loads the shared object that --program names (NULL: none). With a custom program, the command continues in a
 * separate process: if a function of the program ends that process, the error names the function. */
ad_status ad_cli_load_program(const char *path);

/* For commands that train nothing: reports that weights of a pretraining are drawn from the seed instead. */
void ad_cli_report_what_is_drawn(const ad_recipe *recipe);

/* Joins the ranks that the launcher started. If their number is not that of the recipe's mesh, prints an error and
 * returns an exit status. */
int ad_cli_join(const ad_recipe *recipe, ad_comm **out);
/* Sets the handler of SIGINT (Ctrl-C) and SIGTERM, even if a shell started this command in the background and
 * ignores them; and of SIGHUP, unless it is ignored (nohup). */
void ad_cli_on_request(void (*handler)(int signal_number));
/* Sets the handler of SIGUSR1. */
void ad_cli_on_checkpoint(void (*handler)(int signal_number));

/* Releases the document and returns it as text for ad_cli_print; free the text. Characters that a terminal would
 * obey (ad_printable) become \uHHHH. NULL: there is no document, it has a text that is not UTF-8, or no memory. */
char *ad_cli_json(json_t *document, size_t flags);

/* Writes text to the file; `what` names it in messages. If it cannot, prints a message and returns CLI_UNFINISHED. */
int ad_cli_write(const char *what, const char *text, const char *path);

#endif
