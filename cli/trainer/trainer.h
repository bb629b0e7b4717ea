/* The commands that need libaddend_train, and what they share. */
#ifndef CLI_TRAINER_TRAINER_H
#define CLI_TRAINER_TRAINER_H
#include "addend/addend.h"
#include "cli/command.h"

int ad_cli_train(int argc, char **argv);
int ad_cli_check(int argc, char **argv);
int ad_cli_plan(int argc, char **argv);
int ad_cli_report(int argc, char **argv);
int ad_cli_export(int argc, char **argv);
int ad_cli_sample(int argc, char **argv);
extern const struct argp ad_cli_train_argp, ad_cli_check_argp, ad_cli_plan_argp, ad_cli_report_argp, ad_cli_export_argp,
    ad_cli_sample_argp;
ad_cli_words ad_cli_check_word, ad_cli_export_word, ad_cli_sample_word;

/* How OpenBLAS is to be started: with one thread, as a rank has, and with the kernels that the processor has (it takes
 * processors that are newer than it is for old ones, whose kernels are several times slower). It decides that as it is
 * loaded, from the environment; where this is silent the program starts itself anew. */
void ad_cli_correct_blas(char **argv);

/* What every command that reads a recipe takes: RECIPE, --set, --program, --json. */
typedef struct ad_cli_recipe_options {
  const char *recipe;
  const char *program; /* the shared object of its program; NULL: it is one that is there */
  const char **sets;
  size_t set_count;
  int json;
  int on_paper; /* it is planned, not run */
} ad_cli_recipe_options;
extern const struct argp ad_cli_recipe_argp;             /* a child parser; its input is a ad_cli_recipe_options */
extern const struct argp_child ad_cli_recipe_children[]; /* of a parser whose only child it is */
/* Parses the call into `input`, which holds `options`, then reads the recipe as ad_cli_read_recipe does. */
int ad_cli_parse_recipe(const struct argp *argp, int argc, char **argv, void *input,
                        const ad_cli_recipe_options *options, ad_recipe **out);
/* Reads the recipe, and loads the program that it is of. Frees options->sets. */
ad_status ad_cli_try_recipe(const ad_cli_recipe_options *options, ad_recipe **out);
/* The same; on failure prints every message and returns CLI_WRONG_CALL. */
int ad_cli_read_recipe(const ad_cli_recipe_options *options, ad_recipe **out);

/* For commands that train nothing: says that what would be trained first is as the seed has it. */
void ad_cli_say_what_is_drawn(const ad_recipe *recipe);

/* Joins the ranks that the launcher started. Prints and returns an exit status if there are not as many as the recipe's
 * mesh has. */
int ad_cli_join(const ad_recipe *recipe, ad_comm **out);
/* What ranks do on Ctrl-C and SIGTERM, also where a shell started this as a background job that ignores them, and on
 * SIGHUP, unless it is ignored (nohup). */
void ad_cli_on_request(void (*handler)(int signal_number));
/* What ranks do on SIGUSR1. */
void ad_cli_on_checkpoint(void (*handler)(int signal_number));

/* Writes what is called `what` there; CLI_UNFINISHED with a message if that cannot be. */
int ad_cli_write(const char *what, const char *text, const char *path);

#endif
