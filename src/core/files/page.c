/* Writes a page: its data between the two halves of text that are the same for all data. */
#include "files/page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/unfinished.h"
#include "base/locale.h"

typedef struct filled_page {
  const ad_page *page;
  const json_t *data;
} filled_page;

/* Writes a piece of the JSON with '<' as \u003c, because "</script>" would end the script element that holds the data.
 * In JSON '<' occurs only in texts. */
static int write_data(const char *text, size_t size, void *context) {
  FILE *file = context;
  const char *end = text + size;
  while (text < end) {
    const char *next = memchr(text, '<', (size_t)(end - text));
    size_t length = (size_t)((next ? next : end) - text);
    fwrite(text, 1, length, file);
    if (next) fputs("\\u003c", file);
    text += length + (next != NULL);
  }
  return ferror(file) ? -1 : 0;
}

static ad_status write_page(FILE *file, void *context) {
  const filled_page *filled = context;
  fwrite(filled->page->head, 1, filled->page->head_size, file);
  int failed =
      json_dump_callback(filled->data, write_data, file, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(15));
  fwrite(filled->page->tail, 1, filled->page->tail_size, file);
  return failed && !ferror(file) ? ad_fail(AD_MEMORY, "not enough memory to write the HTML page") : AD_OK;
}

ad_status ad_page_write(const ad_page *page, const json_t *data, const char *path) {
  filled_page filled = {page, data};
  ad_locale locale = ad_locale_enter();
  ad_status status = ad_unfinished_write(path, write_page, &filled, NULL);
  ad_locale_leave(locale);
  return status;
}

ad_status ad_page_text(const ad_page *page, const json_t *data, char **out) {
  filled_page filled = {page, data};
  char *text = NULL;
  size_t size = 0;
  ad_locale locale = ad_locale_enter();
  FILE *file = open_memstream(&text, &size);
  ad_status status = file ? write_page(file, &filled) : ad_fail(AD_MEMORY, "no memory for a page");
  if (file && fclose(file) && !status) status = ad_fail(AD_MEMORY, "no memory for a page");
  ad_locale_leave(locale);
  if (status) free(text);
  if (!status) *out = text;
  return status;
}
