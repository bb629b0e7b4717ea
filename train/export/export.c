/* Exports a run: reads the run's files, finds the model's architecture and its tensors, and writes them. */
#include "addend/export.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "architecture/folder.h"
#include "base/dtypes.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/unfinished.h"
#include "export/express.h"
#include "export/place.h"
#include "export/shards.h"
#include "export/values.h"
#include "files/file.h"
#include "files/json.h"
#include "program/weights.h"
#include "recipe/paper.h"
#include "step/provenance.h"

static const int64_t usual_shard = 5000000000;

typedef struct exporting {
  const char *run;
  ad_export_options options;
  json_t *provenance; /* the contents of run.json */
  ad_recipe *recipe;
  ad_paper paper;
  ad_program_params params;
  const ad_architecture *architecture;
  ad_export_values values;
  ad_export_tensor *tensors;
  size_t count;
  ad_exported done;
} exporting;

/* ---- reading the run: recipe, architecture, states ---- */

static ad_status read_recipe(exporting *e) {
  AD_TRY(ad_provenance_read(e->run, &e->provenance));
  const char *text = json_string_value(json_object_get(e->provenance, "recipe"));
  if (!text)
    return ad_fail(AD_INVALID,
                   "%s: this is not the folder of a run, since it has no run.json with a recipe; name the folder that "
                   "`addend train` wrote",
                   e->run);
  const char *kind = ad_provenance_foreign_kind(e->provenance);
  char known[256];
  if (kind)
    return ad_fail(AD_INVALID,
                   "%s: this is a run of the custom program `%s`, but Transformers has architectures only for the "
                   "programs %s; name a run of one of these",
                   e->run, kind, ad_program_kinds_exported(known, sizeof known));
  return ad_recipe_parse(text, "run.json", NULL, 0, &e->recipe);
}

/* Finds the architecture of the model from which the run started (model.from), in the copy of its config.json in the
 * run's folder. */
static ad_status read_architecture(exporting *e) {
  ad_config config = {0};
  char *path = NULL;
  ad_status status = ad_pretrained_config(e->run, &path, &config);
  if (!status) e->architecture = config.architecture;
  ad_config_release(&config);
  ad_release(path);
  return status;
}

static ad_status find_architecture(exporting *e) {
  return e->recipe->from ? read_architecture(e) : ad_express_find(e->recipe, &e->architecture);
}

/* Returns AD_INVALID if the model has states besides its parameters, because no architecture has tensors for states. */
static ad_status check_states(const exporting *e) {
  for (size_t m = 0; m < ad_program_module_count(e->paper.program); m++) {
    const ad_module_spec *module = ad_program_module(e->paper.program, m);
    if (module->state_count)
      return ad_fail(AD_INVALID,
                     "%s: the model cannot be exported, because the model has the state `%s`, for which the "
                     "architecture %s of Transformers has no tensor; export a model without this state",
                     e->run, module->states[0].name, e->architecture->name);
  }
  return AD_OK;
}

/* Reads the run's recipe, its architecture and its parameters. */
static ad_status look_at_run(exporting *e) {
  AD_TRY(read_recipe(e));
  AD_TRY(ad_paper_open(e->recipe, &e->paper));
  AD_TRY(find_architecture(e));
  AD_TRY(check_states(e));
  return ad_program_params_list(e->paper.program, &e->params);
}

/* ---- listing the tensors to be written ---- */

/* Returns the dtype in which a tensor is written: the requested one; else that of the file from which the run read the
 * tensor; else that of the run's parameters. */
static ad_dtype dtype_of(const exporting *e, const char *tensor, const ad_param_spec *param) {
  const json_t *from = json_object_get(e->provenance, "from");
  const char *name = json_string_value(json_object_get(json_object_get(from, "other_dtypes"), tensor));
  ad_dtype dtype;
  if (e->options.dtype) return e->options.dtype;
  if (!name) name = json_string_value(json_object_get(from, "dtype"));
  return name && !ad_dtype_parse(name, &dtype) ? dtype : param->policy.param;
}

static void add_tensors(exporting *e, size_t param, const ad_tensor_source *source) {
  for (int64_t i = 0; i < source->count; i++) {
    ad_export_tensor *tensor = &e->tensors[e->count++];
    *tensor = (ad_export_tensor){.param = param, .piece = i, .shape = source->shape};
    ad_tensor_source_name(source, i, tensor->name);
    tensor->dtype = dtype_of(e, tensor->name, &e->params.list[param]);
  }
}

static ad_status find_source(const exporting *e, size_t param, ad_tensor_source *out) {
  const ad_param_spec *spec = &e->params.list[param];
  if (ad_tensor_source_find(e->architecture, spec->name, &spec->shape, out)) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: the model cannot be exported, because the architecture %s of Transformers has no tensor for the "
                 "parameter `%s`; only models without this parameter can be exported",
                 e->run, e->architecture->name, spec->name);
}

/* Compares tensors by dtype, wider ones first, so that every tensor in a file is aligned; and within a dtype by their
 * order in the model. */
static int by_width(const void *a, const void *b) {
  const ad_export_tensor *x = a, *y = b;
  size_t x_size = ad_dtype_size(x->dtype), y_size = ad_dtype_size(y->dtype);
  if (x_size != y_size) return x_size > y_size ? -1 : 1;
  if (x->param != y->param) return x->param < y->param ? -1 : 1;
  return x->piece < y->piece ? -1 : x->piece > y->piece;
}

/* Lists the tensors in the order in which they are written. */
static ad_status list_tensors(exporting *e) {
  ad_tensor_source source;
  size_t count = 0;
  for (size_t i = 0; i < e->params.count; i++) {
    AD_TRY(find_source(e, i, &source));
    count += (size_t)source.count;
  }
  AD_TRY(ad_new(count, &e->tensors));
  for (size_t i = 0; i < e->params.count; i++) {
    AD_TRY(find_source(e, i, &source));
    add_tensors(e, i, &source);
  }
  qsort(e->tensors, e->count, sizeof *e->tensors, by_width);
  return AD_OK;
}

static ad_status write_tensor(void *context, const ad_export_tensor *tensor, void *memory) {
  const exporting *e = context;
  ad_tensor_source source;
  ad_dtype dtype;
  AD_TRY(find_source(e, tensor->param, &source));
  const void *value = ad_export_value(&e->values, e->params.list, tensor->param, &dtype);
  ad_tensor_source_write(&source, tensor->piece, value, dtype, tensor->dtype, memory);
  return AD_OK;
}

/* ---- writing config.json ---- */

static ad_status print_config(FILE *file, void *context) {
  int failed = json_dumpf(context, file, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
  fputs("\n", file);
  return failed && !ferror(file) ? ad_fail(AD_MEMORY, "no memory to write config.json") : AD_OK;
}

static ad_status write_config(const char *folder, json_t *config) {
  char *path;
  AD_TRY(ad_path_in(folder, "config.json", &path));
  ad_status status = ad_unfinished_write(path, print_config, config, NULL);
  ad_release(path);
  return status;
}

/* Changes the dtype in the copy of config.json. */
static ad_status change_dtype(const exporting *e, const char *folder) {
  char *path;
  json_t *config = NULL;
  AD_TRY(ad_path_in(folder, "config.json", &path));
  ad_status status = ad_json_read(path, &config);
  ad_release(path);
  if (status) return status;
  const char *key = json_object_get(config, "dtype") ? "dtype" : "torch_dtype";
  json_object_set_new(config, key, json_string(ad_express_dtype(e->options.dtype)));
  status = write_config(folder, config);
  json_decref(config);
  return status;
}

static ad_status make_config(const exporting *e, const char *folder) {
  json_t *config;
  ad_dtype dtype = e->options.dtype ? e->options.dtype : e->recipe->precision.policy.param;
  AD_TRY(ad_express_config(e->recipe, e->architecture, dtype, &config));
  ad_status status = write_config(folder, config);
  json_decref(config);
  return status;
}

static ad_status write_rest(const exporting *e, const char *folder) {
  if (!e->recipe->from) return make_config(e, folder);
  AD_TRY(ad_pretrained_copy(e->run, folder));
  return e->options.dtype ? change_dtype(e, folder) : AD_OK;
}

/* ---- exporting a run ---- */

static ad_status write_folder(exporting *e, const char *folder) {
  int64_t shard = e->options.shard_bytes ? e->options.shard_bytes : usual_shard;
  AD_TRY(write_rest(e, folder));
  return ad_export_shards(folder, e->tensors, e->count, shard, write_tensor, e, &e->done.files, &e->done.bytes);
}

static ad_status write_all(exporting *e, const char *folder) {
  ad_export_place place;
  AD_TRY(ad_export_begin(folder, e->options.overwrite, &place));
  ad_status status = write_folder(e, place.written);
  return ad_export_end(&place, status);
}

/* Reads the run, lists its tensors, and writes them. */
static ad_status export_run(exporting *e, const char *folder) {
  AD_TRY(look_at_run(e));
  int is_finished = json_object_get(e->provenance, "finished") != NULL;
  AD_TRY(ad_export_values_open(e->run, is_finished, e->params.list, e->params.count, &e->values));
  AD_TRY(list_tensors(e));
  AD_TRY(write_all(e, folder));
  const json_t *steps = json_object_get(e->provenance, "steps");
  e->done.architecture = e->architecture->name;
  e->done.steps = steps ? json_integer_value(steps) : -1;
  e->done.tensors = (int64_t)e->count;
  return AD_OK;
}

static void release_export(exporting *e) {
  ad_export_values_close(&e->values);
  ad_program_params_release(&e->params);
  ad_release(e->tensors);
  if (e->paper.program) ad_paper_close(&e->paper);
  ad_recipe_destroy(e->recipe);
  json_decref(e->provenance);
}

ad_status ad_export(const char *run, const char *folder, const ad_export_options *options, ad_exported *out) {
  AD_NEED(run, folder);
  char floats[AD_DTYPES_TEXT];
  exporting e = {.run = run};
  AD_TRY(ad_options_take(&e.options, sizeof e.options, options, "ad_export_options"));
  if (e.options.dtype && !ad_dtype_is_float(e.options.dtype))
    return ad_fail(AD_INVALID, "weights cannot be written as %s; use %s", ad_dtype_name(e.options.dtype),
                   ad_dtypes_print(ad_dtype_is_float, NULL, "or", floats));
  ad_status status = export_run(&e, folder);
  release_export(&e);
  if (!status && out) *out = e.done;
  return status;
}
