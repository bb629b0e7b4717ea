/* Writing the map. What it looks like is in map.html, map.css and map.js. */
#include "diff/page.h"

#include "report/page.h"

extern const ad_page ad_map_page;

ad_status ad_diff_page(const json_t *document, const char *path) { return ad_page_write(&ad_map_page, document, path); }
