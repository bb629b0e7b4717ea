/* Writes a page: its data, between the text before them and the text after them, which are the same for all data. */
#include "files/page.h"

#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/printable.h"
#include "base/text_stream.h"
#include "base/unfinished.h"
#include "base/locale.h"

typedef struct filled_page {
  const ad_page *page;
  const json_t *data;
} filled_page;

/* Writes a piece of the JSON. '<' is written as \u003c, because "</script>" would end the script element that contains
 * the data. Characters beyond ASCII that control a terminal (ad_control_at) are written as \xHH, as in ad_printable;
 * JSON itself escapes those of ASCII. All these occur only in texts, and no piece ends within a character. */
static int write_data(const char *text, size_t size, void *context) {
  FILE *file = context;
  for (const char *end = text + size; text < end; text++) {
    unsigned code;
    size_t bytes = (unsigned char)*text < 0x80 ? 0 : ad_control_at(text, &code);
    for (size_t i = 0; i < bytes; i++) fprintf(file, "\\\\x%02x", (unsigned char)text[i]);
    if (bytes)
      text += bytes - 1;
    else if (*text == '<')
      fputs("\\u003c", file);
    else
      fputc(*text, file);
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
  ad_text_stream to;
  AD_TRY(ad_text_stream_open("a page", &to));
  ad_locale locale = ad_locale_enter();
  ad_status status = write_page(to.file, &filled);
  ad_locale_leave(locale);
  return ad_text_stream_close(&to, status, out);
}
