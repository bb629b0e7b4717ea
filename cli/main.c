/* The program `addend`: lists the commands of all folders, those of the trainer first (ad_cli_trainer_part). */
#include "cli/command.h"

/* defined in audit/commands, core/commands, lab/commands, python/commands */
extern const ad_cli_command ad_cli_diff, ad_cli_explain, ad_cli_schedule, ad_cli_run, ad_cli_torch_check,
    ad_cli_torch_matrix;
#ifdef AD_LAB
extern const ad_cli_command ad_cli_bench;
#endif

static const ad_cli_command *const commands[] = {
    &ad_cli_diff,        &ad_cli_explain,      &ad_cli_schedule,
#ifdef AD_LAB
    &ad_cli_bench,
#endif
    &ad_cli_torch_check, &ad_cli_torch_matrix, &ad_cli_run,
};

int main(int argc, char **argv) {
  ad_cli_program addend = {
      .name = "addend",
      .help = "Trains, checks and plans distributed gradients.",
      .example = ad_cli_trainer_part.count ? "check recipes/gpt-dp.yaml --mutate" : "diff dump/",
      .commands = commands,
      .count = sizeof commands / sizeof *commands,
  };
  return ad_cli_main(argc, argv, &addend);
}
