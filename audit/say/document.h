/* The JSON document of a diff, an interface for users and scripts. A number that is not finite is null. */
#ifndef DIFF_DOCUMENT_H
#define DIFF_DOCUMENT_H
#include <jansson.h>
#include "read/identical.h"
#include "say/reference.h"
#include "say/verdict.h"

/* Returns a JSON number, or null if the value is not finite. */
json_t *ad_diff_number(double value);

const char *ad_answer_name(ad_answer answer);
/* Returns the answer for a parameter, from its verdict and its comparison with the reference. */
ad_answer ad_diff_answer(const ad_verdict *verdict, const ad_compared *compared);
/* Returns a document with the first keys of a diff: world, mesh, step, and which files the dump has. */
json_t *ad_diff_head(const ad_dump *dump, int has_reference);
/* Returns the document of one parameter. `list`: its judged parts; `compared`: its comparison with the reference;
 * `identical`: its bit-identical addends. */
json_t *ad_diff_param(const ad_parts *parts, const ad_judged *list, const ad_verdict *verdict,
                      const ad_compared *compared, const ad_identical *identical);
/* Returns the document of a parameter that the dump declares impossible to judge (addend.unjudged). */
json_t *ad_diff_unjudged(const ad_dump *dump, const ad_dump_param *param);
/* Returns the document of a parameter that is in no rank's sum (`missing` is 0), or of which `missing` elements are
 * in no rank's sum. */
json_t *ad_diff_without_sum(const ad_dump *dump, const ad_dump_param *param, int64_t missing);

#endif
