/* Counts the steps of a check that overflow f16. Training skips such a step on all ranks and lowers the loss scale; a
 * check does the same, and judges the other steps. */
#include "check/overflow.h"

#include <stdio.h>

#include "base/error.h"
#include "kernels/finite.h"
#include "program/program.h"
#include "step/run.h"

/* Writes the name of the value that overflowed in a transfer or, if none did, of the first parameter whose gradient is
 * not finite; writes "" if there is none. */
static void name_param(const ad_checker *checker, char *out, size_t size) {
  const ad_transfer_overflow *comm_dtype = ad_run_transfer_overflow(checker->run);
  snprintf(out, size, "%s", comm_dtype->spec ? comm_dtype->spec->value : "");
  for (size_t i = 0; i < checker->param_count && !out[0]; i++) {
    const ad_array *gradient = checker->full_gradients[i];
    if (!gradient) continue;
    size_t numel = ad_array_numel(gradient);
    if (ad_first_not_finite(gradient->data, gradient->dtype, numel) == numel) continue;
    ad_run_param at = ad_run_param_at(checker->run, i);
    ad_program_param_name(ad_run_program(checker->run), at.module, at.param, out, size);
  }
}

void ad_overflow_note(ad_checker *checker, const ad_step_report *report) {
  ad_overflow *overflow = &checker->overflow;
  if (!report->skipped) {
    overflow->taken++;
    overflow->taken_at = report->loss_scale;
  } else if (!overflow->skipped++) {
    overflow->scale = report->loss_scale;
    name_param(checker, overflow->param, sizeof overflow->param);
  }
}

/* Searches for a loss scale at which all steps are taken; sets *found to 0 if there is none. A skipped step changes
 * only the scale, so the steps taken afterwards are those of a check that begins at the lowered scale. */
static ad_status find_scale(ad_checker *checker, int *scale, int *found) {
  ad_run *run = checker->run;
  run->options.quiet = 1;
  *found = 1;
  for (int64_t step = 0; step < checker->job->steps && *found;) {
    ad_step_report report;
    AD_TRY(ad_run_step(run, step, &report));
    *scale = report.loss_scale;
    if (!report.skipped)
      step++;
    else
      *found = report.loss_scale > AD_LOSS_SCALE_LEAST;
  }
  return AD_OK;
}

static ad_status fail_all(const ad_overflow *overflow, int scale, int found) {
  const char *what = overflow->skipped == 1 ? "the step's gradients" : "the gradients of all steps";
  const char *where = overflow->param[0] ? overflow->param : "norm";
  if (!found)
    return ad_fail(AD_INVALID,
                   "nothing was checked in the recipe's own dtypes, because %s overflow f16 at loss scale 2^%d in "
                   "`%s`, and also at 2^%d, the smallest loss scale; in precision.grad or precision.reduce, choose a "
                   "dtype with a wider range, such as bf16",
                   what, overflow->scale, where, scale);
  return ad_fail(
      AD_INVALID,
      "nothing was checked in the recipe's own dtypes, because %s overflow f16 at loss scale 2^%d in `%s`, but not at "
      "2^%d; set precision.loss_scale to %d, or check more steps (--steps N), in which the scale falls as in training",
      what, overflow->scale, where, scale, scale);
}

ad_status ad_overflow_judge(ad_checker *checker) {
  const ad_overflow *overflow = &checker->overflow;
  int scale = 0, found = 0;
  if (overflow->taken || !overflow->skipped) return AD_OK;
  AD_TRY(find_scale(checker, &scale, &found));
  return fail_all(overflow, scale, found);
}
