/* The kinds of verdicts and causes: what a sum holds, and what may be wrong with a gradient. This table is their only
 * list. C's enum and records (cause.c) and the map's words (cmake/causes.cmake) are made from it. Each kind has a page
 * of `addend explain`, audit/docs/explain/NAME.md, whose first line is its title; without the page nothing is built.
 * Tests compare with the table all other places that name kinds: audit/docs/dumps.md, the Python package,
 * lab/causes.py.
 */
#ifndef DIFF_CAUSES_H
#define DIFF_CAUSES_H

/* X(code, name, words, verdict, checked, counted), one row on one line:
 *   name     the kind's name in JSON, and the name of its page of `addend explain`
 *   words    the kind's description in the map of the HTML page
 *   verdict  the verdict on a parameter of this kind: RIGHT, CANNOT_TELL or WRONG
 *   checked  the kind under which `addend check` reports a cause of this kind
 *   counted  0 if no counts of the addends were found that give such a sum: a hook may have made it */
// clang-format off
#define AD_CAUSE_LIST(X) \
  X(RIGHT, "right", "right", RIGHT, UNKNOWN, 1) \
  X(AVERAGED, "averaged", "averaged", WRONG, AVERAGED, 1) \
  X(MISSING, "missing", "missing", WRONG, MISSING, 1) \
  X(DOUBLED, "doubled", "doubled", WRONG, DOUBLED, 1) \
  X(PARTIAL, "partial", "partial", WRONG, PARTIAL, 1) \
  X(WRONG_GROUP, "wrong_group", "wrong group", WRONG, WRONG_GROUP, 1) \
  X(LAST_MICROBATCH, "last_microbatch", "only the last microbatch", WRONG, MISSING, 1) \
  X(EARLIER_DIVIDED, "earlier_microbatches_divided", "earlier microbatches divided", WRONG, AVERAGED, 1) \
  X(OWN_ONLY, "own_only", "own addend only", WRONG, PARTIAL, 1) \
  X(REPLICAS_DIFFER, "replicas_differ", "replicas differ", WRONG, REPLICAS_DIFFER, 1) \
  X(OTHER_BATCHES, "other_batches", "other batches", WRONG, UNKNOWN, 1) \
  X(OWN_COUNT, "divided_by_own_count", "each rank divided by its own count", WRONG, AVERAGED, 1) \
  X(FACTOR, "factor", "another factor", WRONG, UNKNOWN, 1) \
  X(NOT_DISTINGUISHABLE, "not_distinguishable", "several fit equally well", WRONG, UNKNOWN, 1) \
  X(NOT_FITTED, "not_fitted", "not fitted", WRONG, UNKNOWN, 0) \
  X(IDENTICAL, "identical_addends", "cannot tell", CANNOT_TELL, UNKNOWN, 1) \
  X(NOT_OBSERVED, "not_observed", "nothing observed", CANNOT_TELL, UNKNOWN, 1) \
  X(NOT_JUDGED, "not_judged", "cannot tell", CANNOT_TELL, UNKNOWN, 1) \
  X(OTHER_OPERATION, "other_operation", "another operation", WRONG, UNKNOWN, 0) \
  X(SHIFTED, "shifted", "shifted", WRONG, UNKNOWN, 0) \
  X(OTHER_PARAMETERS, "other_parameters", "of other parameters", WRONG, UNKNOWN, 0) \
  X(OTHER_ROWS, "other_rows", "of other rows", WRONG, UNKNOWN, 0) \
  X(ONE_RANK, "one_rank", "right on one rank", WRONG, UNKNOWN, 1) \
  X(NO_SUM, "no_sum", "no sum", WRONG, UNKNOWN, 1) \
  X(ROUNDING, "rounding", "rounding", WRONG, ROUNDING, 1) \
  X(UNEXPLAINED, "unexplained", "unexplained", WRONG, UNKNOWN, 0) \
  X(UNKNOWN, "unknown", "unknown", WRONG, UNKNOWN, 1)
// clang-format on

typedef enum ad_cause_kind {
#define AD_CAUSE_CODE(code, name, words, verdict, checked, counted) AD_CAUSE_##code,
  AD_CAUSE_LIST(AD_CAUSE_CODE)
#undef AD_CAUSE_CODE
      AD_CAUSE_COUNT
} ad_cause_kind;

#endif
