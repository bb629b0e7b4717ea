/* The list of the trainer's commands. */
#include "trainer.h"

static const ad_cli_command commands[] = {
    {"train", ad_cli_train, "train a recipe, with a progress bar and a report", &ad_cli_train_argp, NULL},
    {"check", ad_cli_check, "prove the distributed gradient against one process; --sabotage proves the proof",
     &ad_cli_check_argp, ad_cli_check_word},
    {"plan", ad_cli_plan, "what is reduced over which axes, in how many bytes, at any world size; nothing runs",
     &ad_cli_plan_argp, NULL},
    {"report", ad_cli_report, "make a run's page again from its files; several runs are laid over each other",
     &ad_cli_report_argp, NULL},
    {"export", ad_cli_export, "write a run's weights as Hugging Face Transformers reads them", &ad_cli_export_argp,
     ad_cli_export_word},
    {"sample", ad_cli_sample, "continue a text, token by token", &ad_cli_sample_argp, ad_cli_sample_word},
};

const ad_cli_trainer ad_cli_trainer_part = {.commands = commands,
                                            .count = sizeof commands / sizeof *commands,
                                            .begin = ad_cli_correct_blas,
                                            .recipe_keys = ad_recipe_keys};
