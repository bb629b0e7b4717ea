/* The recipe of a decomposition on three pools of ranks (or on one rank), and each of its six exchanges alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measured.h"
#include "bench/pools.h"

/* ---- the recipe ---- */

static const char RECIPE[] =
    "name: bench\n"
    "model: {kind: decompose, layers: %d, d_model: %d, heads: %d}\n"
    "data: {text: [/usr/share/common-licenses], seq: %d}\n"
    "importance: {layers: 2, d_model: %d, heads: %d}\n"
    "sites:\n"
    "  - {match: \"blocks.*.attn.*\", components: %lld}\n"
    "  - {match: \"blocks.*.mlp.*\", components: %lld}\n"
    "losses: {sparsity: {power: 0.9, beta: 0.3}}\n"
    "ascent: {steps: 2}\n"
    "comm_dtype: {values: f16, gradients: bf16, weights: bf16}\n"
    "mesh: {ci: \"dp=%d\", blocks: \"block=%d dp=%d\", adv: \"dp=%d\"}\n"
    "placement: %s\n"
    "train: {global_batch: %d, microbatches: 2, steps: 1000000, lr: 1e-4, clip: 1.0, seed: 1}\n";

static bench_decomposition decomposition_of(const bench_model *model) {
  int64_t d = model->d_model;
  return (bench_decomposition){.layers = model->layers,
                               .d_model = d,
                               .hidden = (8 * d / 3 + 15) / 16 * 16,
                               .seq = model->seq,
                               .batch = model->batch,
                               .narrow = d,
                               .wide = 2 * d};
}

ad_status bench_decomposition_recipe(const bench_model *model, int64_t ranks, ad_recipe **out) {
  bench_decomposition of = decomposition_of(model);
  bench_pools pools = ranks == 1 ? (bench_pools){1, 1, 1, 1} : bench_pools_of((int)ranks);
  char text[sizeof RECIPE + 192];
  snprintf(text, sizeof text, RECIPE, model->layers, model->d_model, model->heads, model->seq, model->d_model,
           model->heads, (long long)of.narrow, (long long)of.wide, pools.ci, pools.blocks, pools.per_block, pools.adv,
           ranks == 1 ? "colocated" : "disjoint", model->batch);
  return ad_recipe_parse(text, "bench", NULL, 0, out);
}

/* ---- one exchange ---- */

/* A value that goes over a bridge from one pool to another, or its gradient. */
typedef struct transfer {
  ad_bridge *bridge;
  ad_array source, destination; /* their field `data` is NULL on a rank that is not on that side of the bridge */
  ad_request request;
} transfer;

struct bench_transfers {
  ad_comm *comm;
  bench_decomposition of;
  bench_pools pools;
  bench_exchanged exchanged;
  ad_dtype dtype;
  ad_mesh *ci, *adv, **blocks;
  transfer *list;
  size_t count;
};

static int is_backward(const bench_transfers *c) {
  return c->exchanged == BENCH_BLOCKS_CI || c->exchanged == BENCH_ADV_CI || c->exchanged == BENCH_ADV_BLOCKS;
}

static ad_status make_pool(int ranks, int first, ad_mesh **out) {
  char text[32];
  snprintf(text, sizeof text, "dp=%d", ranks);
  return ad_mesh_create_pool(text, first, out);
}

static ad_status make_meshes(bench_transfers *c) {
  const bench_pools *pools = &c->pools;
  c->blocks = calloc((size_t)pools->blocks, sizeof(ad_mesh *));
  if (!c->blocks) return AD_MEMORY;
  AD_TRY(make_pool(pools->ci, 0, &c->ci));
  for (int b = 0; b < pools->blocks; b++)
    AD_TRY(make_pool(pools->per_block, pools->ci + b * pools->per_block, &c->blocks[b]));
  return make_pool(pools->adv, pools->ci + pools->blocks * pools->per_block, &c->adv);
}

static ad_status make_array(bench_transfers *c, const ad_shape *shape, ad_layout layout, ad_array *out) {
  if (is_backward(c)) layout = ad_layout_dual(&layout);
  return ad_array_create(c->comm, c->dtype, shape, &layout, out);
}

static ad_status add(bench_transfers *c, const ad_mesh *from, const ad_mesh *to, const ad_shape *shape) {
  const char *types = bench_exchanged_weights(c->exchanged) ? "dp=R" : "dp=S0";
  ad_bridge_options options = {.size = sizeof options, .ragged = 1};
  transfer *next = &c->list[c->count];
  ad_layout source, destination;
  AD_TRY(ad_layout_parse(from, types, &source));
  AD_TRY(ad_layout_parse(to, types, &destination));
  AD_TRY(ad_bridge_create(c->comm, &source, &destination, &options, &next->bridge));
  c->count++;
  if (ad_bridge_has_source(next->bridge)) AD_TRY(make_array(c, shape, source, &next->source));
  if (!ad_bridge_has_destination(next->bridge)) return AD_OK;
  return make_array(c, shape, ad_bridge_arrives(next->bridge), &next->destination);
}

/* Adds the importances of a block's components; the blocks divide the sites in order. */
static ad_status add_importances(bench_transfers *c, int block, const ad_mesh *to) {
  ad_span sites = ad_cut(bench_sites(&c->of), block, c->pools.blocks);
  ad_shape shape = {3, {c->of.batch, c->of.seq, 0}};
  for (int64_t i = sites.first; i < sites.first + sites.count; i++) shape.dim[2] += bench_site_of(&c->of, i).components;
  return add(c, c->ci, to, &shape);
}

static ad_status add_components(bench_transfers *c, int block) {
  ad_span sites = ad_cut(bench_sites(&c->of), block, c->pools.blocks);
  for (int64_t i = sites.first; i < sites.first + sites.count; i++) {
    bench_site site = bench_site_of(&c->of, i);
    AD_TRY(add(c, c->blocks[block], c->adv, &(ad_shape){2, {site.in, site.components}}));
    AD_TRY(add(c, c->blocks[block], c->adv, &(ad_shape){2, {site.components, site.out}}));
  }
  return AD_OK;
}

static ad_status add_block(bench_transfers *c, int block) {
  if (bench_exchanged_weights(c->exchanged)) return add_components(c, block);
  int is_of_blocks = c->exchanged == BENCH_CI_BLOCKS || c->exchanged == BENCH_BLOCKS_CI;
  return add_importances(c, block, is_of_blocks ? c->blocks[block] : c->adv);
}

static ad_status make(bench_transfers *c, const bench_task *task) {
  if (bench_exchanged_parse(task->storage, &c->exchanged)) return AD_INVALID;
  AD_TRY(ad_dtype_parse(task->dtype, &c->dtype));
  c->list = calloc((size_t)(2 * bench_sites(&c->of)), sizeof *c->list);
  if (!c->list) return AD_MEMORY;
  AD_TRY(make_meshes(c));
  for (int b = 0; b < c->pools.blocks; b++) AD_TRY(add_block(c, b));
  return AD_OK;
}

ad_status bench_transfers_create(ad_comm *comm, const bench_model *model, const bench_task *task,
                                 bench_transfers **out) {
  bench_transfers *c = calloc(1, sizeof *c);
  if (!c) return AD_MEMORY;
  c->comm = comm;
  c->of = decomposition_of(model);
  c->pools = bench_pools_of((int)ad_comm_size(comm));
  ad_status status = make(c, task);
  if (status) return bench_transfers_destroy(c), status;
  *out = c;
  return AD_OK;
}

void bench_transfers_destroy(bench_transfers *c) {
  if (!c) return;
  for (size_t i = 0; i < c->count; i++) {
    if (c->list[i].source.data) ad_array_destroy(c->comm, &c->list[i].source);
    if (c->list[i].destination.data) ad_array_destroy(c->comm, &c->list[i].destination);
    ad_bridge_destroy(c->list[i].bridge);
  }
  for (int b = 0; c->blocks && b < c->pools.blocks; b++) ad_mesh_destroy(c->blocks[b]);
  ad_mesh_destroy(c->ci);
  ad_mesh_destroy(c->adv);
  free(c->blocks);
  free(c->list);
  free(c);
}

/* ---- running an exchange and checking its results ---- */

static const ad_array *if_here(const ad_array *array) { return array->data ? array : NULL; }

static ad_status post(bench_transfers *c, transfer *one) {
  ad_array *source = &one->source, *destination = &one->destination;
  if (!is_backward(c))
    return ad_bridge_post_forward(one->bridge, if_here(source), destination->data ? destination : NULL, &one->request);
  return ad_bridge_post_backward(one->bridge, if_here(destination), source->data ? source : NULL, &one->request);
}

static int takes_part(const transfer *one) { return one->source.data || one->destination.data; }

static ad_status exchange(bench_transfers *c) {
  for (size_t i = 0; i < c->count; i++)
    if (takes_part(&c->list[i])) AD_TRY(post(c, &c->list[i]));
  for (size_t i = 0; i < c->count; i++)
    if (takes_part(&c->list[i])) AD_TRY(ad_comm_wait(c->comm, &c->list[i].request));
  return AD_OK;
}

/* A byte that makes every number nonzero. */
enum { SIGN = 0x3c };

static int all_are(const ad_array *array, int byte) {
  const unsigned char *at = array->data;
  for (size_t i = 0; i < ad_array_bytes(array); i++)
    if (at[i] != byte) return 0;
  return 1;
}

/* Checks an exchange: each element comes from one rank. Gradients of components go to the first rank of a block, the
 * block's other ranks get zeros. */
static ad_status look(bench_transfers *c) {
  for (size_t i = 0; i < c->count; i++) {
    const ad_array *given = is_backward(c) ? &c->list[i].destination : &c->list[i].source;
    if (given->data) memset(given->data, SIGN, ad_array_bytes(given));
  }
  AD_TRY(exchange(c));
  for (size_t i = 0; i < c->count; i++) {
    const ad_array *arrived = is_backward(c) ? &c->list[i].source : &c->list[i].destination;
    if (!arrived->data) continue;
    int is_first = ad_comm_rank(c->comm) == ad_mesh_first_rank(arrived->layout.mesh);
    if (!all_are(arrived, c->exchanged != BENCH_ADV_BLOCKS || is_first ? SIGN : 0)) return AD_INVALID;
  }
  return AD_OK;
}

ad_status bench_transfers_run(bench_transfers *c, int looks) { return looks ? look(c) : exchange(c); }

size_t bench_transfers_elements(const bench_model *model, const char *exchanged, int ranks) {
  bench_decomposition of = decomposition_of(model);
  bench_pools pools = bench_pools_of(ranks);
  bench_exchanged parsed;
  if (bench_exchanged_parse(exchanged, &parsed)) return 0;
  return (size_t)bench_exchanged_elements(&of, &pools, parsed);
}
