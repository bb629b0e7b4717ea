/* The page of `addend diff --html`: a map of parameters and ranks, coloured by how often each addend was counted. */
#ifndef DIFF_PAGE_H
#define DIFF_PAGE_H
#include <jansson.h>
#include "addend/status.h"

/* `document`: what `addend diff --json` prints (docs/dumps.md). AD_IO names the path. */
ad_status ad_diff_page(const json_t *document, const char *path) AD_CHECKED;

#endif
