/* Pages: each is one self-contained HTML file that contains its data. */
#ifndef FILES_PAGE_H
#define FILES_PAGE_H
#include <jansson.h>
#include <stddef.h>
#include "addend/status.h"
#include "base/internal.h"

/* A page's text before and after its data, as cmake/page.cmake assembles it. */
typedef struct ad_page {
  const unsigned char *head, *tail;
  size_t head_size, tail_size;
} ad_page;

/* Writes the page with these data; no text in the data is taken for markup. AD_IO names the path. */
AD_INTERNAL ad_status ad_page_write(const ad_page *page, const json_t *data, const char *path) AD_CHECKED;
/* Makes the page of ad_page_write as a text, which the caller frees with free(). */
ad_status ad_page_text(const ad_page *page, const json_t *data, char **out) AD_CHECKED;

#endif
