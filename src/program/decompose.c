/* The program decompose: a frozen decoder, an importance network, components of its matrices and an adversary, each on
 * ranks of its own. Its recipe keys are in decompose_keys.c.
 *
 * A microbatch: the blocks give their components to the adversary; the importance network gives each block and the
 * adversary how much of each component is needed; blocks and adversary run the target with masked components. Gradients
 * go back the same ways, and no number of ranks is in any of them. */
#include <stdio.h>
#include <string.h>
#include "addend/model.h"
#include "array/array.h"
#include "base/error.h"
#include "base/memory.h"
#include "nn/parallel.h"
#include "program/components.h"
#include "program/decompose_keys.h"
#include "program/encoder.h"
#include "program/gpt_keys.h"
#include "program/sources.h"
#include "program/text_batch.h"
#include "tensor/tape.h"

enum { CI, BLOCKS, ADV }; /* pools */
enum { FAITHFULNESS, STOCHASTIC, SPARSITY, ADVERSARIAL };
enum { POSITIONS, SITE_POSITIONS, WEIGHTS, ADV_POSITIONS };
enum { NAME_SIZE = AD_PARAM_NAME_SIZE + 16, BLOCKS_MAX = 64, SITES_MAX = 64 };

typedef char value_name[NAME_SIZE];

/* What a module has besides its parameters. */
typedef struct part {
  int is_here;
  size_t first_site, site_count; /* that it owns; of the others all */
  ad_target target;
  ad_text_batch batch;
  void **masks; /* of each of its sites two: numbers of masks and of what remains */
} part;

typedef struct decompose {
  const ad_decompose_options *options;
  ad_program_setting setting;
  int64_t step;
  ad_site *sites;
  size_t site_count;
  int64_t components; /* of all sites */
  size_t block_count, module_count;
  part *parts; /* of each module */
  ad_encoder importance;
  ad_sources sources;
  ad_tape *ascent;                 /* of the adversary's steps up; NULL: there was none yet */
  value_name *importances, *v, *u; /* of blocks; of sites: names of values */
  const char **lists;              /* needs and gives of the phases, one list after another */
  ad_bridge **bridges;
  size_t bridge_count;
} decompose;

static size_t module_of_adv(const decompose *d) { return d->module_count - 1; }
static size_t block_of(size_t module) { return module - 1; }

/* ---- numbers of sites ---- */

static ad_span sites_of_block(const decompose *d, size_t block) {
  return ad_cut((int64_t)d->site_count, (int64_t)block, (int64_t)d->block_count);
}

static int64_t components_in(const decompose *d, size_t first, size_t count) {
  int64_t components = 0;
  for (size_t s = first; s < first + count; s++) components += d->sites[s].components;
  return components;
}

static int64_t weights_of(const decompose *d) {
  int64_t weights = 0;
  for (size_t s = 0; s < d->site_count; s++) weights += d->sites[s].in * d->sites[s].out;
  return weights;
}

/* ---- constants of masks ---- */

static part *part_of(decompose *d, const ad_phase_run *at) { return &d->parts[ad_phase_module(at)]; }

static const ad_text_microbatch *microbatch_of(decompose *d, const ad_phase_run *at) {
  return &part_of(d, at)->batch.microbatches[ad_phase_microbatch(at)];
}

/* [batch, seq] or, with components, [batch, seq, components], uniform by place. */
static ad_tensor *uniform(decompose *d, ad_phase_run *at, size_t site, int64_t components) {
  ad_tape *t = ad_phase_tape(at);
  const ad_text_microbatch *batch = microbatch_of(d, at);
  ad_shape shape = {components ? 3 : 2, {batch->tokens.shape.dim[0], batch->tokens.shape.dim[1], components}};
  ad_array array = ad_array_describe(d->setting.comm, ad_tape_dtype(t), &shape, &batch->tokens.layout);
  part *own = part_of(d, at);
  void **memory = &own->masks[2 * (site - own->first_site) + (components == 0)];
  int64_t first = ad_cut(d->setting.global_batch, (int64_t)ad_phase_microbatch(at), d->setting.microbatches).first;
  char name[NAME_SIZE];
  if (!ad_comm_is_dry(d->setting.comm)) {
    char *room;
    ad_release(*memory);
    *memory = NULL;
    if (ad_new(ad_array_bytes(&array), &room)) return ad_constant(t, NULL);
    *memory = array.data = room;
  }
  snprintf(name, sizeof name, "%s %s", components ? "mask" : "remains", d->sites[site].name);
  if (ad_array_uniform(d->setting.comm, d->setting.seed, name, d->step, first, AD_HERE, &array))
    return ad_constant(t, NULL);
  return ad_constant(t, &array);
}

/* ---- the target with masks ---- */

/* A forward pass in which some sites are replaced. */
typedef struct masked_pass {
  decompose *d;
  size_t first, count; /* sites that are */
  ad_mask *masks;      /* of the first of them, and on */
} masked_pass;

static ad_tensor *replace(void *own, ad_tape *t, size_t site, ad_tensor *x, ad_tensor *w) {
  const masked_pass *pass = own;
  if (site < pass->first || site >= pass->first + pass->count) return NULL;
  return ad_masked_product(t, &pass->masks[site - pass->first], x, w);
}

static ad_tensor *divergence(const decompose *d, ad_tape *t, ad_tensor *logits, ad_tensor *wanted) {
  return strcmp(d->options->divergence, "kl") ? ad_squared_error(t, logits, wanted)
                                              : ad_kl_divergence(t, logits, wanted);
}

static ad_tensor *run_masked(masked_pass *pass, part *own, ad_tape *t, ad_tensor *tokens, ad_tensor *wanted) {
  return divergence(pass->d, t, ad_target_logits(&own->target, t, tokens, replace, pass), wanted);
}

/* ---- phase: components of a block ---- */

static ad_status give_components(void *own, ad_phase_run *at) {
  decompose *d = own;
  ad_tape *t = ad_phase_tape(at);
  const part *block = part_of(d, at);
  for (size_t i = 0; i < block->site_count; i++) {
    size_t site = block->first_site + i;
    ad_phase_give(at, d->v[site], ad_scale(t, ad_parameter(t, ad_phase_parameters(at), 2 * i), 1));
    ad_phase_give(at, d->u[site], ad_scale(t, ad_parameter(t, ad_phase_parameters(at), 2 * i + 1), 1));
  }
  return AD_OK;
}

/* ---- phase: importances ---- */

typedef struct inputs {
  ad_tensor *of_site[SITES_MAX];
} inputs;

static ad_tensor *see_input(void *own, ad_tape *t, size_t site, ad_tensor *x, ad_tensor *w) {
  ((inputs *)own)->of_site[site] = ad_rms_norm_unweighted(t, x, 1e-5);
  return NULL;
}

/* The sums of all ranks stand inside the logarithm; their backward is local (law 7). */
static ad_tensor *sparsity(const decompose *d, ad_tape *t, ad_tensor *importances) {
  ad_tensor *sums = ad_power_sums(t, ad_upper(t, importances), d->options->epsilon, d->options->power);
  return ad_sparsity(t, ad_all_reduce(t, sums, "dp", AD_I), d->options->beta);
}

static ad_status give_importances(void *own, ad_phase_run *at) {
  decompose *d = own;
  ad_tape *t = ad_phase_tape(at);
  inputs seen = {0};
  ad_target_logits(&part_of(d, at)->target, t, ad_constant(t, &microbatch_of(d, at)->tokens), see_input, &seen);
  ad_tensor *x = ad_encoder_forward(&d->importance, at, ad_concat(t, seen.of_site, d->site_count));
  ad_tensor *lower = ad_lower(t, x, d->options->plain_clamp);
  for (size_t b = 0, first = 0; b < d->block_count; b++) {
    ad_span own_sites = sites_of_block(d, b);
    int64_t count = components_in(d, (size_t)own_sites.first, (size_t)own_sites.count);
    ad_phase_give(at, d->importances[b], ad_slice(t, lower, (int64_t)first, count));
    first += (size_t)count;
  }
  ad_phase_loss(at, SPARSITY, sparsity(d, t, x));
  return AD_OK;
}

/* ---- phase: a block's losses ---- */

/* Replicated on the ranks of the block, so it counts once (law 7). */
static ad_tensor *faithfulness(decompose *d, ad_phase_run *at, const ad_mask *masks) {
  ad_tape *t = ad_phase_tape(at);
  const part *block = part_of(d, at);
  ad_tensor *sum = NULL;
  for (size_t i = 0; i < block->site_count; i++) {
    ad_tensor *weight = block->target.decoder.leaves[d->sites[block->first_site + i].weight];
    ad_tensor *error = ad_squared_error(t, ad_linear(t, masks[i].v, masks[i].u), weight);
    sum = sum ? ad_add(t, sum, error) : error;
  }
  return ad_once(t, sum, "dp");
}

static ad_tensor *stochastic(decompose *d, ad_phase_run *at, ad_mask *masks, ad_tensor *importances, ad_tensor *tokens,
                             ad_tensor *wanted) {
  ad_tape *t = ad_phase_tape(at);
  part *block = part_of(d, at);
  ad_tensor *sum = NULL;
  int64_t first = 0;
  for (size_t i = 0; i < block->site_count; i++) {
    size_t site = block->first_site + i;
    int64_t components = d->sites[site].components;
    masked_pass pass = {d, site, 1, &masks[i]};
    masks[i].mask = ad_mix(t, ad_slice(t, importances, first, components), uniform(d, at, site, components));
    masks[i].remains = uniform(d, at, site, 0);
    ad_tensor *error = run_masked(&pass, block, t, tokens, wanted);
    sum = sum ? ad_add(t, sum, error) : error;
    first += components;
  }
  return sum;
}

static ad_status run_block(void *own, ad_phase_run *at) {
  decompose *d = own;
  ad_tape *t = ad_phase_tape(at);
  part *block = part_of(d, at);
  ad_mask masks[SITES_MAX] = {{0}};
  ad_tensor *tokens = ad_constant(t, &microbatch_of(d, at)->tokens);
  ad_tensor *wanted = ad_target_logits(&block->target, t, tokens, NULL, NULL);
  for (size_t i = 0; i < block->site_count; i++) {
    masks[i].v = ad_phase_need(at, d->v[block->first_site + i]);
    masks[i].u = ad_phase_need(at, d->u[block->first_site + i]);
  }
  ad_phase_loss(at, FAITHFULNESS, faithfulness(d, at, masks));
  ad_tensor *importances = ad_phase_need(at, d->importances[block_of(ad_phase_module(at))]);
  ad_phase_loss(at, STOCHASTIC, stochastic(d, at, masks, importances, tokens, wanted));
  return AD_OK;
}

/* ---- phase: the adversary ---- */

/* What its forward passes have in common, on one tape. */
typedef struct adversary {
  ad_tensor *tokens, *wanted, *importances, *v[SITES_MAX], *u[SITES_MAX];
} adversary;

static adversary adversary_of(decompose *d, ad_phase_run *at) {
  ad_tape *t = ad_phase_tape(at);
  part *own = part_of(d, at);
  adversary with = {.tokens = ad_constant(t, &microbatch_of(d, at)->tokens)};
  ad_tensor *of_blocks[BLOCKS_MAX];
  with.wanted = ad_target_logits(&own->target, t, with.tokens, NULL, NULL);
  for (size_t b = 0; b < d->block_count; b++) of_blocks[b] = ad_phase_need(at, d->importances[b]);
  with.importances = ad_concat(t, of_blocks, d->block_count);
  for (size_t s = 0; s < d->site_count; s++) {
    with.v[s] = ad_phase_need(at, d->v[s]);
    with.u[s] = ad_phase_need(at, d->u[s]);
  }
  return with;
}

static ad_tensor *again(ad_tape *t, const ad_tensor *x) {
  const ad_array *array = ad_tensor_array(x);
  return ad_constant(t, array);
}

/* The same on the tape of the ascent, where all of it is constant. */
static adversary constants_of(const decompose *d, ad_tape *t, const adversary *from) {
  adversary with = {
      .tokens = again(t, from->tokens), .wanted = again(t, from->wanted), .importances = again(t, from->importances)};
  for (size_t s = 0; s < d->site_count; s++) {
    with.v[s] = again(t, from->v[s]);
    with.u[s] = again(t, from->u[s]);
  }
  return with;
}

static ad_tensor *masked_by_sources(decompose *d, ad_phase_run *at, ad_tape *t, const adversary *with,
                                    ad_tensor **sources) {
  ad_mask masks[SITES_MAX];
  int64_t first = 0;
  for (size_t i = 0; i < d->sources.per_microbatch; i++) sources[i] = ad_sources_input(&d->sources, at, t, i);
  ad_tensor *mixed = ad_mix(t, with->importances, sources[0]);
  for (size_t s = 0; s < d->site_count; s++) {
    masks[s] = (ad_mask){with->v[s], with->u[s], ad_slice(t, mixed, first, d->sites[s].components), sources[1 + s]};
    first += d->sites[s].components;
  }
  masked_pass pass = {d, 0, d->site_count, masks};
  return run_masked(&pass, part_of(d, at), t, with->tokens, with->wanted);
}

static double over_positions(const decompose *d) {
  return 1 / ((double)d->setting.global_batch * (double)d->options->target.decoder.data.seq);
}

static ad_status climb(decompose *d, ad_phase_run *at, ad_tensor *const *sources, double factor) {
  const ad_array *gradients[SITES_MAX + 1];
  for (size_t i = 0; i < d->sources.per_microbatch; i++) gradients[i] = ad_grad(sources[i]);
  return ad_sources_climb(&d->sources, at, gradients, factor);
}

static ad_status climb_once(decompose *d, ad_phase_run *at, const adversary *from) {
  ad_tensor *sources[SITES_MAX + 1] = {NULL};
  ad_tape *t = d->ascent;
  ad_tape_reset(t);
  adversary with = constants_of(d, t, from);
  ad_tensor *loss = ad_scale(t, masked_by_sources(d, at, t, &with, sources), over_positions(d));
  AD_TRY(ad_backward(t, loss));
  return climb(d, at, sources, 1);
}

static ad_status climb_before(decompose *d, ad_phase_run *at, const adversary *from) {
  ad_tape *t = ad_phase_tape(at);
  ad_tape_options options = {.size = sizeof options, .dtype = ad_tape_dtype(t)};
  AD_TRY(ad_tape_status(t));
  if (!d->options->ascent_steps || !ad_phase_trains(at)) return AD_OK;
  if (!d->ascent) AD_TRY(ad_tape_create(ad_tape_comm(t), t->mesh, &options, &d->ascent));
  for (int64_t i = 0; i < d->options->ascent_steps; i++) AD_TRY(climb_once(d, at, from));
  return AD_OK;
}

static ad_status run_adversary(void *own, ad_phase_run *at) {
  decompose *d = own;
  ad_tensor *sources[SITES_MAX + 1] = {NULL};
  adversary with = adversary_of(d, at);
  AD_TRY(climb_before(d, at, &with));
  ad_phase_loss(at, ADVERSARIAL, masked_by_sources(d, at, ad_phase_tape(at), &with, sources));
  return AD_OK;
}

/* The last forward pass's gradient, without the loss's coefficient. */
static ad_status climb_after(void *own, ad_phase_run *at) {
  decompose *d = own;
  ad_tensor *const *leaves = d->sources.leaves + ad_phase_microbatch(at) * d->sources.per_microbatch;
  if (!ad_phase_trains(at) || !d->options->ascent_steps || !(d->options->adversarial > 0)) return AD_OK;
  return climb(d, at, leaves, 1 / d->options->adversarial);
}

/* ---- modules ---- */

static ad_status add_ci(decompose *d, ad_program *to) {
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
  return ad_encoder_create(&d->importance, &shape, CI, to);
}

static void declare_site(ad_declarations *to, const ad_site *site) {
  ad_param_spec v = {.shape = {2, {site->in, site->components}},
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

static ad_status add_module(ad_program *to, ad_declarations *list, const char *name, const char *norm_group) {
  ad_module_spec spec = {.name = name,
                         .mesh = list->replicated.mesh,
                         .params = list->list,
                         .param_count = list->count,
                         .states = list->states,
                         .state_count = list->state_count,
                         .norm_group = norm_group};
  ad_status status = list->status ? list->status : ad_program_add_module(to, &spec);
  ad_declarations_release(list);
  return status;
}

static ad_status add_block(decompose *d, size_t module, ad_program *to) {
  ad_declarations list = ad_declarations_on(ad_program_mesh(to, module));
  const part *block = &d->parts[module];
  for (size_t i = 0; i < block->site_count; i++) declare_site(&list, &d->sites[block->first_site + i]);
  return add_module(to, &list, "blocks", "blocks");
}

static ad_status add_adv(decompose *d, ad_program *to) {
  const ad_mesh *mesh = ad_program_mesh(to, module_of_adv(d));
  ad_declarations list = ad_declarations_on(mesh);
  ad_layout layout = ad_text_batch_layout(mesh);
  int64_t seq = d->options->target.decoder.data.seq;
  ad_shape shapes[SITES_MAX + 1] = {{3, {0, seq, d->components}}};
  for (size_t s = 0; s < d->site_count; s++) shapes[1 + s] = (ad_shape){2, {0, seq}};
  ad_status status = ad_sources_create(&d->sources, d->options, shapes, d->site_count + 1, &d->setting, &layout, &list);
  if (status) {
    ad_declarations_release(&list);
    return status;
  }
  return add_module(to, &list, "adv", "adv");
}

static ad_status add_modules(decompose *d, ad_program *to) {
  AD_TRY(add_ci(d, to));
  for (size_t b = 0; b < d->block_count; b++) AD_TRY(add_block(d, 1 + b, to));
  return add_adv(d, to);
}

/* ---- parts ---- */

static ad_status create_part(decompose *d, size_t module, const ad_mesh *mesh) {
  part *own = &d->parts[module];
  ad_layout layout = ad_text_batch_layout(mesh);
  ad_span sites = {0, (int64_t)d->site_count};
  if (module > CI && module < module_of_adv(d)) sites = sites_of_block(d, block_of(module));
  own->is_here = ad_mesh_has_rank(mesh, ad_comm_rank(d->setting.comm));
  own->first_site = (size_t)sites.first;
  own->site_count = (size_t)sites.count;
  AD_TRY(ad_new(2 * own->site_count, &own->masks));
  AD_TRY(ad_target_create(&own->target, &d->options->target, mesh, d->sites, d->site_count));
  return ad_text_batch_create(&d->setting, &layout, &d->options->target.decoder.data, &own->batch);
}

static void release_part(part *own) {
  for (size_t i = 0; own->masks && i < 2 * own->site_count; i++) ad_release(own->masks[i]);
  ad_release(own->masks);
  ad_target_release(&own->target);
  ad_text_batch_destroy(&own->batch);
}

/* ---- counts and losses ---- */

/* Of a pool whose blocks share their ranks each block has all of them. */
static const ad_mesh *mesh_of_blocks(const decompose *d, const ad_program *to) {
  return d->setting.disjoint ? ad_program_pool(to, BLOCKS) : ad_program_mesh(to, 1);
}

static ad_layout same_everywhere(const ad_mesh *mesh) {
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_layout_set(&layout, ad_mesh_named(mesh), AD_I);
  return layout;
}

static ad_status add_losses(const decompose *d, ad_program *to) {
  const ad_decompose_options *options = d->options;
  const ad_mesh *blocks = mesh_of_blocks(d, to);
  const ad_count_spec counts[] = {
      [POSITIONS] = {"positions", ad_text_count_layout(ad_program_mesh(to, CI))},
      [SITE_POSITIONS] = {"positions of sites", ad_text_count_layout(blocks)},
      [WEIGHTS] = {"weights", same_everywhere(blocks)},
      [ADV_POSITIONS] = {"positions of the adversary", ad_text_count_layout(ad_program_mesh(to, module_of_adv(d)))}};
  const struct {
    const char *name;
    size_t count;
    double coefficient;
  } losses[] = {[FAITHFULNESS] = {"faithfulness", WEIGHTS, options->faithfulness},
                [STOCHASTIC] = {"stochastic", SITE_POSITIONS, options->stochastic},
                [SPARSITY] = {"sparsity", POSITIONS, options->sparsity},
                [ADVERSARIAL] = {"adversarial", ADV_POSITIONS, options->adversarial}};
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) AD_TRY(ad_program_add_count(to, &counts[i]));
  for (size_t i = 0; i < sizeof losses / sizeof *losses; i++) {
    ad_loss_spec spec = {.name = losses[i].name,
                         .count = losses[i].count,
                         .coefficient = losses[i].coefficient,
                         .is_metric = losses[i].coefficient == 0,
                         .per_microbatch = i == SPARSITY};
    AD_TRY(ad_program_add_loss(to, &spec));
  }
  return AD_OK;
}

/* ---- phases and exchanges ---- */

static ad_status name_values(decompose *d) {
  AD_TRY(ad_new(d->block_count, &d->importances));
  AD_TRY(ad_new(d->site_count, &d->v));
  AD_TRY(ad_new(d->site_count, &d->u));
  for (size_t b = 0; b < d->block_count; b++) snprintf(d->importances[b], NAME_SIZE, "importances.%zu", b);
  for (size_t s = 0; s < d->site_count; s++) {
    snprintf(d->v[s], NAME_SIZE, "%s.V", d->sites[s].name);
    snprintf(d->u[s], NAME_SIZE, "%s.U", d->sites[s].name);
  }
  /* Components twice for blocks and once for the adversary, importances for all three; and an end of each list. */
  return ad_new(6 * d->site_count + 3 * d->block_count + 3 * d->block_count + 2, &d->lists);
}

/* Appends to the lists; each ends with NULL. */
typedef struct list_end {
  const char **at;
} list_end;

static void list_components(const decompose *d, size_t first, size_t count, list_end *to) {
  for (size_t s = first; s < first + count; s++) {
    *to->at++ = d->v[s];
    *to->at++ = d->u[s];
  }
}

static const char *const *end_list(const char **from, list_end *to) {
  *to->at++ = NULL;
  return from;
}

static ad_status add_crossing(decompose *d, ad_program *to, const ad_crossing_spec *spec, const ad_layout *from,
                              const ad_layout *at) {
  ad_crossing_spec crossing = *spec;
  ad_bridge_options options = {.size = sizeof options, .ragged = 1};
  ad_bridge **bridge = &d->bridges[d->bridge_count];
  AD_TRY(ad_bridge_create((ad_comm *)(uintptr_t)d->setting.comm, from, at, &options, bridge));
  d->bridge_count++;
  crossing.bridge = *bridge;
  return ad_program_add_crossing(to, &crossing);
}

static ad_status cross_importances(decompose *d, size_t block, size_t module, double coefficient, ad_program *to) {
  ad_layout from = ad_text_batch_layout(ad_program_mesh(to, CI));
  ad_layout at = ad_text_batch_layout(ad_program_mesh(to, module));
  const part *own = &d->parts[1 + block];
  ad_crossing_spec spec = {.value = d->importances[block],
                           .module = module,
                           .shape = {3,
                                     {d->setting.global_batch, d->options->target.decoder.data.seq,
                                      components_in(d, own->first_site, own->site_count)}},
                           .wire = d->options->wire_values,
                           .gradient_wire = d->options->wire_gradients,
                           .one_way = coefficient == 0};
  return add_crossing(d, to, &spec, &from, &at);
}

static ad_status cross_component(decompose *d, const char *value, size_t module, ad_shape shape, ad_program *to) {
  ad_layout from = ad_layout_all(ad_program_mesh(to, module), AD_R);
  ad_layout at = ad_layout_all(ad_program_mesh(to, module_of_adv(d)), AD_R);
  ad_crossing_spec spec = {.value = value,
                           .module = module_of_adv(d),
                           .shape = shape,
                           .wire = d->options->wire_weights,
                           .gradient_wire = d->options->wire_gradients,
                           .one_way = d->options->adversarial == 0};
  return add_crossing(d, to, &spec, &from, &at);
}

static ad_status add_components(decompose *d, size_t module, list_end *lists, ad_program *to) {
  const part *block = &d->parts[module];
  const char **first = lists->at;
  list_components(d, block->first_site, block->site_count, lists);
  ad_phase phase = {.name = "components", .module = module, .gives = end_list(first, lists), .run = give_components};
  AD_TRY(ad_program_add_phase(to, &phase));
  for (size_t s = block->first_site; s < block->first_site + block->site_count; s++) {
    const ad_site *site = &d->sites[s];
    AD_TRY(cross_component(d, d->v[s], module, (ad_shape){2, {site->in, site->components}}, to));
    AD_TRY(cross_component(d, d->u[s], module, (ad_shape){2, {site->components, site->out}}, to));
  }
  return AD_OK;
}

static ad_status add_importances(decompose *d, list_end *lists, ad_program *to) {
  const char **first = lists->at;
  for (size_t b = 0; b < d->block_count; b++) *lists->at++ = d->importances[b];
  ad_phase phase = {.name = "importances", .module = CI, .gives = end_list(first, lists), .run = give_importances};
  AD_TRY(ad_program_add_phase(to, &phase));
  for (size_t b = 0; b < d->block_count; b++) {
    AD_TRY(cross_importances(d, b, 1 + b, d->options->stochastic, to));
    AD_TRY(cross_importances(d, b, module_of_adv(d), d->options->adversarial, to));
  }
  return AD_OK;
}

static ad_status add_block_phase(decompose *d, size_t module, list_end *lists, ad_program *to) {
  const part *block = &d->parts[module];
  const char **first = lists->at;
  list_components(d, block->first_site, block->site_count, lists);
  *lists->at++ = d->importances[block_of(module)];
  ad_phase phase = {.name = "block", .module = module, .needs = end_list(first, lists), .run = run_block};
  return ad_program_add_phase(to, &phase);
}

static ad_status add_adversary(decompose *d, list_end *lists, ad_program *to) {
  const char **first = lists->at;
  list_components(d, 0, d->site_count, lists);
  for (size_t b = 0; b < d->block_count; b++) *lists->at++ = d->importances[b];
  ad_phase phase = {.name = "adversary",
                    .module = module_of_adv(d),
                    .needs = end_list(first, lists),
                    .run = run_adversary,
                    .after = climb_after};
  return ad_program_add_phase(to, &phase);
}

static ad_status add_phases(decompose *d, ad_program *to) {
  list_end lists = {d->lists};
  AD_TRY(ad_new(2 * d->site_count + 2 * d->block_count, &d->bridges));
  for (size_t b = 0; b < d->block_count; b++) AD_TRY(add_components(d, 1 + b, &lists, to));
  AD_TRY(add_importances(d, &lists, to));
  for (size_t b = 0; b < d->block_count; b++) AD_TRY(add_block_phase(d, 1 + b, &lists, to));
  return add_adversary(d, &lists, to);
}

/* ---- the record ---- */

static ad_status check_sizes(const decompose *d) {
  if (d->site_count > SITES_MAX)
    return ad_fail(AD_INVALID, "%zu matrices are to be decomposed; there may be %d", d->site_count, SITES_MAX);
  if (d->block_count > BLOCKS_MAX)
    return ad_fail(AD_INVALID, "there are %zu blocks; there may be %d", d->block_count, BLOCKS_MAX);
  return AD_OK;
}

static ad_status create(const void *options, ad_program *to, void **own) {
  decompose *d;
  AD_TRY(ad_new(1, &d));
  *own = d;
  d->options = options;
  d->setting = *ad_program_setting_of(to);
  d->block_count = (size_t)ad_mesh_axis_size(ad_program_pool(to, BLOCKS), AD_BLOCK);
  d->module_count = d->block_count + 2;
  AD_TRY(ad_decompose_sites(d->options, ad_program_mesh(to, CI), &d->sites, &d->site_count));
  AD_TRY(check_sizes(d));
  d->components = components_in(d, 0, d->site_count);
  AD_TRY(ad_new(d->module_count, &d->parts));
  for (size_t m = 0; m < d->module_count; m++) AD_TRY(create_part(d, m, ad_program_mesh(to, m)));
  AD_TRY(name_values(d));
  AD_TRY(add_modules(d, to));
  AD_TRY(add_losses(d, to));
  return add_phases(d, to);
}

static void destroy(void *own) {
  decompose *d = own;
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

static ad_status open_data(void *own) {
  decompose *d = own;
  for (size_t m = 0; m < d->module_count; m++) {
    part *of = &d->parts[m];
    if (!of->is_here) continue;
    AD_TRY(ad_text_batch_open(&of->batch));
    if (ad_comm_is_dry(d->setting.comm)) continue;
    AD_TRY(ad_target_open(&of->target, d->options->weights, d->setting.seed, ad_comm_rank(d->setting.comm)));
  }
  return AD_OK;
}

/* Positions of a module's samples, the same in each of its ranks' counts. */
static ad_status read_part(decompose *d, size_t module, int64_t step, int held_out, int64_t *counted) {
  part *of = &d->parts[module];
  if (of->is_here) return ad_text_batch_read(&of->batch, step, held_out, counted);
  memset(counted, 0, (size_t)d->setting.microbatches * sizeof *counted);
  return AD_OK;
}

static ad_status read_batch(void *own, int64_t step, int held_out, int64_t *const *counted) {
  decompose *d = own;
  d->step = step;
  AD_TRY(read_part(d, CI, step, held_out, counted[POSITIONS]));
  AD_TRY(read_part(d, module_of_adv(d), step, held_out, counted[ADV_POSITIONS]));
  for (size_t b = 0; b < d->block_count; b++)
    if (d->parts[1 + b].is_here) AD_TRY(read_part(d, 1 + b, step, held_out, counted[SITE_POSITIONS]));
  for (int64_t m = 0; m < d->setting.microbatches; m++) {
    counted[SITE_POSITIONS][m] *= (int64_t)d->site_count;
    counted[WEIGHTS][m] = weights_of(d);
  }
  return AD_OK;
}

static int has_held_out(const void *own) { return ((const decompose *)own)->options->target.decoder.data.held_out > 0; }

static size_t data_bytes(const void *own) {
  const decompose *d = own;
  size_t bytes = 0;
  for (size_t m = 0; m < d->module_count; m++)
    if (d->parts[m].is_here) bytes += ad_text_batch_bytes(&d->parts[m].batch);
  return bytes;
}

/* The importance network's and one pass of the target for each site, forward and backward. */
static double flops(const void *own, int64_t samples) {
  const decompose *d = own;
  int64_t seq = d->options->target.decoder.data.seq;
  return (2 + (double)d->site_count) * ad_decoder_flops(&d->parts[CI].target.decoder, seq, samples) +
         6 * d->importance.product_elements * (double)seq * (double)samples;
}

/* An element of a gradient is a sum over positions and over the passes of the target, one for each site and the
 * adversary's; an addend of the importance network's passes the target twice, where its inputs come from and where its
 * masks are used, about 12 operations a layer. */
static void lengths(const void *own, double *addends, double *operations) {
  const decompose *d = own;
  double layers = 2 * (double)d->options->target.decoder.layers + (double)d->options->importance_layers;
  *addends =
      (double)d->setting.global_batch * (double)d->options->target.decoder.data.seq * (double)(d->site_count + 1);
  *operations = 12 * layers + 32;
}

static const char *fact(const void *own, size_t index, char *buffer, size_t size) {
  const decompose *d = own;
  if (index) return NULL;
  snprintf(buffer, size, "%zu matrices, %lld components", d->site_count, (long long)d->components);
  return "decomposed";
}

static const char *content(const void *own, size_t index, char *buffer, size_t size) {
  const decompose *d = own;
  for (size_t m = 0; m < d->module_count; m++)
    if (d->parts[m].is_here) return ad_text_batch_content(&d->parts[m].batch, index, buffer, size);
  return NULL;
}

const ad_program_kind *ad_decompose(void) {
  static const char *const modules[] = {"ci", "blocks", "adv", NULL};
  static const ad_program_kind kind = {
      .name = "decompose",
      .help = "explains a decoder: components of its matrices, and where they are used",
      .modules = modules,
      .keys = ad_decompose_keys,
      .key_count = AD_DECOMPOSE_KEY_COUNT,
      .options_size = sizeof(ad_decompose_options),
      .check = ad_decompose_check,
      .check_files = ad_decompose_check_files,
      .create = create,
      .destroy = destroy,
      .open = open_data,
      .read = read_batch,
      .has_held_out = has_held_out,
      .data_bytes = data_bytes,
      .flops = flops,
      .lengths = lengths,
      .fact = fact,
      .content = content};
  return &kind;
}
