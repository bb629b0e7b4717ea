/* Reads addend.declared, and finds which types of a parameter are declared by a source that the addends may contradict.
 */
#include "read/declared.h"

#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "layout/type.h"
#include "read/params.h"

enum { ANY_DIMENSION = 10 };

static ad_status read_row(const ad_dump *dump, json_t *row, ad_declared *out) {
  static const char form[] = "{s?s, s?s, s?s, s?s, s?s, s?s, s?b, s?b, s?b, s?b}";
  const char *types = "", *dtype = "", *axes = "";
  *out = (ad_declared){.by = "", .where = "", .words = ""};
  if (json_unpack(row, form, "by", &out->by, "types", &types, "dtype", &dtype, "axes", &axes, "where", &out->where,
                  "words", &out->words, "counts", &out->counts, "given", &out->given, "sums", &out->sums, "placed",
                  &out->placed))
    return ad_fail(AD_INVALID,
                   "a row is no JSON object whose by, types, dtype, axes, where and words are texts, and whose counts, "
                   "given, sums and placed are true or false; correct it");
  if (!*out->by) return ad_fail(AD_INVALID, "a row has no source; write who declares it as \"by\"");
  if (!*types == !*dtype)
    return ad_fail(AD_INVALID, "the row of %.80s must have either \"types\" or \"dtype\"; write one of them", out->by);
  out->by_types = !strcmp(out->by, "types=");
  out->by_hook = !strcmp(out->by, "hook");
  out->over = *axes ? 0 : UINT32_MAX;
  /* no box follows from a declared type, so that any dimension is taken */
  if (*types) return ad_dump_types_parse(&dump->mesh, types, ANY_DIMENSION, out->types, &out->axes);
  out->dtype = ad_safetensors_dtype(dtype);
  if (!out->dtype) AD_TRY(ad_dtype_parse(dtype, &out->dtype));
  return ad_dump_axes_parse(&dump->mesh, axes, &out->over);
}

/* Returns those axes on which the row has the type by which the parameter's sum is read. */
static uint32_t agreed_axes(const ad_dump_param *param, const ad_declared *row) {
  uint32_t axes = 0;
  for (int axis = 0; axis < AD_DUMP_AXES; axis++)
    if (row->axes >> axis & 1 && row->types[axis] == param->types[axis]) axes |= 1u << axis;
  return axes;
}

/* Sets the fields of the parameter that follow from all its declarations. */
static void apply(const ad_dump *dump, ad_dump_param *param) {
  uint32_t declared = 0, placed = 0, certain = 0;
  for (size_t i = 0; i < param->declared_count; i++) {
    const ad_declared *row = &param->declared[i];
    if (row->by_types || row->sums)
      certain |= row->axes;
    else if (row->placed)
      placed |= agreed_axes(param, row);
    else
      declared |= agreed_axes(param, row);
  }
  param->placed = ad_large_axes(&dump->mesh, placed & ~declared & ~certain);
  declared = ad_large_axes(&dump->mesh, (declared | placed) & ~certain);
  for (int axis = 0; axis < dump->mesh.count; axis++) {
    if (!(declared >> axis & 1)) continue;
    if (param->types[axis] == AD_R) param->declared_r |= 1u << axis;
    if (param->types[axis] == AD_I) param->declared_i |= 1u << axis;
  }
  param->assumed |= param->declared_i;
}

ad_status ad_declared_read(const ad_dump *dump, const ad_dump_file *file, ad_dump_param *param) {
  json_t *rows = json_object_get(file->declared, param->name), *row;
  size_t i;
  if (!json_is_array(rows))
    return ad_fail(AD_INVALID, "%s: addend.declared of \"%.80s\" is not a list of rows; write a list", file->path,
                   param->name);
  AD_TRY(ad_new(json_array_size(rows), &param->declared));
  json_array_foreach(rows, i, row) {
    ad_status status = read_row(dump, row, &param->declared[i]);
    if (status) return ad_fail_in(status, "%s: addend.declared of \"%.80s\"", file->path, param->name);
    param->declared_count = i + 1;
  }
  apply(dump, param);
  return AD_OK;
}

const ad_declared *ad_declared_of(const ad_dump_param *param, int axis) {
  const ad_declared *found = NULL;
  for (size_t i = 0; i < param->declared_count; i++) {
    const ad_declared *row = &param->declared[i];
    if (agreed_axes(param, row) >> axis & 1 && !row->by_types && !row->sums) found = row;
  }
  return found;
}

const ad_declared *ad_declared_dtype(const ad_dump_param *param, uint32_t axes) {
  for (size_t i = 0; i < param->declared_count; i++) {
    const ad_declared *row = &param->declared[i];
    if (row->dtype && row->dtype == param->promised && row->given && !(axes & ~row->over)) return row;
  }
  return NULL;
}
