/* Writes the document of `addend check --json`. */
#ifndef CHECK_DOCUMENT_H
#define CHECK_DOCUMENT_H
#include <jansson.h>

#include "check/bits.h"

/* Everything that a check found; all pointers are borrowed. */
typedef struct ad_findings {
  const ad_recipe *recipe;
  const ad_check_options *options;
  int64_t steps;
  const ad_check_result *result;
  /* the check in the recipe's own dtypes; NULL: it was not asked for, or the recipe rounds nothing */
  const ad_check_result *own;
  const ad_check_result *slope; /* the directional check of a custom program, beside `result`; NULL: there was none */
  /* the check for bits of a recipe with train.leaves; NULL: bits were not compared */
  const ad_bits_finding *bits;
  /* why the slope of a custom program's loss was not compared; NULL: there is no such reason */
  const char *not_smooth;
  const ad_mutants *mutants; /* NULL: no mutants were tried */
  int64_t world;
  const char *backend;
  double seconds;
} ad_findings;

/* Returns NULL if there was something to judge. Otherwise returns why the check does not pass although no judged number
 * is wrong. */
const char *ad_findings_reason(const ad_findings *findings);
/* Returns the verdict for the exit status of `addend check`: 1 if the check passes and no mutant survived. */
int ad_findings_hold(const ad_findings *findings);
/* Returns the document, or NULL if there is no memory. The caller releases it with json_decref. */
json_t *ad_findings_document(const ad_findings *findings);

#endif
