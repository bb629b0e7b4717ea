/* Writes documents and pictures to the files that options name. */
#include <stdio.h>

#include "trainer.h"
#include "addend/helpers.h"

int ad_cli_write(const char *what, const char *text, const char *path) {
  if (!ad_write_text(text, path)) return CLI_HOLDS;
  fprintf(stderr, "addend: %s was not written (%s)\n", what, ad_last_error());
  return CLI_UNFINISHED;
}
