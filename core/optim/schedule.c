/* The learning rate of a step, and the factor of clipping. */
#include <math.h>
#include "addend/optim.h"
#include "base/error.h"
#include "base/options.h"

static ad_status check_number(const char *name, double value) {
  if (isfinite(value) && value >= 0) return AD_OK;
  return ad_fail(AD_INVALID, "ad_schedule: the field `%s` must be a finite number of at least 0, but is %g", name,
                 value);
}

static ad_status check_steps(const char *name, int64_t value) {
  if (value >= 0) return AD_OK;
  return ad_fail(AD_INVALID, "ad_schedule: the field `%s` must be at least 0, but is %lld", name, (long long)value);
}

static double rate_at(const ad_schedule *schedule, int64_t step) {
  // The first step has a rate above 0. Extended, the line reaches lr at step `warmup`, at which the cosine begins.
  if (step < schedule->warmup) return schedule->lr * (double)(step + 1) / (double)(schedule->warmup + 1);
  double final = schedule->lr * schedule->final_fraction;
  int64_t last = schedule->steps - 1;
  if (step > last) return final;
  if (schedule->warmup == last) return schedule->lr;  // the cosine would begin and end at the same step
  double progress = (double)(step - schedule->warmup) / (double)(last - schedule->warmup);
  return final + (schedule->lr - final) * 0.5 * (1 + cos(M_PI * progress));
}

ad_status ad_schedule_at(const ad_schedule *given, int64_t step, double *out) {
  ad_schedule schedule;
  AD_NEED_AS("schedule, out", given, out);
  AD_TRY(ad_options_take(&schedule, sizeof schedule, given, "ad_schedule"));
  AD_TRY(check_number("lr", schedule.lr));
  AD_TRY(check_number("final_fraction", schedule.final_fraction));
  AD_TRY(check_steps("warmup", schedule.warmup));
  AD_TRY(check_steps("steps", schedule.steps));
  AD_TRY(check_steps("the step", step));
  *out = rate_at(&schedule, step);
  return AD_OK;
}

ad_status ad_clip_factor(double norm, double clip, double *out) {
  AD_NEED(out);
  if (!(isfinite(clip) && clip >= 0))
    return ad_fail(AD_INVALID, "ad_clip_factor: `clip` must be a finite number of at least 0, but is %g", clip);
  if (!(isfinite(norm) && norm >= 0))
    return ad_fail(AD_NUMBER,
                   "ad_clip_factor: the norm of the gradient is %g, so the gradient cannot be clipped; skip this step, "
                   "as after an overflow that ad_loss_scale_update reports",
                   norm);
  *out = clip > 0 && norm > clip ? clip / norm : 1;
  return AD_OK;
}
