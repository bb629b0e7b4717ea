/* Writes the HTML page of a diff, with its map of parameters and ranks. The page's design is in map.html, map.css and
 * map.js. */
#include "files/page.h"

#include "addend/diff.h"
#include "base/error.h"

extern const ad_page ad_map_page;

static ad_status load(const char *json, json_t **document) {
  json_error_t where;
  *document = json_loads(json, 0, &where);
  return *document ? AD_OK
                   : ad_fail(AD_INVALID, "the document for the page of a dump is not valid JSON (%s)", where.text);
}

ad_status ad_diff_page(const char *json, const char *path) {
  json_t *document;
  AD_NEED(json, path);
  AD_TRY(load(json, &document));
  ad_status status = ad_page_write(&ad_map_page, document, path);
  json_decref(document);
  return status;
}

ad_status ad_diff_html(const char *json, char **out) {
  json_t *document;
  AD_NEED(json, out);
  AD_TRY(load(json, &document));
  ad_status status = ad_page_text(&ad_map_page, document, out);
  json_decref(document);
  return status;
}
