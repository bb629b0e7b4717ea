/* Finds out which transfer between modules had a value that is too large for its communication dtype. */
#include "step/transfer_overflow.h"

#include <math.h>
#include "array/array.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/roundoff.h"
#include "kernels/finite.h"
#include "program/program.h"
#include "step/run.h"

static size_t transfers(const ad_run *run) { return ad_program_transfer_count(run->program); }

/* Returns the largest recorded overflow of transfer `i` or, with `backward`, of its gradient; 0 if there was none. */
static double *noted(const ad_run *run, size_t i, int backward) {
  return &run->overflows.noted[2 * i + (size_t)backward];
}

ad_status ad_transfer_overflow_create(ad_run *run) { return ad_new(2 * transfers(run), &run->overflows.noted); }

void ad_transfer_overflow_destroy(ad_run *run) {
  ad_release(run->overflows.noted);
  run->overflows.noted = NULL;
}

const ad_transfer_overflow *ad_run_transfer_overflow(const ad_run *run) { return &run->overflows.found; }

void ad_transfer_overflow_clear(ad_run *run) {
  for (size_t i = 0; i < 2 * transfers(run); i++) run->overflows.noted[i] = 0;
  run->overflows.found = (ad_transfer_overflow){0};
}

void ad_transfer_overflow_note(ad_run *run, const ad_transfer_spec *spec, int backward, const ad_array *to,
                               const ad_array *from) {
  if (!ad_dtype_needs_scale(to->dtype) || !to->data || to->data == from->data) return;
  size_t i = 0;
  while (ad_program_transfer(run->program, i) != spec) i++;
  double found = ad_largest_overflow(to->data, to->dtype, from->data, from->dtype, ad_array_numel(to));
  *noted(run, i, backward) = fmax(*noted(run, i, backward), found);
}

/* Returns the index of the first transfer for which this rank recorded an overflow of the value. If there is none,
 * returns the index of the first with an overflow of the gradient, plus the number of transfers; if there is none
 * either, twice the number of transfers. */
static size_t first_noted(const ad_run *run) {
  size_t count = transfers(run), at = 0;
  while (at < count && *noted(run, at, 0) == 0) at++;
  if (at < count) return at;
  while (at < 2 * count && *noted(run, at - count, 1) == 0) at++;
  return at;
}

ad_status ad_transfer_overflow_agree(ad_run *run) {
  size_t count = transfers(run);
  run->sums[0] = (double)first_noted(run);
  AD_TRY(ad_run_reduce_sums(run, 1, AD_MIN, AD_HERE));
  size_t first = (size_t)run->sums[0];
  if (first == 2 * count) return AD_OK;
  int backward = first >= count;
  size_t transfer = backward ? first - count : first;
  run->sums[0] = *noted(run, transfer, backward);
  AD_TRY(ad_run_reduce_sums(run, 1, AD_MAX, AD_HERE));
  run->overflows.found = (ad_transfer_overflow){ad_program_transfer(run->program, transfer), backward, run->sums[0]};
  return AD_OK;
}

static const char *module_name(const ad_run *run, size_t module) {
  return ad_program_module(run->program, module)->name;
}

/* Returns the module of the phase that gives the value. */
static size_t source_of(const ad_run *run, const ad_transfer_spec *spec) {
  size_t p = 0;
  while (!ad_phase_lists(ad_program_phase(run->program, p)->gives, spec->value)) p++;
  return ad_program_phase(run->program, p)->module;
}

ad_status ad_transfer_overflow_fail(const ad_run *run, int64_t step) {
  const ad_transfer_overflow *of = &run->overflows.found;
  ad_dtype dtype = of->backward ? of->spec->gradient_comm_dtype : of->spec->comm_dtype;
  const char *source = module_name(run, source_of(run, of->spec)), *needs = module_name(run, of->spec->module);
  return ad_fail(
      AD_NUMBER,
      "step %lld: %s`%s` overflows %s in the transfer %sfrom module `%s` to `%s`, since its largest value is %.3g and "
      "%s ends at %g; nothing was updated. Transfer the value in bf16, whose range is wide enough",
      (long long)step, of->backward ? "the gradient of " : "", of->spec->value, ad_dtype_name(dtype),
      of->backward ? "back " : "", of->backward ? needs : source, of->backward ? source : needs, of->largest,
      ad_dtype_name(dtype), ad_largest_number(dtype));
}
