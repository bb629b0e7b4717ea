/* Checks the files that options name for writing. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/command.h"

/* Returns why the path cannot be written as a regular file, or NULL if it can. Devices and pipes are refused: a device
 * would lose the output, and writing to a pipe without a reader never ends. */
static const char *no_file(const char *path) {
  struct stat status;
  if (lstat(path, &status)) return NULL;
  if (S_ISDIR(status.st_mode)) return "a folder; name a file in that folder";
  if (S_ISLNK(status.st_mode)) return "a symbolic link; name the file that the link leads to";
  return S_ISREG(status.st_mode) ? NULL : "not a regular file; name another file";
}

/* Returns 1 if `name` is the name of a file that a run's folder has, or that addend makes from a run's files. */
static int is_of_a_run(const char *name) {
  static const char *const names[] = {"metrics.jsonl", "run.json",    "trace.json", "weights.safetensors",
                                      "check.json",    "report.html", ".lock"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!strcmp(name, names[i])) return 1;
  return 0;
}

const char *ad_cli_parse_out(const char *option, const char *argument, const char *own, struct argp_state *state) {
  const char *slash = strrchr(argument, '/'), *name = slash ? slash + 1 : argument, *reason = no_file(argument);
  if (!*argument) ad_cli_wrong(state, "%s is empty, but must be the name of a file", option);
  if (!*name) reason = "a folder; name a file in that folder";
  if (reason) ad_cli_wrong(state, "%s %s: the path is %s", option, argument, reason);
  if (strcmp(name, own) != 0 && is_of_a_run(name))
    ad_cli_wrong(state,
                 "%s %s: %s is the name of another file of a run, which would be lost; give "
                 "another name",
                 option, argument, name);
  return argument;
}
