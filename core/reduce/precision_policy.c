/* Precision policies: the dtypes in which a parameter's gradient is submitted, sent and summed. Fills in defaults and
 * refuses combinations that make no sense. */
#include "base/dtypes.h"
#include "base/error.h"
#include "addend/reduce.h"
#include "reduce/precision_policy.h"

static ad_status check_float(ad_dtype dtype, const char *field) {
  char floats[AD_DTYPES_TEXT];
  if (ad_dtype_is_float(dtype)) return AD_OK;
  return ad_fail(AD_INVALID, "the field `%s` of the precision policy is %s, but must be %s", field,
                 ad_dtype_name(dtype), ad_dtypes_print(ad_dtype_is_float, NULL, "or", floats));
}

ad_status ad_precision_policy_complete(ad_precision_policy *policy) {
  AD_NEED(policy);
  ad_precision_policy full = *policy;
  if (!full.param) full.param = AD_F32;
  if (!full.grad && !full.raw) full.grad = full.param;
  if (!full.reduce) full.reduce = full.grad;
  if (!full.reduce) {
    return ad_fail(AD_INVALID,
                   "the precision policy is raw, so a gradient keeps the dtype in which it is produced, and this dtype "
                   "is not known yet; set `grad` to that dtype, or set `reduce`");
  }
  if (!full.accumulate) full.accumulate = ad_dtype_wide(full.reduce);
  AD_TRY(check_float(full.param, "param"));
  if (full.grad) AD_TRY(check_float(full.grad, "grad"));
  AD_TRY(check_float(full.reduce, "reduce"));
  if (!ad_dtype_is_wide(full.accumulate)) {
    return ad_fail(AD_INVALID, "the field `accumulate` of the precision policy is %s, but must be f32 or f64",
                   ad_dtype_name(full.accumulate));
  }
  if (ad_dtype_size(full.accumulate) < ad_dtype_size(full.reduce)) {
    return ad_fail(AD_INVALID,
                   "the precision policy has `accumulate` %s, narrower than `reduce` %s, so sums would lose precision; "
                   "set `accumulate` to %s or wider",
                   ad_dtype_name(full.accumulate), ad_dtype_name(full.reduce), ad_dtype_name(full.reduce));
  }
  *policy = full;
  return AD_OK;
}
