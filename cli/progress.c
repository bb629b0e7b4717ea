/* The progress line. */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "command.h"

enum { BAR_WIDTH = 24, QUIET_SECONDS = 5 };

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
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

void cli_progress(const char *label, int64_t done, int64_t of, const char *text) {
  static double last;
  double time = now(), pause = isatty(STDERR_FILENO) ? 0.05 : QUIET_SECONDS;
  if (time - last < pause && done < of) return;
  last = time;
  if (isatty(STDERR_FILENO))
    print_bar(label, done, of, text);
  else
    fprintf(stderr, "%s %lld/%lld %s\n", label, (long long)done, (long long)of, text);
}

void cli_progress_end(void) {
  if (isatty(STDERR_FILENO)) fprintf(stderr, "\n");
}
