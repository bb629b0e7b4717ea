/* Maps parameters to tensors in files of weights, and reads and writes their values. */
#include "architecture/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "architecture/transpose.h"
#include "base/error.h"
#include "base/memory.h"
#include "data/weights.h"

/* ---- finding a parameter's tensors ---- */

/* Returns the number of the block if `param` fits the pattern, 0 if the pattern has no block, and -1 if `param` does
 * not fit. */
static int64_t match(const char *pattern, const char *param) {
  const char *mark = strchr(pattern, '#');
  size_t before = mark ? (size_t)(mark - pattern) : strlen(pattern);
  char *end;
  if (!mark) return strcmp(pattern, param) ? -1 : 0;
  if (strncmp(pattern, param, before) != 0 || strspn(param + before, "0123456789") == 0) return -1;
  long long block = strtoll(param + before, &end, 10);
  return strcmp(mark + 1, end) ? -1 : block;
}

static const ad_tensor_row *find_row(const ad_architecture *architecture, const char *param, int64_t *block) {
  for (int part = 0; part < AD_ARCHITECTURE_PARTS && architecture->tensors[part]; part++)
    for (const ad_tensor_row *row = architecture->tensors[part]; row->param; row++)
      if ((*block = match(row->param, param)) >= 0) return row;
  return NULL;
}

/* Returns the shape of one tensor in the file: that of the parameter without the dimension of experts, transposed if
 * necessary. */
static ad_shape shape_of(const ad_tensor_source *source, const ad_shape *full) {
  ad_shape shape = {.ndim = full->ndim - source->is_joined};
  for (int dim = 0; dim < shape.ndim; dim++) shape.dim[dim] = full->dim[dim + source->is_joined];
  if (!source->is_transposed || shape.ndim != 2) return shape;
  return (ad_shape){2, {shape.dim[1], shape.dim[0]}};
}

/* Sets the tensor's name from the pattern `tensor`, with '#' replaced by the number of the block. */
static void set_pattern(ad_tensor_source *source, const char *tensor, int64_t block) {
  const char *mark = strchr(tensor, '#');
  if (mark)
    snprintf(source->pattern, sizeof source->pattern, "%.*s%lld%s", (int)(mark - tensor), tensor, (long long)block,
             mark + 1);
  else
    snprintf(source->pattern, sizeof source->pattern, "%s", tensor);
}

int ad_tensor_source_find(const ad_architecture *architecture, const char *param, const ad_shape *shape,
                          ad_tensor_source *out) {
  int64_t block = 0;
  const ad_tensor_row own = {param, param, 0};
  const ad_tensor_row *row = architecture ? find_row(architecture, param, &block) : &own;
  if (!row) return 0;
  *out = (ad_tensor_source){.is_transposed = row->is_transposed, .is_joined = architecture && strchr(row->tensor, '@')};
  if (architecture)
    set_pattern(out, row->tensor, block);
  else
    snprintf(out->pattern, sizeof out->pattern, "%s", param);
  out->count = out->is_joined ? shape->dim[0] : 1;
  out->shape = shape_of(out, shape);
  return 1;
}

const char *ad_tensor_source_name(const ad_tensor_source *source, int64_t i, char buffer[AD_TENSOR_NAME_SIZE]) {
  const char *mark = source->is_joined ? strchr(source->pattern, '@') : NULL;
  if (mark)
    snprintf(buffer, AD_TENSOR_NAME_SIZE, "%.*s%lld%s", (int)(mark - source->pattern), source->pattern, (long long)i,
             mark + 1);
  else
    snprintf(buffer, AD_TENSOR_NAME_SIZE, "%s", source->pattern);
  return buffer;
}

static int ends(const char *name, const char *end) {
  size_t length = strlen(name), tail = strlen(end);
  return length >= tail && !strcmp(name + length - tail, end);
}

int ad_tensor_is_idle(const ad_architecture *architecture, const ad_weights *weights, const ad_safetensor *tensor) {
  if (!architecture) return 0;
  if (ends(tensor->name, ".rotary_emb.inv_freq")) return 1;
  const ad_safetensor *table = ad_weights_find(weights, "model.embed_tokens.weight");
  return !strcmp(tensor->name, "lm_head.weight") && table && table->dtype == tensor->dtype &&
         table->bytes == tensor->bytes && !memcmp(table->data, tensor->data, table->bytes);
}

/* ---- reading a parameter's values ---- */

static int64_t size_of(const ad_part *part, int dim) {
  int64_t size = 0;
  for (int i = 0; i < part->count[dim]; i++) size += part->span[dim][i].count;
  return size;
}

/* Reads the part `mine` of a parameter [in, out] from a transposed tensor [out, in], one block for each pair of
 * spans. */
static void read_transposed(const ad_safetensor *tensor, const ad_part *mine, ad_dtype dtype, char *out) {
  int64_t width = size_of(mine, 1), row = 0;
  for (int a = 0; a < mine->count[0]; a++) {
    ad_span in = mine->span[0][a];
    int64_t column = 0;
    for (int b = 0; b < mine->count[1]; b++) {
      ad_span outs = mine->span[1][b];
      size_t first = (size_t)(outs.first * tensor->shape.dim[1] + in.first) * ad_dtype_size(tensor->dtype);
      ad_transposed_block block = {.from = (const char *)tensor->data + first,
                                   .from_row = tensor->shape.dim[1],
                                   .to = out + (size_t)(row * width + column) * ad_dtype_size(dtype),
                                   .to_row = width,
                                   .rows = outs.count,
                                   .columns = in.count};
      ad_transpose_block(&block, tensor->dtype, dtype);
      column += outs.count;
    }
    row += in.count;
  }
}

static void take_full(const ad_shape *shape, ad_part *out) {
  out->ndim = shape->ndim;
  for (int dim = 0; dim < shape->ndim; dim++) {
    out->count[dim] = 1;
    out->span[dim][0] = (ad_span){0, shape->dim[dim]};
  }
}

/* Reads the part `mine` of a tensor that is not transposed, and converts it to `dtype`. */
static ad_status read_plain(const ad_safetensor *tensor, const ad_part *mine, ad_dtype dtype, char *out) {
  ad_part full;
  char *part = out;
  take_full(&tensor->shape, &full);
  if (dtype != tensor->dtype) AD_TRY(ad_new(ad_part_numel(mine) * ad_dtype_size(tensor->dtype), &part));
  ad_part_copy(part, mine, tensor->data, &full, mine, ad_dtype_size(tensor->dtype));
  if (part == out) return AD_OK;
  ad_cast(out, dtype, part, tensor->dtype, ad_part_numel(mine));
  ad_release(part);
  return AD_OK;
}

/* Sets *out to the part without its first dimension. */
static void drop_first(const ad_part *part, ad_part *out) {
  out->ndim = part->ndim - 1;
  for (int dim = 0; dim < out->ndim; dim++) {
    out->count[dim] = part->count[dim + 1];
    memcpy(out->span[dim], part->span[dim + 1], sizeof out->span[dim]);
  }
}

/* Reads the part `mine` of the i-th tensor of this parameter. */
static ad_status read_one(const ad_tensor_source *source, const ad_weights *weights, int64_t i, const ad_part *mine,
                          ad_dtype dtype, char *out) {
  char name[AD_TENSOR_NAME_SIZE];
  const ad_safetensor *tensor = ad_weights_find(weights, ad_tensor_source_name(source, i, name));
  if (!tensor)
    return ad_fail(
        AD_INVALID,
        "%s: the tensor `%s` is missing in these weights; name the weights of the model that the recipe describes",
        ad_weights_path(weights), name);
  if (!source->is_transposed) return read_plain(tensor, mine, dtype, out);
  read_transposed(tensor, mine, dtype, out);
  return AD_OK;
}

/* Reads the part `mine` of a parameter that joins the matrices of experts, one expert after another. */
static ad_status read_joined(const ad_tensor_source *source, const ad_weights *weights, const ad_part *mine,
                             ad_dtype dtype, char *out) {
  ad_part matrix = {0};
  drop_first(mine, &matrix);
  size_t bytes = ad_part_numel(&matrix) * ad_dtype_size(dtype);
  for (int span = 0; span < mine->count[0]; span++)
    for (int64_t i = 0; i < mine->span[0][span].count; i++, out += bytes)
      AD_TRY(read_one(source, weights, mine->span[0][span].first + i, &matrix, dtype, out));
  return AD_OK;
}

ad_status ad_tensor_source_read(const ad_tensor_source *source, const ad_weights *weights, const ad_part *mine,
                                ad_dtype dtype, void *out) {
  if (!ad_part_numel(mine)) return AD_OK;
  if (source->is_joined) return read_joined(source, weights, mine, dtype, out);
  return read_one(source, weights, 0, mine, dtype, out);
}

/* ---- writing a parameter's values ---- */

void ad_tensor_source_write(const ad_tensor_source *source, int64_t i, const void *param, ad_dtype dtype, ad_dtype to,
                            void *out) {
  size_t numel = (size_t)ad_shape_numel(&source->shape);
  const char *from = (const char *)param + (size_t)i * numel * ad_dtype_size(dtype);
  if (!source->is_transposed) {
    ad_cast(out, to, from, dtype, numel);
    return;
  }
  ad_transposed_block block = {.from = from,
                               .from_row = source->shape.dim[0],
                               .to = out,
                               .to_row = source->shape.dim[1],
                               .rows = source->shape.dim[1],
                               .columns = source->shape.dim[0]};
  ad_transpose_block(&block, dtype, to);
}
