/* What several keys say together, what this version does not do yet, and whether the text is there. Ranges of single
 * values are in the schema. */
#include <ctype.h>
#include <fnmatch.h>
#include <string.h>
#include "addend/safetensors.h"
#include "base/error.h"
#include "io/text.h"
#include "recipe/contract.h"
#include "recipe/reading.h"

/* Every key of these was read: only then do they mean something together. */
static int are_read(const ad_reading *r, const char *const *paths, size_t path_count) {
  size_t count;
  const ad_key *keys = ad_schema(&count);
  for (size_t i = 0; i < path_count; i++)
    if (r->wrong[ad_schema_find(paths[i]) - keys]) return 0;
  return 1;
}
#define ARE_READ(r, ...) \
  are_read(r, (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

#define WRONG(r, path, ...) ad_mistakes_add(&(r)->mistakes, ad_reading_place(r, path), path, __VA_ARGS__)

static void check_name(ad_reading *r) {
  const char *name = r->recipe->name;
  if (!ARE_READ(r, "name")) return;
  int good = name[0] != '.' && strlen(name) <= 100;
  for (const char *c = name; *c; c++) good &= isalnum((unsigned char)*c) || strchr("._-", *c);
  if (!good) WRONG(r, "name", "must be letters, digits, '.', '_' and '-' (it names a folder), is %s", name);
}

static void check_model(ad_reading *r) {
  int64_t d_model = r->recipe->model.d_model, heads = r->recipe->model.heads;
  if (!ARE_READ(r, "model.d_model", "model.heads")) return;
  if (d_model % heads)
    WRONG(r, "model.heads", "must divide d_model: %lld is no multiple of %lld", (long long)d_model, (long long)heads);
  else if (d_model / heads % 2)
    WRONG(r, "model.heads", "must leave each head an even width (positions rotate pairs): %lld / %lld is %lld",
          (long long)d_model, (long long)heads, (long long)(d_model / heads));
}

static void check_sync(ad_reading *r) {
  const ad_recipe *recipe = r->recipe;
  size_t count = recipe->train.sync_count;
  if (!count || !ARE_READ(r, "train.sync", "train.microbatches")) return;
  if (count != (size_t)recipe->train.microbatches)
    WRONG(r, "train.sync", "must have one entry per microbatch, has %zu for %lld; leave it out for the usual one",
          count, (long long)recipe->train.microbatches);
  else if (recipe->train.sync[count - 1] != AD_SYNC_ALL)
    WRONG(r, "train.sync", "must end in all, ends in %s", ad_sync_names[recipe->train.sync[count - 1]]);
}

static int is_wide(ad_dtype dtype) { return !dtype || dtype == AD_F32 || dtype == AD_F64; }

static int are_wide(const ad_contract *contract) {
  return is_wide(contract->param) && is_wide(contract->grad) && is_wide(contract->reduce) &&
         is_wide(contract->accumulate);
}

/* Of the dtypes that this version has; check_dtypes tells of the others. */
static ad_status check_contract(const ad_recipe *recipe, ad_contract contract) {
  return are_wide(&contract) ? ad_recipe_complete(recipe, &contract) : AD_OK;
}

/* The key that most likely made a contract wrong. */
static const char *contract_path(const ad_reading *r) {
  static const char *const paths[] = {"precision.accumulate", "precision.reduce", "precision.grad"};
  for (int i = 0; i < 3; i++)
    if (r->nodes[ad_schema_find(paths[i]) - ad_schema(&(size_t){0})]) return paths[i];
  return "precision";
}

static void check_contracts(ad_reading *r) {
  if (!ARE_READ(r, "precision.param", "precision.grad", "precision.reduce", "precision.accumulate", "precision.compute",
                "precision.overrides"))
    return;
  if (check_contract(r->recipe, r->recipe->precision.contract)) {
    WRONG(r, contract_path(r), "%s", ad_last_error());
    return;
  }
  for (size_t i = 0; i < r->recipe->precision.override_count; i++) {
    const ad_recipe_override *override = &r->recipe->precision.overrides[i];
    if (check_contract(r->recipe, ad_contract_merge(r->recipe->precision.contract, override->contract)))
      WRONG(r, "precision.overrides", "%s: %s", override->pattern, ad_last_error());
  }
}

/* ---- not available yet: each line goes when what it names arrives ---- */

static void check_kind(ad_reading *r) {
  if (ARE_READ(r, "model.kind") && strcmp(r->recipe->model.kind, "gpt") != 0)
    WRONG(r, "model.kind", "must be gpt, the one kind that this version knows, is %s", r->recipe->model.kind);
}

static void check_axes(ad_reading *r, const ad_mesh *mesh) {
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    int64_t size = ad_mesh_axis_size(mesh, (ad_axis)axis);
    if (size > 1 && !(AD_AXES(axis) & AD_AXES_DP))
      WRONG(r, "mesh", "%s=%lld is not available yet: this version trains on dp_replicate and dp_shard",
            ad_axis_name((ad_axis)axis), (long long)size);
  }
}

static void check_zero(ad_reading *r) {
  int64_t zero = r->recipe->shard.zero;
  if (ARE_READ(r, "shard.zero") && zero)
    WRONG(r, "shard.zero", "%lld is not available yet in this version; 0 is", (long long)zero);
}

static void check_wide(ad_reading *r, const char *path, ad_dtype dtype) {
  if (!is_wide(dtype)) WRONG(r, path, "%s is not available yet in this version; f32 and f64 are", ad_dtype_name(dtype));
}

static void check_dtypes_of(ad_reading *r, const char *path, const ad_contract *contract) {
  const ad_dtype dtypes[] = {contract->param, contract->grad, contract->reduce, contract->accumulate};
  static const char *const paths[] = {"precision.param", "precision.grad", "precision.reduce", "precision.accumulate"};
  for (int i = 0; i < 4; i++) check_wide(r, path ? path : paths[i], dtypes[i]);
}

static void check_dtypes(ad_reading *r) {
  check_dtypes_of(r, NULL, &r->recipe->precision.contract);
  for (size_t i = 0; i < r->recipe->precision.override_count; i++)
    check_dtypes_of(r, "precision.overrides", &r->recipe->precision.overrides[i].contract);
}

/* ---- the whole ---- */

static void check_compute(ad_reading *r) {
  ad_dtype compute = r->recipe->precision.compute;
  if (ARE_READ(r, "precision.compute") && compute != AD_F32 && compute != AD_F64)
    WRONG(r, "precision.compute", "must be f32 or f64, is %s", ad_dtype_name(compute));
}

static int some_param_matches(const ad_model *model, const char *pattern) {
  for (size_t i = 0; i < ad_model_param_count(model); i++)
    if (!fnmatch(pattern, ad_model_param(model, i)->name, 0)) return 1;
  return 0;
}

static void check_patterns(ad_reading *r, const ad_model *model) {
  for (size_t i = 0; i < r->recipe->precision.override_count; i++) {
    const char *pattern = r->recipe->precision.overrides[i].pattern;
    if (!some_param_matches(model, pattern))
      WRONG(r, "precision.overrides", "%s matches no parameter; there are %s to %s", pattern,
            ad_model_param(model, 0)->name, ad_model_param(model, ad_model_param_count(model) - 1)->name);
  }
}

/* Each override is right alone; several of them may match one parameter. */
static void check_merged(ad_reading *r, const ad_model *model) {
  for (size_t i = 0; i < ad_model_param_count(model); i++) {
    ad_contract contract;
    if (!ad_recipe_contract(r->recipe, ad_model_param(model, i)->name, &contract)) continue;
    WRONG(r, "precision.overrides", "%s", ad_last_error());
    return;
  }
}

/* A mistake of the recipe, unless memory is out. */
static ad_status take_failure(ad_reading *r, const char *path, ad_status status) {
  if (status == AD_MEMORY) return status;
  WRONG(r, path, "%s", ad_last_error());
  return AD_OK;
}

/* The model itself knows best; it is asked when all else is right. */
static ad_status check_built(ad_reading *r, const ad_mesh *mesh) {
  ad_model *model;
  if (r->mistakes.status) return AD_OK;
  ad_status status = ad_recipe_model(r->recipe, mesh, &model);
  if (status) return take_failure(r, "model", status);
  check_patterns(r, model);
  check_merged(r, model);
  ad_model_destroy(model);
  return AD_OK;
}

static ad_status check_mesh(ad_reading *r) {
  ad_mesh *mesh;
  if (!ARE_READ(r, "mesh")) return AD_OK;
  ad_status status = ad_mesh_create(r->recipe->mesh, &mesh);
  if (status) return take_failure(r, "mesh", status);
  check_axes(r, mesh);
  status = check_built(r, mesh);
  ad_mesh_destroy(mesh);
  return status;
}

ad_status ad_reading_check(ad_reading *r) {
  check_name(r);
  check_kind(r);
  check_model(r);
  check_sync(r);
  check_compute(r);
  check_contracts(r);
  check_dtypes(r);
  check_zero(r);
  return check_mesh(r);
}

/* The place of one of the texts, which may stand on lines of their own. */
static ad_place place_of_text(const ad_reading *r, size_t index) {
  const ad_node *node = r->nodes[ad_schema_find("data.text") - ad_schema(&(size_t){0})];
  if (node->kind != AD_NODE_LIST) return node->place;
  node = node->children;
  while (index--) node = node->next;
  return node->place;
}

static void check_weights(ad_reading *r) {
  const char *path = r->recipe->model.weights;
  ad_safetensors *file;
  if (!path || !ARE_READ(r, "model.weights")) return;
  ad_status status = ad_safetensors_open(path, &file);
  if (!status)
    ad_safetensors_close(file);
  else if (status == AD_IO)
    ad_mistakes_add_io(&r->mistakes, ad_reading_place(r, "model.weights"), "model.weights", "%s", ad_last_error());
  else
    WRONG(r, "model.weights", "%s", ad_last_error());
}

void ad_reading_check_files(ad_reading *r) {
  const ad_recipe *recipe = r->recipe;
  const char *const *text = (const char *const *)recipe->data.text;
  check_weights(r);
  if (!ARE_READ(r, "data.text")) return;
  size_t missing = 0;
  for (size_t i = 0; i < recipe->data.text_count; i++) {
    if (!ad_text_path_check(text[i])) continue;
    ad_mistakes_add_io(&r->mistakes, place_of_text(r, i), "data.text", "%s", ad_last_error());
    missing++;
  }
  if (missing || !ARE_READ(r, "data.seq", "data.held_out")) return;
  ad_status status = ad_text_data_check(text, recipe->data.text_count, recipe->data.seq, recipe->data.held_out);
  if (status == AD_IO)
    ad_mistakes_add_io(&r->mistakes, ad_reading_place(r, "data.text"), "data.text", "%s", ad_last_error());
  else if (status)
    WRONG(r, "data.seq", "%s", ad_last_error());
}
