/* Output on a terminal: colours and the progress bar. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/command.h"

enum { BAR_WIDTH = 24 };
static const double BAR_SECONDS = 0.05, QUIET_SECONDS = 5; /* shortest time between two bars on a terminal, and
                                                            * between two lines elsewhere */

/* Returns the seconds of a monotonic clock. libaddend has no public clock. */
static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int ad_cli_is_terminal(int fd) {
  const char *term = getenv("TERM");
  return isatty(fd) && !(term && !strcmp(term, "dumb"));
}

int ad_cli_takes_colour(int fd) {
  const char *refused = getenv("NO_COLOR");
  return ad_cli_is_terminal(fd) && !(refused && *refused);
}

static void print_bar(const char *label, int64_t done, int64_t of, const char *text) {
  char bar[BAR_WIDTH + 1];
  int filled = of > 0 ? (int)(BAR_WIDTH * done / of) : 0;
  memset(bar, '.', BAR_WIDTH);
  memset(bar, '#', (size_t)filled);
  bar[BAR_WIDTH] = 0;
  fprintf(stderr, "\r\033[K%s [%s] %lld/%lld %s", label, bar, (long long)done, (long long)of, text);
  fflush(stderr);
}

/* On a terminal, redraws the bar at most every BAR_SECONDS. Elsewhere a line is printed every QUIET_SECONDS, the
 * first one after QUIET_SECONDS, so that short work prints none. */
void ad_cli_progress(const char *label, int64_t done, int64_t of, const char *text) {
  static double last;
  int terminal = ad_cli_is_terminal(STDERR_FILENO);
  double time = now();
  if (last == 0 && !terminal) last = time;
  if (time - last < (terminal ? BAR_SECONDS : QUIET_SECONDS)) return;
  last = time;
  if (terminal)
    print_bar(label, done, of, text);
  else
    fprintf(stderr, "%s %lld/%lld%s%s\n", label, (long long)done, (long long)of, *text ? " " : "", text);
}

/* Removes the bar, even if this process drew none: another rank may have drawn it. */
void ad_cli_progress_end(void) {
  if (ad_cli_is_terminal(STDERR_FILENO)) fprintf(stderr, "\r\033[K");
}
