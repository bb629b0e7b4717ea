/* The map: its page with the document. What it looks like is in map.html, map.css and map.js. */
#include "files/page.h"

#include "addend/diff.h"
#include "base/error.h"

extern const ad_page ad_map_page;

ad_status ad_diff_page(const char *json, const char *path) {
  json_error_t where;
  AD_NEED(json, path);
  json_t *document = json_loads(json, 0, &where);
  if (!document) return ad_fail(AD_INVALID, "ad_diff_page: this is no JSON: %s", where.text);
  ad_status status = ad_page_write(&ad_map_page, document, path);
  json_decref(document);
  return status;
}
