/* `addend check`: the check in f64, the check in the recipe's own dtypes, then, if asked, the mutants. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/environment.h"
#include "base/error.h"
#include "base/text.h"
#include "base/options.h"
#include "check/account.h"
#include "check/document.h"
#include "comm/agree.h"
#include "files/file.h"
#include "files/json.h"
#include "program/program.h"

enum { USUAL_STEPS = 2 };

static int64_t steps_of(const ad_check_options *options) {
  if (options->directional) return 1;
  return options->steps ? options->steps : USUAL_STEPS;
}

static ad_check_job job_of(const ad_recipe *recipe, const ad_check_options *options, ad_check_result *result,
                           int quiet) {
  return (ad_check_job){.recipe = recipe,
                        .options = options,
                        .steps = steps_of(options),
                        .result = result,
                        .quiet = quiet,
                        .dumps = !quiet && options->dump};
}

static ad_status check_job(const ad_check_job *job) {
  ad_launch_result launched = {.size = sizeof launched};
  ad_status status = ad_check_run(job, &launched);
  if (status && status != AD_INTERRUPTED && launched.message[0])
    return ad_fail(launched.status ? launched.status : status, "%s", launched.message);
  return status;
}

/* Returns 1 if the recipe is checked a second time, in its own dtypes. A check in f64 shows nothing about rounding, so
 * the second check is made for each recipe that rounds anywhere. */
static int checks_own_dtypes(const ad_recipe *recipe, const ad_check_options *options) {
  ad_check_options own = *options;
  own.recipe_dtype = 1;
  int is_usual = !options->directional && !options->recipe_dtype && (!options->dtype || options->dtype == AD_F64);
  return is_usual && !ad_check_is_wide(recipe, &own);
}

/* Returns the options for the same check in the recipe's own dtypes. */
static ad_check_options in_own_dtypes(const ad_check_options *options) {
  ad_check_options own = *options;
  own.recipe_dtype = 1;
  own.dtype = 0;
  return own;
}

/* Returns 1 if a directional check is made in addition. It is for custom programs: if a formula is wrong both on the
 * ranks and in one process, comparing them shows nothing. addend's own programs are compared with PyTorch's numbers
 * instead. */
static int takes_slope(const ad_recipe *recipe, const ad_check_options *options) {
  return !options->directional && ad_program_kind_is_custom(recipe->program);
}

/* Returns why the gradients are not the slope of the loss, so that no directional check can be made; NULL if they are
 * the slope. */
static const char *not_smooth(const ad_recipe *recipe) {
  const char *(*rule)(const void *options) = recipe->program->rules.not_smooth;
  return rule ? AD_GUEST(recipe->program, "not_smooth", rule(recipe->options)) : NULL;
}

static ad_check_options slope_options(const ad_check_options *options) {
  return (ad_check_options){
      .size = sizeof(ad_check_options), .directional = 1, .progress = options->progress, .context = options->context};
}

static ad_status print_document(const ad_findings *findings, char **json) {
  json_t *document = ad_findings_document(findings);
  char *text = document ? ad_json_dumps(document) : NULL;
  json_decref(document);
  if (!text) return ad_fail(AD_MEMORY, "no memory for the document of the check");
  *json = text;
  return AD_OK;
}

/* Returns 1 if bits are checked, too: with train.leaves they must not depend on the number of ranks. */
static int takes_bits(const ad_recipe *recipe, const ad_check_options *options) {
  return recipe->train.leaves && !options->directional;
}

static ad_status check_all(ad_findings *findings, ad_check_result *result, ad_check_result *own, ad_check_result *slope,
                           ad_bits **bits, ad_mutants **mutants) {
  const ad_recipe *recipe = findings->recipe;
  const ad_check_options *options = findings->options;
  ad_check_options under = in_own_dtypes(options);
  ad_check_job jobs[] = {job_of(recipe, options, result, 0), job_of(recipe, &under, own, 1)};
  AD_TRY(ad_recipe_world(recipe, &findings->world));
  AD_TRY(ad_check_fits(jobs, own ? 2 : 1, ""));
  AD_TRY(check_job(&jobs[0]));
  if (own) {
    AD_TRY(check_job(&jobs[1]));
    findings->own = own;
  }
  if (slope) {
    ad_check_options directional = slope_options(options);
    ad_check_job job = job_of(recipe, &directional, slope, 1);
    job.is_slope = 1;
    AD_TRY(check_job(&job));
    findings->slope = slope;
  }
  if (takes_bits(recipe, options)) {
    AD_TRY(ad_bits_create(recipe, findings->steps, bits));
    findings->bits = &(*bits)->found;
  }
  if (!options->mutate) return AD_OK;
  AD_TRY(ad_mutants_create(recipe, options->mutant_count, options->mutant_seed, mutants));
  findings->mutants = *mutants;
  ad_check_result *scratch;
  AD_TRY(ad_check_result_create(recipe, &scratch));
  ad_status status = ad_mutants_try(recipe, options, scratch, *mutants);
  ad_check_result_destroy(scratch);
  return status || !*bits ? status : ad_bits_try(*bits, *mutants);
}

static ad_status check_with(const ad_recipe *recipe, const ad_check_options *options, ad_check_result *result,
                            ad_check_result *own, ad_check_result *slope, int *holds, char **json) {
  double start = ad_seconds();
  ad_mutants *mutants = NULL;
  ad_bits *bits = NULL;
  ad_findings findings = {.recipe = recipe, .options = options, .steps = steps_of(options), .result = result};
  findings.backend = "shm";
  if (takes_slope(recipe, options)) findings.not_smooth = not_smooth(recipe);
  ad_status status = check_all(&findings, result, own, slope, &bits, &mutants);
  ad_account_remove_left();
  findings.seconds = ad_seconds() - start;
  if (!status) status = print_document(&findings, json);
  if (!status) *holds = ad_findings_hold(&findings);
  ad_mutants_destroy(mutants);
  ad_bits_destroy(bits);
  return status;
}

static ad_status check_options(const ad_check_options *options) {
  if (ad_environment_text("ADDEND_DUMP"))
    return ad_fail(AD_INVALID,
                   "ADDEND_DUMP is set, but a check takes each step several times; unset ADDEND_DUMP. To dump "
                   "gradients, use `addend check --dump FOLDER`, or `addend train --dump-step N`");
  if (options->steps < 0)
    return ad_fail(AD_INVALID, "a check needs at least 1 step, but --steps is %lld; set --steps to 1 or more",
                   (long long)options->steps);
  if (options->mutant_count < 0)
    return ad_fail(AD_INVALID,
                   "--mutate=N is the number of mutants to draw and must be at least 0 (0: all), but is %lld",
                   (long long)options->mutant_count);
  if (options->directional && options->dump)
    return ad_fail(
        AD_INVALID,
        "--directional does not compare gradients with a reference, so there is nothing to dump; leave out --dump");
  if (options->directional &&
      (options->mutate || options->steps > 1 || options->recipe_dtype || options->dtype == AD_F32))
    return ad_fail(
        AD_INVALID,
        "--directional always checks one step in f64, without mutants; leave out --mutate, --steps and --dtype");
  return AD_OK;
}

static ad_status check_slope(const ad_recipe *recipe) {
  const char *what = not_smooth(recipe);
  return what ? ad_fail(AD_INVALID,
                        "--directional compares the slope of the loss with its gradients, so the loss must be smooth, "
                        "but %s",
                        what)
              : AD_OK;
}

/* Completes and checks the options. Makes the dump's folder before any rank starts, so that an error is reported
 * then. */
static ad_status take_options(const ad_recipe *recipe, const ad_check_options *options, ad_check_options *out) {
  AD_TRY(ad_options_take(out, sizeof *out, options, "ad_check_options"));
  AD_TRY(check_options(out));
  if (out->directional) AD_TRY(check_slope(recipe));
  return out->dump ? ad_folder_make(out->dump) : AD_OK;
}

/* Makes memory for the results of further checks: *own for the check in the recipe's own dtypes, *slope for the
 * directional check of a custom program. Sets each to NULL if that check is not made. */
static ad_status create_beside(const ad_recipe *recipe, const ad_check_options *options, ad_check_result **own,
                               ad_check_result **slope) {
  *own = *slope = NULL;
  if (checks_own_dtypes(recipe, options)) AD_TRY(ad_check_result_create(recipe, own));
  if (takes_slope(recipe, options) && !not_smooth(recipe)) return ad_check_result_create(recipe, slope);
  return AD_OK;
}

ad_status ad_check(const ad_recipe *recipe, const ad_check_options *options, int *holds, char **json) {
  AD_NEED(recipe, holds, json);
  ad_check_options taken;
  ad_check_result *result, *own, *slope;
  AD_TRY(take_options(recipe, options, &taken));
  AD_TRY(ad_check_result_create(recipe, &result));
  ad_status status = create_beside(recipe, &taken, &own, &slope);
  if (!status) status = check_with(recipe, &taken, result, own, slope, holds, json);
  ad_check_result_destroy(slope);
  ad_check_result_destroy(own);
  ad_check_result_destroy(result);
  return status;
}

/* ---- ad_check_on: on ranks that have started already ---- */

// Sends the verdict of rank 0, which has the numbers, to all ranks.
static ad_status share_verdict(ad_comm *comm, int64_t *verdict) {
  char text[48];
  ad_mesh *world;
  snprintf(text, sizeof text, "dp_shard=%lld", (long long)ad_comm_size(comm));
  AD_TRY(ad_mesh_create(text, &world));
  ad_group everyone = ad_mesh_group(world, AD_AXES_ALL, ad_comm_rank(comm));
  ad_status status = ad_share_first(comm, &everyone, verdict, 1, AD_HERE);
  ad_mesh_destroy(world);
  return status;
}

/* Checks on the ranks of `comm`. If `own` is NULL, there is no check in the recipe's own dtypes; if `slope` is NULL,
 * there is no directional check. */
static ad_status check_here(ad_comm *comm, const ad_check_job *job, ad_check_result *own, ad_check_result *slope,
                            int *holds, char **json) {
  double start = ad_seconds();
  char *text = NULL;
  ad_findings findings = {.recipe = job->recipe,
                          .options = job->options,
                          .steps = job->steps,
                          .result = job->result,
                          .own = own,
                          .slope = slope,
                          .world = ad_comm_size(comm),
                          .backend = ad_comm_backend(comm)};
  ad_check_options under = in_own_dtypes(job->options);
  ad_check_job second = job_of(job->recipe, &under, own, 1);
  ad_check_options directional = slope_options(job->options);
  ad_check_job third = job_of(job->recipe, &directional, slope, 1);
  third.is_slope = 1;
  if (takes_slope(job->recipe, job->options)) findings.not_smooth = not_smooth(job->recipe);
  AD_TRY(ad_check_rank(comm, job));
  if (own) AD_TRY(ad_check_rank(comm, &second));
  if (slope) AD_TRY(ad_check_rank(comm, &third));
  ad_bits *bits = NULL;
  if (takes_bits(job->recipe, job->options)) AD_TRY(ad_bits_create_on(comm, job->recipe, job->steps, &bits));
  if (bits) findings.bits = &bits->found;
  int64_t verdict = ad_findings_hold(&findings);
  ad_status status = share_verdict(comm, &verdict);
  findings.seconds = ad_seconds() - start;
  if (!status && ad_comm_rank(comm) == 0) status = print_document(&findings, &text);
  ad_bits_destroy(bits);
  if (status) return status;
  *holds = verdict != 0;
  *json = text;
  return AD_OK;
}

static ad_status check_world(const ad_comm *comm, const ad_recipe *recipe, const ad_check_options *options) {
  int64_t needed = 0;
  char mesh[256];
  AD_TRY(ad_recipe_world(recipe, &needed));
  if (needed != ad_comm_size(comm))
    return ad_fail(AD_INVALID,
                   "the recipe's mesh \"%s\" has %lld rank%s, but %lld %s started; start as many ranks as the mesh "
                   "has, or change `mesh`",
                   ad_recipe_mesh_text(recipe, mesh, sizeof mesh), (long long)needed, ad_plural(needed),
                   (long long)ad_comm_size(comm), ad_comm_size(comm) == 1 ? "was" : "were");
  if (options->mutate)
    return ad_fail(AD_INVALID,
                   "--mutate starts new ranks for every mutant, which is not possible under mpirun or srun; run "
                   "`addend check --mutate` on one machine, without mpirun or srun");
  return AD_OK;
}

ad_status ad_check_on(ad_comm *comm, const ad_recipe *recipe, const ad_check_options *options, int *holds,
                      char **json) {
  AD_NEED(comm, recipe, holds, json);
  ad_check_options taken;
  ad_check_result *result, *own, *slope;
  AD_TRY(take_options(recipe, options, &taken));
  AD_TRY(check_world(comm, recipe, &taken));
  AD_TRY(ad_check_result_create(recipe, &result));
  ad_status status = create_beside(recipe, &taken, &own, &slope);
  ad_check_job job = job_of(recipe, &taken, result, 0);
  if (!status) status = check_here(comm, &job, own, slope, holds, json);
  ad_check_result_destroy(slope);
  ad_check_result_destroy(own);
  ad_check_result_destroy(result);
  if (status) ad_comm_fail(comm, status, ad_last_error());
  return status;
}
