/* Compares a parameter's sums with a reference, element by element. */
#include "solve/compared.h"

#include <math.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/roundoff.h"
#include "read/full.h"
#include "solve/reweighed.h"

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

/* Returns 1 if the sum is the reference times one positive factor. */
static int is_proportional(const ad_sums *sums, const ad_compared *out) {
  double left = sums->own_own - out->ratio * sums->own_ref;
  return sums->own_own > 0 && fabs(left) <= fmax(out->bound * out->bound, 1e-10) * sums->own_own && out->ratio > 0;
}

static ad_status compare_with_reference(const ad_full *full, ad_compared *out) {
  const ad_parts *parts = full->parts;
  ad_sums sums = {0};
  double *own;
  AD_TRY(ad_new(AD_ROWS, &own));
  for (size_t i = 0; i < parts->count; i++)
    if (ad_part_is_first_of_its_box(parts, i)) add_part(full, &parts->parts[i], own, &sums);
  ad_release(own);
  if (sums.missing)
    return ad_fail(
        AD_INVALID,
        "the reference contains only a part of \"%.80s\": %zu elements are missing; make a reference with all elements",
        parts->param->name, sums.missing);
  out->there = 1;
  /* Two runs differ in the order of additions throughout the model, not only in this sum. So 1024 roundings are
   * allowed, which a wrong sum far exceeds; in narrow dtypes at most 1/32. */
  out->bound = fmin(fmax(1024 * ad_unit_roundoff(narrowest(full)), 1e-12), 0x1p-5);
  out->ratio = sums.ref_ref > 0 ? sums.own_ref / sums.ref_ref : sums.worst == 0 ? 1 : NAN;
  out->max_rel_err = sums.worst == 0 ? 0 : sums.worst / sums.largest;
  out->holds = out->max_rel_err <= out->bound;
  out->proportional = !out->holds && is_proportional(&sums, out);
  return out->holds || out->proportional ? AD_OK : ad_reweighed_find(full, out->bound, &out->weights);
}

ad_status ad_reference_compare(const ad_parts *parts, const ad_dump *reference, ad_compared *out) {
  ad_full full;
  *out = (ad_compared){0};
  ad_status status = ad_full_find(parts, reference, &full);
  if (!status && full.count) status = compare_with_reference(&full, out);
  ad_full_clear(&full);
  return status;
}

void ad_compared_clear(ad_compared *compared) {
  ad_release(compared->weights);
  compared->weights = NULL;
}
