/* Groups of parameters with settings of their own, on 6 ranks (2 replicas of 3 shards): the experts' full copies stay
 * between steps and their gradients are reduced once a step (ZeRO 1), the embedding is reduced completely in every
 * microbatch, and the layer's copy exists only while it is used (ZeRO 3). Whatever a group's settings, its gradient is
 * the sum of all ranks' addends in all microbatches. */
#include <stdio.h>
#include "addend/core.h"

enum { EMBEDDING, LAYER, EXPERTS, PARAMS, MICROBATCHES = 3, RANKS = 6, ROWS = 8, COLUMNS = 2 };

static const char *const names[PARAMS] = {"embedding", "layer", "experts"};
/* The layer is in group 0, which has the settings of the options. */
static const size_t group_of[PARAMS] = {[EMBEDDING] = 1, [EXPERTS] = 2};

static double addend(int64_t rank, int microbatch, int param) {
  return (double)(rank + 1) + 10 * microbatch + 100 * param;
}

static double sum_of_all(int param) {
  double sum = 0;
  for (int64_t rank = 0; rank < RANKS; rank++)
    for (int m = 0; m < MICROBATCHES; m++) sum += addend(rank, m, param);
  return sum;
}

static ad_status describe(const ad_mesh *mesh, ad_param_spec *specs) {
  for (int p = 0; p < PARAMS; p++) {
    specs[p] = (ad_param_spec){.size = sizeof *specs, .name = names[p], .shape = {2, {ROWS, COLUMNS}}, .unit = p};
    AD_TRY(ad_layout_parse(mesh, "dp_replicate=R dp_shard=R", &specs[p].layout));
    AD_TRY(ad_layout_parse(mesh, "dp_replicate=R dp_shard=S0", &specs[p].storage));
  }
  return AD_OK;
}

static ad_status create(ad_comm *comm, const ad_param_spec *specs, ad_store **store, ad_reducer **reducer) {
  static const ad_sync completely[MICROBATCHES] = {AD_SYNC_ALL, AD_SYNC_ALL, AD_SYNC_ALL};
  static const ad_sync once[MICROBATCHES] = {AD_SYNC_NONE, AD_SYNC_NONE, AD_SYNC_ALL};
  const ad_reducer_group sums[] = {
      {.size = sizeof *sums, .bucket_bytes = 64 << 20, .sync = completely, .sync_count = MICROBATCHES},
      {.size = sizeof *sums, .sync = once, .sync_count = MICROBATCHES}};
  const ad_store_group copies[] = {{.size = sizeof *copies, .releases = 1}, {.size = sizeof *copies}};
  ad_reducer_options reduces = {
      .size = sizeof reduces, .reuses = 1, .groups = sums, .group_count = 2, .group_of = group_of};
  ad_store_options stores = {
      .size = sizeof stores, .releases = 1, .prefetch = 1, .groups = copies, .group_count = 2, .group_of = group_of};
  AD_TRY(ad_store_create(comm, specs, PARAMS, &stores, store));
  return ad_reducer_create(comm, specs, PARAMS, &reduces, reducer);
}

/* Submits the gradients of one microbatch, as a backward pass would: while it uses a parameter, it has its full copy. */
static ad_status run_microbatch(ad_comm *comm, ad_store *store, ad_reducer *reducer, int m) {
  float values[ROWS * COLUMNS];
  AD_TRY(ad_store_begin_pass(store, AD_BACKWARD));
  AD_TRY(ad_reducer_begin_microbatch(reducer, m + 1 < MICROBATCHES ? AD_SYNC_SHARD : AD_SYNC_ALL));
  for (int p = PARAMS - 1; p >= 0; p--) {
    ad_array gradient = ad_reducer_describe(reducer, (size_t)p);
    for (int i = 0; i < ROWS * COLUMNS; i++) values[i] = (float)addend(ad_comm_rank(comm), m, p);
    gradient.data = values;
    AD_TRY(ad_store_acquire(store, (size_t)p));
    AD_TRY(ad_reducer_add(reducer, (size_t)p, &gradient));
    ad_store_release(store, (size_t)p);
  }
  AD_TRY(ad_reducer_end_microbatch(reducer));
  return ad_store_end_pass(store);
}

static ad_status show(ad_comm *comm, const ad_store *store, const ad_reducer *reducer) {
  for (int p = 0; p < PARAMS; p++) {
    const ad_array *sum = ad_reducer_gradient(reducer, (size_t)p);
    for (size_t i = 0; i < ad_array_numel(sum); i++)
      if (((const float *)sum->data)[i] != (float)sum_of_all(p)) return AD_INVALID;
    if (ad_comm_rank(comm) == 0)
      printf("%-9s  sum %g, as expected; between steps its full copy %s\n", names[p], sum_of_all(p),
             ad_store_compute(store, (size_t)p)->data ? "stays" : "is released");
  }
  return AD_OK;
}

static ad_status run(ad_comm *comm, const ad_mesh *mesh, ad_store **store, ad_reducer **reducer) {
  ad_param_spec specs[PARAMS];
  AD_TRY(describe(mesh, specs));
  AD_TRY(create(comm, specs, store, reducer));
  AD_TRY(ad_store_refresh(*store, AD_MASTERS_WRITTEN));
  for (int m = 0; m < MICROBATCHES; m++) AD_TRY(run_microbatch(comm, *store, *reducer, m));
  AD_TRY(ad_reducer_finish(*reducer));
  return show(comm, *store, *reducer);
}

static int rank_main(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  ad_store *store = NULL;
  ad_reducer *reducer = NULL;
  if (ad_mesh_create("dp_replicate=2 dp_shard=3", &mesh)) return 1;
  ad_status status = run(comm, mesh, &store, &reducer);
  if (status) fprintf(stderr, "rank %d failed: %s\n", (int)ad_comm_rank(comm), ad_last_error());
  ad_reducer_destroy(reducer);
  ad_store_destroy(store);
  ad_mesh_destroy(mesh);
  return status != AD_OK;
}

int main(void) {
  ad_launch_options options = {.size = sizeof options, .ranks = RANKS, .function = rank_main, .joins = 1};
  ad_launch_result result = {.size = sizeof result};
  if (ad_launch(&options, &result) == AD_OK) return 0;
  return fprintf(stderr, "%s\n", ad_last_error()), 1;
}
