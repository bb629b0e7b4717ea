/* Pages: one HTML file each, with everything that it needs inside, and a place where its data go. */
#ifndef FILES_PAGE_H
#define FILES_PAGE_H
#include <jansson.h>
#include <stddef.h>
#include "addend/status.h"
#include "base/internal.h"

/* What stands before the data, and what after, as cmake/page.cmake puts it together. */
typedef struct ad_page {
  const unsigned char *head, *tail;
  size_t head_size, tail_size;
} ad_page;

/* Writes the page with these data; whatever texts they have, none is read as markup. AD_IO names the path. */
AD_INTERNAL ad_status ad_page_write(const ad_page *page, const json_t *data, const char *path) AD_CHECKED;
/* The same as a text, the caller's. */
ad_status ad_page_text(const ad_page *page, const json_t *data, char **out) AD_CHECKED;

#endif
