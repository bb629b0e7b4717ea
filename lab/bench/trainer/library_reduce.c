/* The task "reducer": zeros of the shapes of a measured model's gradients go through the reducer; no model runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measured.h"
#include "program/program.h"
#include "recipe/recipe.h"

struct bench_gradients {
  ad_mesh *mesh; /* the ranks that reduce */
  ad_recipe *recipe;
  ad_comm *paper; /* a comm on which the model is only declared, to know its shapes */
  ad_program *program;
  ad_reducer *reducer;
  size_t count;
  int scales;
  ad_array *grads; /* in ordinary memory, outside the buckets */
};

static ad_status make_model(bench_gradients *gradients, const bench_model *model, int64_t rank, int64_t ranks) {
  bench_setting setting = bench_setting_of(model, "dp_replicate", 1);
  char text[64];
  snprintf(text, sizeof text, "dp_replicate=%lld", (long long)ranks);
  AD_TRY(ad_mesh_create_pool(text, rank, &gradients->mesh));
  AD_TRY(bench_recipe(&setting, &gradients->recipe));
  AD_TRY(ad_comm_open_dry(0, 1, &gradients->paper));
  AD_TRY(ad_recipe_program(gradients->recipe, gradients->paper, 0, &gradients->program));
  gradients->count = ad_program_module(gradients->program, 0)->param_count;
  return AD_OK;
}

static const ad_param_spec *param_of(const bench_gradients *gradients, size_t i) {
  return &ad_program_module(gradients->program, 0)->params[i];
}

static ad_status make_reducer(bench_gradients *gradients, ad_comm *comm, ad_dtype reduce) {
  ad_param_spec *specs = calloc(gradients->count, sizeof *specs);
  ad_layout replicated = ad_layout_all(gradients->mesh, AD_R);
  if (!specs) return AD_MEMORY;
  for (size_t i = 0; i < gradients->count; i++) {
    const ad_param_spec *param = param_of(gradients, i);
    specs[i] = (ad_param_spec){.size = sizeof(ad_param_spec),
                               .name = param->name,
                               .shape = param->shape,
                               .layout = replicated,
                               .storage = replicated,
                               .policy = {.grad = reduce, .reduce = reduce}};
  }
  ad_status status = ad_reducer_create(comm, specs, gradients->count, NULL, &gradients->reducer);
  free(specs);
  return status;
}

static ad_status make_grads(bench_gradients *gradients, ad_comm *comm) {
  gradients->grads = calloc(gradients->count, sizeof *gradients->grads);
  if (!gradients->grads) return AD_MEMORY;
  for (size_t i = 0; i < gradients->count; i++) {
    const ad_param_spec *param = param_of(gradients, i);
    ad_layout layout = ad_layout_all(gradients->mesh, AD_P);
    gradients->grads[i] = ad_array_describe(comm, AD_F32, &param->shape, &layout);
    size_t bytes = ad_array_bytes(&gradients->grads[i]);
    gradients->grads[i].data = malloc(bytes);
    if (!gradients->grads[i].data) return AD_MEMORY;
    memset(gradients->grads[i].data, 0, bytes);
  }
  return AD_OK;
}

static ad_status make(bench_gradients *gradients, ad_comm *comm, const bench_model *model, ad_dtype reduce, int alone) {
  AD_TRY(make_model(gradients, model, alone ? ad_comm_rank(comm) : 0, alone ? 1 : ad_comm_size(comm)));
  AD_TRY(make_reducer(gradients, comm, reduce));
  gradients->scales = alone && reduce == AD_F16;
  return make_grads(gradients, comm);
}

ad_status bench_gradients_create(ad_comm *comm, const bench_model *model, ad_dtype reduce, int alone,
                                 bench_gradients **out) {
  bench_gradients *gradients = calloc(1, sizeof *gradients);
  if (!gradients) return AD_MEMORY;
  ad_status status = make(gradients, comm, model, reduce, alone);
  if (status) return bench_gradients_destroy(gradients), status;
  *out = gradients;
  return AD_OK;
}

void bench_gradients_destroy(bench_gradients *gradients) {
  if (!gradients) return;
  for (size_t i = 0; gradients->grads && i < gradients->count; i++) free(gradients->grads[i].data);
  free(gradients->grads);
  if (gradients->reducer) ad_reducer_destroy(gradients->reducer);
  if (gradients->program) ad_program_destroy(gradients->program);
  if (gradients->paper) ad_comm_close(gradients->paper);
  if (gradients->recipe) ad_recipe_destroy(gradients->recipe);
  if (gradients->mesh) ad_mesh_destroy(gradients->mesh);
  free(gradients);
}

/* Adds a gradient as a backward does: written in place in the bucket, or copied from other memory. */
static ad_status add(bench_gradients *gradients, size_t param, int in_place) {
  ad_array target = gradients->grads[param];
  int adds;
  if (in_place) AD_TRY(ad_reducer_target(gradients->reducer, param, &target, &adds));
  return ad_reducer_add(gradients->reducer, param, &target);
}

/* Counts one more microbatch without gradients: with two addends an f16 sum carries a scale. */
static ad_status count_one_more(ad_reducer *reducer) {
  AD_TRY(ad_reducer_begin_microbatch(reducer, AD_SYNC_NONE));
  return ad_reducer_end_microbatch(reducer);
}

ad_status bench_gradients_run(bench_gradients *gradients, int in_place) {
  if (gradients->scales) AD_TRY(count_one_more(gradients->reducer));
  AD_TRY(ad_reducer_begin_microbatch(gradients->reducer, AD_SYNC_ALL));
  for (size_t i = gradients->count; i-- > 0;) AD_TRY(add(gradients, i, in_place));
  AD_TRY(ad_reducer_end_microbatch(gradients->reducer));
  return ad_reducer_finish(gradients->reducer);
}
