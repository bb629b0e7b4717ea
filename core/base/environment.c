/* Reads and checks environment variables whose value is a number or a folder. Other variables are checked where they
 * are used. */
#include "base/environment.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/error.h"

/* A variable whose value is a number from `least` to `most`; `words` is this range in words, for messages. */
typedef struct number_variable {
  const char *name;
  uint64_t least, most;
  const char *words;
} number_variable;

static const number_variable numbers[] = {
    {"ADDEND_STAGING", 0, 1, "0 or 1"},
    {"ADDEND_ADDRESSES", 1, 16384, "a number of GiB from 1 to 16384"},
    {"ADDEND_BLAS_THREADS", 1, 1024, "a number from 1 to 1024"},
    {"ADDEND_HOSTILE", 0, UINT32_MAX, "a number from 0 to 4294967295"},
    {"ADDEND_DUMP_STEP", 0, UINT32_MAX, "a number from 0 to 4294967295"},
};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

const char *ad_environment_text(const char *name) {
  const char *text = getenv(name);
  return text && *text ? text : NULL;
}

static int read_number(const number_variable *variable, const char *text, uint64_t *out) {
  char *end;
  errno = 0;
  *out = strtoull(text, &end, 10);
  return isdigit((unsigned char)*text) && !*end && !errno && *out >= variable->least && *out <= variable->most;
}

uint64_t ad_environment_number(const char *name, uint64_t otherwise) {
  const char *text = ad_environment_text(name);
  uint64_t number;
  for (int i = 0; text && i < NUMBERS; i++)
    if (!strcmp(name, numbers[i].name) && read_number(&numbers[i], text, &number)) return number;
  return otherwise;
}

static ad_status check_number(const number_variable *variable) {
  const char *text = ad_environment_text(variable->name);
  uint64_t number;
  if (!text || read_number(variable, text, &number)) return AD_OK;
  return ad_fail(AD_INVALID, "%s in the environment is \"%s\", but must be %s", variable->name, text, variable->words);
}

static ad_status check_folder(const char *name) {
  const char *path = ad_environment_text(name);
  struct stat found;
  if (!path || (!stat(path, &found) && S_ISDIR(found.st_mode) && !access(path, W_OK | X_OK))) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s in the environment is \"%s\", but must be a folder that can be written to; set another folder, or "
                 "unset the variable",
                 name, path);
}

ad_status ad_environment_check(void) {
  for (int i = 0; i < NUMBERS; i++) AD_TRY(check_number(&numbers[i]));
  AD_TRY(check_folder("ADDEND_FLIGHT_DIR"));
  return check_folder("ADDEND_DUMP");
}
