/* Writes the report: an HTML page that contains the documents of the runs. */
#include "addend/report.h"

#include "base/error.h"
#include "base/unfinished.h"
#include "base/locale.h"
#include "report/document.h"
#include "files/page.h"

extern const ad_page ad_report_page; /* cmake/Pages.cmake makes its source */

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
  if (!status) status = ad_page_write(&ad_report_page, runs, path);
  ad_locale_leave(locale);
  json_decref(runs);
  return status;
}

static ad_status put_text(FILE *file, void *context) {
  fputs(context, file);
  return AD_OK;
}

ad_status ad_write_text(const char *text, const char *path) {
  AD_NEED(text, path);
  return ad_unfinished_write(path, put_text, (void *)text, NULL);
}
