/* Prints a text into memory that grows. */
#include "base/text_stream.h"

#include <stdlib.h>

ad_status ad_text_stream_open(const char *what, ad_text_stream *out) {
  *out = (ad_text_stream){.what = what};
  out->file = open_memstream(&out->text, &out->size);
  return out->file ? AD_OK : ad_fail(AD_MEMORY, "no memory for %s", what);
}

ad_status ad_text_stream_close(ad_text_stream *stream, ad_status status, char **out) {
  int is_cut = ferror(stream->file);
  is_cut |= fclose(stream->file) != 0 || !stream->text;
  if (!status && is_cut) status = ad_fail(AD_MEMORY, "no memory for %s", stream->what);
  if (status)
    free(stream->text);
  else
    *out = stream->text;
  return status;
}
