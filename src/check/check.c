/* `addend check`: the clean proof, then, if asked, the same proof with each known mistake planted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/options.h"
#include "check/document.h"

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static ad_status prove_clean(const ad_recipe *recipe, const ad_check_options *options, int quiet, ad_proof *proof) {
  ad_launch_result result = {0};
  ad_proof_job job = {recipe, options, NULL, proof, .quiet = quiet};
  ad_status status = ad_proof_run(&job, &result);
  if (status && status != AD_INTERRUPTED && result.message[0])
    return ad_fail(result.status ? result.status : status, "%s", result.message);
  return status;
}

/* What is caught in the recipe's dtypes means something only if the clean proof holds in them. */
static ad_status prove_in_recipe_dtypes(const ad_recipe *recipe, const ad_check_options *options, ad_proof *proof,
                                        int *holds) {
  ad_check_options clean = *options;
  clean.recipe_dtype = 1;
  clean.progress = NULL;
  AD_TRY(prove_clean(recipe, &clean, 1, proof));
  *holds = ad_proof_passes(proof, 0);
  return AD_OK;
}

static int some_are_of_dtype(const ad_sabotage *sabotages, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (sabotages[i].of_dtype) return 1;
  return 0;
}

static ad_status try_sabotages(const ad_recipe *recipe, const ad_check_options *options, ad_findings *findings,
                               ad_sabotage *sabotages) {
  ad_proof *proof;
  AD_TRY(ad_proof_create(recipe, &proof));
  ad_status status =
      ad_sabotage_list(recipe, sabotages, &findings->sabotage_count, findings->unplanted, &findings->unplanted_count);
  int holds = 1;
  if (!status && some_are_of_dtype(sabotages, findings->sabotage_count))
    status = prove_in_recipe_dtypes(recipe, options, proof, &holds);
  for (size_t i = 0; i < findings->sabotage_count && !status; i++) {
    if (sabotages[i].of_dtype && !holds) {
      snprintf(sabotages[i].message, sizeof sabotages[i].message,
               "not planted: without it the proof does not hold in the recipe's dtypes either");
      findings->survivors++;
      continue;
    }
    if (options->progress)
      options->progress(options->context, sabotages[i].name, (int64_t)i, (int64_t)findings->sabotage_count);
    status = ad_sabotage_try(recipe, options, proof, &sabotages[i]);
    findings->survivors += sabotages[i].caught == AD_CAUGHT_NONE;
  }
  ad_proof_destroy(proof);
  return status;
}

static ad_status print_document(const ad_findings *findings, char **json) {
  json_t *document = ad_findings_document(findings);
  char *text = document ? json_dumps(document, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17)) : NULL;
  json_decref(document);
  if (!text) return ad_fail(AD_MEMORY, "no memory for the document of the proof");
  *json = text;
  return AD_OK;
}

static ad_status world_of(const ad_recipe *recipe, int64_t *out) {
  ad_mesh *mesh;
  AD_TRY(ad_recipe_mesh(recipe, &mesh));
  *out = ad_mesh_size(mesh);
  ad_mesh_destroy(mesh);
  return AD_OK;
}

static ad_status check_with(const ad_recipe *recipe, const ad_check_options *options, ad_proof *proof,
                            ad_sabotage *sabotages, int *holds, char **json) {
  double start = now();
  ad_findings findings = {
      .recipe = recipe, .options = options, .proof = proof, .sabotages = sabotages, .engine = "shm"};
  AD_TRY(world_of(recipe, &findings.world));
  AD_TRY(prove_clean(recipe, options, 0, proof));
  if (options->sabotage) AD_TRY(try_sabotages(recipe, options, &findings, sabotages));
  findings.seconds = now() - start;
  AD_TRY(print_document(&findings, json));
  *holds = ad_proof_passes(proof, options->directional) && findings.survivors == 0;
  return AD_OK;
}

static ad_status check_options(const ad_check_options *options) {
  if (options->steps < 0)
    return ad_fail(AD_INVALID, "a check takes at least 1 step, not %lld", (long long)options->steps);
  if (options->directional &&
      (options->sabotage || options->steps > 1 || options->recipe_dtype || options->dtype == AD_F32))
    return ad_fail(AD_INVALID,
                   "--directional is one step in f64 on its own: leave out --sabotage, --steps and --dtype");
  return AD_OK;
}

ad_status ad_check(const ad_recipe *recipe, const ad_check_options *options, int *holds, char **json) {
  AD_NEED(recipe, holds, json);
  ad_check_options own;
  AD_TRY(ad_options_take(&own, sizeof own, options, "ad_check_options"));
  AD_TRY(check_options(&own));
  ad_proof *proof;
  AD_TRY(ad_proof_create(recipe, &proof));
  ad_sabotage *sabotages;
  ad_status status = ad_new(AD_SABOTAGE_MAX, &sabotages);
  if (!status) {
    status = check_with(recipe, &own, proof, sabotages, holds, json);
    ad_release(sabotages);
  }
  ad_proof_destroy(proof);
  return status;
}

/* ---- on ranks that are there already ---- */

// Rank 0 has the numbers; its verdict becomes everyone's.
static ad_status share_verdict(ad_comm *comm, const ad_recipe *recipe, int32_t *verdict) {
  ad_mesh *mesh;
  AD_TRY(ad_recipe_mesh(recipe, &mesh));
  ad_collective broadcast = {.op = AD_BROADCAST,
                             .group = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(comm)),
                             .in = verdict,
                             .out = verdict,
                             .count = 1,
                             .dtype = AD_I32,
                             .site = AD_HERE};
  ad_status status = ad_comm_run(comm, &broadcast);
  ad_mesh_destroy(mesh);
  return status;
}

static ad_status check_here(ad_comm *comm, ad_proof_job *job, int *holds, char **json) {
  double start = now();
  char *text = NULL;
  ad_findings findings = {.recipe = job->recipe, .options = job->options, .proof = job->proof};
  findings.world = ad_comm_size(comm);
  findings.engine = ad_comm_engine(comm);
  AD_TRY(ad_prove(comm, job));
  int32_t verdict = ad_proof_passes(job->proof, job->options->directional);
  AD_TRY(share_verdict(comm, job->recipe, &verdict));
  findings.seconds = now() - start;
  if (ad_comm_rank(comm) == 0) AD_TRY(print_document(&findings, &text));
  *holds = verdict;
  *json = text;
  return AD_OK;
}

static ad_status check_world(const ad_comm *comm, const ad_recipe *recipe, const ad_check_options *options) {
  int64_t needed = 0;
  AD_TRY(world_of(recipe, &needed));
  if (needed != ad_comm_size(comm))
    return ad_fail(AD_INVALID, "the recipe's mesh \"%s\" has %lld ranks, the world has %lld", recipe->mesh,
                   (long long)needed, (long long)ad_comm_size(comm));
  if (options->sabotage)
    return ad_fail(
        AD_INVALID,
        "sabotage starts ranks of its own for every planted mistake, so it does not run under mpirun or srun: "
        "run addend check --sabotage without them, on one machine");
  return AD_OK;
}

ad_status ad_check_on(ad_comm *comm, const ad_recipe *recipe, const ad_check_options *options, int *holds,
                      char **json) {
  AD_NEED(comm, recipe, holds, json);
  ad_check_options own;
  AD_TRY(ad_options_take(&own, sizeof own, options, "ad_check_options"));
  AD_TRY(check_options(&own));
  AD_TRY(check_world(comm, recipe, &own));
  ad_proof *proof;
  AD_TRY(ad_proof_create(recipe, &proof));
  ad_proof_job job = {recipe, &own, NULL, proof, 0};
  ad_status status = check_here(comm, &job, holds, json);
  ad_proof_destroy(proof);
  if (status) ad_comm_fail(comm, status, ad_last_error());
  return status;
}
