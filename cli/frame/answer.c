/* Writes a command's answer (output and errors) and chooses its exit status. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "addend/helpers.h"

/* Returns 1 if the reader of standard output has closed the pipe. (If a library did the write, its errno is lost by
 * then.) */
static int reader_is_gone(void) {
  struct pollfd output = {.fd = STDOUT_FILENO, .events = POLLOUT};
  return poll(&output, 1, 0) == 1 && output.revents & POLLERR;
}

/* Reports that standard output cannot be written, only at the first call: the process checks the output again at its
 * end. */
static int unwritten(int error) {
  static int is_reported;
  if (reader_is_gone()) return CLI_HOLDS; /* the reader (head -1) wanted no more, which is no error */
  if (!is_reported)
    fprintf(stderr, "addend: standard output cannot be written (%s)\n",
            error ? strerror(error) : "the reason is not known");
  is_reported = 1;
  return CLI_UNFINISHED;
}

int ad_cli_answer(int holds) { return ad_verdict_status(holds ? AD_MATCHES : AD_DOES_NOT_MATCH); }

int ad_cli_print(const char *text) {
  size_t length = strlen(text);
  int ends = !length || text[length - 1] == '\n';
  errno = 0;
  if (fputs(text, stdout) >= 0 && (ends || putchar('\n') != EOF) && fflush(stdout) == 0 && !ferror(stdout))
    return CLI_HOLDS;
  return unwritten(errno);
}

int ad_cli_print_path(const char *path) {
  char printable[CLI_MESSAGE];
  return ad_cli_print(isatty(STDOUT_FILENO) ? ad_printable(path, printable, sizeof printable) : path);
}

int ad_cli_return_text(ad_status status, const char *text) {
  const char *fd = getenv(CLI_ERROR_FD);
  return fd && dprintf(atoi(fd), "%s %s", ad_status_name(status), text) > 0;
}

int ad_cli_failed(ad_status status) {
  if (!ad_cli_return_text(status, ad_last_error())) fprintf(stderr, "addend: %s\n", ad_last_error());
  return status == AD_INVALID ? CLI_WRONG_CALL : CLI_UNFINISHED;
}
