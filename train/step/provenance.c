/* Makes run.json from the run, its recipe, the process and the machine. */
#include "step/provenance.h"

#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>
#include "architecture/folder.h"
#include "base/dtypes.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/process.h"
#include "files/file.h"
#include "files/json.h"
#include "base/unfinished.h"
#include "kernels/kernels.h"
#include "products/blas.h"
#include "products/products.h"
#include "program/program.h"
#include "recipe/changes.h"
#include "recipe/recipe.h"
#include "step/companions.h"
#include "step/run.h"

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

static ad_status no_memory(void) { return ad_fail(AD_MEMORY, "no memory to write run.json"); }

/* Functions of this file that set a member return 0, or nonzero if there is no memory. A value that could not be made
 * is NULL, with which jansson fails, too. */
static int put_member(json_t *object, const char *key, json_t *value) {
  return json_object_set_new(object, key, value);
}
static int put_text(json_t *object, const char *key, const char *text) {
  return put_member(object, key, ad_json_text(text));
}
static int put_integer(json_t *object, const char *key, int64_t value) {
  return put_member(object, key, json_integer(value));
}

/* ---- writing the process and machine ---- */

static json_t *date_now(void) {
  char text[32];
  struct tm parts;
  time_t now = time(NULL);
  strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
  return json_string(text);
}

/* Returns the words of the process's command line, as they were typed. */
static json_t *command_of(void) {
  enum { COMMAND_BYTES_MAX = 1 << 15 };
  char words[COMMAND_BYTES_MAX];
  size_t size = ad_process_command(words, sizeof words);
  json_t *command = json_array();
  for (const char *word = words; word < words + size; word += strlen(word) + 1)
    json_array_append_new(command, ad_json_text(word));
  return command;
}

static int put_machine(json_t *document) {
  struct utsname system;
  char processor[256], products[AD_PRODUCTS_TEXT];
  int failed = uname(&system) ? 0 : put_text(document, "host", system.nodename);
  return failed | put_text(document, "processor", ad_processor_print(processor, sizeof processor)) |
         put_text(document, "kernels", ad_kernels_name(ad_kernels_variant())) |
         put_text(document, "products", ad_products_print(products)) |
         put_integer(document, "product_threads", ad_blas_threads());
}

/* ---- writing the run ---- */

static int64_t element_count(const ad_run *run) {
  int64_t numel = 0;
  for (size_t i = 0; i < ad_run_param_count(run); i++) numel += ad_shape_numel(&ad_run_param_at(run, i).spec->shape);
  return numel;
}

/* Returns the recipe's mesh: a text, or an object with a text for each module. */
static json_t *mesh_of(const ad_recipe *recipe) {
  if (!recipe->meshes[0].module) return json_string(recipe->meshes[0].text);
  json_t *meshes = json_object();
  for (size_t i = 0; i < recipe->mesh_count; i++) put_text(meshes, recipe->meshes[i].module, recipe->meshes[i].text);
  return meshes;
}

/* Lists the ranks of each module's pool. */
static json_t *pools_of(const ad_run *run) {
  json_t *pools = json_array();
  for (size_t i = 0; i < ad_program_module_count(run->program); i++) {
    const ad_module_spec *spec = ad_program_module(run->program, i);
    json_array_append_new(
        pools, json_pack("{s:s, s:I, s:I}", "module", spec->name, "first_rank",
                         (json_int_t)ad_mesh_first_rank(spec->mesh), "ranks", (json_int_t)ad_mesh_size(spec->mesh)));
  }
  return pools;
}

static int put_placement(json_t *document, const ad_run *run) {
  if (!run->recipe->placement) return 0;
  int failed = put_text(document, "placement", run->recipe->placement);
  return ad_recipe_is_disjoint(run->recipe) ? failed | put_member(document, "pools", pools_of(run)) : failed;
}

/* Lists the facts that the program reports about its data. */
static json_t *facts_of(const ad_run *run) {
  const ad_program_kind *kind = ad_program_kind_of(run->program);
  json_t *facts = json_array();
  char text[256];
  const char *name;
  for (size_t i = 0;
       kind->account.fact &&
       (name = AD_GUEST(kind, "fact", kind->account.fact(ad_program_own(run->program), i, text, sizeof text)));
       i++)
    json_array_append_new(facts, json_pack("[s, o]", name, ad_json_text(text)));
  return facts;
}

/* Adds the loss that a guess with equal probabilities would have, if the program has a loss with which it can be
 * compared. */
static int put_uniform_loss(json_t *document, const ad_run *run) {
  for (size_t i = 0; i < ad_program_loss_count(run->program); i++) {
    double uniform = ad_program_loss(run->program, i)->uniform;
    if (uniform > 0) return put_member(document, "uniform_loss", json_real(uniform));
  }
  return 0;
}

static int put_flops(json_t *document, const ad_run *run) {
  double (*flops)(const void *own, int64_t samples) = ad_program_kind_of(run->program)->account.flops;
  if (!flops) return 0;
  return put_member(document, "flops_per_step",
                    json_real(flops(ad_program_own(run->program), run->recipe->train.global_batch)));
}

static int put_run(json_t *document, const ad_run *run) {
  const ad_recipe *recipe = run->recipe;
  return put_text(document, "backend", ad_comm_backend(run->comm)) |
         put_integer(document, "ranks", ad_comm_size(run->comm)) | put_member(document, "mesh", mesh_of(recipe)) |
         put_placement(document, run) | put_integer(document, "steps", recipe->train.steps) |
         put_integer(document, "parameters", (int64_t)ad_run_param_count(run)) |
         put_integer(document, "elements", element_count(run)) | put_flops(document, run) |
         put_uniform_loss(document, run) | put_text(document, "counted", ad_program_count(run->program, 0)->name) |
         put_member(document, "facts", facts_of(run));
}

/* ---- writing the model that the run starts from ---- */

/* Adds the dtype of most tensors, and the names of those that have another dtype, so that an export can write the same
 * dtypes. */
static int put_dtypes(json_t *document, const ad_weights *weights) {
  size_t counts[AD_DTYPE_END] = {0};
  const ad_safetensors *file;
  ad_dtype most = AD_F64;
  json_t *others = json_object();
  for (size_t f = 0; (file = ad_weights_file(weights, f)); f++)
    for (size_t i = 0; i < ad_safetensors_count(file); i++) counts[ad_safetensors_at(file, i)->dtype]++;
  for (int dtype = AD_F64; dtype < AD_DTYPE_END; dtype++)
    if (counts[dtype] > counts[most]) most = (ad_dtype)dtype;
  for (size_t f = 0; (file = ad_weights_file(weights, f)); f++) {
    for (size_t i = 0; i < ad_safetensors_count(file); i++) {
      const ad_safetensor *tensor = ad_safetensors_at(file, i);
      if (tensor->dtype != most) put_text(others, tensor->name, ad_dtype_name(tensor->dtype));
    }
  }
  return put_text(document, "dtype", ad_dtype_name(most)) | put_member(document, "other_dtypes", others);
}

static ad_status put_from(json_t *document, const ad_recipe *recipe) {
  ad_weights *weights;
  json_t *from;
  if (!recipe->from) return AD_OK;
  AD_TRY(ad_pretrained_weights(recipe->from, &weights));
  from = json_object();
  int failed = put_text(from, "folder", recipe->from) | put_dtypes(from, weights) | put_member(document, "from", from);
  ad_weights_close(weights);
  return failed ? no_memory() : AD_OK;
}

/* ---- writing the recipe ---- */

static json_t *change_document(const ad_recipe_change *change) {
  json_t *document = json_object();
  put_text(document, "key", change->key);
  put_text(document, "value", change->value);
  put_member(document, "default", change->fallback ? json_string(change->fallback) : json_null());
  return document;
}

static ad_status put_changes(json_t *document, const ad_recipe *recipe) {
  ad_recipe_changes changes;
  json_t *list = json_array();
  if (put_member(document, "changed", list)) return no_memory();
  AD_TRY(ad_recipe_changes_list(recipe, &changes));
  for (size_t i = 0; i < changes.count; i++) json_array_append_new(list, change_document(&changes.list[i]));
  ad_recipe_changes_release(&changes);
  return AD_OK;
}

static ad_status put_recipe(json_t *document, const ad_recipe *recipe) {
  char *text;
  AD_TRY(ad_recipe_print(recipe, &text));
  int failed = put_text(document, "recipe", text);
  ad_release(text);
  return failed ? no_memory() : put_changes(document, recipe);
}

/* ---- creating and updating run.json ---- */

ad_status ad_provenance_read(const char *folder, json_t **out) {
  char *path;
  *out = NULL;
  AD_TRY(ad_path_in(folder, "run.json", &path));
  ad_status status = access(path, F_OK) ? AD_OK : ad_json_read(path, out);
  ad_release(path);
  return status;
}

/* Returns the "starts" (one entry for each start of the training) in the folder's run.json; an empty list if there is
 * no run.json or it is damaged. */
static json_t *earlier_starts(const char *folder) {
  json_t *document;
  if (ad_provenance_read(folder, &document)) ad_log(AD_LOG_WARNING, "%s", ad_last_error());
  json_t *starts = json_incref(json_object_get(document, "starts"));
  json_decref(document);
  if (json_is_array(starts)) return starts;
  json_decref(starts);
  return json_array();
}

static ad_status write_provenance(const ad_run *run, const char *folder, int earlier, json_t *document) {
  int failed = put_text(document, "name", run->recipe->name) | put_text(document, "kind", run->recipe->kind) |
               put_text(document, "version", AD_VERSION) | put_text(document, "compiler", COMPILER) |
               put_member(document, "command", command_of()) | put_member(document, "date", date_now()) |
               put_machine(document) | put_run(document, run) |
               put_member(document, "copied", ad_companions_list(run, folder)) |
               put_member(document, "starts", earlier ? earlier_starts(folder) : json_array());
  if (failed) return no_memory();
  AD_TRY(put_from(document, run->recipe));
  return put_recipe(document, run->recipe);
}

const char *ad_provenance_foreign_kind(const json_t *document) {
  const char *kind = json_string_value(json_object_get(document, "kind"));
  return kind && !ad_program_kind_find(kind) ? kind : NULL;
}

ad_status ad_provenance_create(const ad_run *run, const char *folder, int earlier, json_t **out) {
  json_t *document = json_object();
  ad_status status = document ? write_provenance(run, folder, earlier, document) : no_memory();
  if (status)
    json_decref(document);
  else
    *out = document;
  return status;
}

ad_status ad_provenance_start(json_t *document, int64_t first_step) {
  json_t *start = json_object();
  int failed = put_member(start, "command", json_incref(json_object_get(document, "command"))) |
               put_member(start, "date", json_incref(json_object_get(document, "date"))) |
               put_integer(start, "first_step", first_step);
  return json_array_append_new(json_object_get(document, "starts"), start) || failed ? no_memory() : AD_OK;
}

ad_status ad_provenance_end(json_t *document, int finished) {
  json_t *starts = json_object_get(document, "starts"), *date = date_now();
  size_t count = json_array_size(starts);
  int failed = count ? json_object_set(json_array_get(starts, count - 1), "ended", date) : 0;
  if (finished) failed |= json_object_set(document, "finished", date);
  json_decref(date);
  return failed ? no_memory() : AD_OK;
}

static ad_status write_document(FILE *file, void *context) {
  int failed = json_dumpf(context, file, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));
  fputs("\n", file);
  return failed && !ferror(file) ? no_memory() : AD_OK;
}

ad_status ad_provenance_write(json_t *document, const char *folder) {
  char *path;
  AD_TRY(ad_path_in(folder, "run.json", &path));
  ad_status status = ad_unfinished_write(path, write_document, document, NULL);
  ad_release(path);
  return status;
}
