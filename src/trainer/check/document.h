/* The document of `addend check --json`. */
#ifndef CHECK_DOCUMENT_H
#define CHECK_DOCUMENT_H
#include <jansson.h>

#include "check/sabotage.h"

/* Everything that a check found. */
typedef struct ad_findings {
  const ad_recipe *recipe;
  const ad_check_options *options;
  int64_t steps;
  const ad_proof *proof;
  const ad_proof *own;           /* in the recipe's own dtypes; NULL: it was not asked for, or nothing rounds */
  const ad_sabotages *sabotages; /* NULL: none were planted */
  int64_t world;
  const char *engine;
  double seconds;
} ad_findings;

/* Why the answer is no although no judged number is wrong: there was nothing to judge. NULL: there was. */
const char *ad_findings_reason(const ad_findings *findings);
/* What holds altogether, the exit status of `addend check`: the proof, and no planted mistake survived. */
int ad_findings_hold(const ad_findings *findings);
/* NULL when memory is out. Caller gives it up with json_decref. */
json_t *ad_findings_document(const ad_findings *findings);

#endif
