/* Gathers the facts that the metadata of a dump's files states about each parameter, and checks that the files
 * agree: a rank that disagrees about a shape or a type would otherwise be compared with the wrong elements. */
#include "read/params.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/dtypes.h"
#include "base/memory.h"
#include "base/text.h"
#include "layout/type.h"
#include "read/declared.h"

/* ---- collecting the names of all parameters ---- */

static int by_name(const void *a, const void *b) {
  return strcmp(((const ad_dump_param *)a)->name, ((const ad_dump_param *)b)->name);
}

/* Adds a parameter to the dump, and its name to `known`, unless `known` has the name already. */
static ad_status add_name(ad_dump *dump, const char *name, json_t *known, size_t *room) {
  if (json_object_get(known, name)) return AD_OK;
  if (dump->param_count == *room) {
    size_t more = 2 * *room + 64;
    AD_TRY(ad_grow(&dump->params, *room, more));
    *room = more;
  }
  if (json_object_set_new(known, name, json_true())) return ad_fail(AD_MEMORY, "no memory for the parameters' names");
  dump->params[dump->param_count++] = (ad_dump_param){.name = name};
  return AD_OK;
}

/* Returns 1 if both files have the same tensors and the same metadata about them. Equal metadata was parsed once and is
 * shared, so comparing pointers is enough. */
static int repeats(const ad_dump_file *file, const ad_dump_file *before) {
  return before && ad_safetensors_share(file->tensors, before->tensors) && file->types == before->types &&
         file->shapes == before->shapes && file->held == before->held && file->sharding == before->sharding &&
         file->partial == before->partial && file->expect == before->expect && file->reduce == before->reduce &&
         file->unjudged == before->unjudged && file->assumed == before->assumed && file->promised == before->promised &&
         file->declared == before->declared;
}

/* Marks each file whose metadata on parameters is the same as in the previous file of its kind. Marked files need not
 * be read again. */
static void find_repeats(ad_dump *dump) {
  const ad_dump_file *before[] = {NULL, NULL}; /* the previous file of kind AD_DUMP_ADDEND, and of kind AD_DUMP_SUM */
  for (size_t i = 0; i < dump->count; i++) {
    ad_dump_file *file = &dump->files[i];
    if (file->kind == AD_DUMP_REFERENCE) continue;
    file->repeats = repeats(file, before[file->kind]);
    before[file->kind] = file;
  }
}

/* Adds the names of a file's tensors, and of the parameters that cannot be judged (addend.unjudged). */
static ad_status add_names(ad_dump *dump, const ad_dump_file *file, json_t *known, size_t *room) {
  const char *name;
  json_t *why;
  for (size_t i = 0; i < ad_safetensors_count(file->tensors); i++)
    AD_TRY(add_name(dump, ad_safetensors_at(file->tensors, i)->name, known, room));
  json_object_foreach(file->unjudged, name, why) AD_TRY(add_name(dump, name, known, room));
  return AD_OK;
}

/* Lists the parameters of all files, sorted by name. */
static ad_status collect_names(ad_dump *dump) {
  json_t *known = json_object();
  size_t room = 0;
  ad_status status = known ? AD_OK : ad_fail(AD_MEMORY, "no memory for the parameters' names");
  for (size_t i = 0; i < dump->count && !status; i++)
    if (dump->files[i].kind != AD_DUMP_REFERENCE && !dump->files[i].repeats)
      status = add_names(dump, &dump->files[i], known, &room);
  json_decref(known);
  if (!status && dump->param_count) qsort(dump->params, dump->param_count, sizeof *dump->params, by_name);
  return status;
}

const ad_dump_param *ad_dump_find(const ad_dump *dump, const char *name) {
  ad_dump_param key = {.name = name};
  if (!dump->param_count) return NULL;
  return bsearch(&key, dump->params, dump->param_count, sizeof key, by_name);
}

/* ---- what one file says of a parameter ---- */

static ad_status wrong(const ad_dump_file *file, const char *key, const char *name, const char *what) {
  return ad_fail(AD_INVALID, "%s: in the metadata, the entry of \"%.80s\" in %s %s", file->path, name, key, what);
}

/* Reads `count` integers, each of which must be 0 or more. */
static ad_status read_sizes(const json_t *list, int count, int64_t *out) {
  for (int i = 0; i < count; i++) {
    const json_t *size = json_array_get(list, (size_t)i);
    if (!json_is_integer(size) || json_integer_value(size) < 0) return AD_INVALID;
    out[i] = json_integer_value(size);
  }
  return AD_OK;
}

/* Reads the full shape from addend.shapes; ndim is -1 if the file does not give it. */
static ad_status reported_shape(const ad_dump_file *file, const char *name, ad_shape *out) {
  const json_t *list = json_object_get(file->shapes, name);
  int64_t numel = 1;
  *out = (ad_shape){.ndim = -1};
  if (!list) return AD_OK;
  if (!json_is_array(list) || json_array_size(list) > AD_DIMS_MAX)
    return wrong(file, "addend.shapes", name, "is not a list of at most 6 sizes");
  out->ndim = (int)json_array_size(list);
  if (read_sizes(list, out->ndim, out->dim))
    return wrong(file, "addend.shapes", name, "has a size that is not a whole number, 0 or more");
  for (int dim = 0; dim < out->ndim; dim++)
    if (__builtin_mul_overflow(numel, out->dim[dim], &numel) || numel > INT64_C(1) << 53)
      return wrong(file, "addend.shapes", name, "has more elements than there can be");
  return AD_OK;
}

/* Sets *stated to the text that this file gives for the parameter under `key`; fails if another file gave a different
 * text. */
static ad_status merge_text(const ad_dump_file *file, const json_t *map, const char *key, const char *name,
                            const char **stated) {
  const json_t *value = json_object_get(map, name);
  if (!value) return AD_OK;
  if (!json_is_string(value)) return wrong(file, key, name, "is not a string");
  if (*stated && strcmp(*stated, json_string_value(value)) != 0)
    return ad_fail(AD_INVALID,
                   "%s: %s of \"%.80s\" is \"%.80s\", but \"%.80s\" in another file; write the same value in all files",
                   file->path, key, name, json_string_value(value), *stated);
  *stated = json_string_value(value);
  return AD_OK;
}

/* ---- merging what all files say of a parameter ---- */

/* What the metadata of the files read so far states of one parameter. NULL, NaN, 0 and ndim -1 mean: no file has
 * stated it. */
typedef struct ad_stated {
  const char *types, *partial, *assumed, *unjudged;
  ad_shape shape;
  double expect;
  ad_dtype reduce, promised;
  const ad_dump_file *declared; /* the first file that gives declarations */
} ad_stated;

static ad_status merge_shape(const ad_dump_file *file, const char *name, ad_shape *stated) {
  ad_shape own;
  char one[160], other[160];
  AD_TRY(reported_shape(file, name, &own));
  if (own.ndim < 0 || (stated->ndim >= 0 && ad_shape_equal(&own, stated))) return AD_OK;
  if (stated->ndim >= 0)
    return ad_fail(
        AD_INVALID,
        "%s: the shape of \"%.80s\" in addend.shapes is %s, but %s in another file; write the same shape in all files",
        file->path, name, ad_shape_print(&own, one, sizeof one), ad_shape_print(stated, other, sizeof other));
  *stated = own;
  return AD_OK;
}

static ad_status merge_numbers(const ad_dump_file *file, const char *name, ad_stated *stated) {
  const json_t *expect = ad_dump_choose(file->expect, name), *reduce = ad_dump_choose(file->reduce, name),
               *promised = ad_dump_choose(file->promised, name);
  double value = json_number_value(expect);
  if (expect && !isnan(stated->expect) && stated->expect != value)
    return ad_fail(
        AD_INVALID,
        "%s: addend.expect of \"%.80s\" is %.17g, but %.17g in another file; write the same number in all files",
        file->path, name, value, stated->expect);
  if (expect) stated->expect = value;
  if (reduce) AD_TRY(ad_dtype_parse(json_string_value(reduce), &stated->reduce));
  return promised ? ad_dtype_parse(json_string_value(promised), &stated->promised) : AD_OK;
}

static ad_status merge_file(const ad_dump_file *file, const char *name, ad_stated *stated) {
  AD_TRY(merge_text(file, file->types, "addend.types", name, &stated->types));
  AD_TRY(merge_text(file, file->assumed, "addend.assumed", name, &stated->assumed));
  if (file->kind == AD_DUMP_SUM) AD_TRY(merge_text(file, file->partial, "addend.partial", name, &stated->partial));
  const char *unjudged = json_string_value(json_object_get(file->unjudged, name));
  if (!stated->unjudged) stated->unjudged = unjudged; /* each rank may give its own reason; the first is enough */
  if (!stated->declared && json_object_get(file->declared, name)) stated->declared = file;
  AD_TRY(merge_shape(file, name, &stated->shape));
  return merge_numbers(file, name, stated);
}

/* Returns 1 if the parameter is sharded along any axis. */
static int is_sharded_in(const ad_dump *dump, const ad_dump_param *param) {
  for (int axis = 0; axis < dump->mesh.count; axis++)
    if (ad_type_is_sharded(param->types[axis])) return 1;
  return 0;
}

/* Finds the shape of a parameter whose shape no file's metadata gives. Such a parameter is not sharded, so each
 * tensor is full and all its tensors must have the same shape. */
static ad_status shape_of_tensors(const ad_dump *dump, const char *name, ad_shape *out) {
  const ad_dump_file *first = NULL;
  char one[160], other[160];
  for (size_t i = 0; i < dump->count; i++) {
    const ad_dump_file *file = &dump->files[i];
    const ad_safetensor *tensor = ad_safetensors_find(file->tensors, name);
    if (!tensor || file->kind == AD_DUMP_REFERENCE) continue;
    if (first && !ad_shape_equal(&tensor->shape, out))
      return ad_fail(AD_INVALID,
                     "%s: \"%.80s\" has shape %s, but in %s it has shape %s; if the parameter is sharded, "
                     "addend.shapes must give its full shape",
                     file->path, name, ad_shape_print(&tensor->shape, one, sizeof one), first->path,
                     ad_shape_print(out, other, sizeof other));
    if (!first) *out = tensor->shape;
    first = file;
  }
  return AD_OK;
}

static ad_status use_types(const ad_dump *dump, const ad_stated *stated, ad_dump_param *param) {
  uint32_t named;
  ad_status status =
      ad_dump_types_parse(&dump->mesh, stated->types ? stated->types : "", param->shape.ndim, param->types, &named);
  if (status) return ad_fail_in(status, "addend.types of \"%.80s\"", param->name);
  for (int axis = 0; axis < dump->mesh.count; axis++)
    if (param->types[axis] == AD_R) param->summed |= 1u << axis;
  status = stated->partial ? ad_dump_axes_parse(&dump->mesh, stated->partial, &param->partial) : AD_OK;
  if (status) return ad_fail_in(status, "addend.partial of \"%.80s\"", param->name);
  status = stated->assumed ? ad_dump_axes_parse(&dump->mesh, stated->assumed, &param->assumed) : AD_OK;
  return status ? ad_fail_in(status, "addend.assumed of \"%.80s\"", param->name) : AD_OK;
}

static int has_tensor(const ad_dump *dump, const char *name) {
  for (size_t i = 0; i < dump->count; i++)
    if (ad_safetensors_find(dump->files[i].tensors, name)) return 1;
  return 0;
}

/* Fills *param from `stated`, the merged metadata of all files, with a default for each fact that no file states. */
static ad_status use(const ad_dump *dump, const ad_stated *stated, ad_dump_param *param) {
  param->shape = stated->shape;
  /* no file has any element of the parameter */
  if (stated->unjudged && !has_tensor(dump, param->name)) param->shape = (ad_shape){.ndim = 1};
  if (param->shape.ndim < 0) AD_TRY(shape_of_tensors(dump, param->name, &param->shape));
  AD_TRY(use_types(dump, stated, param));
  if (stated->shape.ndim < 0 && is_sharded_in(dump, param))
    return ad_fail(AD_INVALID,
                   "\"%.80s\" is sharded, but no file has its full shape in addend.shapes; write the full shape there",
                   param->name);
  param->numel = ad_shape_numel(&param->shape);
  param->is_sampled = dump->sample && param->numel > dump->sample;
  param->sample = param->is_sampled ? dump->sample : param->numel;
  param->expect = isnan(stated->expect) ? 1 : stated->expect;
  param->reduce = stated->reduce;
  param->promised = stated->promised;
  param->unjudged = stated->unjudged;
  return stated->declared ? ad_declared_read(dump, stated->declared, param) : AD_OK;
}

static ad_status read_param(const ad_dump *dump, ad_dump_param *param) {
  ad_stated stated = {.shape = {.ndim = -1}, .expect = NAN};
  for (size_t i = 0; i < dump->count; i++)
    if (dump->files[i].kind != AD_DUMP_REFERENCE && !dump->files[i].repeats)
      AD_TRY(merge_file(&dump->files[i], param->name, &stated));
  return use(dump, &stated, param);
}

/* ---- boxes: which region of a parameter each tensor holds ---- */

static ad_status box_wrong(const ad_dump_file *file, const ad_dump_param *param, const char *key) {
  char shape[160];
  return ad_fail(AD_INVALID,
                 "%s: %s of \"%.80s\" gives the start and size of a part that is not inside the parameter, whose shape "
                 "is %s; correct this entry",
                 file->path, key, param->name, ad_shape_print(&param->shape, shape, sizeof shape));
}

static int is_inside(const ad_dump_param *param, const ad_box *box) {
  for (int dim = 0; dim < param->shape.ndim; dim++)
    if (box->first[dim] > param->shape.dim[dim] || box->count[dim] > param->shape.dim[dim] - box->first[dim]) return 0;
  return 1;
}

/* Reads the box from addend.held, which is [[first index for each dimension], [count for each dimension]]. */
static ad_status box_of_held(const ad_dump_file *file, const ad_dump_param *param, const json_t *held, ad_box *out) {
  const json_t *first = json_array_get(held, 0), *count = json_array_get(held, 1);
  size_t ndim = (size_t)param->shape.ndim;
  if (json_array_size(held) != 2 || json_array_size(first) != ndim || json_array_size(count) != ndim ||
      read_sizes(first, param->shape.ndim, out->first) || read_sizes(count, param->shape.ndim, out->count) ||
      !is_inside(param, out))
    return box_wrong(file, param, "addend.held");
  return AD_OK;
}

/* Reads the box from DCP_SHARDING_INFO: offsets, and the tensor's shape. An empty tensor may have any offsets. */
static ad_status box_of_offsets(const ad_dump_file *file, const ad_dump_param *param, const json_t *info,
                                const ad_safetensor *tensor, ad_box *out) {
  const json_t *offsets = json_object_get(info, "saved_offsets");
  int ndim = param->shape.ndim, is_empty = 0;
  if (tensor->shape.ndim != ndim || json_array_size(offsets) != (size_t)ndim || read_sizes(offsets, ndim, out->first))
    return box_wrong(file, param, "DCP_SHARDING_INFO");
  for (int dim = 0; dim < ndim; dim++) {
    out->count[dim] = tensor->shape.dim[dim];
    is_empty |= !out->count[dim];
  }
  if (is_empty) *out = (ad_box){{0}, {0}};
  return is_inside(param, out) ? AD_OK : box_wrong(file, param, "DCP_SHARDING_INFO");
}

/* Computes the box from the types. If several axes shard one dimension, the slower axis splits it first. */
static ad_box box_of_types(const ad_dump *dump, const ad_dump_param *param, int64_t rank) {
  ad_box box = ad_box_full(&param->shape);
  for (int axis = 0; axis < dump->mesh.count; axis++) {
    if (!ad_type_is_sharded(param->types[axis])) continue;
    int dim = ad_type_dim(param->types[axis]);
    ad_span span = ad_cut(box.count[dim], dump->position[rank][axis], dump->mesh.size[axis]);
    box.first[dim] += span.first;
    box.count[dim] = span.count;
  }
  return box;
}

/* Finds the tensor's box: from addend.held if the file has it, else from DCP_SHARDING_INFO, else from the types. */
static ad_status find_box(const ad_dump *dump, const ad_dump_param *param, const ad_dump_file *file,
                          const ad_safetensor *tensor, ad_box *out) {
  const json_t *held = json_object_get(file->held, param->name), *info = json_object_get(file->sharding, param->name);
  *out = (ad_box){{0}, {0}};
  if (held) return box_of_held(file, param, held, out);
  if (info && !param->is_sampled) return box_of_offsets(file, param, info, tensor, out);
  *out = file->kind == AD_DUMP_REFERENCE ? ad_box_full(&param->shape) : box_of_types(dump, param, file->rank);
  return AD_OK;
}

/* Returns 1 if the tensor has the box's shape, or all elements of the box in one dimension. */
static int has_shape_of(const ad_dump_param *param, const ad_box *box, const ad_safetensor *tensor) {
  int64_t numel = ad_box_numel(&param->shape, box);
  if (tensor->shape.ndim == 1 && tensor->shape.dim[0] == numel) return 1;
  if (!numel && !ad_shape_numel(&tensor->shape)) return 1;
  if (tensor->shape.ndim != param->shape.ndim) return 0;
  for (int dim = 0; dim < param->shape.ndim; dim++)
    if (tensor->shape.dim[dim] != box->count[dim]) return 0;
  return 1;
}

/* Checks that the tensor has a floating-point dtype and as many elements as its box. If the parameter is sampled, the
 * tensor must have as many elements as there are samples in the box. */
static ad_status check_tensor(const ad_dump_param *param, const ad_dump_file *file, const ad_box *box,
                              const ad_safetensor *tensor) {
  char own[160], should[160], floats[AD_DTYPES_TEXT];
  if (!ad_dtype_is_float(tensor->dtype))
    return ad_fail(AD_INVALID,
                   "%s: \"%.80s\" has dtype %s, but a gradient must be %s; convert the gradient before it is dumped",
                   file->path, param->name, ad_dtype_name(tensor->dtype),
                   ad_dtypes_print(ad_dtype_is_float, "safetensors", "or", floats));
  ad_shape part = {.ndim = param->shape.ndim};
  if (!param->is_sampled) {
    memcpy(part.dim, box->count, sizeof part.dim);
    if (has_shape_of(param, box, tensor)) return AD_OK;
  } else {
    part = (ad_shape){.ndim = 1, .dim = {ad_sample_count(param->name, &param->shape, param->sample, box)}};
    if (tensor->shape.ndim == 1 && tensor->shape.dim[0] == part.dim[0]) return AD_OK;
  }
  return ad_fail(AD_INVALID, "%s: \"%.80s\" has shape %s, but must have shape %s%s", file->path, param->name,
                 ad_shape_print(&tensor->shape, own, sizeof own), ad_shape_print(&part, should, sizeof should),
                 param->is_sampled ? ", the sampled elements that it holds" : "");
}

ad_status ad_dump_piece(const ad_dump *dump, const ad_dump_param *param, const ad_dump_file *file, ad_piece *out,
                        int *there) {
  const ad_safetensor *tensor = ad_safetensors_find(file->tensors, param->name);
  *there = tensor != NULL;
  if (!tensor) return AD_OK;
  *out = (ad_piece){.tensor = tensor, .rank = file->rank, .microbatch = file->microbatch < 0 ? 0 : file->microbatch};
  return find_box(dump, param, file, tensor, &out->box);
}

static ad_status check_piece(const ad_dump *dump, const ad_dump_param *param, const ad_dump_file *file) {
  ad_piece piece;
  int there;
  AD_TRY(ad_dump_piece(dump, param, file, &piece, &there));
  return there ? check_tensor(param, file, &piece.box, piece.tensor) : AD_OK;
}

/* Checks the parameter's tensor in every file. If the parameter is not sharded, a file with the same metadata as the
 * previous file has the same box, and is checked only if the previous file failed. */
static ad_status check_pieces(const ad_dump *dump, const ad_dump_param *param, ad_complaints *complaints) {
  int is_sharded = is_sharded_in(dump, param), failed[] = {0, 0}; /* failed[kind]: for AD_DUMP_ADDEND and AD_DUMP_SUM */
  for (size_t i = 0; i < dump->count; i++) {
    const ad_dump_file *file = &dump->files[i];
    size_t before = complaints->count;
    if (file->kind == AD_DUMP_REFERENCE || (file->repeats && !is_sharded && !failed[file->kind])) continue;
    AD_TRY(ad_complaints_add(complaints, check_piece(dump, param, file)));
    failed[file->kind] = complaints->count > before;
  }
  return AD_OK;
}

ad_status ad_dump_params_read(ad_dump *dump, ad_complaints *complaints) {
  find_repeats(dump);
  AD_TRY(collect_names(dump));
  for (size_t p = 0; p < dump->param_count; p++) {
    size_t before = complaints->count;
    AD_TRY(ad_complaints_add(complaints, read_param(dump, &dump->params[p])));
    if (complaints->count == before) AD_TRY(check_pieces(dump, &dump->params[p], complaints));
  }
  return AD_OK;
}
