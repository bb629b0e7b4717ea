/* Prints the types of a recipe's parameters in the notation of spmd_types, a type checker for PyTorch programs. */
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/options.h"
#include "base/text_stream.h"
#include "files/json.h"
#include "plan/pools.h"
#include "program/program.h"
#include "step/run.h"

/* ---- the document ---- */

/* Adds `axis` to the axes that shard dimension `dim`: an entry of a PartitionSpec is null, an axis, or a list of axes,
 * the outermost first. */
static void shard_dimension(json_t *spec, size_t dim, const char *axis) {
  json_t *entry = json_array_get(spec, dim);
  if (json_is_array(entry))
    json_array_append_new(entry, json_string(axis));
  else if (json_is_string(entry))
    json_array_set_new(spec, dim, json_pack("[O, s]", entry, axis));
  else
    json_array_set_new(spec, dim, json_string(axis));
}

/* Adds the types of a layout as ad_layout_print prints them ("dp_shard=R tp=S1"), which it changes, to `types` by axis.
 * Of the axes that shard one dimension the outermost comes first. */
static void add_types(char *layout, json_t *types, json_t *spec) {
  char *rest = layout, *word;
  while ((word = strtok_r(rest, " ", &rest))) {
    char *type = strchr(word, '=');
    *type++ = 0;
    if (*type == 'S') {
      json_object_set_new(types, word, json_sprintf("S(%s)", type + 1));
      shard_dimension(spec, (size_t)(type[1] - '0'), word);
    } else {
      json_object_set_new(types, word, json_string(type));
    }
  }
}

static int is_zigzag(const ad_layout *layout) {
  int found = 0;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) found |= layout->type[axis] >= AD_S_ZIGZAG(0);
  return found;
}

/* Appends the document of a parameter to `list`. */
static ad_status add_param(ad_run *run, size_t index, json_t *list) {
  char name[AD_PROGRAM_NAME_SIZE], layout[256];
  ad_run_param at = ad_run_param_at(run, index);
  const ad_param_spec *of = at.spec;
  ad_program_param_name(ad_run_program(run), at.module, at.param, name, sizeof name);
  ad_layout_print(&of->layout, layout, sizeof layout);
  if (is_zigzag(&of->layout))
    return ad_fail(AD_TYPE, "`%s` is sharded zigzag (%s), and spmd_types has no type for that", name, layout);
  json_t *types = json_object(), *spec = json_array();
  for (int dim = 0; dim < of->shape.ndim; dim++) json_array_append_new(spec, json_null());
  add_types(layout, types, spec);
  json_array_append_new(list, json_pack("{s:s, s:s, s:o, s:o}", "name", name, "mesh", ad_mesh_text(of->layout.mesh),
                                        "types", types, "partition_spec", spec));
  return AD_OK;
}

static ad_status add_params(const ad_plan_pools *pools, json_t *list) {
  for (size_t pool = 0; pool < pools->count; pool++) {
    ad_run *run = pools->list[pool].run;
    for (size_t i = 0; i < ad_run_param_count(run); i++)
      if (ad_run_param_at(run, i).held) AD_TRY(add_param(run, i, list));
  }
  return AD_OK;
}

static ad_status document_of(const ad_recipe *recipe, const ad_plan_options *given, json_t **out) {
  ad_plan_options options;
  ad_plan_world world;
  ad_plan_pools pools;
  AD_TRY(ad_options_take(&options, sizeof options, given, "ad_plan_options"));
  AD_TRY(ad_plan_world_of(recipe, given, &world));
  AD_TRY(ad_plan_pools_act(recipe, &world, &pools));
  json_t *list = json_array();
  json_t *document =
      json_pack("{s:s, s:I, s:o}", "recipe", recipe->name, "world", (json_int_t)world.ranks, "spmd", list);
  ad_status status = add_params(&pools, list);
  ad_plan_pools_release(&pools);
  if (status)
    json_decref(document);
  else
    *out = document;
  return status;
}

/* ---- the table ---- */

static int name_width(const json_t *params) {
  const json_t *param;
  size_t i, width = 0;
  json_array_foreach(params, i, param) {
    size_t length = strlen(ad_text_of(param, "name"));
    if (length > width) width = length;
  }
  return (int)width;
}

static void print_types(FILE *file, json_t *types) {
  const char *axis;
  json_t *type;
  const char *before = "{";
  json_object_foreach(types, axis, type) {
    fprintf(file, "%s%s: %s", before, axis, json_string_value(type));
    before = ", ";
  }
  fprintf(file, "}");
}

/* Returns 1 if several axes shard one dimension, so that types by axis do not say which of them is the outer one. */
static int needs_spec(const json_t *spec) {
  const json_t *entry;
  size_t dim;
  int found = 0;
  json_array_foreach(spec, dim, entry) found |= json_is_array(entry);
  return found;
}

static void print_spec(FILE *file, const json_t *spec) {
  const json_t *entry, *axis;
  size_t dim, i;
  fprintf(file, "  PartitionSpec(");
  json_array_foreach(spec, dim, entry) {
    fprintf(file, "%s%s", dim ? ", " : "", json_is_array(entry) ? "(" : "");
    json_array_foreach(entry, i, axis) fprintf(file, "%s%s", i ? ", " : "", json_string_value(axis));
    if (json_is_array(entry))
      fprintf(file, ")");
    else
      fprintf(file, "%s", json_is_string(entry) ? json_string_value(entry) : "None");
  }
  fprintf(file, ")");
}

/* Prints a line for each parameter, and the mesh whenever it is another than that of the parameter before. */
static void print_params(FILE *file, const json_t *document) {
  const json_t *params = json_object_get(document, "spmd"), *param;
  const char *mesh = "";
  size_t i;
  int width = name_width(params);
  json_array_foreach(params, i, param) {
    if (strcmp(mesh, ad_text_of(param, "mesh")) != 0) {
      mesh = ad_text_of(param, "mesh");
      fprintf(file, "# %s, mesh %s\n", ad_text_of(document, "recipe"), mesh);
    }
    fprintf(file, "%-*s  ", width, ad_text_of(param, "name"));
    print_types(file, json_object_get(param, "types"));
    const json_t *spec = json_object_get(param, "partition_spec");
    if (needs_spec(spec)) print_spec(file, spec);
    fprintf(file, "\n");
  }
}

static ad_status table_of(const json_t *document, char **out) {
  ad_text_stream to;
  AD_TRY(ad_text_stream_open("the table of types", &to));
  print_params(to.file, document);
  return ad_text_stream_close(&to, AD_OK, out);
}

/* ---- public functions ---- */

ad_status ad_plan_spmd_json(const ad_recipe *recipe, const ad_plan_options *options, char **out) {
  AD_NEED(recipe, out);
  json_t *document;
  AD_TRY(document_of(recipe, options, &document));
  char *text = ad_json_dumps(document);
  json_decref(document);
  if (!text) return ad_fail(AD_MEMORY, "no memory for the JSON document of types");
  *out = text;
  return AD_OK;
}

ad_status ad_plan_spmd_table(const ad_recipe *recipe, const ad_plan_options *options, char **out) {
  AD_NEED(recipe, out);
  json_t *document;
  AD_TRY(document_of(recipe, options, &document));
  ad_status status = table_of(document, out);
  json_decref(document);
  return status;
}
