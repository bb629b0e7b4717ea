/* The list of the trainer's commands. */
#include "trainer.h"

static const ad_cli_command *const commands[] = {&ad_cli_train,  &ad_cli_check,  &ad_cli_plan,
                                                 &ad_cli_report, &ad_cli_export, &ad_cli_sample};

const ad_cli_trainer ad_cli_trainer_part = {.commands = commands,
                                            .count = sizeof commands / sizeof *commands,
                                            .begin = ad_cli_correct_blas,
                                            .recipe_keys = ad_recipe_keys};
