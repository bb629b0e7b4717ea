/* Names the causes of a difference between sums and a reference. */
#include "say/reference.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include "say/microbatches.h"

/* Appends a cause to `causes`; its factor is `ratio`, the ratio of the sum to the reference. */
static void add_fact(json_t *causes, double ratio, ad_cause_kind kind, const char *axes, const char *format, ...)
    AD_PRINTF(5, 6);
static void add_fact(json_t *causes, double ratio, ad_cause_kind kind, const char *axes, const char *format, ...) {
  char text[AD_DUMP_AXES * AD_DUMP_NAME + 160];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  json_array_append_new(causes, ad_cause_document(ad_cause_name(kind), axes, ratio, text, ""));
}

/* Adds a cause for every set of axes whose number of ranks is the ratio to the reference, or its inverse. */
static void add_factor(const ad_parts *parts, double ratio, json_t *causes) {
  const ad_dump_mesh *mesh = &parts->dump->mesh;
  char names[AD_DUMP_AXES * AD_DUMP_NAME];
  uint32_t sets[AD_DUMP_SETS];
  int divided = ratio < 1;
  size_t count = ad_dump_axes_of_size(mesh, divided ? 1 / ratio : ratio, parts->param->summed, sets);
  for (size_t i = 0; i < count; i++) {
    ad_dump_axes_print(mesh, sets[i], names, sizeof names);
    add_fact(causes, ratio, divided ? AD_CAUSE_AVERAGED : AD_CAUSE_DOUBLED, names, "%s over %s",
             divided ? "averaged, or divided by a count that was summed twice,"
                     : "summed twice, or divided by a local count,",
             names);
  }
  if (!count)
    add_fact(causes, ratio, AD_CAUSE_UNKNOWN, "", "%.6g times the reference: a factor that is no group's size", ratio);
}

/* Adds the cause that every microbatch is right except for its weight: its loss was divided by a wrong number. */
static void add_weights(const double *weights, int64_t microbatches, json_t *causes) {
  char counts[256], text[384];
  ad_microbatches_print(weights, microbatches, counts, sizeof counts);
  snprintf(text, sizeof text, "%s times what they do in the reference: each divided by its own count", counts);
  json_array_append_new(causes, ad_cause_document(ad_cause_name(AD_CAUSE_AVERAGED), "", NAN, text, AD_MICROBATCHES));
}

json_t *ad_reference_causes(const ad_parts *parts, const ad_compared *compared) {
  json_t *causes = json_array();
  if (!compared->there || compared->holds) return causes;
  if (compared->proportional)
    add_factor(parts, compared->ratio, causes);
  else if (compared->weights)
    add_weights(compared->weights, parts->dump->microbatches, causes);
  else
    add_fact(causes, compared->ratio, AD_CAUSE_MISSING, "",
             "addends are missing, counted with other weights, or of other data; ratio %.4g, worst error %.2g of the "
             "largest element",
             compared->ratio, compared->max_rel_err);
  return causes;
}
