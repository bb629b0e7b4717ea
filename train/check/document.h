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
  const char *not_smooth;       /* why no slope was taken although the program is custom; NULL: no such reason */
  const ad_mutants *mutants;    /* NULL: no mutants were tried */
  int64_t world;
  const char *backend;
  double seconds;
} ad_findings;

/* Returns why the check does not pass although no judged number is wrong: there was nothing to judge. Returns NULL if
 * there was. */
const char *ad_findings_reason(const ad_findings *findings);
/* Returns the verdict for the exit status of `addend check`: 1 if the check passes and no mutant survived. */
int ad_findings_hold(const ad_findings *findings);
/* Returns the document, or NULL if there is no memory. The caller releases it with json_decref. */
json_t *ad_findings_document(const ad_findings *findings);

#endif
