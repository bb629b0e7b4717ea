/* What was found as the JSON document that users and scripts rely on. A number that is not finite is null. */
#ifndef DIFF_DOCUMENT_H
#define DIFF_DOCUMENT_H
#include <jansson.h>
#include "diff/verdict.h"

json_t *ad_diff_number(double value);
json_t *ad_diff_head(const ad_dump *dump);
/* One parameter; `reference` may be NULL. */
json_t *ad_diff_param(const ad_parts *parts, const ad_judged *list, const ad_verdict *verdict);
/* One of which nothing is known but this. */
json_t *ad_diff_without_sum(const ad_dump *dump, const ad_dump_param *param);

#endif
