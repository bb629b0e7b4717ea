/* The program decompose: a frozen decoder (the target), an importance network, components of the target's matrices and
 * an adversary, each on its own ranks. This file has the modules, counts, losses, transfers and the record; batches.c
 * reads what they compute with, phases.c has the computations, keys.c the recipe keys. */
#include "decompose/decompose.h"

#include <stdio.h>
#include <string.h>
#include "addend/helpers.h"
#include "decompose/keys.h"
#include "decompose/showing.h"
#include "decompose/model.h"

/* ---- adding the modules ---- */

static ad_status add_ci(ad_decomposition *d, ad_program *to) {
  const ad_decompose_options *options = d->options;
  int64_t width = options->importance_d_model;
  ad_encoder_shape shape = {.name = "ci",
                            .input = "input",
                            .output = "output",
                            .out = d->components,
                            .layers = options->importance_layers,
                            .d_model = width,
                            .d_hidden = ((8 * width + 2) / 3 + 15) / 16 * 16,
                            .heads = options->importance_heads,
                            .rotary_base = options->target.decoder.rotary_base,
                            .norm_group = "ci"};
  for (size_t s = 0; s < d->site_count; s++) shape.in += d->sites[s].in;
  return ad_encoder_create(&d->importance, &shape, AD_POOL_CI, to);
}

static void declare_site(ad_declarations *to, const ad_site *site) {
  ad_param_spec v = {.size = sizeof v,
                     .shape = {2, {site->in, site->components}},
                     .layout = to->replicated,
                     .sharded = AD_AXES(AD_DP_SHARD),
                     .deviation = ad_deviation_keeping_size(site->in)};
  ad_param_spec u = v;
  u.shape = (ad_shape){2, {site->components, site->out}};
  u.deviation = ad_deviation_keeping_size(site->components);
  ad_declare_param(to, site->name, "V", v);
  ad_declare_param(to, site->name, "U", u);
  to->unit++;
}

static ad_status add_block(ad_decomposition *d, size_t module, ad_program *to) {
  ad_declarations list = ad_declarations_on(ad_program_mesh(to, module));
  const ad_decompose_part *block = &d->parts[module];
  for (size_t i = 0; i < block->site_count; i++) declare_site(&list, &d->sites[block->first_site + i]);
  return ad_program_add_declared(to, "blocks", "blocks", &list);
}

static ad_status add_adv(ad_decomposition *d, ad_program *to) {
  ad_declarations list = ad_declarations_on(ad_program_mesh(to, ad_module_of_adv(d)));
  int64_t seq = d->options->target.decoder.data.seq;
  ad_shape shapes[AD_SITES_MAX + 1] = {{2, {seq, d->components}}};
  for (size_t s = 0; s < d->site_count; s++) shapes[1 + s] = (ad_shape){1, {seq}};
  ad_status status = ad_sources_create(&d->sources, d->options, shapes, d->site_count + 1, &d->setting, &list);
  if (status) {
    ad_declarations_release(&list);
    return status;
  }
  return ad_program_add_declared(to, "adv", "adv", &list);
}

static ad_status add_modules(ad_decomposition *d, ad_program *to) {
  AD_TRY(add_ci(d, to));
  for (size_t b = 0; b < d->block_count; b++) AD_TRY(add_block(d, 1 + b, to));
  return add_adv(d, to);
}

/* ---- the parts of a program on one rank ---- */

static ad_status create_part(ad_decomposition *d, size_t module, const ad_mesh *mesh) {
  ad_decompose_part *own = &d->parts[module];
  ad_layout layout = ad_text_batch_layout(mesh);
  ad_span sites = {0, (int64_t)d->site_count};
  if (module > AD_POOL_CI && module < ad_module_of_adv(d)) sites = ad_sites_of_block(d, ad_block_of(module));
  own->is_here = ad_mesh_has_rank(mesh, ad_comm_rank(d->setting.comm));
  own->first_site = (size_t)sites.first;
  own->site_count = (size_t)sites.count;
  AD_TRY(ad_new(2 * own->site_count, &own->masks));
  AD_TRY(ad_target_create(&own->target, &d->options->target, mesh, d->sites, d->site_count));
  ad_text_layouts layouts = {.rows = layout, .tokens = layout, .targets = layout};
  const ad_decoder_options *decoder = &d->options->target.decoder;
  AD_TRY(ad_text_batch_create(&d->setting, &layouts, &decoder->data, ad_decoder_vocabulary(decoder), &own->batch));
  // A batch beyond the end of a set continues at the beginning of the set, because the losses of components are sums
  // over all positions of a complete batch.
  own->batch.options.wraps = 1;
  return AD_OK;
}

static void release_part(ad_decompose_part *own) {
  for (size_t i = 0; own->masks && i < 2 * own->site_count; i++) ad_release(own->masks[i].at);
  ad_release(own->masks);
  ad_target_release(&own->target);
  ad_text_batch_destroy(&own->batch);
}

/* ---- adding counts and losses ---- */

/* Returns the mesh of all ranks of the pool `blocks`. If the blocks share their ranks, all of them have this mesh. */
static const ad_mesh *mesh_of_blocks(const ad_decomposition *d, const ad_program *to) {
  return d->setting.disjoint ? ad_program_pool(to, AD_POOL_BLOCKS) : ad_program_mesh(to, 1);
}

static ad_layout same_everywhere(const ad_mesh *mesh) {
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_layout_set(&layout, ad_mesh_named(mesh), AD_I);
  return layout;
}

static ad_status add_losses(const ad_decomposition *d, ad_program *to) {
  const ad_decompose_options *options = d->options;
  const ad_mesh *blocks = mesh_of_blocks(d, to);
  const ad_count_spec counts[] = {
      [AD_COUNT_POSITIONS] = {sizeof(ad_count_spec), "positions",
                              ad_text_count_layout(ad_program_mesh(to, AD_POOL_CI))},
      [AD_COUNT_SITE_POSITIONS] = {sizeof(ad_count_spec), "positions of sites", ad_text_count_layout(blocks)},
      [AD_COUNT_WEIGHTS] = {sizeof(ad_count_spec), "weights", same_everywhere(blocks)},
      [AD_COUNT_ADV_POSITIONS] = {sizeof(ad_count_spec), "positions of the adversary",
                                  ad_text_count_layout(ad_program_mesh(to, ad_module_of_adv(d)))}};
  const struct {
    const char *name;
    size_t count;
    double coefficient;
  } losses[] = {[AD_LOSS_FAITHFULNESS] = {"faithfulness", AD_COUNT_WEIGHTS, options->faithfulness},
                [AD_LOSS_STOCHASTIC] = {"stochastic", AD_COUNT_SITE_POSITIONS, options->stochastic},
                [AD_LOSS_SPARSITY] = {"sparsity", AD_COUNT_POSITIONS, options->sparsity},
                [AD_LOSS_ADVERSARIAL] = {"adversarial", AD_COUNT_ADV_POSITIONS, options->adversarial}};
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) AD_TRY(ad_program_add_count(to, &counts[i]));
  for (size_t i = 0; i < sizeof losses / sizeof *losses; i++) {
    ad_loss_spec spec = {.size = sizeof spec,
                         .name = losses[i].name,
                         .count = losses[i].count,
                         .coefficient = losses[i].coefficient,
                         .is_metric = losses[i].coefficient == 0};
    AD_TRY(ad_program_add_loss(to, &spec));
  }
  return AD_OK;
}

/* ---- adding phases, and the transfers of values between modules ---- */

static ad_status name_values(ad_decomposition *d) {
  AD_TRY(ad_new(d->block_count, &d->importances));
  AD_TRY(ad_new(d->site_count, &d->v));
  AD_TRY(ad_new(d->site_count, &d->u));
  for (size_t b = 0; b < d->block_count; b++) snprintf(d->importances[b], AD_DECOMPOSE_NAME_SIZE, "importances.%zu", b);
  for (size_t s = 0; s < d->site_count; s++) {
    snprintf(d->v[s], AD_DECOMPOSE_NAME_SIZE, "%s.V", d->sites[s].name);
    snprintf(d->u[s], AD_DECOMPOSE_NAME_SIZE, "%s.U", d->sites[s].name);
  }
  /* The lists have, in all: components twice for the blocks and once for the adversary, importances three times, and
   * one terminating NULL for each list. */
  return ad_new(6 * d->site_count + 3 * d->block_count + 3 * d->block_count + 2, &d->lists);
}

/* Where the next entry of the lists is written. Each list ends with NULL. */
typedef struct list_end {
  const char **at;
} list_end;

static void list_components(const ad_decomposition *d, size_t first, size_t count, list_end *to) {
  for (size_t s = first; s < first + count; s++) {
    *to->at++ = d->v[s];
    *to->at++ = d->u[s];
  }
}

static const char *const *end_list(const char **from, list_end *to) {
  *to->at++ = NULL;
  return from;
}

static ad_status add_transfer(ad_decomposition *d, ad_program *to, const ad_transfer_spec *spec, const ad_layout *from,
                              const ad_layout *at) {
  ad_transfer_spec transfer = *spec;
  ad_bridge_options options = {.size = sizeof options, .ragged = 1};
  ad_bridge **bridge = &d->bridges[d->bridge_count];
  AD_TRY(ad_bridge_create((ad_comm *)(uintptr_t)d->setting.comm, from, at, &options, bridge));
  d->bridge_count++;
  transfer.bridge = *bridge;
  return ad_program_add_transfer(to, &transfer);
}

static ad_status transfer_importances(ad_decomposition *d, size_t block, size_t module, double coefficient,
                                      ad_program *to) {
  ad_layout from = ad_text_batch_layout(ad_program_mesh(to, AD_POOL_CI));
  ad_layout at = ad_text_batch_layout(ad_program_mesh(to, module));
  const ad_decompose_part *own = &d->parts[1 + block];
  ad_transfer_spec spec = {.size = sizeof spec,
                           .value = d->importances[block],
                           .module = module,
                           .shape = {3,
                                     {d->setting.global_batch, d->options->target.decoder.data.seq,
                                      ad_components_in(d, own->first_site, own->site_count)}},
                           .comm_dtype = d->options->comm_dtype_values,
                           .gradient_comm_dtype = d->options->comm_dtype_gradients,
                           .one_way = coefficient == 0};
  return add_transfer(d, to, &spec, &from, &at);
}

static ad_status transfer_component(ad_decomposition *d, const char *value, size_t module, ad_shape shape,
                                    ad_program *to) {
  ad_layout from = ad_layout_all(ad_program_mesh(to, module), AD_R);
  ad_layout at = ad_layout_all(ad_program_mesh(to, ad_module_of_adv(d)), AD_R);
  ad_transfer_spec spec = {.size = sizeof spec,
                           .value = value,
                           .module = ad_module_of_adv(d),
                           .shape = shape,
                           .comm_dtype = d->options->comm_dtype_weights,
                           .gradient_comm_dtype = d->options->comm_dtype_gradients,
                           .one_way = d->options->adversarial == 0,
                           .is_parameter = 1};
  return add_transfer(d, to, &spec, &from, &at);
}

static ad_status add_components(ad_decomposition *d, size_t module, list_end *lists, ad_program *to) {
  const ad_decompose_part *block = &d->parts[module];
  const char **first = lists->at;
  list_components(d, block->first_site, block->site_count, lists);
  ad_phase phase = {.size = sizeof phase,
                    .name = "components",
                    .module = module,
                    .gives = end_list(first, lists),
                    .run = ad_decompose_give_components};
  AD_TRY(ad_program_add_phase(to, &phase));
  for (size_t s = block->first_site; s < block->first_site + block->site_count; s++) {
    const ad_site *site = &d->sites[s];
    AD_TRY(transfer_component(d, d->v[s], module, (ad_shape){2, {site->in, site->components}}, to));
    AD_TRY(transfer_component(d, d->u[s], module, (ad_shape){2, {site->components, site->out}}, to));
  }
  return AD_OK;
}

static ad_status add_importances(ad_decomposition *d, list_end *lists, ad_program *to) {
  const char **first = lists->at;
  for (size_t b = 0; b < d->block_count; b++) *lists->at++ = d->importances[b];
  ad_phase phase = {.size = sizeof phase,
                    .name = "importances",
                    .module = AD_POOL_CI,
                    .gives = end_list(first, lists),
                    .run = ad_decompose_give_importances};
  AD_TRY(ad_program_add_phase(to, &phase));
  for (size_t b = 0; b < d->block_count; b++) {
    AD_TRY(transfer_importances(d, b, 1 + b, d->options->stochastic, to));
    AD_TRY(transfer_importances(d, b, ad_module_of_adv(d), d->options->adversarial, to));
  }
  return AD_OK;
}

static ad_status add_block_phase(ad_decomposition *d, size_t module, list_end *lists, ad_program *to) {
  const ad_decompose_part *block = &d->parts[module];
  const char **first = lists->at;
  list_components(d, block->first_site, block->site_count, lists);
  *lists->at++ = d->importances[ad_block_of(module)];
  ad_phase phase = {.size = sizeof phase,
                    .name = "block",
                    .module = module,
                    .needs = end_list(first, lists),
                    .run = ad_decompose_run_block};
  return ad_program_add_phase(to, &phase);
}

static ad_status add_adversary(ad_decomposition *d, list_end *lists, ad_program *to) {
  const char **first = lists->at;
  list_components(d, 0, d->site_count, lists);
  for (size_t b = 0; b < d->block_count; b++) *lists->at++ = d->importances[b];
  ad_phase phase = {.size = sizeof phase,
                    .name = "adversary",
                    .module = ad_module_of_adv(d),
                    .needs = end_list(first, lists),
                    .run = ad_decompose_run_adversary,
                    .after = ad_decompose_climb_after};
  return ad_program_add_phase(to, &phase);
}

static ad_status add_phases(ad_decomposition *d, ad_program *to) {
  list_end lists = {d->lists};
  AD_TRY(ad_new(2 * d->site_count + 2 * d->block_count, &d->bridges));
  for (size_t b = 0; b < d->block_count; b++) AD_TRY(add_components(d, 1 + b, &lists, to));
  AD_TRY(add_importances(d, &lists, to));
  for (size_t b = 0; b < d->block_count; b++) AD_TRY(add_block_phase(d, 1 + b, &lists, to));
  return add_adversary(d, &lists, to);
}

/* ---- functions of the program's record ---- */

static ad_status check_sizes(const ad_decomposition *d) {
  if (d->site_count > AD_SITES_MAX)
    return ad_fail(AD_INVALID,
                   "`sites` matches %zu matrices of the target, but at most %d can be decomposed; make the pattern in "
                   "`sites` narrower",
                   d->site_count, AD_SITES_MAX);
  if (d->block_count > AD_BLOCKS_MAX)
    return ad_fail(AD_INVALID,
                   "the axis `block` of mesh.blocks has %zu blocks, but at most %d are allowed; set a smaller block=N",
                   d->block_count, AD_BLOCKS_MAX);
  return AD_OK;
}

static ad_status create_decomposition(const void *options, ad_program *to, void **own) {
  ad_decomposition *d;
  AD_TRY(ad_new(1, &d));
  *own = d;
  d->options = options;
  d->setting = *ad_program_setting_of(to);
  d->block_count = (size_t)ad_mesh_axis_size(ad_program_pool(to, AD_POOL_BLOCKS), AD_BLOCK);
  d->module_count = d->block_count + 2;
  AD_TRY(ad_decompose_sites(d->options, ad_program_mesh(to, AD_POOL_CI), &d->sites, &d->site_count));
  AD_TRY(check_sizes(d));
  d->components = ad_components_in(d, 0, d->site_count);
  AD_TRY(ad_new(d->module_count, &d->parts));
  for (size_t m = 0; m < d->module_count; m++) AD_TRY(create_part(d, m, ad_program_mesh(to, m)));
  AD_TRY(name_values(d));
  AD_TRY(add_modules(d, to));
  AD_TRY(add_losses(d, to));
  return add_phases(d, to);
}

static void destroy_decomposition(void *own) {
  ad_decomposition *d = own;
  for (size_t m = 0; d->parts && m < d->module_count; m++) release_part(&d->parts[m]);
  for (size_t i = 0; i < d->bridge_count; i++) ad_bridge_destroy(d->bridges[i]);
  if (d->ascent) ad_tape_destroy(d->ascent);
  ad_sources_release(&d->sources);
  ad_encoder_release(&d->importance);
  ad_release(d->bridges);
  ad_release(d->parts);
  ad_release(d->sites);
  ad_release(d->importances);
  ad_release(d->v);
  ad_release(d->u);
  ad_release(d->lists);
  ad_release(d);
}

/* Returns the path of the file with the target's weights, or NULL if the weights are drawn from the seed. */
static const char *weights_file(const ad_decomposition *d) {
  return d->options->weights ? d->options->weights : d->options->trained;
}

static ad_status open_data(void *own) {
  ad_decomposition *d = own;
  for (size_t m = 0; m < d->module_count; m++) {
    ad_decompose_part *of = &d->parts[m];
    if (!of->is_here) continue;
    AD_TRY(ad_text_batch_open(&of->batch));
    if (ad_comm_is_dry(d->setting.comm)) continue;
    AD_TRY(ad_target_open(&of->target, weights_file(d), d->setting.seed, ad_comm_rank(d->setting.comm)));
  }
  return AD_OK;
}

static int has_validation(const void *own) {
  return ((const ad_decomposition *)own)->options->target.decoder.data.validation > 0;
}

static int64_t validation_samples(const void *own) {
  const ad_decompose_part *here = ((const ad_decomposition *)own)->parts;
  while (!here->is_here) here++; /* ends, because each rank has at least one module */
  return ad_text_batch_validation(&here->batch);
}

static size_t part_bytes(const ad_decompose_part *own) {
  size_t bytes = ad_text_batch_bytes(&own->batch) + ad_target_bytes(&own->target);
  for (size_t i = 0; i < 2 * own->site_count; i++) bytes += own->masks[i].bytes;
  return bytes;
}

/* Returns the tokens of each microbatch of one module after another. Targets are left out, because no loss uses
 * them. */
static const ad_array *batch_array(const void *own, size_t index, char *name, size_t size) {
  const ad_decomposition *d = own;
  size_t microbatches = (size_t)d->setting.microbatches, module = index / microbatches, m = index % microbatches;
  return module < d->module_count ? ad_text_batch_array(&d->parts[module].batch, 2 * m, name, size) : NULL;
}

/* Returns a weight of the target. All modules have identical replicas of the weights. */
static const ad_array *constant_array(const void *own, size_t index, char *name, size_t size) {
  return ad_target_array(&((const ad_decomposition *)own)->parts[AD_POOL_CI].target, index, name, size);
}

/* Returns the bytes of batches, target weights, masks, sources in the tape's dtype, and the tape of the adversary's
 * ascent. */
static size_t data_bytes(const void *own) {
  const ad_decomposition *d = own;
  size_t bytes = ad_sources_bytes(&d->sources) + (d->ascent ? ad_tape_peak_bytes(d->ascent) : 0);
  for (size_t m = 0; m < d->module_count; m++)
    if (d->parts[m].is_here) bytes += part_bytes(&d->parts[m]);
  return bytes;
}

/* Returns the operations of the importance network, and of one forward and one backward pass of the target for each
 * site. */
static double flops(const void *own, int64_t samples) {
  const ad_decomposition *d = own;
  int64_t seq = d->options->target.decoder.data.seq;
  return (2 + (double)d->site_count) * ad_decoder_flops(&d->parts[AD_POOL_CI].target.decoder, seq, samples) +
         6 * d->importance.product_elements * (double)seq * (double)samples;
}

static const char *fact(const void *own, size_t index, char *buffer, size_t size) {
  const ad_decomposition *d = own;
  if (index) return NULL;
  snprintf(buffer, size, "%zu matrices, %lld components", d->site_count, (long long)d->components);
  return "decomposed";
}

static const char *content(const void *own, size_t index, char *buffer, size_t size) {
  const ad_decomposition *d = own;
  const ad_decompose_part *here = d->parts;
  while (!here->is_here) here++; /* ends, because each rank has at least one module */
  if (!weights_file(d)) return ad_text_batch_content(&here->batch, index, buffer, size);
  if (index) return ad_text_batch_content(&here->batch, index - 1, buffer, size);
  return ad_target_content(&here->target, buffer, size);
}

static const char *companion(const void *own, size_t index) {
  const ad_decompose_part *here = ((const ad_decomposition *)own)->parts;
  while (!here->is_here) here++; /* ends, because each rank has at least one module */
  return ad_text_batch_companion(&here->batch, index);
}

static const char *fixed(const void *own, const char *key) {
  const ad_decomposition *d = own;
  int has_states = d->sources.per_microbatch > 0;
  return has_states && !strcmp(key, "train.microbatches") ? "the adversary's sources are kept for each microbatch"
                                                          : NULL;
}

static const ad_pretraining pretraining = {.name = "target",
                                           .kind = ad_gpt,
                                           .steps = offsetof(ad_decompose_options, target_steps),
                                           .weights = offsetof(ad_decompose_options, trained)};

const ad_program_kind *ad_decompose(void) {
  static const char *const modules[] = {"ci", "blocks", "adv", NULL};
  static const ad_program_kind kind = {
      .size = sizeof kind,
      .name = "decompose",
      .help = "explains a decoder: components of its matrices, and where they are used",
      .modules = modules,
      .keys = ad_decompose_keys,
      .key_count = AD_DECOMPOSE_KEY_COUNT,
      .options_size = sizeof(ad_decompose_options),
      .create = create_decomposition,
      .destroy = destroy_decomposition,
      .open = open_data,
      .read = ad_decompose_read,
      .rules = {.check = ad_decompose_check,
                .check_files = ad_decompose_check_files,
                .not_smooth = ad_decompose_not_smooth},
      .data = {.has_validation = has_validation,
               .validation_samples = validation_samples,
               .bytes = data_bytes,
               .batch_array = batch_array,
               .constant_array = constant_array,
               .content = content,
               .companion = companion},
      .account = {.flops = flops, .show = ad_decompose_show, .fact = fact},
      .course = {.pretraining = &pretraining, .fixed = fixed}};
  return &kind;
}
