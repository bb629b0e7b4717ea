/* The program `addend`: the trainer's commands and the core's. */
#include "cli/command.h"

static const ad_cli_command commands[] = {
    {"diff", ad_cli_diff, "what went wrong in gradients that any framework dumped: which addends they hold",
     &ad_cli_diff_argp, ad_cli_diff_word},
    {"explain", ad_cli_explain, "what a named cause means, and where to look", &ad_cli_explain_argp, NULL},
    {"schedule", ad_cli_schedule,
     "whether a pipeline's table of actions is right, its bubble and its activations in flight", &ad_cli_schedule_argp,
     ad_cli_schedule_word},
    {"bench", ad_cli_bench, "collectives and the reducer against this machine's memory bandwidth and its peers",
     &ad_cli_bench_argp, ad_cli_bench_word},
    {"torch-check", ad_cli_torch_check, "whether the ranks of a PyTorch job compute what one process does",
     &ad_cli_torch_check_argp, NULL},
    {"torch-matrix", ad_cli_torch_matrix,
     "the same for models by layouts by numbers of microbatches: one verdict for each", &ad_cli_torch_matrix_argp,
     ad_cli_torch_matrix_word},
    {"run", ad_cli_run, "start N ranks of your own program", &ad_cli_run_argp, NULL},
};

int main(int argc, char **argv) {
  ad_cli_program addend = {
      .name = "addend",
      .help = "Trains, proves and plans distributed gradients.",
      .example = ad_cli_trainer_part.count ? "check recipes/gpt-dp.yaml --sabotage" : "diff dump/",
      .commands = commands,
      .count = sizeof commands / sizeof *commands,
  };
  return ad_cli_main(argc, argv, &addend);
}
