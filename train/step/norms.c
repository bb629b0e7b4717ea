/* The norm groups of a run: modules whose gradients have one common norm and are clipped by it. */
#include <math.h>
#include <string.h>
#include "array/array.h"
#include "base/error.h"
#include "base/memory.h"
#include "module/module.h"
#include "program/program.h"
#include "step/run.h"

/* ---- creating the norm groups ---- */

static int same_name(const char *a, const char *b) { return a == b || (a && b && !strcmp(a, b)); }

static ad_status find_norm_group(ad_run *run, const char *name, size_t *out) {
  for (*out = 0; *out < run->norms.count; ++*out)
    if (same_name(run->norms.groups[*out].name, name)) return AD_OK;
  if (run->norms.count == AD_NORM_GROUPS_MAX)
    return ad_fail(AD_INVALID,
                   "the parameters of the program name more than %d different norm groups (`norm_group`), the most "
                   "that are allowed; name fewer",
                   AD_NORM_GROUPS_MAX);
  run->norms.groups[run->norms.count++].name = name;
  return AD_OK;
}

static ad_status list_gradients(const ad_run *run, ad_norm_group *group, size_t m) {
  ad_module *module = ad_run_module(run, m);
  size_t count = ad_module_param_count(module);
  AD_TRY(ad_grow(&group->arrays, group->count, group->count + count));
  AD_TRY(ad_grow(&group->names, group->count, group->count + count));
  AD_TRY(ad_grow(&group->places, group->count, group->count + count));
  for (size_t i = 0; i < count; i++) {
    char name[AD_PROGRAM_NAME_SIZE];
    const ad_array *gradient = ad_module_part(module, i, AD_PART_GRADIENT);
    if (!gradient) continue;  // the parameter is frozen, and its sum of squares stays 0
    AD_TRY(ad_copy_string(ad_program_param_name(run->program, m, i, name, sizeof name), &group->names[group->count]));
    group->places[group->count] = group->sum_count + i;
    group->arrays[group->count++] = gradient;
  }
  return AD_OK;
}

/* A module that is a mirror sends its gradients to another module and updates nothing, so its gradients are in no
 * norm. */
ad_status ad_norms_create(ad_run *run) {
  size_t count = ad_program_module_count(run->program);
  AD_TRY(ad_new(count, &run->norms.group_of));
  for (size_t i = 0; i < count; i++) {
    const ad_module_spec *spec = ad_program_module(run->program, i);
    if (spec->is_mirror) continue;
    AD_TRY(find_norm_group(run, spec->norm_group, &run->norms.group_of[i]));
    ad_norm_group *group = &run->norms.groups[run->norms.group_of[i]];
    if (ad_run_module(run, i)) AD_TRY(list_gradients(run, group, i));
    group->sum_count += spec->param_count;
  }
  for (size_t i = 0; i < run->norms.count; i++) {
    ad_norm_group *group = &run->norms.groups[i];
    AD_TRY(ad_new(group->sum_count, &group->sums));
    if (run->recipe->train.leaves) AD_TRY(ad_new(group->sum_count, &group->exact));
  }
  return AD_OK;
}

static void release_group(ad_norm_group *group) {
  for (size_t k = 0; k < group->count; k++) ad_release(group->names[k]);
  ad_release(group->arrays);
  ad_release(group->names);
  ad_release(group->places);
  ad_release(group->sums);
  ad_release(group->exact);
}

void ad_norms_destroy(ad_run *run) {
  for (size_t i = 0; i < run->norms.count; i++) release_group(&run->norms.groups[i]);
  ad_release(run->norms.group_of);
}

/* ---- computing the norms of a step ---- */

size_t ad_run_norm_group_count(const ad_run *run) { return run->norms.count; }
size_t ad_run_norm_group_of(const ad_run *run, size_t module) { return run->norms.group_of[module]; }
const char *ad_run_norm_group_name(const ad_run *run, size_t group) { return run->norms.groups[group].name; }

/* Sums the squares of each of the group's parameters. With train.leaves no bit of these sums depends on how many ranks
 * share the parameters. */
static ad_status sum_squares(ad_run *run, const ad_norm_group *group) {
  const ad_array *const *arrays = group->arrays;
  const char *const *names = (const char *const *)group->names;
  if (!group->exact)
    return ad_square_sums(run->comm, &run->everyone, arrays, names, group->count, AD_HERE, group->sums, group->places,
                          group->sum_count);
  AD_TRY(ad_exact_square_sums(run->comm, &run->everyone, arrays, names, group->count, AD_HERE, group->exact,
                              group->places, group->sum_count));
  for (size_t k = 0; k < group->sum_count; k++) group->sums[k] = ad_exact_value(&group->exact[k]);
  return AD_OK;
}

/* Finds the norm of each group, and that of all groups together. Squares are summed parameter by parameter in the
 * program's order, so no bit depends on how the model is divided into pipeline stages. */
ad_status ad_norms_find(ad_run *run, double scale, ad_step_report *report) {
  double squares = 0;
  for (size_t i = 0; i < run->norms.count; i++) {
    const ad_norm_group *group = &run->norms.groups[i];
    double sum = 0;
    AD_TRY(sum_squares(run, group));
    for (size_t k = 0; k < group->sum_count; k++) sum += group->sums[k];
    report->norms[i] = sqrt(sum) / scale;
    squares += sum;
  }
  report->norm = sqrt(squares) / scale;
  return AD_OK;
}

static int is_normed(const ad_run *run, size_t module, size_t group) {
  return !ad_program_module(run->program, module)->is_mirror && run->norms.group_of[module] == group;
}

/* For a dump: if the module is the only one of its norm group, passes the group's norm to the module's reducer.
 * Gradients are multiplied by `scale`. */
static ad_status report_norm(const ad_run *run, size_t module, double scale, const ad_step_report *report) {
  size_t group = run->norms.group_of[module], members = 0;
  for (size_t i = 0; i < ad_program_module_count(run->program); i++) members += is_normed(run, i, group);
  if (members != 1 || !is_normed(run, module, group)) return AD_OK;
  return ad_reducer_reported(ad_module_reducer(ad_run_module(run, module)), scale * report->norms[group]);
}

ad_status ad_norms_report(const ad_run *run, double scale, const ad_step_report *report) {
  for (size_t i = 0; i < ad_program_module_count(run->program); i++)
    if (ad_run_module(run, i)) AD_TRY(report_norm(run, i, scale, report));
  return AD_OK;
}
