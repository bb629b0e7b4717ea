/* Opening what is sampled: which of the two kinds of folder it is, its recipe, its program, its values. */
#include "sample/model.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "addend/checkpoint.h"
#include "architecture/folder.h"
#include "architecture/tensors.h"
#include "base/error.h"
#include "base/memory.h"
#include "check/alone.h"
#include "export/values.h"
#include "files/file.h"
#include "kernels/kernels.h"
#include "recipe/recipe.h"
#include "train/provenance.h"

/* ---- the recipe ---- */

/* What config.json says, as a recipe; the rest of it is of no account. */
static void print_recipe(const ad_config *config, FILE *to) {
  fprintf(to, "name: sample\nmesh: \"dp_shard=1\"\nmodel:\n  kind: %s\n", config->architecture->kind);
  for (size_t i = 0; i < config->count; i++)
    fprintf(to, "  %s: %s\n", config->values[i].key + strlen("model."), config->values[i].text);
  fprintf(to, "data: {tokens: [none.npy], seq: 2}\ntrain: {global_batch: 1, steps: 1, lr: 1}\n");
}

static ad_status parse_config(const ad_config *config, const char *path, ad_recipe **out) {
  char *text = NULL;
  size_t size;
  if (config->refused_count) return ad_fail(AD_INVALID, "%s: %s", path, config->refused[0]);
  FILE *file = open_memstream(&text, &size);
  if (!file) return ad_fail(AD_MEMORY, "no memory to read %s", path);
  print_recipe(config, file);
  ad_status status =
      fclose(file) ? ad_fail(AD_MEMORY, "no memory to read %s", path) : ad_recipe_parse(text, path, NULL, 0, out);
  free(text);
  return status;
}

static ad_status recipe_of_run(const char *run, const json_t *provenance, ad_recipe **out) {
  const char *text = json_string_value(json_object_get(provenance, "recipe"));
  if (!text) return ad_fail(AD_INVALID, "%s: its run.json has no recipe", run);
  return ad_recipe_parse(text, "run.json", NULL, 0, out);
}

/* ---- the program ---- */

static ad_status find_decoder(ad_sample_model *model) {
  const ad_program_kind *kind = ad_program_kind_of(model->program);
  if (kind->open != ad_text_decoder_open)
    return ad_fail(AD_INVALID, "%s is no decoder of text: gpt and moe are sampled", kind->name);
  model->text = ad_program_own(model->program);
  return AD_OK;
}

static ad_status create_program(ad_sample_model *model) {
  AD_TRY(ad_alone_create(model->recipe, &model->alone));
  model->alone.train.global_batch = model->alone.train.microbatches = 1;
  AD_TRY(ad_comm_open_alone(&model->comm));
  AD_TRY(ad_recipe_program(&model->alone, model->comm, 0, &model->program));
  AD_TRY(find_decoder(model));
  return ad_program_params_list(model->program, &model->params);
}

/* ---- memory ---- */

static ad_status describe(const ad_shape *shape, const ad_layout *layout, ad_dtype dtype, ad_array *out) {
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
    AD_TRY(describe(&spec->shape, &spec->layout, dtype_of(spec, dtype), &model->arrays[i]));
  }
  const ad_module_spec *module = ad_program_module(model->program, 0);
  AD_TRY(ad_new(module->state_count, &model->states));
  for (; model->state_count < module->state_count; model->state_count++) {
    const ad_state_spec *spec = &module->states[model->state_count];
    AD_TRY(describe(&spec->shape, &spec->layout, spec->dtype, &model->states[model->state_count]));
  }
  return AD_OK;
}

/* ---- values from Transformers' files ---- */

static ad_status read_tensor(const ad_sample_model *model, const ad_architecture *architecture,
                             const ad_weights *weights, size_t i) {
  ad_tensor_source source;
  ad_array *array = &model->arrays[i];
  ad_part whole;
  if (!ad_tensor_source_find(architecture, model->params.list[i].name, &array->shape, &source))
    return ad_fail(AD_INVALID, "%s has no place for %s", architecture->name, model->params.list[i].name);
  ad_part_of(&array->layout, &array->shape, 0, &whole);
  return ad_tensor_source_read(&source, weights, &whole, array->dtype, array->data);
}

static ad_status read_tensors(const ad_sample_model *model, const ad_architecture *architecture, const char *folder) {
  ad_weights *weights;
  AD_TRY(ad_pretrained_weights(folder, &weights));
  ad_status status = ad_program_check_weights(model->program, architecture, weights);
  for (size_t i = 0; !status && i < model->params.count; i++) status = read_tensor(model, architecture, weights, i);
  ad_weights_close(weights);
  return status;
}

static ad_status open_config(const char *folder, const ad_config *config, const char *path, ad_dtype dtype,
                             ad_sample_model *out) {
  AD_TRY(parse_config(config, path, &out->recipe));
  AD_TRY(create_program(out));
  AD_TRY(make_arrays(out, dtype));
  return read_tensors(out, config->architecture, folder);
}

static ad_status open_folder(const char *folder, ad_dtype dtype, ad_sample_model *out) {
  ad_config config = {0};
  char *path = NULL;
  ad_status status = ad_pretrained_config(folder, &path, &config);
  if (!status) status = open_config(folder, &config, path, dtype, out);
  ad_config_release(&config);
  ad_release(path);
  return status;
}

/* ---- values of a run ---- */

static void take_values(const ad_sample_model *model, const ad_export_values *values) {
  for (size_t i = 0; i < model->params.count; i++) {
    ad_dtype dtype;
    const void *value = ad_export_value(values, model->params.list, i, &dtype);
    ad_cast(model->arrays[i].data, model->arrays[i].dtype, value, dtype, ad_array_numel(&model->arrays[i]));
  }
}

static ad_status read_values(const ad_sample_model *model, const char *run, const json_t *provenance) {
  ad_export_values values;
  int is_finished = json_object_get(provenance, "finished") != NULL;
  AD_TRY(ad_export_values_open(run, is_finished, model->params.list, model->params.count, &values));
  take_values(model, &values);
  ad_export_values_close(&values);
  return AD_OK;
}

/* Weights have no states: they are a checkpoint's. */
static ad_status load_states(const ad_sample_model *model, const char *folder, char (*names)[AD_PROGRAM_NAME_SIZE],
                             ad_checkpoint_value *list) {
  const ad_module_spec *module = ad_program_module(model->program, 0);
  for (size_t i = 0; i < model->state_count; i++) {
    snprintf(names[i], sizeof names[i], "state.%s.%s", module->name, module->states[i].name);
    list[i] = (ad_checkpoint_value){names[i], &model->states[i]};
  }
  ad_checkpoint_state state = {.size = sizeof state, .values = list, .value_count = model->state_count, .some = 1};
  return ad_checkpoint_load(model->comm, module->mesh, folder, &state);
}

static ad_status read_states(const ad_sample_model *model, const char *run) {
  char(*names)[AD_PROGRAM_NAME_SIZE] = NULL, *folder = NULL;
  ad_checkpoint_value *list = NULL;
  if (!model->state_count) return AD_OK;
  ad_status status = ad_path_in(run, "checkpoints", &folder);
  if (!status) status = ad_new(model->state_count, &names);
  if (!status) status = ad_new(model->state_count, &list);
  if (!status) status = load_states(model, folder, names, list);
  ad_release(list);
  ad_release(names);
  ad_release(folder);
  return status;
}

static ad_status open_provenance(const char *run, const json_t *provenance, ad_dtype dtype, ad_sample_model *out) {
  AD_TRY(recipe_of_run(run, provenance, &out->recipe));
  AD_TRY(create_program(out));
  AD_TRY(make_arrays(out, dtype));
  AD_TRY(read_values(out, run, provenance));
  return read_states(out, run);
}

static ad_status open_run(const char *run, ad_dtype dtype, ad_sample_model *out) {
  json_t *provenance;
  AD_TRY(ad_provenance_read(run, &provenance));
  ad_status status = open_provenance(run, provenance, dtype, out);
  json_decref(provenance);
  return status;
}

/* ---- either ---- */

static int has(const char *folder, const char *name) {
  char *path;
  if (ad_path_in(folder, name, &path)) return 0;
  int is_there = !access(path, F_OK);
  ad_release(path);
  return is_there;
}

ad_status ad_sample_model_open(const char *from, ad_dtype dtype, ad_sample_model *out) {
  *out = (ad_sample_model){0};
  ad_status status = has(from, "run.json") ? open_run(from, dtype, out) : open_folder(from, dtype, out);
  if (status) ad_sample_model_close(out);
  return status;
}

void ad_sample_model_close(ad_sample_model *model) {
  for (size_t i = 0; model->arrays && i < model->params.count; i++) ad_release(model->arrays[i].data);
  for (size_t i = 0; i < model->state_count; i++) ad_release(model->states[i].data);
  ad_release(model->arrays);
  ad_release(model->states);
  ad_program_params_release(&model->params);
  ad_program_destroy(model->program);
  ad_comm_close(model->comm);
  if (model->recipe) ad_alone_release(&model->alone);
  ad_recipe_destroy(model->recipe);
  *model = (ad_sample_model){0};
}
