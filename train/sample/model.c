/* Creates the program that is sampled, in one process, and memory for its values. */
#include "sample/model.h"

#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "recipe/recipe.h"

/* ---- creating the program for one process ---- */

static ad_status check_kind(const ad_program_kind *kind) {
  char known[256];
  if (kind->sampling.next) return AD_OK;
  return ad_fail(AD_INVALID,
                 "the program `%s` is not a text decoder, but only text decoders (%s) can be sampled; name a run of "
                 "one of these programs",
                 kind->name, ad_program_kinds_sampled(known, sizeof known));
}

/* Replaces all meshes by dp_shard=1. An axis cp, even of size 1, would shard the sequence, but keys and values that are
 * kept between calls must not be sharded. */
static ad_status shard_nothing(ad_recipe *alone) {
  for (size_t i = 0; i < alone->mesh_count; i++) {
    ad_release(alone->meshes[i].text);
    alone->meshes[i].text = NULL;
    AD_TRY(ad_copy_string("dp_shard=1", &alone->meshes[i].text));
  }
  return AD_OK;
}

static ad_status create_program(const ad_recipe *recipe, ad_sample_model *model) {
  AD_TRY(ad_alone_create(recipe, &model->alone));
  AD_TRY(shard_nothing(&model->alone));
  if (recipe->program->sampling.prepare)
    AD_GUEST_VOID(recipe->program, "sampling.prepare", recipe->program->sampling.prepare(model->alone.options));
  model->alone.train.global_batch = model->alone.train.microbatches = 1;
  model->alone.train.leaves = 0;
  AD_TRY(ad_comm_open_alone(&model->comm));
  AD_TRY(ad_recipe_program(&model->alone, model->comm, 0, &model->program));
  AD_TRY(check_kind(recipe->program));
  return ad_program_params_list(model->program, &model->params);
}

/* ---- allocating the program's arrays ---- */

static ad_status new_array(const ad_shape *shape, const ad_layout *layout, ad_dtype dtype, ad_array *out) {
  *out = (ad_array){.dtype = dtype, .shape = *shape, .local = *shape, .layout = *layout};
  return ad_new_bytes((size_t)ad_shape_numel(shape), ad_dtype_size(dtype), &out->data);
}

static ad_dtype dtype_of(const ad_param_spec *spec, ad_dtype dtype) {
  return spec->shape.ndim < 2 || spec->wide ? ad_dtype_wide(dtype) : dtype;
}

static ad_status make_arrays(ad_sample_model *model, ad_dtype dtype) {
  AD_TRY(ad_new(model->params.count, &model->arrays));
  for (size_t i = 0; i < model->params.count; i++) {
    const ad_param_spec *spec = &model->params.list[i];
    AD_TRY(new_array(&spec->shape, &spec->layout, dtype_of(spec, dtype), &model->arrays[i]));
  }
  const ad_module_spec *module = ad_program_module(model->program, 0);
  AD_TRY(ad_new(module->state_count, &model->states));
  for (; model->state_count < module->state_count; model->state_count++) {
    const ad_state_spec *spec = &module->states[model->state_count];
    AD_TRY(new_array(&spec->shape, &spec->layout, spec->dtype, &model->states[model->state_count]));
  }
  return AD_OK;
}

/* ---- creating and releasing a model ---- */

ad_status ad_sample_model_create(const ad_recipe *recipe, ad_dtype dtype, ad_sample_model *out) {
  *out = (ad_sample_model){0};
  ad_status status = create_program(recipe, out);
  if (!status) status = make_arrays(out, dtype);
  if (status) ad_sample_model_release(out);
  return status;
}

void ad_sample_model_release(ad_sample_model *model) {
  for (size_t i = 0; model->arrays && i < model->params.count; i++) ad_release(model->arrays[i].data);
  for (size_t i = 0; i < model->state_count; i++) ad_release(model->states[i].data);
  ad_release(model->arrays);
  ad_release(model->states);
  ad_program_params_release(&model->params);
  ad_program_destroy(model->program);
  ad_comm_close(model->comm);
  if (model->alone.program) ad_alone_release(&model->alone);
  *model = (ad_sample_model){0};
}
