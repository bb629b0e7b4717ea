/* Verdicts on sums that no counts of their addends give, but that have a pattern (solve/patterns.h). */
#include <math.h>
#include <string.h>
#include "say/cause.h"
#include "say/verdict_case.h"

/* Returns 1 if two replicas have the same pattern. For OTHER_ADDENDS of one rank, the parameters may differ. */
static int same_pattern(const ad_pattern *a, const ad_pattern *b) {
  if (a->kind == AD_PATTERN_OTHER_ADDENDS) return b->kind == a->kind && a->rank == b->rank;
  return a->kind == b->kind && a->axes == b->axes && a->factor == b->factor && a->shift == b->shift &&
         a->rank == b->rank && a->name == b->name;
}

/* Returns 1 if each part that no counts explain has the pattern. */
static int all_have(const ad_case *c, const ad_pattern *pattern) {
  for (size_t i = 0; i < c->count; i++) {
    const ad_found_patterns *found = &c->list[i].why.patterns;
    int has = c->list[i].holds || c->list[i].why.explains;
    for (size_t p = 0; p < found->count && !has; p++) has = same_pattern(&found->list[p], pattern);
    if (!has) return 0;
  }
  return 1;
}

/* Adds a cause whose document also names the operation, as `operation`. */
static void add_operation(ad_case *c, const ad_pattern *pattern) {
  const char *what = pattern->kind == AD_PATTERN_MAXIMUM   ? "maximum"
                     : pattern->kind == AD_PATTERN_MINIMUM ? "minimum"
                                                           : "product";
  char names[AD_VERDICT_TEXT / 4], text[AD_VERDICT_TEXT], times[48] = "";
  if (pattern->factor != 1 && pattern->factor != c->parts->param->expect)
    snprintf(times, sizeof times, ", times %.6g", pattern->factor);
  ad_case_axes(c, pattern->axes, names, sizeof names);
  snprintf(text, sizeof text, "the %s of the ranks along %s%s, and not their sum", what, names, times);
  json_t *cause = ad_cause_document(ad_cause_name(AD_CAUSE_OTHER_OPERATION), names, NAN, text, "");
  json_object_set_new(cause, "operation", json_string(what));
  ad_case_add_document(c, cause);
  json_decref(cause);
}

static void add_shift(ad_case *c, const ad_pattern *pattern) {
  long long shift = (long long)pattern->shift, by = shift < 0 ? -shift : shift;
  ad_case_add(c, AD_CAUSE_SHIFTED, 0, NAN, "",
              "the right sum, shifted by %lld element%s: element i holds what element i %c %lld should hold", by,
              by == 1 ? "" : "s", shift < 0 ? '-' : '+', by);
}

static void add_moved(ad_case *c, const ad_pattern *pattern) {
  long long shift = (long long)pattern->shift, by = shift < 0 ? -shift : shift;
  char others[96] = "";
  if (pattern->more)
    snprintf(others, sizeof others, "; %zu other part%s moved by %s", pattern->more,
             pattern->more == 1 ? " is" : "s are", pattern->more == 1 ? "another distance" : "other distances");
  ad_case_add(c, AD_CAUSE_SHIFTED, 0, NAN, "",
              "the right sum, with parts of it at other places: where a part is moved, element i holds what element "
              "i %c %lld should hold%s",
              shift < 0 ? '-' : '+', by, others);
}

/* Prints "`up.weight`" or "`up.weight` and 2 other parameters". */
static const char *print_names(const ad_pattern *pattern, char *out, size_t size) {
  if (pattern->more)
    snprintf(out, size, "`%.120s` and %zu other parameter%s", pattern->name, pattern->more,
             pattern->more == 1 ? "" : "s");
  else
    snprintf(out, size, "`%.120s`", pattern->name);
  return out;
}

static void add_others(ad_case *c, const ad_pattern *pattern) {
  char names[200];
  print_names(pattern, names, sizeof names);
  if (pattern->kind == AD_PATTERN_OTHER_SUM)
    ad_case_add(c, AD_CAUSE_OTHER_PARAMETERS, 0, NAN, "",
                "the right sum of %s: sums were given to other parameters than they were made of", names);
  else
    ad_case_add(c, AD_CAUSE_OTHER_PARAMETERS, 0, NAN, "",
                "rank %lld added its gradient of %s in place of this one: its parameters are in another order than "
                "the other ranks'",
                (long long)pattern->rank, names);
}

static void add_pattern(ad_case *c, const ad_pattern *pattern) {
  switch (pattern->kind) {
    case AD_PATTERN_MAXIMUM:
    case AD_PATTERN_MINIMUM:
    case AD_PATTERN_PRODUCT:
      add_operation(c, pattern);
      break;
    case AD_PATTERN_SHIFTED:
      add_shift(c, pattern);
      break;
    case AD_PATTERN_MOVED:
      add_moved(c, pattern);
      break;
    case AD_PATTERN_OTHER_SUM:
    case AD_PATTERN_OTHER_ADDENDS:
      add_others(c, pattern);
      break;
    case AD_PATTERN_OTHER_ROWS:
      ad_case_add(c, AD_CAUSE_OTHER_ROWS, 0, NAN, "",
                  "values of sparse gradients were summed without their indices: each rank's replica has only the rows "
                  "of its own gradient, and the sum over all rows is right");
      break;
    case AD_PATTERN_NUMBERED_ROWS:
      ad_case_add(c, AD_CAUSE_OTHER_ROWS, 0, NAN, "",
                  "values of sparse gradients were summed without their indices: the first %zu row%s of each rank's "
                  "gradient that %s not zero were added by their number, whichever rows they are; the others are "
                  "left out",
                  pattern->more, pattern->more == 1 ? "" : "s", pattern->more == 1 ? "is" : "are");
      break;
  }
}

/* Returns 1 if counts explain none of the wrong parts. */
static int none_explained(const ad_case *c) {
  for (size_t i = 0; i < c->count; i++)
    if (!c->list[i].holds && c->list[i].why.explains) return 0;
  return 1;
}

/* Marks the rank that added other parameters' gradients, if all parts that counts do not explain have this pattern. */
static void mark_rank(ad_case *c) {
  const ad_found_patterns *found = &c->first->why.patterns;
  for (size_t p = 0; p < found->count; p++) {
    if (!all_have(c, &found->list[p]) || found->list[p].kind != AD_PATTERN_OTHER_ADDENDS) continue;
    memset(c->out->ranks, 0, (size_t)c->dump->mesh.world);
    c->out->ranks[found->list[p].rank] = 1;
  }
}

int ad_case_try_patterns(ad_case *c) {
  if (!none_explained(c)) return 0;
  const ad_found_patterns *found = &c->first->why.patterns;
  for (size_t p = 0; p < found->count; p++)
    if (all_have(c, &found->list[p])) add_pattern(c, &found->list[p]);
  if (!ad_case_settle(c, NAN, "")) return 0;
  ad_case_mark_holders(c, 1);
  if (json_array_size(c->out->causes) == 1) mark_rank(c);
  c->out->shown = NULL;
  return 1;
}
