/* Running gnuplot with a script and an answer in nameless files: no shell, no pipe that could fill up. */
#include "train/gnuplot.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/error.h"
#include "base/memory.h"

static ad_status start(const posix_spawn_file_actions_t *actions, pid_t *out) {
  char name[] = "gnuplot";
  char *argv[] = {name, NULL};
  int reason = posix_spawnp(out, name, actions, NULL, argv, environ);
  if (!reason) return AD_OK;
  return ad_fail(AD_SYSTEM, "gnuplot cannot be started: %s; the package gnuplot-nox has it", strerror(reason));
}

static ad_status await(pid_t child) {
  int result;
  while (waitpid(child, &result, 0) < 0) {
    if (errno != EINTR) return ad_fail(AD_SYSTEM, "gnuplot cannot be waited for: %s", strerror(errno));
  }
  if (WIFEXITED(result) && WEXITSTATUS(result) == 0) return AD_OK;
  return ad_fail(AD_SYSTEM, "gnuplot ended with %s %d", WIFEXITED(result) ? "exit status" : "signal",
                 WIFEXITED(result) ? WEXITSTATUS(result) : WTERMSIG(result));
}

static ad_status run(FILE *script, FILE *answer) {
  posix_spawn_file_actions_t actions;
  if (posix_spawn_file_actions_init(&actions)) return ad_fail(AD_MEMORY, "no memory to start gnuplot");
  pid_t child;
  ad_status status = AD_OK;
  if (posix_spawn_file_actions_adddup2(&actions, fileno(script), STDIN_FILENO) ||
      posix_spawn_file_actions_adddup2(&actions, fileno(answer), STDOUT_FILENO) ||
      posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0)) {
    status = ad_fail(AD_MEMORY, "no memory to start gnuplot");
  }
  if (!status) status = start(&actions, &child);
  posix_spawn_file_actions_destroy(&actions);
  return status ? status : await(child);
}

// From "<svg" on: what stands before it has no place inside a page.
static ad_status read_svg(FILE *answer, char **out) {
  long size = fseek(answer, 0, SEEK_END) ? -1 : ftell(answer);
  if (size < 0) return ad_fail(AD_IO, "gnuplot's answer cannot be read: %s", strerror(errno));
  char *text;
  AD_TRY(ad_new((size_t)size + 1, &text));
  rewind(answer);
  size_t got = fread(text, 1, (size_t)size, answer);
  text[got] = 0;
  char *svg = strstr(text, "<svg");
  if (!svg || !strstr(svg, "</svg>")) {
    ad_release(text);
    return ad_fail(AD_SYSTEM, "gnuplot printed no picture (%ld bytes)", size);
  }
  memmove(text, svg, strlen(svg) + 1);
  *out = text;
  return AD_OK;
}

static ad_status draw(void (*write)(FILE *script, const void *data), const void *data, FILE *script, FILE *answer,
                      char **svg) {
  if (!script || !answer) return ad_fail(AD_IO, "no temporary file for gnuplot: %s", strerror(errno));
  write(script, data);
  if (fflush(script) || ferror(script))
    return ad_fail(AD_IO, "gnuplot's script cannot be written: %s", strerror(errno));
  rewind(script);
  AD_TRY(run(script, answer));
  return read_svg(answer, svg);
}

ad_status ad_gnuplot(void (*write)(FILE *script, const void *data), const void *data, char **svg) {
  FILE *script = tmpfile(), *answer = tmpfile();
  ad_status status = draw(write, data, script, answer, svg);
  if (script) fclose(script);
  if (answer) fclose(answer);
  return status;
}
