/* What was found as the JSON document that users and scripts rely on. A number that is not finite is null. */
#ifndef DIFF_DOCUMENT_H
#define DIFF_DOCUMENT_H
#include <jansson.h>
#include "diff/alike.h"
#include "diff/reference.h"
#include "diff/verdict.h"

json_t *ad_diff_number(double value);

/* The answers of a diff, for each parameter and for the whole. */
typedef enum ad_answer { AD_ANSWER_RIGHT, AD_ANSWER_CANNOT_TELL, AD_ANSWER_WRONG } ad_answer;
const char *ad_answer_name(ad_answer answer);
ad_answer ad_diff_answer(const ad_verdict *verdict, const ad_compared *compared);
json_t *ad_diff_head(const ad_dump *dump, int has_reference);
/* One parameter. `compared`: with the reference. `alike`: its addends that are equal. */
json_t *ad_diff_param(const ad_parts *parts, const ad_judged *list, const ad_verdict *verdict,
                      const ad_compared *compared, const ad_alike *alike);
/* One of which the dump says that nothing can be told. */
json_t *ad_diff_unjudged(const ad_dump *dump, const ad_dump_param *param);
/* One that no optimizer gets, or of which `missing` elements. */
json_t *ad_diff_without_sum(const ad_dump *dump, const ad_dump_param *param, int64_t missing);

#endif
