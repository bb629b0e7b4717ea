/* Finds the command that `addend COMMAND ...` names and runs it. Other programs that contain these commands use this
 * file, too. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli/command.h"
#include "addend/helpers.h"

enum { STACK_KIB = 1024 };

static int commands_of(const ad_cli_program *program, ad_cli_command commands[CLI_COMMANDS_MAX]) {
  int count = 0;
  for (int i = 0; i < ad_cli_trainer_part.count; i++) commands[count++] = *ad_cli_trainer_part.commands[i];
  for (int i = 0; i < program->count; i++) commands[count++] = *program->commands[i];
  return count;
}

static const char version[] = "addend " AD_VERSION;

static void print_help(const ad_cli_program *program, FILE *file) {
  fprintf(file, "Usage: %s COMMAND [RECIPE] [OPTION...]\n%s\n\n", program->name, program->help);
  ad_cli_command commands[CLI_COMMANDS_MAX];
  int count = commands_of(program, commands);
  for (int i = 0; i < count; i++) fprintf(file, "  %-11s %s\n", commands[i].name, commands[i].help);
  if (ad_cli_trainer_part.missing) fprintf(file, "%s\n", ad_cli_trainer_part.missing);
  if (program->print_more) program->print_more(file);
  fprintf(file,
          "\nExample: %s %s\n"
          "`%s COMMAND --help` has each command's options and an example; `%s --version` says the version;\n"
          "`%s --completions bash`, zsh or fish prints the completions of that shell.\n"
          "Exit status: 0 it holds, 1 the answer is no, 2 the call or the recipe is wrong, 3 it could not finish; what "
          "each\n"
          "verdict means and its exit status: docs/verdicts.md.\n",
          program->name, program->example, program->name, program->name, program->name);
}

static int run_command(const ad_cli_program *program, const ad_cli_command *command, int argc, char **argv) {
  char name[CLI_NAME_SIZE + 32];
  snprintf(name, sizeof name, "%s %s", program->name, command->name);
  argv[1] = name;
  return command->run(argc - 1, argv + 1);
}

/* Reports an unknown command, with the command that was probably meant or else a list of all commands. */
static int refuse_command(const ad_cli_program *program, const char *unknown) {
  ad_cli_command commands[CLI_COMMANDS_MAX];
  const char *names[CLI_COMMANDS_MAX];
  int count = commands_of(program, commands);
  if (ad_cli_trainer_part.refuse && ad_cli_trainer_part.refuse(unknown)) return CLI_WRONG_CALL;
  for (int i = 0; i < count; i++) names[i] = commands[i].name;
  const char *near = ad_nearest_name(unknown, names, (size_t)count);
  char typed[CLI_MESSAGE];
  fprintf(stderr, "addend: '%s' is not a command; ", ad_printable(unknown, typed, sizeof typed));
  if (near) fprintf(stderr, "did you mean %s?", near);
  for (int i = 0; !near && i < count; i++)
    fprintf(stderr, "%s%s", !i ? "the commands are " : i + 1 < count ? ", " : " and ", names[i]);
  if (!near) fprintf(stderr, " (%s --help)", program->name);
  putc('\n', stderr);
  return CLI_WRONG_CALL;
}

/* Checks at exit whether standard output was written: argp prints --help and ends the process without a check. */
static void check_output(void) {
  if (fflush(stdout) == 0 && !ferror(stdout)) return;
  if (ad_cli_print("")) _exit(CLI_UNFINISHED);
}

/* Opens /dev/null in place of those of descriptors 0 to 2 that were closed when the program started. Otherwise the next
 * opened file would get such a number and receive the output. Read-only, so that writing still fails. */
static void hold_descriptors(void) {
  int fd = open("/dev/null", O_RDONLY);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDONLY);
  if (fd >= 0) close(fd);
}

static int has_stack(void) {
  struct rlimit stack;
  if (getrlimit(RLIMIT_STACK, &stack) || stack.rlim_cur >= STACK_KIB * 1024ul) return 1;
  fprintf(stderr,
          "addend: the stack limit is %lu KiB (ulimit -s), but addend needs at least %d KiB; type `ulimit -s 8192` and "
          "start addend again\n",
          (unsigned long)stack.rlim_cur / 1024, STACK_KIB);
  return 0;
}

/* Returns 1 if all options consist of printable characters. getopt prints an unknown option unescaped, and a pattern
 * such as * can turn a file's name into an option. */
static int has_plain_options(int argc, char **argv) {
  char typed[CLI_MESSAGE];
  for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
    size_t length = strcspn(argv[i], "=");
    if (argv[i][0] != '-' || length >= sizeof typed) continue;
    ad_printable(argv[i], typed, sizeof typed);
    if (!strncmp(typed, argv[i], length)) continue;
    fprintf(stderr, "addend: '%s' is not an option; if this is the name of a file, write ./%s\n", typed, typed);
    return 0;
  }
  return 1;
}

static int run_program(int argc, char **argv, const ad_cli_program *program) {
  ad_cli_command commands[CLI_COMMANDS_MAX];
  int count = commands_of(program, commands);
  if (argc < 2) return print_help(program, stderr), CLI_WRONG_CALL;
  if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help"))
    return print_help(program, stdout), ad_cli_print("");
  if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) return ad_cli_print(version);
  if (!strcmp(argv[1], "--completions")) return ad_cli_completions(program->name, commands, count, argv[2]);
  if (!has_plain_options(argc, argv)) return CLI_WRONG_CALL;
  for (int i = 0; i < count; i++)
    if (!strcmp(argv[1], commands[i].name)) return run_command(program, &commands[i], argc, argv);
  return refuse_command(program, argv[1]);
}

int ad_cli_main(int argc, char **argv, const ad_cli_program *program) {
  hold_descriptors();
  if (ad_cli_trainer_part.begin) ad_cli_trainer_part.begin(argv);
  prctl(PR_SET_NAME, program->name); /* if the program executed itself through /proc/self/exe, its name was "exe" */
  if (getenv(CLI_ERROR_FD)) prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (!has_stack()) return CLI_UNFINISHED;
  atexit(check_output);
  argp_err_exit_status = CLI_WRONG_CALL;
  argp_program_version = version;
  signal(SIGXFSZ, SIG_IGN); /* a write beyond the file size limit then returns an error instead of ending the process */
  signal(SIGPIPE, SIG_IGN); /* a write to a closed pipe (head -1) then returns an error, which ad_cli_print accepts */
  ad_cli_let_first_rank_speak();
  ad_set_log(ad_cli_log, NULL);
  int status = run_program(argc, argv, program);
  if (status != CLI_WRONG_CALL) ad_cli_ends_alone();
  return status;
}
