/* `addend COMMAND ...`: finds the command and hands over. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "command.h"

static const cli_command of_core[] = {
    {"diff", cli_diff, "which addends the gradients hold that any framework dumped, and what went wrong",
     &cli_diff_argp, cli_diff_word},
    {"explain", cli_explain, "what a cause means that was named, and where to look", &cli_explain_argp, NULL},
    {"bench", cli_bench, "collectives and the reducer against this machine's memory bandwidth and its peers",
     &cli_bench_argp, cli_bench_word},
    {"torch-check", cli_torch_check, "whether the ranks of a PyTorch job compute what one process does",
     &cli_torch_check_argp, NULL},
    {"run", cli_run, "start N ranks of your own program", &cli_run_argp, NULL},
};
enum { STACK_KIB = 1024 };

int cli_commands(cli_command commands[CLI_COMMANDS_MAX]) {
  int own = sizeof of_core / sizeof *of_core, before = cli_trainer_part.count;
  for (int i = 0; i < before; i++) commands[i] = cli_trainer_part.commands[i];
  for (int i = 0; i < own; i++) commands[before + i] = of_core[i];
  return before + own;
}

static const char version[] = "addend " AD_VERSION;

static void print_help(FILE *file) {
  fprintf(file,
          "Usage: addend COMMAND [RECIPE] [OPTION...]\n"
          "Trains, proves and plans distributed gradients.\n\n");
  cli_command commands[CLI_COMMANDS_MAX];
  int count = cli_commands(commands);
  for (int i = 0; i < count; i++) fprintf(file, "  %-11s %s\n", commands[i].name, commands[i].help);
  if (cli_trainer_part.missing) fprintf(file, "%s\n", cli_trainer_part.missing);
  fprintf(file,
          "\nExample: %s\n"
          "`addend COMMAND --help` has each command's options and an example; `addend --version` says the version;\n"
          "`addend --completions bash`, zsh or fish prints the completions of that shell.\n"
          "Exit status: 0 it holds, 1 the answer is no, 2 the call or the recipe is wrong, 3 it could not finish.\n",
          cli_trainer_part.count ? "addend check recipes/gpt-dp.yaml --sabotage" : "addend diff dump/");
}

static int run_command(const cli_command *command, int argc, char **argv) {
  char name[32];
  snprintf(name, sizeof name, "addend %s", command->name);
  argv[1] = name;
  return command->run(argc - 1, argv + 1);
}

/* What was meant, or all commands. */
static int refuse(const char *unknown) {
  cli_command commands[CLI_COMMANDS_MAX];
  const char *names[CLI_COMMANDS_MAX];
  int count = cli_commands(commands);
  if (cli_trainer_part.refuse && cli_trainer_part.refuse(unknown)) return CLI_WRONG_CALL;
  for (int i = 0; i < count; i++) names[i] = commands[i].name;
  const char *near = ad_nearest_name(unknown, names, (size_t)count);
  char typed[CLI_MESSAGE];
  fprintf(stderr, "addend: '%s' is no command; ", ad_printable(unknown, typed, sizeof typed));
  if (near) fprintf(stderr, "did you mean %s?", near);
  for (int i = 0; !near && i < count; i++)
    fprintf(stderr, "%s%s", !i ? "there are " : i + 1 < count ? ", " : " and ", names[i]);
  fprintf(stderr, near ? "\n" : " (addend --help)\n");
  return CLI_WRONG_CALL;
}

/* argp prints help and ends the process without a look at whether it could be written. */
static void check_output(void) {
  if (fflush(stdout) == 0 && !ferror(stdout)) return;
  if (cli_print("")) _exit(CLI_UNFINISHED);
}

static int has_stack(void) {
  struct rlimit stack;
  if (getrlimit(RLIMIT_STACK, &stack) || stack.rlim_cur >= STACK_KIB * 1024ul) return 1;
  fprintf(stderr, "addend: the stack may take %lu KiB (ulimit -s), at least %d are needed: type `ulimit -s 8192`\n",
          (unsigned long)stack.rlim_cur / 1024, STACK_KIB);
  return 0;
}

/* getopt names an option that it does not know as it was typed, or as a pattern of file names put it there. */
static int has_plain_options(int argc, char **argv) {
  char typed[CLI_MESSAGE];
  for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
    size_t length = strcspn(argv[i], "=");
    if (argv[i][0] != '-' || length >= sizeof typed) continue;
    ad_printable(argv[i], typed, sizeof typed);
    if (!strncmp(typed, argv[i], length)) continue;
    fprintf(stderr, "addend: '%s' is no option; a file of that name is ./%s\n", typed, typed);
    return 0;
  }
  return 1;
}

static int run(int argc, char **argv) {
  cli_command commands[CLI_COMMANDS_MAX];
  int count = cli_commands(commands);
  if (argc < 2) return print_help(stderr), CLI_WRONG_CALL;
  if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help"))
    return print_help(stdout), cli_print("");
  if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) return cli_print(version);
  if (!strcmp(argv[1], "--completions")) return cli_completions(commands, count, argv[2]);
  if (!has_plain_options(argc, argv)) return CLI_WRONG_CALL;
  for (int i = 0; i < count; i++)
    if (!strcmp(argv[1], commands[i].name)) return run_command(&commands[i], argc, argv);
  return refuse(argv[1]);
}

int main(int argc, char **argv) {
  if (cli_trainer_part.begin) cli_trainer_part.begin(argv);
  prctl(PR_SET_NAME, "addend"); /* it was started as /proc/self/exe */
  if (getenv(CLI_ERROR_FD)) prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (!has_stack()) return CLI_UNFINISHED;
  atexit(check_output);
  argp_err_exit_status = CLI_WRONG_CALL;
  argp_program_version = version;
  signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of the call that writes it */
  signal(SIGPIPE, SIG_IGN); /* a reader that has enough (head -1) is no error; see cli_print */
  cli_let_first_rank_speak();
  ad_set_log(cli_log, NULL);
  int status = run(argc, argv);
  if (status != CLI_WRONG_CALL) cli_ends_alone();
  return status;
}
