/* The computations of decompose's modules in a microbatch. Blocks send their components to the adversary. The
 * importance network sends importances to each block and to the adversary. Blocks and adversary run the target with
 * masked components. Gradients take the same ways in reverse. No formula contains a number of ranks. */
#include <stdio.h>
#include <string.h>
#include "addend/helpers.h"
#include "decompose/components.h"
#include "decompose/decompose.h"
#include "decompose/model.h"
#include "decompose/operations.h"

/* ---- random masks: drawing, per microbatch ---- */

static ad_decompose_part *part_of(ad_decomposition *d, const ad_phase_run *at) {
  return &d->parts[ad_phase_module(at)];
}

static const ad_text_microbatch *microbatch_of(ad_decomposition *d, const ad_phase_run *at) {
  return &part_of(d, at)->batch.microbatches[ad_phase_microbatch(at)];
}

static ad_status take_room(const ad_comm *comm, ad_kept_memory *memory, size_t bytes) {
  if (bytes <= memory->bytes) return AD_OK;
  ad_release(memory->at);
  *memory = (ad_kept_memory){0};
  if (!ad_comm_is_dry(comm)) AD_TRY(ad_new(bytes, &memory->at));
  memory->bytes = bytes;
  return AD_OK;
}

/* Returns uniform random numbers [batch, seq, components], or [batch, seq] if components is 0, in the wide dtype. Each
 * number depends only on its sample's and its position's place in the global batch. */
static ad_tensor *uniform(ad_decomposition *d, ad_phase_run *at, size_t site, int64_t components) {
  ad_tape *t = ad_phase_tape(at);
  const ad_text_microbatch *batch = microbatch_of(d, at);
  ad_shape shape = {components ? 3 : 2, {batch->tokens.shape.dim[0], batch->tokens.shape.dim[1], components}};
  ad_array array = ad_array_describe(d->setting.comm, ad_dtype_wide(ad_tape_dtype(t)), &shape, &batch->tokens.layout);
  ad_decompose_part *own = part_of(d, at);
  ad_kept_memory *memory = &own->masks[2 * (site - own->first_site) + (components == 0)];
  int64_t first = ad_cut(d->setting.global_batch, (int64_t)ad_phase_microbatch(at), d->setting.microbatches).first;
  char name[AD_DECOMPOSE_NAME_SIZE];
  ad_status status = take_room(d->setting.comm, memory, ad_array_bytes(&array));
  array.data = memory->at;
  snprintf(name, sizeof name, "%s %s", components ? "mask" : "remains", d->sites[site].name);
  if (!status) status = ad_array_uniform(d->setting.comm, d->setting.seed, name, d->step, first, &array);
  return status ? ad_tape_fail(t, status) : ad_constant(t, &array);
}

/* ---- running the target with masked components ---- */

/* A forward pass of the target in which masked components replace some sites. */
typedef struct masked_pass {
  ad_decomposition *d;
  size_t first, count; /* the sites that are replaced */
  ad_mask *masks;      /* one for each of these sites */
} masked_pass;

static ad_tensor *replace(void *own, ad_tape *t, size_t site, ad_tensor *x, ad_tensor *w) {
  const masked_pass *pass = own;
  if (site < pass->first || site >= pass->first + pass->count) return NULL;
  return ad_masked_product(t, &pass->masks[site - pass->first], x, w);
}

static ad_tensor *divergence(const ad_decomposition *d, ad_tape *t, ad_tensor *logits, ad_tensor *wanted) {
  return strcmp(d->options->divergence, "kl") ? ad_squared_error(t, logits, wanted)
                                              : ad_kl_divergence(t, logits, wanted);
}

ad_tensor *ad_decompose_logits(ad_decomposition *d, ad_decompose_part *part, ad_tape *t, ad_tensor *tokens,
                               ad_mask *masks) {
  masked_pass pass = {d, 0, d->site_count, masks};
  return ad_target_logits(&part->target, t, tokens, replace, &pass);
}

static ad_tensor *run_masked(masked_pass *pass, ad_decompose_part *own, ad_tape *t, ad_tensor *tokens,
                             ad_tensor *wanted) {
  return divergence(pass->d, t, ad_target_logits(&own->target, t, tokens, replace, pass), wanted);
}

/* ---- phase: a block gives its components ---- */

ad_status ad_decompose_give_components(void *own, ad_phase_run *at) {
  ad_decomposition *d = own;
  ad_tape *t = ad_phase_tape(at);
  const ad_decompose_part *block = part_of(d, at);
  for (size_t i = 0; i < block->site_count; i++) {
    size_t site = block->first_site + i;
    ad_phase_give(at, d->v[site], ad_scale(t, ad_parameter(t, ad_phase_parameters(at), 2 * i), 1));
    ad_phase_give(at, d->u[site], ad_scale(t, ad_parameter(t, ad_phase_parameters(at), 2 * i + 1), 1));
  }
  return AD_OK;
}

/* ---- phase: the importance network ---- */

typedef struct inputs {
  ad_tensor *of_site[AD_SITES_MAX];
} inputs;

static ad_tensor *see_input(void *own, ad_tape *t, size_t site, ad_tensor *x, ad_tensor *w) {
  ((inputs *)own)->of_site[site] = ad_rms_norm_unweighted(t, x, 1e-5);
  return NULL;
}

/* Returns the power at the present step. It depends on the step's number alone, so it is the same on all ranks and
 * after resuming. */
static double power_now(const ad_decomposition *d) {
  const ad_decompose_options *options = d->options;
  double span = options->anneal_to - options->anneal_from;
  double way = ((double)d->step / (double)d->setting.steps - options->anneal_from) / span;
  if (!(options->last_power > 0) || way < 0) return options->power;
  return way > 1 ? options->last_power : options->power + (options->last_power - options->power) * way;
}

/* Returns the sparsity loss. Every rank computes it from the sums over all ranks, so the backward of the all-reduce is
 * local (law 7, a replicated contribution). */
static ad_tensor *sparsity(const ad_decomposition *d, ad_tape *t, ad_tensor *importances) {
  ad_tensor *sums = ad_power_sums(t, ad_upper(t, importances), d->options->epsilon, power_now(d));
  return ad_sparsity(t, ad_all_reduce(t, sums, "dp", AD_I), d->options->beta);
}

ad_status ad_decompose_give_importances(void *own, ad_phase_run *at) {
  ad_decomposition *d = own;
  ad_tape *t = ad_phase_tape(at);
  inputs seen = {0};
  ad_target_logits(&part_of(d, at)->target, t, ad_constant(t, &microbatch_of(d, at)->tokens), see_input, &seen);
  ad_tensor *x = ad_encoder_forward(&d->importance, at, ad_concat(t, seen.of_site, d->site_count, -1));
  ad_tensor *lower = ad_lower(t, x, d->options->plain_clamp ? AD_SLOPE_PLAIN : AD_SLOPE_RETURNS);
  for (size_t b = 0, first = 0; b < d->block_count; b++) {
    ad_span own_sites = ad_sites_of_block(d, b);
    int64_t count = ad_components_in(d, (size_t)own_sites.first, (size_t)own_sites.count);
    ad_phase_give(at, d->importances[b], ad_slice(t, lower, -1, (int64_t)first, count));
    first += (size_t)count;
  }
  ad_phase_loss(at, AD_LOSS_SPARSITY, sparsity(d, t, x));
  return AD_OK;
}

/* ---- phase: a block's losses ---- */

/* Returns the faithfulness loss. All ranks of the block compute the same loss, so it is counted once (law 7, a
 * replicated contribution). It is a small difference of large numbers, so it is computed in the wide dtype. */
static ad_tensor *faithfulness(ad_decomposition *d, ad_phase_run *at, const ad_mask *masks) {
  ad_tape *t = ad_phase_tape(at);
  ad_dtype wide = ad_dtype_wide(ad_tape_dtype(t));
  const ad_decompose_part *block = part_of(d, at);
  ad_tensor *sum = NULL;
  for (size_t i = 0; i < block->site_count; i++) {
    ad_tensor *u = ad_to_dtype(t, masks[i].u, wide), *v = ad_to_dtype(t, masks[i].v, wide);
    ad_tensor *product = ad_linear(t, v, u);
    ad_tensor *error = ad_squared_error(t, product, ad_target_constant(&block->target, t, block->first_site + i));
    sum = sum ? ad_add(t, sum, error) : error;
  }
  return ad_once(t, sum, "dp");
}

static ad_tensor *stochastic(ad_decomposition *d, ad_phase_run *at, ad_mask *masks, ad_tensor *importances,
                             ad_tensor *tokens, ad_tensor *wanted) {
  ad_tape *t = ad_phase_tape(at);
  ad_decompose_part *block = part_of(d, at);
  ad_tensor *sum = NULL;
  int64_t first = 0;
  for (size_t i = 0; i < block->site_count; i++) {
    size_t site = block->first_site + i;
    int64_t components = d->sites[site].components;
    masked_pass pass = {d, site, 1, &masks[i]};
    ad_tensor *drawn = ad_to_dtype(t, uniform(d, at, site, components), ad_tape_dtype(t));
    masks[i].mask = ad_mix(t, ad_slice(t, importances, -1, first, components), drawn);
    masks[i].remains = uniform(d, at, site, 0);
    ad_tensor *error = run_masked(&pass, block, t, tokens, wanted);
    sum = sum ? ad_add(t, sum, error) : error;
    first += components;
  }
  return sum;
}

ad_status ad_decompose_run_block(void *own, ad_phase_run *at) {
  ad_decomposition *d = own;
  ad_tape *t = ad_phase_tape(at);
  ad_decompose_part *block = part_of(d, at);
  ad_mask masks[AD_SITES_MAX] = {{0}};
  ad_tensor *tokens = ad_constant(t, &microbatch_of(d, at)->tokens);
  ad_tensor *wanted = ad_target_logits(&block->target, t, tokens, NULL, NULL);
  for (size_t i = 0; i < block->site_count; i++) {
    masks[i].v = ad_phase_need(at, d->v[block->first_site + i]);
    masks[i].u = ad_phase_need(at, d->u[block->first_site + i]);
  }
  ad_phase_loss(at, AD_LOSS_FAITHFULNESS, faithfulness(d, at, masks));
  ad_tensor *importances = ad_phase_need(at, d->importances[ad_block_of(ad_phase_module(at))]);
  ad_phase_loss(at, AD_LOSS_STOCHASTIC, stochastic(d, at, masks, importances, tokens, wanted));
  return AD_OK;
}

/* ---- phase: the adversary ---- */

static ad_adversary adversary_of(ad_decomposition *d, ad_phase_run *at) {
  ad_tape *t = ad_phase_tape(at);
  ad_decompose_part *own = part_of(d, at);
  ad_adversary with = {.tape = t, .tokens = ad_constant(t, &microbatch_of(d, at)->tokens)};
  ad_tensor *of_blocks[AD_BLOCKS_MAX];
  with.wanted = ad_target_logits(&own->target, t, with.tokens, NULL, NULL);
  for (size_t b = 0; b < d->block_count; b++) of_blocks[b] = ad_phase_need(at, d->importances[b]);
  with.importances = ad_concat(t, of_blocks, d->block_count, -1);
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

ad_adversary ad_adversary_on(const ad_decomposition *d, ad_tape *t, const ad_adversary *from) {
  ad_adversary with = {.tape = t,
                       .tokens = again(t, from->tokens),
                       .wanted = again(t, from->wanted),
                       .importances = again(t, from->importances)};
  for (size_t s = 0; s < d->site_count; s++) {
    with.v[s] = again(t, from->v[s]);
    with.u[s] = again(t, from->u[s]);
  }
  return with;
}

static ad_tensor *masked_by_sources(ad_decomposition *d, ad_phase_run *at, ad_tape *t, const ad_adversary *with,
                                    ad_tensor **leaves) {
  ad_mask masks[AD_SITES_MAX];
  ad_tensor *sources[AD_SITES_MAX + 1] = {NULL};
  int64_t first = 0;
  for (size_t i = 0; i < d->sources.per_microbatch; i++)
    sources[i] = ad_sources_input(&d->sources, at, t, i, with->tokens, &leaves[i]);
  ad_tensor *mixed = ad_mix(t, with->importances, ad_to_dtype(t, sources[0], ad_tape_dtype(t)));
  for (size_t s = 0; s < d->site_count; s++) {
    masks[s] = (ad_mask){with->v[s], with->u[s], ad_slice(t, mixed, -1, first, d->sites[s].components), sources[1 + s]};
    first += d->sites[s].components;
  }
  return divergence(d, t, ad_decompose_logits(d, part_of(d, at), t, with->tokens, masks), with->wanted);
}

static double over_positions(const ad_decomposition *d) {
  return 1 / ((double)d->setting.global_batch * (double)d->options->target.decoder.data.seq);
}

static ad_status climb(ad_decomposition *d, ad_phase_run *at, ad_tensor *const *leaves, double factor) {
  const ad_array *gradients[AD_SITES_MAX + 1];
  for (size_t i = 0; i < d->sources.per_microbatch; i++) gradients[i] = ad_grad(leaves[i]);
  return ad_sources_climb(&d->sources, at, gradients, factor);
}

static ad_status climb_once(ad_decomposition *d, ad_phase_run *at, const ad_adversary *from) {
  ad_tensor *leaves[AD_SITES_MAX + 1];
  ad_tape *t = d->ascent;
  ad_tape_reset(t);
  ad_adversary with = ad_adversary_on(d, t, from);
  ad_tensor *loss = ad_scale(t, masked_by_sources(d, at, t, &with, leaves), over_positions(d));
  AD_TRY(ad_backward(t, loss));
  return climb(d, at, leaves, 1);
}

static ad_status climb_before(ad_decomposition *d, ad_phase_run *at, const ad_adversary *from) {
  ad_tape *t = ad_phase_tape(at);
  ad_tape_options options = {.size = sizeof options, .dtype = ad_tape_dtype(t), .residual = ad_tape_residual(t)};
  AD_TRY(ad_tape_status(t));
  if (!d->options->ascent_steps || !ad_phase_trains(at)) return AD_OK;
  if (!d->ascent) AD_TRY(ad_tape_create(ad_tape_comm(t), ad_tape_mesh(t), &options, &d->ascent));
  for (int64_t i = 0; i < d->options->ascent_steps; i++) AD_TRY(climb_once(d, at, from));
  return AD_OK;
}

ad_status ad_decompose_run_adversary(void *own, ad_phase_run *at) {
  ad_decomposition *d = own;
  ad_adversary with = adversary_of(d, at);
  d->adversary = with;
  AD_TRY(climb_before(d, at, &with));
  ad_tensor **leaves = ad_sources_leaves(&d->sources, at);
  ad_phase_loss(at, AD_LOSS_ADVERSARIAL, masked_by_sources(d, at, ad_phase_tape(at), &with, leaves));
  return AD_OK;
}

/* Takes one ascent step of the sources after the backward pass. The gradients of this pass contain the loss's
 * coefficient and scale, so they are divided by both. */
ad_status ad_decompose_climb_after(void *own, ad_phase_run *at) {
  ad_decomposition *d = own;
  if (!ad_phase_trains(at) || !d->options->ascent_steps || !(d->options->adversarial > 0)) return AD_OK;
  double carried = d->options->adversarial * ad_phase_loss_scale(at);
  return climb(d, at, ad_sources_leaves(&d->sources, at), 1 / carried);
}
