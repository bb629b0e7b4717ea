/* How far a step has come on this rank: the microbatch whose gradients each module's reducer takes now, and the
 * gradients of weights that phases have not submitted yet. */
#include "base/error.h"
#include "base/memory.h"
#include "module/module.h"
#include "program/program.h"
#include "recipe/leaves.h"
#include "step/execute.h"

static size_t phases(const ad_run *run) { return ad_program_phase_count(run->program); }
static size_t modules(const ad_run *run) { return ad_program_module_count(run->program); }

/* ---- creating a step's progress ---- */

static ad_status create_deferred(ad_run *run, size_t p) {
  return ad_new(ad_run_phase(run, p)->tape_count, &run->progress.phases[p].deferred);
}

ad_status ad_progress_create(ad_run *run) {
  AD_TRY(ad_new(modules(run), &run->progress.modules));
  AD_TRY(ad_new(phases(run), &run->progress.phases));
  for (size_t p = 0; p < phases(run); p++) AD_TRY(create_deferred(run, p));
  for (size_t p = 0; p < phases(run); p++) run->progress.modules[ad_program_phase(run->program, p)->module].phases++;
  return AD_OK;
}

void ad_progress_destroy(ad_run *run) {
  for (size_t p = 0; run->progress.phases && p < phases(run); p++) ad_release(run->progress.phases[p].deferred);
  ad_release(run->progress.phases);
  ad_release(run->progress.modules);
  run->progress = (ad_progress){0};
}

void ad_progress_begin_pass(ad_run *run) {
  for (size_t i = 0; i < modules(run); i++) {
    run->progress.modules[i].open = -1;
    run->progress.modules[i].ended = 0;
  }
  for (size_t p = 0; p < phases(run); p++) {
    run->progress.phases[p].back = -1;
    for (size_t i = 0; i < ad_run_phase(run, p)->tape_count; i++) run->progress.phases[p].deferred[i] = -1;
  }
}

int ad_progress_has_phases(const ad_run *run, size_t module) { return run->progress.modules[module].phases > 0; }

/* ---- a module's gradients of one microbatch ---- */

/* Returns, for a dump, the number by which all losses of the step are divided, or 0 if there are several such numbers
 * or this rank does not know it. */
static double divisor_of(const ad_run *run) {
  size_t none = ad_program_count_count(run->program), count = none;
  double total = 0;
  for (size_t i = 0; i < ad_program_loss_count(run->program); i++) {
    const ad_loss_spec *spec = ad_program_loss(run->program, i);
    if (spec->is_metric) continue;
    if (spec->per_microbatch || (count != none && count != spec->count)) return 0;
    count = spec->count;
  }
  for (size_t m = 0; count != none && ad_run_count(run, count) && m < (size_t)ad_recipe_parts(run->recipe); m++)
    total += (double)ad_count_of(ad_run_count(run, count), m);
  return total > 0 ? total : 0;
}

static ad_module_run *module_of(const ad_run *run, size_t p) {
  return &run->progress.modules[ad_program_phase(run->program, p)->module];
}

static ad_reducer *reducer_of(const ad_run *run, size_t p) {
  return ad_module_reducer(ad_run_module(run, ad_program_phase(run->program, p)->module));
}

/* Begins the run's microbatch m in the module's reducer; with train.leaves, m is a round. */
static ad_status begin_in_reducer(ad_run *run, size_t p, size_t m) {
  ad_sync sync = ad_recipe_sync(run->recipe, module_of(run, p)->ended);
  if (run->leaves) return ad_reducer_begin_leaf(reducer_of(run, p), sync, ad_run_part_of(run, m));
  return ad_reducer_begin_microbatch(reducer_of(run, p), sync);
}

static ad_status open_microbatch(ad_run *run, size_t p, size_t m) {
  ad_module_run *module = module_of(run, p);
  if (module->open == (int64_t)m) return AD_OK;
  if (module->open >= 0)
    return ad_fail(AD_INVALID,
                   "the schedule runs the backward of phase `%s` in microbatch %zu before the gradient of microbatch "
                   "%lld of the same module is reduced; put the REDUCE of microbatch %lld first",
                   ad_program_phase(run->program, p)->name, m, (long long)module->open, (long long)module->open);
  module->open = (int64_t)m;
  module->phases_left = module->phases;
  return begin_in_reducer(run, p, m);
}

ad_status ad_progress_begin_addend(ad_run *run, size_t p, size_t m, int updates) {
  run->progress.phases[p].back = (int64_t)m;
  return updates ? open_microbatch(run, p, m) : AD_OK;
}

/* Called after the last addend of the last phase on the module: the reducer may now sum the microbatch's gradients. */
static ad_status close_microbatch(ad_run *run, size_t p) {
  ad_module_run *module = module_of(run, p);
  if (--module->phases_left) return AD_OK;
  module->open = -1;
  module->ended++;
  AD_TRY(ad_reducer_divided_by(reducer_of(run, p), divisor_of(run)));
  return ad_reducer_end_microbatch(reducer_of(run, p));
}

ad_status ad_progress_reduced(const ad_run *run, size_t p, int32_t m, size_t *out) {
  int64_t back = run->progress.phases[p].back;
  if (back < 0 || (m >= 0 && m != back))
    return ad_fail(AD_INVALID,
                   "the schedule has the REDUCE of phase `%s` before the backward of this phase in the same "
                   "microbatch; put the backward first",
                   ad_program_phase(run->program, p)->name);
  *out = (size_t)back;
  return AD_OK;
}

ad_status ad_progress_end_addend(ad_run *run, size_t p, int updates) {
  run->progress.phases[p].back = -1;
  return updates ? close_microbatch(run, p) : AD_OK;
}

/* ---- counting gradients of weights that are computed later ---- */

static int64_t *deferred_at(const ad_run *run, size_t p, size_t m) {
  return &run->progress.phases[p].deferred[m % ad_run_phase(run, p)->tape_count];
}

void ad_progress_defer(ad_run *run, size_t p, int32_t m) { *deferred_at(run, p, (size_t)m) = m; }

ad_status ad_progress_flush(ad_run *run, size_t p, int32_t m) {
  int64_t *deferred = deferred_at(run, p, (size_t)m);
  if (*deferred != m)
    return ad_fail(AD_INVALID,
                   "the schedule computes the weight gradients (W) of phase `%s` in microbatch %d a second time, or "
                   "before the input gradients (I); put each W once, after its I",
                   ad_program_phase(run->program, p)->name, m);
  *deferred = -1;
  return AD_OK;
}
