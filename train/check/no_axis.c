/* Finds why a cause, or a mutant, is reported without an axis: the measured numbers are the same along all axes, or
 * depend on something other than an axis, or fit several axes. */
#include "check/no_axis.h"

#include <math.h>
#include <string.h>

static const struct {
  const char *name, *clause;
} reasons[] = {
#define AD_NO_AXIS_TEXT(code, name, clause) {name, clause},
    AD_NO_AXIS_LIST(AD_NO_AXIS_TEXT)
#undef AD_NO_AXIS_TEXT
};

const char *ad_no_axis_name(ad_no_axis why) { return reasons[why].name; }

const char *ad_no_axis_clause(const char *name) {
  for (size_t i = 0; name && i < sizeof reasons / sizeof *reasons; i++)
    if (!strcmp(reasons[i].name, name)) return reasons[i].clause;
  return "";
}

ad_no_axis ad_cause_no_axis(const ad_cause *cause) {
  if (cause->axes) return AD_AXIS_IS_NAMED;
  if (cause->no_axis) return cause->no_axis;
  if (cause->kind == AD_CAUSE_ROUNDING) return AD_NO_AXIS_ROUNDING;
  return strcmp(cause->place, AD_MICROBATCHES) ? AD_NO_AXIS_NOT_SHOWN : AD_NO_AXIS_MICROBATCHES;
}

ad_axes ad_causes_axes(const ad_causes *causes, ad_no_axis *why) {
  int differ = 0, reasons_differ = 0;
  *why = AD_NO_AXIS_NO_CAUSE;
  if (!causes->count) return 0;
  const ad_cause *first = &causes->list[0];
  *why = ad_cause_no_axis(first);
  for (int i = 0; i < causes->count; i++) {
    const ad_cause *cause = &causes->list[i];
    differ |= cause->axes != first->axes;
    reasons_differ |= ad_cause_no_axis(cause) != *why;
  }
  if (reasons_differ) *why = AD_NO_AXIS_NONE_NAMED;
  if (differ) *why = AD_NO_AXIS_SEVERAL;
  return differ ? 0 : first->axes;
}

ad_axes ad_mutant_axes(const ad_mutant *mutant, ad_no_axis *why) {
  *why = mutant->killed_by == AD_KILLED_BY_PROTOCOL ? AD_NO_AXIS_PROTOCOL : AD_NO_AXIS_NO_NUMBER;
  return mutant->killed_by == AD_KILLED_BY_NUMBER ? ad_causes_axes(&mutant->causes, why) : 0;
}

static int is_other(const json_t *count, double than) {
  return json_is_number(count) && !(fabs(json_number_value(count) - than) <= 1e-4 * fmax(1, fabs(than)));
}

/* Returns the first known count of this microbatch or, if `microbatch` is -1, of any microbatch; NaN if none is
 * known. */
static double first_count(const json_t *counts, int64_t microbatch) {
  const json_t *row, *count;
  size_t rank, m;
  json_array_foreach(counts, rank, row) json_array_foreach(row, m, count) {
    if (json_is_number(count) && (microbatch < 0 || m == (size_t)microbatch)) return json_number_value(count);
  }
  return NAN;
}

ad_no_axis ad_no_axis_of_counts(const json_t *judged) {
  const json_t *counts = json_object_get(judged, "counts"), *row, *count;
  int differ = 0, ranks_differ = 0;
  double any = first_count(counts, -1);
  size_t rank, m;
  if (isnan(any)) return AD_NO_AXIS_NOT_SHOWN;
  json_array_foreach(counts, rank, row) json_array_foreach(row, m, count) {
    differ |= is_other(count, any);
    ranks_differ |= is_other(count, first_count(counts, (int64_t)m));
  }
  return !differ ? AD_NO_AXIS_EVERY_ADDEND : !ranks_differ ? AD_NO_AXIS_MICROBATCHES : AD_NO_AXIS_NOT_SHOWN;
}
