/* The page: the runs' documents between the two halves of what is the same for all pages. */
#include "addend/report.h"

#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "io/unfinished.h"
#include "recipe/locale.h"
#include "report/document.h"
#include "report/page.h"

/* The documents stand in a script element, which "</script>" would end. In JSON '<' is in texts only. */
static int write_data(const char *text, size_t size, void *context) {
  FILE *page = context;
  const char *end = text + size;
  while (text < end) {
    const char *next = memchr(text, '<', (size_t)(end - text));
    size_t length = (size_t)((next ? next : end) - text);
    fwrite(text, 1, length, page);
    if (next) fputs("\\u003c", page);
    text += length + (next != NULL);
  }
  return ferror(page) ? -1 : 0;
}

static ad_status write_page(FILE *page, void *context) {
  fwrite(ad_page_head, 1, ad_page_head_size, page);
  int failed =
      json_dump_callback(context, write_data, page, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(15));
  fwrite(ad_page_tail, 1, ad_page_tail_size, page);
  return failed && !ferror(page) ? ad_fail(AD_MEMORY, "no memory to write the report") : AD_OK;
}

static ad_status add_run(json_t *runs, const char *folder) {
  json_t *run;
  AD_TRY(ad_report_document(folder, &run));
  return json_array_append_new(runs, run) ? ad_fail(AD_MEMORY, "no memory for the report of %s", folder) : AD_OK;
}

static ad_status add_runs(json_t *runs, const char *const *folders, size_t count) {
  for (size_t i = 0; i < count; i++) AD_TRY(add_run(runs, folders[i]));
  return AD_OK;
}

ad_status ad_report_write(const char *const *folders, size_t count, const char *path) {
  AD_NEED(folders, path);
  json_t *runs = json_array();
  ad_locale locale = ad_locale_enter();
  ad_status status = runs ? add_runs(runs, folders, count) : ad_fail(AD_MEMORY, "no memory for a report");
  if (!status) status = ad_unfinished_write(path, write_page, runs, NULL);
  ad_locale_leave(locale);
  json_decref(runs);
  return status;
}
