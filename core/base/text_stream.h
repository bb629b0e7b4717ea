/* A text of any length, printed with the functions for files. */
#ifndef BASE_TEXT_STREAM_H
#define BASE_TEXT_STREAM_H
#include <stddef.h>
#include <stdio.h>
#include "addend/status.h"
#include "base/internal.h"

typedef struct ad_text_stream {
  FILE *file;
  const char *what; /* a name of the text for messages, such as "the list of pages" */
  char *text;       /* what was printed before the last fflush(file) */
  size_t size;
} ad_text_stream;

/* Opens the stream; print to out->file. *out must not be moved until the stream is closed. After AD_MEMORY there is
 * nothing to close. */
AD_INTERNAL AD_CHECKED ad_status ad_text_stream_open(const char *what, ad_text_stream *out);
/* Closes a stream that was opened. `status` is the status of printing; it is returned unless it is AD_OK. AD_MEMORY if
 * there was no memory for the whole text. On success *out is the text (free it with free()); otherwise *out is
 * unchanged. */
AD_INTERNAL AD_CHECKED ad_status ad_text_stream_close(ad_text_stream *stream, ad_status status, char **out);

#endif
