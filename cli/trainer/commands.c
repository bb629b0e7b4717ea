/* The trainer's commands. */
#include "trainer.h"

static const cli_command commands[] = {
    {"train", cli_train, "train a recipe, with a progress bar and a report", &cli_train_argp, NULL},
    {"check", cli_check, "prove the distributed gradient against one process; --sabotage proves the proof",
     &cli_check_argp, cli_check_word},
    {"plan", cli_plan, "what is reduced over which axes, in how many bytes, at any world size; nothing runs",
     &cli_plan_argp, NULL},
    {"report", cli_report, "make a run's page again from its files; several runs are laid over each other",
     &cli_report_argp, NULL},
};

const cli_trainer cli_trainer_part = {.commands = commands,
                                      .count = sizeof commands / sizeof *commands,
                                      .begin = cli_correct_blas_core,
                                      .recipe_keys = ad_recipe_keys};
