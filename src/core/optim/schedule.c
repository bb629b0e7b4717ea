/* The learning rate of a step, and the factor of clipping. */
#include <math.h>
#include "addend/optim.h"
#include "base/options.h"

double ad_schedule_at(const ad_schedule *given, int64_t step) {
  ad_schedule own, *schedule = &own;
  if (ad_options_take(&own, sizeof own, given, "ad_schedule")) return NAN;
  // The first step already has a rate above 0, and the line reaches lr where the cosine starts.
  if (step < schedule->warmup) return schedule->lr * (double)(step + 1) / (double)(schedule->warmup + 1);
  double final = schedule->lr * schedule->final_fraction;
  int64_t last = schedule->steps - 1;
  if (step > last) return final;
  if (schedule->warmup == last) return schedule->lr;  // only one step is left for both ends of the cosine
  double progress = (double)(step - schedule->warmup) / (double)(last - schedule->warmup);
  return final + (schedule->lr - final) * 0.5 * (1 + cos(M_PI * progress));
}

double ad_clip_factor(double norm, double clip) { return clip > 0 && norm > clip ? clip / norm : 1; }
