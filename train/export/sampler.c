/* Opens a sampler: finds out what kind of folder it is given, and reads the recipe and the parameters' values. */
#include "addend/sample.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "addend/checkpoint.h"
#include "architecture/folder.h"
#include "architecture/tensors.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/text_stream.h"
#include "checkpoint/checkpoint_folder.h"
#include "export/values.h"
#include "files/file.h"
#include "kernels/kernels.h"
#include "recipe/prompts.h"
#include "recipe/recipe.h"
#include "sample/sampler.h"
#include "step/provenance.h"

enum { STATE_NAME_SIZE = sizeof "state." + AD_PROGRAM_NAME_SIZE };

/* ---- reading the recipe ---- */

/* Prints a recipe for the model in config.json. Its keys for data, mesh and training are there only because every
 * recipe needs them. */
static void print_recipe(const ad_config *config, FILE *to) {
  fprintf(to, "name: sample\nmesh: \"dp_shard=1\"\nmodel:\n  kind: %s\n",
          ad_program_kind_computing(config->architecture->name)->name);
  for (size_t i = 0; i < config->count; i++)
    fprintf(to, "  %s: %s\n", config->values[i].key + strlen("model."), config->values[i].text);
  fprintf(to, "data: {tokens: [none.npy], seq: 2}\ntrain: {global_batch: 1, steps: 1, lr: 1}\n");
}

/* Makes a recipe from config.json. Returns AD_INVALID if config.json asks for something that addend does not
 * compute. */
static ad_status parse_config(const ad_config *config, const char *path, ad_recipe **out) {
  char *text;
  ad_text_stream to;
  if (config->refused_count) return ad_fail(AD_INVALID, "%s: %s", path, config->refused[0]);
  AD_TRY(ad_text_stream_open("the recipe of a model", &to));
  print_recipe(config, to.file);
  AD_TRY(ad_text_stream_close(&to, AD_OK, &text));
  ad_status status = ad_recipe_parse(text, path, NULL, 0, out);
  free(text);
  if (!status) {
    (*out)->window = config->window;
    ad_config_report_unread(config, path);
  }
  return status;
}

/* Returns the sliding window of the model from which the run started. The run's folder has that model's config.json. */
static int64_t window_of(const char *run) {
  ad_config config;
  char *path = NULL;
  int64_t window = 0;
  if (!ad_pretrained_config(run, &path, &config)) {
    window = config.window;
    ad_config_release(&config);
  }
  ad_release(path);
  return window;
}

static ad_status recipe_of_run(const char *run, const json_t *provenance, ad_recipe **out) {
  const char *text = json_string_value(json_object_get(provenance, "recipe"));
  if (!text) return ad_fail(AD_INVALID, "%s: the run.json of this folder has no recipe; name the folder of a run", run);
  const char *kind = ad_provenance_foreign_kind(provenance);
  char known[256];
  if (kind)
    return ad_fail(AD_INVALID,
                   "%s: this is a run of the custom program `%s`, but only addend's own text decoders (%s) can be "
                   "sampled; name a run of one of these programs",
                   run, kind, ad_program_kinds_sampled(known, sizeof known));
  AD_TRY(ad_recipe_parse(text, "run.json", NULL, 0, out));
  (*out)->window = window_of(run);
  return AD_OK;
}

/* Makes a sampler that owns the recipe. Releases the recipe on failure. */
static ad_status create_owning(ad_recipe *recipe, const ad_sampler_options *options, ad_sampler **out) {
  ad_status status = ad_sampler_create(recipe, options, out);
  if (status)
    ad_recipe_destroy(recipe);
  else
    (*out)->recipe = recipe;
  return status;
}

/* ---- reading values from Transformers' files ---- */

static ad_status read_tensor(const ad_sample_model *model, const ad_architecture *architecture,
                             const ad_weights *weights, size_t i) {
  ad_tensor_source source;
  ad_array *array = &model->arrays[i];
  ad_part full;
  if (!ad_tensor_source_find(architecture, model->params.list[i].name, &array->shape, &source))
    return ad_fail(AD_INVALID,
                   "the architecture %s of Transformers has no tensor for the model's parameter `%s`; name a folder of "
                   "another architecture",
                   architecture->name, model->params.list[i].name);
  ad_part_of(&array->layout, &array->shape, 0, &full);
  return ad_tensor_source_read(&source, weights, &full, array->dtype, array->data);
}

static ad_status read_tensors(const ad_sample_model *model, const ad_architecture *architecture, const char *folder) {
  ad_weights *weights;
  AD_TRY(ad_pretrained_weights(folder, &weights));
  ad_status status = ad_program_check_weights(model->program, architecture, weights);
  for (size_t i = 0; !status && i < model->params.count; i++) status = read_tensor(model, architecture, weights, i);
  ad_weights_close(weights);
  return status;
}

static ad_status open_config(const char *folder, const ad_config *config, const char *path,
                             const ad_sampler_options *options, ad_sampler **out) {
  ad_recipe *recipe;
  AD_TRY(parse_config(config, path, &recipe));
  AD_TRY(create_owning(recipe, options, out));
  return read_tensors(&(*out)->model, config->architecture, folder);
}

static ad_status open_folder(const char *folder, const ad_sampler_options *options, ad_sampler **out) {
  ad_config config = {0};
  char *path = NULL;
  ad_status status = ad_pretrained_config(folder, &path, &config);
  if (!status) status = open_config(folder, &config, path, options, out);
  ad_config_release(&config);
  ad_release(path);
  return status;
}

/* ---- reading a run's values ---- */

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

/* Loads the states of the model from a checkpoint. */
static ad_status load_states(const ad_sample_model *model, const char *folder, char (*names)[STATE_NAME_SIZE],
                             ad_checkpoint_value *list) {
  const ad_module_spec *module = ad_program_module(model->program, 0);
  for (size_t i = 0; i < model->state_count; i++) {
    snprintf(names[i], sizeof names[i], "state.%s.%s", module->name, module->states[i].name);
    list[i] = (ad_checkpoint_value){names[i], &model->states[i]};
  }
  ad_checkpoint_state state = {.size = sizeof state, .values = list, .value_count = model->state_count, .some = 1};
  return ad_checkpoint_load(model->comm, module->mesh, folder, &state);
}

/* Finds the run's checkpoints. Only they have states; files of weights have none. */
static ad_status find_checkpoints(const ad_sample_model *model, const char *run, char **folder) {
  AD_TRY(ad_path_in(run, "checkpoints", folder));
  if (ad_checkpoint_newest(*folder) >= 0) return AD_OK;
  const ad_module_spec *module = ad_program_module(model->program, 0);
  return ad_fail(AD_INVALID,
                 "%s: this run has no checkpoint, but %s.%s is only in checkpoints, not in weights.safetensors; train "
                 "again with checkpoint.every above 0",
                 run, module->name, module->states[0].name);
}

/* Loads the states of the model from a checkpoint, if the model has states. */
static ad_status read_states(const ad_sample_model *model, const char *run) {
  char(*names)[STATE_NAME_SIZE] = NULL, *folder = NULL;
  ad_checkpoint_value *list = NULL;
  if (!model->state_count) return AD_OK;
  ad_status status = find_checkpoints(model, run, &folder);
  if (!status) status = ad_new(model->state_count, &names);
  if (!status) status = ad_new(model->state_count, &list);
  if (!status) status = load_states(model, folder, names, list);
  ad_release(list);
  ad_release(names);
  ad_release(folder);
  return status;
}

static ad_status open_provenance(const char *run, const json_t *provenance, const ad_sampler_options *options,
                                 ad_sampler **out) {
  ad_recipe *recipe;
  AD_TRY(recipe_of_run(run, provenance, &recipe));
  AD_TRY(create_owning(recipe, options, out));
  AD_TRY(read_values(&(*out)->model, run, provenance));
  return read_states(&(*out)->model, run);
}

static ad_status open_run(const char *run, const ad_sampler_options *options, ad_sampler **out) {
  json_t *provenance;
  AD_TRY(ad_provenance_read(run, &provenance));
  ad_status status = open_provenance(run, provenance, options, out);
  json_decref(provenance);
  return status;
}

/* ---- opening a folder of either kind ---- */

static int has_file(const char *folder, const char *name) {
  char *path;
  if (ad_path_in(folder, name, &path)) return 0;
  int is_there = !access(path, F_OK);
  ad_release(path);
  return is_there;
}

/* Treats a model of 256 tokens without a tokenizer as a model of bytes, because no file of an exported model states
 * this. */
static void look_for_bytes(const char *from, ad_sampler *sampler) {
  if (ad_sampler_vocabulary(sampler) == AD_BYTE_TOKENS && !has_file(from, "tokenizer.json")) sampler->are_bytes = 1;
}

ad_status ad_sampler_open(const char *from, const ad_sampler_options *options, ad_sampler **out) {
  AD_NEED(from, out);
  ad_sampler *sampler = NULL;
  if (access(from, F_OK))
    return ad_fail(AD_IO,
                   "%s: the path cannot be read (%s); name the folder of a run, or of a model as Transformers saves it",
                   from, strerror(errno));
  ad_status status =
      has_file(from, "run.json") ? open_run(from, options, &sampler) : open_folder(from, options, &sampler);
  if (!status) look_for_bytes(from, sampler);
  if (!status) status = ad_ends_read(from, &sampler->ends);
  if (status)
    ad_sampler_close(sampler);
  else
    *out = sampler;
  return status;
}
