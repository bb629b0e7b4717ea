/* Tries the known bugs of runs with leaves: takes the steps with the bug, and compares their bits with the reference's,
 * as the check for bits does. */
#include <stdio.h>
#include <sys/mman.h>

#include "base/error.h"
#include "check/bits.h"
#include "recipe/paper.h"

/* Records what the comparison found as the result for the mutant: it was killed by a difference, never took effect, or
 * had no effect. */
static void judge(const ad_bits_finding *found, int fired, ad_mutant *mutant) {
  if (!found->equal) {
    mutant->killed_by = AD_KILLED_BY_BITS;
    snprintf(mutant->param, sizeof mutant->param, "%s", found->param);
    snprintf(mutant->message, sizeof mutant->message, "%.*s", (int)sizeof mutant->message - 1, found->difference);
  } else if (!fired) {
    snprintf(mutant->message, sizeof mutant->message,
             "addend's list of known bugs is wrong: it expects this mutant to be killed, but no step reached what the "
             "mutation changes");
  } else if (mutant->known->no_effect) {
    mutant->killed_by = AD_KILLED_BY_NO_EFFECT;
    snprintf(mutant->message, sizeof mutant->message, "%s", mutant->known->no_effect);
  }
}

static ad_status try_one(const ad_bits *bits, const ad_program *program, _Atomic int *fired, ad_mutant *mutant) {
  ad_bits_job job = {
      .recipe = bits->recipe, .steps = bits->found.steps, .bug = mutant->known, .notes = bits->run, .fired = fired};
  ad_bits_finding found = bits->found;
  ad_launch_result launched = {.size = sizeof launched};
  *fired = 0;
  ad_status status = ad_bits_run(&job, &launched);
  if (status) return ad_mutant_killed_by_end(&launched, status, mutant);
  AD_TRY(ad_bits_compare(bits->run, bits->reference, program, &found));
  judge(&found, *fired, mutant);
  return AD_OK;
}

static ad_status try_all(const ad_bits *bits, const ad_program *program, _Atomic int *fired, ad_mutants *mutants) {
  for (size_t i = mutants->derived; i < mutants->count; i++) {
    ad_mutant *mutant = &mutants->list[i];
    if (!mutant->known->of_bits || !ad_known_shows(mutant, mutants->facts)) continue;
    if (bits->found.equal)
      AD_TRY(try_one(bits, program, fired, mutant));
    else
      mutant->killed_by = AD_KILLED_BY_UNTRIED;
  }
  return AD_OK;
}

ad_status ad_bits_try(const ad_bits *bits, ad_mutants *mutants) {
  ad_paper paper;
  _Atomic int *fired = mmap(NULL, sizeof *fired, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (fired == MAP_FAILED) return ad_fail(AD_MEMORY, "no memory for trying mutants");
  ad_status status = ad_paper_open(bits->recipe, &paper);
  if (!status) {
    status = try_all(bits, paper.program, fired, mutants);
    ad_paper_close(&paper);
  }
  munmap((void *)(uintptr_t)fired, sizeof *fired);
  return status;
}
