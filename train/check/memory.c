/* Estimates the least memory that a check needs: that of its ranks, as the plan counts it in the check's dtype; on each
 * rank one full gradient of every parameter and, in dtypes that round, the f64 sums of its addends and of their
 * absolute values; on the first rank the runs of the reference. Memory that judging takes besides is smaller, and is
 * left out. */
#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "recipe/alone.h"
#include "check/draws.h"
#include "check/result.h"
#include "module/module.h"
#include "plan/fits.h"
#include "plan/plan.h"
#include "products/gemm.h"
#include "step/run.h"

typedef struct ad_check_needs {
  size_t ranks, full, reference; /* bytes of all ranks together */
} ad_check_needs;

/* The bytes of one full gradient of every parameter: `own` in its own dtype, `wide` in f64. */
typedef struct ad_full_bytes {
  size_t own, wide;
} ad_full_bytes;

static ad_full_bytes full_bytes_of(ad_run *run) {
  ad_full_bytes full_bytes = {0};
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    const ad_array *gradient = ad_run_part(run, i, AD_PART_GRADIENT);
    if (!gradient) continue;
    size_t numel = (size_t)ad_shape_numel(&gradient->shape);
    full_bytes.own += numel * ad_dtype_size(gradient->dtype);
    full_bytes.wide += numel * ad_dtype_size(AD_F64);
  }
  return full_bytes;
}

/* Plans the recipe of one process in this dtype, and returns its memory and the bytes of its full gradients. */
static ad_status act_alone(const ad_recipe *alone, ad_dtype dtype, ad_plan_memory *out, ad_full_bytes *full_bytes) {
  ad_plan_world world = {.ranks = 1, .ranks_per_node = 1, .dtype = dtype};
  ad_comm *comm;
  ad_run *run;
  AD_TRY(ad_plan_act(alone, 0, &world, 0, &comm, &run));
  ad_status status = ad_plan_memory_of(run, out);
  *full_bytes = full_bytes_of(run);
  ad_run_destroy(run);
  ad_comm_close(comm);
  return status;
}

/* Adds the memory of the reference's runs (check/reference.h): one in f64; one that is updated with the distributed
 * gradients (`fed`); and, if there are several steps, one that gets nothing from the distributed run. The `fed` run
 * computes gradients only if the check's dtype rounds, and then also stores draws in f32. */
static ad_status add_reference(const ad_recipe *alone, const ad_check_job *job, int64_t ranks, ad_check_needs *to) {
  ad_plan_memory wide, own;
  ad_full_bytes full_bytes, ignored;
  int rounds = !ad_check_is_wide(job->recipe, job->options);
  AD_TRY(act_alone(alone, ad_check_dtype(job->options), &own, &full_bytes));
  AD_TRY(act_alone(alone, AD_F64, &wide, &ignored));
  to->full = (size_t)ranks * (full_bytes.own + (rounds ? 2 * full_bytes.wide : 0));
  if (job->options->directional) return AD_OK;
  to->reference = ad_plan_peak(&wide) + ad_plan_peak(&own);
  if (rounds) to->reference += 2 * full_bytes.wide + AD_DRAWS * full_bytes.wide / 2;
  if (!rounds) to->reference -= own.activations + own.runtime;
  if (job->steps > 1) to->reference += ad_plan_peak(&own);
  return AD_OK;
}

static ad_status measure_memory(const ad_check_job *job, int64_t ranks, ad_check_needs *out) {
  ad_recipe recipe = *job->recipe, alone;
  recipe.checkpoint.every = 0;
  AD_TRY(ad_plan_needs(&recipe, ad_check_dtype(job->options), &out->ranks));
  ad_status status = ad_alone_create(&recipe, &alone);
  if (!status) status = add_reference(&alone, job, ranks, out);
  ad_alone_release(&alone);
  return status;
}

static size_t all(const ad_check_needs *needs) { return needs->ranks + needs->full + needs->reference; }

ad_status ad_check_fits(const ad_check_job *jobs, size_t count, const char *root) {
  ad_check_needs most = {0};
  int64_t ranks = 0;
  char what[256];
  AD_TRY(ad_gemm_try());
  AD_TRY(ad_recipe_world(jobs->recipe, &ranks));
  for (size_t i = 0; i < count; i++) {
    ad_check_needs needs = {0};
    AD_TRY(measure_memory(&jobs[i], ranks, &needs));
    if (all(&needs) > all(&most)) most = needs;
  }
  snprintf(what, sizeof what,
           "the check (its ranks %zu MiB, full gradients on each %zu MiB, the reference %zu MiB) needs",
           most.ranks >> 20, most.full >> 20, most.reference >> 20);
  return ad_memory_fits(root, what, all(&most));
}
