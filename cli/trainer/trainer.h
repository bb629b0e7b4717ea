/* The commands that need libaddend_train, and what they share. */
#ifndef CLI_TRAINER_TRAINER_H
#define CLI_TRAINER_TRAINER_H
#include "addend/addend.h"
#include "cli/command.h"

int cli_train(int argc, char **argv);
int cli_check(int argc, char **argv);
int cli_plan(int argc, char **argv);
int cli_report(int argc, char **argv);
extern const struct argp cli_train_argp, cli_check_argp, cli_plan_argp, cli_report_argp;
cli_words cli_check_word;

/* OpenBLAS does not know processors that are newer than it is, and takes them for old ones, whose kernels are several
 * times slower. Then this program starts itself anew with the kernels that the processor has. OPENBLAS_CORETYPE in the
 * environment is left as it is. */
void cli_correct_blas_core(char **argv);

/* What every command that reads a recipe takes: RECIPE, --set, --json. */
typedef struct cli_recipe_options {
  const char *recipe;
  const char **sets;
  size_t set_count;
  int json;
} cli_recipe_options;
extern const struct argp cli_recipe_argp;             /* a child parser; its input is a cli_recipe_options */
extern const struct argp_child cli_recipe_children[]; /* of a parser whose only child it is */
/* Parses the call into `input`, which holds `options`, then reads the recipe as cli_read_recipe does. */
int cli_parse_recipe(const struct argp *argp, int argc, char **argv, void *input, const cli_recipe_options *options,
                     ad_recipe **out);
/* Reads the recipe; on failure prints every message and returns CLI_WRONG_CALL. */
int cli_read_recipe(const cli_recipe_options *options, ad_recipe **out);

/* For commands that train nothing: says that what would be trained first is as the seed has it. */
void cli_say_what_is_drawn(const ad_recipe *recipe);

/* Joins the ranks that the launcher started. Prints and returns an exit status if there are not as many as the recipe's
 * mesh has. */
int cli_join(const ad_recipe *recipe, ad_comm **out);
/* What ranks do on Ctrl-C and SIGTERM, also where a shell started this as a background job that ignores them, and on
 * SIGHUP, unless it is ignored (nohup). */
void cli_on_request(void (*handler)(int signal_number));
/* What ranks do on SIGUSR1. */
void cli_on_checkpoint(void (*handler)(int signal_number));

/* Writes what is called `what` there; CLI_UNFINISHED with a message if that cannot be. */
int cli_write(const char *what, const char *text, const char *path);

#endif
