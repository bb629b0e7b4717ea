/* Reads tables from files, JSON or CSV by their first character, and writes them as texts. */
#include "schedule/files.h"

#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/text_stream.h"
#include "files/file.h"

static int is_json(const char *text, size_t size) {
  size_t at = 0;
  while (at < size && strchr(" \t\r\n", text[at]) && text[at]) at++;
  return at < size && text[at] == '{';
}

ad_status ad_table_parse(const char *text, size_t size, const char *name, ad_table **out, size_t *overlapped) {
  size_t count = 0;
  AD_NEED(text, name, out);
  if (size > AD_TABLE_FILE_MAX)
    return ad_fail(
        AD_INVALID,
        "%s has %zu bytes, but the file of a schedule table may have at most %d bytes; write a smaller table", name,
        size, AD_TABLE_FILE_MAX);
  if (is_json(text, size))
    AD_TRY(ad_table_json_parse(text, size, name, out, &count));
  else
    AD_TRY(ad_table_csv_parse(text, size, name, out, &count));
  if (overlapped) *overlapped = count;
  return AD_OK;
}

ad_status ad_table_read(const char *path, ad_table **out, size_t *overlapped) {
  char *text;
  int64_t size;
  AD_NEED(path, out);
  AD_TRY(ad_file_read(path, AD_TABLE_FILE_MAX, &text, &size));
  ad_status status = ad_table_parse(text, (size_t)size, path, out, overlapped);
  ad_release(text);
  return status;
}

ad_status ad_table_write_text(const ad_table *table, void (*write)(const ad_table *table, FILE *file), char **out) {
  ad_text_stream to;
  AD_TRY(ad_text_stream_open("the text of a table", &to));
  write(table, to.file);
  return ad_text_stream_close(&to, AD_OK, out);
}
