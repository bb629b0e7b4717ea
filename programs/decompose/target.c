/* The target of decompose: a decoder whose weights are constants. */
#include "decompose/target.h"

#include <stdio.h>
#include <string.h>
#include "addend/helpers.h"
#include "addend/data.h"
#include "gpt/keys.h"
#include "gpt/gpt.h"

/* ---- listing the target's sites (matrices that are decomposed) ---- */

enum { LINEARS = 7 }; /* the matrices of a block */

static void linears_of(ad_target *target, int64_t block, ad_linear_layer *out[LINEARS]) {
  ad_attention_layer *attention = &target->decoder.blocks[block].attention;
  ad_mlp_layer *mlp = &target->mlp.layers[block];
  ad_linear_layer *layers[LINEARS] = {&attention->wq, &attention->wk, &attention->wv, &attention->wo,
                                      &mlp->gate,     &mlp->up,       &mlp->down};
  memcpy(out, layers, sizeof layers);
}

static ad_status declare(ad_target *target, const ad_gpt_options *options, const ad_mesh *mesh) {
  target->options = options;
  target->params = ad_declarations_on(mesh);
  target->mlp.d_hidden = ad_gpt_hidden(options);
  AD_TRY(ad_new((size_t)options->decoder.layers, &target->mlp.layers));
  return ad_decoder_declare(&target->decoder, &options->decoder, &ad_mlp_branch_functions, &target->mlp, 1,
                            &target->params);
}

static void list(ad_target *target, ad_site *out) {
  for (int64_t block = 0; block < target->options->decoder.layers; block++) {
    ad_linear_layer *layers[LINEARS];
    linears_of(target, block, layers);
    for (int i = 0; i < LINEARS; i++) {
      const ad_param_spec *spec = &target->params.list[layers[i]->weight];
      *out = (ad_site){.weight = layers[i]->weight, .in = spec->shape.dim[0], .out = spec->shape.dim[1]};
      snprintf(out++->name, sizeof out->name, "%s", spec->name);
    }
  }
}

ad_status ad_target_list(const ad_gpt_options *options, const ad_mesh *mesh, ad_site **out, size_t *count) {
  ad_target target = {0};
  size_t all = (size_t)options->decoder.layers * LINEARS;
  ad_status status = declare(&target, options, mesh);
  if (!status) status = ad_new(all, out);
  if (!status) list(&target, *out);
  if (!status) *count = all;
  ad_target_release(&target);
  return status;
}

/* ---- creating and releasing the target ---- */

static size_t site_of(const ad_target *target, size_t weight) {
  size_t site = 0;
  while (site < target->site_count && target->sites[site].weight != weight) site++;
  return site;
}

static ad_tensor *product(void *own, ad_tape *t, size_t weight, ad_tensor *x, ad_tensor *w) {
  ad_target *target = own;
  size_t site = site_of(target, weight);
  ad_tensor *y = NULL;
  if (target->visit && site < target->site_count) y = target->visit(target->own, t, site, x, w);
  return y ? y : ad_linear(t, x, w);
}

static void stand_in_everywhere(ad_target *target) {
  target->stand_in = (ad_stand_in){product, target};
  for (int64_t block = 0; block < target->options->decoder.layers; block++) {
    ad_linear_layer *layers[LINEARS];
    linears_of(target, block, layers);
    for (int i = 0; i < LINEARS; i++) layers[i]->stand_in = &target->stand_in;
  }
}

static ad_status describe_params(ad_target *target) {
  AD_TRY(ad_new(target->params.count, &target->arrays));
  for (size_t i = 0; i < target->params.count; i++) {
    const ad_param_spec *spec = &target->params.list[i];
    target->arrays[i] = (ad_array){.dtype = AD_F64, .shape = spec->shape, .local = spec->shape, .layout = spec->layout};
  }
  return AD_OK;
}

ad_status ad_target_create(ad_target *target, const ad_gpt_options *options, const ad_mesh *mesh, const ad_site *sites,
                           size_t site_count) {
  target->sites = sites;
  target->site_count = site_count;
  AD_TRY(declare(target, options, mesh));
  stand_in_everywhere(target);
  return describe_params(target);
}

void ad_target_release(ad_target *target) {
  ad_decoder_release(&target->decoder);
  ad_release(target->mlp.layers);
  ad_declarations_release(&target->params);
  ad_release(target->arrays);
  ad_release(target->half);
  ad_release(target->narrow);
  ad_release(target->wide);
}

/* ---- reading the target's weights ---- */

static size_t numel_of(const ad_target *target, size_t param) {
  return (size_t)ad_shape_numel(&target->params.list[param].shape);
}

static size_t count_numel(const ad_target *target) {
  size_t numel = 0;
  for (size_t i = 0; i < target->params.count; i++) numel += numel_of(target, i);
  return numel;
}

size_t ad_target_bytes(const ad_target *target) {
  return count_numel(target) * (sizeof *target->wide + sizeof *target->narrow + sizeof *target->half);
}

static ad_status draw_params(ad_target *target, uint64_t seed, int64_t rank) {
  for (size_t i = 0; i < target->params.count; i++)
    AD_TRY(ad_param_initialise(&target->params.list[i], seed, rank, &target->arrays[i]));
  return AD_OK;
}

static void take_weights(ad_target *target, const ad_weights *weights) {
  for (size_t i = 0; i < target->params.count; i++) {
    const ad_safetensor *tensor = ad_weights_find(weights, target->params.list[i].name);
    ad_cast(target->arrays[i].data, AD_F64, tensor->data, tensor->dtype, numel_of(target, i));
  }
}

/* Opens a file of weights, and checks that its tensors are those of the target and no others. */
static ad_status open_file(const ad_target *target, const char *path, ad_weights **out) {
  AD_TRY(ad_weights_open(path, out));
  ad_status status = ad_params_check_weights(target->params.list, target->params.count, *out);
  if (status) ad_weights_close(*out);
  return status;
}

static ad_status read_file(ad_target *target, const char *path) {
  ad_weights *weights;
  AD_TRY(open_file(target, path, &weights));
  take_weights(target, weights);
  ad_weights_close(weights);
  return AD_OK;
}

static ad_status check_values(const ad_target *target, const char *path) {
  ad_weights *weights;
  const ad_safetensors *file;
  ad_status status = open_file(target, path, &weights);
  if (status) return status;
  for (size_t i = 0; !status && (file = ad_weights_file(weights, i)); i++) status = ad_safetensors_check_values(file);
  ad_weights_close(weights);
  return status;
}

static ad_status check_on(const ad_gpt_options *options, const char *path, const ad_mesh *mesh) {
  ad_target target = {0};
  ad_status status = declare(&target, options, mesh);
  if (!status) status = check_values(&target, path);
  ad_target_release(&target);
  return status;
}

ad_status ad_target_check_file(const ad_gpt_options *options, const char *path) {
  ad_mesh *mesh;
  AD_TRY(ad_mesh_create("", &mesh));
  ad_status status = check_on(options, path, mesh);
  ad_mesh_destroy(mesh);
  return status;
}

ad_status ad_target_open(ad_target *target, const char *path, uint64_t seed, int64_t rank) {
  size_t numel = count_numel(target);
  AD_TRY(ad_new(numel, &target->wide));
  AD_TRY(ad_new(numel, &target->narrow));
  AD_TRY(ad_new(numel, &target->half));
  for (size_t i = 0, at = 0; i < target->params.count; at += numel_of(target, i++))
    target->arrays[i].data = target->wide + at;
  AD_TRY(path ? read_file(target, path) : draw_params(target, seed, rank));
  ad_cast(target->narrow, AD_F32, target->wide, AD_F64, numel);
  ad_cast(target->half, AD_BF16, target->wide, AD_F64, numel);
  return AD_OK;
}

const ad_array *ad_target_array(const ad_target *target, size_t index, char *name, size_t size) {
  if (index >= target->params.count) return NULL;
  if (size) snprintf(name, size, "%s", target->params.list[index].name);
  return &target->arrays[index];
}

/* Returns the number of elements of all parameters before this one. */
static size_t start_of(const ad_target *target, size_t param) {
  size_t at = 0;
  for (size_t i = 0; i < param; i++) at += numel_of(target, i);
  return at;
}

const double *ad_target_weight(const ad_target *target, size_t site) {
  return target->arrays[target->sites[site].weight].data;
}

const char *ad_target_content(const ad_target *target, char *buffer, size_t size) {
  size_t numel = 0;
  for (size_t i = 0; i < target->params.count; i++) numel += numel_of(target, i);
  snprintf(buffer, size, "%zu numbers, xxh64 %016llx", numel,
           (unsigned long long)(target->wide ? ad_checksum(target->wide, numel * sizeof *target->wide, 0) : 0));
  return "target.weights";
}

/* ---- the forward pass ---- */

static void *weights_in(const ad_target *target, ad_dtype dtype) {
  if (dtype == AD_BF16) return target->half;
  return dtype == AD_F64 ? (void *)target->wide : (void *)target->narrow;
}

/* Enters a parameter on the tape as a constant; `at` is the number of elements of all parameters before this one. */
static ad_tensor *constant(const ad_target *target, ad_tape *t, size_t param, size_t at, ad_dtype dtype) {
  const ad_param_spec *spec = &target->params.list[param];
  ad_array full = {.dtype = dtype, .shape = spec->shape, .local = spec->shape, .layout = spec->layout};
  if (target->wide) full.data = (char *)weights_in(target, dtype) + at * ad_dtype_size(dtype);
  return ad_constant(t, &full);
}

/* Makes all parameters constants of the tape, in the dtypes that a parameter store would use. */
static void put_constants(ad_target *target, ad_tape *t) {
  ad_dtype dtype = ad_tape_dtype(t);
  for (size_t i = 0, at = 0; i < target->params.count; at += numel_of(target, i++)) {
    int is_wide = target->params.list[i].shape.ndim < 2;
    target->decoder.leaves[i] = constant(target, t, i, at, is_wide ? ad_dtype_wide(dtype) : dtype);
  }
}

ad_tensor *ad_target_constant(const ad_target *target, ad_tape *t, size_t site) {
  size_t param = target->sites[site].weight;
  return constant(target, t, param, start_of(target, param), ad_dtype_wide(ad_tape_dtype(t)));
}

ad_tensor *ad_target_logits(ad_target *target, ad_tape *t, ad_tensor *tokens,
                            ad_tensor *(*visit)(void *own, ad_tape *t, size_t site, ad_tensor *x, ad_tensor *w),
                            void *own) {
  put_constants(target, t);
  target->visit = visit;
  target->own = own;
  ad_tensor *logits = ad_decoder_logits(&target->decoder, t, ad_decoder_embed(&target->decoder, t, tokens));
  target->visit = NULL;
  return logits;
}
