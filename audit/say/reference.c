/* Compares a parameter's sums with a reference, element by element. */
#include "say/reference.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/roundoff.h"
#include "say/microbatches.h"
#include "say/reweighed.h"
#include "read/full.h"

/* ---- comparing sums with the reference ---- */

/* Totals over all elements: sums of products of the dump's values (own) and the reference's (ref), the largest error
 * (worst) and the largest reference value (largest). `missing` counts elements that the reference does not have. */
typedef struct ad_sums {
  double own_own, own_ref, ref_ref, worst, largest;
  size_t missing;
} ad_sums;

static void add_part(const ad_full *full, const ad_part *part, double *own, ad_sums *sums) {
  for (size_t begin = 0; begin < part->count; begin += AD_ROWS) {
    size_t end = begin + AD_ROWS < part->count ? begin + AD_ROWS : part->count;
    ad_part_read_sum(full->parts, part, begin, end, own);
    for (size_t i = begin; i < end; i++) {
      double value = own[i - begin], ref = ad_full_value(full, part, i);
      if (isnan(ref)) {
        sums->missing++;
        continue;
      }
      sums->own_own += value * value;
      sums->own_ref += value * ref;
      sums->ref_ref += ref * ref;
      sums->worst = fmax(sums->worst, fabs(value - ref));
      sums->largest = fmax(sums->largest, fabs(ref));
    }
  }
}

/* Returns the narrowest dtype of the reference and the sums. */
static ad_dtype narrowest(const ad_full *full) {
  ad_dtype dtype = full->pieces[0].tensor->dtype;
  for (size_t i = 0; i < full->parts->count; i++) {
    ad_dtype own = full->parts->parts[i].terms[0].tensor->dtype;
    if (ad_unit_roundoff(own) > ad_unit_roundoff(dtype)) dtype = own;
  }
  return dtype;
}

/* Returns the largest error allowed, relative to the largest element. Two runs differ in the order of additions
 * throughout the model, not only in this sum. So 1024 roundings are allowed, which a wrong sum far exceeds; in narrow
 * dtypes at most 1/32. */
static double bound_of(ad_dtype dtype) { return fmin(fmax(1024 * ad_unit_roundoff(dtype), 1e-12), 0x1p-5); }

/* Appends a cause, with the ratio to the reference as its factor. */
static void add_fact(ad_compared *out, ad_cause_kind kind, const char *axes, const char *format, ...) AD_PRINTF(4, 5);
static void add_fact(ad_compared *out, ad_cause_kind kind, const char *axes, const char *format, ...) {
  char text[AD_DUMP_AXES * AD_DUMP_NAME + 160];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  json_array_append_new(out->causes, ad_cause_document(ad_cause_name(kind), axes, out->ratio, text, ""));
}

/* Adds a cause for every set of axes whose number of ranks is the ratio to the reference, or its inverse. */
static void add_factor(const ad_parts *parts, ad_compared *out) {
  const ad_dump_mesh *mesh = &parts->dump->mesh;
  char names[AD_DUMP_AXES * AD_DUMP_NAME];
  uint32_t sets[AD_DUMP_SETS];
  int divided = out->ratio < 1;
  size_t count = ad_dump_axes_of_size(mesh, divided ? 1 / out->ratio : out->ratio, parts->param->summed, sets);
  for (size_t i = 0; i < count; i++) {
    ad_dump_axes_print(mesh, sets[i], names, sizeof names);
    add_fact(out, divided ? AD_CAUSE_AVERAGED : AD_CAUSE_DOUBLED, names, "%s over %s",
             divided ? "averaged, or divided by a count that was summed twice,"
                     : "summed twice, or divided by a local count,",
             names);
  }
  if (!count)
    add_fact(out, AD_CAUSE_UNKNOWN, "", "%.6g times the reference: a factor that is no group's size", out->ratio);
}

/* Returns 1 if the sum is the reference times one positive factor. */
static int is_proportional(const ad_sums *sums, const ad_compared *out) {
  double left = sums->own_own - out->ratio * sums->own_ref;
  return sums->own_own > 0 && fabs(left) <= fmax(out->bound * out->bound, 1e-10) * sums->own_own && out->ratio > 0;
}

/* If each microbatch is right except for a factor of its own, adds the cause that only the divisors of losses are
 * wrong. */
static ad_status find_reweighed(const ad_full *full, ad_compared *out) {
  char words[320];
  AD_TRY(ad_reweighed_find(full, out->bound, words, sizeof words));
  if (*words)
    json_array_append_new(out->causes,
                          ad_cause_document(ad_cause_name(AD_CAUSE_AVERAGED), "", NAN, words, AD_MICROBATCHES));
  return AD_OK;
}

static ad_status find_causes(const ad_full *full, const ad_sums *sums, ad_compared *out) {
  out->causes = json_array();
  if (is_proportional(sums, out)) return add_factor(full->parts, out), AD_OK;
  AD_TRY(find_reweighed(full, out));
  if (!json_array_size(out->causes))
    add_fact(out, AD_CAUSE_MISSING, "",
             "addends are missing, counted with other weights, or of other data; ratio %.4g, worst error %.2g of the "
             "largest element",
             out->ratio, out->max_rel_err);
  return AD_OK;
}

void ad_compared_clear(ad_compared *compared) {
  json_decref(compared->causes);
  compared->causes = NULL;
}

static ad_status compare_with_reference(const ad_full *full, ad_compared *out) {
  const ad_parts *parts = full->parts;
  ad_sums sums = {0};
  double *own;
  AD_TRY(ad_new(AD_ROWS, &own));
  for (size_t i = 0; i < parts->count; i++)
    if (ad_is_first_of_its_box(parts, i)) add_part(full, &parts->parts[i], own, &sums);
  ad_release(own);
  if (sums.missing)
    return ad_fail(
        AD_INVALID,
        "the reference contains only a part of \"%.80s\": %zu elements are missing; make a reference with all elements",
        parts->param->name, sums.missing);
  out->there = 1;
  out->bound = bound_of(narrowest(full));
  out->ratio = sums.ref_ref > 0 ? sums.own_ref / sums.ref_ref : sums.worst == 0 ? 1 : NAN;
  out->max_rel_err = sums.worst == 0 ? 0 : sums.worst / sums.largest;
  out->holds = out->max_rel_err <= out->bound;
  return out->holds ? AD_OK : find_causes(full, &sums, out);
}

ad_status ad_reference_compare(const ad_parts *parts, const ad_dump *reference, ad_compared *out) {
  ad_full full;
  *out = (ad_compared){0};
  ad_status status = ad_full_find(parts, reference, &full);
  if (!status && full.count) status = compare_with_reference(&full, out);
  ad_full_clear(&full);
  return status;
}
