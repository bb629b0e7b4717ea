/* Writes documents and pictures to the files that options name. */
#include <stdio.h>
#include <string.h>

#include "trainer.h"
#include "addend/helpers.h"

int ad_cli_write(const char *what, const char *text, const char *path) {
  if (!ad_write_text(text, path)) return CLI_HOLDS;
  char printable[CLI_MESSAGE];
  const char *reason = strrchr(ad_last_error(), ':'); /* only the reason: the rest of the message has the path, which
                                                       * is printed here */
  fprintf(stderr, "addend: %s cannot be written to %s:%s\n", what, ad_printable(path, printable, sizeof printable),
          reason ? reason + 1 : " no memory");
  return CLI_UNFINISHED;
}
