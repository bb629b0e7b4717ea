/* The document of `addend check --json`. */
#ifndef CHECK_DOCUMENT_H
#define CHECK_DOCUMENT_H
#include <jansson.h>

#include "check/mutants.h"

/* Everything that a check found; borrows all of it. */
typedef struct ad_findings {
  const ad_recipe *recipe;
  const ad_check_options *options;
  int64_t steps;
  const ad_check_result *result;
  const ad_check_result *own;   /* the check in the recipe's own dtypes; NULL: not asked for, or nothing rounds */
  const ad_check_result *slope; /* the directional check of a custom program, beside `result`; NULL: it was not taken */
  const char *not_smooth;       /* why it was not taken although the program is custom; NULL: for no such reason */
  const ad_mutants *mutants;    /* NULL: no mutants were tried */
  int64_t world;
  const char *backend;
  double seconds;
} ad_findings;

/* Why the verdict is "does not hold" although no judged number is wrong: there was nothing to judge. NULL: there
 * was. */
const char *ad_findings_reason(const ad_findings *findings);
/* The verdict, from which `addend check` takes its exit status: the check holds and no mutant survived. */
int ad_findings_hold(const ad_findings *findings);
/* NULL: no memory. The caller releases the document with json_decref. */
json_t *ad_findings_document(const ad_findings *findings);

#endif
