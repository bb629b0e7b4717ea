/* The dtype in which a job says that a sum is formed, beside what the sum's bits say. */
#ifndef DIFF_PROMISED_H
#define DIFF_PROMISED_H
#include <jansson.h>
#include "say/verdict.h"
#include "solve/formed.h"

/* Tests a sum whose counts are right and whose dtype is declared; *out is untested, without a reason, for any other. If
 * it was formed in a narrower dtype than the job itself asked for, for all axes that the sum goes over, or its result was
 * rounded to one, the verdict becomes `rounding`. A dtype that is a default of a library, or is said of some of the
 * axes, makes no sum wrong. */
ad_status ad_promised_judge(const ad_parts *parts, ad_verdict *verdict, ad_formed_found *out) AD_CHECKED;
/* Sets `holds`, `why` and `text`, and the counts of elements `tested` and `outside`, of those entries (ad_declared_rows)
 * that declare the tested dtype. `entries`: NULL if nothing is declared. */
void ad_promised_report(const ad_dump_param *param, const ad_formed_found *found, json_t *entries);

#endif
