/* Takes the place of train/commands/ in a program built without the trainer, and refuses the trainer's commands. */
#include <stdio.h>
#include <string.h>

#include "command.h"

static int refuse_command(const char *unknown) {
  static const char *const names[] = {"train", "check", "plan", "report", "export", "sample"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (strcmp(names[i], unknown) != 0) continue;
    fprintf(stderr,
            "addend: `%s` is a command of the trainer, which this program was built without: run `pip install "
            "'./python[train]'` in addend's folder, or run script/setup there and build addend again\n",
            unknown);
    return 1;
  }
  return 0;
}

const ad_cli_trainer ad_cli_trainer_part = {
    .missing = "Without the trainer: train, check, plan, report, export and sample are not in this program.",
    .refuse = refuse_command};
